//! Lua's patterns, with a bound on the time of one match.
//!
//! Lua's own matcher goes back over a text for each item that may match more or less of it. A
//! pattern of a few items can take hours, and the clock that ends a script counts a call as one
//! instruction. This matcher looks at the clock itself. It takes the patterns of Lua 5.1, and gives
//! the same results and errors.

use super::library::error;
use super::machine::{Current, MEMORY, late};
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

/// The most bytes of a pattern. Its items are matched within each other, on the thread's stack.
const PATTERN: usize = 1024;
/// Captures of a pattern, at most.
const CAPTURES: usize = 32;
/// Steps between two looks at the clock.
const LOOK: u32 = 4096;
/// Characters without which a pattern is plain text.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// The length of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Len {
    /// Its end was not met yet.
    Open,
    /// It captures its place.
    Place,
    /// Bytes.
    Bytes(usize),
}

/// One match of a pattern with a text.
struct Match<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    captures: Vec<(usize, Len)>,
    until: Option<Instant>,
    steps: u32,
}

type Matched<T> = mlua::Result<Option<T>>;

impl<'a> Match<'a> {
    fn new(text: &'a [u8], pattern: &'a [u8], until: Option<Instant>) -> Match<'a> {
        Match { text, pattern, captures: Vec::new(), until, steps: 0 }
    }

    fn step(&mut self) -> mlua::Result<()> {
        self.steps += 1;
        if self.steps.is_multiple_of(LOOK) && self.until.is_some_and(|until| Instant::now() >= until) {
            return Err(late());
        }
        Ok(())
    }

    /// Whether the pattern matches from here on, and up to where.
    fn from(&mut self, at: usize) -> Matched<usize> {
        self.captures.clear();
        self.rest(at, 0)
    }

    fn byte(&self, p: usize) -> Option<u8> {
        self.pattern.get(p).copied()
    }

    /// Matches the pattern from `p` on with the text from `at` on; where the match ends.
    fn rest(&mut self, mut at: usize, mut p: usize) -> Matched<usize> {
        loop {
            self.step()?;
            let next = self.byte(p + 1);
            match self.byte(p) {
                None => return Ok(Some(at)),
                Some(b'(') if next == Some(b')') => return self.open(at, p + 2, Len::Place),
                Some(b'(') => return self.open(at, p + 1, Len::Open),
                Some(b')') => return self.close(at, p + 1),
                Some(b'$') if next.is_none() => return Ok((at == self.text.len()).then_some(at)),
                Some(b'%') if next == Some(b'b') => {
                    let Some(after) = self.balanced(at, p + 2)? else { return Ok(None) };
                    (at, p) = (after, p + 4);
                    continue;
                }
                Some(b'%') if next == Some(b'f') => {
                    let Some(after) = self.frontier(at, p + 2)? else { return Ok(None) };
                    p = after;
                    continue;
                }
                Some(b'%') if next.is_some_and(|n| n.is_ascii_digit()) => {
                    let Some(after) = self.again(at, next.unwrap_or_default())? else { return Ok(None) };
                    (at, p) = (after, p + 2);
                    continue;
                }
                Some(_) => {}
            }
            let end = self.item_end(p)?;
            let here = self.is_item(at, p, end);
            match self.byte(end) {
                Some(b'?') => {
                    if here && let Some(found) = self.rest(at + 1, end + 1)? {
                        return Ok(Some(found));
                    }
                    p = end + 1;
                }
                Some(b'*') => return self.most(at, p, end),
                Some(b'+') => return if here { self.most(at + 1, p, end) } else { Ok(None) },
                Some(b'-') => return self.least(at, p, end),
                _ if here => (at, p) = (at + 1, end),
                _ => return Ok(None),
            }
        }
    }

    /// As much of an item as there is, and less until the rest matches.
    fn most(&mut self, at: usize, p: usize, end: usize) -> Matched<usize> {
        let mut more = 0;
        while self.is_item(at + more, p, end) {
            self.step()?;
            more += 1;
        }
        for n in (0..=more).rev() {
            if let Some(found) = self.rest(at + n, end + 1)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// As little of an item as lets the rest match.
    fn least(&mut self, mut at: usize, p: usize, end: usize) -> Matched<usize> {
        loop {
            if let Some(found) = self.rest(at, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_item(at, p, end) {
                return Ok(None);
            }
            at += 1;
        }
    }

    fn open(&mut self, at: usize, p: usize, len: Len) -> Matched<usize> {
        if self.captures.len() >= CAPTURES {
            return Err(error("too many captures"));
        }
        self.captures.push((at, len));
        let found = self.rest(at, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, at: usize, p: usize) -> Matched<usize> {
        let open = self.captures.iter().rposition(|&(_, len)| len == Len::Open);
        let n = open.ok_or_else(|| error("invalid pattern capture"))?;
        self.captures[n].1 = Len::Bytes(at - self.captures[n].0);
        let found = self.rest(at, p)?;
        if found.is_none() {
            self.captures[n].1 = Len::Open;
        }
        Ok(found)
    }

    /// The end of a text between a pair of bytes that are balanced.
    fn balanced(&mut self, at: usize, p: usize) -> Matched<usize> {
        let (Some(opens), Some(closes)) = (self.byte(p), self.byte(p + 1)) else {
            return Err(error("unbalanced pattern"));
        };
        if self.text.get(at) != Some(&opens) {
            return Ok(None);
        }
        let mut depth = 1;
        for n in at + 1..self.text.len() {
            self.step()?;
            let byte = self.text[n];
            if byte == closes {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(n + 1));
                }
            } else if byte == opens {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// The place behind a set in the pattern, if the text comes into the set here.
    fn frontier(&mut self, at: usize, p: usize) -> Matched<usize> {
        if self.byte(p) != Some(b'[') {
            return Err(error("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(p)?;
        let before = at.checked_sub(1).map_or(0, |at| self.text[at]);
        let here = self.text.get(at).copied().unwrap_or(0);
        Ok((!self.is_in_set(before, p, end) && self.is_in_set(here, p, end)).then_some(end))
    }

    /// The end of a text that is the same as a capture.
    fn again(&mut self, at: usize, digit: u8) -> Matched<usize> {
        let n = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = n.and_then(|n| self.captures.get(n)).filter(|(_, len)| *len != Len::Open);
        let &(from, len) = capture.ok_or_else(|| error("invalid capture index"))?;
        let Len::Bytes(len) = len else { return Ok(None) };
        self.steps = self.steps.wrapping_add((len / 64) as u32);
        Ok(self.text[at..].starts_with(&self.text[from..from + len]).then_some(at + len))
    }

    /// Where an item of the pattern ends: a byte, a class or a set.
    fn item_end(&self, p: usize) -> mlua::Result<usize> {
        match self.byte(p) {
            Some(b'%') if self.byte(p + 1).is_none() => Err(error("malformed pattern (ends with '%')")),
            Some(b'%') => Ok(p + 2),
            Some(b'[') => {
                let mut end = p + 1 + usize::from(self.byte(p + 1) == Some(b'^'));
                loop {
                    let byte = self.byte(end).ok_or_else(|| error("malformed pattern (missing ']')"))?;
                    end += if byte == b'%' && self.byte(end + 1).is_some() { 2 } else { 1 };
                    if self.byte(end) == Some(b']') {
                        return Ok(end + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Whether the text's byte is one of the pattern's item.
    fn is_item(&self, at: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => is_of_class(byte, self.pattern[p + 1]),
            b'[' => self.is_in_set(byte, p, end),
            one => one == byte,
        }
    }

    /// Whether a byte is in the set that begins at `p` and ends before `end`.
    fn is_in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let but = self.byte(p + 1) == Some(b'^');
        let (mut n, last) = (p + 1 + usize::from(but), end - 1);
        while n < last {
            let one = self.pattern[n];
            let (is, len) = match self.byte(n + 1) {
                Some(class) if one == b'%' => (is_of_class(byte, class), 2),
                Some(b'-') if n + 2 < last => ((one..=self.pattern[n + 2]).contains(&byte), 3),
                _ => (one == byte, 1),
            };
            if is {
                return !but;
            }
            n += len;
        }
        but
    }

    /// A capture of a match that began at `at` and ended before `end`. The first is all of it, if
    /// the pattern captures nothing.
    fn capture(&self, lua: &Lua, n: usize, at: usize, end: usize) -> mlua::Result<Value> {
        let bytes = match self.captures.get(n) {
            None if n == 0 => &self.text[at..end],
            None => return Err(error("invalid capture index")),
            Some((_, Len::Open)) => return Err(error("unfinished capture")),
            Some(&(from, Len::Place)) => return Ok(Value::Number((from + 1) as f64)),
            Some(&(from, Len::Bytes(len))) => &self.text[from..from + len],
        };
        Ok(Value::String(lua.create_string(bytes)?))
    }

    /// All captures. `whole`: the whole match, if there are none.
    fn all(&self, lua: &Lua, at: usize, end: usize, whole: bool) -> mlua::Result<MultiValue> {
        let count = if self.captures.is_empty() && whole { 1 } else { self.captures.len() };
        (0..count).map(|n| self.capture(lua, n, at, end)).collect()
    }
}

/// Whether a byte is of a class that a letter names. Another byte names itself.
fn is_of_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}

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
fn until(call: &Current) -> Option<Instant> {
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

/// Where a text has another first.
fn position(text: &[u8], other: &[u8], until: Option<Instant>) -> Matched<usize> {
    let Some((&first, rest)) = other.split_first() else { return Ok(Some(0)) };
    let mut compared = 0;
    for at in 0..text.len() {
        if text[at] == first {
            let same = text[at + 1..].iter().zip(rest).take_while(|(one, other)| one == other).count();
            if same == rest.len() {
                return Ok(Some(at));
            }
            compared += same + 1;
            if compared > LOOK as usize {
                compared = 0;
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Err(late());
                }
            }
        }
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
    let mut bytes = by.iter().copied();
    while let Some(byte) = bytes.next() {
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
mod tests {
    use super::*;
    use farmem_protocol::random::Random;
    use mlua::{LuaOptions, StdLib};

    /// A machine whose table `own` has Lua's functions, and `ours` those of this module.
    fn both() -> Lua {
        let lua = Lua::new_with(StdLib::STRING, LuaOptions::default()).unwrap();
        let strings = lua.globals().raw_get::<Table>("string").unwrap();
        let own = lua.create_table().unwrap();
        for name in ["find", "match", "gmatch", "gsub"] {
            own.raw_set(name, strings.raw_get::<Function>(name).unwrap()).unwrap();
        }
        install(&lua, &strings, &Current::default()).unwrap();
        lua.globals().raw_set("own", own).unwrap();
        lua.load(
            r#"
            function said(of, name, ...)
                if name == "gmatch" then
                    local all = {}
                    local ok, e = pcall(function(...)
                        for a, b, c in of.gmatch(...) do
                            all[#all + 1] = tostring(a) .. "," .. tostring(b) .. "," .. tostring(c)
                            if #all > 50 then break end
                        end
                    end, ...)
                    local text = ok and "" or "error"
                    for _, one in pairs(all) do text = text .. one .. ";" end
                    return text
                end
                local found = { pcall(of[name], ...) }
                if not found[1] then return "error" end
                local text = ""
                for n = 2, 8 do text = text .. tostring(found[n]) .. ";" end
                return text
            end
            "#,
        )
        .exec()
        .unwrap();
        lua
    }

    fn same(lua: &Lua, name: &str, args: &[Value]) {
        let said = lua.globals().raw_get::<Function>("said").unwrap();
        let of = |of: &str| {
            let table = lua.globals().raw_get::<Table>(of).unwrap();
            let all = [Value::Table(table), Value::String(lua.create_string(name).unwrap())];
            said.call::<LuaString>(all.into_iter().chain(args.iter().cloned()).collect::<MultiValue>()).unwrap()
        };
        let [own, ours] = [of("own"), of("string")];
        assert_eq!(ours.to_string_lossy(), own.to_string_lossy(), "{name} {args:?}");
    }

    #[test]
    fn results_are_those_of_lua() {
        let (lua, mut numbers) = (both(), Random::new(7));
        const ITEMS: [&str; 40] = [
            "a", "b", ".", "%a", "%d", "%s", "%w", "%A", "[ab]", "[^a]", "[%d-]", "[a-c]", "[]a]", "[^]]", "%%", "%.",
            "*", "+", "-", "?", "(", ")", "()", "%1", "%2", "%b()", "%bab", "%f[%a]", "%f[^b]", "^", "$", "[", "%",
            "(a*)", "(.-)", "(b+)", "x", "1", " ", "%z",
        ];
        const BYTES: &[u8] = b"aaabbbc()1 \0.-%^$]x";
        const BY: [&str; 8] = ["<%0>", "%1", "%2%1", "", "x%%y", "%", "%a", "plain"];
        let string = |bytes: &[u8]| Value::String(lua.create_string(bytes).unwrap());
        for _ in 0..6000 {
            let text: Vec<u8> = (0..numbers.index(12)).map(|_| BYTES[numbers.index(BYTES.len())]).collect();
            let pattern: String = (0..numbers.index(6)).map(|_| ITEMS[numbers.index(ITEMS.len())]).collect();
            let (text, pattern) = (string(&text), string(pattern.as_bytes()));
            let from = Value::Number(numbers.index(9) as f64 - 4.0);
            let args = [text.clone(), pattern.clone(), from];
            same(&lua, "find", &args);
            same(&lua, "match", &args);
            same(&lua, "match", &args[..2]);
            same(&lua, "gmatch", &args[..2]);
            let by = string(BY[numbers.index(BY.len())].as_bytes());
            same(&lua, "gsub", &[text.clone(), pattern.clone(), by.clone()]);
            same(&lua, "gsub", &[text, pattern, by, Value::Number(numbers.index(3) as f64)]);
        }
    }

    #[test]
    fn replacements_come_from_tables_and_functions() {
        let lua = both();
        let text = |code: &str| lua.load(format!("return tostring({code})")).eval::<String>().unwrap();
        for code in [
            "OF.gsub('hello world', '%w+', {hello = 'bye', world = false})",
            "OF.gsub('hello world', '(%w)(%w*)', function(a, b) return b .. a end)",
            "OF.gsub('abc', '%w', function() end)",
            "OF.gsub(12345, 3, 'x')",
            "OF.find('a.b', '.', 1, true)",
            "OF.find('abc', '', 10)",
            "select('#', OF.match('abc', '()b()'))",
            "pcall(OF.gsub, 'abc', 'b', function() return {} end)",
            "pcall(OF.find, nil, 'b')",
            "pcall(OF.gsub, 'abc', 'b')",
        ] {
            let [own, ours] = ["own", "string"].map(|of| text(&code.replace("OF", of)));
            assert_eq!(ours, own, "{code}");
        }
    }
}
