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

mod forward;

pub use forward::Forward;

use super::{Answered, Call, Client, Fail};
use crate::resp::{Reply, matches};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// Subscriptions of a front end's clients, and patterns among them, at most.
const MOST: usize = 1_000_000;
const PATTERNS: usize = 10_000;
/// Bytes of a channel's name or a pattern, at most.
const NAME: usize = 1024;
/// Bytes of a message with its channel's name, at most.
pub const MESSAGE: usize = 2_000_000;

/// What a subscription names. The kinds do not meet: a shard's channel is another one than the
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

/// The subscriptions of a front end's clients.
#[derive(Debug, Default)]
pub struct Channels {
    /// Numbers of clients by name, for each kind.
    subscribers: RefCell<[HashMap<Vec<u8>, BTreeSet<u64>>; 3]>,
    count: Cell<usize>,
    /// Messages to hand to connections.
    due: RefCell<Vec<(u64, Rc<Reply>)>>,
    /// The way to other front ends.
    pub forward: Forward,
}

impl Channels {
    fn add(&self, client: &Client, kind: Kind, name: &[u8]) -> Result<(), Fail> {
        let mut names = client.names.borrow_mut();
        if names[kind as usize].contains(name) {
            return Ok(());
        }
        let mut subscribers = self.subscribers.borrow_mut();
        let patterns = kind == Kind::Pattern && subscribers[Kind::Pattern as usize].len() >= PATTERNS;
        if self.count.get() >= MOST || patterns {
            return Err(Fail::new(format!(
                "this front end has {MOST} subscriptions or {PATTERNS} patterns, which is the limit"
            )));
        }
        names[kind as usize].insert(name.to_vec());
        subscribers[kind as usize].entry(name.to_vec()).or_default().insert(client.id);
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
            }
        }
        self.count.set(self.count.get() - 1);
        if self.count.get() == 0 {
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
    fn reach(&self, message: &Message, sends: bool) -> usize {
        let subscribers = self.subscribers.borrow();
        let (mut due, mut reached) = (self.due.borrow_mut(), 0);
        let mut hand = |those: &BTreeSet<u64>, parts: &[&[u8]]| {
            reached += those.len();
            if sends {
                let push = Rc::new(Reply::Push(parts.iter().map(|part| Reply::bulk(*part)).collect()));
                due.extend(those.iter().map(|&id| (id, Rc::clone(&push))));
            }
        };
        if let Some(those) = subscribers[message.kind as usize].get(&message.channel) {
            let name: &[u8] = if message.kind == Kind::Sharded { b"smessage" } else { b"message" };
            hand(those, &[name, &message.channel, &message.text]);
        }
        if message.kind == Kind::Plain {
            for (pattern, those) in &subscribers[Kind::Pattern as usize] {
                if matches(pattern, &message.channel) {
                    hand(those, &[b"pmessage", pattern, &message.channel, &message.text]);
                }
            }
        }
        reached
    }

    /// Messages to hand to connections, in order.
    pub fn take_due(&self) -> Vec<(u64, Rc<Reply>)> {
        std::mem::take(&mut self.due.borrow_mut())
    }

    /// Whether there are such messages.
    pub fn is_due(&self) -> bool {
        !self.due.borrow().is_empty()
    }

    /// PUBSUB CHANNELS and SHARDCHANNELS.
    fn active(&self, kind: Kind, pattern: Option<&[u8]>) -> Reply {
        let subscribers = self.subscribers.borrow();
        let wanted = |name: &&Vec<u8>| pattern.is_none_or(|pattern| matches(pattern, name));
        Reply::Array(
            subscribers[kind as usize].keys().filter(wanted).map(|name| Reply::bulk(name.as_slice())).collect(),
        )
    }

    /// PUBSUB NUMSUB and SHARDNUMSUB.
    fn numbers(&self, kind: Kind, names: &[Vec<u8>]) -> Reply {
        let subscribers = self.subscribers.borrow();
        let number = |name: &Vec<u8>| subscribers[kind as usize].get(name).map_or(0, BTreeSet::len) as i64;
        Reply::Array(names.iter().flat_map(|name| [Reply::bulk(name.as_slice()), Reply::Int(number(name))]).collect())
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
        "pubsub" => pubsub(call),
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
    channels.forward.open(call).await?;
    let mut told = Vec::with_capacity(call.count() - 1);
    for name in &call.args[1..] {
        match channels.add(&call.client, kind, name) {
            Ok(()) => told.push(call.client.told(what, kind, Some(name))),
            Err(fail) => {
                told.push(fail.0);
                break;
            }
        }
    }
    if channels.count.get() == 0 {
        channels.forward.close();
    }
    Ok(Reply::Several(told))
}

fn unsubscribe(what: &str, kind: Kind, call: &Call) -> Reply {
    let (channels, client) = (&call.front.channels, &call.client);
    let names = match &call.args[1..] {
        [] => client.names.borrow()[kind as usize].iter().cloned().collect(),
        names => names.to_vec(),
    };
    let told = names.iter().map(|name| {
        channels.remove(client, kind, name);
        client.told(what, kind, Some(name))
    });
    let told: Vec<Reply> = told.collect();
    Reply::Several(if told.is_empty() { vec![client.told(what, kind, None)] } else { told })
}

/// PUBLISH and SPUBLISH. The reply counts the clients of this front end alone.
async fn publish(call: &Call, message: Message) -> Answered {
    if message.channel.len() + message.text.len() > MESSAGE {
        return Err(Fail::new(format!("a message has {MESSAGE} bytes at most, with its channel's name")));
    }
    if let Some(draft) = &call.draft {
        let reached = call.front.channels.reach(&message, false);
        draft.publish(message)?;
        return Ok(Reply::Int(reached as i64));
    }
    send(call, message).await.map(|reached| Reply::Int(reached as i64))
}

/// Hands a message to all who have subscribed; how many clients of this front end these are.
async fn send(call: &Call, message: Message) -> Result<usize, Fail> {
    let channels = &call.front.channels;
    if call.store().has_others() {
        channels.forward.room(&call.io).await;
        // One moment for both: so all subscribers see this front end's messages in one order.
        channels.forward.push(&message);
    }
    Ok(channels.reach(&message, true))
}

/// Publishes what a script or a transaction has, now that it has taken effect.
pub(super) async fn send_all(call: &Call, messages: Vec<Message>) -> Result<(), Fail> {
    for message in messages {
        send(call, message).await?;
    }
    Ok(())
}

fn pubsub(call: &Call) -> Answered {
    let channels = &call.front.channels;
    let pattern = || call.args.get(2).map(Vec::as_slice);
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"channels", 2 | 3) => Ok(channels.active(Kind::Plain, pattern())),
        (b"shardchannels", 2 | 3) => Ok(channels.active(Kind::Sharded, pattern())),
        (b"numsub", _) => Ok(channels.numbers(Kind::Plain, &call.args[2..])),
        (b"shardnumsub", _) => Ok(channels.numbers(Kind::Sharded, &call.args[2..])),
        (b"numpat", 2) => {
            let subscribers = channels.subscribers.borrow();
            Ok(Reply::Int(subscribers[Kind::Pattern as usize].len() as i64))
        }
        _ => Err(super::server::unknown(call, "pubsub")),
    }
}
