//! Groups of consumers: XGROUP, XREADGROUP, XACK and XPENDING.

use super::reading::From;
use super::stream::{Entry, Group, Id, PENDING, Pending, Stream};
use super::{bound, change, id, read as read_stream, shown};
use crate::command::args::{int, is};
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// There is no such group, or no such key.
pub fn no_group(key: &[u8], group: &[u8]) -> Fail {
    Fail(Reply::Error(format!("NOGROUP No such key '{}' or consumer group '{}'", text(key), text(group))))
}

/// XGROUP.
pub async fn manage(call: &Call) -> Answered {
    let what = call.arg(1).to_ascii_lowercase();
    let (key, name) = (call.arg(2), call.arg(3));
    match (what.as_slice(), call.count()) {
        (b"create", 5..) => create(call).await,
        (b"setid", 5 | 7) => {
            let (last, read) = place(call, 5)?;
            in_group(call, |stream, name| {
                let last = last.unwrap_or(stream.last);
                let group = stream.groups.entry(name.to_vec()).or_default();
                (group.last, group.read) = (last, read);
                Ok((Reply::Ok, true))
            })
            .await
        }
        (b"destroy", 4) => {
            change(call, key, |stream, there| {
                needs_key(there)?;
                let gone = stream.groups.remove(name).is_some();
                Ok((Reply::Int(i64::from(gone)), gone))
            })
            .await
        }
        (b"createconsumer", 5) => {
            let now_ms = call.now_ms();
            in_group(call, |stream, name| {
                let group = stream.groups.entry(name.to_vec()).or_default();
                let new = !group.consumers.contains_key(call.arg(4));
                if new {
                    group.consumer(call.arg(4), now_ms);
                }
                Ok((Reply::Int(i64::from(new)), new))
            })
            .await
        }
        (b"delconsumer", 5) => {
            in_group(call, |stream, name| {
                let group = stream.groups.entry(name.to_vec()).or_default();
                let there = group.consumers.remove(call.arg(4)).is_some();
                let before = group.pending.len();
                group.pending.retain(|_, pending| &*pending.consumer != call.arg(4));
                Ok((Reply::Int((before - group.pending.len()) as i64), there))
            })
            .await
        }
        (b"create" | b"setid" | b"destroy" | b"createconsumer" | b"delconsumer", _) => {
            Err(Fail::new(format!("wrong number of arguments for 'xgroup|{}' command", text(&what))))
        }
        _ => Err(super::super::super::server::unknown(call, "xgroup")),
    }
}

fn needs_key(there: bool) -> Result<(), Fail> {
    if there {
        return Ok(());
    }
    Err(Fail::new(
        "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option \
         to create an empty stream automatically.",
    ))
}

/// The ID that XGROUP names, `None` for `$`; and ENTRIESREAD, which may come behind it.
fn place(call: &Call, options: usize) -> Result<(Option<Id>, Option<u64>), Fail> {
    let last = match call.arg(4) {
        b"$" => None,
        b"-" | b"+" if is(call.arg(1), "setid") => Some(bound(call.arg(4), true)?),
        text => Some(id(text, 0)?),
    };
    let mut read = None;
    let mut n = options;
    while n < call.count() {
        if is(call.arg(n), "mkstream") {
            n += 1;
        } else if is(call.arg(n), "entriesread") && n + 1 < call.count() {
            let number = int(call.arg(n + 1))?;
            if number < -1 {
                return Err(Fail::new("value for ENTRIESREAD must be positive or -1"));
            }
            read = u64::try_from(number).ok();
            n += 2;
        } else {
            return Err(Fail::syntax());
        }
    }
    Ok((last, read))
}

async fn create(call: &Call) -> Answered {
    let (last, read) = place(call, 5)?;
    let makes = call.args[5..].iter().any(|arg| is(arg, "mkstream"));
    change(call, call.arg(2), |stream, there| {
        needs_key(there || makes)?;
        if stream.groups.contains_key(call.arg(3)) {
            return Err(Fail(Reply::Error("BUSYGROUP Consumer Group name already exists".into())));
        }
        let group = Group { last: last.unwrap_or(stream.last), read, ..Group::default() };
        stream.groups.insert(call.arg(3).to_vec(), group);
        Ok((Reply::Ok, true))
    })
    .await
}

/// Changes a stream whose group XGROUP names.
async fn in_group(call: &Call, mut edit: impl FnMut(&mut Stream, &[u8]) -> Result<(Reply, bool), Fail>) -> Answered {
    change(call, call.arg(2), |stream, there| {
        needs_key(there)?;
        if !stream.groups.contains_key(call.arg(3)) {
            let (group, key) = (text(call.arg(3)), text(call.arg(2)));
            return Err(Fail(Reply::Error(format!("NOGROUP No such consumer group '{group}' for key name '{key}'"))));
        }
        edit(stream, call.arg(3))
    })
    .await
}

fn nothing_to_read(key: &[u8], group: &[u8]) -> Fail {
    let (key, group) = (text(key), text(group));
    Fail(Reply::Error(format!(
        "NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
    )))
}

/// Whether a consumer can read of a stream.
///
/// # Errors
/// The key is no stream, or has no such group.
pub async fn check(call: &Call, key: &[u8], group: &[u8]) -> Result<(), Fail> {
    let there = read_stream(call, key).await?.is_some_and(|stream| stream.groups.contains_key(group));
    if there { Ok(()) } else { Err(nothing_to_read(key, group)) }
}

/// Delivers entries of a stream to a consumer of a group. `None`: nothing is new.
pub async fn read(
    call: &Call,
    key: &[u8],
    (group, consumer): &(Vec<u8>, Vec<u8>),
    (from, most, no_ack): (From, usize, bool),
) -> Result<Option<Vec<Reply>>, Fail> {
    let now_ms = call.now_ms();
    let reply = change(call, key, |stream, _| {
        let room = stream.room(key).saturating_sub(consumer.len() + 12);
        let (named, mut group) = stream.groups.remove_entry(group).ok_or_else(|| nothing_to_read(key, group))?;
        let new = !group.consumers.contains_key(consumer.as_slice());
        let name = group.consumer(consumer, now_ms);
        // Without room for one the change is refused: nothing is delivered that is not noted.
        let most = if no_ack { most } else { most.min((room / PENDING).max(1)) };
        let (entries, changed) = match from {
            From::New => {
                let entries: Vec<Entry> = match group.last.next() {
                    Some(next) => stream.range(next, Id::MAX).iter().take(most).cloned().collect(),
                    None => Vec::new(),
                };
                for entry in &entries {
                    stream.advance(&mut group, entry.id);
                    if !no_ack {
                        let pending = Pending { consumer: name.clone(), delivered_ms: now_ms, count: 1 };
                        group.pending.insert(entry.id, pending);
                    }
                }
                (entries.iter().map(shown).collect(), !entries.is_empty())
            }
            From::Behind(id) => (again(stream, &mut group, (consumer, id, most), now_ms), true),
            From::Now => (Vec::new(), false),
        };
        let told = changed || !matches!(from, From::New);
        let reply = if told { Reply::Array(entries) } else { Reply::Null };
        stream.groups.insert(named, group);
        Ok((reply, changed || new))
    })
    .await?;
    Ok(match reply {
        Reply::Array(entries) => Some(entries),
        _ => None,
    })
}

/// A consumer's pending entries behind an ID, which it is given again.
fn again(stream: &Stream, group: &mut Group, (consumer, behind, most): (&[u8], Id, usize), now_ms: u64) -> Vec<Reply> {
    let ids: Vec<Id> = group.pending_of(consumer).filter(|id| *id > behind).take(most).collect();
    let shown = ids.into_iter().map(|id| match stream.get(id) {
        Some(entry) => {
            if let Some(pending) = group.pending.get_mut(&id) {
                (pending.delivered_ms, pending.count) = (now_ms, pending.count.saturating_add(1));
            }
            shown(entry)
        }
        // It was deleted meanwhile.
        None => Reply::Array(vec![Reply::bulk(id.text()), Reply::NullArray]),
    });
    shown.collect()
}

/// XACK.
pub async fn ack(call: &Call) -> Answered {
    let ids = call.args[3..].iter().map(|text| id(text, 0)).collect::<Result<Vec<Id>, Fail>>()?;
    change(call, call.arg(1), |stream, _| {
        let Some(group) = stream.groups.get_mut(call.arg(2)) else { return Ok((Reply::Int(0), false)) };
        let count = ids.iter().filter(|id| group.pending.remove(id).is_some()).count();
        Ok((Reply::Int(count as i64), count > 0))
    })
    .await
}

/// XPENDING.
pub async fn pending(call: &Call) -> Answered {
    let (key, name) = (call.arg(1), call.arg(2));
    let stream = read_stream(call, key).await?;
    let group = stream.as_ref().and_then(|stream| stream.groups.get(name)).ok_or_else(|| no_group(key, name));
    if call.count() == 3 {
        let group = group?;
        let ends = group.pending.first_key_value().zip(group.pending.last_key_value());
        let Some(((first, _), (last, _))) = ends else {
            return Ok(Reply::Array(vec![Reply::Int(0), Reply::Null, Reply::Null, Reply::NullArray]));
        };
        let each = group.pending_by_consumer().into_iter();
        let each = each.map(|(name, count)| Reply::Array(vec![Reply::bulk(name), Reply::bulk(count.to_string())]));
        return Ok(Reply::Array(vec![
            Reply::Int(group.pending.len() as i64),
            Reply::bulk(first.text()),
            Reply::bulk(last.text()),
            Reply::Array(each.collect()),
        ]));
    }
    let (idle, n) = match is(call.arg(3), "idle") {
        true => (int(call.arg(4))?, 5),
        false => (0, 3),
    };
    if call.count() < n + 3 || call.count() > n + 4 {
        return Err(Fail::syntax());
    }
    let (first, last) = (bound(call.arg(n), true)?, bound(call.arg(n + 1), false)?);
    let most = usize::try_from(int(call.arg(n + 2))?.max(0)).unwrap_or(usize::MAX);
    let consumer = call.args.get(n + 3);
    let (group, now_ms) = (group?, call.now_ms());
    if first > last {
        return Ok(Reply::Array(Vec::new()));
    }
    let wanted = group.pending.range(first..=last).filter(|(_, pending)| {
        let rests = now_ms.saturating_sub(pending.delivered_ms) as i64;
        rests >= idle && consumer.is_none_or(|consumer| *pending.consumer == **consumer)
    });
    let shown = wanted.take(most).map(|(id, pending)| {
        Reply::Array(vec![
            Reply::bulk(id.text()),
            Reply::bulk(&*pending.consumer),
            Reply::Int(now_ms.saturating_sub(pending.delivered_ms) as i64),
            Reply::Int(pending.count as i64),
        ])
    });
    Ok(Reply::Array(shown.collect()))
}
