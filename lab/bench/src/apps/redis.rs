//! A fixed load on a redis or memcached server, by one client over a Unix socket.
//!
//! Fill, then rounds of reads with some writes among them; keys are drawn with a
//! skew (half of all accesses go to a sixteenth of the keys, which lie scattered).
//! Every reply is compared with what the server must hold, byte for byte, and in
//! the end every key is read back.

use farmem_protocol::random::Random;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use farmem_kit::supervise;

/// Requests under way at once.
const PIPELINE: usize = 50;
/// A silence as long as this is a server that hangs; a slow one is given up by its run's own limit.
const SILENCE: Duration = Duration::from_secs(60);
/// A reply may begin with this much of an error.
const COMPLAINT: usize = 120;

/// What listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// redis-server.
    Redis,
    /// memcached.
    Memcached,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Redis => "redis-server",
            Server::Memcached => "memcached",
        }
    }
}

/// What the client does.
#[derive(Clone, Debug)]
pub struct Load {
    server: Server,
    socket: PathBuf,
    keys: usize,
}

impl Load {
    /// So many keys, thrice as many requests for them.
    pub fn new(server: Server, socket: &Path, keys: usize) -> Load {
        Load { server, socket: socket.to_owned(), keys }
    }

    /// The server's arguments: it listens for this client only and writes nothing to disk.
    pub fn server_arguments(&self, dir: &Path) -> Vec<OsString> {
        let socket = self.socket.clone().into();
        let words: &[&str] = match self.server {
            Server::Redis => &["--port", "0", "--save", "", "--appendonly", "no", "--dir"],
            // All of it fits, and nothing is left out for its age.
            Server::Memcached => &["-m", "2048", "-t", "2", "-u", "root", "-s"],
        };
        let mut arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        match self.server {
            Server::Redis => arguments.extend([dir.into(), "--unixsocket".into(), socket]),
            Server::Memcached => arguments.push(socket),
        }
        arguments
    }

    /// Forgets the server before.
    pub fn clear(&self) {
        let _ = std::fs::remove_file(&self.socket);
    }

    /// Waits until the server serves; `alive` says whether it still may.
    ///
    /// # Errors
    /// It ended, or is silent.
    pub fn connect(&self, mut alive: impl FnMut() -> bool) -> anyhow::Result<Client> {
        let until = Instant::now() + SILENCE;
        loop {
            supervise::interrupted()?;
            if let Ok(stream) = UnixStream::connect(&self.socket) {
                // Short, so that the client sees an interrupt or its limit soon: see `Client::patiently`.
                stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                let reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
                return Ok(Client { server: self.server, stream, reader, until });
            }
            ensure!(alive(), "{} ended before it served", self.server.name());
            ensure!(Instant::now() < until, "{} does not listen", self.server.name());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The whole load. What the server said in the end, or `None` when `until` came first.
    ///
    /// # Errors
    /// A reply that is not what the server must hold; a server that went.
    pub fn run(&self, client: &mut Client, until: Instant) -> anyhow::Result<Option<String>> {
        client.until = until;
        match self.requests(client) {
            Err(error) if error.is::<TooLate>() => Ok(None),
            done => done.map(Some),
        }
    }

    fn requests(&self, client: &mut Client) -> anyhow::Result<String> {
        // By key, how often it was written: its value follows from that.
        let mut written = vec![0u32; self.keys];
        let all: Vec<Request> = (0..self.keys).map(|key| Request { key, write: true }).collect();
        client.pipelined(&all, &mut written)?;
        let mut draw = Random::new(11);
        let drawn: Vec<Request> = (0..self.keys * 3)
            .map(|_| {
                let rank = draw.index(1 << 20) as f64 / f64::from(1 << 20);
                // The fourth power: rank r is drawn with density ~ r^(-3/4).
                let rank = (rank.powi(4) * self.keys as f64) as usize;
                let key = rank.wrapping_mul(0x9E37_79B1) % self.keys;
                Request { key, write: draw.index(10) == 0 }
            })
            .collect();
        client.pipelined(&drawn, &mut written)?;
        let all: Vec<Request> = (0..self.keys).map(|key| Request { key, write: false }).collect();
        client.pipelined(&all, &mut written)?;
        let keys = match self.server {
            Server::Redis => client.call("DBSIZE")?,
            Server::Memcached => self.keys.to_string(),
        };
        Ok(format!("{} requests answered, {keys} keys\n", 5 * self.keys))
    }
}

#[derive(Clone, Copy)]
struct Request {
    key: usize,
    write: bool,
}

/// 96 to 800 bytes: half of it text that compresses, half of it none.
fn value(key: usize, times: u32, into: &mut String) {
    let mut draw = Random::new((key as u64) << 32 | u64::from(times));
    for part in 0..2 + draw.index(14) {
        let (one, other) = (draw.bits(), draw.bits());
        let _ = write!(into, "{one:016x}{:08x} field-{part}: of customer ", other as u32);
    }
}

/// The run's limit has passed.
#[derive(Debug, thiserror::Error)]
#[error("too late")]
struct TooLate;

/// A client of either, pipelined.
pub struct Client {
    server: Server,
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    until: Instant,
}

impl Client {
    fn call(&mut self, command: &str) -> anyhow::Result<String> {
        write!(self.stream, "{command}\r\n")?;
        let mut reply = Vec::new();
        self.reply(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    fn pipelined(&mut self, requests: &[Request], written: &mut [u32]) -> anyhow::Result<()> {
        let (mut text, mut expected, mut reply) = (String::new(), String::new(), Vec::new());
        for batch in requests.chunks(PIPELINE) {
            self.in_time()?;
            text.clear();
            // Replies must be judged by what was written before, within the batch too: keep the counts of it.
            let mut counts = Vec::with_capacity(batch.len());
            for &Request { key, write } in batch {
                if write {
                    written[key] += 1;
                    let at = text.len();
                    value(key, written[key], &mut text);
                    let length = text.len() - at;
                    let name = name(key);
                    let head = match self.server {
                        Server::Redis => format!("*3\r\n$3\r\nSET\r\n${}\r\n{name}\r\n${length}\r\n", name.len()),
                        Server::Memcached => format!("set {name} 0 0 {length}\r\n"),
                    };
                    text.insert_str(at, &head);
                    text.push_str("\r\n");
                } else {
                    let get = if self.server == Server::Redis { "GET" } else { "get" };
                    let _ = write!(text, "{get} {}\r\n", name(key));
                }
                counts.push(written[key]);
            }
            self.stream.write_all(text.as_bytes()).with_context(|| format!("sending to {}", self.server.name()))?;
            for (&Request { key, write }, times) in batch.iter().zip(counts) {
                reply.clear();
                self.reply(&mut reply)?;
                expected.clear();
                if write {
                    expected.push_str(if self.server == Server::Redis { "OK" } else { "STORED" });
                } else {
                    value(key, times, &mut expected);
                }
                ensure!(
                    reply == expected.as_bytes(),
                    "the output differs from the native one: {} {} was answered with {:?}",
                    if write { "SET" } else { "GET" },
                    name(key),
                    String::from_utf8_lossy(&reply[..reply.len().min(COMPLAINT)])
                );
            }
        }
        Ok(())
    }

    fn reply(&mut self, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut head = Vec::new();
        self.patiently(|reader| reader.read_until(b'\n', &mut head))?;
        let head = head.trim_ascii_end();
        if let Some(length) = head.strip_prefix(b"VALUE ").and_then(|rest| rest.rsplit(|&byte| byte == b' ').next()) {
            self.body(std::str::from_utf8(length)?.parse()?, into)?;
            return self.patiently(|reader| reader.read_until(b'\n', &mut Vec::new())).map(drop);
        }
        match head.split_first() {
            None => bail!("{} closed the connection", self.server.name()),
            Some((b'-', error)) => bail!("{} said {}", self.server.name(), String::from_utf8_lossy(error)),
            Some((b'$', b"-1")) => into.extend(b"(nil)"),
            Some((b'$', length)) => self.body(std::str::from_utf8(length)?.parse()?, into)?,
            Some((b'+', rest)) if self.server == Server::Redis => into.extend(rest),
            Some((b':', rest)) if self.server == Server::Redis => into.extend(rest),
            Some(_) => into.extend(head),
        }
        Ok(())
    }

    /// Reads so many bytes and the end of their line.
    fn body(&mut self, length: usize, into: &mut Vec<u8>) -> anyhow::Result<()> {
        let (mut body, mut at) = (vec![0; length + 2], 0);
        while at < body.len() {
            let read = self.patiently(|reader| reader.read(&mut body[at..]))?;
            ensure!(read > 0, "{} closed the connection", self.server.name());
            at += read;
        }
        into.extend(&body[..length]);
        Ok(())
    }

    fn in_time(&self) -> anyhow::Result<()> {
        supervise::interrupted()?;
        if Instant::now() > self.until { Err(TooLate.into()) } else { Ok(()) }
    }

    /// Reads again while nothing has come, until the limit. Of a `read_until`, what came stays in its buffer.
    fn patiently<T>(
        &mut self,
        mut read: impl FnMut(&mut BufReader<UnixStream>) -> std::io::Result<T>,
    ) -> anyhow::Result<T> {
        loop {
            match read(&mut self.reader) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => self.in_time()?,
                done => return done.with_context(|| format!("reading from {}", self.server.name())),
            }
        }
    }
}

fn name(key: usize) -> String {
    format!("key:{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_follow_from_key_and_count() {
        let of = |key, times| {
            let mut text = String::new();
            value(key, times, &mut text);
            text
        };
        assert_eq!(of(3, 1), of(3, 1));
        assert_ne!(of(3, 1), of(3, 2));
        assert_ne!(of(3, 1), of(4, 1));
        assert!((0..1000).all(|key| (80..900).contains(&of(key, 1).len())));
    }
}
