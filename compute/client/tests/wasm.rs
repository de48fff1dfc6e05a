//! Functions of the program's own, near memory: at a node that computes, at one that does not, and in
//! mapped memory, all alike. `.ci/long wasm` runs these, as builds usually have no such functions.

#![cfg(feature = "wasm")]

mod common;
#[path = "../../../protocol/src/near/wasm/interpreted/modules.rs"]
mod modules;

use common::SLAB;
use farmem::{Error, Memory, Transport};
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use std::sync::atomic::Ordering;

fn node(compute: usize) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute, ..Config::new(4 * SLAB, listen) }).unwrap()
}

fn memory(node: &Node) -> Memory {
    common::builder(&[node], Transport::Tcp).connect().unwrap()
}

fn calls(node: &Node) -> u64 {
    node.nic().computed.calls.load(Ordering::Relaxed)
}

#[test]
fn a_module_does_the_same_everywhere() {
    let (computes, refuses, mapped) = (node(2), node(0), common::node(4));
    let memories =
        [memory(&computes), memory(&refuses), common::builder(&[&mapped], Transport::Shm).connect().unwrap()];
    // What was read of the node that computes, when it had run all but the largest call.
    let read = std::cell::OnceCell::new();
    let all = memories.each_ref().map(|memory| {
        let mut lane = memory.lane().unwrap();
        let piece = lane.alloc(2 << 20).unwrap();
        let words: Vec<u8> = (0..1u64 << 18).flat_map(|n| (n * n).to_le_bytes()).collect();
        lane.write(piece, &words).unwrap();
        let sum = modules::sum();
        // As often as a call may be late on a slow machine.
        let mut told: Vec<(u64, Vec<u8>)> = Vec::new();
        for n in 0..60u64 {
            told.push(lane.near().wasm(&sum, (piece + n * 8192, 4096), 16, n).unwrap());
        }
        told.push(lane.near().wasm(&sum, (piece + 8, 8), 0, 1).unwrap());
        read.get_or_init(|| computes.nic().tally.read_bytes.load(Ordering::Relaxed));
        let whole = lane.near().wasm(&sum, (piece, 255 << 10), 8, 0).unwrap();
        assert_eq!(whole.0, (0..255u64 << 7).map(|n| n * n).fold(0, u64::wrapping_add));
        told
    });
    assert!(all[0] == all[1] && all[1] == all[2]);
    let sum: u64 = (0..512u64).map(|n| n * n).sum();
    assert_eq!(all[0][0], (sum, [&sum.to_le_bytes()[..], &[0; 8]].concat()));
    assert_eq!(all[0][60], (2, vec![]));
    assert!(*read.get().unwrap() < 30 << 12, "the bytes of most calls stayed at the node: {read:?}");
    assert!(calls(&computes) >= 62 && calls(&refuses) == 0 && calls(&mapped) == 0);
}

#[test]
fn what_is_no_function_is_an_error_and_the_node_goes_on() {
    let node = node(1);
    let (one, other) = (memory(&node), memory(&node));
    let (mut lane, mut theirs) = (one.lane().unwrap(), other.lane().unwrap());
    let piece = lane.alloc(1 << 20).unwrap();
    for module in [modules::endless(), modules::module(1, true, &[0x42, 0]), b"(module) (not)".to_vec()] {
        let said = lane.near().wasm(&module, (piece, 64), 8, 0);
        assert!(matches!(said, Err(Error::Module(_))), "{said:?}");
    }
    // One that never ends was given up at its deadline: a tenth of a second is a hundred of those.
    assert!(node.nic().computed.ns.load(Ordering::Relaxed) < 3_000_000_000);
    let sum = modules::sum();
    assert!(matches!(lane.near().wasm(&sum, (piece, 256 << 10), 8, 0), Err(Error::Size(_))));
    assert!(matches!(lane.near().wasm(&[0; 9 << 10], (piece, 64), 8, 0), Err(Error::Size(_))));
    // Another member has no right to the range.
    assert!(theirs.near().wasm(&sum, (piece, 64), 8, 0).is_err());
    assert_eq!(lane.near().wasm(&sum, (piece, 64), 8, 9).unwrap().0, 9);
}

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// The memory of a node, and of a host, does not grow by the modules that they have run.
#[test]
fn thousands_of_modules_leave_nothing() {
    let node = node(1);
    let memory = memory(&node);
    let mut lane = memory.lane().unwrap();
    let piece = lane.alloc(1 << 20).unwrap();
    let mut run = |n: u16| {
        // Each adds up 1000 numbers of its own: 4 KiB of code.
        let (low, high) = ((n & 0x3f) as u8, (n >> 6 & 0x3f) as u8);
        let one = [0x42, low, 0x7c, 0x42, high, 0x7c];
        let code = [&[0x42, 0][..], &one.repeat(680)].concat();
        let (word, _) = lane.near().wasm(&modules::module(1, false, &code), (piece, 64), 8, 0).unwrap();
        let signed = |n: u8| i64::from((n as i8) << 1 >> 1);
        assert_eq!(word.cast_signed(), 680 * (signed(low) + signed(high)));
    };
    (0..400).for_each(&mut run);
    let before = resident();
    (400..4000).for_each(&mut run);
    let grown = resident().saturating_sub(before);
    // What is kept of each is more than its code: 3600 would be 15 MB at least.
    assert!(grown < 8 << 20, "{grown} bytes more");
    assert!(calls(&node) >= 4000);
}

/// Modules that are as much work as they can be before the clock is looked at: the member pays for it.
#[test]
fn what_is_translated_is_paid_for() {
    let node = node(1);
    let memory = memory(&node);
    let mut lane = memory.lane().unwrap();
    let piece = lane.alloc(1 << 20).unwrap();
    let paid = || node.nic().members().iter().map(|member| member.computed.ns.load(Ordering::Relaxed)).sum::<u64>();
    let (before, n) = (paid(), 20);
    for n in 0..n {
        let code = [[0x03, 0x40].repeat(2600), [0x0b].repeat(2600), vec![0x42, n]].concat();
        assert_eq!(lane.near().wasm(&modules::module(1, false, &code), (piece, 64), 8, 0).unwrap().0, u64::from(n));
    }
    // Whether the node ran them, or was late: no machine does this in 20 us.
    assert!(paid() - before > 20_000 * u64::from(n), "{} ns", paid() - before);
}
