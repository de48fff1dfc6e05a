//! Seals pages: AES-128-GCM of one whole page, with 64 bits of its tag.
//!
//! ```text
//! counter blocks ─► AES ─► ⊕ page ─► ciphertext ─► GHASH, 32 blocks a reduction ─► ⊕ AES(counter 1) ─► tag
//! ```
//!
//! `ring` seals no page in this form: it opens only what has all 128 bits of its tag, and the table
//! of tags has to stay small ([`Key::open`] says what 64 bits are worth). The function is the
//! standard's (NIST SP 800-38D, no associated data). Tests compare every page with `ring`'s.
//!
//! Everything takes the same time whatever the key and the bytes are: no tables, no branches on
//! them. It works on the stack and on the caller's pages, in faults too.
//!
//! GHASH is computed as POLYVAL of the reversed blocks (RFC 8452, appendix A): one multiplication
//! needs no shift then, and sums of products are reduced together.

use std::arch::x86_64::*;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Blocks whose products are summed before they are reduced, and powers of the hash key that there
/// are.
pub(crate) const POWERS: usize = 32;
/// The reduction polynomial's upper half.
const POLY: i64 = 0xC200_0000_0000_0000_u64 as i64;

/// A page does not open: it is not what was sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Altered;

/// A key, expanded.
#[repr(C, align(64))]
pub struct Key {
    /// Powers of the hash key, the highest first.
    powers: [u128; POWERS],
    rounds: [u128; 11],
    /// Four blocks an instruction.
    wide: bool,
}

/// Whether this CPU can do it at all: each of the last dozen years can.
pub fn can() -> bool {
    is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("ssse3")
        && is_x86_feature_detected!("sse4.1")
}

fn can_wide() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
}

impl Key {
    /// Expands a key. `None`: this CPU has no instructions for it ([`can`]).
    pub fn new(key: &[u8; 16]) -> Option<Key> {
        // SAFETY: the CPU has what the function needs.
        can().then(|| unsafe { expand(key, can_wide()) })
    }

    /// Seals the page at `from` into the page at `to`; both may be the same. Returns the tag.
    ///
    /// # Safety
    /// A nonce is used once with a key. Both are pages, the caller's, `from` readable and `to`
    /// writable.
    pub unsafe fn seal(&self, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
        // SAFETY: passed on to the caller; a key exists only where the CPU can ([`Key::new`]).
        unsafe {
            if self.wide { by_four::<true>(self, nonce, from, to) } else { by_one::<true>(self, nonce, from, to) }
        }
    }

    /// Opens the page at `from` into the page at `to`; both may be the same.
    ///
    /// A forger who may try once succeeds with a probability of 2^-55: 64 bits of tag, and 256
    /// blocks. So the caller ends at the first page that does not open.
    ///
    /// # Errors
    /// [`Altered`]: the bytes at `to` then have no meaning.
    ///
    /// # Safety
    /// Both are pages, the caller's, `from` readable and `to` writable.
    pub unsafe fn open(&self, nonce: u64, tag: u64, from: *const u8, to: *mut u8) -> Result<(), Altered> {
        // SAFETY: as in `seal`.
        let found = unsafe {
            if self.wide { by_four::<false>(self, nonce, from, to) } else { by_one::<false>(self, nonce, from, to) }
        };
        if found ^ tag == 0 { Ok(()) } else { Err(Altered) }
    }

    /// The round keys of AES.
    pub(crate) fn rounds(&self) -> &[u128; 11] {
        &self.rounds
    }

    /// Powers of the hash key, the highest first.
    pub(crate) fn powers(&self) -> &[u128; POWERS] {
        &self.powers
    }

    /// Two more keys, by a number that is used once with this key: one to seal with, one to derive
    /// from. A key that derives is to do nothing else.
    pub fn derive(&self, number: u64) -> [[u8; 16]; 2] {
        let block = |which: u64| u128::from(number) << 64 | u128::from(which);
        // SAFETY: a key exists only where the CPU can.
        [1, 2].map(|which| unsafe { encrypt(&self.rounds, block(which)) }.to_le_bytes())
    }
}

/// The round keys and powers of a key.
#[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
fn expand(key: &[u8; 16], wide: bool) -> Key {
    let mut rounds = [u128::from_le_bytes(*key); 11];
    macro_rules! round {
        ($($at:literal, $constant:literal;)*) => {$({
            let mut next = rounds[$at - 1];
            let mixed = _mm_aeskeygenassist_si128::<$constant>(vector(next));
            // Each word is the sum of those before it.
            next ^= next << 32;
            next ^= next << 64;
            rounds[$at] = next ^ number(_mm_shuffle_epi32::<0xFF>(mixed));
        })*};
    }
    round!(1, 1; 2, 2; 3, 4; 4, 8; 5, 16; 6, 32; 7, 64; 8, 128; 9, 27; 10, 54;);
    let hash = encrypt(&rounds, 0).swap_bytes();
    // Times x: the products of reversed blocks come out one bit short.
    let over = hash >> 127;
    let first = hash << 1 ^ over ^ over << 127 ^ over << 126 ^ over << 121;
    let mut powers = [first; POWERS];
    for at in (0..POWERS - 1).rev() {
        let product = Product::default().add(vector(powers[at + 1]), vector(first));
        powers[at] = number(product.reduced());
    }
    Key { powers, rounds, wide }
}

#[inline]
#[target_feature(enable = "aes")]
pub(crate) fn encrypt(rounds: &[u128; 11], block: u128) -> u128 {
    let mut state = _mm_xor_si128(vector(block), vector(rounds[0]));
    for &round in &rounds[1..10] {
        state = _mm_aesenc_si128(state, vector(round));
    }
    number(_mm_aesenclast_si128(state, vector(rounds[10])))
}

#[inline(always)]
pub(crate) fn vector(of: u128) -> __m128i {
    // SAFETY: 16 bytes either way.
    unsafe { std::mem::transmute(of) }
}

#[inline(always)]
pub(crate) fn number(of: __m128i) -> u128 {
    // SAFETY: 16 bytes either way.
    unsafe { std::mem::transmute(of) }
}

/// Block 1, whose cipher covers the tag; the page's own begin at 2. As a number, so that counting
/// is adding.
fn first_counter(nonce: u64) -> u128 {
    u128::from(nonce) << 32 | 1
}

/// The last block of the hash: no associated data, a page of ciphertext, in bits.
pub(crate) const LENGTHS: u128 = (PAGE * 8) as u128;

/// The tag's first 64 bits.
#[inline]
#[target_feature(enable = "aes,pclmulqdq")]
fn tag(key: &Key, nonce: u64, hashed: __m128i) -> u64 {
    let last = _mm_xor_si128(hashed, vector(LENGTHS));
    let hash = number(Product::default().add(last, vector(key.powers[POWERS - 1])).reduced());
    let cover = encrypt(&key.rounds, first_counter(nonce).swap_bytes());
    (hash.swap_bytes() ^ cover) as u64
}

/// A sum of products, not reduced.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    low: __m128i,
    middle: __m128i,
    high: __m128i,
}

impl Default for Product {
    #[inline(always)]
    fn default() -> Product {
        Product { low: vector(0), middle: vector(0), high: vector(0) }
    }
}

impl Product {
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    pub(crate) fn add(self, a: __m128i, b: __m128i) -> Product {
        let crossed = _mm_xor_si128(_mm_clmulepi64_si128::<0x01>(a, b), _mm_clmulepi64_si128::<0x10>(a, b));
        Product {
            low: _mm_xor_si128(self.low, _mm_clmulepi64_si128::<0x00>(a, b)),
            middle: _mm_xor_si128(self.middle, crossed),
            high: _mm_xor_si128(self.high, _mm_clmulepi64_si128::<0x11>(a, b)),
        }
    }

    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    pub(crate) fn reduced(self) -> __m128i {
        let poly = _mm_set_epi64x(0, POLY);
        let low = _mm_xor_si128(self.low, _mm_slli_si128::<8>(self.middle));
        let high = _mm_xor_si128(self.high, _mm_srli_si128::<8>(self.middle));
        let fold = |v| _mm_xor_si128(_mm_shuffle_epi32::<0x4E>(v), _mm_clmulepi64_si128::<0x00>(v, poly));
        _mm_xor_si128(high, fold(fold(low)))
    }
}

/// A page by vectors of one block.
///
/// # Safety
/// As [`Key::seal`], and the CPU can.
#[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
unsafe fn by_one<const SEALS: bool>(key: &Key, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
    const LANES: usize = 8;
    let reverse = vector(0x0001_0203_0405_0607_0809_0A0B_0C0D_0E0F);
    let mut counter = vector(first_counter(nonce) + 1);
    let mut hashed = vector(0);
    for chunk in 0..PAGE / 16 / LANES {
        let mut blocks = [counter; LANES];
        for block in &mut blocks {
            *block = _mm_xor_si128(_mm_shuffle_epi8(counter, reverse), vector(key.rounds[0]));
            counter = _mm_add_epi32(counter, vector(1));
        }
        for round in &key.rounds[1..10] {
            for block in &mut blocks {
                *block = _mm_aesenc_si128(*block, vector(*round));
            }
        }
        let mut product = Product::default();
        for (lane, block) in blocks.into_iter().enumerate() {
            let at = (chunk * LANES + lane) * 16;
            let block = _mm_aesenclast_si128(block, vector(key.rounds[10]));
            // SAFETY: within both pages, by the caller's word.
            let text = unsafe { _mm_loadu_si128(from.add(at).cast()) };
            let other = _mm_xor_si128(text, block);
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(to.add(at).cast(), other) };
            let mut sealed = _mm_shuffle_epi8(if SEALS { other } else { text }, reverse);
            if lane == 0 {
                sealed = _mm_xor_si128(sealed, hashed);
            }
            product = product.add(sealed, vector(key.powers[POWERS - LANES + lane]));
        }
        hashed = product.reduced();
    }
    tag(key, nonce, hashed)
}

/// Seals or opens a page by vectors of four blocks.
///
/// # Safety
/// As [`Key::seal`], and the CPU can.
#[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1,avx512f,avx512bw,vaes,vpclmulqdq")]
unsafe fn by_four<const SEALS: bool>(key: &Key, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
    const LANES: usize = POWERS / 4;
    let reverse = _mm512_broadcast_i32x4(vector(0x0001_0203_0405_0607_0809_0A0B_0C0D_0E0F));
    let rounds: [__m512i; 11] = std::array::from_fn(|at| _mm512_broadcast_i32x4(vector(key.rounds[at])));
    // SAFETY: the key has as many powers, at an address of 64.
    let powers: [__m512i; LANES] =
        std::array::from_fn(|at| unsafe { _mm512_load_si512(key.powers.as_ptr().add(4 * at).cast()) });
    let four = _mm512_broadcast_i32x4(vector(4));
    let steps = _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0);
    let mut counter = _mm512_add_epi32(_mm512_broadcast_i32x4(vector(first_counter(nonce) + 1)), steps);
    let mut hashed = vector(0);
    for chunk in 0..PAGE / 16 / POWERS {
        let mut blocks = [counter; LANES];
        for block in &mut blocks {
            *block = _mm512_xor_si512(_mm512_shuffle_epi8(counter, reverse), rounds[0]);
            counter = _mm512_add_epi32(counter, four);
        }
        for round in &rounds[1..10] {
            for block in &mut blocks {
                *block = _mm512_aesenc_epi128(*block, *round);
            }
        }
        let mut low = _mm512_setzero_si512();
        let (mut middle, mut high) = (low, low);
        for (lane, block) in blocks.into_iter().enumerate() {
            let at = (chunk * LANES + lane) * 64;
            let block = _mm512_aesenclast_epi128(block, rounds[10]);
            // SAFETY: within both pages, by the caller's word.
            let text = unsafe { _mm512_loadu_si512(from.add(at).cast()) };
            let other = _mm512_xor_si512(text, block);
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(to.add(at).cast(), other) };
            let mut sealed = _mm512_shuffle_epi8(if SEALS { other } else { text }, reverse);
            if lane == 0 {
                sealed = _mm512_xor_si512(sealed, _mm512_zextsi128_si512(hashed));
            }
            low = _mm512_xor_si512(low, _mm512_clmulepi64_epi128::<0x00>(sealed, powers[lane]));
            high = _mm512_xor_si512(high, _mm512_clmulepi64_epi128::<0x11>(sealed, powers[lane]));
            let crossed = _mm512_xor_si512(
                _mm512_clmulepi64_epi128::<0x01>(sealed, powers[lane]),
                _mm512_clmulepi64_epi128::<0x10>(sealed, powers[lane]),
            );
            middle = _mm512_xor_si512(middle, crossed);
        }
        hashed = Product { low: folded(low), middle: folded(middle), high: folded(high) }.reduced();
    }
    tag(key, nonce, hashed)
}

/// The sum of a vector's four blocks.
#[inline]
#[target_feature(enable = "avx512f")]
fn folded(of: __m512i) -> __m128i {
    let [a, b] = [_mm512_extracti32x4_epi32::<0>(of), _mm512_extracti32x4_epi32::<1>(of)];
    let [c, d] = [_mm512_extracti32x4_epi32::<2>(of), _mm512_extracti32x4_epi32::<3>(of)];
    _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    /// Numbers that look random.
    pub(crate) struct Random(pub u64);

    impl Random {
        pub fn fill(&mut self, bytes: &mut [u8]) {
            for byte in bytes {
                self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                *byte = (self.0 >> 56) as u8;
            }
        }
    }

    fn keys(bytes: &[u8; 16]) -> Vec<Key> {
        let Some(key) = Key::new(bytes) else { return Vec::new() };
        let wide = key.wide;
        let narrow = Key { wide: false, ..key };
        if wide { vec![narrow, Key::new(bytes).unwrap()] } else { vec![narrow] }
    }

    #[test]
    fn a_page_is_sealed_as_ring_seals_it() {
        let mut random = Random(1);
        for round in 0..200 {
            let (mut key, mut nonce, mut page) = ([0; 16], [0; 8], vec![0; PAGE]);
            if round > 0 {
                random.fill(&mut key);
                random.fill(&mut nonce);
                random.fill(&mut page);
            }
            let nonce = u64::from_le_bytes(nonce);
            let mut theirs = page.clone();
            let mut full = [0; 12];
            full[4..].copy_from_slice(&nonce.to_be_bytes());
            let ring = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let sealed = ring.seal_in_place_separate_tag(Nonce::assume_unique_for_key(full), Aad::empty(), &mut theirs);
            let first: [u8; 8] = sealed.unwrap().as_ref()[..8].try_into().unwrap();
            for key in keys(&key) {
                let (mut ours, mut back) = (vec![0; PAGE], vec![0; PAGE]);
                // SAFETY: pages of ours.
                let tag = unsafe { key.seal(nonce, page.as_ptr(), ours.as_mut_ptr()) };
                assert_eq!((tag, &ours), (u64::from_le_bytes(first), &theirs), "wide: {}", key.wide);
                // SAFETY: pages of ours.
                assert_eq!(unsafe { key.open(nonce, tag, ours.as_ptr(), back.as_mut_ptr()) }, Ok(()));
                assert_eq!(back, page);
                let at = ours.as_mut_ptr();
                // SAFETY: pages of ours; in place.
                assert_eq!(unsafe { key.open(nonce, tag, at, at) }, Ok(()));
                assert_eq!(ours, page);
            }
        }
    }

    #[test]
    fn a_page_of_which_any_bit_differs_does_not_open() {
        for key in keys(&[7; 16]) {
            // SAFETY: `only_what_was_sealed_opens` names pages of its own.
            let seal = |nonce, page, sealed| unsafe { key.seal(nonce, page, sealed) };
            // SAFETY: as above.
            only_what_was_sealed_opens(seal, |nonce, tag, sealed, to| unsafe { key.open(nonce, tag, sealed, to) });
        }
    }

    /// A page opens with its own nonce and tag, and with no bit of it, of the nonce or of the tag changed.
    pub(crate) fn only_what_was_sealed_opens(
        seal: impl Fn(u64, *const u8, *mut u8) -> u64,
        open: impl Fn(u64, u64, *const u8, *mut u8) -> Result<(), Altered>,
    ) {
        let page = vec![0x5A; PAGE];
        let (mut sealed, mut back) = (vec![0; PAGE], vec![0; PAGE]);
        let tag = seal(3, page.as_ptr(), sealed.as_mut_ptr());
        let mut opens = |sealed: &[u8], nonce, tag| open(nonce, tag, sealed.as_ptr(), back.as_mut_ptr()).is_ok();
        assert!(opens(&sealed, 3, tag));
        for bit in 0..64 {
            assert!(!opens(&sealed, 3, tag ^ 1 << bit) && !opens(&sealed, 3 ^ 1 << bit, tag));
        }
        for at in 0..PAGE {
            let mut other = sealed.clone();
            other[at] ^= 1 << (at % 8);
            assert!(!opens(&other, 3, tag), "byte {at}");
        }
        assert!(!opens(&[0; PAGE], 3, tag) && !opens(&page, 3, tag));
    }

    #[test]
    fn derived_keys_are_all_different() {
        let Some(root) = Key::new(&[1; 16]) else { return };
        let mut keys: Vec<[u8; 16]> = (0..100).flat_map(|number| root.derive(number)).collect();
        keys.push([1; 16]);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 201);
    }

    /// `cargo test --release -p farmem-sys --lib gcm -- --ignored --nocapture`
    ///
    /// Pages as the pager moves them: from the program's memory, which is in no cache or in the
    /// nearest, into a ring of 2 MiB, and from there to a page that is used next; with a table of
    /// marks.
    #[test]
    #[ignore = "prints times, judges nothing: cargo test --release -p farmem-sys gcm -- --ignored --nocapture"]
    fn what_a_page_costs() {
        const RING: usize = 512;
        for (key, pages) in keys(&[1; 16]).iter().flat_map(|key| [(key, 1), (key, 16384)]) {
            let (from, mut ring, mut back) = (vec![1_u8; pages * PAGE], vec![0_u8; RING * PAGE], vec![0_u8; PAGE]);
            let mut marks = vec![(0, 0); pages];
            // The best of many: other programs run here, too.
            let (mut seal, mut open) = (u128::MAX, u128::MAX);
            for round in 0..3000 {
                let places = || (0..64).map(|i| ((round * 64 + i) * 13 % pages, (round * 64 + i) % RING));
                let begun = std::time::Instant::now();
                for (at, place) in places() {
                    let (from, to) = (from[at * PAGE..].as_ptr(), ring[place * PAGE..].as_mut_ptr());
                    // SAFETY: pages of ours. (What nonces seal here is of no interest.)
                    marks[at] = (at as u64, unsafe { key.seal(at as u64, from, to) });
                }
                seal = seal.min(begun.elapsed().as_nanos() / 64);
                let begun = std::time::Instant::now();
                for (at, place) in places() {
                    let (nonce, tag) = marks[at];
                    // SAFETY: pages of ours.
                    unsafe { key.open(nonce, tag, ring[place * PAGE..].as_ptr(), back.as_mut_ptr()).unwrap() };
                }
                open = open.min(begun.elapsed().as_nanos() / 64);
            }
            println!("four at once: {}, {pages} pages: seal {seal} ns, open {open} ns", key.wide);
        }
    }
}
