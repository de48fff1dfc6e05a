//! Socket addresses as the kernel has them.

use super::Peer;
use crate::raw::{Errno, checked};
use std::mem::{offset_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

/// A socket address as the kernel has it.
pub(super) struct Address {
    pub bytes: libc::sockaddr_storage,
    pub len: u32,
}

impl Address {
    pub fn at(&mut self) -> *mut libc::sockaddr_storage {
        &mut self.bytes
    }

    pub fn family(&self) -> i32 {
        self.bytes.ss_family as i32
    }

    pub fn of(peer: Peer<'_>) -> Result<Address, Errno> {
        // SAFETY: zero is valid for a sockaddr_storage, which is large and aligned enough for each
        // kind written to it below.
        let mut address = Address { bytes: unsafe { zeroed() }, len: 0 };
        let at = address.at();
        match peer {
            Peer::Tcp(SocketAddr::V4(v4)) => {
                // SAFETY: see above.
                let to = unsafe { &mut *at.cast::<libc::sockaddr_in>() };
                to.sin_family = libc::AF_INET as u16;
                to.sin_port = v4.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                address.len = size_of::<libc::sockaddr_in>() as u32;
            }
            Peer::Tcp(SocketAddr::V6(v6)) => {
                // SAFETY: see above.
                let to = unsafe { &mut *at.cast::<libc::sockaddr_in6>() };
                to.sin6_family = libc::AF_INET6 as u16;
                to.sin6_port = v6.port().to_be();
                to.sin6_scope_id = v6.scope_id();
                to.sin6_addr.s6_addr = v6.ip().octets();
                address.len = size_of::<libc::sockaddr_in6>() as u32;
            }
            Peer::Unix(path) => {
                // SAFETY: see above.
                let to = unsafe { &mut *at.cast::<libc::sockaddr_un>() };
                let path = path.as_os_str().as_bytes();
                if path.len() >= to.sun_path.len() {
                    return Err(Errno(libc::ENAMETOOLONG));
                }
                to.sun_family = libc::AF_UNIX as u16;
                for (to, &from) in to.sun_path.iter_mut().zip(path) {
                    *to = from as libc::c_char;
                }
                address.len = (offset_of!(libc::sockaddr_un, sun_path) + path.len() + 1) as u32;
            }
        }
        Ok(address)
    }

    pub fn told_by(call: i64, fd: i32) -> Option<SocketAddr> {
        // SAFETY: zero is valid for a sockaddr_storage.
        let mut address = Address { bytes: unsafe { zeroed() }, len: size_of::<libc::sockaddr_storage>() as u32 };
        let (at, len) = (address.at() as usize, &mut address.len as *mut u32 as usize);
        // SAFETY: the kernel writes at most `len` bytes, which are live.
        unsafe { checked(call, [fd as usize, at, len, 0, 0, 0]) }.ok()?;
        match address.family() {
            libc::AF_INET => {
                // SAFETY: the kernel says that it is one.
                let v4 = unsafe { &*address.at().cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the kernel says that it is one.
                let v6 = unsafe { &*address.at().cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v6.sin6_port)))
            }
            _ => None,
        }
    }
}
