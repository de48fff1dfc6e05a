//! Where a node listens: TCP ports and Unix sockets.

use crate::StartError;
use farmem_fabric::NodeAddr;
use farmem_fabric::nic::engine::Circumstances;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

/// A place to listen.
pub enum Listener {
    Tcp(TcpListener),
    /// Its file is removed with it.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Begins to listen.
    pub fn bind(addr: &NodeAddr) -> Result<Listener, StartError> {
        let failed = |e| StartError::Listen(addr.to_string(), e);
        Ok(match addr {
            NodeAddr::Tcp(at) => {
                let listener = TcpListener::bind(at).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Tcp(listener)
            }
            NodeAddr::Shm(path) => {
                let listener = match UnixListener::bind(path) {
                    // A node that was killed leaves its socket's file. One that lives answers.
                    Err(e) if e.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
                        std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
                    }
                    other => other,
                };
                let listener = listener.map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                Listener::Unix(listener, path.clone())
            }
        })
    }

    /// The address, with the port that the system gave.
    pub fn address(&self) -> NodeAddr {
        match self {
            Listener::Tcp(listener) => {
                NodeAddr::Tcp(listener.local_addr().map_or_else(|e| e.to_string(), |at| at.to_string()))
            }
            Listener::Unix(_, path) => NodeAddr::Shm(path.clone()),
        }
    }

    /// The path of a Unix socket.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Listener::Tcp(_) => None,
            Listener::Unix(_, path) => Some(path),
        }
    }

    /// The next connection. `path`: the Unix socket to tell to peers on this machine.
    pub fn accept(&self, path: Option<&PathBuf>) -> io::Result<(OwnedFd, Circumstances)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let own_end = stream.local_addr()?;
                // A peer that comes from the address it reached is on this machine.
                let near = own_end.ip().to_canonical() == peer.ip().to_canonical();
                let path = path.filter(|_| near).map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
                Ok((stream.into(), Circumstances { local: false, own_end: Some(own_end), path }))
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((stream.into(), Circumstances { local: true, own_end: None, path: Vec::new() }))
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, _) => listener.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}
