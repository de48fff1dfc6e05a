//! Loads that let other work go on: futures of objects that are on their way.
//!
//! ```text
//! task ─ load ─► post ─┐
//! task ─ load ─► post ─┼─ no task can go on: send all, wait for one ─► poll those tasks again
//! task ─ …             ┘
//! ```
//!
//! No runtime is needed. [`Heap::join`] runs tasks on this thread, and waits by the heap's lane when
//! none of them can go on. Another executor of this thread may poll a load as well. It is woken at
//! once then, so it polls until the object is there.

use crate::{Far, FarBox, Heap, Result, Scope};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A value that comes while other tasks go on: see [`FarBox::load`].
///
/// Awaited, it is the value, or an error as of [`FarBox::get`]. A load that is dropped earlier
/// leaves the value on its way.
#[must_use = "nothing is fetched before the load is polled"]
pub struct Load<'a, T: Far> {
    from: &'a FarBox<T>,
    scope: &'a Scope,
    is_posted: bool,
}

impl<'a, T: Far> Load<'a, T> {
    pub(crate) fn new(from: &'a FarBox<T>, scope: &'a Scope) -> Load<'a, T> {
        Load { from, scope, is_posted: false }
    }
}

impl<'a, T: Far> Future for Load<'a, T> {
    type Output = Result<&'a T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<&'a T>> {
        let on_its_way = self.scope.inner()?.begin_load(self.from, self.scope.mark(), self.is_posted);
        if on_its_way {
            self.is_posted = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        // It is here. Or it has not come: then this fetches it, and says why it cannot.
        Poll::Ready(self.from.get(self.scope))
    }
}

impl<T: Far> fmt::Debug for Load<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("is_posted", &self.is_posted).finish_non_exhaustive()
    }
}

/// Tasks that are begun together: enough to share a round trip.
const TOGETHER: usize = 64;
/// Tasks that begin between two looks at what scopes hold.
const LOOK: usize = 8;
/// Rounds of all open tasks in which none ends, until a further one begins.
const PATIENCE: usize = 1024;

impl Heap {
    /// Runs tasks on this thread until all have ended. Returns their outputs, in the order of the
    /// tasks. While a task awaits a value ([`FarBox::load`]), the others go on. So tasks that each
    /// follow links share the round trips.
    ///
    /// 64 tasks are open at a time. While scopes hold more than a quarter of local memory no further
    /// one begins. A scope that is open for long holds what other tasks use meanwhile, too. If no open
    /// task can go on, or none has ended for 1024 rounds, a further one begins all the same: so tasks
    /// may wait for one another. A task that awaits other things is polled again and again.
    pub fn join<F: Future>(&self, tasks: impl IntoIterator<Item = F>) -> Vec<F::Output> {
        let mut more = tasks.into_iter().fuse();
        let mut outputs: Vec<Option<F::Output>> = Vec::new();
        let mut open: Vec<(usize, Pin<Box<F>>)> = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        let (mut must, mut in_vain) = (false, 0);
        let _joins = Joins::begin(self);
        loop {
            while must || open.len() < TOGETHER && !self.is_crowded(open.len(), outputs.len()) {
                let Some(task) = more.next() else { break };
                let (number, mut task) = (outputs.len(), Box::pin(task));
                must = false;
                // What it awaits first is under way when the next one begins.
                match task.as_mut().poll(&mut context) {
                    Poll::Ready(output) => outputs.push(Some(output)),
                    Poll::Pending => {
                        outputs.push(None);
                        open.push((number, task));
                    }
                }
            }
            if open.is_empty() {
                return outputs.into_iter().flatten().collect();
            }
            let before = open.len();
            open.retain_mut(|(number, task)| match task.as_mut().poll(&mut context) {
                Poll::Ready(output) => {
                    outputs[*number] = Some(output);
                    false
                }
                Poll::Pending => true,
            });
            let has_ended = open.len() < before;
            in_vain = if has_ended { 0 } else { in_vain + 1 };
            // Where a task has ended a further one begins before anything is waited for.
            if !open.is_empty() && !has_ended && !self.inner.await_one() {
                must = true;
                std::thread::yield_now();
            }
            // Loads may be all that open tasks do until a later one tells them something.
            if in_vain == PATIENCE {
                (must, in_vain) = (true, 0);
            }
        }
    }

    /// Whether a task should not begin while `open` others are: their scopes hold much. It looks at
    /// that once for some tasks.
    fn is_crowded(&self, open: usize, begun: usize) -> bool {
        open > 0 && (begun.is_multiple_of(LOOK) || open < LOOK) && self.inner.is_crowded()
    }
}

/// While it lives, loads take arrivals in at some of their polls.
struct Joins<'a> {
    heap: &'a Heap,
    before: bool,
}

impl Joins<'_> {
    fn begin(heap: &Heap) -> Joins<'_> {
        Joins { heap, before: heap.inner.set_joins(true) }
    }
}

impl Drop for Joins<'_> {
    fn drop(&mut self) {
        self.heap.inner.set_joins(self.before);
    }
}
