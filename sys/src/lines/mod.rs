//! Keyed hashes of a page's lines, 64 bits each, and a sum of them, 64 bits for the page.
//!
//! ```text
//!   line: 16 words of 32 bits      m0 m1 | m2 m3 | …                        keys, from a seed
//!   NH     A = Σ (m2i + a2i mod 2³²) · (m2i+1 + a2i+1 mod 2³²)  mod 2⁶⁴    a: 16 words
//!          B = the same with b                                             b: 16 words
//!   fold   high 32 bits of  c0 + c1·lo(A) + c2·hi(A)  mod 2⁶⁴              c: 3 words of 64 bits
//!          high 32 bits of  d0 + d1·lo(B) + d2·hi(B)  mod 2⁶⁴              d: 3
//!   hash   h = fold(B) : fold(A)
//!   sum    S = Σ ki·hi  mod 2⁶⁴, over lines                                k: 64 words of 64 bits, one a line
//! ```
//!
//! *How sure a hash is.* Two different lines that do not depend on the keys have the same A with a
//! probability of at most 2⁻³². NH is universal (Black, Halevi, Krawczyk, Krovetz and Rogaway,
//! CRYPTO '99, theorem 4.2). Two different A have the same fold with a probability of 2⁻³². The
//! high half of a multilinear hash is strongly universal (Lemire and Kaser, Computer Journal
//! 57(11), 2014). A and B have keys of their own, so both halves agree with at most (2⁻³² + 2⁻³²)²
//! = 2⁻⁶².
//!
//! *How sure a sum is.* Sums over the same lines agree although some hash differs with 2ᵗ⁻⁶⁴, t
//! being the least number of zeros that a difference of hashes ends with (k is random, and a linear
//! congruence has that many solutions). Where A differs, fold(A) differs by a value that is evenly
//! distributed, so that t ≥ z with 2⁻ᶻ: together 2⁻⁶⁰; where fold(A) agrees (2⁻³¹), fold(B) decides
//! likewise: 2⁻³¹ · 2⁻²⁸. So a sum misses a changed line with less than 2⁻⁵⁸. *And that it has the
//! same top*, the highest 12 bits of fold(B), which neither of these cases asks for, comes to 2⁻⁷⁰:
//! beside the 2⁻⁶² with which the hash itself is the same, nothing. That is what an owner of a page
//! relies on who keeps the tops and the sum of it ([`Brief`]): a line that changed unseen has an
//! old top, and the sum of those that seem unchanged is not what it was.
//!
//! Sums over disjoint lines add up to the sum over all of them. So whoever has the sum of a page as
//! it was, and the page as it is, can say what the sum over some lines *was*, if the others are
//! unchanged: and who has these lines as they were can say whether that is so.
//!
//! The key is derived from a seed of 128 bits by SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT
//! 2012), a pseudorandom function of a counter. The bounds above hold as long as nobody who chooses
//! bytes can tell it from random bits.
//!
//! The faster general hashes promise nothing for the commonest change of all, one small word of a
//! line: their one 32-bit product per word misses it with 2⁻³² when its neighbour has the wrong
//! value.

mod brief;
pub mod exact;
mod sip;
mod units;

#[cfg(test)]
mod tests;

pub use brief::{Brief, Found, TOP_BITS, WHOLE_TOP};

use std::mem::MaybeUninit;

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Lines of a page.
pub const LINES: usize = 64;
/// Bytes of a seed.
pub const SEED_BYTES: usize = 16;

/// Hashes of a page's lines.
pub type Hashes = [u64; LINES];

/// From what a key is made: random, and known only to those who are to compute the same hashes.
pub type Seed = [u8; SEED_BYTES];

#[repr(C, align(32))]
struct Key {
    nh: [[u32; 16]; 2],
    places: [u64; LINES],
    fold: [[u64; 3]; 2],
}
// Both are loaded a register at a time.
const _: () = assert!(std::mem::offset_of!(Key, nh) % 32 == 0 && std::mem::offset_of!(Key, places) % 32 == 0);

/// How the hashes are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Word by word. The others are tested against it.
    Scalar,
    /// Two products at once: every x86-64.
    Sse2,
    /// Four.
    Avx2,
}

impl Unit {
    /// The best that this CPU has.
    pub fn best() -> Unit {
        if is_x86_feature_detected!("avx2") { Unit::Avx2 } else { Unit::Sse2 }
    }
}

/// Whether it pays on this CPU to ask for the lines of a page that is looked at next while one is
/// hashed, or compared with another, one for each line. Two pages out of cache compared, AMD Zen 5:
/// 0.44 µs for 0.60 with the first lines of the next asked for alone; the pages in the third cache
/// and the others in memory, 0.20 for 0.36. On an Intel Xeon 0.83 for 0.75: there its own looking
/// ahead does as well, and is disturbed.
pub fn asks_along() -> bool {
    let leaf = core::arch::x86_64::__cpuid(0);
    let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
    vendor == b"AuthenticAMD" || vendor == b"HygonGenuine"
}

/// The hasher that was used last. All records of a run have one seed. A peer that changes it each
/// time makes the owner of this pay for a hundred words of SipHash, some microseconds, with each
/// record.
#[derive(Default)]
pub struct LastHasher(Option<Box<Hasher>>);

impl LastHasher {
    /// The hasher of a seed.
    pub fn of(&mut self, seed: &Seed) -> &Hasher {
        let hasher = self.0.get_or_insert_with(|| Box::new(Hasher::new(seed, Unit::best())));
        if hasher.seed() != seed {
            **hasher = Hasher::new(seed, Unit::best());
        }
        hasher
    }
}

/// A key, and what computes with it.
pub struct Hasher {
    seed: Seed,
    key: Key,
    unit: Unit,
}

impl Hasher {
    /// With the key of a seed. `unit` must be one that this CPU has.
    pub fn new(seed: &Seed, unit: Unit) -> Hasher {
        assert!(unit != Unit::Avx2 || is_x86_feature_detected!("avx2"));
        let mut words = sip::Words::new(seed);
        let mut word = || words.next_word();
        let nh = std::array::from_fn(|_| {
            let pairs: [u64; 8] = std::array::from_fn(|_| word());
            std::array::from_fn(|i| (pairs[i / 2] >> (i % 2 * 32)) as u32)
        });
        let fold = std::array::from_fn(|_| std::array::from_fn(|_| word()));
        let places = std::array::from_fn(|_| word());
        Hasher { seed: *seed, key: Key { nh, fold, places }, unit }
    }

    /// The instructions that it computes with.
    pub fn unit(&self) -> Unit {
        self.unit
    }

    /// From what its key was made.
    pub fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Hashes every line of a page.
    ///
    /// # Safety
    /// The page must be mapped, and stay as it is.
    #[inline]
    pub unsafe fn hash(&self, page: *const u8, into: &mut Hashes) {
        let (key, into) = (&self.key, into.as_mut_ptr());
        // SAFETY: the page is the caller's promise; AVX2 was found by `new`.
        unsafe {
            match self.unit {
                Unit::Scalar => units::scalar(key, page, into),
                Unit::Sse2 => units::sse2(key, page, into),
                Unit::Avx2 => _ = units::avx2::<false, false>(key, page, page, into),
            }
        }
    }

    /// [`Hasher::hash`], and the sum over all lines. `next`, if any: a page that is hashed next,
    /// whose lines are asked for meanwhile. That pays where pages are out of cache, on CPUs that
    /// [`asks_along`] names. (Its address need not be mapped.)
    ///
    /// # Safety
    /// As [`Hasher::hash`].
    #[inline]
    unsafe fn hash_and_sum<'a>(
        &self,
        page: *const u8,
        next: Option<*const u8>,
        into: &'a mut MaybeUninit<Hashes>,
    ) -> (&'a Hashes, u64) {
        let (key, room) = (&self.key, into.as_mut_ptr().cast::<u64>());
        // SAFETY: the page is the caller's promise; AVX2 was found by `new`; all hashes are
        // written.
        unsafe {
            let summed = match (self.unit, next) {
                (Unit::Avx2, Some(next)) => Some(units::avx2::<true, true>(key, page, next, room)),
                (Unit::Avx2, None) => Some(units::avx2::<false, true>(key, page, page, room)),
                (Unit::Sse2, _) => {
                    units::sse2(key, page, room);
                    None
                }
                (Unit::Scalar, _) => {
                    units::scalar(key, page, room);
                    None
                }
            };
            let hashes = into.assume_init_ref();
            (hashes, summed.unwrap_or_else(|| self.sum(hashes)))
        }
    }

    /// Lines of a page that are not as they were when it was hashed: bit k, line k.
    ///
    /// # Safety
    /// As [`Hasher::hash`].
    #[inline]
    pub unsafe fn changed(&self, page: *const u8, was: &Hashes) -> u64 {
        let mut now = [0; LINES];
        // SAFETY: the caller's promise.
        unsafe { self.hash(page, &mut now) };
        let mut changed = 0;
        for line in 0..LINES {
            changed |= ((now[line] != was[line]) as u64) << line;
        }
        changed
    }

    /// The sum over all lines.
    #[inline]
    pub fn sum(&self, hashes: &Hashes) -> u64 {
        hashes.iter().zip(&self.key.places).fold(0, |sum, (&hash, &place)| sum.wrapping_add(hash.wrapping_mul(place)))
    }

    /// The sum over some lines, bit k for line k.
    #[inline]
    pub fn sum_of(&self, hashes: &Hashes, lines: u64) -> u64 {
        each(lines).fold(0, |sum, line| sum.wrapping_add(hashes[line].wrapping_mul(self.key.places[line])))
    }

    /// The sum over some lines of a page, of which no others are asked for.
    #[inline]
    pub fn sum_with(&self, lines: u64, mut line: impl FnMut(usize) -> [u8; LINE_BYTES]) -> u64 {
        each(lines).fold(0, |sum, number| {
            sum.wrapping_add(units::one(&self.key, &line(number)).wrapping_mul(self.key.places[number]))
        })
    }

    /// The same of a page that is here.
    pub fn sum_in(&self, page: &[u8; LINES * LINE_BYTES], lines: u64) -> u64 {
        self.sum_with(lines, |line| page.as_chunks().0[line])
    }
}

/// The lines of a bitmap.
fn each(mut lines: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let line = lines.trailing_zeros() as usize;
        lines &= lines.checked_sub(1)?;
        Some(line)
    })
}
