//! Operations on a node's word table ([`farmem_protocol::extent`]), over a queue pair.
//!
//! ```no_run
//! # fn example(session: &farmem_fabric::Session) -> Result<(), farmem_fabric::words::WordsError> {
//! use farmem_fabric::words::Words;
//! use farmem_protocol::extent::{Claimer, Want, Actor, Claimant, Level, Owner};
//!
//! let mut queue = session.queue_pair()?;
//! let mut words = Words::open(&mut queue)?;
//! let actor = Actor::new(Owner::new(session.owner()), Claimant::new(0));
//! let mut claimer = Claimer::new(actor, words.geometry());
//! claimer.begin(Want::one(Level::Block));
//! let granted = words.run(&mut queue, &mut claimer)?;
//! # Ok(()) }
//! ```

// READs go to buffers here.
#![allow(unsafe_code)]

use crate::{Completion, Lost, QueuePair, Refusal};
use farmem_protocol::extent::geometry::{BadGeometry, HEADER_BYTES};
use farmem_protocol::extent::step::{MAX_OUTSTANDING, MAX_READ};
use farmem_protocol::extent::{Answer, Geometry, Operation, Step, Verb};
use farmem_protocol::key::Key;
use std::collections::VecDeque;
use std::time::Duration;

/// Why a node's words cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordsError {
    /// The node is gone.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The table is not readable.
    #[error("the node's word table cannot be read: {0}")]
    Refused(#[from] Refusal),
    /// The header is no word table that this version knows.
    #[error(transparent)]
    Header(#[from] BadGeometry),
}

/// A node's word table, from afar.
pub struct Words {
    geometry: Geometry,
    incarnation: u64,
    /// Targets of READs, in turn.
    rooms: Box<[[u64; MAX_READ]]>,
    /// With the number of the operation that each is of.
    posted: VecDeque<(usize, Verb)>,
    done: VecDeque<Completion>,
    next_room: usize,
}

impl Words {
    /// Reads the table's header.
    pub fn open(queue: &mut QueuePair) -> Result<Words, WordsError> {
        let mut words = [0u64; HEADER_BYTES / 8];
        read(queue, 0, &mut words)?;
        let mut header = [0; HEADER_BYTES];
        for (bytes, word) in header.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let (geometry, incarnation) = Geometry::read_header(&header)?;
        let rooms = vec![[0; MAX_READ]; MAX_OUTSTANDING + 1].into_boxed_slice();
        Ok(Words { geometry, incarnation, rooms, posted: VecDeque::new(), done: VecDeque::new(), next_room: 0 })
    }

    /// The layout.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The node's incarnation, as the table says.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Runs an operation to its end. Nothing else may be under way on the queue pair.
    ///
    /// A drain or a scrub, which only the node can do, is answered as refused.
    pub fn run<T>(&mut self, queue: &mut QueuePair, operation: &mut impl Operation<Outcome = T>) -> Result<T, Lost> {
        let mut outcomes = self.run_each(queue, std::slice::from_mut(operation))?;
        Ok(outcomes.pop().expect("one outcome for one operation"))
    }

    /// Runs operations side by side, each to its end, their verbs in common batches. Their
    /// outcomes, in order.
    pub fn run_each<O: Operation>(
        &mut self,
        queue: &mut QueuePair,
        operations: &mut [O],
    ) -> Result<Vec<O::Outcome>, Lost> {
        let mut outcomes: Vec<Option<O::Outcome>> = operations.iter().map(|_| None).collect();
        let (mut oldest_room, mut rung, mut left) = (self.next_room, true, operations.len());
        loop {
            for (number, operation) in operations.iter_mut().enumerate() {
                while outcomes[number].is_none() && self.posted.len() < MAX_OUTSTANDING {
                    match operation.step() {
                        Step::Verb(verb) => {
                            self.post(queue, number, verb);
                            rung = false;
                        }
                        Step::Wait => break,
                        Step::Drain | Step::Scrub(..) => operation.complete(Answer::Refused),
                        Step::Done(outcome) => {
                            outcomes[number] = Some(outcome);
                            left -= 1;
                        }
                    }
                }
            }
            if left == 0 {
                debug_assert!(self.posted.is_empty());
                return Ok(outcomes.into_iter().flatten().collect());
            }
            if !rung {
                queue.doorbell()?;
                rung = true;
            }
            let mut done = Vec::new();
            while self.done.is_empty() {
                queue.wait(&mut done, Duration::from_secs(1))?;
                self.done.extend(done.drain(..));
            }
            while let Some(completion) = self.done.pop_front() {
                let (number, verb) = self.posted.pop_front().expect("a completion is of a verb that was posted");
                let room = &self.rooms[oldest_room];
                oldest_room = (oldest_room + 1) % self.rooms.len();
                operations[number].complete(match (verb, completion.result) {
                    (Verb::Read { words, .. }, Ok(_)) => Answer::Words(&room[..words as usize]),
                    (Verb::Cas { .. }, Ok(found)) => Answer::Found(u64::from_le(found)),
                    (_, Err(Refusal::Unknown)) => Answer::Unknown,
                    (_, Err(Refusal::Quota)) => Answer::OverQuota,
                    (_, Err(_)) => Answer::Refused,
                });
            }
        }
    }

    fn post(&mut self, queue: &mut QueuePair, number: usize, verb: Verb) {
        let room = self.next_room;
        self.next_room = (room + 1) % self.rooms.len();
        // A target that does not exist is refused by the node like any other.
        let offset = |at| self.geometry.offset(at).unwrap_or(u64::MAX - 7);
        match verb {
            Verb::Read { at, words } => {
                let words = (words as usize).min(MAX_READ);
                let room = self.rooms[room].as_mut_ptr().cast();
                // SAFETY: the room is ours, on the heap, and not used again before as many more
                // verbs as may be outstanding have been posted.
                unsafe { queue.read(0, Key::WORDS, offset(at), room, 8 * words as u32) };
            }
            Verb::Cas { at, old, new } => queue.cas(0, Key::WORDS, offset(at), old, new),
        }
        self.posted.push_back((number, verb));
    }
}

/// Reads consecutive words of the table, at most 131 072 (1 MiB), each atomically.
pub fn read(queue: &mut QueuePair, offset: u64, into: &mut [u64]) -> Result<(), WordsError> {
    // SAFETY: the slice outlives the verb, which is awaited below.
    unsafe { queue.read(0, Key::WORDS, offset, into.as_mut_ptr().cast(), size_of_val(into) as u32) };
    queue.doorbell()?;
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done, Duration::from_secs(1))?;
    }
    done[0].result?;
    Ok(())
}
