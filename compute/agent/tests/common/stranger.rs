//! Who reaches a node's memory by verbs of his own, and not through an agent.

use super::{Host, LIMIT};
use farmem_fabric::{ConnectOptions, QueuePair, Refusal, Session, Transport};
use farmem_protocol::key::Key;
use farmem_protocol::wire::Figure;
use std::time::Duration;

/// Somebody who has joined the node without an agent.
pub struct Stranger(pub Session, pub QueuePair);

impl Stranger {
    pub fn new(host: &Host) -> Stranger {
        let options = ConnectOptions {
            timeout: LIMIT,
            grace: LIMIT,
            run: [9; 16],
            pid: 1,
            transport: Transport::Tcp,
            ..ConnectOptions::default()
        };
        let session = Session::connect(&host.node.addresses()[1], &options).unwrap();
        let queue = session.queue_pair().unwrap();
        Stranger(session, queue)
    }

    pub fn figure(&self, figure: Figure) -> u64 {
        self.0.records().figure(figure).unwrap()
    }

    pub fn put(&mut self, (key, offset): (Key, u64), bytes: &[u8]) -> Result<u64, Refusal> {
        put(&mut self.1, (key, offset), bytes)
    }
}

#[allow(unsafe_code)]
pub fn put(queue: &mut QueuePair, (key, offset): (Key, u64), bytes: &[u8]) -> Result<u64, Refusal> {
    // SAFETY: the bytes outlive the verb, which is awaited below.
    unsafe { queue.write(1, key, offset, bytes.as_ptr(), bytes.len() as u32) };
    finish(queue)
}

pub fn finish(queue: &mut QueuePair) -> Result<u64, Refusal> {
    queue.doorbell().unwrap();
    let mut done = Vec::new();
    while done.is_empty() {
        queue.wait(&mut done, Duration::from_secs(1)).unwrap();
    }
    done[0].result
}
