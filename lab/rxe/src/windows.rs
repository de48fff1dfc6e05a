//! Memory windows of type 2B, as the hardware has them: bound by a work request of
//! the owner's queue pair, good for that queue pair's peer alone, gone with an
//! invalidate. Every refusal is looked for by its name on the wire, *remote access
//! error*, and by the bytes, which must not have changed.

// It owns the memory that the device reaches.
#![allow(unsafe_code)]

use farmem_sys::raw::Errno;
use farmem_sys::verbs::{Device, Domain, Done, Outcome, RcQueue, Region, Rights, Window, Work, WorkRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;
const PAGE: u64 = 4096;

/// Memory that a region refers to, kept as raw bytes.
struct Memory {
    at: *mut u8,
    region: Region,
}

impl Memory {
    fn new(domain: &Arc<Domain>, rights: Rights) -> Result<Memory, Errno> {
        let at = farmem_sys::memory::reserve(BYTES)?;
        // SAFETY: mapped for good, and accessed by raw reads and writes only.
        let region = unsafe { domain.region(at, BYTES, rights) }?;
        Ok(Memory { at, region })
    }

    fn byte(&self, at: u64) -> u8 {
        // SAFETY: inside.
        unsafe { self.at.add(at as usize).read_volatile() }
    }

    fn fill(&self, at: u64, len: u64, byte: u8) {
        // SAFETY: inside.
        unsafe { self.at.add(at as usize).write_bytes(byte, len as usize) };
    }
}

/// Two ends in one process: the owner of memory, in a domain of its own, and who borrows it.
struct Pair {
    owner: RcQueue,
    user: RcQueue,
}

impl Pair {
    fn new(of_owner: &Arc<Domain>, of_user: &Arc<Domain>) -> Result<Pair, Errno> {
        let mut pair = Pair { owner: RcQueue::new(of_owner, 16, 0x1234)?, user: RcQueue::new(of_user, 16, 0x77)? };
        let (owner, user) = (pair.owner.endpoint(), pair.user.endpoint());
        pair.owner.accept(&user)?;
        pair.user.accept(&owner)?;
        Ok(pair)
    }
}

fn carry_out(queue: &mut RcQueue, work: Work<'_>) -> Result<Outcome, String> {
    let request = [WorkRequest { id: 7, told: true, work }];
    // SAFETY: the buffers are whole regions that outlive this function, and it waits.
    unsafe { queue.post(&request) }.map_err(|(_, e)| format!("posting failed: {e}"))?;
    let until = Instant::now() + Duration::from_secs(20);
    let mut done = [Done { id: 0, outcome: Outcome::SUCCESS }];
    while queue.poll(&mut done).map_err(|e| e.to_string())? == 0 {
        if Instant::now() > until {
            return Err("no completion within 20 s".into());
        }
    }
    Ok(done[0].outcome)
}

/// Everything one case needs, made anew: a refused verb breaks its queue pair.
struct Stage {
    /// It goes first: before the queue pair it is bound for (soft-RoCE waits 50 s for the window else)
    /// and before the region (which is refused to go).
    window: Window,
    pair: Pair,
    stranger: Pair,
    memory: Memory,
    local: Memory,
}

impl Stage {
    fn new(device: &Device) -> Result<Stage, Errno> {
        let (theirs, ours) = (device.domain()?, device.domain()?);
        let memory = Memory::new(&theirs, Rights::All)?;
        memory.fill(0, BYTES as u64, 1);
        let local = Memory::new(&ours, Rights::Local)?;
        local.fill(0, BYTES as u64, 9);
        let (pair, stranger) = (Pair::new(&theirs, &ours)?, Pair::new(&theirs, &ours)?);
        Ok(Stage { pair, stranger, window: theirs.window()?, memory, local })
    }

    /// Binds the window to two pages at page 2.
    fn bind(&mut self, rights: Rights) -> Result<u32, String> {
        let rkey = self.window.next_rkey();
        let (window, region) = (&self.window, &self.memory.region);
        let bind = Work::Bind { window, rkey, region, offset: 2 * PAGE, len: 2 * PAGE, rights };
        expect("bind", carry_out(&mut self.pair.owner, bind)?, Outcome::SUCCESS)?;
        Ok(rkey)
    }

    fn invalidate(&mut self, rkey: u32) -> Result<(), String> {
        let done = carry_out(&mut self.pair.owner, Work::Invalidate { rkey })?;
        expect("invalidate", done, Outcome::SUCCESS)
    }

    fn write(&self, offset: u64, len: u64, rkey: u32) -> Work<'static> {
        Work::Write { from: self.local.at, lkey: self.local.region.lkey(), len: len as u32, offset, rkey }
    }

    fn read(&self, offset: u64, len: u64, rkey: u32) -> Work<'static> {
        Work::Read { into: self.local.at, lkey: self.local.region.lkey(), len: len as u32, offset, rkey }
    }

    /// No byte of the owner's memory but those of `at..at + len` has changed.
    fn unchanged_but(&self, at: u64, len: u64) -> Result<(), String> {
        let touched = |i: &u64| (at..at + len).contains(i);
        match (0..BYTES as u64).find(|i| !touched(i) && self.memory.byte(*i) != 1) {
            None => Ok(()),
            Some(i) => Err(format!("byte {i} changed")),
        }
    }
}

fn expect(what: &str, got: Outcome, wanted: Outcome) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("{what}: {got}, where {wanted} was due")) }
}

type Case = (&'static str, fn(&mut Stage) -> Result<(), String>);

/// Cases that soft-RoCE is known not to hold: up to Linux 6.1 at least, it checks a verb through a window against
/// the bounds of the window's region, not the window's. So farmem's windows never lie in a region that is
/// wider than what its user may reach.
const NOT_ON_RXE: &[&str] =
    &["a write beyond the window's end is refused", "a read before the window's start is refused"];

const CASES: &[Case] = &[
    ("a bound window carries a write and a read", |stage| {
        let rkey = stage.bind(Rights::All)?;
        let write = stage.write(2 * PAGE, 64, rkey);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::SUCCESS)?;
        if stage.memory.byte(2 * PAGE + 63) != 9 {
            return Err("the bytes did not arrive".into());
        }
        stage.memory.fill(2 * PAGE, 64, 5);
        let read = stage.read(2 * PAGE, 64, rkey);
        expect("read", carry_out(&mut stage.pair.user, read)?, Outcome::SUCCESS)?;
        if stage.local.byte(63) != 5 {
            return Err("the read brought something else".into());
        }
        stage.unchanged_but(2 * PAGE, 64)
    }),
    ("a bound window carries atomic verbs", |stage| {
        let rkey = stage.bind(Rights::All)?;
        let (into, lkey) = (stage.local.at.cast::<u64>(), stage.local.region.lkey());
        stage.memory.fill(2 * PAGE, 8, 0);
        let faa = Work::Faa { into, lkey, add: 5, offset: 2 * PAGE, rkey };
        expect("faa", carry_out(&mut stage.pair.user, faa)?, Outcome::SUCCESS)?;
        let cas = Work::Cas { into, lkey, expected: 5, new: 77, offset: 2 * PAGE, rkey };
        expect("cas", carry_out(&mut stage.pair.user, cas)?, Outcome::SUCCESS)?;
        match (stage.local.byte(0), stage.memory.byte(2 * PAGE)) {
            (5, 77) => Ok(()),
            other => Err(format!("old value and new: {other:?}")),
        }
    }),
    ("after invalidate a write is refused", |stage| {
        let rkey = stage.bind(Rights::All)?;
        stage.invalidate(rkey)?;
        let write = stage.write(2 * PAGE, 64, rkey);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::REMOTE_ACCESS)?;
        stage.unchanged_but(0, 0)
    }),
    ("the key of an earlier bind is refused after another", |stage| {
        let old = stage.bind(Rights::All)?;
        stage.invalidate(old)?;
        let new = stage.bind(Rights::All)?;
        let write = stage.write(2 * PAGE, 64, new);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::SUCCESS)?;
        let write = stage.write(3 * PAGE, 64, old);
        expect("write by the old key", carry_out(&mut stage.pair.user, write)?, Outcome::REMOTE_ACCESS)?;
        stage.unchanged_but(2 * PAGE, 64)
    }),
    ("another queue pair's use is refused", |stage| {
        let rkey = stage.bind(Rights::All)?;
        let write = stage.write(2 * PAGE, 64, rkey);
        expect("write", carry_out(&mut stage.stranger.user, write)?, Outcome::REMOTE_ACCESS)?;
        stage.unchanged_but(0, 0)
    }),
    ("a write beyond the window's end is refused", |stage| {
        let rkey = stage.bind(Rights::All)?;
        let write = stage.write(4 * PAGE - 32, 64, rkey);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::REMOTE_ACCESS)?;
        stage.unchanged_but(4 * PAGE - 32, 32)
    }),
    ("a read before the window's start is refused", |stage| {
        let rkey = stage.bind(Rights::All)?;
        let read = stage.read(2 * PAGE - 1, 64, rkey);
        expect("read", carry_out(&mut stage.pair.user, read)?, Outcome::REMOTE_ACCESS)
    }),
    ("a read-only window refuses a write", |stage| {
        let rkey = stage.bind(Rights::Read)?;
        let read = stage.read(2 * PAGE, 64, rkey);
        expect("read", carry_out(&mut stage.pair.user, read)?, Outcome::SUCCESS)?;
        let write = stage.write(2 * PAGE, 64, rkey);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::REMOTE_ACCESS)?;
        stage.unchanged_but(0, 0)
    }),
    ("a region's key is refused in another domain", |stage| {
        // The stranger's and the pair's other ends share a domain; the user's own is another.
        let rkey = stage.local.region.rkey();
        let write = stage.write(0, 64, rkey);
        expect("write", carry_out(&mut stage.pair.user, write)?, Outcome::REMOTE_ACCESS)
    }),
    ("a bound window cannot be bound again", |stage| {
        stage.bind(Rights::All)?;
        let rkey = stage.window.next_rkey();
        let (window, region) = (&stage.window, &stage.memory.region);
        let bind = Work::Bind { window, rkey, region, offset: 0, len: PAGE, rights: Rights::All };
        let got = carry_out(&mut stage.pair.owner, bind)?;
        if got == Outcome::SUCCESS { Err("it was".into()) } else { Ok(()) }
    }),
];

/// Runs all cases.
pub fn hold() -> Result<(), String> {
    let device = Device::open(None).map_err(|e| e.to_string())?;
    let able = device.abilities();
    if !able.windows {
        return Err(format!("{} has no windows of type 2B", device.name()));
    }
    println!("{}: {able:?}", device.name());
    let mut failed = 0;
    for (name, case) in CASES {
        let begun = Instant::now();
        let held = Stage::new(&device).map_err(|e| e.to_string()).and_then(|mut stage| case(&mut stage));
        match held {
            Ok(()) => println!("  holds: {name} ({:.1?})", begun.elapsed()),
            Err(why) if device.name().starts_with("rxe") && NOT_ON_RXE.contains(name) => {
                println!("  KNOWN not to hold on soft-RoCE: {name}: {why}");
            }
            Err(why) => {
                failed += 1;
                println!("  FAILS: {name}: {why}");
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} fail", CASES.len())) }
}
