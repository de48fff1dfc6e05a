//! EVAL, EVALSHA and SCRIPT: programs in Lua that read and change several values at one moment.
//!
//! A script runs on a draft of its keys' values ([`super::draft`]), from its first line to its last
//! without waiting. Its changes are written when it has ended. A script that fails changes nothing.
//! One that returns an error has not failed.
//!
//! * **One key in KEYS.** One CAS puts the result in place of the value that was read. If another
//!   client was faster the script runs again. So it takes effect at one moment, for every front
//!   end. A script that asks for another key too waits until it is alone, and is run as those are
//!   that name several. It is remembered, so it begins alone the next time.
//! * **None or several.** The event loop lets nothing of this front end's other clients run
//!   meanwhile. A script that asks for a key that is not in KEYS is begun again, with this key
//!   read too. Its changes take effect at one moment, for every front end ([`super::several`]).

mod bits;
mod convert;
mod json;
mod library;
mod machine;
mod msgpack;
mod patterns;
mod shebang;
mod structs;

use super::draft::Draft;
use super::several::{KEYS, Several};
use super::{Answered, Call, Fail, args, channels, monitor};
use crate::keyspace::Change;
use crate::object::Object;
use crate::resp::{Reply, Request};
use crate::shard::index::Found;
use farmem_sys::raw::thread_cpu_ns;
use machine::{Machine, Until};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of the scripts that are kept. Of more, the oldest is forgotten.
const KEPT: usize = 4 << 20;
/// CPU time that a script may take, with all runs of an attempt.
const TIME: Duration = Duration::from_millis(500);
/// How long an attempt may take by the clock: less than a lease, and than the 5 s after which other
/// front ends take a silent one for dead.
const CLOCK: Duration = Duration::from_millis(1500);
/// The time that scripts together may take before the event loop has its turn again.
const TURN: Duration = Duration::from_millis(50);

/// A front end's scripts, by the SHA-1 of their texts in hexadecimal digits.
#[derive(Debug, Default)]
pub struct Scripts {
    texts: RefCell<BTreeMap<Vec<u8>, Rc<[u8]>>>,
    /// Those that have named one key and used others.
    wide: RefCell<BTreeSet<Vec<u8>>>,
    /// Their names, the oldest first.
    ages: RefCell<VecDeque<Vec<u8>>>,
    bytes: Cell<usize>,
    /// Made for the first script.
    machine: OnceCell<Machine>,
    /// The event loop's turn in which a script ran last, and the time that scripts took in it.
    taken: Cell<(u64, Duration)>,
}

impl Scripts {
    /// Keeps a script. Returns its name.
    fn keep(&self, text: &[u8]) -> Vec<u8> {
        let name = sha1(text);
        if self.texts.borrow_mut().insert(name.clone(), text.into()).is_none() {
            self.ages.borrow_mut().push_back(name.clone());
            self.bytes.set(self.bytes.get() + text.len());
        }
        while self.bytes.get() > KEPT && self.ages.borrow().len() > 1 {
            let oldest = self.ages.borrow_mut().pop_front().unwrap_or_default();
            if let Some(text) = self.texts.borrow_mut().remove(&oldest) {
                self.bytes.set(self.bytes.get() - text.len());
            }
            self.forget(&oldest);
        }
        name
    }

    fn forget(&self, name: &[u8]) {
        self.wide.borrow_mut().remove(name);
        if let Some(machine) = self.machine.get() {
            machine.forget(name);
        }
    }

    fn flush(&self) {
        self.ages.borrow_mut().drain(..).for_each(|name| self.forget(&name));
        self.texts.borrow_mut().clear();
        self.bytes.set(0);
    }

    /// The only key of a script that uses no other, as far as is known. A script of none or several
    /// must run alone.
    pub fn only_key<'a>(&self, request: &'a Request) -> Option<&'a [u8]> {
        let Ok([key]) = keys(request) else { return None };
        if self.wide.borrow().is_empty() {
            return Some(key);
        }
        let by_name = request[0].len() > 6 && request[0][..7].eq_ignore_ascii_case(b"evalsha");
        let name = if by_name { request[1].to_ascii_lowercase() } else { sha1(&request[1]) };
        (!self.wide.borrow().contains(&name)).then_some(key)
    }

    /// Waits while scripts have had their time in this turn of the event loop.
    pub(super) async fn turn(&self, call: &Call) {
        while self.taken.get().0 == call.front.turns.get() && self.taken.get().1 >= TURN {
            call.io.pause(1).await;
        }
    }

    /// Counts what a script, or a transaction, has taken of a turn.
    pub(super) fn took(&self, turn: u64, time: Duration) {
        let (last, before) = self.taken.get();
        self.taken.set((turn, if last == turn { before + time } else { time }));
    }

    /// Bytes that scripts hold.
    pub fn used(&self) -> usize {
        self.machine.get().map_or(0, Machine::used)
    }

    fn machine(&self) -> Result<&Machine, Fail> {
        if let Some(machine) = self.machine.get() {
            return Ok(machine);
        }
        let made = Machine::new().map_err(|e| Fail::new(format!("no memory for scripts: {e}")))?;
        Ok(self.machine.get_or_init(|| made))
    }
}

/// The SHA-1 of a text, in hexadecimal digits: the name by which clients call a script.
fn sha1(text: &[u8]) -> Vec<u8> {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    digest.as_ref().iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
}

/// Whether a request runs a script.
pub fn is_run(request: &Request) -> bool {
    request[0].len() >= 4
        && request[0][..4].eq_ignore_ascii_case(b"eval")
        && super::find(&request[0]).is_some_and(|command| command.takes(request.len()))
}

/// Whether a script says that it changes nothing.
pub fn only_reads(text: &[u8]) -> bool {
    shebang::read(text).is_ok_and(|(_, reads)| reads)
}

/// The keys that a script's request names.
///
/// # Errors
/// Their number is none, or larger than the request.
pub fn keys(request: &Request) -> Result<&[Vec<u8>], Fail> {
    let number = args::int(&request[2])?;
    let Ok(number) = usize::try_from(number) else {
        return Err(Fail::new("Number of keys can't be negative"));
    };
    request[3..].get(..number).ok_or_else(|| Fail::new("Number of keys can't be greater than number of args"))
}

/// EVAL and EVALSHA, and those that change nothing.
pub async fn run(name: &str, call: &Call) -> Answered {
    let scripts = &call.front.scripts;
    let by_name = name.starts_with("evalsha");
    let sha = if by_name { call.arg(1).to_ascii_lowercase() } else { scripts.keep(call.arg(1)) };
    let text = scripts.texts.borrow().get(&sha).cloned();
    let Some(text) = text else {
        return Err(Fail(Reply::Error("NOSCRIPT No matching script. Please use EVAL.".into())));
    };
    let named = keys(&call.args)?.len();
    let reads = name.ends_with("_ro") | shebang::read(&text)?.1;
    if call.draft.is_none() {
        scripts.turn(call).await;
    }
    let until = Instant::now() + CLOCK;
    let seed = call.store().random(usize::MAX) as u64;
    let (spent, told) = (Cell::new((Duration::ZERO, until)), RefCell::default());
    let script = Script { call, text, sha, reads, named, until, spent, seed, told };
    if let Some(draft) = &call.draft {
        return script.in_transaction(draft);
    }
    let alone = call.front.turn.get() == Some(call.client.id);
    if let (Ok([key]), false) = (keys(&call.args), alone) {
        if let Some(reply) = script.on_one_key(key).await? {
            return Ok(reply);
        }
        scripts.wide.borrow_mut().insert(script.sha.clone());
        call.wait_for_turn().await;
    }
    script.on_several().await
}

impl Call {
    /// Waits until no other client's command of this front end is under way, and none begins before
    /// this one ends.
    pub(super) async fn wait_for_turn(&self) {
        self.front.wanting.borrow_mut().push_back(self.client.id);
        while self.front.turn.get() != Some(self.client.id) {
            self.io.pause(1).await;
        }
    }
}

/// A script that is to run.
struct Script<'a> {
    call: &'a Call,
    text: Rc<[u8]>,
    sha: Vec<u8>,
    /// It may change nothing.
    reads: bool,
    /// Number of keys in KEYS.
    named: usize,
    until: Instant,
    /// CPU time of its runs, and the end of the attempt of which they are.
    spent: Cell<(Duration, Instant)>,
    /// Of its random numbers, in all of its attempts.
    seed: u64,
    /// The commands of its last run, for monitors.
    told: RefCell<monitor::Told>,
}

impl Drop for Script<'_> {
    fn drop(&mut self) {
        self.call.front.monitors.tell(self.told.take());
    }
}

impl Script<'_> {
    /// Runs it on a draft, from its first line to its last, in an attempt that must have ended
    /// until then. The reply, and whether it has failed.
    fn on(&self, draft: &Rc<Draft>, until: Instant) -> Result<(Reply, bool), Fail> {
        draft.read_only.set(self.reads);
        let call = Call { draft: Some(Rc::clone(draft)), in_exec: true, ..self.call.clone() };
        let (scripts, began) = (&self.call.front.scripts, Instant::now());
        // What the verbs between its runs take is no time of its.
        let spent = Some(self.spent.get()).filter(|spent| spent.1 == until).map_or(Duration::ZERO, |spent| spent.0);
        let (limit, cpu_ns) = (Until::new(TIME.saturating_sub(spent), until), thread_cpu_ns());
        let ended = scripts.machine()?.run(call, (&self.sha, &self.text), self.named, limit);
        self.told.replace(self.call.front.monitors.taken());
        let took = Duration::from_nanos(thread_cpu_ns().saturating_sub(cpu_ns));
        self.spent.set((spent + took, until));
        scripts.took(self.call.front.turns.get(), began.elapsed());
        ended
    }

    /// Runs it on the draft of a transaction. If it fails it changes nothing there.
    fn in_transaction(&self, draft: &Rc<Draft>) -> Answered {
        let mark = draft.mark();
        let ended = self.on(draft, self.until);
        draft.read_only.set(false);
        let (reply, failed) = ended?;
        if failed {
            draft.back_to(mark);
        }
        Ok(reply)
    }

    /// `None`: the script uses other keys, too.
    async fn on_one_key(&self, key: &[u8]) -> Result<Option<Reply>, Fail> {
        let (last, wide) = (RefCell::new(Vec::new()), Cell::new(false));
        let change = |_: Option<&Found>, there: Option<&Object>| -> Result<Change<Reply>, Fail> {
            let draft = Rc::new(Draft::new(self.call.store().now_ms(), self.seed));
            draft.enter(key, there.cloned());
            let (reply, failed) = self.on(&draft, self.until)?;
            if let Some(other) = draft.missed().first() {
                wide.set(true);
                let other = String::from_utf8_lossy(other).into_owned();
                return Err(Fail::new(format!(
                    "the script uses key '{other}' only sometimes: name all of its keys in KEYS"
                )));
            }
            last.replace(if failed { Vec::new() } else { draft.messages() });
            Ok(if failed { Change::Keep(reply) } else { draft.change(reply) })
        };
        // Commands on several keys, which have their turn, replace what they have read.
        let turn = self.call.turn(key).await;
        let ended = self.call.store().update_found(&self.call.io, key, true, change).await;
        drop(turn);
        if wide.get() {
            return Ok(None);
        }
        let reply = ended?;
        channels::send_all(self.call, last.take()).await;
        Ok(Some(reply))
    }

    async fn on_several(&self) -> Answered {
        let named = keys(&self.call.args)?;
        if named.len() > KEYS {
            return Err(Fail::new(format!("the script uses more than {KEYS} keys")));
        }
        let (too_slow, watched) = (machine::too_slow(), &[][..]);
        let several = Several { call: self.call, seed: self.seed, time: CLOCK, too_slow, watched };
        let ended = several.run(named.to_vec(), async |draft, until| self.on(draft, until)).await?;
        Ok(ended.unwrap_or(Reply::Null))
    }
}

/// SCRIPT.
pub fn script(call: &Call) -> Answered {
    let scripts = &call.front.scripts;
    match (call.arg(1).to_ascii_lowercase().as_slice(), call.count()) {
        (b"load", 3) => {
            scripts.machine()?.compile(&sha1(call.arg(2)), call.arg(2))?;
            Ok(Reply::bulk(scripts.keep(call.arg(2))))
        }
        (b"exists", 3..) => {
            let kept = |name: &Vec<u8>| scripts.texts.borrow().contains_key(&name.to_ascii_lowercase());
            Ok(Reply::Array(call.args[2..].iter().map(|name| Reply::Int(i64::from(kept(name)))).collect()))
        }
        (b"flush", 2 | 3) => {
            scripts.flush();
            Ok(Reply::Ok)
        }
        (b"kill", 2) => Err(Fail(Reply::Error("NOTBUSY No scripts in execution right now.".into()))),
        _ => Err(super::server::unknown(call, "script")),
    }
}
