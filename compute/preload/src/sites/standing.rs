//! Where libc stands, by where the runtime does that makes a call for it.

use super::text::{COMPARE32, COMPARE64, Kind, SYSCALL};
use crate::call::Call;
use crate::gate::GATE;
use crate::threads::{self, Record};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

unsafe extern "C" {
    fn farmem_site();
    // Of [`super::entry`]; places, never called: where it begins, the call itself, the slow way,
    // behind its work, and the slow way's last instruction.
    fn farmem_site_call();
    fn farmem_site_slow();
    fn farmem_site_served();
    fn farmem_site_left();
}

/// The part of a call that the slow way keeps in its frame, for [`Record::site`] to name. The
/// assembly knows its layout.
#[repr(C)]
pub(super) struct Kept {
    /// Its `sp` is where the caller's rbp is, and above it what the stub's call is to return to.
    pub call: Call,
    /// rbx, r12, r13, r14, r15 of libc's code, for unwinders.
    registers: [usize; 5],
    /// The record that names this; 0: none does.
    record: usize,
}
const _: () = assert!(std::mem::offset_of!(Kept, registers) == 0x40 && std::mem::offset_of!(Kept, record) == 0x68);

/// A stub whose call has a place in libc, for signals that come in it.
pub(super) struct Stub {
    pub at: usize,
    /// Its call of [`farmem_site`], and behind that.
    pub call: usize,
    pub called: usize,
    pub end: usize,
    pub place: usize,
    pub kind: Kind,
}

/// By address; set once libc is patched.
pub(super) static STUBS: OnceLock<Vec<Stub>> = OnceLock::new();

/// Room that a stub leaves to the caller's red zone.
const SKIPPED: usize = 128;
/// The most of a stack that the runtime takes for a call.
const DEPTH: usize = threads::ALTERNATE_BYTES;

/// Where libc stands that makes a call by a stub: as it would natively.
///
/// ```text
/// stub, farmem_site up to its `syscall`   at that instruction of libc's       the same: nothing has happened yet
/// farmem_site behind it, rest of the stub behind that instruction of libc's   the same, but for a comparison that was patched over
/// the slow way, and all it calls          behind that instruction             to look at only
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    pub rip: usize,
    pub rsp: usize,
    pub rbp: usize,
    /// rbx, r12, r13, r14, r15, where the runtime may have others in the registers.
    pub registers: Option<[usize; 5]>,
    /// Bits of a comparison that belongs before it and is no more in libc, of the result with the
    /// first error; 0: none.
    pub compared: u32,
    /// Whether the thread may go on there as well as where it is.
    pub same: bool,
    /// Whether the registers that a call keeps are the caller's, or `registers`.
    pub exact: bool,
}

impl Stub {
    /// The offset of the `syscall` instruction, natively, from the place that is patched.
    fn instruction(&self) -> usize {
        self.place
            + match self.kind {
                Kind::Mov(_) => 5,
                Kind::MovLea(_) => 12,
                Kind::Compare64 | Kind::Compare32 => 0,
                Kind::Loop => 4,
            }
    }

    /// Nothing has happened yet. `at_call`: but that it was decided that the kernel may be asked as
    /// it stands; the number may be that of a call which is to go on after a signal.
    fn before(&self, at_call: bool, rsp: usize, rbp: usize) -> Standing {
        let (rip, same) = match self.kind {
            // The load and what the stub does are done again.
            Kind::Mov(_) if !at_call => (self.place, true),
            // The instructions between must not be executed twice.
            Kind::MovLea(_) if !at_call => (self.instruction(), false),
            _ => (self.instruction(), true),
        };
        Standing { rip, rsp, rbp, registers: None, compared: 0, same, exact: true }
    }

    fn after(&self, rsp: usize, rbp: usize) -> Standing {
        let (compared, compare) = match self.kind {
            Kind::Compare64 => (64, COMPARE64.len()),
            Kind::Compare32 => (32, COMPARE32.len()),
            _ => (0, 0),
        };
        let rip = self.instruction() + SYSCALL.len() + compare;
        // The comparison is still to come where a handler changes the result.
        Standing { rip, rsp, rbp, registers: None, compared, same: compared == 0, exact: true }
    }
}

/// Where libc stands, if a thread that is at `rip` makes a call for it. `below`: the program's
/// stack pointer, which is `rsp` but for what goes on on a near stack instead of a far one.
///
/// # Safety
/// They must be a thread's that was interrupted, and its stack as it is.
pub unsafe fn standing(record: &Record, rip: usize, rsp: usize, rbp: usize, below: usize) -> Option<Standing> {
    let stubs = STUBS.get()?;
    let (first, last) = (stubs.first()?, stubs.last()?);
    let called = |to: usize| Some(&stubs[stubs.binary_search_by_key(&to, |stub| stub.called).ok()?]);
    // SAFETY: the caller's.
    let word = |at: usize| unsafe { (at as *const usize).read_unaligned() };
    if (first.at..last.end).contains(&rip) {
        let stub = &stubs[stubs.partition_point(|stub| stub.end <= rip)];
        let skipped = if rip == stub.call || rip == stub.called { SKIPPED } else { 0 };
        return match rip {
            rip if rip < stub.at => None,
            rip if rip < stub.called => Some(stub.before(false, rsp + skipped, rbp)),
            _ => Some(stub.after(rsp + skipped, rbp)),
        };
    }
    let at = |place: unsafe extern "C" fn()| place as *const () as usize;
    let (entry, call, slow, served, left) =
        (at(farmem_site), at(farmem_site_call), at(farmem_site_slow), at(farmem_site_served), at(farmem_site_left));
    if (entry..=slow).contains(&rip) || rip == left {
        let (stub, rsp) = (called(word(rsp))?, rsp + 8 + SKIPPED);
        return Some(match rip {
            rip if rip == left || rip > call && rip < slow => stub.after(rsp, rbp),
            rip => stub.before(rip == call, rsp, rbp),
        });
    }
    let by_frame = |frame: usize| Some((called(word(frame + 8))?, frame + 16 + SKIPPED, word(frame)));
    if (slow..left).contains(&rip) {
        // Behind its first instruction the frame is there, and behind its second rbp says where.
        let (stub, rsp, rbp) = by_frame(if rip == slow + 1 { rsp } else { rbp })?;
        let standing = if rip < served { stub.before(false, rsp, rbp) } else { stub.after(rsp, rbp) };
        return Some(Standing { same: false, exact: false, ..standing });
    }
    let site = record.site.load(Ordering::Relaxed);
    // Is it that call still? Handlers that interrupt it are told apart where they are delivered,
    // and who leaves one by a jump leaves nothing in the record. But a vfork child has its
    // parent's, and may have been killed in a call: the parent is no more in the runtime then, nor
    // near that place on its stack. And who shares a thread's record has another stack.
    let ours = |at: usize| is_runtimes(at) || at & !0xfff == GATE;
    if !(below + 1..below + DEPTH).contains(&site) || !ours(rip) && !ours(word(rsp)) {
        return None;
    }
    // SAFETY: on the program's stack, above where it stands.
    let kept = unsafe { &*(site as *const Kept) };
    if !(site..site + DEPTH).contains(&kept.call.sp) {
        return None;
    }
    let (stub, rsp, rbp) = by_frame(kept.call.sp)?;
    Some(Standing { same: false, exact: false, registers: Some(kept.registers), ..stub.after(rsp, rbp) })
}

/// Whether an address is in the runtime's own code.
pub fn is_runtimes(at: usize) -> bool {
    unsafe extern "C" {
        static __ehdr_start: u8;
        static etext: u8;
    }
    // libc's leaf functions, memcpy above all, are called from there.
    (&raw const __ehdr_start as usize..&raw const etext as usize).contains(&at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where libc stands before a call and behind it, and whether the thread may go on there.
    #[test]
    fn a_stub_stands_for_its_place() {
        let at = |kind| {
            let stub = Stub { at: 0x100, call: 0x10a, called: 0x110, end: 0x11d, place: 0x1000, kind };
            let [before, called, after] = [stub.before(false, 8, 9), stub.before(true, 8, 9), stub.after(8, 9)];
            assert!([before, called, after].iter().all(|at| at.rsp == 8 && at.rbp == 9 && at.exact));
            [before, called, after].map(|at| (at.rip - stub.place, at.same))
        };
        assert_eq!(at(Kind::Mov(202)), [(0, true), (5, true), (7, true)]);
        assert_eq!(at(Kind::MovLea(14)), [(12, false), (12, true), (14, true)]);
        assert_eq!(at(Kind::Compare64), [(0, true), (0, true), (8, false)]);
        assert_eq!(at(Kind::Compare32), [(0, true), (0, true), (7, false)]);
    }
}
