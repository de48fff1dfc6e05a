//! Faults in which the program's signals stay open.
//!
//! Blocking signals costs nothing: the kernel does it when it starts the handler. Opening them
//! again takes a call: 0.22 µs of a fault, and the time of our filter. Where nothing in a fault
//! waits for a socket (all nodes' memory is mapped) they stay open instead, and a signal that comes
//! is *kept*. Its handler, which is [`super::deliver`]'s as all are, sees that its thread is inside
//! a fault. It notes number and siginfo, writes "all blocked" into the frame that it has
//! interrupted, and returns. So at most one signal a fault is taken from the kernel, and none
//! changes its place in a queue. At the fault's end it is delivered from the fault's own frame, as
//! though it had come right after the return.
//!
//! ```text
//! where a signal comes                          what becomes of it
//! farmem_on_bus … the store of `serving`        delivered in place of the fault, which has not begun: the access is made again.
//!                                               (A SIGBUS that was sent is not: then it is sent again, behind that)
//! … the fault …                                 kept
//! `serving` is cleared … iretq                  nothing was kept, or all would be blocked: delivered in place of the fault's frame,
//!                                               which is over, as in [`super::resume`]'s window
//! ```
//!
//! *In the midst of a fault* means: `serving`, and on the thread's near alternate stack. (The
//! record alone does not show it: raw clones may share one, and have no such stack. For them, and
//! for a thread that is in a fault already, a call blocks all signals first.)
//!
//! SIGBUS and SIGSYS are never blocked. If a process sends one during a fault, it is kept too,
//! whatever the mask. A second one is sent again, and comes behind others of its number.
//!
//! The pager's state is safe: only these handlers run inside it, and they take no lock and wait for
//! nothing. A vfork child could be ended by a signal inside a fault, and its parent, whose memory
//! that is, would go on. So while there is one, all signals are blocked first ([`VFORKS`]). A call
//! in a fault that a signal ends early is repeated. Requests to a node by a socket are the
//! exception: they are made with all signals blocked ([`farmem_fabric`]).
//!
//! *When it is not allowed.* A handler that the runtime has not set must not run inside a fault. So
//! everything that ends [`super::resume`] ends this too. A filter of the program's ends it, because
//! it may forbid sending a signal again. And once a second the kernel is asked for all actions
//! ([`watch`]): a handler set by a `syscall` instruction in a library's own text ends it for the
//! process. Signals within that second are the price.

use super::frame::{MASK_AT, R14_AT, RIP_AT, RSP_AT, UCONTEXT_BYTES, read};
use super::kernel::{ALL, KernelAction, is_ours, own_action, set_action};
use super::{actions, blocked, deliver, faults, masks, resume};
use crate::confined;
use crate::gate::GATE;
use crate::threads::{self, Info, Kept, Record};
use farmem_sys::members::{SHARERS, VFORKS};
use farmem_sys::raw::{GATE_THREAD, getpid, syscall};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel blocks all in faults, as it was told at start.
const BLOCKED: u32 = 0;
/// Faults begin with the program's signals open, and end so.
const OPEN: u32 = 1;
/// They begin so, and block them by a call.
const ENDED: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(BLOCKED);

core::arch::global_asm!(
    // The kernel's handler of SIGBUS. rdi: signal, rsi: siginfo, rdx: ucontext; at rsp the frame,
    // whose first word is where the handler returns to.
    ".globl farmem_on_bus",
    ".hidden farmem_on_bus",
    ".type farmem_on_bus,@function",
    "farmem_on_bus:",
    "mov eax, [rip + {state}]",
    "test eax, eax", "jz 4f",
    "cmp eax, {open}", "jne 3f",
    "test dword ptr [rip + {sharers}], {vforks}", "jne 3f",
    // The thread's record, if it is where the search for it begins.
    "mov r8, fs:[0]",
    "movabs rcx, {hash}",
    "mov rax, r8", "shr rax, 6", "imul rax, rcx", "shr rax, {shift}",
    "imul rax, rax, {record}",
    "lea rcx, [rip + {records}]",
    "add rcx, rax",
    "cmp [rcx + {owner}], r8", "jne 3f",
    "mov rax, rsp", "sub rax, [rcx + {alternate}]", "cmp rax, {bytes}", "jae 3f",
    "cmp qword ptr [rcx + {serving}], 0", "jne 3f",
    "mov qword ptr [rcx + {serving}], 1",
    ".globl farmem_bus_begun",
    ".hidden farmem_bus_begun",
    "farmem_bus_begun:",
    "jmp {on_bus_open}",
    "3:",
    "mov r12d, edi",
    "mov r13, rsi",
    "mov r15, rdx",
    "mov edi, {setmask}",
    "lea rsi, [rip + {all}]",
    "xor edx, edx",
    "mov r10d, 8",
    "xor r8d, r8d",
    "xor r9d, r9d",
    "mov eax, {sigprocmask}",
    "lea r14, [rip + farmem_bus_closed]",
    "movabs rbx, {gate}",
    "jmp rbx",
    ".globl farmem_bus_closed",
    ".hidden farmem_bus_closed",
    "farmem_bus_closed:",
    "mov edi, r12d",
    "mov rsi, r13",
    "mov rdx, r15",
    "4:",
    "jmp {on_bus}",
    ".size farmem_on_bus, .-farmem_on_bus",
    state = sym STATE,
    sharers = sym SHARERS,
    vforks = const VFORKS,
    open = const OPEN,
    all = sym ALL,
    hash = const threads::HASH,
    shift = const usize::BITS - threads::RECORDS_SHIFT,
    records = sym threads::RECORDS_OF_THREADS,
    record = const size_of::<Record>(),
    owner = const Record::OWNER_AT,
    alternate = const std::mem::offset_of!(Record, alternate),
    bytes = const threads::ALTERNATE_BYTES,
    serving = const std::mem::offset_of!(Record, serving),
    setmask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    gate = const GATE + GATE_THREAD,
    on_bus_open = sym faults::on_bus_open,
    on_bus = sym faults::on_bus,
);

// SAFETY: defined by the assembly above: the kernel's handler, and places in it that are never
// called.
unsafe extern "C" {
    fn farmem_on_bus();
    fn farmem_bus_begun();
    fn farmem_bus_closed();
}

/// [`farmem_on_bus`], as the kernel is told it.
pub fn on_bus() -> usize {
    farmem_on_bus as *const () as usize
}

/// Keeps a signal for the thread. All signals are blocked.
fn add(kept: &Kept, signal: i32, info: Info) {
    match kept.signal.load(Ordering::Relaxed) as i32 {
        0 => {}
        // Pending signals below the real-time ones are one, and these two cannot be made to wait
        // for one another.
        there if is_ours(there) && is_ours(signal) => return,
        there if is_ours(there) || !is_ours(signal) => return send(signal, &info),
        _ => {
            if let Some((there, before)) = kept.take() {
                send(there, &before);
            }
        }
    }
    kept.put(signal, info);
}

/// Sends a signal to the calling thread, as it came.
pub fn send(signal: i32, info: &Info) {
    // SAFETY: no pointers.
    send_to(unsafe { syscall(libc::SYS_gettid, [0; 6]) as usize }, signal, info);
}

/// Sends a signal to a thread of this process, as it came. False: there is none of this number.
pub fn send_to(thread: usize, signal: i32, info: &Info) -> bool {
    let to = [getpid() as usize, thread, signal as usize];
    // A filter of the program's may forbid it.
    let may_say_more = confined::alone().is_none();
    // SAFETY: a live siginfo of the kernel's own.
    let sent = may_say_more
        && unsafe { syscall(libc::SYS_rt_tgsigqueueinfo, [to[0], to[1], to[2], info.as_ptr() as usize, 0, 0]) } >= 0;
    // Where no more can be queued, the signal alone. SAFETY: no pointers.
    sent || unsafe { syscall(libc::SYS_tgkill, [to[0], to[1], to[2], 0, 0, 0]) } >= 0
}

/// From now on faults leave the program's signals open: in a process of one thread, for one that is
/// in a fault with all blocked would leave them so. Every handler is delivered. `counts_vforks`:
/// whether libc's vfork does ([`VFORKS`]).
pub fn begin(counts_vforks: bool) {
    if !threads::is_only_one() || !counts_vforks || actions::has_foreign() {
        return;
    }
    STATE.store(ENDED, Ordering::Relaxed);
    let told = KernelAction { mask: 0, ..own_action(on_bus(), libc::SA_RESTART | libc::SA_NODEFER) };
    set_action(libc::SIGBUS, Some(&told), None);
    STATE.store(OPEN, Ordering::Release);
}

/// No fault begins so any more.
pub fn end() {
    let _ = STATE.compare_exchange(OPEN, ENDED, Ordering::Relaxed, Ordering::Relaxed);
}

/// Once a second: has somebody set a handler past the runtime?
pub fn watch() {
    if STATE.load(Ordering::Relaxed) == OPEN && actions::has_foreign() {
        end();
    }
}

/// In a forked child, which has no others.
pub fn forget_in_child() {
    SHARERS.fetch_and(!VFORKS, Ordering::Relaxed);
    let record = threads::current();
    record.kept.signal.store(0, Ordering::Relaxed);
    blocked::forget_in_child(record);
}

/// Where a signal came, as far as that matters here.
#[derive(PartialEq, Eq)]
enum Place {
    /// Before a fault had begun: the ucontext of its SIGBUS.
    Before(usize),
    /// On the thread's near alternate stack, inside a fault, or while a SIGBUS that was sent is
    /// handled; or, on any stack, while the thread has the table of actions.
    Midst,
    Elsewhere,
}

/// # Safety
/// `context` must be the kernel's, of a handler of the calling thread.
unsafe fn place(record: &Record, context: usize) -> Place {
    // SAFETY: the kernel's frame, by the caller's word; at the stub's rsp there is that of the
    // SIGBUS.
    unsafe {
        let (rip, next, rsp) = (read(context + RIP_AT), read(context + R14_AT), read(context + RSP_AT));
        let (begun, closed) = (farmem_bus_begun as *const () as usize, farmem_bus_closed as *const () as usize);
        let on_near = record.is_alternate(rsp);
        let kept = record.kept.signal.load(Ordering::Relaxed) != 0;
        if record.at_actions.load(Ordering::Relaxed) != 0
            || on_near && (record.is_serving() || kept && resume::is_over(rip))
        {
            return Place::Midst;
        }
        let before = (on_bus()..begun).contains(&rip)
            || (begun + 1..closed).contains(&rip)
            || rip == GATE + GATE_THREAD && next == closed;
        let of_bus = rsp + 8;
        match before {
            true if faults::is_by_access((*((of_bus + UCONTEXT_BYTES) as *const libc::siginfo_t)).si_code) => {
                Place::Before(of_bus)
            }
            true if on_near => Place::Midst,
            _ => Place::Elsewhere,
        }
    }
}

/// Keeps a signal that came in the midst of a fault; false: in none. All signals are blocked then,
/// to the fault's end.
///
/// # Safety
/// Both must be what the kernel gave to the handler that calls this, in which all signals are
/// blocked, and which returns to the kernel if this is true.
pub unsafe fn keep(signal: i32, info: usize, context: usize) -> bool {
    let record = threads::current();
    // SAFETY: the kernel's frame and siginfo; it restores the mask.
    unsafe {
        if place(record, context) != Place::Midst {
            return false;
        }
        add(&record.kept, signal, std::array::from_fn(|i| read(info + i * 8)));
        ((context + MASK_AT) as *mut u64).write(ALL);
    }
    true
}

/// At a fault's end: delivers what was kept, from the fault's frame. Returns where there was
/// nothing, or nobody handles it any more. All signals are blocked if there was.
pub extern "C" fn deliver_kept(context: usize) {
    if let Some((signal, mut info)) = threads::current().kept.take() {
        match is_ours(signal) {
            true => {
                let info = (&raw mut info).cast::<libc::siginfo_t>();
                faults::not_ours(signal, info, context as *mut libc::c_void);
            }
            false => deliver::handle_now(signal, info.as_ptr() as usize, context),
        }
    }
}

/// Nothing returns to the code that this SIGBUS has interrupted: kept signals are sent again,
/// behind others of their number.
pub fn send_kept() {
    if let Some((signal, info)) = threads::current().kept.take() {
        send(signal, &info);
    }
}

/// Blocks [`ALL`] by a call.
pub fn close() {
    masks::change(libc::SIG_SETMASK, ALL);
}

/// If this ucontext is of a signal that came before a fault had begun: the ucontext of the SIGBUS,
/// if an access made it.
///
/// # Safety
/// It must be the kernel's, of a handler of the calling thread.
pub unsafe fn interrupted(context: usize) -> Option<usize> {
    // SAFETY: the caller's.
    match unsafe { place(threads::current(), context) } {
        Place::Before(of_bus) => Some(of_bus),
        _ => None,
    }
}
