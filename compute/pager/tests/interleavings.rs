//! Every interleaving of evictions, a writer, a reader and a fork on one page, with the real page words.
//!
//! The kernel is modelled by what the pager relies on: a page-table entry that
//! is absent or holds a value, writable or write-protected; each call and each
//! access is one atomic step. After a fork an entry is read-only, though its page is dirty, and stays so when the child
//! has ended: the next write goes to a copy if anybody else refers to the memory, a pipe of the pager's too (Linux 5.19 and
//! later: the flag `PageAnonExclusive`). Whatever the order, a read must give the last value
//! stored, and nobody may be stuck. Seeded faults of the protocol must be caught,
//! each by the same check.

use farmem_pager::word::{State, Word};
use farmem_protocol::addr::FarSlot;
use std::collections::HashSet;

/// Ways to get it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// Eviction reads a dirty page without write-protecting it first.
    NoProtection,
    /// The first write's protection is lifted while the page stays Resident.
    UpgradeWithoutBusy,
    /// A clean page arrives writable.
    CleanAndWritable,
    /// The word says Remote before the page is gone from the page table.
    RemoteBeforeDrop,
    /// A held page is read before its mapping is gone.
    ReadBeforeDrop,
    /// … is held although it was not made the mapping's own since a fork, so that the next write goes to a copy.
    HeldWhileShared,
    /// A fork does not wait until nobody is in the pager.
    ForkInEviction,
    /// A compared page is compared before it is protected, or its mapping gone.
    ComparedTooSoon,
    /// What a page is compared with is taken when it is writable already.
    KeptTooLate,
}

/// How pages are written to, and leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Way {
    /// Clean pages are protected.
    Exact,
    /// Pages come in writable, and are compared with what they came in with when they leave.
    Compared,
    /// Clean pages are protected, and compared from their first write on.
    Upgraded,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Access {
    Try,
    /// In the handler: look at the word.
    Look,
    /// Owns the page: install it.
    Install,
    /// Owns the page (or not, in a seeded fault): lift the protection.
    Lift,
    /// Protection lifted: say so.
    Settle,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Actor {
    at: Access,
    left: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Held {
    Nothing,
    /// The memory that is mapped.
    Mapped,
    /// Memory that is not, or not any more.
    Alone(u8),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: u64,
    /// (write-protected, value)
    entry: Option<(bool, u8)>,
    /// The entry's memory is known to be the mapping's alone, and it is writable but for protection.
    own: bool,
    has_forked: bool,
    forks_left: u8,
    /// Dirty pages are held on their way out, not protected.
    holds: bool,
    /// What the reference leads to: the entry's memory, or a value of its own.
    held: Held,
    slot: u8,
    last: u8,
    way: Way,
    /// What a page is compared with when it leaves.
    kept: u8,
    /// The eviction's comparison found no change.
    same: bool,
    evict_at: u8,
    evict_left: u8,
    /// The word as the eviction found it needs to be settled, and a copy.
    evict_dirty: bool,
    writer: Actor,
    reader: Actor,
}

impl World {
    fn word(&self) -> Word {
        Word(self.word)
    }

    fn shift(&mut self, from: Word, to: Word) -> bool {
        let same = self.word == from.0;
        if same {
            self.word = to.0;
        }
        same
    }

    /// One step of an access; `false` if it can only wait.
    fn access(&mut self, write: bool, fault: Fault) -> Result<bool, String> {
        let mut actor = if write { self.writer } else { self.reader };
        if actor.left == 0 {
            return Ok(false);
        }
        match actor.at {
            Access::Try => match &mut self.entry {
                Some((protected, value)) if !write || !*protected => {
                    if write {
                        *protected = false;
                        if !self.own && self.held == Held::Mapped {
                            self.held = Held::Alone(*value);
                        }
                        self.own = true;
                        self.last += 1;
                        *value = self.last;
                    } else if *value != self.last {
                        return Err(format!("read {value}, stored {}", self.last));
                    }
                    actor.left -= 1;
                }
                _ => actor.at = Access::Look,
            },
            Access::Look => {
                let seen = self.word();
                match seen.state() {
                    State::Remote => {
                        assert!(self.shift(seen, seen.to(State::Busy)));
                        actor.at = Access::Install;
                    }
                    State::Resident if write && !seen.dirty() => {
                        if fault != Fault::UpgradeWithoutBusy {
                            assert!(self.shift(seen, seen.to(State::Busy)));
                        }
                        actor.at = Access::Lift;
                    }
                    State::Resident => actor.at = Access::Try,
                    _ => return Ok(false),
                }
            }
            Access::Install => {
                if self.entry.is_some() {
                    return Err("installed twice".into());
                }
                let writable = write || self.way == Way::Compared;
                self.entry = Some((!writable && fault != Fault::CleanAndWritable, self.slot));
                self.own = true;
                self.kept = self.slot;
                self.word =
                    self.word().to(State::Resident).with_dirty(writable).with_guessed(self.way == Way::Compared).0;
                actor.at = Access::Try;
            }
            Access::Lift => {
                if let Some((protected, _)) = &mut self.entry {
                    *protected = false;
                }
                actor.at = Access::Settle;
            }
            Access::Settle => {
                if self.word().state() == State::Busy {
                    let upgraded = self.way == Way::Upgraded;
                    self.word = self.word().to(State::Resident).with_dirty(true).with_guessed(upgraded).0;
                } else if fault == Fault::UpgradeWithoutBusy && self.word().state() == State::Resident {
                    self.word = self.word().with_dirty(true).0;
                }
                actor.at = Access::Try;
            }
        }
        if write {
            self.writer = actor;
        } else {
            self.reader = actor;
        }
        Ok(true)
    }

    fn evict(&mut self, fault: Fault) -> Result<bool, String> {
        if self.evict_left == 0 {
            return Ok(false);
        }
        if self.evict_at == 0 && !self.takes() {
            return Ok(true);
        }
        match self.evict_at {
            0 => {
                if let Some((_, value)) = self.entry {
                    self.kept = if fault == Fault::KeptTooLate { value } else { self.kept };
                    self.same = value == self.kept;
                }
            }
            1 if self.evict_dirty && self.holds && self.has_forked && fault != Fault::HeldWhileShared => {
                self.own = true
            }
            2 if self.evict_dirty && self.holds => self.held = Held::Mapped,
            2 if self.evict_dirty && fault != Fault::NoProtection => {
                if let Some((protected, _)) = &mut self.entry {
                    *protected = true;
                }
            }
            // Held pages: the mapping goes, then they are read. Else the other way round.
            3 if self.evict_dirty && self.holds && fault != Fault::ReadBeforeDrop => self.drop_entry(),
            3 if self.evict_dirty => self.copy(fault)?,
            4 if self.evict_dirty && self.holds && fault != Fault::ReadBeforeDrop => self.copy(fault)?,
            4 if fault == Fault::RemoteBeforeDrop => self.leave(),
            4 => self.drop_entry(),
            5 if fault == Fault::RemoteBeforeDrop => self.entry = None,
            5 => self.leave(),
            _ => {}
        }
        self.evicted_to(6);
        Ok(true)
    }

    /// An eviction begins, if the page is there.
    fn takes(&mut self) -> bool {
        let seen = self.word();
        if seen.state() != State::Resident {
            self.evict_left -= 1;
            return false;
        }
        self.evict_dirty = seen.dirty();
        self.shift(seen, seen.to(State::Leaving))
    }

    fn evicted_to(&mut self, steps: u8) {
        self.evict_at = (self.evict_at + 1) % steps;
        self.evict_left -= (self.evict_at == 0) as u8;
    }

    /// A fork; `false` while somebody is in the pager. (Whether its child has ended makes no difference to the entry.)
    fn fork(&mut self, fault: Fault) -> Result<bool, String> {
        let outside = |actor: Actor| actor.at == Access::Try;
        let gate = self.evict_at == 0 && outside(self.writer) && outside(self.reader);
        let forks = self.forks_left > 0 && (gate || fault == Fault::ForkInEviction);
        if forks {
            self.forks_left -= 1;
            (self.has_forked, self.own) = (true, false);
            let clean = self.word().state() == State::Resident && !self.word().dirty();
            if clean && self.entry.is_some_and(|(_, value)| value != self.slot) {
                return Err("a forked child takes a page for clean that was written".into());
            }
        }
        Ok(forks)
    }

    fn drop_entry(&mut self) {
        if let (Held::Mapped, Some((_, value))) = (self.held, self.entry) {
            self.held = Held::Alone(value);
        }
        self.entry = None;
    }

    fn leave(&mut self) {
        self.word = self.word().to(State::Remote).with_dirty(false).with_guessed(false).0;
    }

    fn copy(&mut self, fault: Fault) -> Result<(), String> {
        let value = match (std::mem::replace(&mut self.held, Held::Nothing), self.entry) {
            (Held::Alone(value), _) | (_, Some((_, value))) => value,
            _ => return Err("a leaving page is not there".into()),
        };
        if fault != Fault::ComparedTooSoon {
            self.same = value == self.kept;
        }
        if !self.word().guessed() || !self.same {
            self.slot = value;
        }
        Ok(())
    }

    /// What a pin for writing relies on: by the word writable, hence by the kernel.
    fn check_pin(&self) -> Result<(), String> {
        let word = self.word();
        match self.entry {
            Some((true, _)) if word.state() == State::Resident && word.dirty() => {
                Err("a system call would find a writable page protected".into())
            }
            _ => Ok(()),
        }
    }
}

/// Walks all interleavings; the number of worlds seen, or what went wrong.
fn explore(fault: Fault, way: Way, holds: bool) -> Result<usize, String> {
    let start = World {
        word: Word::UNTOUCHED.to(State::Remote).with_slot(Some(FarSlot::new(0, 1))).0,
        entry: None,
        own: true,
        has_forked: false,
        forks_left: 1,
        holds,
        held: Held::Nothing,
        slot: 0,
        last: 0,
        way,
        kept: 0,
        same: false,
        evict_at: 0,
        evict_left: 3,
        evict_dirty: false,
        writer: Actor { at: Access::Try, left: 3 },
        reader: Actor { at: Access::Try, left: 3 },
    };
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let mut moved = false;
        world.check_pin()?;
        for who in 0..4 {
            let mut next = world.clone();
            let progressed = match who {
                0 => next.evict(fault),
                1 => next.access(true, fault),
                2 => next.access(false, fault),
                _ => next.fork(fault),
            }?;
            if progressed {
                moved = true;
                open.push(next);
            }
        }
        if !moved && (world.writer.left > 0 || world.reader.left > 0 || world.evict_left > 0) {
            return Err("stuck".into());
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_loses_a_write_or_gets_stuck() {
    for way in [Way::Exact, Way::Compared, Way::Upgraded] {
        for holds in [false, true] {
            let worlds = explore(Fault::None, way, holds).unwrap_or_else(|e| panic!("{way:?}, holds: {holds}: {e}"));
            assert!(worlds > 500, "only {worlds} worlds");
        }
    }
}

#[test]
fn every_seeded_fault_is_caught() {
    let caught = |fault, way, holds| {
        assert!(explore(fault, way, holds).is_err(), "{fault:?} went unnoticed, {way:?}, holds: {holds}");
    };
    for holds in [false, true] {
        for fault in [Fault::UpgradeWithoutBusy, Fault::CleanAndWritable, Fault::RemoteBeforeDrop] {
            caught(fault, Way::Exact, holds);
        }
        for way in [Way::Compared, Way::Upgraded] {
            caught(Fault::ComparedTooSoon, way, holds);
            caught(Fault::KeptTooLate, way, holds);
        }
    }
    for way in [Way::Exact, Way::Compared, Way::Upgraded] {
        caught(Fault::NoProtection, way, false);
        caught(Fault::ReadBeforeDrop, way, true);
        caught(Fault::HeldWhileShared, way, true);
        caught(Fault::ForkInEviction, way, true);
    }
}
