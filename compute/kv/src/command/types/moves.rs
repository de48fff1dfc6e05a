//! Commands that move elements between lists, take them from the first of several, or look for
//! them.

use super::blocking::{is_for_nobody, most, numbered, timeout, wait};
use super::{Items, Looked, Lying, bulks, bytes_of, change_at, change_either, encode, length, lists, write_item};
use crate::command::args::{is, parse_int};
use crate::command::glance::first_of;
use crate::command::room::Room;
use crate::command::several::at_one_moment;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use crate::segments::{Working, type_of};

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "blmove" => {
            let sides = (front(call.arg(3))?, front(call.arg(4))?);
            let ms = timeout(call.arg(5))?;
            wait(call, ms, &call.args[1..2], nothing(call), async || shift(call, sides).await).await
        }
        "blmpop" => {
            let ms = timeout(call.arg(1))?;
            let wanted = Popped::parse(call, 2)?;
            wait(call, ms, wanted.0, Reply::NullArray, async || wanted.pop(call).await).await
        }
        "blpop" | "brpop" => {
            let last = call.count() - 1;
            let (ms, front) = (timeout(call.arg(last))?, name == "blpop");
            let keys = &call.args[1..last];
            wait(call, ms, keys, Reply::NullArray, async || first(call, keys, front).await).await
        }
        "brpoplpush" => {
            let ms = timeout(call.arg(3))?;
            wait(call, ms, &call.args[1..2], nothing(call), async || shift(call, (false, true)).await).await
        }
        "lmove" => {
            let sides = (front(call.arg(3))?, front(call.arg(4))?);
            Ok(shift(call, sides).await?.unwrap_or(Reply::Null))
        }
        "lmpop" => Ok(Popped::parse(call, 1)?.pop(call).await?.unwrap_or(Reply::NullArray)),
        "lpos" => position(call).await,
        _ => Ok(shift(call, (false, true)).await?.unwrap_or(Reply::Null)),
    }
}

/// What BLMOVE and BRPOPLPUSH answer without an element: after their time an array, as redis does.
fn nothing(call: &Call) -> Reply {
    if call.in_exec || call.draft.is_some() { Reply::Null } else { Reply::NullArray }
}

/// LEFT or RIGHT.
fn front(arg: &[u8]) -> Result<bool, Fail> {
    match arg {
        arg if is(arg, "left") => Ok(true),
        arg if is(arg, "right") => Ok(false),
        _ => Err(Fail::syntax()),
    }
}

/// Takes elements from one end, the outermost first.
fn take(items: &mut Items, front: bool, most: usize) -> Items {
    let n = most.min(items.len());
    if front {
        return items.drain(..n).collect();
    }
    let mut taken = items.split_off(items.len() - n);
    taken.reverse();
    taken
}

fn put(items: &mut Items, front: bool, item: Vec<u8>) {
    let at = if front { 0 } else { items.len() };
    items.insert(at, item);
}

/// The elements taken from a key: one pop is one change.
async fn taken(call: &Call, key: &[u8], front: bool, most: usize) -> Result<Items, Fail> {
    let most = || if is_for_nobody(call) { 0 } else { most };
    Ok(lists::take(call, key, front, most).await?.unwrap_or_default())
}

/// BLPOP and BRPOP: from the first key that has an element.
async fn first(call: &Call, keys: &[Vec<u8>], front: bool) -> Result<Option<Reply>, Fail> {
    let pop = async |call: &Call, keys: &[Vec<u8>]| -> Result<Option<Reply>, Fail> {
        for key in keys {
            if let Some(item) = taken(call, key, front, 1).await?.pop() {
                return Ok(Some(Reply::Array(vec![Reply::bulk(key.as_slice()), Reply::bulk(item)])));
            }
        }
        Ok(None)
    };
    Box::pin(first_of(call, keys, pop)).await
}

/// The arguments of LMPOP: keys, whether from the front, elements at most.
struct Popped<'a>(&'a [Vec<u8>], bool, usize);

impl<'a> Popped<'a> {
    fn parse(call: &'a Call, at: usize) -> Result<Popped<'a>, Fail> {
        let (keys, at) = numbered(call, at)?;
        let front = front(call.arg(at))?;
        Ok(Popped(keys, front, most(&call.args[at + 1..])?))
    }

    async fn pop(&self, call: &Call) -> Result<Option<Reply>, Fail> {
        let pop = async |call: &Call, keys: &[Vec<u8>]| -> Result<Option<Reply>, Fail> {
            for key in keys {
                let taken = taken(call, key, self.1, self.2).await?;
                if !taken.is_empty() {
                    return Ok(Some(Reply::Array(vec![Reply::bulk(key.as_slice()), Reply::Array(bulks(&taken))])));
                }
            }
            Ok(None)
        };
        Box::pin(first_of(call, self.0, pop)).await
    }
}

/// LMOVE: out of one list and into the other at one moment. An element that the other cannot take stays.
async fn shift(call: &Call, (from_front, to_front): (bool, bool)) -> Result<Option<Reply>, Fail> {
    let (from, to) = (call.arg(1), call.arg(2));
    if from == to {
        let edit = |there: Result<&[u8], &mut Working<'_>>| {
            let most = usize::from(!is_for_nobody(call));
            let before = match there {
                Ok(before) => before,
                Err(value) => {
                    let len = value.count();
                    let of = if from_front { 0..most } else { len - most..len };
                    let Some(item) = value.window(of.clone())?.units().next().map(|unit| unit.name.to_vec()) else {
                        return Ok((None, Reply::Null));
                    };
                    value.take_out(of)?;
                    let mut bytes = Vec::new();
                    write_item(&mut bytes, &item);
                    value.push(to_front, &bytes)?;
                    return Ok((None, Reply::bulk(item)));
                }
            };
            let mut items: Items = Lying(before).map(<[u8]>::to_vec).collect();
            let Some(item) = take(&mut items, from_front, most).pop() else { return Ok((None, Reply::Null)) };
            put(&mut items, to_front, item.clone());
            let bytes = encode(&items);
            Ok((Some(bytes).filter(|bytes| bytes != before), Reply::bulk(item)))
        };
        let moved = change_either(call, from, Type::List, edit).await?;
        return Ok(Some(moved).filter(|moved| *moved != Reply::Null));
    }
    if length(call, from, Type::List).await? == 0 {
        return Ok(None);
    }
    if call.find_head(to).await?.is_some_and(|object| type_of(&object) != Type::List) {
        return Err(Fail::wrong_type());
    }
    if call.draft.is_none() {
        let keys = vec![from.to_vec(), to.to_vec()];
        let moved = at_one_moment(call, keys, move |on| {
            // The last moment before the locks.
            let nobody = is_for_nobody(call);
            Box::pin(async move { if nobody { Ok(None) } else { shift(on, (from_front, to_front)).await } })
        });
        return Box::pin(moved).await;
    }
    let Some(item) = taken(call, from, from_front, 1).await?.pop() else { return Ok(None) };
    let push = |items: &mut Items| {
        put(items, to_front, item.clone());
        Ok(Reply::bulk(item.clone()))
    };
    match change_at(call, to, Type::List, push).await {
        Ok(moved) => Ok(Some(moved)),
        Err(fail) => {
            // A transaction goes on with the draft.
            let back = |items: &mut Items| {
                put(items, from_front, item.clone());
                Ok(Reply::Null)
            };
            change_at(call, from, Type::List, back).await?;
            Err(fail)
        }
    }
}

async fn position(call: &Call) -> Answered {
    let (mut rank, mut most, mut compared, mut n) = (1, None, 0, 3);
    while n < call.count() {
        let number = parse_int(call.args.get(n + 1).ok_or_else(Fail::syntax)?);
        let number = number.ok_or_else(|| Fail::new("value is not an integer or out of range"))?;
        let negative = |what: &str| Fail::new(format!("{what} can't be negative"));
        match call.arg(n).to_ascii_lowercase().as_slice() {
            b"rank" if number == 0 => {
                return Err(Fail::new(
                    "RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative \
                     to start from the end of the list",
                ));
            }
            b"rank" if number == i64::MIN => return Err(Fail::new("value is out of range")),
            b"rank" => rank = number,
            b"count" => most = Some(usize::try_from(number).map_err(|_| negative("COUNT"))?),
            b"maxlen" => compared = usize::try_from(number).map_err(|_| negative("MAXLEN"))?,
            _ => return Err(Fail::syntax()),
        }
        n += 2;
    }
    let object = call.get(call.arg(1)).await?;
    let mut items = Lying(object.as_ref().map_or(Ok(&[][..]), |object| bytes_of(object, Type::List))?);
    let len = items.clone().count();
    let compared = if compared == 0 { len } else { compared.min(len) };
    let wanted = match most {
        Some(0) => usize::MAX,
        most => most.unwrap_or(1),
    };
    let passed = rank.unsigned_abs() as usize - 1;
    // From the end, only those that are last are kept.
    let first = if rank > 0 { 0 } else { len - compared };
    let enough = if rank > 0 { passed.saturating_add(wanted) } else { usize::MAX };
    let (mut found, mut looked, mut room) = (Vec::new(), Looked::default(), Room::new(call));
    for at in 0..first + compared {
        looked.at(call, 1).await;
        if items.next() == Some(call.arg(2)) && at >= first {
            room.take(0)?;
            found.push(at);
        }
        if found.len() == enough {
            break;
        }
    }
    if rank < 0 {
        found.reverse();
    }
    let mut found = found.into_iter().skip(passed).take(wanted).map(|at| Reply::Int(at as i64));
    Ok(if most.is_some() { Reply::Array(found.collect()) } else { found.next().unwrap_or(Reply::Null) })
}
