//! The bytes of one segment: room for the header of its object, and its items. So a segment is
//! read, altered and written without a further copy of its items.

use crate::layout::Hash;
use crate::object::{self, HEADER};
use std::ops::{Deref, Range};
use std::rc::Rc;

/// Room for items that come, in a segment that is altered for the first time.
const SPARE: usize = 256;
/// Ranges that are replaced one after the other. With more of them all bytes are copied once.
const BY_TURNS: usize = 8;

/// See the module. A clone refers to the same bytes, and altering one copies them.
#[derive(Clone, Debug)]
pub struct Body(Rc<Vec<u8>>);

impl Deref for Body {
    type Target = [u8];

    /// The items.
    fn deref(&self) -> &[u8] {
        &self.0[HEADER..]
    }
}

impl Body {
    /// Of items.
    pub(super) fn of(items: &[u8]) -> Body {
        let mut bytes = Vec::with_capacity(HEADER + items.len());
        bytes.resize(HEADER, 0);
        bytes.extend_from_slice(items);
        Body(Rc::new(bytes))
    }

    /// Without items, and with room for so many bytes.
    pub(super) fn with_room(bytes: usize) -> Body {
        let mut own = Vec::with_capacity(HEADER + bytes);
        own.resize(HEADER, 0);
        Body(Rc::new(own))
    }

    /// Of a segment's object as it was read.
    pub(super) fn read(object: Vec<u8>) -> Body {
        debug_assert!(object.len() >= HEADER);
        Body(Rc::new(object))
    }

    fn own(&mut self) -> &mut Vec<u8> {
        if Rc::get_mut(&mut self.0).is_none() {
            let mut copy = Vec::with_capacity(self.0.len() + SPARE);
            copy.extend_from_slice(&self.0);
            self.0 = Rc::new(copy);
        }
        // Nobody else refers to it now.
        Rc::make_mut(&mut self.0)
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
        let mut new = Vec::with_capacity(self.0.len() + more + SPARE);
        let mut from = 0;
        for (range, with) in edits {
            new.extend_from_slice(&self.0[from..HEADER + range.start]);
            new.extend_from_slice(with);
            from = HEADER + range.end;
        }
        new.extend_from_slice(&self.0[from..]);
        self.0 = Rc::new(new);
    }

    /// Makes it a segment's object. Returns that, and its checksum.
    pub(super) fn seal(&mut self, hash: Hash, version: u16, now_s: u32) -> (u64, Rc<Vec<u8>>) {
        let checksum = object::seal(self.own(), hash, version, now_s);
        (checksum, Rc::clone(&self.0))
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
    let (checksum, object) = body.seal(Hash(7), 1, 2);
    let read = object::Object::decode(object.to_vec()).expect("sound");
    assert_eq!((read.value(), read.kind(), read.checksum()), (&b"eFgh"[..], object::Type::Segment, checksum));
}
