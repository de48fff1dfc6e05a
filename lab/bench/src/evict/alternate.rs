//! Requests a second of one server that compares what leaves, and copies it, alternately ([`farmem_pager::dirty::alternate`]).

use farmem_pager::dirty::alternate::{Work, work_at};

use farmem_kit::pairs::Spread;

/// Batches of requests that were made one after the other, by the work of the span that they fell into.
#[derive(Default)]
pub struct Alternated {
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

/// Batches that a span must have had to count: one that was begun in its midst, or stood still, says little.
const LEAST: u64 = 5;

impl Took {
    fn a_second(self) -> Option<f64> {
        (self.batches >= LEAST).then(|| self.batches as f64 * 1e9 / self.ns as f64)
    }
}

impl Alternated {
    /// One more batch begins now, ns of the system's monotonic clock, where the one before ended. One that began in another span than it ended in counts for neither.
    pub fn begins(&mut self, now: u64) {
        let (pair, of) = work_at(now);
        if pair != self.pair {
            let over = [std::mem::take(&mut self.compares), std::mem::take(&mut self.copies)].map(Took::a_second);
            if let [Some(compares), Some(copies)] = over {
                self.ratios.push(compares / copies);
            }
            self.pair = pair;
        }
        if let Some(begun) = self.begun.filter(|&begun| work_at(begun) == (pair, of)) {
            let took = if of == Work::Compares { &mut self.compares } else { &mut self.copies };
            took.batches += 1;
            took.ns += now - begun;
        }
        self.begun = Some(now);
    }

    /// Requests a second while it compares, of those while it copies: the median of all pairs of spans, but of the one under way.
    pub fn compared(&self) -> Option<Spread> {
        Spread::of(self.ratios.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_pager::dirty::alternate::SPAN;

    #[test]
    fn what_takes_a_tenth_longer_in_one_of_them_is_found() {
        let (mut alternated, mut now) = (Alternated::default(), 0);
        while now < 200 * SPAN.as_nanos() as u64 {
            alternated.begins(now);
            now += if work_at(now).1 == Work::Compares { 500_000 } else { 550_000 };
        }
        let compared = alternated.compared().unwrap();
        assert!((compared.median - 1.1).abs() < 1e-9 && compared.rounds == 99, "{compared:?}");
        assert!(Alternated::default().compared().is_none());
    }
}
