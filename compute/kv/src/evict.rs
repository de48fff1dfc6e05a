//! Eviction: which keys go when a store's memory is used up, and when.
//!
//! Evicted memory is of use again three epochs later ([`crate::heap::GRACE`]). So the background
//! evicts before memory is full, as much ahead as writes take in that time
//! ([`Keyspace::make_headroom`]). A write then finds a free place and waits for nothing. A write
//! that finds none evicts itself, and waits ([`Keyspace::make_room`]). While a write waits, the
//! epoch is moved on in a hurry.
//!
//! Victims come from this front end's own memory: memory of another one is free only when that one
//! has found out. Of a sample those go that have ended, then those that were not used here lately,
//! then those that were written longest ago.

use crate::blocks;
use crate::copies::Counted;
use crate::keyspace::Keyspace;
use crate::layout::{At, Slot};
use crate::object::Object;
use crate::shard::{Shard, Trouble};
use crate::task::{Io, join};
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
/// How long a write waits for memory to come back, in ms.
const PATIENCE_MS: u32 = 2000;

impl Keyspace {
    /// Waits for retired memory to come back, if there is any. Else evicts up to 8 keys.
    pub(crate) async fn make_room(&self, io: &Io, shard: &Rc<Shard>) -> Result<(), Trouble> {
        Keyspace::count(&self.figures.full);
        let _pressed = Counted::new(&shard.space.pressed);
        if shard.space.retired_bytes() > 0 {
            // Memory is on its way back: the epoch has to go on.
            let reaped = || shard.space.heap.borrow().reaped_bytes();
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
        if !self.evicts {
            return Err(Trouble::Full);
        }
        let mut evicted = 0;
        for look in 0..SAMPLES {
            // All keys of a sample may be in use. Look for idle ones elsewhere first.
            match self.evict_some(io, shard, look < SAMPLES / 2, false).await? {
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

    /// Evicts before memory is full. False: it is of no use to go on at once.
    pub(crate) async fn make_headroom(&self, io: &Io, shard: &Rc<Shard>) -> Result<bool, Trouble> {
        let (mut vain, mut samples) = (0, 1);
        for _ in 0..ROUNDS {
            let before = shard.space.lacks();
            if before == 0 {
                return Ok(true);
            }
            let some = |_| -> Pin<Box<dyn Future<Output = Result<Option<usize>, Trouble>> + '_>> {
                Box::pin(self.evict_some(io, shard, vain < 2, true))
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
    /// have ended. `own`: only objects in this front end's memory. `None`: there are no keys.
    async fn evict_some(&self, io: &Io, shard: &Rc<Shard>, idle: bool, own: bool) -> Result<Option<usize>, Trouble> {
        let sampled = self.candidates(io, shard, own).await?;
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
        let mut evicted = 0;
        for ((stays, hot, _), at, victim) in sampled {
            if evicted == most || idle && stays && hot {
                break;
            }
            if blocks::is_pinned(self, io, victim.key()).await? {
                continue;
            }
            if blocks::evict(self, io, victim.key(), at).await? {
                Keyspace::count(&self.figures.evicted);
                evicted += 1;
            }
        }
        Ok(Some(evicted))
    }

    /// Some keys, without their values, and the places of those in own memory. They are of own
    /// memory, unless most is others'. Another front end may have replaced an own object since: its
    /// place is given, so that the new one stays.
    async fn candidates(&self, io: &Io, shard: &Rc<Shard>, own: bool) -> Result<Vec<(Option<At>, Object)>, Trouble> {
        let space = &shard.space;
        if own || space.bytes() >= space.others.get() / 3 {
            let from = self.random(1 << 32) as u64;
            // While it lives no place is used again.
            let _section = space.section();
            let slots: Vec<Slot> = space.heap.borrow().some_linked(from, SAMPLE);
            let node = shard.reach.node;
            let briefs = slots.iter().zip(shard.index.briefs(io, &slots).await);
            let objects: Vec<_> = briefs.filter_map(|(slot, object)| Some((Some(slot.at(node)), object?))).collect();
            if own || !objects.is_empty() {
                return Ok(objects);
            }
        }
        Ok(self.sample(io, shard).await?.into_iter().map(|object| (None, object)).collect())
    }

    /// Takes a key out without reading its value; whether it was there.
    /// `only`: it stays if its object is at another place.
    pub(crate) async fn discard(&self, io: &Io, key: &[u8], only: Option<At>) -> Result<bool, Trouble> {
        self.shard(key).index.discard(io, key, only).await
    }
}
