//! The library in programs: the symbols that the dynamic linker sees.

use std::path::Path;
use std::process::Command;

/// libc functions that are interposed, and what debuggers call by name. Nothing else: any other
/// name could shadow one of the program's.
const INTENDED: &[&str] = &["farmem_fetch", "farmem_v1", "pthread_create", "syscall"];

#[test]
fn only_what_is_meant_to_be_is_exported() {
    // Beside this test, where the binary's build took it from.
    let library = std::env::current_exe().unwrap().parent().unwrap().join("libfarmem_preload.so");
    assert!(library.metadata().is_ok_and(|about| about.len() > 0), "{} is not built", library.display());
    let mut exported = defined(&library);
    exported.sort();
    assert_eq!(exported, INTENDED);
}

/// Names that a library defines for others, as `nm` lists them.
fn defined(library: &Path) -> Vec<String> {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let listed = listed.expect("nm comes with the linker that built this test (binutils)");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}
