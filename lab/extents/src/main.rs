//! `farmem-extents [LIMIT]` explores every scenario, at most LIMIT states of each, and prints what
//! was seen; `farmem-extents only NAME`, to the end, those with this in their names. `farmem-extents sim SEED [SEEDS [ACTIONS]]` runs the histories of seeds, `farmem-extents
//! figures` measures what the pure parts cost.

use farmem_extents::explore::{explore, tell};
use farmem_extents::scenarios;
use farmem_extents::simulation::simulate;
use farmem_protocol::extent::rules::Rules;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Option<Vec<u64>> = args.iter().skip(1).map(|arg| arg.parse().ok()).collect();
    match (args.first().map(String::as_str), numbers.as_deref()) {
        (None, _) => histories(None, ""),
        (Some("only"), _) if args.len() == 2 => histories(None, &args[1]),
        (Some("figures"), Some([])) => {
            farmem_extents::figures::print();
            ExitCode::SUCCESS
        }
        (Some("sim"), Some(&[seed])) => seeds(seed, 1, 200),
        (Some("sim"), Some(&[seed, count])) => seeds(seed, count, 200),
        (Some("sim"), Some(&[seed, count, actions])) => seeds(seed, count, actions as usize),
        (Some(limit), Some([])) if limit.parse::<usize>().is_ok() => histories(limit.parse().ok(), ""),
        _ => {
            eprintln!(
                "usage: farmem-extents [LIMIT] | farmem-extents only NAME | farmem-extents sim SEED [SEEDS [ACTIONS]] | \
                 farmem-extents figures"
            );
            ExitCode::from(2)
        }
    }
}

fn histories(limit: Option<usize>, name: &str) -> ExitCode {
    println!("{:<36}{:>12}{:>12}{:>10}{:>9}", "scenario", "states", "moves", "ends", "seconds");
    let mut states = 0;
    let all = scenarios::all().into_iter().chain(scenarios::lies());
    for scenario in all.filter(|scenario| scenario.name.contains(name)) {
        let started = std::time::Instant::now();
        let found = explore(&scenario, limit);
        let seconds = started.elapsed().as_secs_f64();
        let cut = if found.cut { "  cut" } else { "" };
        println!("{:<36}{:>12}{:>12}{:>10}{seconds:>9.1}{cut}", scenario.name, found.states, found.moves, found.ends);
        if let Some((wrong, moves)) = found.wrong {
            println!("{}\n{wrong}", tell(&scenario, &moves));
            return ExitCode::FAILURE;
        }
        states += found.states;
    }
    println!("{:<36}{states:>12}", "in all, nothing wrong");
    ExitCode::SUCCESS
}

fn seeds(first: u64, count: u64, actions: usize) -> ExitCode {
    for seed in first..first + count {
        match simulate(seed, actions, Rules::SOUND) {
            Ok(summary) => println!("seed {seed}: {summary:?}"),
            Err((wrong, summary)) => {
                println!("seed {seed}: WRONG: {wrong}, after {summary:?}");
                println!("replay: cargo run -p farmem-extents -- sim {seed} 1 {actions}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
