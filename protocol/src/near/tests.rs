//! Functions against what they say they do.

use super::*;
use proptest::prelude::*;

mod commits;
mod groups;

/// Two ranges of plain memory, and those that can be opened, by their keys.
#[derive(Default)]
struct Plain {
    source: Vec<u8>,
    list: Vec<u8>,
    others: Vec<(u64, Vec<u8>)>,
    opened: [Option<usize>; 2],
}

impl Bytes for Plain {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        let from = match of {
            Which::Source => &self.source,
            Which::List => &self.list,
            Which::Place(n) => &self.others[self.opened[usize::from(n)]?].1,
        };
        into.copy_from_slice(from.get(at as usize..at as usize + into.len())?);
        Some(())
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let to = if of == Which::Source { &mut self.source } else { &mut self.list };
        to.get_mut(at as usize..at as usize + bytes.len())?.copy_from_slice(bytes);
        Some(())
    }

    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Option<u64> {
        let word = self.source.get_mut(at as usize..at as usize + 8)?;
        let old = u64::from_le_bytes(word.try_into().ok()?);
        if old == expected {
            word.copy_from_slice(&new.to_le_bytes());
        }
        Some(old)
    }

    fn open(&mut self, n: u8, range: Range, _: bool) -> Option<()> {
        let at = self.others.iter().position(|(key, bytes)| *key == range.key.0 && bytes.len() as u64 >= range.len)?;
        *self.opened.get_mut(usize::from(n))? = Some(at);
        Some(())
    }
}

fn plain(source: Vec<u8>, list: Vec<u8>) -> Plain {
    Plain { source, list, ..Plain::default() }
}

fn call(function: Function, source: &[u8], list: &[u8]) -> Call {
    let of = |key, bytes: &[u8]| Range { key: Key(key), at: 64 * key, len: bytes.len() as u64 };
    let list = if list.is_empty() { Range { key: Key(0), at: 0, len: 0 } } else { of(2, list) };
    Call { source: of(1, source), list, function }
}

fn kind() -> impl Strategy<Value = Kind> {
    (1..6u8).prop_map(|number| Kind::of(number).unwrap())
}

/// A field as a number that holds all kinds but the greatest integers exactly, and as an integer.
fn field(record: &[u8], at: usize, kind: Kind) -> (f64, i128) {
    let word = |n: usize| record[at..at + n].iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    match kind {
        Kind::U32 => (0.0, word(4).into()),
        Kind::I32 => (0.0, (word(4) as u32 as i32).into()),
        Kind::U64 => (0.0, word(8).into()),
        Kind::I64 => (0.0, (word(8) as i64).into()),
        Kind::F64 => (f64::from_bits(word(8)), 0),
    }
}

fn bits(kind: Kind, value: (f64, i128)) -> u64 {
    if kind == Kind::F64 { value.0.to_bits() } else { value.1 as u64 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// SCAN against a loop over numbers. Fields of few values, so that bounds meet them.
    #[test]
    fn scans_say_what_a_loop_says(
        (test, value) in (kind(), kind()),
        (gap, pad) in (0..9u16, 0..9u16),
        numbers in prop::collection::vec((-5..5i8, any::<u32>()), 0..3000),
        (low, high) in (-6..6i8, -6..6i8),
    ) {
        let stride = test.bytes() + gap + value.bytes() + pad;
        let (test_at, value_at) = (0, test.bytes() + gap);
        let laid = |kind: Kind, number: i64| match kind {
            Kind::F64 => (number as f64).to_le_bytes(),
            _ => number.to_le_bytes(),
        };
        let mut source = Vec::new();
        for &(tested, summed) in &numbers {
            source.extend_from_slice(&laid(test, tested.into())[..test.bytes().into()]);
            source.resize(source.len() + usize::from(gap), 7);
            source.extend_from_slice(&laid(value, summed.into())[..value.bytes().into()]);
            source.resize(source.len() + usize::from(pad), 9);
        }
        prop_assume!(!source.is_empty() && source.len() as u64 <= MAX_BYTES);
        let wide = |number: i8| match test {
            Kind::F64 => f64::from(number).to_bits(),
            _ => i64::from(number) as u64,
        };
        let scan = Scan { stride, test, test_at, least: wide(low), most: wide(high), value, value_at };
        let call = call(Function::Scan(scan), &source, &[]);
        prop_assert_eq!(Call::parse(&call.frame()), Ok(call));
        let reply = call.run(&mut plain(source.clone(), Vec::new())).unwrap();
        prop_assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
        let Reply::Found(found) = reply else { panic!("{reply:?}") };

        let bound = |bits: u64| match test {
            Kind::F64 => (f64::from_bits(bits), 0),
            Kind::I32 | Kind::I64 => (0.0, i128::from(bits as i64)),
            Kind::U32 | Kind::U64 => (0.0, i128::from(bits)),
        };
        let (least, most) = (bound(scan.least), bound(scan.most));
        let within = |record: &&[u8]| {
            let tested = field(record, test_at.into(), test);
            least.0 <= tested.0 && tested.0 <= most.0 && least.1 <= tested.1 && tested.1 <= most.1
        };
        let records = source.chunks_exact(stride.into()).filter(within);
        let values: Vec<(f64, i128)> = records.map(|record| field(record, value_at.into(), value)).collect();
        prop_assert_eq!(found.count, values.len() as u64);
        let sum = values.iter().fold((0.0, 0), |sum, value| (sum.0 + value.0, sum.1 + value.1));
        prop_assert_eq!(found.sum, bits(value, sum));
        if let Some(&first) = values.first() {
            let least = values.iter().fold(first, |a, &b| if (b.0, b.1) < (a.0, a.1) { b } else { a });
            let most = values.iter().fold(first, |a, &b| if (b.0, b.1) > (a.0, a.1) { b } else { a });
            prop_assert_eq!((found.least, found.most), (bits(value, least), bits(value, most)));
        } else {
            prop_assert_eq!(found, Found::none(value));
        }
    }

    /// Two columns say what a SCAN of records of both says.
    #[test]
    fn columns_say_what_records_say(
        (test, value) in (kind(), kind()),
        numbers in prop::collection::vec((-5..5i8, any::<u32>()), 1..3000),
        (low, high) in (-6..6i8, -6..6i8),
    ) {
        let laid = |kind: Kind, number: i64| match kind {
            Kind::F64 => (number as f64).to_le_bytes(),
            _ => number.to_le_bytes(),
        };
        let bytes = |kind: Kind, number: i64| laid(kind, number)[..kind.bytes().into()].to_vec();
        let tests: Vec<u8> = numbers.iter().flat_map(|&(one, _)| bytes(test, one.into())).collect();
        let values: Vec<u8> = numbers.iter().flat_map(|&(_, one)| bytes(value, one.into())).collect();
        let both = numbers.iter().flat_map(|&(one, two)| [bytes(test, one.into()), bytes(value, two.into())].concat());
        let both: Vec<u8> = both.collect();
        let [least, most] = [low, high].map(|one| u64::from_le_bytes(laid(test, one.into())));
        let columns = call(Function::Columns(Columns { test, least, most, value }), &tests, &values);
        prop_assert_eq!(Call::parse(&columns.frame()), Ok(columns));
        let reply = columns.run(&mut plain(tests, values)).unwrap();
        prop_assert_eq!(Reply::parse(&reply.frame(), &columns), Some(reply));
        let stride = test.bytes() + value.bytes();
        let scan = Scan { stride, test, test_at: 0, least, most, value, value_at: test.bytes() };
        let mut found = Found::none(value);
        scan.run(&both, &mut found);
        prop_assert_eq!(reply, Reply::Found(found));
    }

    /// GATHER and SCATTER against a loop; SCATTER undoes GATHER.
    #[test]
    fn pieces_go_where_the_list_says(
        source in prop::collection::vec(any::<u8>(), 1..5000),
        each in 1..300u32,
        places in prop::collection::vec(any::<prop::sample::Index>(), 1..400),
    ) {
        prop_assume!(each as usize <= source.len());
        let offsets: Vec<usize> = places.iter().map(|place| place.index(source.len() - each as usize + 1)).collect();
        let count = offsets.len() as u32;
        let mut list: Vec<u8> = offsets.iter().flat_map(|&offset| (offset as u32).to_le_bytes()).collect();
        let run = laid(count) as usize;
        list.resize(run + (count * each) as usize, 0);
        let gather = call(Function::Gather { count, each }, &source, &list);
        prop_assert_eq!(Call::parse(&gather.frame()), Ok(gather));
        let mut memory = plain(source.clone(), list);
        prop_assert_eq!(gather.run(&mut memory), Some(Reply::Moved(u64::from(count * each))));
        for (&offset, piece) in offsets.iter().zip(memory.list[run..].chunks_exact(each as usize)) {
            prop_assert_eq!(&source[offset..offset + each as usize], piece);
        }
        prop_assert_eq!(&memory.source, &source);
        memory.source.fill(0);
        let scatter = call(Function::Scatter { count, each }, &source, &memory.list);
        prop_assert_eq!(Call::parse(&scatter.frame()), Ok(scatter));
        scatter.run(&mut memory).unwrap();
        for &offset in &offsets {
            prop_assert_eq!(&memory.source[offset..offset + each as usize], &source[offset..offset + each as usize]);
        }
        // One offset that leaves the source ends it.
        memory.list[..4].copy_from_slice(&(source.len() as u32 - each + 1).to_le_bytes());
        prop_assert_eq!(gather.run(&mut memory), None);
        prop_assert_eq!(scatter.run(&mut memory), None);
    }

    #[test]
    fn bytes_are_copied_and_filled(source in prop::collection::vec(any::<u8>(), 1..70_000), word in any::<u64>()) {
        let mut memory = plain(source.clone(), vec![0; source.len()]);
        call(Function::Copy, &source, &source).run(&mut memory).unwrap();
        prop_assert_eq!(&memory.list, &source);
        call(Function::Fill(word), &source, &[]).run(&mut memory).unwrap();
        prop_assert!(memory.source.iter().zip(word.to_le_bytes().iter().cycle()).all(|(a, b)| a == b));
    }

    /// Chains with loops, and links that lead out.
    #[test]
    fn chases_follow_links(links in prop::collection::vec(0..40u64, 1..30), wanted in 0..40u64, hops in 0..60u32) {
        let source: Vec<u8> = links.iter().enumerate().flat_map(|(n, &link)| {
            [n as u64, 16 * link].map(u64::to_le_bytes).concat()
        }).collect();
        let call = call(Function::Chase { from: 0, next: 8, field: 0, wanted, hops }, &source, &[]);
        prop_assert_eq!(Call::parse(&call.frame()), Ok(call));
        let (mut at, mut expected) = (0u64, None);
        for hop in 0..=hops {
            if at as usize >= links.len() {
                break;
            }
            let (found, link) = (at == wanted, links[at as usize]);
            if hop == hops || found || link == 0 {
                expected = Some(Reply::Chased { at: 16 * at, hops: hop, found: found && hop < hops });
                break;
            }
            at = link;
        }
        let got = call.run(&mut plain(source.clone(), Vec::new()));
        // Also where a chase has used up its hops, and its last link leads out: the host would take
        // such a reply for a lie.
        prop_assert_eq!(got, expected);
        if let Some(reply) = got {
            prop_assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));
        }
    }

    /// Any 64 bytes are a call within bounds that runs and says so again, or none.
    #[test]
    fn hostile_calls_are_bounded(
        mut frame in prop::collection::vec(any::<u8>(), FRAME),
        function in 0..13u8, kinds in (0..7u8, 0..7u8), small in any::<[bool; 8]>(),
        source in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        frame[0] = function;
        (frame[1], frame[2], frame[3]) = (kinds.0, kinds.1, if function == 10 { kinds.0 } else { 0 });
        for (word, small) in frame.chunks_exact_mut(8).skip(1).zip(small) {
            if small {
                word[1..].fill(0);
            }
        }
        if let Ok(call) = Call::parse(&frame) {
            prop_assert!(call.source.len <= 1 << 32 && call.list.len <= MAX_BYTES);
            prop_assert_eq!(call.frame().to_vec(), frame);
            // What is not there is refused; nothing panics, nothing takes long.
            let mut memory = Plain { others: vec![(1, source.clone())], ..plain(source.clone(), source) };
            if let Some(reply) = call.run(&mut memory) {
                let _ = Reply::parse(&reply.frame(), &call);
            }
        }
    }

    /// A lying node's reply is none, or one that the call could have had.
    #[test]
    fn lies_are_bounded(frame in any::<[[u8; 32]; 2]>(), tag in 0..9u64, count in 0..100u64) {
        let mut reply = [0; FRAME];
        reply.copy_from_slice(&frame.concat());
        reply[..8].copy_from_slice(&tag.to_le_bytes());
        reply[8..16].copy_from_slice(&count.to_le_bytes());
        let scan = Scan {
            stride: 8, test: Kind::U64, test_at: 0, least: 0, most: 9, value: Kind::U64, value_at: 0,
        };
        let call = call(Function::Scan(scan), &[0; 160], &[]);
        if let Some(Reply::Found(found)) = Reply::parse(&reply, &call) {
            prop_assert!(found.count <= 20);
        }
    }
}

#[test]
fn what_is_out_of_bounds_is_no_call() {
    let range = |key, at, len| Range { key: Key(key), at, len };
    let none = range(0, 0, 0);
    let fill = |source| Call { source, list: none, function: Function::Fill(1) };
    assert_eq!(fill(range(1, 0, MAX_BYTES)).check(), Ok(()));
    for source in [range(1, 0, 0), range(1, 0, MAX_BYTES + 1), range(1, u64::MAX, 2)] {
        assert_eq!(fill(source).check(), Err(Nonsense), "{source:?}");
        assert_eq!(Call::parse(&fill(source).frame()), Err(Nonsense));
    }
    let copy = |source, list| Call { source, list, function: Function::Copy }.check();
    assert_eq!(copy(range(1, 0, 64), range(1, 64, 64)), Ok(()));
    assert_eq!(copy(range(1, 0, 64), range(1, 63, 64)), Err(Nonsense), "they overlap");
    let gather = |count, each, len| {
        let function = Function::Gather { count, each };
        Call { source: range(1, 0, 1 << 26), list: range(1, 0, len), function }.check()
    };
    assert_eq!(gather(3, 10, 46), Ok(()));
    assert_eq!(gather(0, 10, 0), Err(Nonsense));
    assert_eq!(gather(1, 4097, 4105), Err(Nonsense));
    assert_eq!(gather(u32::MAX, 4096, u64::MAX), Err(Nonsense));
    let columns = |source, list| {
        let columns = Columns { test: Kind::U32, least: 0, most: 9, value: Kind::F64 };
        Call { source: range(1, 0, source), list: range(1, 0, list), function: Function::Columns(columns) }.check()
    };
    assert_eq!(columns(MAX_BYTES / 4, MAX_BYTES / 2), Ok(()));
    for (source, list) in [(0, 0), (5, 8), (8, 8), (8, 24), (MAX_BYTES / 2, MAX_BYTES)] {
        assert_eq!(columns(source, list), Err(Nonsense), "{source} {list}");
    }
    let chase = Function::Chase { from: 0, next: 0, field: 0, wanted: 0, hops: MAX_HOPS + 1 };
    assert_eq!(Call { source: range(1, 0, 64), list: none, function: chase }.check(), Err(Nonsense));
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 1, least: 0, most: 0, value: Kind::U32, value_at: 0 };
    assert_eq!(Call { source: range(1, 0, 64), list: none, function: Function::Scan(scan) }.check(), Err(Nonsense));
}

/// A link may hold any 64 bits: the node's own arithmetic must not wrap.
#[test]
fn links_that_lead_out_of_the_numbers_end_a_chase() {
    for link in [u64::MAX, u64::MAX - 7, u64::MAX - 8, 1 << 63, 4096] {
        for (next, field) in [(0, 0), (0, 7), (7, 0), (u16::MAX, 0), (0, u16::MAX)] {
            let source = [&link.to_le_bytes()[..], &[0; 56]].concat();
            let function = Function::Chase { from: 0, next, field, wanted: 1, hops: 8 };
            let call = call(function, &source, &[]);
            let got = call.run(&mut plain(source, vec![]));
            assert!(matches!(got, None | Some(Reply::Chased { .. })), "{link:#x} {next} {field}: {got:?}");
        }
    }
}

/// Memory of a node on which every call has had its time.
struct Late(Plain);

impl Bytes for Late {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        self.0.read(of, at, into)
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        self.0.write(of, at, bytes)
    }

    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Option<u64> {
        self.0.swap(at, expected, new)
    }

    fn open(&mut self, n: u8, range: Range, writes: bool) -> Option<()> {
        self.0.open(n, range, writes)
    }

    fn is_late(&mut self) -> bool {
        true
    }
}

/// A call past its deadline is refused: its host does the work by verbs. A marking goes on with the
/// next call instead (`mark::tests`).
#[test]
fn calls_past_their_deadline_are_refused() {
    let scan = Scan { stride: 8, test: Kind::U64, test_at: 0, least: 0, most: 9, value: Kind::U64, value_at: 0 };
    let columns = Columns { test: Kind::U64, least: 0, most: 9, value: Kind::U64 };
    let functions = [
        Function::Gather { count: 2, each: 8 },
        Function::Scatter { count: 2, each: 8 },
        Function::Copy,
        Function::Fill(7),
        Function::Scan(scan),
        Function::Columns(columns),
        Function::Chase { from: 0, next: 0, field: 8, wanted: 1, hops: 9 },
        Function::Commit(Commit { lock: 8, owner: 1, checks: 1, writes: 0, bytes: 0 }),
        Function::Group(Group { key: Kind::U64, value: Kind::U64, test: None, least: 0, most: 0, room: 1 }),
    ];
    for function in functions {
        let (source, list) = (vec![1; 24], vec![0; 24]);
        let call = call(function, &source, &list);
        assert!(
            call.run(&mut plain(source.clone(), list.clone())).is_some()
                || matches!(function, Function::Chase { .. } | Function::Group(_))
        );
        let mut late = Late(plain(source.clone(), list.clone()));
        assert_eq!(call.run(&mut late), None, "{function:?}");
        assert!(late.0.source == source && late.0.list == list, "{function:?}");
    }
}
