//! Segments at the node: read, written, linked and retired with their heads.
//!
//! A change holds places for new segments and writes them, and then goes on as the change of any
//! object: one WRITE of the head and one CAS. What it has written is given back if the CAS fails.
//! Who takes a head out of the index retires the segments that the new head does not list, if they
//! are its own. Other owners find theirs by a look at the head ([`crate::shard::recover`]).

use super::cache::Lent;
use super::{Body, Open, Wanted, Working, len};
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
pub(super) const TOGETHER: usize = 64;
pub(super) const BYTES: usize = 1 << 20;
/// How often a command may want further segments.
const LOOKS: usize = 10_000;

/// Segments that are written, and no head lists yet that is in the index. They go when this is
/// dropped.
#[derive(Debug)]
pub(crate) struct Placed {
    shard: Rc<Shard>,
    hash: Hash,
    pub(super) held: Vec<Held>,
    /// What the head in whose place theirs goes lists, and theirs does not. `None`: it shares
    /// nothing.
    dropped: Option<Vec<At>>,
    /// The same by their names.
    gone: Vec<(At, u64)>,
    /// A head may list them by now.
    pub kept: bool,
}

impl Placed {
    /// None yet, of a key's value that shares nothing with the one before.
    pub(super) fn new(shard: &Rc<Shard>, hash: Hash) -> Placed {
        let (held, dropped, gone) = (Vec::new(), None, Vec::new());
        Placed { shard: Rc::clone(shard), hash, held, dropped, gone, kept: false }
    }

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

    /// Their names. Once the head is in the index nobody looks for them.
    pub fn gone(&self) -> &[(At, u64)] {
        &self.gone
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

/// Whether an object is the head of a value that is too large for commands to take it as a whole.
pub(crate) fn is_unwieldy(object: &Object) -> bool {
    object.kind() == Type::Parts && len(object) > WHOLE
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
                let body = match answer {
                    Answer::Bytes(bytes) if is_segment(&bytes, one.checksum) => Body::read(bytes, one.kind),
                    _ => None,
                };
                match body {
                    Some(body) => {
                        store.segments.keep(one.at, one.checksum, &body);
                        lent.insert((one.at, one.checksum), body);
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
            Type::Parts => Box::pin(self.assemble(io, object, &mut Lent::default())).await,
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
    ) -> Result<Open, Trouble> {
        let shard = self.shard(key);
        let node = shard.reach.node;
        let same = old.filter(|old| old.kind() == Type::Parts && super::type_of(old) == value.kind);
        let cut = || -> Result<Open, Trouble> {
            let working = match same.and_then(|old| Working::of(&self.segments, node, old)) {
                Some(mut working) => {
                    working.become_whole(&value.bytes)?;
                    working
                }
                None => Working::new(&self.segments, value.kind, &value.bytes),
            };
            // A node may say anything.
            if working.is_empty() {
                return Err(Trouble::Corrupt);
            }
            Ok(Open { expiry: value.expiry, ..working.close().0 })
        };
        self.look(io, shard, lent, cut).await
    }

    /// Writes the new segments of a value, and returns its head's. Of a segment without a place the
    /// length is returned: there was no room, and the value is what it was.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn place(
        &self,
        io: &Io,
        key: &[u8],
        open: &mut Open,
    ) -> Result<Result<(Value, Placed), u64>, Trouble> {
        let (shard, hash) = (Rc::clone(self.shard(key)), Hash::of(key));
        let dropped = open.derived.then(|| open.dropped.iter().map(|gone| gone.at).collect());
        let gone = open.dropped.iter().map(|gone| (gone.at, gone.checksum)).collect();
        let mut placed = Placed::new(&shard, hash);
        (placed.dropped, placed.gone) = (dropped, gone);
        let lens: Vec<u64> = open.unwritten().map(|body| object::len(&[], body)).collect();
        // A value that becomes smaller has room in a full store, too.
        let shrinks = lens.iter().sum::<u64>()
            <= open.dropped.iter().map(|gone| HEADER as u64 + u64::from(gone.len)).sum::<u64>();
        for len in lens {
            let held = match shrinks {
                true => shard.space.hold_instead(io, len, u8::MAX).await,
                false => shard.space.hold(io, len).await,
            };
            match held {
                Err(Trouble::Full) => return Ok(Err(len)),
                held => placed.held.push(held?),
            }
        }
        let now_s = (self.now_ms() / 1000) as u32;
        let (mut writes, mut places) = (Vec::with_capacity(placed.held.len()), placed.held.iter());
        let Open { kind, sides, fresh, .. } = open;
        let kind = *kind;
        for part in Rc::make_mut(sides).iter_mut().flat_map(|side| &mut side.parts).filter(|part| part.at == 0) {
            let body = fresh.get_mut(part.checksum as usize).and_then(Option::take);
            let (Some(mut body), Some(held)) = (body, places.next()) else { return Err(Trouble::Corrupt) };
            let (checksum, bytes) = body.seal((kind, part.count), hash, held.version, now_s);
            self.segments.keep(held.at, checksum, &body);
            writes.push(Verb::Write { at: held.at, bytes });
            (part.at, part.checksum) = (held.at, checksum);
        }
        shard.write_segments(io, &writes).await?;
        open.dropped.clear();
        let value = Value { kind: Type::Parts, expiry: open.expiry, bytes: open.encode() };
        Ok(Ok((value, placed)))
    }

    /// [`Keyspace::place`] of a value that goes in place of whatever is there: room is made. The
    /// caller holds no section.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn settle(&self, io: &Io, key: &[u8], value: Value) -> Result<(Value, Placed), Trouble> {
        let mut divided = self.divide(io, key, value, None, &mut Lent::default()).await?;
        loop {
            match self.place(io, key, &mut divided).await? {
                Ok(placed) => return Ok(placed),
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

    /// Writes the segments of a value that is to be in segments, or of one that is open already.
    /// Returns the head, or the length of a segment for which there is no room.
    pub(crate) async fn segmented(
        &self,
        io: &Io,
        key: &[u8],
        old: Option<&Object>,
        new: Result<Box<Open>, Value>,
        lent: &mut Lent,
    ) -> Result<Result<(Value, Placed), u64>, Trouble> {
        let mut open = match new {
            Ok(open) => *open,
            Err(head) if head.kind == Type::Parts => {
                Open::decode(self.shard(key).reach.node, &head.bytes, head.expiry).ok_or(Trouble::Corrupt)?
            }
            Err(value) => self.divide(io, key, value, old, lent).await?,
        };
        self.place(io, key, &mut open).await
    }
}
