//! Something on the way between host and node that can be cut, or made slow.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::Result;

pub struct Proxy {
    pub at: SocketAddr,
    open: Arc<AtomicBool>,
    late_ms: Arc<AtomicU64>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn before(node: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let open = Arc::new(AtomicBool::new(true));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let late_ms = Arc::new(AtomicU64::new(0));
        let (is_open, late, all) = (Arc::clone(&open), Arc::clone(&late_ms), Arc::clone(&streams));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                // Under the lock, so that a cut misses none.
                let mut all = all.lock().expect("not poisoned");
                if is_open.load(Ordering::SeqCst)
                    && let Ok(pair) = join(host, node, &late)
                {
                    all.extend(pair);
                }
            }
        });
        Ok(Proxy { at, open, late_ms, streams })
    }

    /// Ends every connection, and takes no new ones until [`Proxy::restore`].
    pub fn cut(&self) {
        let mut all = self.streams.lock().expect("not poisoned");
        self.open.store(false, Ordering::SeqCst);
        for stream in all.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// From now on whatever the node says comes so much later.
    pub fn delay(&self, late: Duration) {
        self.late_ms.store(late.as_millis() as u64, Ordering::SeqCst);
    }

    pub fn restore(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// Two threads that carry bytes to and fro. Returns both streams.
fn join(host: TcpStream, node: SocketAddr, late_ms: &Arc<AtomicU64>) -> io::Result<[TcpStream; 2]> {
    let node = TcpStream::connect(node)?;
    for stream in [&host, &node] {
        stream.set_nodelay(true)?;
    }
    let carry = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    };
    carry(host.try_clone()?, node.try_clone()?);
    carry_late(node.try_clone()?, host.try_clone()?, Arc::clone(late_ms));
    Ok([host, node])
}

/// Carries bytes, each as late as is said when it comes, in their order.
fn carry_late(mut from: TcpStream, mut to: TcpStream, late_ms: Arc<AtomicU64>) {
    let (sends, arrives) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            let due = Instant::now() + Duration::from_millis(late_ms.load(Ordering::SeqCst));
            if sends.send((due, bytes[..n].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in arrives {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
