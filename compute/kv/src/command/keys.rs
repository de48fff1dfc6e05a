//! Commands on keys of any type.

use super::args::{self, Unit, int, is, pattern};
use super::room::Room;
use super::several::{ALL, at_one_moment};
use super::{Answered, Call, Fail};
use crate::keyspace::{Change, Cursor, name};
use crate::object::{Object, Type, Value};
use crate::resp::Reply;
use crate::segments::{self, type_of};
use std::time::{Duration, Instant};

/// After how long KEYS lets others have their turn.
const STRETCH: Duration = Duration::from_millis(5);

pub async fn run(command: &str, call: &Call) -> Answered {
    match command {
        "copy" => copy(call).await,
        "dbsize" => Ok(Reply::Int(call.store().size(&call.io).await? as i64)),
        "del" | "unlink" => del(call).await,
        "dump" => super::dump::dump(call).await,
        "restore" => super::dump::restore(call).await,
        "exists" | "touch" => exists(call).await,
        "expire" => expire(call, "expire", Unit::Seconds).await,
        "expireat" => expire(call, "expireat", Unit::AtSeconds).await,
        "pexpire" => expire(call, "pexpire", Unit::Milliseconds).await,
        "pexpireat" => expire(call, "pexpireat", Unit::AtMilliseconds).await,
        "expiretime" => ends(call, |at, _| at.div_euclid(1000)).await,
        "pexpiretime" => ends(call, |at, _| at).await,
        "ttl" => ends(call, |at, now| (at - now + 500) / 1000).await,
        "pttl" => ends(call, |at, now| at - now).await,
        "flushall" | "flushdb" => flush(call).await,
        "keys" => keys(call).await,
        "memory" => memory(call).await,
        "object" => object(call).await,
        "persist" => persist(call).await,
        "randomkey" => Ok(Reply::maybe(call.store().random_key(&call.io).await?)),
        "rename" | "renamenx" => rename(call, command == "renamenx").await,
        "scan" => scan(call).await,
        "sort" | "sort_ro" => super::types::sort(command, call).await,
        // There is one database.
        "move" => match int(call.arg(2)) {
            Ok(0) => Err(Fail::new("source and destination objects are the same")),
            _ => Err(Fail::new("DB index is out of range")),
        },
        _ => {
            let found = call.find_head(call.arg(1)).await?;
            Ok(Reply::Line(found.map_or("none", |found| name(type_of(&found))).into()))
        }
    }
}

async fn del(call: &Call) -> Answered {
    let mut deleted = 0;
    for key in &call.args[1..] {
        deleted += i64::from(call.remove(key).await?);
    }
    Ok(Reply::Int(deleted))
}

async fn exists(call: &Call) -> Answered {
    let mut there = 0;
    for key in &call.args[1..] {
        let found = match &call.draft {
            Some(draft) => draft.head(key)?.is_some(),
            None => call.store().get(&call.io, key).await?.is_some(),
        };
        there += i64::from(found);
    }
    Ok(Reply::Int(there))
}

async fn flush(call: &Call) -> Answered {
    let known = call.count() == 1 || call.count() == 2 && (is(call.arg(1), "async") || is(call.arg(1), "sync"));
    if !known {
        return Err(Fail::syntax());
    }
    // It goes from table to table: a command on several keys that came between would be left in half.
    if call.front.turn.get() != Some(call.client.id) {
        call.wait_for_turn().await;
    }
    call.store().clear(&call.io).await?;
    Ok(Reply::Ok)
}

/// The same object, ending at another time.
fn ending(object: &Object, expiry: Option<u64>) -> Value {
    Value { kind: object.kind(), expiry, bytes: object.value().to_vec() }
}

async fn expire(call: &Call, command: &str, unit: Unit) -> Answered {
    let at = args::moment(call, command, call.arg(2), unit)?;
    let (mut if_none, mut if_some, mut if_later, mut if_sooner) = (false, false, false, false);
    for option in &call.args[3..] {
        match option.to_ascii_lowercase().as_slice() {
            b"nx" => if_none = true,
            b"xx" => if_some = true,
            b"gt" => if_later = true,
            b"lt" => if_sooner = true,
            _ => return Err(Fail::new(format!("Unsupported option {}", String::from_utf8_lossy(option)))),
        }
    }
    if if_none && (if_some || if_later || if_sooner) {
        return Err(Fail::new("NX and XX, GT or LT options at the same time are not compatible"));
    }
    if if_later && if_sooner {
        return Err(Fail::new("GT and LT options at the same time are not compatible"));
    }
    let now = call.now_ms() as i64;
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let Some(object) = there else { return Ok(Change::Keep(Reply::Int(0))) };
        let old = object.expiry().map(|at| at as i64);
        let wanted = !(if_none && old.is_some()
            || if_some && old.is_none()
            || if_later && old.is_none_or(|old| at <= old)
            || if_sooner && old.is_some_and(|old| at >= old));
        if !wanted {
            return Ok(Change::Keep(Reply::Int(0)));
        }
        Ok(if at <= now {
            Change::Delete(Reply::Int(1))
        } else {
            Change::Put(ending(object, Some(at as u64)), Reply::Int(1))
        })
    };
    call.update_as(call.arg(1), false, change).await
}

async fn persist(call: &Call) -> Answered {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        Ok(match there {
            Some(object) if object.expiry().is_some() => Change::Put(ending(object, None), Reply::Int(1)),
            _ => Change::Keep(Reply::Int(0)),
        })
    };
    call.update_as(call.arg(1), false, change).await
}

async fn ends(call: &Call, say: impl Fn(i64, i64) -> i64) -> Answered {
    let found = call.find_head(call.arg(1)).await?;
    let now = call.now_ms() as i64;
    Ok(Reply::Int(match found.map(|found| found.expiry()) {
        None => -2,
        Some(None) => -1,
        Some(Some(at)) => say(at as i64, now),
    }))
}

async fn keys(call: &Call) -> Answered {
    let wanted = pattern(call.arg(1))?;
    let (mut all, mut at) = (std::collections::HashSet::new(), Some(Cursor::default()));
    let (mut rest, mut room) = (Instant::now() + STRETCH, Room::new(call));
    while let Some(cursor) = at {
        if Instant::now() >= rest {
            call.io.pause(0).await;
            rest = Instant::now() + STRETCH;
        }
        let (objects, next) = call.store().scan(&call.io, cursor, 64).await?;
        for object in objects.iter().filter(|object| wanted.matches(object.key())) {
            if all.insert(object.key().to_vec()) {
                room.take(object.key().len())?;
            }
        }
        at = next;
    }
    Ok(Reply::Array(all.into_iter().map(Reply::Bulk).collect()))
}

async fn scan(call: &Call) -> Answered {
    let invalid = || Fail::new("invalid cursor");
    let cursor = std::str::from_utf8(call.arg(1)).ok().and_then(|text| text.parse().ok()).ok_or_else(invalid)?;
    let (mut names, mut count, mut kind, mut n) = (None, 10, None, 2);
    while n < call.count() {
        let value = call.args.get(n + 1).ok_or_else(Fail::syntax)?;
        match call.arg(n).to_ascii_lowercase().as_slice() {
            b"match" => names = Some(pattern(value)?),
            b"count" => {
                count = int(value)?;
                if count < 1 {
                    return Err(Fail::syntax());
                }
            }
            b"type" => kind = Some(value.to_ascii_lowercase()),
            _ => return Err(Fail::syntax()),
        }
        n += 2;
    }
    let (objects, next) = call.store().scan(&call.io, Cursor::of(cursor), count.min(10_000) as usize).await?;
    let mut found = Vec::new();
    for object in objects.iter().filter(|object| names.as_ref().is_none_or(|names| names.matches(object.key()))) {
        if let Some(kind) = &kind {
            let is = match object.kind() {
                // Its head tells of which.
                Type::Parts => call.store().find(&call.io, object.key()).await?.map(|found| type_of(&found.object)),
                other => Some(other),
            };
            if is.is_none_or(|is| name(is).as_bytes() != kind.as_slice()) {
                continue;
            }
        }
        found.push(Reply::bulk(object.key()));
    }
    let next = next.map_or(0, Cursor::word).to_string();
    Ok(Reply::Array(vec![Reply::bulk(next), Reply::Array(found)]))
}

async fn rename(call: &Call, if_absent: bool) -> Answered {
    let (from, to) = (call.arg(1), call.arg(2));
    let nothing = || Fail::new("no such key");
    let renamed = |done: bool| if if_absent { Reply::Int(i64::from(done)) } else { Reply::Ok };
    let head = call.find_head(from).await?.ok_or_else(nothing)?;
    if from == to {
        return Ok(renamed(false));
    }
    // It would be gone before the other key has it.
    let _spared = call.store().spare(from);
    if call.draft.is_none() && head.kind() != Type::Long {
        if let Some(done) = Box::pin(give_in_parts(call, to, true, !if_absent)).await? {
            return Ok(renamed(done));
        }
        let rename =
            at_one_moment(call, vec![from.to_vec(), to.to_vec()], move |call| Box::pin(rename(call, if_absent)));
        return Box::pin(rename).await;
    }
    // A long value is copied piece by piece, which a draft does not do.
    let found = call.find(from).await?.ok_or_else(nothing)?;
    if !give(call, &found, to, if_absent).await? {
        return Ok(renamed(false));
    }
    call.remove(from).await?;
    Ok(renamed(true))
}

/// Segments of the smallest size that a value must have to be copied segment by segment, by RENAME
/// and COPY. A smaller one goes as a whole.
const MANY: u64 = 16;

/// Gives a key the value of the command's first key, segment by segment, at one moment: whether it
/// did. `None`: neither has many segments, or there is no such value any more.
async fn give_in_parts(call: &Call, to: &[u8], moves: bool, replaces: bool) -> Result<Option<bool>, Fail> {
    let (store, from) = (call.store(), call.arg(1));
    let Some(head) = call.find_head(from).await?.filter(|head| head.kind() != Type::Long) else { return Ok(None) };
    let there = call.find_head(to).await?;
    let many = MANY * store.segments.least.get() as u64;
    let has_many = |object: &Object| object.kind() == Type::Parts && segments::len(object) > many;
    if !has_many(&head) && !there.as_ref().is_some_and(has_many) {
        return Ok(None);
    }
    if !replaces && there.is_some() {
        // Both were there at one moment, unless somebody has renamed one to the other since.
        let is_there = call.find_head(from).await?.is_some_and(|now| now.checksum() == head.checksum());
        if is_there {
            return Ok(Some(false));
        }
    }
    let turn = call.front.in_turn.come(&call.io, [from, to].into_iter()).await;
    let end = Instant::now() + ALL;
    let done = store.give_value(&call.io, (from, to), (moves, replaces), &|| Instant::now() >= end).await?;
    drop(turn);
    if done == Some(true) {
        call.tell(to, Some(false)).await?;
        call.tell(from, moves.then_some(true)).await?;
    }
    Ok(done)
}

/// Gives a key the value of an object; not if something is there and that is not wanted.
async fn give(call: &Call, object: &Object, to: &[u8], if_absent: bool) -> Result<bool, Fail> {
    if object.kind() != Type::Long {
        return put_at(call, to, &ending(object, object.expiry()), if_absent).await;
    }
    if call.draft.is_some() {
        return Err(super::long::too_long());
    }
    Box::pin(super::long::copy(call, object, to, if_absent)).await
}

/// Stores a value; not if something is there and that is not wanted.
pub(super) async fn put_at(call: &Call, key: &[u8], value: &Value, if_absent: bool) -> Result<bool, Fail> {
    let change = |there: Option<&Object>| -> Result<Change<bool>, Fail> {
        Ok(if if_absent && there.is_some() { Change::Keep(false) } else { Change::Put(value.clone(), true) })
    };
    call.update(key, change).await
}

async fn copy(call: &Call) -> Answered {
    let mut replace = false;
    let mut n = 3;
    while n < call.count() {
        if is(call.arg(n), "db") && n + 1 < call.count() {
            if int(call.arg(n + 1))? != 0 {
                return Err(Fail::new("DB index is out of range"));
            }
            n += 1;
        } else if is(call.arg(n), "replace") {
            replace = true;
        } else {
            return Err(Fail::syntax());
        }
        n += 1;
    }
    if call.arg(1) == call.arg(2) {
        return Err(Fail::new("source and destination objects are the same"));
    }
    let (from, to) = (call.arg(1), call.arg(2));
    let Some(head) = call.find_head(from).await? else { return Ok(Reply::Int(0)) };
    let _spared = call.store().spare(from);
    if call.draft.is_none() && head.kind() != Type::Long {
        if let Some(done) = Box::pin(give_in_parts(call, to, false, replace)).await? {
            return Ok(Reply::Int(i64::from(done)));
        }
        return Box::pin(at_one_moment(call, vec![from.to_vec(), to.to_vec()], |call| Box::pin(copy(call)))).await;
    }
    let Some(found) = call.find(from).await? else { return Ok(Reply::Int(0)) };
    Ok(Reply::Int(i64::from(give(call, &found, to, !replace).await?)))
}

async fn object(call: &Call) -> Answered {
    let what = call.arg(1).to_ascii_lowercase();
    if call.count() != 3 || !super::subcommands::is_known("object", &what) {
        return Err(super::server::unknown(call, "object"));
    }
    let Some(found) = call.find_head(call.arg(2)).await? else { return Ok(Reply::Null) };
    match what.as_slice() {
        b"encoding" => Ok(Reply::bulk(match name(type_of(&found)) {
            "string" if found.kind() == Type::Long => "raw",
            "string" if args::parse_int(found.value()).is_some() => "int",
            "string" if found.value().len() <= 44 => "embstr",
            "string" => "raw",
            "stream" => "stream",
            _ if found.kind() != Type::Parts => "listpack",
            "list" => "quicklist",
            "zset" => "skiplist",
            _ => "hashtable",
        })),
        b"refcount" => Ok(Reply::Int(1)),
        // Reads are not noted, so it counts from the last change.
        b"idletime" => Ok(Reply::Int((call.now_ms() / 1000).saturating_sub(u64::from(found.written_s())) as i64)),
        b"freq" => Err(Fail::new(
            "An LFU maxmemory policy is not selected, access frequency not tracked. A farmem store has no such policy",
        )),
        _ => Err(super::server::unknown(call, "object")),
    }
}

async fn memory(call: &Call) -> Answered {
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"usage", 3..) => {
            Ok(call.find_head(call.arg(2)).await?.map_or(Reply::Null, |found| Reply::Int(taken(&found))))
        }
        (b"stats", 2) => {
            let held = call.store().shards.iter().map(|shard| shard.space.bytes()).sum::<u64>() as i64;
            let keys = call.store().size(&call.io).await? as i64;
            let about = [("total.allocated", held), ("dataset.bytes", held), ("keys.count", keys)];
            Ok(Reply::Map(about.map(|(name, value)| (Reply::bulk(name), Reply::Int(value))).into()))
        }
        (b"doctor", 2) => Ok(Reply::Text("The data is in the nodes' memory: farmem kv check counts it.".into())),
        // What is free goes back to the nodes by itself.
        (b"purge", 2) => Ok(Reply::Ok),
        _ => Err(super::server::unknown(call, "memory")),
    }
}

/// Bytes of the place in which an object lies.
fn taken(found: &Object) -> i64 {
    if found.kind() == Type::Long {
        return crate::long::len(found) as i64;
    }
    if found.kind() == Type::Parts {
        return crate::segments::taken(found) as i64;
    }
    let len = u64::from(found.len());
    match crate::layout::class_of(len) {
        crate::layout::LARGE => (len + 64).next_power_of_two() as i64,
        class => crate::layout::class_bytes(class) as i64,
    }
}
