//! The programs: one source over two stores, in a process of its own.
//!
//! A store holds objects of 64 bytes, a column of words and a table of pairs: near, or as far
//! objects. Under `farmem run` the near store is what is paged.

#[path = "frame.rs"]
mod frame;
#[path = "graph.rs"]
mod graph;
#[path = "pair.rs"]
mod pair;
#[path = "records.rs"]
mod records;
#[path = "web.rs"]
mod web;

use std::collections::HashMap;
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use farmem_objects::{Builder, FarBox, FarHashMap, FarVec, Heap, Transport};
use serde::{Deserialize, Serialize};

/// What is stored: 64 bytes.
pub type Object = [u64; 8];

/// Objects that one scope, or one round trip, is for.
const TOGETHER: usize = 16;
/// Objects that stay in the first cache.
const HOT: usize = 1000;

/// What to do with the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Uses of 1000 objects that are local, a scope for 64
    Deref,
    /// Random reads, one by one
    Random,
    /// Random reads, 16 asked for together
    Together,
    /// Random, every second access writes
    Writes,
    /// A column of words, summed in order
    Scan,
    /// Random lookups in a hash map of words
    Map,
    /// A table of trips: a filtered sum, a filtered mean by day, the sum of a column
    Frame,
    /// A web front: 32 keys looked up, and a block of 8 KiB compressed
    Web,
    /// Random reads by two threads
    Pair,
    /// A column, compressed in order by pieces of 4 KiB
    Compress,
    /// A graph, searched in breadth
    Graph,
    /// A graph of which half is garbage, collected
    Collect,
    /// Records: the sum of a field where another is small
    Filter,
    /// A word of each of many records
    Gather,
}

impl Work {
    /// All of them.
    pub const ALL: [Work; 14] = [
        Work::Deref,
        Work::Random,
        Work::Together,
        Work::Writes,
        Work::Scan,
        Work::Map,
        Work::Frame,
        Work::Web,
        Work::Pair,
        Work::Compress,
        Work::Graph,
        Work::Collect,
        Work::Filter,
        Work::Gather,
    ];
}

/// Where objects lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// In the program's memory
    Near,
    /// In farmem's objects, over shared memory
    Shm,
    /// In farmem's objects, over TCP
    Tcp,
}

/// What a child is told.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Where objects lie
    #[arg(long, value_enum)]
    place: Place,
    /// The node
    #[arg(long)]
    node: Option<String>,
    /// Holds TCP to this rate, in bits a second
    #[arg(long)]
    rate: Option<u64>,
    /// Bytes that may be local
    #[arg(long)]
    local: usize,
    /// Objects of 64 bytes; as many bytes in the other programs
    #[arg(long)]
    objects: usize,
    /// Accesses that are timed
    #[arg(long)]
    accesses: usize,
    /// Draws places
    #[arg(long)]
    seed: u64,
    /// What to do
    #[arg(long, value_enum, value_delimiter = ',')]
    work: Vec<Work>,
    /// The program says by hints what it will use
    #[arg(long)]
    hints: bool,
    /// The CPU of a second thread
    #[arg(long)]
    second: Option<usize>,
    /// A memory group to join
    #[arg(long)]
    group: Option<PathBuf>,
}

/// What a program found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Found {
    /// What it did.
    pub work: Work,
    /// Of one access, ns.
    pub ns: f64,
    /// Of what was read: alike on all systems.
    pub sum: u64,
    /// Objects fetched meanwhile; none of a near store.
    pub fetched: u64,
}

/// Runs the programs and prints what they found.
///
/// # Errors
/// When the node is not there, or lost.
pub fn run(options: &Options) -> Result<()> {
    println!("{}", serde_json::to_string(&found(options)?)?);
    Ok(())
}

/// Runs the programs.
///
/// # Errors
/// As [`run`].
pub fn found(options: &Options) -> Result<Vec<Found>> {
    if let Some(group) = &options.group {
        farmem_bench::swap::join(group).context("joining the memory group")?;
    }
    match options.place {
        Place::Near => options.work.iter().map(|&work| near(options, work)).collect(),
        Place::Shm | Place::Tcp => {
            let heap = builder(options)?.build()?;
            options.work.iter().map(|&work| far(options, &heap, work)).collect()
        }
    }
}

fn builder(options: &Options) -> Result<Builder> {
    let way = if options.place == Place::Shm { Transport::Shm } else { Transport::Tcp };
    let node = options.node.as_deref().context("--node is missing")?;
    Ok(Heap::builder().local(options.local).node(node).transport(way).rate(options.rate))
}

fn object(n: u64) -> Object {
    std::array::from_fn(|field| (n + 1).wrapping_mul(2 * field as u64 + 1))
}

/// Random places below `len`.
struct Places(u64);

impl Places {
    fn next(&mut self, len: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((mixed ^ mixed >> 31) as u128 * len as u128) >> 64) as usize
    }
}

/// Objects, seen alike near and far.
trait Store {
    /// The sum of a field of these objects, taken one by one.
    fn read(&self, places: &[usize]) -> Result<u64>;
    /// The same, asked for together.
    fn read_together(&self, places: &[usize]) -> Result<u64>;
    /// Adds one to a field.
    fn write(&mut self, place: usize) -> Result<()>;
}

struct Near(Vec<Object>, bool);

impl Near {
    /// Says which objects come next, if the program gives hints.
    fn hint(&self, places: &[usize]) {
        if self.1 {
            let some: Vec<&Object> = places.iter().map(|&at| &self.0[at]).collect();
            farmem_hints::read_each(&some);
        }
    }
}

impl Store for Near {
    fn read(&self, places: &[usize]) -> Result<u64> {
        self.hint(places);
        Ok(places.iter().fold(0, |sum, &at| sum.wrapping_add(self.0[at][3])))
    }

    fn read_together(&self, places: &[usize]) -> Result<u64> {
        self.read(places)
    }

    fn write(&mut self, place: usize) -> Result<()> {
        if self.1 {
            farmem_hints::write(&mut self.0[place]);
        }
        self.0[place][3] = self.0[place][3].wrapping_add(1);
        Ok(())
    }
}

struct Far {
    heap: Heap,
    boxes: Vec<FarBox<Object>>,
}

impl Store for Far {
    fn read(&self, places: &[usize]) -> Result<u64> {
        let scope = self.heap.scope();
        let mut sum = 0u64;
        for &at in places {
            sum = sum.wrapping_add(self.boxes[at].get(&scope)?[3]);
        }
        Ok(sum)
    }

    fn read_together(&self, places: &[usize]) -> Result<u64> {
        let scope = self.heap.scope();
        let boxes: Vec<&FarBox<Object>> = places.iter().map(|&at| &self.boxes[at]).collect();
        Ok(self.heap.get_many(&boxes, &scope)?.iter().fold(0, |sum, one| sum.wrapping_add(one[3])))
    }

    fn write(&mut self, place: usize) -> Result<()> {
        let scope = self.heap.scope();
        let field = &mut self.boxes[place].get_mut(&scope)?[3];
        *field = field.wrapping_add(1);
        Ok(())
    }
}

/// Random accesses, after half as many that warm the store up. Time of one, ns, and the sum.
fn random(store: &mut impl Store, options: &Options, work: Work) -> Result<(f64, u64)> {
    let mut places = Places(options.seed);
    let mut sum = 0u64;
    let mut begun = Instant::now();
    let warm = options.accesses / 2;
    let mut done = 0;
    while done < warm + options.accesses {
        if done <= warm {
            begun = Instant::now();
        }
        let some: [usize; TOGETHER] = std::array::from_fn(|_| places.next(options.objects));
        sum = sum.wrapping_add(match work {
            Work::Together => store.read_together(&some)?,
            Work::Writes => {
                some[TOGETHER / 2..].iter().try_for_each(|&at| store.write(at))?;
                store.read(&some[..TOGETHER / 2])?
            }
            _ => store.read(&some)?,
        });
        done += TOGETHER;
    }
    // The last look at the clock was at the first access that counts.
    Ok((begun.elapsed().as_nanos() as f64 / (done - warm) as f64, sum))
}

/// What `each` takes, ns, called often enough to see it, the best of some times.
fn best(times: usize, uses: usize, mut each: impl FnMut() -> Result<u64>) -> Result<(f64, u64)> {
    let (mut least, mut sum) = (f64::INFINITY, 0);
    for _ in 0..times {
        let begun = Instant::now();
        sum = black_box(each()?);
        least = least.min(begun.elapsed().as_nanos() as f64 / uses as f64);
    }
    Ok((least, sum))
}

/// Words of a piece that is compressed: a far chunk.
const PIECE: usize = 512;

/// Words of which half can be compressed.
fn mixed(n: u64) -> u64 {
    if n.is_multiple_of(2) { n >> 9 } else { n.wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

/// The compressed length of a piece.
fn compressed(piece: &[u64], packed: &mut [u8]) -> Result<u64> {
    Ok(lz4_flex::block::compress_into(zerocopy::IntoBytes::as_bytes(piece), packed)? as u64)
}

/// Says that a column will be read in order, if the program gives hints.
fn in_order<T>(column: &[T], options: &Options) {
    if options.hints {
        farmem_hints::pattern(column, farmem_hints::Pattern::Sequential);
    }
}

fn near(options: &Options, work: Work) -> Result<Found> {
    let words = options.objects * 8;
    let (ns, sum) = match work {
        Work::Deref => {
            let hot: Vec<Box<Object>> = (0..HOT as u64).map(|n| Box::new(object(n))).collect();
            best(2000, HOT, || Ok(hot.iter().fold(0, |sum: u64, one| sum.wrapping_add(black_box(one)[3]))))?
        }
        Work::Scan => {
            let column: Vec<u64> = (0..words as u64).collect();
            in_order(&column, options);
            best(3, words, || Ok(column.iter().fold(0, |sum: u64, &one| sum.wrapping_add(one))))?
        }
        Work::Map => {
            let map: HashMap<u64, u64> = (0..words as u64 / 4).map(|n| (n, n)).collect();
            let mut places = Places(options.seed);
            let keys: Vec<u64> = (0..options.accesses).map(|_| places.next(words / 4) as u64).collect();
            best(2, keys.len(), || {
                Ok(keys.iter().fold(0, |sum: u64, key| sum.wrapping_add(map.get(key).copied().unwrap_or_default())))
            })?
        }
        Work::Frame => frame::near(options.objects)?,
        Work::Web => web::near(options.objects, options.accesses, options.seed)?,
        Work::Pair => pair::near(options)?,
        Work::Compress => {
            let column: Vec<u64> = (0..words as u64).map(mixed).collect();
            in_order(&column, options);
            let mut packed = vec![0; 2 * PIECE * 8];
            best(2, words / PIECE, || {
                column.chunks(PIECE).try_fold(0u64, |sum, piece| Ok(sum.wrapping_add(compressed(piece, &mut packed)?)))
            })?
        }
        Work::Graph | Work::Collect => graph::near(options, work)?,
        Work::Filter | Work::Gather => records::near(options, work)?,
        _ => random(&mut Near((0..options.objects as u64).map(object).collect(), options.hints), options, work)?,
    };
    Ok(Found { work, ns, sum, fetched: 0 })
}

fn far(options: &Options, heap: &Heap, work: Work) -> Result<Found> {
    let words = options.objects * 8;
    let before = heap.moved().0;
    let (ns, sum) = match work {
        Work::Deref => {
            let hot = (0..HOT as u64).map(|n| heap.alloc(&object(n)));
            let hot = hot.collect::<farmem_objects::Result<Vec<FarBox<Object>>>>()?;
            best(2000, HOT, || {
                let mut sum = 0u64;
                for some in hot.chunks(64) {
                    let scope = heap.scope();
                    for one in some {
                        sum = sum.wrapping_add(black_box(one).get(&scope)?[3]);
                    }
                }
                Ok(sum)
            })?
        }
        Work::Scan => {
            let mut column: FarVec<u64> = heap.vec();
            (0..words as u64).try_for_each(|n| column.push(n))?;
            best(3, words, || {
                let mut sum = 0u64;
                column.scan(|_, part| sum = part.iter().fold(sum, |sum, &one| sum.wrapping_add(one)))?;
                Ok(sum)
            })?
        }
        Work::Map => {
            let mut map: FarHashMap<u64, u64> = heap.map();
            for n in 0..words as u64 / 4 {
                map.insert(n, n)?;
            }
            let mut places = Places(options.seed);
            let keys: Vec<u64> = (0..options.accesses).map(|_| places.next(words / 4) as u64).collect();
            best(2, keys.len(), || {
                let mut sum = 0u64;
                for some in keys.chunks(TOGETHER) {
                    let scope = heap.scope();
                    for key in some {
                        sum = sum.wrapping_add(map.get(key, &scope)?.copied().unwrap_or_default());
                    }
                }
                Ok(sum)
            })?
        }
        Work::Frame => frame::far(heap, options.objects)?,
        Work::Web => web::far(heap, options.objects, options.accesses, options.seed)?,
        Work::Pair => return pair::far(options),
        Work::Compress => {
            let mut column: FarVec<u64> = heap.vec();
            for from in (0..words as u64).step_by(1 << 16) {
                let some: Vec<u64> = (from..(from + (1 << 16)).min(words as u64)).map(mixed).collect();
                column.extend_from_slice(&some)?;
            }
            let mut packed = vec![0; 2 * PIECE * 8];
            best(2, words / PIECE, || {
                let mut sum = Ok(0u64);
                column.scan(|_, piece| {
                    let done = sum.as_ref().ok().map(|sum| (*sum, compressed(piece, &mut packed)));
                    if let Some((before, len)) = done {
                        sum = len.map(|len| before.wrapping_add(len));
                    }
                })?;
                sum
            })?
        }
        Work::Graph | Work::Collect => graph::far(heap, options, work)?,
        Work::Filter | Work::Gather => records::far(heap, options, work)?,
        _ => {
            let boxes = (0..options.objects as u64).map(|n| heap.alloc(&object(n)));
            let boxes = boxes.collect::<farmem_objects::Result<Vec<FarBox<Object>>>>()?;
            random(&mut Far { heap: heap.clone(), boxes }, options, work)?
        }
    };
    if !ns.is_finite() {
        bail!("nothing was measured");
    }
    Ok(Found { work, ns, sum, fetched: heap.moved().0 - before })
}
