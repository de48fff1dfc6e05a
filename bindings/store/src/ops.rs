//! A batch of operations. The caller's C structures become operations of the store, and the
//! outcomes are written back into them.

use crate::error::{Problem, code};
use crate::handle::Handle;
use farmem::{Loan, Payload};
use farmem_kv::{Act, Failed, Op, Outcome, Store};
use std::ffi::{c_int, c_void};

/// `struct farmem_store_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawOp {
    what: c_int,
    status: c_int,
    key: *const c_void,
    key_bytes: usize,
    value: *mut c_void,
    value_bytes: usize,
    found_bytes: usize,
    expires_ms: u64,
}

const GET: c_int = 1;
const PUT: c_int = 2;
const PUT_NEW: c_int = 3;
const REMOVE: c_int = 4;
const LOOK: c_int = 5;
const EXPIRE: c_int = 6;
const GET_BLOCK: c_int = 7;
const PUT_BLOCK: c_int = 8;
const REMOVE_BLOCK: c_int = 9;
const LOOK_BLOCK: c_int = 10;
const PIN_BLOCK: c_int = 11;

/// The error of a null pointer with a length.
fn missing(what: &str, len: usize) -> Problem {
    Problem::invalid(format!("{what} is NULL, and has {len} bytes"))
}

/// The caller's bytes.
///
/// # Safety
/// `len` bytes at `at` can be read and do not change for `'a`.
unsafe fn bytes<'a>(at: *const c_void, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: as this function's caller promises.
        _ => unsafe { std::slice::from_raw_parts(at.cast(), len) },
    }
}

/// Copies parts, one after the other, into memory from `malloc`.
pub(crate) fn copied(parts: &[&[u8]]) -> Result<*mut c_void, Problem> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    // SAFETY: malloc has no preconditions. At least one byte is asked for: for none it may return
    // null.
    let memory = unsafe { libc::malloc(len.max(1)) };
    if memory.is_null() {
        return Err(Problem::no_memory(len));
    }
    // SAFETY: `memory` has `len` bytes, and only this function knows it yet.
    unsafe { fill(memory.cast(), parts) };
    Ok(memory)
}

/// Copies parts, one after the other, to `to`.
///
/// # Safety
/// `to` has room for all parts, and no other thread uses it meanwhile.
unsafe fn fill(to: *mut u8, parts: &[&[u8]]) {
    let mut at = to;
    for part in parts {
        // SAFETY: as this function's caller promises. The parts are the store's own memory: nothing
        // overlaps.
        unsafe {
            at.copy_from_nonoverlapping(part.as_ptr(), part.len());
            at = at.add(part.len());
        }
    }
}

impl RawOp {
    /// Refuses an unknown operation or a missing key or value, before any operation is carried out.
    fn check(&self) -> Result<(), Problem> {
        let stores = matches!(self.what, PUT | PUT_NEW | PUT_BLOCK);
        match self.what {
            GET..=PIN_BLOCK if self.key.is_null() && self.key_bytes > 0 => Err(missing("a key", self.key_bytes)),
            GET..=PIN_BLOCK if stores && self.value.is_null() && self.value_bytes > 0 => {
                Err(missing("a value", self.value_bytes))
            }
            GET..=PIN_BLOCK => Ok(()),
            other => Err(Problem::invalid(format!("there is no operation {other}"))),
        }
    }

    /// Carries the operation out if that needs no wait. It then copies only from or to the caller's
    /// memory. `None`: it was not carried out.
    ///
    /// # Safety
    /// As [`RawOp::op`] and [`RawOp::take`].
    unsafe fn at_once(&mut self, store: &mut Store) -> Option<Result<Result<c_int, Problem>, Failed>> {
        // SAFETY: as this function's caller promises.
        let key = unsafe { bytes(self.key, self.key_bytes) };
        match self.what {
            GET => match store.get_at_once(key) {
                // SAFETY: as this function's caller promises.
                Ok(found) => found.map(|found| Ok(unsafe { self.take(&[&found], found.expiry()) })),
                Err(failed) => Some(Err(failed)),
            },
            PUT if self.expires_ms == 0 => {
                // SAFETY: as this function's caller promises.
                match store.put_at_once(key, unsafe { bytes(self.value, self.value_bytes) }) {
                    Ok(stored) => stored.then_some(Ok(Ok(code::OK))),
                    Err(failed) => Some(Err(failed)),
                }
            }
            _ => None,
        }
    }

    /// The operation as the store takes it, with copies of the caller's key and value. A block is
    /// lent.
    ///
    /// # Safety
    /// Its key can be read, and its value if it stores one: a block until the loan is over.
    /// [`RawOp::check`] accepted it.
    unsafe fn op(&self, loan: &Loan) -> Op {
        let expiry = Some(self.expires_ms).filter(|&at| at > 0);
        // SAFETY: as this function's caller promises.
        let (key, value) =
            unsafe { (bytes(self.key, self.key_bytes).to_vec(), || bytes(self.value, self.value_bytes).to_vec()) };
        let act = match self.what {
            GET => Act::Get,
            PUT => Act::Put { value: value(), expiry },
            PUT_NEW => Act::PutNew { value: value(), expiry },
            REMOVE => Act::Remove,
            LOOK => Act::Look,
            EXPIRE => Act::Expire { expiry },
            GET_BLOCK => Act::GetBlock,
            PUT_BLOCK => {
                // SAFETY: as this function's caller promises.
                let block = unsafe { Payload::lent(loan, bytes(self.value, self.value_bytes)) };
                Act::PutPayload { block, expiry }
            }
            REMOVE_BLOCK => Act::RemoveBlock,
            LOOK_BLOCK => Act::LookBlock,
            _ => Act::PinBlock { until: expiry },
        };
        Op { key, act }
    }

    /// Writes a found value into the operation: its length, expiry and bytes. LOOK gets no bytes.
    /// Without a buffer the bytes get memory from `malloc`.
    ///
    /// # Safety
    /// If `value` is not null, `value_bytes` can be written there.
    unsafe fn take(&mut self, parts: &[&[u8]], expiry: Option<u64>) -> Result<c_int, Problem> {
        self.found_bytes = parts.iter().map(|part| part.len()).sum();
        self.expires_ms = expiry.unwrap_or(0);
        if self.what == LOOK {
            return Ok(code::OK);
        }
        if self.value.is_null() {
            self.value = copied(parts)?;
        } else if self.found_bytes > self.value_bytes {
            return Ok(code::SMALL);
        } else {
            // SAFETY: the buffer has room for all parts, as this function's caller promises.
            unsafe { fill(self.value.cast(), parts) };
        }
        Ok(code::OK)
    }

    /// Writes an outcome into the operation. Returns its code.
    ///
    /// # Safety
    /// As [`RawOp::take`].
    unsafe fn end(&mut self, outcome: Result<Outcome, Failed>) -> Result<c_int, Problem> {
        match outcome.map_err(|failed| Problem::of(&failed))? {
            // SAFETY: as this function's caller promises.
            Outcome::Found(found) => unsafe { self.take(&[&found], found.expiry()) },
            // SAFETY: as this function's caller promises.
            Outcome::Block(block) => unsafe { self.take(&block.parts().collect::<Vec<_>>(), block.expiry()) },
            Outcome::Length(bytes, expiry) => {
                (self.found_bytes, self.expires_ms) = (bytes as usize, expiry.unwrap_or(0));
                Ok(code::OK)
            }
            Outcome::Done => Ok(code::OK),
            Outcome::Absent => Ok(code::ABSENT),
            Outcome::Present => Ok(code::PRESENT),
        }
    }
}

/// The caller's operations. Only the thread in this call uses them. `Send` lets them pass into the
/// closure that runs under the store's lock.
struct Ops<'a>(&'a mut [RawOp]);

// SAFETY: the pointers within belong to the caller, which lends them to this call until it ends.
unsafe impl Send for Ops<'_> {}

/// The error of the first operation that failed. Operations are added as they end.
#[derive(Default)]
struct First(Option<Problem>);

impl First {
    /// The code of an operation's end. Notes its error if it is the first.
    fn code(&mut self, ended: Result<c_int, Problem>) -> c_int {
        ended.unwrap_or_else(|problem| {
            let code = problem.code;
            self.0.get_or_insert(problem);
            code
        })
    }
}

/// Which operations had no buffer, and got memory of the library's.
type Given = Vec<usize>;

/// Takes memory back that operations got. Their call has failed, so the caller looks at none of them.
fn take_back(ops: &mut [RawOp], given: &Given) {
    for &n in given {
        // SAFETY: `copied` returned it, and no caller has seen it yet.
        unsafe { libc::free(ops[n].value) };
        (ops[n].value, ops[n].found_bytes, ops[n].status) = (std::ptr::null_mut(), 0, code::FAILED);
    }
}

/// Carries out the caller's operations, and writes each one's status. Those that need no wait come
/// first. The others follow as one batch, and wait together. Returns the error of the first that
/// failed. If the call fails as a whole, no operation has memory of the library's.
///
/// # Safety
/// All keys and values are as [`crate::farmem_store_do`] requires.
pub(crate) unsafe fn carry_out(handle: &Handle, ops: &mut [RawOp]) -> Result<Option<Problem>, Problem> {
    for op in &mut *ops {
        (op.status, op.found_bytes) = (code::FAILED, 0);
        op.check()?;
    }
    let raw = Ops(ops);
    let first = handle.with(move |store| {
        let Ops(ops) = { raw };
        let mut given = Given::new();
        // SAFETY: as this function's caller promises.
        let ended = unsafe { with_store(store, ops, &mut given) };
        if ended.is_err() {
            take_back(ops, &given);
        }
        ended
    })?;
    Ok(first)
}

/// [`carry_out`] under the lock.
///
/// # Safety
/// As there.
unsafe fn with_store(store: &mut Store, ops: &mut [RawOp], given: &mut Given) -> Result<Option<Problem>, Failed> {
    let (mut first, mut left) = (First::default(), Vec::new());
    for (n, op) in ops.iter_mut().enumerate() {
        let none = op.value.is_null();
        // SAFETY: as this function's caller promises.
        match unsafe { op.at_once(store) } {
            Some(Ok(ended)) => {
                op.status = first.code(ended);
                given.extend((none && !op.value.is_null()).then_some(n));
            }
            Some(Err(Failed::Refused(trouble))) => {
                op.status = first.code(Err(Problem::of(&Failed::Refused(trouble))));
            }
            Some(Err(failed)) => return Err(failed),
            None => left.push((n, op)),
        }
    }
    if left.is_empty() {
        return Ok(first.0);
    }
    // Values are copied as operations begin and end: 4 MiB are written and 32 MiB read at a time. All of it
    // is done under the lock, because the store's near cache shares their bytes.
    let asked: Vec<RawOp> = left.iter().map(|(_, op)| **op).collect();
    let loan = Loan::default();
    let lent = Lent(&loan);
    // SAFETY: as this function's caller promises. Blocks stay until this function ends, and `lent` sees to
    // it that they are not used any more then.
    let ops = asked.iter().map(|op| unsafe { op.op(&loan) });
    store.batch_with(ops, |number, outcome| {
        let (n, op) = &mut left[number];
        let none = op.value.is_null();
        // SAFETY: as this function's caller promises.
        op.status = first.code(unsafe { op.end(outcome) });
        given.extend((none && !op.value.is_null()).then_some(*n));
    })?;
    drop(lent);
    Ok(first.0)
}

/// Makes sure that a loan is over before the caller has its memory back, however the call ends.
/// [`Store::batch_with`] promises it. Otherwise a node would be sent whatever the memory holds
/// later, so the process is aborted.
struct Lent<'a>(&'a Loan);

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.0.is_over() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_fabric::NodeAddr;
    use farmem_kv::Config;
    use std::ptr::null_mut;
    use std::time::{Duration, Instant};

    const BYTES: usize = 1 << 20;

    fn get(key: &[u8], value: *mut c_void) -> RawOp {
        let (key, key_bytes) = (key.as_ptr().cast(), key.len());
        RawOp { what: GET, status: 0, key, key_bytes, value, value_bytes: 0, found_bytes: 0, expires_ms: 0 }
    }

    /// Bytes that malloc has given out.
    fn allocated() -> usize {
        // SAFETY: it has no preconditions.
        let about = unsafe { libc::mallinfo2() };
        about.uordblks + about.hblkhd
    }

    #[test]
    fn a_call_that_fails_keeps_no_memory() {
        // Mapped memory would stay there without its node.
        let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
        let node = farmem_memory::Node::start(&farmem_memory::Config::new(4 * (64 << 20), listen)).expect("a node");
        let config =
            Config { grace: Duration::from_millis(200), ..Config::of("fails", &[&node.addresses()[0].to_string()]) };
        let handle = Handle::open(&config).expect("a store");
        let value = vec![7; BYTES];
        handle.with(|store| store.put(b"near", &value)).expect("stored");
        // Alone, it answers from its cache.
        let begun = Instant::now();
        while handle.with(|store| Ok(store.get_at_once(b"near")?.is_some())).is_ok_and(|near| !near) {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not alone");
            handle.with(|store| store.get(b"near").map(drop)).expect("read");
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut ops = [get(b"near", null_mut()), get(b"none", null_mut())];
        // SAFETY: the keys are constants, and there are no buffers.
        let first = unsafe { carry_out(&handle, &mut ops) };
        assert!(first.is_ok_and(|first| first.is_none()) && ops[0].found_bytes == BYTES && ops[1].value.is_null());
        // SAFETY: of the call before.
        unsafe { libc::free(ops[0].value) };
        ops[0].value = null_mut();
        drop(node);
        let before = allocated();
        // SAFETY: as above.
        let failed = unsafe { carry_out(&handle, &mut ops) };
        assert!(failed.is_err(), "the node is gone");
        assert!(ops.iter().all(|op| op.value.is_null() && op.found_bytes == 0 && op.status == code::FAILED));
        assert!(allocated() < before + BYTES / 2, "{} bytes are kept", allocated() - before);
        // Some have buffers of the caller's.
        let own = Box::new([0u8; 8]);
        let buffer = std::ptr::from_ref(&*own).cast_mut().cast();
        let mut ops = [get(b"a", null_mut()), get(b"b", buffer), get(b"c", null_mut())];
        for n in [0, 2] {
            // SAFETY: it has no buffer.
            assert!(unsafe { ops[n].take(&[&[1; BYTES]], None) }.is_ok_and(|code| code == code::OK));
        }
        let before = allocated();
        take_back(&mut ops, &vec![0, 2]);
        assert_eq!(ops.map(|op| op.value), [null_mut(), buffer, null_mut()]);
        assert!(allocated() + BYTES + BYTES / 2 < before);
    }
}
