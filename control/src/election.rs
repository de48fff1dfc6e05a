//! Decides which of several controllers leads. A decision is pure: it takes etcd's answers, and
//! whether the leader answers.
//!
//! ```text
//!   stands by ──take (absent key, late lease, or a leader that answered and does so no longer)──► leads
//!       ▲                                                                                          │
//!       └──── the key is another's, or nothing was heard of etcd for CONFIRMED_FOR ────────────────┘
//! ```
//!
//! *Safety* does not depend on it: two controllers may believe for a moment that they lead. etcd
//! refuses the old leader's writes, because the leader key has another revision. Nodes and runs
//! that know a later epoch refuse its answers.
//!
//! *Taking over early.* The lease of a killed leader ends late. It ends even later when etcd's own
//! leader dies with it, because etcd then starts leases again. So a standby also asks the leader
//! itself. It takes the key from a leader that it has reached before and reaches no longer. It
//! leaves a leader alone that it never reached: two controllers that are cut off from each other
//! would take the key from each other in turn.

use crate::api::Term;
use crate::etcd::{Etcd, EtcdError, Held};
use crate::store::{Kept, kept_in};
use std::time::{Duration, Instant};

/// Seconds for which the leader key stands without a sign of its holder.
pub const LEASE_S: u64 = 5;
/// How often a leader renews its lease, and a standby looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(300);
/// A leader that could not confirm its place for this long answers no request.
pub const CONFIRMED_FOR: Duration = Duration::from_millis(1500);
/// A lease of which this many whole seconds are gone was last renewed at least one second ago.
const LATE_S: u64 = 2;
/// Questions to a leader, one after the other, that have no answer when it counts as gone.
const UNANSWERED: u32 = 2;

/// The result of a look at etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The leader key.
    pub leader: Option<Held>,
    /// Of its lease: seconds granted, seconds left. `None`: it is over.
    pub lease: Option<(u64, u64)>,
    /// Whether the leader itself answered. Of no meaning when it is this controller.
    pub answers: bool,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This controller leads, with this epoch.
    Lead(u64),
    /// Another leads, at this address.
    Follow(String),
    /// To take the key, if it is of this revision still, or absent.
    Take(Option<u64>),
}

/// A controller's view of the election.
#[derive(Debug, Default)]
pub struct Election {
    /// The leader that has answered, by its epoch.
    reached: u64,
    unanswered: u32,
}

impl Election {
    /// Decides after a look. `own`: the lease to which this controller's key is tied.
    pub fn step(&mut self, own: &str, seen: &Seen) -> Step {
        let Some(leader) = &seen.leader else { return Step::Take(None) };
        if leader.lease == own {
            return Step::Lead(leader.revision);
        }
        if seen.answers {
            (self.reached, self.unanswered) = (leader.revision, 0);
        } else {
            self.unanswered += 1;
        }
        let is_late = seen.lease.is_none_or(|(granted, left)| left.saturating_add(LATE_S) <= granted);
        let is_gone = self.reached == leader.revision && self.unanswered >= UNANSWERED;
        if is_late || is_gone { Step::Take(Some(leader.revision)) } else { Step::Follow(leader.address.clone()) }
    }
}

/// The controller that takes part.
pub trait Led {
    /// It leads from now on, in this term. `sure`: as of when.
    fn leads(&self, term: Term, kept: Kept, sure: Instant);
    /// It leads still, as of then.
    fn is_sure(&self, at: Instant);
    /// It does not lead.
    fn stands(&self, why: String);
    /// A line for the log.
    fn say(&self, line: &str);
}

/// How long a controller that took the lead, and cannot read the rack, leaves it to others.
const LEAVES_IT_FOR: Duration = Duration::from_secs(3);

/// A controller's part in the election. Never returns. `rack`: the rack's number, if it has none
/// yet.
pub fn take_part(controller: &impl Led, etcd: &Etcd, address: &str, rack: u64) {
    let (mut own, mut leads, mut trouble) = (None::<String>, 0, false);
    let (mut election, asker) = (Election::default(), asker());
    loop {
        let begun = Instant::now();
        let looked = look(etcd, &mut own, &mut election, address, &asker);
        let failed = looked.is_err();
        match looked {
            Ok(Step::Lead(revision)) if revision == leads => controller.is_sure(begun),
            Ok(Step::Lead(revision)) => match kept_in(etcd, revision, rack) {
                Ok(kept) => {
                    leads = revision;
                    controller.leads(kept.term, kept, begun);
                }
                Err(e) => {
                    controller.say(&format!("cannot lead: {e}"));
                    // Another controller may be able to read what this one cannot.
                    if let Some(lease) = own.take() {
                        let _ = etcd.revoke(&lease);
                    }
                    std::thread::sleep(LEAVES_IT_FOR);
                }
            },
            Ok(Step::Follow(leader)) => {
                leads = 0;
                controller.stands(format!("this controller stands by: {leader} leads the rack"));
            }
            // Another was first: the next look shows it.
            Ok(Step::Take(_)) => {
                std::thread::sleep(LOOK_EVERY / 10);
                continue;
            }
            Err(e) if !trouble => controller.say(&format!("{e}; tried again")),
            Err(_) => {}
        }
        trouble = failed;
        std::thread::sleep(LOOK_EVERY.saturating_sub(begun.elapsed()));
    }
}

/// Renews the own lease, reads the leader key, and takes it if that is due. [`Step::Take`]: another
/// controller was first.
fn look(
    etcd: &Etcd,
    own: &mut Option<String>,
    election: &mut Election,
    address: &str,
    asker: &ureq::Agent,
) -> Result<Step, EtcdError> {
    // A lease whose time was over took the key along.
    if own.as_ref().is_some_and(|lease| !lease.is_empty()) && !etcd.keep_alive(own.as_deref().unwrap_or_default())? {
        *own = None;
    }
    let lease = match own {
        Some(lease) => lease.clone(),
        None => own.insert(etcd.grant(LEASE_S)?).clone(),
    };
    let leader = etcd.leader()?;
    let others = leader.as_ref().filter(|leader| leader.lease != lease);
    let seen = Seen {
        lease: others.map(|leader| etcd.left(&leader.lease)).transpose()?.flatten(),
        answers: others.is_some_and(|leader| answers(asker, &leader.address)),
        leader,
    };
    match election.step(&lease, &seen) {
        Step::Take(revision) => Ok(etcd.take(revision, &lease, address)?.map_or(Step::Take(revision), Step::Lead)),
        step => Ok(step),
    }
}

fn asker() -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(LOOK_EVERY)).proxy(None).max_redirects(0).build();
    config.into()
}

/// Whether a controller answers, and leads.
fn answers(asker: &ureq::Agent, address: &str) -> bool {
    asker.get(format!("http://{address}/v1/leads")).call().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(revision: u64, lease: Option<(u64, u64)>, answers: bool) -> Seen {
        let leader = Held { revision, lease: "7".into(), address: "a:1".into() };
        Seen { leader: Some(leader), lease, answers }
    }

    #[test]
    fn the_key_is_taken_when_its_holder_is_gone() {
        let mut election = Election::default();
        let fresh = Some((5, 4));
        assert_eq!(election.step("9", &Seen { leader: None, lease: None, answers: false }), Step::Take(None));
        assert_eq!(election.step("7", &seen(3, fresh, false)), Step::Lead(3));
        let follow = Step::Follow("a:1".into());
        // Late, and over.
        assert_eq!(election.step("9", &seen(3, Some((5, 3)), true)), Step::Take(Some(3)));
        assert_eq!(election.step("9", &seen(3, None, true)), Step::Take(Some(3)));
        // It answered, and does so no longer.
        for (answers, step) in [(true, &follow), (false, &follow), (true, &follow), (false, &follow)] {
            assert_eq!(election.step("9", &seen(3, fresh, answers)), *step);
        }
        assert_eq!(election.step("9", &seen(3, fresh, false)), Step::Take(Some(3)));
        // Of one that never answered only the lease counts.
        for _ in 0..10 {
            assert_eq!(election.step("9", &seen(4, fresh, false)), follow);
        }
    }
}
