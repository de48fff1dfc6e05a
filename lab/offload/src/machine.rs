//! The machine that runs work requests: queues, completion queues, memory.
//!
//! ```text
//!  SEND ─► RECV scatters its bytes into requests ─► completion queue counts
//!                                                        │
//!  control queue:   WAIT ◄───────────────────────────────┘   ENABLE ─► work queue: fetched up to here, then run
//! ```
//!
//! As on a card, a work queue's requests are *fetched* when an ENABLE lets it go on,
//! all up to its index at once: what is patched later is not seen. A chain that
//! patches itself therefore enables itself step by step, with a WAIT for each patch.
//!
//! One request of one queue at a time, chosen by whoever drives the machine: the NIC
//! runs a chain to its end, a test interleaves them in every way.

use super::request::{CHECK_QUEUE, Op, REQUEST_BYTES, Region, Request};
use farmem_nic::grip::Memory;
use farmem_nic::windows::{Bound, Windows};
use farmem_protocol::key::{Key, KeyKind, Rights};
use std::collections::VecDeque;

/// Where chunks begin in the machine's addresses.
pub const CHUNKS_AT: u64 = 1 << 40;
/// The holder of the machine's windows: the node itself, no member.
pub const NODE: u64 = u64::MAX;
/// Bytes of an answer.
pub const REPLY: u64 = 64;
const REPLY_AT: u64 = 1 << 41;
/// Where entries begin for [`Region::Entries`]: a registration of the entries alone, at an address of its
/// own whose low 40 bits are zero, so that an index can be put into it byte by byte.
pub const ENTRIES_AT: u64 = 1 << 42;

/// A work queue.
#[derive(Clone, Debug, Default)]
struct Queue {
    /// Its requests, a ring in the machine's memory.
    at: u64,
    len: u64,
    /// Next to be fetched. (A control queue fetches as it runs; a work queue up to what is enabled.)
    next: u64,
    /// Fetched and not yet run.
    fetched: VecDeque<Request>,
    /// Requests completed.
    completed: u32,
}

/// What a SEND's bytes go to: places in memory, in order.
#[derive(Clone, Debug, Default)]
pub struct Scatter(pub Vec<(u64, u32)>);

/// One chain: a control queue and the queue that it enables, for one queue pair of a member.
#[derive(Clone, Debug)]
pub struct Chain {
    control: Queue,
    work: Queue,
    /// SENDs received.
    received: u32,
    scatter: Scatter,
    /// Whose.
    pub member: u64,
    /// Through which queue pair its SENDs come.
    pub queue: u64,
    reply: [u8; REPLY as usize],
    /// A protection error stopped it.
    pub broken: bool,
}

/// Names a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainId(pub usize);

/// Memory and chains.
pub struct Machine {
    memory: Vec<u8>,
    /// What of it is ring, head, tail and table; the rest is requests.
    table: std::ops::Range<u64>,
    chunks: Memory,
    chunks_base: u64,
    chunks_len: u64,
    chains: Vec<Option<Chain>>,
    /// Memory of chains that have ended, by their lengths.
    spare: Vec<(u64, (u64, u64))>,
    /// What of the table are entries, which are also reachable from [`ENTRIES_AT`] on.
    entries: std::ops::Range<u64>,
    /// Requests run so far.
    pub requests: u64,
}

/// What one step did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// A request ran.
    Ran(Op),
    /// It waits, or has nothing to do.
    Idle,
    /// It stopped for good: a protection error, a window that would not.
    Broken,
}

impl Machine {
    /// With so many bytes of table, and these chunks: `len` bytes at `base` of `memory`.
    pub fn new(table: u64, chunks: Memory, base: u64, len: u64) -> Machine {
        // Address 0 is in no region.
        let table = 4096..4096 + table.next_multiple_of(4096);
        let memory = vec![0; table.end as usize];
        let (chains, spare) = (Vec::new(), Vec::new());
        Machine { memory, table, chunks, chunks_base: base, chunks_len: len, chains, spare, entries: 0..0, requests: 0 }
    }

    /// Where the table begins.
    pub fn table(&self) -> u64 {
        self.table.start
    }

    /// Says where in the table the entries are.
    pub fn set_entries(&mut self, entries: std::ops::Range<u64>) {
        self.entries = entries;
    }

    /// Makes a chain. `control` and `work` are given where their requests will lie.
    pub fn chain(
        &mut self,
        member: u64,
        queue: u64,
        lengths: (u64, u64),
        build: impl FnOnce(ChainId, u64, u64) -> (Vec<Request>, Vec<Request>, Scatter),
    ) -> ChainId {
        let hole = self.chains.iter().position(Option::is_none);
        let id = ChainId(hole.unwrap_or(self.chains.len()));
        if hole.is_none() {
            self.chains.push(None);
        }
        let spare = self.spare.iter().position(|(_, of)| *of == lengths).map(|n| self.spare.swap_remove(n).0);
        let control_at = spare.unwrap_or(self.memory.len() as u64);
        let bytes = (lengths.0 + lengths.1) * REQUEST_BYTES;
        self.memory.resize(self.memory.len().max((control_at + bytes) as usize), 0);
        let work_at = control_at + lengths.0 * REQUEST_BYTES;
        let (control, work, scatter) = build(id, control_at, work_at);
        debug_assert_eq!((control.len() as u64, work.len() as u64), lengths);
        for (n, request) in control.iter().chain(&work).enumerate() {
            let at = control_at as usize + n * REQUEST_BYTES as usize;
            self.memory[at..at + REQUEST_BYTES as usize].copy_from_slice(&request.bytes());
        }
        let queue_of = |at, len| Queue { at, len, ..Queue::default() };
        self.chains[id.0] = Some(Chain {
            control: queue_of(control_at, lengths.0),
            work: queue_of(work_at, lengths.1),
            received: 0,
            scatter,
            member,
            queue,
            reply: [0; REPLY as usize],
            broken: false,
        });
        id
    }

    /// The chain, and all that it was doing, is no more.
    pub fn end(&mut self, id: ChainId) {
        if let Some(chain) = self.chains.get_mut(id.0).and_then(Option::take) {
            self.spare.push((chain.control.at, (chain.control.len, chain.work.len)));
        }
    }

    /// A SEND arrives: its bytes go where the RECV says. False when the chain is broken.
    pub fn receive(&mut self, id: ChainId, said: &[u8]) -> bool {
        let Some(Some(chain)) = self.chains.get_mut(id.0) else { return false };
        if chain.broken {
            return false;
        }
        chain.received += 1;
        let mut rest = said;
        for &(address, len) in &chain.scatter.0 {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.memory[address as usize..][..now.len()].copy_from_slice(now);
            rest = later;
        }
        true
    }

    /// The chain's answer, as far as it has been written.
    pub fn reply(&self, id: ChainId) -> Option<[u8; REPLY as usize]> {
        Some(self.chains.get(id.0)?.as_ref()?.reply)
    }

    /// Runs a chain until it waits for the next SEND, with a drain behind every INVALIDATE. False when it broke.
    pub fn run(&mut self, id: ChainId, windows: &Windows, drain: &mut dyn FnMut()) -> bool {
        loop {
            match self.step(id, windows) {
                Stepped::Ran(Op::Invalidate) => drain(),
                Stepped::Ran(_) => {}
                Stepped::Idle => return true,
                Stepped::Broken => return false,
            }
        }
    }

    /// Runs one request of a chain: of its work queue if that may, else of its control queue.
    pub fn step(&mut self, id: ChainId, windows: &Windows) -> Stepped {
        let Some(mut chain) = self.chains.get_mut(id.0).and_then(Option::take) else { return Stepped::Broken };
        let stepped = if chain.broken { Stepped::Broken } else { self.step_chain(&mut chain, windows) };
        chain.broken |= stepped == Stepped::Broken;
        self.chains[id.0] = Some(chain);
        stepped
    }

    fn step_chain(&mut self, chain: &mut Chain, windows: &Windows) -> Stepped {
        if let Some(request) = chain.work.fetched.pop_front() {
            self.requests += 1;
            if self.carry_out(chain, &request, windows).is_none() {
                return Stepped::Broken;
            }
            chain.work.completed += 1;
            return Stepped::Ran(request.op);
        }
        let Some(request) = self.fetch(&chain.control) else { return Stepped::Broken };
        let (high, low) = ((request.target >> 32) as u32, request.target as u32);
        match request.op {
            Op::Wait => {
                let counted = if high == 0 { chain.received } else { chain.work.completed };
                // Counters go round; what is waited for is never far ahead.
                if (counted.wrapping_sub(low) as i32) < 0 {
                    return Stepped::Idle;
                }
            }
            Op::Enable => {
                while chain.work.next as u32 != low {
                    let Some(fetched) = self.fetch(&chain.work) else { return Stepped::Broken };
                    chain.work.fetched.push_back(fetched);
                    chain.work.next += 1;
                }
            }
            _ => {
                if self.carry_out(chain, &request, windows).is_none() {
                    return Stepped::Broken;
                }
            }
        }
        self.requests += 1;
        chain.control.next += 1;
        Stepped::Ran(request.op)
    }

    fn fetch(&self, queue: &Queue) -> Option<Request> {
        let at = queue.at + queue.next % queue.len * REQUEST_BYTES;
        Request::of(self.memory.get(at as usize..)?.first_chunk()?)
    }

    fn carry_out(&mut self, chain: &mut Chain, request: &Request, windows: &Windows) -> Option<()> {
        match request.op {
            Op::Nop => {}
            Op::Read => {
                let mut from = request.remote;
                for part in request.parts.iter().flatten() {
                    let bytes = self.load(chain, Region::named(request.key)?, from, part.len)?;
                    self.store(chain, part.region, part.address, &bytes)?;
                    from += part.len as u64;
                }
            }
            Op::Write => {
                let mut to = request.remote;
                for part in request.parts.iter().flatten() {
                    if part.region == Region::Zeros {
                        self.wipe(to, part.len)?;
                    } else {
                        let bytes = self.load(chain, part.region, part.address, part.len)?;
                        self.store(chain, Region::named(request.key)?, to, &bytes)?;
                    }
                    to += part.len as u64;
                }
            }
            Op::Faa => {
                let region = Region::named(request.key)?;
                let old = self.word(chain, region, request.remote)?;
                let new = add_within(old, request.operand, request.second);
                self.store(chain, region, request.remote, &new.to_le_bytes())?;
                self.answer(chain, request, old)?;
            }
            Op::Bind => {
                let KeyKind::Window { index, generation } = Key(request.target).kind() else { return None };
                let (rights, len) = (Rights::of((request.second >> 56) as u8)?, request.second & ((1 << 56) - 1));
                let start = request.remote.checked_sub(CHUNKS_AT)?;
                if start.checked_add(len)? > self.chunks_len {
                    return None;
                }
                let bound = Bound {
                    memory: self.chunks.clone(),
                    base: self.chunks_base + start,
                    len,
                    rights,
                    user: chain.member,
                    queue: request.operand,
                    parent: Key(0),
                    under: None,
                    carved: Vec::new(),
                };
                let key = windows.bind(NODE, (index, generation), bound).ok()?;
                self.answer(chain, request, key.0)?;
            }
            Op::Invalidate => {
                let KeyKind::Window { index, generation } = Key(request.target).kind() else { return None };
                let checked = request.flags & CHECK_QUEUE != 0;
                let (member, queue) = if checked { (chain.member, chain.queue) } else { (NODE, 0) };
                let key = windows.invalidate(member, queue, (index, generation)).ok()?;
                self.answer(chain, request, key.0)?;
            }
            Op::Wait | Op::Enable => return None,
        }
        Some(())
    }

    /// Eight bytes to the request's first part, if it has one.
    fn answer(&mut self, chain: &mut Chain, request: &Request, value: u64) -> Option<()> {
        match request.parts[0] {
            Some(part) => self.store(chain, part.region, part.address, &value.to_le_bytes()),
            None => Some(()),
        }
    }

    /// Whether the range is in the region; where in memory, for regions that are.
    fn place(&self, region: Region, address: u64, len: u32) -> Option<std::ops::Range<usize>> {
        let (address, region) = match region {
            Region::Entries => {
                let at = self.entries.start.checked_add(address.checked_sub(ENTRIES_AT)?)?;
                if at.checked_add(len as u64)? > self.entries.end {
                    return None;
                }
                (at, Region::Table)
            }
            _ => (address, region),
        };
        let end = address.checked_add(len as u64)?;
        let within = match region {
            Region::Table | Region::Everything => self.table.clone(),
            Region::Requests => self.table.end..self.memory.len() as u64,
            _ => return None,
        };
        (address >= within.start && end <= within.end).then_some(address as usize..end as usize)
    }

    fn chunk(&self, region: Region, address: u64, len: u32) -> Option<u64> {
        let offset = address.checked_sub(CHUNKS_AT)?;
        let reaches = matches!(region, Region::Chunks | Region::Everything);
        (reaches && offset.checked_add(len as u64)? <= self.chunks_len).then_some(self.chunks_base + offset)
    }

    fn load(&self, chain: &Chain, region: Region, address: u64, len: u32) -> Option<Vec<u8>> {
        if region == Region::Reply {
            let from = address.checked_sub(REPLY_AT)? as usize;
            return Some(chain.reply.get(from..from.checked_add(len as usize)?)?.to_vec());
        }
        if let Some(offset) = self.chunk(region, address, len) {
            return self.chunks.mapping().bytes(offset, len);
        }
        Some(self.memory[self.place(region, address, len)?].to_vec())
    }

    fn store(&mut self, chain: &mut Chain, region: Region, address: u64, bytes: &[u8]) -> Option<()> {
        if region == Region::Reply {
            let from = address.checked_sub(REPLY_AT)? as usize;
            chain.reply.get_mut(from..from.checked_add(bytes.len())?)?.copy_from_slice(bytes);
            return Some(());
        }
        if let Some(offset) = self.chunk(region, address, bytes.len() as u32) {
            return self.chunks.mapping().write_bytes(offset, bytes).then_some(());
        }
        let place = self.place(region, address, bytes.len() as u32)?;
        self.memory[place].copy_from_slice(bytes);
        Some(())
    }

    fn word(&self, chain: &Chain, region: Region, address: u64) -> Option<u64> {
        let bytes = self.load(chain, region, address, 8)?;
        Some(u64::from_le_bytes(*bytes.first_chunk()?))
    }

    /// A WRITE of zeros to chunks.
    fn wipe(&self, address: u64, len: u32) -> Option<()> {
        let offset = self.chunk(Region::Chunks, address, len)?;
        const PAGE: [u8; 4096] = [0; 4096];
        let mut done = 0;
        while done < len {
            let n = (len - done).min(4096);
            self.chunks.mapping().write_bytes(offset + done as u64, &PAGE[..n as usize]).then_some(())?;
            done += n;
        }
        Some(())
    }

    /// Zeros a chunk, by the node's CPU.
    pub fn wipe_chunk(&self, address: u64, len: u32) {
        self.wipe(address, len);
    }

    /// A word of the table, for the node's CPU.
    pub fn peek(&self, address: u64) -> u64 {
        let at = address as usize;
        u64::from_le_bytes(*self.memory[at..].first_chunk().expect("inside the table"))
    }

    /// Changes a word of the table, by the node's CPU.
    pub fn poke(&mut self, address: u64, word: u64) {
        self.memory[address as usize..][..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Where the answer of a chain is written, in its own addresses.
pub const fn reply_at() -> u64 {
    REPLY_AT
}

/// An addition that carries across no bit set in `boundaries` (extended atomics: a set bit is the highest of
/// its field).
fn add_within(old: u64, add: u64, boundaries: u64) -> u64 {
    // Without the fields' highest bits nothing can carry; those add without carry out.
    ((old & !boundaries) + (add & !boundaries)) ^ ((old ^ add) & boundaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_addition_stays_in_its_field() {
        // A ring of 4 words of 8 bytes at 0x1000: the field is bits 0 to 4.
        let boundary = 1 << 4;
        let mut head = 0x1000;
        let seen: Vec<u64> = (0..6)
            .map(|_| {
                let old = head;
                head = add_within(head, 8, boundary);
                old
            })
            .collect();
        assert_eq!(seen, [0x1000, 0x1008, 0x1010, 0x1018, 0x1000, 0x1008]);
    }
}
