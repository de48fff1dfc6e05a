//! OneSidedMW's chains (NSDI '26), request by request.
//!
//! ```text
//!  head ─► ring of pointers ─► entry: | key 0 | base | key 1 | base | key 2 | base | owner | 0 |     8 B each
//!  tail ─►
//!
//!  take:  RECV   queue pairs ─► operands of the BINDs
//!         FAA    head         ─► where the READ of the ring reads
//!         READ   ring         ─► where the READ of the entry reads
//!         READ   entry        ─► keys and starts of the BINDs
//!         BIND × 3
//!         WRITE  keys, owner  ─► entry
//!         WRITE  zero         ─► ring
//!         WRITE  keys, base, entry ─► client
//!
//!  give:  RECV   entry        ─► where the READ reads
//!         READ   entry        ─► keys of the INVALIDATEs
//!         INVALIDATE (only if bound to this queue pair: the test of ownership) × 1, then × 2
//!         WRITE  keys, owner 0 ─► entry
//!         FAA    tail         ─► where the WRITE of the ring writes
//!         WRITE  entry        ─► ring
//! ```
//!
//! Between two of these, where one patches the next, stand a WAIT and an ENABLE, and
//! at the end of a round FAAs that move these on to the next.
//!
//! | what the paper leaves open | [`Design::Published`] | [`Design::Mended`] |
//! |---|---|---|
//! | a slow take zeroes the slot that a give has filled meanwhile | it does: the entry is lost | a ring of twice as many slots: no slot comes round in time |
//! | a give names an entry by its address, and the chain's key reaches chunks too | an entry forged in a chunk is believed | by an index, through a registration of the entries alone, which bounds and aligns it |
//! | takes from an empty ring move the head past the tail | entries given back lie behind the head | when all chains are at rest the node rebuilds the ring from the entries |
//! | what the last owner left | the next one reads it | a WRITE of zeros in the give |

use super::machine::{CHUNKS_AT, ENTRIES_AT, Scatter, reply_at};
use super::request::{CHECK_QUEUE, OPERAND, Op, REMOTE, REQUEST_BYTES, Region, Request, SECOND, TARGET};
use farmem_protocol::key::Rights;

/// Windows of a chunk.
pub const GROUP: u64 = 3;
/// Bytes of keys and starts in an entry.
const KEYS: u32 = 16 * GROUP as u32;
/// Where an entry's owner is.
pub const OWNER: u64 = KEYS as u64;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Design {
    /// As the paper has it.
    Published,
    /// With its defects mended.
    Mended,
}

/// Where everything lies.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Which chains.
    pub design: Design,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Chunks.
    pub count: u64,
    /// The word that says where the next entry is taken from.
    pub head: u64,
    /// The word that says where the next goes.
    pub tail: u64,
    /// The ring, aligned to its size.
    pub ring: u64,
    /// Slots of the ring, a power of two.
    pub slots: u64,
    /// The entries.
    pub entries: u64,
}

impl Layout {
    /// For `count` chunks, in a table that begins at `table`.
    pub fn new(design: Design, chunk_bytes: u64, count: u64, table: u64) -> Layout {
        let slots = count.next_power_of_two() * if design == Design::Mended { 2 } else { 1 };
        let ring = (table + 64).next_multiple_of(slots * 8);
        let entries = (ring + slots * 8).next_multiple_of(256);
        Layout { design, chunk_bytes, count, head: table, tail: table + 8, ring, slots, entries }
    }

    /// Bytes of the whole table for so many chunks, wherever it begins.
    pub fn table_bytes(design: Design, count: u64) -> u64 {
        let layout = Layout::new(design, 0, count, 0);
        // Alignment of the ring may take once more its size.
        layout.slots * 16 + 512 + count * layout.stride()
    }

    /// From one entry to the next. 256 where an index is put into an address above its lowest byte.
    pub fn stride(&self) -> u64 {
        if self.design == Design::Mended { 256 } else { 64 }
    }

    /// Where an entry is, in the table.
    pub fn entry(&self, index: u64) -> u64 {
        self.entries + index * self.stride()
    }

    /// How the ring, and a client of the published design, names an entry.
    pub fn pointer(&self, index: u64) -> u64 {
        match self.design {
            Design::Published => self.entry(index),
            Design::Mended => ENTRIES_AT + index * self.stride(),
        }
    }

    /// Where a chunk begins, in the machine's addresses.
    pub fn chunk(&self, index: u64) -> u64 {
        CHUNKS_AT + index * self.chunk_bytes
    }

    /// The highest bit of the ring's offsets: a masked addition carries no further.
    fn boundary(&self) -> u64 {
        self.slots * 8 / 2
    }

    fn entries_region(&self) -> Region {
        match self.design {
            Design::Published => Region::Everything,
            Design::Mended => Region::Entries,
        }
    }
}

/// The requests of a work queue being built: groups that are enabled together.
struct Plan {
    at: u64,
    requests: Vec<Request>,
    groups: Vec<usize>,
}

impl Plan {
    /// The address of a field of the `n`-th request.
    fn field(&self, n: usize, field: u64) -> u64 {
        self.at + n as u64 * REQUEST_BYTES + field
    }

    /// One more request. Returns its number.
    fn push(&mut self, request: Request) -> usize {
        self.requests.push(request);
        self.requests.len() - 1
    }

    /// What follows is patched by what went before: it is fetched when that has ended.
    fn then(&mut self) {
        self.groups.push(self.requests.len());
    }

    /// The control queue's requests, for the work queue's.
    fn control(&self, at: u64) -> Vec<Request> {
        let wait = |queue: u64, count: usize| Request { target: queue << 32 | count as u64, ..Request::new(Op::Wait) };
        let enable = |index: usize| Request { target: 1 << 32 | index as u64, ..Request::new(Op::Enable) };
        let mut control = vec![wait(0, 1)];
        for &end in &self.groups {
            control.extend([enable(end), wait(1, end)]);
        }
        // On to the next round: one more SEND, as many more requests. No carry into the queue's number.
        let moved = control.len();
        for n in 0..moved {
            let more = if n == 0 { 1 } else { self.requests.len() as u64 };
            let target = at + n as u64 * REQUEST_BYTES + TARGET;
            control.push(Request {
                operand: more,
                second: 1 << 31,
                ..Request::new(Op::Faa).at(target, Region::Requests)
            });
        }
        control
    }
}

/// Requests of a chain: control, work, and where a SEND's bytes go.
pub type Built = (Vec<Request>, Vec<Request>, Scatter);

/// The chain that takes a chunk for a member. Its SEND: three queue pairs' numbers, 8 bytes each; the
/// first is the one that will give the chunk back. Its answer: what is in the entry, three times key and
/// start, and how the entry is named.
pub fn take(layout: &Layout, member: u64, control_at: u64, work_at: u64) -> Built {
    let mut plan = Plan { at: work_at, requests: Vec::new(), groups: Vec::new() };
    // The numbers of requests yet to come.
    let (ring, entry, binds) = (1, 3, 5);
    let (update, zero) = (8, 10);
    let own = Region::Requests;
    plan.push(
        Request { operand: 8, second: layout.boundary(), ..Request::new(Op::Faa).at(layout.head, Region::Table) }.part(
            plan.field(ring, REMOTE),
            8,
            own,
        ),
    );
    plan.then();
    plan.push(Request::new(Op::Read).at(0, Region::Table).part(plan.field(entry, REMOTE), 8, own));
    let slot_to_zero = Request::new(Op::Write).at(plan.field(zero, REMOTE), own).part(plan.field(ring, REMOTE), 8, own);
    plan.push(slot_to_zero);
    plan.then();
    let read = Request::new(Op::Read).at(0, layout.entries_region());
    let read = (0..GROUP as usize).fold(read, |read, n| read.part(plan.field(binds + n, TARGET), 16, own));
    plan.push(read);
    let copy = Request::new(Op::Write).at(plan.field(update, REMOTE), own).part(plan.field(entry, REMOTE), 8, own);
    plan.push(copy);
    plan.then();
    for n in 0..GROUP as usize {
        let rights = Rights::READ.and(Rights::WRITE).bits() as u64;
        let bind = Request { second: rights << 56 | layout.chunk_bytes, ..Request::new(Op::Bind) };
        plan.push(bind.at(0, Region::Chunks).part(plan.field(binds + n, TARGET), 8, own));
    }
    let update_request = Request { second: member, ..Request::new(Op::Write).at(0, layout.entries_region()) };
    let targets: [u64; GROUP as usize] = std::array::from_fn(|n| plan.field(binds + n, TARGET));
    let keys = |request: Request| targets.into_iter().fold(request, |request, at| request.part(at, 16, own));
    let update_request = keys(update_request).part(plan.field(update, SECOND), 8, own);
    plan.push(update_request);
    let reply = keys(Request::new(Op::Write).at(reply_at(), Region::Reply)).part(plan.field(entry, REMOTE), 8, own);
    plan.push(reply);
    plan.push(Request::new(Op::Write).at(0, Region::Table).part(plan.field(zero, SECOND), 8, own));
    plan.then();
    debug_assert_eq!(plan.requests.len(), zero + 1);
    let scatter = Scatter((0..GROUP as usize).map(|n| (plan.field(binds + n, OPERAND), 8)).collect());
    (plan.control(control_at), plan.requests, scatter)
}

/// The chain that gives a chunk back. Its SEND: the entry's address, 8 bytes, or in the mended design
/// its index, 4 bytes.
pub fn give(layout: &Layout, control_at: u64, work_at: u64) -> Built {
    let mut plan = Plan { at: work_at, requests: Vec::new(), groups: Vec::new() };
    let mended = layout.design == Design::Mended;
    let own = Region::Requests;
    let unbinds = 2;
    let (update, tail) = if mended { (7, 8) } else { (5, 6) };
    let (wipe, slot) = (6, tail + 1);
    let read = Request::new(Op::Read).at(ENTRIES_AT, layout.entries_region());
    let read = (0..GROUP as usize).fold(read, |read, n| read.part(plan.field(unbinds + n, TARGET), 16, own));
    plan.push(read);
    let copy = Request::new(Op::Write).at(plan.field(update, REMOTE), own).part(plan.field(0, REMOTE), 8, own);
    plan.push(copy);
    plan.then();
    for n in 0..GROUP as usize {
        let flags = if n == 0 { CHECK_QUEUE } else { 0 };
        let unbind = Request { flags, ..Request::new(Op::Invalidate) };
        plan.push(unbind.part(plan.field(unbinds + n, TARGET), 8, own));
    }
    if mended {
        // The start, which the READ left beside the first key.
        plan.push(Request::new(Op::Write).at(plan.field(wipe, REMOTE), own).part(plan.field(unbinds, REMOTE), 8, own));
        plan.then();
        plan.push(Request::new(Op::Write).at(0, Region::Chunks).part(0, layout.chunk_bytes as u32, Region::Zeros));
    }
    let request = Request::new(Op::Write).at(0, layout.entries_region());
    let request = (0..GROUP as usize).fold(request, |r, n| r.part(plan.field(unbinds + n, TARGET), 16, own));
    plan.push(request.part(plan.field(update, SECOND), 8, own));
    plan.push(
        Request { operand: 8, second: layout.boundary(), ..Request::new(Op::Faa).at(layout.tail, Region::Table) }.part(
            plan.field(slot, REMOTE),
            8,
            own,
        ),
    );
    plan.then();
    plan.push(Request::new(Op::Write).at(0, Region::Table).part(plan.field(0, REMOTE), 8, own));
    plan.then();
    debug_assert_eq!(plan.requests.len(), slot + 1);
    let scatter = match layout.design {
        Design::Published => Scatter(vec![(plan.field(0, REMOTE), 8)]),
        // Above the lowest byte: an index, scaled and aligned by where it is put.
        Design::Mended => Scatter(vec![(plan.field(0, REMOTE) + 1, 4)]),
    };
    (plan.control(control_at), plan.requests, scatter)
}
