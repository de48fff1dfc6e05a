//! A call of libc's that a signal interrupts, as the handler sees it.
//!
//! Natively the interrupted registers are libc's, at its `syscall` instruction. Here that
//! instruction is the runtime's, behind code that nobody can unwind: a cancelled thread would end
//! without its cleanups and its destructors, which glibc runs by unwinding from the handler of its
//! signal, and its locks stay locked. So the frame that the handler gets stands where libc does
//! ([`sites::standing`]).
//!
//! ```text
//! interrupted                        handlers see              and return to
//! stub, quick way, before the call   libc, before its call     the same
//! stub, quick way, behind the call   libc, behind it           the same, or where it was (a comparison is left)
//! slow way, the runtime: libc's own  libc, behind the call     where it was
//!                        the others' what is                   the same
//! ```
//!
//! On the slow way libc's handler alone, of the signal that cancels: it goes to the thread's end or
//! back. Another may keep a copy of the registers and go on with it later (threads of a program's
//! own that are switched by a timer): behind a call that was not made yet, or whose result nobody
//! knows.
//!
//! Where a handler is to return to what it did not see, the frame has the registers beside it
//! ([`Beside`]), and returns by [`super::deliver`]'s `farmem_leave_call`. A handler that has set
//! another place goes there, as natively. One that never returns leaves a call on the slow way as
//! by a jump.
//!
//! SIGSYS sees what is: those who trap their own calls compare the place with the one in the
//! signal's information.

use super::frame::{FLAGS_AT, R12_AT, R13_AT, R14_AT, R15_AT, RAX_AT, RBP_AT, RBX_AT, RIP_AT, RSP_AT, read};
use super::kernel::CANCEL;
use crate::sites::{self, Standing};
use crate::threads::Record;
use std::sync::atomic::Ordering;

/// Where the registers of [`Beside::registers`] lie.
const REGISTERS: [usize; 8] = [RIP_AT, RSP_AT, RBP_AT, RBX_AT, R12_AT, R13_AT, R14_AT, R15_AT];
/// Flags that a comparison sets.
const ARITHMETIC: usize = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x800;

/// Beside a frame: how it is put back.
#[repr(C)]
pub struct Beside {
    /// rip and rsp as the handler sees them.
    shown: [usize; 2],
    /// As they were.
    registers: [usize; 8],
    /// [`Record::site`], which is none while the handler runs.
    site: usize,
    /// Those of arithmetic are put back: the runtime may have been between a comparison and its
    /// branch.
    flags: usize,
    /// Whether the handler is the one that cancels the thread.
    cancels: bool,
}

/// The state that a handler is to see.
pub struct View {
    shown: Option<Standing>,
    back: bool,
    /// By libc's handler, which unwinds the thread to its end or returns.
    cancels: bool,
}

impl View {
    /// The frame as the kernel has written it, to which the handler returns.
    pub const PLAIN: View = View { shown: None, back: false, cancels: false };

    /// Of an interrupted ucontext; `below`: the program's stack pointer.
    ///
    /// # Safety
    /// The kernel's frame, of a handler of the calling thread.
    pub unsafe fn of(record: &Record, context: usize, signal: i32, below: usize) -> View {
        // SAFETY: the caller's.
        let at = unsafe {
            let (rip, rsp, rbp) = (read(context + RIP_AT), read(context + RSP_AT), read(context + RBP_AT));
            sites::standing(record, rip, rsp, rbp, below)
        };
        match at {
            None => View::PLAIN,
            // Another thread that shares the record could have named another call there.
            Some(at) if signal != libc::SIGSYS && (at.exact || signal == CANCEL && record.is_of_caller()) => {
                View { shown: Some(at), back: !at.same, cancels: signal == CANCEL && !at.exact }
            }
            Some(at) => View { back: !at.exact, ..View::PLAIN },
        }
    }

    /// The room that the frame needs beside it.
    pub fn beside(&self) -> usize {
        if self.back { size_of::<Beside>() } else { 0 }
    }

    /// Changes the copy of the frame that the handler gets, and keeps what it was. The program's
    /// signals are blocked.
    ///
    /// # Safety
    /// `context` must be that copy's, and `beside` as many bytes of the handler's stack as asked
    /// for.
    pub unsafe fn apply(&self, record: &Record, context: usize, beside: usize) {
        let word = |at: usize| (context + at) as *mut usize;
        // SAFETY: the caller's.
        unsafe {
            let registers = REGISTERS.map(|at| read(context + at));
            let flags = read(context + FLAGS_AT);
            if let Some(at) = &self.shown {
                word(RIP_AT).write(at.rip);
                word(RSP_AT).write(at.rsp);
                word(RBP_AT).write(at.rbp);
                for (register, value) in REGISTERS[3..].iter().zip(at.registers.iter().flatten()) {
                    word(*register).write(*value);
                }
                if at.compared != 0 {
                    let compared = compared(read(context + RAX_AT), at.compared);
                    word(FLAGS_AT).write(flags & !ARITHMETIC | compared & ARITHMETIC);
                }
            }
            if self.back {
                let shown = [read(context + RIP_AT), read(context + RSP_AT)];
                let site = record.site.swap(0, Ordering::Relaxed);
                if self.cancels {
                    record.cancelled_at.store(registers[1], Ordering::Relaxed);
                }
                (beside as *mut Beside).write(Beside { shown, registers, site, flags, cancels: self.cancels });
            }
        }
    }
}

/// The flags of a comparison of a result with the first error.
fn compared(result: usize, bits: u32) -> usize {
    let flags: usize;
    // SAFETY: arithmetic; what is pushed is popped.
    unsafe {
        match bits {
            32 => core::arch::asm!("cmp {0:e}, -4096", "pushfq", "pop {1}", in(reg) result, out(reg) flags),
            _ => core::arch::asm!("cmp {0}, -4096", "pushfq", "pop {1}", in(reg) result, out(reg) flags),
        }
    }
    flags
}

/// The handler returns: its frame, of which `context` is a copy's, is as it was, unless it has
/// another place now. All signals are blocked.
///
/// # Safety
/// `beside` must be what [`View::apply`] has left there.
pub unsafe fn put_back(record: &Record, context: usize, beside: usize) {
    // SAFETY: the caller's.
    unsafe {
        let beside = &*(beside as *const Beside);
        if beside.cancels {
            record.cancelled_at.store(0, Ordering::Relaxed);
        }
        if beside.shown != [read(context + RIP_AT), read(context + RSP_AT)] {
            return;
        }
        for (at, value) in REGISTERS.iter().zip(beside.registers) {
            ((context + at) as *mut usize).write(value);
        }
        let flags = read(context + FLAGS_AT) & !ARITHMETIC | beside.flags & ARITHMETIC;
        ((context + FLAGS_AT) as *mut usize).write(flags);
        record.site.store(beside.site, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_tells_errors_from_results() {
        // `ja`: neither carry nor zero.
        let fails = |result: isize, bits| compared(result as usize, bits) & 0x41 == 0;
        for bits in [32, 64] {
            assert_eq!([-4096, -4095, -1, 0, 7].map(|result| fails(result, bits)), [false, true, true, false, false]);
        }
    }
}
