//! Values in segments are the values that one object would have.

use super::*;
use farmem_protocol::random::Random;
use std::collections::BTreeMap;

const NODE: u8 = 2;

fn small() -> Segments {
    let segments = Segments::default();
    segments.least.set(64);
    segments
}

fn write(bytes: &mut Vec<u8>, item: &[u8]) {
    bytes.extend_from_slice(&(item.len() as u32).to_le_bytes());
    bytes.extend_from_slice(item);
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    items.iter().for_each(|item| write(&mut bytes, item));
    bytes
}

/// What the bounds and counts say is so, and no segment is too large.
pub(crate) fn is_sound(value: &Working<'_>) {
    for side in 0..2 {
        let parts = value.parts(side);
        let (items, bytes) = (parts.iter().map(|part| part.count), parts.iter().map(|part| part.len));
        let sums = (items.sum::<u32>() as usize, bytes.sum::<u32>() as usize);
        assert_eq!(sums, (value.sides[side].items, value.sides[side].bytes));
        for (n, part) in parts.iter().enumerate() {
            let bytes = value.bytes(side, n).unwrap();
            let all: Vec<Unit<'_>> = units(value.kind, &bytes).collect();
            assert_eq!((all.len(), bytes.len()), (part.count as usize, part.len as usize));
            assert!(!all.is_empty() && (bytes.len() <= 4 * 64 || all.len() == 1), "{} in {}", bytes.len(), all.len());
            if value.is_hashed(side) {
                let next = parts.get(n + 1).map_or(u64::MAX, |next| next.bound);
                // A bound is a cursor of scans, which has a sign for some clients.
                assert!((n > 0 || part.bound == 0) && part.bound <= i64::MAX as u64);
                assert!(all.iter().all(|unit| (part.bound..next).contains(&hash(unit.name)) || next == u64::MAX));
            } else if value.kind == Type::SortedSet {
                assert_eq!(part.bound, sorted::ordered(sorted::score(all[0].first)));
            } else if value.kind == Type::Stream {
                assert_eq!(part.bound, ordered::bound(all[0].name));
                assert!(all.is_sorted_by(|one, next| one.name < next.name));
            }
        }
    }
    let head = written(&value.open);
    assert!(value.is_empty() || form::has_form(Type::Parts, &head));
}

/// As it would lie at a node.
fn written(open: &Open) -> Vec<u8> {
    let mut open = open.clone();
    let all = Rc::make_mut(&mut open.sides).iter_mut().flat_map(|side| &mut side.parts);
    all.zip(1..).for_each(|(part, n)| part.at = n * 64);
    open.dropped.clear();
    open.encode()
}

#[test]
fn a_head_that_no_store_writes_is_refused() {
    let segments = small();
    let members = |n: u8| [item(&f64::from(n / 3).to_le_bytes()), item(&[b'm', n])].concat();
    let whole: Vec<u8> = (0..40).flat_map(members).collect();
    let value = Working::new(&segments, Type::SortedSet, &whole);
    let (head, first, entries) = (written(&value.open), value.parts(0).len(), 24);
    assert!(first > 3 && value.parts(1).len() > 3 && form::has_form(Type::Parts, &head));
    let entry = |n: usize| entries + 32 * n;
    let refused = |what: &str, at: usize, with: &[u8]| {
        let mut other = head.clone();
        other[at..at + with.len()].copy_from_slice(with);
        assert!(other != head && !form::has_form(Type::Parts, &other), "{what}");
    };
    refused("a type that has no segments", 0, &[Type::String as u8]);
    refused("one side where there are two", 0, &[Type::List as u8]);
    refused("segments that are not written", 1, &[1]);
    refused("more entries than there are", 8, &(first as u64 + 1).to_le_bytes());
    refused("something dropped", 16, &[1]);
    refused("no place", entry(1), &[0; 8]);
    refused("no unit", entry(1), &[1]);
    refused("another node's place", entry(1) + 7, &[0xff]);
    refused("no items", entry(1) + 24, &[0; 4]);
    refused("more items than bytes", entry(1) + 24, &[0xff; 4]);
    refused("no bytes", entry(1) + 28, &[0; 4]);
    refused("too many bytes", entry(1) + 28, &[0xff; 4]);
    refused("another number of members by name", entry(first) + 24, &[head[entry(first) + 24] ^ 3]);
    refused("scores without order", entry(1) + 16, &[0xff; 8]);
    refused("no segment for the lowest hash", entry(first) + 16, &[1]);
    refused("hashes without order", entry(first + 1) + 16, &[0xff; 8]);
    assert!(!form::has_form(Type::Parts, &head[..head.len() - 1]) && !form::has_form(Type::Parts, b""));
}

fn item(bytes: &[u8]) -> Vec<u8> {
    let mut own = Vec::new();
    write(&mut own, bytes);
    own
}

fn sorted_whole(value: &Working<'_>) -> Vec<Vec<u8>> {
    let whole = value.whole().unwrap();
    let mut all: Vec<Vec<u8>> = units(value.kind, &whole).map(|unit| unit.bytes.to_vec()).collect();
    all.sort_unstable();
    all
}

/// As if it had been written and read.
pub(crate) fn again<'a>(value: &Working<'a>, segments: &'a Segments) -> Working<'a> {
    Working::on(segments, Open::decode(NODE, &value.encode(), None).expect("what was encoded"))
}

#[test]
fn lists_are_what_a_list_is() {
    let segments = small();
    let mut random = Random::new(5);
    let mut model: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 7]).collect();
    let mut value = Working::new(&segments, Type::List, &list(&model));
    for step in 0..4000u32 {
        let item = vec![step as u8; random.index(30)];
        let len = model.len();
        match random.index(6) {
            0 => {
                value.push(true, &list(std::slice::from_ref(&item))).unwrap();
                model.insert(0, item);
            }
            1 => {
                value.push(false, &list(std::slice::from_ref(&item))).unwrap();
                model.push(item);
            }
            2 if len > 3 => {
                let from = random.index(len);
                let to = (from + 1 + random.index(3)).min(len);
                value.take_out(from..to).unwrap();
                model.drain(from..to);
            }
            3 if len > 0 => {
                let at = random.index(len);
                value.replace(at, &list(std::slice::from_ref(&item))).unwrap();
                model[at] = item;
            }
            4 if len > 0 => {
                let at = random.index(len);
                model.insert(at, item);
                value.become_whole(&list(&model)).unwrap();
            }
            _ => {
                let from = random.index(len + 1);
                let to = from + random.index(len + 1 - from);
                let window = value.window(from..to).unwrap();
                let shown: Vec<&[u8]> = window.units().map(|unit| unit.name).collect();
                assert_eq!(shown, model[from..to].iter().map(Vec::as_slice).collect::<Vec<_>>());
            }
        }
        is_sound(&value);
        // Changes of a batch alter the same copies.
        if step % 5 == 0 {
            value = again(&value, &segments);
        }
        assert_eq!((value.whole().unwrap(), value.count()), (list(&model), model.len()), "step {step}");
        if model.is_empty() {
            model.push(vec![1]);
            value.push(true, &list(&model)).unwrap();
        }
    }
}

#[test]
fn hashes_are_what_a_hash_is() {
    let segments = small();
    let mut random = Random::new(6);
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = (0..30u8).map(|n| (vec![b'f', n], vec![n; 5])).collect();
    let pair = |(field, item): (&Vec<u8>, &Vec<u8>)| list(&[field.clone(), item.clone()]);
    let flat = |model: &BTreeMap<Vec<u8>, Vec<u8>>| model.iter().flat_map(pair).collect::<Vec<u8>>();
    let mut value = Working::new(&segments, Type::Hash, &flat(&model));
    for step in 0..3000u32 {
        let field = vec![b'f', random.index(120) as u8];
        let goes = random.index(100) < if step / 500 % 2 == 0 { 30 } else { 70 };
        if value.is_empty() {
            model.insert(b"f".to_vec(), b"v".to_vec());
            value = Working::new(&segments, Type::Hash, &flat(&model));
        }
        if random.index(8) == 0 {
            model.insert(field, vec![step as u8; random.index(40)]);
            value.become_whole(&flat(&model)).unwrap();
        } else {
            let item = vec![step as u8; random.index(40)];
            let new = list(&[field.clone(), item.clone()]);
            if step % 3 > 0 {
                value.set_item(0, &field, Some(&new).filter(|_| !goes).map(Vec::as_slice)).unwrap();
                assert_eq!(value.item(0, &field, <[u8]>::to_vec), Ok(Some(new).filter(|_| !goes)));
                model.remove(&field);
                if !goes {
                    model.insert(field, item);
                }
                is_sound(&value);
                continue;
            }
            // Some commands name many, and some twice.
            let many = if step % 2 == 0 { 60 } else { 3 };
            let names: Vec<Vec<u8>> = (0..many).map(|_| vec![b'f', random.index(120) as u8]).collect();
            let sought = value.seek(0, names.iter().map(Vec::as_slice)).unwrap();
            let mut found = vec![None; sought.len()];
            value.found(0, &sought, |n, item| found[n] = Some(item.to_vec())).unwrap();
            let expected = sought.iter().map(|one| model.get_key_value(one.name).map(pair));
            assert_eq!(found, expected.collect::<Vec<_>>());
            let become_of = |n: usize| match (n + step as usize) % 4 {
                0 => found[n].clone(),
                1 => None,
                _ if goes => None,
                _ => Some(list(&[sought[n].name.to_vec(), vec![n as u8; item.len()]])),
            };
            value.put(0, &sought, |n, bytes| bytes.extend(become_of(n).unwrap_or_default())).unwrap();
            for (n, one) in sought.iter().enumerate() {
                model.remove(one.name);
                if let Some(new) = become_of(n) {
                    let unit = units(Type::Hash, &new).next().unwrap();
                    model.insert(one.name.to_vec(), unit.bytes[4 + unit.name.len() + 4..].to_vec());
                }
            }
        }
        is_sound(&value);
        value = again(&value, &segments);
        let mut expected: Vec<Vec<u8>> = model.iter().map(pair).collect();
        expected.sort_unstable();
        assert_eq!((sorted_whole(&value), value.count()), (expected, model.len()), "step {step}");
    }
}

#[test]
fn sorted_sets_are_what_a_sorted_set_is() {
    let segments = small();
    let mut random = Random::new(7);
    let mut model: Vec<(f64, Vec<u8>)> = Vec::new();
    let sort = |model: &mut Vec<(f64, Vec<u8>)>| model.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    let flat = |model: &[(f64, Vec<u8>)]| {
        model.iter().flat_map(|(score, name)| list(&[score.to_le_bytes().to_vec(), name.clone()])).collect::<Vec<u8>>()
    };
    model.extend((0..40).map(|n| (f64::from(n % 4), format!("m{n}").into_bytes())));
    sort(&mut model);
    let mut value = Working::new(&segments, Type::SortedSet, &flat(&model));
    for step in 0..4000u32 {
        let name = format!("m{}", random.index(150)).into_bytes();
        let score = random.index(9) as f64 - 4.0;
        match random.index(8) {
            0..=3 => {
                let goes = random.index(100) < if step / 500 % 2 == 0 { 25 } else { 70 };
                // Some commands name many, and some twice.
                let others = (0..if step % 7 == 0 { 40 } else { 0 }).map(|_| random.index(150));
                let names: Vec<Vec<u8>> = others.map(|n| format!("m{n}").into_bytes()).chain([name]).collect();
                let edit = |all: &mut Vec<(f64, Vec<u8>)>| -> Result<(), Trouble> {
                    for (n, name) in names.iter().enumerate() {
                        all.retain(|member| member.1 != *name);
                        if !goes || n % 3 == 1 {
                            all.push((score + (n % 2) as f64, name.clone()));
                        }
                    }
                    Ok(())
                };
                edit(&mut model).unwrap();
                value.change_members(names.iter().map(Vec::as_slice), edit).unwrap();
                sort(&mut model);
            }
            4 if model.len() > 4 => {
                let from = random.index(model.len());
                let to = (from + random.index(3)).min(model.len());
                let taken = value.take_ranks(from..to).unwrap();
                assert_eq!(taken, model.drain(from..to).collect::<Vec<_>>());
            }
            5 => {
                let at = random.index(model.len().max(1));
                if let Some(member) = model.get_mut(at) {
                    member.0 += 1.0;
                }
                sort(&mut model);
                value.become_whole(&flat(&model)).unwrap();
            }
            6 => {
                let below = |with| model.iter().filter(|member| member.0 < score || with && member.0 == score).count();
                let expected = (below(false), below(true));
                assert_eq!((value.below(score, false).unwrap(), value.below(score, true).unwrap()), expected);
            }
            _ => {
                let found = model.iter().position(|member| member.1 == name);
                let shown = value.scores(&[&name[..]]).unwrap()[0];
                assert_eq!(shown, found.map(|at| model[at].0));
                if let Some(at) = found {
                    assert_eq!(value.rank(model[at].0, &name).unwrap(), at);
                }
            }
        }
        if model.is_empty() {
            model.push((1.0, b"m1".to_vec()));
            value = Working::new(&segments, Type::SortedSet, &flat(&model));
        }
        is_sound(&value);
        if step % 4 == 0 {
            value = again(&value, &segments);
        }
        assert_eq!((value.whole().unwrap(), value.count()), (flat(&model), model.len()), "step {step}");
        let named: usize = value.parts(1).iter().map(|part| part.count as usize).sum();
        assert_eq!(named, model.len());
    }
}

#[test]
fn what_is_no_head_is_refused() {
    let segments = small();
    let items: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; 9]).collect();
    let bytes = Working::new(&segments, Type::List, &list(&items)).encode();
    assert!(Open::decode(NODE, &bytes, None).is_some());
    for len in 0..bytes.len() {
        assert!(Open::decode(NODE, &bytes[..len], None).is_none(), "{len}");
    }
    let mut many = bytes.clone();
    many[8..16].copy_from_slice(&[0xff; 8]);
    assert!(Open::decode(NODE, &many, None).is_none());
    many[8..16].copy_from_slice(&bytes[8..16]);
    many[16..24].copy_from_slice(&[0xff; 8]);
    assert!(Open::decode(NODE, &many, None).is_none());
}

#[test]
fn what_is_left_of_segments_is_joined() {
    let segments = small();
    segments.least.set(512);
    let items: Vec<Vec<u8>> = (0..200u8).map(|n| vec![n; 4]).collect();
    let mut value = Working::new(&segments, Type::List, &list(&items));
    let ends = |n: usize| value.parts(0)[..n].iter().map(|part| part.count as usize).sum::<usize>();
    // One item of each of two segments stays, and those between them go.
    let (from, to, parts) = (ends(3) + 1, ends(7) - 1, value.parts(0).len());
    value.take_out(from..to).unwrap();
    assert_eq!(value.parts(0).len(), parts - 3);
    assert_eq!(value.whole().unwrap(), list(&[&items[..from], &items[to..]].concat()));
}
