//! Devices, and memory that they may touch.

use super::ffi::{self, access};
use super::library::{Absent, Library};
use crate::descriptors::own_fd;
use crate::raw::{self, Errno};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// GIDs of a port that are looked at, at most.
const GIDS: i32 = 256;

/// The operations that the other end may do on a region or window. The owner may always read and
/// write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Nothing: a buffer of one's own, from which is sent. It may be read-only memory.
    Source,
    /// Nothing: a buffer of one's own, from which and to which is sent.
    Local,
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// READ and WRITE.
    Both,
    /// READ, WRITE, CAS, FAA.
    All,
}

impl Rights {
    fn flags(self) -> u32 {
        match self {
            Rights::Source | Rights::Local => 0,
            Rights::Read => access::REMOTE_READ,
            Rights::Write => access::REMOTE_WRITE,
            Rights::Both => access::REMOTE_READ | access::REMOTE_WRITE,
            Rights::All => access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC,
        }
    }

    pub(super) fn window_flags(self) -> u32 {
        self.flags()
    }
}

/// The abilities of an open device.
#[derive(Clone, Copy, Debug)]
pub struct Abilities {
    /// Windows of type 2B: bound to one queue pair, of which the key's low byte changes at every
    /// bind.
    pub windows: bool,
    /// Windows at once, at most.
    pub max_windows: u32,
    /// CAS and FAA, atomic towards other queue pairs of the same device.
    pub atomics: bool,
    /// READs and atomic verbs that one queue pair may have on their way.
    pub reads_in_flight: u8,
}

/// Where a port is to be found by others.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) lid: u16,
    pub(super) mtu: u8,
}

/// An open device with a port that is up. Cheap to clone.
#[derive(Clone)]
pub struct Device {
    pub(super) open: Arc<Open>,
}

pub(super) struct Open {
    pub library: &'static Library,
    pub context: *mut ffi::Context,
    pub name: String,
    pub port: Port,
    pub abilities: Abilities,
}

// SAFETY: libibverbs' objects may be used from any thread, and all but queue pairs from several.
unsafe impl Send for Open {}
// SAFETY: as above.
unsafe impl Sync for Open {}

impl Device {
    /// Names of the devices there are.
    pub fn names() -> Result<Vec<String>, Absent> {
        let library = Library::get()?;
        Ok(library.devices()?.iter(library).map(|(_, name)| name).collect())
    }

    /// Opens the device of this name, or the first with a port that is up.
    pub fn open(wanted: Option<&str>) -> Result<Device, Absent> {
        let library = Library::get()?;
        let devices = library.devices()?;
        let mut failed = wanted.map_or(Absent::NoDevice, |name| Absent::NoSuchDevice(name.to_owned()));
        for (device, name) in devices.iter(library) {
            if wanted.is_some_and(|wanted| wanted != name) {
                continue;
            }
            match Device::open_one(library, device, name) {
                Ok(device) => return Ok(device),
                Err(e) => failed = e,
            }
        }
        Err(failed)
    }

    fn open_one(library: &'static Library, device: *mut ffi::Device, name: String) -> Result<Device, Absent> {
        // SAFETY: a device of the list.
        let context = library.made(unsafe { (library.enter().ibv_open_device)(device) });
        let context = context.map_err(|e| Absent::Open(name.clone(), e))?;
        // From here on it is closed when dropped.
        let port = Port { number: 0, gid_index: 0, gid: [0; 16], lid: 0, mtu: 0 };
        let abilities = Abilities { windows: false, max_windows: 0, atomics: false, reads_in_flight: 0 };
        let mut open = Open { library, context, name, port, abilities };
        // Out of the program's way: the library reads these numbers from the context at every call.
        // SAFETY: a context just made, nobody else's.
        let numbers = unsafe { [&mut (*context).cmd_fd, &mut (*context).async_fd] };
        for number in numbers {
            let moved = own_fd(*number);
            *number = moved.unwrap_or(-1);
            moved.map_err(|e| Absent::Open(open.name.clone(), e))?;
        }
        // SAFETY: plain numbers, for which zero is a value.
        let mut about: ffi::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: a live context, and room for what it tells.
        match unsafe { (library.ibv.ibv_query_device)(context, &mut about) } {
            0 => {}
            e => return Err(Absent::Open(open.name.clone(), Errno(e))),
        }
        open.abilities = Abilities {
            windows: about.device_cap_flags & ffi::DEVICE_MW_TYPE_2B != 0,
            max_windows: about.max_mw.max(0) as u32,
            atomics: about.atomic_cap > 0,
            reads_in_flight: about.max_qp_rd_atom.clamp(1, 16) as u8,
        };
        let port = (1..=about.phys_port_cnt).find_map(|number| open.find_port(number));
        open.port = port.ok_or_else(|| Absent::NoPort(open.name.clone()))?;
        Ok(Device { open: Arc::new(open) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.open.name
    }

    /// Its abilities.
    pub fn abilities(&self) -> Abilities {
        self.open.abilities
    }

    /// A domain: objects of one do not work with objects of another.
    pub fn domain(&self) -> Result<Arc<Domain>, Errno> {
        let library = self.open.library;
        // SAFETY: a live context.
        let pd = library.made(unsafe { (library.enter().ibv_alloc_pd)(self.open.context) })?;
        Ok(Arc::new(Domain { pd, device: self.clone() }))
    }

    /// In a forked child, which inherited its parent's device: closes the descriptors, and leaves
    /// the rest. Everything made of the device in the parent must be forgotten too, without being
    /// dropped.
    pub fn forget_in_child(&self) {
        // SAFETY: nobody uses the context in this process any more.
        unsafe {
            crate::descriptors::close((*self.open.context).cmd_fd);
            crate::descriptors::close((*self.open.context).async_fd);
        }
    }
}

impl Open {
    fn find_port(&self, number: u8) -> Option<Port> {
        let mut about = ffi::PortAttr::default();
        // SAFETY: a live context, and more room than the function fills.
        let asked = unsafe { (self.library.ibv.ibv_query_port)(self.context, number, &mut about) };
        if asked != 0 || about.state != ffi::PORT_ACTIVE {
            return None;
        }
        let ethernet = about.link_layer == ffi::LINK_LAYER_ETHERNET;
        let mut best: Option<(u32, Port)> = None;
        for index in 0..about.gid_tbl_len.clamp(0, GIDS) {
            let mut entry = ffi::GidEntry::default();
            // SAFETY: a live context; the entry is of the size that is told.
            let asked = unsafe {
                (self.library.ibv._ibv_query_gid_ex)(
                    self.context,
                    number as u32,
                    index as u32,
                    &mut entry,
                    0,
                    size_of::<ffi::GidEntry>(),
                )
            };
            if asked != 0 || entry.gid.0 == [0; 16] {
                continue;
            }
            // Over Ethernet: routable RoCE before the older, an IPv4 address before IPv6, and a
            // link-local one last.
            let gid = entry.gid.0;
            let v4 = gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            let link_local = gid[..2] == [0xfe, 0x80];
            let score = if ethernet {
                4 * (entry.gid_type == ffi::GID_TYPE_ROCE_V2) as u32 + 2 * v4 as u32 + !link_local as u32
            } else {
                (index == 0) as u32
            };
            if best.is_none_or(|(most, _)| score > most) {
                let port = Port { number, gid_index: index as u8, gid, lid: about.lid, mtu: about.active_mtu as u8 };
                best = Some((score, port));
            }
        }
        best.map(|(_, port)| port)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: everything made of it held it, and so is gone.
        unsafe { (self.library.enter().ibv_close_device)(self.context) };
    }
}

/// A protection domain.
pub struct Domain {
    pub(super) pd: *mut ffi::Pd,
    pub(super) device: Device,
}

// SAFETY: as Open.
unsafe impl Send for Domain {}
// SAFETY: as Open.
unsafe impl Sync for Domain {}

impl Domain {
    /// The device it is of.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Lets the device touch `len` bytes at `at`. Work requests at this end name them by address
    /// and [`Region::lkey`] if the other end has no rights; else those of the other end do, by
    /// offsets from 0 and [`Region::rkey`]. The pages are locked in memory, all of them, now.
    ///
    /// # Safety
    /// The bytes stay mapped, writable, and nobody's Rust reference, until the region is dropped.
    pub unsafe fn region(self: &Arc<Self>, at: *mut u8, len: usize, rights: Rights) -> Result<Region, Errno> {
        let library = self.device.open.library;
        let own = matches!(rights, Rights::Source | Rights::Local);
        let mut flags = rights.flags();
        if rights != Rights::Source {
            flags |= access::LOCAL_WRITE;
        }
        if !own && self.device.open.abilities.windows {
            flags |= access::MW_BIND;
        }
        let base = if own { at as u64 } else { 0 };
        // SAFETY: a live domain; the bytes are the caller's promise.
        let mr = unsafe { (library.enter().ibv_reg_mr_iova2)(self.pd, at.cast(), len, base, flags) };
        Ok(Region { mr: library.made(mr)?, len: len as u64, waits: !own, domain: Arc::clone(self) })
    }

    /// A region to bind windows to, and for nothing else: its own key gives the other end no right.
    /// Offsets count from [`Domain::base`] of its first byte, which need not begin a page.
    ///
    /// # Safety
    /// As [`Domain::region`].
    pub unsafe fn region_for_windows(self: &Arc<Self>, at: *mut u8, len: usize) -> Result<Region, Errno> {
        let library = self.device.open.library;
        let flags = access::LOCAL_WRITE | access::MW_BIND;
        let base = Domain::base(at);
        // SAFETY: a live domain; the bytes are the caller's promise.
        let mr = unsafe { (library.enter().ibv_reg_mr_iova2)(self.pd, at.cast(), len, base, flags) };
        Ok(Region { mr: library.made(mr)?, len: len as u64, waits: true, domain: Arc::clone(self) })
    }

    /// The offset of the first byte of a region for windows: its place in its page. The kernel
    /// requires that addresses and offsets agree in that.
    pub fn base(at: *mut u8) -> u64 {
        at as u64 & 4095
    }

    /// A window, bound to nothing yet.
    pub fn window(self: &Arc<Self>) -> Result<Window, Errno> {
        let library = self.device.open.library;
        let _entered = library.enter();
        // SAFETY: a live domain, whose context has the provider's table.
        let made = unsafe {
            match (*(*self.pd).context).ops.alloc_mw {
                Some(alloc) => library.made(alloc(self.pd, ffi::MW_TYPE_2))?,
                None => return Err(Errno(libc::EOPNOTSUPP)),
            }
        };
        Ok(Window { mw: made, domain: Arc::clone(self) })
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: everything made in it held it, and so is gone.
        unsafe { (self.device.open.library.enter().ibv_dealloc_pd)(self.pd) };
    }
}

/// Memory that a device may touch, until dropped. When the drop has returned, it does not any more:
/// it waits for messages of other machines that came half, until they end or
/// [`super::RcQueue::break_off`] ends them.
pub struct Region {
    pub(super) mr: *mut ffi::Mr,
    len: u64,
    /// Whether its end may have to wait for others.
    waits: bool,
    domain: Arc<Domain>,
}

// SAFETY: as Open.
unsafe impl Send for Region {}
// SAFETY: as Open.
unsafe impl Sync for Region {}

impl Region {
    /// Its key for local work requests.
    pub fn lkey(&self) -> u32 {
        // SAFETY: live.
        unsafe { (*self.mr).lkey }
    }

    /// Its key for queue pairs whose other end is in the same domain.
    pub fn rkey(&self) -> u32 {
        // SAFETY: live.
        unsafe { (*self.mr).rkey }
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// In a forked child, where it is the parent's.
    pub fn forget_in_child(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let entered = self.domain.device.open.library.enter();
        let dereg = entered.ibv_dereg_mr;
        // Unregistering memory that peers reach waits for them. So it happens outside of the lock,
        // which is needed by the call that ends the waiting. Such memory is a node's: its threads
        // are all known to the library, and it does not fork.
        let alone = (!self.waits).then_some(entered);
        // SAFETY: live until here.
        let left = unsafe { dereg(self.mr) };
        drop(alone);
        if left != 0 {
            // Windows are bound to it, or the card is broken: lent memory stays reachable. Only the
            // end of the process, with which the kernel takes everything back, is safe now.
            let _ = raw::write_all(2, b"farmem: an RDMA region could not be taken back\n");
            std::process::abort();
        }
    }
}

/// A memory window of type 2B.
pub struct Window {
    pub(super) mw: *mut ffi::Mw,
    domain: Arc<Domain>,
}

// SAFETY: as Open.
unsafe impl Send for Window {}
// SAFETY: as Open.
unsafe impl Sync for Window {}

impl Window {
    /// The key of its latest bind.
    pub fn rkey(&self) -> u32 {
        self.key().load(Ordering::Relaxed)
    }

    /// The address where the provider looks for the key of the latest bind. The code that posts a
    /// bind keeps it up to date.
    pub(super) fn key(&self) -> &AtomicU32 {
        // SAFETY: live as long as `self`; in this process only the provider's post reads it
        // otherwise.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.mw).rkey) }
    }

    /// The key that the next bind is to give: its low byte, which counts binds, is one higher
    /// (`ibv_inc_rkey`). It repeats after 256 binds. `docs/design/verbs.md` says who must not see
    /// that.
    pub fn next_rkey(&self) -> u32 {
        let rkey = self.rkey();
        rkey & !0xff | (rkey.wrapping_add(1) & 0xff)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let _entered = self.domain.device.open.library.enter();
        // SAFETY: live until here.
        unsafe {
            if let Some(dealloc) = (*(*self.mw).context).ops.dealloc_mw {
                dealloc(self.mw);
            }
        }
    }
}
