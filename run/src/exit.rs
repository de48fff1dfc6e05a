//! Exit statuses of `farmem run` that are not the program's own.
//!
//! A load instruction cannot return an error, so a run whose memory is lost
//! ends with one line on standard error and one of these.

/// Bad flags or sizes, an unusable program (static, setuid), or a kernel without what is needed. Of all
/// commands: an argument that names what is not there, such as a file, a region or a store.
pub const USAGE: i32 = 64;
/// The node was lost in mid-run and did not come back within the grace period.
pub const NODE_LOST: i32 = 70;
/// The node ran out of memory in mid-run and the program's pages had nowhere to go.
pub const FAR_EXHAUSTED: i32 = 71;
/// No node, or no controller, could be reached at start, or it refused, spoke another version, or was
/// none of farmem's.
pub const NODE_UNUSABLE: i32 = 72;
/// The runtime found its own state broken and stopped before touching the program's bytes.
pub const BROKEN: i32 = 73;
/// A page that came back from a node is not what was sealed: the node, or one on the way, has
/// changed it or kept an old one. Nothing of it has reached the program.
pub const ALTERED: i32 = 74;
