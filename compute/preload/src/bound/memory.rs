//! `memcpy`, `memmove`, `memset`, `memcmp` and `strlen`.
//!
//! Small pieces are copied by moves that overlap, middling ones by a loop of 64 bytes, long ones by
//! `rep movsb`, which takes some time to begin and is the fastest there is from then on. Nothing
//! beyond SSE2 is used: it is everywhere, and as fast as libc for copies of any length here.
//!
//! Every load of a piece comes before its stores where source and target may overlap, so `memcpy`
//! is `memmove`.

/// Bytes from which on one instruction copies all.
const LONG_COPY: usize = 2048;
/// Bytes from which on one instruction sets all.
const LONG_SET: usize = 1024;

/// Labels of a function: its own, and libc's names for it outside of tests, whose process is not
/// the runtime's.
#[cfg(test)]
macro_rules! function {
    ($own:literal, $($libcs:literal)*) => {
        concat!(".globl ", $own, "\n.hidden ", $own, "\n.type ", $own, ",@function\n", $own, ":\n")
    };
}
#[cfg(not(test))]
macro_rules! function {
    ($own:literal, $($libcs:literal)*) => { super::labels!($($libcs)*) };
}

core::arch::global_asm!(
    ".balign 64",
    function!("farmem_memmove", "memcpy" "memmove"),
    ".cfi_startproc",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 20f",
    "cmp rdx, 32",
    "ja 30f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    // Below 16.
    "20:",
    "cmp edx, 8",
    "jb 21f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "21:",
    "cmp edx, 4",
    "jb 22f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "22:",
    "test edx, edx",
    "jz 23f",
    // One to three: the first, the middle, the last.
    "mov r9, rdx",
    "shr r9",
    "movzx ecx, byte ptr [rsi]",
    "movzx r10d, byte ptr [rsi + r9]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "mov [rdi], cl",
    "mov [rdi + r9], r10b",
    "mov [rdi + rdx - 1], r8b",
    "23:",
    "ret",
    // Above 32.
    "30:",
    "movups xmm4, [rsi + rdx - 16]",
    "movups xmm5, [rsi + rdx - 32]",
    "cmp rdx, 64",
    "ja 31f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 16], xmm4",
    "movups [rdi + rdx - 32], xmm5",
    "ret",
    // Above 64: is the target within the source?
    "31:",
    "mov rcx, rdi",
    "sub rcx, rsi",
    "cmp rcx, rdx",
    "jb 50f",
    "cmp rdx, {long}",
    "jae 40f",
    "movups xmm6, [rsi + rdx - 48]",
    "movups xmm7, [rsi + rdx - 64]",
    "lea r8, [rdi + rdx - 64]",
    "32:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "add rsi, 64",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb 32b",
    // The last 64, loaded before anything was stored.
    "movups [r8 + 48], xmm4",
    "movups [r8 + 32], xmm5",
    "movups [r8 + 16], xmm6",
    "movups [r8], xmm7",
    "ret",
    "40:",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    // From the end, because the target begins within the source. The first 64 are loaded before
    // anything is stored.
    "50:",
    "movups xmm4, [rsi]",
    "movups xmm5, [rsi + 16]",
    "movups xmm6, [rsi + 32]",
    "movups xmm7, [rsi + 48]",
    "51:",
    "movups xmm0, [rsi + rdx - 16]",
    "movups xmm1, [rsi + rdx - 32]",
    "movups xmm2, [rsi + rdx - 48]",
    "movups xmm3, [rsi + rdx - 64]",
    "movups [rdi + rdx - 16], xmm0",
    "movups [rdi + rdx - 32], xmm1",
    "movups [rdi + rdx - 48], xmm2",
    "movups [rdi + rdx - 64], xmm3",
    "sub rdx, 64",
    "cmp rdx, 64",
    "ja 51b",
    "movups [rdi], xmm4",
    "movups [rdi + 16], xmm5",
    "movups [rdi + 32], xmm6",
    "movups [rdi + 48], xmm7",
    "ret",
    ".cfi_endproc",
    long = const LONG_COPY,
);

core::arch::global_asm!(
    ".balign 64",
    function!("farmem_memset", "memset"),
    ".cfi_startproc",
    "movzx esi, sil",
    "movabs rcx, 0x0101010101010101",
    "imul rcx, rsi",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 20f",
    "movq xmm0, rcx",
    "punpcklqdq xmm0, xmm0",
    "cmp rdx, 64",
    "ja 30f",
    // 16 to 64: from both ends, in steps that may overlap.
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm0",
    "cmp rdx, 32",
    "jbe 23f",
    "movups [rdi + 16], xmm0",
    "movups [rdi + rdx - 32], xmm0",
    "ret",
    "20:",
    "cmp edx, 8",
    "jb 21f",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], rcx",
    "ret",
    "21:",
    "cmp edx, 4",
    "jb 22f",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], ecx",
    "ret",
    "22:",
    "test edx, edx",
    "jz 23f",
    "mov r9, rdx",
    "shr r9",
    "mov [rdi], cl",
    "mov [rdi + r9], cl",
    "mov [rdi + rdx - 1], cl",
    "23:",
    "ret",
    "30:",
    "cmp rdx, {long}",
    "jae 40f",
    "lea r8, [rdi + rdx - 64]",
    "31:",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm0",
    "movups [rdi + 32], xmm0",
    "movups [rdi + 48], xmm0",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb 31b",
    "movups [r8], xmm0",
    "movups [r8 + 16], xmm0",
    "movups [r8 + 32], xmm0",
    "movups [r8 + 48], xmm0",
    "ret",
    "40:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    ".cfi_endproc",
    long = const LONG_SET,
);

core::arch::global_asm!(
    ".balign 64",
    function!("farmem_memcmp", "memcmp" "bcmp"),
    ".cfi_startproc",
    "cmp rdx, 16",
    "jb 20f",
    "xor ecx, ecx",
    "lea r8, [rdx - 16]",
    "lea r9, [rdx - 64]",
    "cmp rdx, 64",
    "jb 10f",
    // 64 at a time, as long as they are equal.
    "9:",
    "movups xmm0, [rdi + rcx]",
    "movups xmm1, [rdi + rcx + 16]",
    "movups xmm2, [rdi + rcx + 32]",
    "movups xmm3, [rdi + rcx + 48]",
    "movups xmm4, [rsi + rcx]",
    "movups xmm5, [rsi + rcx + 16]",
    "movups xmm6, [rsi + rcx + 32]",
    "movups xmm7, [rsi + rcx + 48]",
    "pcmpeqb xmm0, xmm4",
    "pcmpeqb xmm1, xmm5",
    "pcmpeqb xmm2, xmm6",
    "pcmpeqb xmm3, xmm7",
    "pand xmm0, xmm1",
    "pand xmm2, xmm3",
    "pand xmm0, xmm2",
    "pmovmskb eax, xmm0",
    "cmp eax, 0xffff",
    "jne 10f",
    "add rcx, 64",
    "cmp rcx, r9",
    "jbe 9b",
    // Fewer are left, or none: the last 16 are looked at once more.
    "cmp rcx, r8",
    "cmova rcx, r8",
    "10:",
    "movups xmm0, [rdi + rcx]",
    "movups xmm1, [rsi + rcx]",
    "pcmpeqb xmm0, xmm1",
    "pmovmskb eax, xmm0",
    "xor eax, 0xffff",
    "jnz 12f",
    "cmp rcx, r8",
    "je 11f",
    "add rcx, 16",
    "cmp rcx, r8",
    "cmova rcx, r8",
    "jmp 10b",
    "11:",
    "ret",
    // A bit for each byte that differs.
    "12:",
    "bsf eax, eax",
    "add rcx, rax",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx edx, byte ptr [rsi + rcx]",
    "sub eax, edx",
    "ret",
    // Below 16: as numbers of which the first byte is the highest.
    "20:",
    "cmp edx, 8",
    "jb 22f",
    "mov rax, [rdi]",
    "mov rcx, [rsi]",
    "cmp rax, rcx",
    "jne 21f",
    "mov rax, [rdi + rdx - 8]",
    "mov rcx, [rsi + rdx - 8]",
    "21:",
    "bswap rax",
    "bswap rcx",
    "xor edx, edx",
    "cmp rax, rcx",
    "seta al",
    "setb dl",
    "movzx eax, al",
    "sub eax, edx",
    "ret",
    "22:",
    "xor ecx, ecx",
    "23:",
    "xor eax, eax",
    "cmp rcx, rdx",
    "je 24f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "jz 23b",
    "24:",
    "ret",
    ".cfi_endproc",
);

// Of names and paths, which are short.
core::arch::global_asm!(
    function!("farmem_strlen", "strlen"),
    ".cfi_startproc",
    "xor eax, eax",
    "cmp byte ptr [rdi], 0",
    "je 11f",
    "10:",
    "inc rax",
    "cmp byte ptr [rdi + rax], 0",
    "jne 10b",
    "11:",
    "ret",
    ".cfi_endproc",
);

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    unsafe extern "C" {
        fn farmem_memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8;
        fn farmem_memset(to: *mut u8, byte: i32, len: usize) -> *mut u8;
        fn farmem_memcmp(one: *const u8, other: *const u8, len: usize) -> i32;
        fn farmem_strlen(text: *const c_char) -> usize;
    }

    /// Lengths around each step, and pages.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..200).chain([255, 256, 257, 511, 1000, 1023, 1024, 1025, 1100, 2047, 2048, 2049, 4095, 4096, 4097, 8192])
    }

    /// Bytes that differ from their neighbours, and from each other in both buffers.
    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251 * 31 + 1) as u8).collect()
    }

    #[test]
    fn bytes_move_as_if_by_way_of_a_copy() {
        for len in lengths() {
            for (from, to) in
                [(0, 9000), (9000, 0), (3, 9001), (64, 64), (100, 101), (101, 100), (70, 8), (8, 70), (500, 16)]
            {
                for shift in [0, 1, 15] {
                    let (from, to) = (from + shift, to);
                    let mut seen = bytes(18_000);
                    let mut right = seen.clone();
                    right.copy_within(from..from + len, to);
                    // SAFETY: both within the buffer.
                    let told = unsafe { farmem_memmove(seen.as_mut_ptr().add(to), seen.as_ptr().add(from), len) };
                    assert_eq!(told as usize, seen.as_ptr() as usize + to);
                    assert!(seen == right, "{len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn bytes_are_set_and_none_beside_them() {
        for len in lengths() {
            for at in [0, 1, 13, 64] {
                let mut seen = bytes(9000);
                let mut right = seen.clone();
                right[at..at + len].fill(0xA5);
                // SAFETY: within the buffer. Only the lowest byte counts.
                let told = unsafe { farmem_memset(seen.as_mut_ptr().add(at), 0x7FA5, len) };
                assert_eq!(told as usize, seen.as_ptr() as usize + at);
                assert!(seen == right, "{len} bytes at {at}");
            }
        }
    }

    #[test]
    fn the_first_byte_that_differs_decides() {
        for len in lengths() {
            let one = bytes(len + 1);
            let mut other = one.clone();
            let compare = |other: &[u8]| {
                // SAFETY: both have so many bytes.
                unsafe { farmem_memcmp(one.as_ptr(), other.as_ptr(), len).signum() }
            };
            // The byte behind the end has no say.
            other[len] ^= 0xFF;
            assert_eq!(compare(&other), 0, "{len}");
            for at in (0..len).filter(|&at| len < 100 || at % 61 == 0 || at + 20 > len) {
                for byte in [0, 0x7F, 0x80, 0xFF, one[at]] {
                    let mut other = one.clone();
                    other[at] = byte;
                    // A later one has no say.
                    if at + 1 < len {
                        other[at + 1] ^= 0x80;
                    }
                    let right = one[..len].cmp(&other[..len]) as i32;
                    assert_eq!(compare(&other), right, "{len} bytes, {byte} at {at}");
                }
            }
        }
    }

    #[test]
    fn texts_end_at_their_first_zero() {
        for len in 0..40 {
            let text = [vec![b'x'; len], vec![0, b'y', 0]].concat();
            // SAFETY: ended by zero.
            assert_eq!(unsafe { farmem_strlen(text.as_ptr().cast()) }, len);
        }
    }
}
