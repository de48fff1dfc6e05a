//! Where libc's system calls are: its text, searched. Pure.

use core::arch::x86_64::*;

pub(super) const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// cmp rax,-4096
pub(super) const COMPARE64: [u8; 6] = [0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
/// cmp eax,-4096
pub(super) const COMPARE32: [u8; 5] = [0x3d, 0x00, 0xf0, 0xff, 0xff];

/// The instructions that are replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The load of this number, right before the instruction.
    Mov(u32),
    /// The load of this number, before a `lea` and the instruction.
    MovLea(u32),
    /// The instruction and a comparison.
    Compare64,
    /// As above, of 32 bits.
    Compare32,
    /// `xor edi,edi`, the number from a register, the instruction, and a jump back to the first.
    Loop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Site {
    pub offset: usize,
    pub kind: Kind,
}

/// The sites among these instructions of a text.
pub(super) fn find(text: &[u8], instructions: &[usize]) -> Vec<Site> {
    let mut sites = Vec::new();
    for &at in instructions.iter().filter(|at| (6..text.len().saturating_sub(8)).contains(at)) {
        let before = &text[at - 6..at];
        if before[1] == 0xb8 && before[4..] == [0, 0] && before[0] & 0xf0 != 0x40 {
            let nr = u32::from_le_bytes([before[2], before[3], 0, 0]);
            if is_number(nr) {
                sites.push(Site { offset: at - 5, kind: Kind::Mov(nr) });
            }
        } else if let Some(nr) = number_before_lea(&text[at.saturating_sub(13)..at]) {
            sites.push(Site { offset: at - 12, kind: Kind::MovLea(nr) });
        } else if text[at + 2..].starts_with(&COMPARE64) {
            sites.push(Site { offset: at, kind: Kind::Compare64 });
        } else if text[at + 2..].starts_with(&COMPARE32) {
            sites.push(Site { offset: at, kind: Kind::Compare32 });
        } else if is_loop(&text[at - 4..at + 4]) {
            sites.push(Site { offset: at - 4, kind: Kind::Loop });
        }
    }
    // Where nobody may come in between.
    let boundaries = |s: &Site| match s.kind {
        Kind::Mov(_) => [usize::MAX; 2],
        Kind::MovLea(_) => [s.offset + 5, s.offset + 12],
        Kind::Compare64 | Kind::Compare32 => [s.offset + 2, usize::MAX],
        Kind::Loop => [s.offset + 2, s.offset + 4],
    };
    let mut inner: Vec<usize> = sites.iter().flat_map(boundaries).filter(|&b| b != usize::MAX).collect();
    inner.sort_unstable();
    let entered = branched_to(text, &inner);
    sites.retain(|s| boundaries(s).iter().all(|b| !entered.contains(b)));
    sites
}

/// Those `syscall` instructions, and whatever looks like one, that no site covers.
pub(super) fn missed(instructions: &[usize], sites: &[Site]) -> Vec<usize> {
    let instruction = |s: &Site| match s.kind {
        Kind::Mov(_) => s.offset + 5,
        Kind::MovLea(_) => s.offset + 12,
        Kind::Compare64 | Kind::Compare32 => s.offset,
        Kind::Loop => s.offset + 4,
    };
    let covered: Vec<usize> = sites.iter().map(instruction).collect();
    instructions.iter().copied().filter(|at| covered.binary_search(at).is_err()).collect()
}

/// Where `syscall` instructions stand, or two bytes that look like one.
pub(crate) fn instructions(text: &[u8]) -> impl Iterator<Item = usize> {
    let [first, second] = SYSCALL;
    pairs(text, first, second)
}

/// Where two bytes stand next to each other.
pub(super) fn pairs(text: &[u8], first: u8, second: u8) -> impl Iterator<Item = usize> {
    positions(text, move |bytes, next| {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_and_si128(equal(bytes, first), equal(next, second)) }
    })
}

/// Where the opcodes of branches with a distance of four bytes stand (`call`, `jmp`; and `jcc`, of
/// two bytes), or what looks like one.
fn branches(text: &[u8]) -> impl Iterator<Item = usize> {
    positions(text, |bytes, next| {
        // SAFETY: as above.
        unsafe {
            let unconditional = equal(_mm_and_si128(bytes, _mm_set1_epi8(!1)), 0xe8);
            let conditional = equal(_mm_and_si128(next, _mm_set1_epi8(0xf0_u8 as i8)), 0x80);
            _mm_or_si128(unconditional, _mm_and_si128(equal(bytes, 0x0f), conditional))
        }
    })
}

#[inline(always)]
fn equal(bytes: __m128i, to: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cmpeq_epi8(bytes, _mm_set1_epi8(to as i8)) }
}

/// The places of bytes that `marks` fills with ones, from the bytes themselves and those next to
/// them. Zeros come behind the last byte. A program's start waits for this, and libc's text is a
/// megabyte and a half: a loop over it takes several milliseconds, `memchr` for each of its common
/// bytes nearly two, and this 0.3. It takes 64 bytes at a time, because the CPU mispredicts the end
/// of each step's places.
fn positions(text: &[u8], marks: impl Fn(__m128i, __m128i) -> __m128i) -> impl Iterator<Item = usize> {
    const STEP: usize = u64::BITS as usize;
    let whole = text.len().saturating_sub(1) / STEP * STEP;
    let mut end = [0; 2 * STEP];
    end[..text.len() - whole].copy_from_slice(&text[whole..]);
    // The places found in the step that ends at `at`.
    let (mut found, mut at) = (0u64, 0);
    std::iter::from_fn(move || {
        while found == 0 {
            let from = match at {
                _ if at < whole => text[at..].as_ptr(),
                _ if at < text.len() => end[at - whole..].as_ptr(),
                _ => return None,
            };
            for part in (0..STEP).step_by(size_of::<__m128i>()) {
                // SAFETY: in all 65 bytes, of the text (`whole` is less than its length) or of its
                // end and zeros behind it.
                let marked = unsafe {
                    let (bytes, next) = (from.add(part), from.add(part + 1));
                    _mm_movemask_epi8(marks(_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(next.cast())))
                };
                found |= (marked as u64) << part;
            }
            at += STEP;
        }
        let place = at - STEP + found.trailing_zeros() as usize;
        found &= found - 1;
        Some(place)
    })
}

/// Numbers of calls that are patched; `vfork` has a stub of its own ([`mod@super::patch`]).
fn is_number(nr: u32) -> bool {
    nr < 512 && nr as i64 != libc::SYS_rt_sigreturn
}

/// Such eight bytes; the number is in one of the lower seven registers.
fn is_loop(bytes: &[u8]) -> bool {
    matches!(bytes, [0x31, 0xff, 0x89, from, 0x0f, 0x05, 0xeb, 0xf8] if from & 0xc7 == 0xc0)
}

/// The number that `mov $NR,%eax` loads right before `lea disp32(…),%r64`, which ends the bytes
/// given.
fn number_before_lea(before: &[u8]) -> Option<u32> {
    let &[prefix, 0xb8, a, b, 0, 0, rex, 0x8d, mode, _, _, _, _] = before else { return None };
    let nr = u32::from_le_bytes([a, b, 0, 0]);
    // Relative to rip, or to a register without a scale byte.
    let lea = matches!(rex, 0x48 | 0x49 | 0x4c | 0x4d)
        && (mode & 0xc7 == 0x05 && rex & 1 == 0 || mode & 0xc0 == 0x80 && mode & 7 != 4);
    (prefix & 0xf0 != 0x40
        && lea
        && is_number(nr)
        && !matches!(nr as i64, libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork))
    .then_some(nr)
}

/// Which of some offsets (sorted) a branch may go to. Every byte is taken for an opcode: too many
/// are found rather than too few.
fn branched_to(text: &[u8], offsets: &[usize]) -> Vec<usize> {
    let mut found = Vec::new();
    // Short branches start within 128 bytes of where they go: looked for from there.
    for &target in offsets {
        let is_branch = |at: usize| {
            matches!(text[at], 0xeb | 0x70..=0x7f | 0xe0..=0xe3)
                && (at + 2).wrapping_add_signed(text[at + 1] as i8 as isize) == target
        };
        if (target.saturating_sub(129)..(target + 127).min(text.len().saturating_sub(1))).any(is_branch) {
            found.push(target);
        }
    }
    // A bit for each line of 64 bytes with an offset in it: nearly all branches go elsewhere.
    let mut lines = vec![0u64; text.len() / 4096 + 1];
    for &offset in offsets {
        lines[offset / 4096] |= 1 << (offset / 64 % 64);
    }
    let mut note = |distance_at: usize| {
        let Some(by) = text.get(distance_at..distance_at + 4).and_then(|b| b.try_into().ok()) else { return };
        let target = (distance_at + 4).wrapping_add_signed(i32::from_le_bytes(by) as isize);
        let line = lines.get(target / 4096).copied().unwrap_or(0);
        if line >> (target / 64 % 64) & 1 != 0 && offsets.binary_search(&target).is_ok() {
            found.push(target);
        }
    };
    branches(text).for_each(|at| note(if text[at] == 0x0f { at + 2 } else { at + 1 }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instructions(text: &[u8]) -> Vec<usize> {
        super::instructions(text).collect()
    }

    fn find(text: &[u8]) -> Vec<Site> {
        super::find(text, &instructions(text))
    }

    #[test]
    fn only_whole_sequences_are_sites() {
        let mut text = vec![
            0x90, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, // munmap
            0x41, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, // mov r8d: not ours
            0x90, 0xb8, 0x0b, 0, 0, 1, 0x0f, 0x05, // not a number
            0x90, 0xb8, 0x0e, 0, 0, 0, 0x48, 0x8d, 0x35, 1, 2, 3, 4, 0x0f, 0x05, // a mask, by lea
            0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, // read
            0x0f, 0x05, 0x3d, 0, 0xf0, 0xff, 0xff, // something else
            0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf8, // the end of a thread
            0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf6, // a jump elsewhere
        ];
        text.extend([0x90; 10]);
        let munmap = Site { offset: 1, kind: Kind::Mov(11) };
        let read = Site { offset: 41, kind: Kind::Compare64 };
        let other = Site { offset: 49, kind: Kind::Compare32 };
        let mask = Site { offset: 25, kind: Kind::MovLea(14) };
        let end = Site { offset: 56, kind: Kind::Loop };
        let sites = find(&text);
        assert_eq!(sites, [munmap, mask, read, other, end]);
        assert_eq!(
            missed(&instructions(&text), &sites),
            [14, 22, 68],
            "the instructions behind what is not a load of a number"
        );
        // A branch to the comparison of the last one.
        text.extend([0xeb, 0]);
        let from = text.len();
        text[from - 1] = (51 - from as i8) as u8;
        text.extend([0x90; 8]);
        assert_eq!(find(&text), [munmap, mask, read, end]);
        // A call to that of the one before, and a long conditional branch behind the load of the
        // mask's number.
        for (code, target) in [(&[0xe8][..], 43), (&[0x0f, 0x85][..], 30)] {
            text.extend(code);
            text.extend((target - (text.len() as i32 + 4)).to_le_bytes());
        }
        text.extend([0x90; 8]);
        assert_eq!(find(&text), [munmap, end]);
    }

    /// The quick searches, against plain ones, in real code: of this test.
    #[test]
    fn searches_miss_nothing() {
        let code = std::fs::read("/proc/self/exe").unwrap();
        let middle = code.len() / 2;
        let text = &code[middle..(middle + (1 << 20)).min(code.len())];
        let plain = (0..text.len() - 1).filter(|&at| text[at..at + 2] == SYSCALL);
        assert!(super::instructions(text).eq(plain));
        // At every distance from the end of a step, and at the text's own.
        for len in 0..200 {
            for at in 0..len {
                let mut text = vec![0x0f; len];
                text[at] = 0x05;
                let expected = at.checked_sub(1);
                assert!(super::instructions(&text).eq(expected), "{len} {at}");
                text[at] = 0xe9;
                assert!(branches(&text).eq([at]), "{len} {at}");
            }
        }
        let mut targets = Vec::new();
        for (at, &opcode) in text.iter().enumerate() {
            let (distance_at, short) = match opcode {
                0xeb | 0x70..=0x7f | 0xe0..=0xe3 => (at + 1, true),
                0xe8 | 0xe9 => (at + 1, false),
                0x0f if matches!(text.get(at + 1), Some(0x80..=0x8f)) => (at + 2, false),
                _ => continue,
            };
            let end = distance_at + if short { 1 } else { 4 };
            let Some(distance) = text.get(distance_at..end) else { continue };
            let by = match short {
                true => distance[0] as i8 as isize,
                false => i32::from_le_bytes(distance.try_into().unwrap()) as isize,
            };
            targets.push(end.wrapping_add_signed(by));
        }
        targets.sort_unstable();
        let offsets: Vec<usize> = (0..text.len()).step_by(7).collect();
        let mut found = branched_to(text, &offsets);
        found.sort_unstable();
        found.dedup();
        let expected: Vec<usize> = offsets.iter().copied().filter(|o| targets.binary_search(o).is_ok()).collect();
        assert!(expected.len() > 1000, "{}", expected.len());
        assert_eq!(found, expected);
    }
}
