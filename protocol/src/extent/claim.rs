//! Claim: FREE → OWNED. One CAS for a unit whose word was read before.
//!
//! ```text
//!            ┌────────────── nothing FREE in what was read ◄──────────────┐
//!            ▼                                                            │
//!   READ hints ─► READ a line ─► CAS FREE(g) → OWNED(self, g+1) ─► done   │
//!             ▲                    │ lost the race: others are at this line, or
//!             └──── another line ──┘ were, and more of it is old than one word
//!   the last FREE block known of: its CAS, and the READ of another line for the next claim, together
//!   a run of n blocks or giants: n CAS in one batch
//!   a run of n chunks:           CAS of the first ─► took ─► n-1 CAS, 64 under way at most
//!                                        └─► lost: to another run, nothing to give back
//!   one of a run fails: no more are posted, those that took are given back (QUARANTINE)
//!   over quota after a lost answer: the CAS is kept, and repeated first thing in the next claim
//! ```
//!
//! *Why the first chunk of a run is claimed alone*: runs of chunks lie at multiples of their
//! length. So all claims of the same run begin with the same word. The claim that gets this word
//! competes only with claims of something smaller inside the run. If all CASes were posted at once,
//! two claims of 256 words could each take some, and each would give all back.
//!
//! *Over quota after a lost answer*: the refusal says that the word was still FREE, so the first
//! copy of the CAS had not taken effect. It may take effect later, when the quota has room again.
//! Then the owner would hold a unit without knowing. So the claimer remembers the CAS
//! ([`Claimer::unsettled`]), and its next claim repeats it until it is answered. A unit that this
//! takes is given back. A unit that is another's by then cannot be taken by the late copy either.
//! While the owner is still over quota, nothing else is claimed: unsettled units are never more
//! than those of one claim.
//!
//! Each chunk belongs to one of 16 *lots*, and so does each owner (`lots`). A claim of single
//! chunks first tries those of its own lot. Chunks are claimed only from blocks that some owner has
//! published. The usual way to get 4 KiB is to cut a block that the owner has claimed, by
//! [`super::block::Block`].

mod look;

use super::geometry::{Geometry, Hint, LINE, Target};
use super::place::{Level, Place};
use super::release::Grant;
use super::rules::Bug;
use super::search::{Area, Route};
use super::step::{Actor, Answer, Failed, Operation, Step, Verb};
use super::swap::{Swap, Swapped};
use super::want::Want;
use super::word::{State, Word};
use super::{Pipe, word};

/// The most round trips of READs in a claim before it gives up.
pub const MAX_READS: u32 = 4096;

/// The most CASes that a claim posts at once on words that an earlier claim read. Such words may
/// have any age, and may all be taken by now. Words that this claim has read are one round trip
/// old.
pub const MAX_BLIND: usize = 4;

/// A READ for the next claim, posted beside the last CAS of this one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Ahead {
    Nothing,
    /// Of a window's hints.
    Hints(Verb),
    /// Of a line, and whether the answer has come.
    Line(Area, bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Phase {
    /// CAS of `swaps`: those that an earlier claim left unsettled.
    Settle,
    /// Choose from what is known, or look further.
    Search,
    /// READ of a window's hints.
    Hints(Verb),
    /// READs of `outer`.
    Outer,
    /// READs of the hints of the chunks of these blocks.
    BlockHints(Vec<Place>),
    /// READ of `inner`.
    Inner,
    /// CAS of `swaps`.
    Claim,
    /// CAS of `swaps`, giving back what is of no use alone.
    Rollback,
}

/// Claims for one queue pair of an owner, one claim after the other, with what it has read.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Claimer {
    actor: Actor,
    geometry: Geometry,
    want: Option<Want>,
    phase: Phase,
    pipe: Pipe,
    route: Route,
    /// Blocks' or giants' words.
    outer: Area,
    /// Reads for the next claim, posted together with the CAS that takes the last FREE unit of
    /// `outer`.
    ahead: Ahead,
    /// Chunks' words of one shared block: a line, or as many as a run has.
    inner: Area,
    /// How many blocks of `outer` were considered for their chunks. Each claimant goes through them
    /// in an order of its own.
    blocks_seen: u32,
    /// Lines still to read, each with its block; the last is read first. For a run of several
    /// lines, the first line of each place where the run may lie.
    inner_lines: Vec<(Place, u32)>,
    /// How many blocks' hints are read at once. It doubles each time that they are read.
    looks: u32,
    swaps: Vec<Swap>,
    taken: Vec<Grant>,
    /// CASes that were refused for the quota, and of which another copy may be under way.
    unsettled: Vec<Swap>,
    retries: u32,
    reads: u32,
    /// A race was lost, so the search goes on to another line. Going on with the known words would
    /// lose a CAS for each word that others have taken since. Reading the same line again would
    /// keep the competing claims together.
    beaten: bool,
    /// The known words were read in this claim.
    fresh: bool,
    /// The last claim for single chunks lost a race: this one tries its own lot only.
    wary: bool,
    /// A verb was refused for good.
    refused: Option<Failed>,
}

impl Claimer {
    /// A claimer for this actor. It remembers where it was in its search until a claim wants
    /// another level. So an actor that claims chunks and blocks alternately should keep a claimer
    /// for each.
    pub fn new(actor: Actor, geometry: Geometry) -> Claimer {
        Claimer {
            actor,
            geometry,
            want: None,
            phase: Phase::Search,
            pipe: Pipe::default(),
            route: Claimer::route(&actor, &geometry, Level::Block),
            outer: Area::nothing(Level::Block),
            ahead: Ahead::Nothing,
            inner: Area::nothing(Level::Chunk),
            blocks_seen: 0,
            inner_lines: Vec::new(),
            looks: 1,
            swaps: Vec::new(),
            taken: Vec::new(),
            unsettled: Vec::new(),
            retries: 0,
            reads: 0,
            beaten: false,
            fresh: false,
            wary: false,
            refused: None,
        }
    }

    /// The order in which an actor searches for units of a level.
    fn route(actor: &Actor, geometry: &Geometry, level: Level) -> Route {
        let (outer, about) = match level {
            Level::Chunk => (Level::Block, Some(Hint::SharedBlocks)),
            Level::Block => (Level::Block, Some(Hint::FreeBlocks)),
            Level::Giant => (Level::Giant, None),
        };
        Route::new(geometry, outer, about, actor.owner, actor.claimant)
    }

    /// Units that a CAS under way may still make the owner's, though no claim has returned them.
    /// The next claim gives them back, or finds that they are another owner's.
    pub fn unsettled(&self) -> impl Iterator<Item = Place> + '_ {
        self.unsettled.iter().map(|swap| swap.place)
    }

    /// Begins a claim. The one before must have ended; if it has not, it is dropped like a crash.
    pub fn begin(&mut self, want: Want) {
        if self.want.is_none_or(|before| before.level != want.level) {
            self.route = Claimer::route(&self.actor, &self.geometry, want.level);
            let outer = if want.level == Level::Giant { Level::Giant } else { Level::Block };
            self.outer = Area::nothing(outer);
            self.ahead = Ahead::Nothing;
            self.inner = Area::nothing(Level::Chunk);
            self.inner_lines.clear();
            self.blocks_seen = 0;
        }
        if !matches!(self.ahead, Ahead::Line(_, true)) {
            self.ahead = Ahead::Nothing;
        }
        if self.want.is_some_and(|before| before.lines() != want.lines()) {
            // Runs of another length begin at other lines.
            self.inner_lines.clear();
        }
        self.want = Some(want);
        self.looks = 1;
        self.phase = Phase::Search;
        self.pipe = Pipe::default();
        self.route.begin();
        self.swaps.clear();
        self.taken.clear();
        (self.retries, self.reads, self.refused, self.beaten, self.fresh) = (0, 0, None, false, false);
        if !self.unsettled.is_empty() {
            self.swaps = std::mem::take(&mut self.unsettled);
            self.phase = Phase::Settle;
            self.pipe.fill(self.swaps.len());
        }
    }

    /// Notes that this owner has given a unit back. It may be FREE again by now, so the next claim
    /// tries it before it reads anything. The grant tells the word that the unit has when it is
    /// FREE.
    pub fn freed(&mut self, grant: &Grant) {
        let free = Word::plain(State::Free, word::Generation(grant.word.generation().0.wrapping_add(1)));
        self.outer.found(grant.place, free);
        self.inner.found(grant.place, free);
    }

    /// The verb of this number in the current phase.
    fn verb(&self, number: usize) -> Verb {
        match &self.phase {
            Phase::Claim if number == self.swaps.len() => match &self.ahead {
                Ahead::Line(line, _) => line.read(0),
                Ahead::Hints(verb) => *verb,
                Ahead::Nothing => unreachable!("nothing is read ahead"),
            },
            Phase::Settle | Phase::Search | Phase::Claim | Phase::Rollback => self.swaps[number].verb(self.actor.rules),
            Phase::Hints(verb) => *verb,
            Phase::Outer => self.outer.read(number),
            Phase::Inner => self.inner.read(number),
            Phase::BlockHints(blocks) => {
                let chunks = self.geometry.chunks(blocks[number]);
                let (from, to) = (chunks.start / LINE, (chunks.end - 1) / LINE);
                let at = Target::Hint { about: Hint::FreeChunks, line: from };
                Verb::Read { at, words: (to - from + 1) as u16 }
            }
        }
    }

    /// Begins a phase of `count` READs. Returns an outcome instead if the claim has made too many.
    fn read(&mut self, phase: Phase, count: usize) -> Option<Result<Vec<Grant>, Failed>> {
        let chunks = self.want.is_some_and(|want| want.level == Level::Chunk);
        self.fresh |= phase == if chunks { Phase::Inner } else { Phase::Outer };
        self.phase = phase;
        self.reads += 1;
        if self.reads > MAX_READS {
            return Some(Err(Failed::NoSpace));
        }
        self.pipe.fill(count);
        None
    }

    /// Called when no verb is under way. Returns the outcome, or sets the next phase.
    fn decide(&mut self) -> Option<Result<Vec<Grant>, Failed>> {
        let Some(want) = self.want else { return Some(Err(Failed::NoSpace)) };
        match (self.refused, &self.phase) {
            // Units claimed before the quota was used up are of use if the claim need not be whole.
            (Some(Failed::OverQuota), Phase::Claim) => {}
            (Some(Failed::OverQuota), Phase::Rollback) => return Some(Err(Failed::OverQuota)),
            (Some(refused), _) => return Some(Err(refused)),
            (None, _) => {}
        }
        match self.phase {
            Phase::Claim => {
                let failed = self.swaps.len() - self.taken.len();
                self.wary = failed > 0;
                if failed == 0 || (!want.contiguous && !self.taken.is_empty()) {
                    self.taken.sort_unstable();
                    return Some(Ok(std::mem::take(&mut self.taken)));
                }
                (self.retries, self.beaten) = (self.retries + 1, true);
                if self.actor.rules.broken(Bug::RunWithoutRollback) {
                    self.taken.clear();
                }
                self.give_back();
                if want.has_leader() && self.actor.rules.broken(Bug::RunKeepsLeader) && !self.swaps.is_empty() {
                    self.swaps.remove(0);
                }
                self.phase = Phase::Rollback;
                self.pipe.fill(self.swaps.len());
                None
            }
            Phase::Settle => {
                self.give_back();
                self.refused = (!self.unsettled.is_empty()).then_some(Failed::OverQuota);
                self.phase = Phase::Rollback;
                self.pipe.fill(self.swaps.len());
                None
            }
            Phase::Rollback if self.retries >= want.retries() => Some(Err(Failed::Contended)),
            _ => self.search(want),
        }
    }

    /// Fills `swaps` with the CASes that put what was taken into QUARANTINE.
    fn give_back(&mut self) {
        self.swaps.clear();
        for grant in std::mem::take(&mut self.taken) {
            let given = self.actor.plain(grant.word, State::Quarantine);
            self.outer.found(grant.place, given);
            self.inner.found(grant.place, given);
            self.swaps.push(Swap::new(grant.place, grant.word, given));
        }
    }

    /// Posts no more CASes, except those whose answers were lost: these are repeated, because they
    /// may have taken effect.
    fn post_no_more(&mut self) {
        let swaps = &self.swaps;
        self.pipe.retain(|number| swaps.get(number).is_some_and(Swap::is_unsure));
    }

    /// Takes the answer to the CAS of this number.
    fn swapped(&mut self, number: usize, answer: Answer<'_>) {
        let swap = &mut self.swaps[number];
        let (place, new) = (swap.place, swap.new);
        let is_claim = self.phase == Phase::Claim;
        let settles = self.phase == Phase::Settle;
        match swap.answer(answer, self.actor.rules) {
            Ok(Swapped::Again) => self.pipe.push(number),
            Ok(Swapped::Took) => {
                self.outer.found(place, new);
                self.inner.found(place, new);
                if is_claim || settles {
                    self.taken.push(Grant { place, word: new });
                    if is_claim && number == 0 && self.want.is_some_and(|want| want.has_leader()) {
                        self.led();
                    }
                }
            }
            Ok(Swapped::Failed(found)) => {
                self.outer.found(place, found);
                self.inner.found(place, found);
                if is_claim && self.want.is_some_and(|want| want.contiguous) {
                    self.post_no_more();
                }
            }
            Ok(Swapped::Moved(_)) => {}
            Err(Failed::OverQuota) if swap.is_unsure() && !self.actor.rules.broken(Bug::ForgetOverQuota) => {
                self.unsettled.push(*swap);
                if !settles {
                    self.refused = Some(Failed::OverQuota);
                    self.post_no_more();
                }
            }
            Err(refused) => {
                self.refused = Some(refused);
                match refused {
                    // Nothing more is admitted, and nothing is ours any more.
                    Failed::Fenced => self.pipe.stop(),
                    _ => self.post_no_more(),
                }
            }
        }
    }

    /// The first chunk of a run was claimed: posts the CASes of the others.
    fn led(&mut self) {
        if self.actor.rules.broken(Bug::RunTrustsLeader) {
            let others = self.swaps[1..].iter().map(|swap| Grant { place: swap.place, word: swap.new });
            self.taken.extend(others);
            return;
        }
        (1..self.swaps.len()).for_each(|number| self.pipe.push(number));
    }
}

/// Ends with the units in the order of their addresses, or with an error:
/// * [`Failed::Contended`] after [`MAX_RETRIES`](super::want::MAX_RETRIES) lost races (for chunks
///   [`MAX_CHUNK_RETRIES`](super::want::MAX_CHUNK_RETRIES)), or when everything was read and a race
///   was lost.
/// * [`Failed::NoSpace`] when everything was read, or [`MAX_READS`] round trips were made.
///
/// A claim of single chunks after one that lost a race looks only at its own lot. It may end with
/// [`Failed::NoSpace`] while other lots have chunks; the next claim takes these.
impl Operation for Claimer {
    type Outcome = Result<Vec<Grant>, Failed>;

    fn step(&mut self) -> Step<Self::Outcome> {
        loop {
            if let Some(number) = self.pipe.post() {
                return Step::Verb(self.verb(number));
            }
            if !self.pipe.is_idle() {
                return Step::Wait;
            }
            if let Some(outcome) = self.decide() {
                self.phase = Phase::Search;
                return Step::Done(outcome);
            }
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        let Some(number) = self.pipe.answered() else { return };
        if let Phase::Settle | Phase::Claim | Phase::Rollback = self.phase {
            if number >= self.swaps.len() {
                return self.has_read_ahead(answer);
            }
            return self.swapped(number, answer);
        }
        let words = match answer {
            Answer::Words(words) => words,
            Answer::Refused => {
                self.refused = Some(Failed::Fenced);
                return self.pipe.stop();
            }
            _ => return self.pipe.push(number),
        };
        match &self.phase {
            Phase::Hints(_) => self.route.hints(words),
            Phase::Outer if !self.outer.fill(number, words) => self.pipe.push(number),
            Phase::Inner if !self.inner.fill(number, words) => self.pipe.push(number),
            Phase::BlockHints(blocks) => {
                let block = blocks[number];
                let from = self.geometry.chunks(block).start / LINE;
                let want = self.want.unwrap_or(Want::one(Level::Chunk));
                let lines = (from..).step_by(want.lines() as usize);
                let places = words.chunks(want.lines() as usize).zip(lines);
                let lines = places.filter(|(words, _)| want.may_be_in(words)).map(|(_, line)| (block, line));
                self.inner_lines.extend(lines);
                self.sort_lines();
            }
            _ => {}
        }
    }
}
