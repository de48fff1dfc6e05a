//! From how many runs of changed lines on is a page better sent whole? A batch of pages, sent by a WRITE for each run,
//! by a WRITE for each page, and by records in frames; the time to the last completion.
//!
//! On soft-RoCE in an emulated machine a figure says what packets cost there, and no more; on a card it is the card's.

// Buffers of the program's own, of which verbs read.
#![allow(unsafe_code)]

use crate::contract::node;
use farmem_fabric::{Completion, ConnectOptions, QueuePair, Session, Transport};
use farmem_protocol::addr::{PAGE_BYTES, SlabId};
use farmem_protocol::lines::{Entry, LINE_BYTES, MAX_RECORD_BYTES, encode};
use std::time::{Duration, Instant};

/// Pages of a batch.
const BATCH: usize = 128;
const ROUNDS: usize = 9;
/// Runs of one line each.
const RUNS: [usize; 6] = [1, 2, 3, 4, 8, 16];

struct Host {
    queue: QueuePair,
    slab: SlabId,
    pages: Vec<[u8; PAGE_BYTES]>,
}

/// Measures, and prints a table.
pub fn measure() -> Result<(), String> {
    let node = node(2)?;
    let options = ConnectOptions {
        timeout: Duration::from_secs(5),
        grace: Duration::from_secs(5),
        run: [3; 16],
        pid: std::process::id(),
        transport: Transport::Verbs,
        ..ConnectOptions::default()
    };
    let session = Session::connect(&node.addresses()[0], &options).map_err(|e| e.to_string())?;
    let slab = session.grant().map_err(|e| e.to_string())?.id;
    let mut pages = vec![[0u8; PAGE_BYTES]; BATCH];
    // SAFETY: the pages outlive the session, whose queue pairs are gone before (see the end).
    unsafe { session.arena(pages.as_mut_ptr().cast(), BATCH * PAGE_BYTES) };
    let mut host = Host { queue: session.queue_pair().map_err(|e| e.to_string())?, slab, pages };
    println!("  runs   a page whole   by WRITEs   of whole   by a record in frames");
    for runs in RUNS {
        let lines: Vec<(usize, usize)> = (0..runs).map(|run| (run * 4 * LINE_BYTES, LINE_BYTES)).collect();
        let bits = (0..runs).fold(0u64, |bits, run| bits | 1 << (run * 4));
        let [whole, writes, record] = host.rounds(&lines, bits)?;
        let ratio = median(whole.iter().zip(&writes).map(|(whole, writes)| writes / whole).collect());
        let [whole, writes, record] = [whole, writes, record].map(|times| median(times) / 1e3);
        println!("  {runs:4}     {whole:7.1} µs  {writes:7.1} µs  {ratio:8.2}   {record:7.1} µs");
        host.verify(&lines)?;
    }
    drop(host.queue);
    Ok(())
}

impl Host {
    /// The times that a page takes, ns: whole, by a WRITE for each run, by a record. All of them in each round, so that what
    /// slows the machine for a while slows them alike.
    fn rounds(&mut self, runs: &[(usize, usize)], lines: u64) -> Result<[Vec<f64>; 3], String> {
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(self.timed(|host| host.writes(&[(0, PAGE_BYTES)]))?);
            times[1].push(self.timed(|host| host.writes(runs))?);
            times[2].push(self.timed(|host| host.records(lines))?);
        }
        Ok(times)
    }

    /// A page's part of what a batch takes, ns.
    fn timed(&mut self, batch: impl FnOnce(&mut Host) -> Result<(), String>) -> Result<f64, String> {
        let begun = Instant::now();
        batch(self)?;
        Ok(begun.elapsed().as_nanos() as f64 / BATCH as f64)
    }

    /// The same runs of bytes of every page, a WRITE each.
    fn writes(&mut self, runs: &[(usize, usize)]) -> Result<(), String> {
        for (nth, page) in self.pages.iter().enumerate() {
            for &(from, len) in runs {
                let offset = (nth * PAGE_BYTES + from) as u64;
                // SAFETY: the page stays as it is until all have completed, below.
                unsafe { self.queue.write(0, self.slab, offset, page[from..].as_ptr(), len as u32) };
            }
        }
        finish(&mut self.queue, runs.len() * BATCH)
    }

    /// The same lines of every page, in records.
    fn records(&mut self, lines: u64) -> Result<(), String> {
        let fitting = (MAX_RECORD_BYTES - 12) / (10 + lines.count_ones() as usize * LINE_BYTES);
        let mut records = Vec::new();
        for first in (0..BATCH).step_by(fitting) {
            let places = first..BATCH.min(first + fitting);
            let entries: Vec<Entry> =
                places.map(|place| Entry { place: (place as u16).into(), lines: lines.into() }).collect();
            let mut record = vec![0; MAX_RECORD_BYTES];
            let len = encode(self.slab, &entries, &mut record, |nth| &self.pages[first + nth]).ok_or("no record")?;
            record.truncate(len);
            // SAFETY: the record's bytes stay where they are until all have completed, below.
            unsafe { self.queue.lines(0, self.slab, record.as_ptr(), len as u32) };
            records.push(record);
        }
        finish(&mut self.queue, records.len())
    }

    /// Runs of new bytes change what they name, and nothing else.
    fn verify(&mut self, runs: &[(usize, usize)]) -> Result<(), String> {
        self.pages.iter_mut().for_each(|page| page.fill(1));
        self.writes(&[(0, PAGE_BYTES)])?;
        self.pages.iter_mut().for_each(|page| page.fill(2));
        self.writes(runs)?;
        let mut back = vec![0u8; PAGE_BYTES];
        for nth in 0..BATCH {
            // SAFETY: the buffer outlives the verb, which is awaited here.
            unsafe { self.queue.read(0, self.slab, (nth * PAGE_BYTES) as u64, back.as_mut_ptr(), PAGE_BYTES as u32) };
            finish(&mut self.queue, 1)?;
            let went = |at: usize| runs.iter().any(|&(from, len)| (from..from + len).contains(&at));
            if back.iter().enumerate().any(|(at, &byte)| byte != if went(at) { 2 } else { 1 }) {
                return Err(format!("page {nth} is wrong after {} WRITEs", runs.len()));
            }
        }
        self.pages.iter_mut().for_each(|page| page.fill(0));
        Ok(())
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn finish(queue: &mut QueuePair, n: usize) -> Result<(), String> {
    queue.doorbell().map_err(|e| e.to_string())?;
    let mut done: Vec<Completion> = Vec::new();
    while done.len() < n {
        queue.wait(&mut done, Duration::from_secs(5)).map_err(|e| e.to_string())?;
    }
    match done.iter().find(|one| one.result != Ok(0)) {
        Some(refused) => Err(format!("a verb was refused: {:?}", refused.result)),
        None => Ok(()),
    }
}
