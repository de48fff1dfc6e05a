//! Housekeeping: everything that must happen while no fault does, and what concerns the process as
//! a whole.
//!
//! | file | what it does |
//! |---|---|
//! | [`background`] | the background thread |
//! | [`repair`] | copies slabs that lack a copy, and empties nodes that are taken out |
//! | [`nodes`] | nodes that join and leave while the program runs |
//! | [`fork`] | lets parent and child both go on |
//! | [`handler`] | serves faults by events, where SIGBUS cannot be had |

pub(crate) mod background;
pub(crate) mod fork;
mod handler;
pub(crate) mod nodes;
mod repair;

use crate::base::Base;
use crate::incoming::Incoming;
use crate::local::Local;
use crate::out::Out;
use crate::pins::Pins;
use crate::space::Space;
use farmem_run::Faults;
use std::sync::OnceLock;

/// The process's house. The runtime's threads find it here.
static HOUSE: OnceLock<&'static House> = OnceLock::new();

/// The parts that housekeeping uses.
pub(crate) struct Parts {
    pub base: &'static Base,
    pub local: &'static Local,
    pub out: &'static Out,
    pub incoming: &'static Incoming,
    pub pins: &'static Pins,
    pub space: &'static Space,
}

/// Housekeeping of a process.
pub struct House {
    base: &'static Base,
    local: &'static Local,
    out: &'static Out,
    incoming: &'static Incoming,
    pins: &'static Pins,
    space: &'static Space,
    /// See [`House::each_second`].
    also: OnceLock<fn()>,
    /// See [`House::each_tick`].
    tick: OnceLock<fn(&House)>,
    /// See [`House::before_waiting`].
    before_waiting: OnceLock<fn()>,
}

impl House {
    pub(crate) fn new(Parts { base, local, out, incoming, pins, space }: Parts) -> House {
        let (also, tick, before_waiting) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        House { base, local, out, incoming, pins, space, also, tick, before_waiting }
    }

    /// Begins: the background thread starts when it is first needed, the handler thread now.
    pub(crate) fn begin(&'static self) {
        let _ = HOUSE.set(self);
        self.base.background.runs(|_| the_house().run_background());
        self.start_handler();
    }

    /// Starts the handler thread, in thread mode.
    fn start_handler(&self) {
        if self.base.spec.faults == Faults::Thread {
            self.start_events();
        }
    }

    /// Has the background thread call `also` when it begins, which is at the first eviction, and
    /// then once a second.
    pub fn each_second(&self, also: fn()) {
        let _ = self.also.set(also);
    }

    /// Has the background thread call `tick` four times a second, outside the pager. It may call
    /// [`House::add_node`] and [`House::take_out`].
    pub fn each_tick(&self, tick: fn(&House)) {
        let _ = self.tick.set(tick);
    }

    /// Has `before` called before faults begin to wait for a node, if they have waited for none so
    /// far.
    pub fn before_waiting(&self, before: fn()) {
        let _ = self.before_waiting.set(before);
    }
}

fn the_house() -> &'static House {
    HOUSE.get().unwrap_or_else(|| crate::ending::broken("a thread of the runtime runs before the pager does"))
}
