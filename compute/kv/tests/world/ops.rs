//! Operations on one key of a shard, as tasks, and what they did as a history.

use super::Ended;
use super::linear::{Call, Step};
use farmem_kv::layout::Geometry;
use farmem_kv::object::{Type, Value};
use farmem_kv::shard::index::{Inserted, Removed};
use farmem_kv::shard::{Shard, Trouble};
use farmem_kv::task::{Io, Task};
use std::rc::Rc;

/// Two buckets a table: every key may be in both.
pub const TINY: Geometry = Geometry { buckets: 2 };

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Get,
    Set(u64),
    SetIfAbsent(u64),
    Delete,
    Add,
    /// [`Op::SetIfAbsent`] by WRITEs that go with the CAS.
    Block(u64),
    /// Of what it finds.
    Evict,
}

pub fn value(n: u64) -> Value {
    Value::string(n.to_le_bytes())
}

pub fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

pub async fn perform(shard: Rc<Shard>, io: Io, key: Vec<u8>, op: Op) -> Result<Step, Trouble> {
    Ok(match op {
        Op::Get => Step::Get(shard.index.find(&io, &key).await?.map(|found| number(found.object.value()))),
        Op::Set(n) => {
            shard.index.put(&io, &key, &value(n)).await?;
            Step::Set(n)
        }
        Op::SetIfAbsent(n) => {
            Step::SetIfAbsent(n, matches!(shard.index.insert(&io, &key, &value(n)).await?, Inserted::Done))
        }
        Op::Block(n) => {
            // Its end is written from where it lies.
            let value = [n.to_le_bytes(); 5].concat().into();
            let added = shard.index.add(&io, &key, (Type::Block, None), &value).await?;
            Step::SetIfAbsent(n, added.is_none())
        }
        Op::Delete => Step::Delete(Some(!matches!(shard.index.remove(&io, &key).await?, Removed::Absent))),
        Op::Evict => match shard.index.find(&io, &key).await? {
            None => Step::Get(None),
            Some(found) => match shard.index.discard(&io, &key, Some(found.slot.at(shard.reach.node))).await? {
                true => Step::Delete(Some(true)),
                false => Step::Get(Some(number(found.object.value()))),
            },
        },
        Op::Add => loop {
            let found = shard.index.find(&io, &key).await?;
            let sum = found.as_ref().map_or(0, |found| number(found.object.value())) + 1;
            let done = match found {
                Some(found) => shard.index.replace(&io, &key, &found, Some(&value(sum))).await?,
                None => matches!(shard.index.insert(&io, &key, &value(sum)).await?, Inserted::Done),
            };
            if done {
                break Step::Add(1, Some(sum));
            }
        },
    })
}

pub fn task(shard: &Rc<Shard>, key: &[u8], op: Op) -> Task<Result<Step, Trouble>> {
    let (shard, key) = (Rc::clone(shard), key.to_vec());
    Task::new(|io| perform(shard, io, key, op))
}

/// What operations did, as a history; those without an outcome as they might have.
pub fn history(ops: &[Op], ended: &[Ended<Result<Step, Trouble>>]) -> Vec<Call<Step>> {
    let call = |(op, one): (&Op, &Ended<Result<Step, Trouble>>)| {
        let guess = match *op {
            Op::Get => return one.outcome.clone().map(|step| (step.expect("sound"), one.ended)),
            Op::Set(n) => Step::Set(n),
            Op::SetIfAbsent(n) | Op::Block(n) => Step::SetIfAbsent(n, true),
            Op::Delete | Op::Evict => Step::Delete(None),
            Op::Add => Step::Add(1, None),
        };
        match one.outcome.clone() {
            // It may have taken effect, or may yet.
            None | Some(Err(Trouble::Unsettled)) => Some((guess, None)),
            Some(step) => Some((step.expect("sound"), one.ended)),
        }
    };
    let calls = ops.iter().zip(ended).filter_map(|pair| call(pair).map(|step| (step, pair.1)));
    let calls = calls.filter(|(_, one)| one.begun != usize::MAX);
    calls
        .map(|((operation, ended), one)| Call {
            operation,
            begun: one.begun as u64 * 2,
            ended: ended.map(|at| at as u64 * 2 + 1),
        })
        .collect()
}

pub const KEY: &[u8] = b"key";

/// The `n`th key of the key's first table.
pub fn sibling(n: usize) -> Vec<u8> {
    use farmem_kv::layout::{Hash, MAX_DEPTH};
    let first = |hash: Hash| hash.path() >> MAX_DEPTH;
    let wanted = first(Hash::of(KEY));
    (0..).map(|n: u32| format!("s{n}").into_bytes()).filter(|key| first(Hash::of(key)) == wanted).nth(n).expect("some")
}

pub const OPS: [Op; 5] = [Op::Get, Op::Set(1), Op::SetIfAbsent(2), Op::Delete, Op::Add];

pub fn pairs() -> Vec<[Op; 2]> {
    OPS.iter().flat_map(|&one| OPS.iter().map(move |&other| [one, other])).collect()
}
