//! Tasks under way and what they wait for.

use crate::drive::Drive;
use crate::fast::Map;
use crate::task::{Answer, Ask, Io, Task};
use farmem::Error;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::time::{Duration, Instant};

/// For how long tasks go on before the loop that holds them has its turn: it shows others that it
/// lives. Each of hundreds of clients may have sent a command that takes a tenth of a second.
const SPELL: Duration = Duration::from_millis(10);
/// Steps of tasks between two looks at the clock.
const LOOK: u32 = 4;

/// Runs tasks with outcomes of type `T`.
#[derive(Debug)]
pub struct Schedule<T> {
    tasks: Map<u64, Task<T>>,
    next: u64,
    ready: VecDeque<u64>,
    /// Task and ask of each batch under way.
    asked: Map<u64, (u64, u32)>,
    next_batch: u64,
    pauses: BTreeMap<(Instant, u64), (u64, u32)>,
}

impl<T> Schedule<T> {
    /// One whose batches are numbered from `first` on.
    pub fn new(first: u64) -> Schedule<T> {
        Schedule {
            tasks: Map::default(),
            next: 0,
            ready: VecDeque::new(),
            asked: Map::default(),
            next_batch: first,
            pauses: BTreeMap::new(),
        }
    }

    /// The number of the next batch.
    pub fn next_batch(&self) -> u64 {
        self.next_batch
    }

    /// Begins a task; its number.
    pub fn begin<F: Future<Output = T> + 'static>(&mut self, start: impl FnOnce(Io) -> F) -> u64 {
        self.hold(Task::new(start))
    }

    /// Goes on with a task that was begun elsewhere; its number.
    pub fn hold(&mut self, task: Task<T>) -> u64 {
        let id = self.number();
        self.hold_as(id, task);
        id
    }

    /// A number for a task that may be held later.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// [`Schedule::hold`] by a number that was drawn before.
    pub fn hold_as(&mut self, id: u64, task: Task<T>) {
        self.tasks.insert(id, task);
        self.ready.push_back(id);
    }

    /// Ends a task that only waits for time to pass.
    pub fn cancel(&mut self, id: u64) {
        self.tasks.remove(&id);
        self.pauses.retain(|_, (task, _)| *task != id);
    }

    /// Moves tasks on as far as they go, and posts what they ask for. Those that have ended are
    /// told. If that takes longer than [`SPELL`], the rest stay ready, and are the next to go on.
    ///
    /// # Errors
    /// A node is lost.
    pub fn step(&mut self, drive: &RefCell<Drive>, ended: &mut Vec<(u64, T)>) -> Result<(), Error> {
        let (begun, mut steps) = (Instant::now(), 0u32);
        if !self.pauses.is_empty() {
            let now = Instant::now();
            while let Some((&(until, batch), &(task, ask))) = self.pauses.first_key_value()
                && until <= now
            {
                self.pauses.remove(&(until, batch));
                self.answer(task, ask, Vec::new());
            }
        }
        while !(steps > 0 && steps.is_multiple_of(LOOK) && begun.elapsed() >= SPELL) {
            let Some(id) = self.ready.pop_front() else { break };
            steps += 1;
            let Some(task) = self.tasks.get_mut(&id) else { continue };
            if let Some(outcome) = task.step() {
                self.tasks.remove(&id);
                ended.push((id, outcome));
                continue;
            }
            for (ask, wanted) in task.asks() {
                let batch = self.next_batch;
                self.next_batch += 1;
                match wanted {
                    Ask::Verbs(verbs) => {
                        self.asked.insert(batch, (id, ask));
                        drive.borrow_mut().post(batch, verbs)?;
                    }
                    Ask::Pause(ms) => {
                        let until = Instant::now() + Duration::from_millis(u64::from(ms));
                        self.pauses.insert((until, batch), (id, ask));
                    }
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, id: u64, ask: u32, answers: Vec<Answer>) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.answer(ask, answers);
            self.ready.push_back(id);
        }
    }

    /// Hands answers to their tasks; leaves those that are not this schedule's.
    pub fn take(&mut self, answers: &mut Vec<(u64, Vec<Answer>)>) {
        let mut others = Vec::new();
        for (batch, answers) in answers.drain(..) {
            match self.asked.remove(&batch) {
                Some((task, ask)) => self.answer(task, ask, answers),
                None => others.push((batch, answers)),
            }
        }
        *answers = others;
    }

    /// Whether a task can go on at once.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// When the next pause is over.
    pub fn wakes(&self) -> Option<Instant> {
        self.pauses.first_key_value().map(|(&(until, _), _)| until)
    }
}
