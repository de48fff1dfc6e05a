//! Nodes' beats, and the time that passes without them.

use super::intent::Action;
use super::names::{is_text, name_is_good};
use super::node::Standing;
use super::{BEAT_EVERY, DOWN_AFTER, MOST_LENT, MOST_NODES, RUN_LASTS, Refusal, SUSPECT_AFTER, State};
use crate::api::{Beat, MOST, Orders};
use std::net::IpAddr;
use std::time::Duration;

impl State {
    /// Takes in a node's beat. Its addresses name hosts: the caller has completed `0.0.0.0`.
    ///
    /// # Errors
    /// [`Refusal::Malformed`], [`Refusal::NameTaken`], [`Refusal::NameKept`], [`Refusal::Deposed`].
    pub fn beat(&mut self, now: Duration, beat: Beat, actions: &mut Vec<Action>) -> Result<Orders, Refusal> {
        self.beat_of(None, now, beat, actions)
    }

    /// As [`State::beat`], of a node that is heard from this address.
    ///
    /// # Errors
    /// As there.
    pub fn beat_of(
        &mut self,
        from: Option<IpAddr>,
        now: Duration,
        beat: Beat,
        actions: &mut Vec<Action>,
    ) -> Result<Orders, Refusal> {
        self.not_deposed(beat.seen)?;
        name_is_good("name", &beat.name)?;
        farmem_protocol::node::domain(&beat.domain).map_err(|e| Refusal::Malformed(e.to_string()))?;
        let address = beat.listen.first().filter(|at| is_text(at)).cloned();
        let Some(address) = address.filter(|_| beat.listen.len() <= MOST) else {
            return Err(Refusal::Malformed("a node needs an address that other machines reach it by".into()));
        };
        let known = self.nodes.get(&beat.name);
        if known.is_none() && self.nodes.len() >= MOST_NODES {
            return Err(Refusal::Malformed(format!("a rack has {MOST_NODES} nodes at most: forget some")));
        }
        // Also of a process that only an earlier controller has heard: its address is kept.
        let is_other = known.is_some_and(|node| !node.address.is_empty() && node.incarnation != beat.incarnation);
        if is_other && known.is_some_and(|node| node.standing == Standing::Up && !node.leaving) {
            return Err(Refusal::NameTaken(beat.name));
        }
        // At the same address it is gone. Elsewhere it may serve on, cut off, within its share.
        let before = known.filter(|node| is_other && node.address != address && self.shares.are_with(&beat.name));
        if let Some(node) = before {
            return Err(Refusal::NameKept(beat.name, node.address.clone()));
        }
        // A process that says an address is there; the name that had it may be its own of before.
        let is_up = |name: &String| self.nodes.get(name).is_some_and(|node| node.standing == Standing::Up);
        let is_free = self.at.get(&address).is_none_or(|holder| *holder != beat.name && !is_up(holder));
        let (was, kept) = (known.map(|node| node.standing), known.map(|node| node.member(&beat.name)));
        self.seat(&beat.name);
        let node = self.nodes.get_mut(&beat.name).expect("it has a seat");
        let moved = (beat.bytes_read, beat.bytes_written);
        node.rates = match node.heard.filter(|&heard| !is_other && heard < now) {
            Some(heard) => {
                let a_second = |is: u64, was: u64| (is.saturating_sub(was) as f64 / (now - heard).as_secs_f64()) as u64;
                (a_second(moved.0, node.moved.0), a_second(moved.1, node.moved.1))
            }
            None => (0, 0),
        };
        node.moved = moved;
        node.incarnation = beat.incarnation;
        node.domain.clone_from(&beat.domain);
        if node.address != address || is_free {
            // If two nodes claim one address, the later claim counts, while its node is up.
            if self.at.get(&node.address) == Some(&beat.name) {
                self.at.remove(&node.address);
            }
            self.at.insert(address.clone(), beat.name.clone());
            node.address = address;
        }
        // Sums of them do not overflow, whatever a node says.
        (node.lends, node.lent, node.members) = (beat.lends.min(MOST_LENT), beat.lent.min(MOST_LENT), beat.members);
        node.placed = 0;
        node.drain_from = if node.drain { node.drain_from.max(node.lent) } else { 0 };
        node.standing = Standing::Up;
        (node.heard, node.from) = (Some(now), from);
        node.pressed = node.pressed.or(Some(now)).filter(|_| node.is_pressed());
        let begins_to_leave = beat.leaving && !node.leaving;
        node.leaving = beat.leaving;
        let is_empty = node.drain && !is_other && node.knows_drain && node.lent == 0;
        let is_emptied = is_empty && !node.told_empty;
        (node.told_empty, node.knows_drain) = (is_empty, node.drain);
        let (drain, member) = (node.drain, node.member(&beat.name));
        let (serial, shares) = self.shares.beat(&beat, self.term, actions);
        let name = &beat.name;
        self.weigh(name);
        if kept.as_ref() != Some(&member) {
            actions.push(Action::Keep(member));
        }
        match was {
            None => self.say(now, from, format!("{name} joins, in {}", beat.domain), actions),
            Some(Standing::Down) => self.say(now, from, format!("{name} is back"), actions),
            Some(Standing::Suspect) => self.say(now, from, format!("{name} is heard again"), actions),
            Some(Standing::Up) if is_other => self.say(now, from, format!("{name} was started anew"), actions),
            Some(Standing::Up) => {}
        }
        if begins_to_leave {
            self.say(now, from, format!("{name} is going down: its runs are given other nodes"), actions);
        }
        if is_emptied {
            self.say(now, from, format!("{name} is empty"), actions);
        }
        Ok(Orders { drain, next_ms: BEAT_EVERY.as_millis() as u64, term: self.term, serial, shares })
    }

    /// Lets time pass. Nodes without a beat become suspect, then down. Runs that do not ask are
    /// over. To be called several times a second.
    pub fn tick(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let (mut said, mut changed) = (Vec::new(), Vec::new());
        for (name, node) in &mut self.nodes {
            let silent = node.heard.map_or(Duration::MAX, |heard| now.saturating_sub(heard));
            let standing = match silent {
                silent if silent >= DOWN_AFTER => Standing::Down,
                silent if silent >= SUSPECT_AFTER => Standing::Suspect,
                _ => Standing::Up,
            };
            if standing == node.standing {
                continue;
            }
            // A node that announced its leaving is not reported as late or down.
            match standing {
                Standing::Down if node.leaving => said.push((node.from, format!("{name} has left"))),
                Standing::Down => {
                    said.push((node.from, format!("{name} is down: no word for {} s", DOWN_AFTER.as_secs())));
                }
                Standing::Suspect if !node.leaving => said.push((node.from, format!("{name} is late"))),
                _ => {}
            }
            node.standing = standing;
            if standing == Standing::Down {
                self.shares.lost(name);
            }
            changed.push(name.clone());
        }
        changed.iter().for_each(|name| self.weigh(name));
        for (of, line) in said {
            self.say(now, of, line, actions);
        }
        self.runs.retain(|_, run| now.saturating_sub(run.asked) < RUN_LASTS);
    }
}
