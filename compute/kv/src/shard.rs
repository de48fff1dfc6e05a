//! One front end's view of one shard, in parts. Each part has the parts that it uses, and a step
//! belongs to the part that has what it needs:
//!
//! ```text
//!  reach ◄─ space ◄─┐
//!    ▲ ◄─── near ◄──┴─ index ◄─ recovery        mend uses reach and space,
//!                                               members and recovery also near
//! ```
//!
//! * [`Reach`]: where the shard lies. Verbs.
//! * [`Space`]: places for objects, and the epochs of their reuse.
//! * [`Near`]: the near cache, and the lease by which it answers.
//! * [`Index`]: keys. Lookups, changes, splits.
//! * [`Members`]: the front ends that serve the store.
//! * [`Recovery`]: memory that others have left.
//! * [`Mend`]: a node in place of one that has ended.
//! * [`copies`]: carries out the verbs of them all, on one node or on two.
//!
//! A [`heap`] is what a space has at one node; [`claims`] and [`evict`] give it room.

mod claims;
pub mod copies;
mod evict;
pub mod heap;
pub mod index;
pub mod lease;
pub mod member;
pub mod mend;
pub mod near;
pub mod reach;
pub mod recover;
pub mod space;

use crate::layout::{At, Geometry, Member, NODE_SHIFT};
use crate::rules::Rules;
use copies::Copies;
use index::Index;
use member::Members;
use mend::Mend;
use near::Near;
use reach::Reach;
use recover::Recovery;
use space::Space;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Why an operation did not do what it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Trouble {
    /// The node has no memory left for it.
    #[error("OOM the store's memory is used up: delete keys, raise --maxmemory, or lend more")]
    Full,
    /// The value takes more than its node's share of the limit, or twice as much where it is
    /// copied. Nothing was evicted for it.
    #[error("OOM the value is larger than its node's share of --maxmemory: raise it, or store less under one key")]
    Beyond,
    /// The object is larger than [`crate::object::len`] may be.
    #[error("ERR the value is too large: a string may have 512 MiB, an element of another value 2 MiB")]
    TooLarge,
    /// A command that is not made for segments was to take a value that is too large for one
    /// object.
    #[error("ERR the value, or the part of it, has more than 64 MiB: take less of it at once")]
    Unwieldy,
    /// A command of a script or a transaction asked for a key that was not read for it.
    #[error("ERR the key is not among those that were read for this script: name it in KEYS")]
    Unread,
    /// An object does not match its checksum, or its value does not have the form of its type.
    #[error("IOERR an object in remote memory does not match its checksum, or is not as a store writes it")]
    Corrupt,
    /// A connection broke, and whether the operation took effect cannot be told any more.
    #[error("IOERR the connection to a memory node broke: the command may have taken effect or not")]
    Unsettled,
    /// Other transactions have come between again and again.
    #[error("ERR other clients change the same keys all the time: nothing was changed; try again")]
    Contended,
    /// The index cannot grow any further there.
    #[error("OOM the index cannot grow any further")]
    Deep,
    /// This front end was taken for dead. It must join anew.
    #[error("IOERR this front end was silent for too long and was shut out: the command may have taken effect or not")]
    ShutOut,
}

/// How often an operation begins again before it is given up as [`Trouble::Corrupt`].
pub(crate) const ATTEMPTS: u32 = 1000;

/// Counters of a shard.
#[derive(Debug, Default)]
pub struct Counters {
    /// Batches of verbs that an operation waited for.
    pub trips: Cell<u64>,
    /// Verbs.
    pub verbs: Cell<u64>,
    /// Splits of tables that this front end finished.
    pub splits: Cell<u64>,
    /// Reads that took no verb.
    pub near: Cell<u64>,
    /// Looks into the index that a cached slot saved.
    pub warm: Cell<u64>,
    /// Looks into the index.
    pub cold: Cell<u64>,
    /// Pieces taken over from dead front ends.
    pub adopted: Cell<u64>,
    /// Nodes that came in place of one that had ended, and were filled.
    pub mended: Cell<u64>,
}

/// See the module.
#[derive(Debug)]
pub struct Shard {
    /// Where it lies.
    pub reach: Rc<Reach>,
    /// Places for objects.
    pub space: Rc<Space>,
    /// The near cache.
    pub near: Rc<Near>,
    /// Its keys.
    pub index: Rc<Index>,
    /// Its front ends.
    pub members: Members,
    /// Memory that others have left.
    pub recovery: Recovery,
    /// A new node.
    pub mend: Mend,
}

impl Shard {
    /// Knows nothing yet but where it is and whose.
    pub fn new(root: At, secret: u64, copies: Copies, geometry: Geometry, me: Member, tag: u32, local: u64) -> Shard {
        copies.joined(me);
        let reach = Rc::new(Reach {
            node: (root >> NODE_SHIFT) as u8,
            root,
            secret,
            rules: Cell::new(Rules::SOUND),
            me,
            tag,
            shut_out: Cell::new(false),
            copies,
            nodes: RefCell::default(),
            counters: Counters::default(),
            emptied: Cell::new(tag),
        });
        let space = Rc::new(Space::new(&reach));
        let near = Rc::new(Near::new(&reach, local, geometry));
        let index = Rc::new(Index::new(&reach, &space, &near, geometry));
        Shard {
            members: Members::new(&reach, &space, &near),
            recovery: Recovery::new(&reach, &space, &near, &index),
            mend: Mend::new(&reach, &space),
            reach,
            space,
            near,
            index,
        }
    }
}
