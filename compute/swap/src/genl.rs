//! Messages of generic netlink, made and taken apart. Pure.
//!
//! ```text
//!   0     4      6       8     12    16    17    18     20
//!  | len | type | flags | seq | pid | cmd | ver | 0    | attributes: len, type, payload, padded to 4 … |
//! ```
//! Numbers are in the machine's order. An attribute's payload may be attributes.

/// The controller of families, which is one itself.
pub const CONTROLLER: u16 = 16;
/// [`CONTROLLER`]'s command: tell of a family.
pub const GET_FAMILY: u8 = 3;
/// [`CONTROLLER`]'s attributes: a family's number, its name, its multicast groups.
pub const FAMILY_ID: u16 = 1;
/// See [`FAMILY_ID`].
pub const FAMILY_NAME: u16 = 2;
/// See [`FAMILY_ID`].
pub const FAMILY_GROUPS: u16 = 7;
/// A multicast group's number, beside its name (attribute 1).
pub const GROUP_ID: u16 = 2;

const REQUEST_AND_ACKNOWLEDGE: u16 = 1 | 4;
const ERROR: u16 = 2;
const NESTED: u16 = 1 << 15;
const TYPE_MASK: u16 = !(3 << 14);
const HEADS: usize = 20;

/// A message in the making.
#[derive(Clone, Debug)]
pub struct Message(Vec<u8>);

impl Message {
    /// To a family.
    pub fn new(family: u16, command: u8) -> Message {
        let mut bytes = vec![0; HEADS];
        bytes[4..6].copy_from_slice(&family.to_ne_bytes());
        bytes[6..8].copy_from_slice(&REQUEST_AND_ACKNOWLEDGE.to_ne_bytes());
        bytes[16] = command;
        bytes[17] = 1;
        Message(bytes)
    }

    /// With one more attribute.
    pub fn with(mut self, kind: u16, payload: &[u8]) -> Message {
        attribute(&mut self.0, kind, payload);
        self
    }

    /// With one more attribute of a number.
    pub fn with_u32(self, kind: u16, value: u32) -> Message {
        self.with(kind, &value.to_ne_bytes())
    }

    /// With one more attribute of a number.
    pub fn with_u64(self, kind: u16, value: u64) -> Message {
        self.with(kind, &value.to_ne_bytes())
    }

    /// With one more attribute, whose payload is an attribute, whose payload is one.
    pub fn with_nested(self, kind: u16, item: u16, inner: u16, payload: &[u8]) -> Message {
        let (mut innermost, mut middle) = (Vec::new(), Vec::new());
        attribute(&mut innermost, inner, payload);
        attribute(&mut middle, item | NESTED, &innermost);
        self.with(kind | NESTED, &middle)
    }

    /// Its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

fn attribute(into: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    into.extend_from_slice(&(payload.len() as u16 + 4).to_ne_bytes());
    into.extend_from_slice(&kind.to_ne_bytes());
    into.extend_from_slice(payload);
    into.resize(into.len().next_multiple_of(4), 0);
}

/// One message of the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// The end of a request: 0, or an error number.
    Ended(i32),
    /// A command of a family, and its attributes.
    Told(u16, u8, Attributes<'a>),
}

/// Attributes, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Those of a payload.
    pub fn of(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(bytes)
    }

    /// The payload of the first of a kind.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.into_iter().find(|(k, _)| *k == kind).map(|(_, payload)| payload)
    }

    /// It as a number.
    pub fn number(self, kind: u16) -> Option<u32> {
        let payload = self.get(kind)?;
        match payload.len() {
            1 => Some(payload[0] as u32),
            2 => Some(u16::from_ne_bytes(payload.try_into().ok()?) as u32),
            4 => Some(u32::from_ne_bytes(payload.try_into().ok()?)),
            _ => None,
        }
    }

    /// It as a text.
    pub fn text(self, kind: u16) -> Option<&'a str> {
        let payload = self.get(kind)?;
        std::str::from_utf8(payload.strip_suffix(&[0]).unwrap_or(payload)).ok()
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let (len, kind) = (number(self.0, 0)? as usize, number(self.0, 2)? & TYPE_MASK);
        let payload = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, payload))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The messages of one datagram. A message that is cut off is left out.
pub fn messages(mut bytes: &[u8]) -> Vec<Said<'_>> {
    let mut said = Vec::new();
    while let Some(len) = bytes.get(..4).and_then(|len| Some(u32::from_ne_bytes(len.try_into().ok()?) as usize)) {
        let Some(message) = bytes.get(..len).filter(|message| message.len() >= HEADS) else { break };
        match number(message, 4) {
            Some(ERROR) => said.push(Said::Ended(-i32::from_ne_bytes(message[16..20].try_into().unwrap_or([0; 4])))),
            Some(family) => said.push(Said::Told(family, message[16], Attributes(&message[HEADS..]))),
            None => break,
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_read_back() {
        let bytes = Message::new(30, 1)
            .with_u32(1, 7)
            .with(2, b"nbd\0")
            .with_u64(3, 9)
            .with_nested(7, 1, 1, &5u32.to_ne_bytes())
            .finish();
        assert_eq!(bytes.len() % 4, 0);
        let said = messages(&bytes);
        let [Said::Told(30, 1, all)] = said[..] else { panic!("{said:?}") };
        assert_eq!((all.number(1), all.text(2), all.number(3)), (Some(7), Some("nbd"), None));
        let item = Attributes::of(all.get(7).unwrap()).get(1).unwrap();
        assert_eq!(Attributes::of(item).number(1), Some(5));
    }

    proptest! {
        #[test]
        fn no_datagram_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), len in 0..64u32) {
            let mut bytes = bytes;
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&len.to_ne_bytes());
            }
            for said in messages(&bytes) {
                if let Said::Told(_, _, all) = said {
                    let _ = (all.number(1), all.text(2), all.count());
                }
            }
        }
    }
}
