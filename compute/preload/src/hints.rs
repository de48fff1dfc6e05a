//! The symbol `farmem_v1`: a table with the address of the page words, and with functions to call
//! for pages that are far. `farmem.h` and the other bindings find it.
//!
//! A caller reads the page's word itself and calls nothing while the page is local. Programs are
//! compiled against the layout in `bindings/c/farmem.h`, so it never changes.

use crate::near_stack;
use crate::process::{pager, started};
use farmem_pager::{STEP, Side};
use farmem_protocol::addr::{FAR_PAGES, FAR_START};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The table. Functions may be called from any thread, on any stack, and from signal handlers of
/// the program's.
#[repr(C)]
pub struct Hints {
    /// Bytes of this table. Later fields are added at its end.
    bytes: usize,
    /// The far range's first address.
    far_start: usize,
    /// Its pages; 0 until the process is on far memory.
    far_pages: AtomicUsize,
    /// The page words.
    words: AtomicPtr<AtomicU64>,
    /// Brings in pages: the first one's address, how many, whether they will be written to.
    use_range: extern "C" fn(usize, usize, i32),
    /// Brings in the pages of these addresses.
    use_each: extern "C" fn(*const usize, usize, i32),
    /// `madvise` of whole pages.
    advise: extern "C" fn(usize, usize, i32),
    /// Local memory for far objects, pages: takes them (1: done), gives them back if negative, and
    /// tells for 0 how many there can be.
    objects: extern "C" fn(isize) -> usize,
    /// Far objects have missed this much since the last call: pages, and in ns what that cost and
    /// what a little more memory would have saved of it. Returns the pages that they may take now,
    /// or have to give if negative.
    weigh: extern "C" fn(usize, usize, usize) -> isize,
    /// A scope holds all that far objects may have, and needs more: returns the pages that they may
    /// take now.
    need: extern "C" fn() -> usize,
}

/// Named for its version.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static farmem_v1: Hints = Hints {
    bytes: size_of::<Hints>(),
    far_start: FAR_START,
    far_pages: AtomicUsize::new(0),
    words: AtomicPtr::new(std::ptr::null_mut()),
    use_range,
    use_each,
    advise,
    objects,
    weigh,
    need,
};

/// The process is on far memory.
pub fn publish() {
    farmem_v1.words.store(pager().hints.words().cast_mut(), Ordering::Relaxed);
    farmem_v1.far_pages.store(FAR_PAGES, Ordering::Release);
}

struct Range {
    addr: usize,
    /// Pages, or bytes.
    len: usize,
    /// Whether to write, or `MADV_*`.
    how: i32,
}

extern "C" fn use_range(addr: usize, pages: usize, write: i32) {
    extern "C" fn decided(range: &mut Range) {
        pager().hints.will_use(range.addr, range.len, range.how != 0);
    }
    if started() {
        near_stack::call(decided, &mut Range { addr, len: pages, how: write });
    }
}

extern "C" fn advise(addr: usize, len: usize, advice: i32) {
    extern "C" fn decided(range: &mut Range) {
        // Not by the program's system call, which would set errno and may be filtered.
        pager().space.madvise(range.addr, range.len, range.how);
    }
    if started() && farmem_protocol::addr::is_far(addr) {
        near_stack::call(decided, &mut Range { addr, len, how: advice });
    }
}

struct Objects {
    pages: isize,
    result: usize,
}

extern "C" fn objects(pages: isize) -> usize {
    extern "C" fn decided(asked: &mut Objects) {
        let (share, pages) = (pager().share, asked.pages.unsigned_abs() as u64);
        asked.result = match asked.pages {
            0 => share.most() as usize,
            1.. => usize::from(share.take(pages)),
            _ => usize::from(share.give(pages)),
        };
    }
    let mut asked = Objects { pages, result: 0 };
    if started() {
        near_stack::call(decided, &mut asked);
    }
    asked.result
}

struct Weighed {
    objects: Side,
    result: isize,
}

extern "C" fn weigh(pages: usize, cost: usize, saved: usize) -> isize {
    extern "C" fn decided(weighed: &mut Weighed) {
        weighed.result = pager().share.weigh(weighed.objects) as isize;
    }
    let objects = Side { pages: pages as u64, cost: cost as u64, saved: saved as u64 };
    let mut weighed = Weighed { objects, result: 0 };
    if started() {
        near_stack::call(decided, &mut weighed);
    }
    weighed.result
}

extern "C" fn need() -> usize {
    extern "C" fn decided(pages: &mut usize) {
        *pages = pager().share.need() as usize;
    }
    let mut pages = 0;
    if started() {
        near_stack::call(decided, &mut pages);
    }
    pages
}

struct Each {
    addrs: *const usize,
    n: usize,
    write: bool,
}

extern "C" fn use_each(addrs: *const usize, n: usize, write: i32) {
    extern "C" fn decided(each: &mut Each) {
        for from in (0..each.n).step_by(STEP) {
            // The array may be far: it is read before the pager is entered, and may fault like the
            // program.
            let mut step = [0; STEP];
            let n = STEP.min(each.n - from);
            for (at, addr) in step.iter_mut().take(n).enumerate() {
                // SAFETY: the caller's array.
                *addr = unsafe { each.addrs.add(from + at).read_volatile() };
            }
            pager().hints.will_use_each(&step[..n], each.write);
        }
    }
    if started() {
        near_stack::call(decided, &mut Each { addrs, n, write: write != 0 });
    }
}
