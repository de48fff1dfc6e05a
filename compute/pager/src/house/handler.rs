//! `--fault thread`: faults by events.
//!
//! A fault puts the thread to sleep in the kernel. A handler thread reads the event, serves it by
//! the same code as the inline way, and wakes the sleeper. It is ten times slower, because an idle
//! core is woken twice. It is for systems where faults cannot be had by SIGBUS.
//!
//! The thread ends with its process, by an exec too. A process that shares the memory without being
//! a thread may go on, and its next fault would wait for ever. So a *watcher* stands by, a process
//! that shares the memory too. The kernel wakes it when the handler thread has ended. It gives the
//! others a second, in which vfork children execute, and then ends those that are left.

#![allow(unsafe_code)] // System calls.

use super::House;
use crate::ending;
use crate::wake::start_thread;
use farmem_protocol::addr::{PAGE_BYTES, PageId, is_far};
use farmem_sys::clock;
use farmem_sys::members::each_sharer;
use farmem_sys::raw::{getpid, sleep_ns, syscall, wait_readable};
use farmem_sys::thread::spawn_apart;
use std::sync::atomic::{AtomicU32, Ordering};

/// 1 while this memory has a handler thread. The kernel clears it when that thread ends, and wakes a
/// task that sleeps on it.
static LIVES: AtomicU32 = AtomicU32::new(0);
/// How long processes that share the memory may go on after the handler thread's end, ns.
const LEFT_NS: u64 = 1_000_000_000;

impl House {
    /// Starts both.
    pub(super) fn start_events(&self) {
        LIVES.store(1, Ordering::Relaxed);
        start_thread(|_| super::the_house().run_handler());
        if let Err(e) = spawn_apart(watch, getpid() as usize) {
            ending::say(&format!("the watcher of the handler thread could not be started: {e}"));
        }
    }

    fn run_handler(&self) -> ! {
        // SAFETY: a word that stays. The kernel writes to it when this thread ends.
        unsafe { syscall(libc::SYS_set_tid_address, [LIVES.as_ptr() as usize, 0, 0, 0, 0, 0]) };
        loop {
            let Some(event) = self.base.uffd.next_fault() else {
                wait_readable(self.base.uffd.fd(), 1_000);
                continue;
            };
            if !is_far(event.addr) {
                continue;
            }
            let begun = clock::ticks();
            let page = PageId::of(event.addr);
            let mut inside = self.base.threads.enter();
            self.incoming.serve(&mut inside, page, event.write, clock::ticks());
            drop(inside);
            // An install wakes the sleeper by itself. A page that was there already does not, nor
            // one that is no longer mapped.
            let _ = self.base.uffd.wake(page.addr(), PAGE_BYTES);
            self.base.count(&self.base.counters.wait_ns, clock::ns(clock::ticks() - begun));
        }
    }
}

/// What the watcher does: it waits for the end of the handler thread of process `home`.
fn watch(home: usize) -> ! {
    while LIVES.load(Ordering::Acquire) != 0 {
        // Not private: so the kernel wakes. The time limit is for a wake that comes before the sleep.
        let limit = libc::timespec { tv_sec: 10, tv_nsec: 0 };
        let wait = [LIVES.as_ptr() as usize, libc::FUTEX_WAIT as usize, 1, &raw const limit as usize, 0, 0];
        // SAFETY: a word that stays, and a live time.
        unsafe { syscall(libc::SYS_futex, wait) };
    }
    let left = || {
        let own = getpid();
        let mut left = Vec::new();
        each_sharer(|process| left.push(process));
        left.retain(|&process| process != own && process as usize != home);
        left
    };
    if !left().is_empty() {
        sleep_ns(LEFT_NS);
        let left = left();
        if !left.is_empty() {
            ending::say(&format!(
                "process {home}, which brought far memory for {} more that share its memory, has ended: \
                 they are ended too",
                left.len()
            ));
        }
        for process in left {
            // SAFETY: no pointers.
            unsafe { syscall(libc::SYS_kill, [process as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
        }
    }
    ending::exit_group(0)
}
