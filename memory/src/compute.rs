//! The service of `farmem node --compute N`: runs functions near memory
//! ([`farmem_protocol::near`]).
//!
//! A call runs on the worker that received it, within that worker's section, so no right can end
//! under it. Each call is bounded (some 100 µs), and has a deadline where the machine is slower than
//! that ([`DEADLINE`]). At most N run at a time. A further one is refused as busy. A host whose call
//! is refused does the work by verbs. So N of the node's workers may compute;
//! verbs on other workers wait for nothing.
//!
//! A function of the caller's own ([`farmem_protocol::near::wasm`]) runs in builds with that feature,
//! and is refused by others.
//!
//! A WAIT looks at its word, and is put off if that has not changed ([`Caller::later`]): it holds
//! neither a worker nor one of the N, and delays its own queue pair alone. Its mark is the time
//! when it ends, in nanoseconds since the service began.

use farmem_nic::epochs::Section;
use farmem_nic::grip::Grip;
use farmem_nic::service::{Caller, Service};
use farmem_nic::windows::Windows;
use farmem_protocol::key::Key;
use farmem_protocol::near::{Bytes, Call, Function, Range, Reply, Which, mark, wasm};
use farmem_protocol::wire::{Op, Status};
use farmem_sys::mapping::Mapping;
use farmem_sys::raw::thread_cpu_ns;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// CPU time of a call, at most, but for its last step of 16 KiB or one object. Time in which the
/// worker does not run does not count: a call that begins anew would not be faster.
pub const DEADLINE: Duration = Duration::from_millis(1);

/// The most bytes that are read by loads of words.
const WORDS: usize = 64;

/// Serves calls, at most `most` at a time.
pub struct Compute {
    most: usize,
    running: AtomicUsize,
    since: Instant,
    modules: wasm::Engine,
}

impl Compute {
    pub fn new(most: usize) -> Compute {
        Compute { most, running: AtomicUsize::new(0), since: Instant::now(), modules: wasm::Engine::default() }
    }

    fn begin(&self) -> Option<Turn<'_>> {
        let turn = Turn(&self.running);
        let before = self.running.fetch_add(1, Ordering::Relaxed);
        (before < self.most).then_some(turn)
    }

    fn carry_out(&self, call: &Call, memory: &mut impl Bytes) -> Option<Reply> {
        match call.function {
            Function::Wasm(wasm) => self.modules.run(call, wasm, memory),
            _ => call.run(memory),
        }
    }

    /// Puts a call off whose time is not over. False: it is over, or too many of the caller's wait.
    fn put_off(&self, caller: &Caller<'_>, ms: u32) -> bool {
        let now = self.since.elapsed().as_nanos() as u64;
        let until = caller.mark().unwrap_or(now + u64::from(ms) * 1_000_000);
        now < until && caller.later(until)
    }
}

/// One of the calls that may run. Ends when dropped.
struct Turn<'a>(&'a AtomicUsize);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The ranges that a call was admitted to.
struct Admitted<'a> {
    caller: &'a Caller<'a>,
    begun: Instant,
    /// CPU time of this thread when the call is late, ns.
    until_ns: u64,
    source: Held,
    list: Option<Held>,
    /// Ranges that the caller's memory names.
    places: Vec<Option<Held>>,
}

/// A range that a call was admitted to. The memory in which it lies goes on behind it, with what is
/// others'.
#[derive(Clone)]
struct Held {
    grip: Grip,
    len: u64,
}

impl Held {
    fn new(caller: &Caller<'_>, range: Range, writes: bool) -> Result<Held, Status> {
        let grip = caller.admit(range.key, Op::Read, range.at, range.len)?;
        if writes {
            caller.admit(range.key, Op::Write, range.at, range.len)?;
        }
        Ok(Held { grip, len: range.len })
    }

    /// The memory, and where in it `len` bytes from `at` on lie. `None`: not within the range.
    fn place(&self, at: u64, len: usize) -> Option<(&Mapping, u64)> {
        let within = at.checked_add(len as u64).is_some_and(|end| end <= self.len);
        within.then(|| self.grip.offset.checked_add(at)).flatten().map(|at| (self.grip.memory.mapping(), at))
    }
}

impl<'a> Admitted<'a> {
    fn new(caller: &'a Caller<'a>, call: &Call, begun: Instant) -> Result<Admitted<'a>, Status> {
        let list = (call.list.len > 0).then(|| Held::new(caller, call.list, call.writes(Which::List))).transpose()?;
        let source = Held::new(caller, call.source, call.writes(Which::Source))?;
        if let Some(at) = call.swaps() {
            caller.admit(call.source.key, Op::Cas, call.source.at + at, 8)?;
        }
        let until_ns = thread_cpu_ns() + DEADLINE.as_nanos() as u64;
        Ok(Admitted { caller, begun, until_ns, source, list, places: Vec::new() })
    }

    fn of(&self, which: Which) -> Option<&Held> {
        match which {
            Which::Source => Some(&self.source),
            Which::List => self.list.as_ref(),
            Which::Place(n) => self.places.get(usize::from(n))?.as_ref(),
        }
    }
}

impl Bytes for Admitted<'_> {
    fn read(&mut self, of: Which, at: u64, into: &mut [u8]) -> Option<()> {
        let (memory, at) = self.of(of)?.place(at, into.len())?;
        // A word that others change is read whole. Few words take fewer cycles by loads than by a copy.
        if into.len() <= WORDS && into.len().is_multiple_of(8) && at.is_multiple_of(8) {
            let into = into.as_chunks_mut::<8>().0;
            let words = memory.words(at, into.len())?;
            for (into, word) in into.iter_mut().zip(words) {
                *into = word.load(Ordering::Acquire).to_le_bytes();
            }
            return Some(());
        }
        memory.read_bytes(at, into).then_some(())
    }

    fn write(&mut self, of: Which, at: u64, bytes: &[u8]) -> Option<()> {
        let (memory, at) = self.of(of)?.place(at, bytes.len())?;
        // So is one written. A store takes fewer cycles than the copy of a few bytes, too.
        if let (Ok(bytes), Some(word)) = (<[u8; 8]>::try_from(bytes), memory.word(at)) {
            word.store(u64::from_le_bytes(bytes), Ordering::Release);
            return Some(());
        }
        memory.write_bytes(at, bytes).then_some(())
    }

    fn swap(&mut self, at: u64, expected: u64, new: u64) -> Option<u64> {
        let (memory, at) = self.source.place(at, 8)?;
        memory.cas(at, expected, new)
    }

    fn open(&mut self, n: u8, range: Range, writes: bool) -> Option<()> {
        let held = Held::new(self.caller, range, writes).ok()?;
        let n = usize::from(n);
        self.places.resize(self.places.len().max(mark::PLACES).max(n + 1), None);
        self.places[n] = Some(held);
        Some(())
    }

    fn close(&mut self, n: u8) {
        if let Some(place) = self.places.get_mut(usize::from(n)) {
            *place = None;
        }
    }

    fn touch(&mut self, of: Which, at: u64) {
        if let Some((memory, at)) = self.of(of).and_then(|held| held.place(at, 1)) {
            memory.prefetch(at);
        }
    }

    fn is_late(&mut self) -> bool {
        // No more CPU time than time can have gone by, and the monotonic clock needs no system call.
        self.begun.elapsed() >= DEADLINE && thread_cpu_ns() >= self.until_ns
    }
}

impl Service for Compute {
    fn send(
        &self,
        caller: &Caller<'_>,
        number: u32,
        said: &[u8],
        _: &Windows,
        _: &mut Section<'_>,
    ) -> Result<[u8; 64], Status> {
        if Key::service(number) != Key::COMPUTE {
            return Err(Status::Access);
        }
        let call = Call::parse(said).map_err(|_| Status::Range)?;
        let wait = if let Function::Wait { ms, .. } = call.function { Some(ms) } else { None };
        let turn = self.begin();
        if turn.is_none() {
            // A wait that finds all turns taken looks later.
            let _ = wait.is_some_and(|ms| self.put_off(caller, ms));
            return Err(Status::Empty);
        }
        let begun = Instant::now();
        let memory = Admitted::new(caller, &call, begun);
        let reply = memory.and_then(|mut memory| self.carry_out(&call, &mut memory).ok_or(Status::Range));
        let waits =
            reply.is_ok_and(|reply| call.is_unfinished(&reply)) && wait.is_some_and(|ms| self.put_off(caller, ms));
        caller.computed(begun.elapsed().as_nanos() as u64, !waits);
        reply.map(|reply| reply.frame())
    }

    fn departed(&self, _: u64, _: &Windows, _: &mut dyn FnMut()) {}

    fn keep(&self, _: &Windows) {}
}
