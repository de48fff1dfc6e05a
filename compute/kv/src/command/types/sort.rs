//! SORT and SORT_RO.

use super::{Items, Looked, Lying, decode, put_at};
use crate::command::args::{int, parse_float};
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::object::{Object, Type};
use crate::resp::Reply;
use crate::shard::Trouble;
use std::borrow::Cow;
use std::cmp::Ordering;

/// Elements that are sorted at once.
const RUN: usize = 1 << 12;

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
    let object = call.get(call.arg(1)).await?;
    let all = Elements::of(call, object.as_ref()).await?;
    let keeps = wanted.by.is_some_and(|pattern| !pattern.contains(&b'*'));
    // So that what is stored, and what a script sees, does not depend on the order of a set.
    let is_set = object.as_ref().is_some_and(|object| object.kind() == Type::Set);
    let fixes = keeps && is_set && (wanted.store.is_some() || call.script.is_some());
    let mut order = match (keeps, fixes) {
        (false, _) => ordered(call, &wanted, &all).await?,
        (_, true) => in_order(call, all.places.len(), |one, other| all.at(one).cmp(all.at(other))).await,
        _ => (0..all.places.len() as u32).collect(),
    };
    if wanted.descending {
        order.reverse();
    }
    let (skip, most) = wanted.limit.unwrap_or((0, -1));
    let skip = usize::try_from(skip).unwrap_or(0);
    let order = order.into_iter().skip(skip).take(usize::try_from(most).unwrap_or(usize::MAX));
    let (mut found, mut unread) = (Vec::new(), Unread(None));
    let (mut room, mut looked) = (Room::new(call), Looked::default());
    for place in order {
        let item = all.at(place);
        if wanted.get.is_empty() {
            looked.at(call, 1).await;
            room.take(item.len())?;
            found.push(Some(item.to_vec()));
            continue;
        }
        for pattern in &wanted.get {
            looked.at(call, 1).await;
            if let Some(value) = unread.or(looked_up(call, pattern, item).await)? {
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

/// The elements of the command's key, where they lie in its bytes.
struct Elements<'o> {
    bytes: &'o [u8],
    places: Vec<u32>,
    _room: Room,
}

impl<'o> Elements<'o> {
    async fn of(call: &Call, object: Option<&'o Object>) -> Result<Elements<'o>, Fail> {
        let kind = object.map_or(Type::List, Object::kind);
        if !matches!(kind, Type::List | Type::Set | Type::SortedSet) {
            return Err(Fail::wrong_type());
        }
        let bytes = object.map_or(&[][..], Object::value);
        let (mut room, mut looked, mut places) = (Room::new(call), Looked::default(), Vec::new());
        room.take(bytes.len())?;
        let mut items = Lying(bytes);
        for n in 0.. {
            looked.at(call, 1).await;
            let place = bytes.len() - items.0.len();
            if items.next().is_none() {
                break;
            }
            // Of a sorted set scores and members lie there in turn.
            if kind != Type::SortedSet || n % 2 == 1 {
                // 64 bytes each: what sorting takes.
                room.take(0)?;
                places.push(u32::try_from(place).map_err(|_| Fail::new("the value is too large to be sorted"))?);
            }
        }
        Ok(Elements { bytes, places, _room: room })
    }

    fn at(&self, n: u32) -> &'o [u8] {
        Lying(&self.bytes[self.places[n as usize] as usize..]).next().unwrap_or_default()
    }
}

/// Numbers from 0 on in this order, others that are alike as they were. Others have their turn meanwhile.
async fn in_order(call: &Call, len: usize, order: impl Fn(u32, u32) -> Ordering) -> Vec<u32> {
    let mut looked = Looked::default();
    let mut all: Vec<u32> = (0..len as u32).collect();
    for some in all.chunks_mut(RUN) {
        // Sorting some thousand takes as long as looking at ten times as many.
        looked.at(call, 10 * some.len()).await;
        some.sort_by(|one, other| order(*one, *other));
    }
    let (mut run, mut to) = (RUN, Vec::with_capacity(len));
    while run < len {
        to.clear();
        for two in all.chunks(2 * run) {
            let (mut one, mut other) = two.split_at(run.min(two.len()));
            while let ([first, rest @ ..], [second, others @ ..]) = (one, other) {
                looked.at(call, 4).await;
                if order(*second, *first).is_lt() {
                    to.push(*second);
                    other = others;
                } else {
                    to.push(*first);
                    one = rest;
                }
            }
            to.extend_from_slice(one);
            to.extend_from_slice(other);
        }
        std::mem::swap(&mut all, &mut to);
        run *= 2;
    }
    all
}

/// The numbers of the elements in their order, ascending; of those that are alike any first, if they
/// are the same bytes.
async fn ordered(call: &Call, wanted: &Wanted<'_>, all: &Elements<'_>) -> Result<Vec<u32>, Fail> {
    if wanted.alphabetic && wanted.by.is_none() {
        return Ok(in_order(call, all.places.len(), |one, other| all.at(one).cmp(all.at(other))).await);
    }
    let (mut weights, mut unread) = (Vec::with_capacity(all.places.len()), Unread(None));
    let (mut looked, mut room) = (Looked::default(), Room::new(call));
    for n in 0..all.places.len() as u32 {
        looked.at(call, 1).await;
        let item = all.at(n);
        let by = match wanted.by {
            Some(pattern) => match unread.or(looked_up(call, pattern, item).await)? {
                Some(by) => by.map(Cow::Owned),
                None => continue,
            },
            None => Some(Cow::Borrowed(item)),
        };
        weights.push(match (wanted.alphabetic, by) {
            (true, by) => {
                room.take(by.as_ref().map_or(0, |by| by.len()))?;
                Weight::Text(by.map(Cow::into_owned))
            }
            (false, None) => Weight::Number(0.0),
            (false, Some(by)) if by.is_empty() => Weight::Number(0.0),
            (false, Some(by)) => {
                let wrong = || Fail::new("One or more scores can't be converted into double");
                Weight::Number(parse_float(&by).ok_or_else(wrong)? + 0.0)
            }
        });
    }
    unread.end()?;
    let weight = |n: u32| &weights[n as usize];
    let order = |one, other| weight(one).cmp(weight(other)).then_with(|| all.at(one).cmp(all.at(other)));
    Ok(in_order(call, all.places.len(), order).await)
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
