//! One front end's view of one shard: where it lies, what is cached of it, and what is under way.

use crate::copies::{Copies, Mode, Phase, Words};
use crate::heap::{Heap, Held};
use crate::index::{Cache, Trie};
use crate::layout::{At, Geometry, Hash, Kind, MAX_OBJECT, Member, Owner, Slot, class_of};
use crate::lease::{Lease, Writes};
use crate::long::List;
use crate::member::Watched;
use crate::object::{Object, Type, Value};
use crate::rules::{Bug, Rules};
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

/// Why an operation did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Trouble {
    /// The node has no memory left for it.
    #[error("OOM the store's memory is used up: delete keys, raise --maxmemory, or lend more")]
    Full,
    /// The object is larger than [`crate::object::len`] may be.
    #[error("ERR the value is too large: a string may have 512 MiB, any other value 2097048 bytes with its key")]
    TooLarge,
    /// An object does not match its checksum.
    #[error("IOERR an object in remote memory does not match its checksum")]
    Corrupt,
    /// A connection broke, and whether the operation took effect cannot be told any more.
    #[error("IOERR the connection to a memory node broke: the command may have taken effect or not")]
    Unsettled,
    /// The index cannot grow any further there.
    #[error("OOM the index cannot grow any further")]
    Deep,
    /// This front end was taken for dead. It must join anew.
    #[error("IOERR this front end was silent for too long and was shut out: the command may have taken effect or not")]
    ShutOut,
}

/// How often an operation begins again before it is given up as [`Trouble::Corrupt`].
pub(crate) const ATTEMPTS: u32 = 1000;

/// Epochs, as far as they matter to this front end.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The store's, as last read.
    pub now: u64,
    /// Operations under way, by the epoch in which they began.
    pub under_way: BTreeMap<u64, u32>,
}

/// Counters of a shard.
#[derive(Debug, Default)]
pub struct Counters {
    /// Batches of verbs that an operation waited for.
    pub trips: Cell<u64>,
    /// Verbs.
    pub verbs: Cell<u64>,
    /// Splits of tables that this front end finished.
    pub splits: Cell<u64>,
    /// Reads that took no verb.
    pub near: Cell<u64>,
    /// Looks into the index that a cached slot saved.
    pub warm: Cell<u64>,
    /// Looks into the index.
    pub cold: Cell<u64>,
    /// Pieces taken over from dead front ends.
    pub adopted: Cell<u64>,
    /// Nodes that came in place of one that had ended, and were filled.
    pub mended: Cell<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Shard {
    /// Its node's number in the region.
    pub node: u8,
    /// Its root piece.
    pub root: At,
    /// By which its pieces' headers are told from data.
    pub secret: u64,
    /// The size of its tables.
    pub geometry: Geometry,
    /// The rules it keeps.
    pub rules: Rules,
    /// This front end.
    pub me: Member,
    /// By which nodes tell its process from others.
    pub tag: u32,
    /// Milliseconds since 1970; the driver keeps it.
    pub now_ms: Cell<u64>,
    /// Bytes of pieces that all front ends together may hold.
    pub limit: Cell<u64>,
    /// Bytes of pieces that the others held when they last said so.
    pub others: Cell<u64>,
    /// Bytes of an object at most, and of an extent. Longer strings are long values.
    pub longest: Cell<u64>,
    /// Whether this front end was found to be taken for dead.
    pub shut_out: Cell<bool>,
    /// The nodes that have it.
    pub copies: Copies,
    /// Their addresses, the first one's and the other's.
    pub nodes: RefCell<[String; 2]>,
    /// Counters.
    pub counters: Counters,
    pub(crate) heap: RefCell<Heap>,
    pub(crate) trie: RefCell<Trie>,
    pub(crate) cache: RefCell<Cache>,
    /// Whether this front end may count on being alone.
    pub lease: Lease,
    pub(crate) writes: Writes,
    pub(crate) epochs: RefCell<Epochs>,
    pub(crate) splitting: RefCell<HashSet<At>>,
    pub(crate) watch: RefCell<Vec<Watched>>,
    /// When this front end last looked after the others.
    pub(crate) watched_ms: Cell<u64>,
    pub(crate) suspects: RefCell<BTreeMap<At, u64>>,
}

/// An operation under way: what it has seen is not reused before it ends.
#[derive(Debug)]
pub struct Section {
    shard: Rc<Shard>,
    /// The epoch in which it began.
    pub epoch: u64,
    phase: usize,
}

impl Drop for Section {
    fn drop(&mut self) {
        self.shard.copies.leave(self.phase);
        let mut epochs = self.shard.epochs.borrow_mut();
        if let Some(count) = epochs.under_way.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                epochs.under_way.remove(&self.epoch);
            }
        }
    }
}

impl Shard {
    /// Knows nothing yet but where it is and whose.
    pub fn new(root: At, secret: u64, copies: Copies, geometry: Geometry, me: Member, tag: u32, local: u64) -> Shard {
        Shard {
            node: (root >> crate::layout::NODE_SHIFT) as u8,
            root,
            secret,
            geometry,
            rules: Rules::SOUND,
            me,
            tag,
            now_ms: Cell::new(0),
            limit: Cell::new(u64::MAX),
            others: Cell::new(0),
            longest: Cell::new(MAX_OBJECT),
            shut_out: Cell::new(false),
            copies,
            nodes: RefCell::default(),
            counters: Counters::default(),
            heap: RefCell::default(),
            trie: RefCell::new(Trie::new(root, geometry)),
            cache: RefCell::new(Cache::new(local)),
            lease: Lease::default(),
            writes: Writes::default(),
            epochs: RefCell::default(),
            splitting: RefCell::default(),
            watch: RefCell::default(),
            watched_ms: Cell::new(0),
            suspects: RefCell::default(),
        }
    }

    /// Begins an operation.
    pub fn section(self: &Rc<Shard>) -> Section {
        let mut epochs = self.epochs.borrow_mut();
        let epoch = epochs.now;
        *epochs.under_way.entry(epoch).or_default() += 1;
        Section { shard: Rc::clone(self), epoch, phase: self.copies.enter() }
    }

    pub(crate) async fn verbs(&self, io: &Io, verbs: Vec<Verb>) -> Vec<Answer> {
        self.words(io, Words::Index, verbs).await
    }

    /// [`Shard::verbs`] whose CASes change words of this kind.
    pub(crate) async fn words(&self, io: &Io, words: Words, verbs: Vec<Verb>) -> Vec<Answer> {
        self.counters.trips.set(self.counters.trips.get() + 1);
        self.counters.verbs.set(self.counters.verbs.get() + verbs.len() as u64);
        match self.copies.mode() {
            Mode::Single => io.verbs(verbs).await,
            _ => Box::pin(self.copies.verbs(io, self.rules, words, verbs)).await,
        }
    }

    pub(crate) async fn read(&self, io: &Io, at: At, len: u32) -> Vec<u8> {
        match self.verbs(io, vec![Verb::Read { at, len }]).await.pop() {
            Some(Answer::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        }
    }

    /// Carries out a CAS; what it found if that was not `old`.
    pub(crate) async fn swap(&self, io: &Io, at: At, old: u64, new: u64) -> Result<Result<(), u64>, Trouble> {
        let answer = self.verbs(io, vec![Verb::Cas { at, old, new }]).await.pop();
        self.settle(io, at, old, new, answer.unwrap_or(Answer::Unknown)).await
    }

    /// Changes the owner of a piece; whether it was the one expected.
    pub(crate) async fn take_over(&self, io: &Io, piece: At, old: u64, new: u64) -> bool {
        loop {
            match self.words(io, Words::Owners, vec![Verb::Cas { at: piece, old, new }]).await.pop() {
                // Only this front end writes its own name.
                Some(Answer::Word(found)) => return found == old || found == new,
                _ if self.shut_out.get() => return false,
                _ => {}
            }
        }
    }

    /// What became of a CAS. One whose answer was lost is given again until it is answered: either
    /// copy succeeds once, and the other finds `new`.
    pub(crate) async fn settle(
        &self,
        io: &Io,
        at: At,
        old: u64,
        new: u64,
        answer: Answer,
    ) -> Result<Result<(), u64>, Trouble> {
        let mut answer = answer;
        let mut lost = false;
        loop {
            match answer {
                Answer::Word(found) if found == old => return Ok(Ok(())),
                // A slot's new value is this operation's alone, but an empty slot may be another's
                // doing.
                Answer::Word(found) if lost && found == new && new != 0 => return Ok(Ok(())),
                Answer::Word(_) if lost => return Err(Trouble::Unsettled),
                Answer::Word(found) => return Ok(Err(found)),
                _ => {
                    lost = true;
                    let again = vec![Verb::Cas { at, old, new }];
                    answer = Box::pin(self.verbs(io, again)).await.pop().unwrap_or(Answer::Unknown);
                }
            }
        }
    }

    /// Holds a place for an object of `bytes`.
    pub(crate) async fn hold(&self, io: &Io, bytes: u64) -> Result<Held, Trouble> {
        if bytes > MAX_OBJECT {
            return Err(Trouble::TooLarge);
        }
        self.hold_class(io, class_of(bytes), bytes).await
    }

    /// Holds a place of this class.
    pub(crate) async fn hold_class(&self, io: &Io, class: u8, bytes: u64) -> Result<Held, Trouble> {
        self.heap.borrow_mut().reap(self.epochs.borrow().now);
        if let Some(held) = self.heap.borrow_mut().take(class, bytes) {
            return Ok(held);
        }
        Box::pin(self.hold_more(io, class, bytes)).await
    }

    /// [`Shard::hold`] when no place is free.
    async fn hold_more(&self, io: &Io, class: u8, bytes: u64) -> Result<Held, Trouble> {
        // Not every caller has a section.
        let _phase = Phase::new(&self.copies);
        loop {
            if let Some(held) = self.heap.borrow_mut().take(class, bytes) {
                return Ok(held);
            }
            let wanted = self.heap.borrow().piece_for(class, bytes);
            let smallest = Heap::default().piece_for(class, bytes);
            let mut taken = None;
            for size in [wanted, smallest] {
                taken = self.claim(io, Kind::Objects, class, size).await;
                if taken.is_some() {
                    break;
                }
            }
            let (at, size) = taken.ok_or(Trouble::Full)?;
            self.heap.borrow_mut().add(at, size, class);
        }
    }

    /// Takes a piece from the node and writes down whose it is.
    async fn claim(&self, io: &Io, kind: Kind, class: u8, bytes: u32) -> Option<(At, u32)> {
        if self.heap.borrow().bytes() + self.others.get() + u64::from(bytes) > self.limit.get() {
            return None;
        }
        let node = self.node;
        let Some(Answer::Place(at)) = self.verbs(io, vec![Verb::Alloc { node, bytes }]).await.pop() else {
            return None;
        };
        let words = [self.owner(kind, class).word(self.secret, at), Owner::second(self.secret, at)];
        self.verbs(io, vec![Verb::Write { at, bytes: Rc::new(words.map(u64::to_le_bytes).concat()) }]).await;
        Some((at, bytes))
    }

    pub(crate) fn owner(&self, kind: Kind, class: u8) -> Owner {
        Owner { kind, class, member: self.me }
    }

    /// Gives a piece back to the node. Its header goes first, so that nobody takes it for one any
    /// more.
    pub(crate) async fn release(&self, io: &Io, at: At) {
        self.verbs(io, vec![Verb::Write { at, bytes: Rc::new(vec![0; 16]) }, Verb::Free { at }]).await;
    }

    /// Gives pieces of which nothing is used back to the node.
    pub async fn trim(&self, io: &Io) {
        loop {
            let spare = self.heap.borrow_mut().spare();
            let Some((at, _)) = spare else { return };
            self.release(io, at).await;
        }
    }

    /// The object for a value, and its slot.
    pub(crate) fn made(&self, hash: Hash, key: &[u8], value: &Value, held: &Held) -> (Object, Slot) {
        let object = Object::new(hash, key, value, held.version, (self.now_ms.get() / 1000) as u32);
        if value.kind == Type::Long
            && let Some(list) = List::decode(&value.bytes, self.node)
        {
            let extents = list.extents.iter().map(|extent| extent.at);
            self.heap.borrow_mut().lists(held.at, list.number, hash.0, extents);
        }
        (object, Slot::new(hash.fingerprint(), held.class, held.version, held.at))
    }

    /// The object is in the index now.
    pub(crate) fn linked(&self, at: At, hash: Hash, value: &Value) {
        let mut heap = self.heap.borrow_mut();
        heap.linked(at, hash.0);
        if value.kind == Type::Long {
            heap.linked_list(at);
        }
    }

    /// The slot's object is not in the index any more.
    pub(crate) fn retire(&self, slot: Slot) {
        self.retire_for(slot, None, None);
    }

    /// [`Shard::retire`] of an object that `new` has replaced. Of a long value the extents go, too,
    /// unless `new` lists the same. `old`: the long value's number, if the caller knows it.
    pub(crate) fn retire_for(&self, slot: Slot, old: Option<u64>, new: Option<u64>) {
        // The store's epoch may be one ahead of what was read.
        let epoch = self.epochs.borrow().now + 1;
        let mut heap = self.heap.borrow_mut();
        let listed = heap.retire(slot.at(self.node), epoch).or(old);
        if let Some(number) = listed.filter(|_| listed != new) {
            heap.retire_long(number, epoch);
        }
        if self.rules.broken(Bug::ReuseAtOnce) {
            heap.reap(u64::MAX);
        }
    }

    /// Bytes of pieces that this front end holds.
    pub fn bytes(&self) -> u64 {
        self.heap.borrow().bytes()
    }

    /// Bytes that wait for the epoch.
    pub fn retired_bytes(&self) -> u64 {
        self.heap.borrow().retired_bytes()
    }

    /// The epoch as last read.
    pub fn epoch(&self) -> u64 {
        self.epochs.borrow().now
    }
}
