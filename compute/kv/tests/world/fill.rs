//! The tasks of a front end while a new node is filled in place of one that has ended.

use super::{Chooser, Memory, Random};
use farmem_kv::layout::Stage;
use farmem_kv::shard::copies::Mode;
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::Task;
use std::cell::Cell;
use std::rc::Rc;

/// A node ends, and an empty one comes, which the first front end begins to fill.
pub fn begin(memory: &mut Memory, fronts: &[Rc<Shard>], ended: u8) {
    memory.ends = Some((ended, memory.verbs));
    tick(memory, fronts);
    memory.revive();
    let first = Rc::clone(&fronts[0]);
    assert!(memory.run(Task::new(|io| async move { first.mend.begin_mending(&io, "new", 9).await })));
    tick(memory, fronts);
}

/// A tick of each front end.
pub fn tick(memory: &mut Memory, fronts: &[Rc<Shard>]) {
    for front in fronts {
        let front = Rc::clone(front);
        memory.run(Task::new(|io| async move { front.members.tick(&io, 0).await })).expect("alive");
    }
}

/// A front end's part in the filling. `ended`: how this task ends.
pub fn part<T: Clone + 'static>(shard: &Rc<Shard>, ended: Result<T, Trouble>) -> Task<Result<T, Trouble>> {
    let shard = Rc::clone(shard);
    let pair = shard.reach.copies.pair();
    Task::new(|io| async move {
        shard.mend.mend(&io, pair).await;
        ended
    })
}

/// Ticks and what follows from them, until the filling has ended. `dead`: a front end has died, and
/// time goes on.
pub fn ticks<T: Clone + 'static>(
    shard: &Rc<Shard>,
    dead: &Rc<Cell<bool>>,
    ended: Result<T, Trouble>,
) -> Task<Result<T, Trouble>> {
    let (shard, dead) = (Rc::clone(shard), Rc::clone(dead));
    Task::new(|io| async move {
        let (mut now_ms, mut paused, mut adopts) = (0, 0, false);
        loop {
            now_ms += if dead.get() { 25 } else { 0 };
            let ticked = shard.members.tick(&io, now_ms).await?;
            adopts |= ticked.deaths && dead.get();
            // In a pause it would wait for a tick of this very task.
            if adopts && !shard.reach.copies.is_paused() {
                shard.recovery.adopt(&io, now_ms).await?;
                adopts = shard.recovery.again_ms().is_some_and(|ms| ms < 100);
            }
            match shard.reach.copies.mode() {
                Mode::Mending(_) if shard.reach.copies.is_paused() => paused += 1,
                Mode::Mending(_) => {}
                Mode::Alone(_) if shard.reach.copies.pair().stage() == Stage::Mending => {}
                _ => return ended,
            }
            // Whoever was to end the pause may be dead.
            if paused > 4000 {
                shard.mend.give_up(&io).await;
            }
            io.pause(1).await;
        }
    })
}

/// Tries to end the filling, until it has ended.
pub fn finisher<T: Clone + 'static>(shard: &Rc<Shard>, ended: Result<T, Trouble>) -> Task<Result<T, Trouble>> {
    let shard = Rc::clone(shard);
    Task::new(|io| async move {
        while matches!(shard.reach.copies.mode(), Mode::Mending(_))
            || shard.reach.copies.pair().stage() == Stage::Mending
        {
            if !shard.reach.copies.is_paused() {
                shard.mend.finish_mending(&io).await;
            }
            io.pause(1).await;
        }
        ended
    })
}

/// Any order, in which a front end dies.
pub struct Dying {
    pub chooser: Random,
    /// After so many steps.
    pub dies: Option<(usize, usize)>,
    pub dead: Rc<Cell<bool>>,
    pub steps: usize,
    /// Front ends. Each has its tasks in turn.
    pub fronts: usize,
}

impl Chooser for Dying {
    fn choose(&mut self, ready: &[usize]) -> Option<usize> {
        self.steps += 1;
        let gone = self.dies.filter(|(step, _)| self.steps > *step).map(|(_, front)| front);
        self.dead.set(gone.is_some());
        let left: Vec<usize> = ready.iter().copied().filter(|task| Some(task % self.fronts) != gone).collect();
        if left.is_empty() { None } else { self.chooser.choose(&left) }
    }
}
