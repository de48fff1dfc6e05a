//! What the kernel did to the slots of real programs that swapped: recorded in a virtual machine, by its own events.
//!
//! ```text
//!  lab/guest/swap/run.sh recorded ─► lab/swap/traces/PROGRAM ─► Program: runs of slots written, freed, trimmed
//! ```
//!
//! `lab/guest/swap/record/slots.c` writes the format, and says what it is.

use anyhow::{Context, Result, bail, ensure};
use std::ops::Range;

/// Parts of its memory, in percent, with which a program was timed.
pub const LOCAL: [u32; 5] = [100, 75, 50, 25, 10];

/// A program that was recorded, and how much longer than natively it takes with each of [`LOCAL`]. docs/figures.md has these
/// times, of `farmem-lab bench apps`: the virtual machine of the records tells no times.
const PROGRAMS: [(&str, &[u8], [f64; 5]); 4] = [
    ("redis", include_bytes!("../traces/redis"), [1.04, 1.36, 1.78, 2.30, 4.30]),
    ("sqlite", include_bytes!("../traces/sqlite"), [1.06, 1.13, 1.17, 6.29, 8.06]),
    ("sort", include_bytes!("../traces/sort"), [0.99, 1.44, 2.17, 14.0, 25.4]),
    ("gcc", include_bytes!("../traces/gcc"), [0.99, 0.98, 1.03, 1.05, 1.12]),
];

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Pages left to these slots.
    Written(Range<u32>),
    /// The kernel freed these slots.
    Freed(Range<u32>),
    /// The kernel told the device that these slots hold nothing.
    Trimmed(Range<u32>),
    /// So many milliseconds passed.
    Passed(u32),
}

/// A program that was recorded.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its name.
    pub name: &'static str,
    /// What happened, in order, with three tenths of its memory.
    pub events: Vec<Event>,
    /// Its time by its native time, for each of [`LOCAL`].
    pub slowdowns: [f64; 5],
}

impl Program {
    /// All of them.
    ///
    /// # Errors
    /// A file of the repository's is damaged.
    pub fn all() -> Result<Vec<Program>> {
        let program = |&(name, bytes, slowdowns): &(&'static str, &[u8], [f64; 5])| {
            let events = parse(bytes).with_context(|| format!("the recorded slots of {name}"))?;
            Ok(Program { name, events, slowdowns })
        };
        PROGRAMS.iter().map(program).collect()
    }
}

/// One more than the highest slot that events name.
pub fn slots(events: &[Event]) -> u32 {
    let end = |event: &Event| match event {
        Event::Written(range) | Event::Freed(range) | Event::Trimmed(range) => range.end,
        Event::Passed(_) => 0,
    };
    events.iter().map(end).max().unwrap_or(0)
}

/// Reads a file of `slots.c`.
///
/// # Errors
/// It is none.
pub fn parse(mut bytes: &[u8]) -> Result<Vec<Event>> {
    let (mut events, mut ends) = (Vec::new(), [0i64; 3]);
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        let of = match kind {
            b'M' => {
                events.push(Event::Passed(u32::try_from(number(&mut bytes)?).context("a time")?));
                continue;
            }
            b'W' => 0,
            b'F' => 1,
            b'T' => 2,
            other => bail!("an event of kind {other}"),
        };
        let folded = number(&mut bytes)?;
        let distance = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        let first = u32::try_from(ends[of].saturating_add(distance)).context("a slot")?;
        let length = u32::try_from(number(&mut bytes)?).context("a length")?;
        let end = first.checked_add(length).context("a range of slots")?;
        ends[of] = i64::from(end);
        events.push([Event::Written, Event::Freed, Event::Trimmed][of](first..end));
    }
    Ok(events)
}

fn number(bytes: &mut &[u8]) -> Result<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let (&byte, rest) = bytes.split_first().context("the file ends within an event")?;
        *bytes = rest;
        ensure!(shift < 63, "a number that is too large");
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Ok(value);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_was_written_to_it() {
        let bytes = [b'W', 20, 3, b'F', 22, 1, b'M', 0x84, 1, b'W', 5, 130, 1, b'T', 0, 0x80, 4];
        let events = [
            Event::Written(10..13),
            Event::Freed(11..12),
            Event::Passed(132),
            Event::Written(10..140),
            Event::Trimmed(0..512),
        ];
        assert_eq!(parse(&bytes).unwrap(), events);
        assert_eq!(slots(&events), 512);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        for bytes in [&b"W"[..], b"W\x02", b"X\x02\x02", b"W\x01\x02", b"M\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
