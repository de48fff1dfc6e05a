//! Events of each swap slot that the kernel frees.
//!
//! The kernel tells a device of whole clusters only (TRIM). A kprobe on a function that runs for
//! each freed slot reports single ones. It is made through tracefs, in an instance of its own, so
//! that other users' tracing is not touched.
//!
//! ```text
//!  kernel: slot freed ─► probe `freed` ─► ring buffers ─► Probe::read ─► Event: type, slots, time
//!          swapon     ─► probe `on`    ───────────────► Probe::kind: the type of our device
//! ```
//!
//! The function runs under the lock that a new use of the slot has to take, so an event comes
//! before that use. Each CPU has a buffer. Events are lost when it is full. Then pages stay at the
//! node until their cluster is free.
//!
//! This file: the probe. Its events are read by `ring`.

use crate::ring::{self, Field, Format};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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
/// Pages of a buffer that are read at once: as many as it has, with what is written meanwhile.
const PAGES: u32 = BUFFER_KIB / 4 + 2;
/// Room for a page of a buffer.
const AT_ONCE: usize = 1 << 16;
/// How long [`Probe::kind`] may take.
const KIND_WITHIN: Duration = Duration::from_secs(5);
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
    /// When: CLOCK_MONOTONIC.
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
    /// Tells that there is an event. Nothing is read from it.
    any: File,
    /// The buffer of each CPU.
    buffers: Vec<File>,
    /// The buffer that is read first, next time.
    first: usize,
    events: Events,
    /// The function that it is on.
    pub function: &'static str,
    page: Vec<u8>,
}

/// How our events lie in a buffer.
#[derive(Debug)]
struct Events {
    id: Field,
    on: u16,
    on_kind: Field,
    freed: u16,
    slots: Freed,
}

/// The arguments of a [`Site`].
#[derive(Debug)]
enum Freed {
    Entry(Field),
    Range { kind: Field, first: Field, last: Field },
}

impl Events {
    fn new(freed: &Format, on: &Format) -> Option<Events> {
        let range = || {
            let field = |name| freed.field(name);
            Some(Freed::Range { kind: field("type")?, first: field("first")?, last: field("last")? })
        };
        Some(Events {
            id: freed.field("common_type")?,
            on: on.id,
            on_kind: on.field("type")?,
            freed: freed.id,
            slots: freed.field("entry").map(Freed::Entry).or_else(range)?,
        })
    }

    /// The event with this payload. `None`: it is not ours, or not sound.
    fn event(&self, at_ns: u64, payload: &[u8]) -> Option<Event> {
        let id = self.id.of(payload)?;
        let (kind, what) = if id == u64::from(self.on) {
            (self.on_kind.of(payload)?, What::SwapOn)
        } else if id == u64::from(self.freed) {
            match self.slots {
                Freed::Entry(entry) => {
                    let entry = entry.of(payload)?;
                    let slot = u32::try_from(entry & ((1 << TYPE_SHIFT) - 1)).ok()?;
                    (entry >> TYPE_SHIFT, What::Freed(slot, slot))
                }
                Freed::Range { kind, first, last } => {
                    let slot = |field: Field| u32::try_from(field.of(payload)?).ok();
                    let (first, last) = (slot(first)?, slot(last)?);
                    (kind.of(payload)?, What::Freed(first, (last >= first).then_some(last)?))
                }
            }
        } else {
            return None;
        };
        Some(Event { kind: u32::try_from(kind).ok()?, at_ns, what })
    }
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
        let format = |event: &str| fs::read_to_string(instance.join(format!("events/{OURS}/{event}/format")));
        let (freed, on) = (Format::parse(&format("freed")?), Format::parse(&format("on")?));
        let events = freed.zip(on).and_then(|(freed, on)| Events::new(&freed, &on));
        let events = events.ok_or_else(|| io::Error::other("its events have another format"))?;
        let open = |path: PathBuf| OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let mut buffers = Vec::new();
        for cpu in fs::read_dir(instance.join("per_cpu"))? {
            buffers.push(open(cpu?.path().join("trace_pipe_raw"))?);
        }
        let any = open(instance.join("trace_pipe"))?;
        let mut probe = Probe { any, buffers, events, first: 0, function: site.function, page: vec![0; AT_ONCE] };
        // The kernel takes memory for the first page of each buffer. Later there may be none.
        for buffer in 0..probe.buffers.len() {
            probe.page(buffer, &mut Vec::new())?;
        }
        Ok(probe)
    }

    /// Waits until the kernel has an event, at most this long.
    ///
    /// `trace_pipe` of all CPUs is readable as soon as one has an event (6.1 and 6.12:
    /// `ring_buffer_poll_wait`): `buffer_percent` is for the pipes of single CPUs. The kernel may
    /// miss to wake for a single event, so the wait has an end.
    pub fn wait(&self, long: Duration) {
        farmem_sys::raw::wait_readable(self.any.as_raw_fd(), long.as_millis() as i32);
    }

    /// Adds what has happened to `events`. Begins to read no page after this time. True: some are
    /// left, and of no buffer more than it holds was read.
    ///
    /// # Errors
    /// The probe is gone.
    pub fn read(&mut self, events: &mut Vec<Event>, until: Instant) -> io::Result<bool> {
        let (first, mut left) = (self.first, false);
        for turn in 0..self.buffers.len() {
            let at = (first + turn) % self.buffers.len();
            let mut pages = 0;
            while self.page(at, events)? {
                pages += 1;
                if Instant::now() >= until {
                    // The others come first next time.
                    self.first = at + 1;
                    return Ok(true);
                }
                if pages == PAGES {
                    left = true;
                    break;
                }
            }
        }
        Ok(left)
    }

    /// One page of a buffer. False: it is empty.
    fn page(&mut self, buffer: usize, events: &mut Vec<Event>) -> io::Result<bool> {
        let n = match (&self.buffers[buffer]).read(&mut self.page) {
            Ok(n) => n,
            // A CPU that is not there has no buffer until it is.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ENODEV)) => 0,
            Err(e) => return Err(e),
        };
        ring::events(&self.page[..n], |at_ns, payload| events.extend(self.events.event(at_ns, payload)));
        Ok(n > 0)
    }

    /// The kernel's number of the device to which this process last had it swap.
    pub fn kind(&mut self) -> Option<u32> {
        let mut events = Vec::new();
        self.read(&mut events, Instant::now() + KIND_WITHIN).ok()?;
        let on = events.iter().filter(|event| event.what == What::SwapOn);
        on.max_by_key(|event| event.at_ns).map(|event| event.kind)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests as lab;

    const ON: &str = "name: on\nID: 1624\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:u32 type;\toffset:16;\tsize:4;\tsigned:0;\n";
    /// Of kernels that free slots one by one.
    const ENTRY: &str = "name: freed\nID: 1623\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:u64 entry;\toffset:16;\tsize:8;\tsigned:0;\n";

    fn of(freed: &str) -> Events {
        Events::new(&Format::parse(freed).unwrap(), &Format::parse(ON).unwrap()).unwrap()
    }

    fn payload(id: u32, words: &[u32]) -> Vec<u8> {
        [id, 87, 0xf00, 0].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect()
    }

    fn freed(kind: u32, first: u64, last: u64) -> Vec<u8> {
        let halves = |number: u64| [number as u32, (number >> 32) as u32];
        payload(1623, &[&[kind][..], &halves(first), &halves(last)].concat())
    }

    #[test]
    fn events_of_both_sites_are_read() {
        let events = of(lab::FREED);
        let (at_ns, range, on) = (7, freed(3, 15, 18), payload(1624, &[1, 49152, 0]));
        assert_eq!(events.event(7, &range), Some(Event { kind: 3, at_ns, what: What::Freed(15, 18) }));
        assert_eq!(events.event(7, &on), Some(Event { kind: 1, at_ns, what: What::SwapOn }));
        let entry = payload(1623, &[77, 2 << 26]);
        assert_eq!(of(ENTRY).event(7, &entry), Some(Event { kind: 2, at_ns, what: What::Freed(77, 77) }));
    }

    #[test]
    fn what_is_no_event_of_ours_is_left_out() {
        let events = of(lab::FREED);
        let short = &freed(1, 9, 9)[..35];
        for payload in [
            &[][..],
            short,
            &payload(1625, &[1, 9, 0, 9, 0]),
            &freed(1, 9, 8),
            &freed(1, 9, 1 << 32),
            &freed(1, 1 << 32, 9),
        ] {
            assert_eq!(events.event(7, payload), None, "{payload:?}");
        }
        assert!(Events::new(&Format::parse(ON).unwrap(), &Format::parse(ON).unwrap()).is_none());
    }
}
