//! DUMP and RESTORE: a value as bytes that any store takes back.
//!
//! ```text
//!  type (1) │ value │ format (2) │ checksum of all before (8)
//! ```
//!
//! The end is as in redis, the value is not. So redis refuses a dump of a store, and a store refuses
//! a dump of redis.

use super::args::int;
use super::{Answered, Call, Fail};
use crate::keyspace::Change;
use crate::object::{Object, Type, Value};
use crate::resp::Reply;
use crate::segments::WHOLE;
use crate::segments::streams::split_within;
use xxhash_rust::xxh3::xxh3_64;

/// No format of redis has this number.
const FORMAT: u16 = 0xfa01;

fn dumped(object: &Object) -> Vec<u8> {
    let mut bytes = vec![object.kind() as u8];
    bytes.extend_from_slice(object.value());
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    let checksum = xxh3_64(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}

fn read(bytes: &[u8]) -> Option<(Type, Vec<u8>)> {
    let (head, checksum) = bytes.split_last_chunk::<8>()?;
    let (body, format) = head.split_last_chunk::<2>()?;
    let (&kind, value) = body.split_first()?;
    let sound = u64::from_le_bytes(*checksum) == xxh3_64(head) && u16::from_le_bytes(*format) == FORMAT;
    let is_sound = |kind: &Type| match kind {
        // A value that was dumped had no more than this in segments.
        Type::Stream => split_within(value, WHOLE as usize).is_some(),
        kind => super::types::is_sound(*kind, value),
    };
    let kind = Type::of(kind).filter(|kind| sound && is_sound(kind))?;
    Some((kind, value.to_vec()))
}

pub(super) async fn dump(call: &Call) -> Answered {
    let found = call.find(call.arg(1)).await?;
    if found.as_ref().is_some_and(|found| found.kind() == Type::Long) {
        return Err(super::long::too_long());
    }
    Ok(Reply::maybe(found.map(|found| dumped(&found))))
}

pub(super) async fn restore(call: &Call) -> Answered {
    let (mut replaces, mut absolute, mut n) = (false, false, 4);
    while n < call.count() {
        match call.arg(n).to_ascii_lowercase().as_slice() {
            b"replace" => replaces = true,
            b"absttl" => absolute = true,
            // Neither is kept.
            b"idletime" if n + 1 < call.count() => {
                n += 1;
                if int(call.arg(n))? < 0 {
                    return Err(Fail::new("Invalid IDLETIME value, must be >= 0"));
                }
            }
            b"freq" if n + 1 < call.count() => {
                n += 1;
                if !(0..=255).contains(&int(call.arg(n))?) {
                    return Err(Fail::new("Invalid FREQ value, must be >= 0 and <= 255"));
                }
            }
            _ => return Err(Fail::syntax()),
        }
        n += 1;
    }
    let ttl = u64::try_from(int(call.arg(2))?).map_err(|_| Fail::new("Invalid TTL value, must be >= 0"))?;
    let now = call.now_ms();
    let expiry = match ttl {
        0 => None,
        at if absolute => Some(at),
        ms => Some(now.saturating_add(ms)),
    };
    let value = read(call.arg(3)).map(|(kind, bytes)| Value { kind, expiry, bytes });
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        if there.is_some() && !replaces {
            return Err(Fail(Reply::Error("BUSYKEY Target key name already exists.".into())));
        }
        let value = value.as_ref().ok_or_else(|| Fail::new("DUMP payload version or checksum are wrong"))?;
        Ok(match expiry {
            // It has ended already.
            Some(at) if at <= now && there.is_none() => Change::Keep(Reply::Ok),
            Some(at) if at <= now => Change::Delete(Reply::Ok),
            _ => Change::Put(value.clone(), Reply::Ok),
        })
    };
    call.update(call.arg(1), change).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::streams::{NAME, split, words};

    #[test]
    fn a_payload_is_taken_back_or_refused() {
        let inner = b"\x05\0\0\0field\x01\0\0\0v".to_vec();
        let value = Value { kind: Type::Hash, expiry: None, bytes: inner.clone() };
        let payload = dumped(&Object::of(b"key", &value));
        assert_eq!(read(&payload), Some((Type::Hash, inner)));
        for at in 0..payload.len() {
            let mut wrong = payload.clone();
            wrong[at] ^= 4;
            assert!(read(&wrong).is_none() && read(&payload[..at]).is_none(), "{at}");
        }
    }

    /// A stream names a consumer once, and in segments with each pending entry.
    #[test]
    fn a_payload_of_a_stream_is_refused_that_would_take_much_more_memory() {
        let payload = |name: usize, pending: u64| {
            let mut bytes = words(&[pending, 0, 0, 0, 0, 0, 1]);
            let consumer = vec![b'c'; name];
            for (own, numbers) in [(&b"group"[..], &[0, 0, 0, 1][..]), (&consumer, &[7, pending])] {
                bytes.extend((own.len() as u32).to_le_bytes());
                bytes.extend(own);
                bytes.extend(words(numbers));
            }
            (1..=pending).for_each(|n| bytes.extend(words(&[n, 0, 0, 7, 1])));
            dumped(&Object::of(b"key", &Value { kind: Type::Stream, expiry: None, bytes }))
        };
        let (sound, long, many) = (payload(NAME, 1000), payload(NAME + 1, 2), payload(NAME, 70_000));
        assert!(read(&sound).is_some_and(|(kind, bytes)| kind == Type::Stream && split(&bytes).is_some()));
        assert!(many.len() < 3 << 20 && read(&many).is_none() && read(&long).is_none());
    }
}
