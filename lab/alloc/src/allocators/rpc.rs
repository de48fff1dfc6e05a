//! The memory node's core allocates: one call each way. Three kinds, by what it does besides.
//!
//! | kind | in an allocation's call | in a free's |
//! |---|---|---|
//! | pre-registered (FUSEE's and Patronus's way: *Premmap-RPC*) | look-up | look-up |
//! | windows | look-up, a group of windows bound to the client's queue pairs | invalidates |
//! | on demand (*OnDemand-RPC*) | look-up, a memory region registered | deregistered |

use std::cell::RefCell;
use std::rc::Rc;

use super::buddy::Buddy;
use super::{Allocator, Client, OldKeys};
use crate::ledger::{CHUNK, Grant, Standing};
use crate::sim::clock::Nanos;
use crate::sim::costs::{Costs, us};
use crate::sim::node::Node;

/// What the core does besides looking for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    PreRegistered,
    /// Windows.
    Windows,
    /// Regions.
    OnDemand,
}

/// It.
pub struct Rpc {
    node: Rc<Node>,
    kind: Kind,
    chunks: u32,
    buddy: RefCell<Buddy>,
}

impl Rpc {
    /// On this node.
    pub fn new(node: &Rc<Node>, kind: Kind, chunks: u32) -> Rc<Rpc> {
        Rc::new(Rpc { node: node.clone(), kind, chunks, buddy: RefCell::new(Buddy::new(chunks)) })
    }

    fn costs(&self) -> &Costs {
        &self.node.costs
    }

    fn opening(&self, order: u8) -> Nanos {
        match self.kind {
            Kind::PreRegistered => 0,
            Kind::Windows => us(f64::from(self.costs().window.group) * self.costs().window.bind),
            Kind::OnDemand => self.costs().register(CHUNK << order),
        }
    }

    fn closing(&self) -> Nanos {
        match self.kind {
            Kind::PreRegistered => 0,
            Kind::Windows => us(f64::from(self.costs().window.group) * self.costs().window.invalidate),
            Kind::OnDemand => us(self.costs().registration.deregister),
        }
    }
}

impl Allocator for Rpc {
    async fn allocate(self: &Rc<Self>, client: &Client, order: u8) -> Option<Grant> {
        let taken = client
            .link
            .call(self.costs().core.call, || {
                let chunk = self.buddy.borrow_mut().take(order);
                (chunk, if chunk.is_some() { self.opening(order) } else { 0 })
            })
            .await;
        taken.map(|chunk| Grant { chunk, order, token: 0 })
    }

    async fn free(self: &Rc<Self>, client: &Client, grant: Grant) {
        let give = || (self.buddy.borrow_mut().give(grant.chunk, grant.order), self.closing());
        client.link.call(self.costs().core.call, give).await;
    }

    fn survey<'a>(&'a self, _: &'a [u64]) -> impl Fn(u32) -> Standing + 'a {
        let free = self.buddy.borrow().map(self.chunks);
        move |chunk| if free[chunk as usize] { Standing::Free } else { Standing::Held(None) }
    }

    fn metadata_bytes(&self) -> u64 {
        // The core's own: a buddy system needs two bits a chunk at least.
        u64::from(self.chunks) / 4
    }

    fn old_keys(&self) -> OldKeys {
        if self.kind == Kind::PreRegistered { OldKeys::ForEver } else { OldKeys::Dead }
    }
}
