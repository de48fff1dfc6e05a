//! Records of changed lines, laid down: at a node, and where its memory is mapped.

use crate::mapping::Mapping;
use farmem_protocol::lines::conditional::Refused;
use farmem_protocol::lines::{Record, runs_of};
use farmem_sys::lines::{Hasher, Seed, Unit};
use zerocopy::byteorder::little_endian::U64;

/// The key of the last record with conditions. All records of a run have the same; whoever changes it each time pays
/// for a hundred words of SipHash, some microseconds of the node's, with each record.
#[derive(Default)]
pub struct LastKey(Option<Box<Hasher>>);

impl LastKey {
    fn of(&mut self, seed: &Seed) -> &Hasher {
        let hasher = self.0.get_or_insert_with(|| Box::new(Hasher::new(seed, Unit::best())));
        if hasher.seed() != seed {
            **hasher = Hasher::new(seed, Unit::best());
        }
        hasher
    }
}

/// Lays a record's lines down. `None` when some lie outside.
pub fn lay(record: Record<'_>, memory: &Mapping) -> Option<()> {
    record.runs().all(|(offset, bytes)| memory.write_lines(offset, bytes)).then_some(())
}

/// Lays the lines of those pages down whose lines are as they `was`; which are not. `None` when some lie outside.
///
/// Only lines that are about to be written are read: they are on their way into the cache anyhow.
pub fn lay_if(record: Record<'_>, was: &[U64], seed: &Seed, key: &mut LastKey, memory: &Mapping) -> Option<Refused> {
    let hasher = key.of(seed);
    let mut refused = Refused::default();
    for (nth, ((base, lines, bytes), was)) in record.by_page().zip(was).enumerate() {
        if memory.sum_lines(hasher, base, lines)? != was.get() {
            refused.add(nth);
        } else if !runs_of(base, lines, bytes).all(|(offset, bytes)| memory.write_lines(offset, bytes)) {
            return None;
        }
    }
    Some(refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::wire::VERSION;

    /// What both ends compute is the protocol's: whoever moves these numbers moves [`VERSION`].
    #[test]
    fn conditions_are_the_same_in_all_builds_of_a_version() {
        let seed = std::array::from_fn(|i| i as u8);
        let page = std::array::from_fn(|i| (i * 7 + i / 64 * 13) as u8);
        let hasher = Hasher::new(&seed, Unit::Scalar);
        let sums = [1, 1 << 63 | 6, u64::MAX].map(|lines| hasher.sum_in(&page, lines));
        assert_eq!(
            (VERSION, sums),
            (5, [11_445_477_771_047_710_088, 1_958_720_322_299_808_386, 2_808_434_593_707_523_677])
        );
    }
}
