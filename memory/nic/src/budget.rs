//! How much of a card windows may take: each member's, and all of them together.
//!
//! A window on the card is an entry in its tables. Its region locks pages and counts against the
//! process's limit on locked memory, once more for every window on the same bytes. Windows that are
//! not granted here go by the node's processor, with the same answers.

use farmem_sys::sync::Lock;
use std::sync::Arc;

/// Windows of one member on the card, at most.
pub const MEMBER_WINDOWS: u64 = 4096;
/// Bytes that they may have locked.
pub const MEMBER_BYTES: u64 = 1 << 30;

/// So much and no more, and at the same time no more than the budget above has left.
#[derive(Debug)]
pub struct Budget {
    windows: u64,
    bytes: u64,
    used: Lock<(u64, u64)>,
    above: Option<Arc<Budget>>,
}

/// One window's part of a budget, given back when dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Budget>,
    bytes: u64,
    _above: Option<Box<Share>>,
}

impl Budget {
    /// A budget of `windows` windows and `bytes` bytes.
    pub fn new(windows: u64, bytes: u64, above: Option<Arc<Budget>>) -> Arc<Budget> {
        Arc::new(Budget { windows, bytes, used: Lock::new((0, 0)), above })
    }

    /// A share for one window of `bytes` bytes. `None`: that would be too much.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Share> {
        let above = match &self.above {
            Some(above) => Some(Box::new(above.take(bytes)?)),
            None => None,
        };
        let mut used = self.used.lock();
        let (windows, all) = (used.0 + 1, used.1.checked_add(bytes)?);
        if windows > self.windows || all > self.bytes {
            return None;
        }
        *used = (windows, all);
        Some(Share { of: Arc::clone(self), bytes, _above: above })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.of.used.lock();
        *used = (used.0 - 1, used.1 - self.bytes);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_takes_nothing_and_what_ends_gives_back() {
        let all = Budget::new(3, 100, None);
        let (one, other) = (Budget::new(2, 80, Some(Arc::clone(&all))), Budget::new(2, 80, Some(Arc::clone(&all))));
        let shares = (one.take(10).unwrap(), one.take(10).unwrap());
        assert!(one.take(1).is_none(), "its windows");
        assert!(other.take(81).is_none() && other.take(u64::MAX).is_none(), "its bytes");
        let third = other.take(80).unwrap();
        assert!(other.take(0).is_none(), "everybody's windows");
        assert_eq!((*all.used.lock(), *other.used.lock()), ((3, 100), (1, 80)));
        drop(shares.0);
        assert!(other.take(11).is_none(), "everybody's bytes");
        drop((shares.1, third));
        assert_eq!((*all.used.lock(), *one.used.lock(), *other.used.lock()), ((0, 0), (0, 0), (0, 0)));
    }
}
