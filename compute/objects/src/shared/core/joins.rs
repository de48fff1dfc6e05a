//! Groups of segments that the kernel joins to huge pages ([`crate::space`]).
//!
//! ```text
//! under the lock: as many segments are set aside ─► without it: the kernel joins ─► under it: back
//! ```
//!
//! The kernel copies 2 MiB, and waits for every CPU. So no thread of the heap waits meanwhile, and
//! the copy counts as local. A segment of the group may go to another class meanwhile. Then the huge
//! page has brought its memory back, and it is discarded once more.

use super::{Core, Ground};
use crate::class::{Class, GROUP};

impl Core {
    /// A class has all of a group. Sets memory aside for the kernel's copy of it, if there is any.
    pub(super) fn begin_joining(&mut self, on: Ground<'_>, class: Class, group: usize) {
        if self.left < GROUP || !on.frames.may_join() {
            return;
        }
        let is_there = on.share().has(self.used() + GROUP);
        if is_there {
            self.left -= GROUP;
            self.joins.push((class, group));
        } else {
            on.share().keep(self.used());
        }
    }

    /// The kernel is done with a group.
    pub fn joined(&mut self, on: Ground<'_>, class: Class, group: usize) {
        let room = &self.rooms[class.index];
        let gone = (group * GROUP..(group + 1) * GROUP).filter(|&segment| !room.has(segment));
        gone.for_each(|segment| on.frames.discard(class, segment));
        self.left += GROUP;
        on.share().keep(self.used());
    }
}
