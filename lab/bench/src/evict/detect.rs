//! What it costs to tell which lines changed, a page: nothing but the computing, on pages in and out of cache.
//!
//! *At arrival* a page's bytes have just come through this CPU (they were received, and are installed next): cached.
//! *At departure* it has not been used for long: in memory. Both are timed over many pages at a time, so that
//! the clock costs nothing; a few CPU cycles a page are the loop's. It is the thread's own time on its CPU: what
//! another program takes of it in between is not counted.

#![allow(unsafe_code)] // Raw pages, as the pager has them.

use farmem_pager::dirty::exact;
use farmem_sys::lines::{Brief, Hasher, Hashes, LINES, Unit, WHOLE_TOP};
use farmem_sys::memory::copy_page;
use farmem_sys::pagemap::Pagemap;
use farmem_sys::uffd::{self, WriteTracker};
use serde::Serialize;
use std::hint::black_box;

use crate::paging::array::Draw;
use crate::pairs::Spread;
use crate::supervise;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that do not fit into a cache: 256 MiB.
const MANY: usize = 64 << 10;
/// From one to the next, an order that no prefetcher follows: coprime to their number.
const STEP: usize = 40_503;
/// Pages that fit into the first.
const FEW: usize = 4;

/// Costs of one way, ns a page.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// What is done.
    pub what: String,
    /// With the page's bytes in cache.
    pub cached: Option<Spread>,
    /// With the page, and what was kept of it, in memory.
    pub in_memory: Option<Spread>,
}

/// Measures all ways, `rounds` times.
pub fn measure(rounds: usize) -> Vec<Cost> {
    let pages = vec![0x5Au8; MANY * PAGE];
    let mut hashes: Vec<Hashes> = vec![[0; LINES]; MANY];
    let mut briefs = vec![Brief::default(); MANY];
    let key = std::array::from_fn(|i| (i * 151 + 17) as u8);
    let units = [Unit::Scalar, Unit::Sse2, Unit::Avx2];
    let best = Unit::best();
    let mut costs = Vec::new();
    for unit in units.into_iter().filter(|&unit| unit != Unit::Avx2 || best == Unit::Avx2) {
        let hasher = Hasher::new(&key, unit);
        costs.push(cost(format!("arrival: line hashes in brief, {unit:?}"), rounds, |page| {
            // SAFETY: within `pages`.
            unsafe { briefs[page].take(&hasher, pages.as_ptr().add(page * PAGE)) }
        }));
        costs.push(cost(format!("departure: hashes compared, {unit:?}"), rounds, |page| {
            // SAFETY: within `pages`.
            black_box(unsafe { briefs[page].compare(&hasher, pages.as_ptr().add(page * PAGE), None, WHOLE_TOP) });
        }));
        if unit == Unit::Avx2 {
            let at = |page: usize| pages.as_ptr().wrapping_add(page * PAGE);
            let asking = cost("departure: the same, asking for the next".into(), rounds, |page| {
                let next = Some(at((page + STEP) % MANY));
                // SAFETY: within `pages`.
                black_box(unsafe { briefs[page].compare(&hasher, at(page), next, WHOLE_TOP) });
            });
            costs.push(Cost { cached: None, ..asking });
        }
        costs.push(cost(format!("arrival: line hashes in full, {unit:?}"), rounds, |page| {
            // SAFETY: within `pages`.
            unsafe { hasher.hash(pages.as_ptr().add(page * PAGE), &mut hashes[page]) }
        }));
        costs.push(cost(format!("departure: full hashes compared, {unit:?}"), rounds, |page| {
            // SAFETY: within `pages`.
            black_box(unsafe { hasher.changed(pages.as_ptr().add(page * PAGE), &hashes[page]) });
        }));
    }
    let mut copies = vec![0x5Au8; MANY * PAGE];
    costs.push(cost("arrival: a copy".into(), rounds, |page| {
        // SAFETY: within `pages` and `copies`.
        unsafe { copy_page(pages.as_ptr().add(page * PAGE), copies.as_mut_ptr().add(page * PAGE)) }
    }));
    let of = |page: usize| {
        // SAFETY: within `pages` and `copies`.
        unsafe { [pages.as_ptr().add(page * PAGE), copies.as_ptr().add(page * PAGE)] }
    };
    for unit in units.into_iter().filter(|&unit| unit == Unit::Sse2 || unit == best) {
        let what = format!("departure: compared with a copy, or a mapped slot, {unit:?}");
        costs.push(cost(what, rounds, |page| {
            let [page, copy] = of(page);
            // SAFETY: live pages; the CPU has the unit.
            black_box(unsafe { exact::differing(unit, page, copy, None) });
        }));
    }
    let asking = cost("departure: compared with it, asking for the next".into(), rounds, |page| {
        let ([page, copy], next) = (of(page), of((page + STEP) % MANY));
        // SAFETY: as above.
        black_box(unsafe { exact::differing(best, page, copy, Some(next)) });
    });
    // The next is in memory in either case.
    costs.push(Cost { cached: None, ..asking });
    costs.extend(compressed(rounds));
    costs.extend(held_still(rounds));
    costs.extend(asked(rounds).into_iter().flatten());
    costs
}

/// Whether one page was written, by `WP_ASYNC` and `PAGEMAP_SCAN`, where nobody else can write meanwhile: what a program with one
/// thread would pay for each page that leaves, and for the first write to it. `None` where the kernel has neither.
fn asked(rounds: usize) -> Option<[Cost; 2]> {
    let tracker = WriteTracker::of(uffd::descriptor().ok()?).ok()?;
    let pages = Pagemap::open(std::process::id()).ok()?;
    let len = MANY * PAGE;
    let area = farmem_sys::memory::reserve(len).ok()?;
    // SAFETY: the area is this function's alone.
    assert_eq!(unsafe { libc::mprotect(area.cast(), len, libc::PROT_READ | libc::PROT_WRITE) }, 0, "its own memory");
    tracker.register(area as u64, len as u64).ok()?;
    // SAFETY: within the area, writable.
    let write = |page: usize| unsafe { area.add(page * PAGE).write_volatile(1) };
    (0..MANY).for_each(write);
    let mut runs = Vec::new();
    let mut failed = false;
    let asking = cost("departure: PAGEMAP_SCAN of one page, nobody else writing".into(), rounds, |page| {
        runs.clear();
        let at = area as u64 + (page * PAGE) as u64;
        failed |= pages.scan(at, at + PAGE as u64, false, &mut runs).is_err();
        black_box(&runs);
    });
    let mut found = Vec::new();
    for _ in 0..rounds {
        runs.clear();
        failed |= pages.scan(area as u64, area as u64 + len as u64, true, &mut runs).is_err();
        let begun = own_ns();
        (0..MANY / 4).for_each(|i| write(i * STEP % MANY));
        found.push((own_ns() - begun) as f64 / (MANY / 4) as f64);
    }
    // SAFETY: reserved above.
    unsafe { libc::munmap(area.cast(), len) };
    let what = "first write to a page, by WP_ASYNC".into();
    (!failed).then_some([Cost { cached: None, ..asking }, Cost { what, cached: None, in_memory: Spread::of(found) }])
}

/// Which of a batch's scattered pages were written, by `WP_ASYNC` and `PAGEMAP_SCAN`: the answer holds only while nobody
/// can write, so each is made read-only before it is asked about, and writable again when it was dropped. `None` where
/// the kernel has neither.
fn held_still(rounds: usize) -> Option<Cost> {
    const BATCH: usize = 256;
    /// One page in so many is a victim.
    const EVERY: usize = 3;
    let tracker = WriteTracker::of(uffd::descriptor().ok()?).ok()?;
    let pages = Pagemap::open(std::process::id()).ok()?;
    let len = BATCH * EVERY * PAGE;
    let area = farmem_sys::memory::reserve(len).ok()?;
    let allow = |at: *mut u8, len: usize, how: i32| {
        // SAFETY: within the area, which is this function's alone.
        assert_eq!(unsafe { libc::mprotect(at.cast(), len, how) }, 0, "its own memory");
    };
    allow(area, len, libc::PROT_READ | libc::PROT_WRITE);
    tracker.register(area as u64, len as u64).ok()?;
    // SAFETY: within the area.
    let victim = |n: usize| unsafe { area.add(n * EVERY * PAGE) };
    let mut runs = Vec::new();
    let mut found = Vec::new();
    for _ in 0..rounds {
        // SAFETY: within the area, writable.
        (0..BATCH).for_each(|n| unsafe { victim(n).write_volatile(1) });
        runs.clear();
        pages.scan(area as u64, area as u64 + len as u64, true, &mut runs).ok()?;
        let begun = own_ns();
        (0..BATCH).for_each(|n| allow(victim(n), PAGE, libc::PROT_READ));
        runs.clear();
        pages.scan(area as u64, area as u64 + len as u64, false, &mut runs).ok()?;
        (0..BATCH).for_each(|n| allow(victim(n), PAGE, libc::PROT_READ | libc::PROT_WRITE));
        found.push((own_ns() - begun) as f64 / BATCH as f64);
    }
    // SAFETY: reserved above.
    unsafe { libc::munmap(area.cast(), len) };
    let what = "departure: held still by mprotect, PAGEMAP_SCAN".into();
    Some(Cost { what, cached: Spread::of(found), in_memory: None })
}

/// A copy by LZ4, as `shadow` could keep it: compressed when a page comes, taken apart to be compared when it leaves.
/// Bytes are those of `farmem bench paging`: half random words, half small numbers.
fn compressed(rounds: usize) -> [Cost; 2] {
    let mut draw = Draw::new(5);
    let pages: Vec<[u8; PAGE]> = (0..FEW)
        .map(|_| {
            let words: [u64; PAGE / 8] = std::array::from_fn(|i| if i % 2 == 0 { draw.bits() } else { i as u64 });
            let mut page = [0; PAGE];
            page.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
            page
        })
        .collect();
    let mut small = vec![vec![0; lz4_flex::block::get_maximum_output_size(PAGE)]; FEW];
    let mut lens = [0; FEW];
    let pack = |page: usize| {
        let page = page % FEW;
        lens[page] = lz4_flex::block::compress_into(&pages[page], &mut small[page]).unwrap_or_default();
    };
    let packing = cost("arrival: a copy by LZ4".into(), rounds, pack);
    let mut back = [0; PAGE];
    let packed = lens.iter().sum::<usize>() as f64 / (FEW * PAGE) as f64;
    let what = format!("departure: compared with it, of {:.0} % of the bytes", 100.0 * packed);
    let unpacking = cost(what, rounds, |page| {
        let page = page % FEW;
        black_box(lz4_flex::block::decompress_into(&small[page][..lens[page]], &mut back).unwrap_or_default());
        // SAFETY: two live pages; a unit that the CPU has.
        black_box(unsafe { exact::differing(Unit::best(), pages[page].as_ptr(), back.as_ptr(), None) });
    });
    // Few pages in either case: what memory adds, the lines above say.
    [packing, unpacking].map(|cost| Cost { in_memory: None, ..cost })
}

/// Time that this thread has had on a CPU.
fn own_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec; the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn cost(what: String, rounds: usize, mut once: impl FnMut(usize)) -> Cost {
    let mut timed = |pages: &[usize]| {
        let begun = own_ns();
        pages.iter().for_each(|&page| once(page));
        (own_ns() - begun) as f64 / pages.len() as f64
    };
    let few: Vec<usize> = (0..65536).map(|i| i % FEW).collect();
    let many: Vec<usize> = (0..16384).map(|i| i * STEP % MANY).collect();
    let (mut cached, mut in_memory) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        // Who asked for the costs fails at its own next look.
        if supervise::interrupted().is_err() {
            break;
        }
        cached.push(timed(&few));
        in_memory.push(timed(&many));
    }
    Cost { what, cached: Spread::of(cached), in_memory: Spread::of(in_memory) }
}
