//! SIGBUS: a far page is wanted, or the signal is the program's.

use super::kernel::{KernelAction, set_action};
use super::stacks::note_stack;
use super::{actions, blocked, deliver, masks, open, resume, waiting};
use crate::process::pager;
use crate::sites::is_runtimes;
use crate::threads::{self, Record};
use crate::waits;
use farmem_pager::ending::{self, broken};
use farmem_protocol::addr::is_far;
use farmem_sys::members;
use std::sync::atomic::Ordering;

/// The facts of a SIGBUS.
struct Bus {
    signal: i32,
    /// 0 or below: some process sent it, and there is no address.
    code: i32,
    addr: usize,
    write: bool,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
}

impl Bus {
    /// # Safety
    /// The kernel's arguments.
    #[inline(always)]
    unsafe fn of(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) -> Bus {
        // SAFETY: the caller's.
        unsafe {
            let write = Self::register_of(context, libc::REG_ERR) & 2 != 0;
            Bus { signal, code: (*info).si_code, addr: (*info).si_addr() as usize, write, info, context }
        }
    }

    #[inline(always)]
    unsafe fn register_of(context: *mut libc::c_void, register: i32) -> usize {
        // SAFETY: the caller's, who has the kernel's ucontext.
        unsafe { (&(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs)[register as usize] as usize }
    }

    fn register(&self, register: i32) -> usize {
        // SAFETY: the kernel's, by [`Bus::of`].
        unsafe { Self::register_of(self.context, register) }
    }

    #[inline(always)]
    fn is_of_far_page(&self) -> bool {
        is_by_access(self.code) && is_far(self.addr)
    }

    /// The page is there now; or it is not ours.
    #[inline(always)]
    fn serve(&self) -> bool {
        let counted = waits::fault_begins();
        let served = pager().fault(self.addr, self.write);
        if counted != 0 {
            waits::fault_ends(counted, self.register(libc::REG_RIP), self.addr, self.write);
        }
        if served {
            note_stack(self.register(libc::REG_RSP));
        }
        served
    }

    /// Acts on a signal that was not served. The last act of a handler; all signals are blocked.
    fn refuse(&self, record: &Record) {
        if self.is_of_far_page() {
            // Not mapped by us, or not any more. If the mapping has just gone, the access faults
            // again, as SIGSEGV. If it comes back the same, it is a mapping of the program's own,
            // beyond its file's end.
            if record.refused.swap(self.addr, Ordering::Relaxed) != self.addr {
                return;
            }
            record.refused.store(0, Ordering::Relaxed);
        }
        not_ours(self.signal, self.info, self.context);
    }
}

/// Whether a SIGBUS of this code comes again with the access that made it: not what was sent, nor
/// news of bad memory elsewhere.
pub fn is_by_access(code: i32) -> bool {
    const BUS_MCEERR_AO: i32 = 5;
    (1..BUS_MCEERR_AO).contains(&code)
}

/// The kernel's handler, by way of [`open`]'s stub: on the near stack, everything blocked but
/// SIGBUS and SIGSYS.
pub extern "C" fn on_bus(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's arguments.
    let bus = unsafe { Bus::of(signal, info, context) };
    let record = threads::current();
    if bus.is_of_far_page() {
        // The record is this thread's own: no need of a locked instruction. (On another stack it
        // may be that of one whose thread pointer this thread shares.)
        let own = record.is_alternate(context as usize);
        if own && record.is_serving() {
            let (addr, ip) = (bus.addr, bus.register(libc::REG_RIP));
            if !is_runtimes(ip) {
                // A process that has used this record is gone: a vfork child past libc.
                ending::member_gone(members::SOME);
            }
            broken(&format!("the runtime touched far memory at {addr:#x}, from {ip:#x}"));
        }
        if !own {
            // A process that libc did not make begins without an alternate stack.
            members::notice();
        }
        let mark = |serving: usize| own.then(|| record.serving.store(serving, Ordering::Relaxed));
        mark(members::own_name() as usize);
        let served = bus.serve();
        mark(0);
        if own {
            open::deliver_kept(context as usize);
        }
        if served {
            // SAFETY: the kernel's frame; signals are blocked as ever in this handler, and this is
            // its last act.
            unsafe {
                if resume::may(record, context as usize) {
                    resume::farmem_resume(context as usize);
                }
            }
            return;
        }
    } else if !record.is_serving() {
        // Signals that came in the stub, before all were blocked.
        open::send_kept();
    }
    bus.refuse(record);
}

/// The same where the program's signals are open ([`open`]): `record` is the thread's own, and says
/// `serving`.
pub extern "C" fn on_bus_open(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    record: &'static Record,
) {
    // SAFETY: the kernel's arguments.
    let bus = unsafe { Bus::of(signal, info, context) };
    let served = bus.is_of_far_page() && bus.serve();
    // SAFETY: the kernel's frame, and this is the handler's last act. What comes is kept still.
    unsafe {
        if served && resume::may(record, context as usize) {
            resume::farmem_resume_open(context as usize, std::ptr::from_ref(record).cast());
        }
    }
    // The kernel ends it, or the program.
    open::close();
    record.serving.store(0, Ordering::Relaxed);
    match is_by_access(bus.code) {
        // The access is made again behind it.
        true => open::deliver_kept(context as usize),
        false => open::send_kept(),
    }
    if !served {
        bus.refuse(record);
    }
}

/// A signal that is not the runtime's goes where the program wants it. Last act of a handler.
pub fn not_ours(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let record = threads::current();
    // SAFETY: the kernel's siginfo, or what was kept.
    let code = unsafe { blocked::as_sent(info) };
    let sent = code <= 0;
    // SAFETY: the kernel's arguments, or what was kept, which is in no fault any more.
    if sent && unsafe { open::keep(signal, info as usize, context as usize) } {
        return;
    }
    // SAFETY: the kernel's frame, of what this signal has interrupted.
    let hidden = unsafe { waiting::hidden(record, context as usize) };
    if sent && hidden >> (signal - 1) & 1 != 0 {
        // SAFETY: the kernel's arguments, and the last thing done with them.
        unsafe { blocked::came(record, signal, code, info as usize, context as usize) };
        return;
    }
    let action = actions::take(signal);
    match action.handler {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // From now on the kernel's default holds. The access is repeated, and ends the process
            // as it would have without farmem. A signal that was sent is sent again.
            set_action(signal, Some(&KernelAction::DEFAULT), None);
            if sent || signal == libc::SIGSYS {
                masks::send_to_self(signal);
            }
        }
        // SAFETY: the kernel's arguments, and the last thing done with them.
        _ => unsafe { deliver::deliver(signal, &action, info as usize, context as usize) },
    }
}
