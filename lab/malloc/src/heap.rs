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
//! to 64 MiB; larger ones are refused. What is known of objects lies in local memory: a
//! table with one word for each page says which span a page is of, so that freeing
//! looks at nothing far.

use crate::classes::{self, CLASSES};
use farmem_agent::client::{AllocError, Chunk, Client};
use farmem_sys::memory::SparseArray;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of the address space of a process.
const PAGES: usize = 1 << (47 - 12);
/// In the table of pages: a large object.
const LARGE: u64 = CLASSES as u64;

/// The heap. Threads use it through [`Heap::thread`].
pub struct Heap<'a> {
    client: &'a Client,
    /// By page: class in the high half, span plus one in the low. Zero: not ours.
    pages: SparseArray<AtomicU64>,
    centrals: Vec<Lock<Central>>,
    large: Lock<HashMap<usize, Chunk>>,
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
        Ok(Heap { client, pages: SparseArray::new(PAGES)?, centrals, large: Lock::new(HashMap::new()) })
    }

    /// A thread's part of it.
    pub fn thread(&self) -> ThreadHeap<'_> {
        ThreadHeap { heap: self, magazines: (0..CLASSES).map(|c| Vec::with_capacity(2 * classes::batch(c))).collect() }
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
        let (base, bytes) = (chunk.address().as_ptr() as usize, chunk.bytes());
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
        let address = chunk.address().as_ptr() as usize;
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
}

impl ThreadHeap<'_> {
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

impl Drop for ThreadHeap<'_> {
    fn drop(&mut self) {
        for (class, magazine) in self.magazines.iter_mut().enumerate() {
            self.heap.take_back(class, magazine.drain(..));
        }
    }
}
