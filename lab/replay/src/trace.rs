//! A trace in memory: pages by dense number, so that replaying is array indexing.

use anyhow::{Context, Result, bail};
use farmem_cache::trace::{Decoder, HEADER, Kind};
use farmem_protocol::addr::PageId;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// Accesses in order.
pub struct Trace {
    /// Its name in tables.
    pub name: String,
    /// Dense page numbers.
    pub accesses: Vec<u32>,
    /// The thread of each access.
    pub threads: Vec<u8>,
    /// The page behind each dense number.
    pub pages: Vec<PageId>,
}

impl Trace {
    /// From pages in order of access, of thread 0.
    pub fn from_pages(name: &str, pages: impl IntoIterator<Item = u64>) -> Trace {
        Trace::collect(name, pages.into_iter().map(|page| (page, 0)))
    }

    fn collect(name: &str, accesses: impl Iterator<Item = (u64, u8)>) -> Trace {
        let mut numbers = HashMap::new();
        let mut trace = Trace { name: name.into(), accesses: vec![], threads: vec![], pages: vec![] };
        for (page, thread) in accesses {
            let number = *numbers.entry(page).or_insert_with(|| {
                trace.pages.push(PageId(page));
                trace.pages.len() as u32 - 1
            });
            trace.accesses.push(number);
            trace.threads.push(thread);
        }
        trace
    }

    /// Reads a trace file; one that ends in `.xz` through `xz`.
    pub fn open(path: &Path) -> Result<Trace> {
        let bytes = if path.extension().is_some_and(|e| e == "xz") {
            let out = Command::new("xz").arg("-dc").arg(path).output().context("xz is needed to read a .xz trace")?;
            if !out.status.success() {
                bail!("{}: {}", path.display(), String::from_utf8_lossy(&out.stderr).trim());
            }
            out.stdout
        } else {
            std::fs::read(path).with_context(|| path.display().to_string())?
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Trace::parse(name.split('.').next().unwrap_or(&name), &bytes)
    }

    /// From a trace file's bytes.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace> {
        let Some(mut rest) = bytes.strip_prefix(&HEADER) else {
            bail!("{name}: not a page trace of a version this program reads");
        };
        let mut decoder = Decoder::new();
        let mut accesses = Vec::new();
        while let Some((record, n)) = decoder.decode(rest) {
            rest = &rest[n..];
            if record.kind != Kind::Gone {
                accesses.push((record.page.0, record.thread as u8));
            }
        }
        if accesses.is_empty() {
            bail!("{name}: the trace has no accesses");
        }
        Ok(Trace::collect(name, accesses.into_iter()))
    }
}
