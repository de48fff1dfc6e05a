//! What is resident in a process, by whose it is.
//!
//! farmem says how much memory its runtime takes (`runtime_bytes`); this is the
//! check from outside, by `smaps`: everything resident that is neither the
//! program's far memory, nor a node's memory that shm maps, nor there natively.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::Context;
use farmem_protocol::addr::is_far;
use serde::{Deserialize, Serialize};

/// Resident bytes of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Footprint {
    /// The array and the heap, and under farmem all else in the far range: the program's own memory.
    /// The heap is told natively too, because under farmem it is far: else a program with a larger
    /// heap would make the runtime look smaller.
    pub program: u64,
    /// A node's memory, mapped by the shm transport.
    pub lent: u64,
    /// Everything else: code, stacks, and a runtime if there is one. By mapping.
    pub rest: BTreeMap<String, u64>,
    /// Of `rest`: pages of files as they lie in the page cache, most of them code. How many of these are
    /// resident is the kernel's choice (it maps what is cached around a fault), not the program's.
    pub cached: u64,
}

impl Footprint {
    /// Of this process; `array` is where its array lies.
    pub fn read(array: Range<usize>) -> anyhow::Result<Footprint> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").context("reading smaps")?;
        Ok(Footprint::parse(&smaps, array))
    }

    /// Bytes of [`Footprint::rest`].
    pub fn rest_bytes(&self) -> u64 {
        self.rest.values().sum()
    }

    fn parse(smaps: &str, array: Range<usize>) -> Footprint {
        let mut footprint = Footprint::default();
        let mut mapping: Option<(usize, &str)> = None;
        let mut cached = 0;
        for line in smaps.lines() {
            if let Some(kib) = line.strip_prefix("Rss:") {
                let bytes = bytes(kib);
                match mapping {
                    Some((start, name)) if is_far(start) || array.contains(&start) || name == "[heap]" => {
                        footprint.program += bytes;
                    }
                    Some((_, name)) if name.starts_with("/memfd:farmem") => footprint.lent += bytes,
                    Some((_, name)) if bytes > 0 => {
                        *footprint.rest.entry(name.to_owned()).or_default() += bytes;
                        cached = if name.starts_with('/') { bytes } else { 0 };
                    }
                    _ => {}
                }
            } else if let Some(kib) = line.strip_prefix("Anonymous:") {
                // Comes after `Rss`: what a private mapping has changed is its own.
                footprint.cached += std::mem::take(&mut cached).saturating_sub(bytes(kib));
            } else if let Some(begun) = head(line) {
                mapping = Some(begun);
            }
        }
        footprint
    }
}

/// `     12 kB`: in bytes.
fn bytes(kib: &str) -> u64 {
    kib.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// `55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0    [heap]`: its first address and its name.
fn head(line: &str) -> Option<(usize, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, _) = words.next()?.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    Some((start, words.nth(4).unwrap_or("anonymous")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart() {
        let smaps = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                  12 kB
200000000000-200040000000 rw-p 00000000 00:00 0
Rss:              262144 kB
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Rss:                  64 kB
7f1000000000-7f1004000000 rw-s 00000000 00:01 9                          /memfd:farmem-slab (deleted)
Rss:               65536 kB
Anonymous:             0 kB
7f2000000000-7f2000020000 r-xp 00000000 fe:00 7                          /usr/lib/libc.so
Rss:                 100 kB
Anonymous:             8 kB
";
        let footprint = Footprint::parse(smaps, 0x7f00_0000_0000..0x7f00_0010_0000);
        assert_eq!(footprint.program, (12 + 262_144 + 64) << 10);
        assert_eq!(footprint.lent, 64 << 20);
        assert_eq!(footprint.rest_bytes(), 100 << 10);
        assert_eq!(footprint.cached, 92 << 10);
    }
}
