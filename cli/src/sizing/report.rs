//! The output of `farmem size`: the peak, a table by local memory, a suggestion.

use std::io::Write;

use serde::Serialize;

use super::estimate::{Returns, Trace};
use crate::run::{Ending, Outcome};
use crate::units;

/// Shares of the peak that are tried, percent.
const SHARES: [u64; 9] = [100, 75, 50, 35, 25, 18, 12, 8, 5];

/// A program that waits for this share of its time at most is said to lose little.
const LITTLE: f64 = 0.1;

/// The cost of a page that is fetched ahead, in order, against one that is waited for: about a
/// third over shared memory, and less over TCP (docs/figures.md, *Paging*).
const AHEAD: f64 = 1.0 / 3.0;

/// The kernel's time to bring a fault to the runtime and back. The runtime's clock does not see it.
const SIGNAL_NS: u64 = 2000;

const MIB: u64 = 1 << 20;

/// The facts after the run. Bytes, nanoseconds, counts.
#[derive(Serialize)]
pub struct Report {
    program: String,
    status: Option<i32>,
    signal: Option<i32>,
    elapsed_ns: u64,
    /// The part of it that measuring took.
    measuring_ns: u64,
    processes: usize,
    /// The time of a fetch.
    fetch_ns: u64,
    /// Far memory that the process used which used most, at once.
    peak: u64,
    sizes: Vec<Row>,
    /// The least `--local` with which the program loses little.
    suggested: Option<u64>,
}

/// The cost of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Row {
    local: u64,
    returns: u64,
    in_order: u64,
    waiting_ns: u64,
}

impl Report {
    /// From a run and what its processes recorded.
    pub fn of(outcome: &Outcome, traces: &[Trace]) -> Report {
        let counts = outcome.sample.total();
        let faults: u64 = traces.iter().map(Trace::faults).sum();
        let fetch_ns = counts.sampling_ns.checked_div(faults).unwrap_or(0) + SIGNAL_NS;
        let measured = traces.iter().map(Trace::peak).max().unwrap_or(0);
        // The processes' own counts of local memory are exact, but lack the recorded pages.
        let peak = measured.max(outcome.peaks.local);
        let least = traces.iter().map(Trace::least).max().unwrap_or(0);
        let sizes: Vec<u64> = sizes(peak).into_iter().filter(|&size| size >= least).collect();
        let mut returns = vec![Returns::default(); sizes.len()];
        for trace in traces {
            for (all, one) in returns.iter_mut().zip(trace.returns(&sizes)) {
                all.all += one.all;
                all.in_order += one.in_order;
            }
        }
        let rows: Vec<Row> =
            sizes.iter().zip(&returns).map(|(&local, returns)| row(local, returns, fetch_ns)).collect();
        let elapsed_ns = outcome.elapsed.as_nanos() as u64;
        let measuring_ns = (faults * fetch_ns).min(elapsed_ns / 4 * 3);
        let of = elapsed_ns - measuring_ns;
        let affordable = rows.iter().filter(|row| row.waiting_ns as f64 <= of as f64 * LITTLE);
        Report {
            program: outcome.sample.command.clone(),
            status: if let Ending::Exited(status) = outcome.ending { Some(status) } else { None },
            signal: if let Ending::Killed(signal) = outcome.ending { Some(signal) } else { None },
            elapsed_ns,
            measuring_ns,
            processes: outcome.sample.processes.len(),
            fetch_ns,
            peak,
            // One size alone tells nothing.
            suggested: affordable.map(|row| row.local).min().filter(|_| rows.len() > 1),
            sizes: rows,
        }
    }

    /// Prints it on standard error. Output that cannot be written is lost: the program's status
    /// matters more.
    pub fn tell(&self, json: bool) {
        let said = match json {
            true => serde_json::to_string(self).map(|line| line + "\n").unwrap_or_default(),
            false => self.text(),
        };
        let _ = std::io::stderr().write_all(said.as_bytes());
    }

    fn text(&self) -> String {
        let how = match (self.status, self.signal) {
            (Some(0), _) | (None, None) => String::new(),
            (Some(status), _) => format!(", status {status}"),
            (None, Some(signal)) => format!(", killed by signal {signal}"),
        };
        let peak = units::bytes(self.peak);
        let [elapsed, measuring] = [self.elapsed_ns, self.measuring_ns].map(units::nanos);
        let mut out =
            format!("farmem: {elapsed}{how}, {measuring} of it to measure; {peak} of far memory at its peak\n");
        if self.sizes.len() < 2 {
            return out + "  it uses too little far memory, or comes back to too little of it, to tell sizes apart\n";
        }
        let mut rows = vec![["--local", "of peak", "returns", "in order", "waiting", "of the run"].map(String::from)];
        rows.extend(self.sizes.iter().map(|row| {
            let of = self.elapsed_ns - self.measuring_ns;
            [
                written(row.local),
                units::share(row.local, self.peak),
                units::count(row.returns),
                units::count(row.in_order),
                units::nanos(row.waiting_ns),
                units::share(row.waiting_ns, of),
            ]
        }));
        out += &units::aligned(&rows);
        if let Some(local) = self.suggested {
            let local = written(local);
            out +=
                &format!("  try --local {local}: the least here with which it waits for a tenth of its time at most\n");
        }
        out + &format!(
            "  (an estimate from a sample of its pages; a fetch took {} on average)\n",
            units::nanos(self.fetch_ns)
        )
    }
}

/// A size as `--local` takes it.
fn written(bytes: u64) -> String {
    match bytes % MIB {
        0 => format!("{}M", bytes / MIB),
        _ => format!("{}k", bytes >> 10),
    }
}

fn row(local: u64, returns: &Returns, fetch_ns: u64) -> Row {
    let fetches = (returns.all - returns.in_order) as f64 + returns.in_order as f64 * AHEAD;
    Row { local, returns: returns.all, in_order: returns.in_order, waiting_ns: (fetches * fetch_ns as f64) as u64 }
}

/// Amounts of local memory to try, as one would write them.
fn sizes(peak: u64) -> Vec<u64> {
    let step = if peak >= 64 * MIB { MIB } else { MIB / 4 };
    let mut sizes: Vec<u64> = SHARES.iter().map(|share| (peak * share / 100).next_multiple_of(step).max(MIB)).collect();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shares_of_the_peak_that_one_can_write() {
        assert_eq!(sizes(1 << 30)[..2], [1 << 30, 768 << 20]);
        assert!(sizes(300 << 20).iter().all(|size| size % MIB == 0));
        assert_eq!(sizes(1000), [MIB]);
        assert_eq!((written(96 * MIB), written(MIB + MIB / 4)), ("96M".into(), "1280k".into()));
    }

    #[test]
    fn pages_in_order_cost_less() {
        let cost = |in_order| row(MIB, &Returns { all: 900, in_order }, 1000).waiting_ns;
        assert_eq!([cost(0), cost(900)], [900_000, 300_000]);
    }

    #[test]
    fn a_report_ends_with_a_suggestion() {
        let rows = [(100, 0), (50, 90_000), (25, 4_000_000)];
        let sizes = rows.map(|(local, returns)| row(local * MIB, &Returns { all: returns, in_order: 0 }, 5000));
        let report = Report {
            program: "sort".into(),
            status: Some(3),
            signal: None,
            elapsed_ns: 6_000_000_000,
            measuring_ns: 1_000_000_000,
            processes: 1,
            fetch_ns: 5000,
            peak: 100 * MIB,
            sizes: sizes.to_vec(),
            suggested: Some(50 * MIB),
        };
        let text = report.text();
        assert!(text.starts_with("farmem: 6.00 s, status 3, 1.00 s of it to measure; 100 MiB of far memory"), "{text}");
        assert!(text.contains("50M         50 %   90.0 k         0   450 ms       9.0 %"), "{text}");
        assert!(text.contains("try --local 50M"), "{text}");
    }
}
