//! A string of which the bytes are far.

use crate::{Error, FarVec, Heap, Result};
use std::ops::Range;

/// A growable UTF-8 text in far memory.
#[derive(Debug)]
pub struct FarString {
    bytes: FarVec<u8>,
}

impl FarString {
    pub(crate) fn new(heap: Heap) -> FarString {
        FarString { bytes: FarVec::new(heap) }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends a text.
    ///
    /// # Errors
    /// As [`FarVec::push`]. The text is as it was then.
    pub fn push_str(&mut self, text: &str) -> Result<()> {
        let before = self.len();
        self.bytes.extend_from_slice(text.as_bytes()).inspect_err(|_| self.bytes.truncate(before))
    }

    /// Appends a character.
    ///
    /// # Errors
    /// As [`FarString::push_str`].
    pub fn push(&mut self, one: char) -> Result<()> {
        self.push_str(one.encode_utf8(&mut [0; 4]))
    }

    /// A copy of the bytes in a range, which begins and ends between characters.
    ///
    /// # Errors
    /// As [`FarVec::get`]; [`Error::Text`] where they are no text.
    pub fn get(&self, range: Range<usize>) -> Result<String> {
        String::from_utf8(self.bytes.get_range(range.clone())?).map_err(|e| {
            let at = range.start + e.utf8_error().valid_up_to();
            Error::Text { at }
        })
    }

    /// A copy of all.
    ///
    /// # Errors
    /// As [`FarString::get`].
    pub fn read(&self) -> Result<String> {
        self.get(0..self.len())
    }

    /// Cuts the text at a byte, which begins a character.
    ///
    /// # Errors
    /// As [`FarString::get`].
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len < self.len() {
            // 10xxxxxx continues a character.
            if self.bytes.read(len)? & 0xC0 == 0x80 {
                return Err(Error::Text { at: len });
            }
            self.bytes.truncate(len);
        }
        Ok(())
    }

    /// Drops all characters.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }
}
