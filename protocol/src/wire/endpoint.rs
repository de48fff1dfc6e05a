//! The messages of two ends of an RDMA connection before bytes bypass both processors.

use super::Status;
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// [`super::Welcome::offers`]: memory can be reached by RDMA, over connections of
/// [`super::Purpose::Wire`].
pub const OFFERS_RDMA: u8 = 1;
/// [`super::Welcome::offers`]: the node may need its memory. A member asks it now and then how many
/// slabs it wants back ([`super::Ask::Wanted`]).
pub const OFFERS_RESERVE: u8 = 2;

/// One end of a reliable connection: the host's goes first, the node answers with its own.
///
/// ```text
///  0        1     2     4     8     12      16  20    36
///  | status | mtu | lid | qpn | psn | error | 0 | gid |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Endpoint {
    /// A [`Status`]: [`Status::Done`], or [`Status::System`] with `error` where the node's card
    /// refuses.
    pub status: u8,
    /// The largest packet, as RDMA numbers it: 1 for 256 bytes, … 5 for 4096. The smaller of the
    /// two counts.
    pub mtu: u8,
    /// The port's local identifier (InfiniBand; 0 over Ethernet).
    pub lid: U16,
    /// Queue pair number: 24 bits.
    pub qpn: U32,
    /// Number of the first packet that this end will send: 24 random bits.
    pub psn: U32,
    /// `errno` of a refusal.
    pub error: U32,
    /// Zero.
    pub zero: U32,
    /// The port's global identifier: over Ethernet its IP address (IPv4 mapped).
    pub gid: [u8; 16],
}

impl Endpoint {
    /// One end that can be connected to.
    pub fn ready(mtu: u8, lid: u16, qpn: u32, psn: u32, gid: [u8; 16]) -> Endpoint {
        let (qpn, psn) = (qpn.into(), psn.into());
        Endpoint { status: Status::Done as u8, mtu, lid: lid.into(), qpn, psn, error: 0.into(), zero: 0.into(), gid }
    }

    /// Where there is none.
    pub fn refused(errno: i32) -> Endpoint {
        Endpoint {
            status: Status::System as u8,
            mtu: 0,
            lid: 0.into(),
            qpn: 0.into(),
            psn: 0.into(),
            error: (errno as u32).into(),
            zero: 0.into(),
            gid: [0; 16],
        }
    }
}

const _: () = assert!(size_of::<Endpoint>() == 36);
