//! Carries out verbs on a named region of the nodes' memory.
//!
//! One lane, one thread. Verbs are posted as tasks ask for them and sent together, so that commands
//! of many clients share a round trip. Pieces are rare enough to be taken and given back at once.
//!
//! A store that keeps two copies goes on when a node's process has ended: its verbs are answered by
//! [`Answer::Lost`]. The memory of an ended node on this machine stays mapped. So the nodes are
//! looked at before verbs are posted, if they were not within [`LOOK`]: a verb that begins
//! [`crate::shard::copies`]' gate later finds the end.

mod places;
mod side;

use crate::fast::Map;
use crate::layout::NODE_SHIFT;
use crate::shard::index::Mapped;
use crate::task::{Answer, AtOnce, Verb};
use farmem::{Addr, Completion, Error, Memory};
use places::{Tag, address, is_posted, moved, node_of};
use side::Side;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between looks at the nodes of a store with two copies, at most, while verbs are posted.
const LOOK: Duration = Duration::from_millis(20);
/// Why a front end ends that cannot go on alone.
const DOUBT: &str = "this front end is told that its process has ended, or that others leave it, and some front end \
                     has not said that it knows: that one may go on with the node. If no front end is left, say so \
                     by `farmem kv alone`";
/// How long one of several sides is waited for.
const TURN: Duration = Duration::from_micros(50);

/// A batch under way: verbs without an answer, and the answers.
#[derive(Debug)]
struct Batch {
    left: usize,
    answers: Vec<Answer>,
}

/// Where a node is: its side, and its number there.
type Place = (usize, usize);

/// A store's memory, and what is under way.
#[derive(Debug)]
pub struct Drive {
    /// The store's nodes, and each that came later.
    sides: Vec<Side>,
    /// Two copies are kept.
    copied: bool,
    /// By which nodes know this process.
    run: [u8; 16],
    /// The nodes at which it has made the region.
    made: Vec<String>,
    /// By their numbers in the region; `None`: it is not there.
    nodes: Vec<Option<Place>>,
    /// Nodes that are being filled: nothing depends on them.
    incomplete: Vec<bool>,
    /// The same of nodes whose memory is mapped here, in a store with one copy.
    direct: Vec<Option<usize>>,
    looked: Instant,
    batches: Map<u64, Batch>,
    /// Verbs under way, by tag.
    tags: Vec<Tag>,
    /// Those of [`Verb::WriteFrom`].
    lent: usize,
    idle: Vec<usize>,
    ended: Vec<(u64, Vec<Answer>)>,
    completions: Vec<Completion>,
}

impl Drive {
    /// On a region; `named` is the number of nodes that the user has named.
    ///
    /// # Errors
    /// No lane can be had.
    pub fn new(memory: Memory, copied: bool, named: usize) -> Result<Drive, Error> {
        let found = memory.numbers().iter().max().map_or(0, |last| last + 1);
        let count = if copied { found.max(named).next_multiple_of(2) } else { found };
        let mut nodes = vec![None; count];
        memory.numbers().iter().enumerate().for_each(|(at, &number)| nodes[number] = Some((0, at)));
        let mapped = |at: &usize| !copied && memory.is_mapped(*at);
        let direct = nodes.iter().map(|place| place.map(|(_, at)| at).filter(mapped)).collect();
        Ok(Drive {
            direct,
            sides: vec![Side::new(memory)?],
            copied,
            run: [0; 16],
            made: Vec::new(),
            incomplete: vec![false; nodes.len()],
            nodes,
            looked: Instant::now(),
            batches: Map::default(),
            tags: Vec::new(),
            lent: 0,
            idle: Vec::new(),
            ended: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// Where the word is from which a shard is found: at the region's first node, or with two
    /// copies at each of its two.
    pub fn root_word(&self, shard: usize) -> u64 {
        match self.copied {
            false => self.sides[0].memory.root(shard).bits(),
            true => self.sides[0].memory.root(0).bits() | (2 * shard as u64) << NODE_SHIFT,
        }
    }

    /// Whether the node of this number is there.
    pub fn has_node(&self, number: usize) -> bool {
        self.nodes.get(number).is_some_and(Option::is_some)
    }

    /// By which nodes tell this process from others that have the region open.
    pub fn member_tag(&self) -> u32 {
        self.sides[0].memory.tag()
    }

    /// The memory was connected to by a process of this name ([`farmem::Builder::run`]).
    pub fn known_as(self, run: [u8; 16]) -> Drive {
        Drive { run, ..self }
    }

    /// The region was made by this process at these nodes.
    pub fn having_made(self, made: Vec<String>) -> Drive {
        Drive { made, ..self }
    }

    /// The nodes at which this process has made the region.
    pub fn made(&self) -> &[String] {
        &self.made
    }

    /// By which nodes know this process. A node that is connected to later must be told the same.
    pub fn run(&self) -> [u8; 16] {
        self.run
    }

    /// Reaches a node of this number from now on. It is to be filled, or has been: `complete`.
    ///
    /// # Errors
    /// No lane can be had.
    pub fn attach(&mut self, number: u8, memory: Memory, complete: bool) -> Result<(), Error> {
        let number = usize::from(number);
        self.sides.push(Side::new(memory)?);
        self.nodes[number] = Some((self.sides.len() - 1, 0));
        self.incomplete[number] = !complete;
        Ok(())
    }

    /// A node is filled.
    pub fn complete(&mut self, number: u8) {
        self.incomplete[usize::from(number)] = false;
    }

    /// Nothing depends on this node any more.
    pub fn leave(&mut self, number: u8) {
        self.incomplete[usize::from(number)] = true;
    }

    /// Whether a node's end is told by the kernel, and not by the network.
    pub fn proves_ends(&self, number: u8) -> bool {
        self.place(number).is_some_and(|(side, at)| self.sides[side].memory.is_mapped(at))
    }

    /// Reaches a node no more.
    pub fn detach(&mut self, number: u8) {
        self.nodes[usize::from(number)] = None;
        self.incomplete[usize::from(number)] = false;
    }

    fn place(&self, number: u8) -> Option<Place> {
        self.nodes.get(usize::from(number)).copied().flatten()
    }

    /// Nodes of the region.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The address of the node of this number, as it was given.
    pub fn node(&self, number: u8) -> &str {
        self.place(number).and_then(|(side, at)| self.sides[side].memory.node(at)).unwrap_or_default()
    }

    fn tag(&mut self, tag: Tag) -> u64 {
        match self.idle.pop() {
            Some(idle) => {
                self.tags[idle] = tag;
                idle as u64
            }
            None => {
                self.tags.push(tag);
                self.tags.len() as u64 - 1
            }
        }
    }

    /// Posts a batch. Its answers come with [`Drive::advance`].
    ///
    /// # Errors
    /// A node is lost.
    pub fn post(&mut self, id: u64, verbs: Vec<Verb>) -> Result<(), Error> {
        if self.copied {
            self.look()?;
        }
        // Inserted before its verbs: a FREE waits for those before it. `left` counts one more than
        // the verbs.
        self.batches.insert(id, Batch { left: 1, answers: vec![Answer::Done; verbs.len()] });
        for (place, verb) in verbs.into_iter().enumerate() {
            let node = node_of(&verb);
            if let Verb::Doubt { .. } = verb {
                return Err(Error::Lost { node: self.node(node).to_owned(), reason: DOUBT.to_owned() });
            }
            let answer = match self.place(node) {
                None => Answer::Lost,
                Some(at) if is_posted(&verb) => {
                    self.post_one(id, place as u32, node, at, verb);
                    continue;
                }
                Some(at) => match self.carry_out(at, verb) {
                    Ok(answer) => answer,
                    Err(e) => self.is_survived(node, e)?,
                },
            };
            if let Some(batch) = self.batches.get_mut(&id) {
                batch.answers[place] = answer;
            }
        }
        self.answered(id);
        Ok(())
    }

    /// Looks whether the nodes are there, if that was not done lately.
    fn look(&mut self) -> Result<(), Error> {
        if self.looked.elapsed() < LOOK {
            return Ok(());
        }
        self.looked = Instant::now();
        self.check()
    }

    /// The answer to a verb of a node that is lost, if the store goes on without it.
    fn is_survived(&self, node: u8, e: Error) -> Result<Answer, Error> {
        let incomplete = |node: u8| self.incomplete.get(usize::from(node)).copied().unwrap_or_default();
        let has_ended = |(side, at): Place| self.sides[side].memory.has_ended(at);
        let ended = self.place(node).is_some_and(has_ended);
        let stays = self.place(node ^ 1).is_some_and(|other| !has_ended(other)) && !incomplete(node ^ 1);
        match e {
            _ if incomplete(node) => Ok(Answer::Lost),
            Error::Lost { .. } if self.copied && ended && stays => Ok(Answer::Lost),
            Error::Lost { node: at, reason } if self.copied => {
                let other = self.node(node ^ 1);
                let more = match self.place(node ^ 1) {
                    Some(_) if incomplete(node ^ 1) => format!("; {other} was not yet filled with its keys"),
                    Some(place) if has_ended(place) => format!("; so is {other}, which had the other copy of its keys"),
                    _ => String::new(),
                };
                Err(Error::Lost { node: at, reason: reason + &more })
            }
            e => Err(e),
        }
    }

    fn carry_out(&mut self, (side, node): Place, verb: Verb) -> Result<Answer, Error> {
        if let Verb::Free { .. } = verb {
            // Earlier verbs must have taken effect before another can take the piece.
            self.settle()?;
        }
        let memory = &self.sides[side].memory;
        Ok(match verb {
            Verb::Alloc { node: number, bytes } => match memory.alloc_on(node, u64::from(bytes)) {
                Ok(at) => Answer::Place(moved(at.bits(), usize::from(number))),
                Err(Error::Full(_)) => Answer::Full,
                Err(e) => return Err(e),
            },
            Verb::Claim { at, bytes } => match memory.alloc_at(address(at, node), u64::from(bytes)) {
                Ok(()) => Answer::Done,
                Err(Error::Full(_) | Error::NotAPiece(_)) => Answer::Full,
                Err(e) => return Err(e),
            },
            Verb::Free { at } => match memory.free(address(at, node)) {
                Ok(()) | Err(Error::NotAPiece(_)) => Answer::Done,
                Err(e) => return Err(e),
            },
            Verb::Pieces { node: number } => {
                let pieces = memory.pieces_on(node)?;
                let place = |at: Addr| moved(at.bits(), usize::from(number));
                Answer::Pieces(pieces.iter().map(|piece| (place(piece.at), piece.bytes as u32)).collect())
            }
            Verb::Expel { tag, .. } => Answer::Expelled(memory.expel(node, tag)?),
            Verb::Read { .. } | Verb::Write { .. } | Verb::WriteFrom { .. } | Verb::Cas { .. } | Verb::Doubt { .. } => {
                Answer::Done
            }
        })
    }

    fn post_one(&mut self, id: u64, place: u32, number: u8, (side, node): Place, verb: Verb) {
        let lent = matches!(verb, Verb::WriteFrom { .. });
        self.lent += usize::from(lent);
        let tag = self.tag(Tag { batch: id, place, node: number, lent });
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.left += 1;
        }
        let side = &mut self.sides[side];
        let lane = &mut side.lane;
        match verb {
            Verb::Read { at, len } => lane.post_read(tag, address(at, node), vec![0; len as usize]),
            Verb::Write { at, bytes } => {
                lane.post_write(tag, address(at, node), bytes.to_vec());
                side.posted(bytes.len());
            }
            Verb::WriteFrom { at, bytes } => {
                let len = bytes.len();
                lane.post_write_of(tag, address(at, node), bytes);
                side.posted(len);
            }
            Verb::Cas { at, old, new } => lane.post_compare_swap(tag, address(at, node), old, new),
            _ => {}
        }
    }

    /// One less is left of a batch.
    fn answered(&mut self, id: u64) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        batch.left -= 1;
        if batch.left == 0
            && let Some(batch) = self.batches.remove(&id)
        {
            self.ended.push((id, batch.answers));
        }
    }

    /// Carries out reads and changes of mapped memory, one answer for each. `None`: they must be
    /// posted, all of them.
    fn at_once(&mut self, verbs: &[Verb]) -> Option<Vec<Answer>> {
        if !verbs.iter().all(|verb| is_posted(verb) && self.has(node_of(verb))) {
            return None;
        }
        let mut answers = Vec::with_capacity(verbs.len());
        for verb in verbs {
            // After a loss they are posted, which tells of it. A WRITE or CAS that was carried out
            // does no harm then: its memory is gone.
            answers.push(match verb {
                Verb::Read { at, len } => {
                    let mut bytes = vec![0; *len as usize];
                    let at = self.direct(*at)?;
                    self.sides[0].lane.read(at, &mut bytes).ok()?;
                    Answer::Bytes(bytes)
                }
                Verb::Write { at, bytes } => {
                    self.write(*at, bytes).ok()?;
                    Answer::Done
                }
                Verb::WriteFrom { at, bytes } => {
                    self.write(*at, bytes).ok()?;
                    Answer::Done
                }
                Verb::Cas { at, old, new } => Answer::Word(self.swap(*at, *old, *new).ok()?),
                _ => return None,
            });
        }
        Some(answers)
    }

    /// An address as its node knows it, if that node's memory is mapped here.
    fn direct(&self, at: u64) -> Option<Addr> {
        let node = self.direct.get((at >> NODE_SHIFT) as usize).copied().flatten()?;
        Some(address(at, node))
    }

    /// Rings, and appends the batches that are answered. Waits for one at most `limit`.
    ///
    /// # Errors
    /// A node is lost.
    pub fn advance(&mut self, limit: Duration, ended: &mut Vec<(u64, Vec<Answer>)>) -> Result<(), Error> {
        let mut completions = std::mem::take(&mut self.completions);
        for side in &mut self.sides {
            side.ring();
            side.lane.poll(&mut completions);
        }
        if completions.is_empty() && self.ended.is_empty() && !limit.is_zero() {
            self.wait(&mut completions, limit);
        }
        let told = self.tell(&mut completions);
        self.completions = completions;
        ended.append(&mut self.ended);
        told
    }

    /// Waits for a completion, at most so long.
    fn wait(&mut self, completions: &mut Vec<Completion>, limit: Duration) {
        let waits = self.sides.iter().filter(|side| side.lane.in_flight() > 0).count() as u32;
        let begun = Instant::now();
        while completions.is_empty() && waits > 0 {
            // Of several, each has its turn.
            let turn = if waits == 1 { limit } else { TURN.min(limit) };
            for side in self.sides.iter_mut().filter(|side| side.lane.in_flight() > 0) {
                side.lane.wait(completions, turn);
            }
            if begun.elapsed() >= limit {
                break;
            }
        }
    }

    /// Waits for everything that is under way.
    fn settle(&mut self) -> Result<(), Error> {
        let mut completions = Vec::new();
        while self.sides.iter().any(|side| side.lane.in_flight() > 0) {
            self.wait(&mut completions, Duration::from_millis(100));
            self.tell(&mut completions)?;
        }
        Ok(())
    }

    fn tell(&mut self, completions: &mut Vec<Completion>) -> Result<(), Error> {
        let mut told = Ok(());
        for Completion { tag, result, buffer, .. } in completions.drain(..) {
            let tag = tag as usize;
            let Tag { batch: id, place, node, lent } = self.tags[tag];
            self.idle.push(tag);
            self.lent -= usize::from(lent);
            let answer = match (result, buffer.is_empty()) {
                // A WRITE's buffer comes back, too, and is of no more use.
                (Ok(0), false) => Answer::Bytes(buffer),
                (Ok(word), _) => Answer::Word(word),
                (Err(Error::Unknown), _) => Answer::Unknown,
                (Err(e), _) => match self.is_survived(node, e) {
                    Ok(answer) => answer,
                    Err(e) => {
                        // Those behind it are told all the same.
                        told = told.and(Err(e));
                        continue;
                    }
                },
            };
            let Some(batch) = self.batches.get_mut(&id) else { continue };
            batch.answers[place as usize] = answer;
            self.answered(id);
        }
        told
    }

    /// Waits until no WRITE of lent bytes is under way. A node that does not answer is lost after
    /// its grace, and that ends them too.
    pub fn settle_lent(&mut self) {
        let mut completions = Vec::new();
        while self.lent > 0 && self.sides.iter().any(|side| side.lane.in_flight() > 0) {
            self.wait(&mut completions, Duration::from_millis(100));
            // Whoever posts next is told of a loss.
            let _ = self.tell(&mut completions);
        }
    }

    /// Batches without an answer.
    pub fn under_way(&self) -> usize {
        self.batches.len() + self.ended.len()
    }

    /// Looks whether every node is there.
    ///
    /// # Errors
    /// A node is lost.
    pub fn check(&self) -> Result<(), Error> {
        for (number, at) in self.nodes.iter().enumerate() {
            if let Some((side, at)) = *at
                && let Err(e) = self.sides[side].memory.check_node(at)
            {
                self.is_survived(number as u8, e)?;
            }
        }
        Ok(())
    }
}

impl Mapped for Drive {
    type Lost = Error;

    fn has(&self, node: u8) -> bool {
        self.direct.get(usize::from(node)).is_some_and(Option::is_some)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        match self.direct(at) {
            Some(at) => self.sides[0].lane.write(at, bytes),
            None => Err(Error::Nodes((at >> NODE_SHIFT) as usize)),
        }
    }

    fn swap(&mut self, at: u64, old: u64, new: u64) -> Result<u64, Error> {
        match self.direct(at) {
            Some(at) => self.sides[0].lane.compare_swap(at, old, new),
            None => Err(Error::Nodes((at >> NODE_SHIFT) as usize)),
        }
    }
}

/// A drive that tasks reach, for verbs that need no wait.
#[derive(Debug)]
pub(crate) struct Direct(pub(crate) Rc<RefCell<Drive>>);

impl AtOnce for Direct {
    fn carry_out(&self, verbs: &[Verb]) -> Option<Vec<Answer>> {
        self.0.try_borrow_mut().ok()?.at_once(verbs)
    }
}
