//! The watch over devices that the kernel swaps to: new streams for those that were cut, and how
//! their volumes are doing.

use crate::freed::{self, Probe};
use crate::given::Given;
use crate::leaving::{Leaving, Then};
use crate::names::{Lookup, Names};
use crate::nbd::{Client, Deaths};
use crate::off;
use crate::on::{Plan, path, say};
use crate::pair::Pair;
use crate::patience::{MOST_TIMES, Patience};
use crate::state::{self, Held, State};
use crate::stream::{PATIENCE, SHORT, Stream};
use crate::tell::{self, Teller};
use crate::{Error, device, mirror, report};
use farmem_protocol::nbd::{GOING_DOWN, TO_BE_EMPTIED};
use farmem_protocol::units::bytes;
use farmem_sys::process::{self, Signals};
use farmem_sys::swap;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};

/// How often the watcher asks how the volumes are doing.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_secs(5);
/// How often it tries to reach a node that it has lost.
pub(crate) const TRIES_EVERY: Duration = Duration::from_secs(1);

/// A device under watch.
pub(crate) struct Watched {
    pub(crate) held: Held,
    /// The stream by which this process asks about the volume. `None`: it was lost.
    asked: Option<Stream>,
    /// The kernel's stream is dead, or was given by another process: then it may stand.
    dead: bool,
    /// The kernel, or the stream itself, has shown that it is dead.
    seen_dead: bool,
    /// How long requests may take, and how long they wait for a stream.
    timeout: Duration,
    patience: Patience,
    /// The timeout that the kernel has, in seconds. `None`: not known.
    has_s: Option<u64>,
    tried: Option<Instant>,
    /// The stream that the kernel was last offered.
    given: Option<Given>,
    /// Another process gave the kernel its stream. If that one stands, the kernel takes no other
    /// until the node has ended it.
    takes_over: bool,
    /// Where the node's name is looked up when it is not reached.
    lookup: Lookup,
    /// When the token's file was changed last, as far as `asked` knows.
    token: Option<SystemTime>,
    /// The user was told already that the node is lost, or nearly full.
    warned: bool,
}

/// The watch over all devices of this machine.
pub struct Watch {
    pub(crate) client: Client,
    pub(crate) devices: Vec<Watched>,
    pub(crate) plan: Plan,
    /// Reports freed slots, until [`Watch::run`] passes it on.
    probe: Option<Probe>,
    /// Whether it does.
    is_probed: bool,
    teller: Option<Teller>,
    pub(crate) pair: Pair,
    /// The addresses of nodes that may get a copy.
    pub(crate) names: Names,
    /// Tells of the streams that the kernel gives up. `None` while it is listened to.
    died: Option<Died>,
    leaving: Leaving,
}

/// The indexes of devices whose stream has died; `u32::MAX`: of any.
pub(crate) type Died = Receiver<u32>;

/// Why the watch is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// A signal asks for it.
    Asked,
    /// A node is going down, or is to be emptied.
    NodeGoes,
    /// Another process has undone all devices.
    Undone,
}

impl Watch {
    pub(crate) fn new(client: Client, plan: &Plan, devices: Vec<Watched>, probe: Option<Probe>, died: Died) -> Watch {
        let known: Vec<&State> = devices.iter().map(|watched| &watched.held.state).collect();
        let names = if plan.mirror { Names::of(&plan.nodes, &known) } else { Names::default() };
        let (plan, is_probed, pair, died) = (plan.clone(), probe.is_some(), Pair::default(), Some(died));
        let (teller, leaving) = (None, Leaving::default());
        Watch { client, devices, plan, probe, is_probed, teller, pair, names, died, leaving }
    }

    /// Watches until it is to end. `signals` were taken before any thread existed.
    pub fn run(&mut self, signals: &Signals) -> Result<Over, Error> {
        let died = self.died.take().map_or_else(|| listen(&self.client, true), Ok)?;
        self.teller = self.tell();
        let over = self.watch(signals, &died);
        self.teller = None;
        // No death is missed between here and `undo`.
        self.died = Some(died);
        if over == Over::Undone {
            // `--off` could not remove the probe while this process had it open. A new watcher has
            // its own, and its devices by the end of its turn.
            let _turn = state::turn(Path::new(state::DIRECTORY));
            if state::all(Path::new(state::DIRECTORY)).is_empty() {
                freed::close();
            }
        }
        Ok(over)
    }

    /// Ends swapping, and watches until that is done.
    ///
    /// # Errors
    /// The kernel swaps on, and [`Watch::run`] can watch on. For a node that goes, it tries again
    /// after a while.
    pub fn undo(&mut self) -> Result<(), Error> {
        let died = self.died.take().map_or_else(|| listen(&self.client, true), Ok)?;
        let done = off::undo(&mut self.client, &mut self.devices, &died);
        self.died = Some(died);
        if done.is_err() {
            self.leaving.failed(Instant::now());
            self.probe = self.is_probed.then(|| Probe::open().ok()).flatten();
        }
        done
    }

    /// Begins to tell nodes of freed slots.
    fn tell(&mut self) -> Option<Teller> {
        let probe = self.probe.take()?;
        let known = |watched: &Watched| {
            let state = watched.held.state.clone();
            let kind = state::kind(Path::new(state::DIRECTORY), state.index);
            if kind.is_none() {
                say(format_args!("{}: freed pages come back by clusters of 512: its type is not known", path(&state)));
            }
            Some(tell::Device { kind: kind?, state })
        };
        let devices: Vec<tell::Device> = self.devices.iter().filter_map(known).collect();
        let started = Teller::start(probe, devices, self.plan.timeout);
        started.inspect_err(|e| say(format_args!("freed pages come back by clusters of 512: {e}"))).ok()
    }

    /// Begins again to tell nodes of freed slots, for the devices that there are now.
    pub(crate) fn tell_anew(&mut self) {
        if self.teller.take().is_some() {
            self.probe = Probe::open().ok();
            self.teller = self.tell();
        }
    }

    fn watch(&mut self, signals: &Signals, died: &Receiver<u32>) -> Over {
        let mut looked: Option<Instant> = None;
        loop {
            died.try_iter().for_each(|index| all_told(&mut self.devices, index));
            self.devices.retain(|watched| watched.held.stands());
            if self.devices.is_empty() {
                return Over::Undone;
            }
            if self.plan.mirror {
                self.tend();
            }
            let looks = looked.is_none_or(|at| at.elapsed() >= LOOKS_EVERY);
            let going = step(&mut self.devices, &mut self.client, looks);
            if self.leaves(&going) {
                return Over::NodeGoes;
            }
            if looks {
                looked = Some(Instant::now());
            }
            let urgent = self.devices.iter().any(|watched| watched.dead || watched.is_pressing());
            let soon = urgent || (self.plan.mirror && !self.pair.is_whole);
            let next = signals.next(if soon { TRIES_EVERY } else { LOOKS_EVERY });
            if next.is_some_and(|arrived| signals.asks_to_end(arrived)) {
                return Over::Asked;
            }
        }
    }
}

impl Watch {
    /// Whether swapping is to be ended now, for nodes that go: those of the devices with these
    /// flags ([`crate::leaving`]).
    fn leaves(&mut self, going: &[(u32, u64)]) -> bool {
        let left: Vec<u64> =
            going.iter().filter(|&&(index, _)| !self.does_without(index)).map(|&(_, flags)| flags).collect();
        let states: Vec<&State> = self.devices.iter().map(|watched| &watched.held.state).collect();
        match self.leaving.look(&left, Instant::now(), || device::room_for(&states)) {
            Then::Stays => false,
            Then::Leaves => true,
            Then::Lacks(used, free) => {
                let (nodes, used, free) = (self.plan.nodes.join(" and "), bytes(used), bytes(free));
                say(format_args!(
                    "{nodes} is to be emptied: {used} are swapped to it, and {free} are free here: swapping goes on \
                     until there is room"
                ));
                false
            }
        }
    }
}

/// Begins to hear which streams the kernel gives up. `wakes`: a signal wakes the watcher, which has
/// taken signals.
pub(crate) fn listen(client: &Client, wakes: bool) -> Result<Died, Error> {
    let mut deaths = client.deaths().map_err(|e| Error::Kernel("netlink", e))?;
    let (tell, died) = std::sync::mpsc::channel();
    let listen = move || hear(&mut deaths, &tell, wakes);
    std::thread::Builder::new().name("deaths".into()).spawn(listen).map_err(|e| Error::Kernel("a thread", e))?;
    Ok(died)
}

/// Waits for the kernel's reports of dead streams, and passes each on.
fn hear(deaths: &mut Deaths, tell: &std::sync::mpsc::Sender<u32>, wakes: bool) {
    // Best effort: the user was told when the watcher itself could not.
    let _ = swap::come_first();
    while let Ok(index) = deaths.wait() {
        if tell.send(index).is_err() {
            return;
        }
        if wakes {
            let _ = process::send(std::process::id(), libc::SIGUSR1);
        }
    }
}

/// Notes that a stream has died.
pub(crate) fn all_told(devices: &mut [Watched], index: u32) {
    let told = |watched: &&mut Watched| index == u32::MAX || watched.held.state.index == index;
    devices.iter_mut().filter(told).for_each(Watched::died);
}

/// Gives new streams for dead ones, and, if it `looks`, asks the nodes. Returns the indexes of
/// devices whose node is going down or to be emptied, each with the flags that say so.
pub(crate) fn step(devices: &mut [Watched], client: &mut Client, looks: bool) -> Vec<(u32, u64)> {
    let mut going = Vec::new();
    // Before any node is asked, which may take seconds: a timeout of 0 may have been left behind.
    devices.iter_mut().for_each(|watched| watched.tell_timeout(client));
    // First those whose pages are nowhere else.
    devices.sort_by_key(|watched| watched.has_other());
    for watched in devices {
        watched.heed(Instant::now());
        if watched.dead && watched.tried.is_none_or(|at| at.elapsed() >= TRIES_EVERY) {
            watched.tried = Some(Instant::now());
            watched.revive(client);
        }
        let flags = if looks { watched.look() } else { 0 };
        if flags != 0 {
            going.push((watched.held.state.index, flags));
        }
        watched.tend_patience(client, looks);
    }
    going
}

impl Watched {
    /// A device that was just made. `data`: the kernel's stream.
    pub(crate) fn begun(held: Held, asked: Stream, data: Stream, times: (Duration, Duration)) -> Watched {
        let token = held.state.token_changed();
        let mut begun = Watched::found(held, times.0, times.1);
        (begun.asked, begun.dead, begun.takes_over, begun.token) = (Some(asked), false, false, token);
        begun.given = Some(Given::new(data, Instant::now()));
        begun
    }

    /// A device that another watcher made. Its stream may have died meanwhile: it is given a new
    /// one. That watcher may have left it without a timeout: it is given one.
    pub(crate) fn found(held: Held, timeout: Duration, grace: Duration) -> Watched {
        let patience = Patience::new(timeout, grace, Instant::now());
        Watched {
            held,
            asked: None,
            dead: true,
            seen_dead: false,
            timeout,
            patience,
            has_s: None,
            tried: None,
            given: None,
            takes_over: true,
            lookup: Lookup::default(),
            token: None,
            warned: false,
        }
    }

    /// The kernel has given its stream up.
    fn died(&mut self) {
        self.dead = true;
        // What was said of a stream that might stand does not hold any more.
        if !std::mem::replace(&mut self.seen_dead, true) && self.given.is_none() {
            self.warned = false;
        }
        self.patience.died(Instant::now());
        // The end of the stream that was found: only now the kernel takes another.
        if self.given.is_some() && std::mem::take(&mut self.takes_over) {
            self.tried = None;
        }
    }

    /// Sees whether the kernel has given its stream up without a word.
    fn heed(&mut self, now: Instant) {
        let takes_over = self.takes_over;
        if !self.dead && self.given.as_mut().is_some_and(|given| given.is_dead(now, takes_over)) {
            self.died();
        }
    }

    /// Whether the kernel has a stream from this process, as far as can be known.
    pub(crate) fn is_settled(&self) -> bool {
        !self.dead && (!self.takes_over || self.given.as_ref().is_some_and(|given| given.is_settled(Instant::now())))
    }

    /// Whether the kernel waits for a new stream.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead
    }

    /// Whether its pages are at another node, too.
    fn has_other(&self) -> bool {
        self.held.state.mirrored && mirror::has_other(self.held.state.index)
    }

    /// How long its node may take to be reached, and to answer.
    fn reached_within(&self) -> Duration {
        if self.has_other() { SHORT } else { PATIENCE }
    }

    /// Something is to be done sooner than the next look.
    fn is_pressing(&self) -> bool {
        let doubtful = self.given.as_ref().is_some_and(Given::is_doubtful);
        doubtful || self.patience.waits() || self.has_s != Some(self.patience.timeout_s())
    }

    /// Has the kernel's timeout follow when requests need no longer be waited for. `looked`: the
    /// watcher has just asked the node.
    fn tend_patience(&mut self, client: &mut Client, looked: bool) {
        let index = self.held.state.index;
        if looked && self.asked.is_none() {
            // Also when there is no stream as far as is known here: the kernel may have one yet.
            self.patience.stop();
        } else if !self.dead && self.patience.waits() {
            self.patience.spare(self.has_other());
            if self.patience.look(Instant::now(), device::load(index)) {
                self.lose(client);
            }
        }
        self.tell_timeout(client);
    }

    /// Gives up a node that answers this process, and no page. If there is another copy, the device
    /// ends at once, so that the requests under way wait no longer. The array lets go of it then.
    fn lose(&self, client: &mut Client) {
        let (state, quiet) = (&self.held.state, self.patience.quiet_s());
        let silent = format!("{}: {} has sent no page for {quiet} s, though it answers", path(state), state.node);
        if !(state.mirrored && mirror::do_without(state.index)) {
            say(format_args!("{silent}: it counts as lost, and programs that need its pages get SIGBUS"));
            return;
        }
        say(format_args!("{silent}: it counts as lost, and the other copy is used alone"));
        if let Err(e) = client.disconnect(state.index) {
            say(format_args!("{}: its requests end within {} s: {e}", path(state), self.patience.raised_s()));
        }
    }

    /// Gives the kernel the timeout that it is to have.
    fn tell_timeout(&mut self, client: &mut Client) {
        let timeout_s = self.patience.timeout_s();
        if self.has_s != Some(timeout_s) && client.set_timeout(self.held.state.index, timeout_s).is_ok() {
            self.has_s = Some(timeout_s);
        }
    }

    /// Tells the user that answers take longer than the timeout.
    fn say_slow(&self) {
        let (state, raised) = (&self.held.state, self.patience.raised_s());
        let late = format!("{}: answers of {} take longer than --timeout", path(state), state.node);
        if self.patience.is_most() {
            say(format_args!(
                "{late}, even {MOST_TIMES} times of it ({raised} s): pages come late; swap to a nearer node, or name a \
                 longer --timeout"
            ));
        } else {
            say(format_args!("{late}: new requests may take {raised} s, and those under way are waited for"));
        }
    }

    /// A stream of the volume. `data`: for the kernel.
    fn dial(&mut self, data: bool, silent: Duration) -> Result<Stream, Error> {
        if let Some(at) = self.lookup.changed(&self.held.state) {
            // A note that fails is made at the next change. This watcher has the addresses.
            let _ = self.held.set_addresses(at);
        }
        let within = self.reached_within();
        self.lookup.dial(&self.held.state, data, silent, within)
    }

    /// Gives the kernel a new stream for a dead one.
    fn revive(&mut self, client: &mut Client) {
        if self.patience.is_lost() {
            return;
        }
        let raised = Duration::from_secs(self.patience.raised_s());
        let dialled = self.dial(true, self.timeout.max(raised));
        let state = &self.held.state;
        let index = state.index;
        let (patience, has_s) = (&mut self.patience, &mut self.has_s);
        let done = dialled.and_then(|stream| {
            patience.give(Instant::now(), device::load(index));
            // Whether it is set is not known if this fails.
            *has_s = None;
            // The node ends the stream before this one. If the kernel has not seen that yet, it takes
            // none, and tells of the death next.
            client
                .reconfigure(index, (patience.timeout_s(), state.grace_s), stream.fd())
                .map(|()| stream)
                .map_err(|e| Error::Kernel("the kernel's NBD client", e))
        });
        match done {
            Ok(stream) => {
                if self.warned {
                    say(format_args!("{}: {} is back", path(state), state.node));
                }
                (self.dead, self.seen_dead, self.warned, self.asked) = (false, false, false, None);
                (self.has_s, self.given) = (Some(self.patience.timeout_s()), Some(Given::new(stream, Instant::now())));
                if self.patience.take_news() {
                    self.say_slow();
                }
            }
            Err(e) if !self.warned => {
                self.warned = true;
                say(format_args!("{}: {e}; {}", path(state), awaited(state, self.seen_dead)));
                self.patience.stop();
            }
            // Requests wait for the grace alone, and no longer for answers.
            Err(_) => self.patience.stop(),
        }
    }

    /// Asks the node about the volume, and keeps its report. Returns the flags by which the node wants
    /// its pages to be brought back.
    fn look(&mut self) -> u64 {
        // The node ends a volume with the token that it was last asked by: it is asked by a new one
        // before the old one is revoked.
        let token = self.held.state.token_changed();
        if std::mem::replace(&mut self.token, token) != token {
            self.asked = None;
        }
        if self.asked.is_none() && !self.dead {
            self.asked = self.dial(false, self.timeout).ok();
        }
        let state = &self.held.state;
        let Some(report) = self.asked.as_mut().map(Stream::report) else { return 0 };
        let Ok(report) = report else {
            self.asked = None;
            return 0;
        };
        report::keep(Path::new(state::DIRECTORY), state.index, &report);
        if report::is_near_end(&report) && !std::mem::replace(&mut self.warned, true) {
            let free = bytes(report.free.get());
            say(format_args!(
                "{}: {} has {free} left: pages that find no room there stay here",
                path(state),
                state.node
            ));
        }
        report.flags.get() & (GOING_DOWN | TO_BE_EMPTIED)
    }
}

/// What becomes of pages while a node gives no new stream. `seen_dead`: the kernel has none.
fn awaited(state: &State, seen_dead: bool) -> String {
    let cut = if seen_dead { "" } else { "the kernel's own stream may stand; once it is cut, " };
    let then = match state.mirrored {
        true => "the other copy is used alone",
        false => "programs that need them get SIGBUS",
    };
    format!("{cut}pages are waited for up to {} s, then {then}", state.grace_s)
}

impl Drop for Watched {
    /// Leaves the kernel with a timeout. Without one, a lost node would not be noticed.
    fn drop(&mut self) {
        if self.has_s != Some(self.patience.raised_s())
            && self.held.stands()
            && let Ok(mut client) = Client::open()
        {
            // Best effort: the next watcher sets it first.
            let _ = client.set_timeout(self.held.state.index, self.patience.raised_s());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::tests::streams;
    use std::net::Shutdown;

    /// The kernel needs memory to tell of a death. It may have none.
    #[test]
    fn a_stream_that_died_untold_is_given_up() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-untold-{}", std::process::id()));
        let held = state::create(&directory, State::of_test("bighost:7411")).unwrap();
        let times = (Duration::from_secs(3), Duration::from_secs(60));
        let ((asked, ..), (data, kernels, _node)) = (streams(), streams());
        let mut watched = Watched::begun(held, asked, data, times);
        let now = Instant::now();
        watched.heed(now);
        assert!(!watched.dead);
        kernels.shutdown(Shutdown::Both).unwrap();
        watched.heed(now);
        assert!(!watched.dead && watched.is_pressing());
        watched.heed(now + TRIES_EVERY);
        assert!(watched.dead);

        // One that takes over: the kernel had a stream still, and took none.
        (watched.dead, watched.takes_over) = (false, true);
        let (data, _kernels, _node) = streams();
        watched.given = Some(Given::new(data, now));
        watched.heed(now + LOOKS_EVERY);
        assert!(watched.dead && !watched.takes_over);
        // The next one is taken, as far as can be known.
        watched.dead = false;
        watched.heed(now + LOOKS_EVERY);
        assert!(!watched.dead);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// A node may refuse a watcher, for its version, that leaves the kernel's stream alone.
    #[test]
    fn a_watcher_that_takes_over_does_not_say_that_pages_wait() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-awaited-{}", std::process::id()));
        let held = state::create(&directory, State::of_test("bighost:7411")).unwrap();
        let mut watched = Watched::found(held, Duration::from_secs(3), Duration::from_secs(60));
        let awaited = |watched: &Watched| awaited(&watched.held.state, watched.seen_dead);
        assert!(
            awaited(&watched).starts_with("the kernel's own stream may stand; once it is cut, pages are waited for")
        );
        // It was said. The death is said, too, and once.
        watched.warned = true;
        watched.died();
        assert!(awaited(&watched).starts_with("pages are waited for up to") && !watched.warned);
        watched.warned = true;
        watched.died();
        assert!(watched.warned);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
