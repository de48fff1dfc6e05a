//! Counters over HTTP, as Prometheus reads them: `GET /metrics`.
//!
//! One thread serves all askers, and keeps no connection alive: it is for a scrape every few
//! seconds. Askers do not wait for each other: requests are read as they come, and answers leave as
//! they are taken, each within [`PATIENCE`]. Beyond [`ASKERS`] at a time, the oldest of the address
//! that has most gives way. The thread sleeps in epoll.
//!
//! Counters at a loopback address are for this machine alone. So a request there names an address or a
//! name without a dot as its host, or none, as no browser does: a web page of a stranger's site reads
//! nothing ([`host`]).

#![forbid(unsafe_code)]

pub mod host;

use farmem_sys::epoll::{Epoll, Event};
use farmem_sys::raw::Errno;
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How long one asker may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request's head, at most.
const REQUEST: usize = 4096;
/// Askers at a time, at most.
const ASKERS: usize = 64;
/// The listener's token; others are askers' numbers.
const LISTENER: u64 = 0;

/// Listens at an address. Askers are answered once [`serve`] is called.
pub fn bind(at: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Begins to serve at a listener that [`bind`] has made; returns the address with its port. `counters`
/// is called for each request. Once it returns `None`, nothing is served any more.
pub fn serve(
    listener: TcpListener,
    counters: impl FnMut() -> Option<String> + Send + 'static,
) -> io::Result<SocketAddr> {
    let bound = listener.local_addr()?;
    let failed = |e: Errno| io::Error::from_raw_os_error(e.0);
    let epoll = Epoll::new().map_err(failed)?;
    epoll.add(listener.as_raw_fd(), LISTENER, true, false).map_err(failed)?;
    let near = bound.ip().to_canonical().is_loopback();
    let server = Server { listener, epoll, counters, near, askers: VecDeque::new(), next: LISTENER + 1 };
    std::thread::Builder::new().name("metrics".into()).spawn(|| server.run())?;
    Ok(bound)
}

/// Nothing has these counters any more.
struct Over;

struct Server<Counters> {
    listener: TcpListener,
    epoll: Epoll,
    counters: Counters,
    /// Whether only this machine may ask.
    near: bool,
    /// In the order in which they came, which is that of their ends of patience.
    askers: VecDeque<Asker>,
    next: u64,
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

impl<Counters: FnMut() -> Option<String>> Server<Counters> {
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
                    number => match self.go_on(number) {
                        Ok(()) => {}
                        Err(Over) => return,
                    },
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
    fn go_on(&mut self, number: u64) -> Result<(), Over> {
        // Gone, if it gave way to another in this batch of events.
        let Some(at) = self.askers.iter().position(|asker| asker.number == number) else { return Ok(()) };
        let asker = &mut self.askers[at];
        let mut goes_on = asker.answer.is_some() || asker.hear();
        if asker.answer.is_none() && asker.is_whole() {
            asker.answer = Some(answer(&asker.head, self.near, &mut self.counters)?);
        }
        if goes_on && asker.answer.is_some() {
            goes_on = asker.tell() && self.epoll.change(asker.stream.as_raw_fd(), number, false, true).is_ok();
        }
        if !goes_on {
            self.askers.remove(at);
        }
        Ok(())
    }
}

impl Asker {
    /// Reads more of the request. False: the connection is over.
    fn hear(&mut self) -> bool {
        let mut said = [0; REQUEST];
        match self.stream.read(&mut said[..REQUEST - self.head.len()]) {
            Ok(n) if n > 0 => self.head.extend(&said[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => return false,
        }
        true
    }

    fn is_whole(&self) -> bool {
        self.head.len() == REQUEST || self.head.windows(4).any(|four| four == b"\r\n\r\n")
    }

    /// Sends more of the answer. False: all is sent, or the connection is over.
    fn tell(&mut self) -> bool {
        let answer = self.answer.get_or_insert_default();
        while !answer.is_empty() {
            match self.stream.write(answer) {
                Ok(n) if n > 0 => drop(answer.drain(..n)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
                Ok(_) => return false,
            }
        }
        false
    }
}

/// Whether a request's head names no host but addresses and this machine.
fn names_no_site(head: &[u8]) -> bool {
    let lines = head.split(|&byte| byte == b'\n').skip(1).take_while(|line| !line.trim_ascii().is_empty());
    let said = lines.filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        line[..colon].trim_ascii().eq_ignore_ascii_case(b"host").then(|| line[colon + 1..].trim_ascii())
    });
    said.map(std::str::from_utf8).all(|said| said.is_ok_and(|said| host::is_no_site(&host::host_of(said))))
}

fn answer(head: &[u8], near: bool, counters: impl FnOnce() -> Option<String>) -> Result<Vec<u8>, Over> {
    let mut words = head.split(|&byte| byte == b' ' || byte == b'\r');
    let (verb, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // The text behind a question mark does not change the counters.
    let path = path.split(|&byte| byte == b'?').next().unwrap_or_default();
    let (status, body) = match (verb, path) {
        _ if near && !names_no_site(head) => {
            ("421 Misdirected Request", "the counters are for this machine: ask by 127.0.0.1 or localhost\n".into())
        }
        (b"GET", b"/metrics" | b"/") => ("200 OK", counters().ok_or(Over)?),
        (b"GET", _) => ("404 Not Found", "the counters are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "only GET is understood\n".into()),
    };
    let (kind, length) = ("text/plain; version=0.0.4; charset=utf-8", body.len());
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    Ok((head + &body).into_bytes())
}
