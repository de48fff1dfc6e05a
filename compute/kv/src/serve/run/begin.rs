//! Begins commands. A command that needs no task is answered at once. Any other is a task: most end
//! with its first step, and the others go on among the running tasks.

use super::Server;
use crate::command::long::{Inlet, Outlet};
use crate::command::{Call, exec, execute, monitor, scripts};
use crate::resp::{Reply, Request};
use crate::serve::connection::{AT_ONCE, Begun, Means, Run};
use crate::serve::open::{Failed, wall_ms};
use crate::task::Task;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Commands that end with their first step, before other connections have their turn.
const RUN: u32 = 256;
/// For how long these may take, a last one aside.
const SPELL: Duration = Duration::from_millis(5);

impl Server<'_> {
    /// Begins a connection's requests in their order, up to one that must wait: for another
    /// connection that runs alone, for a pause, for a command on the same key, or for its turn.
    pub(super) fn begin_commands(&mut self, id: u64) -> Result<(), Failed> {
        let (mut ended, begun) = (0, Instant::now());
        loop {
            if !self.may_begin(id) {
                return Ok(());
            }
            if self.answer_at_once(id)? == Run::Paused || ended > RUN || ended > 0 && begun.elapsed() > SPELL {
                self.active.push(id);
                return Ok(());
            }
            let Some(request) = self.next_request(id) else { return Ok(()) };
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            let (only, (key, writes)) = connection.concerns(&request, &self.front.scripts);
            // It may turn out to use other keys, too.
            let script = scripts::is_run(&request) && !connection.client.collects();
            if let Some(key) = key.filter(|_| writes && !script)
                && !self.waiting.contains_key(&key)
                && let Some(bytes) = self.gathers(id, &request, key)
            {
                self.gather(id, request, key, bytes);
                continue;
            }
            if self.must_wait(id, &request, (key, writes), script) {
                self.put_back(id, request);
                return Ok(());
            }
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            if let Some(reply) = connection.client.collect(&request) {
                self.front.stats.refused(&reply);
                connection.answer_last(reply);
                self.tell_monitors(id, &request);
                continue;
            }
            let transaction = request[0].eq_ignore_ascii_case(b"exec") && connection.client.collects();
            let alone = transaction && only.is_none() && connection.client.runs_alone() || script && key.is_none();
            if alone && !self.have_alone(id) {
                self.put_back(id, request);
                return Ok(());
            }
            self.tell_monitors(id, &request);
            ended += u32::from(self.begin(id, request, transaction.then_some(only), (key, writes)));
        }
    }

    /// Whether a connection may begin a request now. If not, it is noted for what it waits for.
    fn may_begin(&mut self, id: u64) -> bool {
        if self.alone.connection.is_some_and(|alone| alone != id) {
            self.alone.held.push(id);
            return false;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        if connection.begun.len() >= AT_ONCE {
            connection.collect();
            if connection.begun.len() >= AT_ONCE {
                return false;
            }
        }
        if connection.wire.is_in_handshake() {
            if self.handshakes == 0 {
                self.active.push(id);
                return false;
            }
            self.handshakes -= 1;
        }
        true
    }

    /// A connection's next request. `None`: it has sent no other yet.
    fn next_request(&mut self, id: u64) -> Option<Request> {
        let connection = self.connections.get_mut(&id)?;
        let request = connection.request();
        if std::mem::take(&mut connection.filled) {
            self.front.store.set_clock_ms(self.start.elapsed().as_millis() as u64);
            connection.client.seen_ms.set(self.front.store.now_ms());
        }
        if let Some(inlet) = connection.inlet() {
            self.streaming.insert(id);
            let front = Rc::clone(&self.front);
            self.commands.begin(|io| async move {
                Inlet::run(inlet, io, front).await;
                Reply::Silence
            });
        }
        if request.is_some() {
            return request;
        }
        if connection.ends_turn() {
            self.active.push(id);
        }
        connection.collect();
        let runs = connection.begun.iter().any(|begun| begun.reply.is_none());
        if self.alone.connection == Some(id) && !runs {
            // It does not read its replies: the others must not wait for that.
            self.end_alone();
        }
        None
    }

    /// Whether a request has to wait for the end of a pause, or for a command on the same key.
    fn must_wait(&mut self, id: u64, request: &Request, (key, writes): (Option<u64>, bool), script: bool) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return true };
        if self.front.is_paused(&connection.client, request) {
            self.paused.insert(id);
            self.front.paused.set(self.paused.len() as u64);
            return true;
        }
        let taken = key.filter(|key| writes && self.writing.contains(key));
        let clashes = connection.clashes(key.filter(|_| !script), writes);
        if let Some(key) = taken.filter(|_| !clashes) {
            self.waiting.entry(key).or_default().push_back(id);
        }
        clashes || taken.is_some()
    }

    /// A connection's next request stays its next.
    fn put_back(&mut self, id: u64, request: Request) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.next = Some(request);
        }
    }

    /// Tells the clients that have asked for it of a command that begins. A monitor's own RESET ends that.
    pub(super) fn tell_monitors(&mut self, id: u64, request: &Request) {
        if !self.front.monitors.is_any() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let Some(of) = self.connections.get(&id) else { return };
        let Some(line) = monitor::told(&of.client, request, of.given.as_ref(), now) else { return };
        let mut bytes = Vec::new();
        line.write(2, &mut bytes);
        let bytes: Rc<[u8]> = bytes.into();
        let ends = request[0].eq_ignore_ascii_case(b"reset");
        for monitor in self.front.monitors.all().into_iter().filter(|monitor| !ends || *monitor != id) {
            if let Some(connection) = self.connections.get_mut(&monitor) {
                connection.push(Reply::Encoded(Rc::clone(&bytes)));
                self.active.push(monitor);
            }
        }
    }

    /// Lets those go on that a pause has held up, when it is over.
    pub(super) fn end_pause(&mut self) {
        if !self.paused.is_empty() && self.paused_ms() == 0 {
            self.active.extend(std::mem::take(&mut self.paused));
            self.front.paused.set(0);
        }
    }

    /// For how long clients that wait for the end of a pause must do so.
    pub(super) fn paused_ms(&self) -> u128 {
        if self.paused.is_empty() {
            return u128::MAX;
        }
        u128::from(self.front.pause.get().until_ms.saturating_sub(wall_ms()))
    }

    /// Answers what a connection asks for and needs no task.
    fn answer_at_once(&mut self, id: u64) -> Result<Run, Failed> {
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(Run::Ended) };
        let mut drive = self.drive.borrow_mut();
        Ok(connection.answer_at_once(&mut Means {
            front: &self.front,
            drive: Some(&mut *drive).filter(|_| !self.stale),
            writing: &self.writing,
            start: self.start,
            buffer: &mut self.buffer,
        })?)
    }

    /// Begins a command. Returns whether it has ended already: most do in a first step that waits
    /// for nothing. `ends`: it is the EXEC of a transaction, which may have only this one key.
    fn begin(
        &mut self,
        id: u64,
        request: Request,
        ends: Option<Option<Vec<u8>>>,
        (key, writes): (Option<u64>, bool),
    ) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let script = scripts::is_run(&request);
        let (client, front, given) = (Rc::clone(&connection.client), Rc::clone(&self.front), connection.given.take());
        let transaction = ends.and_then(|only| Some((client.take_transaction()?, only)));
        // A command that runs alone ends by [`Server::ended`].
        let waits = transaction.is_some() || self.stale || self.alone.connection == Some(id);
        let at_once = Some(Rc::clone(&self.at_once)).filter(|_| !self.stale);
        let mut task = Task::with(at_once, |io| {
            let call = Call { given, ..Call::new(&front, &client, io, request) };
            async move {
                match transaction {
                    Some((transaction, only)) => {
                        let front = Rc::clone(&call.front);
                        let reply = Box::pin(exec(call, transaction, only)).await;
                        front.stats.refused(&reply);
                        reply
                    }
                    None => execute(call).await,
                }
            }
        });
        if !waits && let Some(reply) = task.step() {
            self.stream_reply(id, &reply);
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.answer_last(reply);
                connection.collect();
            }
            return true;
        }
        let task = self.commands.hold(task);
        connection.begun.push_back(Begun::new(task, key.filter(|_| !script), writes));
        let writes = key.filter(|_| writes);
        self.writing.extend(writes);
        self.running.insert(task, (id, writes));
        false
    }

    /// Begins to read a reply that streams out.
    pub(super) fn stream_reply(&mut self, id: u64, reply: &Reply) {
        let Reply::Long(outlet) = reply else { return };
        self.streaming.insert(id);
        let (outlet, front) = (Rc::clone(outlet), Rc::clone(&self.front));
        self.commands.begin(|io| async move {
            Outlet::run(outlet, io, front).await;
            Reply::Silence
        });
    }
}
