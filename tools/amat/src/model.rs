//! From counts to time: the published formula, and what it leaves out.
//!
//! Against [`crate::formula`]:
//! * *Fresh memory* is not fetched: a block's first use costs local memory only.
//! * *Prefetched blocks* cost their installing, not a miss.
//! * *Write-back*: the cost for the program when a dirty block leaves, and its bytes.
//! * *Queueing*: threads that miss wait for one another on the link. Mean value
//!   analysis of a closed system of one queue and `threads` customers (Reiser and
//!   Lavenberg, JACM 27(2), 1980): R(k) = s·(1 + Q(k−1)), Q(k) = k·R(k) / (Z + R(k)),
//!   s a block's time on the link, Z the time between a thread's misses. Blocks
//!   that nobody waits for take their share of the link away first.
//! * *Bandwidth*: no thread goes faster than the link carries its bytes, in or out.

use crate::formula::{Count, Rate, amat};
use crate::local::{Tally, part_bytes};
use crate::system::{System, Unit};
use serde::Serialize;

/// The CPU's part: the same for all sizes of local memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Front {
    /// Loads and stores.
    pub references: Count,
    /// Instructions.
    pub instructions: u64,
    /// Misses by level of the CPU's caches.
    pub misses: Vec<Count>,
}

/// The modelled case.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Threads that share the link.
    pub threads: u32,
    /// The published formula and nothing else.
    pub published: bool,
}

/// The result, per reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Average memory access time, nanoseconds.
    pub amat_ns: f64,
    /// By how much sampling may have it wrong, either way, nanoseconds (95 %).
    pub bound_ns: f64,
    /// By the published formula, nanoseconds.
    pub published_ns: f64,
    /// Misses of local memory per reference.
    pub misses: f64,
    /// Bytes fetched and written back, with their headers.
    pub bytes_in: f64,
    /// Written back.
    pub bytes_out: f64,
    /// Waiting for the link, of each miss, nanoseconds.
    pub wait_ns: f64,
    /// The busier direction's share of time; 1: the link decides.
    pub link: f64,
}

/// A size of local memory in blocks of `block` bytes that made `tally`.
pub fn outcome(system: &System, block: u64, front: &Front, tally: &Tally, setting: Setting) -> Outcome {
    let references = front.references;
    let per_reference = |n: u64| n as f64 / references.total().max(1) as f64;
    let miss_ns = system.remote.ns.of(block);
    // Each level's misses pay for the level after it; the misses of the last pay for local memory.
    let costs = system.cpu.iter().skip(1).map(|level| level.ns).chain([system.local.ns]);
    let mut beyond: Vec<(Rate, f64)> = front.misses.iter().map(|&m| Rate::of(m, references)).zip(costs).collect();
    // The published formula takes the first use of a block for a miss.
    let fresh = if setting.published { Count::default() } else { tally.fresh };
    let fetched = |all: u64, fresh: u64| all.saturating_sub(fresh);
    let missed =
        Count { read: fetched(tally.misses.read, fresh.read), write: fetched(tally.misses.write, fresh.write) };
    let mut published = beyond.clone();
    published.push((Rate::of(tally.misses, references), miss_ns));
    beyond.push((Rate::of(missed, references), miss_ns));
    // Without caches every reference pays local memory.
    let first = system.cpu.first().map_or(system.local.ns, |level| level.ns);
    let (published_ns, amat_ns) = (amat(references, first, &published), amat(references, first, &beyond));

    let misses = per_reference(missed.total());
    let bytes = block as f64 + system.remote.header_bytes;
    let bytes_in = misses * bytes + per_reference(tally.unawaited) * bytes;
    let dirty = per_reference(tally.dirty_blocks);
    let bytes_out = dirty * system.remote.header_bytes
        + match system.write_back.unit {
            Unit::Block => dirty * block as f64,
            Unit::Lines => per_reference(tally.dirty_parts) * part_bytes(block) as f64,
        };
    let bound_ns = tally.bound / references.total().max(1) as f64 * miss_ns;
    let mut out = Outcome { amat_ns, bound_ns, published_ns, misses, bytes_in, bytes_out, wait_ns: 0.0, link: 0.0 };
    if setting.published {
        return out;
    }

    out.amat_ns += per_reference(tally.prefetched) * system.remote.prefetched_ns + dirty * system.write_back.ns;
    let Some(gbit_per_s) = system.remote.gbit_per_s else { return out };
    let bytes_per_ns = gbit_per_s / 8.0;
    let threads = f64::from(setting.threads.max(1));
    let beside = front.instructions as f64 / references.total().max(1) as f64 * system.ns_per_instruction;
    let alone = out.amat_ns + beside;
    if misses > 0.0 {
        out.wait_ns = wait(alone / misses, bytes / bytes_per_ns, (bytes_in / misses - bytes) / bytes_per_ns, threads);
        out.amat_ns += misses * out.wait_ns;
    }
    let carried = threads * bytes_in.max(bytes_out) / bytes_per_ns;
    out.amat_ns = out.amat_ns.max(carried - beside);
    out.link = carried / (out.amat_ns + beside).max(f64::MIN_POSITIVE);
    out
}

/// How long a miss waits: `between` ns from a thread's miss to its next when alone, `service` ns of
/// it on the link, and `background` ns of link time for each miss that nobody waits for.
fn wait(between: f64, service: f64, background: f64, threads: f64) -> f64 {
    let think = (between - service).max(0.0);
    let mut slowed = service;
    // The link's free share depends on the rate of misses, that on the wait: some rounds settle it.
    for _ in 0..50 {
        let (mut residence, mut queue) = (slowed, 0.0);
        for customers in 1..=threads as u32 {
            residence = slowed * (1.0 + queue);
            queue = f64::from(customers) * residence / (think + residence);
        }
        let rate = threads / (think + residence);
        let free = (1.0 - rate * background).max(0.02);
        let next = service / free;
        if (next - slowed).abs() < 1e-6 * service {
            return residence - service;
        }
        slowed = 0.5 * (slowed + next);
    }
    slowed - service
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_waits_for_nobody_and_many_for_all() {
        assert!(wait(10_000.0, 300.0, 0.0, 1.0).abs() < 1e-9);
        // Always at the link: all others are ahead.
        assert!((wait(300.0, 300.0, 0.0, 8.0) - 2_100.0).abs() < 1e-6);
        let (few, many) = (wait(10_000.0, 300.0, 0.0, 4.0), wait(10_000.0, 300.0, 0.0, 32.0));
        assert!(0.0 < few && few < many, "{few} {many}");
        assert!(wait(10_000.0, 300.0, 5_000.0, 1.0) > 100.0, "prefetch takes the link away");
    }

    fn system(toml: &str) -> System {
        System::parse(&format!("name = 's'\nabout = ''\nsource = ''\n{toml}")).unwrap()
    }

    #[test]
    fn counts_become_time() {
        let system = system(
            "cpu = [{ name = 'L1', size = '32K', ways = 8, ns = 2 }]\nns_per_instruction = 0\n\
             [local]\nns = 100\nblock = '4K'\n[remote]\nns = 5000\ngbit_per_s = 8\n[write_back]\nunit = 'lines'\nns = 70",
        );
        let references = Count { read: 1000, write: 0 };
        let misses = Count { read: 10, write: 0 };
        let front = Front { references, instructions: 0, misses: vec![Count { read: 100, write: 0 }] };
        let tally = Tally { misses, dirty_blocks: 10, dirty_parts: 30, ..Tally::default() };
        let setting = Setting { threads: 1, published: false };
        let got = outcome(&system, 4096, &front, &tally, setting);
        assert!((got.published_ns - (2.0 + 10.0 + 50.0)).abs() < 1e-9);
        assert!((got.amat_ns - (62.0 + 0.7)).abs() < 1e-9, "one byte a nanosecond carries 41 bytes in 62.7 ns");
        assert!((got.bytes_out - 1.92).abs() < 1e-9 && (got.bytes_in - 40.96).abs() < 1e-9);
        let crowd = outcome(&system, 4096, &front, &tally, Setting { threads: 8, published: false });
        assert!((crowd.amat_ns - 8.0 * 40.96).abs() < 5.0 && crowd.link > 0.98, "the link decides: {crowd:?}");
    }
}
