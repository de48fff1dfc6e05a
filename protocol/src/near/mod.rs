//! Functions near memory: a host asks a node to work on the memory that it holds there.
//!
//! A call is a SEND of 64 bytes to [`Key::COMPUTE`], and the reply has 64 bytes. Longer parameters
//! and results lie in the caller's memory, named by a key and an offset. The node checks each range
//! as it checks a verb's range. So a function has no right that its caller lacks.
//!
//! | function | does | bounded by |
//! |---|---|---|
//! | [`Function::Gather`] | pieces of a range, by a list, into one run of bytes | [`MAX_BYTES`] |
//! | [`Function::Scatter`] | the other way | [`MAX_BYTES`] |
//! | [`Function::Copy`] | a range to another | [`MAX_BYTES`] |
//! | [`Function::Fill`] | a word, over and over | [`MAX_BYTES`] |
//! | [`Function::Scan`] | sums a field of records whose other field is within bounds | [`MAX_BYTES`] |
//! | [`Function::Columns`] | sums a column where another is within bounds | [`MAX_BYTES`] |
//! | [`Function::Chase`] | follows links until a field has a value | [`MAX_HOPS`] |
//! | [`Function::Mark`] | marks the objects of an arena that can be reached | [`MAX_HOPS`], [`mark::MAX_LINKS`] |
//!
//! [`Call::run`] runs a function on any [`Bytes`]: a node's slabs, or a host's copy of them. A host
//! whose node refuses a call runs the same code on its copy, and gets the same bytes.
//!
//! [`Call::parse`] refuses malformed calls. Lists lie in memory that others may be writing, so they
//! are copied before they are checked.

pub mod columns;
pub mod mark;
mod reply;
pub mod scan;

use crate::key::Key;
pub use columns::Columns;
pub use mark::{Mark, Marked};
pub use reply::Reply;
pub use scan::{Found, Kind, Scan};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a call, and of its reply.
pub const FRAME: usize = 64;
/// The most bytes that one call reads and writes: about 100 µs of a core.
pub const MAX_BYTES: u64 = 256 << 10;
/// The most links that one call follows: about 150 µs if each misses the node's caches.
pub const MAX_HOPS: u32 = 1024;
/// The most bytes of one piece of a list.
pub const MAX_PIECE: u32 = 4096;
/// Bytes that are copied out of the memory at a time.
const STEP: usize = 16 << 10;

/// A range of the caller's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The right to it.
    pub key: Key,
    /// Its first byte there.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// A function and its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Function {
    /// `list` has `count` offsets of 32 bits into `source`. Behind them, at the next multiple of 8,
    /// `count` pieces of `each` bytes are laid.
    Gather {
        /// Pieces.
        count: u32,
        /// Bytes of one.
        each: u32,
    },
    /// The reverse of `Gather`: copies the pieces behind the list to their offsets, in list order.
    Scatter {
        /// Pieces.
        count: u32,
        /// Bytes of one.
        each: u32,
    },
    /// Copies `source` to `list`. Both have the same length, and they do not overlap.
    Copy,
    /// Fills `source` with the word, repeated.
    Fill(u64),
    /// Looks at the records of `source`.
    Scan(Scan),
    /// Looks at two dense columns: tests elements of `source`, and sums those of `list`.
    Columns(Columns),
    /// Follows links through objects, from the one at offset `from` of `source`. The word at byte
    /// `next` of an object is the offset of the next object, or 0. Stops at an object whose word at
    /// byte `field` is `wanted`.
    Chase {
        /// The first object.
        from: u32,
        /// The byte of an object at which its link is.
        next: u16,
        /// The byte at which its field is.
        field: u16,
        /// The value to find.
        wanted: u64,
        /// The most objects to look at.
        hops: u32,
    },
    /// Goes on with a marking. `source` is the directory of the arena, `list` the work range. See
    /// [`mark`].
    Mark(Mark),
}

/// A call.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Call {
    /// The range that the function works on.
    pub source: Range,
    /// The range with the function's list or result. Empty if it has none.
    pub list: Range,
    /// The function to run.
    pub function: Function,
}

/// A call's frame. Functions use `list` and `words` in different ways: see [`Call::frame`].
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Wire {
    function: u8,
    kinds: [u8; 2],
    zero: u8,
    count: U32,
    source: [U64; 3],
    list: [U64; 2],
    words: [U64; 2],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Fields {
    stride: U16,
    test: U16,
    value: U16,
    zero: U16,
}

const _: () = assert!(size_of::<Wire>() == FRAME);

/// The call is malformed, or exceeds the bounds of its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// Memory that functions work on. The caller has checked the ranges; an access outside of one
/// returns `None`.
pub trait Bytes {
    /// Copies bytes out of a range, from offset `at` on.
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()>;
    /// Copies bytes into a range, from offset `at` on.
    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()>;
    /// Opens a range that was named in the caller's memory. From now on it is [`Which::Place`] of
    /// `n`, which is below [`mark::PLACES`]. `None`: the caller has no right to the range.
    fn open(&mut self, _n: u8, _range: Range, _writes: bool) -> Option<()> {
        None
    }
    /// Whether the call has used up its time. A call that has ends early, or is refused.
    fn is_late(&mut self) -> bool {
        false
    }
}

/// One of a call's ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The source.
    Source,
    /// The list.
    List,
    /// A range that was opened.
    Place(u8),
}

impl Call {
    /// Whether a range is written to.
    pub fn writes(&self, which: Which) -> bool {
        match self.function {
            Function::Gather { .. } | Function::Copy | Function::Mark(_) => which == Which::List,
            Function::Scatter { .. } | Function::Fill(_) => which == Which::Source,
            Function::Scan(_) | Function::Columns(_) | Function::Chase { .. } => false,
        }
    }

    /// Whether it is within the bounds of its function.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self) -> Result<(), Nonsense> {
        let Call { source, list, function } = *self;
        let fits = |range: Range| range.at.checked_add(range.len).is_some();
        let bounded = match function {
            Function::Gather { count, each } | Function::Scatter { count, each } => {
                let bytes = laid(count).checked_add(u64::from(count) * u64::from(each));
                count > 0
                    && (1..=MAX_PIECE).contains(&each)
                    && bytes == Some(list.len)
                    && list.len <= MAX_BYTES
                    && source.len <= 1 << 32
            }
            Function::Copy => {
                let apart = source.key != list.key
                    || source.at.saturating_add(source.len) <= list.at
                    || list.at.saturating_add(list.len) <= source.at;
                source.len == list.len && (1..=MAX_BYTES).contains(&source.len) && apart
            }
            Function::Fill(_) => (1..=MAX_BYTES).contains(&source.len) && list.len == 0,
            Function::Scan(scan) => (1..=MAX_BYTES).contains(&source.len) && list.len == 0 && scan.is_sound(),
            Function::Columns(columns) => {
                let bytes = columns.bytes_of_values(source.len);
                source.len > 0
                    && bytes == Some(list.len)
                    && source.len.checked_add(list.len).is_some_and(|both| both <= MAX_BYTES)
            }
            Function::Chase { hops, .. } => hops <= MAX_HOPS && list.len == 0 && source.len <= 1 << 32,
            Function::Mark(mark) => mark.is_sound(source.len) && source.len > 0 && list.len == mark.work(),
        };
        if bounded && fits(source) && fits(list) { Ok(()) } else { Err(Nonsense) }
    }

    /// As a frame.
    pub fn frame(&self) -> [u8; FRAME] {
        let mut wire = Wire {
            function: 0,
            kinds: [0; 2],
            zero: 0,
            count: 0.into(),
            source: [self.source.key.0, self.source.at, self.source.len].map(U64::new),
            list: [self.list.key.0, self.list.at].map(U64::new),
            words: [U64::new(0); 2],
        };
        match self.function {
            Function::Gather { count, each } | Function::Scatter { count, each } => {
                wire.function = if matches!(self.function, Function::Gather { .. }) { 1 } else { 2 };
                (wire.count, wire.words[0]) = (count.into(), u64::from(each).into());
            }
            Function::Copy => wire.function = 3,
            Function::Fill(word) => (wire.function, wire.words[0]) = (4, word.into()),
            Function::Scan(scan) => {
                wire.function = 5;
                wire.kinds = [scan.test as u8, scan.value as u8];
                let [stride, test, value] = [scan.stride, scan.test_at, scan.value_at].map(U16::new);
                let fields = Fields { stride, test, value, zero: 0.into() };
                wire.list[0] = U64::read_from_bytes(fields.as_bytes()).unwrap_or_default();
                wire.words = [scan.least, scan.most].map(U64::new);
            }
            Function::Columns(columns) => {
                wire.function = 12;
                wire.kinds = [columns.test as u8, columns.value as u8];
                wire.words = [columns.least, columns.most].map(U64::new);
            }
            Function::Chase { from, next, field, wanted, hops } => {
                wire.function = 6;
                wire.count = hops.into();
                wire.list[0] = u64::from(from).into();
                wire.list[1] = (u64::from(next) | u64::from(field) << 16).into();
                wire.words[0] = wanted.into();
            }
            Function::Mark(mark) => {
                wire.function = 7;
                wire.count = mark.steps.into();
                wire.words = [u64::from(mark.stride), u64::from(mark.room)].map(U64::new);
            }
        }
        let mut frame = [0; FRAME];
        frame.copy_from_slice(wire.as_bytes());
        frame
    }

    /// From a frame, checked.
    ///
    /// # Errors
    /// The frame is no call, or the call is out of bounds.
    pub fn parse(frame: &[u8]) -> Result<Call, Nonsense> {
        let wire = Wire::read_from_bytes(frame).map_err(|_| Nonsense)?;
        let [key, at, len] = wire.source.map(U64::get);
        let source = Range { key: Key(key), at, len };
        let ([first, second], words) = (wire.list.map(U64::get), wire.words.map(U64::get));
        let none = Range { key: Key(0), at: 0, len: 0 };
        let count = wire.count.get();
        let each = u32::try_from(words[0]).unwrap_or(u32::MAX);
        let run = |len| Range { key: Key(first), at: second, len };
        let pieces = laid(count).saturating_add(u64::from(count) * u64::from(each));
        let (list, function) = match wire.function {
            1 => (run(pieces), Function::Gather { count, each }),
            2 => (run(pieces), Function::Scatter { count, each }),
            3 => (run(len), Function::Copy),
            4 => (none, Function::Fill(words[0])),
            5 => {
                let fields = Fields::read_from_bytes(&first.to_le_bytes()).map_err(|_| Nonsense)?;
                let [test, value] = wire.kinds.map(Kind::of);
                let scan = Scan {
                    stride: fields.stride.get(),
                    test: test.ok_or(Nonsense)?,
                    test_at: fields.test.get(),
                    least: words[0],
                    most: words[1],
                    value: value.ok_or(Nonsense)?,
                    value_at: fields.value.get(),
                };
                (none, Function::Scan(scan))
            }
            6 => {
                let from = u32::try_from(first).map_err(|_| Nonsense)?;
                let (next, field) = (second as u16, (second >> 16) as u16);
                (none, Function::Chase { from, next, field, wanted: words[0], hops: count })
            }
            12 => {
                let [Some(test), Some(value)] = wire.kinds.map(Kind::of) else { return Err(Nonsense) };
                let columns = Columns { test, least: words[0], most: words[1], value };
                (run(columns.bytes_of_values(len).ok_or(Nonsense)?), Function::Columns(columns))
            }
            7 => {
                let stride = u16::try_from(words[0]).map_err(|_| Nonsense)?;
                let mark = Mark { stride, room: u32::try_from(words[1]).map_err(|_| Nonsense)?, steps: count };
                (run(mark.work()), Function::Mark(mark))
            }
            _ => return Err(Nonsense),
        };
        let call = Call { source, list, function };
        call.check()?;
        // A call has exactly one encoding: anything else in the frame is refused.
        if call.frame() == frame { Ok(call) } else { Err(Nonsense) }
    }

    /// Runs the call. Returns `None` if an offset of a list, or a link, leaves the source. Bytes
    /// written before that stay.
    pub fn run(&self, memory: &mut impl Bytes) -> Option<Reply> {
        match self.function {
            Function::Gather { count, each } => self.pieces(memory, count, each, true),
            Function::Scatter { count, each } => self.pieces(memory, count, each, false),
            Function::Copy => self.in_steps(self.source.len, |at, bytes| {
                in_time(memory)?;
                memory.read(Which::Source, at, bytes)?;
                memory.write(Which::List, at, bytes)
            }),
            Function::Fill(word) => self.in_steps(self.source.len, |at, bytes| {
                in_time(memory)?;
                bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&word.to_le_bytes()[..part.len()]));
                memory.write(Which::Source, at, bytes)
            }),
            Function::Scan(scan) => {
                let stride = u64::from(scan.stride);
                let mut found = Found::none(scan.value);
                // Whole records in each step.
                let step = STEP as u64 / stride * stride;
                let mut bytes = [0; STEP];
                let mut at = 0;
                while at < self.source.len {
                    let len = step.min(self.source.len - at) as usize;
                    in_time(memory)?;
                    memory.read(Which::Source, at, &mut bytes[..len])?;
                    scan.run(&bytes[..len], &mut found);
                    at += len as u64;
                }
                Some(Reply::Found(found))
            }
            Function::Columns(columns) => {
                let (test, value) = (usize::from(columns.test.bytes()), usize::from(columns.value.bytes()));
                let mut found = Found::none(columns.value);
                let (mut tests, mut values) = ([0; STEP / 2], [0; STEP / 2]);
                let (all, step) = (self.source.len / test as u64, STEP / 2 / test.max(value));
                for first in (0..all).step_by(step) {
                    in_time(memory)?;
                    let rows = (all - first).min(step as u64) as usize;
                    let (tests, values) = (&mut tests[..rows * test], &mut values[..rows * value]);
                    memory.read(Which::Source, first * test as u64, tests)?;
                    memory.read(Which::List, first * value as u64, values)?;
                    columns.run(tests, values, &mut found);
                }
                Some(Reply::Found(found))
            }
            Function::Chase { from, next, field, wanted, hops } => {
                let mut at = u64::from(from);
                for hop in 0..hops {
                    if hop % 64 == 0 {
                        in_time(memory)?;
                    }
                    if self.word(memory, at, field)? == wanted {
                        return Some(Reply::Chased { at, hops: hop, found: true });
                    }
                    match self.word(memory, at, next)? {
                        0 => return Some(Reply::Chased { at, hops: hop, found: false }),
                        link => at = link,
                    }
                }
                Some(Reply::Chased { at, hops, found: false })
            }
            Function::Mark(mark) => Some(Reply::Marked(mark.run(self.source, memory)?)),
        }
    }

    /// A word of an object of the source. `at` is a link: any 64 bits of the caller's.
    fn word(&self, memory: &mut impl Bytes, at: u64, byte: u16) -> Option<u64> {
        let at = at.checked_add(u64::from(byte))?;
        at.checked_add(8).filter(|&end| end <= self.source.len)?;
        let mut bytes = [0; 8];
        memory.read(Which::Source, at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Calls `step` for each [`STEP`] bytes of a range of `len` bytes, with their offset and a
    /// buffer.
    fn in_steps(&self, len: u64, mut step: impl FnMut(u64, &mut [u8]) -> Option<()>) -> Option<Reply> {
        let mut bytes = [0; STEP];
        for at in (0..len).step_by(STEP) {
            step(at, &mut bytes[..(len - at).min(STEP as u64) as usize])?;
        }
        Some(Reply::Moved(len))
    }

    /// GATHER and SCATTER, some pieces at a time.
    fn pieces(&self, memory: &mut impl Bytes, count: u32, each: u32, gathers: bool) -> Option<Reply> {
        let (mut offsets, mut bytes) = ([0; 4096], [0; STEP]);
        let together = (STEP as u32 / each).min(1024);
        for first in (0..count).step_by(together as usize) {
            in_time(memory)?;
            let some = together.min(count - first);
            let offsets = &mut offsets[..4 * some as usize];
            memory.read(Which::List, 4 * u64::from(first), offsets)?;
            let bytes = &mut bytes[..(some * each) as usize];
            let run = laid(count) + u64::from(first) * u64::from(each);
            if !gathers {
                memory.read(Which::List, run, bytes)?;
            }
            for (offset, piece) in offsets.chunks_exact(4).zip(bytes.chunks_exact_mut(each as usize)) {
                let at = u64::from(u32::from_le_bytes(offset.try_into().ok()?));
                at.checked_add(u64::from(each)).filter(|&end| end <= self.source.len)?;
                match gathers {
                    true => memory.read(Which::Source, at, piece)?,
                    false => memory.write(Which::Source, at, piece)?,
                }
            }
            if gathers {
                memory.write(Which::List, run, bytes)?;
            }
        }
        Some(Reply::Moved(u64::from(count) * u64::from(each)))
    }
}

/// `None`: the call has used up its time.
fn in_time(memory: &mut impl Bytes) -> Option<()> {
    (!memory.is_late()).then_some(())
}

/// The offset in a list's range at which the pieces begin, behind `count` offsets.
pub fn laid(count: u32) -> u64 {
    (4 * u64::from(count)).next_multiple_of(8)
}

#[cfg(test)]
mod tests;
