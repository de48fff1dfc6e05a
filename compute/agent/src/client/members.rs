//! A program as a member of the nodes that its memory is at.

use super::{ConnectError, ReachError, member_options};
use crate::word::MAX_NODES;
use farmem_fabric::{NodeAddr, QueuePair, Session, Transport};
use farmem_sys::sync::Lock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a connection to the node that was cut may take to come back.
const GRACE: Duration = Duration::from_secs(10);

/// The program as a member of a node that its memory is at.
pub(super) struct Member {
    /// Queue pairs that no thread uses, with nothing under way. A new one for every
    /// [`Reach`](super::Reach) would be a connection for each. `None` as below.
    idle: Option<Lock<Vec<QueuePair>>>,
    /// `None` only while it is dropped.
    session: Option<Session>,
}

impl Member {
    /// Joins the node that the agent names, as `tcp HOST:PORT NUMBER` or `verbs HOST:PORT NUMBER`.
    /// Returns the number, too.
    pub(super) fn join(text: &str, patience: Duration) -> Result<(u64, Member), ConnectError> {
        let nonsense = || ConnectError::System(format!("the agent names no node: {text:?}"));
        let (way, at) = text.split_once(' ').ok_or_else(nonsense)?;
        let (at, _) = at.split_once(' ').ok_or_else(nonsense)?;
        let transport = match way {
            "tcp" => Transport::Tcp,
            "verbs" => Transport::Verbs,
            _ => return Err(nonsense()),
        };
        let number = Member::number_in(text).ok_or_else(nonsense)?;
        let node: NodeAddr = at.parse().map_err(|_| nonsense())?;
        let session = Session::connect(&node, &member_options(patience, GRACE, transport)?)
            .map_err(|e| ConnectError::Node(e.to_string()))?;
        Ok((number, Member { idle: Some(Lock::new(Vec::new())), session: Some(session) }))
    }

    /// The number of the node in such a text.
    pub(super) fn number_in(text: &str) -> Option<u64> {
        text.rsplit(' ').next()?.parse().ok().filter(|number| *number < MAX_NODES)
    }

    pub(super) fn owner(&self) -> u16 {
        self.session.as_ref().map_or(0, Session::owner)
    }

    pub(super) fn queue_pair(&self) -> Result<QueuePair, ReachError> {
        let (Some(idle), Some(session)) = (&self.idle, &self.session) else { return Err(ReachError::Forked) };
        // Of a statement of its own: the lock ends with it.
        let kept = idle.lock().pop();
        if let Some(queue) = kept {
            return Ok(queue);
        }
        session.queue_pair().map_err(|lost| if session.standing().is_lost() { lost.into() } else { ReachError::Full })
    }

    /// Keeps a queue pair for the next thread. With verbs under way it is dropped: only then are
    /// their buffers free.
    pub(super) fn keep(&self, queue: QueuePair) {
        if let Some(idle) = &self.idle
            && queue.in_flight() == 0
            && !queue.is_away()
        {
            idle.lock().push(queue);
        }
    }

    /// In a forked child: closes the descriptors and says nothing.
    fn forget_in_child(&mut self) {
        if let Some(idle) = self.idle.take() {
            if let Some(mut idle) = idle.try_lock() {
                idle.drain(..).for_each(QueuePair::forget_in_child);
            }
            // Locked by a thread that is not here, it may be anything.
            std::mem::forget(idle);
        }
        if let Some(session) = self.session.take() {
            session.forget_in_child();
        }
    }
}

/// The program as a member of each node that its memory is at or was at, by the nodes' numbers.
#[derive(Default)]
pub(super) struct Members {
    all: Lock<Vec<(u64, Arc<Member>)>>,
    /// The number of the first.
    first: AtomicU64,
    /// A block is at another node than the first, or has got another key.
    moved: AtomicBool,
}

impl Members {
    pub(super) fn add(&self, number: u64, member: Member) {
        let mut all = self.all.lock();
        if all.is_empty() {
            self.first.store(number, Ordering::Release);
        }
        all.push((number, Arc::new(member)));
    }

    /// A block is at the node of this number.
    pub(super) fn reached(&self, number: u64) {
        if number != self.first.load(Ordering::Acquire) {
            self.have_moved();
        }
    }

    /// From now on a piece's own key is not what opens it.
    pub(super) fn have_moved(&self) {
        self.moved.store(true, Ordering::Release);
    }

    /// The number of the only node that blocks were ever at, by the keys that their pieces have.
    pub(super) fn only(&self) -> Option<u64> {
        (!self.moved.load(Ordering::Acquire)).then(|| self.first.load(Ordering::Acquire))
    }

    pub(super) fn of(&self, number: u64) -> Option<Arc<Member>> {
        self.all.lock().iter().find(|(of, _)| *of == number).map(|(_, member)| Arc::clone(member))
    }

    /// The member that was added last, with the number of its node. `None`: memory is mapped.
    pub(super) fn last(&self) -> Option<(u64, Arc<Member>)> {
        self.all.lock().last().cloned()
    }

    /// In a forked child: closes the descriptors and says nothing.
    pub(super) fn forget_in_child(self: &Arc<Self>) {
        let Some(mut all) = self.all.try_lock() else {
            // Locked by a thread that is not here, they may be anything: they are never dropped.
            std::mem::forget(Arc::clone(self));
            return;
        };
        for (_, member) in all.drain(..) {
            match Arc::try_unwrap(member) {
                Ok(mut member) => member.forget_in_child(),
                // In use by a thread that is not here.
                Err(member) => std::mem::forget(member),
            }
        }
    }
}
