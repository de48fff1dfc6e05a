//! Redis, whose values are overwritten at random or in order: the two programs by which Kona is remembered.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::tracked::{self, Dirtied};
use crate::apps::redis::Load;
use crate::paging::array::Draw;
use crate::supervise::{self, Group};

/// Bytes of a value.
const VALUE: usize = 300;
/// Requests under way at once.
const PIPELINE: usize = 32;
const OK: &[u8] = b"+OK\r\n";

/// Fills a server with so many keys, overwrites them, tracks it meanwhile.
///
/// # Errors
/// No redis-server, one that fails, the tracker's.
pub fn dirtied(farmem: &Path, dir: &Path, keys: usize, random: bool, windows: usize) -> anyhow::Result<Dirtied> {
    let socket = dir.join("redis.sock");
    let load = Load::new(&socket, keys);
    load.clear();
    let mut command = Command::new("redis-server");
    command.args(load.server_arguments(dir)).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Group::start(&mut command).context("redis-server is missing: run tests/peers.sh")?;
    load.connect(|| matches!(server.process().try_wait(), Ok(None)))?;
    let mut client = UnixStream::connect(&socket)?;
    client.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut draw = Draw::new(7);
    let in_order: Vec<usize> = (0..keys).collect();
    in_order.chunks(PIPELINE).try_for_each(|batch| set(&mut client, batch, &mut draw))?;

    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| -> anyhow::Result<()> {
            let mut at = 0;
            while !over.load(Ordering::Relaxed) {
                let batch: Vec<usize> =
                    (at..at + PIPELINE).map(|nth| if random { draw.below(keys) } else { nth % keys }).collect();
                at += PIPELINE;
                set(&mut client, &batch, &mut draw)?;
            }
            Ok(())
        });
        std::thread::sleep(Duration::from_millis(500));
        let found = tracked::dirtied(farmem, server.process().id(), windows);
        over.store(true, Ordering::Relaxed);
        writing.join().expect("does not panic")?;
        supervise::interrupted()?;
        found
    })
}

/// Sets keys to new values of the same length.
fn set(client: &mut UnixStream, keys: &[usize], draw: &mut Draw) -> anyhow::Result<()> {
    let mut text = Vec::with_capacity(keys.len() * (VALUE + 64));
    for key in keys {
        write!(text, "*3\r\n$3\r\nSET\r\n$12\r\nkey:{key:08}\r\n${VALUE}\r\n")?;
        let end = text.len() + VALUE;
        while text.len() < end {
            write!(text, "{:016x}", draw.bits())?;
        }
        text.truncate(end);
        text.extend_from_slice(b"\r\n");
    }
    client.write_all(&text)?;
    let mut replies = vec![0; OK.len() * keys.len()];
    client.read_exact(&mut replies)?;
    ensure!(replies.chunks(OK.len()).all(|reply| reply == OK), "redis-server: {}", String::from_utf8_lossy(&replies));
    Ok(())
}
