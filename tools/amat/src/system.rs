//! Descriptions of far-memory systems, in TOML.
//!
//! The shipped descriptions are in `systems/`. `farmem amat --show NAME` prints one, as a pattern
//! for others. Every figure there names its source.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// A number of bytes, in TOML a number or text such as `"32K"`, `"1.375M"`, `"4G"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Text", into = "u64")]
pub struct Bytes(pub u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Number(u64),
    Text(String),
}

impl TryFrom<Text> for Bytes {
    type Error = String;
    fn try_from(text: Text) -> Result<Bytes, String> {
        match text {
            Text::Number(n) => Ok(Bytes(n)),
            Text::Text(text) => text.parse(),
        }
    }
}

impl From<Bytes> for u64 {
    fn from(bytes: Bytes) -> u64 {
        bytes.0
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Bytes, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "" => 0,
            "k" | "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(format!("'{text}': use K, M, G or T")),
        };
        let number: f64 = number.parse().map_err(|_| format!("'{text}' is not a size; write for example 32K"))?;
        match number * (1u64 << shift) as f64 {
            bytes if (1.0..(1u64 << 50) as f64).contains(&bytes) => Ok(Bytes(bytes as u64)),
            _ => Err(format!("'{text}': sizes go from 1 byte to 1024T")),
        }
    }
}

/// One level of the CPU's caches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// Its name in tables.
    pub name: String,
    /// Its size in bytes.
    pub size: Bytes,
    /// The number of lines in a set.
    pub ways: u32,
    /// The time of a hit in nanoseconds. A miss takes it too, before the next level's.
    pub ns: f64,
}

/// Local memory, as the cache of far memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// The time of a hit in nanoseconds.
    pub ns: f64,
    /// The unit of fetching and evicting: a power of two, 64 bytes to 2 MiB.
    pub block: Bytes,
    /// The number of blocks in a set. 0: there is one set, as in a pager.
    #[serde(default)]
    pub ways: u32,
}

/// The way to far memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// The time of a fetch that a thread waits for.
    pub ns: Latency,
    /// The cost of a block that was fetched ahead, in nanoseconds.
    #[serde(default)]
    pub prefetched_ns: f64,
    /// The bandwidth of the link in each direction. `None`: it has no limit.
    pub gbit_per_s: Option<f64>,
    /// Bytes on the wire for each fetch or write-back besides its data.
    #[serde(default)]
    pub header_bytes: f64,
}

/// The time of a fetch of one block, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Latency {
    /// The time is the same for blocks of any size.
    Any(f64),
    /// Pairs of a block's bytes and nanoseconds, by ascending size. Between them the time is
    /// linear.
    BySize(Vec<(u64, f64)>),
}

impl Latency {
    /// The time for a block of `bytes` bytes, in nanoseconds.
    pub fn of(&self, bytes: u64) -> f64 {
        match self {
            Latency::Any(ns) => *ns,
            Latency::BySize(table) => {
                let above = table.partition_point(|&(size, _)| size < bytes);
                match (above.checked_sub(1).map(|i| table[i]), table.get(above)) {
                    (None, Some(&(_, ns))) | (Some((_, ns)), None) => ns,
                    (Some((low, from)), Some(&(high, to))) => {
                        from + (to - from) * (bytes - low) as f64 / (high - low) as f64
                    }
                    (None, None) => 0.0,
                }
            }
        }
    }
}

/// The part of a dirty block that is sent when it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// The whole block.
    #[default]
    Block,
    /// The lines that were written. Of a block above 4 KiB, the 64ths of it that were written.
    Lines,
}

/// The cost of blocks that leave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteBack {
    /// The part that is sent.
    #[serde(default)]
    pub unit: Unit,
    /// The cost for the program when a dirty block leaves, in nanoseconds, besides the link.
    #[serde(default)]
    pub ns: f64,
}

/// A far-memory system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name in tables.
    pub name: String,
    /// A description in one sentence.
    pub about: String,
    /// The source of its figures.
    pub source: String,
    /// The levels of the CPU's caches, the first level first. If the text has none:
    /// [`default_cpu`].
    #[serde(default = "default_cpu")]
    pub cpu: Vec<Level>,
    /// The time of an instruction without its memory accesses, in nanoseconds. The load on the link
    /// follows from it.
    #[serde(default = "default_ns_per_instruction")]
    pub ns_per_instruction: f64,
    /// Local memory.
    pub local: Local,
    /// Blocks fetched ahead when blocks are fetched in order; 0: none.
    #[serde(default)]
    pub prefetch: u32,
    /// Far memory.
    pub remote: Remote,
    /// Eviction.
    #[serde(default)]
    pub write_back: WriteBack,
}

/// KCacheSim's latencies (`latency.py`), with caches of a current server core: its second level was
/// modelled as 64 KiB.
pub fn default_cpu() -> Vec<Level> {
    let level = |name: &str, size, ways, ns| Level { name: name.into(), size: Bytes(size), ways, ns };
    vec![level("L1", 32 << 10, 8, 2.0), level("L2", 1 << 20, 16, 9.0), level("L3", 8 << 20, 16, 26.0)]
}

fn default_ns_per_instruction() -> f64 {
    0.25
}

/// The systems that are shipped: file names and texts.
pub const SHIPPED: [(&str, &str); 9] = [
    ("kona", include_str!("../systems/kona.toml")),
    ("legoos", include_str!("../systems/legoos.toml")),
    ("remote-regions", include_str!("../systems/remote-regions.toml")),
    ("infiniswap", include_str!("../systems/infiniswap.toml")),
    ("zram", include_str!("../systems/zram.toml")),
    ("farmem-shm", include_str!("../systems/farmem-shm.toml")),
    ("farmem-tcp", include_str!("../systems/farmem-tcp.toml")),
    ("farmem-rdma", include_str!("../systems/farmem-rdma.toml")),
    ("farmem-rdma-card", include_str!("../systems/farmem-rdma-card.toml")),
];

impl System {
    /// A shipped system by its name, or the system that a file describes.
    ///
    /// # Errors
    /// There is none, or its description cannot be used.
    pub fn find(name: &str) -> Result<System> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return System::parse(text);
        }
        let text = std::fs::read_to_string(name);
        let is_absent = text.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let text = text.with_context(|| {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            match is_absent {
                true => format!("'{name}' is neither a file nor one of {}", names.join(", ")),
                false => name.to_owned(),
            }
        })?;
        System::parse(&text).with_context(|| name.to_owned())
    }

    /// Reads a description in TOML.
    ///
    /// # Errors
    /// The description cannot be used. The error says where it is wrong.
    pub fn parse(text: &str) -> Result<System> {
        let system: System = toml::from_str(text).map_err(|e| anyhow::anyhow!("{}", e.to_string().trim_end()))?;
        system.check().with_context(|| format!("system '{}'", system.name))?;
        Ok(system)
    }

    /// Refuses figures out of range.
    fn check(&self) -> Result<()> {
        let block = self.local.block.0;
        if !block.is_power_of_two() || !(64..=2 << 20).contains(&block) {
            bail!("local.block must be a power of two from 64 to 2M, not {block}");
        }
        if self.cpu.len() > 4 || self.cpu.iter().any(|level| level.size.0 > 1 << 32 || level.ways > 1024) {
            bail!("at most four levels of cache, of at most 4G and 1024 ways");
        }
        if self.local.ways > 1024 || self.prefetch > 1024 {
            bail!("local.ways and prefetch go up to 1024");
        }
        let mut figures = vec![self.ns_per_instruction, self.local.ns, self.remote.prefetched_ns];
        figures.extend([self.remote.header_bytes, self.write_back.ns, self.remote.gbit_per_s.unwrap_or(1.0)]);
        figures.extend(self.cpu.iter().map(|level| level.ns));
        match &self.remote.ns {
            Latency::Any(ns) => figures.push(*ns),
            Latency::BySize(table) => {
                if table.is_empty() || table.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
                    bail!("remote.ns by size must name sizes in ascending order");
                }
                figures.extend(table.iter().map(|(_, ns)| ns));
            }
        }
        if figures.iter().any(|figure| !figure.is_finite() || *figure < 0.0) || self.remote.gbit_per_s == Some(0.0) {
            bail!("times, rates and bytes must be numbers above zero");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_can_be_read_and_is_named_as_its_file() {
        for (name, text) in SHIPPED {
            assert_eq!(System::parse(text).unwrap().name, name);
            assert_eq!(System::find(name).unwrap().name, name);
        }
        let none = System::find("nowhere").unwrap_err().to_string();
        assert!(none.contains("neither a file nor one of kona"), "{none}");
        let directory = System::find(env!("CARGO_MANIFEST_DIR")).unwrap_err().to_string();
        assert_eq!(directory, env!("CARGO_MANIFEST_DIR"), "what is there is not said to be absent");
    }

    #[test]
    fn latencies_between_sizes_are_linear() {
        let table = Latency::BySize(vec![(64, 100.0), (128, 200.0)]);
        assert_eq!([1, 64, 96, 128, 4096].map(|bytes| table.of(bytes)), [100.0, 100.0, 150.0, 200.0, 200.0]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let good = SHIPPED[0].1;
        for (from, to, says) in [
            ("block = \"4K\"", "block = \"5K\"", "power of two"),
            ("block = \"4K\"", "block = \"4Q\"", "K, M, G or T"),
            ("block = \"4K\"", "block = \"4K\"\nblok = 1", "unknown field"),
            ("ways = 4", "ways = 4000", "1024"),
            ("ns = 130", "ns = -130", "above zero"),
            ("ns = 130", "ns = nan", "above zero"),
        ] {
            assert!(good.contains(from), "{from}");
            let refusal = format!("{:#}", System::parse(&good.replacen(from, to, 1)).unwrap_err());
            assert!(refusal.contains(says), "{to}: {refusal}");
        }
        assert!("1e9".parse::<Bytes>().is_err() && "0".parse::<Bytes>().is_err() && "".parse::<Bytes>().is_err());
        assert_eq!("1.5K".parse(), Ok(Bytes(1536)));
    }
}
