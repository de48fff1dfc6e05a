//! Cards: names that hold across PID namespaces.
//!
//! In another namespace the same number means another process. A *card* is a word in this memory
//! that the kernel marks when its task ends, or has another memory after an exec: the task's list of
//! robust locks is one such lock, which it never gives back. The kernel itself compares the number
//! in the word with the task's own, as that task counts.
//!
//! A task that has a list already (libc's threads have) gets no card, because the kernel walks one
//! list a task. Neither does a task for which no card is free.
//!
//! A card that is marked goes to the next task, and its turn goes on. So a name of an earlier turn
//! is the name of a task that is gone. A task that is killed while it takes a card, or that sets a
//! list of its own later, keeps it from others.

use super::{Fate, SOME, UNNAMED};
use crate::raw::checked;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// One fewer than a byte counts, so that no name is [`UNNAMED`].
const CARDS: usize = 255;
/// In a name: it is a card's. Above every thread number.
const IS_CARD: u32 = 1 << 29;
const TURNS: u32 = (1 << 21) - 1;

/// The kernel's `struct robust_list_head`, then the list's only element, then its lock.
#[repr(C)]
struct Card {
    first: AtomicUsize,
    offset: AtomicUsize,
    pending: AtomicUsize,
    /// The element: the address of the next one, which is the head.
    link: AtomicUsize,
    /// 0: nobody's. Else a task's number, and the kernel's mark.
    word: AtomicU32,
    /// Counts its owners.
    turn: AtomicU32,
}

const HEAD_BYTES: usize = 24;
const LINK_AT: usize = std::mem::offset_of!(Card, link);
const WORD_AT: usize = std::mem::offset_of!(Card, word);

static ALL: [Card; CARDS] = [const {
    Card {
        first: AtomicUsize::new(0),
        offset: AtomicUsize::new(0),
        pending: AtomicUsize::new(0),
        link: AtomicUsize::new(0),
        word: AtomicU32::new(0),
        turn: AtomicU32::new(0),
    }
}; CARDS];

fn name(index: usize, turn: u32) -> u32 {
    IS_CARD | (turn & TURNS) << 8 | index as u32
}

/// The calling task's name by its card, which it takes if it has none.
pub(super) fn own(number: u32) -> Option<u32> {
    let (mut at, mut len) = (0usize, 0usize);
    let args = [0, &raw mut at as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: two live words.
    unsafe { checked(libc::SYS_get_robust_list, args) }.ok()?;
    if at == 0 {
        return take(number);
    }
    let index = at.checked_sub(ALL.as_ptr() as usize)? / size_of::<Card>();
    ALL.get(index).map(|card| name(index, card.turn.load(Ordering::Relaxed)))
}

fn take(number: u32) -> Option<u32> {
    let claims = |card: &&Card| {
        let word = card.word.load(Ordering::Relaxed);
        let is_free = word == 0 || word & libc::FUTEX_OWNER_DIED != 0;
        is_free && card.word.compare_exchange(word, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let card = ALL.iter().find(claims)?;
    let at = std::ptr::from_ref(card) as usize;
    let turn = card.turn.fetch_add(1, Ordering::AcqRel) + 1;
    card.link.store(at, Ordering::Relaxed);
    card.offset.store(WORD_AT - LINK_AT, Ordering::Relaxed);
    card.pending.store(0, Ordering::Relaxed);
    card.first.store(at + LINK_AT, Ordering::Relaxed);
    // SAFETY: a list of the kernel's form, in memory that stays.
    if unsafe { checked(libc::SYS_set_robust_list, [at, HEAD_BYTES, 0, 0, 0, 0]) }.is_err() {
        card.word.store(0, Ordering::Relaxed);
        return None;
    }
    Some(name((at - ALL.as_ptr() as usize) / size_of::<Card>(), turn))
}

/// What became of a card's owner, and the number by which it knows itself while it is there. `None`:
/// no card's name.
pub(super) fn fate(name: u32) -> Option<(Fate, u32)> {
    if name == UNNAMED || name & IS_CARD == 0 {
        return None;
    }
    let card = ALL.get(name as usize & 0xff)?;
    let word = card.word.load(Ordering::Acquire);
    if card.turn.load(Ordering::Acquire) & TURNS != name >> 8 & TURNS {
        return Some((Fate::Gone, SOME));
    }
    // The kernel's mark takes the number away.
    let is_gone = word & libc::FUTEX_OWNER_DIED != 0;
    Some((if is_gone { Fate::Gone } else { Fate::There }, word & libc::FUTEX_TID_MASK))
}

/// In a forked child: the cards are its parent's tasks', and the kernel marks none of them here.
pub(super) fn forget_in_child() {
    for card in &ALL {
        card.word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::syscall;

    /// A thread that libc made takes its list from the kernel, and has a card from then on.
    #[test]
    fn the_kernel_marks_the_card_of_a_task_that_ends() {
        let named = std::thread::spawn(|| {
            // SAFETY: no list.
            unsafe { syscall(libc::SYS_set_robust_list, [0, HEAD_BYTES, 0, 0, 0, 0]) };
            // SAFETY: no pointers.
            let number = unsafe { syscall(libc::SYS_gettid, [0; 6]) } as u32;
            let name = own(number).unwrap();
            assert_eq!(own(number), Some(name), "it keeps its card");
            assert_eq!(fate(name), Some((Fate::There, number)));
            name
        });
        let name = named.join().unwrap();
        // The kernel marks it after libc's join has been told.
        while fate(name).unwrap().0 != Fate::Gone {
            std::thread::yield_now();
        }
        assert!(name > 1 << 22 && name < UNNAMED);
        assert_eq!(fate(UNNAMED), None);
        assert_eq!(fate(4711), None);
    }

    #[test]
    fn a_name_of_an_earlier_turn_is_of_a_task_that_is_gone() {
        let (card, index) = (&ALL[CARDS - 1], CARDS - 1);
        card.word.store(7, Ordering::Relaxed);
        card.turn.store(3, Ordering::Relaxed);
        assert_eq!(fate(name(index, 3)).unwrap().0, Fate::There);
        assert_eq!(fate(name(index, 2)).unwrap().0, Fate::Gone);
        card.word.store(0, Ordering::Relaxed);
    }
}
