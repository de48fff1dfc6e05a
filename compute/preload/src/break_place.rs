//! Programs that count on the place of their heap: right behind their own data.
//!
//! GCL's images do (ACL2, Debian's Maxima): they lie at fixed addresses, turn random addresses off
//! by `personality` and execute themselves again, then compare addresses of `sbrk` with those of
//! their data. The break of such a program stays near. It is known by its imports.

use std::ffi::CStr;

const IMPORTS: [&CStr; 2] = [c"personality", c"sbrk"];

const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Whether this is such a program.
pub fn matters() -> bool {
    let mut found = false;
    // SAFETY: the callback is given what it expects, for the time of this call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    found
}

/// Looks at the first image, which is the program's, and at no other.
///
/// # Safety
/// For `dl_iterate_phdr`, with a bool.
unsafe extern "C" fn look(image: *mut libc::dl_phdr_info, _size: usize, found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader's own description of what it has mapped.
    let image = unsafe { &*image };
    // A position-independent program cannot know where its data are.
    if image.dlpi_addr == 0 {
        // SAFETY: as above.
        let headers = unsafe { std::slice::from_raw_parts(image.dlpi_phdr, image.dlpi_phnum as usize) };
        let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        // SAFETY: the image's own table, at its own address; the caller's bool.
        unsafe { *found.cast::<bool>() = dynamic.is_some_and(|at| imports_all(at.p_vaddr as *const [u64; 2])) };
    }
    1
}

/// Whether an image at its own addresses takes all of [`IMPORTS`] from libraries.
///
/// # Safety
/// A dynamic section, ended by a tag of 0, whose tables are mapped.
unsafe fn imports_all(mut entry: *const [u64; 2]) -> bool {
    let (mut texts, mut symbols, mut hash) = (0, 0, 0);
    // SAFETY: the caller's: pairs up to one whose tag is 0.
    while let [tag, value] = unsafe { entry.read() }
        && tag != 0
    {
        match tag {
            DT_STRTAB => texts = value,
            DT_SYMTAB => symbols = value,
            DT_GNU_HASH => hash = value,
            _ => {}
        }
        // SAFETY: as above.
        entry = unsafe { entry.add(1) };
    }
    if texts == 0 || symbols == 0 || hash == 0 {
        return false;
    }
    // SAFETY: the hash table's second word is the index of the first symbol that the image defines
    // for others. What it takes from others stands before that. (GNU ld writes 1 where it defines
    // none: such an image is not known here.)
    let symbols = unsafe {
        let count = (hash as *const u32).add(1).read();
        std::slice::from_raw_parts(symbols as *const libc::Elf64_Sym, count as usize)
    };
    IMPORTS.iter().all(|&wanted| {
        symbols.iter().any(|symbol| {
            // SAFETY: a symbol's name is a text of the table of texts.
            symbol.st_shndx == 0 && unsafe { CStr::from_ptr((texts + u64::from(symbol.st_name)) as *const _) } == wanted
        })
    })
}
