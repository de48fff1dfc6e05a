//! A trace in memory: pages by dense number, so that replaying is array indexing.

use anyhow::{Context, Result, bail};
use farmem_cache::trace::{Decoder, HEADER, Kind};
use farmem_protocol::addr::PageId;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::process::Command;

/// What happens to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Its first use, or one that finds it zero: it comes from nowhere.
    Fresh,
    /// A later use: if it is not local, it must be fetched.
    Again,
    /// It is unmapped.
    Gone,
}

/// One entry of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// Dense page number.
    pub page: u32,
    /// By whom.
    pub thread: u8,
    /// What.
    pub what: What,
}

/// Events in order.
pub struct Trace {
    /// Its name in tables.
    pub name: String,
    /// What happens.
    pub events: Vec<Event>,
    /// The page behind each dense number.
    pub pages: Vec<PageId>,
    /// Most pages mapped and touched at once: what 100 % local is.
    pub peak: usize,
    /// Uses of pages used before.
    pub again: usize,
}

/// Page numbers have fewer bits; one that has more is not a page's.
const PAGE_BITS: u32 = 52;

impl Trace {
    /// From pages in order of access, of thread 0.
    pub fn from_pages(name: &str, pages: impl IntoIterator<Item = u64>) -> Trace {
        let mut trace = Collector::new(name);
        pages.into_iter().for_each(|page| trace.put(page, 0, Kind::Touch));
        trace.trace
    }

    /// Reads a trace file; one that ends in `.xz` through `xz`.
    pub fn open(path: &Path) -> Result<Trace> {
        let bytes = if path.extension().is_some_and(|e| e == "xz") {
            let out = Command::new("xz").arg("-dc").arg("--").arg(path).output();
            let out = out.context("xz is needed to read a .xz trace (Debian: apt-get install xz-utils)")?;
            if !out.status.success() {
                bail!("{}", String::from_utf8_lossy(&out.stderr).trim());
            }
            out.stdout
        } else {
            std::fs::read(path).with_context(|| path.display().to_string())?
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".xz").trim_end_matches(".trace");
        Trace::parse(name, &bytes).with_context(|| path.display().to_string())
    }

    /// From a trace file's bytes. What follows the last whole record is left out: a process may be
    /// killed while it writes.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Trace> {
        let Some(mut rest) = bytes.strip_prefix(&HEADER) else {
            bail!("this is no page trace, or one of another version; record one with: farmem run --trace FILE");
        };
        let mut decoder = Decoder::new();
        let mut trace = Collector::new(name);
        let mut records = 0;
        while let Some((record, n)) = decoder.decode(rest) {
            if record.page.0 >> PAGE_BITS != 0 {
                bail!("record {records} of this trace is damaged: no page has the number {:#x}", record.page.0);
            }
            rest = &rest[n..];
            records += 1;
            trace.put(record.page.0, record.thread as u8, record.kind);
        }
        if trace.trace.events.is_empty() {
            bail!("this trace is empty: the program used no far memory");
        }
        Ok(trace.trace)
    }

    /// What a recorder sees of this trace that keeps `local` pages, first in, first out, and writes faults.
    pub fn recorded(&self, local: usize) -> Trace {
        let mut queue = VecDeque::new();
        let mut here = vec![false; self.pages.len()];
        let mut seen = Collector::new(&self.name);
        for event in &self.events {
            let page = event.page as usize;
            let kind = match event.what {
                What::Gone => Kind::Gone,
                What::Fresh => Kind::Fresh,
                What::Again => Kind::Fault,
            };
            if event.what == What::Gone {
                queue.retain(|&p| p != page);
                here[page] = false;
            } else if std::mem::replace(&mut here[page], true) {
                continue;
            } else {
                queue.push_back(page);
                if queue.len() > local
                    && let Some(out) = queue.pop_front()
                {
                    here[out] = false;
                }
            }
            seen.put(self.pages[page].0, event.thread, kind);
        }
        seen.trace
    }
}

/// Numbers pages as they come.
struct Collector {
    numbers: HashMap<u64, u32>,
    /// By number: touched and not gone since.
    live: Vec<bool>,
    living: usize,
    trace: Trace,
}

impl Collector {
    fn new(name: &str) -> Collector {
        let trace = Trace { name: name.into(), events: vec![], pages: vec![], peak: 0, again: 0 };
        Collector { numbers: HashMap::new(), live: vec![], living: 0, trace }
    }

    fn put(&mut self, page: u64, thread: u8, kind: Kind) {
        let Collector { numbers, live, living, trace } = self;
        let number = *numbers.entry(page).or_insert_with(|| {
            trace.pages.push(PageId(page));
            live.push(false);
            trace.pages.len() as u32 - 1
        });
        let was_live = std::mem::replace(&mut live[number as usize], kind != Kind::Gone);
        let what = match (kind, was_live) {
            // Of a fork's other side, say: nothing here knows it.
            (Kind::Gone, false) => return,
            (Kind::Gone, true) => {
                *living -= 1;
                What::Gone
            }
            (_, false) => {
                *living += 1;
                trace.peak = trace.peak.max(*living);
                What::Fresh
            }
            (Kind::Fresh, true) => What::Fresh,
            _ => What::Again,
        };
        trace.again += (what == What::Again) as usize;
        trace.events.push(Event { page: number, thread, what });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_cache::trace::{Encoder, RECORD_BYTES, Record};

    fn bytes(records: &[(u64, Kind)]) -> Vec<u8> {
        let mut encoder = Encoder::new();
        let mut out = HEADER.to_vec();
        for &(page, kind) in records {
            let mut record = [0; RECORD_BYTES];
            let n = encoder.encode(Record { page: PageId(page), kind, thread: 0 }, &mut record);
            out.extend(&record[..n]);
        }
        out
    }

    #[test]
    fn what_a_page_is_follows_from_its_past() {
        let file = bytes(&[
            (7, Kind::Fresh),
            (8, Kind::Fault),
            (7, Kind::Fault),
            (9, Kind::Gone),
            (7, Kind::Gone),
            (7, Kind::Fault),
            (8, Kind::Fresh),
        ]);
        let trace = Trace::parse("t", &file).unwrap();
        let whats: Vec<What> = trace.events.iter().map(|e| e.what).collect();
        assert_eq!(whats, [What::Fresh, What::Fresh, What::Again, What::Gone, What::Fresh, What::Fresh]);
        assert_eq!((trace.peak, trace.again), (2, 1));
    }

    #[test]
    fn a_trace_cut_off_is_read_up_to_its_last_whole_record() {
        let whole = bytes(&[(1 << 34, Kind::Fresh), (1, Kind::Fresh), (1 << 34, Kind::Fault)]);
        let cut = Trace::parse("t", &whole[..whole.len() - 1]).unwrap();
        assert_eq!(cut.events.len(), 2);
    }

    #[test]
    fn other_files_are_refused() {
        let none = Trace::parse("t", b"#!/bin/sh\n").err().unwrap().to_string();
        assert!(none.contains("no page trace"), "{none}");
        let empty = Trace::parse("t", &HEADER).err().unwrap().to_string();
        assert!(empty.contains("empty"), "{empty}");
        let mut damaged = HEADER.to_vec();
        damaged.extend([0xff; 40]);
        let damaged = Trace::parse("t", &damaged).err().unwrap().to_string();
        assert!(damaged.contains("damaged"), "{damaged}");
        assert!(Trace::open(Path::new("/nonexistent")).err().is_some());
    }

    #[test]
    fn a_recorder_misses_what_its_pages_hide() {
        let trace = Trace::from_pages("t", [1, 1, 2, 1, 3, 4, 1, 4]);
        let seen = trace.recorded(2);
        let pages: Vec<u64> = seen.events.iter().map(|e| seen.pages[e.page as usize].0).collect();
        assert_eq!(pages, [1, 2, 3, 4, 1]);
    }
}
