//! Publishing: SUBSCRIBE, PUBLISH, PUBSUB and their relatives.
//!
//! A front end knows the subscriptions of its own clients, and hands a message to them at once. To
//! the clients of other front ends it goes through far memory ([`forward`]).
//!
//! *The promise.* A message reaches each subscriber at most once. Messages of one front end arrive
//! in the order in which they were published. A message that was published after the reply to
//! SUBSCRIBE reaches that client, or its connection is closed: a subscriber never misses one
//! without being told.
//!
//! A script or a transaction on one key publishes when it has taken effect.

mod asked;
mod forward;

pub use asked::show;
pub use forward::Forward;

use super::room::Room;
use super::{Answered, Call, Client, Fail, Front};
use crate::resp::{Reply, matches};
use crate::shard::Trouble;
use crate::task::Io;
use asked::{Asked, Question};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Subscriptions of a front end's clients, and patterns among them, at most.
const MOST: usize = 1_000_000;
const PATTERNS: usize = 10_000;
/// Bytes of these patterns together, at most: every message is matched with each of them.
const PATTERN_BYTES: usize = 256 << 10;
/// Bytes of the names of all subscriptions, at most. Each name is held twice.
const NAMES: usize = 128 << 20;
/// Bytes of a channel's name or a pattern, at most.
const NAME: usize = 1024;
/// Bytes of a message with its channel's name, at most.
pub const MESSAGE: usize = 2_000_000;

/// The kind of name in a subscription. The kinds do not meet: a shard's channel is another one than the
/// plain channel of the same name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A channel.
    Plain = 0,
    /// Plain channels by a pattern.
    Pattern = 1,
    /// A channel of redis's sharded publishing. A store has one such shard.
    Sharded = 2,
}

/// The names that a client has subscribed to, by kind.
pub type Names = [BTreeSet<Vec<u8>>; 3];

/// Messages that wait to be handed to connections: their number and bytes above which publishers wait.
const DUE: usize = 10_000;
const DUE_BYTES: usize = 1 << 20;

/// A message as a subscriber hears it.
#[derive(Clone, PartialEq, Debug)]
pub struct Heard {
    pattern: Option<Rc<[u8]>>,
    message: Rc<Message>,
}

impl Heard {
    /// The parts of the message for the subscriber, in order.
    pub fn parts(&self) -> Vec<&[u8]> {
        let Message { kind, channel, text } = &*self.message;
        match &self.pattern {
            Some(pattern) => vec![b"pmessage", pattern, channel, text],
            None if *kind == Kind::Sharded => vec![b"smessage", channel, text],
            None => vec![b"message", channel, text],
        }
    }
}

/// A message that was published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Of the channel.
    pub kind: Kind,
    /// The channel's name.
    pub channel: Vec<u8>,
    /// The message.
    pub text: Vec<u8>,
}

/// Numbers of clients by the name that they have subscribed to.
type Subscribers = HashMap<Rc<[u8]>, BTreeSet<u64>>;

/// The subscriptions of a front end's clients.
#[derive(Debug, Default)]
pub struct Channels {
    /// For each kind: the numbers of clients, by name.
    subscribers: RefCell<[Subscribers; 3]>,
    count: Cell<usize>,
    /// Bytes of the names of all subscriptions.
    bytes: Cell<usize>,
    pattern_bytes: Cell<usize>,
    /// Messages to hand to connections, and the bytes of these messages.
    due: RefCell<Vec<(u64, Heard)>>,
    due_bytes: Cell<usize>,
    /// The way to other front ends.
    pub forward: Forward,
    asked: Asked,
}

impl Channels {
    fn add(&self, client: &Client, kind: Kind, name: &[u8]) -> Result<(), Fail> {
        let mut names = client.names.borrow_mut();
        if names[kind as usize].contains(name) {
            return Ok(());
        }
        let mut subscribers = self.subscribers.borrow_mut();
        let new = kind == Kind::Pattern && !subscribers[kind as usize].contains_key(name);
        let bytes = self.pattern_bytes.get() + if new { name.len() } else { 0 };
        let crowded = new && (subscribers[kind as usize].len() >= PATTERNS || bytes > PATTERN_BYTES);
        let all = self.bytes.get() + name.len();
        if self.count.get() >= MOST || all > NAMES || crowded {
            return Err(Fail::new(format!(
                "this front end has {MOST} subscriptions, or 128 MiB of their names, or {PATTERNS} patterns, or 256 \
                 KiB of them, which is the limit"
            )));
        }
        self.bytes.set(all);
        self.pattern_bytes.set(bytes);
        names[kind as usize].insert(name.to_vec());
        subscribers[kind as usize].entry(name.into()).or_default().insert(client.id);
        self.count.set(self.count.get() + 1);
        Ok(())
    }

    fn remove(&self, client: &Client, kind: Kind, name: &[u8]) {
        if !client.names.borrow_mut()[kind as usize].remove(name) {
            return;
        }
        let mut subscribers = self.subscribers.borrow_mut();
        if let Some(those) = subscribers[kind as usize].get_mut(name) {
            those.remove(&client.id);
            if those.is_empty() {
                subscribers[kind as usize].remove(name);
                if kind == Kind::Pattern {
                    self.pattern_bytes.set(self.pattern_bytes.get() - name.len());
                }
            }
        }
        self.count.set(self.count.get() - 1);
        self.bytes.set(self.bytes.get() - name.len());
        self.rest();
    }

    /// Hears nothing more of other front ends, if nothing of theirs is waited for.
    fn rest(&self) {
        if !self.has_subscriptions() && !self.asked.waits() {
            self.forward.close();
        }
    }

    /// Forgets all subscriptions of a client, which is gone or has asked for that.
    pub fn leave(&self, client: &Client) {
        for kind in [Kind::Plain, Kind::Pattern, Kind::Sharded] {
            let names = client.names.borrow()[kind as usize].clone();
            names.iter().for_each(|name| self.remove(client, kind, name));
        }
    }

    /// Number of clients of this front end that a message reaches; hands it to them if `sends`.
    fn reach(&self, message: &Rc<Message>, sends: bool) -> usize {
        let subscribers = self.subscribers.borrow();
        let (mut due, mut reached) = (self.due.borrow_mut(), 0);
        let mut hand = |those: &BTreeSet<u64>, pattern: Option<&Rc<[u8]>>| {
            reached += those.len();
            if sends {
                let heard = Heard { pattern: pattern.cloned(), message: Rc::clone(message) };
                due.extend(those.iter().map(|&id| (id, heard.clone())));
            }
        };
        if let Some(those) = subscribers[message.kind as usize].get(message.channel.as_slice()) {
            hand(those, None);
        }
        if message.kind == Kind::Plain {
            for (pattern, those) in &subscribers[Kind::Pattern as usize] {
                if matches(pattern, &message.channel) {
                    hand(those, Some(pattern));
                }
            }
        }
        if sends && reached > 0 {
            self.due_bytes.set(self.due_bytes.get() + message.text.len());
        }
        reached
    }

    /// Waits until connections have been handed most of what is due.
    async fn calm(&self, io: &Io) {
        while self.due_bytes.get() > DUE_BYTES || self.due.borrow().len() > DUE {
            io.pause(1).await;
        }
    }

    /// Messages to hand to connections, in order.
    pub fn take_due(&self) -> Vec<(u64, Heard)> {
        self.due_bytes.set(0);
        std::mem::take(&mut self.due.borrow_mut())
    }

    /// The messages that are due for a client which is about to end subscriptions: they come before
    /// the reply to that.
    pub(super) fn take_due_of(&self, client: &Client) -> Vec<Reply> {
        let mut due = self.due.borrow_mut();
        let taken = due.extract_if(.., |(id, _)| *id == client.id).collect::<Vec<_>>();
        if due.is_empty() {
            // `take_due` will not be called now, which would do this.
            self.due_bytes.set(0);
        }
        taken.into_iter().map(|(_, heard)| Reply::Heard(heard)).collect()
    }

    /// Whether there are such messages.
    pub fn is_due(&self) -> bool {
        !self.due.borrow().is_empty()
    }

    /// How many names of a kind this front end's clients have subscribed to.
    pub(super) fn names(&self, kind: Kind) -> usize {
        self.subscribers.borrow()[kind as usize].len()
    }
}

impl Client {
    /// Number of names of a kind that it has subscribed to.
    pub(super) fn subscribed(&self, kind: Kind) -> usize {
        self.names.borrow()[kind as usize].len()
    }

    /// Whether it has any subscription.
    pub fn listens(&self) -> bool {
        self.names.borrow().iter().any(|names| !names.is_empty())
    }

    /// The error for a command that a client with subscriptions may not give, by RESP2.
    pub(super) fn only_listens(&self, name: &[u8]) -> Option<Reply> {
        const MAY: [&[u8]; 9] = [
            b"subscribe",
            b"unsubscribe",
            b"psubscribe",
            b"punsubscribe",
            b"ssubscribe",
            b"sunsubscribe",
            b"ping",
            b"quit",
            b"reset",
        ];
        if self.version.get() >= 3 || MAY.contains(&name) || !self.listens() {
            return None;
        }
        Some(Reply::error(format!(
            "Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context",
            String::from_utf8_lossy(&name[..name.len().min(128)])
        )))
    }

    /// The reply to a subscription, or to its end.
    fn told(&self, what: &str, kind: Kind, name: Option<&[u8]>) -> Reply {
        let count = match kind {
            Kind::Sharded => self.subscribed(Kind::Sharded),
            _ => self.subscribed(Kind::Plain) + self.subscribed(Kind::Pattern),
        };
        Reply::Push(vec![Reply::bulk(what), Reply::maybe(name), Reply::Int(count as i64)])
    }
}

pub async fn run(name: &'static str, call: &Call) -> Answered {
    let kind = match name.as_bytes()[0] {
        b'p' if name != "publish" && name != "pubsub" => Kind::Pattern,
        b's' if name != "subscribe" => Kind::Sharded,
        _ => Kind::Plain,
    };
    match name {
        "publish" | "spublish" => {
            let message = Message { kind, channel: call.arg(1).to_vec(), text: call.arg(2).to_vec() };
            publish(call, message).await
        }
        "pubsub" => pubsub(call).await,
        _ if call.in_exec => Err(Fail::new(format!("{name} is not carried out in a transaction"))),
        "subscribe" | "psubscribe" | "ssubscribe" => subscribe(name, kind, call).await,
        _ => Ok(unsubscribe(name, kind, call)),
    }
}

async fn subscribe(what: &str, kind: Kind, call: &Call) -> Answered {
    let channels = &call.front.channels;
    if call.args[1..].iter().any(|name| name.len() > NAME) {
        return Err(Fail::new(format!("a channel's name or a pattern has {NAME} bytes at most")));
    }
    // Counted first, so that nobody stops hearing between here and the subscription.
    let coming = asked::Coming::of(channels);
    channels.forward.open(call).await?;
    asked::comes(call).await;
    let (mut told, mut room) = (Vec::new(), Room::new(call));
    for name in &call.args[1..] {
        // Three parts are told of each.
        let added =
            (0..3).try_for_each(|_| room.take(name.len() / 3)).and_then(|()| channels.add(&call.client, kind, name));
        match added {
            Ok(()) => told.push(call.client.told(what, kind, Some(name))),
            Err(fail) => {
                told.push(fail.0);
                break;
            }
        }
    }
    drop(coming);
    Ok(Reply::Several(told))
}

fn unsubscribe(what: &str, kind: Kind, call: &Call) -> Reply {
    let (channels, client) = (&call.front.channels, &call.client);
    let names: Vec<Vec<u8>> = match &call.args[1..] {
        [] => client.names.borrow()[kind as usize].iter().cloned().collect(),
        names => names.to_vec(),
    };
    let mut told = channels.take_due_of(client);
    for name in &names {
        channels.remove(client, kind, name);
        told.push(client.told(what, kind, Some(name)));
    }
    if names.is_empty() {
        told.push(client.told(what, kind, None));
    }
    Reply::Several(told)
}

/// PUBLISH and SPUBLISH. The reply counts the clients of this front end alone.
async fn publish(call: &Call, message: Message) -> Answered {
    if message.channel.len() > NAME {
        return Err(Fail::new(format!("a channel's name has {NAME} bytes at most")));
    }
    if message.channel.len() + message.text.len() > MESSAGE {
        return Err(Fail::new(format!("a message has {MESSAGE} bytes at most, with its channel's name")));
    }
    if let Some(draft) = &call.draft {
        let message = Rc::new(message);
        let reached = call.front.channels.reach(&message, false);
        draft.publish(message)?;
        return Ok(Reply::Int(reached as i64));
    }
    if call.store().has_others() && call.front.channels.forward.is_full() {
        return Err(Trouble::Full.into());
    }
    let message = Rc::new(message);
    Ok(Reply::Int(send(&call.front, &call.io, message).await as i64))
}

/// Hands a message to all who have subscribed; how many clients of this front end these are.
pub(super) async fn send(front: &Front, io: &Io, message: Rc<Message>) -> usize {
    let channels = &front.channels;
    channels.calm(io).await;
    if front.store.has_others() {
        channels.forward.room(io).await;
        // One moment for both: so all subscribers see this front end's messages in one order.
        channels.forward.push(&message);
    }
    channels.reach(&message, true)
}

/// Publishes what a script or a transaction has, now that it has taken effect.
pub(super) async fn send_all(call: &Call, messages: Vec<Rc<Message>>) {
    for message in messages {
        send(&call.front, &call.io, message).await;
    }
}

/// PUBSUB, for all front ends.
async fn pubsub(call: &Call) -> Answered {
    let names = |kind| {
        let pattern = call.args.get(2).map(|text| super::args::pattern(text).map(|_| text.clone())).transpose()?;
        Ok::<_, Fail>(Question::Names { kind, pattern, after: None })
    };
    let numbers = |kind| Question::numbers(kind, &call.args[2..]);
    let question = match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"channels", 2 | 3) => names(Kind::Plain)?,
        (b"shardchannels", 2 | 3) => names(Kind::Sharded)?,
        (b"numpat", 2) => Question::Names { kind: Kind::Pattern, pattern: None, after: None },
        (b"numsub", _) => numbers(Kind::Plain),
        (b"shardnumsub", _) => numbers(Kind::Sharded),
        _ => return Err(super::server::unknown(call, "pubsub")),
    };
    let (kind, counts_clients) = match &question {
        Question::Names { kind, .. } => (*kind, false),
        Question::Numbers(kind, _) => (*kind, true),
    };
    let counts = asked::of_all(call, question).await?;
    Ok(if counts_clients {
        let number = |name: &Vec<u8>| Reply::Int(counts.get(name).map_or(0, |count| *count as i64));
        Reply::Array(call.args[2..].iter().flat_map(|name| [Reply::bulk(name.as_slice()), number(name)]).collect())
    } else if kind == Kind::Pattern {
        Reply::Int(counts.len() as i64)
    } else {
        Reply::Array(counts.into_keys().map(Reply::Bulk).collect())
    })
}

#[test]
fn names_have_a_limit_together() {
    let channels = Channels::default();
    let client = Client::new(7, Default::default(), 0);
    let name = |n: usize| format!("{n:01024}").into_bytes();
    let most = NAMES / NAME;
    for n in 0..most {
        channels.add(&client, Kind::Sharded, &name(n)).expect("room");
    }
    assert!(channels.add(&client, Kind::Plain, b"n").is_err());
    channels.remove(&client, Kind::Sharded, &name(3));
    channels.add(&client, Kind::Plain, b"n").expect("room");
    channels.leave(&client);
    assert_eq!((channels.bytes.get(), channels.count.get()), (0, 0));
}
