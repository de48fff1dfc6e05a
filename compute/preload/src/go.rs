//! Go: the one widespread runtime that makes its calls about signals without libc.
//!
//! A Go program that is linked with C (cgo) takes its heap by libc's `mmap`, so that it is far,
//! stacks of goroutines included, and its threads by `pthread_create`. But masks and alternate
//! stacks it sets by instructions of its own: SIGBUS would come to be blocked, and the next fault
//! end the process. These calls are *marked*, and the filter traps marked calls from there, like
//! those of libc's that are not patched ([`crate::net`]).
//!
//! ```text
//! b8 0e 00 00 00     mov $14,%eax        the runtime's: masks, actions, stacks, mappings
//! 0f 05              syscall             becomes   b8 0e 00 00 40   mov $14+MARK,%eax
//!                                                  0f 05            syscall
//!
//! 0f 05              syscall             package syscall's, for any number
//! 48 3d 01 f0 ff ff  cmp $-4095,%rax     becomes   e9 rr rr rr rr   jmp stub, which marks some numbers,
//!                                                  01 f0 ff ff      makes the call and the comparison
//! ```
//!
//! They do not call the runtime as libc's patched sites do: that would be some ns where a trap is 3
//! µs, but a goroutine's stack may have no room for it. Go without cgo is static, or never calls
//! libc: it has no far memory, and needs none of this. A Go library in another program
//! (`-buildmode=c-shared`) is not looked for.
//!
//! *Why a mark.* A filter outlives its image. A Go program may execute an image without this
//! library (static, or another user's), which has no handler for trapped calls. Two Go programs at
//! fixed addresses often have the same layout at their beginning, where these instructions are. If
//! calls were trapped by address alone, the other program's call would be trapped too, and SIGSYS
//! would kill it. But its call is not marked. (The mark is the bit of the x32 ABI, which the filter
//! sees and nothing uses. Rejected: `int $0x80`, which the filter can tell too, but not every
//! kernel has.)

use crate::call::{ALWAYS, MARK, NEVER};
use crate::filter::{Missed, has_room};
use crate::sites;
use farmem_sys::raw::{SignalsBlocked, checked, syscall};

/// The addresses behind such instructions, as the filter sees them.
#[derive(Default)]
pub struct Sites {
    /// Their calls are marked. One filter must look for all of these, because the kernel has no
    /// calls of such numbers.
    pub marked: Missed,
    /// They are as they were: those for which that filter has no room, or no stub is near.
    pub plain: Missed,
}

/// Marks such calls where the program's own image is Go's. None where the image cannot be written
/// to, as libc cannot then.
pub fn mark() -> Sites {
    let mut sites = Sites::default();
    // SAFETY: the callback is given what it expects, for the time of this call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut sites).cast()) };
    sites
}

/// Whether the filters that are there already let a trapped call be marked. A filter that kills for
/// numbers of another ABI (libseccomp's do, in a container or a service) does not: that verdict
/// comes before any trap. It is tried in a child that shares everything and does nothing else. If
/// it cannot be tried, calls are trapped by address.
fn may_mark() -> bool {
    const FILTERS: isize = 2;
    // SAFETY: no pointers.
    if unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) } != FILTERS {
        return true;
    }
    // SIGSYS too: blocked, it kills the child whatever handler there is.
    let (all, mut before) = (u64::MAX, 0u64);
    let _signals = SignalsBlocked::new();
    let mut status = 0i32;
    // SAFETY: live words. The child shares this stack while its parent waits, and uses nothing of
    // it: two system calls, everything in registers, and the way back from the first. It sends no
    // signal when it ends (the flags have none), so that the program hears nothing.
    unsafe {
        let set = libc::SIG_SETMASK as usize;
        syscall(libc::SYS_rt_sigprocmask, [set, &raw const all as usize, &raw mut before as usize, 8, 0, 0]);
        let mut child = libc::SYS_clone;
        core::arch::asm!(
            // By the gate, because more filters of the run let its calls pass. The return address
            // stays on the stack.
            "call {gate}",
            "test rax, rax",
            "jnz 2f",
            "xor edi, edi", "xor esi, esi", "xor edx, edx", "mov r10d, 8",
            "mov eax, {marked}",
            "syscall",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            gate = in(reg) crate::gate::GATE,
            marked = const (MARK as i64 | libc::SYS_rt_sigprocmask),
            exit = const libc::SYS_exit,
            inout("rax") child,
            inout("rdi") (libc::CLONE_VM | libc::CLONE_VFORK) as i64 => _,
            inout("rsi") 0 => _, inout("rdx") 0 => _, inout("r10") 0 => _, in("r8") 0,
            out("rcx") _, out("r11") _,
        );
        let waited = child > 0 && {
            let wait = [child as usize, &raw mut status as usize, libc::__WALL as usize, 0, 0, 0];
            syscall(libc::SYS_wait4, wait) == child as isize
        };
        syscall(libc::SYS_rt_sigprocmask, [set, &raw const before as usize, 0, 8, 0, 0]);
        waited && status == 0
    }
}

/// Looks at the first image, which is the program's, and at no other.
///
/// # Safety
/// For `dl_iterate_phdr`, with a [`Sites`] that is the caller's alone.
unsafe extern "C" fn look(image: *mut libc::dl_phdr_info, _size: usize, sites: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader's own description of what it has mapped; `sites` is the caller's.
    let (image, sites) = unsafe { (&*image, &mut *sites.cast::<Sites>()) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(image.dlpi_phdr, image.dlpi_phnum as usize) };
    let segment = |header: &libc::Elf64_Phdr| {
        let at = (image.dlpi_addr + header.p_vaddr) as usize;
        // SAFETY: a segment that the loader has mapped, and that nobody writes to before the
        // program starts.
        (at, unsafe { std::slice::from_raw_parts(at as *const u8, header.p_filesz as usize) })
    };
    let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    // A note outside of all segments is not in memory, even if the header names it.
    let is_there = |note: &libc::Elf64_Phdr| {
        let end = |h: &libc::Elf64_Phdr| h.p_vaddr.saturating_add(h.p_filesz);
        loaded().any(|h| h.p_flags & libc::PF_R != 0 && h.p_vaddr <= note.p_vaddr && end(note) <= end(h))
    };
    if headers.iter().any(|h| h.p_type == libc::PT_NOTE && is_there(h) && has_build_id(segment(h).1)) {
        const READ_AND_RUN: u32 = libc::PF_R | libc::PF_X;
        let may_mark = may_mark();
        for header in loaded().filter(|h| h.p_flags == READ_AND_RUN) {
            let (at, text) = segment(header);
            // SAFETY: the image's text, before anything of it runs: constructors do, of no thread
            // but this one.
            unsafe { mark_all(at, text.len(), instructions(text).collect(), may_mark, sites) };
        }
    }
    1
}

/// Marks calls in the text at `at`, by the offsets of their instructions.
///
/// # Safety
/// `len` bytes of text, which no other thread runs, and calls as [`instructions`] finds them.
unsafe fn mark_all(at: usize, len: usize, calls: Vec<(usize, Number)>, may_mark: bool, sites: &mut Sites) {
    if !may_mark {
        sites.plain.extend(calls.iter().map(|(offset, _)| at + offset + 2));
        return;
    }
    let stubs = calls.iter().any(|(_, number)| *number == Number::Any).then(|| sites::near(at, STUBS)).flatten();
    let (from, to) = (at & !4095, (at + len).next_multiple_of(4096));
    const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: the image's own text.
    if unsafe { checked(libc::SYS_mprotect, [from, to - from, WRITE as usize, 0, 0, 0]) }.is_err() {
        return;
    }
    let mut stub = stubs.map(|stubs| stubs + TABLE);
    for (offset, number) in calls {
        let place = at + offset;
        match (number, stub) {
            (Number::Fixed, _) if has_room(&sites.marked, place + 2) => {
                // SAFETY: the last byte of the number's load.
                unsafe { ((place - 1) as *mut u8).write((MARK >> 24) as u8) };
                sites.marked.push(place + 2);
            }
            (Number::Any, Some(to))
                if to + 64 <= to.next_multiple_of(STUBS) && has_room(&sites.marked, to + CALL + 2) =>
            {
                let code = stub_of(to, to & !(STUBS - 1), place + 8);
                let mut jump = vec![0xe9];
                jump.extend(sites::rel(place + 5, to));
                // SAFETY: room in the stubs' memory; eight bytes of text that are the instruction
                // and a comparison.
                unsafe {
                    std::ptr::copy_nonoverlapping(code.as_ptr(), to as *mut u8, code.len());
                    std::ptr::copy_nonoverlapping(jump.as_ptr(), place as *mut u8, jump.len());
                }
                sites.marked.push(to + CALL + 2);
                stub = Some(to + 64);
            }
            _ => sites.plain.push(place + 2),
        }
    }
    const RUN: i32 = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: as above; and the stubs' own memory, whose table is written before.
    unsafe {
        if let Some(stubs) = stubs {
            ALWAYS.iter().filter(|nr| !NEVER.contains(nr)).for_each(|&nr| ((stubs + nr as usize) as *mut u8).write(1));
            syscall(libc::SYS_mprotect, [stubs, STUBS, RUN as usize, 0, 0, 0]);
        }
        syscall(libc::SYS_mprotect, [from, to - from, RUN as usize, 0, 0, 0]);
    }
}

/// Bytes of the stubs' memory: a table with a byte for each number, 1 if it is marked, and the
/// stubs, 64 bytes each.
const STUBS: usize = 4096;
const TABLE: usize = 512;
/// Where a stub's `syscall` is.
const CALL: usize = 26;

/// The stub at `at`, which goes on at `back`. It uses no stack, and of registers what a system call
/// destroys.
fn stub_of(at: usize, table: usize, back: usize) -> Vec<u8> {
    let mut code = vec![0x48, 0x3d]; // cmp rax,511
    code.extend((TABLE as u32 - 1).to_le_bytes());
    code.extend([0x77, 0x12]); // ja plain
    code.extend([0x48, 0x8d, 0x0d]); // lea rcx,[rip+table]
    code.extend(sites::rel(at + code.len() + 4, table));
    code.extend([0x80, 0x3c, 0x01, 0x00]); // cmp byte [rcx+rax],0
    code.extend([0x74, 0x05]); // je plain
    code.push(0x0d); // or eax,MARK
    code.extend(MARK.to_le_bytes());
    assert_eq!(code.len(), CALL);
    code.extend([0x0f, 0x05]); // plain: syscall
    code.extend(COMPARISON);
    code.push(0xe9); // jmp back
    code.extend(sites::rel(at + code.len() + 4, back));
    code
}

/// cmp rax,-4095
const COMPARISON: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];

/// Whether one of the notes is Go's build id: type 4, by the name of `Go`.
fn has_build_id(notes: &[u8]) -> bool {
    const NAME_AND_TYPE: [u8; 4] = *b"Go\0\0";
    notes.windows(8).any(|word| word[..4] == [4, 0, 0, 0] && word[4..] == NAME_AND_TYPE)
}

/// Which calls an instruction makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    /// Those of the number before it.
    Fixed,
    /// Any, and a comparison follows.
    Any,
}

fn instructions(text: &[u8]) -> impl Iterator<Item = (usize, Number)> {
    let kind = |at: usize| {
        let number = match text[at - 6..at] {
            // Not another register's, by a REX prefix.
            [prefix, 0xb8, a, b, 0, 0] if prefix & 0xf0 != 0x40 => Some(i64::from(u16::from_le_bytes([a, b]))),
            _ => None,
        };
        match number {
            Some(nr) => (ALWAYS.contains(&nr) && !NEVER.contains(&nr)).then_some((at, Number::Fixed)),
            None => text[at + 2..].starts_with(&COMPARISON).then_some((at, Number::Any)),
        }
    };
    let inside = 6..text.len().saturating_sub(8);
    sites::instructions(text).filter(move |at| inside.contains(at)).filter_map(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_about_signals_and_those_of_any_number_are_found() {
        let mut text = vec![0x90; 8];
        let mut put = |code: &[u8]| {
            let at = text.len();
            text.extend(code);
            at
        };
        let mask = put(&[0xb8, 14, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        put(&[0xb8, 202, 0, 0, 0, 0x0f, 0x05, 0xc3]);
        let any = put(&[0x89, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]);
        put(&[0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff]);
        put(&[0x41, 0xb8, 14, 0, 0, 0, 0x0f, 0x05]);
        put(&[0x0f, 0x05, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90]);
        assert_eq!(instructions(&text).collect::<Vec<_>>(), [(mask + 5, Number::Fixed), (any + 2, Number::Any)]);
    }

    /// Marked calls that nobody traps would be the kernel's, which knows none.
    #[test]
    fn what_one_filter_cannot_look_for_is_not_marked() {
        const BOUNDARY: usize = 0x5a_0000_0000;
        const TEXT: usize = 1 << 16;
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
        // Where the text lies, and which of its sites lie behind a boundary; more than a filter
        // takes, too.
        for (at, step, many) in [(BOUNDARY - TEXT / 2, 2048, 32), (4 * BOUNDARY, 64, 200)] {
            // SAFETY: fresh memory at a free address.
            let text = unsafe {
                checked(libc::SYS_mmap, [at, TEXT, prot, flags, usize::MAX, 0]).unwrap();
                std::slice::from_raw_parts_mut(at as *mut u8, TEXT)
            };
            text.fill(0x90);
            for i in 0..many {
                let code: &[u8] = match i % 4 {
                    3 => &[0x90, 0x90, 0x90, 0x90, 0x90, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff],
                    _ => &[0xb8, 14, 0, 0, 0, 0x0f, 0x05, 0xc3],
                };
                text[i * step + 16..][..code.len()].copy_from_slice(code);
            }
            let calls: Vec<_> = instructions(text).collect();
            assert_eq!(calls.len(), many);
            for may_mark in [false, true] {
                let mut sites = Sites::default();
                // SAFETY: memory that nobody runs.
                unsafe { mark_all(at, TEXT, calls.clone(), may_mark, &mut sites) };
                assert_eq!(sites.marked.len() + sites.plain.len(), many);
                assert_eq!(may_mark, !sites.marked.is_empty());
                assert!(sites.marked.len() <= crate::filter::MOST_MISSED);
                assert!(sites.marked.iter().all(|after| after >> 32 == sites.marked[0] >> 32));
                for (offset, number) in &calls {
                    let is_plain = sites.plain.contains(&(at + offset + 2));
                    let changed = match number {
                        Number::Fixed => text[offset - 1] != 0,
                        Number::Any => text[*offset] != 0x0f,
                    };
                    assert_eq!(changed, !is_plain, "{offset:#x} of {at:#x}");
                }
            }
        }
    }

    #[test]
    fn go_is_known_by_its_note() {
        let mut note = vec![4, 0, 0, 0, 83, 0, 0, 0, 4, 0, 0, 0];
        note.extend(b"Go\0\0abc/def");
        assert!(has_build_id(&note));
        note[8] = 3;
        assert!(!has_build_id(&note));
        assert!(mark().marked.is_empty(), "this is no Go program");
    }
}
