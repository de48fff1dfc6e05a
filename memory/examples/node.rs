//! A node and nothing else, for tests that kill and stop it: `node MIB ADDR...`.
//! Says its addresses on standard output, one a line.

use farmem_memory::{Config, Node};

fn main() {
    let mut args = std::env::args().skip(1);
    let lend = args.next().and_then(|mib| mib.parse::<u64>().ok()).expect("MiB to lend") << 20;
    let listen = args.map(|at| at.parse().expect("an address")).collect();
    let config = Config::new(lend, listen);
    let node = Node::start(&config).unwrap_or_else(|e| panic!("{e}"));
    node.addresses().iter().for_each(|at| println!("{at}"));
    loop {
        std::thread::park();
    }
}
