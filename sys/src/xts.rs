//! Seals pages so that a line that did not change is unchanged as ciphertext: XTS-AES-128 of one
//! whole page, with a tag of 64 bits.
//!
//! ```text
//! nonce ─► AES ─► tweak ─► × x ─► × x …       block ─► ⊕ tweak ─► AES ─► ⊕ tweak ─► ciphertext
//! ciphertext, nonce ─► POLYVAL ─► AES ─► tag
//! ```
//!
//! A page may be sealed again under its nonce. Then an observer of both learns which blocks of 16
//! bytes differ, and nothing more (IEEE 1619). A page that is sealed by [`super::gcm`] must not: its
//! keystream would be used twice.
//!
//! The tag is a pseudorandom function of the ciphertext and the nonce (a hash with a secret key,
//! encrypted by another key). So it needs no nonce of its own, and each content has its own tag.
//!
//! As in `gcm`, everything takes the same time whatever the key and the bytes are, and works on the
//! stack and on the caller's pages, in faults too.

use crate::gcm::{self, Altered, LENGTHS, PAGE, POWERS, Product, encrypt, number, vector};
use std::arch::x86_64::*;

/// Blocks that are worked on together.
const LANES: usize = 8;

/// A key, expanded.
pub struct Key {
    /// For the hash.
    hash: gcm::Key,
    /// For the hash's value.
    tag: [u128; 11],
    tweak: [u128; 11],
    data: [u128; 11],
    /// As `data`, backwards.
    inverse: [u128; 11],
}

impl Key {
    /// Makes the four keys that are needed of one. `None`: this CPU has no instructions for it
    /// ([`gcm::can`]).
    pub fn new(key: &[u8; 16]) -> Option<Key> {
        let root = gcm::Key::new(key)?;
        let [[data, tweak], [hash, tag]] = [0, 1].map(|number| root.derive(number));
        Key::of([data, tweak, hash, tag])
    }

    fn of(keys: [[u8; 16]; 4]) -> Option<Key> {
        let [data, tweak, hash, tag] = keys.map(|key| gcm::Key::new(&key));
        let (data, hash) = (data?, hash?);
        // SAFETY: a key exists only where the CPU can.
        let inverse = unsafe { inverse(data.rounds()) };
        Some(Key { hash, tag: *tag?.rounds(), tweak: *tweak?.rounds(), data: *data.rounds(), inverse })
    }

    /// Seals the page at `from` into the page at `to`; both may be the same. Returns the tag.
    ///
    /// # Safety
    /// Both are pages, the caller's, `from` readable and `to` writable.
    pub unsafe fn seal(&self, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
        // SAFETY: passed on to the caller; a key exists only where the CPU can.
        unsafe { pass::<true>(self, nonce, from, to) }
    }

    /// Opens the page at `from` into the page at `to`; both may be the same.
    ///
    /// # Errors
    /// [`Altered`]: the bytes at `to` then have no meaning.
    ///
    /// # Safety
    /// As for [`Key::seal`].
    pub unsafe fn open(&self, nonce: u64, tag: u64, from: *const u8, to: *mut u8) -> Result<(), Altered> {
        // SAFETY: as in `seal`.
        let found = unsafe { pass::<false>(self, nonce, from, to) };
        if found ^ tag == 0 { Ok(()) } else { Err(Altered) }
    }
}

#[target_feature(enable = "aes")]
fn inverse(rounds: &[u128; 11]) -> [u128; 11] {
    std::array::from_fn(|at| match at {
        0 | 10 => rounds[10 - at],
        _ => number(_mm_aesimc_si128(vector(rounds[10 - at]))),
    })
}

/// Times x: the tweak of the next block.
#[inline(always)]
fn doubled(tweak: u128) -> u128 {
    tweak << 1 ^ (0x87 & 0_u128.wrapping_sub(tweak >> 127))
}

/// # Safety
/// As [`Key::seal`], and the CPU can.
#[target_feature(enable = "aes,pclmulqdq,ssse3,sse4.1")]
unsafe fn pass<const SEALS: bool>(key: &Key, nonce: u64, from: *const u8, to: *mut u8) -> u64 {
    let rounds = if SEALS { &key.data } else { &key.inverse };
    let powers = key.hash.powers();
    let mut tweak = encrypt(&key.tweak, u128::from(nonce));
    let mut hashed = vector(0);
    for chunk in 0..PAGE / 16 / LANES {
        let (mut blocks, mut tweaks, mut texts) = ([vector(0); LANES], [vector(0); LANES], [vector(0); LANES]);
        for lane in 0..LANES {
            // SAFETY: within the page, by the caller's word.
            texts[lane] = unsafe { _mm_loadu_si128(from.add((chunk * LANES + lane) * 16).cast()) };
            tweaks[lane] = vector(tweak);
            tweak = doubled(tweak);
            blocks[lane] = _mm_xor_si128(_mm_xor_si128(texts[lane], tweaks[lane]), vector(rounds[0]));
        }
        for &round in &rounds[1..10] {
            for block in &mut blocks {
                *block = match SEALS {
                    true => _mm_aesenc_si128(*block, vector(round)),
                    false => _mm_aesdec_si128(*block, vector(round)),
                };
            }
        }
        let mut product = Product::default();
        for lane in 0..LANES {
            let last = match SEALS {
                true => _mm_aesenclast_si128(blocks[lane], vector(rounds[10])),
                false => _mm_aesdeclast_si128(blocks[lane], vector(rounds[10])),
            };
            let other = _mm_xor_si128(last, tweaks[lane]);
            // SAFETY: within the page, by the caller's word.
            unsafe { _mm_storeu_si128(to.add((chunk * LANES + lane) * 16).cast(), other) };
            let mut sealed = if SEALS { other } else { texts[lane] };
            if lane == 0 {
                sealed = _mm_xor_si128(sealed, hashed);
            }
            product = product.add(sealed, vector(powers[POWERS - LANES + lane]));
        }
        hashed = product.reduced();
    }
    let last = _mm_xor_si128(hashed, vector(u128::from(nonce) << 64 | LENGTHS));
    let hash = number(Product::default().add(last, vector(powers[POWERS - 1])).reduced());
    encrypt(&key.tag, hash) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gcm::tests::{Random, only_what_was_sealed_opens};

    /// AES-128 of one block, as `gcm` has it: its tests compare that with `ring`'s.
    fn aes(key: &[u8; 16], block: u128) -> u128 {
        let key = gcm::Key::new(key).unwrap();
        // SAFETY: a key exists only where the CPU can.
        unsafe { encrypt(key.rounds(), block) }
    }

    /// XTS as the standard writes it: a block after the other.
    fn by_the_standard(data: &[u8; 16], tweak: &[u8; 16], unit: u128, text: &[u8]) -> Vec<u8> {
        let mut tweak = aes(tweak, unit).to_le_bytes();
        let mut out = Vec::new();
        for block in text.chunks_exact(16) {
            let covered = u128::from_le_bytes(block.try_into().unwrap()) ^ u128::from_le_bytes(tweak);
            out.extend((aes(data, covered) ^ u128::from_le_bytes(tweak)).to_le_bytes());
            let mut carry = 0;
            for byte in &mut tweak {
                (*byte, carry) = (*byte << 1 | carry, *byte >> 7);
            }
            tweak[0] ^= 0x87 * carry;
        }
        out
    }

    /// RFC 8452: the sum of products, each by x^-128.
    fn polyval(hash: u128, blocks: impl Iterator<Item = u128>) -> u128 {
        blocks.fold(0, |sum, block| {
            (0..128).fold(0_u128, |product, bit| {
                let product = product ^ if (sum ^ block) >> bit & 1 == 1 { hash } else { 0 };
                let low = 1 << 127 | 1 << 126 | 1 << 121 | 1;
                if product & 1 == 1 { (product ^ low) >> 1 | 1 << 127 } else { product >> 1 }
            })
        })
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn a_page_is_sealed_as_the_standard_says() {
        if !gcm::can() {
            return;
        }
        // IEEE 1619, vectors 1 and 2.
        let first = by_the_standard(&[0; 16], &[0; 16], 0, &[0; 32]);
        assert_eq!(first, hex("917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e"));
        let second = by_the_standard(&[0x11; 16], &[0x22; 16], 0x33_3333_3333, &[0x44; 32]);
        assert_eq!(second, hex("c454185e6a16936e39334038acef838bfb186fff7480adc4289382ecd6d394f0"));
        let mut random = Random(1);
        for _ in 0..50 {
            let (mut keys, mut nonce, mut page) = ([[0; 16]; 4], [0; 8], vec![0; PAGE]);
            random.fill(keys.as_flattened_mut());
            random.fill(&mut nonce);
            random.fill(&mut page);
            let (key, nonce) = (Key::of(keys).unwrap(), u64::from_le_bytes(nonce));
            let mut ours = vec![0; PAGE];
            // SAFETY: pages of ours.
            let tag = unsafe { key.seal(nonce, page.as_ptr(), ours.as_mut_ptr()) };
            assert_eq!(ours, by_the_standard(&keys[0], &keys[1], u128::from(nonce), &page));
            let blocks = ours.chunks_exact(16).map(|block| u128::from_le_bytes(block.try_into().unwrap()));
            let last = u128::from(nonce) << 64 | (PAGE * 8) as u128;
            let hash = polyval(key.hash.powers()[POWERS - 1], blocks.chain([last]));
            assert_eq!(tag, aes(&keys[3], hash) as u64);
            let at = ours.as_mut_ptr();
            // SAFETY: pages of ours; in place.
            assert_eq!(unsafe { key.open(nonce, tag, at, at) }, Ok(()));
            assert_eq!(ours, page);
        }
    }

    #[test]
    fn a_page_of_which_any_bit_differs_does_not_open() {
        let Some(key) = Key::new(&[7; 16]) else { return };
        // SAFETY: `only_what_was_sealed_opens` names pages of its own.
        let seal = |nonce, page, sealed| unsafe { key.seal(nonce, page, sealed) };
        // SAFETY: as above.
        only_what_was_sealed_opens(seal, |nonce, tag, sealed, to| unsafe { key.open(nonce, tag, sealed, to) });
    }

    /// What a node sees of a page that is sealed again: which blocks differ.
    #[test]
    fn blocks_that_did_not_change_are_unchanged_as_ciphertext() {
        let Some(key) = Key::new(&[7; 16]) else { return };
        let seal = |nonce, page: &[u8]| {
            let mut sealed = vec![0; PAGE];
            // SAFETY: pages of ours.
            let tag = unsafe { key.seal(nonce, page.as_ptr(), sealed.as_mut_ptr()) };
            (sealed, tag)
        };
        let (page, mut other) = (vec![9; PAGE], vec![9; PAGE]);
        other[1000] = 8;
        let [(first, tag), (same, again), (second, changed)] = [&page, &page, &other].map(|page| seal(5, page));
        assert_eq!((&first, tag), (&same, again));
        assert_ne!(tag, changed);
        let differ = |a: &[u8], b: &[u8]| -> Vec<usize> {
            let pairs = a.chunks(16).zip(b.chunks(16)).enumerate();
            pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect()
        };
        assert_eq!(differ(&first, &second), [1000 / 16]);
        // By another nonce nothing is alike, nor are equal blocks of one page.
        assert_eq!(differ(&first, &seal(6, &page).0).len(), PAGE / 16);
        let blocks: std::collections::BTreeSet<&[u8]> = first.chunks(16).collect();
        assert_eq!(blocks.len(), PAGE / 16);
    }

    /// `cargo test -p farmem-sys --lib xts -- --ignored --nocapture`
    #[test]
    #[ignore = "prints times, judges nothing: cargo test -p farmem-sys --lib xts -- --ignored --nocapture"]
    fn what_a_page_costs() {
        let key = Key::new(&[1; 16]).unwrap();
        let mut page = vec![1_u8; PAGE];
        let (mut seal, mut open) = (u128::MAX, u128::MAX);
        for _ in 0..3000 {
            let at = page.as_mut_ptr();
            let begun = std::time::Instant::now();
            // SAFETY: a page of ours.
            let tag = unsafe { key.seal(1, at, at) };
            seal = seal.min(begun.elapsed().as_nanos());
            let begun = std::time::Instant::now();
            // SAFETY: a page of ours.
            unsafe { key.open(1, tag, at, at).unwrap() };
            open = open.min(begun.elapsed().as_nanos());
        }
        println!("seal {seal} ns, open {open} ns");
    }
}
