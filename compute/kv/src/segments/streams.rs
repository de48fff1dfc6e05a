//! Streams in segments: entries by their IDs on the first side, and all else by keys on the second.
//!
//! ```text
//!  entry     ID │ its fields and values                       first side
//!  stream    0 │ last ID, largest deleted ID, entries ever added          second side
//!  group     1, its name, 0 │ last ID, entries read, numbers of consumers and of pending entries
//!  consumer  1, the group's name, 1, its name │ when it was there, number of its pending entries
//!  pending   1, the group's name, 2, ID │ when delivered, how often, the consumer's name
//! ```
//!
//! IDs in keys are two words whose first byte is the largest, so keys have the order of IDs. Other
//! numbers are words. A group's name has its length in front. As one object a stream is
//!
//! ```text
//!  last ID │ largest deleted ID │ entries ever added │ entries │ groups
//!  entry   ID │ its fields and values      group   name │ last ID │ entries read │ consumers │ pending
//! ```
//!
//! where numbers of items come first, and a pending entry has its consumer's number.

use super::ordered::{value, write};
use super::units;
use crate::object::Type;
use std::collections::BTreeMap;

/// The name of an entry: milliseconds since 1970, and a number among those of the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Id {
    /// Milliseconds.
    pub ms: u64,
    /// The number.
    pub seq: u64,
}

impl Id {
    /// The lowest.
    pub const MIN: Id = Id { ms: 0, seq: 0 };
    /// The highest.
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

    /// As clients see it.
    pub fn text(self) -> String {
        format!("{}-{}", self.ms, self.seq)
    }

    /// As a key.
    pub fn key(self) -> [u8; 16] {
        (u128::from(self.ms) << 64 | u128::from(self.seq)).to_be_bytes()
    }

    /// From the end of a key.
    pub fn of_key(key: &[u8]) -> Option<Id> {
        let both = u128::from_be_bytes(*key.last_chunk()?);
        Some(Id { ms: (both >> 64) as u64, seq: both as u64 })
    }
}

/// The key of what a stream has beside entries and groups.
pub const STREAM: &[u8] = &[0];
/// What comes behind a group's name: its own, a consumer's name, a pending entry's ID; and what is
/// behind all of them.
pub const GROUP: u8 = 0;
/// See [`GROUP`].
pub const CONSUMER: u8 = 1;
/// See [`GROUP`].
pub const PENDING: u8 = 2;
/// See [`GROUP`].
pub const BEHIND: u8 = 3;

/// Bytes of the name of a group or a consumer at most. With each pending entry both are noted.
pub const NAME: usize = 1024;

/// The key of a group's item.
pub fn key(group: &[u8], what: u8, rest: &[u8]) -> Vec<u8> {
    [&[1][..], &(group.len() as u32).to_be_bytes(), group, &[what], rest].concat()
}

/// Words one behind the other.
#[derive(Debug)]
pub struct Words<'a>(pub &'a [u8]);

impl<'a> Words<'a> {
    /// The next.
    pub fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// The next two.
    pub fn id(&mut self) -> Option<Id> {
        Some(Id { ms: self.word()?, seq: self.word()? })
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        self.bytes().filter(|name| name.len() <= NAME)
    }

    /// A number of items, each of `least` bytes or more. `None`: there are not so many bytes.
    fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.word()?).ok()?;
        (count.checked_mul(least)? <= self.0.len()).then_some(count)
    }
}

/// Words as bytes.
pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The sides of a stream that is one object. `None`: the bytes are not sound.
pub fn split(whole: &[u8]) -> Option<[Vec<u8>; 2]> {
    split_within(whole, usize::MAX)
}

/// [`split`]. `None`, too: the sides have more than `most` bytes together. They may have some 50
/// times as many as one object, because names of groups and consumers come once there.
pub fn split_within(whole: &[u8], most: usize) -> Option<[Vec<u8>; 2]> {
    let mut reader = Words(whole);
    let (head, _) = whole.split_at_checked(40)?;
    let (last, _, _) = (reader.id()?, reader.id()?, reader.word()?);
    let (mut entries, mut before) = (Vec::with_capacity(whole.len()), None);
    for _ in 0..reader.count(24)? {
        let id = reader.id()?;
        let fields = reader.count(4)?;
        let begin = reader.0;
        for _ in 0..fields {
            reader.bytes()?;
        }
        if fields == 0 || fields % 2 == 1 || before.is_some_and(|before| before >= id) || id > last {
            return None;
        }
        before = Some(id);
        write(&mut entries, &id.key(), &begin[..begin.len() - reader.0.len()]);
    }
    let mut state: BTreeMap<Vec<u8>, Vec<u8>> = [(STREAM.to_vec(), head.to_vec())].into();
    let mut left = most.checked_sub(entries.len())?;
    let mut note = |key: Vec<u8>, value: Vec<u8>| -> Option<()> {
        left = left.checked_sub(8 + key.len() + value.len())?;
        state.insert(key, value).is_none().then_some(())
    };
    for _ in 0..reader.count(40)? {
        let name = reader.name()?;
        let (last, read) = (reader.id()?, reader.word()?);
        let consumers = reader.count(12)?;
        let mut names = Vec::new();
        for _ in 0..consumers {
            names.push((reader.name()?, reader.word()?, 0));
        }
        let pending = reader.count(40)?;
        for _ in 0..pending {
            let id = reader.id()?;
            let (consumer, _, own) = names.get_mut(usize::try_from(reader.word()?).ok()?)?;
            *own += 1;
            let mut value = words(&[reader.word()?, reader.word()?]);
            value.extend_from_slice(consumer);
            note(key(name, PENDING, &id.key()), value)?;
        }
        for (consumer, seen, own) in names {
            note(key(name, CONSUMER, consumer), words(&[seen, own]))?;
        }
        let own = words(&[last.ms, last.seq, read, consumers as u64, pending as u64]);
        note(key(name, GROUP, &[]), own)?;
    }
    let mut second = Vec::new();
    state.iter().for_each(|(key, value)| write(&mut second, key, value));
    reader.0.is_empty().then_some([entries, second])
}

/// A stream as one object, by its sides. `None`: they are none.
pub fn join(entries: &[u8], state: &[u8]) -> Option<Vec<u8>> {
    let mut items = units(Type::Stream, state).map(|unit| (unit.name, value(&unit))).peekable();
    let (first, head) = items.next()?;
    let mut whole = Vec::with_capacity(entries.len() + state.len() + 64);
    whole.extend_from_slice(head.get(..40).filter(|_| first == STREAM)?);
    whole.extend_from_slice(&(units(Type::Stream, entries).count() as u64).to_le_bytes());
    for unit in units(Type::Stream, entries) {
        let (id, mut fields) = (Id::of_key(unit.name)?, Words(value(&unit)));
        let (bytes, mut count) = (fields.0, 0u64);
        while fields.bytes().is_some() {
            count += 1;
        }
        whole.extend_from_slice(&words(&[id.ms, id.seq, count]));
        whole.extend_from_slice(bytes.get(..bytes.len() - fields.0.len())?);
    }
    let (counted, mut groups) = (whole.len(), 0u64);
    whole.extend_from_slice(&[0; 8]);
    while let Some((own, head)) = items.next() {
        groups += 1;
        // Behind the name of a group there is the byte that tells what an item is.
        let (_, prefix) = own.split_last().filter(|(what, prefix)| **what == GROUP && prefix.len() >= 5)?;
        put_bytes(&mut whole, &prefix[5..]);
        whole.extend_from_slice(head.get(..24)?);
        let mut of_group = |what: u8| {
            let mut found = Vec::new();
            let is_own = |(key, _): &(&[u8], &[u8])| key.starts_with(prefix) && key.get(prefix.len()) == Some(&what);
            while let Some((key, value)) = items.next_if(is_own) {
                found.push((&key[prefix.len() + 1..], value));
            }
            found
        };
        let (consumers, pending) = (of_group(CONSUMER), of_group(PENDING));
        whole.extend_from_slice(&(consumers.len() as u64).to_le_bytes());
        let mut places = BTreeMap::new();
        for (place, (name, value)) in consumers.into_iter().enumerate() {
            places.insert(name, place as u64);
            put_bytes(&mut whole, name);
            whole.extend_from_slice(value.get(..8)?);
        }
        whole.extend_from_slice(&(pending.len() as u64).to_le_bytes());
        for (id, value) in pending {
            let (id, (times, consumer)) = (Id::of_key(id)?, value.split_at_checked(16)?);
            whole.extend_from_slice(&words(&[id.ms, id.seq, *places.get(consumer)?]));
            whole.extend_from_slice(times);
        }
    }
    whole[counted..counted + 8].copy_from_slice(&groups.to_le_bytes());
    Some(whole)
}
