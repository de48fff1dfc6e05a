//! The net: the seccomp filter for calls that do not go through a patched site.
//!
//! It traps every system call with a far argument, unless the call comes from the gate. It also
//! traps, by their addresses, the calls of libc's sites that could not be patched, if they are
//! dispatched whatever their arguments. It refuses [`REFUSED`] without a trap, wherever they come
//! from: liburing makes these calls without libc, with arguments on near stacks.
//!
//! The filter is inherited over exec, by images that have no handler yet or never will (static
//! programs). So it traps nothing but far arguments, which such an image does not have. If such an
//! image asks for memory at a far hint, the filter answers ENOMEM, and the image takes memory
//! elsewhere. Go's runtime does so: since 1.26 its heap begins at a random address, one time in two
//! a far one. The filter answers [`REFUSED`] without a trap in such an image too. It also traps at
//! a few exact addresses, where libc was in an earlier image; a later image has a `syscall`
//! instruction there only by chance of the layout. (Not by chance where both images are Go's at
//! fixed addresses: there calls are marked too, see [`crate::go`].) A register that is no argument
//! of the call may hold anything, and is not looked at. (The loader has been seen to start with
//! 0x2118_0000_0000 in one.)
//!
//! Filters only add up, each costs time in every call, and the kernel allows some
//! dozens of this size. So an image tries first whether it has inherited one.

use crate::call::{ALWAYS, MARK, NEVER};
use crate::filter::{
    ALLOW, ANY_OF, ARCH, AT_LEAST, EQUAL, ERRNO, GO, IP_HIGH, IP_LOW, LOAD, MOST_MISSED, Missed, NUMBER, RETURN, SHIFT,
    TRAP, X86_64, arg_high, has_room, op,
};
use crate::gate::{AFTER_PROGRAM, AFTER_SYSCALL};
use crate::guard::arity::{CALLS, arguments};
use farmem_protocol::addr::{FAR_END, FAR_SHIFT};
use farmem_sys::raw::{Errno, checked};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Calls whose buffers the kernel uses at times nobody is told of: ENOSYS, as [`crate::dispatch`]
/// says to libc's.
const REFUSED: [i64; 2] = [libc::SYS_io_uring_setup, libc::SYS_io_setup];

/// The sites of this image that are not patched: of libc's, and of its own.
static MISSED: [AtomicUsize; 3 * MOST_MISSED] = [const { AtomicUsize::new(0) }; 3 * MOST_MISSED];
/// Whether some of them mark their calls.
static MARKED: AtomicBool = AtomicBool::new(false);

/// Whether this image has marked calls ([`crate::go`]).
pub fn has_marked() -> bool {
    MARKED.load(Ordering::Relaxed)
}

/// Whether a trapped call came from one of the sites that are not patched.
pub fn is_missed(after: usize) -> bool {
    after != 0 && MISSED.iter().any(|m| m.load(Ordering::Relaxed) == after)
}

/// ```text
///  arch is x86-64?              no  → allow
///  one of REFUSED?              yes → ENOSYS
///  any of six registers far?    no  → from one of libc's missed sites, and one of ALWAYS?  yes → trap, no → allow
///  from the gate?               yes → allow
///  an argument of this call?    no  → allow
///  mmap, the first, a hint?     yes → ENOMEM
///  one of NEVER?                yes → allow
///  trap
/// ```
/// `look_at_arguments`: without it only the missed sites are looked for. `mark`: a bit that is set
/// in the numbers there.
fn program(look_at_arguments: bool, missed: &[usize], mark: u32) -> Vec<libc::sock_filter> {
    // Where the parts begin.
    let looked_at = if look_at_arguments { 6 } else { 0 };
    let refused: &[i64] = if look_at_arguments { &REFUSED } else { &[] };
    let sites_at = 2 + if refused.is_empty() { 0 } else { refused.len() + 3 } + looked_at * 4;
    let allow_at = sites_at + if missed.is_empty() { 0 } else { 3 + missed.len() };
    let always_at = allow_at + 1;
    let far_at = always_at + if missed.is_empty() { 0 } else { 1 + ALWAYS.len() + 2 };
    let reach = |from: usize, to: usize| (to - from - 1) as u8;
    let mut p = vec![op(LOAD, ARCH, 0, 0), op(EQUAL, X86_64, 0, reach(1, allow_at))];
    if !refused.is_empty() {
        p.push(op(LOAD, NUMBER, 0, 0));
        p.extend(refused.iter().enumerate().map(|(i, &nr)| op(EQUAL, nr as u32, (refused.len() - i) as u8, 0)));
        p.push(op(GO, 1, 0, 0));
        p.push(op(RETURN, ERRNO | libc::ENOSYS as u32, 0, 0));
    }
    let parts: Vec<_> = (0..looked_at).map(far_register).collect();
    let mut part_at = far_at;
    for (i, part) in parts.iter().enumerate() {
        p.push(op(LOAD, arg_high(i as u32), 0, 0));
        p.push(op(SHIFT, FAR_SHIFT - 32, 0, 0));
        p.push(op(EQUAL, 1, 0, 1));
        p.push(op(GO, (part_at - p.len() - 1) as u32, 0, 0));
        part_at += part.len();
    }
    if let Some(&first) = missed.first() {
        p.push(op(LOAD, IP_HIGH, 0, 0));
        p.push(op(EQUAL, (first >> 32) as u32, 0, reach(p.len(), allow_at)));
        p.push(op(LOAD, IP_LOW, 0, 0));
        for &after in missed {
            p.push(op(EQUAL, after as u32, reach(p.len(), always_at), 0));
        }
    }
    p.push(op(RETURN, ALLOW, 0, 0));
    if !missed.is_empty() {
        p.push(op(LOAD, NUMBER, 0, 0));
        let trap_at = far_at - 1;
        for &nr in ALWAYS {
            let to = if NEVER.contains(&nr) { trap_at - 1 } else { trap_at };
            p.push(op(EQUAL, nr as u32 | mark, reach(p.len(), to), 0));
        }
        p.push(op(RETURN, ALLOW, 0, 0));
        p.push(op(RETURN, TRAP, 0, 0));
    }
    p.extend(parts.into_iter().flatten());
    p
}

/// The part for a far value in register `i`, while those before it are near: calls that have no
/// such argument may pass. Over all numbers that is a row of stretches, looked through from above.
fn far_register(i: usize) -> Vec<libc::sock_filter> {
    let mut p = vec![
        op(LOAD, IP_HIGH, 0, 0),
        op(EQUAL, (AFTER_SYSCALL >> 32) as u32, 0, 4),
        op(LOAD, IP_LOW, 0, 0),
        op(EQUAL, AFTER_PROGRAM as u32, 1, 0),
        op(EQUAL, AFTER_SYSCALL as u32, 0, 1),
        op(RETURN, ALLOW, 0, 0),
        op(LOAD, NUMBER, 0, 0),
    ];
    if i == 0 {
        // A mere hint. An image with a handler loses little by the answer: libc's calls do not come
        // this way.
        p.push(op(EQUAL, libc::SYS_mmap as u32, 0, 4));
        p.push(op(LOAD, arg_high(3) - 4, 0, 0));
        p.push(op(ANY_OF, (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u32, 1, 0));
        p.push(op(RETURN, ERRNO | libc::ENOMEM as u32, 0, 0));
        p.push(op(RETURN, TRAP, 0, 0));
    }
    let passes = |nr: usize| arguments(nr) <= i || NEVER.contains(&(nr as i64));
    let starts: Vec<usize> = (0..=CALLS).rev().filter(|&nr| nr == 0 || passes(nr) != passes(nr - 1)).collect();
    let allow_at = p.len() + starts.len();
    for start in starts {
        let to = allow_at + !passes(start) as usize;
        p.push(op(AT_LEAST, start as u32, (to - p.len() - 1) as u8, 0));
    }
    p.push(op(RETURN, ALLOW, 0, 0));
    p.push(op(RETURN, TRAP, 0, 0));
    p
}

/// Instructions of a filter that looks for nothing.
const NOTHING: usize = 3;

/// Where nothing is ever mapped.
const NOWHERE: usize = FAR_END - 4096;
static TRYING: AtomicBool = AtomicBool::new(false);
/// The handler's return value for a trial.
pub const CAUGHT: i64 = 1;

/// Whether a filter that looks at arguments is there already: a call is made that it would trap.
/// The handler of SIGSYS is installed, and asks [`is_trial`].
fn is_inherited() -> bool {
    let mut ret = libc::SYS_read;
    TRYING.store(true, Ordering::Relaxed);
    // SAFETY: nothing is read, from no descriptor, to where nothing is mapped. The call does not go
    // through the gate, from which all calls may pass. (`read`, because an inherited filter of the
    // program's own allows that, if anything.)
    unsafe {
        core::arch::asm!("syscall", inout("rax") ret, in("rdi") usize::MAX, in("rsi") NOWHERE, in("rdx") 0, out("rcx") _, out("r11") _);
    }
    TRYING.store(false, Ordering::Relaxed);
    ret == CAUGHT
}

/// Whether a trapped call is such a trial.
pub fn is_trial(nr: i64, second: usize) -> bool {
    TRYING.load(Ordering::Relaxed) && nr == libc::SYS_read && second == NOWHERE
}

/// Arms the filter for this process and all that it starts. False where libc has more sites that
/// are not patched than are looked for. `marked`, `others`: such sites of the program's own image,
/// for filters of their own: all that are marked, and of the others as many as one can look for.
pub fn arm(missed: &Missed, marked: &Missed, others: &Missed) -> Result<bool, Errno> {
    let known = by_filter(missed);
    let mut plain = Missed::new();
    for &after in others {
        if has_room(&plain, after) {
            plain.push(after);
        }
    }
    for (slot, &after) in MISSED.iter().zip(known.iter().flatten().chain(marked).chain(&plain)) {
        slot.store(after, Ordering::Relaxed);
    }
    MARKED.store(!marked.is_empty(), Ordering::Relaxed);
    let mut filters = known.iter();
    install(program(!is_inherited(), filters.next().unwrap_or(&Missed::new()), 0))?;
    for sites in filters {
        install(program(false, sites, 0))?;
    }
    install(program(false, marked, MARK))?;
    install(program(false, &plain, 0))?;
    Ok(known.iter().flatten().count() == missed.len())
}

/// libc's sites, at most [`MOST_MISSED`], as filters can look for them: one compares the upper
/// halves of addresses once. Of some three thousand layouts one has a multiple of 4 GiB in the
/// midst of libc's text, and needs two.
fn by_filter(missed: &[usize]) -> Vec<Missed> {
    let mut filters: Vec<Missed> = Vec::new();
    for &after in missed.iter().take(MOST_MISSED) {
        match filters.iter_mut().find(|sites| has_room(sites, after)) {
            Some(sites) => sites.push(after),
            None => filters.push(vec![after]),
        }
    }
    filters
}

/// Adds a filter, if it looks for anything.
fn install(mut program: Vec<libc::sock_filter>) -> Result<(), Errno> {
    if program.len() <= NOTHING {
        return Ok(());
    }
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let ask = [libc::PR_SET_SECCOMP as usize, 2, &filter as *const _ as usize, 0, 0, 0];
    // A privileged user's programs keep set-user-ID bits in force, as without farmem. Others' must
    // give them up first: the kernel demands it of whoever filters calls. SAFETY: the program is
    // live for the call; the kernel copies it.
    unsafe {
        match checked(libc::SYS_prctl, ask) {
            Err(Errno(libc::EACCES)) => {
                checked(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0])?;
                checked(libc::SYS_prctl, ask).map(drop)
            }
            installed => installed.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::run;

    /// One of the sites that are not patched.
    const SITE: u64 = 0x7fed_cba9_8700;

    #[test]
    fn missed_sites_trap_for_what_is_always_dispatched_and_for_nothing_else() {
        for site in [SITE, SITE + 16 * (MOST_MISSED as u64 - 1)] {
            let others = ALWAYS.iter().filter(|nr| !NEVER.contains(nr) && !REFUSED.contains(nr));
            others.for_each(|&nr| assert_eq!(run_nr(nr, site, [0; 6]), TRAP, "call {nr}"));
            assert_eq!(run_nr(libc::SYS_read, site, [0; 6]), ALLOW);
            assert_eq!(run_nr(libc::SYS_close, site + 1, [0; 6]), ALLOW);
            assert_eq!(run_nr(libc::SYS_close, site ^ 1 << 40, [0; 6]), ALLOW);
            assert_eq!(run_nr(libc::SYS_close, AFTER_SYSCALL as u64, [0; 6]), ALLOW);
        }
    }

    #[test]
    fn sites_on_both_sides_of_a_multiple_of_4_gib_are_all_looked_for() {
        let sites: Vec<usize> = (0..20).map(|i| 0x7f50_ffff_ff00 + 32 * i).collect();
        let filters = by_filter(&sites);
        assert_eq!(filters.iter().flatten().count(), sites.len());
        for &site in &sites {
            let traps = |sites: &Missed| run(&program(false, sites, 0), libc::SYS_close, site as u64, [0; 6]) == TRAP;
            assert!(filters.iter().any(traps), "{site:x}");
        }
    }

    fn run_mmap(ip: u64, args: [u64; 6]) -> u32 {
        run_nr(libc::SYS_mmap, ip, args)
    }

    fn run_nr(nr: i64, ip: u64, args: [u64; 6]) -> u32 {
        let missed: Vec<usize> = (0..MOST_MISSED).map(|i| SITE as usize + 16 * i).collect();
        run(&program(true, &missed, 0), nr, ip, args)
    }

    #[test]
    fn only_far_arguments_from_elsewhere_are_trapped() {
        let far = farmem_protocol::addr::FAR_START as u64 + 5;
        assert_eq!(run_mmap(0x1234, [1, 2, 3, 4, 5, 6]), ALLOW);
        assert_eq!(run_mmap(0x1234, [u64::MAX, 0x7fff_ffff_f000, 0, 0, 0, 0]), ALLOW);
        for nr in (0..CALLS + 10).map(|nr| nr as i64).filter(|nr| !REFUSED.contains(nr)) {
            let has = if NEVER.contains(&nr) { 0 } else { arguments(nr as usize) };
            for i in 0..6 {
                // A mapping at just that place.
                let mut args = [0, 0, 0, libc::MAP_FIXED as u64, 0, 0];
                args[i] = far;
                assert_eq!(run_nr(nr, 0x1234, args), if i < has { TRAP } else { ALLOW }, "call {nr}, register {i}");
                assert_eq!(run_nr(nr, AFTER_SYSCALL as u64, args), ALLOW);
                assert_eq!(run_nr(nr, AFTER_PROGRAM as u64, args), ALLOW);
                args[i] = farmem_protocol::addr::FAR_END as u64;
                assert_eq!(run_nr(nr, 0x1234, args), ALLOW);
            }
        }
        assert_eq!(run_nr(libc::SYS_read, 0x1234, [0, far, far, far, far, far]), TRAP);
        assert_eq!(run_nr(libc::SYS_close, 0x1234, [3, far, far, far, far, far]), ALLOW);
    }

    /// By images that have no handler.
    #[test]
    fn memory_hinted_at_among_far_addresses_is_not_to_be_had() {
        let far = farmem_protocol::addr::FAR_START as u64;
        let flags = [0, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE];
        let asks = |ip, flags: i32| run_mmap(ip, [far, 4096, 0, flags as u64, u64::MAX, 0]);
        for flags in flags {
            assert_eq!(asks(0x49_09a4, flags), ERRNO | libc::ENOMEM as u32);
            assert_eq!(asks(AFTER_SYSCALL as u64, flags), ALLOW);
            for fixed in [libc::MAP_FIXED, libc::MAP_FIXED_NOREPLACE] {
                assert_eq!(asks(0x49_09a4, flags | fixed), TRAP);
            }
        }
        assert_eq!(run_nr(libc::SYS_munmap, 0x49_09a4, [far, 4096, 0, 0, 0, 0]), TRAP);
    }

    #[test]
    fn refused_calls_are_refused_wherever_they_come_from() {
        let far = farmem_protocol::addr::FAR_START as u64;
        for ip in [0x1234, SITE, AFTER_SYSCALL as u64] {
            for nr in REFUSED {
                assert_eq!(run_nr(nr, ip, [4, 0x7fff_0000_0000, 0, 0, 0, 0]), ERRNO | libc::ENOSYS as u32);
                assert_eq!(run_nr(nr, ip, [4, far, 0, 0, 0, 0]), ERRNO | libc::ENOSYS as u32);
            }
        }
    }

    #[test]
    fn a_filter_stays_within_what_the_kernel_takes() {
        let sites: Vec<usize> = (0..MOST_MISSED).map(|i| SITE as usize + 16 * i).collect();
        // BPF_MAXINSNS; and MAX_INSNS_PER_PATH, 32768, for those that add up.
        assert!(program(true, &sites, 0).len() <= 900, "{}", program(true, &sites, 0).len());
        assert_eq!(program(false, &[], 0).len(), NOTHING);
        assert!((0..6).all(|i| far_register(i).len() < 256));
    }
}
