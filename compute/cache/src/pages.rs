//! The local pages in order: up to four queues over one slab, found by page.
//!
//! ```text
//! heads[hash(page)] ─► node ─chain─► node          24 bytes a page, all told
//!                       │ ahead, behind
//!                       ▼
//! queue: front (leaves next) ◄──► … ◄──► back (came last)
//! ```
//!
//! Index 0 is no node, so that zeroed memory is an empty table: the heads come
//! from the allocator untouched and cost nothing until used. Chains rather than
//! open addressing: a page leaves for every page that comes, and a chain forgets
//! without tombstones or shifting.

use crate::ghosts::mix;
use farmem_protocol::addr::PageId;

const NONE: u32 = 0;

/// ```text
/// tag  63           8 7      4 3     0
///     |    page      | credit | queue |
/// ```
/// in two words, so that a node has 20 bytes.
#[derive(Clone, Copy)]
struct Node {
    tag: [u32; 2],
    ahead: u32,
    behind: u32,
    chain: u32,
}

const _: () = assert!(size_of::<Node>() == 20);

impl Node {
    fn tag(&self) -> u64 {
        (self.tag[0] as u64) << 32 | self.tag[1] as u64
    }

    fn set_tag(&mut self, page: PageId, credit: u8, queue: usize) {
        let tag = page.0 << 8 | (credit as u64 & 15) << 4 | queue as u64;
        self.tag = [(tag >> 32) as u32, tag as u32];
    }

    fn page(&self) -> PageId {
        PageId(self.tag() >> 8)
    }

    fn credit(&self) -> u8 {
        (self.tag[1] >> 4 & 15) as u8
    }

    fn queue(&self) -> usize {
        (self.tag[1] & 15) as usize
    }
}

#[derive(Clone, Copy, Default)]
struct Queue {
    front: u32,
    back: u32,
    len: usize,
}

/// A list through the chains of nodes.
#[derive(Clone, Copy, Default)]
struct Free {
    first: u32,
    last: u32,
}

/// The queues.
pub struct Pages {
    nodes: Vec<Node>,
    heads: Vec<u32>,
    /// Nodes without a page, in the order in which they lost it. They are reused in that order. So
    /// pages that came one after another lie side by side, and a walk along a queue reads memory in
    /// order.
    free: Free,
    queues: [Queue; 4],
}

impl Pages {
    /// Room for `capacity` pages; more are taken, by allocating.
    pub fn new(capacity: usize) -> Pages {
        let capacity = capacity.clamp(1, (u32::MAX - 1) as usize);
        let mut nodes = Vec::with_capacity(capacity + 1);
        nodes.push(Node { tag: [0; 2], ahead: NONE, behind: NONE, chain: NONE });
        Pages { nodes, heads: vec![NONE; capacity], free: Free::default(), queues: [Queue::default(); 4] }
    }

    /// Pages in all queues.
    pub fn len(&self) -> usize {
        self.queues.iter().map(|q| q.len).sum()
    }

    /// Pages in a queue.
    pub fn queue_len(&self, queue: usize) -> usize {
        self.queues[queue].len
    }

    /// A known page's queue.
    pub fn queue_of(&self, page: PageId) -> Option<usize> {
        self.find(page).map(|at| self.nodes[at as usize].queue())
    }

    /// Puts a page that is in no queue at a queue's back. `credit`: 0–15.
    pub fn push(&mut self, page: PageId, queue: usize, credit: u8) {
        debug_assert!(self.find(page).is_none());
        let at = self.take_node();
        let node = &mut self.nodes[at as usize];
        node.set_tag(page, credit, queue);
        node.chain = NONE;
        self.relink(self.head_of(page), NONE, at);
        self.link_back(at, queue);
    }

    /// Takes the page that waits longest in a queue, with its credit.
    pub fn pop(&mut self, queue: usize) -> Option<(PageId, u8)> {
        let at = self.queues[queue].front;
        if at == NONE {
            return None;
        }
        let node = self.nodes[at as usize];
        self.forget(at);
        Some((node.page(), node.credit()))
    }

    /// Moves a queue's front to the back of another, and returns its page and former credit.
    pub fn rotate(&mut self, from: usize, to: usize, credit: impl Fn(u8) -> u8) -> Option<PageId> {
        let at = self.queues[from].front;
        if at == NONE {
            return None;
        }
        let node = self.nodes[at as usize];
        self.unlink(at);
        self.nodes[at as usize].set_tag(node.page(), credit(node.credit()), to);
        self.link_back(at, to);
        Some(node.page())
    }

    /// A queue's pages with their credits, front first.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = (PageId, u8)> + '_ {
        let mut at = self.queues[queue].front;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize).filter(|_| at != NONE)?;
            at = node.behind;
            Some((node.page(), node.credit()))
        })
    }

    /// The credit of a queue's front.
    pub fn front_credit(&self, queue: usize) -> Option<u8> {
        let at = self.queues[queue].front;
        (at != NONE).then(|| self.nodes[at as usize].credit())
    }

    /// Takes a page out of whatever queue it is in. False if it is in none.
    pub fn remove(&mut self, page: PageId) -> bool {
        match self.find(page) {
            Some(at) => {
                self.forget(at);
                true
            }
            None => false,
        }
    }

    fn head_of(&self, page: PageId) -> usize {
        ((mix(page) as u128 * self.heads.len() as u128) >> 64) as usize
    }

    /// Makes the link to `from` in a chain lead to `to`. New nodes are put at a chain's end. The
    /// node that leaves is mostly the oldest, and is found at the beginning. A new one goes where
    /// the search for it has just ended.
    fn relink(&mut self, head: usize, from: u32, to: u32) {
        let (mut before, mut next) = (NONE, self.heads[head]);
        while next != from {
            debug_assert!(next != NONE, "a node that is in no chain");
            (before, next) = (next, self.nodes[next as usize].chain);
        }
        match before {
            NONE => self.heads[head] = to,
            _ => self.nodes[before as usize].chain = to,
        }
    }

    fn find(&self, page: PageId) -> Option<u32> {
        let mut at = self.heads[self.head_of(page)];
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.page() == page {
                return Some(at);
            }
            at = node.chain;
        }
        None
    }

    /// Reads the places of these pages in the table, independently of one another, so that their
    /// cache misses overlap.
    pub fn expect(&self, pages: impl Iterator<Item = PageId>) {
        let seen = pages.fold(0, |seen, page| seen ^ self.nodes[self.heads[self.head_of(page)] as usize].chain);
        std::hint::black_box(seen);
    }

    fn take_node(&mut self) -> u32 {
        let at = self.free.first;
        if at != NONE {
            self.free.first = self.nodes[at as usize].chain;
            return at;
        }
        let at = self.nodes.len() as u32;
        self.nodes.push(self.nodes[NONE as usize]);
        at
    }

    fn forget(&mut self, at: u32) {
        self.unlink(at);
        let (page, chain) = (self.nodes[at as usize].page(), self.nodes[at as usize].chain);
        self.relink(self.head_of(page), at, chain);
        self.nodes[at as usize].chain = NONE;
        match self.free.first {
            NONE => self.free.first = at,
            _ => self.nodes[self.free.last as usize].chain = at,
        }
        self.free.last = at;
    }

    fn link_back(&mut self, at: u32, queue: usize) {
        let last = self.queues[queue].back;
        self.nodes[at as usize].ahead = last;
        self.nodes[at as usize].behind = NONE;
        if last == NONE {
            self.queues[queue].front = at;
        } else {
            self.nodes[last as usize].behind = at;
        }
        self.queues[queue].back = at;
        self.queues[queue].len += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Node { ahead, behind, .. } = self.nodes[at as usize];
        let queue = &mut self.queues[self.nodes[at as usize].queue()];
        queue.len -= 1;
        if ahead == NONE {
            queue.front = behind;
        }
        if behind == NONE {
            queue.back = ahead;
        }
        if ahead != NONE {
            self.nodes[ahead as usize].behind = behind;
        }
        if behind != NONE {
            self.nodes[behind as usize].ahead = ahead;
        }
    }
}
