//! How many lines nodes may make a controller write. Pure: time is an argument.
//!
//! ```text
//!  line ─► has its source one left? ─► has the controller one left? ─yes─► written
//!              └─no──────────────────────────└─no─► counted ─► "312 more like these from 10.0.0.9 in 5 s"
//! ```
//!
//! A *source* is the address that a node's beats come from: without tokens a stranger says any name. Each
//! has [`OF_ONE`] lines at once and one more a second; all together have [`OF_ALL`], and [`A_SECOND`] more
//! a second. Lines of the controller itself are always written, and are few.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Lines that one source may have at once: a node on each of a machine's ports may join.
const OF_ONE: u32 = 100;
/// Lines that all sources may have at once: a large rack may start.
const OF_ALL: u32 = 1000;
/// Lines that all sources together gain a second.
const A_SECOND: u32 = 10;
/// Sources that are counted by themselves. Others are counted as one.
const SOURCES: usize = 1024;
/// How often counts are told, and how many sources are named then.
const COUNTS_EVERY: Duration = Duration::from_secs(5);
const NAMED: usize = 3;

/// The part of an address that a stranger cannot choose freely. `None`: of sources without a place.
type Source = Option<IpAddr>;

/// The lines that are left, and those that were not written since counts were told.
struct Left {
    lines: u32,
    since: Instant,
    untold: u64,
}

impl Left {
    fn new(lines: u32, now: Instant) -> Left {
        Left { lines, since: now, untold: 0 }
    }

    fn grow(&mut self, now: Instant, a_second: u32, most: u32) {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        if seconds > 0 {
            self.lines = most.min(self.lines.saturating_add(a_second.saturating_mul(seconds.min(3600) as u32)));
            self.since = now;
        }
    }
}

/// See the module.
pub struct Log {
    all: Left,
    by: BTreeMap<Source, Left>,
    told: Instant,
}

impl Log {
    /// One that has written nothing.
    pub fn new(now: Instant) -> Log {
        Log { all: Left::new(OF_ALL, now), by: BTreeMap::new(), told: now }
    }

    /// Whether a line of this source is to be written; if not, it is counted.
    pub fn may(&mut self, of: IpAddr, now: Instant) -> bool {
        let mut of = Some(network(of));
        if self.by.len() >= SOURCES && !self.by.contains_key(&of) {
            // A source that has all its lines is as one that is new.
            self.by.values_mut().for_each(|left| left.grow(now, 1, OF_ONE));
            self.by.retain(|_, left| left.lines < OF_ONE || left.untold > 0);
            of = of.filter(|_| self.by.len() < SOURCES);
        }
        let own = self.by.entry(of).or_insert_with(|| Left::new(OF_ONE, now));
        own.grow(now, 1, OF_ONE);
        self.all.grow(now, A_SECOND, OF_ALL);
        let may = own.lines > 0 && self.all.lines > 0;
        own.lines -= u32::from(may);
        self.all.lines -= u32::from(may);
        own.untold += u64::from(!may);
        may
    }

    /// The line that tells of those that were not written, if it is due.
    pub fn counts(&mut self, now: Instant) -> Option<String> {
        let since = now.saturating_duration_since(self.told);
        if since < COUNTS_EVERY {
            return None;
        }
        self.told = now;
        let untold = self.by.iter_mut().map(|(of, left)| (std::mem::take(&mut left.untold), *of));
        let mut untold: Vec<(u64, Source)> = untold.filter(|(count, _)| *count > 0).collect();
        untold.sort_unstable_by(|one, other| other.cmp(one));
        let (named, others) = untold.split_at(untold.len().min(NAMED));
        let name = |(count, of): &(u64, Source)| match of {
            Some(of) => format!("{count} more like these of nodes at {of}"),
            None => format!("{count} more of nodes elsewhere"),
        };
        let mut said: Vec<String> = named.iter().map(name).collect();
        if !others.is_empty() {
            let count: u64 = others.iter().map(|(count, _)| count).sum();
            said.push(format!("{count} of nodes at {} other addresses", others.len()));
        }
        (!said.is_empty()).then(|| format!("{} in {} s: the page shows how all are", said.join(", "), since.as_secs()))
    }
}

/// Hosts of an IPv6 network of 64 bits choose the other half of their addresses themselves.
fn network(of: IpAddr) -> IpAddr {
    match of.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + n).to_be_bytes())
    }

    fn written(log: &mut Log, of: impl Fn(u32) -> IpAddr, lines: u32, now: Instant) -> u32 {
        (0..lines).filter(|n| log.may(of(*n), now)).count() as u32
    }

    #[test]
    fn a_flood_of_one_address_is_a_count_and_hides_no_other() {
        let begun = Instant::now();
        let mut log = Log::new(begun);
        let host = |n: u32| IpAddr::from([0xfd00, 0, 0, 0, 1, 2, 3, n as u16]);
        assert_eq!(written(&mut log, host, 10_000, begun), OF_ONE);
        assert!(log.may(at(2), begun));
        assert_eq!(log.counts(begun + COUNTS_EVERY / 2), None);
        let later = begun + COUNTS_EVERY;
        let said = log.counts(later).unwrap();
        assert_eq!(said, "9900 more like these of nodes at fd00:: in 5 s: the page shows how all are");
        // One line a second is added, to no more than there were.
        assert_eq!(written(&mut log, host, 10_000, later), 5);
        assert_eq!(written(&mut log, host, 10_000, later + Duration::from_secs(3600)), OF_ONE);
    }

    #[test]
    fn a_flood_of_all_addresses_ends() {
        let begun = Instant::now();
        let mut log = Log::new(begun);
        assert_eq!(written(&mut log, at, 100_000, begun), OF_ALL);
        assert!(log.by.len() <= SOURCES + 1);
        let later = begun + COUNTS_EVERY;
        assert!(log.counts(later).unwrap().contains(" other addresses in 5 s"));
        assert_eq!(log.counts(later + COUNTS_EVERY), None);
        assert_eq!(written(&mut log, at, 100_000, later), 5 * A_SECOND);
    }
}
