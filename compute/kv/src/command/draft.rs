//! Values of keys as a transaction or a script leaves them, before any of them is written.
//!
//! A command on a draft reads and changes values there, and waits for nothing. At the end the
//! changes are written, or forgotten.

use super::channels::Message;
use crate::index::Found;
use crate::keyspace::Change;
use crate::layout::MAX_OBJECT;
use crate::object::{self, Object, Type, Value};
use crate::shard::Trouble;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A key's state when it was read: its slot and its object's checksum, which every change replaces.
/// `None`: absent.
pub type Seen = Option<(u64, u64)>;

/// The state of a key that was found or not.
pub fn seen(found: Option<&Found>) -> Seen {
    found.map(|found| (found.slot.0, found.object.checksum()))
}

/// One key of a draft.
#[derive(Debug)]
struct Page {
    /// As the commands left it; `None`: absent.
    object: Option<Object>,
    /// The value to write. `None`: nothing was changed.
    change: Option<Option<Value>>,
}

/// Bytes of the values that a draft may change.
const BYTES: usize = 128 << 20;

/// See the module.
#[derive(Debug, Default)]
pub struct Draft {
    pages: RefCell<BTreeMap<Vec<u8>, Page>>,
    /// A key that a command asked for and that was not read into the draft.
    missed: RefCell<Option<Vec<u8>>>,
    /// Bytes of the values to write, and of messages.
    bytes: Cell<usize>,
    /// Messages to publish.
    messages: RefCell<Vec<Rc<Message>>>,
    /// Whether a command may not change values.
    pub read_only: Cell<bool>,
}

impl Draft {
    /// Of one key.
    pub fn of(key: &[u8], object: Option<Object>) -> Draft {
        let draft = Draft::default();
        draft.enter(key, object);
        draft
    }

    /// Takes a key in as it was read.
    pub fn enter(&self, key: &[u8], object: Option<Object>) {
        self.pages.borrow_mut().insert(key.to_vec(), Page { object, change: None });
    }

    /// The key's object, unless it has ended.
    ///
    /// # Errors
    /// [`Trouble::Unread`]: the key is not in the draft.
    pub fn object(&self, key: &[u8], now_ms: u64) -> Result<Option<Object>, Trouble> {
        let pages = self.pages.borrow();
        let page = pages.get(key).ok_or_else(|| self.miss(key))?;
        Ok(page.object.clone().filter(|object| object.expiry().is_none_or(|at| at > now_ms)))
    }

    /// Another value, or none.
    ///
    /// # Errors
    /// As of [`Draft::object`].
    pub fn put(&self, key: &[u8], value: Option<Value>) -> Result<(), Trouble> {
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(key).ok_or_else(|| self.miss(key))?;
        let new = value.as_ref().map_or(0, |value| value.bytes.len());
        let old = page.change.as_ref().and_then(Option::as_ref).map_or(0, |value| value.bytes.len());
        let bytes = self.bytes.get() - old + new;
        // A string that is longer goes by pieces. Both are refused now, not when others are written.
        let whole = value.as_ref().filter(|value| value.kind != Type::String);
        if bytes > BYTES || whole.is_some_and(|value| object::len(key, &value.bytes) > MAX_OBJECT) {
            return Err(Trouble::TooLarge);
        }
        self.bytes.set(bytes);
        page.object = value.as_ref().map(|value| Object::of(key, value));
        page.change = Some(value);
        Ok(())
    }

    /// Publishes a message when the draft has taken effect.
    ///
    /// # Errors
    /// There are too many.
    pub fn publish(&self, message: Rc<Message>) -> Result<(), Trouble> {
        let bytes = self.bytes.get() + message.channel.len() + message.text.len() + 64;
        if bytes > BYTES {
            return Err(Trouble::TooLarge);
        }
        self.bytes.set(bytes);
        self.messages.borrow_mut().push(message);
        Ok(())
    }

    /// The messages to publish.
    pub fn messages(&self) -> Vec<Rc<Message>> {
        self.messages.take()
    }

    fn miss(&self, key: &[u8]) -> Trouble {
        self.missed.borrow_mut().get_or_insert_with(|| key.to_vec());
        Trouble::Unread
    }

    /// The first key that was asked for and was not there. Commands may have gone astray since.
    pub fn missed(&self) -> Option<Vec<u8>> {
        self.missed.borrow_mut().take()
    }

    /// Its keys.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.pages.borrow().keys().cloned().collect()
    }

    /// The values to write, by their keys; `None`: the key goes.
    pub fn changes(&self) -> Vec<(Vec<u8>, Option<Value>)> {
        let mut pages = self.pages.borrow_mut();
        pages.iter_mut().filter_map(|(key, page)| Some((key.clone(), page.change.take()?))).collect()
    }

    /// The change of the only key.
    pub fn change<T>(&self, outcome: T) -> Change<T> {
        match self.changes().pop() {
            None => Change::Keep(outcome),
            Some((_, None)) => Change::Delete(outcome),
            Some((_, Some(value))) => Change::Put(value, outcome),
        }
    }
}
