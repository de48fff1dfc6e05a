//! The rest of a session when its node is lost, or is left for good.

use super::{Session, say_bye};
use crate::Lost;
use crate::link::Reach;
use farmem_sys::descriptors;
use farmem_sys::raw::Errno;
use farmem_sys::socket;
use std::sync::atomic::Ordering;

/// How long a process whose sockets are closed may take to end, ns.
const ENDS_WITHIN_NS: u64 = 1_000_000_000;

impl Session {
    /// After a loss: whether the memory that is mapped here stays this member's, byte for byte.
    ///
    /// It does if the node's process has ended: a node that ends leaves what is mapped alone, and
    /// the kernel keeps it until the last mapping goes. It does, too, if the node has merely not
    /// answered, while the control connection stands: the node counts the member as long. In every
    /// other case the node may give the memory to another. Waits a second at most.
    pub fn keeps_memory(&self) -> bool {
        if !self.member.mapped {
            return false;
        }
        let stands = || match self.member.control.try_lock() {
            Some(control) => control.link.as_ref().is_some_and(|link| !link.is_cut()),
            // Another thread waits for an answer, on a connection that stands.
            None => true,
        };
        self.member.fell_silent.load(Ordering::Acquire) && stands() || has_ended(self.member.process)
    }

    /// Why the member is lost, if it is.
    pub fn loss(&self) -> Option<Lost> {
        self.member.check().err()
    }

    /// After a loss: whether the node's process has certainly ended. A silent node may come back,
    /// and others may reach it.
    pub fn has_ended(&self) -> bool {
        self.member.is_lost.load(Ordering::Acquire) && self.member.ended.load(Ordering::Acquire)
    }

    /// Leaves the node for good: says goodbye, and every queue pair is lost from here on. The node
    /// takes back what the member still holds.
    pub fn leave(&self) {
        self.member.give_up("this program has left it".into());
        say_bye(&mut self.member.control.lock());
    }

    /// The time, in nanoseconds: the simulator's where the node is.
    pub fn now_ns(&self) -> u64 {
        self.member.reach.now_ns()
    }

    /// Whether another session is with the same life of the same node.
    pub fn is_beside(&self, other: &Session) -> bool {
        self.member.incarnation == other.member.incarnation
    }

    /// Whether the node is a simulator's, whose time is not the system's.
    pub fn is_simulated(&self) -> bool {
        matches!(self.member.reach, Reach::Inside(_))
    }

    /// Sleeps, or lets the simulator's time pass.
    pub fn sleep_ns(&self, ns: u64) {
        self.member.reach.sleep_ns(ns);
    }

    /// [`Session::forget_in_child`] of a session that is not to be dropped either: it is of no more
    /// use.
    pub fn close_in_child(&self) {
        let control = self.member.control.try_lock().unwrap_or_else(|| {
            // Its holder was another thread at the moment of the fork and does not exist here.
            self.member.control.release_after_fork();
            self.member.control.lock()
        });
        { control }.link = None;
        self.member.card.forget_in_child();
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
