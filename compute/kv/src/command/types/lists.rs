//! Commands on lists.

use super::{Items, bulks, change, count, read};
use crate::command::args::{int, is, range};
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "lindex" => index(call).await,
        "linsert" => insert(call).await,
        "llen" => Ok(Reply::Int(read(call, call.arg(1), Type::List).await?.len() as i64)),
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

async fn push(call: &Call, front: bool, if_there: bool) -> Answered {
    let edit = |items: &mut Items| {
        if if_there && items.is_empty() {
            return Ok(Reply::Int(0));
        }
        let new = call.args[2..].iter().cloned();
        if front {
            items.splice(..0, new.rev());
        } else {
            items.extend(new);
        }
        Ok(Reply::Int(items.len() as i64))
    };
    change(call, Type::List, edit).await
}

async fn pop(call: &Call, front: bool) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let edit = |items: &mut Items| {
        if items.is_empty() {
            return Ok(if most.is_some() { Reply::NullArray } else { Reply::Null });
        }
        let n = most.unwrap_or(1).min(items.len());
        let mut taken: Items = if front { items.drain(..n).collect() } else { items.split_off(items.len() - n) };
        if !front {
            taken.reverse();
        }
        Ok(if most.is_some() { Reply::Array(bulks(&taken)) } else { Reply::maybe(taken.pop()) })
    };
    change(call, Type::List, edit).await
}

async fn lrange(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let items = read(call, call.arg(1), Type::List).await?;
    Ok(Reply::Array(range(first, last, items.len()).map_or(Vec::new(), |(from, to)| bulks(&items[from..to]))))
}

async fn index(call: &Call) -> Answered {
    let index = int(call.arg(2))?;
    let items = read(call, call.arg(1), Type::List).await?;
    Ok(Reply::maybe(place(index, items.len()).map(|place| items[place].clone())))
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
