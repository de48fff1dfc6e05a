//! How much local memory a heap may have: a limit of its own, or a share of its run's `--local`.

use crate::class::SEGMENT;
use crate::evict::Missed;
use crate::{Builder, Error, Heap, Result};
use farmem_run::RunSpec;
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Pages of a segment.
const PAGES: isize = (SEGMENT / 4096) as isize;

/// Local memory at most, in bytes or as text: `512 << 20`, `"512M"`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Local(std::result::Result<usize, String>);

impl Local {
    pub(crate) fn bytes(self) -> Result<usize> {
        self.0.map_err(Error::NotASize)
    }
}

impl From<usize> for Local {
    fn from(bytes: usize) -> Local {
        Local(Ok(bytes))
    }
}

impl From<i32> for Local {
    fn from(bytes: i32) -> Local {
        Local(Ok(bytes.max(0) as usize))
    }
}

impl From<&str> for Local {
    /// Digits, and `K`, `M`, `G` or `T` for powers of 1024.
    fn from(text: &str) -> Local {
        let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k', 'm', 'g', 't']);
        let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
            "" => Some(0),
            "K" => Some(10),
            "M" => Some(20),
            "G" => Some(30),
            "T" => Some(40),
            _ => None,
        };
        let number = digits.parse::<usize>().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
        Local(bytes.ok_or_else(|| text.chars().take(40).collect()))
    }
}

/// Empty segments of a class that a heap keeps of the run's share. So a program that frees and
/// allocates in turn does not ask the run each time.
pub const SPARE: usize = 2;

/// The process's heaps that have a share of the run's, and their segments.
static HEAPS: AtomicUsize = AtomicUsize::new(0);
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Segments that a heap with `taken` may have, where all the heaps may take `more`, or have to give
/// if negative. A heap that is idle gives nothing, so the one that asks gives for all, but none of an
/// equal part. `all`: segments of all heaps, and their number.
fn part(taken: usize, more: isize, all: (usize, usize)) -> usize {
    let equal = all.0.saturating_add_signed(more) / all.1.max(1);
    taken.saturating_add_signed(more).max(equal)
}

/// Segments that a heap has of its limit. It gives back those that it does not need, and its end
/// all others: after the frames are gone.
pub struct Share {
    is_of_run: bool,
    /// Segments that it keeps in any case.
    least: usize,
    /// Segments taken from the run.
    taken: Cell<usize>,
}

impl Share {
    /// A limit of the heap's own.
    pub fn own() -> Share {
        Share { is_of_run: false, least: 0, taken: Cell::new(0) }
    }

    /// A share of the run's, with `first` segments at once.
    ///
    /// # Errors
    /// [`Error::ShareFull`]: the process's other heaps have the rest.
    pub fn of_run(first: usize) -> Result<Share> {
        let share = Share { is_of_run: true, least: first, taken: Cell::new(0) };
        HEAPS.fetch_add(1, Ordering::Relaxed);
        match share.has(first) {
            true => Ok(share),
            false => Err(Error::ShareFull),
        }
    }

    /// Whether the heap may have this many segments. They are the run's until then: its pages leave
    /// for them.
    pub fn has(&self, segments: usize) -> bool {
        while self.is_of_run && self.taken.get() < segments {
            if farmem_hints::objects(PAGES) == 0 {
                return false;
            }
            self.taken.set(self.taken.get() + 1);
            TAKEN.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// A scope holds all of the heap's segments, and needs more. Returns how many the heap may have
    /// now; 0 where it has a limit of its own.
    pub fn need(&self) -> usize {
        if self.is_of_run { self.taken.get() + farmem_hints::need() / PAGES.unsigned_abs() } else { 0 }
    }

    /// Whether segments that the heap does not need are of use to the run.
    pub fn is_of_run(&self) -> bool {
        self.is_of_run
    }

    /// Tells the run what the heap has missed. Returns the segments that it may have now, `None`
    /// where the heap has a limit of its own.
    pub fn weigh(&self, missed: Missed) -> Option<usize> {
        let Missed { pages, cost, saved } = missed;
        let more = self.is_of_run.then(|| farmem_hints::weigh(pages as usize, cost as usize, saved as usize))??;
        let all = (TAKEN.load(Ordering::Relaxed), HEAPS.load(Ordering::Relaxed));
        Some(part(self.taken.get(), more.div_euclid(PAGES), all).max(self.least))
    }

    /// Gives back what the heap has beyond this many segments. The memory of the others is
    /// discarded.
    pub fn keep(&self, segments: usize) {
        self.give(self.taken.get().saturating_sub(segments.max(self.least)));
    }

    fn give(&self, segments: usize) {
        if segments > 0 {
            farmem_hints::objects(-PAGES * segments as isize);
            self.taken.set(self.taken.get() - segments);
            TAKEN.fetch_sub(segments, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give(self.taken.get());
        HEAPS.fetch_sub(usize::from(self.is_of_run), Ordering::Relaxed);
    }
}

impl Heap {
    /// A heap on the nodes of this program's `farmem run`. Its local memory is a part of the run's
    /// `--local`, taken as the heap grows: half of it at first. Then it goes to objects or to pages as
    /// each gains by it, three quarters of `--local` at most. It goes back when objects are dropped.
    ///
    /// Nodes that join or leave the run later change nothing for the heap. It has one copy of each
    /// object, also where the run mirrors pages.
    ///
    /// # Errors
    /// [`Error::NoRun`] where the program does not run on far memory: use [`Heap::builder`].
    /// [`Error::ShareFull`]; and as [`crate::Builder::build`].
    pub fn of_run() -> Result<Heap> {
        Heap::builder_of_run()?.build()
    }

    /// Settings of a heap on the nodes of this program's `farmem run`: see [`Heap::of_run`].
    ///
    /// # Errors
    /// [`Error::NoRun`].
    pub fn builder_of_run() -> Result<Builder> {
        let text = std::env::var("FARMEM_RUN").map_err(|_| Error::NoRun)?;
        let spec = RunSpec::parse(&text).map_err(|_| Error::NoRun)?;
        let most = farmem_hints::objects(0) * 4096;
        if most == 0 {
            return Err(Error::NoRun);
        }
        let mut builder = Heap::builder().local(most).transport(spec.transport).grace(spec.grace);
        for node in &spec.nodes {
            builder = builder.node(node.at.to_string());
        }
        Ok(builder.of_run(spec.token, spec.plain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_that_asks_gives_for_idle_ones_but_none_of_an_equal_part() {
        assert_eq!((part(100, -60, (100, 1)), part(10, 30, (10, 1)), part(10, -60, (10, 1))), (40, 40, 0));
        assert_eq!(part(100, -60, (200, 2)), 70);
        assert_eq!(part(40, -60, (200, 2)), 70);
        assert_eq!(part(100, -150, (200, 2)), 25);
        assert_eq!(part(25, 30, (100, 4)), 55);
    }

    #[test]
    fn sizes_are_read_as_flags_are() {
        for (text, bytes) in [("512M", 512 << 20), ("4096", 4096), ("3g", 3 << 30), ("1T", 1 << 40), ("7K", 7168)] {
            assert_eq!(Local::from(text).bytes().unwrap(), bytes);
        }
        for text in ["", "M", "-1M", "+1", "1MB", "1.5G", "99999999999999T", "éM"] {
            assert!(matches!(Local::from(text).bytes(), Err(Error::NotASize(said)) if said == text), "{text}");
        }
    }
}
