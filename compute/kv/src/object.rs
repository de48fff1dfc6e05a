//! Objects: a key with its value, written once, out of place, and never changed.
//!
//! ```text
//!  0  checksum of all that follows     8  hash     16  expiry, ms since 1970, 0 never
//! 24  bytes of the key │ of the value (4 each)      32  kind │ … │ version (2) │ seconds at writing (4)
//! 40  key, value
//! ```
//!
//! The checksum tells a reader that the object is not the one its slot referred to any more, or
//! that it has not all of it. The key is compared in full.

use crate::layout::{self, Hash, UNIT, word};
use crate::segments::form;
use std::rc::Rc;

/// Bytes before the key.
pub const HEADER: usize = 40;

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Type {
    /// A string of bytes.
    String = 1,
    /// A list.
    List = 2,
    /// A set.
    Set = 3,
    /// A hash.
    Hash = 4,
    /// A sorted set.
    SortedSet = 5,
    /// A string in several pieces. The object has the list of its extents ([`crate::long`]).
    Long = 6,
    /// Messages on their way to other front ends ([`crate::command`]). It is no key of a client's.
    Message = 7,
    /// A stream.
    Stream = 8,
    /// A transaction's lock of a key, which the key's slot refers to meanwhile ([`crate::atomic`]).
    Lock = 9,
    /// What a transaction has decided, and the slots that it locks.
    Verdict = 10,
    /// No value: a transaction has given the absent key a slot, to lock it.
    Vacant = 11,
    /// A collection in several objects. The object has the list of its segments
    /// ([`crate::segments`]).
    Parts = 12,
    /// One of those. No slot refers to it.
    Segment = 13,
    /// A value without the form of its type: its node has altered it. It can be removed.
    Broken = 14,
    /// A whole block ([`crate::blocks`]). It is no key of a client's.
    Block = 15,
}

impl Type {
    pub(crate) fn of(byte: u8) -> Option<Type> {
        use Type::{
            Block, Broken, Hash, List, Lock, Long, Message, Parts, Segment, Set, SortedSet, Stream, String, Vacant,
            Verdict,
        };
        [
            String, List, Set, Hash, SortedSet, Long, Message, Stream, Lock, Verdict, Vacant, Parts, Segment, Broken,
            Block,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// A value to store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Value {
    /// Its type.
    pub kind: Type,
    /// When it ends, in ms since 1970.
    pub expiry: Option<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Value {
    /// A string without an end.
    pub fn string(bytes: impl Into<Vec<u8>>) -> Value {
        Value { kind: Type::String, expiry: None, bytes: bytes.into() }
    }
}

/// An object as it was read.
///
/// A clone refers to the same bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    bytes: Rc<Vec<u8>>,
    kind: Type,
    key: usize,
    value: usize,
    /// Bytes of the value at the node. A brief object has none of them.
    told: usize,
}

/// An object's first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The key's hash.
    pub hash: Hash,
    /// Bytes of the whole object.
    pub len: u64,
    /// How often its place was used.
    pub version: u16,
}

impl Header {
    /// Reads one. Whether it is sound only [`Object::decode`] knows.
    pub fn peek(bytes: &[u8]) -> Option<Header> {
        let lens = word(bytes, 3);
        let len = HEADER as u64 + (lens & 0xffff_ffff) + (lens >> 32);
        let version = (word(bytes, 4) >> 16) as u16;
        (bytes.len() >= HEADER).then_some(Header { hash: Hash(word(bytes, 1)), len, version })
    }
}

/// Bytes of an object.
pub fn len(key: &[u8], value: &[u8]) -> u64 {
    (HEADER + key.len() + value.len()) as u64
}

/// The class of an object of this type and of `bytes`.
pub(crate) fn class_of(kind: Type, bytes: u64) -> u8 {
    let of_block = (kind == Type::Block).then(|| layout::block_class(bytes)).flatten();
    of_block.unwrap_or_else(|| layout::class_of(bytes))
}

/// The header of an object whose key and value have these lengths. The checksum is missing.
fn header(
    hash: Hash,
    (key, value): (usize, usize),
    (kind, expiry): (Type, Option<u64>),
    version: u16,
    now_s: u32,
) -> [u8; HEADER] {
    let mut head = [0; HEADER];
    head[8..16].copy_from_slice(&hash.0.to_le_bytes());
    head[16..24].copy_from_slice(&expiry.unwrap_or(0).to_le_bytes());
    head[24..28].copy_from_slice(&(key as u32).to_le_bytes());
    head[28..32].copy_from_slice(&(value as u32).to_le_bytes());
    head[32] = kind as u8;
    head[34..36].copy_from_slice(&version.to_le_bytes());
    head[36..40].copy_from_slice(&now_s.to_le_bytes());
    head
}

/// Puts the checksum of all that follows at the start of an object.
fn check(bytes: &mut [u8]) -> u64 {
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[8..]);
    bytes[..8].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// Lays an object out in an empty buffer.
fn lay(
    bytes: &mut Vec<u8>,
    (hash, key): (Hash, &[u8]),
    (kind, expiry, value): (Type, Option<u64>, &[u8]),
    version: u16,
    now_s: u32,
) {
    bytes.extend_from_slice(&header(hash, (key.len(), value.len()), (kind, expiry), version, now_s));
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    check(bytes);
}

/// The first bytes of an object whose value is written from where it lies: the header, the key, and
/// of the value as many bytes as fill the last unit. So the rest of the value begins with a unit.
pub(crate) fn head(
    (hash, key): (Hash, &[u8]),
    (kind, expiry, value): (Type, Option<u64>, &[u8]),
    version: u16,
    now_s: u32,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity((HEADER + key.len()).next_multiple_of(UNIT as usize));
    bytes.extend_from_slice(&header(hash, (key.len(), value.len()), (kind, expiry), version, now_s));
    bytes.extend_from_slice(key);
    let (first, rest) = value.split_at(value.len().min(bytes.capacity() - bytes.len()));
    bytes.extend_from_slice(first);
    let mut sum = xxhash_rust::xxh3::Xxh3::new();
    sum.update(&bytes[8..]);
    sum.update(rest);
    bytes[..8].copy_from_slice(&sum.digest().to_le_bytes());
    bytes
}

/// Makes bytes the object of a segment: they have room for a header, and its items behind that.
/// Returns the checksum.
pub(crate) fn seal(bytes: &mut [u8], hash: Hash, version: u16, now_s: u32) -> u64 {
    let head = header(hash, (0, bytes.len() - HEADER), (Type::Segment, None), version, now_s);
    bytes[..HEADER].copy_from_slice(&head);
    check(bytes)
}

impl Object {
    /// The object at the start of `bytes`, if it is whole and sound. One whose value does not have
    /// the form of its type is [`Type::Broken`]: commands rely on the form. A checksum proves
    /// nothing, because a node can compute it.
    pub fn decode(mut bytes: Vec<u8>) -> Option<Object> {
        let len = usize::try_from(Header::peek(&bytes)?.len).ok()?;
        if len > bytes.len() {
            return None;
        }
        bytes.truncate(len);
        let kind = Type::of(bytes[32])?;
        let (key, value) = (word(&bytes, 3) as u32 as usize, (word(&bytes, 3) >> 32) as usize);
        if xxhash_rust::xxh3::xxh3_64(&bytes[8..]) != word(&bytes, 0) {
            return None;
        }
        let kind = if form::has_form(kind, &bytes[HEADER + key..]) { kind } else { Type::Broken };
        Some(Object { bytes: Rc::new(bytes), kind, key, value, told: value })
    }

    /// The object for a key and its value, to be written to a place that was used `version` times.
    pub fn new(hash: Hash, key: &[u8], value: &Value, version: u16, now_s: u32) -> Object {
        let mut bytes = Vec::with_capacity(HEADER + key.len() + value.bytes.len());
        lay(&mut bytes, (hash, key), (value.kind, value.expiry, &value.bytes), version, now_s);
        let (key, len) = (key.len(), value.bytes.len());
        Object { bytes: Rc::new(bytes), kind: value.kind, key, value: len, told: len }
    }

    /// The object for a key and a string without an end. Uses the memory of `old` if nobody else
    /// does.
    pub(crate) fn string(
        old: Option<Object>,
        (hash, key): (Hash, &[u8]),
        value: &[u8],
        version: u16,
        now_s: u32,
    ) -> Object {
        let len = HEADER + key.len() + value.len();
        // A cache counts an object's bytes, not the room behind them.
        let fits = |bytes: &Rc<Vec<u8>>| Rc::strong_count(bytes) == 1 && (len..=2 * len).contains(&bytes.capacity());
        let kept = old.map(|old| old.bytes).filter(fits);
        let mut bytes = kept.unwrap_or_else(|| Rc::new(Vec::with_capacity(len)));
        if let Some(bytes) = Rc::get_mut(&mut bytes) {
            bytes.clear();
            lay(bytes, (hash, key), (Type::String, None, value), version, now_s);
        }
        Object { bytes, kind: Type::String, key: key.len(), value: value.len(), told: value.len() }
    }

    /// The object of a value that is not stored yet.
    pub fn of(key: &[u8], value: &Value) -> Object {
        Object::new(Hash::of(key), key, value, 0, 0)
    }

    /// The same without the value, unless that is a list of extents or segments. It is no more what
    /// its slot refers to.
    pub(crate) fn brief(self) -> Object {
        if matches!(self.kind, Type::Long | Type::Parts) {
            return self;
        }
        let value = Value { kind: self.kind, expiry: self.expiry(), bytes: Vec::new() };
        Object { told: self.told, ..Object::new(self.hash(), self.key(), &value, 0, self.written_s()) }
    }

    /// An object without its value, which has so many bytes at the node.
    pub(crate) fn telling(self, told: usize) -> Object {
        Object { told, ..self }
    }

    /// Bytes of the value at the node.
    pub fn told(&self) -> usize {
        self.told
    }

    /// All of its bytes.
    pub(crate) fn bytes(&self) -> &Rc<Vec<u8>> {
        &self.bytes
    }

    /// The checksum of all else.
    pub fn checksum(&self) -> u64 {
        word(&self.bytes, 0)
    }

    /// The value's type.
    pub fn kind(&self) -> Type {
        self.kind
    }

    /// The key's hash.
    pub fn hash(&self) -> Hash {
        Hash(word(&self.bytes, 1))
    }

    /// When it ends, in ms since 1970.
    pub fn expiry(&self) -> Option<u64> {
        Some(word(&self.bytes, 2)).filter(|&at| at != 0)
    }

    /// When it was written, in seconds since 1970.
    pub fn written_s(&self) -> u32 {
        (word(&self.bytes, 4) >> 32) as u32
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[HEADER..HEADER + self.key]
    }

    /// The value.
    pub fn value(&self) -> &[u8] {
        &self.bytes[HEADER + self.key..HEADER + self.key + self.value]
    }

    /// Bytes of the whole.
    pub fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Never: an object has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_what_was_written() {
        let value = Value { kind: Type::Hash, expiry: Some(77), bytes: b"\x01\0\0\0f\x01\0\0\0v".to_vec() };
        let bytes = Object::new(Hash::of(b"key"), b"key", &value, 5, 9).bytes.to_vec();
        let object = Object::decode([&bytes[..], &[1; 30]].concat()).expect("sound");
        assert_eq!((object.key(), object.value(), object.kind()), (&b"key"[..], &value.bytes[..], Type::Hash));
        assert_eq!((object.expiry(), object.written_s(), object.hash()), (Some(77), 9, Hash::of(b"key")));
        assert_eq!(Header::peek(&bytes).map(|header| header.version), Some(5));
        for at in 0..bytes.len() {
            let mut torn = bytes.clone();
            torn[at] ^= 1;
            assert_eq!(Object::decode(torn), None, "byte {at}");
        }
        assert_eq!(Object::decode(bytes[..bytes.len() - 1].to_vec()), None);
        let broken = Value { bytes: b"value".to_vec(), ..value };
        let bytes = Object::new(Hash::of(b"key"), b"key", &broken, 5, 9).bytes.to_vec();
        assert_eq!(Object::decode(bytes).map(|object| object.kind()), Some(Type::Broken));
    }

    #[test]
    fn a_head_and_the_rest_of_a_value_are_an_object() {
        for len in [0, 1, 20, 21, 22, 64, 1000, 70_000] {
            let value = Value { kind: Type::Block, expiry: Some(8), bytes: (0..len).map(|n| n as u8).collect() };
            let whole = Object::new(Hash::of(b"key"), b"key", &value, 5, 9);
            let head = head((Hash::of(b"key"), b"key"), (value.kind, value.expiry, &value.bytes), 5, 9);
            let taken = head.len() - HEADER - 3;
            assert!(head.len().is_multiple_of(64) || taken == len, "{len}");
            assert_eq!([&head[..], &value.bytes[taken..]].concat(), **whole.bytes(), "{len}");
        }
    }
}
