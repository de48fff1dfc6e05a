//! Eviction: which keys go when a store's memory is used up, and when.
//!
//! Evicted memory is of use again three epochs later ([`crate::shard::heap::GRACE`]). So the background
//! evicts before memory is full, as much ahead as writes take in that time
//! ([`Keyspace::make_headroom`]). A write then finds a free place and waits for nothing. A write
//! that finds none evicts itself, and waits ([`Keyspace::make_room`]). While a write waits, the
//! epoch is moved on in a hurry.
//!
//! Victims come from this front end's own memory: memory of another one is free only when that one
//! has found out. A front end that has little *asks* the others, by a word of its line in the root
//! piece. Each gives up whole pieces of its own ([`Keyspace::give`]): it evicts their objects, and
//! hands the pieces back to the node. Keys of other front ends are not evicted.
//!
//! A place of one size is of no use for another. So a write of a size of which there is no place has
//! whole pieces given up, too. Otherwise single keys go. Of a sample those go first that have ended,
//! then those that were not used here lately, then those that were written longest ago.

use crate::blocks;
use crate::keyspace::{Keyspace, count_one};
use crate::layout::{At, Hash, Slot};
use crate::object::Object;
use crate::shard::copies::Counted;
use crate::shard::heap::Heap;
use crate::shard::space::Left;
use crate::shard::{Shard, Trouble};
use crate::task::{Io, join};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Samples of keys that a write looks at, at most.
const SAMPLES: u32 = 64;
/// Keys of a sample, and how many of them go at most.
const SAMPLE: usize = 32;
const GO: usize = 4;
/// Keys that a write evicts.
const BY_A_WRITE: usize = 8;
/// Samples that the background takes at once, at most, and how often.
const AT_ONCE: usize = 16;
const ROUNDS: u32 = 64;
/// Between two searches for replaced objects, at least, in ms.
const SEARCH_MS: u64 = 250;
/// The share of the limit for which a front end that has little asks at once, and its bytes at most.
const ASK: u64 = 64;
/// However many writes wait, others are asked for no more than this: a piece for each comes in turn.
pub(crate) const MOST_ASKED: u64 = 2 << 20;
/// Pieces that cannot be emptied before giving ends.
const VAIN: u32 = 4;
/// How long it waits for the others, in ms. An idle one looks every 500 ms.
const ASK_MS: u32 = 3000;
/// Where nothing is evicted others give only what they find replaced. They have looked after so many signs
/// of each and so long: one that is asked shows itself every 10 ms.
const SIGNS: u64 = 12;
const LOOKED_MS: u32 = 200;
/// How often objects of a piece are evicted that goes back.
const PASSES: u32 = 3;
/// How long a write waits for memory to come back, in ms.
const PATIENCE_MS: u32 = 2000;

/// A key that this front end does not evict as long as it lives.
#[derive(Debug)]
pub(crate) struct Spared<'a>(&'a RefCell<Vec<Hash>>, Hash);

impl Drop for Spared<'_> {
    fn drop(&mut self) {
        let mut spared = self.0.borrow_mut();
        let own = spared.iter().position(|hash| *hash == self.1);
        if let Some(place) = own {
            spared.swap_remove(place);
        }
    }
}

/// An eviction under way; whether the key went.
type Going<'a> = Pin<Box<dyn Future<Output = Result<bool, Trouble>> + 'a>>;

/// Bytes that others are asked for as long as it lives.
struct Wanted<'a>(&'a Cell<u64>, u64);

impl<'a> Wanted<'a> {
    fn new(sum: &'a Cell<u64>, bytes: u64) -> Wanted<'a> {
        sum.set(sum.get() + bytes);
        Wanted(sum, bytes)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - self.1);
    }
}

impl Keyspace {
    /// Makes room, or some of it, for an object or extent of a class, of `len` bytes. Waits for
    /// retired memory to come back, if there is any. Else looks for replaced objects, asks other
    /// front ends, or evicts.
    pub(crate) async fn make_room(&self, io: &Io, shard: &Rc<Shard>, class: u8, len: u64) -> Result<(), Trouble> {
        count_one(&self.figures.full);
        let _pressed = Counted::new(&shard.space.pressed);
        if shard.space.retired_bytes() > 0 {
            // Memory is on its way back: the epoch has to go on.
            let reaped = || shard.space.heap.borrow().sizes().reaped;
            let before = reaped();
            for _ in 0..PATIENCE_MS {
                io.pause(1).await;
                if reaped() > before {
                    return Ok(());
                }
            }
        }
        if self.search(io, shard, !self.evicts).await {
            return Ok(());
        }
        let piece = u64::from(Heap::default().piece_for(class, len));
        if self.ask(io, shard, piece).await {
            return Ok(());
        }
        if !self.evicts {
            return Err(Trouble::Full);
        }
        let has_class = shard.space.heap.borrow().has_class(class, piece);
        if !has_class && shard.space.giving.get() > 0 {
            // Another write has pieces given up, of which one may do for both.
            for _ in 0..PATIENCE_MS {
                io.pause(1).await;
                if shard.space.giving.get() == 0 {
                    return Ok(());
                }
            }
        } else if !has_class {
            let _giving = Counted::new(&shard.space.giving);
            if self.give(io, shard, piece).await? {
                return Ok(());
            }
        }
        let mut evicted = 0;
        for look in 0..SAMPLES {
            // All keys of a sample may be in use. Look for idle ones elsewhere first.
            match self.evict_some(io, shard, look < SAMPLES / 2).await? {
                Some(some) => evicted += some,
                None => break,
            }
            if evicted >= BY_A_WRITE {
                break;
            }
        }
        if evicted == 0 { Err(Trouble::Full) } else { Ok(()) }
    }

    /// Finds own objects that other front ends have replaced or removed; whether there were any.
    /// One search at a time. The next begins when eight times as long has passed as it took; a
    /// caller that would be refused waits for it.
    async fn search(&self, io: &Io, shard: &Rc<Shard>, waits: bool) -> bool {
        let (space, clock_ms) = (&shard.space, &shard.near.lease.now_ms);
        let not_now = || space.searching.get() > 0 || waits && clock_ms.get() < space.search_ms.get();
        let mut waited = 0;
        while space.company.get() && not_now() && waited < PATIENCE_MS {
            io.pause(1).await;
            waited += 1;
            if space.retired_bytes() > 0 {
                return true;
            }
        }
        let begun_ms = clock_ms.get();
        if !space.company.get() || not_now() || begun_ms < space.search_ms.get() {
            return false;
        }
        let _searching = Counted::new(&space.searching);
        let found = shard.recovery.scavenge(io).await;
        let took_ms = clock_ms.get() - begun_ms;
        space.search_ms.set(clock_ms.get() + (8 * took_ms).max(SEARCH_MS));
        found > 0
    }

    /// Asks the other front ends for memory, if this one has little or does not evict; whether there
    /// is more than before.
    async fn ask(&self, io: &Io, shard: &Rc<Shard>, piece: u64) -> bool {
        let (space, clock_ms) = (&shard.space, &shard.near.lease.now_ms);
        // Less than half of what a front end has in the mean.
        let has_little = 2 * (space.fronts.get() + 1) * space.bytes() < space.bytes() + space.others.get();
        if !space.company.get() || clock_ms.get() < space.ask_ms.get() || self.evicts && !has_little {
            return false;
        }
        let free = || space.limit.get().saturating_sub(space.bytes() + space.others.get());
        // With room for one piece at a time, each piece would take as long.
        let wanted = piece.max((space.limit.get() / ASK).min(MOST_ASKED));
        let _wanted = Wanted::new(&space.wanted, wanted);
        let (others, before) = (space.others.get(), free());
        let beats = space.beats.borrow().clone();
        let is_quiet = |&(state, beat): &(u64, u64)| beats.iter().any(|&(s, b)| s == state && beat < b + SIGNS);
        for waited in 0..ASK_MS {
            io.pause(1).await;
            if !self.evicts && waited >= LOOKED_MS && !space.beats.borrow().iter().any(is_quiet) {
                break;
            }
            // By then a tick has seen whether anybody is left.
            if waited > ASK_MS / 3 && space.fronts.get() == 0 {
                break;
            }
            if space.others.get() < others || free() >= before.saturating_add(piece) {
                return true;
            }
        }
        // They have nothing to give.
        space.ask_ms.set(clock_ms.get() + 2 * u64::from(ASK_MS));
        false
    }

    /// Gives own pieces of about `bytes` up, one after the other: evicts what they have. It is
    /// enough, too, if as many bytes of whole pieces were evicted: the extents of a long value go
    /// with its head. False: nothing has come of it.
    pub(crate) async fn give(&self, io: &Io, shard: &Rc<Shard>, bytes: u64) -> Result<bool, Trouble> {
        let heap = &shard.space.heap;
        let before = heap.borrow().sizes().whole;
        let is_enough = || heap.borrow().sizes().whole - before >= bytes;
        let (mut given, mut vain) = (0, 0);
        while given < bytes && !is_enough() && vain < VAIN {
            let Some(piece) = self.coldest(io, shard).await else { break };
            if !heap.borrow_mut().close(piece) {
                // A place of it was taken meanwhile.
                vain += 1;
                continue;
            }
            let size = heap.borrow().piece_bytes(piece).unwrap_or(0);
            let emptied = self.empty(io, shard, piece, &is_enough).await;
            if emptied.is_ok() && heap.borrow().linked_of(piece).is_empty() {
                given += u64::from(size);
            } else {
                // Some objects stay: pinned blocks, those that were changed meanwhile, or the rest.
                heap.borrow_mut().reopen(piece);
                vain += 1;
            }
            emptied?;
        }
        Ok(given > 0 || is_enough())
    }

    /// The piece to be given up, of a few: the one with the least that was used here lately. Of equal
    /// ones it is the one whose objects were written longest ago. A few objects speak for each piece.
    async fn coldest(&self, io: &Io, shard: &Rc<Shard>) -> Option<At> {
        let random = self.random(1 << 32) as u64;
        let candidates = shard.space.heap.borrow().candidates(random);
        let slots: Vec<Slot> = candidates.iter().flat_map(|candidate| candidate.some.iter().copied()).collect();
        let objects = {
            // While it lives no place is used again.
            let _section = shard.space.section();
            shard.index.briefs(io, &slots).await
        };
        let cache = shard.near.cache.borrow();
        let mut objects = objects.into_iter();
        let judged = candidates.iter().map(|candidate| {
            let some: Vec<Object> = objects.by_ref().take(candidate.some.len()).flatten().collect();
            let some: Vec<&Object> = some.iter().filter(|object| !self.has_ended(object)).collect();
            let count = some.len().max(1) as u64;
            let hot = some.iter().filter(|object| cache.is_hot(object.key(), object.hash())).count() as u64;
            let written = some.iter().map(|object| u64::from(object.written_s())).sum::<u64>() / count;
            ((candidate.used * hot / count, written, candidate.used), candidate.at)
        });
        judged.min().map(|(_, at)| at)
    }

    /// Evicts the objects of a closed piece, until it is enough.
    async fn empty(&self, io: &Io, shard: &Rc<Shard>, piece: At, is_enough: &dyn Fn() -> bool) -> Result<(), Trouble> {
        for _ in 0..PASSES {
            let slots = shard.space.heap.borrow().linked_of(piece);
            for some in slots.chunks(AT_ONCE) {
                if is_enough() {
                    return Ok(());
                }
                let objects = {
                    // While it lives no place is used again.
                    let _section = shard.space.section();
                    shard.index.briefs(io, some).await
                };
                let there = some.iter().zip(&objects).filter_map(|(slot, object)| Some((slot, object.as_ref()?)));
                let victims: Vec<_> = there.map(|(slot, object)| (slot.at(shard.reach.node), object)).collect();
                self.evict_all(io, &victims).await?;
            }
        }
        Ok(())
    }

    /// Does for others what a front end does that is asked for memory.
    pub async fn hand_over(&self, io: &Io, shard: &Rc<Shard>, wanted: u64) -> Result<(), Trouble> {
        self.search(io, shard, false).await;
        let owes = if self.evicts { shard.space.owes(wanted) } else { 0 };
        if owes > 0 {
            self.give(io, shard, owes).await?;
        }
        Ok(())
    }

    /// Evicts keys whose objects are at these places of own memory, side by side; how many went.
    async fn evict_all(&self, io: &Io, victims: &[(At, &Object)]) -> Result<usize, Trouble> {
        let mut all: Vec<Going<'_>> = Vec::with_capacity(victims.len());
        for &(at, victim) in victims {
            all.push(Box::pin(self.evict_one(io, at, victim)));
        }
        let went = join(all).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(went.into_iter().filter(|went| *went).count())
    }

    /// Keeps a key from being evicted here. The command that reads it needs room for what it makes
    /// of it.
    pub(crate) fn spare(&self, key: &[u8]) -> Spared<'_> {
        self.spared.borrow_mut().push(Hash::of(key));
        Spared(&self.spared, Hash::of(key))
    }

    /// Evicts a key whose object is at a place of own memory, unless it is pinned or spared;
    /// whether it did.
    async fn evict_one(&self, io: &Io, at: At, victim: &Object) -> Result<bool, Trouble> {
        if self.spared.borrow().contains(&victim.hash()) {
            return Ok(false);
        }
        let is_pinned = blocks::is_pinned(self, io, victim.key()).await?;
        let went = !is_pinned && blocks::evict(self, io, victim, at).await?;
        if went {
            self.evicted(victim);
        }
        Ok(went)
    }

    fn evicted(&self, victim: &Object) {
        count_one(&self.figures.evicted);
        self.shard(victim.key()).space.leaving.push(Left::Evicted, victim.kind(), victim.key());
    }

    /// Evicts before memory is full. False: it is of no use to go on at once.
    pub(crate) async fn make_headroom(&self, io: &Io, shard: &Rc<Shard>) -> Result<bool, Trouble> {
        let (mut vain, mut samples) = (0, 1);
        for _ in 0..ROUNDS {
            let before = shard.space.lacks();
            if before == 0 {
                return Ok(true);
            }
            let some = |_| -> Pin<Box<dyn Future<Output = Result<Option<usize>, Trouble>> + '_>> {
                Box::pin(self.evict_some(io, shard, vain < 2))
            };
            join((0..samples).map(some).collect()).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            // One sample may make room enough: objects may be large.
            samples = (2 * samples).min(AT_ONCE);
            vain = if shard.space.lacks() < before { 0 } else { vain + 1 };
            if vain > 4 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Evicts some keys of a sample; how many. `idle`: only such as were not used here lately, or
    /// have ended. `None`: there are no keys.
    async fn evict_some(&self, io: &Io, shard: &Rc<Shard>, idle: bool) -> Result<Option<usize>, Trouble> {
        let sampled = self.candidates(io, shard).await;
        if sampled.is_empty() {
            return Ok(None);
        }
        let about = |object: &Object| {
            let hot = shard.near.cache.borrow().is_hot(object.key(), object.hash());
            (!self.has_ended(object), hot, object.written_s())
        };
        let mut sampled: Vec<_> = sampled.iter().map(|(at, object)| (about(object), *at, object)).collect();
        sampled.sort_by_key(|&(about, ..)| about);
        // Of few keys not many are old.
        let most = sampled.len().div_ceil(SAMPLE / GO);
        let may_go = |&&((stays, hot, _), ..): &&((bool, bool, u32), At, &Object)| !(idle && stays && hot);
        let victims: Vec<_> = sampled.iter().take_while(may_go).map(|&(_, at, object)| (at, object)).collect();
        let (mut evicted, mut rest) = (0, &victims[..]);
        while evicted < most && !rest.is_empty() {
            let (some, others) = rest.split_at(rest.len().min(most - evicted));
            evicted += self.evict_all(io, some).await?;
            rest = others;
        }
        Ok(Some(evicted))
    }

    /// Some keys of own memory, without their values, and their places. Another front end may have
    /// replaced an own object since: its place is given, so that the new one stays.
    async fn candidates(&self, io: &Io, shard: &Rc<Shard>) -> Vec<(At, Object)> {
        let from = self.random(1 << 32) as u64;
        // While it lives no place is used again.
        let _section = shard.space.section();
        let slots: Vec<Slot> = shard.space.heap.borrow().some_linked(from, SAMPLE);
        let node = shard.reach.node;
        let briefs = slots.iter().zip(shard.index.briefs(io, &slots).await);
        briefs.filter_map(|(slot, object)| Some((slot.at(node), object?))).collect()
    }

    /// Takes a key out without reading its value; whether it was there.
    /// `only`: it stays if its object is at another place.
    pub(crate) async fn discard(&self, io: &Io, key: &[u8], only: Option<At>) -> Result<bool, Trouble> {
        self.shard(key).index.discard(io, key, only).await
    }
}
