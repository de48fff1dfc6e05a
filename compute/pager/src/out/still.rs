//! Still: the program has one thread, and that is here, in the pager. Then nothing can be written to a page that leaves, and it is read
//! as it is: neither held nor protected ([`crate::out::settle`]).
//!
//! *Why one look is enough.* The kernel is asked how many threads there are, once a batch. If the asker is the only one, none can come
//! to be before it has left the pager, for who should make it? One that is just ending counts until it has given its memory up.
//! What shares the memory and is no thread of the process is counted by nobody, and noted when it is made
//! ([`any_companion`]); a vfork child stands in for its parent, which waits for it. Signals are blocked, or kept to the fault's
//! end, so that no handler of the program's runs in between. What the kernel writes for the program, it writes into pinned pages.
//! (Another process that writes by `process_vm_writev` to a page on its way out writes in vain either way: `docs/design/limits.md`.)

use super::Out;
use crate::out::batch::Evictor;
use farmem_run::Faults;
use farmem_sys::members::any_companion;

impl Out {
    /// Whether nothing of the program's runs before the calling thread, which is one of its, has left the pager.
    ///
    /// Not where a handler thread serves faults: who has its page goes on, while more is done for it.
    pub(crate) fn is_still(&self, evictor: &Evictor) -> bool {
        self.base.spec.faults == Faults::Inline && !any_companion() && evictor.tasks.others() == Some(0)
    }
}
