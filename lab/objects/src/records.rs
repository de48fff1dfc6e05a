//! Records of 64 bytes in a vector: the sum of a field where another is small, and a word of each of
//! many records. A node that computes does both where the records are.

use anyhow::Result;
use farmem_objects::{FarVec, Field, Heap};

use super::{Object, Options, Places, Work, best, in_order, object};

/// The field that is tested, and the one that is summed: bytes.
const TESTED: usize = 8;
const SUMMED: usize = 24;
/// About a tenth of the records pass.
const MOST: u64 = 3000;

fn record(n: usize) -> Object {
    let mut record = object(n as u64);
    record[TESTED / 8] = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 49;
    record
}

/// Places of the records of which a word is asked for.
fn places(options: &Options) -> Vec<usize> {
    let mut places = Places(options.seed);
    (0..options.accesses).map(|_| places.next(options.objects)).collect()
}

/// Near.
pub fn near(options: &Options, work: Work) -> Result<(f64, u64)> {
    let records: Vec<Object> = (0..options.objects).map(record).collect();
    if work == Work::Filter {
        in_order(&records, options);
        return best(2, options.objects, || {
            let some = records.iter().filter(|record| record[TESTED / 8] <= MOST);
            Ok(some.fold(0u64, |sum, record| sum.wrapping_add(record[SUMMED / 8] & 0xFFFF_FFFF)))
        });
    }
    let places = places(options);
    best(2, places.len(), || {
        let mut sum = 0u64;
        for some in places.chunks(63) {
            if options.hints {
                farmem_hints::read_each(&some.iter().map(|&at| &records[at]).collect::<Vec<_>>());
            }
            sum = some.iter().fold(sum, |sum, &at| sum.wrapping_add(records[at][SUMMED / 8]));
        }
        Ok(sum)
    })
}

/// Far.
pub fn far(heap: &Heap, options: &Options, work: Work) -> Result<(f64, u64)> {
    let mut records: FarVec<Object> = heap.vec();
    for from in (0..options.objects).step_by(1 << 12) {
        let some: Vec<Object> = (from..options.objects.min(from + (1 << 12))).map(record).collect();
        records.extend_from_slice(&some)?;
    }
    if work == Work::Filter {
        return best(2, options.objects, || {
            let some = records.filter(Field::u64(TESTED).at_most(MOST));
            Ok(some.sum(Field::u32(SUMMED))?)
        });
    }
    let places = places(options);
    best(2, places.len(), || {
        let found = records.gather(&places)?;
        Ok(found.iter().fold(0u64, |sum, record| sum.wrapping_add(record[SUMMED / 8])))
    })
}
