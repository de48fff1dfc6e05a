//! FineMem (OSDI '25) as its paper has it: bitmaps in two layers, a temporary log in each header, a log and a pair of
//! keys for each chunk.
//!
//! ```text
//!   section 2 MiB: one header, 2 bits for each of its
//!     16 spans of 128 KiB: a header each, a bit for each of its
//!       32 chunks of 4 KiB: a log entry and {main key, backup key} each
//!
//!   4 to 64 KiB:  [READ headers] ─ [CAS section: span empty → normal] ─ CAS span: the commit ─ READ key ─ CAS log
//!   128 KiB on:   [READ headers] ─ CAS section: the commit ─ READ key ─ CAS log
//!   free:         READ keys ─ CAS keys: main := backup ─ CAS header: the commit ─ [CAS section] ─ CAS log
//! ```
//!
//! | file | |
//! |---|---|
//! | [`header`] | the words |
//! | [`cache`] | the headers that a worker remembers |
//! | [`small`], [`large`] | chunks of a span; spans of a section |
//! | [`keys`] | keys, the rebinder, and how long old keys work |
//!
//! **Corrected**, where the protocol as published hands memory out twice or loses it:
//!
//! * The section's header is updated by CAS only. The paper updates it by READ and WRITE of the whole word after a
//!   span's commit, which undoes a commit of somebody else in between: a span is handed out twice.
//! * A span is entered only while its header's *in use* bit is set, and that bit is part of what the CAS compares, in
//!   every attempt: published, it is looked at once, before.
//! * A helper that writes somebody's temporary log to the chunk's log writes the somebody's name, not its own.
//! * "Full" is told to the section after the span's commit, when it may be true no more: whoever told it looks again.
//!
//! **Not corrected**, because the design is that: a freed chunk's old key works until the rebinder comes by, and a
//! second free before that leaves the key as it is (counted, [`keys`]).
//!
//! **In its favour:** READs that do not depend on each other are posted together, the temporary log is cleared in the
//! same round trip as it is logged. Contention control is on, with the paper's thresholds, which the published code has
//! off. Each worker thread of a host's service remembers headers for itself: remembered for the host as a whole, 32
//! workers go after the same 64 spans, and 512 clients take 105 µs for 4 KiB and 2.96 attempts instead of 47 µs and
//! 1.27 (the paper says 43 µs and 1.33). Large allocations' keys are rotated, which the published code leaves out.

pub mod cache;
pub mod header;
pub mod keys;
pub mod large;
pub mod small;

use std::cell::RefCell;
use std::rc::Rc;

use super::{Allocator, BLOCK, Client, OldKeys};
use crate::ledger::{Grant, Standing};
use crate::sim::costs::us;
use crate::sim::node::{At, Node};
use cache::Cache;
use header::{EMPTY, FULL, Header, later};
use keys::Keys;

/// Spans of a section, chunks of a span.
const SPANS: u32 = 16;
/// Chunks of a span.
const SPAN: u32 = 32;
/// CAS failures from which a span is marked contended, and below which it is normal again (paper, section 4.1).
const HIGH: u64 = 10;
/// The lower one.
const LOW: u64 = 3;

/// Which header, and how many bits of its map one unit takes.
#[derive(Clone, Copy)]
enum Place {
    /// A section's.
    Section(u32),
    /// A span's, counted over all sections.
    Span(u32),
}

/// It.
pub struct FineMem {
    node: Rc<Node>,
    sections: u32,
    workers: Vec<RefCell<Cache>>,
    keys: Rc<Keys>,
}

impl FineMem {
    /// Words that a pool of so many chunks needs.
    pub fn words(chunks: u32) -> usize {
        (chunks / BLOCK * (1 + SPANS) + 2 * chunks) as usize
    }

    /// On this node, for so many clients.
    pub fn new(node: &Rc<Node>, chunks: u32, clients: u32) -> Rc<FineMem> {
        let sections = chunks / BLOCK;
        let table = (sections * (1 + SPANS)) as At;
        Rc::new(FineMem {
            node: node.clone(),
            sections,
            workers: (0..clients).map(|_| RefCell::default()).collect(),
            keys: Keys::new(node, table, chunks),
        })
    }

    fn at(&self, place: Place) -> At {
        match place {
            Place::Section(section) => section as At,
            Place::Span(span) => (self.sections + span) as At,
        }
    }

    fn log_at(&self, chunk: u32) -> At {
        (self.sections * (1 + SPANS) + self.sections * BLOCK + chunk) as At
    }

    /// A host's name in headers: 13 bits, never 0.
    fn id(client: &Client) -> u64 {
        u64::from(client.host) + 1
    }

    /// What a client's worker remembers.
    fn remembered(&self, client: &Client) -> &RefCell<Cache> {
        &self.workers[client.id as usize]
    }

    async fn service(&self) {
        self.node.world.sleep(us(self.node.costs.host.ipc)).await;
    }

    /// The chunk whose log a header's temporary log belongs to.
    fn logs(&self, place: Place, header: Header) -> u32 {
        match place {
            Place::Section(section) => section * BLOCK + header.offset() * SPAN,
            Place::Span(span) => span * SPAN + header.offset(),
        }
    }

    /// Writes a header's temporary log to the chunk's log, unless that is later, and clears it. `known` is the log's
    /// entry, where it was read. The header as it is then, as far as we know.
    async fn flush(&self, client: &Client, place: Place, header: Header, known: Option<u64>) -> Header {
        let unit_bits = if matches!(place, Place::Section(_)) { 2 } else { 1 };
        let (entry, at) = (header.entry(unit_bits), self.log_at(self.logs(place, header)));
        let known = match known {
            Some(known) => known,
            None => client.link.read::<1>(at).await[0],
        };
        let log = async {
            let mut known = known;
            while known != entry && !later(known, entry) {
                let was = client.link.cas(at, known, entry).await;
                if was == known {
                    break;
                }
                known = was;
            }
        };
        let cleared = header.logged();
        let (_, was) = client.link.together(log, client.link.cas(self.at(place), header.0, cleared.0)).await;
        if was == header.0 { cleared } else { Header(was) }
    }
}

impl Allocator for FineMem {
    async fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> Option<Grant> {
        self.service().await;
        if order < 5 { self.take_chunks(client, order).await } else { self.take_spans(client, order).await }
    }

    async fn free(self: &Rc<Self>, client: &Client, grant: Grant) {
        self.service().await;
        if grant.order < 5 { self.give_chunks(client, grant).await } else { self.give_spans(client, grant).await }
    }

    fn survey<'a>(&'a self, words: &'a [u64]) -> impl Fn(u32) -> Standing + 'a {
        let exposed = self.keys.exposed();
        let free = move |chunk| if exposed.contains(&chunk) { Standing::Exposed } else { Standing::Free };
        move |chunk| {
            let (section, span) = (chunk / BLOCK, chunk / SPAN);
            let in_section = Header(words[section as At]).state(span % SPANS);
            let header = Header(words[self.at(Place::Span(span))]);
            match (in_section, header.in_use()) {
                (EMPTY, _) => free(chunk),
                (_, true) if header.map() >> (chunk % SPAN) & 1 == 1 => Standing::Held(None),
                (_, true) => free(chunk),
                (FULL, false) => Standing::Held(None),
                (_, false) => Standing::Lost,
            }
        }
    }

    fn metadata_bytes(&self) -> u64 {
        8 * FineMem::words(self.sections * BLOCK) as u64
    }

    fn old_keys(&self) -> OldKeys {
        self.keys.old()
    }

    fn start(self: &Rc<Self>) {
        self.keys.start();
    }
}
