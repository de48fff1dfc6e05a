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

use crate::device::{self, Device};
use crate::nbd::Client;
use crate::state::{self, State};
use crate::stream::{KEPT_LONGER, Wanted, dial};
use crate::swap::{path, say, stand_firm};
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
struct Undoing {
    client: Client,
    devices: Vec<Watched>,
    died: Died,
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
    let client = Client::open()?;
    stand_firm();
    // No signal ends this process while it takes over: the node may have ended the stream before, and
    // the kernel has no other yet.
    let signals = Signals::take().map_err(|e| Error::Kernel("signals", e))?;
    // Before a device is given its stream, so that no death is missed.
    let died = listen(&client, false)?;
    let mut undoing = Undoing { client, devices: Vec::new(), died, looked: None, took_over: false };
    undoing.take_over();
    signals.release();
    undoing.end().map(|()| true)
}

/// Ends swapping. `devices` are watched by this process, and `died` tells of them.
pub(crate) fn undo(client: Client, devices: Vec<Watched>, died: Died) -> Result<(), Error> {
    Undoing { client, devices, died, looked: None, took_over: false }.end()
}

impl Undoing {
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
                end_device(&mut self.client, state)?;
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
            Ok(index) => all_told(&mut self.devices, index),
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
                    Ok(index) => all_told(&mut self.devices, index),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ENDS_EVERY),
                }
                step(&mut self.devices, &mut self.client, false);
            }
        }
    }

    /// Ends swapping to a device, in a thread of its own, and watches until that is done.
    fn end_area(&mut self, states: &[State], device: Device) -> Result<(), Error> {
        // New streams first: the kernel may wait for one already.
        self.tend(states);
        std::thread::scope(|scope| {
            let thread = Builder::new().name("swapoff".into()).spawn_scoped(scope, || end_area(device));
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
            if !watches(&self.devices, state.index)
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
        step(&mut self.devices, &mut self.client, looks);
        if looks {
            self.looked = Some(Instant::now());
        }
    }
}

/// Has the kernel stop swapping to a device, which brings its pages back. Ends its encryption.
pub(crate) fn end_area(device: Device) -> Result<(), Error> {
    let area = device.area();
    while device::is_swap(&area) {
        match swap::swapoff(&area) {
            // Another program, as swapoff(8), is at it: it may yet fail.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => std::thread::sleep(ENDS_EVERY),
            done => done.map_err(|e| Error::Kernel("swapoff", e))?,
        }
    }
    crypt::end(device).map_err(|e| Error::Kernel("the device mapper", e))
}

/// Ends a device that nobody uses, and frees its volume.
pub(crate) fn end_device(client: &mut Client, state: &State) -> Result<(), Error> {
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
