//! A secret on which the two ends of a connection agree, and which no token gives away: X25519.
//!
//! ```text
//! host  a ─► share A ──── in the Proof ───► node            the secret: a·B = b·A
//!       ◄──── share B, in the Welcome ──── b                a and b are gone after the Welcome
//! ```
//!
//! Both proofs cover the shares, so nobody on the path can put its own in their place. A thief that
//! has recorded a connection and gets the token later does not have the secret. The private halves
//! are gone after the Welcome. Only the two ends keep the secret, in memory, until they end.
//!
//! Agreeing allocates nothing. Random bits come from the caller, because `ring` would get its own
//! from libc. The runtime must not call that function.

use farmem_protocol::wire::Share;
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
#[allow(deprecated)] // The only way to give `ring` random bits of the caller's. Cargo.lock has its version.
use ring::test::rand::FixedSliceRandom;
use std::fmt;

/// One end's private key and its share.
pub struct Half {
    private: EphemeralPrivateKey,
    share: Share,
}

impl Half {
    /// A private key and its share, from 32 bytes that nobody can guess. The caller uses these
    /// bytes for nothing else. `None`: `ring` failed.
    pub fn new(random: &[u8; 32]) -> Option<Half> {
        #[allow(deprecated)] // As above.
        let private = EphemeralPrivateKey::generate(&X25519, &FixedSliceRandom { bytes: random }).ok()?;
        let mut share = [0; 32];
        share.copy_from_slice(private.compute_public_key().ok()?.as_ref());
        Some(Half { private, share })
    }

    /// The public half, which goes to the other end.
    pub fn share(&self) -> Share {
        self.share
    }

    /// The secret, from the other end's share. `None`: the share is refused, because it gives the
    /// same secret with every private key.
    pub fn agree(self, theirs: &Share) -> Option<Agreed> {
        agree_ephemeral(self.private, &UnparsedPublicKey::new(&X25519, theirs), |secret| secret.try_into().map(Agreed))
            .ok()?
            .ok()
    }
}

/// The secret of all connections of a member, of the one connection of a volume, or of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Agreed([u8; 32]);

impl Agreed {
    /// For a record that nobody else reads.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Agreed {
    fn from(bytes: [u8; 32]) -> Agreed {
        Agreed(bytes)
    }
}

impl fmt::Debug for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Agreed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unhex;

    /// The example of RFC 7748, section 6.1.
    #[test]
    fn two_ends_agree_as_the_rfc_says() {
        let bytes = |text| unhex::<32>(text).unwrap();
        let a = Half::new(&bytes("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")).unwrap();
        let b = Half::new(&bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")).unwrap();
        assert_eq!(a.share(), bytes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
        assert_eq!(b.share(), bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"));
        let secret = Agreed(bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"));
        let (to_a, to_b) = (b.share(), a.share());
        assert_eq!((a.agree(&to_a), b.agree(&to_b)), (Some(secret), Some(secret)));
    }

    #[test]
    fn a_share_that_gives_one_secret_to_all_is_refused() {
        let mut one = [0; 32];
        one[0] = 1;
        for small in [[0; 32], one] {
            assert_eq!(Half::new(&[7; 32]).unwrap().agree(&small), None);
        }
    }
}
