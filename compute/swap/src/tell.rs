//! Reports freed slots to the node, in a thread of its own beside the watcher.
//!
//! A report comes late: the slot may be in use again, and its new page may lie at the node. So this
//! thread asks the node for *marks* beforehand. A slot that was freed here after a mark was known,
//! and was not written at the node after that mark, holds a page that is no longer needed.
//!
//! ```text
//!  node    writes … │ mark 7      writes of other slots …            │ frees: slot 5, mark 7
//!  here             └──► known ──────────► slot 5 freed ─► event ────┘
//! ```
//!
//! Only times of this machine are compared: when the mark was known, and when the slot was freed.
//! So a paused machine or a changed clock does no harm. An old mark or a lost event keeps an
//! unneeded page at the node, until its slot is written again or its cluster is free.

use crate::freed::{Event, Probe, What};
use crate::names::Lookup;
use crate::state::{self, State};
use crate::stream::{PATIENCE, Stream};
use crate::turns::{IDLE, Rest, Turn, Turns};
use farmem_protocol::nbd::{MAX_FREED_BYTES, PAGE, Slots};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

// Freed memory is to be the node's within a second. The rest is for the node
// (`memory/nic/tests/volumes.rs`).
const _: () = assert!(IDLE.as_millis() + TURN.as_millis() <= 350);
/// How often it tries to reach a node that it has lost.
const TRIES_EVERY: Duration = Duration::from_secs(1);
/// Clocks of CPUs may differ by less than this.
const MARGIN_NS: u64 = 1_000_000;
/// Marks that are remembered.
const MARKS: usize = 64;
/// No further page is read in a turn after this: also on a slow machine the node is told soon.
const TURN: Duration = Duration::from_millis(100);

/// A device whose frees are told.
pub struct Device {
    /// The facts about it.
    pub state: State,
    /// The kernel's number of it.
    pub kind: u32,
}

struct Told {
    device: Device,
    stream: Option<Stream>,
    tried: Option<Instant>,
    lookup: Lookup,
    marks: Marks,
}

/// Marks of a volume, and when each was known here.
#[derive(Debug, Default)]
struct Marks(VecDeque<(u64, u64)>);

/// The thread.
pub struct Teller {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Marks {
    fn learn(&mut self, mark: u64, now_ns: u64) {
        // The same mark again adds nothing: it holds since it was first known.
        if self.0.back().is_none_or(|&(last, _)| last != mark) {
            self.0.push_back((mark, now_ns));
            if self.0.len() > MARKS {
                self.0.pop_front();
            }
        }
    }

    /// The last mark that was known when this happened.
    fn before(&self, at_ns: u64) -> Option<u64> {
        let known = |&&(_, known_ns): &&(u64, u64)| known_ns.saturating_add(MARGIN_NS) <= at_ns;
        self.0.iter().rev().find(known).map(|&(mark, _)| mark)
    }
}

/// The slots of a device to report, by mark, in runs.
fn sorted(events: &[Event], kind: u32, slots: u32, marks: &Marks) -> BTreeMap<u64, Vec<Slots>> {
    let mut told: BTreeMap<u64, Vec<Slots>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind == kind) {
        let What::Freed(first, last) = event.what else { continue };
        let Some(mark) = marks.before(event.at_ns).filter(|_| last < slots) else { continue };
        let (runs, count) = (told.entry(mark).or_default(), last - first + 1);
        match runs.last_mut() {
            Some(run) if run.first.get() + run.count.get() == first => run.count = (run.count.get() + count).into(),
            _ => runs.push(Slots { first: first.into(), count: count.into() }),
        }
    }
    told
}

impl Told {
    /// Runs an order on the stream; makes one if there is none. `None`: there is none.
    fn with<T>(&mut self, silent: Duration, order: impl FnOnce(&mut Stream) -> Result<T, crate::Error>) -> Option<T> {
        if self.stream.is_none() && self.tried.is_none_or(|at| at.elapsed() >= TRIES_EVERY) {
            self.tried = Some(Instant::now());
            if let Some(at) = self.lookup.changed(&self.device.state) {
                self.device.state.at = at;
            }
            self.stream = self.lookup.dial(&self.device.state, false, silent, PATIENCE).ok();
        }
        let done = order(self.stream.as_mut()?);
        if done.is_err() {
            self.stream = None;
        }
        done.ok()
    }

    fn tell(&mut self, events: &[Event], silent: Duration) {
        let slots = (self.device.state.size / PAGE) as u32;
        for (mark, runs) in sorted(events, self.device.kind, slots, &self.marks) {
            for some in runs.chunks(MAX_FREED_BYTES as usize / size_of::<Slots>()) {
                // A report that fails now is not repeated later: it would only be older.
                self.with(silent, |stream| stream.freed(mark, some));
            }
        }
    }
}

/// Pages that this machine has swapped out since its start, to any device.
fn swapped_out() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("pswpout ")?.parse().ok())
}

impl Teller {
    /// Begins to tell. `silent`: how long a node may be.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(probe: Probe, devices: Vec<Device>, silent: Duration) -> std::io::Result<Teller> {
        let told =
            |device| Told { device, stream: None, tried: None, lookup: Lookup::default(), marks: Marks::default() };
        let mut told: Vec<Told> = devices.into_iter().map(told).collect();
        let over = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&over);
        let named = std::thread::Builder::new().name("freed".into());
        let thread = named.spawn(move || pass_on(probe, &mut told, silent, &asked))?;
        Ok(Teller { over, thread: Some(thread) })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn pass_on(mut probe: Probe, told: &mut [Told], silent: Duration, over: &AtomicBool) {
    let mut events = Vec::new();
    let (mut swapped, mut turns) = (None, Turns::new(Instant::now()));
    // A process that has undone all devices cannot remove a probe that is open here.
    let any_stands =
        |told: &[Told]| told.iter().any(|told| state::is_known(Path::new(state::DIRECTORY), told.device.state.index));
    while !over.load(Ordering::Acquire) && any_stands(told) {
        let begun = Instant::now();
        // Another process has removed it.
        let Ok(left) = probe.read(&mut events, begun + TURN) else { return };
        // After the events: a mark that is known now is of no use for them.
        let now_swapped = swapped_out();
        let wrote = swapped != now_swapped;
        swapped = now_swapped;
        for told in &mut *told {
            told.tell(&events, silent);
            if (wrote || told.stream.is_none())
                && let Some(mark) = told.with(silent, Stream::mark)
            {
                told.marks.learn(mark, farmem_sys::raw::now_ns());
            }
        }
        let now = Instant::now();
        let turn = Turn { took: now - begun, any: wrote || !events.is_empty(), left };
        events.clear();
        match turns.after(turn, now) {
            Rest::Sleep(long) => std::thread::sleep(long),
            Rest::Wait(long) => probe.wait(long),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_told_by_the_last_mark_before_it() {
        let mut marks = Marks::default();
        assert_eq!(marks.before(u64::MAX), None);
        for (mark, at_ms) in [(7, 100), (7, 120), (9, 140)] {
            marks.learn(mark, at_ms * 1_000_000);
        }
        let before = |at_us: u64| marks.before(at_us * 1000);
        assert_eq!([100_999, 101_000, 140_999, 141_000].map(before), [None, Some(7), Some(7), Some(9)]);
        let event =
            |kind, at_ms: u64, first, last| Event { kind, at_ns: at_ms * 1_000_000, what: What::Freed(first, last) };
        let events = [
            event(1, 90, 1, 1),
            event(1, 130, 4, 5),
            event(2, 130, 6, 6),
            event(1, 131, 6, 6),
            event(1, 132, 99, 100),
            Event { kind: 1, at_ns: u64::MAX, what: What::SwapOn },
            event(1, 150, 7, 7),
        ];
        let run = |first: u32, count: u32| Slots { first: first.into(), count: count.into() };
        let told = sorted(&events, 1, 100, &marks);
        assert_eq!(told, BTreeMap::from([(7, vec![run(4, 3)]), (9, vec![run(7, 1)])]));
    }

    #[test]
    fn old_marks_are_forgotten() {
        let mut marks = Marks::default();
        (0..1000).for_each(|mark| marks.learn(mark, mark * 1_000_000_000));
        let before = |at_s: u64| marks.before(at_s * 1_000_000_000);
        assert_eq!((marks.0.len(), before(999), before(900)), (MARKS, Some(998), None));
    }
}
