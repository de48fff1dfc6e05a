//! Finding libibverbs, and keeping it to itself.
//!
//! The library is loaded by `dlmopen` into a link namespace of its own, together with a libc of its
//! own. `farmem run` needs that. In a program on far memory, the program's malloc returns far
//! memory, and a fault handler that touched the library's state there would fault in turn. The
//! second libc never uses the heap break (glibc: *always fail morecore* outside the base
//! namespace), and it is not patched. So its memory is near, and only the runtime holds its locks.
//! It also keeps the program's own use of libibverbs, if any, apart.
//!
//! A second libc lacks its thread-local locale, by which text is parsed, in all threads but the one
//! that loaded it. [`Library::enter`] sets the locale for any other. It also lets in one thread at
//! a time: threads that the program made by bare clones may share thread-locals, those of malloc
//! among them, and a fork must not copy a malloc that is at work. (The end of a region that peers
//! reach is outside of that lock, because it may wait for them: `device.rs`.)

use super::ffi::{Device, Symbols};
use crate::raw::Errno;
use crate::sync::{Held, Lock};
use std::ffi::{CStr, c_int, c_void};
use std::ops::Deref;
use std::sync::OnceLock;

/// The file, by its stable name.
const FILE: &CStr = c"libibverbs.so.1";

/// Why there is no RDMA here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The library cannot be loaded.
    Library(String),
    /// It lacks a function.
    Symbol(&'static str),
    /// It finds no device.
    NoDevice,
    /// No device of this name.
    NoSuchDevice(String),
    /// A device cannot be opened.
    Open(String, Errno),
    /// No port of the device is up, or has an address.
    NoPort(String),
    /// A device is too small for what is wanted, or refuses it.
    Refused(&'static str, Errno),
}

impl std::fmt::Display for Absent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Absent::Library(why) => write!(
                f,
                "RDMA needs libibverbs, which cannot be loaded ({why}): install it with the drivers of your card (Debian, Ubuntu: `apt install libibverbs1 ibverbs-providers`)"
            ),
            Absent::Symbol(name) => {
                write!(f, "libibverbs has no function {name}: install version 28 or later of rdma-core")
            }
            Absent::NoDevice => f.write_str(
                "no RDMA device is visible: see that the card's kernel driver and ib_uverbs are loaded (`modprobe ib_uverbs`) and that `ibv_devices` lists it; any Ethernet card can be one in software: `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0`",
            ),
            Absent::NoSuchDevice(name) => write!(f, "no RDMA device is called {name}: `ibv_devices` lists those there are"),
            Absent::Open(name, e) => write!(
                f,
                "RDMA device {name} cannot be opened ({e}): /dev/infiniband/uverbs* must be readable and writable for this user"
            ),
            Absent::NoPort(name) => write!(
                f,
                "RDMA device {name} has no port that is up and has an address: see `rdma link`, and give its network interface an IP address"
            ),
            Absent::Refused(what, e) if e.0 == libc::ENOMEM => write!(
                f,
                "RDMA {what}: {e}: memory that a card reaches is locked; raise the limit (`ulimit -l`, LimitMEMLOCK=infinity)"
            ),
            Absent::Refused(what, e) => write!(f, "RDMA {what}: {e}"),
        }
    }
}

impl std::error::Error for Absent {}

/// The loaded library. Never unloaded.
pub struct Library {
    pub(super) ibv: Symbols,
    errno: unsafe extern "C" fn() -> *mut c_int,
    uselocale: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    calls: Lock<()>,
}

/// The library, for calls that are neither post nor poll.
pub(super) struct Entered<'a> {
    library: &'a Library,
    _alone: Held<'a, ()>,
}

impl Deref for Entered<'_> {
    type Target = Symbols;
    fn deref(&self) -> &Symbols {
        &self.library.ibv
    }
}

/// Before a fork: waits until no thread is in a call that the child could not finish.
/// [`after_fork`] must follow, in both processes.
pub fn before_fork() {
    if let Some(Ok(library)) = LIBRARY.get() {
        library.calls.hold_across_fork();
    }
}

/// After a fork, or its failure.
pub fn after_fork() {
    if let Some(Ok(library)) = LIBRARY.get() {
        library.calls.release_after_fork();
    }
}

static LIBRARY: OnceLock<Result<Library, Absent>> = OnceLock::new();

impl Library {
    /// The library, loaded by the first call of the process. Not for signal handlers until one call
    /// has returned.
    pub fn get() -> Result<&'static Library, Absent> {
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Library, Absent> {
        // NOW: nothing is left to be resolved in a signal handler.
        // SAFETY: a literal path. The library's constructors, and its libc's, run here.
        let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Absent::Library(dl_error()));
        }
        // SAFETY: a live handle. dlsym finds the newest version of a symbol, which is that of
        // today's header. It looks in the library and in those that the library needs.
        let find = |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: `find` asks libibverbs.
        let ibv = unsafe { Symbols::load(find) }.map_err(Absent::Symbol)?;
        let (errno, uselocale) = (find(c"__errno_location"), find(c"uselocale"));
        if errno.is_null() || uselocale.is_null() {
            return Err(Absent::Library("its libc is not glibc".into()));
        }
        // SAFETY: functions of the namespace's libc with these signatures.
        unsafe {
            Ok(Library {
                ibv,
                errno: std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> *mut c_int>(errno),
                uselocale: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> *mut c_void>(
                    uselocale,
                ),
                calls: Lock::new(()),
            })
        }
    }

    /// Prepares the calling thread for calls that are not post or poll, which need none of this.
    pub(super) fn enter(&self) -> Entered<'_> {
        let alone = self.calls.lock();
        // SAFETY: LC_GLOBAL_LOCALE; sets thread-local pointers of the namespace's libc.
        unsafe { (self.uselocale)(usize::MAX as *mut c_void) };
        Entered { library: self, _alone: alone }
    }

    /// The error of the call before, in this thread.
    pub(super) fn errno(&self) -> Errno {
        // SAFETY: a thread-local of the namespace's libc.
        match unsafe { *(self.errno)() } {
            0 => Errno(libc::EIO),
            e => Errno(e),
        }
    }

    /// A pointer that a call returned, or why it returned none.
    pub(super) fn made<T>(&self, at: *mut T) -> Result<*mut T, Errno> {
        if at.is_null() { Err(self.errno()) } else { Ok(at) }
    }

    /// The devices there are, with their names.
    pub(super) fn devices(&self) -> Result<Devices, Absent> {
        let mut n = 0;
        // SAFETY: the count is live.
        let list = unsafe { (self.enter().ibv_get_device_list)(&mut n) };
        // Null with ENOSYS: the kernel has no RDMA at all.
        if list.is_null() || n == 0 {
            return Err(Absent::NoDevice);
        }
        Ok(Devices { list, n: n as usize })
    }
}

/// A list of devices. The library wants it back, but then a device could not be opened again in a
/// forked child: it is kept, a few hundred bytes once a process.
pub(super) struct Devices {
    list: *mut *mut Device,
    n: usize,
}

impl Devices {
    pub fn iter(&self, library: &'static Library) -> impl Iterator<Item = (*mut Device, String)> + '_ {
        (0..self.n).map(move |i| {
            // SAFETY: the list has `n` entries; names are C strings that live as long as it.
            unsafe {
                let device = *self.list.add(i);
                let name = CStr::from_ptr((library.ibv.ibv_get_device_name)(device));
                (device, name.to_string_lossy().into_owned())
            }
        })
    }
}

fn dl_error() -> String {
    // SAFETY: a C string until the next call, copied here.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() { "no reason given".into() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    }
}
