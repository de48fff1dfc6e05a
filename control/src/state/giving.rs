//! Which nodes a run is given.

use super::names::{is_text, name_is_good};
use super::{HEADROOM, LEAST_FREE, MOST_RUNS, Node, Refusal, Run, Standing, State};
use crate::api::{Given, GivenNode, LONGEST, MOST, Want};
use farmem_protocol::fairness::is_fair;
use farmem_protocol::random::Random;
use std::collections::BTreeSet;
use std::time::Duration;

/// Draws before all nodes are looked at.
const TRIES: u32 = 8;
/// Between two runs that are given other nodes because one needs its memory: so long may pages move.
const SHED_EVERY: Duration = Duration::from_secs(5);
/// How long a node must need its memory before runs are given other nodes. Its runs move their
/// coldest slabs meanwhile, to the nodes that they have.
const SHED_AFTER: Duration = Duration::from_secs(10);

impl State {
    /// Nodes for a run: those that it has and may keep, then others until they lie in as many
    /// domains as it wants and have [`HEADROOM`] free together, as far as there are such nodes. A
    /// run that goes on while too few domains are left is given as many nodes of one instead: two
    /// copies in one domain are better than one. Draw another `random` for each call.
    ///
    /// # Errors
    /// [`Refusal::Malformed`]; [`Refusal::Deposed`]; [`Refusal::NoNode`] if no node can be given,
    /// or if a run that begins would get fewer domains than it wants.
    pub fn want(&mut self, now: Duration, want: &Want, random: u64) -> Result<Given, Refusal> {
        self.want_of("", now, want, random)
    }

    /// As [`State::want`], for a run of this tenant.
    ///
    /// # Errors
    /// As there; [`Refusal::OthersRun`]; [`Refusal::ManyRuns`].
    pub fn want_of(&mut self, tenant: &str, now: Duration, want: &Want, random: u64) -> Result<Given, Refusal> {
        self.not_deposed(want.seen)?;
        name_is_good("run", &want.run)?;
        name_is_good("host", &want.host)?;
        if want.figures.as_ref().is_some_and(|figures| !is_text(&figures.program)) {
            return Err(Refusal::Malformed(format!("a program's name is 1 to {LONGEST} plain characters")));
        }
        if want.held.len().max(want.gone.len()) > MOST || want.domains == 0 || want.domains > 2 {
            return Err(Refusal::Malformed("a run has at most 64 nodes, in 1 or 2 domains".into()));
        }
        self.has_place(tenant, &want.run)?;
        let mut chosen: Vec<String> = Vec::new();
        for at in &want.held {
            let open = self.at.get(at).filter(|name| self.nodes[*name].is_open() && !chosen.contains(name));
            chosen.extend(open.cloned());
        }
        self.shed(now, want, &mut chosen);
        let mut free: u64 = chosen.iter().map(|name| self.nodes[name].free()).sum();
        let mut random = Random::new(random);
        let goes_on = !want.held.is_empty();
        while chosen.len() < MOST {
            let domains = self.domains_of(&chosen);
            let lacks_domains = domains.len() < want.domains as usize;
            if !lacks_domains && !chosen.is_empty() && free >= HEADROOM {
                break;
            }
            let avoided = if lacks_domains { domains } else { BTreeSet::new() };
            let is_gone = |name: &String| want.gone.contains(&self.nodes[name].address);
            let is_new = |name: &String| !chosen.contains(name) && self.is_at_its_address(name) && !is_gone(name);
            let may = |name: &String| is_new(name) && !avoided.contains(self.nodes[name].domain.as_str());
            let mut drawn = self.drawn(&mut random, may);
            if drawn.is_none() && goes_on && lacks_domains && (chosen.len() < want.domains as usize || free < HEADROOM)
            {
                drawn = self.drawn(&mut random, is_new);
            }
            let Some(name) = drawn else { break };
            let node = self.nodes.get_mut(&name).expect("drawn from the nodes");
            free += node.free();
            node.placed = node.placed.saturating_add(HEADROOM);
            chosen.push(name);
        }
        let domains = self.domains_of(&chosen);
        if chosen.is_empty() || domains.len() < want.domains as usize && !goes_on {
            return Err(Refusal::NoNode(self.why_none(now, domains.len(), want.domains)));
        }
        let given = |name: &String| {
            let node = &self.nodes[name];
            GivenNode { at: node.address.clone(), domain: node.domain.clone() }
        };
        let nodes = chosen.iter().map(given).collect();
        self.compare(now, tenant, want);
        let figures = want.figures.clone();
        let tenant = tenant.to_owned();
        let run = Run { tenant, host: want.host.clone(), domains: want.domains, nodes: chosen, figures, asked: now };
        self.runs.insert(want.run.clone(), run);
        Ok(Given { nodes, term: self.term })
    }

    /// Whether a node is the one that serves at its address. A process that was started anew under another
    /// name is two nodes until the first is missed, and would be given to one run twice.
    fn is_at_its_address(&self, name: &str) -> bool {
        self.at.get(&self.nodes[name].address).is_some_and(|holder| holder == name)
    }

    /// Whether a run of this tenant may be known by this name: it is already, or there is room for one
    /// more.
    fn has_place(&self, tenant: &str, run: &str) -> Result<(), Refusal> {
        if let Some(known) = self.runs.get(run) {
            let is_own = known.tenant == tenant;
            return is_own.then_some(()).ok_or_else(|| Refusal::OthersRun(run.to_owned()));
        }
        let all = self.runs.len();
        let of = self.runs.values().filter(|run| run.tenant == tenant).count();
        // Without tokens all are of one tenant.
        let fair = tenant.is_empty() || all < MOST_RUNS && is_fair(of + 1, MOST_RUNS - all - 1, MOST_RUNS);
        (all < MOST_RUNS && fair).then_some(()).ok_or(Refusal::ManyRuns(all))
    }

    /// Takes a node from a run whose machine needs the memory that it has lent: the run's pages move
    /// to others. One run of a node at a time, of those that have least, and only if others of the
    /// rack have room for all that the run has.
    fn shed(&mut self, now: Duration, want: &Want, chosen: &mut Vec<String>) {
        let far = |run: &Run| run.figures.as_ref().map_or(0, |figures| figures.far);
        let Some(of) = want.figures.as_ref().map(|figures| figures.far) else { return };
        let is_due = |name: &String| {
            let node = &self.nodes[name];
            let rests = node.shed.is_some_and(|shed| now.saturating_sub(shed) < SHED_EVERY);
            let others = self.runs.iter().filter(|(run, other)| **run != want.run && other.nodes.contains(name));
            let lasts = node.pressed.is_some_and(|since| now.saturating_sub(since) >= SHED_AFTER);
            node.is_pressed() && lasts && !rests && others.map(|(_, other)| far(other)).all(|far| far == 0 || far >= of)
        };
        let Some(at) = chosen.iter().position(is_due) else { return };
        let (name, domain) = (chosen[at].clone(), self.nodes[&chosen[at]].domain.clone());
        let others = self.nodes.iter().filter(|(other, node)| **other != name && node.has_room());
        // Those of its domain may be all that a mirror can use.
        let (room, near) = others.fold((0, 0), |(room, near): (u64, u64), (_, node)| {
            let free = node.free();
            (room.saturating_add(free), near + if node.domain == domain { free } else { 0 })
        });
        let room = if want.domains > 1 { near.max(room / 2) } else { room };
        if room < of {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&name) {
            node.shed = Some(now);
        }
        chosen.remove(at);
        self.note(now, format!("{name} needs its memory: run {} on {} is given other nodes", want.run, want.host));
    }

    /// The failure domains of nodes, of those that the rack still has.
    pub(super) fn domains_of(&self, names: &[String]) -> BTreeSet<&str> {
        names.iter().filter_map(|name| self.nodes.get(name)).map(|node| node.domain.as_str()).collect()
    }

    /// A node with room, by the rule of two draws, that `may` be given.
    fn drawn(&self, random: &mut Random, may: impl Fn(&String) -> bool) -> Option<String> {
        let name = |seat: usize| self.seats[seat].as_ref().expect("a seat with a weight is taken");
        let used = |seat: usize| {
            let node = &self.nodes[name(seat)];
            node.lent.saturating_add(node.placed) >> 20
        };
        for _ in 0..TRIES {
            let seat = self.open.better_of_two(|| random.bits(), used)?;
            if may(name(seat)) {
                return Some(name(seat).clone());
            }
        }
        // Few may: the least used of all of them.
        let shares =
            |(_, node): &(&String, &Node)| (u128::from(used(node.seat)) << 20) / u128::from((node.lends >> 20).max(1));
        let all = self.nodes.iter().filter(|(name, node)| node.has_room() && may(name));
        all.min_by_key(shares).map(|(name, _)| name.clone())
    }

    fn why_none(&self, now: Duration, domains: usize, wanted: u32) -> String {
        let count = |is: fn(&Node) -> bool| self.nodes.values().filter(|node| is(node)).count();
        let up = count(Node::is_open);
        let full = count(|node| node.is_open() && node.free() < LEAST_FREE);
        let drained = count(|node| node.standing == Standing::Up && !node.is_open());
        let lost = count(|node| node.standing != Standing::Up);
        let of = format!("{up} up, of these {full} full; {drained} being emptied; {lost} not heard of");
        match domains {
            0 if up == 0 => format!("the rack has no node with room: {of}"),
            0 => format!("the rack has no node with room: {of}{}", self.holders(now)),
            has => format!("the run wants nodes in {wanted} failure domains, and {has} of the rack has room: {of}"),
        }
    }
}
