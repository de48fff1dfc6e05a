//! XCLAIM and XAUTOCLAIM: pending entries that go to another consumer.

use super::groups::no_group;
use super::stream::{Group, Id, Pending, Stream};
use super::{bound, change, id, shown};
use crate::command::args::{int, is, parse_int};
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;

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
    /// Gives an entry to a consumer. Returns the part of it that the reply shows, or `None` if it
    /// stays as it is. An entry that was deleted is pending no longer.
    fn take(&self, stream: &Stream, group: &mut Group, consumer: &[u8], id: Id) -> Option<Reply> {
        let Some(entry) = stream.get(id) else {
            group.pending.remove(&id);
            return None;
        };
        let before = match group.pending.get(&id) {
            Some(pending) if self.now_ms.saturating_sub(pending.delivered_ms) < self.idle => return None,
            Some(pending) => pending.count,
            None if self.force => 0,
            None => return None,
        };
        let count = self.count.unwrap_or(before + u64::from(!self.just_id));
        let consumer = group.consumer(consumer, self.now_ms);
        group.pending.insert(id, Pending { consumer, delivered_ms: self.delivered_ms, count });
        Some(if self.just_id { Reply::bulk(id.text()) } else { shown(entry) })
    }
}

fn idle(call: &Call, command: &str) -> Result<u64, Fail> {
    let ms = int(call.arg(4)).map_err(|_| Fail::new(format!("Invalid min-idle-time argument for {command}")))?;
    Ok(ms.max(0) as u64)
}

/// XCLAIM.
pub async fn claim(call: &Call) -> Answered {
    let now_ms = call.now_ms();
    let idle = idle(call, "XCLAIM")?;
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
    change(call, call.arg(1), |stream, _| {
        let named = stream.groups.remove_entry(call.arg(2));
        let (name, mut group) = named.ok_or_else(|| no_group(call.arg(1), call.arg(2)))?;
        group.last = group.last.max(claim.last);
        let (mut taken, mut room) = (Vec::new(), Room::new(call));
        for id in &ids {
            if let Some(reply) = claim.take(stream, &mut group, call.arg(3), *id) {
                room.hold(&reply)?;
                taken.push(reply);
            }
        }
        stream.groups.insert(name, group);
        Ok((Reply::Array(taken), true))
    })
    .await
}

/// XAUTOCLAIM.
pub async fn autoclaim(call: &Call) -> Answered {
    let now_ms = call.now_ms();
    let (idle, first) = (idle(call, "XAUTOCLAIM")?, bound(call.arg(5), true)?);
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
    change(call, call.arg(1), |stream, _| {
        let named = stream.groups.remove_entry(call.arg(2));
        let (name, mut group) = named.ok_or_else(|| no_group(call.arg(1), call.arg(2)))?;
        let (mut taken, mut deleted, mut next) = (Vec::new(), Vec::new(), Id::MIN);
        let ids: Vec<Id> = group.pending.range(first..).map(|(id, _)| *id).collect();
        for (looked, id) in ids.into_iter().enumerate() {
            // As redis: ten times as many looks as entries.
            if taken.len() + deleted.len() >= most || looked >= most.saturating_mul(10) {
                next = id;
                break;
            }
            let there = stream.get(id).is_some();
            match claim.take(stream, &mut group, call.arg(3), id) {
                Some(reply) => taken.push(reply),
                None if !there => deleted.push(Reply::bulk(id.text())),
                None => {}
            }
        }
        stream.groups.insert(name, group);
        let reply = vec![Reply::bulk(next.text()), Reply::Array(taken), Reply::Array(deleted)];
        Ok((Reply::Array(reply), true))
    })
    .await
}
