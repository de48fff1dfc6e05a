//! All ways of computing agree; changed lines are named; sums miss no change.

use super::*;
use farmem_protocol::random::Random;
use farmem_protocol::wire::VERSION;
use proptest::prelude::*;

fn hashes(unit: Unit, key: &[u8; SEED_BYTES], page: &[u8; 4096]) -> Hashes {
    let mut into = [0; LINES];
    // SAFETY: a live array.
    unsafe { Hasher::new(key, unit).hash(page.as_ptr(), &mut into) };
    into
}

fn filled(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn every_unit_computes_the_same(seed in any::<u64>(), sparse in any::<bool>(), extreme in any::<u8>()) {
        let mut key: [u8; SEED_BYTES] = filled(seed, SEED_BYTES).try_into().unwrap();
        let mut page: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
        if sparse {
            page.iter_mut().step_by(3).for_each(|byte| *byte = extreme);
            key.iter_mut().step_by(2).for_each(|byte| *byte = 0xFF);
        }
        let scalar = hashes(Unit::Scalar, &key, &page);
        let hasher = Hasher::new(&key, Unit::Scalar);
        let sum = hasher.sum_of(&scalar, u64::MAX);
        prop_assert_eq!(sum, hasher.sum(&scalar));
        for unit in [Unit::Scalar, Unit::Sse2, Unit::best()] {
            prop_assert_eq!(scalar, hashes(unit, &key, &page));
            let hasher = Hasher::new(&key, unit);
            for next in [None, Some(key.as_ptr())] {
                let mut into = MaybeUninit::uninit();
                // SAFETY: a live array.
                prop_assert_eq!((&scalar, sum), unsafe { hasher.hash_and_sum(page.as_ptr(), next, &mut into) });
            }
        }
    }

    #[test]
    fn what_changed_is_named_and_nothing_else(seed in any::<u64>(), changes in prop::collection::vec(0..32768usize, 0..20)) {
        let key: [u8; SEED_BYTES] = filled(seed, SEED_BYTES).try_into().unwrap();
        let before: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
        let mut after = before;
        changes.iter().for_each(|bit| after[bit / 8] ^= 1 << (bit % 8));
        let hasher = Hasher::new(&key, Unit::best());
        let was = hashes(Unit::best(), &key, &before);
        let expected = (0..LINES).fold(0u64, |all, k| all | ((before[64 * k..][..64] != after[64 * k..][..64]) as u64) << k);
        // SAFETY: a live array.
        prop_assert_eq!(unsafe { hasher.changed(after.as_ptr(), &was) }, expected);
    }
}

/// A counter that goes up in a line of zeros, the commonest change of all: 16 bits of its hash,
/// wherever they are taken, collide no oftener than random ones do, over all keys. (Under a single
/// key such hashes lie in a pattern, one more or less even.)
#[test]
fn small_changes_are_spread() {
    const KEYS: u64 = 64;
    let (mut hit, mut tops_hit) = ([0; 4], 0);
    for nth in 0..KEYS {
        let hasher = Hasher::new(&filled(nth * 0x9E37_79B9 + 42, SEED_BYTES).try_into().unwrap(), Unit::best());
        let mut seen = vec![[false; 4]; 1 << 16];
        let mut tops_seen = vec![false; 1 << TOP_BITS];
        for counter in 0..1u32 << 12 {
            let mut line = [0u8; 64];
            line[12..16].copy_from_slice(&counter.to_le_bytes());
            let hash = units::one(&hasher.key, &line);
            (0..4).for_each(|part| seen[(hash >> (16 * part)) as usize & 0xFFFF][part] = true);
            tops_seen[(hash >> (u64::BITS - TOP_BITS)) as usize] = true;
        }
        tops_hit += tops_seen.into_iter().filter(|&seen| seen).count() as u64;
        (0..4).for_each(|part| hit[part] += seen.iter().filter(|seen| seen[part]).count() as u64);
    }
    // 4096 random numbers hit 3971 of 65536 places; here keys differ, from some 3000 to all 4096.
    assert!(hit.iter().all(|&hit| hit > 3800 * KEYS), "{:?} places a key", hit.map(|hit| hit / KEYS));
    // … and 2589 of 4096.
    assert!(tops_hit > 2450 * KEYS, "{} places a key", tops_hit / KEYS);
}

/// The vector that the authors publish: key 00 … 0f, message 00 … 07.
#[test]
fn the_key_is_drawn_by_siphash() {
    let seed: Seed = std::array::from_fn(|i| i as u8);
    let key = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| seed[at + i])));
    assert_eq!(sip::siphash(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
    let mut words = sip::Words::new(&seed);
    assert_eq!([words.next_word(), words.next_word()], [0, 1].map(|n| sip::siphash(key, n)));
}

fn brief(hasher: &Hasher, page: &[u8; 4096]) -> Brief {
    let mut brief = Brief::default();
    // SAFETY: a live array.
    unsafe { brief.take(hasher, page.as_ptr()) };
    brief
}

fn found(hasher: &Hasher, was: &Brief, page: &[u8; 4096], mask: u16) -> Found {
    // SAFETY: a live array.
    unsafe {
        let found = was.compare(hasher, page.as_ptr(), None, mask);
        assert_eq!(
            found,
            was.compare(hasher, page.as_ptr(), Some(std::ptr::null()), mask),
            "whatever is asked for meanwhile"
        );
        found
    }
}

proptest! {
    /// With whole tops (2⁻¹² apart) what changed is named, and who has the old bytes confirms it.
    /// With two, lines are overlooked in every case of some size: then nobody confirms it, and it
    /// is not called the same.
    #[test]
    fn what_is_overlooked_is_not_confirmed(seed in any::<u64>(), changes in prop::collection::vec(0..32768usize, 0..20)) {
        let key: Seed = filled(seed, SEED_BYTES).try_into().unwrap();
        let before: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
        let mut after = before;
        changes.iter().for_each(|bit| after[bit / 8] ^= 1 << (bit % 8));
        let hasher = Hasher::new(&key, Unit::best());
        let was = brief(&hasher, &before);
        let changed = (0..LINES).fold(0u64, |all, k| all | ((before[64 * k..][..64] != after[64 * k..][..64]) as u64) << k);
        for mask in [WHOLE_TOP, 0xC00, 0] {
            match found(&hasher, &was, &after, mask) {
                Found::Same => prop_assert_eq!(changed, 0),
                Found::Somewhere => prop_assert!(changed != 0),
                Found::Lines { lines, was } => {
                    prop_assert_eq!(lines & !changed, 0);
                    let confirmed = hasher.sum_in(&before, lines) == was;
                    prop_assert_eq!(confirmed, lines == changed);
                }
            }
        }
    }

    #[test]
    fn a_line_by_itself_is_a_line_of_the_page(seed in any::<u64>(), lines in any::<u64>()) {
        let hasher = Hasher::new(&filled(seed, SEED_BYTES).try_into().unwrap(), Unit::Scalar);
        let page: [u8; 4096] = filled(!seed, 4096).try_into().unwrap();
        let mut all = [0; LINES];
        // SAFETY: a live array.
        unsafe { hasher.hash(page.as_ptr(), &mut all) };
        let (some, others) = (hasher.sum_in(&page, lines), hasher.sum_in(&page, !lines));
        prop_assert_eq!(some, hasher.sum_of(&all, lines));
        prop_assert_eq!(some.wrapping_add(others), hasher.sum(&all));
    }
}

/// Lines that trade places, and changes that take each other back, are other sums: each line has
/// its own factor.
#[test]
fn sums_tell_lines_apart() {
    let hasher = Hasher::new(&filled(9, SEED_BYTES).try_into().unwrap(), Unit::best());
    let before: [u8; 4096] = filled(77, 4096).try_into().unwrap();
    for distance in 1..LINES {
        let mut after = before;
        after.copy_within(..64, 64 * distance);
        after[..64].copy_from_slice(&before[64 * distance..][..64]);
        assert_eq!(found(&hasher, &brief(&hasher, &before), &after, 0), Found::Somewhere);
    }
}

/// Both ends compute these sums, so they belong to the protocol: a change of these numbers is a
/// change of [`VERSION`].
#[test]
fn conditions_are_the_same_in_all_builds_of_a_version() {
    let seed = std::array::from_fn(|i| i as u8);
    let page = std::array::from_fn(|i| (i * 7 + i / 64 * 13) as u8);
    let hasher = Hasher::new(&seed, Unit::Scalar);
    let sums = [1, 1 << 63 | 6, u64::MAX].map(|lines| hasher.sum_in(&page, lines));
    assert_eq!(
        (VERSION, sums),
        (8, [11_445_477_771_047_710_088, 1_958_720_322_299_808_386, 2_808_434_593_707_523_677])
    );
}
