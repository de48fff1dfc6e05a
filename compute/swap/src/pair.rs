//! The watch over a mirror: a device that has failed is removed, and another node gets a copy.
//!
//! ```text
//!  whole ──► a node is lost ──► one copy ──► a node is found ──► copying ──► whole
//! ```
//!
//! The kernel goes on with one copy by itself. So the work here is not urgent, and may stop at any
//! step: a device that has a file and is not in the array is removed by the next look.

use crate::mirror::{self, Standing};
use crate::off::end_one_of_two;
use crate::on::{begin, say};
use crate::state;
use crate::watch::{Watch, Watched};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a node is looked for that may get a copy.
const LOOKS_FOR_NODE_EVERY: Duration = Duration::from_secs(5);

/// The watcher's knowledge of its mirror.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    /// There are two copies, as far as was seen last.
    pub(crate) is_whole: bool,
    /// It was said that there is one.
    told: bool,
    tried: Option<Instant>,
    /// When devices were looked for that are in no array.
    looked: Option<Instant>,
    /// Which of the named nodes is tried next.
    turn: usize,
}

impl Watch {
    /// Sees how the devices stand in the array, and does the next step towards two copies.
    pub(crate) fn tend(&mut self) {
        if !mirror::exists() {
            return;
        }
        self.drop_failed();
        self.end_left();
        let standings: Vec<Standing> =
            self.devices.iter().map(|watched| mirror::standing(watched.held.state.index)).collect();
        self.pair.is_whole = standings == [Standing::Whole; 2];
        if self.pair.is_whole && std::mem::replace(&mut self.pair.told, false) {
            say(format_args!("two copies again, at {}", self.nodes()));
        }
        let waited = self.pair.tried.is_none_or(|at| at.elapsed() >= LOOKS_FOR_NODE_EVERY);
        // Never while the last copy's stream is dead: its pages wait for this thread.
        if standings == [Standing::Whole] && waited && !self.devices.iter().any(Watched::is_dead) {
            self.replace();
            self.pair.tried = Some(Instant::now());
        }
    }

    /// Whether there is an array that can go on without a device, and does so now.
    pub(crate) fn does_without(&mut self, index: u32) -> bool {
        self.plan.mirror && mirror::do_without(index)
    }

    fn nodes(&self) -> String {
        let nodes: Vec<&str> = self.devices.iter().map(|watched| watched.held.state.node.as_str()).collect();
        nodes.join(" and ")
    }

    /// Removes devices that the kernel uses no more.
    fn drop_failed(&mut self) {
        let stands = |index| matches!(mirror::standing(index), Standing::Whole | Standing::Copying);
        let failed = |watched: &Watched| !stands(watched.held.state.index);
        let Some(at) = self.devices.iter().position(failed) else { return };
        let state = self.devices[at].held.state.clone();
        // Requests may still be under way: then it is tried again.
        if self.devices.len() < 2 || mirror::remove(state.index).is_err() {
            return;
        }
        self.devices.remove(at);
        say(format_args!("one copy is left, at {}: {} is lost or goes", self.nodes(), state.node));
        self.pair.told = true;
        // The part of the volume that can still be reached is freed.
        if let Err(e) = end_one_of_two(&mut self.client, &state) {
            say(format_args!("{}: {e}", state.node));
        }
        self.tell_anew();
    }

    /// Ends devices that are in no array, and that no process watches: this one could not end them
    /// when they left, or was killed before.
    fn end_left(&mut self) {
        let directory = Path::new(state::DIRECTORY);
        if self.pair.looked.is_some_and(|at| at.elapsed() < LOOKS_FOR_NODE_EVERY) {
            return;
        }
        self.pair.looked = Some(Instant::now());
        for state in state::all(directory).into_iter().filter(|state| state.mirrored) {
            let watches = self.devices.iter().any(|watched| watched.held.state.index == state.index);
            if !watches
                && mirror::standing(state.index) == Standing::Absent
                && let Ok(Some(_held)) = state::adopt(directory, &state)
            {
                // In use after all: the next look tries again.
                let _ = end_one_of_two(&mut self.client, &state);
            }
        }
    }

    /// Gives another node a copy: any of those that were named, but the one that has the other
    /// copy.
    fn replace(&mut self) {
        let left = self.devices[0].held.state.clone();
        let others: Vec<&String> = self.plan.nodes.iter().filter(|node| **node != left.node).collect();
        if others.is_empty() {
            return;
        }
        let node = others[self.pair.turn % others.len()].clone();
        self.pair.turn += 1;
        // A node that is not known yet, cannot be reached, or refuses: others have their turn.
        let Some(at) = self.names.get(&node) else { return };
        let Ok(begun) = begin(&mut self.client, &self.plan, (&node, at), left.size) else {
            return self.names.again(&node);
        };
        let state = &begun.held.state;
        let added = if state.incarnation == left.incarnation {
            Ok(false)
        } else {
            mirror::add(state.index, state.size).map(|()| true)
        };
        if let Ok(true) = added {
            say(format_args!("copies pages to {node}: one copy is left until that is done"));
            self.pair.told = true;
            let directory = Path::new(state::DIRECTORY);
            if let Some(kind) = state::kind(directory, left.index) {
                let _ = state::keep_kind(directory, state.index, kind);
            }
            self.devices.push(begun);
            self.tell_anew();
        } else {
            let _ = mirror::fail(state.index).and_then(|()| mirror::remove(state.index));
            let _ = end_one_of_two(&mut self.client, state);
        }
    }
}
