//! Threads of the runtime, which libc knows nothing of.
//!
//! `pthread_create` allocates with the program's malloc, and the runtime needs threads at moments
//! when the program may be inside malloc (a fault). Also, a process ends when the last thread that
//! libc counts ends, and the runtime's threads must not keep it alive. So a thread here is a bare
//! clone with its own stack and thread pointer. Its code must use neither thread-locals nor libc
//! functions that use them.

use crate::descriptors::open_own;
use crate::holdings::reserve;
use crate::raw::{Errno, checked, syscall};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many of them this process has. They do not end.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// Their numbers (`gettid`), in the order in which they started. There are fewer kinds of them than places.
static NUMBERS: [AtomicU32; 16] = [const { AtomicU32::new(0) }; 16];

/// How many of these threads this process has.
pub fn started() -> u32 {
    STARTED.load(Ordering::Relaxed)
}

/// Whether a thread of this process, by its number (`gettid`), is one of these.
pub fn is_one(number: u32) -> bool {
    NUMBERS.iter().take(started() as usize).any(|one| one.load(Ordering::Relaxed) == number)
}

/// How many threads this process has beside the calling one and these. `None` where /proc does not
/// tell.
pub fn others() -> Option<u32> {
    let path = c"/proc/self/task";
    // SAFETY: zero is valid for a stat.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a live path and stat.
    unsafe {
        let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, &raw mut about as usize, 0, 0, 0];
        checked(libc::SYS_newfstatat, args).ok()?;
    }
    beside(&about)
}

/// The answer of [`others`], from the kernel's `stat` of the directory of the process's threads.
fn beside(tasks: &libc::stat) -> Option<u32> {
    // A directory for each, and the two that every directory has.
    (tasks.st_nlink as u32).checked_sub(3 + STARTED.load(Ordering::Relaxed))
}

/// The directory of this process's threads, kept open: [`others`] for those who ask often. 0.35 µs.
#[derive(Debug)]
pub struct Tasks(i32);

impl Tasks {
    /// This process's. A forked child must open its own.
    pub fn open() -> Tasks {
        Tasks(open_own(c"/proc/self/task").unwrap_or(-1))
    }

    /// Opens it again in a forked child. The inherited one is closed first.
    pub fn reopen(&mut self) {
        crate::descriptors::close(std::mem::replace(&mut self.0, -1));
        *self = Tasks::open();
    }

    /// As [`others`], which may tell one too many (a thread of the runtime's that has just begun,
    /// one of the program's that is just ending), and, asked by the program's only thread, none too
    /// few: who else could start another?
    pub fn others(&self) -> Option<u32> {
        // SAFETY: zero is valid for a stat.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a live stat.
        unsafe { checked(libc::SYS_fstat, [self.0 as usize, &raw mut about as usize, 0, 0, 0, 0]) }.ok()?;
        beside(&about)
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        crate::descriptors::close(self.0);
    }
}

/// Whether there are any of these.
pub fn any() -> bool {
    STARTED.load(Ordering::Relaxed) != 0
}

/// Whether the process's first thread has ended, and stays until the others have.
pub fn first_has_ended() -> bool {
    let path = c"/proc/self/stat";
    let mut text = [0u8; 64];
    // SAFETY: a live path; a live buffer of that length.
    let read = unsafe {
        let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0];
        let Ok(fd) = checked(libc::SYS_openat, args) else { return false };
        let read = checked(libc::SYS_read, [fd, text.as_mut_ptr() as usize, text.len(), 0, 0, 0]);
        crate::descriptors::close(fd as i32);
        read.unwrap_or(0)
    };
    is_zombie(&text[..read])
}

/// The number, the name in brackets (which may hold anything, brackets too; at most 15 bytes), the
/// state.
fn is_zombie(stat: &[u8]) -> bool {
    stat.iter().rposition(|&b| b == b')').is_some_and(|at| stat[at..].starts_with(b") Z"))
}

/// In a forked child, which has none of them.
pub fn forget_in_child() {
    STARTED.store(0, Ordering::Relaxed);
    crate::members::forget_in_child();
}

const STACK_BYTES: usize = 256 << 10;
/// Room below the thread pointer for the thread-locals of libraries (errno, where little else is
/// used), however many the program has: those of libraries that are loaded later lie farthest.
/// Touched only where used.
const BELOW: usize = 1 << 20;
/// … and above it, for libc's own record of a thread: zero but for its address.
const ABOVE: usize = 16 << 10;
const TLS_BYTES: usize = BELOW + ABOVE;

/// The name of the thread that brings the pages of its process's memory (`--fault thread`): by it
/// other processes know that there is one.
pub const HANDLER: &CStr = c"farmem-faults";

/// Names the calling thread, for all who look at it in /proc. At most 15 bytes are kept.
pub fn name_own(name: &CStr) {
    // SAFETY: a live text.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// A thread shares everything with the others, and has a thread pointer of its own.
pub const THREAD_FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS;

/// Starts a thread that runs `job(argument)`. All its signals are blocked, except those that the
/// kernel forces.
pub fn spawn(job: fn(usize) -> !, argument: usize) -> Result<(), Errno> {
    let stack = reserve(STACK_BYTES)? as usize;
    let thread_pointer = reserve(TLS_BYTES)? as usize + BELOW;
    let _signals = crate::raw::SignalsBlocked::new();
    let ret: isize;
    // SAFETY: the stack and the thread's TLS block are fresh and never freed (`job` does not
    // return). The child starts with our registers on its own stack and goes to `entry`; the parent
    // falls through. This variant of the gate returns by a register, because a `ret` would pop from
    // the child's stack.
    unsafe {
        // The thread pointer's first word names itself (x86-64 TLS ABI); its third too, by which
        // libc finds its record of the thread: its cancellable calls look there (a second libc's:
        // crate::verbs::library).
        (thread_pointer as *mut usize).write(thread_pointer);
        (thread_pointer as *mut usize).add(2).write(thread_pointer);
        core::arch::asm!(
            "lea r14, [rip + 3f]",
            "jmp r15",
            "3:",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => ret,
            in("rdi") THREAD_FLAGS as usize,
            in("rsi") (stack + STACK_BYTES) & !63,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") thread_pointer,
            in("r12") argument,
            in("r13") job as *const () as usize,
            in("r15") crate::raw::gate() + crate::raw::GATE_THREAD,
            out("r14") _,
            out("rcx") _,
            out("r11") _,
        );
    }
    if ret < 0 {
        // SAFETY: nobody runs on them.
        unsafe {
            syscall(libc::SYS_munmap, [stack, STACK_BYTES, 0, 0, 0, 0]);
            syscall(libc::SYS_munmap, [thread_pointer - BELOW, TLS_BYTES, 0, 0, 0, 0]);
        }
        return Err(Errno(-ret as i32));
    }
    let nth = STARTED.fetch_add(1, Ordering::Relaxed);
    if let Some(place) = NUMBERS.get(nth as usize) {
        place.store(ret as u32, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{futex_wait, futex_wake, sleep_ns};

    static SEEN: AtomicU32 = AtomicU32::new(0);

    fn job(argument: usize) -> ! {
        SEEN.store(argument as u32, Ordering::Release);
        futex_wake(&SEEN, 1);
        loop {
            sleep_ns(1_000_000_000);
        }
    }

    #[test]
    fn a_state_is_told_from_a_name() {
        assert!(!first_has_ended());
        let stats = ["12 (a) Z 1 2 3", "12 (a) Z) S 1 2 3", "12 (x) Z 1) Z 1", "12 (a", ""];
        assert_eq!(stats.map(|stat| is_zombie(stat.as_bytes())), [true, false, true, false, false]);
    }

    #[test]
    fn a_bare_thread_runs_its_job() {
        // Its stack is entered in the account, and touched.
        let _one = crate::holdings::ONE_TEST.lock();
        spawn(job, 42).unwrap();
        while SEEN.load(Ordering::Acquire) == 0 {
            futex_wait(&SEEN, 0, 100_000_000);
        }
        assert_eq!(SEEN.load(Ordering::Acquire), 42);
    }

    #[test]
    fn threads_are_counted_by_a_descriptor_as_by_the_path() {
        let tasks = Tasks::open();
        let before = tasks.others().unwrap();
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || told.recv());
        // Other tests start and end threads meanwhile: three looks, of which two alike had none
        // between.
        assert!((0..100).any(|_| {
            let seen = [tasks.others(), others(), tasks.others()];
            seen[0] == seen[2] && seen[0] == seen[1] && seen[0] > Some(0)
        }));
        assert!(before < 1000);
        drop(tell);
        let _ = thread.join();
        assert_eq!(Tasks(-1).others(), None);
    }
}
