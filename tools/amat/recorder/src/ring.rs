//! The memory that recorded processes share with `farmem amat`: chunks of references. The recorded
//! threads are *producers*. `farmem amat` is the *consumer*.
//!
//! ```text
//! | control page | state of each chunk | chunk 0 | chunk 1 | …
//!
//!          producer takes it                producer fills it          consumer reads it
//!   FREE ───────────────────► HELD (len grows) ──────────────► READY ──────────────────► FREE
//! ```
//! A thread of the program holds one chunk and writes into it. A full one becomes `READY` with the
//! next *ticket*; the consumer reads the `READY` chunk of the lowest ticket, so the chunks of a
//! thread are read in order. A producer waits while `MOST_READY` chunks are not yet read.
//!
//! A chunk states its length at every moment. So chunks of a process that has ended, in any way,
//! are read too. The consumer reads them at the end. After an exec it reads them as soon as the new
//! program begins in the same process.
//!
//! No wait is endless. Producers notice within `WAIT_NS` that the consumer is gone, or takes no
//! more. Then their references go to a chunk that is never read.

#![allow(unsafe_code)] // Chunks are reached by pointers into shared memory, on the way of every reference.

use farmem_sys::descriptors::close;
use farmem_sys::process;
use farmem_sys::raw::Errno;
use farmem_sys::shared::{self, Shared};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// References in a chunk.
pub const ROOM: u32 = ((CHUNK - HEAD) / 8) as u32;
/// The most chunks. Each thread of the program holds one, so this limits the threads alive at once.
pub const CHUNKS: u32 = 4096;

const CHUNK: usize = 64 << 10;
const HEAD: usize = 64;
const STATES: usize = 4096;
const FIRST: usize = STATES + 4 * CHUNKS as usize;
const LEN: usize = FIRST + CHUNKS as usize * CHUNK;
/// The most chunks that are filled and not yet read: 2 MiB. With as many, a producer seldom waits
/// until the consumer has woken, and the consumer seldom finds none.
const MOST_READY: u32 = 32;
/// A waiting producer looks this often whether the consumer is still there.
const WAIT_NS: u64 = 100_000_000;
const MAGIC: u64 = u64::from_le_bytes(*b"fm refs1");

const FREE: u32 = 0;
const HELD: u32 = 1;
const READY: u32 = 2;

/// The control page. Any field may change at any time.
#[repr(C)]
struct Control {
    magic: AtomicU64,
    /// The next ticket.
    ticket: AtomicU64,
    /// The consumer's process number.
    consumer: AtomicU32,
    /// The consumer takes no more.
    ended: AtomicU32,
    /// The number of chunks that are `READY`.
    ready: AtomicU32,
    /// The consumer sleeps on `ready`.
    asleep: AtomicU32,
    /// Counts chunks given back; producers sleep on it.
    given_back: AtomicU32,
    /// The number of producers that sleep.
    waiting: AtomicU32,
    /// Chunks from here on were never used.
    high: AtomicU32,
    /// Programs that began under the plugin.
    begun: AtomicU32,
    /// Programs that were executed without it.
    unseen: AtomicU32,
    /// 1: a program had more threads than there are chunks.
    too_many: AtomicU32,
}

/// The beginning of a chunk.
#[repr(C)]
pub struct Chunk {
    /// References written.
    len: AtomicU32,
    pid: AtomicU32,
    ticket: AtomicU64,
    /// Instructions carried out while the chunk was held.
    instructions: AtomicU64,
    /// `FRESH` if a block of code has begun since the last reference.
    fresh: AtomicU64,
    _rest: [u64; 4],
}

/// A reference as the plugin writes it: address, size, and which instruction made it.
///
/// ```text
///  63    55   54    53    52     51    50  48 47       0
/// | number | BOTH | REP | FRESH | STORE | log2 | address |
/// ```
pub mod word {
    /// Bits of the address.
    pub const ADDRESS: u64 = (1 << 48) - 1;
    /// Where log2 of the bytes begins; three bits.
    pub const SIZE: u32 = 48;
    /// A store.
    pub const STORE: u64 = 1 << 51;
    /// The first reference since a block of code was entered.
    pub const FRESH: u64 = 1 << 52;
    /// The instruction repeats (`rep`): none of its references is a part of a longer one.
    pub const REP: u64 = 1 << 53;
    /// The instruction loads from the address to which it stores. QEMU may report only the store.
    pub const BOTH: u64 = 1 << 54;
    /// Where the number of the instruction in its block begins. A block has at most 512.
    pub const NUMBER: u32 = 55;
}

impl Chunk {
    /// A chunk without room. A thread begins with it, and takes a real one at its first reference.
    pub const fn full() -> Chunk {
        Chunk {
            len: AtomicU32::new(ROOM),
            pid: AtomicU32::new(0),
            ticket: AtomicU64::new(0),
            instructions: AtomicU64::new(0),
            fresh: AtomicU64::new(0),
            _rest: [0; 4],
        }
    }

    /// Adds a reference. False if the chunk is full.
    ///
    /// # Safety
    /// `chunk` is followed by the words of a chunk, unless it is full.
    #[inline(always)]
    pub unsafe fn add(chunk: *const Chunk, word: u64) -> bool {
        // SAFETY: the caller's promise. `len` is below ROOM, so the word lies in the chunk, even if
        // another thread (of a forked child that is not recorded) writes the same chunk.
        unsafe {
            let at = (*chunk).len.load(Ordering::Relaxed);
            if at >= ROOM {
                return false;
            }
            let fresh = (*chunk).fresh.load(Ordering::Relaxed);
            (*chunk.add(1).cast::<AtomicU64>().add(at as usize)).store(word | fresh, Ordering::Relaxed);
            (*chunk).fresh.store(0, Ordering::Relaxed);
            (*chunk).len.store(at + 1, Ordering::Relaxed);
        }
        true
    }

    /// A block of `instructions` begins.
    #[inline(always)]
    pub fn enter(&self, instructions: u64) {
        // Only one thread writes. The consumer reads when that thread has handed the chunk over.
        self.instructions.store(self.instructions.load(Ordering::Relaxed) + instructions, Ordering::Relaxed);
        self.fresh.store(word::FRESH, Ordering::Relaxed);
    }

    /// Empties the chunk.
    pub fn clear(&self) {
        self.len.store(0, Ordering::Relaxed);
        self.instructions.store(0, Ordering::Relaxed);
    }
}

/// A mapping of the shared memory. Each process has its own.
pub struct Ring {
    memory: Shared,
    fd: i32,
}

/// Why a producer gets no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoChunk {
    /// The consumer is gone, or takes no more.
    Ended,
    /// Every chunk is held by a thread.
    TooManyThreads,
}

impl Ring {
    /// Creates the shared memory. This process is its consumer.
    ///
    /// # Errors
    /// No memory, or no descriptor.
    pub fn create() -> Result<Ring, Errno> {
        const { assert!(size_of::<Chunk>() == HEAD && size_of::<Control>() <= STATES) };
        let fd = shared::memory(c"farmem-refs", LEN as u64)?;
        let memory = Shared::map(fd, LEN).inspect_err(|_| close(fd))?;
        let ring = Ring { memory, fd };
        let control = ring.control();
        control.consumer.store(std::process::id(), Ordering::Relaxed);
        control.magic.store(MAGIC, Ordering::Release);
        Ok(ring)
    }

    /// Maps the consumer's memory in a recorded process. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// `fd` is no ring.
    pub fn open(fd: i32) -> Result<Ring, Errno> {
        // SAFETY: all zeros is a `stat`, which the call fills in.
        let len = unsafe {
            let mut about: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &mut about) == 0 { about.st_size } else { 0 }
        };
        if len != LEN as i64 {
            return Err(Errno(libc::EINVAL));
        }
        let ring = Ring { memory: Shared::map(fd, LEN)?, fd: -1 };
        match ring.control().magic.load(Ordering::Acquire) {
            MAGIC => Ok(ring),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The descriptor of the memory, in the process that created it.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    fn control(&self) -> &Control {
        // SAFETY: at the start of the mapping, which is longer; all fields are atomics.
        unsafe { self.memory.base().cast().as_ref() }
    }

    fn state(&self, chunk: u32) -> &AtomicU32 {
        self.memory.word32(STATES + 4 * chunk as usize)
    }

    fn chunk(&self, chunk: u32) -> &Chunk {
        assert!(chunk < CHUNKS);
        // SAFETY: inside the mapping, aligned; all fields are atomics.
        unsafe { self.memory.base().add(FIRST + chunk as usize * CHUNK).cast().as_ref() }
    }

    fn number(&self, chunk: &Chunk) -> u32 {
        let offset = std::ptr::from_ref(chunk) as usize - self.memory.base().as_ptr() as usize - FIRST;
        (offset / CHUNK) as u32
    }

    // The producers' half.

    /// Notes that a program begins in process `pid`. Hands over the chunks of the program that the
    /// process ran before.
    pub fn begin(&self, pid: u32) {
        let control = self.control();
        control.begun.fetch_add(1, Ordering::Relaxed);
        for chunk in 0..control.high.load(Ordering::Acquire).min(CHUNKS) {
            let held = self.state(chunk).load(Ordering::Acquire) == HELD;
            if held && self.chunk(chunk).pid.load(Ordering::Relaxed) == pid {
                self.hand_over(self.chunk(chunk));
            }
        }
    }

    /// Notes that a program is executed that will not be recorded.
    pub fn note_unseen(&self) {
        self.control().unseen.fetch_add(1, Ordering::Relaxed);
    }

    /// An empty chunk for a thread of process `pid`. Waits while the consumer is behind.
    ///
    /// # Errors
    /// The reason why there is none, now or later.
    pub fn take(&self, pid: u32) -> Result<&Chunk, NoChunk> {
        self.wait_for_room()?;
        let control = self.control();
        for chunk in 0..CHUNKS {
            let taken = self.state(chunk).compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            control.high.fetch_max(chunk + 1, Ordering::Release);
            let chunk = self.chunk(chunk);
            chunk.clear();
            chunk.fresh.store(word::FRESH, Ordering::Relaxed);
            chunk.pid.store(pid, Ordering::Relaxed);
            return Ok(chunk);
        }
        control.too_many.store(1, Ordering::Relaxed);
        Err(NoChunk::TooManyThreads)
    }

    fn wait_for_room(&self) -> Result<(), NoChunk> {
        let control = self.control();
        loop {
            let seen = control.given_back.load(Ordering::SeqCst);
            if control.ended.load(Ordering::Relaxed) != 0 {
                return Err(NoChunk::Ended);
            }
            if control.ready.load(Ordering::SeqCst) < MOST_READY {
                return Ok(());
            }
            control.waiting.fetch_add(1, Ordering::SeqCst);
            shared::futex_wait(&control.given_back, seen, WAIT_NS);
            control.waiting.fetch_sub(1, Ordering::SeqCst);
            if !process::exists(control.consumer.load(Ordering::Relaxed)) {
                return Err(NoChunk::Ended);
            }
        }
    }

    /// Gives a chunk to the consumer.
    pub fn hand_over(&self, chunk: &Chunk) {
        let control = self.control();
        chunk.ticket.store(control.ticket.fetch_add(1, Ordering::SeqCst), Ordering::Relaxed);
        control.ready.fetch_add(1, Ordering::SeqCst);
        self.state(self.number(chunk)).store(READY, Ordering::SeqCst);
        if control.asleep.load(Ordering::SeqCst) != 0 {
            shared::futex_wake(&control.ready);
        }
    }

    // The consumer's half.

    /// Programs that began under the plugin.
    pub fn begun(&self) -> u32 {
        self.control().begun.load(Ordering::Relaxed)
    }

    /// Programs that were executed and not recorded.
    pub fn unseen(&self) -> u32 {
        self.control().unseen.load(Ordering::Relaxed)
    }

    /// Whether a program had more threads than there are chunks, and was ended for it.
    pub fn had_too_many_threads(&self) -> bool {
        self.control().too_many.load(Ordering::Relaxed) != 0
    }

    /// Reads the chunk that was handed over first. `to` gets its words, and the number of
    /// instructions carried out. Returns false if there is no such chunk.
    pub fn read(&self, mut to: impl FnMut(&[AtomicU64], u64)) -> bool {
        let control = self.control();
        let all = 0..control.high.load(Ordering::Acquire).min(CHUNKS);
        let ready = all.filter(|&chunk| self.state(chunk).load(Ordering::Acquire) == READY);
        let Some(first) = ready.min_by_key(|&chunk| self.chunk(chunk).ticket.load(Ordering::Relaxed)) else {
            return false;
        };
        self.read_one(first, &mut to);
        control.ready.fetch_sub(1, Ordering::SeqCst);
        self.state(first).store(FREE, Ordering::Release);
        control.given_back.fetch_add(1, Ordering::SeqCst);
        if control.waiting.load(Ordering::SeqCst) != 0 {
            shared::futex_wake(&control.given_back);
        }
        true
    }

    fn read_one(&self, number: u32, to: &mut impl FnMut(&[AtomicU64], u64)) {
        let chunk = self.chunk(number);
        // A claim of the program's process: it can write anything here.
        let len = chunk.len.load(Ordering::Relaxed).min(ROOM) as usize;
        to(self.memory.words(FIRST + number as usize * CHUNK + HEAD, len), chunk.instructions.load(Ordering::Relaxed));
    }

    /// Sleeps until a chunk is handed over, at most `ns`.
    pub fn wait(&self, ns: u64) {
        let control = self.control();
        control.asleep.store(1, Ordering::SeqCst);
        shared::futex_wait(&control.ready, 0, ns);
        control.asleep.store(0, Ordering::Relaxed);
    }

    /// Takes no more from programs that go on, and reads what is left, of ended threads too.
    pub fn end(&self, mut to: impl FnMut(&[AtomicU64], u64)) {
        self.control().ended.store(1, Ordering::SeqCst);
        while self.read(&mut to) {}
        for chunk in 0..self.control().high.load(Ordering::Acquire).min(CHUNKS) {
            if self.state(chunk).load(Ordering::Acquire) == HELD {
                self.read_one(chunk, &mut to);
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.fd >= 0 {
            close(self.fd);
        }
    }
}

#[cfg(test)]
mod tests;
