//! Limits on addresses that the program sets (`RLIMIT_AS`, `RLIMIT_DATA`), for itself or for what
//! it executes.
//!
//! The runtime's tables reserve far more addresses than such limits allow, and take next to no
//! memory. Under the program's limit the kernel would refuse every mapping from then on, and no
//! program could be executed. So the kernel is given a limit that is higher by [`ABOVE`], and the
//! program is told its own. Far mappings are held to the program's limit here. (Near ones, files
//! and stacks, are not counted.) The kernel keeps the number over fork and exec, so nothing need be
//! remembered. An image without the runtime finds a limit too high to matter.
//!
//! A lower hard limit from before the run stays as it is, and so does a limit set under it.

use crate::call::Call;
use crate::guard;
use crate::guard::peek::{peek, poke};
use crate::process::pager;
use farmem_sys::raw::{Errno, checked};
use std::sync::atomic::{AtomicBool, Ordering};

/// 64 TiB: half of all addresses, so that no limit that means something is as high.
const ABOVE: u64 = 1 << 46;
const NONE: u64 = u64::MAX;
const KINDS: [usize; 2] = [libc::RLIMIT_AS as usize, libc::RLIMIT_DATA as usize];

/// The kernel's `rlimit`: soft, hard.
type Limit = [u64; 2];

/// Whether the program may have such limits. If not, the limits are not looked up.
static LIMITED: AtomicBool = AtomicBool::new(false);

fn raised(limit: u64) -> u64 {
    if limit < NONE - ABOVE { limit + ABOVE } else { NONE }
}

fn told(limit: u64) -> u64 {
    if (ABOVE..NONE).contains(&limit) { limit - ABOVE } else { limit }
}

/// The kernel's present limit.
fn kernels(kind: usize) -> Result<Limit, Errno> {
    let mut limit: Limit = [NONE; 2];
    // SAFETY: a live rlimit; nothing is set.
    unsafe { checked(libc::SYS_prlimit64, [0, kind, 0, &raw mut limit as usize, 0, 0]) }.map(|_| limit)
}

/// At the start of an image: whether it was started under such a limit.
pub fn begin() {
    let is_ours = |kind: &usize| kernels(*kind).is_ok_and(|[soft, _]| (ABOVE..NONE).contains(&soft));
    LIMITED.store(KINDS.iter().any(is_ours), Ordering::Relaxed);
}

/// Whether `len` bytes far may be mapped with such a protection, in place of what is in `replaced`
/// (address, length).
pub fn allow(len: usize, prot: i32, replaced: (usize, usize)) -> bool {
    if !LIMITED.load(Ordering::Relaxed) {
        return true;
    }
    let (all, there) = pager().space.mapped(replaced.0, replaced.1);
    // As Linux counts: a mapping that replaces a reservation adds nothing, writable or not.
    let more = (len as u64).saturating_sub(there.bytes);
    let data = if prot & libc::PROT_WRITE != 0 { more } else { 0 };
    fits(libc::RLIMIT_AS, all.bytes, 0, more) && fits(libc::RLIMIT_DATA, all.writable, 0, data)
}

/// Whether what is mapped far in a range may get such a protection.
pub fn allow_protection(at: usize, len: usize, prot: i32) -> bool {
    if prot & libc::PROT_WRITE == 0 || !LIMITED.load(Ordering::Relaxed) {
        return true;
    }
    let (all, there) = pager().space.mapped(at, len);
    fits(libc::RLIMIT_DATA, all.writable, there.writable, there.bytes)
}

/// Whether `bytes` may take the place of `there` bytes. A replacement that is not larger is never
/// refused. (Writable bytes are data; Linux counts so in `may_expand_vm`.)
fn fits(kind: u32, now: u64, there: u64, bytes: u64) -> bool {
    let after = (now - there).saturating_add(bytes);
    after <= now || after <= kernels(kind as usize).map_or(NONE, |[soft, _]| told(soft))
}

/// getrlimit, setrlimit and prlimit64, in the kernel's place where they are about such a limit of
/// the caller's.
pub fn call(call: &Call) -> isize {
    let [a, b, c, d, ..] = call.args;
    let (mine, kind, new, old) = match call.nr {
        libc::SYS_getrlimit => (true, a, 0, b),
        libc::SYS_setrlimit => (true, a, b, 0),
        _ => (a == 0 || a == farmem_sys::raw::getpid() as usize, b, c, d),
    };
    if !mine || !KINDS.contains(&kind) {
        return guard::call(pager(), call);
    }
    let mut made = *call;
    let mut given: Limit;
    if new != 0 {
        let Some(wanted) = peek::<Limit>(new) else { return guard::peek::BAD_ADDRESS };
        let before = match kernels(kind) {
            Ok(before) => before,
            Err(e) => return -(e.0 as isize),
        };
        given = if before[1] >= ABOVE { wanted.map(raised) } else { wanted };
        made.args[if call.nr == libc::SYS_setrlimit { 1 } else { 2 }] = &raw mut given as usize;
    }
    // By the number it came with: a filter of the program's may know no other.
    let ret = guard::call(pager(), &made);
    if ret < 0 {
        return ret;
    }
    if new != 0 {
        LIMITED.store(true, Ordering::Relaxed);
    }
    if old == 0 {
        return ret;
    }
    let said = peek::<Limit>(old).is_some_and(|limit| poke(old, limit.map(told)));
    if said { ret } else { guard::peek::BAD_ADDRESS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_told() {
        for limit in [0, 1, 1 << 30, ABOVE - 1, NONE] {
            assert_eq!(told(raised(limit)), limit);
        }
        // Entries from before stay readable, and the order stays.
        assert_eq!(told(1 << 40), 1 << 40);
        assert!(raised(5) < raised(6) && raised(6) < raised(NONE) && raised(NONE) == NONE);
    }
}
