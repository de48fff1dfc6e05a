//! Many reads under way at once, over several nodes: `pipeline NODE...`.

use farmem::Memory;
use std::time::{Duration, Instant};

const PIECES: u64 = 256;
const AT_ONCE: usize = 32;

fn main() {
    if let Err(e) = pipeline(std::env::args().skip(1).collect()) {
        eprintln!("pipeline: {e}");
        std::process::exit(1);
    }
}

fn pipeline(nodes: Vec<String>) -> farmem::Result<()> {
    let memory = nodes.into_iter().fold(Memory::builder(), farmem::Builder::node).connect()?;
    let pieces = (0..PIECES).map(|_| memory.alloc(4096)).collect::<farmem::Result<Vec<_>>>()?;
    let mut lane = memory.lane()?;

    // All writes in one batch: one round trip to each node.
    let texts: Vec<[u8; 8]> = (0..PIECES).map(u64::to_le_bytes).collect();
    let mut batch = lane.batch();
    for (&piece, text) in pieces.iter().zip(&texts) {
        batch.write(piece, text);
    }
    batch.run().into_iter().try_for_each(|written| written.map(drop))?;

    let begun = Instant::now();
    let (mut sum, mut done, mut left) = (0, Vec::new(), pieces.iter().zip(0..));
    loop {
        while lane.in_flight() < AT_ONCE
            && let Some((&piece, tag)) = left.next()
        {
            lane.post_read(tag, piece, vec![0; 8]);
        }
        if lane.in_flight() == 0 {
            break;
        }
        lane.wait(&mut done, Duration::from_secs(1));
        for read in done.drain(..) {
            read.result?;
            sum += read.buffer.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        }
    }
    assert_eq!(sum, PIECES * (PIECES - 1) / 2);
    println!("{PIECES} reads from {} nodes in {:?}", memory.nodes(), begun.elapsed());
    Ok(())
}
