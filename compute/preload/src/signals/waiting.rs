//! Calls that wait with a mask of their own: `sigsuspend`, `ppoll`, `pselect`, `epoll_pwait`.
//!
//! The kernel gets that mask without the runtime's two signals. Of these the program must see what
//! the mask says, for exactly as long as the kernel waits with it:
//!
//! * One that the mask lets in may be kept already, or be kept right before the call. The last look
//!   at what is kept and the call are one piece ([`blocked::wait_by`]). A kept signal is
//!   sent to the thread while all is blocked. So the kernel delivers it in the wait, or leaves it
//!   pending if the call has something else to return.
//! * One that comes in the wait, and that the mask holds back, is kept. It has ended the call, which
//!   is made again. So is one that has ended without a handler of the program's, while the mask lets
//!   one in: another thread may have taken it, and send it on.

use super::blocked;
use super::frame::{R10_AT, RAX_AT, RDI_AT, REGISTERS_AT, RIP_AT, read};
use super::kernel::OURS;
use super::{actions, masks, open};
use crate::call::{Call, issue};
use crate::gate::AFTER_PROGRAM;
use crate::guard;
use crate::guard::peek::{BAD_ADDRESS, peek};
use crate::process::pager;
use crate::threads::{self, Record};
use farmem_sys::clock;
use std::sync::atomic::{AtomicUsize, Ordering};

const EINTR: isize = -(libc::EINTR as isize);
/// No mask. A mask is noted as its complement. The complement is never 0, because the kernel never
/// blocks SIGKILL. So a fresh record is zeros, and the table of records needs no room in the
/// library's file.
const NONE: usize = 0;

/// A thread's wait.
pub struct Wait {
    /// The argument of a call that waits with a mask of its own (0: none, or a handler has begun in
    /// it).
    at: AtomicUsize,
    /// That mask, as the program gave it.
    mask: AtomicUsize,
    /// The complement of the kernel's mask before the call, where all was blocked for it. Else
    /// [`NONE`]: the signal's frame has it.
    before: AtomicUsize,
    /// Non-zero: a signal has ended the call, and is kept.
    kept: AtomicUsize,
}

impl Wait {
    /// None.
    pub const fn new() -> Wait {
        const fn of(value: usize) -> AtomicUsize {
            AtomicUsize::new(value)
        }
        Wait { at: of(0), mask: of(0), before: of(NONE), kept: of(0) }
    }

    /// Notes none. Returns what was noted.
    fn take(&self) -> [usize; 3] {
        let was = [&self.at, &self.mask, &self.before].map(|field| field.load(Ordering::Relaxed));
        self.at.store(0, Ordering::Relaxed);
        was
    }

    fn put(&self, [at, mask, before]: [usize; 3]) {
        self.at.store(0, Ordering::Relaxed);
        self.mask.store(mask, Ordering::Relaxed);
        self.before.store(before, Ordering::Relaxed);
        // Release: a handler, or another thread, that sees the wait sees its mask.
        self.at.store(at, Ordering::Release);
    }

    /// In a record that another thread gets.
    pub fn forget(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    /// Whether the wait's mask, as far as it is known, holds back a signal, given as a bit.
    pub fn holds_back(&self, bit: usize) -> bool {
        self.at.load(Ordering::Acquire) != 0 && self.mask.load(Ordering::Relaxed) & bit != 0
    }

    /// For the handler of a signal that is kept: the call that it has ended is made again.
    pub fn note_kept(&self) {
        self.kept.store(1, Ordering::Relaxed);
    }
}

/// Which argument of a call is a mask that holds while it waits, if it has one.
fn mask_of(nr: i64) -> Option<usize> {
    Some(match nr {
        libc::SYS_rt_sigsuspend => 0,
        libc::SYS_ppoll => 3,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
        libc::SYS_pselect6 => 5,
        _ => return None,
    })
}

/// pselect's mask comes in a structure.
#[repr(C)]
#[derive(Clone, Copy)]
struct SizedMask {
    at: usize,
    size: usize,
}

/// Makes such a call, with a copy of the mask without the runtime's signals.
pub fn waiting(call: &Call) -> isize {
    let mut changed = *call;
    let Some(arg) = mask_of(call.nr).filter(|&arg| call.args[arg] != 0) else {
        return guard::call(pager(), call);
    };
    let set: u64;
    let mut mask: u64;
    let sized;
    if call.nr == libc::SYS_pselect6 {
        let Some(given) = peek::<SizedMask>(call.args[arg]) else { return BAD_ADDRESS };
        if given.at == 0 {
            return guard::call(pager(), call);
        }
        let Some(given_set) = peek::<u64>(given.at) else { return BAD_ADDRESS };
        set = given_set;
        mask = set & !OURS;
        sized = SizedMask { at: &raw mut mask as usize, size: given.size };
        changed.args[arg] = &raw const sized as usize;
    } else {
        let Some(given_set) = peek::<u64>(call.args[arg]) else { return BAD_ADDRESS };
        set = given_set;
        mask = set & !OURS;
        changed.args[arg] = &raw mut mask as usize;
    }
    // A handler may come before the call is made, and may wait as well. It restores the values here
    // when it returns.
    let record = threads::current();
    let outer = record.wait.take();
    record.wait.put([changed.args[arg], set as usize, NONE]);
    let result = if changed.args.iter().any(|&a| farmem_protocol::addr::is_far(a)) {
        guard::made_by(pager(), &changed, |call| wait(record, call, set))
    } else {
        wait(record, &changed, set)
    };
    record.wait.put(outer);
    record.awaits.store(0, Ordering::SeqCst);
    // Signals that the mask has held back, and that the thread's own mask does not.
    blocked::send_kept(record.hidden.load(Ordering::Relaxed) as u64);
    result
}

/// The call, whose memory is there.
fn wait(record: &Record, call: &Call, set: u64) -> isize {
    let begun = clock::ticks();
    let mut again = *call;
    let mut left = [0i64; 2];
    loop {
        record.wait.kept.store(0, Ordering::Relaxed);
        let lets_in = record.hidden.load(Ordering::Relaxed) & (OURS & !set) as usize;
        let came = match lets_in {
            0 => Some(issue(&again)),
            _ => blocked::wait_by(record, lets_in, &again).or_else(|| with_kept(record, lets_in, &again)),
        };
        // No handler of the program's has ended it: a signal that did is kept, or comes again,
        // because another thread took it from the kernel. One that the kernel calls past the
        // runtime says nothing: then it has.
        let goes_on = || {
            record.wait.at.load(Ordering::Relaxed) != 0
                && (record.wait.kept.load(Ordering::Relaxed) != 0 || lets_in != 0 && !actions::has_foreign())
        };
        // `None`: what was kept is ignored, or a handler came before the call.
        if let Some(result) = came
            && (result != EINTR || !goes_on())
        {
            return result;
        }
        again.args[3] = time_left(call, clock::ns(clock::ticks() - begun), &mut left);
    }
}

/// The argument by which a call that is made again waits no longer than it was to. (The kernel
/// counts the other calls' times down.)
fn time_left(call: &Call, gone: u64, left: &mut [i64; 2]) -> usize {
    const SECOND: i64 = 1_000_000_000;
    let given = call.args[3];
    match call.nr {
        libc::SYS_epoll_pwait if given as i32 > 0 => (given as i32 as u64).saturating_sub(gone / 1_000_000) as usize,
        libc::SYS_epoll_pwait2 if given != 0 => {
            let Some([s, ns]) = peek::<[i64; 2]>(given).filter(|&[s, ns]| s >= 0 && (0..SECOND).contains(&ns)) else {
                return given;
            };
            let rest = (i128::from(s) * i128::from(SECOND) + i128::from(ns) - i128::from(gone)).max(0);
            *left = [(rest / i128::from(SECOND)) as i64, (rest % i128::from(SECOND)) as i64];
            left.as_ptr() as usize
        }
        _ => given,
    }
}

/// Makes the call with what is kept, of what its mask lets in, pending. `None`: nothing is.
fn with_kept(record: &Record, lets_in: usize, call: &Call) -> Option<isize> {
    let before = masks::change(libc::SIG_SETMASK, u64::MAX);
    let mut due = [None; 2];
    for (place, kept) in due.iter_mut().zip(std::iter::from_fn(|| blocked::take(record, lets_in))) {
        // One that is ignored ends no wait.
        *place = (actions::kept(kept.0).handler != libc::SIG_IGN).then_some(kept);
    }
    for (signal, info) in due.iter().flatten() {
        open::send(*signal, info);
    }
    record.wait.before.store(!before as usize, Ordering::Relaxed);
    let result = due.iter().any(Option::is_some).then(|| issue(call));
    record.wait.before.store(NONE, Ordering::Relaxed);
    if result.is_none() || record.wait.at.load(Ordering::Relaxed) != 0 {
        // No handler has begun in it: its frame would have had the mask. Signals of ours that are
        // still pending come now, and are kept again.
        masks::change(libc::SIG_SETMASK, before);
    }
    result
}

/// Whether this ucontext is of a call that waited with a mask of its own, and that this signal has
/// ended before any handler of the program's began in it.
///
/// # Safety
/// It must be the kernel's, of a handler of the calling thread.
pub unsafe fn has_ended(record: &Record, context: usize) -> bool {
    let at = record.wait.at.load(Ordering::Acquire);
    // SAFETY: the kernel's frame, by the caller's word.
    let word = |offset: usize| unsafe { read(context + offset) };
    let ended = at != 0 && word(RIP_AT) == AFTER_PROGRAM && word(RAX_AT) as isize == EINTR;
    // By the argument it is that call, and no other that a handler made before it or has left by a
    // leap.
    let arguments = [RDI_AT, R10_AT, REGISTERS_AT, REGISTERS_AT + 8];
    ended && arguments.iter().any(|&register| word(register) == at)
}

/// Which of the runtime's signals the program has blocked where this signal came.
///
/// # Safety
/// As [`has_ended`].
pub unsafe fn hidden(record: &Record, context: usize) -> usize {
    // SAFETY: the caller's.
    match unsafe { has_ended(record, context) } {
        true => record.wait.mask.load(Ordering::Relaxed) & OURS as usize,
        false => record.hidden.load(Ordering::Relaxed),
    }
}

/// The masks of a handler that begins in a wait. Only the first one does.
pub struct Begun {
    /// The wait's.
    pub within: u64,
    /// The kernel's from before it, if not the frame's.
    pub before: Option<u64>,
}

/// If a handler of the program's begins in a wait: with which masks. All signals are blocked.
///
/// # Safety
/// As [`has_ended`].
pub unsafe fn begin(record: &Record, context: usize) -> Option<Begun> {
    // SAFETY: the caller's.
    if !unsafe { has_ended(record, context) } {
        return None;
    }
    record.wait.at.store(0, Ordering::Relaxed);
    let before = record.wait.before.load(Ordering::Relaxed);
    let within = record.wait.mask.load(Ordering::Relaxed) as u64;
    Some(Begun { within, before: (before != NONE).then_some(!before as u64) })
}

#[cfg(test)]
mod tests {
    use crate::threads::RECORDS_OF_THREADS;

    /// If one byte of a fresh record were not zero, the library would be longer by the whole table.
    #[test]
    fn fresh_records_take_no_room_in_the_librarys_file() {
        let middle = RECORDS_OF_THREADS.as_ptr() as usize + size_of_val(&RECORDS_OF_THREADS) / 2;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &&str| {
            let mut ends = line.split([' ', '-']).map(|end| usize::from_str_radix(end, 16).unwrap());
            (ends.next().unwrap()..ends.next().unwrap()).contains(&middle)
        };
        let line = maps.lines().find(holds).unwrap();
        assert!(!line.contains('/'), "{line}");
    }
}
