//! Seccomp filters, run as the kernel runs them: to know what one will say before a call is made
//! that cannot be undone.
//!
//! Classic BPF (`linux/filter.h`): an accumulator, an index, 16 words of memory; jumps go forward
//! only, so every filter ends.

use crate::filter::X86_64;
use libc::sock_filter;

/// A system call as a filter sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub nr: i64,
    /// The address after the instruction.
    pub from: u64,
    /// `None`: not known yet.
    pub args: Option<[u64; 6]>,
}

impl Seen {
    /// A word of `struct seccomp_data`: nr 0, arch 4, instruction_pointer 8, args 16 (64 bits each,
    /// low word first).
    fn word(&self, at: u32) -> Option<u32> {
        let half = |value: u64| (value >> if at % 8 == 4 { 32 } else { 0 }) as u32;
        match at {
            0 => Some(self.nr as u32),
            4 => Some(X86_64),
            8 | 12 => Some(half(self.from)),
            16..64 if at.is_multiple_of(4) => Some(half(self.args?[(at as usize - 16) / 8])),
            _ => None,
        }
    }
}

/// The filter's verdict. `None` if it depends on an argument that is not known, or if the kernel
/// would not take the filter.
pub fn verdict(filter: &[sock_filter], call: Seen) -> Option<u32> {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; 16], 0usize);
    loop {
        let o = filter.get(at)?;
        at += 1;
        let operand = if o.code & 0x08 == 0 { o.k } else { x };
        let slot = o.k as usize;
        match o.code {
            0x20 => a = call.word(o.k)?, // load a word of the call
            0x00 => a = o.k,             // … a constant
            0x01 => x = o.k,
            0x60 => a = *memory.get(slot)?, // … what was stored
            0x61 => x = *memory.get(slot)?,
            0x80 => a = 64, // … the length of what a filter sees
            0x81 => x = 64,
            0x02 => *memory.get_mut(slot)? = a,
            0x03 => *memory.get_mut(slot)? = x,
            0x07 => x = a,
            0x87 => a = x,
            0x04 | 0x0c => a = a.wrapping_add(operand),
            0x14 | 0x1c => a = a.wrapping_sub(operand),
            0x24 | 0x2c => a = a.wrapping_mul(operand),
            0x34 | 0x3c => a = a.checked_div(operand)?,
            0x44 | 0x4c => a |= operand,
            0x54 | 0x5c => a &= operand,
            0x64 | 0x6c => a = a.checked_shl(operand)?,
            0x74 | 0x7c => a = a.checked_shr(operand)?,
            0xa4 | 0xac => a ^= operand,
            0x84 => a = a.wrapping_neg(),
            0x05 => at = at.checked_add(slot)?,
            0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                let holds = match o.code & 0xf0 {
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { o.jt } else { o.jf });
            }
            0x06 => return Some(o.k),
            0x16 => return Some(a),
            _ => return None,
        }
    }
}

/// The filter's verdict on a call of which everything is known.
#[cfg(test)]
pub fn run(filter: &[sock_filter], nr: i64, from: u64, args: [u64; 6]) -> u32 {
    verdict(filter, Seen { nr, from, args: Some(args) }).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::op;

    const CALL: Seen = Seen { nr: 231, from: 0x7000_1234_5678, args: Some([7 << 32 | 5, 0, 0, 0, 0, 9]) };

    #[test]
    fn a_call_is_seen_as_the_kernel_shows_it() {
        let load = |at| verdict(&[op(0x20, at, 0, 0), op(0x16, 0, 0, 0)], CALL);
        let words = [0, 4, 8, 12, 16, 20, 56, 60, 64, 18].map(load);
        let some = [231, X86_64, 0x1234_5678, 0x7000, 5, 7, 9, 0].map(Some);
        assert_eq!(words[..8], some);
        assert_eq!(words[8..], [None, None]);
    }

    #[test]
    fn what_hangs_on_an_unknown_argument_is_unknown() {
        let filter = [op(0x20, 0, 0, 0), op(0x15, 231, 0, 1), op(0x06, 1, 0, 0), op(0x20, 16, 0, 0), op(0x16, 0, 0, 0)];
        assert_eq!(verdict(&filter, Seen { args: None, ..CALL }), Some(1));
        assert_eq!(verdict(&filter, Seen { args: None, nr: 1, ..CALL }), None);
        assert_eq!(verdict(&filter, Seen { nr: 1, ..CALL }), Some(5));
    }

    #[test]
    fn it_reckons_and_jumps() {
        // x = 3; a = (4 + x) << 2 ^ 1 = 29; stored and loaded; not above 29, but at least; 29 & 4:
        // jump over the first end.
        let filter = [
            op(0x01, 3, 0, 0),
            op(0x00, 4, 0, 0),
            op(0x0c, 0, 0, 0),
            op(0x64, 2, 0, 0),
            op(0xa4, 1, 0, 0),
            op(0x02, 5, 0, 0),
            op(0x61, 5, 0, 0),
            op(0x2d, 0, 5, 0),
            op(0x3d, 0, 0, 4),
            op(0x45, 4, 1, 0),
            op(0x06, 1, 0, 0),
            op(0x05, 1, 0, 0),
            op(0x06, 2, 0, 0),
            op(0x06, 3, 0, 0),
        ];
        assert_eq!(verdict(&filter, CALL), Some(3));
        assert_eq!(verdict(&[op(0x34, 0, 0, 0), op(0x06, 0, 0, 0)], CALL), None);
        assert_eq!(verdict(&[op(0x05, u32::MAX, 0, 0)], CALL), None);
    }
}
