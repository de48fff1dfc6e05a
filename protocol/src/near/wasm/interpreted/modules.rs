//! Modules for tests, put together by hand.

/// A length of two bytes, as WebAssembly writes it.
fn length(of: &[u8]) -> [u8; 2] {
    assert!(of.len() < 1 << 14);
    [(of.len() & 0x7f) as u8 | 0x80, (of.len() >> 7) as u8]
}

/// A section: its number, and what it has.
fn section(number: u8, body: &[u8]) -> Vec<u8> {
    [&[number][..], &length(body), body].concat()
}

/// A module with a memory of `pages` pages, whose `run` has this code. `imports`: it wants a
/// function of its host's.
pub fn module(pages: u8, imports: bool, code: &[u8]) -> Vec<u8> {
    let body = [&[1, 1, 0x7e], code, &[0x0b]].concat();
    let exports = [b"\x02\x06memory\x02\x00\x03run\x00".as_slice(), &[imports as u8]].concat();
    let mut module = b"\0asm\x01\0\0\0".to_vec();
    module.extend(section(1, &[1, 0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7e, 1, 0x7e]));
    if imports {
        module.extend(section(2, b"\x01\x01e\x01f\x00\x00"));
    }
    module.extend(section(3, &[1, 0]));
    module.extend(section(5, &[1, 0, pages]));
    module.extend(section(7, &exports));
    module.extend(section(10, &[&[1][..], &length(&body), &body].concat()));
    module
}

/// Sums the words of the source: the sum is the result, and with the argument it is returned.
pub fn sum() -> Vec<u8> {
    let code = [
        0x02, 0x40, 0x03, 0x40, // block, loop
        0x20, 1, 0x45, 0x0d, 1, // no bytes are left: out of the block
        0x20, 5, 0x20, 0, 0x29, 3, 0, 0x7c, 0x21, 5, // add a word
        0x20, 0, 0x41, 8, 0x6a, 0x21, 0, // the next one
        0x20, 1, 0x41, 8, 0x6b, 0x21, 1, // eight bytes fewer
        0x0c, 0, 0x0b, 0x0b, // again
        0x20, 2, 0x20, 5, 0x37, 3, 0, // the result
        0x20, 5, 0x20, 4, 0x7c,
    ];
    module(1, false, &code)
}

/// Never ends.
pub fn endless() -> Vec<u8> {
    module(1, false, &[0x03, 0x40, 0x0c, 0, 0x0b, 0x42, 0])
}
