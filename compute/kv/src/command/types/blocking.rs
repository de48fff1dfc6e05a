//! Commands that wait for an element: BLPOP, BZPOPMIN and their relatives.
//!
//! A command that finds nothing looks again after a pause, which grows from 1 ms to [`LONGEST`]:
//! the element may come from any front end, and nobody tells. It does not wait in a transaction.
//! While it waits it holds nothing, and its connection may end it. One whose client goes while it
//! looks takes nothing, and ends before it waits again.

use super::super::args::{is, parse_float};
use super::super::{Answered, Call, Fail};
use super::count;
use crate::object::Type;
use crate::resp::Reply;
use crate::segments::type_of;

/// Between two looks at a few keys, in ms, at most.
const LONGEST: u32 = 16;
/// Between two looks at any number of keys, in ms, at most.
const RARELY: u32 = 500;
/// Keys that may be looked at within a millisecond. A client that waits for thousands does not take
/// the front end's time.
const A_MS: usize = 16;

/// Milliseconds until the next look at this number of keys. `before`: the pause before this look.
pub fn pause_behind(before: u32, keys: usize) -> u32 {
    let often = (keys / A_MS) as u32;
    (before + 1 + often / 8).min(often.clamp(LONGEST, RARELY))
}

/// How long a command may wait, in ms; 0: for ever.
pub fn timeout(arg: &[u8]) -> Result<u64, Fail> {
    let seconds = parse_float(arg).ok_or_else(|| Fail::new("timeout is not a float or out of range"))?;
    if seconds < 0.0 {
        return Err(Fail::new("timeout is negative"));
    }
    let ms = (seconds * 1000.0).ceil();
    if ms.is_finite() && ms < (1u64 << 62) as f64 { Ok(ms as u64) } else { Err(Fail::new("timeout is out of range")) }
}

/// Tries until there is a reply, or the time is over.
pub async fn wait(
    call: &Call,
    timeout_ms: u64,
    keys: &[Vec<u8>],
    nothing: Reply,
    attempt: impl AsyncFn() -> Result<Option<Reply>, Fail>,
) -> Answered {
    let until = call.store().now_ms().saturating_add(timeout_ms);
    let waits = !call.in_exec && call.draft.is_none();
    // An earlier command may have ended before it took notice.
    call.client.unblocked.set(None);
    // Clients wait in the order in which they ask, not in the order in which their first looks end.
    let waiter = waits.then(|| Waiter::new(call, keys));
    // An element that comes now is for a client that waits already.
    let looks = match &waiter {
        Some(waiter) => waiter.may_look(keys).await?,
        None => true,
    };
    if looks && let Some(reply) = attempt().await? {
        return Ok(reply);
    }
    let Some(waiter) = waiter else { return Ok(nothing) };
    let mut pause = 1;
    loop {
        let blocked = Blocked::new(call);
        loop {
            // While it looked its connection could not end it.
            if call.client.is_lost() {
                return Ok(Reply::Silence);
            }
            let now = call.store().now_ms();
            if timeout_ms > 0 && now >= until {
                return Ok(nothing);
            }
            match call.client.unblocked.take() {
                Some(true) => return Err(Fail(Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into()))),
                Some(false) => return Ok(nothing),
                None => {}
            }
            let left = if timeout_ms > 0 { until.saturating_sub(now) } else { u64::MAX };
            call.io.pause(left.min(u64::from(pause)) as u32).await;
            pause = pause_behind(pause, keys.len());
            // A transaction on several keys must not be disturbed; one may begin while this looks.
            // The first that waits is served first.
            if !call.front.alone.get() && waiter.may_look(keys).await? && !call.front.alone.get() {
                break;
            }
        }
        drop(blocked);
        match attempt().await {
            Ok(None) => {}
            Ok(Some(reply)) => return Ok(reply),
            // As with redis, a value of another type that came meanwhile ends no waiting.
            Err(fail) if fail.is_wrong_type() && has_another_type(call, keys).await? => {}
            Err(fail) => return Err(fail),
        }
    }
}

/// Whether the command is one that waits, and its client is gone: an element would be lost with it.
/// Asked at the last moment before one is taken, because a look may take long.
pub fn is_for_nobody(call: &Call) -> bool {
    call.client.is_lost() && !call.in_exec && call.draft.is_none() && may_wait(&call.args)
}

/// Whether a request may wait for an element.
pub fn may_wait(args: &[Vec<u8>]) -> bool {
    match super::super::find(&args[0]) {
        Some(command) if matches!(command.name, "xread" | "xreadgroup") => has_block(args),
        command => command.is_some_and(super::super::Command::waits),
    }
}

/// Whether XREAD or XREADGROUP is given the option BLOCK.
pub fn has_block(args: &[Vec<u8>]) -> bool {
    let mut n = 1;
    while let Some(arg) = args.get(n).filter(|arg| !is(arg, "streams")) {
        n += match &arg.to_ascii_lowercase()[..] {
            b"block" => return n + 1 < args.len(),
            b"group" => 3,
            b"count" => 2,
            _ => 1,
        };
    }
    false
}

/// Whether the only key that is waited for has a value without such elements. Of several keys, one
/// that comes later may have an element: the client gets the error then.
async fn has_another_type(call: &Call, keys: &[Vec<u8>]) -> Result<bool, Fail> {
    let [key] = keys else { return Ok(false) };
    Ok(call.store().find(&call.io, key).await?.is_some_and(|found| type_of(&found.object) != wanted(call)))
}

/// The type of the values in which the command looks for an element.
fn wanted(call: &Call) -> Type {
    if of_sorted_sets(call) { Type::SortedSet } else { Type::List }
}

/// A place in the order in which this front end's clients began to wait.
struct Waiter<'a>(&'a Call, u64);

impl Waiter<'_> {
    fn new<'a>(call: &'a Call, keys: &[Vec<u8>]) -> Waiter<'a> {
        let mut waiters = call.front.waiters.borrow_mut();
        let place = waiters.last_key_value().map_or(0, |(last, _)| last + 1);
        waiters.insert(place, (of_sorted_sets(call), keys.to_vec()));
        Waiter(call, place)
    }

    /// Whether no client that began earlier waits for an element of this key.
    fn is_first_for(&self, key: &Vec<u8>) -> bool {
        let (waiters, sorted) = (self.0.front.waiters.borrow(), of_sorted_sets(self.0));
        !waiters.range(..self.1).any(|(_, other)| other.0 == sorted && other.1.contains(key))
    }

    /// Whether the command may look for an element now: it is the first for all of its keys, or a
    /// key for which it is the first has a value. A value of another type is an error for anyone.
    async fn may_look(&self, keys: &[Vec<u8>]) -> Result<bool, Fail> {
        if keys.iter().all(|key| self.is_first_for(key)) {
            return Ok(true);
        }
        for key in keys {
            let Some(found) = self.0.store().find(&self.0.io, key).await? else { continue };
            if self.is_first_for(key) || type_of(&found.object) != wanted(self.0) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.front.waiters.borrow_mut().remove(&self.1);
    }
}

/// Whether the command waits for a sorted set: those that wait for lists are not in its way.
fn of_sorted_sets(call: &Call) -> bool {
    call.arg(0).len() > 1 && call.arg(0)[1].eq_ignore_ascii_case(&b'z')
}

/// Counts a command as waiting while it lives.
pub struct Blocked<'a>(&'a Call);

impl Blocked<'_> {
    pub fn new(call: &Call) -> Blocked<'_> {
        call.client.blocked.set(true);
        call.front.blocked.set(call.front.blocked.get() + 1);
        Blocked(call)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.client.blocked.set(false);
        self.0.front.blocked.set(self.0.front.blocked.get() - 1);
    }
}

/// The keys behind their number, and where the arguments behind them begin.
pub fn numbered(call: &Call, at: usize) -> Result<(&[Vec<u8>], usize), Fail> {
    let wrong = || Fail::new("numkeys should be greater than 0");
    let keys = count(call.arg(at)).map_err(|_| wrong())?;
    if keys == 0 {
        return Err(wrong());
    }
    let end = at.checked_add(1 + keys).filter(|&end| end <= call.count()).ok_or_else(Fail::syntax)?;
    Ok((&call.args[at + 1..end], end))
}

/// How many elements a command takes at most, by its last arguments: `COUNT n`, or one.
pub fn most(args: &[Vec<u8>]) -> Result<usize, Fail> {
    match args {
        [] => Ok(1),
        [word, number] if is(word, "count") => {
            let wrong = || Fail::new("count should be greater than 0");
            count(number).ok().filter(|&count| count > 0).ok_or_else(wrong)
        }
        _ => Err(Fail::syntax()),
    }
}
