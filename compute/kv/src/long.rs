//! Long values: strings in several pieces, to 512 MiB.
//!
//! ```text
//!  slot ─► object of type Long: number │ bytes │ extents: place, length, checksum     (the head)
//!                                                  │
//!                                                  ▼
//!          piece: owner │ number │ hash of the key │ up to 2 MiB of the value          (an extent)
//! ```
//!
//! Extents are written first. The CAS that links the head is the moment at which the value is
//! there. Neither is ever changed. The head's checksum covers those of the extents.
//!
//! A long value has a random *number*. An extent is live exactly when the index refers to a head of
//! its number under its key's hash. So an expiry is changed by a new head of the same number, and a
//! front end that dies between any two verbs leaves extents that an adopter recognizes as garbage.
//! The first head of a number is linked by the front end that wrote its extents. Later ones only
//! replace a head of the same number. So a number that has left the index never comes back.
//!
//! A reader keeps its [`Found`], whose section keeps the extents from being used again.

use crate::keyspace::Keyspace;
use crate::layout::{At, EXTENT, Hash, MAX_OBJECT, NODE_SHIFT, PIECE_HEADER, PIECES, word};
use crate::object::{self, Object, Type, Value};
use crate::shard::heap::Held;
use crate::shard::index::Found;
use crate::shard::reach::Reach;
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a value at most.
pub const MAX_LONG: u64 = 512 << 20;
/// Bytes of a list before its extents, and of each extent in it.
const LIST: usize = 16;
const ENTRY: usize = 24;
/// Words of a piece's header that say whose it is. The number and the hash come behind them.
const OWNER: u64 = 16;

/// A part of a long value, in a piece of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its first byte.
    pub at: At,
    /// Bytes.
    pub len: u32,
    /// Their checksum.
    pub checksum: u64,
}

/// The content of a head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct List {
    /// Tells the value from all others.
    pub number: u64,
    /// Bytes of the value.
    pub len: u64,
    /// Its parts in order.
    pub extents: Vec<Extent>,
}

impl List {
    /// As the bytes of a head's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [self.number.to_le_bytes(), self.len.to_le_bytes()].concat();
        for extent in &self.extents {
            let place = extent.at & ((1 << NODE_SHIFT) - 1);
            bytes.extend([place, u64::from(extent.len), extent.checksum].map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }

    /// From a head's value; `None`: it is no list. `node` is the one that its shard is on.
    pub fn decode(bytes: &[u8], node: u8) -> Option<List> {
        let (number, len) = (word(bytes, 0), word(bytes, 1));
        let node = u64::from(node) << NODE_SHIFT;
        let extents: Vec<Extent> = bytes
            .get(LIST..)?
            .chunks_exact(ENTRY)
            .map(|entry| Extent { at: node | word(entry, 0), len: word(entry, 1) as u32, checksum: word(entry, 2) })
            .collect();
        let sum: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        // Lengths are what a node says: room is made for no more than this store writes.
        let may_be = len <= MAX_LONG && extents.iter().all(|extent| u64::from(extent.len) <= MAX_OBJECT);
        (may_be && sum == len && bytes.len() == LIST + extents.len() * ENTRY).then_some(List { number, len, extents })
    }
}

/// The number of the long value that an object is the head of, if it is one.
pub fn number(object: &Object) -> Option<u64> {
    (object.kind() == Type::Long).then(|| word(object.value(), 0))
}

/// Bytes of the value of an object, which may be the head of a long one.
pub fn len(object: &Object) -> u64 {
    if object.kind() == Type::Long { word(object.value(), 1) } else { object.value().len() as u64 }
}

/// A long value whose extents are written. Until a head is linked it goes when it is dropped.
#[derive(Debug)]
pub struct Long {
    shard: Rc<Shard>,
    list: List,
    held: Vec<Held>,
}

impl Long {
    /// The value of its head.
    pub fn head(&self, expiry: Option<u64>) -> Value {
        Value { kind: Type::Long, expiry, bytes: self.list.encode() }
    }

    /// The content of its head.
    pub fn list(&self) -> &List {
        &self.list
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        self.shard.space.heap.borrow_mut().abandon(self.list.number, &self.held);
    }
}

/// Writes a long value of a key, extent by extent.
#[derive(Debug)]
pub struct Writer<'a> {
    store: &'a Keyspace,
    long: Long,
    hash: Hash,
    /// Bytes that come, as far as is known. The last extents are cut to fill their pieces.
    expected: u64,
    /// Places that are held for extents to come.
    ahead: VecDeque<Held>,
    filled: Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Of a value of `expected` bytes.
    pub fn new(store: &'a Keyspace, key: &[u8], expected: u64) -> Writer<'a> {
        let number = (store.random(1 << 32) as u64) << 32 | store.random(1 << 32) as u64;
        let list = List { number, len: 0, extents: Vec::new() };
        let long = Long { shard: Rc::clone(store.shard(key)), list, held: Vec::new() };
        Writer { store, long, hash: Hash::of(key), expected, ahead: VecDeque::new(), filled: Vec::new() }
    }

    /// The extents of what is expected, by their lengths.
    fn extents(&self) -> impl Iterator<Item = u64> + use<> {
        let (mut left, longest) = (self.expected, self.long.shard.space.longest.get());
        std::iter::from_fn(move || {
            let len = size(left, longest);
            left -= len;
            (len > 0).then_some(len)
        })
    }

    /// Refuses what would not fit even if nothing else was there. Nothing is evicted for it.
    fn admit(&self) -> Result<(), Trouble> {
        let piece = |len: u64| (len + PIECE_HEADER).next_power_of_two().max(u64::from(*PIECES.start()));
        let all: u64 = self.extents().map(piece).sum();
        if all > self.long.shard.space.limit.get() { Err(Trouble::Beyond) } else { Ok(()) }
    }

    /// Holds places for all that is expected. A caller that reads a value while it writes another
    /// calls this before it finds the first. Otherwise its own section would keep the memory from
    /// coming back for which it waits.
    ///
    /// # Errors
    /// There is no memory left.
    pub async fn reserve(&mut self, io: &Io) -> Result<(), Trouble> {
        self.admit()?;
        for len in self.extents() {
            let held = self.place(io, len).await?;
            self.ahead.push_back(held);
        }
        Ok(())
    }

    /// Holds a place for an extent.
    async fn place(&mut self, io: &Io, len: u64) -> Result<Held, Trouble> {
        let held = loop {
            match self.long.shard.space.hold_class(io, EXTENT, len).await {
                Err(Trouble::Full) => self.store.make_room(io, &self.long.shard, EXTENT, len).await?,
                held => break held?,
            }
        };
        self.long.held.push(held);
        Ok(held)
    }

    /// Bytes of the extent that is being filled.
    fn size(&self) -> usize {
        let (left, longest) = (self.expected.saturating_sub(self.long.list.len), self.long.shard.space.longest.get());
        size(left.max(1), longest) as usize
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// There is no memory left, or the value is too large.
    pub async fn write(&mut self, io: &Io, mut bytes: &[u8]) -> Result<(), Trouble> {
        if self.long.list.len == 0 && self.filled.is_empty() {
            self.admit()?;
        }
        while !bytes.is_empty() {
            let size = self.size();
            let now = bytes.len().min(size - self.filled.len());
            self.filled.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
            if self.filled.len() == size {
                self.flush(io).await?;
            }
        }
        Ok(())
    }

    /// Appends a range of a value that was found.
    ///
    /// # Errors
    /// As [`Writer::write`], or the value does not match its checksums.
    pub async fn copy(&mut self, io: &Io, found: &Found, from: u64, to: u64) -> Result<(), Trouble> {
        let mut reader = Reader::new(Rc::clone(&self.long.shard.reach), found, from, to)?;
        while let Some(bytes) = reader.next(io).await? {
            self.write(io, &bytes).await?;
        }
        Ok(())
    }

    /// Appends a long value that was written before.
    ///
    /// # Errors
    /// As [`Writer::copy`].
    pub async fn copy_long(&mut self, io: &Io, other: &Long) -> Result<(), Trouble> {
        for extent in &other.list.extents {
            let bytes = other.shard.reach.extent(io, extent).await?;
            self.write(io, &bytes).await?;
        }
        Ok(())
    }

    async fn flush(&mut self, io: &Io) -> Result<(), Trouble> {
        let bytes = std::mem::take(&mut self.filled);
        let len = bytes.len() as u64;
        if self.long.list.len + len > MAX_LONG {
            return Err(Trouble::TooLarge);
        }
        let held = match self.ahead.pop_front() {
            Some(held) => held,
            None => self.place(io, len).await?,
        };
        let long = &mut self.long;
        let extent = Extent { at: held.at, len: len as u32, checksum: xxhash_rust::xxh3::xxh3_64(&bytes) };
        let header = [long.list.number, self.hash.0].map(u64::to_le_bytes).concat();
        let at = held.at - PIECE_HEADER + OWNER;
        let fields = Verb::Write { at, bytes: Rc::new(header) };
        long.shard.reach.verbs(io, vec![fields, Verb::Write { at: held.at, bytes: Rc::new(bytes) }]).await;
        long.list.len += len;
        long.list.extents.push(extent);
        Ok(())
    }

    /// All of it is written.
    ///
    /// # Errors
    /// As [`Writer::write`].
    pub async fn end(mut self, io: &Io) -> Result<Long, Trouble> {
        if !self.filled.is_empty() {
            self.flush(io).await?;
        }
        Ok(self.long)
    }
}

/// Bytes of the next extent of a value of which `left` bytes are to come.
fn size(left: u64, longest: u64) -> u64 {
    let whole = (left + PIECE_HEADER).next_power_of_two();
    // A piece that would be filled by less than seven eighths is not taken, unless it is small.
    let take =
        if left + PIECE_HEADER > whole - whole / 8 || whole <= 64 << 10 { left } else { whole / 2 - PIECE_HEADER };
    take.min(longest)
}

/// Reads a range of a value, extent by extent.
#[derive(Debug)]
pub struct Reader {
    reach: Rc<Reach>,
    /// The value, if it is in the object itself.
    object: Option<Object>,
    extents: std::vec::IntoIter<Extent>,
    /// Where the next extent begins in the value.
    at: u64,
    from: u64,
    to: u64,
}

impl Reader {
    /// Of the bytes of a value from one on up to another. The caller keeps what it has found until
    /// the end.
    ///
    /// # Errors
    /// The object is no value of this kind.
    pub fn new(reach: Rc<Reach>, found: &Found, from: u64, to: u64) -> Result<Reader, Trouble> {
        let object = &found.object;
        let to = to.min(len(object));
        let (object, extents) = match object.kind() {
            Type::Long => (None, List::decode(object.value(), reach.node).ok_or(Trouble::Corrupt)?.extents),
            _ => (Some(object.clone()), Vec::new()),
        };
        Ok(Reader { reach, object, extents: extents.into_iter(), at: 0, from, to })
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// They do not match their checksum.
    pub async fn next(&mut self, io: &Io) -> Result<Option<Vec<u8>>, Trouble> {
        if let Some(object) = self.object.take() {
            let (from, to) = (self.from as usize, self.to as usize);
            return Ok(object.value().get(from..to).filter(|bytes| !bytes.is_empty()).map(<[u8]>::to_vec));
        }
        loop {
            let Some(extent) = self.extents.next().filter(|_| self.at < self.to) else { return Ok(None) };
            let (begin, end) = (self.at, self.at + u64::from(extent.len));
            self.at = end;
            if end <= self.from {
                continue;
            }
            let mut bytes = self.reach.extent(io, &extent).await?;
            bytes.truncate((self.to.min(end) - begin) as usize);
            bytes.drain(..(self.from.max(begin) - begin) as usize);
            return Ok(Some(bytes));
        }
    }
}

impl Reach {
    /// Reads an extent.
    pub(crate) async fn extent(&self, io: &Io, extent: &Extent) -> Result<Vec<u8>, Trouble> {
        let answer = self.verbs(io, vec![Verb::Read { at: extent.at, len: extent.len }]).await.pop();
        match answer {
            Some(Answer::Bytes(bytes)) if xxhash_rust::xxh3::xxh3_64(&bytes) == extent.checksum => Ok(bytes),
            _ if self.shut_out.get() => Err(Trouble::ShutOut),
            _ => Err(Trouble::Corrupt),
        }
    }
}

impl Keyspace {
    /// Whether a key's value needs several pieces.
    pub(crate) fn is_long(&self, key: &[u8], value: &Value) -> bool {
        value.kind == Type::String && object::len(key, &value.bytes) > self.shard(key).space.longest.get()
    }

    /// Writes the extents of a value that needs several pieces.
    pub(crate) async fn lengthen(&self, io: &Io, key: &[u8], bytes: &[u8]) -> Result<Long, Trouble> {
        if bytes.len() as u64 > MAX_LONG {
            return Err(Trouble::TooLarge);
        }
        let mut writer = Writer::new(self, key, bytes.len() as u64);
        writer.write(io, bytes).await?;
        writer.end(io).await
    }

    /// A value as one string of bytes: `None`: it has more than `most`.
    pub(crate) async fn whole(
        &self,
        io: &Io,
        key: &[u8],
        found: &Found,
        most: u64,
    ) -> Result<Option<Vec<u8>>, Trouble> {
        if len(&found.object) > most {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(len(&found.object) as usize);
        let mut reader = Reader::new(Rc::clone(&self.shard(key).reach), found, 0, u64::MAX)?;
        while let Some(some) = reader.next(io).await? {
            bytes.extend_from_slice(&some);
        }
        Ok(Some(bytes))
    }

    /// An object that was found, with all of its value.
    ///
    /// # Errors
    /// A value in several pieces does not match its checksums, or is too large to be seen as one.
    pub async fn entire(&self, io: &Io, found: Found) -> Result<Object, Trouble> {
        if found.object.kind() != Type::Long {
            return self.as_one(io, &found.object).await;
        }
        let key = found.object.key().to_vec();
        let bytes = self.whole(io, &key, &found, MAX_LONG).await?.ok_or(Trouble::TooLarge)?;
        Ok(Object::of(&key, &Value { kind: Type::String, expiry: found.object.expiry(), bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_fill_their_pieces() {
        for len in [1u64, 4032, 70_000, 1 << 20, 3 << 20, (4 << 20) + 1, MAX_LONG] {
            let (mut left, mut taken) = (len, 0);
            while left > 0 {
                let now = size(left, crate::layout::MAX_OBJECT);
                assert!(now > 0 && now <= left && now <= crate::layout::MAX_OBJECT, "{left}: {now}");
                taken += (now + PIECE_HEADER).next_power_of_two().max(4096);
                left -= now;
            }
            assert!(taken <= len * 8 / 7 + (64 << 10), "{len} take {taken}");
        }
    }

    #[test]
    fn a_list_is_what_was_written() {
        let extents = (1..4).map(|n| Extent { at: n << 21 | 64, len: 5, checksum: n }).collect();
        let list = List { number: 9, len: 15, extents };
        let bytes = list.encode();
        assert_eq!(List::decode(&bytes, 0), Some(list));
        assert_eq!(List::decode(&bytes, 1).map(|list| list.extents[0].at), Some(1 << NODE_SHIFT | 1 << 21 | 64));
        assert_eq!(List::decode(&bytes[..bytes.len() - 1], 0), None);
        assert_eq!(List::decode(&[], 0), None);
        let extents = |lens: &[u32]| lens.iter().map(|&len| Extent { at: 64, len, checksum: 0 }).collect();
        let of = |lens: &[u32]| {
            let len = lens.iter().map(|&len| u64::from(len)).sum();
            List::decode(&List { number: 9, len, extents: extents(lens) }.encode(), 0)
        };
        assert!(of(&[MAX_OBJECT as u32]).is_some(), "the longest piece");
        assert_eq!((of(&[MAX_OBJECT as u32 + 1]), of(&[u32::MAX])), (None, None), "no piece has as many");
        assert_eq!(of(&[MAX_OBJECT as u32; 257]), None, "more than a value has");
    }
}
