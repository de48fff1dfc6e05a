//! libc's own system calls, hooked where they are made.
//!
//! Interposing `mmap` by name misses the calls that libc makes itself: malloc's
//! among them. But nearly all of libc's `syscall` instructions (436 of 526 in
//! glibc 2.36) directly follow the `mov $NR,%eax` that loads the number:
//!
//! ```text
//! b8 NN NN 00 00   mov $NR,%eax      becomes   e9 rr rr rr rr   jmp stub
//! 0f 05            syscall                     0f 05            (still here for whoever jumps to it)
//! ```
//!
//! Most of the others (futexes, masks, `read`) are followed by the comparison
//! that makes errno of the result:
//!
//! ```text
//! 0f 05                syscall                  e9 rr rr rr rr   jmp stub, which repeats the comparison
//! 48 3d 00 f0 ff ff    cmp $-4096,%rax          f0 ff ff
//! ```
//!
//! which is patched unless some branch in libc goes to the comparison. And where a `lea` of seven
//! bytes lies between the load of the number and the instruction (the masks of pthread_create and
//! of a thread's start), it is repeated in the stub, unless some branch goes behind the load. The
//! instruction boundary before a `mov` cannot be mistaken except after a REX prefix (`41 b8` is
//! `mov r8d`), which is checked.
//!
//! The end of a thread is a loop without end, which is replaced whole:
//!
//! ```text
//! 31 ff            xor edi,edi              e9 rr rr rr rr   jmp stub, which repeats the first two
//! 89 d0            mov eax,edx
//! 0f 05            syscall                  05
//! eb f8            jmp to the first         eb f8
//! ```
//!
//! The remaining sites, some thirty, are given to the filter by address ([`crate::net`]). That is
//! slower, and complete for every libc.
//!
//! The stub leaves the red zone alone, keeps all registers that a system call
//! keeps, and does the call itself unless an argument is far or the number was given
//! to [`dispatches`] (a few ns). Far arguments of code elsewhere are caught by [`crate::net`] too.
//!
//! Rejected: rewriting `syscall` itself to `call *%rax` (needs page 0, root),
//! system call user dispatch (every call becomes a signal), a disassembler.
//!
//! * [`text`]: where they are.
//! * [`mod@patch`]: the instructions that replace them.
//! * [`entry`]: the code that a stub calls.
//! * [`mod@own`]: a program's own calls, where Free Pascal made it.
//! * [`mod@standing`]: where libc stands meanwhile, for signals that come in a call.

mod entry;
mod own;
mod patch;
mod standing;
mod text;

pub use entry::dispatches;
pub use own::patch_own;
pub use patch::{counts_vforks, patch, reserve_stubs, sees_clones};
pub(crate) use patch::{near, rel};
pub use standing::{Standing, is_runtimes, standing};
pub(crate) use text::instructions;
