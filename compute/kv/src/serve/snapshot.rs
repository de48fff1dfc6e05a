//! A store in a file, so that it survives a planned stop of all of its nodes.
//!
//! ```text
//! FARMEMKV │ version (8) │ entries │ 0 (1) │ number of entries (8) │ checksum of all before (8)
//! entry:  type (1) │ expiry (8) │ bytes of the key (4) │ of the value (4) │ key │ value
//! ```
//!
//! A snapshot is written beside its name, synced, and renamed: under its name there is a whole one
//! or the one before. Each key is as it was at some moment of the saving; clients that write
//! meanwhile are not stopped. A file is read to its end and compared with its checksum before any
//! of it is restored.

use super::open::{Config, Failed, alone, join as joined, wall_ms};
use crate::command::is_sound;
use crate::keyspace::{Cursor, Keyspace};
use crate::long::Reader as Extents;
use crate::object::{Object, Type, Value};
use crate::segments::{Lent, Working, streams};
use crate::shard::Trouble;
use crate::shard::index::Found;
use crate::task::{Io, join};
use std::cell::RefCell;
use std::fs::File;
use std::future::Future;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"FARMEMKV";
const VERSION: u64 = 1;
/// Between signs of life of the member that saves or restores.
const TICK: Duration = Duration::from_millis(500);
/// Keys that are restored side by side.
const AT_ONCE: usize = 64;
/// Bytes of them, at most, or one key.
const TOGETHER: usize = 16 << 20;
/// Segments of a collection that are read at once. Each has 2 MiB at most.
const SEGMENTS: usize = 16;

/// Why a snapshot cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum Wrong {
    /// The system refused it.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is no snapshot.
    #[error("it is no snapshot of a store")]
    Foreign,
    /// Another version.
    #[error("it was written by another version of farmem (format {0}, this one reads {VERSION})")]
    Version(u64),
    /// Not what was written.
    #[error("it is damaged or cut off: nothing was restored")]
    Damaged,
    /// The store has keys.
    #[error("the store has {0} keys already: restore into an empty store")]
    Occupied(u64),
    /// The store refused a key.
    #[error("{0}")]
    Store(#[from] Trouble),
}

/// Writes a store to a file; how many keys.
///
/// # Errors
/// The store cannot be opened, or the file cannot be written.
pub fn save(config: &Config, path: &Path) -> Result<u64, Failed> {
    let failed = |reason: Wrong| Failed::Snapshot { path: path.into(), reason };
    // It takes the place of what has its name: of a file that a link leads to, and of no device.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(failed(io::Error::other("what has this name is no file: name another").into()));
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    // A misspelt name makes no store, and no empty snapshot.
    let written = with_store(config, false, |io, store| {
        let beside = beside.clone();
        async move {
            let mut out = Writer::new(draft(&beside)?)?;
            each(&io, &store, |object| out.entry(object)).await?;
            out.end()
        }
    })?;
    let renamed = written.and_then(|keys| {
        std::fs::rename(&beside, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
        Ok(keys)
    });
    if renamed.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    renamed.map_err(failed)
}

/// A new file, which its owner alone may read. One that a killed process left goes. A link that another
/// user has laid there leads to nothing.
fn draft(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => File::options().write(true).create_new(true).mode(0o600).open(path),
    }
}

/// Fills an empty store from a file; how many keys.
///
/// # Errors
/// The store cannot be opened or is not empty, or the file is not whole.
pub fn restore(config: &Config, path: &Path) -> Result<u64, Failed> {
    let failed = |reason: Wrong| Failed::Snapshot { path: path.into(), reason };
    // Nothing is written to the store before all of the file was found sound.
    let mut reader = Reader::open(path).map_err(failed)?;
    while reader.entry().map_err(failed)?.is_some() {}
    let again = path.to_owned();
    let restored = with_store(config, true, |io, store| async move {
        let there = store.size(&io).await?;
        if there > 0 {
            return Err(Wrong::Occupied(there));
        }
        fill(&io, &store, Reader::open(&again)?).await
    })?;
    restored.map_err(failed)
}

/// Joins the store, carries out an operation, and leaves it. `create`: makes it if there is none.
fn with_store<T: 'static, F: Future<Output = T> + 'static>(
    config: &Config,
    create: bool,
    operation: impl FnOnce(Io, Rc<Keyspace>) -> F,
) -> Result<T, Failed> {
    let (mut drive, shards) = joined(config, create)?;
    let store = Rc::new(Keyspace::new(&config.name, shards, false, wall_ms(), 1));
    store.set_now_ms(wall_ms());
    let done = alone(&mut drive, |io| operation(io, Rc::clone(&store)))?;
    for shard in store.shards.clone() {
        alone(&mut drive, |io| async move { shard.members.leave(&io).await })?;
    }
    Ok(done)
}

/// Shows that this member is alive, now and then.
struct Alive {
    start: Instant,
    next: RefCell<Instant>,
}

impl Alive {
    fn new() -> Alive {
        let now = Instant::now();
        Alive { start: now, next: now.into() }
    }

    async fn show(&self, io: &Io, store: &Keyspace) -> Result<(), Trouble> {
        let now = Instant::now();
        if now < *self.next.borrow() {
            return Ok(());
        }
        *self.next.borrow_mut() = now + TICK;
        store.set_now_ms(wall_ms());
        for shard in &store.shards {
            shard.members.tick(io, now.duration_since(self.start).as_millis() as u64).await?;
        }
        Ok(())
    }
}

/// Shows every key's object.
async fn each(io: &Io, store: &Keyspace, mut see: impl FnMut(&Object) -> Result<(), Wrong>) -> Result<(), Wrong> {
    let (alive, mut at) = (Alive::new(), Some(Cursor::default()));
    while let Some(cursor) = at {
        alive.show(io, store).await?;
        let (objects, next) = store.scan_as(io, cursor, 64, true).await?;
        for object in objects {
            if !matches!(object.kind(), Type::Long | Type::Parts) {
                see(&object)?;
            } else if let Some(found) = store.find(io, object.key()).await? {
                // It may have been changed since the scan.
                see(&entire(io, store, found, &alive).await?)?;
            }
        }
        at = next;
    }
    Ok(())
}

/// All of a value in several objects, however large it is. It may take longer to read than a front
/// end may be silent.
async fn entire(io: &Io, store: &Keyspace, found: Found, alive: &Alive) -> Result<Object, Trouble> {
    let key = found.object.key().to_vec();
    if found.object.kind() == Type::Parts {
        let shard = store.shard(&key);
        let parts = Working::of(&store.segments, shard.reach.node, &found.object).ok_or(Trouble::Corrupt)?;
        let mut sides = [Vec::new(), Vec::new()];
        for (side, bytes) in sides.iter_mut().enumerate().take(if parts.kind == Type::Stream { 2 } else { 1 }) {
            for some in (0..parts.parts(side).len()).collect::<Vec<_>>().chunks(SEGMENTS) {
                let read = store.look(io, shard, &mut Lent::default(), || parts.joined(side, some)).await?;
                bytes.extend_from_slice(&read);
                alive.show(io, store).await?;
            }
        }
        let [first, second] = sides;
        let bytes = match parts.kind {
            Type::Stream => streams::join(&first, &second).ok_or(Trouble::Corrupt)?,
            _ => first,
        };
        return Ok(Object::of(&key, &Value { kind: parts.kind, expiry: found.object.expiry(), bytes }));
    }
    if found.object.kind() != Type::Long {
        return Ok(found.object);
    }
    let mut value = Value { kind: Type::String, expiry: found.object.expiry(), bytes: Vec::new() };
    let mut reader = Extents::new(Rc::clone(&store.shard(&key).reach), &found, 0, u64::MAX)?;
    while let Some(bytes) = reader.next(io).await? {
        value.bytes.extend_from_slice(&bytes);
        alive.show(io, store).await?;
    }
    Ok(Object::of(&key, &value))
}

async fn fill(io: &Io, store: &Rc<Keyspace>, mut reader: Reader) -> Result<u64, Wrong> {
    let (alive, mut keys) = (Alive::new(), 0);
    let mut ended = false;
    while !ended {
        let mut some = Vec::new();
        let mut bytes = 0;
        while some.len() < AT_ONCE && bytes < TOGETHER && !ended {
            match reader.entry()? {
                Some(entry) => {
                    bytes += entry.1.bytes.len();
                    some.push(entry);
                }
                None => ended = true,
            }
        }
        keys += some.len() as u64;
        alive.show(io, store).await?;
        let put = |(key, value): (Vec<u8>, Value)| -> Pin<Box<dyn Future<Output = Result<(), Trouble>>>> {
            let (io, store) = (io.clone(), Rc::clone(store));
            Box::pin(async move { store.put(&io, &key, &value).await })
        };
        for done in join(some.into_iter().map(put).collect()).await {
            done?;
        }
    }
    Ok(keys)
}

struct Writer {
    file: BufWriter<File>,
    checksum: Xxh3,
    entries: u64,
}

impl Writer {
    fn new(file: File) -> Result<Writer, Wrong> {
        let mut writer = Writer { file: BufWriter::with_capacity(1 << 20, file), checksum: Xxh3::new(), entries: 0 };
        writer.bytes(MAGIC)?;
        writer.bytes(&VERSION.to_le_bytes())?;
        Ok(writer)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        self.checksum.update(bytes);
        Ok(self.file.write_all(bytes)?)
    }

    fn entry(&mut self, object: &Object) -> Result<(), Wrong> {
        self.entries += 1;
        self.bytes(&[object.kind() as u8])?;
        self.bytes(&object.expiry().unwrap_or(0).to_le_bytes())?;
        self.bytes(&(object.key().len() as u32).to_le_bytes())?;
        self.bytes(&(object.value().len() as u32).to_le_bytes())?;
        self.bytes(object.key())?;
        self.bytes(object.value())
    }

    fn end(mut self) -> Result<u64, Wrong> {
        self.bytes(&[0])?;
        self.bytes(&self.entries.to_le_bytes())?;
        let checksum = self.checksum.digest();
        self.file.write_all(&checksum.to_le_bytes())?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(self.entries)
    }
}

struct Reader {
    file: BufReader<File>,
    checksum: Xxh3,
    entries: u64,
    /// Bytes of the file that were not read yet.
    left: u64,
}

impl Reader {
    fn open(path: &Path) -> Result<Reader, Wrong> {
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        let file = BufReader::with_capacity(1 << 20, file);
        let mut reader = Reader { file, checksum: Xxh3::new(), entries: 0, left };
        if left < 16 || reader.bytes(8)? != MAGIC {
            return Err(Wrong::Foreign);
        }
        match reader.number()? {
            VERSION => Ok(reader),
            other => Err(Wrong::Version(other)),
        }
    }

    fn bytes(&mut self, len: u64) -> Result<Vec<u8>, Wrong> {
        // A length is a claim: nothing is reserved that the file does not have.
        self.left = self.left.checked_sub(len).ok_or(Wrong::Damaged)?;
        let mut bytes = vec![0; len as usize];
        self.file.read_exact(&mut bytes)?;
        self.checksum.update(&bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u64, Wrong> {
        Ok(self.bytes(8)?.try_into().map_or(0, u64::from_le_bytes))
    }

    /// The next entry; `None` at the end of a sound file.
    fn entry(&mut self) -> Result<Option<(Vec<u8>, Value)>, Wrong> {
        let kind = self.bytes(1)?[0];
        if kind == 0 {
            let entries = self.number()?;
            let expected = self.checksum.digest();
            let sound = entries == self.entries && self.number()? == expected && self.left == 0;
            return if sound { Ok(None) } else { Err(Wrong::Damaged) };
        }
        let kind = Type::of(kind).ok_or(Wrong::Damaged)?;
        let expiry = Some(self.number()?).filter(|&at| at != 0);
        let lens = self.number()?;
        let key = self.bytes(lens & 0xffff_ffff)?;
        let bytes = self.bytes(lens >> 32)?;
        self.entries += 1;
        // Commands rely on the form of what they find. No command reads a block.
        if kind != Type::Block && !is_sound(kind, &bytes) {
            return Err(Wrong::Damaged);
        }
        Ok(Some((key, Value { kind, expiry, bytes })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_is_refused() {
        let path = std::env::temp_dir().join(format!("farmem-kv-snapshot-{}", std::process::id()));
        let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
        for n in 0..3u8 {
            let value = Value { kind: Type::String, expiry: Some(7), bytes: vec![n; 5] };
            writer.entry(&Object::of(&[n], &value)).unwrap();
        }
        let block = Value { kind: Type::Block, expiry: None, bytes: vec![9; 100] };
        writer.entry(&Object::of(b"farmem:block:k", &block)).unwrap();
        assert_eq!(writer.end().unwrap(), 4);
        let whole = std::fs::read(&path).unwrap();
        let read = |bytes: &[u8]| -> Result<usize, Wrong> {
            std::fs::write(&path, bytes)?;
            let (mut reader, mut entries) = (Reader::open(&path)?, 0);
            while reader.entry()?.is_some() {
                entries += 1;
            }
            Ok(entries)
        };
        assert_eq!(read(&whole).unwrap(), 4);
        for n in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[n] ^= 0x10;
            assert!(read(&wrong).is_err(), "byte {n}");
            assert!(read(&whole[..n]).is_err(), "cut off at {n}");
        }
        assert!(matches!(read(&[&whole[..], b"x"].concat()), Err(Wrong::Damaged)));
        std::fs::remove_file(&path).unwrap();
    }

    /// A folder may be everybody's, and a draft's name can be guessed.
    #[test]
    fn a_draft_is_its_owners_alone_and_follows_no_link() {
        use std::os::unix::fs::PermissionsExt;
        let name = |of: &str| std::env::temp_dir().join(format!("farmem-kv-draft-{of}-{}", std::process::id()));
        let (path, other) = (name("new"), name("other"));
        std::fs::write(&other, "mine").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        Writer::new(draft(&path).unwrap()).unwrap().end().unwrap();
        let about = std::fs::symlink_metadata(&path).unwrap();
        assert!(about.is_file() && about.permissions().mode() & 0o777 == 0o600, "{about:?}");
        assert_eq!(std::fs::read(&other).unwrap(), b"mine");
        assert!(draft(&path).unwrap().metadata().unwrap().len() == 0, "a draft that was left");
        [path, other].into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    /// Anybody can write a file with a right checksum. Commands rely on the form of values, and a
    /// head of a long value names memory that is another key's.
    #[test]
    fn values_that_no_store_has_are_refused() {
        let path = std::env::temp_dir().join(format!("farmem-kv-unsound-{}", std::process::id()));
        let read = |kind, bytes: &[u8]| -> Result<bool, Wrong> {
            let mut writer = Writer::new(File::create(&path)?)?;
            writer.entry(&Object::of(b"k", &Value { kind, expiry: None, bytes: bytes.to_vec() }))?;
            writer.end()?;
            Ok(Reader::open(&path)?.entry()?.is_some())
        };
        assert!(read(Type::String, b"").unwrap() && read(Type::Set, b"\x01\0\0\0a").unwrap());
        let unsound: [(Type, &[u8]); 7] = [
            (Type::SortedSet, b"\x01\0\0\0a"),
            (Type::Hash, b"\x01\0\0\0a"),
            (Type::List, b""),
            (Type::List, b"\xff\0\0\0a"),
            (Type::Stream, b"\x01"),
            (Type::Long, &[0; 16]),
            (Type::Message, b"\x01\0\0\0a"),
        ];
        for (kind, bytes) in unsound {
            assert!(matches!(read(kind, bytes), Err(Wrong::Damaged)), "{kind:?} {bytes:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
