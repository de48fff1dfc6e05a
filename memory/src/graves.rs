//! A thread that cleans the slabs of large members that have ended.
//!
//! Cleaning takes milliseconds a slab, and the worker that heard of the end has other members to
//! serve. A member that needs memory meanwhile cleans a slab itself
//! ([`farmem_nic::lending::Lending::grant`]).

use crate::StartError;
use farmem_nic::Nic;
use std::sync::Arc;
use std::time::Duration;

/// How often the thread looks whether the node has ended. Slabs ring for it.
const LOOK: Duration = Duration::from_secs(60);

/// Begins the thread. It ends with the node.
pub fn begin(nic: &Arc<Nic>) -> Result<(), StartError> {
    let weak = Arc::downgrade(nic);
    let cleans = move || {
        while let Some(nic) = weak.upgrade() {
            let dug = nic.lending.dig();
            drop(nic);
            if !dug {
                // A ring that came meanwhile ends it at once.
                std::thread::park_timeout(LOOK);
            }
        }
    };
    let thread = std::thread::Builder::new().name("graves".into()).spawn(cleans).map_err(StartError::System)?;
    let thread = thread.thread().clone();
    nic.lending.ring_for_graves(move || thread.unpark());
    Ok(())
}
