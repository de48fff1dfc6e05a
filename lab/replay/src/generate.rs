//! Traces by formula, from a seed: each is one question to a policy.

use crate::trace::Trace;
use farmem_protocol::random::Random;

/// Pages of every generated trace, about.
const PAGES: u64 = 8192;
const ACCESSES: u64 = 400_000;

/// Ranks by Zipf's law with exponent `s`, hot ranks scattered over the address space.
struct Zipf {
    cumulative: Vec<f64>,
    scatter: u64,
}

impl Zipf {
    fn new(n: u64, s: f64, scatter: u64) -> Zipf {
        let mut sum = 0.0;
        let weight = |rank| {
            sum += 1.0 / (rank as f64).powf(s);
            sum
        };
        Zipf { cumulative: (1..=n).map(weight).collect(), scatter }
    }

    fn page(&self, random: &mut Random) -> u64 {
        let n = self.cumulative.len() as u64;
        let point = random.unit() * self.cumulative[n as usize - 1];
        let rank = self.cumulative.partition_point(|c| *c < point) as u64;
        // An odd factor and a power of two: a permutation.
        rank.wrapping_mul(0x9E37_79B1).wrapping_add(self.scatter) % n
    }
}

/// All of them.
pub fn all(seed: u64) -> Vec<Trace> {
    let random = || Random::new(seed);
    let zipf = Zipf::new(PAGES, 0.9, 7);
    let mut traces = Vec::new();
    let mut put = |name, pages: Vec<u64>| traces.push(Trace::from_pages(name, pages));

    let mut r = random();
    put("uniform", (0..ACCESSES).map(|_| r.below(PAGES)).collect());
    let mut r = random();
    put("zipf", (0..ACCESSES).map(|_| zipf.page(&mut r)).collect());
    put("scan", (0..ACCESSES).map(|i| i % PAGES).collect());
    // 0.3 of the pages again and again, then all of them once.
    let inner = PAGES * 3 / 10;
    put("loop+sweep", (0..ACCESSES).map(|i| if i % (6 * PAGES) < 5 * PAGES { i % inner } else { i % PAGES }).collect());
    let mut r = random();
    let mut at = 0;
    let scan_and_zipf = |_| {
        at += 1;
        if at % 2 == 0 { PAGES + at / 2 % PAGES } else { zipf.page(&mut r) }
    };
    put("zipf+scan", (0..ACCESSES).map(scan_and_zipf).collect());
    put("stride", (0..ACCESSES).map(|i| (i * 7 + i * 7 / PAGES) % PAGES).collect());
    let mut r = random();
    let phases: Vec<Zipf> = (0..4).map(|phase| Zipf::new(PAGES, 1.0, phase * 1999)).collect();
    put("phases", (0..ACCESSES).map(|i| phases[(i * 4 / ACCESSES) as usize].page(&mut r)).collect());
    traces
}
