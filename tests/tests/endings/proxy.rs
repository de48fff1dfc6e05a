//! Something on the way between host and node that can be cut.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::Result;

pub struct Proxy {
    pub at: SocketAddr,
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn before(node: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let open = Arc::new(AtomicBool::new(true));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (is_open, all) = (Arc::clone(&open), Arc::clone(&streams));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                // Under the lock, so that a cut misses none.
                let mut all = all.lock().expect("not poisoned");
                if is_open.load(Ordering::SeqCst)
                    && let Ok(pair) = join(host, node)
                {
                    all.extend(pair);
                }
            }
        });
        Ok(Proxy { at, open, streams })
    }

    /// Ends every connection, and takes no new ones until [`Proxy::restore`].
    pub fn cut(&self) {
        let mut all = self.streams.lock().expect("not poisoned");
        self.open.store(false, Ordering::SeqCst);
        for stream in all.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn restore(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

/// Two threads that carry bytes to and fro. Returns both streams.
fn join(host: TcpStream, node: SocketAddr) -> io::Result<[TcpStream; 2]> {
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
    carry(node.try_clone()?, host.try_clone()?);
    Ok([host, node])
}
