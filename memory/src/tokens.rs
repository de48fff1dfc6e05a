//! The store of tokens: a file of the operator's. A node reads it at start, and again when it
//! changes.
//!
//! ```toml
//! [tenant.analytics]
//! quota = 68719476736
//! rate = 500000000
//!
//! [[token]]
//! tenant = "analytics"
//! id = "1f0c…"            # public: a token file has it, too
//! key = "9b44…"           # SHA-256 of the secret
//! created = 1795651200
//! expires = 1798243200
//! ```
//!
//! A key proves a token, so a reader of the store can borrow in every tenant's name at this node.
//! The store is refused unless only its owner may read it.

use farmem_nic::Nic;
use farmem_nic::tenants::{Known, Standing};
use farmem_protocol::wire::Text;
use farmem_trust::file::{self, FileError};
use farmem_trust::{Key, Token, TokenId, hex, is_tenant, unhex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between attempts to read a store that could not be read and does not change, and between errors
/// about it.
const AGAIN: Duration = Duration::from_secs(1);
const TOLD: Duration = Duration::from_secs(60);

/// Why a store, or a token's file, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// It cannot be read, or others may read it.
    #[error(transparent)]
    Secret(#[from] FileError),
    /// Its text is no store.
    #[error("{0}: {1}")]
    Content(PathBuf, String),
    /// Its folder is not there.
    #[error("{0}: there is no such folder: make it first")]
    NoFolder(PathBuf),
    /// Another command is changing it, or was interrupted and left its draft.
    #[error("{0}: another farmem token is at work on it; if none is, remove {1}")]
    Busy(PathBuf, PathBuf),
}

impl StoreError {
    /// What to do where there is no store; empty otherwise.
    pub fn remedy(&self) -> &'static str {
        match self {
            StoreError::Secret(FileError::File(_, e)) if e.kind() == io::ErrorKind::NotFound => {
                ": farmem token create makes one"
            }
            _ => "",
        }
    }

    /// Whether the reason is that this process has no permission to read the file.
    pub fn forbidden(&self) -> bool {
        matches!(self, StoreError::Secret(FileError::File(_, e)) if e.kind() == io::ErrorKind::PermissionDenied)
    }
}

/// The content of a store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// By name.
    #[serde(default, rename = "tenant", skip_serializing_if = "BTreeMap::is_empty")]
    pub tenants: BTreeMap<String, TenantEntry>,
    /// In the order in which they were made.
    #[serde(default, rename = "token", skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<Entry>,
}

/// A tenant's entry in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantEntry {
    /// Bytes that its programs may hold together at a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// Bytes a second that its programs may move together through a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
    /// Bytes that its programs may hold together in the whole rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack_quota: Option<u64>,
}

/// A token's entry in the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name of its tenant.
    pub tenant: String,
    /// Its public name.
    pub id: String,
    key: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// When it expires, in seconds since 1970. `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Whether it was revoked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

impl Entry {
    /// The entry of a new token.
    pub fn new(token: &Token, expires: Option<u64>) -> Entry {
        let key = token.key();
        let (tenant, id) = (key.tenant.to_string(), hex(&key.id));
        Entry { tenant, id, key: hex(key.bytes()), created: now(), expires, revoked: false }
    }

    /// Whether it can be used now, and if not, why.
    pub fn standing(&self) -> Standing {
        match self.expires {
            _ if self.revoked => Standing::Revoked,
            Some(end) if end <= now() => Standing::Expired,
            _ => Standing::Good,
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Store {
    /// Reads a store.
    pub fn read(path: &Path) -> Result<Store, StoreError> {
        let wrong = |why: String| StoreError::Content(path.to_owned(), why);
        let store: Store = toml::from_str(&file::secret(path)?).map_err(|e| wrong(e.message().replace('\n', " ")))?;
        for entry in &store.tokens {
            let sound =
                is_tenant(&entry.tenant) && unhex::<8>(&entry.id).is_some() && unhex::<32>(&entry.key).is_some();
            if !sound {
                return Err(wrong(format!("the token {:?} of {:?} is not one", entry.id, entry.tenant)));
            }
        }
        Ok(store)
    }

    /// Changes a store by `change`. Creates the store if it does not exist. A reader sees the old
    /// store or the new one, never a part. Owner, group and mode stay. Where `path` is a link, the
    /// file that it leads to is changed: nodes may read that one by its own name.
    pub fn change<T>(path: &Path, change: impl FnOnce(&mut Store) -> Result<T, String>) -> Result<T, StoreError> {
        let is_there = fs::symlink_metadata(path).is_ok();
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(_) if !is_there => path.to_owned(),
            // A link to nowhere, or a folder that this process may not look into.
            Err(e) => return Err(StoreError::File(path.to_owned(), e)),
        };
        let path = path.as_path();
        // Behind the whole name: stores of one folder may differ in what looks like an extension.
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Busy(path.to_owned(), draft.clone()),
            io::ErrorKind::NotFound => StoreError::NoFolder(path.to_owned()),
            _ => StoreError::File(draft.clone(), e),
        };
        // The draft serves as a lock: only one command can create it, so no change is lost.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        let changed = (|| {
            let failed = |e| StoreError::File(draft.clone(), e);
            let mut store = Store::default();
            if is_there {
                store = Store::read(path)?;
                // Services that read it are not whoever changes it.
                let about = fs::metadata(path).map_err(|e| StoreError::File(path.to_owned(), e))?;
                fchown(&file, Some(about.uid()), Some(about.gid())).map_err(failed)?;
                file.set_permissions(about.permissions()).map_err(failed)?;
            }
            let wrong = |why| StoreError::Content(path.to_owned(), why);
            let made = change(&mut store).map_err(wrong)?;
            let text = toml::to_string(&store).map_err(|e| wrong(e.to_string()))?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            fs::rename(&draft, path).map_err(|e| StoreError::File(path.to_owned(), e))?;
            // A token that was revoked stays revoked, also if the machine fails now. A folder that cannot
            // be opened for this is written in the system's own time.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let _ = fs::File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
            Ok(made)
        })();
        if changed.is_err() {
            let _ = fs::remove_file(&draft);
        }
        changed
    }

    /// The tokens in the form in which a node knows them.
    fn known(&self) -> Vec<Known> {
        let known = |entry: &Entry| {
            let (id, bytes): (TokenId, [u8; 32]) = (unhex(&entry.id)?, unhex(&entry.key)?);
            let about = self.tenants.get(&entry.tenant);
            let quota = about.and_then(|tenant| tenant.quota).unwrap_or(u64::MAX);
            let rate = about.and_then(|tenant| tenant.rate).unwrap_or(u64::MAX);
            let (key, standing) = (Key::stored(Text::new(&entry.tenant), id, bytes), entry.standing());
            Some(Known { key, standing, quota, rate })
        };
        self.tokens.iter().filter_map(known).collect()
    }

    /// Tenants with a quota in the whole rack.
    fn rack_quotas(&self) -> BTreeMap<String, u64> {
        let of = |(name, tenant): (&String, &TenantEntry)| Some((name.clone(), tenant.rack_quota?));
        self.tenants.iter().filter_map(of).collect()
    }

    /// Makes a node serve only holders of these tokens.
    fn apply(&self, nic: &Nic) {
        let in_rack: Vec<_> = self.rack_quotas().keys().map(|name| Text::new(name)).collect();
        nic.tenants.set_in_rack(&in_rack);
        nic.set_tokens(self.known());
    }

    /// The keys of the tokens that can be used now.
    fn good(&self) -> BTreeMap<TokenId, Key> {
        let good = self.known().into_iter().filter(|known| known.standing == Standing::Good);
        good.map(|known| (known.key.id, known.key)).collect()
    }

    /// When the next token expires, in seconds since 1970.
    fn next_end(&self) -> Option<u64> {
        self.tokens.iter().filter_map(|entry| entry.expires).filter(|&end| end > now()).min()
    }
}

/// Inode, time of change and length of a file. `None`: they cannot be read.
type About = Option<(u64, i64, i64, u64)>;

/// A store's file, which is read again when it changes, and its content.
struct Watched {
    path: PathBuf,
    /// The file when it was read last. See [`Watched::about`].
    seen: About,
    /// The content that was read last. It stays if the file cannot be read.
    store: Store,
    next_end: Option<u64>,
    /// The file that could not be read, when that was tried last, and when it was told.
    failed: Option<(About, Instant, Instant)>,
}

impl Watched {
    /// Reads a store.
    fn open(path: &Path) -> Result<Watched, StoreError> {
        let (path, store) = (path.to_owned(), Store::default());
        let mut watched = Watched { path, seen: None, store, next_end: None, failed: None };
        watched.read(watched.about())?;
        watched.next_end = watched.store.next_end();
        Ok(watched)
    }

    /// Reads the store if it has changed. Returns whether its tokens stand otherwise than before:
    /// they are others, or one has expired. An error is returned once, and again each minute. The
    /// reading is tried again each second.
    fn look(&mut self) -> (bool, Option<StoreError>) {
        let (about, time) = (self.about(), Instant::now());
        let mut changed = self.next_end.is_some_and(|end| end <= now());
        let mut wrong = None;
        let before = self.failed.filter(|(failed, ..)| *failed == about);
        if about != self.seen && before.is_none_or(|(_, tried, _)| time >= tried + AGAIN) {
            match self.read(about) {
                Ok(()) => (changed, self.failed) = (true, None),
                Err(e) => {
                    let told = before.map(|(.., told)| told).filter(|&told| time < told + TOLD);
                    self.failed = Some((about, time, told.unwrap_or(time)));
                    wrong = told.is_none().then_some(e);
                }
            }
        }
        if changed {
            self.next_end = self.store.next_end();
        }
        (changed, wrong)
    }

    /// `about`: taken before the content is read, so that a change that comes in between is read
    /// again.
    fn read(&mut self, about: About) -> Result<(), StoreError> {
        self.store = Store::read(&self.path)?;
        self.seen = about;
        Ok(())
    }

    fn about(&self) -> About {
        let about = fs::metadata(&self.path).ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
    }
}

/// A store that a node follows.
pub struct Followed(Watched);

impl Followed {
    /// Reads the store, and makes the node serve only holders of its tokens.
    pub fn begin(path: &Path, nic: &Nic) -> Result<Followed, StoreError> {
        let watched = Watched::open(path)?;
        watched.store.apply(nic);
        Ok(Followed(watched))
    }

    /// Reads the store again, if it has changed, and looks whether a token's time is over. An error
    /// is returned once, and again each minute. The node goes on with the tokens that it had, as
    /// long as their time is not over.
    pub fn look(&mut self, nic: &Nic) -> Option<StoreError> {
        let (changed, wrong) = self.0.look();
        if changed {
            self.0.store.apply(nic);
        }
        wrong
    }
}

/// The tokens of a store, for a service that is not a node.
pub struct Keys(Mutex<Within>);

struct Within {
    watched: Watched,
    keys: BTreeMap<TokenId, Key>,
    rack_quotas: BTreeMap<String, u64>,
}

impl Within {
    /// Reads the store again if it has changed. If that fails, `say` is told now and then,
    /// and the tokens stay as they were.
    fn look(&mut self, say: impl FnMut(&StoreError)) {
        let (changed, wrong) = self.watched.look();
        if changed {
            (self.keys, self.rack_quotas) = (self.watched.store.good(), self.watched.store.rack_quotas());
        }
        wrong.iter().for_each(say);
    }
}

impl Keys {
    /// Reads the store.
    pub fn read(path: &Path) -> Result<Keys, StoreError> {
        let watched = Watched::open(path)?;
        let (keys, rack_quotas) = (watched.store.good(), watched.store.rack_quotas());
        Ok(Keys(Mutex::new(Within { watched, keys, rack_quotas })))
    }

    /// The key of a token that can be used now. The store is read again if it has changed. If that
    /// fails, `say` is told now and then, and the tokens read before stay valid.
    pub fn find(&self, id: &TokenId, say: impl FnMut(&StoreError)) -> Option<Key> {
        let mut within = self.locked();
        within.look(say);
        within.keys.get(id).copied()
    }

    /// Bytes that tenants may hold in the whole rack, by name. The store is read as by [`Keys::find`].
    pub fn rack_quotas(&self, say: impl FnMut(&StoreError)) -> BTreeMap<String, u64> {
        let mut within = self.locked();
        within.look(say);
        within.rack_quotas.clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Within> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
