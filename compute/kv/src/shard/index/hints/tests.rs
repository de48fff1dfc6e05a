use super::*;

fn hints(buckets: u64) -> Hints {
    let mut hints = Hints::new(1 << 20, Geometry::STORE);
    let bytes = hints.step() * (buckets >> hints.shift).max(1);
    hints.resize(bytes);
    hints
}

fn known(key: &[u8], n: u64, epoch: u64) -> (Hash, Known) {
    let hash = Hash::of(key);
    let table = 1 << 20;
    let slot_at = Geometry::STORE.bucket(table, hash.buckets(126)[n as usize % 2]) + n % 8 * 8;
    let slot = Slot::new(hash.fingerprint(), 2, (n % 4096) as u16, (1 + n) * 64);
    (hash, Known { table, slot_at, slot, len: 192, expiry: 0, epoch, era: 0 })
}

/// A hint stays old however often the stamps come round, also if the table is resized meanwhile.
#[test]
fn a_stamp_that_comes_round_is_not_believed() {
    for resizes in [false, true] {
        let mut hints = hints(128);
        hints.at(0, 10);
        for n in 0..900u64 {
            let key = n.to_le_bytes();
            let (hash, known) = known(&key, n, 10);
            let (place, _) = hints.add(&key, hash);
            hints.note(place, &known, hints.position(&known, hash).expect("in its bucket"));
        }
        for epoch in 10..2000u64 {
            hints.at(0, epoch);
            if resizes && epoch % 97 == 0 {
                let now = hints.bytes();
                hints.resize(if epoch % 2 == 0 { now * 3 / 2 } else { now * 3 / 4 });
            }
            let mut fresh = 0;
            for n in 0..900u64 {
                let key = n.to_le_bytes();
                let (hash, of) = known(&key, n, 10);
                let Some(place) = hints.find(&key, hash, |_| false) else { continue };
                let known = hints.known(place, hash, of.table);
                assert_eq!((known.slot, known.slot_at), (of.slot, of.slot_at));
                fresh += u64::from(known.epoch + 1 >= epoch);
            }
            assert!(if epoch <= 11 { fresh > 500 } else { fresh == 0 }, "{epoch}: {fresh}");
        }
    }
}

#[test]
fn a_table_that_is_resized_keeps_most() {
    let mut hints = hints(64);
    let (mut there, mut wanted) = (Vec::new(), 0);
    for n in 0..20_000u64 {
        let key = n.to_le_bytes();
        let (hash, known) = known(&key, n, 0);
        if hints.is_full(hash) && hints.is_filled() {
            hints.resize(hints.bytes() + hints.step());
        }
        let (place, _) = hints.add(&key, hash);
        hints.note(place, &known, hints.position(&known, hash).expect("in its bucket"));
        wanted += 1;
        there.push((key, hash, known));
    }
    let found = |hints: &Hints| {
        let found = there.iter().filter(|(key, hash, of)| {
            let place = hints.find(key, *hash, |_| false);
            place.is_some_and(|place| hints.known(place, *hash, of.table).slot == of.slot)
        });
        found.count() as u64
    };
    // A bucket that is full before three fifths of all are gives hints up, which come again with
    // their keys.
    assert!(found(&hints) == hints.len() && hints.len() * 5 > wanted * 4, "{} of {wanted}", hints.len());
    hints.resize(hints.bytes() / 2);
    assert!(found(&hints) == hints.len() && hints.len() * 2 > wanted, "{} of {wanted}", hints.len());
    hints.resize(0);
    assert_eq!((hints.len(), hints.bytes(), found(&hints)), (0, 0, 0));
}
