//! Whether a member still stands at its node: how it is lost, given up or left, and what is then
//! left of it.
//!
//! A [`Standing`] is lent by [`Session::standing`]. It moves no bytes and asks for no memory.

use super::{Membership, Session, Spare, say_bye};
use crate::Lost;
use farmem_sys::descriptors;
use farmem_sys::raw::Errno;
use farmem_sys::socket;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long a process whose sockets are closed may take to end, ns.
const ENDS_WITHIN_NS: u64 = 1_000_000_000;

/// A session's part for losses: whether the node is there, and whether the member still is there.
#[derive(Clone, Copy)]
pub struct Standing<'a> {
    member: &'a Membership,
}

impl Session {
    /// Of a member that was given up, to which no goodbye was said: a session in its place, with the
    /// memory that the node has kept, if the node answers again. `None`: not yet. What queue pairs posted
    /// before that were dropped by then takes no effect any more. Of later ones see
    /// [`Session::pass_turns`].
    ///
    /// # Errors
    /// The memory is gone.
    pub fn again(&self) -> Result<Option<Session>, Lost> {
        let again = self.member.again()?;
        Ok(again.map(|member| Session { member: Arc::new(member) }))
    }

    /// Of such a member: nothing takes effect any more that was posted on its queue pairs, of which those
    /// with WRITEs under way have been dropped. False: the node does not answer now.
    #[must_use]
    pub fn pass_turns(&self) -> bool {
        self.member.pass_turns()
    }

    /// The member's standing at its node.
    pub fn standing(&self) -> Standing<'_> {
        Standing { member: &self.member }
    }
}

impl Standing<'_> {
    /// After a loss: whether the memory that is mapped here stays this member's, byte for byte.
    ///
    /// It does if the node's process has ended: a node that ends leaves what is mapped alone, and
    /// the kernel keeps it until the last mapping goes. It does, too, if the node has merely not
    /// answered, while the control connection stands: the node counts the member as long. In every
    /// other case the node may give the memory to another. Waits a second at most.
    pub fn keeps_memory(self) -> bool {
        if !self.member.mapped {
            return false;
        }
        let stands = || match self.member.control.try_lock() {
            Some(control) => control.link.as_ref().is_some_and(|link| !link.is_cut()),
            // Another thread waits for an answer, on a connection that stands.
            None => true,
        };
        self.member.health.fell_silent.load(Ordering::Acquire) && stands() || has_ended(self.member.process)
    }

    /// Why the member is lost, if it is.
    pub fn loss(self) -> Option<Lost> {
        self.member.check().err()
    }

    /// After a loss: whether the node's process has certainly ended. A silent node may come back,
    /// and others may reach it.
    pub fn node_has_ended(self) -> bool {
        self.member.health.is_lost.load(Ordering::Acquire) && self.member.health.ended.load(Ordering::Acquire)
    }

    /// Leaves the node for good: says goodbye, and every queue pair is lost from here on. The node
    /// takes back what the member still holds.
    pub fn leave(self) {
        self.member.give_up("this program has left it".into());
        say_bye(&mut self.member.control.lock());
    }

    /// Gives the node up for a reason that the caller has found. Returns the loss, also if it was
    /// lost before.
    pub fn give_up(self, reason: String) -> Lost {
        self.member.give_up(reason)
    }

    /// Whether the member was found to be lost, by whichever call.
    pub fn is_lost(self) -> bool {
        self.member.check().is_err()
    }

    /// Whether the node's machine was within reach when it was looked after last.
    pub fn is_near(self) -> bool {
        self.member.is_near()
    }

    /// From now on the holder, which knows this session by a number, is asked whether it can do
    /// without it. Not where slabs are mapped: a mapping does not go silent.
    pub fn held_by(self, holder: &'static dyn Spare, number: usize) {
        if !self.member.mapped {
            let _ = self.member.health.spare.set((holder, number));
        }
    }

    /// Whether the node of a member that is lost may have its memory still, and can be asked for it later
    /// ([`Session::again`]): slabs are reached by frames.
    pub fn may_come_back(self) -> bool {
        !self.member.mapped && !self.member.card.wanted && !self.member.health.ended.load(Ordering::Acquire)
    }

    /// Of a member that is lost: says goodbye if the connection still stands, so that the node
    /// keeps nothing for it. Waits for nobody.
    pub fn hang_up(self) {
        if let Some(mut control) = self.member.control.try_lock() {
            say_bye(&mut control);
        }
    }
}

/// Whether a process has ended, or does within [`ENDS_WITHIN_NS`]. False where that cannot be
/// known. (If its number is another's by now, that one lives.)
fn has_ended(process: u32) -> bool {
    if process == 0 {
        return false;
    }
    match descriptors::pidfd_of(process) {
        Ok(pidfd) => {
            let ended = socket::wait(pidfd, true, false, ENDS_WITHIN_NS) != 0;
            descriptors::close(pidfd);
            ended
        }
        Err(e) => e == Errno(libc::ESRCH),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_ended_when_its_parent_has_not_looked_yet_too() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!has_ended(child.id()) && !has_ended(0));
        child.kill().unwrap();
        assert!(has_ended(child.id()));
        child.wait().unwrap();
        assert!(has_ended(child.id()));
    }
}
