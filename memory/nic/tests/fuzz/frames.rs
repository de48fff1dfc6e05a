//! Frames, one by one, as hosts send them.

use crate::wire::secret;
use farmem_contract::conditions::record_if;
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Ask, Batch, Hello, Join, Known, Op, Purpose, Request, Verb};
use zerocopy::IntoBytes;

pub fn hello(purpose: Purpose) -> Vec<u8> {
    Hello::new(purpose).frame().as_bytes().to_vec()
}

/// Joins a run.
pub fn join() -> Vec<u8> {
    hello(Purpose::Join(Join { grace_ms: 1000, ..Join::default() }))
}

/// One more queue pair of the member of a number.
pub fn attach(member: u64, incarnation: u64) -> Vec<u8> {
    hello(Purpose::Attach(known(member, incarnation), 0))
}

/// The member of a number, as the node knows it.
pub fn known(member: u64, incarnation: u64) -> Known {
    Known { secret: secret(member), incarnation }
}

pub fn ask(number: u64, ask: Ask) -> Vec<u8> {
    Request::new(number, ask).frame().as_bytes().to_vec()
}

pub fn batch(first: u64, verbs: &[(Op, u64, u64, u32)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut operands = Vec::new();
    let mut all = Vec::new();
    for &(op, slab, offset, len) in verbs {
        let verb = Verb { op: op as u8, zero: [0; 3], len: len.into(), key: slab.into(), offset: offset.into() };
        let n = verb.operand_bytes().unwrap_or(0) as usize;
        operands.extend((0..n).map(|i| i as u8));
        all.extend_from_slice(verb.as_bytes());
    }
    let (count, bytes) = (verbs.len() as u16, operands.len() as u32);
    let head = Batch { count: count.into(), zero: 0.into(), bytes: bytes.into(), first: first.into() };
    out.extend_from_slice(head.as_bytes());
    out.extend(all);
    out.extend(operands);
    out
}

/// A batch of one record of lines, of a slab's pages by their slots.
pub fn lines_batch(first: u64, slab: u64, at: &[(u16, u64)]) -> Vec<u8> {
    let pages: Vec<[u8; 4096]> = (0..at.len()).map(|i| [i as u8 + 1; 4096]).collect();
    record_batch(first, slab, Op::Lines, &farmem_contract::record(SlabId(slab), at, &pages))
}

/// The same on the condition that pages of zeros are there.
pub fn lines_if_batch(first: u64, slab: u64, at: &[(u16, u64)]) -> Vec<u8> {
    let pages: Vec<[u8; 4096]> = (0..at.len()).map(|i| [i as u8 + 1; 4096]).collect();
    let zeros = vec![[0; 4096]; at.len()];
    record_batch(first, slab, Op::LinesIf, &record_if(SlabId(slab), at, &pages, &zeros, &[9; 16]))
}

pub fn record_batch(first: u64, slab: u64, op: Op, record: &[u8]) -> Vec<u8> {
    let verb =
        Verb { op: op as u8, zero: [0; 3], len: (record.len() as u32).into(), key: slab.into(), offset: 0.into() };
    let head = Batch { count: 1.into(), zero: 0.into(), bytes: (record.len() as u32).into(), first: first.into() };
    [head.as_bytes(), verb.as_bytes(), record].concat()
}

/// A batch with operands of one's own.
pub fn batch_of(first: u64, verbs: &[(Op, Key, u64, Vec<u8>)]) -> Vec<u8> {
    let (mut all, mut operands) = (Vec::new(), Vec::new());
    for (op, key, offset, operand) in verbs {
        let len = match op {
            Op::Cas | Op::Faa => 8,
            Op::Bind | Op::Invalidate => 0,
            Op::Read => 64,
            _ => operand.len() as u32,
        };
        let verb = Verb { op: *op as u8, zero: [0; 3], len: len.into(), key: key.0.into(), offset: (*offset).into() };
        all.extend_from_slice(verb.as_bytes());
        operands.extend_from_slice(operand);
    }
    let (count, bytes) = (verbs.len() as u16, operands.len() as u32);
    let head = Batch { count: count.into(), zero: 0.into(), bytes: bytes.into(), first: first.into() };
    [head.as_bytes().to_vec(), all, operands].concat()
}
