//! `local-uses KIND N ROUNDS`: reads a byte, uses N local objects of 64 bytes by one scope, each of
//! them so many times, writes a byte, and so on.
//!
//! `tests/tests/instructions.rs` steps through what lies between such calls, one instruction at a
//! time.
//! valgrind cannot count here: it refuses the addresses that a heap reserves.

use std::hint::black_box;
use std::io::{Read, Write};

use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{Builder, FarBox, Heap, Result, Seat, SharedBox, Transport};
use farmem_protocol::addr::SLAB_BYTES;

/// 64 bytes.
type Object = [u64; 8];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let mut number = || arguments.next().and_then(|n| n.parse::<u64>().ok()).expect("local-uses KIND N ROUNDS");
    let (uses, rounds) = (number(), number());
    let objects = (0..uses).map(|n| [n; 8]);
    let sums = match kind.as_str() {
        "near" => {
            let boxes: Vec<Box<Object>> = objects.map(Box::new).collect();
            turns(|| near(&boxes, rounds))
        }
        "far" => {
            let (_node, builder) = node();
            let heap = builder.build().expect("the node answers");
            let boxes: Vec<FarBox<Object>> = objects.map(|one| heap.alloc(&one).expect("room")).collect();
            turns(|| far(&boxes, rounds, &heap).expect("they are local"))
        }
        "shared" => {
            let (_node, builder) = node();
            let heap = builder.build_shared().expect("the node answers");
            let seat: Seat = heap.seat().expect("a seat");
            let boxes: Vec<SharedBox<Object>> = objects.map(|one| seat.alloc(&one).expect("room")).collect();
            turns(|| shared(&boxes, rounds, &seat).expect("they are local"))
        }
        _ => panic!("no such kind: {kind}"),
    };
    assert!(sums.iter().all(|&sum| sum == rounds * (0..uses).sum::<u64>()));
}

/// A node in this process, and the settings of a heap there.
fn node() -> (Node, Builder) {
    let path = std::env::temp_dir().join(format!("farmem-local-uses-{}.sock", std::process::id()));
    let node = Node::start(&Config::new(SLAB_BYTES, vec![NodeAddr::Shm(path)])).expect("a node in this process");
    let builder = Heap::builder().node(node.addresses()[0].to_string()).transport(Transport::Shm);
    (node, builder)
}

/// One turn of `uses` for each byte that is read. Returns what they summed.
fn turns(mut uses: impl FnMut() -> u64) -> Vec<u64> {
    let (mut sums, mut input) = (Vec::with_capacity(16), std::io::stdin().lock());
    while input.read_exact(&mut [0]).is_ok() {
        sums.push(uses());
        std::io::stdout().write_all(b"\n").expect("the output is open");
    }
    sums
}

/// A word of each object.
#[inline(never)]
fn near(boxes: &[Box<Object>], rounds: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..rounds {
        for one in black_box(boxes) {
            sum = sum.wrapping_add(black_box(one)[3]);
        }
    }
    sum
}

/// The same of far objects.
#[inline(never)]
fn far(boxes: &[FarBox<Object>], rounds: u64, heap: &Heap) -> Result<u64> {
    let (scope, mut sum) = (heap.scope(), 0u64);
    for _ in 0..rounds {
        for one in black_box(boxes) {
            sum = sum.wrapping_add(black_box(one).get(&scope)?[3]);
        }
    }
    Ok(sum)
}

/// The same of objects that threads share.
#[inline(never)]
fn shared(boxes: &[SharedBox<Object>], rounds: u64, seat: &Seat) -> Result<u64> {
    let (scope, mut sum) = (seat.scope(), 0u64);
    for _ in 0..rounds {
        for one in black_box(boxes) {
            sum = sum.wrapping_add(black_box(one).get(&scope)?[3]);
        }
    }
    Ok(sum)
}
