//! Why a store cannot be opened, and what to do.

use crate::layout::MEMBERS;

/// Why a store cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// Something else is there, or another version of it.
    #[error("the region holds no store of this version of farmem: use the same farmem everywhere, or another name")]
    Foreign,
    /// Its region is being removed, or was.
    #[error(
        "it was removed by farmem region rm, and what it held is gone: if farmem region ls still shows it, remove it again"
    )]
    Removed,
    /// Another number of nodes, or of buckets.
    #[error(
        "the store is spread over another number of nodes, or kept in another number of copies: name the nodes that \
         it was made with, and --protect as then"
    )]
    Shape,
    /// Some of its nodes are not named.
    #[error("the store is there, but a node that is named has no part of it: name the nodes that it was made with")]
    Elsewhere,
    /// Two nodes each are to keep the same keys.
    #[error("--protect mirror keeps each key at two nodes: name an even number of nodes")]
    Odd,
    /// One of two nodes has no copy.
    #[error(
        "one of the two nodes that hold it does not have it, and the other does not know that it has ended: wait for it, \
         or, if it has ended for good, say so by `farmem kv alone`"
    )]
    Halved,
    /// A node is being filled.
    #[error("a node is being filled with the copies that an ended one had: try again in a moment")]
    Mending,
    /// A front end was told that a node has ended, and others have not said that they know.
    #[error(
        "a front end was told that one of its two nodes has ended, and waits for the others to say that they know: \
         wait, or, if no front end is left, say so by `farmem kv alone`"
    )]
    Leaving,
    /// Front ends go on with one of two nodes that are there.
    #[error(
        "its front ends have left one of its two nodes, as they were told that it had ended, and it is there: end \
         that node, then try again"
    )]
    Left,
    /// No memory for its root.
    #[error("the node has no memory left for the store's root: lend more")]
    Full,
    /// All lines are taken.
    #[error("{MEMBERS} front ends serve this store, which is the limit: stop one")]
    Crowded,
}
