//! The form of values that lie at nodes.
//!
//! A node can write any bytes, and their checksum. So what it returns is looked at once, when it is
//! decoded: whether lengths and counts are what the items are, and whether a head lists segments as
//! a store lists them. Commands rely on that. Whether items are the ones that were written cannot
//! be told.

use crate::object::Type;

/// Parts of an item, each with its length before it.
fn parts(kind: Type) -> u32 {
    if matches!(kind, Type::Hash | Type::SortedSet | Type::Stream) { 2 } else { 1 }
}

/// The bytes of so many items, at least.
pub(super) fn least(kind: Type, items: u32) -> u64 {
    u64::from(4 * parts(kind)) * u64::from(items)
}

fn score(bytes: &[u8]) -> Option<f64> {
    Some(f64::from_le_bytes(bytes.try_into().ok()?)).filter(|score| !score.is_nan())
}

/// How many items bytes have. `None`: there are none, or the bytes do not have the form of this
/// type. Those of a stream are the items of a side.
pub(super) fn count(kind: Type, bytes: &[u8]) -> Option<u32> {
    let (mut items, mut rest) = (0, bytes);
    while !rest.is_empty() {
        for part in 0..parts(kind) {
            let (len, after) = rest.split_first_chunk::<4>()?;
            let (own, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            if kind == Type::SortedSet && part == 0 {
                score(own)?;
            }
            rest = after;
        }
        items += 1;
    }
    (!bytes.is_empty()).then_some(items)
}

/// Whether a value has the form that commands on its type rely on. That of a stream is looked at
/// when the stream is decoded.
pub(crate) fn has_form(kind: Type, value: &[u8]) -> bool {
    match kind {
        Type::List | Type::Set | Type::Hash | Type::SortedSet => count(kind, value).is_some(),
        Type::Long => crate::long::List::decode(value, 0).is_some(),
        Type::Parts => super::head::is_head(value),
        _ => true,
    }
}

#[test]
fn bytes_without_a_values_form_are_refused() {
    let item = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    let pair = [item(b"f"), item(b"value")].concat();
    assert_eq!([Type::List, Type::Set, Type::Hash].map(|kind| count(kind, &pair)), [Some(2), Some(2), Some(1)]);
    for len in 0..pair.len() {
        assert_eq!(count(Type::Hash, &pair[..len]), None, "{len}");
    }
    let member = |score: &[u8]| [item(score), item(b"m")].concat();
    assert_eq!(count(Type::SortedSet, &member(&1.5f64.to_le_bytes())), Some(1));
    assert_eq!(count(Type::SortedSet, &member(&f64::NAN.to_le_bytes())), None);
    assert_eq!((count(Type::SortedSet, &member(b"1.5")), count(Type::Stream, b"x")), (None, None));
}
