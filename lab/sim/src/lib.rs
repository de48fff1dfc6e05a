//! A network and a node in virtual time.
//!
//! The host's half and the software NIC are the production code; only the wire
//! and the clock are made up. Bytes arrive after a delay drawn from a seed, cut
//! into pieces as the seed has it; time passes only when the host waits. The test
//! decides when connections are cut, the node stops, or dies.

// Copies between the parts of transfers and the wire.
#![allow(unsafe_code)]

pub mod beside;
mod shelf;
mod speeds;
mod wire;

use farmem_fabric::network;
use farmem_nic::Nic;
use farmem_nic::engine::{Circumstances, Engine, Goodbye};
use farmem_nic::lending::{Backing, Lending};
use farmem_protocol::random::Random;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use farmem_sys::sync::Lock;
pub use shelf::Keeping;
use shelf::{Memory, SHELF_NS};
pub use speeds::{HostLink, Rates};
use speeds::{SEGMENT, Speeds};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use wire::{Wire, gathered};

/// What the network is like.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Of all randomness.
    pub seed: u64,
    /// One way, at least, in nanoseconds.
    pub least_delay_ns: u64,
    /// One way, at most, in nanoseconds.
    pub most_delay_ns: u64,
    /// Bytes that travel together, at most.
    pub segment: usize,
}

impl Default for Weather {
    /// A datacentre's TCP: 5 to 15 µs one way.
    fn default() -> Self {
        Weather { seed: 1, least_delay_ns: 5_000, most_delay_ns: 15_000, segment: 16 << 10 }
    }
}

/// The network, with one node on it.
pub struct Network {
    weather: Weather,
    state: Lock<State>,
    /// Networks whose time is the same.
    beside: Lock<Vec<Weak<Network>>>,
}

struct State {
    now_ns: u64,
    random: Random,
    nic: Option<Nic>,
    /// The node does nothing until then.
    stopped_until_ns: u64,
    /// Nothing arrives until then, and nobody says so.
    silent_until_ns: u64,
    /// Connecting fails with this.
    connecting: Result<(), Errno>,
    /// When connections will be cut, the next first, and how late the node then has what is on its way to it. `None`:
    /// never.
    cuts: VecDeque<(u64, Option<u64>)>,
    wires: Vec<Wire>,
    /// What the node says until then takes so much longer.
    slow: (u64, u64),
    /// When slabs that are called come back from the shelf, if any is called.
    back_ns: Option<u64>,
    /// How long a slab takes to come back.
    shelf_ns: u64,
    /// Links and nodes that take time, for figures.
    speeds: Option<Speeds>,
}

impl Network {
    /// A network with a node that lends `lend` bytes.
    pub fn new(weather: Weather, lend: u64) -> Arc<Network> {
        let network = Network {
            weather,
            state: Lock::new(State {
                now_ns: 1,
                random: Random::new(weather.seed),
                nic: None,
                stopped_until_ns: 0,
                silent_until_ns: 0,
                connecting: Ok(()),
                cuts: VecDeque::new(),
                wires: Vec::new(),
                slow: (0, 0),
                back_ns: None,
                shelf_ns: SHELF_NS,
                speeds: None,
            }),
            beside: Lock::new(Vec::new()),
        };
        network.start_node(lend);
        Arc::new(network)
    }

    /// From now on these have one clock: where one's time goes by, that of all does. Before anything has happened.
    pub fn share_clock(networks: &[Arc<Network>]) {
        for network in networks {
            let others = networks.iter().filter(|other| !Arc::ptr_eq(other, network));
            *network.beside.lock() = others.map(Arc::downgrade).collect();
        }
    }

    /// From now on bytes take time on the host's link and the node's, and pages at the node.
    pub fn set_rates(&self, rates: Rates, host: &HostLink) {
        self.state.lock().speeds = Some(Speeds::new(rates, host.clone()));
    }

    /// For `ns` from now on whatever the node says takes `longer_ns` longer.
    pub fn slow_down(&self, ns: u64, longer_ns: u64) {
        let mut state = self.state.lock();
        state.slow = (state.now_ns + ns, longer_ns);
    }

    /// Starts a node anew: nothing of the one before is left.
    pub fn start_node(&self, lend: u64) {
        self.kill_node();
        let mut state = self.state.lock();
        let secrets = Lock::new(Random::new(state.random.bits()));
        let draw = move || {
            let mut random = secrets.lock();
            (random.bits() as u128 | (random.bits() as u128) << 64).to_le_bytes()
        };
        state.nic = Some(Nic::new(Lending::new(lend, Backing::Small), draw));
        state.connecting = Ok(());
    }

    /// The node is dead: its connections close, nobody listens.
    pub fn kill_node(&self) {
        self.cut();
        let mut state = self.state.lock();
        state.connecting = Err(Errno(libc::ECONNREFUSED));
        state.nic = None;
    }

    /// Every connection breaks, seen by both ends.
    pub fn cut(&self) {
        self.state.lock().cut();
    }

    /// [`Network::cut`], and what the node has said and nobody has received is lost: what it has done may be done again.
    pub fn cut_and_lose(&self) {
        self.state.lock().cut_and_lose();
    }

    /// Every connection breaks, seen by the host alone: what it has sent is held up for so long on the way, and the node
    /// has it then, beside whatever comes by connections that are newer. What the node says is lost.
    pub fn cut_and_hold_up(&self, late_ns: u64) {
        self.state.lock().cut_and_hold_up(late_ns);
    }

    /// [`Network::cut_and_lose`], once at each of these times from now, while a caller waits.
    pub fn plan_cuts(&self, after_ns: impl IntoIterator<Item = u64>) {
        self.plan(after_ns.into_iter().map(|after| (after, None)));
    }

    /// [`Network::cut_and_hold_up`], once at each of these times from now, for so long.
    pub fn plan_late_cuts(&self, after_and_late_ns: impl IntoIterator<Item = (u64, u64)>) {
        self.plan(after_and_late_ns.into_iter().map(|(after, late)| (after, Some(late))));
    }

    fn plan(&self, cuts: impl Iterator<Item = (u64, Option<u64>)>) {
        let mut state = self.state.lock();
        let now = state.now_ns;
        state.cuts.extend(cuts.map(|(after, late)| (now + after, late)));
        state.cuts.make_contiguous().sort_unstable();
    }

    /// From now on connecting succeeds, or fails with this.
    pub fn set_connecting(&self, how: Result<(), Errno>) {
        self.state.lock().connecting = how;
    }

    /// The node does nothing for a while; its connections stand.
    pub fn stop_node(&self, ns: u64) {
        let mut state = self.state.lock();
        state.stopped_until_ns = state.now_ns + ns;
    }

    /// From now on the node's shelf takes this long to give a slab back.
    pub fn set_shelf_ns(&self, ns: u64) {
        self.state.lock().shelf_ns = ns;
    }

    /// Packets vanish for a while. Bytes on connections that exist arrive as late again, because
    /// TCP doubles the time between retransmissions.
    pub fn go_silent(&self, ns: u64) {
        let mut state = self.state.lock();
        let now = state.now_ns;
        state.silent_until_ns = now.saturating_add(ns);
        let until = now.saturating_add(ns).saturating_add(ns);
        state.wires.iter_mut().for_each(|wire| wire.quiet(now, until));
    }

    /// A middlebox drops all packets of the connections that exist, but of the `but` oldest.
    pub fn forget_connections(&self, but: usize) {
        let mut state = self.state.lock();
        let now = state.now_ns;
        state.wires.iter_mut().skip(but).for_each(|wire| wire.quiet(now, u64::MAX));
    }

    /// Bytes the node has lent.
    pub fn lent(&self) -> u64 {
        self.state.lock().nic.as_ref().map_or(0, |nic| nic.lent())
    }

    /// Has the node put aside what it has lent beyond what it lends now, whether or not its members are silent. Returns
    /// the bytes that are aside then.
    pub fn spill(&self, keeping: Keeping) -> u64 {
        self.with_nic(|nic| nic.spill(&Memory(keeping), 0).map_or(0, |()| nic.aside())).unwrap_or_default()
    }

    /// Has a look at the node itself. `None`: it is dead.
    pub fn with_nic<T>(&self, look: impl FnOnce(&Nic) -> T) -> Option<T> {
        self.state.lock().nic.as_ref().map(look)
    }

    /// The time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.state.lock().now_ns
    }

    /// Lets time pass.
    pub fn pass(&self, ns: u64) {
        let until = self.now_ns() + ns;
        while let Some(due) = beside::due() {
            let now = self.now_ns();
            let next = self.next_of_all().unwrap_or(u64::MAX).min(due).clamp(now, until);
            self.all_pass_until(next);
            beside::act(next);
            if next == until {
                return;
            }
        }
        self.all_pass_until(until);
    }

    fn all_pass_until(&self, until: u64) {
        self.pass_until(until);
        self.beside.lock().iter().filter_map(Weak::upgrade).for_each(|other| other.pass_until(until));
    }

    /// When something next happens on this network or on one whose time is the same.
    fn next_of_all(&self) -> Option<u64> {
        let others: Vec<Arc<Network>> = self.beside.lock().iter().filter_map(Weak::upgrade).collect();
        others.iter().map(|other| other.next_event()).chain([self.next_event()]).flatten().min()
    }

    /// When something next arrives at the node or at a host, or connections are cut.
    fn next_event(&self) -> Option<u64> {
        self.state.lock().next_event()
    }

    fn pass_until(&self, until: u64) {
        let mut state = self.state.lock();
        while let Some(at) = state.next_event().filter(|at| *at <= until) {
            state.now_ns = state.now_ns.max(at);
            if let Some((_, late)) = state.cuts.pop_front_if(|(cut, _)| *cut <= at) {
                match late {
                    None => state.cut_and_lose(),
                    Some(late_ns) => state.cut_and_hold_up(late_ns),
                }
            }
            state.send_ready(&self.weather);
            state.run_node(&self.weather);
        }
        state.now_ns = until;
        state.send_ready(&self.weather);
        state.run_node(&self.weather);
    }

    /// Makes a connection to the node, or fails as the weather has it.
    pub fn connect(self: &Arc<Self>, timeout_ns: u64) -> Result<Stream, Errno> {
        let connecting = self.state.lock().connecting;
        if let Err(e) = connecting {
            // A refusal comes at once, silence after all the time there is.
            self.pass(if e.0 == libc::ECONNREFUSED { self.weather.most_delay_ns } else { timeout_ns });
            return Err(e);
        }
        if self.state.lock().is_silent() {
            self.pass(timeout_ns);
            return Err(Errno(libc::ETIMEDOUT));
        }
        self.pass(2 * self.weather.least_delay_ns);
        let mut state = self.state.lock();
        let wire = Wire { engine: Some(Engine::new(Circumstances::default())), ..Wire::default() };
        // One that both ends have closed is nobody's.
        let over = state.wires.iter().position(|wire| wire.host_closed && wire.engine.is_none());
        match over {
            Some(at) => state.wires[at] = wire,
            None => state.wires.push(wire),
        }
        Ok(Stream { wire: over.unwrap_or(state.wires.len() - 1), network: Arc::clone(self) })
    }
}

impl State {
    fn is_silent(&self) -> bool {
        self.now_ns < self.silent_until_ns
    }

    fn cut(&mut self) {
        let State { wires, nic, now_ns, .. } = self;
        for wire in wires.iter_mut() {
            wire.cut = true;
            if let (Some(engine), Some(nic)) = (wire.engine.take(), &*nic) {
                engine.close(nic, Goodbye::Cut, *now_ns);
            }
        }
    }

    fn cut_and_lose(&mut self) {
        self.cut();
        self.wires.iter_mut().for_each(|wire| wire.to_host.pieces.clear());
    }

    fn cut_and_hold_up(&mut self, late_ns: u64) {
        for wire in self.wires.iter_mut().filter(|wire| !wire.cut) {
            wire.cut = true;
            wire.to_host.pieces.clear();
            wire.to_node.pieces.iter_mut().for_each(|(at, _)| *at = (*at).max(self.now_ns) + late_ns);
        }
    }

    /// When something next arrives at the node or the host, or connections are cut.
    fn next_event(&self) -> Option<u64> {
        // One that waits for a slab takes nothing until that is back.
        let takes = |wire: &Wire| wire.engine.as_ref().is_some_and(|engine| !engine.waits());
        let arrivals = self.wires.iter().flat_map(|wire| {
            let to_node = wire.to_node.pieces.front().filter(|_| takes(wire)).map(|p| p.0.max(self.stopped_until_ns));
            let to_host = wire.to_host.pieces.front().map(|p| p.0).filter(|at| *at > self.now_ns);
            to_node.into_iter().chain(to_host)
        });
        let ready = self.speeds.as_ref().and_then(|speeds| speeds.leaving.front()).map(|(at, ..)| *at);
        let others = [self.cuts.front().map(|(at, _)| *at), self.back_ns.filter(|_| self.nic.is_some()), ready];
        arrivals.chain(others.into_iter().flatten()).min()
    }

    /// What the node has made ready by now goes on the links.
    fn send_ready(&mut self, weather: &Weather) {
        let State { now_ns, random, wires, speeds: Some(speeds), .. } = self else { return };
        while let Some((at, wire, bytes)) = speeds.leaving.pop_front_if(|(at, ..)| *at <= *now_ns) {
            let (left, wire) = (speeds.back(at, bytes.len()), &mut wires[wire]);
            if !wire.cut {
                wire.to_host.travel(left, weather, random, &bytes);
            }
        }
    }

    /// The node takes what has arrived.
    fn run_node(&mut self, weather: &Weather) {
        let State { now_ns, random, nic, stopped_until_ns, wires, slow, back_ns, shelf_ns, speeds, .. } = self;
        let (Some(nic), now) = (nic, *now_ns) else { return };
        if now < *stopped_until_ns {
            *back_ns = back_ns.map(|at| at.max(*stopped_until_ns));
            return;
        }
        if back_ns.take_if(|at| *at <= now).is_some() {
            nic.bring_back();
        }
        let longer = if now < slow.0 { slow.1 } else { 0 };
        for (number, wire) in wires.iter_mut().enumerate() {
            let Wire { engine: slot, to_node, to_host, cut, host_closed, .. } = wire;
            let Some(engine) = slot else { continue };
            let mut goodbye = None;
            while goodbye.is_none() {
                let pulled = engine.pull(nic, now, |parts| {
                    let taken = to_node.take(now, parts);
                    speeds.iter_mut().for_each(|speeds| speeds.takes(now, taken.unwrap_or(0)));
                    taken
                });
                goodbye = pulled.err();
                let pushed = engine.push(nic, |parts, _| {
                    match speeds.as_mut() {
                        _ if *cut => {}
                        Some(speeds) => speeds.sends(now + longer, number, &gathered(parts)),
                        None => to_host.put(now + longer, weather, random, &gathered(parts)),
                    }
                    Ok(parts.iter().map(Part::len).sum())
                });
                goodbye = goodbye.or(pushed.err());
                if pulled == Ok(0) && !to_node.has_arrived(now) || engine.waits() {
                    break;
                }
            }
            if (*host_closed || *cut) && to_node.pieces.is_empty() {
                goodbye = goodbye.or(Some(Goodbye::Cut));
            }
            if let (Some(why), Some(engine)) = (goodbye, slot.take_if(|_| goodbye.is_some())) {
                engine.close(nic, why, now);
                *cut = true;
            }
        }
        nic.expire(now);
        while nic.keep(&|| 0) {}
        if back_ns.is_none() && nic.has_called() {
            *back_ns = Some(now + *shelf_ns);
        }
    }
}

/// The host's end of a connection.
pub struct Stream {
    network: Arc<Network>,
    wire: usize,
}

impl Stream {
    /// Sends all of it.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::send`].
    pub unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        let mut state = self.network.state.lock();
        let State { now_ns, random, wires, speeds, .. } = &mut *state;
        let (wire, now, weather) = (&mut wires[self.wire], *now_ns, &self.network.weather);
        if wire.cut {
            return Err(Errno(libc::ECONNRESET));
        }
        let bytes = gathered(parts);
        match speeds {
            None => wire.to_node.put(now, weather, random, &bytes),
            Some(speeds) => {
                for piece in bytes.chunks(SEGMENT) {
                    wire.to_node.travel(speeds.out(now, piece.len()), weather, random, piece);
                }
            }
        }
        Ok(bytes.len())
    }

    /// Receives what has arrived.
    ///
    /// # Safety
    /// As [`farmem_sys::socket::receive`].
    pub unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
        let mut state = self.network.state.lock();
        let now = state.now_ns;
        let wire = &mut state.wires[self.wire];
        match wire.to_host.take(now, parts) {
            // The end comes behind what was sent before it.
            Err(_) if wire.cut && wire.to_host.pieces.is_empty() => Ok(0),
            other => other,
        }
    }

    /// How long the node's machine has not been heard on it.
    pub fn mute_ns(&self) -> u64 {
        let state = self.network.state.lock();
        let (from, until) = state.wires[self.wire].mute;
        if (from..until).contains(&state.now_ns) { state.now_ns - from } else { 0 }
    }

    /// Whether it is cut.
    pub fn is_cut(&self) -> bool {
        self.network.state.lock().wires[self.wire].cut
    }

    /// Lets time pass until something arrives anywhere, at most `timeout_ns`.
    pub fn wait(&self, timeout_ns: u64) {
        let now = self.network.now_ns();
        let until = self.network.next_of_all().unwrap_or(u64::MAX).saturating_sub(now);
        self.network.pass(until.min(timeout_ns));
    }
}

impl network::Network for Network {
    fn connect(self: Arc<Self>, timeout_ns: u64) -> Result<Box<dyn network::Stream>, Errno> {
        Ok(Box::new(Network::connect(&self, timeout_ns)?))
    }

    fn now_ns(&self) -> u64 {
        Network::now_ns(self)
    }

    fn pass(&self, ns: u64) {
        Network::pass(self, ns);
    }
}

impl network::Stream for Stream {
    unsafe fn send(&self, parts: &[Part]) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller.
        unsafe { Stream::send(self, parts) }
    }

    unsafe fn receive(&self, parts: &[Part]) -> Result<usize, Errno> {
        // SAFETY: passed on to the caller.
        unsafe { Stream::receive(self, parts) }
    }

    fn is_cut(&self) -> bool {
        Stream::is_cut(self)
    }

    fn mute_ns(&self) -> u64 {
        Stream::mute_ns(self)
    }

    fn wait(&self, timeout_ns: u64) {
        Stream::wait(self, timeout_ns);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.network.state.lock().wires[self.wire].host_closed = true;
    }
}
