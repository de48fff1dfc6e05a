//! A front end's places for objects in one shard, and the epochs that say when a place is used again.

mod retire;

use crate::blocks;
use crate::layout::{At, EXTENT, Hash, Kind, MAX_OBJECT, Owner, PIECES, Slot, class_of, is_whole};
use crate::long::List;
use crate::object::{self, Object, Type, Value};
use crate::rules::Bug;
use crate::shard::Trouble;
use crate::shard::claims::Claims;
use crate::shard::copies::{Mode, Phase};
use crate::shard::heap::{Heap, Held, second};
use crate::shard::reach::Reach;
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Epochs, as far as they matter to this front end.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The store's, as last read.
    pub now: u64,
    /// Operations under way, by the epoch in which they began.
    pub under_way: BTreeMap<u64, u32>,
}

/// Retired objects that one write frees before it looks for a place.
const REAPED: usize = 64;
/// The share of a limit that eviction keeps free ahead of writes, and its bytes at most.
const HEADROOM: u64 = 16;
const MOST_HEADROOM: u64 = 32 << 20;

/// The bits of a member's word that tell how large its largest value's piece is.
pub(crate) const LARGEST: u64 = 0x3f_ffff << LARGEST_SHIFT;
const LARGEST_SHIFT: u32 = 32;
/// Bytes of a piece in reserve, at least.
const RESERVE: u32 = 64 << 10;

/// Why a key was taken out that no client has removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// It had ended.
    Ended,
    /// Its memory was wanted.
    Evicted,
}

/// Keys that this front end has taken out for such a reason.
#[derive(Debug, Default)]
pub struct Leaving {
    /// Whether they are to be told of.
    pub told: Cell<bool>,
    /// Since they were taken last, with their bytes, and whether there was no room for others.
    keys: RefCell<Vec<(Left, Vec<u8>)>>,
    bytes: Cell<usize>,
    lost: Cell<bool>,
}

/// Bytes of keys that are told of: a longer one does not fit a message.
pub const TOLD_KEY: usize = 1_000_000;
/// Bytes of keys that may wait to be told of.
const LEAVING: usize = 16 << 20;

impl Leaving {
    /// Notes a key of clients. Objects of the store's own are left out. If the end of a batch of
    /// messages were told, the telling would be another batch.
    pub(crate) fn push(&self, left: Left, kind: Type, key: &[u8]) {
        let own = matches!(kind, Type::Message | Type::Lock | Type::Verdict | Type::Vacant | Type::Segment);
        if !self.told.get() || key.len() >= TOLD_KEY || own || blocks::is_own(key) {
            return;
        }
        let bytes = self.bytes.get() + key.len() + 64;
        if bytes > LEAVING {
            self.lost.set(true);
            return;
        }
        self.bytes.set(bytes);
        self.keys.borrow_mut().push((left, key.to_vec()));
    }

    /// The keys since the last call, and whether others are missing.
    pub(crate) fn take(&self) -> (Vec<(Left, Vec<u8>)>, bool) {
        self.bytes.set(0);
        (self.keys.take(), self.lost.take())
    }
}

/// One front end's memory in one shard.
#[derive(Debug)]
pub struct Space {
    pub(crate) reach: Rc<Reach>,
    /// Milliseconds since 1970; the driver keeps it.
    pub now_ms: Cell<u64>,
    /// Bytes of pieces that all front ends together may hold.
    pub limit: Cell<u64>,
    /// Bytes of pieces that the others held when they last said so.
    pub others: Cell<u64>,
    /// Bytes that the others are asked to give back to the node, and until when they are not asked
    /// again.
    pub(crate) wanted: Cell<u64>,
    pub(crate) ask_ms: Cell<u64>,
    /// Bytes that others asked for: this front end takes no piece instead of them.
    pub(crate) promised: Cell<u64>,
    /// The node had no piece left although the limit allowed one: here, and at others that ask.
    pub(crate) node_full: Cell<bool>,
    pub(crate) others_lack: Cell<bool>,
    /// Bytes of own pieces when others began to ask.
    asked_at: Cell<Option<u64>>,
    /// There are other front ends, or there were. They may have replaced objects of this one.
    pub(crate) company: Cell<bool>,
    /// A search for such objects is under way, and when the next may begin: see
    /// [`crate::shard::near::Near::lease`].
    pub(crate) searching: Cell<u32>,
    /// Writes that have pieces given up ([`crate::shard::evict`]).
    pub(crate) giving: Cell<u32>,
    /// Other front ends that are alive, as last read.
    pub(crate) fronts: Cell<u64>,
    /// Bytes of the piece of their largest value.
    pub(crate) largest: Cell<u32>,
    /// Their states and heartbeats.
    pub(crate) beats: RefCell<Vec<(u64, u64)>>,
    pub(crate) search_ms: Cell<u64>,
    /// Bytes of an object at most, and of an extent. Longer strings are long values.
    pub longest: Cell<u64>,
    /// Writes that wait for memory to come back.
    pub(crate) pressed: Cell<u32>,
    /// A piece is kept in reserve, if the node has one.
    keeps: Cell<bool>,
    /// Keys that have ended or were evicted.
    pub leaving: Leaving,
    /// The store's epoch when this front end first read it after the second node's end.
    alone_since: Cell<Option<u64>>,
    pub(crate) heap: RefCell<Heap>,
    claims: Claims,
    pub(crate) epochs: RefCell<Epochs>,
}

/// An operation under way: what it has seen is not reused before it ends.
#[derive(Debug)]
pub struct Section {
    space: Rc<Space>,
    /// The epoch in which it began.
    pub epoch: u64,
    phase: usize,
}

impl Drop for Section {
    fn drop(&mut self) {
        self.space.reach.copies.leave(self.phase);
        let mut epochs = self.space.epochs.borrow_mut();
        if let Some(count) = epochs.under_way.get_mut(&self.epoch) {
            *count -= 1;
            if *count == 0 {
                epochs.under_way.remove(&self.epoch);
            }
        }
    }
}

impl Space {
    pub(crate) fn new(reach: &Rc<Reach>) -> Space {
        Space {
            reach: Rc::clone(reach),
            now_ms: Cell::new(0),
            limit: Cell::new(u64::MAX),
            others: Cell::new(0),
            wanted: Cell::new(0),
            ask_ms: Cell::new(0),
            promised: Cell::new(0),
            node_full: Cell::new(false),
            others_lack: Cell::new(false),
            asked_at: Cell::new(None),
            company: Cell::new(false),
            searching: Cell::new(0),
            giving: Cell::new(0),
            fronts: Cell::new(0),
            largest: Cell::new(0),
            beats: RefCell::default(),
            search_ms: Cell::new(0),
            longest: Cell::new(MAX_OBJECT),
            pressed: Cell::new(0),
            keeps: Cell::new(false),
            leaving: Leaving::default(),
            alone_since: Cell::new(None),
            heap: RefCell::default(),
            claims: Claims::default(),
            epochs: RefCell::default(),
        }
    }

    /// Begins an operation.
    pub fn section(self: &Rc<Space>) -> Section {
        let mut epochs = self.epochs.borrow_mut();
        let epoch = epochs.now;
        *epochs.under_way.entry(epoch).or_default() += 1;
        Section { space: Rc::clone(self), epoch, phase: self.reach.copies.enter() }
    }

    /// Holds a place for an object of `bytes`.
    pub(crate) async fn hold(&self, io: &Io, bytes: u64) -> Result<Held, Trouble> {
        if bytes > MAX_OBJECT {
            return Err(Trouble::TooLarge);
        }
        self.hold_class(io, class_of(bytes), bytes).await
    }

    /// [`Space::hold`] for an object of this type.
    pub(crate) async fn hold_of(&self, io: &Io, kind: Type, bytes: u64) -> Result<Held, Trouble> {
        if bytes > MAX_OBJECT {
            return Err(Trouble::TooLarge);
        }
        self.hold_class(io, object::class_of(kind, bytes), bytes).await
    }

    /// Holds a place of this class.
    pub(crate) async fn hold_class(&self, io: &Io, class: u8, bytes: u64) -> Result<Held, Trouble> {
        let Some(held) = self.hold_free(class, bytes) else { return Box::pin(self.hold_more(io, class, bytes)).await };
        Ok(held)
    }

    /// Holds a place of this class, if one is free.
    pub(crate) fn hold_free(&self, class: u8, bytes: u64) -> Option<Held> {
        let (now, mut more) = (self.epochs.borrow().now, true);
        while more {
            // A few at a time: a write must not wait for all that were retired at once.
            more = self.heap.borrow_mut().reap_some(now, REAPED);
            if let Some(held) = self.heap.borrow_mut().take_but(self.left(), class, bytes) {
                return Some(held);
            }
        }
        None
    }

    /// [`Space::hold`] when no place is free.
    async fn hold_more(&self, io: &Io, class: u8, bytes: u64) -> Result<Held, Trouble> {
        // Not every caller has a section.
        let _phase = Phase::new(&self.reach.copies);
        loop {
            // The epoch may have gone on while a piece was claimed.
            let epoch = self.epochs.borrow().now;
            self.heap.borrow_mut().reap_some(epoch, 0);
            if let Some(held) = self.heap.borrow_mut().take_but(self.left(), class, bytes) {
                return Ok(held);
            }
            if !is_whole(class) && self.claims.wait(io, class).await? {
                continue;
            }
            let claiming = self.claims.begin(class);
            let wanted = self.heap.borrow().piece_for(class, bytes).max(self.claims.wanted(class));
            let smallest = Heap::default().piece_for(class, bytes);
            if u64::from(smallest) > self.limit.get() {
                return Err(Trouble::Beyond);
            }
            let mut taken = None;
            for size in [wanted, smallest] {
                taken = self.claim(io, Kind::Objects, class, size).await;
                if taken.is_some() {
                    break;
                }
            }
            let Some((at, size)) = taken else {
                // A piece that another class does not need any more makes room for one of this.
                let spare = self.heap.borrow_mut().spare();
                let Some((spare, _)) = spare else {
                    claiming.refused();
                    return Err(Trouble::Full);
                };
                self.reach.release(io, spare).await;
                continue;
            };
            self.heap.borrow_mut().add(at, size, class);
        }
    }

    /// Free places of each size that are left to writes which give memory back. A store that evicts
    /// needs none.
    pub(crate) fn left(&self) -> usize {
        usize::from(self.limit.get() == u64::MAX)
    }

    /// Holds a place for an object of `bytes` that goes in place of one of the class `old`, which has as
    /// many bytes at least. In a full store that does not evict it is of the reserve (`heap/reserve.rs`).
    pub(crate) async fn hold_instead(&self, io: &Io, bytes: u64, old: u8) -> Result<Held, Trouble> {
        match self.hold(io, bytes).await {
            Err(Trouble::Full) if self.left() > 0 => {
                Box::pin(self.hold_reserved(io, class_of(bytes), bytes, old)).await.ok_or(Trouble::Full)
            }
            held => held,
        }
    }

    async fn hold_reserved(&self, io: &Io, class: u8, bytes: u64, old: u8) -> Option<Held> {
        let _phase = Phase::new(&self.reach.copies);
        if class == EXTENT {
            return None;
        }
        let held = self.heap.borrow_mut().take_up_to(old, class, bytes);
        if held.is_some() {
            return held;
        }
        let unused = self.heap.borrow_mut().take_unused(class, bytes);
        let Some((at, held)) = unused else { return self.heap.borrow_mut().take_up_to(u8::MAX, class, bytes) };
        // Behind its entry in the heap, whose place is held: so it is not lost if this operation ends here.
        self.own(io, at, Kind::Objects, class).await;
        Some(held)
    }

    /// Bytes of the piece of this front end's largest value, if the store does not evict: in [`LARGEST`].
    pub(crate) fn tells_largest(&self) -> u64 {
        if self.left() > 0 { u64::from(self.heap.borrow().largest()) << LARGEST_SHIFT } else { 0 }
    }

    /// Has a piece in reserve, if the store does not evict and the node has one: of as many bytes as the
    /// largest value of any front end's that has a piece, if that can be had.
    pub async fn keep_reserve(&self, io: &Io) {
        let (kept, wanted) = {
            let heap = self.heap.borrow();
            (heap.kept_bytes(), heap.reserve().max(self.largest.get()).min(*PIECES.end()))
        };
        self.keeps.set(self.left() > 0);
        if !self.keeps.get() || kept >= wanted {
            return;
        }
        let _phase = Phase::new(&self.reach.copies);
        let mut bytes = wanted;
        while bytes > kept && bytes >= RESERVE {
            if let Some((at, bytes)) = self.claim(io, Kind::Objects, EXTENT, bytes).await {
                let smaller = self.heap.borrow_mut().take_kept();
                self.heap.borrow_mut().keep(at, bytes);
                if let Some(at) = smaller {
                    self.reach.release(io, at).await;
                }
                break;
            }
            bytes /= 2;
        }
    }

    /// Takes a piece from the node and writes down whose it is.
    async fn claim(&self, io: &Io, kind: Kind, class: u8, bytes: u32) -> Option<(At, u32)> {
        // Two that ask do not wait for each other.
        let promised = if self.wanted.get() > 0 { 0 } else { self.promised.get() };
        let all = self.heap.borrow().sizes().all + self.others.get();
        let allowed = (all + promised).saturating_add(u64::from(bytes)) <= self.limit.get();
        self.node_full.set(false);
        if !allowed {
            return None;
        }
        let node = self.reach.node;
        let Some(Answer::Place(at)) = self.reach.verbs(io, vec![Verb::Alloc { node, bytes }]).await.pop() else {
            self.node_full.set(true);
            return None;
        };
        self.own(io, at, kind, class).await;
        Some((at, bytes))
    }

    /// Writes down whose a piece is, and what it has.
    async fn own(&self, io: &Io, at: At, kind: Kind, class: u8) {
        let words = [self.reach.owner(kind, class).word(self.reach.secret, at), Owner::second(self.reach.secret, at)];
        self.reach.verbs(io, vec![Verb::Write { at, bytes: Rc::new(words.map(u64::to_le_bytes).concat()) }]).await;
    }

    /// Gives pieces of which nothing is used back to the node.
    pub async fn trim(&self, io: &Io) {
        loop {
            let spare = self.heap.borrow_mut().spare();
            let Some((at, bytes)) = spare else { return };
            if self.keeps.get() && bytes >= RESERVE && self.heap.borrow().kept_bytes() == 0 {
                // The reserve has been used. A full node would give this one to another write.
                let _phase = Phase::new(&self.reach.copies);
                self.heap.borrow_mut().keep(at, bytes);
                self.own(io, at, Kind::Objects, EXTENT).await;
                continue;
            }
            self.reach.release(io, at).await;
        }
    }

    /// The object for a value, and its slot.
    pub(crate) fn made(&self, hash: Hash, key: &[u8], value: &Value, held: &Held) -> (Object, Slot) {
        let object = Object::new(hash, key, value, held.version, (self.now_ms.get() / 1000) as u32);
        if value.kind == Type::Long
            && let Some(list) = List::decode(&value.bytes, self.reach.node)
        {
            let extents = list.extents.iter().map(|extent| extent.at);
            self.heap.borrow_mut().lists(held.at, list.number, hash.0, extents);
        }
        if value.kind == Type::Parts {
            self.heap.borrow_mut().lists_segments(object.clone(), held.at);
        }
        (object, Slot::new(hash.fingerprint(), held.class, held.version, held.at))
    }

    /// The object is in the index now, in this slot.
    pub(crate) fn linked(&self, at: At, hash: Hash, value: &Value, slot_at: At) {
        let mut heap = self.heap.borrow_mut();
        heap.linked(at, hash.0, second(value.expiry), slot_at);
        if value.kind == Type::Long {
            heap.linked_list(at);
        }
    }

    /// Notes that others want this many bytes, as a tick has found. `full`: the node has none left.
    pub(crate) fn is_asked(&self, wanted: u64, full: bool, largest: u64) {
        self.largest.set((largest >> LARGEST_SHIFT) as u32);
        let began = || self.asked_at.get().unwrap_or_else(|| self.bytes());
        self.asked_at.set((wanted > 0).then(began));
        self.promised.set(wanted);
        self.others_lack.set(full);
    }

    /// Bytes of own pieces to give up for what others want. An owner gives as large a part as it
    /// has of all. Below the limit there is room, unless the node has none: then what was given
    /// since they began to ask counts.
    pub(crate) fn owes(&self, wanted: u64) -> u64 {
        let (heap, limit) = (self.heap.borrow(), self.limit.get());
        let own = heap.sizes().all;
        let all = own + self.others.get();
        let (lack, given) = match self.others_lack.get() {
            true => (wanted, self.asked_at.get().unwrap_or(own).saturating_sub(own)),
            false => (wanted.saturating_sub(limit.saturating_sub(all)), 0),
        };
        let part = (u128::from(lack) * u128::from(own)).div_ceil(u128::from(all.max(1)));
        (part as u64).saturating_sub(given).saturating_sub(heap.closing_bytes())
    }

    /// Bytes to evict before memory is full; 0: there is room, or no limit.
    pub(crate) fn lacks(&self) -> u64 {
        let limit = self.limit.get();
        if limit == u64::MAX {
            return 0;
        }
        let heap = self.heap.borrow();
        if heap.sizes().all == 0 {
            // Victims would be others'.
            return 0;
        }
        let room =
            limit.saturating_sub(heap.sizes().all + self.others.get()) + heap.sizes().free + heap.sizes().retired;
        (limit / HEADROOM).min(MOST_HEADROOM).saturating_sub(room)
    }

    /// The store's epoch was read. `left`: the first node was known to be left alone before that.
    pub(crate) fn read_epoch(&self, left: bool, epoch: u64) {
        self.alone_since.set(if left { self.alone_since.get().or(Some(epoch)) } else { None });
    }

    /// Whether the first node has the shard, alone or while another is filled, and an operation may be under way that has read a
    /// decision of the second one. It may yet show that. So what shows does not tell garbage. It
    /// began in the epoch of the second's end at the latest, so it has ended two epochs later.
    pub(crate) fn may_show_more(&self) -> bool {
        let left =
            matches!(self.reach.copies.mode(), Mode::Alone(node) | Mode::Mending(node) if node == self.reach.node);
        let ended = || self.alone_since.get().is_some_and(|since| self.epoch() >= since + 2);
        left && !ended() && !self.reach.rules.get().broken(Bug::AdoptAtOnce)
    }

    /// Bytes of pieces that this front end holds.
    pub fn bytes(&self) -> u64 {
        self.heap.borrow().sizes().all
    }

    /// Bytes of places with objects to which the index refers, as far as is known, or will.
    pub(crate) fn used_bytes(&self) -> u64 {
        let sizes = self.heap.borrow().sizes();
        sizes.all.saturating_sub(sizes.free + sizes.retired)
    }

    /// Bytes that wait for the epoch.
    pub fn retired_bytes(&self) -> u64 {
        self.heap.borrow().sizes().retired
    }

    /// The epoch as last read.
    pub fn epoch(&self) -> u64 {
        self.epochs.borrow().now
    }
}

#[test]
fn keys_that_leave_are_kept_up_to_a_bound() {
    let leaving = Leaving::default();
    leaving.push(Left::Ended, Type::String, b"a");
    assert_eq!(leaving.take(), (Vec::new(), false));
    leaving.told.set(true);
    leaving.push(Left::Ended, Type::Message, b"a");
    leaving.push(Left::Ended, Type::Vacant, b"a");
    leaving.push(Left::Evicted, Type::String, b"farmem:part:a");
    assert_eq!(leaving.take(), (Vec::new(), false));
    leaving.push(Left::Ended, Type::String, &[b'b'; TOLD_KEY]);
    (0..16).for_each(|_| leaving.push(Left::Evicted, Type::String, &[b'c'; TOLD_KEY - 1]));
    assert!(matches!(leaving.take(), (keys, false) if keys.len() == 16));
    (0..20).for_each(|_| leaving.push(Left::Evicted, Type::String, &[b'c'; TOLD_KEY - 1]));
    assert!(matches!(leaving.take(), (keys, true) if keys.len() == 16));
    assert_eq!(leaving.take(), (Vec::new(), false));
}
