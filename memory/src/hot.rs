//! The *hot* connections: the worker reads from them first, without asking epoll.
//!
//! ```text
//!  bytes came ─► hot ── COLD times bytes came from others, and none from it ──► left to epoll
//!                 ▲                                                               │
//!                 └──────────────── epoll says that bytes came ───────────────────┘
//! ```
//!
//! Each look is a system call, and a READ that comes while the worker looks elsewhere waits. So few
//! connections are hot. A host has three connections, of which a program that only reads uses one.
//! A connection cools by what came from others, not by time: a lone connection stays hot while its
//! host thinks.

/// Connections that are hot at once, at most.
const HOT: usize = 4;
/// A connection is cold when this many events came from others, and none from it. A host that asks
/// more seldom waits for the next look at epoll: some microseconds in each millisecond or more.
const COLD: u32 = 64;

/// Tokens of hot connections, each with how often something has come from others since it last came
/// from this one.
#[derive(Default)]
pub struct Hot(Vec<(usize, u32)>);

impl Hot {
    /// The connection at a place, if there is one.
    #[inline]
    pub fn at(&self, place: usize) -> Option<usize> {
        self.0.get(place).map(|&(entry, _)| entry)
    }

    /// Something came from a connection. The others may change places.
    #[inline]
    pub fn came(&mut self, from: usize) {
        let mut known = false;
        self.0.retain_mut(|(entry, others)| {
            *others = if *entry == from { 0 } else { *others + 1 };
            known |= *entry == from;
            *others < COLD
        });
        if known {
            return;
        }
        if self.0.len() == HOT
            && let Some(coldest) = (0..HOT).max_by_key(|&i| self.0[i].1)
        {
            self.0.remove(coldest);
        }
        self.0.push((from, 0));
    }

    /// A connection is no more.
    pub fn forget(&mut self, entry: usize) {
        self.0.retain(|&(t, _)| t != entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(hot: &Hot) -> Vec<usize> {
        (0..).map_while(|place| hot.at(place)).collect()
    }

    #[test]
    fn who_is_silent_while_others_ask_goes_cold_and_who_is_alone_does_not() {
        let mut hot = Hot::default();
        (1..=3).for_each(|entry| hot.came(entry));
        (0..61).for_each(|_| hot.came(3));
        assert_eq!(tokens(&hot), [1, 2, 3]);
        hot.came(2);
        assert_eq!(tokens(&hot), [2, 3]);
        (0..1000).for_each(|_| [2, 3].into_iter().for_each(|entry| hot.came(entry)));
        assert_eq!(tokens(&hot), [2, 3]);
        hot.forget(2);
        (0..1000).for_each(|_| hot.came(3));
        assert_eq!(tokens(&hot), [3]);
        hot.came(1);
        assert_eq!(tokens(&hot), [3, 1]);
    }

    #[test]
    fn the_one_that_was_silent_longest_makes_room() {
        let mut hot = Hot::default();
        [1, 2, 3, 4, 1, 5].into_iter().for_each(|entry| hot.came(entry));
        assert_eq!(tokens(&hot), [1, 3, 4, 5]);
    }
}
