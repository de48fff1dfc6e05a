//! Is this a program that farmem can run? Asked before anything is started.
//!
//! farmem comes into a program by `LD_PRELOAD`: the program must be executed by
//! glibc's dynamic loader, on x86-64, without a change of privilege (the loader
//! drops `LD_PRELOAD` for those). Where it is not so, the program would run as if
//! farmem were not there; a refusal is better.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use farmem_sys::process;

use crate::failure::Failure;

/// Why a program cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// There is no such file, or none of that name in `PATH`.
    #[error("{0}: not found")]
    NotFound(String),
    /// It looks like a flag, and there is no program of that name either.
    #[error("'{0}' is neither a flag nor a program; see farmem run --help")]
    NoFlag(String),
    /// The file is no program, or we may not execute it.
    #[error("{0}: not executable")]
    NotExecutable(String),
    /// Linked statically: no loader, so nothing to load farmem.
    #[error("{0} is statically linked: farmem needs a program that uses the dynamic loader")]
    Static(String),
    /// Executing it changes the user, the group or the capabilities.
    #[error(
        "{0} is set-user-ID, set-group-ID or has file capabilities: the loader ignores farmem there; run it as that user"
    )]
    Privileged(String),
    /// Another processor, or 32 bits.
    #[error("{0} is not an x86-64 program")]
    Machine(String),
    /// Another C library.
    #[error("{0} is loaded by {1}: farmem works with glibc only")]
    Loader(String, String),
    /// Its sanitizer wants the addresses of far memory.
    #[error("{0} is built with {1}, which needs the addresses that farmem uses: run it without farmem")]
    Sanitizer(String, &'static str),
}

impl Unusable {
    /// The exit status that a shell would give, or ours for a program we refuse.
    pub fn status(&self) -> i32 {
        match self {
            Unusable::NotFound(_) => 127,
            Unusable::NotExecutable(_) => 126,
            _ => farmem_run::exit::USAGE,
        }
    }
}

impl From<Unusable> for Failure {
    fn from(unusable: Unusable) -> Self {
        Failure { status: unusable.status(), line: unusable.to_string() }
    }
}

/// Scripts may name scripts as their interpreters; the kernel follows five.
const INTERPRETERS: usize = 5;

/// Finds a program as `execvp` would and checks it, with the interpreters it names.
/// Returns the file that will be executed.
pub fn find(name: &OsStr) -> Result<PathBuf, Unusable> {
    let found = locate(name).map_err(|unusable| match unusable {
        // An argument that begins with a dash and is no flag is taken for the program, which may
        // have such a name.
        Unusable::NotFound(name) if name.starts_with('-') => Unusable::NoFlag(name),
        unusable => unusable,
    })?;
    let mut file = found.clone();
    for _ in 0..=INTERPRETERS {
        match check(&file)? {
            None => return Ok(found),
            Some(interpreter) => file = interpreter,
        }
    }
    Err(Unusable::NotExecutable(show(&found)))
}

/// Whether there is such a program, for commands that run any: of another C library, or linked
/// statically.
pub fn there(name: &OsStr) -> Result<(), Unusable> {
    executable(&locate(name)?).map(drop)
}

fn locate(name: &OsStr) -> Result<PathBuf, Unusable> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut forbidden = None;
    for directory in std::env::split_paths(&path) {
        let file = directory.join(name);
        match fs::metadata(&file) {
            Ok(about) if about.is_file() && about.permissions().mode() & 0o111 != 0 => return Ok(file),
            Ok(about) if about.is_file() => forbidden = Some(file),
            _ => {}
        }
    }
    Err(match forbidden {
        Some(file) => Unusable::NotExecutable(show(&file)),
        None if name.is_empty() => Unusable::NotFound("''".into()),
        None => Unusable::NotFound(name.to_string_lossy().into_owned()),
    })
}

/// Whether a file is there and may be executed.
fn executable(file: &Path) -> Result<fs::Metadata, Unusable> {
    let about = fs::metadata(file).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Unusable::NotFound(show(file)),
        _ => Unusable::NotExecutable(show(file)),
    })?;
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
        return Err(Unusable::NotExecutable(show(file)));
    }
    Ok(about)
}

/// Checks one file; gives the interpreter to check next if it is a script.
fn check(file: &Path) -> Result<Option<PathBuf>, Unusable> {
    let about = executable(file)?;
    let mode = about.permissions().mode();
    let other_user = mode & 0o4000 != 0 && about.uid() != process::user();
    let other_group = mode & 0o2000 != 0 && about.gid() != process::group();
    if other_user || other_group || process::user() != 0 && process::has_capabilities(file) {
        return Err(Unusable::Privileged(show(file)));
    }
    // A program may be executable and not readable. Nothing can be said about it then: let it run.
    let Ok(opened) = File::open(file) else { return Ok(None) };
    let mut head = Vec::new();
    if (&opened).take(256).read_to_end(&mut head).is_err() {
        return Err(Unusable::NotExecutable(show(file)));
    }
    if let Some(line) = head.strip_prefix(b"#!") {
        return match interpreter(line) {
            Some(path) => Ok(Some(path)),
            None => Err(Unusable::NotExecutable(show(file))),
        };
    }
    match Elf::read(&opened, &head) {
        // Neither script nor ELF: `execvp` hands it to the shell.
        None => Ok(Some("/bin/sh".into())),
        Some(Elf::OtherMachine) => Err(Unusable::Machine(show(file))),
        Some(Elf::Static) => Err(Unusable::Static(show(file))),
        Some(Elf::LoadedBy(loader)) if !glibc(&loader) => Err(Unusable::Loader(show(file), loader)),
        Some(Elf::LoadedBy(_)) => match sanitizer(&opened) {
            Some(name) => Err(Unusable::Sanitizer(show(file), name)),
            None => Ok(None),
        },
    }
}

/// The sanitizer of a 64-bit ELF file, if it is one whose shadow memory lies at far addresses. Its
/// entry is among the program's symbols, which it imports or, linked statically, has. A stripped
/// program that has it is not known.
fn sanitizer(file: &File) -> Option<&'static str> {
    const NAMES: [(&[u8], &str); 2] =
        [(b"\0__tsan_init\0", "ThreadSanitizer"), (b"\0__msan_init\0", "MemorySanitizer")];
    const SECTION: usize = 64;
    const STRINGS: u32 = 3;
    /// Of a table of names: that of a larger program is not read.
    const MOST: u64 = 16 << 20;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    let long = |bytes: &[u8], at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (table, size, count) = (long(&head, 40), half(58), half(60));
    if size != SECTION {
        return None;
    }
    let mut sections = vec![0; SECTION * count];
    file.read_exact_at(&mut sections, table).ok()?;
    let strings = |section: &&[u8]| section[4..8] == STRINGS.to_le_bytes() && long(section, 32) <= MOST;
    sections.chunks_exact(SECTION).filter(strings).find_map(|section| {
        let mut names = vec![0; long(section, 32) as usize];
        file.read_exact_at(&mut names, long(section, 24)).ok()?;
        NAMES.iter().find(|(entry, _)| has_name(&names, entry)).map(|(_, name)| *name)
    })
}

/// Whether some bytes lie in others.
fn has_name(bytes: &[u8], part: &[u8]) -> bool {
    let mut rest = bytes;
    // Names begin behind a zero, so only there is compared.
    while let Some(at) = rest.iter().position(|byte| *byte == part[0]) {
        if rest[at..].starts_with(part) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

fn glibc(loader: &str) -> bool {
    // Distributions put glibc's loader in many places (Nix: /nix/store/…/lib), but keep its name.
    Path::new(loader).file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux"))
}

/// The interpreter of a script's first line; for `env`, the program that `env` will find.
fn interpreter(line: &[u8]) -> Option<PathBuf> {
    let end = line.iter().position(|&b| b == b'\n').unwrap_or(line.len());
    let mut words = line[..end].split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let path = Path::new(OsStr::from_bytes(words.next()?));
    if path.file_name() == Some(OsStr::new("env")) {
        let named = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='));
        if let Some(found) = named.and_then(|word| locate(OsStr::from_bytes(word)).ok()) {
            return Some(found);
        }
    }
    Some(path.to_owned())
}

/// The facts in an ELF file's headers about how it starts.
#[derive(Debug, PartialEq)]
enum Elf {
    LoadedBy(String),
    Static,
    OtherMachine,
}

impl Elf {
    const PROGRAM_HEADER: usize = 56;
    const PT_INTERP: u32 = 3;
    const EM_X86_64: u16 = 62;

    fn read(file: &File, head: &[u8]) -> Option<Elf> {
        if !head.starts_with(b"\x7fELF") || head.len() < 64 {
            return None;
        }
        let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        // Class 2 is 64 bits, data 1 is little-endian.
        if head[4] != 2 || head[5] != 1 || half(18) != Self::EM_X86_64 {
            return Some(Elf::OtherMachine);
        }
        let table = u64::from_le_bytes(head[32..40].try_into().ok()?);
        let (entry, entries) = (half(54) as usize, half(56) as usize);
        if entry < Self::PROGRAM_HEADER {
            return None;
        }
        for i in 0..entries {
            let mut header = [0; Self::PROGRAM_HEADER];
            file.read_exact_at(&mut header, table.checked_add((i * entry) as u64)?).ok()?;
            if u32::from_le_bytes(header[0..4].try_into().ok()?) == Self::PT_INTERP {
                let offset = u64::from_le_bytes(header[8..16].try_into().ok()?);
                let length = u64::from_le_bytes(header[32..40].try_into().ok()?);
                let mut name = vec![0; length.min(4096) as usize];
                file.read_exact_at(&mut name, offset).ok()?;
                name.truncate(name.iter().position(|&b| b == 0).unwrap_or(name.len()));
                return Some(Elf::LoadedBy(String::from_utf8_lossy(&name).into_owned()));
            }
        }
        Some(Elf::Static)
    }
}

fn show(file: &Path) -> String {
    file.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("farmem-program-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn shells_are_programs() {
        assert!(find(OsStr::new("sh")).unwrap().is_absolute());
        find(OsStr::new("/bin/sh")).unwrap();
    }

    #[test]
    fn statuses_are_a_shells() {
        assert_eq!(find(OsStr::new("no-such-program")).unwrap_err().status(), 127);
        assert_eq!(find(OsStr::new("/no/such/program")).unwrap_err().status(), 127);
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().status(), 126);
        assert_eq!(find(OsStr::new("/")).unwrap_err().status(), 126);
    }

    #[test]
    fn scripts_are_followed_to_their_interpreter() {
        let good = file("good", b"#! /bin/sh -e\n", 0o755);
        find(good.as_os_str()).unwrap();
        let by_env = file("env", b"#!/usr/bin/env -S FOO=1 sh\n", 0o755);
        find(by_env.as_os_str()).unwrap();
        let lost = file("lost", b"#!/no/such/interpreter\n", 0o755);
        assert_eq!(find(lost.as_os_str()).unwrap_err().status(), 127);
        let own_tail = file("tail", b"", 0o755);
        fs::write(&own_tail, format!("#!{}\n", own_tail.display())).unwrap();
        assert_eq!(find(own_tail.as_os_str()).unwrap_err().status(), 126);
        for made in [good, by_env, lost, own_tail] {
            fs::remove_file(made).unwrap();
        }
    }

    #[test]
    fn other_machines_and_static_programs_are_refused() {
        let mut elf = vec![0; 64];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 62;
        elf[54] = 56;
        let path = file("static", &elf, 0o755);
        assert!(matches!(find(path.as_os_str()), Err(Unusable::Static(_))));
        elf[18] = 183;
        fs::write(&path, &elf).unwrap();
        assert!(matches!(find(path.as_os_str()), Err(Unusable::Machine(_))));
        fs::remove_file(path).unwrap();
    }

    /// Programs with ThreadSanitizer are known, whether it is linked statically or not. Others are not
    /// taken for such.
    #[test]
    fn sanitizers_that_want_far_addresses_are_refused() {
        let source = file("source.c", b"int main(void) { return 0; }\n", 0o644);
        for (flags, refused) in [
            (&["-fsanitize=thread"][..], true),
            (&["-fsanitize=thread", "-static-libtsan"], true),
            (&["-fsanitize=undefined"], false),
        ] {
            let program = file("sanitized", b"", 0o755);
            let made = std::process::Command::new("gcc").args(flags).arg(&source).arg("-o").arg(&program).output();
            // A compiler without the sanitizer's library has nothing to test.
            if made.is_ok_and(|made| made.status.success()) {
                let found = find(program.as_os_str());
                assert_eq!(matches!(found, Err(Unusable::Sanitizer(_, "ThreadSanitizer"))), refused, "{flags:?}");
                assert!(refused || found.is_ok(), "{flags:?}");
            }
            fs::remove_file(program).unwrap();
        }
        fs::remove_file(source).unwrap();
    }

    proptest! {
        #[test]
        fn no_header_makes_the_reader_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), elf in any::<bool>()) {
            if elf && bytes.len() > 20 {
                bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
                bytes[18..20].copy_from_slice(&[62, 0]);
            }
            let path = file("any", &bytes, 0o755);
            let _ = find(path.as_os_str());
            fs::remove_file(path).unwrap();
        }
    }
}
