//! Blocks: large values that are written once, such as an inference server's key-value cache.
//!
//! ```text
//!  farmem:block:KEY ─► "FMB1" │ nonce │ length of each part │ the last bytes of the block      (the head)
//!  farmem:part:NONCE NUMBER KEY ─► bytes                                   (parts, on all nodes)
//!  farmem:pin:KEY ─► nothing, until the pin ends
//! ```
//!
//! A block that fills a place of one of a few sizes (or is small) is one object of type Block. It
//! is sent from where it lies in its writer's memory, and so are parts. If the writer changes it
//! meanwhile, it is damaged: it is taken out when it is read, and others look past it. Larger ones
//! have parts.
//!
//! Parts are sized so that each fills a piece of memory, and their hashes spread them over the
//! nodes. A writer stores the parts first, then the head if there is none: with it the whole block
//! exists. Parts never change. A writer that comes second removes its own parts, whose keys have a
//! nonce of its own. A writer that is killed before it stores a head leaves parts that no head
//! names. The front end that takes its memory over takes them out ([`end_part`]).
//!
//! A block of which a part is missing counts as absent, and its head is taken out, so that it can
//! be put again. Eviction takes a whole block, unless it is pinned. A pin that comes while a block
//! is being evicted may come too late.

use crate::batch::{Outcome, Taken, get, put_new};
use crate::embedded::Bytes;
use crate::keyspace::Keyspace;
use crate::layout::{At, PIECE_HEADER, block_class};
use crate::object::{Object, Type, Value};
use crate::shard::Trouble;
use crate::task::{Io, join};
use farmem::Payload;
use std::future::Future;
use std::pin::Pin;

const HEAD: &[u8] = b"farmem:block:";
const PART: &[u8] = b"farmem:part:";
const PIN: &[u8] = b"farmem:pin:";
const MAGIC: &[u8; 4] = b"FMB1";
/// Bytes of a part's number.
const NUMBER: usize = 4;

/// Bytes of a block at most.
pub const MAX_BLOCK: usize = 256 << 20;
/// Bytes of a block's key at most.
pub const MAX_KEY: usize = 4096;
/// Bytes that lie in the head. Smaller blocks have no parts.
const IN_HEAD: usize = 4096;

/// A block's bytes: the parts in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    parts: Vec<Bytes>,
    /// Of the head, those before the block's.
    before: usize,
    len: usize,
}

impl Block {
    /// The parts in their order. None is empty but that of an empty block.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let last = self.parts.len().saturating_sub(1);
        self.parts.iter().enumerate().map(move |(n, part)| if n == last { &part[self.before..] } else { &part[..] })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// When it ends, in milliseconds since 1970, if it does.
    pub fn expiry(&self) -> Option<u64> {
        self.parts.last().and_then(Bytes::expiry)
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The contents of a head.
struct Head {
    nonce: [u8; 16],
    /// Bytes of each part.
    parts: Vec<u32>,
}

impl Head {
    fn bytes(&self) -> usize {
        24 + 4 * self.parts.len()
    }

    fn encode(&self, last: &[u8]) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &(self.parts.len() as u32).to_le_bytes(), &self.nonce].concat();
        self.parts.iter().for_each(|part| bytes.extend_from_slice(&part.to_le_bytes()));
        bytes.extend_from_slice(last);
        bytes
    }

    /// `None`: a client that knows nothing of blocks has written to the key.
    fn decode(bytes: &[u8]) -> Option<Head> {
        let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let count = number(4).filter(|_| bytes.starts_with(MAGIC))?;
        let parts = (0..count as usize).map(|n| number(24 + 4 * n)).collect::<Option<Vec<u32>>>()?;
        Some(Head { nonce: bytes.get(8..24)?.try_into().ok()?, parts })
    }

    fn of(object: &Object) -> Result<Head, Trouble> {
        let head = Some(object).filter(|object| object.kind() == Type::String);
        head.and_then(|object| Head::decode(object.value())).ok_or(Trouble::Corrupt)
    }

    fn part(&self, number: usize, key: &[u8]) -> Vec<u8> {
        [PART, &self.nonce, &(number as u32).to_le_bytes(), key].concat()
    }

    fn len(&self, head: &Object) -> usize {
        self.parts.iter().map(|&part| part as usize).sum::<usize>() + head.value().len().saturating_sub(self.bytes())
    }
}

fn prefixed(prefix: &[u8], key: &[u8]) -> Vec<u8> {
    [prefix, key].concat()
}

/// Whether a key is one of a block's, and not of a client's.
pub(crate) fn is_own(key: &[u8]) -> bool {
    [HEAD, PART, PIN].iter().any(|own| key.starts_with(own))
}

/// Bytes that a part takes in its piece beside its own.
fn beside(key: &[u8]) -> usize {
    PIECE_HEADER as usize + crate::object::len(&[], &[]) as usize + PART.len() + 16 + NUMBER + key.len()
}

/// Sizes of a block's parts; the rest is the head's. Each part but a small one fills at least seven
/// eighths of a piece.
fn sizes(len: usize, key: &[u8]) -> Vec<u32> {
    let beside = beside(key);
    let (mut left, mut sizes) = (len, Vec::new());
    while left > IN_HEAD {
        let whole = (left + beside).next_power_of_two().clamp(64 << 10, 2 << 20);
        let fits = whole - beside;
        // Objects of up to 32 KiB share pieces, in classes of many sizes.
        let take = if left + beside <= 32 << 10 || (left <= fits && left + beside > whole - whole / 8) {
            left
        } else {
            fits.min(if left < fits { whole / 2 - beside } else { fits })
        };
        sizes.push(take as u32);
        left -= take;
    }
    sizes
}

async fn all<T>(operations: impl Iterator<Item = impl Future<Output = Result<T, Trouble>>>) -> Result<Vec<T>, Trouble> {
    let each =
        operations.map(|operation| -> Pin<Box<dyn Future<Output = Result<T, Trouble>> + '_>> { Box::pin(operation) });
    join(each.collect()).await.into_iter().collect()
}

async fn remove_parts(store: &Keyspace, io: &Io, head: &Head, key: &[u8]) -> Result<(), Trouble> {
    let keys: Vec<Vec<u8>> = (0..head.parts.len()).map(|n| head.part(n, key)).collect();
    all(keys.iter().map(|part| store.discard(io, part, None))).await.map(drop)
}

/// Stores a block if there is none of this key. Its bytes are not copied.
pub(crate) async fn put(
    store: &Keyspace,
    io: &Io,
    key: &[u8],
    block: &Payload,
    expiry: Option<u64>,
) -> Result<Outcome, Trouble> {
    if block.len() > MAX_BLOCK || key.len() > MAX_KEY {
        return Err(Trouble::TooLarge);
    }
    let at = prefixed(HEAD, key);
    if block_class(crate::object::len(&at, block)).is_some() {
        let added = store.add(io, &at, (Type::Block, expiry), block).await?;
        return Ok(if added { Outcome::Done } else { Outcome::Present });
    }
    if store.brief(io, &at).await?.is_some() {
        return Ok(Outcome::Present);
    }
    let mut nonce = [0; 16];
    nonce.chunks_mut(4).for_each(|four| four.copy_from_slice(&(store.random(1 << 32) as u32).to_le_bytes()));
    let head = Head { nonce, parts: sizes(block.len(), key) };
    let (mut from, mut parts) = (0, Vec::new());
    for (number, &len) in head.parts.iter().enumerate() {
        parts.push((head.part(number, key), block.part(from..from + len as usize)));
        from += len as usize;
    }
    let last = &block[from..];
    let written = match all(parts.iter().map(|(part, bytes)| store.add(io, part, (Type::String, expiry), bytes))).await
    {
        Ok(_) => put_new(store, io, &at, head.encode(last), expiry).await,
        Err(trouble) => Err(trouble),
    };
    // An answer that is not known may have made the head: its parts stay.
    if !matches!(written, Ok(Outcome::Done) | Err(Trouble::Unsettled | Trouble::ShutOut)) {
        remove_parts(store, io, &head, key).await?;
    }
    written
}

/// A block, if all of it is there. Its parts are read when there is room for them.
pub(crate) async fn find(store: &Keyspace, io: &Io, key: &[u8], room: &Taken) -> Result<Outcome, Trouble> {
    let at = prefixed(HEAD, key);
    let object = match get(store, io, &at).await {
        Ok(Some(object)) => object,
        Ok(None) => return Ok(Outcome::Absent),
        Err(Trouble::Corrupt) => {
            // Its writer has changed the bytes while they were sent.
            store.discard(io, &at, None).await?;
            return Ok(Outcome::Absent);
        }
        Err(trouble) => return Err(trouble),
    };
    if object.kind() == Type::Block {
        let len = object.value().len();
        return Ok(Outcome::Block(Block { parts: vec![Bytes(object)], before: 0, len }));
    }
    let head = Head::of(&object)?;
    room.take_more(io, head.len(&object)).await;
    let keys: Vec<Vec<u8>> = (0..head.parts.len()).map(|n| head.part(n, key)).collect();
    let found = match all(keys.iter().map(|part| get(store, io, part))).await {
        Err(Trouble::Corrupt) => Vec::new(),
        found => found?,
    };
    let whole = found.len() == head.parts.len()
        && found.iter().zip(&head.parts).all(|(part, &len)| {
            part.as_ref().is_some_and(|part| part.kind() == Type::String && part.value().len() == len as usize)
        });
    if !whole {
        take_out(store, io, &at, key, &head).await?;
        return Ok(Outcome::Absent);
    }
    let (len, before) = (head.len(&object), head.bytes());
    let parts = found.into_iter().flatten().chain([object]).map(Bytes).collect();
    Ok(Outcome::Block(Block { parts, before, len }))
}

/// Takes this very block out; whether it was there.
async fn take_out(store: &Keyspace, io: &Io, at: &[u8], key: &[u8], head: &Head) -> Result<bool, Trouble> {
    let same = |there: &Object| Head::of(there).is_ok_and(|there| there.nonce == head.nonce);
    let taken = store.remove_if(io, at, same).await?;
    remove_parts(store, io, head, key).await?;
    Ok(taken)
}

/// Takes a block out, pinned or not.
pub(crate) async fn remove(store: &Keyspace, io: &Io, key: &[u8]) -> Result<Outcome, Trouble> {
    let at = prefixed(HEAD, key);
    let taken = match store.brief(io, &at).await? {
        None => false,
        Some(brief) if brief.kind() == Type::Block => store.discard(io, &at, None).await?,
        Some(_) => match get(store, io, &at).await? {
            Some(object) => take_out(store, io, &at, key, &Head::of(&object)?).await?,
            None => false,
        },
    };
    Ok(if taken { Outcome::Done } else { Outcome::Absent })
}

/// Whether there is such a block, by its head: a part may have been evicted.
pub(crate) async fn look(store: &Keyspace, io: &Io, key: &[u8]) -> Result<Outcome, Trouble> {
    let at = prefixed(HEAD, key);
    match store.brief(io, &at).await? {
        Some(brief) if brief.kind() == Type::Block => {
            return Ok(Outcome::Length(brief.told() as u64, brief.expiry()));
        }
        Some(_) => {}
        None => return Ok(Outcome::Absent),
    }
    let Some(object) = get(store, io, &at).await? else { return Ok(Outcome::Absent) };
    Ok(Outcome::Length(Head::of(&object)?.len(&object) as u64, object.expiry()))
}

/// Keeps a block from being evicted until a moment, or no longer.
pub(crate) async fn pin(store: &Keyspace, io: &Io, key: &[u8], until: Option<u64>) -> Result<Outcome, Trouble> {
    let pin = prefixed(PIN, key);
    if until.is_some() {
        store.put(io, &pin, &Value { kind: Type::String, expiry: until, bytes: Vec::new() }).await?;
        if store.brief(io, &prefixed(HEAD, key)).await?.is_some() {
            return Ok(Outcome::Done);
        }
    }
    let was = store.remove(io, &pin).await?;
    Ok(if was && until.is_none() { Outcome::Done } else { Outcome::Absent })
}

/// Whether a key that would be evicted is spared: a pin, or what a pin is for.
pub(crate) async fn is_pinned(store: &Keyspace, io: &Io, key: &[u8]) -> Result<bool, Trouble> {
    match block_of(key) {
        Some((_, block)) => Ok(store.find(io, &prefixed(PIN, block)).await?.is_some()),
        None => Ok(key.starts_with(PIN)),
    }
}

/// The nonce of a part, if it is one, and the key of its block. `None`: the key is of no block.
fn block_of(key: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    if let Some(block) = key.strip_prefix(HEAD) {
        return Some((None, block));
    }
    let (nonce, rest) = key.strip_prefix(PART)?.split_at_checked(16)?;
    Some((Some(nonce), rest.get(NUMBER..)?))
}

/// Whether a key is that of a part.
pub(crate) fn is_part(key: &[u8]) -> bool {
    key.starts_with(PART)
}

/// Whether an object was sent from where its value lies in its writer's memory. If the writer has
/// changed it meanwhile, its checksum is wrong.
pub(crate) fn is_lent(object: &Object) -> bool {
    object.kind() == Type::Block || is_part(object.key())
}

/// Takes out a part of which the writer is gone, unless its block is there; whether it did.
pub(crate) async fn end_part(store: &Keyspace, io: &Io, key: &[u8]) -> Result<bool, Trouble> {
    let Some((Some(nonce), block)) = block_of(key) else { return Ok(false) };
    let head = store.find(io, &prefixed(HEAD, block)).await?;
    let is_there = head.is_some_and(|found| Head::of(&found.object).is_ok_and(|head| head.nonce == nonce));
    if is_there { Ok(false) } else { store.discard(io, key, None).await }
}

/// Takes out what the key of an object stands for: the whole of a block. Whether there was
/// anything. A key that stands for itself stays if its object is at another place than `only`.
pub(crate) async fn evict(store: &Keyspace, io: &Io, victim: &Object, only: At) -> Result<bool, Trouble> {
    let key = victim.key();
    if victim.kind() != Type::Block
        && let Some((nonce, block)) = block_of(key)
    {
        let at = prefixed(HEAD, block);
        if let Some(head) = store.find(io, &at).await?.and_then(|found| Head::of(&found.object).ok())
            && nonce.is_none_or(|nonce| nonce == head.nonce)
        {
            return take_out(store, io, &at, block, &head).await;
        }
    }
    store.discard(io, key, Some(only)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_their_pieces() {
        for len in
            [0, 1, 4096, 4097, 30_000, 65_536, 100_000, 120_000, 131_072, 1 << 20, (1 << 21) - 1, 1 << 21, 16 << 20]
        {
            let sizes = sizes(len, b"0123456789abcdef");
            let parts: usize = sizes.iter().map(|&size| size as usize).sum();
            assert!(parts <= len && len - parts <= IN_HEAD, "{len}: {sizes:?}");
            let taken: u64 =
                sizes.iter().map(|&size| piece(u64::from(size) + beside(b"0123456789abcdef") as u64)).sum();
            assert!(taken <= len as u64 * 8 / 7 + 8192, "{len}: {sizes:?} take {taken}");
        }
    }

    fn piece(bytes: u64) -> u64 {
        if bytes <= 32 << 10 { bytes * 5 / 4 } else { bytes.next_power_of_two() }
    }
}
