//! Ends swapping, and watches meanwhile.
//!
//! The kernel brings back the pages of a device before it lets go of it (`swapoff`). That takes as
//! long as it takes, and a stream may be cut meanwhile: pages then wait for a new one. So a thread
//! of its own has the kernel swap off, and this one watches:
//!
//! ```text
//!  thread swapoff: swapoff(nbd0) ───────────────────► ended
//!  here:             a stream dies ─► a new one          └─► the next device
//! ```
//!
//! A device whose watcher was killed is taken over first. One that another process watches is that
//! one's to watch, until it is killed.
//!
//! One process undoes at a time ([`state::turn`]): another waits for its end, and watches
//! meanwhile what nobody else does. A watcher that begins meanwhile waits too, and swaps to nothing
//! new: its service may have started it again because it was killed.

use crate::device::{self, Device, Node};
use crate::names::STACK_BYTES;
use crate::nbd::Client;
use crate::on::{path, say, stand_firm};
use crate::patience::MOST_TIMES;
use crate::state::{self, State};
use crate::stream::{KEPT_LONGER, Wanted, dial};
use crate::watch::{Died, LOOKS_EVERY, TRIES_EVERY, Watched, all_told, listen, step};
use crate::{Error, crypt, freed, mirror};
use farmem_sys::process::{self, Signals};
use farmem_sys::swap;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::thread::Builder;
use std::time::{Duration, Instant};

/// How often it is seen whether the kernel has swapped off.
pub(crate) const ENDS_EVERY: Duration = Duration::from_millis(50);
/// How much longer another program's swapoff may stand still than pages are waited for.
const STANDS_STILL: Duration = Duration::from_secs(10);

/// How long `--off` waits after a device whose watcher was killed, for that watcher to be started
/// again by a service's manager, which does so after a second.
const LINGERS: Duration = Duration::from_secs(3);
/// How long another process may undo before the user is told that it is waited for.
pub(crate) const TELLS_AFTER: Duration = Duration::from_secs(1);
/// The line by which that is told.
pub(crate) const WAITS: &str = "another farmem makes or undoes devices of this machine: waits for its end";
/// How long a device may take to be taken over. Its node cannot be reached then.
const TAKES_AT_MOST: Duration = Duration::from_secs(5);
/// Times that devices are looked for.
const PASSES: u32 = 3;

/// The watch over devices that are being undone.
struct Undoing<'a> {
    client: &'a mut Client,
    devices: &'a mut Vec<Watched>,
    died: &'a Died,
    looked: Option<Instant>,
    /// The watcher of a device was killed.
    took_over: bool,
}

/// Waits while another process undoes devices. True: it has undone all of them.
pub fn wait_for_others() -> Result<bool, Error> {
    let directory = Path::new(state::DIRECTORY);
    let told = || say(WAITS);
    let waited = state::wait_for_turn(directory, told).map_err(|e| Error::File(state::DIRECTORY.into(), e))?;
    Ok(waited && state::all(directory).is_empty())
}

/// Ends swapping to all nodes. False: there was nothing to end. Volumes that could not be freed are
/// named to the user.
pub fn off() -> Result<bool, Error> {
    if state::all(Path::new(state::DIRECTORY)).is_empty() {
        return Ok(false);
    }
    let mut client = Client::open()?;
    stand_firm();
    // No signal ends this process while it takes over: the node may have ended the stream before, and
    // the kernel has no other yet.
    let signals = Signals::take().map_err(|e| Error::Kernel("signals", e))?;
    // Before a device is given its stream, so that no death is missed.
    let died = listen(&client, false)?;
    let mut devices = Vec::new();
    let mut undoing =
        Undoing { client: &mut client, devices: &mut devices, died: &died, looked: None, took_over: false };
    undoing.take_over();
    signals.release();
    undoing.end().map(|()| true)
}

/// Ends swapping. `devices` are watched by this process, and `died` tells of them.
pub(crate) fn undo(client: &mut Client, devices: &mut Vec<Watched>, died: &Died) -> Result<(), Error> {
    Undoing { client, devices, died, looked: None, took_over: false }.end()
}

impl Undoing<'_> {
    /// Ends swapping to each device, when it is this process's turn.
    fn end(&mut self) -> Result<(), Error> {
        let _turn = self.turn()?;
        // Until then the watcher of a mirror may make a device for another copy.
        for _ in 0..PASSES {
            let states = state::all(Path::new(state::DIRECTORY));
            if states.is_empty() {
                break;
            }
            if states.iter().any(|state| state.mirrored) {
                self.end_area(&states, Device::Mirror)?;
                mirror::end().map_err(|e| Error::Kernel("the kernel's RAID 1", e))?;
            }
            for state in &states {
                if !state.mirrored {
                    self.end_area(&states, state.device())?;
                }
                end_device(self.client, state)?;
            }
        }
        freed::close();
        if self.took_over {
            std::thread::sleep(LINGERS);
        }
        Ok(())
    }

    /// Waits until no other process undoes, and watches meanwhile.
    fn turn(&mut self) -> Result<File, Error> {
        let directory = Path::new(state::DIRECTORY);
        let (begun, mut told) = (Instant::now(), false);
        let mut tended = begun;
        loop {
            match state::try_turn(directory) {
                Ok(Some(turn)) => return Ok(turn),
                Ok(None) => {}
                Err(e) => return Err(Error::File(state::DIRECTORY.into(), e)),
            }
            if !told && begun.elapsed() >= TELLS_AFTER {
                told = true;
                say(WAITS);
            }
            self.wait(&mut tended, &state::all(directory));
        }
    }

    /// Waits a moment, and watches these devices.
    fn wait(&mut self, tended: &mut Instant, states: &[State]) {
        let told = self.died.recv_timeout(ENDS_EVERY);
        match told {
            Ok(index) => all_told(self.devices, index),
            Err(RecvTimeoutError::Timeout) => {}
            // The kernel tells no more. Without this the loop would spin.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ENDS_EVERY),
        }
        if told.is_ok() || tended.elapsed() >= TRIES_EVERY {
            *tended = Instant::now();
            self.tend(states);
        }
    }

    /// Takes over the devices that nobody watches, one after the other: of a mirror one copy always
    /// has its stream. Returns when the kernel has streams from this process, or cannot get them.
    fn take_over(&mut self) {
        for state in state::all(Path::new(state::DIRECTORY)) {
            let begun = Instant::now();
            self.tend(std::slice::from_ref(&state));
            let settled = |watched: &Watched| watched.held.state.index != state.index || watched.is_settled();
            while begun.elapsed() < TAKES_AT_MOST && !self.devices.iter().all(settled) {
                match self.died.recv_timeout(ENDS_EVERY) {
                    Ok(index) => all_told(self.devices, index),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ENDS_EVERY),
                }
                step(self.devices, self.client, false);
            }
        }
    }

    /// Ends swapping to a device, in a thread of its own, and watches until that is done.
    fn end_area(&mut self, states: &[State], device: Device) -> Result<(), Error> {
        // New streams first: the kernel may wait for one already.
        self.tend(states);
        std::thread::scope(|scope| {
            let thread = Builder::new().name("swapoff".into()).spawn_scoped(scope, || end_area(device, states));
            let thread = thread.map_err(|e| Error::Kernel("a thread", e))?;
            let mut tended = Instant::now();
            while !thread.is_finished() {
                self.wait(&mut tended, states);
            }
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Takes over the devices whose watcher is gone, and gives new streams for dead ones.
    fn tend(&mut self, states: &[State]) {
        let watches = |devices: &[Watched], index| devices.iter().any(|watched| watched.held.state.index == index);
        self.devices.retain(|watched| watched.held.stands());
        for state in states {
            if !watches(self.devices, state.index)
                && let Ok(Some(held)) = state::adopt(Path::new(state::DIRECTORY), state)
                && held.stands()
            {
                let [timeout, grace] = [state.timeout_s, state.grace_s].map(Duration::from_secs);
                self.devices.push(Watched::found(held, timeout, grace));
                self.took_over = true;
            }
        }
        let looks = self.looked.is_none_or(|at| at.elapsed() >= LOOKS_EVERY);
        // A node that goes down waits for its pages, which are on their way.
        step(self.devices, self.client, looks);
        if looks {
            self.looked = Some(Instant::now());
        }
    }
}

/// The wait for another program, as swapoff(8), that has the kernel swap off.
struct Other {
    /// How long it may stand still.
    limit: Duration,
    begun: Instant,
    /// The fewest bytes in use that were seen, and when first.
    least: u64,
    since: Instant,
    told: bool,
}

impl Other {
    fn new(limit: Duration, used: u64, now: Instant) -> Other {
        Other { limit, begun: now, least: used, since: now, told: false }
    }

    /// Bytes that are in use now. False: it has stood still for too long.
    fn goes_on(&mut self, used: u64, now: Instant) -> bool {
        if used < self.least {
            (self.least, self.since) = (used, now);
        }
        now.duration_since(self.since) < self.limit
    }

    /// Whether the user is to be told now that it is waited for. True once.
    fn tells(&mut self, now: Instant) -> bool {
        !self.told && now.duration_since(self.begun) >= TELLS_AFTER && !std::mem::replace(&mut self.told, true)
    }
}

/// How long another program's swapoff may stand still: a stream may be cut meanwhile, and its pages
/// wait for a new one. A process that gave up sooner would leave them without a watcher.
fn stands_still(states: &[State]) -> Duration {
    let waits = |state: &State| state.grace_s.saturating_add(MOST_TIMES.saturating_mul(state.timeout_s));
    STANDS_STILL.saturating_add(Duration::from_secs(states.iter().map(waits).max().unwrap_or(0)))
}

/// Bytes in use of a device that the kernel may swap to. `None`: it does not. `/proc/swaps` may
/// name it as another mount namespace does, and nothing has that name here: then it counts as one
/// of no bytes.
fn in_use(node: &Node, area: &Path) -> Result<Option<u64>, Error> {
    match device::used(area) {
        None => Ok(node.is_in_use()?.then_some(0)),
        used => Ok(used),
    }
}

/// Whether the kernel swaps to a device.
pub(crate) fn is_swapped_to(device: Device) -> Result<bool, Error> {
    let area = device.area();
    Ok(match Node::of(&area)? {
        Some(node) => in_use(&node, &area)?.is_some(),
        None => false,
    })
}

/// Has the kernel stop swapping to a device, which brings its pages back. Ends its encryption.
/// `states`: of the devices that hold its pages.
///
/// The kernel finds the device by its number, whatever its name was where swapping began. EINVAL of
/// swapoff says that it does not swap to that device any more, or that another program's swapoff is
/// under way: that one is waited for, since it may yet fail.
pub(crate) fn end_area(device: Device, states: &[State]) -> Result<(), Error> {
    let area = device.area();
    if let Some(node) = Node::of(&area)? {
        swap_off(&node, &area, states)?;
    }
    crypt::end(device).map_err(|e| Error::Kernel("the device mapper", e))
}

fn swap_off(node: &Node, area: &Path, states: &[State]) -> Result<(), Error> {
    let mut other: Option<Other> = None;
    let path = area.display();
    while let Some(used) = in_use(node, area)? {
        match swap::swapoff(node.path()) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                let now = Instant::now();
                let other = other.get_or_insert_with(|| Other::new(stands_still(states), used, now));
                if !other.goes_on(used, now) {
                    let stood = other.limit.as_secs();
                    return Err(Error::Stays(format!(
                        "another program, as swapoff(8), has brought back nothing from {path} for {stood} s: end it, then \
                         farmem swap --off"
                    )));
                }
                if other.tells(now) {
                    say(format_args!(
                        "another program, as swapoff(8), brings back what is on {path}: waits for its end"
                    ));
                }
                std::thread::sleep(ENDS_EVERY);
            }
            done => done.map_err(|e| Error::Kernel("swapoff", e))?,
        }
    }
    Ok(())
}

/// Ends a device that nobody uses, and frees its volume. Waits for the node.
///
/// # Errors
/// It is in use after all, or the kernel does not end it: nothing of it was undone.
pub(crate) fn end_device(client: &mut Client, state: &State) -> Result<(), Error> {
    disconnect(client, state)?;
    free(state);
    Ok(())
}

/// The same for the watcher of a mirror. It does not wait for the node, which may be lost: the stream
/// of the other copy may be cut at the same time, and this thread alone revives it.
///
/// # Errors
/// As [`end_device`].
pub(crate) fn end_one_of_two(client: &mut Client, state: &State) -> Result<(), Error> {
    disconnect(client, state)?;
    free_beside(state);
    Ok(())
}

/// Has the kernel end a device that nobody uses.
fn disconnect(client: &mut Client, state: &State) -> Result<(), Error> {
    // Held until the device has ended, so that nothing can be put on it meanwhile.
    let unused = match device::is_connected(state.index) {
        true => Node::of(&Device::Nbd(state.index).path())?.map(|node| node.alone()).transpose()?,
        false => None,
    };
    let directory = Path::new(state::DIRECTORY);
    state::begin_end(directory, state.index);
    if device::is_connected(state.index) {
        let ended = client.disconnect(state.index);
        if ended.is_err() && device::is_connected(state.index) {
            // So that it can be undone later.
            state::goes_on(directory, state.index);
        } else {
            state::ended(directory, state.index);
        }
        ended.map_err(|e| Error::Kernel("the kernel's NBD client", e))?;
    } else {
        state::ended(directory, state.index);
    }
    drop(unused);
    Ok(())
}

/// Frees the volume of a device that has ended. The user is told if that fails: the node keeps it
/// for a while then.
fn free(state: &State) {
    let host = process::host_name();
    let freed = state.id().map(|id| dial(&Wanted::of(state, id, &host, false), KEPT_LONGER).and_then(|mut s| s.free()));
    match freed {
        Some(Err(e)) => say(format_args!("{}: swaps no longer; its volume could not be freed: {e}", path(state))),
        _ => say(format_args!("{}: swaps no longer to {}", path(state), state.node)),
    }
}

/// The same in a thread of its own.
fn free_beside(state: &State) {
    let of_thread = state.clone();
    let named = Builder::new().name("frees".into()).stack_size(STACK_BYTES);
    if let Err(e) = named.spawn(move || free(&of_thread)) {
        say(format_args!("{}: swaps no longer; its volume could not be freed: no thread: {e}", path(state)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{PATIENCE, SHORT};
    use std::net::TcpListener;

    #[test]
    fn another_swapoff_is_waited_for_while_it_brings_pages_back() {
        let (begun, limit) = (Instant::now(), Duration::from_secs(20));
        let at = |s| begun + Duration::from_secs(s);
        let mut other = Other::new(limit, 900, begun);
        assert!(!other.tells(begun));
        assert!(other.tells(at(1)) && !other.tells(at(2)));
        // It goes on for longer than the limit as long as pages come back.
        for s in 0..100 {
            assert!(other.goes_on(900 - s, at(s)), "{s}");
        }
        assert!(other.goes_on(801, at(99 + 19)));
        assert!(!other.goes_on(801, at(99 + 20)));
        // More bytes than before are no progress, nor is the same number again.
        let mut other = Other::new(limit, 900, begun);
        assert!(other.goes_on(950, at(10)) && !other.goes_on(900, at(20)));
    }

    fn state(grace_s: u64, timeout_s: u64) -> State {
        State {
            index: 0,
            node: "a:1".into(),
            at: Vec::new(),
            volume: String::new(),
            secret: None,
            incarnation: 0,
            size: 1 << 20,
            grace_s,
            timeout_s,
            token: None,
            mirrored: false,
        }
    }

    #[test]
    fn a_watcher_does_not_wait_while_the_volume_of_a_lost_copy_is_freed() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, volume) = (vec![silent.local_addr().unwrap()], "01".repeat(16));
        let lost = State { at, volume, incarnation: 7, mirrored: true, ..state(5, 1) };
        // What ends waits: the node is asked, and never answers.
        let mut accepted = Vec::new();
        let mut begun = Instant::now();
        free(&lost);
        accepted.push(silent.accept().unwrap());
        assert!(begun.elapsed() >= PATIENCE);
        begun = Instant::now();
        free_beside(&lost);
        assert!(begun.elapsed() < SHORT, "{:?}", begun.elapsed());
        accepted.push(silent.accept().unwrap());
    }

    #[test]
    fn another_swapoff_may_stand_still_while_pages_wait_for_a_stream() {
        assert_eq!(stands_still(&[]), STANDS_STILL);
        let longest = stands_still(&[state(60, 10), state(5, 1)]);
        assert_eq!(longest, STANDS_STILL + Duration::from_secs(60 + MOST_TIMES * 10));
        assert!(stands_still(&[state(u64::MAX, u64::MAX)]) >= Duration::from_secs(u64::MAX));
    }
}
