//! Samples against blocks anywhere, on machines that are as slow as may be.

use super::*;
use crate::sight::Page;
use proptest::prelude::*;

const P: u64 = PAGE as u64;

/// A look at blocks with these numbers of pages, all of them written, of which `most` were read.
fn look(watch: Watch, blocks: &BTreeMap<u64, u64>, most: u64) -> (Look, u64) {
    let mut look = Look::default();
    for (&block, &pages) in blocks.iter().filter(|&(&block, _)| watch.watches(block)) {
        look.present.push(block * BLOCK..block * BLOCK + pages * P);
    }
    let mut pages = look.present.iter().flat_map(|run| run.clone().step_by(PAGE));
    look.pages.extend(pages.by_ref().take(most as usize).map(|address| Page { address, told: true }));
    look.missed.extend(pages.map(|at| at..at + P));
    let wanted = look.present.iter().map(|run| (run.end - run.start) / P).sum();
    (look, wanted)
}

fn array() -> impl Strategy<Value = BTreeMap<u64, u64>> {
    let (at, len, ends) = (0..1_u64 << 26, 1..400_u64, 1..=LEAST);
    let array = (at, len, ends.clone()).prop_map(|(at, len, end)| {
        (at..at + len).map(move |block| (block, if block == at { end } else { LEAST })).collect::<Vec<_>>()
    });
    // The rest of a program: a few pages here and there.
    let others = prop::collection::vec((0..1_u64 << 26, 1..40_u64), 0..20);
    (array, others).prop_map(|(array, others)| others.into_iter().chain(array).collect())
}

#[test]
fn about_one_block_in_so_many_is_watched() {
    let watch = Watch { upto: u64::MAX / 8, ..Watch::ALL };
    let watched = (0..8000).filter(|&block| watch.watches(block)).count();
    assert!((900..1100).contains(&watched), "{watched}");
    let cut = watch.cut(&(3 * BLOCK + 4096..90 * BLOCK + 4096));
    assert!(cut.iter().all(|range| watch.watches(range.start / BLOCK) && range.end - range.start <= BLOCK));
}

proptest! {
    /// On any machine there is something left to look at. Where more does not fit, it is no more
    /// than a look always reads.
    #[test]
    fn a_sample_is_never_empty_and_becomes_what_can_be_read(
        blocks in array(),
        limit_us in 1000..50_000_u64,
        costs in prop::collection::vec((0..100_000_u64, 0..50_u64), 60..90),
        way_read: bool,
    ) {
        let all: u64 = blocks.values().sum();
        let limit = Duration::from_micros(limit_us);
        let mut sample = Sample::new(limit, u64::MAX);
        sample.begin(all, way_read);
        let mut wanted = all;
        for &(finding_us, page_us) in &costs {
            let finding = Duration::from_micros(finding_us);
            let left = limit.saturating_sub(finding).as_micros() as u64;
            let most = left.checked_div(page_us).unwrap_or(u64::MAX).max(LEAST_AT_MOST);
            let seen_look;
            (seen_look, wanted) = look(sample.of(7), &blocks, most);
            prop_assert!(wanted >= LEAST.min(all), "{wanted} of {all} at one in {}", sample.one_in());
            let before = sample.of(7).upto;
            let mut seen = Seen::default();
            seen.add(sample.of(7), &seen_look, &Took { finding, cut: wanted > most, ..Took::default() });
            let narrower = sample.fit(&seen, 0);
            prop_assert_eq!(narrower, sample.of(7).upto != before);
            prop_assert!(sample.of(7).upto <= before, "it never widens");
        }
        let always_slow = costs.iter().all(|&(finding, _)| finding > limit_us);
        prop_assert!(!always_slow || wanted <= LEAST_AT_MOST.max(limit_us * 1000 / READ_NS), "{wanted}");
    }

    /// A machine on which a look costs much more than is guessed comes to a sample that is read
    /// whole in each.
    #[test]
    fn on_a_slow_machine_every_look_is_whole_in_the_end(blocks in array(), page_us in 2..60_u64) {
        let limit = Duration::from_millis(2);
        let mut sample = Sample::new(limit, u64::MAX);
        sample.begin(blocks.values().sum(), false);
        let most = (limit.as_micros() as u64 / page_us).max(LEAST_AT_MOST);
        let cuts = (0..60).map(|_| {
            let (seen_look, wanted) = look(sample.of(7), &blocks, most);
            let mut seen = Seen::default();
            seen.add(sample.of(7), &seen_look, &Took { cut: wanted > most, ..Took::default() });
            sample.fit(&seen, 0);
            wanted > most
        });
        let last_cut = cuts.collect::<Vec<_>>().iter().rposition(|&cut| cut);
        prop_assert!(last_cut < Some(40), "{last_cut:?}, one in {}", sample.one_in());
    }
}

/// All of what there is to read lies in the upper half of the places.
#[test]
fn places_far_up_are_told_apart() {
    let blocks: BTreeMap<u64, u64> = [(0, 13), (1, 29), (2, 8), (56_468_471, 462), (56_468_472, 512)].into();
    let mut sample = Sample::new(Duration::from_millis(2), u64::MAX);
    for _ in 0..4 {
        let (seen_look, wanted) = look(sample.of(7), &blocks, LEAST_AT_MOST);
        let mut seen = Seen::default();
        seen.add(sample.of(7), &seen_look, &Took { cut: wanted > LEAST_AT_MOST, ..Took::default() });
        sample.fit(&seen, 0);
    }
    let wanted = look(sample.of(7), &blocks, LEAST_AT_MOST).1;
    assert!((LEAST..=LEAST_AT_MOST).contains(&wanted), "{wanted}");
}

#[test]
fn memory_is_a_limit_whatever_was_left_out_before() {
    let mut sample = Sample::new(Duration::from_secs(1), 100 * BLOCK);
    sample.begin(400 * LEAST, false);
    assert_eq!(sample.one_in(), 4);
    // The watched part has grown to twice as much as may be recorded.
    assert!(sample.fit(&Seen::default(), 200 * BLOCK));
    assert_eq!(sample.one_in(), 8);
    assert!(!sample.fit(&Seen::default(), 100 * BLOCK));
}
