//! The bytes of one segment: room for the header of its object, and its items. So a segment is
//! read, altered and written without a further copy of its items.

use super::form;
use crate::layout::Hash;
use crate::object::{self, HEADER, Type};
use std::ops::{Deref, Range};
use std::rc::Rc;

/// Room for items that come, in a segment that is altered for the first time.
const SPARE: usize = 256;
/// Ranges that are replaced one after the other. With more of them all bytes are copied once.
const BY_TURNS: usize = 8;

/// See the module. A clone refers to the same bytes, and altering one copies them.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Rc<Vec<u8>>,
    /// Of one that lies at a node: the type of its items, and how many they are.
    form: Option<(Type, u32)>,
}

impl Deref for Body {
    type Target = [u8];

    /// The items.
    fn deref(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }
}

impl Body {
    /// Of items.
    pub(super) fn of(items: &[u8]) -> Body {
        let mut bytes = Vec::with_capacity(HEADER + items.len());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(items);
        Body { bytes: Rc::new(bytes), form: None }
    }

    /// Without items, and with room for so many bytes.
    pub(super) fn with_room(bytes: usize) -> Body {
        let mut own = Vec::with_capacity(HEADER + bytes);
        own.resize(HEADER, 0);
        Body { bytes: Rc::new(own), form: None }
    }

    /// Of a segment's object as it was read, of a value of this type. `None`: it does not have the
    /// form of one.
    pub(super) fn read(object: Vec<u8>, kind: Type) -> Option<Body> {
        let count = form::count(kind, object.get(HEADER..)?)?;
        Some(Body { bytes: Rc::new(object), form: Some((kind, count)) })
    }

    /// Whether it has so many items of a value of this type. It lies at a node.
    pub(super) fn holds(&self, kind: Type, count: u32) -> bool {
        self.form == Some((kind, count))
    }

    fn own(&mut self) -> &mut Vec<u8> {
        self.form = None;
        if Rc::get_mut(&mut self.bytes).is_none() {
            let mut copy = Vec::with_capacity(self.bytes.len() + SPARE);
            copy.extend_from_slice(&self.bytes);
            self.bytes = Rc::new(copy);
        }
        // Nobody else refers to it now.
        Rc::make_mut(&mut self.bytes)
    }

    /// Adds an item.
    pub(super) fn push(&mut self, item: &[u8]) {
        self.own().extend_from_slice(item);
    }

    /// Puts bytes in the place of some.
    pub(super) fn splice(&mut self, range: Range<usize>, with: &[u8]) {
        let bytes = self.own();
        let (start, end, len) = (HEADER + range.start, HEADER + range.end, bytes.len());
        let behind = start + with.len();
        if behind > end {
            bytes.resize(len + (behind - end), 0);
            bytes.copy_within(end..len, behind);
        } else if behind < end {
            bytes.copy_within(end.., behind);
            bytes.truncate(len - (end - behind));
        }
        bytes[start..behind].copy_from_slice(with);
    }

    /// [`Body::splice`] of several ranges, each behind the one before it.
    pub(super) fn splice_each(&mut self, edits: &[(Range<usize>, &[u8])]) {
        if edits.len() <= BY_TURNS {
            edits.iter().rev().for_each(|(range, with)| self.splice(range.clone(), with));
            return;
        }
        let more: usize = edits.iter().map(|(_, with)| with.len()).sum();
        let mut new = Vec::with_capacity(self.bytes.len() + more + SPARE);
        let mut from = 0;
        for (range, with) in edits {
            new.extend_from_slice(&self.bytes[from..HEADER + range.start]);
            new.extend_from_slice(with);
            from = HEADER + range.end;
        }
        new.extend_from_slice(&self.bytes[from..]);
        self.bytes = Rc::new(new);
        self.form = None;
    }

    /// Makes it the object of a segment with so many items of a value of this type. Returns that,
    /// and its checksum.
    pub(super) fn seal(&mut self, form: (Type, u32), hash: Hash, version: u16, now_s: u32) -> (u64, Rc<Vec<u8>>) {
        let checksum = object::seal(self.own(), hash, version, now_s);
        self.form = Some(form);
        (checksum, Rc::clone(&self.bytes))
    }
}

#[test]
fn bytes_are_put_in_the_place_of_others() {
    let mut body = Body::of(b"abcdef");
    let before = body.clone();
    body.splice(2..4, b"XYZ");
    assert_eq!((&body[..], &before[..]), (&b"abXYZef"[..], &b"abcdef"[..]));
    body.splice(0..5, b"");
    body.splice(2..2, b"gh");
    body.splice(1..2, b"F");
    assert_eq!(&body[..], b"eFgh");
    let mut letters = Body::of(b"abcdefghijklmnopqrstuvwxyz");
    let edits: Vec<_> = (0..13).map(|n| (2 * n..2 * n + 1, &b"12345"[..n % 3])).collect();
    for few in [3, edits.len()] {
        let mut by_turns = letters.clone();
        letters.splice_each(&edits[..few]);
        edits[..few].iter().rev().for_each(|(range, with)| by_turns.splice(range.clone(), with));
        assert_eq!(letters[..], by_turns[..]);
        letters = Body::of(b"abcdefghijklmnopqrstuvwxyz");
    }
    let (checksum, object) = body.seal((Type::Stream, 0), Hash(7), 1, 2);
    let read = object::Object::decode(object.to_vec()).expect("sound");
    assert_eq!((read.value(), read.kind(), read.checksum()), (&b"eFgh"[..], object::Type::Segment, checksum));
}
