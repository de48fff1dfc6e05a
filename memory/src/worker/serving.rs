//! Serving connections: as their events come, or in their tenants' turns.
//!
//! ```text
//!  one tenant      event ─► serve
//!  several         events ─► turns ─► serve one for a turn ─► look at epoll ─► turns ─► …
//! ```
//!
//! While several tenants ask, a turn is short ([`SMALL_TURN`]), and epoll is asked after each one.
//! So a request of a tenant that was idle waits for at most one turn of another's. That look is
//! cheap, because epoll watches no connection that waits for its turn: a tenant that floods has
//! its connections in the queue, and epoll is left with the quiet ones.

use super::{LATER_NS, Worker};
use farmem_nic::engine::{Circumstances, Goodbye};
use farmem_sys::raw::{now_ns, thread_cpu_ns};
use std::os::fd::AsRawFd;

/// Pieces of one connection's answers that are sent before others are served: some hundred KiB.
const IN_PIECES: usize = 8;
/// Bytes that a connection is sent or takes in one turn, while several tenants are there.
const TURN_BYTES: usize = 32 << 10;
/// The same while several tenants ask.
pub(super) const SMALL_TURN: usize = 16 << 10;
/// How long turns go on before epoll is asked again while only one tenant asks, ns.
const TURNS_NS: u64 = 20_000;

impl Worker {
    /// Serves a connection, now or in its tenant's turn. Returns whether anything came.
    pub(super) fn serve_in_turn(&mut self, entry: usize, now: u64) -> bool {
        let class = self.connections.get(entry).and_then(|connection| connection.as_ref()?.class);
        match class {
            // The tenant is ahead of its rate, so the round robin passes it over. Its connection
            // must not be watched meanwhile: epoll would report the same input again and again.
            Some(class) if self.turns.is_ahead(class, now) => self.put_off(entry, class),
            Some(class) if self.turns.shared() => {
                let waits = !self.turns.ready(class, entry);
                if waits {
                    self.queue(entry);
                }
                false
            }
            _ => self.serve(entry, now),
        }
    }

    /// Has epoll report a connection no more that waits for its turn already.
    fn queue(&mut self, entry: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(entry)
            && !connection.put_off
            && !std::mem::replace(&mut connection.queued, true)
        {
            connection.watched = (false, false);
            let _ = self.epoll.change(connection.socket.as_raw_fd(), entry as u64, false, false);
        }
    }

    /// Serves connections that wait for their turns, until it is time to ask epoll for others: after
    /// each one, while several tenants ask. Returns whether anything came.
    ///
    /// A tenant pays with the CPU time of its turns. Time in which the machine did something else is
    /// nobody's.
    pub(super) fn take_turns(&mut self, now: u64) -> bool {
        let (mut came, mut at) = (false, now);
        let until = if self.turns.crowded(now) { now } else { now + TURNS_NS };
        while let Some((class, entry)) = self.turns.next(at) {
            // One tenant alone pays nobody, and the clock is a system call.
            let begun = self.turns.shared().then(thread_cpu_ns);
            came |= self.serve(entry, at);
            begun.into_iter().for_each(|begun| self.turns.took(class, thread_cpu_ns().saturating_sub(begun)));
            at = now_ns();
            if at >= until {
                break;
            }
        }
        came
    }

    /// Takes a connection's input and sends what the socket takes of the answers. Returns whether
    /// anything came.
    pub(super) fn serve(&mut self, entry: usize, now: u64) -> bool {
        let Some(Some(connection)) = self.connections.get_mut(entry) else { return false };
        if let Some(class) = connection.class.filter(|&class| self.turns.is_ahead(class, now)) {
            return self.put_off(entry, class);
        }
        if std::mem::take(&mut connection.put_off) {
            connection.watched = (true, false);
            if self.epoll.add(connection.socket.as_raw_fd(), entry as u64, true, false).is_err() {
                self.close(entry, Goodbye::Cut, now);
                return true;
            }
        }
        let was_stranger = connection.engine.is_stranger();
        let shared = self.turns.shared();
        connection.engine.set_turn(match shared {
            true if self.turns.crowded(now) => SMALL_TURN,
            true => TURN_BYTES,
            false => usize::MAX,
        });
        let mut served = connection.serve(&self.shared.nic, now);
        // A long answer goes on while the socket takes it: no event of the socket would bring the
        // worker back.
        for _ in 0..IN_PIECES {
            if !connection.goes_on || shared {
                break;
            }
            served = served.and_then(|came| connection.serve(&self.shared.nic, now).map(|more| came || more));
        }
        let moved = std::mem::take(&mut connection.moved);
        connection.class.into_iter().for_each(|class| self.turns.moved(class, moved, now));
        let opened = connection.engine.take_opened();
        let came = match served {
            Ok(came) => {
                let waits = connection.engine.waits();
                let wants = (
                    !waits && !connection.engine.is_backed_up(),
                    connection.engine.has_output() && !connection.held_up,
                );
                let more = connection.goes_on || came && wants.0;
                connection.queued &= more;
                match connection.class {
                    // More may have come meanwhile. The next turn that finds nothing ends that.
                    Some(class) if connection.queued => _ = self.turns.ready(class, entry),
                    // It goes on after the other tenants' turns, without a pause.
                    Some(class) if shared && connection.goes_on => _ = self.turns.ready(class, entry),
                    _ if !(connection.held_up || connection.goes_on) || self.unasked.contains(&entry) => {}
                    _ => self.unasked.push(entry),
                }
                if !connection.queued && wants != connection.watched {
                    connection.watched = wants;
                    let _ = self.epoll.change(connection.socket.as_raw_fd(), entry as u64, wants.0, wants.1);
                }
                if waits {
                    self.hot.forget(entry);
                    if !std::mem::replace(&mut connection.later, true) {
                        self.later.push_back((now + LATER_NS, entry));
                    }
                } else if came {
                    self.hot.came(entry);
                    if let Some(class) = connection.class {
                        self.turns.asked(class, now);
                    }
                }
                came || connection.goes_on
            }
            Err(why) => {
                self.close(entry, why, now);
                true
            }
        };
        if was_stranger {
            self.forget_strangers(entry);
        }
        opened.into_iter().for_each(|(stream, peer)| {
            self.deal_out(stream.into(), Circumstances { local: true, peer, own_end: None, path: Vec::new() });
        });
        came
    }

    /// Puts off a connection whose tenant is ahead of its rate: it waits for its turn, and is not
    /// watched. The worker sleeps until the tenant may be served, or another connection has
    /// something. Returns false: nothing came.
    fn put_off(&mut self, entry: usize, class: usize) -> bool {
        if let Some(Some(connection)) = self.connections.get_mut(entry)
            && !std::mem::replace(&mut connection.put_off, true)
        {
            connection.queued = false;
            self.epoll.forget(connection.socket.as_raw_fd());
        }
        self.turns.ready(class, entry);
        false
    }
}
