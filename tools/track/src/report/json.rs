//! For machines: every window, and the pooled figures, as JSON. Sizes are bytes, times seconds.

use serde::Serialize;

use super::Report;
use crate::count::{LeftOut, MappingId, Pause, Pooled, Tally, Window};
use crate::session::End;
use farmem_sys::ptrace::Told;

#[derive(Serialize)]
struct Json<'a> {
    program: &'a str,
    ended: String,
    way: crate::find::Way,
    pages_only: bool,
    window: f64,
    max_pause: f64,
    notes: Vec<String>,
    pooled: Summed,
    by_threads: Vec<Threads>,
    windows: Vec<One<'a>>,
}

#[derive(Serialize)]
struct Figures {
    dirty_pages: u64,
    dirty_lines: u64,
    changed_bytes: u64,
    dirty_blocks: u64,
    silent_pages: u64,
    pages_over_lines: Option<f64>,
    per_byte_64: Option<f64>,
    per_byte_4k: Option<f64>,
    per_byte_2m: Option<f64>,
}

#[derive(Serialize)]
struct Mapped<'a> {
    #[serde(flatten)]
    id: &'a MappingId,
    #[serde(flatten)]
    figures: Figures,
}

#[derive(Serialize)]
struct Summed {
    windows: usize,
    seconds: f64,
    median_pages_over_lines: Option<f64>,
    #[serde(flatten)]
    total: Figures,
    far: Figures,
    /// Dirty pages by how many of their lines are dirty; the first figure is of 1.
    pages_by_lines: Vec<u64>,
    mappings: Vec<serde_json::Value>,
}

#[derive(Serialize)]
struct Threads {
    threads: usize,
    windows: usize,
    #[serde(flatten)]
    total: Figures,
}

#[derive(Serialize)]
struct One<'a> {
    seconds: f64,
    threads: usize,
    left_out: Option<LeftOut>,
    pause: Pause,
    watched_one_in: u64,
    present_pages: u64,
    begun_pages: u64,
    missed_pages: u64,
    #[serde(flatten)]
    total: Figures,
    mappings: Vec<Mapped<'a>>,
}

impl From<&Tally> for Figures {
    fn from(tally: &Tally) -> Figures {
        let [per_byte_64, per_byte_4k, per_byte_2m] = tally.amplification();
        Figures {
            dirty_pages: tally.pages,
            dirty_lines: tally.lines,
            changed_bytes: tally.bytes,
            dirty_blocks: tally.blocks,
            silent_pages: tally.silent,
            pages_over_lines: tally.pages_over_lines(),
            per_byte_64,
            per_byte_4k,
            per_byte_2m,
        }
    }
}

impl Report<'_> {
    /// The report for machines.
    ///
    /// # Errors
    /// None that is known: every figure has a form in JSON.
    pub fn json(&self) -> serde_json::Result<String> {
        let pooled = self.pooled();
        serde_json::to_string_pretty(&Json {
            program: &self.program,
            ended: match self.end {
                End::Done => "done".into(),
                End::Interrupted => "interrupted".into(),
                End::Ended(Told::Killed(signal)) => format!("signal {signal}"),
                End::Ended(Told::Exited(status)) => format!("status {status}"),
                End::Ended(_) => "ended".into(),
            },
            way: self.ways.last().copied().unwrap_or(self.settings.way),
            pages_only: self.settings.pages_only,
            window: self.settings.window.as_secs_f64(),
            max_pause: self.settings.max_pause.as_secs_f64(),
            notes: self.caveats(),
            pooled: summed(&pooled)?,
            by_threads: self.by_threads().iter().map(|(threads, pooled)| one_count(*threads, pooled)).collect(),
            windows: self.windows.iter().map(one).collect(),
        })
    }
}

fn summed(pooled: &Pooled) -> serde_json::Result<Summed> {
    let mapped = pooled.by_mapping.iter().map(|(id, tally)| serde_json::to_value(Mapped { id, figures: tally.into() }));
    Ok(Summed {
        windows: pooled.windows,
        seconds: pooled.seconds,
        median_pages_over_lines: pooled.median,
        total: (&pooled.total).into(),
        far: (&pooled.far).into(),
        pages_by_lines: pooled.total.by_lines[1..].to_vec(),
        mappings: mapped.collect::<Result<_, _>>()?,
    })
}

fn one_count(threads: usize, pooled: &Pooled) -> Threads {
    Threads { threads, windows: pooled.windows, total: (&pooled.total).into() }
}

fn one(window: &Window) -> One<'_> {
    let mapped = window.found.by_mapping.iter().map(|(id, tally)| Mapped { id, figures: tally.into() });
    One {
        seconds: window.length.as_secs_f64(),
        threads: window.threads,
        left_out: window.left_out,
        pause: window.pause,
        watched_one_in: window.one_in,
        present_pages: window.found.present,
        begun_pages: window.found.begun,
        missed_pages: window.found.missed,
        total: (&window.total()).into(),
        mappings: mapped.collect(),
    }
}
