//! The kernel's NBD client, by generic netlink.

use crate::Error;
use crate::genl::{self, Attributes, Message, Said, messages};
use farmem_protocol::nbd::{DEVICE_FLAGS, PAGE};
use farmem_sys::{socket, swap};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const LINK_DEAD: u8 = 4;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONN_TIMEOUT: u16 = 8;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// How long the kernel may take to answer.
const ANSWER_NS: u64 = 10_000_000_000;

/// A way to the client.
#[derive(Debug)]
pub struct Client {
    file: File,
    family: u16,
    group: Option<u32>,
}

/// The kernel's settings of a device.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Which: `/dev/nbdN`.
    pub index: u32,
    /// Bytes.
    pub size: u64,
    /// How long a request may be without an answer before its stream is given up.
    pub timeout: Duration,
    /// How long requests wait for another stream before they fail.
    pub grace: Duration,
}

impl Client {
    /// Finds the client; loads its module.
    pub fn open() -> Result<Client, Error> {
        let load = Command::new("modprobe").args(["nbd", "nbds_max=0"]).output();
        let file = File::from(swap::netlink().map_err(|e| Error::Kernel("netlink", e))?);
        let mut client = Client { file, family: genl::CONTROLLER, group: None };
        let ask = Message::new(genl::CONTROLLER, genl::GET_FAMILY).with(genl::FAMILY_NAME, b"nbd\0");
        let mut found = None;
        let asked = client.ask(ask, |_, all| {
            let groups = all.get(genl::FAMILY_GROUPS).into_iter().flat_map(Attributes::of);
            let group = groups.filter_map(|(_, group)| Attributes::of(group).number(genl::GROUP_ID)).next();
            found = all.number(genl::FAMILY_ID).map(|id| (id as u16, group));
        });
        match (asked, found) {
            (Ok(()), Some((family, group))) => {
                (client.family, client.group) = (family, group);
                Ok(client)
            }
            (asked, _) => Err(Error::NoClient(match (load, asked) {
                (Ok(said), _) if !said.status.success() => {
                    String::from_utf8_lossy(&said.stderr).lines().next().unwrap_or("failed").to_owned()
                }
                (Err(e), _) => e.to_string(),
                (_, Err(e)) => e.to_string(),
                _ => "loaded, and not there".into(),
            })),
        }
    }

    /// Gives a device its stream, and makes it one.
    ///
    /// # Errors
    /// EBUSY when the device is somebody's.
    pub fn connect(&mut self, settings: &Settings, stream: i32) -> io::Result<()> {
        let seconds = |time: Duration| time.as_secs().max(1);
        let ask = Message::new(self.family, CONNECT)
            .with_u32(INDEX, settings.index)
            .with_u64(SIZE_BYTES, settings.size)
            .with_u64(BLOCK_SIZE_BYTES, PAGE)
            .with_u64(TIMEOUT, seconds(settings.timeout))
            .with_u64(DEAD_CONN_TIMEOUT, seconds(settings.grace))
            .with_u64(SERVER_FLAGS, DEVICE_FLAGS)
            .with_nested(SOCKETS, SOCKET_ITEM, SOCKET_FD, &stream.to_ne_bytes());
        self.ask(ask, |_, _| ())
    }

    /// Gives a device another stream in the place of one that is dead, and this timeout and grace, in
    /// seconds.
    ///
    /// When none is dead, as far as the kernel knows, it takes no stream and says so by nothing. It
    /// tells when that one dies.
    pub fn reconfigure(&mut self, index: u32, (timeout_s, grace_s): (u64, u64), stream: i32) -> io::Result<()> {
        let ask = Message::new(self.family, RECONFIGURE)
            .with_u32(INDEX, index)
            .with_u64(TIMEOUT, timeout_s)
            .with_u64(DEAD_CONN_TIMEOUT, grace_s)
            .with_nested(SOCKETS, SOCKET_ITEM, SOCKET_FD, &stream.to_ne_bytes());
        self.ask(ask, |_, _| ())
    }

    /// Sets the timeout of a device's new requests, in seconds. 0: the kernel gives up no stream,
    /// not for older requests either.
    pub fn set_timeout(&mut self, index: u32, timeout_s: u64) -> io::Result<()> {
        self.ask(Message::new(self.family, RECONFIGURE).with_u32(INDEX, index).with_u64(TIMEOUT, timeout_s), |_, _| ())
    }

    /// Ends a device. Requests under way fail.
    pub fn disconnect(&mut self, index: u32) -> io::Result<()> {
        self.ask(Message::new(self.family, DISCONNECT).with_u32(INDEX, index), |_, _| ())
    }

    /// A socket on which the kernel tells of streams that have died.
    pub fn deaths(&self) -> io::Result<Deaths> {
        let mut file = File::from(swap::netlink()?);
        let group = self.group.ok_or(io::ErrorKind::Unsupported)?;
        // A write binds the socket. The answer is read with the rest, and means nothing.
        file.write_all(&Message::new(genl::CONTROLLER, genl::GET_FAMILY).with(genl::FAMILY_NAME, b"nbd\0").finish())?;
        swap::listen_to(file.as_raw_fd(), group);
        Ok(Deaths { file, family: self.family })
    }

    fn ask(&mut self, message: Message, mut told: impl FnMut(u8, Attributes<'_>)) -> io::Result<()> {
        self.file.write_all(&message.finish())?;
        let mut bytes = [0; 16384];
        loop {
            if socket::wait(self.file.as_raw_fd(), true, false, ANSWER_NS) == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let n = self.file.read(&mut bytes)?;
            for said in messages(&bytes[..n]) {
                match said {
                    Said::Ended(0) => return Ok(()),
                    Said::Ended(e) => return Err(io::Error::from_raw_os_error(e)),
                    Said::Told(_, command, all) => told(command, all),
                }
            }
        }
    }
}

/// Streams that the kernel has given up.
#[derive(Debug)]
pub struct Deaths {
    file: File,
    family: u16,
}

impl Deaths {
    /// Waits for the next: the index of its device.
    pub fn wait(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4096];
        loop {
            let n = match self.file.read(&mut bytes) {
                Ok(n) => n,
                // Told too much at once: something has died.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => return Ok(u32::MAX),
                Err(e) => return Err(e),
            };
            for said in messages(&bytes[..n]) {
                if let Said::Told(family, LINK_DEAD, all) = said
                    && family == self.family
                    && let Some(index) = all.number(INDEX)
                {
                    return Ok(index);
                }
            }
        }
    }
}
