//! Sealed pages: what a node gives back opens only if it is what the host gave it.

// The cipher works on pages in place, by their addresses.
#![allow(unsafe_code)]

use crate::fuzz::fuzz;
use farmem_sys::gcm::{Key, PAGE};

/// Bytes before the page: the nonce and the tag, which the host keeps.
const HEAD: usize = 16;

#[test]
fn a_sealed_page() {
    let Some(key) = Key::new(&[7; 16]) else { return eprintln!("skipped: the CPU seals no pages") };
    let page: Vec<u8> = (0..PAGE).map(|i| (i / 3) as u8).collect();
    let sealed = |nonce: u64, page: &[u8]| {
        let mut out = vec![0; PAGE];
        // SAFETY: both are whole pages, and each nonce seals one page.
        let tag = unsafe { key.seal(nonce, page.as_ptr(), out.as_mut_ptr()) };
        [&nonce.to_le_bytes()[..], &tag.to_le_bytes(), &out].concat()
    };
    let good = [sealed(1, &page), sealed(2, &[0; PAGE]), sealed(1 << 40, &page)];
    let texts: Vec<&[u8]> = good.iter().map(Vec::as_slice).collect();
    fuzz("sealed", &texts, |_, bytes| {
        let Some(bytes) = bytes.get(..HEAD + PAGE) else { return 0 };
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut opened = vec![0x55; PAGE];
        // SAFETY: both are whole pages.
        let went = unsafe { key.open(word(0), word(8), bytes[HEAD..].as_ptr(), opened.as_mut_ptr()) };
        assert_eq!(went.is_ok(), good.iter().any(|good| good == bytes));
        if went.is_ok() {
            assert!(opened == page || opened == [0; PAGE]);
        }
        1 + usize::from(went.is_ok())
    });
}
