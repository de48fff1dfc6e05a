//! XCLAIM and XAUTOCLAIM: pending entries that go to another consumer.

use super::groups::no_group;
use super::stream::{AT_ONCE, Ahead, Entry, Members, Pending, bytes_noted};
use super::{bound, change, id, named, shown};
use crate::command::args::{int, is, parse_int};
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;
use crate::segments::Working;
use crate::segments::streams::Id;
use crate::shard::Trouble;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How entries are claimed.
struct Claim {
    now_ms: u64,
    /// How long an entry must have rested, in ms.
    idle: u64,
    /// When it counts as delivered.
    delivered_ms: u64,
    count: Option<u64>,
    force: bool,
    just_id: bool,
    last: Id,
}

impl Claim {
    /// What becomes of an entry. `pending`: when it was delivered, and how often.
    fn decide(&self, stream: &Working<'_>, id: Id, pending: Option<(u64, u64)>) -> Result<Fate, Trouble> {
        let Some(entry) = stream.entry(id)? else { return Ok(Fate::Deleted) };
        let before = match pending {
            Some((delivered_ms, _)) if self.now_ms.saturating_sub(delivered_ms) < self.idle => return Ok(Fate::Stays),
            Some((_, count)) => count,
            None if self.force => 0,
            None => return Ok(Fate::Stays),
        };
        Ok(Fate::Taken(entry, self.count.unwrap_or(before.saturating_add(u64::from(!self.just_id)))))
    }

    fn shown(&self, entry: &Entry) -> Reply {
        if self.just_id { Reply::bulk(entry.id.text()) } else { shown(entry) }
    }

    /// Gives entries to a consumer, and notes how often each was delivered. Those without a number
    /// are deleted, and pending no longer.
    fn carry_out(
        &self,
        stream: &mut Working<'_>,
        mut members: Members<'_>,
        consumer: &[u8],
        fates: &[(Id, Option<u64>)],
    ) -> Result<(), Trouble> {
        if fates.iter().any(|(_, count)| count.is_some()) {
            members.meet(stream, consumer, self.now_ms)?;
        }
        for (id, count) in fates {
            match count {
                Some(count) => {
                    let (consumer, delivered_ms) = (consumer.to_vec(), self.delivered_ms);
                    members.give(stream, *id, &Pending { consumer, delivered_ms, count: *count })?;
                }
                None => _ = members.release(stream, *id)?,
            }
        }
        members.store(stream)
    }
}

/// What becomes of an entry that is claimed.
enum Fate {
    /// It goes to the consumer, and was delivered this often then.
    Taken(Entry, u64),
    Stays,
    Deleted,
}

fn idle(call: &Call, command: &str) -> Result<u64, Fail> {
    let ms = int(call.arg(4)).map_err(|_| Fail::new(format!("Invalid min-idle-time argument for {command}")))?;
    Ok(ms.max(0) as u64)
}

/// XCLAIM.
pub async fn claim(call: &Call) -> Answered {
    let now_ms = call.now_ms();
    let (idle, consumer) = (idle(call, "XCLAIM")?, named(call.arg(3))?);
    let mut claim =
        Claim { now_ms, idle, delivered_ms: now_ms, count: None, force: false, just_id: false, last: Id::MIN };
    let mut ids = Vec::new();
    let mut n = 5;
    while n < call.count() {
        match id(call.arg(n), 0) {
            Ok(id) => ids.push(id),
            Err(_) if n > 5 => break,
            Err(fail) => return Err(fail),
        }
        n += 1;
    }
    while n < call.count() {
        let (arg, value) = (call.arg(n), call.args.get(n + 1));
        let number = |what: &str| {
            let value = value.and_then(|value| parse_int(value));
            value.ok_or_else(|| Fail::new(format!("Invalid {what} option argument for XCLAIM")))
        };
        n += 2;
        match arg {
            arg if is(arg, "force") => (claim.force, n) = (true, n - 1),
            arg if is(arg, "justid") => (claim.just_id, n) = (true, n - 1),
            arg if is(arg, "idle") && value.is_some() => {
                claim.delivered_ms = now_ms.saturating_sub(number("IDLE")?.max(0) as u64);
            }
            arg if is(arg, "time") && value.is_some() => {
                claim.delivered_ms = (number("TIME")?.max(0) as u64).min(now_ms)
            }
            arg if is(arg, "retrycount") && value.is_some() => {
                claim.count = Some(u64::try_from(number("RETRYCOUNT")?).map_err(|_| Fail::syntax())?);
            }
            arg if is(arg, "lastid") && value.is_some() => claim.last = id(value.map_or(&[], |id| id), 0)?,
            _ => {
                return Err(Fail::new(format!("Unrecognized XCLAIM option '{}'", String::from_utf8_lossy(arg))));
            }
        }
    }
    change(call, call.arg(1), |stream| {
        let (key, name) = (call.arg(1), call.arg(2));
        let mut members = Members::of(stream, name)?.ok_or_else(|| no_group(key, name))?;
        members.group.last = members.group.last.max(claim.last);
        members.want(stream, ids.iter().copied())?;
        stream.want_keyed(0, ids.iter().map(|id| id.key()))?;
        let (mut taken, mut fates, mut room) = (Vec::new(), Vec::new(), Room::new(call));
        // An entry may be named again.
        let mut noted: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
        for id in &ids {
            let before = match noted.get(id) {
                Some(noted) => Some(*noted),
                None => stream.pending(name, *id)?.map(|pending| (pending.delivered_ms, pending.count)),
            };
            match claim.decide(stream, *id, before)? {
                Fate::Taken(entry, count) => {
                    let reply = claim.shown(&entry);
                    room.hold(&reply)?;
                    room.take(bytes_noted(name, consumer))?;
                    taken.push(reply);
                    fates.push((*id, Some(count)));
                    noted.insert(*id, (claim.delivered_ms, count));
                }
                Fate::Deleted => fates.push((*id, None)),
                Fate::Stays => {}
            }
        }
        claim.carry_out(stream, members, consumer, &fates)?;
        Ok(Reply::Array(taken))
    })
    .await
}

/// XAUTOCLAIM.
pub async fn autoclaim(call: &Call) -> Answered {
    let now_ms = call.now_ms();
    let (idle, first) = (idle(call, "XAUTOCLAIM")?, bound(call.arg(5), true)?);
    let consumer = named(call.arg(3))?;
    let (mut most, mut just_id, mut n) = (100, false, 6);
    while n < call.count() {
        if is(call.arg(n), "count") && n + 1 < call.count() {
            let count = usize::try_from(int(call.arg(n + 1))?).ok().filter(|count| (1..1 << 56).contains(count));
            most = count.ok_or_else(|| Fail::new("COUNT must be > 0"))?;
            n += 2;
        } else if is(call.arg(n), "justid") {
            just_id = true;
            n += 1;
        } else {
            return Err(Fail::syntax());
        }
    }
    let claim = Claim { now_ms, idle, delivered_ms: now_ms, count: None, force: false, just_id, last: Id::MIN };
    change(call, call.arg(1), |stream| {
        let (key, name) = (call.arg(1), call.arg(2));
        let members = Members::of(stream, name)?.ok_or_else(|| no_group(key, name))?;
        let (mut taken, mut deleted, mut fates, mut next) = (Vec::new(), Vec::new(), Vec::new(), Id::MIN);
        // As redis: ten times as many looks as entries.
        let (looks, mut ids, mut all) = (most.saturating_mul(10), Vec::new(), Vec::new());
        stream.each_pending(name, first, looks, |id, pending| {
            ids.push(id);
            all.push((pending.delivered_ms, pending.count));
            if all.len() > looks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let (mut ahead, mut room, mut bytes) = (Ahead::default(), Room::new(call), 0);
        for (looked, (&id, pending)) in ids.iter().zip(all).enumerate() {
            let ends = fates.len() >= most || looked >= looks || bytes >= AT_ONCE;
            if ends || !ahead.come(stream, &ids, looked)? {
                next = id;
                break;
            }
            match claim.decide(stream, id, Some(pending))? {
                Fate::Taken(entry, count) => {
                    let reply = claim.shown(&entry);
                    bytes += bytes_noted(name, consumer) + entry.fields.iter().map(Vec::len).sum::<usize>();
                    room.hold(&reply)?;
                    taken.push(reply);
                    fates.push((id, Some(count)));
                }
                Fate::Deleted => {
                    deleted.push(Reply::bulk(id.text()));
                    fates.push((id, None));
                }
                Fate::Stays => {}
            }
        }
        claim.carry_out(stream, members, consumer, &fates)?;
        Ok(Reply::Array(vec![Reply::bulk(next.text()), Reply::Array(taken), Reply::Array(deleted)]))
    })
    .await
}
