//! Files of references (traces). They are small, and are read and written as streams. A trace that
//! was cut off is read up to its last whole block.
//!
//! ```text
//! HEADER  block*  end
//! block   references:u32  instructions:u64  raw:u32  packed:u32 | packed bytes (LZ4)
//! end     a block of no references and no bytes
//! ```
//! Numbers are little-endian. An unpacked block is its references one after the other:
//!
//! ```text
//!   7   5 4   2 1  0
//!  | slot | size |kind|  varint: size, if `size` is 7   varint: zigzag(address - slots[slot])
//! ```
//! `size` is log2 of 1 to 64 bytes. A program's references jump between a few places: its stack,
//! some arrays. So eight slots hold recent addresses, and an address is written as its difference
//! from the nearest slot. If the difference is less than 1 MiB, that slot becomes the address.
//! Otherwise the slots are replaced in turn, the oldest first. Each block begins with slots of
//! zero, so it can be read alone. A reference takes two to three bytes.

use crate::reference::{Event, Kind, MAX_BYTES, Reference, Sink};
use anyhow::{Context, Result, bail};
use std::io::{self, ErrorKind, Read, Write};

/// The first bytes of a trace.
pub const HEADER: &[u8; 16] = b"farmem refs v1\n\0";
/// The most references in a block.
const PER_BLOCK: u32 = 1 << 16;
/// The most bytes of an unpacked block: a reference takes at most 16.
const MAX_RAW: usize = PER_BLOCK as usize * 16;
/// From this difference on, an address replaces the oldest slot.
const FAR_JUMP: u64 = 1 << 20;
/// The value of `size` that says that the size follows.
const LONG: u8 = 7;

/// Eight recent addresses, from which others are written as differences.
#[derive(Clone, Copy, Default)]
struct Slots {
    at: [u64; 8],
    oldest: usize,
}

impl Slots {
    fn nearest(&self, address: u64) -> usize {
        let distance = |slot: usize| (address.wrapping_sub(self.at[slot]) as i64).unsigned_abs();
        (0..8).min_by_key(|&slot| distance(slot)).unwrap_or(0)
    }

    /// Notes an address that was written as a difference from a slot.
    fn moved(&mut self, slot: usize, address: u64) {
        let distance = (address.wrapping_sub(self.at[slot]) as i64).unsigned_abs();
        if distance < FAR_JUMP {
            self.at[slot] = address;
        } else {
            self.at[self.oldest] = address;
            self.oldest = (self.oldest + 1) % 8;
        }
    }
}

/// Writes a trace.
pub struct Writer<W: Write> {
    out: W,
    raw: Vec<u8>,
    references: u32,
    instructions: u64,
    slots: Slots,
    /// The first error, reported by [`Writer::finish`].
    failed: Option<io::Error>,
}

impl<W: Write> Writer<W> {
    /// Begins a trace: writes its header.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(HEADER)?;
        let raw = Vec::with_capacity(4 * PER_BLOCK as usize);
        Ok(Writer { out, raw, references: 0, instructions: 0, slots: Slots::default(), failed: None })
    }

    /// Writes the block that is being made, and begins the next.
    fn flush(&mut self) -> io::Result<()> {
        let packed = lz4_flex::block::compress(&self.raw);
        let mut head = [0; 20];
        head[..4].copy_from_slice(&self.references.to_le_bytes());
        head[4..12].copy_from_slice(&self.instructions.to_le_bytes());
        head[12..16].copy_from_slice(&(self.raw.len() as u32).to_le_bytes());
        head[16..].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(&packed)?;
        (self.references, self.instructions, self.slots) = (0, 0, Slots::default());
        self.raw.clear();
        Ok(())
    }

    /// Writes the last block, and the end.
    ///
    /// # Errors
    /// The first error since the trace began, unless [`Sink::check`] has returned it.
    pub fn finish(mut self) -> io::Result<W> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.references > 0 || self.instructions > 0 {
            self.flush()?;
        }
        self.out.write_all(&[0; 20])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Sink for Writer<W> {
    fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Instructions(n) => self.instructions += n,
            Event::Reference(reference) => {
                let slot = self.slots.nearest(reference.address);
                let size = match reference.bytes {
                    bytes if bytes.is_power_of_two() && bytes <= 64 => bytes.trailing_zeros() as u8,
                    _ => LONG,
                };
                let kind = reference.kind as u8;
                self.raw.push((slot as u8) << 5 | size << 2 | kind);
                if size == LONG {
                    put(&mut self.raw, reference.bytes.into());
                }
                let delta = reference.address.wrapping_sub(self.slots.at[slot]) as i64;
                put(&mut self.raw, ((delta << 1) ^ (delta >> 63)) as u64);
                self.slots.moved(slot, reference.address);
                self.references += 1;
                if self.references == PER_BLOCK
                    && self.failed.is_none()
                    && let Err(failed) = self.flush()
                {
                    self.failed = Some(failed);
                }
                if self.failed.is_some() {
                    self.raw.clear();
                    self.references = 0;
                }
            }
        }
    }
}

/// Appends a varint.
fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Takes a varint off the front.
fn get(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(n);
        }
    }
    None
}

/// Whether a trace has its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It has its end.
    Whole,
    /// It was cut off; all whole blocks were read.
    CutOff,
}

/// Reads a trace into `sink`.
///
/// # Errors
/// The input is no trace, or it is damaged: it has a length or an encoding that no writer makes.
pub fn read(mut from: impl Read, sink: &mut dyn Sink) -> Result<End> {
    let mut header = [0; HEADER.len()];
    if from.read_exact(&mut header).is_err() || &header != HEADER {
        bail!("this is no trace of references; record one with: farmem amat --record FILE -- PROGRAM");
    }
    let (mut packed, mut raw) = (Vec::new(), vec![0; MAX_RAW]);
    for number in 0u64.. {
        let mut head = [0; 20];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(End::CutOff),
            Err(e) => return Err(e.into()),
        }
        if head == [0; 20] {
            return Ok(End::Whole);
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (references, raw_len, packed_len) = (word(0), word(12) as usize, word(16) as usize);
        let instructions = u64::from(word(4)) | u64::from(word(8)) << 32;
        if references > PER_BLOCK || raw_len > MAX_RAW || packed_len > 2 * MAX_RAW {
            bail!("block {number} of this trace is damaged: it claims to be larger than any");
        }
        packed.resize(packed_len, 0);
        match from.read_exact(&mut packed) {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(End::CutOff),
            Err(e) => return Err(e.into()),
        }
        let unpacked = lz4_flex::block::decompress_into(&packed, &mut raw[..raw_len]).ok();
        let whole = unpacked.filter(|&n| n == raw_len).and_then(|n| block(&raw[..n], references, sink));
        whole.with_context(|| format!("block {number} of this trace is damaged"))?;
        sink.take(Event::Instructions(instructions));
    }
    unreachable!("2^64 blocks")
}

/// Reads the references of an unpacked block. `None`: the block is damaged.
fn block(mut bytes: &[u8], references: u32, sink: &mut dyn Sink) -> Option<()> {
    let mut slots = Slots::default();
    for _ in 0..references {
        let (&control, rest) = bytes.split_first()?;
        bytes = rest;
        let kind = match control & 3 {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Modify,
            _ => return None,
        };
        let size = match control >> 2 & 7 {
            LONG => u16::try_from(get(&mut bytes)?).ok().filter(|&n| n > 0 && n <= MAX_BYTES)?,
            log => 1 << log,
        };
        let slot = usize::from(control >> 5);
        let zigzag = get(&mut bytes)?;
        let delta = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        let address = slots.at[slot].wrapping_add(delta as u64);
        slots.moved(slot, address);
        sink.take(Event::Reference(Reference { address, bytes: size, kind }));
    }
    bytes.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(events: &[Event]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).unwrap();
        events.iter().for_each(|&event| writer.take(event));
        writer.finish().unwrap()
    }

    fn read_back(bytes: &[u8]) -> Result<(Vec<Reference>, u64, End)> {
        let (mut references, mut instructions) = (vec![], 0);
        let mut sink = |event| match event {
            Event::Reference(reference) => references.push(reference),
            Event::Instructions(n) => instructions += n,
        };
        let end = read(bytes, &mut sink)?;
        Ok((references, instructions, end))
    }

    fn reference() -> impl Strategy<Value = Reference> {
        let kind = prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Modify)];
        let address = prop_oneof![any::<u64>(), 0x7fff_0000u64..0x7fff_1000, 0x1000u64..0x2000];
        (address, 1..=MAX_BYTES, kind).prop_map(|(address, bytes, kind)| Reference { address, bytes, kind })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(references in proptest::collection::vec(reference(), 0..200)) {
            let mut events: Vec<Event> = references.iter().map(|&r| Event::Reference(r)).collect();
            events.push(Event::Instructions(7));
            prop_assert_eq!(read_back(&written(&events)).unwrap(), (references, 7, End::Whole));
        }

        #[test]
        fn garbage_neither_panics_nor_hangs(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = HEADER.to_vec();
            bytes.extend(tail);
            let _ = read_back(&bytes);
        }

        #[test]
        fn a_flipped_bit_neither_panics_nor_hangs(at in 16usize..400, bit in 0..8u8) {
            let walk = |n: u64| Event::Reference(Reference { address: n * 77, bytes: 8, kind: Kind::Read });
            let mut bytes = written(&(0..300).map(walk).collect::<Vec<_>>());
            let at = at % bytes.len();
            bytes[at] ^= 1u8 << bit;
            let _ = read_back(&bytes);
        }
    }

    #[test]
    fn a_trace_cut_off_is_read_up_to_its_last_whole_block() {
        let step = |n: u64| Event::Reference(Reference { address: n * 8, bytes: 8, kind: Kind::Write });
        let events: Vec<Event> = (0..u64::from(PER_BLOCK) + 10).map(step).collect();
        let whole = written(&events);
        assert!(whole.len() < 3 * events.len(), "{} bytes", whole.len());
        let (references, _, end) = read_back(&whole[..whole.len() - 25]).unwrap();
        assert_eq!((references.len(), end), (PER_BLOCK as usize, End::CutOff));
    }

    #[test]
    fn other_files_are_refused() {
        let refusal = read_back(b"#!/bin/sh\nexit 0\n").unwrap_err().to_string();
        assert!(refusal.contains("no trace of references"), "{refusal}");
        assert!(read_back(b"").is_err());
    }
}
