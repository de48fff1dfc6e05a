use super::geometry::{BadGeometry, HEADER_BYTES};
use super::key::Subject;
use super::owner::{Lease, OwnerField, OwnerWord};
use super::*;
use proptest::prelude::*;

fn any_state() -> impl Strategy<Value = State> {
    (0u64..8).prop_map(State::from_bits)
}

proptest! {
    #[test]
    fn a_word_keeps_its_fields(
        state in any_state(), owner in 0u16..1 << 14, order in 0u8..16, claimant in 0u16..1 << 10, generation: u32,
    ) {
        let word = Word::new(state, Owner::new(owner), order, Claimant::new(claimant), Generation(generation));
        prop_assert_eq!(word.state(), state);
        prop_assert_eq!(word.owner().slot(), owner);
        prop_assert_eq!(word.order(), order);
        prop_assert_eq!(word.claimant().number(), claimant);
        prop_assert_eq!(word.generation().0, generation);
    }

    /// Whatever bits a peer sends, canonical words are exactly those that the constructors make.
    #[test]
    fn canonical_words_are_those_we_make(bits: u64) {
        let word = Word(bits);
        let made = match word.state() {
            State::Owned => Word::new(State::Owned, word.owner(), word.order(), word.claimant(), word.generation()),
            named @ (State::Splitting | State::Merging) =>
                Word::new(named, word.owner(), 0, word.claimant(), word.generation()),
            other => Word::plain(other, word.generation()),
        };
        prop_assert_eq!(word.is_canonical(), made == word);
    }

    #[test]
    fn a_key_keeps_its_fields(level in 0usize..3, index in 0u32..1 << 30, generation: u32) {
        let place = Place { level: Level::ALL[level], index };
        let word = Word::new(State::Owned, Owner::new(7), 0, Claimant::new(1), Generation(generation));
        let key = Key::of(place, word).unwrap();
        prop_assert_eq!(key.subject(), Subject::Unit(place));
        prop_assert_eq!(key.tag(), Generation(generation));
        prop_assert_eq!(Key::window(index, generation.max(1)).subject(), Subject::Window(index));
    }

    /// Every word of a table has one offset, and no two share one.
    #[test]
    fn offsets_and_targets_are_inverse(
        blocks in 1u32..3000, owners in 2u16..200, giant in 0u8..10, block in 0u8..10, probe: u64,
    ) {
        let geometry = Geometry::tiny(blocks, owners, giant, block).unwrap();
        let offset = probe % geometry.table_bytes();
        if let Some(target) = geometry.target(offset) {
            prop_assert_eq!(geometry.offset(target), Some(offset));
        }
        let index = |count: u32| (probe % count as u64) as u32;
        for level in Level::ALL {
            let target = Target::Word(Place { level, index: index(geometry.count(level)) });
            prop_assert_eq!(geometry.target(geometry.offset(target).unwrap()), Some(target));
        }
        for about in [Hint::FreeBlocks, Hint::SharedBlocks, Hint::FreeChunks] {
            let level = if about == Hint::FreeChunks { Level::Chunk } else { Level::Block };
            let target = Target::Hint { about, line: index(geometry.lines(level)) };
            prop_assert_eq!(geometry.target(geometry.offset(target).unwrap()), Some(target));
        }
        for field in [OwnerField::Word, OwnerField::Heartbeat, OwnerField::Quota, OwnerField::Held] {
            let target = Target::Owner(Owner::new(index(owners as u32) as u16), field);
            prop_assert_eq!(geometry.target(geometry.offset(target).unwrap()), Some(target));
        }
        let (read, incarnation) = Geometry::read_header(&geometry.header(probe)).unwrap();
        prop_assert_eq!((read, incarnation), (geometry, probe));
    }

    /// Parents and children agree, and the chunks of a unit are those of its children.
    #[test]
    fn families_agree(blocks in 1u32..3000, giant in 0u8..10, block in 0u8..10, probe: u32) {
        let geometry = Geometry::tiny(blocks, 2, giant, block).unwrap();
        for level in [Level::Block, Level::Giant] {
            let place = Place { level, index: probe % geometry.count(level) };
            let (first, count) = geometry.children(place).unwrap();
            prop_assert_eq!(geometry.parent(first), Some(place));
            prop_assert_eq!(geometry.parent(first.plus(count - 1)), Some(place));
            prop_assert_eq!(geometry.chunks(place).start, geometry.chunks(first).start);
            prop_assert_eq!(geometry.chunks(place).end, geometry.chunks(first.plus(count - 1)).end);
            prop_assert_eq!(geometry.is_whole(place), geometry.chunks(place).len() == geometry.chunks_of(level) as usize);
        }
    }
}

#[test]
fn the_table_is_within_a_quarter_of_a_percent() {
    for bytes in [64 << 20, 1 << 30, 5 << 30, 100 << 30, 4096 << 30u64] {
        let geometry = Geometry::new(bytes).unwrap();
        let share = geometry.table_bytes() as f64 / geometry.lent_bytes() as f64;
        assert!(share <= 0.0025, "{bytes} bytes: {:.4} %", share * 100.0);
    }
    assert_eq!(Geometry::new(1 << 20), Err(BadGeometry::Empty));
    assert_eq!(Geometry::new(5 << 40), Err(BadGeometry::TooLarge));
    assert_eq!(Geometry::read_header(&[0; HEADER_BYTES]), Err(BadGeometry::Header));
}

#[test]
fn a_node_starts_with_every_byte_free_once() {
    for (blocks, whole) in [(9, 0), (9, 1), (9, 9), (8, 2)] {
        let geometry = Geometry::tiny(blocks, 2, 2, 1).unwrap();
        let free: u32 = [Level::Block, Level::Giant]
            .into_iter()
            .flat_map(|level| (0..geometry.count(level)).map(move |index| Place { level, index }))
            .filter(|&place| geometry.initial(place, whole).is(State::Free))
            .map(|place| geometry.chunks_of(place.level))
            .sum();
        assert_eq!(free, geometry.count(Level::Chunk));
    }
}

#[test]
fn a_lease_goes_round_once_for_each_incarnation() {
    let vacant = OwnerWord::default();
    let live = vacant.registered().unwrap();
    assert!(live.admits(0) && !live.admits(1) && live.registered().is_none() && live.died().is_none());
    let fenced = live.fenced().unwrap();
    assert!(!fenced.admits(0) && fenced.vacated().is_none());
    let next = fenced.died().unwrap().vacated().unwrap();
    assert_eq!((next.lease(), next.incarnation()), (Lease::Vacant, 1));
    assert!(next.registered().unwrap().admits(1));
}
