//! HyperLogLogs: PFADD, PFCOUNT and PFMERGE.
//!
//! A value is a string in redis's own form, so that clients can carry it elsewhere:
//!
//! ```text
//!  "HYLL" │ encoding │ 3 zeros │ a count that was kept, or its highest bit: none │ registers
//!  dense   16 384 registers of 6 bits, the lowest first
//!  sparse  00nnnnnn: n + 1 zeros   01nnnnnn nnnnnnnn: n + 1 zeros   1vvvvvnn: n + 1 times v + 1
//! ```
//!
//! A count is not kept here: PFCOUNT only reads. Of several keys they take effect key by key.

use super::strings::text as value;
use super::types::Looked;
use super::{Answered, Call, Fail};
use crate::keyspace::Change;
use crate::object::{Object, Type, Value};
use crate::resp::Reply;
use std::collections::HashSet;

const BITS: u32 = 14;
const REGISTERS: usize = 1 << BITS;
/// The largest value of a register: the bits of a hash that it counts zeros of, and one.
const LARGEST: usize = 64 - BITS as usize + 1;
const HEADER: usize = 16;
const DENSE: usize = HEADER + REGISTERS * 6 / 8;
/// Bytes of a sparse value, at most. Redis has this as a setting.
const SPARSE: usize = HEADER + 3000;
const SEED: u64 = 0xadc8_3b19;

type Registers = [u8; REGISTERS];

/// The hash by which redis knows elements: MurmurHash64A.
fn hash(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(M);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let mut word = u64::from_le_bytes(*word).wrapping_mul(M);
        word = (word ^ word >> 47).wrapping_mul(M);
        hash = (hash ^ word).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(M);
    }
    hash = (hash ^ hash >> 47).wrapping_mul(M);
    hash ^ hash >> 47
}

/// An element's register, and the value that it gives it.
fn place(element: &[u8]) -> (usize, u8) {
    let hash = hash(element);
    let rest = hash >> BITS | 1 << (64 - BITS);
    ((hash as usize) % REGISTERS, rest.trailing_zeros() as u8 + 1)
}

fn wrong() -> Fail {
    Fail(Reply::Error("WRONGTYPE Key is not a valid HyperLogLog string value.".into()))
}

fn corrupt() -> Fail {
    Fail(Reply::Error("INVALIDOBJ Corrupted HLL object detected".into()))
}

/// The registers of a value.
fn decode(bytes: &[u8]) -> Result<Box<Registers>, Fail> {
    let mut registers = Box::new([0; REGISTERS]);
    let sound = bytes.len() >= HEADER && bytes.starts_with(b"HYLL");
    match bytes.get(4) {
        Some(0) if sound && bytes.len() == DENSE => {
            for (n, register) in registers.iter_mut().enumerate() {
                let (at, shift) = (HEADER + n * 6 / 8, n * 6 % 8);
                let pair = u16::from(bytes[at]) | u16::from(*bytes.get(at + 1).unwrap_or(&0)) << 8;
                *register = (pair >> shift) as u8 & 63;
            }
        }
        Some(1) if sound => {
            let (mut at, mut rest) = (0, &bytes[HEADER..]);
            while let Some((&code, after)) = rest.split_first() {
                rest = after;
                let (len, value) = match code >> 6 {
                    0 => (usize::from(code & 63) + 1, 0),
                    1 => {
                        let (&low, after) = rest.split_first().ok_or_else(corrupt)?;
                        rest = after;
                        ((usize::from(code & 63) << 8 | usize::from(low)) + 1, 0)
                    }
                    _ => (usize::from(code & 3) + 1, (code >> 2 & 31) + 1),
                };
                registers.get_mut(at..at + len).ok_or_else(corrupt)?.fill(value);
                at += len;
            }
            if at != REGISTERS {
                return Err(corrupt());
            }
        }
        _ => return Err(wrong()),
    }
    Ok(registers)
}

/// A value of these registers: sparse if that is short, and if `sparse` allows it.
fn encode(registers: &Registers, sparse: bool) -> Vec<u8> {
    let mut bytes = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
    if sparse && registers.iter().all(|&register| register <= 32) {
        for run in registers.chunk_by(|one, next| one == next) {
            let mut left = run.len();
            while left > 0 {
                let (code, len) = match run[0] {
                    0 if left > 64 => (vec![0x40 | ((left - 1) >> 8) as u8, (left - 1) as u8], left),
                    0 => (vec![(left - 1) as u8], left),
                    value => (vec![0x80 | (value - 1) << 2 | (left.min(4) - 1) as u8], left.min(4)),
                };
                bytes.extend(code);
                left -= len;
            }
        }
        if bytes.len() <= SPARSE {
            return bytes;
        }
    }
    bytes.truncate(HEADER);
    bytes[4] = 0;
    bytes.resize(DENSE, 0);
    for (n, &register) in registers.iter().enumerate() {
        let (at, shift) = (HEADER + n * 6 / 8, n * 6 % 8);
        let pair = u16::from(register) << shift;
        bytes[at] |= pair as u8;
        if let Some(next) = bytes.get_mut(at + 1) {
            *next |= (pair >> 8) as u8;
        }
    }
    bytes
}

/// How many elements there are, about. By Ertl, *New cardinality estimation algorithms for
/// HyperLogLog sketches* (2017), as redis has it.
fn count(registers: &Registers) -> u64 {
    let mut histogram = [0u32; 64];
    registers.iter().for_each(|&register| histogram[usize::from(register)] += 1);
    let m = REGISTERS as f64;
    let tau = |mut x: f64| {
        if x == 0.0 || x == 1.0 {
            return 0.0;
        }
        let (mut y, mut z) = (1.0, 1.0 - x);
        loop {
            x = x.sqrt();
            y *= 0.5;
            let before = z;
            z -= (1.0 - x).powi(2) * y;
            if before == z {
                return z / 3.0;
            }
        }
    };
    let sigma = |mut x: f64| {
        if x == 1.0 {
            return f64::INFINITY;
        }
        let (mut y, mut z) = (1.0, x);
        loop {
            x *= x;
            let before = z;
            z += x * y;
            y += y;
            if before == z {
                return z;
            }
        }
    };
    let mut z = m * tau((m - f64::from(histogram[LARGEST])) / m);
    for n in (1..LARGEST).rev() {
        z = 0.5 * (z + f64::from(histogram[n]));
    }
    z += m * sigma(f64::from(histogram[0]) / m);
    // 1 / (2 ln 2), for any number of registers.
    (0.721_347_520_444_481_7 * m * m / z).round() as u64
}

/// Whether a value is in the sparse form.
fn is_sparse(there: Option<&Object>) -> Result<bool, Fail> {
    Ok(there.map_or(Ok(&[0; 4][..]), value)?.get(4).is_none_or(|encoding| *encoding == 1))
}

fn changed(there: Option<&Object>, registers: &Registers, sparse: bool, reply: Reply) -> Change<Reply> {
    let expiry = there.and_then(Object::expiry);
    Change::Put(Value { kind: Type::String, expiry, bytes: encode(registers, sparse) }, reply)
}

fn registers(there: Option<&Object>) -> Result<Box<Registers>, Fail> {
    there.map_or_else(|| Ok(Box::new([0; REGISTERS])), |object| decode(value(object)?))
}

/// The union of several keys' registers. Each key is looked at once, however often it is named.
async fn union(call: &Call, keys: &[Vec<u8>]) -> Result<(Box<Registers>, bool), Fail> {
    let (mut all, mut sparse) = (Box::new([0; REGISTERS]), true);
    let (mut seen, mut looked) = (HashSet::new(), Looked::default());
    for key in keys.iter().filter(|key| seen.insert(*key)) {
        let object = call.get(key).await?;
        looked.at(call, REGISTERS).await;
        sparse &= is_sparse(object.as_ref())?;
        let some = registers(object.as_ref())?;
        all.iter_mut().zip(some.iter()).for_each(|(one, other)| *one = (*one).max(*other));
    }
    Ok((all, sparse))
}

pub async fn run(name: &str, call: &Call) -> Answered {
    match name {
        "pfadd" => {
            let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
                let (mut registers, mut new) = (registers(there)?, there.is_none());
                for element in &call.args[2..] {
                    let (at, value) = place(element);
                    new |= value > registers[at];
                    registers[at] = registers[at].max(value);
                }
                Ok(match new {
                    true => changed(there, &registers, is_sparse(there)?, Reply::Int(1)),
                    false => Change::Keep(Reply::Int(0)),
                })
            };
            call.update(call.arg(1), change).await
        }
        "pfcount" => union(call, &call.args[1..]).await.map(|(all, _)| Reply::Int(count(&all) as i64)),
        _ => {
            let (others, sparse) = union(call, &call.args[2..]).await?;
            let change = |there: Option<&Object>| -> Result<Change<Reply>, Fail> {
                let mut all = registers(there)?;
                all.iter_mut().zip(others.iter()).for_each(|(one, other)| *one = (*one).max(*other));
                Ok(changed(there, &all, sparse && is_sparse(there)?, Reply::Ok))
            };
            call.update(call.arg(1), change).await
        }
    }
}

#[test]
fn registers_are_what_was_written() {
    let mut registers = Box::new([0; REGISTERS]);
    for n in 0..5000u32 {
        let (at, value) = place(&n.to_le_bytes());
        registers[at] = registers[at].max(value);
        if n % 500 == 0 {
            for sparse in [true, false] {
                assert_eq!(decode(&encode(&registers, sparse)).ok(), Some(registers.clone()), "{n}");
            }
        }
    }
    let counted = count(&registers);
    assert!((4900..5100).contains(&counted), "{counted}");
    assert_eq!(count(&[0; REGISTERS]), 0);
    registers[7] = LARGEST as u8;
    assert_eq!(decode(&encode(&registers, true)).ok(), Some(registers));
    assert!(decode(b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80\x7f\xff\x00").is_err() && decode(b"").is_err());
}
