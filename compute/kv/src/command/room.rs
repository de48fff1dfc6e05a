//! The bytes that one command's reply may have, where few bytes of a request can ask for many: they
//! name a key, a field or a member again and again.

use super::Fail;
use crate::resp::Reply;

/// Bytes of a reply: as many as the longest string has.
const MOST: usize = 512 << 20;

/// The bytes that are left for a reply.
pub struct Room(usize);

impl Default for Room {
    fn default() -> Room {
        Room(MOST)
    }
}

impl Room {
    /// Takes the room of an item that has this many bytes.
    ///
    /// # Errors
    /// There is none left.
    pub fn take(&mut self, bytes: usize) -> Result<(), Fail> {
        let left = self.0.checked_sub(bytes.saturating_add(size_of::<Reply>()));
        self.0 = left.ok_or_else(|| {
            Fail::new(format!("the reply would be longer than {} MiB: ask for less at once", MOST >> 20))
        })?;
        Ok(())
    }

    /// Looks whether so many items would fit, however small they are.
    ///
    /// # Errors
    /// They would not.
    pub fn fits(&self, items: u64) -> Result<(), Fail> {
        let left = Room(self.0).take(usize::try_from(items).unwrap_or(usize::MAX).saturating_mul(size_of::<Reply>()));
        left.map(|_| ())
    }

    /// Takes room for a reply that is there.
    ///
    /// # Errors
    /// There is none left.
    pub fn hold(&mut self, reply: &Reply) -> Result<(), Fail> {
        self.take(held(reply))
    }
}

/// Bytes of a reply, about.
fn held(reply: &Reply) -> usize {
    let all = |items: &[Reply]| items.iter().map(|item| held(item) + size_of::<Reply>()).sum();
    match reply {
        Reply::Bulk(bytes) => bytes.len(),
        Reply::Line(text) | Reply::Error(text) | Reply::Text(text) => text.len(),
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Several(items) => all(items),
        Reply::Map(pairs) => pairs.iter().map(|(key, value)| held(key) + held(value) + 2 * size_of::<Reply>()).sum(),
        _ => 0,
    }
}

#[test]
fn a_reply_has_an_end() {
    let mut room = Room::default();
    let reply = Reply::Array(vec![Reply::Map(vec![(Reply::bulk("key"), Reply::bulk(vec![0; 1 << 20]))])]);
    let count = std::iter::from_fn(|| room.hold(&reply).ok()).count();
    assert!((500..512).contains(&count), "{count}");
    assert!(room.take(usize::MAX).is_err() && room.take(0).is_ok());
}
