//! What programs do to an allocator.
//!
//! | pattern | after | what a thread does |
//! |---|---|---|
//! | threadtest | Hoard (Berger et al., ASPLOS 2000, §5) | allocates many objects of 64 bytes, frees them all, again |
//! | shbench | MicroQuill's SmartHeap benchmark, as Hoard's §5 describes it | objects of 8 to 1000 bytes, small ones oftener, freed in another order |
//! | larson | Larson and Krishnan, ISMM 1998, §4 | replaces objects of 16 to 1024 bytes at random in an array, which others continue |
//! | trace | FineMem (OSDI '25), `microbench/traces` | the requests of a recorded allocator, 4 KiB to 2 MiB |
//!
//! A trace records requests and no frees: the oldest are freed when more than
//! [`LIVE`] bytes are live. All is drawn from fixed seeds. Objects are stamped when they are
//! got, and looked at when they are freed: an object that two have is found.

use crate::memory::Malloc;
use crate::meter::Meter;
use anyhow::{Context, Result, ensure};
use farmem_protocol::random::Random;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};

/// Bytes of a trace's requests that are live at once, of all threads together.
pub const LIVE: usize = 256 << 20;

/// A pattern.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // Told in the table above.
pub enum Pattern {
    Threadtest,
    Shbench,
    Larson,
    Trace,
}

struct Object {
    address: usize,
    size: usize,
}

#[inline]
fn get(malloc: &mut impl Malloc, meter: &mut Meter<'_>, size: usize) -> Result<Object> {
    let address = meter.alloc(size, || malloc.alloc(size))?;
    malloc.stamp(address, size)?;
    Ok(Object { address, size })
}

#[inline]
fn give(malloc: &mut impl Malloc, meter: &mut Meter<'_>, object: Object) -> Result<()> {
    ensure!(malloc.is_stamped(object.address, object.size)?, "an object of {} bytes was overwritten", object.size);
    meter.free(object.size, || malloc.free(object.address));
    Ok(())
}

/// `ops` allocations of 64 bytes, 10 000 at a time.
pub fn threadtest(malloc: &mut impl Malloc, meter: &mut Meter<'_>, ops: u64) -> Result<()> {
    let mut objects = Vec::with_capacity(10_000);
    for _ in 0..ops.div_ceil(10_000) {
        for _ in 0..10_000 {
            objects.push(get(malloc, meter, 64)?);
        }
        for object in objects.drain(..) {
            give(malloc, meter, object)?;
        }
    }
    Ok(())
}

/// `ops` allocations, of which some thousand are live.
pub fn shbench(malloc: &mut impl Malloc, meter: &mut Meter<'_>, ops: u64, seed: u64) -> Result<()> {
    let mut draw = Random::new(seed);
    let mut objects: Vec<Object> = Vec::with_capacity(6_000);
    let mut left = ops;
    while left > 0 {
        for _ in 0..2_000.min(left) {
            // Small sizes oftener: the product of two evenly drawn numbers.
            let size = 8 + draw.index(32) * draw.index(32) * 992 / 961;
            objects.push(get(malloc, meter, size)?);
        }
        left -= 2_000.min(left);
        // Every third stays for later rounds, until there are too many; half go in the order they came.
        let mut n = 0;
        let (stay, go): (Vec<_>, Vec<_>) = objects.drain(..).partition(|_| {
            n += 1;
            n % 3 == 0
        });
        let (first, second) = go.into_iter().enumerate().partition::<Vec<_>, _>(|(at, _)| at % 2 == 0);
        for (_, object) in first.into_iter().chain(second.into_iter().rev()) {
            give(malloc, meter, object)?;
        }
        objects = stay;
        while objects.len() > 4_000 {
            let at = draw.index(objects.len());
            let object = objects.swap_remove(at);
            give(malloc, meter, object)?;
        }
    }
    for object in objects {
        give(malloc, meter, object)?;
    }
    Ok(())
}

/// Objects on their way from a thread to the next.
#[derive(Default)]
pub struct Array(Vec<Object>);

/// `ops` replacements in an array of 5 000 objects, which goes to the next thread ten times.
pub fn larson(
    malloc: &mut impl Malloc,
    meter: &mut Meter<'_>,
    ops: u64,
    seed: u64,
    (to, from): (&Sender<Array>, &Receiver<Array>),
) -> Result<()> {
    let mut draw = Random::new(seed);
    let size = |draw: &mut Random| 16 + draw.index(1009);
    let mut array = Array::default();
    for _ in 0..5_000 {
        let bytes = size(&mut draw);
        array.0.push(get(malloc, meter, bytes)?);
    }
    for _ in 0..10 {
        for _ in 0..ops / 10 {
            let at = draw.index(array.0.len());
            let bytes = size(&mut draw);
            let new = get(malloc, meter, bytes)?;
            give(malloc, meter, std::mem::replace(&mut array.0[at], new))?;
        }
        to.send(array).ok().context("the next thread is gone")?;
        array = from.recv().context("the thread before is gone")?;
    }
    for object in array.0 {
        give(malloc, meter, object)?;
    }
    Ok(())
}

/// The requests of a trace, orders as FineMem writes them, this thread's of several.
pub fn trace(malloc: &mut impl Malloc, meter: &mut Meter<'_>, orders: &[u8], live: usize) -> Result<()> {
    let mut objects: VecDeque<Object> = VecDeque::new();
    let mut bytes = 0;
    for &order in orders {
        let size = 4096usize << order;
        while bytes + size > live.max(size) {
            let Some(oldest) = objects.pop_front() else { break };
            bytes -= oldest.size;
            give(malloc, meter, oldest)?;
        }
        objects.push_back(get(malloc, meter, size)?);
        bytes += size;
    }
    for object in objects {
        give(malloc, meter, object)?;
    }
    Ok(())
}
