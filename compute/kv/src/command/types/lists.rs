//! Commands on lists.
//!
//! Those of queues, and those that read, take the value's bytes as they lie: a list of a hundred thousand
//! items would cost as many allocations otherwise.

use super::{Items, Lying, bytes_of, change, change_bytes, count, write_item};
use crate::command::args::{int, is, range};
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "lindex" => index(call).await,
        "linsert" => insert(call).await,
        "llen" => look(call, |bytes| Reply::Int(Lying(bytes).count() as i64)).await,
        "lpop" => pop(call, true).await,
        "lpush" => push(call, true, false).await,
        "lpushx" => push(call, true, true).await,
        "lrange" => lrange(call).await,
        "lrem" => remove(call).await,
        "lset" => set(call).await,
        "ltrim" => trim(call).await,
        "rpop" => pop(call, false).await,
        "rpush" => push(call, false, false).await,
        _ => push(call, false, true).await,
    }
}

/// An index from the front, or from the back if negative.
fn place(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { len as i64 + index } else { index };
    usize::try_from(index).ok().filter(|&index| index < len)
}

/// The reply that the bytes of the command's key give; none if it is absent.
async fn look(call: &Call, see: impl Fn(&[u8]) -> Reply) -> Answered {
    let found = call.get(call.arg(1)).await?;
    Ok(see(found.as_ref().map_or(Ok(&[][..]), |found| bytes_of(found, Type::List))?))
}

async fn push(call: &Call, front: bool, if_there: bool) -> Answered {
    let new = &call.args[2..];
    let edit = |before: &[u8]| {
        if if_there && before.is_empty() {
            return Ok((None, Reply::Int(0)));
        }
        let mut bytes = Vec::with_capacity(before.len() + new.iter().map(|item| item.len() + 4).sum::<usize>());
        if front {
            new.iter().rev().for_each(|item| write_item(&mut bytes, item));
        }
        bytes.extend_from_slice(before);
        if !front {
            new.iter().for_each(|item| write_item(&mut bytes, item));
        }
        Ok((Some(bytes), Reply::Int((Lying(before).count() + new.len()) as i64)))
    };
    change_bytes(call, Type::List, edit).await
}

async fn pop(call: &Call, front: bool) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let edit = |before: &[u8]| {
        if before.is_empty() {
            return Ok((None, if most.is_some() { Reply::NullArray } else { Reply::Null }));
        }
        let wanted = most.unwrap_or(1);
        let (mut taken, after) = if front {
            let mut items = Lying(before);
            (items.by_ref().take(wanted).map(Reply::bulk).collect::<Vec<_>>(), items.0)
        } else {
            let kept = Lying(before).count().saturating_sub(wanted);
            let mut items = Lying(before);
            let after = &before[..items.by_ref().take(kept).map(|item| item.len() + 4).sum()];
            let mut taken: Vec<Reply> = items.map(Reply::bulk).collect();
            taken.reverse();
            (taken, after)
        };
        let after = (wanted > 0).then(|| after.to_vec());
        Ok((after, if most.is_some() { Reply::Array(taken) } else { taken.pop().unwrap_or(Reply::Null) }))
    };
    change_bytes(call, Type::List, edit).await
}

async fn lrange(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let see = |bytes: &[u8]| {
        let mut items = Lying(bytes);
        // From the front, what lies behind the last one is not looked at.
        let len = if first < 0 || last < 0 { items.clone().count() } else { usize::MAX >> 1 };
        let of = range(first, last, len).map_or(0..0, |(from, to)| from..to);
        if !of.is_empty() && of.start > 0 {
            items.nth(of.start - 1);
        }
        Reply::Array(items.take(of.len()).map(Reply::bulk).collect())
    };
    look(call, see).await
}

async fn index(call: &Call) -> Answered {
    let index = int(call.arg(2))?;
    let see = |bytes: &[u8]| {
        let mut items = Lying(bytes);
        let len = if index < 0 { items.clone().count() } else { usize::MAX >> 1 };
        Reply::maybe(place(index, len).and_then(|place| items.nth(place)).map(<[u8]>::to_vec))
    };
    look(call, see).await
}

async fn set(call: &Call) -> Answered {
    let index = int(call.arg(2))?;
    let edit = |items: &mut Items| {
        if items.is_empty() {
            return Err(Fail::new("no such key"));
        }
        let place = place(index, items.len()).ok_or_else(|| Fail::new("index out of range"))?;
        items[place] = call.arg(3).to_vec();
        Ok(Reply::Ok)
    };
    change(call, Type::List, edit).await
}

async fn trim(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let edit = |items: &mut Items| {
        let kept = range(first, last, items.len()).map_or(Items::new(), |(from, to)| items[from..to].to_vec());
        *items = kept;
        Ok(Reply::Ok)
    };
    change(call, Type::List, edit).await
}

async fn remove(call: &Call) -> Answered {
    let wanted = int(call.arg(2))?;
    let edit = |items: &mut Items| {
        let (before, most) = (items.len(), if wanted == 0 { usize::MAX } else { wanted.unsigned_abs() as usize });
        let mut left = most;
        let mut keep = |item: &Vec<u8>| {
            let goes = left > 0 && item == call.arg(3);
            left -= usize::from(goes);
            !goes
        };
        if wanted < 0 {
            items.reverse();
            items.retain(&mut keep);
            items.reverse();
        } else {
            items.retain(&mut keep);
        }
        Ok(Reply::Int((before - items.len()) as i64))
    };
    change(call, Type::List, edit).await
}

async fn insert(call: &Call) -> Answered {
    let after = match call.arg(2) {
        arg if is(arg, "before") => 0,
        arg if is(arg, "after") => 1,
        _ => return Err(Fail::syntax()),
    };
    let edit = |items: &mut Items| {
        if items.is_empty() {
            return Ok(Reply::Int(0));
        }
        let Some(place) = items.iter().position(|item| item == call.arg(3)) else { return Ok(Reply::Int(-1)) };
        items.insert(place + after, call.arg(4).to_vec());
        Ok(Reply::Int(items.len() as i64))
    };
    change(call, Type::List, edit).await
}
