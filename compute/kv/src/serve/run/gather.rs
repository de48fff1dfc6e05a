//! Gathers changes of a key while another change of it is under way, to be carried out together
//! ([`crate::command::gathered`]).
//!
//! ```text
//!  under way      gathered            waiting
//!  SET k     ◄──  INCR k, INCR k  ◄── EXEC, INCR k, INCR k
//!   end: the gathered ones begin as one task. None there: those that wait come next, up to the
//!   first that cannot be gathered, or that one alone.
//! ```
//!
//! A change is gathered only if nothing waits for the key. So what cannot be gathered has its turn,
//! however many changes come.
//!
//! Where the node's memory is mapped a change ends as it begins, and nothing would be gathered
//! behind it. So the first change of a collection waits for the other requests of its round, which
//! are gathered with it ([`opens`]).

use super::Server;
use crate::command::gathered::{BYTES, MOST, gatherable, opens, together};
use crate::command::{Call, Client, execute};
use crate::fast::Map;
use crate::resp::{Reply, Request};
use crate::serve::connection::{Begun, Connection};
use crate::task::Task;
use std::collections::VecDeque;
use std::rc::Rc;

/// A request that was gathered, with its connection and the number of its task.
struct One {
    connection: u64,
    task: u64,
    client: Rc<Client>,
    request: Request,
}

/// Changes that wait for the end of another one, and those that are carried out together.
#[derive(Default)]
pub(super) struct Gathering {
    /// By key, with their bytes.
    by_key: Map<u64, (Vec<One>, usize)>,
    /// Connections and numbers of those that a task carries out, by its number.
    of_task: Map<u64, Vec<(u64, u64)>>,
    /// Keys whose changes are gathered in this round, and begin at its end.
    opened: Vec<u64>,
}

/// The connection of a task that is of several.
const SEVERAL: u64 = u64::MAX;

impl Server<'_> {
    /// The bytes of a request, if it may go behind the change of its key that is under way.
    pub(super) fn gathers(&self, id: u64, request: &Request, key: u64) -> Option<usize> {
        if self.alone.connection.is_some() || !(self.writing.contains(&key) || opens(request)) {
            return None;
        }
        let connection = self.connections.get(&id)?;
        let bytes = gatherable(request).filter(|_| may_gather(connection, key))?;
        let (count, sum) = self.gathering.by_key.get(&key).map_or((0, 0), |(all, sum)| (all.len(), *sum));
        let fits = count < MOST && sum + bytes <= BYTES && !self.front.is_paused(&connection.client, request);
        fits.then_some(bytes)
    }

    /// Begins the changes that were gathered in this round.
    pub(super) fn end_round(&mut self) {
        for key in std::mem::take(&mut self.gathering.opened) {
            self.go_on_with(key);
        }
    }

    /// Notes a request that [`Server::gathers`].
    pub(super) fn gather(&mut self, id: u64, request: Request, key: u64, bytes: usize) {
        self.tell_monitors(id, &request);
        if self.writing.insert(key) {
            self.gathering.opened.push(key);
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (client, task) = (Rc::clone(&connection.client), self.commands.number());
        connection.begun.push_back(Begun::new(task, Some(key), true));
        // A transaction that is to run alone waits for it, too.
        self.running.insert(task, (id, None));
        let (all, sum) = self.gathering.by_key.entry(key).or_default();
        all.push(One { connection: id, task, client, request });
        *sum += bytes;
    }

    /// The change of a key that was under way has ended: the next ones begin.
    pub(super) fn go_on_with(&mut self, key: u64) {
        if !self.gathering.by_key.contains_key(&key) && self.waiting.contains_key(&key) {
            self.gather_waiting(key);
        }
        let Some((all, _)) = self.gathering.by_key.remove(&key) else { return };
        self.writing.insert(key);
        let (front, at_once) = (Rc::clone(&self.front), Some(Rc::clone(&self.at_once)).filter(|_| !self.stale));
        if let [_] = &all[..] {
            for One { connection, task, client, request } in all {
                let begun = Task::with(at_once.clone(), |io| execute(Call::new(&front, &client, io, request)));
                self.running.insert(task, (connection, Some(key)));
                self.commands.hold_as(task, begun);
            }
            return;
        }
        let of = all.iter().map(|one| (one.connection, one.task)).collect();
        let begun = Task::with(at_once, |io| {
            let call = |one: One| Call::new(&front, &one.client, io.clone(), one.request);
            let calls = all.into_iter().map(call).collect();
            async move { Reply::Array(together(calls).await) }
        });
        let task = self.commands.hold(begun);
        self.running.insert(task, (SEVERAL, Some(key)));
        self.gathering.of_task.insert(task, of);
    }

    /// Gathers the requests that wait for a key, up to the first that cannot be. If that is the first of all,
    /// its connection goes on.
    fn gather_waiting(&mut self, key: u64) {
        // Only a change that is under way has others gathered behind it.
        self.writing.insert(key);
        while let Some(&id) = self.waiting.get(&key).and_then(VecDeque::front) {
            let next = self.connections.get(&id).and_then(|connection| Some((connection, connection.next.as_ref()?)));
            // It may have gone on by itself.
            let waits =
                next.filter(|(connection, next)| connection.concerns(next, &self.front.scripts).1.0 == Some(key));
            let gathers = waits.and_then(|(_, request)| self.gathers(id, request, key));
            let first = !self.gathering.by_key.contains_key(&key);
            let ends = waits.is_some() && gathers.is_none();
            if ends && !first {
                break;
            }
            if let Some(waiting) = self.waiting.get_mut(&key) {
                waiting.pop_front();
            }
            self.active.push(id);
            if let Some(bytes) = gathers
                && let Some(request) = self.connections.get_mut(&id).and_then(|connection| connection.next.take())
            {
                self.gather(id, request, key, bytes);
            }
            if ends {
                break;
            }
        }
        if self.waiting.get(&key).is_some_and(|waiting| waiting.is_empty()) {
            self.waiting.remove(&key);
        }
        self.writing.remove(&key);
    }

    /// Answers the requests that a task was carried out for, if these are several; else returns its reply.
    pub(super) fn answer_gathered(&mut self, task: u64, reply: Reply) -> Reply {
        let Some(of) = self.gathering.of_task.remove(&task) else { return reply };
        let Reply::Array(replies) = reply else { return Reply::Silence };
        for ((id, task), reply) in of.into_iter().zip(replies) {
            self.running.remove(&task);
            self.stream_reply(id, &reply);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.answer(task, reply);
                self.active.push(id);
            }
        }
        Reply::Silence
    }
}

/// Whether a change of this key may go behind those that are under way: the client may give commands, and
/// everything else that it has asked for concerns other keys, or is one of those changes.
fn may_gather(connection: &Connection, key: u64) -> bool {
    let client = &connection.client;
    let may_ask = client.authenticated.get() && !client.stranger.get() && !client.closing.get();
    let only_listens = client.version.get() < 3 && client.listens();
    let mut open = connection.begun.iter().filter(|begun| begun.reply.is_none());
    let behind = open.all(|begun| begun.key.is_some_and(|other| other != key || begun.writes));
    may_ask && !client.collects() && !only_listens && connection.given.is_none() && behind
}
