//! HSCAN, SSCAN and ZSCAN.
//!
//! A value that is one object is shown at once. One in segments is shown by some segments at a
//! time, in the order of the names' hashes. The cursor is the lowest hash that is still to come.
//! Segments are cut and joined at other hashes as the value changes, so what was there all the time
//! is shown, and may be shown twice.

use super::{Items, Lying, bulks, sorted, view};
use crate::command::args::{is, parse_int, pattern};
use crate::command::{Call, Fail};
use crate::object::Type;
use crate::resp::Reply;
use crate::segments::Working;

pub async fn scan(call: &Call, kind: Type, step: usize) -> Result<Reply, Fail> {
    let invalid = || Fail::new("invalid cursor");
    let cursor = std::str::from_utf8(call.arg(2)).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.or_else(|| parse_int(call.arg(2)).map(|_| 0)).ok_or_else(invalid)?;
    let (mut names, mut most, mut n) = (None, 10, 3);
    while n < call.count() {
        let value = call.args.get(n + 1).ok_or_else(Fail::syntax)?;
        match call.arg(n) {
            arg if is(arg, "match") => names = Some(pattern(value)?),
            arg if is(arg, "count") => match parse_int(value).and_then(|count| usize::try_from(count).ok()) {
                Some(count) if count > 0 => most = count,
                _ => return Err(Fail::syntax()),
            },
            _ => return Err(Fail::syntax()),
        }
        n += 2;
    }
    let side = usize::from(kind == Type::SortedSet);
    let see = |there: Result<&[u8], &Working<'_>>| {
        let items = |bytes: &[u8]| Lying(bytes).map(<[u8]>::to_vec).collect::<Items>();
        let value = match there {
            Ok(bytes) => return Ok((items(bytes), 0)),
            Err(value) => value,
        };
        let parts = value.parts(side);
        let first = parts.partition_point(|part| part.bound <= cursor).saturating_sub(1);
        let (mut last, mut count) = (first, 0);
        while last < parts.len() && (last == first || count < most) {
            count += parts[last].count as usize;
            last += 1;
        }
        let shown = items(&value.joined(side, &(first..last).collect::<Vec<_>>())?);
        Ok((shown, parts.get(last).map_or(0, |part| part.bound)))
    };
    let (items, next) = view(call, call.arg(1), kind, see).await?;
    let mut found = Vec::new();
    for item in items.chunks(step) {
        let name = &item[side];
        if names.as_ref().is_some_and(|names| !names.matches(name)) {
            continue;
        }
        match kind {
            Type::SortedSet => found.extend([Reply::bulk(name.as_slice()), sorted::text(&item[0])]),
            _ => found.extend(bulks(item)),
        }
    }
    Ok(Reply::Array(vec![Reply::bulk(next.to_string()), Reply::Array(found)]))
}
