//! Records with conditions.

use super::{Subject, finish, get, pattern, put, record};
use farmem_protocol::addr::SlabId;
use farmem_protocol::lines::MAX_RECORD_BYTES;
use farmem_protocol::lines::conditional::{Refused, append};
use farmem_sys::lines::{Hasher, Seed, Unit};

/// A record of lines (see [`record`]) to be laid onto pages that hold `before`.
pub fn record_if(slab: SlabId, at: &[(u16, u64)], bytes: &[[u8; 4096]], before: &[[u8; 4096]], seed: &Seed) -> Vec<u8> {
    let hasher = Hasher::new(seed, Unit::best());
    let was = at.iter().zip(before).map(|(&(_, lines), page)| hasher.sum_in(page, lines));
    let mut out = record(slab, at, bytes);
    let len = out.len();
    out.resize(MAX_RECORD_BYTES, 0);
    let len = append(&mut out, len, was, seed).expect("it fits");
    out.truncate(len);
    out
}

/// Only pages whose lines are as expected change, and the others are named; a second time none does.
pub(super) fn lines_are_laid_only_onto_what_they_were_taken_for(subject: &Subject<'_>) {
    let session = subject.join(1);
    let slab = session.grant().expect("grant").id;
    let mut queue = session.queue_pair().expect("queue pair");
    let pages: Vec<[u8; 4096]> = (0..6).map(|n| pattern(n, 4096).try_into().expect("a page")).collect();
    assert_eq!(put(&mut queue, slab, 0, &pages.concat()), Ok(0));
    let at: Vec<(u16, u64)> = (0..6).map(|n| (n, 0x8000_0000_0000_0005 << n)).collect();
    let new = [[0xAA; 4096]; 6];
    let mut taken_for = pages.clone();
    // A byte of a line that goes along; of page 4, one of a line that does not.
    taken_for[1][64] ^= 1;
    taken_for[4][0] ^= 1;
    let mut model = pages;
    for (seed, refused) in [([1; 16], [1].as_slice()), ([2; 16], &[0, 1, 2, 3, 4, 5])] {
        let record = record_if(slab, &at, &new, &taken_for, &seed);
        // SAFETY: the record outlives the verb, which is awaited here.
        unsafe { queue.lines_if(1, slab, record.as_ptr(), record.len() as u32) };
        let value = Refused(finish(&mut queue, 1)[0].result.expect("carried out"));
        assert!((0..6).all(|n| value.contains(n) == refused.contains(&n)), "{value:?}");
        for &(n, lines) in at.iter().filter(|(n, _)| !refused.contains(&(*n as usize))) {
            let page = &mut model[n as usize];
            (0..64).filter(|k| lines >> k & 1 == 1).for_each(|k| page[64 * k..][..64].fill(0xAA));
        }
        assert!(get(&mut queue, slab, 0, 6 * 4096) == Ok(model.concat()));
    }
}
