//! The one hook of the NIC: a service of the node's own, which members ask by SEND.
//!
//! A node serves nothing by itself, and refuses every SEND. `lab/offload` serves chunks with
//! windows that the NIC binds.

use super::epochs::Section;
use super::windows::Windows;
use farmem_protocol::wire::{REPLY_BYTES, Status};

/// Answers SENDs to the node's own queues.
pub trait Service: Send + Sync {
    /// A SEND of a member, by its serial number, through one of its queue pairs, to the queue of
    /// this number. Returns the answer.
    ///
    /// The caller is in `section`. A service that waits renews it: in a section nobody is waited
    /// for that may wait for its end.
    ///
    /// # Errors
    /// The completion's status.
    fn send(
        &self,
        from: (u64, u64),
        number: u32,
        said: &[u8],
        windows: &Windows,
        section: &mut Section<'_>,
    ) -> Result<[u8; REPLY_BYTES as usize], Status>;

    /// A member is gone. `drain` waits until every transfer that is under way has ended.
    fn departed(&self, member: u64, windows: &Windows, drain: &mut dyn FnMut());

    /// Does a piece of what the service does by itself.
    fn keep(&self, windows: &Windows);
}
