//! Random reads of objects by two threads at once: each on a CPU of its own, if there are two.

use std::time::Instant;

use anyhow::{Result, anyhow};
use farmem_kit::affinity;
use farmem_objects::{Seat, SharedBox};

use super::{Found, Object, Options, Places, TOGETHER, Work, builder, object};

/// Runs `read` in two threads, by batches of places, after half as many that warm the store up.
/// Time of one of all reads, ns, and the sum.
fn both<S>(
    options: &Options,
    begin: impl Fn() -> Result<S> + Sync,
    read: impl Fn(&S, &[usize]) -> Result<u64> + Sync,
) -> Result<(f64, u64)> {
    let there = std::sync::Barrier::new(2);
    let one = |second: bool| -> Result<(Instant, Instant, u64)> {
        let cpu = options.second.filter(|_| second);
        let begin = || {
            cpu.map(|cpu| affinity::pin(&[cpu])).transpose()?;
            begin()
        };
        let (state, mut places) = (begin(), Places(options.seed + u64::from(second) * 977));
        let mut some = |times: usize| {
            let state = state.as_ref().map_err(|e| anyhow!("{e:#}"))?;
            (0..times).try_fold(0u64, |sum, _| {
                let some: [usize; TOGETHER] = std::array::from_fn(|_| places.next(options.objects));
                Ok(sum.wrapping_add(read(state, &some)?))
            })
        };
        let warm: Result<u64> = some(options.accesses.div_ceil(2 * TOGETHER));
        // A thread that has failed comes to the barrier all the same.
        there.wait();
        let begun = Instant::now();
        let sum: Result<u64> = some(options.accesses.div_ceil(TOGETHER));
        Ok((begun, Instant::now(), warm?.wrapping_add(sum?)))
    };
    let ended = std::thread::scope(|threads| {
        let other = threads.spawn(|| one(true));
        let this = one(false);
        [this, other.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))]
    });
    let [this, other] = ended;
    let ((begun, ended, sum), (begun_there, ended_there, sum_there)) = (this?, other?);
    let all = 2 * options.accesses.div_ceil(TOGETHER) * TOGETHER;
    let took = ended.max(ended_there) - begun.min(begun_there);
    Ok((took.as_nanos() as f64 / all as f64, sum.wrapping_add(sum_there)))
}

/// Of near memory.
pub fn near(options: &Options) -> Result<(f64, u64)> {
    let objects: Vec<Object> = (0..options.objects as u64).map(object).collect();
    let read = |(): &(), places: &[usize]| {
        if options.hints {
            farmem_hints::read_each(&places.iter().map(|&at| &objects[at]).collect::<Vec<_>>());
        }
        Ok(places.iter().fold(0u64, |sum, &at| sum.wrapping_add(objects[at][3])))
    };
    both(options, || Ok(()), read)
}

/// Of a heap that the threads share.
pub fn far(options: &Options) -> Result<Found> {
    let heap = builder(options)?.build_shared()?;
    let seat = heap.seat()?;
    let boxes = (0..options.objects as u64).map(|n| seat.alloc(&object(n)));
    let boxes = boxes.collect::<farmem_objects::Result<Vec<SharedBox<Object>>>>()?;
    let before = heap.moved().0;
    let read = |seat: &Seat, places: &[usize]| {
        let scope = seat.scope();
        let mut sum = 0u64;
        for &at in places {
            sum = sum.wrapping_add(boxes[at].get(&scope)?[3]);
        }
        Ok(sum)
    };
    let (ns, sum) = both(options, || Ok(heap.seat()?), read)?;
    Ok(Found { work: Work::Pair, ns, sum, fetched: heap.moved().0 - before })
}
