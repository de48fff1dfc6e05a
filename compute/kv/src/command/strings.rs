//! Commands on strings.

use super::args::{self, Unit, int, is, parse_int};
use super::extended::Extended;
use super::long::MOST_WHOLE;
use super::room::Room;
use super::several::{KEYS, at_one_moment};
use super::{Answered, Call, Fail};
use crate::keyspace::Change;
use crate::long;
use crate::object::{Object, Type, Value};
use crate::resp::Reply;
use crate::task::join;
use std::future::Future;
use std::pin::Pin;

/// Values that MGET reads at once at most, and about how many bytes they may have.
const AT_ONCE: usize = 128;
const LARGE: usize = 64 << 20;

/// Bytes of a string in one piece, at most.
pub const MAX_STRING: usize = crate::layout::MAX_OBJECT as usize - crate::object::HEADER;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "append" => append(call).await,
        "decr" => add(call, -1).await,
        "decrby" => {
            let by = int(call.arg(2))?.checked_neg().ok_or_else(|| Fail::new("decrement would overflow"))?;
            add(call, by).await
        }
        "get" => get(call).await,
        "getdel" => getdel(call).await,
        "getex" => getex(call).await,
        "getrange" | "substr" => getrange(call).await,
        "getset" => getset(call).await,
        "incr" => add(call, 1).await,
        "incrby" => add(call, int(call.arg(2))?).await,
        "incrbyfloat" => Box::pin(add_float(call)).await,
        "lcs" => Box::pin(common(call)).await,
        "mget" => Box::pin(mget(call)).await,
        "mset" | "msetnx" => Box::pin(mset(call, name == "msetnx")).await,
        "psetex" => setex(call, "psetex", Unit::Milliseconds).await,
        "set" => set(call).await,
        "setex" => setex(call, "setex", Unit::Seconds).await,
        "setnx" => setnx(call).await,
        "setrange" => setrange(call).await,
        _ => strlen(call).await,
    }
}

async fn get(call: &Call) -> Answered {
    if call.draft.is_some() {
        return Ok(Reply::maybe(string(call, call.arg(1)).await?));
    }
    match call.store().get(&call.io, call.arg(1)).await? {
        Some(found) if found.object.kind() == Type::Long => {
            let len = long::len(&found.object);
            call.stream(found, 0, len)
        }
        Some(found) => Ok(Reply::bulk(text(&found.object)?)),
        None => Ok(Reply::Null),
    }
}

async fn strlen(call: &Call) -> Answered {
    let Some(object) = call.get(call.arg(1)).await? else { return Ok(Reply::Int(0)) };
    if object.kind() != Type::Long {
        text(&object)?;
    }
    Ok(Reply::Int(long::len(&object) as i64))
}

/// The string in an object, if it is one.
pub(super) fn text(object: &Object) -> Result<&[u8], Fail> {
    match object.kind() {
        Type::String => Ok(object.value()),
        Type::Long => Err(super::long::too_long()),
        _ => Err(Fail::wrong_type()),
    }
}

/// A key's string.
pub(super) async fn string(call: &Call, key: &[u8]) -> Result<Option<Vec<u8>>, Fail> {
    if call.draft.is_some() {
        return call.get(key).await?.map(|object| text(&object).map(<[u8]>::to_vec)).transpose();
    }
    let Some(found) = call.store().get(&call.io, key).await? else { return Ok(None) };
    if found.object.kind() != Type::Long {
        return Ok(Some(text(&found.object)?.to_vec()));
    }
    let whole = Box::pin(call.store().whole(&call.io, key, &found, MOST_WHOLE)).await?;
    Ok(Some(whole.ok_or_else(super::long::too_long)?))
}

pub(super) fn like(object: Option<&Object>, bytes: Vec<u8>) -> Value {
    Value { kind: Type::String, expiry: object.and_then(Object::expiry), bytes }
}

/// Options of SET.
#[derive(Clone, Copy, Default)]
struct Options {
    if_absent: bool,
    if_there: bool,
    get: bool,
    keep: bool,
    expiry: Option<u64>,
}

async fn set(call: &Call) -> Answered {
    let mut options = Options::default();
    let mut n = 3;
    while n < call.count() {
        let arg = call.arg(n);
        match Unit::of(arg) {
            Some(unit) if options.expiry.is_none() && !options.keep && n + 1 < call.count() => {
                options.expiry = Some(args::expiry(call, "set", call.arg(n + 1), unit)?);
                n += 1;
            }
            None if is(arg, "nx") && !options.if_there => options.if_absent = true,
            None if is(arg, "xx") && !options.if_absent => options.if_there = true,
            None if is(arg, "get") => options.get = true,
            None if is(arg, "keepttl") && options.expiry.is_none() => options.keep = true,
            _ => return Err(Fail::syntax()),
        }
        n += 1;
    }
    let value = call.value(2, options.expiry);
    if !options.if_absent && !options.if_there && !options.get && !options.keep {
        call.put(call.arg(1), &value).await?;
        return Ok(Reply::Ok);
    }
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let old = match there {
            Some(object) if options.get => Reply::bulk(text(object)?),
            _ => Reply::Null,
        };
        if options.if_absent && there.is_some() || options.if_there && there.is_none() {
            return Ok(Change::Keep(old));
        }
        let mut value = value.clone();
        if options.keep {
            value.expiry = there.and_then(Object::expiry);
        }
        Ok(Change::Put(value, if options.get { old } else { Reply::Ok }))
    };
    call.update(call.arg(1), change).await
}

async fn setex(call: &Call, command: &str, unit: Unit) -> Answered {
    let expiry = args::expiry(call, command, call.arg(2), unit)?;
    let value = call.value(3, Some(expiry));
    call.put(call.arg(1), &value).await?;
    Ok(Reply::Ok)
}

async fn setnx(call: &Call) -> Answered {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        Ok(match there {
            Some(_) => Change::Keep(Reply::Int(0)),
            None => Change::Put(call.value(2, None), Reply::Int(1)),
        })
    };
    call.update(call.arg(1), change).await
}

async fn getset(call: &Call) -> Answered {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let old = there.map(text).transpose()?;
        Ok(Change::Put(call.value(2, None), Reply::maybe(old)))
    };
    call.update(call.arg(1), change).await
}

async fn getdel(call: &Call) -> Answered {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        match there {
            None => Ok(Change::Keep(Reply::Null)),
            Some(object) => Ok(Change::Delete(Reply::bulk(text(object)?))),
        }
    };
    call.update(call.arg(1), change).await
}

async fn getex(call: &Call) -> Answered {
    let new = match (call.count(), Unit::of(call.arg(2))) {
        (2, _) => None,
        (3, _) if is(call.arg(2), "persist") => Some(None),
        (4, Some(unit)) => Some(Some(args::expiry(call, "getex", call.arg(3), unit)?)),
        _ => return Err(Fail::syntax()),
    };
    let Some(expiry) = new else { return Ok(Reply::maybe(string(call, call.arg(1)).await?)) };
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let Some(object) = there else { return Ok(Change::Keep(Reply::Null)) };
        let bytes = text(object)?.to_vec();
        if expiry == object.expiry() {
            return Ok(Change::Keep(Reply::bulk(bytes)));
        }
        Ok(Change::Put(Value { kind: Type::String, expiry, bytes: bytes.clone() }, Reply::bulk(bytes)))
    };
    call.update(call.arg(1), change).await
}

async fn mget(call: &Call) -> Answered {
    let get = |key: &Vec<u8>| -> Pin<Box<dyn Future<Output = Answered>>> {
        let (call, key) = (call.clone(), key.clone());
        // A key of another type counts as absent.
        Box::pin(async move {
            match string(&call, &key).await {
                Ok(bytes) => Ok(Reply::maybe(bytes)),
                Err(fail) if fail == Fail::wrong_type() => Ok(Reply::Null),
                Err(fail) => Err(fail),
            }
        })
    };
    let (mut all, mut room, mut rest, mut at_once) = (Vec::new(), Room::new(call), &call.args[1..], 16);
    while !rest.is_empty() {
        let (keys, others) = rest.split_at(at_once.min(rest.len()));
        let before = all.len();
        for answered in join(keys.iter().map(get).collect()).await {
            let reply = answered?;
            room.hold(&reply)?;
            all.push(reply);
        }
        let len = |reply: &Reply| if let Reply::Bulk(bytes) = reply { bytes.len() } else { 0 };
        let bytes: usize = all[before..].iter().map(len).sum();
        // Values that are read at once are here before they are counted.
        (rest, at_once) = (others, (LARGE * keys.len()).checked_div(bytes).unwrap_or(AT_ONCE).clamp(1, AT_ONCE));
    }
    Ok(Reply::Array(all))
}

async fn mset(call: &Call, if_absent: bool) -> Answered {
    if call.count().is_multiple_of(2) {
        return Err(Fail(super::wrong_number(if if_absent { "msetnx" } else { "mset" })));
    }
    if if_absent && call.draft.is_none() && call.count() < 2 * KEYS {
        let keys = call.args[1..].iter().step_by(2).cloned().collect();
        return Box::pin(at_one_moment(call, keys, |call| Box::pin(mset(call, true)))).await;
    }
    if if_absent {
        for key in call.args[1..].iter().step_by(2) {
            if call.find(key).await?.is_some() {
                return Ok(Reply::Int(0));
            }
        }
    }
    // Of a key that is given twice the last value counts.
    let mut last = std::collections::HashMap::new();
    for (n, pair) in call.args[1..].chunks(2).enumerate() {
        last.insert(&pair[0], n);
    }
    let once = |(n, pair): &(usize, &[Vec<u8>])| last.get(&pair[0]) == Some(n);
    let pairs: Vec<&[Vec<u8>]> = call.args[1..].chunks(2).enumerate().filter(once).map(|(_, pair)| pair).collect();
    let put = |pair: &&[Vec<u8>]| -> Pin<Box<dyn Future<Output = Result<(), Fail>>>> {
        let (call, key, value) = (call.clone(), pair[0].clone(), Value::string(pair[1].clone()));
        Box::pin(async move { Ok(call.put(&key, &value).await?) })
    };
    for some in pairs.chunks(128) {
        for done in join(some.iter().map(put).collect()).await {
            done?;
        }
    }
    Ok(if if_absent { Reply::Int(1) } else { Reply::Ok })
}

pub(super) fn too_long() -> Fail {
    Fail::new("string exceeds maximum allowed size (proto-max-bulk-len)")
}

/// Whether a command that writes an argument into a string is to go by the pieces of a long value.
async fn is_spliced(call: &Call, at: u64, n: usize) -> Result<bool, Fail> {
    if call.draft.is_some() {
        return Ok(false);
    }
    if at.saturating_add(call.arg_len(n)) > MAX_STRING as u64 {
        return Ok(true);
    }
    let found = call.find(call.arg(1)).await?;
    Ok(found.is_some_and(|object| object.kind() == Type::Long))
}

async fn append(call: &Call) -> Answered {
    if is_spliced(call, 0, 2).await? {
        return Box::pin(super::long::splice(call, None, 2)).await;
    }
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let mut bytes = there.map(text).transpose()?.unwrap_or_default().to_vec();
        bytes.extend_from_slice(call.arg(2));
        let len = bytes.len() as i64;
        Ok(Change::Put(like(there, bytes), Reply::Int(len)))
    };
    call.update(call.arg(1), change).await
}

async fn getrange(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    if call.draft.is_none()
        && let Some(found) = call.store().find(&call.io, call.arg(1)).await?
        && found.object.kind() == Type::Long
    {
        let len = long::len(&found.object) as usize;
        return match part(first, last, len) {
            Some((from, to)) => call.stream(found, from as u64, to as u64),
            None => Ok(Reply::bulk("")),
        };
    }
    let bytes = string(call, call.arg(1)).await?.unwrap_or_default();
    Ok(Reply::bulk(part(first, last, bytes.len()).map_or(&[][..], |(from, to)| &bytes[from..to])))
}

/// The bytes that GETRANGE means.
fn part(first: i64, last: i64, len: usize) -> Option<(usize, usize)> {
    if first < 0 && last < 0 && first > last {
        return None;
    }
    // An end before the first byte is the first byte's, as in redis.
    let last = if last < 0 { (len as i64 + last).max(0) } else { last };
    args::range(first, last, len)
}

async fn setrange(call: &Call) -> Answered {
    let offset = usize::try_from(int(call.arg(2))?).map_err(|_| Fail::new("offset is out of range"))?;
    if is_spliced(call, offset as u64, 3).await? {
        return Box::pin(super::long::splice(call, Some(offset as u64), 3)).await;
    }
    let new = call.arg(3);
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let mut bytes = there.map(text).transpose()?.unwrap_or_default().to_vec();
        if new.is_empty() {
            return Ok(Change::Keep(Reply::Int(bytes.len() as i64)));
        }
        let end = offset.saturating_add(new.len());
        if end > MAX_STRING {
            return Err(too_long());
        }
        bytes.resize(bytes.len().max(end), 0);
        bytes[offset..end].copy_from_slice(new);
        let len = bytes.len() as i64;
        Ok(Change::Put(like(there, bytes), Reply::Int(len)))
    };
    call.update(call.arg(1), change).await
}

async fn add(call: &Call, by: i64) -> Answered {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let old = match there {
            None => 0,
            Some(object) => {
                parse_int(text(object)?).ok_or_else(|| Fail::new("value is not an integer or out of range"))?
            }
        };
        let new = old.checked_add(by).ok_or_else(|| Fail::new("increment or decrement would overflow"))?;
        Ok(Change::Put(like(there, new.to_string().into_bytes()), Reply::Int(new)))
    };
    call.update(call.arg(1), change).await
}

async fn add_float(call: &Call) -> Answered {
    let invalid = || Fail::new("value is not a valid float");
    let by = Extended::parse(call.arg(2)).ok_or_else(invalid)?;
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let old = match there {
            None => Extended::ZERO,
            Some(object) => Extended::parse(text(object)?).ok_or_else(invalid)?,
        };
        let new = old.plus(by);
        if !new.is_finite() {
            return Err(Fail::new("increment would produce NaN or Infinity"));
        }
        let bytes = new.to_string().into_bytes();
        Ok(Change::Put(like(there, bytes.clone()), Reply::bulk(bytes)))
    };
    call.update(call.arg(1), change).await
}

/// LCS: the longest common subsequence of two strings.
async fn common(call: &Call) -> Answered {
    let (mut len, mut index, mut lens, mut least, mut n) = (false, false, false, 0, 3);
    while n < call.count() {
        match call.arg(n).to_ascii_lowercase().as_slice() {
            b"len" => len = true,
            b"idx" => index = true,
            b"withmatchlen" => lens = true,
            b"minmatchlen" if n + 1 < call.count() => {
                n += 1;
                least = int(call.arg(n))?.max(0) as usize;
            }
            _ => return Err(Fail::syntax()),
        }
        n += 1;
    }
    if len && index {
        return Err(Fail::new("If you want both the length and indexes, please just use IDX."));
    }
    let of = async |key: &[u8]| match string(call, key).await {
        Err(fail) if fail == Fail::wrong_type() => Err(Fail::new("The specified keys must contain string values")),
        other => Ok(other?.unwrap_or_default()),
    };
    let (one, other) = (of(call.arg(1)).await?, of(call.arg(2)).await?);
    let width = other.len() + 1;
    // Some 10 ms, in which no other client is served.
    if (one.len() + 1).saturating_mul(width) > 1 << 22 {
        return Err(Fail::new("Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"));
    }
    // At [a * width + b]: the length for the first `a` bytes of one and the first `b` of the other.
    let mut longest = vec![0u32; (one.len() + 1) * width];
    for a in 1..=one.len() {
        for b in 1..=other.len() {
            longest[a * width + b] = match one[a - 1] == other[b - 1] {
                true => longest[(a - 1) * width + b - 1] + 1,
                false => longest[(a - 1) * width + b].max(longest[a * width + b - 1]),
            };
        }
    }
    let total = longest.last().copied().unwrap_or(0);
    if len {
        return Ok(Reply::Int(i64::from(total)));
    }
    // From the end back to the beginning: runs of equal bytes, the last run first.
    let (mut a, mut b, mut bytes, mut runs) = (one.len(), other.len(), Vec::new(), Vec::<(usize, usize, usize)>::new());
    while a > 0 && b > 0 {
        if one[a - 1] == other[b - 1] {
            bytes.push(one[a - 1]);
            (a, b) = (a - 1, b - 1);
            match runs.last_mut() {
                Some(run) if run.0 == a + 1 && run.1 == b + 1 => *run = (a, b, run.2 + 1),
                _ => runs.push((a, b, 1)),
            }
        } else if longest[(a - 1) * width + b] > longest[a * width + b - 1] {
            a -= 1;
        } else {
            b -= 1;
        }
    }
    if !index {
        bytes.reverse();
        return Ok(Reply::bulk(bytes));
    }
    let range =
        |from: usize, len: usize| Reply::Array(vec![Reply::Int(from as i64), Reply::Int((from + len - 1) as i64)]);
    let run = |&(a, b, len): &(usize, usize, usize)| {
        let mut run = vec![range(a, len), range(b, len)];
        run.extend(lens.then_some(Reply::Int(len as i64)));
        Reply::Array(run)
    };
    let matches = runs.iter().filter(|run| run.2 >= least).map(run).collect();
    Ok(Reply::Map(vec![
        (Reply::bulk("matches"), Reply::Array(matches)),
        (Reply::bulk("len"), Reply::Int(i64::from(total))),
    ]))
}
