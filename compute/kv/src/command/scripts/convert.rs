//! Between replies of commands and values of Lua, as redis converts them: by the forms of RESP2, or
//! by those of RESP3, if the script has asked for them.

use crate::resp::Reply;
use mlua::{IntoLua, Lua, Table, Value};

/// Arrays within each other, values, and bytes of text that a script's reply may have.
const DEPTH: u32 = 64;
const ITEMS: usize = 1 << 20;
const BYTES: usize = 64 << 20;

/// A command's reply as a value of Lua.
pub fn to_lua(lua: &Lua, reply: Reply, version: u8) -> mlua::Result<Value> {
    let with = |key: &str, value: Value| {
        let table = lua.create_table()?;
        table.raw_set(key, value)?;
        Ok(Value::Table(table))
    };
    let line = |key: &str, text: &str| with(key, Value::String(lua.create_string(text)?));
    match reply {
        Reply::Null | Reply::NullArray if version >= 3 => Ok(Value::Nil),
        Reply::Double(number) if version >= 3 => with("double", Value::Number(number)),
        Reply::Map(pairs) if version >= 3 => {
            let map = lua.create_table()?;
            for (key, value) in pairs {
                map.raw_set(to_lua(lua, key, version)?, to_lua(lua, value, version)?)?;
            }
            with("map", Value::Table(map))
        }
        Reply::Set(items) if version >= 3 => {
            let set = lua.create_table()?;
            for item in items {
                set.raw_set(to_lua(lua, item, version)?, true)?;
            }
            with("set", Value::Table(set))
        }
        Reply::Ok => line("ok", "OK"),
        Reply::Line(text) => line("ok", &text),
        Reply::Error(text) => line("err", &text),
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bool(is) => Ok(Value::Boolean(is)),
        Reply::Bulk(bytes) => lua.create_string(bytes)?.into_lua(lua),
        Reply::Text(text) => lua.create_string(text)?.into_lua(lua),
        Reply::Double(number) => lua.create_string(crate::resp::double(number))?.into_lua(lua),
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Several(items) => {
            sequence(lua, items, version)
        }
        Reply::Map(pairs) => sequence(lua, pairs.into_iter().flat_map(|(key, value)| [key, value]).collect(), version),
        Reply::Null | Reply::NullArray | Reply::Long(_) | Reply::Heard(_) | Reply::Encoded(_) | Reply::Silence => {
            Ok(Value::Boolean(false))
        }
    }
}

fn sequence(lua: &Lua, items: Vec<Reply>, version: u8) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(items.len(), 0)?;
    for (n, item) in items.into_iter().enumerate() {
        table.raw_set(n + 1, to_lua(lua, item, version)?)?;
    }
    Ok(Value::Table(table))
}

/// A script's outcome as the client's reply. `version`: that of the script.
pub fn to_reply(value: &Value, version: u8) -> Reply {
    let mut left = Left { items: ITEMS, bytes: BYTES, version };
    left.reply(value, DEPTH).unwrap_or_else(|| Reply::error("the script's reply is too large"))
}

/// The room that is left in a reply. A table may be in several others, so few tables can be a large reply.
struct Left {
    items: usize,
    bytes: usize,
    version: u8,
}

impl Left {
    /// `None`: it is too large.
    fn reply(&mut self, value: &Value, depth: u32) -> Option<Reply> {
        self.items = self.items.checked_sub(1)?;
        Some(match value {
            Value::Boolean(is) if self.version >= 3 => Reply::Bool(*is),
            Value::Boolean(true) => Reply::Int(1),
            Value::Integer(number) => Reply::Int(*number),
            Value::Number(number) => Reply::Int(*number as i64),
            Value::String(text) => {
                let text = text.as_bytes();
                self.bytes = self.bytes.checked_sub(text.len())?;
                Reply::bulk(text.to_vec())
            }
            Value::Table(table) => self.of_table(table, depth.checked_sub(1)?)?,
            _ => Reply::Null,
        })
    }

    fn of_table(&mut self, table: &Table, depth: u32) -> Option<Reply> {
        let mut line = |key: &str| match table.raw_get::<Value>(key) {
            Ok(Value::String(text)) => {
                self.bytes = self.bytes.checked_sub(text.as_bytes().len())?;
                Some(Some(text.to_string_lossy().replace(['\r', '\n'], " ")))
            }
            _ => Some(None),
        };
        if let Some(text) = line("err")? {
            return Some(Reply::Error(text.trim_start_matches('-').to_owned()));
        }
        if let Some(text) = line("ok")? {
            return Some(Reply::Line(text));
        }
        match table.raw_get::<Value>("double") {
            Ok(Value::Number(number)) => return Some(Reply::Double(number)),
            Ok(Value::Integer(number)) => return Some(Reply::Double(number as f64)),
            _ => {}
        }
        if let Ok(Value::Table(map)) = table.raw_get::<Value>("map") {
            let pairs = map.pairs::<Value, Value>().map_while(Result::ok);
            let pairs = pairs.map(|(key, value)| Some((self.reply(&key, depth)?, self.reply(&value, depth)?)));
            return pairs.collect::<Option<Vec<_>>>().map(Reply::Map);
        }
        if let Ok(Value::Table(set)) = table.raw_get::<Value>("set") {
            let items = set.pairs::<Value, Value>().map_while(Result::ok);
            return items.map(|(item, _)| self.reply(&item, depth)).collect::<Option<Vec<_>>>().map(Reply::Set);
        }
        let mut items = Vec::new();
        for n in 1.. {
            match table.raw_get::<Value>(n) {
                Ok(Value::Nil) | Err(_) => break,
                Ok(item) => items.push(self.reply(&item, depth)?),
            }
        }
        Some(Reply::Array(items))
    }
}

/// An argument of a command: text as it is, numbers as redis writes them.
pub fn to_argument(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(number.to_string().into_bytes()),
        Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e17 => {
            Some(format!("{number:.0}").into_bytes())
        }
        Value::Number(number) => Some(crate::resp::double(*number).into_bytes()),
        _ => None,
    }
}

/// The keys of a table.
pub struct List {
    /// How many.
    pub pairs: usize,
    /// The largest, if all are positive numbers without a fraction.
    pub largest: Option<usize>,
}

pub fn list(table: &Table) -> mlua::Result<List> {
    let (mut pairs, mut largest) = (0, Some(0));
    table.for_each(|key: Value, _: Value| {
        let place = match key {
            Value::Integer(n) => usize::try_from(n).ok().filter(|n| *n > 0),
            Value::Number(n) if n >= 1.0 && n.fract() == 0.0 && n < 1e15 => Some(n as usize),
            _ => None,
        };
        pairs += 1;
        largest = largest.and_then(|largest: usize| Some(largest.max(place?)));
        Ok(())
    })?;
    Ok(List { pairs, largest })
}
