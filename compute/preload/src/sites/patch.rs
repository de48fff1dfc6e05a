//! Sites made to jump to stubs, and what a stub is.

use super::entry;
use super::standing::{STUBS, Stub};
use super::text::{COMPARE32, COMPARE64, Kind, SYSCALL, Site, find, instructions, missed};
use crate::filter::Missed;
use crate::fork;
use farmem_sys::members::SHARERS;
use farmem_sys::raw::{checked, syscall};
use std::sync::atomic::{AtomicBool, Ordering};

/// Room for the stubs of all sites: fewer than a thousand, of 48 bytes, and a few of up to 192 for
/// clones.
const STUB_BYTES: usize = 64 << 10;

/// Takes memory for stubs within reach of the text that starts at `text`. To be done before
/// anything large is mapped, because large mappings fill the addresses below libc.
pub fn reserve_stubs(text: usize) -> Option<usize> {
    near(text, STUB_BYTES)
}

/// Patches every site in the executable mapping `start..end` of libc; the stubs go to `stubs`.
/// Returns the sites that it leaves to the filter. In glibc 2.36 to 2.41 these are 20 to 30 of 420
/// to 570. None: libc's text cannot be patched.
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
    unsafe { (stubs as *mut usize).write(entry::address()) };
    let mut at = stubs + 16;
    let put = |place: usize, at: usize, code: &[u8]| {
        let mut jump = vec![0xe9];
        jump.extend(rel(place + 5, at));
        // SAFETY: the stub area is ours; the site is five bytes of libc's text that nobody runs
        // now.
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
        known.extend(stub(&mut code, &Spot { at, place, stubs }, text, &site));
        put(place, at, &code);
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

/// Where a stub is written, which site jumps to it, and where all stubs begin.
struct Spot {
    at: usize,
    place: usize,
    stubs: usize,
}

/// Writes the stub of a site. Returns its places, if a signal handler can be shown libc's own
/// instructions for them.
fn stub(code: &mut Vec<u8>, spot: &Spot, text: &[u8], site: &Site) -> Option<Stub> {
    let &Spot { at, place, stubs } = spot;
    match site.kind {
        Kind::Mov(nr) if nr == libc::SYS_clone3 as u32 => {
            begin_clone(code, spot, true);
            clone3(code, at, place);
            None
        }
        Kind::Mov(nr) if nr == libc::SYS_clone as u32 => {
            begin_clone(code, spot, false);
            clone(code, at, place, stubs);
            None
        }
        Kind::Mov(nr) if nr == libc::SYS_vfork as u32 => {
            counted(code, at, place, libc::SYS_vfork);
            COUNTS_VFORKS.store(true, Ordering::Relaxed);
            None
        }
        _ => {
            replaced(code, at, place, text, site);
            call(code, spot, site.kind)
        }
    }
}

/// The beginning of a clone's stub: a child that would share this thread's records and not its
/// descriptors is refused (see [`fork::is_half`]), and a companion is announced.
fn begin_clone(code: &mut Vec<u8>, &Spot { at, place, stubs }: &Spot, clone3: bool) {
    shares_memory_alone(code, clone3, fork::SHARING);
    code.extend([0x75, 0x0c]); // jne on
    code.extend([0x48, 0xc7, 0xc0]); // mov rax,-ENOSYS
    code.extend((-libc::ENOSYS).to_le_bytes());
    code.push(0xe9); // jmp behind the syscall instruction
    code.extend(rel(at + code.len() + 4, place + 7));
    announced(code, at, clone3, stubs);
    // libc makes threads by clone3, and the kernel counts those. The processes that it makes by
    // clone are not counted.
    SEES_CLONES.fetch_or(!clone3, Ordering::Relaxed);
}

/// A clone3 uses libc's own instruction, which is still there. The reason is that of a clone,
/// below. But a child of posix_spawn that shares the memory and has its handlers cleared (glibc
/// 2.38) could not fault on its arguments. It is refused as by an older kernel, and libc then does
/// the work itself.
fn clone3(code: &mut Vec<u8>, at: usize, place: usize) {
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
}

/// The instructions of a site that its jump has overwritten and that come before the call.
fn replaced(code: &mut Vec<u8>, at: usize, place: usize, text: &[u8], site: &Site) {
    if let Kind::Mov(nr) | Kind::MovLea(nr) = site.kind {
        if nr as i64 == libc::SYS_clone {
            // Behind a `lea` stands only what fork does; were it a thread, it would take the
            // instruction there.
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
}

/// The call into the runtime, and the way back behind the site.
fn call(code: &mut Vec<u8>, &Spot { at, place, stubs }: &Spot, kind: Kind) -> Option<Stub> {
    code.extend([0x48, 0x8d, 0x64, 0x24, 0x80]); // lea rsp,[rsp-128]
    let call = at + code.len();
    code.extend([0xff, 0x15]); // call [rip+rel]
    code.extend(rel(at + code.len() + 4, stubs));
    let called = at + code.len();
    code.extend([0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]); // lea rsp,[rsp+128]
    let (compare, back): (&[u8], usize) = match kind {
        Kind::Mov(_) => (&[], place + 7),
        Kind::MovLea(_) => (&[], place + 14),
        Kind::Compare64 => (&COMPARE64, place + 8),
        Kind::Compare32 => (&COMPARE32, place + 7),
        Kind::Loop => (&[], place),
    };
    code.extend(compare);
    code.push(0xe9);
    code.extend(rel(at + code.len() + 4, back));
    let forks = matches!(kind, Kind::MovLea(nr) if nr as i64 == libc::SYS_clone);
    (kind != Kind::Loop && !forks).then(|| Stub { at, call, called, end: at + code.len(), place, kind })
}

/// A clone that copies the memory is a fork, and is dispatched. If it asks for a stack, the kernel
/// may not switch to it, because the child has work to do before the program's code goes on: the
/// stub switches. Any other clone (a thread) leaves on another stack than it came on, and uses the
/// instruction that is still there.
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

/// A call that makes a vfork child, which goes on behind it, counted as long as its parent waits
/// for it there. (What the kernel leaves in rcx nobody needs.)
fn counted(code: &mut Vec<u8>, at: usize, place: usize, nr: i64) {
    let count = |code: &mut Vec<u8>, instruction: u8| {
        code.extend([0x48, 0xb9]); // mov rcx,SHARERS
        code.extend((SHARERS.as_ptr() as usize).to_le_bytes());
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

/// Whether clones of libc's are among them, so that it is known when a process begins that shares
/// the memory, and is counted by nobody.
pub fn sees_clones() -> bool {
    SEES_CLONES.load(Ordering::Relaxed)
}

static SEES_CLONES: AtomicBool = AtomicBool::new(false);

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
