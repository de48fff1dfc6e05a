//! Many operations of the library at once: their verbs travel together, so a batch takes the round
//! trips of one.

use crate::blocks::{self, Block};
use crate::embedded::{Bytes, Store};
use crate::keyspace::{self, Change, Cursor};
use crate::object::{Object, Type, Value};
use crate::serve::Failed;
use crate::shard::Trouble;
use crate::task::Io;
use farmem::Payload;
use std::cell::Cell;
use std::rc::Rc;

/// Operations under way at a time. More wait for those before them.
const TOGETHER: usize = 256;
/// Bytes of values to store that are under way when the next operation begins, at most: more than a
/// network holds, and few enough that a CPU's cache keeps them until they are sent.
const STORED: usize = 4 << 20;
/// The same of values that are read. One alone may be larger.
const FETCHED: usize = 32 << 20;

/// An operation on one key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Op {
    /// The key.
    pub key: Vec<u8>,
    /// The operation on it.
    pub act: Act,
}

/// The act of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Reads a string: [`Outcome::Found`] or [`Outcome::Absent`].
    Get,
    /// Stores a string, whatever the key is: [`Outcome::Done`].
    Put {
        /// The bytes.
        value: Vec<u8>,
        /// When it ends, in milliseconds since 1970.
        expiry: Option<u64>,
    },
    /// Stores a string if there is no such key: [`Outcome::Done`] or [`Outcome::Present`].
    PutNew {
        /// The bytes.
        value: Vec<u8>,
        /// When it ends, in milliseconds since 1970.
        expiry: Option<u64>,
    },
    /// Takes the key out, of whatever type: [`Outcome::Done`] or [`Outcome::Absent`].
    Remove,
    /// Whether there is such a key, of whatever type: [`Outcome::Found`] or [`Outcome::Absent`].
    Look,
    /// Changes when the key ends: [`Outcome::Done`] or [`Outcome::Absent`].
    Expire {
        /// In milliseconds since 1970; `None`: never.
        expiry: Option<u64>,
    },
    /// Reads a block: [`Outcome::Block`] or [`Outcome::Absent`].
    GetBlock,
    /// Stores a block if there is none of this key: [`Outcome::Done`] or [`Outcome::Present`].
    PutBlock {
        /// The bytes.
        block: Vec<u8>,
        /// When it ends, in milliseconds since 1970.
        expiry: Option<u64>,
    },
    /// [`Act::PutBlock`] of bytes that are shared or lent ([`Store::batch_with`]): nobody copies
    /// them.
    PutPayload {
        /// The bytes.
        block: Payload,
        /// When it ends, in milliseconds since 1970.
        expiry: Option<u64>,
    },
    /// Takes a block out: [`Outcome::Done`] or [`Outcome::Absent`].
    RemoveBlock,
    /// Whether there is such a block: [`Outcome::Length`] or [`Outcome::Absent`].
    LookBlock,
    /// Keeps a block from being evicted: [`Outcome::Done`] or [`Outcome::Absent`].
    PinBlock {
        /// Until then, in milliseconds since 1970; `None`: no longer.
        until: Option<u64>,
    },
}

/// The result of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The key's value. Of a key that is no string, its inner form.
    Found(Bytes),
    /// It was carried out.
    Done,
    /// There is no such key.
    Absent,
    /// There is such a key already.
    Present,
    /// The block.
    Block(Block),
    /// A block's bytes, and when it ends.
    Length(u64, Option<u64>),
}

/// How an operation ends, when it is carried out among others.
type Ended = Result<Result<Outcome, Trouble>, Failed>;

impl Store {
    /// Carries out operations side by side. Those on one key are not ordered. One that fails does
    /// not keep others from being carried out.
    ///
    /// # Errors
    /// A node is lost, or this front end was shut out: which of the operations took effect is then
    /// not known.
    pub fn batch(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<Vec<Result<Outcome, Failed>>, Failed> {
        let mut outcomes = Vec::new();
        self.batch_with(ops, |number, outcome| {
            if outcomes.len() <= number {
                outcomes.resize_with(number + 1, || None);
            }
            outcomes[number] = Some(outcome);
        })?;
        Ok(outcomes.into_iter().flatten().collect())
    }

    /// [`Store::batch`] that takes an operation only when it is about to begin, and tells each outcome as
    /// soon as it is known, with the operation's number from 0 on. So neither all values that are stored nor
    /// all that are read need memory at once. `ops` and `ended` run within the call: where one of them takes
    /// 5 s, others shut this front end out. When the call has returned, also by an error or a
    /// panic, nothing that was lent to it by [`Payload::lent`] is used any more.
    ///
    /// # Errors
    /// As there.
    pub fn batch_with(
        &mut self,
        ops: impl IntoIterator<Item = Op>,
        mut ended: impl FnMut(usize, Result<Outcome, Failed>),
    ) -> Result<(), Failed> {
        // It may join anew, by another drive.
        self.tend()?;
        let _settled = self.settled();
        let room = Rc::new(Room::default());
        let start = |store, io, op: Op| {
            let taken = room.take(&op.act);
            async move {
                let outcome = carried_out(store, io, &taken, op).await;
                (taken, outcome)
            }
        };
        self.run_all(
            ops,
            |under_way| under_way == 0 || under_way < TOGETHER && room.is_left(),
            start,
            |number, (taken, outcome)| {
                ended(number, outcome.and_then(|outcome| outcome.map_err(Failed::Refused)));
                drop(taken);
            },
        )
    }

    /// Strings' values, `None` for a key that is not there. All that are not near are fetched at
    /// once.
    ///
    /// # Errors
    /// A node is lost, or a key's value is no string.
    pub fn get_many(&mut self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Bytes>>, Failed> {
        let (mut values, mut away) = (Vec::with_capacity(keys.len()), Vec::new());
        for (place, key) in keys.iter().enumerate() {
            let near = self.get_at_once(key.as_ref())?;
            if near.is_none() {
                away.push(place);
            }
            values.push(near);
        }
        let ops = away.iter().map(|&place| Op { key: keys[place].as_ref().to_vec(), act: Act::Get });
        for (&place, outcome) in away.iter().zip(self.batch(ops)?) {
            if let Outcome::Found(found) = outcome? {
                values[place] = Some(found);
            }
        }
        Ok(values)
    }

    /// Stores strings side by side, in place of any value that their keys have. If a key is named
    /// twice, either value may stay.
    ///
    /// # Errors
    /// The first one's: a node is lost, or there is no memory left. Others may have been stored.
    pub fn put_many(&mut self, pairs: &[(impl AsRef<[u8]>, impl AsRef<[u8]>)]) -> Result<(), Failed> {
        let mut ops = Vec::new();
        for (key, value) in pairs {
            let (key, value) = (key.as_ref(), value.as_ref());
            if !self.put_at_once(key, value)? {
                ops.push(Op { key: key.to_vec(), act: Act::Put { value: value.to_vec(), expiry: None } });
            }
        }
        self.batch(ops)?.into_iter().try_for_each(|outcome| outcome.map(drop))
    }

    /// Some keys from a place on, about `count`, and the place to go on from; 0 is the start, and
    /// the end. A key that is there from the first call to the last is among them, possibly twice.
    ///
    /// # Errors
    /// A node is lost.
    pub fn scan(&mut self, from: u64, count: usize) -> Result<(Vec<Vec<u8>>, u64), Failed> {
        self.tend()?;
        let (objects, next) = self.run(|store, io| async move { store.scan(&io, Cursor::of(from), count).await })?;
        Ok((objects.iter().map(|object| object.key().to_vec()).collect(), next.map_or(0, Cursor::word)))
    }

    /// Number of keys. Those that have ended and were not noticed yet are among them.
    ///
    /// # Errors
    /// A node is lost.
    pub fn size(&mut self) -> Result<u64, Failed> {
        self.tend()?;
        self.run(|store, io| async move { store.size(&io).await })
    }
}

/// Bytes of values that are under way.
#[derive(Debug, Default)]
struct Room {
    stored: Cell<usize>,
    fetched: Cell<usize>,
    /// Operations that wait for room: none begins before they have it.
    waiting: Cell<usize>,
}

/// One operation's share of a [`Room`]. Dropping it gives the share back.
#[derive(Debug)]
pub(crate) struct Taken {
    room: Rc<Room>,
    stored: usize,
    fetched: Cell<usize>,
}

impl Room {
    fn is_left(&self) -> bool {
        self.stored.get() < STORED && self.fetched.get() < FETCHED && self.waiting.get() == 0
    }

    fn take(self: &Rc<Room>, act: &Act) -> Taken {
        let (stored, fetched) = match act {
            Act::Put { value, .. } | Act::PutNew { value, .. } => (value.len(), 0),
            Act::PutBlock { block, .. } => (block.len(), 0),
            Act::PutPayload { block, .. } => (block.len(), 0),
            // How much comes is not known: half a piece, so that gets of large values are not all
            // under way at once.
            Act::Get | Act::Look => (0, 1 << 18),
            // Of a block in parts, its head tells: `Taken::take_more`. All others that are under
            // way have some 32 MiB at most.
            Act::GetBlock => (0, 0),
            Act::Remove | Act::Expire { .. } | Act::RemoveBlock | Act::LookBlock | Act::PinBlock { .. } => (0, 0),
        };
        self.stored.update(|all| all + stored);
        self.fetched.update(|all| all + fetched);
        Taken { room: Rc::clone(self), stored, fetched: Cell::new(fetched) }
    }
}

impl Taken {
    /// Waits until `bytes` more may be read. To be called once at most: two operations that each have
    /// some and wait for more would wait for each other.
    pub(crate) async fn take_more(&self, io: &Io, bytes: usize) {
        let Room { fetched: all, waiting, .. } = &*self.room;
        waiting.update(|waiting| waiting + 1);
        while all.get() > 0 && all.get() + bytes > FETCHED {
            io.pause(1).await;
        }
        waiting.update(|waiting| waiting - 1);
        all.update(|all| all + bytes);
        self.fetched.update(|own| own + bytes);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.stored.update(|all| all - self.stored);
        self.room.fetched.update(|all| all - self.fetched.get());
    }
}

async fn carried_out(store: Rc<keyspace::Keyspace>, io: Io, taken: &Taken, Op { key, act }: Op) -> Ended {
    Ok(match act {
        Act::Get => match get(&store, &io, &key).await {
            Ok(Some(object)) if object.kind() != Type::String => return Err(Failed::WrongType),
            found => found.map(|found| found.map_or(Outcome::Absent, |object| Outcome::Found(Bytes(object)))),
        },
        Act::Put { value, expiry } => {
            let value = Value { kind: Type::String, expiry, bytes: value };
            store.put(&io, &key, &value).await.map(|()| Outcome::Done)
        }
        Act::PutNew { value, expiry } => put_new(&store, &io, &key, value, expiry).await,
        Act::Remove => store.remove(&io, &key).await.map(|there| if there { Outcome::Done } else { Outcome::Absent }),
        Act::Look => {
            // Of a long value, the list of its pieces: nothing more is asked than whether it is there.
            let found = store.find(&io, &key).await;
            found.map(|found| found.map_or(Outcome::Absent, |found| Outcome::Found(Bytes(found.object))))
        }
        Act::Expire { expiry } => {
            let change = |there: Option<&Object>| -> Result<Change<Outcome>, Trouble> {
                Ok(match there {
                    None => Change::Keep(Outcome::Absent),
                    Some(object) => {
                        let value = Value { kind: object.kind(), expiry, bytes: object.value().to_vec() };
                        Change::Put(value, Outcome::Done)
                    }
                })
            };
            store.update(&io, &key, change).await
        }
        Act::GetBlock => blocks::find(&store, &io, &key, taken).await,
        Act::PutBlock { block, expiry } => blocks::put(&store, &io, &key, &block.into(), expiry).await,
        Act::PutPayload { block, expiry } => blocks::put(&store, &io, &key, &block, expiry).await,
        Act::RemoveBlock => blocks::remove(&store, &io, &key).await,
        Act::LookBlock => blocks::look(&store, &io, &key).await,
        Act::PinBlock { until } => blocks::pin(&store, &io, &key, until).await,
    })
}

/// The key's object, from the near cache if that is allowed.
pub(crate) async fn get(store: &keyspace::Keyspace, io: &Io, key: &[u8]) -> Result<Option<Object>, Trouble> {
    match store.near(key) {
        Some(object) if object.kind() != Type::Long => Ok(Some(object)),
        _ => match store.get(io, key).await? {
            Some(found) => Box::pin(store.entire(io, found)).await.map(Some),
            None => Ok(None),
        },
    }
}

/// Stores a string if there is no such key.
pub(crate) async fn put_new(
    store: &keyspace::Keyspace,
    io: &Io,
    key: &[u8],
    value: Vec<u8>,
    expiry: Option<u64>,
) -> Result<Outcome, Trouble> {
    let value = Value { kind: Type::String, expiry, bytes: value };
    let change = |there: Option<&Object>| -> Result<Change<Outcome>, Trouble> {
        Ok(match there {
            Some(_) => Change::Keep(Outcome::Present),
            None => Change::Put(value.clone(), Outcome::Done),
        })
    };
    store.update(io, key, change).await
}
