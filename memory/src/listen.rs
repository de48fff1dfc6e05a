//! Where a node listens: TCP ports and Unix sockets.

use crate::StartError;
use farmem_fabric::NodeAddr;
use farmem_nic::engine::Circumstances;
use farmem_nic::shares::Peer;
use farmem_sys::{shared, socket};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A place to listen.
pub enum Listener {
    Tcp(TcpListener),
    /// Its file is removed with it, if it is still the one that was made here.
    Unix(UnixListener, PathBuf, FileId),
}

/// Device and inode.
type FileId = (u64, u64);

fn file_id(path: &Path) -> io::Result<FileId> {
    std::fs::symlink_metadata(path).map(|about| (about.dev(), about.ino()))
}

/// Why a node does not take a path.
const NO_SOCKET: &str = "a file is there, and no socket: name another path, or remove it";

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

impl Listener {
    /// Begins to listen.
    pub fn bind(addr: &NodeAddr) -> Result<Listener, StartError> {
        let failed = |e| StartError::Listen(addr.to_string(), e);
        Ok(match addr {
            NodeAddr::Tcp(at) => {
                let listener = TcpListener::bind(at).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                socket::send_at_once(listener.as_raw_fd());
                // A node that is stopped accepts none, and what finds no room looks like a silent
                // network.
                socket::let_many_wait(listener.as_raw_fd());
                Listener::Tcp(listener)
            }
            NodeAddr::Shm(path) => {
                let listener = match UnixListener::bind(path) {
                    // A node that was killed leaves its socket's file; one that lives answers. A
                    // file that is no socket is not a node's, and somebody may still want it.
                    Err(e)
                        if e.kind() == io::ErrorKind::AddrInUse
                            && is_socket(path)
                            && UnixStream::connect(path).is_err() =>
                    {
                        std::fs::remove_file(path).and_then(|()| UnixListener::bind(path))
                    }
                    other => other,
                };
                let listener = listener.map_err(|e| match e.kind() {
                    io::ErrorKind::AddrInUse if !is_socket(path) => failed(io::Error::other(NO_SOCKET)),
                    _ => failed(e),
                })?;
                listener.set_nonblocking(true).map_err(failed)?;
                let own = file_id(path).map_err(failed)?;
                Listener::Unix(listener, path.clone(), own)
            }
        })
    }

    /// The address, with the port that the system gave.
    pub fn address(&self) -> NodeAddr {
        match self {
            Listener::Tcp(listener) => {
                NodeAddr::Tcp(listener.local_addr().map_or_else(|e| e.to_string(), |at| at.to_string()))
            }
            Listener::Unix(_, path, _) => NodeAddr::Shm(path.clone()),
        }
    }

    /// The path of a Unix socket.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Listener::Tcp(_) => None,
            Listener::Unix(_, path, _) => Some(path),
        }
    }

    /// The next connection. `path`: the Unix socket to tell to peers on this machine.
    pub fn accept(&self, path: Option<&PathBuf>) -> io::Result<(OwnedFd, Circumstances)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let own_end = stream.local_addr()?;
                // A peer that comes from the address it reached is on this machine, as is any over
                // loopback, whose addresses reach one another.
                let (here, there) = (own_end.ip().to_canonical(), peer.ip().to_canonical());
                let near = here == there || here.is_loopback() && there.is_loopback();
                let path = path.filter(|_| near).map_or_else(Vec::new, |path| path.as_os_str().as_bytes().to_vec());
                Ok((stream.into(), Circumstances { local: false, peer: there.into(), own_end: Some(own_end), path }))
            }
            Listener::Unix(listener, ..) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                let peer = shared::peer_of(stream.as_raw_fd()).map_or(Peer::Unknown, |about| Peer::User(about.uid));
                Ok((stream.into(), Circumstances { local: true, peer, own_end: None, path: Vec::new() }))
            }
        }
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Listener::Tcp(listener) => listener.as_raw_fd(),
            Listener::Unix(listener, ..) => listener.as_raw_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path, own) = self
            && file_id(path).is_ok_and(|there| there == *own)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}
