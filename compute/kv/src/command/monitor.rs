//! MONITOR: a client is told of all commands of this front end's clients, as they begin.
//!
//! The commands of a script are told of when it has ended, in the attempt that counts: it may be
//! begun again. Commands that may have secrets in them are told of without their arguments.

use super::long::Given;
use super::{Answered, Call, Client, Fail, find};
use crate::resp::{Reply, Request};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clients of a front end that are told, at most. Each gets a copy of each line before the next
/// command begins.
const MOST: usize = 16;
/// Bytes of a command that are told, at most, about.
const LINE: usize = 64 << 10;

/// Bytes of the commands of one run of a script that are told of, about.
const SCRIPT: usize = 1 << 20;

/// The clients that are told of commands.
#[derive(Debug, Default)]
pub struct Monitors {
    numbers: RefCell<BTreeSet<u64>>,
    /// The commands of the script that runs, and those that are not told of because they are too
    /// many.
    script: RefCell<(Vec<Reply>, usize)>,
    bytes: Cell<usize>,
    /// The commands of scripts that have ended, still to be told of.
    due: RefCell<Vec<Reply>>,
}

/// The commands of one run of a script.
pub type Told = Vec<Reply>;

impl Monitors {
    /// Whether there are any.
    #[inline]
    pub fn is_any(&self) -> bool {
        !self.numbers.borrow().is_empty()
    }

    /// Their numbers.
    pub fn all(&self) -> Vec<u64> {
        self.numbers.borrow().iter().copied().collect()
    }

    /// A script gives a command.
    pub(super) fn note(&self, request: &Request) {
        if !self.is_any() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (lines, left) = &mut *self.script.borrow_mut();
        if self.bytes.get() > SCRIPT {
            *left += 1;
        } else if let Some(text) = line("lua", request, None, now) {
            self.bytes.set(self.bytes.get() + text.len());
            lines.push(Reply::Line(text));
        }
    }

    /// The commands of the run that has ended, of which nothing is told of yet.
    pub(super) fn taken(&self) -> Told {
        self.bytes.set(0);
        let (mut lines, left) = self.script.take();
        if left > 0 {
            lines.push(Reply::Line(format!("... ({left} more commands of this script)")));
        }
        lines
    }

    /// Tells of the commands of a script.
    pub(super) fn tell(&self, told: Told) {
        self.due.borrow_mut().extend(told);
    }

    /// What is to be told now.
    pub fn take_due(&self) -> Told {
        self.due.take()
    }

    /// A client is gone, or has asked for that.
    pub fn leave(&self, client: &Client) {
        client.monitors.set(false);
        self.numbers.borrow_mut().remove(&client.id);
    }
}

pub(super) fn run(call: &Call) -> Answered {
    if call.in_exec || call.draft.is_some() {
        return Err(Fail::new("MONITOR is not carried out in a transaction"));
    }
    let mut all = call.front.monitors.numbers.borrow_mut();
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
    let name = find(&request[0])?.name;
    if !client.authenticated.get() && !matches!(name, "auth" | "hello") {
        return None;
    }
    line(&client.address, request, given, now).map(Reply::Line)
}

/// A command that comes from there, as it is told; `None`: it is not.
fn line(from: &str, request: &Request, given: Option<&Given>, now: Duration) -> Option<String> {
    // As redis: not of those that look at the server itself, or are none.
    const QUIET: [&str; 6] = ["acl", "config", "debug", "latency", "monitor", "slowlog"];
    let command = find(&request[0]).filter(|command| command.takes(request.len()))?;
    let name = command.name;
    if QUIET.contains(&name) {
        return None;
    }
    let mut text = format!("{}.{:06} [0 {from}]", now.as_secs(), now.subsec_micros());
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
    Some(text)
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
