//! A chunk's words into references.
//!
//! QEMU makes of one instruction's reference several: 16 bytes are two of 8, a register set is
//! dozens, and a load and a store of the same bytes are two. Words of one instruction stand
//! together, so they are put together again: neighbours of the same direction become one, a load
//! and then a store of the same bytes one that does both.

use crate::reference::{Kind, MAX_BYTES, Reference};
use farmem_recorder::ring::word;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells `to` the references of a chunk, in order.
pub fn decode(words: &[AtomicU64], mut to: impl FnMut(Reference)) {
    let mut parts: Vec<Reference> = Vec::with_capacity(64);
    let mut last = u64::MAX;
    for word in words {
        let word = word.load(Ordering::Relaxed);
        let number = word >> word::NUMBER;
        if word & (word::FRESH | word::REP) != 0 || number != last {
            tell(&mut parts, &mut to);
        }
        last = number;
        let address = word & word::ADDRESS;
        let bytes = 1 << (word >> word::SIZE & 7);
        let kind = match word & (word::STORE | word::BOTH) {
            0 | word::BOTH => Kind::Read,
            word::STORE => Kind::Write,
            _ => Kind::Modify,
        };
        match parts.last_mut() {
            Some(part) if part.kind == kind && ends(part) == address && part.bytes < MAX_BYTES => part.bytes += bytes,
            _ => parts.push(Reference { address, bytes, kind }),
        }
    }
    tell(&mut parts, &mut to);
}

fn ends(part: &Reference) -> u64 {
    part.address + u64::from(part.bytes)
}

/// The references of one instruction.
fn tell(parts: &mut Vec<Reference>, to: &mut impl FnMut(Reference)) {
    let mut rest = parts.drain(..).peekable();
    while let Some(mut part) = rest.next() {
        let stored = |next: &Reference| {
            let is_pair = part.kind == Kind::Read && next.kind.dirties();
            is_pair && (part.address, part.bytes) == (next.address, next.bytes)
        };
        if rest.next_if(stored).is_some() {
            part.kind = Kind::Modify;
        }
        to(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Kind::{Modify, Read, Write};
    use word::{BOTH, FRESH, REP, STORE};

    fn word(number: u64, address: u64, log2: u64, flags: u64) -> AtomicU64 {
        AtomicU64::new((number << word::NUMBER) | (log2 << word::SIZE) | address | flags)
    }

    fn decoded(words: &[AtomicU64]) -> Vec<(u64, u16, Kind)> {
        let mut all = vec![];
        decode(words, |reference| all.push((reference.address, reference.bytes, reference.kind)));
        all
    }

    #[test]
    fn parts_of_an_instruction_become_one_reference() {
        let words = [
            word(0, 0x10, 3, FRESH),
            word(0, 0x18, 3, 0),
            word(1, 0x20, 3, 0),
            // add to memory; then 16 bytes compared and exchanged; then a push of memory.
            word(2, 0x40, 2, 0),
            word(2, 0x40, 2, STORE),
            word(3, 0x50, 3, 0),
            word(3, 0x58, 3, 0),
            word(3, 0x50, 3, STORE),
            word(3, 0x58, 3, STORE),
            word(4, 0x60, 3, 0),
            word(4, 0x900, 3, STORE),
            // lock add, as it is told where other threads run, and where not.
            word(5, 0x70, 3, STORE | BOTH),
            word(6, 0x70, 3, BOTH),
            word(6, 0x70, 3, STORE | BOTH),
        ];
        let references = [
            (0x10, 16, Read),
            (0x20, 8, Read),
            (0x40, 4, Modify),
            (0x50, 16, Modify),
            (0x60, 8, Read),
            (0x900, 8, Write),
            (0x70, 8, Modify),
            (0x70, 8, Modify),
        ];
        assert_eq!(decoded(&words), references);
    }

    #[test]
    fn an_instruction_carried_out_again_is_another_one() {
        let again = [word(5, 0, 3, FRESH | STORE), word(5, 8, 3, FRESH | STORE)];
        assert_eq!(decoded(&again), [(0, 8, Write), (8, 8, Write)]);
        let repeated = [word(5, 0, 3, REP | STORE), word(5, 8, 3, REP | STORE)];
        assert_eq!(decoded(&repeated), [(0, 8, Write), (8, 8, Write)]);
    }
}
