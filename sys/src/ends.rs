//! The two ends of a queue that threads share. Its middle is made of blocks, of which the caller knows
//! where they lie.
//!
//! ```text
//! push ─► back: up to a block of elements ── full: sealed ─► blocks ─► next ── opened ─► front ─► pop
//!                                  └── no blocks between: moved as it is ──────────────────┘
//! ```
//!
//! Each end has a lock. A thread that opens a block holds the front's alone, so others push
//! meanwhile. It is shown the blocks behind it, too, so that it can fetch them ahead: for that, some
//! blocks at a time belong to the front. Locks are taken in this order: front, back, blocks. Sealing
//! and opening may fail: then nothing has moved.
//!
//! A consumer that finds no block takes the back. Before, with the back's lock, it looks for blocks
//! once more: the back may have been sealed meanwhile, and what is in it now is younger.
//!
//! Every order of two threads that push and one that takes is tried out by loom, and that mistake is
//! found: `RUSTFLAGS="--cfg loom" cargo test -p farmem-sys --lib --release models`.

use std::collections::VecDeque;
use std::sync::PoisonError;

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

/// The ends of a queue of elements `E`, and its blocks `B`.
#[derive(Debug)]
pub struct Ends<E, B> {
    front: Mutex<Front<E, B>>,
    back: Mutex<Vec<E>>,
    blocks: Mutex<VecDeque<B>>,
    /// A mistake, for models: blocks are not looked for again.
    #[cfg(loom)]
    pub looks_once: bool,
}

/// The oldest elements, and the blocks behind them.
#[derive(Debug)]
struct Front<E, B> {
    elements: VecDeque<E>,
    next: VecDeque<B>,
}

/// No element is dropped under a lock, and no caller's code leaves one half changed: a lock whose
/// holder panicked is as good as any.
fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<E, B> Default for Ends<E, B> {
    fn default() -> Ends<E, B> {
        Ends {
            front: Mutex::new(Front { elements: VecDeque::new(), next: VecDeque::new() }),
            back: Mutex::new(Vec::new()),
            blocks: Mutex::new(VecDeque::new()),
            #[cfg(loom)]
            looks_once: false,
        }
    }
}

impl<E, B> Ends<E, B> {
    /// Appends an element. `each`: elements of a block. `seal` makes a block of as many.
    ///
    /// # Errors
    /// `seal`'s. The queue is as it was then.
    pub fn push<X>(&self, element: E, each: usize, seal: impl FnOnce(&[E]) -> Result<B, X>) -> Result<(), X> {
        let mut back = locked(&self.back);
        if back.len() == each {
            let block = seal(&back)?;
            locked(&self.blocks).push_back(block);
            back.clear();
        }
        back.push(element);
        Ok(())
    }

    /// Takes the first element. `open` gives back the elements of the first of some blocks, at most
    /// `ahead`, which come to the front in this order. They are some.
    ///
    /// # Errors
    /// `open`'s. The queue is as it was then.
    pub fn pop<X>(&self, ahead: usize, open: impl FnOnce(&[B]) -> Result<Vec<E>, X>) -> Result<Option<E>, X> {
        let mut front = locked(&self.front);
        if front.elements.is_empty() {
            self.provide(&mut front, ahead.max(1));
            if !front.next.is_empty() {
                front.elements = open(front.next.make_contiguous())?.into();
                front.next.pop_front();
            }
        }
        Ok(front.elements.pop_front())
    }

    /// Sees to a block for the front, if there is one. If there is none, moves the back to the front.
    fn provide(&self, front: &mut Front<E, B>, ahead: usize) {
        let take = |next: &mut VecDeque<B>| {
            if next.is_empty() {
                let mut blocks = locked(&self.blocks);
                let some = ahead.min(blocks.len());
                next.extend(blocks.drain(..some));
            }
            !next.is_empty()
        };
        if take(&mut front.next) {
            return;
        }
        let mut back = locked(&self.back);
        #[cfg(loom)]
        let take = |next: &mut VecDeque<B>| !self.looks_once && take(next);
        if !take(&mut front.next) {
            front.elements.extend(back.drain(..));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn sealed(elements: &[u64]) -> Result<Vec<u64>, ()> {
        Ok(elements.to_vec())
    }

    #[test]
    fn elements_come_in_order_and_failures_change_nothing() {
        let ends: Ends<u64, Vec<u64>> = Ends::default();
        for n in 0..10 {
            if n == 8 {
                assert_eq!(ends.push(n, 4, |_| Err("full")), Err("full"));
            }
            ends.push(n, 4, sealed).unwrap();
        }
        for n in 0..10 {
            if n % 4 == 0 && n < 8 {
                assert_eq!(ends.pop(1 + n as usize % 3, |_| Err("lost")), Err("lost"));
            }
            assert_eq!(ends.pop(3, |blocks| Ok::<_, ()>(blocks[0].clone())), Ok(Some(n)));
        }
        assert_eq!(ends.pop(3, |blocks| Ok::<_, ()>(blocks[0].clone())), Ok(None));
    }

    #[test]
    fn who_opens_a_block_sees_those_that_come_next() {
        let ends: Ends<u64, Vec<u64>> = Ends::default();
        (0..9).for_each(|n| ends.push(n, 1, sealed).unwrap());
        let mut seen = Vec::new();
        while let Some(element) = ends
            .pop(3, |blocks| {
                seen.push(blocks.len());
                assert!(blocks.windows(2).all(|two| two[0][0] + 1 == two[1][0]));
                Ok::<_, ()>(blocks[0].clone())
            })
            .unwrap()
        {
            // What is pushed meanwhile is younger than all blocks.
            if element == 4 {
                ends.push(9, 1, sealed).unwrap();
            }
        }
        assert_eq!(seen, [3, 2, 1, 3, 2, 1, 3, 2, 1]);
        // A panic while a block is opened leaves it there.
        (0..3).for_each(|n| ends.push(n, 1, sealed).unwrap());
        let panics = std::panic::AssertUnwindSafe(|| ends.pop(2, |_| -> Result<_, ()> { panic!("on purpose") }));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(ends.pop(2, |blocks| Ok::<_, ()>(blocks[0].clone())), Ok(Some(0)));
    }

    #[test]
    fn threads_get_each_element_once_and_each_threads_in_order() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let (ends, left) = (Ends::<u64, Vec<u64>>::default(), AtomicUsize::new(3 * EACH as usize));
        let taken: Vec<Vec<u64>> = std::thread::scope(|threads| {
            for thread in 0..3 {
                let ends = &ends;
                threads.spawn(move || (0..EACH).for_each(|n| ends.push(thread << 32 | n, 7, sealed).unwrap()));
            }
            let take = || {
                let mut taken = Vec::new();
                while left.load(Ordering::Relaxed) > 0 {
                    match ends.pop(3, |blocks| Ok::<_, ()>(blocks[0].clone())).unwrap() {
                        Some(element) => {
                            left.fetch_sub(1, Ordering::Relaxed);
                            taken.push(element);
                        }
                        None => std::thread::yield_now(),
                    }
                }
                taken
            };
            let takers: Vec<_> = (0..2).map(|_| threads.spawn(take)).collect();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        for thread in 0..3 {
            let mut all = Vec::new();
            for by in &taken {
                let of_it: Vec<u64> = by.iter().copied().filter(|element| element >> 32 == thread).collect();
                assert!(of_it.is_sorted());
                all.extend(of_it);
            }
            all.sort_unstable();
            assert!(all.into_iter().eq((0..EACH).map(|n| thread << 32 | n)));
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread::spawn;

    /// Two threads push two elements each, and a third takes some meanwhile.
    fn explore(looks_once: bool) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let ends = Arc::new(Ends { looks_once, ..Ends::<u32, Vec<u32>>::default() });
            let push = |element: u32, ends: &Ends<u32, Vec<u32>>| {
                ends.push(element, 1, |all| Ok::<_, ()>(all.to_vec())).unwrap();
            };
            let pop = |ends: &Ends<u32, Vec<u32>>| ends.pop(2, |blocks| Ok::<_, ()>(blocks[0].clone())).unwrap();
            let pushers: Vec<_> = [10, 20]
                .into_iter()
                .map(|first| {
                    let ends = Arc::clone(&ends);
                    spawn(move || (first..first + 2).for_each(|element| push(element, &ends)))
                })
                .collect();
            let mut taken: Vec<u32> = (0..2).filter_map(|_| pop(&ends)).collect();
            pushers.into_iter().for_each(|pusher| pusher.join().unwrap());
            taken.extend(std::iter::from_fn(|| pop(&ends)));
            for first in [10, 20] {
                assert!(taken.iter().copied().filter(|one| one / 10 == first / 10).eq(first..first + 2), "{taken:?}");
            }
            assert_eq!(taken.len(), 4);
        });
    }

    #[test]
    fn all_elements_come_once_and_in_order() {
        explore(false);
    }

    #[test]
    #[should_panic]
    fn blocks_that_are_looked_for_once_are_found() {
        explore(true);
    }
}
