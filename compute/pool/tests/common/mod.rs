//! A consumer of a pool, as small as can be: it writes numbers to slots and reads them back.

#![allow(unsafe_code)] // Buffers of reads and writes.
#![allow(dead_code)] // Each test uses a part.

use farmem_fabric::{ConnectOptions, Lost, Session};
use farmem_pool::{Lacks, Lane, Piece, Pool};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, SLAB_BYTES};
use farmem_sim::{Network, Weather};
use std::sync::Arc;
use std::time::Duration;

pub fn options() -> ConnectOptions {
    ConnectOptions {
        timeout: Duration::from_secs(30),
        grace: Duration::from_secs(2),
        run: [1; 16],
        pid: std::process::id(),
        ..ConnectOptions::default()
    }
}

/// A simulated node that lends so many slabs, and a session with it.
pub fn node(seed: u64, slabs: u64) -> (Arc<Network>, Session) {
    let network = Network::new(Weather { seed, ..Weather::default() }, slabs * SLAB_BYTES);
    let session = Session::simulated(&network, &options()).unwrap();
    (network, session)
}

/// A simulated node that lends so many slabs, in a failure domain.
pub fn node_in(seed: u64, slabs: u64, domain: &str) -> (Arc<Network>, Session) {
    let (network, session) = node(seed, slabs);
    (network, session.in_domain(farmem_protocol::node::domain(domain).unwrap()))
}

/// A pool over simulated nodes that lend so many slabs each.
pub fn pool(slabs: &[u64]) -> (Vec<Arc<Network>>, Pool) {
    let (networks, sessions) = slabs.iter().enumerate().map(|(i, &slabs)| node(i as u64 + 1, slabs)).unzip();
    (networks, Pool::new(sessions).unwrap())
}

pub fn alloc(pool: &Pool, n: usize) -> Vec<FarSlot> {
    let mut slots = Vec::new();
    pool.slots().alloc(n, &mut slots).unwrap();
    slots
}

/// Waits for everything that is under way; how each ended, by tag.
pub fn all_done(pool: &Pool, lane: &mut Lane) -> Vec<(u64, Result<u64, Lost>)> {
    let mut done = Vec::new();
    lane.doorbell(pool);
    let mut rounds = 0;
    while lane.in_flight() > 0 {
        lane.wait(pool, &mut done, Duration::from_secs(1));
        rounds += 1;
        assert!(rounds < 1000, "an operation is never done");
    }
    done.into_iter().map(|done| (done.tag, done.result)).collect()
}

/// A page of a number.
pub fn page(value: u64) -> Box<[u64; PAGE_BYTES / 8]> {
    Box::new(std::array::from_fn(|at| value ^ at as u64))
}

pub fn write(pool: &Pool, lane: &mut Lane, slot: FarSlot, value: u64) -> Result<u64, Lost> {
    let page = page(value);
    // SAFETY: the page outlives the operation, which is awaited.
    unsafe { lane.write(pool, 7, slot, 0, page.as_ptr().cast(), PAGE_BYTES as u32) };
    let mut done = all_done(pool, lane);
    assert!(done.len() == 1 && done[0].0 == 7, "{done:?}");
    done.remove(0).1
}

/// The number that was written to a slot; 0: none was.
pub fn read(pool: &Pool, lane: &mut Lane, slot: FarSlot) -> Result<u64, Lost> {
    let mut found = page(u64::MAX);
    // SAFETY: as above.
    unsafe { lane.read(pool, 9, slot, 0, found.as_mut_ptr().cast(), PAGE_BYTES as u32) };
    let mut done = all_done(pool, lane);
    assert!(done.len() == 1 && done[0].0 == 9, "{done:?}");
    let value = found[0];
    done.remove(0).1.map(|_| {
        let fresh = found.iter().all(|word| *word == 0);
        assert!(fresh || found == page(value), "a page of several numbers: {:?}", &found[..16]);
        value
    })
}

/// Gives a slab a second home and fills it, as whoever holds the write-back lane does.
pub fn mirror(pool: &Pool, lane: &mut Lane, index: u32) -> bool {
    if pool.moves().add_home(index).is_err() {
        return false;
    }
    leave_once(pool);
    fill(pool, lane, index, 1)
}

pub fn fill(pool: &Pool, lane: &mut Lane, index: u32, nth: usize) -> bool {
    const PAGES: u32 = 8;
    let mut buffers = vec![0u8; PAGES as usize * PAGE_BYTES];
    let mut from = 0;
    loop {
        let piece = Piece { pages: PAGES, under_way: 3, goes_on: &mut || true };
        // SAFETY: the buffers live until the call returns, with nothing under way.
        let filled = unsafe { lane.fill(pool, index, nth, from, buffers.as_mut_ptr(), piece) };
        let Some(filled) = filled else { break };
        from = filled.next;
    }
    pool.moves().end_filling(index, nth)
}

/// The one thread there is has left the consumer.
pub fn leave_once(pool: &Pool) {
    if let Some(number) = pool.moves().dropped() {
        pool.moves().all_have_left(number);
    }
}

/// Does what slabs lack, as a background thread does; whether nothing is left to do.
pub fn repaired(pool: &Pool, lane: &mut Lane) -> bool {
    for _ in 0..1000 {
        match pool.repair().lacks() {
            None => return true,
            Some(Lacks::Home(index)) if pool.moves().add_home(index).is_err() => return false,
            Some(Lacks::Home(_)) => leave_once(pool),
            Some(Lacks::Domain(index)) => match pool.moves().place_apart(index) {
                Ok(place) => {
                    assert!(pool.moves().move_home(lane, index, place));
                    leave_once(pool);
                }
                Err(_) => return false,
            },
            Some(Lacks::Room(index)) => {
                match pool.moves().find_room(index) {
                    Ok(Some(place)) => assert!(pool.moves().move_home(lane, index, place)),
                    Ok(None) => {}
                    Err(_) => pool.moves().stay(index),
                }
                leave_once(pool);
            }
            Some(Lacks::Bytes(index, nth)) => drop(fill(pool, lane, index, nth)),
            Some(Lacks::Way(index, home)) => {
                assert!(pool.moves().drop_home(lane, index, home));
                leave_once(pool);
            }
        }
    }
    false
}

/// Whether each slot has its number, counted from one.
pub fn all_there(pool: &Pool, lane: &mut Lane, slots: &[FarSlot]) {
    for (value, &slot) in slots.iter().enumerate() {
        assert_eq!(read(pool, lane, slot), Ok(value as u64 + 1));
    }
}

/// The nodes of a slot's slab.
pub fn at(pool: &Pool, slot: FarSlot) -> Vec<usize> {
    pool.homes(slot.slab_index()).iter().flatten().map(|(node, _)| *node).collect()
}
