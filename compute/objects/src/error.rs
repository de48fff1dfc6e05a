//! What can go wrong.

/// Why a call of this library failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The nodes' memory: full, lost, refused.
    #[error(transparent)]
    Memory(#[from] farmem::Error),
    /// An index behind the end.
    #[error("index {index} of a FarVec of {len}")]
    Index {
        /// The index.
        index: usize,
        /// The elements.
        len: usize,
    },
    /// All of the heap's local memory is held by open scopes.
    #[error("open scopes hold all {0} local chunks: end a scope sooner, or give the heap more local memory")]
    ScopeFull(usize),
    /// The scope is of another heap.
    #[error("a scope of another heap holds nothing here: take one from the collection's own heap")]
    OtherHeap,
    /// Too little local memory was given.
    #[error("a heap of {0} bytes local is too small: give it at least {least} (64 chunks)", least = 64 * crate::CHUNK)]
    TooLittleLocal(usize),
}

/// A result of this library.
pub type Result<T> = std::result::Result<T, Error>;
