//! Arguments as numbers, options and times.

use super::{Call, Fail, extended};
use crate::resp::Glob;

/// An integer.
pub fn int(text: &[u8]) -> Result<i64, Fail> {
    parse_int(text).ok_or_else(|| Fail::new("value is not an integer or out of range"))
}

/// An integer as redis reads one: no sign but a minus, no leading zeros, no blanks.
pub fn parse_int(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let canonical = digits == b"0" && text.len() == 1 || digits.first() != Some(&b'0');
    if !plain || !canonical {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A number that may have a fraction.
pub fn float(text: &[u8]) -> Result<f64, Fail> {
    parse_float(text).ok_or_else(|| Fail::new("value is not a valid float"))
}

/// A number that may have a fraction, or be infinite.
pub fn parse_float(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let word = text.trim_start_matches(['-', '+']).to_ascii_lowercase();
    if word.starts_with("0x") {
        return extended::hexadecimal(text);
    }
    let honest =
        word.starts_with(|first: char| first.is_ascii_digit() || first == '.') || word == "inf" || word == "infinity";
    let number: f64 = text.parse().ok().filter(|_| honest)?;
    // It overflows or underflows.
    let lost = number.is_infinite() && !word.starts_with("inf")
        || number == 0.0 && word.split('e').next()?.contains(|digit| ('1'..='9').contains(&digit));
    Some(number).filter(|_| !lost)
}

/// Whether an argument is this word, in any case.
pub fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// How a command tells a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds from now.
    Seconds,
    /// Milliseconds from now.
    Milliseconds,
    /// Seconds since 1970.
    AtSeconds,
    /// Milliseconds since 1970.
    AtMilliseconds,
}

impl Unit {
    /// The option's.
    pub fn of(option: &[u8]) -> Option<Unit> {
        match option.to_ascii_uppercase().as_slice() {
            b"EX" => Some(Unit::Seconds),
            b"PX" => Some(Unit::Milliseconds),
            b"EXAT" => Some(Unit::AtSeconds),
            b"PXAT" => Some(Unit::AtMilliseconds),
            _ => None,
        }
    }
}

/// A moment in ms since 1970, from an argument.
pub fn moment(call: &Call, command: &str, arg: &[u8], unit: Unit) -> Result<i64, Fail> {
    let number = int(arg)?;
    let invalid = || Fail::new(format!("invalid expire time in '{command}' command"));
    let ms = match unit {
        Unit::Seconds | Unit::AtSeconds => number.checked_mul(1000).ok_or_else(invalid)?,
        Unit::Milliseconds | Unit::AtMilliseconds => number,
    };
    match unit {
        Unit::Seconds | Unit::Milliseconds => ms.checked_add(call.now_ms() as i64).ok_or_else(invalid),
        Unit::AtSeconds | Unit::AtMilliseconds => Ok(ms),
    }
}

/// [`moment`] of a command that stores a value: it must be positive.
pub fn expiry(call: &Call, command: &str, arg: &[u8], unit: Unit) -> Result<u64, Fail> {
    let invalid = || Fail::new(format!("invalid expire time in '{command}' command"));
    if int(arg)? <= 0 {
        return Err(invalid());
    }
    let ms = moment(call, command, arg, unit)?;
    u64::try_from(ms).ok().filter(|&ms| ms > 0).ok_or_else(invalid)
}

/// A range of indices from the first to the last, both counted from the end if negative; `None` if
/// empty.
pub fn range(first: i64, last: i64, len: usize) -> Option<(usize, usize)> {
    let len = len as i64;
    let from = if first < 0 { (len + first).max(0) } else { first };
    let to = if last < 0 { len + last } else { last.min(len - 1) };
    (from <= to && from < len && to >= 0).then(|| (from as usize, to as usize + 1))
}

/// Bytes of a pattern at most.
const PATTERN: usize = 1024;

/// A pattern for names.
pub fn pattern(text: &[u8]) -> Result<Glob<'_>, Fail> {
    if text.len() > PATTERN {
        return Err(Fail::new(format!("a pattern has {PATTERN} bytes at most")));
    }
    Ok(Glob::new(text))
}

#[test]
fn numbers() {
    assert_eq!(parse_int(b"-12"), Some(-12));
    assert!(
        [&b""[..], b"-", b"+1", b"01", b" 1", b"1 ", b"-0", b"9223372036854775808"]
            .iter()
            .all(|text| parse_int(text).is_none())
    );
    assert_eq!(
        (parse_float(b"-1.5e3"), parse_float(b"0e9"), parse_float(b"0x1p3")),
        (Some(-1500.0), Some(0.0), Some(8.0))
    );
    assert!([&b"nan"[..], b"", b"1 ", b"x", b"1e400", b"1e-400"].iter().all(|text| parse_float(text).is_none()));
    assert_eq!((range(0, -1, 5), range(-3, -2, 5), range(2, 9, 5)), (Some((0, 5)), Some((2, 4)), Some((2, 5))));
    assert_eq!((range(3, 2, 5), range(5, 9, 5), range(0, -9, 5)), (None, None, None));
    assert_eq!((range(0, -1, 0), range(0, 9, 0), range(i64::MIN, i64::MAX, 2)), (None, None, Some((0, 2))));
}
