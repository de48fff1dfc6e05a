//! Mappings that are not ours at far addresses: files, shared memory, and near memory that the
//! program has moved there. The kernel keeps what is in them; here is kept only that their
//! addresses are taken, under the same lock as our own mappings.
//!
//! A refusal by the kernel must leave what was there as it is, as it does without farmem. So a
//! mapping that is to replace others is first made aside, and only then are they taken away.

use super::Space;
use crate::kernel::{self, Aside, Origin};
use crate::maps::regions::{OnFork, Region};
use crate::maps::{EINVAL, Maps, in_range, page_up};
use farmem_protocol::addr::{PAGE_BYTES, is_far};
use farmem_sys::raw::SignalsBlocked;

fn region(end: usize, prot: i32) -> Region {
    Region { end, prot, committed: false, noreserve: true, foreign: true, on_fork: OnFork::Copy }
}

impl Space {
    /// The range is about to be replaced by a mapping that is not ours (a file, shared memory),
    /// which the caller makes next with `MAP_FIXED`. Its addresses stay taken until they are
    /// unmapped.
    pub fn forget_range(&self, addr: usize, len: usize, prot: i32) -> isize {
        self.empty(addr, len, |space, end| space.regions(addr).insert(addr, region(end, prot)))
    }

    /// Where mappings that are not ours end that begin at or before `at`, if that is before `end`.
    pub fn behind_foreign(&self, at: usize, end: usize) -> Option<usize> {
        let page = at & !(PAGE_BYTES - 1);
        if at >= end || !in_range(page, end - page) {
            return None;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let mut behind = page;
        for (from, region) in space.regions(page).within(page, end) {
            if from != behind || !region.foreign {
                break;
            }
            behind = region.end;
        }
        (behind > page && behind < end).then_some(behind)
    }

    /// Lays a mapping that is not ours (a file, shared memory) at far addresses by `lay`, which gets
    /// the address: over whatever is there, or, if it `spares`, only where nothing is. The kernel
    /// lays whole pages, each of `page` bytes.
    pub fn lay_foreign(
        &self,
        addr: usize,
        len: usize,
        prot: i32,
        spares: bool,
        page: usize,
        lay: impl Fn(usize) -> isize,
    ) -> isize {
        let Some(len) = len.checked_next_multiple_of(page).filter(|&l| l > 0) else { return EINVAL };
        if !addr.is_multiple_of(page) || !in_range(addr, len) {
            return EINVAL;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let free = space.regions(addr).is_free(addr, len);
        if !spares && !free {
            let tried = match Aside::new(addr, len) {
                Ok(aside) => lay(aside.at()),
                Err(e) => e,
            };
            if tried < 0 {
                return tried;
            }
            self.take_away(&mut space, addr, addr + len);
        }
        // The kernel sees what is there, too, and refuses what spares it.
        let ret = lay(addr);
        if ret >= 0 {
            space.regions(addr).remove(addr, addr + len);
            space.regions(addr).insert(addr, region(addr + len, prot));
        }
        ret
    }

    /// Moves a near mapping to far addresses by `move_to`, over whatever is there. It stays what it
    /// is. `from`: where it is.
    pub fn move_in(
        &self,
        addr: usize,
        len: usize,
        from: Option<Origin>,
        move_to: impl FnOnce(usize) -> isize,
    ) -> isize {
        let Some(len) = page_up(len).filter(|&l| l > 0) else { return EINVAL };
        if !addr.is_multiple_of(PAGE_BYTES) || !in_range(addr, len) {
            return EINVAL;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        self.replace(&mut space, addr, len, libc::PROT_READ | libc::PROT_WRITE, from, move_to)
    }

    /// Lets `move_to` move a mapping to far addresses, by way of memory aside. If it cannot go on
    /// from there, it goes back.
    fn replace(
        &self,
        space: &mut Maps,
        addr: usize,
        len: usize,
        prot: i32,
        from: Option<Origin>,
        move_to: impl FnOnce(usize) -> isize,
    ) -> isize {
        let aside = match Aside::new(addr, len) {
            Ok(aside) => aside,
            Err(e) => return e,
        };
        let moved = move_to(aside.at());
        if moved < 0 {
            return moved;
        }
        self.take_away(space, addr, addr + len);
        let ret = aside.move_to(addr, from);
        if ret >= 0 {
            space.regions(addr).insert(addr, region(addr + len, prot));
        }
        ret
    }

    /// Attaches shared memory at far addresses by `attach`: over anything there (`over`), or only
    /// where nothing is. The lock is held meanwhile, so that no other thread maps there.
    pub fn attach(&self, addr: usize, len: usize, prot: i32, over: bool, attach: impl FnOnce() -> isize) -> isize {
        let Some(len) = page_up(len).filter(|&l| l > 0 && in_range(addr, l)) else { return EINVAL };
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        if !over && !space.regions(addr).is_free(addr, len) {
            return EINVAL;
        }
        self.take_away(&mut space, addr, addr + len);
        let ret = attach();
        if ret >= 0 {
            space.regions(addr).insert(addr, region(addr + len, prot));
            space.attached.retain(|&(at, _)| at != addr);
            space.attached.push((addr, len));
        }
        ret
    }

    /// Detaches shared memory at a far address by `detach`: the part of it that is still there, and
    /// not what the program has mapped between.
    pub fn detach(&self, addr: usize, detach: impl FnOnce() -> isize) -> isize {
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let ret = detach();
        if let Some(n) = space.attached.iter().position(|&(at, _)| at == addr && ret >= 0) {
            let (_, len) = space.attached.swap_remove(n);
            for (at, part) in space.regions(addr).within(addr, addr + len) {
                if part.foreign {
                    space.regions(addr).remove(at, part.end);
                }
            }
        }
        ret
    }

    /// mremap of a mapping at far addresses that is not ours. `None` where it is ours, or nothing.
    ///
    /// The kernel moves it, to near addresses unless the program names far ones. The lock is held
    /// meanwhile, so that no other thread maps where it grows.
    pub fn mremap_foreign(&self, old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Option<isize> {
        let (old_len, new_len) = (page_up(old_len)?, page_up(new_len)?);
        if !old.is_multiple_of(PAGE_BYTES) || old_len == 0 || new_len == 0 || !in_range(old, old_len.max(new_len)) {
            return None;
        }
        let _signals = SignalsBlocked::new();
        let _inside = self.base.threads.enter();
        let mut space = self.base.maps.lock();
        let parts = space.regions(old).within(old, old + old_len);
        let &[(_, kind)] = parts.as_slice() else { return None };
        if kind.end != old + old_len || !kind.foreign {
            return None;
        }
        if flags & libc::MREMAP_FIXED != 0 && is_far(new) {
            if !new.is_multiple_of(PAGE_BYTES) || !in_range(new, new_len) {
                return Some(EINVAL);
            }
            if new < old + old_len && old < new + new_len {
                return Some(EINVAL);
            }
            let move_to = |aside| kernel::remap(old, old_len, new_len, flags, aside);
            let from = Origin::of(old, old_len, new_len, flags);
            let ret = self.replace(&mut space, new, new_len, kind.prot, from, move_to);
            if ret >= 0 && flags & libc::MREMAP_DONTUNMAP == 0 {
                space.regions(old).remove(old, old + old_len);
            }
            return Some(ret);
        }
        let ret = kernel::remap(old, old_len, new_len, flags, new);
        if ret < 0 {
            return Some(ret);
        }
        let at = ret as usize;
        if at == old {
            if new_len < old_len {
                space.regions(old).remove(old + new_len, old + old_len);
            } else if new_len > old_len {
                space.regions(old).insert(old + old_len, region(old + new_len, kind.prot));
            }
            return Some(ret);
        }
        if flags & libc::MREMAP_DONTUNMAP == 0 {
            space.regions(old).remove(old, old + old_len);
        }
        if is_far(at) {
            space.regions(at).insert(at, region(at + new_len, kind.prot));
        }
        Some(ret)
    }
}
