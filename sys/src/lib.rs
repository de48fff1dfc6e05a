//! The unsafe floor of farmem: the kernel's interfaces as typed calls.
//!
//! * [`allocator`]: memory that the process's allocator has free.
//! * [`arena`]: the runtime's own memory, in place of the program's malloc.
//! * [`clock`]: time without system calls.
//! * [`confine`]: a service gives up calls and rights that it does not need.
//! * [`descriptors`]: descriptors of the runtime's own, beside the program's.
//! * [`disk`]: a file of pages.
//! * [`epoll`]: waiting for many descriptors.
//! * [`ends`]: the two ends of a queue that threads share.
//! * [`epochs`]: words of frames that threads share, and when a frame is used by none.
//! * [`errno`]: the meanings of the kernel's error numbers.
//! * [`gcm`]: seals and opens whole pages. [`xts`]: so that lines that did not change stay alike.
//! * [`gf`]: sums and products of bytes, for erasure codes.
//! * [`group`]: the memory group (cgroup) of this process.
//! * [`holdings`]: the memory that a runtime holds for itself, and how much of it is resident.
//! * [`raw`]: system calls that no hook, filter or errno gets in the way of.
//! * [`uffd`]: userfaultfd, with what the headers of old distributions lack.
//! * [`hold`]: keeps the memory of pages by a pipe while their mapping is dropped.
//! * [`lines`]: keyed hashes of a page's lines.
//! * [`mapping`]: slabs of a node: files of memory that node and host map.
//! * [`members`]: processes that share this memory, and whether one has ended while it held a lock
//!   or a page.
//! * [`memory`]: reservations, vectored madvise, copies of raced bytes.
//! * [`notes`]: many threads leave notes for one, without waiting for it.
//! * [`pagemap`]: which pages a process has, and which were written.
//! * [`probe`]: the system calls that a container or a sandbox forbids.
//! * [`process`]: for supervisors: signals as values, children, the process's own end.
//! * [`ptrace`]: another process: stopped, looked into, let go.
//! * [`shared`]: words that an application and its agent share, and sleeping on them.
//! * [`socket`]: stream sockets that never block.
//! * [`spin`]: how often a thread that spins offers its CPU to others.
//! * [`swap`]: for swapping: swapon, swapoff, the kernel's netlink.
//! * [`sync`]: a lock for code that runs in signal handlers.
//! * [`thread`]: threads that libc does not know of.
//! * [`ublk`]: block devices that this process serves.
//! * [`uring`]: io_uring, for commands to drivers.
//! * [`vdso`]: the clock that the kernel maps into each process.
//! * [`verbs`]: RDMA by libibverbs, if it is there.
//!
//! Nothing here knows what farmem does with it.

#![allow(unsafe_code)]

pub mod allocator;
// Its lock is a `const`, and loom's locks cannot be.
#[cfg(not(loom))]
pub mod arena;
pub mod clock;
pub mod confine;
pub mod descriptors;
pub mod disk;
pub mod ends;
pub mod epochs;
pub mod epoll;
pub mod errno;
pub mod gcm;
pub mod gf;
pub mod group;
pub mod hold;
pub mod holdings;
pub mod lines;
pub mod mapping;
pub mod members;
pub mod memory;
pub mod notes;
pub mod pagemap;
pub mod probe;
pub mod process;
pub mod ptrace;
pub mod raw;
pub mod shared;
pub mod socket;
pub mod spin;
pub mod swap;
pub mod sync;
pub mod thread;
pub mod ublk;
pub mod uffd;
pub mod uring;
pub mod vdso;
pub mod verbs;
pub mod xts;
