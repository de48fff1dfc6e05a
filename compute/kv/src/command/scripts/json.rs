//! JSON for scripts, as redis's module `cjson` has it.

use super::convert::{List, list};
use mlua::{Lua, LuaSerdeExt, MultiValue, Table, Value};
use std::cell::Cell;

/// Tables within each other that are written.
const DEPTH: u32 = 128;
/// Bytes of a text that is written. A table may be in several others, so few tables can be much text.
const LONGEST: usize = 16 << 20;
/// Values that are written by one call.
pub const VALUES: u32 = 1 << 20;
/// Bytes of a text that is read. Its values take up to a hundred times as much, outside of Lua's memory.
const READ: usize = 1 << 20;

/// The table `cjson`.
pub fn module(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let encode = |lua: &Lua, value: Value| {
        let mut text = String::new();
        write(&value, DEPTH, &Cell::new(VALUES), &mut text)?;
        lua.create_string(text)
    };
    let decode = |lua: &Lua, text: mlua::LuaString| {
        if text.as_bytes().len() > READ {
            return Err(wrong(format!("the text is longer than {} MiB", READ >> 20)));
        }
        let value = serde_json::from_slice::<serde_json::Value>(&text.as_bytes());
        lua.to_value(&value.map_err(|e| wrong(e.to_string()))?)
    };
    table.raw_set("encode", lua.create_function(encode)?)?;
    table.raw_set("decode", lua.create_function(decode)?)?;
    table.raw_set("null", lua.null())?;
    // A buffer is never kept.
    table.raw_set("encode_keep_buffer", lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    Ok(table)
}

fn wrong(text: impl std::fmt::Display) -> mlua::Error {
    mlua::Error::runtime(format!("cjson: {text}"))
}

fn write(value: &Value, depth: u32, left: &Cell<u32>, out: &mut String) -> mlua::Result<()> {
    if out.len() > LONGEST || left.get() == 0 {
        return Err(wrong(format!("the text is longer than {} MiB, or than {VALUES} values", LONGEST >> 20)));
    }
    left.set(left.get() - 1);
    match value {
        Value::Nil => out.push_str("null"),
        Value::LightUserData(pointer) if pointer.0.is_null() => out.push_str("null"),
        Value::Boolean(is) => out.push_str(if *is { "true" } else { "false" }),
        Value::Integer(number) => out.push_str(&number.to_string()),
        Value::Number(number) if number.is_finite() => out.push_str(&crate::resp::double(*number)),
        Value::Number(_) => return Err(wrong("a number is infinite, or none")),
        Value::String(text) => quote(&text.to_string_lossy(), out),
        Value::Table(table) => {
            let depth =
                depth.checked_sub(1).ok_or_else(|| wrong(format!("more than {DEPTH} tables within each other")))?;
            write_table(table, depth, left, out)?;
        }
        other => return Err(wrong(format!("a {} cannot be written", other.type_name()))),
    }
    Ok(())
}

fn quote(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

/// A table is an array if its keys are positive numbers without a fraction. An empty one is an object.
fn write_table(table: &Table, depth: u32, left: &Cell<u32>, out: &mut String) -> mlua::Result<()> {
    if let List { pairs, largest: Some(largest) } = list(table)?
        && pairs > 0
    {
        // As redis: what is not there is null, but not most of it.
        if largest > 10 && largest > 2 * pairs {
            return Err(wrong("Cannot serialise table: excessively sparse array"));
        }
        for n in 1..=largest {
            out.push(if n == 1 { '[' } else { ',' });
            write(&table.raw_get::<Value>(n)?, depth, left, out)?;
        }
        out.push(']');
        return Ok(());
    }
    out.push('{');
    let mut first = true;
    table.for_each(|key: Value, value: Value| {
        if !std::mem::take(&mut first) {
            out.push(',');
        }
        let name = super::convert::to_argument(&key).ok_or_else(|| wrong("a key is neither text nor a number"))?;
        quote(&String::from_utf8_lossy(&name), out);
        out.push(':');
        write(&value, depth, left, out)
    })?;
    out.push('}');
    Ok(())
}
