//! A program that asks for far memory itself, in pieces.
//!
//! ```text
//! cargo build -p farmem-agent --example pieces
//! farmem run --local 64M --agent -- target/debug/examples/pieces
//! ```
//! The run starts this host's agent if need be, and tells the program its socket. An agent that
//! somebody else started (`farmem agent --node bighost:7411`) does as well: `FARMEM_AGENT` is what
//! it says it listens at.

use std::error::Error;
use std::time::Duration;

use farmem_agent::client::{Client, Options};

fn main() {
    if let Err(e) = work() {
        eprintln!("pieces: {e}");
        std::process::exit(1);
    }
}

fn work() -> Result<(), Box<dyn Error>> {
    let socket =
        std::env::var_os("FARMEM_AGENT").ok_or("FARMEM_AGENT names no agent: start me by farmem run --agent")?;
    let client = Client::connect(Options {
        socket: socket.into(),
        job: String::new(),
        patience: Duration::from_secs(5),
        start: None,
    })?;
    // Of 4 KiB << order, zero unless this program had it before.
    let pages: Vec<_> = (0..1000).map(|_| client.alloc(0)).collect::<Result<_, _>>()?;
    let block = client.alloc(9)?;

    // A thread's way to them, wherever they are: loads and stores if the node's memory is mapped,
    // else verbs over tcp.
    let mut reach = client.reach()?;
    for (n, page) in (0u64..).zip(&pages) {
        reach.write(page, 8 * (n % 512), &n.to_le_bytes())?;
        reach.faa(&block, 8 * n, n)?;
    }
    let mut sum = [0; 2];
    for (n, page) in (0u64..).zip(&pages) {
        let mut word = [0; 8];
        reach.read(page, 8 * (n % 512), &mut word)?;
        sum[0] += u64::from_le_bytes(word);
        sum[1] += reach.faa(&block, 8 * n, 0)?;
    }
    assert_eq!(sum, [499_500; 2]);
    let mapped = if block.address().is_some() { "mapped" } else { "elsewhere" };
    println!("{} pieces, {} KiB held, {mapped}: every word is as it was written", pages.len() + 1, client.held() >> 10);

    for piece in pages.into_iter().chain([block]) {
        client.free(piece);
    }
    Ok(())
}
