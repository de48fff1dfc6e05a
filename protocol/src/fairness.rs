//! How much of a bounded table one peer may take, so that the others are left some of it.

/// A peer may have one part in `LITTLE` of a table while anything is left.
const LITTLE: usize = 64;

/// Whether a peer may have `has` entries of a table of `most`, when `left` are left beside all that
/// are taken, these included.
pub fn is_fair(has: usize, left: usize, most: usize) -> bool {
    has <= left.max(most / LITTLE).max(1)
}
