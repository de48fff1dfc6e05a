//! GROUP.

use super::*;
use crate::near::group::{MAX_GROUPS, Named};

fn laid(kind: Kind, number: i64) -> Vec<u8> {
    let bytes = match kind {
        Kind::F64 => (number as f64).to_le_bytes(),
        _ => number.to_le_bytes(),
    };
    bytes[..kind.bytes().into()].to_vec()
}

fn column(kind: Kind, numbers: impl Iterator<Item = i64>) -> Vec<u8> {
    numbers.flat_map(|number| laid(kind, number)).collect()
}

/// A call, and its memory.
fn grouping(group: Group, keys: Vec<u8>, values: Vec<u8>, tests: Vec<u8>) -> (Call, Plain) {
    let range = |key, bytes: &Vec<u8>| Range { key: Key(key), at: 0, len: bytes.len() as u64 };
    let named = Named::new(range(3, &values), group.test.map(|_| range(4, &tests)));
    let mut list = named.bytes().to_vec();
    list.resize(group.work() as usize, 0);
    let call = call(Function::Group(group), &keys, &list);
    (call, Plain { others: vec![(3, values), (4, tests)], ..plain(keys, list) })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against SCAN: a group has what a scan of the rows with its key finds.
    #[test]
    fn groups_have_what_scans_find(
        (key, test, value) in (kind(), prop::option::of(kind()), kind()),
        rows in prop::collection::vec((0..20i64, -5..5i64, any::<i32>()), 1..2500),
        (low, high) in (-6..6i64, -6..6i64),
        room in prop_oneof![1..30u32, Just(MAX_GROUPS)],
    ) {
        let wide = |kind: Kind, number: i64| match kind {
            Kind::F64 => (number as f64).to_bits(),
            _ => number as u64,
        };
        let (least, most) = test.map_or((0, 0), |test| (wide(test, low), wide(test, high)));
        let group = Group { key, value, test, least, most, room };
        let keys = column(key, rows.iter().map(|row| row.0));
        let values = column(value, rows.iter().map(|row| row.2.into()));
        let tests = test.map_or(vec![], |test| column(test, rows.iter().map(|row| row.1)));
        let (call, mut memory) = grouping(group, keys, values, tests);
        prop_assert_eq!(Call::parse(&call.frame()), Ok(call));
        let before = memory.list.clone();
        let reply = call.run(&mut memory).unwrap();
        prop_assert_eq!(Reply::parse(&reply.frame(), &call), Some(reply));

        let passes = |row: &&(i64, i64, i32)| {
            let Some(kind) = test else { return true };
            let columns = Columns { test: kind, least, most, value: Kind::U32 };
            let mut found = Found::none(Kind::U32);
            columns.run(&laid(kind, row.1), &[0; 4], &mut found);
            found.count == 1
        };
        let mut expected: Vec<Grouped> = Vec::new();
        for row in rows.iter().filter(passes) {
            let number = laid(key, row.0).iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            let at = expected.iter().position(|group| group.key == number).unwrap_or_else(|| {
                expected.push(Grouped { key: number, found: Found::none(value) });
                expected.len() - 1
            });
            let size = value.bytes();
            let scan = Scan { stride: size, test: value, test_at: 0, least: 0, most: 0, value, value_at: 0 };
            let all = match value {
                Kind::F64 => (f64::NEG_INFINITY.to_bits(), f64::INFINITY.to_bits()),
                Kind::I32 | Kind::I64 => (i64::MIN as u64, i64::MAX as u64),
                _ => (0, u64::MAX),
            };
            Scan { least: all.0, most: all.1, ..scan }.run(&laid(value, row.2.into()), &mut expected[at].found);
        }
        if expected.len() > room as usize {
            prop_assert_eq!(reply, Reply::Grouped(None));
            prop_assert_eq!(memory.list, before);
        } else {
            prop_assert_eq!(reply, Reply::Grouped(Some(expected.len() as u32)));
            let bytes = &memory.list[Group::GROUPS_AT as usize..][..40 * expected.len()];
            prop_assert_eq!(group.groups(bytes), expected);
        }
    }
}

#[test]
fn columns_that_are_not_the_callers_are_refused() {
    let group = Group { key: Kind::U32, value: Kind::U64, test: None, least: 0, most: 0, room: 9 };
    let (call, memory) = grouping(group, vec![1; 40], vec![2; 80], vec![]);
    let none = Plain { others: vec![], ..memory };
    let short = Plain { others: vec![(3, vec![0; 79])], ..plain(none.source.clone(), none.list.clone()) };
    for mut memory in [none, short] {
        assert_eq!(call.run(&mut memory), None);
    }
}

#[test]
fn bounds_of_groupings() {
    let sound = Group { key: Kind::U32, value: Kind::F64, test: Some(Kind::I32), least: 0, most: 9, room: MAX_GROUPS };
    let check = |keys: u64, group: Group| {
        let (source, list) = (Range { key: Key(1), at: 0, len: keys }, Range { key: Key(2), at: 0, len: group.work() });
        Call { source, list, function: Function::Group(group) }.check()
    };
    assert_eq!(check(4 * (MAX_BYTES / 16), sound), Ok(()));
    assert_eq!(check(4 * (MAX_BYTES / 16) + 4, sound), Err(Nonsense));
    for (keys, unsound) in [
        (0, sound),
        (6, sound),
        (u64::MAX - 3, sound),
        (40, Group { room: 0, ..sound }),
        (40, Group { room: MAX_GROUPS + 1, ..sound }),
        (40, Group { test: None, ..sound }),
    ] {
        assert_eq!(check(keys, unsound), Err(Nonsense), "{keys} {unsound:?}");
    }
}

/// Keys whose places in the table are alike are told apart.
#[test]
fn keys_that_collide_are_groups_of_their_own() {
    let place = |key: u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    let keys: Vec<i64> = (0..200_000i64).filter(|&key| place(key as u64) == 1023).take(100).collect();
    assert_eq!(keys.len(), 100);
    let group = Group { key: Kind::I64, value: Kind::I64, test: None, least: 0, most: 0, room: 100 };
    let twice = || keys.iter().chain(&keys).copied();
    let (call, mut memory) = grouping(group, column(Kind::I64, twice()), column(Kind::I64, twice()), vec![]);
    assert_eq!(call.run(&mut memory), Some(Reply::Grouped(Some(100))));
    let groups = group.groups(&memory.list[Group::GROUPS_AT as usize..]);
    for (group, &key) in groups.iter().zip(&keys) {
        assert_eq!((group.key as i64, group.found.count, group.found.sum as i64), (key, 2, 2 * key));
    }
}
