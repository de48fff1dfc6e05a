//! Nodes that refuse functions near memory, or lie about their results: what the host makes of it.

use farmem::Transport;
use farmem_fabric::NodeAddr;
use farmem_memory::{Config, Node};
use farmem_nic::epochs::Section;
use farmem_nic::service::{Caller, Service};
use farmem_nic::windows::Windows;
use farmem_objects::{CHUNK, FarArena, FarVec, Field, Gc, Heap, Linked};
use farmem_protocol::near::{Call, Found, Function, Marked, Reply};
use farmem_protocol::wire::Status;

/// How a node answers calls.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// As one without `--compute`.
    Refused,
    /// More calls are running than may.
    Busy,
    /// As one that was past its deadline.
    Late,
    /// Bytes that are no reply.
    Noise,
    /// Replies of another function.
    OfAnother,
    /// A reply that no memory could have given.
    Impossible,
    /// Markings that are done at once.
    Done,
    /// Markings that never get on.
    Idle,
    /// Markings that scan for ever.
    Endless,
    /// Markings that report what nobody wrote.
    Reports,
}

use Answer::*;

impl Service for Answer {
    fn send(&self, _: &Caller<'_>, _: u32, said: &[u8], _: &Windows, _: &mut Section<'_>) -> Result<[u8; 64], Status> {
        let call = Call::parse(said).map_err(|_| Status::Range)?;
        let marked = |scanned, told, done| Reply::Marked(Marked { scanned, told, left: 0, done }).frame();
        let found = |count, kind| Reply::Found(Found { count, sum: 1, ..Found::none(kind) }).frame();
        let is_mark = matches!(call.function, Function::Mark(_));
        match *self {
            Refused => Err(Status::Access),
            Busy => Err(Status::Empty),
            Late => Err(Status::Range),
            Noise => Ok([0xa5; 64]),
            OfAnother => Ok(Reply::Moved(64).frame()),
            Impossible => Ok(match call.function {
                Function::Scan(scan) => found(u64::MAX, scan.value),
                Function::Mark(mark) => marked(mark.steps + 1, 0, false),
                _ => [0; 64],
            }),
            Done if is_mark => Ok(marked(0, 0, true)),
            Idle if is_mark => Ok(marked(0, 0, false)),
            Endless if is_mark => Ok(marked(1000, 0, false)),
            Reports if is_mark => Ok(marked(1, 900, true)),
            Done | Idle | Endless | Reports => Err(Status::Range),
        }
    }

    fn departed(&self, _: u64, _: &Windows, _: &mut dyn FnMut()) {}

    fn keep(&self, _: &Windows) {}
}

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Link {
    next: Gc<Link>,
    n: u64,
}

impl Linked for Link {
    const LINKS: &[usize] = &[0];
}

const LINKS: u64 = 5000;

/// A node that answers so; a vector with 100 000 words, most of them away; a ring of objects.
fn world(answer: Answer) -> (Node, FarVec<u64>, FarArena<Link>, Gc<Link>, Heap) {
    let node = Node::start(&Config::new(256 << 20, vec![NodeAddr::Tcp("127.0.0.1:0".into())])).unwrap();
    node.nic().serve(answer);
    let heap = Heap::builder().local(64 * CHUNK).node(node.addresses()[0].to_string()).transport(Transport::Tcp);
    let heap = heap.build().unwrap();
    let (mut column, mut arena) = (heap.vec::<u64>(), heap.arena::<Link>());
    (0..100_000).for_each(|n| column.push(n).unwrap());
    let first = arena.alloc(&Link { next: Gc::NONE, n: 0 }).unwrap();
    let mut last = first;
    for n in 1..LINKS {
        last = arena.alloc(&Link { next: last, n }).unwrap();
        arena.alloc(&Link { next: first, n: u64::MAX }).unwrap();
    }
    arena.get_mut(first, &heap.scope()).unwrap().unwrap().next = last;
    (node, column, arena, first, heap)
}

/// Whatever a node does but a possible lie, the host does the work, with the same result.
#[test]
fn refused_calls_are_done_here() {
    for answer in [Refused, Busy, Late, Noise, OfAnother, Impossible] {
        let (_node, column, mut arena, first, heap) = world(answer);
        let found = column.filter(Field::u64(0).within(10..=99_000)).summary(Field::u64(0)).unwrap();
        assert_eq!((found.count, found.sum), (98_991, (10..=99_000).sum()), "{answer:?}");
        let some: Vec<usize> = (0..100_000).step_by(97).collect();
        let gathered = column.gather(&some).unwrap();
        assert!(gathered.iter().zip(&some).all(|(&value, &n)| value == n as u64), "{answer:?}");
        let root = arena.root(first);
        let done = arena.collect().unwrap();
        assert_eq!((done.live, done.freed), (LINKS as usize, LINKS as usize - 1), "{answer:?}");
        assert_eq!((done.at_nodes, done.here), (0, LINKS as usize), "{answer:?}");
        let mut at = root.gc();
        for n in 0..=LINKS {
            let scope = heap.scope();
            let link = arena.get(at, &scope).unwrap().unwrap();
            assert_eq!(link.n, (LINKS - n) % LINKS, "{answer:?}");
            at = link.next;
        }
    }
}

/// A marking may be a lie that is possible: objects are lost then, as by wrong bytes of a READ. Each collection ends,
/// and the arena and its heap go on.
#[test]
fn lying_nodes_lose_objects_and_nothing_else() {
    for answer in [Done, Idle, Endless, Reports] {
        let (_node, column, mut arena, first, heap) = world(answer);
        let root = arena.root(first);
        let done = arena.collect().unwrap();
        assert!(
            done.live <= LINKS as usize && done.live + done.freed == 2 * LINKS as usize - 1,
            "{answer:?}: {done:?}"
        );
        let is_caught = matches!(answer, Idle | Endless);
        assert_eq!(done.live == LINKS as usize, is_caught, "{answer:?}: {done:?}");
        let found = arena.get(root.gc(), &heap.scope()).unwrap().is_some();
        assert!(found == is_caught || done.live > 0, "{answer:?}");
        let more = arena.alloc(&Link { next: root.gc(), n: 7 }).unwrap();
        assert_eq!(arena.get(more, &heap.scope()).unwrap().unwrap().n, 7);
        arena.collect().unwrap();
        assert_eq!(*column.get(77_777, &heap.scope()).unwrap(), 77_777, "{answer:?}");
    }
}
