//! Streams in small segments are the streams that one object would have.

use super::stream::{Head, Members, Pending};
use crate::object::{Object, Type, Value};
use crate::segments::streams::{Id, join, split, words};
use crate::segments::tests::{again, is_sound};
use crate::segments::{Segments, Working, units};
use farmem_protocol::random::Random;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::ControlFlow;

/// A consumer's number among those of its group is told by its name.
#[derive(Default, Debug)]
struct Model {
    head: Head,
    entries: BTreeMap<Id, Vec<Vec<u8>>>,
    /// By the lengths of their names, and their names.
    groups: BTreeMap<(usize, Vec<u8>), Noted>,
}

#[derive(Default, Debug)]
struct Noted {
    last: Id,
    read: Option<u64>,
    consumers: BTreeMap<Vec<u8>, u64>,
    pending: BTreeMap<Id, Pending>,
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

impl Model {
    fn bytes(&self) -> Vec<u8> {
        let Head { last, max_deleted, added } = self.head;
        let mut out = words(&[last.ms, last.seq, max_deleted.ms, max_deleted.seq, added, self.entries.len() as u64]);
        for (id, fields) in &self.entries {
            out.extend(words(&[id.ms, id.seq, fields.len() as u64]));
            fields.iter().for_each(|field| put(&mut out, field));
        }
        out.extend(words(&[self.groups.len() as u64]));
        for ((_, name), group) in &self.groups {
            put(&mut out, name);
            let read = group.read.map_or(0, |read| read + 1);
            out.extend(words(&[group.last.ms, group.last.seq, read, group.consumers.len() as u64]));
            for (name, seen) in &group.consumers {
                put(&mut out, name);
                out.extend(words(&[*seen]));
            }
            out.extend(words(&[group.pending.len() as u64]));
            for (id, pending) in &group.pending {
                let place = group.consumers.keys().position(|name| *name == pending.consumer).unwrap();
                out.extend(words(&[id.ms, id.seq, place as u64, pending.delivered_ms, pending.count]));
            }
        }
        out
    }

    fn ids(&self, random: &mut Random, most: usize) -> Vec<Id> {
        let any = |random: &mut Random| self.entries.keys().nth(random.index(self.entries.len().max(1))).copied();
        (0..most).filter_map(|_| any(random)).collect()
    }
}

fn name(random: &mut Random, kinds: usize) -> Vec<u8> {
    let n = random.index(kinds);
    format!("{}{n}", "x".repeat(n % 3)).into_bytes()
}

/// What ranges of it show.
fn shows(value: &Working<'_>, model: &Model, random: &mut Random) {
    let ends = model.ids(random, 2);
    let (low, high) = match ends[..] {
        [one, other] if random.index(3) > 0 => (one.min(other), one.max(other)),
        _ => (Id::MIN, Id::MAX),
    };
    let most = random.index(12);
    let expected: Vec<Id> = model.entries.range(low..=high).map(|(id, _)| *id).collect();
    let ids = |entries: Vec<super::stream::Entry>| entries.into_iter().map(|entry| entry.id).collect::<Vec<_>>();
    assert_eq!(ids(value.entries(low, high, most).unwrap()), expected.iter().copied().take(most).collect::<Vec<_>>());
    let back: Vec<Id> = expected.iter().rev().copied().take(most).collect();
    assert_eq!(ids(value.entries_back(low, high, most).unwrap()), back);
    assert_eq!(value.place_of(0, &low.key()).unwrap(), model.entries.range(..low).count());
    let shown = value.groups().unwrap();
    assert_eq!(shown.len(), model.groups.len());
    for ((_, name), group) in &model.groups {
        let noted = &shown[name];
        assert_eq!((noted.last, noted.read), (group.last, group.read));
        assert_eq!((noted.consumers, noted.pending), (group.consumers.len() as u64, group.pending.len() as u64));
        let mut pending = Vec::new();
        let see = |id, one| {
            pending.push((id, one));
            ControlFlow::Continue(())
        };
        value.each_pending(name, low, usize::MAX, see).unwrap();
        let expected = group.pending.range(low..).map(|(id, one)| (*id, one.clone()));
        assert_eq!(pending, expected.collect::<Vec<_>>());
        assert_eq!(value.last_pending(name).unwrap(), group.pending.keys().last().copied());
        for (consumer, noted) in value.consumers(name).unwrap() {
            let own = group.pending.values().filter(|pending| pending.consumer == consumer).count();
            assert_eq!((noted.seen, noted.pending), (group.consumers[&consumer], own as u64));
        }
    }
}

#[test]
fn streams_are_what_a_stream_is() {
    let segments = Segments::default();
    segments.least.set(64);
    let (mut random, mut model) = (Random::new(9), Model::default());
    let mut value = Working::none(&segments, Type::Stream);
    value.append(Id { ms: 1, seq: 0 }, &[b"f".to_vec(), b"v".to_vec()]).unwrap();
    model.entries.insert(Id { ms: 1, seq: 0 }, vec![b"f".to_vec(), b"v".to_vec()]);
    model.head = Head { last: Id { ms: 1, seq: 0 }, added: 1, ..Head::default() };
    for step in 0..6000u64 {
        let (group, consumer) = (name(&mut random, 4), name(&mut random, 5));
        let own = (group.len(), group.clone());
        let grows = step / 600 % 2 == 0;
        match random.index(14) {
            0..=3 => {
                let last = model.head.last;
                let id =
                    if random.index(2) == 0 { last.next().unwrap() } else { Id { ms: last.ms + 3, seq: step % 3 } };
                let fields = vec![b"f".to_vec(), vec![step as u8; random.index(30)]];
                value.append(id, &fields).unwrap();
                model.entries.insert(id, fields);
                (model.head.last, model.head.added) = (id, model.head.added + 1);
            }
            4..=5 => {
                let most = if grows { 1 } else { 6 };
                let mut ids = model.ids(&mut random, most);
                ids.push(Id { ms: step, seq: 99 });
                let gone: Vec<Id> = ids.iter().copied().filter(|id| model.entries.remove(id).is_some()).collect();
                assert_eq!(value.delete(&ids).unwrap(), gone.len());
                model.head.max_deleted = gone.into_iter().fold(model.head.max_deleted, Id::max);
            }
            6 => {
                let count = random.index(if grows { 3 } else { 20 }).min(model.entries.len());
                value.take_out(0..count).unwrap();
                (0..count).for_each(|_| _ = model.entries.pop_first());
            }
            7 => {
                let goes = random.index(4) == 0;
                assert_eq!(value.group(&group).unwrap().is_some(), model.groups.contains_key(&own));
                if goes {
                    assert_eq!(value.remove_group(&group).unwrap(), model.groups.remove(&own).is_some());
                } else if let Entry::Vacant(place) = model.groups.entry(own) {
                    value.set_group(&group, &super::stream::Group { read: Some(step), ..Default::default() }).unwrap();
                    place.insert(Noted { read: Some(step), ..Noted::default() });
                }
            }
            8..=11 => {
                let Some(noted) = model.groups.get_mut(&own) else { continue };
                let mut members = Members::of(&value, &group).unwrap().unwrap();
                let is_new = !noted.consumers.contains_key(&consumer);
                assert_eq!(members.meet(&value, &consumer, step).unwrap(), is_new);
                noted.consumers.insert(consumer.clone(), step);
                let pending = Pending { consumer, delivered_ms: step, count: step % 5 };
                let entries = value.entries_for_group(noted.last.next().unwrap(), random.index(6), 50).unwrap();
                let extent = value.extent().unwrap();
                for entry in entries {
                    extent.advance(&mut members.group, entry.id);
                    members.give(&mut value, entry.id, &pending).unwrap();
                    noted.pending.insert(entry.id, pending.clone());
                }
                // Some are given to another.
                let some = noted.pending.keys().nth(random.index(noted.pending.len().max(1))).copied();
                if let Some(id) = some.filter(|_| step % 2 == 0) {
                    members.give(&mut value, id, &pending).unwrap();
                    noted.pending.insert(id, pending.clone());
                }
                (noted.last, noted.read) = (members.group.last, members.group.read);
                members.store(&mut value).unwrap();
            }
            12 => {
                let Some(noted) = model.groups.get_mut(&own) else { continue };
                let mut members = Members::of(&value, &group).unwrap().unwrap();
                if random.index(5) == 0 {
                    let before = noted.pending.len();
                    noted.pending.retain(|_, pending| pending.consumer != consumer);
                    let gone = noted.consumers.remove(&consumer).map(|_| (before - noted.pending.len()) as u64);
                    assert_eq!(members.dismiss(&mut value, &consumer).unwrap(), gone);
                }
                for _ in 0..if grows { 2 } else { 12 } {
                    let id = noted.pending.keys().nth(random.index(noted.pending.len().max(1))).copied();
                    let id = id.unwrap_or(Id::MAX);
                    assert_eq!(members.release(&mut value, id).unwrap(), noted.pending.remove(&id).is_some());
                }
                members.store(&mut value).unwrap();
            }
            _ => {
                model.head.added += 1;
                if let Some(fields) = model.entries.values_mut().nth(step as usize % 40) {
                    fields[1] = vec![7; random.index(50)];
                }
                value.become_whole(&model.bytes()).unwrap();
            }
        }
        is_sound(&value);
        let whole = value.whole().unwrap();
        assert_eq!((&whole, value.count()), (&model.bytes(), model.entries.len()), "step {step}");
        let [entries, state] = split(&whole).expect("sound");
        assert_eq!(join(&entries, &state).as_ref(), Some(&whole));
        assert_eq!(value.len(), entries.len() + state.len());
        if step % 5 == 0 {
            value = again(&value, &segments);
        }
        if step % 10 == 0 {
            shows(&value, &model, &mut random);
        }
        if step % 700 == 0 {
            let object = Object::of(b"k", &Value { kind: Type::Stream, expiry: None, bytes: whole });
            value = Working::opened(&segments, &object).expect("sound");
        }
    }
}

#[test]
fn what_is_no_stream_is_refused() {
    let mut model =
        Model { head: Head { last: Id { ms: 9, seq: 1 }, added: 4, ..Head::default() }, ..Model::default() };
    for ms in 1..4 {
        model.entries.insert(Id { ms, seq: 0 }, vec![b"f".to_vec(), vec![7; ms as usize]]);
    }
    let pending = Pending { consumer: b"c".to_vec(), delivered_ms: 9, count: 1 };
    let (consumers, pending) = ([(b"c".to_vec(), 5)].into(), [(Id { ms: 1, seq: 0 }, pending)].into());
    model.groups.insert((1, b"g".to_vec()), Noted { consumers, pending, ..Noted::default() });
    let bytes = model.bytes();
    let [entries, state] = split(&bytes).expect("sound");
    for len in 0..bytes.len() {
        assert!(split(&bytes[..len]).is_none(), "{len}");
    }
    // Whatever a node says, nobody ends by it.
    for len in 0..state.len() {
        let _ = join(&entries, &state[..len]);
        let _ = join(&entries[..len.min(entries.len())], &state[len..]);
    }
    for at in 0..state.len() {
        let mut other = state.clone();
        other[at] ^= 0x41;
        let _ = join(&entries, &other);
        let mut other = bytes.clone();
        other[at] ^= 0x41;
        let _ = split(&other);
    }
    assert_eq!(units(Type::Stream, &entries).count(), 3);
    assert_eq!((Id::MAX.next(), Id::MIN.before()), (None, None));
    assert_eq!(Id { ms: 1, seq: u64::MAX }.next(), Some(Id { ms: 2, seq: 0 }));
}
