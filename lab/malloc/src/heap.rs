//! An allocator whose memory is far: spans of equal objects, cut from pieces that
//! the agent grants; a cache of objects for each thread.
//!
//! ```text
//!  thread ── magazine of a class ──► (empty, full: a batch) ──► class: spans with free objects
//!                                                                  │ none: a piece        ▲ all free: goes back
//!                                                                  └──────── client ──────┘
//! ```
//!
//! Objects above 32 KiB are pieces of their own, above 2 MiB runs of blocks, up
//! to 64 MiB; larger ones are refused. Where memory is not mapped, objects have addresses all the same, which nothing lies
//! at ([`Chunk::number`]), and a table says by which key each block's are reached. What is known of objects lies in local memory: a
//! table with one word for each page says which span a page is of, so that freeing
//! looks at nothing far.

// Verbs whose buffers are words of the stack.
#![allow(unsafe_code)]

use crate::classes::{self, CLASSES};
use farmem_agent::client::{AllocError, Chunk, Client, Reach, ReachError};
use farmem_fabric::{Completion, QueuePair};
use farmem_protocol::key::Key;
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bits of an address within its page, and within its block.
const PAGE: usize = 12;
const BLOCK: usize = 21;
/// Pages of the address space of a process.
const PAGES: usize = 1 << (47 - PAGE);
/// In the table of pages: a large object.
const LARGE: u64 = CLASSES as u64;

/// The heap. Threads use it through [`Heap::thread`].
pub struct Heap<'a> {
    client: &'a Client,
    /// By page: class in the high half, span plus one in the low. Zero: not ours.
    pages: SparseArray<AtomicU64>,
    centrals: Vec<Lock<Central>>,
    large: Lock<HashMap<usize, Chunk>>,
    /// By block of addresses, where memory is elsewhere: its key.
    keys: SparseArray<AtomicU64>,
}

/// One class's spans.
#[derive(Default)]
struct Central {
    spans: Vec<Option<Span>>,
    unused: Vec<u32>,
    /// Spans that have a free object (or had: looked at when it is their turn).
    partial: Vec<u32>,
    /// Spans without a live object.
    empty: u32,
}

struct Span {
    chunk: Chunk,
    base: usize,
    /// Free objects, by number.
    free: Vec<u16>,
    objects: u16,
    listed: bool,
}

impl<'a> Heap<'a> {
    /// An empty heap.
    pub fn new(client: &'a Client) -> Result<Heap<'a>, Errno> {
        let centrals = (0..CLASSES).map(|_| Lock::new(Central::default())).collect();
        let (pages, keys) = (SparseArray::new(PAGES)?, SparseArray::new(PAGES >> (BLOCK - PAGE))?);
        Ok(Heap { client, pages, centrals, large: Lock::new(HashMap::new()), keys })
    }

    /// A thread's part of it.
    ///
    /// # Errors
    /// When the node that its memory is at cannot be reached.
    pub fn thread(&self) -> Result<ThreadHeap<'_>, ReachError> {
        let magazines = (0..CLASSES).map(|c| Vec::with_capacity(2 * classes::batch(c))).collect();
        Ok(ThreadHeap { heap: self, magazines, reach: self.client.reach()? })
    }

    /// The piece's address; by which keys it is reached is noted, if it is.
    fn address_of(&self, chunk: &Chunk) -> usize {
        let address = chunk.number() as usize;
        for of_run in 0..(chunk.bytes() as usize).div_ceil(1 << BLOCK) {
            if let Ok(Some((key, _))) = self.client.key(chunk, (of_run << BLOCK) as u64) {
                self.keys[(address >> BLOCK) + of_run].store(key.0, Ordering::Relaxed);
            }
        }
        address
    }

    /// By which key an address is reached, and where behind it.
    fn key_of(&self, address: usize) -> (Key, u64) {
        (Key(self.keys[address >> BLOCK].load(Ordering::Relaxed)), address as u64 & ((1 << BLOCK) - 1))
    }

    fn mark(&self, base: usize, bytes: u64, word: u64) {
        for page in 0..(bytes >> 12) as usize {
            self.pages[(base >> 12) + page].store(word, Ordering::Relaxed);
        }
    }

    /// Adds free objects of a class; at least one.
    fn refill(&self, class: usize, count: usize, out: &mut Vec<usize>) -> Result<(), AllocError> {
        let size = classes::size_of(class);
        let mut central = self.centrals[class].lock();
        let central = &mut *central;
        while out.len() < count {
            let Some(&at) = central.partial.last() else {
                match self.span(class, central) {
                    Ok(()) => continue,
                    Err(_) if !out.is_empty() => return Ok(()),
                    Err(e) => return Err(e),
                }
            };
            let Some(span) = central.spans[at as usize].as_mut() else {
                central.partial.pop();
                continue;
            };
            if span.free.len() == span.objects as usize {
                central.empty -= 1;
            }
            let take = span.free.len().min(count - out.len());
            out.extend(span.free.drain(span.free.len() - take..).map(|object| span.base + object as usize * size));
            if span.free.is_empty() {
                span.listed = false;
                central.partial.pop();
            }
        }
        Ok(())
    }

    /// One more span for a class.
    fn span(&self, class: usize, central: &mut Central) -> Result<(), AllocError> {
        let chunk = self.client.alloc(classes::span_order(class))?;
        let (base, bytes) = (self.address_of(&chunk), chunk.bytes());
        let objects = (bytes as usize / classes::size_of(class)) as u16;
        let at = central.unused.pop().unwrap_or_else(|| {
            central.spans.push(None);
            central.spans.len() as u32 - 1
        });
        self.mark(base, bytes, (class as u64) << 32 | (at as u64 + 1));
        central.spans[at as usize] =
            Some(Span { chunk, base, free: (0..objects).rev().collect(), objects, listed: true });
        central.partial.push(at);
        central.empty += 1;
        Ok(())
    }

    /// Takes objects of a class back.
    fn take_back(&self, class: usize, objects: impl Iterator<Item = usize>) {
        let size = classes::size_of(class);
        let mut central = self.centrals[class].lock();
        let central = &mut *central;
        for address in objects {
            let at = (self.pages[address >> 12].load(Ordering::Relaxed) as u32).wrapping_sub(1);
            let Some(span) = central.spans.get_mut(at as usize).and_then(Option::as_mut) else { continue };
            span.free.push(((address - span.base) / size) as u16);
            if !std::mem::replace(&mut span.listed, true) {
                central.partial.push(at);
            }
            if span.free.len() == span.objects as usize {
                central.empty += 1;
                // One empty span is kept, and one for every sixteen.
                if central.empty as usize > 1 + central.spans.len() / 16
                    && let Some(span) = central.spans[at as usize].take()
                {
                    central.empty -= 1;
                    central.partial.retain(|&listed| listed != at);
                    central.unused.push(at);
                    self.mark(span.base, span.chunk.bytes(), 0);
                    self.client.free(span.chunk);
                }
            }
        }
    }

    fn alloc_large(&self, size: usize) -> Result<usize, AllocError> {
        let pages = size.div_ceil(4096);
        let order = pages.next_power_of_two().ilog2() as u8;
        let chunk = match order {
            0..=9 => self.client.alloc(order)?,
            _ => self.client.alloc_run(u32::try_from(size.div_ceil(2 << 20)).unwrap_or(u32::MAX))?,
        };
        let address = self.address_of(&chunk);
        self.pages[address >> 12].store(LARGE << 32 | 1, Ordering::Relaxed);
        self.large.lock().insert(address, chunk);
        Ok(address)
    }

    fn free_large(&self, address: usize) {
        let chunk = self.large.lock().remove(&address);
        if let Some(chunk) = chunk {
            self.pages[address >> 12].store(0, Ordering::Relaxed);
            self.client.free(chunk);
        }
    }
}

/// A thread's cache of objects.
pub struct ThreadHeap<'a> {
    heap: &'a Heap<'a>,
    magazines: Vec<Vec<usize>>,
    reach: Reach<'a>,
}

impl ThreadHeap<'_> {
    /// Whether objects are read and written by verbs.
    #[inline]
    pub fn is_elsewhere(&mut self) -> bool {
        self.reach.queue().is_ok_and(|queue| queue.is_some())
    }

    /// Writes a word to an object's beginning, and to its end if that is another, in one round trip.
    pub fn put_word(&mut self, address: usize, size: usize, word: u64) -> Result<(), ReachError> {
        let Some(queue) = self.reach.queue()? else { return Err(ReachError::Range) };
        let mut posted = 0;
        for at in ends(address, size) {
            let (key, offset) = self.heap.key_of(at);
            // SAFETY: the word outlives the verbs, which are awaited below.
            unsafe { queue.write(0, key, offset, (&raw const word).cast(), 8) };
            posted += 1;
        }
        finish(queue, posted)
    }

    /// Reads an object's first word, and its last, which may be the same.
    pub fn get_words(&mut self, address: usize, size: usize) -> Result<[u64; 2], ReachError> {
        let Some(queue) = self.reach.queue()? else { return Err(ReachError::Range) };
        let (mut words, mut posted) = ([0u64; 2], 0);
        let room: *mut u64 = words.as_mut_ptr();
        for at in ends(address, size) {
            let (key, offset) = self.heap.key_of(at);
            // SAFETY: the words outlive the verbs, which are awaited below; one each.
            unsafe { queue.read(0, key, offset, room.add(posted).cast(), 8) };
            posted += 1;
        }
        finish(queue, posted)?;
        if posted == 1 {
            words[1] = words[0];
        }
        Ok(words)
    }

    /// An object's address; aligned to 16 bytes.
    #[inline]
    pub fn alloc(&mut self, size: usize) -> Result<usize, AllocError> {
        if size > classes::LARGEST {
            return self.heap.alloc_large(size);
        }
        let class = classes::class_of(size);
        let magazine = &mut self.magazines[class];
        if let Some(address) = magazine.pop() {
            return Ok(address);
        }
        self.heap.refill(class, classes::batch(class), magazine)?;
        magazine.pop().ok_or(AllocError::Tables)
    }

    /// Takes an object back.
    ///
    /// # Panics
    /// When the address is none that this heap gave.
    #[inline]
    pub fn free(&mut self, address: usize) {
        let word = self.heap.pages[address >> 12].load(Ordering::Relaxed);
        assert!(word != 0, "an address that is not the heap's");
        let class = (word >> 32) as usize;
        if class == CLASSES {
            return self.heap.free_large(address);
        }
        let magazine = &mut self.magazines[class];
        magazine.push(address);
        let batch = classes::batch(class);
        if magazine.len() >= 2 * batch {
            self.heap.take_back(class, magazine.drain(..batch));
        }
    }
}

/// Where an object's first word is, and its last if that is another.
fn ends(address: usize, size: usize) -> impl Iterator<Item = usize> {
    std::iter::once(address).chain((size >= 16).then(|| address + size - 8))
}

/// Waits for all that was posted. A queue pair that is lost meanwhile touches no buffer any more (over tcp).
fn finish(queue: &mut QueuePair, posted: usize) -> Result<(), ReachError> {
    let mut done: Vec<Completion> = Vec::with_capacity(posted);
    queue.doorbell()?;
    while done.len() < posted {
        queue.wait(&mut done, Duration::from_secs(1))?;
    }
    done.into_iter().try_for_each(|completion| completion.result.map(|_| ()).map_err(ReachError::from))
}

impl Drop for ThreadHeap<'_> {
    fn drop(&mut self) {
        for (class, magazine) in self.magazines.iter_mut().enumerate() {
            self.heap.take_back(class, magazine.drain(..));
        }
    }
}
