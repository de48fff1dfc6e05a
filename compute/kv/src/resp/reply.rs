//! Replies, in either version of the protocol.

use crate::command::Heard;
use crate::command::long::Outlet;
use std::rc::Rc;

/// A reply to a client.
#[derive(Clone, PartialEq, Debug)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// A line.
    Line(String),
    /// An error: a code in capitals and a text.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Null,
    /// Nothing, where RESP2 expects an array.
    NullArray,
    /// A sequence.
    Array(Vec<Reply>),
    /// Pairs; a flat sequence in RESP2.
    Map(Vec<(Reply, Reply)>),
    /// A set; a sequence in RESP2.
    Set(Vec<Reply>),
    /// A number with a fraction; bytes in RESP2.
    Double(f64),
    /// Text; bytes in RESP2.
    Text(String),
    /// Yes or no; 1 or 0 in RESP2.
    Bool(bool),
    /// Bytes that stream out. Only their length is written here.
    Long(Rc<Outlet>),
    /// A sequence that the client has not asked for now; a plain one in RESP2.
    Push(Vec<Reply>),
    /// A published message.
    Heard(Heard),
    /// Bytes as they are sent. Several clients are sent the same.
    Encoded(Rc<[u8]>),
    /// Replies one after the other.
    Several(Vec<Reply>),
    /// No reply at all.
    Silence,
}

impl Reply {
    /// Bytes.
    pub fn bulk(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(bytes.into())
    }

    /// Bytes, or nothing.
    pub fn maybe(bytes: Option<impl Into<Vec<u8>>>) -> Reply {
        bytes.map_or(Reply::Null, |bytes| Reply::Bulk(bytes.into()))
    }

    /// An error of the common kind.
    pub fn error(text: impl std::fmt::Display) -> Reply {
        Reply::Error(format!("ERR {text}"))
    }

    /// Appends it to what goes to a client that speaks this version.
    pub fn write(&self, version: u8, out: &mut Vec<u8>) {
        match self {
            Reply::Ok => out.extend_from_slice(b"+OK\r\n"),
            Reply::Line(text) => line(out, b'+', text),
            Reply::Error(text) => line(out, b'-', &text.replace(['\r', '\n'], " ")),
            Reply::Int(number) => {
                out.push(b':');
                digits(out, *number);
            }
            Reply::Bulk(bytes) => bulk(out, bytes),
            Reply::Null | Reply::NullArray if version >= 3 => out.extend_from_slice(b"_\r\n"),
            Reply::Null => out.extend_from_slice(b"$-1\r\n"),
            Reply::NullArray => out.extend_from_slice(b"*-1\r\n"),
            Reply::Array(items) => sequence(items, b'*', version, out),
            Reply::Set(items) => sequence(items, if version >= 3 { b'~' } else { b'*' }, version, out),
            Reply::Map(pairs) => {
                let (sign, count) = if version >= 3 { (b'%', pairs.len()) } else { (b'*', 2 * pairs.len()) };
                line(out, sign, &count.to_string());
                for (key, value) in pairs {
                    key.write(version, out);
                    value.write(version, out);
                }
            }
            Reply::Bool(is) if version >= 3 => line(out, b'#', if *is { "t" } else { "f" }),
            Reply::Bool(is) => Reply::Int(i64::from(*is)).write(version, out),
            Reply::Double(number) if version >= 3 => line(out, b',', &double(*number)),
            Reply::Double(number) => Reply::bulk(double(*number)).write(version, out),
            Reply::Text(text) if version >= 3 => {
                line(out, b'=', &(text.len() + 4).to_string());
                out.extend_from_slice(format!("txt:{text}\r\n").as_bytes());
            }
            Reply::Text(text) => Reply::bulk(text.as_bytes()).write(version, out),
            Reply::Long(outlet) => line(out, b'$', &outlet.len().to_string()),
            Reply::Push(items) => sequence(items, if version >= 3 { b'>' } else { b'*' }, version, out),
            Reply::Heard(heard) => {
                let parts = heard.parts();
                line(out, if version >= 3 { b'>' } else { b'*' }, &parts.len().to_string());
                parts.into_iter().for_each(|part| bulk(out, part));
            }
            Reply::Encoded(bytes) => out.extend_from_slice(bytes),
            Reply::Several(replies) => replies.iter().for_each(|reply| reply.write(version, out)),
            Reply::Silence => {}
        }
    }
}

/// Appends bytes with their length in front.
pub fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'$');
    digits(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends a number and the line's end.
fn digits(out: &mut Vec<u8>, number: i64) {
    let (mut text, mut at, mut left) = ([0; 20], 20, number.unsigned_abs());
    loop {
        at -= 1;
        text[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&text[at..]);
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, sign: u8, text: &str) {
    out.push(sign);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn sequence(items: &[Reply], sign: u8, version: u8, out: &mut Vec<u8>) {
    line(out, sign, &items.len().to_string());
    items.iter().for_each(|item| item.write(version, out));
}

/// A number as redis writes it: as short as it can be read back, `inf` and `-inf`.
pub fn double(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    if number != 0.0 && !(1e-5..1e17).contains(&number.abs()) {
        let text = format!("{number:e}");
        // Two digits of exponent and its sign, as C has it.
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
        return format!("{digits}e{sign}{exponent:0>2}");
    }
    format!("{number}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions() {
        let reply = Reply::Array(vec![
            Reply::Null,
            Reply::Map(vec![(Reply::bulk("a"), Reply::Int(-1))]),
            Reply::Double(1.5),
            Reply::Set(vec![Reply::Ok]),
            Reply::Text("x".into()),
        ]);
        let written = |version| {
            let mut out = Vec::new();
            reply.write(version, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(2), "*5\r\n$-1\r\n*2\r\n$1\r\na\r\n:-1\r\n$3\r\n1.5\r\n*1\r\n+OK\r\n$1\r\nx\r\n");
        assert_eq!(written(3), "*5\r\n_\r\n%1\r\n$1\r\na\r\n:-1\r\n,1.5\r\n~1\r\n+OK\r\n=5\r\ntxt:x\r\n");
    }

    #[test]
    fn numbers_are_short() {
        for (number, text) in [(3.0, "3"), (0.1, "0.1"), (f64::NEG_INFINITY, "-inf"), (1e20, "1e+20"), (0.0, "0")] {
            assert_eq!(double(number), text);
        }
    }
}
