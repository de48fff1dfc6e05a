//! Records protect the bytes of one direction of a connection. They begin when both ends have
//! proven that they know the token.
//!
//! ```text
//! 0        4                                4 + length     + 16
//! ┌────────┬────────────────────────────────┬───────────────┐
//! │ length │ ciphertext                     │ tag           │   nonce: the record's number, from 0
//! └────────┴────────────────────────────────┴───────────────┘   the length is authenticated, too
//! ```
//!
//! Each direction of each connection has a key of its own, derived from the token's key, the secret
//! on which both ends have agreed, and their nonces. The record's number is not sent. So a record
//! does not open if it was changed, repeated, moved, cut, or taken from another connection, or if
//! one before it was lost. Nothing of such a record is used.
//!
//! Nothing here allocates, because the runtime derives keys, seals and opens in faults. Everything
//! works on the stack and on buffers of the caller.

use crate::agree::Agreed;
use crate::{Key, Nonce};
use ring::aead::{AES_128_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

pub use farmem_protocol::wire::Cipher;

/// Bytes before the ciphertext.
pub const HEAD: usize = 4;
/// Bytes that a record takes beyond what it carries.
pub const OVERHEAD: usize = HEAD + 16;
/// Bytes that a record carries, at most.
pub const MOST: usize = 16 << 10;
/// A sender closes a record once it carries this many bytes. So a receiver can open one page before
/// the next one has arrived.
pub const ENOUGH: usize = 4 << 10;
/// The most records under one key. After them a new connection is made, with other keys. With
/// records of [`MOST`] bytes they are 2^46 cipher blocks. By then an attacker's advantage against
/// AES-GCM is about 2^-36.
const LIMIT: u64 = 1 << 36;

/// A record does not open, or no more may be sealed. The connection is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// The record is not the one that the other end has sealed next.
    #[error("a record was changed on its way")]
    Changed,
    /// The key has sealed as many records as it may, or the caller's record is too short or too
    /// long.
    #[error("a key is used up")]
    UsedUp,
}

/// Which way records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    ToNode,
    ToHost,
}

/// Both directions of a connection, as one end has them.
pub struct Ends {
    /// For what this end sends.
    pub sealer: Sealer,
    /// For what this end receives.
    pub opener: Opener,
}

impl Key {
    /// The host's ends of a connection. `nonces` are the host's and the node's, in this order;
    /// `agreed` is the secret that was agreed on. `None`: the cipher is [`Cipher::Plain`].
    pub fn host_ends(&self, cipher: Cipher, nonces: (&Nonce, &Nonce), agreed: &Agreed) -> Option<Ends> {
        self.ends(cipher, nonces, agreed, (Way::ToNode, Way::ToHost))
    }

    /// The node's ends of a connection, from the same arguments as [`Key::host_ends`].
    pub fn node_ends(&self, cipher: Cipher, nonces: (&Nonce, &Nonce), agreed: &Agreed) -> Option<Ends> {
        self.ends(cipher, nonces, agreed, (Way::ToHost, Way::ToNode))
    }

    fn ends(
        &self,
        cipher: Cipher,
        (host, node): (&Nonce, &Nonce),
        agreed: &Agreed,
        (out, back): (Way, Way),
    ) -> Option<Ends> {
        let algorithm = algorithm(cipher)?;
        let (mut salt, mut material) = ([0; 64], [0; 64]);
        salt[..32].copy_from_slice(host);
        salt[32..].copy_from_slice(node);
        material[..32].copy_from_slice(&self.bytes);
        material[32..].copy_from_slice(agreed.bytes());
        let secret = Salt::new(HKDF_SHA256, &salt).extract(&material);
        let key = |way| {
            let about: &[u8] = match way {
                Way::ToNode => b"farmem 6 to node",
                Way::ToHost => b"farmem 6 to host",
            };
            // This fails only for a key longer than 255 hashes.
            Some(LessSafeKey::new(UnboundKey::from(secret.expand(&[about], algorithm).ok()?)))
        };
        Some(Ends { sealer: Sealer { key: key(out)?, number: 0 }, opener: Opener { key: key(back)?, number: 0 } })
    }
}

fn algorithm(cipher: Cipher) -> Option<&'static Algorithm> {
    match cipher {
        Cipher::Plain => None,
        Cipher::Aes128Gcm => Some(&AES_128_GCM),
        Cipher::ChaCha20Poly1305 => Some(&CHACHA20_POLY1305),
    }
}

/// The cipher that is fastest on this CPU. Every CPU can use both, if more slowly. The first call
/// asks the CPU what it supports.
pub fn fastest() -> Cipher {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq") {
        return Cipher::Aes128Gcm;
    }
    Cipher::ChaCha20Poly1305
}

fn nonce(number: u64) -> ring::aead::Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    ring::aead::Nonce::assume_unique_for_key(bytes)
}

/// Seals records of one direction, in order.
pub struct Sealer {
    key: LessSafeKey,
    number: u64,
}

impl Sealer {
    /// Seals `record` in place. It has [`HEAD`] bytes of room, then 1 to [`MOST`] bytes to carry,
    /// then 16 bytes of room.
    ///
    /// # Errors
    /// [`BadRecord::UsedUp`].
    pub fn seal(&mut self, record: &mut [u8]) -> Result<(), BadRecord> {
        let carried = record.len().saturating_sub(OVERHEAD);
        if self.number >= LIMIT || carried == 0 || carried > MOST {
            return Err(BadRecord::UsedUp);
        }
        let head = (carried as u32).to_le_bytes();
        let (start, rest) = record.split_at_mut(HEAD);
        start.copy_from_slice(&head);
        let (body, end) = rest.split_at_mut(carried);
        let sealed = self.key.seal_in_place_separate_tag(nonce(self.number), Aad::from(head), body);
        self.number += 1;
        end.copy_from_slice(sealed.map_err(|_| BadRecord::UsedUp)?.as_ref());
        Ok(())
    }
}

/// Opens records of one direction, in order.
pub struct Opener {
    key: LessSafeKey,
    number: u64,
}

impl Opener {
    /// The length in bytes of the whole record at the front of `input`, with head and tag. `None`:
    /// its head has not arrived whole.
    ///
    /// # Errors
    /// [`BadRecord::Changed`]: there is no record of such a length.
    pub fn length(input: &[u8]) -> Result<Option<usize>, BadRecord> {
        let Some(head) = input.first_chunk::<HEAD>() else { return Ok(None) };
        match u32::from_le_bytes(*head) as usize {
            carried @ 1..=MOST => Ok(Some(carried + OVERHEAD)),
            _ => Err(BadRecord::Changed),
        }
    }

    /// Opens the record that lies in `room` from `from` to the end. Moves its content to the front
    /// of `room`, and returns the content's length.
    ///
    /// # Errors
    /// [`BadRecord::Changed`]. The bytes in `room` are meaningless then, and no further record can
    /// be opened.
    pub fn open(&mut self, room: &mut [u8], from: usize) -> Result<usize, BadRecord> {
        let head = room.get(from..).and_then(|record| record.first_chunk::<HEAD>()).ok_or(BadRecord::Changed)?;
        let head = *head;
        // The number is restored only when the record has opened. After a failure no record opens
        // any more.
        let number = std::mem::replace(&mut self.number, u64::MAX);
        if number >= LIMIT {
            return Err(BadRecord::Changed);
        }
        let opened = self.key.open_within(nonce(number), Aad::from(head), room, from + HEAD..);
        let carried = opened.map_err(|_| BadRecord::Changed)?.len();
        self.number = number + 1;
        Ok(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;

    fn key(seed: u8) -> Key {
        Token::new("analytics", &[seed; 40]).unwrap().key()
    }

    fn ends(cipher: Cipher) -> (Ends, Ends) {
        let (nonces, agreed) = ((&[1; 32], &[2; 32]), Agreed::from([3; 32]));
        let key = key(1);
        (key.host_ends(cipher, nonces, &agreed).unwrap(), key.node_ends(cipher, nonces, &agreed).unwrap())
    }

    fn sealed(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
        let mut record = [&[0; HEAD], bytes, &[0; 16]].concat();
        sealer.seal(&mut record).unwrap();
        record
    }

    fn opened(opener: &mut Opener, record: &[u8]) -> Option<Vec<u8>> {
        // Behind a gap, as an input buffer has it.
        let mut room = [&[0xEE; 7], record].concat();
        let carried = opener.open(&mut room, 7).ok()?;
        Some(room[..carried].to_vec())
    }

    #[test]
    fn records_open_in_their_order_by_either_cipher() {
        for cipher in [Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305] {
            let (mut host, mut node) = ends(cipher);
            for len in [1, 15, 16, 17, 4096, 4112, MOST] {
                let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
                let record = sealed(&mut host.sealer, &bytes);
                assert_eq!(Opener::length(&record), Ok(Some(record.len())));
                assert!(len < 15 || !record.windows(8).any(|seen| bytes.windows(8).any(|b| b == seen)));
                assert_eq!(opened(&mut node.opener, &record), Some(bytes.clone()));
                let back = sealed(&mut node.sealer, &bytes);
                assert_ne!(back, record, "each way has a key of its own");
                assert_eq!(opened(&mut host.opener, &back), Some(bytes));
            }
        }
        assert!(key(1).host_ends(Cipher::Plain, (&[1; 32], &[2; 32]), &Agreed::from([3; 32])).is_none());
    }

    #[test]
    fn what_was_changed_repeated_skipped_or_is_anothers_does_not_open() {
        let pieces: [&[u8]; 3] = [b"first", b"second", b"third"];
        let of = |ends: &mut Ends| pieces.map(|piece| sealed(&mut ends.sealer, piece));
        let (mut host, _) = ends(Cipher::Aes128Gcm);
        let records = of(&mut host);
        let fresh = || ends(Cipher::Aes128Gcm).1.opener;
        for at in 0..records[0].len() {
            for bit in 0..8 {
                let mut record = records[0].clone();
                record[at] ^= 1 << bit;
                let mut opener = fresh();
                assert_eq!(opened(&mut opener, &record), None, "byte {at}");
                assert_eq!(opened(&mut opener, &records[0]), None, "it is over");
            }
        }
        let mut opener = fresh();
        assert!(opened(&mut opener, &records[0]).is_some() && opened(&mut opener, &records[0]).is_none());
        let mut opener = fresh();
        assert!(opened(&mut opener, &records[0]).is_some() && opened(&mut opener, &records[2]).is_none());
        assert!(opened(&mut fresh(), &records[1]).is_none());
        let mut opener = fresh();
        assert!(opener.open(&mut records[0][..records[0].len() - 1].to_vec(), 0).is_err(), "cut");
        // Of a connection with another nonce of either end, another secret, or another token; or
        // sent back to where it came from.
        let others = [(3, 2, 3, key(1)), (1, 3, 3, key(1)), (1, 2, 4, key(1)), (1, 2, 3, key(2))];
        for (host, node, secret, key) in others {
            let (nonces, agreed) = ((&[host; 32], &[node; 32]), Agreed::from([secret; 32]));
            let mut other = key.node_ends(Cipher::Aes128Gcm, nonces, &agreed).unwrap();
            assert!(opened(&mut other.opener, &records[0]).is_none());
        }
        assert!(opened(&mut host.opener, &records[0]).is_none());
    }

    #[test]
    fn a_length_that_no_record_has_is_refused_at_once() {
        for wrong in [0, MOST as u32 + 1, u32::MAX] {
            assert_eq!(Opener::length(&wrong.to_le_bytes()), Err(BadRecord::Changed));
        }
        assert_eq!(Opener::length(&[1, 0, 0]), Ok(None));
    }

    #[test]
    fn a_key_is_used_so_often_and_no_more() {
        let (mut host, _) = ends(Cipher::Aes128Gcm);
        host.sealer.number = LIMIT - 1;
        let mut record = vec![0; OVERHEAD + 1];
        assert!(host.sealer.seal(&mut record).is_ok());
        assert_eq!(host.sealer.seal(&mut record), Err(BadRecord::UsedUp));
    }
}
