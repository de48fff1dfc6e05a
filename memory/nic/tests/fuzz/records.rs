//! Records of changed lines that are not what was sent.

use crate::frames::{ask, attach, batch, batch_of, join, lines_batch, lines_if_batch};
use crate::wire::{Wire, nic};
use farmem_nic::engine::Goodbye;
use farmem_protocol::key::Key;
use farmem_protocol::lines::conditional::Refused;
use farmem_protocol::wire::{Ask, Batch, Op, Verb};
use std::sync::atomic::Ordering;

/// Any one byte of a record changed on its way: the connection is closed, and the slab as it was.
#[test]
fn records_that_lie_change_nothing() {
    let nic = nic();
    let mut owner = Wire::new(&nic);
    owner.feed(&[join(), ask(1, Ask::Grant)].concat(), 1000, 1);
    let good = lines_batch(0, 1, &[(0, 0b11), (1, 1 << 63)]);
    let record_at = size_of::<Batch>() + size_of::<Verb>();
    for at in record_at..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let mut wire = Wire::new(&nic);
        wire.feed(&[attach(2, nic.incarnation), bad].concat(), 100, 1);
        assert!(wire.engine.is_none(), "byte {at} went unnoticed");
    }
    assert_eq!(nic.tally.records.load(Ordering::Relaxed), 0);
    // With conditions the same; what lies behind the checksum are these, and wrong ones refuse.
    let good = lines_if_batch(0, 1, &[(0, 0b11), (1, 1 << 63)]);
    for at in record_at..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        let mut wire = Wire::new(&nic);
        wire.feed(&[attach(2, nic.incarnation), bad].concat(), 100, 1);
        // The record's own bytes end 32 before its last, two conditions and the seed.
        assert_eq!(wire.engine.is_some(), at >= good.len() - 32, "byte {at}");
        if wire.engine.is_some() {
            let refused = Refused(u64::from_le_bytes(wire.said[wire.said.len() - 8..].try_into().unwrap()));
            let page = |page: usize| at >= good.len() - 16 || (at - (good.len() - 32)) / 8 == page;
            assert_eq!([0, 1].map(|n| refused.contains(n)), [0, 1].map(page), "byte {at}");
            // What was not refused is there: as it was before.
            let zeros = batch_of(1, &[(Op::Write, Key(1), 0, vec![0; 8192])]);
            wire.feed(&zeros, 1000, 1);
        }
        wire.close(Goodbye::Cut, 1);
    }
    let mut wire = Wire::new(&nic);
    wire.feed(&[attach(2, nic.incarnation), batch(0, &[(Op::Read, 1, 0, 8192)])].concat(), 100, 1);
    let read = &wire.said[wire.said.len() - 8192..];
    assert!(read.iter().all(|&byte| byte == 0));
    for wire in [wire, owner] {
        let mut wire = wire;
        wire.close(Goodbye::Cut, 1);
    }
}
