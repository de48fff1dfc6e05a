//! Where a controller keeps what must outlive it: a file of `redb`, or memory alone.
//!
//! One table: an intent's name to the intent, as JSON. A later intent about the same thing takes
//! the place of the former. Each change is one transaction, on disk before it is answered; a crash
//! leaves the file as it was before or after it.

use crate::state::Intent;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::path::Path;

const INTENTS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("intents");

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it, or the file is not one of redb's, or the disk failed.
    #[error("{0}")]
    Database(#[from] redb::Error),
    /// A row is not an intent: a newer controller has written it.
    #[error("it holds something that this version does not know: {0}")]
    Unknown(#[from] serde_json::Error),
}

/// The store.
pub enum Store {
    /// Nothing outlives the process.
    Memory,
    /// A file.
    File(Database),
}

/// What an intent is about: the former one about the same is replaced.
fn key(intent: &Intent) -> String {
    match intent {
        Intent::Member { name, .. } | Intent::Forgotten { name } => format!("member/{name}"),
        Intent::Drain { name, .. } => format!("drain/{name}"),
    }
}

impl Store {
    /// Opens the file, or makes it; gives what it holds, members first.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(file: &Path) -> Result<(Store, Vec<Intent>), StoreError> {
        let database = Database::create(file).map_err(redb::Error::from)?;
        let write = database.begin_write().map_err(redb::Error::from)?;
        write.open_table(INTENTS).map_err(redb::Error::from)?;
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
        // "drain/…" sorts before "member/…": what is to be drained must be known first.
        let (drains, members): (Vec<_>, Vec<_>) =
            rows.into_values().partition(|intent| matches!(intent, Intent::Drain { .. }));
        Ok((Store::File(database), members.into_iter().chain(drains).collect()))
    }

    /// Keeps intents: all of them, or none. On disk when it returns.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn keep(&self, intents: &[Intent]) -> Result<(), StoreError> {
        let Store::File(database) = self else { return Ok(()) };
        if intents.is_empty() {
            return Ok(());
        }
        let write = database.begin_write().map_err(redb::Error::from)?;
        {
            let mut table = write.open_table(INTENTS).map_err(redb::Error::from)?;
            for intent in intents {
                let value = serde_json::to_vec(intent)?;
                match intent {
                    Intent::Forgotten { name } => {
                        table.remove(key(intent).as_str()).map_err(redb::Error::from)?;
                        table.remove(format!("drain/{name}").as_str()).map_err(redb::Error::from)?;
                    }
                    Intent::Drain { wanted: false, .. } => {
                        table.remove(key(intent).as_str()).map_err(redb::Error::from)?;
                    }
                    _ => {
                        table.insert(key(intent).as_str(), value.as_slice()).map_err(redb::Error::from)?;
                    }
                }
            }
        }
        write.commit().map_err(redb::Error::from)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::State;

    #[test]
    fn what_was_kept_is_there_again() {
        let file = std::env::temp_dir().join(format!("farmem-store-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&file);
        let member = |name: &str| Intent::Member { name: name.into(), domain: "d".into() };
        let drain = |name: &str, wanted| Intent::Drain { name: name.into(), wanted };
        let steps = [
            vec![member("a"), member("b"), member("c")],
            vec![drain("a", true), drain("b", true)],
            vec![drain("b", false)],
            vec![Intent::Forgotten { name: "c".into() }],
        ];
        let mut all = Vec::new();
        for step in steps {
            let (store, before) = Store::open(&file).unwrap();
            assert_eq!(State::of(before).intents(), State::of(all.clone()).intents());
            store.keep(&step).unwrap();
            all.extend(step);
        }
        let (_open, kept) = Store::open(&file).unwrap();
        assert_eq!(kept, [member("a"), member("b"), drain("a", true)]);
        assert!(Store::open(&file).is_err(), "two controllers have one file");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_file_that_is_none_is_refused() {
        let file = std::env::temp_dir().join(format!("farmem-no-store-{}", std::process::id()));
        std::fs::write(&file, "[tokens]\n").unwrap();
        assert!(Store::open(&file).is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[tokens]\n");
        std::fs::remove_file(&file).unwrap();
    }
}
