//! Commands on lists.
//!
//! Those of queues, and those that read, take the value's bytes as they lie: a list of a hundred thousand
//! items would cost as many allocations otherwise.

use super::{Items, Lying, becomes, bulks, bytes_of, change_either, count, length, view, write_item};
use crate::command::args::{int, is, range};
use crate::command::{Answered, Call, Fail};
use crate::keyspace::Change;
use crate::object::{Object, Type};
use crate::resp::Reply;
use crate::segments::Working;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "lindex" => index(call).await,
        "linsert" => insert(call).await,
        "llen" => Ok(Reply::Int(length(call, call.arg(1), Type::List).await? as i64)),
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
    let mut new = Vec::new();
    match front {
        true => call.args[2..].iter().rev().for_each(|item| write_item(&mut new, item)),
        false => call.args[2..].iter().for_each(|item| write_item(&mut new, item)),
    }
    let edit = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok(before) if if_there && before.is_empty() => Ok((None, Reply::Int(0))),
        Ok(before) => {
            let bytes = if front { [&new[..], before].concat() } else { [before, &new[..]].concat() };
            Ok((Some(bytes), Reply::Int((Lying(before).count() + call.count() - 2) as i64)))
        }
        Err(value) => {
            value.push(front, &new)?;
            Ok((None, Reply::Int(value.count() as i64)))
        }
    };
    change_either(call, call.arg(1), Type::List, edit).await
}

/// Takes items from one end, the outermost first; `None`: there are none.
pub async fn take(call: &Call, key: &[u8], front: bool, most: impl Fn() -> usize) -> Result<Option<Items>, Fail> {
    let edit = |there: Result<&[u8], &mut Working<'_>>| {
        let most = most();
        let (mut taken, after): (Items, _) = match there {
            Ok([]) => return Ok((None, None)),
            Ok(before) if front => {
                let mut items = Lying(before);
                (items.by_ref().take(most).map(<[u8]>::to_vec).collect(), Some(items.0.to_vec()))
            }
            Ok(before) => {
                let kept = Lying(before).count().saturating_sub(most);
                let mut items = Lying(before);
                let after: usize = items.by_ref().take(kept).map(|item| item.len() + 4).sum();
                (items.map(<[u8]>::to_vec).collect(), Some(before[..after].to_vec()))
            }
            Err(value) => {
                let (len, most) = (value.count(), most.min(value.count()));
                let of = if front { 0..most } else { len - most..len };
                let taken = value.window(of.clone())?.units().map(|unit| unit.name.to_vec()).collect();
                value.take_out(of)?;
                (taken, None)
            }
        };
        if !front {
            taken.reverse();
        }
        Ok((after.filter(|_| most > 0), Some(taken)))
    };
    change_either(call, key, Type::List, edit).await
}

async fn pop(call: &Call, front: bool) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let taken = take(call, call.arg(1), front, || most.unwrap_or(1)).await?;
    Ok(match (taken, most) {
        (None, Some(_)) => Reply::NullArray,
        (Some(taken), Some(_)) => Reply::Array(bulks(&taken)),
        (taken, None) => Reply::maybe(taken.and_then(|mut taken| taken.pop())),
    })
}

async fn lrange(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let see = |there: Result<&[u8], &Working<'_>>| {
        let bytes = match there {
            Ok(bytes) => bytes,
            Err(value) => {
                let of = range(first, last, value.count()).map_or(0..0, |(from, to)| from..to);
                let window = value.window(of)?;
                return Ok(Reply::Array(window.units().map(|unit| Reply::bulk(unit.name)).collect()));
            }
        };
        let mut items = Lying(bytes);
        // From the front, what lies behind the last one is not looked at.
        let len = if first < 0 || last < 0 { items.clone().count() } else { usize::MAX >> 1 };
        let of = range(first, last, len).map_or(0..0, |(from, to)| from..to);
        if !of.is_empty() && of.start > 0 {
            items.nth(of.start - 1);
        }
        Ok(Reply::Array(items.take(of.len()).map(Reply::bulk).collect()))
    };
    view(call, call.arg(1), Type::List, see).await
}

async fn index(call: &Call) -> Answered {
    let index = int(call.arg(2))?;
    let see = |there: Result<&[u8], &Working<'_>>| {
        let bytes = match there {
            Ok(bytes) => bytes,
            Err(value) => {
                let Some(at) = place(index, value.count()) else { return Ok(Reply::Null) };
                let window = value.window(at..at + 1)?;
                return Ok(Reply::maybe(window.units().next().map(|unit| unit.name.to_vec())));
            }
        };
        let mut items = Lying(bytes);
        let len = if index < 0 { items.clone().count() } else { usize::MAX >> 1 };
        Ok(Reply::maybe(place(index, len).and_then(|place| items.nth(place)).map(<[u8]>::to_vec)))
    };
    view(call, call.arg(1), Type::List, see).await
}

async fn set(call: &Call) -> Answered {
    let index = int(call.arg(2))?;
    let out_of_range = || Fail::new("index out of range");
    let mut item = Vec::new();
    write_item(&mut item, call.arg(3));
    let edit = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok([]) => Err(Fail::new("no such key")),
        Ok(before) => {
            let place = place(index, Lying(before).count()).ok_or_else(out_of_range)?;
            let mut items = Lying(before);
            let at: usize = items.by_ref().take(place).map(|item| item.len() + 4).sum();
            items.next();
            let bytes = [&before[..at], &item[..], items.0].concat();
            Ok((Some(bytes).filter(|bytes| bytes != before), Reply::Ok))
        }
        Err(value) => {
            value.replace(place(index, value.count()).ok_or_else(out_of_range)?, &item)?;
            Ok((None, Reply::Ok))
        }
    };
    change_either(call, call.arg(1), Type::List, edit).await
}

async fn trim(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let edit = |there: Result<&[u8], &mut Working<'_>>| {
        let of = |len| range(first, last, len).map_or(0..0, |(from, to)| from..to);
        match there {
            Ok(before) => {
                let items: Vec<&[u8]> = Lying(before).collect();
                let of = of(items.len());
                let all = of.len() == items.len();
                let mut bytes = Vec::new();
                items[of].iter().for_each(|item| write_item(&mut bytes, item));
                Ok((Some(bytes).filter(|_| !all), Reply::Ok))
            }
            Err(value) => {
                let len = value.count();
                let of = of(len);
                value.take_out(of.end..len)?;
                value.take_out(0..of.start)?;
                Ok((None, Reply::Ok))
            }
        }
    };
    change_either(call, call.arg(1), Type::List, edit).await
}

/// The items are compared where they lie.
async fn remove(call: &Call) -> Answered {
    let (wanted, item) = (int(call.arg(2))?, call.arg(3));
    let edit = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let before = there.map_or(Ok(&[][..]), |object| bytes_of(object, Type::List))?;
        let all = Lying(before).filter(|one| *one == item).count();
        let most = if wanted == 0 { all } else { all.min(usize::try_from(wanted.unsigned_abs()).unwrap_or(all)) };
        let reply = Reply::Int(most as i64);
        if most == 0 {
            return Ok(Change::Keep(reply));
        }
        let first = if wanted < 0 { all - most } else { 0 };
        let (mut seen, mut after) = (0, Vec::with_capacity(before.len()));
        for one in Lying(before) {
            let alike = one == item;
            seen += usize::from(alike);
            if !alike || !(first + 1..=first + most).contains(&seen) {
                write_item(&mut after, one);
            }
        }
        Ok(becomes(there, Type::List, after, reply))
    };
    call.update(call.arg(1), edit).await
}

async fn insert(call: &Call) -> Answered {
    let after = match call.arg(2) {
        arg if is(arg, "before") => false,
        arg if is(arg, "after") => true,
        _ => return Err(Fail::syntax()),
    };
    let (pivot, mut new) = (call.arg(3), Vec::new());
    write_item(&mut new, call.arg(4));
    let edit = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let before = there.map_or(Ok(&[][..]), |object| bytes_of(object, Type::List))?;
        if before.is_empty() {
            return Ok(Change::Keep(Reply::Int(0)));
        }
        let (mut at, mut items) = (0, Lying(before));
        let Some(found) = items.find(|one| {
            at += one.len() + 4;
            *one == pivot
        }) else {
            return Ok(Change::Keep(Reply::Int(-1)));
        };
        let at = if after { at } else { at - found.len() - 4 };
        let reply = Reply::Int(Lying(before).count() as i64 + 1);
        let bytes = [&before[..at], &new[..], &before[at..]].concat();
        Ok(becomes(there, Type::List, bytes, reply))
    };
    call.update(call.arg(1), edit).await
}
