//! A look at a process that stands: which pages are there, which were written, and their bytes.
//!
//! Time spent here stops the program, so only the necessary is done: pages are found and copied.
//! Comparing comes after the program was let go.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use farmem_sys::pagemap::{Pagemap, Run, category, entry};
use farmem_sys::ptrace::{self, MOST_RANGES, Remote};
use farmem_sys::uffd::WriteTracker;

use crate::cover::Range;
use crate::diff::PAGE;
use crate::find::{self, Way};
use crate::maps::{self, Mapping};
use crate::sample::LEAST_AT_MOST;
use crate::sight::{Look, Page, Took};
use crate::watch::Watch;

const P: u64 = PAGE as u64;

/// Bytes read by one system call: enough that its fixed cost does not show, and few enough that the
/// clock is looked at between two of them (some 1 ms).
const BATCH: u64 = 4 << 20;

/// Eyes on one address space.
pub struct Eyes {
    pages: Pagemap,
    way: Way,
    tracker: Option<WriteTracker>,
    /// Kept from look to look: touching new memory in a pause would take longer than reading into
    /// it.
    buffer: Vec<u8>,
}

/// The time that all looks of one pause may take together. As many pages as the smallest sample has
/// are read however long they take: a machine without time for more gets true figures of that part
/// in each window, and no pause is for nothing.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    until: Instant,
    due: u64,
}

impl Limit {
    /// Until a moment, for all but those.
    pub fn until(until: Instant) -> Limit {
        Limit { until, due: LEAST_AT_MOST }
    }

    fn is_over(&self) -> bool {
        self.due == 0 && Instant::now() >= self.until
    }

    fn read(&mut self, pages: usize) {
        self.due = self.due.saturating_sub(pages as u64);
    }
}

/// Which of the pages to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// None: only find them.
    Nothing,
    /// Those that may have been written.
    Written,
    /// All.
    All,
}

impl Eyes {
    /// On the address space of a living thread.
    ///
    /// # Errors
    /// It is gone, or not to be looked into.
    pub fn new(tid: u32, way: Way) -> io::Result<Eyes> {
        Ok(Eyes { pages: Pagemap::open(tid)?, way, tracker: None, buffer: Vec::new() })
    }

    /// How written pages are found; [`Way::Read`] until [`Eyes::track`] if write protection is
    /// meant.
    pub fn way(&self) -> Way {
        match (self.way, &self.tracker) {
            (Way::Protect, None) => Way::Read,
            (way, _) => way,
        }
    }

    /// Begins write tracking by a userfaultfd of that address space.
    ///
    /// # Errors
    /// The kernel's.
    pub fn track(&mut self, userfaultfd: OwnedFd) -> io::Result<()> {
        self.tracker = Some(WriteTracker::of(userfaultfd)?);
        Ok(())
    }

    /// The mappings, as a living thread has them now.
    ///
    /// # Errors
    /// The thread is gone.
    pub fn mappings(tid: u32) -> io::Result<Vec<Mapping>> {
        Ok(maps::parse(&std::fs::read_to_string(format!("/proc/{tid}/maps"))?))
    }

    /// Looks, within a limit. The process must stand.
    ///
    /// # Errors
    /// The process is gone.
    pub fn look(&mut self, tid: u32, watch: Watch, read: Read, limit: &mut Limit) -> io::Result<(Look, Took)> {
        let begun = Instant::now();
        let mut look = Look { mappings: Eyes::mappings(tid)?, ..Look::default() };
        let mut wanted: Vec<(Range, bool)> = Vec::new();
        for mapping in look.mappings.iter().filter(|mapping| mapping.is_tracked()) {
            for range in watch.cut(&(mapping.start..mapping.end)) {
                // In a file's mapping a page of zeros would be a file's page like any other.
                let zeros = if mapping.behind.is_anonymous() { category::ZERO } else { 0 };
                let (runs, told) = self.scan(mapping, &range)?;
                for run in runs.iter().filter(|run| run.categories & zeros == 0) {
                    join(&mut look.present, run.start..run.end);
                    if read == Read::All || run.categories & category::WRITTEN != 0 {
                        wanted.push((run.start..run.end, told));
                    }
                }
            }
        }
        if self.way == Way::SoftDirty {
            find::clear_soft_dirty(tid)?;
        }
        let found = Instant::now();
        let mut took = Took { finding: found - begun, ..Took::default() };
        match read {
            Read::Nothing => {
                let pages = wanted.iter().flat_map(|(run, told)| run.clone().step_by(PAGE).map(|at| (at, *told)));
                look.pages = pages.map(|(address, told)| Page { address, told }).collect();
            }
            _ => took.cut = self.read(tid, wanted, limit, &mut look),
        }
        took.reading = found.elapsed();
        Ok((look, took))
    }

    /// Takes back a look's buffer, and makes it large enough for half as much again: while the
    /// program runs.
    pub fn give_back(&mut self, look: Look) {
        self.buffer = look.bytes;
        let want = (look.pages.len() + look.pages.len() / 2).max(256) * PAGE;
        if self.buffer.len() < want {
            self.buffer.resize(want, 0);
        }
    }

    /// Runs of pages that are there. WRITTEN is set where they may have been written, which is
    /// known (`true`) or only not excluded.
    fn scan(&self, mapping: &Mapping, range: &Range) -> io::Result<(Vec<Run>, bool)> {
        let mut runs = Vec::new();
        match (self.way, &self.tracker) {
            (Way::Protect, Some(tracker)) => match self.pages.scan(range.start, range.end, true, &mut runs) {
                Ok(()) => return Ok((runs, true)),
                // A mapping that is new, has grown a new part, or was moved.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                    runs.clear();
                    if tracker.register(mapping.start, mapping.end - mapping.start).is_ok()
                        && self.pages.scan(range.start, range.end, true, &mut runs).is_ok()
                    {
                        return Ok((runs, false));
                    }
                    runs.clear();
                }
                Err(error) => return Err(error),
            },
            (Way::SoftDirty, _) => return self.entries(range).map(|runs| (runs, true)),
            _ => {}
        }
        match self.pages.scan(range.start, range.end, false, &mut runs) {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => runs = self.entries(range)?,
            told => told?,
        }
        runs.iter_mut().for_each(|run| run.categories |= category::WRITTEN);
        Ok((runs, false))
    }

    /// The same from `pagemap`'s words.
    fn entries(&self, range: &Range) -> io::Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        let mut words = [0; 4096];
        let mut at = range.start;
        while at < range.end {
            let most = ((range.end - at) / P).min(words.len() as u64) as usize;
            let n = self.pages.entries(at, &mut words[..most])?;
            for (page, word) in words[..n].iter().enumerate() {
                let mut categories = 0;
                for (bit, of) in [
                    (entry::PRESENT, category::PRESENT),
                    (entry::SWAPPED, category::SWAPPED),
                    (entry::SOFT_DIRTY, category::WRITTEN),
                ] {
                    categories |= if word & bit != 0 { of } else { 0 };
                }
                if categories & (category::PRESENT | category::SWAPPED) == 0 {
                    continue;
                }
                let start = at + page as u64 * P;
                match runs.last_mut() {
                    Some(last) if last.end == start && last.categories == categories => last.end += P,
                    _ => runs.push(Run { start, end: start + P, categories }),
                }
            }
            if n == 0 {
                break;
            }
            at += n as u64 * P;
        }
        Ok(runs)
    }

    /// Reads pages into the buffer, which becomes the look's. Returns whether time ran out.
    fn read(&mut self, tid: u32, wanted: Vec<(Range, bool)>, limit: &mut Limit, look: &mut Look) -> bool {
        look.bytes = std::mem::take(&mut self.buffer);
        let mut left = wanted.into_iter().peekable();
        // The part of the first run that is not yet in a batch begins here.
        let mut from = left.peek().map_or(0, |(run, _)| run.start);
        while left.peek().is_some() {
            if limit.is_over() {
                left.peek_mut().expect("peeked").0.start = from;
                left.for_each(|(run, _)| join(&mut look.missed, run));
                return true;
            }
            let mut batch: Vec<Remote> = Vec::new();
            let mut pages: Vec<Page> = Vec::new();
            while let Some((run, told)) = left.peek() {
                let room = BATCH - pages.len() as u64 * P;
                if room == 0 || batch.len() == MOST_RANGES {
                    break;
                }
                let end = run.end.min(from + room);
                batch.push(Remote { start: from, len: (end - from) as usize });
                pages.extend((from..end).step_by(PAGE).map(|address| Page { address, told: *told }));
                from = end;
                if end == run.end {
                    left.next();
                    from = left.peek().map_or(0, |(run, _)| run.start);
                }
            }
            limit.read(pages.len());
            copy(tid, &batch, pages, look);
        }
        false
    }
}

/// Copies a batch behind what the look has; pages that cannot be read are missed.
fn copy(tid: u32, batch: &[Remote], mut pages: Vec<Page>, look: &mut Look) {
    let mut batch = batch.to_vec();
    while !pages.is_empty() {
        let at = look.pages.len() * PAGE;
        let len = pages.len() * PAGE;
        if look.bytes.len() < at + len {
            look.bytes.resize(at + len, 0);
        }
        let n = ptrace::read(tid, &batch, &mut look.bytes[at..at + len]).unwrap_or(0) / PAGE;
        look.pages.extend(pages.drain(..n));
        if pages.is_empty() {
            return;
        }
        let bad = pages.remove(0).address;
        join(&mut look.missed, bad..bad + P);
        // Go on behind it.
        batch.retain_mut(|range| {
            let end = range.start + range.len as u64;
            if range.start <= bad {
                range.start = bad + P;
                range.len = end.saturating_sub(range.start) as usize;
            }
            range.len > 0
        });
    }
}

/// Appends a range, joined to the last where they touch.
fn join(to: &mut Vec<Range>, range: Range) {
    match to.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => to.push(range),
    }
}
