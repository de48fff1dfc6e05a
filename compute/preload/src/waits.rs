//! `farmem run --sites`: at which instructions the program faults, and how long it waits there.
//!
//! Each fault looks its instruction up in a small table of this process. An instruction that is not
//! there is found by `/proc/self/maps`, once for a mapping: file and offset, which all processes of
//! a program share. Everything is counted in the run's file ([`farmem_run::waits`]).

use farmem_protocol::addr::PageId;
use farmem_run::waits::{Code, File, MAGIC};
use farmem_sys::clock;
use farmem_sys::raw::{now_ns, read_file};
use farmem_sys::sync::Lock;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static FILE: AtomicPtr<File> = AtomicPtr::new(std::ptr::null_mut());
/// Instructions that were looked up before: `address << 16 | place + 1`, by a hash of the address.
static SEEN: [AtomicU64; 1 << SEEN_BITS] = [const { AtomicU64::new(0) }; 1 << SEEN_BITS];
const SEEN_BITS: u32 = 13;
/// Executable mappings as of the last look.
static CODE: Lock<Mappings> = Lock::new(Mappings { ranges: Vec::new(), looked_ns: 0 });
/// Time between looks, where code appears that no look has found.
const BETWEEN_NS: u64 = 100_000_000;

struct Mappings {
    ranges: Vec<Range>,
    looked_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    start: usize,
    end: usize,
    /// Where it begins in its file.
    offset: u64,
    /// `None`: in no file.
    file: Option<usize>,
}

/// From now on faults are counted by place, in this file. At start.
pub fn begin(path: &str) {
    // SAFETY: atomics; `farmem run` makes the file of this length, and then writes its magic.
    let file = unsafe { crate::process::map_shared::<File>(path) };
    if let Some(file) = file
        && file.magic.load(Ordering::Relaxed) == MAGIC
    {
        FILE.store(std::ptr::from_ref(file).cast_mut(), Ordering::Relaxed);
    }
}

/// When a fault begins, ticks; 0 if nobody counts.
#[inline(always)]
pub fn fault_begins() -> u64 {
    if FILE.load(Ordering::Relaxed).is_null() { 0 } else { clock::ticks() }
}

/// A fault of the instruction at `ip` on a far address is over. Signals are blocked, or kept.
#[cold]
pub fn fault_ends(begun: u64, ip: usize, addr: usize, write: bool) {
    // SAFETY: null or the mapped file, which stays.
    let Some(file) = (unsafe { FILE.load(Ordering::Relaxed).as_ref() }) else { return };
    let ns = clock::ns(clock::ticks() - begun);
    let seen = &SEEN[(ip as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> (64 - SEEN_BITS)];
    let word = seen.load(Ordering::Relaxed);
    let place = if word >> 16 == ip as u64 {
        (word & 0xFFFF) as usize - 1
    } else {
        let (code, for_good) = code_at(file, ip);
        let place = file.place_of(code);
        if for_good {
            seen.store((ip as u64) << 16 | (place as u64 + 1), Ordering::Relaxed);
        }
        place
    };
    file.place(place).count(PageId::of(addr).0, write, ns);
}

/// Where an instruction is, and whether that is sure.
fn code_at(file: &File, ip: usize) -> (Code, bool) {
    // In a forked child another thread's hold may stay for ever: then places have no names.
    let Some(mut code) = CODE.try_lock() else { return (Code::At(ip as u64), false) };
    if let Some(found) = found(&code.ranges, ip) {
        return (found, true);
    }
    let now = now_ns();
    if now - code.looked_ns < BETWEEN_NS {
        return (Code::At(ip as u64), false);
    }
    code.looked_ns = now;
    if let Ok(text) = read_file(c"/proc/self/maps") {
        code.ranges = ranges(&text, |path| file.file(path));
    }
    (found(&code.ranges, ip).unwrap_or(Code::At(ip as u64)), true)
}

fn found(ranges: &[Range], ip: usize) -> Option<Code> {
    let range = ranges.iter().find(|range| (range.start..range.end).contains(&ip))?;
    let offset = range.offset + (ip - range.start) as u64;
    Some(range.file.map_or(Code::At(ip as u64), |file| Code::InFile(file, offset)))
}

/// The executable mappings that `/proc/self/maps` lists.
fn ranges(maps: &[u8], mut number: impl FnMut(&[u8]) -> Option<usize>) -> Vec<Range> {
    let lines = maps.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| {
            let text = std::str::from_utf8(line).ok()?;
            let mut fields = text.splitn(6, ' ');
            let (start, end) = fields.next()?.split_once('-')?;
            let is_code = fields.next()?.as_bytes().get(2) == Some(&b'x');
            let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
            let path = fields.nth(2)?.trim_start();
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            let range = Range { start: hex(start)?, end: hex(end)?, offset, file: None };
            let in_file = path.starts_with('/') && !path.ends_with(" (deleted)");
            is_code.then(|| Range { file: if in_file { number(path.as_bytes()) } else { None }, ..range })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_found_by_file_and_offset() {
        let maps = b"55d0-55e0 r--p 00000000 08:01 77    /bin/a b\n\
            55e0-5600 r-xp 00001000 08:01 77                         /bin/a b\n\
            7000-7100 rwxp 00000000 00:00 0 \n\
            7200-7300 r-xp 00000000 00:01 9    /memfd:jit (deleted)\n\
            junk\n";
        let mut named = Vec::new();
        let ranges = ranges(maps, |path| {
            named.push(path.to_vec());
            Some(4)
        });
        assert_eq!(named, [b"/bin/a b".to_vec()]);
        assert_eq!(found(&ranges, 0x55E8), Some(Code::InFile(4, 0x1008)));
        assert_eq!(found(&ranges, 0x7001), Some(Code::At(0x7001)));
        assert_eq!(found(&ranges, 0x7201), Some(Code::At(0x7201)));
        assert_eq!(found(&ranges, 0x55D1), None);
    }
}
