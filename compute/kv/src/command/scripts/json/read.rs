//! Reads JSON as redis's `cjson` does, which takes more than JSON: NaN, infinity, hexadecimal numbers, leading zeros.

use super::{Current, DEPTH, LOOK, Settings, in_time, wrong};
use mlua::{Lua, LuaSerdeExt, Value};

/// The value of a text.
///
/// # Errors
/// It is no JSON, or too deep.
pub fn decode(lua: &Lua, text: &[u8], settings: Settings, call: &Current) -> mlua::Result<Value> {
    if text.len() >= 2 && text[..2].contains(&0) {
        return Err(wrong("JSON parser does not support UTF-16 or UTF-32"));
    }
    let mut reader = Reader { lua, call, values: 0, text, at: 0, settings, depth: 0 };
    let first = reader.next();
    let value = reader.value(first)?;
    match reader.next() {
        (_, Token::End) => Ok(value),
        other => Err(expected("the end", &other)),
    }
}

/// What a text consists of.
enum Token {
    /// One of `{}[],:`.
    Sign(u8),
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    End,
    Wrong(&'static str),
}

/// A token, and where it begins; of a wrong one, where it is wrong.
type Placed = (usize, Token);

fn expected(what: &str, (at, found): &Placed) -> mlua::Error {
    let found = match found {
        Token::Wrong(why) => why,
        Token::Sign(b'{') => "T_OBJ_BEGIN",
        Token::Sign(b'}') => "T_OBJ_END",
        Token::Sign(b'[') => "T_ARR_BEGIN",
        Token::Sign(b']') => "T_ARR_END",
        Token::Sign(b':') => "T_COLON",
        Token::Sign(_) => "T_COMMA",
        Token::Text(_) => "T_STRING",
        Token::Number(_) => "T_NUMBER",
        Token::Boolean(_) => "T_BOOLEAN",
        Token::Null => "T_NULL",
        Token::End => "T_END",
    };
    wrong(format!("Expected {what} but found {found} at character {}", at + 1))
}

struct Reader<'a> {
    lua: &'a Lua,
    call: &'a Current,
    /// Values that were read.
    values: u32,
    text: &'a [u8],
    at: usize,
    settings: Settings,
    depth: u32,
}

impl Reader<'_> {
    /// The byte so many places on; 0 behind the end.
    fn peek(&self, n: usize) -> u8 {
        self.text.get(self.at + n).copied().unwrap_or(0)
    }

    fn next(&mut self) -> Placed {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let rest = self.text.get(at..).unwrap_or_default();
        let word = |word: &str| rest.starts_with(word.as_bytes());
        let (len, token) = match self.peek(0) {
            0 => (0, Token::End),
            sign @ (b'{' | b'}' | b'[' | b']' | b',' | b':') => (1, Token::Sign(sign)),
            b'"' => {
                self.at += 1;
                return match self.string() {
                    Ok(text) => (at, Token::Text(text)),
                    Err(why) => (self.at, Token::Wrong(why)),
                };
            }
            b'-' | b'0'..=b'9' if !self.settings.reads_invalid && is_invalid(rest) => {
                (0, Token::Wrong("invalid number"))
            }
            b'-' | b'0'..=b'9' => number_of(rest),
            _ if word("true") => (4, Token::Boolean(true)),
            _ if word("false") => (5, Token::Boolean(false)),
            _ if word("null") => (4, Token::Null),
            b'i' | b'I' | b'n' | b'N' | b'+' if self.settings.reads_invalid && is_invalid(rest) => number_of(rest),
            _ => (0, Token::Wrong("invalid token")),
        };
        self.at += len;
        (at, token)
    }

    /// A text behind its first quote.
    fn string(&mut self) -> Result<Vec<u8>, &'static str> {
        let mut text = Vec::new();
        loop {
            let byte = self.peek(0);
            match byte {
                b'"' => {
                    self.at += 1;
                    return Ok(text);
                }
                0 => return Err("unexpected end of string"),
                b'\\' => {
                    let sign = match self.peek(1) {
                        b'u' => {
                            self.unicode(&mut text).ok_or("invalid unicode escape code")?;
                            continue;
                        }
                        sign @ (b'"' | b'\\' | b'/') => sign,
                        b'b' => 8,
                        b't' => 9,
                        b'n' => 10,
                        b'f' => 12,
                        b'r' => 13,
                        _ => return Err("invalid escape code"),
                    };
                    text.push(sign);
                    self.at += 2;
                }
                _ => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    /// A sign by its number, or by two halves.
    fn unicode(&mut self, text: &mut Vec<u8>) -> Option<()> {
        let unit = |from: usize| {
            let digits = self.text.get(self.at + from..self.at + from + 4)?;
            digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
        };
        let mut len = 6;
        let mut code = unit(2)?;
        if code & 0xf800 == 0xd800 {
            let low = unit(8)?;
            if code & 0x400 != 0 || self.peek(6) != b'\\' || self.peek(7) != b'u' || low & 0xfc00 != 0xdc00 {
                return None;
            }
            code = ((code & 0x3ff) << 10 | low & 0x3ff) + 0x1_0000;
            len = 12;
        }
        let sign = char::from_u32(code)?;
        text.extend_from_slice(sign.encode_utf8(&mut [0; 4]).as_bytes());
        self.at += len;
        Some(())
    }

    fn value(&mut self, token: Placed) -> mlua::Result<Value> {
        self.values += 1;
        if self.values.is_multiple_of(LOOK) {
            in_time(self.call)?;
        }
        Ok(match token.1 {
            Token::Text(text) => Value::String(self.lua.create_string(text)?),
            Token::Number(number) => Value::Number(number),
            Token::Boolean(is) => Value::Boolean(is),
            Token::Null => self.lua.null(),
            Token::Sign(b'{') => self.object()?,
            Token::Sign(b'[') => self.array()?,
            _ => return Err(expected("value", &token)),
        })
    }

    fn descend(&mut self) -> mlua::Result<()> {
        self.depth += 1;
        if self.depth > DEPTH || f64::from(self.depth) > self.settings.depths[1] {
            let text = format!("Found too many nested data structures ({}) at character {}", self.depth, self.at);
            return Err(wrong(text));
        }
        Ok(())
    }

    fn object(&mut self) -> mlua::Result<Value> {
        self.descend()?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if !matches!(token.1, Token::Sign(b'}')) {
            loop {
                let (at, Token::Text(key)) = token else { return Err(expected("object key string", &token)) };
                let _ = at;
                token = self.next();
                if !matches!(token.1, Token::Sign(b':')) {
                    return Err(expected("colon", &token));
                }
                let first = self.next();
                table.raw_set(self.lua.create_string(key)?, self.value(first)?)?;
                token = self.next();
                match token.1 {
                    Token::Sign(b'}') => break,
                    Token::Sign(b',') => token = self.next(),
                    _ => return Err(expected("comma or object end", &token)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }

    fn array(&mut self) -> mlua::Result<Value> {
        self.descend()?;
        let table = self.lua.create_table()?;
        let mut token = self.next();
        if !matches!(token.1, Token::Sign(b']')) {
            for n in 1.. {
                table.raw_set(n, self.value(token)?)?;
                token = self.next();
                match token.1 {
                    Token::Sign(b']') => break,
                    Token::Sign(b',') => token = self.next(),
                    _ => return Err(expected("comma or array end", &token)),
                }
            }
        }
        self.depth -= 1;
        Ok(Value::Table(table))
    }
}

/// Whether a number is none of JSON's, though C's `strtod` may take it.
fn is_invalid(text: &[u8]) -> bool {
    let rest = text.strip_prefix(b"-").unwrap_or(text);
    match rest {
        [b'+', ..] => true,
        [b'0', next, ..] => next.eq_ignore_ascii_case(&b'x') || next.is_ascii_digit(),
        [b'0'..=b'9', ..] => false,
        _ => [b"inf", b"nan"].iter().any(|word| rest.len() >= 3 && rest[..3].eq_ignore_ascii_case(*word)),
    }
}

/// The number at the beginning of a text, and its length, as C's `strtod` reads it.
fn number_of(text: &[u8]) -> (usize, Token) {
    let sign = usize::from(matches!(text.first(), Some(b'-' | b'+')));
    let negative = text.first() == Some(&b'-');
    let rest = &text[sign..];
    let begins = |word: &[u8]| rest.len() >= word.len() && rest[..word.len()].eq_ignore_ascii_case(word);
    let found = if begins(b"infinity") {
        Some((8, f64::INFINITY))
    } else if begins(b"inf") {
        Some((3, f64::INFINITY))
    } else if begins(b"nan") {
        Some((3, f64::NAN))
    } else {
        hexadecimal(rest).or_else(|| decimal(rest))
    };
    match found {
        Some((len, number)) => (sign + len, Token::Number(if negative { -number } else { number })),
        None => (0, Token::Wrong("invalid number")),
    }
}

fn digits(text: &[u8], is_digit: impl Fn(&u8) -> bool) -> usize {
    text.iter().take_while(|byte| is_digit(byte)).count()
}

/// The length of an exponent, which needs digits.
fn exponent(text: &[u8], letter: u8) -> usize {
    let [first, rest @ ..] = text else { return 0 };
    if !first.eq_ignore_ascii_case(&letter) {
        return 0;
    }
    let sign = usize::from(matches!(rest.first(), Some(b'-' | b'+')));
    match digits(&rest[sign..], u8::is_ascii_digit) {
        0 => 0,
        n => 1 + sign + n,
    }
}

fn decimal(text: &[u8]) -> Option<(usize, f64)> {
    let before = digits(text, u8::is_ascii_digit);
    let mut len = before;
    if text.get(len) == Some(&b'.') {
        let behind = digits(&text[len + 1..], u8::is_ascii_digit);
        if before + behind > 0 {
            len += 1 + behind;
        }
    }
    if len == 0 {
        return None;
    }
    len += exponent(&text[len..], b'e');
    let number = std::str::from_utf8(&text[..len]).ok()?;
    Some((len, number.parse().ok()?))
}

fn hexadecimal(text: &[u8]) -> Option<(usize, f64)> {
    let [b'0', b'x' | b'X', rest @ ..] = text else { return None };
    let value = |digits: &[u8]| {
        digits.iter().fold(0.0, |all, digit| all * 16.0 + f64::from(char::from(*digit).to_digit(16).unwrap_or(0)))
    };
    let before = digits(rest, u8::is_ascii_hexdigit);
    let (mut number, mut len) = (value(&rest[..before]), before);
    if rest.get(len) == Some(&b'.') {
        let behind = digits(&rest[len + 1..], u8::is_ascii_hexdigit);
        if before + behind > 0 {
            number += value(&rest[len + 1..][..behind]) / 16f64.powi(behind.min(400) as i32);
            len += 1 + behind;
        }
    }
    if len == 0 {
        // A nought, and what is behind it.
        return Some((1, 0.0));
    }
    let power = exponent(&rest[len..], b'p');
    if power > 0 {
        let by: f64 = std::str::from_utf8(&rest[len + 1..len + power]).ok()?.parse().ok()?;
        number *= by.clamp(-5000.0, 5000.0).exp2();
    }
    Some((2 + len + power, number))
}
