//! The ABI of libibverbs, as far as farmem needs it: structures, numbers, symbols.
//!
//! rdma-core keeps this ABI since its first release: structures grow only at their
//! end, and what `verbs.h` has as inline functions (post, poll, windows) goes
//! through a table of functions in `ibv_context`, which the provider fills.
//! Offsets and sizes are asserted in [`layout`]; `tests/verbs_abi.rs` has a C compiler
//! confirm each of them against the real header where it is installed.

// Fields are the header's own, under its names.
#![allow(missing_docs)]

pub mod layout;

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: only pointers to it are handled.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context_ops`: the provider's functions behind `verbs.h`'s inline ones. Entries that
/// the library keeps for old programs, or that farmem does not call, are opaque.
#[repr(C)]
pub struct ContextOps {
    _compat_a: [*mut c_void; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut Pd, c_uint) -> *mut Mw>,
    pub bind_mw: *mut c_void,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    _compat_b: *mut c_void,
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: *mut c_void,
    _compat_c: [*mut c_void; 7],
    pub post_srq_recv: *mut c_void,
    _compat_d: [*mut c_void; 4],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: *mut c_void,
    _compat_e: [*mut c_void; 5],
}

/// `struct ibv_context`, its public part.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub struct Mw {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub rkey: u32,
    pub handle: u32,
    pub kind: c_uint,
}

/// `struct ibv_cq`, up to what is read here.
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut c_void,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// `struct ibv_qp`, up to what is read here.
#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
}

/// `union ibv_gid`: 16 bytes in network order, aligned as its words.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_gid_entry`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct GidEntry {
    pub gid: Gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

/// `struct ibv_global_route`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct GlobalRoute {
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct AhAttr {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_cap`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_qp_attr`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct QpAttr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_mw_bind_info`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MwBindInfo {
    pub mr: *mut Mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// The union of `ibv_send_wr` that names the peer's memory. Its members overlay one another.
#[derive(Clone, Copy)]
#[repr(C)]
pub union Target {
    pub rdma: TargetRdma,
    pub atomic: TargetAtomic,
}

/// `wr.rdma`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TargetRdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

/// `wr.atomic`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TargetAtomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

/// `bind_mw` of the last union of `ibv_send_wr`, its largest member.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BindMw {
    pub mw: *mut Mw,
    pub rkey: u32,
    pub bind_info: MwBindInfo,
}

/// `struct ibv_send_wr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: *mut SendWr,
    pub sg_list: *mut Sge,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// `imm_data`, or `invalidate_rkey` of a LOCAL_INV.
    pub invalidate_rkey: u32,
    pub wr: Target,
    pub xrc_remote_srqn: u32,
    pub bind_mw: BindMw,
}

/// `struct ibv_wc`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_port_attr`. The exported `ibv_query_port` fills it up to `flags`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct PortAttr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// `struct ibv_device_attr`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_uint,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    /// Raw and multicast limits, none of which farmem needs.
    pub _others: [c_int; 11],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `ibv_mw_type`: 2, which a work request binds and invalidates.
pub const MW_TYPE_2: c_uint = 2;

/// `ibv_access_flags`.
pub mod access {
    pub const LOCAL_WRITE: u32 = 1;
    pub const REMOTE_WRITE: u32 = 1 << 1;
    pub const REMOTE_READ: u32 = 1 << 2;
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    pub const MW_BIND: u32 = 1 << 4;
}

/// `ibv_wr_opcode`.
pub mod opcode {
    pub const WRITE: u32 = 0;
    pub const READ: u32 = 4;
    pub const CAS: u32 = 5;
    pub const FAA: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
}

/// `ibv_send_flags`.
pub mod send {
    pub const SIGNALED: u32 = 1 << 1;
    pub const INLINE: u32 = 1 << 3;
}

/// `ibv_qp_attr_mask`.
pub mod mask {
    pub const STATE: i32 = 1;
    pub const ACCESS_FLAGS: i32 = 1 << 3;
    pub const PKEY_INDEX: i32 = 1 << 4;
    pub const PORT: i32 = 1 << 5;
    pub const AV: i32 = 1 << 7;
    pub const PATH_MTU: i32 = 1 << 8;
    pub const TIMEOUT: i32 = 1 << 9;
    pub const RETRY_CNT: i32 = 1 << 10;
    pub const RNR_RETRY: i32 = 1 << 11;
    pub const RQ_PSN: i32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: i32 = 1 << 13;
    pub const MIN_RNR_TIMER: i32 = 1 << 15;
    pub const SQ_PSN: i32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
    pub const DEST_QPN: i32 = 1 << 20;
}

/// `ibv_qp_state`.
pub mod state {
    pub const RESET: u32 = 0;
    pub const INIT: u32 = 1;
    pub const RTR: u32 = 2;
    pub const RTS: u32 = 3;
}

/// `IBV_QPT_RC`.
pub const QPT_RC: c_uint = 2;
/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_LINK_LAYER_ETHERNET`.
pub const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_GID_TYPE_ROCE_V2` of an entry of the GID table.
pub const GID_TYPE_ROCE_V2: u32 = 2;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`.
pub const DEVICE_MW_TYPE_2B: c_uint = 1 << 24;

/// Declares [`Symbols`]: the functions that the library exports.
macro_rules! symbols {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// Functions of the library, each under its C name.
        pub struct Symbols {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        impl Symbols {
            /// Looks every symbol up; names the first that is missing.
            ///
            /// # Safety
            /// `find` must return addresses of libibverbs' functions of these names, or null.
            pub unsafe fn load(find: impl Fn(&std::ffi::CStr) -> *mut c_void) -> Result<Symbols, &'static str> {
                $(
                    let name = concat!(stringify!($name), "\0");
                    let at = find(std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or(c""));
                    if at.is_null() {
                        return Err(stringify!($name));
                    }
                    // SAFETY: not null, and the function of this name has this signature (verbs.h).
                    let $name = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(at)
                    };
                )*
                Ok(Symbols { $($name),* })
            }
        }
    };
}

symbols! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device);
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttr) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttr) -> c_int;
    _ibv_query_gid_ex: fn(*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Pd;
    ibv_dealloc_pd: fn(*mut Pd) -> c_int;
    ibv_reg_mr_iova2: fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut c_void, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_create_qp: fn(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttr, c_int) -> c_int;
    ibv_wc_status_str: fn(c_uint) -> *const c_char;
}
