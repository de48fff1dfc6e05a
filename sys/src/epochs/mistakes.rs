//! Mistakes that models make on purpose, to show that they would be found. Elsewhere nothing is
//! made, and the compiler removes the questions.

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A scope begins without a fence behind its epoch.
    NoFenceInScope,
    /// The slots are looked at without a fence behind the chill.
    NoFenceInLook,
    /// A cold frame is claimed while scopes of its epoch are open.
    NoGrace,
    /// A frame is claimed by an epoch in which it was cold before.
    AnyChill,
    /// A frame is found before its payload is there.
    PublishedTooEarly,
    /// The end of a scope does not release what it did.
    LeavesTooEarly,
    /// An object is marked as written to behind the write.
    #[cfg(all(test, loom))]
    DirtyAfterwards,
}

/// Whether this mistake is to be made.
#[cfg(not(all(test, loom)))]
#[inline(always)]
pub const fn made(_: Mistake) -> bool {
    false
}

#[cfg(all(test, loom))]
pub use seeded::{made, seed};

#[cfg(all(test, loom))]
mod seeded {
    use super::Mistake;
    use std::cell::Cell;

    // A model's threads all run on one thread of the system.
    std::thread_local! {
        static SEEDED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    pub fn made(mistake: Mistake) -> bool {
        SEEDED.get() == Some(mistake)
    }

    /// Makes one until the result is dropped.
    pub fn seed(mistake: Option<Mistake>) -> Seed {
        SEEDED.set(mistake);
        Seed
    }

    pub struct Seed;

    impl Drop for Seed {
        fn drop(&mut self) {
            SEEDED.set(None);
        }
    }
}
