//! A handle of a store. Many threads use it, and it stays valid while the program makes no call.
//!
//! One lock guards the store. A thread of the library tends it four times a second. Otherwise the
//! store's other programs would take one that makes no call for dead. After the loss of a node, no
//! call waits for that node again: each call returns the same error until the handle is closed.

use crate::forks::Process;
use farmem_kv::{Config, Failed, Store};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the library's thread tends the store.
const TEND: Duration = Duration::from_millis(250);

/// Why a call was not carried out.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The store's error.
    Failed(Failed),
    /// A node was lost in an earlier call.
    Lost(String),
    /// The handle was closed.
    Closed,
    /// This is a forked child of the process that opened it.
    Forked,
}

/// The store, as a type that can move between the threads that take the lock.
struct Owned(Store);

#[allow(unsafe_code)]
// SAFETY: `Store` is not `Send` because its parts share `Rc`s. All clones of these are within the
// store, or in a value that `Handle::with` drops before it gives the lock up: its closure returns
// data without `Rc`s (`T: Send`). The store uses no thread-local variables. The lock orders the
// threads' accesses.
unsafe impl Send for Owned {}

enum State {
    Open(Box<Owned>),
    /// A call is under way, under the lock. So a call that finds this state follows one that
    /// panicked.
    Busy,
    Lost(String),
    Closed,
}

struct Shared {
    state: Mutex<State>,
    closed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under the lock leaves the store in an unknown state. `State::Busy` then stays,
        // and `with` refuses all later calls.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open store of a program in C or Python. See the module.
pub struct Handle {
    shared: Arc<Shared>,
    /// The thread that tends the store.
    tends: Mutex<Option<JoinHandle<()>>>,
    process: Process,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl Handle {
    pub(crate) fn open(config: &Config) -> Result<Handle, Failed> {
        let state = Mutex::new(State::Open(Box::new(Owned(Store::open_as(config)?))));
        let shared = Arc::new(Shared { state, closed: Condvar::new() });
        let tended = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("farmem-store".into()).spawn(move || tend(&tended));
        let thread = thread.map_err(|e| Failed::System { what: "a thread", reason: e.to_string() })?;
        Ok(Handle { shared, tends: Mutex::new(Some(thread)), process: Process::this() })
    }

    /// Calls `act` with the store, under the lock.
    pub(crate) fn with<T: Send>(&self, act: impl FnOnce(&mut Store) -> Result<T, Failed>) -> Result<T, Refused> {
        // This is checked before the lock is taken: a thread of the parent may have held it at the
        // fork.
        if self.is_forked() {
            return Err(Refused::Forked);
        }
        let mut state = self.shared.state();
        match std::mem::replace(&mut *state, State::Busy) {
            State::Open(mut store) => {
                let outcome = act(&mut store.0);
                *state = after(store, outcome.as_ref().err());
                outcome.map_err(Refused::Failed)
            }
            State::Busy => Err(Refused::Lost("an earlier call ended in the middle".into())),
            State::Lost(why) => {
                *state = State::Lost(why.clone());
                Err(Refused::Lost(why))
            }
            State::Closed => {
                *state = State::Closed;
                Err(Refused::Closed)
            }
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Leaves the store. In a forked child it does nothing.
    pub(crate) fn close(&self) -> Result<(), Failed> {
        if self.is_forked() {
            return Ok(());
        }
        let before = std::mem::replace(&mut *self.shared.state(), State::Closed);
        self.shared.closed.notify_all();
        let thread = self.tends.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        match before {
            State::Open(store) => store.0.close(),
            State::Busy | State::Lost(_) | State::Closed => Ok(()),
        }
    }
}

/// The state after a call. A loss is final: the node's part of the keys is gone.
fn after(store: Box<Owned>, failed: Option<&Failed>) -> State {
    match failed.filter(|failed| failed.is_final()) {
        None => State::Open(store),
        Some(failed) => State::Lost(failed.to_string()),
    }
}

/// The body of the library's thread: tends the store until it is closed or lost.
fn tend(shared: &Shared) {
    let mut state = shared.state();
    loop {
        state = shared.closed.wait_timeout(state, TEND).unwrap_or_else(PoisonError::into_inner).0;
        let State::Open(store) = &mut *state else { return };
        if let Err(failed) = store.0.tend()
            && failed.is_final()
        {
            *state = State::Lost(failed.to_string());
            return;
        }
    }
}
