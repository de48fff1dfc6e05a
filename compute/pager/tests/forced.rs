//! Memory that the program may not read is read all the same, by `/proc/self/mem`: what is only reserved takes no far memory
//! by it, and what was written there stays.

#![allow(unsafe_code)] // Plays the kernel's side door.

mod common;

use farmem_fabric::{NodeAddr, Transport};
use farmem_pager::Pager;
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use std::fs::File;
use std::os::unix::fs::FileExt;

const LENT: u64 = 64 << 20;
const RESERVED: usize = 256 << 20;
const PIECE: usize = 64 << 10;
/// Pieces from one in which something is written to the next.
const WRITTEN: usize = 61;

/// What `/proc/self/mem` is asked, with all of it here.
fn forced<T>(pager: &Pager, at: usize, len: usize, write: bool, call: impl FnOnce() -> T) -> T {
    assert_eq!(pager.pins.pin_forced(at, len, write), len);
    let got = call();
    pager.pins.unpin(at, len);
    got
}

#[test]
fn reading_a_reservation_takes_no_far_memory() {
    let path = std::env::temp_dir().join(format!("farmem-forced-{}.sock", std::process::id()));
    let (_, member) = common::member(LENT, vec![NodeAddr::Shm(path)], Transport::Shm);
    let spec = common::spec(4 << 20);
    let pager = farmem_pager::start(spec, Pool::new(vec![member]).unwrap(), common::counters()).unwrap();
    common::serve_faults(pager);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let reserved = pager.space.mmap(0, RESERVED, libc::PROT_NONE, flags);
    assert!(reserved > 0, "{reserved}");
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut bytes = vec![0u8; PIECE];
    for round in 0..2 {
        for (nth, offset) in (0..RESERVED).step_by(PIECE).enumerate() {
            let at = reserved as usize + offset;
            bytes.fill(1);
            forced(pager, at, PIECE, false, || memory.read_exact_at(&mut bytes, at as u64)).unwrap();
            let mut expected = vec![0u8; PIECE];
            if nth % WRITTEN == 0 && round > 0 {
                expected[nth % PIECE] = 7;
            }
            assert!(bytes == expected, "round {round}, piece {nth}");
            if nth % WRITTEN == 0 {
                let at = at + nth % PIECE;
                let page = at & !(PAGE_BYTES - 1);
                forced(pager, page, PAGE_BYTES, true, || memory.write_all_at(&[7], at as u64)).unwrap();
            }
        }
    }
}
