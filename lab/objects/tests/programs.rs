//! Every program reads the same values near, over shared memory and over TCP.

use clap::Parser;
use farmem_fabric::NodeAddr;
use farmem_lab_objects::child::{self, Found, Work};
use farmem_memory::{Config, Node};

#[derive(Parser)]
struct Child {
    #[command(flatten)]
    options: child::Options,
}

/// All programs.
const WORK: &str = "deref,random,together,writes,scan,map,frame,web,pair,compress,graph,collect,filter,gather";

fn found(place: &str, node: &str) -> Vec<Found> {
    let arguments = ["child", "--place", place, "--node", node, "--local", "524288", "--objects", "32768"];
    let more = ["--accesses", "2000", "--seed", "7", "--work", WORK];
    child::found(&Child::parse_from(arguments.into_iter().chain(more)).options).unwrap()
}

#[test]
fn programs_read_the_same_everywhere() {
    let socket = std::env::temp_dir().join(format!("farmem-lab-objects-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    let node = Node::start(&Config::new(256 << 20, listen)).unwrap();
    let [tcp, shm] = [0, 1].map(|n| node.addresses()[n].to_string());
    let near = found("near", &tcp);
    // Objects of these are local, or are not fetched.
    let stay = [Work::Deref, Work::Collect, Work::Filter, Work::Gather];
    for (place, node) in [("shm", shm), ("tcp", tcp)] {
        let far = found(place, &node);
        for (near, far) in near.iter().zip(&far) {
            assert_eq!((near.work, near.sum), (far.work, far.sum), "{place}");
            assert!(far.ns > 0.0 && (far.fetched > 0 || stay.contains(&far.work)), "{place}: {far:?}");
        }
        assert_eq!(far.len(), Work::ALL.len());
    }
}
