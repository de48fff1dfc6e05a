//! Functions near memory: calls by hosts that ask for anything, on memory that holds anything, and
//! replies of nodes that answer anything.
//!
//! A node checks the ranges of a call, and those that the caller's memory names. It relies on the
//! function to stay within them.

use crate::fuzz::fuzz;
use farmem_protocol::key::Key;
use farmem_protocol::near::{
    Bytes, Call, Columns, Commit, FRAME, Function, Group, Kind, Mark, Range, Reply, Scan, Which, group, mark,
};
use farmem_protocol::random::Random;
use std::collections::BTreeMap;
use std::mem::discriminant;
use zerocopy::IntoBytes;

/// Memory that holds the same bytes over and over, but for what was written.
#[derive(Clone)]
struct Anything<'a> {
    call: Call,
    bytes: &'a [u8],
    written: BTreeMap<(u8, u64), u8>,
    opened: [Option<(Range, bool)>; mark::PLACES],
    /// Looks at the clock until the time is over.
    left: usize,
    /// Draws what others write there between two reads. `None`: nothing.
    others: Option<Random>,
}

impl Anything<'_> {
    fn new(call: Call, bytes: &[u8], left: usize) -> Anything<'_> {
        Anything { call, bytes, written: BTreeMap::new(), opened: [None; mark::PLACES], left, others: None }
    }

    /// The number of a range, which has these bytes.
    fn within(&self, which: Which, at: u64, len: usize) -> u8 {
        let (number, range) = match which {
            Which::Source => (0, self.call.source),
            Which::List => (1, self.call.list),
            Which::Place(n) => (2 + n, self.opened[usize::from(n)].expect("it was opened").0),
        };
        assert!(
            at.checked_add(len as u64).is_some_and(|end| end <= range.len),
            "{which:?} {at} {len}: {:?}",
            self.call
        );
        number
    }
}

impl Bytes for Anything<'_> {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        let range = self.within(of, at, into.len());
        for (byte, at) in into.iter_mut().zip(at..) {
            // The list comes first: the state of a marking is there, and its directory behind that.
            let begins = [144, 0, 64][usize::from(range).min(2)];
            let from = at as usize + begins;
            *byte = self.bytes.get(from % self.bytes.len().max(1)).copied().unwrap_or(0);
        }
        let end = at + into.len() as u64;
        for (&(_, place), byte) in self.written.range((range, at)..(range, end)) {
            into[(place - at) as usize] = *byte;
        }
        if let Some(random) = &mut self.others {
            for word in into.chunks_mut(8) {
                let number = [0, 1, 64, u64::from(u32::MAX), u64::MAX, random.bits()][random.index(6)];
                if random.index(6) == 0 {
                    word.copy_from_slice(&number.to_le_bytes()[..word.len()]);
                }
            }
        }
        Some(())
    }

    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Option<u64> {
        assert_eq!(self.call.swaps(), Some(at), "the word was checked");
        let mut word = [0; 8];
        self.read(Which::Source, at, &mut word)?;
        if word == expected.to_le_bytes() {
            self.write(Which::Source, at, &new.to_le_bytes())?;
        }
        Some(u64::from_le_bytes(word))
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let range = self.within(of, at, bytes.len());
        let writes = match of {
            Which::Place(n) => self.opened[usize::from(n)].is_some_and(|(_, writes)| writes),
            which => self.call.writes(which),
        };
        assert!(writes, "{of:?}: {:?}", self.call);
        self.written.extend(bytes.iter().zip(at..).map(|(byte, at)| ((range, at), *byte)));
        Some(())
    }

    fn open(&mut self, n: u8, range: Range, writes: bool) -> Option<()> {
        // As a node: a range that wraps is nobody's.
        range.at.checked_add(range.len)?;
        self.opened[usize::from(n)] = Some((range, writes));
        // What was written to the range that was there before is not in this one.
        self.written.retain(|&(number, _), _| number != 2 + n);
        Some(())
    }

    fn is_late(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}

/// A call of each function, and what its memory holds.
fn texts() -> Vec<Vec<u8>> {
    let range = |key, at, len| Range { key: Key(key), at, len };
    let (none, source) = (range(0, 0, 0), range(1, 64, 4096));
    let scan = Scan { stride: 24, test: Kind::U32, test_at: 4, least: 0, most: 9, value: Kind::F64, value_at: 8 };
    let columns = Columns { test: Kind::I32, least: 0, most: 9, value: Kind::U64 };
    let group = Group { key: Kind::U32, value: Kind::I64, test: Some(Kind::U64), least: 0, most: 99, room: 20 };
    let commit = Commit { lock: 8, owner: 7, checks: 1, writes: 2, bytes: 12 };
    let marking = Mark { stride: 64, room: 5, steps: 40 };
    let directory = range(1, 0, 2 * mark::ENTRY);
    let chase = Function::Chase { from: 64, next: 0, field: 8, wanted: 5, hops: 30 };
    let pieces = |function| Call { source, list: range(2, 0, 16 + 3 * 100), function };
    let calls = [
        (pieces(Function::Gather { count: 3, each: 100 }), vec![0, 1, 0, 0, 7, 0, 0, 0]),
        (pieces(Function::Scatter { count: 3, each: 100 }), vec![0, 1, 0, 0, 7, 0, 0, 0]),
        (Call { source, list: range(1, 8192, 4096), function: Function::Copy }, vec![1, 2, 3]),
        (Call { source, list: none, function: Function::Fill(7) }, vec![]),
        (Call { source: range(1, 0, 24 * 9), list: none, function: Function::Scan(scan) }, vec![1, 2, 3, 4, 5]),
        (Call { source, list: range(2, 0, 8192), function: Function::Columns(columns) }, vec![1, 0, 0, 0, 5, 0, 0, 0]),
        (Call { source, list: none, function: chase }, 128u64.to_le_bytes().repeat(9)),
        (
            Call { source: directory, list: range(2, 0, marking.work()), function: Function::Mark(marking) },
            [
                mark::Head { links: [3.into(); 8], count: 2.into(), ..mark::Head::default() }.as_bytes(),
                &[mark::word(0, 1), mark::word(1, 2)].map(u64::to_le_bytes).concat(),
                mark::Entry::new(Some(source), Some(range(1, 0, 64)), 30, mark::Lies::Here).as_bytes(),
                mark::Entry::new(None, Some(range(1, 0, 64)), 30, mark::Lies::Elsewhere).as_bytes(),
            ]
            .concat(),
        ),
        (Call { source: range(1, 8, 8), list: none, function: Function::Wait { expected: 0, ms: 5 } }, vec![]),
        (
            Call { source, list: range(2, 0, commit.list()), function: Function::Commit(commit) },
            Commit::laid(&[(64, 0)], &[(72, &b"abcd"[..]), (100, &b"efghijkl"[..])]),
        ),
        (
            Call { source: range(1, 0, 400), list: range(2, 0, group.work()), function: Function::Group(group) },
            group::Named::new(range(3, 0, 800), Some(range(4, 0, 800))).bytes().to_vec(),
        ),
    ];
    calls.iter().map(|(call, bytes)| [&call.frame()[..], bytes].concat()).collect()
}

/// A call is refused, or it stays within its ranges, and a host takes the reply.
#[test]
fn functions_near_memory() {
    let texts = texts();
    for text in &texts {
        assert!(Call::parse(&text[..FRAME]).is_ok(), "{text:?}");
    }
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    fuzz("near", &texts, |random, bytes| {
        let Some((frame, held)) = bytes.split_first_chunk::<FRAME>() else { return (0, None, None) };
        let Ok(call) = Call::parse(frame) else { return (1, None, None) };
        assert_eq!(call.frame(), *frame, "a call has one form");
        let of = Some(discriminant(&call.function));
        let time = if random.index(4) == 0 { 1 + random.index(20) } else { usize::MAX };
        let memory = Anything::new(call, held, time);
        let (mut one, mut other) = (memory.clone(), memory);
        let reply = call.run(&mut one);
        assert_eq!(reply, call.run(&mut other), "the same memory gives the same reply");
        assert_eq!(one.written, other.written);
        let Some(reply) = reply else { return (2, of, None) };
        assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply), "{call:?}");
        let unfinished = call.is_unfinished(&reply);
        lie(random, &call, reply);
        (3 + usize::from(unfinished), of, Some(reply.frame()[..3].to_vec()))
    });
}

/// A program that maps its slab, or has another queue pair, changes the memory while the node
/// computes there: what was read twice is two things. The call ends, within its ranges.
#[test]
fn functions_near_memory_that_others_change() {
    let texts = texts();
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    fuzz("near", &texts, |random, bytes| {
        let Some((frame, held)) = bytes.split_first_chunk::<FRAME>() else { return (0, None) };
        let Ok(call) = Call::parse(frame) else { return (1, None) };
        let mut memory = Anything::new(call, held, 1 + random.index(100));
        memory.others = Some(Random::new(random.bits()));
        let reply = call.run(&mut memory).map(|reply| reply.frame());
        (2 + usize::from(reply.is_some()), Some(discriminant(&call.function)))
    });
}

/// A node that answers something else.
fn lie(random: &mut Random, call: &Call, reply: Reply) {
    let mut frame = reply.frame();
    for _ in 0..=random.index(3) {
        let at = 8 * random.index(FRAME / 8);
        let number = [0, 1, 2, 7, u64::from(u32::MAX), u64::MAX, random.bits()][random.index(7)];
        frame[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    if let Some(said) = Reply::parse(&frame, call) {
        assert_eq!(said.frame(), frame);
    }
}
