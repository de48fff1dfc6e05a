//! libc functions interposed by name, where the patched sites do not reach.

use crate::dispatch::{Call, dispatch, issue};
use crate::start::started;
use farmem_protocol::addr::is_far;

fn result(ret: isize) -> isize {
    if (-4095..0).contains(&ret) {
        // SAFETY: libc's own errno of this thread.
        unsafe { *libc::__errno_location() = -ret as i32 };
        -1
    } else {
        ret
    }
}

/// `syscall(2)`: the program's own raw calls.
///
/// # Safety
/// As libc's; unused arguments are whatever the registers held, as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let call = Call { nr, args: [a, b, c, d, e, f] };
    let plain = !started() || !call.args.iter().any(|&x| is_far(x)) && !crate::dispatch::ALWAYS.contains(&nr);
    result(if plain { issue(&call) } else { dispatch(&call) })
}

/// `sigaction(3)`: its system call in libc is not among the patched.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: the caller's pointers, passed on.
    unsafe { crate::signals::sigaction(signal, new, old) }
}

/// `signal(3)`, BSD semantics, as glibc has it.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signal: i32, handler: usize) -> usize {
    // SAFETY: live structures of ours; the handler is the program's.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        let mut old: libc::sigaction = std::mem::zeroed();
        if crate::signals::sigaction(signal, &new, &mut old) == 0 { old.sa_sigaction } else { libc::SIG_ERR }
    }
}
