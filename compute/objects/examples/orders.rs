//! Orders in far memory, reached at random: under `farmem run`, or with a node of its own. Or
//! numbers in far memory, which threads read together.
//!
//! ```sh
//! farmem run --local 16M -- orders          # one --local for the orders and the rest
//! orders bighost:7411                       # without: 16M for the orders
//! farmem run --local 16M -- orders threads
//! farmem run --local 16M -- orders turns    # heaps use the run's share in turn
//! farmem run … --protect mirror -- orders lost    # says what is left when a node is lost
//! farmem run --local 16M -- orders shares    # objects and pages by turns, and what each has then
//! ```

use farmem_objects::{Error, FarHashMap, FarVec, Heap, Result, SharedVec};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Threads of `orders threads`.
const THREADS: usize = 4;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Order {
    number: u64,
    cents: u64,
}

fn main() -> std::process::ExitCode {
    let ran = match std::env::args().nth(1) {
        Some(word) if word == "threads" => threads(),
        Some(word) if word == "turns" => turns(),
        Some(word) if word == "lost" => lost(),
        Some(word) if word == "shares" => shares(),
        node => orders(node),
    };
    match ran {
        Ok(line) => {
            println!("{line}");
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("orders: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn orders(node: Option<String>) -> Result<String> {
    let far = match (Heap::of_run(), node) {
        (Err(Error::NoRun), Some(node)) => Heap::builder().local("16M").node(node).build()?,
        (heap, _) => heap?,
    };
    let mut orders: FarVec<Order> = far.vec();
    let mut by_number: FarHashMap<u64, u64> = far.map();
    for n in 0..1_000_000u64 {
        let number = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        orders.push(Order { number, cents: n % 1000 })?;
        if n % 8 == 0 {
            by_number.insert(number, n)?;
        }
    }
    // Memory of the program's own, which is paged under `farmem run`, beside it.
    let near: Vec<u64> = (0..1 << 20).collect();
    let mut sum = 0;
    for round in 0..250u64 {
        let places: Vec<usize> = (0..64).map(|n| (round * 64 + n) as usize * 7919 % orders.len()).collect();
        let scope = far.scope();
        for order in orders.get_many(&places, &scope)? {
            let found = by_number.get(&order.number, &scope)?;
            sum += order.cents + found.copied().unwrap_or_default() + near[order.cents as usize * 1000];
        }
    }
    Ok(format!("{} orders, {} by number, {sum}", orders.len(), by_number.len()))
}

/// Threads that read one far vector.
fn threads() -> Result<String> {
    let heap = Heap::builder_of_run()?.build_shared()?;
    let seat = heap.seat()?;
    let mut squares: SharedVec<u64> = heap.vec();
    for first in (0..1_000_000u64).step_by(1000) {
        let some: Vec<u64> = (first..first + 1000).map(|n| n * n).collect();
        squares.extend_from_slice(&some, &seat)?;
    }
    // Memory of the program's own, which is paged, beside it.
    let near: Vec<u64> = (0..1 << 20).collect();
    let sums = std::thread::scope(|threads| {
        let (heap, squares, near) = (&heap, &squares, &near);
        let sum = move |thread: usize| -> Result<u64> {
            let (seat, mut sum) = (heap.seat()?, 0u64);
            for round in 0..250 {
                let places: Vec<usize> =
                    (0..16).map(|n| (thread * 4000 + round * 16 + n) * 7919 % squares.len()).collect();
                let scope = seat.scope();
                for &square in squares.get_many(&places, &scope)? {
                    sum = sum.wrapping_add(square).wrapping_add(near[(square % (1 << 20)) as usize]);
                }
            }
            Ok(sum)
        };
        let all: Vec<_> = (0..THREADS).map(|thread| threads.spawn(move || sum(thread))).collect();
        all.into_iter().map(|one| one.join().unwrap_or(Ok(0))).collect::<Result<Vec<u64>>>()
    })?;
    let sum = sums.into_iter().fold(0u64, u64::wrapping_add);
    Ok(format!("{} squares by {THREADS} threads, {sum}", squares.len()))
}

/// Objects and pages, of which one node is lost between the two lines that this prints.
fn lost() -> Result<String> {
    const OBJECTS: u64 = 12_000;
    let far = Heap::of_run()?;
    let value = |n: u64| -> [u64; 64] { std::array::from_fn(|word| n ^ (word as u64) << 40) };
    let boxes = (0..OBJECTS).map(|n| far.alloc(&value(n))).collect::<Result<Vec<_>>>()?;
    let near: Vec<u64> = (0..1 << 20).collect();
    // All objects have been home, and what is local is as it is there.
    boxes.iter().try_for_each(|one| one.read().map(drop))?;
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    let pages = near.iter().zip(0..).filter(|(found, wanted)| *found == wanted).count();
    let (mut sound, mut gone) = (0, 0);
    for (one, n) in boxes.iter().zip(0..) {
        match one.read() {
            Ok(found) => sound += u64::from(found == value(n)),
            Err(Error::Memory(farmem::Error::Lost { .. })) => gone += 1,
            Err(e) => return Err(e),
        }
    }
    Ok(format!("{pages} words, {sound} objects sound, {gone} lost"))
}

/// Heaps that use the run's share one after the other, although none of them ends.
fn turns() -> Result<String> {
    let (mut full, mut bytes) = (0, Vec::new());
    let first = Heap::of_run()?;
    let mut orders: FarVec<[u64; 2]> = first.vec();
    while first.local().0 < first.local().1 {
        orders.push([7; 2])?;
    }
    full += usize::from(matches!(Heap::of_run(), Err(Error::ShareFull)));
    bytes.push(first.local().0);
    drop(orders);
    bytes.push(first.local().0);
    let shared = Heap::builder_of_run()?.build_shared()?;
    let seat = shared.seat()?;
    let mut orders: SharedVec<[u64; 2]> = shared.vec();
    while shared.local().0 < shared.local().1 {
        orders.push([7; 2], &seat)?;
    }
    full += usize::from(matches!(Heap::of_run(), Err(Error::ShareFull)));
    bytes.push(shared.local().0);
    drop(orders);
    bytes.push(shared.local().0);
    let last = Heap::of_run()?;
    let seven = last.alloc(&7u64)?.read()?;
    Ok(format!("{seven}, full {full} times: {bytes:?}"))
}

/// Objects that need more than half of local memory, then pages that do. What objects have of it, in
/// KiB, after each.
fn shares() -> Result<String> {
    const BYTES: usize = 10 << 20;
    let far = Heap::of_run()?;
    let objects = (0..BYTES as u64 / 512).map(|n| far.alloc(&[n; 64])).collect::<Result<Vec<_>>>()?;
    let pages: Vec<u64> = (0..BYTES as u64 / 8).collect();
    let mut random = 1u64;
    let mut below = |most: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % most as u64) as usize
    };
    let (mut had, mut sum) = (Vec::new(), 0u64);
    for are_objects in [true, false, true] {
        for n in 0..120_000 {
            let takes_object = if n % 64 == 0 { !are_objects } else { are_objects };
            if takes_object {
                let place = below(objects.len());
                let value = objects[place].read()?;
                sum += u64::from(value == [place as u64; 64]);
            } else {
                let place = below(pages.len());
                sum += u64::from(pages[place] == place as u64);
            }
        }
        had.push(far.local().0 >> 10);
    }
    Ok(format!("{sum} sound, objects had {had:?} KiB"))
}
