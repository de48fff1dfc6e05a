//! A connection: what is on its way in either direction, and when it arrives.

use super::Weather;
use farmem_nic::engine::Engine;
use farmem_protocol::random::Random;
use farmem_sys::raw::Errno;
use farmem_sys::socket::Part;
use std::collections::VecDeque;

/// One connection.
#[derive(Default)]
pub struct Wire {
    pub engine: Option<Engine>,
    pub to_node: Way,
    pub to_host: Way,
    pub cut: bool,
    pub host_closed: bool,
    /// Nothing of it arrives between these, retransmissions included.
    pub mute: (u64, u64),
}

/// One direction: pieces and when they arrive, in order.
#[derive(Default)]
pub struct Way {
    pub pieces: VecDeque<(u64, Vec<u8>)>,
    pub last_ns: u64,
}

impl Wire {
    /// Nothing of it arrives for a while.
    pub fn quiet(&mut self, from: u64, until: u64) {
        self.mute = (from, until);
        for way in [&mut self.to_node, &mut self.to_host] {
            way.last_ns = way.last_ns.max(until);
            way.pieces.iter_mut().for_each(|(at, _)| *at = (*at).max(until));
        }
    }
}

impl Way {
    pub fn has_arrived(&self, now: u64) -> bool {
        self.pieces.front().is_some_and(|p| p.0 <= now)
    }

    /// Takes bytes on their way, cut as the seed has it.
    pub fn put(&mut self, now: u64, weather: &Weather, random: &mut Random, bytes: &[u8]) {
        for piece in bytes.chunks(1 + random.index(weather.segment.max(1))) {
            self.travel(now, weather, random, piece);
        }
    }

    /// A piece is on its way from now on, and arrives after those before it.
    pub fn travel(&mut self, now: u64, weather: &Weather, random: &mut Random, piece: &[u8]) {
        let spread = weather.most_delay_ns.saturating_sub(weather.least_delay_ns) + 1;
        let at = (now + weather.least_delay_ns + random.below(spread)).max(self.last_ns);
        self.last_ns = at;
        self.pieces.push_back((at, piece.to_vec()));
    }

    pub fn take(&mut self, now: u64, parts: &[Part]) -> Result<usize, Errno> {
        let mut taken = 0;
        for part in parts {
            let mut filled = 0;
            while filled < part.len() && self.has_arrived(now) {
                let Some((_, piece)) = self.pieces.front_mut() else { break };
                let n = piece.len().min(part.len() - filled);
                // SAFETY: a caller that offers parts to receive into vouches for them.
                unsafe { part.fill(filled, &piece[..n]) };
                filled += n;
                piece.drain(..n);
                if piece.is_empty() {
                    self.pieces.pop_front();
                }
            }
            taken += filled;
        }
        if taken > 0 { Ok(taken) } else { Err(Errno(libc::EAGAIN)) }
    }
}

/// The bytes of parts that are offered to send.
pub fn gathered(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(parts.iter().map(Part::len).sum());
    for part in parts {
        // SAFETY: a caller that offers parts to send vouches for them.
        bytes.extend_from_slice(unsafe { part.bytes() });
    }
    bytes
}
