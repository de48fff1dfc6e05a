//! Windows: revocable rights to a range, for one queue pair or one member.
//!
//! ```text
//!              BIND by its holder                     INVALIDATE by its holder, or by who may use it
//!  unbound ─────────────────────────► bound ─────────────────────────────────────────► unbound
//!  key: index, 2n         key: index, 2n + 1                                   key: index, 2n + 2
//! ```
//!
//! The rules are those of type-2 windows of RDMA cards. A window is bound to a queue pair, only
//! while it is unbound, and is unbound by its key. No key is ever valid twice. Here the generation
//! has 32 bits, and an index whose generations are used up is retired. (A card's key has a tag of 8
//! bits.)
//!
//! A binding ends in two steps. First its generation passes: from then on the node admits nothing
//! by its key. Then it is taken off the card, outside of any section ([`super::epochs`]). Until
//! that is done it is listed as *ending*. Code that reports a window as unbound first waits for
//! that list ([`Windows::settle`]), even if it only found the window unbound.
//!
//! A window ends with the right that it was carved from. The release of its slab unbinds it. The
//! word of its extent is checked with every verb.

use super::carved::Carved;
use super::grip::{Grip, Memory, Right};
use super::units::WordRight;
use farmem_protocol::key::{Key, Rights, WINDOWS};
use farmem_protocol::wire::{ANY_QUEUE, Op, Status};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Entries of windows are allocated this many at a time.
const CHUNK: usize = 1024;
/// The most windows of one member.
pub const MAX_WINDOWS: usize = 1 << 16;
/// As `user` of a binding: every member that knows the key may use it, as with a type-1 window.
/// Only the node's own windows have this.
pub const ANY_MEMBER: u64 = 0;
/// The last generation in which a window is unbound.
const LAST: u32 = u32::MAX - 1;

/// All windows of a node.
pub struct Windows {
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    spare: Lock<Spare>,
    /// Windows that have a holder, and those that are bound.
    made: AtomicU64,
    bound: AtomicU64,
}

#[derive(Debug, Default)]
struct Spare {
    /// Indexes that were used before.
    free: Vec<u32>,
    /// The first that was never used.
    fresh: u32,
}

struct Entry {
    /// Odd while bound. It changes only under the lock of `what`, and is read without it.
    generation: AtomicU32,
    what: Lock<What>,
}

#[derive(Debug, Default)]
struct What {
    /// The serial number of the member that may bind it. 0: the window is spare.
    holder: u64,
    bound: Option<Bound>,
    /// Windows of ended bindings that are not yet off the card.
    ending: Vec<Arc<Carved>>,
}

impl What {
    /// Ends the binding, and returns it. The caller drops it after it has released the lock: memory
    /// that this was the last to refer to may be scrubbed then.
    fn unbind(&mut self) -> Option<Bound> {
        let mut bound = self.bound.take();
        self.ending.extend(bound.iter_mut().flat_map(|bound| bound.carved.drain(..)));
        bound
    }
}

/// The target of a window.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Where its bytes are.
    pub memory: Memory,
    /// Its first byte there.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// The operations that are allowed.
    pub rights: Rights,
    /// The member that may use it, by serial number.
    pub user: u64,
    /// Through which queue pair: its number, or [`ANY_QUEUE`].
    pub queue: u64,
    /// The slab or window that it was carved from.
    pub parent: Key,
    /// The word of the extent that it was carved from, if any: the window is of use only while the
    /// word stands.
    pub under: Option<WordRight>,
    /// The window as queue pairs know it on the card.
    pub carved: Vec<Arc<Carved>>,
}

impl Default for Windows {
    fn default() -> Self {
        let chunks = (0..WINDOWS as usize / CHUNK).map(|_| OnceLock::new()).collect();
        let [made, bound] = [0; 2].map(AtomicU64::new);
        Windows { chunks, spare: Lock::new(Spare::default()), made, bound }
    }
}

impl Windows {
    /// An unbound window for a member. `None` when there are no more.
    pub fn make(&self, holder: u64) -> Option<Key> {
        let mut spare = self.spare.lock();
        let index = match spare.free.pop() {
            Some(index) => index,
            None if spare.fresh < WINDOWS => {
                spare.fresh += 1;
                spare.fresh - 1
            }
            None => return None,
        };
        drop(spare);
        let chunk = self.chunks.get(index as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| {
            (0..CHUNK).map(|_| Entry { generation: AtomicU32::new(0), what: Lock::new(What::default()) }).collect()
        });
        let entry = &chunk[index as usize % CHUNK];
        entry.what.lock().holder = holder;
        self.made.fetch_add(1, Ordering::Relaxed);
        Some(Key::window(index, entry.generation.load(Ordering::SeqCst)))
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        self.chunks.get(index as usize / CHUNK)?.get()?.get(index as usize % CHUNK)
    }

    /// Binds an unbound window of the holder's. Returns its key from now on.
    pub fn bind(&self, holder: u64, (index, generation): (u32, u32), bound: Bound) -> Result<Key, Status> {
        let entry = self.entry(index).ok_or(Status::Window)?;
        let mut what = entry.what.lock();
        let free = what.bound.is_none() && entry.generation.load(Ordering::SeqCst) == generation;
        if what.holder != holder || !free || generation >= LAST {
            return Err(Status::Window);
        }
        what.bound = Some(bound);
        self.bound.fetch_add(1, Ordering::Relaxed);
        entry.generation.store(generation + 1, Ordering::SeqCst);
        Ok(Key::window(index, generation + 1))
    }

    /// Unbinds a window, asked by `member` through `queue`. Returns its key from now on. Verbs that
    /// began before may still be under way: those of the node's until [`super::epochs`] says
    /// otherwise, a card's until [`Windows::settle`] has returned. The same holds when this is
    /// refused because the window is unbound already.
    pub fn invalidate(&self, member: u64, queue: u64, (index, generation): (u32, u32)) -> Result<Key, Status> {
        let entry = self.entry(index).ok_or(Status::Window)?;
        let mut what = entry.what.lock();
        // A window for every member is unbound by none of them.
        let used = what.bound.as_ref().is_some_and(|b| b.user != ANY_MEMBER && b.is_for(member, queue));
        if what.bound.is_none() || entry.generation.load(Ordering::SeqCst) != generation {
            return Err(Status::Window);
        }
        if what.holder != member && !used {
            return Err(Status::Access);
        }
        entry.generation.store(generation + 1, Ordering::SeqCst);
        let bound = what.unbind();
        self.bound.fetch_sub(1, Ordering::Relaxed);
        drop(what);
        drop(bound);
        Ok(Key::window(index, generation + 1))
    }

    /// Waits until ended bindings of this window are off the card, also those that another thread
    /// ended. Verbs under way have until `until_ns`; then they are broken off. Outside of sections.
    pub fn settle(&self, index: u32, until_ns: u64) {
        let Some(entry) = self.entry(index) else { return };
        let ending = entry.what.lock().ending.clone();
        if !ending.is_empty() {
            ending.iter().for_each(|carved| carved.end(until_ns));
            entry.what.lock().ending.retain(|carved| !carved.is_over());
        }
    }

    /// Whether there is something to [`Windows::settle`].
    pub fn is_ending(&self, index: u32) -> bool {
        self.entry(index).is_some_and(|entry| !entry.what.lock().ending.is_empty())
    }

    /// A window's key now, and whether it is bound.
    pub fn key_of(&self, index: u32) -> Option<(Key, bool)> {
        let entry = self.entry(index)?;
        let what = entry.what.lock();
        Some((Key::window(index, entry.generation.load(Ordering::SeqCst)), what.bound.is_some()))
    }

    /// Ends the window, and waits until it is off the card, as [`Windows::settle`] does. False when
    /// it is not `holder`'s.
    pub fn discard(&self, holder: u64, index: u32, until_ns: u64) -> bool {
        let Some(entry) = self.entry(index) else { return false };
        let mut what = entry.what.lock();
        if what.holder != holder || holder == 0 {
            return false;
        }
        let generation = entry.generation.load(Ordering::SeqCst);
        let bound = what.unbind();
        // The next generation is an unbound one that was never seen. So keys of its last unbound
        // state end with it, too.
        let next = generation.saturating_add(if bound.is_some() { 1 } else { 2 });
        entry.generation.store(next, Ordering::SeqCst);
        what.holder = 0;
        self.made.fetch_sub(1, Ordering::Relaxed);
        self.bound.fetch_sub(bound.is_some().into(), Ordering::Relaxed);
        drop(what);
        drop(bound);
        self.settle(index, until_ns);
        if next < LAST {
            self.spare.lock().free.push(index);
        }
        true
    }

    /// Unbinds what `holder` bound to `parent`, if this window is such a binding. It is off the
    /// card after [`Windows::settle`].
    pub fn unbind_from(&self, holder: u64, index: u32, parent: Key) {
        let Some(entry) = self.entry(index) else { return };
        let generation = entry.generation.load(Ordering::SeqCst);
        let of_it = {
            let what = entry.what.lock();
            what.holder == holder && what.bound.as_ref().is_some_and(|bound| bound.parent == parent)
        };
        if of_it {
            // It fails only if another thread unbinds the window at this moment, which is as good.
            let _ = self.invalidate(holder, ANY_QUEUE, (index, generation));
        }
    }

    /// Whether the binding of this generation stands.
    #[inline]
    pub fn stands(&self, index: u32, generation: u32) -> bool {
        self.entry(index).is_some_and(|entry| entry.generation.load(Ordering::SeqCst) == generation)
    }

    /// Admits a verb by a window's key.
    pub fn admit(
        &self,
        (member, queue): (u64, u64),
        (index, generation): (u32, u32),
        op: Op,
        offset: u64,
        len: u64,
    ) -> Result<Grip, Status> {
        let entry = self.entry(index).ok_or(Status::Access)?;
        let what = entry.what.lock();
        let bound = what.bound.as_ref().ok_or(Status::Access)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= bound.len);
        let current = entry.generation.load(Ordering::SeqCst) == generation;
        if !current || !inside || !bound.is_for(member, queue) || !bound.rights.include(op.right()) {
            return Err(Status::Access);
        }
        let right = Right::Window { index, generation, under: bound.under };
        Ok(Grip { memory: bound.memory.clone(), offset: bound.base + offset, right })
    }

    /// A window as a queue pair of a member knows it on the card. Returns the one that `is_it`
    /// accepts, or else what `make` makes. The window's lock is held meanwhile, so that the window
    /// cannot end unseen.
    pub fn carve(
        &self,
        (member, queue): (u64, u64),
        (index, generation): (u32, u32),
        is_it: impl Fn(&Carved) -> bool,
        make: impl FnOnce(&Bound) -> Option<Carved>,
    ) -> Result<Arc<Carved>, Status> {
        let entry = self.entry(index).ok_or(Status::Access)?;
        let mut what = entry.what.lock();
        let current = entry.generation.load(Ordering::SeqCst) == generation;
        // Not a window of every member: each member would need one on the card.
        let bound = what.bound.as_mut().filter(|b| current && b.user == member && b.is_for(member, queue));
        let bound = bound.ok_or(Status::Access)?;
        bound.carved.retain(|carved| !carved.is_over());
        if let Some(carved) = bound.carved.iter().find(|carved| is_it(carved)) {
            return Ok(Arc::clone(carved));
        }
        let carved = Arc::new(make(bound).ok_or(Status::System)?);
        bound.carved.push(Arc::clone(&carved));
        Ok(carved)
    }

    /// The number of windows, and how many of them are bound. Any member may ask, often.
    pub fn count(&self) -> (u64, u64) {
        (self.made.load(Ordering::Relaxed), self.bound.load(Ordering::Relaxed))
    }
}

impl Bound {
    fn is_for(&self, member: u64, queue: u64) -> bool {
        (self.user == member || self.user == ANY_MEMBER) && (self.queue == ANY_QUEUE || self.queue == queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lending::{Backing, Lending};
    use crate::units::leases::Lease;
    use farmem_protocol::addr::SLAB_BYTES;
    use farmem_protocol::key::KeyKind;

    fn bound() -> Bound {
        let lending = Arc::new(Lending::new(SLAB_BYTES, Backing::Small));
        let slab = lending.grant(&Arc::new(Lease::new(lending.units()).unwrap())).unwrap();
        Bound {
            memory: Memory::Slab(slab),
            base: 4096,
            len: 100,
            rights: Rights::READ,
            user: 7,
            queue: 3,
            parent: Key(1),
            under: None,
            carved: Vec::new(),
        }
    }

    fn parts(key: Key) -> (u32, u32) {
        match key.kind() {
            KeyKind::Window { index, generation } => (index, generation),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn no_key_is_valid_twice() {
        let windows = Windows::default();
        let free = parts(windows.make(1).unwrap());
        let mut keys = vec![free];
        let mut now = free;
        for _ in 0..3 {
            assert_eq!(windows.bind(2, now, bound()), Err(Status::Window), "another's");
            let key = parts(windows.bind(1, now, bound()).unwrap());
            assert_eq!(windows.bind(1, now, bound()), Err(Status::Window), "bound already");
            assert_eq!(windows.invalidate(7, 4, key), Err(Status::Access), "through another queue pair");
            now = parts(windows.invalidate(7, 3, key).unwrap());
            assert_eq!(windows.invalidate(1, 0, key), Err(Status::Window), "unbound already");
            keys.extend([key, now]);
        }
        assert!(windows.discard(1, free.0, 0) && !windows.discard(1, free.0, 0));
        keys.push(parts(windows.make(9).unwrap()));
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!((distinct.len(), keys[0].0), (keys.len(), keys.last().unwrap().0));
    }

    /// A card that does not let go: no caller is told that the window is unbound, least of all one
    /// that finds it so.
    #[test]
    fn unbound_is_told_when_it_is_off_the_card() {
        use std::sync::mpsc;
        let windows = Windows::default();
        let key = parts(windows.bind(1, parts(windows.make(1).unwrap()), bound()).unwrap());
        let (open, shut) = mpsc::channel::<()>();
        let on_card = |_: &Bound| {
            Some(Carved::by_itself(move |_| {
                let _ = shut.recv();
            }))
        };
        windows.carve((7, 3), key, |_| false, on_card).unwrap();
        let free = parts(windows.invalidate(7, 3, key).unwrap());
        assert_eq!(windows.admit((7, 3), key, Op::Read, 0, 1).map(|_| ()), Err(Status::Access), "not by the node");
        assert_eq!(windows.invalidate(1, 0, key), Err(Status::Window), "too late");
        assert!(windows.is_ending(key.0));
        std::thread::scope(|scope| {
            let waiting = [
                scope.spawn(|| windows.settle(key.0, 0)),
                scope.spawn(|| windows.settle(key.0, 0)),
                scope.spawn(|| assert!(windows.discard(1, key.0, 0))),
            ];
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(waiting.iter().all(|thread| !thread.is_finished()));
            // Nor is its index anybody's meanwhile, nor does anything else wait.
            let other = parts(windows.make(1).unwrap());
            assert_ne!(other.0, free.0);
            let other = parts(windows.bind(1, other, bound()).unwrap());
            windows.invalidate(1, 0, other).unwrap();
            windows.settle(other.0, 0);
            drop(open);
        });
        assert!(!windows.is_ending(key.0));
    }

    #[test]
    fn a_window_admits_what_it_was_bound_for() {
        let windows = Windows::default();
        let key = parts(windows.bind(1, parts(windows.make(1).unwrap()), bound()).unwrap());
        let grip = windows.admit((7, 3), key, Op::Read, 10, 90).unwrap();
        assert_eq!(grip.offset, 4106);
        let refused = Err(Status::Access);
        let ask = |who, key, op, offset, len| windows.admit(who, key, op, offset, len).map(|_| ());
        assert_eq!(ask((7, 3), key, Op::Read, 10, 91), refused, "beyond its end");
        assert_eq!(ask((7, 3), key, Op::Read, u64::MAX, 2), refused, "around the end");
        assert_eq!(ask((7, 3), key, Op::Write, 0, 1), refused, "read-only");
        assert_eq!(ask((7, 3), key, Op::Faa, 0, 8), refused, "read-only");
        assert_eq!(ask((7, 4), key, Op::Read, 0, 1), refused, "another queue pair");
        assert_eq!(ask((8, 3), key, Op::Read, 0, 1), refused, "another member");
        assert_eq!(ask((7, 3), (key.0 + 1, key.1), Op::Read, 0, 1), refused, "another window");
        windows.invalidate(1, 0, key).unwrap();
        assert_eq!(ask((7, 3), key, Op::Read, 0, 1), refused, "after its end");
    }

    #[test]
    fn a_used_up_window_is_retired() {
        let windows = Windows::default();
        let (index, _) = parts(windows.make(1).unwrap());
        windows.entry(index).unwrap().generation.store(LAST, Ordering::SeqCst);
        assert_eq!(windows.bind(1, (index, LAST), bound()), Err(Status::Window));
        assert!(windows.discard(1, index, 0));
        assert_ne!(parts(windows.make(1).unwrap()).0, index);
    }
}
