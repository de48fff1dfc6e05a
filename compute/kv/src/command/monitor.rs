//! MONITOR: a client is told of all commands of this front end's clients, as they begin.
//!
//! A command of a script is not told of, but the script is. Commands that may have secrets in them are
//! told of without their arguments.

use super::long::Given;
use super::{Answered, Call, Client, Fail, find};
use crate::resp::{Reply, Request};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// Clients of a front end that are told, at most. Each gets a copy of each line before the next
/// command begins.
const MOST: usize = 16;
/// Bytes of a command that are told, at most, about.
const LINE: usize = 64 << 10;

/// The numbers of the clients that are told of commands.
#[derive(Debug, Default)]
pub struct Monitors(RefCell<BTreeSet<u64>>);

impl Monitors {
    /// Whether there are any.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.0.borrow().is_empty()
    }

    /// Their numbers.
    pub fn all(&self) -> Vec<u64> {
        self.0.borrow().iter().copied().collect()
    }

    /// A client is gone, or has asked for that.
    pub fn leave(&self, client: &Client) {
        client.monitors.set(false);
        self.0.borrow_mut().remove(&client.id);
    }
}

pub(super) fn run(call: &Call) -> Answered {
    if call.in_exec || call.draft.is_some() {
        return Err(Fail::new("MONITOR is not carried out in a transaction"));
    }
    let mut all = call.front.monitors.0.borrow_mut();
    if all.len() >= MOST && !all.contains(&call.client.id) {
        return Err(Fail::new(format!("this front end has {MOST} clients with MONITOR, which is the limit: end one")));
    }
    call.client.monitors.set(true);
    all.insert(call.client.id);
    Ok(Reply::Ok)
}

/// A command as monitors are told of it, with the argument that has streamed in; `None`: it is not told of.
/// `now`: since 1970.
pub fn told(client: &Client, request: &Request, given: Option<&Given>, now: Duration) -> Option<Reply> {
    // As redis: not of those that look at the server itself, or are none.
    const QUIET: [&str; 6] = ["acl", "config", "debug", "latency", "monitor", "slowlog"];
    let command = find(&request[0]).filter(|command| command.takes(request.len()))?;
    let name = command.name;
    if !client.authenticated.get() && !matches!(name, "auth" | "hello") || QUIET.contains(&name) {
        return None;
    }
    let mut text = format!("{}.{:06} [0 {}]", now.as_secs(), now.subsec_micros(), client.address);
    for (n, arg) in request.iter().enumerate() {
        if n > 0 && matches!(name, "auth" | "hello") {
            text += " \"(redacted)\"";
            continue;
        }
        if text.len() > LINE {
            let _ = write!(text, " \"... ({} more arguments)\"", request.len() - n);
            break;
        }
        text += " \"";
        let shown = quote(&mut text, arg);
        let streamed =
            given.filter(|(place, _)| *place == n).map(|(_, given)| given.as_ref().map(|long| long.list().len));
        match streamed.unwrap_or(Ok(arg.len() as u64)) {
            Ok(len) if len > shown as u64 => {
                let _ = write!(text, "... ({} more bytes)", len - shown as u64);
            }
            Ok(_) => {}
            // It was not written, so the command fails.
            Err(_) => text += "...",
        }
        text.push('"');
    }
    Some(Reply::Line(text))
}

/// Appends bytes as redis shows them within quotation marks, until the line is long. How many.
fn quote(text: &mut String, bytes: &[u8]) -> usize {
    for (n, &byte) in bytes.iter().enumerate() {
        if text.len() > LINE {
            return n;
        }
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            b'\n' => *text += "\\n",
            b'\r' => *text += "\\r",
            b'\t' => *text += "\\t",
            7 => *text += "\\a",
            8 => *text += "\\b",
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_as_redis_tells_it() {
        let client = Client::new(7, ["127.0.0.1:4".into(), "127.0.0.1:6379".into()], 0);
        let tell = |words: &[&[u8]]| {
            let request: Vec<Vec<u8>> = words.iter().map(|word| word.to_vec()).collect();
            told(&client, &request, None, Duration::from_micros(1_000_002))
        };
        let line = |text: &str| Some(Reply::Line(format!("1.000002 [0 127.0.0.1:4] {text}")));
        assert_eq!(tell(&[b"set", b"a\r\n\"\\", b"\x00\xff\t"]), line(r#""set" "a\r\n\"\\" "\x00\xff\t""#));
        assert_eq!(tell(&[b"AUTH", b"me", b"secret"]), line(r#""AUTH" "(redacted)" "(redacted)""#));
        assert_eq!(tell(&[b"CONFIG", b"GET", b"x"]), None);
        // Long arguments are cut off, also where four letters stand for each byte.
        for arg in [vec![0; 1 << 20], vec![b'x'; 1 << 20]] {
            let Some(Reply::Line(told)) = tell(&[b"set", b"k", &arg, &arg, b"y"]) else { panic!("it is told of") };
            assert!(
                told.len() < LINE + 100 && told.ends_with(r#" more bytes)" "... (2 more arguments)""#),
                "{}",
                &told[LINE..]
            );
        }
        client.authenticated.set(false);
        assert_eq!(tell(&[b"get", b"secret"]), None);
    }
}
