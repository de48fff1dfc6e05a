//! PUBSUB's answers about the clients of all front ends.
//!
//! ```text
//!  PUBSUB ─► READ which lines have subscriptions
//!         ─► a question, as a message goes ─► each of these front ends ─► an answer, as a message comes
//! ```
//!
//! A front end says in a word of its line in the first shard's head whether its clients have
//! subscriptions. It says so before the reply to the first of them, and takes it back when the last has
//! ended. One that has none hears no messages, and nobody waits for its answer. Nor is an answer waited
//! for longer than [`PATIENCE_MS`]: a front end that stands still is left out.

use super::{Channels, Kind, MESSAGE, forward};
use crate::command::{Call, Fail, Front};
use crate::member::subscribed_at;
use crate::resp::matches;
use crate::task::{Io, Verb};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How long answers are waited for.
const PATIENCE_MS: u64 = 1000;
/// Bytes of an answer, at most.
const ANSWER: usize = MESSAGE - 1024;
/// Names that are compared with a pattern before others have their turn.
const SPELL: usize = 4096;

/// How many clients have subscribed to each name.
pub type Counts = BTreeMap<Vec<u8>, u64>;

/// A question about subscriptions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Which names of a kind have subscribers, if they match this pattern.
    Names(Kind, Option<Vec<u8>>),
    /// How many subscribers these names have.
    Numbers(Kind, Vec<Vec<u8>>),
}

/// The questions of a front end, and what it says about itself.
#[derive(Debug, Default)]
pub struct Asked {
    /// Those that wait for answers, by number.
    open: RefCell<BTreeMap<u64, Waiting>>,
    /// Its line's word about its subscriptions. `None`: the one before may have left any.
    shown: Cell<Option<bool>>,
    /// A task is about to write that.
    shows: Cell<bool>,
    /// SUBSCRIBEs that are about to take effect.
    coming: Cell<usize>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The lines of the front ends that have not answered.
    lines: BTreeSet<usize>,
    found: Counts,
    /// Some answer has not all of it.
    cut: bool,
}

impl Asked {
    /// Whether answers are waited for.
    pub(super) fn waits(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// An answer has come from the front end of this line.
    pub(super) fn answered(&self, line: usize, number: &[u8], text: &[u8]) {
        let mut open = self.open.borrow_mut();
        let number = number.first_chunk().map(|number| u64::from_le_bytes(*number));
        let Some(waiting) = number.and_then(|number| open.get_mut(&number)) else { return };
        if !waiting.lines.remove(&line) {
            return;
        }
        let Some((&cut, mut rest)) = text.split_first() else { return };
        waiting.cut |= cut != 0;
        while let Some((count, name)) = forward::part(&mut rest).and_then(|part| part.split_first_chunk()) {
            let sum = waiting.found.entry(name.to_vec()).or_default();
            *sum = sum.saturating_add(u64::from_le_bytes(*count));
        }
    }
}

/// A question that is open as long as this lives.
struct Open<'a>(&'a Channels, u64);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.asked.open.borrow_mut().remove(&self.1);
        self.0.rest();
    }
}

/// A SUBSCRIBE that is about to take effect, as long as this lives.
pub(super) struct Coming<'a>(&'a Channels);

impl Coming<'_> {
    pub(super) fn of(channels: &Channels) -> Coming<'_> {
        channels.asked.coming.set(channels.asked.coming.get() + 1);
        Coming(channels)
    }
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.0.asked.coming.set(self.0.asked.coming.get() - 1);
        self.0.rest();
    }
}

impl Question {
    fn encode(&self, number: u64) -> (Vec<u8>, Vec<u8>) {
        let (kind, which, words) = match self {
            Question::Names(kind, pattern) => (kind, 0, pattern.as_slice()),
            Question::Numbers(kind, names) => (kind, 1, names.as_slice()),
        };
        let mut text = Vec::new();
        words.iter().for_each(|word| forward::put_part(&mut text, word));
        ([&number.to_le_bytes()[..], &[*kind as u8, which]].concat(), text)
    }

    fn decode(about: &[u8], mut text: &[u8]) -> Option<(u64, Question)> {
        let (number, about) = about.split_first_chunk()?;
        let &[kind, which] = about else { return None };
        let kind = [Kind::Plain, Kind::Pattern, Kind::Sharded].into_iter().find(|one| *one as u8 == kind)?;
        let mut words = std::iter::from_fn(|| forward::part(&mut text).map(<[u8]>::to_vec));
        let question = match which {
            0 => Question::Names(kind, words.next()),
            _ => Question::Numbers(kind, words.collect()),
        };
        Some((u64::from_le_bytes(*number), question))
    }

    /// The answer for the clients of this front end.
    async fn of_own(&self, channels: &Channels, io: &Io) -> Counts {
        let count = |kind: &Kind, name: &[u8]| {
            channels.subscribers.borrow()[*kind as usize].get(name).map_or(0, |those| those.len() as u64)
        };
        match self {
            Question::Numbers(kind, names) => {
                let counts = names.iter().map(|name| (name.clone(), count(kind, name)));
                counts.filter(|(_, count)| *count > 0).collect()
            }
            Question::Names(kind, pattern) => {
                let names: Vec<Rc<[u8]>> = channels.subscribers.borrow()[*kind as usize].keys().cloned().collect();
                let mut found = Counts::new();
                for (n, some) in names.chunks(SPELL).enumerate() {
                    if n > 0 {
                        io.pause(0).await;
                    }
                    let wanted = |name: &&Rc<[u8]>| pattern.as_ref().is_none_or(|pattern| matches(pattern, name));
                    found.extend(some.iter().filter(wanted).map(|name| (name.to_vec(), count(kind, name))));
                }
                found
            }
        }
    }
}

/// The answer for the clients of all front ends. In a transaction or a script nothing is waited for: there
/// it is that of this one.
pub(super) async fn of_all(call: &Call, question: Question) -> Result<Counts, Fail> {
    let (front, channels, io) = (&call.front, &call.front.channels, &call.io);
    let mut counts = question.of_own(channels, io).await;
    if call.draft.is_some() || call.in_exec || !front.store.has_others() {
        return Ok(counts);
    }
    let lines = forward::subscribed(front, io).await?;
    if lines.is_empty() {
        return Ok(counts);
    }
    let number = (front.store.random(1 << 32) as u64) << 32 | front.store.random(1 << 32) as u64;
    let (about, text) = question.encode(number);
    if text.len() > ANSWER {
        return Err(Fail::new(format!("the other front ends can be asked about {ANSWER} bytes of names at most")));
    }
    channels.asked.open.borrow_mut().insert(number, Waiting { lines, ..Waiting::default() });
    let _open = Open(channels, number);
    channels.forward.open(call).await?;
    channels.forward.tell(forward::QUESTION, &about, &text);
    let until = front.store.now_ms() + PATIENCE_MS;
    let waits = || channels.asked.open.borrow().get(&number).is_some_and(|waiting| !waiting.lines.is_empty());
    while waits() && front.store.now_ms() < until && front.store.has_others() {
        io.pause(1).await;
    }
    let Some(waiting) = channels.asked.open.borrow_mut().remove(&number) else { return Ok(counts) };
    if waiting.cut {
        return Err(Fail::new(format!(
            "another front end has more names than {ANSWER} bytes can tell: ask it, or name less"
        )));
    }
    for (name, count) in waiting.found {
        *counts.entry(name).or_default() += count;
    }
    Ok(counts)
}

/// Answers a question of another front end's.
pub(super) async fn answer(front: &Front, io: &Io, about: &[u8], text: &[u8]) {
    let channels = &front.channels;
    let Some((number, question)) = Question::decode(about, text) else { return };
    let mut told = vec![0];
    for (name, count) in question.of_own(channels, io).await {
        if told.len() + name.len() + 16 > ANSWER {
            told[0] = 1;
            break;
        }
        forward::put_part(&mut told, &[&count.to_le_bytes()[..], &name].concat());
    }
    channels.forward.tell(forward::ANSWER, &number.to_le_bytes(), &told);
}

impl Channels {
    pub(super) fn has_subscriptions(&self) -> bool {
        self.count.get() > 0 || self.asked.coming.get() > 0
    }

    /// Whether the caller is to begin a task that says whether there are subscriptions: [`show`].
    pub fn begins_to_show(&self) -> bool {
        let begins = !self.asked.shows.get() && self.asked.shown.get() != Some(self.has_subscriptions());
        self.asked.shows.set(self.asked.shows.get() || begins);
        begins
    }
}

/// Says whether this front end has subscriptions, as one that was told to ([`Channels::begins_to_show`]).
pub async fn show(front: &Front, io: &Io) {
    let (channels, asked) = (&front.channels, &front.channels.asked);
    let reach = &front.store.shards[0].reach;
    while asked.shown.get() != Some(channels.has_subscriptions()) {
        let now = channels.has_subscriptions();
        let at = subscribed_at(reach.root, usize::from(reach.me.line));
        let bytes = Rc::new(u64::from(now).to_le_bytes().to_vec());
        reach.verbs(io, vec![Verb::Write { at, bytes }]).await;
        asked.shown.set(Some(now));
    }
    asked.shows.set(false);
}

/// Before the first subscription takes effect: others know that there are some.
pub(super) async fn comes(call: &Call) {
    let asked = &call.front.channels.asked;
    while asked.shown.get() != Some(true) {
        if call.front.channels.begins_to_show() {
            show(&call.front, &call.io).await;
        } else {
            call.io.pause(1).await;
        }
    }
}

#[test]
fn a_question_is_read_as_it_was_asked() {
    for question in [
        Question::Names(Kind::Pattern, None),
        Question::Names(Kind::Plain, Some(b"n*".to_vec())),
        Question::Numbers(Kind::Sharded, vec![b"a".to_vec(), Vec::new(), vec![0; 300]]),
    ] {
        let (about, text) = question.encode(7);
        assert_eq!(Question::decode(&about, &text), Some((7, question)));
    }
    assert_eq!(Question::decode(b"short", b""), None);
    assert_eq!(Question::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 9, 0], b""), None);
}

#[test]
fn answers_are_added_up_once_for_each_line() {
    let asked = Asked::default();
    asked.open.borrow_mut().insert(5, Waiting { lines: [1, 2].into(), ..Waiting::default() });
    let mut text = vec![0];
    forward::put_part(&mut text, &[&3u64.to_le_bytes()[..], b"news"].concat());
    for line in [1, 1, 2, 9] {
        asked.answered(line, &5u64.to_le_bytes(), &text);
    }
    asked.answered(2, &6u64.to_le_bytes(), &text);
    let open = asked.open.borrow();
    assert_eq!((&open[&5].found, open[&5].lines.len()), (&Counts::from([(b"news".to_vec(), 6)]), 0));
}
