//! CLIENT: connections, as they see and end each other.

use super::args::{int, is};
use super::channels::Kind;
use super::{Answered, Call, Client, Fail};
use crate::resp::Reply;
use std::collections::HashSet;
use std::rc::Rc;

/// A pause of clients' commands that CLIENT PAUSE has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pause {
    /// When it ends, in ms since 1970.
    pub until_ms: u64,
    /// Commands that change nothing go on.
    pub spares_reads: bool,
}

/// CLIENT REPLY: which replies a client is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// All but the one to the next command; and that to CLIENT REPLY SKIP.
    SkipNext,
    /// All but this one.
    Skip,
}

impl Replies {
    /// Whether the reply to the command that ends now is sent, and what holds from then on.
    pub fn next(self) -> (bool, Replies) {
        match self {
            Replies::On => (true, Replies::On),
            Replies::Off => (false, Replies::Off),
            Replies::SkipNext => (false, Replies::Skip),
            Replies::Skip => (false, Replies::On),
        }
    }
}

pub(super) fn run(call: &Call) -> Answered {
    let clients = call.front.clients.borrow();
    let now = call.store().now_ms();
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"id", 2) => Ok(Reply::Int(call.client.id as i64)),
        (b"getname", 2) => Ok(Reply::maybe(Some(call.client.name.borrow().clone()).filter(|name| !name.is_empty()))),
        (b"setname", 3) => {
            *call.client.name.borrow_mut() = named(call.arg(2))?;
            Ok(Reply::Ok)
        }
        (b"setinfo", 4) => {
            let place = usize::from(is(call.arg(2), "lib-ver"));
            if place == 0 && !is(call.arg(2), "lib-name") {
                return Err(Fail::new(format!("Unrecognized option '{}'", String::from_utf8_lossy(call.arg(2)))));
            }
            call.client.library.borrow_mut()[place] = named(call.arg(3))?;
            Ok(Reply::Ok)
        }
        (b"info", 2) => Ok(Reply::Text(line(&call.client, now))),
        (b"list", _) => {
            let wanted = listed(call)?;
            let there = clients.values().filter(|client| !client.closing.get() && wanted(client));
            Ok(Reply::Text(there.map(|client| line(client, now)).collect()))
        }
        (b"kill", 3) => {
            let address = call.arg(2);
            match clients.values().find(|client| !client.closing.get() && client.address.as_bytes() == address) {
                Some(client) => {
                    kill(call, client);
                    Ok(Reply::Ok)
                }
                None => Err(Fail::new("No such client")),
            }
        }
        (b"kill", 4..) => {
            let killed: Vec<&Rc<Client>> = killed(call)?.matching(clients.values()).collect();
            killed.iter().for_each(|client| kill(call, client));
            Ok(Reply::Int(killed.len() as i64))
        }
        (b"unblock", 3 | 4) => {
            let error = match call.arg(3).to_ascii_lowercase().as_slice() {
                b"" | b"timeout" => false,
                b"error" => true,
                _ => return Err(Fail::new("CLIENT UNBLOCK reason should be TIMEOUT or ERROR")),
            };
            let id = int(call.arg(2))? as u64;
            let blocked = clients.get(&id).filter(|client| client.blocked.get());
            blocked.inspect(|client| client.unblocked.set(Some(error)));
            Ok(Reply::Int(i64::from(blocked.is_some())))
        }
        (b"pause", 3 | 4) => pause(call, now),
        (b"unpause", 2) => {
            call.front.pause.set(Pause::default());
            Ok(Reply::Ok)
        }
        (b"reply", 3) => reply(call),
        (b"no-evict" | b"no-touch", 3) if is(call.arg(2), "on") || is(call.arg(2), "off") => Ok(Reply::Ok),
        (b"no-evict" | b"no-touch", 3) => Err(Fail::syntax()),
        // Nothing is tracked, and nothing redirected.
        (b"getredir", 2) => Ok(Reply::Int(-1)),
        (b"tracking", 3) if is(call.arg(2), "off") => Ok(Reply::Ok),
        (b"tracking", 3..) => Err(Fail::new("CLIENT TRACKING is not supported: keep no copies of values in clients")),
        (b"trackinginfo", 2) => Ok(Reply::Map(vec![
            (Reply::bulk("flags"), Reply::Set(vec![Reply::bulk("off")])),
            (Reply::bulk("redirect"), Reply::Int(-1)),
            (Reply::bulk("prefixes"), Reply::Array(Vec::new())),
        ])),
        _ => Err(super::server::unknown(call, "client")),
    }
}

/// Bytes of a client's name, and of its library's, at most. Each slow command is remembered with
/// the name of its client, and each line of CLIENT LIST has one.
const NAME: usize = 1024;

pub(super) fn named(name: &[u8]) -> Result<Vec<u8>, Fail> {
    if name.len() > NAME {
        return Err(Fail::new(format!("Client names have {NAME} bytes at most.")));
    }
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        return Ok(name.to_vec());
    }
    Err(Fail::new("Client names cannot contain spaces, newlines or special characters."))
}

fn line(client: &Client, now_ms: u64) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (library, unread) = (client.library.borrow(), client.unread.get());
    format!(
        "id={} addr={} laddr={} fd=0 name={} age={} idle={} flags={} db=0 sub={} psub={} ssub={} multi={} qbuf=0 \
         qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 obl={unread} oll=0 omem={unread} tot-mem={unread} events=r cmd={} \
         user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
        client.id,
        client.address,
        client.local,
        text(&client.name.borrow()),
        now_ms.saturating_sub(client.since_ms) / 1000,
        now_ms.saturating_sub(client.seen_ms.get()) / 1000,
        flags(client),
        client.subscribed(Kind::Plain),
        client.subscribed(Kind::Pattern),
        client.subscribed(Kind::Sharded),
        client.collected(),
        client.last.get(),
        client.version.get(),
        text(&library[0]),
        text(&library[1]),
    )
}

/// The letters by which redis says what a client does just now.
fn flags(client: &Client) -> String {
    let is = [
        ('O', client.monitors.get()),
        ('P', client.listens()),
        ('x', client.collects()),
        ('b', client.blocked.get()),
        ('c', client.closing.get()),
    ];
    let flags: String = is.iter().filter(|(_, is)| *is).map(|(letter, _)| letter).collect();
    if flags.is_empty() { "N".into() } else { flags }
}

/// Tells the clients that are listed.
type Filter = Box<dyn Fn(&Client) -> bool>;

/// CLIENT LIST's filter.
fn listed(call: &Call) -> Result<Filter, Fail> {
    match (call.arg(2).to_ascii_lowercase().as_slice(), call.count()) {
        (b"", 2) => Ok(Box::new(|_| true)),
        (b"type", 4) => {
            let kind = kind(call.arg(3))?;
            Ok(Box::new(move |client| kind == Some(client.listens())))
        }
        (b"id", 4..) => {
            let ids: Result<HashSet<i64>, Fail> = call.args[3..].iter().map(|id| int(id)).collect();
            let ids = ids.map_err(|_| Fail::new("Invalid client ID"))?;
            Ok(Box::new(move |client| ids.contains(&(client.id as i64))))
        }
        _ => Err(Fail::syntax()),
    }
}

/// Whether clients of this type have subscriptions; `None`: there are no such clients here.
fn kind(kind: &[u8]) -> Result<Option<bool>, Fail> {
    match kind.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(Some(false)),
        b"pubsub" => Ok(Some(true)),
        b"master" | b"replica" | b"slave" => Ok(None),
        _ => Err(Fail::new(format!("Unknown client type '{}'", String::from_utf8_lossy(kind)))),
    }
}

/// CLIENT KILL's filters: a client that fulfils all of them is killed.
struct Filters {
    id: Option<u64>,
    address: Option<Vec<u8>>,
    local: Option<Vec<u8>>,
    /// Whether it has subscriptions.
    listens: Option<bool>,
    /// False: no client is of the type.
    any: bool,
    /// The caller is spared.
    spared: Option<u64>,
}

impl Filters {
    fn matching<'a>(&self, clients: impl Iterator<Item = &'a Rc<Client>>) -> impl Iterator<Item = &'a Rc<Client>> {
        clients.filter(|client| {
            let is = |wanted: &Option<Vec<u8>>, address: &str| {
                wanted.as_ref().is_none_or(|wanted| *wanted == address.as_bytes())
            };
            self.any
                && self.listens.is_none_or(|listens| listens == client.listens())
                && !client.closing.get()
                && self.id.is_none_or(|id| id == client.id)
                && is(&self.address, &client.address)
                && is(&self.local, &client.local)
                && self.spared != Some(client.id)
        })
    }
}

fn killed(call: &Call) -> Result<Filters, Fail> {
    if !call.count().is_multiple_of(2) {
        return Err(Fail::syntax());
    }
    let mut filters =
        Filters { id: None, address: None, local: None, listens: None, any: true, spared: Some(call.client.id) };
    for pair in call.args[2..].chunks(2) {
        let (filter, value) = (&pair[0], &pair[1]);
        match filter.to_ascii_lowercase().as_slice() {
            b"id" => {
                let id = int(value).ok().filter(|id| *id > 0);
                filters.id = Some(id.ok_or_else(|| Fail::new("client-id should be greater than 0"))? as u64);
            }
            b"addr" => filters.address = Some(value.clone()),
            b"laddr" => filters.local = Some(value.clone()),
            b"type" => match kind(value)? {
                Some(listens) => {
                    filters.any &= filters.listens.is_none_or(|before| before == listens);
                    filters.listens = Some(listens);
                }
                None => filters.any = false,
            },
            b"user" if is(value, "default") => {}
            b"user" => {
                return Err(Fail::new(format!("No such user '{}'", String::from_utf8_lossy(value))));
            }
            b"skipme" if is(value, "yes") => filters.spared = Some(call.client.id),
            b"skipme" if is(value, "no") => filters.spared = None,
            _ => return Err(Fail::syntax()),
        }
    }
    Ok(filters)
}

fn kill(call: &Call, client: &Client) {
    client.closing.set(true);
    call.front.killed.borrow_mut().push(client.id);
}

/// CLIENT PAUSE. A longer pause that is under way stays, as in redis.
fn pause(call: &Call, now: u64) -> Answered {
    let ms = int(call.arg(2)).ok().and_then(|ms| u64::try_from(ms).ok());
    let ms = ms.ok_or_else(|| Fail::new("timeout is not an integer or out of range"))?;
    let spares_reads = match call.arg(3).to_ascii_lowercase().as_slice() {
        b"" | b"all" => false,
        b"write" => true,
        _ => return Err(Fail::new("CLIENT PAUSE mode must be WRITE or ALL")),
    };
    let before = call.front.pause.get();
    let under_way = before.until_ms > now;
    call.front.pause.set(Pause {
        until_ms: now.saturating_add(ms).max(before.until_ms),
        spares_reads: spares_reads && (!under_way || before.spares_reads),
    });
    Ok(Reply::Ok)
}

fn reply(call: &Call) -> Answered {
    let replies = &call.client.replies;
    match call.arg(2).to_ascii_lowercase().as_slice() {
        b"on" => {
            replies.set(Replies::On);
            Ok(Reply::Ok)
        }
        b"off" => {
            replies.set(Replies::Off);
            Ok(Reply::Silence)
        }
        b"skip" => {
            if replies.get() == Replies::On {
                replies.set(Replies::SkipNext);
            }
            Ok(Reply::Silence)
        }
        _ => Err(Fail::syntax()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_reply_is_skipped() {
        let mut now = Replies::SkipNext;
        let sent: Vec<bool> = (0..4)
            .map(|_| {
                let (sent, next) = now.next();
                now = next;
                sent
            })
            .collect();
        assert_eq!((sent, now), (vec![false, false, true, true], Replies::On));
    }
}
