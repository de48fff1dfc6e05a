//! Rounds, and ratios within them.
//!
//! On a shared machine two runs of the same program differ by more than many an optimisation gains.
//! They also drift, as other loads come and go. So the systems that are compared run once in each
//! round, in this order:
//!
//! ```text
//! round   0      1      2      3      4      5
//!       A B C  C B A  B C A  A C B  C A B  B A C
//! ```
//!
//! Every other round is reversed, which cancels a linear drift. Every second round begins with
//! another system. So none is always in the middle, and none always follows the same one. A ratio
//! is taken between two runs of one round. The report has the median of the rounds' ratios, with
//! the least and the greatest.

use serde::Serialize;

/// A figure over rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle figure, or the mean of the two middle ones.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// The range in which the median of very many rounds lies, with at least 95 % confidence.
    /// `None`: fewer than six rounds do not tell.
    pub likely: Option<(f64, f64)>,
    /// The distance between the quartiles, divided by the median: the machine's noise in a typical
    /// round.
    pub noise: f64,
    /// The number of rounds.
    pub rounds: usize,
}

impl Spread {
    /// The spread of these values. `None`: there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        let quartile = |nth: usize| sorted[(sorted.len() - 1) * nth / 4];
        let noise = (quartile(3) - quartile(1)) / median.abs().max(f64::MIN_POSITIVE);
        let likely = below_median(sorted.len()).map(|n| (sorted[n], sorted[sorted.len() - 1 - n]));
        Some(Spread { median, min, max, likely, noise, rounds: sorted.len() })
    }
}

/// The lower end of the true median's likely range, as an index into `values` sorted values. The
/// value there is above the true median in at most one case in forty. The value as far from the end
/// is the upper end. The range is a sign test's interval: it assumes nothing about the
/// distribution.
fn below_median(values: usize) -> Option<usize> {
    let mut chance = 0.5f64.powi(values as i32);
    let (mut below, mut of_fewer) = (None, 0.0);
    for n in 0..values / 2 {
        of_fewer += chance;
        if of_fewer > 0.025 {
            break;
        }
        below = Some(n);
        chance *= (values - n) as f64 / (n + 1) as f64;
    }
    below
}

/// The order in which `places` systems run in a round.
pub fn in_turn(places: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..places).map(move |place| {
        let place = if round.is_multiple_of(2) { place } else { places - 1 - place };
        (place + round / 2) % places
    })
}

/// The results of every system in every round.
#[derive(Clone, Debug)]
pub struct Rounds<S, T> {
    /// By system, then by round. `None`: the system failed in that round.
    runs: Vec<(S, Vec<Option<T>>)>,
}

impl<S: Copy + PartialEq, T> Rounds<S, T> {
    /// Runs every system once a round. A `None` of `run` leaves a gap. An error ends the
    /// measurement.
    pub fn interleave<E>(
        systems: &[S],
        rounds: usize,
        mut run: impl FnMut(S, usize) -> Result<Option<T>, E>,
    ) -> Result<Rounds<S, T>, E> {
        let mut all: Vec<(S, Vec<Option<T>>)> = systems.iter().map(|&system| (system, Vec::new())).collect();
        for round in 0..rounds {
            for place in in_turn(all.len(), round) {
                let outcome = run(all[place].0, round)?;
                all[place].1.push(outcome);
            }
        }
        Ok(Rounds { runs: all })
    }

    /// Runs all systems of a round by one call. `run` returns the outcome of each system, in their
    /// order. It must see to it itself that none is favoured ([`in_turn`]).
    pub fn together<E>(
        systems: &[S],
        rounds: usize,
        mut run: impl FnMut(usize) -> Result<Vec<T>, E>,
    ) -> Result<Rounds<S, T>, E> {
        let mut all: Vec<(S, Vec<Option<T>>)> = systems.iter().map(|&system| (system, Vec::new())).collect();
        for round in 0..rounds {
            all.iter_mut().zip(run(round)?).for_each(|((_, runs), outcome)| runs.push(Some(outcome)));
        }
        Ok(Rounds { runs: all })
    }

    /// Adds later rounds of the same systems.
    pub fn append(&mut self, more: Rounds<S, T>) {
        for ((_, runs), (_, later)) in self.runs.iter_mut().zip(more.runs) {
            runs.extend(later);
        }
    }

    /// The systems that ran, in order.
    pub fn systems(&self) -> impl Iterator<Item = S> + '_ {
        self.runs.iter().filter(|(_, runs)| runs.iter().any(Option::is_some)).map(|&(system, _)| system)
    }

    /// One system's runs, gaps left out.
    pub fn of(&self, system: S) -> impl Iterator<Item = &T> {
        self.runs.iter().filter(move |(name, _)| *name == system).flat_map(|(_, runs)| runs.iter().flatten())
    }

    /// A figure of one system, over its rounds.
    pub fn spread(&self, system: S, figure: impl Fn(&T) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.of(system).filter_map(figure))
    }

    /// A figure that is computed from the runs of several systems in one round, such as a ratio.
    /// Its spread is over the rounds in which all of them ran.
    pub fn within<const N: usize>(&self, systems: [S; N], figure: impl Fn([&T; N]) -> Option<f64>) -> Option<Spread> {
        let mut columns = [const { None }; N];
        for (column, system) in columns.iter_mut().zip(systems) {
            *column = self.runs.iter().find(|(name, _)| *name == system).map(|(_, runs)| runs);
        }
        let rounds = columns.iter().map(|column| column.map_or(0, Vec::len)).min()?;
        Spread::of((0..rounds).filter_map(|round| {
            let mut of_round = [None; N];
            for (run, column) in of_round.iter_mut().zip(columns) {
                *run = Some(column?[round].as_ref()?);
            }
            figure(of_round.map(|run| run.expect("set in the loop above")))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_round_runs_backwards_and_each_system_is_everywhere() {
        let mut order = String::new();
        Rounds::interleave(&['a', 'b', 'c'], 6, |system, _| {
            order.push(system);
            Ok::<_, ()>(Some(()))
        })
        .unwrap();
        assert_eq!(order, "abccbabcaacbcabbac");
    }

    #[test]
    fn systems_that_run_together_have_an_outcome_each() {
        let rounds = Rounds::together(&['a', 'b'], 3, |round| Ok::<_, ()>(vec![round, 10 * round])).unwrap();
        assert_eq!(rounds.of('b').copied().collect::<Vec<_>>(), [0, 10, 20]);
        let failed = Rounds::together(&['a'], 3, |round| if round == 1 { Err("gone") } else { Ok(vec![()]) });
        assert_eq!(failed.err(), Some("gone"));
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // A machine that becomes ten times slower, and one failed run.
        let cost = |system, round| match (system, round) {
            ('a', 1) => None,
            ('a', _) => Some(3.0 * 10f64.powi(round as i32)),
            _ => Some(10f64.powi(round as i32)),
        };
        let rounds = Rounds::interleave(&['a', 'b'], 3, |system, round| Ok::<_, ()>(cost(system, round))).unwrap();
        let ratio = rounds.within(['a', 'b'], |[a, b]| Some(a / b)).unwrap();
        assert_eq!((ratio.median, ratio.min, ratio.max, ratio.rounds), (3.0, 3.0, 3.0, 2));
        assert_eq!(rounds.within(['a', 'z'], |[a, z]| Some(a / z)), None);
    }

    #[test]
    fn rounds_can_be_added() {
        let run = |system, _: usize| Ok::<_, ()>(Some(system));
        let mut rounds = Rounds::interleave(&[1, 2], 2, run).unwrap();
        rounds.append(Rounds::interleave(&[1, 2], 3, run).unwrap());
        assert_eq!(rounds.of(2).copied().collect::<Vec<_>>(), [2; 5]);
    }

    #[test]
    fn a_spread_has_a_middle() {
        let four = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((four.median, four.min, four.max), (2.5, 1.0, 4.0));
        let one_lost_slice = Spread::of([1.0, 1.0, 1.0, 0.1, 1.0]).unwrap();
        assert_eq!((one_lost_slice.median, one_lost_slice.min, one_lost_slice.noise), (1.0, 0.1, 0.0));
        assert_eq!(Spread::of([]), None);
    }

    /// From tables of the binomial distribution: the 2nd least of 9, the 3rd of 14, the 7th of 24.
    #[test]
    fn the_true_median_is_likely_between_two_of_them() {
        assert_eq!([5, 6, 9, 14, 24].map(below_median), [None, Some(0), Some(1), Some(2), Some(6)]);
        let likely = |n: u32| Spread::of((1..=n).map(f64::from)).unwrap().likely;
        assert_eq!((likely(5), likely(14)), (None, Some((3.0, 12.0))));
    }
}
