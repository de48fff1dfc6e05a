//! A node and nothing else, for tests that kill and stop it: `node MIB ADDR...`.
//! Says its addresses on standard output, one a line.

use farmem_memory::{Config, Node};
use std::time::Duration;

fn main() {
    let mut args = std::env::args().skip(1);
    let lend = args.next().and_then(|mib| mib.parse::<u64>().ok()).expect("MiB to lend") << 20;
    let listen = args.map(|at| at.parse().expect("an address")).collect();
    let (metrics, status_dir) = (None, None);
    let grace = Duration::ZERO;
    let config = Config {
        lend,
        listen,
        metrics,
        grace,
        huge: false,
        embedded: false,
        rdma: farmem_memory::Rdma::Off,
        status_dir,
    };
    let node = Node::start(&config).unwrap_or_else(|e| panic!("{e}"));
    node.addresses().iter().for_each(|at| println!("{at}"));
    loop {
        std::thread::park();
    }
}
