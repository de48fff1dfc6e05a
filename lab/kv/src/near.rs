//! The near cache's policy, replayed: the store's own code beside others on the same requests.
//!
//! Each policy has the same bytes. The store's pays for its entries without objects out of them, as
//! it does in a front end: they save one of two round trips of a miss. The others remember what
//! they like for nothing. A request that writes brings its key in; a read that finds nothing is a
//! miss.

use crate::mix::{Ask, Keys, Mix, Stream};
use crate::trace;
use anyhow::Result;
use farmem_kit::environment::Environment;
use farmem_kit::report::{Report, Section};
use farmem_kit::table::Table;
use farmem_kv::layout::{Geometry, Hash, Slot};
use farmem_kv::object::{Object, Value};
use farmem_kv::shard::index::{Cache, Known};
use farmem_protocol::addr::PageId;
use farmem_protocol::random::{Random, hash};
use farmem_replay::ideal;
use farmem_replay::trace::{Event, Trace, What};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Reads of a trace that miss, by a cache with room for so many objects.
type Misses = fn(&Trace, usize) -> u64;

/// Policies that see every request, beside the store's.
const OTHERS: [(&str, Misses); 6] = [
    ("LRU", ideal::lru),
    ("CLOCK", ideal::clock),
    ("SIEVE", ideal::sieve),
    ("2Q", ideal::two_queue),
    ("S3-FIFO", ideal::s3_fifo),
    ("MIN", ideal::belady),
];

/// Requests by name.
type Requests = (String, Vec<Ask>);

/// What came of one run of requests with one size of the cache.
#[derive(Clone, Debug, Serialize)]
pub struct Came {
    /// The requests.
    pub name: String,
    /// Bytes of a value.
    pub value: usize,
    /// Percent of all objects' bytes that the cache has.
    pub share: u64,
    /// Reads.
    pub reads: u64,
    /// Of these, those that the store's cache had no object for.
    pub missed: u64,
    /// Of these, those for which it had no slot either.
    pub cold: u64,
    /// Misses of the others: LRU, CLOCK, SIEVE, 2Q, S3-FIFO, MIN.
    pub others: [u64; OTHERS.len()],
}

impl Came {
    /// Round trips of a hundred reads by the store's cache: none, one, or two.
    fn trips(&self) -> f64 {
        100.0 * (self.missed + self.cold) as f64 / self.reads.max(1) as f64
    }
}

/// Requests as YCSB has them, and what caches are tried with: scans between, a change of what is frequent.
fn drawn(records: u64, count: usize) -> Vec<Requests> {
    let stream = |mix, keys| {
        let mut stream = Stream::new(mix, keys, records, 7);
        let asked = (0..count).map(|_| {
            let ask = stream.ask();
            stream.answered();
            ask
        });
        asked.collect::<Vec<_>>()
    };
    let zipfian: Vec<Ask> = stream(Mix::C, Keys::Zipfian);
    // A tenth of the requests are scans of a twentieth of the keys.
    let mut scanned = Vec::with_capacity(count);
    let mut random = Random::new(11);
    let length = records / 20;
    for some in zipfian.chunks((length * 9) as usize) {
        scanned.extend_from_slice(some);
        let from = random.below(records);
        scanned.extend((0..length).map(|n| Ask::Read((from + n) % records)));
    }
    // What is frequent changes ten times.
    let moved = zipfian.iter().enumerate();
    let moved = moved.map(|(n, ask)| Ask::Read(hash(ask.key() ^ (n * 10 / count) as u64) % records)).collect();
    vec![
        ("A, zipfian".into(), stream(Mix::A, Keys::Zipfian)),
        ("B, zipfian".into(), stream(Mix::B, Keys::Zipfian)),
        ("C, uniform".into(), stream(Mix::C, Keys::Uniform)),
        ("D, latest".into(), stream(Mix::D, Keys::Zipfian)),
        ("C, zipfian".into(), zipfian),
        ("… with scans".into(), scanned),
        ("… that changes".into(), moved),
    ]
}

/// The blocks of a trace: those that are not there are stored.
fn traced(path: &Path) -> Result<Requests> {
    let requests = trace::read(path)?;
    let blocks = requests.iter().flat_map(|request| &request.hash_ids);
    let mut seen = HashSet::new();
    let asked = blocks.map(|&id| if seen.insert(id) { Ask::Write(id) } else { Ask::Read(id) }).collect();
    Ok(("blocks".into(), asked))
}

/// The requests as a trace for the replayer: its pages are keys.
fn trace_of(asked: &[Ask]) -> Trace {
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut pages = Vec::new();
    let events = asked.iter().map(|ask| {
        let page = *numbers.entry(ask.key()).or_insert_with(|| {
            pages.push(PageId(ask.key()));
            pages.len() as u32 - 1
        });
        Event { page, thread: 0, what: if matches!(ask, Ask::Read(_)) { What::Again } else { What::Fresh } }
    });
    let events: Vec<Event> = events.collect();
    let (peak, again) = (pages.len(), events.iter().filter(|event| event.what == What::Again).count());
    Trace { name: String::new(), events, pages, peak, again }
}

fn key(n: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut rest = n;
    for digit in key.iter_mut().rev().take(12) {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// Bytes that the store's cache takes for a key with its object.
fn cost(object: &Object) -> u64 {
    const MANY: u64 = 10_000;
    let mut cache = Cache::new(1 << 30, Geometry::STORE);
    for n in 0..MANY {
        let (key, object) = (key(n), Object::of(&key(n), &Value::string(object.value())));
        cache.put(&key, Hash::of(&key), known(n, Hash::of(&key)), Some(&object));
    }
    cache.bytes() / MANY
}

fn known(n: u64, hash: Hash) -> Known {
    let slot_at = Geometry::STORE.bucket(0, hash.buckets(Geometry::STORE.buckets)[0]);
    let slot = Slot::new(hash.fingerprint(), 1, 0, (1 + n % (1 << 30)) * 64);
    Known { table: 0, slot_at, slot, len: 0, expiry: 0, epoch: 0, era: 0 }
}

/// Runs requests by the store's cache: misses, and those without a slot.
fn by_the_store(asked: &[Ask], budget: u64, object: &Object) -> (u64, u64) {
    let (mut cache, mut missed, mut cold) = (Cache::new(budget, Geometry::STORE), 0, 0);
    for ask in asked {
        let (n, key) = (ask.key(), key(ask.key()));
        let hash = Hash::of(&key);
        if matches!(ask, Ask::Read(_)) {
            match cache.get(&key, hash, 0) {
                Some((_, Some(_))) => continue,
                Some((_, None)) => missed += 1,
                None => (missed, cold) = (missed + 1, cold + 1),
            }
        }
        // With the key of its own, by which it is found again.
        let object = Object::of(&key, &Value::string(object.value()));
        cache.put(&key, hash, known(n, hash), Some(&object));
    }
    (missed, cold)
}

fn came(name: &str, asked: &[Ask], trace: &Trace, (value, share): (usize, u64)) -> Came {
    let object = Object::of(&key(0), &Value::string(vec![7; value]));
    let each = cost(&object);
    let budget = (trace.pages.len() as u64 * each * share / 100).max(32 * each);
    let (missed, cold) = by_the_store(asked, budget, &object);
    let others = OTHERS.map(|(_, misses)| misses(trace, (budget / each) as usize));
    Came { name: name.into(), value, share, reads: trace.again as u64, missed, cold, others }
}

/// The report. `path`: a trace of blocks.
///
/// # Errors
/// The trace cannot be read.
pub fn report(path: Option<&Path>, quick: bool) -> Result<Report<Vec<Came>>> {
    let (records, count) = if quick { (2_000, 40_000) } else { (50_000, 1_000_000) };
    let mut all: Vec<(Requests, &[usize])> = Vec::new();
    all.extend(drawn(records, count).into_iter().map(|requests| (requests, &[100, 1000][..])));
    if let Some(path) = path {
        all.push((traced(path)?, &[4096]));
    }
    let mut raw = Vec::new();
    for ((name, asked), values) in &all {
        let trace = trace_of(asked);
        for &value in *values {
            raw.extend([1, 10, 25, 50].map(|share| came(name, asked, &trace, (value, share))));
        }
    }
    let head = ["requests", "value", "local", "farmem", "LRU", "CLOCK", "SIEVE", "2Q", "S3-FIFO", "MIN"];
    let (mut misses, mut trips) = (Table::new(head), Table::new(head));
    for one in &raw {
        let first = [one.name.clone(), format!("{} B", one.value), format!("{} %", one.share)];
        let share = |misses: u64| 100.0 * misses as f64 / one.reads.max(1) as f64;
        let row = |own: f64, of: f64| {
            let others = one.others.iter().map(move |&misses| format!("{:.1}", of * share(misses)));
            first.clone().into_iter().chain([format!("{own:.1}")]).chain(others).collect::<Vec<_>>()
        };
        misses.row(row(share(one.missed), 1.0));
        trips.row(row(one.trips(), 2.0));
    }
    Ok(Report {
        bench: "kv --near",
        method: vec![
            format!(
                "{count} requests on {records} keys; 100 and 1000 bytes a value, blocks 4096. Same bytes for each policy."
            ),
            "farmem: the store's own code. It pays for the entries by which it knows slots of keys that it has no \
             object of; the others remember for nothing."
                .into(),
        ],
        environment: Environment::read(),
        skipped: Vec::new(),
        sections: vec![
            Section { title: "Reads in a hundred that found no object".into(), table: misses },
            Section {
                title: "Round trips of a hundred reads: one where the slot is known, else two".into(),
                table: trips,
            },
        ],
        targets: Vec::new(),
        raw,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_best() {
        let report = report(None, true).expect("no trace is read");
        for one in &report.raw {
            let [others @ .., min] = one.others;
            assert!(others.iter().all(|&misses| misses >= min) && one.missed >= min, "{one:?}");
            assert!(one.cold <= one.missed && one.missed <= one.reads, "{one:?}");
        }
    }
}
