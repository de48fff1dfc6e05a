//! The memory of a node that is owned piece by piece.

use super::Member;
use super::admit::{Grip, WordRight};
use crate::mapping::Mapping;
use farmem_protocol::key::Key;
use farmem_protocol::wire::Status;

/// Its bytes.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
}

impl Arena {
    /// Its bytes.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }
}

/// Words and bytes.
#[derive(Debug, Default)]
pub struct Pool {}

impl Pool {
    pub(super) fn stands(&self, _right: &WordRight) -> bool {
        false
    }
    pub(super) fn admit(&self, _member: &Member, _key: Key, _offset: u64, _len: u64) -> Result<Grip, Status> {
        Err(Status::Access)
    }
    pub(super) fn read(&self, _offset: u64, _len: u32) -> Option<Vec<u8>> {
        None
    }
    pub(super) fn may_write(&self, _offset: u64, _len: u32) -> Status {
        Status::Access
    }
    pub(super) fn write(&self, _member: &Member, _offset: u64, _bytes: &[u8]) -> Status {
        Status::Access
    }
    pub(super) fn cas(&self, _member: &Member, _offset: u64, _expected: u64, _new: u64) -> Result<u64, Status> {
        Err(Status::Access)
    }
}
