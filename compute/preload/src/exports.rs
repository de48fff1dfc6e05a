//! libc functions interposed by name, where the patched sites do not reach; and what a debugger
//! calls.

use crate::call::{ALWAYS, Call, issue};
use crate::guard::peek::peek;
use crate::process::{pager, started};
use crate::{bound, dispatch, fork, hidden, near_stack, threads};
use farmem_protocol::addr::is_far;

fn result(ret: isize) -> isize {
    if (-4095..0).contains(&ret) {
        // SAFETY: the program's own call, on its thread: libc's errno of this thread.
        unsafe { *bound::find_errno()() = -ret as i32 };
        -1
    } else {
        ret
    }
}

extern "C" fn guarded(call: &mut Call) -> isize {
    dispatch::from_program(call)
}

/// A clone3 of the program's own.
struct Clone3 {
    call: Call,
    /// Its result. `None`: the call is still to be made.
    ret: Option<isize>,
    /// Bytes of its arguments that are pinned meanwhile.
    pinned: usize,
}

extern "C" fn decided(clone: &mut Clone3) {
    let call = clone.call;
    if fork::copies(&call) {
        clone.ret = Some(dispatch::from_program(&call));
    } else {
        clone.pinned = pager().pins.pin(call.args[0], call.args[1].min(MOST_ARGUMENTS), false);
        peek::<u64>(call.args[0]).iter().for_each(|&flags| fork::company_begins(flags as usize));
    }
}

/// The kernel takes no more than a page.
const MOST_ARGUMENTS: usize = 4096;

extern "C" fn made(clone: &mut Clone3) {
    pager().pins.unpin(clone.call.args[0], clone.pinned);
}

/// Decides on a near stack, because the caller's may be far and absent. But a clone that shares the
/// memory must not return through frames of ours, and is made from here.
fn clone3(call: Call) -> isize {
    let mut clone = Clone3 { call, ret: None, pinned: 0 };
    near_stack::call(decided, &mut clone);
    clone.ret.unwrap_or_else(|| {
        let ret = issue(&call);
        // Once, by the parent.
        if ret != 0 && clone.pinned > 0 {
            near_stack::call(made, &mut clone);
        }
        ret
    })
}

/// `syscall(2)`: the program's own raw calls.
///
/// # Safety
/// As libc's; unused arguments are whatever the registers held, as there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let mut call = Call { nr, args: [a, b, c, d, e, f], sp: near_stack::stack_pointer() };
    let always = || ALWAYS.contains(&nr) || dispatch::XATTRS.contains(&nr);
    let decides = |call: &Call| always() || call.args.iter().any(|&x| is_far(x)) || hidden::names(call);
    let decided = started() && decides(&call);
    result(match nr {
        libc::SYS_clone3 if started() => clone3(call),
        _ if decided => near_stack::result(guarded, &mut call),
        _ => issue(&call),
    })
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
    let here = pager().pins.pin(range.addr, range.len, false);
    pager().pins.unpin(range.addr, here);
    here as isize
}

/// Brings far memory in for a debugger: `far ADDRESS BYTES`, as docs/gdb.md defines it. The kernel
/// does not fault on a debugger's behalf, so that only resident pages can be printed.
///
/// Returns for how many bytes from the address this was done; pages stay at least until the program
/// runs on. Not more than fits in local memory at once.
#[unsafe(no_mangle)]
pub extern "C" fn farmem_fetch(addr: usize, len: usize) -> isize {
    if !started() { 0 } else { near_stack::result(fetch, &mut Range { addr, len }) }
}
