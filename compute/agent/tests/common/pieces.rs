//! Pieces that a program reads and writes by verbs.

use farmem_agent::client::{Chunk, Client, Reach};

/// A piece with a stamp in the first and last word of it.
pub fn stamped(client: &Client, reach: &mut Reach<'_>, order: u8, stamp: u64) -> Chunk {
    let chunk = client.alloc(order).unwrap();
    for at in [0, chunk.bytes() - 8] {
        reach.write(&chunk, at, &(stamp ^ at).to_le_bytes()).unwrap();
    }
    chunk
}

/// Compares the two words with what [`stamped`] wrote.
pub fn checked(reach: &mut Reach<'_>, chunk: &Chunk, stamp: u64) {
    for at in [0, chunk.bytes() - 8] {
        let mut word = [0; 8];
        reach.read(chunk, at, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), stamp ^ at);
    }
}
