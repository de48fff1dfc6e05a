//! Tasks at real nodes.

use farmem_kv::drive::Drive;
use farmem_kv::task::{Answer, Ask, Task};
use std::time::Duration;

/// Carries a task out to its end. Pauses take no time.
pub fn run<T>(drive: &mut Drive, mut task: Task<T>) -> T {
    let mut ended = Vec::new();
    loop {
        if let Some(outcome) = task.step() {
            return outcome;
        }
        for (id, ask) in task.asks() {
            match ask {
                Ask::Verbs(verbs) => drive.post(u64::from(id), verbs).unwrap(),
                Ask::Pause(_) => task.answer(id, Vec::new()),
            }
        }
        while drive.under_way() > 0 {
            drive.advance(Duration::from_millis(100), &mut ended).unwrap();
        }
        ended.drain(..).for_each(|(id, answers): (u64, Vec<Answer>)| task.answer(id as u32, answers));
    }
}
