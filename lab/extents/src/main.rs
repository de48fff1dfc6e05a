//! Explores every scenario and prints what was seen.

use farmem_extents::explore::{explore, tell};
use farmem_extents::scenarios;

fn main() {
    let limit = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(10_000_000);
    println!("{:<36}{:>12}{:>12}{:>10}{:>9}", "scenario", "states", "moves", "ends", "seconds");
    for scenario in scenarios::all().into_iter().chain(scenarios::lies()) {
        let started = std::time::Instant::now();
        let found = explore(&scenario, limit);
        let seconds = started.elapsed().as_secs_f64();
        let cut = if found.cut { "  cut" } else { "" };
        println!("{:<36}{:>12}{:>12}{:>10}{seconds:>9.1}{cut}", scenario.name, found.states, found.moves, found.ends);
        if let Some((wrong, moves)) = found.wrong {
            println!("{}\n{wrong}", tell(&scenario, &moves));
            std::process::exit(1);
        }
    }
}
