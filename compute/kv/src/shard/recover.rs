//! Reuse of memory that dead front ends have left, and of objects that other front ends have
//! replaced or deleted.
//!
//! An object is live exactly when the index refers to it. So a piece whose owner is gone is
//! *adopted*: one CAS of its owner word, then each of its objects is looked up. An object to which
//! nothing refers is reused after the grace. It was never linked, or some front end took it out of
//! the index.
//!
//! The same lookup tells an owner which of its objects others have replaced or deleted:
//! *scavenging*. And an owner knows when its objects end, and takes them out of the index then:
//! *sweeping*.

mod count;
mod referred;
mod scavenge;

pub use count::Count;

use crate::blocks::{is_lent, is_part};
use crate::layout::{
    At, EXTENT, HEAD_BYTES, Hash, Kind, LARGE, MEMBERS, Member, Owner, PIECE_HEADER, SLOTS, Slot, UNIT, class_bytes,
    word,
};
use crate::long::List;
use crate::object::{Header, Object, Type};
use crate::rules::Bug;
use crate::shard::Trouble;
use crate::shard::copies::{Counted, Words};
use crate::shard::heap::{Place, SEGMENT, Use, second};
use crate::shard::index::{Index, brief};
use crate::shard::member::{LEASE_MS, is_there, line_word, state};
use crate::shard::near::Near;
use crate::shard::reach::Reach;
use crate::shard::space::{Left, Space};
use crate::task::{Answer, Io, Verb, join};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::rc::Rc;

/// Objects that are looked up at once.
const AT_ONCE: usize = 64;
/// Until pieces are looked at again that were left because a node has ended, in ms.
const SOON_MS: u64 = 20;

/// Lines, states and heartbeats of members that are alive.
type Beats = Vec<(usize, u64, u64)>;

/// Those of all but one.
fn beats(head: &[u8], but: Member) -> Beats {
    let others = (0..MEMBERS).filter(|&line| line != usize::from(but.line) && state(head, line).is_alive());
    others.map(|line| (line, state(head, line).0, line_word(head, line, 1))).collect()
}

/// How often a place was used, by its bytes at both nodes. A node that came later may not have it.
fn later(decided: &[u8], shown: &[u8]) -> u16 {
    let of = |bytes: &[u8]| Header::peek(bytes).map_or(0, |header| header.version);
    if decided.iter().all(|&byte| byte == 0) {
        return of(shown);
    }
    of(decided)
}

/// Memory of one shard that others have left.
#[derive(Debug)]
pub struct Recovery {
    reach: Rc<Reach>,
    space: Rc<Space>,
    near: Rc<Near>,
    index: Rc<Index>,
    /// Pieces without an owner, by when they were seen first, and the heartbeats of that time.
    suspects: RefCell<BTreeMap<At, (u64, Rc<Beats>)>>,
    /// Keys of blocks' parts in memory that was taken over.
    parts: RefCell<Vec<Vec<u8>>>,
    /// Pieces were left to a later [`Recovery::adopt`], because a node has ended just now.
    postponed: Cell<bool>,
}

impl Recovery {
    pub(crate) fn new(reach: &Rc<Reach>, space: &Rc<Space>, near: &Rc<Near>, index: &Rc<Index>) -> Recovery {
        Recovery {
            reach: Rc::clone(reach),
            space: Rc::clone(space),
            near: Rc::clone(near),
            index: Rc::clone(index),
            suspects: RefCell::default(),
            parts: RefCell::default(),
            postponed: Cell::new(false),
        }
    }

    /// The slots of a hash's two buckets, in a table that does not forward. Decisions of the second
    /// node are shown first.
    async fn judged(&self, io: &Io, hash: Hash) -> Vec<(At, Slot)> {
        loop {
            let table = self.index.trie.borrow().table(hash);
            let buckets =
                hash.buckets(self.index.geometry.buckets).map(|bucket| self.index.geometry.bucket(table, bucket));
            // Decisions of front ends that have died show after this.
            let rules = self.reach.rules.get();
            let hidden = self.reach.copies.differing(io, rules, &buckets.map(|at| (at, UNIT as u32))).await;
            if !hidden.is_empty() {
                // They change keys behind the near cache, which may answer by a lease.
                let _writing = self.near.writing(None);
                for at in hidden {
                    self.reach.copies.settle(io, rules, Words::Index, at).await;
                }
            }
            let mut verbs: Vec<Verb> = buckets.map(|at| Verb::Read { at, len: UNIT as u32 }).into();
            // The forward word behind the slots: if it is 0, the slots were valid.
            verbs.push(Verb::Read { at: table, len: 8 });
            let answers = self.reach.verbs(io, verbs).await;
            let [Answer::Bytes(first), Answer::Bytes(second), Answer::Bytes(forward)] = &answers[..] else { continue };
            let slots = [first, second]
                .into_iter()
                .zip(buckets)
                .flat_map(|(bytes, bucket)| (0..SLOTS).map(move |n| (bucket + n as u64 * 8, Slot(word(bytes, n)))));
            let slots: Vec<(At, Slot)> = slots.collect();
            if slots.iter().any(|(_, slot)| slot.is_frozen()) {
                // READs of a batch may be carried out in another order: read it again, alone.
                let forward = word(&self.reach.read(io, table, 8).await, 0).max(word(forward, 0));
                if forward != 0 {
                    self.index.trie.borrow_mut().learn(table, forward);
                    continue;
                }
            }
            // What a lock hides is as live as its transaction decides.
            if slots.iter().any(|(_, slot)| slot.is_locked()) && !self.reach.rules.get().broken(Bug::JudgeUnderLocks) {
                match self.index.unlock_all(io, &slots).await {
                    Err(_) if self.reach.shut_out.get() => return slots,
                    Err(_) => io.pause(1).await,
                    Ok(_) => {}
                }
                continue;
            }
            return slots;
        }
    }

    /// The slot that refers to the object at `at`, plain or pending.
    async fn referrer(&self, io: &Io, hash: Hash, at: At) -> Option<(At, Slot)> {
        let slots = self.judged(io, hash).await;
        slots.into_iter().find(|(_, slot)| slot.is_used() && slot.at(self.reach.node) == at)
    }

    /// Whether the object at `at` is live. An insert of it that was never decided is undone.
    async fn is_live(&self, io: &Io, hash: Hash, at: At) -> bool {
        // A place that is copied on the way is not used again meanwhile.
        let _section = self.space.section();
        loop {
            match self.referrer(io, hash, at).await {
                None => return false,
                Some((slot_at, slot)) if !slot.is_pending() => {
                    if !slot.is_frozen() {
                        self.space.heap.borrow_mut().is_in(at, hash.0, slot_at);
                    }
                    return true;
                }
                Some((slot_at, slot)) if !slot.is_frozen() => {
                    let new = self.reach.empty().0;
                    self.reach.verbs(io, vec![Verb::Cas { at: slot_at, old: slot.0, new }]).await;
                }
                // The split passes over it.
                Some(_) => return false,
            }
        }
    }

    async fn are_live(&self, io: &Io, objects: &[(At, u64)]) -> Vec<bool> {
        let look = |&(at, hash): &(At, u64)| -> Pin<Box<dyn Future<Output = bool> + '_>> {
            Box::pin(self.is_live(io, Hash(hash), at))
        };
        join(objects.iter().map(look).collect()).await
    }

    /// Takes own objects that have ended out of the index, about `most` of them; how many were in
    /// it, and whether there may be more. An object never changes, so what its owner knows of its
    /// end holds. No object is read unless keys that end are told of, and none is looked up that
    /// has not ended.
    pub async fn sweep(&self, io: &Io, most: usize) -> (usize, bool) {
        let now_s = (self.space.now_ms.get() / 1000).min(u64::from(u32::MAX)) as u32;
        let ended = self.space.heap.borrow_mut().ended(now_s, most);
        let mut swept = 0;
        for some in ended.chunks(AT_ONCE) {
            // While it lives no place is used again, so what was looked up is what is retired.
            let _section = self.space.section();
            // The place may have been used again since, even for the same key.
            let over = |&&(at, hash): &&(At, u64)| self.space.heap.borrow_mut().has_ended(at, hash, now_s);
            let sweep = |&(at, hash): &(At, u64)| -> Pin<Box<dyn Future<Output = bool> + '_>> {
                Box::pin(self.sweep_one(io, Hash(hash), at))
            };
            let some: Vec<_> = some.iter().filter(over).map(sweep).collect();
            swept += join(some).await.into_iter().filter(|out| *out).count();
        }
        (swept, ended.len() >= most)
    }

    /// Takes an own object that has ended out of the index; whether it was there. A slot that
    /// changes at the same time is left to the next sweep.
    ///
    /// The near cache forgets the key. Otherwise a key that is gone would be read after the clock
    /// went back behind its end.
    async fn sweep_one(&self, io: &Io, hash: Hash, at: At) -> bool {
        let tells = !self.reach.rules.get().broken(Bug::SweepUntold);
        let _writing = tells.then(|| self.near.writing(Some(hash)));
        if tells {
            self.near.cache.borrow_mut().forget_hash(hash);
        }
        match self.referrer(io, hash, at).await {
            // Another front end has taken it out.
            None => {
                let epoch = self.space.epoch() + 1;
                self.space.heap.borrow_mut().retire(at, epoch);
                false
            }
            Some((_, slot)) if slot.is_pending() => false,
            Some((_, slot)) if slot.is_frozen() => {
                let table = self.index.trie.borrow().table(hash);
                // A table that cannot be split is left as it is.
                let _ = self.index.split(io, table, hash).await;
                false
            }
            Some((slot_at, slot)) => {
                let told = self.space.leaving.told.get();
                let object = if told { self.index.briefs(io, &[slot]).await.pop().flatten() } else { None };
                let empty = self.reach.empty();
                let out = matches!(self.reach.swap(io, slot_at, slot.0, empty.0).await, Ok(Ok(())));
                if out {
                    self.space.retire(slot);
                    object.iter().for_each(|object| self.space.leaving.push(Left::Ended, object.kind(), object.key()));
                }
                out
            }
        }
    }

    /// Takes over the pieces of front ends that are gone; how many. `now_ms` is of a clock that
    /// never goes back. After a node's end that must wait ([`Recovery::again_ms`]): a helper may yet
    /// show a slot whose object nothing refers to now.
    pub async fn adopt(&self, io: &Io, now_ms: u64) -> Result<usize, Trouble> {
        self.postponed.set(self.space.may_show_more());
        if self.postponed.get() {
            return Ok(0);
        }
        let members = self.reach.read(io, self.reach.root, HEAD_BYTES as u32).await;
        let beats = Rc::new(beats(&members, self.reach.me));
        let (mut adopted, mut strange) = (0, BTreeMap::new());
        for (at, bytes, owner, third) in self.pieces(io).await {
            // A node has ended meanwhile. A piece that is taken now would be handed back.
            if self.postponed.get() {
                break;
            }
            match owner {
                Some(owner) if owner.kind == Kind::Root || is_there(&members, owner.member) => {}
                Some(owner) => adopted += usize::from(self.adopt_piece(io, at, bytes, owner, third).await?),
                None => {
                    let known = self.suspects.borrow().get(&at).cloned();
                    let (first, then) = known.unwrap_or_else(|| (now_ms, Rc::clone(&beats)));
                    strange.insert(at, (first, Rc::clone(&then)));
                    // A live front end needs less time from taking a piece to writing its owner, and from
                    // clearing that to giving the piece back. One that stands still may yet do either.
                    let stands = |beat: &&(usize, u64, u64)| beats.contains(beat);
                    if now_ms.saturating_sub(first) > 2 * LEASE_MS && !then.iter().any(|beat| stands(&beat)) {
                        self.reach.verbs(io, vec![Verb::Free { at }]).await;
                        strange.remove(&at);
                        adopted += 1;
                    }
                }
            }
        }
        self.suspects.replace(strange);
        self.reach.counters.adopted.set(self.reach.counters.adopted.get() + adopted as u64);
        Ok(adopted)
    }

    /// Keys of blocks' parts that front ends have left which are gone. They may have had no block yet.
    pub(crate) fn parts_left(&self) -> Vec<Vec<u8>> {
        self.parts.take()
    }

    /// In how many ms another [`Recovery::adopt`] can do what the last one could not, if there is
    /// such: pieces without an owner are to be seen a second time, or operations must end first.
    pub fn again_ms(&self) -> Option<u64> {
        match self.postponed.get() {
            true => Some(SOON_MS),
            false => (!self.suspects.borrow().is_empty()).then_some(2 * LEASE_MS + 500),
        }
    }

    /// The node's pieces, but for those that begin before the root: first byte, length, owner,
    /// third word.
    async fn pieces(&self, io: &Io) -> Vec<(At, u32, Option<Owner>, u64)> {
        let verb = Verb::Pieces { node: self.reach.node };
        let Some(Answer::Pieces(pieces)) = self.reach.verbs(io, vec![verb]).await.pop() else { return Vec::new() };
        let mut all = Vec::with_capacity(pieces.len());
        for some in pieces.chunks(256) {
            let reads = some.iter().map(|&(at, _)| Verb::Read { at, len: 24 }).collect();
            for (&(at, len), answer) in some.iter().zip(self.reach.verbs(io, reads).await) {
                let Answer::Bytes(bytes) = answer else { continue };
                all.push((
                    at,
                    len,
                    Owner::of(word(&bytes, 0), word(&bytes, 1), self.reach.secret, at),
                    word(&bytes, 2),
                ));
            }
        }
        all
    }

    /// Whether a forward word leads to a pair of tables. If the dead front end's CAS of it was
    /// decided, it is shown first.
    async fn leads_to(&self, io: &Io, forward: At, pair: At) -> bool {
        let rules = self.reach.rules.get();
        // Whoever adopts alone later waits for this operation.
        let _section = self.space.section();
        if !rules.broken(Bug::FreeUnshown) {
            self.reach.copies.settle(io, rules, Words::Index, forward).await;
        }
        word(&self.reach.read(io, forward, 8).await, 0) == pair
    }

    /// Whether a node has ended so lately that what shows does not tell garbage.
    fn must_wait(&self) -> bool {
        self.postponed.set(self.postponed.get() || self.space.may_show_more());
        self.postponed.get()
    }

    /// Gives a piece back to the front end that is gone: a node has ended while it was judged. A later
    /// [`Recovery::adopt`] finds it again.
    async fn hand_back(&self, io: &Io, at: At, mine: u64, its: u64) -> Result<bool, Trouble> {
        self.reach.take_over(io, at, mine, its).await;
        Ok(false)
    }

    /// [`Recovery::adopt_piece`] of a piece of a long string, which has the first owner now and had the
    /// second.
    async fn adopt_extent(&self, io: &Io, at: At, bytes: u32, [mine, its]: [u64; 2]) -> Result<bool, Trouble> {
        let header = self.reach.read(io, at, 32).await;
        let (number, hash) = (word(&header, 2), word(&header, 3));
        let live = self.refers_to_long(io, Hash(hash), number).await;
        if self.must_wait() {
            return self.hand_back(io, at, mine, its).await;
        }
        let (place, epoch) = (at + PIECE_HEADER, self.space.epoch() + 1);
        let mut heap = self.space.heap.borrow_mut();
        heap.adopt(at, bytes, EXTENT, vec![Place { used: Use::Linked, version: 0, uses: 0, ends: 0, hash, slot: 0 }]);
        match live {
            true => heap.adopt_extent(place, number, hash),
            false => {
                heap.retire(place, epoch);
            }
        }
        Ok(true)
    }

    /// Takes a piece over from a front end that is gone. `third`: of a piece with tables, the address
    /// of the word that leads to them. False: it is in use, or another front end was first.
    ///
    /// A piece with tables is in use if that word leads to it, and is released if not. A piece of a
    /// long string is kept if a list refers to it. Of a piece with objects each place is looked up:
    /// those that the index does not refer to are retired, because others may still read them.
    async fn adopt_piece(&self, io: &Io, at: At, bytes: u32, owner: Owner, third: u64) -> Result<bool, Trouble> {
        if owner.kind == Kind::Tables && (self.leads_to(io, third, at).await || self.must_wait()) {
            // Tables in use need no living owner.
            return Ok(false);
        }
        // A new node gets the pieces that heaps have. Its filling waits until a heap has this one.
        let _adopting = Counted::new(&self.reach.copies.mending.adopting);
        let mine = Owner { member: self.reach.me, ..owner };
        let (old, new) = (owner.word(self.reach.secret, at), mine.word(self.reach.secret, at));
        if !self.reach.take_over(io, at, old, new).await {
            return Ok(false);
        }
        if owner.kind == Kind::Tables {
            self.reach.release(io, at).await;
            return Ok(true);
        }
        if owner.class == EXTENT {
            return Box::pin(self.adopt_extent(io, at, bytes, [new, old])).await;
        }
        let step = if owner.class == LARGE { u64::from(bytes) - PIECE_HEADER } else { class_bytes(owner.class) };
        // At the node that decides every object has its bytes to which the index there refers.
        let content = self.reach.read_decided(io, at, bytes).await;
        // Without a second node that is what shows, too.
        let shown = if self.reach.copies.is_double() { self.reach.read(io, at, bytes).await } else { Vec::new() };
        let count = (u64::from(bytes) - PIECE_HEADER) / step;
        let place_at = |n: u64| at + PIECE_HEADER + n * step;
        let mut places = Vec::new();
        let (mut sound, mut lists, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut heads, mut segments) = (Vec::new(), Vec::new());
        let rules = self.reach.rules.get();
        for n in 0..count {
            let start = (PIECE_HEADER + n * step) as usize;
            let object = content.get(start..start + step as usize).unwrap_or_default();
            let version = later(object, shown.get(start..start + step as usize).unwrap_or_default());
            // A damaged block is still its slot's: its place is not free.
            let damaged = || brief::of(object).filter(is_lent);
            let object = Object::decode(object.to_vec()).or_else(damaged);
            let verdict = object.as_ref().filter(|object| object.kind() == Type::Verdict);
            if let Some(verdict) = verdict.filter(|_| !self.reach.rules.get().broken(Bug::DropLocks)) {
                self.index.end_verdict(io, place_at(n), verdict).await?;
            }
            let hash = object.as_ref().map(|object| object.hash().0);
            let ends = second(object.as_ref().and_then(Object::expiry));
            let is_segment = object.as_ref().is_some_and(|object| object.kind() == Type::Segment)
                && !rules.broken(Bug::JudgeSegmentsBySlots);
            if is_segment { &mut segments } else { &mut sound }.extend(hash.map(|hash| (place_at(n), hash)));
            heads.extend(object.clone().filter(|object| object.kind() == Type::Parts).map(|head| (place_at(n), head)));
            parts.extend(object.as_ref().filter(|one| is_part(one.key())).map(|part| part.key().to_vec()));
            let list = object.filter(|object| object.kind() == Type::Long);
            lists.extend(list.and_then(|list| Some((place_at(n), List::decode(list.value(), self.reach.node)?))));
            let slot = if is_segment { SEGMENT } else { 0 };
            places.push(Place { used: Use::Linked, version, uses: 0, ends, hash: hash.unwrap_or(0), slot });
        }
        let mut live = HashMap::new();
        for some in sound.chunks(AT_ONCE) {
            let answers = self.are_live(io, some).await;
            live.extend(some.iter().map(|(at, _)| *at).zip(answers));
        }
        match rules.broken(Bug::AdoptSegments) {
            true => live.extend(segments.iter().map(|&(at, _)| (at, true))),
            false => live.extend(self.live_segments(io, &segments).await.into_iter().map(|at| (at, true))),
        }
        if self.must_wait() {
            return self.hand_back(io, at, new, old).await;
        }
        self.parts.borrow_mut().extend(parts);
        let epoch = self.space.epoch() + 1;
        let mut heap = self.space.heap.borrow_mut();
        heap.adopt(at, bytes, owner.class, places);
        for (at, list) in lists.into_iter().filter(|(at, _)| live.get(at) == Some(&true)) {
            let hash = sound.iter().find(|(sound, _)| *sound == at).map_or(0, |(_, hash)| *hash);
            heap.lists(at, list.number, hash, list.extents.iter().map(|extent| extent.at));
            heap.linked_list(at);
        }
        for (at, head) in heads.into_iter().filter(|(at, _)| live.get(at) == Some(&true)) {
            heap.lists_segments(head, at);
        }
        // Others may still read what nothing refers to.
        for at in (0..count).map(place_at).filter(|at| live.get(at) != Some(&true)) {
            heap.retire(at, epoch);
        }
        Ok(true)
    }
}
