//! Changes of one key that are carried out together, by one CAS.
//!
//! ```text
//!  INCR k ──────── under way ────────┐
//!    INCR k, APPEND k 1, INCR k wait ─┴─► one draft ─► one WRITE and CAS ─► three replies
//! ```
//!
//! A change of a key waits until the one before it at its front end has ended. Where the node's memory is
//! not mapped that takes round trips, and where another front end changes the same key, several. So all that
//! have come to wait meanwhile run one behind the other on a draft of the key's value, in the order in which
//! they came, and the last value is put in place of the one that was read. All take effect at that moment.
//! If another front end was faster, they run again on what that has left.
//!
//! A long string fits no draft: its changes are carried out one by one. So are changes of a value
//! in segments that need all of it. Other changes of such a value alter the same copies of its
//! segments, which are written at the end.
//!
//! Where the node's memory is mapped no change waits for another. There the first change of a
//! collection that comes in a round of the event loop waits for the round's other requests, so that
//! they share the head and the segments that they write ([`opens`]).

use super::draft::Draft;
use super::{Call, Command, Group, carry_out, channels, execute, find, long, multi, strings};
use crate::keyspace::Change;
use crate::object::{Object, Type};
use crate::resp::{Reply, Request};
use crate::shard::Trouble;
use crate::shard::index::Found;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Requests that are gathered for one key at most.
pub const MOST: usize = 512;
/// The bytes of their arguments.
pub const BYTES: usize = 1 << 20;
/// Bytes of the arguments of one that is gathered. A longer one gains little.
const LONGEST: usize = 64 << 10;
/// How long their commands run on one draft, a last one aside: nothing else runs meanwhile.
const TIME: Duration = Duration::from_millis(1);

/// The bytes of a request that may be gathered: it changes one key, and waits for nothing else.
pub fn gatherable(request: &Request) -> Option<usize> {
    let bytes = request.iter().map(Vec::len).sum::<usize>();
    let suits = |command: &&Command| {
        command.writes && command.keys == (1, 1, 1) && command.takes(request.len()) && command.runs_on_a_draft()
    };
    (bytes <= LONGEST).then_some(bytes).filter(|_| find(&request[0]).filter(suits).is_some())
}

/// Whether others are to be gathered behind a request, which is [`gatherable`], even if no change of
/// its key is under way: what it writes is much more than what it changes.
pub fn opens(request: &Request) -> bool {
    use Group::{Hashes, Lists, Places, Sets, SortedSets, Streams};
    find(&request[0])
        .is_some_and(|command| matches!(command.group, Hashes | Lists | Places | Sets | SortedSets | Streams))
}

/// Carries out changes of one key, which must be [`gatherable`], in their order. Returns a reply for each.
pub async fn together(calls: Vec<Call>) -> Vec<Reply> {
    let begun = Instant::now();
    let commands = calls.iter().filter_map(|call| Some((find(call.arg(0))?, call)));
    let commands: Vec<(&'static Command, &Call)> = commands.collect();
    let mut replies = Vec::with_capacity(calls.len());
    while replies.len() < commands.len() {
        match on_a_draft(&commands[replies.len()..]).await {
            Some(some) => {
                let figures = &calls[0].store().figures;
                figures.commands.set(figures.commands.get() + some.len() as u64);
                for ((command, call), reply) in commands[replies.len()..].iter().zip(&some) {
                    call.client.last.set(command.name);
                    call.front.stats.record(command, call, begun.elapsed(), reply);
                }
                replies.extend(some);
            }
            None => {
                for (_, call) in &commands[replies.len()..] {
                    replies.push(execute((*call).clone()).await);
                }
            }
        }
    }
    replies
}

/// The replies of as many as there was time for, at least one. `None`: nothing was changed, and each is to
/// be carried out by itself.
async fn on_a_draft(commands: &[(&'static Command, &Call)]) -> Option<Vec<Reply>> {
    let (_, first) = commands.first()?;
    let (store, key) = (first.store(), first.arg(1));
    let (last, ran) = (RefCell::new(None), Cell::new(0));
    // Commands that begin again draw the same.
    let seed = store.random(usize::MAX) as u64;
    let beyond = [Trouble::TooLarge.into(), Trouble::Unread.into(), long::too_long(), strings::too_long()];
    let change = |_: Option<&Found>, there: Option<&Object>| -> Result<Change<Option<Vec<Reply>>>, Trouble> {
        if there.is_some_and(|object| object.kind() == Type::Long) {
            return Ok(Change::Keep(None));
        }
        let draft = Rc::new(Draft::new(store.now_ms(), seed));
        draft.enter(key, there.cloned());
        let (mut replies, mut wanting, until) = (Vec::with_capacity(commands.len()), 0, Instant::now() + TIME);
        for (command, call) in commands {
            if replies.len() + wanting > 0 && Instant::now() >= until {
                break;
            }
            let call = Call { draft: Some(Rc::clone(&draft)), in_exec: true, ..(*call).clone() };
            let came = multi::at_once(carry_out(command, &call));
            if store.segments.is_wanting() {
                // All begin again when the segments have been read, also those that the commands
                // behind it want.
                wanting += 1;
                continue;
            }
            match came {
                Some(Ok(reply)) => replies.push(reply),
                Some(Err(fail)) if !beyond.contains(&fail) => replies.push(fail.0),
                _ => return Ok(Change::Keep(None)),
            }
        }
        if wanting > 0 {
            return Err(Trouble::Unread);
        }
        ran.set(replies.len());
        last.replace(Some(Rc::clone(&draft)));
        draft.outcome(&store.segments, store.shard(key).reach.node, Some(replies))
    };
    // Commands on several keys, which have their turn, replace what they have read.
    let turn = first.turn(key).await;
    let ended = store.update_found(&first.io, key, false, change).await;
    drop(turn);
    match ended {
        Ok(replies) => {
            let messages = last.take().filter(|_| replies.is_some()).map_or(Vec::new(), |draft| draft.messages());
            channels::send_all(first, messages).await;
            replies
        }
        // They may have taken effect, so none is carried out again.
        Err(trouble @ (Trouble::Unsettled | Trouble::ShutOut | Trouble::Corrupt)) => {
            Some(vec![Reply::Error(trouble.to_string()); ran.get().max(1)])
        }
        Err(_) => None,
    }
}

#[test]
fn changes_of_one_key_are_gathered_and_nothing_else() {
    let request = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Request>();
    for line in ["INCR k", "set k v", "LPUSH k a b", "EXPIRE k 10", "XADD k * a b", "GETDEL k"] {
        assert_eq!(gatherable(&request(line)), Some(line.len() - line.matches(' ').count()), "{line}");
    }
    for line in ["GET k", "INCR", "INCR k k", "DEL k", "MSET k v", "BLPOP k 0", "LMOVE k l LEFT LEFT", "EVAL s 1 k"] {
        assert_eq!(gatherable(&request(line)), None, "{line}");
    }
    assert_eq!(gatherable(&vec![b"set".to_vec(), b"k".to_vec(), vec![0; LONGEST]]), None);
}
