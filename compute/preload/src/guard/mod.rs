//! The guard: before a system call, the far pages that it will use are pinned; after it, unpinned.
//!
//! [`table`] says which memory a call uses. Long transfers are made as one call where others could come
//! between two; else piece by piece ([`turn`]).

mod arity;
mod behind;
mod forced;
pub mod held;
mod streams;
mod table;
pub mod turn;
mod vectors;

pub use arity::{CALLS, arguments};

use crate::call::{Call, issue};
use crate::threads::notes::Note;
use farmem_pager::Pager;
use farmem_protocol::addr::{PAGE_BYTES, is_far};
use farmem_sys::raw::{SignalsBlocked, syscall};
use table::{Extent, Use};

const EFAULT: isize = -(libc::EFAULT as isize);

/// Ranges pinned for one call. The first ones need no allocation, so that the common call blocks
/// no signals.
pub struct Pins<'a> {
    pager: &'a Pager,
    few: [(usize, usize); 24],
    n: usize,
    more: Vec<(usize, usize)>,
    /// When nothing was pinned yet.
    losses: u64,
    note: Option<Note>,
}

impl<'a> Pins<'a> {
    /// None yet.
    pub fn new(pager: &'a Pager) -> Self {
        Pins { pager, few: [(0, 0); 24], n: 0, more: Vec::new(), losses: pager.losses(), note: None }
    }

    /// Pins the far part of a range; false when it is not all mapped.
    fn add(&mut self, addr: usize, len: usize, write: bool) -> bool {
        if len == 0 || !is_far(addr) {
            return true;
        }
        let got = self.pager.pin(addr, len, write);
        self.keep(addr, got);
        got == len
    }

    /// Pins what is ours of a far range, for an access that asks nobody for the right to it.
    fn add_forced(&mut self, addr: usize, len: usize, write: bool) {
        let end = addr.saturating_add(len);
        let mut at = addr;
        while at < end {
            let got = self.pager.pin_forced(at, end - at, write);
            self.keep(at, got);
            // Behind a mapping that is not ours there may be one that is; where nothing is mapped, the access ends.
            if got == end - at || !self.pager.covers(at + got, 1) {
                return;
            }
            at = ((at + got) | (PAGE_BYTES - 1)) + 1;
        }
    }

    /// What was pinned is to be unpinned.
    fn keep(&mut self, addr: usize, got: usize) {
        if got > 0 {
            if self.n < self.few.len() {
                self.few[self.n] = (addr, got);
                self.n += 1;
            } else {
                let _signals = SignalsBlocked::new();
                self.more.push((addr, got));
            }
        }
    }

    fn unpin(&self) {
        self.pager.unpin_since(self.few[..self.n].iter().chain(&self.more), self.losses);
    }

    /// Pins a NUL-terminated string, page by page; stops where it is not mapped.
    fn add_string(&mut self, addr: usize) {
        let mut at = addr;
        while is_far(at) && at - addr < 1 << 21 {
            let end = (at | (PAGE_BYTES - 1)) + 1;
            if !self.add(at, end - at, false) {
                return;
            }
            // SAFETY: pinned just now.
            let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, end - at) };
            if bytes.contains(&0) {
                return;
            }
            at = end;
        }
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        // Else this is a forked child, which has no pins.
        if self.note.is_none_or(|note| note.take()) {
            self.unpin();
        }
        if self.more.capacity() > 0 {
            let _signals = SignalsBlocked::new();
            self.more = Vec::new();
        }
    }
}

/// A copy of a `T` that the program points to, near or far; `None` where it points nowhere.
pub fn peek<T: Copy>(addr: usize) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    peek_into(addr, value.as_mut_ptr().cast(), size_of::<T>()).then(|| {
        // SAFETY: filled; T is plain data of the kernel's ABI.
        unsafe { value.assume_init() }
    })
}

/// Copies bytes that the program points to.
pub fn peek_into(addr: usize, to: *mut u8, len: usize) -> bool {
    if addr == 0 {
        return false;
    }
    let pager = crate::process::pager();
    let mut pins = Pins::new(pager);
    if !pins.add(addr, len, false) {
        return false;
    }
    if is_far(addr) {
        // SAFETY: pinned; `to` is the caller's.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, to, len) };
        return true;
    }
    // Near, and perhaps nowhere: the kernel tells.
    let local = libc::iovec { iov_base: to.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: len };
    // SAFETY: one live iovec each; the kernel checks the remote one.
    let got = unsafe {
        syscall(
            libc::SYS_process_vm_readv,
            [farmem_sys::raw::getpid() as usize, &local as *const _ as usize, 1, &remote as *const _ as usize, 1, 0],
        )
    };
    got == len as isize
}

/// Copies at most `most` bytes of a string that the program points to, without its NUL; only counts
/// them where `to` is null. `None` where the string leaves what is mapped before it ends.
pub fn peek_text(addr: usize, to: *mut u8, most: usize) -> Option<usize> {
    let mut len = 0;
    let mut part = [0u8; 512];
    while len < most {
        let at = addr + len;
        // Not across a page: the next may not be mapped.
        let n = (PAGE_BYTES - at % PAGE_BYTES).min(part.len()).min(most - len);
        if !peek_into(at, part.as_mut_ptr(), n) {
            return None;
        }
        let end = part[..n].iter().position(|&b| b == 0);
        let bytes = &part[..end.unwrap_or(n)];
        if !to.is_null() {
            // SAFETY: the caller's room of `most` bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.add(len), bytes.len()) };
        }
        len += bytes.len();
        if end.is_some() {
            break;
        }
    }
    Some(len)
}

/// Copies bytes to where the program points to. Near, and perhaps nowhere or not to be written: the kernel tells.
pub fn poke_from(addr: usize, from: &[u8]) -> bool {
    let mut pins = Pins::new(crate::process::pager());
    if is_far(addr) {
        let pinned = pins.add(addr, from.len(), true);
        if pinned {
            // SAFETY: pinned writable; the source is ours.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), addr as *mut u8, from.len()) };
        }
        return pinned;
    }
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: addr as *mut _, iov_len: from.len() };
    let at = |one: &libc::iovec| std::ptr::from_ref(one) as usize;
    let own = farmem_sys::raw::getpid() as usize;
    // SAFETY: one live iovec each; the kernel checks the remote one.
    unsafe { syscall(libc::SYS_process_vm_writev, [own, at(&local), 1, at(&remote), 1, 0]) == from.len() as isize }
}

/// Writes a `T` where the program points to.
pub fn poke<T: Copy>(addr: usize, value: T) -> bool {
    let mut pins = Pins::new(crate::process::pager());
    if !pins.add(addr, size_of::<T>(), true) {
        return false;
    }
    // SAFETY: pinned writable if far; if near, the program's own pointer, as it gave it to the kernel.
    unsafe { (addr as *mut T).write_unaligned(value) };
    true
}

/// Longest buffer that is pinned whatever it is for; of longer ones, the pieces.
const CHUNK: usize = 1 << 20;

/// Makes a call whose memory may be far.
pub fn call(pager: &'static Pager, call: &Call) -> isize {
    match call.nr {
        libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
            if is_far(call.args[3]) =>
        {
            forced::transfer(pager, call)
        }
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64
            if is_far(call.args[1]) && call.args[2] > CHUNK =>
        {
            long(pager, call)
        }
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2 => vectors::transfer(pager, call),
        libc::SYS_sendto | libc::SYS_recvfrom => streams::transfer(pager, call),
        libc::SYS_sendmsg | libc::SYS_recvmsg => streams::message(pager, call),
        libc::SYS_getrandom if is_far(call.args[0]) && call.args[1] > CHUNK => random(pager, call),
        _ => whole(pager, call),
    }
}

fn whole(pager: &'static Pager, call: &Call) -> isize {
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
    issue(call)
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
            while pins.add(at, 8, false) {
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
    }
}

/// The vectors' far bytes, as far as they come to no more than `most`; how much all come to, 0 if none is far. `None` where they
/// cannot be read, or lead where no program has memory: the kernel refuses them.
fn pin_vectors(pins: &mut Pins<'_>, addr: usize, count: usize, write: bool, most: usize) -> Option<usize> {
    let (mut total, mut far, mut good) = (0usize, false, true);
    let read = vectors::each(addr, count, |vector| {
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

/// A message and what it points to, but of vectors that come to more than `most`; and what it says, and the bytes of its
/// vectors, 0 if none is far. `None` where it cannot be read, which the kernel is to say.
fn pin_message(pins: &mut Pins<'_>, addr: usize, write: bool, most: usize) -> Option<(libc::msghdr, usize)> {
    pins.add(addr, size_of::<libc::msghdr>(), true);
    let message = peek::<libc::msghdr>(addr)?;
    pins.add(message.msg_name as usize, message.msg_namelen as usize, write);
    pins.add(message.msg_control as usize, message.msg_controllen, write);
    let count = message.msg_iovlen.min(vectors::MANY);
    pins.add(message.msg_iov as usize, count * size_of::<libc::iovec>(), false);
    let bytes = pin_vectors(pins, message.msg_iov as usize, count, write, most)?;
    (count == message.msg_iovlen).then_some((message, bytes))
}

/// Where addresses of programs end.
pub const USER_END: usize = 0x7fff_ffff_f000;
/// The most that one call transfers (the kernel's MAX_RW_COUNT).
const MOST: usize = 0x7fff_f000;

/// read, write and their kin with a long far buffer: as one call, or piece by piece until something is short.
///
/// Reading from a pipe or a socket does not go on: the next piece could wait for what one call would not have waited
/// for. It takes what is there, as one call would: who is told of what comes by its edges waits for the next after a short one.
fn long(pager: &'static Pager, call: &Call) -> isize {
    let (fd, addr, len) = (call.args[0], call.args[1], call.args[2]);
    if addr.checked_add(len).is_none_or(|end| end > USER_END) {
        // Refused whatever else is right.
        return issue(call);
    }
    let len = len.min(MOST);
    let writes = matches!(call.nr, libc::SYS_write | libc::SYS_pwrite64);
    let positioned = matches!(call.nr, libc::SYS_pread64 | libc::SYS_pwrite64);
    let how = turn::how(pager, fd, writes, positioned);
    if writes && let Some(mut one) = turn::one(pager, call, how, len, 1) {
        one.pin(addr, len);
        return issue(call);
    }
    pieces(len, how.piece, how.goes_on, |done, bytes| {
        let mut piece = *call;
        piece.args[1] += done;
        piece.args[2] = bytes;
        if positioned {
            piece.args[3] += done;
        }
        whole(pager, &piece)
    })
}

/// getrandom with a long far buffer: bytes without an order.
fn random(pager: &'static Pager, call: &Call) -> isize {
    let (addr, len) = (call.args[0], call.args[1].min(MOST));
    if addr.checked_add(len).is_none_or(|end| end > USER_END) {
        return issue(call);
    }
    pieces(len, CHUNK, true, |done, bytes| {
        let mut piece = *call;
        (piece.args[0], piece.args[1]) = (addr + done, bytes);
        whole(pager, &piece)
    })
}

/// Makes pieces of a transfer of `len` bytes, of `most` each, until one is short or fails, or after the first; what they came
/// to, or the first one's error. `piece` is told what is done and how much comes next.
fn pieces(len: usize, most: usize, goes_on: bool, mut piece: impl FnMut(usize, usize) -> isize) -> isize {
    let mut done = 0;
    while done < len {
        let wanted = (len - done).min(most);
        let got = piece(done, wanted);
        if got < 0 {
            return if done > 0 { done as isize } else { got };
        }
        done += got as usize;
        if got as usize != wanted || !goes_on {
            break;
        }
    }
    done as isize
}

/// The error for a pointer that leads nowhere.
pub const BAD_ADDRESS: isize = EFAULT;
