//! What comes from outside: signals, new connections, bytes for connections.

use super::Server;
use crate::command::Client;
use crate::serve::connection::Connection;
use crate::serve::tls::Wire;
use farmem_sys::epoll::Event;
use farmem_sys::process::Signals;
use farmem_sys::socket::{keep_unsent_below, send_at_once};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::Duration;

/// Clients that have not given the password, at most.
const GUESTS: usize = 256;
/// The same where clients come with a handshake, which takes some turns with each.
const WITH_TLS: usize = 1024;

/// Bytes of replies that clients' sockets may hold while the clients take none, in all: some six times
/// that, if there are very many. Otherwise some hundred clients that read nothing fill what the kernel
/// has for all TCP of the machine. A reply that waits longer is in the front end's own memory, within
/// its bounds.
const UNSENT: usize = 32 << 20;

/// The bytes of one more client's socket, beside this many others.
fn unsent(clients: usize) -> i32 {
    (UNSENT / clients.max(1)).clamp(16 << 10, 512 << 10) as i32
}

/// Whether a client comes from another machine.
fn is_away(from: SocketAddr) -> bool {
    !from.ip().to_canonical().is_loopback()
}

impl Server<'_> {
    /// Closes a guest's connection if there are too many: the oldest of the address
    /// that has most. So strangers keep nobody out.
    fn make_way(&mut self) {
        let most = if self.clients.tls.is_some() { WITH_TLS } else { GUESTS };
        let most = most.min(self.front.most_clients.div_ceil(2));
        if self.guests.len() < most {
            return;
        }
        let connections = &self.connections;
        self.guests.retain(|id| connections.get(id).is_some_and(|guest| guest.is_guest()));
        if self.guests.len() < most {
            return;
        }
        let mut by_address: BTreeMap<&str, (usize, Reverse<u64>)> = BTreeMap::new();
        for id in self.guests.iter().rev() {
            let address = connections.get(id).and_then(|guest| guest.client.address.rsplit_once(':'));
            let (count, oldest) = by_address.entry(address.map_or("", |(address, _)| address)).or_default();
            (*count, *oldest) = (*count + 1, Reverse(*id));
        }
        let oldest = by_address.into_values().max().map(|(_, Reverse(id))| id);
        if let Some(id) = oldest
            && let Some(connection) = self.connections.get_mut(&id)
        {
            connection.broken = true;
            self.flush(id);
        }
    }

    /// Takes the signals that have come. Lets nobody in any more if one asks to end.
    pub(super) fn is_told_to_end(&mut self, signals: &Signals) -> bool {
        let come = std::iter::from_fn(|| signals.next(Duration::ZERO));
        let ends = come.fold(false, |ends, signal| ends | signals.asks_to_end(signal));
        if ends {
            std::mem::take(&mut self.listeners).iter().for_each(|listener| self.epoll.forget(listener.as_raw_fd()));
        }
        ends
    }

    /// An event of a listener, or of a connection.
    pub(super) fn happened(&mut self, event: Event) {
        if let Some(listener) = self.listeners.get(event.token as usize) {
            match listener.accept() {
                Ok((stream, from)) => self.greet(stream, from),
                // No descriptor is free: those that are there go on.
                Err(e) if e.kind() != ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => {}
            }
            return;
        }
        if let Some(connection) = self.connections.get_mut(&event.token) {
            connection.happened(event);
            self.active.push(event.token);
        }
    }

    fn greet(&mut self, stream: std::net::TcpStream, from: SocketAddr) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let tls = self.clients.tls.clone();
        let known = self.clients.open || tls.as_ref().is_some_and(|tls| tls.asks_clients);
        let stranger = self.front.password.is_none() && !known && is_away(from);
        let authenticated = self.front.password.is_none() && !stranger;
        let guest = !authenticated || tls.is_some();
        if guest {
            self.make_way();
        }
        if self.connections.len() >= self.front.most_clients {
            self.front.rejected.set(self.front.rejected.get() + 1);
            if tls.is_some() {
                return;
            }
            let _ = std::io::Write::write(&mut &stream, b"-ERR max number of clients reached\r\n");
            return;
        }
        send_at_once(stream.as_raw_fd());
        keep_unsent_below(stream.as_raw_fd(), unsent(self.connections.len()));
        let to = stream.local_addr().map_or(String::new(), |at| at.to_string());
        let Ok(wire) = Wire::new(stream, tls.as_ref()) else { return };
        let id = self.next_client;
        self.next_client += 1;
        if self.epoll.add(wire.as_raw_fd(), id, true, false).is_err() {
            return;
        }
        let client = Client::new(id, [from.to_string(), to], self.front.store.now_ms());
        client.authenticated.set(authenticated);
        client.stranger.set(stranger);
        if guest {
            self.guests.insert(id);
        }
        let client = Rc::new(client);
        self.front.clients.borrow_mut().insert(id, Rc::clone(&client));
        let figures = &self.front.store.figures;
        figures.connections.set(figures.connections.get() + 1);
        self.connections.insert(id, Connection::new(client, wire, self.clients.kept, Rc::clone(&self.shared)));
        self.active.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_of_this_machine_are_known_by_their_address() {
        for here in ["127.0.0.1:1", "127.8.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(!is_away(here.parse().unwrap()), "{here}");
        }
        for away in ["192.0.2.2:1", "0.0.0.0:1", "[::ffff:192.0.2.2]:1", "[fe80::1]:1", "[::]:1"] {
            assert!(is_away(away.parse().unwrap()), "{away}");
        }
    }
}
