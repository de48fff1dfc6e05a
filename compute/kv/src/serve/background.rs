//! A front end's work beside commands: it shows that it is alive, advances the epoch, takes over
//! the pieces of dead front ends, finds objects that others have replaced, and takes ended
//! keys out.

use super::mend::{Mender, Step};
use super::open::Config;
use super::schedule::Schedule;
use crate::drive::Drive;
use crate::keyspace::Keyspace;
use crate::shard::copies::{Mode, Turn};
use crate::shard::member::{STALE_MS, Ticked};
use crate::shard::{Shard, Trouble};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between ticks of an idle front end.
const CALM: Duration = Duration::from_millis(500);
/// Between ticks while the epoch goes on.
const BRISK: Duration = Duration::from_millis(10);
/// Between ticks while memory waits for the epoch.
const HURRIED: Duration = Duration::from_micros(500);
/// Retired bytes that call for the epoch to go on.
const PILE: u64 = 256 << 10;
/// Between looks for ended keys.
const SWEEP: Duration = Duration::from_millis(250);
/// Ended keys of a node that one sweep takes out, more or less.
const SWEPT: usize = 1024;

/// How a task of the background ended.
#[derive(Debug)]
pub enum Ended {
    /// A shard's tick.
    Tick(usize, Result<Ticked, Trouble>),
    /// A shard was looked through for others' leavings; whether for own garbage, too.
    Tidied(usize, bool),
    /// Ended keys were taken out; whether there may be more.
    Swept(bool),
    /// Pieces of a shard that nothing needs went back to the node.
    Trimmed(usize),
    /// Keys of a shard were evicted ahead of writes; whether it is of use to go on.
    Evicted(usize, bool),
    /// Memory of a shard was handed over to others.
    HandedOver(usize),
    /// A step of filling a shard's new node.
    Mend(usize, Step),
}

#[derive(Debug)]
struct State {
    shard: Rc<Shard>,
    ticking: bool,
    tidying: bool,
    next: Instant,
    /// When a tick that succeeded was begun.
    renewed: Instant,
    begun: Instant,
    adopt: Option<Instant>,
    trim: Instant,
    /// Pieces that nothing needs are to go back once a tick has succeeded.
    trims: bool,
    /// Some are going back: see [`State::begin_trim`].
    trimming: bool,
    /// It was said that memory waits for a silent front end.
    told: bool,
    /// A silent front end keeps this one from going on with one node.
    held_up: bool,
    /// There were other front ends, which may have made objects of this one garbage.
    company: bool,
    /// Bytes that objects had after the last search for garbage.
    searched: u64,
    /// It was said that one node goes on without the other.
    alone: bool,
    evicting: bool,
    /// Bytes that others want, and whether some are being handed over.
    wanted: u64,
    handing_over: bool,
    /// When keys may be evicted ahead of writes again.
    evict: Instant,
}

impl State {
    /// Tells, once, that a silent front end keeps this one from leaving a node.
    fn tell_if_held_up(&mut self, store: &str) {
        let copies = &self.shard.reach.copies;
        let is_held_up = copies.is_held_up();
        if let Mode::Alone(node) = copies.mode()
            && is_held_up
            && !self.held_up
        {
            eprintln!(
                "farmem: store {store}: a front end on the machine of node {node} is silent and has its memory mapped: \
                 requests wait until it goes on or ends"
            );
        }
        self.held_up = is_held_up;
    }

    /// Gives pieces back that nothing needs, beside the ticks that follow. Each takes a round trip. A
    /// store that was emptied has thousands: meanwhile the others must see that this front end lives.
    ///
    /// A tick may go on with the epoch between two steps of this:
    ///
    /// * *Nobody uses such a piece.* A place is freed [`crate::shard::heap::GRACE`] epochs after it was
    ///   retired, or was never linked. A piece goes when all its places are free. What the epoch had to
    ///   prove is proven before. The heap gives it up first, so no write here takes a place of it.
    /// * *Two copies.* A tick may learn that a node is left, or filled. Each piece's verbs are a batch with
    ///   a phase of its own (`Copies::verbs`). It goes to the nodes that count when it begins, and what
    ///   fills a node waits for it.
    /// * *The limit.* The member's line leaves a piece out up to a round trip before its node has it
    ///   back. The others may hold as much more meanwhile, as when a write gives up a spare piece.
    /// * *Shut out in the middle.* Before another takes this front end's pieces, the node is told to
    ///   refuse its verbs. So no WRITE or FREE of this task comes later. A piece that still has its header
    ///   is adopted, and all its places are garbage. One without is given back when it was seen twice, more
    ///   than 10 s apart (`Recovery::adopt`). A front end that lives needs less for one piece.
    fn begin_trim(&mut self, n: usize, tasks: &mut Schedule<Ended>) {
        (self.trims, self.trimming) = (false, true);
        let shard = Rc::clone(&self.shard);
        tasks.begin(|io| async move {
            shard.space.trim(&io).await;
            shard.space.keep_reserve(&io).await;
            Ended::Trimmed(n)
        });
    }

    /// A shard that had two nodes and has one.
    fn goes_on_alone(&mut self, store: &str, node: u8) {
        self.alone = true;
        // Decisions that did not show before have made objects garbage.
        (self.company, self.searched) = (true, 0);
        let nodes = self.shard.reach.nodes.borrow();
        let [stays, ended] =
            if node == self.shard.reach.node { [&nodes[0], &nodes[1]] } else { [&nodes[1], &nodes[0]] };
        let ended = match &ended[..] {
            "" => "its other node is not there".to_owned(),
            ended => format!("node {ended} has ended"),
        };
        eprintln!("farmem: store {store}: {ended}; node {stays} goes on alone, with the only copy of its keys");
    }
}

/// See the module.
#[derive(Debug)]
pub struct Background {
    store: Rc<Keyspace>,
    /// The tasks.
    pub tasks: Schedule<Ended>,
    shards: Vec<State>,
    start: Instant,
    sweeping: bool,
    sweep: Instant,
    /// Of a store with two copies.
    mender: Option<Mender>,
}

impl Background {
    /// Of a store that was just joined.
    ///
    /// Its clock counts from `now`.
    pub fn new(config: &Config, run: [u8; 16], store: &Rc<Keyspace>, now: Instant) -> Background {
        let state = |shard: &Rc<Shard>| State {
            shard: Rc::clone(shard),
            ticking: false,
            tidying: false,
            next: now,
            renewed: now,
            begun: now,
            adopt: None,
            trim: now,
            trims: false,
            trimming: false,
            told: false,
            held_up: false,
            company: false,
            searched: 1 << 20,
            alone: false,
            evicting: false,
            wanted: 0,
            handing_over: false,
            evict: now,
        };
        Background {
            store: Rc::clone(store),
            tasks: Schedule::new(1 << 63),
            shards: store.shards.iter().map(state).collect(),
            start: now,
            sweeping: false,
            sweep: now + SWEEP,
            mender: config.mirror.then(|| Mender::new(config, run, &store.shards, now)),
        }
    }

    /// Whether this front end must show that it is alive before it does anything else.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.shards.iter().any(|state| now.duration_since(state.renewed) > Duration::from_millis(STALE_MS))
    }

    /// Begins what is due.
    pub fn begin(&mut self, now: Instant, drive: &RefCell<Drive>) {
        if let Some(mender) = &mut self.mender {
            mender.look(now, &mut drive.borrow_mut(), &mut self.tasks);
        }
        let now_ms = now.duration_since(self.start).as_millis() as u64;
        for (n, state) in self.shards.iter_mut().enumerate() {
            state.tell_if_held_up(&self.store.name);
            let retired = state.shard.space.heap.borrow().sizes().retired;
            let pile = PILE.max(state.shard.space.bytes() / 16);
            let lacks = state.shard.space.lacks() > 0;
            let closing = state.shard.space.heap.borrow().closing_bytes() > 0;
            let hurries = retired > pile || retired > 0 && (lacks || closing || state.shard.space.pressed.get() > 0);
            let due = match hurries {
                true => state.next.min(state.begun + HURRIED),
                false if state.shard.space.wanted.get() > 0 || closing => state.next.min(state.begun + BRISK),
                false => state.next,
            };
            if !state.ticking && due <= now {
                (state.ticking, state.begun) = (true, now);
                if state.trim <= now || closing || state.wanted > 0 {
                    (state.trims, state.trim) = (true, now + CALM);
                }
                let shard = Rc::clone(&state.shard);
                self.tasks.begin(|io| async move { Ended::Tick(n, shard.members.tick(&io, now_ms).await) });
            }
            if lacks && self.store.evicts && !state.evicting && state.evict <= now {
                state.evicting = true;
                let (store, shard) = (Rc::clone(&self.store), Rc::clone(&state.shard));
                self.tasks.begin(|io| async move {
                    // A write that finds no room tells of any trouble.
                    Ended::Evicted(n, store.make_headroom(&io, &shard).await.unwrap_or_default())
                });
            }
            if state.wanted > 0 && !state.handing_over {
                state.handing_over = true;
                let (store, shard, wanted) = (Rc::clone(&self.store), Rc::clone(&state.shard), state.wanted);
                self.tasks.begin(|io| async move {
                    // The front end that asks waits for so long, or evicts.
                    let _ = store.hand_over(&io, &shard, wanted).await;
                    Ended::HandedOver(n)
                });
            }
            let adopts = state.adopt.is_some_and(|at| at <= now);
            let searches = state.company && state.shard.space.used_bytes() > state.searched + state.searched / 4;
            if !state.tidying && (adopts || searches) {
                state.tidying = true;
                if adopts {
                    state.adopt = None;
                }
                let (store, shard) = (Rc::clone(&self.store), Rc::clone(&state.shard));
                self.tasks.begin(|io| async move {
                    if adopts {
                        // A failure is repeated by the next search.
                        let _ = shard.recovery.adopt(&io, now_ms).await;
                        store.end_parts(&io, &shard).await;
                    }
                    if searches {
                        shard.recovery.scavenge(&io).await;
                    }
                    Ended::Tidied(n, searches)
                });
            }
        }
        if !self.sweeping && self.sweep <= now {
            self.sweeping = true;
            let store = Rc::clone(&self.store);
            self.tasks.begin(|io| async move { Ended::Swept(store.sweep(&io, SWEPT).await) });
        }
    }

    /// A task has ended.
    ///
    /// # Errors
    /// This front end was shut out.
    pub fn ended(&mut self, ended: Ended, now: Instant) -> Result<(), Trouble> {
        match ended {
            Ended::Tick(n, ticked) => {
                let ticked = ticked?;
                let state = &mut self.shards[n];
                (state.ticking, state.renewed) = (false, state.begun);
                if let Mode::Alone(node) = state.shard.reach.copies.mode()
                    && !state.alone
                {
                    state.goes_on_alone(&self.store.name, node);
                }
                if !ticked.company {
                    let since = |at: Instant| at.duration_since(self.start).as_millis() as u64;
                    state.shard.near.lease.renew(since(state.begun), since(now));
                }
                state.company |= ticked.company;
                state.wanted = ticked.wanted;
                let space = &state.shard.space;
                let waits = space.heap.borrow().sizes().retired > 0 || space.may_show_more();
                if matches!(ticked.turn, Turn::Mended | Turn::GivenUp) {
                    state.alone = ticked.turn == Turn::GivenUp;
                }
                // Others wait for this front end's epoch as it waits for theirs.
                state.next = now
                    + match state.shard.reach.copies.mode() {
                        Mode::Mending(_) if state.shard.reach.copies.is_paused() => HURRIED,
                        Mode::Mending(_) => BRISK,
                        _ if waits || ticked.advanced || ticked.wanted > 0 => BRISK,
                        _ => CALM,
                    };
                if ticked.deaths {
                    state.adopt = Some(now);
                }
                if ticked.held_up && !state.told {
                    let name = &self.store.name;
                    eprintln!(
                        "farmem: store {name}: a front end on the machine of node {n} is silent and has its memory \
                         mapped: what it may write to is not used again before it goes on or ends"
                    );
                }
                state.told = ticked.held_up;
                if state.trims && !state.trimming {
                    state.begin_trim(n, &mut self.tasks);
                }
            }
            Ended::Trimmed(n) => self.shards[n].trimming = false,
            Ended::Evicted(n, useful) => {
                let state = &mut self.shards[n];
                state.evicting = false;
                state.evict = if useful { now } else { now + CALM };
            }
            Ended::HandedOver(n) => {
                // The next tick says whether more is wanted.
                self.shards[n].handing_over = false;
                self.shards[n].wanted = 0;
            }
            Ended::Mend(n, step) => {
                if let Some(mender) = &mut self.mender {
                    mender.ended(n, step, now);
                }
            }
            Ended::Tidied(n, searched) => {
                let state = &mut self.shards[n];
                state.tidying = false;
                if searched {
                    // Not all bytes of its pieces: the next search would come ever later.
                    state.searched = state.shard.space.used_bytes().max(1 << 20);
                }
                if let Some(ms) = state.shard.recovery.again_ms()
                    && state.adopt.is_none()
                {
                    state.adopt = Some(now + Duration::from_millis(ms));
                }
            }
            Ended::Swept(more) => {
                self.sweeping = false;
                self.sweep = now + if more { BRISK } else { SWEEP };
            }
        }
        Ok(())
    }

    /// When something is due next.
    pub fn wakes(&self) -> Instant {
        let ticks = self.shards.iter().filter(|state| !state.ticking).map(|state| state.next);
        let adopts = self.shards.iter().filter_map(|state| state.adopt);
        let sweep = (!self.sweeping).then_some(self.sweep);
        let active = self.mender.as_ref().is_some_and(Mender::is_active);
        let mends = active.then(|| Instant::now() + BRISK);
        ticks.chain(mends).chain(adopts).chain(sweep).chain(self.tasks.wakes()).min().unwrap_or(self.start)
    }
}
