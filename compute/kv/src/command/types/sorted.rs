//! Commands on sorted sets. The items are scores and members in turn, in the order of the set.

use super::blocking::is_for_nobody;
use super::places::Places;
use super::ranges::Span;
use super::{
    Items, Looked, Lying, among, change_either, count, encode, length, random_count, random_places, read, read_named,
    scan, view,
};
use crate::command::args::{float, int, is};
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::{Reply, double};
use crate::segments::{Working, units};

/// Score and name.
pub type Member = (f64, Vec<u8>);

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "zadd" => add(call).await,
        "zcard" => Ok(Reply::Int(length(call, call.arg(1), Type::SortedSet).await? as i64 / 2)),
        "zcount" => {
            let span = Span::scores(call.arg(2), call.arg(3))?;
            let see = |there: Result<&[u8], &Working<'_>>| match there {
                Ok(bytes) => Ok(Reply::Int(span.count(&from_bytes(bytes)))),
                Err(value) => Ok(Reply::Int(span.ranks(value, false)?.map_or(0, |of| of.len() as i64))),
            };
            view(call, call.arg(1), Type::SortedSet, see).await
        }
        "zincrby" => increase(call).await,
        "zlexcount" => {
            let span = Span::members(call.arg(2), call.arg(3))?;
            Ok(Reply::Int(span.count(&members(call, call.arg(1)).await?)))
        }
        "zmscore" => {
            let all = of(&read_named(call, call.arg(1), Type::SortedSet, &call.args[2..]).await?);
            let wanted: Vec<&[u8]> = call.args[2..].iter().map(Vec::as_slice).collect();
            let places = Places::of(&wanted, names(&all));
            let one = |name: &&[u8]| places.get(name).map_or(Reply::Null, |at| Reply::Double(all[at].0));
            Ok(Reply::Array(wanted.iter().map(one).collect()))
        }
        "zpopmax" => pop(call, true).await,
        "zpopmin" => pop(call, false).await,
        "zrandmember" => any(call).await,
        "zrank" => rank(call, false).await,
        "zrem" => remove(call).await,
        "zremrangebylex" => remove_span(call, &Span::members(call.arg(2), call.arg(3))?).await,
        "zremrangebyrank" => remove_span(call, &Span::Ranks(int(call.arg(2))?, int(call.arg(3))?)).await,
        "zremrangebyscore" => remove_span(call, &Span::scores(call.arg(2), call.arg(3))?).await,
        "zrevrank" => rank(call, true).await,
        "zscan" => scan(call, Type::SortedSet, 2).await,
        _ => {
            let see = |there: Result<&[u8], &Working<'_>>| match there {
                Ok(bytes) => {
                    let found = units(Type::SortedSet, bytes).find(|unit| unit.name == call.arg(2));
                    Ok(found.map(|unit| score(unit.first)))
                }
                Err(value) => Ok(value.scores(&[call.arg(2)])?.pop().flatten()),
            };
            Ok(view(call, call.arg(1), Type::SortedSet, see).await?.map_or(Reply::Null, Reply::Double))
        }
    }
}

/// A score of an item, as SCAN shows it.
pub fn text(item: &[u8]) -> Reply {
    Reply::bulk(double(score(item)))
}

pub fn score(item: &[u8]) -> f64 {
    f64::from_le_bytes(item.try_into().unwrap_or_default())
}

fn of(items: &Items) -> Vec<Member> {
    items.chunks_exact(2).map(|pair| (score(&pair[0]), pair[1].clone())).collect()
}

/// A key's members, in order; none if it is absent.
pub async fn members(call: &Call, key: &[u8]) -> Result<Vec<Member>, Fail> {
    Ok(of(&read(call, key, Type::SortedSet).await?))
}

/// Brings members in order. There is one zero.
pub fn sort(all: &mut [Member]) {
    all.sort_by(|one, other| (one.0 + 0.0).total_cmp(&(other.0 + 0.0)).then_with(|| one.1.cmp(&other.1)));
}

/// Members as items. A zero has no sign there.
pub fn flat(all: &[Member]) -> Items {
    all.iter().flat_map(|(score, name)| [(score + 0.0).to_le_bytes().to_vec(), name.clone()]).collect()
}

/// The members' names, in order.
pub fn names(all: &[Member]) -> impl Iterator<Item = &[u8]> {
    all.iter().map(|member| member.1.as_slice())
}

fn find(all: &[Member], name: &[u8]) -> Option<usize> {
    all.iter().position(|member| member.1 == name)
}

/// The members that bytes have.
pub fn from_bytes(bytes: &[u8]) -> Vec<Member> {
    of(&Lying(bytes).map(<[u8]>::to_vec).collect())
}

/// What becomes of a set whose bytes were `before`: members are sorted, and it keeps its bytes if
/// they are the same.
fn becomes(before: &[u8], mut all: Vec<Member>) -> Option<Vec<u8>> {
    sort(&mut all);
    Some(encode(&flat(&all))).filter(|bytes| bytes != before)
}

/// Changes members of these names. `edit` may get others, too.
async fn edit(call: &Call, names: &[&[u8]], mut edit: impl FnMut(&mut Vec<Member>) -> Answered) -> Answered {
    let change = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok(before) => {
            let mut all = from_bytes(before);
            let reply = edit(&mut all)?;
            Ok((becomes(before, all), reply))
        }
        Err(value) => Ok((None, value.change_members(names.iter().copied(), &mut edit)?)),
    };
    change_either(call, call.arg(1), Type::SortedSet, change).await
}

/// Members as a reply shows them.
pub fn shown(members: &[Member], scores: bool, version: u8) -> Reply {
    let one = |(score, name): &Member| match (scores, version) {
        (false, _) => vec![Reply::bulk(name.as_slice())],
        (true, 3) => vec![Reply::Array(vec![Reply::bulk(name.as_slice()), Reply::Double(*score)])],
        (true, _) => vec![Reply::bulk(name.as_slice()), Reply::Double(*score)],
    };
    Reply::Array(members.iter().flat_map(one).collect())
}

async fn add(call: &Call) -> Answered {
    let (mut if_absent, mut if_there, mut if_more, mut if_less, mut changed, mut sum) = Default::default();
    let mut n = 2;
    loop {
        match call.arg(n).to_ascii_lowercase().as_slice() {
            b"nx" => if_absent = true,
            b"xx" => if_there = true,
            b"gt" => if_more = true,
            b"lt" => if_less = true,
            b"ch" => changed = true,
            b"incr" => sum = true,
            _ => break,
        }
        n += 1;
    }
    let pairs = &call.args[n.min(call.count())..];
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(Fail::syntax());
    }
    if if_absent && if_there {
        return Err(Fail::new("XX and NX options at the same time are not compatible"));
    }
    if if_absent && (if_more || if_less) || if_more && if_less {
        return Err(Fail::new("GT, LT, and/or NX options at the same time are not compatible"));
    }
    if sum && pairs.len() != 2 {
        return Err(Fail::new("INCR option supports a single increment-element pair"));
    }
    let pairs = pairs.chunks(2).map(|pair| Ok((float(&pair[0])?, &pair[1]))).collect::<Result<Vec<_>, Fail>>()?;
    let wanted: Vec<&[u8]> = pairs.iter().map(|(_, name)| name.as_slice()).collect();
    let apply = |all: &mut Vec<Member>| {
        let (mut new, mut moved, mut last) = (0, 0, Reply::Null);
        let mut places = Places::of(&wanted, names(all));
        for (score, name) in &pairs {
            match places.get(name) {
                None if if_there => {}
                None => {
                    places.set(name, all.len());
                    // The reply has the zero's sign, and the set does not.
                    all.push((score + 0.0, name.to_vec()));
                    (new, last) = (new + 1, Reply::Double(*score));
                }
                Some(_) if if_absent => {}
                Some(at) => {
                    let old = all[at].0;
                    let score = if sum { old + score } else { *score };
                    if score.is_nan() {
                        return Err(Fail::new("resulting score is not a number (NaN)"));
                    }
                    if !(if_more && score <= old || if_less && score >= old) {
                        moved += i64::from(score != old);
                        all[at].0 = score + 0.0;
                        last = Reply::Double(score);
                    }
                }
            }
        }
        Ok(if sum { last } else { Reply::Int(if changed { new + moved } else { new }) })
    };
    edit(call, &wanted, apply).await
}

async fn increase(call: &Call) -> Answered {
    let by = float(call.arg(2))?;
    let apply = |all: &mut Vec<Member>| {
        let Some(at) = find(all, call.arg(3)) else {
            all.push((by + 0.0, call.arg(3).to_vec()));
            return Ok(Reply::Double(by));
        };
        all[at].0 += by;
        if all[at].0.is_nan() {
            return Err(Fail::new("resulting score is not a number (NaN)"));
        }
        Ok(Reply::Double(all[at].0))
    };
    edit(call, &[call.arg(3)], apply).await
}

async fn remove(call: &Call) -> Answered {
    let gone: Vec<&[u8]> = call.args[2..].iter().map(Vec::as_slice).collect();
    let apply = |all: &mut Vec<Member>| {
        let (is_named, before) = (among(&gone), all.len());
        all.retain(|member| !is_named(&member.1));
        Ok(Reply::Int((before - all.len()) as i64))
    };
    edit(call, &gone, apply).await
}

async fn remove_span(call: &Call, span: &Span) -> Answered {
    let retain = |all: &mut Vec<Member>| {
        let before = all.len();
        let mut rank = 0;
        all.retain(|member| {
            rank += 1;
            !span.holds(rank - 1, before, member)
        });
        Reply::Int((before - all.len()) as i64)
    };
    let change = |there: Result<&[u8], &mut Working<'_>>| match there {
        Ok(before) => {
            let mut all = from_bytes(before);
            let reply = retain(&mut all);
            Ok((becomes(before, all), reply))
        }
        Err(value) => match span.ranks(value, false)? {
            Some(of) => Ok((None, Reply::Int(value.take_ranks(of)?.len() as i64))),
            None => {
                let mut all = from_bytes(&value.whole()?);
                let reply = retain(&mut all);
                value.become_whole(&encode(&flat(&all)))?;
                Ok((None, reply))
            }
        },
    };
    change_either(call, call.arg(1), Type::SortedSet, change).await
}

/// Takes the members with the lowest or the highest scores out of a key, the outermost first.
pub async fn pop_from(call: &Call, key: &[u8], largest: bool, most: usize) -> Result<Vec<Member>, Fail> {
    let change = |there: Result<&[u8], &mut Working<'_>>| {
        let most = if is_for_nobody(call) { 0 } else { most };
        let (mut taken, after) = match there {
            Ok(before) => {
                let mut all = from_bytes(before);
                let n = most.min(all.len());
                let taken = if largest { all.split_off(all.len() - n) } else { all.drain(..n).collect() };
                (taken, becomes(before, all))
            }
            Err(value) => {
                let (len, n) = (value.count(), most.min(value.count()));
                (value.take_ranks(if largest { len - n..len } else { 0..n })?, None)
            }
        };
        if largest {
            taken.reverse();
        }
        Ok((after, taken))
    };
    change_either(call, key, Type::SortedSet, change).await
}

async fn pop(call: &Call, largest: bool) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let taken = pop_from(call, call.arg(1), largest, most.unwrap_or(1)).await?;
    // One that was not counted is not nested, in either version.
    Ok(shown(&taken, true, if most.is_some() { call.version() } else { 2 }))
}

/// ZRANDMEMBER.
async fn any(call: &Call) -> Answered {
    let scores = match call.count() {
        2 | 3 => false,
        4 if is(call.arg(3), "withscores") => true,
        _ => return Err(Fail::syntax()),
    };
    let parts = if scores { 2 } else { 1 };
    let wanted = if call.count() > 2 { Some(random_count(call.arg(2), parts)?) } else { None };
    let all = members(call, call.arg(1)).await?;
    let (mut taken, mut looked, mut room) = (Vec::new(), Looked::default(), Room::new(call));
    for place in random_places(call, &room, all.len(), wanted.unwrap_or(1))? {
        looked.at(call, 1).await;
        room.take(all[place].1.len())?;
        taken.push(all[place].clone());
    }
    Ok(match wanted {
        Some(_) => shown(&taken, scores, call.version()),
        None => Reply::maybe(taken.pop().map(|(_, name)| name)),
    })
}

async fn rank(call: &Call, reversed: bool) -> Answered {
    let see = |there: Result<&[u8], &Working<'_>>| {
        let (len, at) = match there {
            Ok(bytes) => {
                let all = from_bytes(bytes);
                (all.len(), find(&all, call.arg(2)))
            }
            Err(value) => {
                let score = value.scores(&[call.arg(2)])?.pop().flatten();
                (value.count(), score.map(|score| value.rank(score, call.arg(2))).transpose()?)
            }
        };
        let at = at.map(|at| if reversed { len - 1 - at } else { at });
        Ok(at.map_or(Reply::Null, |at| Reply::Int(at as i64)))
    };
    view(call, call.arg(1), Type::SortedSet, see).await
}
