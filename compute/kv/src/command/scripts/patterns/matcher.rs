//! One match of a pattern, item by item, with a look at the clock every few thousand steps.

use crate::command::scripts::library::error;
use crate::command::scripts::machine::{Until, late};
use mlua::{Lua, MultiValue, Value};

/// Captures of a pattern, at most.
const CAPTURES: usize = 32;
/// Steps between two looks at the clock.
const LOOK: u64 = 4096;

/// The length of a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Len {
    /// Its end was not met yet.
    Open,
    /// It captures its place.
    Place,
    /// Bytes.
    Bytes(usize),
}

/// One match of a pattern with a text.
pub(super) struct Match<'a> {
    pub(super) text: &'a [u8],
    pub(super) pattern: &'a [u8],
    pub(super) captures: Vec<(usize, Len)>,
    pub(super) until: Option<Until>,
    /// Steps so far, and at how many the clock is looked at next.
    steps: u64,
    look: u64,
}

pub(super) type Matched<T> = mlua::Result<Option<T>>;

impl<'a> Match<'a> {
    pub(super) fn new(text: &'a [u8], pattern: &'a [u8], until: Option<Until>) -> Match<'a> {
        Match { text, pattern, captures: Vec::new(), until, steps: 0, look: LOOK }
    }

    pub(super) fn step(&mut self) -> mlua::Result<()> {
        self.spend(1)
    }

    /// Counts what is done next, and looks at the clock if it is time.
    fn spend(&mut self, steps: u64) -> mlua::Result<()> {
        self.steps += steps;
        if self.steps >= self.look {
            self.look = self.steps + LOOK;
            if self.until.is_some_and(Until::is_over) {
                return Err(late());
            }
        }
        Ok(())
    }

    /// Whether the pattern matches from here on, and up to where.
    pub(super) fn from(&mut self, at: usize) -> Matched<usize> {
        self.captures.clear();
        self.rest(at, 0)
    }

    pub(super) fn byte(&self, p: usize) -> Option<u8> {
        self.pattern.get(p).copied()
    }

    /// Matches the pattern from `p` on with the text from `at` on; where the match ends.
    pub(super) fn rest(&mut self, mut at: usize, mut p: usize) -> Matched<usize> {
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
    pub(super) fn most(&mut self, at: usize, p: usize, end: usize) -> Matched<usize> {
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
    pub(super) fn least(&mut self, mut at: usize, p: usize, end: usize) -> Matched<usize> {
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

    pub(super) fn open(&mut self, at: usize, p: usize, len: Len) -> Matched<usize> {
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

    pub(super) fn close(&mut self, at: usize, p: usize) -> Matched<usize> {
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
    pub(super) fn balanced(&mut self, at: usize, p: usize) -> Matched<usize> {
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
    pub(super) fn frontier(&mut self, at: usize, p: usize) -> Matched<usize> {
        if self.byte(p) != Some(b'[') {
            return Err(error("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(p)?;
        let before = at.checked_sub(1).map_or(0, |at| self.text[at]);
        let here = self.text.get(at).copied().unwrap_or(0);
        Ok((!self.is_in_set(before, p, end) && self.is_in_set(here, p, end)).then_some(end))
    }

    /// The end of a text that is the same as a capture.
    pub(super) fn again(&mut self, at: usize, digit: u8) -> Matched<usize> {
        let n = usize::from(digit).checked_sub(usize::from(b'1'));
        let capture = n.and_then(|n| self.captures.get(n)).filter(|(_, len)| *len != Len::Open);
        let &(from, len) = capture.ok_or_else(|| error("invalid capture index"))?;
        let Len::Bytes(len) = len else { return Ok(None) };
        self.spend(len as u64 / 64)?;
        Ok(self.text[at..].starts_with(&self.text[from..from + len]).then_some(at + len))
    }

    /// Where an item of the pattern ends: a byte, a class or a set.
    pub(super) fn item_end(&self, p: usize) -> mlua::Result<usize> {
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
    pub(super) fn is_item(&self, at: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(at) else { return false };
        match self.pattern[p] {
            b'.' => true,
            b'%' => is_of_class(byte, self.pattern[p + 1]),
            b'[' => self.is_in_set(byte, p, end),
            one => one == byte,
        }
    }

    /// Whether a byte is in the set that begins at `p` and ends before `end`.
    pub(super) fn is_in_set(&self, byte: u8, p: usize, end: usize) -> bool {
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
    pub(super) fn capture(&self, lua: &Lua, n: usize, at: usize, end: usize) -> mlua::Result<Value> {
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
    pub(super) fn all(&self, lua: &Lua, at: usize, end: usize, whole: bool) -> mlua::Result<MultiValue> {
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
