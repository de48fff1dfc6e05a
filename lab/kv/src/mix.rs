//! Requests: the mixes of YCSB (Cooper et al., SoCC 2010), and the choice of keys.

use farmem_protocol::random::{self, Random};
use serde::{Deserialize, Serialize};

/// Shares of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Mix {
    /// Half reads, half updates
    A,
    /// 95 % reads, 5 % updates
    B,
    /// Reads
    C,
    /// 95 % reads of what was inserted lately, 5 % inserts
    D,
    /// Half reads, half reads with an update behind
    F,
    /// Updates
    U,
}

impl Mix {
    /// All of them.
    pub const ALL: [Mix; 6] = [Mix::A, Mix::B, Mix::C, Mix::D, Mix::F, Mix::U];

    /// Heads a row.
    pub fn name(self) -> &'static str {
        match self {
            Mix::A => "A: half updates",
            Mix::B => "B: 5 % updates",
            Mix::C => "C: reads",
            Mix::D => "D: latest",
            Mix::F => "F: read, then update",
            Mix::U => "updates",
        }
    }
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Keys {
    /// Some much more often than others (0.99, as YCSB)
    Zipfian,
    /// All alike
    Uniform,
}

impl Keys {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Keys::Zipfian => "zipfian",
            Keys::Uniform => "uniform",
        }
    }
}

/// Draws ranks, 0 the most frequent: the rejection-free approximation of Gray et al. (SIGMOD 1994).
#[derive(Clone, Copy, Debug)]
pub struct Zipf {
    items: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    second: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    /// Over this number of items.
    pub fn new(items: u64) -> Zipf {
        let zeta = |n: u64| (1..=n).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(items);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Zipf { items: items as f64, zeta: all, alpha: 1.0 / (1.0 - THETA), eta, second: 0.5f64.powf(THETA) }
    }

    /// A rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let u = random.bits() as f64 / u64::MAX as f64;
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + self.second {
            1
        } else {
            let rank = self.items * (self.eta * u - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.items as u64 - 1)
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The value of a key that is there.
    Read(u64),
    /// Another value for a key.
    Write(u64),
}

impl Ask {
    /// Its key.
    pub fn key(self) -> u64 {
        match self {
            Ask::Read(key) | Ask::Write(key) => key,
        }
    }
}

/// A stream of requests on a store of `records` keys, 0 to `records` - 1.
#[derive(Clone, Debug)]
pub struct Stream {
    mix: Mix,
    keys: Keys,
    zipf: Zipf,
    random: Random,
    /// Keys that were there at the start: all below.
    records: u64,
    /// Which of several streams it is, and their number: each inserts keys of its own.
    place: (u64, u64),
    /// Keys that this stream has inserted.
    inserted: u64,
    /// … of which all answers have come.
    answered: u64,
    /// The second half of an operation that has two.
    behind: Option<Ask>,
}

impl Stream {
    /// See the type.
    pub fn new(mix: Mix, keys: Keys, records: u64, seed: u64) -> Stream {
        let random = Random::new(seed);
        let zipf = Zipf::new(records);
        Stream { mix, keys, zipf, random, records, place: (0, 1), inserted: 0, answered: 0, behind: None }
    }

    /// One of several streams on the same store, by its number and theirs.
    #[must_use]
    pub fn shared(self, place: (u64, u64)) -> Stream {
        Stream { place, random: Random::new(self.random.clone().bits() ^ place.0), ..self }
    }

    /// Keys that are there if the other streams have inserted as many: all below.
    pub fn records(&self) -> u64 {
        self.records + self.answered * self.place.1
    }

    /// Tells that all requests before now were answered: keys that were inserted are there.
    pub fn answered(&mut self) {
        self.answered = self.inserted;
    }

    /// The key that this stream inserted after `before` others.
    fn own(&self, before: u64) -> u64 {
        self.records + before * self.place.1 + self.place.0
    }

    /// A key by its age, the last one first: this stream's own, then those that were there.
    fn aged(&self, age: u64) -> u64 {
        match age < self.answered {
            true => self.own(self.answered - 1 - age),
            false => self.records - 1 - (age - self.answered).min(self.records - 1),
        }
    }

    /// The next request. Operations that have two requests end before [`Stream::answered`] only if
    /// both were taken.
    pub fn ask(&mut self) -> Ask {
        if let Some(behind) = self.behind.take() {
            return behind;
        }
        let percent = self.random.below(100);
        let updates = match self.mix {
            Mix::A | Mix::F => 50,
            Mix::B | Mix::D => 5,
            Mix::C => 0,
            Mix::U => 100,
        };
        if self.mix == Mix::D {
            if percent < updates {
                self.inserted += 1;
                return Ask::Write(self.own(self.inserted - 1));
            }
            let age = self.zipf.draw(&mut self.random);
            return Ask::Read(self.aged(age));
        }
        let key = match self.keys {
            Keys::Uniform => self.random.below(self.records),
            // Frequent keys lie anywhere.
            Keys::Zipfian => random::hash(self.zipf.draw(&mut self.random)) % self.records,
        };
        if self.mix == Mix::F && percent < updates {
            self.behind = Some(Ask::Write(key));
            return Ask::Read(key);
        }
        if percent < updates { Ask::Write(key) } else { Ask::Read(key) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(mix: Mix, keys: Keys) -> Vec<Ask> {
        let mut stream = Stream::new(mix, keys, 1000, 7);
        (0..20_000)
            .map(|_| {
                let ask = stream.ask();
                stream.answered();
                ask
            })
            .collect()
    }

    #[test]
    fn mixes_have_their_shares() {
        for (mix, least, most) in
            [(Mix::A, 48, 52), (Mix::B, 4, 6), (Mix::C, 0, 0), (Mix::D, 4, 6), (Mix::F, 31, 35), (Mix::U, 100, 100)]
        {
            let asked = asked(mix, Keys::Uniform);
            let writes = asked.iter().filter(|ask| matches!(ask, Ask::Write(_))).count() * 100 / asked.len();
            assert!((least..=most).contains(&writes), "{mix:?}: {writes} %");
        }
        let latest = asked(Mix::D, Keys::Uniform);
        assert!(latest.iter().map(|ask| ask.key()).max() > Some(1900));
    }

    #[test]
    fn streams_insert_keys_of_their_own_and_read_what_is_there() {
        let mut streams = [0, 1, 2].map(|n| Stream::new(Mix::D, Keys::Zipfian, 1000, 7).shared((n, 3)));
        let mut there: std::collections::HashSet<u64> = (0..1000).collect();
        for _ in 0..5000 {
            for stream in &mut streams {
                match stream.ask() {
                    Ask::Write(key) => assert!(there.insert(key), "{key} was inserted twice"),
                    Ask::Read(key) => assert!(there.contains(&key), "{key} is not there"),
                }
                stream.answered();
            }
        }
        let all = streams.iter().map(Stream::records).min().expect("three");
        assert!(all > 1300 && (0..all).all(|key| there.contains(&key)), "{all}");
    }

    #[test]
    fn some_keys_are_frequent_and_others_alike() {
        let most = |keys| {
            let mut counts = [0u32; 1000];
            asked(Mix::C, keys).iter().for_each(|ask| counts[ask.key() as usize] += 1);
            counts.into_iter().max().unwrap_or(0)
        };
        // The first of 1000 ranks has 1 / 7.9 of all draws.
        assert!((2000..3200).contains(&most(Keys::Zipfian)), "{}", most(Keys::Zipfian));
        assert!(most(Keys::Uniform) < 60, "{}", most(Keys::Uniform));
    }
}
