//! Replies to calls: their frames, and which of them no memory could have given.

use super::{Call, Committed, FRAME, Found, Function, Marked, mark};

/// The result of a function.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reply {
    /// Bytes that were moved.
    Moved(u64),
    /// Of a scan.
    Found(Found),
    /// Of a chase: the object where it ended, after how many links, and whether the field was as
    /// wanted.
    Chased {
        /// Its offset.
        at: u64,
        /// Links followed.
        hops: u32,
        /// Whether it is the one.
        found: bool,
    },
    /// Of a marking.
    Marked(Marked),
    /// The value of the word that was waited for.
    Waited(u64),
    /// Of a commit.
    Committed(Committed),
    /// The number of groups. `None`: there are more than there is room for.
    Grouped(Option<u32>),
    /// What a function of the caller's own returned.
    Ran(u64),
}

impl Reply {
    /// As a frame.
    pub fn frame(&self) -> [u8; FRAME] {
        let words: [u64; 6] = match *self {
            Reply::Moved(bytes) => [1, bytes, 0, 0, 0, 0],
            Reply::Found(found) => [2, found.count, found.sum, found.least, found.most, found.kind as u64],
            Reply::Chased { at, hops, found } => [3, at, u64::from(hops), u64::from(found), 0, 0],
            Reply::Marked(Marked { scanned, told, left, done }) => {
                [4, scanned.into(), told.into(), left.into(), done.into(), 0]
            }
            Reply::Waited(word) => [5, word, 0, 0, 0, 0],
            Reply::Committed(committed) => {
                let [outcome, nth, word] = committed.words();
                [6, outcome, nth, word, 0, 0]
            }
            Reply::Ran(word) => [8, word, 0, 0, 0, 0],
            Reply::Grouped(groups) => [7, groups.is_some().into(), groups.unwrap_or(0).into(), 0, 0, 0],
        };
        let mut frame = [0; FRAME];
        frame.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        frame
    }

    /// Decodes the reply to this call. `None` if no memory could have given it: the node lies.
    pub fn parse(frame: &[u8; FRAME], to: &Call) -> Option<Reply> {
        let mut words = [0u64; 8];
        for (word, bytes) in words.iter_mut().zip(frame.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let reply = match (to.function, words[0]) {
            (Function::Gather { count, each } | Function::Scatter { count, each }, 1) => {
                (words[1] == u64::from(count) * u64::from(each)).then_some(Reply::Moved(words[1]))
            }
            (Function::Copy | Function::Fill(_), 1) => (words[1] == to.source.len).then_some(Reply::Moved(words[1])),
            (Function::Scan(scan), 2) => {
                let [_, count, sum, least, most, ..] = words;
                let found = Found { kind: scan.value, count, sum, least, most };
                (count <= to.source.len / u64::from(scan.stride)).then_some(Reply::Found(found))
            }
            (Function::Columns(columns), 2) => {
                let [_, count, sum, least, most, ..] = words;
                let found = Found { kind: columns.value, count, sum, least, most };
                (count <= to.source.len / u64::from(columns.test.bytes())).then_some(Reply::Found(found))
            }
            (Function::Chase { hops, .. }, 3) => {
                let possible = words[1] < to.source.len && words[2] <= u64::from(hops) && words[3] <= 1;
                possible.then_some(Reply::Chased { at: words[1], hops: words[2] as u32, found: words[3] == 1 })
            }
            (Function::Mark(mark), 4) => {
                let possible = words[1] <= mark.steps.into()
                    && words[2] <= mark.room.into()
                    && words[3] <= mark::STACK.into()
                    && (words[4] == 0 || words[4] == 1 && words[3] == 0);
                let [_, scanned, told, left, done, ..] = words.map(|word| word as u32);
                possible.then_some(Reply::Marked(Marked { scanned, told, left, done: done == 1 }))
            }
            (Function::Wait { .. }, 5) => Some(Reply::Waited(words[1])),
            (Function::Commit(commit), 6) => {
                Committed::of([words[1], words[2], words[3]], &commit).map(Reply::Committed)
            }
            (Function::Group(group), 7) => {
                let rows = to.source.len / u64::from(group.key.bytes());
                let groups = u32::try_from(words[2]).ok()?;
                match words[1] {
                    0 => Some(Reply::Grouped(None)),
                    _ => (groups <= group.room && u64::from(groups) <= rows).then_some(Reply::Grouped(Some(groups))),
                }
            }
            (Function::Wasm(_), 8) => Some(Reply::Ran(words[1])),
            _ => None,
        }?;
        (reply.frame() == *frame).then_some(reply)
    }
}
