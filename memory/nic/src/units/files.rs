//! Blocks that processes map: each grant in a memfd of its own.
//!
//! A descriptor cannot be called back, and its holder sees the whole file. So a file that a member
//! on this machine may map holds nothing but one grant of its own: a block, or neighbouring blocks
//! as one. It is made when it is first asked for, and is never another's:
//!
//! ```text
//!  arena, as the node maps it     │ D0 │ D1 │ D2 │ D3 │ D4 │ D5 │        verbs by key use this mapping
//!                                   │    └────┬──┘    │    │    │
//!  behind it                   the arena's   file    the arena's memfd
//!                                 memfd     (D1 D2)
//!  claimed ──► asked for: a file is put beneath ──► given back ──► scrub: the arena's memfd is put
//!                                                                  back, the file is closed
//! ```
//!
//! The file is put in place, and taken away, under one lock, under which the words
//! are looked at: a unit passes from one owner to the next only through the scrub,
//! so a file is never beneath another grant than its own. A unit that is mapped is
//! not published: its chunks would be others', and the file is not.
//!
//! Verbs that publish take this lock. So bytes are copied without it: the blocks are *coming*
//! meanwhile, which is as good as mapped. They are not published, and not scrubbed. The words are
//! looked at again before the file is put beneath.
//!
//! Bytes are copied in steps ([`Copying`]), between which the worker serves others. The connection
//! that asked owns the copy. What ends in its midst:
//!
//! ```text
//!  begun ─► copied, step by step ─► words looked at, file beneath ─► arena's bytes given back, step by step
//!         └ the connection ends, or the owner is fenced: the   └ the same: the file stays, and its owner
//!           file is dropped, and the bytes are where they were   has it when it asks again. What the arena
//!                                                                still has goes back at the scrub
//! ```
//!
//! *What is punched.* Of a unit that its owner gave back nothing is needed any more:
//! its memory returns at once, even if a program forgot to unmap it. Of an owner that
//! was *fenced* programs may live that know nothing of it; a hole would give them
//! zeros for what they wrote. Their file is let go as it is, and is the kernel's to
//! free with the last of them.

use super::Units;
use super::leases::Lease;
use crate::shares::Peer;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::place::{BLOCK_BYTES, Level, Place};
use farmem_protocol::extent::word::{Claimant, Owner, Word};
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::wire::Status;
use farmem_sys::mapping::Memfd;
use farmem_sys::raw::Errno;
use farmem_sys::sync::{Held, Lock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Blocks with a file beneath them at once, at most: each can take up to two of the 65 530 mappings
/// that a process may have. Files may be fewer: see [`Units::set_descriptors`].
pub const MAX_MAPPED: usize = 28_000;
/// Blocks of one file, at most: 64 MiB are copied for one request.
pub const MAX_BLOCKS: u32 = 32;
/// Bytes that are copied or given back in one step, at most: some 100 µs.
const STEP: u64 = 256 << 10;
/// Bytes that are copied or given back as one.
const PIECE: u64 = 64 << 10;
const _: () = assert!(BLOCK_BYTES.is_multiple_of(PIECE) && STEP.is_multiple_of(PIECE));

/// The memory of one grant.
#[derive(Debug)]
pub struct File {
    memfd: Memfd,
    /// Its blocks in the arena.
    blocks: Range<u32>,
}

impl File {
    /// The file that a process on this machine maps: this many blocks of 2 MiB, from its beginning.
    pub fn fd(&self) -> i32 {
        self.memfd.fd()
    }

    fn offset(&self, block: u32) -> u64 {
        (block - self.blocks.start) as u64 * BLOCK_BYTES
    }
}

/// The file beneath a block.
#[derive(Debug)]
struct Beneath {
    file: Arc<File>,
    owner: Owner,
    peer: Peer,
    /// Its owner was fenced: programs may still use it.
    orphan: bool,
}

/// The files beneath the blocks.
#[derive(Default)]
struct Mapped {
    blocks: BTreeMap<u32, Beneath>,
    /// Blocks whose bytes are being copied to a file, and for whom.
    coming: Vec<(Range<u32>, Peer)>,
    /// By peer: blocks, and files.
    shares: BTreeMap<Peer, Share>,
    /// The sum of them.
    all: Share,
}

/// How much one peer has, or all of them together.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Share {
    blocks: usize,
    files: usize,
}

impl Share {
    fn is_within(self, blocks: usize, files: usize) -> bool {
        self.blocks <= blocks && self.files <= files
    }

    fn and(self, more: Share) -> Share {
        Share { blocks: self.blocks + more.blocks, files: self.files + more.files }
    }

    fn less(self, gone: Share) -> Share {
        Share { blocks: self.blocks - gone.blocks, files: self.files - gone.files }
    }
}

impl Mapped {
    fn insert(&mut self, file: &Arc<File>, (owner, peer): (Owner, Peer)) {
        for block in file.blocks.clone() {
            self.blocks.insert(block, Beneath { file: Arc::clone(file), owner, peer, orphan: false });
        }
        let more = Share { blocks: file.blocks.len(), files: 1 };
        let share = self.shares.entry(peer).or_default();
        (*share, self.all) = (share.and(more), self.all.and(more));
    }

    fn remove(&mut self, block: u32) -> Option<Beneath> {
        let gone = self.blocks.remove(&block)?;
        let mut rest = self.blocks.range(gone.file.blocks.clone());
        let last = !rest.any(|(_, other)| Arc::ptr_eq(&other.file, &gone.file));
        let less = Share { blocks: 1, files: last as usize };
        self.all = self.all.less(less);
        if let Some(share) = self.shares.get_mut(&gone.peer) {
            *share = share.less(less);
            if *share == Share::default() {
                self.shares.remove(&gone.peer);
            }
        }
        Some(gone)
    }

    /// Whether some block of these is about to have a file.
    fn is_coming(&self, blocks: &Range<u32>) -> bool {
        self.coming.iter().any(|(other, _)| other.start < blocks.end && blocks.start < other.end)
    }

    /// Files that are coming, of one peer or of all.
    fn to_come(&self, peer: Option<Peer>) -> Share {
        let of = self.coming.iter().filter(|(_, other)| peer.is_none_or(|peer| peer == *other));
        of.fold(Share::default(), |sum, (blocks, _)| sum.and(Share { blocks: blocks.len(), files: 1 }))
    }

    /// Whether a peer may have one more file, of `blocks` blocks. A peer may have half of all: so
    /// one user leaves the others half, and the node keeps its own descriptors and mappings.
    fn has_room(&self, peer: Peer, blocks: usize, files: usize) -> bool {
        let more = Share { blocks, files: 1 };
        let share = self.shares.get(&peer).copied().unwrap_or_default().and(self.to_come(Some(peer)));
        let all = self.all.and(self.to_come(None));
        share.and(more).is_within(MAX_MAPPED / 2, files / 2) && all.and(more).is_within(MAX_MAPPED, files)
    }
}

/// Blocks with files of their own.
pub struct Files {
    mapped: Lock<Mapped>,
    /// Files at once, at most.
    most: AtomicUsize,
}

/// Keeps blocks as they are while their bytes are copied to a file, until it is dropped.
struct Coming {
    files: Arc<Files>,
    blocks: Range<u32>,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.files.mapped.lock().coming.retain(|(blocks, _)| *blocks != self.blocks);
    }
}

/// Bytes of blocks on their way to a file, by steps ([`Units::file_step`]).
pub(crate) struct Copying {
    coming: Coming,
    generation: u32,
    stage: Stage,
    /// Bytes that this stage is done with, from the beginning.
    at: u64,
}

/// What is done with bytes.
enum Stage {
    /// They are copied here.
    Copies(Memfd),
    /// The file is beneath. They go back to the system where they were.
    Clears(Arc<File>),
}

/// What becomes of a request for a file.
enum Begun {
    There(Arc<File>),
    Copies(Copying),
    /// Another connection's request copies the same bytes.
    Waits,
}

/// Keeps mapped blocks from being published, and published ones from being mapped.
pub(super) struct Publishing<'a> {
    _locked: Held<'a, Mapped>,
}

#[cfg(test)]
impl Publishing<'_> {
    pub(super) fn sees_coming(&self, block: u32) -> bool {
        self._locked.is_coming(&(block..block + 1))
    }
}

impl Default for Files {
    fn default() -> Files {
        Files { mapped: Lock::new(Mapped::default()), most: AtomicUsize::new(MAX_MAPPED) }
    }
}

impl Files {
    /// Bytes of memory that they have taken from the system.
    pub fn taken(&self) -> u64 {
        let files: BTreeMap<*const File, Arc<File>> =
            self.mapped.lock().blocks.values().map(|b| (Arc::as_ptr(&b.file), Arc::clone(&b.file))).collect();
        // A system call each, with the lock given back: claims and scrubs go on.
        files.values().map(|file| file.memfd.taken()).sum()
    }

    /// For the length of a publication's CAS. `None`: the block is mapped.
    pub(super) fn publishing(&self, place: Place) -> Option<Publishing<'_>> {
        let mapped = self.mapped.lock();
        let is_there = |block: u32| mapped.blocks.contains_key(&block) || mapped.is_coming(&(block..block + 1));
        let is_mapped = place.level == Level::Block && is_there(place.index);
        (!is_mapped).then_some(Publishing { _locked: mapped })
    }

    /// As if bytes of these blocks were being copied.
    #[cfg(test)]
    pub(super) fn copying(self: &Arc<Self>, blocks: Range<u32>, peer: Peer) -> impl Drop {
        self.mapped.lock().coming.push((blocks.clone(), peer));
        Coming { files: Arc::clone(self), blocks }
    }

    /// An owner is fenced.
    pub(super) fn orphan(&self, owner: Owner) {
        self.mapped.lock().blocks.values_mut().filter(|b| b.owner == owner).for_each(|b| b.orphan = true);
    }
}

impl Units {
    /// How many descriptors this process may have: files take half of them at most.
    pub fn set_descriptors(&self, limit: u64) {
        let most = usize::try_from(limit / 2).unwrap_or(usize::MAX).min(MAX_MAPPED);
        self.files.most.store(most, Ordering::Relaxed);
    }

    /// A file with the memory of `count` neighbouring blocks that the member owns, the first by
    /// this key; the same one whenever it is asked for. Bytes that were written by verbs before are
    /// in it; verbs on the blocks must not be under way.
    ///
    /// `None`: it is not done yet, and goes on when it is called again for the same blocks with what
    /// it has left in `copying`, by which the caller may also drop it. One call takes some 100 µs.
    pub(crate) fn file_step(
        &self,
        (who, peer): (&Lease, Peer),
        (key, count): (Key, u32),
        copying: &mut Option<Copying>,
    ) -> Result<Option<Arc<File>>, (Status, i32)> {
        let KeyKind::Unit { level: 2, index: first, generation } = key.kind() else {
            return Err((Status::Access, 0));
        };
        if count == 0
            || count > MAX_BLOCKS
            || first as u64 + count as u64 > self.words.geometry().count(Level::Block) as u64
        {
            return Err((Status::Range, 0));
        }
        let blocks = first..first + count;
        // What is left of another request ends here.
        let same = |copying: &Copying| copying.coming.blocks == blocks && copying.generation == generation;
        let goes_on = match copying.take().filter(same) {
            Some(goes_on) => goes_on,
            None => match self.begin_file((who, peer), &blocks, generation)? {
                Begun::There(file) => return Ok(Some(file)),
                Begun::Copies(begun) => begun,
                Begun::Waits => return Ok(None),
            },
        };
        Ok(match self.copy_some((who, peer), goes_on)? {
            Ok(file) => Some(file),
            Err(left) => {
                *copying = Some(left);
                None
            }
        })
    }

    /// Whether the member holds each of these blocks, the first by a key of this generation.
    fn are_held(&self, who: &Lease, blocks: &Range<u32>, generation: u32) -> bool {
        let words = || blocks.clone().map(|block| self.words.word(Place::block(block)));
        let seen: Vec<Word> = words().collect();
        let held = |word: &Word| word.is_held_by(who.owner()) && word.claimant() != Claimant::SLAB;
        if !self.words.is_live(who) || !seen.iter().all(held) || seen[0].generation().0 != generation {
            return false;
        }
        // A block's word counts in an open giant only; in one that is held whole its owner may
        // write words that mean nothing yet, and what ends such a block is the giant's scrub. The
        // words are looked at before and after: they have not moved meanwhile, and a giant that is
        // open stays so over a block that is held.
        let giant_is_open = |block| {
            self.words
                .geometry()
                .parent(Place::block(block))
                .is_none_or(|giant| self.words.word(giant).state().is_open())
        };
        blocks.clone().all(giant_is_open) && words().eq(seen.iter().copied())
    }

    fn begin_file(
        &self,
        (who, peer): (&Lease, Peer),
        blocks: &Range<u32>,
        generation: u32,
    ) -> Result<Begun, (Status, i32)> {
        let mut mapped = self.files.mapped.lock();
        let beneath = &mapped.blocks;
        if !self.are_held(who, blocks, generation) {
            return Err((Status::Access, 0));
        }
        if mapped.coming.iter().any(|(other, _)| other == blocks) {
            return Ok(Begun::Waits);
        }
        let same = |there: &&Beneath| there.file.blocks == *blocks && there.owner == who.owner();
        if let Some(there) = beneath.get(&blocks.start).filter(same) {
            let whole = |block| beneath.get(&block).is_some_and(|other| Arc::ptr_eq(&other.file, &there.file));
            // Otherwise one of them was given back meanwhile, and claimed again.
            let is_whole = blocks.clone().all(whole);
            return if is_whole { Ok(Begun::There(Arc::clone(&there.file))) } else { Err((Status::Shared, 0)) };
        }
        // Part of it is mapped already, otherwise cut.
        if beneath.range(blocks.clone()).next().is_some() || mapped.is_coming(blocks) {
            return Err((Status::Shared, 0));
        }
        if !mapped.has_room(peer, blocks.len(), self.files.most.load(Ordering::Relaxed)) {
            return Err((Status::System, libc::EMFILE));
        }
        let memfd = Memfd::new(blocks.len() as u64 * BLOCK_BYTES, false).map_err(|e| (Status::System, e.0))?;
        mapped.coming.push((blocks.clone(), peer));
        let coming = Coming { files: Arc::clone(&self.files), blocks: blocks.clone() };
        Ok(Begun::Copies(Copying { coming, generation, stage: Stage::Copies(memfd), at: 0 }))
    }

    /// Goes on with a copy. Gives the file when all is done, or what is left to do.
    fn copy_some(
        &self,
        (who, peer): (&Lease, Peer),
        mut copying: Copying,
    ) -> Result<Result<Arc<File>, Copying>, (Status, i32)> {
        let refused = |e: Errno| (Status::System, e.0);
        let arena = self.arena().map_err(refused)?;
        let blocks = copying.coming.blocks.clone();
        let (from, len) = (blocks.start as u64 * BLOCK_BYTES, blocks.len() as u64 * BLOCK_BYTES);
        let mut left = STEP;
        loop {
            // What was never written takes no time.
            let next = arena.next_data(from + copying.at, len - copying.at).map(|at| (at - from) / PIECE * PIECE);
            copying.at = next.unwrap_or(len);
            copying.stage = match copying.stage {
                Stage::Clears(file) if copying.at == len => return Ok(Ok(file)),
                stage if copying.at < len && left == 0 => return Ok(Err(Copying { stage, ..copying })),
                Stage::Copies(memfd) if copying.at == len => {
                    copying.at = 0;
                    Stage::Clears(self.put_beneath((who, peer), &copying.coming, copying.generation, memfd)?)
                }
                Stage::Copies(memfd) => {
                    arena.carry_over(from + copying.at, &memfd, copying.at, PIECE).map_err(refused)?;
                    (copying.at, left) = (copying.at + PIECE, left - PIECE);
                    Stage::Copies(memfd)
                }
                Stage::Clears(file) => {
                    arena.discard(from + copying.at, PIECE);
                    (copying.at, left) = (copying.at + PIECE, left - PIECE);
                    Stage::Clears(file)
                }
            };
        }
    }

    /// Puts a file that has all bytes beneath its blocks.
    fn put_beneath(
        &self,
        (who, peer): (&Lease, Peer),
        coming: &Coming,
        generation: u32,
        memfd: Memfd,
    ) -> Result<Arc<File>, (Status, i32)> {
        let refused = |e: Errno| (Status::System, e.0);
        let arena = self.arena().map_err(refused)?;
        let blocks = coming.blocks.clone();
        let (at, len) = (blocks.start as u64 * BLOCK_BYTES, blocks.len() as u64 * BLOCK_BYTES);
        let mut mapped = self.files.mapped.lock();
        // Given back meanwhile, or its owner was fenced.
        if !self.are_held(who, &blocks, generation) {
            return Err((Status::Access, 0));
        }
        arena.put_beneath(at, len, memfd.fd(), 0, self.huge).map_err(refused)?;
        let file = Arc::new(File { memfd, blocks });
        mapped.insert(&file, (who.owner(), peer));
        Ok(file)
    }

    /// Empties a unit that was drained. False when the system refused, or bytes of it are being copied
    /// to a file: to be tried again.
    pub(super) fn empty(&self, place: Place) -> bool {
        let bytes = self.words.geometry().bytes(place);
        // Of a chunk none: its block is open, and was not mapped when it was opened.
        let blocks = (bytes.start.div_ceil(BLOCK_BYTES) as u32)..(bytes.end / BLOCK_BYTES) as u32;
        let Some(arena) = self.arena.get() else { return !self.files.mapped.lock().is_coming(&blocks) };
        let mut gone = Vec::new();
        if !blocks.is_empty() {
            let mut mapped = self.files.mapped.lock();
            if mapped.is_coming(&blocks) {
                return false;
            }
            let found: Vec<u32> = mapped.blocks.range(blocks).map(|(&block, _)| block).collect();
            for block in found {
                // Before the entry goes: until then nobody else's file can be put here.
                let at = block as u64 * BLOCK_BYTES;
                let (own, from) = arena.own(at);
                if arena.put_beneath(at, BLOCK_BYTES, own.fd(), from, self.huge).is_err() {
                    return false;
                }
                gone.extend(mapped.remove(block).map(|there| (there, block)));
            }
        }
        // With the lock given back: others' units are emptied meanwhile, and mapped. Nor can a file
        // come beneath this one now: no word in it is an owner's, and the drain is over.
        for (there, block) in gone.iter().filter(|(there, _)| !there.orphan) {
            there.file.memfd.discard(there.file.offset(*block), BLOCK_BYTES);
        }
        arena.discard(bytes.start, bytes.end - bytes.start);
        true
    }
}
