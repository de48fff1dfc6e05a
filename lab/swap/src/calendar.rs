//! What is booked of far memory, by host and minute.

use crate::cluster::{Policy, SHARE};

/// The calendar of a cluster.
#[derive(Debug)]
pub struct Calendar {
    policy: Policy,
    /// GiB, by minute, then by host. It grows as it is written to.
    minutes: Vec<Vec<f64>>,
    /// What all hosts take together, by minute.
    together: Vec<f64>,
    hosts: usize,
}

impl Calendar {
    /// Nothing is booked.
    pub fn new(policy: Policy, hosts: usize) -> Calendar {
        Calendar { policy, minutes: Vec::new(), together: Vec::new(), hosts }
    }

    /// Books so much at each minute from `from` to before `to`.
    pub fn add(&mut self, host: usize, from: u32, to: u32, gib: impl Fn(u32) -> f64) {
        if self.minutes.len() < to as usize {
            self.minutes.resize(to as usize, vec![0.0; self.hosts]);
            self.together.resize(to as usize, 0.0);
        }
        for minute in from..to {
            let booked = &mut self.minutes[minute as usize][host];
            let before = self.policy.of_host(*booked);
            *booked += gib(minute);
            self.together[minute as usize] += self.policy.of_host(*booked) - before;
        }
    }

    /// Whether so much more fits at each minute.
    pub fn has_room(&self, host: usize, from: u32, to: u32, gib: impl Fn(u32) -> f64) -> bool {
        (from..to).all(|minute| {
            let booked = self.minutes.get(minute as usize).map_or(0.0, |hosts| hosts[host]);
            let with = self.policy.of_host(booked + gib(minute));
            if !self.policy.pool {
                return with <= SHARE;
            }
            let together = self.together.get(minute as usize).copied().unwrap_or(0.0);
            together - self.policy.of_host(booked) + with <= SHARE * self.hosts as f64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Rule;
    use crate::traces::Grain;

    fn calendar(rule: Rule, grain: Grain) -> Calendar {
        Calendar::new(Policy::with(rule, grain).unwrap(), 2)
    }

    #[test]
    fn a_pool_is_full_when_all_hosts_together_are() {
        let mut booked = calendar(Rule::Booked, Grain::Pieces);
        booked.add(0, 5, 10, |_| 40.0);
        assert!(booked.has_room(1, 0, 10, |_| 24.0));
        assert!(!booked.has_room(1, 0, 10, |minute| if minute == 9 { 25.0 } else { 1.0 }));
        assert!(booked.has_room(1, 10, 90, |_| 64.0));
        assert!(!booked.has_room(0, 10, 90, |_| 64.5));
        booked.add(0, 7, 10, |_| -40.0);
        assert!(booked.has_room(1, 7, 10, |_| 64.0) && !booked.has_room(1, 6, 7, |_| 64.0));
    }

    #[test]
    fn a_share_is_full_when_its_host_has_used_it_and_a_grant_is_whole() {
        let mut booked = calendar(Rule::Booked, Grain::Slots);
        booked.add(0, 0, 10, |_| 30.0);
        assert!(!booked.has_room(0, 0, 10, |_| 3.0) && booked.has_room(1, 0, 10, |_| 32.0));
        let mut grants = calendar(Rule::Booked, Grain::Extents);
        grants.add(0, 0, 10, |_| 31.1);
        assert!(grants.has_room(1, 0, 10, |_| 31.5) && !grants.has_room(1, 0, 10, |_| 32.5));
    }
}
