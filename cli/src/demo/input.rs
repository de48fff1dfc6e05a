//! The text to sort: lines in no order, the same on every machine.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes about `bytes` of lines: a random key, then words that depend on it.
pub fn write(path: &Path, bytes: u64) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    // xorshift64*: small, and the same everywhere (Vigna, "An experimental exploration of Marsaglia's xorshift generators").
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut written = 0;
    while written < bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let line = format!("{random:016x} order {} of customer {}\n", random % 9_999_991, random >> 44);
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    out.flush()
}
