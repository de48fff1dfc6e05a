//! Addresses of nodes, looked up where nobody waits for them.
//!
//! A lookup asks programs, as a resolver, whose pages may be swapped out. The watcher must not wait
//! for these while it alone can revive the stream by which they come back. So a thread looks names
//! up, and the watcher sees whether there is an answer.
//!
//! A name is also looked up again when no stream can be had by the addresses that are known: a node
//! may come back by others.

use crate::Error;
use crate::state::State;
use crate::stream::{Stream, Wanted, addresses, dial_within};
use farmem_sys::process;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

/// How long after a lookup the next is made.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The watcher's memory is locked, and so is the stack of its threads.
pub(crate) const STACK_BYTES: usize = 512 << 10;

/// The lookups of one name, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    /// Gets the answer of the one that is under way, if there is one.
    answer: Option<Receiver<Vec<SocketAddr>>>,
    /// When the last one began.
    begun: Option<Instant>,
}

impl Lookup {
    /// Begins to look a name up, unless that is under way or was done just now.
    fn begin(&mut self, node: &str) {
        if self.answer.is_some() || self.begun.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
            return;
        }
        self.begun = Some(Instant::now());
        let ((tell, answer), node) = (channel(), node.to_owned());
        let look = move || {
            if let Ok(found) = addresses(&node) {
                // Nobody may wait for it any more.
                let _ = tell.send(found);
            }
        };
        let named = std::thread::Builder::new().name("names".into()).stack_size(STACK_BYTES);
        // Without the thread, the next call tries again.
        self.answer = named.spawn(look).is_ok().then_some(answer);
    }

    /// What was found since the last call.
    fn found(&mut self) -> Option<Vec<SocketAddr>> {
        let found = match self.answer.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => None,
            Ok(found) => Some(found).filter(|found| !found.is_empty()),
        };
        self.answer = None;
        found
    }

    /// The addresses of a device's node, if they have changed.
    pub(crate) fn changed(&mut self, state: &State) -> Option<Vec<SocketAddr>> {
        self.found().filter(|found| *found != state.at)
    }

    /// A stream of a device's volume, by the addresses that are known. If there is none, the name is
    /// looked up, for [`Lookup::changed`].
    pub(crate) fn dial(
        &mut self,
        state: &State,
        data: bool,
        silent: Duration,
        patience: Duration,
    ) -> Result<Stream, Error> {
        let no_volume = || Error::Refused(state.node.clone(), "its volume's id cannot be read".into());
        let host = process::host_name();
        let wanted = Wanted::of(state, state.id().ok_or_else(no_volume)?, &host, data);
        dial_within(&wanted, silent, patience).inspect_err(|_| self.begin(&state.node))
    }
}

/// The addresses of nodes that may get a copy.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, (Vec<SocketAddr>, Lookup)>);

impl Names {
    /// Takes what is known of devices, and begins to look the others up.
    pub(crate) fn of(nodes: &[String], known: &[&State]) -> Names {
        let of = |node: &String| {
            let known = known.iter().find(|state| state.node == *node);
            (node.clone(), (known.map(|state| state.at.clone()).unwrap_or_default(), Lookup::default()))
        };
        let mut names = Names(nodes.iter().map(of).collect());
        nodes.iter().for_each(|node| drop(names.get(node)));
        names
    }

    /// The addresses of a node. `None`: not known yet.
    pub(crate) fn get(&mut self, node: &str) -> Option<Vec<SocketAddr>> {
        let (at, lookup) = self.0.get_mut(node)?;
        if let Some(found) = lookup.found() {
            *at = found;
        }
        if at.is_empty() {
            lookup.begin(node);
        }
        Some(at.clone()).filter(|at| !at.is_empty())
    }

    /// A node is not reached by its addresses: it may have others.
    pub(crate) fn again(&mut self, node: &str) {
        self.0.get_mut(node).into_iter().for_each(|(_, lookup)| lookup.begin(node));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            assert!(Instant::now() < until, "not within 60 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn names_that_are_known_are_not_looked_up() {
        let at: SocketAddr = "10.1.2.3:7411".parse().unwrap();
        let state = State { at: vec![at], ..State::of_test("no such name") };
        let nodes = ["no such name".to_owned(), "127.0.0.1:7411".to_owned()];
        let mut names = Names::of(&nodes, &[&state]);
        assert_eq!(names.get("no such name"), Some(vec![at]));
        // The other one comes from the thread, in its time.
        eventually(|| names.get("127.0.0.1:7411"));
        assert_eq!(names.get("another"), None);
        // It was found just now, and is not reached by that.
        names.again("127.0.0.1:7411");
        assert!(names.0["127.0.0.1:7411"].1.answer.is_none());
    }

    /// A node that was at an address where nobody listens any more, and is where its name says.
    #[test]
    fn a_node_that_came_back_by_another_address_is_found() {
        let (gone, listener) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let [before, now] = [&gone, &listener].map(|listener| listener.local_addr().unwrap());
        drop(gone);
        let mut state = State { at: vec![before], ..State::of_test(&now.to_string()) };
        let mut lookup = Lookup::default();
        let second = Duration::from_secs(1);
        assert_eq!(lookup.changed(&state), None);
        lookup.dial(&state, true, second, second).unwrap_err();
        // While the answer is awaited, and by it.
        lookup.dial(&state, true, second, second).unwrap_err();
        state.at = eventually(|| lookup.changed(&state));
        assert_eq!(state.at, [now]);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| drop(listener.accept().unwrap()));
            // It is reached, and says nothing.
            lookup.dial(&state, true, second, second).unwrap_err();
            asked.join().unwrap();
        });
        // The same addresses are no news.
        assert_eq!(lookup.changed(&state), None);
    }
}
