//! Places of a bounded table that are kept for addresses that have few of its places.
//!
//! Some addresses may take all other places. Then these are left for the rest. One peer may have many
//! addresses of a network, so each network has a part of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// One network has one part in `PARTS`.
const PARTS: usize = 16;

/// The kept places that are taken, by network.
#[derive(Default)]
pub(crate) struct Spare {
    all: usize,
    of: HashMap<IpAddr, usize>,
}

/// The network of an address: its first 24 bits, or 64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::from([v4.octets()[0], v4.octets()[1], v4.octets()[2], 0]),
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

impl Spare {
    /// Takes one of `most`. False: none is left for this address's network.
    pub(crate) fn take(&mut self, from: IpAddr, most: usize) -> bool {
        let of = self.of.get(&network(from)).copied().unwrap_or(0);
        let may = self.all < most && of < (most / PARTS).max(1);
        if may {
            self.all += 1;
            self.of.insert(network(from), of + 1);
        }
        may
    }

    /// Gives one back that this address took.
    pub(crate) fn give_back(&mut self, from: IpAddr) {
        self.all -= 1;
        match self.of.get_mut(&network(from)) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.of.remove(&network(from))),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_unused(&self) -> bool {
        self.all == 0 && self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_share_a_part() {
        let (mut spare, mut taken) = (Spare::default(), Vec::new());
        let address = |network: u64, host: u8| match network % 2 {
            0 => IpAddr::from([10, 0, network as u8, host]),
            _ => Ipv6Addr::from_bits(u128::from(network) << 64 | u128::from(host) << 40).into(),
        };
        for net in 0..40 {
            let of = (0..=255).map(|host| address(net, host)).take_while(|&from| spare.take(from, 64));
            let before = taken.len();
            taken.extend(of);
            assert_eq!(taken.len() - before, if net < 16 { 4 } else { 0 }, "{net}");
        }
        taken.into_iter().for_each(|from| spare.give_back(from));
        assert!(spare.is_unused());
    }
}
