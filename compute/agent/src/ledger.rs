//! The agent's record of what its applications hold, in a file that outlives it.
//!
//! ```text
//! byte 0        header    magic; of three nodes membership, address and number; the next block's name
//!      4096     applications, 256 × 128 bytes     token, user, process, job
//!      36864    blocks, 65536 × 128 bytes         owner, name, place at the node, map of chunks, move
//!      8425472  windows, 3 × 65536 × 16 bytes     key, and the block that it is bound to
//! ```
//! (All numbers are words of 8 bytes, of this machine's order: the file never leaves it.)
//!
//! The file is mapped: a store is a record, and a process that is killed loses
//! none. (A machine that dies loses it, and all applications with it.) What may be
//! found after a kill at any instruction, and what follows from it:
//!
//! | cut between | found | made good by |
//! |---|---|---|
//! | a block claimed, and its record | a word at the node that names the agent | it is given back ([`crate::blocks`]) |
//! | a record struck out, and the block given back | the same | the same |
//! | chunks recorded, and the application told | chunks that it does not declare | they are free ([`crate::stock::Stock::declare`]) |
//! | an application's FREE read, and recorded | chunks that it does not declare | the same |
//! | a window bound or unbound, and its record | one that is recorded as bound to nothing | it is dropped ([`crate::windows`]) |
//! | a block claimed at another node, and its record | a block that lies where it was | the new one is given back ([`crate::sources`]) |
//! | a block of a run copied, and how far the run has moved | the keys of that block at no node | the program asks for others; it is copied again |
//! | the last block of a run moved, and the run's new place | a run that is at the other node as a whole | that is recorded ([`crate::sources`]) |
//! | an application admitted, and told its token | one that never comes back | its time is over, its process is found gone |
//!
//! An entry's first word is therefore stored last when it begins, and first when
//! it ends.

use crate::chunks::Map;
use crate::word::{BlockId, MAX_BLOCK_ID};
use farmem_protocol::key::Key;
use farmem_sys::raw::Errno;
use farmem_sys::shared::Shared;
use farmem_trust::agree::Agreed;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Applications of an agent at once.
pub const MAX_APPS: usize = 256;
/// Blocks and runs of blocks that applications hold at once: 128 GiB at least, of which one user
/// may have half.
pub const MAX_ENTRIES: usize = 65_536;
/// Bytes of a job's name.
pub const MAX_JOB: usize = 32;
/// Bytes of the file; sparse.
pub const BYTES: usize = WINDOWS + NODES * MAX_WINDOWS * WINDOW;
/// Windows of one agent at one node: as many as a node lets a member have.
pub const MAX_WINDOWS: usize = 1 << 16;
/// Nodes of one agent at once: the one that it uses, and two that it leaves.
pub const NODES: usize = 3;
/// Bytes of a node's address.
pub const MAX_NODE: usize = 300;

const MAGIC: u64 = u64::from_le_bytes(*b"fmagent6");
/// Where the memberships begin.
const MEMBERS: [usize; NODES] = [8, 48, 192];
/// Which node is used, and the highest number of a node so far.
const CURRENT: usize = 80;
/// Where the memberships' secrets begin, by which their connections are encrypted. Zero: they are not.
const SECRETS: [usize; NODES] = [128, 160, 224];
/// Where the nodes' numbers are.
const NUMBERS: [usize; NODES] = [256, 264, 272];
/// Where the nodes' addresses begin.
const ADDRESSES: [usize; NODES] = [512, 1024, 1536];
const APPS: usize = 4096;
const APP: usize = 128;
const BLOCKS: usize = APPS + MAX_APPS * APP;
const BLOCK: usize = 128;
const WINDOWS: usize = BLOCKS + MAX_ENTRIES * BLOCK;
const WINDOW: usize = 16;
/// In the second word of a block, above its name: which node it is at.
const NODE_BIT: u32 = MAX_BLOCK_ID.trailing_zeros();
/// In a block's entry, behind its map: how far it has moved.
const PROGRESS: usize = 80;
/// In that word: there is a move. Above the number of blocks: which node they are at.
const MOVES: u64 = 1 << 63;
/// In the second word of a window: it is bound.
const BOUND: u64 = 1 << 63;

/// 128 bits that an application proves itself by when it comes back.
pub type Token = [u8; 16];

/// The identity of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The token by which it proves itself.
    pub token: Token,
    /// Its user, as the kernel says.
    pub uid: u32,
    /// Its process, as the kernel says.
    pub pid: u32,
    /// When that process began, so that another with its number is not taken for it.
    pub began: u64,
    /// The job it says it belongs to, if any.
    pub job: String,
}

/// How the agent is known at its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The member's secret.
    pub secret: [u8; 16],
    /// The node's incarnation.
    pub incarnation: u64,
    /// The agent's requests are numbered from here.
    pub number: u64,
    /// The secret by which its connections are encrypted, if they are. The ledger and the node alone
    /// have it. So a thief of the token cannot come in the agent's place.
    pub agreed: Option<Agreed>,
}

/// One entry of the table of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// The application's place in its table.
    pub app: usize,
    /// The block, or the first of a run.
    pub block: BlockId,
    /// Blocks: 1, or those of a run.
    pub blocks: u32,
    /// Which of the agent's [`NODES`] it is at.
    pub node: usize,
    /// The (first) block's number at the node.
    pub place: u32,
    /// Chunks that the application has, of a block that is no run.
    pub map: Map,
    /// How far it has moved, if it is in the middle of a move.
    pub progress: Option<Progress>,
}

impl Owned {
    /// The number of its first block at a node, if it is there, or a part of it.
    pub fn place_at(&self, node: usize) -> Option<u32> {
        let to = self.progress.filter(|to| to.node == node).map(|to| to.place);
        to.or((self.node == node).then_some(self.place))
    }

    /// Whether it is at a node, or a part of it.
    pub fn is_at(&self, node: usize) -> bool {
        self.place_at(node).is_some()
    }
}

/// How far a run has moved to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which of the agent's [`NODES`] that is.
    pub node: usize,
    /// The number that its first block has there.
    pub place: u32,
    /// The number of its first blocks that are there. The others are where the run was.
    pub done: u32,
}

/// The record. `fresh`: nothing of a former agent is in it.
pub struct Ledger {
    shared: Shared,
    fresh: bool,
}

impl Ledger {
    /// Over a file or memfd of [`BYTES`]. False with it: it held no record, and is empty now.
    pub fn open(fd: i32) -> Result<(Ledger, bool), Errno> {
        let ledger = Ledger { shared: Shared::map(fd, BYTES)?, fresh: false };
        let known = ledger.word(0) == MAGIC;
        if !known {
            ledger.clear();
        }
        Ok((ledger, known))
    }

    /// Over a memfd that was just made. Its entries are not looked at: to read a page of it takes
    /// memory.
    pub fn fresh(fd: i32) -> Result<Ledger, Errno> {
        let ledger = Ledger { shared: Shared::map(fd, BYTES)?, fresh: true };
        ledger.put(0, MAGIC);
        Ok(ledger)
    }

    /// Whether there was nothing in it at the start.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Forgets everything.
    pub fn clear(&self) {
        self.shared
            .words(0, BYTES / 8)
            .iter()
            .filter(|word| word.load(Relaxed) != 0)
            .for_each(|word| word.store(0, Relaxed));
        self.put(0, MAGIC);
    }

    fn word(&self, at: usize) -> u64 {
        self.shared.words(at, 1)[0].load(Acquire)
    }

    fn put(&self, at: usize, value: u64) {
        // Release: a reader that finds an entry's first word finds the rest. For a process that is
        // killed and its successor, program order is enough.
        self.shared.words(at, 1)[0].store(value, Release);
    }

    fn put_bytes(&self, at: usize, bytes: &[u8]) {
        for (word, chunk) in self.shared.words(at, bytes.len().div_ceil(8)).iter().zip(bytes.chunks(8)) {
            let mut padded = [0; 8];
            padded[..chunk.len()].copy_from_slice(chunk);
            word.store(u64::from_le_bytes(padded), Release);
        }
    }

    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let words = self.shared.words(at, N / 8);
        std::array::from_fn(|i| words[i / 8].load(Acquire).to_le_bytes()[i % 8])
    }

    /// How the agent is known at one of its [`NODES`], if it is.
    pub fn membership(&self, node: usize) -> Option<Membership> {
        let at = MEMBERS[node];
        let incarnation = self.word(at + 16);
        let agreed: [u8; 32] = self.bytes(SECRETS[node]);
        (incarnation != 0).then(|| Membership {
            secret: self.bytes(at),
            incarnation,
            number: self.word(at + 24),
            agreed: (agreed != [0; 32]).then(|| agreed.into()),
        })
    }

    /// Records how the agent is known at a node, or that it has left it.
    pub fn set_membership(&self, node: usize, membership: Option<&Membership>) {
        let at = MEMBERS[node];
        let Some(membership) = membership else {
            self.put(at + 16, 0);
            return self.put_bytes(SECRETS[node], &[0; 32]);
        };
        self.put_bytes(at, &membership.secret);
        self.put_bytes(SECRETS[node], membership.agreed.as_ref().map_or(&[0; 32], |agreed| agreed.bytes()));
        self.put(at + 24, membership.number);
        self.put(at + 16, membership.incarnation);
    }

    /// The address of a node, if it was recorded.
    pub fn address(&self, node: usize) -> Option<String> {
        let at = ADDRESSES[node];
        let len = (self.word(at) as usize).min(MAX_NODE);
        let words = self.shared.words(at + 8, len.div_ceil(8));
        let bytes = words.iter().flat_map(|word| word.load(Acquire).to_le_bytes()).take(len);
        (len > 0).then(|| String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned())
    }

    /// Records the address of a node, before the agent is a member there.
    pub fn set_address(&self, node: usize, address: &str) {
        let at = ADDRESSES[node];
        self.put(at, 0);
        if address.len() <= MAX_NODE {
            self.put_bytes(at + 8, address.as_bytes());
            self.put(at, address.len() as u64);
        }
    }

    /// Which node is used, and the highest number that a node has had: how often the agent has moved
    /// to a new one.
    pub fn current(&self) -> (usize, u64) {
        let word = self.word(CURRENT);
        (((word & 3) as usize).min(NODES - 1), word >> 2)
    }

    /// Records it.
    pub fn set_current(&self, node: usize, moves: u64) {
        self.put(CURRENT, moves << 2 | node as u64);
    }

    /// The number of a node. No other node of this agent ever has it.
    pub fn number(&self, node: usize) -> u64 {
        self.word(NUMBERS[node])
    }

    /// Records it, before the agent is a member there.
    pub fn set_number(&self, node: usize, number: u64) {
        self.put(NUMBERS[node], number);
    }

    /// A place for one more node, if there is one.
    pub fn free_node(&self) -> Option<usize> {
        (0..NODES).find(|node| self.membership(*node).is_none())
    }

    /// Forgets all windows at a node, which the agent is no member of.
    pub fn clear_windows(&self, node: usize) {
        let words = self.shared.words(WINDOWS + node * MAX_WINDOWS * WINDOW, MAX_WINDOWS * WINDOW / 8);
        words.iter().filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Release));
    }

    /// The next block's name.
    pub fn next_name(&self) -> u64 {
        self.word(40)
    }

    /// Records it.
    pub fn set_next_name(&self, next: u64) {
        self.put(40, next);
    }

    /// An application, by its place.
    pub fn app(&self, app: usize) -> Option<Identity> {
        let at = APPS + app * APP;
        (self.word(at) == 1).then(|| {
            let who = self.word(at + 24);
            let len = (self.word(at + 40) as usize).min(MAX_JOB);
            let job: [u8; MAX_JOB] = self.bytes(at + 48);
            Identity {
                token: self.bytes(at + 8),
                uid: (who >> 32) as u32,
                pid: who as u32,
                began: self.word(at + 32),
                job: String::from_utf8_lossy(&job[..len]).into_owned(),
            }
        })
    }

    /// Records an application, or its end.
    pub fn set_app(&self, app: usize, identity: Option<&Identity>) {
        let at = APPS + app * APP;
        let Some(identity) = identity else { return self.put(at, 0) };
        self.put_bytes(at + 8, &identity.token);
        self.put(at + 24, (identity.uid as u64) << 32 | identity.pid as u64);
        self.put(at + 32, identity.began);
        self.put(at + 40, identity.job.len().min(MAX_JOB) as u64);
        self.put_bytes(at + 48, &identity.job.as_bytes()[..identity.job.len().min(MAX_JOB)]);
        self.put(at, 1);
    }

    /// An entry of the table of blocks.
    pub fn owned(&self, entry: usize) -> Option<Owned> {
        let at = BLOCKS + entry * BLOCK;
        let owner = self.word(at);
        let node = ((self.word(at + 8) >> NODE_BIT & 3) as usize).min(NODES - 1);
        let moves = self.word(at + PROGRESS);
        let progress = Progress {
            node: ((moves >> 48 & 3) as usize).min(NODES - 1),
            place: moves as u32,
            done: (moves >> 32 & 0xFF) as u32,
        };
        // A move to where it is has ended: only this word had still to be struck out.
        let is_moving = moves & MOVES != 0 && progress.node != node;
        (owner != 0).then(|| Owned {
            app: (owner & 0xFFFF) as usize,
            blocks: (owner >> 16 & 0xFF) as u32,
            block: BlockId(self.word(at + 8) as u32 & (MAX_BLOCK_ID - 1)),
            node,
            place: (self.word(at + 8) >> 32) as u32,
            map: std::array::from_fn(|i| self.word(at + 16 + i * 8)),
            progress: is_moving.then_some(progress),
        })
    }

    /// Records that an application owns a block.
    pub fn own(&self, entry: usize, owned: &Owned) {
        let at = BLOCKS + entry * BLOCK;
        self.put_place(entry, owned);
        self.put_progress(entry, owned.progress);
        self.set_map(entry, &owned.map);
        self.put(at, 1 << 32 | (owned.blocks as u64) << 16 | owned.app as u64);
    }

    /// Records where a block is, by one store: a kill leaves the old place or the new one.
    pub fn put_place(&self, entry: usize, owned: &Owned) {
        let place = (owned.place as u64) << 32 | (owned.node as u64) << NODE_BIT | owned.block.0 as u64;
        self.put(BLOCKS + entry * BLOCK + 8, place);
    }

    /// Records how far a run has moved, by one store. [`Ledger::put_place`] ends the move.
    pub fn put_progress(&self, entry: usize, progress: Option<Progress>) {
        let at = BLOCKS + entry * BLOCK + PROGRESS;
        let word = progress.map_or(0, |to| MOVES | (to.node as u64) << 48 | (to.done as u64) << 32 | to.place as u64);
        // A store that changes nothing would still touch the file's page.
        if self.word(at) != word {
            self.put(at, word);
        }
    }

    /// Records which chunks of the block are the application's.
    pub fn set_map(&self, entry: usize, map: &Map) {
        let words = self.shared.words(BLOCKS + entry * BLOCK + 16, map.len());
        for (word, &bits) in words.iter().zip(map) {
            // A store that changes nothing would still touch the file's page.
            if word.load(Relaxed) != bits {
                word.store(bits, Release);
            }
        }
    }

    /// A window that the agent has at its node: its key, and what it is bound to for certain: a
    /// block, or the block of this number in a run.
    pub fn window(&self, slot: usize) -> Option<(Key, Option<(BlockId, u32)>)> {
        let at = WINDOWS + slot * WINDOW;
        let key = self.word(at);
        let to = self.word(at + 8);
        let bound = to & BOUND != 0;
        (key != 0).then(|| (Key(key), bound.then_some((BlockId(to as u32), (to >> 32) as u32 & 0xFFFF))))
    }

    /// Records a window as bound to nothing, or not known to be; `None`: there is none.
    pub fn set_window(&self, slot: usize, key: Option<Key>) {
        let at = WINDOWS + slot * WINDOW;
        self.put(at + 8, 0);
        self.put(at, key.map_or(0, |key| key.0));
    }

    /// Records what a window is bound to, by the key that it has now.
    pub fn bind_window(&self, slot: usize, key: Key, block: BlockId, of_run: u32) {
        let at = WINDOWS + slot * WINDOW;
        self.put(at, key.0);
        self.put(at + 8, BOUND | (of_run as u64) << 32 | block.0 as u64);
    }

    /// Records that nobody owns the block.
    pub fn disown(&self, entry: usize) {
        self.put(BLOCKS + entry * BLOCK, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use farmem_sys::{descriptors, shared};

    #[test]
    fn what_is_recorded_is_found_by_the_next() {
        let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
        let (first, known) = Ledger::open(fd).unwrap();
        assert!(!known && first.membership(1).is_none() && first.app(3).is_none());
        let app = Identity { token: [7; 16], uid: 1000, pid: 42, began: 99, job: "nightly".into() };
        let member = Membership { secret: [9; 16], incarnation: 5, number: 17, agreed: Some([3; 32].into()) };
        let owned = Owned {
            app: 3,
            block: BlockId(77),
            blocks: 1,
            node: 1,
            place: u32::MAX,
            map: [1, 2, 3, 4, 5, 6, 7, u64::MAX],
            progress: Some(Progress { node: 2, place: u32::MAX, done: 31 }),
        };
        first.set_app(3, Some(&app));
        first.set_membership(1, Some(&member));
        first.set_address(1, "bighost:7411");
        first.set_current(1, 9);
        first.set_next_name(55);
        first.own(MAX_ENTRIES - 1, &owned);
        let (next, known) = Ledger::open(fd).unwrap();
        assert!(known);
        assert_eq!((next.app(3), next.app(4)), (Some(app), None));
        assert_eq!((next.membership(0), next.membership(1), next.next_name()), (None, Some(member), 55));
        first.set_membership(1, Some(&Membership { agreed: None, ..member }));
        assert_eq!(next.membership(1), Some(Membership { agreed: None, ..member }));
        assert_eq!((next.address(0), next.address(1)), (None, Some("bighost:7411".into())));
        first.set_number(2, 8);
        assert_eq!((next.current(), next.number(2), next.number(1)), ((1, 9), 8, 0));
        assert_eq!((next.free_node(), Ledger::open(fd).unwrap().0.membership(2)), (Some(0), None));
        assert_eq!((next.owned(MAX_ENTRIES - 1), next.owned(0)), (Some(owned), None));
        let key = Key::window(70_000, 5);
        first.set_window(MAX_WINDOWS - 1, Some(Key::window(70_000, 4)));
        assert_eq!(next.window(MAX_WINDOWS - 1), Some((Key::window(70_000, 4), None)));
        first.bind_window(MAX_WINDOWS - 1, key, BlockId(77), 31);
        assert_eq!(next.window(MAX_WINDOWS - 1), Some((key, Some((BlockId(77), 31)))));
        assert_eq!(next.owned(MAX_ENTRIES - 1), Some(owned));
        first.set_window(MAX_WINDOWS - 1, None);
        assert_eq!(next.window(MAX_WINDOWS - 1), None);
        // The move's last store but one: the run is where it was to go.
        first.put_place(MAX_ENTRIES - 1, &Owned { node: 2, ..owned });
        assert_eq!(next.owned(MAX_ENTRIES - 1), Some(Owned { node: 2, progress: None, ..owned }));
        next.disown(MAX_ENTRIES - 1);
        assert_eq!(first.owned(MAX_ENTRIES - 1), None);
        descriptors::close(fd);
    }
}
