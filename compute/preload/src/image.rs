//! What a file is that is to be executed, as far as it matters to those that the loader would give this library.
//!
//! musl's loader ends a program whose preloaded library it cannot load, and a 32-bit program's says so on standard error;
//! both run as they are if they are not told of it.

use farmem_sys::raw::checked;

/// Scripts may name scripts as their interpreters; the kernel follows five.
const INTERPRETERS: usize = 5;
/// Of a file's beginning: the kernel reads 256 bytes of a script; headers and the loader's name come early.
const HEAD: usize = 4096;
const PT_INTERP: u32 = 3;

/// Whether the library cannot be loaded into what this call executes. What cannot be read is taken for what it can.
pub fn is_foreign(directory: usize, path: usize) -> bool {
    let mut head = [0u8; HEAD];
    let Some(mut len) = read(directory, path, &mut head) else { return false };
    for _ in 0..INTERPRETERS {
        let mut name = [0u8; 257];
        let Some(interpreter) = script(&head[..len]) else { return is_foreign_image(&head[..len]) };
        name[..interpreter.len()].copy_from_slice(interpreter);
        match read(libc::AT_FDCWD as usize, name.as_ptr() as usize, &mut head) {
            Some(read) => len = read,
            None => return false,
        }
    }
    false
}

fn read(directory: usize, path: usize, to: &mut [u8; HEAD]) -> Option<usize> {
    // SAFETY: a near string, ended by NUL; a live buffer of that length.
    unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        let fd = checked(libc::SYS_openat, [directory, path, flags, 0, 0, 0]).ok()?;
        let read = checked(libc::SYS_pread64, [fd, to.as_mut_ptr() as usize, HEAD, 0, 0, 0]);
        farmem_sys::descriptors::close(fd as i32);
        read.ok()
    }
}

/// The interpreter that a script's first line names.
fn script(head: &[u8]) -> Option<&[u8]> {
    let line = head.strip_prefix(b"#!")?;
    let line = &line[..line.len().min(254)];
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let from = line.iter().position(|b| !blank(b))?;
    let name = &line[from..];
    Some(&name[..name.iter().position(|b| blank(b) || matches!(b, b'\n' | 0)).unwrap_or(name.len())])
}

fn is_foreign_image(head: &[u8]) -> bool {
    let word = |at: usize, len: usize| -> Option<usize> {
        let mut le = [0; 8];
        le[..len].copy_from_slice(head.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(le) as usize)
    };
    if !head.starts_with(b"\x7fELF") {
        return false;
    }
    if head.get(4) == Some(&1) {
        return true;
    }
    let (Some(at), Some(size), Some(count)) = (word(32, 8), word(54, 2), word(56, 2)) else { return false };
    for n in 0..count {
        let entry = at.saturating_add(n * size);
        if word(entry, 4) == Some(PT_INTERP as usize) {
            let (Some(from), Some(len)) = (word(entry.saturating_add(8), 8), word(entry.saturating_add(32), 8)) else {
                return false;
            };
            let name = head.get(from..from.saturating_add(len)).unwrap_or_default();
            let last = name.rsplit(|&b| b == b'/').next().unwrap_or_default();
            return last.starts_with(b"ld-musl");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(class: u8, loader: &[u8]) -> Vec<u8> {
        let mut file = vec![0u8; 120];
        file[..5].copy_from_slice(&[0x7f, b'E', b'L', b'F', class]);
        file[32] = 64;
        file[54] = 56;
        file[56] = 1;
        file[64] = PT_INTERP as u8;
        file[72] = 120;
        file[96] = loader.len() as u8;
        file.extend(loader);
        file
    }

    #[test]
    fn other_loaders_are_known_by_name() {
        assert!(is_foreign_image(&image(2, b"/lib/ld-musl-x86_64.so.1\0")));
        assert!(is_foreign_image(&image(1, b"/lib/ld-linux.so.2\0")));
        for loader in [&b"/lib64/ld-linux-x86-64.so.2\0"[..], b"/ld-musl/lib/ld-linux-x86-64.so.2\0", b"\0"] {
            assert!(!is_foreign_image(&image(2, loader)));
        }
        let whole = image(2, b"/lib/ld-musl-x86_64.so.1\0");
        for len in 0..whole.len() - 30 {
            assert!(!is_foreign_image(&whole[..len]), "cut at {len}");
        }
    }

    #[test]
    fn a_script_names_its_interpreter() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"#!/bin/sh\necho", Some(b"/bin/sh")),
            (b"#! \t/bin/env sh\n", Some(b"/bin/env")),
            (b"#!/bin/sh", Some(b"/bin/sh")),
            (b"#!", None),
            (b"\x7fELF", None),
        ];
        for (head, name) in cases {
            assert_eq!(script(head), name);
        }
    }
}
