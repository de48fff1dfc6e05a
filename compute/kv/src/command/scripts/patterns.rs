//! Lua's patterns, with a bound on the time of one match.
//!
//! Lua's own matcher goes back over a text for each item that may match more or less of it. A
//! pattern of a few items can take hours, and the clock that ends a script counts a call as one
//! instruction. This matcher looks at the clock itself. It takes the patterns of Lua 5.1, and gives
//! the same results and errors.

mod matcher;

use self::matcher::{Match, Matched};
use super::library::error;
use super::machine::{Current, MEMORY, Until, late};
use memchr::memmem::Finder;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;

/// The most bytes of a pattern. Its items are matched within each other, on the thread's stack.
const PATTERN: usize = 1024;
/// Bytes of a text that are searched for another between looks at the clock.
const STRETCH: usize = 1 << 20;
/// Bytes of what comes in place of a match between looks at the clock.
const FILLED: usize = 4096;
/// Characters without which a pattern is plain text.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// A pattern as Lua 5.1 reads it: up to a zero byte.
fn readable(pattern: &[u8]) -> mlua::Result<&[u8]> {
    if pattern.len() > PATTERN {
        return Err(error(format!("the pattern is longer than {PATTERN} bytes")));
    }
    Ok(pattern.split(|&byte| byte == 0).next().unwrap_or_default())
}

/// A pattern without the sign that it matches at the beginning only, and whether it had it.
fn anchored(pattern: &[u8]) -> (&[u8], bool) {
    pattern.strip_prefix(b"^").map_or((pattern, false), |rest| (rest, true))
}

/// Whether Lua would take a value for a string.
fn text(lua: &Lua, value: Option<&Value>) -> Option<LuaString> {
    match value? {
        value @ (Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
            lua.coerce_string(value.clone()).ok().flatten()
        }
        _ => None,
    }
}

/// Puts this matcher into the table `string`. Calls with other arguments than it takes go to Lua's
/// own functions, which refuse them.
pub fn install(lua: &Lua, strings: &Table, call: &Current) -> mlua::Result<()> {
    for name in ["find", "match"] {
        let (own, call) = (strings.raw_get::<Function>(name)?, Rc::clone(call));
        let function = lua.create_function(move |lua, args: MultiValue| {
            let from = lua.coerce_number(args.get(2).cloned().unwrap_or(Value::Nil))?;
            let refused = from.is_none() && args.get(2).is_some_and(|from| !from.is_nil());
            match (text(lua, args.front()), text(lua, args.get(1))) {
                (Some(text), Some(pattern)) if !refused => {
                    let plain = name == "find"
                        && args.get(3).is_some_and(|plain| !matches!(plain, Value::Nil | Value::Boolean(false)));
                    find(
                        lua,
                        (&text.as_bytes(), &pattern.as_bytes()),
                        from.unwrap_or(1.0),
                        (name == "find", plain),
                        &call,
                    )
                }
                _ => own.call(args),
            }
        })?;
        strings.raw_set(name, function)?;
    }
    let (own, now) = (strings.raw_get::<Function>("gmatch")?, Rc::clone(call));
    let function =
        lua.create_function(move |lua, args: MultiValue| match (text(lua, args.front()), text(lua, args.get(1))) {
            (Some(text), Some(pattern)) => each(lua, text, pattern, &now).map(Value::Function),
            _ => own.call(args),
        })?;
    strings.raw_set("gmatch", function)?;
    let (own, now) = (strings.raw_get::<Function>("gsub")?, Rc::clone(call));
    let function = lua.create_function(move |lua, args: MultiValue| {
        let most = lua.coerce_number(args.get(3).cloned().unwrap_or(Value::Nil))?;
        let refused = most.is_none() && args.get(3).is_some_and(|most| !most.is_nil());
        let by = match args.get(2) {
            Some(by @ (Value::Table(_) | Value::Function(_))) => Some(by.clone()),
            by => text(lua, by).map(Value::String),
        };
        match (text(lua, args.front()), text(lua, args.get(1)), by) {
            (Some(text), Some(pattern), Some(by)) if !refused => {
                replace(lua, (&text.as_bytes(), &pattern.as_bytes()), &by, most, &now)
            }
            _ => own.call::<MultiValue>(args),
        }
    })?;
    strings.raw_set("gsub", function)
}

/// When the script that runs must have ended.
fn until(call: &Current) -> Option<Until> {
    call.borrow().as_ref().map(|(_, until)| *until)
}

/// `string.find` and `string.match`.
fn find(
    lua: &Lua,
    (text, pattern): (&[u8], &[u8]),
    from: f64,
    (finds, plain): (bool, bool),
    call: &Current,
) -> mlua::Result<MultiValue> {
    let (len, from) = (text.len() as f64, from.trunc());
    let from = if from < 0.0 { from + len + 1.0 } else { from };
    let from = (from - 1.0).clamp(0.0, len) as usize;
    let place = |n: usize| Value::Number(n as f64);
    if finds && (plain || !readable(pattern)?.iter().any(|byte| SPECIAL.contains(byte))) {
        let found = position(&text[from..], pattern, until(call))?.map(|at| from + at);
        return Ok(match found {
            Some(at) => [place(at + 1), place(at + pattern.len())].into_iter().collect(),
            None => [Value::Nil].into_iter().collect(),
        });
    }
    let (pattern, anchor) = anchored(readable(pattern)?);
    let mut matches = Match::new(text, pattern, until(call));
    for at in from..=if anchor { from } else { text.len() } {
        if let Some(end) = matches.from(at)? {
            let mut values = matches.all(lua, at, end, !finds)?;
            if finds {
                values.push_front(place(end));
                values.push_front(place(at + 1));
            }
            return Ok(values);
        }
    }
    Ok([Value::Nil].into_iter().collect())
}

/// Where a text has another first. The time grows with the bytes of both, and the clock is looked
/// at after each [`STRETCH`] of them.
fn position(text: &[u8], other: &[u8], until: Option<Until>) -> Matched<usize> {
    let finder = Finder::new(other);
    // Each stretch overlaps the one before by what another's beginning can take there.
    let stretch = STRETCH.max(other.len());
    let mut at = 0;
    while at + other.len() <= text.len() {
        let end = text.len().min(at + stretch + other.len());
        if let Some(found) = finder.find(&text[at..end]) {
            return Ok(Some(at + found));
        }
        if until.is_some_and(Until::is_over) {
            return Err(late());
        }
        at += stretch;
    }
    Ok(None)
}

/// `string.gmatch`: a function that returns the next match each time.
fn each(lua: &Lua, text: LuaString, pattern: LuaString, call: &Current) -> mlua::Result<Function> {
    readable(&pattern.as_bytes())?;
    let (next, call) = (Cell::new(0), Rc::clone(call));
    lua.create_function(move |lua, ()| {
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let mut matches = Match::new(&text, readable(&pattern)?, until(&call));
        for at in next.get()..=text.len() {
            if let Some(end) = matches.from(at)? {
                next.set(end + usize::from(end == at));
                return matches.all(lua, at, end, true);
            }
        }
        next.set(text.len() + 1);
        Ok(MultiValue::new())
    })
}

/// `string.gsub`.
fn replace(
    lua: &Lua,
    (text, pattern): (&[u8], &[u8]),
    by: &Value,
    most: Option<f64>,
    call: &Current,
) -> mlua::Result<MultiValue> {
    let (pattern, anchor) = anchored(readable(pattern)?);
    let mut matches = Match::new(text, pattern, until(call));
    let (mut out, mut count, mut at) = (Vec::new(), 0u64, 0);
    while most.is_none_or(|most| (count as f64) < most.trunc()) {
        let found = matches.from(at)?;
        if let Some(end) = found {
            count += 1;
            put(lua, &matches, by, (at, end), &mut out)?;
            if out.len() > MEMORY {
                return Err(error("not enough memory"));
            }
        }
        match found {
            Some(end) if end > at => at = end,
            _ if at < text.len() => {
                out.push(text[at]);
                at += 1;
            }
            _ => break,
        }
        if anchor {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
    Ok([Value::String(lua.create_string(&out)?), Value::Number(count as f64)].into_iter().collect())
}

/// Appends what comes in place of a match.
fn put(lua: &Lua, matches: &Match<'_>, by: &Value, (at, end): (usize, usize), out: &mut Vec<u8>) -> mlua::Result<()> {
    let value = match by {
        Value::String(by) => return fill(lua, matches, &by.as_bytes(), (at, end), out),
        Value::Table(by) => by.get::<Value>(matches.capture(lua, 0, at, end)?)?,
        Value::Function(by) => by.call::<Value>(matches.all(lua, at, end, true)?)?,
        _ => Value::Nil,
    };
    match &value {
        Value::Nil | Value::Boolean(false) => out.extend_from_slice(&matches.text[at..end]),
        value => match text(lua, Some(value)) {
            Some(text) => out.extend_from_slice(&text.as_bytes()),
            None => return Err(error(format!("invalid replacement value (a {})", value.type_name()))),
        },
    }
    Ok(())
}

/// Appends a text in which `%1` stands for a capture.
fn fill(lua: &Lua, matches: &Match<'_>, by: &[u8], (at, end): (usize, usize), out: &mut Vec<u8>) -> mlua::Result<()> {
    let (mut bytes, mut looked) = (by.iter().copied(), by.len());
    while let Some(byte) = bytes.next() {
        // What it appends may be empty.
        if looked - bytes.len() >= FILLED {
            looked = bytes.len();
            if matches.until.is_some_and(Until::is_over) {
                return Err(late());
            }
        }
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        // Lua 5.1 takes the zero byte behind a string's end for its last character.
        match bytes.next().unwrap_or(0) {
            b'0' => out.extend_from_slice(&matches.text[at..end]),
            digit @ b'1'..=b'9' => {
                let capture = matches.capture(lua, usize::from(digit - b'1'), at, end)?;
                if let Some(text) = text(lua, Some(&capture)) {
                    out.extend_from_slice(&text.as_bytes());
                }
            }
            other => out.push(other),
        }
        if out.len() > MEMORY {
            return Err(error("not enough memory"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
