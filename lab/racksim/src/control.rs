//! The controllers of the rack: their real state, and the store that they share.
//!
//! A deposed leader goes on answering for a while, like a process that was stopped and goes on. Its
//! answers may arrive long after those of its successor.

use crate::Mistake;
use crate::judge::Judge;
use farmem_control::api::{Beat, Given, Orders, Term, Want};
use farmem_control::state::{Action, Intent, State};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const RACK: u64 = 7;
/// The tenants that have a quota in the whole rack.
pub const TENANTS: [&str; 2] = ["t0", "t1"];
/// Bytes that each tenant may hold in the whole rack.
pub const TENANT_QUOTA: u64 = 7 * SLAB_BYTES;

/// One controller that leads, or believes it does.
struct Leader {
    state: State,
    epoch: u64,
    begun_ns: u64,
    /// Intents that the state has and the store does not.
    unsaved: Vec<Intent>,
    /// The shares that this controller has kept or found in the store, by tenant and node.
    shares: BTreeMap<(String, String), u64>,
    /// The nodes that it has kept or found there.
    members: BTreeSet<String>,
}

impl Leader {
    fn now(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(now_ns - self.begun_ns)
    }

    /// Whether an intent says more than this controller has kept already.
    fn is_news(&mut self, intent: &Intent) -> bool {
        match intent {
            Intent::Share { tenant, node, bytes } => {
                self.shares.insert((tenant.clone(), node.clone()), *bytes) != Some(*bytes)
            }
            // That a node's process is another one refuses a leader that was deposed, too.
            Intent::Member { name, .. } => self.members.insert(name.clone()),
            Intent::Forgotten { name } => self.members.remove(name),
            Intent::Drain { .. } => true,
        }
    }
}

/// All controllers, and their store.
pub struct Control {
    /// The intents in the store, in its order.
    kept: Vec<Intent>,
    /// The revision of the leader key.
    revision: u64,
    /// The last two controllers that took the leader key, the present leader last.
    leaders: Vec<Leader>,
    mistake: Option<Mistake>,
}

impl Control {
    /// A controller that leads a rack without nodes.
    pub fn new(mistake: Option<Mistake>) -> Control {
        let mut control = Control { kept: Vec::new(), revision: 0, leaders: Vec::new(), mistake };
        control.take_over(1);
        control
    }

    /// Lets another controller take the leader key. The last leader does not know of it.
    pub fn take_over(&mut self, now_ns: u64) {
        self.revision += 1;
        let term = Term { rack: RACK, epoch: self.revision };
        let mut state = State::of(self.kept.clone()).led_in(term);
        state.set_quotas(TENANTS.map(|tenant| (tenant.to_owned(), TENANT_QUOTA)).into());
        let (epoch, begun_ns, unsaved) = (self.revision, now_ns, Vec::new());
        let (shares, members) = (BTreeMap::new(), BTreeSet::new());
        let mut leader = Leader { state, epoch, begun_ns, unsaved, shares, members };
        self.kept.iter().for_each(|intent| {
            leader.is_news(intent);
        });
        self.leaders.push(leader);
        let over = self.leaders.len().saturating_sub(2);
        self.leaders.drain(..over);
    }

    /// Draws the controller that gets a request: mostly the leader, sometimes the one before it.
    fn any(&self, random: &mut Random) -> usize {
        let last = self.leaders.len() - 1;
        if random.index(5) == 0 { last.saturating_sub(1) } else { last }
    }

    /// Writes a leader's intents to the store. False: the store refuses, because another one leads.
    fn keep(&mut self, at: usize, actions: Vec<Action>) -> bool {
        let intents = actions.into_iter().filter_map(|action| match action {
            Action::Keep(intent) => Some(intent),
            Action::Say { .. } => None,
        });
        let forgets = self.mistake == Some(Mistake::SharesNotKept);
        let intents = intents.filter(|intent| !forgets || !matches!(intent, Intent::Share { .. }));
        let leader = &mut self.leaders[at];
        let once = self.mistake == Some(Mistake::SharesKeptOnce);
        let intents: Vec<Intent> = intents.filter(|intent| leader.is_news(intent) || !once).collect();
        leader.unsaved.extend(intents);
        if leader.epoch == self.revision || self.mistake == Some(Mistake::KeptWithoutCompare) {
            self.kept.append(&mut leader.unsaved);
        }
        leader.unsaved.is_empty()
    }

    /// Tells all controllers the time.
    pub fn tick(&mut self, now_ns: u64) {
        for leader in &mut self.leaders {
            let now = leader.now(now_ns);
            leader.state.tick(now, &mut Vec::new());
        }
    }

    /// Sends a beat to one of the controllers. `None`: it is refused, or its intents cannot be
    /// kept.
    pub fn beat(&mut self, now_ns: u64, beat: Beat, random: &mut Random) -> Option<Orders> {
        let (at, mut actions) = (self.any(random), Vec::new());
        let leader = &mut self.leaders[at];
        let now = leader.now(now_ns);
        let orders = leader.state.beat(now, beat, &mut actions).ok()?;
        self.keep(at, actions).then_some(orders)
    }

    /// Sends a run's question to one of the controllers.
    pub fn want(&mut self, now_ns: u64, want: &Want, random: &mut Random) -> Option<Given> {
        let (at, drawn) = (self.any(random), random.bits());
        let leader = &mut self.leaders[at];
        let now = leader.now(now_ns);
        leader.state.want(now, want, drawn).ok()
    }

    /// Sends an operator's order to one of the controllers. The judge records an order that is
    /// confirmed.
    pub fn drain(&mut self, now_ns: u64, node: &str, wanted: bool, random: &mut Random, judge: &mut Judge) {
        let (at, mut actions) = (self.any(random), Vec::new());
        let leader = &mut self.leaders[at];
        let now = leader.now(now_ns);
        if leader.state.drain(now, node, wanted, &mut actions).is_ok() && !actions.is_empty() && self.keep(at, actions)
        {
            judge.ordered(node, wanted);
        }
    }

    /// Whether the leader knows that a node is to be drained.
    pub fn leader_drains(&self, node: &str) -> bool {
        let about = |intent: Intent| matches!(intent, Intent::Drain { name, wanted: true } if name == node);
        self.leaders.last().is_some_and(|leader| leader.state.intents().into_iter().any(about))
    }

    /// Whether the store says that a node is to be drained.
    pub fn is_drained(&self, node: &str) -> bool {
        let about = |intent: &&Intent| matches!(intent, Intent::Drain { name, .. } if name == node);
        self.kept.iter().rev().find(about).is_some_and(|intent| matches!(intent, Intent::Drain { wanted: true, .. }))
    }
}
