//! Orders in far memory, reached at random: under `farmem run`, or with a node of its own.
//!
//! ```sh
//! farmem run --local 16M -- orders          # one --local for the orders and the rest
//! orders bighost:7411                       # without: 16M for the orders
//! ```

use farmem_objects::{Error, FarHashMap, FarVec, Heap, Result};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Order {
    number: u64,
    cents: u64,
}

fn main() -> std::process::ExitCode {
    match run() {
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

fn run() -> Result<String> {
    let far = match (Heap::of_run(), std::env::args().nth(1)) {
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
