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
//!   read too. Other front ends could change such keys meanwhile. So a script that uses several
//!   keys is refused while other front ends are alive.

mod convert;
mod json;
mod library;
mod machine;
mod patterns;

use super::draft::{BYTES, Draft};
use super::{Answered, Call, Fail, args, channels};
use crate::index::Found;
use crate::keyspace::Change;
use crate::object::Object;
use crate::resp::{Reply, Request};
use crate::shard::Trouble;
use crate::task::join;
use machine::Machine;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of the scripts that are kept. Of more, the oldest is forgotten.
const KEPT: usize = 4 << 20;
/// How long a script may run, with all its attempts. Other front ends take one that is silent for
/// dead.
const TIME: Duration = Duration::from_millis(500);
/// The time that scripts together may take before the event loop has its turn again.
const TURN: Duration = Duration::from_millis(50);
/// Keys that one script may use.
const KEYS: usize = 10_000;
/// Keys that are read at once. Each may have 2 MiB.
const TOGETHER: usize = 16;

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
    async fn turn(&self, call: &Call) {
        while self.taken.get().0 == call.front.turns.get() && self.taken.get().1 >= TURN {
            call.io.pause(1).await;
        }
    }

    fn took(&self, turn: u64, time: Duration) {
        let (last, before) = self.taken.get();
        self.taken.set((turn, if last == turn { before + time } else { time }));
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
    scripts.turn(call).await;
    let until = Instant::now() + TIME;
    let seed = call.store().random(usize::MAX) as u64;
    let mut script = Script { call, text, sha, reads: name.ends_with("_ro"), named, until, seed };
    if call.draft.is_some() {
        return Err(Fail::new("a script runs no other script"));
    }
    let alone = call.front.turn.get() == Some(call.client.id);
    if let (Ok([key]), false) = (keys(&call.args), alone) {
        if let Some(reply) = script.on_one_key(key, false).await? {
            return Ok(reply);
        }
        scripts.wide.borrow_mut().insert(script.sha.clone());
        call.wait_for_turn().await;
        script.until = Instant::now() + TIME;
    }
    script.on_several().await
}

impl Call {
    /// Waits until no other client's command of this front end is under way, and none begins before
    /// this one ends.
    async fn wait_for_turn(&self) {
        self.front.wanting.borrow_mut().push_back(self.client.id);
        while self.front.turn.get() != Some(self.client.id) {
            self.io.pause(1).await;
        }
    }
}

/// A key on its way.
type Find<'a> = Pin<Box<dyn Future<Output = Result<Option<Found>, Trouble>> + 'a>>;

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
    /// Of its random numbers, in all of its attempts.
    seed: u64,
}

impl Script<'_> {
    /// Runs it on a draft, from its first line to its last. The reply, and whether it has failed.
    fn on(&self, draft: &Rc<Draft>) -> Result<(Reply, bool), Fail> {
        draft.read_only.set(self.reads);
        let call = Call { draft: Some(Rc::clone(draft)), in_exec: true, ..self.call.clone() };
        let (scripts, began) = (&self.call.front.scripts, Instant::now());
        let ended = scripts.machine()?.run(call, (&self.sha, &self.text), self.named, self.until);
        scripts.took(self.call.front.turns.get(), began.elapsed());
        ended
    }

    /// `None`: the script uses other keys, too. `found`: it runs alone, and was seen to use this key
    /// and no other.
    async fn on_one_key(&self, key: &[u8], found: bool) -> Result<Option<Reply>, Fail> {
        let (last, wide) = (RefCell::new(Vec::new()), Cell::new(false));
        let change = |there: Option<&Found>| -> Result<Change<Reply>, Fail> {
            let draft = self.draft();
            draft.enter(key, there.map(|found| found.object.clone()));
            let (reply, failed) = self.on(&draft)?;
            if let Some(other) = draft.missed().first() {
                wide.set(!found);
                let other = String::from_utf8_lossy(other).into_owned();
                return Err(Fail::new(format!(
                    "the script uses key '{other}' only sometimes: name all of its keys in KEYS"
                )));
            }
            last.replace(if failed { Vec::new() } else { draft.messages() });
            Ok(if failed { Change::Keep(reply) } else { draft.change(reply) })
        };
        let ended = self.call.store().update_found(&self.call.io, key, change).await;
        if wide.get() {
            return Ok(None);
        }
        let reply = ended?;
        channels::send_all(self.call, last.take()).await;
        Ok(Some(reply))
    }

    fn draft(&self) -> Rc<Draft> {
        Rc::new(Draft::new(self.call.store().now_ms(), self.seed))
    }

    /// Reads keys into a draft.
    async fn read(&self, draft: &Draft, keys: &[Vec<u8>]) -> Result<(), Fail> {
        if draft.count() + keys.len() > KEYS {
            return Err(Fail::new(format!("the script uses more than {KEYS} keys")));
        }
        let (store, io) = (self.call.store(), &self.call.io);
        for some in keys.chunks(TOGETHER) {
            if Instant::now() >= self.until {
                return Err(Fail::new(machine::too_slow()));
            }
            let find = |key| -> Find<'_> { Box::pin(store.find(io, key)) };
            for (key, found) in some.iter().zip(join(some.iter().map(|key| find(key)).collect()).await) {
                draft.enter(key, found?.map(|found| found.object));
            }
            if draft.held() > BYTES {
                return Err(Fail::new(format!("the script's keys have more than {} MiB together", BYTES >> 20)));
            }
        }
        Ok(())
    }

    async fn on_several(&self) -> Answered {
        let named = keys(&self.call.args)?;
        if named.len() > KEYS {
            return Err(Fail::new(format!("the script uses more than {KEYS} keys")));
        }
        let mut keys = named.to_vec();
        keys.sort_unstable();
        keys.dedup();
        loop {
            let (draft, reply, failed) = self.on_all_keys(&keys).await?;
            keys = draft.keys();
            if !keys.is_empty() && self.call.store().has_company(&self.call.io).await? {
                if let [key] = keys.as_slice() {
                    return self.on_one_key(key, true).await.map(|reply| reply.unwrap_or(Reply::Null));
                }
                return Err(Fail::new(
                    "the script is refused: it uses several keys, and other front ends serve this store, which could \
                     change them meanwhile. Use one key, or one front end",
                ));
            }
            if failed {
                return Ok(reply);
            }
            if self.write(&draft).await? {
                channels::send_all(self.call, draft.messages()).await;
                return Ok(reply);
            }
        }
    }

    /// Runs it until all keys that it asks for are in its draft.
    async fn on_all_keys(&self, keys: &[Vec<u8>]) -> Result<(Rc<Draft>, Reply, bool), Fail> {
        let draft = self.draft();
        let mut missing = keys.to_vec();
        loop {
            self.read(&draft, &missing).await?;
            draft.again();
            let (reply, failed) = self.on(&draft)?;
            missing = draft.missed();
            if missing.is_empty() {
                return Ok((draft, reply, failed));
            }
        }
    }

    /// Writes the draft's changes; `false`: a key has changed since it was read, and nothing was
    /// written. Only a front end that has joined since then can have changed it.
    async fn write(&self, draft: &Draft) -> Result<bool, Fail> {
        let (store, io) = (self.call.store(), &self.call.io);
        let mut begun = false;
        for (key, value) in draft.changes() {
            let change = |there: Option<&Object>| -> Result<Change<bool>, Fail> {
                // Room for the values that were written before may have cost this one.
                let evicted = there.is_none() && store.evicts;
                if !evicted && !draft.is_as_read(&key, there, store.now_ms()) {
                    return Ok(Change::Keep(false));
                }
                Ok(value.clone().map_or(Change::Delete(true), |value| Change::Put(value, true)))
            };
            if !store.update(io, &key, change).await? {
                if !begun {
                    return Ok(false);
                }
                let key = String::from_utf8_lossy(&key).into_owned();
                return Err(Fail::new(format!(
                    "the script has written some of its values: another front end has joined and changed key '{key}' \
                     meanwhile"
                )));
            }
            begun = true;
        }
        Ok(true)
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
