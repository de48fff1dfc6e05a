//! A swap device whose pages go to a node by RDMA: ublk's requests become one-sided READs and WRITEs.
//!
//! ```text
//!  kernel: swap ─► ublk ─► this process ── READ, WRITE ═══ RDMA ═══► slabs   a block of 2 MiB for each that is in use
//!                                       └─ verbs on words ════════► slab 0  claim a block; give it back when it is trimmed
//! ```
//!
//! On the way of a page nothing is sent by TCP. With farmem's own pool nothing is allocated. Slabs are granted before
//! the device appears. Buffers are registered and locked. A block is claimed from a pool ([`crate::pools`]): from
//! farmem's by one CAS of the card's. Everything else about a device of this kind is not here: freed slots, tokens, a
//! node that ends. A block that another host had is not scrubbed.

// It plays the caller of READ and WRITE, and has buffers that the kernel writes to.
#![allow(unsafe_code)]

use crate::pools::{BUFFER, Pool, Words, pool};
use farmem_fabric::{Completion, ConnectOptions, NodeAddr, QueuePair, Session, Transport};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_sys::process::Signals;
use farmem_sys::swap;
use farmem_sys::ublk::{Device, Queue, Request, What};
use std::sync::mpsc;
use std::time::Duration;

const BLOCK: u64 = 2 << 20;
const BLOCKS_OF_SLAB: u64 = SLAB_BYTES / BLOCK;
/// Requests under way, and bytes of one at most. Their product is locked.
const DEPTH: u16 = 32;
const MOST: u32 = 128 << 10;
/// The tag of the first READ of each slab. Others are of requests.
const FIRST: u64 = u64::MAX;
/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes a device of `mib` MiB with blocks of this pool, and serves it until the device or this process is ended.
///
/// # Errors
/// One line that says what is missing.
pub fn serve(node: &str, mib: u64, blocks_of: &str) -> Result<(), String> {
    let signals = Signals::take().map_err(|e| e.to_string())?;
    swap::stay_resident().map_err(|e| e.to_string())?;
    let options = ConnectOptions {
        timeout: Duration::from_secs(20),
        grace: Duration::from_secs(20),
        run: [21; 16],
        pid: std::process::id(),
        transport: Transport::Verbs,
        ..ConnectOptions::default()
    };
    let node: NodeAddr = node.parse().map_err(|e| format!("{node}: {e}"))?;
    let session = Session::connect(&node, &options).map_err(|e| e.to_string())?;
    let slabs = 1 + (mib << 20).div_ceil(SLAB_BYTES);
    let slabs: Result<Vec<SlabId>, String> =
        (0..slabs).map(|_| session.grant().map(|slab| slab.id).map_err(|e| e.to_string())).collect();
    let slabs = slabs?;
    let buffers: &'static mut [u8] = vec![0u8; usize::from(DEPTH) * MOST as usize + BUFFER].leak();
    let at = buffers.as_mut_ptr() as usize;
    let last = at + usize::from(DEPTH) * MOST as usize;
    // SAFETY: the buffers are leaked: they stay until the process ends.
    unsafe { session.arena(at as *mut u8, buffers.len()) };
    let device = Device::new(mib << 20, DEPTH, MOST).map_err(|e| format!("ublk: {e}"))?;
    println!("swap: {} of {mib} MiB", device.path());
    let (ready, is_ready) = mpsc::channel();
    std::thread::scope(|scope| {
        let device = &device;
        let server = {
            // SAFETY: the buffers stay, and are used by this queue alone.
            let made = move || unsafe { device.queue(at as *mut u8) }.map_err(|e| format!("ublk's queue: {e}"));
            let session = &session;
            let slabs = &slabs;
            scope.spawn(move || -> Result<(), String> {
                let queue = session.queue_pair().map_err(|e| e.to_string())?;
                // SAFETY: the last bytes of the arena, which no request has.
                let words = unsafe { Words::new(queue, slabs[0], last as *mut u8) };
                let blocks = (slabs.len() as u64 - 1) * BLOCKS_OF_SLAB;
                let pool = pool(blocks_of, words, blocks as usize, u64::from(session.owner()) + 1)?;
                let mut server = Server::new(session, slabs.clone(), made()?, mib, pool)?;
                // The first verb to a slab makes its key known, by a message: not when memory is out.
                server.touch()?;
                swap::wait_for_no_page().and_then(|()| swap::come_first()).map_err(|e| e.to_string())?;
                ready.send(()).map_err(|e| e.to_string())?;
                server.serve()
            })
        };
        if is_ready.recv().is_ok() {
            device.begin().map_err(|e| format!("ublk does not start: {e}"))?;
            println!("swap: ready");
            while !server.is_finished() {
                let arrived = signals.next(Duration::from_secs(1));
                if arrived.is_some_and(|arrived| signals.asks_to_end(arrived)) {
                    device.stop().map_err(|e| format!("ublk does not stop: {e}"))?;
                }
            }
        }
        server.join().unwrap_or_else(|_| Err("the server has panicked".into()))
    })
}

/// A request that is under way.
#[derive(Clone, Copy, Default)]
struct Under {
    left: u32,
    result: i32,
}

struct Server {
    queue: QueuePair,
    slabs: Vec<SlabId>,
    ublk: Queue,
    /// The block of the pool that each block of the device has.
    places: Vec<Option<u32>>,
    pool: Box<dyn Pool>,
    under: [Under; DEPTH as usize],
    done: Vec<Completion>,
    claims: u64,
    returns: u64,
    moved: u64,
}

impl Server {
    fn new(
        session: &Session,
        slabs: Vec<SlabId>,
        ublk: Queue,
        mib: u64,
        pool: Box<dyn Pool>,
    ) -> Result<Server, String> {
        Ok(Server {
            queue: session.queue_pair().map_err(|e| e.to_string())?,
            slabs,
            ublk,
            places: vec![None; (mib << 20).div_ceil(BLOCK) as usize],
            pool,
            under: [Under::default(); DEPTH as usize],
            done: Vec::with_capacity(256),
            claims: 0,
            returns: 0,
            moved: 0,
        })
    }

    /// Reads a page of every slab.
    fn touch(&mut self) -> Result<(), String> {
        for slab in self.slabs.clone() {
            // SAFETY: a buffer of the queue's, which no request has yet.
            unsafe { self.queue.read(FIRST, slab, 0, self.ublk.buffer(0), 4096) };
            self.await_first()?;
        }
        Ok(())
    }

    fn serve(&mut self) -> Result<(), String> {
        loop {
            let idle = self.queue.in_flight() == 0;
            if let Some(request) = self.ublk.next(idle).map_err(|e| format!("ublk: {e}"))? {
                self.begin(request)?;
                continue;
            }
            if self.queue.in_flight() == 0 && self.ublk.has_ended() {
                let (claims, returns, moved, verbs) = (self.claims, self.returns, self.moved, self.pool.verbs());
                println!(
                    "swap: {claims} claims and {returns} returns by {verbs} verbs; {moved} READs and WRITEs of pages"
                );
                return Ok(());
            }
            self.queue.doorbell().map_err(|e| e.to_string())?;
            self.queue.wait(&mut self.done, Duration::from_millis(1)).map_err(|e| e.to_string())?;
            self.settle();
        }
    }

    fn begin(&mut self, request: Request) -> Result<(), String> {
        match request.what {
            What::Read | What::Write => self.transfer(request)?,
            What::Discard | What::Zeroes => {
                self.trim(request);
                self.ublk.complete(request.tag, request.len as i32);
            }
            What::Flush => self.ublk.complete(request.tag, 0),
            What::Unknown => self.ublk.complete(request.tag, -libc::EOPNOTSUPP),
        }
        Ok(())
    }

    /// Posts a verb for each block that the request is in.
    fn transfer(&mut self, request: Request) -> Result<(), String> {
        self.under[usize::from(request.tag)] = Under { left: 0, result: request.len as i32 };
        let mut at = 0;
        while at < request.len {
            let offset = request.offset + u64::from(at);
            let len = u64::from(request.len - at).min(BLOCK - offset % BLOCK) as u32;
            let buffer = self.ublk.buffer(request.tag).wrapping_add(at as usize);
            let block = (offset / BLOCK) as usize;
            let place = match (self.places[block], request.what) {
                (None, What::Write) => {
                    let claimed = self.pool.claim();
                    self.places[block] = claimed;
                    self.claims += u64::from(claimed.is_some());
                    claimed
                }
                (place, _) => place,
            };
            match place {
                Some(place) => {
                    let (slab, within) = self.lies(place, offset % BLOCK);
                    let tag = u64::from(request.tag);
                    if request.what == What::Write {
                        // SAFETY: the tag's buffer, which is this request's until it is completed.
                        unsafe { self.queue.write(tag, slab, within, buffer, len) };
                    } else {
                        // SAFETY: as above.
                        unsafe { self.queue.read(tag, slab, within, buffer, len) };
                    }
                    self.under[usize::from(request.tag)].left += 1;
                    self.moved += 1;
                }
                None if request.what == What::Write => self.under[usize::from(request.tag)].result = -libc::ENOSPC,
                // Nothing was ever written there.
                // SAFETY: as above.
                None => unsafe { buffer.write_bytes(0, len as usize) },
            }
            at += len;
        }
        if self.under[usize::from(request.tag)].left == 0 {
            self.ublk.complete(request.tag, self.under[usize::from(request.tag)].result);
        }
        Ok(())
    }

    /// The slab of a block of the pool, and the offset there.
    fn lies(&self, place: u32, within: u64) -> (SlabId, u64) {
        let slab = 1 + u64::from(place) / BLOCKS_OF_SLAB;
        (self.slabs[slab as usize], u64::from(place) % BLOCKS_OF_SLAB * BLOCK + within)
    }

    /// Gives back the blocks that lie wholly in what is trimmed.
    fn trim(&mut self, request: Request) {
        let end = request.offset + u64::from(request.len);
        for block in request.offset.div_ceil(BLOCK)..end / BLOCK {
            let Some(place) = self.places[block as usize].take() else { continue };
            self.pool.give(place);
            self.returns += 1;
        }
    }

    fn await_first(&mut self) -> Result<(), String> {
        self.queue.doorbell().map_err(|e| e.to_string())?;
        let begun = std::time::Instant::now();
        loop {
            self.queue.wait(&mut self.done, Duration::from_millis(10)).map_err(|e| e.to_string())?;
            if let Some(at) = self.done.iter().position(|done| done.tag == FIRST) {
                return self.done.remove(at).result.map(drop).map_err(|e| format!("a slab: {e:?}"));
            }
            if begun.elapsed() > PATIENCE {
                return Err("a slab is not answered".into());
            }
        }
    }

    /// Completes the requests whose verbs have all ended.
    fn settle(&mut self) {
        while let Some(done) = self.done.pop() {
            let tag = done.tag as u16;
            let under = &mut self.under[usize::from(tag)];
            under.left -= 1;
            if done.result.is_err() {
                under.result = -libc::EIO;
            }
            if under.left == 0 {
                self.ublk.complete(tag, under.result);
            }
        }
    }
}
