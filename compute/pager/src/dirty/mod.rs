//! Which bytes of a page changed while it was local? Policies behind one interface: how a page
//! comes in, which bytes are kept of it, and what that tells when it leaves.
//!
//! ```text
//!             comes in            what is kept              on its way out
//!   lines     writable            slot mapped: nothing      lines that differ from the slot
//!                                 else: hashes              lines whose hash differs
//!   auto      likely to be
//!   (lines,   written: writable   as `lines`                as `lines`
//!   guessing) others: protected   … at the first write      as `lines`
//!   exact     protected; where the slot is mapped, likely
//!             written ones: writable, compared with it      all of a page that was written
//!   none      writable            nothing                   all of every page
//! ```
//!
//! A page with G in its word ([`crate::word`]) is *compared*: its slot holds the bytes that it came
//! in with, and what is kept here tells which of its lines differ from them. That is looked at when
//! the page is Leaving and nothing can write to it any more ([`crate::out::settle`]), never before:
//! a page that can still change says nothing.
//!
//! *Hashes* are for `lines` and `auto`, and for slots that are not mapped ([`farmem_sys::lines`]).
//! They are wrong with a probability that `docs/design/lines.md` works out. Everything else is
//! exact. Hashes are kept *in brief*, 12 bits a line and 64 for the page, where the other end
//! confirms what is said of changed lines (a node's software NIC). Where lines go to a card they
//! have 64 bits a line. When nothing more can be kept, a page comes in as `exact` has it.
//!
//! *Sealed pages* ([`farmem_pool::Sealing::Lines`]) are hashed as they lie in their slots, because a
//! node confirms that. So a page is sealed once more when it comes in, and once when it leaves.
//! Pages that are sealed whole go whole. So under `auto` a page that is known to be written is not
//! compared: that could only tell that the same bytes were written again.
//!
//! *When*: before a page is installed. A demand page whose slot is not mapped is hashed later, from
//! where its bytes landed, while the thread's next fault waits for its answer
//! ([`crate::incoming::reads`]). A page that leaves before that has nothing kept, and goes whole.

#![allow(unsafe_code)] // Entries are filled and read.

pub mod alternate;
pub(crate) mod guess;
pub mod kept;

use crate::base::Base;
use crate::ending::broken;
use crate::page::{Bytes, Target};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId};
use farmem_protocol::lines::LINES;
use farmem_run::Dirty;
pub(crate) use farmem_sys::lines::exact::Next;
use farmem_sys::lines::{Brief, Found, Hasher, Hashes, SEED_BYTES, Seed, Unit, asks_along, exact};
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use guess::Rewrites;
use kept::{Entry, Kept};
use std::mem::MaybeUninit;

/// Room for a page.
#[repr(C, align(64))]
struct Room([u8; PAGE_BYTES]);

/// A page as it came in: the bytes of its slot, opened if they are sealed.
#[derive(Clone, Copy)]
pub(crate) struct Came<'a> {
    pub bytes: Bytes<'a>,
    pub slot: FarSlot,
}

/// Whether a policy keeps line hashes of pages whose slots are not mapped.
pub(crate) fn keeps_hashes(dirty: Dirty) -> bool {
    matches!(dirty, Dirty::Auto | Dirty::Lines)
}

/// Knowledge of changes to pages: those that there were, and those that there will be.
pub(crate) struct Changes {
    pub tracker: Tracker,
    pub rewrites: Rewrites,
    /// Held by upgrades that read pages, and by calls that make pages unreadable. Evictions hold
    /// the evictor's lock instead.
    pub reading: Lock<()>,
}

impl Changes {
    pub fn new(tracker: Tracker) -> Changes {
        Changes { tracker, rewrites: Rewrites::new(), reading: Lock::new(()) }
    }
}

/// How a page comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comes {
    /// Write-protected: clean until its first write faults.
    Protected,
    /// Writable, taken for changed.
    Writable,
    /// Writable, and compared when it leaves.
    Compared,
}

/// The changes of a compared page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    /// Bit k: line k. All, where it is only known that some did.
    pub lines: u64,
    /// Whether `lines` are those that changed.
    pub known: bool,
    /// Where hashes are kept in brief: the value of these lines before, which is to be confirmed
    /// before others are laid onto them.
    pub was: u64,
}

impl Changed {
    /// In some line.
    pub const SOMEWHERE: Changed = Changed { lines: u64::MAX, known: false, was: 0 };

    fn lines(lines: u64) -> Changed {
        Changed { lines, known: true, was: 0 }
    }
}

/// Of pages whose slots are not mapped, under `lines`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hashed {
    /// 64 bits a line.
    InFull,
    /// 12 bits a line, of which those in the mask are looked at, and 64 for the page. Changed lines
    /// must be confirmed.
    InBrief { mask: u16 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Lines,
    Exact,
    None,
}

/// The policy of a process, and what it keeps.
pub(crate) struct Tracker {
    policy: Policy,
    /// Pages that are read and not likely to be written come in protected under `lines` too.
    guess: bool,
    hasher: Hasher,
    hashed: Hashed,
    kept: Option<Kept>,
    /// [`asks_along`].
    asks_along: bool,
    /// Comparing alternates with copying ([`alternate`]).
    alternates: bool,
    /// By what pages are sealed, if hashes are of sealed pages.
    sealed_by: Option<&'static Base>,
    /// Pages whose writes are known go whole, uncompared.
    written_go_whole: bool,
}

impl Tracker {
    /// For `pages` of local memory. `mapped`: every slot is. `alternates`: see [`alternate`].
    pub fn new(choice: Dirty, pages: u64, mapped: bool, hashed: Hashed, alternates: bool) -> Result<Tracker, Errno> {
        let policy = match choice {
            Dirty::Auto | Dirty::Lines => Policy::Lines,
            Dirty::Exact => Policy::Exact,
            Dirty::None => Policy::None,
        };
        let entry = match hashed {
            Hashed::InFull => size_of::<Hashes>(),
            Hashed::InBrief { .. } => size_of::<Brief>(),
        };
        let keeps = policy == Policy::Lines && !mapped;
        let kept = if keeps { Some(Kept::new(pages as usize, entry)?) } else { None };
        let mut random = [0; SEED_BYTES];
        if policy == Policy::Lines && farmem_sys::process::random_bytes(&mut random).is_err() {
            broken("the system gives no random bytes for the key of the line hashes");
        }
        let guess = choice == Dirty::Auto;
        let hasher = Hasher::new(&random, Unit::best());
        let (asks_along, sealed_by, written_go_whole) = (asks_along(), None, false);
        Ok(Tracker { policy, guess, hasher, hashed, kept, asks_along, alternates, sealed_by, written_go_whole })
    }

    /// From now on what is kept of a page is kept of it as its slot has it sealed. A sealed page is
    /// the same each time under its nonce, so it is sealed once more for this.
    pub fn keep_as_sealed(&mut self, by: &'static Base) {
        self.sealed_by = Some(by);
    }

    /// From now on pages leave whole, because they are sealed whole. `lines`, if the user asks for it,
    /// still tells pages in which the same bytes were written again.
    pub fn send_whole(&mut self) {
        self.written_go_whole = self.guess;
    }

    /// Whether changes are told by pages as they are sealed.
    #[inline]
    pub fn keeps_sealed(&self) -> bool {
        self.sealed_by.is_some()
    }

    /// Whether something is kept of a page, which is the caller's.
    pub fn keeps(&self, page: PageId) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.find(page).is_some())
    }

    /// From what the key is made, where somebody is to confirm changed lines.
    pub fn seed(&self) -> Option<&Seed> {
        (self.kept.is_some() && self.hashed != Hashed::InFull).then(|| self.hasher.seed())
    }

    /// Pages of local memory that hashes have taken since this was last asked: never given back.
    #[inline]
    pub fn grown(&self) -> u64 {
        self.kept.as_ref().map_or(0, Kept::grown)
    }

    /// Gets what is kept of a page into the CPU's cache.
    #[inline(always)]
    pub fn prefetch(&self, page: PageId) {
        if let Some(kept) = &self.kept {
            kept.prefetch(page);
        }
    }

    /// How a page is to come in. `likely`: whether one that is read will be written, if that is
    /// asked.
    #[inline]
    pub fn comes(&self, mapped: bool, write: bool, likely: impl FnOnce() -> bool) -> Comes {
        match self.policy {
            Policy::None => Comes::Writable,
            Policy::Lines if write && self.written_go_whole => Comes::Writable,
            Policy::Lines if write || !self.guess => Comes::Compared,
            Policy::Exact if write => Comes::Writable,
            // Where slots are not mapped a wrong guess is not seen on the way out, and would send
            // the page over the network. So there are no guesses there.
            Policy::Exact if !mapped => Comes::Protected,
            Policy::Lines | Policy::Exact => {
                if likely() {
                    Comes::Compared
                } else {
                    Comes::Protected
                }
            }
        }
    }

    /// Keeps what `comes` needs of a page that comes in with the bytes of `source`, those of its
    /// slot. The caller owns the page. Returns how it comes in after all: otherwise, when nothing
    /// more can be kept. Twice is once.
    #[inline]
    pub fn keep(&self, page: PageId, source: Came<'_>, mapped: bool, write: bool, comes: Comes) -> Comes {
        if comes != Comes::Compared || mapped {
            return comes;
        }
        match self.kept.as_ref().and_then(|kept| kept.take(page)) {
            Some(entry) => {
                self.fill(entry, source);
                Comes::Compared
            }
            None if write => Comes::Writable,
            None => Comes::Protected,
        }
    }

    #[inline]
    fn fill(&self, entry: Entry<'_>, source: Came<'_>) {
        match self.sealed_by {
            None => self.fill_by(entry, source.bytes),
            Some(by) => self.fill_sealed(entry, source, by),
        }
    }

    /// Keeps a page as its slot has it sealed. If its slot is another page's by now, as after a
    /// promise that was broken, what is kept has no meaning, and nobody finds it.
    #[inline(never)]
    fn fill_sealed(&self, entry: Entry<'_>, source: Came<'_>, by: &Base) {
        let mut room = MaybeUninit::<Room>::uninit();
        // SAFETY: a page of this call's, which outlives both; it is read only once it is sealed.
        let (mut to, sealed) = unsafe { (Target::at(room.as_mut_ptr().cast()), Bytes::at(room.as_ptr().cast())) };
        if by.seal_again(source.slot, source.bytes, &mut to).is_some() {
            self.fill_by(entry, sealed);
        } else {
            self.fill_by(entry, source.bytes);
        }
    }

    #[inline]
    fn fill_by(&self, entry: Entry<'_>, source: Bytes<'_>) {
        let entry = entry.as_ptr();
        // SAFETY: the entry is the caller's, by its type; the source is mapped; entries are of this
        // policy's size, aligned.
        unsafe {
            match self.hashed {
                Hashed::InFull => self.hasher.hash(source.as_ptr(), &mut *entry.cast::<Hashes>()),
                Hashed::InBrief { .. } => (*entry.cast::<Brief>()).take(&self.hasher, source.as_ptr()),
            }
        }
    }

    /// [`Tracker::keep`], put off: the thread `by` keeps the bytes, and calls [`Tracker::keep_now`]
    /// before it puts off another. A page that leaves before goes whole. False where nothing is
    /// kept of it. The caller owns the page.
    #[inline]
    pub fn keep_later(&self, page: PageId, mapped: bool, comes: Comes, by: u32) -> bool {
        match &self.kept {
            Some(kept) if comes == Comes::Compared && !mapped => {
                kept.promise(page, by);
                true
            }
            _ => false,
        }
    }

    /// Does what [`Tracker::keep_later`] put off, if the page has not left since. `source` has the
    /// bytes that the page came in with. The caller need not own the page.
    #[inline]
    pub fn keep_now(&self, page: PageId, by: u32, source: Came<'_>) {
        if let Some(kept) = &self.kept {
            kept.fulfil(page, by, |entry| self.fill(entry, source));
        }
    }

    /// Whether pages that came in protected are kept at their first write.
    #[inline]
    pub fn keeps_late(&self) -> bool {
        self.kept.is_some() && !self.written_go_whole
    }

    /// Whether pages whose slots are mapped may be compared with them.
    #[inline]
    pub fn compares_with_slots(&self) -> bool {
        self.policy != Policy::None
    }

    /// Keeps a page at its first write: one that came in protected, is still as it came, and whose
    /// slot is not mapped. The caller owns it. Whether it is compared from now on.
    pub fn keep_late(&self, page: PageId, came: Came<'_>) -> bool {
        self.keep(page, came, false, true, Comes::Compared) == Comes::Compared
    }

    /// Whether compared pages are compared now, or copied because that alternates with it.
    #[inline]
    pub fn compares(&self) -> bool {
        !self.alternates || alternate::work_at(farmem_sys::raw::now_ns()).1 == alternate::Work::Compares
    }

    /// The changes of a compared page with these bytes. `None` if nothing was kept of it. The
    /// caller owns the page, and it can change no more. `slot`: its slot's bytes, where that is
    /// mapped. `next`: a compared page that is asked about next, and its slot, or the page again.
    #[inline]
    pub fn changed(
        &self,
        page: PageId,
        bytes: Bytes<'_>,
        slot: Option<Bytes<'_>>,
        next: Option<Next>,
    ) -> Option<Changed> {
        let (at, next) = (bytes.as_ptr(), next.filter(|_| self.asks_along));
        if let Some(before) = slot {
            // SAFETY: both are mapped, by their type; the hasher has a unit of this CPU's.
            return Some(Changed::lines(unsafe { exact::differing(self.hasher.unit(), at, before.as_ptr(), next) }));
        }
        let entry = self.kept.as_ref()?.find(page)?.as_ptr().cast_const();
        // SAFETY: the entry was filled by `fill` and is the page's; the bytes are mapped.
        Some(unsafe {
            match self.hashed {
                Hashed::InFull => Changed::lines(self.hasher.changed(at, &*entry.cast::<Hashes>())),
                Hashed::InBrief { mask } => {
                    match (*entry.cast::<Brief>()).compare(&self.hasher, at, next.map(|[page, _]| page), mask) {
                        Found::Same => Changed::lines(0),
                        Found::Lines { lines, was } => Changed { was, ..Changed::lines(lines) },
                        Found::Somewhere => Changed::SOMEWHERE,
                    }
                }
            }
        })
    }

    /// Pages leave, or are taken away: nothing is kept of them any more. The caller owns them.
    pub fn release(&self, pages: impl Iterator<Item = PageId>) {
        if let Some(kept) = &self.kept {
            kept.release(pages);
        }
    }

    /// A page moves. The caller owns both.
    pub fn rename(&self, from: PageId, to: PageId) {
        if let Some(kept) = &self.kept {
            kept.rename(from, to);
        }
    }

    /// Pages `from..to` are unmapped: see [`Kept::forget`].
    pub fn forget(&self, from: PageId, to: PageId) {
        if let Some(kept) = &self.kept {
            kept.forget(from, to);
        }
    }
}

const _: () = assert!(LINES == 64);

#[cfg(test)]
mod tests {
    use super::*;

    /// Sealed whole, a page that is known to be written goes whatever is in it: to hash it tells nothing. A policy that
    /// was asked for stays.
    #[test]
    fn written_pages_that_go_whole_are_not_compared() {
        let of = |choice, whole: bool| {
            let mut tracker = Tracker::new(choice, 16, false, Hashed::InFull, false).unwrap();
            whole.then(|| tracker.send_whole());
            let came = [(true, false), (false, true), (false, false)];
            (came.map(|(write, likely)| tracker.comes(false, write, || likely)), tracker.keeps_late())
        };
        use Comes::{Compared, Protected, Writable};
        assert_eq!(of(Dirty::Auto, true), ([Writable, Compared, Protected], false));
        assert_eq!(of(Dirty::Auto, false), ([Compared, Compared, Protected], true));
        assert_eq!(of(Dirty::Lines, true), of(Dirty::Lines, false));
        assert_eq!(of(Dirty::Exact, true), of(Dirty::Exact, false));
        assert_eq!(of(Dirty::None, true), of(Dirty::None, false));
    }
}
