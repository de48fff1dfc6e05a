//! Sizes as people write them: `512M`, `1.5G`, `64k`, `2GiB`, `4096`, `25%`.
//!
//! Units are powers of 1024, as in `ulimit`, `docker` and `systemd`. A percentage
//! is of the machine's RAM (`MemTotal`), or of a memory group's limit where that
//! is less: how much far memory a program will use is not known before it has used it.

use std::fmt;
use std::str::FromStr;

use farmem_sys::group::{Groups, Limit};

use crate::units;

/// An amount of memory as given on the command line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// A number of bytes.
    Bytes(u64),
    /// A share of the machine's RAM, 0–1.
    OfRam(f64),
}

/// Why a text is not a size.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SizeError {
    /// No number at the front.
    #[error("not a size; write for example 512M, 1.5G or 25%")]
    NotANumber,
    /// The text after the number is no unit.
    #[error("unknown unit '{0}'; use k, M, G, T or %")]
    Unit(String),
    /// Zero, or less than one byte.
    #[error("must be more than zero")]
    Zero,
    /// Above what 63 bits hold, or above 100 %.
    #[error("too large: sizes end at 4194304T, shares at 100%")]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        // `parse` would also take "inf", "1e9" and signs, but the split leaves only digits and
        // points.
        let number: f64 = number.parse().map_err(|_| SizeError::NotANumber)?;
        let unit = unit.trim();
        if unit == "%" {
            return match number {
                n if n <= 0.0 => Err(SizeError::Zero),
                n if n > 100.0 => Err(SizeError::TooLarge),
                n => Ok(Size::OfRam(n / 100.0)),
            };
        }
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(SizeError::Unit(unit.to_owned())),
        };
        let bytes = number * (1u64 << shift) as f64;
        match bytes {
            b if b < 1.0 => Err(SizeError::Zero),
            b if b > (1u64 << 62) as f64 => Err(SizeError::TooLarge),
            b => Ok(Size::Bytes(b as u64)),
        }
    }
}

impl Size {
    /// The size in bytes on a machine with `ram` bytes.
    pub fn bytes(self, ram: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::OfRam(share) => (ram as f64 * share) as u64,
        }
    }
}

/// The memory that this process and what it starts can have, in bytes: the machine's, or less where
/// a memory group (cgroup) has a limit.
#[derive(Clone, Copy, Debug)]
pub struct Ram {
    /// All of it.
    pub total: u64,
    /// The part that can be had without swapping.
    pub available: u64,
    /// It is a group's limit.
    pub is_group: bool,
}

impl fmt::Display for Ram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.is_group { "this memory group's" } else { "this machine's" };
        write!(f, "{whose} {}", units::bytes(self.total))
    }
}

/// Reads it: `MemTotal`, `MemAvailable`, and the limits of memory groups.
pub fn ram() -> std::io::Result<Ram> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")
        .map_err(|e| std::io::Error::new(e.kind(), format!("cannot read /proc/meminfo: {e}; farmem needs /proc")))?;
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let (Some(total), Some(available)) = (field("MemTotal:"), field("MemAvailable:")) else {
        let reason = "/proc/meminfo lacks MemTotal or MemAvailable";
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, reason));
    };
    let machine = Ram { total, available, is_group: false };
    Ok(match Groups::own().and_then(|groups| groups.limit()) {
        Some(limit) => machine.within(limit),
        None => machine,
    })
}

impl Ram {
    fn within(self, limit: Limit) -> Ram {
        if limit.bytes >= self.total {
            return self;
        }
        Ram { total: limit.bytes, available: self.available.min(limit.left), is_group: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("1.5G", 3 << 29),
            ("64k", 64 << 10),
            ("2GiB", 2 << 30),
            ("2 gb", 2 << 30),
            (" 1t ", 1 << 40),
            ("4096", 4096),
            ("10b", 10),
            (".5k", 512),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("25%".parse::<Size>().unwrap().bytes(16 << 30), 4 << 30);
        assert_eq!("12.5 %".parse::<Size>().unwrap().bytes(16 << 30), 2 << 30);
    }

    #[test]
    fn what_is_no_size_is_refused_by_name() {
        for (text, why) in [
            ("", SizeError::NotANumber),
            ("-1G", SizeError::NotANumber),
            ("G", SizeError::NotANumber),
            ("1..5G", SizeError::NotANumber),
            ("inf", SizeError::NotANumber),
            ("0", SizeError::Zero),
            ("0.2", SizeError::Zero),
            ("0%", SizeError::Zero),
            ("101%", SizeError::TooLarge),
            ("99999999T", SizeError::TooLarge),
            ("1e9", SizeError::Unit("e9".into())),
            ("1Q", SizeError::Unit("Q".into())),
        ] {
            assert_eq!(text.parse::<Size>(), Err(why), "{text}");
        }
    }

    #[test]
    fn a_groups_limit_is_what_there_is() {
        let machine = Ram { total: 24 << 30, available: 20 << 30, is_group: false };
        let group = machine.within(Limit { bytes: 170 << 20, left: 150 << 20 });
        assert_eq!((group.total, group.available), (170 << 20, 150 << 20));
        assert_eq!(group.to_string(), "this memory group's 170 MiB");
        let wide = machine.within(Limit { bytes: 32 << 30, left: 31 << 30 });
        assert_eq!((wide.available, wide.to_string()), (20 << 30, "this machine's 24.0 GiB".into()));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC*") {
            let _ = text.parse::<Size>();
        }

        #[test]
        fn nearly_sizes_neither_panic_nor_become_zero(text in "[0-9.]{0,24} ?[kMGTPibB%]{0,4}") {
            if let Ok(Size::Bytes(bytes)) = text.parse() {
                prop_assert!(bytes > 0);
            }
        }

        #[test]
        fn whole_numbers_of_a_unit_are_exact(n in 1u64..4096) {
            prop_assert_eq!(format!("{n}M").parse(), Ok(Size::Bytes(n << 20)));
        }
    }
}
