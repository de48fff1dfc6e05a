//! Claims of pieces that are under way: one for each class of objects at a time.
//!
//! Many writes may find no place at once. If each claimed a piece, most of these would be of no use. So one of them
//! claims a piece, with room for those that wait, and the others look again when it is there.

use crate::layout::{LARGE, class_bytes};
use crate::shard::Trouble;
use crate::shard::heap::LARGEST_SHARED;
use crate::task::Io;
use std::cell::RefCell;

/// Looks at a claim in every turn of the event loop. Later ones come after pauses, which become longer.
const BRISK: u32 = 64;
/// Looks after which a write claims a piece itself. That is after two seconds.
const PATIENCE: u32 = 200;

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// A claim is under way.
    open: bool,
    /// Writes that wait for it.
    waiting: u32,
    /// Claims that have ended, and those for which there was no piece.
    ended: u32,
    refused: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Claims(RefCell<Vec<Class>>);

impl Default for Claims {
    fn default() -> Claims {
        Claims(RefCell::new(vec![Class::default(); usize::from(LARGE) + 1]))
    }
}

/// A claim under way.
#[derive(Debug)]
pub(crate) struct Claim<'a>(&'a Claims, u8);

impl Claim<'_> {
    /// There is no piece for it.
    pub fn refused(&self) {
        self.0.change(self.1, |class| class.refused = class.refused.wrapping_add(1));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |class| (class.open, class.ended) = (false, class.ended.wrapping_add(1)));
    }
}

/// A write that waits.
struct Waits<'a>(&'a Claims, u8);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |class| class.waiting -= 1);
    }
}

impl Claims {
    fn of(&self, class: u8) -> Class {
        self.0.borrow()[usize::from(class)]
    }

    fn change(&self, class: u8, change: impl FnOnce(&mut Class)) {
        change(&mut self.0.borrow_mut()[usize::from(class)]);
    }

    /// Begins a claim.
    pub fn begin(&self, class: u8) -> Claim<'_> {
        self.change(class, |class| class.open = true);
        Claim(self, class)
    }

    /// Waits for the end of a claim that is under way; whether there was one.
    ///
    /// # Errors
    /// There was no piece for it, so there is none for this write.
    pub async fn wait(&self, io: &Io, class: u8) -> Result<bool, Trouble> {
        let before = self.of(class);
        if !before.open {
            return Ok(false);
        }
        self.change(class, |class| class.waiting += 1);
        let _waits = Waits(self, class);
        for looks in 0..PATIENCE {
            io.pause(looks.checked_sub(BRISK).map_or(0, |late| 1 << (late / 16).min(5))).await;
            let now = self.of(class);
            if now.refused != before.refused {
                return Err(Trouble::Full);
            }
            if now.ended != before.ended {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Bytes of a piece for those that wait.
    pub fn wanted(&self, class: u8) -> u32 {
        let bytes = u64::from(self.of(class).waiting) * class_bytes(class);
        bytes.next_power_of_two().min(u64::from(LARGEST_SHARED)) as u32
    }
}
