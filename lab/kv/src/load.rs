//! The load generator: one thread, some connections, a pipeline on each.
//!
//! It sends a pipeline on every connection and then takes the answers of each. A latency is
//! the time from before a pipeline was sent until all of its answers were there.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::mix::{Ask, Stream};
use crate::wire::Wire;
use anyhow::Result;
use farmem_kit::histogram::Histogram;
use farmem_kit::supervise;
use serde::{Deserialize, Serialize};

/// The figures of one mix, by one generator or by several.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Requests a second.
    pub rate: f64,
    /// The median latency of a pipeline, in ns; of several generators, the slowest one's.
    pub median: f64,
    /// The latency that 99 of 100 pipelines do not exceed, in ns; of several, the slowest one's.
    pub p99: f64,
    /// All requests, those before the time was counted among them.
    pub asked: u64,
}

impl Measured {
    /// The figures of generators that asked at the same time.
    #[must_use]
    pub fn beside(self, other: Measured) -> Measured {
        Measured {
            rate: self.rate + other.rate,
            median: self.median.max(other.median),
            p99: self.p99.max(other.p99),
            asked: self.asked + other.asked,
        }
    }
}

/// Requests of a pipeline when a store is filled.
const FILLING: usize = 64;

/// Writes each of some records once.
///
/// # Errors
/// As the system's.
pub fn fill(wires: &mut [Box<dyn Wire>], records: Range<u64>, bytes: usize) -> Result<()> {
    let keys: Vec<Ask> = records.map(Ask::Write).collect();
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
) -> Result<Measured> {
    let mut histogram = Histogram::default();
    let mut asks: Vec<Vec<Ask>> = vec![Vec::new(); wires.len()];
    let (mut begun, mut counted, mut before) = (Instant::now(), 0u64, 0);
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
            (warm, begun, before, counted, histogram) = (true, Instant::now(), counted, 0, Histogram::default());
        } else if warm && passed >= time {
            let [median, p99] = [0.5, 0.99].map(|share| histogram.quantile(share) as f64);
            let rate = counted as f64 / passed.as_secs_f64();
            return Ok(Measured { rate, median, p99, asked: before + counted });
        }
    }
}
