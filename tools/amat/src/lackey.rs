//! References of a real program, by way of valgrind.
//!
//! Valgrind's `lackey` prints every instruction and every data reference of a
//! program, a line each:
//!
//! ```text
//! I  0401ab70,3          an instruction
//!  L 1ffeffe7c8,8        a load
//!  S 1fff000778,8        a store
//!  M 0421ea90,4          both, by one instruction
//! ```
//! This is slow, because each line takes a system call: less than a million references a second. It
//! is used where QEMU cannot be. Valgrind runs one thread of a program at a time.

use crate::reference::{Event, Kind, MAX_BYTES, Reference, Sink};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Command, Stdio};

/// Instructions told together.
const PER_EVENT: u64 = 4096;

/// Runs `program` under lackey and tells `sink` its references. The program's output goes to
/// standard error. Programs that it executes are followed (many a program begins as a script).
/// Forked children are not, unless they exec: their references would mix with their parent's.
///
/// # Errors
/// When there is no valgrind, or the program cannot be started or fails: a trace of a failed run
/// would be taken for one of the program.
pub fn run(program: &[OsString], sink: &mut dyn Sink) -> Result<()> {
    // The shell makes of descriptor 9 the pipe that is read here, and moves the program's output
    // out of its way.
    let script = "exec valgrind --tool=lackey --trace-mem=yes --basic-counts=no \
                  --trace-children=yes --child-silent-after-fork=yes --log-fd=9 -- \"$@\" 9>&1 1>&2";
    let child = Command::new("sh").args(["-c", script, "valgrind"]).args(program).stdout(Stdio::piped()).spawn();
    let mut child = child.context("cannot start a shell")?;
    let log = child.stdout.take().context("no pipe from valgrind")?;
    let read = parse(BufReader::with_capacity(1 << 20, log), sink);
    if read.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().context("waiting for valgrind")?;
    let references = read?;
    match status.code() {
        Some(127) => bail!("valgrind or the program was not found (Debian: apt-get install valgrind)"),
        _ if references == 0 => bail!("{} made no reference that valgrind saw", program[0].display()),
        _ if !status.success() => bail!("{} ended with {status} under valgrind", program[0].display()),
        _ => Ok(()),
    }
}

/// Reads lackey's log. Lines that are no references (valgrind's own, marked `==`) are passed over.
/// Returns the number of references.
///
/// # Errors
/// Of `log`.
pub fn parse(mut log: impl BufRead, sink: &mut dyn Sink) -> std::io::Result<u64> {
    let (mut line, mut references, mut instructions) = (Vec::with_capacity(128), 0, 0);
    loop {
        line.clear();
        match log.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        if line.starts_with(b"I ") {
            instructions += 1;
            if instructions == PER_EVENT {
                sink.take(Event::Instructions(std::mem::take(&mut instructions)));
                sink.check()?;
            }
        } else if let Some(reference) = reference(&line) {
            references += 1;
            sink.take(Event::Reference(reference));
        }
    }
    sink.take(Event::Instructions(instructions));
    Ok(references)
}

fn reference(line: &[u8]) -> Option<Reference> {
    let (kind, rest) = match line.split_at_checked(3)? {
        (b" L ", rest) => (Kind::Read, rest),
        (b" S ", rest) => (Kind::Write, rest),
        (b" M ", rest) => (Kind::Modify, rest),
        _ => return None,
    };
    let rest = rest.trim_ascii_end();
    let comma = rest.iter().position(|&byte| byte == b',')?;
    let mut address = 0u64;
    for &byte in &rest[..comma] {
        address = address.checked_mul(16)? | u64::from((byte as char).to_digit(16)?);
    }
    let bytes = std::str::from_utf8(&rest[comma + 1..]).ok()?.parse().ok()?;
    (1..=MAX_BYTES).contains(&bytes).then_some(Reference { address, bytes, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_becomes_references() {
        let log =
            b"==7== Lackey\nI  0401ab70,3\n S 1fff000778,8\nI  04,1\n L ffff,1\n M 10,32\n L zz,8\n S 10,0\n S 10,";
        let (mut references, mut instructions) = (vec![], 0);
        let told = parse(&log[..], &mut |event| match event {
            Event::Reference(reference) => references.push(reference),
            Event::Instructions(n) => instructions += n,
        });
        assert_eq!((told.unwrap(), instructions), (3, 2));
        let seen: Vec<_> = references.iter().map(|r| (r.address, r.bytes, r.kind)).collect();
        assert_eq!(seen, [(0x1f_ff00_0778, 8, Kind::Write), (0xffff, 1, Kind::Read), (0x10, 32, Kind::Modify)]);
    }
}
