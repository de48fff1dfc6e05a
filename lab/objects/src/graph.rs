//! A graph of nodes with four links each, drawn at random: searched in breadth, and collected.
//!
//! A search visits as many nodes as there are accesses, 16 of its frontier at a time. A collection
//! finds the half of the nodes to which no root leads. Near, it marks and frees slots of a vector.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use farmem_objects::{FarArena, Gc, Heap, Linked};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Options, Places, TOGETHER, Work};

/// Links of a node.
const LINKS: usize = 4;

/// A node: 64 bytes, near and far.
#[derive(FromBytes, IntoBytes, Immutable, Linked, Clone, Copy)]
#[repr(C)]
struct Node {
    links: [Gc<Node>; LINKS],
    to: [u32; LINKS],
    number: u64,
    value: u64,
}

/// Which nodes each node leads to. Those of the second half lead to one another, and are garbage.
struct Plan {
    nodes: usize,
    seed: u64,
}

impl Plan {
    /// Half as many nodes as objects, so that a table of links fits beside them.
    fn new(options: &Options) -> Plan {
        Plan { nodes: options.objects / 2, seed: options.seed }
    }

    fn to(&self, n: usize) -> [u32; LINKS] {
        let half = self.nodes / 2;
        let (from, len) = if n < half { (0, half) } else { (half, self.nodes - half) };
        let mut places = Places(self.seed ^ (n as u64) << 20);
        // The first link goes on to the next, so that every node of a half can be reached.
        std::array::from_fn(|link| if link == 0 { from + (n - from + 1) % len } else { from + places.next(len) })
            .map(|to| to as u32)
    }

    fn node(&self, n: usize) -> Node {
        Node { links: [Gc::NONE; LINKS], to: self.to(n), number: n as u64, value: n as u64 * 3 }
    }
}

/// Visits nodes in breadth from node 0, until `most` are visited. `take` looks at up to 16 nodes:
/// their values are summed, and it returns the nodes to which they lead.
fn search(
    nodes: usize,
    most: usize,
    mut take: impl FnMut(&[usize], &mut u64) -> Result<Vec<[u32; LINKS]>>,
) -> Result<(f64, u64)> {
    let (mut seen, mut sum) = (vec![false; nodes], 0);
    let (mut queue, mut next) = (vec![0], 0);
    seen[0] = true;
    let begun = Instant::now();
    while next < queue.len().min(most) {
        let some = next..queue.len().min(next + TOGETHER);
        next = some.end;
        for to in take(&queue[some], &mut sum)?.into_iter().flatten() {
            if !std::mem::replace(&mut seen[to as usize], true) {
                queue.push(to as usize);
            }
        }
    }
    ensure!(next > 1, "the graph has one node");
    Ok((begun.elapsed().as_nanos() as f64 / next as f64, sum))
}

/// Near.
pub fn near(options: &Options, work: Work) -> Result<(f64, u64)> {
    let plan = Plan::new(options);
    let mut nodes: Vec<Node> = (0..plan.nodes).map(|n| plan.node(n)).collect();
    if work == Work::Graph {
        return search(plan.nodes, options.accesses, |some, sum| {
            if options.hints {
                farmem_hints::read_each(&some.iter().map(|&n| &nodes[n]).collect::<Vec<_>>());
            }
            *sum = some.iter().fold(*sum, |sum, &n| sum.wrapping_add(nodes[n].value));
            Ok(some.iter().map(|&n| nodes[n].to).collect())
        });
    }
    let begun = Instant::now();
    let (mut live, mut grey) = (vec![false; plan.nodes], vec![0u32]);
    live[0] = true;
    while let Some(n) = grey.pop() {
        let to = nodes[n as usize].to;
        grey.extend(to.into_iter().filter(|&to| !std::mem::replace(&mut live[to as usize], true)));
    }
    let freed: Vec<usize> = (0..plan.nodes).filter(|&n| !live[n]).collect();
    let took = begun.elapsed();
    nodes.truncate(plan.nodes - freed.len());
    Ok((took.as_nanos() as f64 / plan.nodes as f64, nodes.len() as u64))
}

/// In an arena.
pub fn far(heap: &Heap, options: &Options, work: Work) -> Result<(f64, u64)> {
    let plan = Plan::new(options);
    let mut arena: FarArena<Node> = heap.arena();
    let all = (0..plan.nodes).map(|n| arena.alloc(&plan.node(n)));
    let all = all.collect::<farmem_objects::Result<Vec<Gc<Node>>>>()?;
    for (n, &gc) in all.iter().enumerate() {
        let scope = heap.scope();
        let node = arena.get_mut(gc, &scope)?.context("a node is gone")?;
        node.links = plan.to(n).map(|to| all[to as usize]);
    }
    let _root = arena.root(all[0]);
    if work == Work::Graph {
        return search(plan.nodes, options.accesses, |some, sum| {
            let scope = heap.scope();
            let some: Vec<Gc<Node>> = some.iter().map(|&n| all[n]).collect();
            let mut to = Vec::with_capacity(some.len());
            for node in arena.get_many(&some, &scope)? {
                let node = node.context("a node is gone")?;
                *sum = sum.wrapping_add(node.value);
                to.push(node.to);
            }
            Ok(to)
        });
    }
    // The first collection writes all home. The second is timed: it marks, and frees half.
    let spare = arena.root(all[plan.nodes / 2]);
    arena.collect()?;
    drop(spare);
    let begun = Instant::now();
    let live = arena.collect()?.live;
    Ok((begun.elapsed().as_nanos() as f64 / plan.nodes as f64, live as u64))
}
