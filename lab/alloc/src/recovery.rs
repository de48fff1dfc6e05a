//! How fast a dead owner's holdings go back: the production code's `Recover`, measured on this machine.
//!
//! A node of 100 GiB, a sixteenth of whose blocks name the dead owner, a part of them published. The node's own
//! process looks through the words: nothing else records what a host held. (FineMem's rate is that of the windows that
//! its node makes anew for each entry. Draining and zeroing come after this here, and are no part of it there.)

use std::time::Instant;

use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::recover::Recover;
use farmem_protocol::extent::{Actor, Claimant, Generation, Geometry, Level, Owner, Place, State, Table, Word};
use serde::Serialize;

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// Units that named the dead owner.
    pub entries: u64,
    /// Words looked at.
    pub scanned: u64,
    /// Real time, ns: the middle of several.
    pub time: f64,
}

impl Recovery {
    /// Entries a second.
    pub fn rate(&self) -> f64 {
        self.entries as f64 / (self.time / 1e9)
    }
}

/// Measures it on a node of so many GiB, with one of `published` blocks of the dead owner's published.
///
/// # Panics
/// If the recovery leaves anything that names the dead owner, or takes what is another's.
pub fn measure(gib: u64, published: u32) -> Recovery {
    let geometry = Geometry::new(gib << 30).expect("less than 4 TiB");
    let (dead, other) = (Owner::new(1), Owner::new(2));
    let mut image = Table::new(geometry, 0);
    let owned = |owner| Word::new(State::Owned, owner, 0, Claimant::new(1), Generation(2));
    let (mut entries, mut others) = (0u64, 0u64);
    for block in 0..geometry.count(Level::Block) {
        let place = Place::block(block);
        match block % 16 {
            0 if (block / 16) % published == 0 => {
                for (nth, chunk) in geometry.chunks(place).enumerate() {
                    let owner = if nth % 2 == 0 { dead } else { other };
                    image.put(Target::Word(Place::chunk(chunk)), owned(owner).0);
                    entries += u64::from(owner == dead);
                    others += u64::from(owner == other);
                }
                image.put(Target::Word(place), Word::plain(State::Shared, Generation(3)).0);
            }
            0 => {
                image.set(place, owned(dead));
                entries += 1;
            }
            _ => {
                image.set(place, owned(other));
                others += 1;
            }
        }
    }
    let mut times = Vec::new();
    let mut scanned = 0;
    for _ in 0..5 {
        let mut table = image.clone();
        let mut recover = Recover::new(Actor::NODE, geometry, dead);
        let begun = Instant::now();
        let recovered = table.run(&mut recover).expect("nobody fences the node");
        times.push(begun.elapsed().as_nanos() as f64);
        scanned = recovered.scanned;
        assert_eq!(recovered.quarantined.len() as u64, entries, "what named the dead owner, and nothing else");
    }
    assert!(others > 0);
    times.sort_by(f64::total_cmp);
    Recovery { entries, scanned, time: times[times.len() / 2] }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_named_the_dead_owner_is_found_and_nothing_else() {
        let measured = super::measure(1, 4);
        assert_eq!(measured.entries, 8 * 256 + 24);
        assert!(measured.rate() > 0.0);
    }
}
