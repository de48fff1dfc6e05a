//! Long values at the front end: those that stream in and out, and commands that change them.
//!
//! ```text
//!  socket ─► Inlet ─► task: extents ─► Long: an argument that the command finds written already
//!  socket ◄─ Outlet ◄─ task: extents ◄─ Found: its section keeps them while the client reads
//! ```
//!
//! Neither way holds more than a few extents of a value in memory. The socket waits when the inlet
//! is full, and the task when the outlet is. An upload holds no key: it delays nobody. A reader
//! that is slow holds the epoch, as far as a client may be slow.

use super::{Answered, Call, Fail, Front};
use crate::layout::{MAX_OBJECT, UNIT, class_of};
use crate::long::{self, Long, MAX_LONG, Reader, Writer};
use crate::object::{self, Object, Type, Value};
use crate::resp::Reply;
use crate::shard::Trouble;
use crate::shard::index::{Found, Inserted};
use crate::task::Io;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// Bytes of a value that wait at the front end, at most, and one extent.
const WAITING: usize = 4 << 20;
/// Bytes of a long value that commands take as a whole which do not stream it.
pub const MOST_WHOLE: u64 = 16 << 20;
/// Written where a string is made longer by its far end.
const ZEROS: &[u8] = &[0; 64 << 10];

/// Bytes on their way from a socket to extents, or back.
#[derive(Debug, Default)]
struct Pipe {
    waiting: RefCell<VecDeque<Vec<u8>>>,
    bytes: Cell<usize>,
}

impl Pipe {
    fn is_full(&self) -> bool {
        self.bytes.get() >= WAITING
    }

    fn push(&self, bytes: Vec<u8>) {
        self.bytes.set(self.bytes.get() + bytes.len());
        self.waiting.borrow_mut().push_back(bytes);
    }

    fn pop(&self) -> Option<Vec<u8>> {
        let bytes = self.waiting.borrow_mut().pop_front()?;
        self.bytes.set(self.bytes.get() - bytes.len());
        Some(bytes)
    }
}

/// An argument that streams in.
#[derive(Debug)]
pub struct Inlet {
    pipe: Pipe,
    key: Vec<u8>,
    len: usize,
    /// Bytes that have come.
    came: Cell<usize>,
    begun: Cell<bool>,
    written: RefCell<Option<Result<Rc<Long>, Trouble>>>,
}

impl Inlet {
    /// Of the value of a key, which has `len` bytes.
    pub fn new(key: &[u8], len: usize) -> Inlet {
        let (key, pipe) = (key.to_vec(), Pipe::default());
        Inlet { pipe, key, len, came: Cell::new(0), begun: Cell::new(false), written: RefCell::default() }
    }

    /// Whether nobody has asked this before.
    pub fn is_new(&self) -> bool {
        !self.begun.replace(true)
    }

    /// Whether the socket has to wait.
    pub fn is_full(&self) -> bool {
        self.pipe.is_full()
    }

    /// Bytes came. They are dropped if the value cannot be written.
    pub fn push(&self, bytes: Vec<u8>) {
        self.came.set(self.came.get() + bytes.len());
        if self.written.borrow().is_none() {
            self.pipe.push(bytes);
        }
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> usize {
        self.len - self.came.get()
    }

    /// The value, once all of it has come and is written.
    pub fn take(&self) -> Option<Result<Rc<Long>, Trouble>> {
        if self.left() > 0 { None } else { self.written.borrow_mut().take() }
    }

    /// Whether its connection may go on.
    pub fn is_ready(&self) -> bool {
        if self.left() > 0 { !self.is_full() } else { self.written.borrow().is_some() }
    }

    /// Writes what comes, until the end or until the connection is gone.
    pub async fn run(inlet: Rc<Inlet>, io: Io, front: Rc<Front>) {
        let written = Box::pin(inlet.write(&inlet, &io, &front)).await;
        if let Some(written) = written {
            while inlet.pipe.pop().is_some() {}
            inlet.written.replace(Some(written.map(Rc::new)));
        }
    }

    async fn write(&self, inlet: &Rc<Inlet>, io: &Io, front: &Front) -> Option<Result<Long, Trouble>> {
        let (mut writer, mut got) = (Writer::new(&front.store, &self.key, self.len as u64), 0);
        while got < self.len {
            if Rc::strong_count(inlet) == 1 {
                return None;
            }
            match self.pipe.pop() {
                None => io.pause(1).await,
                Some(bytes) => {
                    got += bytes.len();
                    if let Err(trouble) = writer.write(io, &bytes).await {
                        return Some(Err(trouble));
                    }
                }
            }
        }
        Some(writer.end(io).await)
    }
}

/// A reply that streams out.
#[derive(Debug)]
pub struct Outlet {
    pipe: Pipe,
    found: Found,
    from: u64,
    to: u64,
    /// Whether its length was sent.
    begun: Cell<bool>,
    sent: Cell<u64>,
    failed: Cell<bool>,
}

impl PartialEq for Outlet {
    fn eq(&self, other: &Outlet) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Outlet {
    /// Bytes of the reply.
    pub fn len(&self) -> u64 {
        self.to - self.from
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether this is the first call.
    pub fn begins(&self) -> bool {
        !self.begun.replace(true)
    }

    /// The next bytes, if they are there.
    pub fn take(&self) -> Option<Vec<u8>> {
        let bytes = self.pipe.pop()?;
        self.sent.set(self.sent.get() + bytes.len() as u64);
        Some(bytes)
    }

    /// Whether all was taken.
    pub fn is_over(&self) -> bool {
        self.sent.get() == self.len()
    }

    /// Whether the rest cannot be read. The client has its length already, so its connection ends.
    pub fn has_failed(&self) -> bool {
        self.failed.get()
    }

    /// Reads the value, until the end or until the connection is gone.
    pub async fn run(outlet: Rc<Outlet>, io: Io, front: Rc<Front>) {
        let read = Box::pin(outlet.read(&outlet, &io, &front)).await;
        if let Err(trouble) = read {
            eprintln!("farmem: store {}: a reply of several pieces is cut off: {trouble}", front.store.name);
            outlet.failed.set(true);
        }
    }

    async fn read(&self, outlet: &Rc<Outlet>, io: &Io, front: &Front) -> Result<(), Trouble> {
        let reach = Rc::clone(&front.store.shard(self.found.object.key()).reach);
        let mut reader = Reader::new(reach, &self.found, self.from, self.to)?;
        while Rc::strong_count(outlet) > 1 {
            if self.pipe.is_full() {
                io.pause(1).await;
                continue;
            }
            match reader.next(io).await? {
                Some(bytes) => self.pipe.push(bytes),
                None => break,
            }
        }
        Ok(())
    }
}

/// An argument that was written as it came: its place among the arguments.
pub type Given = (usize, Result<Rc<Long>, Trouble>);

/// The argument of a command that may stream in: its place, the key being the first.
pub fn streams(command: &[u8]) -> Option<usize> {
    let is = |name: &str| command.eq_ignore_ascii_case(name.as_bytes());
    match command.len() {
        3 if is("set") => Some(2),
        5 if is("setnx") || is("setex") => Some(if is("setnx") { 2 } else { 3 }),
        6 if is("append") || is("getset") || is("psetex") => Some(if is("psetex") { 3 } else { 2 }),
        8 if is("setrange") => Some(3),
        _ => None,
    }
}

/// Arguments from this size on stream in.
pub const STREAMED: usize = (MAX_OBJECT - UNIT) as usize;

/// The error of a command that cannot take a value of several pieces.
pub fn too_long() -> Fail {
    Fail::new(
        "the value has more than 2 MiB: only SET, GET, GETRANGE, SETRANGE, APPEND, STRLEN and commands on keys take \
         it, and those in transactions no more than STRLEN and the latter",
    )
}

impl Call {
    /// An argument that has streamed in.
    fn given(&self, n: usize) -> Option<&Rc<Long>> {
        self.given.as_ref().filter(|(place, _)| *place == n).and_then(|(_, given)| given.as_ref().ok())
    }

    /// Bytes of an argument.
    pub(super) fn arg_len(&self, n: usize) -> u64 {
        self.given(n).map_or(self.arg(n).len() as u64, |long| long.list().len)
    }

    /// An argument as a value.
    pub(super) fn value(&self, n: usize, expiry: Option<u64>) -> Value {
        match self.given(n) {
            Some(long) => long.head(expiry),
            None => Value { kind: Type::String, expiry, bytes: self.arg(n).to_vec() },
        }
    }

    /// A reply with a range of a long value.
    pub(super) fn stream(&self, found: Found, from: u64, to: u64) -> Answered {
        if self.in_exec {
            return Err(too_long());
        }
        let (begun, sent, failed) = (Cell::new(false), Cell::new(0), Cell::new(false));
        let outlet = Outlet { pipe: Pipe::default(), found, from, to, begun, sent, failed };
        Ok(Reply::Long(Rc::new(outlet)))
    }
}

/// Bytes of a key's string; 0: there is no key.
fn string_len(found: Option<&Found>) -> Result<u64, Fail> {
    match found.map(|found| (found.object.kind(), &found.object)) {
        None => Ok(0),
        Some((Type::String | Type::Long, object)) => Ok(long::len(object)),
        Some(_) => Err(Fail::wrong_type()),
    }
}

/// Writes an argument into a key's string from a byte on, or behind its end, where the result is a
/// long value. As often as it takes for nobody to come between.
pub async fn splice(call: &Call, at: Option<u64>, n: usize) -> Answered {
    let (store, io, key) = (call.store(), &call.io, call.arg(1));
    let (shard, given) = (store.shard(key), call.arg_len(n));
    loop {
        let old = string_len(store.find(io, key).await?.as_ref())?;
        if given == 0 {
            return Ok(Reply::Int(old as i64));
        }
        let at = at.unwrap_or(old);
        let end = at.saturating_add(given);
        if end > MAX_LONG {
            return Err(super::strings::too_long());
        }
        let mut writer = Writer::new(store, key, old.max(end));
        writer.reserve(io).await?;
        // From here on its section is held, and no memory is waited for.
        let found = store.find(io, key).await?;
        if string_len(found.as_ref())? != old {
            continue;
        }
        if let Some(found) = &found {
            writer.copy(io, found, 0, at.min(old)).await?;
        }
        for begin in (old..at).step_by(ZEROS.len()) {
            writer.write(io, &ZEROS[..ZEROS.len().min((at - begin) as usize)]).await?;
        }
        match call.given(n) {
            Some(long) => writer.copy_long(io, long).await?,
            None => writer.write(io, call.arg(n)).await?,
        }
        if let Some(found) = &found {
            writer.copy(io, found, end.min(old), old).await?;
        }
        let long = writer.end(io).await?;
        let done = match &found {
            Some(found) => shard.index.replace(io, key, found, Some(&long.head(found.object.expiry()))).await,
            None => match shard.index.insert(io, key, &long.head(None)).await {
                // A transaction's, which may stand there for a while.
                Ok(Inserted::Exists(vacant)) if vacant.object.kind() == Type::Vacant => {
                    shard.index.replace(io, key, &vacant, Some(&long.head(None))).await
                }
                ended => ended.map(|ended| matches!(ended, Inserted::Done)),
            },
        };
        match done {
            Ok(true) => return Ok(Reply::Int(old.max(end) as i64)),
            Ok(false) => {}
            Err(Trouble::Full) => {
                let len = object::len(key, &long.head(None).bytes);
                drop((found, long));
                store.make_room(io, shard, class_of(len), len).await?;
            }
            Err(trouble) => return Err(trouble.into()),
        }
    }
}

/// Gives a key the long value of another, with its expiry; not if something is there and that is
/// not wanted. `object`: the value as it was found.
pub async fn copy(call: &Call, object: &Object, to: &[u8], if_absent: bool) -> Result<bool, Fail> {
    let (store, from, len) = (call.store(), object.key(), long::len(object));
    let mut writer = Writer::new(store, to, len);
    writer.reserve(&call.io).await?;
    let found = store.find(&call.io, from).await?;
    let same = found.filter(|found| found.object.checksum() == object.checksum());
    let found = same.ok_or_else(|| Fail::new("the key was changed meanwhile: repeat the command"))?;
    let mut reader = Reader::new(Rc::clone(&store.shard(from).reach), &found, 0, len)?;
    while let Some(bytes) = reader.next(&call.io).await? {
        writer.write(&call.io, &bytes).await?;
    }
    let long = writer.end(&call.io).await?;
    drop(found);
    super::keys::put_at(call, to, &long.head(object.expiry()), if_absent).await
}
