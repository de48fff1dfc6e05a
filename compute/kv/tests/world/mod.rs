//! A memory in a map, and operations on it in every order.

#![allow(dead_code)] // Each test file is a program of its own, and uses a part.

pub mod fill;
pub mod lane;
pub mod linear;
pub mod load;
pub mod ops;
pub mod parts;
pub mod process;
pub mod wire;

use farmem_kv::layout::{Geometry, NODE_SHIFT};
use farmem_kv::rules::Rules;
use farmem_kv::shard::Shard;
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::member::Opening;
use farmem_kv::task::{Answer, Ask, Io, Task, Verb};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;

/// Where the root words are.
pub const ROOT_WORDS: u64 = 8;

/// Words by address, and pieces.
#[derive(Clone, Default)]
pub struct Memory {
    words: HashMap<u64, u64>,
    pub pieces: BTreeMap<u64, u32>,
    free: BTreeMap<u32, Vec<u64>>,
    next: [u64; 4],
    /// Pieces in bytes, at most.
    pub limit: Option<u64>,
    /// Verbs, and batches.
    pub verbs: u64,
    pub trips: u64,
    /// Front ends that joined: their tags are 1, 2, ….
    fronts: u32,
    /// Tags of those that have no rights any more.
    pub expelled: BTreeSet<u32>,
    /// Two nodes keep what there is.
    pub copied: bool,
    /// The node that ends, and how many verbs it takes until then.
    pub ends: Option<(u8, u64)>,
    /// The front end whose verbs are carried out, by its tag, if that matters.
    pub asks: u32,
    /// Front ends that are told of the end of a node, which goes on for others: tag, node, and
    /// after how many verbs.
    pub cuts: Vec<(u32, u8, u64)>,
    /// So many verbs behind such an end take effect, though their front end is told otherwise.
    pub late: u64,
    /// Ends of nodes are told by the network.
    pub unproven: bool,
    /// Front ends that have ended.
    pub gone: BTreeSet<u32>,
    /// Front ends that cannot be expelled: they have the memory mapped.
    pub mapped: BTreeSet<u32>,
    /// Who was expelled where.
    pub shut_out: BTreeSet<(u8, u32)>,
}

impl Memory {
    /// Two nodes that keep the same.
    pub fn copied() -> Memory {
        Memory { copied: true, ..Memory::default() }
    }

    pub fn word(&self, at: u64) -> u64 {
        self.words.get(&at).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, word: u64) {
        if word == 0 {
            self.words.remove(&at);
        } else {
            self.words.insert(at, word);
        }
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let words = at / 8..(at + len).div_ceil(8);
        let all: Vec<u8> = words.flat_map(|n| self.word(n * 8).to_le_bytes()).collect();
        all[(at % 8) as usize..][..len as usize].to_vec()
    }

    pub fn execute(&mut self, verb: &Verb) -> Answer {
        self.verbs += 1;
        let node = node_of(verb);
        if matches!(verb, Verb::Doubt { .. }) || self.shut_out.contains(&(node, self.asks)) {
            self.gone.insert(self.asks);
            return Answer::Unknown;
        }
        if self.has_ended(node) || self.is_cut(node) {
            if self.is_under_way(node) {
                self.carry_out(verb);
            }
            if self.has_ended(node ^ 1) || self.is_cut(node ^ 1) {
                self.gone.insert(self.asks);
            }
            return Answer::Lost;
        }
        self.carry_out(verb)
    }

    fn carry_out(&mut self, verb: &Verb) -> Answer {
        match verb {
            Verb::Read { at, len } => Answer::Bytes(self.bytes(*at, u64::from(*len))),
            Verb::Write { at, bytes } => {
                assert_eq!(at % 8, 0);
                let whole = self.bytes(*at, (bytes.len() as u64).next_multiple_of(8));
                let mut whole = whole;
                whole[..bytes.len()].copy_from_slice(bytes);
                for (n, word) in whole.chunks(8).enumerate() {
                    self.set(at + n as u64 * 8, u64::from_le_bytes(word.try_into().unwrap()));
                }
                Answer::Done
            }
            Verb::WriteFrom { at, bytes } => self.carry_out(&Verb::Write { at: *at, bytes: Rc::new(bytes.to_vec()) }),
            Verb::Cas { at, old, new } => {
                let found = self.word(*at);
                if found == *old {
                    self.set(*at, *new);
                }
                Answer::Word(found)
            }
            Verb::Alloc { node, bytes } => {
                let held: u64 = self.pieces.values().map(|&bytes| u64::from(bytes)).sum();
                if self.limit.is_some_and(|limit| held + u64::from(*bytes) > limit) {
                    return Answer::Full;
                }
                let base = u64::from(*node) << NODE_SHIFT;
                let kept = self.free.entry(*bytes).or_default();
                let at = match kept.iter().position(|at| at >> NODE_SHIFT == u64::from(*node)) {
                    Some(place) => kept.swap_remove(place),
                    None => {
                        let next = &mut self.next[usize::from(*node)];
                        let first = (*next).max(4096).next_multiple_of(u64::from(*bytes));
                        *next = first + u64::from(*bytes);
                        base + first
                    }
                };
                self.pieces.insert(at, *bytes);
                Answer::Place(at)
            }
            Verb::Claim { at, bytes } => {
                self.free.entry(*bytes).or_default().retain(|free| free != at);
                let next = &mut self.next[usize::from(node_of(verb))];
                *next = (*next).max((at & ((1 << NODE_SHIFT) - 1)) + u64::from(*bytes));
                let taken = self.pieces.range(..at + u64::from(*bytes)).next_back();
                if taken.is_some_and(|(&first, &len)| first + u64::from(len) > *at) {
                    return Answer::Full;
                }
                self.pieces.insert(*at, *bytes);
                Answer::Done
            }
            Verb::Free { at } => {
                let Some(bytes) = self.pieces.remove(at) else {
                    assert!(self.copied, "a piece that is there");
                    return Answer::Done;
                };
                self.free.entry(bytes).or_default().push(*at);
                Answer::Done
            }
            Verb::Doubt { .. } => Answer::Unknown,
            Verb::Expel { tag, .. } if self.mapped.contains(tag) => Answer::Expelled(false),
            Verb::Expel { node, tag } => {
                self.expelled.insert(*tag);
                if self.unproven {
                    self.shut_out.insert((*node, *tag));
                }
                Answer::Expelled(true)
            }
            Verb::Pieces { node } => {
                let of = |at: &u64| at >> NODE_SHIFT == u64::from(*node);
                Answer::Pieces(self.pieces.iter().filter(|(at, _)| of(at)).map(|(&at, &len)| (at, len)).collect())
            }
        }
    }

    /// Whether a node is gone.
    pub fn has_ended(&self, node: u8) -> bool {
        self.ends.is_some_and(|(ended, after)| ended == node && self.verbs > after)
    }

    fn is_cut(&self, node: u8) -> bool {
        self.cuts.iter().any(|&(tag, cut, after)| (tag, cut) == (self.asks, node) && self.verbs > after)
    }

    fn is_under_way(&self, node: u8) -> bool {
        let is_late = |&(tag, cut, after): &(u32, u8, u64)| {
            (tag, cut) == (self.asks, node) && (after + 1..=after + self.late).contains(&self.verbs)
        };
        !self.has_ended(node) && self.cuts.iter().any(is_late)
    }

    /// A node comes in place of the one that has ended, with nothing on it.
    pub fn revive(&mut self) {
        let Some((node, _)) = self.ends.take() else { return };
        let of = |at: &u64| at >> NODE_SHIFT == u64::from(node);
        self.words.retain(|at, _| !of(at));
        self.pieces.retain(|at, _| !of(at));
        self.free.values_mut().for_each(|free| free.retain(|at| !of(at)));
        self.next[usize::from(node)] = 0;
    }

    /// Carries out a task alone.
    pub fn run<T>(&mut self, mut task: Task<T>) -> T {
        let limit = self.trips + 1_000_000;
        loop {
            assert!(self.trips < limit, "it does not end");
            if let Some(outcome) = task.step() {
                return outcome;
            }
            for (id, ask) in task.asks() {
                let answers = match ask {
                    Ask::Verbs(verbs) => {
                        self.trips += 1;
                        verbs.iter().map(|verb| self.execute(verb)).collect()
                    }
                    Ask::Pause(_) => Vec::new(),
                };
                task.answer(id, answers);
            }
        }
    }

    /// Runs an operation alone, and says what it took: verbs and round trips.
    pub fn ledger<T, F: Future<Output = T> + 'static>(&mut self, operation: impl FnOnce(Io) -> F) -> (T, u64, u64) {
        let before = (self.verbs, self.trips);
        let outcome = self.run(Task::new(operation));
        (outcome, self.verbs - before.0, self.trips - before.1)
    }

    /// A front end of a store of so many shards.
    pub fn join_all(&mut self, geometry: Geometry, rules: Rules, local: u64, shards: u8) -> Vec<Rc<Shard>> {
        if shards == 1 {
            return vec![self.join(geometry, rules, local)];
        }
        self.fronts += 1;
        let (tag, mode, secret) = (self.fronts, Mode::Single, 77);
        let join = |number: u8| {
            let (node, root_word) = (number, u64::from(number) << NODE_SHIFT | ROOT_WORDS);
            let opening = Opening { node, number, mode, shards, root_word, secret, geometry, local, tag };
            let shard = self.run(Task::new(|io| opening.join(io))).expect("a store");
            shard.reach.rules.set(rules);
            Rc::new(shard)
        };
        (0..shards).map(join).collect()
    }

    /// A front end.
    pub fn join(&mut self, geometry: Geometry, rules: Rules, local: u64) -> Rc<Shard> {
        self.fronts += 1;
        let tag = self.fronts;
        let mode = match [0, 1].map(|node| self.has_ended(node)) {
            _ if !self.copied => Mode::Single,
            [false, false] => Mode::Both(1),
            [ended, _] => Mode::Alone(u8::from(ended)),
        };
        let shard = self.run(Task::new(|io| opening(mode, geometry, local, tag).join(io))).expect("a store");
        shard.reach.rules.set(rules);
        shard.reach.copies.proven([!self.unproven; 2]);
        Rc::new(shard)
    }
}

fn node_of(verb: &Verb) -> u8 {
    match *verb {
        Verb::Alloc { node, .. } | Verb::Pieces { node } | Verb::Expel { node, .. } | Verb::Doubt { node } => node,
        Verb::Read { at, .. }
        | Verb::Write { at, .. }
        | Verb::WriteFrom { at, .. }
        | Verb::Cas { at, .. }
        | Verb::Claim { at, .. }
        | Verb::Free { at } => (at >> NODE_SHIFT) as u8,
    }
}

/// How a front end of this tag opens a store of one shard.
pub fn opening(mode: Mode, geometry: Geometry, local: u64, tag: u32) -> Opening {
    let (shards, root_word, secret) = (1, ROOT_WORDS, 77);
    Opening { node: 0, number: 0, mode, shards, root_word, secret, geometry, local, tag }
}

/// What is under way of a task.
pub struct Running<T> {
    task: Task<T>,
    asked: VecDeque<(u32, VecDeque<Verb>, Vec<Answer>)>,
    pub outcome: Option<T>,
    begun: Option<usize>,
    ended: Option<usize>,
}

impl<T> Running<T> {
    pub fn new(task: Task<T>) -> Running<T> {
        Running { task, asked: VecDeque::new(), outcome: None, begun: None, ended: None }
    }

    /// Whether it waits for time to pass.
    pub fn pauses(&self) -> bool {
        self.asked.front().is_some_and(|(_, verbs, answers)| verbs.is_empty() && answers.is_empty())
    }

    /// What it did, as it is now.
    pub fn so_far(self) -> Ended<T> {
        Ended { outcome: self.outcome, begun: self.begun.unwrap_or(usize::MAX), ended: self.ended }
    }

    /// Carries out its next verb.
    pub fn advance(&mut self, memory: &mut Memory, now: usize) {
        self.begun.get_or_insert(now);
        if let Some((id, verbs, answers)) = self.asked.front_mut() {
            if let Some(verb) = verbs.pop_front() {
                answers.push(memory.execute(&verb));
            }
            if verbs.is_empty() {
                let (id, answers) = (*id, std::mem::take(answers));
                self.asked.pop_front();
                self.task.answer(id, answers);
            }
        }
        if self.asked.is_empty() {
            match self.task.step() {
                Some(outcome) => (self.outcome, self.ended) = (Some(outcome), Some(now)),
                None => {
                    for (id, ask) in self.task.asks() {
                        let verbs = match ask {
                            Ask::Verbs(verbs) => verbs.into(),
                            Ask::Pause(_) => VecDeque::new(),
                        };
                        self.asked.push_back((id, verbs, Vec::new()));
                    }
                }
            }
        }
    }
}

/// An operation's outcome, and between which steps it took place.
#[derive(Clone, Debug)]
pub struct Ended<T> {
    pub outcome: Option<T>,
    pub begun: usize,
    pub ended: Option<usize>,
}

/// Who goes on at each step.
pub trait Chooser {
    /// One of `ready`, the first of which went on last if it can.
    fn choose(&mut self, ready: &[usize]) -> Option<usize>;
}

/// Has every order with so many switches judged. Returns how many there are.
pub fn every(switches: usize, mut judge: impl FnMut(&mut Every) -> Result<(), String>) -> Result<usize, String> {
    let (mut every, mut orders) = (Every::new(switches), 0);
    loop {
        orders += 1;
        judge(&mut every)?;
        if !every.next() {
            return Ok(orders);
        }
    }
}

/// Runs tasks in the order of a chooser, until all have ended or are dropped.
pub fn interleave<T>(memory: &mut Memory, tasks: Vec<Task<T>>, chooser: &mut dyn Chooser) -> Vec<Ended<T>> {
    let mut all: Vec<Running<T>> = tasks.into_iter().map(Running::new).collect();
    let (mut last, mut now) = (0, 0);
    loop {
        let mut ready: Vec<usize> = (0..all.len()).filter(|&n| all[n].outcome.is_none()).collect();
        if let Some(place) = ready.iter().position(|&n| n == last) {
            ready.swap(0, place);
        }
        if ready.is_empty() {
            break;
        }
        assert!(now < 200_000, "it does not end");
        let Some(next) = chooser.choose(&ready) else { break };
        all[next].advance(memory, now);
        (last, now) = (next, now + 1);
    }
    all.into_iter().map(Running::so_far).collect()
}

/// Every order with so many switches at most between tasks that could go on.
pub struct Every {
    switches: usize,
    /// Choices so far: which of how many.
    path: Vec<(usize, usize)>,
    at: usize,
    used: usize,
}

impl Every {
    pub fn new(switches: usize) -> Every {
        Every { switches, path: Vec::new(), at: 0, used: 0 }
    }

    /// The next order; false when there is none.
    pub fn next(&mut self) -> bool {
        (self.at, self.used) = (0, 0);
        while let Some((choice, of)) = self.path.pop() {
            if choice + 1 < of {
                self.path.push((choice + 1, of));
                return true;
            }
        }
        false
    }
}

impl Chooser for Every {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        let of = if self.used < self.switches { ready.len() } else { 1 };
        if self.at == self.path.len() {
            self.path.push((0, of));
        }
        let choice = self.path[self.at].0;
        self.at += 1;
        self.used += usize::from(choice != 0);
        Some(ready[choice])
    }
}

/// Any order.
pub struct Random {
    pub numbers: farmem_protocol::random::Random,
    /// One in so many steps is another's.
    pub switch: u64,
    /// After so many steps this task is dropped.
    pub kill: Option<(usize, usize)>,
    pub steps: usize,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut numbers = farmem_protocol::random::Random::new(seed);
        let switch = 1 + numbers.below(6);
        Random { numbers, switch, kill: None, steps: 0 }
    }
}

impl Chooser for Random {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        self.steps += 1;
        let gone = self.kill.filter(|(step, _)| self.steps > *step).map(|(_, task)| task);
        let ready: Vec<usize> = ready.iter().copied().filter(|&task| Some(task) != gone).collect();
        match ready.len() {
            0 => None,
            _ if self.numbers.below(self.switch) != 0 => Some(ready[0]),
            n => Some(ready[self.numbers.index(n)]),
        }
    }
}
