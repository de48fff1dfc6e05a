//! `sigaltstack` as the program sees it. The kernel keeps the runtime's near stack;
//! handlers that ask for the program's get it from [`super::deliver`].

use super::actions;
use super::deliver::deliver;
use super::frame::{MASK_AT, read};
use super::kernel::{KernelAction, set_action};
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::threads::{self, Record};
use farmem_protocol::addr::is_far;
use std::sync::atomic::{AtomicBool, Ordering};

const AUTODISARM: i32 = i32::MIN;
/// Beside the size of the alternate stack that the program asked for: while a handler is on it there
/// is none (`SS_AUTODISARM`).
pub const DISARMS: usize = 1 << 63;
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

/// Whether the program runs on the alternate stack that it asked for. (On one that disarms itself,
/// it is never known to.)
pub fn is_on(record: &Record, sp: usize) -> bool {
    let (at, size) = (record.asked_at.load(Ordering::Relaxed), record.asked_size.load(Ordering::Relaxed));
    size != 0 && size & DISARMS == 0 && sp.wrapping_sub(at) <= size
}

/// sigaltstack of the program's; `sp` is where it calls from.
pub fn sigaltstack(new: usize, old: usize, sp: usize) -> isize {
    let record = threads::current();
    let (at, size) = (record.asked_at.load(Ordering::Relaxed), record.asked_size.load(Ordering::Relaxed));
    let before = libc::stack_t {
        ss_sp: at as *mut _,
        ss_size: size & !DISARMS,
        ss_flags: match (size, is_on(record, sp)) {
            (0, _) => libc::SS_DISABLE,
            (_, true) => libc::SS_ONSTACK,
            (_, false) if size & DISARMS != 0 => AUTODISARM,
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
                let disarms = if wanted.ss_flags & AUTODISARM != 0 { DISARMS } else { 0 };
                record.asked_size.store(wanted.ss_size | disarms, Ordering::Relaxed);
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

/// Does what the kernel does where an alternate stack has no room for the frame of a signal: SIGSEGV
/// comes in the signal's place. It ends the process if it is blocked or has no handler, or if it was
/// SIGSEGV that had no room.
///
/// # Safety
/// `context` must be what the kernel gave to the handler that calls this, as its last act.
pub unsafe fn overflow(signal: i32, context: usize) -> ! {
    // SAFETY: a field of the kernel's ucontext.
    let blocked = unsafe { read(context + MASK_AT) } >> (libc::SIGSEGV - 1) & 1 != 0;
    if signal != libc::SIGSEGV && !blocked {
        let action = actions::take(libc::SIGSEGV);
        if action.is_function() {
            // SAFETY: zero is valid for it.
            let mut forced: libc::siginfo_t = unsafe { std::mem::zeroed() };
            (forced.si_signo, forced.si_code) = (libc::SIGSEGV, SI_KERNEL);
            // SAFETY: the caller's; the frame is as it was.
            unsafe { deliver(libc::SIGSEGV, &action, &raw const forced as usize, context) }
        }
    }
    set_action(libc::SIGSEGV, Some(&KernelAction::DEFAULT), None);
    // SAFETY: there is no such address, and the fault ends the process.
    unsafe { core::arch::asm!("movabs rax, 1 << 63", "mov al, [rax]", "ud2", options(noreturn)) }
}

/// A signal's code where the kernel itself has sent it.
const SI_KERNEL: i32 = 0x80;

/// A stack that has disarmed itself for a handler, beside the handler's frame, whose return arms it
/// again.
#[repr(C)]
pub struct Disarmed {
    at: usize,
    size: usize,
}

impl Disarmed {
    /// Disarms the thread's stack, if it is one of those.
    pub fn take(record: &Record) -> Option<Disarmed> {
        let (at, size) = (record.asked_at.load(Ordering::Relaxed), record.asked_size.load(Ordering::Relaxed));
        (size & DISARMS != 0).then(|| {
            record.asked_at.store(0, Ordering::Relaxed);
            record.asked_size.store(0, Ordering::Relaxed);
            Disarmed { at, size }
        })
    }

    /// Arms it again.
    pub fn put_back(&self, record: &Record) {
        record.asked_at.store(self.at, Ordering::Relaxed);
        record.asked_size.store(self.size, Ordering::Relaxed);
    }
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
        assert_eq!(on, [false, true, true, true, false]);
        record.asked_size.store(0x2000 | DISARMS, Ordering::Relaxed);
        assert!(!is_on(record, 0x5000), "one that disarms itself");
        let disarmed = Disarmed::take(record);
        assert!(Disarmed::take(record).is_none(), "it is disarmed");
        disarmed.inspect(|it| it.put_back(record));
        assert_eq!(record.asked_size.swap(0, Ordering::Relaxed), 0x2000 | DISARMS);
        assert_eq!(record.asked_at.load(Ordering::Relaxed), 0x4000);
    }
}
