use super::*;

/// Runs accesses through a prefetcher whose local memory is endless; returns faults and the tally.
fn faults(accesses: impl IntoIterator<Item = u64>) -> (usize, Tally) {
    let mut prefetcher = Prefetcher::new();
    let mut window = Window::new();
    let mut local = std::collections::HashSet::new();
    let mut faults = 0;
    for page in accesses {
        if local.insert(page) {
            faults += 1;
            prefetcher.fault(PageId(page), &mut window, |p| local.contains(&p.0));
            let fetched = window.pages().filter(|p| local.insert(p.0)).count();
            if !window.is_empty() {
                prefetcher.fetched(fetched as u32);
            }
        }
    }
    (faults, prefetcher.tally())
}

fn noise(n: u64) -> u64 {
    farmem_protocol::random::hash(n) >> 32
}

#[test]
fn a_scan_faults_once_a_window_up_or_down() {
    for (scan, name) in [((0..10_000).collect::<Vec<_>>(), "up"), ((1_000..11_000).rev().collect(), "down")] {
        let (faults, tally) = faults(scan);
        assert!(faults < 10_000 / 64 + 10, "{name}: {faults}");
        assert!(tally.used * 100 >= tally.issued * 98, "{name}: {tally:?}");
    }
}

#[test]
fn a_stride_of_any_length_is_found() {
    for stride in [2, 3, 17, 500, 4097] {
        let (faults, tally) = faults((0..2_000).map(|i| 5 + i * stride));
        assert!(faults < 60, "stride {stride}: {faults}");
        assert!(tally.used * 100 >= tally.issued * 90, "stride {stride}: {tally:?}");
    }
}

#[test]
fn a_stride_is_no_stream_of_every_page() {
    // Seven passes, each a page further on: the first pages of two passes are neighbours.
    let passes = (0..7).flat_map(|first| (0..2_000).map(move |i| first + i * 7));
    let (faults, tally) = faults(passes);
    assert!(faults < 14_000 / 20, "{faults}");
    assert!(tally.issued < 14_000 * 11 / 10, "{tally:?}");
}

#[test]
fn sixteen_interleaved_scans_are_followed() {
    let (faults, _) = faults((0..16_000).map(|i| (i % 16) * 1_000_000 + i / 16));
    // 250 would be one a window. Some go to the trend from scan to scan before each is known.
    assert!(faults < 16_000 / 20, "{faults}");
}

#[test]
fn a_trend_shows_through_noise() {
    let (faults, _) = faults((0..10_000).map(|i| if i % 5 == 4 { 1 << 32 | noise(i) } else { (i - i / 5) * 100 }));
    assert!(faults < 2_000 + 500, "the 2 000 random ones and few of the rest: {faults}");
}

#[test]
fn random_faults_bring_almost_nothing_along() {
    let (_, tally) = faults((0..20_000).map(|i| noise(i) % 200_000));
    assert!(tally.issued < 400, "{tally:?}");
}

#[test]
fn streams_that_ended_die_out_under_random_faults() {
    const PAGES: u64 = 1 << 16;
    let scans = (0..200 * 16).map(|i| i % 16 * (PAGES / 16) + i / 16);
    let (_, before) = faults(scans.clone());
    let (_, after) = faults(scans.chain((0..100_000).map(|i| noise(i) % PAGES)));
    let issued = after.issued - before.issued;
    assert!(issued < 5_000, "16 streams of a small array, and chance hits them often: {issued} of 100 000");
}

#[test]
fn windows_stay_in_the_address_space() {
    let (_, tally) = faults((0..100).rev().chain((MAX_PAGE - 100)..=MAX_PAGE));
    assert!(tally.issued <= 200, "{tally:?}");
    let mut prefetcher = Prefetcher::new();
    let mut window = Window::new();
    for page in [9, 8, 7, 6, 5, 4, 3, 2, 1, 0] {
        prefetcher.fault(PageId(page), &mut window, |_| true);
        assert!(window.pages().all(|p| p.0 < page));
    }
}

#[test]
fn a_lost_window_halves_the_next() {
    let mut prefetcher = Prefetcher::new();
    let mut window = Window::new();
    for page in [0, 1, 4, 9, 18] {
        prefetcher.fault(PageId(page), &mut window, |_| true);
    }
    assert_eq!(window.len(), 16);
    assert_eq!(window.trip_wire(), Some(PageId(35)));
    prefetcher.fault(PageId(19), &mut window, |_| true);
    assert_eq!(window.len(), 8, "page 19 was in the window, and yet it faulted");
}

#[test]
fn a_shortened_window_expects_its_next_fault_earlier() {
    let mut prefetcher = Prefetcher::new();
    let mut window = Window::new();
    for page in [0, 1, 4, 9] {
        prefetcher.fault(PageId(page), &mut window, |_| true);
    }
    prefetcher.shortened(&mut window, 3);
    assert_eq!((window.len(), window.trip_wire()), (3, Some(PageId(13))));
    prefetcher.fault(PageId(13), &mut window, |_| true);
    assert_eq!(window.len(), 6);
}

#[test]
fn fresh_memory_is_filled_in_growing_batches_where_it_is_dense() {
    let mut first = FirstTouch::new();
    let mut sizes = Vec::new();
    let mut page = 100;
    for _ in 0..9 {
        let batch = first.touch(PageId(page));
        sizes.push(batch.pages);
        page = batch.first.0 + batch.pages as u64;
    }
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    assert!((0..100).all(|i| first.touch(PageId(10_000 + noise(i))).pages == 1), "sparse touches stay sparse");
}

#[test]
fn fresh_memory_is_filled_downwards_too() {
    let mut first = FirstTouch::new();
    let mut page = 1_000;
    for pages in [1, 2, 4, 8] {
        let batch = first.touch(PageId(page));
        assert_eq!((batch.pages, batch.first.0), (pages, page + 1 - pages as u64));
        page = batch.first.0 - 1;
    }
}

#[test]
fn a_run_goes_on_where_it_was_cut_short() {
    let mut first = FirstTouch::new();
    // A heap that grows by `step` pages, upwards or downwards, and is touched all over: dense
    // before.
    for (step, down) in [33, 8, 3, 2, 1].into_iter().flat_map(|step| [(step, false), (step, true)]) {
        let (mut page, mut end, mut touches, mut in_vain) = (300_000u64, 300_512u64, 0, 0);
        let to_page = |at: u64| if down { 600_000 - at } else { at };
        while page < 310_000 {
            let batch = first.touch(PageId(to_page(page)));
            let filled = (batch.pages as u64).min(end - page);
            if filled < batch.pages as u64 {
                first.shortened(batch, filled as usize);
            }
            (touches, in_vain) = (touches + 1, in_vain + batch.pages as u64 - filled);
            page += filled;
            end += if page == end { step } else { 0 };
        }
        assert!(touches < 10_000 / step * 3 / 2, "{touches} by {step}");
        assert!(in_vain <= 3 * 10_000, "{in_vain} by {step}");
    }
}
