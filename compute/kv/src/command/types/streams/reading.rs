//! XREAD and XREADGROUP: reading of several streams, and waiting for an entry.

use super::super::super::args::{int, is, parse_int};
use super::super::super::glance::at_a_glance;
use super::super::super::room::Room;
use super::super::super::{Answered, Call, Fail};
use super::super::Looked;
use super::super::blocking::{Blocked, pause_behind};
use super::{groups, id, look, named, shown};
use crate::object::{Object, Type};
use crate::resp::Reply;
use crate::segments::streams::Id;
use crate::segments::{self, Working, type_of};
use std::collections::HashSet;

pub async fn run(name: &str, call: &Call) -> Answered {
    Reading::of(name, call)?.run(call).await
}

/// Where a reader goes on in a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// Behind this ID. Of a group: its consumer's pending entries behind it.
    Behind(Id),
    /// Behind the entry that is the last now.
    Now,
    /// With the first that the group was not given.
    New,
}

/// Where a reader of a stream is.
#[derive(Clone)]
struct Place {
    from: From,
    /// The object that the last look has found.
    seen: Option<u64>,
}

/// Bytes of streams that one look may read again, because they are named again: on a draft, which
/// has all of them, nothing else of its front end goes on meanwhile.
const AGAIN: usize = 64 << 20;
/// Bytes of a stream that take about as long as an item of another type.
const BYTES_AN_ITEM: usize = 64;

/// The time and memory that one look takes.
#[derive(Default)]
struct Cost<'k> {
    seen: HashSet<&'k [u8]>,
    again: usize,
    looked: Looked,
}

impl<'k> Cost<'k> {
    /// Counts one stream before it is read.
    async fn of(&mut self, call: &Call, key: &'k [u8], object: Option<&Object>) -> Result<(), Fail> {
        let bytes = object.map_or(0, |object| match object.kind() {
            Type::Parts => segments::len(object) as usize,
            _ => object.value().len(),
        });
        self.again += if self.seen.insert(key) { 0 } else { bytes };
        if self.again > AGAIN {
            return Err(Fail::new(format!("streams that are named again have more than {} MiB", AGAIN >> 20)));
        }
        self.looked.at(call, bytes / BYTES_AN_ITEM).await;
        Ok(())
    }
}

/// XREAD or XREADGROUP.
struct Reading {
    /// Group and consumer.
    group: Option<(Vec<u8>, Vec<u8>)>,
    most: usize,
    /// How long it waits, in ms; 0: for ever.
    block: Option<u64>,
    no_ack: bool,
    streams: Vec<(Vec<u8>, From)>,
    /// Whether it waits if nothing is new.
    waits: bool,
    /// Whether its reply has pairs in a list.
    plain: bool,
}

impl Reading {
    fn of(name: &str, call: &Call) -> Result<Reading, Fail> {
        let grouped = name == "xreadgroup";
        let plain = call.version() < 3;
        let (group, most, block, no_ack, streams) = (None, usize::MAX, None, false, Vec::new());
        let mut reading = Reading { group, most, block, no_ack, streams, waits: false, plain };
        let mut n = 1;
        loop {
            let (arg, more) = (call.arg(n), call.count().saturating_sub(n + 1));
            if is(arg, "block") && more > 0 {
                let wrong = || Fail::new("timeout is not an integer or out of range");
                let ms = parse_int(call.arg(n + 1)).ok_or_else(wrong)?;
                reading.block = Some(u64::try_from(ms).map_err(|_| Fail::new("timeout is negative"))?);
                n += 2;
            } else if is(arg, "count") && more > 0 {
                let count = usize::try_from(int(call.arg(n + 1))?.max(0)).unwrap_or(usize::MAX);
                reading.most = if count == 0 { usize::MAX } else { count };
                n += 2;
            } else if is(arg, "group") && more > 1 {
                if !grouped {
                    return Err(Fail::new(
                        "The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                reading.group = Some((call.arg(n + 1).to_vec(), named(call.arg(n + 2))?.to_vec()));
                n += 3;
            } else if is(arg, "noack") && n < call.count() {
                if !grouped {
                    return Err(Fail::new(
                        "The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
                    ));
                }
                reading.no_ack = true;
                n += 1;
            } else if is(arg, "streams") && more > 0 {
                break;
            } else {
                return Err(Fail::syntax());
            }
        }
        let rest = &call.args[n + 1..];
        if !rest.len().is_multiple_of(2) {
            return Err(Fail::new(format!(
                "Unbalanced '{name}' list of streams: for each stream key an ID or '$' must be specified."
            )));
        }
        if grouped && reading.group.is_none() {
            return Err(Fail::new("Missing GROUP option for XREADGROUP"));
        }
        let (keys, ids) = rest.split_at(rest.len() / 2);
        for (key, text) in keys.iter().zip(ids) {
            reading.streams.push((key.clone(), From::of(text, grouped)?));
        }
        reading.waits = reading.block.is_some() && !call.in_exec && call.draft.is_none();
        Ok(reading)
    }

    async fn run(self, call: &Call) -> Answered {
        // An earlier command may have ended before it took notice.
        call.client.unblocked.set(None);
        let until = call.store().now_ms().saturating_add(self.block.unwrap_or(0));
        let mut places: Vec<Place> = self.streams.iter().map(|&(_, from)| Place { from, seen: None }).collect();
        let (mut first, mut pause) = (true, 1);
        loop {
            match self.look_at_once(call, &mut places, first).await {
                Ok(None) if self.waits => {}
                Ok(None) => return Ok(Reply::NullArray),
                Ok(Some(reply)) => return Ok(reply),
                Err(fail) => return Err(fail),
            }
            first = false;
            let _blocked = Blocked::new(call);
            loop {
                // While it looked its connection could not end it.
                if call.client.is_lost() {
                    return Ok(Reply::Silence);
                }
                let left = match self.block {
                    Some(1..) => until.saturating_sub(call.store().now_ms()),
                    _ => u64::MAX,
                };
                if left == 0 {
                    return Ok(Reply::NullArray);
                }
                match call.client.unblocked.take() {
                    Some(true) => {
                        return Err(Fail(Reply::Error("UNBLOCKED client unblocked via CLIENT UNBLOCK".into())));
                    }
                    Some(false) => return Ok(Reply::NullArray),
                    None => {}
                }
                call.io.pause(left.min(u64::from(pause)) as u32).await;
                pause = pause_behind(pause, self.streams.len());
                // A transaction on several keys must not be disturbed.
                if !call.front.alone.get() {
                    break;
                }
            }
        }
    }

    /// One look at a stream; `None`: nothing is new.
    async fn look_at<'k>(
        &self,
        call: &Call,
        (key, cost): (&'k [u8], &mut Cost<'k>),
        place: &mut Place,
        first: bool,
    ) -> Result<Option<Vec<Reply>>, Fail> {
        // What is noted as delivered would be pending for nobody.
        if self.waits && call.client.is_lost() {
            return Ok(None);
        }
        // A group's read counts here, and another one below.
        let counts = first && self.group.is_some();
        let object = if counts { call.get_head(key).await? } else { call.find_head(key).await? };
        let checksum = object.as_ref().map(Object::checksum);
        if !first && checksum == place.seen {
            return Ok(None);
        }
        let gone = object.as_ref().is_none_or(|object| type_of(object) != Type::Stream);
        if !first && gone && self.group.is_some() {
            return Err(Fail(Reply::Error("UNBLOCKED the stream key no longer exists".into())));
        }
        place.seen = checksum;
        cost.of(call, key, object.as_ref()).await?;
        if let Some(group) = &self.group {
            return groups::read(call, key, group, (place.from, self.most, self.no_ack)).await;
        }
        let From::Behind(id) = place.from else { return Ok(None) };
        let see = |stream: Option<&Working<'_>>| -> Result<Option<Vec<Reply>>, Fail> {
            let (Some(stream), Some(next)) = (stream, id.next()) else { return Ok(None) };
            if stream.head()?.last <= id {
                return Ok(None);
            }
            let entries = stream.entries(next, Id::MAX, self.most)?;
            Ok((!entries.is_empty()).then(|| entries.iter().map(shown).collect()))
        };
        match look(call, key, see).await {
            // As with redis, a value of another type that came meanwhile ends no waiting.
            Err(fail) if !first && fail.is_wrong_type() => Ok(None),
            looked => looked,
        }
    }

    /// [`Reading::look`], at one moment of all streams.
    async fn look_at_once(&self, call: &Call, places: &mut Vec<Place>, first: bool) -> Result<Option<Reply>, Fail> {
        if self.streams.len() < 2 || call.draft.is_some() {
            return self.look(call, places, first).await;
        }
        let keys = self.streams.iter().map(|(key, _)| key.clone()).collect();
        let begun = places.clone();
        let look = async |on: &Call| -> Result<(Option<Reply>, Vec<Place>), Fail> {
            let mut places = begun.clone();
            Ok((self.look(on, &mut places, first).await?, places))
        };
        // What `$` means is told at one moment of all streams.
        let begins = places.iter().any(|place| place.from == From::Now);
        let looks_again = |(told, _): &(Option<Reply>, Vec<Place>)| told.is_none() && self.waits && !begins;
        let (told, after) = Box::pin(at_a_glance(call, keys, first, looks_again, look)).await?;
        *places = after;
        Ok(told)
    }

    /// One look at all streams.
    async fn look(&self, call: &Call, places: &mut [Place], first: bool) -> Result<Option<Reply>, Fail> {
        for ((key, _), place) in self.streams.iter().zip(&mut *places) {
            if place.from == From::Now {
                let see =
                    |stream: Option<&Working<'_>>| Ok(stream.map_or(Ok(Id::MIN), |s| s.head().map(|head| head.last))?);
                let last = look(call, key, see).await?;
                place.from = From::Behind(last);
            }
        }
        if let Some(group) = self.group.as_ref().filter(|_| first && self.streams.len() > 1) {
            for (key, _) in &self.streams {
                groups::check(call, key, &group.0).await?;
            }
        }
        let (mut found, mut cost, mut room) = (Vec::new(), Cost::default(), Room::new(call));
        for ((key, _), place) in self.streams.iter().zip(places) {
            let entries = self.look_at(call, (key, &mut cost), place, first).await;
            // A group was given its entries: this reply brings them in any case.
            let held = entries.map(|entries| entries.map(Reply::Array)).and_then(|entries| {
                entries.iter().filter(|_| self.group.is_none()).try_for_each(|entries| room.hold(entries))?;
                Ok(entries)
            });
            match held {
                Ok(None) => {}
                Ok(Some(entries)) => found.push((Reply::bulk(key.as_slice()), entries)),
                Err(fail) if found.is_empty() || self.group.is_none() => return Err(fail),
                // The group was given the entries that are found: this reply alone can bring them.
                Err(_) => break,
            }
        }
        if found.is_empty() {
            return Ok(None);
        }
        let pairs = |found: Vec<(Reply, Reply)>| found.into_iter().map(|(key, list)| Reply::Array(vec![key, list]));
        Ok(Some(if self.plain { Reply::Array(pairs(found).collect()) } else { Reply::Map(found) }))
    }
}

impl From {
    fn of(text: &[u8], grouped: bool) -> Result<From, Fail> {
        match (text, grouped) {
            (b"$", false) => Ok(From::Now),
            (b"$", true) => Err(Fail::new(
                "The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer \
                 by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty \
                 result set.",
            )),
            (b">", true) => Ok(From::New),
            (b">", false) => Err(Fail::new(
                "The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            )),
            _ => Ok(From::Behind(id(text, 0)?)),
        }
    }
}
