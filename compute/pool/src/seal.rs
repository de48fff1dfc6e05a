//! Sealed pages: nodes that are not trusted get ciphertext alone.
//!
//! ```text
//!  page ─► seal(slot) ─► staging ring ─► WRITE         READ ─► landing buffer ─► open(slot) ─► installed
//!             │                                                                    │
//!             └──────────► mark of the slot: nonce, tag (16 bytes, here) ──────────┘
//! ```
//!
//! A page opens only by the mark of its slot, which this process wrote when it sealed it last. So a
//! page that was altered, swapped, kept from earlier or taken from another process does not open.
//!
//! *Marks* need no lock. The owner of a page writes its slot's mark before it publishes the page's
//! word, and the next owner reads the mark after that word. Pages that move between homes (mirror,
//! repair, drain) move as they are: a mark is by the host's slot, and no node is named in it.
//!
//! *Nonces* never repeat. A nonce is the number of a key and a count under that key:
//!
//! ```text
//! 63     48 47                         0
//! │ key    │ pages sealed by it        │      at most 2^36 by a key, then the next one
//! ```
//!
//! *Forks.* A child inherits the marks and the keys, because it reads what its parent sealed. It
//! seals by a key of its own. Both keys come from a secret that only derives, by numbers that the
//! parent counts on before each fork. So parent and child write the same slot numbers by different
//! keys, and no fork needs random bits. An image that is executed has nothing of this, and begins
//! with a random key. `docs/design/seal.md` has the argument.
//!
//! *Lines.* [`Sealing::Lines`] seals by another cipher ([`farmem_sys::xts`]). A page whose slot
//! holds it sealed can then be sealed again under the same nonce ([`Seals::again`]), so that its
//! changed lines alone are sent. Its mark becomes that of the new content before they are
//! ([`Seals::remark`]).

#![allow(unsafe_code)] // Pages are the caller's raw memory.

use crate::homes::{MAX_SLABS, State};
use crate::losses::Losses;
use crate::tables::Tables;
use farmem_protocol::addr::{FarSlot, SLOTS_PER_SLAB};
use farmem_sys::memory::SparseArray;
use farmem_sys::process::random_bytes;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::{gcm, xts};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that one key seals, at most: AES-GCM loses 2^-41 of its strength by as many.
const LIMIT: u64 = 1 << 36;
const COUNT_BITS: u32 = 48;
/// Keys that a process can have: its own, and those of the processes that it descends from.
const MAX_KEYS: usize = 1 << 16;
/// Words of a mark: the nonce, and the tag.
const MARK: usize = 2;

/// Why pages cannot be sealed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoSeal {
    /// The CPU lacks instructions.
    #[error("--seal needs a CPU with AES and PCLMULQDQ instructions")]
    Cpu,
    /// The table's addresses.
    #[error("no address space for the table of sealed pages ({0}): 16 GiB of addresses; raise the limit (ulimit -v)")]
    Memory(Errno),
    /// The node.
    #[error("--seal: the memory of node {0} is mapped here, where it reads what is used: name it by HOST:PORT")]
    Mapped(String),
    /// Random bits.
    #[error("the system gives no random bytes for the key of sealed pages")]
    Random,
}

/// A page came back that is not what was sealed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a page came back from {nodes} altered or old (slab {}, slot {}): it does not open, and nothing of it was used",
    slot.slab_index(), slot.place()
)]
pub struct Altered {
    /// The nodes that may have sent it.
    pub nodes: String,
    /// Its slot.
    pub slot: FarSlot,
}

/// How pages are sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sealing {
    /// Whole: a node sees nothing of what a page is or was.
    Whole,
    /// So that changed lines can be sent alone: a node sees which 16 bytes of a page differ from
    /// those that it holds.
    Lines,
}

/// A key that seals pages.
#[allow(clippy::large_enum_variant)] // All keys of a process are of one kind.
enum Key {
    Whole(gcm::Key),
    Lines(xts::Key),
}

impl Key {
    fn new(key: &[u8; 16], how: Sealing) -> Option<Key> {
        match how {
            Sealing::Whole => gcm::Key::new(key).map(Key::Whole),
            Sealing::Lines => xts::Key::new(key).map(Key::Lines),
        }
    }

    /// # Safety
    /// As for [`gcm::Key::seal`]: without [`Sealing::Lines`] a nonce is used once.
    unsafe fn seal(&self, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Key::Whole(key) => key.seal(nonce, from, to),
                Key::Lines(key) => key.seal(nonce, from, to),
            }
        }
    }

    /// # Safety
    /// As for [`gcm::Key::open`].
    unsafe fn open(&self, nonce: u64, tag: u64, from: *const u8, to: *mut u8) -> Result<(), gcm::Altered> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Key::Whole(key) => key.open(nonce, tag, from, to),
                Key::Lines(key) => key.open(nonce, tag, from, to),
            }
        }
    }
}

/// A process's keys and marks.
pub(crate) struct Secrets {
    how: Sealing,
    marks: SparseArray<AtomicU64>,
    /// By number: addresses of keys that are never freed.
    keys: SparseArray<AtomicU64>,
    own: Lock<Own>,
}

/// The key that this process seals with.
struct Own {
    number: u64,
    sealed: u64,
    /// From what further keys come.
    root: gcm::Key,
    /// Keys that were derived from it, or may have been: by children.
    derived: u64,
}

impl Secrets {
    fn new(how: Sealing) -> Result<Secrets, NoSeal> {
        let mut random = [[0; 16]; 2];
        random_bytes(random.as_flattened_mut()).map_err(|_| NoSeal::Random)?;
        let key = Key::new(&random[0], how).ok_or(NoSeal::Cpu)?;
        let root = gcm::Key::new(&random[1]).ok_or(NoSeal::Cpu)?;
        let sealing = Secrets {
            how,
            marks: SparseArray::new(MAX_SLABS * SLOTS_PER_SLAB as usize * MARK).map_err(NoSeal::Memory)?,
            keys: SparseArray::new(MAX_KEYS).map_err(NoSeal::Memory)?,
            own: Lock::new(Own { number: 0, sealed: 0, root, derived: 0 }),
        };
        sealing.keep(0, key);
        Ok(sealing)
    }

    fn keep(&self, number: u64, key: Key) {
        let at = std::ptr::from_ref::<Key>(Box::leak(Box::new(key)));
        self.keys[number as usize].store(at as u64, Ordering::Release);
    }

    fn key(&self, number: u64) -> Option<&'static Key> {
        let at = self.keys[number as usize].load(Ordering::Acquire) as *const Key;
        // SAFETY: null, or a key that was leaked.
        unsafe { at.as_ref() }
    }

    fn mark(&self, slot: FarSlot) -> usize {
        (slot.slab_index() as usize * SLOTS_PER_SLAB as usize + slot.place() as usize) * MARK
    }

    /// A nonce that was never used, and its key.
    fn next(&self) -> Option<(u64, &'static Key)> {
        let mut own = self.own.lock();
        if own.sealed == LIMIT {
            own.derived += 1;
            self.renew(&mut own)?;
        }
        let nonce = own.number << COUNT_BITS | own.sealed;
        own.sealed += 1;
        Some((nonce, self.key(own.number)?))
    }

    /// The next key, by the number of keys derived so far. `None`: there are no more.
    fn renew(&self, own: &mut Own) -> Option<()> {
        let [key, root] = own.root.derive(own.derived);
        let number = (own.number + 1 < MAX_KEYS as u64).then_some(own.number + 1)?;
        self.keep(number, Key::new(&key, self.how)?);
        *own = Own { number, sealed: 0, root: gcm::Key::new(&root)?, derived: 0 };
        Some(())
    }
}

/// Keys and marks, once pages are sealed.
#[derive(Default)]
pub(crate) struct Sealed(OnceLock<Secrets>);

impl Sealed {
    /// Whether [`Seals::begin`] was called.
    pub fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    /// A fork comes: the child's key will be another.
    pub fn fork(&self) {
        self.0.get().into_iter().for_each(|sealing| sealing.own.lock().derived += 1);
    }

    /// In a forked child: a key of its own, without a system call. False: there are no more.
    pub fn in_child(&self) -> bool {
        self.0.get().is_none_or(|sealing| sealing.renew(&mut sealing.own.lock()).is_some())
    }

    /// Forgets the seals of a slab that has gone. No thread reads its slots any more.
    pub fn forget(&self, index: usize) {
        if let Some(sealing) = self.0.get() {
            let words = SLOTS_PER_SLAB as usize * MARK;
            sealing.marks.clear(index * words, (index + 1) * words);
        }
    }
}

/// Pages that leave encrypted.
#[derive(Clone, Copy)]
pub struct Seals<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) losses: Losses<'a>,
}

impl Seals<'_> {
    /// From now on pages can be sealed. Before the first is.
    ///
    /// # Errors
    /// See [`NoSeal`].
    pub fn begin(self, how: Sealing) -> Result<(), NoSeal> {
        if let Some(mapped) = self.tables.nodes.all().iter().find(|node| node.session().is_mapped()) {
            return Err(NoSeal::Mapped(mapped.session().node().to_owned()));
        }
        let sealing = Secrets::new(how)?;
        let _ = self.tables.sealed.0.set(sealing);
        Ok(())
    }

    /// Seals the page at `from` into the page at `to`, for a slot that the caller owns. Both may be
    /// the same page. False: this process is the 65 536th in a chain of forks, and there are no
    /// more keys.
    ///
    /// # Safety
    /// Both are pages, the caller's, `from` readable and `to` writable, and `from` does not change
    /// meanwhile.
    #[must_use]
    pub unsafe fn seal(self, slot: FarSlot, from: *const u8, to: *mut u8) -> bool {
        let Some(sealing) = self.tables.sealed.0.get() else { return false };
        let Some((nonce, key)) = sealing.next() else { return false };
        // SAFETY: the caller's promise; the nonce is new.
        let tag = unsafe { key.seal(nonce, from, to) };
        let at = sealing.mark(slot);
        sealing.marks[at].store(nonce, Ordering::Relaxed);
        sealing.marks[at + 1].store(tag, Ordering::Relaxed);
        true
    }

    /// Seals the page at `from` into the page at `to` under the nonce of its slot, as it would lie
    /// there. The slot's page is the caller's, and is not sealed whole. Returns the tag. `None`:
    /// the slot holds nothing that was sealed so.
    ///
    /// # Safety
    /// As for [`Seals::seal`].
    pub unsafe fn again(self, slot: FarSlot, from: *const u8, to: *mut u8) -> Option<u64> {
        let sealing = self.tables.sealed.0.get()?;
        let nonce = sealing.marks[sealing.mark(slot)].load(Ordering::Relaxed);
        match sealing.key(nonce >> COUNT_BITS)? {
            Key::Whole(_) => None,
            // SAFETY: the caller's promise.
            Key::Lines(key) => Some(unsafe { key.seal(nonce, from, to) }),
        }
    }

    /// From now on a slot's page is the one of which [`Seals::again`] gave this tag. It is in the
    /// staging ring, and is served from there until the slot has it.
    pub fn remark(self, slot: FarSlot, tag: u64) {
        if let Some(sealing) = self.tables.sealed.0.get() {
            sealing.marks[sealing.mark(slot) + 1].store(tag, Ordering::Relaxed);
        }
    }

    /// A slot that is free holds nothing that was sealed any more. The caller owns all write-back.
    #[cold]
    pub(crate) fn unmark(self, slot: FarSlot) {
        if let Some(sealing) = self.tables.sealed.0.get() {
            let at = sealing.mark(slot);
            [at, at + 1].into_iter().for_each(|at| sealing.marks[at].store(0, Ordering::Relaxed));
        }
    }

    /// Whether a slot's page is the one of which [`Seals::again`] gave this tag.
    pub fn is_as(self, slot: FarSlot, tag: u64) -> bool {
        self.tables
            .sealed
            .0
            .get()
            .is_some_and(|sealing| sealing.marks[sealing.mark(slot) + 1].load(Ordering::Relaxed) == tag)
    }

    /// Opens the page at `from` into the page at `to`; both may be the same. The slot's page is the
    /// caller's.
    ///
    /// # Errors
    /// [`Altered`]: the caller asks [`Seals::distrust`]. The bytes at `to` must not be used.
    ///
    /// # Safety
    /// Both are pages, the caller's, `from` readable and `to` writable.
    pub unsafe fn open(self, slot: FarSlot, from: *const u8, to: *mut u8) -> Result<(), Altered> {
        let Some(sealing) = self.tables.sealed.0.get() else { return Err(self.altered(slot)) };
        let at = sealing.mark(slot);
        let [nonce, tag] = [at, at + 1].map(|at| sealing.marks[at].load(Ordering::Relaxed));
        let Some(key) = sealing.key(nonce >> COUNT_BITS) else { return Err(self.altered(slot)) };
        // SAFETY: the caller's promise.
        unsafe { key.open(nonce, tag, from, to) }.map_err(|gcm::Altered| self.altered(slot))
    }

    /// Whether a page is other than the one that was sealed last for its slot. The slot's page is the
    /// caller's, or the caller owns all write-back. Of a slot for which nothing was sealed this is false.
    #[cold]
    pub(crate) fn is_altered(self, slot: FarSlot, page: &[u8]) -> bool {
        self.opens(slot, page) == Some(false)
    }

    /// Whether a page is the one that was sealed last for its slot, whose owner calls as for
    /// [`Seals::is_altered`]. `None`: nothing was sealed.
    #[cold]
    pub(crate) fn opens(self, slot: FarSlot, page: &[u8]) -> Option<bool> {
        let sealing = self.tables.sealed.0.get()?;
        let at = sealing.mark(slot);
        let [nonce, tag] = [at, at + 1].map(|at| sealing.marks[at].load(Ordering::Relaxed));
        if (nonce, tag) == (0, 0) {
            return None;
        }
        let mut opened = vec![0; gcm::PAGE];
        let opens = |key: &Key| {
            page.len() == gcm::PAGE
            // SAFETY: two pages, the second of which is ours.
            && unsafe { key.open(nonce, tag, page.as_ptr(), opened.as_mut_ptr()) }.is_ok()
        };
        Some(sealing.key(nonce >> COUNT_BITS).is_some_and(opens))
    }

    #[cold]
    pub(crate) fn altered(self, slot: FarSlot) -> Altered {
        let homes = self.tables.homes_of(slot.slab_index()).into_iter().flatten();
        let homes = homes.filter(|(_, state)| *state != State::Behind);
        let nodes = self.tables.nodes.all();
        let name = |node: usize| nodes.get(node).map_or("the copy on disk", |node| node.session().node());
        let names: Vec<&str> = homes.map(|(node, _)| name(node)).collect();
        Altered { nodes: if names.is_empty() { "a node".into() } else { names.join(" or ") }, slot }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_sys::raw::{futex_wait, futex_wake, sleep_ns, syscall};
    use std::sync::atomic::AtomicU32;

    const PAGE: usize = gcm::PAGE;

    fn nonces(sealing: &Secrets, n: usize) -> Vec<(u64, usize)> {
        let one = || sealing.next().map(|(nonce, key)| (nonce, std::ptr::from_ref(key) as usize)).unwrap();
        (0..n).map(|_| one()).collect()
    }

    /// A key by what it makes of a page of zeros.
    fn print(key: &Key) -> u64 {
        let mut page = vec![0; PAGE];
        // SAFETY: a page of ours; what it seals is of no interest.
        unsafe { key.seal(0, page.as_ptr(), page.as_mut_ptr()) }
    }

    #[test]
    fn a_key_seals_so_many_pages_and_no_more() {
        let sealing = Secrets::new(Sealing::Whole).unwrap();
        assert_eq!(nonces(&sealing, 2).iter().map(|(nonce, _)| *nonce).collect::<Vec<_>>(), [0, 1]);
        sealing.own.lock().sealed = LIMIT - 1;
        let after: Vec<_> = nonces(&sealing, 3);
        assert_eq!(
            after.iter().map(|(nonce, _)| *nonce).collect::<Vec<_>>(),
            [LIMIT - 1, 1 << COUNT_BITS, 1 << COUNT_BITS | 1]
        );
        assert!(after[0].1 != after[1].1);
        let mut own = sealing.own.lock();
        own.number = MAX_KEYS as u64 - 1;
        assert_eq!(sealing.renew(&mut own), None, "there are no more numbers");
    }

    /// Any tree of forks, in which processes also use their keys up: no key is any two processes'.
    #[test]
    fn no_two_processes_of_a_tree_have_a_key_together() {
        // A process as its parent left it: the keys that come are the secret's and the count's
        // alone.
        struct Process {
            root: [u8; 16],
            derived: u64,
        }
        let mut random = 1_u64;
        let mut processes = vec![Process { root: [7; 16], derived: 0 }];
        let mut keys = vec![[8; 16]];
        for _ in 0..500 {
            random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            let at = (random >> 33) as usize % processes.len();
            processes[at].derived += 1;
            let [key, root] = gcm::Key::new(&processes[at].root).unwrap().derive(processes[at].derived);
            keys.push(key);
            match random >> 60 {
                // Its own key is used up.
                0..4 => processes[at] = Process { root, derived: 0 },
                _ => processes.push(Process { root, derived: 0 }),
            }
        }
        keys.extend(processes.iter().map(|process| process.root));
        let all = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), all);
    }

    /// 0: not done yet; 1: it went as it should; 2: it did not.
    static WENT: AtomicU32 = AtomicU32::new(0);

    /// All that a fault and an eviction do to a page, where a read of any thread-local faults.
    fn without_a_thread_pointer(sealing: usize) -> ! {
        const ARCH_SET_FS: usize = 0x1002;
        // SAFETY: the thread reads no thread-local from here on, or faults: that is the test. What
        // it was given is leaked.
        let sealing = unsafe {
            syscall(libc::SYS_arch_prctl, [ARCH_SET_FS, 0, 0, 0, 0, 0]);
            &*(sealing as *const Secrets)
        };
        let mut page = [7; PAGE];
        let went = sealing.next().is_some_and(|(nonce, key)| {
            let at = page.as_mut_ptr();
            // SAFETY: a page of ours, and a new nonce.
            let opened = unsafe { key.open(nonce, key.seal(nonce, at, at), at, at) };
            let root = gcm::Key::new(&[1; 16]);
            opened.is_ok() && root.is_some_and(|root| Key::new(&root.derive(1)[0], sealing.how).is_some())
        });
        WENT.store(if went && page == [7; PAGE] { 1 } else { 2 }, Ordering::Release);
        futex_wake(&WENT, 1);
        loop {
            sleep_ns(1_000_000_000);
        }
    }

    #[test]
    fn a_page_is_sealed_and_opened_without_a_thread_pointer() {
        for how in [Sealing::Whole, Sealing::Lines] {
            WENT.store(0, Ordering::Release);
            let sealing: &'static Secrets = Box::leak(Box::new(Secrets::new(how).unwrap()));
            farmem_sys::thread::spawn(without_a_thread_pointer, std::ptr::from_ref(sealing) as usize).unwrap();
            while WENT.load(Ordering::Acquire) == 0 {
                futex_wait(&WENT, 0, 1_000_000_000);
            }
            assert_eq!(WENT.load(Ordering::Acquire), 1, "{how:?}");
        }
    }

    #[test]
    fn a_childs_key_is_another_and_its_parents_stay() {
        let sealing = Secrets::new(Sealing::Whole).unwrap();
        let first = print(sealing.key(0).unwrap());
        sealing.own.lock().derived += 1;
        sealing.renew(&mut sealing.own.lock()).unwrap();
        assert_eq!(print(sealing.key(0).unwrap()), first);
        assert_ne!(print(sealing.key(1).unwrap()), first);
        assert_eq!(sealing.next().map(|(nonce, _)| nonce), Some(1 << COUNT_BITS));
    }
}
