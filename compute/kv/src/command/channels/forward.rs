//! Messages between the front ends of a store, through far memory.
//!
//! ```text
//!  publisher                                         subscribers' front ends
//!  PUBLISH ─► queue ─► batch n ─► WRITE tail = n     READ all tails ─► batches since the last look
//!                      a key of line and n mod 256     every 1 to 16 ms, while they have subscribers
//! ```
//!
//! A front end's batches are values of hidden keys ([`Type::Message`]), 256 of them in turn, which
//! end by themselves after 5 s. The *tail*, the number of its last batch, is a word of its line in
//! the first shard's head. Batch before tail: a reader that sees the number finds the batch. The
//! tail never goes back, and goes on when another member gets the line.
//!
//! A front end that is alone writes nothing, and one without subscribers reads nothing. A newcomer
//! changes nothing before all others know of it ([`crate::shard::lease`]), so none publishes to itself
//! alone while another has subscribers.
//!
//! *Full nodes.* A batch that finds no memory is tried again, and PUBLISH is refused meanwhile.
//!
//! *Losses.* A batch may be gone before it is read: its reader was too slow, or it was evicted. The
//! tail tells, and the reader closes its subscribers' connections. Messages that a front end had
//! queued when it was killed are lost. One that is told to end empties its queue first.

use super::{Kind, Message, asked};
use crate::command::{Call, Front};
use crate::layout::{HEAD_BYTES, MEMBERS};
use crate::object::{Type, Value};
use crate::shard::Trouble;
use crate::shard::member::{SUBSCRIBED, line_word, state, tail_at};
use crate::task::{Answer, Io, Verb};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Batches of a front end that are kept.
const RING: u64 = 256;
/// How long a batch is kept, in ms.
const KEPT_MS: u64 = 5_000;
/// Bytes of a batch, if its first message is not longer. It fits a piece of 1 MiB.
const BATCH: usize = (1 << 20) - 4096;
/// Bytes that are sent in a millisecond. So the batches that are kept have about 80 MiB together.
const RATE: usize = 16 << 10;
/// Before a batch is tried again that found no memory, in ms.
const AGAIN_MS: u32 = 50;
/// Bytes that may be queued. A publisher waits while there are more.
const QUEUED: usize = 16 << 20;
/// Between two batches, in ms. So the ring lasts for a second.
const GAP_MS: u32 = 4;
/// Between two looks at the tails, in ms, at most.
const LOOK_MS: u32 = 16;

/// One front end's way to the others.
#[derive(Debug, Default)]
pub struct Forward {
    queue: RefCell<VecDeque<Vec<u8>>>,
    queued: Cell<usize>,
    sends: Cell<bool>,
    /// The last batch found no memory.
    full: Cell<bool>,
    /// A message was lost since the last batch: a number is left out.
    lost: Cell<bool>,
    /// The number of the last batch, once it is known.
    sent: Cell<Option<u64>>,
    /// The tails up to which this front end has heard the others, while it has subscribers.
    heard: RefCell<Option<Vec<u64>>>,
    /// Counts the times that [`Forward::heard`] began.
    hearing: Cell<u64>,
    /// Which of them has a task that listens.
    listens: Cell<u64>,
}

/// The key of a batch.
fn key(line: usize, number: u64) -> Vec<u8> {
    format!("\u{0}farmem message {line} {}", number % RING).into_bytes()
}

/// Records that are no messages: a question of [`super::asked`], and an answer.
pub(super) const QUESTION: u8 = 3;
pub(super) const ANSWER: u8 = 4;

/// Appends bytes with their length.
pub(super) fn put_part(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u32).to_le_bytes());
    bytes.extend_from_slice(part);
}

/// Takes what [`put_part`] has appended.
pub(super) fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *bytes = rest;
    Some(part)
}

fn record(kind: u8, name: &[u8], text: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    put_part(&mut bytes, name);
    put_part(&mut bytes, text);
    bytes
}

/// The records of a batch, up to one that is not sound: kind, name, text.
fn records(mut bytes: &[u8]) -> Vec<(u8, &[u8], &[u8])> {
    let mut found = Vec::new();
    while let Some((&kind, rest)) = bytes.split_first() {
        bytes = rest;
        let (Some(name), Some(text)) = (part(&mut bytes), part(&mut bytes)) else { break };
        found.push((kind, name, text));
    }
    found
}

impl Forward {
    /// Waits until there is room in the queue, unless memory is full.
    pub(super) async fn room(&self, io: &Io) {
        while self.queued.get() > QUEUED && !self.full.get() {
            io.pause(1).await;
        }
    }

    /// Queues a message for the other front ends. Without room it is lost; the next number tells
    /// that.
    pub(super) fn push(&self, message: &Message) {
        if self.queued.get() > QUEUED {
            self.lost.set(true);
            return;
        }
        self.put(record(message.kind as u8, &message.channel, &message.text));
    }

    fn put(&self, record: Vec<u8>) {
        self.queued.set(self.queued.get() + record.len());
        self.queue.borrow_mut().push_back(record);
    }

    /// Queues a question or an answer. Without room it is dropped: nobody waits for long.
    pub(super) fn tell(&self, kind: u8, name: &[u8], text: &[u8]) {
        if self.queued.get() <= QUEUED {
            self.put(record(kind, name, text));
        }
    }

    fn batch(&self) -> Option<Vec<u8>> {
        let mut queue = self.queue.borrow_mut();
        let mut batch = queue.pop_front()?;
        while let Some(next) = queue.front().filter(|next| batch.len() + next.len() <= BATCH) {
            batch.extend_from_slice(next);
            queue.pop_front();
        }
        self.queued.set(self.queued.get() - batch.len());
        Some(batch)
    }

    /// Before the first subscription: from here on messages count.
    pub(super) async fn open(&self, call: &Call) -> Result<(), Trouble> {
        if self.heard.borrow().is_some() {
            return Ok(());
        }
        let tails = tails(&call.front, &call.io).await?;
        self.heard.borrow_mut().get_or_insert_with(|| {
            self.hearing.set(self.hearing.get() + 1);
            tails
        });
        Ok(())
    }

    /// There are no subscriptions any more.
    pub(super) fn close(&self) {
        *self.heard.borrow_mut() = None;
    }

    /// Whether the caller is to begin a task that sends: [`Forward::send`].
    pub fn begins_to_send(&self) -> bool {
        let begins = !self.sends.get() && self.queued.get() > 0;
        self.sends.set(self.sends.get() || begins);
        begins
    }

    /// Whether the caller is to begin a task that listens: [`Forward::listen`].
    pub fn begins_to_listen(&self, front: &Front) -> bool {
        let which = self.hearing.get();
        let begins = self.listens.get() != which && self.heard.borrow().is_some() && front.store.has_others();
        if begins {
            self.listens.set(which);
        }
        begins
    }

    /// Writes batches until the queue is empty.
    pub async fn send(front: Rc<Front>, io: Io) {
        let forward = &front.channels.forward;
        while let Some(batch) = forward.batch() {
            let gap = GAP_MS.max((batch.len() / RATE) as u32);
            loop {
                let written = forward.write(&front, &io, &batch).await;
                forward.full.set(written == Err(Trouble::Full));
                if !forward.full.get() {
                    break;
                }
                io.pause(AGAIN_MS).await;
            }
            io.pause(gap).await;
        }
        forward.sends.set(false);
    }

    /// Whether memory is full, so that nothing reaches the other front ends now.
    pub(super) fn is_full(&self) -> bool {
        self.full.get()
    }

    /// Whether all that was published has been sent.
    pub fn is_idle(&self) -> bool {
        !self.sends.get() && self.queued.get() == 0
    }

    /// Writes a batch and its number. Of other troubles than full memory, readers learn by the tail.
    async fn write(&self, front: &Front, io: &Io, batch: &[u8]) -> Result<(), Trouble> {
        let shard = &front.store.shards[0];
        let line = usize::from(shard.reach.me.line);
        let last = match self.sent.get() {
            Some(last) => last,
            None => tails(front, io).await?[line],
        };
        let lost = self.lost.get();
        let number = last + 1 + u64::from(lost);
        let bytes = [&number.to_le_bytes()[..], batch].concat();
        let value = Value { kind: Type::Message, expiry: Some(front.store.now_ms() + KEPT_MS), bytes };
        let written = front.store.put(io, &key(line, number), &value).await;
        if written == Err(Trouble::Full) {
            return written;
        }
        self.sent.set(Some(number));
        self.lost.set(self.lost.get() && !lost);
        // As a change of the index, which waits while a node is being filled.
        let tail = Verb::Write { at: tail_at(shard.reach.root, line), bytes: Rc::new(number.to_le_bytes().to_vec()) };
        shard.reach.verbs(io, vec![tail]).await;
        written
    }

    /// Hands messages of other front ends on, while there are subscribers and other front ends.
    pub async fn listen(front: Rc<Front>, io: Io) {
        let forward = &front.channels.forward;
        let which = forward.listens.get();
        let mut pause = 1;
        let over = || forward.hearing.get() != which || forward.heard.borrow().is_none();
        // The last look begins when the others are known to be gone. All that they sent is there by then.
        let mut more = true;
        while !over() && more {
            more = front.store.has_others();
            let Ok(tails) = tails(&front, &io).await else { break };
            for (line, &tail) in tails.iter().enumerate() {
                if line != usize::from(front.store.shards[0].reach.me.line) && !over() {
                    let news = forward.hear(&front, &io, line, tail).await;
                    pause = if news { 0 } else { pause };
                }
            }
            pause = (pause + 1).min(LOOK_MS);
            if more {
                io.pause(pause).await;
            }
        }
        if forward.listens.get() == which {
            forward.listens.set(0);
        }
    }

    /// Hands on what a front end has published since the last look; whether there was anything.
    async fn hear(&self, front: &Front, io: &Io, line: usize, tail: u64) -> bool {
        let which = self.hearing.get();
        let heard = || self.heard.borrow().as_ref().filter(|_| self.hearing.get() == which).map(|heard| heard[line]);
        let mut news = false;
        while let Some(last) = heard().filter(|last| *last < tail) {
            let (number, key) = (last + 1, key(line, last + 1));
            // Its expiry does not matter: that is by another machine's clock.
            let found = front.store.shard(&key).index.find(io, &key).await;
            let batch = found.ok().flatten().map(|found| found.object);
            let value = batch.as_ref().map_or(&[][..], |batch| batch.value());
            let batch = value.split_first_chunk::<8>().filter(|(is, _)| u64::from_le_bytes(**is) == number);
            if heard() != Some(last) {
                break;
            }
            let next = if batch.is_some() { number } else { tail };
            if let Some(heard) = self.heard.borrow_mut().as_mut() {
                heard[line] = next;
            }
            match batch {
                Some((_, batch)) => {
                    for record in records(batch) {
                        take(front, io, line, record).await;
                    }
                }
                None => front.close_subscribers("of another front end were lost before they were read"),
            }
            news = true;
        }
        news
    }
}

/// Takes a record of the front end of this line.
async fn take(front: &Front, io: &Io, line: usize, (kind, name, text): (u8, &[u8], &[u8])) {
    match kind {
        QUESTION => asked::answer(front, io, name, text).await,
        ANSWER => front.channels.asked.answered(line, name, text),
        kind => {
            let kind = if kind == Kind::Sharded as u8 { Kind::Sharded } else { Kind::Plain };
            front.channels.calm(io).await;
            front.channels.reach(&Rc::new(Message { kind, channel: name.to_vec(), text: text.to_vec() }), true);
        }
    }
}

/// The lines of the other front ends whose clients have subscriptions.
pub(super) async fn subscribed(front: &Front, io: &Io) -> Result<BTreeSet<usize>, Trouble> {
    let (head, me) = (head(front, io).await?, usize::from(front.store.shards[0].reach.me.line));
    let has = |line: &usize| state(&head, *line).is_alive() && line_word(&head, *line, SUBSCRIBED as usize) != 0;
    Ok((0..MEMBERS).filter(|line| *line != me).filter(has).collect())
}

/// The number of the last batch of each line.
async fn tails(front: &Front, io: &Io) -> Result<Vec<u64>, Trouble> {
    let head = head(front, io).await?;
    Ok((0..MEMBERS).map(|line| line_word(&head, line, 5)).collect())
}

/// The first shard's head.
async fn head(front: &Front, io: &Io) -> Result<Vec<u8>, Trouble> {
    let reach = &front.store.shards[0].reach;
    match reach.verbs(io, vec![Verb::Read { at: reach.root, len: HEAD_BYTES as u32 }]).await.pop() {
        Some(Answer::Bytes(head)) => Ok(head),
        _ => Err(Trouble::Unsettled),
    }
}

impl Front {
    /// Messages of this front end's were dropped: no subscriber anywhere misses them without being told.
    pub(in crate::command) fn lose_messages(&self) {
        self.channels.forward.lost.set(true);
        self.close_subscribers("about keys that have ended came faster than they were sent");
    }

    /// Closes the connections of all clients with subscriptions: messages were lost.
    fn close_subscribers(&self, why: &str) {
        let clients = self.clients.borrow();
        let those = clients.values().filter(|client| client.listens());
        let those: Vec<u64> = those.inspect(|client| client.closing.set(true)).map(|client| client.id).collect();
        // One that only listens for answers.
        if those.is_empty() {
            return;
        }
        eprintln!("farmem: messages {why}: {} clients with subscriptions are disconnected", those.len());
        self.killed.borrow_mut().extend(those);
    }
}

#[test]
fn a_batch_has_its_messages() {
    let some: [(u8, &[u8], &[u8]); 2] = [(Kind::Plain as u8, b"a", b""), (Kind::Sharded as u8, b"", &[7; 300])];
    let bytes: Vec<u8> = some.iter().flat_map(|(kind, name, text)| record(*kind, name, text)).collect();
    assert_eq!(records(&bytes), some);
    assert_eq!(records(&bytes[..bytes.len() - 1]), some[..1]);
}
