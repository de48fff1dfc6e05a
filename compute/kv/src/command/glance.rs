//! Commands that read several keys, at one moment: MGET sees all of an MSET or nothing.
//!
//! * A front end that is alone makes all changes itself, and counts them ([`crate::shard::lease`]).
//!   If none of these keys was changed while they were read, all keys had these values at the end.
//!   That takes no verb more.
//! * Otherwise they are read, and then the words of the index are read again that tell of them. If none has changed,
//!   all keys were so between the two. Nothing is locked, and it takes one round trip more.
//!
//! SORT without STORE finds the names of other keys in what it sorts. It runs on a draft, and begins again with the
//! keys that the draft lacks.

use super::draft::{BYTES, Draft};
use super::multi::at_once;
use super::several::{KEYS, Read, WOULD_WAIT, as_one, at_one_moment, by_others};
use super::types::{is_for_nobody, may_wait};
use super::{Answered, Call, Command, Fail, carry_out};
use crate::object::Type;
use crate::resp::Reply;
use crate::shard::Trouble;
use crate::shard::lease::Quiet;
use crate::shard::space::Section;
use crate::sight::Sight;
use crate::task::join;
use std::future::{Future, ready};
use std::rc::Rc;

/// Attempts before keys are locked for a moment, and attempts of a front end that is alone before that.
const ATTEMPTS: u32 = 8;
/// Keys of which none may be there that are read at once.
const FEW: usize = 16;
/// Keys that are read at once.
const TOGETHER: usize = 64;

/// The keys of a command that reads several.
pub fn read(command: &Command, call: &Call) -> Option<Vec<Vec<u8>>> {
    if command.writes || command.keys == (1, 1, 1) || call.draft.is_some() || call.count() < 3 {
        return None;
    }
    let keys = match command.name {
        "exists" | "lcs" | "mget" | "pfcount" | "sdiff" | "sinter" | "sunion" | "touch" => command.named(&call.args)?,
        "sintercard" | "zdiff" | "zinter" | "zintercard" | "zunion" => {
            let count = usize::try_from(super::parse_int(call.arg(1))?).ok()?;
            call.args[2..].get(..count)?.iter().map(Vec::as_slice).collect()
        }
        _ => return None,
    };
    let mut keys: Vec<Vec<u8>> = keys.into_iter().map(<[u8]>::to_vec).collect();
    keys.sort_unstable();
    keys.dedup();
    Some(keys).filter(|keys| (2..=KEYS).contains(&keys.len()))
}

/// Whether a command is a SORT that reads other keys than the one that it names. One that stores is not asked about.
pub fn looks_up(command: &Command, call: &Call) -> bool {
    matches!(command.name, "sort" | "sort_ro")
        && call.draft.is_none()
        && call.args.iter().skip(3).any(|pattern| pattern.contains(&b'*'))
}

/// Carries out a command at one moment of these keys.
///
/// # Errors
/// Those of the command, and those of the store.
pub async fn glance(command: &'static Command, call: &Call, keys: Vec<Vec<u8>>) -> Answered {
    if let Some(answered) = undisturbed(command, call, &keys).await {
        return answered;
    }
    for attempt in 0..ATTEMPTS {
        hesitate(call, attempt).await;
        let mut view = View::new(call);
        if !view.read(&keys).await? {
            return carry_out(command, call).await;
        }
        if view.holds().await {
            view.count();
            return view.on(command);
        }
    }
    at_one_moment(call, keys, move |on| Box::pin(carry_out(command, on))).await
}

/// SORT without STORE, at one moment of all keys that it reads.
///
/// # Errors
/// Those of the command, and those of the store.
pub async fn sorted(command: &'static Command, call: &Call) -> Answered {
    for attempt in 0..ATTEMPTS {
        hesitate(call, attempt).await;
        let (mut view, mut missing) = (View::new(call), vec![call.args[1].clone()]);
        let answered = loop {
            if view.seen.len() + missing.len() > KEYS || !view.read(&missing).await? {
                return carry_out(command, call).await;
            }
            let answered = view.on(command);
            missing = view.draft.missed();
            if missing.is_empty() {
                break answered;
            }
        };
        if view.holds().await {
            view.count();
            return answered;
        }
    }
    by_others(command, call, vec![call.args[1].clone()]).await
}

/// Whether none of these keys is there, at one moment.
///
/// # Errors
/// Those of the store.
pub async fn are_absent(call: &Call, keys: &[Vec<u8>]) -> Result<bool, Trouble> {
    let mut view = View::new(call);
    for some in keys.chunks(FEW) {
        if !view.read(some).await? || view.seen.iter().any(|(_, sight)| sight.object.is_some()) {
            return Ok(false);
        }
    }
    Ok(view.holds().await)
}

/// Carries out what reads several keys and may change some of them, at one moment of all of them. Nothing is locked if
/// it changes none. `counts`: the keys count as read. What no draft can have goes key by key. `looks_again`: after
/// such an outcome the command looks again. It need not have been so at one moment.
///
/// # Errors
/// Those of the command, which then changes nothing, and those of the store.
pub async fn at_a_glance<T: 'static>(
    call: &Call,
    keys: Vec<Vec<u8>>,
    counts: bool,
    looks_again: impl Fn(&T) -> bool,
    command: impl AsyncFn(&Call) -> Result<T, Fail>,
) -> Result<T, Fail> {
    for attempt in 0..ATTEMPTS {
        hesitate(call, attempt).await;
        let mut view = View::new(call);
        if keys.len() > KEYS || !view.read(&keys).await? {
            return command(call).await;
        }
        let came = on_draft(command(&view.call()));
        if came.is_ok() && !view.draft.changes().is_empty() {
            // Its sections would keep memory from coming back.
            drop(view);
            if may_wait(&call.args) {
                // A look may need no turn of the event loop. In one the front end sees whether the client is gone.
                call.io.pause(1).await;
            }
            if is_for_nobody(call) {
                return command(call).await;
            }
            break;
        }
        let is_enough = attempt + 1 == ATTEMPTS && came.as_ref().is_ok_and(&looks_again);
        if is_enough || view.holds().await {
            if counts {
                view.count();
            }
            return came;
        }
    }
    at_one_moment(call, keys, |on| Box::pin(ready(on_draft(command(on))))).await
}

/// Takes from the first of several keys that has something, at one moment of it and those before it. `pop` gets the
/// keys in which it is to look. `None`: at one moment none of them had anything; or the command waits, and looks again.
///
/// # Errors
/// Those of `pop`, and those of the store.
pub async fn first_of(
    call: &Call,
    keys: &[Vec<u8>],
    pop: impl AsyncFn(&Call, &[Vec<u8>]) -> Result<Option<Reply>, Fail>,
) -> Result<Option<Reply>, Fail> {
    if keys.len() < 2 || keys.len() > KEYS || call.draft.is_some() {
        return pop(call, keys).await;
    }
    let waits = may_wait(&call.args) && !call.in_exec;
    // Before the first key there is none.
    if let Some(popped) = pop(call, &keys[..1]).await? {
        return Ok(Some(popped));
    }
    let locked = |keys: &[Vec<u8>]| {
        let (some, pop) = (keys.to_vec(), &pop);
        at_one_moment(call, keys.to_vec(), move |on| {
            // The last moment before the locks.
            let popped = if is_for_nobody(call) { Ok(None) } else { on_draft(pop(on, &some)) };
            Box::pin(ready(popped))
        })
    };
    for attempt in 0..ATTEMPTS {
        hesitate(call, attempt).await;
        let mut view = View::new(call);
        if !view.read(keys).await? {
            return pop(call, keys).await;
        }
        let on = view.call();
        let looked = keys.iter().map(|key| on_draft(pop(&on, std::slice::from_ref(key))));
        let found = looked.enumerate().find(|(_, popped)| *popped != Ok(None));
        if let Some((n, Ok(_))) = found {
            // Its sections would keep memory from coming back.
            drop(view);
            let popped = locked(&keys[..=n]).await?;
            if popped.is_some() || is_for_nobody(call) {
                return Ok(popped);
            }
        } else if found.is_none() && attempt + 1 == ATTEMPTS && waits {
            // Locks would be written for thousands of keys of which none is there, at each look.
            return Ok(None);
        } else if view.holds().await {
            return found.map_or(Ok(None), |(_, popped)| popped);
        }
    }
    locked(keys).await
}

/// What comes of a command on a draft, which waits for nothing.
fn on_draft<T>(command: impl Future<Output = Result<T, Fail>>) -> Result<T, Fail> {
    at_once(command).unwrap_or_else(|| Err(Fail::new(WOULD_WAIT)))
}

async fn hesitate(call: &Call, attempt: u32) {
    if attempt > 0 {
        call.io.pause(call.store().random(1 << attempt.min(4)) as u32).await;
    }
}

/// Carries out a command if this front end is alone and changes none of the keys meanwhile.
async fn undisturbed(command: &'static Command, call: &Call, keys: &[Vec<u8>]) -> Option<Answered> {
    let quiet = || keys.iter().map(|key| call.store().quiet(key)).collect::<Option<Vec<_>>>();
    for _ in 0..ATTEMPTS {
        if call.store().has_others() {
            return None;
        }
        if let Some(before) = quiet() {
            let answered = carry_out(command, call).await;
            if quiet() == Some(before) {
                return Some(answered);
            }
        }
        call.io.pause(0).await;
    }
    None
}

/// Keys as they are read, one after another.
struct View<'a> {
    call: &'a Call,
    draft: Rc<Draft>,
    seen: Vec<(Vec<u8>, Sight)>,
    /// What told that nobody changes them, of each before it was read.
    quiet: Vec<Option<(u32, Quiet)>>,
    /// While they live no word of a slot comes back.
    _sections: Vec<Section>,
}

impl View<'_> {
    fn new(call: &Call) -> View<'_> {
        let store = call.store();
        View {
            call,
            draft: Rc::new(Draft::new(store.now_ms(), store.random(usize::MAX) as u64)),
            seen: Vec::new(),
            quiet: Vec::new(),
            _sections: store.shards.iter().map(|shard| shard.space.section()).collect(),
        }
    }

    /// Reads keys. False: they are too much for a draft, or long strings, which no draft can have.
    async fn read(&mut self, keys: &[Vec<u8>]) -> Result<bool, Trouble> {
        let (store, io) = (self.call.store(), &self.call.io);
        for some in keys.chunks(TOGETHER) {
            self.quiet.extend(some.iter().map(|key| store.quiet(key)));
            let look = |key| -> Read<'_, Sight> { Box::pin(store.sight(io, key)) };
            for (key, sight) in some.iter().zip(join(some.iter().map(|key| look(key)).collect()).await) {
                let sight = sight?;
                if sight.object.as_ref().is_some_and(|object| object.kind() == Type::Long) {
                    return Ok(false);
                }
                let read = sight.object.as_ref();
                let one = match as_one(self.call, read).await {
                    Err(Trouble::Unwieldy) => return Ok(false),
                    one => one?,
                };
                self.draft.enter_as(key, read.cloned(), one);
                self.seen.push((key.clone(), sight));
            }
            if self.draft.held() > BYTES {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The call on what was read.
    fn call(&self) -> Call {
        Call { draft: Some(Rc::clone(&self.draft)), ..self.call.clone() }
    }

    /// Carries out a command on what was read.
    fn on(&self, command: &'static Command) -> Answered {
        on_draft(carry_out(command, &self.call()))
    }

    /// Counts the keys as read.
    fn count(&self) {
        self.seen.iter().for_each(|(_, sight)| self.call.store().count_read(sight.object.as_ref()));
    }

    /// Whether there was a moment at which all keys were what was read.
    async fn holds(&self) -> bool {
        let store = self.call.store();
        let is_quiet =
            |(quiet, (key, _)): (&Option<_>, &(Vec<u8>, Sight))| quiet.is_some() && *quiet == store.quiet(key);
        self.quiet.iter().zip(&self.seen).all(is_quiet) || store.are_unchanged(&self.call.io, &self.seen).await
    }
}
