//! Sealed slabs with two copies: the node of one is silent and given up, and the other node alters what it
//! has. What the first one kept is used when it answers again.

#![allow(unsafe_code)] // Pages are sealed and opened where they lie.

mod common;

use common::{all_done, alloc, leave_once, page, repaired};
use farmem_pool::homes::State;
use farmem_pool::{Doubt, Lane, Pool, Protect, Sealing, Standing};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES, SLOTS_PER_SLAB};
use farmem_sim::Network;
use farmem_sys::raw::Errno;
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// Two nodes or more, a lane, and ten slots with a number each.
struct Sealed {
    networks: Vec<Arc<Network>>,
    pool: &'static Pool,
    lane: Lane,
    slots: Vec<FarSlot>,
}

impl Sealed {
    fn new(slabs: &[u64]) -> Sealed {
        let (networks, pool) = common::pool(slabs);
        let pool: &'static Pool = Box::leak(Box::new(pool));
        pool.protect(Protect::Mirror);
        pool.seals().begin(Sealing::Whole).unwrap();
        let mut sealed = Sealed { networks, pool, lane: Lane::new(), slots: alloc(pool, 10) };
        (0..10).for_each(|nth| sealed.write(nth, nth as u64 + 1));
        sealed
    }

    fn write(&mut self, nth: usize, value: u64) {
        let mut page = page(value);
        let at = page.as_mut_ptr().cast::<u8>();
        // SAFETY: a page of ours, which outlives the operation.
        unsafe {
            assert!(self.pool.seals().seal(self.slots[nth], at.cast_const(), at));
            self.lane.write(self.pool, 7, self.slots[nth], 0, at, PAGE_BYTES as u32);
        }
        assert!(all_done(self.pool, &mut self.lane).iter().all(|(_, result)| result.is_ok()));
    }

    /// The number in a slot, or what is to be done about the page that does not open.
    fn read(&mut self, nth: usize) -> Result<u64, Doubt> {
        let (mut found, mut done) = (page(u64::MAX), Vec::new());
        let (slot, at) = (self.slots[nth], found.as_mut_ptr().cast::<u8>());
        // SAFETY: as above.
        unsafe { self.lane.read(self.pool, 9, slot, 0, at, PAGE_BYTES as u32) };
        self.lane.doorbell(self.pool);
        while self.lane.in_flight() > 0 {
            self.lane.wait(self.pool, &mut done, std::time::Duration::from_secs(1));
        }
        if done[0].result.is_err() {
            return Err(if self.pool.seals().awaits(slot) { Doubt::Wait } else { Doubt::Lost });
        }
        // SAFETY: as above; nothing is under way.
        match unsafe { self.pool.seals().open(slot, at.cast_const(), at) } {
            Ok(()) => Ok(found[0]),
            Err(altered) => Err(self.pool.seals().distrust(done[0].from, &altered)),
        }
    }

    /// A node alters what it has of a slot.
    fn alter(&self, node: usize, nth: usize) {
        let names = self.pool.names(self.slots[nth].slab_index());
        let (_, slab) = names.into_iter().flatten().find(|(number, _)| *number == node).unwrap();
        let at = self.slots[nth].offset();
        let done = self.networks[node].with_nic(|nic| {
            let mut page = nic.peek(slab, at, PAGE_BYTES as u32).unwrap();
            page[100] ^= 1;
            nic.poke(slab, at, &page)
        });
        assert_eq!(done, Some(true));
    }

    /// The second node is stopped for so long, and given up by a write.
    fn second_is_given_up(&mut self, ns: u64) {
        self.networks[1].stop_node(ns);
        self.write(0, 101);
        assert_eq!(self.pool.nodes().standing(1), Some(Standing::Away));
        let states = self.pool.homes(self.slots[0].slab_index()).map(|home| home.map(|(_, state)| state));
        assert!(states.contains(&Some(State::Behind)) && states.contains(&Some(State::Whole)), "{states:?}");
    }

    /// Lets time pass as housekeeping does; whether a node has come back.
    fn comes_back(&mut self, ns: u64) -> bool {
        self.passes(ns);
        leave_once(self.pool);
        !self.pool.moves().take_back(&mut self.lane).is_empty()
    }

    /// Lets time pass, and looks after the nodes.
    fn passes(&self, ns: u64) {
        self.networks.iter().for_each(|network| network.pass(ns));
        let _ = self.pool.losses().tend();
    }
}

#[test]
fn what_a_given_up_node_kept_is_read_when_the_other_one_lies() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(2_000 * MS);
    sealed.write(3, 104);
    sealed.alter(0, 5);
    assert_eq!(sealed.read(5), Err(Doubt::Wait));
    assert!(!sealed.comes_back(300 * MS));
    assert_eq!((sealed.read(5), sealed.read(3)), (Err(Doubt::Wait), Ok(104)));
    assert!((0..20).any(|_| sealed.comes_back(250 * MS)));
    // The liar is asked for nothing that the other one has. What changed meanwhile it has alone.
    assert_eq!(sealed.pool.nodes().standing(2), Some(Standing::In));
    assert_eq!(sealed.read(5), Ok(6));
    sealed.alter(0, 4);
    assert_eq!((sealed.read(4), sealed.read(3), sealed.read(0)), (Ok(5), Ok(104), Ok(101)));
    assert!(repaired(sealed.pool, &mut sealed.lane));
    assert_eq!(sealed.pool.losses().tend(), Ok(()));
    let all: Vec<_> = (0..10).map(|nth| sealed.read(nth)).collect();
    assert_eq!(all, [101, 2, 3, 104, 5, 6, 7, 8, 9, 10].map(Ok));
}

/// The liar is read for what it alone has, and given up once that is copied.
#[test]
fn a_liar_goes_when_what_it_alone_has_is_copied() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(500 * MS);
    sealed.alter(0, 5);
    assert_eq!(sealed.read(5), Err(Doubt::Wait));
    assert!((0..20).any(|_| sealed.comes_back(250 * MS)));
    (1..10).filter(|nth| *nth != 5).for_each(|nth| sealed.alter(0, nth));
    assert_eq!((0..10).map(|nth| sealed.read(nth)).filter(Result::is_ok).count(), 10);
    assert_eq!(sealed.pool.nodes().standing(0), Some(Standing::In), "it has a page alone");
    assert!(repaired(sealed.pool, &mut sealed.lane));
    assert_eq!(sealed.pool.losses().tend(), Ok(()));
    assert_eq!(sealed.pool.nodes().standing(0), Some(Standing::Lost));
    let all: Vec<_> = (0..10).map(|nth| sealed.read(nth)).collect();
    assert_eq!(all, [101, 2, 3, 4, 5, 6, 7, 8, 9, 10].map(Ok));
}

/// The other node ends while the first is away: what has not changed since is read when that is back.
#[test]
fn the_copy_of_a_given_up_node_is_awaited_when_the_other_node_ends() {
    let mut sealed = Sealed::new(&[2, 2, 2]);
    let index = sealed.slots[0].slab_index();
    let numbers = sealed.pool.homes(index).map(|home| home.unwrap().0);
    let [first, second] = numbers;
    sealed.networks[second].stop_node(2_000 * MS);
    sealed.write(0, 101);
    assert_eq!(sealed.pool.nodes().standing(second), Some(Standing::Away));
    // Nobody needs what it misses.
    sealed.pool.slots().free(&[sealed.slots[0]]);
    sealed.networks[first].kill_node();
    assert_eq!(sealed.read(5), Err(Doubt::Wait));
    assert!(!sealed.comes_back(300 * MS));
    assert_eq!(sealed.pool.losses().tend(), Ok(()), "nothing is lost so far");
    assert!(!sealed.pool.is_own(sealed.slots[5]), "a page that changes meanwhile takes another slot");
    assert!((0..20).any(|_| sealed.comes_back(250 * MS)));
    assert_eq!(sealed.read(5), Ok(6));
    assert!(repaired(sealed.pool, &mut sealed.lane));
    assert!(sealed.pool.is_own(sealed.slots[5]));
    assert_eq!(sealed.pool.homes(index).map(|home| home.map(|(_, state)| state)), [Some(State::Whole); 2]);
    assert_eq!((1..10).map(|nth| sealed.read(nth)).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7, 8, 9, 10].map(Ok));
}

/// … and what has changed is lost with the other node.
#[test]
fn what_a_given_up_node_misses_is_lost_with_the_other_node() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(2_000 * MS);
    sealed.networks[0].kill_node();
    assert_eq!((sealed.read(0), sealed.read(5)), (Err(Doubt::Lost), Err(Doubt::Wait)));
    assert!(sealed.pool.losses().tend().is_err());
}

/// Repair copies no page that does not open: the new copy goes on lacking it.
#[test]
fn repair_opens_what_it_copies() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(60_000 * MS);
    sealed.alter(0, 5);
    let (_third, session) = common::node(9, 2);
    sealed.pool.add_node(session).unwrap();
    let index = sealed.slots[0].slab_index();
    sealed.pool.moves().add_home(index).unwrap();
    leave_once(sealed.pool);
    assert!(!common::fill(sealed.pool, &mut sealed.lane, index, 1), "it lacks a page");
    assert_eq!(sealed.pool.moves().next_stale(index, 1, 0), Some(sealed.slots[5]));
    assert_eq!(sealed.read(5), Err(Doubt::Lost));
    // It is written anew.
    sealed.write(5, 106);
    assert!(common::fill(sealed.pool, &mut sealed.lane, index, 1));
    sealed.networks[0].kill_node();
    assert_eq!((sealed.read(5), sealed.read(0), sealed.read(4)), (Ok(106), Ok(101), Ok(5)));
}

/// A node whose memory is gone, or that stays away for as long as a stopped one is waited for, is lost.
#[test]
fn a_node_that_does_not_come_back_is_lost() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(60_000 * MS);
    sealed.alter(0, 5);
    let rounds = (0..400).take_while(|_| sealed.read(5) == Err(Doubt::Wait) && !sealed.comes_back(250 * MS)).count();
    assert!((100..140).contains(&rounds), "{rounds}");
    assert_eq!((sealed.pool.nodes().standing(1), sealed.read(5)), (Some(Standing::Lost), Err(Doubt::Lost)));
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(500 * MS);
    sealed.networks[1].kill_node();
    sealed.networks[1].start_node(2 << 26);
    assert!(!(0..8).any(|_| sealed.comes_back(250 * MS)));
    assert_eq!(sealed.pool.nodes().standing(1), Some(Standing::Lost));
}

/// Slabs that were given back while their node was away are the node's again when it is back.
#[test]
fn nothing_is_held_at_a_node_for_good() {
    let mut sealed = Sealed::new(&[2, 2]);
    sealed.second_is_given_up(500 * MS);
    sealed.pool.slots().free(&sealed.slots.clone());
    sealed.pool.slots().shrink(0);
    assert_eq!((sealed.networks[0].lent(), sealed.networks[1].lent()), (0, 64 << 20));
    (0..8).for_each(|_| {
        sealed.comes_back(250 * MS);
    });
    assert_eq!(sealed.networks[1].lent(), 0);
}

/// A WRITE is under way to a node when another thread gives that up, and while the node answers again. It takes no
/// effect after what is written later, however late the node has it.
#[test]
fn a_write_of_before_is_not_laid_over_a_later_one() {
    let mut sealed = Sealed::new(&[2, 2]);
    let pool = sealed.pool;
    sealed.networks[1].stop_node(300 * MS);
    let mut before = page(106);
    let at = before.as_mut_ptr().cast::<u8>();
    // SAFETY: a page of ours, which outlives the operation.
    unsafe {
        assert!(pool.seals().seal(sealed.slots[5], at.cast_const(), at));
        sealed.lane.write(pool, 7, sealed.slots[5], 0, at, PAGE_BYTES as u32);
    }
    sealed.lane.doorbell(pool);
    let mut other = Sealed { lane: Lane::new(), networks: sealed.networks.clone(), slots: sealed.slots.clone(), pool };
    other.second_is_given_up(300 * MS);
    sealed.networks[1].cut_and_hold_up(3_000 * MS);
    assert!((0..8).any(|_| {
        sealed.passes(100 * MS);
        pool.moves().any_back()
    }));
    assert_eq!(all_done(pool, &mut sealed.lane), [(7, Ok(0))]);
    assert_eq!(pool.moves().take_back(&mut sealed.lane).len(), 1);
    sealed.write(5, 206);
    assert!(repaired(pool, &mut sealed.lane));
    sealed.passes(5_000 * MS);
    sealed.networks[0].kill_node();
    assert_eq!((sealed.read(5), sealed.read(0), sealed.read(9)), (Ok(206), Ok(101), Ok(10)));
}

/// The same, where the thread itself sees that its connection was cut, and does not reach the node.
#[test]
fn a_write_that_was_to_be_sent_again_is_not_laid_over_a_later_one() {
    let mut sealed = Sealed::new(&[2, 2]);
    let pool = sealed.pool;
    let mut before = page(106);
    let at = before.as_mut_ptr().cast::<u8>();
    sealed.networks[1].stop_node(300 * MS);
    // SAFETY: a page of ours, which outlives the operation.
    unsafe {
        assert!(pool.seals().seal(sealed.slots[5], at.cast_const(), at));
        sealed.lane.write(pool, 7, sealed.slots[5], 0, at, PAGE_BYTES as u32);
    }
    sealed.lane.doorbell(pool);
    sealed.networks[1].set_connecting(Err(Errno(libc::EHOSTUNREACH)));
    sealed.networks[1].cut_and_hold_up(3_000 * MS);
    assert_eq!(all_done(pool, &mut sealed.lane), [(7, Ok(0))]);
    assert_eq!(pool.nodes().standing(1), Some(Standing::Away));
    sealed.networks[1].set_connecting(Ok(()));
    assert!((0..8).any(|_| sealed.comes_back(100 * MS)));
    sealed.write(5, 206);
    assert!(repaired(pool, &mut sealed.lane));
    sealed.passes(5_000 * MS);
    sealed.networks[0].kill_node();
    assert_eq!((sealed.read(5), sealed.read(9)), (Ok(206), Ok(10)));
}

/// A home that was dropped before its node was given up goes back when the node is back.
#[test]
fn a_dropped_home_goes_back_to_a_node_that_is_back() {
    let mut sealed = Sealed::new(&[2, 2]);
    let pool = sealed.pool;
    let second = *alloc(pool, SLOTS_PER_SLAB as usize).last().unwrap();
    assert!(second.slab_index() != sealed.slots[0].slab_index());
    let homes = pool.homes(second.slab_index());
    let dropped = (0..2).find(|&nth| homes[nth].unwrap().0 == 1).unwrap();
    assert!(pool.moves().drop_home(&mut sealed.lane, second.slab_index(), dropped));
    sealed.second_is_given_up(500 * MS);
    assert!((0..20).any(|_| {
        sealed.passes(250 * MS);
        !pool.moves().take_back(&mut sealed.lane).is_empty()
    }));
    assert_eq!(sealed.networks[1].lent(), 2 * SLAB_BYTES);
    leave_once(pool);
    assert_eq!(sealed.networks[1].lent(), SLAB_BYTES);
    assert!(repaired(pool, &mut sealed.lane));
    pool.slots().free(&sealed.slots.clone());
    assert_eq!((pool.losses().tend(), pool.nodes().standing(2)), (Ok(()), Some(Standing::In)));
}

/// A copy that lacks a page while the other one is behind lacks it when that is back.
#[test]
fn a_copy_that_lacks_a_page_goes_on_lacking_it() {
    let mut sealed = Sealed::new(&[2, 2]);
    let (pool, slot) = (sealed.pool, sealed.slots[5]);
    sealed.second_is_given_up(500 * MS);
    let page = page(106);
    // SAFETY: the page outlives the operation, which is awaited.
    unsafe { sealed.lane.lines(pool, 7, [(slot, page.as_ptr().cast())].into_iter(), false, |_| None) };
    assert!(all_done(pool, &mut sealed.lane)[0].1.is_err(), "no copy has it");
    assert!((0..20).any(|_| sealed.comes_back(250 * MS)));
    let lacks = [0, 1].map(|nth| {
        let mut from = Some(0);
        std::iter::from_fn(|| {
            let slot = pool.moves().next_stale(slot.slab_index(), nth, from?)?;
            from = Some(slot.place() + 1);
            Some(slot)
        })
        .collect::<Vec<_>>()
    });
    assert!(lacks.iter().all(|slots| slots.contains(&slot)), "{lacks:?}");
}
