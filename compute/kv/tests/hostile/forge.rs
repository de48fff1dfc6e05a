//! A front end, a node that lies to it, and what the node shows: heads, segments and values that no
//! store writes.

use crate::world::Memory;
use crate::world::ops::TINY;
use farmem_kv::command::{Call, Client, Front, execute, gathered};
use farmem_kv::keyspace::Keyspace;
use farmem_kv::object::{Type, Value};
use farmem_kv::resp::{Reply, Request};
use farmem_kv::rules::Rules;
use farmem_kv::segments::streams::split;
use farmem_kv::segments::{Unit, units};
use farmem_kv::shard::Shard;
use farmem_kv::task::{Answer, Ask, Task, Verb};
use farmem_protocol::random::Random;
use std::collections::HashMap;
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

/// Steps in which a command ends, if it waits for nobody.
const STEPS: usize = 40_000;
/// The first place of segments that the node shows.
const SHOWN: u64 = 1 << 30;

/// A front end, and the node that lies to it.
pub struct Attacked {
    memory: Memory,
    /// Segments that the node shows, by their places.
    shown: HashMap<u64, Vec<u8>>,
    /// Another front end, whose objects have whatever the node likes.
    writer: Rc<Shard>,
    front: Rc<Front>,
    client: Rc<Client>,
    now_ms: u64,
    /// A head that the node shows anew at this key before each of the next CASes.
    forestalls: Option<(u32, Vec<u8>, Vec<u8>)>,
}

impl Attacked {
    pub fn new(seed: u64) -> Attacked {
        let mut memory = Memory::default();
        let writer = memory.join(TINY, Rules::SOUND, 64 << 10);
        let shard = memory.join(TINY, Rules::SOUND, 64 << 10);
        let store = Keyspace::new("hostile", vec![shard], false, 0, seed);
        store.segments.least.set(64);
        let front = Front {
            store: Rc::new(store),
            clients: Default::default(),
            blocked: Default::default(),
            paused: Default::default(),
            waiters: Default::default(),
            alone: Default::default(),
            turn: Default::default(),
            wanting: Default::default(),
            in_turn: Default::default(),
            transactions: Default::default(),
            pause: Default::default(),
            port: 0,
            maxmemory: 0,
            most_clients: 1,
            rejected: Default::default(),
            password: None,
            killed: Default::default(),
            stats: Default::default(),
            turns: Default::default(),
            scripts: Default::default(),
            channels: Default::default(),
            events: Default::default(),
            monitors: Default::default(),
            held: Default::default(),
        };
        let client = Rc::new(Client::new(1, Default::default(), 0));
        let (shown, front) = (HashMap::new(), Rc::new(front));
        let mut attacked = Attacked { memory, shown, writer, front, client, now_ms: 0, forestalls: None };
        attacked.pass(1_000_000);
        attacked
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.front.store.set_now_ms(self.now_ms);
    }

    /// Has the next CASes find another head of a key, of the same value.
    pub fn forestall(&mut self, times: u32, key: &[u8], head: &[u8]) {
        self.forestalls = Some((times, key.to_vec(), head.to_vec()));
    }

    /// Whether as many CASes were forestalled.
    pub fn has_forestalled(&self) -> bool {
        self.forestalls.is_none()
    }

    fn answer(&mut self, verb: &Verb) -> Answer {
        if let Verb::Cas { .. } = verb
            && let Some((times, key, head)) = self.forestalls.take()
        {
            self.plant(&key, Type::Parts, head.clone());
            self.forestalls = (times > 1).then(|| (times - 1, key, head));
        }
        if let Verb::Read { at, len } = verb
            && let Some(bytes) = self.shown.get(at)
        {
            let mut bytes = bytes.clone();
            bytes.resize(*len as usize, 0);
            return Answer::Bytes(bytes);
        }
        self.memory.execute(verb)
    }

    /// `None`: it does not end.
    fn run<T>(&mut self, mut task: Task<T>) -> Option<T> {
        for _ in 0..STEPS {
            if let Some(outcome) = task.step() {
                return Some(outcome);
            }
            for (id, ask) in task.asks() {
                let answers = match ask {
                    Ask::Verbs(verbs) => verbs.iter().map(|verb| self.answer(verb)).collect(),
                    Ask::Pause(ms) => {
                        self.pass(u64::from(ms).max(1));
                        // As the event loop does it.
                        self.front.turns.set(self.front.turns.get() + 1);
                        self.front.turn.set(self.front.wanting.borrow_mut().pop_front());
                        Vec::new()
                    }
                };
                task.answer(id, answers);
            }
        }
        None
    }

    /// The node shows this as a key's value.
    pub fn plant(&mut self, key: &[u8], kind: Type, bytes: Vec<u8>) {
        let (writer, key) = (Rc::clone(&self.writer), key.to_vec());
        let value = Value { kind, expiry: None, bytes };
        let put = Task::new(|io| async move { writer.index.put(&io, &key, &value).await });
        assert_eq!(self.run(put), Some(Ok(())));
    }

    /// The node shows items as a segment. Its place and its checksum.
    fn show(&mut self, items: &[u8]) -> (u64, u64) {
        let mut object = vec![0; 40];
        object[28..32].copy_from_slice(&(items.len() as u32).to_le_bytes());
        object[32] = Type::Segment as u8;
        object.extend_from_slice(items);
        let checksum = xxh3_64(&object[8..]);
        object[..8].copy_from_slice(&checksum.to_le_bytes());
        let at = SHOWN + self.shown.len() as u64 * (64 << 10);
        self.shown.insert(at, object);
        (at, checksum)
    }

    pub fn ask(&mut self, words: Request) -> Option<Reply> {
        let (front, client) = (Rc::clone(&self.front), Rc::clone(&self.client));
        self.run(Task::new(|io| async move { execute(Call::new(&front, &client, io, words)).await }))
    }

    pub fn says(&mut self, line: &str) -> Reply {
        self.ask(words(line)).expect("a reply")
    }

    /// Changes that are gathered for one key.
    pub fn together(&mut self, requests: Vec<Request>) -> Option<Vec<Reply>> {
        let (front, client) = (Rc::clone(&self.front), Rc::clone(&self.client));
        self.run(Task::new(|io| async move {
            let call = |words| Call::new(&front, &client, io.clone(), words);
            gathered::together(requests.into_iter().map(call).collect()).await
        }))
    }
}

pub fn words(line: &str) -> Request {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

pub fn item(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
}

fn hash(name: &[u8]) -> u64 {
    xxh3_64(name) >> 1
}

fn ordered(score: f64) -> u64 {
    let bits = score.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// An entry of a head, and the segment that it lists.
#[derive(Clone)]
pub struct Entry {
    place: Option<u64>,
    bound: u64,
    pub count: u32,
    pub len: u32,
    pub items: Vec<u8>,
}

/// A member's number, its name and its item.
type Numbered<'a> = (usize, &'a [u8], Vec<u8>);

/// A head, before it is shown.
#[derive(Clone)]
pub struct Head {
    kind: u8,
    state: u8,
    pub sides: [Vec<Entry>; 2],
    counts: Option<u64>,
    dropped: u64,
}

impl Head {
    /// One as a store writes it, of these members; of a sorted set with the scores 0, 1, ….
    pub fn of(kind: Type, names: &[String], each: usize) -> Head {
        let score = |n: usize| (n / 2) as f64;
        let whole = |n: usize, name: &str| match kind {
            Type::Hash => [item(name.as_bytes()), item(b"value")].concat(),
            Type::SortedSet => [item(&score(n).to_le_bytes()), item(name.as_bytes())].concat(),
            _ => item(name.as_bytes()),
        };
        let all = names.iter().enumerate().map(|(n, name)| (n, name.as_bytes(), whole(n, name)));
        let all: Vec<Numbered<'_>> = all.collect();
        let mut by_hash = all.clone();
        by_hash.sort_by_key(|(_, name, _)| hash(name));
        let side = |all: &[Numbered<'_>], hashed: bool| -> Vec<Entry> {
            let entry = |(n, some): (usize, &[Numbered<'_>])| {
                let bound = match (hashed, kind) {
                    (true, _) => {
                        if n == 0 {
                            0
                        } else {
                            hash(some[0].1)
                        }
                    }
                    (false, Type::SortedSet) => ordered(score(some[0].0)),
                    _ => 0,
                };
                let items: Vec<u8> = some.iter().flat_map(|(_, _, item)| item.clone()).collect();
                Entry { place: None, bound, count: some.len() as u32, len: items.len() as u32, items }
            };
            all.chunks(each).enumerate().map(entry).collect()
        };
        let first = match kind {
            Type::Hash | Type::Set => side(&by_hash, true),
            _ => side(&all, false),
        };
        let second = if kind == Type::SortedSet { side(&by_hash, true) } else { Vec::new() };
        Head { kind: kind as u8, state: 2, sides: [first, second], counts: None, dropped: 0 }
    }

    pub fn shown(&self, attacked: &mut Attacked) -> Vec<u8> {
        let counts = self.sides[0].len() as u64 | (self.sides[1].len() as u64) << 32;
        let mut bytes = vec![self.kind, self.state, 0, 0, 0, 0, 0, 0];
        bytes.extend(self.counts.unwrap_or(counts).to_le_bytes());
        bytes.extend(self.dropped.to_le_bytes());
        for entry in self.sides.iter().flatten() {
            let (at, checksum) = attacked.show(&entry.items);
            let sizes = u64::from(entry.count) | u64::from(entry.len) << 32;
            let words = [entry.place.unwrap_or(at), checksum, entry.bound, sizes];
            bytes.extend(words.map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("m{n}")).collect()
}

fn stream(entries: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = [entries, 0, 0, 0, entries, entries].map(u64::to_le_bytes).concat();
    for n in 1..=entries {
        bytes.extend([n, 0, 2].map(u64::to_le_bytes).as_flattened());
        bytes.extend([item(b"f"), item(b"v")].concat());
    }
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([item(b"g"), [entries, 0, 0, 1].map(u64::to_le_bytes).concat(), item(b"c")].concat());
    bytes.extend([7, entries].map(u64::to_le_bytes).as_flattened());
    for n in 1..=entries {
        bytes.extend([n, 0, 0, 7, 1].map(u64::to_le_bytes).as_flattened());
    }
    bytes
}

/// The segments of a side of a stream, each of so many items.
fn of_stream(side: &[u8], each: usize) -> Vec<Entry> {
    let all: Vec<_> = units(Type::Stream, side).collect();
    let entry = |some: &[Unit<'_>]| {
        let items: Vec<u8> = some.iter().flat_map(|unit| unit.bytes.to_vec()).collect();
        let mut first = [0; 8];
        first.iter_mut().zip(some[0].name).for_each(|(byte, own)| *byte = *own);
        let (bound, count, len) = (u64::from_be_bytes(first), some.len() as u32, items.len() as u32);
        Entry { place: None, bound, count, len, items }
    };
    all.chunks(each).map(entry).collect()
}

/// A number that a lie has.
fn number(random: &mut Random, near: u64) -> u64 {
    match random.index(6) {
        0 => random.below(5),
        1 => near.wrapping_add(1),
        2 => near.wrapping_sub(1),
        3 => 1 << random.index(64),
        4 => u64::MAX,
        _ => random.bits(),
    }
}

fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    let at = random.index(bytes.len().max(1)).min(bytes.len());
    match random.index(5) {
        0 => bytes.truncate(at),
        1 => bytes.extend([0, 0, 0, 0, 1, 0, 0, 0, 7][..1 + random.index(9)].iter()),
        2 if at + 4 <= bytes.len() => {
            let number = number(random, 4) as u32;
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        _ if at < bytes.len() => bytes[at] = random.bits() as u8,
        _ => {}
    }
}

/// Something about a head is not what its segments are.
fn lie(random: &mut Random, head: &mut Head) {
    let side = random.index(2);
    let side = if head.sides[side].is_empty() { 0 } else { side };
    let len = head.sides[side].len();
    let (one, other) = (random.index(len.max(1)), random.index(len.max(1)));
    let kind = random.index(15);
    match kind {
        0 => head.kind = random.below(16) as u8,
        1 => head.state = random.below(4) as u8,
        2 => head.counts = Some(number(random, len as u64)),
        3 => head.dropped = number(random, 0),
        4 if len > 1 => head.sides[side].swap(one, other),
        5 if len > 0 => {
            let twice = head.sides[side][one].clone();
            head.sides[side].push(twice);
        }
        6 if len > 1 => _ = head.sides[side].remove(one),
        7 => head.sides[1].clear(),
        8 => head.sides.swap(0, 1),
        _ if len > 0 => {
            let entry = &mut head.sides[side][one];
            match kind {
                9 => entry.place = Some(number(random, SHOWN)),
                10 => entry.bound = number(random, entry.bound),
                11 => entry.count = number(random, entry.count.into()) as u32,
                12 => entry.len = number(random, entry.len.into()) as u32,
                _ => {
                    mutate(random, &mut entry.items);
                    // What the head says of it may be right.
                    entry.len = entry.items.len() as u32;
                }
            }
        }
        _ => {}
    }
}

/// A value of any type that a node may show.
pub fn anything(random: &mut Random, attacked: &mut Attacked) -> (Type, Vec<u8>) {
    let kinds = [Type::List, Type::Set, Type::Hash, Type::SortedSet, Type::SortedSet, Type::Stream];
    let kind = kinds[random.index(kinds.len())];
    let lies = random.index(3);
    if random.index(4) > 0 {
        let mut head = match kind {
            Type::Stream => {
                let sides = split(&stream(random.below(30) + 1)).expect("sound");
                let mut head = Head::of(Type::Stream, &[], 1);
                let each = 1 + random.index(8);
                head.sides = sides.map(|side| of_stream(&side, each));
                head
            }
            kind => Head::of(kind, &names(1 + random.index(40)), 1 + random.index(8)),
        };
        (0..lies).for_each(|_| lie(random, &mut head));
        let mut bytes = head.shown(attacked);
        if random.index(20) == 0 {
            mutate(random, &mut bytes);
        }
        return (Type::Parts, bytes);
    }
    let (kind, mut bytes) = match random.index(4) {
        0 => (Type::String, random.bits().to_string().into_bytes()),
        1 => {
            let len = random.below(5000);
            let words = [random.bits(), len, SHOWN, len, random.bits()];
            (Type::Long, words.map(u64::to_le_bytes).concat())
        }
        _ if kind == Type::Stream => (kind, stream(random.below(9))),
        _ => (kind, Head::of(kind, &names(1 + random.index(9)), 100).sides[0][0].items.clone()),
    };
    (0..lies).for_each(|_| mutate(random, &mut bytes));
    (kind, bytes)
}
