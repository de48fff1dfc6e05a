//! Operations on a key whose value lies in small segments, as tasks.

use super::Memory;
use super::ops::{KEY, TINY};
use farmem_kv::keyspace::{Change, Keyspace};
use farmem_kv::object::{Object, Type, Value};
use farmem_kv::rules::Rules;
use farmem_kv::segments::Working;
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
        kind => kind == Type::String && object.value() == b"string",
    })
}

fn becomes(store: &Keyspace, there: Option<&Object>, op: Op) -> Result<Change<()>, Trouble> {
    let kind = there.map(Object::kind);
    if let (Some(head), Some(Type::Parts)) = (there, kind) {
        let shard = &store.shards[0];
        let mut value = Working::of(&store.segments, shard.reach.node, head).ok_or(Trouble::Corrupt)?;
        match op {
            Op::Push(byte, front) => value.push(front, &item(byte))?,
            Op::Pop(front) => {
                let len = value.count();
                value.take_out(if front { 0..1 } else { len - 1..len })?;
            }
            _ => unreachable!("it changes a part"),
        }
        return value.change(());
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
        Op::PutString => store.put(io, KEY, &Value::string("string")).await?,
        Op::Get => return Ok(is_sound(read(store, io).await?.as_ref())),
        Op::Delete => _ = store.remove(io, KEY).await?,
        Op::Push(..) | Op::Pop(_) => store.update_found(io, KEY, false, |_, there| becomes(store, there, op)).await?,
        Op::Change(_) | Op::Expire => store.update(io, KEY, |there| becomes(store, there, op)).await?,
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
