//! A node that lies: it alters pages that it holds, swaps them, or puts earlier ones back. And the
//! check that each word of a node has one owner.

use super::{HOSTS, World};
use crate::Mistake;
use crate::host::Spot;
use crate::judge::Verdict;
use farmem_protocol::addr::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet};

/// Earlier pages that a liar remembers, at most.
const REMEMBERED: usize = 64;

/// What a rack has of lies.
#[derive(Default)]
pub(super) struct Lies {
    /// Nodes may lie in this seed. Then all hosts seal.
    pub may: bool,
    /// The node that lies, and its incarnation.
    pub liar: Option<(usize, u64)>,
    /// Pages as they were earlier, to be put back.
    earlier: Vec<(Spot, Vec<u8>)>,
}

impl Lies {
    pub fn of(seed: u64) -> Lies {
        Lies { may: seed % 5 == 3 && seed % 4 != 3, ..Lies::default() }
    }
}

impl World {
    /// A node may begin to lie, or lies once more, or is started anew by its operator.
    pub(super) fn lie(&mut self) -> Verdict {
        if !self.lies.may || self.calm {
            return Ok(());
        }
        let still = |(at, life): &(usize, u64)| self.nodes[*at].alive && self.nodes[*at].life == *life;
        self.lies.liar = self.lies.liar.filter(still);
        match self.lies.liar {
            Some((at, _)) if self.aside.index(16) == 0 => self.kill(at),
            Some((at, life)) => {
                (0..1 + self.aside.index(4)).for_each(|_| self.alter(at, life));
                let host = self.aside.index(HOSTS);
                self.timed(host, |host, random, judge| host.look(random, judge))?;
            }
            None if self.aside.index(8) == 0 => self.begin_to_lie(),
            None => {}
        }
        Ok(())
    }

    /// A node begins to lie. Only one does at a time, and mostly one that all hosts can do without.
    fn begin_to_lie(&mut self) {
        let at = self.aside.index(self.nodes.len());
        let life = self.nodes[at].life;
        if self.nodes[at].alive && (self.judge.spares(at, life) || self.aside.index(8) == 0) {
            self.judge.is_not_honest(at, life);
            self.lies.liar = Some((at, life));
            self.lies.earlier.clear();
        }
    }

    /// The liar changes a page that it holds for one of the hosts.
    fn alter(&mut self, at: usize, life: u64) {
        let host = self.aside.index(HOSTS);
        let mut spot = || self.hosts[host].spot_at(at, life, &mut self.aside);
        let (Some(one), Some(other)) = (spot(), spot()) else { return };
        let (how, bit) = (self.aside.index(4), self.aside.index(8 * PAGE_BYTES));
        let again = if self.lies.earlier.is_empty() { 0 } else { self.aside.index(self.lies.earlier.len()) };
        let Lies { earlier, .. } = &mut self.lies;
        let done = self.nodes[at].network.with_nic(|nic| {
            let peek = |(slab, offset): Spot| nic.peek(slab, offset, PAGE_BYTES as u32);
            let (mut page, second) = (peek(one)?, peek(other)?);
            if earlier.len() < REMEMBERED {
                earlier.push((one, page.clone()));
            }
            let changed = match how {
                0 | 1 => {
                    page[bit / 8] ^= 1 << (bit % 8);
                    nic.poke(one.0, one.1, &page)
                }
                2 => nic.poke(one.0, one.1, &second) && nic.poke(other.0, other.1, &page),
                _ => {
                    let (spot, bytes) = &earlier[again];
                    nic.poke(spot.0, spot.1, bytes)
                }
            };
            Some(changed)
        });
        self.reached.lies += u64::from(done.flatten() == Some(true));
    }

    /// Takes down which copies the hosts have. The judge is asked by them.
    pub(super) fn take_down(&mut self) {
        if self.lies.may {
            for host in &self.hosts {
                self.judge.has_copies(host.number, host.copies());
            }
        }
    }

    /// Checks that each slab has one owner: by what the hosts say, what the nodes' members hold, and
    /// the nodes' words.
    pub(super) fn owners(&mut self) -> Verdict {
        self.mistake_of_owners();
        let claims: Vec<(usize, _)> = self.hosts.iter().map(|host| (host.family, host.owns())).collect();
        let families: BTreeMap<[u8; 16], usize> =
            self.hosts.iter().flat_map(|host| host.runs().map(|run| (run, host.family))).collect();
        for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.alive) {
            let mut named: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
            for (family, claims) in &claims {
                let here = claims.iter().filter(|(home, _)| *home == (at, node.life));
                here.for_each(|(_, slab)| named.entry(*slab).or_default().extend([*family]));
            }
            let mut slabs: BTreeMap<u16, BTreeSet<u64>> = BTreeMap::new();
            let (holdings, words) =
                node.network.with_nic(|nic| (nic.holdings(), nic.block_words())).unwrap_or_default();
            for holding in holdings {
                let names = || holding.slabs.iter().map(|slab| slab.0);
                slabs.entry(holding.owner).or_default().extend(names());
                // Of a process that has ended, the node may not know so yet.
                if let Some(family) = families.get(&holding.run) {
                    names().for_each(|slab| named.entry(slab).or_default().extend([*family]));
                }
            }
            self.judge.one_owner(&node.name, &named)?;
            self.judge.words_name(&node.name, &words, &slabs)?;
        }
        Ok(())
    }

    /// The mistakes of nodes that the check finds.
    fn mistake_of_owners(&mut self) {
        if !matches!(self.mistake, Some(Mistake::OwnerForgotten | Mistake::HeldTwice)) {
            return;
        }
        let at = self.aside.index(self.nodes.len());
        self.nodes[at].network.with_nic(|nic| match self.mistake {
            Some(Mistake::OwnerForgotten) => {
                let words = nic.block_words();
                let owned = words.iter().position(|word| word >> 60 == 2);
                owned.into_iter().for_each(|block| nic.forget_owner(block as u32));
            }
            Some(Mistake::HeldTwice) => nic.hold_twice(),
            _ => {}
        });
    }
}
