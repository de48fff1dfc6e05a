//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.
//!
//! A connection collects the commands of a transaction; EXEC carries them out. The promise depends
//! on the keys that the transaction names, including those that it watches:
//!
//! * **One key.** The commands run on a draft of the key's value, and one CAS puts the result in
//!   place of the value that was read. The transaction takes effect at one moment, for every
//!   front end, or not at all. If another client was faster it runs again, or fails if it watches
//!   the key.
//! * **Several keys, or a script.** They run on a draft of all keys, whose changes take effect at one moment, for
//!   every front end ([`super::several`]). It begins again with each key that a script uses and does not name. Other
//!   clients have their turns meanwhile. Those that change the same keys wait for its end.
//! * **Keys that are not named**, or more than 10 000 keys. Nothing of this front end's other
//!   clients runs meanwhile, but other front ends' commands may come in between. So such a transaction is
//!   refused if it watches keys while other front ends are alive.
//!
//! A watched key is remembered by its slot and its object's checksum, which every change replaces.

use super::draft::{Draft, Seen, seen};
use super::room::Room;
use super::several::{ALL, KEYS, Several};
use super::table::{self, Command};
use super::{Answered, Call, Client, Fail, Group, channels, dispatch, scripts, subcommands};
use crate::keyspace::Change;
use crate::object::Object;
use crate::resp::{Reply, Request};
use crate::shard::index::Found;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Bytes of the commands that one transaction may collect.
const COLLECTED: usize = 64 << 20;

/// Keys that a client may watch.
const WATCHED: usize = 100_000;
/// Keys of a WATCH before others have their turn.
const FEW: usize = 1000;

/// How long a transaction on one key may run. Nothing else runs meanwhile, and other front ends take one
/// that is silent for dead.
const TIME: Duration = Duration::from_secs(2);

/// How long a transaction may run on keys that are not named, alone at its front end, and after how long
/// the front end shows that it is alive.
const ALONE: Duration = Duration::from_secs(10);
const STRETCH: Duration = Duration::from_millis(20);

/// What clients of other machines are told while there is no password.
const STRANGER: &str = "DENIED this front end has no password and serves only clients of its own machine. Start it with \
                        --requirepass @FILE to serve others, or with --open if whoever reaches its port may read and write";

/// After how long the commands of a transaction on several keys let others have their turn.
const TURN: Duration = Duration::from_millis(5);

/// Transactions on several keys that are under way at a time: each may hold its values twice.
const AT_ONCE: u32 = 8;

/// A key that is watched.
pub type Watched = (Vec<u8>, Seen);

/// The commands that a connection has collected since MULTI.
#[derive(Debug, Default)]
pub struct Multi {
    commands: Vec<(&'static Command, Rc<Request>)>,
    bytes: usize,
    /// A command was refused: EXEC will be, too.
    failed: bool,
}

/// A transaction that EXEC begins.
#[derive(Debug)]
pub struct Transaction {
    multi: Multi,
    watched: Vec<Watched>,
}

impl Client {
    /// Whether MULTI was given.
    pub fn collects(&self) -> bool {
        self.multi.borrow().is_some()
    }

    /// Commands that wait for EXEC, for CLIENT LIST; -1 without MULTI.
    pub(super) fn collected(&self) -> i64 {
        self.multi.borrow().as_ref().map_or(-1, |multi| multi.commands.len() as i64)
    }

    /// Whether the transaction that it collects has commands that change something.
    pub(super) fn would_change(&self) -> bool {
        self.multi.borrow().as_ref().is_some_and(|multi| multi.commands.iter().any(|(command, _)| command.changes()))
    }

    /// Forgets the transaction and what it watches.
    pub(super) fn discard(&self) {
        *self.multi.borrow_mut() = None;
        self.watched.borrow_mut().clear();
    }

    /// The reply to a request that MULTI, DISCARD or a transaction under way answers at once;
    /// `None`: it is to be run.
    pub fn collect(&self, request: &Request) -> Option<Reply> {
        let name = request[0].to_ascii_lowercase();
        if let Some(refused) = self.is_turned_away(&name) {
            self.closing.set(true);
            return Some(refused);
        }
        if let Some(refused) = self.only_listens(&name) {
            return Some(refused);
        }
        if !self.authenticated.get() && !matches!(name.as_slice(), b"auth" | b"hello" | b"quit" | b"reset") {
            return Some(Reply::Error("NOAUTH Authentication required.".into()));
        }
        match (name.as_slice(), self.collects()) {
            (b"multi", false) if request.len() == 1 => {
                *self.multi.borrow_mut() = Some(Multi::default());
                Some(Reply::Ok)
            }
            (b"multi", true) => Some(Reply::error("MULTI calls can not be nested")),
            (b"discard", true) if request.len() == 1 => {
                self.discard();
                Some(Reply::Ok)
            }
            (b"discard", false) => Some(Reply::error("DISCARD without MULTI")),
            (b"exec", false) => Some(Reply::error("EXEC without MULTI")),
            (b"watch", true) => Some(Reply::error("WATCH inside MULTI is not allowed")),
            (b"exec" | b"quit" | b"reset", _) | (_, false) => None,
            (_, true) => Some(self.queue(request)),
        }
    }

    /// The reply to a client whose connection is closed whatever it asks for.
    fn is_turned_away(&self, name: &[u8]) -> Option<Reply> {
        if self.stranger.get() {
            return Some(Reply::Error(STRANGER.into()));
        }
        // A web page can have a browser send this, and commands behind it.
        matches!(name, b"post" | b"host:").then(|| Reply::error("this is no web server: the connection is closed"))
    }

    fn queue(&self, request: &Request) -> Reply {
        let mut multi = self.multi.borrow_mut();
        let Some(multi) = multi.as_mut() else { return Reply::Null };
        let bytes = request.iter().map(|arg| arg.len() + 32).sum::<usize>();
        let refused = match table::find(&request[0]) {
            None => Some(super::unknown(request)),
            Some(command) if !command.takes(request.len()) => Some(super::wrong_number(command.name)),
            Some(_) if multi.bytes + bytes > COLLECTED => {
                Some(Reply::error("the transaction is too large: its commands may have 64 MiB together"))
            }
            Some(command) => subcommands::refused(command, request).or_else(|| {
                multi.bytes += bytes;
                multi.commands.push((command, Rc::new(request.clone())));
                None
            }),
        };
        multi.failed |= refused.is_some();
        refused.unwrap_or_else(|| Reply::Line("QUEUED".into()))
    }

    /// The key of the transaction that EXEC would begin, if it names exactly one.
    pub fn only_key(&self) -> Option<Vec<u8>> {
        let (multi, watched) = (self.multi.borrow(), self.watched.borrow());
        let multi = multi.as_ref()?;
        let mut keys = watched.iter().map(|(key, _)| key.as_slice()).collect::<Vec<_>>();
        for (command, request) in &multi.commands {
            match command.named(request) {
                Some(named) if command.runs_on_a_draft() => keys.extend(named),
                _ => return None,
            }
        }
        let first = *keys.first()?;
        keys.iter().all(|key| *key == first).then(|| first.to_vec())
    }

    /// Whether the transaction that EXEC would begin runs alone: its keys are not named, or are too many.
    pub fn runs_alone(&self) -> bool {
        let (multi, watched) = (self.multi.borrow(), self.watched.borrow());
        multi.as_ref().is_some_and(|multi| multi.keys(&watched).is_none())
    }

    /// The transaction, which ends with this EXEC.
    pub fn take_transaction(&self) -> Option<Transaction> {
        let multi = self.multi.borrow_mut().take()?;
        Some(Transaction { multi, watched: self.watched.take() })
    }
}

/// WATCH.
pub async fn watch(call: &Call) -> Answered {
    let watched = &call.client.watched;
    // To go through all of them for each of many keys would hold up others.
    let mut names: Option<HashSet<Vec<u8>>> =
        (call.count() > FEW).then(|| watched.borrow().iter().map(|(key, _)| key.clone()).collect());
    let mut bytes: usize = watched.borrow().iter().map(|(key, _)| key.len()).sum();
    for (n, key) in call.args[1..].iter().enumerate() {
        let is_watched = match &mut names {
            Some(names) => !names.insert(key.clone()),
            None => watched.borrow().iter().any(|(watched, _)| watched == key),
        };
        if is_watched {
            continue;
        }
        bytes += key.len();
        if bytes > COLLECTED || watched.borrow().len() >= WATCHED {
            return Err(Fail::new(format!("a client watches {WATCHED} keys at most, of 64 MiB together")));
        }
        if n % FEW == FEW - 1 {
            call.io.pause(0).await;
        }
        let found = call.store().find(&call.io, key).await?;
        watched.borrow_mut().push((key.clone(), seen(found.as_ref())));
    }
    Ok(Reply::Ok)
}

/// EXEC of what was collected; `only` is its key if there is one.
pub async fn exec(call: Call, transaction: Transaction, only: Option<Vec<u8>>) -> Reply {
    call.client.last.set("exec");
    if transaction.multi.failed {
        return Reply::Error("EXECABORT Transaction discarded because of previous errors.".into());
    }
    let keys = if only.is_none() { transaction.multi.keys(&transaction.watched) } else { None };
    let on_a_draft = only.is_some() || keys.is_some();
    let answered = match (only, keys) {
        (Some(key), _) => on_one_key(&call, &transaction, &key).await,
        (None, Some(keys)) => on_several(&call, &transaction, keys).await,
        (None, None) => key_by_key(&call, &transaction).await,
    };
    let reply = answered.unwrap_or_else(|fail| fail.0);
    // Its commands may have run again and again. Their errors count once.
    if let Reply::Array(replies) = &reply
        && on_a_draft
    {
        replies.iter().for_each(|reply| call.front.stats.refused(reply));
    }
    reply
}

/// The reply of an EXEC whose watched keys have changed.
const CHANGED: Reply = Reply::NullArray;

async fn on_one_key(call: &Call, transaction: &Transaction, key: &[u8]) -> Answered {
    let watched = transaction.watched.first().map(|(_, seen)| *seen);
    let last = RefCell::new(None);
    let change = |there: Option<&Found>, object: Option<&Object>| -> Result<Change<Reply>, Fail> {
        if watched.is_some_and(|watched| watched != seen(there)) {
            return Ok(Change::Keep(CHANGED));
        }
        let draft = Rc::new(Draft::new(call.store().now_ms(), call.store().random(usize::MAX) as u64));
        draft.enter(key, object.cloned());
        let replies = transaction.on(call, &draft, Instant::now() + TIME)?;
        last.replace(Some(Rc::clone(&draft)));
        Ok(draft.change(replies))
    };
    // Commands on several keys, which have their turn, replace what they have read.
    let turn = call.turn(key).await;
    let reply = call.store().update_found(&call.io, key, true, change).await?;
    drop(turn);
    let messages = last.take().filter(|_| reply != CHANGED).map_or(Vec::new(), |draft| draft.messages());
    channels::send_all(call, messages).await;
    Ok(reply)
}

/// The outcome of a command that waits for nothing.
pub(super) fn at_once<T>(command: impl Future<Output = T>) -> Option<T> {
    match pin!(command).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

async fn on_several(call: &Call, transaction: &Transaction, keys: Vec<Vec<u8>>) -> Answered {
    let (seed, watched) = (call.store().random(usize::MAX) as u64, &transaction.watched);
    let all = keys.iter().chain(watched.iter().map(|(key, _)| key));
    let _turn = call.front.in_turn.come(&call.io, all.map(Vec::as_slice)).await;
    while call.front.transactions.get() >= AT_ONCE {
        call.io.pause(1).await;
    }
    let _under_way = UnderWay::new(&call.front.transactions);
    let several = Several { call, seed, time: ALL, too_slow: too_slow(ALL), watched };
    let ended = several.run(keys, async |draft, _| Ok((transaction.in_turns(call, draft).await?, false))).await?;
    Ok(ended.unwrap_or(CHANGED))
}

/// Counts a transaction while it lives.
struct UnderWay<'a>(&'a Cell<u32>);

impl UnderWay<'_> {
    fn new(count: &Cell<u32>) -> UnderWay<'_> {
        count.set(count.get() + 1);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn too_slow(time: Duration) -> String {
    format!("the transaction ran for more than {} s: it changes nothing. Give fewer commands at once", time.as_secs())
}

impl Multi {
    /// The keys of its commands, if they are named, few enough, and can be changed on a draft. A script may use
    /// others, too.
    fn keys(&self, watched: &[Watched]) -> Option<Vec<Vec<u8>>> {
        let mut keys = Vec::new();
        for (command, request) in &self.commands {
            if scripts::is_run(request) {
                // With a wrong number of keys it only has an error for a reply.
                keys.extend(scripts::keys(request).unwrap_or_default().iter().cloned());
                continue;
            }
            let named = command.named(request).filter(|_| command.runs_on_a_draft())?;
            keys.extend(named.into_iter().map(<[u8]>::to_vec));
        }
        keys.sort_unstable();
        keys.dedup();
        (keys.len() + watched.len() <= KEYS).then_some(keys)
    }
}

impl Transaction {
    /// The replies of its commands on a draft. Others have their turns between them. All transactions and scripts
    /// together have a part of each turn of the event loop: however many there are, others are served.
    async fn in_turns(&self, call: &Call, draft: &Rc<Draft>) -> Answered {
        let (front, mut spent) = (&call.front, Duration::ZERO);
        let mut replies = Replies::of(call, self);
        front.scripts.turn(call).await;
        let mut begun = Instant::now();
        for (command, args) in &self.multi.commands {
            let (script, slice) = (scripts::is_run(args), begun.elapsed());
            if script || slice >= TURN {
                spent += slice;
                front.scripts.took(front.turns.get(), slice);
                if slice >= TURN {
                    call.io.pause(0).await;
                }
                front.scripts.turn(call).await;
                begun = Instant::now();
            }
            if spent >= TIME {
                return Err(Fail::new(too_slow(TIME)));
            }
            replies.push(on_draft(call, draft, command, args))?;
            if script {
                // It has counted its time itself.
                spent += begun.elapsed();
                begun = Instant::now();
            }
            if draft.has_missed() {
                // It begins again with that key.
                break;
            }
        }
        front.scripts.took(front.turns.get(), begun.elapsed());
        Ok(Reply::Array(replies.all))
    }

    /// The replies of its commands on a draft.
    fn on(&self, call: &Call, draft: &Rc<Draft>, until: Instant) -> Answered {
        let mut replies = Replies::of(call, self);
        for (command, args) in &self.multi.commands {
            if Instant::now() >= until {
                return Err(Fail::new(too_slow(TIME)));
            }
            replies.push(on_draft(call, draft, command, args))?;
        }
        Ok(Reply::Array(replies.all))
    }
}

/// The replies of a transaction's commands.
struct Replies {
    all: Vec<Reply>,
    room: Room,
}

impl Replies {
    fn of(call: &Call, transaction: &Transaction) -> Replies {
        Replies { all: Vec::with_capacity(transaction.multi.commands.len()), room: Room::new(call) }
    }

    /// One more. An error: together they would be too long.
    fn push(&mut self, reply: Reply) -> Result<(), Fail> {
        self.room.hold(&reply)?;
        self.all.push(reply);
        Ok(())
    }
}

/// The reply of one command of a transaction.
fn on_draft(call: &Call, draft: &Rc<Draft>, command: &'static Command, args: &Rc<Request>) -> Reply {
    let (args, draft) = (Rc::clone(args), Some(Rc::clone(draft)));
    let call = Call { args, draft, in_exec: true, ..call.clone() };
    at_once(dispatch(command, &call)).unwrap_or_else(|| Reply::error("not in a transaction"))
}

async fn key_by_key(call: &Call, transaction: &Transaction) -> Answered {
    if !transaction.watched.is_empty() && call.store().has_company(&call.io).await? {
        return Err(Fail::new(
            "EXEC is refused: it watches keys, and has a command that names no keys, while other front ends serve \
             this store. Leave that out, or use one front end",
        ));
    }
    for (key, before) in &transaction.watched {
        if seen(call.store().find(&call.io, key).await?.as_ref()) != *before {
            return Ok(CHANGED);
        }
    }
    let mut replies = Replies::of(call, transaction);
    let until = Instant::now() + ALONE;
    let mut rest = Instant::now() + STRETCH;
    for (command, args) in &transaction.multi.commands {
        let now = Instant::now();
        if now >= until {
            replies.all.push(Reply::error(format!(
                "the transaction ran for more than {} s: this command was not carried out, those before it were. Give \
                 fewer commands at once",
                ALONE.as_secs()
            )));
            continue;
        }
        if now >= rest {
            call.io.pause(0).await;
            rest = Instant::now() + STRETCH;
        }
        let call = Call { args: Rc::clone(args), in_exec: true, ..call.clone() };
        // Boxed: EXEC runs commands, and is one.
        // It was carried out: its reply alone is left out.
        if let Err(fail) = replies.push(Box::pin(dispatch(command, &call)).await) {
            replies.all.push(fail.0);
        }
    }
    Ok(Reply::Array(replies.all))
}

impl Command {
    /// Whether the command may run on a draft of its key: it does nothing but read and change it.
    pub(super) fn runs_on_a_draft(&self) -> bool {
        !matches!(self.group, Group::Server | Group::Scripts | Group::Channels)
            || matches!(self.name, "echo" | "ping" | "time" | "publish" | "spublish")
    }

    /// Whether it waits for an element if there is none.
    pub(super) fn waits(&self) -> bool {
        ["bl", "brpop", "bz"].iter().any(|begin| self.name.starts_with(begin))
    }
}
