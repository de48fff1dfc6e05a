//! Room for records: a ring of bytes. Each record takes what it needs and keeps it until it is
//! acknowledged.
//!
//! ```text
//!   0        front                  end                        size
//!   |  free  | record | record | …  |  free                     |     a record lies in one piece:
//!   | … rec | free    | record | record | record | left over    |     behind the last one, or at 0
//!           end       front
//! ```
//!
//! Acknowledgements come in the order posted from each node, and in any order from several. Bytes
//! that are acknowledged early are free when all before them are. Records differ: a page of one
//! line takes 82 bytes, a full record 32 KiB. So they do not have a buffer each: 32 of these took a
//! sixty-fourth of local memory, and were a tenth full.

use std::collections::VecDeque;

/// See the module.
pub struct Room {
    size: usize,
    /// Oldest first; the first has number `first`, and is not acknowledged.
    under_way: VecDeque<Record>,
    first: u32,
    /// Lists of records that were acknowledged: kept for their memory.
    idle: Vec<Vec<u32>>,
}

struct Record {
    from: usize,
    len: usize,
    /// Of staged pages, in the record's order.
    copies: Vec<u32>,
    done: bool,
}

/// A record's number, and where its bytes begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Of no other record under way.
    pub number: u32,
    /// Offset.
    pub from: usize,
}

impl Room {
    /// For `size` bytes.
    pub fn new(size: usize) -> Room {
        Room { size, under_way: VecDeque::new(), first: 0, idle: Vec::new() }
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Takes `len` bytes, at least one, and notes the copies that the record is of. `None` until
    /// others are acknowledged.
    pub fn take(&mut self, len: usize, copies: impl Iterator<Item = u32>) -> Option<Taken> {
        debug_assert!(0 < len && len <= self.size);
        let (front, end) = match (self.under_way.front(), self.under_way.back()) {
            (Some(front), Some(back)) => (front.from, back.from + back.len),
            // As if the last one had just been acknowledged at the very end.
            _ => (self.size, 0),
        };
        let from = match () {
            // No record is empty: where the end is the front, all is taken.
            () if end <= front => Some(end).filter(|_| len <= front - end),
            () if len <= self.size - end => Some(end),
            () => Some(0).filter(|_| len <= front),
        }?;
        let mut list = self.idle.pop().unwrap_or_default();
        list.extend(copies);
        let number = self.first.wrapping_add(self.under_way.len() as u32);
        self.under_way.push_back(Record { from, len, copies: list, done: false });
        Some(Taken { number, from })
    }

    /// A record is acknowledged: `each` of its copies, with its place in the record.
    pub fn acknowledged(&mut self, number: u32, mut each: impl FnMut(usize, u32)) {
        let nth = number.wrapping_sub(self.first) as usize;
        let Some(record) = self.under_way.get_mut(nth) else {
            debug_assert!(false, "record {number} is not under way");
            return;
        };
        record.done = true;
        let mut copies = std::mem::take(&mut record.copies);
        copies.drain(..).enumerate().for_each(|(place, copy)| each(place, copy));
        self.idle.push(copies);
        while self.under_way.pop_front_if(|record| record.done).is_some() {
            self.first = self.first.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_lie_behind_each_other_and_come_round() {
        let mut room = Room::new(100);
        let take = |room: &mut Room, len| room.take(len, [len as u32].into_iter()).map(|taken| taken.from);
        assert_eq!([40, 50, 20].map(|len| take(&mut room, len)), [Some(0), Some(40), None]);
        room.acknowledged(1, |place, copy| assert_eq!((place, copy), (0, 50)));
        assert_eq!(take(&mut room, 20), None, "the one before it is under way");
        room.acknowledged(0, |_, copy| assert_eq!(copy, 40));
        assert_eq!([60, 40, 1].map(|len| take(&mut room, len)), [Some(0), Some(60), None]);
        room.acknowledged(2, |_, _| ());
        assert_eq!([40, 20, 1].map(|len| take(&mut room, len)), [Some(0), Some(40), None], "full to the byte");
    }

    proptest! {
        /// No two records under way overlap, none lies outside, and each copy comes back once. An
        /// empty ring has room.
        #[test]
        fn nothing_is_taken_twice(steps in prop::collection::vec((1usize..=64, 0usize..8), 1..400)) {
            const SIZE: usize = 128;
            let mut room = Room::new(SIZE);
            let mut held: Vec<(Taken, usize)> = Vec::new();
            for (copy, (len, acknowledge)) in steps.into_iter().enumerate() {
                match room.take(len, [copy as u32, 7].into_iter()) {
                    Some(taken) => {
                        prop_assert!(taken.from + len <= SIZE);
                        for (other, theirs) in &held {
                            prop_assert!(taken.from + len <= other.from || other.from + theirs <= taken.from);
                            prop_assert_ne!(taken.number, other.number);
                        }
                        held.push((taken, len));
                    }
                    None => prop_assert!(!held.is_empty()),
                }
                if !held.is_empty() {
                    let (taken, _) = held.remove(acknowledge % held.len());
                    let mut came = Vec::new();
                    room.acknowledged(taken.number, |place, copy| came.push((place, copy)));
                    prop_assert_eq!(came.len(), 2);
                    prop_assert_eq!(came[1], (1, 7));
                }
            }
        }
    }
}
