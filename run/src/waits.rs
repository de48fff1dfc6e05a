//! The places in their code at which the programs of a run wait for pages (`farmem run --sites`),
//! in a file that they share.
//!
//! A *place* is one instruction that faults, named by its file and its offset there: processes of
//! one program share its places, wherever they are mapped. Code that no file holds (compiled at run
//! time) is named by its address.
//!
//! Places and files are claimed by one CAS and never freed. Counts are relaxed, without locks.

use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromBytes;

/// First word of the file: `sites` and the layout's version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fm-sites");
/// Places that a file counts apart; others are counted together.
pub const PLACES: usize = 4096;
/// Mapped files that it names.
pub const FILES: usize = 256;
/// Bits of an offset in a file, or of an address.
const OFFSET_BITS: u32 = 48;
/// Words of a path.
const PATH: usize = 32;
/// Pages ahead or behind that still count as in order: a window of prefetched pages, and its
/// trip-wire.
const NEAR: i64 = 65;

/// The file.
#[derive(FromBytes)]
#[repr(C)]
pub struct File {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    files: [Mapped; FILES],
    places: [Place; PLACES],
    /// Faults at places for which there was no room.
    others: Place,
}

/// A mapped file that holds code.
#[derive(FromBytes)]
#[repr(C)]
struct Mapped {
    /// 0: free; 1: being written; else its path's hash.
    hash: AtomicU64,
    /// UTF-8, zero padded, cut at its end.
    path: [AtomicU64; PATH],
}

/// One instruction that faulted.
#[derive(FromBytes)]
#[repr(C)]
pub struct Place {
    /// [`Code`] as a word; 0: free.
    code: AtomicU64,
    faults: AtomicU64,
    wait_ns: AtomicU64,
    /// Faults that were stores.
    writes: AtomicU64,
    /// Faults at most [`NEAR`] pages from the one before.
    in_order: AtomicU64,
    /// The page that faulted last.
    last: AtomicU64,
}

/// Where an instruction is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Code {
    /// In a file, by its number here, at an offset.
    InFile(usize, u64),
    /// At an address, in no file.
    At(u64),
}

impl Code {
    fn word(self) -> u64 {
        match self {
            Code::InFile(file, offset) => (file as u64 + 1) << OFFSET_BITS | offset & ((1 << OFFSET_BITS) - 1),
            Code::At(address) => address & ((1 << OFFSET_BITS) - 1),
        }
    }

    fn of(word: u64) -> Code {
        let offset = word & ((1 << OFFSET_BITS) - 1);
        match (word >> OFFSET_BITS) as usize {
            0 => Code::At(offset),
            file => Code::InFile(file - 1, offset),
        }
    }
}

/// The counts of a place.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    /// Faults.
    pub faults: u64,
    /// Time that they took, ns.
    pub wait_ns: u64,
    /// Of the faults: stores.
    pub writes: u64,
    /// Of the faults: near the one before.
    pub in_order: u64,
}

impl Counted {
    /// Adds another place's.
    pub fn add(&mut self, other: Counted) {
        self.faults += other.faults;
        self.wait_ns += other.wait_ns;
        self.writes += other.writes;
        self.in_order += other.in_order;
    }
}

impl Place {
    /// Counts a fault on a page.
    pub fn count(&self, page: u64, write: bool, ns: u64) {
        let last = self.last.swap(page, Ordering::Relaxed);
        let near = (page.wrapping_sub(last) as i64).unsigned_abs() <= NEAR as u64;
        self.faults.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(ns, Ordering::Relaxed);
        self.writes.fetch_add(write as u64, Ordering::Relaxed);
        self.in_order.fetch_add(near as u64, Ordering::Relaxed);
    }

    fn counted(&self) -> Counted {
        let [faults, wait_ns, writes, in_order] =
            [&self.faults, &self.wait_ns, &self.writes, &self.in_order].map(|count| count.load(Ordering::Relaxed));
        Counted { faults, wait_ns, writes, in_order }
    }
}

impl File {
    /// Reads a file that nobody writes any more, or a moment of one.
    pub fn read(bytes: &[u8]) -> Option<Box<File>> {
        let file = File::read_from_bytes(bytes).ok()?;
        (file.magic.load(Ordering::Relaxed) == MAGIC).then(|| Box::new(file))
    }

    /// The number of a mapped file; `None` where there is no room.
    pub fn file(&self, path: &[u8]) -> Option<usize> {
        let path = &path[..path.len().min(PATH * 8)];
        let hash = hash(path).max(2);
        for (number, mapped) in self.files.iter().enumerate() {
            match mapped.hash.compare_exchange(0, 1, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    for (word, bytes) in mapped.path.iter().zip(path.chunks(8)) {
                        let mut le = [0; 8];
                        le[..bytes.len()].copy_from_slice(bytes);
                        word.store(u64::from_le_bytes(le), Ordering::Relaxed);
                    }
                    mapped.hash.store(hash, Ordering::Release);
                    return Some(number);
                }
                Err(taken) if taken == hash => return Some(number),
                // Another file's, or one that is being written. If that is this file's, the file
                // gets two numbers, which does no harm.
                Err(_) => {}
            }
        }
        None
    }

    /// The number of the place of an instruction: [`PLACES`] where there is no room.
    pub fn place_of(&self, code: Code) -> usize {
        let word = code.word();
        let home = word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
        for step in 0..PLACES {
            let at = (home as usize + step) % PLACES;
            match self.places[at].code.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return at,
                Err(taken) if taken == word => return at,
                Err(_) => {}
            }
        }
        PLACES
    }

    /// A place by its number.
    pub fn place(&self, number: usize) -> &Place {
        self.places.get(number).unwrap_or(&self.others)
    }

    /// Every place that was counted at, and what was counted without one.
    pub fn all(&self) -> impl Iterator<Item = (Option<Code>, Counted)> + '_ {
        let places = self.places.iter().filter_map(|place| {
            let word = place.code.load(Ordering::Relaxed);
            (word != 0).then(|| (Some(Code::of(word)), place.counted()))
        });
        places.chain([(None, self.others.counted())]).filter(|(_, counted)| counted.faults > 0)
    }

    /// The path of a mapped file.
    pub fn path(&self, number: usize) -> String {
        self.files.get(number).map_or_else(String::new, |mapped| crate::counters::get_text(&mapped.path))
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Box<File> {
        let mut bytes = vec![0; size_of::<File>()];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        File::read(&bytes).unwrap()
    }

    #[test]
    fn places_are_told_apart_by_file_and_offset() {
        let file = file();
        let [a, b] = ["/bin/a", "/lib/b.so"].map(|path| file.file(path.as_bytes()).unwrap());
        assert_eq!((file.file(b"/bin/a"), file.path(b)), (Some(a), "/lib/b.so".to_owned()));
        for (code, pages) in
            [(Code::InFile(a, 16), [1u64, 2, 900]), (Code::InFile(b, 16), [1, 1, 1]), (Code::At(16), [5, 0, 70])]
        {
            let place = file.place_of(code);
            pages.iter().for_each(|&page| file.place(place).count(page + 1000, page == 1, 10));
            assert_eq!(file.place_of(code), place);
        }
        let mut all: Vec<_> =
            file.all().map(|(code, counted)| (code.unwrap(), counted.in_order, counted.writes)).collect();
        all.sort_by_key(|(code, ..)| code.word());
        assert_eq!(all, [(Code::At(16), 1, 0), (Code::InFile(a, 16), 1, 1), (Code::InFile(b, 16), 2, 3)]);
    }

    #[test]
    fn what_finds_no_place_is_counted_all_the_same() {
        let file = file();
        (0..PLACES as u64 + 10).for_each(|at| file.place(file.place_of(Code::At(at + 1))).count(at, false, 1));
        let counted: u64 = file.all().map(|(_, counted)| counted.faults).sum();
        assert_eq!((counted, file.all().filter(|(code, _)| code.is_none()).count()), (PLACES as u64 + 10, 1));
        (0..FILES + 5).for_each(|n| _ = file.file(format!("/{n}").as_bytes()));
        assert_eq!(file.file(b"/one more"), None);
    }
}
