//! Text of bounded length in a control frame: names that a peer made up, and that operators read.
//!
//! A text holds no control character and none that moves other characters about on a terminal. One
//! that is made here is cleaned; a frame that holds another is refused. So a name can be printed as
//! it is.

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// A text of at most `N` bytes (`N` is at most 255). Needs no allocator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<const N: usize> {
    len: u8,
    bytes: [u8; N],
}

/// A text that may be printed beside others: `?` for every character that may not.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if is_plain(c) { c } else { '?' }).collect()
}

/// Whether a character is safe to print beside others.
pub fn is_plain(c: char) -> bool {
    // Marks and overrides of direction, and separators of lines.
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Text<N> = Text { len: 0, bytes: [0; N] };

    /// The text, cleaned: `?` for every character that may not stand in it, and cut where it is too
    /// long.
    pub fn new(text: &str) -> Text<N> {
        let mut made = Text::EMPTY;
        for c in text.chars().map(|c| if is_plain(c) { c } else { '?' }) {
            let at = made.len as usize;
            let Some(room) = made.bytes.get_mut(at..at + c.len_utf8()) else { break };
            c.encode_utf8(room);
            made.len += c.len_utf8() as u8;
        }
        made
    }

    /// The text as it is; `None` if it is too long, or holds a character that may not stand in it.
    pub fn exact(text: &str) -> Option<Text<N>> {
        (text.len() <= N && text.chars().all(is_plain)).then(|| Text::new(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.len as usize]).unwrap_or("")
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Text::EMPTY
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> Serialize for Text<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, const N: usize> Deserialize<'de> for Text<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reads<const N: usize>;

        impl<const N: usize> Visitor<'_> for Reads<N> {
            type Value = Text<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a plain text of {N} bytes at most")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<N>, E> {
                Text::exact(text).ok_or_else(|| E::custom("not a plain text, or too long"))
            }
        }
        deserializer.deserialize_str(Reads)
    }
}

/// The names of a member, as it gave them. The node shows them in its records and in
/// `farmem status`, and decides nothing by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Names {
    /// Its machine.
    pub host: Text<64>,
    /// Its user, by name, or by number.
    pub user: Text<32>,
    /// The program that it runs.
    pub program: Text<64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_moves_no_cursor_and_turns_no_line() {
        let text = Text::<32>::new("a\x1b[2J\nb\u{202e}c\u{85}d");
        assert_eq!(text.as_str(), "a?[2J?b?c?d");
        assert_eq!(Text::<4>::new("größer").as_str(), "grö");
        assert_eq!(Text::<3>::new("grö").as_str(), "gr");
        assert_eq!((Text::<4>::exact("a\tb"), Text::<4>::exact("abcde")), (None, None));
    }

    proptest! {
        #[test]
        fn what_is_made_can_be_read_back(text in ".*|\\PC*") {
            let made = Text::<16>::new(&text);
            prop_assert_eq!(Text::<16>::exact(made.as_str()), Some(made));
        }
    }
}
