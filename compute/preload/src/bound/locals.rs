//! std's thread-locals: one block for all threads.
//!
//! std keeps a few words for each thread: how many panics it is in, its handle, where its output is
//! captured. In a library they are found by `__tls_get_addr`, which in libc reads a table that the
//! runtime's threads do not have, and may allocate by the program's malloc. The runtime uses none
//! of these words but the panic count, on its way to its end ([`super::panics`]). So one block
//! serves every thread; two panics at once end the process by one or the other.

use super::labels;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the block: std takes some hundred.
const BYTES: usize = 1024;

#[repr(C, align(64))]
struct Block([AtomicU8; BYTES]);

static BLOCK: Block = Block([const { AtomicU8::new(0) }; BYTES]);

/// The argument of `__tls_get_addr`, laid down by the compiler.
#[repr(C)]
struct Index {
    module: usize,
    offset: usize,
}

core::arch::global_asm!(labels!("__tls_get_addr"), "jmp {find}", find = sym find);

extern "C" fn find(index: &Index) -> usize {
    BLOCK.0.as_ptr() as usize + index.offset
}

unsafe extern "C" {
    /// This library's ELF header, which the linker names.
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Gives the block its first values. At start.
pub fn begin() {
    // SAFETY: the library's own headers and, by them, the image of its thread-locals; the loader
    // has mapped them.
    unsafe {
        let header = &raw const __ehdr_start;
        let headers = header.byte_add((*header).e_phoff as usize).cast::<libc::Elf64_Phdr>();
        let headers = std::slice::from_raw_parts(headers, usize::from((*header).e_phnum));
        for entry in headers.iter().filter(|entry| entry.p_type == libc::PT_TLS) {
            assert!(entry.p_memsz as usize <= BYTES, "std has more thread-locals than there is room for");
            let image = header.cast::<u8>().add(entry.p_vaddr as usize);
            for (n, byte) in BLOCK.0.iter().take(entry.p_filesz as usize).enumerate() {
                byte.store(image.add(n).read(), Ordering::Relaxed);
            }
        }
    }
}
