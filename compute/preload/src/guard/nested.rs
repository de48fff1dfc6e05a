//! Structures with pointers in them whose layouts are too many to know.
//!
//! Devices and subsystems define thousands of requests. Each word of such a structure that looks
//! like a far address is taken for one. Memory behind it is pinned, as much as most such buffers
//! have. A word that is no address costs a few pages, for the call. Where a length is known to be
//! longer (`bpf`), all of it is pinned.

use super::array::each;
use super::peek::{peek, peek_into};
use super::pins::Pins;
use crate::call::{Call, issue};
use farmem_protocol::addr::is_far;

/// Bytes of a structure that are looked at.
const LOOKED_AT: usize = 512;
/// Bytes that are pinned behind a word.
const BEHIND: usize = 32 << 10;
/// Words of one structure that are taken for addresses.
const ADDRESSES: usize = 16;
/// The longest buffer behind a word whose length is known.
const LONGEST: usize = 64 << 20;

/// Pins what the words of a structure may point to.
pub fn words(pins: &mut Pins<'_>, addr: usize, size: usize) {
    let mut words = [0usize; LOOKED_AT / 8];
    let bytes = size.min(LOOKED_AT) & !7;
    if bytes == 0 || !peek_into(addr, words.as_mut_ptr().cast(), bytes) {
        return;
    }
    for &word in words[..bytes / 8].iter().filter(|&&word| is_far(word)).take(ADDRESSES) {
        behind(pins, word, BEHIND);
    }
}

/// Pins `len` bytes for a use of which it is not known whether it writes.
fn behind(pins: &mut Pins<'_>, addr: usize, len: usize) {
    if !pins.add(addr, len, true) {
        // What may not be written may be read.
        pins.add(addr, len, false);
    }
}

/// The word at `at` of a structure: where it leads, with a length.
fn known(pins: &mut Pins<'_>, at: usize, len: usize) {
    if let Some(addr) = peek::<usize>(at) {
        behind(pins, addr, len.min(LONGEST));
    }
}

fn word32(at: usize) -> usize {
    peek::<u32>(at).unwrap_or(0) as usize
}

/// The structure of a `bpf` call (`union bpf_attr`).
pub fn bpf(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const PROG_LOAD: usize = 5;
    const INFO: usize = 15;
    const BTF_LOAD: usize = 18;
    let size = call.args[2];
    words(pins, addr, size);
    match call.args[0] {
        // A map's element: the map, a key, a value.
        1..=4 | 21 if size >= 24 => {
            let (key, value) = map(word32(addr));
            known(pins, addr + 8, key);
            known(pins, addr + 16, value);
        }
        // Many of them: two cursors, keys, values, their number, the map.
        24..=27 if size >= 40 => {
            let ((key, value), count) = (map(word32(addr + 36)), word32(addr + 32));
            known(pins, addr + 16, key.saturating_mul(count));
            known(pins, addr + 24, value.saturating_mul(count));
        }
        PROG_LOAD if size >= 40 => {
            const INSTRUCTION: usize = 8;
            known(pins, addr + 8, word32(addr + 4) * INSTRUCTION);
            known(pins, addr + 32, word32(addr + 28));
            if size >= 108 {
                // What is known of functions, and of lines: bytes of a record, their place, their
                // number.
                known(pins, addr + 80, word32(addr + 76).saturating_mul(word32(addr + 88)));
                known(pins, addr + 96, word32(addr + 92).saturating_mul(word32(addr + 104)));
            }
        }
        BTF_LOAD if size >= 24 => {
            known(pins, addr, word32(addr + 16));
            known(pins, addr + 8, word32(addr + 20));
        }
        // What is told of a program, a map, types: a structure that leads on. Its numbers are also
        // the lengths of what it leads to.
        INFO if size >= 16 => {
            let (len, Some(info)) = (word32(addr + 4), peek::<usize>(addr + 8)) else { return };
            words(pins, info, len);
            if len >= 16 {
                // Types: their place, their length. Of a program that is a tag.
                known(pins, info, word32(info + 8));
            }
            if len >= 40 {
                // A program's instructions, compiled and not: two lengths, then two places.
                known(pins, info + 24, word32(info + 16));
                known(pins, info + 32, word32(info + 20));
            }
        }
        _ => {}
    }
}

/// Bytes of a key and of a value of a map; none where the kernel does not tell.
fn map(descriptor: usize) -> (usize, usize) {
    const INFO: usize = 15;
    // Type, number, bytes of a key and of a value.
    let mut about = [0u32; 20];
    let attributes = [(descriptor | size_of_val(&about) << 32) as u64, about.as_mut_ptr() as u64];
    let args = [INFO, attributes.as_ptr() as usize, size_of_val(&attributes), 0, 0, 0];
    if issue(&Call { nr: libc::SYS_bpf, args, sp: 0 }) < 0 {
        return (0, 0);
    }
    (about[2] as usize, about[3] as usize)
}

/// The arguments of `keyctl` that are vectors, or structures with pointers.
pub fn keys(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const INSTANTIATE_IOV: usize = 20;
    const WITH_STRUCTURES: usize = 23;
    match call.args[0] {
        INSTANTIATE_IOV => {
            let count = call.args[3].min(1024);
            pins.add(addr, count * size_of::<libc::iovec>(), false);
            each(addr, count, |vector| {
                pins.add(vector.iov_base as usize, vector.iov_len.min(LONGEST), false);
            });
        }
        WITH_STRUCTURES.. => {
            words(pins, call.args[1], 40);
            words(pins, call.args[4], 40);
        }
        _ => {}
    }
}

/// The value of a `setsockopt` whose option has a structure with pointers: packet filters' tables,
/// the choice of a socket among several.
pub fn option(pins: &mut Pins<'_>, call: &Call, addr: usize) {
    const TABLES: usize = 64;
    let (level, name, len) = (call.args[1], call.args[2], call.args[4]);
    if len < 16 {
        return;
    }
    words(pins, addr, len.min(128));
    if matches!(level as i32, libc::SOL_IP | libc::SOL_IPV6) && name == TABLES && len >= 96 {
        // The number of counters of the table that is replaced, and where they go.
        const COUNTER: usize = 16;
        known(pins, addr + 88, word32(addr + 84) * COUNTER);
    }
}
