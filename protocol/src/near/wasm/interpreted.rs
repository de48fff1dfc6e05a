//! An engine that interprets modules: no code is made that a processor would run.

mod locals;

use super::{MAX_CODE, MAX_FUEL, MAX_OWN, Wasm};
use crate::near::{Bytes, Call, Reply, STEP, Which};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use wasmi::{
    CompilationMode, Config, EnforcedLimits, Linker, Module, Store, StoreLimits, StoreLimitsBuilder, TypedResumableCall,
};

/// Fuel between two looks at the clock: some 100 µs.
const SLICE: u64 = 16 << 10;
/// Modules that are kept for calls to come.
const KEPT: usize = 16;
/// Bytes of a page of WebAssembly.
const PAGE: usize = 64 << 10;

/// Runs modules, and keeps the last ones.
#[derive(Default)]
pub struct Engine {
    /// The last modules, by their bytes. Each has an engine of its own: an engine frees the code of
    /// its modules when it is dropped, and not before.
    kept: Mutex<VecDeque<(Box<[u8]>, Module)>>,
}

/// An engine of wasmi for one module.
fn engine() -> wasmi::Engine {
    let mut config = Config::default();
    config.consume_fuel(true).allow_start_fn(false).ignore_custom_sections(true);
    // A branch of several values is translated for each of its targets, which are a byte each.
    config.wasm_multi_value(false);
    // Validated and translated before a function runs: within the deadline of the call, or not at all.
    config.compilation_mode(CompilationMode::Eager).enforced_limits(EnforcedLimits::strict());
    config.set_max_recursion_depth(256).set_max_stack_height(256 << 10);
    wasmi::Engine::new(&config)
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Runs a call whose function is this one. `None`: the module is none or cannot run here, it
    /// trapped, or the call is late.
    pub fn run(&self, call: &Call, wasm: Wasm, memory: &mut impl Bytes) -> Option<Reply> {
        let mut code = vec![0; wasm.code as usize];
        memory.read(Which::List, 0, &mut code)?;
        let mut source = vec![0; call.source.len as usize];
        for (part, at) in source.chunks_mut(STEP).zip((0..).step_by(STEP)) {
            memory.read(Which::Source, at, part)?;
        }
        let (word, result) = self.compute(&code, &source, wasm, || memory.is_late()).ok()?;
        memory.write(Which::List, wasm.result_at(), &result)?;
        Some(Reply::Ran(word))
    }

    /// Runs a module on bytes: the word that it returned, and its result.
    ///
    /// # Errors
    /// Why it did not run to its end.
    pub fn compute(
        &self,
        code: &[u8],
        source: &[u8],
        wasm: Wasm,
        mut is_late: impl FnMut() -> bool,
    ) -> Result<(u64, Vec<u8>), String> {
        let module = self.module(code)?;
        if is_late() {
            return Err("its time was over before it began".into());
        }
        let behind = source.len().next_multiple_of(8);
        let pages = (behind + wasm.room as usize).div_ceil(PAGE);
        let mut store = Store::new(module.engine(), limits(pages * PAGE));
        store.limiter(|limits| limits);
        let fuel = |e: wasmi::Error| e.to_string();
        store.set_fuel(SLICE).map_err(fuel)?;
        // Nothing is linked: a module with imports is refused.
        let instance = Linker::new(module.engine()).instantiate_and_start(&mut store, &module).map_err(fuel)?;
        let memory = instance.get_memory(&store, "memory").ok_or("it exports no memory")?;
        let run = instance.get_typed_func::<(i32, i32, i32, i32, i64), i64>(&store, "run").map_err(fuel)?;
        let at = memory.grow(&mut store, pages as u64).map_err(|e| e.to_string())? as usize * PAGE;
        memory.write(&mut store, at, source).map_err(|e| e.to_string())?;
        let result_at = at + behind;
        let places = (at as i32, source.len() as i32, result_at as i32, wasm.room as i32, wasm.argument.cast_signed());
        let mut used = SLICE;
        let mut call = run.call_resumable(&mut store, places).map_err(fuel)?;
        let word = loop {
            match call {
                TypedResumableCall::Finished(word) => break word,
                TypedResumableCall::HostTrap(_) => return Err("it called its host".into()),
                TypedResumableCall::OutOfFuel(paused) => {
                    let more = paused.required_fuel().max(SLICE);
                    used = used.saturating_add(more);
                    if is_late() || used > MAX_FUEL {
                        return Err(format!("it did not end within its time, or {MAX_FUEL} steps"));
                    }
                    store.set_fuel(more).map_err(fuel)?;
                    call = paused.resume(&mut store).map_err(fuel)?;
                }
            }
        };
        let mut result = vec![0; wasm.room as usize];
        memory.read(&store, result_at, &mut result).map_err(|e| e.to_string())?;
        Ok((word.cast_unsigned(), result))
    }

    /// The module of these bytes, from those that are kept if it is one of them.
    fn module(&self, code: &[u8]) -> Result<Module, String> {
        if code.len() > MAX_CODE as usize {
            return Err(format!("{} bytes: a module has {MAX_CODE} at most", code.len()));
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, module)) = kept.iter().find(|(bytes, _)| **bytes == *code) {
            return Ok(module.clone());
        }
        drop(kept);
        if !locals::are_few(code).ok_or("it is no module")? {
            return Err("it has a function of more than 256 locals, or more than 4096 in all".into());
        }
        let module = Module::new(&engine(), code).map_err(|e| e.to_string())?;
        kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.truncate(KEPT - 1);
        kept.push_front((code.into(), module.clone()));
        Ok(module)
    }
}

/// The limits of a module that has `beside` bytes of memory beside its own.
fn limits(beside: usize) -> StoreLimits {
    let limits = StoreLimitsBuilder::new().memory_size(MAX_OWN + beside).table_elements(1024);
    limits.instances(1).memories(1).tables(1).build()
}

#[cfg(test)]
mod large;
#[cfg(test)]
mod modules;
#[cfg(test)]
mod tests;
