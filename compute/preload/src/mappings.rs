//! Calls that change mappings: far ones go to the pager, near ones to the kernel, and those that
//! reach across are made in parts.

use crate::call::{Call, issue};
use crate::process::pager;
use crate::{guard, limits, threads};
use farmem_pager::{Origin, Part};
use farmem_protocol::addr::{FAR_END, FAR_START, PAGE_BYTES, is_far};
use farmem_sys::raw::{SignalsBlocked, read_file, syscall};
use std::sync::atomic::{AtomicUsize, Ordering};

const EINVAL: isize = -(libc::EINVAL as isize);
const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// A range that a mapping replaces: none.
const NOTHING: (usize, usize) = (0, 0);

/// How far the heap may grow, if it began near and stays there; else 0.
static NEAR_BREAK: AtomicUsize = AtomicUsize::new(0);

/// The heap stays near: its break is the kernel's, and not to be higher than this.
pub fn keep_near_break(at: usize) {
    NEAR_BREAK.store(at, Ordering::Relaxed);
}

/// brk. A near heap that was there before us shrinks as it likes; more is refused as the kernel
/// does, by the break that is: libc takes whatever comes back for the break from then on.
pub fn brk(call: &Call, to: usize) -> isize {
    match NEAR_BREAK.load(Ordering::Relaxed) {
        0 => {
            let now = pager().space.brk(0);
            pager().space.brk(if to > now && !limits::allow(to - now, DATA, NOTHING) { 0 } else { to }) as isize
        }
        most if to <= most => issue(call),
        _ => issue(&Call { args: [0; 6], ..*call }),
    }
}

/// Where the last mapping lies that was asked for elsewhere, by a hint; 0 once that is settled. And
/// how long it is.
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);
static ELSEWHERE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// How many such the program has given back at once, one after the other, and taken none without a
/// hint between them (as mimalloc does, to which a hint is only a hint).
static GIVEN_BACK: AtomicUsize = AtomicUsize::new(0);
/// After this many hints the program gets the address that it hints at, which is near. Java's ZGC
/// hints at thousands of addresses and takes no other; Go gives up 32 before its hints are far
/// ones.
const PATIENCE: usize = 40;

/// Whether the program takes memory only where it hints at. Asked when it hints.
fn insists() -> bool {
    if ELSEWHERE.swap(0, Ordering::Relaxed) != 0 {
        // It has kept the last.
        GIVEN_BACK.store(0, Ordering::Relaxed);
    }
    GIVEN_BACK.load(Ordering::Relaxed) >= PATIENCE
}

/// The program unmaps `len` bytes at `addr`. (Who cuts a mapping to size keeps the rest of it.)
fn refused_if_elsewhere(addr: usize, len: usize) {
    if is_far(addr)
        && len >= ELSEWHERE_BYTES.load(Ordering::Relaxed)
        && ELSEWHERE.compare_exchange(addr, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        GIVEN_BACK.fetch_add(1, Ordering::Relaxed);
    }
}

/// mmap: far if the pager wants it, near as it stands.
pub fn mmap(call: &Call) -> isize {
    let [addr, len, prot, flags, fd, _] = call.args;
    let (prot, flags) = (prot as i32, flags as i32);
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let hinted = addr != 0 && !fixed && !is_far(addr);
    if pager().space.wants(addr, len, flags) && !(hinted && insists()) {
        let noreplace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
        let replaced = if fixed && !noreplace { (addr, len) } else { NOTHING };
        if !limits::allow(len, prot, replaced) {
            return -(libc::ENOMEM as isize);
        }
        let at = pager().space.mmap(addr, len, prot, flags);
        if hinted && at > 0 {
            ELSEWHERE_BYTES.store(len, Ordering::Relaxed);
            ELSEWHERE.store(at as usize, Ordering::Relaxed);
        } else if GIVEN_BACK.load(Ordering::Relaxed) < PATIENCE {
            GIVEN_BACK.store(0, Ordering::Relaxed);
        }
        return at;
    }
    if fixed && is_far(addr) && len > 0 {
        return lay_foreign(call);
    } else if is_far(addr) {
        // A mere hint. The kernel follows it where nothing lies, and a program that keeps pointers in
        // a file insists on it. Other near memory must not come to lie among far addresses.
        let of_file = flags & libc::MAP_ANONYMOUS == 0 || flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
        if of_file && flags & libc::MAP_GROWSDOWN == 0 && len > 0 {
            let spares = flags | libc::MAP_FIXED_NOREPLACE;
            let at = addr.next_multiple_of(PAGE_BYTES);
            let laid =
                lay_foreign(&Call { args: [at, len, prot as usize, spares as usize, fd, call.args[5]], ..*call });
            if laid >= 0 {
                return laid;
            }
        }
        return issue(&Call { args: [0, len, prot as usize, flags as usize, fd, call.args[5]], ..*call });
    }
    issue(call)
}

/// Makes a call of the program's while the pager's lock is held. The program's handler of a trap might
/// come to wait for that lock, so a call that its filter traps is refused.
fn issue_locked(call: &Call) -> isize {
    threads::current().without_traps(|| issue(call)).unwrap_or(-(libc::EPERM as isize))
}

/// mmap of a file or shared memory at far addresses. While the pager's lock is held nothing is
/// brought in, which may take long.
fn lay_foreign(call: &Call) -> isize {
    let [addr, len, prot, flags, fd, offset] = call.args;
    let (access, kind) = (prot as i32, flags as i32);
    let page = page_bytes(kind, fd);
    let spares = kind & libc::MAP_FIXED_NOREPLACE != 0;
    let locks = kind & libc::MAP_LOCKED != 0;
    let later = kind & !(libc::MAP_POPULATE | libc::MAP_LOCKED);
    let ret = pager().space.lay_foreign(addr, len, access, spares, page, |at| {
        let ret = issue_locked(&Call { args: [at, len, prot, later as usize, fd, offset], ..*call });
        if ret < 0 || !locks {
            return ret;
        }
        let lock = [at, len, libc::MLOCK_ONFAULT as usize, 0, 0, 0];
        let locked = issue_locked(&Call { nr: libc::SYS_mlock2, args: lock, ..*call });
        if locked >= 0 {
            return ret;
        }
        // A trial goes with the room that it lies in.
        if at == addr {
            // SAFETY: the mapping that was just made.
            unsafe { syscall(libc::SYS_munmap, [at, len.next_multiple_of(page), 0, 0, 0, 0]) };
        }
        let refused = if locked == -(libc::EPERM as isize) { libc::EPERM } else { libc::EAGAIN };
        -(refused as isize)
    });
    let now = kind & (libc::MAP_POPULATE | libc::MAP_NONBLOCK) == libc::MAP_POPULATE;
    if ret >= 0 && (now || locks) {
        let copies = access & libc::PROT_WRITE != 0 && kind & libc::MAP_TYPE == libc::MAP_PRIVATE;
        let advice = if copies { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // What does not come in now comes when it is touched. SAFETY: changes nothing that is there.
        unsafe { syscall(libc::SYS_madvise, [addr, len, advice as usize, 0, 0, 0]) };
    }
    ret
}

/// The bytes of a page, in whole ones of which the kernel maps this: huge ones too.
fn page_bytes(flags: i32, fd: usize) -> usize {
    const SIZES: [usize; 2] = [2 << 20, 1 << 30];
    let size = (flags >> libc::MAP_HUGE_SHIFT & libc::MAP_HUGE_MASK) as u32;
    match (flags & libc::MAP_ANONYMOUS != 0, flags & libc::MAP_HUGETLB != 0) {
        (true, false) => PAGE_BYTES,
        // The kernel refuses sizes that it does not have.
        (true, true) if size > 0 => 1usize.checked_shl(size).unwrap_or(0).max(PAGE_BYTES),
        (true, true) => {
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_HUGETLB;
            // SAFETY: a fresh mapping, of which only whole pages can be unmapped: that tells.
            unsafe {
                let at = syscall(libc::SYS_mmap, [0, 1, libc::PROT_NONE as usize, kind as usize, usize::MAX, 0]);
                let whole = |size: &usize| syscall(libc::SYS_munmap, [at as usize, *size, 0, 0, 0, 0]) == 0;
                // Without huge pages the program's mapping is refused, too.
                if at < 0 { PAGE_BYTES } else { SIZES.into_iter().find(whole).unwrap_or(PAGE_BYTES) }
            }
        }
        (false, _) => {
            // SAFETY: plain data, which the kernel fills; live objects.
            unsafe {
                let (mut file, mut system): (libc::stat, libc::statfs) = std::mem::zeroed();
                let fills = |nr, to: usize| syscall(nr, [fd, to, 0, 0, 0, 0]) == 0;
                // A filter of the program's knows of no fstatfs: it is only asked where it may matter.
                let huge = fills(libc::SYS_fstat, &raw mut file as usize)
                    && SIZES.contains(&(file.st_blksize as usize))
                    && fills(libc::SYS_fstatfs, &raw mut system as usize)
                    && system.f_type == libc::HUGETLBFS_MAGIC;
                if huge { file.st_blksize as usize } else { PAGE_BYTES }
            }
        }
    }
}

/// mprotect.
pub fn mprotect(call: &Call) -> isize {
    let prot = call.args[2] as i32;
    by_parts(call, |at, len| {
        if limits::allow_protection(at, len, prot) {
            pager().space.mprotect(at, len, prot)
        } else {
            -(libc::ENOMEM as isize)
        }
    })
}

/// pkey_mprotect, in a process that has no key but the one that every page has.
///
/// Keys cannot be had ([`crate::dispatch`]): a fault's handler starts with the right to key 0
/// alone, and must read the pages that it evicts. A key that a library has allocated by a `syscall`
/// instruction of its own is unknown here.
pub fn pkey_mprotect(call: &Call) -> isize {
    match call.args[3] as i32 {
        -1 | 0 => mprotect(&Call { nr: libc::SYS_mprotect, ..*call }),
        _ => by_parts(call, |_, _| -(libc::EINVAL as isize)),
    }
}

/// munmap.
pub fn munmap(call: &Call) -> isize {
    refused_if_elsewhere(call.args[0], call.args[1]);
    by_parts(call, |at, len| pager().space.munmap(at, len))
}

/// A call on a range, `args[0]` and `args[1]`, which may reach from near addresses into far ones.
pub fn by_parts(call: &Call, far: impl Fn(usize, usize) -> isize) -> isize {
    let [addr, len, ..] = call.args;
    if is_far(addr) {
        return far(addr, len);
    }
    let end = addr.saturating_add(len);
    // The kernel refuses a range that leaves the address space as a whole: it does not unmap up to
    // the start of the far range.
    if end <= FAR_START || addr >= FAR_END || end > guard::pins::USER_END {
        return issue(call);
    }
    let mut near = *call;
    near.args[1] = FAR_START - addr;
    let below = issue(&near);
    let within = far(FAR_START, end.min(FAR_END) - FAR_START);
    if end > FAR_END {
        near.args[0] = FAR_END;
        near.args[1] = end - FAR_END;
        let above = issue(&near);
        if above < 0 {
            return above;
        }
    }
    if below < 0 { below } else { within }
}

/// mremap, out of far memory, into it and within it.
pub fn mremap(call: &Call) -> isize {
    let [old, old_len, new_len, flags, new, _] = call.args;
    let flags = flags as i32;
    if is_far(old) {
        if let Some(moved) = pager().space.mremap_foreign(old, old_len, new_len, flags, new) {
            return moved;
        }
        let out = flags & libc::MREMAP_FIXED != 0 && !is_far(new);
        if out || flags & libc::MREMAP_DONTUNMAP != 0 {
            return copied(old, old_len, new_len, flags, new);
        }
        if new_len > old_len && !limits::allow(new_len - old_len, pager().space.protection(old), NOTHING) {
            return -(libc::ENOMEM as isize);
        }
        return pager().space.mremap(old, old_len, new_len, flags, new);
    }
    if flags & libc::MREMAP_FIXED != 0 && is_far(new) {
        // Near memory moves to far addresses and stays what it is. Of huge pages the kernel moves whole
        // ones, whatever the lengths.
        let page = page_bytes_at(old);
        let [old_len, new_len] = [old_len, new_len].map(|len| len.checked_next_multiple_of(page));
        let (Some(old_len), Some(new_len), true) = (old_len, new_len, new.is_multiple_of(page)) else { return EINVAL };
        let from = Origin::of(old, old_len, new_len, flags);
        return pager().space.move_in(new, new_len, from, |to| {
            let mut moving = *call;
            moving.args[4] = to;
            issue_locked(&moving)
        });
    }
    issue(call)
}

/// The bytes of a page of the near mapping at an address.
fn page_bytes_at(at: usize) -> usize {
    const LEAST_HUGE: usize = 2 << 20;
    // The kernel moves huge pages from their borders only.
    if !at.is_multiple_of(LEAST_HUGE) {
        return PAGE_BYTES;
    }
    // Advice that changes nothing: refused for huge pages, and for little else.
    // SAFETY: no memory is passed.
    let advised = unsafe { syscall(libc::SYS_madvise, [at, PAGE_BYTES, libc::MADV_COLD as usize, 0, 0, 0]) };
    if advised != EINVAL {
        return PAGE_BYTES;
    }
    // The text is allocated: no handler that may allocate is to come between.
    let _signals = SignalsBlocked::new();
    read_file(c"/proc/self/smaps").ok().and_then(|text| page_bytes_in(&text, at)).unwrap_or(PAGE_BYTES)
}

/// The bytes of a page of the mapping at an address, as a text of smaps has them.
fn page_bytes_in(smaps: &[u8], at: usize) -> Option<usize> {
    let mut is_there = false;
    for line in smaps.split(|&byte| byte == b'\n') {
        let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
        let first = std::str::from_utf8(words.next().unwrap_or(b"")).unwrap_or("");
        let bound = |text: &str| usize::from_str_radix(text, 16).ok();
        if let Some((from, to)) = first.split_once('-').and_then(|(from, to)| bound(from).zip(bound(to))) {
            is_there = (from..to).contains(&at);
        } else if is_there && first == "KernelPageSize:" {
            let kib: usize = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
            return kib.checked_mul(1024).filter(|bytes| bytes.is_power_of_two());
        }
    }
    None
}

/// The moves of far memory that the pager does not make, by copying: to near addresses, where it is
/// near from then on, and those that leave an empty mapping behind. The protection moves along.
fn copied(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> isize {
    const KNOWN: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let (Some(from), Some(len)) = (old_len.checked_next_multiple_of(PAGE_BYTES), whole_pages(new_len)) else {
        return EINVAL;
    };
    let stays = flags & libc::MREMAP_DONTUNMAP != 0;
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let aligned = old.is_multiple_of(PAGE_BYTES) && (!fixed || new.is_multiple_of(PAGE_BYTES));
    let overlaps = fixed && new < old.saturating_add(from) && old < new.saturating_add(len);
    if flags & !KNOWN != 0
        || flags & libc::MREMAP_MAYMOVE == 0
        || !aligned
        || overlaps
        || from == 0
        || stays && from != len
    {
        return EINVAL;
    }
    if from > FAR_END - old {
        return -(libc::EFAULT as isize);
    }
    // All of it is there, before anything changes.
    let (mut at, mut writable) = (old, false);
    while at < old + from {
        let Some(part) = pager().space.part(at, old + from) else { return -(libc::EFAULT as isize) };
        at += part.len;
        writable |= part.prot & libc::PROT_WRITE != 0;
    }
    // Memory that nobody may write needs no room of its own.
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | if writable { 0 } else { libc::MAP_NORESERVE };
    let to = if fixed && !is_far(new) {
        let args = [new, len, DATA as usize, (kind | libc::MAP_FIXED) as usize, usize::MAX, 0];
        issue(&Call { nr: libc::SYS_mmap, args, sp: 0 })
    } else {
        pager().space.mmap(new, len, DATA, kind | if fixed { libc::MAP_FIXED } else { 0 })
    };
    if to < 0 {
        return to;
    }
    let (mut at, kept) = (old, old + from.min(len));
    while at < kept {
        let Some(part) = pager().space.part(at, kept) else { break };
        at += part.len;
        // The growth is protected like the end.
        let room = if at == kept { old + len - part.at } else { part.len };
        copy_part(part, to as usize + (part.at - old), room, stays);
    }
    if stays {
        pager().space.madvise(old, from, libc::MADV_DONTNEED);
    } else {
        pager().space.munmap(old, from);
    }
    to
}

/// Copies a part of far memory to fresh memory, `room` bytes of which get its protection. The part
/// keeps it where it `stays`.
fn copy_part(part: Part, to: usize, room: usize, stays: bool) {
    let space = &pager().space;
    let readable = part.prot & libc::PROT_READ != 0;
    if !readable {
        space.mprotect(part.at, part.len, part.prot | libc::PROT_READ);
    }
    space.touched(part.at, part.len, |page| {
        // SAFETY: both are mapped, the one may be read and the other written; user-mode accesses,
        // which fault like the program's.
        unsafe { std::ptr::copy_nonoverlapping(page as *const u8, (to + (page - part.at)) as *mut u8, PAGE_BYTES) };
    });
    if !readable && stays {
        space.mprotect(part.at, part.len, part.prot);
    }
    if part.prot == DATA {
        return;
    }
    if is_far(to) {
        space.mprotect(to, room, part.prot);
    } else {
        let args = [to, room, part.prot as usize, 0, 0, 0];
        issue(&Call { nr: libc::SYS_mprotect, args, sp: 0 });
    }
}

/// A length in whole pages; none of nothing.
fn whole_pages(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_BYTES).filter(|&len| len > 0)
}

/// shmat at a far address: there, and nowhere else. The kernel reports other errors.
pub fn shmat(call: &Call) -> isize {
    let [id, addr, flags, ..] = call.args;
    let flags = flags as i32;
    let at = if flags & libc::SHM_RND != 0 { addr & !(PAGE_BYTES - 1) } else { addr };
    if !at.is_multiple_of(PAGE_BYTES) {
        return issue(call);
    }
    // SAFETY: plain data, which the kernel fills.
    let mut segment: libc::shmid_ds = unsafe { std::mem::zeroed() };
    let about = [id, libc::IPC_STAT as usize, &raw mut segment as usize, 0, 0, 0];
    let ret = issue(&Call { nr: libc::SYS_shmctl, args: about, sp: call.sp });
    if ret < 0 {
        return ret;
    }
    let write = if flags & libc::SHM_RDONLY == 0 { libc::PROT_WRITE } else { 0 };
    let execute = if flags & libc::SHM_EXEC != 0 { libc::PROT_EXEC } else { 0 };
    let over = flags & libc::SHM_REMAP != 0;
    pager().space.attach(at, segment.shm_segsz, libc::PROT_READ | write | execute, over, || issue_locked(call))
}

/// shmdt of what lies at a far address.
pub fn shmdt(call: &Call) -> isize {
    pager().space.detach(call.args[0], || issue_locked(call))
}

/// mincore of a far range, part by part.
pub fn mincore(addr: usize, len: usize, vec: usize) -> isize {
    const PAGES: usize = 512;
    let mut done = 0;
    loop {
        let part = (len - done).min(PAGES * PAGE_BYTES);
        let mut told = [0u8; PAGES];
        let ret = pager().space.mincore(addr + done, part, |page, resident| told[page] = resident as u8);
        if ret < 0 {
            return ret;
        }
        let pages = part.div_ceil(PAGE_BYTES);
        if pages > 0 && !guard::peek::poke_from(vec + done / PAGE_BYTES, &told[..pages]) {
            return guard::peek::BAD_ADDRESS;
        }
        done += part;
        if done == len {
            return ret;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_large_as_smaps_says() {
        let smaps = b"00400000-00452000 r-xp 00000000 08:02 173521  /usr/bin/a-b\n\
            Size:                328 kB\nKernelPageSize:        4 kB\nMMUPageSize:           4 kB\n\
            7f0000200000-7f0000600000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)\n\
            Size:               4096 kB\nKernelPageSize:     2048 kB\nMMUPageSize:        2048 kB\n\
            7f0000600000-7f0000700000 rw-p 00000000 00:00 0 \nSize: 1024 kB\n";
        let at = |at| page_bytes_in(smaps, at);
        assert_eq!([at(0x400000), at(0x451fff), at(0x452000)], [Some(4096), Some(4096), None]);
        assert_eq!([at(0x7f0000200000), at(0x7f0000400000), at(0x7f0000600000)], [Some(2 << 20), Some(2 << 20), None]);
    }
}
