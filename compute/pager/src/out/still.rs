//! Still: the program has one thread, and that thread is here, in the pager. Then nothing can be
//! written to a page that leaves. It is read as it is, neither held nor protected
//! ([`super::settle`]).
//!
//! *Why one look is enough.* The kernel is asked once a batch how many threads there are. If the
//! caller is the only one, no other can come to be before it has left the pager. A thread that is
//! just ending counts until it has given its memory up.
//!
//! A process that shares the memory without being a thread is not counted. It is noted when it is
//! made ([`any_companion`]). A vfork child stands in for its parent, which waits for it. Signals
//! are blocked, or kept to the fault's end, so no handler of the program runs in between. The
//! kernel writes for the program only into pinned pages. (Another process that writes by
//! `process_vm_writev` to a page on its way out writes in vain either way:
//! `docs/design/limits-processes.md`.)

use super::Out;
use crate::out::batch::Evictor;
use farmem_run::Faults;
use farmem_sys::members::any_companion;

impl Out {
    /// Whether nothing of the program runs before the calling thread, one of the program's, has
    /// left the pager. A thread of the runtime's must not ask: if the program has one thread, that
    /// one runs beside it, and would not be counted ([`Out::evict_beside`]).
    ///
    /// Never where a handler thread serves faults: the program's thread goes on as soon as it has
    /// its page, while the handler does more.
    pub(crate) fn is_still(&self, evictor: &Evictor) -> bool {
        self.base.spec.faults == Faults::Inline && !any_companion() && evictor.tasks.others() == Some(0)
    }
}
