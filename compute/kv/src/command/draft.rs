//! Values of keys as a transaction or a script leaves them, before any of them is written.
//!
//! A command on a draft reads and changes values there, and waits for nothing. At the end the
//! changes are written, or forgotten.

use super::channels::Message;
use crate::atomic::Intent;
use crate::keyspace::Change;
use crate::object::{Object, Type, Value};
use crate::segments::{Open, Segments, WHOLE, Working};
use crate::shard::Trouble;
use crate::shard::index::Found;
use farmem_protocol::random::Random;
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
#[derive(Clone, Debug)]
struct Page {
    /// As it was read; `None`: absent. Of a value in segments the head.
    read: Option<Object>,
    /// The same as commands see it.
    seen: Option<Object>,
    /// As the commands left it; `None`: absent.
    object: Option<Object>,
    /// The value to write. `None`: nothing was changed.
    change: Option<Option<Rc<Value>>>,
    /// Its part of the draft's bytes.
    counted: usize,
}

impl Page {
    fn take_change(&mut self) -> Option<Option<Value>> {
        self.change.take().map(|value| value.map(Rc::unwrap_or_clone))
    }
}

/// Bytes of the values that a draft may read, and of those that it may change.
pub const BYTES: usize = 128 << 20;

/// What a draft's commands have come to, so that what follows can be taken back.
#[derive(Debug)]
pub struct Mark {
    pages: BTreeMap<Vec<u8>, Page>,
    bytes: usize,
    messages: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Draft {
    pages: RefCell<BTreeMap<Vec<u8>, Page>>,
    /// The key whose value in segments, or whose stream, was changed last, and the value. Its page
    /// may lack what was changed.
    open: RefCell<Option<(Vec<u8>, Open)>>,
    /// The time for all of its commands, in ms since 1970.
    pub now_ms: u64,
    /// Numbers for its commands. They follow from the seed.
    pub random: RefCell<Random>,
    seed: u64,
    /// Keys that a command asked for and that were not read into the draft.
    missed: RefCell<Vec<Vec<u8>>>,
    /// Bytes of the values that were read.
    held: Cell<usize>,
    /// Bytes of the values to write, and of messages.
    bytes: Cell<usize>,
    /// Messages to publish.
    messages: RefCell<Vec<Rc<Message>>>,
    /// Whether a command may not change values.
    pub read_only: Cell<bool>,
}

impl Draft {
    /// One without keys.
    pub fn new(now_ms: u64, seed: u64) -> Draft {
        Draft {
            pages: RefCell::default(),
            open: RefCell::default(),
            now_ms,
            random: RefCell::new(Random::new(seed)),
            seed,
            missed: RefCell::default(),
            held: Cell::new(0),
            bytes: Cell::new(0),
            messages: RefCell::default(),
            read_only: Cell::new(false),
        }
    }

    /// Takes a key in as it was read.
    pub fn enter(&self, key: &[u8], object: Option<Object>) {
        self.enter_as(key, object.clone(), object);
    }

    /// [`Draft::enter`] of a key whose value is seen as another object than the one that was read:
    /// of one in segments all of it.
    pub fn enter_as(&self, key: &[u8], read: Option<Object>, seen: Option<Object>) {
        self.held.set(self.held.get() + seen.as_ref().map_or(0, |object| object.len() as usize));
        let page = Page { read, object: seen.clone(), seen, change: None, counted: 0 };
        self.pages.borrow_mut().insert(key.to_vec(), page);
    }

    /// Makes it what it was before the first command, with all keys that were read since.
    pub fn again(&self) {
        for page in self.pages.borrow_mut().values_mut() {
            page.counted = 0;
            if page.change.take().is_some() {
                page.object.clone_from(&page.seen);
            }
        }
        *self.open.borrow_mut() = None;
        self.missed.borrow_mut().clear();
        self.messages.borrow_mut().clear();
        self.bytes.set(0);
        *self.random.borrow_mut() = Random::new(self.seed);
    }

    /// Where the commands are now.
    pub fn mark(&self) -> Mark {
        self.encode();
        let (pages, messages) = (self.pages.borrow().clone(), self.messages.borrow().len());
        Mark { pages, bytes: self.bytes.get(), messages }
    }

    /// Takes back what commands have changed since.
    pub fn back_to(&self, mark: Mark) {
        *self.open.borrow_mut() = None;
        self.pages.replace(mark.pages);
        self.bytes.set(mark.bytes);
        self.messages.borrow_mut().truncate(mark.messages);
    }

    /// Bytes of the values that were read.
    pub fn held(&self) -> usize {
        self.held.get()
    }

    /// Number of its keys.
    pub fn count(&self) -> usize {
        self.pages.borrow().len()
    }

    /// Whether a key is still as it was read, or has ended since.
    pub fn is_as_read(&self, key: &[u8], there: Option<&Object>, now_ms: u64) -> bool {
        let pages = self.pages.borrow();
        let Some(page) = pages.get(key) else { return false };
        match (&page.read, there) {
            // The same bytes may lie elsewhere by now.
            (Some(read), Some(there)) => {
                read.checksum() == there.checksum()
                    || (read.kind(), read.expiry(), read.value()) == (there.kind(), there.expiry(), there.value())
            }
            (read, None) => read.as_ref().is_none_or(|read| read.expiry().is_some_and(|at| at <= now_ms)),
            (None, Some(_)) => false,
        }
    }

    /// The key's object, unless it has ended.
    ///
    /// # Errors
    /// [`Trouble::Unread`]: the key is not in the draft, or not as one object.
    pub fn object(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        match self.head(key)? {
            Some(object) if object.kind() == Type::Parts => Err(Trouble::Unread),
            object => Ok(object),
        }
    }

    /// [`Draft::object`], which may be the head of a value in segments.
    ///
    /// # Errors
    /// As there.
    pub fn head(&self, key: &[u8]) -> Result<Option<Object>, Trouble> {
        if self.open.borrow().as_ref().is_some_and(|(own, _)| own == key) {
            self.encode();
        }
        let pages = self.pages.borrow();
        let page = pages.get(key).ok_or_else(|| self.miss(key))?;
        Ok(page.object.clone().filter(|object| object.expiry().is_none_or(|at| at > self.now_ms)))
    }

    /// Another value, or none.
    ///
    /// # Errors
    /// As of [`Draft::object`].
    pub fn put(&self, key: &[u8], value: Option<Value>) -> Result<(), Trouble> {
        let mut pages = self.pages.borrow_mut();
        let page = pages.get_mut(key).ok_or_else(|| self.miss(key))?;
        let new = value.as_ref().map_or(0, |value| value.bytes.len());
        let bytes = self.bytes.get() - page.counted + new;
        // A string that is longer goes by pieces. Both are refused now, not when others are written.
        let whole = value.as_ref().filter(|value| value.kind != Type::String);
        if bytes > BYTES || whole.is_some_and(|value| value.bytes.len() as u64 > WHOLE) {
            return Err(Trouble::TooLarge);
        }
        self.open.borrow_mut().take_if(|(own, _)| *own == key);
        self.bytes.set(bytes);
        page.counted = new;
        page.object = value.as_ref().map(|value| Object::of(key, value));
        page.change = Some(value.map(Rc::new));
        Ok(())
    }

    /// Takes a key's value in segments, or a stream, to be changed and kept. `None`: it has no such
    /// value.
    ///
    /// # Errors
    /// As of [`Draft::head`]. It is no value, or the draft's values have too many bytes.
    pub fn take_open(&self, segments: &Segments, node: u8, key: &[u8]) -> Result<Option<Open>, Trouble> {
        if self.bytes.get() > BYTES {
            return Err(Trouble::TooLarge);
        }
        if let Some((_, open)) = self.open.borrow_mut().take_if(|(own, _)| *own == key) {
            return Ok(Some(open));
        }
        let Some(object) = self.head(key)? else { return Ok(None) };
        let value = match object.kind() {
            Type::Parts => Working::of(segments, node, &object),
            Type::Stream => Working::opened(segments, &object),
            _ => return Ok(None),
        };
        let mut open = value.ok_or(Trouble::Corrupt)?.close().0;
        // What earlier commands have added counts on.
        open.has_grown(self.pages.borrow().get(key).map_or(0, |page| page.counted));
        Ok(Some(open))
    }

    /// Keeps a key's value as commands have left it.
    pub fn keep(&self, key: &[u8], open: Open) {
        if self.open.borrow().as_ref().is_some_and(|(own, _)| own != key) {
            self.encode();
        }
        if let Some(page) = self.pages.borrow_mut().get_mut(key) {
            self.bytes.set(self.bytes.get() - page.counted + open.growth());
            page.counted = open.growth();
        }
        self.open.replace(Some((key.to_vec(), open)));
    }

    /// Puts the value that is open into its page.
    fn encode(&self) {
        if let Some((key, open)) = self.open.take().filter(|(_, open)| open.is_changed())
            && let Some(page) = self.pages.borrow_mut().get_mut(&key)
        {
            let parts = || Value { kind: Type::Parts, expiry: open.expiry(), bytes: open.encode() };
            let value = open.as_one().unwrap_or_else(parts);
            page.object = Some(Object::of(&key, &value));
            page.change = Some(Some(Rc::new(value)));
        }
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
        self.missed.borrow_mut().push(key.to_vec());
        Trouble::Unread
    }

    /// Whether a command has asked for a key that is not there. It has gone astray.
    pub fn has_missed(&self) -> bool {
        !self.missed.borrow().is_empty()
    }

    /// Notes that a command has gone astray that names these keys.
    pub fn miss_all<'a>(&self, keys: impl IntoIterator<Item = &'a [u8]>) {
        let pages = self.pages.borrow();
        let absent = keys.into_iter().filter(|key| !pages.contains_key(*key)).map(<[u8]>::to_vec);
        self.missed.borrow_mut().extend(absent);
    }

    /// The keys that were asked for and were not there, each once.
    pub fn missed(&self) -> Vec<Vec<u8>> {
        let mut missed = self.missed.take();
        missed.sort_unstable();
        missed.dedup();
        missed
    }

    /// Its keys.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.pages.borrow().keys().cloned().collect()
    }

    /// The values to write, by their keys; `None`: the key goes.
    pub fn changes(&self) -> Vec<(Vec<u8>, Option<Value>)> {
        self.encode();
        let mut pages = self.pages.borrow_mut();
        pages.iter_mut().filter_map(|(key, page)| Some((key.clone(), page.take_change()?))).collect()
    }

    /// All keys, and what becomes of them.
    pub fn intents(&self) -> Vec<Intent> {
        self.encode();
        let mut pages = self.pages.borrow_mut();
        pages.iter_mut().map(|(key, page)| Intent { key: key.clone(), change: page.take_change() }).collect()
    }

    /// The change of the only key, whose value may be in segments.
    ///
    /// # Errors
    /// [`Trouble::Unread`]: it has become small, and segments are wanted.
    pub fn outcome<T>(&self, segments: &Segments, node: u8, outcome: T) -> Result<Change<T>, Trouble> {
        let open = match self.open.take() {
            Some((_, open)) if open.is_changed() => open,
            _ => match self.change(outcome) {
                Change::Put(value, outcome) if value.kind == Type::Parts => {
                    let mut open = Open::decode(node, &value.bytes, value.expiry).ok_or(Trouble::Corrupt)?;
                    open.set_changed();
                    return Working::on(segments, open).change(outcome);
                }
                change => return Ok(change),
            },
        };
        Working::on(segments, open).change(outcome)
    }

    /// The change of the only key, whose value is one object.
    pub fn change<T>(&self, outcome: T) -> Change<T> {
        match self.changes().pop() {
            None => Change::Keep(outcome),
            Some((_, None)) => Change::Delete(outcome),
            Some((_, Some(value))) => Change::Put(value, outcome),
        }
    }
}
