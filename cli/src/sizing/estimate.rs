//! Estimates how much a program would fetch with less local memory, by replaying a sample of its
//! page uses.
//!
//! ```text
//! trace ─► last rate: pages of the sample ─┬─► cache as small as the sample, --local A ─► returns × 1/rate
//!                                          ├─► …                              --local B
//!                                          └─► most pages in use at once × 1/rate = the peak
//! ```
//!
//! The caches run the policy that the pager runs ([`farmem_cache::recommended`]). They cannot run
//! its prefetcher, for most of a page's neighbours are not in the sample. But the sample's blocks
//! of four pages show which uses are in order. The policy hears of these as of pages fetched ahead,
//! and they are counted apart, because they cost less.

use std::collections::HashMap;

use farmem_cache::sample::{self, is_sampled};
use farmem_cache::trace::{Decoder, Kind, Record, SAMPLED_HEADER};
use farmem_cache::{Arrival, Policy};
use farmem_protocol::addr::{PAGE_BYTES, PageId};

/// Threads that are told apart, as traces do.
const THREADS: usize = 64;

/// A cache is believed if it has this many pages for each that the recorder kept local.
const BELIEVED: u64 = 5;

/// A recorded process.
pub struct Trace {
    records: Vec<u8>,
    shift: u32,
}

/// The behaviour of a process with one amount of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Returns {
    /// Pages that it would come back to after they had left.
    pub all: u64,
    /// … right after the one before or behind them, so that most would be there ahead of it.
    pub in_order: u64,
}

impl Trace {
    /// A trace file's content; `None` if it is none, or has no record.
    pub fn new(file: Vec<u8>) -> Option<Trace> {
        let records = file.strip_prefix(&SAMPLED_HEADER)?.to_vec();
        let mut trace = Trace { records, shift: 0 };
        let rates = trace.each().filter(|record| record.kind == Kind::Touch);
        trace.shift = u32::try_from(rates.last()?.page.0).ok().filter(|&shift| shift < 32)?;
        Some(trace)
    }

    /// All records, at whatever rate they were made.
    fn each(&self) -> impl Iterator<Item = Record> {
        let mut decoder = Decoder::new();
        let mut rest = self.records.as_slice();
        std::iter::from_fn(move || {
            let (record, n) = decoder.decode(rest)?;
            rest = &rest[n..];
            Some(record)
        })
    }

    /// Uses of the pages that were in the sample to its end.
    fn uses(&self) -> impl Iterator<Item = Record> {
        self.each().filter(|record| record.kind != Kind::Touch && is_sampled(record.page, self.shift))
    }

    /// Faults that were recorded, at whatever rate.
    pub fn faults(&self) -> u64 {
        self.each().filter(|record| matches!(record.kind, Kind::Fault | Kind::Fresh)).count() as u64
    }

    /// The most memory in use at once: touched, and not unmapped since. Bytes.
    pub fn peak(&self) -> u64 {
        let mut pages = Pages::default();
        self.uses().for_each(|record| _ = pages.put(&record));
        pages.peak << self.shift << PAGE_BYTES.trailing_zeros()
    }

    /// The least local memory, in bytes, of which this trace can tell.
    pub fn least(&self) -> u64 {
        (BELIEVED * sample::KEPT as u64 / 2) << self.shift << PAGE_BYTES.trailing_zeros()
    }

    /// The behaviour of the process with these amounts of local memory, in bytes.
    pub fn returns(&self, sizes: &[u64]) -> Vec<Returns> {
        let mut caches: Vec<Cache> = sizes.iter().map(|&local| Cache::new(local, self.shift)).collect();
        let mut pages = Pages::default();
        let in_order = self.in_order();
        for (n, record) in self.uses().enumerate() {
            let Some((number, is_return)) = pages.put(&record) else { continue };
            let how = match (is_return, in_order.get(n)) {
                (false, _) => Arrival::FirstTouch,
                (true, false) => Arrival::Demand,
                (true, true) => Arrival::Prefetch,
            };
            caches.iter_mut().for_each(|cache| cache.put(record.kind, number, how));
        }
        let whole = |sampled: u64| sampled << self.shift;
        caches.iter().map(|cache| Returns { all: whole(cache.returns), in_order: whole(cache.in_order) }).collect()
    }

    /// Which uses follow the thread's use before in order, or, at a block's edge, are followed so
    /// by the next: the page before that is not in the sample.
    fn in_order(&self) -> Bits {
        let mut last = [(u64::MAX, 0); THREADS];
        let mut in_order = Bits(Vec::new());
        for (n, record) in self.uses().enumerate() {
            in_order.put(n, false);
            if record.kind == Kind::Gone {
                continue;
            }
            let page = record.page.0;
            let (before, at) = std::mem::replace(&mut last[record.thread as usize % THREADS], (page, n));
            if before.abs_diff(page) == 1 {
                in_order.put(n, true);
                let beyond = before.wrapping_add(before.wrapping_sub(page));
                if before >> sample::BLOCK != beyond >> sample::BLOCK {
                    in_order.put(at, true);
                }
            }
        }
        in_order
    }
}

/// A bit for each use.
struct Bits(Vec<u64>);

impl Bits {
    fn put(&mut self, n: usize, bit: bool) {
        if self.0.len() <= n / 64 {
            self.0.resize(n / 64 + 1, 0);
        }
        self.0[n / 64] |= (bit as u64) << (n % 64);
    }

    fn get(&self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 != 0
    }
}

/// Pages by dense number, and which of them are in use.
#[derive(Default)]
struct Pages {
    numbers: HashMap<u64, u32>,
    in_use: Vec<bool>,
    live: u64,
    peak: u64,
}

impl Pages {
    /// The page's number, and whether it has bytes that would have to be fetched. `None`: it says
    /// nothing.
    fn put(&mut self, record: &Record) -> Option<(u32, bool)> {
        let next = self.numbers.len() as u32;
        let number = *self.numbers.entry(record.page.0).or_insert(next);
        if number == next {
            self.in_use.push(false);
        }
        let in_use = &mut self.in_use[number as usize];
        let was = std::mem::replace(in_use, record.kind != Kind::Gone);
        match (was, *in_use) {
            (false, false) => return None,
            (false, true) => self.live += 1,
            (true, false) => self.live -= 1,
            (true, true) => {}
        }
        self.peak = self.peak.max(self.live);
        Some((number, was && record.kind == Kind::Fault))
    }
}

/// Local memory as small as the sample. The policy knows pages by their dense numbers.
struct Cache {
    policy: Box<dyn Policy>,
    is_local: Vec<bool>,
    local: usize,
    room: usize,
    batch: usize,
    leaving: Vec<PageId>,
    returns: u64,
    in_order: u64,
}

impl Cache {
    fn new(bytes: u64, shift: u32) -> Cache {
        let pages = bytes >> PAGE_BYTES.trailing_zeros();
        let room = (pages >> shift).max(2) as usize;
        // As the pager of one thread has it.
        let batch = (pages / 64).max(32).min(pages / 8) >> shift;
        Cache {
            policy: farmem_cache::recommended(room),
            is_local: Vec::new(),
            local: 0,
            room,
            batch: (batch as usize).clamp(1, room / 2),
            leaving: Vec::new(),
            returns: 0,
            in_order: 0,
        }
    }

    fn put(&mut self, kind: Kind, number: u32, how: Arrival) {
        let (page, number) = (PageId(number.into()), number as usize);
        if self.is_local.len() <= number {
            self.is_local.resize(number + 1, false);
        }
        if kind == Kind::Gone {
            if std::mem::take(&mut self.is_local[number]) {
                self.policy.gone(page);
                self.local -= 1;
            }
            return;
        }
        if std::mem::replace(&mut self.is_local[number], true) {
            return;
        }
        self.returns += (how != Arrival::FirstTouch) as u64;
        self.in_order += (how == Arrival::Prefetch) as u64;
        if self.local >= self.room {
            self.policy.victims(self.batch, &mut self.leaving);
            self.local -= self.leaving.len();
            self.leaving.drain(..).for_each(|page| self.is_local[page.0 as usize] = false);
        }
        self.local += 1;
        self.policy.arrived(page, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_cache::trace::{Encoder, RECORD_BYTES};

    /// The trace of a program that uses these pages in this order, with all local memory it wants.
    fn recorded(shift: u32, pages: impl Iterator<Item = u64>) -> Trace {
        let mut encoder = Encoder::new();
        let mut file = SAMPLED_HEADER.to_vec();
        let mut put = |page: u64, kind: Kind| {
            let mut bytes = [0; RECORD_BYTES];
            let n = encoder.encode(Record { page: PageId(page), kind, thread: 0 }, &mut bytes);
            file.extend(&bytes[..n]);
        };
        // At twice the rate at first: pages that were sampled then, and are not any more, must not
        // count.
        put(u64::from(shift) - 1, Kind::Touch);
        let mut seen = std::collections::HashSet::new();
        for (n, page) in pages.enumerate() {
            if n == 1000 {
                put(u64::from(shift), Kind::Touch);
            }
            if is_sampled(PageId(page), if n < 1000 { shift - 1 } else { shift }) {
                put(page, if seen.insert(page) { Kind::Fresh } else { Kind::Fault });
            }
        }
        Trace::new(file).unwrap()
    }

    fn near(value: u64, expected: u64) -> bool {
        value.abs_diff(expected) <= expected / 10
    }

    const PAGES: u64 = 1 << 16;
    const MIB: u64 = 1 << 20;

    #[test]
    fn random_uses_miss_by_the_share_that_is_not_local() {
        let mut random = 88_172_645_463_325_252u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % PAGES
        };
        let trace = recorded(3, (0..PAGES).chain((0..1 << 20).map(|_| next())));
        assert!(near(trace.peak(), 256 * MIB), "{}", trace.peak());
        let [whole, half, quarter] = trace.returns(&[300 * MIB, 128 * MIB, 64 * MIB])[..] else { panic!() };
        assert_eq!(whole, Returns::default());
        assert!(near(half.all, 1 << 19) && near(quarter.all, 3 << 18), "{half:?} {quarter:?}");
        assert!(quarter.in_order < quarter.all / 20, "{quarter:?}");
    }

    #[test]
    fn rounds_in_order_are_seen_to_be_so() {
        let trace = recorded(3, (0..10 * PAGES).map(|n| n % PAGES));
        let [half] = trace.returns(&[128 * MIB])[..] else { panic!() };
        assert!(half.all > 4 * PAGES && near(half.in_order, half.all), "{half:?}");
        let few = recorded(3, (0..10 * PAGES).map(|n| n % (PAGES / 8)));
        assert_eq!(few.returns(&[128 * MIB]), [Returns::default()], "all of it fits");
    }

    #[test]
    fn memory_that_is_given_back_counts_no_more() {
        let mut encoder = Encoder::new();
        let mut file = SAMPLED_HEADER.to_vec();
        let mut put = |page: u64, kind: Kind| {
            let mut bytes = [0; RECORD_BYTES];
            let n = encoder.encode(Record { page: PageId(page), kind, thread: 0 }, &mut bytes);
            file.extend(&bytes[..n]);
        };
        put(0, Kind::Touch);
        for round in 0..8 {
            let pages = round * 1000..(round + 1) * 1000;
            pages.clone().for_each(|page| put(page, Kind::Fresh));
            pages.for_each(|page| put(page, Kind::Gone));
        }
        let trace = Trace::new(file).unwrap();
        assert_eq!(trace.peak(), 1000 * 4096);
        assert_eq!(trace.returns(&[MIB])[0].all, 0);
    }

    #[test]
    fn other_files_are_none() {
        assert!(Trace::new(b"farmemPT\x01".to_vec()).is_none());
        assert!(Trace::new(SAMPLED_HEADER.to_vec()).is_none());
        let damaged = [&SAMPLED_HEADER[..], &[0xff; 40]].concat();
        assert!(Trace::new(damaged).is_none_or(|trace| trace.returns(&[MIB]).len() == 1));
    }
}
