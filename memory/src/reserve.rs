//! The memory that a node leaves to its machine (`--reserve`): it lends less while other programs
//! need memory.
//!
//! ```text
//!  available = what the machine, or the node's memory group, has left now
//!  promised  = lent, but not touched yet: it will be taken from what is available
//!  most      = lent + (available - promised - reserve), whole slabs, between 0 and --lend
//! ```
//!
//! A slab that is lent stays lent until its holder gives it back, because the holder's bytes are in
//! it. Members that have joined by the network ask how many slabs they should give back. Slabs that
//! come back are not lent again before the machine has its reserve. A controller learns the smaller
//! limit from the node's beats, and gives runs other nodes. What members have that do not answer can
//! go to a disk (`spill`): it is lent, and takes no memory.

use crate::status::available_ram;
use farmem_nic::Nic;
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::units::bytes;
use farmem_sys::group::Groups;
use farmem_sys::raw::now_ns;

/// Looks once a second, and says when it begins to hold memory back, and when it ends.
pub struct Reserve {
    bytes: u64,
    holds_back: bool,
}

impl Reserve {
    /// Leaves this much to the machine.
    pub fn new(bytes: u64) -> Reserve {
        Reserve { bytes, holds_back: false }
    }

    /// Sets what the node lends now. A line where that has changed in kind.
    pub fn look(&mut self, nic: &Nic) -> Option<String> {
        let lending = &nic.lending;
        nic.look_at_owners(now_ns());
        // A system that does not say what it has is not judged.
        let available = available()?;
        let units = &nic.units.words;
        let (slabs, units) = (lending.lent_here(), units.held());
        let most = most(lending.limit(), slabs, (slabs + units, nic.in_use()), available, self.bytes);
        lending.set_most(most);
        let holds_back = most < lending.limit();
        if std::mem::replace(&mut self.holds_back, holds_back) == holds_back {
            return None;
        }
        let reserve = bytes(self.bytes);
        Some(match holds_back {
            true => format!(
                "{} is available here, and {reserve} is reserved for this machine: the node lends {} of {} until there is more",
                bytes(available),
                bytes(most),
                bytes(lending.limit())
            ),
            false => format!("the node lends all of its {} again", bytes(lending.limit())),
        })
    }
}

/// What the machine, or the node's memory group, has left now.
pub fn available() -> Option<u64> {
    let left = Groups::own().and_then(|groups| groups.limit()).map(|limit| limit.left);
    left.into_iter().chain(available_ram()).min()
}

/// The memory that a node with a limit of `limit` bytes lends as slabs now, in whole ones. `slabs`
/// bytes are lent so. All that is lent, units too, is `lent`, of which `used` is taken from the
/// system.
fn most(limit: u64, slabs: u64, (lent, used): (u64, u64), available: u64, reserve: u64) -> u64 {
    let promised = lent.saturating_sub(used);
    let most = (slabs + available).saturating_sub(promised).saturating_sub(reserve);
    (most / SLAB_BYTES * SLAB_BYTES).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_machine_keeps_its_reserve() {
        assert_eq!(most(8 * GIB, 0, (0, 0), 16 * GIB, 4 * GIB), 8 * GIB, "there is enough of all");
        assert_eq!(most(8 * GIB, 0, (0, 0), 6 * GIB, 4 * GIB), 2 * GIB);
        assert_eq!(
            most(8 * GIB, 3 * GIB, (3 * GIB, 3 * GIB), 5 * GIB, 4 * GIB),
            4 * GIB,
            "what is lent is not available"
        );
        assert_eq!(
            most(8 * GIB, 3 * GIB, (3 * GIB, GIB), 5 * GIB, 4 * GIB),
            2 * GIB,
            "what is promised is as good as taken"
        );
        assert_eq!(
            most(8 * GIB, 3 * GIB, (3 * GIB, 3 * GIB), GIB, 4 * GIB),
            0,
            "nothing that comes back is lent again"
        );
        assert_eq!(most(8 * GIB, 0, (0, 0), 5 * GIB + 1, 4 * GIB), GIB, "whole slabs");
    }

    #[test]
    fn units_are_lent_too() {
        let (lent, half) = (16 * GIB, 8 * GIB);
        assert_eq!(most(lent, 0, (half, half), 6 * GIB, 4 * GIB), 2 * GIB, "they take nothing from what is left");
        assert_eq!(most(lent, 0, (half, 4 * GIB), 10 * GIB, 4 * GIB), 2 * GIB, "what they are promised is taken");
        assert_eq!(most(lent, half, (lent, half), 6 * GIB, 4 * GIB), 2 * GIB, "slabs that nobody has touched are not");
    }
}
