//! The functions of scripts: Lua's own, within bounds, and the table `redis`.
//!
//! The clock that ends a slow script counts instructions of Lua. A call of a function in C or Rust
//! is one instruction, however long it takes. So these functions bound the bytes that one call
//! handles, and those that may take long look at the clock first ([`in_time`]). Matching a pattern
//! looks at it while it matches ([`super::patterns`]).

use super::convert::{to_argument, to_lua};
use super::machine::{COMPILED, Current, MEMORY, astray, in_time, late, read, stop, told};
use super::patterns;
use crate::command::multi::at_once;
use crate::command::types::has_block;
use crate::command::{Call, dispatch, find, unknown, wrong_number};
use crate::resp::{Reply, Request};
use crate::task::Io;
use farmem_protocol::random::Random;
use mlua::{Function, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};
use std::cell::Cell;
use std::rc::Rc;

/// Functions that would lead out of the machine, into its inside, or past the clock: a coroutine's
/// instructions are counted apart.
const REMOVED: [&str; 8] = ["coroutine", "dofile", "getfenv", "loadfile", "newproxy", "print", "require", "setfenv"];
/// Bytes of the arguments of one command.
const ARGUMENTS: usize = 64 << 20;
/// Commands on keys that are not named: they would reach the store past the draft.
const ON_ANY_KEY: [&str; 7] = ["dbsize", "flushall", "flushdb", "keys", "memory", "randomkey", "scan"];

pub(super) fn error(text: impl std::fmt::Display) -> mlua::Error {
    mlua::Error::runtime(text)
}

/// Takes functions of Lua away, and bounds what one call of others takes.
pub fn narrow(lua: &Lua, globals: &Table, call: &Current) -> mlua::Result<()> {
    REMOVED.iter().try_for_each(|name| globals.raw_set(*name, Value::Nil))?;
    let strings = globals.raw_get::<Table>("string")?;
    strings.raw_set("gfind", Value::Nil)?;
    patterns::install(lua, &strings, call)?;
    bound_strings(lua, &strings, call)?;
    number(lua, &globals.raw_get("math")?, call)?;
    bound_tables(lua, globals, call)
}

/// Has `math.random` return the numbers of the script's draft. They are the same in every attempt.
fn number(lua: &Lua, math: &Table, call: &Current) -> mlua::Result<()> {
    let draft = |call: &Current| {
        let draft = call.borrow().as_ref().and_then(|(call, _)| call.draft.clone());
        draft.ok_or_else(|| error("no script runs"))
    };
    let (current, other) = (Rc::clone(call), Rc::clone(call));
    let random = lua.create_function(move |_, (first, last): (Option<f64>, Option<f64>)| {
        let unit = draft(&current)?.random.borrow_mut().unit();
        let (low, high) = match (first, last) {
            (None, _) => return Ok(unit),
            (Some(high), None) => (1.0, high.trunc()),
            (Some(low), Some(high)) => (low.trunc(), high.trunc()),
        };
        if low <= high {
            Ok((unit * (high - low + 1.0)).floor() + low)
        } else {
            Err(error("bad argument to 'random' (interval is empty)"))
        }
    })?;
    math.raw_set("random", random)?;
    let seed = lua.create_function(move |_, seed: f64| {
        *draft(&other)?.random.borrow_mut() = Random::new(seed as i64 as u64);
        Ok(())
    })?;
    math.raw_set("randomseed", seed)
}

fn bound_strings(lua: &Lua, strings: &Table, call: &Current) -> mlua::Result<()> {
    let (repeat, now) = (strings.raw_get::<Function>("rep")?, Rc::clone(call));
    let bounded = lua.create_function(move |_, (text, times): (LuaString, f64)| {
        let bytes = text.as_bytes().len();
        if times * bytes.max(1) as f64 > MEMORY as f64 {
            return Err(error("not enough memory"));
        }
        in_time(&now)?;
        // Lua's own takes the lowest 32 bits of a number for the times, also of one below none.
        let times = if times >= 1.0 { times } else { 0.0 };
        // And it would append an empty text as often as is asked.
        if bytes == 0 { Ok(Value::String(text)) } else { repeat.call::<Value>((text, times)) }
    })?;
    strings.raw_set("rep", bounded)?;
    for name in ["format", "lower", "reverse", "upper"] {
        let (function, now) = (strings.raw_get::<Function>(name)?, Rc::clone(call));
        let timed = lua.create_function(move |_, args: MultiValue| {
            in_time(&now)?;
            function.call::<MultiValue>(args).map_err(|e| of(name, e))
        })?;
        strings.raw_set(name, timed)?;
    }
    Ok(())
}

/// An error of one of Lua's own functions, which does not know its name when it is called from here.
fn of(name: &str, e: mlua::Error) -> mlua::Error {
    match e {
        mlua::Error::RuntimeError(text) => error(text.replacen("to '?'", &format!("to '{name}'"), 1)),
        other => other,
    }
}

/// Keeps functions that change tables away from those with rules, which they do not heed.
fn bound_tables(lua: &Lua, globals: &Table, call: &Current) -> mlua::Result<()> {
    let tables = globals.raw_get::<Table>("table")?;
    // Lua's own comparison within a sort is no instruction, so no clock would end it.
    let less = lua.load("return function(a, b) return a < b end").set_name("=sort").eval::<Function>()?;
    for name in ["concat", "insert", "remove", "sort"] {
        let (function, less, now) = (tables.raw_get::<Function>(name)?, less.clone(), Rc::clone(call));
        let bounded = lua.create_function(move |_, mut args: MultiValue| {
            in_time(&now)?;
            match args.front() {
                Some(Value::Table(table)) if name != "concat" && table.metatable().is_some() => {
                    Err(error("Attempt to modify a readonly table"))
                }
                Some(Value::Table(_)) if name == "sort" && args.get(1).is_none_or(Value::is_nil) => {
                    args.truncate(1);
                    args.push_back(Value::Function(less.clone()));
                    function.call::<MultiValue>(args)
                }
                _ => function.call::<MultiValue>(args).map_err(|e| of(name, e)),
            }
        })?;
        tables.raw_set(name, bounded)?;
    }
    Ok(())
}

/// A table that nobody can change. It is shown as the rules of all others that scripts cannot change.
pub fn sealed(lua: &Lua) -> mlua::Result<Table> {
    let (sealed, rules) = (lua.create_table()?, lua.create_table()?);
    rules.raw_set("__newindex", lua.create_function(refuse)?)?;
    rules.raw_set("__metatable", &sealed)?;
    sealed.set_metatable(Some(rules))?;
    Ok(sealed)
}

fn refuse(_: &Lua, _: MultiValue) -> mlua::Result<()> {
    Err(error("Attempt to modify a readonly table"))
}

/// Gives scripts the functions that are written in Lua (`prelude.lua`).
pub fn lay(lua: &Lua, globals: &Table, sealed: &Table, own: &Table, call: &Current) -> mlua::Result<()> {
    own.raw_set("sealed", sealed)?;
    let tidy = |lua: &Lua, why: Value| match &why {
        Value::Error(e) => Ok(Value::String(lua.create_string(told(e))?)),
        _ => Ok(why),
    };
    own.raw_set("tidy", lua.create_function(tidy)?)?;
    let now = Rc::clone(call);
    let compile = move |lua: &Lua, (text, name): (LuaString, Option<LuaString>)| {
        if text.as_bytes().len() > COMPILED {
            return Err(error(format!("the text is longer than {} MiB", COMPILED >> 20)));
        }
        in_time(&now)?;
        let name = name.as_ref().unwrap_or(&text).to_string_lossy().replace('\0', " ");
        match read(lua, &text.as_bytes(), name) {
            Ok(function) => (function, Value::Nil).into_lua_multi(lua),
            Err(e) => (Value::Nil, told(&e)).into_lua_multi(lua),
        }
    };
    own.raw_set("compile", lua.create_function(compile)?)?;
    let call = Rc::clone(call);
    let collect = move |lua: &Lua, ()| {
        // To look for garbage takes time, and is one instruction.
        in_time(&call)?;
        lua.gc_collect()
    };
    own.raw_set("collect", lua.create_function(collect)?)?;
    own.raw_set("used", lua.create_function(|lua, ()| Ok(lua.used_memory() as f64 / 1024.0))?)?;
    lua.load(include_str!("prelude.lua")).set_name("=farmem").call((globals, own))
}

/// Makes global variables and libraries fixed: a script that sets one by mistake is told.
pub fn seal(lua: &Lua, globals: &Table, sealed: &Table) -> mlua::Result<()> {
    if let Some(rules) = lua.type_metatable::<LuaString>() {
        rules.raw_set("__metatable", false)?;
    }
    for name in ["redis", "cjson", "cmsgpack", "bit", "struct", "string", "table", "math"] {
        let (shown, rules) = (lua.create_table()?, lua.create_table()?);
        rules.raw_set("__index", globals.raw_get::<Table>(name)?)?;
        rules.raw_set("__newindex", lua.create_function(refuse)?)?;
        rules.raw_set("__metatable", sealed)?;
        shown.set_metatable(Some(rules))?;
        globals.raw_set(name, shown)?;
    }
    let named = |name: Value| name.to_string().unwrap_or_default();
    let set = move |_: &Lua, (_, name, _): (Table, Value, Value)| -> mlua::Result<()> {
        Err(error(format!("Attempt to modify a readonly table, global '{}'", named(name))))
    };
    let get = move |_: &Lua, (_, name): (Table, Value)| -> mlua::Result<()> {
        Err(error(format!("Script attempted to access nonexistent global variable '{}'", named(name))))
    };
    // They lie in a table behind that of the scripts, which is empty: it would take a new value for
    // what it has.
    let behind = lua.create_table()?;
    let all = globals.pairs::<Value, Value>().collect::<mlua::Result<Vec<_>>>()?;
    for (name, value) in all {
        behind.raw_set(&name, value)?;
        globals.raw_set(name, Value::Nil)?;
    }
    let missing = lua.create_table()?;
    missing.raw_set("__index", lua.create_function(get)?)?;
    behind.set_metatable(Some(missing))?;
    let rules = lua.create_table()?;
    rules.raw_set("__newindex", lua.create_function(set)?)?;
    rules.raw_set("__index", behind)?;
    rules.raw_set("__metatable", sealed)?;
    globals.set_metatable(Some(rules))
}

/// The table `redis`, without `call` and `pcall`. These ask by the functions that are put into `own`. `version`: of
/// the protocol whose forms the script gets.
pub fn redis(lua: &Lua, own: &Table, call: &Current, version: &Rc<Cell<u8>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let (current, wanted) = (Rc::clone(call), Rc::clone(version));
    let ask = Rc::new(move |lua: &Lua, args: Result<Request, Reply>| {
        // Not borrowed while the command runs.
        let Some((now, until)) = current.borrow().clone() else { return Err(error("no script runs")) };
        if until.is_over() {
            return Err(late());
        }
        let reply = args.map_or_else(|refused| refused, |args| carry_out(&now, args, wanted.get()));
        if now.draft.as_ref().is_some_and(|draft| draft.has_missed()) {
            return Err(stop(lua, astray));
        }
        to_lua(lua, reply, wanted.get())
    });
    let asked = Rc::clone(&ask);
    let quietly = move |lua: &Lua, args: MultiValue| asked(lua, arguments(args.into_iter().map(Ok))?);
    own.raw_set("quietly", lua.create_function(quietly)?)?;
    let many = move |lua: &Lua, (count, args): (usize, Table)| {
        let args = arguments((1..=count).map(|n| args.raw_get::<Value>(n)))?;
        ask(lua, args)
    };
    own.raw_set("many", lua.create_function(many)?)?;
    for (name, key) in [("error_reply", "err"), ("status_reply", "ok")] {
        let function = move |lua: &Lua, args: MultiValue| {
            let table = lua.create_table()?;
            match args.front() {
                Some(Value::String(text)) if args.len() == 1 && key == "ok" => table.raw_set(key, text)?,
                Some(Value::String(text)) if args.len() == 1 => table.raw_set(key, with_code(&text.as_bytes()))?,
                _ => table.raw_set("err", "ERR wrong number or type of arguments")?,
            }
            Ok(table)
        };
        table.raw_set(name, lua.create_function(function)?)?;
    }
    let now = Rc::clone(call);
    let sha1 = move |lua: &Lua, mut args: MultiValue| {
        in_time(&now)?;
        match (args.pop_front(), args.len()) {
            (Some(text), 0) => match lua.coerce_string(text)? {
                Some(text) => lua.create_string(super::sha1(&text.as_bytes())),
                None => Err(error("the argument is no string")),
            },
            _ => Err(error("wrong number of arguments")),
        }
    };
    table.raw_set("sha1hex", lua.create_function(sha1)?)?;
    // A front end has no log of scripts, and nothing is replicated.
    for name in ["log", "set_repl"] {
        table.raw_set(name, lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    }
    table.raw_set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    let version = Rc::clone(version);
    let choose = move |_: &Lua, args: MultiValue| {
        let wanted = match args.front() {
            _ if args.len() != 1 => return Err(error("redis.setresp() requires one argument.")),
            Some(Value::Integer(2) | Value::Number(2.0)) => 2,
            Some(Value::Integer(3) | Value::Number(3.0)) => 3,
            _ => return Err(error("RESP version must be 2 or 3.")),
        };
        version.set(wanted);
        Ok(())
    };
    table.raw_set("setresp", lua.create_function(choose)?)?;
    for (number, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].into_iter().enumerate() {
        table.raw_set(name, number)?;
    }
    for (number, name) in ["REPL_NONE", "REPL_AOF", "REPL_SLAVE", "REPL_ALL"].into_iter().enumerate() {
        table.raw_set(name, number)?;
    }
    table.raw_set("REPL_REPLICA", 2)?;
    table.raw_set("REDIS_VERSION", crate::command::info::REDIS_VERSION)?;
    Ok(table)
}

/// An error's text with its code in front, as redis makes it.
fn with_code(text: &[u8]) -> mlua::BString {
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let text = if text.contains(&b' ') { text.to_vec() } else { [b"ERR ", text].concat() };
    let is_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let end = text.len() - text.iter().rev().take_while(|byte| is_end(byte)).count();
    mlua::BString::from(&text[..end])
}

/// A command's arguments, or why it has none.
fn arguments(values: impl Iterator<Item = mlua::Result<Value>>) -> mlua::Result<Result<Request, Reply>> {
    let (mut args, mut bytes) = (Request::default(), 0);
    for value in values {
        let value = value?;
        bytes += if let Value::String(text) = &value { text.as_bytes().len() } else { 32 };
        if bytes > ARGUMENTS {
            return Ok(Err(Reply::error(format!("the command's arguments are more than {} MiB", ARGUMENTS >> 20))));
        }
        match to_argument(&value) {
            Some(arg) => args.push(arg),
            None => return Ok(Err(Reply::error("Lua redis lib command arguments must be strings or integers"))),
        }
    }
    if args.is_empty() {
        return Ok(Err(Reply::error("Please specify at least one argument for this redis.call() call")));
    }
    Ok(Ok(args))
}

/// Carries out a command on the script's draft.
fn carry_out(call: &Call, args: Request, version: u8) -> Reply {
    let Some(command) = find(&args[0]) else { return unknown(&args) };
    let refused = || Reply::error(format!("command '{}' is not carried out by scripts", command.name));
    if !command.takes(args.len()) {
        return wrong_number(command.name);
    }
    // Redis lets scripts have these two, which do not wait there.
    let waits = command.waits() && !matches!(command.name, "blmpop" | "bzmpop");
    if !command.runs_on_a_draft() || waits {
        return Reply::error("This Redis command is not allowed from script");
    }
    if matches!(command.name, "xread" | "xreadgroup") && has_block(&args) {
        let name = String::from_utf8_lossy(&args[0]);
        return Reply::error(format!("{name} command is not allowed with BLOCK option from scripts"));
    }
    if ON_ANY_KEY.contains(&command.name) {
        return refused();
    }
    if command.changes() && call.draft.as_ref().is_some_and(|draft| draft.read_only.get()) {
        return Reply::error("Write commands are not allowed from read-only scripts.");
    }
    // With a way of its own, a command that would reach the store waits, and is refused.
    call.front.monitors.note(&args);
    let call = Call { args: Rc::new(args), io: Io::default(), script: Some(version), ..call.clone() };
    let reply = at_once(dispatch(command, &call)).unwrap_or_else(refused);
    if let Some(draft) = call.draft.as_ref().filter(|draft| draft.has_missed()) {
        draft.miss_all(command.named(&call.args).into_iter().flatten());
    }
    reply
}
