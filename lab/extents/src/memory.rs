//! A node's words and bytes, as small as can be.

use farmem_protocol::extent::geometry::{LINE, Target};
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::owner::{Lease, OwnerWord};
use farmem_protocol::extent::{Generation, Geometry, Hint, Level, Owner, Place, State, Verb, Word};

/// Descriptor words, leases, and for each chunk whose bytes it holds.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Memory {
    geometry: Geometry,
    /// Giants', blocks', chunks' words.
    words: [Vec<Word>; 3],
    owners: Vec<OwnerWord>,
    /// The owner whose bytes are in the chunk; the node's when it is clean.
    pub bytes: Vec<Owner>,
}

impl Memory {
    /// As a node starts, but with this generation everywhere.
    pub fn new(geometry: Geometry, whole: u32, generation: u32) -> Memory {
        let level = |level| {
            let places = (0..geometry.count(level)).map(|index| Place { level, index });
            places.map(|place| Word::plain(geometry.initial(place, whole).state(), Generation(generation))).collect()
        };
        Memory {
            geometry,
            words: [level(Level::Chunk), level(Level::Block), level(Level::Giant)],
            owners: vec![OwnerWord::new(Lease::Live, 0); geometry.owners() as usize],
            bytes: vec![Owner::NODE; geometry.count(Level::Chunk) as usize],
        }
    }

    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub fn set(&mut self, place: Place, word: Word) {
        self.words[place.level as usize - 1][place.index as usize] = word;
    }

    pub fn set_owner(&mut self, owner: Owner, word: OwnerWord) {
        self.owners[owner.slot() as usize] = word;
    }

    /// All units, chunks first.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let geometry = self.geometry;
        Level::ALL
            .into_iter()
            .flat_map(move |level| (0..geometry.count(level)).map(move |index| Place { level, index }))
    }

    /// Whether the unit's own word counts.
    pub fn is_visible(&self, place: Place) -> bool {
        self.geometry.parent(place).is_none_or(|parent| self.word(parent).state().is_open() && self.is_visible(parent))
    }

    /// The unit whose word speaks for a chunk.
    pub fn speaker(&self, chunk: u32) -> Place {
        let block = self.geometry.parent(Place::chunk(chunk)).expect("a chunk has a block");
        let giant = self.geometry.parent(block).expect("a block has a giant");
        [giant, block].into_iter().find(|&place| !self.word(place).state().is_open()).unwrap_or(Place::chunk(chunk))
    }

    /// The words that a READ returns.
    pub fn read(&self, verb: &Verb) -> Vec<u64> {
        let Verb::Read { at, words } = *verb else { unreachable!("a READ") };
        (0..words as u32)
            .map(|by| match at {
                Target::Word(place) => self.word(place.plus(by)).0,
                Target::Hint { about, line } => self.hint(about, line + by),
                Target::Owner(owner, _) => self.owner(owner).0,
            })
            .collect()
    }

    /// Hints as they should be. Whatever they are, they may only cost READs.
    fn hint(&self, about: Hint, line: u32) -> u64 {
        let (level, state) = match about {
            Hint::FreeBlocks => (Level::Block, State::Free),
            Hint::SharedBlocks => (Level::Block, State::Shared),
            Hint::FreeChunks => (Level::Chunk, State::Free),
        };
        (0..LINE)
            .map(|bit| (bit, Place { level, index: line * LINE + bit }))
            .filter(|&(_, place)| self.geometry.has(place) && self.word(place).is(state))
            .fold(0, |hint, (bit, _)| hint | 1 << bit)
    }
}

impl Words for Memory {
    fn word(&self, place: Place) -> Word {
        self.words[place.level as usize - 1][place.index as usize]
    }

    fn owner(&self, owner: Owner) -> OwnerWord {
        self.owners[owner.slot() as usize]
    }
}
