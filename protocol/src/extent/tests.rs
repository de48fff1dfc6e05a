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

    /// For all bits that a peer can send, canonical words are exactly those that the constructors
    /// make.
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

mod block_tests {
    use super::block::{Block, CHUNKS, MAX_ORDER, NotHeld, order_for};
    use super::*;

    #[test]
    fn sizes_have_orders() {
        for (bytes, order) in [(0, 0), (1, 0), (4096, 0), (4097, 1), (8193, 2), (1 << 20, 8)] {
            assert_eq!(order_for(bytes), Some(order), "{bytes} bytes");
        }
        assert_eq!(order_for((1 << 20) + 1), None);
    }

    proptest! {
        /// Against a plain map of which chunk belongs to whom: never two owners, never a run that
        /// is not aligned, no refusal while an aligned free run exists, frees of all else refused.
        #[test]
        fn a_block_is_what_a_map_is(steps in prop::collection::vec((0u8..=MAX_ORDER, 0u32..CHUNKS, any::<bool>()), 1..300)) {
            let mut block = Block::new();
            let mut map = [None; CHUNKS as usize];
            let mut held: Vec<(u32, u8)> = Vec::new();
            for (number, (order, at, takes)) in steps.into_iter().enumerate() {
                let chunks = 1usize << order;
                if takes {
                    let first_fit = (0..CHUNKS as usize).step_by(chunks).find(|&from| map[from..from + chunks].iter().all(Option::is_none));
                    let taken = block.take(order);
                    prop_assert_eq!(taken, first_fit.map(|first| first as u32));
                    if let Some(first) = taken {
                        map[first as usize..first as usize + chunks].fill(Some(number));
                        held.push((first, order));
                    }
                } else if let Some(index) = held.iter().position(|&(first, _)| first >= at) {
                    let (first, order) = held.swap_remove(index);
                    prop_assert_eq!(block.give(first), Ok(order));
                    prop_assert_eq!(block.give(first), Err(NotHeld(first)));
                    map[first as usize..first as usize + (1 << order)].fill(None);
                }
                let is_head = held.iter().any(|&(first, _)| first == at);
                prop_assert_eq!(block.extent(at).is_ok(), is_head);
                prop_assert_eq!(block.in_use() as usize, map.iter().flatten().count());
                prop_assert_eq!(block.is_empty(), held.is_empty());
            }
        }
    }
}

mod claim_tests {
    use super::want::Want;
    use super::*;

    fn actor(owner: u16) -> Actor {
        Actor::new(Owner::new(owner), Claimant::new(3))
    }

    /// Runs an operation alone and counts its READs and CAS.
    fn count<O: Operation>(table: &mut Table, operation: &mut O) -> (O::Outcome, [u32; 2]) {
        struct Counted<'a, O>(&'a mut O, [u32; 2]);
        impl<O: Operation> Operation for Counted<'_, O> {
            type Outcome = O::Outcome;
            fn step(&mut self) -> Step<O::Outcome> {
                let step = self.0.step();
                match step {
                    Step::Verb(Verb::Read { .. }) => self.1[0] += 1,
                    Step::Verb(Verb::Cas { .. }) => self.1[1] += 1,
                    _ => {}
                }
                step
            }
            fn complete(&mut self, answer: Answer<'_>) {
                self.0.complete(answer);
            }
        }
        let mut counted = Counted(operation, [0, 0]);
        let outcome = table.run(&mut counted);
        (outcome, counted.1)
    }

    #[test]
    fn a_block_costs_one_cas_to_claim_and_one_to_give_back() {
        let geometry = Geometry::new(10 << 30).unwrap();
        let mut table = Table::new(geometry, 1);
        let mut claimer = Claimer::new(actor(1), geometry);
        let mut grants = Vec::new();
        for round in 0..64 {
            claimer.begin(Want::one(Level::Block));
            let (granted, [reads, cas]) = count(&mut table, &mut claimer);
            grants.extend(granted.unwrap());
            // Hints and line at first; the next line with the CAS of the last block of this one.
            let wanted = [2, 1, 0][if round == 0 { 0 } else { 2 - usize::from(round == 63) }];
            assert_eq!((reads, cas), (wanted, 1), "round {round}");
        }
        grants.sort_unstable();
        grants.dedup_by_key(|grant| grant.place);
        assert_eq!(grants.len(), 64);
        for grant in &grants {
            assert_eq!(count(&mut table, &mut Release::new(actor(1), *grant)), (Ok(()), [0, 1]));
            assert_eq!(table.run(&mut Release::new(actor(1), *grant)), Err(Failed::Lost));
            assert!(matches!(
                table.run(&mut Reclaim::new(Actor::NODE, geometry, grant.place)),
                Ok(Reclaimed::Freed(_))
            ));
            claimer.freed(grant);
        }
        claimer.begin(Want::one(Level::Block));
        assert_eq!(count(&mut table, &mut claimer).1, [0, 1], "what was given back is known");
    }

    /// However scattered what is left is, and whatever the hints say, the last free block is found.
    #[test]
    fn the_last_free_block_is_found_without_hints() {
        let geometry = Geometry::with_owners(512 * 9 + 77, 8).unwrap();
        let mut table = Table::new(geometry, 0);
        let spare = Place::block(4321);
        for index in (0..geometry.count(Level::Block)).filter(|&index| index != spare.index) {
            table.set(
                Place::block(index),
                Word::new(State::Owned, Owner::new(5), 0, Claimant::default(), Generation(9)),
            );
        }
        for line in 0..geometry.lines(Level::Block) {
            table.put(Target::Hint { about: Hint::FreeBlocks, line }, if line % 7 == 0 { u64::MAX } else { 0 });
        }
        let mut claimer = Claimer::new(actor(2), geometry);
        claimer.begin(Want::one(Level::Block));
        let grant = table.run(&mut claimer).unwrap()[0];
        assert_eq!(grant.place, spare);
        claimer.begin(Want::one(Level::Block));
        assert_eq!(table.run(&mut claimer), Err(Failed::NoSpace));
        table.run(&mut Release::new(actor(2), grant)).unwrap();
        table.run(&mut Reclaim::new(Actor::NODE, geometry, spare)).unwrap();
        claimer.begin(Want::one(Level::Block));
        assert_eq!(table.run(&mut claimer).unwrap()[0].place, spare);
    }

    #[test]
    fn runs_are_neighbours_all_or_none() {
        let geometry = Geometry::new(6 << 30).unwrap();
        let mut table = Table::new(geometry, 3);
        let mut claimer = Claimer::new(actor(1), geometry);
        for (bytes, level, count) in [
            (2 << 20, Level::Block, 1),
            (7 << 20, Level::Block, 4),
            (600 << 20, Level::Block, 300),
            (1 << 30, Level::Giant, 1),
            (3 << 29, Level::Giant, 2),
        ] {
            claimer.begin(Want::bytes(&geometry, bytes).unwrap());
            let run = table.run(&mut claimer).unwrap();
            assert_eq!(run.len(), count);
            assert!(run.iter().enumerate().all(|(at, grant)| grant.place == run[0].place.plus(at as u32)));
            assert_eq!(run[0].place.level, level);
            assert_eq!(run[0].word.order() as u32, (count as u32).next_power_of_two().trailing_zeros());
        }
        claimer.begin(Want::one(Level::Giant));
        assert_eq!(table.run(&mut claimer), Err(Failed::NoSpace));
        assert_eq!(Want::bytes(&geometry, 65 << 30), None);
        claimer.begin(Want::some(Level::Block, 20));
        assert_eq!(table.run(&mut claimer).unwrap().len(), 20);
    }

    /// A unit that somebody took a moment ago makes the whole run go back.
    #[test]
    fn a_run_that_meets_another_gives_back_what_it_had() {
        let geometry = Geometry::tiny(8, 4, 3, 1).unwrap();
        let mut table = Table::new(geometry, 0);
        let mut claimer = Claimer::new(actor(1), geometry);
        claimer.begin(Want::run(&geometry, Level::Block, 8).unwrap());
        let mut room = [0; 64];
        let mut verbs = std::collections::VecDeque::new();
        let mut cas = 0;
        let outcome = loop {
            match claimer.step() {
                Step::Verb(verb) => verbs.push_back(verb),
                Step::Wait => {
                    let verb = verbs.pop_front().unwrap();
                    if let Verb::Cas { .. } = verb {
                        cas += 1;
                        if cas == 1 {
                            table.set(
                                Place::block(5),
                                Word::new(State::Owned, Owner::new(2), 0, Claimant::default(), Generation(2)),
                            );
                        }
                    }
                    claimer.complete(table.carry_out(&verb, &mut room));
                }
                Step::Done(outcome) => break outcome,
                _ => unreachable!(),
            }
        };
        // The race was lost, not the search: another try may find room.
        assert_eq!(outcome, Err(Failed::Contended));
        claimer.begin(Want::run(&geometry, Level::Block, 8).unwrap());
        assert_eq!(table.run(&mut claimer), Err(Failed::NoSpace));
        for index in 0..8 {
            use super::guard::Words;
            let state = if index == 5 { State::Owned } else { State::Quarantine };
            assert_eq!(table.word(Place::block(index)).state(), state, "block {index}");
        }
    }

    /// Other claimers have taken everything that was read. A claim learns that from its first lost
    /// CAS, and does not try each word.
    #[test]
    fn one_lost_race_is_enough_to_read_anew() {
        use super::geometry::LINE;
        use super::guard::Words;
        let geometry = Geometry::with_owners(640, 4).unwrap();
        let mut table = Table::new(geometry, 0);
        let mut claimer = Claimer::new(actor(1), geometry);
        claimer.begin(Want::one(Level::Block));
        let line = table.run(&mut claimer).unwrap()[0].place.index / LINE;
        for place in (line * LINE..(line + 1) * LINE).map(Place::block) {
            if table.word(place).is(State::Free) {
                table.set(place, Word::new(State::Owned, Owner::new(2), 0, Claimant::default(), Generation(2)));
            }
        }
        claimer.begin(Want::one(Level::Block));
        let (mut cas, mut room, mut posted) = (0, [0; 64], None);
        let taken = loop {
            match claimer.step() {
                Step::Verb(verb) => {
                    cas += u32::from(matches!(verb, Verb::Cas { .. }));
                    posted = Some(verb);
                }
                Step::Wait => claimer.complete(table.carry_out(&posted.take().unwrap(), &mut room)),
                Step::Done(taken) => break taken.unwrap(),
                _ => unreachable!(),
            }
        };
        assert_eq!((cas, taken.len()), (2, 1));
        assert_ne!(taken[0].place.index / LINE, line);
    }

    #[test]
    fn chunks_are_claimed_from_shared_blocks_only() {
        let geometry = Geometry::with_owners(700, 4).unwrap();
        for hinted in [true, false] {
            let mut table = Table::new(geometry, 0);
            let mut claimer = Claimer::new(actor(1), geometry);
            claimer.begin(Want::one(Level::Chunk));
            assert_eq!(table.run(&mut claimer), Err(Failed::NoSpace));
            let block = Place::block(333);
            table.set(block, Word::plain(State::Shared, Generation(4)));
            let (first, count) = geometry.children(block).unwrap();
            for child in 0..count {
                let word = if child % 5 == 0 {
                    Word::plain(State::Free, Generation(1))
                } else {
                    Word::new(State::Owned, Owner::new(2), 0, Claimant::default(), Generation(1))
                };
                table.set(first.plus(child), word);
            }
            if !hinted {
                for line in 0..geometry.lines(Level::Block) {
                    table.put(Target::Hint { about: Hint::SharedBlocks, line }, 0);
                }
            }
            for left in (0..count.div_ceil(5)).rev() {
                claimer.begin(Want::one(Level::Chunk));
                let (granted, [_, cas]) = count_ok(&mut table, &mut claimer);
                assert_eq!(geometry.parent(granted[0].place), Some(block));
                assert_eq!(cas, 1, "{left} left");
            }
            claimer.begin(Want::one(Level::Chunk));
            assert_eq!(table.run(&mut claimer), Err(Failed::NoSpace));
            table.set(first.plus(16), Word::plain(State::Free, Generation(7)));
            table.set(first.plus(17), Word::plain(State::Free, Generation(7)));
            claimer.begin(Want::run(&geometry, Level::Chunk, 2).unwrap());
            assert_eq!(
                table.run(&mut claimer).unwrap().iter().map(|grant| grant.place).collect::<Vec<_>>(),
                [first.plus(16), first.plus(17)]
            );
        }
    }

    fn count_ok(table: &mut Table, claimer: &mut Claimer) -> (Vec<Grant>, [u32; 2]) {
        let (outcome, verbs) = count(table, claimer);
        (outcome.unwrap(), verbs)
    }
}

mod guard_tests {
    use super::guard::{Denied, Words, admits, permits};
    use super::*;

    /// Any table at all: every word and lease is drawn, possible or not.
    struct Anything<'a> {
        words: &'a [u64],
        leases: &'a [u8],
    }

    impl Words for Anything<'_> {
        fn word(&self, place: Place) -> Word {
            Word(self.words[(place.level as usize * 7 + place.index as usize) % self.words.len()])
        }
        fn owner(&self, owner: Owner) -> OwnerWord {
            let lease = [Lease::Vacant, Lease::Live, Lease::Fenced, Lease::Dead]
                [self.leases[owner.slot() as usize] as usize % 4];
            OwnerWord::new(lease, 0)
        }
    }

    fn any_word() -> impl Strategy<Value = u64> {
        (0u64..8, 0u16..4, 0u8..3, 0u16..2, prop_oneof![0u32..4, u32::MAX - 2..=u32::MAX]).prop_map(
            |(state, owner, order, claimant, generation)| {
                Word::new(
                    State::from_bits(state),
                    Owner::new(owner),
                    order,
                    Claimant::new(claimant),
                    Generation(generation),
                )
                .0
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// However the table is set up, an owner can do only what the table of transitions has: its
        /// own words, the next generation, no other owner's name, and nothing that only the node
        /// may do.
        #[test]
        fn no_table_permits_more_than_the_rules(
            words in prop::collection::vec(any_word(), 24), leases in prop::collection::vec(0u8..4, 4),
            level in 0usize..3, index in 0u32..4, old in any_word(), new in any_word(), who in 0u16..4, follows: bool,
        ) {
            let geometry = Geometry::tiny(4, 4, 1, 1).unwrap();
            let table = Anything { words: &words, leases: &leases };
            let (old, who) = (Word(old), Owner::new(who));
            let new = match (follows, old.generation().next()) {
                (true, Some(next)) => Word(new & !0xffff_ffff | next.0 as u64),
                _ => Word(new),
            };
            let place = Place { level: Level::ALL[level], index };
            if let Ok(charge) = permits(&geometry, place, old, new, who, &table) {
                prop_assert_eq!(table.owner(who).lease(), Lease::Live);
                prop_assert!(!who.is_node());
                prop_assert_eq!(Some(new.generation()), old.generation().next());
                prop_assert!(new.is_canonical());
                prop_assert!(!new.state().is_named() || new.owner() == who);
                let dead = !old.owner().is_node() && table.owner(old.owner()).lease() == Lease::Dead;
                let possible = match (old.state(), new.state()) {
                    (State::Free, State::Owned) => true,
                    (State::Free, State::Splitting) => place.level != Level::Chunk,
                    (State::Owned, State::Quarantine) => old.owner() == who || dead,
                    (State::Owned | State::Splitting, State::Shared) => old.owner() == who && place.level != Level::Chunk,
                    (State::Splitting, State::Splitting) => dead && old.owner() != who,
                    (State::Absent, State::Free | State::Owned | State::Quarantine) => {
                        let parent = geometry.parent(place).map(|parent| table.word(parent));
                        parent.is_some_and(|parent| parent.owner() == who && parent.state().is_named())
                    }
                    _ => false,
                };
                prop_assert!(possible, "{place:?}: {old:?} to {new:?} by {who:?}");
                let whole = geometry.chunks_of(place.level) as i64;
                prop_assert!(charge.chunks.abs() <= whole);
            }
        }

        /// Admission: only by the very word that the key was made from, and never beyond the unit.
        #[test]
        fn no_table_admits_more_than_the_word_says(
            words in prop::collection::vec(any_word(), 24), key: u64, level in 1u64..4, index in 0u64..5,
            tag in any_word(), who in 0u16..4, offset in 0u64..4 << 20, len in 0u64..4 << 20, wild: bool,
        ) {
            let geometry = Geometry::tiny(4, 4, 1, 1).unwrap();
            let table = Anything { words: &words, leases: &[1; 4] };
            let key = if wild { Key(key) } else { Key(level << 62 | index << 32 | tag & 0xffff_ffff) };
            if let Ok(bytes) = admits(&geometry, key, Owner::new(who), offset, len, &table) {
                let Subject::Unit(place) = key.subject() else { panic!("a window is no unit") };
                let word = table.word(place);
                prop_assert!(geometry.has(place) && word.is_held_by(Owner::new(who)) && word.generation() == key.tag());
                let unit = geometry.bytes(place);
                prop_assert!(unit.start <= bytes.start && bytes.end <= unit.end && bytes.end - bytes.start == len);
            }
        }
    }

    /// An owner's charges add up to the units that it holds, through claim, publication and
    /// release.
    #[test]
    fn charges_add_up_to_what_is_held() {
        let geometry = Geometry::tiny(2, 4, 1, 2).unwrap();
        let mut table = Table::new(geometry, 0);
        let owner = Owner::new(1);
        table.enlist(owner);
        let actor = Actor::new(owner, Claimant::new(0));
        let mut charged = 0;
        let mut guarded = |table: &mut Table, verb: &Verb, room: &mut [u64; 64]| {
            if let Verb::Cas { at: Target::Word(place), old, new } = *verb
                && table.word(place).0 == old
            {
                let charge = permits(&geometry, place, Word(old), Word(new), owner, table).unwrap();
                assert_eq!(charge.owner, owner);
                charged += charge.chunks;
            }
            let answer = match table.carry_out(verb, room) {
                Answer::Found(found) => return (None, found),
                Answer::Words(words) => Some(words.to_vec()),
                _ => None,
            };
            (answer, 0)
        };
        fn drive<O: Operation>(
            table: &mut Table,
            operation: &mut O,
            guarded: &mut impl FnMut(&mut Table, &Verb, &mut [u64; 64]) -> (Option<Vec<u64>>, u64),
        ) -> O::Outcome {
            let mut posted = std::collections::VecDeque::new();
            let mut room = [0; 64];
            loop {
                match operation.step() {
                    Step::Verb(verb) => posted.push_back(verb),
                    Step::Wait => match guarded(table, &posted.pop_front().unwrap(), &mut room) {
                        (Some(words), _) => operation.complete(Answer::Words(&words)),
                        (None, found) => operation.complete(Answer::Found(found)),
                    },
                    Step::Done(outcome) => return outcome,
                    _ => unreachable!(),
                }
            }
        }
        let mut claimer = Claimer::new(actor, geometry);
        claimer.begin(Want::one(Level::Block));
        let block = drive(&mut table, &mut claimer, &mut guarded).unwrap()[0];
        let mut publish = Reshape::publish(actor, geometry, block, [0b101, 0, 0, 0, 0, 0, 0, 0]);
        let Ok(Reshaped::Done(chunks)) = drive(&mut table, &mut publish, &mut guarded) else { panic!("published") };
        assert_eq!(chunks.len(), 2);
        drive(&mut table, &mut Release::new(actor, chunks[0]), &mut guarded).unwrap();
        assert_eq!(charged, 1);
        let recount = check::recount(&geometry, &table);
        assert_eq!(recount.held[&owner], 1);
        assert_eq!((recount.problems.len(), recount.total()), (0, 8));
    }

    #[test]
    fn refusals_say_why() {
        let geometry = Geometry::tiny(4, 4, 1, 1).unwrap();
        let mut table = Table::new(geometry, 0);
        for slot in 1..3 {
            table.enlist(Owner::new(slot));
        }
        let (me, other) = (Owner::new(1), Owner::new(2));
        let owned = |owner, generation| Word::new(State::Owned, owner, 0, Claimant::new(0), Generation(generation));
        let free = table.word(Place::block(0));
        let permits = |table: &Table, place, old, new| permits(&geometry, place, old, new, me, table);
        assert!(permits(&table, Place::block(0), free, owned(me, 2)).is_ok());
        assert_eq!(permits(&table, Place::block(0), free, owned(me, 3)), Err(Denied::Generation));
        assert_eq!(permits(&table, Place::block(0), free, owned(other, 2)), Err(Denied::Malformed));
        assert_eq!(permits(&table, Place::block(9), free, owned(me, 2)), Err(Denied::Nowhere));
        table.set(Place::block(0), owned(other, 2));
        let given = Word::plain(State::Quarantine, Generation(3));
        assert_eq!(permits(&table, Place::block(0), owned(other, 2), given), Err(Denied::NotYours));
        assert!(table.lease(other, OwnerWord::fenced).is_some());
        assert_eq!(permits(&table, Place::block(0), owned(other, 2), given), Err(Denied::NotYours));
        assert!(table.lease(other, OwnerWord::died).is_some());
        assert!(permits(&table, Place::block(0), owned(other, 2), given).is_ok(), "the dead are anybody's to recover");
        table.set(Place::block(1), owned(me, 2));
        let shared = Word::plain(State::Shared, Generation(3));
        assert_eq!(permits(&table, Place::block(1), owned(me, 2), shared), Err(Denied::Children));
        let (chunk, zero) = (Place::chunk(2), Word::ZERO);
        assert_eq!(permits(&table, chunk, zero, Word::plain(State::Free, Generation(1))), Err(Denied::Parent));
        let key = Key::of(Place::block(1), owned(me, 2)).unwrap();
        assert_eq!(admits(&geometry, key, other, 0, 1, &table), Err(Denied::NotYours));
        assert_eq!(admits(&geometry, key, me, 8192, 1, &table), Err(Denied::OutOfRange));
        assert_eq!(admits(&geometry, key, me, u64::MAX, 2, &table), Err(Denied::OutOfRange));
        assert!(admits(&geometry, key, me, 8191, 1, &table).is_ok());
        table.set(Place::block(1), given);
        assert_eq!(admits(&geometry, key, me, 0, 1, &table), Err(Denied::Stale));
        assert_eq!(admits(&geometry, Key::window(1, 1), me, 0, 1, &table), Err(Denied::NotAUnit));
    }
}
