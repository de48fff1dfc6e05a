//! Events of each swap slot that the kernel frees.
//!
//! The kernel tells a device of whole clusters only (TRIM). A kprobe on a function that runs for
//! each freed slot reports single ones. It is made through tracefs, in an instance of its own, so
//! that other users' tracing is not touched.
//!
//! ```text
//!  kernel: slot freed ─► probe `freed` ─► ring buffer ─► Probe::read ─► Event: type, slots, time
//!          swapon     ─► probe `on`    ───────────────► Probe::kind: the type of our device
//! ```
//!
//! The function runs under the lock that a new use of the slot has to take, so an event comes
//! before that use. Events are lost when the buffer is full. Then pages stay at the node until
//! their cluster is free.
//!
//! This file: the probe. [`parse`] is pure.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where tracefs is, or may be mounted.
const TRACING: &str = "/sys/kernel/tracing";
/// The group of our probes, and the name of our instance.
const OURS: &str = "farmem_swap";
/// Kernel memory that holds events, in KiB a CPU.
const BUFFER_KIB: u32 = 1024;
/// Times that the probe is tried: a watcher whose devices were undone may still have it open.
const TRIES: u32 = 20;
/// How long to wait between two tries.
const TRIES_EVERY: Duration = Duration::from_millis(50);
/// Bytes of text that are read at once.
const AT_ONCE: usize = 1 << 16;
/// A type's place in a swap entry of the kernel's.
const TYPE_SHIFT: u32 = 58;

/// A function that runs for each freed slot, and what its arguments are.
struct Site {
    function: &'static str,
    arguments: &'static str,
}

/// The first that the kernel has is taken.
const SITES: [Site; 2] = [
    // Linux 5.9 to 6.17: one call for neighbouring slots.
    Site { function: "clear_shadow_from_swap_cache", arguments: "type=%di:u32 first=%si:u64 last=%dx:u64" },
    // Later: one call for each slot.
    Site { function: "zswap_invalidate", arguments: "entry=%di:u64" },
];

/// Runs in swapon, and is given the device's type and its pages.
const SWAPON: Site = Site { function: "swap_cgroup_swapon", arguments: "type=%di:u32 pages=%si:u64" };

/// The kernel has freed slots, or swaps to one more device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The kernel's number of the swap device.
    pub kind: u32,
    /// When: CLOCK_MONOTONIC, to within a microsecond.
    pub at_ns: u64,
    /// The event itself.
    pub what: What,
}

/// See [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Slots from the first to the last.
    Freed(u32, u32),
    /// The kernel swaps to the device, by this process.
    SwapOn,
}

/// A probe that stands.
#[derive(Debug)]
pub struct Probe {
    pipe: File,
    /// The function that it is on.
    pub function: &'static str,
    /// The beginning of a line whose end has not come yet.
    rest: Vec<u8>,
}

impl Probe {
    /// Makes the probe, or takes over one that a watcher before has left.
    ///
    /// # Errors
    /// The kernel does not allow it; the reason in a few words.
    pub fn open() -> Result<Probe, String> {
        let tracing = Path::new(TRACING);
        if !tracing.join("kprobe_events").exists() {
            // Best effort: the check below says what is missing.
            let _ = Command::new("mount").args(["-t", "tracefs", "tracefs", TRACING]).output();
        }
        if !tracing.join("kprobe_events").exists() {
            return Err(format!("{TRACING} has no kprobe_events"));
        }
        let mut tries = TRIES;
        loop {
            close();
            match Probe::define() {
                Err(e) if tries > 0 && e.raw_os_error() == Some(libc::EBUSY) => {
                    tries -= 1;
                    std::thread::sleep(TRIES_EVERY);
                }
                opened => {
                    return opened.map_err(|e| {
                        close();
                        format!("a probe in the kernel cannot be made: {e}")
                    });
                }
            }
        }
    }

    fn define() -> io::Result<Probe> {
        let mut site = Err(io::ErrorKind::NotFound.into());
        for tried in &SITES {
            match define("freed", tried) {
                Ok(()) => {
                    site = Ok(tried);
                    break;
                }
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => return Err(e),
                Err(e) => site = Err(e),
            }
        }
        let site = site?;
        define("on", &SWAPON)?;
        Probe::begin(site)
    }

    fn begin(site: &Site) -> io::Result<Probe> {
        let instance = instance();
        match fs::create_dir(&instance) {
            // A watcher that was killed has left its instance.
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let set = |name: &str, value: &str| fs::write(instance.join(name), value);
        set("trace_clock", "mono")?;
        set("buffer_size_kb", &BUFFER_KIB.to_string())?;
        set(&format!("events/{OURS}/on/filter"), &format!("common_pid == {}", std::process::id()))?;
        set(&format!("events/{OURS}/on/enable"), "1")?;
        set(&format!("events/{OURS}/freed/enable"), "1")?;
        let pipe = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(instance.join("trace_pipe"))?;
        Ok(Probe { pipe, function: site.function, rest: Vec::new() })
    }

    /// Adds what has happened to `events`, of one or two thousand slots. False: that was all.
    ///
    /// # Errors
    /// The probe is gone.
    pub fn read(&mut self, events: &mut Vec<Event>) -> io::Result<bool> {
        let mut room = [0; AT_ONCE];
        let n = match self.pipe.read(&mut room) {
            Ok(n) => n,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(e) => return Err(e),
        };
        self.rest.extend_from_slice(&room[..n]);
        let whole = self.rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines = self.rest[..whole].split(|&byte| byte == b'\n');
        events.extend(lines.filter_map(|line| parse(std::str::from_utf8(line).ok()?)));
        self.rest.drain(..whole);
        // A probe's line is short, so these bytes are none.
        if self.rest.len() > AT_ONCE {
            self.rest.clear();
        }
        Ok(n > 0)
    }

    /// The kernel's number of the device to which this process last had it swap.
    pub fn kind(&mut self) -> Option<u32> {
        let mut events = Vec::new();
        while self.read(&mut events).ok()? {}
        events.iter().rev().find(|event| event.what == What::SwapOn).map(|event| event.kind)
    }
}

/// Removes the probe, also one that another process made.
pub fn close() {
    let instance = instance();
    for event in ["freed", "on"] {
        let _ = fs::write(instance.join(format!("events/{OURS}/{event}/enable")), "0");
    }
    // An instance is removed as a directory is that was empty.
    let _ = fs::remove_dir(&instance);
    for event in ["freed", "on"] {
        let _ = append(&format!("-:{OURS}/{event}"));
    }
}

fn instance() -> PathBuf {
    Path::new(TRACING).join("instances").join(OURS)
}

fn define(event: &str, site: &Site) -> io::Result<()> {
    append(&format!("p:{OURS}/{event} {} {}", site.function, site.arguments))
}

/// One more order. The file is appended to: a write that truncates removes everybody's probes.
fn append(order: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(Path::new(TRACING).join("kprobe_events"))?.write_all(order.as_bytes())
}

/// One line of `trace_pipe`:
///
/// ```text
///   a program-87      [000] d..2.   123.456789: freed: (clear_shadow_from_swap_cache+0x0/0x1b0) type=0 first=15 last=15
/// ```
///
/// The program's name may be any text, so the line is read from its end.
pub fn parse(line: &str) -> Option<Event> {
    let (freed, on) = (line.rfind(": freed: ("), line.rfind(": on: ("));
    let at = freed.into_iter().chain(on).max()?;
    let (seconds, micros) = line[..at].rsplit(' ').next()?.split_once('.')?;
    let micros = micros.parse::<u64>().ok().filter(|micros| *micros < 1_000_000)?;
    let at_ns = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000)?;
    let arguments = line[at..].split_once(") ")?.1;
    let number = |name: &str| {
        let named = |argument: &str| argument.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok();
        arguments.split(' ').find_map(named)
    };
    let slot = |name: &str| u32::try_from(number(name)?).ok();
    let (kind, what) = if Some(at) == on {
        (number("type")?, What::SwapOn)
    } else if let Some(entry) = number("entry") {
        let slot = u32::try_from(entry & ((1 << TYPE_SHIFT) - 1)).ok()?;
        (entry >> TYPE_SHIFT, What::Freed(slot, slot))
    } else {
        let (first, last) = (slot("first")?, slot("last")?);
        (number("type")?, What::Freed(first, (last >= first).then_some(last)?))
    };
    Some(Event { kind: u32::try_from(kind).ok()?, at_ns, what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: u64 = 123_456_789_000;

    #[test]
    fn lines_of_both_sites_are_read() {
        let line = "           <...>-87      [000] d..2.   123.456789: freed: (clear_shadow_from_swap_cache+0x0/0x1b0) \
                    type=3 first=15 last=18";
        assert_eq!(parse(line), Some(Event { kind: 3, at_ns: AT, what: What::Freed(15, 18) }));
        let line =
            format!("a: freed: (b-1 [0] d 123.456789: freed: (zswap_invalidate+0x0/0x40) entry={}", 2u64 << 58 | 77);
        assert_eq!(parse(&line), Some(Event { kind: 2, at_ns: AT, what: What::Freed(77, 77) }));
        let line = " farmem-7 [001] ..... 123.456789: on: (swap_cgroup_swapon+0x0/0xb0) type=1 pages=49152";
        assert_eq!(parse(line), Some(Event { kind: 1, at_ns: AT, what: What::SwapOn }));
    }

    #[test]
    fn what_is_no_event_is_left_out() {
        for line in [
            "CPU:0 [LOST 123 EVENTS]",
            "",
            "x 1.2: freed: (f) type=1 first=9 last=8",
            "x 1.2: freed: (f) type=1 first=9",
            "x 1.2: freed: (f) type=1 first=9 last=4294967296",
            "x 1.1000000: freed: (f) type=1 first=9 last=9",
            "x 99999999999999999.1: freed: (f) type=1 first=9 last=9",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_programs_name_forges_nothing(name in "[ -~]{0,15}", slot: u32) {
            let line = format!("{name:>16}-5 [001] d..2. 123.456789: freed: (f+0x0/0x40) type=1 first={slot} last={slot}");
            prop_assert_eq!(parse(&line), Some(Event { kind: 1, at_ns: AT, what: What::Freed(slot, slot) }));
        }

        #[test]
        fn any_text_is_read_or_left_out(text in ".{0,40}: (freed|on): \\(.{0,10}\\) (type|first|last|entry)=.{0,12}") {
            let _ = parse(&text);
        }
    }
}
