//! The nodes that a drive has connected to by one memory.

use farmem::{Error, Lane, Memory};

/// Bytes of WRITEs that are sent before more is prepared.
const SENT: usize = 256 << 10;

/// Nodes that were connected to together.
#[derive(Debug)]
pub(super) struct Side {
    pub memory: Memory,
    pub lane: Lane,
    /// Bytes of WRITEs that were posted and not sent.
    unsent: usize,
}

impl Side {
    pub fn new(memory: Memory) -> Result<Side, Error> {
        Ok(Side { lane: memory.lane()?, memory, unsent: 0 })
    }

    /// Sends what was posted.
    pub fn ring(&mut self) {
        self.unsent = 0;
        self.lane.ring();
    }

    /// A WRITE of so many bytes was posted. When they are many they are sent, so that the node has work while
    /// more is prepared.
    pub fn posted(&mut self, bytes: usize) {
        self.unsent += bytes;
        if self.unsent >= SENT {
            self.ring();
        }
    }
}
