//! Groups of consumers: XGROUP, XREADGROUP, XACK and XPENDING.

use super::reading::From;
use super::stream::{AT_ONCE, Ahead, Group, Members, Pending, bytes_noted};
use super::{bound, change, id, look, named, shown};
use crate::command::args::{int, is};
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;
use crate::segments::Working;
use crate::segments::streams::Id;
use crate::shard::Trouble;
use std::ops::ControlFlow;

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
            in_group(call, |stream, name, group| {
                let last = last.map_or_else(|| stream.head().map(|head| head.last), Ok)?;
                stream.set_group(name, &Group { last, read, ..group })?;
                Ok(Reply::Ok)
            })
            .await
        }
        (b"destroy", 4) => {
            change(call, key, |stream| {
                needs_key(!stream.is_empty())?;
                Ok(Reply::Int(i64::from(stream.remove_group(name)?)))
            })
            .await
        }
        (b"createconsumer", 5) => {
            let now_ms = call.now_ms();
            named(call.arg(4))?;
            in_group(call, |stream, name, _| {
                if stream.consumer(name, call.arg(4))?.is_some() {
                    return Ok(Reply::Int(0));
                }
                let mut members = members(stream, name)?;
                members.meet(stream, call.arg(4), now_ms)?;
                members.store(stream)?;
                Ok(Reply::Int(1))
            })
            .await
        }
        (b"delconsumer", 5) => {
            in_group(call, |stream, name, _| {
                let mut members = members(stream, name)?;
                let Some(pending) = members.dismiss(stream, call.arg(4))? else { return Ok(Reply::Int(0)) };
                members.store(stream)?;
                Ok(Reply::Int(pending as i64))
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
    named(call.arg(3))?;
    let makes = call.args[5..].iter().any(|arg| is(arg, "mkstream"));
    change(call, call.arg(2), |stream| {
        needs_key(!stream.is_empty() || makes)?;
        if stream.group(call.arg(3))?.is_some() {
            return Err(Fail(Reply::Error("BUSYGROUP Consumer Group name already exists".into())));
        }
        let head = stream.head()?;
        // The key may be new.
        stream.set_head(&head)?;
        stream.set_group(call.arg(3), &Group { last: last.unwrap_or(head.last), read, ..Group::default() })?;
        Ok(Reply::Ok)
    })
    .await
}

/// Changes a stream whose group XGROUP names.
async fn in_group(
    call: &Call,
    mut edit: impl FnMut(&mut Working<'_>, &[u8], Group) -> Result<Reply, Trouble>,
) -> Answered {
    change(call, call.arg(2), |stream| {
        needs_key(!stream.is_empty())?;
        let Some(group) = stream.group(call.arg(3))? else {
            let (group, key) = (text(call.arg(3)), text(call.arg(2)));
            return Err(Fail(Reply::Error(format!("NOGROUP No such consumer group '{group}' for key name '{key}'"))));
        };
        Ok(edit(stream, call.arg(3), group)?)
    })
    .await
}

/// A group that is there.
fn members<'n>(stream: &Working<'_>, name: &'n [u8]) -> Result<Members<'n>, Trouble> {
    Members::of(stream, name)?.ok_or(Trouble::Corrupt)
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
    let is_there = |stream: Option<&Working<'_>>| Ok(stream.map_or(Ok(None), |stream| stream.group(group))?.is_some());
    if look(call, key, is_there).await? { Ok(()) } else { Err(nothing_to_read(key, group)) }
}

/// Delivers entries of a stream to a consumer of a group. `None`: nothing is new.
pub async fn read(
    call: &Call,
    key: &[u8],
    (group, consumer): &(Vec<u8>, Vec<u8>),
    (from, most, no_ack): (From, usize, bool),
) -> Result<Option<Vec<Reply>>, Fail> {
    let now_ms = call.now_ms();
    change(call, key, |stream| {
        let mut members = Members::of(stream, group)?.ok_or_else(|| nothing_to_read(key, group))?;
        let new = members.meet(stream, consumer, now_ms)?;
        let (entries, changed) = match from {
            From::New => {
                let next = members.group.last.next();
                let noted = if no_ack { 0 } else { bytes_noted(group, consumer) };
                let entries = next.map_or(Ok(Vec::new()), |next| stream.entries_for_group(next, most, noted))?;
                let extent = stream.extent()?;
                for entry in &entries {
                    extent.advance(&mut members.group, entry.id);
                    if !no_ack {
                        let pending = Pending { consumer: consumer.clone(), delivered_ms: now_ms, count: 1 };
                        members.give(stream, entry.id, &pending)?;
                    }
                }
                (entries.iter().map(shown).collect(), !entries.is_empty())
            }
            From::Behind(id) => (again(stream, &mut members, (consumer, id, most), now_ms)?, true),
            From::Now => (Vec::new(), false),
        };
        if changed || new {
            members.store(stream)?;
        }
        Ok(Some(entries).filter(|_| changed || from != From::New))
    })
    .await
}

/// A consumer's pending entries behind an ID, which it is given again: at most [`AT_ONCE`] bytes.
fn again(
    stream: &mut Working<'_>,
    members: &mut Members<'_>,
    (consumer, behind, most): (&[u8], Id, usize),
    now_ms: u64,
) -> Result<Vec<Reply>, Trouble> {
    let most = most.min(usize::try_from(members.pending_of(stream, consumer)?).unwrap_or(usize::MAX));
    let mut pending = Vec::new();
    if let Some(first) = behind.next().filter(|_| most > 0) {
        stream.each_pending(members.name, first, most, |id, one| {
            if one.consumer == consumer {
                pending.push((id, one));
            }
            if pending.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
    }
    let ids: Vec<Id> = pending.iter().map(|(id, _)| *id).collect();
    let (mut given, mut ahead, mut bytes) = (Vec::new(), Ahead::default(), 0);
    for (n, (id, mut pending)) in pending.into_iter().enumerate() {
        if bytes >= AT_ONCE || !ahead.come(stream, &ids, n)? {
            break;
        }
        bytes += bytes_noted(members.name, consumer);
        given.push(match stream.entry(id)? {
            Some(entry) => {
                bytes += entry.fields.iter().map(Vec::len).sum::<usize>();
                (pending.delivered_ms, pending.count) = (now_ms, pending.count.saturating_add(1));
                members.give(stream, id, &pending)?;
                shown(&entry)
            }
            // It was deleted meanwhile.
            None => Reply::Array(vec![Reply::bulk(id.text()), Reply::NullArray]),
        });
    }
    Ok(given)
}

/// XACK.
pub async fn ack(call: &Call) -> Answered {
    let ids = call.args[3..].iter().map(|text| id(text, 0)).collect::<Result<Vec<Id>, Fail>>()?;
    change(call, call.arg(1), |stream| {
        let Some(mut members) = Members::of(stream, call.arg(2))? else { return Ok(Reply::Int(0)) };
        members.want(stream, ids.iter().copied())?;
        let mut count = 0;
        for id in &ids {
            count += i64::from(members.release(stream, *id)?);
        }
        if count > 0 {
            members.store(stream)?;
        }
        Ok(Reply::Int(count))
    })
    .await
}

/// XPENDING.
pub async fn pending(call: &Call) -> Answered {
    let (key, name) = (call.arg(1), call.arg(2));
    let found = |stream: Option<&Working<'_>>| -> Result<Group, Fail> {
        stream.map_or(Ok(None), |stream| stream.group(name))?.ok_or_else(|| no_group(key, name))
    };
    if call.count() == 3 {
        return look(call, key, |stream| brief(stream, name, found(stream)?)).await;
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
    let (consumer, now_ms) = (call.args.get(n + 3), call.now_ms());
    let see = |stream: Option<&Working<'_>>| {
        found(stream)?;
        let mut shown = Vec::new();
        let Some(stream) = stream.filter(|_| first <= last && most > 0) else { return Ok(Reply::Array(shown)) };
        stream.each_pending(name, first, most, |id, pending| {
            let rests = now_ms.saturating_sub(pending.delivered_ms) as i64;
            if id > last {
                return ControlFlow::Break(());
            }
            if rests >= idle && consumer.is_none_or(|consumer| pending.consumer == *consumer) {
                shown.push(Reply::Array(vec![
                    Reply::bulk(id.text()),
                    Reply::bulk(pending.consumer),
                    Reply::Int(rests),
                    Reply::Int(pending.count as i64),
                ]));
            }
            if shown.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(Reply::Array(shown))
    };
    look(call, key, see).await
}

/// XPENDING without a range.
fn brief(stream: Option<&Working<'_>>, name: &[u8], group: Group) -> Answered {
    let (mut first, mut last, mut each) = (None, None, Vec::new());
    if let Some(stream) = stream.filter(|_| group.pending > 0) {
        stream.each_pending(name, Id::MIN, 1, |id, _| {
            first = Some(id);
            ControlFlow::Break(())
        })?;
        last = stream.last_pending(name)?;
        each = stream.consumers(name)?;
    }
    let Some((first, last)) = first.zip(last) else {
        return Ok(Reply::Array(vec![Reply::Int(0), Reply::Null, Reply::Null, Reply::NullArray]));
    };
    let each = each.into_iter().filter(|(_, consumer)| consumer.pending > 0);
    let each = each.map(|(name, own)| Reply::Array(vec![Reply::bulk(name), Reply::bulk(own.pending.to_string())]));
    Ok(Reply::Array(vec![
        Reply::Int(group.pending as i64),
        Reply::bulk(first.text()),
        Reply::bulk(last.text()),
        Reply::Array(each.collect()),
    ]))
}
