//! A stream of a volume is let in by what was proven, whatever was made since.

use super::*;
use crate::shares::{By, Peer};
use farmem_protocol::wire::{NewVolume, Verdict};
use farmem_trust::agree::Agreed;

#[test]
fn a_volume_that_is_made_behind_a_proof_is_not_opened_by_it() {
    let nic = Nic::new(Lending::new(4 * SLAB_BYTES, Backing::Small), || [7; 16]);
    let new = NewVolume { id: [5; 16], size: 4096, overcommit: true, ..NewVolume::default() };
    let agreed = Agreed::from([9; 32]);
    let known = Known { secret: new.id, incarnation: nic.incarnation };
    assert!(matches!(nic.swap().find(&known, &None, None), Err(Verdict::Unknown)));
    let of = Peer::User(1);
    nic.swap().make(&new, (of, By::Peer(of)), (None, Some(agreed)), 1).unwrap();
    let opens = |proven| nic.swap().find(&known, &None, proven).is_ok();
    assert_eq!([None, Some(Agreed::from([8; 32])), Some(agreed)].map(opens), [false, false, true]);
}
