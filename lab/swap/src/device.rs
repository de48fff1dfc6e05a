//! A swap device as the kernel allocates on it, with discards on.
//!
//! Slots are in clusters of 512. A page gets the next slot of the current cluster, then of a cluster that is wholly free,
//! and of a partly used one only when none is free. A cluster whose last slot is freed is trimmed. (Linux 6.12 always
//! allocates like this, Linux 7.3 while discards are on.)

use std::collections::VecDeque;

/// Slots of a cluster.
pub const CLUSTER: u32 = 512;

/// The device.
pub struct Device {
    taken: Vec<bool>,
    live: Vec<u16>,
    free: VecDeque<u32>,
    /// The next slot to be looked at, in a cluster that is being filled.
    next: Option<u32>,
}

impl Device {
    /// An empty one of so many clusters.
    pub fn new(clusters: u32) -> Device {
        let slots = (clusters * CLUSTER) as usize;
        Device {
            taken: vec![false; slots],
            live: vec![0; clusters as usize],
            free: (0..clusters).collect(),
            next: None,
        }
    }

    /// A slot for a page; `None` when the device is full.
    pub fn take(&mut self) -> Option<u32> {
        let slot = match self.next.and_then(|next| self.from(next)) {
            Some(slot) => slot,
            None => match self.free.pop_front() {
                Some(cluster) => cluster * CLUSTER,
                None => {
                    let partly = self.live.iter().position(|&live| u32::from(live) < CLUSTER)?;
                    self.from(partly as u32 * CLUSTER)?
                }
            },
        };
        self.taken[slot as usize] = true;
        self.live[(slot / CLUSTER) as usize] += 1;
        self.next = Some(slot + 1).filter(|next| !next.is_multiple_of(CLUSTER));
        Some(slot)
    }

    /// The first free slot from this one on, in its cluster.
    fn from(&self, slot: u32) -> Option<u32> {
        let end = (slot / CLUSTER + 1) * CLUSTER;
        (slot..end).find(|&slot| !self.taken[slot as usize])
    }

    /// Frees a slot. The cluster, if it is trimmed.
    pub fn free(&mut self, slot: u32) -> Option<u32> {
        let cluster = slot / CLUSTER;
        self.taken[slot as usize] = false;
        self.live[cluster as usize] -= 1;
        if self.live[cluster as usize] > 0 {
            return None;
        }
        if self.next.is_some_and(|next| next / CLUSTER == cluster) {
            self.next = None;
        }
        self.free.push_back(cluster);
        Some(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_clusters_come_before_partly_used_ones() {
        let mut device = Device::new(3);
        let first: Vec<u32> = (0..600).map(|_| device.take().unwrap()).collect();
        assert!(first.iter().copied().eq(0..600));
        assert_eq!(device.free(5), None);
        assert!((600..1024).all(|slot| device.take() == Some(slot)));
        assert_eq!(device.take(), Some(1024), "the third cluster, not the hole in the first");
        assert!((1025..1536).all(|slot| device.take() == Some(slot)));
        assert_eq!((device.take(), device.take()), (Some(5), None));
        assert_eq!((512..1023).find_map(|slot| device.free(slot)), None);
        assert_eq!((device.free(1023), device.take()), (Some(1), Some(512)));
    }
}
