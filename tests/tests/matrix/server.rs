//! Servers of the matrix: started, filled, read back, saved, stopped.
//!
//! A server's "output" is the transcript of what its clients were told.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::farmem::{Far, compare, copy, counter, free_port, split_stats};
use farmem_tests::process::{self, Outcome, TempDir, eventually};

use crate::run::{far, limit, scale};
use crate::table::Row;

/// A server that says nothing for so long hangs; a slow machine takes a minute for what takes a second.
const SILENT: Duration = Duration::from_secs(240);

/// Starts a server, natively or far, lets clients at it, stops it with SIGTERM, and returns how it
/// ended with the clients' transcript as its output.
fn serve(
    command: &Command,
    at: SocketAddr,
    how: Option<&Far>,
    clients: impl FnOnce() -> Result<String>,
) -> Result<(Outcome, Option<serde_json::Value>)> {
    let running = process::spawn(how.map_or_else(|| copy(command), |far| far.command(command)))?;
    let up = eventually(SILENT, || TcpStream::connect(at).is_ok() || !running.alive());
    ensure!(up && running.alive(), "the server did not come up: {}", running.stderr());
    let started = Instant::now();
    let transcript = clients().with_context(|| format!("server's log:\n{}", tail(&running.stdout())))?;
    let wall = started.elapsed();
    running.signal(libc::SIGTERM);
    let mut outcome = running.wait(SILENT)?;
    let (stats, rest) = split_stats(&outcome.stderr);
    outcome.stderr = rest;
    outcome.stdout = transcript.into_bytes();
    outcome.wall = wall;
    Ok((outcome, stats))
}

fn tail(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(3000)..]).into_owned()
}

/// A server natively, then at each share over each transport.
fn run(
    row: &mut Row,
    start: impl Fn() -> Result<(Command, SocketAddr, TempDir)>,
    clients: impl Fn(SocketAddr) -> Result<String>,
) -> Result<()> {
    let run = |how: Option<&Far>| {
        let (command, at, _dir) = start()?;
        serve(&command, at, how, || clients(at))
    };
    let (native, _) = run(None)?;
    row.native(native.peak_rss, native.wall);
    for cell in row.cells() {
        let (outcome, stats) = run(Some(&far(native.peak_rss, cell)?)).context(cell)?;
        compare(&native, &outcome).context(cell)?;
        let stats = stats.context("the run printed no statistics")?;
        ensure!(counter(&stats, "faults") > 0, "{cell}: it did not run on far memory: {stats}");
        row.far(cell, outcome.wall, &stats);
    }
    Ok(())
}

fn value(key: usize) -> String {
    let word = (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{word:016x}").repeat(4 + key % 9)
}

/// 100 000 keys set and read back, a snapshot taken while writes go on, loaded again, and
/// redis-benchmark.
pub fn redis(row: &mut Row) -> Result<()> {
    run(
        row,
        || {
            let (at, dir) = (free_port()?, TempDir::new("redis")?);
            let mut redis = Command::new("redis-server");
            redis.args(["--bind", &at.ip().to_string(), "--port", &at.port().to_string(), "--save", ""]);
            redis.args(["--appendonly", "no", "--enable-debug-command", "yes", "--dir"]).arg(dir.path());
            // Addresses seed nothing, but the hash function's seed changes order: nothing below depends on it.
            Ok((redis, at, dir))
        },
        |at| {
            let keys = 100_000 * scale();
            let mut client = Resp::connect(at)?;
            let mut said = String::new();
            client.many(
                keys,
                |k| format!("SET key:{k} {}", value(k)),
                |_, reply| {
                    ensure!(reply == "+OK", "SET said {reply}");
                    Ok(())
                },
            )?;
            client.get_all(keys, value)?;
            writeln!(said, "size {}", client.call("DBSIZE")?)?;
            let before = client.call("DEBUG DIGEST")?;
            writeln!(said, "digest {before}")?;
            ensure!(client.call("BGSAVE")?.starts_with("+Background saving"), "BGSAVE");
            // The child saves the moment of the fork, whatever is written now.
            client.many(keys.div_ceil(3), |k| format!("SET key:{} changed{k}", 3 * k), |_, _| Ok(()))?;
            let saved = eventually(limit(), || {
                client.call("INFO persistence").is_ok_and(|info| info.contains("rdb_bgsave_in_progress:0"))
            });
            ensure!(saved, "BGSAVE did not end");
            let info = client.call("INFO persistence")?;
            ensure!(info.contains("rdb_last_bgsave_status:ok"), "{info}");
            client.get_all(keys, |k| if k % 3 == 0 { format!("changed{}", k / 3) } else { value(k) })?;
            writeln!(said, "changed {}", client.call("DEBUG DIGEST")?)?;
            writeln!(said, "reload {}", client.call("DEBUG RELOAD NOSAVE")?)?;
            let after = client.call("DEBUG DIGEST")?;
            ensure!(after == before, "the snapshot is not of the moment of the fork: {before}, {after}");
            client.get_all(keys, value)?;
            let mut benchmark = Command::new("redis-benchmark");
            benchmark.args([
                "-h",
                &at.ip().to_string(),
                "-p",
                &at.port().to_string(),
                "-n",
                "10000",
                "-r",
                "10000",
                "-d",
                "512",
                "-q",
            ]);
            benchmark.args(["-t", "set,get,lpush,lrange_100,zadd"]);
            process::run(benchmark, limit())?.success()?;
            writeln!(said, "flush {}", client.call("FLUSHALL")?)?;
            Ok(said)
        },
    )
}

/// All keys set and read back.
pub fn memcached(row: &mut Row) -> Result<()> {
    run(
        row,
        || {
            let at = free_port()?;
            let mut memcached = Command::new("memcached");
            memcached.args(["-m", "512", "-U", "0", "-l", &at.ip().to_string(), "-t", "4", "-u", "root"]);
            memcached.args(["-p", &at.port().to_string()]);
            Ok((memcached, at, TempDir::new("memcached")?))
        },
        |at| {
            let keys = 80_000 * scale();
            let mut stream = TcpStream::connect(at)?;
            stream.set_read_timeout(Some(SILENT))?;
            let mut reader = BufReader::new(stream.try_clone()?);
            let mut said = String::new();
            for batch in (0..keys).step_by(1000) {
                let mut text = String::new();
                for k in batch..(batch + 1000).min(keys) {
                    let v = value(k);
                    write!(text, "set key:{k} 0 0 {} noreply\r\n{v}\r\n", v.len())?;
                }
                stream.write_all(text.as_bytes())?;
            }
            for batch in (0..keys).step_by(500) {
                let mut text = String::new();
                for k in batch..(batch + 500).min(keys) {
                    write!(text, "get key:{k}\r\n")?;
                }
                stream.write_all(text.as_bytes())?;
                for k in batch..(batch + 500).min(keys) {
                    let v = value(k);
                    let expected = format!("VALUE key:{k} 0 {}\r\n{v}\r\nEND\r\n", v.len());
                    let mut got = vec![0; expected.len()];
                    reader.read_exact(&mut got).with_context(|| format!("key {k}"))?;
                    ensure!(got == expected.as_bytes(), "key {k}: {}", String::from_utf8_lossy(&got));
                }
            }
            writeln!(said, "{keys} keys read back")?;
            Ok(said)
        },
    )
}

/// A client of redis, pipelined.
struct Resp {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Resp {
    fn connect(at: SocketAddr) -> Result<Resp> {
        let stream = TcpStream::connect(at)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENT))?;
        let reader = BufReader::with_capacity(1 << 16, stream.try_clone()?);
        Ok(Resp { stream, reader })
    }

    fn call(&mut self, command: &str) -> Result<String> {
        write!(self.stream, "{command}\r\n")?;
        self.reply()
    }

    fn reply(&mut self) -> Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let line = line.trim_end();
        match line.strip_prefix('$') {
            Some("-1") => Ok("nil".into()),
            Some(length) => {
                let mut body = vec![0; length.parse::<usize>()? + 2];
                self.reader.read_exact(&mut body)?;
                body.truncate(body.len() - 2);
                Ok(String::from_utf8_lossy(&body).into_owned())
            }
            None if line.is_empty() => bail!("the server closed the connection"),
            None if line.starts_with('-') => bail!("the server said {line}"),
            None => Ok(line.to_owned()),
        }
    }

    /// Many commands, 500 under way at once.
    fn many(
        &mut self,
        count: usize,
        command: impl Fn(usize) -> String,
        check: impl Fn(usize, &str) -> Result<()>,
    ) -> Result<()> {
        for batch in (0..count).step_by(500) {
            let range = batch..(batch + 500).min(count);
            let text: String = range.clone().map(|k| command(k) + "\r\n").collect();
            self.stream.write_all(text.as_bytes())?;
            for k in range {
                let reply = self.reply()?;
                check(k, &reply)?;
            }
        }
        Ok(())
    }

    fn get_all(&mut self, keys: usize, expected: impl Fn(usize) -> String) -> Result<()> {
        self.many(
            keys,
            |k| format!("GET key:{k}"),
            |k, reply| {
                ensure!(reply == expected(k), "key:{k} is {reply}, expected {}", expected(k));
                Ok(())
            },
        )
    }
}
