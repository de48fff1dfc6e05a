//! Queue pairs of type RC: a reliable connection between two devices.
//!
//! ```text
//!         create          accept(peer)              accept(peer)
//!  (none) ──────► INIT ──────────────────► RTR ───────────────────► RTS ── an error ──► ERROR (all flushed)
//!                 says who may do what     answers the peer         posts work itself
//! ```
//!
//! [`RcQueue::break_off`] ends it from any of these, for good (RESET): a message of the peer's of
//! which a part has come is let go of, and with it the region that it goes to.
//!
//! The two ends tell each other [`Endpoint`]s by some other way (farmem: the
//! stream of a queue pair).

use super::Outcome;
use super::device::{Domain, Region, Rights, Window};
use super::ffi::{self, access, mask, opcode, send, state};
use crate::raw::Errno;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Work requests chained into one call.
const CHAIN: usize = 16;
/// Bytes of a WRITE that may travel in the work request itself.
const INLINE: u32 = 64;
/// 4.096 µs · 2^14 = 67 ms without an acknowledgement, …
const ACK_TIMEOUT: u8 = 14;
/// … seven times over, and the other end is unreachable.
const RETRIES: u8 = 7;

/// One end of a connection, as the other end must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Queue pair number: 24 bits.
    pub number: u32,
    /// First packet sequence number: 24 bits, better not guessed.
    pub sequence: u32,
    /// The port's address: an IP address (RoCE) or an InfiniBand GID.
    pub gid: [u8; 16],
    /// The port's local identifier (InfiniBand).
    pub lid: u16,
    /// `ibv_mtu`: 1 for 256 bytes, … 5 for 4096.
    pub mtu: u8,
}

/// The operation of a work request. Offsets are those of the peer's region or window.
pub enum Work<'a> {
    /// Bytes from there.
    Read {
        /// To.
        into: *mut u8,
        /// Of the region that `into` lies in.
        lkey: u32,
        /// How many.
        len: u32,
        /// From.
        offset: u64,
        /// By right of.
        rkey: u32,
    },
    /// Bytes to there. Up to [`RcQueue::inline_bytes`] are taken when posted.
    Write {
        /// From.
        from: *const u8,
        /// Of the region that `from` lies in.
        lkey: u32,
        /// How many.
        len: u32,
        /// To.
        offset: u64,
        /// By right of.
        rkey: u32,
    },
    /// Compares and swaps; the old value is left at `into`.
    Cas {
        /// Where the old value goes: eight bytes.
        into: *mut u64,
        /// Of the region that `into` lies in.
        lkey: u32,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
        /// Of the word.
        offset: u64,
        /// By right of.
        rkey: u32,
    },
    /// Adds; the old value is left at `into`.
    Faa {
        /// Where the old value goes: eight bytes.
        into: *mut u64,
        /// Of the region that `into` lies in.
        lkey: u32,
        /// The number to add.
        add: u64,
        /// Of the word.
        offset: u64,
        /// By right of.
        rkey: u32,
    },
    /// Binds a window to a range of a local region. The peer of this queue pair may then use it.
    Bind {
        /// The window; not bound now.
        window: &'a Window,
        /// Its key from now on: [`Window::next_rkey`].
        rkey: u32,
        /// The region.
        region: &'a Region,
        /// First byte of the range.
        offset: u64,
        /// Bytes of the range.
        len: u64,
        /// The operations that the peer may do.
        rights: Rights,
    },
    /// Ends the validity of a window's key.
    Invalidate {
        /// The key.
        rkey: u32,
    },
}

/// One work request.
pub struct WorkRequest<'a> {
    /// Comes back with the completion.
    pub id: u64,
    /// Whether a success is told. Failures always are; the success of a later one implies it.
    pub told: bool,
    /// The operation.
    pub work: Work<'a>,
}

/// A completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Of the work request.
    pub id: u64,
    /// How it ended. After a failure, all later ones are flushed.
    pub outcome: Outcome,
}

/// A queue pair with a completion queue of its own.
pub struct RcQueue {
    qp: *mut ffi::Qp,
    cq: *mut ffi::Cq,
    inline: u32,
    sequence: u32,
    broken: bool,
    domain: Arc<Domain>,
}

// SAFETY: used by one thread at a time (`&mut`).
unsafe impl Send for RcQueue {}

impl RcQueue {
    /// A queue pair in state INIT, with room for `depth` work requests. `sequence`: 24 random bits.
    pub fn new(domain: &Arc<Domain>, depth: u32, sequence: u32) -> Result<RcQueue, Errno> {
        let open = &domain.device.open;
        let ibv = open.library.enter();
        // Flushed requests complete even if their success would not be reported. So the queue has
        // room for all. SAFETY: a live context; no channel, no cookie.
        let cq = unsafe { (ibv.ibv_create_cq)(open.context, depth as i32 + 1, ptr::null_mut(), ptr::null_mut(), 0) };
        let cq = open.library.made(cq)?;
        let cap = ffi::QpCap {
            max_send_wr: depth,
            // Nothing is received, but some providers refuse an empty queue.
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE,
        };
        let mut about = ffi::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: ptr::null_mut(),
            cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: a live domain and completion queue.
        let made = open.library.made(unsafe { (ibv.ibv_create_qp)(domain.pd, &mut about) });
        let qp = match made {
            Ok(qp) => qp,
            Err(e) => {
                // SAFETY: nobody uses it.
                unsafe { (ibv.ibv_destroy_cq)(cq) };
                return Err(e);
            }
        };
        drop(ibv);
        let inline = about.cap.max_inline_data.min(INLINE);
        let queue =
            RcQueue { qp, cq, inline, sequence: sequence & 0xff_ffff, broken: false, domain: Arc::clone(domain) };
        let init = ffi::QpAttr {
            qp_state: state::INIT,
            port_num: open.port.number,
            qp_access_flags: access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC | access::MW_BIND,
            ..Default::default()
        };
        queue.modify(init, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
        Ok(queue)
    }

    /// This end, as the peer needs it to connect.
    pub fn endpoint(&self) -> Endpoint {
        let port = &self.domain.device.open.port;
        // SAFETY: live.
        let number = unsafe { (*self.qp).qp_num };
        Endpoint { number, sequence: self.sequence, gid: port.gid, lid: port.lid, mtu: port.mtu }
    }

    /// Connects: to RTR, in which the peer is answered, and on to RTS.
    pub fn accept(&mut self, peer: &Endpoint) -> Result<(), Errno> {
        let open = &self.domain.device.open;
        let reads = open.abilities.reads_in_flight;
        let route = ffi::GlobalRoute {
            dgid: ffi::Gid(peer.gid),
            sgid_index: open.port.gid_index,
            // Nodes may be in other subnets.
            hop_limit: 64,
            ..Default::default()
        };
        let ready = ffi::QpAttr {
            qp_state: state::RTR,
            path_mtu: open.port.mtu.min(peer.mtu).clamp(1, 5) as u32,
            dest_qp_num: peer.number & 0xff_ffff,
            rq_psn: peer.sequence & 0xff_ffff,
            max_dest_rd_atomic: reads,
            min_rnr_timer: 12,
            ah_attr: ffi::AhAttr {
                grh: route,
                dlid: peer.lid,
                is_global: 1,
                port_num: open.port.number,
                ..Default::default()
            },
            ..Default::default()
        };
        let rtr = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        self.modify(ready, mask::STATE | rtr | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER)?;
        let sending = ffi::QpAttr {
            qp_state: state::RTS,
            timeout: ACK_TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: 7,
            sq_psn: self.sequence,
            max_rd_atomic: reads,
            ..Default::default()
        };
        let rts = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC;
        self.modify(sending, mask::STATE | rts)
    }

    /// Breaks it for good. When this has returned, the device answers the peer no more, has let go
    /// of a message that came half, and touches no memory for it; nothing can be posted. An error:
    /// the device refuses.
    pub fn break_off(&mut self) -> Result<(), Errno> {
        self.broken = true;
        self.modify(ffi::QpAttr { qp_state: state::RESET, ..Default::default() }, mask::STATE)
    }

    fn modify(&self, mut to: ffi::QpAttr, which: i32) -> Result<(), Errno> {
        // SAFETY: live; the mask names what `to` sets.
        match unsafe { (self.domain.device.open.library.enter().ibv_modify_qp)(self.qp, &mut to, which) } {
            0 => Ok(()),
            e => Err(Errno(e)),
        }
    }

    /// WRITEs of at most this many bytes leave their buffer when posted.
    pub fn inline_bytes(&self) -> u32 {
        self.inline
    }

    /// Posts work, in order, in as few calls as possible. On an error, says how many were posted:
    /// there is no room for more (ENOMEM), or the queue pair is broken.
    ///
    /// # Safety
    /// Buffers lie in the regions of their keys, and belong to the work until its completion (or a
    /// later one's) or until the queue pair is dropped. Memory that is bound is to be shared.
    pub unsafe fn post(&mut self, work: &[WorkRequest<'_>]) -> Result<(), (usize, Errno)> {
        if self.broken {
            return Err((0, Errno(libc::ENOTCONN)));
        }
        let mut posted = 0;
        for chain in work.chunks(CHAIN) {
            // SAFETY: passed on to the caller.
            unsafe { self.post_chain(chain) }.map_err(|(n, e)| (posted + n, e))?;
            posted += chain.len();
        }
        Ok(())
    }

    unsafe fn post_chain(&mut self, chain: &[WorkRequest<'_>]) -> Result<(), (usize, Errno)> {
        let mut sges = [ffi::Sge::default(); CHAIN];
        // SAFETY: plain numbers and null pointers.
        let mut requests: [ffi::SendWr; CHAIN] = unsafe { std::mem::zeroed() };
        // Pointers into both from one borrow each, so that they stay good while entries are filled.
        let (sge_at, request_at) = (sges.as_mut_ptr(), requests.as_mut_ptr());
        for (i, request) in chain.iter().enumerate() {
            // SAFETY: i < CHAIN.
            let (sge, wr) = unsafe { (&mut *sge_at.add(i), &mut *request_at.add(i)) };
            wr.wr_id = request.id;
            wr.send_flags = if request.told { send::SIGNALED } else { 0 };
            self.fill(&request.work, sge, wr);
            if sge.lkey != 0 || sge.addr != 0 {
                (wr.sg_list, wr.num_sge) = (sge, 1);
            }
            if i + 1 < chain.len() {
                // SAFETY: within the array.
                wr.next = unsafe { request_at.add(i + 1) };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: live; the chain ends in null; buffers are the caller's promise.
        let posted = unsafe {
            match (*(*self.qp).context).ops.post_send {
                Some(post) => post(self.qp, request_at, &mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        if posted == 0 {
            for request in chain {
                if let Work::Bind { window, rkey, .. } = request.work {
                    window.key().store(rkey, Ordering::Relaxed);
                }
            }
            return Ok(());
        }
        let n = (bad as usize).saturating_sub(request_at as usize) / size_of::<ffi::SendWr>();
        // Providers return errno, or its negative, or -1 with errno set.
        let e = if posted == -1 { self.domain.device.open.library.errno() } else { Errno(posted.abs()) };
        Err((if bad.is_null() { 0 } else { n.min(chain.len()) }, e))
    }

    fn fill(&self, work: &Work<'_>, sge: &mut ffi::Sge, wr: &mut ffi::SendWr) {
        match *work {
            Work::Read { into, lkey, len, offset, rkey } => {
                wr.opcode = opcode::READ;
                *sge = ffi::Sge { addr: into as u64, length: len, lkey };
                wr.wr.rdma = ffi::TargetRdma { remote_addr: offset, rkey };
            }
            Work::Write { from, lkey, len, offset, rkey } => {
                wr.opcode = opcode::WRITE;
                if len <= self.inline {
                    wr.send_flags |= send::INLINE;
                }
                *sge = ffi::Sge { addr: from as u64, length: len, lkey };
                wr.wr.rdma = ffi::TargetRdma { remote_addr: offset, rkey };
            }
            Work::Cas { into, lkey, expected, new, offset, rkey } => {
                wr.opcode = opcode::CAS;
                *sge = ffi::Sge { addr: into as u64, length: 8, lkey };
                wr.wr.atomic = ffi::TargetAtomic { remote_addr: offset, compare_add: expected, swap: new, rkey };
            }
            Work::Faa { into, lkey, add, offset, rkey } => {
                wr.opcode = opcode::FAA;
                *sge = ffi::Sge { addr: into as u64, length: 8, lkey };
                wr.wr.atomic = ffi::TargetAtomic { remote_addr: offset, compare_add: add, swap: 0, rkey };
            }
            Work::Bind { window, rkey, region, offset, len, rights } => {
                wr.opcode = opcode::BIND_MW;
                let info = ffi::MwBindInfo {
                    mr: region.mr,
                    addr: offset,
                    length: len,
                    mw_access_flags: rights.window_flags(),
                };
                wr.bind_mw = ffi::BindMw { mw: window.mw, rkey, bind_info: info };
            }
            Work::Invalidate { rkey } => {
                wr.opcode = opcode::LOCAL_INV;
                wr.invalidate_rkey = rkey;
            }
        }
    }

    /// Takes completions that are there. Returns how many.
    pub fn poll(&mut self, into: &mut [Done]) -> Result<usize, Errno> {
        let mut wcs = [ffi::Wc::default(); CHAIN];
        let most = into.len().min(CHAIN);
        // SAFETY: live; room for `most`.
        let n = unsafe {
            match (*(*self.cq).context).ops.poll_cq {
                Some(poll) => poll(self.cq, most as i32, wcs.as_mut_ptr()),
                None => return Err(Errno(libc::EOPNOTSUPP)),
            }
        };
        if n < 0 {
            return Err(Errno(libc::EIO));
        }
        for (done, wc) in into.iter_mut().zip(&wcs[..n as usize]) {
            *done = Done { id: wc.wr_id, outcome: Outcome(wc.status) };
        }
        Ok(n as usize)
    }

    /// In a forked child, where it is the parent's.
    pub fn forget_in_child(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for RcQueue {
    fn drop(&mut self) {
        let ibv = self.domain.device.open.library.enter();
        // SAFETY: live until here; the queue pair first, which uses the other. When this has
        // returned, the device touches no buffer for it any more, and answers nobody.
        unsafe {
            (ibv.ibv_destroy_qp)(self.qp);
            (ibv.ibv_destroy_cq)(self.cq);
        }
    }
}
