//! Published changes of keys: redis's setting notify-keyspace-events.
//!
//! ```text
//!  a command has changed key k ─► PUBLISH __keyspace@0__:k EVENT      if the setting has K
//!                                 PUBLISH __keyevent@0__:EVENT k      if it has E
//! ```
//!
//! The setting is a front end's own, and decides about what its clients change. The subscribers of
//! all front ends hear it. A key that ends, or is evicted, is told of by the front end that takes it
//! out: the one whose memory it lies in. A change in a transaction or a script is told of when that
//! has taken effect.

use super::channels::{self, Kind, Message};
use super::{Call, Command, Front, Group, find};
use crate::shard::Trouble;
use crate::shard::space::{Left, TOLD_KEY};
use crate::task::Io;
use std::cell::Cell;
use std::rc::Rc;

/// A key and its channel's name are one message.
const _: () = assert!(2 * TOLD_KEY <= channels::MESSAGE);

/// The letters of the setting, each a bit: kinds of events, then the kinds of channels.
const LETTERS: &[u8; 11] = b"g$lshzxetKE";
/// `A`: all kinds of events.
const ALL: u16 = (1 << 9) - 1;
const KEYSPACE: u16 = 1 << 9;
const KEYEVENT: u16 = 1 << 10;

/// The setting, and whether keys that have ended are told of just now.
#[derive(Debug, Default)]
pub struct Events(Cell<u16>, Cell<bool>);

fn bit(letter: u8) -> u16 {
    LETTERS.iter().position(|&one| one == letter).map_or(0, |place| 1 << place)
}

impl Events {
    /// Whether any change is told.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.0.get() != 0
    }

    /// Whether keys that end or are evicted are told of.
    pub(super) fn tells_ends(&self) -> bool {
        self.0.get() & (bit(b'x') | bit(b'e')) != 0
    }

    /// Takes the setting as redis has it; the letter that is refused, if there is one. `d` is of
    /// modules, which there are none of.
    pub(super) fn set(&self, text: &[u8]) -> Result<(), u8> {
        let mut wanted = 0;
        for &letter in text {
            wanted |= match letter {
                b'A' => ALL,
                b'd' => 0,
                letter => Some(bit(letter)).filter(|bit| *bit != 0).ok_or(letter)?,
            };
        }
        // Without a kind of channel, or of events, there is nothing to tell.
        let tells = wanted & (KEYSPACE | KEYEVENT) != 0 && wanted & ALL != 0;
        self.0.set(if tells { wanted } else { 0 });
        Ok(())
    }
}

impl std::fmt::Display for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set = self.0.get();
        let all = set & ALL == ALL;
        let shown = |place: &usize| set & (1 << place) != 0 && (!all || *place >= 9);
        let letters = (0..LETTERS.len()).filter(shown).map(|place| char::from(LETTERS[place]));
        f.write_str(&all.then_some('A').into_iter().chain(letters).collect::<String>())
    }
}

/// Tells that a command has given a key a new value, or taken it out (`gone`).
pub(super) async fn changed(call: &Call, key: &[u8], gone: bool) -> Result<(), Trouble> {
    let Some(command) = find(call.arg(0)) else { return Ok(()) };
    for event in of(call, command, key) {
        // A key that has become empty is told of by both.
        if !gone || takes(command) {
            tell(call, kind(command), event, key).await?;
        }
    }
    if gone && !matches!(command.name, "rename" | "renamenx") {
        tell(call, b'g', "del", key).await?;
    }
    Ok(())
}

/// The keys that [`ended`] is to tell of. `None` while it is under way, so that the list is bounded.
pub fn begins_to_tell(front: &Front) -> Option<Vec<(Left, Vec<u8>)>> {
    if front.events.1.get() {
        return None;
    }
    let (keys, lost) = front.store.take_leaving();
    if lost {
        front.lose_messages();
    }
    front.events.1.set(!keys.is_empty());
    Some(keys).filter(|keys| !keys.is_empty())
}

/// Tells of keys that have ended, or were evicted.
pub async fn ended(front: &Rc<Front>, io: &Io, keys: Vec<(Left, Vec<u8>)>) {
    for (left, key) in keys {
        let (kind, event) = if left == Left::Evicted { (b'e', "evicted") } else { (b'x', "expired") };
        for message in messages(&front.events, kind, event, &key) {
            channels::send(front, io, message).await;
        }
    }
    front.events.1.set(false);
}

async fn tell(call: &Call, kind: u8, event: &str, key: &[u8]) -> Result<(), Trouble> {
    for message in messages(&call.front.events, kind, event, key) {
        match &call.draft {
            Some(draft) => draft.publish(message)?,
            None => {
                channels::send(&call.front, &call.io, message).await;
            }
        }
    }
    Ok(())
}

/// The messages of an event, by the setting.
fn messages(events: &Events, kind: u8, event: &str, key: &[u8]) -> Vec<Rc<Message>> {
    let set = events.0.get();
    let told = set & bit(kind) != 0 && key.len() < TOLD_KEY;
    let message = |wanted: u16, channel: &str, name: &[u8], text: &[u8]| {
        let channel = [channel.as_bytes(), name].concat();
        (told && set & wanted != 0).then(|| Rc::new(Message { kind: Kind::Plain, channel, text: text.to_vec() }))
    };
    let of_key = message(KEYSPACE, "__keyspace@0__:", key, event.as_bytes());
    let of_event = message(KEYEVENT, "__keyevent@0__:", event.as_bytes(), key);
    of_key.into_iter().chain(of_event).collect()
}

/// The kind of a command's events.
fn kind(command: &Command) -> u8 {
    match command.group {
        _ if matches!(command.name, "getex" | "setex" | "psetex") => b'$',
        _ if command.name == "sort" => b'l',
        Group::Strings | Group::Bits | Group::Counts => b'$',
        Group::Lists | Group::Moves => b'l',
        Group::Hashes => b'h',
        Group::Sets => b's',
        Group::SortedSets | Group::Ranges | Group::Combined | Group::Places => b'z',
        Group::Streams => b't',
        Group::Keys | Group::Scripts | Group::Channels | Group::Server => b'g',
    }
}

/// Whether a command takes elements out, so that its own event comes before that of the key's end.
fn takes(command: &Command) -> bool {
    let stores = command.name.ends_with("store") || command.name.starts_with("georadius");
    !stores && !matches!(kind(command), b'$' | b'g') && command.name != "sort" || command.name.starts_with("rename")
}

/// The events of a command that has changed a key.
fn of(call: &Call, command: &'static Command, key: &[u8]) -> Vec<&'static str> {
    let is_first = call.arg(1) == key;
    let has = |word: &str| call.args.iter().skip(2).any(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    let side = |word: &[u8], put: bool| match (word.eq_ignore_ascii_case(b"left"), put) {
        (true, true) => "lpush",
        (true, false) => "lpop",
        (false, true) => "rpush",
        (false, false) => "rpop",
    };
    let moved = |from: &'static str, to: &'static str| match (is_first, call.arg(2) == key) {
        (true, true) => vec![from, to],
        (true, false) => vec![from],
        _ => vec![to],
    };
    match command.name {
        "set" if has("ex") || has("px") || has("exat") || has("pxat") => vec!["set", "expire"],
        "setex" | "psetex" => vec!["set", "expire"],
        "set" | "setnx" | "getset" | "mset" | "msetnx" | "bitop" => vec!["set"],
        "incr" | "incrby" | "decr" | "decrby" => vec!["incrby"],
        "setbit" | "bitfield" => vec!["setbit"],
        "getex" if has("persist") => vec!["persist"],
        "getex" | "expire" | "expireat" | "pexpire" | "pexpireat" => vec!["expire"],
        "pfadd" | "pfmerge" => vec!["pfadd"],
        "lpushx" => vec!["lpush"],
        "rpushx" => vec!["rpush"],
        "blpop" => vec!["lpop"],
        "brpop" => vec!["rpop"],
        "rpoplpush" | "brpoplpush" => moved("rpop", "lpush"),
        "lmove" | "blmove" => moved(side(call.arg(3), false), side(call.arg(4), true)),
        "lmpop" | "blmpop" => vec![if has("left") { "lpop" } else { "rpop" }],
        "hmset" | "hsetnx" => vec!["hset"],
        "smove" => moved("srem", "sadd"),
        "zadd" if has("incr") => vec!["zincr"],
        "zincrby" => vec!["zincr"],
        "geoadd" => vec!["zadd"],
        "bzpopmin" => vec!["zpopmin"],
        "bzpopmax" => vec!["zpopmax"],
        "zmpop" | "bzmpop" => vec![if has("min") { "zpopmin" } else { "zpopmax" }],
        "georadius" | "georadiusbymember" => vec!["georadiusstore"],
        "rename" | "renamenx" => vec![if is_first { "rename_from" } else { "rename_to" }],
        "copy" => vec!["copy_to"],
        "sort" => vec!["sortstore"],
        "xgroup" => match call.arg(1).to_ascii_lowercase().as_slice() {
            b"create" => vec!["xgroup-create"],
            b"createconsumer" => vec!["xgroup-createconsumer"],
            b"delconsumer" => vec!["xgroup-delconsumer"],
            b"destroy" => vec!["xgroup-destroy"],
            _ => vec!["xgroup-setid"],
        },
        // Redis tells of none, but of new consumers.
        "xack" | "xclaim" | "xautoclaim" | "xreadgroup" => Vec::new(),
        "del" | "unlink" | "getdel" => Vec::new(),
        name => vec![name],
    }
}

#[test]
fn the_setting_is_told_as_redis_tells_it() {
    for (given, told) in
        [("gKE", "gKE"), ("$lshzxeKE", "$lshzxeKE"), ("KA", "AK"), ("EA", "AE"), ("", ""), ("K", ""), ("g", "")]
    {
        let events = Events::default();
        assert_eq!(events.set(given.as_bytes()), Ok(()), "{given}");
        assert_eq!(events.to_string(), told, "{given}");
    }
    assert_eq!(Events::default().set(b"KEn"), Err(b'n'));
}
