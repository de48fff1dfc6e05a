//! Far objects: collections whose elements lie in other machines' RAM, with a part of them local.
//!
//! A program that knows that its data is far needs no page faults. It fetches the objects that it
//! names, many of them by one round trip. The heap keeps local those that were used last.
//!
//! ```no_run
//! use farmem_objects::{FarVec, Heap};
//!
//! # fn main() -> farmem_objects::Result<()> {
//! let heap = Heap::builder().local("512M").node("a:7411").build()?;
//! let mut prices: FarVec<u64> = heap.vec();
//! for day in 0..1_000_000 {
//!     prices.push(day * 7)?;
//! }
//!
//! let scope = heap.scope();
//! let price: &u64 = prices.get(17, &scope)?; // an ordinary reference
//! let some: Vec<&u64> = prices.get_many(&[3, 500_000, 999_999], &scope)?; // one round trip
//! assert_eq!((*price, *some[1]), (119, 3_500_000));
//! drop(scope);
//!
//! let mut sum = 0;
//! prices.scan(|_, part: &[u64]| sum += part.iter().sum::<u64>())?; // fetches ahead
//! # Ok(())
//! # }
//! ```
//!
//! # References
//!
//! A reference is tied to its collection and to a [`Scope`]. While the scope lives, the elements
//! that were reached by it stay local, and do not move. Lifetimes express this, so the compiler
//! refuses each misuse. A reference cannot outlive its scope:
//!
//! ```compile_fail,E0505
//! fn keeps(heap: &farmem_objects::Heap, v: &farmem_objects::FarVec<u64>) -> u64 {
//!     let scope = heap.scope();
//!     let kept = v.get(0, &scope).unwrap();
//!     drop(scope);
//!     *kept
//! }
//! ```
//!
//! … A reference cannot outlive a change of its collection:
//!
//! ```compile_fail,E0502
//! fn changes(heap: &farmem_objects::Heap, v: &mut farmem_objects::FarVec<u64>) -> u64 {
//!     let scope = heap.scope();
//!     let kept = v.get(0, &scope).unwrap();
//!     v.push(1).unwrap();
//!     *kept
//! }
//! ```
//!
//! … Two mutable references into one collection cannot exist at a time:
//!
//! ```compile_fail,E0499
//! fn writes(heap: &farmem_objects::Heap, v: &mut farmem_objects::FarVec<u64>) {
//!     let scope = heap.scope();
//!     let (a, b) = (v.get_mut(0, &scope).unwrap(), v.get_mut(0, &scope).unwrap());
//!     *a = *b;
//! }
//! ```
//!
//! A heap, its scopes and its collections stay on their thread:
//!
//! ```compile_fail,E0277
//! fn leaves(heap: farmem_objects::Heap) {
//!     std::thread::spawn(move || heap.scope());
//! }
//! ```
//!
//! Elements are plain data: a value with a pointer cannot leave this machine.
//!
//! ```compile_fail,E0277
//! fn holds(heap: &farmem_objects::Heap) {
//!     let v: farmem_objects::FarVec<String> = heap.vec();
//! }
//! ```
//!
//! … A value that does something when it is dropped cannot leave either: nobody could say which of
//! its copies is the value.
//!
//! ```compile_fail,E0080
//! #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
//! #[repr(transparent)]
//! struct Descriptor(u32);
//! impl Drop for Descriptor {
//!     fn drop(&mut self) {}
//! }
//! fn holds(v: &mut farmem_objects::FarVec<Descriptor>) {
//!     v.push(Descriptor(0)).unwrap();
//! }
//! std::hint::black_box(holds as fn(&mut farmem_objects::FarVec<Descriptor>));
//! ```
//!
//! … Nor can a value of more than 4 KiB, of no bytes, or that is aligned to more than the largest
//! number:
//!
//! ```compile_fail,E0080
//! use farmem_objects::Heap;
//! let puts: fn(&Heap) -> bool = |heap| heap.alloc(&[0u8; 4097]).is_ok();
//! std::hint::black_box(puts);
//! ```
//!
//! ```compile_fail,E0080
//! use farmem_objects::Heap;
//! let puts: fn(&Heap) -> bool = |heap| heap.alloc(&[0u64; 0]).is_ok();
//! std::hint::black_box(puts);
//! ```
//!
//! ```compile_fail,E0080
//! use farmem_objects::Heap;
//! #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
//! #[repr(C, align(32))]
//! struct Wide([u8; 32]);
//! let puts: fn(&Heap) -> bool = |heap| heap.alloc(&Wide([0; 32])).is_ok();
//! std::hint::black_box(puts);
//! ```
//!
//! A box is the only way to its value, and stays on its thread, too:
//!
//! ```compile_fail,E0382
//! fn doubles(one: farmem_objects::FarBox<u64>) {
//!     let (a, b) = (one, one);
//! }
//! ```
//!
//! ```compile_fail,E0505
//! fn drops(one: farmem_objects::FarBox<u64>, scope: &farmem_objects::Scope) -> u64 {
//!     let kept = one.get(scope).unwrap();
//!     drop(one);
//!     *kept
//! }
//! ```
//!
//! ```compile_fail,E0502
//! fn writes(one: &mut farmem_objects::FarBox<u64>, scope: &farmem_objects::Scope) {
//!     let kept = one.get(scope).unwrap();
//!     *one.get_mut(scope).unwrap() = 1 + *kept;
//!     assert_eq!(*kept, 1);
//! }
//! ```
//!
//! ```compile_fail,E0277
//! fn leaves(one: farmem_objects::FarBox<u64>) {
//!     std::thread::spawn(move || drop(one));
//! }
//! ```
//!
//! ```compile_fail,E0515
//! use farmem_objects::{FarHashMap, Heap};
//! fn keeps<'a>(heap: &Heap, map: &'a FarHashMap<u64, u64>) -> Option<&'a u64> {
//!     let scope = heap.scope();
//!     map.get(&1, &scope).unwrap()
//! }
//! ```
//!
//! # Threads
//!
//! One thread uses a [`Heap`]. Threads that share objects use a [`SharedHeap`]. Each of them has a
//! [`Seat`] of its own: its place at the heap, with its way to the nodes. The heap's boxes,
//! vectors and hash maps are shared and sent as `Box`, `Vec` and `HashMap` are: many threads read, or
//! one writes.
//!
//! ```no_run
//! # fn main() -> farmem_objects::Result<()> {
//! let heap = farmem_objects::Heap::builder().local("512M").node("a:7411").build_shared()?;
//! let mut prices = heap.vec::<u64>();
//! let seat = heap.seat()?;
//! prices.extend_from_slice(&[119, 7, 12], &seat)?;
//! std::thread::scope(|threads| {
//!     for n in 0..3 {
//!         let (heap, prices) = (&heap, &prices);
//!         threads.spawn(move || prices.read(n, &heap.seat()?));
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! A scope stays on its thread, and a reference within its scope:
//!
//! ```compile_fail,E0277
//! fn leaves(scope: farmem_objects::SharedScope<'static>) {
//!     std::thread::spawn(move || drop(scope));
//! }
//! ```
//!
//! ```compile_fail,E0505
//! fn keeps(seat: &farmem_objects::Seat, one: &farmem_objects::SharedBox<u64>) -> u64 {
//!     let scope = seat.scope();
//!     let kept = one.get(&scope).unwrap();
//!     drop(scope);
//!     *kept
//! }
//! ```
//!
//! … One thread at a time uses a seat:
//!
//! ```compile_fail,E0277
//! fn shares(seat: &farmem_objects::Seat) {
//!     std::thread::scope(|threads| {
//!         threads.spawn(|| seat.scope());
//!     });
//! }
//! ```
//!
//! # Limits
//!
//! * The heaps of a thread have at most 512 GiB of far memory together. So have all shared heaps of
//!   a process.
//! * At most 256 threads use a shared heap at a time. A scope of a shared heap keeps local all
//!   objects that were local when it began. The scope that began first can always bring in a
//!   quarter of each size class. Little can leave while a scope is open. A thread that needs room
//!   waits for scopes to end. It gets [`Error::ScopeFull`] when no scope has ended and no object has
//!   come for a second, or after ten.
//!   A scope may come to be the first after another one has used that quarter. It then gets
//!   [`Error::ScopeFull`] at once. This is rare: end the scope, and try again with a new one.
//! * A process that was forked from one with shared heaps builds none.
//! * A boxed value has at most 4 KiB. So has an element of a vector or queue: an element does not
//!   cross the border of a [`CHUNK`].
//! * An entry of a map has 120 bytes at most: key, value and what aligns them.
//! * An entry of a sorted map has 252 bytes at most, an element of a list 2 KiB.
//! * Objects of one size class have at most 4 GiB of local memory. Those larger than 1 KiB have 16
//!   GiB.
//! * An arena of objects has 64 GiB at most, and 8 bytes near for each slot.
//! * A scope that reaches more than the heap's local memory gets [`Error::ScopeFull`]: open scopes
//!   in loops.
//! * A scope that is leaked (`std::mem::forget`) keeps what it reached local for ever, and all that is
//!   used after it began. When that is all local memory, each use gets [`Error::ScopeFull`].
//! * A lost node is an error of the call that needs it, and never ends the process.

// The files, for readers of the code:
//   class, space, rooms    size classes; addresses of frames; which frames are free
//   frames, homes, word    frames of one thread, and boxes; places in far memory; a box's word
//   evict, heap, scope     which objects leave; a heap's operations; what a scope keeps local
//   share                  the heap's share of a run's `--local`
//   shared                 heaps that threads share
//   vec, list, queue, map, btree, text, cache, arena    the collections
//   dataframe              tables of columns: FarFrame
//   boxes                  what collections need of either kind of heap
//   load, select           loads that let other work go on; elements by condition

mod arena;
mod boxes;
mod btree;
mod cache;
mod class;
mod dataframe;
mod error;
mod evict;
mod frames;
mod heap;
mod homes;
mod list;
mod load;
mod map;
mod queue;
mod rooms;
mod scope;
mod select;
mod share;
mod shared;
mod space;
mod text;
mod vec;
mod way;
mod word;

pub use arena::{Collected, FarArena, Gc, Linked, Root};
#[doc(hidden)]
pub use arena::{count_of, links_of};
pub use btree::FarBTree;
pub use cache::FarCache;
pub use dataframe::{
    Agg, ArrowArray, ArrowSchema, Col, Expr, FarFrame, Groups, Join, Order, Selected, Series, Table, Totals, Type,
    Value, Writer, col,
};
pub use error::{Error, Result};
pub use farmem::Transport;
/// Implements the trait [`trait@Linked`] for a struct.
pub use farmem_objects_derive::Linked;
pub use frames::FarBox;
pub use heap::{Builder, Heap};
pub use list::FarList;
pub use load::Load;
pub use map::FarHashMap;
pub use queue::FarQueue;
pub use scope::Scope;
pub use select::{Field, Filter, Filtered, Number, Summary};
pub use share::Local;
pub use shared::{Seat, SharedBTree, SharedBox, SharedHashMap, SharedHeap, SharedQueue, SharedScope, SharedVec};
pub use text::FarString;
pub use vec::{FarVec, Iter};

/// Bytes of a vector or queue that are fetched and written back together.
pub const CHUNK: usize = 4096;

/// Elements that can be far: plain data, by zerocopy's derives.
pub trait Far: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + 'static {}

impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + 'static> Far for T {}

/// The bytes of a chunk, aligned for any plain type.
#[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(64))]
struct Chunk([u8; CHUNK]);

impl Chunk {
    const ZERO: Chunk = Chunk([0; CHUNK]);
}
