//! Pins of calls that never return: a signal's handler jumps out of them, or their thread is
//! cancelled in them. Their pages would stay local for good.
//!
//! A call notes its pins on the thread's record right before it is made, with the memory of its own
//! frames: from the guard's up to the program's stack pointer. That tells reliably that another
//! call is gone, because *memory is used by one frame at a time.* If a call's frames lie where
//! those of a noted call lay, the noted call has ended. This holds for every kind of stack: the
//! alternate one, those of coroutines (also one that a handler has switched to), a vfork child on
//! its parent's stack, and threads of raw clones that share a record. A call that is still under
//! way, interrupted by the handler that makes this one, has its frames elsewhere. A thread that
//! waits in a loop and is jumped out of comes back to the same place, or near it: frames are one to
//! two KiB.
//!
//! When a thread ends, the pins of calls on its own stack are released, as far as that stack is
//! known. For threads of `pthread_create` it is known by the size asked for, from the thread
//! pointer down, as glibc lays it out.
//!
//! (Coroutines that copy their stacks away to run others at the same addresses would have to do so
//! in a handler that interrupted a call. That call, when it went on, might find its pages gone:
//! EFAULT, as from the kernel.)
//!
//! Rejected: comparing stack pointers. The lower of two is gone only if both are on one stack, and
//! nothing tells a stack's bounds.
//!
//! Pins are taken back once: by the call itself at its return, or by a later one that finds it gone
//! ([`crate::threads::notes`]). A page that was unmapped meanwhile has lost its pins, and a new
//! page at its address may have pins of others: those are left alone
//! ([`farmem_pager::Pins::unpin_since`]).
//!
//! *A child* has no pins: a forked one forgets what is noted, so that a call that a handler forked
//! in takes none back that the child has made since. A vfork child shares record, memory and pins.
//!
//! *Windows* in which a jump leaves pins behind for good: from the first pin to the note, and from
//! the CAS at the return to the last one taken back, some hundred nanoseconds each where pages are
//! local; in the midst of a note, its place too, of [`PLACES`](crate::threads::notes). Left behind
//! for good, too: pins of calls that come back to no place near, of threads that end and whose
//! stack is not known ([`Held::end`](crate::threads::notes::Held::end)) and no other's, ranges
//! beyond [`RANGES`](crate::threads::notes), and all where a thread has more calls under way, or
//! left, than places. Then it is as it was: slower, not wrong.

use super::pins::Pins;
use crate::call::Call;
use crate::near_stack;
use crate::threads::notes::unpin_left;
use crate::threads::{self, Record};

/// More than the runtime uses of a stack before a call: a longer span is none of its frames.
const FRAMES: usize = 64 << 10;

/// The memory of a call's frames: all of it is used by nothing else until the call returns. `at`:
/// the guard's own.
fn frames(record: &Record, (at, len): (usize, usize), sp: usize) -> (usize, usize) {
    // On a near stack in a far one's place: that is used from where it was left.
    let low = near_stack::program_of(at).unwrap_or(at);
    // A trapped call's frames are on the near alternate stack. The memory between that and the
    // program's stack can be anything.
    if record.is_alternate(at) || sp <= low || sp - low > FRAMES { (at, at + len) } else { (low, sp) }
}

impl Pins<'_> {
    /// Notes the pins, and where the thread's stack is. The call is made next.
    pub fn note(&mut self, call: &Call) {
        if self.n == 0 {
            return;
        }
        let record = threads::current();
        let own = (std::ptr::from_mut(self).expose_provenance(), size_of::<Self>());
        let frames = frames(record, own, call.sp);
        self.note = record.notes.add(frames, self.losses, &self.few[..self.n], unpin_left);
    }
}
