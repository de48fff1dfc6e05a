//! A stream as bytes and in memory.
//!
//! ```text
//!  last ID │ largest deleted ID │ entries ever added │ entries │ groups
//!  entry   ID │ its fields and values      group   name │ last ID │ entries read │ consumers │ pending
//! ```
//!
//! An ID is two words, and all numbers are words. Bytes have their length in front. The last ID
//! comes first, so a reader that waits learns from a few bytes whether there is anything new.

use crate::object::{HEADER, Object, Type};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::super::super::Fail;

/// The name of an entry: milliseconds since 1970, and a number among those of the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Id {
    pub ms: u64,
    pub seq: u64,
}

impl Id {
    pub const MIN: Id = Id { ms: 0, seq: 0 };
    pub const MAX: Id = Id { ms: u64::MAX, seq: u64::MAX };

    /// The next one; `None` behind the last.
    pub fn next(self) -> Option<Id> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// The one before; `None` before the first.
    pub fn before(self) -> Option<Id> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Id { seq, ..self }),
            None => Some(Id { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    pub fn text(self) -> String {
        format!("{}-{}", self.ms, self.seq)
    }
}

/// An entry: its fields and values in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub id: Id,
    pub fields: Vec<Vec<u8>>,
}

impl Entry {
    /// Bytes in an object.
    pub fn len(&self) -> usize {
        24 + self.fields.iter().map(|field| 4 + field.len()).sum::<usize>()
    }
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    pub consumer: Rc<[u8]>,
    pub delivered_ms: u64,
    pub count: u64,
}

/// Consumers that share the entries of a stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The last entry that was delivered.
    pub last: Id,
    /// How many entries came before the next one, if that is known.
    pub read: Option<u64>,
    /// When each consumer was last there, in ms since 1970.
    pub consumers: BTreeMap<Rc<[u8]>, u64>,
    pub pending: BTreeMap<Id, Pending>,
}

impl Group {
    /// A consumer's name; it is made if it is not there.
    pub fn consumer(&mut self, name: &[u8], now_ms: u64) -> Rc<[u8]> {
        let known = self.consumers.get_key_value(name).map(|(name, _)| Rc::clone(name));
        let name = known.unwrap_or_else(|| name.into());
        self.consumers.insert(Rc::clone(&name), now_ms);
        name
    }

    /// How many entries are pending for each consumer that has some.
    pub fn pending_by_consumer(&self) -> BTreeMap<&[u8], usize> {
        let mut counts = BTreeMap::new();
        for pending in self.pending.values() {
            *counts.entry(&*pending.consumer).or_default() += 1;
        }
        counts
    }

    /// The IDs that are pending for a consumer.
    pub fn pending_of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = Id> + 'a {
        self.pending.iter().filter(move |(_, pending)| &*pending.consumer == name).map(|(id, _)| *id)
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stream {
    pub last: Id,
    pub max_deleted: Id,
    pub added: u64,
    /// In the order of their IDs.
    pub entries: Vec<Entry>,
    pub groups: BTreeMap<Vec<u8>, Group>,
}

/// Bytes of an entry that is pending, besides the entry.
pub const PENDING: usize = 40;
/// Bytes of a stream and its key. Each command reads all of it.
const LONGEST: usize = 16 << 20;
/// Bytes of a stream that only groups may use: they must take note of what they deliver when a
/// stream takes no further entry.
const FOR_GROUPS: usize = 64 << 10;

/// The last ID of a stream, from its object.
pub fn last_of(object: &Object) -> Option<Id> {
    (object.kind() == Type::Stream).then(|| Reader(object.value()).id())?
}

fn put(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn put_id(out: &mut Vec<u8>, id: Id) {
    put(out, id.ms);
    put(out, id.seq);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn id(&mut self) -> Option<Id> {
        Some(Id { ms: self.word()?, seq: self.word()? })
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Reads a count of items, each of `least` bytes or more. `None`: there are not so many bytes.
    fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.word()?).ok()?;
        (count.checked_mul(least)? <= self.0.len()).then_some(count)
    }

    fn entry(&mut self) -> Option<Entry> {
        let id = self.id()?;
        let fields = self.count(4)?;
        let fields: Option<Vec<Vec<u8>>> = (0..fields).map(|_| self.bytes().map(<[u8]>::to_vec)).collect();
        Some(Entry { id, fields: fields? })
    }

    fn group(&mut self) -> Option<(Vec<u8>, Group)> {
        let name = self.bytes()?.to_vec();
        let (last, read) = (self.id()?, self.word()?);
        let mut group = Group { last, read: read.checked_sub(1), ..Group::default() };
        let mut names: Vec<Rc<[u8]>> = Vec::new();
        for _ in 0..self.count(12)? {
            names.push(self.bytes()?.into());
            group.consumers.insert(Rc::clone(names.last()?), self.word()?);
        }
        for _ in 0..self.count(40)? {
            let id = self.id()?;
            let consumer = Rc::clone(names.get(usize::try_from(self.word()?).ok()?)?);
            group.pending.insert(id, Pending { consumer, delivered_ms: self.word()?, count: self.word()? });
        }
        Some((name, group))
    }

    fn stream(&mut self) -> Option<Stream> {
        let (last, max_deleted, added) = (self.id()?, self.id()?, self.word()?);
        let entries = self.count(24)?;
        let entries: Vec<Entry> = (0..entries).map(|_| self.entry()).collect::<Option<_>>()?;
        let groups = self.count(40)?;
        let groups: BTreeMap<_, _> = (0..groups).map(|_| self.group()).collect::<Option<_>>()?;
        Some(Stream { last, max_deleted, added, entries, groups })
    }
}

impl Stream {
    /// From an object; `None`: the bytes are not sound.
    pub fn from_bytes(bytes: &[u8]) -> Option<Stream> {
        let mut reader = Reader(bytes);
        let stream = reader.stream()?;
        let ordered = stream.entries.is_sorted_by(|one, next| one.id < next.id);
        let even = stream.entries.iter().all(|entry| entry.fields.len() % 2 == 0 && !entry.fields.is_empty());
        let last = stream.entries.last().is_none_or(|entry| entry.id <= stream.last);
        (reader.0.is_empty() && ordered && even && last).then_some(stream)
    }

    /// A key's stream.
    pub fn of(object: &Object) -> Result<Stream, Fail> {
        if object.kind() != Type::Stream {
            return Err(Fail::wrong_type());
        }
        Stream::from_bytes(object.value()).ok_or_else(|| crate::shard::Trouble::Corrupt.into())
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_id(&mut out, self.last);
        put_id(&mut out, self.max_deleted);
        put(&mut out, self.added);
        put(&mut out, self.entries.len() as u64);
        for entry in &self.entries {
            put_id(&mut out, entry.id);
            put(&mut out, entry.fields.len() as u64);
            entry.fields.iter().for_each(|field| put_bytes(&mut out, field));
        }
        put(&mut out, self.groups.len() as u64);
        for (name, group) in &self.groups {
            put_bytes(&mut out, name);
            put_id(&mut out, group.last);
            put(&mut out, group.read.map_or(0, |read| read.saturating_add(1)));
            put(&mut out, group.consumers.len() as u64);
            let mut places = BTreeMap::new();
            for (place, (name, seen)) in group.consumers.iter().enumerate() {
                places.insert(name, place as u64);
                put_bytes(&mut out, name);
                put(&mut out, *seen);
            }
            put(&mut out, group.pending.len() as u64);
            for (id, pending) in &group.pending {
                put_id(&mut out, *id);
                put(&mut out, places.get(&pending.consumer).copied().unwrap_or(u64::MAX));
                put(&mut out, pending.delivered_ms);
                put(&mut out, pending.count);
            }
        }
        out
    }

    /// The number of bytes that [`Stream::to_bytes`] returns.
    pub fn len(&self) -> usize {
        let bytes = |bytes: &[u8]| 4 + bytes.len();
        let entries = self.entries.iter().map(Entry::len).sum::<usize>();
        let groups = self.groups.iter().map(|(name, group)| {
            let consumers = group.consumers.keys().map(|name| bytes(name) + 8).sum::<usize>();
            bytes(name) + 40 + consumers + group.pending.len() * PENDING
        });
        56 + entries + groups.sum::<usize>()
    }

    /// Bytes by which the stream of this key may grow.
    pub fn room(&self, key: &[u8]) -> usize {
        LONGEST.saturating_sub(HEADER + key.len() + self.len())
    }

    /// Bytes that the stream of this key may have with one more entry.
    pub fn most(key: &[u8]) -> usize {
        (LONGEST - FOR_GROUPS).saturating_sub(HEADER + key.len())
    }

    /// Adds an entry behind all others.
    pub fn append(&mut self, entry: Entry) {
        (self.last, self.added) = (entry.id, self.added.wrapping_add(1));
        self.entries.push(entry);
    }

    /// Where entries of this ID or later begin.
    pub fn from(&self, id: Id) -> usize {
        self.entries.partition_point(|entry| entry.id < id)
    }

    /// Entries of a range of IDs.
    pub fn range(&self, first: Id, last: Id) -> &[Entry] {
        let (from, to) = (self.from(first), self.entries.partition_point(|entry| entry.id <= last));
        &self.entries[from..to.max(from)]
    }

    pub fn get(&self, id: Id) -> Option<&Entry> {
        self.range(id, id).first()
    }

    /// Takes entries out; how many were there.
    pub fn delete(&mut self, ids: &[Id]) -> usize {
        let (ids, before): (BTreeSet<Id>, _) = (ids.iter().copied().collect(), self.entries.len());
        self.entries.retain(|entry| {
            let goes = ids.contains(&entry.id);
            if goes {
                self.max_deleted = self.max_deleted.max(entry.id);
            }
            !goes
        });
        before - self.entries.len()
    }

    /// Takes the first entries out.
    pub fn trim(&mut self, count: usize) {
        self.entries.drain(..count.min(self.entries.len()));
    }

    fn first(&self) -> Id {
        self.entries.first().map_or(Id::MIN, |entry| entry.id)
    }

    /// Whether an entry was deleted behind this ID, so that entries cannot be counted from there.
    fn has_gaps_from(&self, id: Id) -> bool {
        !self.entries.is_empty() && self.max_deleted != Id::MIN && id <= self.max_deleted
    }

    /// How many entries were added up to this ID, if that can be told.
    pub fn distance(&self, id: Id) -> Option<u64> {
        if self.added == 0 {
            return Some(0);
        }
        if self.entries.is_empty() && id <= self.last || id == self.last {
            return Some(self.added);
        }
        if id > self.last {
            return None;
        }
        let first = self.first();
        let left = self.added.saturating_sub(self.entries.len() as u64);
        match id.cmp(&first) {
            _ if self.max_deleted != Id::MIN && self.max_deleted >= first => None,
            std::cmp::Ordering::Less => Some(left),
            std::cmp::Ordering::Equal => Some(left.saturating_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// How many entries a group has not been given, if that can be told. A client may have said that it was given
    /// more than there were: then it is negative, as with redis.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        if self.added == 0 {
            return Some(0);
        }
        let read = group.read.filter(|_| !self.has_gaps_from(group.last)).or_else(|| self.distance(group.last));
        read.map(|read| self.added.wrapping_sub(read) as i64)
    }

    /// A group has been given the entry of this ID.
    pub fn advance(&self, group: &mut Group, id: Id) {
        if id <= group.last {
            return;
        }
        if let Some(read) = group.read.filter(|_| !self.has_gaps_from(id)) {
            group.read = Some(read.saturating_add(1));
        } else if self.added > 0 {
            group.read = self.distance(id);
        }
        group.last = id;
    }
}

#[test]
fn a_stream_is_what_was_written() {
    let id = |ms, seq| Id { ms, seq };
    let entry = |n| Entry { id: id(n, 0), fields: vec![b"f".to_vec(), vec![7; n as usize]] };
    let mut group = Group { last: id(2, 0), read: None, ..Group::default() };
    let name = group.consumer(b"c", 5);
    group.pending.insert(id(1, 0), Pending { consumer: name, delivered_ms: 9, count: 1 });
    let groups = [(b"g".to_vec(), group)].into();
    let stream =
        Stream { last: id(9, 1), max_deleted: id(3, 0), added: 4, entries: (1..4).map(entry).collect(), groups };
    let bytes = stream.to_bytes();
    assert_eq!(stream.len(), bytes.len());
    assert_eq!(Stream::from_bytes(&bytes), Some(stream));
    for len in 0..bytes.len() {
        assert_eq!(Stream::from_bytes(&bytes[..len]), None);
    }
    assert_eq!((Id::MAX.next(), Id::MIN.before(), id(1, u64::MAX).next()), (None, None, Some(id(2, 0))));
}
