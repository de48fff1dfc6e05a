//! Where a controller keeps what must outlive it: a file of `redb`, an etcd cluster, or memory
//! alone.
//!
//! One table of intents: an intent's name to the intent, as JSON. A later intent about the same
//! thing takes the place of the former. Each change is one transaction, on disk before it is
//! answered; a crash leaves the file as it was before or after it.

use crate::api::Term;
use crate::etcd::{Etcd, EtcdError};
use crate::state::Intent;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const INTENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("intents");
/// The rack's number, and how often the file was opened: its epoch.
const TERM: TableDefinition<'_, &str, u64> = TableDefinition::new("term");

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it, or the file is not one of redb's, or the disk failed.
    #[error("{0}")]
    Database(#[from] redb::Error),
    /// A row is not an intent: a newer controller has written it.
    #[error("it holds something that this version does not know: {0}")]
    Unknown(#[from] serde_json::Error),
    /// The thread that kept it has panicked.
    #[error("{0}")]
    Panicked(String),
    /// etcd does not answer, or another controller leads.
    #[error("{0}")]
    Etcd(#[from] EtcdError),
}

/// The store.
pub enum Store {
    /// Nothing outlives the process.
    Memory,
    /// A file.
    File(Database),
    /// A cluster that several controllers share.
    Etcd(Arc<Etcd>),
}

/// The content of a store when it was opened.
pub struct Kept {
    /// The term that begins.
    pub term: Term,
    /// Intents, members first.
    pub intents: Vec<Intent>,
}

/// The key of the row that an intent changes. A node's forgetting also removes its drain.
pub(crate) fn key(intent: &Intent) -> String {
    match intent {
        Intent::Member { name, .. } | Intent::Forgotten { name } => format!("member/{name}"),
        Intent::Drain { name, .. } => format!("drain/{name}"),
        Intent::Share { tenant, node, .. } => format!("share/{node}/{tenant}"),
    }
}

/// The rows that an intent changes: a key and its new value, or `None` to delete it. A later intent
/// about the same thing has the same key.
fn rows(intent: &Intent) -> Result<Vec<(String, Option<String>)>, serde_json::Error> {
    let value = Some(serde_json::to_string(intent)?);
    Ok(match intent {
        Intent::Member { .. } => vec![(key(intent), value)],
        Intent::Forgotten { name } => vec![(key(intent), None), (format!("drain/{name}"), None)],
        Intent::Drain { wanted, .. } => vec![(key(intent), value.filter(|_| *wanted))],
        Intent::Share { bytes, .. } => vec![(key(intent), value.filter(|_| *bytes > 0))],
    })
}

/// The intents of rows that are in the order of their keys. "drain/…" sorts before "member/…", but
/// a member must be known before its drain.
fn ordered(rows: impl IntoIterator<Item = Intent>) -> Vec<Intent> {
    let (drains, members): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|intent| matches!(intent, Intent::Drain { .. }));
    members.into_iter().chain(drains).collect()
}

/// The content of an etcd cluster. `rack`: the number to give it, if it has none yet.
///
/// # Errors
/// See [`StoreError`].
pub fn kept_in(etcd: &Etcd, epoch: u64, rack: u64) -> Result<Kept, StoreError> {
    let term = Term { rack: etcd.rack(rack)?, epoch };
    let intents: Result<Vec<Intent>, _> =
        etcd.intents()?.iter().map(|(_, value)| serde_json::from_str(value)).collect();
    Ok(Kept { term, intents: ordered(intents?) })
}

impl Store {
    /// Opens the file, or makes it; gives what it holds. `rack`: its number, if it has none yet.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(file: &Path, rack: u64) -> Result<(Store, Kept), StoreError> {
        let database = Database::create(file).map_err(redb::Error::from)?;
        let write = database.begin_write().map_err(redb::Error::from)?;
        write.open_table(INTENTS).map_err(redb::Error::from)?;
        let term = {
            let mut table = write.open_table(TERM).map_err(redb::Error::from)?;
            let get = |key| Ok::<_, redb::Error>(table.get(key)?.map(|value| value.value()));
            let term = Term { rack: get("rack")?.unwrap_or(rack), epoch: get("epoch")?.unwrap_or(0) + 1 };
            table.insert("rack", term.rack).map_err(redb::Error::from)?;
            table.insert("epoch", term.epoch).map_err(redb::Error::from)?;
            term
        };
        write.commit().map_err(redb::Error::from)?;
        let mut rows = BTreeMap::new();
        {
            let read = database.begin_read().map_err(redb::Error::from)?;
            let table = read.open_table(INTENTS).map_err(redb::Error::from)?;
            for row in table.iter().map_err(redb::Error::from)? {
                let (key, value) = row.map_err(redb::Error::from)?;
                rows.insert(key.value().to_owned(), serde_json::from_slice::<Intent>(value.value())?);
            }
        }
        Ok((Store::File(database), Kept { term, intents: ordered(rows.into_values()) }))
    }

    /// Keeps intents of this epoch: all of them, or none (of etcd's, by the hundred). On disk when it
    /// returns.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn keep(&self, epoch: u64, intents: &[Intent]) -> Result<(), StoreError> {
        if intents.is_empty() {
            return Ok(());
        }
        // The last row of a key: etcd refuses a transaction that changes a key twice.
        let rows: BTreeMap<_, _> =
            intents.iter().map(rows).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        let rows: Vec<_> = rows.into_iter().collect();
        match self {
            Store::Memory => Ok(()),
            Store::File(database) => keep_in_file(database, &rows),
            // The epoch is the revision of the leader key by which this controller leads.
            Store::Etcd(etcd) => Ok(etcd.keep(epoch, &rows)?),
        }
    }
}

fn keep_in_file(database: &Database, rows: &[(String, Option<String>)]) -> Result<(), StoreError> {
    let write = database.begin_write().map_err(redb::Error::from)?;
    {
        let mut table = write.open_table(INTENTS).map_err(redb::Error::from)?;
        for (key, value) in rows {
            match value {
                Some(value) => table.insert(key.as_str(), value.as_bytes()).map(drop).map_err(redb::Error::from)?,
                None => table.remove(key.as_str()).map(drop).map_err(redb::Error::from)?,
            }
        }
    }
    write.commit().map_err(redb::Error::from)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Process, State};

    #[test]
    fn what_was_kept_is_there_again() {
        let file = std::env::temp_dir().join(format!("farmem-store-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let process = |name: &str| Some(Process { address: format!("{name}:7411"), incarnation: 7 });
        let member = |name: &str| Intent::Member { name: name.into(), domain: "d".into(), process: process(name) };
        let drain = |name: &str, wanted| Intent::Drain { name: name.into(), wanted };
        let steps = [
            vec![member("a"), member("b"), member("c")],
            vec![drain("a", true), drain("b", true)],
            vec![drain("b", false)],
            vec![Intent::Forgotten { name: "c".into() }],
        ];
        let mut all = Vec::new();
        for (step, epoch) in steps.into_iter().zip(1..) {
            let (store, Kept { term, intents: before }) = Store::open(&file, epoch + 40).unwrap();
            assert_eq!(term, Term { rack: 41, epoch });
            assert_eq!(State::of(before).intents(), State::of(all.clone()).intents());
            store.keep(epoch, &step).unwrap();
            all.extend(step);
        }
        let (_open, kept) = Store::open(&file, 0).unwrap();
        assert_eq!(kept.intents, [member("a"), member("b"), drain("a", true)]);
        assert!(Store::open(&file, 0).is_err(), "two controllers have one file");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let file = std::env::temp_dir().join(format!("farmem-no-store-{}", std::process::id()));
        std::fs::write(&file, "[tokens]\n").unwrap();
        assert!(Store::open(&file, 0).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[tokens]\n");
        std::fs::remove_file(&file).unwrap();
    }
}
