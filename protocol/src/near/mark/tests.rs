//! Markings against a plain search of the same graph.

use super::*;
use crate::near::{Call, FRAME, Function, MAX_HOPS, Reply};
use proptest::prelude::*;
use std::collections::HashSet;

/// Several ranges of plain memory, by key.
struct World {
    memories: Vec<Vec<u8>>,
    places: Vec<Option<Range>>,
    always_late: bool,
    /// Bytes that were read.
    read: usize,
}

const DIRECTORY: u64 = 0;
const WORK: u64 = 1;
const FIRST: u64 = 2;

impl World {
    fn place(&self, of: Which, at: u64, len: usize) -> Option<(usize, std::ops::Range<usize>)> {
        let (key, at) = match of {
            Which::Source => (DIRECTORY, at),
            Which::List => (WORK, at),
            Which::Place(n) => {
                let range = self.places[usize::from(n)]?;
                assert!(at + len as u64 <= range.len, "an access outside of an opened range");
                (range.key.0, range.at + at)
            }
        };
        Some((key as usize, at as usize..at as usize + len))
    }
}

impl Bytes for World {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        let (key, range) = self.place(of, at, into.len())?;
        self.read += into.len();
        into.copy_from_slice(self.memories[key].get(range)?);
        Some(())
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let (key, range) = self.place(of, at, bytes.len())?;
        self.memories[key].get_mut(range)?.copy_from_slice(bytes);
        Some(())
    }

    fn open(&mut self, n: u8, range: Range, _: bool) -> Option<()> {
        self.memories.get(range.key.0 as usize)?.get(range.at as usize..(range.at + range.len) as usize)?;
        self.places[usize::from(n)] = Some(range);
        Some(())
    }

    fn close(&mut self, n: u8) {
        self.places[usize::from(n)] = None;
    }

    fn is_late(&mut self) -> bool {
        self.always_late
    }
}

/// Where the blocks of a graph lie, and the links of each object, by block and slot.
#[derive(Debug, Clone)]
struct Graph {
    stride: u16,
    links: Vec<u16>,
    slots: u32,
    lies: Vec<Lies>,
    /// By object and link.
    words: Vec<Vec<u64>>,
    roots: Vec<u64>,
    room: u32,
    steps: u32,
    late: bool,
}

fn lies() -> impl Strategy<Value = Lies> {
    prop_oneof![
        6 => Just(Lies::Here), 1 => Just(Lies::Elsewhere), 1 => Just(Lies::Moved), 1 => Just(Lies::Nowhere),
    ]
}

fn graph() -> impl Strategy<Value = Graph> {
    (1..90u32, prop::collection::vec(lies(), 1..70), 1..5u16, 1..4usize).prop_flat_map(|(slots, lies, gap, links)| {
        let (blocks, objects) = (lies.len() as u32, lies.len() * slots as usize);
        let word = prop_oneof![
            20 => (0..blocks, 0..slots).prop_map(|(block, slot)| word(block, slot)),
            8 => Just(0u64),
            1 => any::<u64>(),
            1 => (0..blocks + 2, any::<u32>()).prop_map(|(block, slot)| word(block, slot)),
        ];
        let words = prop::collection::vec(prop::collection::vec(word.clone(), links), objects);
        let places = (0..links as u16).map(move |n| n * gap).collect::<Vec<u16>>();
        (words, prop::collection::vec(word, 1..6), 4..40u32, 1..60u32, any::<bool>()).prop_map(
            move |(words, roots, room, steps, late)| Graph {
                stride: 8 * (gap * links as u16 + 1),
                links: places.clone(),
                slots,
                lies: lies.clone(),
                words,
                roots,
                room,
                steps,
                late,
            },
        )
    })
}

impl Graph {
    fn objects(&self, word: u64) -> Option<(Lies, usize)> {
        let (block, slot) = named(word)?;
        let lies = *self.lies.get(block as usize)?;
        (slot < self.slots && lies != Lies::Nowhere).then_some((lies, (block * self.slots + slot) as usize))
    }

    /// Reachable objects here, and the links that lead elsewhere.
    fn reached(&self) -> (HashSet<usize>, HashSet<u64>, Vec<(u64, u64)>) {
        let (mut here, mut elsewhere, mut moved) = (HashSet::new(), HashSet::new(), Vec::new());
        let mut waits: Vec<u64> = self.roots.clone();
        waits.retain(|&word| self.objects(word).is_some_and(|(lies, _)| lies == Lies::Here));
        while let Some(holder) = waits.pop() {
            let Some((Lies::Here, n)) = self.objects(holder) else { continue };
            if !here.insert(n) {
                continue;
            }
            for (&link, &word) in self.links.iter().zip(&self.words[n]) {
                match self.objects(word) {
                    Some((Lies::Here, _)) => waits.push(word),
                    Some((Lies::Elsewhere, _)) => {
                        elsewhere.insert(word);
                    }
                    Some((Lies::Moved, _)) => moved.push((holder | u64::from(link) << LINK, word)),
                    _ => {}
                }
            }
        }
        moved.sort_unstable();
        (here, elsewhere, moved)
    }

    fn world(&self) -> World {
        let half = bitmap(self.slots);
        let bytes = u64::from(self.slots) * u64::from(self.stride);
        let mut memories = vec![Vec::new(); FIRST as usize];
        for (n, lies) in self.lies.iter().enumerate() {
            let n = n as u64;
            let entry = Entry {
                block: [FIRST + 2 * n, 8].map(U64::new),
                bits: [FIRST + 2 * n + 1, 16].map(U64::new),
                slots: self.slots.into(),
                lies: (*lies as u32).into(),
            };
            memories[DIRECTORY as usize].extend_from_slice(entry.as_bytes());
            let mut block = vec![0xee; 8 + bytes as usize];
            for slot in 0..self.slots as usize {
                let words = &self.words[n as usize * self.slots as usize + slot];
                for (&link, word) in self.links.iter().zip(words) {
                    let at = 8 + slot * usize::from(self.stride) + 8 * usize::from(link);
                    block[at..at + 8].copy_from_slice(&word.to_le_bytes());
                }
            }
            memories.extend([block, vec![0; 16 + 2 * half as usize]]);
        }
        let mut head = Head::default();
        for &link in &self.links {
            head.links[usize::from(link / 64)] |= 1u64 << (link % 64);
        }
        head.count = (self.roots.len() as u32).into();
        let mut work = head.as_bytes().to_vec();
        work.extend(self.roots.iter().flat_map(|root| root.to_le_bytes()));
        work.resize(self.mark().work() as usize, 0);
        memories[WORK as usize] = work;
        World { memories, places: vec![None; PLACES], always_late: self.late, read: 0 }
    }

    fn mark(&self) -> Mark {
        Mark { stride: self.stride, room: self.room, steps: self.steps }
    }

    fn call(&self, world: &World) -> Call {
        let range = |key: u64| Range { key: Key(key), at: 0, len: world.memories[key as usize].len() as u64 };
        Call { source: range(DIRECTORY), list: range(WORK), function: Function::Mark(self.mark()) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Call after call, as short as they are: all objects that can be reached are marked, and no
    /// others. A link that leads elsewhere is told once, one to a moved block each time.
    #[test]
    fn what_is_marked_can_be_reached(graph in graph()) {
        let mut world = graph.world();
        let call = graph.call(&world);
        prop_assert_eq!(Call::parse(&call.frame()), Ok(call));
        let (here, elsewhere, moved) = graph.reached();
        let mut reports = Vec::new();
        let mut calls = 0;
        loop {
            let reply = call.run(&mut world).unwrap();
            prop_assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
            let Reply::Marked(marked) = reply else { panic!("{reply:?}") };
            prop_assert!(marked.scanned <= graph.steps);
            let work = &mut world.memories[WORK as usize];
            let (mut head, _) = Head::read_from_prefix(work).unwrap();
            prop_assert_eq!(head.told.get(), marked.told);
            let told = &work[REPORTS_AT as usize..][..16 * marked.told as usize];
            reports.extend(told.chunks_exact(16).map(|report| Report::read_from_bytes(report).unwrap()));
            head.told = 0.into();
            work[..size_of::<Head>()].copy_from_slice(head.as_bytes());
            if marked.done {
                break;
            }
            calls += 1;
            prop_assert!(calls < 100_000);
        }
        for (block, lies) in graph.lies.iter().enumerate() {
            let bits = &world.memories[FIRST as usize + 2 * block + 1][16..];
            for slot in 0..graph.slots as usize {
                let bit = |from: usize| bits[from + slot / 8] >> (slot % 8) & 1 != 0;
                let n = block * graph.slots as usize + slot;
                let expected = match lies {
                    Lies::Here => here.contains(&n),
                    Lies::Elsewhere => elsewhere.contains(&word(block as u32, slot as u32)),
                    Lies::Moved | Lies::Nowhere => false,
                };
                prop_assert_eq!(bit(0), expected, "block {} slot {}", block, slot);
                let scanned = bit(bitmap(graph.slots) as usize);
                prop_assert_eq!(scanned, expected && *lies == Lies::Here, "block {} slot {}", block, slot);
            }
        }
        let is_moved = |report: &&Report| matches!(graph.objects(report.word.get()), Some((Lies::Moved, _)));
        let (to_moved, others): (Vec<&Report>, Vec<&Report>) = reports.iter().partition(is_moved);
        let mut to_moved: Vec<_> = to_moved.iter().map(|one| (one.holder.get(), one.word.get())).collect();
        to_moved.sort_unstable();
        prop_assert_eq!(to_moved, moved);
        prop_assert_eq!(others.len(), elsewhere.len());
        prop_assert_eq!(others.iter().map(|one| one.word.get()).collect::<HashSet<_>>(), elsewhere);
    }

    /// Any directory and any work range: bounded, and within what was opened.
    #[test]
    fn hostile_markings_are_bounded(graph in graph(), pokes in prop::collection::vec((0..4usize, any::<u16>(), any::<u8>()), 1..40)) {
        let mut world = graph.world();
        let call = graph.call(&world);
        for (memory, at, byte) in pokes {
            let bytes = &mut world.memories[memory];
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        for _ in 0..4 {
            if let Some(reply) = call.run(&mut world) {
                prop_assert!(Reply::parse(&reply.frame(), &call).is_some());
            }
        }
    }
}

/// A marking that changes its own directory: the bits of one block lie over another's entry, and a
/// third takes its place among the blocks that the call remembers. When the first is scanned, it has
/// moved, and has more slots than the third. Nothing outside of what is open is touched.
#[test]
fn a_directory_that_a_marking_changes_opens_nothing() {
    let mut memories =
        vec![vec![0u8; 65 * ENTRY as usize], Vec::new(), vec![0; 8 << 20], vec![0; 8 << 20], vec![0; 528]];
    let entry = |block: [u64; 2], bits: [u64; 2], slots: u32| Entry {
        block: block.map(U64::new),
        bits: bits.map(U64::new),
        slots: slots.into(),
        lies: (Lies::Here as u32).into(),
    };
    let (large, slots) = (1 << 20, 64);
    // The third block's objects, and behind them its bits, at the end of what the caller has.
    for (at, entry) in [
        (0, entry([2, 0], [3, 0], large)),
        (1, entry([2, 0], [DIRECTORY, 32], slots)),
        (64, entry([4, 0], [4, 512], slots)),
    ] {
        memories[DIRECTORY as usize][at * ENTRY as usize..][..ENTRY as usize].copy_from_slice(entry.as_bytes());
    }
    let mut head = Head { count: 3.into(), ..Head::default() };
    head.links[0] = 1.into();
    let mark = Mark { stride: 8, room: 4, steps: MAX_HOPS };
    let mut work = head.as_bytes().to_vec();
    work.extend([word(0, large - 1), word(1, 33), word(64, 0)].iter().flat_map(|word| word.to_le_bytes()));
    work.resize(mark.work() as usize, 0);
    memories[WORK as usize] = work;
    let mut world = World { memories, places: vec![None; PLACES], always_late: false, read: 0 };
    let range = |key: u64| Range { key: Key(key), at: 0, len: world.memories[key as usize].len() as u64 };
    let call = Call { source: range(DIRECTORY), list: range(WORK), function: Function::Mark(mark) };
    // `World` fails on an access outside of an opened range, and at a place that is not open.
    let marked = call.run(&mut world);
    assert!(matches!(marked, Some(Reply::Marked(Marked { told: 0, .. }))), "{marked:?}");
    let (entry, _) = Entry::read_from_prefix(&world.memories[DIRECTORY as usize]).unwrap();
    assert_eq!(entry.lies.get(), Lies::Moved as u32, "the marking did not change the entry");
}

/// A long chain through a stack that overflows: stars of which each is wider than the stack.
#[test]
fn a_stack_that_overflows_loses_nothing() {
    let (slots, blocks) = (600, 8);
    let lies = vec![Lies::Here; blocks];
    let n = slots as usize * blocks;
    // Each object leads to two others, from the end to the beginning: a search in depth piles up.
    let words = (0..n).map(|at| [at / 3, at / 2].map(|to| word(to as u32 / slots, to as u32 % slots)).to_vec());
    let roots = vec![word(blocks as u32 - 1, slots - 1)];
    let mut graph = Graph {
        stride: 16,
        links: vec![0, 1],
        slots,
        lies,
        words: words.collect(),
        roots,
        room: 4,
        steps: MAX_HOPS,
        late: false,
    };
    // A fan: the first object's links lead to fans of their own.
    for at in 0..n / 2 {
        graph.words[at] =
            [2 * at + 1, 2 * at + 2].map(|to| word((to % n) as u32 / slots, (to % n) as u32 % slots)).to_vec();
    }
    let mut world = graph.world();
    let call = graph.call(&world);
    let (here, ..) = graph.reached();
    let mut scanned = 0;
    loop {
        let Some(Reply::Marked(marked)) = call.run(&mut world) else { panic!("refused") };
        scanned += marked.scanned as usize;
        if marked.done {
            break;
        }
    }
    assert_eq!(scanned, here.len());
}

/// A call that finds little in a large block ends as soon as others: it goes on where it stopped. Grey
/// objects behind a gap are found, though more of them than the stack has room for.
#[test]
fn a_sweep_of_a_large_block_has_bounds() {
    let slots = 16 << 20;
    let half = bitmap(slots) as usize;
    let entry = Entry { block: [U64::new(2), U64::new(0)], bits: [U64::new(3), U64::new(0)], ..Entry::default() };
    let entry = Entry { slots: slots.into(), lies: (Lies::Here as u32).into(), ..entry };
    for (late, least, most) in [(true, 8 << 10, 64 << 10), (false, 1 << 20, 3 << 20)] {
        let mark = Mark { stride: 8, room: 4, steps: MAX_HOPS };
        let mut work = Head::default().as_bytes().to_vec();
        work.resize(mark.work() as usize, 0);
        let memories = vec![entry.as_bytes().to_vec(), work, vec![0; 8 * slots as usize], vec![0; 2 * half]];
        let mut world = World { memories, places: vec![None; PLACES], always_late: late, read: 0 };
        // 4000 of them side by side, and the last one.
        let grey = 500;
        world.memories[3][half - 600..half - 600 + grey].fill(0xFF);
        world.memories[3][half - 1] = 0x80;
        let range = |key: u64| Range { key: Key(key), at: 0, len: world.memories[key as usize].len() as u64 };
        let call = Call { source: range(DIRECTORY), list: range(WORK), function: Function::Mark(mark) };
        let (mut scanned, mut calls) = (0, 0);
        loop {
            world.read = 0;
            let Some(Reply::Marked(marked)) = call.run(&mut world) else { panic!("refused") };
            // The stack and the head come with each call.
            let read = world.read.saturating_sub(STACK_AT as usize + 8 * STACK as usize);
            assert!(read <= most, "{read} bytes by one call");
            (scanned, calls) = (scanned + marked.scanned as usize, calls + 1);
            assert!(calls > 1 || world.read >= least, "{} bytes by the first call", world.read);
            if marked.done {
                break;
            }
            assert!(calls < 10_000);
        }
        assert_eq!(scanned, 8 * grey + 1);
        // A position that no call leaves.
        world.memories[1][std::mem::offset_of!(Head, within)] = 8;
        assert_eq!(call.run(&mut world), None);
    }
}

#[test]
fn replies_that_no_marking_gives_are_lies() {
    let mark = Mark { stride: 64, room: 10, steps: 100 };
    let range = |len| Range { key: Key(1), at: 0, len };
    let call = Call { source: range(ENTRY), list: range(mark.work()), function: Function::Mark(mark) };
    assert_eq!(call.check(), Ok(()));
    let reply = |words: [u64; 5]| {
        let mut frame = [0; FRAME];
        frame.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        Reply::parse(&frame, &call)
    };
    assert!(reply([4, 100, 10, 1024, 0]).is_some() && reply([4, 0, 0, 0, 1]).is_some());
    for lie in
        [[4, 101, 0, 0, 0], [4, 0, 11, 0, 0], [4, 0, 0, 1025, 0], [4, 0, 0, 1, 1], [4, 0, 0, 0, 2], [3, 0, 0, 0, 0]]
    {
        assert_eq!(reply(lie), None, "{lie:?}");
    }
    for (mark, directory) in [
        (Mark { stride: 0, ..mark }, ENTRY),
        (Mark { stride: 12, ..mark }, ENTRY),
        (Mark { stride: 4104, ..mark }, ENTRY),
        (Mark { steps: MAX_HOPS + 1, ..mark }, ENTRY),
        (Mark { room: 16_000, ..mark }, ENTRY),
        (mark, ENTRY + 1),
        (mark, 0),
    ] {
        let call = Call { source: range(directory), list: range(mark.work()), function: Function::Mark(mark) };
        assert!(call.check().is_err(), "{mark:?} {directory}");
    }
}
