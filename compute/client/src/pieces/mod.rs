//! Pieces of memory: taking and freeing them.
//!
//! Each slab has a table of its chunks ([`table`]). Private memory has its tables in this process,
//! and they alone count. A region has each table at the beginning of the slab itself, where it is
//! changed by CAS. This process has a copy, which only tells where to try:
//!
//! ```text
//!  alloc:  take in the copy ─► CAS each word ─┬─ all done ─► a piece
//!                                             └─ not all ──► swap back those done; note the words; again
//!          nothing is free in any copy ─► read all tables again ─► nothing ─► one more slab
//!  free:   READ the words ─► the piece's end ─► CAS each word
//! ```
//! No process waits for another. One that is killed leaves words taken, never a lock, and no piece
//! of others is changed.

pub(crate) mod table;

use crate::lane::Lane;
use crate::memory::Inner;
use crate::{Addr, Error, Result};
use farmem_sys::sync::Lock;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use table::{CHUNK, MAX_ORDER, MOST_WORDS, Span, Table, WORDS};

/// Chunks at the beginning of each slab of a region that are no pieces: the table, and in the first
/// slab the roots.
const RESERVED: usize = 2;
/// The table's own chunks, which count as taken.
const RESERVED_BITS: u64 = 0b1111;
/// How long a node that had no memory left is not asked again, if others have some.
const DRY: Duration = Duration::from_millis(100);
/// Blocks of 2 MiB of private memory that stay with the process when all in them is free.
const KEPT_BLOCKS: usize = 8;
/// Words of a block.
const BLOCK_WORDS: usize = MOST_WORDS;
const BLOCK_BYTES: u64 = CHUNK << MAX_ORDER;

/// A piece that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Piece {
    /// Its first byte.
    pub at: Addr,
    /// Its length.
    pub bytes: u64,
}

/// The tables of all nodes, as this process knows them.
pub(crate) struct Pieces {
    nodes: Vec<Lock<Node>>,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Node {
    tables: Vec<Table>,
    /// The time until which nothing more can be had there.
    dry: Option<Instant>,
    /// Private memory: slabs and blocks in which all is free, and that may hold old bytes.
    emptied: BTreeSet<(usize, usize)>,
}

impl Node {
    /// Takes a piece that is free by the tables here. Returns its slab, its chunks, and the words
    /// of its table before that.
    fn take(&mut self, order: u32) -> Option<(usize, Span, Vec<u64>)> {
        let (slab, span) =
            self.tables.iter_mut().enumerate().find_map(|(slab, table)| Some((slab, table.take(order)?)))?;
        let words = &self.tables[slab].words;
        Some((slab, span, span.words().map(|word| words[word] & !span.bits(word).0).collect()))
    }

    fn is_dry(&mut self) -> bool {
        self.dry.take_if(|until| *until <= Instant::now());
        self.dry.is_some()
    }
}

impl Pieces {
    pub fn new(nodes: usize) -> Pieces {
        Pieces { nodes: (0..nodes).map(|_| Lock::new(Node::default())).collect(), turn: AtomicUsize::new(0) }
    }
}

impl Lane {
    /// See [`crate::Memory::alloc`].
    pub fn alloc(&mut self, bytes: u64) -> Result<Addr> {
        let order = table::order_of(bytes).ok_or(Error::Size(bytes))?;
        let inner = self.inner();
        inner.unless_forked()?;
        let (count, turn) = (inner.shards.len(), inner.pieces.turn.fetch_add(1, Ordering::Relaxed));
        let mut nodes: Vec<usize> = (0..count).map(|n| (turn + n) % count).collect();
        // Nodes that had no memory lately are asked last.
        nodes.sort_by_key(|&node| inner.pieces.nodes[node].lock().is_dry());
        let mut failed = Error::Nodes(0);
        for node in nodes {
            match self.alloc_of(node, order) {
                Err(e @ (Error::Full(_) | Error::Lost { .. })) => failed = e,
                had => return had,
            }
        }
        Err(failed)
    }

    /// See [`crate::Memory::alloc_on`].
    pub fn alloc_on(&mut self, node: usize, bytes: u64) -> Result<Addr> {
        let order = table::order_of(bytes).ok_or(Error::Size(bytes))?;
        match node < self.inner().shards.len() {
            true => self.alloc_of(node, order),
            false => Err(Error::Nodes(node)),
        }
    }

    /// See [`crate::Memory::alloc_zeroed`].
    pub fn alloc_zeroed(&mut self, bytes: u64) -> Result<Addr> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let at = self.alloc(bytes)?;
        // The whole piece: it may be larger than was asked for.
        let whole = table::order_of(bytes).map_or(bytes, |order| CHUNK << order);
        let mut batch = self.batch();
        for from in (0..whole).step_by(ZEROS.len()) {
            batch.write(at + from, &ZEROS[..(whole - from).min(ZEROS.len() as u64) as usize]);
        }
        match batch.run().into_iter().find_map(Result::err) {
            None => Ok(at),
            // The caller does not learn its address.
            Some(why) => {
                let _ = self.free(at);
                Err(why)
            }
        }
    }

    /// See [`crate::Memory::free`].
    pub fn free(&mut self, piece: Addr) -> Result<()> {
        let inner = self.inner();
        inner.unless_forked()?;
        let (node, chunk) = (piece.node(), (piece.offset() / CHUNK) as usize);
        let slab =
            piece.slab().checked_sub(1).filter(|_| node < inner.shards.len() && piece.offset().is_multiple_of(CHUNK));
        let slab = slab.ok_or(Error::NotAPiece(piece))?;
        if inner.region.is_some() {
            return self.free_shared(piece, slab, chunk);
        }
        let mut of = inner.pieces.nodes[node].lock();
        let table = of.tables.get_mut(slab);
        let span = table.as_deref().and_then(|table| table::piece_at(&table.words[chunk / 32..], chunk));
        let (Some(table), Some(span)) = (table, span) else { return Err(Error::NotAPiece(piece)) };
        table.clear(span);
        of.dry = None;
        let Some(table) = of.tables.get(slab) else { return Ok(()) };
        let block = span.words().start / BLOCK_WORDS;
        if block_of(table, block).iter().all(|&word| word == 0) {
            of.emptied.insert((slab, block));
            if of.emptied.len() > KEPT_BLOCKS {
                let emptied = std::mem::take(&mut of.emptied);
                drop(of);
                self.give_back(node, emptied);
            }
        }
        Ok(())
    }

    /// See [`crate::Memory::pieces`].
    pub fn pieces(&mut self) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for node in 0..self.inner().shards.len() {
            pieces.extend(self.pieces_on(node)?);
        }
        Ok(pieces)
    }

    /// See [`crate::Memory::pieces_on`].
    pub fn pieces_on(&mut self, node: usize) -> Result<Vec<Piece>> {
        // A lock that another thread of the parent's held at the fork is held for ever.
        self.inner().unless_forked()?;
        if node >= self.inner().shards.len() {
            return Err(Error::Nodes(node));
        }
        if self.inner().region.is_some() {
            self.read_tables(node)?;
        }
        let mut pieces = Vec::new();
        let reserved = if self.inner().region.is_some() { RESERVED } else { 0 };
        let of = self.inner().pieces.nodes[node].lock();
        for (slab, table) in of.tables.iter().enumerate() {
            let piece = |span: Span| Piece { at: at(node, slab, span), bytes: span.bytes() };
            pieces.extend(table.pieces().filter(|span| span.first >= reserved).map(piece));
        }
        Ok(pieces)
    }

    /// See [`crate::Memory::alloc_at`].
    pub fn alloc_at(&mut self, piece: Addr, bytes: u64) -> Result<()> {
        let order = table::order_of(bytes).ok_or(Error::Size(bytes))?;
        self.inner().unless_forked()?;
        let (node, first) = (piece.node(), (piece.offset() / CHUNK) as usize);
        let span = Span { first, order };
        let known = node < self.inner().shards.len() && self.inner().region.is_some();
        let aligned = piece.offset().is_multiple_of(span.bytes()) && first >= RESERVED;
        let slab = piece.slab().checked_sub(1).filter(|_| known && aligned).ok_or(Error::NotAPiece(piece))?;
        loop {
            let slabs = self.inner().pieces.nodes[node].lock().tables.len();
            if slabs > slab {
                break;
            }
            let grown = self.inner().shard(node)?.grow(slabs)?.len();
            if grown <= slabs {
                return Err(Error::Size(bytes));
            }
            self.add_tables(node, grown)?;
        }
        loop {
            let mut found = vec![0; 8 * span.words().len()];
            self.read(word_at(node, slab, span.words().start), &mut found)?;
            let found = words_of(&found);
            if span.words().zip(&found).any(|(word, was)| was & span.bits(word).0 != 0) {
                return Err(Error::NotAPiece(piece));
            }
            let mut of = self.inner().pieces.nodes[node].lock();
            span.words().zip(&found).for_each(|(word, was)| of.tables[slab].set(word, was | span.bits(word).1));
            drop(of);
            if self.claim(node, slab, span, &found)? {
                return Ok(());
            }
        }
    }

    fn inner(&self) -> &Inner {
        &self.memory().inner
    }

    fn alloc_of(&mut self, node: usize, order: u32) -> Result<Addr> {
        self.inner().unless_forked()?;
        if let Some(lost) = self.inner().shards[node].session().standing().loss() {
            return Err(lost.into());
        }
        let is_region = self.inner().region.is_some();
        let mut is_fresh = !is_region;
        loop {
            let picked = self.inner().pieces.nodes[node].lock().take(order);
            if let Some((slab, span, found)) = picked {
                if !is_region || self.claim(node, slab, span, &found)? {
                    return Ok(at(node, slab, span));
                }
                continue;
            }
            if !is_fresh {
                // Others may have freed something, or added a slab.
                self.read_tables(node)?;
                is_fresh = true;
                continue;
            }
            let known = self.inner().pieces.nodes[node].lock().tables.len();
            match self.inner().shard(node)?.grow(known) {
                Ok(slabs) if slabs.len() > known => self.add_tables(node, slabs.len())?,
                // As many as addresses can name.
                Ok(_) => return Err(Error::Size(CHUNK << order)),
                Err(e) => {
                    if matches!(e, Error::Full(_)) {
                        self.inner().pieces.nodes[node].lock().dry = Some(Instant::now() + DRY);
                    }
                    return Err(e);
                }
            }
        }
    }

    /// Takes a region's piece: CASes its words from `found` to taken. False: a word had changed, so
    /// nothing is taken and the copy here is brought up to date.
    fn claim(&mut self, node: usize, slab: usize, span: Span, found: &[u64]) -> Result<bool> {
        let mut batch = self.batch();
        for (word, &was) in span.words().zip(found) {
            batch.compare_swap(word_at(node, slab, word), was, was | span.bits(word).1);
        }
        let results = batch.run();
        if span.words().zip(found).zip(&results).all(|((_, was), result)| result.as_ref() == Ok(was)) {
            return Ok(true);
        }
        let mut back = self.batch();
        let mut lost = None;
        for ((word, &was), result) in span.words().zip(found).zip(&results) {
            match result {
                Ok(old) if *old == was => {
                    back.compare_swap(word_at(node, slab, word), was | span.bits(word).1, was);
                }
                // A word whose CAS is unknown may be taken now. It then stays taken.
                Ok(_) | Err(Error::Unknown) => {}
                Err(e) => lost = Some(e.clone()),
            }
        }
        back.run();
        if let Some(lost) = lost {
            return Err(lost);
        }
        let mut of = self.inner().pieces.nodes[node].lock();
        for ((word, &was), result) in span.words().zip(found).zip(&results) {
            if let Ok(old) = result {
                of.tables[slab].set(word, if *old == was { was } else { *old });
            }
        }
        Ok(false)
    }

    /// Frees a piece of a region: reads its words, then CASes each from taken to free.
    fn free_shared(&mut self, piece: Addr, slab: usize, chunk: usize) -> Result<()> {
        let (node, first) = (piece.node(), chunk / 32);
        if chunk < RESERVED {
            return Err(Error::NotAPiece(piece));
        }
        let mut bytes = vec![0; 8 * MOST_WORDS.min(WORDS - first)];
        self.read(word_at(node, slab, first), &mut bytes)?;
        let mut words = words_of(&bytes);
        let span = table::piece_at(&words, chunk).ok_or(Error::NotAPiece(piece))?;
        let mut left: Vec<usize> = span.words().collect();
        // In each round another process has changed a word that this one had read: some process
        // makes progress.
        while !left.is_empty() {
            let mut batch = self.batch();
            for &word in &left {
                let was = words[word - first];
                batch.compare_swap(word_at(node, slab, word), was, was & !span.bits(word).0);
            }
            let results = batch.run();
            let mut again = Vec::new();
            for (word, result) in left.into_iter().zip(results) {
                let (old, (mask, taken)) = (result?, span.bits(word));
                if old & mask != taken {
                    return Err(Error::NotAPiece(piece));
                }
                if old != std::mem::replace(&mut words[word - first], old) {
                    again.push(word);
                }
            }
            left = again;
        }
        let mut of = self.inner().pieces.nodes[node].lock();
        if let Some(table) = of.tables.get_mut(slab) {
            span.words().for_each(|word| table.set(word, words[word - first] & !span.bits(word).0));
        }
        of.dry = None;
        Ok(())
    }

    /// Reads all tables of a region at a node.
    fn read_tables(&mut self, node: usize) -> Result<()> {
        let slabs = self.inner().shard(node)?.up_to(usize::MAX)?.len();
        self.add_tables(node, slabs)
    }

    /// Makes tables for `slabs` slabs. Those of a region are read from the node.
    fn add_tables(&mut self, node: usize, slabs: usize) -> Result<()> {
        let known = self.inner().pieces.nodes[node].lock().tables.len();
        let mut bytes = Vec::new();
        if self.inner().region.is_some() {
            let mut batch = self.batch();
            for slab in known..slabs {
                batch.compare_swap(word_at(node, slab, 0), 0, RESERVED_BITS);
            }
            batch.run().into_iter().try_for_each(|result| result.map(drop))?;
            bytes = vec![0; slabs * 8 * WORDS];
            let mut batch = self.batch();
            for (slab, table) in bytes.chunks_exact_mut(8 * WORDS).enumerate() {
                batch.read(word_at(node, slab, 0), table);
            }
            batch.run().into_iter().try_for_each(|result| result.map(drop))?;
        }
        let mut of = self.inner().pieces.nodes[node].lock();
        while of.tables.len() < slabs {
            of.tables.push(Table::new());
        }
        for (table, bytes) in of.tables.iter_mut().zip(bytes.chunks_exact(8 * WORDS)) {
            words_of(bytes).into_iter().enumerate().for_each(|(word, bits)| table.set(word, bits));
        }
        Ok(())
    }

    /// Gives the memory of blocks back to the node if they are still free. They read as zero then.
    fn give_back(&self, node: usize, blocks: BTreeSet<(usize, usize)>) {
        let inner = self.inner();
        for (slab, block) in blocks {
            // The block counts as taken meanwhile, so that nobody gets memory that is being zeroed.
            let span = Span { first: block * (BLOCK_BYTES / CHUNK) as usize, order: MAX_ORDER };
            let mut of = inner.pieces.nodes[node].lock();
            if block_of(&of.tables[slab], block).iter().any(|&word| word != 0) {
                continue;
            }
            span.words().for_each(|word| of.tables[slab].words[word] = span.bits(word).1);
            drop(of);
            let session = inner.shards[node].session();
            if let Some(&id) = inner.shards[node].known().get(slab) {
                // A node that does not do it keeps the bytes, which is no harm.
                let _ = session.discard(id, block as u64 * BLOCK_BYTES, BLOCK_BYTES);
            }
            inner.pieces.nodes[node].lock().tables[slab].clear(span);
        }
    }
}

fn at(node: usize, slab: usize, span: Span) -> Addr {
    Addr::of(node, slab + 1, span.first as u64 * CHUNK)
}

/// Where a word of a region's table is.
fn word_at(node: usize, slab: usize, word: usize) -> Addr {
    Addr::of(node, slab + 1, 8 * word as u64)
}

fn block_of(table: &Table, block: usize) -> &[u64] {
    &table.words[block * BLOCK_WORDS..(block + 1) * BLOCK_WORDS]
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    bytes.chunks_exact(8).map(word).collect()
}
