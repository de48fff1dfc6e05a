//! Functions of the program's own, near memory.

use super::{Near, Reply};
use crate::{Addr, Error, Result};
use farmem_protocol::near::wasm::{Engine, Wasm};
use farmem_protocol::near::{Call, Function};

impl Near<'_> {
    /// Runs a WebAssembly module on the bytes of a range within one piece: at its node if that
    /// computes modules, else here. Returns the word that the module returned, and its result of
    /// `room` bytes. `farmem_protocol::near::wasm` says what a module is, and its bounds.
    ///
    /// Module, range and result have 256 KiB together at most, the module 8 KiB. Needs the feature
    /// `wasm`, here and in the node.
    ///
    /// # Errors
    /// As [`crate::Lane::read`]; [`Error::Size`] where the parts have too many bytes;
    /// [`Error::Module`] where the module is none, or did not run to its end.
    pub fn wasm(&mut self, module: &[u8], range: (Addr, u64), room: u32, argument: u64) -> Result<(u64, Vec<u8>)> {
        let (at, len) = range;
        let code = u32::try_from(module.len()).map_err(|_| Error::Size(module.len() as u64))?;
        // A result of no bytes would be no range.
        let wasm = Wasm { code, room: room.max(8), argument };
        let source = self.range(at, len)?;
        let mut result = vec![0; wasm.room as usize];
        let ran = match self.wasm_there(module, (source, at.node()), wasm, &mut result)? {
            Some(word) => (word, result),
            None => {
                let mut bytes = vec![0; len as usize];
                self.lane.read(at, &mut bytes)?;
                Engine::default().compute(module, &bytes, wasm, || false).map_err(Error::Module)?
            }
        };
        let (word, mut result) = ran;
        result.truncate(room as usize);
        Ok((word, result))
    }

    /// [`Near::wasm`] by the node: the module goes there, and the result comes back, in one round
    /// trip. `None`: the node does not do it.
    fn wasm_there(
        &mut self,
        module: &[u8],
        (source, node): (super::Range, usize),
        wasm: Wasm,
        result: &mut [u8],
    ) -> Result<Option<u64>> {
        let list = super::Range { key: source.key, at: 0, len: wasm.work() };
        let call = Call { source, list, function: Function::Wasm(wasm) };
        call.check().map_err(|_| Error::Size(source.len + wasm.work()))?;
        if !self.is_computed(node) || self.lane.memory().inner.region.is_some() {
            return Ok(None);
        }
        let Some(scratch) = self.scratch(node)? else { return Ok(None) };
        let call = Call { list: self.range(scratch, wasm.work())?, ..call };
        let done = self.around(call, (scratch, module), (scratch + wasm.result_at(), result));
        self.lane.memory().inner.keep_scratch(node, scratch);
        Ok(match done? {
            Some(Reply::Ran(word)) => Some(word),
            _ => None,
        })
    }
}
