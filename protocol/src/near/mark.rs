//! MARK: which objects of an arena can be reached, found where they lie.
//!
//! ```text
//! directory: Entry, Entry, …          one for each block of the arena, by number
//! work:      Head | stack of words | reports
//! bits:      marked: a bit a slot | scanned: a bit a slot      of each block; grey: marked, not scanned
//! ```
//!
//! A *word* names an object: its block's number plus one in the upper 32 bits, its slot in the
//! lower ones. Objects of a block have one size, and their words lie where [`Head::links`] says. A
//! word that names no slot is no link. So any bytes may stand there: a stray link only keeps an
//! object from being freed.
//!
//! A call goes on where the one before stopped: all of its state is in the caller's memory. So a
//! host posts several calls at once, and each is short. Grey objects wait on a stack to be scanned.
//! Those that do not fit are found later, by a sweep over the bits. All grey objects that are not
//! on the stack lie from [`Head::cursor`] and [`Head::within`] on.
//!
//! ```text
//! links of an object ─► stack ─► queue of AHEAD words ─► scan
//!                                └ the CPU is told of the object here
//! ```
//!
//! An object to be scanned is in no cache of the CPU. So words go from the stack through a short
//! queue, and the CPU is told of an object some scans beforehand (Cher, Hosking and Vitek, ASPLOS
//! 2004). A call that ends puts the queue back onto the stack.
//!
//! A link to another node's block is reported once: the call keeps bits for that block, too. A link
//! to a block that moved is reported each time, with the place where it lies.

mod next;

use super::{Bytes, Range, Which};
use crate::key::Key;
use next::{AHEAD, Next};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most words on the stack.
pub const STACK: u32 = 1024;
/// The most objects and links that one call looks at. Only the links of its last object may exceed
/// it.
pub const MAX_LINKS: u32 = 2048;
/// Where a work range has its stack.
pub const STACK_AT: u64 = size_of::<Head>() as u64;
/// Where a work range has its reports.
pub const REPORTS_AT: u64 = STACK_AT + 8 * STACK as u64;
/// Bytes of an entry of the directory.
pub const ENTRY: u64 = size_of::<Entry>() as u64;
/// Ranges that a call keeps open: two for each block that it remembers.
pub const PLACES: usize = 2 * CACHED;
/// The most blocks that a call remembers.
const CACHED: usize = 64;
/// Bytes of each bitmap that a sweep reads at a time.
const SWEEP: u32 = 512;
/// Objects and links between two looks at the clock: some microseconds.
const LOOKS: u32 = 64;
/// The lowest bit of a link's place in [`Report::holder`]. The bits below are the object's word.
pub const LINK: u32 = 52;

/// Where the objects of a block lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Lies {
    /// There is none: a word that names it is no link.
    Nowhere = 0,
    /// Here: its objects are marked.
    Here = 1,
    /// Elsewhere: a link to one of its objects is reported once.
    Elsewhere = 2,
    /// Its objects have moved: each link is reported, with its place.
    Moved = 3,
}

/// A block in a directory.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default, Debug)]
#[repr(C)]
pub struct Entry {
    /// Key and offset of its first slot.
    pub block: [U64; 2],
    /// Key and offset of its two bitmaps.
    pub bits: [U64; 2],
    /// Slots.
    pub slots: U32,
    /// A [`Lies`].
    pub lies: U32,
}

impl Entry {
    /// The entry of a block with these bitmaps. A range that is not needed may be `None`.
    pub fn new(block: Option<Range>, bits: Option<Range>, slots: u32, lies: Lies) -> Entry {
        let place = |range: Option<Range>| range.map_or([0, 0], |range| [range.key.0, range.at]).map(U64::new);
        Entry { block: place(block), bits: place(bits), slots: slots.into(), lies: (lies as u32).into() }
    }
}

/// The state of a marking, at the beginning of its work range.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Default, Debug)]
#[repr(C)]
pub struct Head {
    /// A bit for each eight bytes of an object. It is set if they are a word, which may be a link.
    pub links: [U64; 8],
    /// Words on the stack.
    pub count: U32,
    /// Reports in the work range.
    pub told: U32,
    /// No block before this one has a grey object that is not on the stack, …
    pub cursor: U32,
    /// … nor has this one before this byte of its bitmaps: a multiple of [`SWEEP`].
    pub within: U32,
    /// The words at the bottom of the stack whose objects are marked. Calls leave it. 0 is always
    /// right.
    pub marked: U32,
    /// For the alignment of the stack.
    pub zero: [U32; 11],
}

/// A link that leads elsewhere.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Report {
    /// The word of the object that has the link. From bit [`LINK`] on: the link's place in the
    /// object, in units of eight bytes.
    pub holder: U64,
    /// The link.
    pub word: U64,
}

/// The parameters of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Bytes of an object.
    pub stride: u16,
    /// Reports that the work range has room for.
    pub room: u32,
    /// Objects to scan, at most.
    pub steps: u32,
}

/// The result of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marked {
    /// Objects that were scanned.
    pub scanned: u32,
    /// Reports in the work range.
    pub told: u32,
    /// Words on the stack.
    pub left: u32,
    /// Whether no object is grey any more.
    pub done: bool,
}

/// Bytes of one of a block's two bitmaps.
pub const fn bitmap(slots: u32) -> u64 {
    slots.div_ceil(64) as u64 * 8
}

/// The word of an object.
pub fn word(block: u32, slot: u32) -> u64 {
    (u64::from(block) + 1) << 32 | u64::from(slot)
}

/// The block and the slot that a word names. `None`: it names none.
pub fn named(word: u64) -> Option<(u32, u32)> {
    let block = (word >> 32).checked_sub(1).filter(|&block| block < (1 << (LINK - 32)) - 1)?;
    Some((block as u32, word as u32))
}

impl Mark {
    /// Bytes of its work range.
    pub fn work(&self) -> u64 {
        REPORTS_AT + u64::from(self.room) * size_of::<Report>() as u64
    }

    /// Whether it is within bounds, with a directory of this many bytes.
    pub(super) fn is_sound(&self, directory: u64) -> bool {
        (8..=4096).contains(&self.stride)
            && self.stride.is_multiple_of(8)
            && self.steps <= super::MAX_HOPS
            && self.work() <= super::MAX_BYTES
            && directory.is_multiple_of(ENTRY)
            && directory / ENTRY < 1 << (LINK - 32)
    }

    /// Goes on with a marking. `None`: its state or its directory is malformed, or a range cannot
    /// be reached.
    pub(super) fn run(&self, directory: Range, memory: &mut impl Bytes) -> Option<Marked> {
        let mut head = Head::default();
        memory.read(Which::List, 0, head.as_mut_bytes())?;
        let blocks = (directory.len / ENTRY) as u32;
        let (count, told) = (head.count.get(), head.told.get());
        let is_sound = head.cursor.get() <= blocks && head.within.get().is_multiple_of(SWEEP);
        if count > STACK || told > self.room || !is_sound {
            return None;
        }
        let words = self.stride / 8;
        let is_link = |&place: &u16| head.links[usize::from(place / 64)].get() >> (place % 64) & 1 != 0;
        let (mut links, mut len) = ([0; 512], 0);
        for place in (0..words).filter(is_link) {
            (links[len], len) = (place, len + 1);
        }
        let mut marker = Marker {
            memory,
            mark: *self,
            blocks,
            links: &links[..len],
            known: [None; CACHED],
            stack: [0; STACK as usize],
            depth: 0,
            next: Next::default(),
            told,
            cursor: (head.cursor.get(), head.within.get()),
            looked: 0,
            object: [0; 4096],
        };
        marker.begin(count, head.marked.get())?;
        let scanned = marker.work()?;
        marker.put_back();
        let Marker { depth, told, cursor: (cursor, within), .. } = marker;
        let waits = marker.stack[..depth as usize].as_bytes();
        memory.write(Which::List, STACK_AT, waits)?;
        (head.count, head.told, head.marked) = (depth.into(), told.into(), depth.into());
        (head.cursor, head.within) = (cursor.into(), within.into());
        memory.write(Which::List, 0, head.as_bytes())?;
        Some(Marked { scanned, told, left: depth, done: depth == 0 && cursor == blocks })
    }
}

#[derive(Clone, Copy)]
struct Known {
    block: u32,
    slots: u32,
    lies: Lies,
}

struct Marker<'a, B> {
    memory: &'a mut B,
    mark: Mark,
    blocks: u32,
    /// The places of an object's links, in units of eight bytes, ascending.
    links: &'a [u16],
    known: [Option<Known>; CACHED],
    stack: [u64; STACK as usize],
    depth: u32,
    /// Grey objects, too.
    next: Next,
    told: u32,
    /// As [`Head::cursor`] and [`Head::within`].
    cursor: (u32, u32),
    /// Objects, links, and parts of bitmaps looked at in this call.
    looked: u32,
    /// The part of an object that has its links. Kept, because clearing it costs more than a scan.
    object: [u8; 4096],
}

impl<B: Bytes> Marker<'_, B> {
    /// Takes the `count` words on the stack, and marks the objects of those above the first `marked`.
    fn begin(&mut self, count: u32, marked: u32) -> Option<()> {
        let stack = &mut self.stack[..count as usize];
        self.memory.read(Which::List, STACK_AT, stack.as_mut_bytes())?;
        self.depth = marked.min(count);
        for at in self.depth..count {
            let word = self.stack[at as usize];
            let Some((block, slot)) = named(word) else { continue };
            let Some((at, known)) = self.look_up(block)? else { continue };
            if known.lies == Lies::Here && slot < known.slots {
                self.set(at, 0, slot)?;
                self.push(word, block);
            }
        }
        Some(())
    }

    /// Scans until a limit is reached or nothing is grey. Returns how many objects it scanned.
    fn work(&mut self) -> Option<u32> {
        let (mut scanned, mut clock) = (0, LOOKS);
        loop {
            if self.looked >= clock {
                clock = self.looked + LOOKS;
                if self.memory.is_late() {
                    return Some(scanned);
                }
            }
            if self.looked >= MAX_LINKS || scanned == self.mark.steps {
                return Some(scanned);
            }
            self.look_ahead();
            if self.next.len() == 0 {
                if self.cursor.0 == self.blocks {
                    return Some(scanned);
                }
                self.sweep()?;
                // A part of the bitmaps is as much to look at as several objects.
                clock = clock.saturating_sub(LOOKS / 16);
                continue;
            }
            if (self.mark.room - self.told) < self.links.len() as u32 {
                return Some(scanned);
            }
            if let Some(word) = self.next.pop() {
                scanned += u32::from(self.scan(word)?);
            }
        }
    }

    /// Fills the queue, and tells the CPU of what comes into it.
    fn look_ahead(&mut self) {
        while self.next.len() < AHEAD && self.depth > 0 {
            self.depth -= 1;
            let word = self.stack[self.depth as usize];
            self.next.push(word);
            self.touch(word);
        }
    }

    /// Puts the queue back onto the stack, the oldest word on top.
    fn put_back(&mut self) {
        let words: [Option<u64>; AHEAD] = std::array::from_fn(|_| self.next.pop());
        for word in words.into_iter().rev().flatten() {
            // Of others there is nothing that a sweep could find.
            if let Some((block, _)) = named(word).filter(|(block, _)| *block < self.blocks) {
                self.push(word, block);
            }
        }
    }

    /// Tells the CPU of an object's links and of its bits, if its block is known.
    fn touch(&mut self, word: u64) {
        let Some((block, slot)) = named(word) else { return };
        let n = block as usize % CACHED;
        let Some(known) = self.known[n].filter(|known| known.block == block && known.lies == Lies::Here) else {
            return;
        };
        let at = 2 * n as u8;
        self.memory.touch(Which::Place(at + 1), bitmap(known.slots) + u64::from(slot / 64) * 8);
        if let (Some(&first), Some(&last)) = (self.links.first(), self.links.last()) {
            let object = u64::from(slot) * u64::from(self.mark.stride);
            let (first, last) = (object + 8 * u64::from(first), object + 8 * u64::from(last));
            self.memory.touch(Which::Place(at), first);
            if first / 64 != last / 64 {
                self.memory.touch(Which::Place(at), last);
            }
        }
    }

    /// Puts a grey object on the stack. If that is full, the cursor goes back, so that a sweep
    /// finds the object.
    fn push(&mut self, word: u64, block: u32) {
        if self.depth == STACK {
            let from = word as u32 / 8 / SWEEP * SWEEP;
            self.cursor = self.cursor.min((block, from));
        } else {
            self.stack[self.depth as usize] = word;
            self.depth += 1;
        }
    }

    /// A block that the directory has, and the first of its two places: objects at the first,
    /// bitmaps at the next. `Some(None)`: the directory has no such block.
    fn look_up(&mut self, block: u32) -> Option<Option<(u8, Known)>> {
        if block >= self.blocks {
            return Some(None);
        }
        let n = block as usize % CACHED;
        let at = 2 * n as u8;
        if let Some(known) = self.known[n].filter(|known| known.block == block) {
            return Some(Some((at, known)));
        }
        let mut entry = Entry::default();
        self.memory.read(Which::Source, u64::from(block) * ENTRY, entry.as_mut_bytes())?;
        let slots = entry.slots.get();
        let lies = match entry.lies.get() {
            0 => return Some(None),
            1 => Lies::Here,
            2 => Lies::Elsewhere,
            3 => Lies::Moved,
            _ => return None,
        };
        let range = |[key, at]: [U64; 2], len| Range { key: Key(key.get()), at: at.get(), len };
        // Nothing that was opened for the block before stays open.
        self.known[n] = None;
        [at, at + 1].into_iter().for_each(|place| self.memory.close(place));
        if lies == Lies::Here {
            let bytes = u64::from(slots) * u64::from(self.mark.stride);
            self.memory.open(at, range(entry.block, bytes), false)?;
        }
        if lies != Lies::Moved {
            self.memory.open(at + 1, range(entry.bits, 2 * bitmap(slots)), true)?;
        }
        let known = Known { block, slots, lies };
        self.known[n] = Some(known);
        Some(Some((at, known)))
    }

    /// Sets the bit of a slot in the bitmap that begins at `from`. Returns whether it was not set
    /// before.
    fn set(&mut self, at: u8, from: u64, slot: u32) -> Option<bool> {
        let place = from + u64::from(slot / 64) * 8;
        let mut bits = [0; 8];
        self.memory.read(Which::Place(at + 1), place, &mut bits)?;
        let before = u64::from_le_bytes(bits);
        let after = before | 1 << (slot % 64);
        if after != before {
            self.memory.write(Which::Place(at + 1), place, &after.to_le_bytes())?;
        }
        Some(after != before)
    }

    /// Follows the links of an object. False: it was scanned before, or is no object.
    fn scan(&mut self, holder: u64) -> Option<bool> {
        self.looked += 1;
        let Some((block, slot)) = named(holder) else { return Some(false) };
        // The entry may have been read anew since the word was pushed, and the caller can change it.
        let here = self.look_up(block)?.filter(|(_, known)| known.lies == Lies::Here && slot < known.slots);
        let Some((at, known)) = here else { return Some(false) };
        if !self.set(at, bitmap(known.slots), slot)? {
            return Some(false);
        }
        let links = self.links;
        let (Some(&first), Some(&last)) = (links.first(), links.last()) else { return Some(true) };
        let part = &mut self.object[..8 * usize::from(last - first + 1)];
        let from = u64::from(slot) * u64::from(self.mark.stride) + 8 * u64::from(first);
        self.memory.read(Which::Place(at), from, part)?;
        for &link in links {
            let place = 8 * usize::from(link - first);
            let word = u64::from_le_bytes(self.object[place..place + 8].try_into().ok()?);
            self.follow(word, holder | u64::from(link) << LINK)?;
        }
        self.looked += links.len() as u32;
        Some(true)
    }

    /// Marks the object that a link names, or reports the link. `holder` is as in
    /// [`Report::holder`].
    fn follow(&mut self, word: u64, holder: u64) -> Option<()> {
        let Some((block, slot)) = named(word) else { return Some(()) };
        let Some((at, known)) = self.look_up(block)? else { return Some(()) };
        if slot >= known.slots {
            return Some(());
        }
        let is_new = known.lies == Lies::Moved || self.set(at, 0, slot)?;
        match known.lies {
            Lies::Here if is_new => self.push(word, block),
            Lies::Elsewhere | Lies::Moved if is_new => {
                let report = Report { holder: holder.into(), word: word.into() };
                let place = REPORTS_AT + u64::from(self.told) * size_of::<Report>() as u64;
                self.memory.write(Which::List, place, report.as_bytes())?;
                self.told += 1;
            }
            _ => {}
        }
        Some(())
    }

    /// Puts the grey objects at the cursor on the stack: those of one part of a block's bitmaps. So
    /// the caller looks at its bounds between two parts.
    fn sweep(&mut self) -> Option<()> {
        self.looked += 1;
        let (block, from) = self.cursor;
        let here = self.look_up(block)?.filter(|(_, known)| known.lies == Lies::Here);
        let Some((at, known, half)) = here.map(|(at, known)| (at, known, bitmap(known.slots))) else {
            self.cursor = (block + 1, 0);
            return Some(());
        };
        let Some(left) = half.checked_sub(u64::from(from)).filter(|&left| left > 0) else {
            self.cursor = (block + 1, 0);
            return Some(());
        };
        let len = left.min(SWEEP.into()) as usize;
        let (mut marked, mut scanned) = ([0; SWEEP as usize], [0; SWEEP as usize]);
        self.memory.read(Which::Place(at + 1), from.into(), &mut marked[..len])?;
        self.memory.read(Which::Place(at + 1), half + u64::from(from), &mut scanned[..len])?;
        // Before: what finds no room on the stack takes the cursor back to this part.
        self.cursor = if left > SWEEP.into() { (block, from + SWEEP) } else { (block + 1, 0) };
        let (marked, scanned) = (marked.as_chunks::<8>().0, scanned.as_chunks::<8>().0);
        for (n, (marked, scanned)) in marked.iter().zip(scanned).take(len / 8).enumerate() {
            let mut grey = u64::from_le_bytes(*marked) & !u64::from_le_bytes(*scanned);
            while grey != 0 {
                let slot = 8 * from + 64 * n as u32 + grey.trailing_zeros();
                grey &= grey - 1;
                if slot < known.slots {
                    self.push(word(block, slot), block);
                }
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
