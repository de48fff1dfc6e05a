//! A call made as it stands: all that [`table`] says of it pinned.

use super::array::{MANY, each};
use super::behind;
use super::nested;
use super::peek::peek;
use super::pins::{MOST, Pins, USER_END};
use super::table::{self, Extent, Use};
use crate::call::{Call, issue};
use farmem_pager::Pager;
use farmem_protocol::addr::{PAGE_BYTES, is_far};

/// Makes it.
pub fn whole(pager: &'static Pager, call: &Call) -> isize {
    made_by(pager, call, issue)
}

/// [`whole`], made by a function.
pub fn made_by(pager: &'static Pager, call: &Call, make: impl FnOnce(&Call) -> isize) -> isize {
    let mut pins = Pins::new(pager);
    let known = table::uses(call.nr);
    if known.is_none() {
        pager.count_unknown_syscall();
        for &arg in &call.args {
            pins.add(arg, PAGE_BYTES - arg % PAGE_BYTES, true);
        }
    }
    for one in known.unwrap_or_default() {
        pin_use(&mut pins, call, one);
    }
    pins.note(call);
    make(call)
}

fn pin_use(pins: &mut Pins<'_>, call: &Call, one: &Use) {
    let addr = call.args[one.arg];
    if addr == 0 {
        return;
    }
    match one.extent {
        Extent::Bytes(n) => {
            pins.add(addr, n, one.write);
        }
        // Of a call that means another thing by its arguments: an address (keyctl's searches).
        Extent::Arg(i) if is_far(call.args[i]) => {}
        Extent::Arg(i) => {
            pins.add(addr, call.args[i].min(1 << 40), one.write);
        }
        Extent::Times(i, n) => {
            pins.add(addr, call.args[i].saturating_mul(n).min(1 << 40), one.write);
        }
        Extent::Bits(i) => {
            pins.add(addr, call.args[i].div_ceil(64).saturating_mul(8).min(1 << 20), one.write);
        }
        Extent::Text => pins.add_string(addr),
        Extent::LenAt(i) => {
            let len = peek::<u32>(call.args[i]).unwrap_or(0) as usize;
            pins.add(addr, len, one.write);
        }
        Extent::ValueAt(i) => {
            let filter = call.args[1] == libc::SOL_SOCKET as usize && call.args[2] == libc::SO_GET_FILTER as usize;
            let each = if filter { size_of::<libc::sock_filter>() } else { 1 };
            let len = peek::<u32>(call.args[i]).unwrap_or(0) as usize;
            pins.add(addr, len * each, one.write);
        }
        Extent::Vectors(i) => {
            let count = call.args[i].min(1024);
            pins.add(addr, count * size_of::<libc::iovec>(), false);
            pin_vectors(pins, addr, count, one.write, usize::MAX);
        }
        Extent::Message => drop(pin_message(pins, addr, one.write, usize::MAX)),
        Extent::Messages(i) => {
            let count = call.args[i].min(1024);
            pins.add(addr, count * size_of::<libc::mmsghdr>(), true);
            for n in 0..count {
                pin_message(pins, addr + n * size_of::<libc::mmsghdr>(), one.write, usize::MAX);
            }
        }
        Extent::Strings => {
            let mut at = addr;
            loop {
                pins.add(at, 8, false);
                match peek::<usize>(at) {
                    Some(0) | None => break,
                    Some(text) => pins.add_string(text),
                }
                at += 8;
            }
        }
        Extent::Typed(i) => {
            pins.add(addr, call.args[i].saturating_add(size_of::<usize>()).min(1 << 40), one.write);
        }
        Extent::Semaphores => behind::semaphores(pins, call, addr),
        Extent::Waiters(i) => behind::waiters(pins, addr, call.args[i]),
        Extent::Pair => behind::waiters(pins, addr, 2),
        Extent::Ioctl => behind::ioctl(pins, call.args[1], addr),
        Extent::Ptrace => behind::ptrace(pins, call, addr),
        Extent::Filter => behind::filter(pins, call, addr),
        Extent::Prctl => behind::prctl(pins, call, addr),
        Extent::Bpf => nested::bpf(pins, call, addr),
        Extent::Keys => nested::keys(pins, call, addr),
        Extent::Option => nested::option(pins, call, addr),
    }
}

/// The vectors' far bytes, as far as they come to no more than `most`; how much all come to, 0 if
/// none is far. `None` where they cannot be read, or lead where no program has memory: the kernel
/// refuses them.
fn pin_vectors(pins: &mut Pins<'_>, addr: usize, count: usize, write: bool, most: usize) -> Option<usize> {
    let (mut total, mut far, mut good) = (0usize, false, true);
    let read = each(addr, count, |vector| {
        let end = (vector.iov_base as usize).checked_add(vector.iov_len.min(MOST));
        good &= end.is_some_and(|end| end <= USER_END);
        total = total.saturating_add(vector.iov_len);
        far |= is_far(vector.iov_base as usize) && vector.iov_len > 0;
        if total <= most {
            pins.add(vector.iov_base as usize, vector.iov_len.min(1 << 40), write);
        }
    });
    (read && good).then_some(if far { total } else { 0 })
}

/// A message and what it points to, but of vectors that come to more than `most`; and what it says,
/// and the bytes of its vectors, 0 if none is far. `None` where it cannot be read, which the kernel
/// is to say.
pub fn pin_message(pins: &mut Pins<'_>, addr: usize, write: bool, most: usize) -> Option<(libc::msghdr, usize)> {
    pins.add(addr, size_of::<libc::msghdr>(), true);
    let message = peek::<libc::msghdr>(addr)?;
    pins.add(message.msg_name as usize, message.msg_namelen as usize, write);
    pins.add(message.msg_control as usize, message.msg_controllen, write);
    let count = message.msg_iovlen.min(MANY);
    pins.add(message.msg_iov as usize, count * size_of::<libc::iovec>(), false);
    let bytes = pin_vectors(pins, message.msg_iov as usize, count, write, most)?;
    (count == message.msg_iovlen).then_some((message, bytes))
}
