//! A member that was given up, and is taken up again with the memory that its node has kept for it.
//!
//! ```text
//!  given up ── its connection for control stands, and no goodbye was said ──► the node answers again
//!     ─► Rejoin: the same member, on a connection of its own
//!     ─► Attach, for each queue pair that was dropped with WRITEs under way: its turn is another
//!        connection's now
//!     ─► a new membership; the earlier one stays lost for good
//! ```
//!
//! *Late WRITEs.* What the member has posted before may lie in the node's sockets. It would take effect
//! after what is posted from now on. So the turns of those queue pairs are passed on first: the node
//! checks a connection's turn before each of its verbs. A queue pair that its owner drops later is not
//! among them: before the owner posts anything, [`Membership::pass_turns`] passes its turn on, too.

#![cfg_attr(test, allow(unsafe_code))] // Words of tests.

use super::{Control, LOOK, Membership, Outage};
use crate::Lost;
use crate::session::dial::NoDial;
use crate::verbs::Card;
use farmem_protocol::wire::{Ask, Purpose};
use std::sync::atomic::{AtomicU64, Ordering};

/// How long a node that may have woken is waited for, ns.
const MOMENT_NS: u64 = 1_000_000;

impl Membership {
    /// Looks whether the node of a member that was given up answers again. `None`: not yet. The answer is
    /// the same member's, as if it had not been lost. Takes half a second at most.
    ///
    /// # Errors
    /// The node does not have the member any more, or its process has ended.
    pub fn again(&self) -> Result<Option<Membership>, Lost> {
        let Some(mut control) = self.control.try_lock() else { return Ok(None) };
        if !self.may_have_woken(&mut control) {
            return Ok(None);
        }
        let outage = control.outage.get_or_insert_with(|| Outage::cut(self.reach.now_ns()));
        let over = self.is_over(outage);
        let link = match self.dial(Purpose::Rejoin(self.known()), LOOK) {
            Ok((link, _)) => link,
            Err(NoDial::Silent) => return Ok(None),
            Err(failure) => return self.judge(failure, outage, over).map(|()| None),
        };
        if !self.pass_turns() {
            return Ok(None);
        }
        // Its goodbye would be the new one's.
        control.link = None;
        let again = Membership {
            node: self.node.clone(),
            reach: self.reach.clone(),
            card: Card::default(),
            control: super::Lock::new(Control::new(None, control.number)),
            slabs: Default::default(),
            next_queue: AtomicU64::new(self.next_queue.load(Ordering::Relaxed)),
            health: Default::default(),
            ..*self
        };
        again.controlled_by(link, control.number);
        Ok(Some(again))
    }

    /// Nothing takes effect any more that was posted on queue pairs that have been dropped so far. False:
    /// the node does not answer now. Takes half a second for each at most.
    pub fn pass_turns(&self) -> bool {
        let mut unanswered = std::mem::take(&mut *self.health.unanswered.lock());
        let passes = |queue: &u64| self.dial(Purpose::Attach(self.known(), *queue), LOOK).is_ok();
        let passed = unanswered.iter().take_while(|queue| passes(queue)).count();
        let left = unanswered.split_off(passed);
        let all = left.is_empty();
        self.health.unanswered.lock().extend(left);
        all
    }

    /// Whether the node may answer again: it does on the connection for control, or that is gone.
    fn may_have_woken(&self, control: &mut Control) -> bool {
        match &control.link {
            // A late answer, to an earlier question, is as good.
            Some(link) if !link.is_cut() => self.ask_by(control, Ask::Ping, MOMENT_NS).is_some(),
            _ => true,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::session::simulated::Simulated;
    use crate::{ConnectOptions, QueuePair, Session};
    use farmem_protocol::addr::{SLAB_BYTES, SlabId};
    use farmem_sim::{Network, Weather};
    use std::sync::Arc;
    use std::time::Duration;

    const MS: u64 = 1_000_000;

    fn session(network: &Arc<Network>) -> Session {
        let (timeout, grace) = (Duration::from_secs(2), Duration::from_secs(5));
        let options = ConnectOptions { timeout, grace, run: [1; 16], pid: 1, ..ConnectOptions::default() };
        Session::simulated(&Arc::new(Simulated(Arc::clone(network))), &options).unwrap()
    }

    fn done(queue: &mut QueuePair) {
        let mut done = Vec::new();
        queue.doorbell().unwrap();
        while queue.wait(&mut done, Duration::from_secs(1)).unwrap() == 0 {}
    }

    fn write(queue: &mut QueuePair, slab: SlabId, value: &u64) {
        // SAFETY: the word outlives the queue pair.
        unsafe { queue.write(1, slab, 0, std::ptr::from_ref(value).cast(), 8) };
    }

    fn read(queue: &mut QueuePair, slab: SlabId) -> u64 {
        let mut word = 0_u64;
        // SAFETY: the word outlives the operation, which is awaited.
        unsafe { queue.read(1, slab, 0, (&raw mut word).cast(), 8) };
        done(queue);
        word
    }

    /// What was under way when a member was given up takes no effect any more, however late the node has it.
    #[test]
    fn a_member_that_is_back_meets_no_write_of_before() {
        let network = Network::new(Weather::default(), SLAB_BYTES);
        let before = session(&network);
        let (slab, words) = (before.grant().unwrap().id, [11, 12, 13_u64]);
        let mut queue = before.queue_pair().unwrap();
        write(&mut queue, slab, &words[0]);
        done(&mut queue);
        write(&mut queue, slab, &words[1]);
        queue.doorbell().unwrap();
        network.cut_and_hold_up(3_000 * MS);
        before.standing().give_up("in this test".into());
        drop(queue);
        let again = before.again().unwrap().expect("the node is there");
        assert!(before.standing().is_lost() && !again.standing().is_lost());
        let mut queue = again.queue_pair().unwrap();
        assert_eq!(read(&mut queue, slab), 11);
        write(&mut queue, slab, &words[2]);
        done(&mut queue);
        network.pass(5_000 * MS);
        assert_eq!(read(&mut queue, slab), 13);
        // The earlier one takes nothing with it.
        drop(before);
        network.pass(10_000 * MS);
        assert_eq!((read(&mut queue, slab), again.grant().is_err(), network.lent()), (13, true, SLAB_BYTES));
    }

    #[test]
    fn a_stopped_node_is_asked_until_it_answers() {
        let network = Network::new(Weather::default(), SLAB_BYTES);
        let before = session(&network);
        let slab = before.grant().unwrap().id;
        network.stop_node(2_000 * MS);
        before.standing().give_up("in this test".into());
        let begun = network.now_ns();
        let again = std::iter::repeat_with(|| {
            network.pass(250 * MS);
            before.again().unwrap()
        });
        let again = again.take(20).flatten().next().expect("it answers again");
        assert!((2_000..2_600).contains(&((network.now_ns() - begun) / MS)));
        assert_eq!(read(&mut again.queue_pair().unwrap(), slab), 0);
        // Its process has ended: that is no time to wait.
        again.standing().give_up("in this test".into());
        network.kill_node();
        let ends = (0..20).find(|_| {
            network.pass(250 * MS);
            again.again().is_err()
        });
        assert!(ends.is_some_and(|rounds| rounds < 6), "{ends:?}");
    }
}
