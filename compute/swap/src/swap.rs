//! Swapping to a node: on, watched, off.

use crate::freed::{self, Probe};
use crate::nbd::{Client, Deaths, Settings};
use crate::state::{self, Held, State};
use crate::stream::{KEPT_LONGER, Stream, Wanted, dial};
use crate::tell::{self, Teller};
use crate::{Error, crypt, device, header, report};
use farmem_protocol::nbd::{GOING_DOWN, PAGE, Report};
use farmem_protocol::units::bytes;
use farmem_sys::process::{self, Signals};
use farmem_sys::swap;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

/// Devices of one node, at most: the kernel has room for 23 swap devices of all kinds.
pub const MAX_DEVICES: u32 = 16;
/// Indexes that are looked at for a device.
const INDEXES: u32 = 64;
/// How often the watcher asks how the volumes are doing.
const LOOKS_EVERY: Duration = Duration::from_secs(5);
/// How often it tries to reach a node that it has lost.
const TRIES_EVERY: Duration = Duration::from_secs(1);
/// A volume that holds more of its size than this, where the node has less than that left for it, is near its end.
const LITTLE: u64 = 64 << 20;

/// What the user asks for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `HOST:PORT`.
    pub node: String,
    /// Bytes, of all devices together.
    pub size: u64,
    /// How many.
    pub devices: u32,
    /// Among swap devices.
    pub priority: u16,
    /// How long a request may be without an answer.
    pub timeout: Duration,
    /// How long requests wait for the node to come back.
    pub grace: Duration,
    /// The node may promise more than it has.
    pub overcommit: bool,
    /// Pages are encrypted before they leave.
    pub crypt: bool,
    /// The file of the token by which the node is asked, if it wants one.
    pub token: Option<PathBuf>,
    /// The node may be on this machine: for tests below a memory group's limit.
    pub same_machine: bool,
}

/// A device under watch.
struct Watched {
    held: Held,
    /// To ask by. `None`: it was lost.
    asked: Option<Stream>,
    /// The kernel's stream is dead.
    dead: bool,
    tried: Option<Instant>,
    /// When the token's file was changed last, as far as `asked` knows.
    token: Option<SystemTime>,
    /// Was told already.
    warned: bool,
}

/// The watch over all devices of this machine.
pub struct Watch {
    client: Client,
    devices: Vec<Watched>,
    timeout: Duration,
    /// Word of freed slots, until [`Watch::run`] passes it on.
    probe: Option<Probe>,
}

/// Why the watch is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// A signal asks for it.
    Asked,
    /// A node is going down.
    NodeGoes,
    /// Somebody else has undone all of it.
    Undone,
}

/// Says a line to the user.
fn say(line: impl std::fmt::Display) {
    eprintln!("farmem: {line}");
}

/// A number of the running kernel, the same in all of its containers.
pub fn machine() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    farmem_protocol::nbd::machine(&id)
}

/// Begins to swap, or takes over the watch of what another has begun.
pub fn on(plan: &Plan) -> Result<Watch, Error> {
    let mut client = Client::open()?;
    if let Err(e) = swap::stay_resident() {
        say(format_args!("the watcher's own memory may be swapped out: {e}"));
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    let directory = Path::new(state::DIRECTORY);
    let known = state::all(directory);
    if !known.is_empty() {
        return adopt(client, plan, &known);
    }
    let mut opened = Probe::open();
    let mut devices = Vec::new();
    let each = plan.size / u64::from(plan.devices) / PAGE * PAGE;
    for _ in 0..plan.devices {
        match begin(&mut client, plan, each, opened.as_mut().ok()) {
            Ok(watched) => devices.push(watched),
            Err(e) => {
                for begun in devices {
                    let _ = end(&mut client, &begun.held.state);
                }
                drop(opened);
                freed::close();
                return Err(e);
            }
        }
    }
    Ok(Watch { client, devices, timeout: plan.timeout, probe: said(opened) })
}

/// Says whether the kernel tells of each slot that it frees.
fn said(opened: Result<Probe, String>) -> Option<Probe> {
    match &opened {
        Ok(probe) => say(format_args!("freed pages come back one by one: a probe on {}", probe.function)),
        Err(why) => say(format_args!("freed pages come back by clusters of 512: {why}")),
    }
    opened.ok()
}

/// Takes over what is there.
fn adopt(client: Client, plan: &Plan, known: &[State]) -> Result<Watch, Error> {
    if let Some(other) = known.iter().find(|state| state.node != plan.node) {
        let already = format!("this machine swaps to {} already: first farmem swap --off", other.node);
        return Err(Error::Already(already));
    }
    let mut devices = Vec::new();
    for state in known {
        let held = state::adopt(Path::new(state::DIRECTORY), state)?.ok_or_else(|| {
            Error::Already(format!("another farmem swap watches {}: farmem swap --off undoes it", path(state)))
        })?;
        say(format_args!("watches {} on, {} at {}", path(state), bytes(state.size), state.node));
        // Whatever has happened to the kernel's stream meanwhile: a new one shows.
        devices.push(Watched { held, asked: None, dead: true, tried: None, token: None, warned: false });
    }
    Ok(Watch { client, devices, timeout: plan.timeout, probe: said(Probe::open()) })
}

fn path(state: &State) -> String {
    device::path(state.index).display().to_string()
}

/// One more device.
fn begin(client: &mut Client, plan: &Plan, size: u64, probe: Option<&mut Probe>) -> Result<Watched, Error> {
    let mut id = [0; 16];
    process::random_bytes(&mut id).map_err(|e| Error::Kernel("random bytes", e))?;
    let host = process::host_name();
    let mut state = State {
        index: 0,
        node: plan.node.clone(),
        volume: state::digits(&id),
        incarnation: 0,
        size,
        grace_s: plan.grace.as_secs().max(1),
        token: plan.token.clone(),
    };
    // A stream to ask by makes the volume: nothing is the kernel's yet.
    let first = Wanted { overcommit: plan.overcommit, ..Wanted::of(&state, id, &host, false) };
    let mut asked = dial(&first, plan.timeout)?;
    state.incarnation = asked.incarnation;
    let begun = connect(client, plan, &mut state, id, &host, &mut asked);
    if begun.is_err() {
        let _ = asked.free();
    } else if let Some(kind) = probe.and_then(Probe::kind) {
        let _ = state::keep_kind(Path::new(state::DIRECTORY), state.index, kind);
    }
    let token = state.token_changed();
    Ok(Watched { held: begun?, asked: Some(asked), dead: false, tried: None, token, warned: false })
}

fn connect(
    client: &mut Client,
    plan: &Plan,
    state: &mut State,
    id: [u8; 16],
    host: &str,
    asked: &mut Stream,
) -> Result<Held, Error> {
    let report = asked.report()?;
    let near = asked.is_near || report.machine == machine();
    if near && !plan.same_machine {
        return Err(Error::SameMachine(plan.node.clone()));
    }
    let data = dial(&Wanted::of(state, id, host, true), plan.timeout)?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for index in (0..INDEXES).filter(|&index| !device::is_connected(index)) {
        state.index = index;
        let held = match state::create(Path::new(state::DIRECTORY), state.clone()) {
            Ok(held) => held,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(Error::File(state::DIRECTORY.into(), e)),
        };
        let settings = Settings { index, size: state.size, timeout: plan.timeout, grace: plan.grace };
        match client.connect(&settings, data.fd()) {
            Ok(()) => {
                return swap_to(state, id, plan).map(|()| held).inspect_err(|_| {
                    let _ = crypt::end(index);
                    let _ = client.disconnect(index);
                    state::remove(Path::new(state::DIRECTORY), index);
                });
            }
            Err(e) => {
                state::remove(Path::new(state::DIRECTORY), index);
                // Somebody else's, of whom sysfs did not tell yet.
                if e.raw_os_error() != Some(libc::EBUSY) {
                    return Err(Error::Kernel("the kernel's NBD client", e));
                }
                last = e;
            }
        }
    }
    Err(Error::Kernel("the kernel's NBD client", last))
}

/// Writes the header, and has the kernel swap.
fn swap_to(state: &State, id: [u8; 16], plan: &Plan) -> Result<(), Error> {
    let priority = plan.priority;
    device::tune(state.index);
    let device = match plan.crypt {
        true => crypt::begin(state.index, state.size).map_err(|e| Error::Kernel("encryption by dm-crypt", e))?,
        false => device::path(state.index),
    };
    let failed = |e| Error::File(device.display().to_string(), e);
    // The id is the right to the volume, and a header can be read by more people.
    let uuid = std::array::from_fn(|i| id[i] ^ id[(i + 7) % 16].rotate_left(3));
    let page = header::page((state.size / PAGE) as u32, uuid, "farmem");
    let file = OpenOptions::new().read(true).write(true).open(&device).map_err(failed)?;
    file.write_all_at(&page, 0).and_then(|()| file.sync_all()).map_err(failed)?;
    drop(file);
    swap::swapon(&device, priority).map_err(|e| Error::Kernel("swapon", e))?;
    let (size, how, device) = (bytes(state.size), if plan.crypt { ", encrypted" } else { "" }, device.display());
    say(format_args!("swaps to {}: {size} at {device}, priority {priority}{how}", state.node));
    Ok(())
}

impl Watch {
    /// Watches until it is to end. `signals` were taken before any thread existed.
    pub fn run(&mut self, signals: &Signals) -> Result<Over, Error> {
        let mut deaths = self.client.deaths().map_err(|e| Error::Kernel("netlink", e))?;
        let (tell, died) = std::sync::mpsc::channel();
        let listen = move || hear(&mut deaths, &tell);
        std::thread::Builder::new().name("deaths".into()).spawn(listen).map_err(|e| Error::Kernel("a thread", e))?;
        let teller = self.tell();
        let over = self.watch(signals, &died);
        drop(teller);
        if over == Over::Undone && state::all(Path::new(state::DIRECTORY)).is_empty() {
            // `--off` could not remove the probe while this process had it open. A new watcher has its own.
            freed::close();
        }
        Ok(over)
    }

    /// Begins to tell nodes of freed slots.
    fn tell(&mut self) -> Option<Teller> {
        let probe = self.probe.take()?;
        let known = |watched: &Watched| {
            let state = watched.held.state.clone();
            let kind = state::kind(Path::new(state::DIRECTORY), state.index);
            if kind.is_none() {
                say(format_args!("{}: freed pages come back by clusters of 512: its type is not known", path(&state)));
            }
            Some(tell::Device { kind: kind?, state })
        };
        let devices: Vec<tell::Device> = self.devices.iter().filter_map(known).collect();
        let started = Teller::start(probe, devices, self.timeout);
        started.inspect_err(|e| say(format_args!("freed pages come back by clusters of 512: {e}"))).ok()
    }

    fn watch(&mut self, signals: &Signals, died: &Receiver<u32>) -> Over {
        let mut looked: Option<Instant> = None;
        loop {
            for index in died.try_iter() {
                let told = |watched: &&mut Watched| index == u32::MAX || watched.held.state.index == index;
                self.devices.iter_mut().filter(told).for_each(|watched| watched.dead = true);
            }
            self.devices.retain(|watched| watched.held.stands());
            if self.devices.is_empty() {
                return Over::Undone;
            }
            let looks = looked.is_none_or(|at| at.elapsed() >= LOOKS_EVERY);
            for watched in &mut self.devices {
                if watched.dead && watched.tried.is_none_or(|at| at.elapsed() >= TRIES_EVERY) {
                    watched.tried = Some(Instant::now());
                    watched.revive(&mut self.client, self.timeout);
                }
                if looks && watched.look(self.timeout) {
                    return Over::NodeGoes;
                }
            }
            if looks {
                looked = Some(Instant::now());
            }
            let dead = self.devices.iter().any(|watched| watched.dead);
            let next = signals.next(if dead { TRIES_EVERY } else { LOOKS_EVERY });
            if next.is_some_and(|arrived| signals.asks_to_end(arrived)) {
                return Over::Asked;
            }
        }
    }
}

/// Hears of streams that have died, and wakes the watcher.
fn hear(deaths: &mut Deaths, tell: &std::sync::mpsc::Sender<u32>) {
    while let Ok(index) = deaths.wait() {
        if tell.send(index).is_err() {
            return;
        }
        let _ = process::send(std::process::id(), libc::SIGUSR1);
    }
}

impl Watched {
    /// Gives the kernel another stream.
    fn revive(&mut self, client: &mut Client, silent: Duration) {
        let state = &self.held.state;
        let Some(id) = state.id() else { return };
        let host = process::host_name();
        let dialled = dial(&Wanted::of(state, id, &host, true), silent);
        let done = dialled.and_then(|stream| {
            // The node ends the stream before this one; the kernel may need a moment to see that.
            let until = Instant::now() + TRIES_EVERY;
            loop {
                match client.reconfigure(state.index, stream.fd()) {
                    Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    done => return done.map_err(|e| Error::Kernel("the kernel's NBD client", e)),
                }
            }
        });
        match done {
            Ok(()) => {
                if self.warned {
                    say(format_args!("{}: {} is back", path(state), state.node));
                }
                (self.dead, self.warned, self.asked) = (false, false, None);
            }
            Err(e) if !self.warned => {
                self.warned = true;
                let until = state.grace_s;
                say(format_args!(
                    "{}: {e}; pages are waited for up to {until} s, then who needs them gets SIGBUS",
                    path(state)
                ));
            }
            Err(_) => {}
        }
    }

    /// How the volume is doing. True: its node is going down.
    fn look(&mut self, silent: Duration) -> bool {
        let state = &self.held.state;
        // The node ends a volume with the token that it was last asked by: it is asked by a new one before the old one
        // is revoked.
        let token = state.token_changed();
        if std::mem::replace(&mut self.token, token) != token {
            self.asked = None;
        }
        if self.asked.is_none() && !self.dead {
            let host = process::host_name();
            self.asked = state.id().and_then(|id| dial(&Wanted::of(state, id, &host, false), silent).ok());
        }
        let Some(report) = self.asked.as_mut().map(Stream::report) else { return false };
        let Ok(report) = report else {
            self.asked = None;
            return false;
        };
        report::keep(Path::new(state::DIRECTORY), state.index, &report);
        if is_near_end(&report) && !std::mem::replace(&mut self.warned, true) {
            let free = bytes(report.free.get());
            say(format_args!(
                "{}: {} has {free} left: pages that find no room there stay here",
                path(state),
                state.node
            ));
        }
        report.flags.get() & GOING_DOWN != 0
    }
}

/// Whether the node may soon have to refuse pages.
fn is_near_end(report: &Report) -> bool {
    let missing = report.size.get().saturating_sub(report.held.get());
    report.free.get() < missing.min(LITTLE)
}

/// Undoes all that there is. Says what could not be.
pub fn off() -> Result<u32, Error> {
    let states = state::all(Path::new(state::DIRECTORY));
    let mut client = if states.is_empty() { return Ok(0) } else { Client::open()? };
    for state in &states {
        end(&mut client, state)?;
    }
    freed::close();
    Ok(states.len() as u32)
}

/// Brings back what is on a device, ends it, and frees its volume.
fn end(client: &mut Client, state: &State) -> Result<(), Error> {
    let device = crypt::find(state.index).unwrap_or_else(|| device::path(state.index));
    if device::is_swap(&device) {
        swap::swapoff(&device).map_err(|e| Error::Kernel("swapoff", e))?;
    }
    crypt::end(state.index).map_err(|e| Error::Kernel("the device mapper", e))?;
    // Before the device ends, so that a watcher does not take that for a cut.
    state::remove(Path::new(state::DIRECTORY), state.index);
    if device::is_connected(state.index) {
        client.disconnect(state.index).map_err(|e| Error::Kernel("the kernel's NBD client", e))?;
    }
    let host = process::host_name();
    let freed = state.id().map(|id| dial(&Wanted::of(state, id, &host, false), KEPT_LONGER).and_then(|mut s| s.free()));
    match freed {
        Some(Err(e)) => say(format_args!("{}: swaps no longer; its volume could not be freed: {e}", path(state))),
        _ => say(format_args!("{}: swaps no longer to {}", path(state), state.node)),
    }
    Ok(())
}
