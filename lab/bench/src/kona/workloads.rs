//! The programs whose dirt is counted: after those of Kona's evaluation, small, seeded, and endless.
//!
//! | program | what it stores |
//! |---|---|
//! | kv-random, kv-sequential | whole values of a table, drawn at random or in order |
//! | histogram, regression | map-reduce over an input that is read: what each map task emits, appended |
//! | pagerank | two words of a vertex's record, every vertex in order |
//! | components | a vertex's label, when a neighbour's is smaller |
//! | colouring | a vertex's colour, in an order drawn at random |
//!
//! A vertex is a record of 32 bytes, as vertex-centric frameworks have it. A *pass*
//! is once through the input, the edges, or as many updates as the table has keys.
//! What ends begins anew, so that a program runs for as long as it is looked at.

use super::graph::Graph;
use super::stores::Note;
use farmem_protocol::random::Random;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// A table's values, updated at random
    KvRandom,
    /// A table's values, updated in order
    KvSequential,
    /// Colours of a picture, counted
    Histogram,
    /// A line through points
    Regression,
    /// PageRank
    Pagerank,
    /// Connected components
    Components,
    /// Graph colouring
    Colouring,
}

impl Name {
    /// All of them, in the order of the tables.
    pub const ALL: [Name; 7] = [
        Name::KvRandom,
        Name::KvSequential,
        Name::Histogram,
        Name::Regression,
        Name::Pagerank,
        Name::Components,
        Name::Colouring,
    ];

    /// As the command line has it.
    pub fn text(self) -> &'static str {
        match self {
            Name::KvRandom => "kv-random",
            Name::KvSequential => "kv-sequential",
            Name::Histogram => "histogram",
            Name::Regression => "regression",
            Name::Pagerank => "pagerank",
            Name::Components => "components",
            Name::Colouring => "colouring",
        }
    }
}

/// Bytes of a value of the table.
pub const VALUE: usize = 128;
/// Input of one map task, bytes.
const TASK: usize = 64 << 10;
/// Keys that a histogram's task emits: a byte's values, of three colours.
const COLOURS: usize = 3 * 256;

/// A vertex, as its program keeps it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Vertex {
    value: f64,
    next: f64,
    label: u32,
    colour: u32,
    degree: u32,
    name: u32,
}
const VERTEX: usize = size_of::<Vertex>();
const _: () = assert!(VERTEX == 32);

/// A program at work.
pub struct Workload {
    name: Name,
    draw: Random,
    /// How far the pass is.
    at: usize,
    passes: u64,
    table: Vec<[u64; VALUE / 8]>,
    input: Vec<u8>,
    emitted: Vec<(u64, u64)>,
    emit_at: usize,
    graph: Graph,
    vertices: Vec<Vertex>,
    order: Vec<u32>,
}

// Numbers of arrays, for whoever notes stores.
const TABLE: usize = 0;
const EMITTED: usize = 1;
const COUNTERS: usize = 2;
const VERTICES: usize = 3;

impl Workload {
    /// A program over memory of about 2^scale KiB.
    pub fn new(name: Name, scale: u32, seed: u64) -> Workload {
        let bytes = 1024_usize << scale;
        let mut draw = Random::new(seed);
        let mut workload = Workload {
            name,
            at: 0,
            passes: 0,
            table: Vec::new(),
            input: Vec::new(),
            emitted: Vec::new(),
            emit_at: 0,
            graph: Graph { starts: vec![0], neighbours: Vec::new() },
            vertices: Vec::new(),
            order: Vec::new(),
            draw: Random::new(seed + 1),
        };
        match name {
            Name::KvRandom | Name::KvSequential => workload.table = vec![[1; VALUE / 8]; bytes / VALUE],
            Name::Histogram | Name::Regression => {
                workload.input = (0..bytes / 8).flat_map(|_| draw.bits().to_ne_bytes()).collect();
                // Room for what two passes emit; then over it again.
                let each = if name == Name::Histogram { COLOURS } else { 5 };
                workload.emitted = vec![(0, 0); 2 * each * bytes / TASK];
            }
            Name::Pagerank | Name::Components | Name::Colouring => {
                // 2^scale KiB of edges: a vertex has 32 neighbours of 4 bytes.
                workload.graph = Graph::rmat(scale + 10 - 7, seed);
                let vertices = workload.graph.vertices();
                workload.vertices = vec![Vertex { value: 1.0, ..Vertex::default() }; vertices];
                for (vertex, record) in workload.vertices.iter_mut().enumerate() {
                    record.degree = workload.graph.of(vertex).len() as u32;
                    (record.name, record.label) = (vertex as u32, vertex as u32);
                }
                workload.order = (0..vertices as u32).collect();
                workload.shuffle();
            }
        }
        workload
    }

    fn shuffle(&mut self) {
        for at in (1..self.order.len()).rev() {
            self.order.swap(at, self.draw.index(at + 1));
        }
    }

    /// Operations of a whole pass: updates, bytes of input, vertices.
    pub fn pass(&self) -> usize {
        match self.name {
            Name::KvRandom | Name::KvSequential => self.table.len(),
            Name::Histogram | Name::Regression => self.input.len(),
            Name::Pagerank | Name::Components | Name::Colouring => self.vertices.len(),
        }
    }

    /// Goes on a little, and says how many operations that was.
    pub fn step(&mut self, note: &mut impl Note) -> u64 {
        match self.name {
            Name::KvRandom | Name::KvSequential => self.update(note),
            Name::Histogram => self.histogram(note),
            Name::Regression => self.regression(note),
            Name::Pagerank => self.pagerank(note),
            Name::Components => self.components(note),
            Name::Colouring => self.colouring(note),
        }
    }

    /// Whether the pass is over; then the next begins.
    fn turn(&mut self, by: usize) -> bool {
        self.at += by;
        let over = self.at >= self.pass();
        if over {
            self.at = 0;
            self.passes += 1;
        }
        over
    }

    fn update(&mut self, note: &mut impl Note) -> u64 {
        const BATCH: usize = 256;
        for nth in 0..BATCH {
            let keys = self.table.len();
            let key = if self.name == Name::KvRandom { self.draw.index(keys) } else { (self.at + nth) % keys };
            let with = self.draw.bits();
            self.table[key].iter_mut().enumerate().for_each(|(word, to)| *to = with ^ word as u64);
            note.store(TABLE, key * VALUE, VALUE);
        }
        self.turn(BATCH);
        BATCH as u64
    }

    fn emit(&mut self, key: u64, value: u64, note: &mut impl Note) {
        self.emitted[self.emit_at] = (key, value);
        note.store(EMITTED, self.emit_at * 16, 16);
        self.emit_at = (self.emit_at + 1) % self.emitted.len();
    }

    fn histogram(&mut self, note: &mut impl Note) -> u64 {
        let mut counters = [0_u32; COLOURS];
        note.store(COUNTERS, 0, size_of_val(&counters));
        let task = &self.input[self.at..][..TASK.min(self.input.len() - self.at)];
        let len = task.len();
        for pixel in task.chunks_exact(3) {
            for (colour, &shade) in pixel.iter().enumerate() {
                counters[colour * 256 + usize::from(shade)] += 1;
            }
        }
        for (key, &count) in counters.iter().enumerate() {
            self.emit(key as u64, u64::from(count) + self.passes, note);
        }
        self.turn(len);
        len as u64
    }

    fn regression(&mut self, note: &mut impl Note) -> u64 {
        let task = &self.input[self.at..][..TASK.min(self.input.len() - self.at)];
        let len = task.len();
        let mut sums = [0_u64; 5];
        for point in task.chunks_exact(2) {
            let (x, y) = (u64::from(point[0]), u64::from(point[1]));
            let terms = [x, y, x * x, y * y, x * y];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        for (key, sum) in sums.into_iter().enumerate() {
            self.emit(key as u64, sum + self.passes, note);
        }
        self.turn(len);
        len as u64
    }

    /// Some vertices of this pass, in order.
    fn some(&self) -> std::ops::Range<usize> {
        self.at..(self.at + 1024).min(self.vertices.len())
    }

    fn pagerank(&mut self, note: &mut impl Note) -> u64 {
        let some = self.some();
        let len = some.len();
        for vertex in some {
            let of = |&other: &u32| {
                let other = &self.vertices[other as usize];
                other.value / f64::from(other.degree.max(1))
            };
            let sum: f64 = self.graph.of(vertex).iter().map(of).sum();
            self.vertices[vertex].next = 0.15 + 0.85 * sum;
            note.store(VERTICES, vertex * VERTEX + std::mem::offset_of!(Vertex, next), 8);
        }
        if self.turn(len) {
            // A rank that is settled to its last bit is a silent store: nudge it, as a changing graph would.
            let nudge = 1.0 + self.draw.index(1000) as f64 * 1e-9;
            for (vertex, record) in self.vertices.iter_mut().enumerate() {
                record.value = record.next * nudge;
                note.store(VERTICES, vertex * VERTEX, 8);
            }
        }
        len as u64
    }

    fn components(&mut self, note: &mut impl Note) -> u64 {
        const LABEL: usize = std::mem::offset_of!(Vertex, label);
        let some = self.some();
        let len = some.len();
        if self.at == 0 && self.passes.is_multiple_of(6) && self.passes > 0 {
            // By now nothing changes any more: other labels.
            self.shuffle();
            for (vertex, record) in self.vertices.iter_mut().enumerate() {
                record.label = self.order[vertex];
                note.store(VERTICES, vertex * VERTEX + LABEL, 4);
            }
        }
        for vertex in some {
            let least = self.graph.of(vertex).iter().map(|&other| self.vertices[other as usize].label).min();
            if least.is_some_and(|least| least < self.vertices[vertex].label) {
                self.vertices[vertex].label = least.unwrap_or_default();
                note.store(VERTICES, vertex * VERTEX + LABEL, 4);
            }
        }
        self.turn(len);
        len as u64
    }

    fn colouring(&mut self, note: &mut impl Note) -> u64 {
        const COLOUR: usize = std::mem::offset_of!(Vertex, colour);
        let some = self.some();
        let len = some.len();
        for place in some {
            let vertex = self.order[place] as usize;
            // Colours beyond 63 neighbours' are not told apart: the 64th takes what comes.
            let taken = self.graph.of(vertex).iter().fold(0_u64, |taken, &other| {
                let colour = self.vertices[other as usize].colour;
                if colour == 0 { taken } else { taken | 1 << ((colour - 1) % 64) }
            });
            let colour = taken.trailing_ones() + 1;
            // Of another pass's palette, so that it is no silent store.
            self.vertices[vertex].colour = colour + 64 * (self.passes as u32 % 2);
            note.store(VERTICES, vertex * VERTEX + COLOUR, 4);
        }
        if self.turn(len) {
            self.shuffle();
        }
        len as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kona::stores::{Ledger, Touched};

    fn windows(name: Name, seed: u64, windows: usize) -> Vec<Touched> {
        let mut workload = Workload::new(name, 12, seed);
        let mut ledger = Ledger::default();
        let ops = (workload.pass() / 10) as u64;
        let window = |_| {
            let mut done = 0;
            while done < ops {
                done += workload.step(&mut ledger);
            }
            ledger.take()
        };
        (0..windows).map(window).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_stores() {
        for name in Name::ALL {
            let first = windows(name, 1, 12);
            assert_eq!(first, windows(name, 1, 12), "{name:?}");
            assert!(first.iter().any(|touched| touched.bytes > 0), "{name:?}");
        }
    }

    #[test]
    fn values_at_random_cost_pages_and_in_order_nothing() {
        let sum = |name| {
            let mut sum = Touched::default();
            windows(name, 1, 10).into_iter().for_each(|touched| sum.add(touched));
            sum
        };
        let (random, sequential) = (sum(Name::KvRandom), sum(Name::KvSequential));
        assert_eq!(random.amplification()[0], 1.0, "a value is two whole lines");
        // A tenth of the table's updates: of a page's 32 values some 3.
        assert!((8.0..12.0).contains(&random.amplification()[1]), "{:?}", random.amplification());
        assert!(sequential.amplification()[1] < 1.01, "{:?}", sequential.amplification());
    }

    #[test]
    fn components_settle() {
        let touched = windows(Name::Components, 1, 50);
        assert!(touched[0].bytes > 0 && touched[45].bytes * 20 < touched[0].bytes, "{touched:?}");
    }
}
