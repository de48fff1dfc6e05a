//! Slots after a fork.
//!
//! A fork leaves two processes whose page tables name the same slots. From then
//! on, for every slab held at that moment, each side *shares* it: it takes no new
//! slots there and overwrites none (a page that changed goes to a slot in a slab
//! of its own), until the other side and all its descendants are gone. The node,
//! told before the fork, counts both as holders, so that neither's end takes the
//! slab from the other.
//!
//! Each side learns by a socket pair, made before the fork, that the other is gone. The parent
//! keeps one end and the child the other. Every later descendant of either inherits that side's
//! end, which is right, because it can reach the slots too. End of file on one's own end therefore
//! means that no process of the other side is left (or that all have called exec). The kernel keeps
//! this promise in whichever way they ended.
//!
//! ```text
//!           fork                    EOF on P's end
//! parent ────┬──── shared ─────────────────┬──── own again
//!            │ P ══ C (socket pair)        │
//! child      └──── shared ──── exec or exit┘
//! ```

use crate::held::{Held, Slabs};
use crate::homes::{Home, Homes};
use crate::losses::Losses;
use crate::moves::Dropped;
use crate::protect::Disk;
use crate::slab::SlabSlots;
use crate::tables::Tables;
use farmem_fabric::{ForkTicket, Lost, Session};
use farmem_sys::descriptors;
use farmem_sys::raw;

/// One fork's sharing, as one of its sides keeps it.
pub(crate) struct Share {
    pub fd: i32,
    /// The slabs shared: their indices, and serial numbers. One that was given back meanwhile has
    /// left its index to another.
    slabs: Vec<(u32, u64)>,
}

impl Share {
    fn other_side_gone(&self) -> bool {
        raw::recv_nowait(self.fd, &mut [0]) == Ok(0)
    }
}

/// A place on the disk of a slab that this process has left, and that others can still read.
#[derive(Clone, Copy)]
pub(crate) struct SharedPlace {
    /// The slab's.
    pub serial: u64,
    /// Forks of which the other side has not gone yet.
    pub sharers: u32,
    pub home: Home,
}

/// Made by [`Forks::prepare`]; it goes to exactly one of the three ends.
pub struct ForkShare {
    /// By node; none for those that are lost or left. Of a lost one whose memory is mapped the
    /// child inherits the mappings, and needs no more.
    pub(crate) tickets: Vec<Option<ForkTicket>>,
    pub(crate) parent_fd: i32,
    pub(crate) child_fd: i32,
    /// The disk's file, for the child.
    pub(crate) disk: Option<i32>,
}

/// The steps of a fork, in the order in which a process takes them.
#[derive(Clone, Copy)]
pub struct Forks<'a> {
    pub(crate) tables: &'a Tables,
    pub(crate) held: &'a Held,
    pub(crate) losses: Losses<'a>,
}

impl Forks<'_> {
    /// Before a fork: tells the nodes and makes the socket pair. From here until one of the two
    /// calls below, no other thread may use the pool (the pager has stopped them).
    ///
    /// # Errors
    /// A node is lost, and a page with it. Nothing is prepared.
    pub fn prepare(self) -> Result<ForkShare, Lost> {
        let mut tickets = Vec::new();
        for (number, node) in self.tables.nodes.all().iter().enumerate() {
            let ticket = node.is_there().then(|| node.session().fork_ticket());
            if let Some(Err(lost)) = &ticket {
                self.losses.lose(number, lost);
                if let Err(lost) = self.losses.anything_lost() {
                    tickets.into_iter().flatten().for_each(ForkTicket::abandon);
                    return Err(lost);
                }
            }
            tickets.push(ticket.and_then(Result::ok));
        }
        self.tables.sealed.fork();
        farmem_sys::verbs::before_fork();
        // Without a socket pair (no descriptors left) neither side ever learns that the other is
        // gone, and what is shared stays shared: more far memory is used, nothing is lost. Nor
        // where a vfork child forks: its parent names the same slots and has neither end, so that
        // the child's exit would look like the end of all who do.
        let pair = if raw::is_away() { None } else { descriptors::socket_pair().ok() };
        let (parent_fd, child_fd) = pair.unwrap_or((-1, -1));
        // No other thread asks the disk for errors between here and the fork.
        let disk = self.tables.protection.disk().and_then(Disk::before_fork);
        Ok(ForkShare { tickets, parent_fd, child_fd, disk })
    }

    /// In the parent, after the fork or its failure.
    pub fn parent(self, share: ForkShare, forked: bool) {
        farmem_sys::verbs::after_fork();
        descriptors::close(share.child_fd);
        share.disk.into_iter().for_each(descriptors::close);
        let tickets = share.tickets.into_iter().flatten();
        if forked {
            tickets.for_each(ForkTicket::handed_over);
            self.share(share.parent_fd);
        } else {
            tickets.for_each(ForkTicket::abandon);
            descriptors::close(share.parent_fd);
        }
    }

    /// In the child: sessions of its own, and everything inherited is shared.
    ///
    /// # Errors
    /// A node is lost to the child, and a page with it.
    pub fn child(self, share: ForkShare) -> Result<(), Lost> {
        farmem_sys::verbs::after_fork();
        descriptors::close(share.parent_fd);
        self.become_child(share, Session::close_in_child)
    }

    /// [`Forks::child`] where parent and child are one process.
    #[cfg(feature = "lab")]
    pub(crate) fn child_in_place(self, share: ForkShare) -> Result<(), Lost> {
        self.become_child(share, |_| ())
    }

    /// Makes sessions of the child's own by its tickets, and shares all slabs. `leaves` is called
    /// for each of the parent's sessions.
    fn become_child(self, share: ForkShare, leaves: impl Fn(&Session)) -> Result<(), Lost> {
        self.losses.forget_away();
        for (number, ticket) in share.tickets.into_iter().enumerate() {
            let Some(ticket) = ticket else { continue };
            let node = &self.tables.nodes.all()[number];
            let inherited = node.session();
            match Session::from_ticket(ticket) {
                Ok(session) => {
                    node.renew(session);
                    self.tables.watch_over(number);
                }
                Err(e) => {
                    let lost = Lost { node: inherited.node().to_owned(), reason: e.to_string() };
                    self.losses.lose(number, &lost);
                }
            }
            // Not dropped: it names the mappings that the child's own session has now.
            leaves(inherited);
        }
        self.tables.protection.disk().into_iter().for_each(|disk| disk.begin_in_child(share.disk));
        self.held.slabs.lock().leave_places();
        self.share(share.child_fd);
        if !self.tables.sealed.in_child() {
            let reason = "a chain of 65 535 forks ends here: there are no more keys for --seal".to_owned();
            return Err(Lost { node: "this process".to_owned(), reason });
        }
        self.losses.anything_lost()
    }

    fn share(self, fd: i32) {
        let mut slabs = self.held.slabs.lock();
        let slabs = &mut *slabs;
        let mut held = Vec::new();
        for (index, slab) in slabs.list.iter_mut().enumerate() {
            if let Some(slab) = slab {
                slab.sharers += 1;
                self.tables.homes.set_shared(index as u32, true);
                held.push((index as u32, slab.serial));
                let left = slabs.places.iter_mut().filter(|place| place.serial == slab.serial);
                left.for_each(|place| place.sharers += 1);
            }
        }
        slabs.shares.push(Share { fd, slabs: held });
    }

    /// Looks whether other sides have gone, and makes what was shared with them own again.
    pub fn end_shares(self) {
        self.held.slabs.lock().end_shares(&self.tables.homes);
    }
}

impl Slabs {
    /// [`Forks::end_shares`] under the lock. Returns whether a slab became own again.
    pub(crate) fn end_shares(&mut self, homes: &Homes) -> bool {
        let (list, places) = (&mut self.list, &mut self.places);
        let mut freed = false;
        self.shares.retain(|share| {
            let gone = share.other_side_gone();
            if gone {
                descriptors::close(share.fd);
                for &(index, serial) in &share.slabs {
                    let left = places.iter_mut().filter(|place| place.serial == serial);
                    left.for_each(|place| place.sharers -= 1);
                    let same = |slab: &&mut SlabSlots| slab.serial == serial;
                    if let Some(slab) = list[index as usize].as_mut().filter(same) {
                        slab.sharers -= 1;
                        freed |= slab.sharers == 0;
                        homes.set_shared(index, slab.sharers > 0);
                    }
                }
            }
            !gone
        });
        // Nobody else is left that reads them.
        let places = self.places.extract_if(.., |place| place.sharers == 0).collect::<Vec<_>>();
        for SharedPlace { home, .. } in places {
            self.drop_later(Dropped { home: Some(home), ..Dropped::default() });
        }
        freed
    }
}
