//! What was to be reached, and whether it is.

use farmem_kit::table::duration;
use serde::Serialize;

use crate::found::{Report, Row};
use crate::systems::System::{self, Farmem, Finemem, FreeArray, RpcOnDemand, RpcWindows};
use crate::traces::{Lifetime, Replay};

/// Something to reach.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What.
    pub what: &'static str,
    /// What the papers say of whom.
    pub published: &'static str,
    /// What is wanted.
    pub wanted: &'static str,
    /// What came out, if what it is made of was run.
    pub here: Option<String>,
    /// Whether it is reached.
    pub reached: Option<bool>,
}

/// A figure, and whether it will do.
type Found = Option<(String, bool)>;

/// Two shares, the first of which is not to be the smaller.
fn at_least(ours: f64, theirs: f64) -> (String, bool) {
    (format!("{:.1} % / {:.1} %", ours * 100.0, theirs * 100.0), ours + 1e-9 >= theirs)
}

impl Report<'_> {
    /// Two systems under the same load.
    fn pair(&self, systems: [System; 2], order: u8, clients: u32) -> Option<[&Row; 2]> {
        Some([self.row(systems[0], order, clients)?, self.row(systems[1], order, clients)?])
    }

    fn replayed(&self, system: System, lifetime: Lifetime) -> Option<&Replay> {
        self.replays.iter().find(|replay| replay.system == system && replay.lifetime == lifetime && !replay.is_tight)
    }

    /// With those of the fill: chunks that are allocated again came in blocks that were claimed then.
    fn attempts(&self) -> Found {
        let outcome = &self.row(Farmem, 0, 512)?.outcome;
        let (all, fill) = (&outcome.allocations, &outcome.fill);
        let mean = (all.verbs.cas + fill.verbs.cas) as f64 / (all.count + fill.count) as f64;
        let most = all.attempts_max.max(outcome.exhausting);
        Some((format!("{mean:.4} / {most}"), mean <= 0.05 && most <= 8))
    }

    /// Of those that ask the node. A freed block that the agent keeps and nobody takes goes back by one CAS all the same,
    /// later and beside: nothing is spared by it, so that share is told and not counted as less.
    fn verbs_of_a_block(&self) -> Found {
        let outcome = &self.row(Farmem, 9, 1)?.outcome;
        let (take, give) = (&outcome.allocations, &outcome.frees);
        let (claims, releases) = (take.count - take.at_home, give.count - give.at_home);
        let ones = take.verbs.cas == claims && give.verbs.posted() == releases;
        let of = |verbs: u64, all: u64| verbs as f64 / all.max(1) as f64;
        let reads = of(take.verbs.read, claims);
        let (cas, free) = (of(take.verbs.cas, claims), of(give.verbs.posted(), releases));
        let each = if ones { "1 and 1".to_owned() } else { format!("{cas:.5} and {free:.5}") };
        let later = give.each(give.at_home) * 100.0;
        let text = format!("{each}, and {reads:.3} READs; {later:.0} % of the frees later, kept meanwhile");
        Some((text, ones && reads < 0.05))
    }

    fn against_registration(&self) -> Found {
        let [ours, theirs] = self.pair([Farmem, RpcOnDemand], 0, 1)?;
        let less = 1.0 - ours.outcome.allocations.mean / theirs.outcome.allocations.mean;
        Some((format!("−{:.2} %", less * 100.0), less >= 0.99))
    }

    fn against_the_array(&self) -> Found {
        let [ours, theirs] = self.pair([Farmem, FreeArray], 0, 512)?.map(|row| &row.outcome.allocations);
        let (mean, p99) = (theirs.mean / ours.mean, theirs.p99 as f64 / ours.p99.max(1) as f64);
        Some((format!("{mean:.0}× / {p99:.0}×"), mean >= 50.0 && p99 >= 1000.0))
    }

    fn rate(&self) -> Found {
        let ratio = |order| {
            let [ours, theirs] = self.pair([Farmem, RpcWindows], order, 24)?;
            Some(ours.outcome.allocations.rate() / theirs.outcome.allocations.rate())
        };
        let ratios: Vec<f64> = (0..=9).filter_map(ratio).collect();
        let least = ratios.iter().copied().reduce(f64::min)?;
        Some((format!("{least:.0}×, the least of {} sizes", ratios.len()), least >= 20.0))
    }

    /// The worst of all farmem's runs, by some measure.
    fn most<T: PartialOrd>(&self, of: impl Fn(&Row) -> T) -> Option<T> {
        let mine = self.rows.iter().filter(|row| row.system == Farmem).map(of);
        mine.reduce(|most, other| if other > most { other } else { most })
    }

    fn isolation(&self) -> Found {
        let busy = self.most(|row| row.outcome.busy.isolation + row.outcome.busy.calls)?;
        Some((if busy == 0 { "0".into() } else { duration(busy as f64) }, busy == 0))
    }

    fn old_key(&self) -> Found {
        let works = self.most(|row| row.outcome.old_key != Some((0, 0)))?;
        Some((if works { "it works on" } else { "0" }.into(), !works))
    }

    fn metadata(&self) -> Found {
        let share = self.most(|row| row.outcome.metadata)?;
        Some((format!("{:.3} %", share * 100.0), share <= 0.0025))
    }

    fn full_when_refused(&self) -> Found {
        let pairs = (0..=9).filter_map(|order| self.pair([Farmem, Finemem], order, 512));
        let shares = pairs.map(|pair| pair.map(|row| row.outcome.full_at));
        let [ours, theirs] = shares.min_by(|a, b| (a[0] - a[1]).total_cmp(&(b[0] - b[1])))?;
        Some(at_least(ours, theirs))
    }

    fn against_static_grants(&self) -> Found {
        let ratio = |lifetime| {
            let ours = self.replayed(Farmem, lifetime)?;
            Some(ours.utilisation / ours.static_utilisation)
        };
        let (quarter, kept) = (ratio(Lifetime::Quarter)?, ratio(Lifetime::Kept)?);
        Some((format!("{quarter:.1}× (nothing freed: {kept:.1}×)"), quarter >= 2.8))
    }

    fn in_traces(&self) -> Found {
        let [ours, theirs] = [Farmem, Finemem].map(|system| self.replayed(system, Lifetime::Quarter));
        Some(at_least(ours?.utilisation, theirs?.utilisation))
    }

    /// The same where memory that an old key still reaches is nobody's to have.
    fn in_traces_guarded(&self) -> Found {
        let [ours, theirs] = [Farmem, Finemem].map(|system| self.replayed(system, Lifetime::Quarter));
        Some(at_least(ours?.guarded_utilisation, theirs?.guarded_utilisation))
    }

    fn tight(&self, system: System) -> Option<&Replay> {
        self.replays.iter().find(|replay| replay.system == system && replay.is_tight)
    }

    /// How full a tight pool is when it first refuses somebody; all of it, if it refuses nobody.
    fn full_when_tight(&self) -> Found {
        let full = |replay: &Replay| replay.first_refused.map_or(1.0, |first| first.held as f64 / first.pool as f64);
        Some(at_least(full(self.tight(Farmem)?), full(self.tight(Finemem)?)))
    }

    /// Requests served from a tight pool. A client that is refused has asked for the last time.
    fn served_when_tight(&self) -> Found {
        let served = |replay: &Replay| {
            let count = replay.allocations.count;
            count as f64 / (count + replay.unserved).max(1) as f64
        };
        Some(at_least(served(self.tight(Farmem)?), served(self.tight(Finemem)?)))
    }

    /// How full a tight pool was while requests waited.
    fn full_while_wanted(&self) -> Found {
        Some(at_least(self.tight(Farmem)?.wanted?, self.tight(Finemem)?.wanted?))
    }

    fn recovery(&self) -> Found {
        let rate = self.recovery?.rate();
        Some((format!("{:.1} M, measured", rate / 1e6), rate >= 5e6))
    }

    /// What was to be reached.
    pub fn targets(&self) -> Vec<Target> {
        let all = [
            ("CAS for 4 KiB, 512 clients: mean / most", "FineMem 1.33 / 142", "≤ 0.05 / ≤ 8", self.attempts()),
            (
                "verbs for 2 MiB, and to free it, 1 client",
                "OneSidedMW ~10 requests",
                "1 and 1",
                self.verbs_of_a_block(),
            ),
            ("latency of 4 KiB, against registration on demand", "FineMem −95 %", "−99 %", self.against_registration()),
            (
                "latency of 4 KiB, free array / ours, 512 clients: mean / p99",
                "FineMem 17× / 200×",
                "50× / 1000×",
                self.against_the_array(),
            ),
            ("rate, ours / calls that bind windows, 24 clients", "OneSidedMW 7.6×", "≥ 20×", self.rate()),
            ("memory node's core, for isolation", "FineMem 15 %", "0", self.isolation()),
            ("an old key works", "FineMem up to 100 ms", "0", self.old_key()),
            ("metadata, of memory lent", "FineMem 0.4 %", "≤ 0.25 %", self.metadata()),
            (
                "full when refused after churn: ours / FineMem's, worst size",
                "–",
                "≥ FineMem's",
                self.full_when_refused(),
            ),
            (
                "utilisation over time, traces, / static grants of 1 GiB",
                "FineMem 2.25–2.8×",
                "≥ 2.8×",
                self.against_static_grants(),
            ),
            ("utilisation over time, traces: ours / FineMem's", "–", "≥ FineMem's", self.in_traces()),
            ("… without what an old key still reaches: ours / FineMem's", "–", "≥ FineMem's", self.in_traces_guarded()),
            (
                "full when first refused, traces, tight pool: ours / FineMem's",
                "–",
                "≥ FineMem's",
                self.full_when_tight(),
            ),
            (
                "full while requests wait, traces, tight pool: ours / FineMem's",
                "–",
                "≥ FineMem's",
                self.full_while_wanted(),
            ),
            ("requests served, traces, tight pool: ours / FineMem's", "–", "≥ FineMem's", self.served_when_tight()),
            ("recovery of a dead owner's holdings, entries/s", "FineMem 1 M", "≥ 5 M", self.recovery()),
        ];
        let target = |(what, published, wanted, found): (_, _, _, Found)| {
            let (here, reached) = found.unzip();
            Target { what, published, wanted, here, reached }
        };
        all.map(target).into()
    }
}
