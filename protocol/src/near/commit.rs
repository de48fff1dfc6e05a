//! COMMIT: compares words, and writes if all are as expected, as one step for all who commit.
//!
//! ```text
//! list: | check, check, … | write, write, … | the bytes of all writes |
//! check: offset 8, expected 8        write: offset 4, length 4
//! ```
//!
//! A *lock* is a word of the source that is zero while nobody commits. A commit swaps its owner's
//! number in, compares, writes, and swaps zero in. A node does it, or a host by verbs: both take
//! the same lock. So commits are atomic among one another, wherever each is carried out. Readers
//! that take no lock may see a half of one: they read a version before and behind.
//!
//! A host that ends in the middle of its own commit leaves its number in the lock. A node never
//! does.

use super::{Bytes, MAX_PIECE, Range, STEP, Which};

/// The most bytes of a list.
pub const MAX_LIST: u64 = STEP as u64;
/// How often a commit tries to get its lock.
const TRIES: usize = 64;

/// The parameters of a commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit {
    /// The offset of the lock in the source. Its address is a multiple of 8.
    pub lock: u32,
    /// The number that is in the lock meanwhile. Not 0.
    pub owner: u64,
    /// Words that are compared.
    pub checks: u16,
    /// Ranges that are written to.
    pub writes: u16,
    /// Their bytes, together.
    pub bytes: u32,
}

/// How a commit ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Committed {
    /// All words were as expected, and all was written.
    Done,
    /// A word was not as expected, and nothing was written.
    Differs {
        /// The number of the check.
        nth: u16,
        /// The word that was found.
        found: u64,
    },
    /// Another commit holds the lock, and nothing was written.
    Held(u64),
}

impl Committed {
    pub(super) fn words(self) -> [u64; 3] {
        match self {
            Committed::Done => [1, 0, 0],
            Committed::Differs { nth, found } => [2, nth.into(), found],
            Committed::Held(owner) => [3, 0, owner],
        }
    }

    /// `None`: no memory can have answered this.
    pub(super) fn of([outcome, nth, word]: [u64; 3], to: &Commit) -> Option<Committed> {
        match outcome {
            1 => Some(Committed::Done),
            2 if nth < to.checks.into() => Some(Committed::Differs { nth: nth as u16, found: word }),
            3 if word != 0 => Some(Committed::Held(word)),
            _ => None,
        }
    }
}

impl Commit {
    /// Bytes of the list.
    pub fn list(&self) -> u64 {
        16 * u64::from(self.checks) + 8 * u64::from(self.writes) + u64::from(self.bytes)
    }

    pub(super) fn is_sound(&self, source: Range) -> bool {
        let lock = u64::from(self.lock);
        // An address that wraps is refused by the caller's check of the source.
        let aligned = source.at.wrapping_add(lock).is_multiple_of(8);
        let some = (1..=MAX_LIST).contains(&self.list());
        self.owner != 0 && some && aligned && lock + 8 <= source.len && source.len <= 1 << 32
    }

    /// The list of a commit with these checks and writes.
    pub fn laid(checks: &[(u64, u64)], writes: &[(u32, &[u8])]) -> Vec<u8> {
        let mut list = Vec::new();
        for (at, expected) in checks {
            list.extend_from_slice(&at.to_le_bytes());
            list.extend_from_slice(&expected.to_le_bytes());
        }
        for (at, bytes) in writes {
            list.extend_from_slice(&at.to_le_bytes());
            list.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        }
        writes.iter().for_each(|(_, bytes)| list.extend_from_slice(bytes));
        list
    }

    /// Carries it out. `None`: the list leads out of the source, or the memory refused. Nothing was
    /// written then, unless the memory was lost between two writes: the lock stays with its owner.
    pub(super) fn run(&self, len: u64, memory: &mut impl Bytes) -> Option<Committed> {
        super::in_time(memory)?;
        let mut list = [0; STEP];
        let list = &mut list[..self.list() as usize];
        memory.read(Which::List, 0, list)?;
        let (checks, rest) = list.split_at(16 * usize::from(self.checks));
        let (heads, bytes) = rest.split_at(8 * usize::from(self.writes));
        let (checks, heads) = (checks.as_chunks::<16>().0, heads.as_chunks::<8>().0);
        if !self.is_within(checks, heads, len) {
            return None;
        }
        let lock = u64::from(self.lock);
        if let Some(held) = self.lock(lock, memory)? {
            return Some(Committed::Held(held));
        }
        match differing(checks, memory) {
            Some(None) => {}
            Some(Some(differs)) => {
                memory.swap(lock, self.owner, 0)?;
                return Some(differs);
            }
            None => {
                memory.swap(lock, self.owner, 0)?;
                return None;
            }
        }
        let mut rest = bytes;
        for &head in heads {
            let (at, len) = write(head);
            let (these, behind) = rest.split_at(len as usize);
            memory.write(Which::Source, at.into(), these)?;
            rest = behind;
        }
        memory.swap(lock, self.owner, 0)?;
        Some(Committed::Done)
    }

    /// Whether all offsets lie in the source, the writes have the bytes of the list, and nothing
    /// touches the lock.
    fn is_within(&self, checks: &[[u8; 16]], heads: &[[u8; 8]], len: u64) -> bool {
        let lock = u64::from(self.lock);
        let word = |check: &[u8; 16]| {
            let at = check_of(check).0;
            at.checked_add(8).is_some_and(|end| end <= len && (end <= lock || lock + 8 <= at))
        };
        let mut bytes = 0u64;
        let within = |head: &[u8; 8]| {
            let (at, piece) = write(*head);
            let (at, end) = (u64::from(at), u64::from(at) + u64::from(piece));
            bytes += u64::from(piece);
            (1..=MAX_PIECE).contains(&piece) && end <= len && (end <= lock || lock + 8 <= at)
        };
        checks.iter().all(word) && heads.iter().all(within) && bytes == u64::from(self.bytes)
    }

    /// Takes the lock. Some owner: another commit has it.
    fn lock(&self, at: u64, memory: &mut impl Bytes) -> Option<Option<u64>> {
        let mut held = 0;
        for _ in 0..TRIES {
            held = memory.swap(at, 0, self.owner)?;
            if held == 0 {
                return Some(None);
            }
            if memory.is_late() {
                break;
            }
            std::hint::spin_loop();
        }
        Some(Some(held))
    }
}

/// The first check whose word differs. `None`: a word cannot be read.
fn differing(checks: &[[u8; 16]], memory: &mut impl Bytes) -> Option<Option<Committed>> {
    for (nth, check) in checks.iter().enumerate() {
        let (at, expected) = check_of(check);
        let mut word = [0; 8];
        memory.read(Which::Source, at, &mut word)?;
        let found = u64::from_le_bytes(word);
        if found != expected {
            return Some(Some(Committed::Differs { nth: nth as u16, found }));
        }
    }
    Some(None)
}

fn check_of(check: &[u8; 16]) -> (u64, u64) {
    let [at, expected] = [0, 8].map(|from| super::scan::eight(check, from));
    (at, expected)
}

fn write(head: [u8; 8]) -> (u32, u32) {
    let [at, len] = [0, 4].map(|from| super::scan::four(&head, from));
    (at, len)
}
