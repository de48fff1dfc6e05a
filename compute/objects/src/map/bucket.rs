//! Where the entries of a hash map are: the layout of a bucket, and the directory that leads to
//! buckets. Pure: a map keeps its buckets, and moves their bytes.
//!
//! An entry lies near the slot that its hash names. So a lookup can have the CPU fetch the entry's
//! line and the tags' at once, before it knows the slot. The tags alone decide where an entry is.

use crate::Far;
use crate::boxes::check;
use crate::frames::{copied, slice, slice_mut};
use std::marker::PhantomData;

/// Bytes of a bucket.
const BUCKET: usize = 512;
/// Tags of a bucket: entries at most.
const TAGS: usize = 32;
/// Directory bits beyond those that the buckets need, at most.
const SPREAD: u32 = 6;
/// Directory bits at most.
const MOST_BITS: u32 = 30;
/// No bucket is chained.
const NONE: u32 = u32::MAX;
const LOW: u64 = 0x0101_0101_0101_0101;

/// The bytes of a bucket.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone)]
#[repr(C, align(16))]
pub struct Bytes([u8; BUCKET]);

impl Bytes {
    pub const EMPTY: Bytes = Bytes([0; BUCKET]);
}

#[inline]
fn tag(hash: u64) -> u8 {
    hash as u8 | 0x80
}

/// The top bits of a hash.
#[inline]
fn index(hash: u64, bits: u32) -> usize {
    (hash >> 1 >> (63 - bits)) as usize
}

/// The entries of a bucket.
pub struct Entries<K, V>(PhantomData<(K, V)>);

impl<K: Far + Eq, V: Far> Entries<K, V> {
    /// Entries of a bucket. Keys and values that are empty, or larger than four to a bucket, do not
    /// compile.
    pub const SLOTS: usize = {
        check::<K>();
        check::<V>();
        assert!(align_of::<K>() <= 16 && align_of::<V>() <= 16);
        let fit = (BUCKET - TAGS) / Self::ENTRY;
        assert!(fit >= 4, "an entry of a FarHashMap has 120 bytes at most: keep larger values in a FarVec");
        if fit < TAGS { fit } else { TAGS }
    };
    /// Where an entry's value begins.
    const VALUE: usize = size_of::<K>().next_multiple_of(align_of::<V>());
    /// Bytes of an entry. Its key and its value mostly share a line of the CPU's cache.
    const ENTRY: usize = {
        let align = if align_of::<K>() > align_of::<V>() { align_of::<K>() } else { align_of::<V>() };
        (Self::VALUE + size_of::<V>()).next_multiple_of(align)
    };

    #[inline]
    pub fn key(bytes: &Bytes, slot: usize) -> &K {
        let at = TAGS + slot * Self::ENTRY;
        &slice(&bytes.0[at..at + size_of::<K>()])[0]
    }

    #[inline]
    pub fn value(bytes: &Bytes, slot: usize) -> &V {
        let at = TAGS + slot * Self::ENTRY + Self::VALUE;
        &slice(&bytes.0[at..at + size_of::<V>()])[0]
    }

    #[inline]
    pub fn value_mut(bytes: &mut Bytes, slot: usize) -> &mut V {
        let at = TAGS + slot * Self::ENTRY + Self::VALUE;
        &mut slice_mut(&mut bytes.0[at..at + size_of::<V>()])[0]
    }

    /// The slot at which an entry with this hash would best lie. Its bits are neither the
    /// directory's nor the tag's.
    #[inline]
    fn best(hash: u64) -> usize {
        ((hash >> 8 & 0xFFFF) as usize * Self::SLOTS) >> 16
    }

    /// The byte of a bucket at which an entry with this hash most likely lies: for a prefetch.
    #[inline]
    pub fn place_of(hash: u64) -> usize {
        TAGS + Self::best(hash) * Self::ENTRY
    }

    /// Puts an entry into the first free slot from its best one on. There is one, unless the node has
    /// changed the bucket: then the entry is lost with others.
    pub fn place(bytes: &mut Bytes, hash: u64, key: &K, value: V) {
        let best = Self::best(hash);
        let Some(slot) = (best..Self::SLOTS).chain(0..best).find(|&slot| bytes.0[slot] == 0) else { return };
        let at = TAGS + slot * Self::ENTRY;
        bytes.0[at..at + size_of::<K>()].copy_from_slice(key.as_bytes());
        *Self::value_mut(bytes, slot) = value;
        bytes.0[slot] = tag(hash);
    }

    /// The slot of a key in a bucket.
    #[inline]
    pub fn slot(bytes: &Bytes, hash: u64, key: &K) -> Option<usize> {
        let wanted = u64::from(tag(hash)) * LOW;
        // A bit for each slot whose tag is alike, and at times for one behind such a slot: the tag is
        // looked at again. All four words are looked at, because a branch for each costs more.
        let eights = bytes.0[..TAGS].as_chunks::<8>().0.iter().enumerate();
        let alike = eights.fold(0, |alike, (nth, eight)| {
            let differs = u64::from_le_bytes(*eight) ^ wanted;
            let zeros = differs.wrapping_sub(LOW) & !differs & (LOW << 7);
            // The product has the eight bits side by side at its top.
            let bits = (zeros >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            alike | (bits as u32) << (8 * nth)
        });
        // From the best slot on, as entries are placed.
        let best = Self::best(hash);
        let mut alike = alike.rotate_right(best as u32);
        while alike != 0 {
            let slot = (best + alike.trailing_zeros() as usize) % TAGS;
            if bytes.0[slot] == tag(hash) && slot < Self::SLOTS && Self::key(bytes, slot) == key {
                return Some(slot);
            }
            alike &= alike - 1;
        }
        None
    }

    /// Frees a slot. Returns its value.
    pub fn take(bytes: &mut Bytes, slot: usize) -> V {
        bytes.0[slot] = 0;
        copied(Self::value(bytes, slot).as_bytes())
    }

    /// The slots with an entry.
    pub fn used(bytes: &Bytes) -> impl Iterator<Item = usize> {
        (0..Self::SLOTS).filter(|&slot| bytes.0[slot] != 0)
    }

    /// Parts the entries of a bucket by one more bit of their hashes. Both halves, and how many each
    /// has.
    pub fn halves(old: &Bytes, bits: u32, hash: impl Fn(&K) -> u64) -> ([Bytes; 2], [u8; 2]) {
        let (mut halves, mut lens) = ([Bytes::EMPTY, Bytes::EMPTY], [0u8; 2]);
        for slot in Self::used(old) {
            let (key, value) = (Self::key(old, slot), Self::value(old, slot));
            let of_it = hash(key);
            let half = (of_it >> (63 - bits) & 1) as usize;
            Self::place(&mut halves[half], of_it, key, copied::<V>(value.as_bytes()));
            lens[half] += 1;
        }
        (halves, lens)
    }
}

/// The local facts about a bucket. A lookup that finds its key does not need them.
struct Note {
    /// Bits of the hash that all its entries share.
    bits: u8,
    /// Entries.
    len: u8,
    /// The bucket that takes what has no room here.
    next: u32,
}

/// What makes room for one more entry, or comes nearer to that.
#[derive(Clone, Copy)]
pub enum Growth {
    /// The first bucket.
    First,
    /// A bucket is parted by the bit behind so many.
    Split(usize, u32),
    /// A further bucket behind this one.
    Chain(usize),
}

/// Which bucket an entry is in, by its hash. Buckets are numbered as they are added.
#[derive(Default)]
pub struct Directory {
    entries: Vec<u32>,
    bits: u32,
    /// Of each bucket.
    notes: Vec<Note>,
    len: usize,
}

impl Directory {
    /// Entries of the map.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The first bucket for a hash. `None`: there is no bucket yet.
    #[inline]
    pub fn first(&self, hash: u64) -> Option<usize> {
        self.entries.get(index(hash, self.bits)).map(|&bucket| bucket as usize)
    }

    /// The bucket that takes what has no room in another.
    #[inline]
    pub fn after(&self, bucket: usize) -> Option<usize> {
        let next = self.notes[bucket].next;
        (next != NONE).then_some(next as usize)
    }

    /// A bucket that takes one more entry with this hash. `slots`: entries of a bucket.
    pub fn with_room(&self, hash: u64, slots: usize) -> Option<usize> {
        let mut at = self.first(hash);
        while let Some(bucket) = at.filter(|&bucket| self.notes[bucket].len as usize == slots) {
            at = self.after(bucket);
        }
        at
    }

    /// A bucket has one entry more.
    pub fn placed(&mut self, bucket: usize) {
        (self.notes[bucket].len, self.len) = (self.notes[bucket].len + 1, self.len + 1);
    }

    /// … or one fewer. A node that lies may have given it more than were put there.
    pub fn taken(&mut self, bucket: usize) {
        let note = &mut self.notes[bucket];
        (note.len, self.len) = (note.len.saturating_sub(1), self.len.saturating_sub(1));
    }

    /// How there is to be room for one more entry with this hash.
    pub fn growth(&self, hash: u64) -> Growth {
        let Some(first) = self.first(hash) else { return Growth::First };
        let bits = u32::from(self.notes[first].bits);
        let most = (self.notes.len().ilog2() + SPREAD).min(MOST_BITS);
        if self.after(first).is_none() && bits < most {
            return Growth::Split(first, bits);
        }
        let mut last = first;
        while let Some(next) = self.after(last) {
            last = next;
        }
        Growth::Chain(last)
    }

    /// The map has a bucket more, for this. `lens`: of a split, the entries of both halves.
    pub fn grown(&mut self, growth: Growth, hash: u64, lens: [u8; 2]) {
        let number = self.notes.len() as u32;
        let (bits, len) = match growth {
            Growth::First => {
                self.entries = vec![0];
                (0, 0)
            }
            Growth::Chain(last) => {
                self.notes[last].next = number;
                (self.notes[last].bits, 0)
            }
            Growth::Split(bucket, bits) => {
                if bits == self.bits {
                    self.entries = self.entries.iter().flat_map(|&bucket| [bucket; 2]).collect();
                    self.bits += 1;
                }
                let entries = 1 << (self.bits - bits);
                let from = index(hash, bits) * entries;
                self.entries[from + entries / 2..from + entries].fill(number);
                let note = &mut self.notes[bucket];
                (note.bits, note.len) = (bits as u8 + 1, lens[0]);
                (note.bits, lens[1])
            }
        };
        self.notes.push(Note { bits, len, next: NONE });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A node may answer any bytes. Entries may be lost or wrong then, and nothing else happens.
    #[test]
    fn any_bytes_are_a_bucket() {
        fn holds<K: Far + Eq + Clone, V: Far + Clone>(bytes: &[u8], key: &K, value: &V) {
            let mut bucket = Bytes([0; BUCKET]);
            bucket.0.copy_from_slice(bytes);
            let mut other = bucket.clone();
            let hash = u64::from(bytes[0]) << 56 | u64::from(bytes[1]);
            let found = Entries::<K, V>::slot(&bucket, hash, key);
            assert!(found.is_none_or(|slot| slot < Entries::<K, V>::SLOTS));
            let before = Entries::<K, V>::used(&bucket).count();
            Entries::<K, V>::place(&mut bucket, hash, key, value.clone());
            let after = Entries::<K, V>::used(&bucket).count();
            assert_eq!(after, (before + 1).min(Entries::<K, V>::SLOTS));
            let (_, lens) = Entries::<K, V>::halves(&other, 3, |_| hash);
            assert_eq!(lens.iter().map(|&len| usize::from(len)).sum::<usize>(), before);
            let first = Entries::<K, V>::used(&other).next();
            first.map(|slot| Entries::<K, V>::take(&mut other, slot));
        }
        let tags = prop::collection::vec(prop_oneof![Just(0u8), Just(0x80), any::<u8>()], TAGS);
        let config = ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(tags in tags, rest in prop::collection::vec(any::<u8>(), BUCKET - TAGS))| {
            let bytes = [tags, rest].concat();
            holds::<u64, [u64; 3]>(&bytes, &7, &[1; 3]);
            holds::<u8, u8>(&bytes, &7, &1);
            holds::<[u8; 100], [u8; 20]>(&bytes, &[3; 100], &[1; 20]);
            // Every slot is in use, says the node, and none of what follows.
            let full = [vec![0xFF; Entries::<u64, [u64; 3]>::SLOTS], vec![0; BUCKET]].concat();
            holds::<u64, [u64; 3]>(&full[..BUCKET], &7, &[1; 3]);
        });
    }

    #[test]
    fn a_directory_bears_more_removals_than_entries() {
        let mut directory = Directory::default();
        directory.grown(Growth::First, 1, [0; 2]);
        directory.placed(0);
        (0..3).for_each(|_| directory.taken(0));
        assert_eq!((directory.len(), directory.with_room(1, 4)), (0, Some(0)));
    }
}
