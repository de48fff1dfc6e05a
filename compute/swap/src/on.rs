//! Begins to swap: makes volumes, streams and devices, and has the kernel use them.
//! [`crate::watch`] then watches them, and [`crate::off`] ends them.

use crate::device::{self, Device};
use crate::freed::{self, Probe};
use crate::nbd::{Client, Settings};
use crate::off::{ENDS_EVERY, TELLS_AFTER, WAITS, end_area, end_device, is_swapped_to};
use crate::state::{self, Begins, Held, State};
use crate::stream::{PATIENCE, SHORT, Stream, Wanted, addresses, dial_within};
use crate::watch::{Watch, Watched, listen};
use crate::{Error, crypt, header, mirror};
use farmem_protocol::nbd::{PAGE, Report};
use farmem_protocol::units::bytes;
use farmem_sys::process::{self, Signals};
use farmem_sys::swap;
use std::fs::OpenOptions;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Devices of one node, at most: the kernel has room for 23 swap devices of all kinds.
pub const MAX_DEVICES: u32 = 16;
/// Indexes that are looked at for a device.
const INDEXES: u32 = 64;
/// Devices that take the place of one where the kernel does not report freed slots.
const SMALL_DEVICES: u64 = 8;
/// The least size of such a device, in bytes.
const LEAST_SMALL: u64 = 16 << 20;
/// Answers of a node that may be late at the start, before it is refused.
const TRIES: u32 = 3;
/// The highest priority of a swap device.
const MAX_PRIORITY: u16 = 32767;

/// The user's request: nodes, size, and how to swap.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `HOST:PORT`. For a mirror: two, then those that may take the place of one that is lost. Else
    /// one.
    pub nodes: Vec<String>,
    /// Every page is kept at two nodes.
    pub mirror: bool,
    /// Bytes, of all devices together.
    pub size: u64,
    /// Number of devices at a node.
    pub devices: u32,
    /// Their priority among the machine's swap devices.
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
    /// The kernel is asked to report freed slots. Tests do without.
    pub probe: bool,
}

/// Says a line to the user.
pub(crate) fn say(line: impl std::fmt::Display) {
    eprintln!("farmem: {line}");
}

/// A number of the running kernel, the same in all of its containers.
pub fn machine() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    farmem_protocol::nbd::machine(&id)
}

/// Begins to swap, or takes over the watch of devices that another process has set up. `None`: a
/// signal asked to end before it was this process's turn.
pub fn on(plan: &Plan, signals: &Signals) -> Result<Option<Watch>, Error> {
    let mut client = Client::open()?;
    stand_firm();
    // Before a device is given its stream, so that no death is missed.
    let died = listen(&client, true)?;
    // A watcher whose devices were undone must not remove the probe of these.
    let _turn = match begins(signals)? {
        Begins::Makes(turn) => turn,
        Begins::Adopts(known) => {
            let devices = adopt(plan, &known)?;
            return Ok(Some(Watch::new(client, plan, devices, said(plan, open_probe(plan)), died)));
        }
        Begins::Stopped => return Ok(None),
    };
    let mut opened = open_probe(plan);
    let probe = opened.as_mut().ok();
    let begun =
        if plan.mirror { begin_mirror(&mut client, plan, probe) } else { begin_plain(&mut client, plan, probe) };
    match begun {
        Ok(devices) => Ok(Some(Watch::new(client, plan, devices, said(plan, opened), died))),
        Err(e) => {
            drop(opened);
            freed::close();
            Err(e)
        }
    }
}

/// Looks for devices, or waits for the turn to make some, until a signal asks to end.
fn begins(signals: &Signals) -> Result<Begins, Error> {
    let (begun, mut told) = (Instant::now(), false);
    let waits = || {
        if !told && begun.elapsed() >= TELLS_AFTER {
            told = true;
            say(WAITS);
        }
        !signals.next(ENDS_EVERY).is_some_and(|arrived| signals.asks_to_end(arrived))
    };
    state::begins(Path::new(state::DIRECTORY), waits).map_err(|e| Error::File(state::DIRECTORY.into(), e))
}

/// This process is not to wait for pages that wait for it.
pub(crate) fn stand_firm() {
    if let Err(e) = swap::stay_resident() {
        say(format_args!("the watcher's own memory may be swapped out: {e}"));
    }
    // A new stream takes memory. When none is left, and a cut stream is what pages wait for, the
    // watcher must not wait for these pages, and gets memory from what the kernel keeps back.
    if let Err(e) = swap::wait_for_no_page().and_then(|()| swap::come_first()) {
        say(format_args!("the watcher may be late when memory is out: {e}"));
    }
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
}

fn open_probe(plan: &Plan) -> Result<Probe, String> {
    if plan.probe { Probe::open() } else { Err("it is switched off".into()) }
}

/// Tells the user whether the kernel reports each slot that it frees. Returns the probe if so.
fn said(plan: &Plan, opened: Result<Probe, String>) -> Option<Probe> {
    match &opened {
        Ok(probe) => say(format_args!("freed pages come back one by one: a probe on {}", probe.function)),
        Err(why) => {
            let small = parts(plan, false).len();
            let how =
                if small > 1 { format!(", from {small} small devices that are filled in turn") } else { String::new() };
            say(format_args!("freed pages come back by clusters of 512{how}: {why}"));
        }
    }
    opened.ok()
}

/// Takes over the devices that another watcher has left, if they fit the plan.
fn adopt(plan: &Plan, known: &[State]) -> Result<Vec<Watched>, Error> {
    if let Some(other) = known.iter().find(|state| !plan.nodes.contains(&state.node)) {
        let already = format!("this machine swaps to {} already: first farmem swap --off", other.node);
        return Err(Error::Already(already));
    }
    if known.iter().any(|state| state.mirrored != plan.mirror) {
        let already = "this machine swaps already, with another --protect: first farmem swap --off";
        return Err(Error::Already(already.into()));
    }
    let mut devices = Vec::new();
    for state in known {
        let mut held = state::adopt(Path::new(state::DIRECTORY), state)?.ok_or_else(|| {
            Error::Already(format!("another farmem swap watches {}: farmem swap --off undoes it", path(state)))
        })?;
        if !is_swapped_to(state.device())? {
            let begun = format!("{} was begun and is not swapped to: first farmem swap --off", path(state));
            return Err(Error::Already(begun));
        }
        if plan.crypt != crypt::find(state.device()).is_some() {
            let has = if plan.crypt { "without" } else { "with" };
            return Err(Error::Already(format!("this machine swaps already, {has} --crypt: first farmem swap --off")));
        }
        let [timeout_s, grace_s] = [plan.timeout, plan.grace].map(|time| time.as_secs().max(1));
        held.set_times(timeout_s, grace_s).map_err(|e| Error::File(state::DIRECTORY.into(), e))?;
        say(format_args!("watches {} on, {} at {}", path(state), bytes(state.size), state.node));
        devices.push(Watched::found(held, plan.timeout, plan.grace));
    }
    Ok(devices)
}

/// The file of a volume's NBD device.
pub(crate) fn path(state: &State) -> String {
    Device::Nbd(state.index).path().display().to_string()
}

/// Bytes and priority of each device. `told`: the kernel reports freed slots.
///
/// Without reports of freed slots a node learns of whole free clusters only, and the kernel spreads
/// pages over all clusters of a device. So there are several small ones: the kernel fills one
/// before it takes the next, of lower priority.
fn parts(plan: &Plan, told: bool) -> Vec<(u64, u16)> {
    let small = plan.devices == 1 && !told && !plan.mirror;
    let n = if small { (plan.size / LEAST_SMALL).clamp(1, SMALL_DEVICES) as u16 } else { plan.devices as u16 };
    let lowest = if small { plan.priority.min(MAX_PRIORITY - (n - 1)) } else { plan.priority };
    let part = |at: u16| (plan.size / u64::from(n) / PAGE * PAGE, lowest + if small { n - 1 - at } else { 0 });
    (0..n).map(part).collect()
}

/// A node and its addresses. Nothing is swapped to it yet, so nobody waits for the lookup.
fn named(node: &str) -> Result<(&str, Vec<SocketAddr>), Error> {
    Ok((node, addresses(node)?))
}

/// Devices that each have a copy of their own.
fn begin_plain(client: &mut Client, plan: &Plan, mut probe: Option<&mut Probe>) -> Result<Vec<Watched>, Error> {
    let mut devices: Vec<Watched> = Vec::new();
    for (size, priority) in parts(plan, probe.is_some()) {
        let begun = named(&plan.nodes[0]).and_then(|node| begin(client, plan, node, size)).and_then(|watched| {
            let state = &watched.held.state;
            match swap_to(state, &state.node, priority, plan.crypt) {
                Ok(()) => Ok(watched),
                Err(e) => {
                    let _ = end_device(client, state);
                    Err(e)
                }
            }
        });
        match begun {
            Ok(watched) => {
                keep_kind(&watched.held.state, probe.as_deref_mut());
                devices.push(watched);
            }
            Err(e) => {
                for Watched { held: Held { state, .. }, .. } in &devices {
                    let states = std::slice::from_ref(state);
                    let _ = end_area(state.device(), states).and_then(|()| end_device(client, state));
                }
                return Err(e);
            }
        }
    }
    Ok(devices)
}

/// Two devices with the same pages, at the first two nodes.
fn begin_mirror(client: &mut Client, plan: &Plan, mut probe: Option<&mut Probe>) -> Result<Vec<Watched>, Error> {
    let size = plan.size / PAGE * PAGE;
    let first = begin(client, plan, named(&plan.nodes[0])?, size)?;
    let second = named(&plan.nodes[1]).and_then(|node| begin(client, plan, node, size)).inspect_err(|_| {
        let _ = end_device(client, &first.held.state);
    })?;
    let devices = vec![first, second];
    let [a, b] = [&devices[0].held.state, &devices[1].held.state];
    let both = format!("{} and {}", a.node, b.node);
    let made = if a.incarnation == b.incarnation {
        Err(Error::Already(format!("{both} are the same node: --protect mirror needs two")))
    } else {
        mirror::make([a.index, b.index], size)
    };
    let made = made.and_then(|()| swap_to(a, &both, plan.priority, plan.crypt));
    if let Err(e) = made {
        let _ = mirror::end();
        for Watched { held: Held { state, .. }, .. } in &devices {
            let _ = end_device(client, state);
        }
        return Err(e);
    }
    let kind = probe.as_mut().and_then(|probe| probe.kind());
    for index in [a.index, b.index] {
        if let Some(kind) = kind {
            let _ = state::keep_kind(Path::new(state::DIRECTORY), index, kind);
        }
    }
    Ok(devices)
}

/// Notes the kernel's number of the device that it has just begun to swap to.
fn keep_kind(state: &State, probe: Option<&mut Probe>) {
    if let Some(kind) = probe.and_then(Probe::kind) {
        let _ = state::keep_kind(Path::new(state::DIRECTORY), state.index, kind);
    }
}

/// Makes a volume at a node, which has these addresses, and an NBD device for it.
pub(crate) fn begin(
    client: &mut Client,
    plan: &Plan,
    (node, at): (&str, Vec<SocketAddr>),
    size: u64,
) -> Result<Watched, Error> {
    let mut id = [0; 16];
    process::random_bytes(&mut id).map_err(|e| Error::Kernel("random bytes", e))?;
    let host = process::host_name();
    let mut state = State {
        index: 0,
        node: node.to_owned(),
        at,
        volume: state::digits(&id),
        secret: None,
        incarnation: 0,
        size,
        grace_s: plan.grace.as_secs().max(1),
        timeout_s: plan.timeout.as_secs().max(1),
        token: plan.token.clone(),
        mirrored: plan.mirror,
    };
    // The stream by which this process asks makes the volume. The kernel has no part in it yet.
    let first = Wanted { overcommit: plan.overcommit, ..Wanted::of(&state, id, &host, false) };
    // Of a mirror that stands, the other copy's stream may be cut meanwhile.
    let within = if mirror::exists() { SHORT } else { PATIENCE };
    let mut asked = dial_within(&first, plan.timeout, within)?;
    state.incarnation = asked.incarnation;
    state.secret = asked.agreed.map(|agreed| farmem_trust::hex(&agreed));
    match connect(client, plan, &mut state, id, within, &mut asked) {
        Ok((held, data)) => Ok(Watched::begun(held, asked, data, (plan.timeout, plan.grace))),
        Err(e) => {
            let _ = asked.free();
            Err(e)
        }
    }
}

/// The node's report. A node that takes longer than the timeout each time is refused: its first
/// page would not come in time either.
fn answered_in_time(asked: &mut Stream, timeout: Duration, node: &str) -> Result<Report, Error> {
    let mut took = Duration::ZERO;
    for _ in 0..TRIES {
        let begun = Instant::now();
        let report = asked.report()?;
        took = begun.elapsed();
        if took <= timeout {
            return Ok(report);
        }
    }
    let why = format!("took {:.1} s to answer: name a longer --timeout, or another node", took.as_secs_f64());
    Err(Error::Refused(node.to_owned(), why))
}

/// Finds a free NBD device, notes it in a file, and gives the kernel a stream of the volume, which
/// this process keeps a descriptor of.
fn connect(
    client: &mut Client,
    plan: &Plan,
    state: &mut State,
    id: [u8; 16],
    within: Duration,
    asked: &mut Stream,
) -> Result<(Held, Stream), Error> {
    let report = answered_in_time(asked, plan.timeout, &state.node)?;
    let near = asked.is_near || report.machine == machine();
    if near && !plan.same_machine {
        return Err(Error::SameMachine(state.node.clone()));
    }
    let mut data = dial_within(&Wanted::of(state, id, &process::host_name(), true), plan.timeout, within)?;
    data.try_page(within)?;
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
                device::tune(index);
                return Ok((held, data));
            }
            Err(e) => {
                state::remove(Path::new(state::DIRECTORY), index);
                // Busy: another program's device, which sysfs does not show yet. Try the next.
                if e.raw_os_error() != Some(libc::EBUSY) {
                    return Err(Error::Kernel("the kernel's NBD client", e));
                }
                last = e;
            }
        }
    }
    Err(Error::Kernel("the kernel's NBD client", last))
}

/// Writes the header, and has the kernel swap. If that fails, the encryption is undone.
fn swap_to(state: &State, nodes: &str, priority: u16, encrypts: bool) -> Result<(), Error> {
    let below = state.device();
    let device = match encrypts {
        true => crypt::begin(below, state.size).map_err(|e| Error::Kernel("encryption by dm-crypt", e))?,
        false => below.path(),
    };
    // The id is the right to the volume, and more people can read a header. So the header gets
    // another number, made from it.
    let id = state.id().unwrap_or_default();
    let uuid = std::array::from_fn(|i| id[i] ^ id[(i + 7) % 16].rotate_left(3));
    let page = header::page((state.size / PAGE) as u32, uuid, "farmem");
    let written = || {
        let file = OpenOptions::new().read(true).write(true).open(&device)?;
        file.write_all_at(&page, 0).and_then(|()| file.sync_all())
    };
    let begun = written().map_err(|e| Error::File(device.display().to_string(), e));
    let begun = begun.and_then(|()| swap::swapon(&device, priority).map_err(|e| Error::Kernel("swapon", e)));
    begun.inspect_err(|_| {
        let _ = crypt::end(below);
    })?;
    let (size, how, device) = (bytes(state.size), if encrypts { ", encrypted" } else { "" }, device.display());
    say(format_args!("swaps to {nodes}: {size} at {device}, priority {priority}{how}"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_reports_of_freed_slots_devices_are_small_and_filled_in_turn() {
        let plan = |size: u64, devices, priority, mirror| Plan {
            nodes: vec!["a:1".into()],
            mirror,
            size,
            devices,
            priority,
            timeout: Duration::from_secs(1),
            grace: Duration::from_secs(1),
            overcommit: false,
            crypt: false,
            token: None,
            same_machine: false,
            probe: true,
        };
        assert_eq!(parts(&plan(1 << 30, 1, 10, false), true), [(1 << 30, 10)]);
        assert_eq!(parts(&plan(1 << 30, 2, 10, false), false), [(1 << 29, 10); 2]);
        assert_eq!(parts(&plan(1 << 30, 1, 10, true), false), [(1 << 30, 10)]);
        assert_eq!(parts(&plan(1 << 20, 1, 10, false), false), [(1 << 20, 10)]);
        let small = parts(&plan(1 << 30, 1, 10, false), false);
        assert!(small.iter().copied().eq((10..18).rev().map(|priority| (1 << 27, priority))), "{small:?}");
        assert_eq!(parts(&plan(48 << 20, 1, 32_767, false), false).first(), Some(&(16 << 20, 32_767)));
    }
}
