//! A lane's queue pairs, one a node, made on first use.
//!
//! A queue pair that is dropped because its node is lost is never made again: the node is *barred*
//! for this lane, with the reason.
//!
//! A node's number may be another node's later ([`crate::nodes`]). So the life of a number is
//! compared before anything that is kept for it is used. Nothing is under way to the node before by
//! then, and words name no home of it.

use crate::losses::Losses;
use crate::nodes::Nodes;
use farmem_fabric::{Completion, Lost, QueuePair, Waiter};
use std::time::Duration;

/// The result of a look at the nodes: the node that cannot be reached any more, and why.
pub(super) type Looked = Result<(), (usize, Lost)>;

/// The queue pairs. They know of no operation.
pub(super) struct Links {
    /// By node.
    list: Vec<Option<QueuePair>>,
    /// By node: why there is no queue pair, and will be none.
    barred: Vec<Option<Lost>>,
    /// By node: which of those that have its number these two are of.
    lives: Vec<u32>,
    waiter: Waiter,
}

impl Links {
    pub fn new() -> Links {
        Links { list: Vec::new(), barred: Vec::new(), lives: Vec::new(), waiter: Waiter::new() }
    }

    pub fn is_held_up(&self) -> bool {
        self.list.iter().flatten().any(QueuePair::is_held_up)
    }

    pub fn take_sent(&mut self) -> u64 {
        self.list.iter_mut().flatten().map(QueuePair::take_sent).sum()
    }

    pub fn has_away(&self) -> bool {
        self.list.iter().flatten().any(QueuePair::is_away)
    }

    pub fn leave_away(&mut self) {
        for link in &mut self.list {
            link.take_if(|link| link.is_away());
        }
    }

    pub fn forget_in_child(&mut self) {
        self.list.drain(..).flatten().for_each(QueuePair::forget_in_child);
        self.barred.clear();
        self.lives.clear();
    }

    /// Whether some node has verbs to answer.
    pub fn any_under_way(&self) -> bool {
        self.list.iter().flatten().any(|link| link.in_flight() > 0)
    }

    /// Whether a node cannot be reached by this lane any more.
    pub fn is_barred(&self, nodes: &Nodes, node: u32) -> bool {
        self.why_barred(node as usize).is_some() && self.is_of(nodes, node as usize)
    }

    /// Whether what is kept for a number is of the node that has it now.
    #[inline]
    fn is_of(&self, nodes: &Nodes, node: usize) -> bool {
        self.lives[node] == nodes.all()[node].life()
    }

    pub fn why_barred(&self, node: usize) -> Option<&Lost> {
        self.barred.get(node).and_then(Option::as_ref)
    }

    /// The queue pair to a node, made if there is none. `None`: there can be none.
    #[inline]
    pub fn to(&mut self, losses: Losses<'_>, node: u32) -> Option<&mut QueuePair> {
        let node = node as usize;
        if self.list.get(node).is_none_or(Option::is_none) || !self.is_of(&losses.tables.nodes, node) {
            self.make(losses, node)?;
        }
        self.list[node].as_mut()
    }

    #[cold]
    fn make(&mut self, losses: Losses<'_>, node: usize) -> Option<()> {
        if self.list.len() <= node {
            self.list.resize_with(node + 1, || None);
            self.barred.resize_with(node + 1, || None);
            let all = losses.tables.nodes.all();
            self.lives.extend((self.lives.len()..=node).map(|number| all[number].life()));
        }
        if !self.is_of(&losses.tables.nodes, node) {
            (self.list[node], self.barred[node]) = (None, None);
            self.lives[node] = losses.tables.nodes.all()[node].life();
        }
        if self.barred[node].is_some() {
            return None;
        }
        match losses.tables.nodes.queue_pair(node) {
            Ok(link) => {
                self.list[node] = Some(link);
                Some(())
            }
            Err(lost) => {
                self.abandon(losses, node, lost);
                None
            }
        }
    }

    /// Drops a queue pair. The next use makes another.
    pub fn drop_link(&mut self, node: usize) {
        self.list[node] = None;
    }

    /// Drops the queue pair to a node for good. If the node is lost, words name no home there when
    /// this returns, but homes whose memory is mapped.
    #[cold]
    pub fn abandon(&mut self, losses: Losses<'_>, node: usize, lost: Lost) {
        self.list[node] = None;
        if !self.is_of(&losses.tables.nodes, node) {
            return;
        }
        if losses.tables.nodes.all()[node].session().standing().is_lost() {
            losses.lose(node, &lost);
        }
        self.barred[node] = Some(lost);
    }

    /// Sends off what was posted.
    #[inline]
    pub fn ring(&mut self) -> Looked {
        self.list.iter_mut().enumerate().try_for_each(|(node, link)| match link {
            Some(link) if link.in_flight() > 0 => link.doorbell().map_err(|lost| (node, lost)),
            _ => Ok(()),
        })
    }

    /// Looks at all nodes. [`Links::take_came`] has the completions.
    pub fn poll(&mut self) -> Looked {
        self.waiter.poll(&mut self.list)
    }

    /// Waits until any node has answered.
    pub fn wait(&mut self, limit: Duration) -> Looked {
        self.waiter.wait(&mut self.list, limit)
    }

    pub fn nothing_came(&self) -> bool {
        self.waiter.came.is_empty()
    }

    /// Takes completions, each with its node. The emptied list goes back by [`Links::put_back`], so
    /// that its memory is used again.
    pub fn take_came(&mut self) -> Vec<(usize, Completion)> {
        std::mem::take(&mut self.waiter.came)
    }

    pub fn put_back(&mut self, came: Vec<(usize, Completion)>) {
        self.waiter.came = came;
    }
}
