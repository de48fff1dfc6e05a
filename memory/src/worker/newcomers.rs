//! Connections that have just come, until their peers have said who they are.

use super::{Connection, IDLE_S, LISTENERS, SILENT_MS, STRANGERS, TOGETHER, WAITING, Worker, lacks};
use farmem_nic::engine::{Circumstances, Clocks, Engine, Goodbye};
use farmem_nic::events::{self, Refused};
use farmem_sys::raw::{now_ns, thread_cpu_ns};
use farmem_sys::socket;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

/// Of these bytes each new connection gets a part, by the number of connections that are there: its
/// socket holds no more while the peer has no room for it. The parts of the first 2 000 come to some
/// nine times this; each further one has the least part. Otherwise a peer with thousands of READs that
/// it does not take would fill what the kernel has for all TCP of the machine (`net.ipv4.tcp_mem`).
const UNSENT: usize = 32 << 20;
/// … of one connection, at most, and at least. The kernel says that there is room when half has gone.
const UNSENT_OF_ONE: RangeInclusive<usize> = 16 << 10..=512 << 10;
/// The same of bytes that were sent and are not acknowledged. A peer that acknowledges one packet in
/// ten seconds is not silent, and the kernel keeps what is under way for as long.
const HELD: usize = 64 << 20;
/// … of one connection. With few connections the kernel decides: 4 MiB each, as it is configured. A peer
/// that has less than two packets of loopback acknowledges them 40 ms later, which is 1 MiB a second.
const HELD_OF_ONE: RangeInclusive<usize> = 160 << 10..=4 << 20;

/// The most that the kernel holds for a connection when it is told how much: twice `net.core.wmem_max`. More is
/// cut to that.
fn most_held() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let told = std::fs::read_to_string("/proc/sys/net/core/wmem_max").ok();
        told.and_then(|told| told.trim().parse::<usize>().ok()).map_or(usize::MAX, |bytes| bytes.saturating_mul(2))
    })
}

/// A connection's part of `all`, beside this many others.
fn part(all: usize, of_one: &RangeInclusive<usize>, connections: usize) -> usize {
    (all / connections.max(1)).clamp(*of_one.start(), *of_one.end())
}

/// Bounds what the kernel holds for a peer of a TCP connection that has said who it is, beside this
/// many others.
fn bound(socket: &OwnedFd, connections: usize) {
    socket::keep_unsent_below(socket.as_raw_fd(), part(UNSENT, &UNSENT_OF_ONE, connections) as i32);
    let held = part(HELD, &HELD_OF_ONE, connections);
    if held < *HELD_OF_ONE.end() && held <= most_held() {
        socket::hold_at_most(socket.as_raw_fd(), held as i32);
    }
}

impl Worker {
    /// Accepts connections that wait at a listener. If more than [`TOGETHER`] wait, epoll reports
    /// the listener again.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..TOGETHER {
            match self.listeners.get(listener).map(|l| l.accept(self.path.as_ref())) {
                Some(Ok((socket, about))) => self.deal_out(socket, about),
                // Without a descriptor nothing can be accepted, and epoll would report the listener
                // again and again.
                Some(Err(e)) if lacks(&e) => return self.watch(listener, false),
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Begins or ends watching a listener.
    pub(super) fn watch(&mut self, listener: usize, whether: bool) {
        let entry = LISTENERS + listener as u64;
        let done = self.epoll.change(self.listeners[listener].as_raw_fd(), entry, whether, false).is_ok();
        // The next sweep watches it again, or retries if that failed now.
        if done != whether {
            self.deaf.push(listener);
        }
    }

    /// Gives connections to the workers in turn.
    pub(super) fn deal_out(&mut self, socket: OwnedFd, about: Circumstances) {
        let inbox = &self.shared.inboxes[self.next_worker];
        let mut accepted = inbox.accepted.lock();
        let overdue = if accepted.len() == WAITING { accepted.pop_front() } else { None };
        accepted.push_back((socket, about));
        drop(accepted);
        drop(overdue);
        inbox.waker.wake();
        self.next_worker = (self.next_worker + 1) % self.shared.inboxes.len();
    }

    /// Takes a connection that was dealt to this worker. Its peer is a stranger yet.
    pub(super) fn admit(&mut self, socket: OwnedFd, about: Circumstances, now: u64) {
        if !about.local {
            socket::notice_silence(socket.as_raw_fd(), IDLE_S, SILENT_MS);
            // It may say who it is and ask for much by the same packets.
            socket::keep_unsent_below(socket.as_raw_fd(), *UNSENT_OF_ONE.start() as i32);
        }
        self.make_room_for_a_stranger(now);
        let entry = match self.connections.iter().position(Option::is_none) {
            Some(hole) => hole,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        let mut engine = Engine::new(about);
        engine.set_clocks(Clocks { time: now_ns, cpu: thread_cpu_ns });
        let connection = Connection {
            socket,
            engine,
            since_ns: now,
            watched: (true, false),
            passed: false,
            held_up: false,
            class: None,
            goes_on: false,
            put_off: false,
            later: false,
            queued: false,
            moved: 0,
        };
        if self.epoll.add(connection.socket.as_raw_fd(), entry as u64, true, false).is_ok() {
            self.connections[entry] = Some(connection);
            self.strangers.push(entry);
            self.shared.strangers.fetch_add(1, Ordering::Relaxed);
            self.serve(entry, now);
        }
    }

    /// If this worker has as many strangers as it may, closes one: the oldest of the peer that has
    /// most. So a peer that opens connections and says nothing loses its own.
    fn make_room_for_a_stranger(&mut self, now: u64) {
        if self.strangers.len() < (STRANGERS / self.shared.inboxes.len()).max(1) {
            return;
        }
        let peer_of = |entry: &usize| self.connections[*entry].as_ref().map(|connection| connection.engine.peer());
        let mut by = BTreeMap::new();
        self.strangers.iter().for_each(|entry| *by.entry(peer_of(entry)).or_insert(0) += 1);
        let most = by.into_iter().max_by_key(|(_, count)| *count).map(|(peer, _)| peer);
        let oldest = self.strangers.iter().copied().find(|entry| Some(peer_of(entry)) == most);
        if let Some(entry) = oldest {
            self.tell_refused(entry, Refused::Crowded);
            self.close(entry, Goodbye::Done, now);
        }
    }

    /// Tells the log that a connection was refused.
    pub(super) fn tell_refused(&self, entry: usize, why: Refused) {
        if let Some(connection) = &self.connections[entry] {
            self.shared.nic.events.tell(events::Event::Refused(connection.engine.peer(), why));
        }
    }

    /// Takes a connection off the list of strangers if it has said who it is, or is gone. If it is
    /// still there, it joins its tenant's class.
    pub(super) fn forget_strangers(&mut self, entry: usize) {
        let is_one = self.connections[entry].as_ref().is_some_and(|connection| connection.engine.is_stranger());
        if !is_one && let Some(at) = self.strangers.iter().position(|&other| other == entry) {
            self.strangers.remove(at);
            self.shared.strangers.fetch_sub(1, Ordering::Relaxed);
            self.trim.note(self.entries());
            if let Some(connection) = &mut self.connections[entry] {
                if connection.engine.is_far() {
                    bound(&connection.socket, self.shared.nic.connections.taken());
                }
                connection.class = Some(self.turns.join(connection.engine.tenant()));
            }
        }
    }
}
