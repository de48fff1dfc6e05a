//! Threads that read one far vector together, under `farmem run`.
//!
//! ```sh
//! farmem run --local 16M -- threads
//! ```

use farmem_objects::{Heap, Result, SharedVec};

/// Threads.
const THREADS: usize = 4;

fn main() -> std::process::ExitCode {
    match run() {
        Ok(line) => {
            println!("{line}");
            std::process::ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("threads: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<String> {
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
