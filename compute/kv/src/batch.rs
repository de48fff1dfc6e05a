//! Many operations of the library at once: their verbs travel together, so a batch takes the round
//! trips of one.

use crate::blocks::{self, Block};
use crate::embedded::{Bytes, Store};
use crate::keyspace::{self, Change, Cursor};
use crate::object::{Object, Type, Value};
use crate::serve::Failed;
use crate::shard::Trouble;
use crate::task::{self, Io};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Operations under way at a time. More wait for those before them.
const TOGETHER: usize = 256;
/// Bytes of values under way at a time, at most, or one operation.
const BYTES: usize = 32 << 20;

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
/// An operation under way.
pub(crate) type Running<T> = Pin<Box<dyn Future<Output = T>>>;

impl Store {
    /// Carries out operations side by side. Those on one key are not ordered. One that fails does
    /// not keep others from being carried out.
    ///
    /// # Errors
    /// A node is lost, or this front end was shut out: which of the operations took effect is then
    /// not known.
    pub fn batch(&mut self, ops: Vec<Op>) -> Result<Vec<Result<Outcome, Failed>>, Failed> {
        self.in_groups(ops, |op| op.act.bytes(), carried_out)
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
        let ops = away.iter().map(|&place| Op { key: keys[place].as_ref().to_vec(), act: Act::Get }).collect();
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

    /// Carries out things side by side, as many at a time as may be under way.
    pub(crate) fn in_groups<
        O: 'static,
        T: 'static,
        F: Future<Output = Result<Result<T, Trouble>, Failed>> + 'static,
    >(
        &mut self,
        ops: Vec<O>,
        bytes: impl Fn(&O) -> usize,
        start: impl Fn(Rc<keyspace::Keyspace>, Io, O) -> F,
    ) -> Result<Vec<Result<T, Failed>>, Failed> {
        let (mut outcomes, mut ops) = (Vec::with_capacity(ops.len()), ops.into_iter().peekable());
        while ops.peek().is_some() {
            self.tend()?;
            let (mut group, mut sum) = (Vec::new(), 0);
            while group.len() < TOGETHER
                && let Some(op) = ops.next_if(|op| group.is_empty() || sum + bytes(op) <= BYTES)
            {
                sum += bytes(&op);
                group.push(op);
            }
            let ended = self.run(|store, io| {
                let each =
                    group.into_iter().map(|op| -> Running<_> { Box::pin(start(Rc::clone(&store), io.clone(), op)) });
                let each = each.collect();
                async move { Ok(task::join(each).await) }
            })?;
            outcomes.extend(ended.into_iter().map(|ended| ended.and_then(|outcome| outcome.map_err(Failed::Refused))));
        }
        Ok(outcomes)
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

impl Act {
    fn bytes(&self) -> usize {
        match self {
            Act::Put { value, .. } | Act::PutNew { value, .. } => value.len(),
            Act::PutBlock { block, .. } => block.len(),
            // As large as blocks usually are at most.
            Act::GetBlock => 8 << 20,
            // How much comes is not known: half a piece, so that gets of large values are not all
            // under way at once.
            Act::Get | Act::Look => 1 << 18,
            Act::Remove | Act::Expire { .. } | Act::RemoveBlock | Act::LookBlock | Act::PinBlock { .. } => 0,
        }
    }
}

async fn carried_out(store: Rc<keyspace::Keyspace>, io: Io, Op { key, act }: Op) -> Ended {
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
        Act::GetBlock => blocks::find(&store, &io, &key).await,
        Act::PutBlock { block, expiry } => blocks::put(&store, &io, &key, block, expiry).await,
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
