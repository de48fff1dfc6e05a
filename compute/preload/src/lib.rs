//! The library that `farmem run` loads into a program.
//!
//! It makes the program's large anonymous memory far, and handles the system calls that would fail
//! on far memory:
//!
//! ```text
//! program ── load/store ─► SIGBUS ─► signals::on_bus ─► pager.fault
//!        ├─ libc call ────► sites (patched libc) ─┐
//!        └─ raw syscall ──► net (seccomp, SIGSYS) ┴─► dispatch ─► mappings   mmap, munmap, … ─► pager
//!                                                              ├► guard      pin what the call uses ─► gate
//!                                                              └► signals, hidden, counted
//! ```
//!
//! | file | what happens there |
//! |---|---|
//! | `start` | the constructor: everything below is armed, in this order |
//! | `run`, `process` | the run's settings; this process's pager and counters |
//! | `roster` | nodes that join and leave the run while it goes on |
//! | `bound` | libc's names that are bound within the library, so that no function of the program's is called |
//! | `gate` | the one place from which system calls pass the filter |
//! | `sites` | libc's own `syscall` instructions, patched |
//! | `net`, `filter` | the seccomp filter for all other calls, and how filters are built |
//! | `go` | the calls of Go programs that the filter looks for besides |
//! | `call`, `dispatch` | one system call, and how it is handled |
//! | `mappings` | calls that change mappings, of far memory, near memory, or both |
//! | `guard` | which memory each system call uses |
//! | `signals` | SIGBUS and SIGSYS, which the runtime uses without the program's notice |
//! | `threads` | the record that is kept for each thread |
//! | `hidden`, `counted` | the runtime's descriptors and threads, which the program does not see |
//! | `robust` | locks that a thread holds when it ends |
//! | `near_stack` | stacks for work that begins on a far one |
//! | `sandbox`, `bpf`, `confined` | filters of the program's own; whether there are any |
//! | `limits` | limits on addresses that the program sets |
//! | `fork`, `exec`, `image` | children and executed images, and what they inherit |
//! | `stays_near` | programs of the run without far memory are noted for its summary |
//! | `hints` | the table of `farmem.h`, for programs that know of farmem |
//! | `waits` | the instructions at which the program faults, if the run asks |
//! | `exports` | libc functions that are interposed by name |
//!
//! Rules of this crate: it runs inside other people's programs, in signal handlers, before `main`,
//! after `exit`. So it uses no thread-local: `__tls_get_addr` reads memory that glibc allocates
//! with the program's malloc. It uses no std lock or thread, no `dlsym` in a hook, no unwinding. It
//! imports only the symbols that `tests/tests/imports.rs` lists with their reasons.

// Tests leave the exports out, because they would hook the test runner itself.
#![cfg_attr(test, allow(dead_code))]
#![allow(unsafe_code)] // This crate *is* the unsafe border with the program; each block says why it holds.

mod bound;
mod bpf;
mod break_place;
mod call;
mod confined;
mod counted;
mod dispatch;
mod exec;
#[cfg(not(test))]
mod exports;
mod filter;
mod fork;
mod gate;
mod go;
mod guard;
mod hidden;
mod hints;
mod image;
mod limits;
mod mappings;
mod near_stack;
mod net;
mod process;
mod robust;
mod roster;
mod run;
mod sandbox;
mod signals;
mod sites;
mod start;
mod stays_near;
mod threads;
mod waits;

// The runtime's own memory, never the program's malloc.
#[global_allocator]
static ARENA: farmem_sys::arena::Arena = farmem_sys::arena::Arena::new();
