//! The traced threads: stopped together, resumed together, and let go unharmed.
//!
//! ```text
//!              seize / clone / fork                     Stopped ── resume ──┐
//! (unknown) ───────────────────────► Running ── stop ──►  │                 │
//!                                       ▲                 └──► Running ◄────┘
//!                                       └── SIGCONT ── Listening ◄── group stop
//!              its end: the last of its process ──► Last ── let_end ──► Gone ◄── any other's end
//! ```
//! While the program is *held*, whatever stops stays stopped, with the signal that
//! it is to take when it goes on; otherwise it goes on at once. A thread in a
//! group stop (SIGSTOP, Ctrl-Z) is left in it, listening for its SIGCONT. A thread
//! that does not answer is deep in a system call, as in uninterruptible sleep or
//! waiting for its vfork child: it will not run the program's code before it stops.
//!
//! A signal that arrives is not waited for before the thread is resumed with it: were
//! this process killed meanwhile, the kernel would not lose it (`ptrace::told_by`).
//!
//! Each thread stands once more at its end. The last one of a process stays there
//! until somebody has looked at what the process wrote: its memory goes with it. So
//! does that of a program whose thread execs: the kernel ends its other threads
//! first, while the one that execs waits inside. (A program's only thread execs
//! without a stop at which the old memory is still there.)

mod told;

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use farmem_sys::process::{self, Signals};
use farmem_sys::ptrace::{self, Follow, Told};

use crate::threads::{cannot_run, is_in_call, is_zombie, process_of, tids, tracer_of};

/// Something that tracking must react to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This process is another program now; it is stopped at its first instruction.
    Execed(u32),
    /// This one has a child; it is stopped at its first instruction. `shares`: their memory, until
    /// it execs.
    Forked {
        /// The child.
        child: u32,
        /// It runs in its parent's memory.
        shares: bool,
    },
    /// A system call of this process is over, after all had been asleep: [`Tracees::await_return`].
    /// Its thread is held.
    Returned(u32),
    /// The process's code will not run any more, but its memory is there, until
    /// [`Tracees::let_end`].
    Ending(u32),
    /// This one is gone.
    Ended {
        /// Which.
        process: u32,
        /// How.
        how: Told,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// It will take this signal when it goes on (0: none). `inside`: within a system call, not at
    /// its end.
    Stopped {
        signal: i32,
        inside: bool,
    },
    Listening,
    /// It stands at its end, the last of its process.
    Last,
    /// It went on from there: it runs the kernel's code only.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    process: u32,
    state: State,
    /// It is let go on no further than to the end of its system call.
    awaited: bool,
}

impl Thread {
    fn new(process: u32, state: State) -> Thread {
        Thread { process, state, awaited: false }
    }

    /// Lets it go on with this signal. An error: it was killed meanwhile, and says so itself.
    fn go_on(&mut self, tid: u32, signal: i32) {
        let _ = if self.awaited { ptrace::resume_to_call(tid, signal) } else { ptrace::resume(tid, signal) };
        self.state = State::Running;
    }
}

/// Where [`Tracees::at_edge`] has found a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edge {
    /// This one stands between two instructions of the program.
    At(u32),
    /// All are in system calls that the kernel would have to restart.
    Asleep,
    /// No thread stands where it can be told.
    Nobody,
}

/// Every thread that is traced.
pub struct Tracees {
    threads: BTreeMap<u32, Thread>,
    follow: Follow,
    signals: Signals,
    events: Vec<Event>,
    /// A child that stopped before its parent told of it.
    unborn: Option<u32>,
    held: bool,
    leaving: bool,
    interrupted: bool,
    /// The program is a child of ours, and shares our terminal.
    ours: bool,
}

/// Why [`Tracees::attend`] came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// The time is over.
    Time,
    /// There are events to [take](Tracees::events).
    Event,
    /// The end was asked for: Ctrl-C, SIGTERM.
    Interrupted,
    /// No process is left to attend to.
    Nobody,
}

/// How often a thread that was asked to stop is looked after.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// How long it is waited for a first thread that stands.
const NOBODY_FOR: Duration = Duration::from_secs(1);

impl Tracees {
    /// Takes this process's signals, which tell of tracees too. `ours`: the program will be a child
    /// of ours.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(follow: Follow, ours: bool) -> io::Result<Tracees> {
        let signals = Signals::take()?;
        Ok(Tracees {
            threads: BTreeMap::new(),
            follow,
            signals,
            events: Vec::new(),
            unborn: None,
            held: false,
            leaving: false,
            interrupted: false,
            ours,
        })
    }

    /// This process's signals, for what it starts.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }

    /// Attaches to every thread of a process. Nothing is left attached on error.
    ///
    /// # Errors
    /// The kernel's, for the process's first thread. Threads that end meanwhile are no error.
    pub fn attach(&mut self, process: u32) -> io::Result<()> {
        // New threads of a seized one are attached by the kernel, those of one not yet seized are
        // found by looking once more, until a look finds none.
        loop {
            let mut new = 0;
            for tid in tids(process) {
                if self.threads.contains_key(&tid) {
                    continue;
                }
                match ptrace::seize(tid, self.follow) {
                    Ok(()) => {
                        self.threads.insert(tid, Thread::new(process, State::Running));
                        new += 1;
                    }
                    // Attached by the kernel, and not told yet; or gone.
                    Err(_)
                        if !self.threads.is_empty()
                            && tracer_of(tid).and_then(process_of) == Some(std::process::id()) => {}
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) && tid != process => {}
                    // The first thread may have ended before the others.
                    Err(_) if is_zombie(tid) => {}
                    Err(error) => {
                        self.leave();
                        return Err(error);
                    }
                }
            }
            if new == 0 {
                return if self.threads.is_empty() { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) };
            }
        }
    }

    /// How many threads are alive, or end as the last of their process.
    pub fn len(&self) -> usize {
        self.threads.values().filter(|thread| thread.state != State::Gone).count()
    }

    /// Whether nobody is traced any more.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// A living thread of a process, by which to look into its memory. The first thread may be
    /// dead, the others alive.
    pub fn thread_of(&self, process: u32) -> Option<u32> {
        let of_it = self.threads.iter().filter(|(_, thread)| thread.process == process);
        let alive = of_it.filter(|(_, thread)| thread.state != State::Gone).map(|(&tid, _)| tid);
        let mut alive = alive.peekable();
        let first = alive.peek().copied();
        alive.find(|tid| !is_zombie(*tid)).or(first)
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether something happened since.
    pub fn events_pending(&self) -> bool {
        !self.events.is_empty()
    }

    /// Lets tracees go about their business, until a moment or until something happens.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attend(&mut self, until: Instant) -> io::Result<Attended> {
        loop {
            self.drain()?;
            if self.interrupted {
                return Ok(Attended::Interrupted);
            }
            if !self.events.is_empty() {
                return Ok(Attended::Event);
            }
            if self.threads.is_empty() {
                return Ok(Attended::Nobody);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Attended::Time);
            }
            self.take_signal(left);
        }
    }

    /// Stops everybody, and keeps whoever stops from now on. Returns since when somebody has been
    /// standing, if all do before that is longer than `limit`; threads that cannot run the
    /// program's code are not waited for. While nobody stands, threads wait for a CPU, as they
    /// would have done without us, and the program loses nothing by it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hold(&mut self, limit: Duration) -> io::Result<Option<Instant>> {
        self.held = true;
        for (&tid, thread) in &self.threads {
            // Listening threads stand, and say so when they are continued.
            if thread.state == State::Running || self.leaving && thread.state == State::Listening {
                let _ = ptrace::interrupt(tid);
            }
        }
        let (asked, mut since) = (Instant::now(), None);
        let mut spins = 0;
        loop {
            self.drain()?;
            let now = Instant::now();
            if since.is_none() && self.threads.values().any(|thread| matches!(thread.state, State::Stopped { .. })) {
                since = Some(now);
            }
            let mut running = self.threads.iter().filter(|(_, thread)| match thread.state {
                State::Running => true,
                State::Listening => self.leaving,
                State::Stopped { .. } | State::Last | State::Gone => false,
            });
            if running.all(|(&tid, _)| spins > 20 && cannot_run(tid)) {
                return Ok(Some(since.unwrap_or(now)));
            }
            let until = since.map_or(asked + limit.max(NOBODY_FOR), |since| since + limit);
            if now >= until {
                return Ok(None);
            }
            // Most threads stand within microseconds; on a busy machine, when they next get a CPU.
            spins += 1;
            if spins > 20 {
                self.take_signal(LOOK_EVERY);
            }
        }
    }

    /// Lets everybody go on.
    pub fn go_on(&mut self) {
        self.held = false;
        for (&tid, thread) in &mut self.threads {
            if let State::Stopped { signal, .. } = thread.state {
                thread.go_on(tid, signal);
            }
        }
    }

    /// Lets a process end that was told to be [`Event::Ending`].
    pub fn let_end(&mut self, process: u32) {
        for (&tid, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.process == process) {
            if thread.state == State::Last {
                // An error: it was killed once more, and goes on by itself.
                let _ = ptrace::resume(tid, 0);
                thread.state = State::Gone;
            }
        }
    }

    /// Lets everybody go for good, with the signals that they were to take.
    pub fn leave(&mut self) {
        self.leaving = true;
        // A thread that does not stop in this time is let go by the kernel when this process ends.
        let _ = self.hold(Duration::from_secs(2));
        for (&tid, thread) in &self.threads {
            match thread.state {
                State::Stopped { signal, .. } => drop(ptrace::detach(tid, signal)),
                State::Last => drop(ptrace::detach(tid, 0)),
                State::Running | State::Listening | State::Gone => {}
            }
        }
        self.threads.clear();
    }

    /// Finds a held thread of a process between two instructions of the program, with no signal to
    /// take and no system call to be restarted; or brings one there, by the signal that it has to
    /// take if there is one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn at_edge(&mut self, process: u32) -> io::Result<Edge> {
        let of = self.threads.iter().filter(|(_, thread)| thread.process == process);
        let of = of.filter_map(|(&tid, thread)| match thread.state {
            State::Stopped { signal, inside } => Some((inside, signal, tid)),
            _ => None,
        });
        let mut stand: Vec<_> = of.collect();
        stand.sort_unstable();
        let mut asleep = false;
        for (inside, signal, tid) in stand {
            if inside && !self.bring_to_edge(tid, signal)? {
                break;
            }
            match is_in_call(tid) {
                Ok(false) => return Ok(Edge::At(tid)),
                Ok(true) => asleep = true,
                Err(_) => {}
            }
        }
        Ok(if asleep { Edge::Asleep } else { Edge::Nobody })
    }

    /// The stack pointers of a process's threads; `None` if one of them does not stand where it can
    /// be asked.
    pub fn stack_pointers(&self, process: u32) -> Option<Vec<u64>> {
        let of_it = self.threads.iter().filter(|(_, thread)| thread.process == process && thread.state != State::Gone);
        of_it.map(|(&tid, _)| Some(ptrace::registers(tid).ok()?.rsp)).collect()
    }

    fn bring_to_edge(&mut self, tid: u32, signal: i32) -> io::Result<bool> {
        ptrace::interrupt(tid)?;
        ptrace::resume(tid, signal)?;
        self.threads.get_mut(&tid).expect("held").state = State::Running;
        let until = Instant::now() + Duration::from_secs(1);
        while self.threads.get(&tid).is_some_and(|thread| thread.state == State::Running) {
            self.drain()?;
            if Instant::now() > until {
                return Ok(false);
            }
            self.take_signal(LOOK_EVERY);
        }
        let edge = State::Stopped { signal: 0, inside: false };
        Ok(self.threads.get(&tid).is_some_and(|thread| thread.state == edge))
    }

    /// Has [`Event::Returned`] told when one of a held process's threads, all of them asleep in
    /// system calls, returns from its call.
    pub fn await_return(&mut self, process: u32) {
        for (&tid, thread) in self.threads.iter_mut().filter(|(_, thread)| thread.process == process) {
            thread.awaited = is_in_call(tid).unwrap_or(false);
        }
    }

    /// Waits for what a held thread tells that was let go by somebody else; its end is taken note
    /// of here.
    ///
    /// # Errors
    /// ESRCH: it has ended, or ends. ETIMEDOUT: it runs still. It is none of the held any more
    /// then.
    pub fn told_by(&mut self, tid: u32, until: Instant) -> io::Result<Told> {
        let error = loop {
            match ptrace::told_by(tid as i32) {
                Ok(Some((_, told @ (Told::Exited(_) | Told::Killed(_) | Told::Exiting | Told::Execed)))) => {
                    self.heed(tid, told);
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(Some((_, told))) => return Ok(told),
                Ok(None) if Instant::now() > until => break io::Error::from_raw_os_error(libc::ETIMEDOUT),
                Ok(None) => self.take_signal(LOOK_EVERY),
                Err(error) => break error,
            }
        };
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.state = State::Running;
        }
        Err(error)
    }

    /// A report of the thread was handled elsewhere, and it is in a group stop now.
    pub fn note_group_stop(&mut self, tid: u32) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            let _ = ptrace::listen(tid);
            thread.state = State::Listening;
        }
    }

    fn take_signal(&mut self, limit: Duration) {
        let Some(arrived) = self.signals.next(limit) else { return };
        match arrived.number {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => self.interrupted = true,
            // The program that shares our terminal stops too; the signal that stops it must be
            // passed on before.
            libc::SIGTSTP if self.ours && !arrived.sent => {
                let until = Instant::now() + Duration::from_millis(100);
                while Instant::now() < until && self.drain().is_ok() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Unless it ignores its terminal: it would wait for us at its next signal.
                if self.threads.values().all(|thread| thread.state == State::Listening) {
                    process::stop_self();
                }
            }
            _ => {}
        }
    }
}
