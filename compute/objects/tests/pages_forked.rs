//! Huge pages that a forked child has, too, while a part of them is given back. In a process of its own, whose memory is
//! counted.

#![allow(unsafe_code)] // It forks, and has a reservation of its own.

mod common;
#[path = "common/huge.rs"]
mod huge;

use common::{address, node};
use farmem::Transport;
use farmem_objects::{FarBox, FarVec, Heap};
use farmem_sys::pagemap::{Pagemap, entry};
use huge::is_given;

/// KiB of huge pages that this process's heaps have in parts, by the kernel's flags. `None`: this user may not ask.
fn of_huge_pages() -> Option<usize> {
    use std::os::unix::fs::FileExt;
    let (flags, map) = (std::fs::File::open("/proc/kpageflags").ok()?, Pagemap::open(std::process::id()).ok()?);
    let (mut parts, mut mapping, mut whole) = (0, (0, 0), 0);
    for line in std::fs::read_to_string("/proc/self/smaps").ok()?.lines() {
        let (first, rest) = line.split_once(' ')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some((from, until)) = first.split_once('-').and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            mapping = (from, until);
        } else if first == "AnonHugePages:" {
            whole = rest.trim().trim_end_matches(" kB").parse::<usize>().ok()?;
        } else if first == "VmFlags:" && rest.contains("dd") && !rest.contains("sh") {
            let (mut runs, mut of_huge) = (Vec::new(), 0);
            map.scan(mapping.0, mapping.1, false, &mut runs).ok()?;
            for run in runs {
                let mut pages = vec![0; ((run.end - run.start) / 4096) as usize];
                map.entries(run.start, &mut pages).ok()?;
                for page in pages.into_iter().filter(|page| page & entry::PRESENT != 0) {
                    let mut word = [0; 8];
                    let number = page & ((1 << 55) - 1);
                    flags.read_exact_at(&mut word, 8 * number).ok().filter(|()| number != 0)?;
                    // KPF_THP
                    of_huge += 4 * (u64::from_le_bytes(word) >> 22 & 1) as usize;
                }
            }
            parts += of_huge.saturating_sub(whole);
        }
    }
    Some(parts)
}

/// Objects of a segment: with their headers 80 bytes each.
const EACH: u64 = (64 << 10) / 80;

/// A segment that goes back while a forked child has its huge page takes no memory once the child has ended.
#[test]
fn what_goes_back_beside_a_forked_child_is_given_back_after_its_end() {
    if !is_given() {
        eprintln!("skipped: this kernel gives no huge page now");
        return;
    }
    let node = node();
    let heap = Heap::builder().local(16 << 20).node(address(&node, Transport::Shm)).build().unwrap();
    let small: Vec<FarBox<[u64; 8]>> = (0..150_000).map(|n| heap.alloc(&[n; 8]).unwrap()).collect();
    let mut ends = [0; 2];
    // SAFETY: two live numbers.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child reads one byte and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the byte has room.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut ends).cast(), 1);
            libc::_exit(0);
        }
    }
    // Another class takes every other segment of the small one.
    let small: Vec<(u64, FarBox<[u64; 8]>)> = (0..).zip(small).filter(|(n, _)| (n / EACH).is_multiple_of(2)).collect();
    let mut large: FarVec<u64> = heap.vec();
    (0..40u64).for_each(|n| large.extend_from_slice(&vec![n; 20_000]).unwrap());
    let whole = of_huge_pages();
    // SAFETY: the pipe and the child are this test's.
    unsafe {
        libc::close(ends[1]);
        assert_eq!(libc::waitpid(child, &raw mut ends[1], 0), child);
        libc::close(ends[0]);
    }
    for _ in 0..1000 {
        drop(heap.scope());
    }
    if let (Some(before), Some(after)) = (whole, of_huge_pages()) {
        assert!(before > 0 && after < before, "{before} KiB of huge pages in parts, and {after} after the child");
    }
    assert!(small.iter().all(|(n, one)| one.read().unwrap() == [*n; 8]));
    assert_eq!(large.read(799_999).unwrap(), 39);
}
