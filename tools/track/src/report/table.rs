//! For people: one row a window while it runs, and a summary.

use std::fmt;

use farmem_kit::table::Table;

use super::{Report, sent};
use crate::count::{LeftOut, Pooled, Tally, Window};
use crate::diff::{LINE, PAGE};
use crate::session::End;
use crate::snapshot::BLOCK;
use farmem_sys::ptrace::Told;

/// Mappings and thread counts shown; the JSON has all.
const MOST_ROWS: usize = 12;

/// The head above the windows' rows.
pub fn head() -> String {
    let [window, threads, pages, lines, bytes] = ["window", "threads", "dirty pages", "dirty lines", "bytes changed"];
    format!(
        "{window:>8} {threads:>8} {pages:>12} {lines:>12} {bytes:>14} {:>7} {:>7} {:>7} {:>12} {:>9}",
        "×64 B", "×4 KiB", "×2 MiB", "pages/lines", "pause"
    )
}

/// A window's row.
pub fn row(window: &Window) -> String {
    let total = window.total();
    let [line, page, block] = total.amplification().map(times);
    let remark = match window.left_out {
        None => "",
        Some(LeftOut::Idle) => "  idle: left out",
        Some(LeftOut::Begun) => "  first: left out",
        Some(LeftOut::Cut) => "  cut short: left out",
    };
    format!(
        "{:>8} {:>8} {:>12} {:>12} {:>14} {line:>7} {page:>7} {block:>7} {:>12} {:>9}{remark}",
        seconds(window.length.as_secs_f64()),
        window.threads,
        count(total.pages),
        count(total.lines),
        bytes(total.bytes),
        times(total.pages_over_lines()),
        seconds(window.pause.total),
    )
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pooled = self.pooled();
        let left_out = self.windows.len() - pooled.windows;
        writeln!(f, "{}: {}", self.program, ended(self.end))?;
        writeln!(
            f,
            "{} of {} windows pooled ({:.1} s){} · written pages found by {}",
            pooled.windows,
            self.windows.len(),
            pooled.seconds,
            if left_out > 0 { format!(", {left_out} left out: first, idle or cut short") } else { String::new() },
            self.ways.iter().map(|way| way.describe()).collect::<Vec<_>>().join("; of some processes by "),
        )?;
        if pooled.windows > 0 && !self.settings.pages_only {
            write!(f, "\nDirtied, all windows together\n\n{}", dirtied(&pooled))?;
            write!(f, "\nDirty lines of a dirty page\n\n{}", spread(&pooled.total))?;
            write!(f, "\nBy mapping\n\n{}", by_mapping(&pooled))?;
            write!(f, "\nBy threads alive\n\n{}", by_threads(&self.by_threads()))?;
            write!(f, "\nOn farmem, were all that is dirtied in a window sent at its end\n\n{}", moved(&pooled))?;
        } else if pooled.windows > 0 {
            write!(f, "\nBy mapping\n\n{}", by_mapping(&pooled))?;
        }
        write!(f, "\n{}", pauses(self.windows, self.settings.max_pause.as_secs_f64()))?;
        self.caveats().iter().try_for_each(|caveat| writeln!(f, "note: {caveat}"))
    }
}

fn ended(end: End) -> String {
    match end {
        End::Done => "let go, unharmed".into(),
        End::Interrupted => "let go, unharmed, when asked to".into(),
        End::Ended(Told::Exited(status)) => format!("ended with status {status}"),
        End::Ended(Told::Killed(signal)) => format!("ended by signal {signal}"),
        End::Ended(_) => "ended".into(),
    }
}

fn dirtied(pooled: &Pooled) -> Table {
    let total = &pooled.total;
    let mut table =
        Table::new(["tracked in", "dirty", "to move", "per second", "per byte changed", "per dirty line's byte"]);
    let lines = total.lines * LINE as u64;
    let kinds = [
        ("bytes", total.bytes, 1),
        ("lines of 64 B", total.lines, LINE as u64),
        ("pages of 4 KiB", total.pages, PAGE as u64),
        ("blocks of 2 MiB", total.blocks, BLOCK),
    ];
    for (name, n, size) in kinds {
        let moved = n * size;
        let ratio = |to: u64| times((to > 0).then(|| moved as f64 / to as f64));
        let per_second = format!("{}/s", bytes((moved as f64 / pooled.seconds) as u64));
        table.row([name.into(), count(n), bytes(moved), per_second, ratio(total.bytes), ratio(lines)]);
    }
    table
}

fn spread(total: &Tally) -> Table {
    let mut table = Table::new(["lines", "pages", "share", "up to here"]);
    let mut so_far = 0;
    for (name, range) in [
        ("1", 1..=1),
        ("2", 2..=2),
        ("3 – 4", 3..=4),
        ("5 – 8", 5..=8),
        ("9 – 16", 9..=16),
        ("17 – 32", 17..=32),
        ("33 – 63", 33..=63),
        ("64", 64..=64),
    ] {
        let n: u64 = total.by_lines[range].iter().sum();
        so_far += n;
        table.row([name.into(), count(n), share(n, total.pages), share(so_far, total.pages)]);
    }
    table
}

fn by_mapping(pooled: &Pooled) -> Table {
    let mut table =
        Table::new(["", "dirty pages", "dirty lines", "bytes changed", "×64 B", "×4 KiB", "×2 MiB", "pages/lines"]);
    let mut rows: Vec<_> = pooled.by_mapping.iter().filter(|(_, tally)| tally.pages > 0).collect();
    let processes = pooled.by_mapping.keys().map(|id| id.process).collect::<std::collections::BTreeSet<_>>().len();
    rows.sort_by_key(|(_, tally)| std::cmp::Reverse((tally.lines, tally.pages)));
    for (id, tally) in rows.iter().take(MOST_ROWS) {
        let process = if processes > 1 { format!("{} ", id.process) } else { String::new() };
        let at = if id.start > 0 { format!(" {:x}", id.start) } else { String::new() };
        table.row(figures(format!("{process}{}{at}", shortened(&id.name)), tally));
    }
    let mut others = Tally::default();
    rows.iter().skip(MOST_ROWS).for_each(|(_, tally)| others.merge(tally));
    if others.pages > 0 {
        table.row(figures(format!("{} others", rows.len() - MOST_ROWS), &others));
    }
    table
}

fn by_threads(counts: &[(usize, Pooled)]) -> Table {
    let mut table = Table::new([
        "threads",
        "dirty pages",
        "dirty lines",
        "bytes changed",
        "×64 B",
        "×4 KiB",
        "×2 MiB",
        "pages/lines",
        "windows",
        "median",
    ]);
    for (threads, pooled) in counts.iter().take(MOST_ROWS) {
        let mut row = figures(threads.to_string(), &pooled.total);
        row.extend([pooled.windows.to_string(), times(pooled.median)]);
        table.row(row);
    }
    table
}

fn figures(name: String, tally: &Tally) -> Vec<String> {
    let [line, page, block] = tally.amplification().map(times);
    vec![
        name,
        count(tally.pages),
        count(tally.lines),
        bytes(tally.bytes),
        line,
        page,
        block,
        times(tally.pages_over_lines()),
    ]
}

fn moved(pooled: &Pooled) -> Table {
    let far = &pooled.far;
    let mut table = Table::new(["far memory", "sent", "per second", "per byte changed"]);
    let per = |name: &str, sent: u64| {
        let ratio = times((far.bytes > 0).then(|| sent as f64 / far.bytes as f64));
        [name.to_owned(), bytes(sent), format!("{}/s", bytes((sent as f64 / pooled.seconds) as u64)), ratio]
    };
    table.row(per("whole pages", far.pages * PAGE as u64));
    table.row(per("dirty lines, by the eviction log", sent(far)));
    table
}

fn pauses(windows: &[Window], limit: f64) -> String {
    let mut pauses: Vec<f64> = windows.iter().map(|window| window.pause.total).collect();
    pauses.sort_by(f64::total_cmp);
    let Some(&longest) = pauses.last() else { return "no window was completed\n".into() };
    let ran: f64 = windows.iter().map(|window| window.length.as_secs_f64()).sum();
    let stood: f64 = pauses.iter().sum();
    let beyond = pauses.iter().filter(|&&pause| pause > limit).count();
    format!(
        "The program stood for {} a window (median), {} at most, {:.2} % of the time; the limit is {}{}.\n",
        seconds(pauses[pauses.len() / 2]),
        seconds(longest),
        100.0 * stood / (ran + stood).max(f64::MIN_POSITIVE),
        seconds(limit),
        if beyond > 0 { format!(", exceeded in {beyond} of {} windows", pauses.len()) } else { String::new() }
    )
}

fn shortened(name: &str) -> String {
    let (start, chars) = (name.chars().count().saturating_sub(40), name.chars());
    if start == 0 { name.to_owned() } else { format!("…{}", chars.skip(start).collect::<String>()) }
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "–".into() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

fn times(ratio: Option<f64>) -> String {
    match ratio {
        None => "–".into(),
        Some(ratio) if ratio < 9.995 => format!("{ratio:.2}"),
        Some(ratio) if ratio < 99.95 => format!("{ratio:.1}"),
        Some(ratio) => format!("{ratio:.0}"),
    }
}

fn seconds(s: f64) -> String {
    farmem_kit::table::duration(s * 1e9)
}

fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", " k", " M", " G"])
}

fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"])
}

fn scaled(n: u64, base: f64, units: &[&str]) -> String {
    let (mut n, mut unit) = (n as f64, 0);
    while n >= base - 0.5 && unit + 1 < units.len() {
        n /= base;
        unit += 1;
    }
    let decimals = if unit == 0 || n >= 99.95 {
        0
    } else if n >= 9.995 {
        1
    } else {
        2
    };
    format!("{n:.decimals$}{}", units[unit])
}
