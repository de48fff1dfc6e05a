//! Streams: entries by ID, and groups of consumers that share them.
//!
//! A stream has its entries and what its groups note by their keys
//! ([`streams`](crate::segments::streams)), so a command reads and writes those that it needs. An
//! entry is delivered and noted as pending at one moment. A stream without entries stays.

mod claims;
mod groups;
mod info;
mod reading;
mod stream;
#[cfg(test)]
mod tests;

use super::super::args::{int, is};
use super::super::{Answered, Call, Fail};
use super::{bulks, in_segments};
use crate::keyspace::Change;
use crate::object::{Object, Type};
use crate::resp::Reply;
use crate::segments::Working;
use crate::segments::streams::{Id, NAME};
use crate::shard::Trouble;
use stream::{Entry, Head};

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "xack" => groups::ack(call).await,
        "xadd" => add(call).await,
        "xautoclaim" => claims::autoclaim(call).await,
        "xclaim" => claims::claim(call).await,
        "xdel" => delete(call).await,
        "xgroup" => groups::manage(call).await,
        "xinfo" => info::run(call).await,
        "xlen" => {
            let see = |stream: Option<&Working<'_>>| Ok(Reply::Int(stream.map_or(0, |stream| stream.count()) as i64));
            look(call, call.arg(1), see).await
        }
        "xpending" => groups::pending(call).await,
        "xrange" => range(call, call.arg(2), call.arg(3), false).await,
        "xread" | "xreadgroup" => reading::run(name, call).await,
        "xrevrange" => range(call, call.arg(3), call.arg(2), true).await,
        "xsetid" => set_id(call).await,
        _ => trim(call).await,
    }
}

/// What a key's stream shows; `None`: there is no such key.
async fn look<T>(call: &Call, key: &[u8], see: impl Fn(Option<&Working<'_>>) -> Result<T, Fail>) -> Result<T, Fail> {
    let seen = |object: Option<&Object>, value: Option<&Working<'_>>| match (object, value) {
        (_, Some(value)) if value.kind == Type::Stream => see(Some(value)),
        (None, None) => see(None),
        (Some(object), None) if object.kind() == Type::Stream => see(Some(&opened(call, object)?)),
        _ => Err(Fail::wrong_type()),
    };
    call.view(key, seen).await
}

/// A stream that is one object.
fn opened<'a>(call: &'a Call, object: &Object) -> Result<Working<'a>, Trouble> {
    Working::opened(&call.store().segments, object).ok_or(Trouble::Corrupt)
}

/// Changes a key's stream. `edit` gets one that is empty if there is none: without anything that was
/// set in it none is made. It changes nothing before it fails, but if segments are wanted.
async fn change<T>(
    call: &Call,
    key: &[u8],
    mut edit: impl FnMut(&mut Working<'_>) -> Result<T, Fail>,
) -> Result<T, Fail> {
    if let Some(outcome) = call.change_open(key, Type::Stream, &mut edit).await? {
        return Ok(outcome);
    }
    let change = |there: Option<&Object>| -> Result<Change<T>, Fail> {
        let mut stream = match there {
            None => Working::none(&call.store().segments, Type::Stream),
            Some(head) if head.kind() == Type::Parts => in_segments(call, head, Type::Stream)?,
            Some(object) if object.kind() == Type::Stream => opened(call, object)?,
            Some(_) => return Err(Fail::wrong_type()),
        };
        let outcome = edit(&mut stream)?;
        Ok(stream.change(outcome)?)
    };
    call.update_as(key, false, change).await
}

/// A name for a group or a consumer.
fn named(name: &[u8]) -> Result<&[u8], Fail> {
    if name.len() <= NAME {
        return Ok(name);
    }
    Err(Fail::new(format!("names of groups and consumers have {NAME} bytes at most")))
}

fn wrong_id() -> Fail {
    Fail::new("Invalid stream ID specified as stream command argument")
}

/// A number as an ID has it.
fn part(text: &[u8]) -> Option<u64> {
    let plain = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| plain)?.parse().ok()
}

/// An ID in full or by its milliseconds, with `seq` then.
fn id(text: &[u8], seq: u64) -> Result<Id, Fail> {
    let parsed = match text.iter().position(|&byte| byte == b'-') {
        Some(at) => part(&text[..at]).zip(part(&text[at + 1..])).map(|(ms, seq)| Id { ms, seq }),
        None => part(text).map(|ms| Id { ms, seq }),
    };
    parsed.ok_or_else(wrong_id)
}

/// An end of a range: an ID, `-`, `+`, or an ID behind `(`, which is not meant itself.
fn bound(text: &[u8], is_first: bool) -> Result<Id, Fail> {
    let seq = if is_first { 0 } else { u64::MAX };
    match text {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        [b'(', rest @ ..] => {
            let bound = id(rest, seq)?;
            let (next, which) = if is_first { (bound.next(), "start") } else { (bound.before(), "end") };
            next.ok_or_else(|| Fail::new(format!("invalid {which} ID for the interval")))
        }
        _ => id(text, seq),
    }
}

fn shown(entry: &Entry) -> Reply {
    Reply::Array(vec![Reply::bulk(entry.id.text()), Reply::Array(bulks(&entry.fields))])
}

/// The entries to take out of a stream: MAXLEN or MINID.
#[derive(Clone, Copy)]
enum Bound {
    Length(u64),
    Id(Id),
}

/// The options of XADD and XTRIM before the ID.
#[derive(Default)]
struct Trim {
    bound: Option<Bound>,
    limit: Option<usize>,
    makes_none: bool,
    /// More may stay than the bound says.
    about: bool,
}

impl Trim {
    /// The options from `n` on, and where the first argument is that is none.
    fn of(call: &Call, mut n: usize, adds: bool) -> Result<(Trim, usize), Fail> {
        let (mut trim, mut about) = (Trim::default(), false);
        while n < call.count() {
            let (arg, more) = (call.arg(n), call.count() - n - 1);
            if adds && arg == b"*" {
                break;
            } else if (is(arg, "maxlen") || is(arg, "minid")) && more > 0 {
                if trim.bound.is_some() {
                    return Err(Fail::new(
                        "syntax error, MAXLEN and MINID options at the same time are not compatible",
                    ));
                }
                let sign = matches!(call.arg(n + 1), b"~" | b"=") && more > 1;
                about = sign && call.arg(n + 1) == b"~";
                n += 1 + usize::from(sign);
                trim.bound = Some(if is(arg, "maxlen") {
                    let length = u64::try_from(int(call.arg(n))?);
                    Bound::Length(length.map_err(|_| Fail::new("The MAXLEN argument must be >= 0."))?)
                } else {
                    Bound::Id(id(call.arg(n), 0)?)
                });
            } else if is(arg, "limit") && more > 0 {
                n += 1;
                let limit = usize::try_from(int(call.arg(n))?);
                trim.limit = Some(limit.map_err(|_| Fail::new("The LIMIT argument must be >= 0."))?);
            } else if adds && is(arg, "nomkstream") {
                trim.makes_none = true;
            } else if adds {
                break;
            } else {
                return Err(Fail::syntax());
            }
            n += 1;
        }
        if trim.limit.is_some() && !about {
            return Err(Fail::new("syntax error, LIMIT cannot be used without the special ~ option"));
        }
        // All that may go goes, but for what LIMIT says, and what XADD leaves.
        (trim.limit, trim.about) = (trim.limit.filter(|limit| *limit > 0), about);
        Ok((trim, n))
    }

    /// Takes entries out; how many.
    fn apply(&self, stream: &mut Working<'_>) -> Result<usize, Trouble> {
        let count = match self.bound {
            None => 0,
            Some(Bound::Length(most)) => stream.count().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX)),
            Some(Bound::Id(least)) => stream.place_of(0, &least.key())?,
        };
        let count = count.min(self.limit.unwrap_or(count));
        stream.take_out(0..count)?;
        Ok(count)
    }

    /// [`Trim::apply`] behind an entry that was added. With `~` whole segments go, so that not each
    /// entry that comes has the first segment be written again.
    fn follow(&self, stream: &mut Working<'_>) -> Result<(), Trouble> {
        let first = stream.parts(0).first().map_or(0, |part| part.count as usize);
        let stays = |most: u64| (stream.count() as u64) < most.saturating_add(first as u64);
        let is_near = match self.bound {
            Some(Bound::Length(most)) => stays(most),
            Some(Bound::Id(least)) => stream.place_of(0, &least.key())? < first,
            None => true,
        };
        if self.about && self.limit.is_none() && is_near && stream.parts(0).len() > 2 {
            return Ok(());
        }
        self.apply(stream).map(drop)
    }
}

async fn add(call: &Call) -> Answered {
    let (trim, at) = Trim::of(call, 2, true)?;
    let fields = call.args.get(at + 1..).unwrap_or_default();
    if fields.len() < 2 || fields.len() % 2 == 1 {
        return Err(Fail(super::super::wrong_number("xadd")));
    }
    let text = call.arg(at);
    // The whole ID, its milliseconds alone, or nothing.
    let given = match text {
        b"*" => None,
        [ms @ .., b'-', b'*'] => Some((part(ms).ok_or_else(wrong_id)?, None)),
        _ => {
            let id = id(text, 0)?;
            if id == Id::MIN {
                return Err(Fail::new("The ID specified in XADD must be greater than 0-0"));
            }
            Some((id.ms, Some(id.seq)))
        }
    };
    let now_ms = call.now_ms();
    change(call, call.arg(1), |stream| {
        if stream.is_empty() && trim.makes_none {
            return Ok(Reply::Null);
        }
        let id = next_id(stream.head()?.last, given, now_ms)?;
        stream.append(id, fields)?;
        trim.follow(stream)?;
        Ok(Reply::bulk(id.text()))
    })
    .await
}

/// The ID of an entry behind `last`, of which the milliseconds, and the number too, may be given.
fn next_id(last: Id, given: Option<(u64, Option<u64>)>, now_ms: u64) -> Result<Id, Fail> {
    let full = || Fail::new("The stream has exhausted the last possible ID, unable to add more items");
    let id = match given {
        None if now_ms > last.ms => Id { ms: now_ms, seq: 0 },
        None => last.next().ok_or_else(full)?,
        Some((ms, Some(seq))) => Id { ms, seq },
        Some((ms, None)) if ms == last.ms => Id { ms, seq: last.seq.checked_add(1).unwrap_or(last.seq) },
        Some((ms, None)) => Id { ms, seq: 0 },
    };
    match id {
        _ if id > last => Ok(id),
        _ if last == Id::MAX => Err(full()),
        _ => Err(Fail::new("The ID specified in XADD is equal or smaller than the target stream top item")),
    }
}

async fn trim(call: &Call) -> Answered {
    let (trim, _) = Trim::of(call, 2, false)?;
    if trim.bound.is_none() {
        return Err(Fail::syntax());
    }
    change(call, call.arg(1), |stream| Ok(Reply::Int(trim.apply(stream)? as i64))).await
}

async fn delete(call: &Call) -> Answered {
    let ids = call.args[2..].iter().map(|text| id(text, 0)).collect::<Result<Vec<Id>, Fail>>()?;
    change(call, call.arg(1), |stream| Ok(Reply::Int(stream.delete(&ids)? as i64))).await
}

async fn range(call: &Call, first: &[u8], last: &[u8], backwards: bool) -> Answered {
    let (first, last) = (bound(first, true)?, bound(last, false)?);
    let most = match &call.args[4..] {
        [] => usize::MAX,
        [word, count] if is(word, "count") => usize::try_from(int(count)?.max(0)).unwrap_or(usize::MAX),
        _ => return Err(Fail::syntax()),
    };
    let see = |stream: Option<&Working<'_>>| match stream {
        None => Ok(Reply::Array(Vec::new())),
        Some(_) if most == 0 => Ok(Reply::NullArray),
        Some(stream) if backwards => Ok(all(&stream.entries_back(first, last, most)?)),
        Some(stream) => Ok(all(&stream.entries(first, last, most)?)),
    };
    look(call, call.arg(1), see).await
}

fn all(entries: &[Entry]) -> Reply {
    Reply::Array(entries.iter().map(shown).collect())
}

async fn set_id(call: &Call) -> Answered {
    let (last, mut added, mut deleted, mut n) = (id(call.arg(2), 0)?, None, None, 3);
    while n < call.count() {
        let value = call.args.get(n + 1).ok_or_else(Fail::syntax)?;
        match call.arg(n) {
            arg if is(arg, "entriesadded") => {
                let wrong = || Fail::new("entries_added must be positive");
                added = Some(u64::try_from(int(value)?).map_err(|_| wrong())?);
            }
            arg if is(arg, "maxdeletedid") => {
                let largest = id(value, 0)?;
                if last < largest {
                    return Err(Fail::new(
                        "The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
                deleted = Some(largest);
            }
            _ => return Err(Fail::syntax()),
        }
        n += 2;
    }
    change(call, call.arg(1), |stream| {
        if stream.is_empty() {
            return Err(Fail::new("no such key"));
        }
        if stream.last_entry()?.is_some_and(|entry| last < entry.id) {
            return Err(Fail::new("The ID specified in XSETID is smaller than the target stream top item"));
        }
        if added.is_some_and(|added| added < stream.count() as u64) {
            return Err(Fail::new("The entries_added specified in XSETID is smaller than the target stream length"));
        }
        let before = stream.head()?;
        let max_deleted = deleted.filter(|id| *id != Id::MIN).unwrap_or(before.max_deleted);
        stream.set_head(&Head { last, max_deleted, added: added.unwrap_or(before.added) })?;
        Ok(Reply::Ok)
    })
    .await
}
