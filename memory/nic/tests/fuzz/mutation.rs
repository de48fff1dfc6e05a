//! What is done to a conversation, by a seed.

use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::random::Random;

pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    const NUMBERS: [u64; 10] = [0, 1, 7, 255, 4096, SLAB_BYTES - 1, SLAB_BYTES, u32::MAX as u64, 1 << 63, u64::MAX];
    for _ in 0..=random.index(6) {
        if bytes.is_empty() {
            bytes.extend_from_slice(other);
        }
        let at = random.index(bytes.len());
        let end = at + random.index(bytes.len() - at + 1).min(200);
        match random.index(8) {
            0 => bytes[at] ^= 1 << random.index(8),
            1 => bytes[at] = random.bits() as u8,
            2 => {
                let number = NUMBERS[random.index(NUMBERS.len())].to_le_bytes();
                let n = [1, 2, 4, 8][random.index(4)].min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&number[..n]);
            }
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => bytes.truncate(end),
            6 => bytes.extend_from_slice(&other[random.index(other.len())..]),
            _ => bytes.extend((0..random.index(300)).map(|_| random.bits() as u8)),
        }
        bytes.truncate(64 << 10);
    }
}
