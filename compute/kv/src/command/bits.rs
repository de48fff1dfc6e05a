//! Commands on the bits of strings.

use super::args::{self, int, is, parse_int};
use super::strings::{MAX_STRING, like, string, text};
use super::types::Looked;
use super::{Answered, Call, Fail};
use crate::keyspace::Change;
use crate::object::{Object, Value};
use crate::resp::Reply;
use std::collections::HashMap;

/// Bytes that take about as long as an item of another command.
const BYTES_A_LOOK: usize = 64;

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "bitcount" => count(call).await,
        "bitop" => combine(call).await,
        "bitpos" => position(call).await,
        "getbit" => get(call).await,
        "setbit" => set(call).await,
        _ => fields(call, name == "bitfield_ro").await,
    }
}

fn bit(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1)
}

fn put_bit(bytes: &mut [u8], at: usize, bit: u8) {
    let shift = 7 - at % 8;
    bytes[at / 8] = bytes[at / 8] & !(1 << shift) | bit << shift;
}

/// An offset in bits; `#n` counts fields of `width` bits, if that is not 0.
fn offset(arg: &[u8], width: u32) -> Result<usize, Fail> {
    let wrong = || Fail::new("bit offset is not an integer or out of range");
    let (number, times) = match arg {
        [b'#', rest @ ..] if width > 0 => (rest, u64::from(width)),
        arg => (arg, 1),
    };
    let offset = parse_int(number).and_then(|offset| u64::try_from(offset).ok()).ok_or_else(wrong)?;
    let offset = offset.checked_mul(times).ok_or_else(wrong)?;
    if offset / 8 < MAX_STRING as u64 { Ok(offset as usize) } else { Err(wrong()) }
}

async fn get(call: &Call) -> Answered {
    let offset = offset(call.arg(2), 0)?;
    let bytes = string(call, call.arg(1)).await?.unwrap_or_default();
    Ok(Reply::Int(i64::from(bit(&bytes, offset))))
}

async fn set(call: &Call) -> Answered {
    let offset = offset(call.arg(2), 0)?;
    let new = match call.arg(3) {
        b"0" => 0,
        b"1" => 1,
        _ => return Err(Fail::new("bit is not an integer or out of range")),
    };
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let mut bytes = there.map(text).transpose()?.unwrap_or_default().to_vec();
        bytes.resize(bytes.len().max(offset / 8 + 1), 0);
        let old = bit(&bytes, offset);
        put_bit(&mut bytes, offset, new);
        Ok(Change::Put(like(there, bytes), Reply::Int(i64::from(old))))
    };
    call.update(call.arg(1), change).await
}

/// Whether a range is in bits, as the last of `count` arguments says.
fn by_bit(call: &Call, count: usize) -> Result<bool, Fail> {
    match call.count() {
        given if given < count => Ok(false),
        given if given == count && is(call.arg(count - 1), "bit") => Ok(true),
        given if given == count && is(call.arg(count - 1), "byte") => Ok(false),
        _ => Err(Fail::syntax()),
    }
}

async fn count(call: &Call) -> Answered {
    let ones = |bytes: &[u8]| bytes.iter().map(|byte| i64::from(byte.count_ones())).sum::<i64>();
    if call.count() == 2 {
        return Ok(Reply::Int(ones(&string(call, call.arg(1)).await?.unwrap_or_default())));
    }
    let by_bit = by_bit(call, 5)?;
    if call.count() == 3 {
        return Err(Fail::syntax());
    }
    let (first, last) = (int(call.arg(2))?, int(call.arg(3))?);
    let bytes = string(call, call.arg(1)).await?.unwrap_or_default();
    if first < 0 && last < 0 && first > last {
        return Ok(Reply::Int(0));
    }
    let len = if by_bit { bytes.len() * 8 } else { bytes.len() };
    // An end before the first is the first, as in redis.
    let last = if last < 0 { (len as i64 + last).max(0) } else { last };
    Ok(Reply::Int(match args::range(first, last, len) {
        None => 0,
        Some((from, to)) if by_bit => (from..to).map(|n| i64::from(bit(&bytes, n))).sum(),
        Some((from, to)) => ones(&bytes[from..to]),
    }))
}

async fn position(call: &Call) -> Answered {
    let wanted = match parse_int(call.arg(2)) {
        Some(bit @ 0..=1) => bit as u8,
        Some(_) => return Err(Fail::new("The bit argument must be 1 or 0.")),
        None => return Err(Fail::new("value is not an integer or out of range")),
    };
    let by_bit = by_bit(call, 6)?;
    let first = if call.count() > 3 { int(call.arg(3))? } else { 0 };
    let last = if call.count() > 4 { int(call.arg(4))? } else { -1 };
    let Some(bytes) = string(call, call.arg(1)).await? else {
        return Ok(Reply::Int(if wanted == 1 { -1 } else { 0 }));
    };
    let len = if by_bit { bytes.len() * 8 } else { bytes.len() };
    let last = if last < 0 { (len as i64 + last).max(0) } else { last };
    let Some((from, to)) = args::range(first, last, len) else { return Ok(Reply::Int(-1)) };
    let (from, to) = if by_bit { (from, to) } else { (from * 8, to * 8) };
    let found = (from..to).find(|&at| bit(&bytes, at) == wanted);
    Ok(Reply::Int(match found {
        Some(at) => at as i64,
        // Beyond a string whose end was not named come zeros.
        None if wanted == 0 && call.count() < 5 => to as i64,
        None => -1,
    }))
}

async fn combine(call: &Call) -> Answered {
    let how = call.arg(1).to_ascii_lowercase();
    let (keys, nots) = (&call.args[3..], how == b"not");
    let with: fn(u8, u8) -> u8 = match how.as_slice() {
        b"and" => |one, other| one & other,
        b"or" => |one, other| one | other,
        b"xor" => |one, other| one ^ other,
        b"not" if keys.len() == 1 => |one, _| one,
        b"not" => return Err(Fail::new("BITOP NOT must be called with a single source key.")),
        _ => return Err(Fail::syntax()),
    };
    // One string is held at a time, beside the result. Each is looked at once, however often it
    // is named.
    let mut times: HashMap<&[u8], usize> = HashMap::new();
    keys.iter().for_each(|key| *times.entry(key).or_default() += 1);
    let (mut all, mut looked): (Option<Vec<u8>>, _) = (None, Looked::default());
    for key in keys {
        let Some(times) = times.remove(key.as_slice()) else { continue };
        let mut bytes = string(call, key).await?.unwrap_or_default();
        looked.at(call, bytes.len() / BYTES_A_LOOK).await;
        if how == b"xor" && times.is_multiple_of(2) {
            bytes.fill(0);
        }
        let Some(result) = &mut all else {
            all = Some(bytes);
            continue;
        };
        result.resize(result.len().max(bytes.len()), 0);
        bytes.resize(result.len(), 0);
        result.iter_mut().zip(&bytes).for_each(|(one, other)| *one = with(*one, *other));
    }
    let mut all = all.unwrap_or_default();
    if nots {
        all.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let len = all.len();
    if len == 0 {
        call.remove(call.arg(2)).await?;
        return Ok(Reply::Int(0));
    }
    call.put(call.arg(2), &Value::string(all)).await?;
    Ok(Reply::Int(len as i64))
}

/// The rule for a field whose new number does not fit.
#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// A part of BITFIELD.
struct Field {
    signed: bool,
    width: u32,
    at: usize,
    act: Act,
}

#[derive(Clone, Copy)]
enum Act {
    Get,
    Set(i64, Overflow),
    Add(i64, Overflow),
}

impl Field {
    fn parse(call: &Call) -> Result<Vec<Field>, Fail> {
        let (mut fields, mut overflow, mut n) = (Vec::new(), Overflow::Wrap, 2);
        while n < call.count() {
            let act = call.arg(n).to_ascii_lowercase();
            if act == b"overflow" && n + 1 < call.count() {
                overflow = match call.arg(n + 1).to_ascii_lowercase().as_slice() {
                    b"wrap" => Overflow::Wrap,
                    b"sat" => Overflow::Saturate,
                    b"fail" => Overflow::Fail,
                    _ => return Err(Fail::new("Invalid OVERFLOW type specified")),
                };
                n += 2;
                continue;
            }
            let words = if act == b"get" { 3 } else { 4 };
            if !matches!(act.as_slice(), b"get" | b"set" | b"incrby") || n + words > call.count() {
                return Err(Fail::syntax());
            }
            let (signed, width) = Field::kind(call.arg(n + 1))?;
            let at = offset(call.arg(n + 2), width)?;
            let act = match act.as_slice() {
                b"get" => Act::Get,
                b"set" => Act::Set(int(call.arg(n + 3))?, overflow),
                _ => Act::Add(int(call.arg(n + 3))?, overflow),
            };
            fields.push(Field { signed, width, at, act });
            n += words;
        }
        Ok(fields)
    }

    /// `i` or `u`, and bits.
    fn kind(arg: &[u8]) -> Result<(bool, u32), Fail> {
        let wrong = "Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
        let (signed, most) = match arg.first() {
            Some(b'i') => (true, 64),
            Some(b'u') => (false, 63),
            _ => return Err(Fail::new(wrong)),
        };
        let width = parse_int(&arg[1..]).filter(|width| (1..=most).contains(width));
        Ok((signed, width.ok_or_else(|| Fail::new(wrong))? as u32))
    }

    fn read(&self, bytes: &[u8]) -> i64 {
        let number = (0..self.width as usize).fold(0u64, |number, n| number << 1 | u64::from(bit(bytes, self.at + n)));
        let unused = 64 - self.width;
        if self.signed { (number << unused) as i64 >> unused } else { number as i64 }
    }

    fn write(&self, bytes: &mut Vec<u8>, number: i64) {
        let end = self.at + self.width as usize;
        bytes.resize(bytes.len().max(end.div_ceil(8)), 0);
        for n in 0..self.width as usize {
            put_bit(bytes, self.at + n, (number >> (self.width as usize - 1 - n) & 1) as u8);
        }
    }

    /// The number as the field can hold it; `None`: it does not fit and is not to be made to.
    fn fit(&self, number: i128, overflow: Overflow) -> Option<i64> {
        let (least, most) = match self.signed {
            true => (-(1i128 << (self.width - 1)), (1i128 << (self.width - 1)) - 1),
            false => (0, (1i128 << self.width) - 1),
        };
        match overflow {
            _ if (least..=most).contains(&number) => Some(number as i64),
            Overflow::Fail => None,
            Overflow::Saturate => Some(number.clamp(least, most) as i64),
            Overflow::Wrap => {
                let unused = 128 - self.width;
                let bits = number as u128;
                Some(if self.signed { (bits << unused) as i128 >> unused } else { (bits << unused >> unused) as i128 }
                    as i64)
            }
        }
    }

    fn run(&self, bytes: &mut Vec<u8>) -> Reply {
        let old = self.read(bytes);
        let (new, overflow) = match self.act {
            Act::Get => return Reply::Int(old),
            // An unsigned field takes a negative number by its bits.
            Act::Set(new, overflow) if self.signed => (i128::from(new), overflow),
            Act::Set(new, overflow) => (i128::from(new as u64), overflow),
            Act::Add(by, overflow) => (i128::from(old) + i128::from(by), overflow),
        };
        let Some(new) = self.fit(new, overflow) else { return Reply::Null };
        self.write(bytes, new);
        Reply::Int(if matches!(self.act, Act::Set(..)) { old } else { new })
    }
}

async fn fields(call: &Call, reads_only: bool) -> Answered {
    let fields = Field::parse(call)?;
    let reads = fields.iter().all(|field| matches!(field.act, Act::Get));
    if reads_only && !reads {
        return Err(Fail::new("BITFIELD_RO only supports the GET subcommand"));
    }
    if fields.iter().any(|field| field.at + field.width as usize > MAX_STRING * 8) {
        return Err(Fail::new("bit offset is not an integer or out of range"));
    }
    if reads {
        let mut bytes = string(call, call.arg(1)).await?.unwrap_or_default();
        return Ok(Reply::Array(fields.iter().map(|field| field.run(&mut bytes)).collect()));
    }
    // Also a field that is not set because its number does not fit makes the string longer.
    let ends = fields.iter().filter(|field| !matches!(field.act, Act::Get));
    let least = ends.map(|field| (field.at + field.width as usize).div_ceil(8)).max().unwrap_or(0);
    let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
        let mut bytes = there.map(text).transpose()?.unwrap_or_default().to_vec();
        bytes.resize(bytes.len().max(least), 0);
        let replies = Reply::Array(fields.iter().map(|field| field.run(&mut bytes)).collect());
        Ok(Change::Put(like(there, bytes), replies))
    };
    call.update(call.arg(1), change).await
}
