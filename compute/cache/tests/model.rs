//! Every policy against the plainest model there is: the set of local pages.

use farmem_cache::fifo::{Clock, Fifo};
use farmem_cache::segments::{S3_FIFO, STANDBY, Segments, TWO_QUEUE};
use farmem_cache::trace::{Decoder, Encoder, Kind, RECORD_BYTES, Record};
use farmem_cache::{Arrival, Policy, recommended};
use farmem_protocol::addr::PageId;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Debug)]
enum Step {
    Arrived(u64, Arrival),
    Victims(usize),
    Kept(u64),
    Gone(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let how =
        prop_oneof![Just(Arrival::FirstTouch), Just(Arrival::Demand), Just(Arrival::Prefetch), Just(Arrival::Rescue)];
    let page = || prop_oneof![0..96u64, (0..96u64).prop_map(|p| p << 27)];
    prop_oneof![
        6 => (page(), how).prop_map(|(p, h)| Step::Arrived(p, h)),
        2 => (0..40usize).prop_map(Step::Victims),
        1 => page().prop_map(Step::Kept),
        1 => page().prop_map(Step::Gone),
    ]
}

fn policies(capacity: usize) -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Fifo::new(capacity)),
        Box::new(Clock::new(capacity)),
        Box::new(Segments::new(capacity, TWO_QUEUE)),
        Box::new(Segments::new(capacity, S3_FIFO)),
        Box::new(Segments::new(capacity, STANDBY)),
        recommended(capacity),
    ]
}

proptest! {
    #[test]
    fn no_page_is_lost_doubled_or_invented(
        capacity in 1..150usize,
        steps in proptest::collection::vec(step(), 1..400),
    ) {
        for mut policy in policies(capacity) {
            let mut local = BTreeSet::new();
            let mut out = Vec::new();
            for step in &steps {
                match *step {
                    Step::Arrived(page, how) => {
                        policy.arrived(PageId(page), how);
                        local.insert(page);
                    }
                    Step::Victims(n) => {
                        out.clear();
                        policy.victims(n, &mut out);
                        prop_assert_eq!(out.len(), n.min(local.len()));
                        prop_assert!(out.windows(2).all(|w| w[0] < w[1]), "sorted and distinct");
                        for victim in &out {
                            prop_assert!(local.remove(&victim.0), "a victim that was not local");
                        }
                    }
                    Step::Kept(page) => {
                        policy.kept(PageId(page));
                        local.insert(page);
                    }
                    Step::Gone(page) => {
                        policy.gone(PageId(page));
                        local.remove(&page);
                    }
                }
                prop_assert_eq!(policy.len(), local.len());
            }
            out.clear();
            policy.victims(usize::MAX, &mut out);
            prop_assert!(out.iter().map(|p| p.0).eq(local.iter().copied()), "all of them leave in the end");
            prop_assert!(policy.is_empty());
        }
    }

    #[test]
    fn a_trace_reads_back_as_written_and_whole_up_to_any_cut(
        records in proptest::collection::vec((0..1u64 << 36, 0..4u8, 0..200u32), 0..100),
        cut in any::<prop::sample::Index>(),
    ) {
        let kinds = [Kind::Touch, Kind::Fault, Kind::Fresh, Kind::Gone];
        let records: Vec<Record> = records.into_iter()
            .map(|(page, kind, thread)| Record { page: PageId(page), kind: kinds[kind as usize], thread })
            .collect();
        let (mut encoder, mut bytes) = (Encoder::new(), Vec::new());
        for record in &records {
            let mut to = [0; RECORD_BYTES];
            let n = encoder.encode(*record, &mut to);
            bytes.extend_from_slice(&to[..n]);
        }
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len() + 1)]] {
            let (mut decoder, mut rest, mut read) = (Decoder::new(), bytes, Vec::new());
            while let Some((record, n)) = decoder.decode(rest) {
                read.push(record);
                rest = &rest[n..];
            }
            prop_assert_eq!(&read[..], &records[..read.len()]);
            prop_assert!(rest.len() < RECORD_BYTES);
        }
    }

    #[test]
    fn any_bytes_decode_to_something_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (mut decoder, mut rest) = (Decoder::new(), &bytes[..]);
        while let Some((_, n)) = decoder.decode(rest) {
            prop_assert!(n > 0 && n <= RECORD_BYTES);
            rest = &rest[n..];
        }
    }
}

#[test]
fn a_scan_does_not_wash_out_what_is_in_use() {
    let mut policy = recommended(1000);
    let mut out = Vec::new();
    let mut local = BTreeSet::new();
    let mut faults_on_hot = 0;
    // 300 pages in use, touched often between the steps of an endless scan.
    for step in 0..60_000u64 {
        for page in [step % 300, 1_000 + step] {
            if !local.insert(page) {
                continue;
            }
            faults_on_hot += (page < 300 && step > 30_000) as u64;
            if local.len() > 1000 {
                out.clear();
                policy.victims(64, &mut out);
                out.iter().for_each(|p| _ = local.remove(&p.0));
            }
            policy.arrived(PageId(page), Arrival::Demand);
        }
    }
    // First in, first out faults on every hot page once a thousand steps: 9 000.
    assert!(faults_on_hot < 4_000, "{faults_on_hot}");
}
