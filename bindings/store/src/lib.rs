//! The key-value store, far vectors and frames for programs in C and Python. The headers
//! `farmem_store.h` and `farmem_objects.h` in `bindings/c` describe each function.
//!
//! A function returns a [`code`], and describes its error in `why`. A panic does not cross into the
//! caller: it becomes [`code::FAILED`].

#![allow(unsafe_code)] // C hands over pointers. Each function names what its caller upholds.

mod error;
mod forks;
mod handle;
mod objects;
mod ops;

pub use error::{Error, code};
pub use handle::Handle;
pub use objects::HeapHandle;
pub use ops::RawOp;

use error::Problem;
use farmem::Transport;
use farmem_kv::Config;
use farmem_trust::file;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

/// `struct farmem_store_options`.
#[repr(C)]
#[derive(Debug)]
pub struct RawOptions {
    bytes: usize,
    local: u64,
    maxmemory: u64,
    token: *const c_char,
    transport: *const c_char,
    grace_ms: u32,
    mirror: u32,
}

/// Carries out a call and returns its code. Describes an error or a panic in `why`.
///
/// # Safety
/// `why` is null or points to memory for an error that no other thread uses meanwhile.
unsafe fn call(why: *mut Error, act: impl FnOnce() -> Result<c_int, Problem>) -> c_int {
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| Err(Problem::panicked()));
    match outcome {
        Ok(code) => code,
        Err(problem) => {
            let code = problem.code;
            // SAFETY: as this function's caller promises.
            unsafe { error::describe(why, &problem) };
            code
        }
    }
}

/// The caller's text; `None` if the pointer is null. `what` names it in errors.
///
/// # Safety
/// `text` is null or ends with a 0, and stays as it is for `'a`.
unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<Option<&'a str>, Problem> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as this function's caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Problem::invalid(format!("{what} is not UTF-8")))
}

fn transport(name: &str) -> Result<Transport, Problem> {
    Ok(match name {
        "auto" => Transport::Auto,
        "shm" => Transport::Shm,
        "tcp" => Transport::Tcp,
        "verbs" => Transport::Verbs,
        other => {
            return Err(Problem::invalid(format!("the transport is {other:?}; it can be auto, shm, tcp or verbs")));
        }
    })
}

/// The configuration of a store by the arguments of [`farmem_store_open`].
///
/// # Safety
/// As [`farmem_store_open`].
unsafe fn config(
    name: *const c_char,
    nodes: *const *const c_char,
    n_nodes: usize,
    options: *const RawOptions,
) -> Result<Config, Problem> {
    let missing = |what: &str| Problem::invalid(format!("{what} is missing"));
    // SAFETY: the caller's texts and arrays are as the header requires. `bytes` is the size of the
    // options that the caller was compiled with, and it is checked before they are used.
    unsafe {
        let name = text("the store's name", name)?.ok_or_else(|| missing("the store's name"))?;
        if nodes.is_null() || n_nodes == 0 {
            return Err(Problem::invalid("name the store's nodes: [\"HOST:PORT\", …]".into()));
        }
        let mut named = Vec::new();
        for n in 0..n_nodes {
            named.push(text("a node's address", *nodes.add(n))?.ok_or_else(|| missing("a node's address"))?);
        }
        let mut config = Config::of(name, &named);
        let mut token = None;
        if let Some(options) = options.as_ref() {
            if options.bytes != size_of::<RawOptions>() {
                return Err(Problem::invalid("options.bytes is not the options' size".into()));
            }
            token = text("the token's file", options.token)?;
            if let Some(transport) = text("the transport", options.transport)? {
                config.transport = self::transport(transport)?;
            }
            config.mirror = options.mirror != 0;
            config.maxmemory = Some(options.maxmemory).filter(|&most| most > 0);
            if options.local > 0 {
                config.local = options.local;
            }
            if options.grace_ms > 0 {
                config.grace = Duration::from_millis(u64::from(options.grace_ms));
            }
        }
        let key = match token {
            Some(path) => file::token(Path::new(path)).map(Some),
            None => file::of_environment(),
        };
        config.trust = key.map_err(|e| Problem::unreached(format!("token {e}")))?.into();
        Ok(config)
    }
}

/// Opens a store. Returns null after an error.
///
/// # Safety
/// `name` and the `n_nodes` texts at `nodes` end with a 0. `options` is null or points to options
/// whose `bytes` is set. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_open(
    name: *const c_char,
    nodes: *const *const c_char,
    n_nodes: usize,
    options: *const RawOptions,
    why: *mut Error,
) -> *mut Handle {
    let mut opened = std::ptr::null_mut();
    // SAFETY: the caller upholds what `call` and `config` want.
    unsafe {
        call(why, || {
            let handle = Handle::open(&config(name, nodes, n_nodes, options)?).map_err(Problem::not_opened)?;
            opened = Box::into_raw(Box::new(handle));
            Ok(code::OK)
        });
    }
    opened
}

/// Leaves a store. The handle stays allocated: later calls return [`code::CLOSED`].
///
/// # Safety
/// `store` is open. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_leave(store: *const Handle, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe { call(why, || handle(store)?.close().map(|()| code::OK).map_err(|failed| Problem::of(&failed))) }
}

/// Leaves a store and frees it.
///
/// # Safety
/// `store` is null or of [`farmem_store_open`], and used by no other call, now or later. `why` is
/// null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_close(store: *mut Handle, why: *mut Error) -> c_int {
    // SAFETY: the caller gives the handle up, so this is its only owner.
    unsafe {
        call(why, || {
            if store.is_null() {
                return Ok(code::OK);
            }
            let handle = Box::from_raw(store);
            if handle.is_forked() {
                // The connections belong to the parent, so the handle is leaked here.
                std::mem::forget(handle);
                return Ok(code::OK);
            }
            handle.close().map(|()| code::OK).map_err(|failed| Problem::of(&failed))
        })
    }
}

/// The caller's store.
///
/// # Safety
/// `store` is null or of [`farmem_store_open`], and not closed for `'a`.
unsafe fn handle<'a>(store: *const Handle) -> Result<&'a Handle, Problem> {
    // SAFETY: as this function's caller promises. A handle may be used by several threads.
    unsafe { store.as_ref() }.ok_or_else(|| Problem::invalid("the store is NULL".into()))
}

/// Carries out operations at the same time. Each operation gets a status of its own.
///
/// # Safety
/// `store` is open. `ops` points to `n` operations that no other thread uses meanwhile. Their keys
/// and values are as long as they say. The value of an operation that reads can be written to.
/// `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_do(store: *const Handle, ops: *mut RawOp, n: usize, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            let handle = handle(store)?;
            if n == 0 {
                return Ok(code::OK);
            }
            if ops.is_null() {
                return Err(Problem::invalid("the operations are NULL".into()));
            }
            let first = ops::carry_out(handle, std::slice::from_raw_parts_mut(ops, n))?;
            if let Some(problem) = first {
                error::describe(why, &problem);
            }
            Ok(code::OK)
        })
    }
}

/// Returns about `count` keys from a place on, packed: for each its length in 4 bytes, then the
/// key.
///
/// # Safety
/// `store` is open. `place`, `keys` and `bytes` can be written to. `why` is null or points to an
/// error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_scan(
    store: *const Handle,
    place: *mut u64,
    count: usize,
    keys: *mut *mut c_void,
    bytes: *mut usize,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            let handle = handle(store)?;
            if place.is_null() || keys.is_null() || bytes.is_null() {
                return Err(Problem::invalid("place, keys and bytes must not be NULL".into()));
            }
            let from = *place;
            let (found, next) = handle.with(|store| store.scan(from, count.clamp(1, 1 << 20)))?;
            let mut packed = Vec::new();
            for key in found {
                packed.extend_from_slice(&(key.len() as u32).to_ne_bytes());
                packed.extend_from_slice(&key);
            }
            *keys = ops::copied(&[&packed])?;
            (*bytes, *place) = (packed.len(), next);
            Ok(code::OK)
        })
    }
}

/// Stores the number of keys in `keys`.
///
/// # Safety
/// `store` is open. `keys` can be written to. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_size(store: *const Handle, keys: *mut u64, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            let handle = handle(store)?;
            if keys.is_null() {
                return Err(Problem::invalid("keys must not be NULL".into()));
            }
            *keys = handle.with(|store| store.size())?;
            Ok(code::OK)
        })
    }
}

/// Frees memory that a function of this library returned.
///
/// # Safety
/// `memory` is null or came from a function of this library, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_store_free(memory: *mut c_void) {
    // SAFETY: `ops::copied` takes memory from malloc.
    unsafe { libc::free(memory) }
}
