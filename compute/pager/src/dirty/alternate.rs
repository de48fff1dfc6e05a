//! Comparing and copying, alternated in one process. A bench can then tell which is faster, though
//! they differ by less than two processes that do the same. A process has the same memory in all
//! its spans, and other work of the machine lasts longer than a span.
//!
//! ```text
//!   system's monotonic clock   ├─ SPAN ─┼─ SPAN ─┼─ SPAN ─┼─ SPAN ─┼─ SPAN ─┼─ SPAN ─┤
//!   what pages that leave are  │ copied │compared│ copied │compared│compared│ copied │
//!                              └──── a pair ─────┴──── a pair ─────┴──── a pair ─────┘
//! ```

use farmem_protocol::random::hash;
use std::time::Duration;

/// How long one kind of work lasts: long beside the millisecond that it takes to have the program's
/// memory in the CPU's first caches again. Spans of 200 ms and of a second say the same, less finely
/// (`docs/design/lines.md`).
pub const SPAN: Duration = Duration::from_millis(20);

/// The work on pages that leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// All of their bytes are copied to their slots, as under `none`.
    Copies,
    /// Their lines are compared, and those that changed are copied, as under `lines`.
    Compares,
}

/// The pair of spans at this time, ns of the system's monotonic clock, and the work of the span. The
/// order in a pair is drawn, so that no periodic event falls on one kind of work.
pub fn work_at(ns: u64) -> (u64, Work) {
    let nth = ns / SPAN.as_nanos() as u64;
    let pair = nth / 2;
    let drawn = hash(pair) >> 63;
    (pair, if nth % 2 == drawn { Work::Compares } else { Work::Copies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_span_of_every_pair_and_is_first_in_half_of_them() {
        let ns = SPAN.as_nanos() as u64;
        let first: Vec<bool> = (0..10_000)
            .map(|pair| {
                let [(a, one), (b, other)] = [2 * pair, 2 * pair + 1].map(|nth| work_at(nth * ns + ns / 2));
                assert!(a == pair && b == pair && one != other);
                one == Work::Compares
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
