//! Slabs with two copies: so that a lost node costs a fetch, and not the program.
//!
//! ```text
//!  grow ─► two grants, of different nodes ─► [whole, whole]
//!                                               │ a node is lost, or too slow (`can_spare`)
//!                                               ▼
//!                          [whole, absent] ─── add_home ──► [whole, filling] ── filled ──► [whole, whole]
//!                               the program runs on            repair, behind it  (`repair`)
//! ```
//!
//! *Failure domains.* The two nodes are of different domains, as long as one of another domain
//! grants (`domains`).
//!
//! A slab that is mapped here needs no second copy: its memory outlives its node's process.
//!
//! *Giving a node up.* The session of a node asks at the first sign of a loss whether this pool can
//! do without it ([`farmem_fabric::session::Spare`]). It can if every slab with a live slot there
//! has a whole home elsewhere. The decision and the change of the words are one step under the
//! pool's locks, so that of two nodes that fail together the second one is kept, and waited for
//! like the only one.

pub(crate) mod disk;
mod domains;
pub(crate) mod repair;
pub(crate) mod reserve;
mod throttle;

pub use disk::Disk;
pub use domains::Place;
pub use repair::Lacks;
pub use throttle::{POSTS_NS, SPELL_NS, Throttle};

use crate::grants::Grants;
use crate::homes::{HOMES, Home, State};
use crate::losses::Losses;
use crate::nodes::Standing;
use crate::stripes::code::Shape;
use crate::stripes::{self, Stripes};
use crate::tables::Tables;
use crate::{NoRoom, Pool};
use farmem_fabric::Lost;
use farmem_fabric::session::Spare;
use farmem_run::Protect;
use farmem_sys::raw::Errno;
use std::sync::OnceLock;

/// A node's session knows it by its number, and by its life above this bit.
const LIFE_SHIFT: u32 = 32;

/// A pool's state for it.
#[derive(Default)]
pub(crate) struct Protection {
    /// The pool itself, and how, once slabs are to be protected.
    pub(crate) pool: OnceLock<(&'static Pool, Protect)>,
    /// The second home of slabs, in place of another node.
    pub disk: OnceLock<Disk>,
    /// Groups with parity, where that is how.
    pub stripes: OnceLock<Stripes>,
}

impl Protection {
    /// The file that is the second home of slabs, if there is one.
    #[inline]
    pub(crate) fn disk(&self) -> Option<&Disk> {
        self.disk.get()
    }

    /// The file, if it takes pages.
    #[inline]
    pub(crate) fn disk_in(&self) -> Option<&Disk> {
        self.disk().filter(|disk| disk.is_in())
    }

    /// A place for a slab that is to have one, with room for blocks that are warm.
    pub(crate) fn place_on_disk(&self, warm: u32) -> Result<Home, NoRoom> {
        let disk = self.disk_in().ok_or_else(|| NoRoom::Exhausted("the disk takes no pages".to_owned()))?;
        let home = disk.place();
        disk.reserve(home.slab, warm).inspect_err(|_| disk.give_up(home.slab))?;
        Ok(home)
    }

    /// How slabs are protected.
    pub fn how(&self) -> Protect {
        match self.pool.get() {
            None => Protect::None,
            Some(_) if self.disk.get().is_some() => Protect::Disk,
            Some((_, how)) => *how,
        }
    }

    /// The groups, if slabs are protected by parity.
    #[inline]
    pub(crate) fn stripes(&self) -> Option<&Stripes> {
        self.stripes.get()
    }

    /// How slabs are protected, if by parity.
    pub(crate) fn shape(&self) -> Option<Shape> {
        self.stripes().map(|stripes| stripes.shape)
    }
}

impl Pool {
    /// From now on slabs that are not mapped here are protected, and a node that fails is given up
    /// as soon as that can be. With parity: [`Pool::protect_by_parity`].
    pub fn protect(&'static self, how: Protect) {
        if how == Protect::None || self.tables.protection.pool.set((self, how)).is_err() {
            return;
        }
        // A node that joins meanwhile sees to it itself.
        let _changing = self.changes.now.lock();
        (0..self.tables.nodes.all().len()).for_each(|number| self.tables.watch_over(number));
    }

    /// [`Pool::protect`], with the tables of parity if that is how.
    ///
    /// # Errors
    /// There are no addresses for the tables.
    pub fn protect_by_parity(&'static self, how: Protect) -> Result<(), Errno> {
        if let Some(shape) = stripes::shape_of(how) {
            let _ = self.tables.protection.stripes.set(Stripes::new(shape)?);
        }
        self.protect(how);
        Ok(())
    }

    /// How slabs are protected.
    pub fn protection(&self) -> Protect {
        self.tables.protection.how()
    }
}

impl Tables {
    /// Has a node's session ask before it waits long.
    pub(crate) fn watch_over(&self, number: usize) {
        if let Some((pool, _)) = self.protection.pool.get() {
            let node = &self.nodes.all()[number];
            node.session().standing().held_by(*pool, number | (node.life() as usize) << LIFE_SHIFT);
        }
    }
}

impl Grants<'_> {
    /// The second home of a slab whose first was granted just now, or [`Home::NONE`].
    ///
    /// # Errors
    /// It needs one, and no node grants it. The first is given back.
    pub(crate) fn second_for(self, first: Home) -> Result<Home, NoRoom> {
        if self.tables.protection.how() == Protect::None || first.base != 0 {
            return Ok(Home::NONE);
        }
        if self.tables.protection.how() == Protect::Disk {
            // Repair says what is lacking, and asks again.
            return Ok(self.tables.protection.place_on_disk(0).unwrap_or(Home::NONE));
        }
        match self.granted(&[first.node]) {
            Ok(second) => Ok(second),
            // A program that could go on with one copy does not end because there is no second.
            Err(_) if self.tables.nodes.is_degraded() => Ok(Home::NONE),
            Err(why) => {
                self.decline(first);
                match why {
                    NoRoom::Exhausted(why) => Err(NoRoom::Exhausted(format!("no second copy: {why}"))),
                    lost => Err(lost),
                }
            }
        }
    }
}

impl Spare for Pool {
    fn can_spare(&self, number: usize, lost: &Lost) -> bool {
        self.losses().can_spare(number, lost)
    }
}

impl Losses<'_> {
    /// Lets a node go, if every slab with a live slot there has its bytes elsewhere. The decision
    /// and the change of the words are one step.
    fn can_spare(self, known: usize, lost: &Lost) -> bool {
        let (number, life) = (known & ((1 << LIFE_SHIFT) - 1), known >> LIFE_SHIFT);
        self.spare(number, lost, Some(life))
    }

    /// The same of the node that has a number. `silent`: which of those that had it does not answer, and
    /// may have its memory still.
    pub(crate) fn spare(self, number: usize, lost: &Lost, silent: Option<usize>) -> bool {
        let mut changing = self.changes.now.lock();
        let nodes = self.tables.nodes.all();
        if !nodes[number].is_there() || silent.is_some_and(|life| nodes[number].life() as usize != life) {
            // Another thread was first, or the number is another node's by now.
            return true;
        }
        // Pages that leave need another node.
        let other = |(other, node): (usize, &crate::nodes::Node)| other != number && node.standing() == Standing::In;
        if !nodes.iter().enumerate().any(other) && self.tables.protection.disk_in().is_none() {
            return false;
        }
        // Held until the words are changed: no slot is taken meanwhile.
        let slabs = self.held.slabs.lock();
        let elsewhere = |index: usize| {
            if self.tables.seat(index as u32).is_some() {
                return self.tables.follows_without(index as u32, number);
            }
            let word = self.tables.homes.word(index as u32);
            let at = |nth: usize| self.tables.homes.home(word, nth).node as usize;
            let there = |nth: usize| word.state(nth) != State::Absent && at(nth) == number;
            !(0..HOMES).any(there) || (0..HOMES).any(|nth| word.state(nth) == State::Whole && at(nth) != number)
        };
        let live = |index: &usize| slabs.list[*index].as_ref().is_some_and(|slab| !slab.is_empty());
        if !(0..slabs.list.len()).filter(live).all(elsewhere) {
            return false;
        }
        let standing = if silent.is_some() && self.keeps(number) { Standing::Away } else { Standing::Lost };
        self.let_go(&mut changing, &slabs, number, lost, standing);
        true
    }
}
