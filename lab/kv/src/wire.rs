//! How requests reach a system: redis's protocol, memcached's, or the library within this process.
//!
//! All take requests in batches of a pipeline's depth. Values hold their key's number, so that a
//! wrong one is noticed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use crate::mix::Ask;
use anyhow::{Context, Result, bail, ensure};
use farmem_kv::{Act, Op, Outcome, Store};
use farmem_protocol::random::{self, Random};
use serde::{Deserialize, Serialize};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The name of a key.
pub fn name(key: u64) -> String {
    format!("user{key:012}")
}

/// Bytes in no order, of which values have parts: more than half of the largest value.
const RANDOM: usize = 1 << 20;

/// A key's value: its number, then filling. Half of it is random, so that memory that is compressed
/// holds about twice as much.
pub fn value(key: u64, bytes: usize) -> Vec<u8> {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let mut value = vec![b'x'; bytes];
    let half = bytes / 2;
    let random = BYTES.get_or_init(|| {
        let mut random = Random::new(1);
        (0..RANDOM / 8).flat_map(|_| random.bits().to_le_bytes()).collect()
    });
    let from = (random::hash(key) % (RANDOM - half) as u64) as usize;
    value[..half].copy_from_slice(&random[from..from + half]);
    let number = format!("{key:012}");
    let stamped = number.len().min(bytes);
    value[..stamped].copy_from_slice(&number.as_bytes()[..stamped]);
    value
}

/// Whether this is what was written to a key.
fn check(key: u64, bytes: usize, found: Option<&[u8]>) -> Result<()> {
    let found = found.with_context(|| format!("{} is not there", name(key)))?;
    let number = format!("{key:012}");
    let right = found.len() == bytes && found.starts_with(&number.as_bytes()[..number.len().min(bytes)]);
    ensure!(right, "{} has another value than was written: {} bytes", name(key), found.len());
    Ok(())
}

/// A way to a system.
pub trait Wire {
    /// Sends requests, without waiting for answers.
    ///
    /// # Errors
    /// The system is gone.
    fn send(&mut self, asks: &[Ask], bytes: usize) -> Result<()>;

    /// Waits for the answers of what was sent, and checks them.
    ///
    /// # Errors
    /// The system is gone, or an answer is wrong.
    fn receive(&mut self, asks: &[Ask], bytes: usize) -> Result<()>;

    /// Does what is due while nothing is asked.
    ///
    /// # Errors
    /// The system is gone.
    fn tend(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Which protocol a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// Redis's.
    Resp,
    /// Memcached's, as text.
    Memcached,
}

/// A connection to a server.
pub struct Socket {
    stream: TcpStream,
    protocol: Protocol,
    out: Vec<u8>,
    read: Vec<u8>,
    at: usize,
}

impl Socket {
    /// Connects.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn connect(protocol: Protocol, port: u16) -> Result<Socket> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Socket { stream, protocol, out: Vec::new(), read: Vec::new(), at: 0 })
    }

    fn fill(&mut self) -> Result<()> {
        self.read.drain(..self.at);
        self.at = 0;
        let before = self.read.len();
        self.read.resize(before + (64 << 10), 0);
        let got = self.stream.read(&mut self.read[before..]).context("no answer")?;
        self.read.truncate(before + got);
        ensure!(got > 0, "the server closed the connection");
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.read[self.at..].iter().position(|&byte| byte == b'\n') {
                let line = String::from_utf8_lossy(&self.read[self.at..self.at + end]).trim_end().to_owned();
                self.at += end + 1;
                return Ok(line);
            }
            self.fill()?;
        }
    }

    /// The next bytes, with the line's end behind them.
    fn bytes(&mut self, count: usize) -> Result<&[u8]> {
        while self.read.len() - self.at < count + 2 {
            self.fill()?;
        }
        let from = self.at;
        self.at += count + 2;
        Ok(&self.read[from..from + count])
    }

    /// Fetches values of a redis server's: the bytes of each that is there.
    ///
    /// # Errors
    /// The server is gone, or answers something else.
    pub fn get_any(&mut self, keys: &[String]) -> Result<Vec<Option<usize>>> {
        self.out.clear();
        keys.iter().try_for_each(|key| write!(self.out, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len()))?;
        self.stream.write_all(&self.out)?;
        let mut found = Vec::new();
        for _ in keys {
            let line = self.line()?;
            let count = line.strip_prefix('$').with_context(|| format!("the server answered {line:?}"))?;
            found.push(match count.parse::<usize>() {
                Ok(count) => Some(self.bytes(count)?.len()),
                Err(_) => None,
            });
        }
        Ok(found)
    }

    /// Stores one value under several keys of a redis server's, if it has room.
    ///
    /// # Errors
    /// The server is gone, or refuses.
    pub fn set_any(&mut self, keys: &[String], value: &[u8]) -> Result<()> {
        for key in keys {
            let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
            self.stream.write_all(&[head.as_bytes(), value, b"\r\n"].concat())?;
        }
        for _ in keys {
            let line = self.line()?;
            ensure!(line == "+OK", "the server answered {line:?}");
        }
        Ok(())
    }

    fn resp(&mut self, ask: Ask, bytes: usize) -> Result<()> {
        let line = self.line()?;
        match (ask, line.split_at_checked(1)) {
            (Ask::Write(_), Some(("+", _))) => Ok(()),
            (Ask::Read(key), Some(("$", "-1"))) => check(key, bytes, None),
            (Ask::Read(key), Some(("$", count))) => check(key, bytes, Some(self.bytes(count.parse()?)?)),
            _ => bail!("the server answered {line:?}"),
        }
    }

    fn memcached(&mut self, ask: Ask, bytes: usize) -> Result<()> {
        let line = self.line()?;
        match ask {
            Ask::Write(_) if line == "STORED" => Ok(()),
            Ask::Read(key) if line == "END" => check(key, bytes, None),
            Ask::Read(key) if line.starts_with("VALUE ") => {
                let count = line.rsplit(' ').next().unwrap_or_default().parse()?;
                check(key, bytes, Some(self.bytes(count)?))?;
                let end = self.line()?;
                ensure!(end == "END", "the server answered {end:?}");
                Ok(())
            }
            _ => bail!("the server answered {line:?}"),
        }
    }
}

impl Wire for Socket {
    fn send(&mut self, asks: &[Ask], bytes: usize) -> Result<()> {
        self.out.clear();
        for &ask in asks {
            let (key, out) = (name(ask.key()), &mut self.out);
            match (self.protocol, ask) {
                (Protocol::Resp, Ask::Read(_)) => write!(out, "*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len())?,
                (Protocol::Resp, Ask::Write(_)) => {
                    write!(out, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len())?;
                }
                (Protocol::Memcached, Ask::Read(_)) => write!(out, "get {key}\r\n")?,
                (Protocol::Memcached, Ask::Write(_)) => write!(out, "set {key} 0 0 {bytes}\r\n")?,
            }
            if let Ask::Write(key) = ask {
                out.extend_from_slice(&value(key, bytes));
                out.extend_from_slice(b"\r\n");
            }
        }
        self.stream.write_all(&self.out).context("the server takes no requests")
    }

    fn receive(&mut self, asks: &[Ask], bytes: usize) -> Result<()> {
        asks.iter().try_for_each(|&ask| match self.protocol {
            Protocol::Resp => self.resp(ask, bytes),
            Protocol::Memcached => self.memcached(ask, bytes),
        })
    }
}

impl Wire for Store {
    fn tend(&mut self) -> Result<()> {
        Ok(Store::tend(self)?)
    }

    fn send(&mut self, _: &[Ask], _: usize) -> Result<()> {
        Ok(())
    }

    fn receive(&mut self, asks: &[Ask], bytes: usize) -> Result<()> {
        let mut left = Vec::new();
        for &ask in asks {
            let key = name(ask.key());
            let done = match ask {
                Ask::Read(number) => match self.get_at_once(key.as_bytes())? {
                    Some(found) => check(number, bytes, Some(&found)).map(|()| true)?,
                    None => false,
                },
                Ask::Write(number) => self.put_at_once(key.as_bytes(), &value(number, bytes))?,
            };
            if !done {
                left.push((ask, key.into_bytes()));
            }
        }
        let op = |(ask, key): &(Ask, Vec<u8>)| {
            let act = match *ask {
                Ask::Read(_) => Act::Get,
                Ask::Write(number) => Act::Put { value: value(number, bytes), expiry: None },
            };
            Op { key: key.clone(), act }
        };
        let outcomes = self.batch(left.iter().map(op))?;
        for (&(ask, _), outcome) in left.iter().zip(outcomes) {
            match (ask, outcome?) {
                (Ask::Read(key), Outcome::Found(found)) => check(key, bytes, Some(&found))?,
                (Ask::Read(key), _) => check(key, bytes, None)?,
                (Ask::Write(_), Outcome::Done) => {}
                (Ask::Write(_), other) => bail!("a write ended as {other:?}"),
            }
        }
        Ok(())
    }
}
