//! The machine that runs scripts: Lua 5.1, as redis has it, without a way out.
//!
//! A script reaches its keys by `redis.call` and `redis.pcall` ([`super::library`]). It has no files,
//! processes, threads or bytecode, and leaves nothing behind in the machine: global variables and
//! the libraries' tables cannot be changed. Its memory and its time have limits.

use super::convert::to_reply;
use super::{CLOCK, TIME, bits, json, library, msgpack, shebang, structs};
use crate::command::{Call, Fail};
use crate::resp::Reply;
use farmem_sys::raw::thread_cpu_ns;
use mlua::chunk::ChunkMode;
use mlua::{Function, HookTriggers, Lua, LuaOptions, StdLib, Table, Value, VmState};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes that scripts may hold.
pub const MEMORY: usize = 128 << 20;
/// Instructions between two looks at the clock. A single one may copy all the memory.
const LOOK: u32 = 100;
/// Scripts whose functions are kept. Each takes one of some 8 000 places in the machine.
const KEPT: usize = 256;
/// Bytes of a text that is compiled.
pub const COMPILED: usize = 1 << 20;
/// Places in a text that is compiled at which Lua adds a jump to a row of jumps. It goes through
/// the row each time, and looks at no clock: a row of all that fit in a MiB takes minutes.
const JUMPS: usize = 10_000;

/// The request whose script runs, and when its time is over.
pub type Current = Rc<RefCell<Option<(Call, Until)>>>;

/// When a script's time is over: by the CPU time of this thread, and by the clock. Others may take
/// the machine meanwhile; other front ends take one that is silent for dead.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    cpu_ns: u64,
    clock: Instant,
    /// Before that so much CPU time cannot have passed. To ask for it is a system call, and the clock is not.
    soonest: Instant,
}

impl Until {
    /// From now on so much CPU time, and until then by the clock.
    pub fn new(cpu: Duration, clock: Instant) -> Until {
        Until { cpu_ns: thread_cpu_ns() + cpu.as_nanos() as u64, clock, soonest: Instant::now() + cpu }
    }

    /// Whether it is over.
    pub fn is_over(self) -> bool {
        let now = Instant::now();
        now >= self.clock || now >= self.soonest && thread_cpu_ns() >= self.cpu_ns
    }
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    lua: Lua,
    compiled: RefCell<BTreeMap<Vec<u8>, Function>>,
    call: Current,
    globals: Table,
    pcall: Function,
    /// The version of the protocol whose forms the script gets, and what it has set for JSON.
    version: Rc<Cell<u8>>,
    json: json::Shared,
}

impl Machine {
    /// One without scripts.
    pub fn new() -> mlua::Result<Machine> {
        let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::default())?;
        lua.set_memory_limit(MEMORY)?;
        let (globals, call) = (lua.globals(), Current::default());
        let (version, json) = (Rc::new(Cell::new(2)), json::Shared::default());
        let pcall = globals.get("pcall")?;
        library::narrow(&lua, &globals, &call)?;
        let (own, sealed) = (lua.create_table()?, library::sealed(&lua)?);
        globals.raw_set("redis", library::redis(&lua, &own, &call, &version)?)?;
        library::lay(&lua, &globals, &sealed, &own, &call)?;
        globals.raw_set("cjson", json::module(&lua, &json, &call)?)?;
        globals.raw_set("cmsgpack", msgpack::module(&lua, &call)?)?;
        globals.raw_set("bit", bits::module(&lua)?)?;
        globals.raw_set("struct", structs::module(&lua)?)?;
        library::seal(&lua, &globals, &sealed)?;
        Ok(Machine { lua, compiled: RefCell::default(), call, globals, pcall, version, json })
    }

    /// Bytes that it holds.
    pub fn used(&self) -> usize {
        self.lua.used_memory()
    }

    /// The script's function.
    ///
    /// # Errors
    /// Its text is none of Lua.
    pub fn compile(&self, name: &[u8], text: &[u8]) -> Result<Function, Fail> {
        if let Some(function) = self.compiled.borrow().get(name) {
            return Ok(function.clone());
        }
        let mut compiled = self.compiled.borrow_mut();
        if compiled.len() >= KEPT {
            compiled.clear();
        }
        let (begin, _) = shebang::read(text)?;
        if text.len() > COMPILED {
            return Err(Fail::new(format!("the script is longer than {} MiB", COMPILED >> 20)));
        }
        let function = read(&self.lua, &text[begin..], "@user_script".into())
            .map_err(|e| Fail::new(format!("Error compiling script (new function): {}", first_line(&e))))?;
        compiled.insert(name.to_vec(), function.clone());
        Ok(function)
    }

    /// Forgets a script's function.
    pub fn forget(&self, name: &[u8]) {
        self.compiled.borrow_mut().remove(name);
    }

    /// Runs a script on the draft of a call, whose arguments from the third are KEYS and ARGV.
    /// `named`: the number of KEYS. The reply, and whether the script has failed.
    ///
    /// # Errors
    /// It is no script.
    pub fn run(
        &self,
        call: Call,
        (name, text): (&[u8], &[u8]),
        named: usize,
        until: Until,
    ) -> Result<(Reply, bool), Fail> {
        let function = self.compile(name, text)?;
        // Lua 5.1 does not look for garbage when it runs out of memory.
        if self.lua.used_memory() > MEMORY / 4 {
            self.lua.gc_collect().map_err(|e| Fail::new(first_line(&e)))?;
        }
        let args = Rc::clone(&call.args);
        let (keys, values) = args[3..].split_at(named);
        *self.call.borrow_mut() = Some((call, until));
        self.version.set(2);
        self.json.take();
        let ended = self.give("KEYS", keys).and_then(|()| self.give("ARGV", values)).and_then(|()| {
            self.limit_time(until)?;
            // By Lua's own function, which hands on an error that is a table.
            self.pcall.call::<(bool, Value)>(function)
        });
        *self.call.borrow_mut() = None;
        self.lua.remove_global_hook();
        Ok(match ended {
            Ok((true, value)) => (to_reply(&value, self.version.get()), false),
            Ok((false, value)) => (Reply::Error(error_of(&value, name)), true),
            Err(e) => (Reply::Error(format!("ERR {}", told(&e))), true),
        })
    }

    fn give(&self, name: &str, values: &[Vec<u8>]) -> mlua::Result<()> {
        let table = self.lua.create_table_with_capacity(values.len(), 0)?;
        for (n, value) in values.iter().enumerate() {
            table.raw_set(n + 1, self.lua.create_string(value)?)?;
        }
        self.globals.raw_set(name, table)
    }

    /// Ends the script when its time is over. From then on every instruction fails, so it cannot
    /// catch that for long.
    fn limit_time(&self, until: Until) -> mlua::Result<()> {
        self.lua.set_global_hook(HookTriggers::new().every_nth_instruction(LOOK), move |lua, _| {
            if !until.is_over() {
                return Ok(VmState::Continue);
            }
            Err(stop(lua, late))
        })
    }
}

/// The function of a text, which is no bytecode.
///
/// # Errors
/// It is none of Lua, or has too many jumps.
pub fn read(lua: &Lua, text: &[u8], name: String) -> mlua::Result<Function> {
    if jumps(text) > JUMPS {
        let why = format!("more than {JUMPS} of `and`, `or`, `elseif` and `break` in one script");
        return Err(mlua::Error::runtime(why));
    }
    // Lua 5.1 itself holds the name by nothing until the text's function is begun (CVE-2025-49844).
    let held = lua.create_string(&name)?;
    let function = lua.load(text).set_mode(ChunkMode::Text).set_name(name).into_function();
    drop(held);
    function
}

/// How often a text has words that Lua makes jumps of, be it in a comment.
fn jumps(text: &[u8]) -> usize {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    words.filter(|word| matches!(*word, b"and" | b"or" | b"elseif" | b"break")).count()
}

/// Called before what may take long.
///
/// # Errors
/// The time of the script that runs is over.
pub fn in_time(call: &Current) -> mlua::Result<()> {
    let over = call.borrow().as_ref().is_some_and(|(_, until)| until.is_over());
    if over { Err(late()) } else { Ok(()) }
}

/// Ends the script: from now on every instruction of it fails. Returns the error.
pub fn stop(lua: &Lua, why: fn() -> mlua::Error) -> mlua::Error {
    let hook = lua.set_global_hook(HookTriggers::new().every_nth_instruction(1), move |_, _| Err(why()));
    hook.err().unwrap_or_else(why)
}

/// The error of a script that has asked for a key that is not in its draft. No client sees it.
pub fn astray() -> mlua::Error {
    mlua::Error::runtime(crate::shard::Trouble::Unread)
}

/// The error of a script whose time is over.
pub fn too_slow() -> String {
    let [cpu, clock] = [TIME, CLOCK].map(|time| time.as_millis());
    format!("the script ran for more than {cpu} ms of CPU time, or {clock} ms: it changes nothing")
}

/// The error of a script whose time is over.
pub fn late() -> mlua::Error {
    mlua::Error::runtime(too_slow())
}

/// The reply for a script that has failed with this value.
fn error_of(value: &Value, name: &[u8]) -> String {
    let text = match value {
        Value::Table(table) => match table.raw_get::<Value>("err") {
            Ok(Value::String(text)) => text.to_string_lossy(),
            _ => "ERR the script failed with a table".into(),
        },
        Value::String(text) => format!("ERR {}", text.to_string_lossy()),
        Value::Error(e) => format!("ERR {}", told(e)),
        other => format!("ERR the script failed with a {}", other.type_name()),
    };
    format!("{text} script: {}, on @user_script.", String::from_utf8_lossy(name))
}

/// An error as Lua's own functions tell it: with the line of the script behind it.
pub fn told(e: &mlua::Error) -> String {
    let (mut e, mut place) = (e, None);
    while let mlua::Error::CallbackError { traceback, cause } = e {
        // The function that has raised it, and the one that has called that.
        let calls = traceback.lines().skip(1).map(str::trim).filter(|line| !line.starts_with("farmem:"));
        let line = calls.take(2).find_map(|line| line.strip_prefix("user_script:")?.split(':').next());
        place = line.map(str::to_owned);
        e = cause;
    }
    match (first_line(e), place) {
        (text, Some(line)) if !text.starts_with("user_script:") => format!("user_script:{line}: {text}"),
        (text, _) => text,
    }
}

/// An error of Lua without the places that it passed.
fn first_line(e: &mlua::Error) -> String {
    let text = e.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.strip_prefix("runtime error: ").or_else(|| line.strip_prefix("syntax error: ")).unwrap_or(line);
    line.to_owned()
}

#[test]
fn time_is_over_by_the_cpu_or_by_the_clock() {
    let (hour, now) = (Duration::from_secs(3600), Instant::now());
    let by_cpu = Until::new(Duration::from_millis(20), now + hour);
    std::thread::sleep(Duration::from_millis(60));
    assert!(!by_cpu.is_over(), "it has slept");
    while !by_cpu.is_over() {
        assert!(now.elapsed() < hour / 60);
    }
    assert!(Until::new(hour, now).is_over() && !Until::new(hour, now + hour).is_over());
}

/// Names that nothing else holds, a collection at each step, and no memory at each place in turn.
#[test]
fn a_texts_name_stays_while_the_text_is_compiled() {
    let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING, LuaOptions::default()).unwrap();
    lua.gc_set_mode(mlua::state::GcMode::Incremental(
        mlua::state::GcIncParams::default().pause(0).step_multiplier(10_000),
    ));
    let text: String = (0..200).map(|n| format!("local v{n} = 'text {n}' .. \"{n}\"; ")).take(190).collect();
    let (mut compiled, mut refused) = (0, 0);
    for n in 0..600 {
        let name = format!("@a name that nothing else holds, number {n}");
        lua.gc_collect().unwrap();
        // From no room on to enough.
        lua.set_memory_limit(lua.used_memory() + 1024 * n).unwrap();
        let function = read(&lua, text.as_bytes(), name.clone());
        lua.set_memory_limit(0).unwrap();
        match function {
            Ok(function) => {
                lua.gc_collect().unwrap();
                assert_eq!(function.info().source.as_deref(), Some(name.as_str()));
                compiled += 1;
            }
            Err(e) => {
                assert!(e.to_string().contains("not enough memory"), "{e}");
                refused += 1;
            }
        }
    }
    assert!(compiled > 50 && refused > 50, "{compiled} compiled, {refused} refused");
}
