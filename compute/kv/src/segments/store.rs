//! Segments at the node: read, written, linked and retired with their heads.
//!
//! A change holds places for new segments and writes them, and then goes on as the change of any
//! object: one WRITE of the head and one CAS. What it has written is given back if the CAS fails.
//! Who takes a head out of the index retires the segments that the new head does not list, if they
//! are its own. Other owners find theirs by a look at the head ([`crate::shard::recover`]).

use super::cache::Lent;
use super::{Source, Wanted, Working, len};
use crate::keyspace::{Change, Keyspace};
use crate::layout::{At, Hash, class_of};
use crate::object::{self, HEADER, Object, Type, Value};
use crate::shard::heap::{Held, SEGMENT};
use crate::shard::index::Found;
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

/// Bytes of a value that commands take as a whole which are not made for segments.
pub(crate) const WHOLE: u64 = 64 << 20;
/// Segments that are read or written at once, and their bytes.
const TOGETHER: usize = 64;
const BYTES: usize = 1 << 20;
/// How often a command may want further segments.
const LOOKS: usize = 10_000;

/// Segments that are written, and no head lists yet that is in the index. They go when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Placed {
    shard: Rc<Shard>,
    hash: Hash,
    held: Vec<Held>,
    /// What the head in whose place theirs goes lists, and theirs does not. `None`: it shares
    /// nothing.
    dropped: Option<Vec<At>>,
    /// A head may list them by now.
    pub kept: bool,
}

impl Placed {
    /// Their head is in the index.
    pub fn linked(mut self) {
        self.kept = true;
        let mut heap = self.shard.space.heap.borrow_mut();
        self.held.iter().for_each(|held| heap.linked(held.at, self.hash.0, 0, SEGMENT));
    }

    /// Places that are not listed any more, if the rest is.
    pub fn dropped(&self) -> Option<&[At]> {
        self.dropped.as_deref()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if !self.kept {
            let mut heap = self.shard.space.heap.borrow_mut();
            self.held.iter().for_each(|held| heap.give_back(held.at));
        }
    }
}

/// Whether an operation that failed so has changed nothing for certain.
pub(crate) fn is_harmless(trouble: Trouble) -> bool {
    matches!(trouble, Trouble::Full | Trouble::Beyond | Trouble::TooLarge)
}

impl Shard {
    /// Reads segments. The caller holds a section in which a head that lists them was in the index.
    async fn fetch(&self, io: &Io, store: &Keyspace, wanted: &[Wanted], lent: &mut Lent) -> Result<(), Trouble> {
        let mut rest = wanted;
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_room = |one: &&Wanted| {
                bytes += one.len as usize;
                bytes <= BYTES
            };
            let count = rest.iter().take(TOGETHER).take_while(is_room).count().max(1);
            let (some, others) = rest.split_at(count);
            let read = |one: &Wanted| Verb::Read { at: one.at, len: HEADER as u32 + one.len };
            let answers = self.reach.verbs(io, some.iter().map(read).collect()).await;
            for (one, answer) in some.iter().zip(answers) {
                match answer {
                    Answer::Bytes(mut bytes) if is_segment(&bytes, one.checksum) => {
                        let bytes = Rc::new(bytes.split_off(HEADER));
                        store.segments.keep(one.at, one.checksum, &bytes);
                        lent.insert((one.at, one.checksum), bytes);
                    }
                    _ if self.reach.shut_out.get() => return Err(Trouble::ShutOut),
                    _ => return Err(Trouble::Corrupt),
                }
            }
            rest = others;
        }
        Ok(())
    }
}

/// Whether bytes are all of the segment with this checksum.
pub(crate) fn is_segment(bytes: &[u8], checksum: u64) -> bool {
    bytes.len() >= HEADER
        && crate::layout::word(bytes, 0) == checksum
        && xxhash_rust::xxh3::xxh3_64(&bytes[8..]) == checksum
}

impl Keyspace {
    /// Whether a value is to be in segments.
    pub(crate) fn is_divided(&self, value: &Value) -> bool {
        use Type::{Hash, List, Set, SortedSet, Stream};
        matches!(value.kind, List | Set | Hash | SortedSet | Stream) && value.bytes.len() > self.segments.least.get()
    }

    /// What a look at an object comes to, which may be the head of a value in segments. `look` is
    /// called again while it wants segments that are not here.
    ///
    /// # Errors
    /// Those of `look`, and those of the store.
    pub(crate) async fn look<T, E: From<Trouble>>(
        &self,
        io: &Io,
        shard: &Shard,
        lent: &mut Lent,
        mut look: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        for _ in 0..LOOKS {
            let (came, wanted) = self.segments.with(lent, &mut look);
            if wanted.is_empty() {
                return came;
            }
            shard.fetch(io, self, &wanted, lent).await?;
        }
        Err(Trouble::Corrupt.into())
    }

    /// A value in segments as one object would have it. The caller holds what it has found.
    ///
    /// # Errors
    /// It is too large for that.
    pub(crate) async fn assemble(&self, io: &Io, head: &Object, lent: &mut Lent) -> Result<Object, Trouble> {
        if len(head) > WHOLE {
            return Err(Trouble::Unwieldy);
        }
        let shard = self.shard(head.key());
        let whole = || -> Result<(Type, Vec<u8>), Trouble> {
            let value = Working::of(&self.segments, shard.reach.node, head).ok_or(Trouble::Corrupt)?;
            Ok((value.kind, value.whole()?))
        };
        let (kind, bytes) = self.look(io, shard, lent, whole).await?;
        Ok(Object::of(head.key(), &Value { kind, expiry: head.expiry(), bytes }))
    }

    /// An object as commands see it that are not made for segments. The caller holds what it has
    /// found.
    ///
    /// # Errors
    /// As of [`Keyspace::assemble`].
    pub(crate) async fn as_one(&self, io: &Io, object: &Object) -> Result<Object, Trouble> {
        match object.kind() {
            Type::Parts => Box::pin(self.assemble(io, object, &mut Lent::new())).await,
            _ => Ok(object.clone()),
        }
    }

    /// Has `change` decide on what was found. `whole`: it sees all of a value that is in segments.
    pub(crate) async fn decided<T, E: From<Trouble>>(
        &self,
        io: &Io,
        (key, there, whole): (&[u8], Option<&Found>, bool),
        lent: &mut Lent,
        change: &mut impl FnMut(Option<&Found>, Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<Change<T>, E> {
        let Some(found) = there.filter(|found| found.object.kind() == Type::Parts) else {
            return change(there, there.map(|found| &found.object));
        };
        let assembled = if whole { Some(Box::pin(self.assemble(io, &found.object, lent)).await?) } else { None };
        let object = assembled.as_ref().unwrap_or(&found.object);
        Box::pin(self.look(io, self.shard(key), lent, || change(there, Some(object)))).await
    }

    /// Cuts a value into segments. `old`: what it goes in place of, whose segments stay that do not
    /// differ.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn divide(
        &self,
        io: &Io,
        key: &[u8],
        value: Value,
        old: Option<&Object>,
        lent: &mut Lent,
    ) -> Result<Value, Trouble> {
        let shard = self.shard(key);
        let node = shard.reach.node;
        let same = old.filter(|old| old.kind() == Type::Parts && super::type_of(old) == value.kind);
        let cut = || -> Result<Vec<u8>, Trouble> {
            match same.and_then(|old| Working::of(&self.segments, node, old)) {
                Some(mut working) => {
                    working.become_whole(&value.bytes)?;
                    Ok(working.encode())
                }
                None => Ok(Working::new(&self.segments, value.kind, &value.bytes).encode()),
            }
        };
        let bytes = self.look(io, shard, lent, cut).await?;
        Ok(Value { kind: Type::Parts, expiry: value.expiry, bytes })
    }

    /// Writes the new segments of a value, and makes it the value of its head. Of a segment without
    /// a place the length is returned: there was no room.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn place(&self, io: &Io, key: &[u8], value: &mut Value) -> Result<Result<Placed, u64>, Trouble> {
        let (shard, hash) = (Rc::clone(self.shard(key)), Hash::of(key));
        let mut working = Working::decode(&self.segments, shard.reach.node, &value.bytes).ok_or(Trouble::Corrupt)?;
        let places = working.dropped.iter().map(|&(at, _)| at).collect();
        let dropped = if working.derived { Some(places) } else { None };
        let mut placed = Placed { shard: Rc::clone(&shard), hash, held: Vec::new(), dropped, kept: false };
        let fresh: usize = working.fresh().map(|bytes| HEADER + bytes.len()).sum();
        // A value that becomes smaller has room in a full store, too.
        let shrinks = fresh <= working.dropped.iter().map(|&(_, len)| HEADER + len as usize).sum();
        let now_s = (self.now_ms() / 1000) as u32;
        let mut writes = Vec::new();
        for part in working.sides.iter_mut().flatten() {
            let Source::Fresh(bytes) = &part.source else { continue };
            let len = object::len(&[], bytes);
            let held = match shrinks {
                true => shard.space.hold_instead(io, len, u8::MAX).await,
                false => shard.space.hold(io, len).await,
            };
            let held = match held {
                Err(Trouble::Full) => return Ok(Err(len)),
                held => held?,
            };
            placed.held.push(held);
            let segment = Value { kind: Type::Segment, expiry: None, bytes: bytes.to_vec() };
            let object = Object::new(hash, &[], &segment, held.version, now_s);
            self.segments.keep(held.at, object.checksum(), bytes);
            writes.push(Verb::Write { at: held.at, bytes: Rc::clone(object.bytes()) });
            part.source = Source::Stored(held.at, object.checksum());
        }
        for some in writes.chunks(TOGETHER) {
            // Whatever becomes of a connection, a head must not list what is not there.
            while !shard.reach.verbs(io, some.to_vec()).await.iter().all(crate::shard::copies::is_done) {
                if shard.reach.shut_out.get() {
                    return Err(Trouble::ShutOut);
                }
            }
        }
        working.dropped.clear();
        value.bytes = working.encode();
        Ok(Ok(placed))
    }

    /// [`Keyspace::place`] of a value that goes in place of whatever is there: room is made. The
    /// caller holds no section.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn settle(&self, io: &Io, key: &[u8], value: Value) -> Result<(Value, Placed), Trouble> {
        let divided = self.divide(io, key, value, None, &mut Lent::new()).await?;
        loop {
            let mut value = divided.clone();
            match self.place(io, key, &mut value).await? {
                Ok(placed) => return Ok((value, placed)),
                Err(len) => self.make_room(io, self.shard(key), class_of(len), len).await?,
            }
        }
    }

    /// [`Keyspace::put`] of a value that is to be in segments.
    pub(crate) async fn put_divided(&self, io: &Io, key: &[u8], value: &Value) -> Result<(), Trouble> {
        let (head, mut placed) = self.settle(io, key, value.clone()).await?;
        let ended = Box::pin(self.put(io, key, &head)).await;
        match ended {
            Ok(()) => placed.linked(),
            Err(trouble) => placed.kept = !is_harmless(trouble),
        }
        ended
    }

    /// Has a value in segments, or one that is to be, be the head of written ones. The length of a
    /// segment for which there is no room.
    pub(crate) async fn segmented(
        &self,
        io: &Io,
        key: &[u8],
        old: Option<&Object>,
        value: &mut Option<Value>,
        lent: &mut Lent,
    ) -> Result<Result<Placed, u64>, Trouble> {
        let Some(mut new) = value.take() else { return Err(Trouble::Corrupt) };
        if new.kind != Type::Parts {
            new = self.divide(io, key, new, old, lent).await?;
        }
        let ended = self.place(io, key, &mut new).await;
        *value = Some(new);
        ended
    }
}
