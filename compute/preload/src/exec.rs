//! exec: the next program is told of the run, and finds its arguments.
//!
//! The strings of an exec may lie anywhere in far memory. They are not pinned: a
//! vfork child's pins would never be taken back. They are copied to near memory
//! that belongs to the thread; a vfork child is, to the runtime, the thread that
//! waits for it. `LD_PRELOAD` and `FARMEM_RUN` are put back where the program
//! has built its child an environment without them; the library is taken out of
//! `LD_PRELOAD` for a program that cannot load it ([`crate::image`]).

use crate::call::{Call, issue};
use crate::guard::peek::{BAD_ADDRESS, peek, peek_text};
use crate::start::{Pointers, variable};
use crate::stays_near::{self, Note};
use crate::{confined, signals, threads};
use farmem_protocol::addr::is_far;
use farmem_run::counters::Near;
use farmem_sys::holdings::{reserve, strike};
use farmem_sys::raw::syscall;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Settings that every program of the run must have in its environment: `NAME=value`,
/// NUL-terminated.
static CARRIED: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];
const NAMES: [&[u8]; 2] = [b"LD_PRELOAD=", b"FARMEM_RUN="];
/// The library's own path, within `LD_PRELOAD`'s value.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);
static LIBRARY_LEN: AtomicUsize = AtomicUsize::new(0);

/// Strings and vectors of one exec at most: beyond it, the kernel is left to refuse.
const LARGEST: usize = 16 << 20;

/// An address that no program may read.
const NOWHERE: usize = usize::MAX & !7;

/// Keeps this process's own two variables; of `LD_PRELOAD` this library alone. The others in it are
/// the program's to hand on or not. At start.
pub fn carry(variables: Pointers) {
    for (slot, name) in CARRIED.iter().zip(NAMES) {
        let Some(value) = variable(variables, name) else { continue };
        let preloads = name == NAMES[0];
        let value = if preloads { own_path(value) } else { value };
        let text: &'static mut [u8] = Box::leak([name, value, b"\0"].concat().into_boxed_slice());
        if preloads {
            LIBRARY.store(text.as_ptr() as usize + name.len(), Ordering::Relaxed);
            LIBRARY_LEN.store(value.len(), Ordering::Relaxed);
        }
        slot.store(text.as_mut_ptr(), Ordering::Relaxed);
    }
}

/// This library in a value of `LD_PRELOAD`, where a program may have put others before it.
fn own_path(list: &[u8]) -> &[u8] {
    const FILE: &[u8] = b"libfarmem_preload";
    let is_ours = |one: &&[u8]| one.rsplit(|&b| b == b'/').next().is_some_and(|file| file.starts_with(FILE));
    let mut parts = list.split(|b| matches!(b, b':' | b' '));
    parts.clone().find(is_ours).or(parts.next()).unwrap_or(list)
}

/// The library's path. After [`carry`].
pub fn library() -> &'static [u8] {
    match LIBRARY.load(Ordering::Relaxed) {
        0 => &[],
        // SAFETY: leaked by `carry`, with this length.
        at => unsafe { std::slice::from_raw_parts(at as *const u8, LIBRARY_LEN.load(Ordering::Relaxed)) },
    }
}

/// execve and execveat of the program's.
pub fn exec(call: &Call) -> isize {
    let (leaves_us, note) = without_us(call);
    let failed = exec_carrying(call, leaves_us);
    if let Some(note) = note {
        note.take_back();
    }
    failed
}

fn exec_carrying(call: &Call, leaves_us: bool) -> isize {
    let first = if call.nr == libc::SYS_execveat { 1 } else { 0 };
    let [path, argv, envp] = [call.args[first], call.args[first + 1], call.args[first + 2]];
    let mut carried = missing(envp);
    if leaves_us {
        carried[0] = 0;
    }
    let near_already = !leaves_us
        && carried.iter().all(|&c| c == 0)
        && !is_far(path)
        && [argv, envp].iter().all(|&v| !is_far(v) && vector(v).all(|text| !is_far(text)));
    if near_already {
        return bequeathing(call);
    }
    if let Some(bad) = [1, 2].into_iter().find(|&i| !ends(call.args[first + i])) {
        // The kernel is to say so, and whether anything else is wrong, the path before all.
        let mut changed = *call;
        changed.args[first + bad] = NOWHERE;
        let len = path_len(path);
        let Some(base) = scratch(len + 1) else { return -(libc::ENOMEM as isize) };
        let Some(near_path) = (Copy { at: base, end: base + len + 1 }).text(path) else { return BAD_ADDRESS };
        changed.args[first] = near_path;
        return bequeathing(&changed);
    }
    let mut size = 4096 + path_len(path);
    for at in [argv, envp] {
        for text in vector(at) {
            size += 8 + path_len(text);
        }
    }
    let size = size + carried.iter().map(|&c| path_len(c)).sum::<usize>();
    if size > LARGEST {
        return -(libc::E2BIG as isize);
    }
    let Some(base) = scratch(size) else { return -(libc::ENOMEM as isize) };
    let mut copy = Copy { at: base, end: base + size };
    let mut changed = *call;
    let Some(near_path) = copy.text(path) else { return BAD_ADDRESS };
    changed.args[first] = near_path;
    for (i, at, extra) in [(1, argv, [0; 2]), (2, envp, carried)] {
        if at == 0 && extra == [0; 2] {
            continue;
        }
        match copy.vector(at, extra, leaves_us && i == 2) {
            Some(near) => changed.args[first + i] = near,
            None => return BAD_ADDRESS,
        }
    }
    bequeathing(&changed)
}

/// Makes the call, whose arguments are near.
fn bequeathing(call: &Call) -> isize {
    let _bequest = signals::bequeath();
    issue(call)
}

/// Whether the library must be taken out of what is executed, and the note of it if it has no far
/// memory. A confined program may not be allowed to look.
fn without_us(call: &Call) -> (bool, Option<Note>) {
    let (directory, path) = match call.nr {
        libc::SYS_execveat => (call.args[0], call.args[1]),
        _ => (libc::AT_FDCWD as usize, call.args[0]),
    };
    let mut name = [0u8; libc::PATH_MAX as usize];
    let most = name.len() - 1;
    if confined::alone().is_some() {
        return (false, None);
    }
    let Some(len) = peek_text(path, name.as_mut_ptr(), most).filter(|&len| len > 0 && len < most) else {
        return (false, None);
    };
    let Some(kept) = stays_near::stays_near(directory, name.as_ptr() as usize) else { return (false, None) };
    if kept.why == Near::User && kept.leaves_us {
        stays_near::say_another_user();
    }
    (kept.leaves_us, Some(stays_near::note(&name[..len], kept.why)))
}

/// Whether a vector is null, or can be read to its end.
fn ends(at: usize) -> bool {
    // One that is longer than any may be is not looked at to its end.
    let words = (0..LARGEST / 8).map(|i| peek::<usize>(at.wrapping_add(8 * i)));
    at == 0 || { words }.find(|word| word.is_none_or(|text| text == 0)) != Some(None)
}

/// A NULL-terminated vector of strings, near or far; ends early where it is not mapped.
fn vector(at: usize) -> impl Iterator<Item = usize> {
    (0..).map_while(move |i| if at == 0 { None } else { peek::<usize>(at + 8 * i).filter(|&text| text != 0) })
}

fn path_len(text: usize) -> usize {
    if text == 0 { 0 } else { peek_text(text, std::ptr::null_mut(), LARGEST).unwrap_or(0) + 1 }
}

/// The carried variables that an environment lacks, or whose value (the last one's, which ld.so
/// takes) does not load this library.
fn missing(envp: usize) -> [usize; 2] {
    let mut lacks = [0usize; 2];
    for (lack, kept) in lacks.iter_mut().zip(&CARRIED) {
        *lack = kept.load(Ordering::Relaxed) as usize;
    }
    for text in vector(envp) {
        let Some(head) = peek::<[u8; 11]>(text).or_else(|| head_of(text)) else { continue };
        for (i, name) in NAMES.iter().enumerate() {
            if head == **name {
                let there = i == 1 || loads_us(text + name.len());
                lacks[i] = if there { 0 } else { CARRIED[i].load(Ordering::Relaxed) as usize };
            }
        }
    }
    lacks
}

/// The first bytes of a string that may end before as many, at the end of what is mapped.
fn head_of(text: usize) -> Option<[u8; 11]> {
    let mut head = [0u8; 12];
    peek_text(text, head.as_mut_ptr(), 11)?;
    head[..11].try_into().ok()
}

/// Whether a value of `LD_PRELOAD` names this library.
fn loads_us(value: usize) -> bool {
    let mut part = [0u8; 1024];
    let Some(n) = peek_text(value, part.as_mut_ptr(), part.len() - 1) else { return false };
    names(&part[..n], library())
}

/// Whether a list as ld.so reads it, divided by colons or spaces, has this path.
fn names(list: &[u8], own: &[u8]) -> bool {
    list.split(|b| matches!(b, b':' | b' ')).any(|one| one == own)
}

/// Takes this library out of a value of `LD_PRELOAD`, a near string of our own.
fn leave_out(value: usize) {
    // SAFETY: a string that was just copied.
    let list = unsafe {
        let len = (0..).take_while(|&i| *(value as *const u8).add(i) != 0).count();
        std::slice::from_raw_parts_mut(value as *mut u8, len)
    };
    blank_out(list, library());
}

/// Spaces divide the list, and more than one do as well as one.
fn blank_out(list: &mut [u8], own: &[u8]) {
    for one in list.split_mut(|b| matches!(b, b':' | b' ')).filter(|one| *one == own) {
        one.fill(b' ');
    }
}

/// Near memory of the calling thread's, kept for its next exec.
fn scratch(size: usize) -> Option<usize> {
    let record = threads::current();
    let (at, len) = (record.scratch.load(Ordering::Relaxed), record.scratch_len.load(Ordering::Relaxed));
    if len >= size {
        return Some(at);
    }
    if at != 0 {
        strike(at, len);
        // SAFETY: this thread's own, and no exec of its is under way.
        unsafe { syscall(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) };
        record.scratch_len.store(0, Ordering::Relaxed);
    }
    let len = size.next_multiple_of(64 << 10);
    let at = reserve(len).ok()? as usize;
    record.scratch.store(at, Ordering::Relaxed);
    record.scratch_len.store(len, Ordering::Relaxed);
    Some(at)
}

/// Where strings and vectors are copied to.
struct Copy {
    at: usize,
    end: usize,
}

impl Copy {
    fn text(&mut self, from: usize) -> Option<usize> {
        if from == 0 {
            return Some(0);
        }
        let to = self.at;
        let len = peek_text(from, to as *mut u8, self.end.checked_sub(to + 1)?)?;
        // SAFETY: within the scratch memory.
        unsafe { (to as *mut u8).add(len).write(0) };
        self.at = to + len + 1;
        Some(to)
    }

    /// The string at `text` behind the library's, of both of which the values are lists.
    fn joined(&mut self, ours: usize, text: usize) -> Option<usize> {
        let to = self.text(ours)?;
        // Over the NUL.
        let colon = self.at - 1;
        self.text(text + NAMES[0].len())?;
        // SAFETY: within the scratch memory, just written.
        unsafe { (colon as *mut u8).write(b':') };
        Some(to)
    }

    /// The vector at `from` with `extra` strings added. The library goes before what a value of the
    /// same name preloads; it is not preloaded where it `leaves_us`.
    fn vector(&mut self, from: usize, extra: [usize; 2], leaves_us: bool) -> Option<usize> {
        let to = self.at.next_multiple_of(8);
        let count = vector(from).count() + 2;
        self.at = to + 8 * (count + 1);
        if self.at > self.end {
            return None;
        }
        let mut n = 0;
        let mut put = |text: usize| {
            // SAFETY: within the scratch memory: at most `count` and the end.
            unsafe { (to as *mut usize).add(n).write(text) };
            n += 1;
        };
        let mut joined = false;
        for text in vector(from).take(count - 2) {
            let preloads = head_of(text).is_some_and(|head| head == *NAMES[0]);
            if preloads && extra[0] != 0 {
                put(self.joined(extra[0], text)?);
                joined = true;
                continue;
            }
            let near = self.text(text)?;
            if preloads && leaves_us {
                leave_out(near + NAMES[0].len());
            }
            put(near);
        }
        extra.into_iter().skip(usize::from(joined)).filter(|&e| e != 0).for_each(&mut put);
        put(0);
        Some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_left_out_of_a_preload_list() {
        let own = b"/run/us.so";
        for (before, after) in [
            ("US", "          "),
            ("US:/lib/other.so", "          :/lib/other.so"),
            ("/x US:US.old", "/x           :US.old"),
        ] {
            let text = |text: &str| text.replace("US", std::str::from_utf8(own).unwrap()).into_bytes();
            let mut list = text(before);
            blank_out(&mut list, own);
            assert_eq!(list, text(after));
        }
    }

    #[test]
    fn we_are_known_wherever_we_are_in_the_list() {
        let own: &[u8] = b"/run/libfarmem_preload-1.so";
        for list in [
            &b"/run/libfarmem_preload-1.so"[..],
            b"/lib/a.so:/run/libfarmem_preload-1.so",
            b"/run/libfarmem_preload-1.so /b.so",
        ] {
            assert_eq!(own_path(list), own);
        }
        assert_eq!(own_path(b"/us.so:/b.so"), b"/us.so");
    }

    #[test]
    fn a_preload_list_names_us_by_our_whole_path() {
        let own = b"/run/user/0/farmem/libfarmem_preload-1.so";
        let list = |text: &str| text.replace("US", std::str::from_utf8(own).unwrap()).into_bytes();
        for text in ["US", "US:/lib/other.so", "/lib/other.so:US", "/lib/a.so US /lib/b.so"] {
            assert!(names(&list(text), own), "{text}");
        }
        for text in ["", "US.old", "/chroot/US", "/lib/other.so", "libfarmem_preload-1.so"] {
            assert!(!names(&list(text), own), "{text}");
        }
    }
}
