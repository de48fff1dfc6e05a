//! Counters over HTTP, as Prometheus reads them: `GET /metrics`.
//!
//! A thread of its own answers from a text that the event loop writes once a second, so a slow
//! asker delays no client. Askers are served one after the other, each within [`PATIENCE`].

use super::open::Failed;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one asker may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a request.
const REQUEST: usize = 4096;

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
    let bound = listener.local_addr().map_err(refused)?;
    let answers = move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => answer(stream, &shown),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(answers).map_err(refused)?;
    Ok(bound)
}

fn answer(mut stream: TcpStream, shown: &Shown) {
    let until = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    while head.len() < REQUEST && !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_read_timeout(Some(left)).is_err() {
            return;
        }
        let mut bytes = [0; 512];
        match stream.read(&mut bytes) {
            Ok(n) if n > 0 => head.extend_from_slice(&bytes[..n]),
            _ => return,
        }
    }
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
    if stream.set_write_timeout(Some(PATIENCE)).is_ok() {
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }
}
