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
//! | [`Function::Wait`] | returns when a word has changed | [`MAX_WAIT_MS`] |
//! | [`Function::Commit`] | compares words, and writes if all are as expected | [`commit::MAX_LIST`] |
//! | [`Function::Group`] | sums a column by the values of another | [`MAX_BYTES`], [`group::MAX_GROUPS`] |
//! | [`Function::Wasm`] | runs a function of the caller's own | [`MAX_BYTES`], [`wasm::MAX_FUEL`] |
//!
//! [`Call::run`] runs a function on any [`Bytes`]: a node's slabs, or a host's copy of them. A host
//! whose node refuses a call runs the same code on its copy, and gets the same bytes.
//!
//! [`Call::parse`] refuses malformed calls. Lists lie in memory that others may be writing, so they
//! are copied before they are checked.

pub mod columns;
pub mod commit;
pub mod group;
pub mod mark;
mod reply;
pub mod scan;
pub mod wasm;
mod wire;

use crate::key::Key;
pub use columns::Columns;
pub use commit::{Commit, Committed};
pub use group::{Group, Grouped};
pub use mark::{Mark, Marked};
pub use reply::Reply;
pub use scan::{Found, Kind, Scan};
pub use wasm::Wasm;

/// Bytes of a call, and of its reply.
pub const FRAME: usize = 64;
/// The most bytes that one call reads and writes: about 100 µs of a core.
pub const MAX_BYTES: u64 = 256 << 10;
/// The most links that one call follows: about 150 µs if each misses the node's caches.
pub const MAX_HOPS: u32 = 1024;
/// The longest wait of one call, in milliseconds. A caller that waits longer asks again.
pub const MAX_WAIT_MS: u32 = 50;
/// The most bytes of one piece of a list.
pub const MAX_PIECE: u32 = 4096;
/// Bytes that are copied out of the memory at a time.
const STEP: usize = 16 << 10;
/// Pieces of a list of which the CPU is told ahead of their use: as many as it fetches at once.
const AHEAD: usize = 16;

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
    /// Waits until the word that `source` is differs from `expected`, or the time is over. A run
    /// looks once: see [`Call::is_unfinished`].
    Wait {
        /// The value that the caller knows.
        expected: u64,
        /// The longest wait, in milliseconds.
        ms: u32,
    },
    /// Compares words of `source`, and writes to it. `list` says which. See [`commit`].
    Commit(Commit),
    /// Sums values by keys. `source` has the keys; `list` names the values, and takes the sums. See
    /// [`group`].
    Group(Group),
    /// Runs the module in `list` on the bytes of `source`. See [`wasm`].
    Wasm(Wasm),
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

/// The call is malformed, or exceeds the bounds of its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// Memory that functions work on. The caller has checked the ranges; an access outside of one
/// returns `None`.
pub trait Bytes {
    /// Copies bytes out of a range, from offset `at` on. As all others, it refuses what does not lie
    /// wholly within the range.
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()>;
    /// Compares the word at `at` of the source with `expected`, and replaces it by `new` if they
    /// are equal: one atomic step. Returns what was there. `None`: the memory has no atomic steps.
    fn swap(&mut self, _at: u64, _expected: u64, _new: u64) -> Option<u64> {
        None
    }
    /// Copies bytes into a range, from offset `at` on.
    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()>;
    /// Opens a range that was named in the caller's memory. From now on it is [`Which::Place`] of
    /// `n`, which is below [`mark::PLACES`]. `None`: the caller has no right to the range.
    fn open(&mut self, _n: u8, _range: Range, _writes: bool) -> Option<()> {
        None
    }
    /// Closes [`Which::Place`] of `n`, if it is open.
    fn close(&mut self, _n: u8) {}
    /// The byte at `at` will be read soon: a hint. What does not lie within an open range is ignored.
    fn touch(&mut self, _of: Which, _at: u64) {}
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
            Function::Gather { .. } | Function::Copy | Function::Mark(_) | Function::Group(_) | Function::Wasm(_) => {
                which == Which::List
            }
            Function::Scatter { .. } | Function::Fill(_) | Function::Commit(_) => which == Which::Source,
            Function::Scan(_) | Function::Columns(_) | Function::Chase { .. } | Function::Wait { .. } => false,
        }
    }

    /// The offset in the source of the word that the function compares and swaps, if it does.
    pub fn swaps(&self) -> Option<u64> {
        match self.function {
            Function::Commit(commit) => Some(commit.lock.into()),
            _ => None,
        }
    }

    /// Whether this reply means that the call is to be run again until its time is over.
    pub fn is_unfinished(&self, reply: &Reply) -> bool {
        matches!((self.function, reply), (Function::Wait { expected, .. }, Reply::Waited(word)) if *word == expected)
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
            Function::Wait { ms, .. } => {
                ms <= MAX_WAIT_MS && source.len == 8 && source.at.is_multiple_of(8) && list.len == 0
            }
            Function::Commit(commit) => commit.is_sound(source) && list.len == commit.list(),
            Function::Group(group) => group.is_sound(source.len) && list.len == group.work(),
            Function::Wasm(wasm) => wasm.is_sound(source.len) && list.len == wasm.work(),
        };
        if bounded && fits(source) && fits(list) { Ok(()) } else { Err(Nonsense) }
    }

    /// Runs the call. Returns `None` if an offset of a list, or a link, leaves the source. Bytes
    /// written before that stay. A [`Function::Wasm`] is run by [`wasm::Engine::run`] alone.
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
                let is_one = self.source == self.list;
                let (all, step) = (self.source.len / test as u64, STEP / 2 / test.max(value));
                for first in (0..all).step_by(step) {
                    in_time(memory)?;
                    let rows = (all - first).min(step as u64) as usize;
                    let (tests, values) = (&mut tests[..rows * test], &mut values[..rows * value]);
                    memory.read(Which::Source, first * test as u64, tests)?;
                    if is_one {
                        columns.run(tests, tests, &mut found);
                        continue;
                    }
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
                // Nobody has looked at the last link.
                (at < self.source.len).then_some(Reply::Chased { at, hops, found: false })
            }
            Function::Mark(mark) => Some(Reply::Marked(mark.run(self.source, memory)?)),
            Function::Wait { .. } => Some(Reply::Waited(self.word(memory, 0, 0)?)),
            Function::Commit(commit) => Some(Reply::Committed(commit.run(self.source.len, memory)?)),
            Function::Group(group) => Some(Reply::Grouped(group.run(self.source.len, memory)?)),
            Function::Wasm(_) => None,
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
            let offsets = offsets.as_chunks::<4>().0;
            for (n, (offset, piece)) in offsets.iter().zip(bytes.chunks_exact_mut(each as usize)).enumerate() {
                if let Some(next) = offsets.get(n + AHEAD) {
                    memory.touch(Which::Source, u32::from_le_bytes(*next).into());
                }
                let at = u64::from(u32::from_le_bytes(*offset));
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
