//! The way to a shard that is not open yet, and who says which of its nodes go on.

use super::{NotOpened, Opening};
use crate::layout::{At, HEAD_BYTES, MAGIC, Pair, Stage, head, word};
use crate::rules::Rules;
use crate::shard::copies::{Copies, Mode, Words, on};
use crate::task::{Answer, Io, Verb};

pub(super) struct Way {
    pub io: Io,
    pub copies: Copies,
}

impl Way {
    pub async fn verbs(&self, verbs: Vec<Verb>) -> Vec<Answer> {
        self.copies.verbs(&self.io, Rules::SOUND, Words::Index, verbs).await
    }

    pub async fn verb(&self, verb: Verb) -> Answer {
        self.verbs(vec![verb]).await.pop().unwrap_or(Answer::Unknown)
    }

    pub async fn read(&self, at: At, len: u32) -> Vec<u8> {
        match self.verb(Verb::Read { at, len }).await {
            Answer::Bytes(bytes) => bytes,
            _ => Vec::new(),
        }
    }

    /// Whether the same nodes have the shard as when it was found.
    pub async fn is_as_found(&self, mode: Mode) -> bool {
        let pair = self.copies.pair();
        let now = match mode {
            Mode::Both(_) => self.copies.pairs(&self.io).await,
            _ => Some([Pair(word(&self.read(self.copies.root() + head::PAIR, 8).await, 0)); 2]),
        };
        mode == Mode::Single || now == Some([pair; 2]) && self.copies.mode() == mode
    }
}

impl Opening {
    /// Marks a node of a pair as the only one that has the shard, if one alone is there. Only
    /// whoever knows that the other has ended may say so. If both are there, takes the mark away by
    /// which front ends were to leave one of them. Only whoever knows that no front end is left may
    /// say so: none has gone on without the other yet, and none will.
    ///
    /// # Errors
    /// There is no such shard.
    pub async fn go_alone(self, io: Io) -> Result<(), NotOpened> {
        let way = Way { io, copies: Copies::new(self.node, self.mode) };
        let root = word(&way.read(self.root_word, 8).await, 0);
        let bytes = way.read(root, HEAD_BYTES as u32).await;
        let at = |offset: u64| word(&bytes, offset as usize / 8);
        if root == 0 && matches!(self.mode, Mode::Both(_)) {
            return Err(NotOpened::Halved);
        }
        if root == 0 || at(head::MAGIC) != MAGIC {
            return Err(NotOpened::Foreign);
        }
        if at(head::SHAPE) != self.shape() {
            return Err(NotOpened::Shape);
        }
        let pair = Pair(at(head::PAIR));
        if let Mode::Both(_) = self.mode {
            way.copies.found(self.root_word, root, pair);
            let pairs = way.copies.pairs(&way.io).await.ok_or(NotOpened::Halved)?;
            for (node, pair) in [self.node, Copies::other(self.node)].into_iter().zip(pairs) {
                if pair.stage() == Stage::Leaving {
                    let at = on(node, root + head::PAIR);
                    way.io.verb(Verb::Cas { at, old: pair.0, new: pair.at(Stage::Both).0 }).await;
                }
            }
        } else if pair.stage() != Stage::Alone {
            let new = pair.at(Stage::Alone).0;
            way.verb(Verb::Cas { at: root + head::PAIR, old: pair.0, new }).await;
        }
        Ok(())
    }
}
