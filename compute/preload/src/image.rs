//! The kind of file that an exec names: whether its loader will load this library, and if not, why.
//!
//! musl's loader ends a program if it cannot load a preloaded library, and a 32-bit program's
//! loader complains on standard error. Both programs run as they are if the library is taken out of
//! their environment. Static and set-user-ID programs ignore it by themselves; they are only noted,
//! for the run's summary.

use farmem_run::counters::Near;
use farmem_sys::raw::checked;

/// Scripts may name scripts as their interpreters; the kernel follows five.
const INTERPRETERS: usize = 5;
/// Of a file's beginning: the kernel reads 256 bytes of a script; headers and the loader's name
/// come early.
const HEAD: usize = 4096;
const PT_INTERP: u32 = 3;

/// Why the library is not loaded into the file that an exec of this process names; `None` where it
/// is. A file that cannot be read counts as one that loads it.
pub fn stays_near(directory: usize, path: usize) -> Option<Near> {
    let mut head = [0u8; HEAD];
    let mut file = read(directory, path, &mut head)?;
    // The path as given is what is known of the file's name; a script's interpreter has one of its
    // own.
    let mut name = [0u8; 257];
    let mut own_name = path;
    for _ in 0..INTERPRETERS {
        let Some(interpreter) = script(&head[..file.len]) else {
            let kind = kind(&head[..file.len]);
            // SAFETY: a near string, ended by NUL.
            let is_loader = kind == Some(Near::Static) && is_loader(unsafe { text_at(own_name) });
            return kind.filter(|_| !is_loader).or(file.is_privileged().then_some(Near::Privileged));
        };
        name.fill(0);
        name[..interpreter.len()].copy_from_slice(interpreter);
        own_name = name.as_ptr() as usize;
        file = read(libc::AT_FDCWD as usize, own_name, &mut head)?;
    }
    None
}

/// A string of the caller's.
///
/// # Safety
/// It is near memory, ended by NUL, and lives as long as the result is used.
unsafe fn text_at<'t>(at: usize) -> &'t [u8] {
    // SAFETY: the caller's word.
    unsafe {
        std::slice::from_raw_parts(at as *const u8, (0..).take_while(|&i| *(at as *const u8).add(i) != 0).count())
    }
}

/// Whether a file is glibc's loader by its name. It is executed by itself to load another program,
/// and loads this library too.
fn is_loader(path: &[u8]) -> bool {
    let last = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    last.starts_with(b"ld-") || last.starts_with(b"ld.so")
}

/// Facts about a file beyond its first bytes.
struct Looked {
    /// Bytes of its beginning.
    len: usize,
    mode: u32,
    user: u32,
    group: u32,
}

impl Looked {
    /// Whether executing it changes user or group, so that the loader ignores the library.
    fn is_privileged(&self) -> bool {
        // SAFETY: queries.
        let ask = |nr, arg| unsafe { checked(nr, [arg, 0, 0, 0, 0, 0]) }.unwrap_or(1) as u32;
        let by = |bit, owner, own| self.mode & bit != 0 && owner != ask(own, 0);
        self.mode & (libc::S_ISUID | libc::S_ISGID) != 0
            && ask(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS as usize) == 0
            && (by(libc::S_ISUID, self.user, libc::SYS_geteuid) || by(libc::S_ISGID, self.group, libc::SYS_getegid))
    }
}

fn read(directory: usize, path: usize, to: &mut [u8; HEAD]) -> Option<Looked> {
    // SAFETY: a near string, ended by NUL; a live buffer of that length, and a stat's.
    unsafe {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        let fd = checked(libc::SYS_openat, [directory, path, flags, 0, 0, 0]).ok()?;
        let read = checked(libc::SYS_pread64, [fd, to.as_mut_ptr() as usize, HEAD, 0, 0, 0]);
        let mut about: libc::stat = std::mem::zeroed();
        let known = checked(libc::SYS_fstat, [fd, &raw mut about as usize, 0, 0, 0, 0]);
        farmem_sys::descriptors::close(fd as i32);
        known.ok()?;
        Some(Looked { len: read.ok()?, mode: about.st_mode, user: about.st_uid, group: about.st_gid })
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

/// Why an image does not load the library, by its headers.
fn kind(head: &[u8]) -> Option<Near> {
    let word = |at: usize, len: usize| -> Option<usize> {
        let mut le = [0; 8];
        le[..len].copy_from_slice(head.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(le) as usize)
    };
    if !head.starts_with(b"\x7fELF") {
        return None;
    }
    if head.get(4) == Some(&1) {
        return Some(Near::Machine);
    }
    let (at, size, count) = (word(32, 8)?, word(54, 2)?, word(56, 2)?);
    for n in 0..count {
        let entry = at.saturating_add(n * size);
        if word(entry, 4)? == PT_INTERP as usize {
            let (from, len) = (word(entry.saturating_add(8), 8)?, word(entry.saturating_add(32), 8)?);
            let name = head.get(from..from.saturating_add(len)).unwrap_or_default();
            let last = name.rsplit(|&b| b == b'/').next().unwrap_or_default();
            return last.starts_with(b"ld-musl").then_some(Near::Loader);
        }
    }
    Some(Near::Static)
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
        assert_eq!(kind(&image(2, b"/lib/ld-musl-x86_64.so.1\0")), Some(Near::Loader));
        assert_eq!(kind(&image(1, b"/lib/ld-linux.so.2\0")), Some(Near::Machine));
        for loader in [&b"/lib64/ld-linux-x86-64.so.2\0"[..], b"/ld-musl/lib/ld-linux-x86-64.so.2\0", b"\0"] {
            assert_eq!(kind(&image(2, loader)), None);
        }
        let whole = image(2, b"/lib/ld-musl-x86_64.so.1\0");
        for len in 0..whole.len() - 30 {
            assert!(kind(&whole[..len]).is_none(), "cut at {len}");
        }
        let mut none = whole.clone();
        none[64] = 1;
        assert_eq!(kind(&none), Some(Near::Static));
        assert!(is_loader(b"/lib64/ld-linux-x86-64.so.2") && is_loader(b"ld.so") && !is_loader(b"/bin/ldd"));
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
