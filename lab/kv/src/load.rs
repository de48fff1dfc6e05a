//! The load generator: one thread, some connections, a pipeline on each.
//!
//! It sends a pipeline on every connection and then takes the answers of each. A latency is
//! the time from before a pipeline was sent until all of its answers were there.

use std::time::{Duration, Instant};

use crate::mix::{Ask, Stream};
use crate::wire::Wire;
use anyhow::Result;
use farmem_kit::histogram::Histogram;
use farmem_kit::supervise;
use serde::Serialize;

/// Of one mix on one system.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Found {
    /// Requests a second.
    pub rate: f64,
    /// The median latency of a pipeline, in ns.
    pub median: f64,
    /// The latency that 99 of 100 pipelines do not exceed, in ns.
    pub p99: f64,
}

/// Requests of a pipeline when a store is filled.
const FILLING: usize = 64;

/// Writes every record once.
///
/// # Errors
/// As the system's.
pub fn fill(wires: &mut [Box<dyn Wire>], records: u64, bytes: usize) -> Result<()> {
    let keys: Vec<Ask> = (0..records).map(Ask::Write).collect();
    let depth = FILLING.min((4 << 20) / bytes.max(1)).max(1);
    for some in keys.chunks(depth * wires.len()) {
        supervise::interrupted()?;
        let each = some.chunks(depth);
        wires.iter_mut().zip(each.clone()).try_for_each(|(wire, asks)| wire.send(asks, bytes))?;
        wires.iter_mut().zip(each).try_for_each(|(wire, asks)| wire.receive(asks, bytes))?;
    }
    Ok(())
}

/// Asks for `time`, after a tenth of it that does not count.
///
/// # Errors
/// As the system's.
pub fn run(
    wires: &mut [Box<dyn Wire>],
    stream: &mut Stream,
    depth: usize,
    bytes: usize,
    time: Duration,
) -> Result<Found> {
    let mut histogram = Histogram::default();
    let mut asks: Vec<Vec<Ask>> = vec![Vec::new(); wires.len()];
    let (mut begun, mut counted) = (Instant::now(), 0u64);
    let mut warm = false;
    loop {
        supervise::interrupted()?;
        let mut sent = Vec::with_capacity(wires.len());
        for (wire, asks) in wires.iter_mut().zip(&mut asks) {
            asks.clear();
            asks.extend((0..depth).map(|_| stream.ask()));
            sent.push(Instant::now());
            wire.send(asks, bytes)?;
        }
        for ((wire, asks), sent) in wires.iter_mut().zip(&asks).zip(sent) {
            wire.receive(asks, bytes)?;
            histogram.record(sent.elapsed().as_nanos() as u64);
            counted += depth as u64;
        }
        stream.answered();
        let passed = begun.elapsed();
        if !warm && passed >= time / 10 {
            (warm, begun, counted, histogram) = (true, Instant::now(), 0, Histogram::default());
        } else if warm && passed >= time {
            let [median, p99] = [0.5, 0.99].map(|share| histogram.quantile(share) as f64);
            return Ok(Found { rate: counted as f64 / passed.as_secs_f64(), median, p99 });
        }
    }
}
