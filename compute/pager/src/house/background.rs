//! The background thread.
//!
//! * It takes in acknowledgements of write-back.
//! * It notices the loss of a node from which nothing is fetched.
//! * It gives back far memory that the program has freed.
//! * It does the housekeeping once a second.
//! * It ends a process of which only the runtime's threads are left.
//!
//! It starts at the first eviction, not at start. A child that forks and execs has none, nor has a
//! program that fits.

use super::repair::Repair;
use super::{House, the_house};
use crate::ending::{exit_group, or_end};
use crate::wake::start_thread;
use farmem_pool::Protect;
use farmem_sys::raw::now_ns;
use farmem_sys::thread;
use std::time::Duration;

/// Between looks after the nodes. A run whose node was killed is to end within two seconds.
const TEND_NS: u64 = 250_000_000;

/// Between looks while a node is out of reach. The process is to end soon after the grace is over.
const SEEK_NS: u64 = 50_000_000;

/// Until the first look for acknowledgements after an eviction. Each look that finds none is
/// followed by a sleep twice as long. A page that comes back before its acknowledgement leaves
/// whole, and cards go on only when somebody looks.
const LOOK_NS: u64 = 1_000_000;

/// Between looks for the program's last thread, soon after the end of another. Later its end is
/// seen within [`TEND_NS`].
const WATCH_NS: u64 = 10_000_000;

/// Between rounds of housekeeping.
const HOUSE_NS: u64 = 1_000_000_000;

/// How long to sleep for acknowledgements, and how many are to come. From the last answer.
fn until_next_look((slept, before): (u64, usize), in_flight: usize) -> (u64, usize) {
    let sleep = match in_flight {
        0 => TEND_NS,
        same if same == before => (slept * 2).min(TEND_NS),
        _ => LOOK_NS,
    };
    (sleep, in_flight)
}

/// When the background thread did what, and when it looks next.
struct Rounds {
    /// The sleep until the next look for acknowledgements, and how many were to come.
    acknowledgements: (u64, usize),
    kept_house: u64,
    tended: u64,
    /// All nodes are within reach.
    near: bool,
    repair: Repair,
}

impl House {
    /// A thread of the program ends by its system call, and is not its only one. Where its first
    /// thread has ended, the process ends with the last one's status.
    pub fn thread_ends(&self, is_first: bool, status: i32) {
        self.base.background.thread_ends(is_first, status);
    }

    /// The calling thread ends, and touches no far memory any more.
    pub fn thread_is_gone(&self) {
        self.base.threads.leave();
    }

    /// The runtime's threads may not ask any more which threads there are.
    pub fn forget_first_thread(&self) {
        self.base.background.forget_first_thread();
    }

    /// Ends the process if no thread of the program is left.
    fn end_with_the_last(&self) {
        if thread::others() == Some(0) && thread::first_has_ended() {
            self.base.farewell();
            exit_group(self.base.background.last_status());
        }
    }

    pub(super) fn run_background(&self) -> ! {
        self.also.get().iter().for_each(|also| also());
        if self.base.pool.protection() == Protect::Disk {
            start_thread(|_| the_house().run_disk());
        }
        let now = now_ns();
        let mut rounds = Rounds {
            acknowledgements: (TEND_NS, 0),
            kept_house: now,
            tended: now,
            near: true,
            repair: Repair::default(),
        };
        loop {
            let (seen, longest) = self.round(&mut rounds);
            self.base.background.sleep(seen, longest);
        }
    }

    /// One round. The wakings that it has seen, and how long to sleep at most.
    fn round(&self, rounds: &mut Rounds) -> (u32, u64) {
        if !self.out.staging.is_empty() {
            let _inside = self.base.threads.enter();
            let mut evictor = self.out.evictor.lock();
            self.out.collect_writes(&mut evictor, Duration::ZERO);
            rounds.acknowledgements = until_next_look(rounds.acknowledgements, evictor.writes_in_flight());
        }
        if !rounds.near || now_ns() - rounds.tended > TEND_NS {
            rounds.near = self.tend();
            rounds.tended = now_ns();
        }
        if now_ns() - rounds.kept_house > HOUSE_NS {
            rounds.kept_house = now_ns();
            self.keep_house();
        }
        let pause = self.repair(&mut rounds.repair).unwrap_or(TEND_NS);
        let seen = self.base.background.asked();
        let mut longest = rounds.acknowledgements.0.min(pause);
        if !rounds.near {
            longest = longest.min(SEEK_NS);
        }
        if self.base.background.first_has_ended() {
            self.end_with_the_last();
            if self.base.background.watches() {
                longest = longest.min(WATCH_NS);
            }
        }
        (seen, longest)
    }

    /// Looks after the nodes. Whether all are within reach.
    fn tend(&self) -> bool {
        self.tick.get().iter().for_each(|tick| tick(self));
        self.free_dropped();
        let _inside = self.base.threads.enter();
        or_end(self.base.pool.losses().tend());
        let near = self.base.pool.nodes().all_near();
        self.base.tell_losses();
        self.take_back();
        self.base.pool.slots().give_back_idle();
        self.local.take_stock();
        near
    }

    /// Frees slots whose sharers have gone, gives empty slabs back, and publishes levels.
    fn keep_house(&self) {
        let _inside = self.base.threads.enter();
        self.also.get().iter().for_each(|also| also());
        farmem_sys::descriptors::spare::keep();
        self.base.pool.forks().end_shares();
        self.base.pool.moves().ask_back();
        let committed = self.base.maps.lock().committed;
        self.base.pool.slots().shrink(self.space.far_needed(committed));
        self.local.publish_levels();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_looked_for_while_there_are_any_to_come() {
        let mut sleep = (TEND_NS, 0);
        let mut look = |in_flight| {
            sleep = until_next_look(sleep, in_flight);
            sleep.0
        };
        assert_eq!([300, 172, 44, 44, 44, 0].map(&mut look), [1, 1, 1, 2, 4, 250].map(|ms| ms * 1_000_000));
        assert_eq!(
            (0..10).map(|_| look(1)).last(),
            Some(TEND_NS),
            "a node that is silent is not asked a thousand times"
        );
    }
}
