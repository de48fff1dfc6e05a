//! A node's word table, read over the wire as any member can.

use std::collections::BTreeSet;
use std::time::Duration;

use farmem_fabric::session::names_of;
use farmem_fabric::words::{self, Words};
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Trust};
use farmem_protocol::extent::check::{Problem, Recount, recount};
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::{self, Words as _};
use farmem_protocol::extent::owner::{OwnerField, OwnerWord};
use farmem_protocol::extent::{Claimant, Geometry, Level, Owner, Place, State, Word};

use crate::failure::Failure;

/// Words that one READ asks for.
const TOGETHER: usize = 64 << 10;

/// A connection to a node, as a member that holds nothing.
pub struct Reader {
    /// The member.
    pub session: Session,
    queue: QueuePair,
    geometry: Geometry,
}

/// The words as they were read, one after the other.
pub struct Snapshot {
    /// The layout.
    pub geometry: Geometry,
    giants: Vec<u64>,
    blocks: Vec<u64>,
    /// Of every block: its chunks' words, if these can mean anything.
    chunks: Vec<Option<Vec<u64>>>,
    /// Each owner's word, heartbeat, quota, held.
    owners: Vec<u64>,
}

impl Reader {
    /// Joins the node.
    pub fn connect(addr: &NodeAddr, trust: Trust) -> Result<Reader, Failure> {
        let options = ConnectOptions {
            timeout: Duration::from_secs(5),
            grace: Duration::from_secs(1),
            run: random_name()?,
            pid: std::process::id(),
            names: names_of("farmem status"),
            trust,
            ..ConnectOptions::default()
        };
        let session = Session::connect(addr, &options).map_err(Failure::no_node)?;
        let mut queue = session.queue_pair().map_err(Failure::no_node)?;
        let geometry = Words::open(&mut queue).map_err(Failure::no_node)?.geometry();
        Ok(Reader { session, queue, geometry })
    }

    fn read(&mut self, first: Target, count: usize) -> Result<Vec<u64>, Failure> {
        let mut all = vec![0; count];
        let at = self.geometry.offset(first).unwrap_or(u64::MAX);
        for (n, part) in all.chunks_mut(TOGETHER).enumerate() {
            let at = at.saturating_add((n * TOGETHER * 8) as u64);
            words::read(&mut self.queue, at, part).map_err(Failure::no_node)?;
        }
        Ok(all)
    }

    /// Reads the table. Of blocks in one piece the chunks' words are not read: they mean nothing.
    pub fn snapshot(&mut self) -> Result<Snapshot, Failure> {
        let geometry = self.geometry;
        let count = |level| geometry.count(level) as usize;
        let giants = self.read(Target::Word(Place::giant(0)), count(Level::Giant))?;
        let blocks = self.read(Target::Word(Place::block(0)), count(Level::Block))?;
        let owner = Target::Owner(Owner::NODE, OwnerField::Word);
        let owners = self.read(owner, 4 * geometry.owners() as usize)?;
        let mut chunks = Vec::new();
        for (block, &word) in blocks.iter().enumerate() {
            let whole = matches!(Word(word).state(), State::Absent | State::Free | State::Bad);
            let read = !whole && !is_slab(Word(word));
            let inside = geometry.chunks(Place::block(block as u32));
            chunks.push(match read {
                true => Some(self.read(Target::Word(Place::chunk(inside.start)), inside.len())?),
                false => None,
            });
        }
        Ok(Snapshot { geometry, giants, blocks, chunks, owners })
    }
}

/// 128 bits nobody else has: a run of our own.
fn random_name() -> Result<[u8; 16], Failure> {
    use std::io::Read;
    let mut name = [0; 16];
    let mut urandom = std::fs::File::open("/dev/urandom").map_err(Failure::usage)?;
    urandom.read_exact(&mut name).map_err(Failure::usage)?;
    Ok(name)
}

/// Whether a block is part of a granted slab.
pub fn is_slab(word: Word) -> bool {
    word.is(State::Owned) && word.claimant() == Claimant::SLAB
}

impl Snapshot {
    /// Where all chunks are.
    pub fn recount(&self) -> Recount {
        recount(&self.geometry, self)
    }

    /// Chunks in granted slabs, of an owner.
    pub fn slab_chunks(&self, owner: Owner) -> u64 {
        let of_it = self.blocks.iter().filter(|&&word| is_slab(Word(word)) && Word(word).owner() == owner);
        of_it.count() as u64 * self.geometry.chunks_of(Level::Block) as u64
    }

    /// Runs of free chunks, as long as they go: bytes of each.
    pub fn free_runs(&self) -> Vec<u64> {
        let (mut runs, mut run) = (Vec::new(), 0);
        for block in 0..self.blocks.len() as u32 {
            for chunk in self.geometry.chunks(Place::block(block)) {
                // Of a block in one piece, the block's or giant's word says it for all.
                let around = self.geometry.parent(Place::block(block));
                let giant = around.map_or(State::Shared, |giant| self.word(giant).state());
                let free = match (giant, self.word(Place::block(block)).state()) {
                    (State::Free, _) | (_, State::Free) => true,
                    (_, State::Shared) => self.word(Place::chunk(chunk)).is(State::Free),
                    _ => false,
                };
                if free {
                    run += 1;
                } else if run > 0 {
                    runs.push(run * farmem_protocol::extent::place::CHUNK_BYTES);
                    run = 0;
                }
            }
        }
        if run > 0 {
            runs.push(run * farmem_protocol::extent::place::CHUNK_BYTES);
        }
        runs
    }
}

impl guard::Words for Snapshot {
    fn word(&self, place: Place) -> Word {
        Word(match place.level {
            Level::Giant => self.giants[place.index as usize],
            Level::Block => self.blocks[place.index as usize],
            Level::Chunk => {
                let block = self.geometry.parent(place).map_or(0, |block| block.index);
                let first = self.geometry.chunks(Place::block(block)).start;
                self.chunks[block as usize].as_ref().map_or(0, |chunks| chunks[(place.index - first) as usize])
            }
        })
    }

    fn owner(&self, owner: Owner) -> OwnerWord {
        OwnerWord(self.owners[4 * owner.slot() as usize])
    }
}

/// The problems that two recounts in a row show alike. One recount of a pool in use may be
/// mistaken.
pub fn lasting(reader: &mut Reader) -> Result<(Snapshot, Recount, Vec<Problem>), Failure> {
    let first = reader.snapshot()?.recount();
    let snapshot = reader.snapshot()?;
    let second = snapshot.recount();
    let before: BTreeSet<_> = first.problems.iter().map(|p| (p.place, p.word)).collect();
    let both = second.problems.iter().filter(|p| before.contains(&(p.place, p.word))).copied().collect();
    Ok((snapshot, second, both))
}
