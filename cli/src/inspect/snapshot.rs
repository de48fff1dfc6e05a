//! A node's word table, read over the wire as any member can.
//!
//! A table can have 8 GiB: 0.2 % of what the node says that it lends. So it is read giant by giant, and
//! only what is counted is kept. A node that lies takes no more of this machine than an honest one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use farmem_fabric::session::names_of;
use farmem_fabric::words::{self, Words};
use farmem_fabric::{ConnectOptions, NodeAddr, QueuePair, Session, Trust};
use farmem_protocol::extent::check::{Problem, Recount, recount_giant};
use farmem_protocol::extent::geometry::Target;
use farmem_protocol::extent::guard::{self, Words as _};
use farmem_protocol::extent::owner::{OwnerField, OwnerWord};
use farmem_protocol::extent::place::CHUNK_BYTES;
use farmem_protocol::extent::{Claimant, Geometry, Level, Owner, Place, State, Word};

use crate::failure::Failure;

/// Words that one READ asks for.
const TOGETHER: usize = 64 << 10;
/// Problems that are kept of a look. More are counted.
const MOST_PROBLEMS: usize = 10_000;
/// How long a node may take to send its table.
const PATIENCE: Duration = Duration::from_secs(60);
/// … and a second more for each so many bytes of the table.
const A_SECOND: u64 = 4 << 20;

/// A connection to a node, as a member that holds nothing.
pub struct Reader {
    /// The member.
    pub session: Session,
    queue: QueuePair,
    geometry: Geometry,
    /// When the look that is under way must have ended.
    until: Instant,
}

/// The words of one giant as they were read, one after the other; and those of all giants and owners.
struct Part {
    geometry: Geometry,
    giants: Vec<u64>,
    /// Each owner's word, heartbeat, quota, held.
    owners: Vec<u64>,
    /// The first block, and the words of the giant's blocks.
    first: u32,
    blocks: Vec<u64>,
    /// Of every block: its chunks' words, if these can mean anything.
    chunks: Vec<Option<Vec<u64>>>,
}

/// What a look at the whole table has counted.
pub struct Look {
    /// The layout.
    pub geometry: Geometry,
    /// Where all chunks are. Of its problems there are [`MOST_PROBLEMS`] at most.
    pub recount: Recount,
    /// Problems that are not in `recount`.
    pub left_out: u64,
    /// Runs of free memory.
    pub free: FreeRuns,
    /// Chunks in granted slabs, by owner.
    slabs: BTreeMap<Owner, u64>,
}

/// Runs of free chunks, as long as they go.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct FreeRuns {
    /// Bytes of the longest.
    pub longest: u64,
    /// How many, by their bytes rounded down to a power of two.
    pub counts: BTreeMap<u64, u64>,
    /// Chunks of the one that has no end yet.
    run: u64,
}

impl FreeRuns {
    fn add(&mut self, free: bool, chunks: u64) {
        if free {
            self.run += chunks;
        } else {
            self.end();
        }
    }

    fn end(&mut self) {
        let bytes = std::mem::take(&mut self.run) * CHUNK_BYTES;
        if bytes > 0 {
            self.longest = self.longest.max(bytes);
            *self.counts.entry(1 << bytes.ilog2()).or_default() += 1;
        }
    }
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
        Ok(Reader { session, queue, geometry, until: Instant::now() })
    }

    fn read(&mut self, first: Target, count: usize) -> Result<Vec<u64>, Failure> {
        let mut all = vec![0; count];
        let at = self.geometry.offset(first).unwrap_or(u64::MAX);
        for (n, part) in all.chunks_mut(TOGETHER).enumerate() {
            if Instant::now() > self.until {
                return Err(Failure::no_node("the node takes too long for its table of memory"));
            }
            let at = at.saturating_add((n * TOGETHER * 8) as u64);
            words::read(&mut self.queue, at, part).map_err(Failure::no_node)?;
        }
        Ok(all)
    }

    /// Reads the words of a giant into a part. Of blocks in one piece the chunks' words are not read:
    /// they mean nothing.
    fn read_giant(&mut self, part: &mut Part, giant: u32) -> Result<(), Failure> {
        let geometry = self.geometry;
        let (first, count) = geometry.children(Place::giant(giant)).unwrap_or((Place::block(0), 0));
        part.first = first.index;
        part.blocks = self.read(Target::Word(first), count as usize)?;
        part.chunks.clear();
        for (block, &word) in (first.index..).zip(&part.blocks) {
            let whole = matches!(Word(word).state(), State::Absent | State::Free | State::Bad);
            let inside = geometry.chunks(Place::block(block));
            part.chunks.push(match whole || is_slab(Word(word)) {
                true => None,
                false => Some(self.read(Target::Word(Place::chunk(inside.start)), inside.len())?),
            });
        }
        Ok(())
    }

    /// Looks at the whole table.
    pub fn look(&mut self) -> Result<Look, Failure> {
        let geometry = self.geometry;
        let seconds = geometry.table_bytes() / A_SECOND;
        self.until = Instant::now() + PATIENCE + Duration::from_secs(seconds);
        let giants = geometry.count(Level::Giant);
        let owner = Target::Owner(Owner::NODE, OwnerField::Word);
        let mut part = Part {
            geometry,
            giants: self.read(Target::Word(Place::giant(0)), giants as usize)?,
            owners: self.read(owner, 4 * geometry.owners() as usize)?,
            first: 0,
            blocks: Vec::new(),
            chunks: Vec::new(),
        };
        let (recount, free, slabs) = (Recount::default(), FreeRuns::default(), BTreeMap::new());
        let mut look = Look { geometry, recount, left_out: 0, free, slabs };
        for giant in 0..giants {
            self.read_giant(&mut part, giant)?;
            look.add(&part, giant);
        }
        look.free.end();
        Ok(look)
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

impl Look {
    /// Counts a giant, whose words the part has.
    fn add(&mut self, part: &Part, giant: u32) {
        recount_giant(&self.geometry, part, giant, &mut self.recount);
        let more = self.recount.problems.len().saturating_sub(MOST_PROBLEMS);
        self.recount.problems.truncate(MOST_PROBLEMS);
        self.left_out += more as u64;
        let whole = u64::from(self.geometry.chunks_of(Level::Block));
        for (block, &word) in (part.first..).zip(&part.blocks) {
            let word = Word(word);
            if is_slab(word) {
                *self.slabs.entry(word.owner()).or_default() += whole;
            }
            // Of a block in one piece, the block's or giant's word says it for all.
            match (part.word(Place::giant(giant)).state(), word.state()) {
                (State::Free, _) | (_, State::Free) => self.free.add(true, whole),
                (_, State::Shared) => {
                    for chunk in self.geometry.chunks(Place::block(block)) {
                        self.free.add(part.word(Place::chunk(chunk)).is(State::Free), 1);
                    }
                }
                _ => self.free.add(false, whole),
            }
        }
    }

    /// Chunks in granted slabs, of an owner.
    pub fn slab_chunks(&self, owner: Owner) -> u64 {
        self.slabs.get(&owner).copied().unwrap_or(0)
    }
}

impl guard::Words for Part {
    fn word(&self, place: Place) -> Word {
        let block = |index: u32| index.checked_sub(self.first).map(|at| at as usize);
        let word = match place.level {
            Level::Giant => self.giants.get(place.index as usize).copied(),
            Level::Block => block(place.index).and_then(|at| self.blocks.get(at).copied()),
            Level::Chunk => self.geometry.parent(place).and_then(|parent| {
                let chunks = self.chunks.get(block(parent.index)?)?.as_ref()?;
                chunks.get((place.index - self.geometry.chunks(parent).start) as usize).copied()
            }),
        };
        Word(word.unwrap_or(0))
    }

    fn owner(&self, owner: Owner) -> OwnerWord {
        OwnerWord(self.owners[4 * owner.slot() as usize])
    }
}

/// The last of two looks in a row, and the problems that both show alike. One recount of a pool in use
/// may be mistaken.
pub fn lasting(reader: &mut Reader) -> Result<(Look, Vec<Problem>), Failure> {
    let first = reader.look()?;
    let look = reader.look()?;
    let before: BTreeSet<_> = first.recount.problems.iter().map(|p| (p.place, p.word)).collect();
    let problems = look.recount.problems.iter();
    let both = problems.filter(|p| before.contains(&(p.place, p.word))).copied().collect();
    Ok((look, both))
}
