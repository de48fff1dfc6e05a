//! The page word: everything the pager knows of a page, in one shared 64-bit word.
//!
//! ```text
//! 63 62     60 59 58 57 56 55               36 35                        0
//! |G |  state |D |W |H |U | pins or staged  |  far slot                  |
//!
//! G  guessed    (with D) compared when it leaves: its slot holds the bytes it came in with, and
//!               whether it was written to is not known yet ([`crate::dirty`])
//! D  dirty      the page differs from its far slot, or has none; without D a
//!               resident page is write-protected, and the first write faults
//! W  written    it was dirty when it last left
//! H  has        the far slot is valid
//! U  upgraded   (with D) it came in write-protected, and its first write faulted
//! pins          system calls that are using the page now (Resident, Busy)
//! staged        index of the staged copy (Staged)
//! ```
//!
//! ```text
//!                    first touch                 evict
//!   Untouched ──► Busy ──────────► Resident ──► Leaving ──┬──► Remote      (clean, or slot mapped)
//!       ▲                ▲    ▲       │                   ├──► Staged ──► Remote   (until the ring comes round)
//!       │          fetch │    │rescue │ unmapped          └──► Untouched   (all zero)
//!       │        Remote ─┘    └─ Staged
//!       └──────────────────────────────────────────────────────────────── unmapped, discarded
//! ```
//!
//! An *upgrade*, the first write to a clean page, goes Resident ──► Busy ──► Resident (dirty).
//!
//! *Busy* and *Leaving* belong to the one thread that set them; others wait.
//! Every transition is one CAS by its owner. While a page is Busy only its pins
//! may change under the owner (an `unpin`), hence owners leave Busy by
//! [`AtomicWord::settle`].

#![allow(unsafe_code)] // Zero is a word.

use farmem_protocol::addr::FarSlot;
use farmem_sys::memory::ZeroValid;
use std::sync::atomic::{AtomicU64, Ordering};

/// A page's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum State {
    /// No content of its own: reads as zero, or is not mapped.
    Untouched = 0,
    /// Some thread is bringing it in or changing its protection.
    Busy = 1,
    /// Present in the page table.
    Resident = 2,
    /// Some thread is taking it out.
    Leaving = 3,
    /// Not present; its bytes are in the staging ring.
    Staged = 4,
    /// Not present; its bytes are in its far slot.
    Remote = 5,
}

const GUESSED: u64 = 1 << 63;
const STATE_SHIFT: u32 = 60;
const DIRTY: u64 = 1 << 59;
const WRITTEN: u64 = 1 << 58;
const HAS_SLOT: u64 = 1 << 57;
const UPGRADED: u64 = 1 << 56;
const FIELD_SHIFT: u32 = 36;
const FIELD: u64 = ((1 << 20) - 1) << FIELD_SHIFT;
const SLOT: u64 = (1 << FarSlot::BITS) - 1;
const PIN: u64 = 1 << FIELD_SHIFT;

/// Most pins a page can carry; beyond it a pin is refused and the call goes without.
pub const MAX_PINS: u64 = (1 << 20) - 1;
/// Staged copies that can be told apart.
pub const MAX_STAGED: usize = 1 << 20;

/// A value of the page word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// The word of a page that was never touched: zero.
    pub const UNTOUCHED: Word = Word(0);

    /// The state.
    #[inline(always)]
    pub fn state(self) -> State {
        match self.0 >> STATE_SHIFT & 7 {
            0 => State::Untouched,
            1 => State::Busy,
            2 => State::Resident,
            3 => State::Leaving,
            4 => State::Staged,
            _ => State::Remote,
        }
    }

    /// The same in another state.
    #[inline(always)]
    pub fn to(self, state: State) -> Word {
        Word(self.0 & !(7 << STATE_SHIFT) | (state as u64) << STATE_SHIFT)
    }

    /// Whether the page differs from its far slot, or has none (D).
    #[inline(always)]
    pub fn dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// The same word, dirty or clean (D).
    #[inline(always)]
    pub fn with_dirty(self, on: bool) -> Word {
        Word(if on { self.0 | DIRTY } else { self.0 & !DIRTY })
    }

    /// Whether the page will be compared when it leaves (G).
    #[inline(always)]
    pub fn guessed(self) -> bool {
        self.0 & GUESSED != 0
    }

    /// The same word with G as given.
    #[inline(always)]
    pub fn with_guessed(self, on: bool) -> Word {
        Word(if on { self.0 | GUESSED } else { self.0 & !GUESSED })
    }

    /// Whether the page was dirty when it last left (W).
    #[inline(always)]
    pub fn written(self) -> bool {
        self.0 & WRITTEN != 0
    }

    /// The same word with W as given.
    #[inline(always)]
    pub fn with_written(self, on: bool) -> Word {
        Word(if on { self.0 | WRITTEN } else { self.0 & !WRITTEN })
    }

    /// Whether the page came in write-protected and its first write faulted (U).
    #[inline(always)]
    pub fn upgraded(self) -> bool {
        self.0 & UPGRADED != 0
    }

    /// The same word with U as given.
    #[inline(always)]
    pub fn with_upgraded(self, on: bool) -> Word {
        Word(if on { self.0 | UPGRADED } else { self.0 & !UPGRADED })
    }

    /// The far slot, if it has one.
    #[inline(always)]
    pub fn slot(self) -> Option<FarSlot> {
        (self.0 & HAS_SLOT != 0).then(|| FarSlot::from_bits(self.0 & SLOT))
    }

    /// The same with another far slot, or none.
    #[inline(always)]
    pub fn with_slot(self, slot: Option<FarSlot>) -> Word {
        let rest = self.0 & !(HAS_SLOT | SLOT);
        Word(slot.map_or(rest, |s| rest | HAS_SLOT | s.bits()))
    }

    /// Pins (Resident, Busy).
    #[inline(always)]
    pub fn pins(self) -> u64 {
        (self.0 & FIELD) >> FIELD_SHIFT
    }

    /// The staged copy's index (Staged).
    #[inline(always)]
    pub fn staged(self) -> usize {
        ((self.0 & FIELD) >> FIELD_SHIFT) as usize
    }

    /// The same with the shared field (pins or staged index) as given.
    #[inline(always)]
    pub fn with_field(self, value: u64) -> Word {
        debug_assert!(value <= MAX_PINS);
        Word(self.0 & !FIELD | value << FIELD_SHIFT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?}{}{}{}{} field {} slot {:?}",
            self.state(),
            if self.guessed() { " guessed" } else { "" },
            if self.dirty() { " dirty" } else { "" },
            if self.written() { " written" } else { "" },
            if self.upgraded() { " upgraded" } else { "" },
            self.pins(),
            self.slot()
        )
    }
}

/// The shared word.
#[repr(transparent)]
pub struct AtomicWord(AtomicU64);

// SAFETY: zero is a value of it, and it is an atomic.
unsafe impl ZeroValid for AtomicWord {}

impl AtomicWord {
    /// With a value.
    pub const fn new(word: Word) -> AtomicWord {
        AtomicWord(AtomicU64::new(word.0))
    }

    /// The value now. Pairs with the Release of the transition that made it. SeqCst, as
    /// [`AtomicWord::shift`] is, for [`crate::local::crowd`]; on x86-64 neither costs more than
    /// Acquire would.
    #[inline(always)]
    pub fn load(&self) -> Word {
        Word(self.0.load(Ordering::SeqCst))
    }

    /// From exactly `from` to `to`; false when it has changed.
    #[inline(always)]
    pub fn shift(&self, from: Word, to: Word) -> bool {
        self.0.compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The owner of a Busy page leaves it as `to`, keeping whatever pins it has by now.
    #[inline]
    pub fn settle(&self, to: Word) {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            debug_assert_eq!(Word(now).state(), State::Busy);
            let next = to.with_field(Word(now).pins()).0;
            match self.0.compare_exchange_weak(now, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    /// The owner of a Leaving page (or of a Busy one that cannot carry pins) leaves it as `to`.
    #[inline(always)]
    pub fn set(&self, to: Word) {
        self.0.store(to.0, Ordering::Release);
    }

    /// Adds a pin if the page is exactly as seen.
    #[inline(always)]
    pub fn pin(&self, seen: Word) -> bool {
        seen.pins() < MAX_PINS && self.shift(seen, Word(seen.0 + PIN))
    }

    /// Takes a pin back, and returns the word before. `None`, and harmless, where there is no pin:
    /// the program unmapped the page meanwhile. SeqCst, as [`crate::local::crowd`] needs it.
    #[inline]
    pub fn unpin(&self) -> Option<Word> {
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |now| {
            let word = Word(now);
            (matches!(word.state(), State::Resident | State::Busy) && word.pins() > 0).then(|| now - PIN)
        });
        before.ok().map(Word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let slot = FarSlot::new(12345, 678);
        let word = Word::UNTOUCHED.to(State::Resident).with_slot(Some(slot)).with_dirty(true).with_field(MAX_PINS);
        assert_eq!((word.state(), word.slot(), word.pins()), (State::Resident, Some(slot), MAX_PINS));
        let word = word.with_field(0).with_dirty(false).with_written(true).to(State::Remote);
        assert_eq!((word.state(), word.slot(), word.dirty(), word.written()), (State::Remote, Some(slot), false, true));
        assert_eq!(word.with_slot(None).slot(), None);
        let word = Word::UNTOUCHED.to(State::Resident).with_slot(Some(slot)).with_dirty(true).with_field(3);
        assert!(word.dirty() && !word.with_dirty(false).dirty());
        assert!(word.with_upgraded(true).upgraded() && !word.upgraded());
        assert_eq!(word.with_upgraded(true).with_field(MAX_PINS).with_upgraded(false), word.with_field(MAX_PINS));
        assert_eq!(word.with_guessed(true).state(), State::Resident);
        assert_eq!(word.with_guessed(true).to(State::Remote).with_guessed(false).state(), State::Remote);
    }

    #[test]
    fn settling_keeps_pins_that_changed_meanwhile() {
        let word = AtomicWord::new(Word::UNTOUCHED.to(State::Busy).with_field(3));
        word.unpin();
        word.settle(Word::UNTOUCHED.to(State::Resident).with_dirty(true));
        assert_eq!(word.load(), Word::UNTOUCHED.to(State::Resident).with_dirty(true).with_field(2));
        word.unpin();
        word.unpin();
        word.unpin();
        assert_eq!(word.load().pins(), 0);
    }
}
