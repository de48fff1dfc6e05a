//! libc's own system calls, hooked where they are made.
//!
//! Interposing `mmap` by name misses the calls that libc makes itself: malloc's
//! among them. But nearly all of libc's `syscall` instructions (436 of 526 in
//! glibc 2.36) directly follow the `mov $NR,%eax` that loads the number:
//!
//! ```text
//! b8 NN NN 00 00   mov $NR,%eax      becomes   e9 rr rr rr rr   jmp stub
//! 0f 05            syscall                     0f 05            (still here for whoever jumps to it)
//! ```
//!
//! Most of the others (futexes, masks, `read`) are followed by the comparison
//! that makes errno of the result:
//!
//! ```text
//! 0f 05                syscall                  e9 rr rr rr rr   jmp stub, which repeats the comparison
//! 48 3d 00 f0 ff ff    cmp $-4096,%rax          f0 ff ff
//! ```
//!
//! which is patched unless some branch in libc goes to the comparison. And where a
//! `lea` of seven bytes lies between the load of the number and the instruction
//! (the masks of pthread_create and of a thread's start), it is repeated in the
//! stub, unless some branch goes behind the load. The instruction boundary before a `mov` cannot be mistaken except after a REX
//! prefix (`41 b8` is `mov r8d`), which is checked.
//!
//! The end of a thread is a loop without end, which is replaced whole:
//!
//! ```text
//! 31 ff            xor edi,edi              e9 rr rr rr rr   jmp stub, which repeats the first two
//! 89 d0            mov eax,edx
//! 0f 05            syscall                  05
//! eb f8            jmp to the first         eb f8
//! ```
//!
//! What is left, some thirty sites, is told to the filter by address ([`crate::net`]): slower, and
//! complete whatever libc it is.
//!
//! The stub leaves the red zone alone, keeps all registers that a system call
//! keeps, and does the call itself unless an argument is far or the number is in
//! [`ALWAYS`] (a few ns). Far arguments of code elsewhere are caught by [`crate::net`] too.
//!
//! Rejected: rewriting `syscall` itself to `call *%rax` (needs page 0, root),
//! system call user dispatch (every call becomes a signal), a disassembler.

use crate::call::Call;
use crate::filter::Missed;
use crate::fork;
use crate::gate::GATE;
use crate::signals::{self, open};
use crate::threads::{self, Record};
use core::arch::x86_64::*;
use farmem_sys::raw::{checked, syscall};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Numbers that are dispatched whatever their arguments: mappings, masks, descriptors, and calls
/// whose near arguments point to structures with far pointers in them.
static mut ALWAYS: [u8; 512] = [0; 512];

core::arch::global_asm!(
    ".globl farmem_site",
    ".hidden farmem_site",
    ".type farmem_site,@function",
    "farmem_site:",
    // rax: number; rdi rsi rdx r10 r8 r9: arguments; rcx r11: free, as after any syscall.
    "mov rcx, rdi", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, rsi", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, rdx", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r10", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r8", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "mov rcx, r9", "shr rcx, 45", "cmp rcx, 1", "je 2f",
    "cmp rax, 511", "ja 3f",
    "lea rcx, [rip + {always}]",
    "cmp byte ptr [rcx + rax], 0", "jne 2f",
    "3:",
    ".globl farmem_site_call",
    ".hidden farmem_site_call",
    "farmem_site_call:",
    "syscall", "ret",
    // The slow way: Rust, with what C code of libc may still hold in registers kept. libc's C code
    // is compiled for the baseline, so that is the general registers and sixteen xmm ones.
    "2:",
    ".globl farmem_site_slow",
    ".hidden farmem_site_slow",
    "farmem_site_slow:",
    "push rbp", "mov rbp, rsp",
    "and rsp, -64",
    "sub rsp, 0x180",
    "movaps [rsp], xmm0", "movaps [rsp+0x10], xmm1", "movaps [rsp+0x20], xmm2", "movaps [rsp+0x30], xmm3",
    "movaps [rsp+0x40], xmm4", "movaps [rsp+0x50], xmm5", "movaps [rsp+0x60], xmm6", "movaps [rsp+0x70], xmm7",
    "movaps [rsp+0x80], xmm8", "movaps [rsp+0x90], xmm9", "movaps [rsp+0xa0], xmm10", "movaps [rsp+0xb0], xmm11",
    "movaps [rsp+0xc0], xmm12", "movaps [rsp+0xd0], xmm13", "movaps [rsp+0xe0], xmm14", "movaps [rsp+0xf0], xmm15",
    "mov [rsp+0x100], rax",
    "mov [rsp+0x108], rdi", "mov [rsp+0x110], rsi", "mov [rsp+0x118], rdx",
    "mov [rsp+0x120], r10", "mov [rsp+0x128], r8", "mov [rsp+0x130], r9",
    "mov [rsp+0x138], rbp",
    "mov [rsp+0x140], rbx", "mov [rsp+0x148], r12", "mov [rsp+0x150], r13", "mov [rsp+0x158], r14",
    "mov [rsp+0x160], r15",
    "cld",
    // The thread's record, as `threads::current` finds it; none: it is noted nowhere.
    "mov r8, fs:[0]",
    "movabs rdx, {hash}",
    "mov rcx, r8", "shr rcx, 6", "imul rcx, rdx", "shr rcx, {shift}",
    "imul rcx, rcx, {record}",
    "lea r9, [rip + {records}]",
    "lea rdx, [r9 + {all}]",
    "add rcx, r9",
    "4:",
    "mov r10, [rcx + {owner}]",
    "cmp r10, r8", "je 5f",
    "test r10, r10", "jz 6f",
    "add rcx, {record}",
    "cmp rcx, rdx", "cmove rcx, r9",
    "jmp 4b",
    "6:", "xor ecx, ecx",
    "5:",
    "mov [rsp+0x168], rcx",
    "lea rsi, [rsp+0x100]",
    "lea rdi, [rip + {from_site}]",
    "test rcx, rcx", "jz 7f",
    "mov [rcx + {site}], rsi",
    "7:",
    "call {near}",
    ".globl farmem_site_served",
    ".hidden farmem_site_served",
    "farmem_site_served:",
    "mov rcx, [rsp+0x168]",
    "test rcx, rcx", "jz 8f",
    "mov qword ptr [rcx + {site}], 0",
    "8:",
    "movaps xmm0, [rsp]", "movaps xmm1, [rsp+0x10]", "movaps xmm2, [rsp+0x20]", "movaps xmm3, [rsp+0x30]",
    "movaps xmm4, [rsp+0x40]", "movaps xmm5, [rsp+0x50]", "movaps xmm6, [rsp+0x60]", "movaps xmm7, [rsp+0x70]",
    "movaps xmm8, [rsp+0x80]", "movaps xmm9, [rsp+0x90]", "movaps xmm10, [rsp+0xa0]", "movaps xmm11, [rsp+0xb0]",
    "movaps xmm12, [rsp+0xc0]", "movaps xmm13, [rsp+0xd0]", "movaps xmm14, [rsp+0xe0]", "movaps xmm15, [rsp+0xf0]",
    "mov rdi, [rsp+0x108]", "mov rsi, [rsp+0x110]", "mov rdx, [rsp+0x118]",
    "mov r10, [rsp+0x120]", "mov r8, [rsp+0x128]", "mov r9, [rsp+0x130]",
    "mov rsp, rbp",
    "pop rbp",
    ".globl farmem_site_left",
    ".hidden farmem_site_left",
    "farmem_site_left:",
    "ret",
    ".size farmem_site, .-farmem_site",
    always = sym ALWAYS,
    near = sym crate::near::farmem_near_call,
    from_site = sym from_site,
    hash = const threads::HASH,
    shift = const usize::BITS - threads::RECORDS_SHIFT,
    records = sym threads::RECORDS_OF_THREADS,
    record = const size_of::<Record>(),
    all = const size_of::<Record>() * threads::RECORDS,
    owner = const Record::OWNER_AT,
    site = const std::mem::offset_of!(Record, site),
);

unsafe extern "C" {
    fn farmem_site();
    // Places in it, never called: the call itself, the slow way, behind its work, and the slow way's last instruction.
    fn farmem_site_call();
    fn farmem_site_slow();
    fn farmem_site_served();
    fn farmem_site_left();
}

extern "C" fn from_site(kept: &mut Kept) -> isize {
    signals::dispatch_from(&kept.call)
}

/// What the slow way keeps of a call in its frame, for [`Record::site`] to name. Layout known to the assembly.
#[repr(C)]
struct Kept {
    /// Its `sp` is where the caller's rbp is, and above it what the stub's call is to return to.
    call: Call,
    /// rbx, r12, r13, r14, r15: of libc's, for who unwinds the call.
    registers: [usize; 5],
    /// The record that names this; 0: none does.
    record: usize,
}
const _: () = assert!(std::mem::offset_of!(Kept, registers) == 0x40 && std::mem::offset_of!(Kept, record) == 0x68);

/// A stub whose call has a place in libc, for signals that come in it.
struct Stub {
    at: usize,
    /// Its call of [`farmem_site`], and behind that.
    call: usize,
    called: usize,
    end: usize,
    place: usize,
    kind: Kind,
}

/// By address; set once libc is patched.
static STUBS: OnceLock<Vec<Stub>> = OnceLock::new();

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
    /// Bits of a comparison that belongs before it and is no more in libc, of the result with the first error; 0: none.
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

    /// Nothing has happened yet. `at_call`: but that it was decided that the kernel may be asked as it stands; the number may
    /// be that of a call which is to go on after a signal.
    fn before(&self, at_call: bool, rsp: usize, rbp: usize) -> Standing {
        let (rip, same) = match self.kind {
            // The load and what the stub does are done again.
            Kind::Mov(_) if !at_call => (self.place, true),
            // What lies between is not to be done twice.
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

/// Where libc stands, if a thread that is at `rip` makes a call for it. `below`: the program's stack pointer, which is `rsp`
/// but for what goes on on a near stack instead of a far one.
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
    // Is it that call still? Handlers that interrupt it are told apart where they are delivered, and who leaves one by a jump
    // leaves nothing in the record. But a vfork child has its parent's, and may have been killed in a call: the parent is no
    // more in the runtime then, nor near that place on its stack. And who shares a thread's record has another stack.
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
fn is_runtimes(at: usize) -> bool {
    unsafe extern "C" {
        static __ehdr_start: u8;
        static etext: u8;
    }
    // What libc has of leaves, memcpy above all, is called from there.
    (&raw const __ehdr_start as usize..&raw const etext as usize).contains(&at)
}

/// Marks a number as always dispatched. Before [`patch`] only.
pub fn always(nr: i64) {
    // SAFETY: single-threaded start.
    unsafe { ALWAYS[nr as usize] = 1 };
}

/// Room for the stubs of all sites: fewer than a thousand, of 48 bytes, and a few of up to 192 for clones.
const STUB_BYTES: usize = 64 << 10;

/// Takes memory for stubs within reach of the text that starts at `text`. To be done before anything
/// large is mapped, because large mappings fill the addresses below libc.
pub fn reserve_stubs(text: usize) -> Option<usize> {
    near(text, STUB_BYTES)
}

/// Patches every site in the executable mapping `start..end` of libc; the stubs go to `stubs`. What it leaves, the
/// filter then looks for: of glibc 2.36 to 2.41, 20 to 30 of 420 to 570. None: libc's text cannot be patched.
///
/// # Safety
/// The range must be libc's text, `stubs` from [`reserve_stubs`], and no other thread may run.
pub unsafe fn patch(start: usize, end: usize, stubs: usize) -> Option<Missed> {
    // SAFETY: the caller's: mapped text.
    let text = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
    let instructions: Vec<usize> = instructions(text).collect();
    let mut sites = find(text, &instructions);
    sites.truncate(STUB_BYTES / 64 - 1);
    // SAFETY: making libc's text writable for the time of the patch; nobody else runs.
    let writable = unsafe {
        checked(
            libc::SYS_mprotect,
            [start, end - start, (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as usize, 0, 0, 0],
        )
    };
    if writable.is_err() {
        return None;
    }
    // SAFETY: `stubs` is ours and large enough; the first word holds the common entry's address.
    unsafe { (stubs as *mut usize).write(farmem_site as *const () as usize) };
    let mut at = stubs + 16;
    let put = |place: usize, at: usize, code: &[u8]| {
        let mut jump = vec![0xe9];
        jump.extend(rel(place + 5, at));
        // SAFETY: the stub area is ours; the site is five bytes of libc's text that nobody runs now.
        unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), at as *mut u8, code.len());
            std::ptr::copy_nonoverlapping(jump.as_ptr(), place as *mut u8, 5);
        }
    };
    let missed = missed(&instructions, &sites).into_iter().map(|offset| start + offset + 2).collect();
    let mut known = Vec::with_capacity(sites.len());
    for site in sites {
        let place = start + site.offset;
        let mut code: Vec<u8> = Vec::with_capacity(64);
        let clone3 = site.kind == Kind::Mov(libc::SYS_clone3 as u32);
        if clone3 || site.kind == Kind::Mov(libc::SYS_clone as u32) {
            // What it makes would share this thread's records and not its descriptors (see [`fork::is_half`]).
            shares_memory_alone(&mut code, clone3, fork::SHARING);
            code.extend([0x75, 0x0c]); // jne on
            code.extend([0x48, 0xc7, 0xc0]); // mov rax,-ENOSYS
            code.extend((-libc::ENOSYS).to_le_bytes());
            code.push(0xe9); // jmp behind the syscall instruction
            code.extend(rel(at + code.len() + 4, place + 7));
            announced(&mut code, at, clone3, stubs);
            // By clone3 libc makes threads, which the kernel counts; what it does not count its clone makes.
            SEES_CLONES.fetch_or(!clone3, Ordering::Relaxed);
        }
        if clone3 {
            // It takes the instruction that is still there, for the same reason as a clone below. But a
            // child of posix_spawn that shares the memory and has its handlers cleared (glibc 2.38) could
            // not fault on its arguments: refused as by an older kernel, and libc does it by hand.
            code.extend([0xf7, 0x47, 0x04, 0x01, 0x00, 0x00, 0x00]); // test dword [rdi+4],CLONE_CLEAR_SIGHAND >> 32
            code.extend([0x74, 0x0c]); // jz native
            code.extend([0x48, 0xc7, 0xc0]); // mov rax,-EINVAL
            code.extend((-libc::EINVAL).to_le_bytes());
            code.push(0xe9); // jmp behind the syscall instruction
            code.extend(rel(at + code.len() + 4, place + 7));
            code.push(0xb8); // native: mov eax,SYS_clone3
            code.extend((libc::SYS_clone3 as u32).to_le_bytes());
            code.push(0xe9); // jmp to it
            code.extend(rel(at + code.len() + 4, place + 5));
            put(place, at, &code);
            at = (at + code.len()).next_multiple_of(16);
            continue;
        }
        if site.kind == Kind::Mov(libc::SYS_vfork as u32) {
            counted(&mut code, at, place, libc::SYS_vfork);
            put(place, at, &code);
            COUNTS_VFORKS.store(true, Ordering::Relaxed);
            at = (at + code.len()).next_multiple_of(16);
            continue;
        }
        if site.kind == Kind::Mov(libc::SYS_clone as u32) {
            clone(&mut code, at, place, stubs);
            put(place, at, &code);
            at = (at + code.len()).next_multiple_of(16);
            continue;
        }
        if let Kind::Mov(nr) | Kind::MovLea(nr) = site.kind {
            if nr as i64 == libc::SYS_clone {
                // Behind a `lea` stands only what fork does; were it a thread, it would take the instruction there.
                code.extend([0xf7, 0xc7, 0x00, 0x01, 0x00, 0x00]); // test edi,CLONE_VM
                code.extend([0x74, 0x0a]); // jz fork
                code.push(0xb8);
                code.extend(nr.to_le_bytes());
                code.push(0xe9); // jmp to what follows the load
                code.extend(rel(at + code.len() + 4, place + 5));
            }
            code.push(0xb8);
            code.extend(nr.to_le_bytes());
        }
        if let Kind::MovLea(_) = site.kind {
            let lea = &text[site.offset + 5..site.offset + 12];
            code.extend(&lea[..3]);
            let by = i32::from_le_bytes([lea[3], lea[4], lea[5], lea[6]]);
            if lea[2] & 0xc7 == 0x05 {
                code.extend(rel(at + code.len() + 4, (place + 12).wrapping_add_signed(by as isize)));
            } else {
                code.extend(by.to_le_bytes());
            }
        }
        if site.kind == Kind::Loop {
            code.extend(&text[site.offset..site.offset + 4]);
        }
        code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
        let call = at + code.len();
        code.extend([0xff, 0x15]); // call [rip+rel]
        code.extend(rel(at + code.len() + 4, stubs));
        let called = at + code.len();
        code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
        let (compare, back): (&[u8], usize) = match site.kind {
            Kind::Mov(_) => (&[], place + 7),
            Kind::MovLea(_) => (&[], place + 14),
            Kind::Compare64 => (&COMPARE64, place + 8),
            Kind::Compare32 => (&COMPARE32, place + 7),
            Kind::Loop => (&[], place),
        };
        code.extend(compare);
        code.push(0xe9);
        code.extend(rel(at + code.len() + 4, back));
        put(place, at, &code);
        let forks = matches!(site.kind, Kind::MovLea(nr) if nr as i64 == libc::SYS_clone);
        if site.kind != Kind::Loop && !forks {
            known.push(Stub { at, call, called, end: at + code.len(), place, kind: site.kind });
        }
        at = (at + code.len()).next_multiple_of(16);
    }
    let _ = STUBS.set(known);
    let run = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    // SAFETY: both ranges as above.
    unsafe {
        syscall(libc::SYS_mprotect, [start, end - start, run, 0, 0, 0]);
        syscall(libc::SYS_mprotect, [stubs, (at - stubs).next_multiple_of(4096), run, 0, 0, 0]);
    }
    Some(missed)
}

/// A clone: what copies the memory is a fork, which is dispatched. The stack that it may have asked for is not the
/// kernel's to switch to, for the child has work to do before the program's code goes on: the stub does, then. All else
/// (a thread) leaves on another stack than it came on, and takes the instruction that is still there.
fn clone(code: &mut Vec<u8>, at: usize, place: usize, stubs: usize) {
    code.extend([0xb8]); // mov eax,SYS_clone
    code.extend((libc::SYS_clone as u32).to_le_bytes());
    code.extend([0xf7, 0xc7, 0x00, 0x01, 0x00, 0x00]); // test edi,CLONE_VM
    code.extend([0x0f, 0x85]); // jnz shares
    let shares = code.len();
    code.extend([0; 4]);
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
    code.push(0x56); // push rsi
    code.extend([0x31, 0xf6]); // xor esi,esi
    code.extend([0xff, 0x15]); // call [rip+rel]
    code.extend(rel(at + code.len() + 4, stubs));
    code.push(0x5e); // pop rsi
    code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
    code.extend([0x48, 0x85, 0xc0]); // test rax,rax
    code.extend([0x0f, 0x85]); // jnz behind it: the parent, or an error
    code.extend(rel(at + code.len() + 4, place + 7));
    code.extend([0x48, 0x85, 0xf6]); // test rsi,rsi
    code.extend([0x0f, 0x84]); // jz behind it: a child on a copy of the same stack
    code.extend(rel(at + code.len() + 4, place + 7));
    code.extend([0x48, 0x89, 0xf4]); // mov rsp,rsi
    code.push(0xe9); // jmp behind it
    code.extend(rel(at + code.len() + 4, place + 7));
    let here = rel(at + shares + 4, at + code.len());
    code.splice(shares..shares + 4, here);
    code.extend([0xf7, 0xc7, 0x00, 0x40, 0x00, 0x00]); // shares: test edi,CLONE_VFORK
    code.extend([0x0f, 0x84]); // jz to the syscall instruction
    code.extend(rel(at + code.len() + 4, place + 5));
    counted(code, at, place, libc::SYS_clone);
}

/// Equal: of these flags a clone has CLONE_VM alone. (What the kernel leaves in rcx nobody needs.)
fn shares_memory_alone(code: &mut Vec<u8>, clone3: bool, of: u32) {
    code.extend(if clone3 { [0x8b, 0x0f] } else { [0x89, 0xf9] }); // mov ecx,[rdi], or edi
    code.extend([0x81, 0xe1]); // and ecx,…
    code.extend(of.to_le_bytes());
    code.extend([0x81, 0xf9]); // cmp ecx,CLONE_VM
    code.extend(libc::CLONE_VM.to_le_bytes());
}

/// [`fork::company_begins`] in the stub of a clone, or clone3, before it is made.
fn announced(code: &mut Vec<u8>, at: usize, clone3: bool, stubs: usize) {
    shares_memory_alone(code, clone3, fork::BESIDE);
    code.extend([0x75, 0x18]); // jne on
    code.push(0xb8); // mov eax,…
    code.extend((fork::COMPANY[clone3 as usize] as u32).to_le_bytes());
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
    code.extend([0xff, 0x15]); // call [rip+rel]
    code.extend(rel(at + code.len() + 4, stubs));
    code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
}

/// A call that makes a vfork child, which goes on behind it, counted as long as its parent waits for it there. (What the
/// kernel leaves in rcx nobody needs.)
fn counted(code: &mut Vec<u8>, at: usize, place: usize, nr: i64) {
    let count = |code: &mut Vec<u8>, instruction: u8| {
        code.extend([0x48, 0xb9]); // mov rcx,VFORKS
        code.extend((open::VFORKS.as_ptr() as usize).to_le_bytes());
        code.extend([0xf0, 0xff, instruction]); // lock inc, or dec, [rcx]
    };
    count(code, 0x01);
    code.push(0xb8); // mov eax,nr
    code.extend((nr as u32).to_le_bytes());
    code.extend(SYSCALL);
    code.extend([0x48, 0x85, 0xc0]); // test rax,rax
    code.extend([0x74, 0x0d]); // jz behind the next: the child
    count(code, 0x09);
    code.push(0xe9); // jmp behind it
    code.extend(rel(at + code.len() + 4, place + 7));
}

/// Whether libc's vfork is among the patched sites.
pub fn counts_vforks() -> bool {
    COUNTS_VFORKS.load(Ordering::Relaxed)
}

static COUNTS_VFORKS: AtomicBool = AtomicBool::new(false);

/// Whether clones of libc's are among them, so that it is known who begins beside the program's only thread.
pub fn sees_clones() -> bool {
    SEES_CLONES.load(Ordering::Relaxed)
}

static SEES_CLONES: AtomicBool = AtomicBool::new(false);

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// cmp rax,-4096
const COMPARE64: [u8; 6] = [0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff];
/// cmp eax,-4096
const COMPARE32: [u8; 5] = [0x3d, 0x00, 0xf0, 0xff, 0xff];

/// What is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// The load of this number, right before the instruction.
    Mov(u32),
    /// The load of this number, before a `lea` and the instruction.
    MovLea(u32),
    /// The instruction and a comparison.
    Compare64,
    /// As above, of 32 bits.
    Compare32,
    /// `xor edi,edi`, the number from a register, the instruction, and a jump back to the first.
    Loop,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Site {
    offset: usize,
    kind: Kind,
}

fn find(text: &[u8], instructions: &[usize]) -> Vec<Site> {
    let mut sites = Vec::new();
    for &at in instructions.iter().filter(|at| (6..text.len().saturating_sub(8)).contains(at)) {
        let before = &text[at - 6..at];
        if before[1] == 0xb8 && before[4..] == [0, 0] && before[0] & 0xf0 != 0x40 {
            let nr = u32::from_le_bytes([before[2], before[3], 0, 0]);
            if is_number(nr) {
                sites.push(Site { offset: at - 5, kind: Kind::Mov(nr) });
            }
        } else if let Some(nr) = number_before_lea(&text[at.saturating_sub(13)..at]) {
            sites.push(Site { offset: at - 12, kind: Kind::MovLea(nr) });
        } else if text[at + 2..].starts_with(&COMPARE64) {
            sites.push(Site { offset: at, kind: Kind::Compare64 });
        } else if text[at + 2..].starts_with(&COMPARE32) {
            sites.push(Site { offset: at, kind: Kind::Compare32 });
        } else if is_loop(&text[at - 4..at + 4]) {
            sites.push(Site { offset: at - 4, kind: Kind::Loop });
        }
    }
    // Where nobody may come in between.
    let boundaries = |s: &Site| match s.kind {
        Kind::Mov(_) => [usize::MAX; 2],
        Kind::MovLea(_) => [s.offset + 5, s.offset + 12],
        Kind::Compare64 | Kind::Compare32 => [s.offset + 2, usize::MAX],
        Kind::Loop => [s.offset + 2, s.offset + 4],
    };
    let mut inner: Vec<usize> = sites.iter().flat_map(boundaries).filter(|&b| b != usize::MAX).collect();
    inner.sort_unstable();
    let entered = branched_to(text, &inner);
    sites.retain(|s| boundaries(s).iter().all(|b| !entered.contains(b)));
    sites
}

/// Those `syscall` instructions, and whatever looks like one, that no site covers.
fn missed(instructions: &[usize], sites: &[Site]) -> Vec<usize> {
    let instruction = |s: &Site| match s.kind {
        Kind::Mov(_) => s.offset + 5,
        Kind::MovLea(_) => s.offset + 12,
        Kind::Compare64 | Kind::Compare32 => s.offset,
        Kind::Loop => s.offset + 4,
    };
    let covered: Vec<usize> = sites.iter().map(instruction).collect();
    instructions.iter().copied().filter(|at| covered.binary_search(at).is_err()).collect()
}

/// Where `syscall` instructions stand, or two bytes that look like one.
pub(crate) fn instructions(text: &[u8]) -> impl Iterator<Item = usize> {
    let [first, second] = SYSCALL;
    positions(text, move |bytes, next| {
        // SAFETY: SSE2 is part of x86-64.
        unsafe { _mm_and_si128(equal(bytes, first), equal(next, second)) }
    })
}

/// Where the opcodes of branches with a distance of four bytes stand (`call`, `jmp`; and `jcc`, of two bytes), or what looks
/// like one.
fn branches(text: &[u8]) -> impl Iterator<Item = usize> {
    positions(text, |bytes, next| {
        // SAFETY: as above.
        unsafe {
            let unconditional = equal(_mm_and_si128(bytes, _mm_set1_epi8(!1)), 0xe8);
            let conditional = equal(_mm_and_si128(next, _mm_set1_epi8(0xf0_u8 as i8)), 0x80);
            _mm_or_si128(unconditional, _mm_and_si128(equal(bytes, 0x0f), conditional))
        }
    })
}

#[inline(always)]
fn equal(bytes: __m128i, to: u8) -> __m128i {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_cmpeq_epi8(bytes, _mm_set1_epi8(to as i8)) }
}

/// Where bytes stand that `marks` fills with ones, by themselves and the bytes next to them; behind the last one come zeros.
/// A program's start waits for this, and libc's text is a megabyte and a half: a loop over it takes several milliseconds, a
/// `memchr` for each of its common bytes nearly two, and this 0.3: of 64 bytes at a time, for the end of each step's
/// places is one that the CPU guesses wrong.
fn positions(text: &[u8], marks: impl Fn(__m128i, __m128i) -> __m128i) -> impl Iterator<Item = usize> {
    const STEP: usize = u64::BITS as usize;
    let whole = text.len().saturating_sub(1) / STEP * STEP;
    let mut end = [0; 2 * STEP];
    end[..text.len() - whole].copy_from_slice(&text[whole..]);
    // What was found of the step that ends at `at`.
    let (mut found, mut at) = (0u64, 0);
    std::iter::from_fn(move || {
        while found == 0 {
            let from = match at {
                _ if at < whole => text[at..].as_ptr(),
                _ if at < text.len() => end[at - whole..].as_ptr(),
                _ => return None,
            };
            for part in (0..STEP).step_by(size_of::<__m128i>()) {
                // SAFETY: in all 65 bytes, of the text (`whole` is less than its length) or of its end and zeros behind it.
                let marked = unsafe {
                    let (bytes, next) = (from.add(part), from.add(part + 1));
                    _mm_movemask_epi8(marks(_mm_loadu_si128(bytes.cast()), _mm_loadu_si128(next.cast())))
                };
                found |= (marked as u64) << part;
            }
            at += STEP;
        }
        let place = at - STEP + found.trailing_zeros() as usize;
        found &= found - 1;
        Some(place)
    })
}

/// Numbers of calls that are patched; `vfork` has a stub of its own ([`counted`]).
fn is_number(nr: u32) -> bool {
    nr < 512 && nr as i64 != libc::SYS_rt_sigreturn
}

/// Such eight bytes; the number is in one of the lower seven registers.
fn is_loop(bytes: &[u8]) -> bool {
    matches!(bytes, [0x31, 0xff, 0x89, from, 0x0f, 0x05, 0xeb, 0xf8] if from & 0xc7 == 0xc0)
}

/// The number that `mov $NR,%eax` loads right before `lea disp32(…),%r64`, which ends the bytes given.
fn number_before_lea(before: &[u8]) -> Option<u32> {
    let &[prefix, 0xb8, a, b, 0, 0, rex, 0x8d, mode, _, _, _, _] = before else { return None };
    let nr = u32::from_le_bytes([a, b, 0, 0]);
    // Relative to rip, or to a register without a scale byte.
    let lea = matches!(rex, 0x48 | 0x49 | 0x4c | 0x4d)
        && (mode & 0xc7 == 0x05 && rex & 1 == 0 || mode & 0xc0 == 0x80 && mode & 7 != 4);
    (prefix & 0xf0 != 0x40
        && lea
        && is_number(nr)
        && !matches!(nr as i64, libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork))
    .then_some(nr)
}

/// Which of some offsets (sorted) a branch may go to. Every byte is taken for an opcode: too many are
/// found rather than too few.
fn branched_to(text: &[u8], offsets: &[usize]) -> Vec<usize> {
    let mut found = Vec::new();
    // Short branches start within 128 bytes of where they go: looked for from there.
    for &target in offsets {
        let is_branch = |at: usize| {
            matches!(text[at], 0xeb | 0x70..=0x7f | 0xe0..=0xe3)
                && (at + 2).wrapping_add_signed(text[at + 1] as i8 as isize) == target
        };
        if (target.saturating_sub(129)..(target + 127).min(text.len().saturating_sub(1))).any(is_branch) {
            found.push(target);
        }
    }
    // A bit for each line of 64 bytes with an offset in it: nearly all branches go elsewhere.
    let mut lines = vec![0u64; text.len() / 4096 + 1];
    for &offset in offsets {
        lines[offset / 4096] |= 1 << (offset / 64 % 64);
    }
    let mut note = |distance_at: usize| {
        let Some(by) = text.get(distance_at..distance_at + 4).and_then(|b| b.try_into().ok()) else { return };
        let target = (distance_at + 4).wrapping_add_signed(i32::from_le_bytes(by) as isize);
        let line = lines.get(target / 4096).copied().unwrap_or(0);
        if line >> (target / 64 % 64) & 1 != 0 && offsets.binary_search(&target).is_ok() {
            found.push(target);
        }
    };
    branches(text).for_each(|at| note(if text[at] == 0x0f { at + 2 } else { at + 1 }));
    found
}

pub(crate) fn rel(from: usize, to: usize) -> [u8; 4] {
    ((to as isize - from as isize) as i32).to_le_bytes()
}

/// A writable mapping of `len` bytes within reach of a relative jump from `text`.
pub(crate) fn near(text: usize, len: usize) -> Option<usize> {
    let len = len.next_multiple_of(4096);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    (1..1500usize).find_map(|step| {
        let at = (text & !0xfff).checked_sub(step << 20)?;
        // SAFETY: a fresh mapping at a free address, or a refusal.
        unsafe {
            checked(
                libc::SYS_mmap,
                [at, len, (libc::PROT_READ | libc::PROT_WRITE) as usize, flags as usize, usize::MAX, 0],
            )
        }
        .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instructions(text: &[u8]) -> Vec<usize> {
        super::instructions(text).collect()
    }

    fn find(text: &[u8]) -> Vec<Site> {
        super::find(text, &instructions(text))
    }

    #[test]
    fn only_whole_sequences_are_sites() {
        let mut text = vec![
            0x90, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, // munmap
            0x41, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, // mov r8d: not ours
            0x90, 0xb8, 0x0b, 0, 0, 1, 0x0f, 0x05, // not a number
            0x90, 0xb8, 0x0e, 0, 0, 0, 0x48, 0x8d, 0x35, 1, 2, 3, 4, 0x0f, 0x05, // a mask, by lea
            0x31, 0xc0, 0x0f, 0x05, 0x48, 0x3d, 0, 0xf0, 0xff, 0xff, // read
            0x0f, 0x05, 0x3d, 0, 0xf0, 0xff, 0xff, // something else
            0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf8, // the end of a thread
            0x31, 0xff, 0x89, 0xd0, 0x0f, 0x05, 0xeb, 0xf6, // a jump elsewhere
        ];
        text.extend([0x90; 10]);
        let munmap = Site { offset: 1, kind: Kind::Mov(11) };
        let read = Site { offset: 41, kind: Kind::Compare64 };
        let other = Site { offset: 49, kind: Kind::Compare32 };
        let mask = Site { offset: 25, kind: Kind::MovLea(14) };
        let end = Site { offset: 56, kind: Kind::Loop };
        let sites = find(&text);
        assert_eq!(sites, [munmap, mask, read, other, end]);
        assert_eq!(
            missed(&instructions(&text), &sites),
            [14, 22, 68],
            "the instructions behind what is not a load of a number"
        );
        // A branch to the comparison of the last one.
        text.extend([0xeb, 0]);
        let from = text.len();
        text[from - 1] = (51 - from as i8) as u8;
        text.extend([0x90; 8]);
        assert_eq!(find(&text), [munmap, mask, read, end]);
        // A call to that of the one before, and a long conditional branch behind the load of the mask's number.
        for (code, target) in [(&[0xe8][..], 43), (&[0x0f, 0x85][..], 30)] {
            text.extend(code);
            text.extend((target - (text.len() as i32 + 4)).to_le_bytes());
        }
        text.extend([0x90; 8]);
        assert_eq!(find(&text), [munmap, end]);
    }

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

    /// The quick searches, against plain ones, in real code: of this test.
    #[test]
    fn searches_miss_nothing() {
        let code = std::fs::read("/proc/self/exe").unwrap();
        let middle = code.len() / 2;
        let text = &code[middle..(middle + (1 << 20)).min(code.len())];
        let plain = (0..text.len() - 1).filter(|&at| text[at..at + 2] == SYSCALL);
        assert!(super::instructions(text).eq(plain));
        // At every distance from the end of a step, and at the text's own.
        for len in 0..200 {
            for at in 0..len {
                let mut text = vec![0x0f; len];
                text[at] = 0x05;
                let expected = at.checked_sub(1);
                assert!(super::instructions(&text).eq(expected), "{len} {at}");
                text[at] = 0xe9;
                assert!(branches(&text).eq([at]), "{len} {at}");
            }
        }
        let mut targets = Vec::new();
        for (at, &opcode) in text.iter().enumerate() {
            let (distance_at, short) = match opcode {
                0xeb | 0x70..=0x7f | 0xe0..=0xe3 => (at + 1, true),
                0xe8 | 0xe9 => (at + 1, false),
                0x0f if matches!(text.get(at + 1), Some(0x80..=0x8f)) => (at + 2, false),
                _ => continue,
            };
            let end = distance_at + if short { 1 } else { 4 };
            let Some(distance) = text.get(distance_at..end) else { continue };
            let by = match short {
                true => distance[0] as i8 as isize,
                false => i32::from_le_bytes(distance.try_into().unwrap()) as isize,
            };
            targets.push(end.wrapping_add_signed(by));
        }
        targets.sort_unstable();
        let offsets: Vec<usize> = (0..text.len()).step_by(7).collect();
        let mut found = branched_to(text, &offsets);
        found.sort_unstable();
        found.dedup();
        let expected: Vec<usize> = offsets.iter().copied().filter(|o| targets.binary_search(o).is_ok()).collect();
        assert!(expected.len() > 1000, "{}", expected.len());
        assert_eq!(found, expected);
    }
}
