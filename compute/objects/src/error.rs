//! Errors of operations on collections.

/// Why a call of this library failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The nodes' memory: full, lost, refused.
    #[error(transparent)]
    Memory(#[from] farmem::Error),
    /// An index behind the end.
    #[error("index {index} of {len} elements")]
    Index {
        /// The index.
        index: usize,
        /// The elements.
        len: usize,
    },
    /// A field does not lie within an element.
    #[error("a field at byte {at} does not lie within elements of {size} bytes")]
    Field {
        /// Where it was said to be.
        at: usize,
        /// Bytes of an element.
        size: usize,
    },
    /// A frame or table has no such column.
    #[error("there is no column {name:?}: there are {has}")]
    NoColumn {
        /// The name.
        name: String,
        /// Those that there are.
        has: String,
    },
    /// A column is not fit for an operation.
    #[error("column {name:?} {why}")]
    Column {
        /// Its name.
        name: String,
        /// Why not.
        why: String,
    },
    /// Bytes that are no text, or a place within a character.
    #[error("no character begins at byte {at}")]
    Text {
        /// Where.
        at: usize,
    },
    /// All of the heap's local memory is held by open scopes.
    #[error("open scopes hold all of {0} local bytes: end a scope sooner, or give the heap more local memory")]
    ScopeFull(usize),
    /// A thread's heaps have as much as they can name: 512 GiB.
    #[error("the heaps of a thread hold 512 GiB at most: use another thread's")]
    HeapFull,
    /// The system refused a range of addresses.
    #[error("the system refused {gib} GiB of addresses for frames (error {0}): raise ulimit -v, or allow overcommit", gib = crate::class::ARENA >> 30)]
    NoAddresses(i32),
    /// As many threads use a shared heap as can.
    #[error("{0} threads use this heap, which is as many as can: drop a seat first")]
    NoSeat(usize),
    /// The scope is of another heap.
    #[error("a scope of another heap holds nothing here: take one from the collection's own heap")]
    OtherHeap,
    /// The program does not run under `farmem run`, or not on far memory.
    #[error("this program does not run on far memory: start it by farmem run, or name a node by Heap::builder()")]
    NoRun,
    /// Other heaps have the run's share.
    #[error("other heaps of this process hold the half of --local that objects can have: drop one, or raise --local")]
    ShareFull,
    /// A text that is no size.
    #[error("{0:?} is not a size: write digits, and K, M, G or T behind them")]
    NotASize(String),
    /// Too little local memory was given.
    #[error("a heap of {0} bytes local is too small: give it at least {least} (64 chunks)", least = 64 * crate::CHUNK)]
    TooLittleLocal(usize),
}

impl Error {
    pub(crate) fn column(name: &str, why: impl Into<String>) -> Error {
        Error::Column { name: name.to_owned(), why: why.into() }
    }

    pub(crate) fn no_column<'a>(name: &str, has: impl Iterator<Item = &'a str>) -> Error {
        let has: Vec<&str> = has.collect();
        Error::NoColumn { name: name.to_owned(), has: if has.is_empty() { "none".into() } else { has.join(", ") } }
    }
}

/// A result of this library.
pub type Result<T> = std::result::Result<T, Error>;
