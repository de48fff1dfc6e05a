//! Marking: which objects roots lead to.
//!
//! ```text
//! roots ─► inbox of each node ─┬─ computes: MARK at the node ──► reports: links to other nodes ─┐
//!            ▲                 └─ does not: links are read here ─► links                        │
//!            └───────────────────────── each word once ─────────────────────────────────────────┘
//! ```
//!
//! Both ways give the same bits, and any node may take either. A node that refuses a call, or whose
//! answer is impossible, is marked from here, from the beginning: a call that was cut off may have
//! left half of its work.

use super::{Block, Collected, FarArena};
use crate::heap::Inner;
use crate::{FarBox, Linked, Result};
use farmem::near::mark::{
    ENTRY, Head, LINK, Lies, Marked, Marking, REPORTS_AT, Report, STACK, STACK_AT, bitmap, named,
};
use farmem::{Addr, Error, Lane};
use std::collections::HashMap;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a work range.
const WORK: u64 = 128 << 10;
/// Reports that it has room for.
const ROOM: u32 = ((WORK - REPORTS_AT) / size_of::<Report>() as u64) as u32;
/// Bytes of a piece with bits of blocks.
const BITS: u64 = 256 << 10;
/// The largest piece, bytes.
const LARGEST: u64 = 2 << 20;
/// Objects whose links are read together.
const TOGETHER: usize = 512;

/// The result of a marking.
pub(super) struct Marks {
    /// By block: a bit for each slot that can be reached.
    pub bits: Vec<Vec<u64>>,
    /// Links to objects that moved: the holder with the link's place, and the old word.
    pub patches: Vec<(u64, u64)>,
}

/// A node's memory for markings. It is kept from one to the next.
#[derive(Default)]
pub(super) struct State {
    directory: Option<(Addr, u64)>,
    work: Option<Addr>,
    bits: Vec<Addr>,
}

impl State {
    pub(super) fn free(self, inner: &Inner) {
        let directory = self.directory.map(|(at, _)| at);
        for piece in directory.into_iter().chain(self.work).chain(self.bits) {
            // Of a node that is lost there is nothing to give back.
            let _ = inner.memory().free(piece);
        }
    }

    /// Takes what a marking needs.
    fn grow(&mut self, node: usize, lane: &mut Lane, blocks: u64, bits: usize) -> farmem::Result<()> {
        let needs = (blocks * ENTRY).next_power_of_two().max(4096);
        if needs > LARGEST {
            return Err(Error::Size(needs));
        }
        if let Some((at, _)) = self.directory.take_if(|(_, has)| *has < needs) {
            lane.free(at)?;
        }
        if self.directory.is_none() {
            self.directory = Some((lane.alloc_on(node, needs)?, needs));
        }
        if self.work.is_none() {
            self.work = Some(lane.alloc_on(node, WORK)?);
        }
        while self.bits.len() < bits {
            self.bits.push(lane.alloc_on(node, BITS)?);
        }
        Ok(())
    }
}

/// Why a marking stopped.
enum Stopped {
    /// This node does not mark.
    Refused(usize),
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(e: Error) -> Stopped {
        Stopped::Failed(e)
    }
}

/// A node that marks by itself.
struct There {
    node: usize,
    marking: Marking,
    /// As its last reply said.
    marked: Marked,
    /// Objects that it said to have scanned.
    scanned: u64,
    /// Words that it was handed last.
    handed: usize,
    /// Rounds in which it was handed none, and said to have scanned none.
    idle: usize,
}

struct Marker<'a, T: Linked> {
    blocks: &'a [Option<Block<T>>],
    moved: &'a HashMap<u64, u64>,
    lane: &'a mut Lane,
    there: Vec<There>,
    /// By node: objects to be scanned.
    inbox: Vec<Vec<u64>>,
    marks: Marks,
    here: usize,
}

impl<T: Linked> FarArena<T> {
    /// Marks all objects to which roots lead. All that were written to are at home.
    pub(super) fn mark(&mut self, done: &mut Collected) -> Result<Marks> {
        let inner = &self.heap.inner;
        let mut lane = inner.memory().lane()?;
        let nodes = inner.memory().nodes();
        self.states.resize_with(nodes, State::default);
        let has_some = |node: usize| self.blocks.iter().flatten().any(|block| block.at.node() == node);
        let mut computes: Vec<bool> = (0..nodes).map(|node| lane.near().computes(node) && has_some(node)).collect();
        loop {
            let mut marker = Marker {
                blocks: &self.blocks,
                moved: &self.moved,
                lane: &mut lane,
                there: Vec::new(),
                inbox: vec![Vec::new(); nodes],
                marks: Marks {
                    bits: vec![vec![0; Block::<T>::SLOTS.div_ceil(64)]; self.blocks.len()],
                    patches: Vec::new(),
                },
                here: 0,
            };
            let marked = marker.run(&computes, &mut self.states, &self.roots.borrow().words);
            done.here += marker.here;
            done.at_nodes += marker.there.iter().map(|there| there.scanned as usize).sum::<usize>();
            match marked {
                Ok(()) => return Ok(marker.marks),
                Err(Stopped::Refused(node)) => computes[node] = false,
                Err(Stopped::Failed(e)) => return Err(e.into()),
            }
        }
    }
}

impl<T: Linked> Marker<'_, T> {
    const STRIDE: usize = FarBox::<T>::CLASS.payload;
    const SLOTS: u32 = Block::<T>::SLOTS as u32;
    /// Blocks whose bits a piece has.
    const EACH: usize = (BITS / (2 * bitmap(Self::SLOTS))) as usize;

    fn run(&mut self, computes: &[bool], states: &mut [State], roots: &[u64]) -> std::result::Result<(), Stopped> {
        for (node, state) in states.iter_mut().enumerate().filter(|(node, _)| computes[*node]) {
            let marking = self.begin(node, state).map_err(|e| match e {
                // There it has no room, or is too large.
                Error::Full(_) | Error::Size(_) => Stopped::Refused(node),
                e => Stopped::Failed(e),
            })?;
            let marked = Marked { scanned: 0, told: 0, left: 0, done: true };
            self.there.push(There { node, marking, marked, scanned: 0, handed: 0, idle: 0 });
        }
        roots.iter().for_each(|&root| self.push(root));
        loop {
            self.read_links(computes)?;
            let inbox = &self.inbox;
            let waits = |n: &usize| !self.there[*n].marked.done || !inbox[self.there[*n].node].is_empty();
            let waiting: Vec<usize> = (0..self.there.len()).filter(waits).collect();
            if waiting.is_empty() {
                break;
            }
            self.go_on(&waiting)?;
        }
        self.take_bits(states)
    }

    /// Lays out a node's directory, and clears its bits.
    fn begin(&mut self, node: usize, state: &mut State) -> farmem::Result<Marking> {
        let pieces = self.blocks.len().div_ceil(Self::EACH);
        state.grow(node, self.lane, self.blocks.len() as u64, pieces)?;
        for &piece in &state.bits[..pieces] {
            self.lane.near().fill(piece, BITS, 0)?;
        }
        let mut directory = Vec::with_capacity(self.blocks.len() * ENTRY as usize);
        for (n, block) in self.blocks.iter().enumerate() {
            let lies = match block {
                None => Lies::Nowhere,
                Some(block) if block.is_moved => Lies::Moved,
                Some(block) if block.at.node() == node => Lies::Here,
                Some(_) => Lies::Elsewhere,
            };
            let at = block.as_ref().filter(|_| lies == Lies::Here).map_or(Addr::NULL, |block| block.at);
            let places = (at, Self::bits(state, n));
            let entry = self.lane.near().entry(places, Self::SLOTS, Self::STRIDE as u16, lies)?;
            directory.extend_from_slice(entry.as_bytes());
        }
        let (Some((at, _)), Some(work)) = (state.directory, state.work) else { return Err(Error::Nodes(node)) };
        let mut head = Head::default();
        for link in T::LINKS.iter().map(|at| at / 8) {
            head.links[link / 64] |= 1u64 << (link % 64);
        }
        self.lane.write(at, &directory)?;
        self.lane.write(work, head.as_bytes())?;
        let blocks = self.blocks.len() as u32;
        Ok(Marking { directory: at, blocks, work, stride: Self::STRIDE as u16, room: ROOM })
    }

    /// Where a node has the bits of a block.
    fn bits(state: &State, block: usize) -> Addr {
        state.bits[block / Self::EACH] + (block % Self::EACH) as u64 * 2 * bitmap(Self::SLOTS)
    }

    /// Has an object be scanned, if it was not named before.
    fn push(&mut self, word: u64) {
        let Some((block, slot)) = named(word) else { return };
        let Some(Some(there)) = self.blocks.get(block as usize) else { return };
        if !there.has(slot as usize) {
            return;
        }
        let bits = &mut self.marks.bits[block as usize][slot as usize / 64];
        if *bits >> (slot % 64) & 1 == 0 {
            *bits |= 1 << (slot % 64);
            self.inbox[there.at.node()].push(word);
        }
    }

    /// A link that was found.
    fn follow(&mut self, holder: u64, word: u64) {
        match self.moved.get(&word) {
            Some(&new) => {
                self.marks.patches.push((holder, word));
                self.push(new);
            }
            None => self.push(word),
        }
    }

    /// Scans objects of nodes that do not mark, until none is left.
    fn read_links(&mut self, computes: &[bool]) -> farmem::Result<()> {
        let (Some(&first), Some(&last)) = (T::LINKS.iter().min(), T::LINKS.iter().max()) else {
            (0..computes.len()).filter(|&node| !computes[node]).for_each(|node| self.inbox[node].clear());
            return Ok(());
        };
        let span = last + 8 - first;
        let mut bytes = vec![0; TOGETHER * span];
        loop {
            let mut some = Vec::with_capacity(TOGETHER);
            for node in (0..computes.len()).filter(|&node| !computes[node]) {
                let inbox = &mut self.inbox[node];
                some.extend(inbox.drain(inbox.len().saturating_sub(TOGETHER - some.len())..));
            }
            if some.is_empty() {
                return Ok(());
            }
            let place = |&word: &u64| {
                let (block, slot) = named(word)?;
                Some(self.blocks[block as usize].as_ref()?.place(slot as usize) + first as u64)
            };
            // Where a node's memory is mapped, its lines come while others are copied.
            some.iter().filter_map(place).for_each(|at| self.lane.touch(at));
            let mut batch = self.lane.batch();
            for (at, object) in some.iter().map(place).zip(bytes.chunks_exact_mut(span)) {
                if let Some(at) = at {
                    batch.read(at, object);
                }
            }
            batch.run().into_iter().try_for_each(|done| done.map(drop))?;
            for (&holder, object) in some.iter().zip(bytes.chunks_exact(span)) {
                for &link in T::LINKS {
                    let word = u64::read_from_bytes(&object[link - first..][..8]).unwrap_or_default();
                    self.follow(holder | (link as u64 / 8) << LINK, word);
                }
            }
            self.here += some.len();
        }
    }

    /// Hands nodes their words, has them go on, and takes what they report.
    fn go_on(&mut self, waiting: &[usize]) -> std::result::Result<(), Stopped> {
        let mut words: Vec<(Addr, Vec<u8>)> = Vec::new();
        for &n in waiting {
            let There { node, marking, marked, handed, .. } = &mut self.there[n];
            let inbox = &mut self.inbox[*node];
            let room = (STACK - marked.left) as usize;
            let some: Vec<u64> = inbox.drain(inbox.len().saturating_sub(room)..).collect();
            *handed = some.len();
            if !some.is_empty() || marked.told > 0 {
                let count = marked.left + some.len() as u32;
                words.push((marking.work + STACK_AT + 8 * u64::from(marked.left), some.as_bytes().to_vec()));
                words.push((marking.work + std::mem::offset_of!(Head, count) as u64, [count, 0].as_bytes().to_vec()));
            }
        }
        let mut batch = self.lane.batch();
        words.iter().filter(|(_, bytes)| !bytes.is_empty()).for_each(|(at, bytes)| {
            batch.write(*at, bytes);
        });
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        let markings: Vec<Marking> = waiting.iter().map(|&n| self.there[n].marking).collect();
        let states = self.lane.near().mark(&markings)?;
        for (&n, marked) in waiting.iter().zip(states) {
            let there = &mut self.there[n];
            let marked = marked.ok_or(Stopped::Refused(there.node))?;
            there.scanned += u64::from(marked.scanned);
            there.idle = if marked.scanned > 0 || there.handed > 0 { 0 } else { there.idle + 1 };
            there.marked = marked;
            // Impossible: more objects than there are, or rounds without end.
            let most = self.blocks.len() as u64 * u64::from(Self::SLOTS);
            if there.scanned > most || there.idle > 16 + 4 * self.blocks.len() {
                return Err(Stopped::Refused(there.node));
            }
            let mut reports = vec![0; marked.told as usize * size_of::<Report>()];
            if !reports.is_empty() {
                let at = there.marking.work + REPORTS_AT;
                self.lane.read(at, &mut reports)?;
            }
            for report in reports.chunks_exact(size_of::<Report>()) {
                if let Ok(Report { holder, word }) = Report::read_from_bytes(report) {
                    self.follow(holder.get(), word.get());
                }
            }
        }
        Ok(())
    }

    /// Reads the bits of nodes that marked.
    fn take_bits(&mut self, states: &[State]) -> std::result::Result<(), Stopped> {
        for There { node, .. } in &self.there {
            let mut bits: Vec<(usize, Vec<u8>)> = Vec::new();
            for (n, block) in self.blocks.iter().enumerate() {
                if block.as_ref().is_some_and(|block| block.at.node() == *node && !block.is_moved) {
                    bits.push((n, vec![0; bitmap(Self::SLOTS) as usize]));
                }
            }
            let mut batch = self.lane.batch();
            bits.iter_mut().for_each(|(n, bits)| {
                batch.read(Self::bits(&states[*node], *n), bits);
            });
            batch.run().into_iter().try_for_each(|done| done.map(drop))?;
            for (n, bits) in bits {
                let words = bits.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
                self.marks.bits[n] = words.collect();
            }
        }
        Ok(())
    }
}

const _: () = assert!(ROOM >= 512, "the links of one object have room");
