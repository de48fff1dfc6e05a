//! Near alternate stacks of threads, and those of threads that have ended.

use farmem_sys::holdings::Lots;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Bytes of a thread's near alternate stack: frames of a fault (3 KiB with AVX-512), the pager's
/// depth, and trapped system calls with handlers nested in them.
pub const ALTERNATE_BYTES: usize = 128 << 10;
const _: () = assert!(size_of::<libc::stack_t>() == 24 && std::mem::offset_of!(libc::stack_t, ss_size) == 16);
/// Behind the alternate stack: where a signal frame that lies far is copied for the kernel to read.
pub const RETURN_BYTES: usize = 16 << 10;

/// New alternate stacks.
static STACKS: Lots = Lots::new(ALTERNATE_BYTES + RETURN_BYTES);
/// Those of threads that have ended: the page number of the last, and below it a count of changes,
/// which tells a stack that was taken and came back meanwhile. Never torn, so that a forked child
/// may use it.
static SPARE: AtomicU64 = AtomicU64::new(0);
const COUNT_BITS: u32 = 29;
/// Where a spare stack names the next: at its top, which is touched already.
const NEXT_SPARE: usize = ALTERNATE_BYTES - 64;

/// A spare stack and the count after another one, as [`SPARE`] has them.
fn after(seen: u64, at: usize) -> u64 {
    (at as u64 >> 12) << COUNT_BITS | seen.wrapping_add(1) & ((1 << COUNT_BITS) - 1)
}

fn spare(word: u64) -> usize {
    ((word >> COUNT_BITS) << 12) as usize
}

/// Keeps a near alternate stack for the next thread.
pub fn put(at: usize) {
    // SAFETY: a stack of ours that is nobody's; those that still look at its word take what they
    // see for a guess.
    let next = unsafe { AtomicUsize::from_ptr((at + NEXT_SPARE) as *mut usize) };
    let mut seen = SPARE.load(Ordering::Relaxed);
    loop {
        next.store(spare(seen), Ordering::Relaxed);
        let now = after(seen, at);
        // Release: with `take_spare`.
        match SPARE.compare_exchange_weak(seen, now, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => seen = other,
        }
    }
}

/// One of those, if there is any.
fn take_spare() -> Option<usize> {
    let mut seen = SPARE.load(Ordering::Acquire);
    loop {
        let at = spare(seen);
        if at == 0 {
            return None;
        }
        // SAFETY: never unmapped. If it is another's by now, the count has changed and the exchange
        // fails.
        let next = unsafe { AtomicUsize::from_ptr((at + NEXT_SPARE) as *mut usize) }.load(Ordering::Relaxed);
        let now = after(seen, next);
        match SPARE.compare_exchange_weak(seen, now, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => return Some(at),
            Err(other) => seen = other,
        }
    }
}

/// A stack for a thread: a spare one, else a new one, if there is memory for it.
pub fn take() -> Option<usize> {
    take_spare().or_else(|| STACKS.take().ok())
}
