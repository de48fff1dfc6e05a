//! Which homes a slab of the host's table has: one atomic word for each slab index, into a table of
//! records.
//!
//! ```text
//! 63 62  56  55 54  53 52  31         0
//! S  L   P   home 1 home 0  number
//!             └─ states ─┘
//! S  shared with another process since a fork: nothing is overwritten
//! L  a home's node is being left: nothing is overwritten
//! P  of a group with parity
//! ```
//!
//! The *number* names a record: two homes, each a node, the slab's name there, and its address if
//! it is mapped. A record does not change while a word names it, so that one load of the word gives
//! a consistent view of the slab, and moving the slab is one store. Number 0 is none: the index is
//! free.
//!
//! *Stale bits*: one a slot and home, set where a home that is not whole lacks the slot's bytes.
//! They lie in reserved addresses, a memory page for each record, which takes memory when its first
//! bit is set.
//!
//! Each state's meaning is defined here once ([`Word::reads`], [`Word::takes_pages`],
//! [`Word::misses`]). The lanes use it, and so does the model that walks every interleaving
//! (`tests/two_homes.rs`). `docs/design/pool.md` has the argument.

use farmem_protocol::addr::{FarSlot, SLOTS_PER_SLAB, SlabId};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Homes that a slab can have.
pub const HOMES: usize = 2;

const NUMBER: u64 = u32::MAX as u64;
const STATE_SHIFT: u32 = 52;
const LEAVING: u64 = 1 << 62;
const SHARED: u64 = 1 << 63;
const STRIPED: u64 = 1 << 56;

/// How far one home has a slab's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum State {
    /// There is no such home, or it is lost.
    Absent = 0,
    /// It has every slot.
    Whole = 1,
    /// It has the slots whose stale bits are clear, and takes writes.
    Filling = 2,
    /// It has the slots whose stale bits are clear, and cannot be reached: each write sets a bit.
    Behind = 3,
}

/// A value of a slab's word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Word(pub u64);

impl Word {
    /// No slab has this index.
    pub const FREE: Word = Word(0);

    /// A slab of one home, whole.
    pub fn of(number: u32) -> Word {
        Word(number as u64).with_state(0, State::Whole)
    }

    /// The record it names.
    #[inline(always)]
    pub fn number(self) -> u32 {
        (self.0 & NUMBER) as u32
    }

    /// The same of another record.
    pub fn with_number(self, number: u32) -> Word {
        Word(self.0 & !NUMBER | number as u64)
    }

    /// A home's state.
    #[inline(always)]
    pub fn state(self, home: usize) -> State {
        match self.0 >> (STATE_SHIFT + 2 * home as u32) & 3 {
            0 => State::Absent,
            1 => State::Whole,
            2 => State::Filling,
            _ => State::Behind,
        }
    }

    /// The same with a home in another state.
    #[inline(always)]
    pub fn with_state(self, home: usize, state: State) -> Word {
        let shift = STATE_SHIFT + 2 * home as u32;
        Word(self.0 & !(3 << shift) | (state as u64) << shift)
    }

    /// Whether home 0 is whole and there is no other: nearly every slab.
    #[inline(always)]
    pub fn is_single(self) -> bool {
        self.0 >> STATE_SHIFT & 0xF == State::Whole as u64
    }

    /// Whether a READ of a slot may go to a home. `stale`: the slot's bit there, asked only where
    /// it matters.
    #[inline(always)]
    pub fn reads(self, home: usize, stale: impl FnOnce() -> bool) -> bool {
        match self.state(home) {
            State::Whole => true,
            State::Filling => !stale(),
            State::Absent | State::Behind => false,
        }
    }

    /// Whether a page that leaves is written to a home. Where that is filling, the slot's bit is
    /// cleared as the WRITE of the whole page is posted, and lines are laid onto it only if the bit
    /// is clear.
    #[inline(always)]
    pub fn takes_pages(self, home: usize) -> bool {
        matches!(self.state(home), State::Whole | State::Filling)
    }

    /// Whether a home misses what is written now, so that its bit must be set before the write
    /// counts as done.
    #[inline(always)]
    pub fn misses(self, home: usize) -> bool {
        self.state(home) == State::Behind
    }

    /// Homes that take pages.
    pub fn homes(self) -> usize {
        (0..HOMES).filter(|&home| self.takes_pages(home)).count()
    }

    /// Whether no home can give its slots back any more: none is whole or filling.
    pub fn is_lost(self) -> bool {
        self.number() != 0 && !(0..HOMES).any(|home| self.takes_pages(home))
    }

    /// Whether its slots may be overwritten: no other process can reach them, and no home is being
    /// left.
    #[inline(always)]
    pub fn is_own(self) -> bool {
        self.0 & (SHARED | LEAVING) == 0
    }

    /// Whether a node of its homes is being left.
    pub fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }

    /// Whether a fork has made its slots another process's, too.
    pub fn is_shared(self) -> bool {
        self.0 & SHARED != 0
    }

    /// The same, shared or not.
    pub fn with_shared(self, on: bool) -> Word {
        Word(if on { self.0 | SHARED } else { self.0 & !SHARED })
    }

    /// Whether it is of a group with parity ([`crate::stripes`]): its pages are written by stripes,
    /// and follow from others where no home has them.
    #[inline(always)]
    pub fn is_striped(self) -> bool {
        self.0 & STRIPED != 0
    }

    /// The same, of a group.
    pub fn with_striped(self) -> Word {
        Word(self.0 | STRIPED)
    }

    /// The same, with a node of its homes being left or not.
    pub fn with_leaving(self, on: bool) -> Word {
        Word(if on { self.0 | LEAVING } else { self.0 & !LEAVING })
    }
}

/// One place that has a slab's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
    /// Index of the node.
    pub node: u32,
    /// The slab's name there.
    pub slab: SlabId,
    /// Its address in this process, if it is mapped; else 0.
    pub base: usize,
}

impl Home {
    /// Stands in a record for a home that there is not.
    pub const NONE: Home = Home { node: 0, slab: SlabId(0), base: 0 };
}

/// Slabs that one process can hold: 4 TiB. Bounded by `vm.max_map_count` (65 530) on shm.
pub const MAX_SLABS: usize = 1 << 16;
/// Records: one for each slab, and one for each that is being moved.
const MAX_RECORDS: usize = 2 * MAX_SLABS;
/// Words of a record: three for each home, and a cache line in all.
const RECORD_WORDS: usize = 8;
const STALE_WORDS: usize = SLOTS_PER_SLAB as usize / 64;

/// The words, records and stale bits of a process.
pub(crate) struct Homes {
    words: SparseArray<AtomicU64>,
    records: SparseArray<AtomicU64>,
    stale: SparseArray<AtomicU64>,
    free: Lock<Free>,
}

/// Records that no word names and no thread can still hold.
struct Free {
    /// The first that was never used.
    next: u32,
    again: Vec<u32>,
}

impl Homes {
    /// The same, as a forked child has it: of slab indices below `slabs`.
    #[cfg(feature = "lab")]
    pub fn twin(&self, slabs: usize) -> Result<Homes, Errno> {
        let twin = Homes::new()?;
        let free = self.free.lock();
        let records = free.next as usize;
        let copy = |from: &SparseArray<AtomicU64>, to: &SparseArray<AtomicU64>, n: usize| {
            (0..n).for_each(|at| to[at].store(from[at].load(Ordering::Relaxed), Ordering::Relaxed));
        };
        copy(&self.words, &twin.words, slabs);
        copy(&self.records, &twin.records, records * RECORD_WORDS);
        copy(&self.stale, &twin.stale, records * HOMES * STALE_WORDS);
        *twin.free.lock() = Free { next: free.next, again: free.again.clone() };
        Ok(twin)
    }

    pub fn new() -> Result<Homes, Errno> {
        Ok(Homes {
            words: SparseArray::new(MAX_SLABS)?,
            records: SparseArray::new(MAX_RECORDS * RECORD_WORDS)?,
            stale: SparseArray::new(MAX_RECORDS * HOMES * STALE_WORDS)?,
            free: Lock::new(Free { next: 1, again: Vec::new() }),
        })
    }

    /// A slab's word. Acquire: the record that it names is as it was published.
    #[inline(always)]
    pub fn word(&self, index: u32) -> Word {
        Word(self.words[index as usize].load(Ordering::Acquire))
    }

    /// A home of the record that a word names.
    #[inline(always)]
    pub fn home(&self, word: Word, home: usize) -> Home {
        let at = word.number() as usize * RECORD_WORDS + 3 * home;
        let load = |at: usize| self.records[at].load(Ordering::Relaxed);
        Home { node: load(at) as u32, slab: SlabId(load(at + 1)), base: load(at + 2) as usize }
    }

    /// Names a slab by a word: of an index that nobody else changes meanwhile.
    pub fn publish(&self, index: u32, word: Word) {
        self.words[index as usize].store(word.0, Ordering::Release);
    }

    /// Changes a slab's word, unless `change` says `None`; the word before and after.
    pub fn update(&self, index: u32, mut change: impl FnMut(Word) -> Option<Word>) -> Option<(Word, Word)> {
        let word = &self.words[index as usize];
        let mut seen = Word(word.load(Ordering::Acquire));
        loop {
            let next = change(seen)?;
            match word.compare_exchange_weak(seen.0, next.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((seen, next)),
                Err(other) => seen = Word(other),
            }
        }
    }

    /// A fork shares a slab from now on, or no longer.
    pub fn set_shared(&self, index: u32, shared: bool) {
        self.update(index, |word| Some(word.with_shared(shared)));
    }

    /// A record of these homes. `None`: all are in use.
    pub fn record(&self, homes: [Home; HOMES]) -> Option<u32> {
        let mut free = self.free.lock();
        let number = match free.again.pop() {
            Some(number) => number,
            None if (free.next as usize) < MAX_RECORDS => {
                free.next += 1;
                free.next - 1
            }
            None => return None,
        };
        drop(free);
        for (nth, home) in homes.iter().enumerate() {
            let at = number as usize * RECORD_WORDS + 3 * nth;
            for (word, value) in [home.node as u64, home.slab.0, home.base as u64].into_iter().enumerate() {
                self.records[at + word].store(value, Ordering::Relaxed);
            }
        }
        Some(number)
    }

    /// A record that no word names and no thread holds may be used again.
    pub fn free(&self, number: u32) {
        let from = number as usize * HOMES * STALE_WORDS;
        self.stale.clear(from, from + HOMES * STALE_WORDS);
        self.free.lock().again.push(number);
    }

    fn stale_word(&self, word: Word, home: usize, place: u32) -> (&AtomicU64, u64) {
        let at = (word.number() as usize * HOMES + home) * STALE_WORDS + place as usize / 64;
        (&self.stale[at], 1 << (place % 64))
    }

    /// Whether a home lacks a slot's bytes.
    pub fn is_stale(&self, word: Word, home: usize, place: u32) -> bool {
        let (bits, bit) = self.stale_word(word, home, place);
        bits.load(Ordering::Acquire) & bit != 0
    }

    /// A home lacks a slot's bytes, or has them; whether that is news.
    pub fn set_stale(&self, word: Word, home: usize, place: u32, on: bool) -> bool {
        let (bits, bit) = self.stale_word(word, home, place);
        let before = if on { bits.fetch_or(bit, Ordering::AcqRel) } else { bits.fetch_and(!bit, Ordering::AcqRel) };
        (before & bit != 0) != on
    }

    /// A home of a record lacks what that of another lacks.
    pub fn copy_stale(&self, from: Word, to: Word, home: usize) {
        let base = |word: Word| (word.number() as usize * HOMES + home) * STALE_WORDS;
        for at in 0..STALE_WORDS {
            let bits = self.stale[base(from) + at].load(Ordering::Acquire);
            if bits != 0 {
                self.stale[base(to) + at].store(bits, Ordering::Release);
            }
        }
    }

    /// The first place from `from` on that a home lacks.
    pub fn next_stale(&self, word: Word, home: usize, from: u32) -> Option<u32> {
        let base = (word.number() as usize * HOMES + home) * STALE_WORDS;
        let mut mask = u64::MAX << (from % 64);
        (from as usize / 64..STALE_WORDS).find_map(|at| {
            let bits = self.stale[base + at].load(Ordering::Acquire) & std::mem::replace(&mut mask, u64::MAX);
            (bits != 0).then(|| at as u32 * 64 + bits.trailing_zeros())
        })
    }

    /// The home that a READ of a slot goes to, of those for which `usable`.
    pub fn reader(&self, word: Word, slot: FarSlot, usable: impl Fn(&Home) -> bool) -> Option<(usize, Home)> {
        let may = |home: &usize| word.reads(*home, || self.is_stale(word, *home, slot.place()));
        (0..HOMES).filter(may).map(|home| (home, self.home(word, home))).find(|(_, home)| usable(home))
    }
}

const _: () = assert!(HOMES * STALE_WORDS * 8 == 4096, "a record's stale bits are a page");
const _: () = assert!(MAX_RECORDS <= NUMBER as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_its_fields() {
        let word = Word::of(7).with_state(1, State::Filling).with_shared(true).with_leaving(true);
        assert_eq!((word.number(), word.state(0), word.state(1)), (7, State::Whole, State::Filling));
        assert!(!word.is_own() && !word.is_single() && !word.is_lost() && word.homes() == 2);
        let word = word.with_shared(false).with_leaving(false).with_number(9).with_state(1, State::Absent);
        assert_eq!(word, Word::of(9));
        assert!(word.is_own() && word.is_single());
        assert!(word.with_state(0, State::Absent).is_lost() && !Word::FREE.is_lost());
        assert!(word.with_state(0, State::Behind).is_lost(), "nobody can read it now");
    }

    #[test]
    fn states_say_who_reads_and_writes() {
        let all = [State::Absent, State::Whole, State::Filling, State::Behind];
        let says = all.map(|state| {
            let word = Word::of(1).with_state(1, state);
            (word.reads(1, || false), word.reads(1, || true), word.takes_pages(1), word.misses(1))
        });
        let expected = [
            (false, false, false, false),
            (true, true, true, false),
            (true, false, true, false),
            (false, false, false, true),
        ];
        assert_eq!(says, expected);
    }

    #[test]
    fn a_record_used_again_has_no_stale_bits() {
        let homes = Homes::new().unwrap();
        let home = |node| Home { node, slab: SlabId(node as u64 + 5), base: 0 };
        let number = homes.record([home(0), home(1)]).unwrap();
        let word = Word::of(number).with_state(1, State::Filling);
        homes.publish(3, word);
        assert_eq!((homes.word(3), homes.home(word, 1)), (word, home(1)));
        let slot = FarSlot::new(3, 100);
        let reader = |word, node| homes.reader(word, slot, |home| home.node == node).map(|(home, _)| home);
        assert_eq!([reader(word, 0), reader(word, 1)], [Some(0), Some(1)]);
        assert!(homes.set_stale(word, 1, 100, true) && !homes.set_stale(word, 1, 100, true));
        assert_eq!([reader(word, 0), reader(word, 1)], [Some(0), None]);
        assert_eq!(homes.next_stale(word, 1, 0), Some(100));
        assert_eq!([100, 101].map(|from| homes.next_stale(word, 1, from)), [Some(100), None]);
        assert!(!homes.is_stale(word, 0, 100) && homes.is_stale(word, 1, 100));
        homes.free(number);
        assert_eq!(homes.record([home(2), Home::NONE]), Some(number));
        assert_eq!(homes.next_stale(word, 1, 0), None);
        assert!(homes.set_stale(word, 1, 7, true) && homes.set_stale(word, 1, 7, false));
        let lost = homes.update(3, |word| Some(word.with_state(0, State::Absent))).unwrap();
        assert_eq!(lost, (word, homes.word(3)));
        assert_eq!(homes.update(3, |_| None), None);
    }
}
