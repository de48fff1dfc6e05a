//! The machine that runs scripts: Lua 5.1, as redis has it, without a way out.
//!
//! A script reaches its keys by `redis.call` and `redis.pcall`. It has no files, processes, clock or
//! bytecode, and leaves nothing behind in the machine: its global variables are those of all
//! scripts, and none can be added. Its memory and its time have limits.

use super::convert::{to_argument, to_lua, to_reply};
use super::json;
use crate::command::multi::at_once;
use crate::command::{Call, Fail, dispatch, find, unknown, wrong_number};
use crate::resp::Reply;
use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value, VmState};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes that scripts may hold.
const MEMORY: usize = 64 << 20;
/// How long a script may run. Other front ends would soon take this one for dead.
const TIME: Duration = Duration::from_millis(500);
/// Instructions between two looks at the clock.
const LOOK: u32 = 10_000;

/// Functions that would lead out of the machine, or into its inside.
const REMOVED: [&str; 8] =
    ["dofile", "loadfile", "load", "loadstring", "print", "newproxy", "collectgarbage", "require"];

/// See the module.
#[derive(Debug)]
pub struct Machine {
    lua: Lua,
    compiled: RefCell<BTreeMap<Vec<u8>, Function>>,
    /// The request whose script runs.
    call: Rc<RefCell<Option<Call>>>,
}

impl Machine {
    /// One without scripts.
    pub fn new() -> mlua::Result<Machine> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::default())?;
        lua.set_memory_limit(MEMORY)?;
        let globals = lua.globals();
        REMOVED.iter().try_for_each(|name| globals.raw_set(*name, Value::Nil))?;
        let strings = globals.raw_get::<Table>("string")?;
        strings.raw_set("dump", Value::Nil)?;
        bound_patterns(&lua, &strings)?;
        if let Some(rules) = lua.type_metatable::<mlua::LuaString>() {
            rules.raw_set("__metatable", false)?;
        }
        let call = Rc::default();
        globals.raw_set("redis", redis(&lua, &call)?)?;
        globals.raw_set("cjson", json::module(&lua)?)?;
        ["redis", "cjson", "string", "table", "math"].iter().try_for_each(|name| seal(&lua, &globals, name))?;
        protect(&lua, &globals)?;
        Ok(Machine { lua, compiled: RefCell::default(), call })
    }

    /// The script's function.
    ///
    /// # Errors
    /// Its text is none of Lua.
    pub fn compile(&self, name: &[u8], text: &[u8]) -> Result<Function, Fail> {
        if let Some(function) = self.compiled.borrow().get(name) {
            return Ok(function.clone());
        }
        let chunk = self.lua.load(text).set_mode(ChunkMode::Text).set_name("@user_script");
        let function = chunk
            .into_function()
            .map_err(|e| Fail::new(format!("Error compiling script (new function): {}", first_line(&e))))?;
        self.compiled.borrow_mut().insert(name.to_vec(), function.clone());
        Ok(function)
    }

    /// Forgets a script's function.
    pub fn forget(&self, name: &[u8]) {
        self.compiled.borrow_mut().remove(name);
    }

    /// Runs a script on the draft of a call, whose arguments from the third are KEYS and ARGV.
    ///
    /// # Errors
    /// It is no script.
    pub fn run(&self, call: Call, name: &[u8], text: &[u8], named: usize) -> Result<Reply, Fail> {
        let function = self.compile(name, text)?;
        // Lua 5.1 does not look for garbage when it runs out of memory.
        if self.lua.used_memory() > MEMORY / 4 {
            self.lua.gc_collect().map_err(|e| Fail::new(first_line(&e)))?;
        }
        let args = Rc::clone(&call.args);
        let (keys, values) = args[3..].split_at(named);
        *self.call.borrow_mut() = Some(call);
        let ended = self.give("KEYS", keys).and_then(|()| self.give("ARGV", values)).and_then(|()| {
            self.limit_time()?;
            function.call::<Value>(())
        });
        *self.call.borrow_mut() = None;
        self.lua.remove_global_hook();
        Ok(match ended {
            Ok(value) => to_reply(&value),
            Err(e) => Reply::Error(error_of(&e, name)),
        })
    }

    fn give(&self, name: &str, values: &[Vec<u8>]) -> mlua::Result<()> {
        let table = self.lua.create_table_with_capacity(values.len(), 0)?;
        for (n, value) in values.iter().enumerate() {
            table.raw_set(n + 1, self.lua.create_string(value)?)?;
        }
        self.lua.globals().raw_set(name, table)
    }

    /// Ends the script when its time is over. From then on every instruction fails, so it cannot
    /// catch that for long.
    fn limit_time(&self) -> mlua::Result<()> {
        let until = Instant::now() + TIME;
        self.lua.set_global_hook(HookTriggers::new().every_nth_instruction(LOOK), move |lua, _| {
            if Instant::now() < until {
                return Ok(VmState::Continue);
            }
            lua.set_global_hook(HookTriggers::new().every_nth_instruction(1), |_, _| Err(late()))?;
            Err(late())
        })
    }
}

fn late() -> mlua::Error {
    mlua::Error::runtime(format!("the script ran for more than {} ms: it changes nothing", TIME.as_millis()))
}

/// The most bytes of a pattern. Its items are matched within each other, on the thread's stack.
const PATTERN: usize = 1024;

/// Bounds the patterns of `string`'s functions.
fn bound_patterns(lua: &Lua, strings: &Table) -> mlua::Result<()> {
    for name in ["find", "match", "gmatch", "gsub"] {
        let function = strings.raw_get::<Function>(name)?;
        let bounded = lua.create_function(move |_, args: MultiValue| match args.get(1) {
            Some(Value::String(pattern)) if pattern.as_bytes().len() > PATTERN => {
                Err(mlua::Error::runtime(format!("the pattern is longer than {PATTERN} bytes")))
            }
            _ => function.call::<MultiValue>(args),
        })?;
        strings.raw_set(name, bounded)?;
    }
    Ok(())
}

/// Puts a table in a library's place that reads from it and cannot be changed.
fn seal(lua: &Lua, globals: &Table, name: &str) -> mlua::Result<()> {
    let (shown, rules) = (lua.create_table()?, lua.create_table()?);
    rules.raw_set("__index", globals.raw_get::<Table>(name)?)?;
    let refuse = |_: &Lua, _: MultiValue| -> mlua::Result<()> {
        Err(mlua::Error::runtime("Attempt to modify a readonly table"))
    };
    rules.raw_set("__newindex", lua.create_function(refuse)?)?;
    rules.raw_set("__metatable", false)?;
    shown.set_metatable(Some(rules))?;
    globals.raw_set(name, shown)
}

/// Makes global variables fixed: a script that sets one by mistake is told.
fn protect(lua: &Lua, globals: &Table) -> mlua::Result<()> {
    let rules = lua.create_table()?;
    let named = |name: Value| name.to_string().unwrap_or_default();
    rules.raw_set(
        "__newindex",
        lua.create_function(move |_, (_, name, _): (Table, Value, Value)| -> mlua::Result<()> {
            Err(mlua::Error::runtime(format!("Attempt to modify a readonly table, global '{}'", named(name))))
        })?,
    )?;
    rules.raw_set(
        "__index",
        lua.create_function(move |_, (_, name): (Table, Value)| -> mlua::Result<()> {
            let name = named(name);
            Err(mlua::Error::runtime(format!("Script attempted to access nonexistent global variable '{name}'")))
        })?,
    )?;
    rules.raw_set("__metatable", false)?;
    // A script could set them by these, past the rules.
    ["rawset", "setfenv", "getfenv"].iter().try_for_each(|name| globals.raw_set(*name, Value::Nil))?;
    globals.set_metatable(Some(rules))
}

/// The table `redis`.
fn redis(lua: &Lua, call: &Rc<RefCell<Option<Call>>>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    for (name, raises) in [("call", true), ("pcall", false)] {
        let call = Rc::clone(call);
        let function = lua.create_function(move |lua, args: MultiValue| {
            // Not borrowed while the command runs.
            let now = call.borrow().clone();
            let reply = now.map_or_else(|| Reply::error("no script runs"), |now| carry_out(&now, &args));
            match reply {
                Reply::Error(text) if raises => Err(mlua::Error::external(Refused(text))),
                reply => to_lua(lua, reply),
            }
        })?;
        table.raw_set(name, function)?;
    }
    for (name, key) in [("error_reply", "err"), ("status_reply", "ok")] {
        let function = lua.create_function(move |lua, text: mlua::LuaString| {
            let table = lua.create_table()?;
            table.raw_set(key, text)?;
            Ok(table)
        })?;
        table.raw_set(name, function)?;
    }
    let sha1 = |lua: &Lua, text: mlua::LuaString| lua.create_string(super::sha1(&text.as_bytes()));
    table.raw_set("sha1hex", lua.create_function(sha1)?)?;
    // A front end has no log of scripts, and nothing is replicated.
    for name in ["log", "set_repl"] {
        table.raw_set(name, lua.create_function(|_, _: MultiValue| Ok(()))?)?;
    }
    table.raw_set("replicate_commands", lua.create_function(|_, ()| Ok(true))?)?;
    table.raw_set(
        "setresp",
        lua.create_function(|_, version: i64| match version {
            2 => Ok(()),
            _ => Err(mlua::Error::runtime("scripts get replies of RESP version 2")),
        })?,
    )?;
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

/// A command's error, which ends the script unless it is caught.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// Carries out a command on the script's draft.
fn carry_out(call: &Call, args: &MultiValue) -> Reply {
    if args.is_empty() {
        return Reply::error("Please specify at least one argument for this redis.call() call");
    }
    let Some(args) = args.iter().map(to_argument).collect::<Option<Vec<_>>>() else {
        return Reply::error("Lua redis lib command arguments must be strings or integers");
    };
    let Some(command) = find(&args[0]) else { return unknown(&args) };
    if !command.takes(args.len()) {
        return wrong_number(command.name);
    }
    if !command.runs_on_a_draft() {
        return Reply::error("This Redis command is not allowed from script");
    }
    if command.writes && call.draft.as_ref().is_some_and(|draft| draft.read_only.get()) {
        return Reply::error("Write commands are not allowed from read-only scripts.");
    }
    let refused = || Reply::error(format!("command '{}' is not carried out by scripts", command.name));
    let call = Call { args: Rc::new(args), ..call.clone() };
    at_once(dispatch(command, &call)).unwrap_or_else(refused)
}

/// The reply for a script that has failed.
fn error_of(e: &mlua::Error, name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    match e.downcast_ref::<Refused>() {
        Some(Refused(text)) => format!("{text} script: {name}, on @user_script."),
        None => format!("ERR {} script: {name}, on @user_script.", first_line(e)),
    }
}

/// An error of Lua without the places that it passed.
fn first_line(e: &mlua::Error) -> String {
    let text = e.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("runtime error: ").or_else(|| line.strip_prefix("syntax error: ")).unwrap_or(line);
    line.to_owned()
}
