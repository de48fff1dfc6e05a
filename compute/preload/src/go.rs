//! Go: the one widespread runtime that makes its calls about signals without libc.
//!
//! A Go program that is linked with C (cgo) takes its heap by libc's `mmap`, so that it is far, stacks of
//! goroutines included, and its threads by `pthread_create`. But masks and alternate stacks it sets by
//! instructions of its own: SIGBUS would come to be blocked, and the next fault end the process. These are told
//! to the filter by address, like those of libc's that are not patched ([`crate::net`]).
//!
//! ```text
//! b8 0e 00 00 00     mov $14,%eax        the runtime's: masks, actions, stacks, mappings
//! 0f 05              syscall
//!
//! 0f 05              syscall             package syscall's, for any number
//! 48 3d 01 f0 ff ff  cmp $-4095,%rax
//! ```
//!
//! They are not patched as libc's are: that would be some ns where a trap is 3 µs, but a goroutine's stack may have
//! no room for the stub. Go without cgo is static, or never calls libc: it has no far memory, and needs none of this.
//! A Go library in another program (`-buildmode=c-shared`) is not looked for.
//!
//! A filter outlives its image. An image without this library that a Go program executes (static, or another user's)
//! has no handler for what the filter traps: should it have such an instruction at the same address, which takes two
//! Go programs at fixed addresses and laid out alike up to there, it dies of SIGSYS there.

use crate::dispatch::ALWAYS;
use crate::sites::{self, Missed};

/// The addresses behind such instructions, where the program's own image is Go's.
pub fn sites() -> Missed {
    let mut found = Vec::new();
    // SAFETY: the callback is given what it expects, for the time of this call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Looks at the first image, which is the program's, and at no other.
unsafe extern "C" fn look(image: *mut libc::dl_phdr_info, _size: usize, found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader's own description of what it has mapped; `found` is the caller's.
    let (image, found) = unsafe { (&*image, &mut *found.cast::<Missed>()) };
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(image.dlpi_phdr, image.dlpi_phnum as usize) };
    let segment = |header: &libc::Elf64_Phdr| {
        let at = (image.dlpi_addr + header.p_vaddr) as usize;
        // SAFETY: a segment that the loader has mapped, and that nobody writes to before the program starts.
        (at, unsafe { std::slice::from_raw_parts(at as *const u8, header.p_filesz as usize) })
    };
    let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    // A note that no segment holds is not in memory, whatever the header says.
    let is_there = |note: &libc::Elf64_Phdr| {
        let end = |h: &libc::Elf64_Phdr| h.p_vaddr.saturating_add(h.p_filesz);
        loaded().any(|h| h.p_flags & libc::PF_R != 0 && h.p_vaddr <= note.p_vaddr && end(note) <= end(h))
    };
    if headers.iter().any(|h| h.p_type == libc::PT_NOTE && is_there(h) && has_build_id(segment(h).1)) {
        const READ_AND_RUN: u32 = libc::PF_R | libc::PF_X;
        for header in loaded().filter(|h| h.p_flags == READ_AND_RUN) {
            let (at, text) = segment(header);
            found.extend(instructions(text).map(|offset| at + offset + 2));
        }
    }
    1
}

/// Whether one of the notes is Go's build id: type 4, by the name of `Go`.
fn has_build_id(notes: &[u8]) -> bool {
    const NAME_AND_TYPE: [u8; 4] = *b"Go\0\0";
    notes.windows(8).any(|word| word[..4] == [4, 0, 0, 0] && word[4..] == NAME_AND_TYPE)
}

fn instructions(text: &[u8]) -> impl Iterator<Item = usize> {
    let is_site = |at: usize| {
        let number = match text[at - 5..at] {
            [0xb8, a, b, 0, 0] => Some(i64::from(u16::from_le_bytes([a, b]))),
            _ => None,
        };
        number.is_some_and(|nr| ALWAYS.contains(&nr))
            || text[at + 2..].starts_with(&[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff])
    };
    let inside = 5..text.len().saturating_sub(2);
    sites::instructions(text).filter(move |at| inside.contains(at) && is_site(*at))
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
        put(&[0x0f, 0x05]);
        assert_eq!(instructions(&text).collect::<Vec<_>>(), [mask + 5, any + 2]);
    }

    #[test]
    fn go_is_known_by_its_note() {
        let mut note = vec![4, 0, 0, 0, 83, 0, 0, 0, 4, 0, 0, 0];
        note.extend(b"Go\0\0abc/def");
        assert!(has_build_id(&note));
        note[8] = 3;
        assert!(!has_build_id(&note));
        assert!(sites().is_empty(), "this is no Go program");
    }
}
