//! SORT and SORT_RO.

use super::{Items, Looked, decode, put_at};
use crate::command::args::{int, parse_float};
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use crate::shard::Trouble;
use std::cmp::Ordering;

/// The arguments of SORT.
#[derive(Default)]
struct Wanted<'a> {
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    limit: Option<(i64, i64)>,
    descending: bool,
    alphabetic: bool,
    store: Option<&'a [u8]>,
}

impl<'a> Wanted<'a> {
    fn parse(call: &'a Call, stores: bool) -> Result<Wanted<'a>, Fail> {
        let (mut wanted, mut n) = (Wanted::default(), 2);
        while n < call.count() {
            let left = call.count() - n - 1;
            match call.arg(n).to_ascii_lowercase().as_slice() {
                b"asc" => wanted.descending = false,
                b"desc" => wanted.descending = true,
                b"alpha" => wanted.alphabetic = true,
                b"limit" if left >= 2 => {
                    wanted.limit = Some((int(call.arg(n + 1))?, int(call.arg(n + 2))?));
                    n += 2;
                }
                b"by" if left >= 1 => {
                    wanted.by = Some(call.arg(n + 1));
                    n += 1;
                }
                b"get" if left >= 1 => {
                    wanted.get.push(call.arg(n + 1));
                    n += 1;
                }
                b"store" if left >= 1 && stores => {
                    wanted.store = Some(call.arg(n + 1));
                    n += 1;
                }
                _ => return Err(Fail::syntax()),
            }
            n += 1;
        }
        Ok(wanted)
    }
}

/// The key to which a SORT stores.
pub fn stored_to(call: &Call) -> Option<Vec<u8>> {
    Wanted::parse(call, true).ok()?.store.map(<[u8]>::to_vec)
}

/// The sort key of an element.
enum Weight {
    Number(f64),
    Text(Option<Vec<u8>>),
}

impl Weight {
    fn cmp(&self, other: &Weight) -> Ordering {
        match (self, other) {
            (Weight::Number(one), Weight::Number(other)) => one.total_cmp(other),
            (Weight::Text(one), Weight::Text(other)) => one.cmp(other),
            _ => Ordering::Equal,
        }
    }
}

pub async fn run(name: &str, call: &Call) -> Answered {
    let wanted = Wanted::parse(call, name == "sort")?;
    let (mut items, kind) = elements(call).await?;
    let keeps = wanted.by.is_some_and(|pattern| !pattern.contains(&b'*'));
    if !keeps {
        items = ordered(call, &wanted, items).await?;
    } else if kind == Some(Type::Set) && (wanted.store.is_some() || call.script.is_some()) {
        // So that what is stored, and what a script sees, does not depend on the order of a set.
        items.sort();
    }
    if keeps && wanted.descending {
        items.reverse();
    }
    let (skip, most) = wanted.limit.unwrap_or((0, -1));
    let skip = usize::try_from(skip).unwrap_or(0);
    let items = items.into_iter().skip(skip).take(usize::try_from(most).unwrap_or(usize::MAX));
    let (mut found, mut unread) = (Vec::new(), Unread(None));
    let (mut room, mut looked) = (Room::new(call), Looked::default());
    for item in items {
        if wanted.get.is_empty() {
            found.push(Some(item));
            continue;
        }
        for pattern in &wanted.get {
            looked.at(call, 1).await;
            if let Some(value) = unread.or(looked_up(call, pattern, &item).await)? {
                room.take(value.as_ref().map_or(0, Vec::len))?;
                found.push(value);
            }
        }
    }
    unread.end()?;
    let Some(key) = wanted.store else { return Ok(Reply::Array(found.into_iter().map(Reply::maybe).collect())) };
    let found: Items = found.into_iter().map(Option::unwrap_or_default).collect();
    put_at(call, key, Type::List, &found).await?;
    Ok(Reply::Int(found.len() as i64))
}

/// A key that a draft lacks. All of them are asked for before the command begins again.
struct Unread(Option<Fail>);

impl Unread {
    /// What was looked up; `None`: the draft lacks it.
    fn or<T>(&mut self, looked_up: Result<T, Fail>) -> Result<Option<T>, Fail> {
        match looked_up {
            Err(fail) if fail == Trouble::Unread.into() => {
                self.0 = Some(fail);
                Ok(None)
            }
            looked_up => looked_up.map(Some),
        }
    }

    fn end(self) -> Result<(), Fail> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The elements of the command's key, and its type.
async fn elements(call: &Call) -> Result<(Items, Option<Type>), Fail> {
    let Some(object) = call.get(call.arg(1)).await? else { return Ok((Items::new(), None)) };
    let items = match object.kind() {
        kind @ (Type::List | Type::Set) => decode(&object, kind)?,
        Type::SortedSet => decode(&object, Type::SortedSet)?.into_iter().skip(1).step_by(2).collect(),
        _ => return Err(Fail::wrong_type()),
    };
    Ok((items, Some(object.kind())))
}

async fn ordered(call: &Call, wanted: &Wanted<'_>, items: Items) -> Result<Items, Fail> {
    let (mut weighted, mut unread) = (Vec::with_capacity(items.len()), Unread(None));
    let mut looked = Looked::default();
    for item in items {
        looked.at(call, 1).await;
        let by = match wanted.by {
            Some(pattern) => match unread.or(looked_up(call, pattern, &item).await)? {
                Some(by) => by,
                None => continue,
            },
            None => Some(item.clone()),
        };
        let weight = match (wanted.alphabetic, by) {
            (true, by) => Weight::Text(by),
            (false, None) => Weight::Number(0.0),
            (false, Some(by)) if by.is_empty() => Weight::Number(0.0),
            (false, Some(by)) => {
                let wrong = || Fail::new("One or more scores can't be converted into double");
                Weight::Number(parse_float(&by).ok_or_else(wrong)? + 0.0)
            }
        };
        weighted.push((weight, item));
    }
    unread.end()?;
    weighted.sort_by(|one, other| one.0.cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
    if wanted.descending {
        weighted.reverse();
    }
    Ok(weighted.into_iter().map(|(_, item)| item).collect())
}

/// Looks up a pattern: `#` is the element itself, `key_*` a string, `key_*->field` a field of a
/// hash.
async fn looked_up(call: &Call, pattern: &[u8], item: &[u8]) -> Result<Option<Vec<u8>>, Fail> {
    if pattern == b"#" {
        return Ok(Some(item.to_vec()));
    }
    let Some(star) = pattern.iter().position(|&byte| byte == b'*') else { return Ok(None) };
    let arrow = pattern[star..].windows(2).position(|two| two == b"->").map(|at| star + at);
    let arrow = arrow.filter(|&at| at + 2 < pattern.len());
    let end = arrow.unwrap_or(pattern.len());
    let key = [&pattern[..star], item, &pattern[star + 1..end]].concat();
    let Some(object) = call.find(&key).await? else { return Ok(None) };
    match (arrow, object.kind()) {
        (None, Type::String) => Ok(Some(object.value().to_vec())),
        (Some(at), Type::Hash) => {
            let fields = decode(&object, Type::Hash)?;
            let place = fields.iter().step_by(2).position(|field| *field == pattern[at + 2..]);
            Ok(place.map(|place| fields[2 * place + 1].clone()))
        }
        _ => Ok(None),
    }
}
