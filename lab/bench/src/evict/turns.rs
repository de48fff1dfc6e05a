//! Requests a second of one server that compares what leaves, and copies it, by turns ([`farmem_pager::dirty::turns`]).

use farmem_pager::dirty::turns::{Turn, turn};

use farmem_kit::pairs::Spread;

/// Batches of requests that were made one after the other, by whose turn they fell into.
#[derive(Default)]
pub struct Turns {
    /// When the batch under way began.
    begun: Option<u64>,
    pair: u64,
    /// Of this pair: batches, and the time they took.
    copies: Took,
    compares: Took,
    /// Of each pair that is over: how many times as fast comparing was.
    ratios: Vec<f64>,
}

#[derive(Clone, Copy, Default)]
struct Took {
    batches: u64,
    ns: u64,
}

/// Batches that a turn must have had to count: one that was begun in its midst, or stood still, says little.
const LEAST: u64 = 5;

impl Took {
    fn a_second(self) -> Option<f64> {
        (self.batches >= LEAST).then(|| self.batches as f64 * 1e9 / self.ns as f64)
    }
}

impl Turns {
    /// One more batch begins now, ns of the system's monotonic clock, where the one before ended. One that began in another turn than it ended in counts for neither.
    pub fn begins(&mut self, now: u64) {
        let (pair, of) = turn(now);
        if pair != self.pair {
            let over = [std::mem::take(&mut self.compares), std::mem::take(&mut self.copies)].map(Took::a_second);
            if let [Some(compares), Some(copies)] = over {
                self.ratios.push(compares / copies);
            }
            self.pair = pair;
        }
        if let Some(begun) = self.begun.filter(|&begun| turn(begun) == (pair, of)) {
            let took = if of == Turn::Compares { &mut self.compares } else { &mut self.copies };
            took.batches += 1;
            took.ns += now - begun;
        }
        self.begun = Some(now);
    }

    /// Requests a second while it compares, of those while it copies: the median of all pairs of turns, but of the one under way.
    pub fn compared(&self) -> Option<Spread> {
        Spread::of(self.ratios.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_pager::dirty::turns::TURN;

    #[test]
    fn what_takes_a_tenth_longer_in_one_of_them_is_found() {
        let (mut turns, mut now) = (Turns::default(), 0);
        while now < 200 * TURN.as_nanos() as u64 {
            turns.begins(now);
            now += if turn(now).1 == Turn::Compares { 500_000 } else { 550_000 };
        }
        let compared = turns.compared().unwrap();
        assert!((compared.median - 1.1).abs() < 1e-9 && compared.rounds == 99, "{compared:?}");
        assert!(Turns::default().compared().is_none());
    }
}
