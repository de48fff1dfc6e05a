//! Connecting a queue pair of the card's to the node's, over a stream that it lives with.

// A work request names memory; this one names none.
#![allow(unsafe_code)]

use super::host::Host;
use crate::Lost;
use crate::link::Link;
use crate::session::{Membership, SILENT_NS, receive_all, send_now};
use farmem_protocol::wire::{Endpoint, Purpose, Status, variant};
use farmem_sys::process::random_bytes;
use farmem_sys::raw::{self, Errno};
use farmem_sys::verbs::{self, Done, Outcome, RcQueue, Work, WorkRequest};
use zerocopy::{FromZeros, IntoBytes};

/// Verbs on the card at once, of one queue pair.
pub(super) const DEPTH: u64 = 128;
/// How long the first message of a connection may take, retries of the card included.
const FIRST_NS: u64 = 5_000_000_000;
/// Between attempts to connect again.
const RETRY_NS: u64 = 50_000_000;

/// Why there is no queue pair.
enum NoWire {
    /// The stream broke.
    Cut,
    /// This or the other card refused, or no message gets through.
    Card(String),
}

/// A queue pair, by the rules of a connection that was cut: until the grace is over. `new`: it is
/// its first.
pub(super) fn establish(member: &Membership, host: &Host, number: u64, new: bool) -> Result<(Link, RcQueue), Lost> {
    let begun = raw::now_ns();
    let purpose = Purpose::Wire(member.known(), number);
    loop {
        let link = match new {
            true => member.attach(purpose)?,
            false => member.restore(purpose)?,
        };
        match connect(member, host, &link) {
            Ok(queue) => return Ok((link, queue)),
            Err(NoWire::Card(why)) => {
                member.end_if_spared(|| format!("it cannot be reached by RDMA: {why}"))?;
                if raw::now_ns() - begun >= member.grace.as_nanos() as u64 {
                    return Err(member.give_up(format!("it cannot be reached by RDMA: {why}")));
                }
                raw::sleep_ns(RETRY_NS);
            }
            // The next attempt finds out why.
            Err(NoWire::Cut) => raw::sleep_ns(RETRY_NS),
        }
    }
}

/// Whether RDMA works between this machine and the node, tried once.
pub(crate) fn try_once(member: &Membership, number: u64) -> Result<(), String> {
    let host = member.card.host().map_err(|e| e.to_string())?;
    let link = member.attach(Purpose::Wire(member.known(), number)).map_err(|e| e.to_string())?;
    match connect(member, &host, &link) {
        Ok(_) => Ok(()),
        Err(NoWire::Card(why)) => Err(why),
        Err(NoWire::Cut) => Err("the connection was cut".into()),
    }
}

/// Exchanges endpoints, connects, and sends a first message through.
fn connect(member: &Membership, host: &Host, link: &Link) -> Result<RcQueue, NoWire> {
    let here = |e: Errno| NoWire::Card(format!("this machine's card: {e}"));
    let mut bits = [0; 4];
    random_bytes(&mut bits).map_err(|e| NoWire::Card(e.to_string()))?;
    let mut queue = RcQueue::new(&host.domain, DEPTH as u32, u32::from_le_bytes(bits)).map_err(here)?;
    let own = queue.endpoint();
    let said = Endpoint::ready(own.mtu, own.lid, own.number, own.sequence, own.gid);
    send_now(link, said.as_bytes()).map_err(|_| NoWire::Cut)?;
    let mut peer = Endpoint::new_zeroed();
    let until = member.reach.now_ns() + if member.has_spare() { FIRST_NS } else { SILENT_NS };
    receive_all(member.ear(), link, peer.as_mut_bytes(), until).map_err(|_| NoWire::Cut)?;
    if variant::<Status>(peer.status) != Some(Status::Done) {
        return Err(NoWire::Card(format!("the node's card: {}", Errno(peer.error.get() as i32))));
    }
    let peer = verbs::Endpoint {
        number: peer.qpn.get(),
        sequence: peer.psn.get(),
        gid: peer.gid,
        lid: peer.lid.get(),
        mtu: peer.mtu,
    };
    queue.accept(&peer).map_err(here)?;
    // A WRITE of nothing: it needs no key, and proves that packets get there and back.
    let nothing = Work::Write { from: std::ptr::null(), lkey: 0, len: 0, offset: 0, rkey: 0 };
    // SAFETY: it touches no memory.
    unsafe { queue.post(&[WorkRequest { id: 0, told: true, work: nothing }]) }.map_err(|(_, e)| here(e))?;
    let begun = raw::now_ns();
    let mut told = [Done { id: 0, outcome: Outcome::SUCCESS }];
    loop {
        match queue.poll(&mut told).map_err(here)? {
            0 if raw::now_ns() - begun > FIRST_NS => return Err(NoWire::Card("no answer".into())),
            0 => raw::yield_cpu(),
            _ if told[0].outcome == Outcome::SUCCESS => return Ok(queue),
            _ => return Err(NoWire::Card(told[0].outcome.to_string())),
        }
    }
}
