//! Carries out verbs on a named region of the nodes' memory.
//!
//! One lane, one thread. Verbs are posted as tasks ask for them and sent together, so that commands of
//! many clients share a round trip. Pieces are rare enough to be taken and given back at once.

use crate::fast::Map;
use crate::task::{Answer, Verb};
use farmem::{Addr, Completion, Error, Lane, Memory};
use std::time::Duration;

/// A batch under way: verbs without an answer, and the answers.
#[derive(Debug)]
struct Batch {
    left: usize,
    answers: Vec<Answer>,
}

/// A store's memory, and what is under way.
#[derive(Debug)]
pub struct Drive {
    memory: Memory,
    lane: Lane,
    batches: Map<u64, Batch>,
    /// Batch and place of each verb under way, by tag.
    tags: Vec<(u64, u32)>,
    idle: Vec<usize>,
    ended: Vec<(u64, Vec<Answer>)>,
    completions: Vec<Completion>,
}

impl Drive {
    /// On a region.
    ///
    /// # Errors
    /// No lane can be had.
    pub fn new(memory: Memory) -> Result<Drive, Error> {
        let lane = memory.lane()?;
        Ok(Drive {
            memory,
            lane,
            batches: Map::default(),
            tags: Vec::new(),
            idle: Vec::new(),
            ended: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// Where the word is from which a shard is found.
    pub fn root_word(&self, shard: usize) -> u64 {
        self.memory.root(shard).bits()
    }

    /// By which nodes tell this process from others that have the region open.
    pub fn member_tag(&self) -> u32 {
        self.memory.tag()
    }

    /// Nodes of the region.
    pub fn nodes(&self) -> usize {
        self.memory.nodes()
    }

    fn tag(&mut self, batch: u64, place: u32) -> u64 {
        match self.idle.pop() {
            Some(tag) => {
                self.tags[tag] = (batch, place);
                tag as u64
            }
            None => {
                self.tags.push((batch, place));
                self.tags.len() as u64 - 1
            }
        }
    }

    /// Posts a batch. Its answers come with [`Drive::advance`].
    ///
    /// # Errors
    /// A node is lost.
    pub fn post(&mut self, id: u64, verbs: Vec<Verb>) -> Result<(), Error> {
        // Inserted before its verbs: a FREE waits for those before it. `left` counts one more than the verbs.
        self.batches.insert(id, Batch { left: 1, answers: vec![Answer::Done; verbs.len()] });
        for (place, verb) in verbs.into_iter().enumerate() {
            let answer = match verb {
                Verb::Alloc { node, bytes } => match self.memory.alloc_on(usize::from(node), u64::from(bytes)) {
                    Ok(at) => Answer::Word(at.bits()),
                    Err(Error::Full(_)) => Answer::Full,
                    Err(e) => return Err(e),
                },
                // Earlier verbs must have taken effect before another can take the piece.
                Verb::Free { at } => {
                    self.settle()?;
                    match self.memory.free(address(at)) {
                        Ok(()) | Err(Error::NotAPiece(_)) => Answer::Done,
                        Err(e) => return Err(e),
                    }
                }
                Verb::Pieces { node } => {
                    let pieces = self.memory.pieces()?;
                    let of_node = pieces.iter().filter(|piece| piece.at.node() == usize::from(node));
                    Answer::Pieces(of_node.map(|piece| (piece.at.bits(), piece.bytes as u32)).collect())
                }
                Verb::Expel { node, tag } => Answer::Expelled(self.memory.expel(usize::from(node), tag)?),
                posted => {
                    self.post_one(id, place as u32, posted);
                    continue;
                }
            };
            if let Some(batch) = self.batches.get_mut(&id) {
                batch.answers[place] = answer;
            }
        }
        self.answered(id);
        Ok(())
    }

    fn post_one(&mut self, id: u64, place: u32, verb: Verb) {
        let tag = self.tag(id, place);
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.left += 1;
        }
        match verb {
            Verb::Read { at, len } => self.lane.post_read(tag, address(at), vec![0; len as usize]),
            Verb::Write { at, bytes } => self.lane.post_write(tag, address(at), bytes.to_vec()),
            Verb::Cas { at, old, new } => self.lane.post_compare_swap(tag, address(at), old, new),
            Verb::Alloc { .. } | Verb::Free { .. } | Verb::Pieces { .. } | Verb::Expel { .. } => {}
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

    /// Rings, and appends the batches that are answered. Waits for one at most `limit`.
    ///
    /// # Errors
    /// A node is lost.
    pub fn advance(&mut self, limit: Duration, ended: &mut Vec<(u64, Vec<Answer>)>) -> Result<(), Error> {
        self.lane.ring();
        let mut completions = std::mem::take(&mut self.completions);
        self.lane.poll(&mut completions);
        if completions.is_empty() && self.ended.is_empty() && !limit.is_zero() && self.lane.in_flight() > 0 {
            self.lane.wait(&mut completions, limit);
        }
        let told = self.tell(&mut completions);
        self.completions = completions;
        ended.append(&mut self.ended);
        told
    }

    /// Waits for everything that is under way.
    fn settle(&mut self) -> Result<(), Error> {
        let mut completions = Vec::new();
        while self.lane.in_flight() > 0 {
            self.lane.wait(&mut completions, Duration::from_millis(100));
            self.tell(&mut completions)?;
        }
        Ok(())
    }

    fn tell(&mut self, completions: &mut Vec<Completion>) -> Result<(), Error> {
        for Completion { tag, result, buffer, .. } in completions.drain(..) {
            let tag = tag as usize;
            let (id, place) = self.tags[tag];
            self.idle.push(tag);
            let Some(batch) = self.batches.get_mut(&id) else { continue };
            let answer = &mut batch.answers[place as usize];
            *answer = match (result, buffer.is_empty()) {
                // A WRITE's buffer comes back, too, and is of no more use.
                (Ok(0), false) => Answer::Bytes(buffer),
                (Ok(word), _) => Answer::Word(word),
                (Err(Error::Unknown), _) => Answer::Unknown,
                (Err(e), _) => return Err(e),
            };
            self.answered(id);
        }
        Ok(())
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
        self.memory.check()
    }
}

fn address(at: u64) -> Addr {
    Addr::from_bits(at).unwrap_or(Addr::NULL)
}
