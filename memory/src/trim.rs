//! Returns the allocator's free memory to the system after a table of the node has emptied.
//!
//! Strangers can fill the tables of connections, members and windows to their bounds. The entries lie
//! between others, so the allocator keeps their pages when they are freed: 4 MiB for 4 000 members, 54
//! KiB for each queue pair. An allocator may have a heap for each thread, so each worker asks it.

/// Entries that must have gone before the allocator is asked.
const MANY: usize = 512;

/// The most entries that the tables had since the allocator was last asked.
#[derive(Debug, Default)]
pub struct Trim {
    most: usize,
}

impl Trim {
    /// Looks at the number of entries, and returns memory if many have gone.
    pub fn look(&mut self, entries: usize) {
        if self.is_due(entries) {
            farmem_sys::allocator::return_free_memory();
        }
    }

    /// Notes that there are so many entries: they may be gone before the next look.
    pub fn note(&mut self, entries: usize) {
        self.most = self.most.max(entries);
    }

    /// Whether a later look may return something, though nothing else is to be done.
    pub fn is_waiting(&self) -> bool {
        self.most >= MANY
    }

    fn is_due(&mut self, entries: usize) -> bool {
        self.note(entries);
        let due = self.most - entries >= MANY && entries <= self.most / 2;
        if due {
            self.most = entries;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_once_when_most_entries_have_gone() {
        let mut trim = Trim::default();
        let seen = [0, 100, 4000, 3000, 2001, 2000, 1600, 1500, 1000, 999, 300];
        let due: Vec<usize> = seen.into_iter().filter(|&entries| trim.is_due(entries)).collect();
        assert_eq!(due, [2000, 1000, 300]);
        assert!(!trim.is_due(0) && !trim.is_due(500) && !trim.is_due(0));
        trim.note(MANY);
        assert!(trim.is_waiting() && trim.is_due(0) && !trim.is_waiting(), "they came and went between two looks");
    }
}
