//! What it costs to tell which lines changed, a page: nothing but the computing, on pages in and out of cache.
//!
//! *At arrival* a page's bytes have just come through this CPU (they were received, and are installed next): cached.
//! *At departure* it has not been used for long: in memory. Both are timed over many pages at a time, so that
//! the clock costs nothing; a few CPU cycles a page are the loop's. It is the thread's own time on its CPU: what
//! another program takes of it in between is not counted.

#![allow(unsafe_code)] // Raw pages, as the pager has them.

use farmem_sys::lines::{Brief, Hasher, Hashes, LINES, Unit, WHOLE_TOP, exact};
use farmem_sys::memory::copy_page;
use serde::Serialize;
use std::hint::black_box;

use farmem_kit::pairs::Spread;
use farmem_kit::supervise;

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
    costs
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
