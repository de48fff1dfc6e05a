//! Admission: from a key in a verb to memory, or a refusal.
//!
//! Admission gives a *grip* ([`super::grip`]). It may be held while bytes wait for a slow peer. Its
//! right is checked again, one load and compare, before each transfer, within a section of
//! [`super::epochs`].

use super::Member;
use super::carved;
use super::grip::{Grip, Memory, Right};
use super::members::coming::Roster;
use super::shares::Table;
use super::units::Units;
use super::windows::{Bound, MAX_WINDOWS, Windows};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::{Key, KeyKind, Rights};
use farmem_protocol::wire::{Binding, Op, Status};
use std::sync::Arc;

/// From keys to memory, and the windows that a member carves from its own.
#[derive(Clone, Copy)]
pub(super) struct Admission<'a> {
    pub units: &'a Units,
    pub windows: &'a Windows,
    /// Places of windows.
    pub places: &'a Arc<Table>,
    pub roster: &'a Roster,
}

impl Admission<'_> {
    /// Whether a right given before still stands.
    #[inline]
    pub fn stands(self, right: &Right) -> bool {
        match right {
            Right::Held => true,
            Right::Word(word) => self.units.words.stands(word),
            Right::Window { index, generation, under } => {
                self.windows.stands(*index, *generation)
                    && under.as_ref().is_none_or(|word| self.units.words.stands(word))
            }
        }
    }

    /// Admits READ, WRITE, CAS and FAA on memory, by a key of `member` through its `queue`.
    pub fn admit(
        self,
        member: &Member,
        queue: u64,
        (key, op): (Key, Op),
        offset: u64,
        len: u64,
    ) -> Result<Grip, Status> {
        match key.kind() {
            KeyKind::Slab(id) => {
                let memory = Memory::Slab(member.slab(id).ok_or(Status::NotHeld)?);
                memory.mapping().at(offset, len).ok_or(Status::Range)?;
                Ok(Grip { memory, offset, right: Right::Held })
            }
            KeyKind::Window { index, generation } => {
                let who = (member.serial, queue);
                let grip = self.windows.admit(who, (index, generation), op, offset, len)?;
                if self.stands(&grip.right) { Ok(grip) } else { Err(Status::Access) }
            }
            KeyKind::Unit { .. } => {
                let (arena, offset, word) = self.units.admit(&member.lease, key, offset, len)?;
                Ok(Grip { memory: Memory::Units(arena), offset, right: Right::Word(word) })
            }
            KeyKind::Service(_) => Err(Status::Access),
        }
    }

    /// BIND: of a range that the binder itself may touch, for a member of its own tenant. (For any
    /// member, if the binder has no tenant.)
    pub fn bind(self, member: &Member, queue: u64, key: Key, binding: &Binding) -> Result<Key, Status> {
        let KeyKind::Window { index, generation } = key.kind() else { return Err(Status::Window) };
        let parent = Key(binding.parent.get());
        let (start, len) = (binding.start.get(), binding.len.get());
        let rights = Rights::of(binding.rights).ok_or(Status::Window)?;
        let carved = matches!(parent.kind(), KeyKind::Slab(_) | KeyKind::Unit { .. });
        if !carved || len == 0 || binding.zero != [0; 5] {
            return Err(Status::Window);
        }
        let grip = self.admit(member, queue, (parent, Op::Write), start, len).map_err(|_| Status::Window)?;
        let under = match grip.right {
            Right::Word(word) => Some(word),
            _ => None,
        };
        let user = match binding.owner.get() {
            0 => member.serial,
            owner => {
                let user = self.roster.member_of(owner).filter(|user| member.may_know(user.tenant()));
                let user = user.ok_or(Status::Window)?;
                user.is_served_by(member);
                user.serial
            }
        };
        let queue = binding.queue.get();
        let (memory, base, carved) = (grip.memory, grip.offset, Vec::new());
        let bound = Bound { memory, base, len, rights, user, queue, parent, under, carved };
        // Against the release of the slab, which unbinds what it finds: either it finds this, or we
        // see it gone.
        let holds = member.holds.lock();
        if let KeyKind::Slab(id) = parent.kind()
            && holds.slab(id).is_none()
        {
            return Err(Status::Window);
        }
        if holds.gone {
            return Err(Status::Window);
        }
        self.windows.bind(member.serial, (index, generation), bound)
    }

    /// INVALIDATE. The caller waits for what is under way: [`Admission::settle`], [`super::epochs`]; also
    /// when it is refused because somebody else was quicker, whose wait may not be over.
    pub fn invalidate(self, member: &Member, queue: u64, key: Key) -> Result<Key, Status> {
        let KeyKind::Window { index, generation } = key.kind() else { return Err(Status::Window) };
        self.windows.invalidate(member.serial, queue, (index, generation))
    }

    /// Waits until a window that was unbound is off the card. Outside of sections: it may take
    /// [`carved::PATIENCE_NS`].
    pub fn settle(self, key: Key) {
        if let KeyKind::Window { index, .. } = key.kind() {
            self.windows.settle(index, carved::patience());
        }
    }

    /// Whether there is anything to wait for.
    pub fn is_ending(self, key: Key) -> bool {
        matches!(key.kind(), KeyKind::Window { index, .. } if self.windows.is_ending(index))
    }

    /// A window for a member. The answer's status, else its key.
    pub fn make_window(self, member: &Member) -> Result<Key, Status> {
        let mut holds = member.holds.lock();
        if holds.gone || holds.windows.len() >= MAX_WINDOWS {
            return Err(Status::Exhausted);
        }
        let place = self.places.take(member.by).map_err(|_| Status::Exhausted)?;
        let key = self.windows.make(member.serial).ok_or(Status::Exhausted)?;
        if let KeyKind::Window { index, generation } = key.kind() {
            holds.windows.insert(index, (generation, place));
        }
        Ok(key)
    }

    /// The member no longer needs a window: by any key that it ever had. One of a window that had
    /// the index before, be it this member's own, is not this one's.
    pub fn drop_window(self, member: &Member, key: Key) -> Status {
        let KeyKind::Window { index, generation } = key.kind() else { return Status::Window };
        let mut holds = member.holds.lock();
        if holds.windows.get(&index).is_none_or(|(first, _)| generation < *first) {
            return Status::Window;
        }
        holds.windows.remove(&index);
        drop(holds);
        self.windows.discard(member.serial, index, carved::patience());
        Status::Done
    }

    /// Unbinds what a member carved from a slab that it no longer holds.
    pub fn unbind_slab(self, member: &Member, slab: SlabId) {
        let windows: Vec<u32> = member.holds.lock().windows.keys().copied().collect();
        windows.iter().for_each(|index| self.windows.unbind_from(member.serial, *index, Key::from(slab)));
        let until = carved::patience();
        windows.iter().for_each(|index| self.windows.settle(*index, until));
    }
}
