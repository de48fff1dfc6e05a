//! The operations of a lane that have no end yet, and those whose end is to be told.

use super::Done;
use super::late::Late;
use super::striped::Whose;
use crate::homes::HOMES;
use crate::nodes::Moment;
use crate::paces::Paces;
use farmem_fabric::Lost;
use farmem_protocol::addr::{FarSlot, PAGE_BYTES};
use std::ops::{Index, IndexMut};

#[derive(Clone, Copy)]
pub(super) enum Verb {
    Read { into: *mut u8 },
    Write,
    Lines,
}

/// An operation that has no [`Done`] yet.
pub(super) struct Operation {
    pub tag: u64,
    pub whose: Whose,
    pub slot: FarSlot,
    pub from: u32,
    pub len: u32,
    pub verb: Verb,
    /// Per home: the node where its verb is under way.
    pub at: [Option<u32>; HOMES],
    /// Homes that have done it.
    pub done: u32,
    /// Pages of it on their way to the disk.
    pub on_disk: u32,
    /// It copies what another home has.
    pub fills: bool,
    /// Some page of it is not there.
    pub disk_failed: bool,
    pub value: u64,
    /// Of a READ: it could go to another home.
    pub may_go: bool,
    /// Of one that could: when it was posted, in ticks.
    pub begun: u64,
    pub reason: Option<Lost>,
    /// Of a READ: the node whose bytes came.
    pub by: Option<u32>,
}

/// Operations by number. A number is used again when its operation has ended.
#[derive(Default)]
pub(super) struct Operations {
    list: Vec<Operation>,
    idle: Vec<u32>,
    /// Done without a node, or found to be lost: to be told by the next look.
    pub ready: Vec<Done>,
    pub under_way: usize,
}

impl Index<u32> for Operations {
    type Output = Operation;

    #[inline]
    fn index(&self, number: u32) -> &Operation {
        &self.list[number as usize]
    }
}

impl IndexMut<u32> for Operations {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut Operation {
        &mut self.list[number as usize]
    }
}

impl Operations {
    /// One more; its number.
    pub fn begin(&mut self, tag: u64, slot: FarSlot, from: u32, len: u32, verb: Verb) -> u32 {
        debug_assert!(from as usize + len as usize <= PAGE_BYTES);
        self.under_way += 1;
        let begun = Operation {
            tag,
            whose: Whose::Caller,
            slot,
            from,
            len,
            verb,
            at: [None; HOMES],
            done: 0,
            on_disk: 0,
            fills: false,
            disk_failed: false,
            value: 0,
            may_go: false,
            begun: 0,
            reason: None,
            by: None,
        };
        match self.idle.pop() {
            Some(number) => {
                self.list[number as usize] = begun;
                number
            }
            None => {
                self.list.push(begun);
                self.list.len() as u32 - 1
            }
        }
    }

    /// An operation has ended: its number is free. Its caller is told by the next look. Of one that is the
    /// lane's own, returns whose, its result, and the node whose bytes came.
    pub fn end(&mut self, number: u32, result: Result<u64, Lost>) -> Option<(Whose, Result<u64, Lost>, Option<u32>)> {
        let Operation { tag, whose, by: from, .. } = self.list[number as usize];
        self.idle.push(number);
        self.under_way -= 1;
        match whose {
            Whose::Caller => {
                self.ready.push(Done { tag, result, from });
                None
            }
            whose => Some((whose, result, from)),
        }
    }

    /// Numbers given so far, those of ended operations among them.
    pub fn numbers(&self) -> std::ops::Range<u32> {
        0..self.list.len() as u32
    }

    /// Whether all operations at a node are READs that could go elsewhere.
    pub fn all_can_go(&self, here: impl Fn(&[Option<u32>]) -> bool) -> bool {
        self.list.iter().filter(|one| here(&one.at)).all(|one| one.may_go)
    }

    /// The READ that will be late first, of those that could go elsewhere.
    #[cold]
    pub fn first_late(&self, paces: &Paces, now: Moment) -> Option<Late> {
        let reads = self.list.iter().filter(|operation| operation.may_go);
        let under_way = reads.filter_map(|read| Some((read.at.iter().flatten().next().copied()?, read.begun)));
        let late = under_way.filter_map(|(node, begun)| Some((paces.late_in(now, node as usize, begun)?, node, begun)));
        late.min().map(Late::of)
    }
}
