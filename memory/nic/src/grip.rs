//! The result of admission: memory, a place in it, and the right by which it is touched.

use super::lending::Slab;
use super::units::{Arena, WordRight};
use farmem_sys::mapping::Mapping;
use std::sync::Arc;

/// Memory of a node.
#[derive(Clone, Debug)]
pub enum Memory {
    /// One slab: it stays as long as this refers to it.
    Slab(Arc<Slab>),
    /// The memory that is owned unit by unit.
    Units(Arc<Arena>),
}

impl Memory {
    /// Its bytes.
    #[inline]
    pub fn mapping(&self) -> &Mapping {
        match self {
            Memory::Slab(slab) => &slab.mapping,
            Memory::Units(arena) => arena.mapping(),
        }
    }
}

/// By what memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// A slab, held by reference: it cannot be anybody else's meanwhile.
    Held,
    /// A word of the table.
    Word(WordRight),
    /// A window, and the word that it was carved from.
    Window {
        /// Which.
        index: u32,
        /// Its binding.
        generation: u32,
        /// The extent that it was carved from, if any.
        under: Option<WordRight>,
    },
}

/// Memory that a verb may touch.
#[derive(Clone, Debug)]
pub struct Grip {
    /// Which.
    pub memory: Memory,
    /// Where in it. The length was checked.
    pub offset: u64,
    /// By what right.
    pub right: Right,
}
