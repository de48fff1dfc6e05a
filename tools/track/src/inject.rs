//! System calls that another process is made to do: how write tracking gets into
//! a program that was started by somebody else.
//!
//! Write tracking belongs to an address space and can be begun only from inside
//! it. So a stopped thread is borrowed for a `userfaultfd` call and a `close`, and
//! goes back by itself: a signal frame ([`crate::frame`]) with all that it was is
//! put where it disturbs nobody, and the thread is led to the instructions by which
//! signal handlers return, `mov $15, %eax; syscall`, which every C library has (on
//! x86-64 programs bring their own). At that call's entry it is made another call
//! instead, and its instruction pointer goes back before the two instructions: after
//! the other call it comes by there again.
//!
//! ```text
//! at edge ── frame ── registers ── mask ──►  mov; syscall ──► (entry of rt_sigreturn) ──► as it was
//!                                            ▲                     │ registers
//!                                            └── call's end ◄── the call
//! ```
//!
//! **Killed at any instant.** If this process is killed, the kernel lets all
//! tracees run on. Between any two requests that is:
//!
//! * *Frame written, registers not set*: the thread goes on as if nothing were; a
//!   page that nobody ever touched holds some bytes.
//! * *Registers set* (one request): it does the two instructions, and `rt_sigreturn`
//!   gives it registers, vectors and mask from the frame. If a signal comes for it in
//!   just this moment, when *mask not yet set*, its handler runs on the stack below
//!   the frame and returns to the two instructions. The other order would be wrong: a
//!   thread let go with its own registers keeps a mask that is set.
//! * *At the entry of `rt_sigreturn`*: it does that call.
//! * *There, registers of another call set*: it does the other, and then comes by the
//!   two instructions. *That call under way, at its end, its result read*: likewise.
//!   The program keeps a descriptor (of a userfaultfd, close-on-exec, that nothing is
//!   registered with) if this is between `userfaultfd` and `close`.
//! * *After `rt_sigreturn`*: it is as it was.
//!
//! Signals are blocked meanwhile, and pending ones arrive when the mask is back. SIGSTOP cannot be
//! blocked, and is passed on: the thread stops with its process and goes on with it, wherever it
//! is. SIGKILL ends it.
//!
//! **Who is borrowed**: a thread between two instructions of the program, never one
//! that is to restart a system call. `rt_sigreturn` forgets what `restart_syscall`
//! needs (a sleep would fail with EINTR), and a signal that came meanwhile would run
//! its handler before the call instead of ending it with EINTR, so that it would be
//! waited for in vain. If all threads are in such calls, tracking begins when one
//! returns ([`crate::tracees::Tracees::await_return`]). A thread in a restartable
//! sequence (rseq) is led to the sequence's abort, where the kernel would have led it
//! had the thread lost its CPU.
//!
//! **Where the frame is**: on the process's first stack, half a mebibyte below the
//! lowest page that it ever had (the kernel extends it), so that nothing was ever
//! stored there. Not below the thread's own stack pointer: stacks of coroutines
//! (Go's) are small, and below them is something else. The first thread would have to
//! come down there while a killed tracker's thread is on its way back.
//!
//! *Rejected*: borrowed registers that the tracker gives back (as it was: a killed one
//! left a program that crashed); `syscall; ret` with a return address on the stack
//! (needs a second place in the code, and fails under shadow stacks); a helper process
//! that borrows and is not killed (who kills all of a group or cgroup kills it too).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use farmem_sys::pagemap::{Pagemap, entry};
use farmem_sys::ptrace::{self, Registers, Remote, Told};
use farmem_sys::uffd;

use crate::diff::PAGE;
use crate::frame;
use crate::maps::{Behind, Mapping};
use crate::threads::status_of;
use crate::tracees::{Edge, Tracees};

/// Why a process cannot be made to track its writes.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A seccomp filter might kill it for a call that it does not expect.
    #[error("it has a seccomp filter")]
    Filtered,
    /// Not a 64-bit x86 program, or one that does something else with its stack or system calls.
    #[error("its system calls are not made as we know them")]
    Foreign,
    /// No thread of it was where a call can be made.
    #[error("none of its threads could be borrowed")]
    Busy,
    /// All of its threads are in system calls, and will be where it can be done when one returns.
    #[error("all of its threads are asleep")]
    Asleep,
    /// The call failed.
    #[error("{0}")]
    Call(#[from] io::Error),
}

/// `cs` of 64-bit code.
const CODE_64: u64 = 0x33;

/// How far below a stack's lowest page the frame is; less where the program's limit on stacks says
/// so.
const DEPTHS: [u64; 2] = [512 << 10, APART];

/// How much of the stack must be untouched above a frame's place (and its own bytes) for the place
/// to be used again.
const APART: u64 = 128 << 10;

/// How long a thread may take for an instruction or two, on a machine that has much else to do.
const WITHIN: Duration = Duration::from_secs(5);

/// Has a held process make a userfaultfd, and takes it from it.
///
/// # Errors
/// See [`Refused`]. The process is as it was.
pub fn userfaultfd(tracees: &mut Tracees, process: u32, mappings: &[Mapping]) -> Result<OwnedFd, Refused> {
    let tid = tracees.thread_of(process).ok_or(Refused::Busy)?;
    if is_filtered(tid) {
        return Err(Refused::Filtered);
    }
    let way_back = way_back(tid, mappings).ok_or(Refused::Foreign)?;
    let tid = match tracees.at_edge(process)? {
        Edge::At(tid) => tid,
        Edge::Asleep => return Err(Refused::Asleep),
        Edge::Nobody => return Err(Refused::Busy),
    };
    let stack = mappings.iter().find(|mapping| mapping.behind == Behind::Stack).ok_or(Refused::Foreign)?;
    let places = places(tracees, process, stack.start, mappings);
    // Errors of the borrowing itself: the thread has ended, or comes back without us.
    let mut borrowed = Borrowed::new(tracees, tid, way_back, &places)?;
    let taken = match borrowed.call(libc::SYS_userfaultfd, uffd::OPEN_FLAGS as u64)? {
        Ok(fd) => {
            let copy = ptrace::descriptor_of(process, fd as i32);
            borrowed.call(libc::SYS_close, fd)?.and(copy)
        }
        Err(refused) => Err(refused),
    };
    borrowed.go_back()?;
    Ok(taken?)
}

/// Whether a thread has a seccomp filter; others of its process may have none, or another.
fn is_filtered(tid: u32) -> bool {
    status_of(tid, "Seccomp").is_none_or(|mode| mode != "0")
}

/// `mov $15, %rax; syscall`, as C libraries have it, and the shorter `mov $15, %eax; syscall`.
const WAYS_BACK: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];

/// Bytes of code that are searched.
const MOST_CODE: u64 = 64 << 20;

/// Finds the instructions by which the program's signal handlers return.
fn way_back(tid: u32, mappings: &[Mapping]) -> Option<u64> {
    let is_code = |of: &&Mapping| of.execute && of.read && !of.write && matches!(of.behind, Behind::PrivateFile(_));
    let mut code: Vec<&Mapping> = mappings.iter().filter(is_code).collect();
    // Where it most likely is first: the program stands meanwhile.
    let unlikely = |of: &&Mapping| !["/libc.", "/libc-", "/ld-musl"].iter().any(|name| of.name.contains(name));
    code.sort_by_key(unlikely);
    let longest = WAYS_BACK[0].len();
    let (mut bytes, mut left) = (vec![0; 1 << 20], MOST_CODE);
    for mapping in code {
        let mut at = mapping.start;
        while at < mapping.end && left > 0 {
            let len = bytes.len().min((mapping.end - at) as usize);
            let n = ptrace::read(tid, &[Remote { start: at, len }], &mut bytes[..len]).unwrap_or(0);
            let found = |way: &&[u8]| bytes[..n].windows(way.len()).position(|window| window == *way);
            if let Some(offset) = WAYS_BACK.iter().find_map(found) {
                return Some(at + offset as u64);
            }
            left = left.saturating_sub(n as u64);
            if n < len || at + n as u64 == mapping.end {
                break;
            }
            at += (n - longest) as u64;
        }
    }
    None
}

/// A thread on its way back: before `rt_sigreturn`.
struct Borrowed<'a> {
    tracees: &'a mut Tracees,
    tid: u32,
    way_back: u64,
}

impl Borrowed<'_> {
    /// Borrows a thread at the edge. On an error it is as it was, or on its way back.
    fn new<'a>(tracees: &'a mut Tracees, tid: u32, way_back: u64, places: &[u64]) -> Result<Borrowed<'a>, Refused> {
        if is_filtered(tid) {
            return Err(Refused::Filtered);
        }
        let mut registers = ptrace::registers(tid)?;
        // Under shadow stacks the way back wants a token that only the kernel can write.
        let shadowed = status_of(tid, "x86_Thread_features").is_some_and(|features| features.contains("shstk"));
        if registers.cs != CODE_64 || shadowed || ptrace::dispatches_calls(tid).unwrap_or(false) {
            return Err(Refused::Foreign);
        }
        registers.rip = rseq_abort(tid, registers.rip)?.unwrap_or(registers.rip);
        let (mask, extended) = (ptrace::signal_mask(tid)?, ptrace::extended_state(tid)?);
        let thread = frame::Thread { registers: &registers, mask, extended: &extended };
        let at = push(tid, &thread, places)?;

        // No flag but that interrupts are on: a program that traps its own single steps must not
        // trap here.
        let way = Registers { rip: way_back, rsp: at + 8, orig_rax: u64::MAX, eflags: 0x202, ..registers };
        ptrace::set_registers(tid, &way)?;
        ptrace::set_signal_mask(tid, u64::MAX)?;
        let mut borrowed = Borrowed { tracees, tid, way_back };
        borrowed.go_on_to_call()?;
        Ok(borrowed)
    }

    /// Has it make a call of one argument, and come by the way back again.
    fn call(&mut self, number: i64, argument: u64) -> io::Result<io::Result<u64>> {
        let at_entry = ptrace::registers(self.tid)?;
        let other = Registers { orig_rax: number as u64, rdi: argument, rip: self.way_back, ..at_entry };
        ptrace::set_registers(self.tid, &other)?;
        self.go_on_to_call()?;
        let result = ptrace::registers(self.tid)?.rax as i64;
        self.go_on_to_call()?;
        let failed = (-4095..0).contains(&result);
        Ok(if failed { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as u64) })
    }

    /// Lets it be what it was, at the edge again.
    fn go_back(mut self) -> io::Result<()> {
        self.go_on_to_call()?;
        ptrace::interrupt(self.tid)?;
        ptrace::resume(self.tid, 0)?;
        if let Told::GroupStop(_) = self.told()? {
            self.tracees.note_group_stop(self.tid);
        }
        Ok(())
    }

    /// To the next entry to or end of a system call.
    fn go_on_to_call(&mut self) -> io::Result<()> {
        let mut signal = 0;
        loop {
            ptrace::resume_to_call(self.tid, signal)?;
            signal = match self.told()? {
                Told::Call => return Ok(()),
                Told::Signal(signal) => signal,
                // Its process is stopped; resumed, it goes on nevertheless, until it is back.
                _ => 0,
            };
        }
    }

    fn told(&mut self) -> io::Result<Told> {
        self.tracees.told_by(self.tid, Instant::now() + WITHIN)
    }
}

/// Where a frame may be, the best place first.
fn places(tracees: &Tracees, process: u32, stack: u64, mappings: &[Mapping]) -> Vec<u64> {
    let is_free = |at: &u64| mappings.iter().all(|of| of.end <= *at || of.start >= stack);
    let again = (|| {
        let pointers = tracees.stack_pointers(process)?;
        let tid = tracees.thread_of(process)?;
        let mut mark = [0; 8];
        ptrace::read(tid, &[Remote { start: stack, len: mark.len() }], &mut mark).ok()?;
        let mut above = [0; ((APART - frame::MOST) / PAGE as u64) as usize];
        let pagemap = Pagemap::open(tid).ok()?;
        let told = pagemap.entries(stack + frame::MOST, &mut above).ok()?;
        let untouched = told == above.len() && above.iter().all(|of| of & (entry::PRESENT | entry::SWAPPED) == 0);
        let on_its_way = pointers.iter().any(|at| (stack..stack + frame::MOST).contains(at));
        (u64::from_le_bytes(mark) == frame::MARK && untouched && !on_its_way).then_some(stack)
    })();
    let new = DEPTHS.map(|depth| stack.saturating_sub(depth));
    again.into_iter().chain(new.into_iter().filter(is_free)).collect()
}

/// Puts a thread's frame at the first place where it can be, and says where.
fn push(tid: u32, thread: &frame::Thread<'_>, places: &[u64]) -> Result<u64, Refused> {
    let memory = OpenOptions::new().write(true).open(format!("/proc/{tid}/mem"))?;
    for &at in places {
        let frame = frame::build(thread, at, ptrace::extended_component_end).ok_or(Refused::Foreign)?;
        if memory.write_all_at(&frame, at).is_ok() {
            return Ok(at);
        }
    }
    Err(Refused::Foreign)
}

/// Where a thread goes on that is in a restartable sequence and loses its CPU.
fn rseq_abort(tid: u32, rip: u64) -> io::Result<Option<u64>> {
    // A kernel that cannot be asked has no such sequences: it can since 5.13, and protects
    // asynchronously since 6.7.
    let Some(rseq) = ptrace::rseq_of(tid).unwrap_or(None) else { return Ok(None) };
    let words = |at: u64, count: usize| -> io::Result<Vec<u64>> {
        let mut bytes = vec![0; 8 * count];
        ptrace::read(tid, &[Remote { start: at, len: bytes.len() }], &mut bytes)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
    };
    // `struct rseq`: two ids of the CPU, then where the sequence is described.
    let sequence = words(rseq + 8, 1)?[0];
    if sequence == 0 {
        return Ok(None);
    }
    // `struct rseq_cs`: version and flags, where it begins, its length, where it is aborted.
    let described = words(sequence, 4)?;
    Ok((rip.wrapping_sub(described[1]) < described[2]).then_some(described[3]))
}
