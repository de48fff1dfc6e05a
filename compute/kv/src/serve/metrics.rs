//! Counters over HTTP, as Prometheus reads them: `GET /metrics`.
//!
//! A thread of its own answers from a text that the event loop writes once a second, so no asker
//! delays a client. Askers do not wait for each other either: requests are read as they come, and
//! answers leave as they are taken, each within [`PATIENCE`]. Beyond [`ASKERS`] at a time, the oldest of
//! the address that has most gives way.

use super::open::{Failed, system};
use farmem_sys::epoll::{Epoll, Event};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one asker may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request.
const REQUEST: usize = 4096;
/// Askers at a time, at most.
const ASKERS: usize = 64;
/// The listener's token; others are askers' numbers.
const LISTENER: u64 = 0;

/// The text that is served.
#[derive(Clone, Debug, Default)]
pub struct Shown(Arc<Mutex<String>>);

impl Shown {
    /// Shows another text.
    pub fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Begins to serve; the address with its port.
///
/// # Errors
/// It cannot listen there.
pub fn serve(at: SocketAddr, shown: Shown) -> Result<SocketAddr, Failed> {
    let refused = |reason| Failed::Listen { at, reason };
    let listener = TcpListener::bind(at).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let bound = listener.local_addr().map_err(refused)?;
    let epoll = Epoll::new().map_err(system("epoll"))?;
    epoll.add(listener.as_raw_fd(), LISTENER, true, false).map_err(system("epoll"))?;
    let server = Server { listener, epoll, shown, askers: VecDeque::new(), next: LISTENER + 1 };
    std::thread::Builder::new().name("metrics".into()).spawn(|| server.run()).map_err(refused)?;
    Ok(bound)
}

/// A connection: a request that is not whole yet, then an answer that is not taken yet.
struct Asker {
    number: u64,
    stream: TcpStream,
    from: IpAddr,
    head: Vec<u8>,
    answer: Option<Vec<u8>>,
    until: Instant,
}

struct Server {
    listener: TcpListener,
    epoll: Epoll,
    shown: Shown,
    /// In the order in which they came, which is that of their ends of patience.
    askers: VecDeque<Asker>,
    next: u64,
}

impl Server {
    fn run(mut self) {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let now = Instant::now();
            while self.askers.front().is_some_and(|asker| asker.until <= now) {
                self.askers.pop_front();
            }
            // Rounded up, or the last millisecond would be spent in asking.
            let left = self.askers.front().map_or(-1, |asker| (asker.until - now).as_millis() as i32 + 1);
            if self.epoll.wait(&mut events, left).is_err() {
                return;
            }
            for event in &events {
                match event.token {
                    LISTENER => self.accept(),
                    number => self.go_on(number),
                }
            }
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, from)) => {
                let number = self.next;
                self.next += 1;
                let ready = stream.set_nonblocking(true).is_ok();
                if ready && self.epoll.add(stream.as_raw_fd(), number, true, false).is_ok() {
                    if self.askers.len() >= ASKERS {
                        self.make_way();
                    }
                    let (from, until) = (from.ip().to_canonical(), Instant::now() + PATIENCE);
                    self.askers.push_back(Asker { number, stream, from, head: Vec::new(), answer: None, until });
                }
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            // No descriptor is left, perhaps for long.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }

    /// The oldest of the address that has most: so strangers at another address keep nobody out.
    fn make_way(&mut self) {
        let mut by_address: BTreeMap<IpAddr, (usize, Reverse<u64>)> = BTreeMap::new();
        for asker in self.askers.iter().rev() {
            let (count, oldest) = by_address.entry(asker.from).or_default();
            (*count, *oldest) = (*count + 1, Reverse(asker.number));
        }
        if let Some((_, Reverse(oldest))) = by_address.into_values().max() {
            self.askers.retain(|asker| asker.number != oldest);
        }
    }

    /// Reads more of a request, or sends more of an answer.
    fn go_on(&mut self, number: u64) {
        // Gone, if it gave way to another in this batch of events.
        let Some(at) = self.askers.iter().position(|asker| asker.number == number) else { return };
        let asker = &mut self.askers[at];
        let goes_on = match asker.answer {
            None => asker.hear(&self.shown) && (asker.answer.is_none() || asker.tell(&self.epoll)),
            Some(_) => asker.tell(&self.epoll),
        };
        if !goes_on {
            self.askers.remove(at);
        }
    }
}

impl Asker {
    /// Reads more of the request, and has an answer when that is whole. False: the connection is over.
    fn hear(&mut self, shown: &Shown) -> bool {
        let mut said = [0; REQUEST];
        match self.stream.read(&mut said[..REQUEST - self.head.len()]) {
            Ok(n) if n > 0 => self.head.extend(&said[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return true,
            _ => return false,
        }
        if self.head.len() == REQUEST || self.head.windows(4).any(|four| four == b"\r\n\r\n") {
            self.answer = Some(answer(&self.head, shown));
        }
        true
    }

    /// Sends more of the answer. False: all is sent, or the connection is over.
    fn tell(&mut self, epoll: &Epoll) -> bool {
        let Some(answer) = &mut self.answer else { return true };
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(n) if n > 0 => drop(answer.drain(..n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    return epoll.change(self.stream.as_raw_fd(), self.number, false, true).is_ok();
                }
                _ => return false,
            }
        }
        false
    }
}

fn answer(head: &[u8], shown: &Shown) -> Vec<u8> {
    let mut words = head.split(|&byte| byte == b' ' || byte == b'\r');
    let (verb, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
    let (status, body) = match (verb, path) {
        (b"GET", b"/metrics" | b"/") => ("200 OK", shown.get()),
        (b"GET", _) => ("404 Not Found", "the counters are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "only GET is understood\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}
