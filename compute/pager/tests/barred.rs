//! A fault is under way, and before the pager hears of it another thread takes the right to read away: what comes in can
//! be read by nobody, and eviction must know.
//!
//! The SIGBUS handler of this test holds the fault back between the kernel's look at the mapping and the pager's.

#![allow(unsafe_code)] // Plays the program: touches the memory that the pager pages.

mod common;

use farmem_fabric::{NodeAddr, Transport};
use farmem_pager::Pager;
use farmem_pool::Pool;
use farmem_protocol::addr::PAGE_BYTES;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LOCAL: usize = 4 << 20;
/// What the pager's table counts together.
const BLOCK: usize = 2 << 20;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

static FAULTING: AtomicUsize = AtomicUsize::new(0);
static STAGE: AtomicU32 = AtomicU32::new(0);

/// The access is under way: the kernel found that it may be.
const HELD: u32 = 1;
/// The pager may hear of it.
const GO_ON: u32 = 2;
/// It was served, made again, and is not allowed any more.
const BARRED: u32 = 3;
/// It is allowed again.
const ALLOWED: u32 = 4;

/// Both sides wait for each other, in signal handlers too.
fn wait_for(stage: u32) {
    let begun = Instant::now();
    while STAGE.load(Ordering::SeqCst) != stage {
        assert!(begun.elapsed() < Duration::from_secs(60), "stage {stage} does not come");
        std::thread::yield_now();
    }
}

fn reach(stage: u32) {
    STAGE.store(stage, Ordering::SeqCst);
}

/// An access to the page that is held back.
extern "C" fn on_access(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's argument.
    let addr = unsafe { (*info).si_addr() } as usize;
    let held = addr & !(PAGE_BYTES - 1) == FAULTING.load(Ordering::SeqCst);
    match signal {
        libc::SIGBUS if held && STAGE.load(Ordering::SeqCst) == 0 => {
            reach(HELD);
            wait_for(GO_ON);
        }
        libc::SIGSEGV if held && STAGE.load(Ordering::SeqCst) == GO_ON => {
            reach(BARRED);
            wait_for(ALLOWED);
            return;
        }
        libc::SIGSEGV => farmem_pager::ending::die(99, &format!("SIGSEGV at {addr:#x}, which nobody holds")),
        _ => {}
    }
    common::on_sigbus(signal, info, context);
}

fn map(pager: &Pager, len: usize) -> usize {
    let at = pager.space.mmap(0, len, RW, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    assert!(at > 0, "{at}");
    at as usize
}

/// All that is local leaves.
fn squeeze(pager: &Pager) {
    let len = 3 * LOCAL;
    let at = map(pager, len);
    // SAFETY: the mapping just made.
    (0..len).step_by(PAGE_BYTES).for_each(|i| unsafe { ((at + i) as *mut u8).write_volatile(1) });
    assert_eq!(pager.space.munmap(at, len), 0);
}

fn is_resident(pager: &Pager, page: usize) -> bool {
    let mut there = 0u8;
    assert_eq!(pager.space.mincore(page, PAGE_BYTES, |_, here| there = here as u8), 0);
    there & 1 != 0
}

/// Reads a page that was never touched, in a block of which nothing was. `bar` takes the right away while the access is
/// held back.
fn held_back(pager: &'static Pager, bar: impl FnOnce(usize)) {
    let len = 4 * BLOCK;
    let mapping = map(pager, len);
    let block = (mapping + 1).next_multiple_of(BLOCK);
    let page = block + 5 * PAGE_BYTES;
    FAULTING.store(page, Ordering::SeqCst);
    reach(0);
    // SAFETY: within the mapping, which stays.
    let reader = std::thread::spawn(move || unsafe { (page as *const u64).read_volatile() });
    wait_for(HELD);
    bar(block);
    reach(GO_ON);
    wait_for(BARRED);
    assert!(is_resident(pager, page), "what came in is to leave");
    squeeze(pager);
    assert!(!is_resident(pager, page));
    assert_eq!(pager.space.mprotect(block, BLOCK / 2, RW), 0);
    reach(ALLOWED);
    assert_eq!(reader.join().unwrap(), 0);
    assert_eq!(pager.space.munmap(mapping, len), 0);
}

#[test]
fn a_page_that_was_made_unreadable_while_it_came_in_can_leave() {
    let path = std::env::temp_dir().join(format!("farmem-barred-{}.sock", std::process::id()));
    let (_, member) = common::member(256 << 20, vec![NodeAddr::Shm(path)], Transport::Shm);
    let spec = common::spec(LOCAL as u64);
    let pager = farmem_pager::start(spec, Pool::new(vec![member]).unwrap(), common::counters()).unwrap();
    common::serve_faults(pager);
    common::handle(libc::SIGBUS, on_access);
    common::handle(libc::SIGSEGV, on_access);

    held_back(pager, |block| assert_eq!(pager.space.mprotect(block, BLOCK / 2, libc::PROT_NONE), 0));
    // Another page of the block is touched before the one that is held back.
    held_back(pager, |block| {
        assert_eq!(pager.space.mprotect(block, BLOCK / 2, libc::PROT_NONE), 0);
        // SAFETY: within the mapping.
        unsafe { ((block + BLOCK / 2) as *mut u8).write_volatile(1) };
    });
    // The call fails, and has done what it could.
    held_back(pager, |block| {
        assert_eq!(pager.space.munmap(block + BLOCK / 2, BLOCK), 0);
        assert_eq!(pager.space.mprotect(block, BLOCK, libc::PROT_NONE), -(libc::ENOMEM as isize));
    });
}
