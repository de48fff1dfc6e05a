//! Windows, one after the other: let the program run, hold it, look, let it go on, count.
//!
//! ```text
//! begin: hold ─ protect ─ go on ─ copy its memory while it runs ─► first look: what was written since the
//!                                                                  protection is copied again; counts nothing
//! window: run ......... hold ─ find, read ─ go on ─ compare, count, record
//! end:    run ... its last thread stands at its end ─ find, read ─ let it end ─ compare, count
//! ```
//! Copying while the program runs may catch a page half written; whatever was
//! written after the protection is told at the first look, and read again there,
//! standing. So the program never stands for its whole memory, except where writes
//! can be found only by reading it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use farmem_sys::ptrace::{self, Follow, Remote, Told};

use crate::account::Process;
use crate::count::{Found, LeftOut, Pause, Window};
use crate::diff::PAGE;
use crate::find::Way;
use crate::inject::{self, Refused};
use crate::look::{Eyes, Limit, Read};
use crate::sample::{Sample, Seen};
use crate::sight::{Look, Took};
use crate::tracees::{Attended, Event, Tracees};

/// How to track.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Length of a window.
    pub window: Duration,
    /// End after this many.
    pub windows: Option<usize>,
    /// End after this time.
    pub duration: Option<Duration>,
    /// The longest that the program may stand for a look.
    pub max_pause: Duration,
    /// The most of its memory, bytes, that is copied.
    pub max_memory: u64,
    /// A window with fewer dirty lines is idle.
    pub idle_lines: u64,
    /// How written pages are found.
    pub way: Way,
    /// Only find them: do not read, compare, or count lines.
    pub pages_only: bool,
    /// Track children too.
    pub follow: Follow,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The windows, or the time, that were asked for are over.
    Done,
    /// Ctrl-C, or SIGTERM.
    Interrupted,
    /// The program has ended so.
    Ended(Told),
}

struct Tracked {
    eyes: Eyes,
    process: Process,
    /// Pages written since its memory was copied are copied again.
    settled: bool,
}

/// The sight of a process that had run its last instruction, for the window in which it ended.
#[derive(Default)]
struct LastWords {
    found: Found,
    settled: bool,
    cut: bool,
    pause: Pause,
}

/// Tracking of a program.
pub struct Session {
    tracees: Tracees,
    settings: Settings,
    processes: BTreeMap<u32, Tracked>,
    sample: Sample,
    /// No process could be looked at since.
    unseen_since: Option<Instant>,
    /// The writes of processes that have ended since the last look.
    last_words: Option<LastWords>,
    /// Threads at the last look.
    threads: usize,
    /// Remarks on what could not be done as meant.
    remarks: BTreeSet<String>,
    /// How written pages were found, of one process or another.
    ways: BTreeSet<Way>,
    ended: Option<Told>,
    program: u32,
}

impl Session {
    /// Of a program, whose threads are attached.
    pub fn new(tracees: Tracees, program: u32, settings: Settings) -> Session {
        Session {
            tracees,
            settings,
            processes: BTreeMap::new(),
            sample: Sample::new(settings.max_pause, settings.max_memory),
            unseen_since: None,
            last_words: None,
            threads: 1,
            remarks: BTreeSet::new(),
            ways: BTreeSet::new(),
            ended: None,
            program,
        }
    }

    /// Remarks for the reader.
    pub fn remarks(&self) -> impl Iterator<Item = &str> {
        self.remarks.iter().map(String::as_str)
    }

    /// How written pages were found: by more than one way where not all processes could be tracked
    /// as meant.
    pub fn ways(&self) -> Vec<Way> {
        if self.ways.is_empty() { vec![self.settings.way] } else { self.ways.iter().copied().collect() }
    }

    /// Lets the program go.
    pub fn leave(mut self) {
        // Tracking ends with its descriptors, before the program runs on: nothing of it is left
        // then.
        self.tracees.leave();
        self.processes.clear();
    }

    /// Tracks until there is a reason not to. Each window is shown to `each` when it is over.
    ///
    /// # Errors
    /// The kernel's; the program is let go by [`Session::leave`] then too.
    pub fn run(&mut self, mut each: impl FnMut(&Window)) -> io::Result<End> {
        let begun = Instant::now();
        // A program that we started is not yet there: its exec is the first event.
        if self.tracees.events_pending() {
            self.react()?;
        } else {
            self.begin(self.program)?;
            // The first look: pages written while its memory was copied. No window.
            self.look(Instant::now())?;
        }
        let mut windows = 0;
        loop {
            let started = Instant::now();
            let mut until = started + self.settings.window;
            if let Some(duration) = self.settings.duration {
                until = until.min(begun + duration);
            }
            loop {
                match self.tracees.attend(until)? {
                    Attended::Time => break,
                    Attended::Event => self.react()?,
                    Attended::Interrupted => return Ok(End::Interrupted),
                    Attended::Nobody => self.ended = self.ended.or(Some(Told::Exited(0))),
                }
                if let Some(how) = self.ended
                    && self.tracees.is_empty()
                {
                    self.last_window(started).iter().for_each(&mut each);
                    return Ok(End::Ended(how));
                }
            }
            let window = self.look(started)?;
            each(&window);
            windows += 1;
            let over = self.settings.duration.is_some_and(|duration| begun.elapsed() >= duration);
            if over || self.settings.windows.is_some_and(|most| windows >= most) {
                return Ok(End::Done);
            }
        }
    }

    fn react(&mut self) -> io::Result<()> {
        for event in self.tracees.events() {
            match event {
                Event::Execed(process) => {
                    self.processes.remove(&process);
                    self.begin(process)?;
                }
                Event::Forked { child, shares: false } => self.begin(child)?,
                Event::Returned(process) => self.begin(process)?,
                // Its stores are its parent's until it execs.
                Event::Forked { shares: true, .. } => self.tracees.go_on(),
                Event::Ending(process) => {
                    let seen = self.last_look(process);
                    self.tracees.let_end(process);
                    seen?;
                }
                Event::Ended { process, how } => {
                    self.processes.remove(&process);
                    if process == self.program {
                        self.ended = Some(how);
                    }
                }
            }
        }
        Ok(())
    }

    /// Begins to track a process whose threads are attached. One that is gone already is no error.
    fn begin(&mut self, process: u32) -> io::Result<()> {
        self.sample.begin(resident_pages(process), self.settings.way == Way::Read);
        self.narrow();
        if self.tracees.hold(self.settings.max_pause.max(Duration::from_millis(500)))?.is_none() {
            self.remarks.insert("a thread did not stop when tracking began".into());
        }
        let begun = self.begin_held(process);
        self.tracees.go_on();
        let (tid, mut tracked, present) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !tracked.settled && !self.settings.pages_only {
            self.copy(tid, &mut tracked, &present)?;
        }
        self.processes.insert(process, tracked);
        Ok(())
    }

    fn begin_held(&mut self, process: u32) -> io::Result<Option<(u32, Tracked, Vec<crate::cover::Range>)>> {
        let Some(tid) = self.tracees.thread_of(process) else { return Ok(None) };
        let mut eyes = Eyes::new(tid, self.settings.way)?;
        if self.settings.way == Way::Protect {
            let mappings = Eyes::mappings(tid)?;
            let tracked = inject::userfaultfd(&mut self.tracees, process, &mappings)
                .and_then(|userfaultfd| Ok(eyes.track(userfaultfd)?));
            if let Err(Refused::Asleep) = tracked {
                self.tracees.await_return(process);
                self.remarks
                    .insert(format!("process {process}: asleep when tracking began, and tracked from its waking on"));
                return Ok(None);
            }
            if let Err(refused) = tracked {
                if self.settings.pages_only {
                    return Err(io::Error::other(format!(
                        "process {process}: writes cannot be tracked by protection: {refused}"
                    )));
                }
                self.remarks.insert(format!(
                    "process {process}: no write protection ({refused}); all of its memory is read in each pause"
                ));
            }
        }
        self.ways.insert(eyes.way());
        let all = eyes.way() == Way::Read;
        let mut limit = Limit::until(Instant::now() + self.settings.max_pause);
        let watch = self.sample.of(process);
        let (look, took) = eyes.look(tid, watch, if all { Read::All } else { Read::Nothing }, &mut limit)?;
        let mut seen = Seen::default();
        seen.add(watch, &look, &took);
        self.sample.begun(&seen);
        self.narrow();
        let mut tracked = Tracked { process: Process::begin(&look), settled: all, eyes };
        tracked.process.narrow(self.sample.of(process));
        Ok(Some((tid, tracked, look.present)))
    }

    /// Copies pages while the program runs.
    fn copy(&mut self, tid: u32, tracked: &mut Tracked, present: &[crate::cover::Range]) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        for run in present {
            let mut at = run.start;
            while at < run.end {
                let len = buffer.len().min((run.end - at) as usize);
                let n = ptrace::read(tid, &[Remote { start: at, len }], &mut buffer[..len]).unwrap_or(0);
                for (page, bytes) in buffer[..n].as_chunks::<PAGE>().0.iter().enumerate() {
                    tracked.process.learn(at + (page * PAGE) as u64, bytes);
                }
                // Past a page that cannot be read: it stays unknown.
                at += if n < len { (n / PAGE * PAGE + PAGE) as u64 } else { n as u64 };
                match self.tracees.attend(Instant::now())? {
                    Attended::Time => {}
                    // The caller looks into it.
                    _ => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Holds everybody, looks, lets go, and counts the window that began at `started`.
    fn look(&mut self, started: Instant) -> io::Result<Window> {
        // Stores are told for the first time since this began, if nobody could be looked at when
        // that was over.
        let started = self.unseen_since.take().unwrap_or(started);
        let held = Instant::now();
        let stood = self.tracees.hold(self.settings.max_pause)?;
        let stopped = Instant::now();
        let read = if self.settings.pages_only { Read::Nothing } else { Read::Written };
        let mut looks = Vec::new();
        let mut limit = Limit::until(stood.unwrap_or(held) + self.settings.max_pause);
        for (&process, tracked) in self.processes.iter_mut().filter(|_| stood.is_some()) {
            let Some(tid) = self.tracees.thread_of(process) else { continue };
            match tracked.eyes.look(tid, self.sample.of(process), read, &mut limit) {
                Ok((look, took)) => looks.push((process, look, took)),
                Err(error) if is_gone(&error) => {}
                Err(error) => {
                    self.tracees.go_on();
                    return Err(error);
                }
            }
        }
        self.threads = self.tracees.len();
        self.tracees.go_on();
        let sum = |of: fn(&Took) -> Duration| looks.iter().map(|(.., took)| of(took)).sum::<Duration>().as_secs_f64();
        let pause = Pause {
            stopping: (stopped - held).as_secs_f64(),
            finding: sum(|took| took.finding),
            reading: sum(|took| took.reading),
            total: held.elapsed().as_secs_f64(),
        };
        let cut = stood.is_none() || looks.iter().any(|(.., took)| took.cut);
        if stood.is_none() {
            self.unseen_since = Some(started);
        }
        let one_in = self.sample.one_in();
        let (mut found, mut settled, mut seen) = (Found::default(), false, Seen::default());
        for (process, look, took) in looks {
            seen.add(self.sample.of(process), &look, &took);
            if let Some(of_it) = self.count(process, look) {
                found.merge(of_it);
                settled = true;
            }
        }
        let recorded = self.processes.values().map(|tracked| tracked.process.recorded_bytes()).sum();
        if self.sample.fit(&seen, recorded) {
            self.narrow();
        }
        let before = self.last_words.take().unwrap_or_default();
        found.merge(before.found);
        let mut window = Window { length: held - started, pause, threads: self.threads, one_in, found, left_out: None };
        window.left_out = self.left_out(&window, cut || before.cut, settled || before.settled);
        Ok(window)
    }

    /// Looks at a process that has run its last instruction, alone: no other process stops for it.
    fn last_look(&mut self, process: u32) -> io::Result<()> {
        let begun = Instant::now();
        let Some(tracked) = self.processes.get_mut(&process) else { return Ok(()) };
        let Some(tid) = self.tracees.thread_of(process) else { return Ok(()) };
        let read = if self.settings.pages_only { Read::Nothing } else { Read::Written };
        let mut limit = Limit::until(begun + self.settings.max_pause);
        let (look, took) = match tracked.eyes.look(tid, self.sample.of(process), read, &mut limit) {
            Ok(seen) => seen,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        // It need not wait for the counting; whether it goes on for good is told by its end.
        self.tracees.let_end(process);
        let pause = Pause {
            stopping: 0.0,
            finding: took.finding.as_secs_f64(),
            reading: took.reading.as_secs_f64(),
            total: begun.elapsed().as_secs_f64(),
        };
        let found = self.count(process, look);
        let last = self.last_words.get_or_insert_default();
        last.settled |= found.is_some();
        last.cut |= took.cut;
        last.found.merge(found.unwrap_or_default());
        last.pause = pause;
        Ok(())
    }

    /// The window after which no process is left to be looked at: what was seen at the end.
    fn last_window(&mut self, started: Instant) -> Option<Window> {
        let LastWords { found, settled, cut, pause } = self.last_words.take()?;
        let (length, one_in) = (started.elapsed(), self.sample.one_in());
        let mut window = Window { length, pause, threads: self.threads, one_in, found, left_out: None };
        window.left_out = self.left_out(&window, cut, settled);
        Some(window)
    }

    /// Counts what a look saw; `None` if it is the first, before which nothing was known.
    fn count(&mut self, process: u32, look: Look) -> Option<Found> {
        let tracked = self.processes.get_mut(&process).expect("looked at");
        let found = if self.settings.pages_only {
            Found::pages_only(process, &look)
        } else {
            tracked.process.advance(process, &look, self.sample.of(process))
        };
        tracked.eyes.give_back(look);
        std::mem::replace(&mut tracked.settled, true).then_some(found)
    }

    fn left_out(&self, window: &Window, cut: bool, settled: bool) -> Option<LeftOut> {
        let total = window.total();
        let few = if self.settings.pages_only { total.pages == 0 } else { total.lines < self.settings.idle_lines };
        match () {
            () if cut => Some(LeftOut::Cut),
            () if !settled => Some(LeftOut::Begun),
            () if few => Some(LeftOut::Idle),
            () => None,
        }
    }

    /// From now on only what is in the sample is known.
    fn narrow(&mut self) {
        for (&process, tracked) in &mut self.processes {
            tracked.process.narrow(self.sample.of(process));
        }
    }
}

/// The process, or the thread that was asked by, is gone: that it ended is told otherwise.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) || error.kind() == io::ErrorKind::NotFound
}

fn resident_pages(process: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0)
}
