//! Time that processes have taken of a CPU. It tells more than requests a second on a machine that
//! does other work.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// The kernel counts in hundredths of a second, on every x86-64.
const TICK: Duration = Duration::from_millis(10);

struct Process {
    parent: u32,
    ticks: u32,
}

/// One line of `/proc/PID/stat`.
fn process(stat: &str) -> Option<Process> {
    // The name stands in brackets, and may have any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u32>().ok();
    // Its own time, and that of its children that have ended.
    let ticks = [11, 12, 13, 14].into_iter().map(number).sum::<Option<u32>>()?;
    Some(Process { parent: number(1)?, ticks })
}

fn all() -> HashMap<u32, Process> {
    let dirs = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = dirs.filter_map(|dir| dir.file_name().to_str()?.parse::<u32>().ok());
    let read = |number: u32| Some((number, process(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)?));
    numbers.filter_map(read).collect()
}

/// The time of these processes and of all that they have started.
pub fn of(processes: &[u32]) -> Duration {
    let all = all();
    let is_theirs = |mut number: u32| {
        while !processes.contains(&number) {
            match all.get(&number) {
                Some(process) if process.parent > 1 => number = process.parent,
                _ => return false,
            }
        }
        true
    };
    let theirs = all.iter().filter(|(number, _)| is_theirs(**number));
    TICK * theirs.map(|(_, process)| process.ticks).sum::<u32>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_process_takes_time() {
        let own = [std::process::id()];
        let (before, begun) = (of(&own), std::time::Instant::now());
        while of(&own) < before + TICK {
            assert!(begun.elapsed() < Duration::from_secs(60), "no time was counted");
        }
        let line = "7 (a) b) S 3 7 7 0 -1 4194560 1 0 0 0 20 30 4 5 20 0 1 0";
        assert_eq!(process(line).map(|process| (process.parent, process.ticks)), Some((3, 59)));
    }
}
