//! A value in segments that another key gets.
//!
//! A segment has the hash of its key, by which its owner finds the head that lists it. So another
//! key cannot have the same segments: they are written anew, some at a time. A front end holds no
//! more of the value than those and the entries. If the value changes meanwhile, those are written
//! that differ.

use super::store::{BYTES, Placed, TOGETHER, is_segment};
use super::{Body, Open, Part, Wanted, Working, listed};
use crate::fast::{Map, Set};
use crate::keyspace::Keyspace;
use crate::layout::{At, Hash, class_of};
use crate::object::{HEADER, Object, Type, Value};
use crate::shard::{Shard, Trouble};
use crate::task::{Answer, Io, Verb};
use std::rc::Rc;

/// Place and checksum of a segment.
type Name = (At, u64);

/// The segments that were written for another key.
#[derive(Debug)]
pub(crate) struct Copied {
    shard: Rc<Shard>,
    hash: Hash,
    placed: Placed,
    /// Which they are, by those of which they have the items.
    known: Map<Name, Name>,
}

impl Copied {
    /// None, for this key.
    pub fn new(store: &Keyspace, key: &[u8]) -> Copied {
        let (shard, hash) = (Rc::clone(store.shard(key)), Hash::of(key));
        Copied { placed: Placed::new(&shard, hash), shard, hash, known: Map::default() }
    }

    /// Hands them over, to be linked.
    pub fn take(&mut self) -> Placed {
        std::mem::replace(&mut self.placed, Placed::new(&self.shard, self.hash))
    }

    /// Takes them back, because they were not.
    pub fn take_back(&mut self, placed: Option<Placed>) {
        self.placed = placed.unwrap_or_else(|| Placed::new(&self.shard, self.hash));
    }

    /// Gives all places back but these.
    fn keep(&mut self, used: &Set<At>) {
        let mut heap = self.shard.space.heap.borrow_mut();
        self.placed.held.retain(|held| {
            let stays = used.contains(&held.at);
            if !stays {
                heap.give_back(held.at);
            }
            stays
        });
        self.known.retain(|_, (at, _)| used.contains(at));
    }
}

impl Keyspace {
    /// Writes the segments of a key's value, whose head was seen, for another key. Returns the
    /// other key's head. `None`: the value is another one by now. The caller holds no section.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn copy_segments(
        &self,
        io: &Io,
        head: &Object,
        copied: &mut Copied,
    ) -> Result<Option<Value>, Trouble> {
        let (from, shard) = (self.shard(head.key()), Rc::clone(&copied.shard));
        let written: Set<At> = copied.known.values().map(|&(at, _)| at).collect();
        let mut places = Vec::new();
        // Before the value is found: its section would keep memory from coming back.
        for (at, len, checksum) in listed(head, from.reach.node) {
            while !copied.known.contains_key(&(at, checksum)) {
                match shard.space.hold(io, u64::from(len)).await {
                    Err(Trouble::Full) => self.make_room(io, &shard, class_of(len.into()), len.into()).await?,
                    held => {
                        places.push(held?);
                        copied.placed.held.extend(places.last());
                        break;
                    }
                }
            }
        }
        let found = self.find(io, head.key()).await?;
        let Some(found) = found.filter(|found| found.object.checksum() == head.checksum()) else {
            copied.keep(&written);
            return Ok(None);
        };
        let working = Working::of(&self.segments, from.reach.node, &found.object).ok_or(Trouble::Corrupt)?;
        let mut open = working.close().0;
        let (kind, now_s, mut places) = (open.kind, (self.now_ms() / 1000) as u32, places.into_iter());
        let mut used = Set::default();
        let mut parts: Vec<&mut Part> = Vec::new();
        for part in Rc::make_mut(&mut open.sides).iter_mut().flat_map(|side| &mut side.parts) {
            match copied.known.get(&(part.at, part.checksum)) {
                Some(&name) => {
                    (part.at, part.checksum) = name;
                    used.insert(part.at);
                }
                None => parts.push(part),
            }
        }
        let mut rest = &mut parts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let is_room = |part: &&&mut Part| {
                bytes += part.len as usize;
                bytes <= BYTES
            };
            let count = rest.iter().take(TOGETHER).take_while(is_room).count().max(1);
            let (some, others) = rest.split_at_mut(count);
            let wanted: Vec<Wanted> = some.iter().map(|part| part.wanted(kind)).collect();
            let mut writes = Vec::with_capacity(count);
            for (part, mut body) in some.iter_mut().zip(from.segments_of(io, &wanted).await?) {
                let held = places.next().ok_or(Trouble::Corrupt)?;
                if !body.holds(kind, part.count) || body.len() != part.len as usize {
                    return Err(Trouble::Corrupt);
                }
                let (checksum, bytes) = body.seal((kind, part.count), copied.hash, held.version, now_s);
                copied.known.insert((part.at, part.checksum), (held.at, checksum));
                (part.at, part.checksum) = (held.at, checksum);
                used.insert(held.at);
                writes.push(Verb::Write { at: held.at, bytes });
            }
            shard.write_segments(io, &writes).await?;
            rest = others;
        }
        copied.keep(&used);
        let open = Open { expiry: head.expiry(), ..open };
        Ok(Some(Value { kind: Type::Parts, expiry: head.expiry(), bytes: open.encode() }))
    }
}

impl Shard {
    /// Reads segments, which must not be too many at once, and keeps none of them.
    async fn segments_of(&self, io: &Io, wanted: &[Wanted]) -> Result<Vec<Body>, Trouble> {
        let read = |one: &Wanted| Verb::Read { at: one.at, len: HEADER as u32 + one.len };
        let answers = self.reach.verbs(io, wanted.iter().map(read).collect()).await;
        let body = |(one, answer): (&Wanted, Answer)| match answer {
            Answer::Bytes(bytes) if is_segment(&bytes, one.checksum) => Body::read(bytes, one.kind),
            _ => None,
        };
        let bodies: Option<Vec<Body>> = wanted.iter().zip(answers).map(body).collect();
        match bodies {
            None if self.reach.shut_out.get() => Err(Trouble::ShutOut),
            bodies => bodies.ok_or(Trouble::Corrupt),
        }
    }

    /// Writes segments. Whatever becomes of a connection, a head must not list what is not there.
    pub(super) async fn write_segments(&self, io: &Io, writes: &[Verb]) -> Result<(), Trouble> {
        for some in writes.chunks(TOGETHER) {
            while !self.reach.verbs(io, some.to_vec()).await.iter().all(crate::shard::copies::is_done) {
                if self.reach.shut_out.get() {
                    return Err(Trouble::ShutOut);
                }
            }
        }
        Ok(())
    }
}
