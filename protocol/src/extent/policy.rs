//! *When* to make the transitions that the words permit and nothing forces. Node, agent and
//! simulator ask here, so that they decide alike; the code is pure. Only the simulated agents ask
//! whether memory is short and what to publish then. The real agent publishes nothing: its blocks
//! are mapped, and a mapped block is never published (`docs/design/agent.md`).
//!
//! | question | who asks | answer |
//! |---|---|---|
//! | how long do I wait? | whoever lost a race for chunks | [`pause`]: a random time, within a window that doubles with each race lost in a row |
//! | how many empty blocks do I keep? | an agent, of each application | [`kept_empty`]: one, and one of each eight |
//! | what lies idle? | the same, once a heartbeat | what was taken from or given to by nobody for [`KEPT_IDLE`] heartbeats; in the simulation one while memory is short |
//! | is memory short? | an agent, once a heartbeat, by the hints | [`Watermark`]: below one free block in 16, until one in 8 |
//! | which of my blocks do I publish? | the same agent, while memory is short | [`to_publish`]: cold ones, the emptiest first, 8 a heartbeat; 32 when hardly anything is free |
//! | how much do I make clean now? | the node, between verbs | [`scrubs`]: little while enough is clean, much when it is not |
//! | do I put a giant together? | the node, when a block became free | [`gathers`]: while less than half are whole, and blocks enough stay |
//!
//! A block is *cold* when nothing was taken from it or given back to it for a whole heartbeat. A
//! hot block stays exclusive: publishing it would cost a CAS per chunk now and another for each
//! piece later, and its owner would claim it back as single chunks. The heartbeat publishes, never
//! an allocation, so that its 513 CASes delay no request.

/// Chunks and blocks: as counted, or by hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Supply {
    /// All of them.
    pub all: u32,
    /// Of these, free and clean.
    pub free: u32,
}

/// Whether memory is short. The limits for the beginning and the end are apart, so that a few units
/// given back do not end a shortage at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermark {
    is_short: bool,
}

/// Memory becomes short when less than one unit in `SHORT` is free.
pub const SHORT: u32 = 16;
/// A shortage ends when one unit in `AMPLE` is free.
pub const AMPLE: u32 = 8;

impl Watermark {
    /// Takes in what the hints say now. Returns whether memory is short.
    pub fn sees(&mut self, supply: Supply) -> bool {
        let least = if self.is_short { AMPLE } else { SHORT };
        self.is_short = u64::from(supply.free) * u64::from(least) < u64::from(supply.all);
        self.is_short
    }
}

/// An agent's knowledge of one of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Chunks in use, of [`super::block::CHUNKS`].
    pub in_use: u32,
    /// Heartbeats since anything was taken from it or given back.
    pub idle: u32,
}

impl Kept {
    /// Whether its owner is done with it for now.
    pub const fn is_cold(&self) -> bool {
        self.idle >= 1
    }
}

/// How often an agent looks at what lies idle, in nanoseconds.
pub const HEARTBEAT_NS: u64 = 10_000_000;

/// Heartbeats for which an agent keeps empty blocks, and leaves pieces granted ahead with programs,
/// although nothing is taken. So a program that frees and takes alternately does not move them back
/// and forth.
pub const KEPT_IDLE: u32 = 10;

/// Empty blocks that an agent keeps for an application that holds `blocks` blocks. An application
/// that frees and takes at a block's edge does not move the block back and forth. A piece of a kept
/// block need not be zeroed, because it was the same application's.
pub const fn kept_empty(blocks: u64) -> u64 {
    1 + blocks / 8
}

/// Blocks that an agent publishes in one heartbeat, at most: 4104 CAS, a tenth of a millisecond of
/// a card.
pub const PUBLISHED: usize = 8;
/// And when less than one block in 64 is free: claims are about to find nothing, and of few hosts
/// each must do more.
pub const PUBLISHED_URGENTLY: usize = 32;

/// How many it publishes.
const fn published(blocks: Supply) -> usize {
    if (blocks.free as u64) * 64 < blocks.all as u64 { PUBLISHED_URGENTLY } else { PUBLISHED }
}

/// The blocks of an agent to publish in this heartbeat while memory is short: those that are cold
/// and partly free, the emptiest first, because they yield most for the same number of CASes. (An
/// empty block is given back instead.)
pub fn to_publish<B: Ord + Copy>(blocks: impl Iterator<Item = (B, Kept)>, supply: Supply) -> Vec<B> {
    let partly = |kept: &Kept| (1..super::block::CHUNKS).contains(&kept.in_use);
    let mut chosen: Vec<(u32, B)> =
        blocks.filter(|(_, kept)| kept.is_cold() && partly(kept)).map(|(block, kept)| (kept.in_use, block)).collect();
    chosen.sort_unstable();
    chosen.truncate(published(supply));
    chosen.into_iter().map(|(_, block)| block).collect()
}

/// About the time of one claim of chunks: a READ and a CAS over a busy card, in nanoseconds.
const CLAIM_NS: u64 = 8_000;
/// Windows are doubled at most `DOUBLINGS` times: 8 ms.
const DOUBLINGS: u32 = 10;

/// How long to wait after the `lost`-th race for chunks that was lost in a row, in nanoseconds;
/// `draw` is any number that others do not draw. (Those who go on at once meet again: they are
/// after the same few words, and their round trips take as long. With each race lost it becomes
/// half as likely that another's claim falls into one's own.)
pub const fn pause(lost: u32, draw: u64) -> u64 {
    let doublings = if lost > DOUBLINGS { DOUBLINGS } else { lost };
    draw % (CLAIM_NS << doublings)
}

/// Units that one of the node's workers scrubs in one go between verbs. A scrub of 2 MiB takes a
/// core some 100 µs, for which verbs wait. While an eighth of the blocks is clean, one is enough:
/// an idle node does the rest. Below one in 32, claims are about to find nothing.
pub const fn scrubs(blocks: Supply) -> usize {
    let (free, all) = (blocks.free as u64, blocks.all as u64);
    if free * 8 >= all {
        1
    } else if free * 32 >= all {
        4
    } else {
        16
    }
}

/// Whether the node makes one giant of blocks that are all free: while less than half of the giants
/// are in one piece, which is how a node begins, and if as many blocks as go into it stay free
/// elsewhere. (One is split again only when no run of blocks is left, so that a giant is not split
/// and put together in turn.)
pub const fn gathers(giants: Supply, blocks: Supply, fanout: u32) -> bool {
    (giants.free as u64) * 2 < giants.all as u64 && blocks.free as u64 >= 2 * fanout as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(free: u32, all: u32) -> Supply {
        Supply { all, free }
    }

    #[test]
    fn short_is_below_a_sixteenth_and_lasts_until_an_eighth() {
        let mut watermark = Watermark::default();
        let seen = [64, 63, 64, 127, 128, 64].map(|free| watermark.sees(of(free, 1024)));
        assert_eq!(seen, [false, true, true, true, false, false]);
    }

    #[test]
    fn the_cold_and_partly_free_are_published_the_emptiest_first() {
        let blocks = [(0, 500, 3), (1, 10, 0), (2, 10, 1), (3, 512, 9), (4, 0, 9), (5, 300, 2)];
        let kept = |(block, in_use, idle)| (block, Kept { in_use, idle });
        let chosen = to_publish(blocks.into_iter().map(kept), of(50, 1024));
        assert_eq!(chosen, [2, 5, 0], "not the hot, the full, the empty");
        let many = (0..100).map(|block| (block, Kept { in_use: 256, idle: 1 }));
        assert_eq!(to_publish(many.clone(), of(16, 1024)), (0..PUBLISHED).collect::<Vec<_>>());
        assert_eq!(to_publish(many, of(15, 1024)), (0..PUBLISHED_URGENTLY).collect::<Vec<_>>());
    }

    #[test]
    fn one_empty_block_is_kept_and_one_of_each_eight() {
        assert_eq!([0, 7, 8, 15, 16].map(kept_empty), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_giant_is_gathered_while_few_are_whole_and_enough_stays_loose() {
        assert!(gathers(of(1, 4), of(1024, 2048), 512));
        assert!(!gathers(of(2, 4), of(1024, 2048), 512), "half of them are whole");
        assert!(!gathers(of(1, 4), of(1023, 2048), 512), "too few blocks would stay");
        assert!(!gathers(of(0, 0), of(0, 0), 512));
    }

    proptest! {
        /// However much is left, the hurry grows as less of it is clean, and it is never zero.
        #[test]
        fn less_clean_is_more_hurry(all in 1u32..1 << 22, one: u32, other: u32) {
            let (one, other) = (one % (all + 1), other % (all + 1));
            let (less, more) = (one.min(other), one.max(other));
            prop_assert!(scrubs(of(less, all)) >= scrubs(of(more, all)));
            prop_assert!(scrubs(of(all, all)) >= 1);
        }
    }
}
