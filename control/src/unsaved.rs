//! Intents that the controller's state has, and its store does not have yet: the latest of each
//! key, in the order in which they came.
//!
//! They stay here after a failure, such as a full disk. A repeated order changes nothing in the
//! state, so it alone would not be kept. A store that is away for long makes them no more than the
//! rows that the store can have.

use crate::state::Intent;
use crate::store::key;
use std::collections::BTreeMap;

/// The intents that are to be kept.
#[derive(Debug, Default)]
pub(crate) struct Unsaved {
    /// The number of the latest.
    last: u64,
    /// By the key of the row that each changes.
    latest: BTreeMap<String, (u64, Intent)>,
}

impl Unsaved {
    /// Takes an intent, in the place of an earlier one of its key.
    pub(crate) fn push(&mut self, intent: Intent) {
        self.last += 1;
        self.latest.insert(key(&intent), (self.last, intent));
    }

    /// All of them, and the number by which [`Unsaved::saved`] is told that they are kept.
    pub(crate) fn all(&self) -> (u64, Vec<Intent>) {
        let mut all: Vec<&(u64, Intent)> = self.latest.values().collect();
        all.sort_by_key(|(number, _)| *number);
        (self.last, all.into_iter().map(|(_, intent)| intent.clone()).collect())
    }

    /// The store has all up to this number.
    pub(crate) fn saved(&mut self, up_to: u64) {
        self.latest.retain(|_, (number, _)| *number > up_to);
    }

    /// Forgets them: another term began.
    pub(crate) fn clear(&mut self) {
        self.latest.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_of_each_key_is_kept_until_the_store_has_it() {
        let share = |bytes| Intent::Share { tenant: "t".into(), node: "n".into(), bytes };
        let drain = |wanted| Intent::Drain { name: "n".into(), wanted };
        let mut unsaved = Unsaved::default();
        // A store that is away while a node beats.
        (1..1000).for_each(|bytes| unsaved.push(share(bytes)));
        unsaved.push(drain(true));
        unsaved.push(share(1000));
        let (first, all) = unsaved.all();
        assert_eq!(all, [drain(true), share(1000)]);
        // What came while the store wrote stays.
        unsaved.push(drain(false));
        unsaved.saved(first);
        assert_eq!(unsaved.all().1, [drain(false)]);
        unsaved.clear();
        assert!(unsaved.all().1.is_empty());
    }
}
