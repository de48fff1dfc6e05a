//! Commands on sets.

use super::blocking::numbered;
use super::{
    Items, Looked, Lying, bulks, change, change_at, change_either, change_named, count, decode, encode, length, put_at,
    random_count, random_places, read, read_named, read_one, scan, view,
};
use crate::command::args::{is, parse_int};
use crate::command::room::Room;
use crate::command::several::at_one_moment;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use crate::segments::Working;
use crate::shard::Trouble;
use std::collections::HashSet;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "sadd" => add(call).await,
        "scard" => Ok(Reply::Int(length(call, call.arg(1), Type::Set).await? as i64)),
        "sdiff" | "sinter" | "sunion" => Ok(Reply::Set(bulks(&combined(call, name, &call.args[1..]).await?))),
        "sdiffstore" | "sinterstore" | "sunionstore" => store(call, name.trim_end_matches("store")).await,
        "sintercard" => intersection(call).await,
        "smove" => shift(call).await,
        "sismember" => {
            let there = read_one(call, call.arg(1), Type::Set, call.arg(2), |_| ()).await?;
            Ok(Reply::Int(i64::from(there.is_some())))
        }
        "smembers" => Ok(Reply::Set(bulks(&read(call, call.arg(1), Type::Set).await?))),
        "smismember" => {
            let items = read_named(call, call.arg(1), Type::Set, &call.args[2..]).await?;
            let items: HashSet<Vec<u8>> = items.into_iter().collect();
            Ok(Reply::Array(call.args[2..].iter().map(|one| Reply::Int(i64::from(items.contains(one)))).collect()))
        }
        "spop" => pop(call).await,
        "srandmember" => any(call).await,
        "srem" => remove(call).await,
        _ => scan(call, Type::Set, 1).await,
    }
}

async fn add(call: &Call) -> Answered {
    let edit = |items: &mut Items| {
        let mut there: HashSet<&Vec<u8>> = HashSet::new();
        let before: HashSet<Vec<u8>> = items.iter().cloned().collect();
        let mut new = 0;
        for item in &call.args[2..] {
            if !before.contains(item) && there.insert(item) {
                items.push(item.clone());
                new += 1;
            }
        }
        Ok(Reply::Int(new))
    };
    change_named(call, Type::Set, &members(call), edit).await
}

async fn remove(call: &Call) -> Answered {
    let gone: HashSet<&Vec<u8>> = call.args[2..].iter().collect();
    let edit = |items: &mut Items| {
        let before = items.len();
        items.retain(|item| !gone.contains(item));
        Ok(Reply::Int((before - items.len()) as i64))
    };
    change_named(call, Type::Set, &members(call), edit).await
}

/// The members that a command names.
fn members(call: &Call) -> Vec<&[u8]> {
    call.args[2..].iter().map(Vec::as_slice).collect()
}

/// SPOP of one member.
async fn pop_one(call: &Call) -> Answered {
    // A look that begins again takes the same one.
    let random = call.random(usize::MAX);
    let edit = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok([]) => Ok((None, Reply::Null)),
        Ok(before) => {
            let mut items: Items = Lying(before).map(<[u8]>::to_vec).collect();
            let taken = items.swap_remove(random % items.len());
            Ok((Some(encode(&items)), Reply::bulk(taken)))
        }
        Err(value) => {
            let at = random % value.count();
            let taken = value.window(at..at + 1)?.units().next().map(|unit| unit.name.to_vec());
            let name = taken.ok_or(Trouble::Corrupt)?;
            value.set_item(0, &name, None)?;
            Ok((None, Reply::bulk(name)))
        }
    };
    change_either(call, call.arg(1), Type::Set, edit).await
}

async fn pop(call: &Call) -> Answered {
    let most = match call.count() {
        2 => return pop_one(call).await,
        3 => count(call.arg(2))?,
        _ => return Err(Fail::syntax()),
    };
    let edit = |items: &mut Items| {
        let mut taken = Items::new();
        while taken.len() < most && !items.is_empty() {
            taken.push(items.swap_remove(call.random(items.len())));
        }
        Ok(Reply::Set(bulks(&taken)))
    };
    change(call, Type::Set, edit).await
}

async fn any(call: &Call) -> Answered {
    let wanted = match call.count() {
        2 => None,
        3 => Some(random_count(call.arg(2), 1)?),
        _ => return Err(Fail::syntax()),
    };
    if wanted.is_none() {
        let random = call.random(usize::MAX);
        let see = |there: Result<&[u8], &Working<'_>>| match there {
            Ok([]) => Ok(Reply::Null),
            Ok(bytes) => Ok(Reply::maybe(Lying(bytes).nth(random % Lying(bytes).count()).map(<[u8]>::to_vec))),
            Err(value) => {
                let at = random % value.count();
                Ok(Reply::maybe(value.window(at..at + 1)?.units().next().map(|unit| unit.name.to_vec())))
            }
        };
        return view(call, call.arg(1), Type::Set, see).await;
    }
    let items = read(call, call.arg(1), Type::Set).await?;
    let (mut taken, mut looked, mut room) = (Vec::new(), Looked::default(), Room::new(call));
    for place in random_places(call, &room, items.len(), wanted.unwrap_or(1))? {
        looked.at(call, 1).await;
        room.take(items[place].len())?;
        taken.push(Reply::bulk(items[place].as_slice()));
    }
    Ok(if wanted.is_some() { Reply::Array(taken) } else { taken.pop().unwrap_or(Reply::Null) })
}

/// The members of SDIFF, SINTER or SUNION of some keys. One set is held at a time, beside the result, and
/// each key is looked at once, however often it is named.
async fn combined(call: &Call, how: &str, keys: &[Vec<u8>]) -> Result<Items, Fail> {
    let Some((first, others)) = keys.split_first() else { return Ok(Items::new()) };
    let mut result = read(call, first, Type::Set).await?;
    let mut there: HashSet<Vec<u8>> = if how == "sunion" { result.iter().cloned().collect() } else { HashSet::new() };
    let (mut seen, mut looked, mut room) = (HashSet::new(), Looked::default(), Room::new(call));
    if how != "sdiff" {
        seen.insert(first);
    }
    for key in others.iter().filter(|key| seen.insert(*key)) {
        let other = read(call, key, Type::Set).await?;
        looked.at(call, result.len() + other.len()).await;
        match how {
            "sunion" => {
                for item in other {
                    if there.insert(item.clone()) {
                        room.take(2 * item.len())?;
                        result.push(item);
                    }
                }
            }
            _ => {
                let members: HashSet<&Vec<u8>> = other.iter().collect();
                result.retain(|item| members.contains(item) == (how == "sinter"));
            }
        }
    }
    Ok(result)
}

/// SDIFFSTORE, SINTERSTORE and SUNIONSTORE.
async fn store(call: &Call, how: &str) -> Answered {
    let result = combined(call, how, &call.args[2..]).await?;
    put_at(call, call.arg(1), Type::Set, &result).await?;
    Ok(Reply::Int(result.len() as i64))
}

async fn intersection(call: &Call) -> Answered {
    let too_many = || Fail::new("Number of keys can't be greater than number of args");
    let (keys, at) = numbered(call, 1).map_err(|fail| if fail == Fail::syntax() { too_many() } else { fail })?;
    let most = limit(&call.args[at..])?;
    let found = combined(call, "sinter", keys).await?.len();
    Ok(Reply::Int(found.min(most) as i64))
}

/// LIMIT of SINTERCARD and ZINTERCARD.
pub fn limit(args: &[Vec<u8>]) -> Result<usize, Fail> {
    match args {
        [] => Ok(usize::MAX),
        [word, number] if is(word, "limit") => match parse_int(number) {
            Some(0) => Ok(usize::MAX),
            number => number
                .and_then(|number| usize::try_from(number).ok())
                .ok_or_else(|| Fail::new("LIMIT can't be negative")),
        },
        _ => Err(Fail::syntax()),
    }
}

/// SMOVE: into the other set, then out of this one, so that the member is never in neither.
async fn shift(call: &Call) -> Answered {
    let (from, to, member) = (call.arg(1), call.arg(2), call.arg(3));
    let items = read(call, from, Type::Set).await?;
    if items.is_empty() {
        return Ok(Reply::Int(0));
    }
    let there = items.iter().any(|item| item == member);
    if let Some(object) = call.find(to).await? {
        decode(&object, Type::Set)?;
    }
    if !there || from == to {
        return Ok(Reply::Int(i64::from(there)));
    }
    if call.draft.is_none() {
        let moved = at_one_moment(call, vec![from.to_vec(), to.to_vec()], |call| Box::pin(shift(call)));
        return Box::pin(moved).await;
    }
    let add = |items: &mut Items| {
        if !items.iter().any(|item| item == member) {
            items.push(member.to_vec());
        }
        Ok(Reply::Null)
    };
    change_at(call, to, Type::Set, add).await?;
    let remove = |items: &mut Items| {
        items.retain(|item| item != member);
        Ok(Reply::Null)
    };
    change_at(call, from, Type::Set, remove).await?;
    Ok(Reply::Int(1))
}
