//! Events at a node that its operator may want to read as they happen.
//!
//! The engine tells them to one listener, which the daemon sets ([`Events::listen`]). Workers
//! call it between verbs, so it must return at once.

use super::Member;
use super::shares::Peer;
use super::volumes::Volume;
use farmem_protocol::region::RegionName;
use farmem_protocol::wire::{Broken, Verdict};
use std::sync::OnceLock;

/// Hears of events.
type Listener = Box<dyn Fn(Event<'_>) + Send + Sync>;

/// The listener, once there is one.
#[derive(Default)]
pub struct Events(OnceLock<Listener>);

impl Events {
    /// Has `listener` hear of events from now on. Only the first one does.
    pub fn listen(&self, listener: impl Fn(Event<'_>) + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(listener));
    }

    /// Tells the listener, if there is one.
    pub fn tell(&self, event: Event<'_>) {
        if let Some(listener) = self.0.get() {
            listener(event);
        }
    }
}

/// One event.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// A process became a member.
    Joined(&'a Member),
    /// A process that a member is about to fork will be a member.
    Announced(&'a Member),
    /// A member is gone, with the bytes that it held.
    Left(&'a Member, Leaving, u64),
    /// A connection was refused.
    Refused(Peer, Refused),
    /// A member's connection stands again, or one more of its queue pairs.
    Attached(&'a Member),
    /// The last connection of a member has closed. It is kept for its grace, in milliseconds.
    Cut(&'a Member, u64),
    /// A member has one more slab, or has not, for this reason.
    Granted(&'a Member, Result<(), &'static str>),
    /// A member has given a slab back.
    Released(&'a Member),
    /// Bytes of a member that does not answer were put aside ([`super::spill`]).
    Aside(&'a Member, u64),
    /// A slab of a member was put aside, and cannot be read again.
    Unreadable(&'a Member),
    /// A member has made a region although there is one of this name: that one was made with a
    /// token and this one without, or the other way round.
    Beside(&'a Member, &'a RegionName),
    /// A volume, and what became of it.
    Volume(&'a Volume, VolumeEvent),
}

/// The fate of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeEvent {
    /// A host swaps to it from now on.
    Made,
    /// A stream of it stands.
    Attached,
    /// Its last stream has closed. It is kept for its grace, in milliseconds.
    Cut(u64),
    /// Its host needs it no longer.
    Freed,
    /// It had no stream for as long as it is kept.
    Forgotten,
    /// Its token was revoked, or has expired.
    Revoked,
}

/// Why a member is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// It said goodbye.
    Farewell,
    /// Its process has ended, as its Unix socket shows.
    Ended,
    /// It had no connection for as long as it is kept.
    Grace,
    /// Its run is over.
    Run,
    /// It broke the rules, and held nothing.
    Broke,
    /// It held nothing, and a newcomer needed its place.
    GaveWay,
    /// Its token was revoked, or its time is over.
    Revoked,
    /// Another opener of its region had it expelled.
    Expelled,
}

/// Why a connection was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The answer to its Hello.
    Verdict(Verdict),
    /// It speaks this version of the protocol.
    Version(u16),
    /// It broke a rule of the stream.
    Broken(Broken),
    /// It did not say who it is in time.
    Silent,
    /// It had not said who it is when there were too many such connections.
    Crowded,
}
