//! Commands that read several keys, at one moment: MGET sees all of an MSET or nothing.
//!
//! They are read, and then their slots are read again. If none has changed, all keys had these values between
//! the two. Nothing is locked, and it takes one round trip more. Where nobody else serves the store, and no
//! command on several keys has come between, there is nothing to look at again.

use super::draft::{BYTES, Draft};
use super::multi::at_once;
use super::several::{KEYS, Read, at_one_moment};
use super::{Answered, Call, Command, Fail, carry_out};
use crate::index::Found;
use crate::layout::{Slot, word};
use crate::object::Type;
use crate::shard::Trouble;
use crate::task::{Answer, Verb, join};
use std::rc::Rc;

/// Attempts before keys are locked for a moment.
const ATTEMPTS: u32 = 8;
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

/// Carries out a command at one moment of these keys.
///
/// # Errors
/// Those of the command, and those of the store.
pub async fn glance(command: &'static Command, call: &Call, keys: Vec<Vec<u8>>) -> Answered {
    let (store, in_turn) = (call.store(), &call.front.in_turn);
    if !store.has_others() {
        let before = in_turn.quiet();
        let answered = carry_out(command, call).await;
        if before.is_some() && in_turn.quiet() == before {
            return answered;
        }
    }
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            call.io.pause(store.random(1 << attempt.min(4)) as u32).await;
        }
        let draft = Rc::new(Draft::new(store.now_ms(), store.random(usize::MAX) as u64));
        let mut found = Vec::with_capacity(keys.len());
        for some in keys.chunks(TOGETHER) {
            let get = |key| -> Read<'_, Option<Found>> { Box::pin(store.get(&call.io, key)) };
            for (key, one) in some.iter().zip(join(some.iter().map(|key| get(key)).collect()).await) {
                let one = one?;
                draft.enter(key, one.as_ref().map(|one| one.object.clone()));
                found.push(one);
            }
        }
        let is_long = |one: &Found| one.object.kind() == Type::Long;
        if draft.held() > BYTES || found.iter().flatten().any(is_long) {
            return carry_out(command, call).await;
        }
        if are_unchanged(call, &keys, &found).await? {
            let call = Call { draft: Some(draft), ..call.clone() };
            return at_once(carry_out(command, &call)).unwrap_or_else(|| Err(Fail::new("the command would wait")));
        }
    }
    at_one_moment(call, keys, move |on| Box::pin(carry_out(command, on))).await
}

/// Whether each key still is what was found.
async fn are_unchanged(call: &Call, keys: &[Vec<u8>], found: &[Option<Found>]) -> Result<bool, Trouble> {
    let (store, io) = (call.store(), &call.io);
    let look = |(key, one): (&Vec<u8>, &Option<Found>)| -> Read<'_, bool> {
        let (key, slot) = (key.clone(), one.as_ref().map(|one| (one.slot_at, one.slot)));
        Box::pin(async move {
            let Some((at, slot)) = slot else { return Ok(store.find(io, &key).await?.is_none()) };
            let answer = store.shard(&key).reach.verbs(io, vec![Verb::Read { at, len: 8 }]).await.pop();
            // A frozen slot may have gone elsewhere.
            Ok(matches!(answer, Some(Answer::Bytes(bytes)) if Slot(word(&bytes, 0)) == slot))
        })
    };
    let all: Vec<(&Vec<u8>, &Option<Found>)> = keys.iter().zip(found).collect();
    for some in all.chunks(TOGETHER) {
        let same = join(some.iter().map(|&one| look(one)).collect()).await;
        if !same.into_iter().collect::<Result<Vec<bool>, _>>()?.into_iter().all(|same| same) {
            return Ok(false);
        }
    }
    Ok(true)
}
