//! A hash join as databases do it: build a table of one relation, probe it with
//! the other, aggregate. Prints the aggregate, the same for the same arguments.
//!
//! `hash-join ROWS [THREADS]`

use std::collections::HashMap;

/// splitmix64: rows are made, not read, so that only memory is measured.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A key's place among its thread's keys must not follow from the row number.
#[derive(Default, Clone, Copy)]
struct Mixing(u64);

impl std::hash::Hasher for Mixing {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = mix(self.0 ^ u64::from(byte));
        }
    }
    fn write_u64(&mut self, key: u64) {
        self.0 = mix(key);
    }
}

impl std::hash::BuildHasher for Mixing {
    type Hasher = Mixing;
    fn build_hasher(&self) -> Mixing {
        *self
    }
}

struct Order {
    amount: u64,
    note: [u64; 4],
}

fn join(rows: u64, part: u64, parts: u64) -> (u64, u64, u64) {
    let mut orders: HashMap<u64, Order, Mixing> = HashMap::default();
    for row in (part..rows).step_by(parts as usize) {
        let order = Order { amount: mix(row) % 10_000, note: [row, mix(row + 1), mix(row + 2), mix(row + 3)] };
        orders.insert(mix(row ^ 0xabcd) % (4 * rows), order);
    }
    let (mut matched, mut total, mut digest) = (0, 0u64, 0u64);
    for item in 0..2 * rows {
        if let Some(order) = orders.get(&(mix(item ^ 0xabcd) % (4 * rows))) {
            matched += 1;
            total += order.amount;
            digest = mix(digest ^ order.note[(item % 4) as usize]);
        }
    }
    (matched, total, digest)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>().expect("hash-join ROWS [THREADS]"));
    let rows = arguments.next().expect("hash-join ROWS [THREADS]");
    let threads = arguments.next().unwrap_or(2);
    let joins: Vec<_> = (0..threads).map(|part| std::thread::spawn(move || join(rows, part, threads))).collect();
    for (part, handle) in joins.into_iter().enumerate() {
        let (matched, total, digest) = handle.join().expect("a join does not panic");
        println!("part {part}: {matched} rows, amount {total}, digest {digest:016x}");
    }
}
