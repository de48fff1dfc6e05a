//! How commands reach a key: in the store, or in the draft of a transaction or a script.

use super::in_turn::Turn;
use super::{Call, Draft, Fail, notify};
use crate::keyspace::Change;
use crate::object::{Object, Type, Value};
use crate::segments::{self, Lent, Working};
use crate::shard::Trouble;
use crate::shard::index::Found;
use std::cell::Cell;

impl Call {
    /// Milliseconds since 1970. On a draft always the same.
    pub(super) fn now_ms(&self) -> u64 {
        self.draft.as_ref().map_or_else(|| self.store().now_ms(), |draft| draft.now_ms)
    }

    /// A number below `bound`. On a draft it follows from the draft's seed.
    pub(super) fn random(&self, bound: usize) -> usize {
        match &self.draft {
            Some(draft) => draft.random.borrow_mut().index(bound.max(1)),
            None => self.store().random(bound),
        }
    }

    /// The key's object, unless it has ended.
    pub(super) async fn find(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        match &self.draft {
            Some(draft) => draft.object(key),
            None => self.as_one(self.store().find(&self.io, key).await?).await,
        }
    }

    /// [`Call::find`], which may be the head of a value in segments.
    pub(super) async fn find_head(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        match &self.draft {
            Some(draft) => draft.head(key),
            None => Ok(self.store().find(&self.io, key).await?.map(|found| found.object)),
        }
    }

    async fn as_one(&self, found: Option<Found>) -> Result<Option<Object>, Trouble> {
        match found {
            Some(found) if found.object.kind() == Type::Parts => {
                self.reads.admit(&self.io, segments::len(&found.object) as usize).await;
                Ok(Some(self.store().as_one(&self.io, &found.object).await?))
            }
            found => Ok(found.map(|found| found.object)),
        }
    }

    /// What a key's value shows. `see` gets the key's object, unless it has ended, or the value
    /// that is in segments, and is called again when segments have been read. The read counts.
    ///
    /// # Errors
    /// Those of `see`, and those of the store.
    pub(super) async fn view<T>(
        &self,
        key: &[u8],
        see: impl Fn(Option<&Object>, Option<&Working<'_>>) -> Result<T, Fail>,
    ) -> Result<T, Fail> {
        let store = self.store();
        let (found, object) = match &self.draft {
            Some(draft) => (None, draft.head(key)?),
            None => {
                let found = store.get(&self.io, key).await?;
                let object = found.as_ref().map(|found| found.object.clone());
                (found, object)
            }
        };
        let Some(head) = object.as_ref().filter(|object| object.kind() == Type::Parts) else {
            return see(object.as_ref(), None);
        };
        let shard = store.shard(key);
        let look = || {
            let value = Working::of(&store.segments, shard.reach.node, head).ok_or(Trouble::Corrupt)?;
            see(None, Some(&value))
        };
        if self.draft.is_some() {
            return look();
        }
        let shown = Box::pin(store.look(&self.io, shard, &mut Lent::default(), look)).await;
        drop(found);
        shown
    }

    /// [`Call::find`] for a command that reads: counted.
    pub(super) async fn get(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        match &self.draft {
            Some(draft) => draft.object(key),
            None => self.as_one(self.store().get(&self.io, key).await?).await,
        }
    }

    /// [`Call::get`], which may be the head of a value in segments.
    pub(super) async fn get_head(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        match &self.draft {
            Some(draft) => draft.head(key),
            None => Ok(self.store().get(&self.io, key).await?.map(|found| found.object.clone())),
        }
    }

    /// The turn of a command that changes this key, if one on several keys has it.
    pub(super) async fn turn(&self, key: &[u8]) -> Option<Turn<'_>> {
        if self.in_turn { None } else { self.front.in_turn.for_one(&self.io, key).await }
    }

    /// Stores a value, in place of any other.
    pub(super) async fn put(&self, key: &[u8], value: &Value) -> Result<(), Trouble> {
        match &self.draft {
            Some(draft) => draft.put(key, Some(value.clone()))?,
            None => {
                let _turn = self.turn(key).await;
                self.store().put(&self.io, key, value).await?;
            }
        }
        self.tell(key, Some(false)).await
    }

    /// Takes a key out; whether it was there.
    pub(super) async fn remove(&self, key: &[u8]) -> Result<bool, Trouble> {
        let there = match &self.draft {
            Some(draft) => {
                let there = draft.head(key)?.is_some();
                if there {
                    draft.put(key, None)?;
                }
                there
            }
            None => {
                let _turn = self.turn(key).await;
                self.store().remove(&self.io, key).await?
            }
        };
        self.tell(key, there.then_some(true)).await?;
        Ok(there)
    }

    /// Publishes a change of a key, if that is wanted: whether it is gone.
    pub(super) async fn tell(&self, key: &[u8], gone: Option<bool>) -> Result<(), Trouble> {
        match gone {
            Some(gone) if self.front.events.is_any() => Box::pin(notify::changed(self, key, gone)).await,
            _ => Ok(()),
        }
    }

    /// Changes a key by what it is.
    ///
    /// # Errors
    /// Those of the change, which is not made then, and those of the store.
    pub(super) async fn update<T, E: From<Trouble>>(
        &self,
        key: &[u8],
        change: impl FnMut(Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        self.update_as(key, true, change).await
    }

    /// [`Call::update`]. `whole`: of a value in segments all is seen. Otherwise the head is, and
    /// `change` may want segments.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn update_as<T, E: From<Trouble>>(
        &self,
        key: &[u8],
        whole: bool,
        mut change: impl FnMut(Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        let gone = Cell::new(None);
        let mut change = |there: Option<&Object>| -> Result<Change<T>, E> {
            let decided = change(there)?;
            gone.set(match &decided {
                Change::Keep(_) => None,
                Change::Put(..) | Change::Parts(..) => Some(false),
                Change::Delete(_) => there.map(|_| true),
            });
            Ok(decided)
        };
        let outcome = match &self.draft {
            None => {
                let _turn = self.turn(key).await;
                self.store().update_found(&self.io, key, whole, |_, there| change(there)).await?
            }
            Some(draft) => Self::update_on(draft, key, whole, change)?,
        };
        self.tell(key, gone.get()).await?;
        Ok(outcome)
    }

    fn update_on<T, E: From<Trouble>>(
        draft: &Draft,
        key: &[u8],
        whole: bool,
        mut change: impl FnMut(Option<&Object>) -> Result<Change<T>, E>,
    ) -> Result<T, E> {
        let there = if whole { draft.object(key)? } else { draft.head(key)? };
        match change(there.as_ref())? {
            Change::Keep(outcome) => Ok(outcome),
            Change::Put(value, outcome) => {
                draft.put(key, Some(value))?;
                Ok(outcome)
            }
            Change::Parts(open, outcome) => {
                draft.keep(key, *open);
                Ok(outcome)
            }
            Change::Delete(outcome) => {
                draft.put(key, None)?;
                Ok(outcome)
            }
        }
    }

    /// Changes a key's value in segments where it lies open on the draft: what is altered is not
    /// encoded before the draft has ended. So does a stream, also one that is not there yet. `None`:
    /// there is no draft, or no such value on it.
    ///
    /// # Errors
    /// Those of `edit`. If it has changed something before it failed, the draft comes to nothing:
    /// its commands begin again when segments have been read, or are carried out one by one.
    pub(super) async fn change_open<T>(
        &self,
        key: &[u8],
        kind: Type,
        edit: impl FnOnce(&mut Working<'_>) -> Result<T, Fail>,
    ) -> Result<Option<T>, Fail> {
        let Some(draft) = &self.draft else { return Ok(None) };
        let store = self.store();
        let mut value = match draft.take_open(&store.segments, store.shard(key).reach.node, key)? {
            Some(open) => Working::on(&store.segments, open),
            None if kind == Type::Stream && draft.head(key)?.is_none() => Working::none(&store.segments, kind),
            None => return Ok(None),
        };
        let came = if value.kind == kind { edit(&mut value) } else { Err(Fail::wrong_type()) };
        let (open, touched) = value.close();
        let gone = open.is_empty();
        match &came {
            Ok(_) if touched && gone => draft.put(key, None)?,
            // The next command must not see the half of a change.
            Err(fail) if touched && *fail != Trouble::Unread.into() => return Err(Trouble::TooLarge.into()),
            Err(_) if touched => {}
            _ if gone => {}
            _ => draft.keep(key, open),
        }
        let outcome = came?;
        self.tell(key, touched.then_some(gone)).await?;
        Ok(Some(outcome))
    }
}
