//! XINFO.

use super::groups::no_group;
use super::stream::{Group, Stream};
use super::{read, shown};
use crate::command::args::{int, is};
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;
use std::collections::BTreeMap;

fn pair(name: &str, value: Reply) -> (Reply, Reply) {
    (Reply::bulk(name), value)
}

fn number(number: Option<u64>) -> Reply {
    number.map_or(Reply::Null, |number| Reply::Int(number as i64))
}

pub async fn run(call: &Call) -> Answered {
    let what = call.arg(1).to_ascii_lowercase();
    if !matches!(what.as_slice(), b"stream" | b"groups" | b"consumers") {
        return Err(super::super::super::server::unknown(call, "xinfo"));
    }
    let stream = read(call, call.arg(2)).await?.ok_or_else(|| Fail::new("no such key"))?;
    let now_ms = call.now_ms();
    match (what.as_slice(), call.count()) {
        (b"stream", 3) => Ok(brief(&stream)),
        (b"stream", 4 | 6) if is(call.arg(3), "full") => {
            let most = match call.count() {
                6 if is(call.arg(4), "count") => usize::try_from(int(call.arg(5))?.max(0)).unwrap_or(usize::MAX),
                6 => return Err(Fail::syntax()),
                _ => 10,
            };
            Ok(full(&stream, if most == 0 { usize::MAX } else { most }))
        }
        (b"groups", 3) => {
            Ok(Reply::Array(stream.groups.iter().map(|(name, group)| of_group(&stream, name, group)).collect()))
        }
        (b"consumers", 4) => {
            let group = stream.groups.get(call.arg(3)).ok_or_else(|| no_group(call.arg(2), call.arg(3)))?;
            let pending = group.pending_by_consumer();
            let each = group.consumers.iter().map(|(name, seen)| {
                Reply::Map(vec![
                    pair("name", Reply::bulk(&**name)),
                    pair("pending", Reply::Int(pending.get(&**name).copied().unwrap_or(0) as i64)),
                    pair("idle", Reply::Int(now_ms.saturating_sub(*seen) as i64)),
                ])
            });
            Ok(Reply::Array(each.collect()))
        }
        _ => Err(Fail::syntax()),
    }
}

fn head(stream: &Stream) -> Vec<(Reply, Reply)> {
    let recorded = stream.entries.first().map_or(super::Id::MIN, |entry| entry.id);
    let nodes = stream.entries.len().div_ceil(100) as i64;
    vec![
        pair("length", Reply::Int(stream.entries.len() as i64)),
        // There is no tree. Redis keeps 100 entries in a node of its tree.
        pair("radix-tree-keys", Reply::Int(nodes)),
        pair("radix-tree-nodes", Reply::Int(nodes + 1)),
        pair("last-generated-id", Reply::bulk(stream.last.text())),
        pair("max-deleted-entry-id", Reply::bulk(stream.max_deleted.text())),
        pair("entries-added", Reply::Int(stream.added as i64)),
        pair("recorded-first-entry-id", Reply::bulk(recorded.text())),
    ]
}

fn brief(stream: &Stream) -> Reply {
    let mut pairs = head(stream);
    pairs.extend([
        pair("groups", Reply::Int(stream.groups.len() as i64)),
        pair("first-entry", stream.entries.first().map_or(Reply::Null, shown)),
        pair("last-entry", stream.entries.last().map_or(Reply::Null, shown)),
    ]);
    Reply::Map(pairs)
}

fn of_group(stream: &Stream, name: &[u8], group: &Group) -> Reply {
    Reply::Map(vec![
        pair("name", Reply::bulk(name)),
        pair("consumers", Reply::Int(group.consumers.len() as i64)),
        pair("pending", Reply::Int(group.pending.len() as i64)),
        pair("last-delivered-id", Reply::bulk(group.last.text())),
        pair("entries-read", number(group.read)),
        pair("lag", stream.lag(group).map_or(Reply::Null, Reply::Int)),
    ])
}

fn full(stream: &Stream, most: usize) -> Reply {
    let mut pairs = head(stream);
    pairs.push(pair("entries", Reply::Array(stream.entries.iter().take(most).map(shown).collect())));
    let groups = stream.groups.iter().map(|(name, group)| {
        let pending = group.pending.iter().take(most).map(|(id, pending)| {
            Reply::Array(vec![
                Reply::bulk(id.text()),
                Reply::bulk(&*pending.consumer),
                Reply::Int(pending.delivered_ms as i64),
                Reply::Int(pending.count as i64),
            ])
        });
        let (counts, mut first) = (group.pending_by_consumer(), BTreeMap::<&[u8], Vec<Reply>>::new());
        for (id, pending) in &group.pending {
            let own = first.entry(&*pending.consumer).or_default();
            if own.len() < most {
                own.push(Reply::Array(vec![
                    Reply::bulk(id.text()),
                    Reply::Int(pending.delivered_ms as i64),
                    Reply::Int(pending.count as i64),
                ]));
            }
        }
        let consumers = group.consumers.iter().map(|(name, seen)| {
            Reply::Map(vec![
                pair("name", Reply::bulk(&**name)),
                pair("seen-time", Reply::Int(*seen as i64)),
                pair("pel-count", Reply::Int(counts.get(&**name).copied().unwrap_or(0) as i64)),
                pair("pending", Reply::Array(first.remove(&**name).unwrap_or_default())),
            ])
        });
        Reply::Map(vec![
            pair("name", Reply::bulk(name.as_slice())),
            pair("last-delivered-id", Reply::bulk(group.last.text())),
            pair("entries-read", number(group.read)),
            pair("lag", stream.lag(group).map_or(Reply::Null, Reply::Int)),
            pair("pel-count", Reply::Int(group.pending.len() as i64)),
            pair("pending", Reply::Array(pending.collect())),
            pair("consumers", Reply::Array(consumers.collect())),
        ])
    });
    pairs.push(pair("groups", Reply::Array(groups.collect())));
    Reply::Map(pairs)
}

/// Programs, redis's own tests among them, add entries until there are some nodes.
#[test]
fn a_stream_that_grows_has_more_nodes() {
    let nodes = |entries: u64| {
        let mut stream = Stream::default();
        (0..entries)
            .for_each(|ms| stream.append(super::stream::Entry { id: super::Id { ms, seq: 1 }, fields: Vec::new() }));
        head(&stream)[1].1.clone()
    };
    assert_eq!([0, 1, 100, 2001].map(nodes), [0, 1, 1, 21].map(Reply::Int));
}
