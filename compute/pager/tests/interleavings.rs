//! Every interleaving of evictions, sweeps, a writer and a reader on one page, with the real page words.
//!
//! The kernel is modelled by what the pager relies on: a page-table entry that
//! is absent or holds a value, writable or write-protected; each call and each
//! access is one atomic step. Whatever the order, a read must give the last value
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
    /// A page is made writable while a sweep is under way.
    NoWaitForSweep,
    /// A sweep protects a page that a thread owns.
    SweepOverBusy,
    /// P is set only when the call has returned, in whatever word is there by then.
    MarkAfterSweep,
    /// An upgrade leaves P behind.
    ProtectedForEver,
    /// A compared page is compared before it is protected.
    ComparedTooSoon,
    /// What a page is compared with is taken when it is writable already.
    KeptTooLate,
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

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    word: u64,
    /// (write-protected, value)
    entry: Option<(bool, u8)>,
    slot: u8,
    last: u8,
    /// Pages come in writable, and are compared with this when they leave.
    compared: bool,
    kept: u8,
    /// The eviction's comparison found no change.
    same: bool,
    evict_at: u8,
    evict_left: u8,
    /// The word as the eviction found it needs protection, and a copy.
    evict_writable: bool,
    evict_dirty: bool,
    sweep_at: u8,
    sweep_left: u8,
    sweeping: bool,
    /// The stretch under way holds the page.
    swept: bool,
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
                    State::Resident if write && !seen.writable() => {
                        if fault != Fault::UpgradeWithoutBusy {
                            assert!(self.shift(seen, seen.to(State::Busy)));
                        }
                        actor.at = Access::Lift;
                    }
                    State::Resident => actor.at = Access::Try,
                    _ => return Ok(false),
                }
            }
            Access::Install if (write || self.compared) && self.sweeping && fault != Fault::NoWaitForSweep => {
                return Ok(false);
            }
            Access::Lift if self.sweeping && fault != Fault::NoWaitForSweep => return Ok(false),
            Access::Install => {
                if self.entry.is_some() {
                    return Err("installed twice".into());
                }
                let writable = write || self.compared;
                self.entry = Some((!writable && fault != Fault::CleanAndWritable, self.slot));
                self.kept = self.slot;
                self.word = self.word().to(State::Resident).with_dirty(writable).with_guessed(self.compared).0;
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
                    let protected = fault == Fault::ProtectedForEver && self.word().protected();
                    self.word = self.word().to(State::Resident).with_dirty(true).with_protected(protected).0;
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
        match self.evict_at {
            0 => {
                let seen = self.word();
                if seen.state() != State::Resident {
                    self.evict_left -= 1;
                    return Ok(true);
                }
                self.evict_dirty = seen.dirty();
                self.evict_writable = seen.writable();
                assert!(self.shift(seen, seen.to(State::Leaving)));
                if let Some((_, value)) = self.entry {
                    self.kept = if fault == Fault::KeptTooLate { value } else { self.kept };
                    self.same = value == self.kept;
                }
            }
            1 if self.evict_writable && fault != Fault::NoProtection => {
                if let Some((protected, _)) = &mut self.entry {
                    *protected = true;
                }
            }
            2 if self.evict_dirty => match self.entry {
                Some((_, value)) => {
                    if fault != Fault::ComparedTooSoon {
                        self.same = value == self.kept;
                    }
                    if !self.word().guessed() || !self.same {
                        self.slot = value;
                    }
                }
                None => return Err("a leaving page is not there".into()),
            },
            3 if fault == Fault::RemoteBeforeDrop => {
                self.word = self.word().to(State::Remote).with_dirty(false).with_guessed(false).with_protected(false).0
            }
            3 => self.entry = None,
            4 if fault == Fault::RemoteBeforeDrop => self.entry = None,
            4 => {
                self.word = self.word().to(State::Remote).with_dirty(false).with_guessed(false).with_protected(false).0
            }
            _ => {}
        }
        self.evict_at = (self.evict_at + 1) % 5;
        if self.evict_at == 0 {
            self.evict_left -= 1;
        }
        Ok(true)
    }
}

impl World {
    /// One step of a sweep over the page. It holds the evictor's lock: between two evictions.
    fn sweep(&mut self, fault: Fault) -> bool {
        if self.sweep_left == 0 || self.evict_at != 0 {
            return false;
        }
        match self.sweep_at {
            0 => self.sweeping = true,
            1 => {
                let seen = self.word();
                self.swept = seen.state() != State::Busy || fault == Fault::SweepOverBusy;
                if fault != Fault::MarkAfterSweep && seen.state() == State::Resident && seen.writable() {
                    assert!(self.shift(seen, seen.with_protected(true)));
                }
            }
            2 if self.swept => {
                if let Some((protected, _)) = &mut self.entry {
                    *protected = true;
                }
            }
            3 => {
                self.sweeping = false;
                let seen = self.word();
                if fault == Fault::MarkAfterSweep && seen.state() == State::Resident && seen.writable() {
                    assert!(self.shift(seen, seen.with_protected(true)));
                }
            }
            _ => {}
        }
        self.sweep_at = (self.sweep_at + 1) % 4;
        if self.sweep_at == 0 {
            self.sweep_left -= 1;
        }
        true
    }

    /// What a pin for writing relies on: by the word writable, hence by the kernel.
    fn check_pin(&self) -> Result<(), String> {
        let word = self.word();
        match self.entry {
            Some((true, _)) if word.state() == State::Resident && word.writable() => {
                Err("a system call would find a writable page protected".into())
            }
            _ => Ok(()),
        }
    }
}

/// Walks all interleavings; the number of worlds seen, or what went wrong.
fn explore(fault: Fault, compared: bool) -> Result<usize, String> {
    let start = World {
        word: Word::UNTOUCHED.to(State::Remote).with_slot(Some(FarSlot::new(0, 1))).0,
        entry: None,
        slot: 0,
        last: 0,
        compared,
        kept: 0,
        same: false,
        evict_at: 0,
        evict_left: 3,
        evict_dirty: false,
        evict_writable: false,
        sweep_at: 0,
        sweep_left: 2,
        sweeping: false,
        swept: false,
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
                0 if world.sweep_at != 0 => Ok(false),
                0 => next.evict(fault),
                3 => Ok(next.sweep(fault)),
                1 => next.access(true, fault),
                _ => next.access(false, fault),
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
    for compared in [false, true] {
        let worlds = explore(Fault::None, compared).unwrap();
        assert!(worlds > 1_000, "only {worlds} worlds");
    }
}

#[test]
fn every_seeded_fault_is_caught() {
    for fault in [
        Fault::NoProtection,
        Fault::UpgradeWithoutBusy,
        Fault::CleanAndWritable,
        Fault::RemoteBeforeDrop,
        Fault::NoWaitForSweep,
        Fault::SweepOverBusy,
        Fault::MarkAfterSweep,
        Fault::ProtectedForEver,
    ] {
        assert!(explore(fault, false).is_err(), "{fault:?} went unnoticed");
    }
    for fault in [Fault::NoProtection, Fault::ComparedTooSoon, Fault::KeptTooLate, Fault::NoWaitForSweep] {
        assert!(explore(fault, true).is_err(), "{fault:?} of a compared page went unnoticed");
    }
}
