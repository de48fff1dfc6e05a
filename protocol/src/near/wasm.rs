//! WASM: a function of the caller's own, as a WebAssembly module, on a range of its memory.
//!
//! ```text
//! list:  | module | zeros to a multiple of 8 | result |
//! the module's memory:  | its own | source | result |        run(source, len, result, room, argument)
//! ```
//!
//! The module exports a memory `memory` and a function `run` of four `i32` and an `i64`: where the
//! source's bytes are in its memory and how many they are, where the result is to be and how many
//! bytes it has, and the argument. It returns an `i64`. It imports nothing. So it can do nothing but
//! compute on copies, and the node carries out no code that a client compiled: [`Engine`] interprets.
//!
//! A build without the feature `wasm` runs no module: its [`Engine`] refuses each. A node that
//! refuses leaves the work to the host, which needs the feature then.

/// The most bytes of a module. A worker translates it before it looks at the clock.
pub const MAX_CODE: u32 = 8 << 10;
/// The most bytes that a module has of its own in its memory.
pub const MAX_OWN: usize = 1 << 20;
/// The most fuel of a call: about as many instructions. A node's deadline comes earlier.
pub const MAX_FUEL: u64 = 32 << 20;

/// The parameters of a WASM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wasm {
    /// Bytes of the module.
    pub code: u32,
    /// Bytes of the result.
    pub room: u32,
    /// The function's argument beside the source.
    pub argument: u64,
}

impl Wasm {
    /// Where in the list the result begins.
    pub fn result_at(self) -> u64 {
        u64::from(self.code).next_multiple_of(8)
    }

    /// Bytes of the list.
    pub fn work(self) -> u64 {
        self.result_at() + u64::from(self.room)
    }

    pub(super) fn is_sound(self, source: u64) -> bool {
        (8..=MAX_CODE).contains(&self.code)
            && source > 0
            && source.checked_add(self.work()).is_some_and(|all| all <= super::MAX_BYTES)
    }
}

#[cfg(feature = "wasm")]
mod interpreted;
#[cfg(feature = "wasm")]
pub use interpreted::Engine;

/// Runs modules: not in this build.
#[cfg(not(feature = "wasm"))]
#[derive(Default, Debug)]
pub struct Engine {}

#[cfg(not(feature = "wasm"))]
impl Engine {
    /// Refuses.
    pub fn run(&self, _: &super::Call, _: Wasm, _: &mut impl super::Bytes) -> Option<super::Reply> {
        None
    }

    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub fn compute(&self, _: &[u8], _: &[u8], _: Wasm, _: impl FnMut() -> bool) -> Result<(u64, Vec<u8>), String> {
        Err("this program was built without the feature wasm".into())
    }
}
