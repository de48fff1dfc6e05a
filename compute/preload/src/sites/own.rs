//! Free Pascal: programs that use libc, and make system calls by instructions of their own as well.
//!
//! They set signal handlers so, for SIGBUS too: the next fault would find the program's handler in
//! place of the runtime's. They fork so, and map memory. All these calls go through one function
//! for each number of arguments, in which a comparison of eight bytes in all follows:
//!
//! ```text
//! 0f 05                syscall             becomes   e9 rr rr rr rr   jmp stub, which repeats the comparison
//! 48 3d 01 f0 ff ff    cmp $-4095,%rax               f0 ff ff
//! ```
//!
//! The stub calls the runtime as those of libc do. Calls after which two processes or threads would
//! return by one stack, it makes itself. The instruction in the restorer of handlers stays as it is.
//!
//! Only the program's own image is looked at, if its data names the compiler. Libraries that Free
//! Pascal made are not looked for, and neither are other programs: to search the text of each would
//! make every start longer.

use super::entry;
use super::patch::{near, rel};
use super::text::{SYSCALL, instructions, pairs};
use crate::call::NEVER;
use farmem_sys::raw::{checked, syscall};

/// cmp rax,-4095
const COMPARISON: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// The compiler's name stands between these in a program's data, with its version and date.
const NAME: (&[u8], &[u8]) = (b"FPC ", b" for x86_64 - Linux");
/// The most between the beginnings of the two.
const NAME_BYTES: usize = 80;
/// The stubs' memory: a word with the runtime's entry, and the stubs.
const STUB_BYTES: usize = 4096;
const STUB: usize = 128;
/// Data beyond this is not searched.
const MOST_DATA: usize = 64 << 20;

/// Patches the calls of the program's own image, if Free Pascal made it.
///
/// # Safety
/// No other thread may run.
pub unsafe fn patch_own() {
    // SAFETY: the callback is given what it expects, for the time of this call.
    unsafe { libc::dl_iterate_phdr(Some(look), std::ptr::null_mut()) };
}

/// Looks at the first image, which is the program's, and at no other.
///
/// # Safety
/// For `dl_iterate_phdr`, while no other thread runs.
unsafe extern "C" fn look(image: *mut libc::dl_phdr_info, _size: usize, _: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader's own description of what it has mapped.
    let image = unsafe { &*image };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(image.dlpi_phdr, image.dlpi_phnum as usize) };
    let segments = |flags: u32| {
        let wanted = move |header: &&libc::Elf64_Phdr| header.p_type == libc::PT_LOAD && header.p_flags == flags;
        headers.iter().filter(wanted).map(|header| {
            let (at, len) = ((image.dlpi_addr + header.p_vaddr) as usize, header.p_filesz as usize);
            // SAFETY: a readable segment, as far as its file goes; nobody writes to it meanwhile.
            (at, unsafe { std::slice::from_raw_parts(at as *const u8, len) })
        })
    };
    if segments(libc::PF_R | libc::PF_W).any(|(_, data)| data.len() <= MOST_DATA && names_compiler(data)) {
        for (at, text) in segments(libc::PF_R | libc::PF_X) {
            let sites: Vec<usize> = sites(text).collect();
            if !sites.is_empty() {
                // SAFETY: the image's text, which nobody runs before the program starts.
                unsafe { patch(at, text.len(), &sites) };
            }
        }
    }
    1
}

/// Whether Free Pascal's name stands in these data.
fn names_compiler(data: &[u8]) -> bool {
    let (first, last) = NAME;
    pairs(data, first[0], first[1]).any(|at| {
        let rest = &data[at..(at + NAME_BYTES + last.len()).min(data.len())];
        rest.starts_with(first) && rest.windows(last.len()).any(|word| word == last)
    })
}

/// Where calls of any number stand, with their comparison.
fn sites(text: &[u8]) -> impl Iterator<Item = usize> {
    instructions(text).filter(|at| text[at + 2..].starts_with(&COMPARISON))
}

/// Has the sites of a text jump to stubs: as many as there is room for.
///
/// # Safety
/// `len` bytes of text at `at`, which no thread runs, and offsets of its [`sites`].
unsafe fn patch(at: usize, len: usize, sites: &[usize]) {
    let (from, to) = (at & !4095, (at + len).next_multiple_of(4096));
    const WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    const RUN: i32 = libc::PROT_READ | libc::PROT_EXEC;
    let Some(stubs) = near(at, STUB_BYTES) else { return };
    // SAFETY: the image's own text.
    if unsafe { checked(libc::SYS_mprotect, [from, to - from, WRITE as usize, 0, 0, 0]) }.is_err() {
        return;
    }
    // SAFETY: fresh memory of our own.
    unsafe { (stubs as *mut usize).write(entry::address()) };
    for (place, stub) in sites.iter().map(|site| at + site).zip((stubs..stubs + STUB_BYTES).step_by(STUB).skip(1)) {
        let code = stub_of(stub, stubs, place + SYSCALL.len() + COMPARISON.len());
        let mut jump = vec![0xe9];
        jump.extend(rel(place + 5, stub));
        // SAFETY: a stub's memory; five of the eight bytes of a site.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), stub as *mut u8, code.len());
            std::ptr::copy_nonoverlapping(jump.as_ptr(), place as *mut u8, jump.len());
        }
    }
    // SAFETY: as above.
    unsafe {
        syscall(libc::SYS_mprotect, [stubs, STUB_BYTES, RUN as usize, 0, 0, 0]);
        syscall(libc::SYS_mprotect, [from, to - from, RUN as usize, 0, 0, 0]);
    }
}

/// The stub at `at`, which goes on at `back`. The runtime's entry is named at `stubs`.
fn stub_of(at: usize, stubs: usize, back: usize) -> Vec<u8> {
    let mut code = Vec::with_capacity(STUB);
    // One of the runtime's own calls can be made for the program: a fork, whose child returns by a
    // copy of the stack. An exit does not return at all.
    let passed = NEVER.iter().filter(|nr| ![libc::SYS_fork, libc::SYS_exit, libc::SYS_exit_group].contains(nr));
    let mut jumps = Vec::new();
    for &nr in passed {
        code.extend([0x48, 0x3d]); // cmp rax,nr
        code.extend((nr as u32).to_le_bytes());
        code.extend([0x74, 0]); // je plain
        jumps.push(code.len() - 1);
    }
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
    code.extend([0xff, 0x15]); // call [rip+rel]
    code.extend(rel(at + code.len() + 4, stubs));
    code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
    code.extend([0xeb, SYSCALL.len() as u8]); // jmp done
    for jump in jumps {
        code[jump] = (code.len() - jump - 1) as u8;
    }
    code.extend(SYSCALL); // plain: syscall
    code.extend(COMPARISON); // done: cmp rax,-4095
    code.push(0xe9); // jmp back
    code.extend(rel(at + code.len() + 4, back));
    assert!(code.len() <= STUB);
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_known_by_its_name() {
        let mut data = vec![7; 1000];
        data.extend(b"FPC 3.2.2+dfsg-20 [2023/03/30] for x86_64 - Linux\0");
        assert!(names_compiler(&data));
        data.extend([7; 1000]);
        assert!(names_compiler(&data));
        data[1000] = b'G';
        assert!(!names_compiler(&data) && !names_compiler(b"FPC ") && !names_compiler(b"F"));
        data.splice(1000..1004, *b"FPC ");
        data.splice(1010..1010, [7; 100]);
        assert!(!names_compiler(&data), "the two are not of one name");
    }

    #[test]
    fn calls_with_their_comparison_are_sites() {
        let mut text = vec![0x90; 3];
        text.extend([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x72, 0x12]);
        text.extend([0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, 0xc3]); // a restorer
        text.extend([0x0f, 0x05]);
        assert_eq!(sites(&text).collect::<Vec<_>>(), [3]);
    }
}
