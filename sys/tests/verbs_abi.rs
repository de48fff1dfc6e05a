//! The hand-written ABI of libibverbs against the header, where that is installed; and what is said
//! where there is no RDMA.

use farmem_sys::verbs::{Absent, Device, ffi};
use std::fmt::Write as _;
use std::process::Command;

const HEADER: &str = "/usr/include/infiniband/verbs.h";

#[test]
fn the_header_confirms_every_size_offset_and_number() {
    if !std::path::Path::new(HEADER).exists() {
        eprintln!("skipped: no {HEADER} (package libibverbs-dev)");
        return;
    }
    let mut program = String::from("#include <stddef.h>\n#include <infiniband/verbs.h>\n");
    for (what, here) in ffi::layout::LAYOUT.iter().chain(ffi::layout::SIZES) {
        let _ = writeln!(program, "_Static_assert({what} == {here}, \"{what} is not {here}\");");
    }
    let dir = std::env::temp_dir();
    let source = dir.join(format!("farmem-verbs-{}.c", std::process::id()));
    std::fs::write(&source, program).unwrap();
    let said = Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
    let _ = std::fs::remove_file(&source);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn without_a_library_or_a_device_the_reason_and_the_remedy_are_told() {
    match Device::open(None) {
        Ok(device) => assert!(!device.name().is_empty()),
        Err(why @ Absent::Library(_)) => assert!(why.to_string().contains("apt install libibverbs1"), "{why}"),
        Err(why @ Absent::NoDevice) => assert!(why.to_string().contains("ib_uverbs"), "{why}"),
        // A device that cannot be used here is named.
        Err(why) => assert!(why.to_string().contains("RDMA device"), "{why}"),
    }
}
