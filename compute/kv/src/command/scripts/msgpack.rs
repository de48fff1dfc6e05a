//! MessagePack for scripts, as redis's module `cmsgpack` has it. BullMQ, for one, hands its scripts their
//! arguments in it.

use super::convert::{List, list};
use super::json::VALUES;
use super::machine::{Current, in_time};
use mlua::{IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;

/// Tables within each other that are written; a deeper one is nil, as with redis.
const WRITTEN: u32 = 16;
/// Those that are read.
const READ: u32 = 128;
/// Bytes that are written by one call, and those that one call reads.
const LONGEST: usize = 16 << 20;
const TAKEN: usize = 4 << 20;
/// Values that one call returns: a function of Lua's returns few.
pub const RESULTS: usize = 7000;

/// The table `cmsgpack`.
pub fn module(lua: &Lua, call: &Current) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let [first, second, third, fourth] = std::array::from_fn(|_| Rc::clone(call));
    let pack = move |lua: &Lua, values: MultiValue| {
        in_time(&first)?;
        if values.is_empty() {
            return Err(mlua::Error::runtime("bad argument #0 to 'pack' (MessagePack pack needs input.)"));
        }
        let (mut out, left) = (Vec::new(), Cell::new(VALUES));
        values.iter().try_for_each(|value| write(value, WRITTEN, &left, &mut out))?;
        lua.create_string(out)
    };
    let all = move |lua: &Lua, text: LuaString| {
        fits(&text, &second)?;
        Ok(values(lua, &text, usize::MAX, 0)?.0)
    };
    let limited = move |lua: &Lua, (text, most, from): (LuaString, i64, Option<i64>)| {
        fits(&text, &third)?;
        let most = usize::try_from(most).map_err(|_| wrong("the number of values is negative"))?;
        match (most, from.unwrap_or(0)) {
            // As with redis: all of them, and no place.
            (0, 0) => Ok(values(lua, &text, usize::MAX, 0)?.0),
            (most, from) => next(lua, &text, most, from),
        }
    };
    let one = move |lua: &Lua, (text, from): (LuaString, Option<i64>)| {
        fits(&text, &fourth)?;
        next(lua, &text, 1, from.unwrap_or(0))
    };
    table.raw_set("pack", lua.create_function(pack)?)?;
    table.raw_set("unpack", lua.create_function(all)?)?;
    table.raw_set("unpack_limit", lua.create_function(limited)?)?;
    table.raw_set("unpack_one", lua.create_function(one)?)?;
    Ok(table)
}

fn wrong(text: impl std::fmt::Display) -> mlua::Error {
    mlua::Error::runtime(format!("cmsgpack: {text}"))
}

/// Whether a text can be read, by its length and the time that is left.
fn fits(text: &LuaString, call: &Current) -> mlua::Result<()> {
    if text.as_bytes().len() > TAKEN {
        return Err(wrong(format!("the text is longer than {} MiB", TAKEN >> 20)));
    }
    in_time(call)
}

/// Values from a place on: the place behind them, or -1 at the end, and they.
fn next(lua: &Lua, text: &LuaString, most: usize, from: i64) -> mlua::Result<MultiValue> {
    let from = usize::try_from(from).map_err(|_| wrong("the place to begin at is negative"))?;
    let (values, at) = values(lua, text, most, from)?;
    let at = if at == text.as_bytes().len() { -1 } else { at as i64 };
    let mut all = at.into_lua_multi(lua)?;
    values.into_iter().for_each(|value| all.push_back(value));
    Ok(all)
}

/// At most `most` values from a place on, and the place behind them.
fn values(lua: &Lua, text: &LuaString, most: usize, from: usize) -> mlua::Result<(MultiValue, usize)> {
    let bytes = text.as_bytes();
    let rest = bytes.get(from..).ok_or_else(|| wrong("the place to begin at is behind the end"))?;
    let (mut reader, mut all) = (Reader(rest), MultiValue::new());
    while !reader.0.is_empty() && all.len() < most {
        if all.len() == RESULTS {
            return Err(wrong("too many return values at once; use unpack_one or unpack_limit instead."));
        }
        all.push_back(reader.value(lua, READ)?);
    }
    let at = bytes.len() - reader.0.len();
    Ok((all, at))
}

fn write(value: &Value, depth: u32, left: &Cell<u32>, out: &mut Vec<u8>) -> mlua::Result<()> {
    if out.len() > LONGEST || left.get() == 0 {
        return Err(wrong(format!("the text is longer than {} MiB, or than {VALUES} values", LONGEST >> 20)));
    }
    left.set(left.get() - 1);
    match value {
        Value::Boolean(is) => out.push(0xc2 + u8::from(*is)),
        Value::Integer(number) => write_int(*number, out),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 9.2e18 => write_int(*number as i64, out),
        Value::Number(number) if f64::from(*number as f32) == *number => {
            out.push(0xca);
            out.extend((*number as f32).to_be_bytes());
        }
        Value::Number(number) => {
            out.push(0xcb);
            out.extend(number.to_be_bytes());
        }
        Value::String(text) => {
            let text = text.as_bytes();
            head(text.len(), (0xa0, 32), Some(0xd9), 0xda, out);
            out.extend_from_slice(&text);
        }
        Value::Table(table) if depth > 0 => write_table(table, depth - 1, left, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

/// The length of a text or a table: within its first byte if it is less than `few.1`.
fn head(len: usize, few: (u8, usize), by_one: Option<u8>, by_two: u8, out: &mut Vec<u8>) {
    match (len, by_one) {
        (_, _) if len < few.1 => out.push(few.0 | len as u8),
        (0..=0xff, Some(sign)) => out.extend([sign, len as u8]),
        (0..=0xffff, _) => {
            out.push(by_two);
            out.extend((len as u16).to_be_bytes());
        }
        _ => {
            out.push(by_two + 1);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn write_int(number: i64, out: &mut Vec<u8>) {
    let (sign, bytes): (u8, &[u8]) = match number {
        -32..=127 => return out.push(number as u8),
        128..=0xff => (0xcc, &[number as u8]),
        0x100..=0xffff => (0xcd, &(number as u16).to_be_bytes()),
        0x1_0000..=0xffff_ffff => (0xce, &(number as u32).to_be_bytes()),
        0x1_0000_0000.. => (0xcf, &(number as u64).to_be_bytes()),
        -128..=-33 => (0xd0, &[number as u8]),
        -0x8000..=-129 => (0xd1, &(number as i16).to_be_bytes()),
        -0x8000_0000..=-0x8001 => (0xd2, &(number as i32).to_be_bytes()),
        _ => (0xd3, &number.to_be_bytes()),
    };
    out.push(sign);
    out.extend_from_slice(bytes);
}

/// A table is an array if its keys are 1, 2, 3 and so on, or if it is empty.
fn write_table(table: &Table, depth: u32, left: &Cell<u32>, out: &mut Vec<u8>) -> mlua::Result<()> {
    let pairs = match list(table)? {
        List { pairs, largest: Some(largest) } if largest == pairs => {
            head(pairs, (0x90, 16), None, 0xdc, out);
            return (1..=pairs).try_for_each(|n| write(&table.raw_get::<Value>(n)?, depth, left, out));
        }
        List { pairs, .. } => pairs,
    };
    head(pairs, (0x80, 16), None, 0xde, out);
    table.for_each(|key: Value, value: Value| {
        write(&key, depth, left, out)?;
        write(&value, depth, left, out)
    })
}

/// Bytes that are to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> mlua::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| wrong("Missing bytes in input."))?;
        self.0 = rest;
        Ok(taken)
    }

    /// A number of that many bytes, without a sign.
    fn number(&mut self, len: usize) -> mlua::Result<u64> {
        Ok(self.take(len)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn value(&mut self, lua: &Lua, depth: u32) -> mlua::Result<Value> {
        let first = self.number(1)? as u8;
        let int = |number: i64| Ok(Value::Number(number as f64));
        match first {
            0..=0x7f => int(i64::from(first)),
            0xe0.. => int(i64::from(first as i8)),
            0xc0 => Ok(Value::Nil),
            0xc2 | 0xc3 => Ok(Value::Boolean(first == 0xc3)),
            0xca => Ok(Value::Number(f64::from(f32::from_bits(self.number(4)? as u32)))),
            0xcb => Ok(Value::Number(f64::from_bits(self.number(8)?))),
            0xcc..=0xcf => Ok(Value::Number(self.number(1 << (first - 0xcc))? as f64)),
            0xd0 => int(i64::from(self.number(1)? as i8)),
            0xd1 => int(i64::from(self.number(2)? as i16)),
            0xd2 => int(i64::from(self.number(4)? as i32)),
            0xd3 => int(self.number(8)? as i64),
            0xa0..=0xbf => self.text(lua, usize::from(first & 0x1f)),
            0xc4..=0xc6 | 0xd9..=0xdb => {
                let width = 1 << (first - if first < 0xd0 { 0xc4 } else { 0xd9 });
                let len = self.number(width)? as usize;
                self.text(lua, len)
            }
            0x90..=0x9f => self.array(lua, u64::from(first & 0xf), depth),
            0xdc | 0xdd => {
                let len = self.number(2 << (first - 0xdc))?;
                self.array(lua, len, depth)
            }
            0x80..=0x8f => self.map(lua, u64::from(first & 0xf), depth),
            0xde | 0xdf => {
                let len = self.number(2 << (first - 0xde))?;
                self.map(lua, len, depth)
            }
            _ => Err(wrong("Bad data format in input.")),
        }
    }

    fn text(&mut self, lua: &Lua, len: usize) -> mlua::Result<Value> {
        Ok(Value::String(lua.create_string(self.take(len)?)?))
    }

    /// The depth within a table at this one.
    fn within(depth: u32) -> mlua::Result<u32> {
        depth.checked_sub(1).ok_or_else(|| wrong(format!("more than {READ} tables within each other")))
    }

    fn array(&mut self, lua: &Lua, len: u64, depth: u32) -> mlua::Result<Value> {
        let (table, depth) = (lua.create_table()?, Self::within(depth)?);
        for n in 1..=len {
            table.raw_set(n, self.value(lua, depth)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, lua: &Lua, len: u64, depth: u32) -> mlua::Result<Value> {
        let (table, depth) = (lua.create_table()?, Self::within(depth)?);
        for _ in 0..len {
            let key = self.value(lua, depth)?;
            let value = self.value(lua, depth)?;
            if key.is_nil() || matches!(key, Value::Number(number) if number.is_nan()) {
                return Err(wrong("a key is nil, or no number"));
            }
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
