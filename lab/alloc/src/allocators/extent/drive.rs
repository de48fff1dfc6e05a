//! An operation's steps over a link: verbs given before a wait go in one batch, with one doorbell.

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::{
    Actor, Answer, Claimer, Failed, Operation, Release, Step, Verb, Want, Word, hints, policy, release,
};

use super::Extent;
use crate::sim::clock::all;
use crate::sim::node::Link;

/// What a verb brought.
pub(super) enum Brought {
    Words(Vec<u64>),
    Found(u64),
}

impl Brought {
    pub(super) fn answer(&self) -> Answer<'_> {
        match self {
            Brought::Words(words) => Answer::Words(words),
            Brought::Found(word) => Answer::Found(*word),
        }
    }
}

impl Extent {
    /// Runs a client's operation to its end. `attempt` is told of each CAS.
    pub(super) async fn drive<O: Operation>(
        &self,
        link: &Link,
        operation: &mut O,
        mut attempt: impl FnMut(),
    ) -> O::Outcome {
        let mut posted = Vec::new();
        loop {
            match operation.step() {
                Step::Verb(verb) => {
                    if let Verb::Cas { .. } = verb {
                        attempt();
                    }
                    posted.push(verb);
                }
                Step::Wait => {
                    let answers = link.batch(all(posted.drain(..).map(|verb| self.carry_out(link, verb)))).await;
                    answers.iter().for_each(|brought| operation.complete(brought.answer()));
                }
                Step::Done(outcome) => return outcome,
                Step::Drain | Step::Scrub(..) => unreachable!("only the node drains"),
            }
        }
    }

    async fn carry_out(&self, link: &Link, verb: Verb) -> Brought {
        match verb {
            Verb::Read { at, words } => Brought::Words(link.read_many(self.at(at), words as usize).await),
            Verb::Cas { at, old, new } => {
                let found = link.cas_and(self.at(at), old, new, |words| self.follow(words, at, new)).await;
                Brought::Found(found)
            }
        }
    }

    /// The NIC keeps the hints where a word changes.
    pub(super) fn follow(&self, words: &mut [u64], at: Target, new: u64) {
        self.changed.set(true);
        if let Target::Word(place) = at {
            hints::follow(&self.geometry, place, Word(new), |hint, set, clear| {
                let hint = self.at(hint);
                words[hint] = (words[hint] | set) & !clear;
            });
        }
    }

    /// Claims, and tries again as long as it is only that others are faster; after a pause, as policy wants it.
    pub(super) async fn try_claim(
        &self,
        link: &Link,
        claimer: &mut Claimer,
        want: Want,
        mut attempt: impl FnMut(),
    ) -> Result<Vec<release::Grant>, Failed> {
        for lost in 1..=8 {
            claimer.begin(want);
            match self.drive(link, claimer, &mut attempt).await {
                Err(Failed::Contended) => {
                    let pause = policy::pause(lost, self.random.next());
                    self.node.world.sleep(pause).await;
                }
                ended => return ended,
            }
        }
        Err(Failed::Contended)
    }

    /// Gives one unit back.
    pub(super) async fn release(&self, link: &Link, actor: Actor, grant: release::Grant) {
        let mut release = Release::new(actor, grant);
        let released = self.drive(link, &mut release, || {}).await;
        released.expect("nobody else changes a word that we own");
    }
}
