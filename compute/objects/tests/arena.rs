//! Arenas against a plain model: objects to which roots lead stay, and the rest goes, wherever they
//! are marked.

use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_objects::{CHUNK, Collected, FarArena, Gc, Heap, Linked, Root};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Linked, Clone, Copy)]
#[repr(C)]
struct Person {
    age: u64,
    friends: [Gc<Person>; 3],
    #[weak]
    enemy: Gc<Self>,
    rest: [u64; 3],
}

#[test]
fn the_derive_knows_links() {
    assert_eq!(Person::LINKS, [8, 16, 24]);
}

fn person(age: u64) -> Person {
    Person { age, friends: [Gc::NONE; 3], enemy: Gc::NONE, rest: [!age; 3] }
}

fn node(compute: usize) -> Node {
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
    Node::start(&Config { compute, ..Config::new(512 << 20, listen) }).unwrap()
}

/// A heap over tcp.
fn heap(nodes: &[&Node]) -> Heap {
    let builder = Heap::builder().local(4096 * CHUNK).transport(Transport::Tcp);
    nodes.iter().fold(builder, |builder, node| builder.node(node.addresses()[0].to_string())).build().unwrap()
}

fn calls(nodes: &[&Node]) -> u64 {
    nodes.iter().map(|node| node.nic().computed.calls.load(Ordering::Relaxed)).sum()
}

/// Objects by what the model calls them: their ages.
struct World {
    arena: FarArena<Person>,
    heap: Heap,
    near: HashMap<u64, [Option<u64>; 3]>,
    roots: HashMap<u64, Root<Person>>,
    names: HashMap<u64, Gc<Person>>,
    next: u64,
}

impl World {
    fn new(heap: Heap) -> World {
        let arena = heap.arena();
        World { arena, heap, near: HashMap::new(), roots: HashMap::new(), names: HashMap::new(), next: 1 }
    }

    /// Links lead to objects that are there.
    fn add(&mut self, links: [Option<u64>; 3]) -> u64 {
        let age = self.next;
        self.next += 1;
        let friends = links.map(|link| link.map_or(Gc::NONE, |to| self.names[&to]));
        self.names.insert(age, self.arena.alloc(&Person { friends, ..person(age) }).unwrap());
        self.near.insert(age, links);
        age
    }

    fn add_many(&mut self, n: u64) {
        for _ in 0..n {
            self.add([None; 3]);
        }
    }

    fn link(&mut self, from: u64, n: usize, to: Option<u64>) {
        let gc = to.map_or(Gc::NONE, |to| self.names[&to]);
        let scope = self.heap.scope();
        self.arena.get_mut(self.names[&from], &scope).unwrap().unwrap().friends[n] = gc;
        self.near.get_mut(&from).unwrap()[n] = to;
    }

    fn root(&mut self, age: u64) {
        self.roots.insert(age, self.arena.root(self.names[&age]));
    }

    fn reached(&self) -> HashSet<u64> {
        let mut reached = HashSet::new();
        let mut waits: Vec<u64> = self.roots.keys().copied().collect();
        while let Some(age) = waits.pop() {
            if reached.insert(age) {
                waits.extend(self.near[&age].iter().flatten());
            }
        }
        reached
    }

    /// Collects, and finds all objects again from the roots.
    fn collect(&mut self) -> Collected {
        let reached = self.reached();
        let before = self.near.len();
        let done = self.arena.collect().unwrap();
        assert_eq!((done.live, done.freed), (reached.len(), before - reached.len()), "{done:?}");
        assert_eq!(self.arena.len(), reached.len());
        self.near.retain(|age, _| reached.contains(age));
        self.names.clear();
        let mut waits: Vec<(u64, Gc<Person>)> = self.roots.iter().map(|(&age, root)| (age, root.gc())).collect();
        while let Some((age, gc)) = waits.pop() {
            if let Some(&known) = self.names.get(&age) {
                assert_eq!(known, gc, "one object has one name");
                continue;
            }
            self.names.insert(age, gc);
            let scope = self.heap.scope();
            let found = self.arena.get(gc, &scope).unwrap().unwrap();
            assert_eq!((found.age, found.rest), (age, [!age; 3]));
            for (friend, expected) in found.friends.iter().zip(self.near[&age]) {
                assert_eq!(friend.is_none(), expected.is_none());
                waits.extend(expected.map(|age| (age, *friend)));
            }
        }
        assert_eq!(self.names.len(), reached.len());
        done
    }
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Link(prop::sample::Index, usize, Option<prop::sample::Index>),
    Root(prop::sample::Index),
    Unroot(prop::sample::Index),
    Collect,
}

fn step() -> impl Strategy<Value = Step> {
    use prop::sample::Index;
    prop_oneof![
        2 => any::<u8>().prop_map(Step::Add),
        8 => (any::<Index>(), 0..3usize, prop::option::weighted(0.9, any::<Index>())).prop_map(|(a, n, b)| Step::Link(a, n, b)),
        2 => any::<Index>().prop_map(Step::Root),
        1 => any::<Index>().prop_map(Step::Unroot),
        1 => Just(Step::Collect),
    ]
}

/// Random graphs with cycles and drops, on nodes that compute, on one that does not, and on a mix.
#[test]
fn what_roots_lead_to_stays() {
    let (one, other, refuses) = (node(2), node(2), node(0));
    for nodes in [&[&one][..], &[&refuses], &[&one, &other], &[&one, &refuses, &other]] {
        runner(3)
            .run(&prop::collection::vec(step(), 30..250), |steps| {
                let mut world = World::new(heap(nodes));
                world.add([None; 3]);
                for step in steps {
                    let mut ages: Vec<u64> = world.names.keys().copied().collect();
                    ages.sort_unstable();
                    match step {
                        Step::Add(n) => world.add_many(n.into()),
                        _ if ages.is_empty() => {}
                        Step::Link(from, n, to) => {
                            world.link(ages[from.index(ages.len())], n, to.map(|to| ages[to.index(ages.len())]));
                        }
                        Step::Root(at) => world.root(ages[at.index(ages.len())]),
                        Step::Unroot(at) => {
                            world.roots.remove(&ages[at.index(ages.len())]);
                        }
                        Step::Collect => {
                            world.collect();
                        }
                    }
                }
                world.collect();
                world.roots.clear();
                world.collect();
                prop_assert!(world.arena.is_empty());
                Ok(())
            })
            .unwrap();
    }
    assert!(calls(&[&one]) > 0 && calls(&[&other]) > 0 && calls(&[&refuses]) == 0);
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() })
}

/// Graphs of many blocks, on two nodes: marked there and here alike.
#[test]
fn many_blocks_are_marked_at_their_nodes() {
    let (one, other, refuses) = (node(2), node(2), node(0));
    let mut outcomes = Vec::new();
    for nodes in [&[&one, &other][..], &[&one, &refuses], &[&refuses]] {
        let mut world = World::new(heap(nodes));
        let mut random = 1u64;
        for age in 1..=90_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let links = std::array::from_fn(|n| {
                (n as u64 != age % 4 && age > 9).then(|| 1 + (random >> (20 + 11 * n)) % (age - 1))
            });
            world.add(links);
        }
        // Back to the end: cycles through all blocks.
        world.link(7, 0, Some(89_999));
        (1..200).for_each(|age| world.root(age * 7));
        let done = world.collect();
        assert!(done.live > 200 && done.freed > 200, "{done:?}");
        outcomes.push((done.live, done.freed));
        let at_nodes = nodes.iter().filter(|node| !std::ptr::eq(**node, &refuses)).count();
        assert_eq!((done.at_nodes > 0, done.here > 0), (at_nodes > 0, at_nodes < nodes.len()), "{done:?}");
    }
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]));
}

/// Sparse blocks are emptied into others; all links and roots follow, and the blocks go back.
#[test]
fn sparse_blocks_are_emptied() {
    let (computes, refuses) = (node(1), node(0));
    for node in [&computes, &refuses] {
        let mut world = World::new(heap(&[node]));
        // Four blocks of 32768; one object in twenty stays, in a ring and a few chords.
        world.add_many(130_000);
        let kept: Vec<u64> = (1..=130_000).step_by(20).collect();
        for (n, &age) in kept.iter().enumerate() {
            world.link(age, 0, Some(kept[(n + 1) % kept.len()]));
            world.link(age, 1, Some(kept[n * 31 % kept.len()]));
        }
        world.root(1);
        world.root(kept[77]);
        let done = world.collect();
        assert!(done.moved > 3000 && done.blocks >= 2, "{done:?}");
        // Slots are used again.
        world.add_many(100_000);
        let again = world.collect();
        assert_eq!((again.freed, again.live), (100_000, kept.len()));
    }
    assert!(calls(&[&computes]) > 0);
}

/// Names that were kept too long find nothing, or an object of the type; none that was made up is followed.
#[test]
fn stale_names_are_harmless() {
    let node = node(1);
    let heap = heap(&[&node]);
    let mut arena = heap.arena::<Person>();
    let one = arena.alloc(&person(1)).unwrap();
    let two = arena.alloc(&Person { enemy: one, ..person(2) }).unwrap();
    let root = arena.root(two);
    assert_eq!(arena.collect().unwrap().freed, 1);
    let scope = heap.scope();
    assert!(arena.get(one, &scope).unwrap().is_none());
    assert!(arena.get_many(&[one, root.gc(), Gc::NONE], &scope).unwrap()[1].is_some());
    let rest: [u64; 8] = zerocopy::transmute!(*arena.get(root.gc(), &scope).unwrap().unwrap());
    assert_eq!(rest[0], 2);
    for n in 0..64 {
        let made_up: [u64; 8] = std::array::from_fn(|at| if at % 2 == 0 { 1 << n } else { (1 << n) - 1 });
        let made_up: Person = zerocopy::transmute!(made_up);
        arena.get_mut(root.gc(), &scope).unwrap().unwrap().friends = made_up.friends;
        let done = arena.collect().unwrap();
        assert!(done.live == 1, "{n}: {done:?}");
        assert!(arena.get(made_up.friends[0], &scope).unwrap().is_none_or(|found| found.rest == [!2; 3]));
    }
    let kept = root.clone();
    drop(root);
    assert_eq!(arena.collect().unwrap().live, 1);
    drop(kept);
    assert_eq!(arena.collect().unwrap().blocks, 1);
}

/// A collection while a scope is open: new references find the objects that it holds.
#[test]
fn scopes_may_stay_open_over_a_collection() {
    let node = node(1);
    let heap = heap(&[&node]);
    let mut arena = heap.arena::<Person>();
    let scope = heap.scope();
    let all: Vec<Gc<Person>> = (0..1000).map(|n| arena.alloc(&person(n)).unwrap()).collect();
    for &one in &all {
        arena.get_mut(one, &scope).unwrap().unwrap().age += 1;
    }
    let root = arena.root(all[500]);
    assert_eq!(arena.collect().unwrap().freed, 999);
    assert_eq!(arena.get(root.gc(), &scope).unwrap().unwrap().age, 501);
}

/// A node that is lost ends a collection with an error; objects of the others are there.
#[test]
fn a_collection_without_a_node_frees_nothing() {
    let (one, other) = (node(1), node(1));
    let builder =
        Heap::builder().local(256 * CHUNK).transport(Transport::Tcp).grace(std::time::Duration::from_millis(200));
    let heap = builder.node(one.addresses()[0].to_string()).node(other.addresses()[0].to_string()).build().unwrap();
    let mut arena = heap.arena::<Person>();
    let all: Vec<Gc<Person>> = (0..70_000).map(|n| arena.alloc(&person(n)).unwrap()).collect();
    let _root = arena.root(all[7]);
    drop(other);
    assert!(matches!(arena.collect(), Err(farmem_objects::Error::Memory(farmem::Error::Lost { .. }))));
    assert_eq!(arena.len(), 70_000);
    let found = all.iter().filter(|&&gc| arena.get(gc, &heap.scope()).is_ok_and(|found| found.is_some())).count();
    assert!((30_000..70_000).contains(&found), "{found}");
}

/// A node that marks sends a hundredth of the objects' bytes at most. Prints how long it takes there
/// and here.
#[test]
fn marking_leaves_the_bytes_where_they_are() {
    let (computes, refuses) = (node(1), node(0));
    let [there, here] = [&computes, &refuses].map(|node| {
        let heap = heap(&[node]);
        let mut arena = heap.arena::<Person>();
        let mut all = Vec::new();
        let mut random = 1u64;
        for age in 0..120_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let friend = |n: u64| all.get((random >> (20 + 11 * n)) as usize % (age.max(1) as usize)).copied();
            let friends = [0, 1, 2].map(|n| friend(n).unwrap_or(Gc::NONE));
            all.push(arena.alloc(&Person { friends, ..person(age) }).unwrap());
        }
        let roots: Vec<Root<Person>> = all[119_000..].iter().map(|&one| arena.root(one)).collect();
        // Once to write all home, and to take the memory of a marking.
        arena.collect().unwrap();
        let tally = |node: &Node| node.nic().tally.read_bytes.load(Ordering::Relaxed);
        let (before, begun) = (tally(node), std::time::Instant::now());
        let done = arena.collect().unwrap();
        println!("{done:?} {:?}", begun.elapsed());
        drop(roots);
        (done.live as u64, tally(node) - before)
    });
    assert!(there.0 == here.0 && there.0 > 30_000, "{there:?} {here:?}");
    assert!(there.1 * 100 <= there.0 * 64, "{there:?}: more than a hundredth of the objects' bytes");
    assert!(there.1 * 50 <= here.1, "{there:?} {here:?}");
}
