//! A file for the slabs of programs that do not answer (`--spill`).
//!
//! ```text
//!  each second, while the machine needs memory: slabs of silent programs ─► file ─► disk
//!  a verb comes for one of them               : rings ─► file ─► memory of the slab
//! ```
//!
//! One thread does both, because a disk may be slow: no worker waits for it. The file has no name.
//! Each slab that is put aside has a place of 64 MiB in it, of which it uses as much as it has
//! bytes. The room is taken before anything is copied, and the bytes are on the disk before the
//! memory goes back: a disk that is full or fails costs nothing but the memory that stays taken.

use crate::StartError;
use crate::reserve::available;
use farmem_nic::Nic;
use farmem_nic::lending::Slab;
use farmem_nic::spill::{Kept, SILENT_NS, Shelf};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_sys::disk::PageFile;
use farmem_sys::raw::{Errno, now_ns};
use farmem_sys::sync::Lock;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often slabs are looked for that are to be put aside.
const EVERY: Duration = Duration::from_secs(1);
/// How soon a slab is brought back again for which the system had no memory.
const AGAIN: Duration = Duration::from_millis(50);
/// Bytes that the machine keeps when a slab is brought back.
const MARGIN: u64 = 16 << 20;
/// Bytes that are copied at a time.
const PIECE: usize = 256 << 10;

/// The file.
pub struct Spill {
    disk: Arc<Disk>,
    dir: PathBuf,
}

/// The file, and its places.
struct Disk {
    file: PageFile,
    places: Lock<Places>,
}

#[derive(Default)]
struct Places {
    free: Vec<u64>,
    /// Places so far.
    all: u64,
}

impl Spill {
    /// A new file in a directory.
    ///
    /// # Errors
    /// It cannot be made there, or would be in memory.
    pub fn new_in(dir: &Path) -> Result<Spill, StartError> {
        let refused = |e: io::Error| StartError::Spill(dir.to_owned(), e);
        let path = CString::new(dir.as_os_str().as_bytes()).map_err(|e| refused(e.into()))?;
        let file = PageFile::new_in(&path).map_err(|e| refused(io::Error::from_raw_os_error(e.0)))?;
        if file.is_in_memory() {
            return Err(StartError::SpillInMemory(dir.to_owned()));
        }
        let disk = Arc::new(Disk { file, places: Lock::new(Places::default()) });
        Ok(Spill { disk, dir: dir.to_owned() })
    }

    /// Begins the thread. It ends with the node.
    pub fn begin(self, nic: &Arc<Nic>) -> Result<(), StartError> {
        let weak = Arc::downgrade(nic);
        let thread = std::thread::Builder::new().name("spill".into()).spawn(move || self.run(&weak));
        let thread = thread.map_err(StartError::System)?.thread().clone();
        nic.ring_for_slabs(move || thread.unpark());
        Ok(())
    }

    fn run(self, nic: &Weak<Nic>) {
        let (mut looked_ns, mut failed, mut was_done) = (0, None, true);
        while let Some(nic) = nic.upgrade() {
            let is_done = nic.bring_back();
            if was_done && !is_done {
                let dir = self.dir.display();
                eprintln!("farmem: --spill {dir}: this machine has no memory for what a program wants back: it waits");
            }
            was_done = is_done;
            if now_ns().saturating_sub(looked_ns) >= EVERY.as_nanos() as u64 {
                looked_ns = now_ns();
                let error = nic.spill(&self, SILENT_NS).err();
                if let Some(Errno(error)) = error.filter(|_| error != failed) {
                    let (dir, error) = (self.dir.display(), io::Error::from_raw_os_error(error));
                    eprintln!("farmem: --spill {dir}: {error}; what programs have that do not answer stays in memory");
                }
                failed = error;
            }
            drop(nic);
            // A ring that came meanwhile ends it at once.
            std::thread::park_timeout(if is_done { EVERY } else { AGAIN });
        }
    }
}

/// The bytes of a slab in the file.
struct Place {
    disk: Arc<Disk>,
    number: u64,
    extents: Vec<Range<u64>>,
}

impl Place {
    fn new(disk: &Arc<Disk>, extents: Vec<Range<u64>>) -> Place {
        let mut places = disk.places.lock();
        let number = places.free.pop().unwrap_or_else(|| {
            places.all += 1;
            places.all - 1
        });
        Place { disk: Arc::clone(disk), number, extents }
    }

    /// Where a place of the slab is in the file.
    fn at(&self, offset: u64) -> u64 {
        self.number * SLAB_BYTES + offset
    }

    /// The ranges that are copied at a time.
    fn pieces(&self) -> impl Iterator<Item = Range<u64>> {
        self.extents.iter().flat_map(|extent| {
            let end = extent.end;
            extent.clone().step_by(PIECE).map(move |at| at..end.min(at + PIECE as u64))
        })
    }
}

impl Shelf for Spill {
    fn put(&self, slab: &Slab) -> Result<Box<dyn Kept>, Errno> {
        // A disk that has failed once is not given more: nothing of it would be believed.
        self.disk.file.check()?;
        let place = Place::new(&self.disk, slab.extents());
        let file = &self.disk.file;
        for extent in &place.extents {
            file.reserve(place.at(extent.start), extent.end - extent.start)?;
        }
        let mut bytes = vec![0; PIECE];
        for piece in place.pieces() {
            let bytes = &mut bytes[..(piece.end - piece.start) as usize];
            if !slab.mapping.read_bytes(piece.start, bytes) {
                return Err(Errno(libc::EINVAL));
            }
            file.write_bytes(place.at(piece.start), bytes)?;
        }
        file.settle(place.at(0), SLAB_BYTES)?;
        Ok(Box::new(place))
    }
}

impl Kept for Place {
    fn take(&self, slab: &Slab) -> Result<(), Errno> {
        // In a memory group, memory that is not there would be the end of the node, not an error.
        if available().is_some_and(|left| left < SLAB_BYTES + MARGIN) {
            return Err(Errno(libc::ENOMEM));
        }
        // Memory that is not there is said here. A store to it would be the end of the node.
        self.extents.iter().try_for_each(|extent| slab.back(extent.start, extent.end - extent.start))?;
        let mut bytes = vec![0; PIECE];
        for piece in self.pieces() {
            let bytes = &mut bytes[..(piece.end - piece.start) as usize];
            self.disk.file.read_settled(self.at(piece.start), bytes)?;
            if !slab.mapping.write_bytes(piece.start, bytes) {
                return Err(Errno(libc::EINVAL));
            }
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.disk.file.punch(self.at(0), SLAB_BYTES);
        self.disk.places.lock().free.push(self.number);
    }
}
