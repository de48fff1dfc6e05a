//! Assertions about the ABI: sizes, offsets and numbers, by their names in C.

use super::*;

/// Offsets, each by its name in C and as it is here.
macro_rules! layout {
    ($($c:literal $rust:ident: $($field:ident $(. $inner:ident)*),+;)*) => {
        /// `(C expression, its value here)` for every offset that matters.
        pub const LAYOUT: &[(&str, usize)] = &[$($((
            concat!("offsetof(struct ", $c, ", ", stringify!($field), $(".", stringify!($inner),)* ")"),
            std::mem::offset_of!($rust, $field $(. $inner)*),
        ),)+)*];
    };
}

layout! {
    "ibv_context" Context: ops.alloc_mw, ops.dealloc_mw, ops.poll_cq, ops.post_send, cmd_fd, async_fd;
    "ibv_mr" Mr: lkey, rkey;
    "ibv_mw" Mw: rkey;
    "ibv_qp" Qp: qp_num;
    "ibv_ah_attr" AhAttr: grh.sgid_index, dlid, port_num;
    "ibv_qp_init_attr" QpInitAttr: cap, qp_type, sq_sig_all;
    "ibv_qp_attr" QpAttr: path_mtu, dest_qp_num, qp_access_flags, ah_attr,
        pkey_index, max_rd_atomic, port_num, rnr_retry;
    "ibv_send_wr" SendWr: opcode, send_flags, invalidate_rkey, wr.rdma.rkey,
        wr.atomic.swap, wr.atomic.rkey, bind_mw.rkey, bind_mw.bind_info;
    "ibv_mw_bind_info" MwBindInfo: mw_access_flags;
    "ibv_wc" Wc: status, wc_flags;
    "ibv_port_attr" PortAttr: active_mtu, gid_tbl_len, lid, link_layer;
    "ibv_device_attr" DeviceAttr: device_cap_flags, max_qp_rd_atom, atomic_cap, max_mw, phys_port_cnt;
}

/// Sizes of the structures that are made here and read there, or the other way round, and the
/// numbers of flags and states: as [`LAYOUT`].
pub const SIZES: &[(&str, usize)] = &[
    ("sizeof(struct ibv_context_ops)", size_of::<ContextOps>()),
    ("sizeof(struct ibv_qp_init_attr)", size_of::<QpInitAttr>()),
    ("sizeof(struct ibv_qp_attr)", size_of::<QpAttr>()),
    ("sizeof(struct ibv_ah_attr)", size_of::<AhAttr>()),
    ("sizeof(struct ibv_send_wr)", size_of::<SendWr>()),
    ("sizeof(struct ibv_sge)", size_of::<Sge>()),
    ("sizeof(struct ibv_wc)", size_of::<Wc>()),
    ("sizeof(struct ibv_port_attr)", size_of::<PortAttr>()),
    ("sizeof(struct ibv_device_attr)", size_of::<DeviceAttr>()),
    ("sizeof(struct ibv_gid_entry)", size_of::<GidEntry>()),
    ("IBV_MW_TYPE_2", MW_TYPE_2 as usize),
    ("IBV_ACCESS_REMOTE_ATOMIC", access::REMOTE_ATOMIC as usize),
    ("IBV_ACCESS_MW_BIND", access::MW_BIND as usize),
    ("IBV_WR_RDMA_READ", opcode::READ as usize),
    ("IBV_WR_ATOMIC_CMP_AND_SWP", opcode::CAS as usize),
    ("IBV_WR_ATOMIC_FETCH_AND_ADD", opcode::FAA as usize),
    ("IBV_WR_LOCAL_INV", opcode::LOCAL_INV as usize),
    ("IBV_WR_BIND_MW", opcode::BIND_MW as usize),
    ("IBV_SEND_SIGNALED", send::SIGNALED as usize),
    ("IBV_SEND_INLINE", send::INLINE as usize),
    ("IBV_QP_DEST_QPN", mask::DEST_QPN as usize),
    ("IBV_QP_MAX_DEST_RD_ATOMIC", mask::MAX_DEST_RD_ATOMIC as usize),
    ("IBV_QP_SQ_PSN", mask::SQ_PSN as usize),
    ("IBV_QP_MIN_RNR_TIMER", mask::MIN_RNR_TIMER as usize),
    ("IBV_QP_MAX_QP_RD_ATOMIC", mask::MAX_QP_RD_ATOMIC as usize),
    ("IBV_QP_RNR_RETRY", mask::RNR_RETRY as usize),
    ("IBV_QP_TIMEOUT", mask::TIMEOUT as usize),
    ("IBV_QP_ACCESS_FLAGS", mask::ACCESS_FLAGS as usize),
    ("IBV_QPS_RESET", state::RESET as usize),
    ("IBV_QPS_RTS", state::RTS as usize),
    ("IBV_QPT_RC", QPT_RC as usize),
    ("IBV_PORT_ACTIVE", PORT_ACTIVE as usize),
    ("IBV_LINK_LAYER_ETHERNET", LINK_LAYER_ETHERNET as usize),
    ("IBV_GID_TYPE_ROCE_V2", GID_TYPE_ROCE_V2 as usize),
    ("IBV_DEVICE_MEM_WINDOW_TYPE_2B", DEVICE_MW_TYPE_2B as usize),
    ("IBV_WC_WR_FLUSH_ERR", crate::verbs::Outcome::FLUSHED.0 as usize),
    ("IBV_WC_REM_ACCESS_ERR", crate::verbs::Outcome::REMOTE_ACCESS.0 as usize),
    ("IBV_WC_RETRY_EXC_ERR", crate::verbs::Outcome::UNREACHABLE.0 as usize),
];

const _: () = {
    assert!(size_of::<ContextOps>() == 32 * 8 && std::mem::offset_of!(Context, cmd_fd) == 8 + 32 * 8);
    assert!(size_of::<SendWr>() == 128 && size_of::<Wc>() == 48 && size_of::<Sge>() == 16);
    assert!(size_of::<QpInitAttr>() == 64 && size_of::<QpAttr>() == 144 && size_of::<AhAttr>() == 32);
    assert!(size_of::<DeviceAttr>() == 232 && size_of::<PortAttr>() == 52 && size_of::<GidEntry>() == 32);
};
