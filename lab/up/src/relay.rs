//! Delays what a machine of the rack says: its connections lead through here. The system's own way
//! (`netem`) is not in every kernel.
//!
//! ```text
//!  peer ──► relay ──────────────► the machine's own port
//!       ◄── late by so much ◄──
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Pieces of bytes under way in one connection, at most: beyond, the sender waits.
const UNDER_WAY: usize = 1024;

/// Carry connections on, and delay what comes back
#[derive(clap::Args, Debug)]
pub struct Relay {
    /// Where to listen
    #[arg(long)]
    pub listen: String,
    /// Where connections lead to
    #[arg(long)]
    pub to: String,
    /// By how many milliseconds answers come later
    #[arg(long)]
    pub late_ms: u64,
}

impl Relay {
    /// Carries on until it is killed.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn run(&self) -> Result<()> {
        let listener = TcpListener::bind(&self.listen).with_context(|| format!("cannot listen at {}", self.listen))?;
        let late = Duration::from_millis(self.late_ms);
        for peer in listener.incoming().flatten() {
            // Where nobody listens the connection ends, as it would without a relay.
            if let Ok(own) = TcpStream::connect(&self.to) {
                let _ = join(peer, own, late);
            }
        }
        Ok(())
    }
}

/// Carries the bytes of two connections to each other, in threads that end with them.
fn join(peer: TcpStream, own: TcpStream, late: Duration) -> io::Result<()> {
    peer.set_nodelay(true)?;
    own.set_nodelay(true)?;
    let (mut asks, mut hears) = (peer.try_clone()?, own.try_clone()?);
    std::thread::spawn(move || {
        let _ = io::copy(&mut asks, &mut hears);
        let _ = hears.shutdown(Shutdown::Both);
    });
    carry_late(own, peer, late);
    Ok(())
}

/// Carries bytes in their order, each later by so much than it came.
fn carry_late(mut from: TcpStream, mut to: TcpStream, late: Duration) {
    let (sends, arrives) = mpsc::sync_channel::<(Instant, Vec<u8>)>(UNDER_WAY);
    std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(n @ 1..) = from.read(&mut bytes) {
            if sends.send((Instant::now() + late, bytes[..n].to_vec())).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_late_and_whole() {
        let own = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = own.local_addr().expect("an address");
        std::thread::spawn(move || {
            let (mut stream, _) = own.accept().expect("a connection");
            let mut heard = [0; 5];
            stream.read_exact(&mut heard).expect("five bytes");
            stream.write_all(&heard).expect("it listens");
        });
        let late = Duration::from_millis(50);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (relayed, _) = listener.accept().expect("a connection");
        join(relayed, TcpStream::connect(at).expect("it listens"), late).expect("threads");
        let begun = Instant::now();
        peer.write_all(b"hello").expect("it listens");
        let mut heard = Vec::new();
        peer.read_to_end(&mut heard).expect("an answer, and the end");
        assert_eq!(heard, b"hello");
        assert!(begun.elapsed() >= late);
    }
}
