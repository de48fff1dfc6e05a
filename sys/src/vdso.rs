//! The vDSO: the piece of code that the kernel maps into each process, which reads the clock
//! without a system call.
//!
//! libc has a function for it, which other libraries may replace (libfaketime does), by code that
//! needs thread-locals. So the vDSO is looked through here: it is a small ELF library, all of whose
//! parts lie in one mapping.
//!
//! ```text
//! AT_SYSINFO_EHDR ─► ELF header ─► program headers ─┬─ PT_LOAD: address minus offset is the displacement
//!                                                   └─ PT_DYNAMIC ─► symbols, names, a hash table
//! ```

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads a clock; returns 0, or an error number below 0.
pub type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

/// The function's address; [`UNKNOWN`] or [`NONE`].
static CLOCK_GETTIME: AtomicUsize = AtomicUsize::new(UNKNOWN);
/// Not looked for yet.
const UNKNOWN: usize = 0;
/// There is none.
const NONE: usize = 1;

/// The vDSO's `clock_gettime`. `None`: this system has no vDSO (an emulator, valgrind, `vdso=0`).
///
/// The first call asks libc where the vDSO is. Every process that has threads without thread-locals
/// reads the clock before it starts them.
#[inline]
pub fn clock_gettime() -> Option<ClockGettime> {
    match CLOCK_GETTIME.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        NONE => None,
        // SAFETY: `find` stored the address of a function of this type.
        at => Some(unsafe { std::mem::transmute::<usize, ClockGettime>(at) }),
    }
}

#[cold]
fn find() -> Option<ClockGettime> {
    // SAFETY: no pointers. 0 where the kernel told of none.
    let header = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    // SAFETY: the kernel's vDSO, which stays mapped.
    let at = unsafe { symbol(header, c"__vdso_clock_gettime") }.unwrap_or(NONE);
    CLOCK_GETTIME.store(at, Ordering::Relaxed);
    // SAFETY: the kernel's function of this name has this type (`man 7 vdso`).
    (at != NONE).then(|| unsafe { std::mem::transmute::<usize, ClockGettime>(at) })
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: usize = 0;
const DT_HASH: usize = 4;
const DT_STRTAB: usize = 5;
const DT_SYMTAB: usize = 6;
const DT_GNU_HASH: usize = 0x6fff_fef5;
/// Bytes of an ELF64 symbol: name (4), kind (1), visibility (1), section (2), value (8), size (8).
const SYMBOL_BYTES: usize = 24;
/// More symbols than any vDSO has: a table that says more is not believed.
const MOST_SYMBOLS: usize = 1 << 10;

/// Where a function lies in the ELF library that is mapped, whole, at `header`.
///
/// # Safety
/// `header` is 0, or the address of such a library.
unsafe fn symbol(header: usize, name: &CStr) -> Option<usize> {
    // The caller vouches for the library, and every address below is one that its headers name.
    // SAFETY: as said above.
    let word = |at: usize| unsafe { (at as *const usize).read_unaligned() };
    // SAFETY: as said above.
    let half = |at: usize| unsafe { (at as *const u32).read_unaligned() };
    // SAFETY: as said above.
    let short = |at: usize| unsafe { (at as *const u16).read_unaligned() };
    if header == 0 || half(header) != u32::from_le_bytes(*b"\x7fELF") {
        return None;
    }
    let headers = header + word(header + 32);
    let headers = (0..usize::from(short(header + 56))).map(|n| headers + n * usize::from(short(header + 54)));
    let (mut displacement, mut dynamic) = (None, None);
    for entry in headers {
        match half(entry) {
            PT_LOAD if displacement.is_none() => {
                displacement = Some((header + word(entry + 8)).wrapping_sub(word(entry + 16)));
            }
            PT_DYNAMIC => dynamic = Some(header + word(entry + 8)),
            _ => {}
        }
    }
    let (displacement, dynamic) = (displacement?, dynamic?);
    let entries = (0..).map(|n| dynamic + 16 * n).take_while(|&at| word(at) != DT_NULL);
    let table = |tag| entries.clone().find(|&at| word(at) == tag).map(|at| displacement.wrapping_add(word(at + 8)));
    let (names, symbols) = (table(DT_STRTAB)?, table(DT_SYMTAB)?);
    let count = match (table(DT_HASH), table(DT_GNU_HASH)) {
        (Some(hash), _) => half(hash + 4) as usize,
        // SAFETY: the library's own table.
        (None, Some(hash)) => unsafe { counted(hash) },
        (None, None) => return None,
    };
    (0..count.min(MOST_SYMBOLS)).map(|n| symbols + n * SYMBOL_BYTES).find_map(|at| {
        // SAFETY: names end in the table of names.
        let named = unsafe { CStr::from_ptr((names + half(at) as usize) as *const _) };
        (named == name && short(at + 6) != 0).then(|| displacement.wrapping_add(word(at + 8)))
    })
}

/// How many symbols a GNU hash table tells of: the last of the chain that begins last.
///
/// # Safety
/// `hash` is such a table of a loaded library.
unsafe fn counted(hash: usize) -> usize {
    // SAFETY: the caller's table, of this form: four numbers, a filter, buckets, chains.
    // SAFETY: as said above.
    let half = |at: usize| unsafe { (at as *const u32).read_unaligned() as usize };
    let (buckets, first, filter) = (half(hash), half(hash + 4), half(hash + 8));
    let bucket = hash + 16 + 8 * filter;
    let chains = bucket + 4 * buckets;
    let last = (0..buckets).map(|n| half(bucket + 4 * n)).max().unwrap_or(0);
    if last < first {
        return first;
    }
    // A chain's last entry is odd.
    1 + (last..).find(|&n| half(chains + 4 * (n - first)) & 1 != 0).unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::now_ns;

    #[test]
    fn the_vdso_has_the_clock_that_the_kernel_has() {
        // SAFETY: no pointers.
        let has_vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
        assert_eq!(clock_gettime().is_some(), has_vdso);
        let by_kernel = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` is live.
            unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        let (before, between, after) = (by_kernel(), now_ns(), by_kernel());
        assert!(before <= between && between <= after, "{before} {between} {after}");
    }

    #[test]
    fn a_symbol_is_found_by_its_name() {
        // SAFETY: no pointers.
        let header = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
        for (name, is_there) in [(c"__vdso_gettimeofday", true), (c"__vdso_time", true), (c"__vdso", false)] {
            // SAFETY: the kernel's vDSO, or 0.
            let found = unsafe { symbol(header, name) };
            assert_eq!(found.is_some(), is_there && header != 0, "{name:?}");
        }
        // SAFETY: no library is there.
        assert_eq!(unsafe { symbol(0, c"__vdso_time") }, None);
    }

    #[test]
    fn symbols_are_counted_by_the_hash_table() {
        // Two buckets, symbols from the third on, one word of filter; two chains of two.
        let table = [2u32, 3, 1, 0, 0, 0, 3, 5, 10, 11, 20, 21];
        // SAFETY: a table, as above.
        assert_eq!(unsafe { counted(table.as_ptr() as usize) }, 7);
        let empty = [1u32, 4, 1, 0, 0, 0, 0];
        // SAFETY: as above; its only bucket is empty.
        assert_eq!(unsafe { counted(empty.as_ptr() as usize) }, 4);
    }
}
