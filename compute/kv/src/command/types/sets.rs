//! Commands on sets.

use super::{Items, bulks, change, count, read, scan};
use crate::command::args::int;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use std::collections::HashSet;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "sadd" => add(call).await,
        "scard" => Ok(Reply::Int(read(call, call.arg(1), Type::Set).await?.len() as i64)),
        "sdiff" | "sinter" | "sunion" => combine(call, name).await,
        "sismember" => {
            let items = read(call, call.arg(1), Type::Set).await?;
            Ok(Reply::Int(i64::from(items.iter().any(|item| item == call.arg(2)))))
        }
        "smembers" => Ok(Reply::Set(bulks(&read(call, call.arg(1), Type::Set).await?))),
        "smismember" => {
            let items: HashSet<Vec<u8>> = read(call, call.arg(1), Type::Set).await?.into_iter().collect();
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
    change(call, Type::Set, edit).await
}

async fn remove(call: &Call) -> Answered {
    let gone: HashSet<&Vec<u8>> = call.args[2..].iter().collect();
    let edit = |items: &mut Items| {
        let before = items.len();
        items.retain(|item| !gone.contains(item));
        Ok(Reply::Int((before - items.len()) as i64))
    };
    change(call, Type::Set, edit).await
}

async fn pop(call: &Call) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let edit = |items: &mut Items| {
        let mut taken = Items::new();
        while taken.len() < most.unwrap_or(1) && !items.is_empty() {
            taken.push(items.swap_remove(call.store().random(items.len())));
        }
        Ok(if most.is_some() { Reply::Set(bulks(&taken)) } else { Reply::maybe(taken.pop()) })
    };
    change(call, Type::Set, edit).await
}

async fn any(call: &Call) -> Answered {
    let mut items = read(call, call.arg(1), Type::Set).await?;
    let random = |len: usize| call.store().random(len);
    if call.count() == 2 {
        return Ok(Reply::maybe((!items.is_empty()).then(|| items.swap_remove(random(items.len())))));
    }
    let wanted = int(call.arg(2))?;
    if wanted.unsigned_abs() > 1 << 20 {
        return Err(Fail::new("value is out of range"));
    }
    let mut taken = Items::new();
    // A negative count asks for members that may come again.
    for _ in 0..wanted.unsigned_abs() {
        match items.len() {
            0 => break,
            len if wanted < 0 => taken.push(items[random(len)].clone()),
            len => taken.push(items.swap_remove(random(len))),
        }
    }
    Ok(Reply::Array(bulks(&taken)))
}

async fn combine(call: &Call, name: &str) -> Answered {
    let mut result = read(call, call.arg(1), Type::Set).await?;
    for key in &call.args[2..] {
        let other = read(call, key, Type::Set).await?;
        let members: HashSet<&Vec<u8>> = other.iter().collect();
        match name {
            "sdiff" => result.retain(|item| !members.contains(item)),
            "sinter" => result.retain(|item| members.contains(item)),
            _ => {
                let there: HashSet<Vec<u8>> = result.iter().cloned().collect();
                result.extend(other.into_iter().filter(|item| !there.contains(item)));
            }
        }
    }
    Ok(Reply::Set(bulks(&result)))
}
