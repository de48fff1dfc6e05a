//! Comparing and copying, alternated in one process. A bench can then tell which is faster, though
//! they differ by less than two processes that do the same. A process has the same memory in all
//! its turns, and other work of the machine lasts longer than a turn.
//!
//! ```text
//!   system's monotonic clock   ├─ TURN ─┼─ TURN ─┼─ TURN ─┼─ TURN ─┼─ TURN ─┼─ TURN ─┤
//!   what pages that leave are  │ copied │compared│ copied │compared│compared│ copied │
//!                              └──── a pair ─────┴──── a pair ─────┴──── a pair ─────┘
//! ```

use farmem_protocol::random::hash;
use std::time::Duration;

/// The length of a turn: long beside the millisecond that it takes to have the program's memory in
/// the CPU's first caches again. Turns of 200 ms and of a second say the same, less finely
/// (`docs/design/lines.md`).
pub const TURN: Duration = Duration::from_millis(20);

/// The work on pages that leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// Their bytes are copied to their slots, all of them, as under `none`.
    Copies,
    /// … where they differ, as under `lines`.
    Compares,
}

/// The pair of turns at this time, ns of the system's monotonic clock, and the turn in it. The
/// order in a pair is drawn, so that no periodic event falls on one of them.
pub fn turn(ns: u64) -> (u64, Turn) {
    let nth = ns / TURN.as_nanos() as u64;
    let pair = nth / 2;
    let drawn = hash(pair) >> 63;
    (pair, if nth % 2 == drawn { Turn::Compares } else { Turn::Copies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_turn_of_every_pair_and_is_first_in_half_of_them() {
        let ns = TURN.as_nanos() as u64;
        let first: Vec<bool> = (0..10_000)
            .map(|pair| {
                let [(a, one), (b, other)] = [2 * pair, 2 * pair + 1].map(|nth| turn(nth * ns + ns / 2));
                assert!(a == pair && b == pair && one != other);
                one == Turn::Compares
            })
            .collect();
        let share = |of: &[bool]| of.iter().filter(|&&first| first).count() as f64 / of.len() as f64;
        assert!((share(&first) - 0.5).abs() < 0.02);
        for period in 2..20 {
            let of_period: Vec<bool> = first.iter().copied().step_by(period).collect();
            assert!((share(&of_period) - 0.5).abs() < 0.1, "{period}");
        }
    }
}
