//! Frames of calls: 64 bytes, of which each call has exactly one form.

use super::{Call, Columns, Commit, FRAME, Function, Group, Kind, Mark, Nonsense, Range, Scan, Wasm, laid};
use crate::key::Key;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A call's frame. Functions use `list` and `words` in different ways: see [`Call::frame`].
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Wire {
    function: u8,
    kinds: [u8; 3],
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

impl Call {
    /// As a frame.
    pub fn frame(&self) -> [u8; FRAME] {
        let mut wire = Wire {
            function: 0,
            kinds: [0; 3],
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
                wire.kinds = [scan.test as u8, scan.value as u8, 0];
                let [stride, test, value] = [scan.stride, scan.test_at, scan.value_at].map(U16::new);
                let fields = Fields { stride, test, value, zero: 0.into() };
                wire.list[0] = U64::read_from_bytes(fields.as_bytes()).unwrap_or_default();
                wire.words = [scan.least, scan.most].map(U64::new);
            }
            Function::Columns(columns) => {
                wire.function = 12;
                wire.kinds = [columns.test as u8, columns.value as u8, 0];
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
            Function::Wait { expected, ms } => {
                (wire.function, wire.count, wire.words[0]) = (8, ms.into(), expected.into());
            }
            Function::Commit(commit) => {
                wire.function = 9;
                wire.count = (u32::from(commit.checks) | u32::from(commit.writes) << 16).into();
                wire.words = [u64::from(commit.lock) | u64::from(commit.bytes) << 32, commit.owner].map(U64::new);
            }
            Function::Group(group) => {
                wire.function = 10;
                wire.kinds = [group.key as u8, group.value as u8, group.test.map_or(0, |test| test as u8)];
                wire.count = group.room.into();
                wire.words = [group.least, group.most].map(U64::new);
            }
            Function::Wasm(wasm) => {
                (wire.function, wire.count) = (11, wasm.code.into());
                wire.words = [u64::from(wasm.room), wasm.argument].map(U64::new);
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
                let [test, value, _] = wire.kinds.map(Kind::of);
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
                let [Some(test), Some(value), _] = wire.kinds.map(Kind::of) else { return Err(Nonsense) };
                let columns = Columns { test, least: words[0], most: words[1], value };
                (run(columns.bytes_of_values(len).ok_or(Nonsense)?), Function::Columns(columns))
            }
            7 => {
                let stride = u16::try_from(words[0]).map_err(|_| Nonsense)?;
                let mark = Mark { stride, room: u32::try_from(words[1]).map_err(|_| Nonsense)?, steps: count };
                (run(mark.work()), Function::Mark(mark))
            }
            8 => (none, Function::Wait { expected: words[0], ms: count }),
            9 => {
                let (lock, bytes) = (words[0] as u32, (words[0] >> 32) as u32);
                let (checks, writes) = (count as u16, (count >> 16) as u16);
                let commit = Commit { lock, owner: words[1], checks, writes, bytes };
                (run(commit.list()), Function::Commit(commit))
            }
            10 => {
                let [Some(key), Some(value), test] = wire.kinds.map(Kind::of) else { return Err(Nonsense) };
                let group = Group { key, value, test, least: words[0], most: words[1], room: count };
                (run(group.work()), Function::Group(group))
            }
            11 => {
                let room = u32::try_from(words[0]).map_err(|_| Nonsense)?;
                let wasm = Wasm { code: count, room, argument: words[1] };
                (run(wasm.work()), Function::Wasm(wasm))
            }
            _ => return Err(Nonsense),
        };
        let call = Call { source, list, function };
        call.check()?;
        // A call has exactly one encoding: anything else in the frame is refused.
        if call.frame() == frame { Ok(call) } else { Err(Nonsense) }
    }
}
