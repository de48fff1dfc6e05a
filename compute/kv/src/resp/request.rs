//! Requests: arrays of bulk strings, or lines.
//!
//! A web page can have its user's browser send bytes of its choice here, within protocols that are
//! not HTTP: in the ticket of a TLS greeting, or in the user's name of a TURN request. These begin
//! with bytes that are no text. So a line with a control character ends its connection.

use crate::command::long::{STREAMED, streams as streamed};

/// The limits of a client's requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one argument.
    pub argument: usize,
    /// Arguments of one command.
    pub arguments: usize,
    /// Bytes of one command.
    pub command: usize,
    /// Bytes of an argument that streams in; 0: none does.
    pub streamed: usize,
}

impl Limits {
    /// As redis has them, but for the size of an argument.
    pub const STORE: Limits = Limits { argument: 16 << 20, arguments: 1 << 20, command: 64 << 20, streamed: 512 << 20 };

    /// While a transaction is collected, in which nothing streams.
    pub const COLLECTED: Limits = Limits { streamed: 0, ..Limits::STORE };

    /// Before a client has given the password.
    pub const GUEST: Limits = Limits { argument: 16 << 10, arguments: 10, command: 64 << 10, streamed: 0 };
}

/// Bytes of a line, and of the count in front of an argument.
const LINE: usize = 64 << 10;

/// A command and its arguments.
pub type Request = Vec<Vec<u8>>;

/// Arguments of a request that [`Parser::short`] shows.
pub const SHORT: usize = 3;

/// A request where it lies.
#[derive(Clone, Copy, Debug)]
pub struct Short<'a> {
    args: [&'a [u8]; SHORT],
    count: usize,
    /// Where it ends.
    pub end: usize,
}

impl<'a> Short<'a> {
    /// The command's name and its arguments.
    pub fn args(&self) -> &[&'a [u8]] {
        &self.args[..self.count]
    }
}

/// Takes requests out of a stream of bytes.
#[derive(Debug, Default)]
pub struct Parser {
    bytes: Vec<u8>,
    /// Bytes of it that were taken.
    at: usize,
    /// The request that is being read: arguments to come, and those that are there.
    open: Option<(usize, Request)>,
    size: usize,
    /// Bytes to come of an argument that streams in.
    streams: Option<usize>,
}

impl Parser {
    /// More bytes came.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at > 0 && (self.at == self.bytes.len() || self.at > 1 << 16) {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// If a request of up to [`SHORT`] arguments is next and has come in full, as arrays of bulk
    /// strings: its arguments, where they lie.
    pub fn short(&self) -> Option<Short<'_>> {
        if self.open.is_some() {
            return None;
        }
        let mut rest = self.bytes.get(self.at..)?;
        let count = length(&mut rest, b'*')?;
        let mut args = [&[][..]; SHORT];
        for arg in args.get_mut(..count)? {
            let len = length(&mut rest, b'$')?;
            let after;
            (*arg, after) = rest.split_at_checked(len)?;
            rest = after.strip_prefix(b"\r\n")?;
        }
        Some(Short { args, count, end: self.bytes.len() - rest.len() })
    }

    /// Takes what ends there, as [`Parser::short`] said.
    pub fn skip(&mut self, end: usize) {
        self.at = end;
    }

    /// Bytes that are waiting to be taken.
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The command so far, and the bytes of its next argument, which streams in. Then
    /// [`Parser::next`] finds nothing until [`Parser::take`] has taken them all.
    pub fn streams(&self) -> Option<(&Request, usize)> {
        Some((&self.open.as_ref()?.1, self.streams?))
    }

    /// Takes bytes of an argument that streams in. At its end its place is an empty argument.
    pub fn take(&mut self) -> Vec<u8> {
        let Some(left) = self.streams else { return Vec::new() };
        let now = self.waiting().min(left);
        let bytes = self.bytes[self.at..self.at + now].to_vec();
        self.at += now;
        self.streams = Some(left - now);
        bytes
    }

    /// The next request that has come in full.
    ///
    /// # Errors
    /// The text that the client is sent before its connection is closed.
    pub fn next(&mut self, limits: &Limits) -> Result<Option<Request>, String> {
        loop {
            if let Some((left, request)) = &mut self.open {
                if *left == 0 {
                    let request = std::mem::take(request);
                    (self.open, self.size) = (None, 0);
                    return Ok(Some(request));
                }
                if let Some(streams) = self.streams {
                    if streams > 0 || self.bytes.len() < self.at + 2 {
                        return Ok(None);
                    }
                    (self.streams, self.at) = (None, self.at + 2);
                    request.push(Vec::new());
                    *left -= 1;
                    continue;
                }
                let Some((line, after)) = line(&self.bytes, self.at, "too big bulk count string")? else {
                    return Ok(None);
                };
                if line.first() != Some(&b'$') {
                    let got = line.first().map_or(' ', |&byte| char::from(byte));
                    return Err(format!("Protocol error: expected '$', got '{got}'"));
                }
                let streams =
                    limits.streamed > 0 && request.first().is_some_and(|name| streamed(name) == Some(request.len()));
                let most = if streams { limits.streamed } else { limits.argument };
                let len = number(&line[1..]).filter(|&len| len >= 0 && len as usize <= most);
                let len = len.ok_or("Protocol error: invalid bulk length")? as usize;
                if streams && len >= STREAMED {
                    (self.streams, self.at) = (Some(len), after);
                    return Ok(None);
                }
                if self.size + len > limits.command {
                    return Err("Protocol error: the command is too long".into());
                }
                let Some(argument) = self.bytes.get(after..after + len + 2) else { return Ok(None) };
                request.push(argument[..len].to_vec());
                *left -= 1;
                self.size += len;
                self.at = after + len + 2;
                continue;
            }
            let Some(&first) = self.bytes.get(self.at) else { return Ok(None) };
            let what = if first == b'*' { "too big mbulk count string" } else { "too big inline request" };
            let Some((line, after)) = line(&self.bytes, self.at, what)? else { return Ok(None) };
            if first == b'*' {
                let count = number(&line[1..]).filter(|&count| count <= limits.arguments as i64);
                let count = count.ok_or("Protocol error: invalid multibulk length")?;
                self.at = after;
                if count > 0 {
                    self.open = Some((count as usize, Vec::with_capacity((count as usize).min(1024))));
                }
                continue;
            }
            if line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
                return Err("Protocol error: a line with a control character".into());
            }
            let request = words(line).ok_or("Protocol error: unbalanced quotes in request")?;
            self.at = after;
            if !request.is_empty() {
                return Ok(Some(request));
            }
        }
    }
}

/// Takes a count of up to eight digits behind `sign`, and the end of its line.
fn length(rest: &mut &[u8], sign: u8) -> Option<usize> {
    let mut tail = rest.strip_prefix(&[sign])?;
    let mut len = 0;
    for digits in 0..9 {
        match tail {
            [digit @ b'0'..=b'9', more @ ..] => (len, tail) = (len * 10 + usize::from(digit - b'0'), more),
            [b'\r', b'\n', more @ ..] if digits > 0 => {
                *rest = more;
                return Some(len);
            }
            _ => return None,
        }
    }
    None
}

/// The line that begins at `at`, and where the next begins.
fn line<'a>(bytes: &'a [u8], at: usize, too_long: &str) -> Result<Option<(&'a [u8], usize)>, String> {
    let rest = &bytes[at.min(bytes.len())..];
    match rest.iter().take(LINE).position(|&byte| byte == b'\n') {
        Some(end) => {
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
            Ok(Some((line, at + end + 1)))
        }
        None if rest.len() >= LINE => Err(format!("Protocol error: {too_long}")),
        None => Ok(None),
    }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The words of a line, as a shell would quote them; `None` if a quote is open.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (mut words, mut at) = (Vec::new(), 0);
    while at < line.len() {
        if line[at].is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let mut word = Vec::new();
        let mut quote = None;
        while at < line.len() {
            let byte = line[at];
            at += 1;
            match (quote, byte) {
                (None, byte) if byte.is_ascii_whitespace() => break,
                (None, b'"' | b'\'') => quote = Some(byte),
                (Some(b'"'), b'\\') if line.get(at) == Some(&b'x') && hex(line.get(at + 1..at + 3)).is_some() => {
                    word.extend(hex(line.get(at + 1..at + 3)));
                    at += 3;
                }
                (Some(b'"'), b'\\') if at < line.len() => {
                    word.push(match line[at] {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    });
                    at += 1;
                }
                (Some(b'\''), b'\\') if line.get(at) == Some(&b'\'') => {
                    word.push(b'\'');
                    at += 1;
                }
                (Some(open), byte) if byte == open => {
                    if line.get(at).is_some_and(|next| !next.is_ascii_whitespace()) {
                        return None;
                    }
                    quote = None;
                }
                (_, byte) => word.push(byte),
            }
        }
        if quote.is_some() {
            return None;
        }
        words.push(word);
    }
    Some(words)
}

fn hex(digits: Option<&[u8]>) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits?).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(stream: &[u8], step: usize) -> (Vec<Request>, Option<String>) {
        let (mut parser, mut requests) = (Parser::default(), Vec::new());
        for bytes in stream.chunks(step) {
            parser.feed(bytes);
            loop {
                match parser.next(&Limits::STORE) {
                    Ok(Some(request)) => requests.push(request),
                    Ok(None) => break,
                    Err(wrong) => return (requests, Some(wrong)),
                }
            }
        }
        (requests, None)
    }

    #[test]
    fn requests_come_in_any_pieces() {
        let stream = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n\r\nPING\t\"a\\x41 \\n\" 'it\\'s'\r\n*0\r\n*1\r\n$0\r\n\r\n";
        let expected: Vec<Request> = vec![
            vec![b"GET".to_vec(), b"a\r\nb".to_vec()],
            vec![b"PING".to_vec(), b"aA \n".to_vec(), b"it's".to_vec()],
            vec![b"".to_vec()],
        ];
        for step in 1..stream.len() {
            assert_eq!(all(stream, step), (expected.clone(), None), "{step}");
        }
    }

    #[test]
    fn a_long_argument_may_come_in_many_pieces() {
        let argument = [&b"*1\r\n$9000000\r\n"[..], &vec![b'v'; 9_000_000], b"\r\n"].concat();
        let (requests, wrong) = all(&argument, 16 << 10);
        assert_eq!((requests.len(), wrong), (1, None));
    }

    #[test]
    fn a_short_request_is_seen_where_it_lies() {
        let stream = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n\r\nbc\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n";
        let whole = [30, stream.len()];
        for end in 0..=stream.len() {
            let mut parser = Parser::default();
            parser.feed(&stream[..end]);
            let seen = parser.short().map(|short| (short.args().concat(), short.end));
            assert_eq!(seen, (end >= whole[0]).then(|| (b"SETa\r\nbc".to_vec(), whole[0])), "{end}");
            if let Some((_, end)) = seen {
                parser.skip(end);
                let seen = parser.short().map(|short| short.args().concat());
                assert_eq!(seen, (parser.bytes.len() == whole[1]).then(|| b"GET".to_vec()));
            }
        }
        for other in
            [&b"PING\r\n"[..], b"*4\r\n", b"*0\r\n", b"*1\r\n$x\r\n", b"*1\r\n$1\r\nabc", b"*2\r\n$99999999999\r\n"]
        {
            let mut parser = Parser::default();
            parser.feed(other);
            let seen = parser.short().map(|short| short.args().len());
            assert!(seen.is_none_or(|args| args == 0), "{other:?}");
        }
    }

    #[test]
    fn nonsense_is_named() {
        let wrong = |stream: &[u8]| all(stream, 7).1.unwrap_or_default();
        assert_eq!(wrong(b"*1\r\nGET\r\n"), "Protocol error: expected '$', got 'G'");
        assert_eq!(wrong(b"*x\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(wrong(b"*9999999\r\n"), "Protocol error: invalid multibulk length");
        assert_eq!(wrong(b"*1\r\n$629145600\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(wrong(b"*1\r\n$-3\r\n"), "Protocol error: invalid bulk length");
        assert_eq!(wrong(b"SET a \"b\r\n"), "Protocol error: unbalanced quotes in request");
        assert_eq!(wrong(&[b'x'; 70_000]), "Protocol error: too big inline request");
        for line in [&b"\x16\x03\x01\x02\n"[..], b"\0\n", b"SET a b\0\r\n", b"SET a \x7f\r\n", b"a\rb\r\n"] {
            assert_eq!(wrong(line), "Protocol error: a line with a control character");
        }
        assert_eq!(wrong(&[b"*", &[b'1'; 70_000][..]].concat()), "Protocol error: too big mbulk count string");
    }
}
