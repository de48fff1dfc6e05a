//! The table of nodes, whose numbers are used again.
//!
//! ```text
//!  own ── left or lost, nothing held there ──► rests ── every thread has left once ──► free ──► another node's
//! ```
//!
//! A thread may have read a record that names the number, and uses it until it leaves the consumer.
//! So a number rests that long, in the list of homes that are dropped. A lane may keep a queue pair
//! to the node before: it compares the *life* of the number ([`Node::life`]).
//!
//! A node that joins takes the number of a node that has left, or that was lost at the same address.
//! Else it takes a new one, and at last that of any node that was lost. Such a node is not asked any
//! more whether it is back.

// Sessions are reached by pointers that are never freed.
#![allow(unsafe_code)]

use super::{MAX_NODES, Moment, NoPlace, Standing};
use crate::losses::Losses;
use crate::moves::Dropped;
use farmem_fabric::Session;
use farmem_protocol::addr::SlabId;
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// States of [`Node::number`]: the node's own; waits until every thread has left once; can be
/// another node's.
const OWN: u32 = 0;
const RESTS: u32 = 1;
const FREE: u32 = 2;

/// How long work is put off that needs a node which did not answer.
const PUT_OFF_NS: u64 = 1_000_000_000;

/// One node, as long as its number is its own.
pub(crate) struct Node {
    /// Never freed. Another one in a forked child.
    session: AtomicPtr<Session>,
    standing: AtomicU32,
    /// Slabs of this process there.
    pub held: AtomicU32,
    /// Its failure domain, as a number.
    domain: AtomicU32,
    /// Nodes that had this number before.
    life: AtomicU32,
    /// Whether its number can be used again: [`OWN`], [`RESTS`] or [`FREE`].
    number: AtomicU32,
    /// It sent a page that does not open, and is not used again but for pages that it alone has.
    pub distrusted: AtomicBool,
    /// What it is given up for then.
    pub doubt: Lock<Option<String>>,
    /// Of a node that is away: the moment at which it was given up, and slabs to be given back.
    pub gone: AtomicU64,
    owed: Lock<Vec<SlabId>>,
    /// It wanted slabs back when it was asked last.
    pub is_short: AtomicBool,
    /// Slabs that it may still have moved in this minute, and questions until the next one begins.
    pub may_move: AtomicU32,
    pub minute: AtomicU32,
    /// The moment at which it was asked and did not answer. 0: it answered.
    silent: AtomicU64,
}

impl Node {
    fn empty() -> Node {
        let session = AtomicPtr::new(std::ptr::null_mut());
        let [standing, held, domain, life, number] = [0; 5].map(AtomicU32::new);
        let [distrusted, is_short] = [false; 2].map(AtomicBool::new);
        let [may_move, minute] = [0; 2].map(AtomicU32::new);
        let [silent, gone] = [0; 2].map(AtomicU64::new);
        let (doubt, owed) = (Lock::new(None), Lock::new(Vec::new()));
        Node {
            session,
            standing,
            held,
            domain,
            life,
            number,
            distrusted,
            doubt,
            gone,
            owed,
            is_short,
            may_move,
            minute,
            silent,
        }
    }

    pub fn session(&self) -> &'static Session {
        // SAFETY: set before the node is counted, from a leaked box.
        unsafe { &*self.session.load(Ordering::Acquire) }
    }

    /// In a forked child: its own session in place of the parent's.
    pub fn renew(&self, session: Session) {
        self.session.store(Box::into_raw(Box::new(session)), Ordering::Release);
    }

    pub fn standing(&self) -> Standing {
        match self.standing.load(Ordering::Acquire) {
            1 => Standing::In,
            2 => Standing::Leaving,
            3 => Standing::Left,
            4 => Standing::Orphaned,
            6 => Standing::Away,
            _ => Standing::Lost,
        }
    }

    pub fn set(&self, standing: Standing) {
        self.standing.store(standing as u32, Ordering::Release);
    }

    /// If it is away, a slab there is given back when it is back. False: it is not.
    pub fn owe(&self, slab: SlabId) -> bool {
        let mut owed = self.owed.lock();
        let is_away = self.standing() == Standing::Away;
        if is_away {
            owed.push(slab);
        }
        is_away
    }

    /// It is not away any more. Returns the slabs to be given back.
    pub fn end_owing(&self, standing: Standing) -> Vec<SlabId> {
        let mut owed = self.owed.lock();
        self.set(standing);
        std::mem::take(&mut owed)
    }

    /// Whether it lays records of lines onto slabs: its software NIC does, a card does not.
    pub fn takes_records(&self) -> bool {
        !self.session().is_wired() && !self.session().is_mapped()
    }

    /// Whether copies are made there.
    pub fn grants(&self) -> bool {
        self.standing() == Standing::In && !self.distrusted.load(Ordering::Relaxed)
    }

    /// Whether it answers, as far as is known.
    pub fn is_there(&self) -> bool {
        matches!(self.standing(), Standing::In | Standing::Leaving)
    }

    /// It was asked whether it is there.
    pub fn note_answer(&self, now: Moment, answers: bool) {
        self.silent.store(if answers { 0 } else { now.ticks.max(1) }, Ordering::Relaxed);
    }

    /// Whether it did not answer a moment ago. What needs it is put off then, so that other work of
    /// repair goes on.
    pub fn is_put_off(&self, now: Moment) -> bool {
        let silent = self.silent.load(Ordering::Relaxed);
        silent > 0 && now.ns(now.ticks.saturating_sub(silent)) < PUT_OFF_NS
    }

    /// Its failure domain, as a number.
    pub fn domain(&self) -> u32 {
        self.domain.load(Ordering::Relaxed)
    }

    /// Which of the nodes it is that have this number one after the other. Read after a word that
    /// names the number, or by a thread that has not left since.
    #[inline]
    pub fn life(&self) -> u32 {
        self.life.load(Ordering::Acquire)
    }

    /// Whether it has ended with all that this process had there. A node that is not trusted is to
    /// be remembered.
    fn is_over(&self) -> bool {
        let over = matches!(self.standing(), Standing::Left | Standing::Lost);
        over && self.held.load(Ordering::Relaxed) == 0 && !self.distrusted.load(Ordering::Relaxed)
    }
}

/// All nodes, by their numbers.
pub struct Nodes {
    list: Box<[Node]>,
    count: AtomicUsize,
    /// Failure domains so far.
    domains: AtomicU32,
    /// Some node was lost, with its memory.
    lost: AtomicBool,
    /// Some node sent a page that does not open.
    pub(crate) any_distrusted: AtomicBool,
    /// Random numbers drawn for placement.
    drawn: AtomicU64,
    /// They are a simulator's, and so is their time.
    simulated: bool,
}

impl Nodes {
    pub(crate) fn new(simulated: bool) -> Nodes {
        Nodes {
            list: (0..MAX_NODES).map(|_| Node::empty()).collect(),
            count: AtomicUsize::new(0),
            domains: AtomicU32::new(MAX_NODES as u32 + 1),
            lost: AtomicBool::new(false),
            any_distrusted: AtomicBool::new(false),
            drawn: AtomicU64::new(0),
            simulated,
        }
    }

    pub(crate) fn all(&self) -> &[Node] {
        &self.list[..self.count.load(Ordering::Acquire)]
    }

    /// The same, as a forked child has them: by the parent's sessions.
    #[cfg(feature = "lab")]
    pub(crate) fn twin(&self) -> Nodes {
        let twin = Nodes::new(self.simulated);
        twin.drawn.store(self.drawn.load(Ordering::Relaxed), Ordering::Relaxed);
        for (to, from) in twin.list.iter().zip(self.all()) {
            to.session.store(from.session.load(Ordering::Acquire), Ordering::Release);
            to.standing.store(from.standing.load(Ordering::Acquire), Ordering::Release);
            to.held.store(from.held.load(Ordering::Relaxed), Ordering::Relaxed);
            to.domain.store(from.domain(), Ordering::Relaxed);
            to.life.store(from.life(), Ordering::Release);
            to.number.store(from.number.load(Ordering::Relaxed), Ordering::Relaxed);
            to.distrusted.store(from.distrusted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        twin.any_distrusted.store(self.any_distrusted.load(Ordering::Relaxed), Ordering::Relaxed);
        twin.domains.store(self.domains.load(Ordering::Relaxed), Ordering::Relaxed);
        twin.lost.store(self.any_lost(), Ordering::Relaxed);
        twin.count.store(self.all().len(), Ordering::Release);
        twin
    }

    /// Whether a node was lost with its memory, ever.
    pub(crate) fn any_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(crate) fn note_loss(&self, with_memory: bool) {
        self.lost.fetch_or(with_memory, Ordering::AcqRel);
    }

    /// The number of draws so far, and one more.
    pub(super) fn next_drawn(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// A number for a node at an address: see the module.
    fn number_for(&self, address: &str) -> Option<usize> {
        let all = self.all();
        let trusted = |node: &Node| !node.distrusted.load(Ordering::Relaxed);
        let is_free = |node: &Node| node.number.load(Ordering::Acquire) == FREE && trusted(node);
        let of = |which: &dyn Fn(&Node) -> bool| all.iter().position(|node| is_free(node) && which(node));
        of(&|node| node.standing() == Standing::Left || node.session().node() == address)
            .or_else(|| (all.len() < MAX_NODES).then_some(all.len()))
            .or_else(|| of(&|_| true))
    }

    /// A node joins. The caller holds the lock of changes.
    pub(crate) fn add(&self, session: Session) -> Result<usize, NoPlace> {
        let number = self.number_for(session.node()).ok_or(NoPlace::TooMany)?;
        let node = &self.list[number];
        let domain = session.domain();
        let shares = |other: &&Node| !domain.is_empty() && other.session().domain() == domain;
        let known = self.all().iter().find(shares).map(Node::domain);
        let domain = known.unwrap_or_else(|| self.domains.fetch_add(1, Ordering::Relaxed));
        let is_new = number == self.all().len();
        if !is_new {
            node.session().standing().hang_up();
        }
        node.renew(session);
        node.domain.store(domain, Ordering::Relaxed);
        node.number.store(OWN, Ordering::Relaxed);
        node.life.fetch_add(u32::from(!is_new), Ordering::AcqRel);
        node.is_short.store(false, Ordering::Relaxed);
        [&node.may_move, &node.minute].iter().for_each(|count| count.store(0, Ordering::Relaxed));
        node.silent.store(0, Ordering::Relaxed);
        node.set(Standing::In);
        self.count.fetch_max(number + 1, Ordering::AcqRel);
        Ok(number)
    }
}

impl Losses<'_> {
    /// Lets numbers of nodes that have ended rest.
    pub(crate) fn retire(self) {
        let ended = |node: &Node| node.number.load(Ordering::Relaxed) == OWN && node.is_over();
        let nodes = &self.tables.nodes;
        if !nodes.all().iter().any(ended) {
            return;
        }
        // Nothing is published meanwhile, and nothing dropped.
        let _changing = self.changes.now.lock();
        let mut slabs = self.held.slabs.lock();
        for (number, node) in nodes.all().iter().enumerate().filter(|(_, node)| ended(node)) {
            node.number.store(RESTS, Ordering::Relaxed);
            slabs.drop_later(Dropped { node: Some(number), ..Dropped::default() });
        }
    }
}

impl Nodes {
    /// Every thread has left once since a node ended.
    pub(crate) fn free_number(&self, number: usize) {
        self.all()[number].number.store(FREE, Ordering::Release);
    }
}
