//! One seed: the rack, its steps and its end.

mod lies;

use crate::Mistake;
use crate::control::{Control, TENANT_QUOTA, TENANTS};
use crate::host::{CHUNK, Host};
use crate::judge::{Broken, Judge, Verdict, holds};
use farmem_control::api::{Beat, Given, Orders, Share, Term, Terms, Want};
use farmem_nic::tenants::Tenant;
use farmem_pool::{Met, Protect};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::random::Random;
use farmem_protocol::wire::Text;
use farmem_sim::{Keeping, Network, Weather};
use std::sync::Arc;

const MS: u64 = 1_000_000;
const HOSTS: usize = 3;
/// The failure domains of the nodes.
const DOMAINS: [&str; 5] = ["shelf1", "shelf1", "shelf2", "shelf2", "shelf3"];
/// The slabs that a node lends.
const LENDS: u64 = 7;
/// The most slabs that one run may have of a node.
const QUOTA: u64 = 6;

/// The choices of slots between two new pages. They give neighbours, pages of one stripe, and pages
/// of several slabs.
const STRIDES: [usize; 4] = [1, 32, 700, 3000];

/// A node of the rack.
struct Node {
    name: String,
    network: Arc<Network>,
    alive: bool,
    /// Counts its starts: the incarnation in its beats.
    life: u64,
    /// It is stopped, silent or slow until this time.
    hampered_ns: u64,
    /// It was told to be emptied.
    drained: bool,
    /// The terms that it knows of.
    terms: Terms,
    /// The last order about shares that it has applied.
    applied: Option<(Term, u64)>,
}

/// An answer of a controller that is under way.
enum Message {
    /// To a node, in one of its lives.
    Orders(usize, u64, Orders),
    /// To a host.
    Given(usize, Given),
}

/// The numbers of rare events in a seed.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Forks.
    pub forks: u64,
    /// READs that were late at a node, so that a host turned to another copy.
    pub turned: u64,
    /// READs that were answered from the other seats of a stripe.
    pub followed: u64,
    /// Stripes that changed by lines.
    pub changed: u64,
    /// Nodes that died.
    pub killed: u64,
    /// Slabs that nodes had put aside, each time that they looked.
    pub spilled: u64,
    /// Pages that a node altered, swapped or put back.
    pub lies: u64,
    /// Nodes that were given up because a page did not open.
    pub told: u64,
    /// Pages of which no copy opened, and no honest one was there.
    pub lost_to_lies: u64,
    /// Nodes that were given up because they did not answer, and came back with their memory.
    pub returned: u64,
}

struct World {
    random: Random,
    /// Draws the tenants' acts. It is separate, so that these leave the other draws as they are.
    aside: Random,
    nodes: Vec<Node>,
    /// The [`HOSTS`] hosts of the rack. A forked process, if there is one, follows them.
    hosts: Vec<Host>,
    control: Control,
    judge: Judge,
    /// The number of processes so far, including forked ones.
    processes: usize,
    reached: Reached,
    /// Messages under way, with the time at which each arrives.
    messages: Vec<(u64, Message)>,
    mistake: Option<Mistake>,
    /// The end of the seed: no more faults, and no message is very late.
    calm: bool,
    /// Nodes may want slabs back, as their machines need memory.
    reserves: bool,
    lies: lies::Lies,
}

/// Runs a seed.
///
/// # Errors
/// The rule that was broken first.
pub fn run(seed: u64, steps: usize, mistake: Option<Mistake>) -> Result<Reached, Broken> {
    let mut world = World::new(seed, mistake);
    let ran = (0..steps).try_for_each(|_| world.step()).and_then(|()| world.end());
    // This frees the nodes' memory. The pools are never freed.
    world.nodes.iter().for_each(|node| node.network.kill_node());
    ran.map(|()| world.reached)
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> World {
        let mut random = Random::new(seed);
        let node = |at: usize| {
            let weather = Weather { seed: seed * 8 + at as u64, ..Weather::default() };
            let network = Network::new(weather, LENDS * SLAB_BYTES);
            Node {
                name: format!("n{at}"),
                network,
                alive: true,
                life: 1,
                hampered_ns: 0,
                drained: false,
                terms: Terms::default(),
                applied: None,
            }
        };
        let nodes: Vec<Node> = (0..DOMAINS.len()).map(node).collect();
        Network::share_clock(&nodes.iter().map(|node| Arc::clone(&node.network)).collect::<Vec<_>>());
        let reserves = seed % 4 == 3;
        nodes.iter().for_each(|node| node.limit(reserves));
        // Each host begins with three of the nodes, in at least two domains.
        let host = |number: usize, first: usize| {
            let with = [first % 5, (first + 2) % 5, (first + 3) % 5];
            let with = with.map(|at| (at, 1, &nodes[at].network, DOMAINS[at]));
            let protect = match (number, seed % 2, seed % 3) {
                (0, ..) | (1, _, 0) => Protect::Mirror,
                (1, ..) => Protect::Ec { data: 2, parity: 1 },
                (_, 0, _) => Protect::Disk,
                _ => Protect::None,
            };
            Host::new(number, &with, protect, mistake)
        };
        let mut hosts: Vec<Host> = (0..HOSTS).map(|number| host(number, random.index(5))).collect();
        // Seeds before have histories that tests name.
        let under_way = if seed < 40_000_000 { CHUNK } else { 1 + (seed % u64::from(CHUNK)) as u32 };
        hosts.iter_mut().for_each(|host| host.under_way = under_way);
        let lies = lies::Lies::of(seed);
        hosts.iter_mut().filter(|_| lies.may).for_each(|host| host.seal(mistake));
        let (control, judge) = (Control::new(mistake), Judge::default());
        World {
            random,
            aside: Random::new(seed ^ 0x5EED),
            nodes,
            hosts,
            control,
            judge,
            processes: HOSTS,
            reached: Reached::default(),
            messages: Vec::new(),
            mistake,
            calm: false,
            reserves,
            lies,
        }
    }

    fn now(&self) -> u64 {
        self.nodes[0].network.now_ns()
    }

    fn step(&mut self) -> Verdict {
        let host = self.random.index(self.hosts.len());
        match self.random.index(103) {
            0..8 => self.timed(host, |host, random, judge| {
                host.grow(1 + random.index(8), STRIDES[random.index(STRIDES.len())], judge)
            })?,
            8..34 => self.timed(host, Host::rewrite)?,
            34..56 => self.timed(host, |host, random, judge| host.look(random, judge))?,
            56..60 => {
                let most = if self.random.index(4) == 0 { usize::MAX } else { 4 };
                self.hosts[host].drop_pages(most, &mut self.random, &mut self.judge);
            }
            60..76 => {
                for _ in 0..1 + self.random.index(12) {
                    self.hosts[host].repair();
                    self.take_down();
                }
            }
            76..86 => {
                let ns = 1 + self.random.below(400 * MS);
                self.pass(ns)?;
            }
            86..89 => self.kill_or_start()?,
            89..95 => self.hamper(),
            95..97 => {
                let now = self.now();
                self.control.take_over(now);
            }
            100.. => self.fork_or_end()?,
            _ => {
                let (node, wanted) = (self.random.index(self.nodes.len()), self.random.index(3) == 0);
                let now = self.now();
                let name = self.nodes[node].name.clone();
                self.control.drain(now, &name, wanted, &mut self.random, &mut self.judge);
            }
        }
        (0..3).try_for_each(|_| self.charge())?;
        self.press();
        self.take_down();
        self.lie()?;
        let ns = 1 + self.random.below(60 * MS);
        self.pass(ns)?;
        self.take_down();
        self.owners()?;
        self.quotas()
    }

    /// Lets a host do something. The judge checks how long it took.
    fn timed(&mut self, host: usize, does: impl Fn(&mut Host, &mut Random, &mut Judge) -> Verdict) -> Verdict {
        let (begun, spared, told) = (self.now(), self.hosts[host].is_doubled(), self.hosts[host].told);
        does(&mut self.hosts[host], &mut self.random, &mut self.judge)?;
        // A host that has just given up a liar has one copy, and waits for that.
        let spared = spared && self.hosts[host].told == told;
        self.judge.took(host, spared, self.now() - begun)
    }

    /// Lets a host fork. If there is a forked process already, ends that instead.
    fn fork_or_end(&mut self) -> Verdict {
        if self.hosts.len() > HOSTS {
            self.end_forked();
            return Ok(());
        }
        let host = self.random.index(HOSTS);
        if self.hosts[host].may_fork() {
            let child = self.hosts[host].fork(self.processes, &mut self.judge)?;
            self.processes += 1;
            self.reached.forks += 1;
            self.hosts.push(child);
        }
        Ok(())
    }

    fn end_forked(&mut self) {
        for child in self.hosts.split_off(HOSTS) {
            self.reached.count(child.met());
            child.end(&mut self.judge);
        }
    }

    /// Lets time pass. Messages arrive, nodes send beats, hosts ask for nodes and do their
    /// housekeeping.
    fn pass(&mut self, ns: u64) -> Verdict {
        self.nodes[0].network.pass(ns);
        let now = self.now();
        self.control.tick(now);
        self.deliver()?;
        for at in 0..self.nodes.len() {
            self.beat(at);
        }
        for host in 0..self.hosts.len() {
            if host < HOSTS {
                self.ask(host);
            }
            let begun = self.now();
            self.hosts[host].keep_house(&mut self.judge)?;
            self.judge.took(host, false, self.now() - begun)?;
        }
        self.deliver()
    }

    /// The time at which a message that is sent now arrives. One in eight may take up to 3 s.
    fn lateness(&mut self) -> u64 {
        let most = if self.random.index(8) == 0 && !self.calm { 3_000 * MS } else { 5 * MS };
        self.now() + self.random.below(most)
    }

    /// Sends a node's beat to a controller. Its answer is under way then.
    fn beat(&mut self, at: usize) {
        let now = self.now();
        let node = &self.nodes[at];
        if !node.alive || node.hampered_ns > now {
            return;
        }
        let beat = Beat {
            name: node.name.clone(),
            incarnation: node.life,
            domain: DOMAINS[at].into(),
            listen: vec![format!("{}:1", node.name)],
            lends: LENDS * SLAB_BYTES,
            lent: node.network.lent(),
            members: 1,
            bytes_read: 0,
            bytes_written: 0,
            leaving: false,
            seen: node.terms.latest(),
            shares: node.shares(true),
            applied: node.applied,
        };
        let life = node.life;
        if let Some(orders) = self.control.beat(now, beat, &mut self.random) {
            if self.mistake == Some(Mistake::SharesConfirmedEarly) {
                self.nodes[at].applied = Some((orders.term, orders.serial));
            }
            let due = self.lateness();
            self.messages.push((due, Message::Orders(at, life, orders)));
        }
    }

    /// Sends a host's question for nodes to a controller. Its answer is under way then.
    fn ask(&mut self, number: usize) {
        let (now, host) = (self.now(), &self.hosts[number]);
        let want = Want {
            run: format!("r{number}"),
            host: format!("h{number}"),
            domains: if matches!(host.protect, Protect::Mirror | Protect::Ec { .. }) { 2 } else { 1 },
            held: host.held.clone(),
            gone: Vec::new(),
            seen: host.terms.latest(),
            figures: None,
        };
        if let Some(given) = self.control.want(now, &want, &mut self.random) {
            let due = self.lateness();
            self.messages.push((due, Message::Given(number, given)));
        }
    }

    /// Delivers the messages that are due, the earliest first.
    fn deliver(&mut self) -> Verdict {
        let now = self.now();
        self.messages.sort_by_key(|(due, _)| *due);
        let due = self.messages.iter().take_while(|(due, _)| *due <= now).count();
        let arrived: Vec<Message> = self.messages.drain(..due).map(|(_, message)| message).collect();
        let takes_old = self.mistake == Some(Mistake::OldTermTaken);
        let takes_all = matches!(self.mistake, Some(Mistake::SharesLate | Mistake::SharesConfirmedEarly));
        for message in arrived {
            match message {
                Message::Orders(at, life, orders) => {
                    let node = &mut self.nodes[at];
                    if node.alive && node.life == life && (node.terms.takes(orders.term) || takes_old) {
                        self.judge.took_effect(&format!("{} in life {life}", node.name), orders.term.epoch)?;
                        node.drained = orders.drain;
                        let of_term = node.applied.filter(|(term, _)| *term == orders.term);
                        let is_next = of_term.is_none_or(|(_, serial)| serial < orders.serial);
                        if is_next || takes_all {
                            node.apply(&orders);
                        }
                    }
                }
                Message::Given(number, given) => {
                    let host = &mut self.hosts[number];
                    if host.terms.takes(given.term) || takes_old {
                        self.judge.took_effect(&format!("host {number}"), given.term.epoch)?;
                        self.follow(number, &given);
                    }
                }
            }
        }
        Ok(())
    }

    /// Lets a host follow an answer: it joins the new nodes, then leaves the nodes that are not in
    /// it.
    fn follow(&mut self, number: usize, given: &Given) {
        let nodes: Vec<usize> = given.nodes.iter().filter_map(|node| node.at[1..2].parse().ok()).collect();
        for &at in &nodes {
            let Node { life, alive, network, hampered_ns, .. } = &self.nodes[at];
            if *alive && *hampered_ns <= network.now_ns() {
                self.hosts[number].join(at, *life, network, DOMAINS[at]);
            }
        }
        let has = |at: &usize| self.hosts[number].is_in(*at, self.nodes[*at].life);
        if nodes.iter().any(has) {
            self.hosts[number].keep_only(&nodes);
        }
        self.hosts[number].held = given.nodes.iter().map(|node| node.at.clone()).collect();
    }

    /// Whether the next fault would be the only one. No node is hampered, and every host knows
    /// which nodes are dead.
    fn is_quiet(&self) -> bool {
        let now = self.now();
        let known = |(at, node): (usize, &Node)| {
            let over = |life: u64| self.hosts.iter().all(|host| host.knows_over(at, life));
            node.hampered_ns + 500 * MS <= now && (1..node.life).all(over) && (node.alive || over(node.life))
        };
        self.nodes.iter().enumerate().all(known)
    }

    /// Starts a node that is dead. Kills one that is alive, if no host needs a page that it alone
    /// has.
    fn kill_or_start(&mut self) -> Verdict {
        let at = self.random.index(self.nodes.len());
        if !self.nodes[at].alive {
            self.start(at);
            return Ok(());
        }
        let lives = |other: usize, life: u64| self.nodes[other].alive && self.nodes[other].life == life;
        let careless = self.mistake == Some(Mistake::OneCopy);
        let protected = |host: &Host| !matches!(host.protect, Protect::None | Protect::Disk);
        let spares = |host: &Host| careless && protected(host) || host.can_do_without(at, lives);
        let honest = self.judge.spares(at, self.nodes[at].life);
        if self.is_quiet() && self.hosts.iter().all(spares) && honest {
            self.kill(at);
        }
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        self.nodes[at].network.kill_node();
        self.nodes[at].alive = false;
        self.judge.died(&self.nodes[at].name);
        self.judge.is_not_honest(at, self.nodes[at].life);
        self.reached.killed += 1;
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.network.start_node(LENDS * SLAB_BYTES);
        (node.alive, node.drained, node.terms, node.applied) = (true, false, Terms::default(), None);
        node.life += 1;
        node.limit(self.reserves);
    }

    /// Cuts a node off, stops it, silences it or slows it down for a while.
    fn hamper(&mut self) {
        let at = self.random.index(self.nodes.len());
        if !self.nodes[at].alive || !self.is_quiet() {
            return;
        }
        let ns = (1 + self.random.below(1_900)) * MS;
        let (how, now) = (self.random.index(4), self.now());
        let node = &mut self.nodes[at];
        match how {
            0 => node.network.cut_and_lose(),
            1 => node.network.stop_node(ns),
            2 => node.network.go_silent(ns / 2),
            _ => node.network.slow_down(ns, 30 * MS),
        }
        node.hampered_ns = if how == 0 { 0 } else { now + ns };
    }

    /// A node's machine needs memory, or needs it no longer.
    fn press(&mut self) {
        if self.reserves && self.aside.index(8) == 0 {
            let at = self.aside.index(self.nodes.len());
            let most = if self.aside.index(2) == 0 { LENDS } else { self.aside.below(LENDS) };
            self.nodes[at].network.with_nic(|nic| nic.lending.set_most(most * SLAB_BYTES));
        }
        if self.reserves && self.aside.index(6) == 0 {
            let at = self.aside.index(self.nodes.len());
            let forgets = self.mistake == Some(Mistake::SpilledBytesLost);
            let keeping = if forgets { Keeping::Forgotten } else { Keeping::Kept };
            let aside = self.nodes[at].network.spill(keeping);
            self.reached.spilled += aside / SLAB_BYTES;
        }
    }

    /// Lets programs of a tenant take memory of a node, or give it back.
    fn charge(&mut self) -> Verdict {
        let (at, tenant) = (self.aside.index(self.nodes.len()), TENANTS[self.aside.index(TENANTS.len())]);
        let (takes, slabs) = (self.aside.index(5) < 3, 1 + self.aside.below(3));
        if self.nodes[at].alive {
            self.charge_at(at, tenant, takes, slabs)?;
        }
        Ok(())
    }

    /// The same at this node. Returns whether the node let them.
    fn charge_at(&mut self, at: usize, tenant: &str, takes: bool, slabs: u64) -> Result<bool, Broken> {
        let name = self.nodes[at].name.clone();
        let held = self.judge.held(tenant, &name);
        let slabs = if takes { slabs } else { slabs.min(held) };
        let bytes = (slabs * SLAB_BYTES) as i64;
        let done = self.nodes[at].network.with_nic(|nic| {
            let all = nic.tenants.with_shares();
            let of = all.iter().find(|of| of.name.as_str() == tenant);
            of.is_some_and(|of| of.charge(if takes { bytes } else { -bytes }))
        });
        if done == Some(true) {
            self.judge.holds_now(tenant, &name, if takes { held + slabs } else { held - slabs });
        }
        self.judge.within_quota(tenant, TENANT_QUOTA / SLAB_BYTES)?;
        Ok(done == Some(true))
    }

    /// Checks, when all faults are over, that a tenant can get all of its quota at any node. Shares
    /// must come back from the other nodes for that.
    fn shares_come_back(&mut self) -> Verdict {
        let at = self.aside.index(self.nodes.len());
        for tenant in TENANTS {
            for other in 0..self.nodes.len() {
                self.charge_at(other, tenant, false, u64::MAX)?;
            }
            let mut beats = 0;
            while !self.charge_at(at, tenant, true, TENANT_QUOTA / SLAB_BYTES)? {
                self.pass(500 * MS)?;
                beats += 1;
                holds(beats < 40, || format!("{} never has all of {tenant}'s quota", self.nodes[at].name))?;
            }
        }
        Ok(())
    }

    /// Checks that no tenant and no host has more than its quota.
    fn quotas(&self) -> Verdict {
        for tenant in TENANTS {
            let of = |node: &Node| {
                node.shares(false).into_iter().filter(|share| share.tenant == tenant).map(|share| share.bytes)
            };
            let bytes = self.nodes.iter().filter(|node| node.alive).flat_map(of).sum();
            self.judge.within_shares(tenant, bytes, TENANT_QUOTA)?;
        }
        for (number, host) in self.hosts.iter().enumerate() {
            let homes = host.homes();
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
                let slabs = homes.iter().flatten().filter(|home| **home == Some(at)).count() as u64;
                self.judge.within(number, &node.name, slabs, QUOTA)?;
            }
        }
        Ok(())
    }

    /// Ends the seed. All nodes are started, repair must end, and every page must be readable. When
    /// all pages are dropped, no node may have lent anything.
    fn end(&mut self) -> Verdict {
        self.calm = true;
        // Its operator has found the liar.
        if let Some((at, _)) =
            self.lies.liar.filter(|(at, life)| self.nodes[*at].alive && self.nodes[*at].life == *life)
        {
            self.kill(at);
        }
        for node in self.nodes.iter().filter(|_| self.reserves) {
            node.network.with_nic(|nic| nic.lending.set_most(LENDS * SLAB_BYTES));
        }
        self.end_forked();
        for at in 0..self.nodes.len() {
            if !self.nodes[at].alive {
                self.start(at);
            }
            let name = self.nodes[at].name.clone();
            self.judge.knows(&name, self.control.is_drained(&name))?;
            self.judge.knows(&name, self.control.leader_drains(&name))?;
        }
        let now = self.now();
        self.control.take_over(now);
        for at in 0..self.nodes.len() {
            let (now, name) = (self.now(), self.nodes[at].name.clone());
            self.control.drain(now, &name, false, &mut self.random, &mut self.judge);
        }
        for _ in 0..12 {
            self.pass(500 * MS)?;
        }
        self.shares_come_back()?;
        for number in 0..HOSTS {
            let mut steps = 0;
            // A group of which a liar has left too little is whole again when its program has ended: here,
            // when its pages have been looked at, which drops those that are lost.
            loop {
                while self.hosts[number].repair() {
                    steps += 1;
                    self.take_down();
                    holds(steps < 20_000, || format!("host {number}: repair does not end"))?;
                }
                self.take_down();
                let host = &mut self.hosts[number];
                let before = (host.told, host.lost_to_lies, host.returned);
                if self.lies.may {
                    host.look_at_all(&mut self.judge)?;
                }
                if (host.told, host.lost_to_lies, host.returned) == before {
                    break;
                }
            }
            self.take_down();
            let there = |&at: &usize| self.hosts[number].is_in(at, self.nodes[at].life);
            let mut shelves: Vec<&str> = (0..DOMAINS.len()).filter(there).map(|at| DOMAINS[at]).collect();
            let nodes = shelves.len();
            shelves.dedup();
            let room = |at: usize| self.nodes[at].network.lent() + SLAB_BYTES <= LENDS * SLAB_BYTES;
            self.hosts[number].lacks(|at| DOMAINS[at], (shelves.len(), nodes), room, &self.judge)?;
            self.hosts[number].look_at_all(&mut self.judge)?;
        }
        self.take_down();
        self.any_one_may_go()?;
        for number in 0..HOSTS {
            self.hosts[number].drop_pages(usize::MAX, &mut self.random, &mut self.judge);
        }
        for _ in 0..12 {
            self.pass(500 * MS)?;
        }
        for node in &self.nodes {
            let lent = node.network.lent();
            holds(lent == 0, || format!("{} has lent {lent} bytes for good", node.name))?;
        }
        Ok(())
    }

    /// Kills one node when everything is repaired. Every page of a protected host must stay
    /// readable.
    fn any_one_may_go(&mut self) -> Verdict {
        // With too few nodes for its copies, a host may lose a page by the next death.
        let bare = |host: &Host| host.protect == Protect::None || !host.has_nodes();
        for host in self.hosts.iter_mut().filter(|host| bare(host)) {
            host.drop_pages(usize::MAX, &mut self.random, &mut self.judge);
        }
        let at = self.random.index(self.nodes.len());
        self.kill(at);
        for host in 0..HOSTS {
            self.timed(host, |host, _, judge| host.look_at_all(judge))?;
            let met = self.hosts[host].met();
            self.reached.count(met);
            self.reached.told += self.hosts[host].told;
            self.reached.lost_to_lies += self.hosts[host].lost_to_lies;
            self.reached.returned += self.hosts[host].returned;
        }
        Ok(())
    }
}

impl Reached {
    fn count(&mut self, lanes: [Met; 2]) {
        for met in lanes {
            self.turned += met.turned;
            self.followed += met.followed;
            self.changed += met.changed;
        }
    }
}

impl Node {
    /// Sets the node's quota of a run, and the tenants that have a quota in the rack. `reserves`: the
    /// node may want slabs back.
    fn limit(&self, reserves: bool) {
        self.network.with_nic(|nic| {
            if reserves {
                nic.lending.set_most(LENDS * SLAB_BYTES);
            }
            nic.units.set_quota(QUOTA * SLAB_BYTES);
            nic.tenants.set_in_rack(&TENANTS.map(Text::new));
        });
    }

    /// The node's shares, as a beat has them. With `takes` the largest refused request is reset,
    /// because only one beat may report it.
    fn shares(&self, takes: bool) -> Vec<Share> {
        let said = |tenant: &Arc<Tenant>| Share {
            tenant: tenant.name.to_string(),
            bytes: tenant.share().unwrap_or(u64::MAX),
            held: tenant.held(),
            short: if takes { tenant.take_short() } else { 0 },
        };
        self.network.with_nic(|nic| nic.tenants.with_shares().iter().map(said).collect()).unwrap_or_default()
    }

    /// Carries out orders about shares.
    fn apply(&mut self, orders: &Orders) {
        self.network.with_nic(|nic| {
            orders.shares.iter().for_each(|(tenant, bytes)| nic.tenants.set_share(tenant, *bytes));
        });
        self.applied = Some((orders.term, orders.serial));
    }
}
