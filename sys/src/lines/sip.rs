//! SipHash-2-4 of a counter of 64 bits, under a key of 128: as many words as are wanted, that look
//! random.

use super::Seed;

/// The words of a seed.
pub struct Words {
    key: [u64; 2],
    next: u64,
}

impl Words {
    pub fn new(seed: &Seed) -> Words {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| seed[at + i]));
        Words { key: [word(0), word(8)], next: 0 }
    }

    pub fn next_word(&mut self) -> u64 {
        self.next += 1;
        siphash(self.key, self.next - 1)
    }
}

/// SipHash-2-4 of the 8 bytes of a number, little-endian.
pub fn siphash([k0, k1]: [u64; 2], message: u64) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    // The message, and a last word with its length in the highest byte.
    for word in [message, 8 << 56] {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}
