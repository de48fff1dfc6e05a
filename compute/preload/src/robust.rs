//! Robust locks that a thread holds when it ends.
//!
//! The kernel marks the locks of a thread that ends, by a list that the thread keeps. The kernel's
//! own accesses do not fault. At the first lock or link that is far and absent it would stop, and a
//! thread that waits for that lock, or for one behind it, would wait for ever. So the runtime walks
//! the list before the thread ends, as the kernel does (`exit_robust_list`), and takes the list
//! from the kernel. A marked lock may have a new owner by then, which writes to its link, and a
//! second walk would follow that link into another list, or anywhere.

use crate::guard::peek::peek;
use crate::process::pager;
use farmem_protocol::addr::is_far;
use farmem_sys::raw::{checked, syscall};
use std::sync::atomic::{AtomicU32, Ordering};

/// As many links as the kernel follows.
const MOST: usize = 2048;
/// The bit in a link that tells of priority inheritance: waiters are woken by the kernel, in
/// another way.
const INHERITS: usize = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    first: usize,
    /// From a link to its lock.
    offset: isize,
    /// The link of a lock that was being taken or given back.
    pending: usize,
}

/// The calling thread is about to end: marks the locks that it holds.
pub fn let_go() {
    let (mut at, mut len) = (0usize, 0usize);
    let args = [0, &raw mut at as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: two live words.
    if unsafe { checked(libc::SYS_get_robust_list, args) }.is_err() || at == 0 || len != size_of::<Head>() {
        return;
    }
    // The list of a thread of libc's is near, and nearly always empty; elsewhere it may be what it
    // likes.
    let Some(head) = peek::<Head>(at) else { return };
    if head.first & !INHERITS == at && head.pending == 0 {
        return;
    }
    // SAFETY: no pointers.
    let own = unsafe { syscall(libc::SYS_gettid, [0; 6]) } as u32;
    let lock = |link: usize| (link & !INHERITS).wrapping_add_signed(head.offset);
    if !any_far(at, &head, lock) {
        return;
    }
    let mut link = head.first;
    for _ in 0..MOST {
        if link & !INHERITS == at {
            break;
        }
        // Read before the lock is marked: its next owner writes there.
        let next = peek::<usize>(link & !INHERITS);
        if link != head.pending {
            mark(lock(link), own, link & INHERITS != 0, false);
        }
        let Some(next) = next else { break };
        link = next;
    }
    if head.pending != 0 {
        mark(lock(head.pending), own, head.pending & INHERITS != 0, true);
    }
    // SAFETY: no list. The kernel takes none but of this length.
    unsafe { syscall(libc::SYS_set_robust_list, [0, size_of::<Head>(), 0, 0, 0, 0]) };
}

/// Whether the kernel could stop at an absent page. If not, it finds and marks all of them, and
/// looks better than the runtime can whether near memory may be written to.
fn any_far(at: usize, head: &Head, lock: impl Fn(usize) -> usize) -> bool {
    let far = |link: usize| is_far(link) || is_far(lock(link));
    let mut link = head.first;
    for _ in 0..MOST {
        if link & !INHERITS == at {
            break;
        }
        if far(link) {
            return true;
        }
        let Some(next) = peek::<usize>(link & !INHERITS) else { break };
        link = next;
    }
    is_far(at) || head.pending != 0 && far(head.pending)
}

/// Marks one, if it is the thread's own.
fn mark(lock: usize, own: u32, inherits: bool, pending: bool) {
    if !lock.is_multiple_of(4) || peek::<u32>(lock).is_none() {
        return;
    }
    let pinned = pager().pins.pin(lock, 4, true);
    if !is_far(lock) || pinned == 4 {
        // SAFETY: mapped, as was seen just now; far memory is pinned writable. A lock of the
        // program's, which is written to by atomic instructions alone.
        let word = unsafe { AtomicU32::from_ptr(lock as *mut u32) };
        mark_word(word, own, inherits, pending);
    }
    pager().pins.unpin(lock, pinned);
}

fn mark_word(word: &AtomicU32, own: u32, inherits: bool, pending: bool) {
    let died =
        |seen: u32| (seen & libc::FUTEX_TID_MASK == own).then_some(seen & libc::FUTEX_WAITERS | libc::FUTEX_OWNER_DIED);
    let wakes = match word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, died) {
        Ok(seen) => seen & libc::FUTEX_WAITERS != 0,
        // Given back, and its waiter not woken yet.
        Err(seen) => pending && seen & libc::FUTEX_TID_MASK == 0,
    };
    if wakes && !inherits {
        // Not private: so robust locks are waited for.
        // SAFETY: the word is there.
        unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, 1, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_locks_of_the_dead_are_marked() {
        let cases = [(7, 0x4000_0000), (0x8000_0007, 0xc000_0000), (8, 8), (0, 0), (0x8000_0008, 0x8000_0008)];
        for (before, after) in cases {
            let word = AtomicU32::new(before);
            mark_word(&word, 7, false, false);
            assert_eq!(word.into_inner(), after, "{before:#x}");
        }
    }
}
