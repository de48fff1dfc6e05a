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
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

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
    /// Another command is changing it, or was interrupted and left its draft.
    #[error("{0}: another farmem token is at work on it; if none is, remove {1}")]
    Busy(PathBuf, PathBuf),
}

impl StoreError {
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// store or the new one, never a part.
    pub fn change<T>(path: &Path, change: impl FnOnce(&mut Store) -> Result<T, String>) -> Result<T, StoreError> {
        let draft = path.with_extension("toml.new");
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::AlreadyExists => StoreError::Busy(path.to_owned(), draft.clone()),
            _ => StoreError::File(draft.clone(), e),
        };
        // The draft serves as a lock: only one command can create it, so no change is lost.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        let changed = (|| {
            let mut store = if path.exists() { Store::read(path)? } else { Store::default() };
            let wrong = |why| StoreError::Content(path.to_owned(), why);
            let made = change(&mut store).map_err(wrong)?;
            let text = toml::to_string(&store).map_err(|e| wrong(e.to_string()))?;
            let failed = |e| StoreError::File(draft.clone(), e);
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            fs::rename(&draft, path).map_err(|e| StoreError::File(path.to_owned(), e))?;
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

/// A store's file, which is read again when it changes or a token expires.
struct Watched {
    path: PathBuf,
    /// Inode, time of change and length of the file when it was read last. See `about`.
    seen: Option<(u64, i64, i64, u64)>,
    next_end: Option<u64>,
}

impl Watched {
    fn new(path: &Path) -> Watched {
        Watched { path: path.to_owned(), seen: None, next_end: None }
    }

    /// Reads the store if it has changed, or if a token has expired. `None`: neither. An error is
    /// returned once, and then not before the file changes again.
    fn look(&mut self) -> Option<Result<Store, StoreError>> {
        let ended = self.next_end.is_some_and(|end| end <= now());
        (ended || self.about() != self.seen).then(|| self.read())
    }

    fn read(&mut self) -> Result<Store, StoreError> {
        // Taken before the content is read: a change that comes in between is read again.
        self.seen = self.about();
        self.next_end = None;
        let store = Store::read(&self.path)?;
        self.next_end = store.next_end();
        Ok(store)
    }

    /// Inode, time of change and length of the file now. `None`: they cannot be read.
    fn about(&self) -> Option<(u64, i64, i64, u64)> {
        let about = fs::metadata(&self.path).ok()?;
        Some((about.ino(), about.mtime(), about.mtime_nsec(), about.len()))
    }
}

/// A store that a node follows.
pub struct Followed(Watched);

impl Followed {
    /// Reads the store, and makes the node serve only holders of its tokens.
    pub fn begin(path: &Path, nic: &Nic) -> Result<Followed, StoreError> {
        let mut watched = Watched::new(path);
        watched.read()?.apply(nic);
        Ok(Followed(watched))
    }

    /// Reads the store again, if it has changed or a token's time is over. An error is returned
    /// once, and the node goes on with the tokens that it had.
    pub fn look(&mut self, nic: &Nic) -> Option<StoreError> {
        match self.0.look()? {
            Ok(store) => store.apply(nic),
            Err(e) => return Some(e),
        }
        None
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
    /// Reads the store again if it has changed. If that fails, `say` is told once, and the tokens
    /// stay as they were.
    fn look(&mut self, say: impl FnOnce(&StoreError)) {
        match self.watched.look() {
            Some(Ok(store)) => (self.keys, self.rack_quotas) = (store.good(), store.rack_quotas()),
            Some(Err(e)) => say(&e),
            None => {}
        }
    }
}

impl Keys {
    /// Reads the store.
    pub fn read(path: &Path) -> Result<Keys, StoreError> {
        let mut watched = Watched::new(path);
        let store = watched.read()?;
        Ok(Keys(Mutex::new(Within { watched, keys: store.good(), rack_quotas: store.rack_quotas() })))
    }

    /// The key of a token that can be used now. The store is read again if it has changed. If that
    /// fails, `say` is told once, and the tokens read before stay valid.
    pub fn find(&self, id: &TokenId, say: impl FnOnce(&StoreError)) -> Option<Key> {
        let mut within = self.locked();
        within.look(say);
        within.keys.get(id).copied()
    }

    /// Bytes that tenants may hold in the whole rack, by name. The store is read as by [`Keys::find`].
    pub fn rack_quotas(&self, say: impl FnOnce(&StoreError)) -> BTreeMap<String, u64> {
        let mut within = self.locked();
        within.look(say);
        within.rack_quotas.clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Within> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
