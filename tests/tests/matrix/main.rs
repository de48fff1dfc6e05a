//! The program matrix: real programs on far memory, output equal to native.
//!
//! Each program runs natively first, which gives the expected bytes and the peak resident set. Then
//! it runs with 10 % of that peak local in shared memory, or with 25 % over TCP, by turns. All pages of the
//! runs over TCP lie on one node, a process of its own on the loopback device. It must have all of its
//! memory back at the end.
//!
//! Programs run one at a time, in the order of [`PROGRAMS`]: two at once would slow each other down, and
//! the table tells slowdowns. A program that does not end is killed and fails.
//!
//! * `FARMEM_TEST_LONG=1`: every program with both shares over both transports.
//! * `FARMEM_TEST_TRANSPORT=shm` or `tcp`: both shares over this one.
//! * `FARMEM_TEST_SCALE=N`: every program's work is about N times as large (3: redis with 300 000 keys).
//! * Arguments are filters, as `cargo test` has them.
//!
//! libtest's harness would start all programs at once, report those that wait for their turn as slow,
//! and print no table.

mod programs;
mod run;
mod server;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use table::Row;

/// A program of the matrix: fills in its row.
type Program = fn(&mut Row) -> Result<()>;

const PROGRAMS: &[(&str, Program)] = &[
    ("redis", server::redis),
    ("memcached", server::memcached),
    ("numpy", programs::numpy),
    ("multiprocessing", programs::multiprocessing),
    ("python_loops", programs::python_loops),
    ("sqlite", programs::sqlite),
    ("sort", programs::sort),
    ("gcc", programs::gcc),
    ("rustc", programs::rustc),
    ("hash_join", programs::hash_join),
    ("xz", programs::xz),
    ("zstd", programs::zstd),
    ("git", programs::git),
    ("perl", programs::perl),
    ("node", programs::node),
    ("java", programs::java),
    ("stress_vm", programs::stress_vm),
    ("stress_maps", programs::stress_maps),
];

/// Arguments that are not options, nor an option's value: names, of which a part is enough.
fn filters() -> Vec<String> {
    let mut filters = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if matches!(argument.as_str(), "--test-threads" | "--format" | "--color" | "--logfile") {
            arguments.next();
        } else if !argument.starts_with('-') {
            filters.push(argument);
        }
    }
    filters
}

fn main() -> ExitCode {
    let filters = filters();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()));
    if std::env::args().any(|a| a == "--list") {
        PROGRAMS.iter().filter(|p| wanted(p.0)).for_each(|p| println!("{}: test", p.0));
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for (at, (name, program)) in PROGRAMS.iter().enumerate().filter(|(_, p)| wanted(p.0)) {
        println!("test {name} ...");
        let mut row = Row::new(name, run::cells(at));
        match program(&mut row) {
            Ok(()) => println!("test {name} ... ok"),
            Err(why) => {
                println!("test {name} ... FAILED");
                failures.push(format!("---- {name} ----\n{why:?}\n"));
            }
        }
        rows.push(row);
    }
    if let Err(why) = run::nothing_left_lent() {
        failures.push(format!("---- the node ----\n{why:?}\n"));
    }
    table::print(&rows);
    failures.iter().for_each(|failure| println!("\n{failure}"));
    println!(
        "\ntest result: {}. {} passed; {} failed; 0 ignored; 0 measured; {} filtered out; finished in {:.2}s",
        if failures.is_empty() { "ok" } else { "FAILED" },
        rows.len().saturating_sub(failures.len()),
        failures.len(),
        PROGRAMS.len() - rows.len(),
        begun.elapsed().as_secs_f64()
    );
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
