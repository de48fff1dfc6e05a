//! What programs may do that no compiler refuses: values that are leaked, dropped late or while
//! unwinding, keys that panic or use the heap themselves, lengths without bounds.

mod common;

use common::{address, node};
use farmem::Transport;
use farmem_memory::Node;
use farmem_objects::*;
use std::cell::{Cell, RefCell};
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn heap(node: &Node) -> Heap {
    Heap::builder().local(64 * CHUNK).node(address(node, Transport::Shm)).transport(Transport::Shm).build().unwrap()
}

/// Does not compile for a type that has the trait: then both of its functions would fit.
macro_rules! assert_not {
    ($of:path: $($kind:ty),* $(,)?) => {{
        trait Which<A> {
            fn which() {}
        }
        struct Has;
        impl<T: ?Sized> Which<()> for T {}
        impl<T: ?Sized + $of> Which<Has> for T {}
        $(<$kind as Which<_>>::which();)*
    }};
}

#[test]
fn what_is_one_threads_is_not_sent_or_shared() {
    assert_not!(Send: Heap, Scope, FarBox<u64>, FarVec<u64>, FarQueue<u64>, FarList<u64>, FarHashMap<u64, u64>,
        FarBTree<u64, u64>, FarString, FarArena<Node2>, FarCache<u64, u64>, FarFrame, Root<Node2>, Load<'static, u64>,
        Iter<'static, u64>, SharedScope<'static>, Filtered<'static, u64>, Selected<'static>, ArrowArray, ArrowSchema);
    assert_not!(Sync: Heap, Scope, FarBox<u64>, FarVec<u64>, FarQueue<u64>, FarList<u64>, FarHashMap<u64, u64>,
        FarBTree<u64, u64>, FarString, FarArena<Node2>, FarCache<u64, u64>, FarFrame, Root<Node2>, Load<'static, u64>,
        Iter<'static, u64>, SharedScope<'static>, Seat, Filtered<'static, u64>, Selected<'static>);
}

#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Linked)]
#[repr(C)]
struct Node2 {
    next: Gc<Node2>,
    n: u64,
}

thread_local! {
    static LATE: RefCell<Vec<(FarVec<u64>, FarBox<u64>)>> = const { RefCell::new(Vec::new()) };
    static BESIDE: RefCell<Option<FarVec<u64>>> = const { RefCell::new(None) };
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Far values that a thread's own storage drops at its end, before or after the library's own.
#[test]
fn values_outlive_what_else_a_thread_has() {
    let node = node();
    for stored_first in [true, false] {
        std::thread::scope(|threads| {
            threads.spawn(|| {
                if stored_first {
                    LATE.with_borrow_mut(Vec::clear);
                }
                let heap = heap(&node);
                let (mut words, one) = (heap.vec(), heap.alloc(&7).unwrap());
                (0..100_000).for_each(|n| words.push(n).unwrap());
                LATE.with_borrow_mut(|late| late.push((words, one)));
                // The vector keeps the heap, and the box does not.
                drop(heap);
                LATE.with_borrow(|late| assert_eq!(late[0].1.read().unwrap(), 7));
            });
        });
    }
}

/// Allocates at the end of its thread, when the library's own storage may be gone.
struct Grows(Option<(Heap, FarVec<u64>)>);

impl Drop for Grows {
    fn drop(&mut self) {
        let Some((heap, words)) = &mut self.0 else { return };
        let before = words.len();
        let pushed = (0..1_000_000).take_while(|&n| words.push(n).is_ok()).count();
        assert_eq!(words.len(), before + pushed);
        let mut arena: FarArena<Node2> = heap.arena();
        let _ = (arena.alloc(&Node2 { next: Gc::NONE, n: 1 }).is_ok(), heap.alloc(&1u64).is_ok());
        let _ = (heap.map().insert(1u64, 1u64).is_ok(), arena.collect().is_ok(), words.read(0).is_ok());
    }
}

/// A destructor of a thread's own storage that needs more memory gets an error at most: a panic there
/// would end the process.
#[test]
fn a_thread_may_allocate_while_it_ends() {
    thread_local! {
        static GROWS: RefCell<Grows> = const { RefCell::new(Grows(None)) };
    }
    let node = node();
    for stored_first in [true, false] {
        std::thread::scope(|threads| {
            let thread = threads.spawn(|| {
                if stored_first {
                    GROWS.with_borrow_mut(|grows| grows.0 = None);
                }
                let heap = heap(&node);
                let mut words: FarVec<u64> = heap.vec();
                words.push(7).unwrap();
                GROWS.with_borrow_mut(|grows| grows.0 = Some((heap, words)));
            });
            // This waits for the thread's own storage, too, which the end of the scope does not.
            thread.join().unwrap();
        });
    }
}

#[test]
fn what_is_leaked_costs_memory_alone() {
    let node = node();
    let heap = heap(&node);
    let words: Vec<FarBox<[u64; 64]>> = (0..2000).map(|n| heap.alloc(&[n; 64]).unwrap()).collect();
    std::mem::forget(heap.alloc(&1u64).unwrap());
    let mut list: FarVec<u64> = heap.vec();
    list.extend_from_slice(&[5; 10_000]).unwrap();
    std::mem::forget(list);
    // A load that nobody awaits any more, and one that is forgotten.
    let away: Vec<&FarBox<[u64; 64]>> = words.iter().filter(|one| !one.is_local()).take(2).collect();
    let scope = heap.scope();
    for (n, one) in away.iter().enumerate() {
        let mut load = Box::pin(one.load(&scope));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let _ = std::future::Future::poll(load.as_mut(), &mut context);
        if n == 0 { drop(load) } else { std::mem::forget(load) }
    }
    drop(scope);
    // A scope that has no end holds all that is used from then on. When that is all, each use says so.
    std::mem::forget(heap.scope());
    let mut full = 0;
    for (n, one) in words.iter().enumerate() {
        match one.read() {
            Ok(found) => assert_eq!(found, [n as u64; 64]),
            Err(e) => {
                assert!(matches!(e, Error::ScopeFull(_)), "{e}");
                full += 1;
            }
        }
    }
    assert!((1000..2000).contains(&full), "{full}");
    drop(words);
    assert_eq!(heap.alloc(&9u64).unwrap().read().unwrap(), 9);
}

/// A key whose hash and comparison use far memory, or panic.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, Clone, Copy)]
#[repr(transparent)]
struct Key(u64);

fn look(n: u64) -> u64 {
    if PANICS.get() {
        panic!("a key's own panic");
    }
    BESIDE.with_borrow(|beside| beside.as_ref().map_or(n, |words| words.read(n as usize % words.len()).unwrap()))
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        look(self.0).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        look(self.0) == look(other.0) && self.0 == other.0
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> std::cmp::Ordering {
        let _ = (look(self.0), look(other.0));
        self.0.cmp(&other.0)
    }
}

#[test]
fn keys_may_use_the_heap_and_panic() {
    const KEYS: u64 = 5000;
    let node = node();
    let heap = heap(&node);
    let mut words: FarVec<u64> = heap.vec();
    (0..100_000u64).for_each(|n| words.push(n * 7 % 1000).unwrap());
    BESIDE.set(Some(words));
    let (mut map, mut sorted): (FarHashMap<Key, u64>, FarBTree<Key, u64>) = (heap.map(), heap.btree());
    for n in 0..KEYS {
        map.insert(Key(n), n).unwrap();
        sorted.insert(Key(n), n).unwrap();
    }
    // Each call panics, and changes nothing.
    PANICS.set(true);
    for n in 0..KEYS / 10 {
        let key = Key(n * 17 % (2 * KEYS));
        assert!(catch_unwind(AssertUnwindSafe(|| map.insert(key, 0))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| map.remove(&key))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| sorted.insert(key, 0))).is_err());
        assert!(catch_unwind(AssertUnwindSafe(|| sorted.remove(&key))).is_err());
    }
    PANICS.set(false);
    let scope = heap.scope();
    assert_eq!((map.len(), sorted.len()), (KEYS as usize, KEYS as usize));
    assert!(map.get(&Key(KEYS + 3), &scope).unwrap().is_none());
    drop(scope);
    for n in 0..KEYS {
        let scope = heap.scope();
        assert_eq!(map.get(&Key(n), &scope).unwrap(), Some(&n));
        assert_eq!(sorted.get(&Key(n), &scope).unwrap(), Some(&n));
    }
    // A visitor that panics, and one that uses what it visits.
    assert!(catch_unwind(AssertUnwindSafe(|| map.scan(|_, _| panic!("a visitor's own")))).is_err());
    let mut seen = 0;
    sorted.scan(.., |key, &value| seen += u64::from(map.get(key, &heap.scope()).unwrap() == Some(&value))).unwrap();
    assert_eq!(seen, KEYS);
    BESIDE.set(None);
}

/// Uses a heap while its thread unwinds.
struct Reads<'a>(&'a FarBox<u64>, &'a Cell<u64>);

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.1.set(self.0.read().unwrap());
    }
}

#[test]
fn a_drop_that_reads_works_while_unwinding() {
    let node = node();
    let heap = heap(&node);
    let (one, seen) = (heap.alloc(&7).unwrap(), Cell::new(0));
    let mut words: FarVec<u64> = heap.vec();
    words.extend_from_slice(&[1; 200_000]).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _reads = Reads(&one, &seen);
        words.scan(|first, _| assert!(first < 100_000, "halfway"))
    }));
    assert!(panicked.is_err() && seen.get() == 7);
    assert_eq!(words.read(199_999).unwrap(), 1);
}

#[test]
fn lengths_have_bounds() {
    let node = node();
    let heap = heap(&node);
    let mut words: FarVec<u64> = heap.vec();
    words.extend_from_slice(&[1; 10]).unwrap();
    let is_index = |e: Option<Error>| matches!(e, Some(Error::Index { .. }));
    #[allow(clippy::reversed_empty_ranges, reason = "which is to be refused")]
    let ranges = [0..usize::MAX, usize::MAX - 1..usize::MAX, 11..12, 7..3, usize::MAX..0];
    for range in ranges {
        assert!(is_index(words.get_range(range).err()));
    }
    assert!(is_index(words.set_range(usize::MAX, &[1]).err()) && is_index(words.set_range(9, &[1, 2]).err()));
    assert!(is_index(words.gather(&[0, usize::MAX]).err()) && is_index(words.read(usize::MAX).err()));
    words.truncate(usize::MAX);
    let mut list: FarList<u64> = heap.list();
    assert!(is_index(list.insert(1, 1).err()) && is_index(list.split_off(usize::MAX).err()));
    let mut text = heap.string();
    text.push_str("é").unwrap();
    assert!(is_index(text.get(1..usize::MAX).err()) && matches!(text.get(1..2), Err(Error::Text { at: 1 })));
    assert!(matches!(words.filter(Field::u64(usize::MAX).at_least(1)).count(), Err(Error::Field { .. })));
    let mut cache: FarCache<u64, u64> = heap.cache(usize::MAX);
    assert_eq!(cache.get(&1, |&key| key + 1).unwrap(), 2);
    let shared = Heap::builder().local(64 * CHUNK).node(address(&node, Transport::Shm)).build_shared().unwrap();
    let (mut words, seat) = (shared.vec::<u64>(), shared.seat().unwrap());
    words.extend_from_slice(&[1; 10], &seat).unwrap();
    #[allow(clippy::reversed_empty_ranges, reason = "which is to be refused")]
    for range in [0..usize::MAX, 7..3, usize::MAX..usize::MAX] {
        assert!(is_index(words.scan(range, &seat, |_, _| panic!("there is none")).err()));
    }
    words.scan(10..10, &seat, |_, _| panic!("there is none")).unwrap();
}
