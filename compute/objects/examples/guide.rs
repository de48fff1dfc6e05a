//! The guide's examples (`docs/objects.md`), in its order. `tests/guide.rs` holds both together.
//!
//! ```sh
//! farmem node --lend 4G &
//! guide 127.0.0.1:7411
//! ```

use farmem_objects::Field;
use farmem_objects::Order as Sorted;
use farmem_objects::Value;
use farmem_objects::{Agg, Join, Table, col};
use farmem_objects::{FarArena, Gc, Linked};
use farmem_objects::{FarBox, FarCache, FarHashMap, FarQueue};
use farmem_objects::{FarVec, Heap, Result};
use farmem_objects::{SharedBox, SharedVec};
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Order {
    number: u64,
    cents: u64,
}

fn main() -> Result<()> {
    let node = std::env::args().nth(1).unwrap_or("127.0.0.1:7411".into());
    let heap = Heap::builder().local("16M").node(&node).build()?;
    let mut orders: FarVec<Order> = heap.vec();
    for number in 0..1_000_000 {
        orders.push(Order { number, cents: number % 1000 })?;
    }
    let mut sum = 0;
    orders.scan(|_, part| sum += part.iter().map(|order| order.cents).sum::<u64>())?;
    println!("{} orders, {sum} cents", orders.len());

    calls(&heap, orders)?;
    collections(&heap)?;
    tasks(&heap)?;
    sums(&heap)?;
    frames(&heap)?;
    graphs(&heap)?;
    threads(node)?;

    Ok(())
}

fn calls(heap: &Heap, mut orders: FarVec<Order>) -> Result<()> {
    let scope = heap.scope();
    let order: &Order = orders.get(17, &scope)?;
    let some: Vec<&Order> = orders.get_many(&[3, 500_000, 999_999], &scope)?;
    assert!(order.number == 17 && some[1].cents == 0);
    drop(scope);

    orders.set(17, Order { number: 17, cents: 5 })?;
    let copy: Order = orders.read(17)?;
    assert_eq!(copy.cents, 5);

    for chunk in [[1, 2, 3], [4, 5, 6]] {
        let scope = heap.scope();
        for order in orders.get_many(&chunk, &scope)? {
            println!("{}: {} cents", order.number, order.cents);
        }
    }
    Ok(())
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct User {
    age: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, PartialEq, Debug)]
#[repr(C)]
struct Job {
    number: u64,
}

fn collections(heap: &Heap) -> Result<()> {
    let order: FarBox<Order> = heap.alloc(&Order { number: 1, cents: 7 })?;
    let mut users: FarHashMap<u64, User> = heap.map();
    let mut jobs: FarQueue<Job> = heap.queue();
    let mut squares: FarCache<u64, u64> = heap.cache(1000);
    let square = squares.get(&7, |n| n * n)?;

    assert_eq!((order.read()?.cents, square), (7, 49));
    users.insert(9, User { age: 42 })?;
    let scope = heap.scope();
    assert_eq!(users.get(&9, &scope)?.map(|user| user.age), Some(42));
    jobs.push_back(Job { number: 1 })?;
    assert_eq!(jobs.pop_front()?, Some(Job { number: 1 }));
    Ok(())
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Node {
    value: u64,
    next: u64,
}

fn tasks(heap: &Heap) -> Result<()> {
    let nodes = (0..1000).map(|n| heap.alloc(&Node { value: n, next: (n * 7 + 1) % 1000 }));
    let nodes = nodes.collect::<Result<Vec<FarBox<Node>>>>()?;

    let chase = async |from: u64| -> Result<u64> {
        let (mut at, mut sum) = (from, 0);
        for _ in 0..100 {
            let scope = heap.scope();
            let one = nodes[at as usize].load(&scope).await?;
            (sum, at) = (sum + one.value, one.next);
        }
        Ok(sum)
    };
    let sums = heap.join((0..50).map(chase));

    assert_eq!(sums.into_iter().collect::<Result<Vec<u64>>>()?.len(), 50);
    Ok(())
}

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Trip {
    fare: f64,
    day: u32,
    rest: u32,
}

fn sums(heap: &Heap) -> Result<()> {
    let mut trips: FarVec<Trip> = heap.vec();
    (0..100_000).try_for_each(|n| trips.push(Trip { fare: 1.5, day: n % 365, rest: 0 }))?;

    let early = trips.filter(Field::u32(offset_of!(Trip, day)).at_most(89));
    let fares: f64 = early.sum(Field::f64(offset_of!(Trip, fare)))?;
    let some: Vec<Trip> = trips.gather(&[5, 80_000, 12])?;

    assert!(fares > 30_000.0 && some[2].day == 12 && some[0].rest == 0);
    Ok(())
}

fn frames(heap: &Heap) -> Result<()> {
    let days: Vec<i32> = (0..50_000).map(|n| n % 365).collect();
    let fares: Vec<f64> = (0..50_000).map(|n| f64::from(n % 40)).collect();
    let names = Table::new([("day", vec![1, 2].into()), ("week", vec![1i32, 1].into())])?;
    let names = heap.frame(&names)?;

    let trips = heap.frame(&Table::new([("day", days.into()), ("fare", fares.into())])?)?;
    let total = trips.filter(col("day").lt(90)).sum("fare")?;
    let cheap = trips.filter(col("fare").lt(10.0).or(col("day").eq(1))).collect()?;
    let by_day = trips.group(&["day"]).of(&[Agg::mean("fare"), Agg::rows()])?;
    let sorted = trips.sort(&[("fare", Sorted::Descending)])?;
    let named = trips.join(&names, "day", Join::Left)?;
    println!("{:?}", named.head(5)?);

    println!("{total:?}, {} cheap, {} days, {} sorted", cheap.len(), by_day.len(), sorted.len());
    Ok(())
}

#[derive(FromBytes, IntoBytes, Immutable, Linked)]
#[repr(C)]
struct Person {
    friends: [Gc<Person>; 2],
    age: u64,
}

fn graphs(heap: &Heap) -> Result<()> {
    let mut people: FarArena<Person> = heap.arena();
    let ann = people.alloc(&Person { friends: [Gc::NONE; 2], age: 7 })?;
    let bob = people.alloc(&Person { friends: [ann, Gc::NONE], age: 8 })?;
    let scope = heap.scope();
    people.get_mut(ann, &scope)?.unwrap().friends[0] = bob;
    drop(scope);
    let root = people.root(ann);
    let collected = people.collect()?;

    let scope = heap.scope();
    assert_eq!((collected.live, people.get(root.gc(), &scope)?.map(|ann| ann.age)), (2, Some(7)));
    Ok(())
}

fn threads(node: String) -> Result<()> {
    let shared = Heap::builder().local("16M").node(&node).build_shared()?;
    let seat = shared.seat()?;
    let mut prices: SharedVec<u64> = shared.vec();
    prices.extend_from_slice(&[119, 7, 12], &seat)?;
    let order: SharedBox<Order> = seat.alloc(&Order { number: 1, cents: 7 })?;

    std::thread::scope(|threads| {
        for n in 0..3 {
            let (shared, prices, order) = (&shared, &prices, &order);
            threads.spawn(move || -> Result<u64> {
                let seat = shared.seat()?;
                let scope = seat.scope();
                let both = prices.get_many(&[n, 2], &scope)?;
                Ok(both[0] + both[1] + order.get(&scope)?.cents)
            });
        }
    });

    let sum_of = |rows: Range<u32>| -> Result<Value> {
        let heap = Heap::builder().local("4M").node(&node).build()?;
        let fares: Vec<f64> = rows.map(f64::from).collect();
        heap.frame(&Table::new([("fare", fares.into())])?)?.all().sum("fare")
    };
    let sums = std::thread::scope(|threads| {
        let parts = [0..5000, 5000..9000].map(|rows| threads.spawn(move || sum_of(rows)));
        parts.map(|part| part.join().unwrap())
    });

    let [first, second] = sums;
    assert_eq!((first?, second?), (Value::F64(12_497_500.0), Value::F64(27_998_000.0)));
    Ok(())
}
