//! System calls that another process is made to do: how write tracking gets into
//! a program that was started by somebody else.
//!
//! Write tracking belongs to an address space and can be begun only from inside
//! it. So a stopped thread is given the registers of a `userfaultfd` call and led
//! to a `syscall` instruction of the kernel's own page of code, the vDSO, stands
//! again when the call returns, and gets its registers back. Nothing of the
//! program is overwritten. Signals are blocked meanwhile, so that no handler runs
//! on the borrowed registers; the thread ends in a trap rather than at the call's
//! end, because from there the kernel itself restarts the call that the thread
//! was interrupted in.
//!
//! All of it takes some 50 µs. Were this process killed within them, the thread
//! would go on with the wrong registers: the one moment in which a kill -9 of the
//! tracker can harm the program, once for each process and exec.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use farmem_sys::ptrace::{self, Registers, Remote, Told};
use farmem_sys::uffd;

use crate::maps::Mapping;
use crate::tracees::{Tracees, status_of};

/// Why a process cannot be made to track its writes.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// A seccomp filter might kill it for a call that it does not expect.
    #[error("it has a seccomp filter")]
    Filtered,
    /// Not a 64-bit x86 program, or one without a vDSO.
    #[error("its system calls are not made as we know them")]
    Foreign,
    /// No thread of it was where a call can be made.
    #[error("none of its threads could be borrowed")]
    Busy,
    /// The call failed.
    #[error("{0}")]
    Call(#[from] io::Error),
}

/// `cs` of 64-bit code.
const CODE_64: u64 = 0x33;

/// Has a held process make a userfaultfd, and takes it from it.
///
/// # Errors
/// See [`Refused`]. The process is as it was.
pub fn userfaultfd(tracees: &mut Tracees, process: u32, mappings: &[Mapping]) -> Result<OwnedFd, Refused> {
    let tid = tracees.thread_of(process).ok_or(Refused::Busy)?;
    if status_of(tid, "Seccomp").is_none_or(|mode| mode != "0") {
        return Err(Refused::Filtered);
    }
    let instruction = syscall_instruction(tid, mappings).ok_or(Refused::Foreign)?;
    let tid = tracees.at_edge(process)?.ok_or(Refused::Busy)?;
    let mut borrowed = Borrowed::new(tid, instruction)?;
    let made = borrowed.call(libc::SYS_userfaultfd, [uffd::OPEN_FLAGS as u64, 0, 0]);
    let taken = made.and_then(|fd| {
        let copy = ptrace::descriptor_of(process, fd as i32);
        borrowed.call(libc::SYS_close, [fd, 0, 0])?;
        copy
    });
    if borrowed.give_back()? {
        tracees.note_group_stop(tid);
    }
    Ok(taken?)
}

/// Finds `syscall` in the vDSO, which has it for the clocks that it cannot read by itself.
fn syscall_instruction(tid: u32, mappings: &[Mapping]) -> Option<u64> {
    let vdso = mappings.iter().find(|mapping| mapping.name == "[vdso]")?;
    let mut code = vec![0; (vdso.end - vdso.start) as usize];
    let n = ptrace::read(tid, &[Remote { start: vdso.start, len: code.len() }], &mut code).ok()?;
    let at = code[..n].windows(2).position(|pair| pair == [0x0f, 0x05])?;
    Some(vdso.start + at as u64)
}

/// A thread at the edge of the program's code, between having its registers taken and given back.
struct Borrowed {
    tid: u32,
    instruction: u64,
    registers: Registers,
    mask: u64,
    group_stop: bool,
}

impl Borrowed {
    fn new(tid: u32, instruction: u64) -> Result<Borrowed, Refused> {
        let registers = ptrace::registers(tid)?;
        if registers.cs != CODE_64 {
            return Err(Refused::Foreign);
        }
        let mask = ptrace::signal_mask(tid)?;
        ptrace::set_signal_mask(tid, u64::MAX)?;
        Ok(Borrowed { tid, instruction, registers, mask, group_stop: false })
    }

    /// Makes the thread do a call, and stand in a trap after it.
    fn call(&mut self, number: i64, arguments: [u64; 3]) -> io::Result<u64> {
        let mut registers = self.registers;
        registers.rip = self.instruction;
        registers.rax = number as u64;
        // Not in a call: nothing for the kernel to restart.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx] = arguments;
        ptrace::set_registers(self.tid, &registers)?;
        // Its entry, then its return.
        for _ in 0..2 {
            ptrace::resume_to_call(self.tid)?;
            self.until_call()?;
        }
        let result = ptrace::registers(self.tid)?.rax as i64;
        ptrace::interrupt(self.tid)?;
        ptrace::resume(self.tid, 0)?;
        self.group_stop = matches!(self.next()?, Told::GroupStop(_));
        if (-4095..0).contains(&result) { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as u64) }
    }

    /// Gives the registers back. Returns whether the thread is in a group stop.
    fn give_back(self) -> io::Result<bool> {
        ptrace::set_registers(self.tid, &self.registers)?;
        ptrace::set_signal_mask(self.tid, self.mask)?;
        Ok(self.group_stop)
    }

    fn until_call(&mut self) -> io::Result<()> {
        loop {
            match self.next()? {
                Told::Call => return Ok(()),
                Told::Exited(_) | Told::Killed(_) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
                // A stop that cannot be blocked: SIGSTOP, or an interrupt that was asked for before.
                _ => ptrace::resume_to_call(self.tid)?,
            }
        }
    }

    fn next(&self) -> io::Result<Told> {
        let until = Instant::now() + Duration::from_secs(2);
        loop {
            if let Some((_, told)) = ptrace::told_by(self.tid as i32)? {
                return Ok(told);
            }
            if Instant::now() > until {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            std::hint::spin_loop();
        }
    }
}
