//! Commands on hashes.

use super::places::Places;
use super::{
    Items, Looked, among, bulks, change_named, length, random_count, random_places, read, read_named, read_one, scan,
};
use crate::command::args::{int, is, parse_int};
use crate::command::extended::Extended;
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "hdel" => delete(call).await,
        "hexists" => {
            let there = read_one(call, call.arg(1), Type::Hash, call.arg(2), |_| ()).await?;
            Ok(Reply::Int(i64::from(there.is_some())))
        }
        "hget" => Ok(Reply::maybe(get(call, call.arg(2)).await?)),
        "hgetall" => {
            let items = read(call, call.arg(1), Type::Hash).await?;
            let pair = |pair: &[Vec<u8>]| (Reply::bulk(pair[0].as_slice()), Reply::bulk(pair[1].as_slice()));
            Ok(Reply::Map(items.chunks(2).map(pair).collect()))
        }
        "hincrby" => add(call).await,
        "hincrbyfloat" => add_float(call).await,
        "hkeys" => Ok(Reply::Array(bulks(read(call, call.arg(1), Type::Hash).await?.iter().step_by(2)))),
        "hvals" => Ok(Reply::Array(bulks(read(call, call.arg(1), Type::Hash).await?.iter().skip(1).step_by(2)))),
        "hlen" => Ok(Reply::Int(length(call, call.arg(1), Type::Hash).await? as i64 / 2)),
        "hmget" => {
            let items = read_named(call, call.arg(1), Type::Hash, &call.args[2..]).await?;
            let fields: Vec<&[u8]> = call.args[2..].iter().map(Vec::as_slice).collect();
            let places = Places::of(&fields, names(&items));
            let mut room = Room::new(call);
            let one = |field: &&[u8]| {
                let value = places.get(field).map(|n| &items[2 * n + 1]);
                room.take(value.map_or(0, Vec::len))?;
                Ok(Reply::maybe(value.cloned()))
            };
            Ok(Reply::Array(fields.iter().map(one).collect::<Result<_, Fail>>()?))
        }
        "hmset" => set(call).await.map(|_| Reply::Ok),
        "hrandfield" => any(call).await,
        "hscan" => scan(call, Type::Hash, 2).await,
        "hset" => set(call).await,
        "hsetnx" => set_if_absent(call).await,
        _ => {
            let len = read_one(call, call.arg(1), Type::Hash, call.arg(2), <[u8]>::len).await?;
            Ok(Reply::Int(len.unwrap_or(0) as i64))
        }
    }
}

/// Where a field is among fields and values.
fn place(items: &Items, field: &[u8]) -> Option<usize> {
    items.iter().step_by(2).position(|item| item == field).map(|n| 2 * n)
}

/// The fields, in order.
fn names(items: &Items) -> impl Iterator<Item = &[u8]> {
    items.iter().step_by(2).map(Vec::as_slice)
}

fn put(items: &mut Items, field: &[u8], value: Vec<u8>) {
    match place(items, field) {
        Some(at) => items[at + 1] = value,
        None => items.extend([field.to_vec(), value]),
    }
}

async fn get(call: &Call, field: &[u8]) -> Result<Option<Vec<u8>>, Fail> {
    read_one(call, call.arg(1), Type::Hash, field, <[u8]>::to_vec).await
}

async fn set(call: &Call) -> Answered {
    if !call.count().is_multiple_of(2) {
        let name = String::from_utf8_lossy(call.arg(0)).to_ascii_lowercase();
        return Err(Fail::new(format!("wrong number of arguments for '{name}' command")));
    }
    let fields: Vec<&[u8]> = call.args[2..].iter().step_by(2).map(Vec::as_slice).collect();
    let edit = |items: &mut Items| {
        let (mut places, before) = (Places::of(&fields, names(items)), items.len());
        for pair in call.args[2..].chunks(2) {
            match places.get(&pair[0]) {
                Some(n) => items[2 * n + 1].clone_from(&pair[1]),
                None => {
                    places.set(&pair[0], items.len() / 2);
                    items.extend_from_slice(pair);
                }
            }
        }
        Ok(Reply::Int((items.len() - before) as i64 / 2))
    };
    change_named(call, Type::Hash, &fields, edit).await
}

async fn set_if_absent(call: &Call) -> Answered {
    let edit = |items: &mut Items| {
        let absent = place(items, call.arg(2)).is_none();
        if absent {
            put(items, call.arg(2), call.arg(3).to_vec());
        }
        Ok(Reply::Int(i64::from(absent)))
    };
    change_named(call, Type::Hash, &[call.arg(2)], edit).await
}

async fn delete(call: &Call) -> Answered {
    let fields: Vec<&[u8]> = call.args[2..].iter().map(Vec::as_slice).collect();
    let edit = |items: &mut Items| {
        let (is_named, before) = (among(&fields), items.len());
        let (mut n, mut goes) = (0, false);
        items.retain(|item| {
            // A value goes with the field before it.
            if n % 2 == 0 {
                goes = is_named(item);
            }
            n += 1;
            !goes
        });
        Ok(Reply::Int((before - items.len()) as i64 / 2))
    };
    change_named(call, Type::Hash, &fields, edit).await
}

async fn add(call: &Call) -> Answered {
    let by = int(call.arg(3))?;
    let edit = |items: &mut Items| {
        let old = place(items, call.arg(2)).map_or(Some(0), |at| parse_int(&items[at + 1]));
        let old = old.ok_or_else(|| Fail::new("hash value is not an integer"))?;
        let new = old.checked_add(by).ok_or_else(|| Fail::new("increment or decrement would overflow"))?;
        put(items, call.arg(2), new.to_string().into_bytes());
        Ok(Reply::Int(new))
    };
    change_named(call, Type::Hash, &[call.arg(2)], edit).await
}

async fn add_float(call: &Call) -> Answered {
    let by = Extended::parse(call.arg(3)).ok_or_else(|| Fail::new("value is not a valid float"))?;
    if !by.is_finite() {
        return Err(Fail::new("value is NaN or Infinity"));
    }
    let edit = |items: &mut Items| {
        let old = place(items, call.arg(2)).map_or(Some(Extended::ZERO), |at| Extended::parse(&items[at + 1]));
        let new = old.ok_or_else(|| Fail::new("hash value is not a float"))?.plus(by);
        if !new.is_finite() {
            return Err(Fail::new("increment would produce NaN or Infinity"));
        }
        let bytes = new.to_string().into_bytes();
        put(items, call.arg(2), bytes.clone());
        Ok(Reply::bulk(bytes))
    };
    change_named(call, Type::Hash, &[call.arg(2)], edit).await
}

/// HRANDFIELD.
async fn any(call: &Call) -> Answered {
    let values = match call.count() {
        2 | 3 => false,
        4 if is(call.arg(3), "withvalues") => true,
        _ => return Err(Fail::syntax()),
    };
    let parts = if values { 2 } else { 1 };
    let wanted = if call.count() > 2 { Some(random_count(call.arg(2), parts)?) } else { None };
    let items = read(call, call.arg(1), Type::Hash).await?;
    let (mut found, mut looked, mut room) = (Vec::new(), Looked::default(), Room::new(call));
    for place in random_places(call, &room, items.len() / 2, wanted.unwrap_or(1))? {
        looked.at(call, 1).await;
        room.take(items[2 * place].len() + if values { items[2 * place + 1].len() } else { 0 })?;
        let [field, value] = [0, 1].map(|n| Reply::bulk(items[2 * place + n].as_slice()));
        match values {
            true if call.version() >= 3 => found.push(Reply::Array(vec![field, value])),
            true => found.extend([field, value]),
            false => found.push(field),
        }
    }
    Ok(if wanted.is_some() { Reply::Array(found) } else { found.pop().unwrap_or(Reply::Null) })
}
