//! Commands on sorted sets. The items are scores and members in turn, in the order of the set.

use super::{Items, change, count, read, scan};
use crate::command::args::{float, int, is, parse_float, range};
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::{Reply, double};

type Member = (f64, Vec<u8>);

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "zadd" => add(call).await,
        "zcard" => Ok(Reply::Int(members(call).await?.len() as i64)),
        "zcount" => {
            let bounds = (Bound::of(call.arg(2))?, Bound::of(call.arg(3))?);
            let within = members(call).await?.iter().filter(|member| Bound::hold(bounds, member.0)).count();
            Ok(Reply::Int(within as i64))
        }
        "zincrby" => increase(call).await,
        "zmscore" => {
            let all = members(call).await?;
            let one = |name: &Vec<u8>| find(&all, name).map_or(Reply::Null, |at| Reply::Double(all[at].0));
            Ok(Reply::Array(call.args[2..].iter().map(one).collect()))
        }
        "zpopmax" => pop(call, true).await,
        "zpopmin" => pop(call, false).await,
        "zrange" => by_rank(call, false, true).await,
        "zrangebyscore" => by_score(call, false).await,
        "zrank" => rank(call, false).await,
        "zrem" => remove(call).await,
        "zremrangebyrank" => remove_ranks(call).await,
        "zremrangebyscore" => remove_scores(call).await,
        "zrevrange" => by_rank(call, true, false).await,
        "zrevrangebyscore" => by_score(call, true).await,
        "zrevrank" => rank(call, true).await,
        "zscan" => scan(call, Type::SortedSet, 2).await,
        _ => {
            let all = members(call).await?;
            Ok(find(&all, call.arg(2)).map_or(Reply::Null, |at| Reply::Double(all[at].0)))
        }
    }
}

/// A score of an item, as SCAN shows it.
pub fn text(item: &[u8]) -> Reply {
    Reply::bulk(double(score(item)))
}

fn score(item: &[u8]) -> f64 {
    f64::from_le_bytes(item.try_into().unwrap_or_default())
}

fn of(items: &Items) -> Vec<Member> {
    items.chunks_exact(2).map(|pair| (score(&pair[0]), pair[1].clone())).collect()
}

async fn members(call: &Call) -> Result<Vec<Member>, Fail> {
    Ok(of(&read(call, call.arg(1), Type::SortedSet).await?))
}

fn find(all: &[Member], name: &[u8]) -> Option<usize> {
    all.iter().position(|member| member.1 == name)
}

/// Changes the members; they are sorted again afterwards.
async fn edit(call: &Call, mut edit: impl FnMut(&mut Vec<Member>) -> Answered) -> Answered {
    let whole = |items: &mut Items| {
        let mut all = of(items);
        let reply = edit(&mut all)?;
        all.sort_by(|one, other| one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1)));
        *items = all.into_iter().flat_map(|(score, name)| [score.to_le_bytes().to_vec(), name]).collect();
        Ok(reply)
    };
    change(call, Type::SortedSet, whole).await
}

fn shown(members: &[Member], scores: bool, version: u8) -> Reply {
    let one = |(score, name): &Member| match (scores, version) {
        (false, _) => vec![Reply::bulk(name.as_slice())],
        (true, 3) => vec![Reply::Array(vec![Reply::bulk(name.as_slice()), Reply::Double(*score)])],
        (true, _) => vec![Reply::bulk(name.as_slice()), Reply::Double(*score)],
    };
    Reply::Array(members.iter().flat_map(one).collect())
}

/// Adds zero, so that there is one zero.
fn number(arg: &[u8]) -> Result<f64, Fail> {
    Ok(float(arg)? + 0.0)
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
    let pairs = pairs.chunks(2).map(|pair| Ok((number(&pair[0])?, &pair[1]))).collect::<Result<Vec<_>, Fail>>()?;
    let apply = |all: &mut Vec<Member>| {
        let (mut new, mut moved, mut last) = (0, 0, Reply::Null);
        for (score, name) in &pairs {
            match find(all, name) {
                None if if_there => {}
                None => {
                    all.push((*score, name.to_vec()));
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
                        all[at].0 = score;
                        last = Reply::Double(score);
                    }
                }
            }
        }
        Ok(if sum { last } else { Reply::Int(if changed { new + moved } else { new }) })
    };
    edit(call, apply).await
}

async fn increase(call: &Call) -> Answered {
    let by = number(call.arg(2))?;
    let apply = |all: &mut Vec<Member>| {
        let at = find(all, call.arg(3)).unwrap_or_else(|| {
            all.push((0.0, call.arg(3).to_vec()));
            all.len() - 1
        });
        all[at].0 += by;
        if all[at].0.is_nan() {
            return Err(Fail::new("resulting score is not a number (NaN)"));
        }
        Ok(Reply::Double(all[at].0))
    };
    edit(call, apply).await
}

async fn remove(call: &Call) -> Answered {
    let apply = |all: &mut Vec<Member>| {
        let before = all.len();
        all.retain(|member| !call.args[2..].contains(&member.1));
        Ok(Reply::Int((before - all.len()) as i64))
    };
    edit(call, apply).await
}

async fn remove_ranks(call: &Call) -> Answered {
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let apply = |all: &mut Vec<Member>| {
        let gone = range(first, last, all.len()).map_or(0, |(from, to)| all.drain(from..to).count());
        Ok(Reply::Int(gone as i64))
    };
    edit(call, apply).await
}

async fn remove_scores(call: &Call) -> Answered {
    let bounds = (Bound::of(call.arg(2))?, Bound::of(call.arg(3))?);
    let apply = |all: &mut Vec<Member>| {
        let before = all.len();
        all.retain(|member| !Bound::hold(bounds, member.0));
        Ok(Reply::Int((before - all.len()) as i64))
    };
    edit(call, apply).await
}

async fn pop(call: &Call, largest: bool) -> Answered {
    let most = match call.count() {
        2 => None,
        3 => Some(count(call.arg(2))?),
        _ => return Err(Fail::syntax()),
    };
    let version = call.client.version.get();
    let apply = |all: &mut Vec<Member>| {
        let n = most.unwrap_or(1).min(all.len());
        let mut taken: Vec<Member> = if largest { all.split_off(all.len() - n) } else { all.drain(..n).collect() };
        if largest {
            taken.reverse();
        }
        // One that was not counted is not nested, in either version.
        Ok(shown(&taken, true, if most.is_some() { version } else { 2 }))
    };
    edit(call, apply).await
}

async fn rank(call: &Call, reversed: bool) -> Answered {
    let all = members(call).await?;
    let at = find(&all, call.arg(2)).map(|at| if reversed { all.len() - 1 - at } else { at });
    Ok(at.map_or(Reply::Null, |at| Reply::Int(at as i64)))
}

/// A bound of scores: the number, and whether it is outside.
#[derive(Clone, Copy)]
struct Bound(f64, bool);

impl Bound {
    fn of(arg: &[u8]) -> Result<Bound, Fail> {
        let (number, open) = arg.strip_prefix(b"(").map_or((arg, false), |rest| (rest, true));
        let number = parse_float(number).ok_or_else(|| Fail::new("min or max is not a float"))?;
        Ok(Bound(number, open))
    }

    fn hold((low, high): (Bound, Bound), score: f64) -> bool {
        (score > low.0 || !low.1 && score == low.0) && (score < high.0 || !high.1 && score == high.0)
    }
}

/// ZRANGE and ZREVRANGE.
async fn by_rank(call: &Call, reversed: bool, options: bool) -> Answered {
    let (mut scores, mut reversed, mut by_number) = (false, reversed, false);
    for option in &call.args[4..] {
        match option.to_ascii_lowercase().as_slice() {
            b"withscores" => scores = true,
            b"rev" if options => reversed = true,
            b"byscore" if options => by_number = true,
            _ => return Err(Fail::syntax()),
        }
    }
    let version = call.client.version.get();
    if by_number {
        let (low, high) = if reversed { (call.arg(3), call.arg(2)) } else { (call.arg(2), call.arg(3)) };
        let bounds = (Bound::of(low)?, Bound::of(high)?);
        let mut all = members(call).await?;
        all.retain(|member| Bound::hold(bounds, member.0));
        if reversed {
            all.reverse();
        }
        return Ok(shown(&all, scores, version));
    }
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let mut all = members(call).await?;
    if reversed {
        all.reverse();
    }
    let some = range(first, last, all.len()).map_or(&[][..], |(from, to)| &all[from..to]);
    Ok(shown(some, scores, version))
}

/// ZRANGEBYSCORE and ZREVRANGEBYSCORE.
async fn by_score(call: &Call, reversed: bool) -> Answered {
    let (low, high) = if reversed { (call.arg(3), call.arg(2)) } else { (call.arg(2), call.arg(3)) };
    let bounds = (Bound::of(low)?, Bound::of(high)?);
    let (mut scores, mut limit, mut n) = (false, None, 4);
    while n < call.count() {
        if is(call.arg(n), "withscores") {
            scores = true;
            n += 1;
        } else if is(call.arg(n), "limit") && n + 2 < call.count() {
            limit = Some((int(call.arg(n + 1))?, int(call.arg(n + 2))?));
            n += 3;
        } else {
            return Err(Fail::syntax());
        }
    }
    let mut all = members(call).await?;
    all.retain(|member| Bound::hold(bounds, member.0));
    if reversed {
        all.reverse();
    }
    if let Some((skip, most)) = limit {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        all = all.into_iter().skip(skip).take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
    }
    Ok(shown(&all, scores, call.client.version.get()))
}
