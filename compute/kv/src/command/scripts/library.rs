//! The functions of scripts: Lua's own, within bounds, and the table `redis`.
//!
//! The clock that ends a slow script counts instructions of Lua. A call of a function in C or Rust
//! is one instruction, however long it takes. So these functions bound the bytes that one call
//! handles. Matching a pattern looks at the clock itself ([`super::patterns`]).

use super::convert::{to_argument, to_lua};
use super::machine::{Current, MEMORY, astray, late, stop};
use super::patterns;
use crate::command::multi::at_once;
use crate::command::types::has_block;
use crate::command::{Call, dispatch, find, unknown, wrong_number};
use crate::resp::Reply;
use crate::task::Io;
use farmem_protocol::random::Random;
use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};
use std::rc::Rc;
use std::time::Instant;

/// Functions that would lead out of the machine, into its inside, or past the clock: a coroutine's
/// instructions are counted apart.
const REMOVED: [&str; 10] = [
    "collectgarbage",
    "coroutine",
    "dofile",
    "gcinfo",
    "load",
    "loadfile",
    "loadstring",
    "newproxy",
    "print",
    "require",
];
/// They would set global variables past the rules.
const UNRULY: [&str; 3] = ["getfenv", "rawset", "setfenv"];
/// Values that `unpack` returns, at most.
const UNPACKED: f64 = 7000.0;
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
    ["dump", "gfind"].iter().try_for_each(|name| strings.raw_set(*name, Value::Nil))?;
    patterns::install(lua, &strings, call)?;
    bound_strings(lua, &strings)?;
    number(lua, &globals.raw_get("math")?, call)?;
    bound_tables(lua, globals)
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

fn bound_strings(lua: &Lua, strings: &Table) -> mlua::Result<()> {
    let repeat = strings.raw_get::<Function>("rep")?;
    let bounded = lua.create_function(move |_, (text, times): (LuaString, f64)| {
        let bytes = text.as_bytes().len().max(1) as f64;
        if times * bytes > MEMORY as f64 {
            Err(error("not enough memory"))
        } else {
            repeat.call::<Value>((text, times))
        }
    })?;
    strings.raw_set("rep", bounded)
}

/// Keeps functions that change tables away from those with rules, which they do not heed.
fn bound_tables(lua: &Lua, globals: &Table) -> mlua::Result<()> {
    let tables = globals.raw_get::<Table>("table")?;
    // Lua's own comparison within a sort is no instruction, so no clock would end it.
    let less = lua.load("return function(a, b) return a < b end").set_name("=sort").eval::<Function>()?;
    for name in ["insert", "remove", "sort"] {
        let (function, less) = (tables.raw_get::<Function>(name)?, less.clone());
        let bounded = lua.create_function(move |_, mut args: MultiValue| match args.front() {
            Some(Value::Table(table)) if table.metatable().is_some() => {
                Err(error("Attempt to modify a readonly table"))
            }
            Some(Value::Table(_)) if name == "sort" && args.get(1).is_none_or(Value::is_nil) => {
                args.truncate(1);
                args.push_back(Value::Function(less.clone()));
                function.call::<MultiValue>(args)
            }
            _ => function.call::<MultiValue>(args),
        })?;
        tables.raw_set(name, bounded)?;
    }
    let unpack = globals.raw_get::<Function>("unpack")?;
    let bounded = lua.create_function(move |_, (table, from, to): (Table, Option<f64>, Option<f64>)| {
        let (from, to) = (from.unwrap_or(1.0), to.unwrap_or_else(|| table.raw_len() as f64));
        // Neither of them is a number that Lua would take for another one.
        let few = to - from < UNPACKED;
        if few { unpack.call::<MultiValue>((table, from, to)) } else { Err(error("too many results to unpack")) }
    })?;
    globals.raw_set("unpack", bounded)
}

/// Makes global variables and libraries fixed: a script that sets one by mistake is told.
pub fn seal(lua: &Lua, globals: &Table) -> mlua::Result<()> {
    if let Some(rules) = lua.type_metatable::<LuaString>() {
        rules.raw_set("__metatable", false)?;
    }
    for name in ["redis", "cjson", "cmsgpack", "bit", "struct", "string", "table", "math"] {
        let (shown, rules) = (lua.create_table()?, lua.create_table()?);
        rules.raw_set("__index", globals.raw_get::<Table>(name)?)?;
        let refuse = |_: &Lua, _: MultiValue| -> mlua::Result<()> { Err(error("Attempt to modify a readonly table")) };
        rules.raw_set("__newindex", lua.create_function(refuse)?)?;
        rules.raw_set("__metatable", false)?;
        shown.set_metatable(Some(rules))?;
        globals.raw_set(name, shown)?;
    }
    UNRULY.iter().try_for_each(|name| globals.raw_set(*name, Value::Nil))?;
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
    rules.raw_set("__metatable", false)?;
    globals.set_metatable(Some(rules))
}

/// The table `redis`.
pub fn redis(lua: &Lua, call: &Current) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let call = Rc::clone(call);
    let quietly = lua.create_function(move |lua, args: MultiValue| {
        // Not borrowed while the command runs.
        let Some((now, until)) = call.borrow().clone() else { return Err(error("no script runs")) };
        if Instant::now() >= until {
            return Err(late());
        }
        let reply = carry_out(&now, &args);
        if now.draft.as_ref().is_some_and(|draft| draft.has_missed()) {
            return Err(stop(lua, astray));
        }
        to_lua(lua, reply)
    })?;
    // An error is a table, as redis 7 raises it.
    let raising = "local quietly, error, type = ...
        return function(...)
            local reply = quietly(...)
            if type(reply) == 'table' and reply.err then error(reply, 0) end
            return reply
        end";
    let [error_of_lua, type_of] = ["error", "type"].map(|name| lua.globals().raw_get::<Value>(name));
    table.raw_set("call", lua.load(raising).call::<Function>((quietly.clone(), error_of_lua?, type_of?))?)?;
    table.raw_set("pcall", quietly)?;
    for (name, key) in [("error_reply", "err"), ("status_reply", "ok")] {
        let function = lua.create_function(move |lua, text: LuaString| {
            let table = lua.create_table()?;
            table.raw_set(key, text)?;
            Ok(table)
        })?;
        table.raw_set(name, function)?;
    }
    let sha1 = |lua: &Lua, mut args: MultiValue| match (args.pop_front(), args.len()) {
        (Some(text), 0) => match lua.coerce_string(text)? {
            Some(text) => lua.create_string(super::sha1(&text.as_bytes())),
            None => Err(error("the argument is no string")),
        },
        _ => Err(error("wrong number of arguments")),
    };
    table.raw_set("sha1hex", lua.create_function(sha1)?)?;
    // A front end has no log of scripts, and nothing is replicated.
    for name in ["log", "set_repl"] {
        table.raw_set(name, lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    }
    table.raw_set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    let version = |_: &Lua, version: i64| match version {
        2 => Ok(()),
        _ => Err(error("scripts get replies of RESP version 2")),
    };
    table.raw_set("setresp", lua.create_function(version)?)?;
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

/// Carries out a command on the script's draft.
fn carry_out(call: &Call, args: &MultiValue) -> Reply {
    let len = |value: &Value| if let Value::String(text) = value { text.as_bytes().len() } else { 32 };
    if args.is_empty() {
        return Reply::error("Please specify at least one argument for this redis.call() call");
    }
    if args.iter().map(len).sum::<usize>() > ARGUMENTS {
        return Reply::error(format!("the command's arguments are more than {} MiB", ARGUMENTS >> 20));
    }
    let Some(args) = args.iter().map(to_argument).collect::<Option<Vec<_>>>() else {
        return Reply::error("Lua redis lib command arguments must be strings or integers");
    };
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
    let call = Call { args: Rc::new(args), io: Io::default(), in_script: true, ..call.clone() };
    let reply = at_once(dispatch(command, &call)).unwrap_or_else(refused);
    if let Some(draft) = call.draft.as_ref().filter(|draft| draft.has_missed()) {
        draft.miss_all(command.named(&call.args).into_iter().flatten());
    }
    reply
}
