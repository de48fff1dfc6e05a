//! Tables that strangers can fill, and the share of each that one peer may take.
//!
//! A node cannot tell a stranger from a user before it has given him a connection and a member's
//! place. So each table is bounded, and no peer gets more of it than it leaves to the others:
//!
//! ```text
//!  first peer    ████████████████                    half of the table
//!  second peer                   ████████            half of what the first has left
//!  third peer                            ████        and so on
//! ```
//! A peer with a 64th of the table or less is refused only when nothing is left. So a peer that
//! fills its share does not keep small users from starting one program after the other.
//!
//! A [`Place`] is one entry of a table. Dropping it gives the entry back.
//!
//! A node that several tenants use shares its tables among the tenants ([`By`]). A tenant that comes
//! from many addresses, or from the address of another, keeps no other out.

use farmem_protocol::fairness::is_fair;
use farmem_sys::sync::Lock;
use farmem_trust::Tenant;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// Whose an entry of a table is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum By {
    /// A tenant's, wherever it comes from.
    Tenant(Tenant),
    /// A peer's, of a node that has no tenants or one.
    Peer(Peer),
}

/// Where a connection comes from: the part of its address that a stranger cannot choose freely.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Peer {
    /// Not known. All of these are one peer.
    #[default]
    Unknown,
    /// A user of this machine, through a Unix socket.
    User(u32),
    /// This machine, over loopback, whose addresses anybody here may use.
    Loopback,
    /// An IPv4 address.
    V4([u8; 4]),
    /// An IPv6 network of 64 bits: its hosts choose the other half of their addresses themselves.
    V6([u8; 8]),
}

impl From<IpAddr> for Peer {
    fn from(at: IpAddr) -> Peer {
        match at.to_canonical() {
            at if at.is_loopback() => Peer::Loopback,
            IpAddr::V4(v4) => Peer::V4(v4.octets()),
            IpAddr::V6(v6) => Peer::V6(std::array::from_fn(|i| v6.octets()[i])),
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Unknown => f.write_str("somewhere"),
            Peer::User(uid) => write!(f, "user {uid} of this machine"),
            Peer::Loopback => f.write_str("this machine"),
            Peer::V4(octets) => Ipv4Addr::from(*octets).fmt(f),
            Peer::V6(half) => {
                let segment = |i: usize| u16::from_be_bytes([half[2 * i], half[2 * i + 1]]);
                write!(f, "{:x}:{:x}:{:x}:{:x}::/64", segment(0), segment(1), segment(2), segment(3))
            }
        }
    }
}

/// A bounded table, by what each peer has of it, or each of something else.
#[derive(Debug)]
pub struct Table<P: Ord = By> {
    most: usize,
    taken: Lock<Taken<P>>,
}

#[derive(Debug)]
struct Taken<P> {
    all: usize,
    by: BTreeMap<P, usize>,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Full {
    /// The peer would have more than it leaves to the others.
    Share,
    /// There is none.
    All,
}

/// One entry of a table. Dropping it gives the entry back.
#[derive(Debug)]
pub struct Place<P: Ord = By> {
    table: Arc<Table<P>>,
    peer: P,
}

impl<P: Ord + Copy> Table<P> {
    /// A table of `most` places.
    pub fn new(most: usize) -> Arc<Table<P>> {
        Arc::new(Table { most, taken: Lock::new(Taken { all: 0, by: BTreeMap::new() }) })
    }

    /// Places taken.
    pub fn taken(&self) -> usize {
        self.taken.lock().all
    }

    /// Places in all.
    pub fn most(&self) -> usize {
        self.most
    }

    /// A place for `peer`, which has then no more than are left, or little.
    pub fn take(self: &Arc<Self>, peer: P) -> Result<Place<P>, Full> {
        let mut taken = self.taken.lock();
        if taken.all >= self.most {
            return Err(Full::All);
        }
        let left = self.most - taken.all - 1;
        let has = taken.by.get(&peer).copied().unwrap_or(0) + 1;
        if !is_fair(has, left, self.most) {
            return Err(Full::Share);
        }
        taken.by.insert(peer, has);
        taken.all += 1;
        Ok(Place { table: Arc::clone(self), peer })
    }
}

impl<P: Ord + Copy> Place<P> {
    /// Whose it is.
    pub fn by(&self) -> P {
        self.peer
    }
}

impl<P: Ord> Drop for Place<P> {
    fn drop(&mut self) {
        let mut taken = self.table.taken.lock();
        taken.all -= 1;
        if let Some(has) = taken.by.get_mut(&self.peer) {
            *has -= 1;
            if *has == 0 {
                taken.by.remove(&self.peer);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn peer(n: u8) -> Peer {
        Peer::V4([10, 0, 0, n])
    }

    fn fill(table: &Arc<Table<Peer>>, peer: Peer) -> Vec<Place<Peer>> {
        std::iter::from_fn(|| table.take(peer).ok()).collect()
    }

    #[test]
    fn a_peer_leaves_as_much_as_it_takes() {
        let table = Table::new(16);
        let first = fill(&table, peer(1));
        let second = fill(&table, peer(2));
        assert_eq!((first.len(), second.len(), table.take(peer(1)).err()), (8, 4, Some(Full::Share)));
        // The last places go one by one to peers that have none.
        let others: Vec<Vec<Place<Peer>>> = (3..20).map(|n| fill(&table, peer(n))).collect();
        assert_eq!(others.iter().map(Vec::len).take(5).collect::<Vec<_>>(), [2, 1, 1, 0, 0]);
        assert_eq!((table.taken(), table.take(peer(30)).err()), (16, Some(Full::All)));
        drop(second);
        assert_eq!(fill(&table, peer(31)).len(), 2);
        drop((first, others));
        assert_eq!((table.taken(), table.taken.lock().by.len()), (0, 0));
    }

    #[test]
    fn a_peer_that_has_little_is_not_kept_out_by_others() {
        let table = Table::new(640);
        let small: Vec<Place<Peer>> = (0..8).map(|_| table.take(peer(1)).unwrap()).collect();
        let greedy: Vec<Vec<Place<Peer>>> = (2..6).map(|n| fill(&table, peer(n))).collect();
        let left = 640 - table.taken();
        assert!(left < 50 && greedy[3].len() < 50, "{left}");
        let more = [table.take(peer(1)), table.take(peer(1))];
        assert!(more.iter().all(Result::is_ok));
        assert_eq!(table.take(peer(2)).err(), Some(Full::Share));
        drop(small);
    }

    #[test]
    fn what_a_stranger_chooses_makes_no_other_peer() {
        let of = |text: &str| Peer::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("127.0.0.1"), of("127.9.8.7"));
        assert_eq!(of("::1"), of("127.0.0.1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
    }
}
