//! One verb made a work request of the card's: where its bytes lie, and by which key the card may
//! reach them.

// The buffers of READ and WRITE are the caller's raw memory.
#![allow(unsafe_code)]

use super::bounce::SLOT;
use super::host::{Host, Known, Right};
use super::queue::{Fate, UNTOLD, Wired};
use crate::Refusal;
use crate::queue::{Pending, Verb};
use crate::session::Membership;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::key::KeyKind;
use farmem_protocol::wire::MAX_VERB_BYTES;
use farmem_sys::memory::copy_bytes;
use farmem_sys::verbs::{RcQueue, Region, Rights, Work, WorkRequest};

/// How the card reaches a buffer.
enum Place {
    Known(u32),
    Registered(Region),
    Bounce,
    None,
}

impl Wired {
    /// Makes a work request of the first verb that is not posted. None: there is no room now.
    pub(super) fn prepare(&mut self, Right { rkey, base }: Right) -> Option<Fate> {
        let pending = &self.verbs[self.posted].pending;
        let (offset, len) = (base + pending.offset, pending.len);
        let inline = self.queue.as_ref().map_or(0, RcQueue::inline_bytes);
        let mut slot = None;
        let mut region = None;
        let work = match pending.verb {
            Verb::Read { into } => {
                let place = Self::place(&self.member, &self.host, &mut self.hints[0], into, len, Rights::Local);
                let (into, lkey) = match place {
                    Place::Known(lkey) => (into, lkey),
                    Place::Registered(own) => (into, region.insert(own).lkey()),
                    Place::Bounce => (*slot.insert(self.bounce.take()?), self.bounce.lkey()),
                    Place::None => return Some(Fate::Frames),
                };
                Work::Read { into, lkey, len, offset, rkey }
            }
            Verb::Write { from } if len <= inline => Work::Write { from, lkey: 0, len, offset, rkey },
            Verb::Write { from } => {
                let at = from.cast_mut();
                let place = Self::place(&self.member, &self.host, &mut self.hints[1], at, len, Rights::Source);
                let (from, lkey) = match place {
                    Place::Known(lkey) => (from, lkey),
                    Place::Registered(own) => (from, region.insert(own).lkey()),
                    Place::Bounce => {
                        let to = *slot.insert(self.bounce.take()?);
                        // SAFETY: at most a slot's bytes, from the verb's buffer.
                        unsafe { copy_bytes(from, to, len as usize) };
                        (to.cast_const(), self.bounce.lkey())
                    }
                    Place::None => return Some(Fate::Frames),
                };
                Work::Write { from, lkey, len, offset, rkey }
            }
            Verb::Cas { expected, new } => {
                let into = slot.insert(self.bounce.take()?).cast();
                Work::Cas { into, lkey: self.bounce.lkey(), expected, new, offset, rkey }
            }
            Verb::Faa { add } => {
                let into = slot.insert(self.bounce.take()?).cast();
                Work::Faa { into, lkey: self.bounce.lkey(), add, offset, rkey }
            }
            _ => return Some(Fate::Frames),
        };
        let id = self.next;
        self.next += 1;
        self.sent += match work {
            Work::Write { len, .. } => len as u64,
            Work::Read { .. } => 0,
            _ => 8,
        };
        let told = !matches!(work, Work::Write { .. }) || id.is_multiple_of(UNTOLD);
        self.chain.push(WorkRequest { id, told, work });
        Some(Fate::Card { id, slot, _region: region })
    }

    /// How the card is to reach a buffer.
    fn place(member: &Membership, host: &Host, hint: &mut Known, at: *mut u8, len: u32, rights: Rights) -> Place {
        let (addr, len) = (at as usize, len as usize);
        if !hint.covers(addr, len) {
            match member.card.known(host, addr, len) {
                Some(known) => *hint = known,
                None if len <= SLOT => return Place::Bounce,
                // SAFETY: the buffer stays mapped until the verb's completion, and the region goes
                // with it.
                None => return unsafe { host.domain.region(at, len, rights) }.map_or(Place::None, Place::Registered),
            }
        }
        Place::Known(hint.lkey)
    }
}

impl Pending {
    /// READ, WRITE, CAS or FAA on a slab; READ or WRITE by a window, whose words stay the node's
    /// processor's, as those of everybody who came without a card.
    pub(super) fn is_one_sided(&self) -> bool {
        match self.key.kind() {
            KeyKind::Slab(_) => self.on_slab() && !matches!(self.verb, Verb::Lines { .. }),
            KeyKind::Window { .. } => matches!(self.verb, Verb::Read { .. } | Verb::Write { .. }),
            _ => false,
        }
    }

    /// Finds verbs that the node would refuse, and its card by breaking the queue pair.
    pub(super) fn judge(&self) -> Result<(), Refusal> {
        let atomic = matches!(self.verb, Verb::Cas { .. } | Verb::Faa { .. });
        let inside = self.offset.checked_add(self.len as u64).is_some_and(|end| end <= SLAB_BYTES);
        let aligned = !atomic || self.offset.is_multiple_of(8);
        if self.len <= MAX_VERB_BYTES && inside && aligned { Ok(()) } else { Err(Refusal::Range) }
    }
}
