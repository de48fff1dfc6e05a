//! Pieces from many places, asked for as the places become known.
//!
//! ```text
//!  add(place) ─► its slab's list ── full ─► call ─► node gathers ─► pieces ─► the caller
//! ```
//!
//! Some calls are under way at a node at once. So the node gathers while pieces of earlier calls come,
//! and while the caller looks for further places.

use super::flights::{Flights, Landed};
use super::{Call, FEW, Function, Near, laid};
use crate::{Addr, Error, Result};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::near::{MAX_BYTES, MAX_PIECE};

/// Calls under way at a node, each with its part of the scratch piece there.
const PARTS: usize = 4;
/// Bytes of such a part.
const PART: u64 = MAX_BYTES / PARTS as u64;

/// Pieces that are read together from a node that does not gather.
const READ: usize = 1024;

/// A piece that is wanted: the caller's number, and its place.
type Wanted = (usize, Addr);

/// A node's scratch piece, and which of its parts no call uses.
struct Scratch {
    at: Addr,
    is_free: [bool; PARTS],
}

/// A call under way: its pieces, and its part of the scratch piece.
struct Sent {
    wanted: Vec<Wanted>,
    part: usize,
}

/// Gathers pieces: see [`Near::gathering`].
pub struct Gathering<'l> {
    flights: Flights<'l, Sent>,
    each: u32,
    /// By node and slab: pieces that have not been asked for. A call has one source.
    waiting: Vec<Vec<Vec<Wanted>>>,
    scratch: Vec<Option<Scratch>>,
    /// Buffers of calls that have ended.
    runs: Vec<Vec<u8>>,
}

impl<'l> Near<'l> {
    /// For pieces of `each` bytes (1 to 4096), whose places the caller tells one by one. Nodes gather
    /// them meanwhile.
    ///
    /// # Errors
    /// [`Error::Size`] of a piece.
    pub fn gathering(self, each: u32) -> Result<Gathering<'l>> {
        if !(1..=MAX_PIECE).contains(&each) {
            return Err(Error::Size(u64::from(each)));
        }
        let (flights, runs) = (Flights::new(self.lane), Vec::new());
        Ok(Gathering { flights, each, waiting: Vec::new(), scratch: Vec::new(), runs })
    }

    /// The pieces of `each` bytes (1 to 4096) at these places, one behind the other in their order.
    ///
    /// # Errors
    /// As [`crate::Lane::read`]; [`Error::Size`] of a piece.
    pub fn gather(&mut self, places: &[Addr], each: u32) -> Result<Vec<u8>> {
        let size = each as usize;
        let mut gathering = Near { lane: self.lane }.gathering(each)?;
        let mut gathered = vec![0; places.len() * size];
        let mut take = |n: usize, piece: &[u8]| gathered[n * size..][..size].copy_from_slice(piece);
        places.iter().enumerate().try_for_each(|(n, &at)| gathering.add(n, at, &mut take))?;
        gathering.finish(&mut take)?;
        Ok(gathered)
    }
}

impl Gathering<'_> {
    /// One piece more, with a number of the caller's. Passes the pieces that have come to `take`, each
    /// with its number, in any order.
    ///
    /// # Errors
    /// As [`crate::Lane::read`].
    pub fn add(&mut self, number: usize, at: Addr, take: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        self.flights.near().range(at, self.each.into())?;
        let (node, slab) = (at.node(), at.slab());
        let most = if self.gathers(node) { self.most() } else { READ };
        self.waiting.resize_with(self.waiting.len().max(node + 1), Vec::new);
        let slabs = &mut self.waiting[node];
        slabs.resize_with(slabs.len().max(slab + 1), Vec::new);
        slabs[slab].push((number, at));
        if slabs[slab].len() < most {
            return Ok(());
        }
        let wanted = std::mem::take(&mut slabs[slab]);
        self.ask(wanted, take)
    }

    /// Waits for all pieces, and passes them to `take`. Those that were met by an error before are asked
    /// for again.
    ///
    /// # Errors
    /// As [`crate::Lane::read`]. Some of the pieces may have been passed.
    pub fn finish(mut self, take: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        let mut few = Vec::new();
        for wanted in std::mem::take(&mut self.waiting).into_iter().flatten() {
            match wanted.len() < FEW {
                true => few.extend(wanted),
                false => self.ask(wanted, take)?,
            }
        }
        self.read(&few, take)?;
        while let Some(landed) = self.flights.land() {
            self.landed(landed, take)?;
        }
        Ok(())
    }

    /// Pieces of one call.
    fn most(&self) -> usize {
        ((PART - 8) / (u64::from(self.each) + 4)) as usize
    }

    /// Whether a node may gather.
    fn gathers(&mut self, node: usize) -> bool {
        let near = self.flights.near();
        near.is_computed(node) && near.lane.memory().inner.region.is_none()
    }

    /// Has pieces asked for again that an error has met. Not within `finish`, which ends by it.
    fn again(&mut self, wanted: &[Wanted]) {
        for &(number, at) in wanted {
            if let Some(waiting) = self.waiting.get_mut(at.node()).and_then(|slabs| slabs.get_mut(at.slab())) {
                waiting.push((number, at));
            }
        }
    }

    /// Has a node gather pieces of one slab, or reads them where it does not.
    fn ask(&mut self, wanted: Vec<Wanted>, take: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        let (node, slab) = (wanted[0].1.node(), wanted[0].1.slab());
        let source = self.flights.near().range(Addr::of(node, slab, 0), SLAB_BYTES);
        let (source, (at, part)) = match source.and_then(|source| Ok((source, self.part(node, take)?))) {
            Ok((source, Some(part))) => (source, part),
            Ok((_, None)) => return self.read(&wanted, take),
            Err(e) => {
                self.again(&wanted);
                return Err(e);
            }
        };
        let count = wanted.len() as u32;
        let list: Vec<u8> = wanted.iter().flat_map(|(_, at)| (at.offset() as u32).to_le_bytes()).collect();
        let mut run = self.runs.pop().unwrap_or_default();
        run.resize(wanted.len() * self.each as usize, 0);
        let range = self.flights.near().range(at, laid(count) + run.len() as u64)?;
        let call = Call { source, list: range, function: Function::Gather { count, each: self.each } };
        self.flights.post((node, call), Some((at, list)), Some((at + laid(count), run)), Sent { wanted, part });
        self.flights.ring();
        while self.flights.is_over() {
            if let Some(landed) = self.flights.land() {
                self.landed(landed, take)?;
            }
        }
        Ok(())
    }

    /// A part of a node's scratch piece that no call uses: its address and number. `None`: the node
    /// does not gather.
    fn part(&mut self, node: usize, take: &mut impl FnMut(usize, &[u8])) -> Result<Option<(Addr, usize)>> {
        if !self.gathers(node) {
            return Ok(None);
        }
        self.scratch.resize_with(self.scratch.len().max(node + 1), || None);
        if self.scratch[node].is_none() {
            let Some(at) = self.flights.near().scratch(node)? else { return Ok(None) };
            self.scratch[node] = Some(Scratch { at, is_free: [true; PARTS] });
        }
        loop {
            if let Some(Scratch { at, is_free }) = &mut self.scratch[node]
                && let Some(part) = is_free.iter().position(|is_free| *is_free)
            {
                is_free[part] = false;
                return Ok(Some((*at + part as u64 * PART, part)));
            }
            match self.flights.land() {
                Some(landed) => self.landed(landed, take)?,
                None => return Ok(None),
            }
        }
    }

    /// Passes the pieces of a call that has ended.
    fn landed(&mut self, landed: Landed<Sent>, take: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        let Landed { state: Sent { wanted, part }, reply, run } = landed;
        if let Some(Some(scratch)) = self.scratch.get_mut(wanted[0].1.node()) {
            scratch.is_free[part] = true;
        }
        match reply {
            Ok(Some(_)) => {}
            Ok(None) => return self.read(&wanted, take),
            Err(e) => {
                self.again(&wanted);
                return Err(e);
            }
        }
        for (piece, &(number, _)) in run.chunks_exact(self.each as usize).zip(&wanted) {
            take(number, piece);
        }
        self.runs.push(run);
        Ok(())
    }

    /// Reads pieces by verbs.
    fn read(&mut self, wanted: &[Wanted], take: &mut impl FnMut(usize, &[u8])) -> Result<()> {
        let size = self.each as usize;
        for (n, some) in wanted.chunks(READ).enumerate() {
            let mut run = vec![0; some.len() * size];
            let near = self.flights.near();
            let mut batch = near.lane.batch();
            for (&(_, at), piece) in some.iter().zip(run.chunks_exact_mut(size)) {
                batch.read(at, piece);
            }
            if let Err(e) = batch.run().into_iter().try_for_each(|done| done.map(drop)) {
                self.again(&wanted[n * READ..]);
                return Err(e);
            }
            run.chunks_exact(size).zip(some).for_each(|(piece, &(number, _))| take(number, piece));
        }
        Ok(())
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // After an error some calls may be under way, which use the scratch pieces.
        while self.flights.land().is_some() {}
        for (node, scratch) in self.scratch.iter().enumerate() {
            if let Some(scratch) = scratch {
                self.flights.near().lane.memory().inner.keep_scratch(node, scratch.at);
            }
        }
    }
}

impl std::fmt::Debug for Gathering<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering")
            .field("each", &self.each)
            .field("calls", &self.flights.len())
            .finish_non_exhaustive()
    }
}
