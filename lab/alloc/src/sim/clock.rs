//! Virtual time, and the tasks that live in it.
//!
//! A client is an async function; where it waits, it says until when. One heap
//! orders what is due by time, then by who asked first, so that a run follows
//! from its seed alone. Nothing here looks at a real clock.
//!
//! While the world is *instant* nothing takes time: every wait is over at once,
//! and an operation runs from start to end without another coming between. That
//! is how a pool is filled before anything is measured.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Virtual time, ns.
pub type Nanos = u64;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// The clock and the tasks.
#[derive(Default)]
pub struct World {
    now: Cell<Nanos>,
    asked: Cell<u64>,
    due: RefCell<BinaryHeap<Reverse<(Nanos, u64, usize)>>>,
    tasks: RefCell<Vec<Option<Task>>>,
    vacant: RefCell<Vec<usize>>,
    current: Cell<usize>,
    foreground: Cell<usize>,
    instant: Cell<bool>,
}

impl World {
    /// At time 0, without tasks.
    pub fn new() -> Rc<World> {
        Rc::default()
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// From now on nothing takes time, or things do again.
    pub fn set_instant(&self, instant: bool) {
        self.instant.set(instant);
    }

    /// Whether nothing takes time.
    pub fn is_instant(&self) -> bool {
        self.instant.get()
    }

    /// Adds a task that [`World::run`] waits for.
    pub fn client(self: &Rc<World>, task: impl Future<Output = ()> + 'static) {
        self.foreground.set(self.foreground.get() + 1);
        let world = self.clone();
        self.background(async move {
            task.await;
            world.foreground.set(world.foreground.get() - 1);
        });
    }

    /// Adds a task that goes on beside the clients and need not end.
    ///
    /// # Panics
    /// In an instant world, when the task waits for another: nobody else is running there.
    pub fn background(self: &Rc<World>, task: impl Future<Output = ()> + 'static) {
        if self.is_instant() {
            return self.at_once(task);
        }
        let slot = match self.vacant.borrow_mut().pop() {
            Some(slot) => slot,
            None => {
                self.tasks.borrow_mut().push(None);
                self.tasks.borrow().len() - 1
            }
        };
        self.tasks.borrow_mut()[slot] = Some(Box::pin(task));
        self.wake(self.now(), slot);
    }

    /// Runs an operation of an instant world.
    ///
    /// # Panics
    /// When it waits for another task.
    pub fn at_once<R>(&self, operation: impl Future<Output = R>) -> R {
        debug_assert!(self.is_instant());
        match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => result,
            Poll::Pending => panic!("an operation of an instant world waits for somebody else"),
        }
    }

    /// Lets time pass until every client has ended.
    ///
    /// # Panics
    /// When clients are left that nothing will ever wake.
    pub fn run(&self) {
        // What runs beside the clients never ends, so that a client that waits for ever would go unnoticed.
        let end = self.now() + 3_600_000_000_000;
        while self.foreground.get() > 0 {
            assert!(self.step(), "{} clients wait for what will never come", self.foreground.get());
            assert!(self.now() < end, "clients are not done after an hour");
        }
    }

    /// Clients that have not ended.
    pub fn clients(&self) -> usize {
        self.foreground.get()
    }

    /// Lets time pass, and all that is due in it happen, until `end`.
    pub fn run_until(&self, end: Nanos) {
        while self.due.borrow().peek().is_some_and(|Reverse((at, ..))| *at <= end) {
            self.step();
        }
        self.now.set(self.now().max(end));
    }

    /// Ends every task where it stands. Tasks hold the world and the world holds them: without this, both would stay.
    pub fn end(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
        self.due.borrow_mut().clear();
        self.vacant.borrow_mut().clear();
        self.foreground.set(0);
    }

    fn step(&self) -> bool {
        let Some(Reverse((at, _, slot))) = self.due.borrow_mut().pop() else { return false };
        self.now.set(at.max(self.now()));
        let Some(mut task) = self.tasks.borrow_mut().get_mut(slot).and_then(Option::take) else { return true };
        self.current.set(slot);
        match task.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => self.tasks.borrow_mut()[slot] = Some(task),
            Poll::Ready(()) => self.vacant.borrow_mut().push(slot),
        }
        true
    }

    fn wake(&self, at: Nanos, slot: usize) {
        let asked = self.asked.get();
        self.asked.set(asked + 1);
        self.due.borrow_mut().push(Reverse((at, asked, slot)));
    }

    /// Waits until `at`.
    pub fn until(&self, at: Nanos) -> impl Future<Output = ()> + '_ {
        let mut asked = false;
        std::future::poll_fn(move |_| {
            if self.is_instant() || (asked && self.now() >= at) {
                return Poll::Ready(());
            }
            if !asked {
                asked = true;
                self.wake(at, self.current.get());
            }
            Poll::Pending
        })
    }

    /// Waits so long.
    pub fn sleep(&self, time: Nanos) -> impl Future<Output = ()> + '_ {
        self.until(self.now() + time)
    }
}

/// Both, side by side.
pub async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut one, mut two) = (None, None);
    std::future::poll_fn(move |context| {
        if one.is_none()
            && let Poll::Ready(result) = a.as_mut().poll(context)
        {
            one = Some(result);
        }
        if two.is_none()
            && let Poll::Ready(result) = b.as_mut().poll(context)
        {
            two = Some(result);
        }
        if one.is_some() && two.is_some() {
            Poll::Ready(one.take().zip(two.take()).expect("both are there"))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// All of them, side by side; results in their order.
pub async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, result) in &mut futures {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    futures.into_iter().map(|(_, result)| result.expect("none is waiting")).collect()
}

/// Tasks that wait until something is told to all of them.
#[derive(Default)]
pub struct Signal {
    told: Cell<u64>,
    waiting: RefCell<VecDeque<usize>>,
}

impl Signal {
    /// Waits for the next [`Signal::tell`].
    pub fn wait<'a>(&'a self, world: &'a World) -> impl Future<Output = ()> + 'a {
        let (seen, mut asked) = (self.told.get(), false);
        std::future::poll_fn(move |_| {
            if self.told.get() != seen {
                return Poll::Ready(());
            }
            if !asked {
                asked = true;
                self.waiting.borrow_mut().push_back(world.current.get());
            }
            Poll::Pending
        })
    }

    /// Wakes all who wait.
    pub fn tell(&self, world: &World) {
        self.told.set(self.told.get() + 1);
        self.waiting.borrow_mut().drain(..).for_each(|slot| world.wake(world.now(), slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_first_happens_first_and_ties_go_by_who_asked() {
        let (world, seen) = (World::new(), Rc::new(RefCell::new(Vec::new())));
        for (name, wait) in [("slow", 30), ("quick", 10), ("also quick", 10)] {
            let (inner, seen) = (world.clone(), seen.clone());
            world.client(async move {
                inner.sleep(wait).await;
                seen.borrow_mut().push((inner.now(), name));
            });
        }
        world.run();
        assert_eq!(*seen.borrow(), [(10, "quick"), (10, "also quick"), (30, "slow")]);
        world.end();
    }

    #[test]
    fn both_take_as_long_as_the_longer() {
        let world = World::new();
        let inner = world.clone();
        world.client(async move {
            both(inner.sleep(10), inner.sleep(25)).await;
            assert_eq!(inner.now(), 25);
        });
        world.run();
        assert_eq!(world.now(), 25);
        world.end();
    }

    #[test]
    fn a_signal_wakes_all_who_wait() {
        let (world, signal, woken) = (World::new(), Rc::new(Signal::default()), Rc::new(Cell::new(0)));
        for _ in 0..3 {
            let (inner, signal, woken) = (world.clone(), signal.clone(), woken.clone());
            world.client(async move {
                signal.wait(&inner).await;
                woken.set(woken.get() + 1);
                assert_eq!(inner.now(), 7);
            });
        }
        let (inner, signal) = (world.clone(), signal.clone());
        world.client(async move {
            inner.sleep(7).await;
            signal.tell(&inner);
        });
        world.run();
        assert_eq!(woken.get(), 3);
        world.end();
    }

    #[test]
    fn nothing_takes_time_in_an_instant_world() {
        let world = World::new();
        world.set_instant(true);
        world.at_once(world.sleep(1_000));
        assert_eq!(world.now(), 0);
    }
}
