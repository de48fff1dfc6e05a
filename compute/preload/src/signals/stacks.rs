//! `sigaltstack` as the program sees it. The kernel keeps the runtime's near stack;
//! handlers that ask for the program's get it from [`super::deliver`].

use super::actions;
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::threads::{self, Record};
use farmem_protocol::addr::is_far;
use std::sync::atomic::{AtomicBool, Ordering};

const AUTODISARM: i32 = i32::MIN;
const LEAST: usize = 2048;

/// Whether some thread has been seen on a far stack: from then on every handler is delivered.
static FAR_STACKS: AtomicBool = AtomicBool::new(false);

/// Whether handlers of the program's must not be called by the kernel on the interrupted stack.
pub fn far_stacks() -> bool {
    FAR_STACKS.load(Ordering::Relaxed)
}

/// To be told of every stack pointer that the runtime sees.
#[inline]
pub fn note_stack(sp: usize) {
    if is_far(sp) && !far_stacks() {
        FAR_STACKS.store(true, Ordering::SeqCst);
        actions::deliver_all();
    }
}

/// Whether the program runs on the alternate stack that it asked for.
pub fn is_on(record: &Record, sp: usize) -> bool {
    let (at, size) = (record.asked_at.load(Ordering::Relaxed), record.asked_size.load(Ordering::Relaxed));
    size != 0 && sp.wrapping_sub(at) <= size
}

/// sigaltstack of the program's; `sp` is where it calls from.
pub fn sigaltstack(new: usize, old: usize, sp: usize) -> isize {
    let record = threads::current();
    let (at, size) = (record.asked_at.load(Ordering::Relaxed), record.asked_size.load(Ordering::Relaxed));
    let before = libc::stack_t {
        ss_sp: at as *mut _,
        ss_size: size,
        ss_flags: match (size, is_on(record, sp)) {
            (0, _) => libc::SS_DISABLE,
            (_, true) => libc::SS_ONSTACK,
            (_, false) => 0,
        },
    };
    if new != 0 {
        let Some(wanted) = peek::<libc::stack_t>(new) else { return BAD_ADDRESS };
        if is_on(record, sp) {
            return -(libc::EPERM as isize);
        }
        match wanted.ss_flags & !AUTODISARM {
            libc::SS_DISABLE => {
                record.asked_at.store(0, Ordering::Relaxed);
                record.asked_size.store(0, Ordering::Relaxed);
            }
            0 | libc::SS_ONSTACK if wanted.ss_size < LEAST => return -(libc::ENOMEM as isize),
            0 | libc::SS_ONSTACK => {
                record.asked_at.store(wanted.ss_sp as usize, Ordering::Relaxed);
                record.asked_size.store(wanted.ss_size, Ordering::Relaxed);
                // Handlers on it are interrupted by others before any fault has shown where they
                // stand.
                note_stack(wanted.ss_sp as usize);
            }
            _ => return -(libc::EINVAL as isize),
        }
    }
    if old != 0 && !poke(old, before) {
        return BAD_ADDRESS;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_ends_where_it_was_asked_to() {
        let record = threads::current();
        assert!(!is_on(record, 0x5000), "none was asked for");
        record.asked_at.store(0x4000, Ordering::Relaxed);
        record.asked_size.store(0x2000, Ordering::Relaxed);
        // An empty stack's pointer is one past its last byte.
        let on = [0x3fff, 0x4000, 0x5000, 0x6000, 0x6001].map(|sp| is_on(record, sp));
        record.asked_size.store(0, Ordering::Relaxed);
        assert_eq!(on, [false, true, true, true, false]);
    }
}
