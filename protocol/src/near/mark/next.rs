//! Words between the stack and their scan: the CPU is told of each when it comes here. Pure.

/// Objects of which the CPU is told before they are scanned: about as many lines as it has under
/// way at once.
pub const AHEAD: usize = 8;

/// Words that were taken from the stack and are not scanned yet, the oldest first.
#[derive(Default)]
pub struct Next {
    words: [u64; AHEAD],
    from: usize,
    len: usize,
}

impl Next {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The caller has seen that there is room.
    pub fn push(&mut self, word: u64) {
        self.words[(self.from + self.len) % AHEAD] = word;
        self.len += 1;
    }

    pub fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        let word = self.words[self.from];
        self.from = (self.from + 1) % AHEAD;
        Some(word)
    }
}
