//! The controller's port: connections are bounded in number, in memory and in time.
//!
//! | bound | |
//! |---|---|
//! | connections | [`MOST`], of which one address has at most [`MOST_OF_ONE`]. One more is closed at once. An eighth is kept for addresses that have few, by networks |
//! | a request's head | [`HEAD`] bytes, within [`HEAD_WITHIN`]. So long a connection may be idle too |
//! | a request's body | [`crate::guard::LONGEST_REQUEST`], within 5 s; 256 at a time, shared by tenants, or addresses where there are no tokens; then a quarter is kept for addresses that have none, by networks. Kept of those alone whose head proves a token |
//! | answers that are not taken | [`UNSENT`] bytes in the socket, and hyper's buffer |
//! | a connection | is asked to end after 60 s, and cut 10 s later, also if its peer does not read |
//!
//! So strangers can make the controller hold at most 4096 heads and 256 bodies: 80 MiB. Long answers
//! are made at most every 250 ms, and shared by all who look at the rack.

use crate::spare::Spare;
use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// Connections at a time.
pub const MOST: usize = 4096;
/// Connections of one address at a time.
pub const MOST_OF_ONE: usize = 1024;
/// Those of [`MOST`] that are kept for addresses with fewer than [`FEW`].
const KEPT: usize = MOST / 8;
const FEW: usize = 8;
/// Bytes of a request's head.
const HEAD: usize = 16 << 10;
/// How long a request's head may take. A connection that is idle for so long is closed.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);

/// How long connections may take.
#[derive(Clone, Copy)]
struct Times {
    head: Duration,
    /// How long a connection is used.
    lives: Duration,
    /// How long its last request may take after that.
    ends: Duration,
}

const TIMES: Times = Times { head: HEAD_WITHIN, lives: Duration::from_secs(60), ends: Duration::from_secs(10) };
/// Bytes of answers that a connection's socket may hold while its peer takes none.
const UNSENT: usize = 16 << 10;
/// How long to wait when the system has no descriptor for one more connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Connections by their peers' addresses. `all` are those that are not in `spare`.
#[derive(Default)]
struct Crowd {
    all: usize,
    of: HashMap<IpAddr, usize>,
    spare: Spare,
}

/// One connection's place in the crowd.
struct Place {
    crowd: Arc<Mutex<Crowd>>,
    from: IpAddr,
    /// It is one of those that are kept.
    spare: bool,
}

impl Place {
    /// `None`: there are too many, too many of this address, or of its network.
    fn take(crowd: &Arc<Mutex<Crowd>>, from: IpAddr) -> Option<Place> {
        let mut within = crowd.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = within.of.get(&from).copied().unwrap_or(0);
        let spare = within.all >= MOST - KEPT;
        if of_one >= MOST_OF_ONE || spare && (of_one >= FEW || !within.spare.take(from, KEPT)) {
            return None;
        }
        if !spare {
            within.all += 1;
        }
        within.of.insert(from, of_one + 1);
        Some(Place { crowd: Arc::clone(crowd), from, spare })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut crowd = self.crowd.lock().unwrap_or_else(PoisonError::into_inner);
        match self.spare {
            true => crowd.spare.give_back(self.from),
            false => crowd.all -= 1,
        }
        match crowd.of.get_mut(&self.from) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                crowd.of.remove(&self.from);
            }
        }
    }
}

/// Serves connections until the process ends.
pub async fn serve(listener: TcpListener, router: Router) {
    serve_within(TIMES, listener, router).await;
}

async fn serve_within(times: Times, listener: TcpListener, router: Router) {
    let crowd = Arc::default();
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if let Some(place) = Place::take(&crowd, from.ip().to_canonical()) {
            tokio::spawn(one(times, stream, from, router.clone(), place));
        }
    }
}

async fn one(times: Times, stream: TcpStream, from: SocketAddr, router: Router, place: Place) {
    // A refusal to send at once costs time and nothing else.
    let _ = stream.set_nodelay(true);
    farmem_sys::socket::keep_unsent_below(stream.as_raw_fd(), UNSENT as i32);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(from));
        router.call(request)
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(times.head).max_buf_size(HEAD);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    // The peer's errors end its connection, and are nobody else's business.
    if tokio::time::timeout(times.lives, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(times.ends, connection).await;
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::{Guard, check};
    use axum::middleware::from_fn_with_state;
    use axum::routing::{get, post};
    use std::io::{Read, Write};
    use std::time::Instant;

    const QUICK: Times =
        Times { head: Duration::from_millis(200), lives: Duration::from_millis(600), ends: Duration::from_millis(200) };

    /// A port whose connections may take little time, for as long as the test's process lives.
    fn open() -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                listener.set_nonblocking(true).unwrap();
                let guard = Guard::new(None).unwrap().waits(Duration::from_millis(200));
                let router = Router::new()
                    .route("/", get(|| async { "here" }))
                    .route("/long", get(|| async { vec![0_u8; 32 << 20] }))
                    .route("/", post(|body: axum::body::Bytes| async move { body.len().to_string() }))
                    .layer(from_fn_with_state(Arc::new(guard), check));
                serve_within(QUICK, TcpListener::from_std(listener).unwrap(), router).await;
            });
        });
        at
    }

    fn dial(at: SocketAddr, says: &[u8]) -> std::net::TcpStream {
        let mut stream = std::net::TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(says).unwrap();
        stream
    }

    /// The bytes that are answered until the end of the connection.
    fn heard(mut stream: std::net::TcpStream) -> String {
        let mut answer = Vec::new();
        // A reset is an end as well.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn slow_senders_and_readers_hold_no_connection() {
        let (at, began) = (open(), Instant::now());
        assert_eq!(heard(dial(at, b"")), "", "who says nothing");
        assert_eq!(heard(dial(at, b"GET / HT")), "", "who says half a head");
        let slow = heard(dial(at, b"POST / HTTP/1.1\r\ncontent-length: 10\r\n\r\n12345"));
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        let long = heard(dial(at, b"POST / HTTP/1.1\r\ncontent-length: 65537\r\n\r\n1"));
        assert!(long.starts_with("HTTP/1.1 413") || long.starts_with("HTTP/1.1 408"), "{long}");
        let head = [b"GET / HTTP/1.1\r\nx: " as &[u8], &[b'x'; 20 << 10]].concat();
        assert!(heard(dial(at, &head)).starts_with("HTTP/1.1 431"));
        // Its answer does not fit into the sockets' buffers.
        let reader = dial(at, b"GET /long HTTP/1.1\r\n\r\n");
        std::thread::sleep(Duration::from_secs(2));
        assert!(heard(reader).len() < 32 << 20, "a reader who reads nothing was waited for");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
        let good = heard(dial(at, b"POST / HTTP/1.1\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc"));
        assert!(good.ends_with("\r\n\r\n3"), "{good}");
    }

    /// 1024 connections of one address would hold what the kernel has for all TCP of the machine.
    #[test]
    fn an_answer_that_nobody_takes_fills_no_socket() {
        let at = open();
        let _reader = dial(at, b"GET /long HTTP/1.1\r\n\r\n");
        let most = (0..40).map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            farmem_tests::process::unsent(at.port())
        });
        let most = most.max().unwrap();
        assert!(most > 0 && most < 512 << 10, "{most} bytes wait");
    }

    #[test]
    fn one_address_has_a_part_of_all_connections_and_gives_it_back() {
        let (crowd, one) = (Arc::default(), IpAddr::from([10, 0, 0, 1]));
        let mut places: Vec<_> = (0..MOST_OF_ONE).map(|_| Place::take(&crowd, one).unwrap()).collect();
        assert!(Place::take(&crowd, one).is_none());
        let address = |net, host| IpAddr::from([10, 0, net, host]);
        for other in 2..5 {
            while let Some(place) = Place::take(&crowd, address(0, other)) {
                places.push(place);
            }
        }
        assert_eq!(places.len(), MOST - KEPT, "four addresses have all that is not kept");
        assert!(Place::take(&crowd, address(0, 4)).is_none());
        // Others come in, a few each, and addresses of one network keep no other network out.
        let few = std::iter::from_fn(|| Place::take(&crowd, address(1, 1)));
        places.extend(few);
        assert_eq!(places.len(), MOST - KEPT + FEW);
        places.extend((0..=255).filter_map(|host| Place::take(&crowd, address(2, host))));
        assert!(places.len() < MOST - KEPT / 2);
        assert!(Place::take(&crowd, address(3, 1)).is_some() && Place::take(&crowd, address(0, 9)).is_some());
        for net in 4..=255 {
            places.extend((0..64).filter_map(|host| Place::take(&crowd, address(net, host))));
        }
        assert_eq!(places.len(), MOST);
        places.truncate(MOST_OF_ONE - 1);
        assert!(Place::take(&crowd, one).is_some());
        drop(places);
        let crowd = crowd.lock().unwrap();
        assert!(crowd.all == 0 && crowd.of.is_empty() && crowd.spare.is_unused());
    }
}
