//! Commands on lists, hashes, sets, sorted sets and streams.
//!
//! A small value of these types is one object that holds all of its items: a change reads it and
//! writes a new one. A larger one lies in segments ([`crate::segments`]), and most commands read
//! and write those that they need. Others see all of it as one object. Either way a command on one
//! key takes effect at one moment, as it does for strings.

mod blocking;
mod combine;
mod geo;
mod hashes;
mod lists;
mod moves;
mod places;
mod ranges;
mod scan;
mod sets;
mod sort;
mod sorted;
mod streams;

pub use blocking::{has_block, is_for_nobody, may_wait};
pub use combine::run as combined;
pub use geo::run as places;
pub use hashes::run as hashes;
pub use lists::run as lists;
pub use moves::run as moves;
use places::Places;
pub use ranges::run as ranges;
use scan::scan;
pub use sets::run as sets;
pub use sort::{run as sort, stored_to};
pub use sorted::run as sorted;
pub use streams::run as streams;

use super::args::{int, parse_int};
use super::room::Room;
use super::{Call, Fail};
use crate::keyspace::Change;
use crate::object::{Object, Type, Value};
use crate::resp::Reply;
use crate::segments::{Working, units};
use crate::shard::Trouble;

/// The items of a value, in order. Of a hash fields and values in turn, of a sorted set scores and
/// members.
pub type Items = Vec<Vec<u8>>;

/// The items of an object.
fn decode(object: &Object, kind: Type) -> Result<Items, Fail> {
    Ok(Lying(bytes_of(object, kind)?).map(<[u8]>::to_vec).collect())
}

/// The bytes of an object of this type.
fn bytes_of(object: &Object, kind: Type) -> Result<&[u8], Fail> {
    match object.kind() {
        own if own == kind => Ok(object.value()),
        Type::Broken => Err(Trouble::Corrupt.into()),
        _ => Err(Fail::wrong_type()),
    }
}

/// Items where they lie in a value's bytes, from the first on. What is left of the bytes follows them.
#[derive(Clone)]
struct Lying<'a>(&'a [u8]);

impl<'a> Iterator for Lying<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, after) = self.0.split_first_chunk::<4>()?;
        let (item, after) = after.split_at((u32::from_le_bytes(*len) as usize).min(after.len()));
        self.0 = after;
        Some(item)
    }
}

/// Adds an item to a value's bytes.
fn write_item(bytes: &mut Vec<u8>, item: &[u8]) {
    bytes.extend_from_slice(&(item.len() as u32).to_le_bytes());
    bytes.extend_from_slice(item);
}

/// Whether no name comes twice.
fn unique<'a>(mut names: impl Iterator<Item = &'a &'a [u8]>) -> bool {
    let mut seen = std::collections::HashSet::new();
    names.all(|name| seen.insert(*name))
}

/// Whether bytes have the form that the commands on this type rely on.
pub fn is_sound(kind: Type, bytes: &[u8]) -> bool {
    match kind {
        Type::String => return true,
        Type::Stream => return crate::segments::streams::split(bytes).is_some(),
        _ => {}
    }
    let (mut items, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let Some((len, after)) = rest.split_first_chunk::<4>() else { return false };
        let Some((item, after)) = after.split_at_checked(u32::from_le_bytes(*len) as usize) else { return false };
        items.push(item);
        rest = after;
    }
    match kind {
        // Its extents are this store's alone.
        Type::Long | Type::Message | Type::Stream | Type::Lock | Type::Verdict | Type::Vacant => false,
        Type::Parts | Type::Segment | Type::Broken | Type::Block => false,
        Type::String | Type::List => !items.is_empty(),
        Type::Set => !items.is_empty() && unique(items.iter()),
        Type::Hash => !items.is_empty() && items.len().is_multiple_of(2) && unique(items.iter().step_by(2)),
        Type::SortedSet => {
            let score = |pair: &[&[u8]]| pair[0].try_into().map(f64::from_le_bytes).ok();
            let pairs: Vec<Option<f64>> = items.chunks_exact(2).map(score).collect();
            let ordered = items.chunks_exact(2).zip(items.chunks_exact(2).skip(1)).all(|(one, next)| {
                let order = score(one).zip(score(next)).map(|(one, next)| one.total_cmp(&next));
                order.is_some_and(|order| order.then_with(|| one[1].cmp(next[1])).is_lt())
            });
            !items.is_empty()
                && items.len().is_multiple_of(2)
                && pairs.iter().all(|score| score.is_some_and(|score| !score.is_nan()))
                && unique(items.iter().skip(1).step_by(2))
                && ordered
        }
    }
}

/// Items that a command looks at before others have their turn.
const AT_ONCE: usize = 1 << 16;

/// Counts what a command looks at.
#[derive(Default)]
pub struct Looked(usize);

impl Looked {
    /// Counts some more items. If they are many, others have their turn first; on a draft nothing waits.
    pub async fn at(&mut self, call: &Call, items: usize) {
        self.0 += items;
        if self.0 >= AT_ONCE && call.draft.is_none() {
            self.0 = 0;
            call.io.pause(0).await;
        }
    }
}

fn encode(items: &Items) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(items.iter().map(|item| item.len() + 4).sum());
    items.iter().for_each(|item| write_item(&mut bytes, item));
    bytes
}

/// A key's items; none if it is absent.
async fn read(call: &Call, key: &[u8], kind: Type) -> Result<Items, Fail> {
    let found = call.get(key).await?;
    found.map_or(Ok(Items::new()), |found| decode(&found, kind))
}

/// Changes the items of the command's key. A key whose last item is gone is gone.
async fn change(call: &Call, kind: Type, edit: impl FnMut(&mut Items) -> Result<Reply, Fail>) -> Result<Reply, Fail> {
    change_at(call, call.arg(1), kind, edit).await
}

/// [`change`] of any key.
async fn change_at(
    call: &Call,
    key: &[u8],
    kind: Type,
    mut edit: impl FnMut(&mut Items) -> Result<Reply, Fail>,
) -> Result<Reply, Fail> {
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let before = there.map_or(Ok(&[][..]), |object| bytes_of(object, kind))?;
        let mut items: Items = Lying(before).map(<[u8]>::to_vec).collect();
        let reply = edit(&mut items)?;
        let bytes = encode(&items);
        Ok(if bytes == before { Change::Keep(reply) } else { becomes(there, kind, bytes, reply) })
    };
    call.update(key, change).await
}

/// A value in segments, if it is of this type.
fn in_segments<'a>(call: &'a Call, head: &Object, kind: Type) -> Result<Working<'a>, Fail> {
    let store = call.store();
    let value = Working::of(&store.segments, store.shard(head.key()).reach.node, head).ok_or(Trouble::Corrupt)?;
    if value.kind == kind { Ok(value) } else { Err(Fail::wrong_type()) }
}

/// What a key's value of this type shows: its bytes, or the value in segments.
async fn view<T>(
    call: &Call,
    key: &[u8],
    kind: Type,
    see: impl Fn(Result<&[u8], &Working<'_>>) -> Result<T, Fail>,
) -> Result<T, Fail> {
    let seen = |object: Option<&Object>, value: Option<&Working<'_>>| match (object, value) {
        (_, Some(value)) if value.kind == kind => see(Err(value)),
        (_, Some(_)) => Err(Fail::wrong_type()),
        (object, None) => see(Ok(object.map_or(Ok(&[][..]), |object| bytes_of(object, kind))?)),
    };
    call.view(key, seen).await
}

/// How many items a key has; of a hash fields and values count both, of a sorted set scores and
/// members.
async fn length(call: &Call, key: &[u8], kind: Type) -> Result<usize, Fail> {
    let step = if matches!(kind, Type::Hash | Type::SortedSet) { 2 } else { 1 };
    let see = |there: Result<&[u8], &Working<'_>>| match there {
        Ok(bytes) => Ok(Lying(bytes).count()),
        Err(value) => Ok(step * value.count()),
    };
    view(call, key, kind, see).await
}

/// Tells the names of a command from others, of which there may be many times as many.
fn among<'n>(names: &'n [&'n [u8]]) -> impl Fn(&[u8]) -> bool + use<'n> {
    let many: std::collections::HashSet<&[u8]> = names.iter().copied().filter(|_| names.len() > 8).collect();
    move |name| if many.is_empty() { names.contains(&name) } else { many.contains(name) }
}

/// Those of a key's items that have these names, and perhaps others.
async fn read_named(call: &Call, key: &[u8], kind: Type, names: &[Vec<u8>]) -> Result<Items, Fail> {
    let side = usize::from(kind == Type::SortedSet);
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let see = |there: Result<&[u8], &Working<'_>>| match there {
        Ok(bytes) => Ok(Lying(bytes).map(<[u8]>::to_vec).collect()),
        Err(value) => {
            let (sought, mut items) = (value.seek(side, names.iter().copied())?, Items::new());
            value.found(side, &sought, |_, item| items.extend(Lying(item).map(<[u8]>::to_vec)))?;
            Ok(items)
        }
    };
    view(call, key, kind, see).await
}

/// What `see` makes of a key's item of this name: of a hash the field's value, of a set the member.
async fn read_one<T>(
    call: &Call,
    key: &[u8],
    kind: Type,
    name: &[u8],
    see: impl Fn(&[u8]) -> T,
) -> Result<Option<T>, Fail> {
    let last = |item: &[u8]| Lying(item).last().map(&see);
    let read = |there: Result<&[u8], &Working<'_>>| match there {
        Ok(bytes) => Ok(units(kind, bytes).find(|unit| unit.name == name).and_then(|unit| last(unit.bytes))),
        Err(value) => Ok(value.item(0, name, last)?.flatten()),
    };
    view(call, key, kind, read).await
}

/// Changes those items of a value in segments that have these names.
fn change_items(
    value: &mut Working<'_>,
    names: &[&[u8]],
    edit: &mut impl FnMut(&mut Items) -> Result<Reply, Fail>,
) -> Result<Reply, Fail> {
    let (sought, mut items) = (value.seek(0, names.iter().copied())?, Items::new());
    value.found(0, &sought, |_, item| items.extend(Lying(item).map(<[u8]>::to_vec)))?;
    let reply = edit(&mut items)?;
    let step = if value.kind == Type::Hash { 2 } else { 1 };
    let names: Vec<&[u8]> = sought.iter().map(|one| one.name).collect();
    let places = Places::of(&names, items.iter().step_by(step).map(Vec::as_slice));
    let write = |n: usize, bytes: &mut Vec<u8>| {
        let item = places.get(names[n]).map(|place| &items[step * place..step * (place + 1)]);
        item.into_iter().flatten().for_each(|part| write_item(bytes, part));
    };
    value.put(0, &sought, write)?;
    Ok(reply)
}

/// [`change`] that changes no items but those of these names. `edit` may get others, too.
async fn change_named(
    call: &Call,
    kind: Type,
    names: &[&[u8]],
    mut edit: impl FnMut(&mut Items) -> Result<Reply, Fail>,
) -> Result<Reply, Fail> {
    let change = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok(before) => {
            let mut items: Items = Lying(before).map(<[u8]>::to_vec).collect();
            let reply = edit(&mut items)?;
            Ok((Some(encode(&items)).filter(|bytes| bytes != before), reply))
        }
        Err(value) => Ok((None, change_items(value, names, &mut edit)?)),
    };
    change_either(call, call.arg(1), kind, change).await
}

/// Changes the bytes of a key, or its value in segments. `None` of bytes: they stay.
async fn change_either<T>(
    call: &Call,
    key: &[u8],
    kind: Type,
    mut edit: impl FnMut(Result<&[u8], &mut Working<'_>>) -> Result<(Option<Vec<u8>>, T), Fail>,
) -> Result<T, Fail> {
    if let Some(outcome) = call.change_open(key, kind, |value| Ok(edit(Err(value))?.1)).await? {
        return Ok(outcome);
    }
    let change = |there: Option<&Object>| -> Result<Change<T>, Fail> {
        if let Some(head) = there.filter(|object| object.kind() == Type::Parts) {
            let mut value = in_segments(call, head, kind)?;
            let (_, outcome) = edit(Err(&mut value))?;
            return Ok(value.change(outcome)?);
        }
        Ok(match edit(Ok(there.map_or(Ok(&[][..]), |object| bytes_of(object, kind))?))? {
            (None, outcome) => Change::Keep(outcome),
            (Some(bytes), outcome) => becomes(there, kind, bytes, outcome),
        })
    };
    call.update_as(key, false, change).await
}

/// The change to these bytes, of which none are left where no item is.
fn becomes<T>(there: Option<&Object>, kind: Type, bytes: Vec<u8>, reply: T) -> Change<T> {
    match bytes.is_empty() {
        true => Change::Delete(reply),
        false => Change::Put(Value { kind, expiry: there.and_then(Object::expiry), bytes }, reply),
    }
}

/// Stores items in place of any other value. Without items the key is deleted.
async fn put_at(call: &Call, key: &[u8], kind: Type, items: &Items) -> Result<(), Fail> {
    if items.is_empty() {
        call.remove(key).await?;
        return Ok(());
    }
    Ok(call.put(key, &Value { kind, expiry: None, bytes: encode(items) }).await?)
}

/// Places of `wanted` items of `len`: each at most once, or, if the number is negative, any of them
/// again. `room`: of the reply.
fn random_places<'c>(
    call: &'c Call,
    room: &Room,
    len: usize,
    wanted: i64,
) -> Result<Box<dyn Iterator<Item = usize> + 'c>, Fail> {
    let random = |bound: usize| call.random(bound);
    if wanted < 0 {
        let many = if len == 0 { 0 } else { wanted.unsigned_abs() };
        room.fits(many)?;
        return Ok(Box::new((0..many).map(move |_| call.random(len))));
    }
    let mut places: Vec<usize> = (0..len).collect();
    let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(len);
    for n in 0..wanted {
        places.swap(n, n + random(len - n));
    }
    places.truncate(wanted);
    Ok(Box::new(places.into_iter()))
}

/// The count of SRANDMEMBER, HRANDFIELD and ZRANDMEMBER. `parts`: the parts of the reply for each.
fn random_count(arg: &[u8], parts: i64) -> Result<i64, Fail> {
    let wanted = int(arg)?;
    if wanted.unsigned_abs() > (i64::MAX / parts) as u64 {
        return Err(Fail::new("value is out of range"));
    }
    Ok(wanted)
}

fn bulks<'a>(items: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<Reply> {
    items.into_iter().map(|item| Reply::bulk(item.as_slice())).collect()
}

/// A count that must not be negative.
fn count(arg: &[u8]) -> Result<usize, Fail> {
    let wrong = || Fail::new("value is out of range, must be positive");
    parse_int(arg).and_then(|count| usize::try_from(count).ok()).ok_or_else(wrong)
}

#[test]
fn items_are_what_was_written() {
    let items: Items = vec![b"a".to_vec(), Vec::new(), vec![7; 300]];
    let value = Value { kind: Type::List, expiry: None, bytes: encode(&items) };
    let object = Object::of(b"k", &value);
    assert_eq!(decode(&object, Type::List), Ok(items));
    assert_eq!(decode(&object, Type::Set), Err(Fail::wrong_type()));
}
