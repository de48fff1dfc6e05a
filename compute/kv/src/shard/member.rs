//! Front ends of a store: how one joins, shows that it is alive, and lets the epoch go on.
//!
//! Each has a line in the root piece: *state*, *heartbeat*, *epoch*, *bytes held*, *bytes wanted*.
//! Only its owner writes to it, but anyone may CAS the state of a member from alive to dead, when
//! its heartbeat has stood still for [`LEASE_MS`]. A front end that finds itself dead stops.
//!
//! *Fencing.* A front end that was stopped may have verbs to come. So its node is told to *expel*
//! it before it is declared dead: no verb of its takes effect from then on, and what it held can be
//! used again. A front end that has the node's memory mapped cannot be expelled while its process
//! lives. Until that ends or goes on, it stays alive here, and the epoch waits for it.
//!
//! *Epochs* say when a place may be used again. The store's epoch goes on by one when every member
//! that is alive has published it. A member publishes an epoch when all of its operations under way
//! began in it or later. Hence, while an operation that began in epoch *e* is under way, the
//! store's epoch is at most *e* + 1. An object that was retired in epoch *r* was seen only by
//! operations that began in *r* or earlier. [`crate::shard::heap::GRACE`] is one more than is needed for
//! that: a slot that was verified in epoch *e* still refers to the same object for an operation
//! that began in *e* + 1.

mod refused;
mod way;

pub use refused::NotOpened;

use crate::layout::{
    At, Geometry, HEAD_BYTES, Kind, MAGIC, MEMBERS, Member, Owner, PIECE_HEADER, Pair, REMOVED, ROOT_BITS, Stage,
    State, UNIT, head, word,
};
use crate::rules::Bug;
use crate::shard::copies::{Copies, Mode, Turn, Words};
use crate::shard::evict::MOST_ASKED;
use crate::shard::near::Near;
use crate::shard::reach::Reach;
use crate::shard::space::{LARGEST, Space};
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use way::Way;

/// A member whose heartbeat stands still for so long is taken for dead.
pub const LEASE_MS: u64 = 5000;
/// A front end that could not show itself for so long must do that before anything else.
pub const STALE_MS: u64 = 2000;

/// Retired objects that a tick frees at most.
const REAPED: usize = 16 << 10;
/// Which word of its line has a member's consent to the pair's word.
pub(crate) const CONSENT: u64 = 4;
/// Which word of its line a member's tail is.
pub(crate) const TAIL: u64 = 5;

/// Which word of its line says how many bytes a member wants from others, in its low half. With the bit, because
/// the node has none left. Other bits are those of [`Space::tells_largest`].
const WANTED: u64 = 6;
const NODE_FULL: u64 = 1 << 63;

/// Which word of its line says whether a member's clients have subscriptions.
pub(crate) const SUBSCRIBED: u64 = 7;

/// The last look of a front end at another's line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watched {
    state: u64,
    heartbeat: u64,
    since_ms: u64,
}

/// Where a shard is, and what it is to be.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The number in the region of the node that its addresses carry.
    pub node: u8,
    /// The shard's number.
    pub number: u8,
    /// The nodes that have it.
    pub mode: Mode,
    /// Shards of the store.
    pub shards: u8,
    /// The word that every opener finds.
    pub root_word: At,
    /// A random number for a store that is made now.
    pub secret: u64,
    /// Tables of a store that is made now.
    pub geometry: Geometry,
    /// Bytes of its near cache.
    pub local: u64,
    /// By which nodes tell this process from others that have the region open.
    pub tag: u32,
}

impl Opening {
    fn shape(&self) -> u64 {
        let copied = u64::from(self.mode != Mode::Single);
        copied << 32 | u64::from(self.geometry.buckets) << 16 | u64::from(self.shards) << 8 | u64::from(self.number)
    }

    /// Opens a shard, or makes it, and joins it.
    ///
    /// # Errors
    /// It is another's, or has no room.
    pub async fn join(self, io: Io) -> Result<Shard, NotOpened> {
        let way = Way { io, copies: Copies::new(self.node, self.mode) };
        let (root, secret) = self.find(&way, true).await?;
        // A node that is being filled gets the lines of those who were there before.
        let may_come = |pair: Pair| matches!(pair.stage(), Stage::Both | Stage::Alone);
        if !may_come(way.copies.pair()) {
            return Err(NotOpened::Mending);
        }
        let me = self.line(&way, root).await?;
        if let Mode::Both(_) = self.mode {
            // The consent of one who had the line before is not this one's.
            let at = member_at(root, usize::from(me.line)) + 8 * CONSENT;
            way.verb(Verb::Write { at, bytes: Rc::new(vec![0; 8]) }).await;
        }
        if !way.is_as_found(self.mode).await {
            let (at, state) = (member_at(root, usize::from(me.line)), State::alive(self.tag, me.incarnation));
            way.verb(Verb::Cas { at, old: state.0, new: state.dead().0 }).await;
            return Err(NotOpened::Mending);
        }
        Ok(Shard::new(root, secret, way.copies, self.geometry, me, self.tag, self.local))
    }

    /// Opens a shard to look at it, without joining. It must be there.
    ///
    /// # Errors
    /// There is no store, or it is another's.
    pub async fn look(self, io: Io) -> Result<Shard, NotOpened> {
        let way = Way { io, copies: Copies::new(self.node, self.mode) };
        let (root, secret) = self.find(&way, false).await?;
        let nobody = Member { line: u16::MAX, incarnation: 0 };
        Ok(Shard::new(root, secret, way.copies, self.geometry, nobody, 0, 0))
    }

    async fn find(&self, way: &Way, make: bool) -> Result<(At, u64), NotOpened> {
        let mut root = word(&way.read(self.root_word, 8).await, 0);
        if root == 0 && make && !matches!(self.mode, Mode::Alone(_)) {
            root = self.make(way).await?;
        }
        if root == 0 {
            return Err(if matches!(self.mode, Mode::Alone(_)) { NotOpened::Halved } else { NotOpened::Foreign });
        }
        let bytes = way.read(root, HEAD_BYTES as u32).await;
        let at = |offset: u64| word(&bytes, offset as usize / 8);
        match at(head::MAGIC) {
            MAGIC => {}
            REMOVED => return Err(NotOpened::Removed),
            _ => return Err(NotOpened::Foreign),
        }
        if at(head::SHAPE) != self.shape() {
            return Err(NotOpened::Shape);
        }
        if let Mode::Both(_) = self.mode
            && !way.copies.agree(&way.io, &[self.root_word, root + head::MAGIC, root + head::SECRET]).await
        {
            return Err(NotOpened::Halved);
        }
        let pair = Pair(at(head::PAIR));
        way.copies.found(self.root_word, root, pair);
        let found = match self.mode {
            Mode::Both(_) => way.copies.pairs(&way.io).await.ok_or(NotOpened::Mending)?,
            _ => [pair; 2],
        };
        let is_at = |stage: Stage| found.iter().any(|pair| pair.stage() == stage);
        match self.mode {
            Mode::Both(_) if is_at(Stage::Leaving) => return Err(NotOpened::Leaving),
            Mode::Alone(_) if is_at(Stage::Both) || is_at(Stage::Leaving) => return Err(NotOpened::Halved),
            // One that has gone on alone has newer data.
            Mode::Both(_) if is_at(Stage::Alone) => return Err(NotOpened::Left),
            Mode::Both(_) | Mode::Single if found != [pair.at(Stage::Both); 2] => return Err(NotOpened::Halved),
            _ => {}
        }
        Ok((root, at(head::SECRET)))
    }

    /// A new root piece; another's, if that came first.
    async fn make(&self, way: &Way) -> Result<At, NotOpened> {
        let (node, bytes) = (self.node, self.geometry.root_bytes());
        let Answer::Place(at) = way.verb(Verb::Alloc { node, bytes }).await else { return Err(NotOpened::Full) };
        let used = self.geometry.first(0, (1 << (31 - ROOT_BITS)) * ((1 << ROOT_BITS) - 1)) + self.geometry.table();
        let mut zero = vec![0u8; used as usize];
        let owner = Owner { kind: Kind::Root, class: 0, member: Member::default() };
        let words = [owner.word(self.secret, at), Owner::second(self.secret, at)];
        zero[..16].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        let words = [MAGIC, self.shape(), 1, self.secret];
        zero[PIECE_HEADER as usize..][..32].copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        way.verb(Verb::Write { at, bytes: Rc::new(zero) }).await;
        loop {
            match way.verb(Verb::Cas { at: self.root_word, old: 0, new: at }).await {
                Answer::Word(0) => return Ok(at),
                Answer::Word(found) if found == at => return Ok(at),
                Answer::Word(found) => {
                    way.verbs(vec![Verb::Write { at, bytes: Rc::new(vec![0; 16]) }, Verb::Free { at }]).await;
                    return Ok(found);
                }
                _ => {}
            }
        }
    }

    /// Takes a line that nobody has.
    async fn line(&self, way: &Way, root: At) -> Result<Member, NotOpened> {
        loop {
            let bytes = way.read(root, HEAD_BYTES as u32).await;
            let free = |line: &usize| !state(&bytes, *line).is_alive();
            let unused = (0..MEMBERS).find(|line| state(&bytes, *line).0 == 0);
            let line = unused.or_else(|| (0..MEMBERS).find(free)).ok_or(NotOpened::Crowded)?;
            let (old, at) = (state(&bytes, line), member_at(root, line));
            let incarnation = old.incarnation().wrapping_add(1);
            let new = State::alive(self.tag, incarnation).0;
            let mut taken = way.verb(Verb::Cas { at, old: old.0, new }).await;
            while taken == Answer::Unknown {
                // The same CAS again: it finds its own value, or not. Only this process writes its
                // tag.
                taken = way.verb(Verb::Cas { at, old: old.0, new }).await;
            }
            if taken == Answer::Word(old.0) || taken == Answer::Word(new) {
                return Ok(Member { line: line as u16, incarnation });
            }
        }
    }
}

pub(crate) fn member_at(root: At, line: usize) -> At {
    root + head::MEMBERS + line as u64 * UNIT
}

/// Where a member tells how many batches of messages it has published
/// ([`crate::command`]).
pub(crate) fn tail_at(root: At, line: usize) -> At {
    member_at(root, line) + 8 * TAIL
}

/// Where a member says whether its clients have subscriptions ([`crate::command`]).
pub(crate) fn subscribed_at(root: At, line: usize) -> At {
    member_at(root, line) + 8 * SUBSCRIBED
}

/// The state of a line, from the root piece's first bytes.
pub(crate) fn state(bytes: &[u8], line: usize) -> State {
    State(word(bytes, (head::MEMBERS as usize + line * UNIT as usize) / 8))
}

pub(crate) fn line_word(bytes: &[u8], line: usize, n: usize) -> u64 {
    word(bytes, (head::MEMBERS as usize + line * UNIT as usize) / 8 + n)
}

/// Whether a piece's owner is there.
pub(crate) fn is_there(bytes: &[u8], member: Member) -> bool {
    let line = usize::from(member.line);
    line < MEMBERS && state(bytes, line).is_alive() && state(bytes, line).incarnation() == member.incarnation
}

/// The result of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ticked {
    /// A member was there before and is no longer: its pieces can be taken over.
    pub deaths: bool,
    /// Whether others serve the store too.
    pub company: bool,
    /// Bytes that others want to have from all front ends.
    pub wanted: u64,
    /// The store's epoch went on.
    pub advanced: bool,
    /// A member is silent and cannot be expelled. Memory that it may write to waits for it.
    pub held_up: bool,
    /// The change of a pair of nodes.
    pub turn: Turn,
}

/// The front ends that serve a shard: this one shows itself, and looks after the others.
#[derive(Debug)]
pub struct Members {
    pub(crate) reach: Rc<Reach>,
    pub(crate) space: Rc<Space>,
    near: Rc<Near>,
    watch: RefCell<Vec<Watched>>,
    /// When this front end last looked after the others.
    watched_ms: Cell<u64>,
    /// Whether the last tick found others. True before the first.
    pub(crate) company: Cell<bool>,
}

impl Members {
    pub(crate) fn new(reach: &Rc<Reach>, space: &Rc<Space>, near: &Rc<Near>) -> Members {
        Members {
            reach: Rc::clone(reach),
            space: Rc::clone(space),
            near: Rc::clone(near),
            watch: RefCell::default(),
            watched_ms: Cell::new(0),
            company: Cell::new(true),
        }
    }

    /// Shows that this front end is alive, learns the store's epoch and lets it go on.
    /// `now_ms` is of a clock that never goes back.
    ///
    /// # Errors
    /// [`Trouble::ShutOut`]: it was taken for dead.
    pub async fn tick(&self, io: &Io, now_ms: u64) -> Result<Ticked, Trouble> {
        self.reach.copies.heed(io).await;
        let look = vec![Verb::Read { at: self.reach.root, len: HEAD_BYTES as u32 }];
        let was_alone = !matches!(self.reach.copies.mode(), Mode::Single | Mode::Both(_));
        let Some(Answer::Bytes(seen)) = self.reach.words(io, Words::Head, look).await.pop() else {
            return Err(Trouble::Unsettled);
        };
        // Of a store that is being removed no front end is a member any more.
        if !is_there(&seen, self.reach.me) || word(&seen, head::MAGIC as usize / 8) == REMOVED {
            self.reach.shut_out.set(true);
            self.near.lease.end();
            return Err(Trouble::ShutOut);
        }
        let epoch = word(&seen, head::EPOCH as usize / 8);
        let oldest = {
            let mut epochs = self.space.epochs.borrow_mut();
            epochs.now = epochs.now.max(epoch);
            epochs.under_way.keys().next().copied().unwrap_or(epoch).min(epoch)
        };
        let pair = Pair(word(&seen, head::PAIR as usize / 8));
        let mut ticked = Ticked { turn: self.reach.copies.saw(pair), ..Ticked::default() };
        self.space.read_epoch(was_alone && ticked.turn != Turn::Mended, epoch);
        if ticked.turn == Turn::Mended {
            self.reach.counters.mended.set(self.reach.counters.mended.get() + 1);
        }
        let all = self.note_others(&seen, epoch, &mut ticked) && oldest == epoch;
        let mut batch = self.own_line(&seen, oldest, pair);
        let waits = self.space.heap.borrow().sizes().retired > 0 || self.space.may_show_more();
        // Between pauses, too, of which the next begins only when this line says so.
        let pauses = self.reach.copies.is_paused() && pair.stage() == Stage::Paused;
        if all && waits && !pauses {
            batch.push(Verb::Cas { at: self.reach.root + head::EPOCH, old: epoch, new: epoch + 1 });
        }
        let answers = self.reach.words(io, Words::Head, batch).await;
        self.reach.copies.resume(pair);
        if answers.last() == Some(&Answer::Word(epoch)) {
            let mut epochs = self.space.epochs.borrow_mut();
            epochs.now = epochs.now.max(epoch + 1);
            ticked.advanced = true;
        }
        let now = self.space.epoch();
        // Many can be retired at once. The next ticks free the rest: the others must see that this front end lives.
        self.space.heap.borrow_mut().reap_some(now, REAPED);
        // Nothing but what fills the node changes the head during a pause.
        if !self.reach.copies.is_paused() {
            (ticked.deaths, ticked.held_up) = self.watch(io, &seen, now_ms).await;
        }
        Ok(ticked)
    }

    /// Notes what the other members say. Whether all of them have seen this epoch.
    fn note_others(&self, seen: &[u8], epoch: u64, ticked: &mut Ticked) -> bool {
        let me = usize::from(self.reach.me.line);
        let (mut all, mut held, mut fronts) = (true, 0, 0);
        let (mut full, mut beats, mut largest) = (false, Vec::new(), 0);
        for line in (0..MEMBERS).filter(|&line| line != me && state(seen, line).is_alive()) {
            ticked.company = true;
            fronts += 1;
            beats.push((state(seen, line).0, line_word(seen, line, 1)));
            all &= line_word(seen, line, 2) == epoch;
            held += line_word(seen, line, 3);
            let wanted = line_word(seen, line, WANTED as usize);
            ticked.wanted = ticked.wanted.saturating_add(wanted & 0xffff_ffff);
            largest = largest.max(wanted & LARGEST);
            full |= wanted & NODE_FULL != 0;
        }
        self.space.others.set(held);
        self.space.fronts.set(fronts);
        self.space.beats.replace(beats);
        self.space.is_asked(ticked.wanted, full, largest);
        self.company.set(ticked.company);
        self.space.company.set(ticked.company || self.space.company.get());
        if ticked.company {
            // Before the heartbeat says that this tick has seen the others.
            self.near.lease.end();
        }
        all
    }

    /// The WRITEs by which this front end's line says that it is alive, and what it wants.
    fn own_line(&self, seen: &[u8], oldest: u64, pair: Pair) -> Vec<Verb> {
        let me = usize::from(self.reach.me.line);
        let consent = if self.space.heap.borrow().has_taken_over() { 0 } else { self.reach.copies.consent(pair) };
        let words = [line_word(seen, me, 1) + 1, oldest, self.space.heap.borrow().sizes().all, consent];
        let bytes = Rc::new(words.map(u64::to_le_bytes).concat());
        let mut batch = vec![Verb::Write { at: member_at(self.reach.root, me) + 8, bytes }];
        let mut wanted = self.space.wanted.get().min(MOST_ASKED) | self.space.tells_largest();
        if self.space.wanted.get() > 0 && self.space.node_full.get() {
            wanted |= NODE_FULL;
        }
        if line_word(seen, me, WANTED as usize) != wanted {
            let at = member_at(self.reach.root, me) + 8 * WANTED;
            batch.push(Verb::Write { at, bytes: Rc::new(wanted.to_le_bytes().to_vec()) });
        }
        batch
    }

    /// Whether another member is alive now.
    pub(crate) async fn has_company(&self, io: &Io) -> Result<bool, Trouble> {
        let bytes = self.reach.read(io, self.reach.root, HEAD_BYTES as u32).await;
        if !is_there(&bytes, self.reach.me) {
            return Err(Trouble::ShutOut);
        }
        let me = usize::from(self.reach.me.line);
        Ok((0..MEMBERS).any(|line| line != me && state(&bytes, line).is_alive()))
    }

    /// Looks after the others: whether one is gone, and whether one is silent and cannot be
    /// expelled.
    async fn watch(&self, io: &Io, bytes: &[u8], now_ms: u64) -> (bool, bool) {
        let mut silent = Vec::new();
        let mut deaths = false;
        {
            let mut watch = self.watch.borrow_mut();
            // A front end that has just come takes over what was left before.
            deaths |= watch.is_empty();
            watch.resize(MEMBERS, Watched::default());
            // After a pause of the node, or of this front end, every heartbeat has stood still.
            if now_ms.saturating_sub(self.watched_ms.replace(now_ms)) > STALE_MS {
                watch.iter_mut().for_each(|watched| watched.since_ms = now_ms);
            }
            for (line, watched) in
                watch.iter_mut().enumerate().filter(|(line, _)| *line != usize::from(self.reach.me.line))
            {
                let (state, heartbeat) = (state(bytes, line), line_word(bytes, line, 1));
                let was_there = State(watched.state).is_alive();
                deaths |= was_there && state.0 != watched.state;
                if state.0 != watched.state || heartbeat != watched.heartbeat {
                    *watched = Watched { state: state.0, heartbeat, since_ms: now_ms };
                } else if state.is_alive() && now_ms.saturating_sub(watched.since_ms) > LEASE_MS {
                    silent.push((line, state));
                }
            }
        }
        let mut held_up = false;
        for (line, state) in silent {
            // Before its end is made known: its memory is used again from then on.
            let expel = Verb::Expel { node: self.reach.node, tag: state.tag() };
            let fenced = self.reach.rules.get().broken(Bug::DeclareUnfenced)
                || self.reach.verbs(io, vec![expel]).await.pop() == Some(Answer::Expelled(true));
            if !fenced {
                held_up = true;
                continue;
            }
            let at = member_at(self.reach.root, line);
            self.reach.verbs(io, vec![Verb::Cas { at, old: state.0, new: state.dead().0 }]).await;
        }
        (deaths, held_up)
    }

    /// Leaves the store. Another front end may take over its pieces.
    pub async fn leave(&self, io: &Io) {
        let state = State::alive(self.reach.tag, self.reach.me.incarnation);
        let at = member_at(self.reach.root, usize::from(self.reach.me.line));
        self.reach.verbs(io, vec![Verb::Cas { at, old: state.0, new: state.dead().0 }]).await;
    }
}
