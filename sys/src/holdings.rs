//! The memory that a runtime holds for itself inside somebody else's process, and how much of that
//! is resident.
//!
//! Mappings are entered here as they are made; the kernel says which of their
//! pages are present. So what was reserved and never touched costs nothing in the
//! account either. Sparse tables of gigabytes are not entered: to ask about them
//! takes longer than to keep count of what was touched.

use crate::memory;
use crate::raw::{Errno, checked};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Mappings at once; those beyond are counted whole.
const ENTRIES: usize = 4096;
/// Pages asked about in one call.
const ASKED: usize = 1024;

struct Entry {
    /// 0: free. Set last, cleared first, so that an entry in use is whole.
    at: AtomicUsize,
    len: AtomicUsize,
}

static HELD: [Entry; ENTRIES] = [const { Entry { at: AtomicUsize::new(0), len: AtomicUsize::new(0) } }; ENTRIES];
static BEYOND: AtomicUsize = AtomicUsize::new(0);
/// Claims an entry before its address is known to readers.
const CLAIMED: usize = 1;

/// As [`memory::reserve`], entered.
pub fn reserve(len: usize) -> Result<*mut u8, Errno> {
    let at = memory::reserve(len)?;
    enter(at as usize, len);
    Ok(at)
}

/// Enters a mapping.
pub fn enter(at: usize, len: usize) {
    for entry in &HELD {
        if entry.at.load(Ordering::Relaxed) == 0
            && entry.at.compare_exchange(0, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            entry.len.store(len, Ordering::Relaxed);
            // Release: a thread that reads the address also reads this length.
            entry.at.store(at, Ordering::Release);
            return;
        }
    }
    BEYOND.fetch_add(len, Ordering::Relaxed);
}

/// Pieces of one length that are kept for good, many to a mapping: thousands of threads come to
/// hundreds of entries.
pub struct Lots {
    len: usize,
    /// The last mapping's address, and below it how many of its pieces are taken.
    last: AtomicUsize,
}

/// Pieces in a mapping.
const PIECES: usize = 16;

impl Lots {
    /// Of pieces of `len` bytes, whole pages. None yet.
    pub const fn new(len: usize) -> Lots {
        assert!(len != 0 && len.is_multiple_of(4096));
        Lots { len, last: AtomicUsize::new(0) }
    }

    /// A piece: zeroed, and taking no memory before it is touched.
    pub fn take(&self) -> Result<usize, Errno> {
        let mut seen = self.last.load(Ordering::Acquire);
        loop {
            let (at, taken) = (seen & !4095, seen & 4095);
            if at != 0 && taken < PIECES {
                match self.last.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Acquire) {
                    Ok(_) => return Ok(at + taken * self.len),
                    Err(now) => seen = now,
                }
                continue;
            }
            let new = reserve(self.len * PIECES)? as usize;
            match self.last.compare_exchange(seen, new | 1, Ordering::Release, Ordering::Acquire) {
                Ok(_) => return Ok(new),
                Err(now) => {
                    strike(new, self.len * PIECES);
                    // SAFETY: reserved just now, and nobody else's.
                    unsafe { memory::unmap(new as *mut u8, self.len * PIECES) };
                    seen = now;
                }
            }
        }
    }
}

/// Strikes a mapping out. Call it before the mapping is unmapped: its addresses may belong to
/// another one right after.
pub fn strike(at: usize, len: usize) {
    match HELD.iter().find(|entry| entry.at.load(Ordering::Relaxed) == at) {
        Some(entry) => entry.at.store(0, Ordering::Relaxed),
        None => {
            BEYOND.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

/// Bytes of all entered mappings that are resident. Takes some 2 µs a resident mebibyte, and less
/// for others.
pub fn resident() -> u64 {
    let mut bytes = BEYOND.load(Ordering::Relaxed);
    for entry in &HELD {
        let at = entry.at.load(Ordering::Acquire);
        if at > CLAIMED {
            bytes += present(at, entry.len.load(Ordering::Relaxed)) * 4096;
        }
    }
    bytes as u64
}

fn present(at: usize, len: usize) -> usize {
    let mut asked = [0u8; ASKED];
    let mut pages = 0;
    for from in (at..at + len).step_by(ASKED * 4096) {
        let n = (at + len - from).min(ASKED * 4096);
        // SAFETY: the vector has a byte for each page asked about; the kernel checks the addresses.
        let told = unsafe { checked(libc::SYS_mincore, [from, n, asked.as_mut_ptr() as usize, 0, 0, 0]) };
        // Unmapped meanwhile: nothing of it is resident.
        if told.is_ok() {
            pages += asked[..n.div_ceil(4096)].iter().filter(|&&page| page & 1 != 0).count();
        }
    }
    pages
}

/// The account is the process's: tests of it, and those that enter something, run one at a time.
#[cfg(test)]
pub(crate) static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_apart() {
        let _one = ONE_TEST.lock();
        static LOTS: Lots = Lots::new(8192);
        let takers: Vec<_> =
            (0..4).map(|_| std::thread::spawn(|| (0..100).map(|_| LOTS.take().unwrap()).collect::<Vec<_>>())).collect();
        let mut all: Vec<usize> = takers.into_iter().flat_map(|t| t.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] + 8192 <= two[1]));
        for at in all {
            // SAFETY: a piece of 8192 bytes.
            unsafe { assert_eq!(((at + 8191) as *mut u8).replace(1), 0) };
        }
    }

    #[test]
    fn what_is_touched_is_counted_until_struck_out() {
        let _one = ONE_TEST.lock();
        let before = resident();
        let at = reserve(8 << 20).unwrap();
        assert_eq!(resident(), before, "a reservation costs nothing");
        for page in [0, 5, 2047] {
            // SAFETY: our own fresh mapping.
            unsafe { at.add(page * 4096).write(1) };
        }
        assert_eq!(resident(), before + 3 * 4096);
        strike(at as usize, 8 << 20);
        assert_eq!(resident(), before);
    }
}
