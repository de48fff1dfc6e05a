//! Ghosts: pages that left not long ago, by fingerprint.
//!
//! Time is counted in departures. A ghost's *distance* is the number of pages
//! that have left since it did, which is how much more local memory would have
//! kept it (Denning's working set, measured as Linux's `mm/workingset.c` does).
//!
//! ```text
//! 31              18 17    16 15            0
//! |  fingerprint    |  returns  |  left at      |   one ghost: 4 bytes, eight to a bucket
//! ```
//!
//! *Left at* counts departures in grains of 1/4096 of the capacity, so that it
//! wraps only after 16 capacities; by then the bucket's turnover has replaced
//! the ghost. A forgotten ghost costs a page its promotion, a mistaken one (two
//! pages of one bucket with equal fingerprints, 5 in 10 000) promotes a page that
//! does not deserve it: neither can harm more than speed. That is why four
//! bytes do where an exact list would take twenty. (S3-FIFO, SOSP '23, §4.2,
//! keeps its ghosts so.)

use farmem_protocol::addr::PageId;

const WAYS: usize = 8;
const _: () = assert!(WAYS == 1 << 3);
/// Ghosts kept for each local page: twice, so that those within a distance of one capacity are
/// seldom pushed out by their bucket's neighbours.
const PER_PAGE: usize = 2;
const GRAINS: u64 = 4096;

/// Spreads page numbers over 64 bits.
#[inline]
pub(crate) fn mix(page: PageId) -> u64 {
    let x = page.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ x >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// The record of a page that has come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ghost {
    /// Pages that left since, to a grain.
    pub distance: u64,
    /// How often it had come back before, up to 3.
    pub returns: u8,
}

/// The pages that left last.
pub struct Ghosts {
    buckets: Vec<[u32; WAYS]>,
    /// Departures, in grains, and those until the next.
    now: u16,
    left: u64,
    grain: u64,
}

impl Ghosts {
    /// For `capacity` local pages: remembers about 1.5 times as many.
    pub fn new(capacity: usize) -> Ghosts {
        let capacity = capacity.max(1);
        Ghosts {
            buckets: vec![[0; WAYS]; (capacity * PER_PAGE).div_ceil(WAYS)],
            now: 0,
            left: (capacity as u64).div_ceil(GRAINS),
            grain: (capacity as u64).div_ceil(GRAINS),
        }
    }

    /// A page leaves.
    pub fn left(&mut self, page: PageId, returns: u8) {
        self.left -= 1;
        if self.left == 0 {
            self.left = self.grain;
            self.now = self.now.wrapping_add(1);
        }
        let now = self.now;
        let (bucket, print) = self.place(page);
        let age = |ghost: u32| if ghost == 0 { u16::MAX } else { now.wrapping_sub(ghost as u16) };
        // Age and place in one number: a loop without branches.
        let oldest = (0..WAYS).fold(0, |most, way| most.max((age(bucket[way]) as u32) << 3 | way as u32));
        bucket[oldest as usize % WAYS] = print | (returns.min(3) as u32) << 16 | now as u32;
    }

    /// A page comes back; its ghost, if there is one, goes.
    pub fn take(&mut self, page: PageId) -> Option<Ghost> {
        let (now, grain) = (self.now, self.grain);
        let (bucket, print) = self.place(page);
        let ghost = bucket.iter_mut().find(|g| **g & PRINT == print)?;
        let found =
            Ghost { distance: now.wrapping_sub(*ghost as u16) as u64 * grain, returns: (*ghost >> 16 & 3) as u8 };
        *ghost = 0;
        Some(found)
    }

    /// As [`crate::pages::Pages::expect`].
    pub(crate) fn expect(&self, pages: impl Iterator<Item = PageId>) {
        let seen = pages.fold(0, |seen, page| seen ^ self.buckets[self.bucket_of(mix(page))][0]);
        std::hint::black_box(seen);
    }

    fn bucket_of(&self, hash: u64) -> usize {
        ((hash as u128 * self.buckets.len() as u128) >> 64) as usize
    }

    fn place(&mut self, page: PageId) -> (&mut [u32; WAYS], u32) {
        let hash = mix(page);
        let bucket = self.bucket_of(hash);
        // The low bits: the bucket is by the high ones. Never zero, which marks a free place.
        let print = ((hash as u32) << 18).max(1 << 18);
        (&mut self.buckets[bucket], print)
    }
}

const PRINT: u32 = !((1 << 18) - 1);

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;

    #[test]
    fn a_ghost_knows_how_long_ago_it_left() {
        let mut ghosts = Ghosts::new(1000);
        for page in 0..1000 {
            ghosts.left(PageId(page), (page % 4) as u8);
        }
        assert_eq!(ghosts.take(PageId(999)), Some(Ghost { distance: 0, returns: 3 }));
        assert_eq!(ghosts.take(PageId(900)), Some(Ghost { distance: 99, returns: 0 }));
        assert_eq!(ghosts.take(PageId(900)), None, "taken once");
    }

    /// One bucket told at length: times as whole numbers, the oldest looked for place by place.
    struct Plain {
        /// Page, returns, and when it left.
        places: Vec<Option<(u64, u8, u64)>>,
        departures: u64,
    }

    impl Plain {
        fn left(&mut self, page: u64, returns: u8) {
            self.departures += 1;
            let age = |place: &Option<(u64, u8, u64)>| place.map_or(u64::MAX, |(.., at)| self.departures - at);
            // The last of several alike.
            let oldest = (0..WAYS).max_by_key(|&way| age(&self.places[way])).unwrap_or(0);
            self.places[oldest] = Some((page, returns, self.departures));
        }

        fn take(&mut self, page: u64) -> Option<Ghost> {
            let place = self.places.iter_mut().find(|place| place.is_some_and(|(at, ..)| at == page))?;
            let (_, returns, at) = place.take()?;
            Some(Ghost { distance: self.departures - at, returns })
        }
    }

    #[test]
    fn a_bucket_is_as_a_plain_list_of_the_latest() {
        // Of one bucket, and so few pages that no two have one fingerprint.
        let mut ghosts = Ghosts::new(4);
        assert_eq!(ghosts.buckets.len(), 1);
        let mut plain = Plain { places: vec![None; WAYS], departures: 0 };
        let mut prints: Vec<u32> = (0..24).map(|page| ghosts.place(PageId(page)).1).collect();
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), 24);
        let mut random = Random::new(1);
        for _ in 0..200_000 {
            let (page, returns) = (random.below(24), random.below(4) as u8);
            // A page that leaves was local, and its ghost gone.
            let back = (ghosts.take(PageId(page)), plain.take(page));
            assert_eq!(back.0, back.1);
            if random.below(4) != 0 {
                ghosts.left(PageId(page), returns);
                plain.left(page, returns);
            }
        }
    }

    #[test]
    fn most_ghosts_within_a_capacity_are_remembered() {
        let mut ghosts = Ghosts::new(10_000);
        for page in 0..50_000 {
            ghosts.left(PageId(page * 7), 0);
        }
        let known = (40_000..50_000).filter(|p| ghosts.take(PageId(p * 7)).is_some()).count();
        assert!(known > 9_500, "{known} of 10 000");
        let mistaken = (1..10_000).filter(|p| ghosts.take(PageId(p * 7 + 1)).is_some()).count();
        assert!(mistaken < 30, "{mistaken} of 10 000");
    }
}
