//! What it costs to tell which lines changed, a page: nothing but the computing, on pages in and out of cache.
//!
//! *At arrival* a page's bytes have just come through this CPU (they were received, and are installed next): cached.
//! *At departure* it has not been used for long: in memory. Both are timed over many pages at a time, so that
//! the clock costs nothing; a few CPU cycles a page are the loop's. It is the thread's own time on its CPU: what
//! another program takes of it in between is not counted.

#![allow(unsafe_code)] // Raw pages, as the pager has them.

use farmem_pager::dirty::exact;
use farmem_pager::dirty::hash::{Hasher, Hashes, KEY_BYTES, Unit};
use farmem_protocol::lines::LINES;
use farmem_sys::memory::copy_page;
use serde::Serialize;
use std::hint::black_box;

use crate::pairs::Spread;

/// Bytes of a page.
const PAGE: usize = 4096;
/// Pages that do not fit into a cache: 256 MiB.
const MANY: usize = 64 << 10;
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
    let key: [u8; KEY_BYTES] = std::array::from_fn(|i| (i * 151 + 17) as u8);
    let units = [Unit::Scalar, Unit::Sse2, Unit::Avx2];
    let best = Unit::best();
    let mut costs = Vec::new();
    for unit in units.into_iter().filter(|&unit| unit != Unit::Avx2 || best == Unit::Avx2) {
        let hasher = Hasher::new(&key, unit);
        let arrival = |page: usize, kept: usize, hashes: &mut [Hashes]| {
            // SAFETY: within `pages`.
            unsafe { hasher.hash(pages.as_ptr().add(page * PAGE), &mut hashes[kept]) }
        };
        costs.push(cost(format!("arrival: line hashes, {unit:?}"), rounds, |page| arrival(page, page, &mut hashes)));
        costs.push(cost(format!("departure: hashes compared, {unit:?}"), rounds, |page| {
            // SAFETY: within `pages`.
            black_box(unsafe { hasher.changed(pages.as_ptr().add(page * PAGE), &hashes[page]) });
        }));
    }
    let mut copies = vec![0x5Au8; MANY * PAGE];
    costs.push(cost("arrival: a copy".into(), rounds, |page| {
        // SAFETY: within `pages` and `copies`.
        unsafe { copy_page(pages.as_ptr().add(page * PAGE), copies.as_mut_ptr().add(page * PAGE)) }
    }));
    costs.push(cost("departure: compared with a copy, or a mapped slot".into(), rounds, |page| {
        // SAFETY: as above.
        black_box(unsafe { exact::differing(pages.as_ptr().add(page * PAGE), copies.as_ptr().add(page * PAGE)) });
    }));
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
    // An order that no prefetcher follows: a stride coprime to the number of pages.
    let many: Vec<usize> = (0..16384).map(|i| i * 40_503 % MANY).collect();
    let (mut cached, mut in_memory) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        cached.push(timed(&few));
        in_memory.push(timed(&many));
    }
    Cost { what, cached: Spread::of(cached), in_memory: Spread::of(in_memory) }
}
