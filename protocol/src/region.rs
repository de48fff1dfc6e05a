//! Names of regions: memory of a node that outlives the members that use it.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Regions of one node, at most. Each takes one of the owner ids that members leave over.
pub const MAX_REGIONS: usize = 256;
/// Characters of a region's name, at most.
pub const MAX_NAME: usize = 16;

/// The name of a region: 1 to 16 characters, letters, digits, `.`, `_` and `-`. On the wire it is
/// filled up with zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionName([u8; MAX_NAME]);

/// A text that is not a valid name of a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no name for a region: 1 to {MAX_NAME} letters, digits, '.', '_' and '-'")]
pub struct BadName(pub String);

impl RegionName {
    /// From the bytes of a frame. `None`: they are no name.
    pub fn from_wire(bytes: [u8; MAX_NAME]) -> Option<RegionName> {
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(MAX_NAME);
        let (name, rest) = bytes.split_at(len);
        let is_name = len > 0 && name.iter().all(|&byte| is_allowed(byte)) && rest.iter().all(|&byte| byte == 0);
        is_name.then_some(RegionName(bytes))
    }

    /// As a frame has it.
    pub const fn to_wire(self) -> [u8; MAX_NAME] {
        self.0
    }

    /// The characters.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(MAX_NAME);
        // They are ASCII.
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }
}

impl Serialize for RegionName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RegionName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RegionName, D::Error> {
        let bytes = <[u8; MAX_NAME]>::deserialize(deserializer)?;
        RegionName::from_wire(bytes).ok_or_else(|| D::Error::custom("no name for a region"))
    }
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

impl FromStr for RegionName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<RegionName, BadName> {
        let mut bytes = [0; MAX_NAME];
        let room = bytes.get_mut(..text.len()).ok_or_else(|| BadName(text.to_owned()))?;
        room.copy_from_slice(text.as_bytes());
        let name = RegionName::from_wire(bytes).filter(|name| name.as_str() == text);
        name.ok_or_else(|| BadName(text.to_owned()))
    }
}

impl fmt::Display for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RegionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_comes_back_as_it_was_sent() {
        for text in ["a", "sessions", "A-1_b.c", "sixteen-letters."] {
            let name: RegionName = text.parse().unwrap();
            assert_eq!((name.as_str(), RegionName::from_wire(name.to_wire())), (text, Some(name)));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "seventeen-letters", "a b", "ä", "a/b", "a\0"] {
            assert_eq!(text.parse::<RegionName>(), Err(BadName(text.to_owned())));
        }
        let mut hole = [0; MAX_NAME];
        (hole[0], hole[2]) = (b'a', b'b');
        assert_eq!(RegionName::from_wire(hole), None);
    }
}
