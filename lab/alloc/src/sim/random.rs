//! A stream of random numbers that several parts of a simulated client share.

use std::cell::Cell;

/// [`farmem_protocol::random::Random`], drawn from by shared reference.
#[derive(Debug)]
pub struct Random(Cell<farmem_protocol::random::Random>);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(Cell::new(farmem_protocol::random::Random::new(seed)))
    }

    fn draw<T>(&self, what: impl FnOnce(&mut farmem_protocol::random::Random) -> T) -> T {
        let mut random = self.0.get();
        let drawn = what(&mut random);
        self.0.set(random);
        drawn
    }

    /// The next, any of 2^64.
    pub fn next(&self) -> u64 {
        self.draw(|random| random.bits())
    }

    /// One below `bound`.
    pub fn below(&self, bound: usize) -> usize {
        self.draw(|random| random.index(bound))
    }

    /// One of 0..1.
    pub fn share(&self) -> f64 {
        self.draw(|random| random.unit())
    }

    /// Puts a slice in any order.
    pub fn shuffle<T>(&self, items: &mut [T]) {
        self.draw(|random| random.shuffle(items));
    }
}
