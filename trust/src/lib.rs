//! Tokens: permissions to borrow memory. Proofs: each end shows the other that it knows the token.
//!
//! ```text
//! token file   farmem-token-1.analytics.<id>.<secret>         32 random bytes, with the tenant's user alone
//! key          SHA-256 of the secret                          in a node's store; proofs are made with it
//!
//! host                                         node
//!  │── Hello {…, tenant, id, host's nonce} ────►│
//!  │◄────────────── Challenge {node's nonce} ───│
//!  │── Proof {share, HMAC(key, "host", nonce, Hello, share)} ►│  refuses, or lets in
//!  │◄─── Welcome {share, proof = HMAC(key, "node", nonce, Hello, Welcome)}
//!  │     or why not, proven likewise
//! ```
//!
//! Neither the token nor its key goes over the wire. Both nonces are in both proofs, and so is
//! every byte of the Hello: a recorded Hello is of no use later, and a changed one is refused. The
//! host believes a node only after the node's proof.
//!
//! The runtime makes proofs in faults. HMAC-SHA256 of `ring` works on the stack, and proofs neither
//! allocate nor use a thread-local. Reading and writing tokens as text allocates, and happens at
//! start.
//!
//! After the proofs all bytes are sealed in [`record`]s. The records' keys are derived from the
//! token's key and from a secret. Both ends [`agree`] on the secret by their shares, so a thief of
//! the token does not learn it.

#![forbid(unsafe_code)]

use farmem_protocol::wire::{Share, Text};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac};
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

pub mod agree;
pub mod file;
pub mod record;

/// The first word of a token's text.
const FORM: &str = "farmem-token-1";

/// The name of a tenant.
pub type Tenant = Text<64>;
/// The public name of a token.
pub type TokenId = [u8; 8];
/// Random bits, drawn by each end for each connection.
pub type Nonce = [u8; 32];
/// HMAC-SHA256.
pub type Mac = [u8; 32];

/// Whether `name` can be a tenant's: 1 to 64 characters, each a letter, a digit, `_` or `-`.
pub fn is_tenant(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// A token, as it stands in its file.
#[derive(Clone)]
pub struct Token {
    tenant: Tenant,
    id: TokenId,
    secret: [u8; 32],
}

/// The text is not a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it holds no token: make one by `farmem token create`")]
pub struct NoToken;

impl Token {
    /// A token of a tenant, from 40 bytes that nobody can guess. `None`: `tenant` is no tenant's
    /// name ([`is_tenant`]).
    pub fn new(tenant: &str, random: &[u8; 40]) -> Option<Token> {
        let (mut id, mut secret) = ([0; 8], [0; 32]);
        id.copy_from_slice(&random[..8]);
        secret.copy_from_slice(&random[8..]);
        is_tenant(tenant).then(|| Token { tenant: Text::new(tenant), id, secret })
    }

    /// The key for proofs.
    pub fn key(&self) -> Key {
        let hash = digest::digest(&digest::SHA256, &self.secret);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(hash.as_ref());
        Key { tenant: self.tenant, id: self.id, bytes }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FORM}.{}.{}.{}", self.tenant, hex(&self.id), hex(&self.secret))
    }
}

impl FromStr for Token {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Token, NoToken> {
        let mut words = text.trim().split('.');
        match (words.next(), words.next(), words.next(), words.next(), words.next()) {
            (Some(FORM), Some(tenant), Some(id), Some(secret), None) if is_tenant(tenant) => {
                let (id, secret) = (unhex(id).ok_or(NoToken)?, unhex(secret).ok_or(NoToken)?);
                Ok(Token { tenant: Text::new(tenant), id, secret })
            }
            _ => Err(NoToken),
        }
    }
}

/// The key by which the holder of a token proves that it knows it: the hash of the token's secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The tenant that the memory is for.
    pub tenant: Tenant,
    /// The public name of the token.
    pub id: TokenId,
    bytes: [u8; 32],
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} {})", self.tenant, hex(&self.id))
    }
}

impl Key {
    /// A key, from its parts in a store.
    pub fn stored(tenant: Tenant, id: TokenId, bytes: [u8; 32]) -> Key {
        Key { tenant, id, bytes }
    }

    /// The hash, as a store keeps it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The key for proofs by one who also has a secret that the two ends agreed on: neither the token
    /// nor the secret is enough.
    pub fn with(&self, agreed: &agree::Agreed) -> Key {
        Key { bytes: self.mac(b"farmem 7 secret", &[agreed.bytes()]), ..*self }
    }

    /// The host's proof. It covers the node's nonce, the bytes of the Hello as sent, and the host's
    /// share.
    pub fn of_host(&self, nonce: &Nonce, hello: &[u8], share: Option<&Share>) -> Mac {
        self.mac(b"farmem 6 host", &[nonce, hello, share.map_or(&[], |share| &share[..])])
    }

    /// The node's proof. It covers the node's nonce, the bytes of the Hello, and those of the
    /// Welcome. In the latter the field of the proof is zeros.
    pub fn of_node(&self, nonce: &Nonce, hello: &[u8], welcome: &[u8]) -> Mac {
        self.mac(b"farmem 6 node", &[nonce, hello, welcome])
    }

    /// The node's proof that it is the one who refuses. It covers the node's nonce, the bytes of the
    /// Hello, and those of the refusal, with zeros in the proof's place.
    pub fn of_refusal(&self, nonce: &Nonce, hello: &[u8], refusal: &[u8]) -> Mac {
        self.mac(b"farmem 7 refusal", &[nonce, hello, refusal])
    }

    /// The proof for a request outside of a node's connection, such as one to a controller.
    pub fn of_request(&self, parts: &[&[u8]]) -> Mac {
        self.mac(b"farmem 5 request", parts)
    }

    /// The proof for the answer to such a request.
    pub fn of_answer(&self, parts: &[&[u8]]) -> Mac {
        self.mac(b"farmem 6 answer", parts)
    }

    /// HMAC of the label and the parts. A label names the version of the wire in which what it
    /// covers changed last. The label keeps a proof of one kind from passing for
    /// another.
    fn mac(&self, label: &[u8], parts: &[&[u8]]) -> Mac {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.bytes));
        for part in [label].iter().chain(parts) {
            // Each part's length comes before it, so two different lists of parts are never the
            // same bytes.
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut mac = [0; 32];
        mac.copy_from_slice(context.sign().as_ref());
        mac
    }
}

/// The token by which a host and a node know each other, and whether connections are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// The token by which the host borrows. With a token, TCP is encrypted.
    pub token: Option<Key>,
    /// Leaves TCP unencrypted although there is a token: bytes can be read and changed on their
    /// way.
    pub plain: bool,
}

impl From<Key> for Trust {
    fn from(token: Key) -> Trust {
        Some(token).into()
    }
}

impl From<Option<Key>> for Trust {
    fn from(token: Option<Key>) -> Trust {
        Trust { token, plain: false }
    }
}

/// SHA-256.
pub fn hashed(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

/// Whether two proofs are the same, in a time that does not depend on where they differ.
pub fn same(a: &Mac, b: &Mac) -> bool {
    black_box(a.iter().zip(b).fold(0, |differs, (x, y)| black_box(differs | (x ^ y)))) == 0
}

/// Bytes that nobody can guess. `None`: the system has no randomness.
pub fn drawn<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).is_ok().then_some(bytes)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes from exactly `2 * N` hexadecimal digits.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let digit = |at: usize| (digits[at] as char).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate().filter(|_| digits.len() == 2 * N) {
        *byte = digit(2 * at)? << 4 | digit(2 * at + 1)?;
    }
    (digits.len() == 2 * N).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::new("analytics", &std::array::from_fn(|i| i as u8)).unwrap()
    }

    #[test]
    fn a_token_reads_back_and_nothing_else_is_one() {
        let text = token().to_string();
        assert_eq!(text.parse::<Token>().unwrap().key(), token().key());
        assert_eq!(format!("{text}\n").parse::<Token>().unwrap().to_string(), text);
        for at in 0..text.len() {
            assert!(text[..at].parse::<Token>().is_err(), "{at}");
        }
        for wrong in ["", "farmem-token-1.a b.00.00", &format!("{text}.x"), &text.replace("analytics", "ä")] {
            assert!(wrong.parse::<Token>().is_err(), "{wrong}");
        }
        assert!(Token::new("a.b", &[0; 40]).is_none());
    }

    #[test]
    fn a_proof_is_of_one_side_one_nonce_one_hello_and_one_key() {
        let key = token().key();
        let proof = key.of_host(&[1; 32], b"hello", None);
        assert!(same(&proof, &key.of_host(&[1; 32], b"hello", None)));
        let other = Token::new("analytics", &[9; 40]).unwrap().key();
        let others = [
            key.of_host(&[2; 32], b"hello", None),
            key.of_host(&[1; 32], b"hellp", None),
            key.of_host(&[1; 32], b"hello", Some(&[0; 32])),
            other.of_host(&[1; 32], b"hello", None),
            key.of_node(&[1; 32], b"hello", b""),
        ];
        assert!(others.iter().all(|other| !same(&proof, other)));
        // A node's proof covers its Welcome, too, and no byte can move from one part to the other.
        assert_ne!(key.of_node(&[1; 32], b"ab", b"c"), key.of_node(&[1; 32], b"a", b"bc"));
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert!(!format!("{:?}", token().key()).contains(&hex(token().key().bytes())));
    }
}
