//! Far vectors of bytes and frames for programs in C and Python: `bindings/c/farmem_objects.h`
//! describes each function.
//!
//! ```text
//! a thread of the program ── call ──► the heap's own thread: heap, vectors, frames
//!                         ◄─ answer ─┘
//! ```
//!
//! Far objects stay on one thread. So each heap has a thread of its own. It carries out the calls
//! of all of the program's threads, one at a time. A caller waits for its answer, so its pointers
//! stay valid meanwhile. The program names vectors and frames by numbers.

mod query;

use crate::error::{Error, Problem, code};
use crate::forks::Process;
use crate::{call, text, transport};
use farmem_objects::{ArrowArray, ArrowSchema, FarFrame, FarVec, Heap, Table, Writer};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Sender, channel};

/// A call, to be carried out by the heap's thread.
type Job = Box<dyn FnOnce(&mut State) + Send>;

/// The state of a heap's thread: its objects by number.
pub(crate) struct State {
    heap: Heap,
    /// The last number that was given to an object.
    last: u64,
    vecs: HashMap<u64, FarVec<u8>>,
    /// Frames that are being written.
    writers: HashMap<u64, Writer>,
    frames: HashMap<u64, FarFrame>,
}

impl State {
    /// A number for a new object.
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn vec(&mut self, number: u64) -> Result<&mut FarVec<u8>, Problem> {
        self.vecs.get_mut(&number).ok_or_else(|| Problem::invalid(format!("there is no vector {number}")))
    }

    fn frame(&self, number: u64) -> Result<&FarFrame, Problem> {
        self.frames.get(&number).ok_or_else(|| Problem::invalid(format!("there is no frame {number}")))
    }
}

impl From<farmem_objects::Error> for Problem {
    fn from(e: farmem_objects::Error) -> Problem {
        use farmem_objects::Error::{Column, HeapFull, Index, Memory, NoColumn, NotASize, TooLittleLocal};
        let code = match &e {
            Memory(farmem::Error::Lost { .. }) => code::LOST,
            Memory(farmem::Error::Full(_)) | HeapFull => code::FULL,
            Memory(farmem::Error::Forked) => code::FORKED,
            Column { .. } | NoColumn { .. } | Index { .. } | NotASize(_) | TooLittleLocal(_) => code::INVALID,
            _ => code::FAILED,
        };
        Problem { code, text: e.to_string() }
    }
}

/// A heap, which its own thread holds.
#[derive(Debug)]
pub struct HeapHandle {
    /// `None` only while the handle is dropped: the thread then ends.
    jobs: Option<Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    process: Process,
}

/// A caller's pointer on its way to the heap's thread.
struct Sent<T>(T);

// SAFETY: the caller waits until the heap's thread is done with it.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    /// As a method, so that closures take the wrapper and not its field.
    fn get(self) -> T {
        self.0
    }
}

impl HeapHandle {
    /// Starts the heap's thread, and waits until it has built the heap.
    fn open(nodes: Vec<String>, local: u64, way: farmem::Transport) -> Result<HeapHandle, Problem> {
        let (jobs, queue) = channel::<Job>();
        let (tell, told) = channel();
        let work = move || {
            let builder = nodes.into_iter().fold(Heap::builder(), |builder, node| builder.node(node));
            let builder = if local > 0 { builder.local(local as usize) } else { builder };
            match builder.transport(way).build() {
                Ok(heap) => {
                    let _ = tell.send(Ok(()));
                    let mut state =
                        State { heap, last: 0, vecs: HashMap::new(), writers: HashMap::new(), frames: HashMap::new() };
                    queue.into_iter().for_each(|job| job(&mut state));
                }
                Err(e) => drop(tell.send(Err(Problem { code: code::UNREACHED, text: e.to_string() }))),
            }
        };
        let thread = std::thread::Builder::new().name("farmem-heap".into()).spawn(work);
        let thread = thread.map_err(|e| Problem { code: code::FAILED, text: format!("no thread: {e}") })?;
        told.recv().unwrap_or_else(|_| Err(Problem::panicked()))?;
        Ok(HeapHandle { jobs: Some(jobs), thread: Some(thread), process: Process::this() })
    }

    /// Has the heap's thread carry out `act`. Waits, and returns its result.
    fn on<T: 'static>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if !self.process.is_this() {
            let text = "the heap was opened before a fork: open one of its own in the child";
            return Err(Problem { code: code::FORKED, text: text.into() });
        }
        let (tell, told) = channel();
        let job: Job = Box::new(move |state| {
            let done = std::panic::catch_unwind(AssertUnwindSafe(|| act(state)));
            let _ = tell.send(Sent(done.unwrap_or_else(|_| Err(Problem::panicked()))));
        });
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        let closed = || Problem { code: code::CLOSED, text: "the heap was closed".into() };
        if !sent {
            return Err(closed());
        }
        told.recv().map_err(|_| closed())?.get()
    }
}

impl Drop for HeapHandle {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if !self.process.is_this() {
            // The thread runs in the parent alone.
            std::mem::forget(self.thread.take());
        } else if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The caller's heap.
///
/// # Safety
/// `heap` is null or of [`farmem_heap_open`], and not closed for `'a`.
unsafe fn handle<'a>(heap: *const HeapHandle) -> Result<&'a HeapHandle, Problem> {
    // SAFETY: as this function's caller promises. A handle may be used by several threads.
    unsafe { heap.as_ref() }.ok_or_else(|| Problem::invalid("the heap is NULL".into()))
}

/// Has the heap's thread carry out `act`, which returns no value.
///
/// # Safety
/// `heap` is open. The memory that `act` points to stays valid until it has ended. `why` is null or
/// points to an error.
unsafe fn done_by(
    heap: *const HeapHandle,
    why: *mut Error,
    act: impl FnOnce(&mut State) -> Result<(), Problem> + Send + 'static,
) -> c_int {
    // SAFETY: as this function's caller promises. The call waits for the heap's thread.
    unsafe { call(why, || handle(heap)?.on(act).map(|()| code::OK)) }
}

fn not_null<T>(what: &str, pointer: *const T) -> Result<(), Problem> {
    if pointer.is_null() { Err(Problem::invalid(format!("{what} must not be NULL"))) } else { Ok(()) }
}

/// The caller's bytes.
///
/// # Safety
/// There are `n` bytes at `bytes`, unless it is null or `n` is more than any program has.
unsafe fn given<'a>(bytes: *const c_void, n: usize) -> Result<&'a [u8], Problem> {
    not_null("bytes", bytes)?;
    if n > isize::MAX as usize {
        return Err(Problem::invalid(format!("{n} bytes are more than a program has")));
    }
    // SAFETY: as this function's caller promises.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), n) })
}

/// Opens a heap. Returns null after an error.
///
/// # Safety
/// The `n_nodes` texts at `nodes` end with a 0. `way` is null or ends with a 0. `why` is null or
/// points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_heap_open(
    nodes: *const *const c_char,
    n_nodes: usize,
    local: u64,
    way: *const c_char,
    why: *mut Error,
) -> *mut HeapHandle {
    let mut opened = std::ptr::null_mut();
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            if nodes.is_null() || n_nodes == 0 {
                return Err(Problem::invalid("name the heap's nodes: [\"HOST:PORT\", …]".into()));
            }
            let mut named = Vec::new();
            for n in 0..n_nodes {
                let node = text("a node's address", *nodes.add(n))?;
                named.push(node.ok_or_else(|| Problem::invalid("a node's address is missing".into()))?.to_owned());
            }
            let way = transport(text("the transport", way)?.unwrap_or("auto"))?;
            opened = Box::into_raw(Box::new(HeapHandle::open(named, local, way)?));
            Ok(code::OK)
        });
    }
    opened
}

/// Closes a heap, and drops all its vectors and frames.
///
/// # Safety
/// `heap` is null or of [`farmem_heap_open`], and used by no other call, now or later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_heap_close(heap: *mut HeapHandle) {
    if !heap.is_null() {
        // SAFETY: the caller gives the handle up.
        drop(unsafe { Box::from_raw(heap) });
    }
}

/// Makes an empty vector of bytes, and stores its number in `vec`.
///
/// # Safety
/// `heap` is open. `vec` can be written to. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_vec_new(heap: *const HeapHandle, vec: *mut u64, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            not_null("vec", vec)?;
            *vec = handle(heap)?.on(|state| {
                let (number, vec) = (state.number(), state.heap.vec());
                state.vecs.insert(number, vec);
                Ok(number)
            })?;
            Ok(code::OK)
        })
    }
}

/// Appends `n` bytes to a vector: all of them, or none after an error.
///
/// # Safety
/// `heap` is open. There are `n` bytes at `bytes`. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_vec_append(
    heap: *const HeapHandle,
    vec: u64,
    bytes: *const c_void,
    n: usize,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here, and waits.
    unsafe {
        call(why, || {
            if n > 0 {
                let bytes = Sent(given(bytes, n)?);
                handle(heap)?.on(move |state| {
                    let vec = state.vec(vec)?;
                    let before = vec.len();
                    Ok(vec.extend_from_slice(bytes.get()).inspect_err(|_| vec.truncate(before))?)
                })?;
            }
            Ok(code::OK)
        })
    }
}

/// Copies `n` bytes of a vector, from `at` on, to `into`.
///
/// # Safety
/// `heap` is open. `n` bytes can be written at `into`. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_vec_read(
    heap: *const HeapHandle,
    vec: u64,
    at: u64,
    into: *mut c_void,
    n: usize,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here, and waits.
    unsafe {
        call(why, || {
            if n > 0 {
                not_null("into", into)?;
            }
            let into = Sent(into.cast::<u8>());
            handle(heap)?.on(move |state| {
                let from = at as usize;
                let bytes = state.vec(vec)?.get_range(from..from.saturating_add(n))?;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.get(), n);
                Ok(())
            })?;
            Ok(code::OK)
        })
    }
}

/// Replaces `n` bytes of a vector from `at` on. They must exist.
///
/// # Safety
/// `heap` is open. There are `n` bytes at `bytes`. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_vec_write(
    heap: *const HeapHandle,
    vec: u64,
    at: u64,
    bytes: *const c_void,
    n: usize,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here, and waits.
    unsafe {
        call(why, || {
            if n > 0 {
                let bytes = Sent(given(bytes, n)?);
                handle(heap)?.on(move |state| Ok(state.vec(vec)?.set_range(at as usize, bytes.get())?))?;
            }
            Ok(code::OK)
        })
    }
}

/// Stores the length of a vector in `n`, in bytes.
///
/// # Safety
/// `heap` is open. `n` can be written to. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_vec_len(heap: *const HeapHandle, vec: u64, n: *mut u64, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        call(why, || {
            not_null("n", n)?;
            *n = handle(heap)?.on(move |state| Ok(state.vec(vec)?.len() as u64))?;
            Ok(code::OK)
        })
    }
}

/// Drops a vector, a frame, or a frame that is being written.
///
/// # Safety
/// `heap` is open. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_object_drop(heap: *const HeapHandle, number: u64, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        done_by(heap, why, move |state| {
            let vec = state.vecs.remove(&number).is_some();
            let frame = state.frames.remove(&number).is_some() | state.writers.remove(&number).is_some();
            if vec || frame { Ok(()) } else { Err(Problem::invalid(format!("there is no object {number}"))) }
        })
    }
}

/// Releases an array, or a schema, of which the other is missing.
///
/// # Safety
/// Each is null or follows Arrow's C data interface.
unsafe fn released(array: *mut ArrowArray, schema: *mut ArrowSchema) {
    // SAFETY: as this function's caller promises. Who is released once has no callback any more.
    unsafe {
        if let Some(release) = array.as_ref().and_then(|array| array.release) {
            release(array);
        }
        if let Some(release) = schema.as_ref().and_then(|schema| schema.release) {
            release(schema);
        }
    }
}

/// Appends the rows of an Arrow struct array to a frame that is being written. If `*frame` is 0,
/// begins a frame and stores its number there.
///
/// # Safety
/// `heap` is open. `frame` can be read and written. `array` and `schema` follow Arrow's C data
/// interface; this call releases both. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_frame_append(
    heap: *const HeapHandle,
    frame: *mut u64,
    array: *mut ArrowArray,
    schema: *mut ArrowSchema,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here. The structures are moved out, as the interface
    // allows: the structs that stay are marked released, by a callback of `None`.
    unsafe {
        call(why, || {
            if array.is_null() || schema.is_null() {
                released(array, schema);
                return Err(Problem::invalid("array and schema must not be NULL".into()));
            }
            let (moved, of) = (array.read(), schema.read());
            ((*array).release, (*schema).release) = (None, None);
            // Before all else that may be wrong: this releases both.
            let table = Table::from_arrow(moved, of)?;
            not_null("frame", frame)?;
            let number = *frame;
            *frame = handle(heap)?.on(move |state| {
                if number != 0 {
                    let writer = state.writers.get_mut(&number);
                    let none = || Problem::invalid(format!("frame {number} is not being written"));
                    writer.ok_or_else(none)?.append(&table)?;
                    return Ok(number);
                }
                let mut writer = state.heap.frame_writer();
                writer.append(&table)?;
                let number = state.number();
                state.writers.insert(number, writer);
                Ok(number)
            })?;
            Ok(code::OK)
        })
    }
}

/// Finishes a frame that was being written. It can be queried from now on.
///
/// # Safety
/// `heap` is open. `why` is null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_frame_finish(heap: *const HeapHandle, frame: u64, why: *mut Error) -> c_int {
    // SAFETY: the caller upholds what is used here.
    unsafe {
        done_by(heap, why, move |state| {
            let writer = state.writers.remove(&frame);
            let writer = writer.ok_or_else(|| Problem::invalid(format!("frame {frame} is not being written")))?;
            state.frames.insert(frame, writer.finish()?);
            Ok(())
        })
    }
}

/// Answers a query about a frame: by the number of a new frame in `made`, or by a table. For a
/// table `made` is 0, and `array` and `schema` have it.
///
/// # Safety
/// `heap` is open. `query` ends with a 0. `made`, `array` and `schema` can be written to. `why` is
/// null or points to an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farmem_frame_query(
    heap: *const HeapHandle,
    frame: u64,
    query: *const c_char,
    made: *mut u64,
    array: *mut ArrowArray,
    schema: *mut ArrowSchema,
    why: *mut Error,
) -> c_int {
    // SAFETY: the caller upholds what is used here. An answer's structures own what they point to.
    unsafe {
        call(why, || {
            not_null("made", made)?;
            not_null("array", array)?;
            not_null("schema", schema)?;
            let query = text("the query", query)?.ok_or_else(|| Problem::invalid("the query is missing".into()))?;
            let query = query::Query::parse(query)?;
            let answer = handle(heap)?.on(move |state| query.answer(state, frame))?;
            match answer {
                query::Answer::Frame(number) => *made = number,
                query::Answer::Table(table) => {
                    schema.write(table.arrow_schema()?);
                    array.write(table.into_arrow());
                    *made = 0;
                }
            }
            Ok(code::OK)
        })
    }
}
