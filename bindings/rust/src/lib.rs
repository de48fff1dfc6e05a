//! Hints: a Rust program tells `farmem run` about its use of memory.
//!
//! ```
//! let orders = vec![0u64; 1 << 16];
//! farmem_hints::read(&orders[100..200]); // I will read these: bring in what is away
//! let next: Vec<&u64> = (0..16).map(|i| &orders[i * 4096]).collect();
//! farmem_hints::read_each(&next); // … and these, by one batch
//! farmem_hints::cold(&orders); // they leave before all others
//! ```
//!
//! Without `farmem run` every function is a test of a pointer that is null. A hint may be wrong,
//! late, or about memory that is not far: it costs time then, and changes nothing. While a page is
//! local, a hint is one look at its word. No dependencies, no std. The C header `farmem.h` says the
//! same in C.

#![no_std]
#![allow(unsafe_code)] // Calls the runtime by a table of functions that `farmem_v1` leads to.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `struct farmem_v1` of `farmem.h`.
#[repr(C)]
struct Table {
    bytes: usize,
    far_start: usize,
    far_pages: AtomicUsize,
    words: *const AtomicU64,
    use_range: unsafe extern "C" fn(usize, usize, i32),
    use_each: unsafe extern "C" fn(*const usize, usize, i32),
    advise: unsafe extern "C" fn(usize, usize, i32),
    objects: unsafe extern "C" fn(isize) -> usize,
    weigh: unsafe extern "C" fn(usize, usize, usize) -> isize,
    need: unsafe extern "C" fn() -> usize,
}

const PAGE: usize = 4096;
const COLD: i32 = 20;
const PAGEOUT: i32 = 21;
/// Pages that come in by one batch.
const STEP: usize = 63;

/// How a range will be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// As its faults suggest.
    Normal = 0,
    /// In no order: nothing is fetched ahead.
    Random = 1,
    /// In ascending order: as much as possible is fetched ahead.
    Sequential = 2,
}

/// The runtime's table, once the program is on far memory.
#[inline]
fn table() -> Option<&'static Table> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        let table: *const Table;
        // SAFETY: reads an entry of the global offset table, which is null where nothing defines
        // the symbol.
        unsafe {
            core::arch::asm!(
                ".weak farmem_v1",
                "mov {}, qword ptr [rip + farmem_v1@GOTPCREL]",
                out(reg) table,
                options(nostack, readonly, preserves_flags, pure)
            )
        };
        // SAFETY: null, or the runtime's static of this layout.
        unsafe { table.as_ref() }.filter(|table| table.far_pages.load(Ordering::Acquire) != 0)
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    None
}

impl Table {
    /// Whether a use of the page at an address would fault.
    #[inline]
    fn needs(&self, addr: usize, write: bool) -> bool {
        let page = addr.wrapping_sub(self.far_start) / PAGE;
        if page >= self.far_pages.load(Ordering::Relaxed) {
            return false;
        }
        // SAFETY: the runtime has a word for each page of the far range, for the life of the
        // process.
        let word = unsafe { (*self.words.add(page)).load(Ordering::Relaxed) };
        if write { word >> 59 & 15 != 5 } else { word >> 60 & 7 != 2 }
    }

    fn will_use(&self, addr: usize, bytes: usize, write: bool) {
        if bytes > 0 && self.needs(addr, write) {
            let pages = (addr + bytes - 1) / PAGE - addr / PAGE + 1;
            // SAFETY: a hint reads and writes nothing of the caller's.
            unsafe { (self.use_range)(addr, pages, write as i32) }
        }
    }
}

/// Whether the program runs on far memory.
#[inline]
pub fn runs() -> bool {
    table().is_some()
}

/// Local memory for far objects, for the crate `farmem-objects`: takes that many pages of the run's
/// share, or gives them back if negative. 0 asks how many there can be. The answer is 0 where the
/// program does not run on far memory, or the share has no room.
#[doc(hidden)]
pub fn objects(pages: isize) -> usize {
    let has_it = |table: &&Table| table.bytes >= core::mem::offset_of!(Table, weigh);
    // SAFETY: it counts pages, and touches none.
    table().filter(has_it).map_or(0, |table| unsafe { (table.objects)(pages) })
}

/// Reports the misses of far objects since the last call: their number in pages, their time in ns,
/// and the time in ns that a little more local memory would have saved. Returns the pages that the
/// objects may take now; if negative, those that they have to give. `None`: the runtime does not
/// weigh them. The crate `farmem-objects` calls it.
#[doc(hidden)]
pub fn weigh(pages: usize, cost: usize, saved: usize) -> Option<isize> {
    let has_it = |table: &&Table| table.bytes >= core::mem::offset_of!(Table, need);
    // SAFETY: it compares numbers, and touches none of the caller's memory.
    table().filter(has_it).map(|table| unsafe { (table.weigh)(pages, cost, saved) })
}

/// Reports that a scope holds all memory that far objects may have, and needs more. Returns the
/// pages that they may take now. The crate `farmem-objects` calls it.
#[doc(hidden)]
pub fn need() -> usize {
    let has_it = |table: &&Table| table.bytes >= size_of::<Table>();
    // SAFETY: as above.
    table().filter(has_it).map_or(0, |table| unsafe { (table.need)() })
}

/// Whether the page where a value begins is local, or not far at all. It may leave a moment later.
#[inline]
pub fn is_near<T: ?Sized>(value: &T) -> bool {
    table().is_none_or(|table| !table.needs(core::ptr::from_ref(value).addr(), false))
}

/// I will read a value, or a slice. Looks at the first page alone; if that is away, all that are
/// come in, as far as one call may (a 32nd of local memory).
#[inline]
pub fn read<T: ?Sized>(value: &T) {
    if let Some(table) = table() {
        table.will_use(core::ptr::from_ref(value).cast::<u8>().addr(), size_of_val(value), false);
    }
}

/// I will write to a value: its pages come in ready to be written to.
#[inline]
pub fn write<T: ?Sized>(value: &mut T) {
    if let Some(table) = table() {
        table.will_use(core::ptr::from_mut(value).cast::<u8>().addr(), size_of_val(value), true);
    }
}

/// I will read the pages where these values begin. Those that are away come in by batches of up to
/// 63.
pub fn read_each<T: ?Sized>(values: &[&T]) {
    let Some(table) = table() else { return };
    let mut away = [0; STEP];
    let mut n = 0;
    for value in values {
        let addr = core::ptr::from_ref(*value).cast::<u8>().addr();
        if table.needs(addr, false) {
            away[n] = addr;
            n += 1;
        }
        if n == STEP {
            // SAFETY: so many addresses, which the runtime only reads.
            unsafe { (table.use_each)(away.as_ptr(), n, 0) };
            n = 0;
        }
    }
    if n > 0 {
        // SAFETY: as above.
        unsafe { (table.use_each)(away.as_ptr(), n, 0) };
    }
}

fn advise<T: ?Sized>(value: &T, advice: i32) {
    let Some(table) = table() else { return };
    let addr = core::ptr::from_ref(value).cast::<u8>().addr();
    let (first, last) = (addr.next_multiple_of(PAGE), (addr + size_of_val(value)) / PAGE * PAGE);
    if first < last {
        // SAFETY: none of these advices changes a page's content.
        unsafe { (table.advise)(first, last - first, advice) }
    }
}

/// I will not use a value soon: the pages that it fills leave before all others.
pub fn cold<T: ?Sized>(value: &T) {
    advise(value, COLD);
}

/// I will not use a value for long: the pages that it fills leave now.
pub fn page_out<T: ?Sized>(value: &T) {
    advise(value, PAGEOUT);
}

/// How I will use a value. Holds for its blocks of 2 MiB, until it is unmapped or another pattern
/// is said.
pub fn pattern<T: ?Sized>(value: &T, pattern: Pattern) {
    advise(value, pattern as i32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_farmem_run_nothing_happens() {
        let mut value = [7u8; 3 * PAGE];
        assert!(!runs() && is_near(&value));
        read(&value);
        write(&mut value);
        read_each(&[&value[..], &[]]);
        cold(&value);
        page_out(&value);
        pattern(&value, Pattern::Random);
        assert_eq!(value, [7; 3 * PAGE]);
    }
}
