//! ZUNION, ZINTER and ZDIFF, their storing forms, and commands that pop from the first of several
//! sorted sets.

use super::blocking::{most, numbered, timeout, wait};
use super::sets::limit;
use super::sorted::{Member, flat, members, pop_from, shown, sort};
use super::{Looked, decode, put_at};
use crate::command::args::{is, parse_float, parse_int};
use crate::command::glance::first_of;
use crate::command::room::Room;
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use std::collections::{HashMap, HashSet};

/// Members that a command looks at again, because their keys are named again, while nothing else of its front
/// end goes on.
const AGAIN: usize = 1 << 20;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "bzmpop" => {
            let ms = timeout(call.arg(1))?;
            let wanted = Popped::parse(call, 2)?;
            wait(call, ms, wanted.0, Reply::NullArray, async || wanted.pop(call).await).await
        }
        "bzpopmax" | "bzpopmin" => {
            let last = call.count() - 1;
            let (ms, largest) = (timeout(call.arg(last))?, name == "bzpopmax");
            let keys = &call.args[1..last];
            wait(call, ms, keys, Reply::NullArray, async || first(call, keys, largest).await).await
        }
        "zintercard" => {
            let (keys, at) = counted(call, name, 1)?;
            let most = limit(&call.args[at..])?;
            let plain = Wanted { keys, weights: vec![1.0; keys.len()], sum: Sum::Add, scores: false };
            let found = plain.combined(call, "zinter").await?.len();
            Ok(Reply::Int(found.min(most) as i64))
        }
        "zmpop" => Ok(Popped::parse(call, 1)?.pop(call).await?.unwrap_or(Reply::NullArray)),
        "zdiffstore" | "zinterstore" | "zunionstore" => {
            let how = name.trim_end_matches("store");
            let found = Wanted::parse(call, name, 2)?.combined(call, how).await?;
            put_at(call, call.arg(1), Type::SortedSet, &flat(&found)).await?;
            Ok(Reply::Int(found.len() as i64))
        }
        _ => {
            let wanted = Wanted::parse(call, name, 1)?;
            let found = wanted.combined(call, name).await?;
            Ok(shown(&found, wanted.scores, call.version()))
        }
    }
}

/// The keys behind their number, and where the arguments behind them begin.
fn counted<'a>(call: &'a Call, name: &str, at: usize) -> Result<(&'a [Vec<u8>], usize), Fail> {
    let keys = parse_int(call.arg(at)).ok_or_else(|| Fail::new("value is not an integer or out of range"))?;
    if keys < 1 {
        return Err(Fail::new(format!("at least 1 input key is needed for '{name}' command")));
    }
    let end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(at + 1));
    let end = end.filter(|&end| end <= call.count()).ok_or_else(Fail::syntax)?;
    Ok((&call.args[at + 1..end], end))
}

/// The rule for two scores of one member.
#[derive(Clone, Copy)]
enum Sum {
    Add,
    Least,
    Most,
}

struct Wanted<'a> {
    keys: &'a [Vec<u8>],
    weights: Vec<f64>,
    sum: Sum,
    scores: bool,
}

impl<'a> Wanted<'a> {
    fn parse(call: &'a Call, name: &str, at: usize) -> Result<Wanted<'a>, Fail> {
        let (keys, end) = counted(call, name, at)?;
        let mut wanted = Wanted { keys, weights: vec![1.0; keys.len()], sum: Sum::Add, scores: false };
        let (stores, sums, mut n) = (name.ends_with("store"), !name.starts_with("zdiff"), end);
        while n < call.count() {
            match call.arg(n).to_ascii_lowercase().as_slice() {
                b"weights" if sums && n + keys.len() < call.count() => {
                    let weight =
                        |arg: &Vec<u8>| parse_float(arg).ok_or_else(|| Fail::new("weight value is not a float"));
                    wanted.weights = call.args[n + 1..][..keys.len()].iter().map(weight).collect::<Result<_, _>>()?;
                    n += keys.len();
                }
                b"aggregate" if sums && n + 1 < call.count() => {
                    wanted.sum = match call.arg(n + 1).to_ascii_lowercase().as_slice() {
                        b"sum" => Sum::Add,
                        b"min" => Sum::Least,
                        b"max" => Sum::Most,
                        _ => return Err(Fail::syntax()),
                    };
                    n += 1;
                }
                b"withscores" if !stores => wanted.scores = true,
                _ => return Err(Fail::syntax()),
            }
            n += 1;
        }
        Ok(wanted)
    }

    /// The members of the result, in order. A set counts as a sorted set whose scores are 1. One set is
    /// held at a time, beside the result.
    async fn combined(&self, call: &Call, how: &str) -> Result<Vec<Member>, Fail> {
        let mut result: HashMap<Vec<u8>, f64> = HashMap::new();
        let (mut looked, mut seen, mut again, mut room) = (Looked::default(), HashSet::new(), 0, Room::new(call));
        for (n, (key, weight)) in self.keys.iter().zip(&self.weights).enumerate() {
            let of_key = match call.get(key).await? {
                Some(object) if object.kind() == Type::Set => {
                    decode(&object, Type::Set)?.into_iter().map(|name| (1.0, name)).collect()
                }
                _ => members(call, key).await?,
            };
            let weighted = |(score, name): Member| (name, number(score * weight));
            let of_key: HashMap<Vec<u8>, f64> = of_key.into_iter().map(weighted).collect();
            again += if seen.insert(key) { 0 } else { of_key.len() };
            if again > AGAIN && call.draft.is_some() {
                return Err(Fail::new(format!("keys that are named again have more than {AGAIN} members")));
            }
            looked.at(call, result.len() + of_key.len()).await;
            match how {
                _ if n == 0 => result = of_key,
                "zdiff" => result.retain(|name, _| !of_key.contains_key(name)),
                "zinter" => {
                    result.retain(|name, _| of_key.contains_key(name));
                    result.iter_mut().for_each(|(name, score)| *score = self.sum(*score, of_key[name]));
                }
                _ => {
                    for (name, score) in of_key {
                        match result.get_mut(&name) {
                            Some(before) => *before = self.sum(*before, score),
                            None => {
                                room.take(name.len())?;
                                result.insert(name, score);
                            }
                        }
                    }
                }
            }
        }
        let mut result: Vec<Member> = result.into_iter().map(|(name, score)| (score, name)).collect();
        sort(&mut result);
        Ok(result)
    }

    fn sum(&self, one: f64, other: f64) -> f64 {
        match self.sum {
            Sum::Add => number(one + other),
            // Of two zeros the first stays.
            Sum::Least if other < one => other,
            Sum::Most if other > one => other,
            Sum::Least | Sum::Most => one,
        }
    }
}

/// Not a number counts as 0.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// BZPOPMIN and BZPOPMAX: from the first key that has a member.
async fn first(call: &Call, keys: &[Vec<u8>], largest: bool) -> Result<Option<Reply>, Fail> {
    let pop = async |call: &Call, keys: &[Vec<u8>]| -> Result<Option<Reply>, Fail> {
        for key in keys {
            if let Some((score, name)) = pop_from(call, key, largest, 1).await?.pop() {
                let told = vec![Reply::bulk(key.as_slice()), Reply::bulk(name), Reply::Double(score)];
                return Ok(Some(Reply::Array(told)));
            }
        }
        Ok(None)
    };
    Box::pin(first_of(call, keys, pop)).await
}

/// The arguments of ZMPOP: keys, whether the largest, members at most.
struct Popped<'a>(&'a [Vec<u8>], bool, usize);

impl<'a> Popped<'a> {
    fn parse(call: &'a Call, at: usize) -> Result<Popped<'a>, Fail> {
        let (keys, at) = numbered(call, at)?;
        let largest = match call.arg(at) {
            arg if is(arg, "max") => true,
            arg if is(arg, "min") => false,
            _ => return Err(Fail::syntax()),
        };
        Ok(Popped(keys, largest, most(&call.args[at + 1..])?))
    }

    async fn pop(&self, call: &Call) -> Result<Option<Reply>, Fail> {
        let pair = |(score, name): &Member| Reply::Array(vec![Reply::bulk(name.as_slice()), Reply::Double(*score)]);
        let pop = async |call: &Call, keys: &[Vec<u8>]| -> Result<Option<Reply>, Fail> {
            for key in keys {
                let taken = pop_from(call, key, self.1, self.2).await?;
                if !taken.is_empty() {
                    let taken = Reply::Array(taken.iter().map(pair).collect());
                    return Ok(Some(Reply::Array(vec![Reply::bulk(key.as_slice()), taken])));
                }
            }
            Ok(None)
        };
        Box::pin(first_of(call, self.0, pop)).await
    }
}
