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
//! for longer than [`PATIENCE_MS`]: a front end that stands still is left out. For as long again,
//! questions do not wait for it, unless it answers one.
//!
//! *Bounds.* Questions and answers wait among messages. So a front end has one question under way.
//! The next ones wait, and clients who ask the same share it. A question and an answer have
//! [`PART`] bytes. For more, the next question begins behind what is known.

use super::{Channels, Kind, NAME, forward};
use crate::command::{Call, Fail, Front};
use crate::resp::Glob;
use crate::shard::Trouble;
use crate::shard::member::subscribed_at;
use crate::task::{Io, Verb};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

/// How long answers are waited for.
const PATIENCE_MS: u64 = 1000;
/// Bytes of the names in a question or an answer, at most, with 16 for each.
const PART: usize = 64 << 10;
/// Questions by which one PUBSUB asks for more than that.
const PARTS: usize = 32;
/// Names that are compared with a pattern before others have their turn.
const SPELL: usize = 4096;

/// How many clients have subscribed to each name.
pub type Counts = BTreeMap<Vec<u8>, u64>;

/// A question about subscriptions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// Which names of a kind have subscribers, if they match a pattern. Only names behind `after`.
    Names { kind: Kind, pattern: Option<Vec<u8>>, after: Option<Vec<u8>> },
    /// How many subscribers these names have.
    Numbers(Kind, Vec<Vec<u8>>),
}

/// Bits of an encoded question: it has names, a pattern, a name behind which the answer begins.
const NUMBERS: u8 = 1;
const PATTERN: u8 = 2;
const AFTER: u8 = 4;

/// The questions of a front end, and what it says about itself.
#[derive(Debug, Default)]
pub struct Asked {
    /// The question that waits for answers.
    open: RefCell<Option<Waiting>>,
    /// Those that wait for its end. Their askers hold them.
    queue: RefCell<VecDeque<Weak<Shared>>>,
    /// Lines that were waited for in vain, and until when they are not waited for.
    silent: RefCell<BTreeMap<usize, u64>>,
    /// Its line's word about its subscriptions. `None`: the one before may have left any.
    shown: Cell<Option<bool>>,
    /// A task is about to write that.
    shows: Cell<bool>,
    /// SUBSCRIBEs that are about to take effect.
    coming: Cell<usize>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By which answers name it.
    number: u64,
    /// The lines of the front ends that have not answered.
    lines: BTreeSet<usize>,
    told: Told,
}

/// The answers of other front ends.
#[derive(Clone, Debug, Default)]
struct Told {
    found: Counts,
    /// The last name that all of them have told of. `None`: there are no more.
    last: Option<Vec<u8>>,
}

/// A question, and its answer when that is there.
#[derive(Debug)]
struct Shared {
    question: Question,
    told: RefCell<Option<Result<Told, Trouble>>>,
}

impl Asked {
    /// Whether answers are waited for.
    pub(super) fn waits(&self) -> bool {
        self.open.borrow().is_some()
    }

    /// An answer has come from the front end of this line.
    pub(super) fn answered(&self, line: usize, number: &[u8], text: &[u8]) {
        // Also by one that comes too late.
        self.silent.borrow_mut().remove(&line);
        let mut open = self.open.borrow_mut();
        let number = number.first_chunk().map(|number| u64::from_le_bytes(*number));
        let Some(waiting) = open.as_mut().filter(|waiting| Some(waiting.number) == number) else { return };
        if !waiting.lines.remove(&line) {
            return;
        }
        let Some((&cut, mut rest)) = text.split_first() else { return };
        let (told, mut last) = (&mut waiting.told, None);
        while let Some((count, name)) = forward::part(&mut rest).and_then(|part| part.split_first_chunk()) {
            let sum = told.found.entry(name.to_vec()).or_default();
            *sum = sum.saturating_add(u64::from_le_bytes(*count));
            last = Some(name);
        }
        if let Some(last) = last.filter(|_| cut != 0)
            && told.last.as_ref().is_none_or(|known| last < known.as_slice())
        {
            told.last = Some(last.to_vec());
        }
    }

    /// A question as one that waits for its turn: the same as another's, if that is there.
    fn queued(&self, question: Question) -> Rc<Shared> {
        let mut queue = self.queue.borrow_mut();
        let same = queue.iter().filter_map(Weak::upgrade).find(|shared| shared.question == question);
        same.unwrap_or_else(|| {
            let shared = Rc::new(Shared { question, told: RefCell::default() });
            queue.push_back(Rc::downgrade(&shared));
            shared
        })
    }
}

/// A question that is under way as long as this lives.
struct Open<'a>(&'a Channels, Rc<Shared>);

impl Open<'_> {
    /// If it is this question's turn.
    fn of<'a>(channels: &'a Channels, shared: &Rc<Shared>, number: u64) -> Option<Open<'a>> {
        let mut queue = channels.asked.queue.borrow_mut();
        // Clients that are gone hold none.
        while queue.front().is_some_and(|first| first.strong_count() == 0) {
            queue.pop_front();
        }
        let is_first = queue.front().is_some_and(|first| std::ptr::eq(first.as_ptr(), Rc::as_ptr(shared)));
        if channels.asked.waits() || !is_first {
            return None;
        }
        queue.pop_front();
        channels.asked.open.replace(Some(Waiting { number, ..Waiting::default() }));
        Some(Open(channels, Rc::clone(shared)))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let asked = &self.0.asked;
        asked.open.take();
        if self.1.told.borrow().is_none() {
            // Others may have asked the same.
            asked.queue.borrow_mut().push_front(Rc::downgrade(&self.1));
        }
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
    /// How many subscribers these names have. Longer names than a subscription may have are left out.
    pub(super) fn numbers(kind: Kind, names: &[Vec<u8>]) -> Question {
        let names: BTreeSet<&Vec<u8>> = names.iter().filter(|name| name.len() <= NAME).collect();
        Question::Numbers(kind, names.into_iter().cloned().collect())
    }

    /// As much of it as is asked at once, and the rest.
    fn cut(self) -> (Question, Option<Question>) {
        let Question::Numbers(kind, mut names) = self else { return (self, None) };
        let mut bytes = 0;
        let fits = |name: &&Vec<u8>| {
            bytes += name.len() + 16;
            bytes <= PART
        };
        let now = names.iter().take_while(fits).count();
        let rest = names.split_off(now);
        (Question::Numbers(kind, names), Some(Question::Numbers(kind, rest)).filter(|rest| !rest.is_void()))
    }

    /// Whether it asks for nothing.
    fn is_void(&self) -> bool {
        matches!(self, Question::Numbers(_, names) if names.is_empty())
    }

    /// The question for the names behind one.
    fn behind(self, last: Vec<u8>) -> Question {
        match self {
            Question::Names { kind, pattern, .. } => Question::Names { kind, pattern, after: Some(last) },
            numbers @ Question::Numbers(..) => numbers,
        }
    }

    fn encode(&self, number: u64) -> (Vec<u8>, Vec<u8>) {
        let (kind, bits, words): (_, _, Vec<&Vec<u8>>) = match self {
            Question::Names { kind, pattern, after } => {
                let bits = if pattern.is_some() { PATTERN } else { 0 } | if after.is_some() { AFTER } else { 0 };
                (kind, bits, pattern.iter().chain(after).collect())
            }
            Question::Numbers(kind, names) => (kind, NUMBERS, names.iter().collect()),
        };
        let mut text = Vec::new();
        words.iter().for_each(|word| forward::put_part(&mut text, word));
        ([&number.to_le_bytes()[..], &[*kind as u8, bits]].concat(), text)
    }

    fn decode(about: &[u8], mut text: &[u8]) -> Option<(u64, Question)> {
        let (number, about) = about.split_first_chunk()?;
        let &[kind, bits] = about else { return None };
        let kind = [Kind::Plain, Kind::Pattern, Kind::Sharded].into_iter().find(|one| *one as u8 == kind)?;
        let mut words = std::iter::from_fn(|| forward::part(&mut text).map(<[u8]>::to_vec));
        let question = if bits & NUMBERS != 0 {
            Question::Numbers(kind, words.collect())
        } else {
            let pattern = if bits & PATTERN != 0 { Some(words.next()?) } else { None };
            let after = if bits & AFTER != 0 { Some(words.next()?) } else { None };
            Question::Names { kind, pattern, after }
        };
        Some((u64::from_le_bytes(*number), question))
    }

    /// The answer for the clients of this front end, the first `most` bytes of it; and whether there is more.
    async fn of_own(&self, channels: &Channels, io: &Io, most: usize) -> (Counts, bool) {
        let count = |kind: &Kind, name: &[u8]| {
            channels.subscribers.borrow()[*kind as usize].get(name).map_or(0, |those| those.len() as u64)
        };
        let (kind, pattern, after) = match self {
            Question::Numbers(kind, names) => {
                let counts = names.iter().map(|name| (name.clone(), count(kind, name)));
                return (counts.filter(|(_, count)| *count > 0).collect(), false);
            }
            Question::Names { kind, pattern, after } => (kind, pattern, after),
        };
        let pattern = pattern.as_deref().map(Glob::new);
        let names: Vec<Rc<[u8]>> = channels.subscribers.borrow()[*kind as usize].keys().cloned().collect();
        // `end`: the first name that has no room.
        let (mut found, mut bytes, mut end) = (Counts::new(), 0, None::<Vec<u8>>);
        for (n, name) in names.iter().enumerate() {
            if n > 0 && n % SPELL == 0 {
                io.pause(0).await;
            }
            let is_in =
                after.as_ref().is_none_or(|after| **name > **after) && end.as_ref().is_none_or(|end| **name < **end);
            if !is_in || pattern.as_ref().is_some_and(|pattern| !pattern.matches(name)) {
                continue;
            }
            bytes += name.len() + 16;
            found.insert(name.to_vec(), count(kind, name));
            while bytes > most
                && let Some((last, _)) = found.pop_last()
            {
                bytes -= last.len() + 16;
                end = Some(last);
            }
        }
        found.retain(|_, count| *count > 0);
        (found, end.is_some())
    }
}

/// The answer for the clients of all front ends. In a transaction or a script nothing is waited for: there
/// it is that of this one.
pub(super) async fn of_all(call: &Call, question: Question) -> Result<Counts, Fail> {
    let mut counts = question.of_own(&call.front.channels, &call.io, usize::MAX).await.0;
    let mut left = Some(question).filter(|question| call.draft.is_none() && !call.in_exec && !question.is_void());
    for _ in 0..PARTS {
        let Some(question) = left.take() else { break };
        let (now, rest) = question.cut();
        let told = ask(call, now.clone()).await?;
        for (name, count) in told.found {
            *counts.entry(name).or_default() += count;
        }
        left = rest.or_else(|| told.last.map(|last| now.behind(last)));
    }
    match left {
        None => Ok(counts),
        Some(_) => Err(Fail::new(format!(
            "the names at the other front ends are more than {} KiB: name less",
            (PARTS * PART) >> 10
        ))),
    }
}

/// Asks the other front ends when the questions before it have been answered.
async fn ask(call: &Call, question: Question) -> Result<Told, Trouble> {
    let (front, channels, io) = (&call.front, &call.front.channels, &call.io);
    if !front.store.has_others() || forward::subscribed(front, io).await?.is_empty() {
        return Ok(Told::default());
    }
    let shared = channels.asked.queued(question);
    loop {
        if let Some(told) = &*shared.told.borrow() {
            return told.clone();
        }
        let number = (front.store.random(1 << 32) as u64) << 32 | front.store.random(1 << 32) as u64;
        let Some(open) = Open::of(channels, &shared, number) else {
            io.pause(1).await;
            continue;
        };
        let told = answers(call, &shared.question).await;
        shared.told.replace(Some(told));
        drop(open);
    }
}

/// The answers to the question under way.
async fn answers(call: &Call, question: &Question) -> Result<Told, Trouble> {
    let (front, channels, io) = (&call.front, &call.front.channels, &call.io);
    let mut lines = forward::subscribed(front, io).await?;
    channels.asked.silent.borrow_mut().retain(|line, until| lines.contains(line) && *until > front.store.now_ms());
    lines.retain(|line| !channels.asked.silent.borrow().contains_key(line));
    if lines.is_empty() {
        return Ok(Told::default());
    }
    channels.forward.open(call).await?;
    if let Some(waiting) = channels.asked.open.borrow_mut().as_mut() {
        waiting.lines = lines;
        let (about, text) = question.encode(waiting.number);
        channels.forward.tell(forward::QUESTION, &about, &text);
    }
    let until = front.store.now_ms() + PATIENCE_MS;
    let waits = || channels.asked.open.borrow().as_ref().is_some_and(|waiting| !waiting.lines.is_empty());
    while waits() && front.store.now_ms() < until && front.store.has_others() {
        io.pause(1).await;
    }
    let Waiting { lines, mut told, .. } = channels.asked.open.replace(Some(Waiting::default())).unwrap_or_default();
    let until = front.store.now_ms() + PATIENCE_MS;
    channels.asked.silent.borrow_mut().extend(lines.into_iter().map(|line| (line, until)));
    if let Some(last) = &told.last {
        // Some front end has not told of those behind it.
        told.found.retain(|name, _| name <= last);
    }
    Ok(told)
}

/// Answers a question of another front end's.
pub(super) async fn answer(front: &Front, io: &Io, about: &[u8], text: &[u8]) {
    let channels = &front.channels;
    let Some((number, question)) = Question::decode(about, text) else { return };
    let (counts, cut) = question.of_own(channels, io, PART).await;
    let mut told = vec![u8::from(cut)];
    for (name, count) in counts {
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
    let names = |pattern: Option<&str>, after: Option<&str>| {
        let [pattern, after] = [pattern, after].map(|text| text.map(|text| text.as_bytes().to_vec()));
        Question::Names { kind: Kind::Pattern, pattern, after }
    };
    for question in [
        names(None, None),
        names(Some("n*"), None),
        names(None, Some("")),
        names(Some(""), Some("x")),
        Question::Numbers(Kind::Sharded, vec![b"a".to_vec(), Vec::new(), vec![0; 300]]),
    ] {
        let (about, text) = question.encode(7);
        assert_eq!(Question::decode(&about, &text), Some((7, question)));
    }
    assert_eq!(Question::decode(b"short", b""), None);
    assert_eq!(Question::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 9, 0], b""), None);
    assert_eq!(Question::decode(&[0, 0, 0, 0, 0, 0, 0, 0, 0, PATTERN], b""), None);
}

#[test]
fn many_names_are_asked_about_in_parts() {
    let names: Vec<Vec<u8>> = (0..5000).map(|n| format!("{n:0>48}").into_bytes()).collect();
    let given = [names.as_slice(), &names[..9], &[vec![b'x'; NAME + 1]]].concat();
    let (mut left, mut parts) = (Some(Question::numbers(Kind::Plain, &given)), Vec::new());
    while let Some(question) = left.take() {
        let (Question::Numbers(_, now), rest) = question.cut() else { panic!("it asks for numbers") };
        assert!(now.iter().map(|name| name.len() + 16).sum::<usize>() <= PART);
        parts.push(now);
        left = rest;
    }
    assert_eq!((parts.len(), parts.concat()), (5, names));
}

#[test]
fn answers_are_added_up_once_for_each_line() {
    let asked = Asked::default();
    asked.open.replace(Some(Waiting { number: 5, lines: [1, 2].into(), ..Waiting::default() }));
    let answer = |cut, names: &[&str]| {
        let mut text = vec![cut];
        names
            .iter()
            .for_each(|name| forward::put_part(&mut text, &[&3u64.to_le_bytes()[..], name.as_bytes()].concat()));
        text
    };
    for line in [1, 1, 9] {
        asked.answered(line, &5u64.to_le_bytes(), &answer(1, &["a", "news", "z"]));
    }
    asked.silent.borrow_mut().extend([(2, 9), (3, 9)]);
    asked.answered(2, &6u64.to_le_bytes(), &answer(0, &["news"]));
    assert_eq!(*asked.silent.borrow(), [(3, 9)].into());
    asked.answered(2, &5u64.to_le_bytes(), &answer(1, &["news", "other"]));
    let open = asked.open.take().unwrap();
    let found = ["a", "news", "other", "z"].map(|name| (name.as_bytes().to_vec(), if name == "news" { 6 } else { 3 }));
    // Behind "other" the second one may have more.
    assert_eq!((open.told.found, open.lines.len(), open.told.last), (found.into(), 0, Some(b"other".to_vec())));
}

#[test]
fn a_question_waits_for_its_turn_and_is_shared() {
    let channels = Channels::default();
    let ask = |name: &str| channels.asked.queued(Question::numbers(Kind::Plain, &[name.as_bytes().to_vec()]));
    let [one, gone, other, same] = ["one", "gone", "other", "other"].map(ask);
    assert!(Rc::ptr_eq(&other, &same));
    assert!(Open::of(&channels, &other, 1).is_none(), "another is before it");
    let open = Open::of(&channels, &one, 1).unwrap();
    drop(gone);
    assert!(Open::of(&channels, &other, 2).is_none(), "one is under way");
    one.told.replace(Some(Ok(Told::default())));
    drop(open);
    // Its asker is gone without an answer: another who has asked the same takes its place.
    drop(Open::of(&channels, &other, 3).unwrap());
    drop(other);
    let open = Open::of(&channels, &same, 4).unwrap();
    // A later asker may be told of what came since.
    assert!(!Rc::ptr_eq(&ask("other"), &same));
    drop(open);
}
