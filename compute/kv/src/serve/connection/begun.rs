//! Commands that were begun, whose replies a client gets in their order.

use super::Connection;
use crate::command::room::Room;
use crate::resp::Reply;

/// A command that was begun: its keys' hash, and its reply.
#[derive(Debug)]
pub struct Begun {
    /// The task.
    pub task: u64,
    /// Hash of its only key; `None`: nothing may run beside it.
    pub key: Option<u64>,
    /// Whether it changes the key.
    pub writes: bool,
    /// Its reply.
    pub reply: Option<Reply>,
    /// Has the bytes of the reply count while it waits for others before it.
    waits: Option<Room>,
}

impl Begun {
    /// One whose reply comes later.
    pub fn new(task: u64, key: Option<u64>, writes: bool) -> Begun {
        Begun { task, key, writes, reply: None, waits: None }
    }
}

impl Connection {
    /// A command has ended.
    pub fn answer(&mut self, task: u64, reply: Reply) {
        if let Some(place) = self.begun.iter().position(|begun| begun.task == task) {
            let waits = (place > 0).then(|| Room::with(&self.client, &self.shared.held, &reply));
            let begun = &mut self.begun[place];
            (begun.reply, begun.waits) = (Some(reply), waits);
        }
        self.collect();
    }

    /// A command that has begun behind the others has ended at once.
    pub fn answer_last(&mut self, reply: Reply) {
        let waits = (!self.begun.is_empty()).then(|| Room::with(&self.client, &self.shared.held, &reply));
        let begun = Begun { task: u64::MAX, key: None, writes: false, reply: Some(reply), waits };
        self.begun.push_back(begun);
    }
}
