//! Records a program's page trace with valgrind's lackey, which prints every
//! load and store: slow, exact, and needs nothing of farmem.
//!
//! Stacks and code are left out, as farmem leaves them local. An access to one of
//! the last few pages touched is not written: no cache this small exists.

use anyhow::{Context, Result, bail};
use farmem_cache::trace::{Encoder, HEADER, Kind, RECORD_BYTES, Record};
use farmem_protocol::addr::PageId;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Accesses to the last so many distinct pages are not written.
const FILTERED: usize = 16;
/// Where valgrind puts the main stack, and above it its own.
const STACKS: u64 = 0x1f_f000_0000;

/// Runs `program` and writes what it touches to `to`. After `most` records it is ended.
pub fn record(program: &[String], to: &Path, most: usize) -> Result<usize> {
    // Lackey's lines come on a descriptor of their own, apart from the program's output.
    let fifo = to.with_extension("fifo");
    let _ = std::fs::remove_file(&fifo);
    if !Command::new("mkfifo").arg(&fifo).status()?.success() {
        bail!("cannot make {}", fifo.display());
    }
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(format!("--log-file={}", fifo.display()))
        .args(program)
        .stdout(Stdio::null())
        .spawn()
        .context("valgrind is needed to record (Debian: apt-get install valgrind)")?;
    let lines = BufReader::with_capacity(1 << 20, std::fs::File::open(&fifo)?);
    let mut out = std::io::BufWriter::new(std::fs::File::create(to)?);
    out.write_all(&HEADER)?;
    let mut encoder = Encoder::new();
    let mut recent = [u64::MAX; FILTERED];
    let mut at = 0;
    let mut written = 0;
    for line in lines.split(b'\n') {
        let line = line?;
        let Some(page) = data_page(&line) else { continue };
        if recent.contains(&page) {
            continue;
        }
        if written == most {
            child.kill()?;
            break;
        }
        recent[at % FILTERED] = page;
        at += 1;
        let mut bytes = [0; RECORD_BYTES];
        let n = encoder.encode(Record { page: PageId(page), kind: Kind::Touch, thread: 0 }, &mut bytes);
        out.write_all(&bytes[..n])?;
        written += 1;
    }
    child.wait()?;
    let _ = std::fs::remove_file(&fifo);
    out.flush()?;
    Ok(written)
}

/// Lines look like ` L 04222c28,8`; instruction fetches (`I  …`) are not data.
fn data_page(line: &[u8]) -> Option<u64> {
    let rest = line.strip_prefix(b" ")?;
    if !matches!(rest.first()?, b'L' | b'S' | b'M') {
        return None;
    }
    let text = std::str::from_utf8(&rest[1..]).ok()?.trim_start();
    let addr = u64::from_str_radix(text.split(',').next()?, 16).ok()?;
    (addr < STACKS).then_some(addr >> 12)
}
