//! A program's accesses to memory, one reference at a time.

/// How a reference uses its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// A load and a store of the same bytes by one instruction. Counts as a read, as cachegrind has
    /// it, and leaves its line dirty.
    Modify,
}

impl Kind {
    /// Whether it counts among the writes.
    pub fn is_write(self) -> bool {
        self == Kind::Write
    }

    /// Whether it leaves its line dirty.
    pub fn dirties(self) -> bool {
        self != Kind::Read
    }
}

/// One load or store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Of its first byte.
    pub address: u64,
    /// Bytes, 1 to [`MAX_BYTES`].
    pub bytes: u16,
    /// How.
    pub kind: Kind,
}

/// The longest reference. The state that one instruction saves of a CPU (XSAVE) is shorter.
pub const MAX_BYTES: u16 = 16 * 1024;

/// An event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A load or store.
    Reference(Reference),
    /// This many instructions were carried out since the last such event.
    Instructions(u64),
}

/// A consumer of a trace's events, in order.
pub trait Sink {
    /// The next one.
    fn take(&mut self, event: Event);

    /// Called now and then while a program is recorded, also when it does nothing.
    ///
    /// # Errors
    /// The sink takes no more, so that there is no point in going on.
    fn check(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<F: FnMut(Event)> Sink for F {
    fn take(&mut self, event: Event) {
        self(event)
    }
}
