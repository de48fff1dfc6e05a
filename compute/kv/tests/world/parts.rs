//! Operations on a key whose value lies in small segments, as tasks.

use super::Memory;
use super::ops::{KEY, TINY};
use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::object::{Object, Type, Value};
use farmem_kv::rules::Rules;
use farmem_kv::segments::Working;
use farmem_kv::segments::streams::{self, Id, PENDING, STREAM, words};
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Io, Task};
use std::rc::Rc;

/// Bytes of a value that one object has in the model. Segments have half as many.
pub const LEAST: usize = 128;
pub const ITEMS: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    /// A value of as many items.
    Put(u8),
    PutShort(u8),
    /// A string.
    PutString,
    Push(u8, bool),
    Pop(bool),
    /// A change by a command that sees all of the value.
    Change(u8),
    /// A stream of as many entries.
    PutStream(u8),
    /// One more entry of it.
    Add(u8),
    /// One less.
    Trim,
    /// One more that is pending.
    Note(u8),
    /// A change of the stream by a command that sees all of it.
    ChangeStream(u8),
    Get,
    Delete,
    Expire,
}

pub fn item(byte: u8) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &[byte; 8]].concat()
}

pub fn list(byte: u8, items: usize) -> Value {
    Value { kind: Type::List, expiry: None, bytes: item(byte).repeat(items) }
}

/// The items, each of which is one byte again and again.
pub fn items(object: &Object) -> Option<Vec<u8>> {
    let sound = |item: &[u8]| {
        (item[..4] == 8u32.to_le_bytes() && item[4..].iter().all(|byte| *byte == item[4])).then_some(item[4])
    };
    object.value().chunks(12).map(|item| (item.len() == 12).then(|| sound(item))?).collect()
}

const GROUP: &[u8] = b"group";

/// A stream's numbers: that of its last entry, how many are pending, how many entries it has.
fn numbers(value: &Working<'_>) -> Result<[u64; 3], Trouble> {
    let word = |bytes: &[u8], n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
    let read = |bytes: &[u8]| [word(bytes, 0), word(bytes, 2), word(bytes, 4)];
    value.keyed(1, STREAM, read)?.ok_or(Trouble::Corrupt)
}

fn set_numbers(value: &mut Working<'_>, [last, pending, count]: [u64; 3]) -> Result<(), Trouble> {
    value.set_keyed(1, STREAM, Some(&words(&[last, 0, pending, 0, count]))).map(drop)
}

/// The same with one entry more, one less, or one more that is pending.
fn changed(value: &mut Working<'_>, op: Op) -> Result<(), Trouble> {
    let [last, pending, count] = numbers(value)?;
    match op {
        Op::Add(byte) => {
            let id = Id { ms: last + 1, seq: 0 };
            value.set_keyed(0, &id.key(), Some(&[item(byte), item(byte)].concat()))?;
            set_numbers(value, [last + 1, pending, count + 1])
        }
        Op::Trim if count > 0 => {
            value.take_out(0..1)?;
            set_numbers(value, [last, pending, count - 1])
        }
        Op::Note(byte) => {
            let key = streams::key(GROUP, PENDING, &Id { ms: pending + 1, seq: 0 }.key());
            value.set_keyed(1, &key, Some(&[&words(&[u64::from(byte), 1])[..], b"me"].concat()))?;
            set_numbers(value, [last, pending + 1, count])
        }
        _ => Ok(()),
    }
}

fn stream(store: &Keyspace, byte: u8, entries: usize) -> Value {
    let bytes = words(&[0, 0, 0, 0, 0, 0, 1]);
    let group = [&5u32.to_le_bytes()[..], GROUP, &words(&[0, 0, 0, 1]), &2u32.to_le_bytes(), b"me", &words(&[7, 0])];
    let object = Object::of(KEY, &Value { kind: Type::Stream, expiry: None, bytes: [bytes, group.concat()].concat() });
    let mut value = Working::opened(&store.segments, &object).expect("sound");
    for n in 0..entries {
        changed(&mut value, Op::Add(byte)).expect("at hand");
        if n % 3 == 0 {
            changed(&mut value, Op::Note(byte)).expect("at hand");
        }
    }
    Value { kind: Type::Stream, expiry: None, bytes: value.whole().expect("at hand") }
}

/// Whether a stream has as many entries as it says, and as many that are pending.
fn is_stream(bytes: &[u8]) -> bool {
    let Some([entries, state]) = streams::split(bytes) else { return false };
    let count = |bytes: &[u8]| farmem_kv::segments::units(Type::Stream, bytes).count() as u64;
    let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap());
    // Beside pending entries there are the stream's own item, a group's and a consumer's.
    (word(4), word(2)) == (count(&entries), count(&state) - 3)
}

pub async fn read(store: &Keyspace, io: &Io) -> Result<Option<Object>, Trouble> {
    match store.find(io, KEY).await? {
        Some(found) => Ok(Some(store.entire(io, found).await?)),
        None => Ok(None),
    }
}

/// A GET sees nothing, a string, or a list.
pub fn is_sound(object: Option<&Object>) -> bool {
    object.is_none_or(|object| match object.kind() {
        Type::List => items(object).is_some_and(|items| !items.is_empty()),
        Type::Stream => is_stream(object.value()),
        kind => kind == Type::String && object.value() == b"string",
    })
}

fn becomes(store: &Keyspace, there: Option<&Object>, op: Op) -> Result<Change<()>, Trouble> {
    let kind = there.map(Object::kind);
    if let (Some(head), Some(Type::Parts)) = (there, kind) {
        let shard = &store.shards[0];
        let mut value = Working::of(&store.segments, shard.reach.node, head).ok_or(Trouble::Corrupt)?;
        let of_lists = matches!(op, Op::Push(..) | Op::Pop(_));
        match op {
            _ if of_lists != (value.kind == Type::List) => {}
            Op::Add(_) | Op::Trim | Op::Note(_) => changed(&mut value, op)?,
            Op::Push(byte, front) => value.push(front, &item(byte))?,
            Op::Pop(front) => {
                let len = value.count();
                value.take_out(if front { 0..1 } else { len - 1..len })?;
            }
            _ => unreachable!("it changes a part"),
        }
        return value.change(());
    }
    if let Some(object) = there.filter(|object| object.kind() == Type::Stream) {
        let mut value = Working::opened(&store.segments, object).ok_or(Trouble::Corrupt)?;
        if matches!(op, Op::Add(_) | Op::Trim | Op::Note(_)) {
            changed(&mut value, op)?;
            return value.change(());
        }
        if let Op::ChangeStream(byte) = op {
            changed(&mut value, Op::Add(byte))?;
            changed(&mut value, Op::Trim)?;
            changed(&mut value, Op::Note(byte))?;
        }
        let expiry = if op == Op::Expire { Some(u64::MAX) } else { object.expiry() };
        return Ok(Change::Put(Value { kind: Type::Stream, expiry, bytes: value.whole()? }, ()));
    }
    let Some(object) = there.filter(|object| object.kind() == Type::List) else { return Ok(Change::Keep(())) };
    let mut bytes = object.value().to_vec();
    match op {
        Op::Push(byte, true) => bytes = [item(byte), bytes].concat(),
        Op::Push(byte, false) => bytes.extend(item(byte)),
        Op::Pop(true) => _ = bytes.drain(..12),
        Op::Pop(false) => bytes.truncate(bytes.len() - 12),
        Op::Change(byte) => {
            let middle = bytes.len() / 24 * 12;
            bytes[middle + 4..middle + 12].fill(byte);
        }
        _ => {}
    }
    if bytes.is_empty() {
        return Ok(Change::Delete(()));
    }
    let expiry = if op == Op::Expire { Some(u64::MAX) } else { object.expiry() };
    Ok(Change::Put(Value { kind: Type::List, expiry, bytes }, ()))
}

pub async fn perform(store: &Keyspace, io: &Io, op: Op) -> Result<bool, Trouble> {
    match op {
        Op::Put(byte) => store.put(io, KEY, &list(byte, ITEMS)).await?,
        Op::PutShort(byte) => store.put(io, KEY, &list(byte, 2)).await?,
        Op::PutStream(byte) => store.put(io, KEY, &stream(store, byte, 9)).await?,
        Op::PutString => store.put(io, KEY, &Value::string("string")).await?,
        Op::Get => return Ok(is_sound(read(store, io).await?.as_ref())),
        Op::Delete => _ = store.remove(io, KEY).await?,
        Op::Push(..) | Op::Pop(_) | Op::Add(_) | Op::Trim | Op::Note(_) => {
            store.update_found(io, KEY, false, |_, there| becomes(store, there, op)).await?
        }
        Op::Change(_) | Op::ChangeStream(_) | Op::Expire => {
            store.update(io, KEY, |there| becomes(store, there, op)).await?
        }
    }
    Ok(true)
}

pub fn task(store: &Rc<Keyspace>, op: Op) -> Task<bool> {
    let store = Rc::clone(store);
    Task::new(|io| async move { perform(&store, &io, op).await.expect("sound") })
}

pub fn store(memory: &mut Memory, rules: Rules, seed: u64) -> (Rc<Shard>, Rc<Keyspace>) {
    let shard = memory.join(TINY, rules, 64 << 10);
    let store = Keyspace::new("segments", vec![Rc::clone(&shard)], false, 0, seed);
    store.segments.least.set(LEAST);
    (shard, Rc::new(store))
}

/// Lets what was retired come back.
pub async fn let_epochs_pass(shard: &Shard, io: &Io, from: u64) {
    for tick in 0..12 {
        shard.members.tick(io, from + tick).await.expect("alive");
    }
    // Places that have waited long enough are free now.
    shard.index.put(io, b"other", &Value::string("x")).await.expect("room");
    shard.space.trim(io).await;
}

/// Why a shard is not what its index says, if it is not. `of`: a front end that has all of its
/// memory.
pub fn wrong(memory: &mut Memory, of: &Rc<Shard>) -> Option<String> {
    let shard = Rc::clone(of);
    let count = memory.run(Task::new(|io| async move { shard.recovery.count(&io).await }));
    let used = of.space.used_places() as u64;
    if !count.problems.is_empty() {
        return Some(count.problems.join(", "));
    }
    (used != count.objects).then(|| format!("{used} places are in use by {} objects", count.objects))
}
