//! Scripts and transactions on several keys: they run on a draft of the keys' values, and what has become
//! of the draft is carried out at one moment ([`crate::atomic`]).
//!
//! A run that asks for a key which is not in the draft begins again, with that key read too. So
//! does one whose keys were changed before its end, by another front end or by an eviction. One
//! that this has disturbed again and again locks its keys before it reads them.

use super::args::{is, parse_int};
use super::draft::{BYTES, Draft, Seen, seen};
use super::glance::are_absent;
use super::multi::at_once;
use super::types::is_for_nobody;
use super::{Answered, Call, Command, Fail, carry_out, channels, long};
use crate::atomic::{Changes, DISTURBED, Intent, There};
use crate::object::{Object, Value};
use crate::resp::Reply;
use crate::shard::Trouble;
use crate::shard::index::Found;
use crate::task::join;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Keys that one run may use.
pub const KEYS: usize = 10_000;
pub const WOULD_WAIT: &str = "the command would wait";
const TOO_SLOW: &str = "the command took too long";
/// Keys of a command that are locked as soon as they are found.
const FEW: usize = 64;
/// Keys that are read at once. Each may have 2 MiB.
const TOGETHER: usize = 16;
/// Runs whose keys others change, at most.
const ATTEMPTS: u32 = 100;
/// How long all runs may take together: other clients of the front end wait meanwhile.
pub const ALL: Duration = Duration::from_secs(20);

/// What a command comes to.
type Comes<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fail>> + 'a>>;

/// The keys of a command that changes several, or one by others: it takes effect at one moment. `None`: it
/// is no such command, or its keys are not told by its arguments. LMOVE and others see to it themselves.
pub fn joint(command: &Command, call: &Call) -> Option<Vec<Vec<u8>>> {
    if !command.writes || command.keys == (1, 1, 1) || call.draft.is_some() {
        return None;
    }
    let args = &call.args[..];
    let keys = match command.name {
        "mset" if call.count().is_multiple_of(2) => return None,
        "del" | "mset" | "unlink" => return changed(command, call),
        "bitop" | "geosearchstore" | "pfmerge" | "sdiffstore" | "sinterstore" | "sunionstore" | "zrangestore" => {
            command.named(args)?.into_iter().map(<[u8]>::to_vec).collect()
        }
        "zdiffstore" | "zinterstore" | "zunionstore" => {
            let count = usize::try_from(parse_int(call.arg(2))?).ok()?;
            [&args[1..2], args[3..].get(..count)?].concat()
        }
        "sort" => vec![args[1].clone(), super::types::stored_to(call)?],
        "georadius" | "georadiusbymember" => {
            let stores = |n: &usize| is(&args[*n], "store") || is(&args[*n], "storedist");
            let store = (2..args.len() - 1).rev().find(stores)?;
            vec![args[1].clone(), args[store + 1].clone()]
        }
        _ => return None,
    };
    Some(keys).filter(|keys| keys.len() <= KEYS)
}

/// Carries out a command at one moment ([`joint`]).
///
/// It goes by the locks, because changes of one key that are under way take no turn, and would be overwritten
/// by what it made of the value before. Long strings, and more than there is room for, no draft can have:
/// there it goes key by key.
///
/// # Errors
/// Those of the command, and those of the store.
pub async fn together(command: &'static Command, call: &Call, keys: Vec<Vec<u8>>) -> Answered {
    let ended = match command.name {
        "sort" => by_others(command, call, keys).await,
        // Nothing is written for keys of which none is there.
        "del" | "unlink" if !call.store().is_one_batch(keys.len()) && are_absent(call, &keys).await? => {
            Ok(Reply::Int(0))
        }
        "del" | "unlink" => match change_all(call, &keys, true).await {
            Err(Trouble::Full) => return carry_out(command, call).await,
            ended => Ok(Reply::Int(ended?.len() as i64)),
        },
        "mset" => match change_all(call, &keys, false).await {
            // Values that become smaller have room in a full store, too.
            Err(Trouble::Full) => at_one_moment(call, keys, move |on| Box::pin(carry_out(command, on))).await,
            ended => Ok(ended.map(|_| Reply::Ok)?),
        },
        _ => at_one_moment(call, keys, move |on| Box::pin(carry_out(command, on))).await,
    };
    match ended {
        Err(fail) if [long::too_long(), too_many(), too_much(), Trouble::Unread.into()].contains(&fail) => {
            carry_out(command, call).await
        }
        ended => ended,
    }
}

/// The keys of a command that changes each of them whatever it is, if these are several.
fn changed(command: &Command, call: &Call) -> Option<Vec<Vec<u8>>> {
    if command.name != "mset" && call.count() < 3 || call.count() < 5 && command.name == "mset" {
        return None;
    }
    let mut keys: Vec<Vec<u8>> = command.named(&call.args)?.into_iter().map(<[u8]>::to_vec).collect();
    keys.sort_unstable();
    keys.dedup();
    Some(keys).filter(|keys| (2..=KEYS).contains(&keys.len()))
}

/// Gives keys the values of an MSET, or takes them out, at one moment; which of them were there.
async fn change_all(call: &Call, keys: &[Vec<u8>], gone: bool) -> Result<There, Trouble> {
    let (store, io, end) = (call.store(), &call.io, Instant::now() + ALL);
    // Of a key that is given twice the last value counts.
    let pairs = call.args[1..].chunks_exact(if gone { usize::MAX } else { 2 });
    let values: BTreeMap<&[u8], &[u8]> = pairs.map(|pair| (&pair[0][..], &pair[1][..])).collect();
    let value = |key: &[u8]| values.get(key).map(|&value| Value::string(value));
    let turn = call.front.in_turn.come(io, keys.iter().map(Vec::as_slice)).await;
    let there = loop {
        let intent = |key: &Vec<u8>| Intent { key: key.clone(), change: Some(value(key)) };
        match store.change_all(io, keys.iter().map(intent).collect(), &|| Instant::now() >= end).await {
            // As long as a client waits: redis never refuses such a command.
            Err(Trouble::Contended) if Instant::now() < end => {}
            ended => break ended?,
        }
    };
    drop(turn);
    for key in keys {
        call.tell(key, Some(gone).filter(|gone| !gone || there.contains(key))).await?;
    }
    Ok(there)
}

/// SORT, which finds the names of other keys in what it sorts.
pub async fn by_others(command: &'static Command, call: &Call, keys: Vec<Vec<u8>>) -> Answered {
    let _turn = call.front.in_turn.come(&call.io, keys.iter().map(Vec::as_slice)).await;
    let seed = call.store().random(usize::MAX) as u64;
    let several = Several { call, seed, time: ALL, too_slow: TOO_SLOW.into(), watched: &[] };
    let run = async |draft: &Rc<Draft>, _| {
        let call = Call { draft: Some(Rc::clone(draft)), ..call.clone() };
        let came = at_once(carry_out(command, &call)).unwrap_or_else(|| Err(Fail::new(WOULD_WAIT)));
        let failed = came.is_err();
        Ok((came, failed))
    };
    let (contended, end) = (Fail::from(Trouble::Contended), Instant::now() + ALL);
    loop {
        match several.run(keys.clone(), run).await {
            // As long as a client waits: redis never refuses such a command.
            Err(fail) if fail == contended && Instant::now() < end => {}
            ended => return ended?.unwrap_or(Err(contended)),
        }
    }
}

/// Carries out a command at one moment on these keys: on a draft of them. If its front end dies, all
/// of its changes are there or none. Others that change the same keys here have their turns.
///
/// # Errors
/// Those of the command, which then changes nothing, and those of the store.
pub async fn at_one_moment<T>(
    call: &Call,
    mut keys: Vec<Vec<u8>>,
    command: impl for<'a> Fn(&'a Call) -> Comes<'a, T>,
) -> Result<T, Fail> {
    let (store, io) = (call.store(), &call.io);
    let _turn = call.front.in_turn.come(io, keys.iter().map(Vec::as_slice)).await;
    let (seed, end) = (store.random(usize::MAX) as u64, Instant::now() + ALL);
    let on = |draft: &Rc<Draft>| {
        let call = Call { draft: Some(Rc::clone(draft)), ..call.clone() };
        at_once(command(&call)).unwrap_or_else(|| Err(Fail::new(WOULD_WAIT)))
    };
    // In the order of a draft's intents.
    keys.sort_unstable();
    keys.dedup();
    let (mut outcome, mut messages, mut long) = (None, Vec::new(), false);
    let mut decide = |there: &[Option<&Object>]| {
        let draft = Rc::new(Draft::new(store.now_ms(), seed));
        keys.iter().zip(there).for_each(|(key, object)| draft.enter(key, object.cloned()));
        let came = outcome.insert(on(&draft));
        messages = draft.messages();
        if came.is_err() {
            return None;
        }
        let intents = draft.intents();
        let is_long = |intent: &Intent| {
            intent.change.iter().flatten().any(|value| store.is_long(&intent.key, value) || store.is_divided(value))
        };
        long = intents.iter().any(is_long);
        let changes: Changes = intents.into_iter().map(|intent| intent.change).collect();
        (!long).then_some(changes)
    };
    if keys.len() <= FEW {
        store.commit_by(io, &keys, &mut decide, &|| Instant::now() >= end).await?;
    }
    if !long && let Some(outcome) = outcome {
        channels::send_all(call, messages).await;
        return outcome;
    }
    let several = Several { call, seed, time: ALL, too_slow: TOO_SLOW.into(), watched: &[] };
    let contended = Fail::from(Trouble::Contended);
    loop {
        match several.run(keys.clone(), async |draft, _| Ok((on(draft)?, false))).await {
            // As long as a client waits: redis never refuses such a command.
            Err(fail) if fail == contended && Instant::now() < end => {}
            ended => return ended?.ok_or(contended),
        }
    }
}

/// An object as commands see it on a draft. The caller holds what it has found.
pub async fn as_one(call: &Call, object: Option<&Object>) -> Result<Option<Object>, Trouble> {
    match object {
        Some(object) => call.store().as_one(&call.io, object).await.map(Some),
        None => Ok(None),
    }
}

/// Keys beyond [`KEYS`].
fn too_many() -> Fail {
    Fail::new(format!("the script uses more than {KEYS} keys"))
}

/// Values beyond [`BYTES`].
fn too_much() -> Fail {
    Fail::new(format!("the script's keys have more than {} MiB together", BYTES >> 20))
}

/// A key on its way.
pub type Read<'a, T> = Pin<Box<dyn Future<Output = Result<T, Trouble>> + 'a>>;

/// See the module.
pub struct Several<'a> {
    /// The script, or EXEC.
    pub call: &'a Call,
    /// Of random numbers, in all runs.
    pub seed: u64,
    /// How long one run may take, with the reads before it. [`ALL`] bounds all of them.
    pub time: Duration,
    /// The error of a run that takes longer.
    pub too_slow: String,
    /// Keys that must be as they were.
    pub watched: &'a [(Vec<u8>, Seen)],
}

/// What has come of one run.
enum Run<T> {
    Done(T),
    /// A watched key is not what it was.
    Watched,
    /// Others have changed keys meanwhile. Those that it used.
    Disturbed(Vec<Vec<u8>>),
}

impl Several<'_> {
    /// Runs it on these keys, and on others that it asks for. `run` gets the draft and the end of its
    /// time, and tells its outcome and whether it has failed: then it changes nothing. `None`: a watched
    /// key is not what it was.
    ///
    /// # Errors
    /// Those of `run`, and those of the store.
    pub async fn run<T>(
        &self,
        mut keys: Vec<Vec<u8>>,
        mut run: impl AsyncFnMut(&Rc<Draft>, Instant) -> Result<(T, bool), Fail>,
    ) -> Result<Option<T>, Fail> {
        let (store, io) = (self.call.store(), &self.call.io);
        keys.extend(self.watched.iter().map(|(key, _)| key.clone()));
        let end = Instant::now() + ALL;
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                io.pause(store.random(2 << attempt.min(4)) as u32).await;
            }
            if Instant::now() >= end {
                break;
            }
            keys.sort_unstable();
            keys.dedup();
            let ended = if attempt < DISTURBED {
                self.on_read(keys, end, &mut run).await?
            } else {
                Box::pin(self.on_seized(keys, end, &mut run)).await?
            };
            keys = match ended {
                Run::Done(outcome) => return Ok(Some(outcome)),
                Run::Watched => return Ok(None),
                Run::Disturbed(keys) => keys,
            };
        }
        Err(Trouble::Contended.into())
    }

    fn draft(&self) -> Rc<Draft> {
        Rc::new(Draft::new(self.call.store().now_ms(), self.seed))
    }

    /// Runs it on keys as they are read, and looks whether they are still so.
    async fn on_read<T>(
        &self,
        keys: Vec<Vec<u8>>,
        end: Instant,
        run: &mut impl AsyncFnMut(&Rc<Draft>, Instant) -> Result<(T, bool), Fail>,
    ) -> Result<Run<T>, Fail> {
        let (store, io, draft) = (self.call.store(), &self.call.io, self.draft());
        let until = end.min(Instant::now() + self.time);
        let mut missing = keys;
        let (outcome, failed) = loop {
            if !self.read(&draft, &missing, until).await? {
                return Ok(Run::Watched);
            }
            draft.again();
            let ended = run(&draft, until).await?;
            missing = draft.missed();
            if missing.is_empty() {
                break ended;
            }
        };
        let keys = draft.keys();
        if failed {
            draft.again();
            if Instant::now() >= until || keys.len() < 2 {
                return Ok(Run::Done(outcome));
            }
            // The keys were read one after another: it may have failed by what never was.
        }
        let intents = draft.intents();
        let changes = intents.iter().any(|intent| intent.change.is_some());
        let as_read = |key: &[u8], there: Option<&Found>| {
            let object = there.map(|found| &found.object);
            // It begins again when its client goes, and takes nothing then.
            let for_nobody = changes && is_for_nobody(self.call);
            !for_nobody && self.is_as_watched(key, there) && draft.is_as_read(key, object, store.now_ms())
        };
        if intents.is_empty() || store.commit(io, intents, &as_read, &|| Instant::now() >= end).await? {
            channels::send_all(self.call, draft.messages()).await;
            return Ok(Run::Done(outcome));
        }
        Ok(Run::Disturbed(keys))
    }

    /// Runs it on keys that others cannot change meanwhile, unless it takes long. So it comes about
    /// however often they do.
    async fn on_seized<T>(
        &self,
        keys: Vec<Vec<u8>>,
        end: Instant,
        run: &mut impl AsyncFnMut(&Rc<Draft>, Instant) -> Result<(T, bool), Fail>,
    ) -> Result<Run<T>, Fail> {
        let (store, io, draft) = (self.call.store(), &self.call.io, self.draft());
        let until = end.min(Instant::now() + self.time);
        let mut seized = store.begin_seizing(io).await;
        let mut missing = keys;
        let (outcome, failed) = loop {
            let (before, count) = (draft.count(), draft.count() + missing.len());
            let refused = if count > KEYS { Some(too_many()) } else { None };
            if refused.is_none() {
                seized = match store.seize(io, seized, &missing).await? {
                    Some(seized) => seized,
                    None => return Ok(Run::Disturbed([draft.keys(), missing].concat())),
                };
            }
            let mut watched = true;
            let mut wrong = None;
            for (key, there) in seized.there(store).skip(before) {
                watched &= self.is_as_watched(key, there);
                let read = there.map(|found| &found.object);
                match as_one(self.call, read).await {
                    Ok(seen) => draft.enter_as(key, read.cloned(), seen),
                    Err(trouble) => wrong = Some(trouble),
                }
            }
            if let Some(trouble) = wrong {
                store.let_go(io, seized).await?;
                return Err(trouble.into());
            }
            let refused = refused.or_else(|| (draft.held() > BYTES).then(too_much));
            draft.again();
            let ended = match (refused, watched) {
                (Some(fail), _) => Err(fail),
                (None, false) => Ok(None),
                (None, true) => run(&draft, until).await.map(Some),
            };
            let Ok(Some(ended)) = ended else {
                store.let_go(io, seized).await?;
                return ended.map(|_| Run::Watched);
            };
            missing = draft.missed();
            if missing.is_empty() {
                break ended;
            }
        };
        let keys = draft.keys();
        if failed {
            draft.again();
        }
        let intents = draft.intents();
        if intents.iter().any(|intent| intent.change.is_some()) && is_for_nobody(self.call) {
            store.let_go(io, seized).await?;
            return Ok(Run::Disturbed(keys));
        }
        if store.commit_seized(io, seized, intents).await? || failed && Instant::now() >= until {
            channels::send_all(self.call, draft.messages()).await;
            return Ok(Run::Done(outcome));
        }
        Ok(Run::Disturbed(keys))
    }

    /// Whether a key is what it was when it was watched, if it is. Another value alike is another one.
    fn is_as_watched(&self, key: &[u8], there: Option<&Found>) -> bool {
        let watched = self.watched.iter().find(|(watched, _)| watched == key);
        watched.is_none_or(|(_, before)| *before == seen(there))
    }

    /// Reads keys into a draft. False: one that is watched is not what it was.
    async fn read(&self, draft: &Draft, keys: &[Vec<u8>], until: Instant) -> Result<bool, Fail> {
        if draft.count() + keys.len() > KEYS {
            return Err(too_many());
        }
        let (store, io) = (self.call.store(), &self.call.io);
        for some in keys.chunks(TOGETHER) {
            if Instant::now() >= until {
                return Err(Fail::new(&self.too_slow));
            }
            let find = |key| -> Read<'_, Option<Found>> { Box::pin(store.find(io, key)) };
            for (key, found) in some.iter().zip(join(some.iter().map(|key| find(key)).collect()).await) {
                let found = found?;
                if !self.is_as_watched(key, found.as_ref()) {
                    return Ok(false);
                }
                let read = found.as_ref().map(|found| &found.object);
                draft.enter_as(key, read.cloned(), as_one(self.call, read).await?);
            }
            if draft.held() > BYTES {
                return Err(too_much());
            }
        }
        Ok(true)
    }
}
