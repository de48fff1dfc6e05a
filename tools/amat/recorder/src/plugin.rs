//! QEMU's side: the functions that it calls when it translates and runs the program.
//!
//! QEMU loads this library, looks for `qemu_plugin_version`, and calls `qemu_plugin_install`. From
//! then on it calls
//!
//! | callback | when | what it does |
//! |---|---|---|
//! | `translated` | a block of code is translated | asks for the next two in that code |
//! | `entered` | the block begins to run | counts its instructions |
//! | `accessed` | a load or store is done | adds it to the thread's chunk |
//! | `called` | a system call begins | follows an exec |
//! | `exited` | a thread ends | hands its chunk over |
//!
//! `CURRENT` has each thread's chunk, by QEMU's number of the thread. An entry is written only by
//! its thread, or by the one thread that a fork leaves.
//!
//! A forked child is not recorded unless `follow=on`: its entries then name one private chunk that
//! is overwritten again and again, so that the callbacks need not ask.
//!
//! The plugin's interface is stable in C (`qemu-plugin.h`, versions 1 to 6 agree in what is used
//! here). QEMU's functions are found by name at run time, so that this library links anywhere.

#![allow(unsafe_code)] // A C interface.

use crate::launch::{self, Recorder};
use crate::ring::{Chunk, NoChunk, ROOM, Ring, word};
use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering};

type Id = u64;
type Block = *const c_void;
type Instruction = *const c_void;
type OnEnter = unsafe extern "C" fn(c_uint, *mut c_void);
type OnAccess = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
type OnTranslate = unsafe extern "C" fn(Id, Block);
type OnCall = unsafe extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
type OnThread = unsafe extern "C" fn(Id, c_uint);

const NO_REGISTERS: c_int = 0;
const LOADS_AND_STORES: c_int = 3;

/// The version of the interface that QEMU is told: the oldest that it still takes. Set before QEMU
/// reads it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// The first of the version's table in QEMU's `qemu_info_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    target: *const c_char,
    oldest: c_int,
    newest: c_int,
    is_machine: bool,
}

// QEMU's functions.
type AskOnEnter = unsafe extern "C" fn(Block, OnEnter, c_int, *mut c_void);
type AskOnAccess = unsafe extern "C" fn(Instruction, OnAccess, c_int, c_int, *mut c_void);
type AskOnTranslate = unsafe extern "C" fn(Id, OnTranslate);
type AskOnCall = unsafe extern "C" fn(Id, OnCall);
type AskOnExit = unsafe extern "C" fn(Id, OnThread);
type Count = unsafe extern "C" fn(Block) -> usize;
type Nth = unsafe extern "C" fn(Block, usize) -> Instruction;
type HostAddress = unsafe extern "C" fn(Instruction) -> *const u8;
type Address = unsafe extern "C" fn(Instruction) -> u64;
type Bytes = unsafe extern "C" fn(Instruction) -> usize;
type SizeShift = unsafe extern "C" fn(u32) -> c_uint;
type IsStore = unsafe extern "C" fn(u32) -> bool;

/// Those that are called while the program runs.
struct Qemu {
    on_enter: AskOnEnter,
    on_access: AskOnAccess,
    instructions: Count,
    instruction: Nth,
    host_address: HostAddress,
    address: Address,
    bytes: Bytes,
    size_shift: SizeShift,
    is_store: IsStore,
}

struct Plugin {
    qemu: Qemu,
    ring: Ring,
    recorder: Recorder,
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Threads by QEMU's number, which is at most that of all threads there were.
const THREADS: usize = 1 << 16;
static FULL: Chunk = Chunk::full();
static CURRENT: [AtomicPtr<Chunk>; THREADS] = [const { AtomicPtr::new(std::ptr::from_ref(&FULL).cast_mut()) }; THREADS];
/// Entries of `CURRENT` from here on name `FULL`.
static HIGH: AtomicU32 = AtomicU32::new(0);

/// Nothing is recorded any more.
static IS_SILENT: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);
/// The offset that QEMU adds to the program's addresses.
static BASE: AtomicI64 = AtomicI64::new(0);

/// A chunk that nobody reads.
#[repr(C)]
struct Waste(Chunk, [AtomicU64; ROOM as usize]);
static WASTE: Waste = Waste(Chunk::full(), [const { AtomicU64::new(0) }; ROOM as usize]);

/// Runs when the library is loaded. A QEMU from 8.2 on has no `qemu_plugin_n_vcpus`, and takes no
/// version below 2.
extern "C" fn loaded_by() {
    if function(c"qemu_plugin_n_vcpus").is_null() {
        qemu_plugin_version.store(2, Ordering::Relaxed);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED_BY: extern "C" fn() = loaded_by;

fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero byte, looked up in what the process has loaded.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// One of QEMU's functions.
macro_rules! qemu {
    ($name:literal, $type:ty) => {{
        let found = function($name);
        if found.is_null() {
            return refuse(&format!("this QEMU has no {}", $name.to_string_lossy()));
        }
        // SAFETY: the function of that name has this type in every version of the interface.
        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
    }};
}

fn refuse(why: &str) -> c_int {
    eprintln!("farmem amat: {why}");
    1
}

/// Called by QEMU once, before the program runs. Nonzero: QEMU ends with an error.
///
/// # Safety
/// Called by QEMU, with its description of itself and the plugin's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU's promise: `info`, and `argc` strings.
    let (info, arguments) = unsafe {
        let arguments = (0..argc as usize).map(|n| CStr::from_ptr(*argv.add(n)).to_bytes().to_vec());
        (&*info, arguments.map(OsString::from_vec).collect::<Vec<_>>())
    };
    // SAFETY: a string of QEMU's.
    if info.is_machine || unsafe { CStr::from_ptr(info.target) } != c"x86_64" {
        return refuse("only qemu-x86_64 is known");
    }
    let recorder = match Recorder::parse(&arguments) {
        Ok(recorder) => recorder,
        Err(why) => return refuse(&why),
    };
    let opened = File::options().read(true).write(true).open(&recorder.ring);
    let ring = match opened.map(|file| Ring::open(file.as_raw_fd())) {
        Ok(Ok(ring)) => ring,
        _ => return refuse(&format!("cannot map {}", recorder.ring.display())),
    };
    let qemu = Qemu {
        on_enter: qemu!(c"qemu_plugin_register_vcpu_tb_exec_cb", AskOnEnter),
        on_access: qemu!(c"qemu_plugin_register_vcpu_mem_cb", AskOnAccess),
        instructions: qemu!(c"qemu_plugin_tb_n_insns", Count),
        instruction: qemu!(c"qemu_plugin_tb_get_insn", Nth),
        host_address: qemu!(c"qemu_plugin_insn_haddr", HostAddress),
        address: qemu!(c"qemu_plugin_insn_vaddr", Address),
        bytes: qemu!(c"qemu_plugin_insn_size", Bytes),
        size_shift: qemu!(c"qemu_plugin_mem_size_shift", SizeShift),
        is_store: qemu!(c"qemu_plugin_mem_is_store", IsStore),
    };
    let on_translate = qemu!(c"qemu_plugin_register_vcpu_tb_trans_cb", AskOnTranslate);
    let on_call = qemu!(c"qemu_plugin_register_vcpu_syscall_cb", AskOnCall);
    let on_exit = qemu!(c"qemu_plugin_register_vcpu_exit_cb", AskOnExit);
    PID.store(std::process::id(), Ordering::Relaxed);
    ring.begin(std::process::id());
    if PLUGIN.set(Plugin { qemu, ring, recorder }).is_err() {
        return refuse("loaded twice");
    }
    // SAFETY: this plugin's id, and callbacks of the types that QEMU calls them by. `forked` runs
    // in the child before anything else of this library.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        on_translate(id, translated);
        on_call(id, called);
        on_exit(id, exited);
    }
    0
}

/// Asks for callbacks in the code of a block.
unsafe extern "C" fn translated(_: Id, block: Block) {
    let Some(Plugin { qemu, .. }) = PLUGIN.get() else { return };
    // SAFETY: the block is QEMU's for the length of this call, and so are its instructions.
    unsafe {
        let count = (qemu.instructions)(block);
        (qemu.on_enter)(block, entered, NO_REGISTERS, count as *mut c_void);
        for number in 0..count {
            let instruction = (qemu.instruction)(block, number);
            let code = (qemu.host_address)(instruction);
            let mut note = (number as u64) << word::NUMBER;
            if !code.is_null() {
                BASE.store((code as i64).wrapping_sub((qemu.address)(instruction) as i64), Ordering::Relaxed);
                let bytes = (qemu.bytes)(instruction).min(15);
                note |= kind_of(std::slice::from_raw_parts(code, bytes));
            }
            // One callback for both: QEMU 7.2 takes loads for stores where only one of them is
            // asked for.
            (qemu.on_access)(instruction, accessed, NO_REGISTERS, LOADS_AND_STORES, note as *mut c_void);
        }
    }
}

/// The kind of references of an instruction, from its bytes.
///
/// A string instruction (movs, cmps, stos, lods, scas) may repeat. One with a `lock` prefix, or
/// `xchg` with memory, loads and stores the same bytes; QEMU calls that a store if other threads
/// run.
fn kind_of(code: &[u8]) -> u64 {
    let is_prefix =
        |byte: &&u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let prefixes = code.iter().take_while(is_prefix).count();
    match code.get(prefixes..) {
        _ if code[..prefixes].contains(&0xf0) => word::BOTH,
        Some([0xa4..=0xa7 | 0xaa..=0xaf, ..]) => word::REP,
        Some([0x86 | 0x87, operands, ..]) if operands >> 6 != 3 => word::BOTH,
        _ => 0,
    }
}

fn entry(thread: c_uint) -> &'static AtomicPtr<Chunk> {
    &CURRENT[thread as usize % THREADS]
}

unsafe extern "C" fn entered(thread: c_uint, instructions: *mut c_void) {
    // SAFETY: entries name chunks that live as long as the process.
    let mut chunk = unsafe { &*entry(thread).load(Ordering::Relaxed) };
    if std::ptr::eq(chunk, &FULL) {
        chunk = next(thread);
    }
    chunk.enter(instructions as u64);
}

unsafe extern "C" fn accessed(thread: c_uint, info: u32, address: u64, note: *mut c_void) {
    let Some(Plugin { qemu, .. }) = PLUGIN.get() else { return };
    // SAFETY: QEMU's own `info`.
    let (size, is_store) = unsafe { ((qemu.size_shift)(info), (qemu.is_store)(info)) };
    let about = (u64::from(size & 7) << word::SIZE) | (u64::from(is_store) * word::STORE);
    let word = address & word::ADDRESS | about | note as u64;
    // SAFETY: entries name chunks that live as long as the process, each with its words unless it
    // is FULL.
    unsafe {
        if !Chunk::add(entry(thread).load(Ordering::Relaxed), word) {
            Chunk::add(next(thread), word);
        }
    }
}

/// Hands the thread's chunk over and gives it another, which has room.
#[cold]
fn next(thread: c_uint) -> &'static Chunk {
    hand_over(thread);
    HIGH.fetch_max(thread + 1, Ordering::Relaxed);
    let taken = match PLUGIN.get() {
        Some(plugin) if !IS_SILENT.load(Ordering::Relaxed) => plugin.ring.take(PID.load(Ordering::Relaxed)),
        _ => Err(NoChunk::Ended),
    };
    let chunk = match taken {
        Ok(chunk) => chunk,
        Err(NoChunk::Ended) => {
            WASTE.0.clear();
            &WASTE.0
        }
        // SAFETY: no pointers. The consumer says why.
        Err(NoChunk::TooManyThreads) => unsafe { libc::_exit(1) },
    };
    entry(thread).store(std::ptr::from_ref(chunk).cast_mut(), Ordering::Relaxed);
    chunk
}

fn hand_over(thread: c_uint) {
    let chunk = entry(thread).swap(std::ptr::from_ref(&FULL).cast_mut(), Ordering::Relaxed).cast_const();
    if let Some(plugin) = PLUGIN.get()
        && chunk != std::ptr::from_ref(&FULL)
        && chunk != std::ptr::from_ref(&WASTE.0)
    {
        // SAFETY: any other chunk is the ring's, which lives as long as the process.
        plugin.ring.hand_over(unsafe { &*chunk });
    }
}

unsafe extern "C" fn exited(_: Id, thread: c_uint) {
    hand_over(thread);
}

/// In a forked child: the chunks are the parent's.
unsafe extern "C" fn forked() {
    PID.store(std::process::id(), Ordering::Relaxed);
    for entry in &CURRENT[..(HIGH.load(Ordering::Relaxed) as usize).min(THREADS)] {
        entry.store(std::ptr::from_ref(&FULL).cast_mut(), Ordering::Relaxed);
    }
    match PLUGIN.get() {
        Some(plugin) if plugin.recorder.follow => {}
        _ => IS_SILENT.store(true, Ordering::Relaxed),
    }
}

/// A system call begins. An exec is carried out here, with QEMU and this plugin in front of the
/// program. Any other call, and an exec that would fail, is left to QEMU.
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn called(
    _: Id,
    _: c_uint,
    number: i64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    if IS_SILENT.load(Ordering::Relaxed) {
        return;
    }
    let Some(plugin) = PLUGIN.get() else { return };
    let here = libc::AT_FDCWD as u64;
    let (directory, path, argv, envp, flags) = match number {
        libc::SYS_execve => (here, a, b, c, 0),
        libc::SYS_execveat => (a, b, c, d, e),
        _ => return,
    };
    let Some(program) = Program::read(directory as i32, path, argv, envp, flags as i32) else { return };
    match launch::plan(&plugin.recorder.resolved(&program.file), program.arguments) {
        Ok(plan) => plugin.recorder.execute(plan, &program.environment),
        // The call fails when QEMU makes it, unless the file has no name any more.
        Err(launch::Unusable::Refused) if !program.by_descriptor => {}
        Err(_) => plugin.ring.note_unseen(),
    }
}

/// A program that is to be executed.
struct Program {
    file: PathBuf,
    /// It is open, and executed as such.
    by_descriptor: bool,
    arguments: Vec<OsString>,
    environment: Vec<OsString>,
}

impl Program {
    /// None if the call will fail.
    fn read(directory: i32, path: u64, argv: u64, envp: u64, flags: i32) -> Option<Program> {
        let memory = Memory::open()?;
        let path = PathBuf::from(memory.string(path)?);
        let (arguments, environment) = (memory.strings(argv)?, memory.strings(envp)?);
        let opened = || Path::new("/proc/self/fd").join(directory.to_string()).read_link().ok();
        let by_descriptor = path.as_os_str().is_empty() && flags & libc::AT_EMPTY_PATH != 0;
        let file = match path {
            _ if by_descriptor => opened()?,
            path if path.is_absolute() || directory == libc::AT_FDCWD => path,
            path => opened()?.join(path),
        };
        let is_refused = flags & libc::AT_SYMLINK_NOFOLLOW != 0 && file.is_symlink();
        (!is_refused).then_some(Program { file, by_descriptor, arguments, environment })
    }
}

/// The program's memory, read so that a bad pointer is an error.
struct Memory(File);

impl Memory {
    const LONGEST: usize = 128 << 10;
    const MOST: usize = 1 << 20;

    fn open() -> Option<Memory> {
        File::open("/proc/self/mem").ok().map(Memory)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Option<usize> {
        let at = at.wrapping_add_signed(BASE.load(Ordering::Relaxed));
        self.0.read_at(into, at).ok().filter(|&n| n > 0)
    }

    /// Up to the zero byte. Read page by page, because the page behind the string's last one may
    /// not be readable.
    fn string(&self, mut at: u64) -> Option<OsString> {
        let mut all = vec![];
        while all.len() < Memory::LONGEST {
            let mut page = [0; 4096];
            let rest = 4096 - at as usize % 4096;
            let n = self.read(at, &mut page[..rest])?;
            match page[..n].iter().position(|&byte| byte == 0) {
                Some(end) => {
                    all.extend_from_slice(&page[..end]);
                    return Some(OsString::from_vec(all));
                }
                None => all.extend_from_slice(&page[..n]),
            }
            at += n as u64;
        }
        None
    }

    /// An array of strings that ends with a null pointer. The kernel takes a null pointer for an
    /// empty one.
    fn strings(&self, array: u64) -> Option<Vec<OsString>> {
        let mut all = vec![];
        while array != 0 && all.len() < Memory::MOST {
            let mut pointer = [0; 8];
            let at = array + 8 * all.len() as u64;
            if self.read(at, &mut pointer)? < 8 {
                return None;
            }
            match u64::from_le_bytes(pointer) {
                0 => break,
                string => all.push(self.string(string)?),
            }
        }
        Some(all)
    }
}

impl Recorder {
    /// The file that the program means: by `/proc/self/exe` it means itself, not QEMU.
    fn resolved(&self, file: &Path) -> PathBuf {
        let own = format!("/proc/{}/exe", PID.load(Ordering::Relaxed));
        let is_own = [Path::new("/proc/self/exe"), Path::new("/proc/thread-self/exe"), Path::new(&own)].contains(&file);
        if is_own { self.program.clone() } else { file.to_owned() }
    }

    /// Replaces this process by QEMU. Returns if that fails.
    fn execute(&self, plan: launch::Plan, environment: &[OsString]) {
        let (arguments, environment) = self.command_line(plan, environment);
        let terminated = |strings: &[OsString]| -> Option<Vec<CString>> {
            strings.iter().map(|string| CString::new(string.as_bytes()).ok()).collect()
        };
        let qemu = CString::new(self.qemu.as_os_str().as_bytes()).ok();
        let (Some(qemu), Some(argv), Some(envp)) = (qemu, terminated(&arguments), terminated(&environment)) else {
            return;
        };
        let pointers = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
        };
        // SAFETY: strings that end with a zero byte, in arrays that end with a null pointer, alive
        // during the call.
        unsafe { libc::execve(qemu.as_ptr(), pointers(&argv).as_ptr(), pointers(&envp).as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart() {
        for code in [&[0xf3, 0x48, 0xa5][..], &[0xa4], &[0x66, 0xf3, 0xab], &[0xf2, 0xae]] {
            assert_eq!(kind_of(code), word::REP, "{code:x?}");
        }
        // lock add, xchg with memory.
        for code in [&[0xf0, 0x48, 0x01, 0x07][..], &[0x48, 0x87, 0x07]] {
            assert_eq!(kind_of(code), word::BOTH, "{code:x?}");
        }
        // mov, push, movups, xchg of registers, nothing.
        for code in [&[0x48, 0x89, 0x07][..], &[0x55], &[0xf3, 0x0f, 0x6f, 0x00], &[0x48, 0x87, 0xc7], &[]] {
            assert_eq!(kind_of(code), 0, "{code:x?}");
        }
    }
}
