//! JSON for scripts, as redis's module `cjson` has it: the same texts, and the same errors.
//!
//! Text passes as the bytes that it is. What a script sets by `encode_max_depth` and its relatives
//! holds until its end, so that it finds the same in every attempt.

mod read;

use super::machine::{Current, in_time};
use mlua::{Lua, LuaSerdeExt, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;

/// Tables within each other, however many a script allows: each takes some of this thread's stack.
const DEPTH: u32 = 1000;
/// Bytes of a text that is written. A table may be in several others, so few tables can be much text.
const LONGEST: usize = 16 << 20;
/// Values that are written by one call.
pub const VALUES: u32 = 1 << 20;
/// Values that are read between looks at the clock.
const LOOK: u32 = 4096;
/// Bytes of a text that is read.
const READ: usize = 4 << 20;

/// What is done with numbers that JSON does not have.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Invalid {
    Refused,
    Written,
    Null,
}

/// What a script may set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether an array of which most is missing is written as an object; how many places there
    /// may be for each value, and up to which place that does not matter.
    sparse: (bool, f64, f64),
    /// Tables within each other that are written, and those that are read.
    depths: [f64; 2],
    precision: f64,
    invalid: Invalid,
    reads_invalid: bool,
    keeps: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        let (sparse, depths, invalid) = ((false, 2.0, 10.0), [1000.0; 2], Invalid::Refused);
        Settings { sparse, depths, precision: 14.0, invalid, reads_invalid: true, keeps: true }
    }
}

/// The settings of a table `cjson`.
pub type Shared = Rc<Cell<Settings>>;

/// The table `cjson`.
pub fn module(lua: &Lua, settings: &Shared, call: &Current) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let (own, now) = (Rc::clone(settings), Rc::clone(call));
    let encode = move |lua: &Lua, args: MultiValue| {
        in_time(&now)?;
        let mut writer = Writer { settings: own.get(), left: VALUES, out: Vec::new() };
        writer.value(only(&args)?, 0)?;
        lua.create_string(writer.out)
    };
    table.raw_set("encode", lua.create_function(encode)?)?;
    let (own, now) = (Rc::clone(settings), Rc::clone(call));
    let decode = move |lua: &Lua, args: MultiValue| {
        let text = lua.coerce_string(only(&args)?.clone())?;
        let text = text.ok_or_else(|| wrong("bad argument #1 to 'decode' (string expected)"))?;
        if text.as_bytes().len() > READ {
            return Err(wrong(format!("the text is longer than {} MiB", READ >> 20)));
        }
        in_time(&now)?;
        read::decode(lua, &text.as_bytes(), own.get(), &now)
    };
    table.raw_set("decode", lua.create_function(decode)?)?;
    add_options(lua, &table, settings)?;
    table.raw_set("null", lua.null())?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    let now = Rc::clone(call);
    table.raw_set("new", lua.create_function(move |lua, _: MultiValue| module(lua, &Shared::default(), &now))?)?;
    Ok(table)
}

fn only(args: &MultiValue) -> mlua::Result<&Value> {
    args.front().filter(|_| args.len() == 1).ok_or_else(|| wrong("bad argument #1 (expected 1 argument)"))
}

/// The functions that set something, and tell what is set.
fn add_options(lua: &Lua, table: &Table, settings: &Shared) -> mlua::Result<()> {
    const MOST: f64 = i32::MAX as f64;
    type Number = (&'static str, (f64, f64), fn(&mut Settings) -> &mut f64);
    let numbers: [Number; 3] = [
        ("encode_max_depth", (1.0, MOST), |all| &mut all.depths[0]),
        ("decode_max_depth", (1.0, MOST), |all| &mut all.depths[1]),
        ("encode_number_precision", (1.0, 14.0), |all| &mut all.precision),
    ];
    for (name, bounds, of) in numbers {
        let own = Rc::clone(settings);
        let set = move |_: &Lua, given: Option<f64>| {
            let mut now = own.get();
            let number = whole(given, *of(&mut now), bounds)?;
            *of(&mut now) = number;
            own.set(now);
            Ok(number)
        };
        table.raw_set(name, lua.create_function(set)?)?;
    }
    // A buffer is never kept.
    type Flag = (&'static str, fn(&mut Settings) -> &mut bool);
    let flags: [Flag; 2] =
        [("decode_invalid_numbers", |all| &mut all.reads_invalid), ("encode_keep_buffer", |all| &mut all.keeps)];
    for (name, of) in flags {
        let own = Rc::clone(settings);
        let set = move |_: &Lua, option: Value| {
            let mut now = own.get();
            let is_set = is_on(&option, *of(&mut now))?;
            *of(&mut now) = is_set;
            own.set(now);
            Ok(is_set)
        };
        table.raw_set(name, lua.create_function(set)?)?;
    }
    let own = Rc::clone(settings);
    let sparse = move |_: &Lua, (convert, ratio, safe): (Value, Option<f64>, Option<f64>)| {
        let mut now = own.get();
        let (converts, old, bounds) = (is_on(&convert, now.sparse.0)?, now.sparse, (0.0, MOST));
        now.sparse = (converts, whole(ratio, old.1, bounds)?, whole(safe, old.2, bounds)?);
        own.set(now);
        Ok(now.sparse)
    };
    table.raw_set("encode_sparse_array", lua.create_function(sparse)?)?;
    let own = Rc::clone(settings);
    let invalid = move |lua: &Lua, option: Value| {
        let mut now = own.get();
        now.invalid = match &option {
            Value::Nil => now.invalid,
            Value::String(text) if text.as_bytes() == b"null" => Invalid::Null,
            option if is_on(option, false)? => Invalid::Written,
            _ => Invalid::Refused,
        };
        own.set(now);
        match now.invalid {
            Invalid::Null => Ok(Value::String(lua.create_string("null")?)),
            other => Ok(Value::Boolean(other == Invalid::Written)),
        }
    };
    table.raw_set("encode_invalid_numbers", lua.create_function(invalid)?)
}

/// A whole number that a script sets; without one, that which is set.
fn whole(given: Option<f64>, now: f64, (low, high): (f64, f64)) -> mlua::Result<f64> {
    let number = given.map_or(now, f64::trunc);
    let fits = (low..=high).contains(&number);
    let refused = || wrong(format!("bad argument #1 (expected integer between {low} and {high})"));
    fits.then_some(number).ok_or_else(refused)
}

fn is_on(option: &Value, now: bool) -> mlua::Result<bool> {
    match option {
        Value::Nil => Ok(now),
        Value::Boolean(is) => Ok(*is),
        Value::String(text) if text.as_bytes() == b"on" => Ok(true),
        Value::String(text) if text.as_bytes() == b"off" => Ok(false),
        _ => Err(wrong("bad argument #1 (invalid option)")),
    }
}

fn wrong(text: impl std::fmt::Display) -> mlua::Error {
    mlua::Error::runtime(text)
}

fn too_long() -> mlua::Error {
    wrong(format!("the text is longer than {} MiB, or than {VALUES} values", LONGEST >> 20))
}

fn unfit(value: &Value, why: &str) -> mlua::Error {
    let name = match value {
        Value::Integer(_) => "number",
        Value::LightUserData(_) => "userdata",
        other => other.type_name(),
    };
    wrong(format!("Cannot serialise {name}: {why}"))
}

/// A number of Lua.
fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(number) => Some(*number as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// A text that is being written.
struct Writer {
    settings: Settings,
    /// Values that it may yet have.
    left: u32,
    out: Vec<u8>,
}

impl Writer {
    fn value(&mut self, value: &Value, depth: u32) -> mlua::Result<()> {
        if self.left == 0 {
            return Err(too_long());
        }
        self.left -= 1;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(pointer) if pointer.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(is) => self.out.extend_from_slice(if *is { b"true" } else { b"false" }),
            Value::Integer(_) | Value::Number(_) => self.number(value)?,
            Value::String(text) => self.text(text)?,
            Value::Table(table) => self.table(table, depth + 1)?,
            _ => return Err(unfit(value, "type not supported")),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) -> mlua::Result<()> {
        let number = number_of(value).unwrap_or_default();
        let text = match self.settings.invalid {
            _ if number.is_finite() => general(number, self.settings.precision as usize),
            Invalid::Refused => return Err(unfit(value, "must not be NaN or Inf")),
            Invalid::Null => "null".into(),
            Invalid::Written if number.is_nan() => "nan".into(),
            Invalid::Written => if number > 0.0 { "inf" } else { "-inf" }.into(),
        };
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn text(&mut self, text: &LuaString) -> mlua::Result<()> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.out.push(b'"');
        for &byte in text.as_bytes().iter() {
            // One text alone may be all the memory of scripts.
            if self.out.len() > LONGEST {
                return Err(too_long());
            }
            match byte {
                b'"' | b'\\' | b'/' => self.out.extend([b'\\', byte]),
                8 => self.out.extend_from_slice(b"\\b"),
                9 => self.out.extend_from_slice(b"\\t"),
                10 => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                13 => self.out.extend_from_slice(b"\\r"),
                0..=31 | 127 => {
                    let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
                    self.out.extend([b'\\', b'u', b'0', b'0', high, low]);
                }
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: u32) -> mlua::Result<()> {
        if depth > DEPTH || f64::from(depth) > self.settings.depths[0] {
            return Err(wrong(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        if let Some(length) = self.length(table)? {
            for n in 1..=length {
                self.out.push(if n == 1 { b'[' } else { b',' });
                self.value(&table.raw_get::<Value>(n)?, depth)?;
            }
            self.out.push(b']');
            return Ok(());
        }
        self.out.push(b'{');
        let begun = self.out.len();
        // Not `for_each`, which takes of Lua's depth of calls.
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if self.out.len() > begun {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.text(text)?,
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.number(&key)?;
                    self.out.push(b'"');
                }
                other => return Err(unfit(other, "table key must be a number or string")),
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// The length of a table whose keys are positive numbers without a fraction. `None`: it is
    /// written as an object, as an empty one is.
    fn length(&self, table: &Table) -> mlua::Result<Option<u64>> {
        let (mut items, mut largest) = (0u32, 0.0f64);
        for pair in table.pairs::<Value, Value>() {
            match number_of(&pair?.0) {
                Some(place) if place >= 1.0 && place.fract() == 0.0 => largest = largest.max(place),
                _ => return Ok(None),
            }
            items += 1;
        }
        let (converts, ratio, safe) = self.settings.sparse;
        if ratio > 0.0 && largest > f64::from(items) * ratio && largest > safe {
            return if converts { Ok(None) } else { Err(wrong("Cannot serialise table: excessively sparse array")) };
        }
        Ok((items > 0).then_some(largest as u64))
    }
}

/// A number by at most so many digits, as C's `%.{digits}g` writes it.
fn general(number: f64, digits: usize) -> String {
    let scientific = format!("{number:.*e}", digits.max(1) - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let (exponent, digits) = (exponent.parse::<i32>().unwrap_or(0), digits as i32);
    let short = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", short(mantissa), exponent.abs());
    }
    short(&format!("{number:.*}", (digits - 1 - exponent).max(0) as usize))
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_are_written_as_by_c() {
        for (number, digits, expected) in [
            (0.0, 14, "0"),
            (-0.0, 14, "-0"),
            (1023.2, 14, "1023.2"),
            (0.0003, 14, "0.0003"),
            (0.00003, 14, "3e-05"),
            (1e14, 14, "1e+14"),
            (99_999_999_999_999.0, 14, "99999999999999"),
            (123_456_789_012_345.0, 14, "1.2345678901234e+14"),
            (1.0 / 3.0, 14, "0.33333333333333"),
            (1.0 / 3.0, 3, "0.333"),
            (2.5e-310, 14, "2.5e-310"),
            (9.999_999_999_999_999, 14, "10"),
            (12345.0, 3, "1.23e+04"),
        ] {
            assert_eq!(general(number, digits), expected, "{number} by {digits}");
        }
    }
}
