//! Ranges of sorted sets: by rank, by score, by member.

use super::sorted::{Member, flat, from_bytes, score, shown};
use super::{put_at, view};
use crate::command::args::{int, parse_float, range};
use crate::command::{Answered, Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use crate::segments::Working;
use crate::shard::Trouble;
use std::ops::Range;

/// A bound of scores: the number, and whether it is outside.
#[derive(Clone, Copy)]
pub struct Bound(f64, bool);

impl Bound {
    pub fn of(arg: &[u8]) -> Result<Bound, Fail> {
        let (number, open) = arg.strip_prefix(b"(").map_or((arg, false), |rest| (rest, true));
        // By strtod alone, as redis does it: blanks before a number are passed over, and nothing is 0.
        let blank = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
        let begin = number.iter().take_while(|byte| blank(byte)).count();
        let number = if number.is_empty() { b"0" } else { &number[begin..] };
        let number = parse_float(number).ok_or_else(|| Fail::new("min or max is not a float"))?;
        Ok(Bound(number, open))
    }
}

/// A bound of members.
#[derive(Clone)]
pub enum Edge {
    Lowest,
    Highest,
    Within(Vec<u8>),
    Beyond(Vec<u8>),
}

impl Edge {
    fn of(arg: &[u8]) -> Result<Edge, Fail> {
        match arg {
            b"-" => Ok(Edge::Lowest),
            b"+" => Ok(Edge::Highest),
            [b'[', member @ ..] => Ok(Edge::Within(member.to_vec())),
            [b'(', member @ ..] => Ok(Edge::Beyond(member.to_vec())),
            _ => Err(Fail::new("min or max not valid string range item")),
        }
    }
}

/// Which members a range holds.
#[derive(Clone)]
pub enum Span {
    Ranks(i64, i64),
    Scores(Bound, Bound),
    Members(Edge, Edge),
}

impl Span {
    /// From the lower and the upper bound.
    pub fn scores(low: &[u8], high: &[u8]) -> Result<Span, Fail> {
        Ok(Span::Scores(Bound::of(low)?, Bound::of(high)?))
    }

    /// From the lower and the upper bound.
    pub fn members(low: &[u8], high: &[u8]) -> Result<Span, Fail> {
        Ok(Span::Members(Edge::of(low)?, Edge::of(high)?))
    }

    /// Whether it holds the member at a rank of `len`.
    pub fn holds(&self, rank: usize, len: usize, (score, name): &Member) -> bool {
        match self {
            Span::Ranks(first, last) => range(*first, *last, len).is_some_and(|(from, to)| (from..to).contains(&rank)),
            Span::Scores(low, high) => {
                (*score > low.0 || !low.1 && *score == low.0) && (*score < high.0 || !high.1 && *score == high.0)
            }
            Span::Members(low, high) => {
                let above = match low {
                    Edge::Lowest => true,
                    Edge::Highest => false,
                    Edge::Within(low) => name >= low,
                    Edge::Beyond(low) => name > low,
                };
                above
                    && match high {
                        Edge::Lowest => false,
                        Edge::Highest => true,
                        Edge::Within(high) => name <= high,
                        Edge::Beyond(high) => name < high,
                    }
            }
        }
    }

    /// The ranks of those that it holds of a set in segments; from the highest score on if it is
    /// `reversed`. `None`: a range of members.
    ///
    /// # Errors
    /// Segments are wanted that are not here.
    pub fn ranks(&self, value: &Working<'_>, reversed: bool) -> Result<Option<Range<usize>>, Trouble> {
        let len = value.count();
        Ok(match self {
            Span::Ranks(first, last) => {
                let of = range(*first, *last, len).map_or(0..0, |(from, to)| from..to);
                Some(if reversed { len - of.end..len - of.start } else { of })
            }
            Span::Scores(low, high) => {
                let (from, to) = (value.below(low.0, low.1), value.below(high.0, !high.1));
                let (from, to) = (from?, to?);
                Some(from..to.max(from))
            }
            Span::Members(..) => None,
        })
    }

    /// How many of these it holds.
    pub fn count(&self, all: &[Member]) -> i64 {
        all.iter().enumerate().filter(|(rank, member)| self.holds(*rank, all.len(), member)).count() as i64
    }
}

#[derive(Clone, Copy, PartialEq)]
enum By {
    Rank,
    Score,
    Name,
}

/// ZRANGE and its relatives, as a command's name and arguments ask for them.
pub async fn run(name: &str, call: &Call) -> Answered {
    let stores = name == "zrangestore";
    let args = if stores { &call.args[2..] } else { &call.args[1..] };
    let general = stores || name == "zrange";
    let mut reversed = name.starts_with("zrev");
    let mut by = match name {
        "zrangebyscore" | "zrevrangebyscore" => By::Score,
        "zrangebylex" | "zrevrangebylex" => By::Name,
        _ => By::Rank,
    };
    let (mut scores, mut limit, mut n) = (false, None, 3);
    while n < args.len() {
        match args[n].to_ascii_lowercase().as_slice() {
            b"withscores" if !stores => scores = true,
            b"limit" if n + 2 < args.len() => {
                limit = Some((int(&args[n + 1])?, int(&args[n + 2])?));
                n += 2;
            }
            b"rev" if general => reversed = true,
            b"byscore" if general => by = By::Score,
            b"bylex" if general => by = By::Name,
            _ => return Err(Fail::syntax()),
        }
        n += 1;
    }
    if limit.is_some_and(|(_, most)| most != -1) && by == By::Rank {
        return Err(Fail::new("syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX"));
    }
    if scores && by == By::Name {
        return Err(Fail::new("syntax error, WITHSCORES not supported in combination with BYLEX"));
    }
    let (low, high) = if reversed && by != By::Rank { (&args[2], &args[1]) } else { (&args[1], &args[2]) };
    let span = match by {
        By::Rank => Span::Ranks(int(low)?, int(high)?),
        By::Score => Span::scores(low, high)?,
        By::Name => Span::members(low, high)?,
    };
    let (skip, most) = limit.filter(|_| by != By::Rank).unwrap_or((0, -1));
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let among = |mut all: Vec<Member>| -> Vec<Member> {
        if reversed {
            all.reverse();
        }
        let len = all.len();
        let wanted = all.into_iter().enumerate().filter(|(rank, member)| span.holds(*rank, len, member));
        wanted.map(|(_, member)| member).skip(skip).take(most).collect()
    };
    let see = |there: Result<&[u8], &Working<'_>>| {
        let value = match there {
            Ok(bytes) => return Ok(among(from_bytes(bytes))),
            Err(value) => value,
        };
        let Some(of) = span.ranks(value, reversed)? else { return Ok(among(from_bytes(&value.whole()?))) };
        let (skip, most) = (skip.min(of.len()), most.min(of.len() - skip.min(of.len())));
        let of = if reversed { of.end - skip - most..of.end - skip } else { of.start + skip..of.start + skip + most };
        let window = value.window(of)?;
        let mut found: Vec<Member> = window.units().map(|unit| (score(unit.first), unit.name.to_vec())).collect();
        if reversed {
            found.reverse();
        }
        Ok(found)
    };
    let mut found = view(call, &args[0], Type::SortedSet, see).await?;
    if !stores {
        return Ok(shown(&found, scores, call.version()));
    }
    if reversed {
        found.reverse();
    }
    put_at(call, call.arg(1), Type::SortedSet, &flat(&found)).await?;
    Ok(Reply::Int(found.len() as i64))
}
