//! Ways through all keys of a store: some from a place on, any one, their number, all of them away.

use super::Keyspace;
use crate::layout::{MAX_DEPTH, ROOT_BITS};
use crate::object::{Object, Type};
use crate::shard::{Shard, Trouble};
use crate::task::Io;
use std::rc::Rc;

/// A place in the order of all keys, by which a scan goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor {
    shard: u8,
    path: u32,
    bucket: u8,
}

const PATH_BITS: u32 = ROOT_BITS + MAX_DEPTH;
const BUCKET_BITS: u32 = 7;

impl Cursor {
    /// The number by which clients name this place. 0 is the start.
    pub fn word(self) -> u64 {
        u64::from(self.shard) << (PATH_BITS + BUCKET_BITS)
            | u64::from(self.path) << BUCKET_BITS
            | u64::from(self.bucket)
    }

    /// The place of a client's number.
    pub fn of(word: u64) -> Cursor {
        Cursor {
            shard: (word >> (PATH_BITS + BUCKET_BITS)) as u8,
            path: (word >> BUCKET_BITS) as u32 & ((1 << PATH_BITS) - 1),
            bucket: word as u8 & ((1 << BUCKET_BITS) - 1),
        }
    }
}

impl Keyspace {
    /// About `count` keys from a place on, without their values, and the place to continue from;
    /// `None` at the end. A whole scan returns every key that exists from its first call to its last.
    pub async fn scan(&self, io: &Io, from: Cursor, count: usize) -> Result<(Vec<Object>, Option<Cursor>), Trouble> {
        self.scan_as(io, from, count, false).await
    }

    /// [`Keyspace::scan`]. `whole`: values are read, too. Each may have 2 MiB.
    pub async fn scan_as(
        &self,
        io: &Io,
        from: Cursor,
        count: usize,
        whole: bool,
    ) -> Result<(Vec<Object>, Option<Cursor>), Trouble> {
        let (mut found, mut at) = (Vec::new(), Some(from));
        let mut looks = 0;
        while let Some(cursor) = at.filter(|_| found.len() < count && looks < 10 * count.max(10)) {
            let Some(shard) = self.shards.get(usize::from(cursor.shard)) else { return Ok((found, None)) };
            looks += 1;
            let (objects, next) =
                shard.index.some(io, (cursor.path, cursor.bucket), count - found.len(), whole).await?;
            let shown = |object: &Object| !self.has_ended(object) && object.kind() != Type::Message;
            found.extend(objects.into_iter().filter(shown));
            at = match next {
                Some((path, bucket)) => Some(Cursor { path, bucket, ..cursor }),
                None if usize::from(cursor.shard) + 1 < self.shards.len() => {
                    Some(Cursor { shard: cursor.shard + 1, path: 0, bucket: 0 })
                }
                None => None,
            };
        }
        Ok((found, at))
    }

    /// Some keys of a random place, without their values.
    pub async fn sample(&self, io: &Io, shard: &Rc<Shard>) -> Result<Vec<Object>, Trouble> {
        for _ in 0..64 {
            let path = self.random(1 << PATH_BITS) as u32;
            let leaf = shard.index.trie.borrow().leaf(path);
            let bucket = self.random(usize::from(shard.index.geometry.buckets)) as u8;
            let (objects, _) = shard.index.some(io, (leaf.path, bucket), 16, false).await?;
            if !objects.is_empty() {
                return Ok(objects);
            }
        }
        let (objects, _) = shard.index.some(io, (0, 0), 16, false).await?;
        Ok(objects)
    }

    /// A random key. `None`: the store has no key.
    pub async fn random_key(&self, io: &Io) -> Result<Option<Vec<u8>>, Trouble> {
        let first = self.random(self.shards.len());
        for n in 0..self.shards.len() {
            let shard = &self.shards[(first + n) % self.shards.len()];
            let mut some = self.sample(io, shard).await?;
            some.retain(|object| !self.has_ended(object) && object.kind() != Type::Message);
            if !some.is_empty() {
                return Ok(Some(some[self.random(some.len())].key().to_vec()));
            }
        }
        let mut at = Some(Cursor::default());
        while let Some(cursor) = at {
            let (objects, next) = self.scan(io, cursor, 1).await?;
            if let Some(object) = objects.first() {
                return Ok(Some(object.key().to_vec()));
            }
            at = next;
        }
        Ok(None)
    }

    /// Number of keys. Keys that have ended count until they are removed.
    pub async fn size(&self, io: &Io) -> Result<u64, Trouble> {
        let mut keys = 0;
        for shard in &self.shards {
            shard
                .index
                .each_table(io, true, |slots| {
                    keys += slots.iter().filter(|(_, slot)| slot.is_used() && !slot.is_pending()).count() as u64;
                    Vec::new()
                })
                .await?;
        }
        Ok(keys)
    }

    /// Takes every key out.
    pub async fn clear(&self, io: &Io) -> Result<(), Trouble> {
        for shard in &self.shards {
            let _writing = shard.near.writing(None);
            shard
                .index
                .each_table(io, false, |slots| {
                    slots.iter().filter(|(_, slot)| slot.is_used() && !slot.is_pending()).copied().collect()
                })
                .await?;
        }
        Ok(())
    }
}
