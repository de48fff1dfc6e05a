//! libc functions interposed by name, where the patched sites do not reach; and what a debugger calls.

use crate::call::{ALWAYS, Call, issue};
use crate::process::{pager, started};
use crate::{fork, near, signals, threads};
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

extern "C" fn guarded(call: &mut Call) -> isize {
    signals::dispatch_from(call)
}

/// `syscall(2)`: the program's own raw calls.
///
/// # Safety
/// As libc's; unused arguments are whatever the registers held, as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let mut call = Call { nr, args: [a, b, c, d, e, f], sp: near::stack_pointer() };
    // Other clones by clone3 must not return through frames of ours.
    let decided = started()
        && match nr {
            libc::SYS_clone3 => fork::copies(&call),
            _ => call.args.iter().any(|&x| is_far(x)) || ALWAYS.contains(&nr),
        };
    result(if decided { near::result(guarded, &mut call) } else { issue(&call) })
}

/// `pthread_create(3)`: every thread needs a near alternate stack before it runs anything.
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut usize,
    attributes: *const libc::pthread_attr_t,
    routine: usize,
    argument: *mut libc::c_void,
) -> libc::c_int {
    // SAFETY: the caller's arguments, passed on.
    unsafe { threads::create::thread(thread, attributes, routine, argument) }
}

/// A range for [`fetch`].
struct Range {
    addr: usize,
    len: usize,
}

extern "C" fn fetch(range: &mut Range) -> isize {
    let here = pager().pin(range.addr, range.len, false);
    pager().unpin(range.addr, here);
    here as isize
}

/// Brings far memory in, for a debugger: `call (long) farmem_fetch(ADDRESS, BYTES)`. The kernel does
/// not fault on a debugger's behalf, so that only what is resident can be printed (docs/gdb.md).
///
/// Returns for how many bytes from the address this was done; pages stay at least until the program
/// runs on. Not more than fits in local memory at once.
#[unsafe(no_mangle)]
pub extern "C" fn farmem_fetch(addr: usize, len: usize) -> isize {
    if !started() { 0 } else { near::result(fetch, &mut Range { addr, len }) }
}
