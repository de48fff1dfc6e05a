//! A redis server whose values one client overwrites, at random or in order: the program by which Kona is remembered.

use farmem_protocol::random::Random;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::Serialize;

use crate::apps::redis::{self, Load};
use farmem_kit::supervise::{self, Group};

/// Bytes of a value.
pub const VALUE: usize = 300;
/// What a key and its value take of redis's memory, about.
pub const EACH: usize = 400;
/// Requests under way at once.
pub const PIPELINE: usize = 32;
/// A silence as long as this is a server that hangs.
const SILENCE: Duration = Duration::from_secs(60);
const OK: &[u8] = b"+OK\r\n";

/// Which key is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Drawn.
    Random,
    /// One after the other, over and over.
    InOrder,
}

/// A server, filled, and its client.
pub struct Server {
    group: Group,
    client: UnixStream,
    keys: usize,
    order: Order,
    draw: Random,
    at: usize,
}

impl Server {
    /// Starts a server and sets so many keys. `command` takes the server's arguments: it is redis-server, or what
    /// runs it.
    ///
    /// # Errors
    /// No redis-server, one that fails.
    pub fn start(mut command: Command, dir: &Path, keys: usize, order: Order) -> anyhow::Result<Server> {
        let socket = dir.join("redis.sock");
        let load = Load::new(redis::Server::Redis, &socket, keys);
        load.clear();
        command.args(load.server_arguments(dir)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut group = Group::start(&mut command).context("redis-server is missing: run tests/peers.sh")?;
        load.connect(|| matches!(group.process().try_wait(), Ok(None)))?;
        let client = UnixStream::connect(&socket)?;
        client.set_read_timeout(Some(SILENCE))?;
        let mut server = Server { group, client, keys, order, draw: Random::new(7), at: 0 };
        let all: Vec<usize> = (0..keys).collect();
        all.chunks(PIPELINE).try_for_each(|batch| server.set(batch))?;
        Ok(server)
    }

    /// The process that was started.
    pub fn pid(&mut self) -> u32 {
        self.group.process().id()
    }

    /// Overwrites values while `more` says so, who is asked before each batch how many there were; returns how many.
    ///
    /// # Errors
    /// The server's; an interrupt.
    pub fn overwrite(&mut self, mut more: impl FnMut(u64) -> bool) -> anyhow::Result<u64> {
        let mut done = 0;
        while more(done) {
            supervise::interrupted()?;
            let batch: [usize; PIPELINE] = std::array::from_fn(|nth| match self.order {
                Order::Random => self.draw.index(self.keys),
                Order::InOrder => (self.at + nth) % self.keys,
            });
            self.at += PIPELINE;
            self.set(&batch)?;
            done += PIPELINE as u64;
        }
        Ok(done)
    }

    /// Ends it by request and waits until it, and what ran it, are gone.
    ///
    /// # Errors
    /// It failed, or does not end.
    pub fn end(mut self) -> anyhow::Result<()> {
        const WITHIN: Duration = Duration::from_secs(20);
        self.group.terminate();
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.group.process().try_wait()? {
                ensure!(status.success(), "redis-server ended with {status}");
                return Ok(());
            }
            ensure!(begun.elapsed() < WITHIN, "redis-server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sets keys to new values of the same length.
    fn set(&mut self, keys: &[usize]) -> anyhow::Result<()> {
        let mut text = Vec::with_capacity(keys.len() * (VALUE + 64));
        for key in keys {
            write!(text, "*3\r\n$3\r\nSET\r\n$12\r\nkey:{key:08}\r\n${VALUE}\r\n")?;
            let end = text.len() + VALUE;
            while text.len() < end {
                write!(text, "{:016x}", self.draw.bits())?;
            }
            text.truncate(end);
            text.extend_from_slice(b"\r\n");
        }
        self.client.write_all(&text)?;
        let mut replies = vec![0; OK.len() * keys.len()];
        self.client.read_exact(&mut replies)?;
        let well = replies.chunks(OK.len()).all(|reply| reply == OK);
        ensure!(well, "redis-server: {}", String::from_utf8_lossy(&replies));
        Ok(())
    }
}

/// A directory for a server, gone in the end.
pub struct Place(PathBuf);

impl Place {
    /// A fresh one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(name: &str) -> anyhow::Result<Place> {
        let path = std::env::temp_dir().join(format!("farmem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        Ok(Place(path))
    }

    /// Where.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
