//! SIGBUS and SIGSYS that are sent while the program believes them blocked.
//!
//! The kernel never has them blocked, and so never keeps them: it gives them to a handler at once.
//! Here they are kept until a thread unblocks them, or takes them by `sigwait` or `sigtimedwait`.
//!
//! ```text
//! sent to      kept in              goes to
//! a thread     its record           that thread
//! the process  [`PROCESS`]          a thread that waits for it, or has not blocked it;
//!                                   if there is none yet, the first that does
//! ```
//!
//! *A wait.* Within `rt_sigtimedwait` the kernel takes what it waits for from the queue, blocked or
//! not. One that comes before would be kept while the thread goes to sleep. So the last look at what
//! is kept and the call are one piece of assembly ([`farmem_await`]), and the handler of a signal
//! that came in it has it begin again. The thread is noted as waiting there alone: not in a handler
//! of the program's, which may leave the wait by a jump. Calls that wait with a mask of their own
//! wait so for what that lets in ([`super::waiting`]).
//!
//! *From thread to thread.* What `kill` has sent cannot be sent on as it came: the kernel refuses
//! its code, and with that of `pthread_kill` it would stay with a thread that waits no more. So it
//! has a code of the runtime's on its way ([`MOVED`]).
//!
//! Not served: `signalfd`, waits outside libc, and a signal that is sent to a thread before it has
//! begun (its handler gets it). Under a filter of the program's, what is sent on stays with the
//! thread that it is sent to.

use super::frame::{RIP_AT, RSP_AT, read};
use super::kernel::OURS;
use super::{open, waiting};
use crate::call::Call;
use crate::gate::GATE;
use crate::guard::peek::{BAD_ADDRESS, peek, poke};
use crate::process::pager;
use crate::threads::{self, Info, Kept, Record};
use crate::{confined, guard};
use farmem_sys::raw::{GATE_PROGRAM, getpid, syscall};
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The signals that were sent to the process and are kept, as a mask.
static PENDING: AtomicUsize = AtomicUsize::new(0);
/// The siginfo of each.
static PROCESS: [Kept; 2] = [const { Kept::new() }; 2];
/// Non-zero while a thread writes there.
static WRITTEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

const SIGNALS: [i32; 2] = [libc::SIGBUS, libc::SIGSYS];

/// The code of a signal by `kill` that one thread has sent on to another. The kernel has none of
/// this value.
const MOVED: i32 = -0x4641;

/// [`farmem_await`] has not waited: something is kept, or a handler came before the call.
const KEPT: isize = isize::MAX;

core::arch::global_asm!(
    // rdi: the thread's record. rsi: a mask of what it waits for. rdx: the call's arguments and
    // its number.
    ".globl farmem_await",
    ".hidden farmem_await",
    ".type farmem_await,@function",
    "farmem_await:",
    "push rbx",
    "movabs rbx, {gate}",
    "mov rcx, rdx",
    ".globl farmem_await_looks",
    ".hidden farmem_await_looks",
    "farmem_await_looks:",
    // Noted before the look at what is kept (an exchange is a barrier). A handler keeps a signal
    // first, and looks for a thread that waits after.
    "mov rax, rsi",
    "xchg [rdi + {awaits}], rax",
    "mov rax, [rip + {pending}]",
    "or rax, [rdi + {own}]",
    "test rax, rsi", "jnz 2f",
    "mov rdi, [rcx]", "mov rsi, [rcx + 8]", "mov rdx, [rcx + 16]", "mov r10, [rcx + 24]",
    "mov r8, [rcx + 32]", "mov r9, [rcx + 40]", "mov rax, [rcx + 48]",
    "call rbx",
    ".globl farmem_await_called",
    ".hidden farmem_await_called",
    "farmem_await_called:",
    "pop rbx",
    "ret",
    "2:",
    ".globl farmem_await_over",
    ".hidden farmem_await_over",
    "farmem_await_over:",
    "movabs rax, {kept}",
    "pop rbx",
    "ret",
    ".size farmem_await, .-farmem_await",
    awaits = const offset_of!(Record, awaits),
    own = const offset_of!(Record, pending),
    pending = sym PENDING,
    gate = const GATE + GATE_PROGRAM,
    kept = const KEPT,
);

// SAFETY: defined by the assembly above: a function, and places in it that are never called.
unsafe extern "C" {
    fn farmem_await(record: *const (), wanted: usize, call: *const [usize; 7]) -> isize;
    fn farmem_await_looks();
    fn farmem_await_called();
    fn farmem_await_over();
}

fn bit(signal: i32) -> usize {
    1 << (signal - 1)
}

fn place(signal: i32) -> usize {
    usize::from(signal == libc::SIGSYS)
}

/// Keeps a signal that was sent to the process. One that is there already stays: the kernel, too,
/// keeps one of each of these.
fn keep(signal: i32, info: Info) {
    let written = &WRITTEN[place(signal)];
    // Another thread that writes sets the bit, too.
    if written.swap(1, Ordering::Acquire) == 0 {
        if PENDING.load(Ordering::Relaxed) & bit(signal) == 0 {
            PROCESS[place(signal)].put(signal, info);
        }
        PENDING.fetch_or(bit(signal), Ordering::SeqCst);
        written.store(0, Ordering::Release);
    }
}

/// Takes one that was sent to the process.
fn take_of_process(signal: i32) -> Option<Info> {
    let there = PENDING.fetch_and(!bit(signal), Ordering::SeqCst) & bit(signal) != 0;
    there.then(|| PROCESS[place(signal)].info())
}

/// Takes one that the thread may have.
pub fn take(record: &Record, wanted: usize) -> Option<(i32, Info)> {
    SIGNALS.into_iter().filter(|&signal| wanted & bit(signal) != 0).find_map(|signal| {
        if record.pending.fetch_and(!bit(signal), Ordering::Relaxed) & bit(signal) != 0 {
            return Some((signal, by_thread(signal)));
        }
        take_of_process(signal).map(|info| (signal, info))
    })
}

/// The siginfo of a signal by `pthread_kill` or `raise`.
fn by_thread(signal: i32) -> Info {
    let mut info: Info = [0; _];
    let user = match confined::alone() {
        // SAFETY: no arguments.
        None => unsafe { syscall(libc::SYS_getuid, [0; 6]) as usize },
        Some(_) => 0,
    };
    (info[0], info[1], info[2]) = (signal as usize, libc::SI_TKILL as u32 as usize, getpid() as usize | user << 32);
    info
}

/// A siginfo with another code, if it has the one. (The code begins its second word.)
fn with_code(mut info: Info, code: i32, other: i32) -> Info {
    if info[1] as i32 == code {
        info[1] = info[1] >> 32 << 32 | other as u32 as usize;
    }
    info
}

/// Gives a siginfo of the runtime's signals the code with which it was sent, and returns that.
///
/// # Safety
/// It must be the kernel's, or a copy, of a handler of the calling thread.
pub unsafe fn as_sent(info: *mut libc::siginfo_t) -> i32 {
    // SAFETY: the caller's.
    unsafe {
        if (*info).si_code == MOVED {
            (*info).si_code = libc::SI_USER;
        }
        (*info).si_code
    }
}

/// A handler of the program's begins. If the thread is about to wait, it begins the wait again
/// behind the handler: what the handler sends is kept.
///
/// # Safety
/// As [`begins_again`].
pub unsafe fn interrupted(record: &Record, context: usize) {
    // SAFETY: the caller's.
    unsafe { begins_again(context) };
    record.awaits.store(0, Ordering::Relaxed);
}

/// A signal that was sent, and that this thread has blocked, as the program believes.
///
/// # Safety
/// `info` and `context` must be what the kernel gave to the handler that calls this, or was kept.
/// The handler returns by `context` next.
pub unsafe fn came(record: &Record, signal: i32, code: i32, info: usize, context: usize) {
    // SAFETY: the caller's.
    let in_wait = unsafe { begins_again(context) };
    // SAFETY: the caller's.
    if unsafe { waiting::has_ended(record, context) } {
        record.wait.note_kept();
    }
    if code == libc::SI_TKILL {
        record.pending.fetch_or(bit(signal), Ordering::Relaxed);
        return;
    }
    // SAFETY: a siginfo, by the caller's word.
    keep(signal, std::array::from_fn(|i| unsafe { read(info + i * 8) }));
    if in_wait {
        return;
    }
    let takes: [fn(&Record, usize) -> bool; 2] = [
        |other, bit| other.awaits.load(Ordering::SeqCst) & bit != 0,
        |other, bit| other.hidden.load(Ordering::Relaxed) & bit == 0 && !other.wait.holds_back(bit),
    ];
    let Some(other) = takes.iter().find_map(|takes| threads::other(record, |other| takes(other, bit(signal)))) else {
        return;
    };
    if let Some(info) = take_of_process(signal)
        && !open::send_to(other, signal, &with_code(info, libc::SI_USER, MOVED))
    {
        keep(signal, info);
    }
}

/// Has a wait look again at what is kept, if the signal came between its last look and its call.
///
/// # Safety
/// `context` must be the kernel's, of a handler that returns by it.
unsafe fn begins_again(context: usize) -> bool {
    let [looks, called, over] = [
        farmem_await_looks as *const () as usize,
        farmem_await_called as *const () as usize,
        farmem_await_over as *const () as usize,
    ];
    // SAFETY: the kernel's frame; before its first instruction the gate's stack has where it returns to.
    unsafe {
        let (rip, rsp) = (read(context + RIP_AT), read(context + RSP_AT));
        let at_gate = rip == GATE + GATE_PROGRAM && read(rsp) == called;
        if !at_gate && !(looks..called).contains(&rip) {
            return false;
        }
        ((context + RIP_AT) as *mut usize).write(over);
        ((context + RSP_AT) as *mut usize).write(rsp + if at_gate { 8 } else { 0 });
    }
    true
}

fn due(record: &Record, hidden: usize) -> usize {
    !hidden & (record.pending.load(Ordering::Relaxed) | PENDING.load(Ordering::SeqCst))
}

/// Whether something is kept that the thread does not have blocked.
pub fn is_due(record: &Record) -> bool {
    due(record, record.hidden.load(Ordering::Relaxed)) != 0
}

/// Sends one of each to the calling thread, in which the kernel has all blocked. (Of two it would
/// make one. The other is due when the first one's handler returns.)
pub fn send_due(record: &Record) {
    let due = due(record, record.hidden.load(Ordering::Relaxed));
    for signal in SIGNALS.into_iter().filter(|&signal| due & bit(signal) != 0) {
        if let Some((signal, info)) = take(record, bit(signal)) {
            open::send(signal, &info);
        }
    }
}

/// Sends the calling thread what was kept, of what it does not have blocked any more.
pub fn send_kept(hidden: u64) {
    let due = due(threads::current(), hidden as usize);
    for signal in SIGNALS.into_iter().filter(|&signal| due & bit(signal) != 0) {
        while let Some((signal, info)) = take(threads::current(), bit(signal)) {
            open::send(signal, &info);
        }
    }
}

/// Makes a call that waits for such signals as well. The thread's record has them as `awaits`,
/// which the caller clears. `None`: one of them is kept, or a handler came before the call, which
/// was not made. The call's memory is there.
pub fn wait_by(record: &Record, wanted: usize, call: &Call) -> Option<isize> {
    let [a, b, c, d, e, f] = call.args;
    let call = [a, b, c, d, e, f, call.nr as usize];
    // SAFETY: a live record and live words; the program's call, as by `issue`.
    let came = unsafe { farmem_await(std::ptr::from_ref(record).cast(), wanted, &raw const call) };
    (came != KEPT).then_some(came)
}

/// The program ignores a signal from now on: none is kept any more, as in the kernel's queues.
pub fn discard(signal: i32) {
    PENDING.fetch_and(!bit(signal), Ordering::SeqCst);
    threads::each(|record| {
        record.pending.fetch_and(!bit(signal), Ordering::Relaxed);
    });
}

/// rt_sigtimedwait of the program's.
pub fn rt_sigtimedwait(call: &Call) -> isize {
    let [set_at, info_at, timeout_at, size, ..] = call.args;
    let set = if size == 8 { peek::<u64>(set_at) } else { None };
    let Some(set) = set.filter(|set| set & OURS != 0) else {
        pager().count_guarded_syscall();
        return guard::call(pager(), call);
    };
    // Near copies: a handler may leave the wait by a jump, and nothing is pinned then.
    let timeout = if timeout_at == 0 { Some([0; 2]) } else { peek::<[usize; 2]>(timeout_at) };
    let Some(timeout) = timeout else { return BAD_ADDRESS };
    let mut info: Info = [0; _];
    let timeout_at = if timeout_at == 0 { 0 } else { timeout.as_ptr() as usize };
    let args = [&raw const set as usize, info.as_mut_ptr() as usize, timeout_at, 8, 0, 0];
    let waits = Call { args, ..*call };
    let (record, wanted) = (threads::current(), (set & OURS) as usize);
    let came = loop {
        if let Some(came) = wait_by(record, wanted, &waits) {
            info = with_code(info, MOVED, libc::SI_USER);
            break came;
        }
        if let Some((signal, kept)) = take(record, wanted) {
            info = kept;
            break signal as isize;
        }
    };
    record.awaits.store(0, Ordering::SeqCst);
    if came > 0 && info_at != 0 && !poke(info_at, info) { BAD_ADDRESS } else { came }
}

/// rt_sigpending of the program's.
pub fn rt_sigpending(call: &Call) -> isize {
    let [at, size, ..] = call.args;
    pager().count_guarded_syscall();
    let told = guard::call(pager(), call);
    let record = threads::current();
    let kept = record.pending.load(Ordering::Relaxed) | PENDING.load(Ordering::SeqCst);
    let kept = kept & record.hidden.load(Ordering::Relaxed);
    if told < 0 || kept == 0 || size != 8 {
        return told;
    }
    match peek::<u64>(at) {
        Some(set) if poke(at, set | kept as u64) => told,
        _ => BAD_ADDRESS,
    }
}

/// In a forked child, to which nothing has been sent.
pub fn forget_in_child(record: &Record) {
    record.pending.store(0, Ordering::Relaxed);
    record.awaits.store(0, Ordering::Relaxed);
    PENDING.store(0, Ordering::Relaxed);
    WRITTEN.iter().for_each(|written| written.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::super::kernel::is_ours;
    use super::*;

    #[test]
    fn a_signal_by_kill_has_its_code_again() {
        let info = |code: i32| -> Info {
            [4711, 7 << 32 | code as u32 as usize, 4712, 4713, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        };
        let there = with_code(info(libc::SI_USER), libc::SI_USER, MOVED);
        assert_eq!((there, with_code(there, MOVED, libc::SI_USER)), (info(MOVED), info(libc::SI_USER)));
        assert_eq!(with_code(info(libc::SI_QUEUE), libc::SI_USER, MOVED), info(libc::SI_QUEUE));
        let mut there = there;
        let told = (&raw mut there).cast::<libc::siginfo_t>();
        // SAFETY: a siginfo.
        assert_eq!([(); 2].map(|()| unsafe { as_sent(told) }), [libc::SI_USER; 2]);
        assert_eq!(there, info(libc::SI_USER));
    }

    #[test]
    fn one_of_each_is_kept_for_the_process() {
        SIGNALS.iter().for_each(|&signal| assert!(is_ours(signal)));
        let info = |value: usize| std::array::from_fn(|i| value + i);
        keep(libc::SIGBUS, info(100));
        keep(libc::SIGBUS, info(200));
        keep(libc::SIGSYS, info(300));
        assert_eq!(PENDING.load(Ordering::Relaxed), OURS as usize);
        assert_eq!(take_of_process(libc::SIGBUS), Some(info(100)));
        assert_eq!(take_of_process(libc::SIGBUS), None);
        keep(libc::SIGBUS, info(400));
        assert_eq!([libc::SIGSYS, libc::SIGBUS].map(take_of_process), [Some(info(300)), Some(info(400))]);
        assert_eq!(PENDING.load(Ordering::Relaxed), 0);
    }
}
