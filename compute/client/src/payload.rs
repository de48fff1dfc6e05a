//! Bytes of a write that several operations share, and that nobody copies.

// A payload may refer to memory that its maker has lent. `Payload::lent` says what the maker
// upholds.
#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes that do not change while the payload or a clone of it lives. A clone refers to the same
/// bytes.
#[derive(Clone)]
pub struct Payload {
    /// Owns the bytes. Of lent ones it has none, and counts who uses them.
    keeps: Arc<Vec<u8>>,
    from: *const u8,
    len: usize,
}

// SAFETY: the bytes are only read, and they stay as they are until the last clone is dropped, in
// whatever thread: they are those of `keeps`, or the lender upholds it.
unsafe impl Send for Payload {}
// SAFETY: as above.
unsafe impl Sync for Payload {}

impl Payload {
    /// The caller's own bytes, without a copy.
    ///
    /// # Safety
    /// The bytes must stay valid and as they are until [`Loan::is_over`] says true.
    pub unsafe fn lent(loan: &Loan, bytes: &[u8]) -> Payload {
        Payload { keeps: Arc::clone(&loan.0), from: bytes.as_ptr(), len: bytes.len() }
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// The range is not within them.
    pub fn part(&self, range: Range<usize>) -> Payload {
        let part = &self[range];
        Payload { keeps: Arc::clone(&self.keeps), from: part.as_ptr(), len: part.len() }
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // The bytes of a vector do not move with it, and nobody changes one that is shared.
        Payload { keeps: Arc::new(bytes), from, len }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `keeps` has the bytes, or their lender upholds that they stay.
        unsafe { std::slice::from_raw_parts(self.from, self.len) }
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Payload) -> bool {
        **self == **other
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Tells the lender of bytes whether they are still used.
#[derive(Debug, Default)]
pub struct Loan(Arc<Vec<u8>>);

impl Loan {
    /// Whether no payload that was made with this loan is left.
    pub fn is_over(&self) -> bool {
        let over = Arc::strong_count(&self.0) == 1;
        // What the last user has read comes before what the lender does with its bytes now.
        fence(Ordering::Acquire);
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_ends_with_the_last_part_of_what_was_lent() {
        let (loan, bytes) = (Loan::default(), *b"0123456789");
        // SAFETY: the bytes outlive the payloads, as the assertions show.
        let whole = unsafe { Payload::lent(&loan, &bytes) };
        let part = whole.part(3..7);
        drop(whole);
        assert_eq!((&part[..], loan.is_over()), (&b"3456"[..], false));
        drop(part);
        assert!(loan.is_over());
    }

    #[test]
    fn a_part_keeps_what_it_is_of() {
        let whole = Payload::from(b"0123456789".to_vec());
        let part = whole.part(8..10).part(1..2);
        drop(whole);
        assert_eq!(part, Payload::from(b"9".to_vec()));
    }
}
