//! Addresses of nodes, looked up where nobody waits for them.
//!
//! A lookup asks programs, as a resolver, whose pages may be swapped out. The watcher must not wait
//! for these while it alone can revive the stream by which they come back.

use crate::state::State;
use crate::stream::addresses;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long after a failed lookup the next is made.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The addresses that are known by now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<BTreeMap<String, Vec<SocketAddr>>>>);

impl Names {
    /// Takes what is known of devices, and looks the others up in a thread of its own, which ends
    /// when all are found.
    pub(crate) fn of(nodes: &[String], known: &[&State]) -> Names {
        let names = Names::default();
        for state in known.iter().filter(|state| !state.at.is_empty()) {
            names.set(&state.node, state.at.clone());
        }
        let mut left: Vec<String> = nodes.iter().filter(|node| names.get(node).is_none()).cloned().collect();
        if !left.is_empty() {
            let told = names.clone();
            let look = move || {
                loop {
                    left.retain(|node| addresses(node).map(|found| told.set(node, found)).is_err());
                    if left.is_empty() {
                        return;
                    }
                    std::thread::sleep(AGAIN_AFTER);
                }
            };
            // Without the thread, nodes of these names take no copy. The next watcher tries again.
            let _ = std::thread::Builder::new().name("names".into()).spawn(look);
        }
        names
    }

    /// The addresses of a node. `None`: not known yet.
    pub(crate) fn get(&self, node: &str) -> Option<Vec<SocketAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(node).cloned()
    }

    fn set(&self, node: &str, at: Vec<SocketAddr>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_owned(), at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_known_are_not_looked_up() {
        let at: SocketAddr = "10.1.2.3:7411".parse().unwrap();
        let state = State { at: vec![at], ..State::of_test("no such name") };
        let nodes = ["no such name".to_owned(), "127.0.0.1:7411".to_owned()];
        let names = Names::of(&nodes, &[&state]);
        assert_eq!(names.get("no such name"), Some(vec![at]));
        // The other one comes from the thread, in its time.
        while names.get("127.0.0.1:7411").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(names.get("another"), None);
    }
}
