//! A stream as commands see it: what its items say, and the changes of which each command makes
//! some.

use super::super::{Lying, write_item};
use crate::segments::Working;
use crate::segments::streams::{self, BEHIND, CONSUMER, GROUP, Id, PENDING, STREAM, Words, words};
use crate::shard::Trouble;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Bytes of the entries that a group is given at once, with what it notes of each.
pub(super) const AT_ONCE: usize = 16 << 20;
/// Entries that are wanted together at first where they lie anywhere.
const TOGETHER: usize = 16;
/// Bytes of the segments that one command reads for such entries.
const READ: usize = 64 << 20;
/// Bytes that a note of an entry takes beside names: its key, and when and how often it was
/// delivered.
const NOTE: usize = 64;

/// An entry: its fields and values in turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub id: Id,
    pub fields: Vec<Vec<u8>>,
}

/// What a stream has beside entries and groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    pub last: Id,
    pub max_deleted: Id,
    /// Entries ever added.
    pub added: u64,
}

/// Consumers that share the entries of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The last entry that was delivered.
    pub last: Id,
    /// How many entries came before the next one, if that is known.
    pub read: Option<u64>,
    /// How many consumers it has.
    pub consumers: u64,
    /// How many entries are pending.
    pub pending: u64,
}

/// One of those.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Consumer {
    /// When it was last there, in ms since 1970.
    pub seen: u64,
    /// How many entries are pending for it.
    pub pending: u64,
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    pub consumer: Vec<u8>,
    pub delivered_ms: u64,
    pub count: u64,
}

fn entry(key: &[u8], value: &[u8]) -> Result<Entry, Trouble> {
    let id = Id::of_key(key).ok_or(Trouble::Corrupt)?;
    Ok(Entry { id, fields: Lying(value).map(<[u8]>::to_vec).collect() })
}

fn group(value: &[u8]) -> Option<Group> {
    let mut words = Words(value);
    let (last, read) = (words.id()?, words.word()?.checked_sub(1));
    Some(Group { last, read, consumers: words.word()?, pending: words.word()? })
}

fn consumer(value: &[u8]) -> Option<Consumer> {
    let mut words = Words(value);
    Some(Consumer { seen: words.word()?, pending: words.word()? })
}

fn pending(value: &[u8]) -> Option<Pending> {
    let mut words = Words(value);
    let (delivered_ms, count) = (words.word()?, words.word()?);
    Some(Pending { delivered_ms, count, consumer: words.0.to_vec() })
}

/// What was read, or that it is not sound.
fn sound<T>(read: Option<Option<T>>) -> Result<Option<T>, Trouble> {
    read.map(|read| read.ok_or(Trouble::Corrupt)).transpose()
}

impl Working<'_> {
    /// What the stream has beside entries and groups. A new one has nothing yet.
    pub(crate) fn head(&self) -> Result<Head, Trouble> {
        let read = |value: &[u8]| {
            let mut words = Words(value);
            Some(Head { last: words.id()?, max_deleted: words.id()?, added: words.word()? })
        };
        Ok(sound(self.keyed(1, STREAM, read)?)?.unwrap_or_default())
    }

    pub(crate) fn set_head(&mut self, head: &Head) -> Result<(), Trouble> {
        let Head { last, max_deleted, added } = *head;
        let value = words(&[last.ms, last.seq, max_deleted.ms, max_deleted.seq, added]);
        self.set_keyed(1, STREAM, Some(&value)).map(drop)
    }

    /// Adds an entry behind all others.
    pub(crate) fn append(&mut self, id: Id, fields: &[Vec<u8>]) -> Result<(), Trouble> {
        let mut value = Vec::with_capacity(fields.iter().map(|field| field.len() + 4).sum());
        fields.iter().for_each(|field| write_item(&mut value, field));
        self.set_keyed(0, &id.key(), Some(&value))?;
        let head = self.head()?;
        self.set_head(&Head { last: id, added: head.added.wrapping_add(1), ..head })
    }

    pub(crate) fn entry(&self, id: Id) -> Result<Option<Entry>, Trouble> {
        self.keyed(0, &id.key(), |value| entry(&id.key(), value))?.transpose()
    }

    /// The entries of a range of IDs, `most` of them.
    pub(crate) fn entries(&self, first: Id, last: Id, most: usize) -> Result<Vec<Entry>, Trouble> {
        self.entries_within(first, last, most, (usize::MAX, 0))
    }

    /// Those that a group is given, from this ID on. `noted`: bytes that it notes of each.
    pub(crate) fn entries_for_group(&self, first: Id, most: usize, noted: usize) -> Result<Vec<Entry>, Trouble> {
        self.entries_within(first, Id::MAX, most, (AT_ONCE, noted))
    }

    fn entries_within(
        &self,
        first: Id,
        last: Id,
        most: usize,
        (mut bytes, beside): (usize, usize),
    ) -> Result<Vec<Entry>, Trouble> {
        if most == 0 || first > last {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        self.walk(0, &first.key(), most, |key, value| {
            if *key > last.key()[..] {
                return ControlFlow::Break(());
            }
            all.push(entry(key, value));
            bytes = bytes.saturating_sub(key.len() + value.len() + beside);
            if all.len() < most && bytes > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        all.into_iter().collect()
    }

    /// [`Working::entries`], the last one first.
    pub(crate) fn entries_back(&self, first: Id, last: Id, most: usize) -> Result<Vec<Entry>, Trouble> {
        if most == 0 || first > last {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        self.walk_back(0, &last.key(), most, |key, value| {
            if *key < first.key()[..] {
                return ControlFlow::Break(());
            }
            all.push(entry(key, value));
            if all.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        all.into_iter().collect()
    }

    pub(crate) fn first_entry(&self) -> Result<Option<Entry>, Trouble> {
        Ok(self.entries(Id::MIN, Id::MAX, 1)?.pop())
    }

    pub(crate) fn last_entry(&self) -> Result<Option<Entry>, Trouble> {
        Ok(self.entries_back(Id::MIN, Id::MAX, 1)?.pop())
    }

    /// Takes entries out; how many were there.
    pub(crate) fn delete(&mut self, ids: &[Id]) -> Result<usize, Trouble> {
        self.want_keyed(0, ids.iter().map(|id| id.key()))?;
        let (mut head, mut count) = (self.head()?, 0);
        for id in ids {
            if self.set_keyed(0, &id.key(), None)? {
                head.max_deleted = head.max_deleted.max(*id);
                count += 1;
            }
        }
        if count > 0 {
            self.set_head(&head)?;
        }
        Ok(count)
    }

    pub(crate) fn group(&self, name: &[u8]) -> Result<Option<Group>, Trouble> {
        sound(self.keyed(1, &streams::key(name, GROUP, &[]), group)?)
    }

    pub(crate) fn set_group(&mut self, name: &[u8], group: &Group) -> Result<(), Trouble> {
        let Group { last, read, consumers, pending } = *group;
        let read = read.map_or(0, |read| read.saturating_add(1));
        let value = words(&[last.ms, last.seq, read, consumers, pending]);
        self.set_keyed(1, &streams::key(name, GROUP, &[]), Some(&value)).map(drop)
    }

    /// Takes a group out with all that it has; whether it was there.
    pub(crate) fn remove_group(&mut self, name: &[u8]) -> Result<bool, Trouble> {
        let first = self.place_of(1, &streams::key(name, GROUP, &[]))?;
        let behind = self.place_of(1, &streams::key(name, BEHIND, &[]))?;
        self.take_out_of(1, first..behind)?;
        Ok(first < behind)
    }

    /// The groups by their names.
    pub(crate) fn groups(&self) -> Result<BTreeMap<Vec<u8>, Group>, Trouble> {
        let (mut groups, mut from) = (BTreeMap::new(), vec![1]);
        loop {
            let mut next = None;
            self.walk(1, &from, 1, |key, value| {
                // Its name has the length of it and the kind of item in front, and the kind of item behind.
                next = Some((key.get(5..key.len().saturating_sub(1)).map(<[u8]>::to_vec), group(value)));
                ControlFlow::Break(())
            })?;
            let Some((name, group)) = next else { return Ok(groups) };
            let (name, group) = name.zip(group).ok_or(Trouble::Corrupt)?;
            let behind = streams::key(&name, BEHIND, &[]);
            if behind <= from {
                return Err(Trouble::Corrupt);
            }
            from = behind;
            groups.insert(name, group);
        }
    }

    /// Has `see` look at items of a group, from one on.
    fn each_of(
        &self,
        (name, what, from): (&[u8], u8, &[u8]),
        most: usize,
        mut see: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Trouble> {
        let prefix = streams::key(name, what, &[]);
        self.walk(1, &streams::key(name, what, from), most, |key, value| match key.strip_prefix(&prefix[..]) {
            Some(rest) => see(rest, value),
            None => ControlFlow::Break(()),
        })
    }

    /// The consumers of a group, by their names.
    pub(crate) fn consumers(&self, name: &[u8]) -> Result<Vec<(Vec<u8>, Consumer)>, Trouble> {
        let mut all = Vec::new();
        self.each_of((name, CONSUMER, &[]), usize::MAX, |name, value| {
            all.push(consumer(value).map(|consumer| (name.to_vec(), consumer)).ok_or(Trouble::Corrupt));
            ControlFlow::Continue(())
        })?;
        all.into_iter().collect()
    }

    pub(crate) fn consumer(&self, group: &[u8], name: &[u8]) -> Result<Option<Consumer>, Trouble> {
        sound(self.keyed(1, &streams::key(group, CONSUMER, name), consumer)?)
    }

    pub(crate) fn pending(&self, group: &[u8], id: Id) -> Result<Option<Pending>, Trouble> {
        sound(self.keyed(1, &streams::key(group, PENDING, &id.key()), pending)?)
    }

    /// Has `see` look at a group's pending entries from an ID on, until it has seen enough. `most`:
    /// it looks at about as many.
    pub(crate) fn each_pending(
        &self,
        group: &[u8],
        from: Id,
        most: usize,
        mut see: impl FnMut(Id, Pending) -> ControlFlow<()>,
    ) -> Result<(), Trouble> {
        let mut wrong = false;
        self.each_of((group, PENDING, &from.key()), most, |key, value| match Id::of_key(key).zip(pending(value)) {
            Some((id, pending)) => see(id, pending),
            None => {
                wrong = true;
                ControlFlow::Break(())
            }
        })?;
        if wrong { Err(Trouble::Corrupt) } else { Ok(()) }
    }

    /// The last of a group's pending entries.
    pub(crate) fn last_pending(&self, group: &[u8]) -> Result<Option<Id>, Trouble> {
        let (prefix, mut last) = (streams::key(group, PENDING, &[]), None);
        self.walk_back(1, &streams::key(group, BEHIND, &[]), 1, |key, _| {
            last = key.strip_prefix(&prefix[..]).and_then(Id::of_key);
            ControlFlow::Break(())
        })?;
        Ok(last)
    }

    /// What tells how many entries came before an ID.
    pub(crate) fn extent(&self) -> Result<Extent, Trouble> {
        let first = self.first_entry()?.map(|entry| entry.id);
        Ok(Extent { head: self.head()?, first, count: self.count() as u64 })
    }
}

/// Entries that a command comes to in the order of their IDs, and that lie anywhere. The command
/// begins anew when some have been read. So as many are wanted as came before.
#[derive(Default)]
pub struct Ahead {
    wanted: usize,
    bytes: usize,
}

impl Ahead {
    /// Wants the `n`th entry, and others ahead of it. False: the segments of those before it have
    /// [`READ`] bytes, and it is left to another command.
    pub fn come(&mut self, stream: &Working<'_>, ids: &[Id], n: usize) -> Result<bool, Trouble> {
        if n < self.wanted {
            return Ok(true);
        }
        if self.bytes >= READ {
            return Ok(false);
        }
        let ahead = ids[n..].iter().take(n.max(TOGETHER)).map(|id| id.key());
        let (count, bytes) = stream.want_some(0, ahead, AT_ONCE)?;
        (self.wanted, self.bytes) = (n + count, self.bytes + bytes);
        Ok(true)
    }
}

/// Bytes that a group notes of an entry that is pending for a consumer.
pub fn bytes_noted(group: &[u8], consumer: &[u8]) -> usize {
    NOTE + group.len() + consumer.len()
}

/// A group that a command changes. What it notes of the group and of consumers goes back at the end.
pub struct Members<'n> {
    pub name: &'n [u8],
    pub group: Group,
    consumers: BTreeMap<Vec<u8>, Consumer>,
}

impl<'n> Members<'n> {
    pub fn of(stream: &Working<'_>, name: &'n [u8]) -> Result<Option<Members<'n>>, Trouble> {
        Ok(stream.group(name)?.map(|group| Members { name, group, consumers: BTreeMap::new() }))
    }

    /// What is noted of a consumer.
    fn known(&mut self, stream: &Working<'_>, name: &[u8]) -> Result<Option<&mut Consumer>, Trouble> {
        if !self.consumers.contains_key(name) {
            let Some(consumer) = stream.consumer(self.name, name)? else { return Ok(None) };
            self.consumers.insert(name.to_vec(), consumer);
        }
        Ok(self.consumers.get_mut(name))
    }

    /// A consumer is there, and is made if it is new; whether it is.
    pub fn meet(&mut self, stream: &Working<'_>, name: &[u8], now_ms: u64) -> Result<bool, Trouble> {
        if let Some(consumer) = self.known(stream, name)? {
            consumer.seen = now_ms;
            return Ok(false);
        }
        self.group.consumers = self.group.consumers.saturating_add(1);
        self.consumers.insert(name.to_vec(), Consumer { seen: now_ms, pending: 0 });
        Ok(true)
    }

    /// How many entries are pending for a consumer.
    pub fn pending_of(&mut self, stream: &Working<'_>, name: &[u8]) -> Result<u64, Trouble> {
        Ok(self.known(stream, name)?.map_or(0, |consumer| consumer.pending))
    }

    /// An entry is pending for a consumer that was met.
    pub fn give(&mut self, stream: &mut Working<'_>, id: Id, pending: &Pending) -> Result<(), Trouble> {
        self.release(stream, id)?;
        let mut value = words(&[pending.delivered_ms, pending.count]);
        value.extend_from_slice(&pending.consumer);
        stream.set_keyed(1, &streams::key(self.name, PENDING, &id.key()), Some(&value))?;
        self.group.pending = self.group.pending.saturating_add(1);
        if let Some(consumer) = self.known(stream, &pending.consumer)? {
            consumer.pending = consumer.pending.saturating_add(1);
        }
        Ok(())
    }

    /// An entry is pending no more; whether it was.
    pub fn release(&mut self, stream: &mut Working<'_>, id: Id) -> Result<bool, Trouble> {
        let Some(pending) = stream.pending(self.name, id)? else { return Ok(false) };
        stream.set_keyed(1, &streams::key(self.name, PENDING, &id.key()), None)?;
        self.group.pending = self.group.pending.saturating_sub(1);
        if let Some(consumer) = self.known(stream, &pending.consumer)? {
            consumer.pending = consumer.pending.saturating_sub(1);
        }
        Ok(true)
    }

    /// Wants what is noted of some entries.
    pub fn want(&self, stream: &Working<'_>, ids: impl IntoIterator<Item = Id>) -> Result<(), Trouble> {
        stream.want_keyed(1, ids.into_iter().map(|id| streams::key(self.name, PENDING, &id.key())))
    }

    /// Takes a consumer out with its pending entries: how many, or `None` if it was not there.
    pub fn dismiss(&mut self, stream: &mut Working<'_>, name: &[u8]) -> Result<Option<u64>, Trouble> {
        let Some(consumer) = self.known(stream, name)?.map(|consumer| *consumer) else { return Ok(None) };
        let mut ids = Vec::new();
        if consumer.pending > 0 {
            stream.each_pending(self.name, Id::MIN, usize::MAX, |id, pending| {
                ids.extend(Some(id).filter(|_| pending.consumer == name));
                ControlFlow::Continue(())
            })?;
        }
        for id in &ids {
            self.release(stream, *id)?;
        }
        stream.set_keyed(1, &streams::key(self.name, CONSUMER, name), None)?;
        self.consumers.remove(name);
        self.group.consumers = self.group.consumers.saturating_sub(1);
        Ok(Some(ids.len() as u64))
    }

    /// Writes what was noted.
    pub fn store(self, stream: &mut Working<'_>) -> Result<(), Trouble> {
        for (name, Consumer { seen, pending }) in &self.consumers {
            stream.set_keyed(1, &streams::key(self.name, CONSUMER, name), Some(&words(&[*seen, *pending])))?;
        }
        stream.set_group(self.name, &self.group)
    }
}

/// See [`Working::extent`].
pub struct Extent {
    head: Head,
    first: Option<Id>,
    count: u64,
}

impl Extent {
    /// Whether an entry was deleted behind this ID, so that entries cannot be counted from there.
    fn has_gaps_from(&self, id: Id) -> bool {
        self.count > 0 && self.head.max_deleted != Id::MIN && id <= self.head.max_deleted
    }

    /// How many entries were added up to this ID, if that can be told.
    fn distance(&self, id: Id) -> Option<u64> {
        let Head { last, max_deleted, added } = self.head;
        if added == 0 {
            return Some(0);
        }
        if self.count == 0 && id <= last || id == last {
            return Some(added);
        }
        if id > last {
            return None;
        }
        let first = self.first.unwrap_or(Id::MIN);
        let left = added.saturating_sub(self.count);
        match id.cmp(&first) {
            _ if max_deleted != Id::MIN && max_deleted >= first => None,
            Ordering::Less => Some(left),
            Ordering::Equal => Some(left.saturating_add(1)),
            Ordering::Greater => None,
        }
    }

    /// How many entries a group has not been given, if that can be told. A client may have said that
    /// it was given more than there were: then it is negative, as with redis.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        if self.head.added == 0 {
            return Some(0);
        }
        let read = group.read.filter(|_| !self.has_gaps_from(group.last)).or_else(|| self.distance(group.last));
        read.map(|read| self.head.added.wrapping_sub(read) as i64)
    }

    /// A group has been given the entry of this ID.
    pub fn advance(&self, group: &mut Group, id: Id) {
        if id <= group.last {
            return;
        }
        if let Some(read) = group.read.filter(|_| !self.has_gaps_from(id)) {
            group.read = Some(read.saturating_add(1));
        } else if self.head.added > 0 {
            group.read = self.distance(id);
        }
        group.last = id;
    }
}
