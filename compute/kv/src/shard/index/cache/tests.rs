use super::*;
use crate::object::Value;
use std::collections::HashMap;

const GEOMETRY: Geometry = Geometry::STORE;
const TABLE: At = 1 << 20;

fn known(hash: Hash, n: u64) -> Known {
    let slot_at = GEOMETRY.bucket(TABLE, hash.buckets(GEOMETRY.buckets)[n as usize % 2]) + n % 8 * 8;
    let slot = Slot::new(hash.fingerprint(), 1, (n >> 8) as u16, (1 + n) * 64);
    Known { table: TABLE, slot_at, slot, len: 1, expiry: 0, epoch: 0, era: 0 }
}

fn key(n: u64) -> (Vec<u8>, Hash, Object) {
    let key = format!("key{n}").into_bytes();
    let object = Object::of(&key, &Value::string(vec![7; 100]));
    (key.clone(), Hash::of(&key), object)
}

/// Counts all anew, and looks whether every entry is in a queue, and has a hint.
fn count(cache: &Cache) {
    let entries: Vec<&Entry> = cache.entries.iter().flatten().collect();
    let all: u64 = entries.iter().flat_map(|entry| &entry.object).map(held).sum();
    assert_eq!((cache.held, cache.count as usize), (all, entries.len()));
    let mut met = 0;
    for (queue, line) in cache.lines.iter().enumerate() {
        let (mut n, mut last, mut bytes, mut len) = (line.first, NONE, 0, 0);
        while n != NONE {
            let entry = cache.entry(n);
            assert!(
                entry.queue as usize == queue && entry.before == last && cache.hints.find_kept(entry.hash, n).is_some()
            );
            bytes += ENTRY_BYTES + entry.object.as_ref().map_or(0, held);
            (last, n, len) = (n, entry.behind, len + 1);
        }
        assert_eq!((line.last, line.bytes, line.len), (last, bytes, len));
        met += len;
    }
    assert_eq!(met, u64::from(cache.count));
    assert!(cache.bytes() <= cache.budget, "{} of {}", cache.bytes(), cache.budget);
}

#[test]
fn it_is_bounded_and_keeps_what_is_used() {
    let mut cache = Cache::new(100_000, GEOMETRY);
    let (hot, hot_hash, hot_object) = key(0);
    cache.put(&hot, hot_hash, known(hot_hash, 0), Some(&hot_object));
    for n in 1..20_000 {
        let (key, hash, object) = key(n);
        cache.put(&key, hash, known(hash, n), (n % 5 > 0).then_some(&object));
        if n % 500 == 0 {
            count(&cache);
        }
        let (slot, object) = cache.get(&hot, hot_hash, TABLE).expect("it is used");
        assert!(slot.slot == known(hot_hash, 0).slot && object == Some(&hot_object), "{n}");
        if n % 3 == 0 {
            cache.forget(&key, hash);
            assert!(cache.get(&key, hash, TABLE).is_none());
        }
    }
    cache.clear();
    assert!(cache.get(&hot, hot_hash, TABLE).is_none() && cache.bytes() == 0);
}

#[test]
fn one_pass_over_many_keys_does_not_push_out_what_is_used() {
    let mut cache = Cache::new(200_000, GEOMETRY);
    for round in 0..3 {
        for n in 0..250 {
            let (key, hash, object) = key(n);
            if round == 0 {
                cache.put(&key, hash, known(hash, n), Some(&object));
            }
            cache.get(&key, hash, TABLE);
        }
    }
    for n in 1000..20_000 {
        let (key, hash, object) = key(n);
        cache.put(&key, hash, known(hash, n), Some(&object));
    }
    let kept = (0..250).filter(|&n| {
        let (key, hash, _) = key(n);
        cache.get(&key, hash, TABLE).is_some_and(|(_, object)| object.is_some())
    });
    let kept = kept.count();
    assert!(kept > 200, "{kept}");
}

/// Of keys that are used alike, most slots are known by a tenth of what the objects take.
#[test]
fn a_tenth_of_the_memory_knows_most_slots() {
    const KEYS: u64 = 20_000;
    let mut cache = Cache::new(KEYS * 18, GEOMETRY);
    let mut seed = 1u64;
    let (mut cold, mut all) = (0, 0);
    for n in 0..8 * KEYS {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let (key, hash, object) = key((seed >> 33) % KEYS);
        let there = cache.get(&key, hash, TABLE).is_some();
        if n > 4 * KEYS {
            (cold, all) = (cold + u64::from(!there), all + 1);
        }
        cache.put(&key, hash, known(hash, n), Some(&object));
    }
    count(&cache);
    assert!(cold * 4 < all, "{cold} of {all}");
}

/// What is known in the end of each key.
struct Model {
    known: Known,
    object: Object,
}

/// Random calls, and what the plain model says: nothing that is not so, nothing newer than it is.
/// Some keys share their whole hash. False: a mistake was noticed.
fn agrees(seed: u64, budget: u64, blind: bool) -> bool {
    let mut cache = Cache::new(budget, GEOMETRY);
    if blind {
        cache.hints.be_blind();
    }
    let mut seed = seed;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % bound
    };
    let mut model: HashMap<Vec<u8>, Model> = HashMap::new();
    let (mut era, mut epoch) = (0u32, 1u64);
    for step in 0..20_000u64 {
        let n = random(600);
        let key = format!("key{n}").into_bytes();
        let hash = Hash::of(format!("key{}", n / 3).as_bytes());
        match random(100) {
            0 => epoch += 1 + random(8) / 7,
            1 if random(10) == 0 => era = if era > 0 { 0 } else { step as u32 },
            2..40 => {
                let bytes = 20 + random(12) as usize * if random(20) == 0 { 100 } else { 10 };
                let object = Object::of(&key, &Value::string(vec![step as u8; bytes]));
                let expiry = random(5) / 4 * 77;
                let known = Known { len: object.len(), expiry, epoch, era, ..known(hash, step) };
                let object = Object::new(
                    hash,
                    &key,
                    &Value { expiry: Some(expiry).filter(|&at| at > 0), ..Value::string(object.value()) },
                    1,
                    1,
                );
                cache.at(era, epoch);
                cache.put(&key, hash, known, (random(4) > 0).then_some(&object));
                model.insert(key, Model { known, object });
            }
            40..45 => {
                cache.forget(&key, hash);
                model.remove(&key);
            }
            45 => {
                cache.forget_hash(hash);
                (0..3).for_each(|other| drop(model.remove(format!("key{}", n / 3 * 3 + other).as_bytes())));
            }
            46..60 => {
                cache.at(era, epoch);
                let Some((place, known)) = cache.place(&key, hash, TABLE) else { continue };
                let Some(is) = model.get_mut(&key) else { return false };
                if known.slot != is.known.slot {
                    return false;
                }
                let lent = place.and_then(|n| cache.lend(n));
                if lent.is_some_and(|object| object != is.object) {
                    return false;
                }
                if random(3) == 0 {
                    cache.forget(&key, hash);
                    model.remove(&key);
                    continue;
                }
                let object = Object::new(hash, &key, &Value::string(vec![step as u8; random(200) as usize]), 1, 1);
                let known = Known { slot: Slot::new(hash.fingerprint(), 3, 5, step * 64 + 64), ..known };
                let known = Known { len: object.len(), expiry: 0, epoch, era, ..known };
                cache.renew(place, (&key, hash), known, object.clone());
                *is = Model { known, object };
            }
            _ => {
                cache.at(era, epoch);
                let Some((known, object)) = cache.get(&key, hash, TABLE) else { continue };
                let Some(is) = model.get(&key) else { return false };
                let same = (known.slot, known.slot_at) == (is.known.slot, is.known.slot_at)
                    && (known.expiry == 0) == (is.known.expiry == 0)
                    && object.is_none_or(|object| *object == is.object);
                let no_newer = known.epoch <= is.known.epoch && (known.era == 0 || known.era == is.known.era);
                if !same || !no_newer {
                    return false;
                }
            }
        }
        if step % 97 == 0 {
            count(&cache);
        }
    }
    true
}

#[test]
fn it_tells_nothing_but_what_it_was_told() {
    for seed in 0..12 {
        for budget in [0, 1000, 3 << 10, 20_000, 200_000] {
            assert!(agrees(seed, budget, false), "seed {seed}, {budget} bytes");
        }
    }
    assert!((0..3).any(|seed| !agrees(seed, 200_000, true)), "keys of one hash were not told apart, unnoticed");
}
