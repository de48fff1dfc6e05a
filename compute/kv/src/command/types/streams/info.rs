//! XINFO.

use super::groups::no_group;
use super::stream::{Extent, Group};
use super::{all, look, shown};
use crate::command::args::{int, is};
use crate::command::{Answered, Call, Fail};
use crate::resp::Reply;
use crate::segments::Working;
use crate::segments::streams::Id;
use crate::shard::Trouble;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

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
    look(call, call.arg(2), |stream| {
        let stream = stream.ok_or_else(|| Fail::new("no such key"))?;
        let now_ms = call.now_ms();
        match (what.as_slice(), call.count()) {
            (b"stream", 3) => Ok(brief(stream)?),
            (b"stream", 4 | 6) if is(call.arg(3), "full") => {
                let most = match call.count() {
                    6 if is(call.arg(4), "count") => usize::try_from(int(call.arg(5))?.max(0)).unwrap_or(usize::MAX),
                    6 => return Err(Fail::syntax()),
                    _ => 10,
                };
                Ok(full(stream, if most == 0 { usize::MAX } else { most })?)
            }
            (b"groups", 3) => {
                let (extent, groups) = (stream.extent()?, stream.groups()?);
                Ok(Reply::Array(groups.iter().map(|(name, group)| of_group(&extent, name, group)).collect()))
            }
            (b"consumers", 4) => {
                let name = call.arg(3);
                stream.group(name)?.ok_or_else(|| no_group(call.arg(2), name))?;
                let each = stream.consumers(name)?.into_iter().map(|(name, consumer)| {
                    Reply::Map(vec![
                        pair("name", Reply::bulk(name)),
                        pair("pending", Reply::Int(consumer.pending as i64)),
                        pair("idle", Reply::Int(now_ms.saturating_sub(consumer.seen) as i64)),
                    ])
                });
                Ok(Reply::Array(each.collect()))
            }
            _ => Err(Fail::syntax()),
        }
    })
    .await
}

/// Nodes of a tree, which there is none of. Redis keeps 100 entries in one. Programs, redis's own
/// tests among them, add entries until there are some.
fn nodes(entries: usize) -> i64 {
    entries.div_ceil(100) as i64
}

fn head(stream: &Working<'_>) -> Result<Vec<(Reply, Reply)>, Trouble> {
    let first = stream.first_entry()?.map_or(Id::MIN, |entry| entry.id);
    let (head, nodes) = (stream.head()?, nodes(stream.count()));
    Ok(vec![
        pair("length", Reply::Int(stream.count() as i64)),
        pair("radix-tree-keys", Reply::Int(nodes)),
        pair("radix-tree-nodes", Reply::Int(nodes + 1)),
        pair("last-generated-id", Reply::bulk(head.last.text())),
        pair("max-deleted-entry-id", Reply::bulk(head.max_deleted.text())),
        pair("entries-added", Reply::Int(head.added as i64)),
        pair("recorded-first-entry-id", Reply::bulk(first.text())),
    ])
}

fn brief(stream: &Working<'_>) -> Result<Reply, Trouble> {
    let (mut pairs, ends) = (head(stream)?, [stream.first_entry()?, stream.last_entry()?]);
    let [first, last] = ends.map(|entry| entry.as_ref().map_or(Reply::Null, shown));
    let groups = Reply::Int(stream.groups()?.len() as i64);
    pairs.extend([pair("groups", groups), pair("first-entry", first), pair("last-entry", last)]);
    Ok(Reply::Map(pairs))
}

fn of_group(extent: &Extent, name: &[u8], group: &Group) -> Reply {
    Reply::Map(vec![
        pair("name", Reply::bulk(name)),
        pair("consumers", Reply::Int(group.consumers as i64)),
        pair("pending", Reply::Int(group.pending as i64)),
        pair("last-delivered-id", Reply::bulk(group.last.text())),
        pair("entries-read", number(group.read)),
        pair("lag", extent.lag(group).map_or(Reply::Null, Reply::Int)),
    ])
}

fn full(stream: &Working<'_>, most: usize) -> Result<Reply, Trouble> {
    let (mut pairs, extent, mut groups) = (head(stream)?, stream.extent()?, Vec::new());
    pairs.push(pair("entries", all(&stream.entries(Id::MIN, Id::MAX, most)?)));
    for (name, group) in stream.groups()? {
        let (mut pending, mut each) = (Vec::new(), BTreeMap::<Vec<u8>, Vec<Reply>>::new());
        stream.each_pending(&name, Id::MIN, usize::MAX, |id, one| {
            let parts = [Reply::bulk(id.text()), Reply::Int(one.delivered_ms as i64), Reply::Int(one.count as i64)];
            if pending.len() < most {
                let [id, delivered, count] = parts.clone();
                pending.push(Reply::Array(vec![id, Reply::bulk(one.consumer.clone()), delivered, count]));
            }
            let own = each.entry(one.consumer).or_default();
            if own.len() < most {
                own.push(Reply::Array(parts.into()));
            }
            ControlFlow::Continue(())
        })?;
        let consumers = stream.consumers(&name)?.into_iter().map(|(name, consumer)| {
            let first = each.remove(&name).unwrap_or_default();
            Reply::Map(vec![
                pair("name", Reply::bulk(name)),
                pair("seen-time", Reply::Int(consumer.seen as i64)),
                pair("pel-count", Reply::Int(consumer.pending as i64)),
                pair("pending", Reply::Array(first)),
            ])
        });
        let consumers = consumers.collect();
        groups.push(Reply::Map(vec![
            pair("name", Reply::bulk(name)),
            pair("last-delivered-id", Reply::bulk(group.last.text())),
            pair("entries-read", number(group.read)),
            pair("lag", extent.lag(&group).map_or(Reply::Null, Reply::Int)),
            pair("pel-count", Reply::Int(group.pending as i64)),
            pair("pending", Reply::Array(pending)),
            pair("consumers", Reply::Array(consumers)),
        ]));
    }
    pairs.push(pair("groups", Reply::Array(groups)));
    Ok(Reply::Map(pairs))
}

#[test]
fn a_stream_that_grows_has_more_nodes() {
    assert_eq!([0, 1, 100, 2001].map(nodes), [0, 1, 1, 21]);
}
