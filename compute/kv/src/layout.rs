//! The words of a store, bit by bit.
//!
//! Each node holds a *shard*: the keys whose hash falls to it, with their index and objects. A
//! shard consists of *pieces* of the node's memory:
//!
//! ```text
//!  root word of the region ─► root piece: head, members, first tables
//!                                            │ slot                │ forward
//!                                            ▼                     ▼
//!  piece: header │ object │ object │ …       object               pair of tables
//!  piece of an extent: header with the long value's number and its key's hash │ bytes
//!
//!  slot     63 frozen │ 62 pending │ 61..54 fingerprint │ 53..48 class │ 47..36 version │ 35..0 unit
//!  owner    63..48 check │ 47..40 kind │ 39..32 class │ 31..16 incarnation │ 15..0 member
//!  state of a member   63..32 tag │ 31..16 incarnation │ 0 alive
//! ```
//!
//! A *unit* is 64 bytes; a unit's number and its node make an address. A slot of unit 0 is empty. Its other bits
//! are 0, or say which front end has emptied it ([`Slot::emptied`]).

/// An address: the node in bits 47..42, a byte of its memory in bits 41..0. As `farmem::Addr`.
pub type At = u64;

/// Bytes of a unit, in which objects are measured and placed. Also a bucket, and a cache line.
pub const UNIT: u64 = 64;
/// Bits of an address that a node's number begins at.
pub const NODE_SHIFT: u32 = 42;
const UNIT_BITS: u32 = 36;

/// Smallest and largest piece.
pub const PIECES: std::ops::RangeInclusive<u32> = 4096..=2 << 20;
/// Bytes at the start of a piece that say whose it is.
pub const PIECE_HEADER: u64 = UNIT;
/// Bytes of the largest object: a piece without its header.
pub const MAX_OBJECT: u64 = (2 << 20) - PIECE_HEADER;

/// Sizes of objects below the class [`LARGE`], in units: four to a doubling.
const SIZES: [u16; 32] = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320,
    384, 448, 512,
];
/// The largest class of values that share pieces.
pub const SHARED: u8 = SIZES.len() as u8 - 1;
/// Sizes of whole blocks ([`crate::blocks`]) in units, behind those of [`SIZES`]: as many as
/// possible of about 48, 64, … 128 KiB in the largest piece.
const BLOCKS: [u16; 6] = [780, 1057, 1310, 1560, 1820, 2184];
/// The class of objects that have a piece for themselves.
pub const LARGE: u8 = 63;
/// The class of the extents of long values ([`crate::long`]), which have a piece each.
pub const EXTENT: u8 = 62;
/// The class by which a slot is told that is *locked*: it refers to a lock instead of the key's object
/// ([`crate::atomic`]).
pub const LOCKED: u8 = 61;
/// Bytes that a lock takes.
pub const LOCK_BYTES: u64 = 2 * UNIT;
/// Bytes that are read of a [`LARGE`] object before its length is known.
pub const LARGE_FIRST: u32 = 32 << 10;

/// Whether what has this class fills a piece of its own.
pub fn is_whole(class: u8) -> bool {
    matches!(class, LARGE | EXTENT)
}

/// The class of an object of `bytes`.
pub fn class_of(bytes: u64) -> u8 {
    let units = bytes.div_ceil(UNIT);
    SIZES.iter().position(|&size| u64::from(size) >= units).map_or(LARGE, |class| class as u8)
}

/// The class of an object of `bytes` that is a whole block; `None`: it would waste more than an
/// eighth of the place, and the block has parts.
pub fn block_class(bytes: u64) -> Option<u8> {
    let (class, units) = (class_of(bytes), bytes.div_ceil(UNIT));
    let of_blocks = || {
        let n = BLOCKS.iter().position(|&size| u64::from(size) >= units)?;
        (units * 8 >= u64::from(BLOCKS[n]) * 7).then_some(SHARED + 1 + n as u8)
    };
    if class == LARGE { of_blocks() } else { Some(class) }
}

/// Whether only blocks have this class.
pub fn is_for_blocks(class: u8) -> bool {
    (SHARED + 1..=SHARED + BLOCKS.len() as u8).contains(&class)
}

/// Bytes that an object of this class takes; those of a [`LARGE`] one are its piece's.
pub fn class_bytes(class: u8) -> u64 {
    if class == LOCKED {
        return LOCK_BYTES;
    }
    let units = SIZES.iter().chain(&BLOCKS).nth(usize::from(class));
    units.map_or(u64::from(LARGE_FIRST), |&units| u64::from(units) * UNIT)
}

/// A word of the index: where a key's object is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Slot(pub u64);

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = |set: bool, name| if set { name } else { "" };
        let marks = (mark(self.is_frozen(), " frozen"), mark(self.is_pending(), " pending"));
        write!(f, "{:x}:{}v{}{}{}", self.unit(), self.fingerprint(), self.version(), marks.0, marks.1)
    }
}

impl Slot {
    const FROZEN: u64 = 1 << 63;
    const PENDING: u64 = 1 << 62;

    /// The slot of an object.
    pub fn new(fingerprint: u8, class: u8, version: u16, at: At) -> Slot {
        let unit = (at & ((1 << NODE_SHIFT) - 1)) / UNIT;
        let version = u64::from(version) & 0xfff;
        Slot(u64::from(fingerprint) << 54 | u64::from(class & 63) << 48 | version << UNIT_BITS | unit)
    }

    /// A slot that has been emptied: by the front end of this line, as the `count`th that it empties. It refers to
    /// nothing. It is another word than before the slot was used. So whoever finds the same words again knows that
    /// no key has been there meanwhile.
    pub fn emptied(line: u16, count: u32) -> Slot {
        let count = u64::from(count);
        Slot((count & 0xff) << 54 | u64::from(line.wrapping_add(1) & 63) << 48 | (count >> 8 & 0xfff) << UNIT_BITS)
    }

    /// Whether an insert may take it.
    pub fn is_empty(self) -> bool {
        !self.is_used() && !self.is_frozen()
    }

    /// Whether it refers to an object.
    pub fn is_used(self) -> bool {
        self.unit() != 0
    }

    /// Whether its table is being split or was: no CAS on it succeeds any more.
    pub fn is_frozen(self) -> bool {
        self.0 & Slot::FROZEN != 0
    }

    /// Whether its insert has not been decided. Readers pass over it.
    pub fn is_pending(self) -> bool {
        self.0 & Slot::PENDING != 0
    }

    /// Whether a transaction holds it. It refers to the transaction's lock of the key.
    pub fn is_locked(self) -> bool {
        self.is_used() && self.class() == LOCKED
    }

    /// The same, frozen.
    pub fn frozen(self) -> Slot {
        Slot(self.0 | Slot::FROZEN)
    }

    /// The same, pending.
    pub fn pending(self) -> Slot {
        Slot(self.0 | Slot::PENDING)
    }

    /// The same, not frozen.
    pub fn thawed(self) -> Slot {
        Slot(self.0 & !Slot::FROZEN)
    }

    /// The same, neither frozen nor pending.
    pub fn plain(self) -> Slot {
        Slot(self.0 & !(Slot::FROZEN | Slot::PENDING))
    }

    /// Eight bits of the key's hash.
    pub fn fingerprint(self) -> u8 {
        (self.0 >> 54) as u8
    }

    /// The object's size class.
    pub fn class(self) -> u8 {
        (self.0 >> 48) as u8 & 63
    }

    /// How often the place was used, modulo 4096.
    pub fn version(self) -> u16 {
        (self.0 >> UNIT_BITS) as u16 & 0xfff
    }

    fn unit(self) -> u64 {
        self.0 & ((1 << UNIT_BITS) - 1)
    }

    /// The object's address at the node.
    pub fn at(self, node: u8) -> At {
        (u64::from(node) << NODE_SHIFT) | (self.unit() * UNIT)
    }
}

/// A key's hash, as the index uses it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hash(pub u64);

/// `log2` of the tables that a shard begins with.
pub const ROOT_BITS: u32 = 3;
/// Splits below a first table, at most.
pub const MAX_DEPTH: u32 = 31 - ROOT_BITS;

impl Hash {
    /// Of a key.
    pub fn of(key: &[u8]) -> Hash {
        Hash(xxhash_rust::xxh3::xxh3_64(key))
    }

    /// Its shard, of `shards`.
    pub fn shard(self, shards: usize) -> usize {
        (((self.0 & 0xffff_ffff) * shards as u64) >> 32) as usize
    }

    /// Its path through the tables, 31 bits: [`ROOT_BITS`] for the first table, then one for each
    /// split.
    pub fn path(self) -> u32 {
        (self.0 >> 33) as u32
    }

    fn second(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        mixed ^ mixed >> 32
    }

    /// Its fingerprint.
    pub fn fingerprint(self) -> u8 {
        (self.second() >> 56) as u8
    }

    /// The two buckets of a table in which its key may be.
    pub fn buckets(self, buckets: u16) -> [u16; 2] {
        let (second, n) = (self.second(), u64::from(buckets));
        let [first, other] = [(second & 0xffff) % n, (second >> 16 & 0xffff) % n];
        let other = if other == first { (first + 1) % n } else { other };
        [first as u16, other as u16]
    }
}

/// Slots of a bucket.
pub const SLOTS: usize = 8;

/// How large tables are. The store's have [`Geometry::STORE`]; tests use smaller ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Buckets of a table, at least two. Before them lies one unit with the *forward* word.
    pub buckets: u16,
}

impl Geometry {
    /// Two tables and a piece's header take 16 KiB.
    pub const STORE: Geometry = Geometry { buckets: 126 };

    /// Bytes of a table.
    pub fn table(self) -> u64 {
        (u64::from(self.buckets) + 1) * UNIT
    }

    /// Where a bucket of a table begins.
    pub fn bucket(self, table: At, bucket: u16) -> At {
        table + (u64::from(bucket) + 1) * UNIT
    }

    /// Where the first table of a path is.
    pub fn first(self, root: At, path: u32) -> At {
        root + FIRST_TABLES + u64::from(path >> (31 - ROOT_BITS)) * self.table()
    }

    /// Bytes of a piece with two tables.
    pub fn pair_bytes(self) -> u32 {
        ((PIECE_HEADER + 2 * self.table()) as u32).next_power_of_two().max(*PIECES.start())
    }

    /// Bytes of a root piece.
    pub fn root_bytes(self) -> u32 {
        ((FIRST_TABLES + (1 << ROOT_BITS) * self.table()) as u32).next_power_of_two().max(*PIECES.start())
    }
}

/// Front ends of a store, at most.
pub const MEMBERS: usize = 63;
/// Where the head's words are in the root piece, behind the piece's header.
pub mod head {
    /// Magic and version: [`super::MAGIC`].
    pub const MAGIC: u64 = 64;
    /// Number of this shard and of all, and buckets of a table.
    pub const SHAPE: u64 = 72;
    /// The store's epoch.
    pub const EPOCH: u64 = 80;
    /// Secret of the store, by which pieces' headers are told from data.
    pub const SECRET: u64 = 88;
    /// Which nodes of a pair have the shard: [`super::Pair`].
    pub const PAIR: u64 = 96;
    /// One unit a member: state, heartbeat, epoch, bytes held, consent to [`PAIR`], batches of messages.
    /// They outlive the member. Bytes wanted. Whether its clients have subscriptions.
    pub const MEMBERS: u64 = 128;
    /// Bytes of the address of the node that came last, and the address.
    pub const SPARE: u64 = super::HEAD_BYTES;
    /// Bytes of such an address at most.
    pub const SPARE_TEXT: usize = 248;
    /// One word a member: a slot that refers to the record of the batch in which it changes several
    /// keys, or 0.
    pub const BATCHES: u64 = 4608;
}
/// Bytes of head and members.
pub const HEAD_BYTES: u64 = head::MEMBERS + MEMBERS as u64 * UNIT;
const FIRST_TABLES: u64 = 8192;
const _: () = assert!(HEAD_BYTES + 8 + head::SPARE_TEXT as u64 <= head::BATCHES);
const _: () = assert!(head::BATCHES + 8 * MEMBERS as u64 <= FIRST_TABLES);

/// Says that this is a store, and of which version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"farmkv\x0d\0");
/// In place of [`MAGIC`]: the store's region is being removed. Its front ends end, and none comes.
pub const REMOVED: u64 = u64::from_le_bytes(*b"farmkv\xff\xff");

/// Which nodes of a pair have the shard: a word of the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pair(pub u64);

/// See [`Pair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Both.
    Both = 0,
    /// The one that has this word.
    Alone = 1,
    /// That one; the other is being filled ([`crate::shard::mend`]).
    Mending = 2,
    /// The same, and no operation is under way.
    Paused = 3,
    /// The one that has this word is to go on alone, once no front end counts on the other.
    Leaving = 4,
}

impl Pair {
    /// `attempt`: by which an attempt to fill a node is told from others.
    pub fn new(stage: Stage, attempt: u64) -> Pair {
        Pair(attempt << 8 | stage as u64)
    }

    /// The stage.
    pub fn stage(self) -> Stage {
        match self.0 & 0xff {
            0 => Stage::Both,
            2 => Stage::Mending,
            3 => Stage::Paused,
            4 => Stage::Leaving,
            _ => Stage::Alone,
        }
    }

    /// The attempt, of 56 bits.
    pub fn attempt(self) -> u64 {
        self.0 >> 8
    }

    /// The same attempt in another stage.
    pub fn at(self, stage: Stage) -> Pair {
        Pair::new(stage, self.attempt())
    }
}

/// The use of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A shard's root.
    Root = 1,
    /// Objects of one class. In a piece of the class [`EXTENT`], the third word is the number of
    /// the long value, and the fourth its key's hash.
    Objects = 2,
    /// Two tables of the index. The third word of the header is their parent's address.
    Tables = 3,
}

/// The first word of a piece: whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The use of the piece.
    pub kind: Kind,
    /// Class of its objects.
    pub class: u8,
    /// The owner.
    pub member: Member,
}

/// A front end of a store, at one node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Member {
    /// Its line.
    pub line: u16,
    /// How many had the line before.
    pub incarnation: u16,
}

impl Owner {
    fn check(secret: u64, at: At, kind: u64, class: u64) -> u64 {
        let words = [secret, at, kind, class].map(u64::to_le_bytes);
        xxhash_rust::xxh3::xxh3_64(words.as_flattened()) >> 48
    }

    /// As a word of the piece at `at`.
    pub fn word(self, secret: u64, at: At) -> u64 {
        let (kind, class) = (self.kind as u64, u64::from(self.class));
        let member = u64::from(self.member.incarnation) << 16 | u64::from(self.member.line);
        Owner::check(secret, at, kind, class) << 48 | kind << 40 | class << 32 | member
    }

    /// From the first words of the piece at `at`; `None` if they are not a header of this store's.
    pub fn of(word: u64, second: u64, secret: u64, at: At) -> Option<Owner> {
        let (kind, class) = (word >> 40 & 0xff, word >> 32 & 0xff);
        let known = match kind {
            1 => Kind::Root,
            2 => Kind::Objects,
            3 => Kind::Tables,
            _ => return None,
        };
        let honest = Owner::check(secret, at, kind, class) == word >> 48 && second == Owner::second(secret, at);
        let member = Member { line: word as u16, incarnation: (word >> 16) as u16 };
        honest.then_some(Owner { kind: known, class: class as u8, member })
    }

    /// The second word of the piece at `at`.
    pub fn second(secret: u64, at: At) -> u64 {
        xxhash_rust::xxh3::xxh3_64([secret.to_le_bytes(), at.to_le_bytes()].as_flattened())
    }
}

/// The first word of a member's line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(pub u64);

impl State {
    /// Alive: this incarnation, a process of this tag.
    pub fn alive(tag: u32, incarnation: u16) -> State {
        State(u64::from(tag) << 32 | u64::from(incarnation) << 16 | 1)
    }

    /// By which nodes tell the process from others that have the region open.
    pub fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The same, not alive.
    pub fn dead(self) -> State {
        State(self.0 & !1)
    }

    /// Whether the member is there, as far as is known.
    pub fn is_alive(self) -> bool {
        self.0 & 1 != 0
    }

    /// Which incarnation has or had the line.
    pub fn incarnation(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// The `n`th word of some bytes; zero beyond their end.
pub fn word(bytes: &[u8], n: usize) -> u64 {
    bytes.get(n * 8..n * 8 + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_its_fields() {
        let at = 5 << NODE_SHIFT | 0x3ff_ffff_ffc0;
        let slot = Slot::new(0xab, LARGE, 0xfff, at);
        assert_eq!((slot.fingerprint(), slot.class(), slot.version(), slot.at(5)), (0xab, LARGE, 0xfff, at));
        assert!(!slot.is_frozen() && slot.frozen().is_frozen() && slot.pending().is_pending());
        assert_eq!(slot.frozen().pending().plain(), slot);
        let emptied: std::collections::HashSet<u64> =
            (0..1 << 20).step_by(77).flat_map(|n| [0, 62].map(|line| Slot::emptied(line, n).0)).collect();
        assert_eq!(emptied.len(), 2 * (1usize << 20).div_ceil(77));
        assert!(emptied.iter().all(|&word| word != 0 && Slot(word).is_empty() && !Slot(word).is_pending()));
        assert!(!Slot::emptied(3, 9).frozen().is_empty() && !slot.is_empty() && Slot(0).is_empty());
    }

    #[test]
    fn a_class_holds_what_it_is_for() {
        for bytes in 1..=32 << 10 {
            let class = class_of(bytes);
            assert!(class < 32 && class_bytes(class) >= bytes && (class == 0 || class_bytes(class - 1) < bytes));
        }
        assert_eq!(class_of((32 << 10) + 1), LARGE);
    }

    #[test]
    fn a_header_is_known_by_its_place() {
        let owner = Owner { kind: Kind::Objects, class: 7, member: Member { line: 3, incarnation: 9 } };
        let (word, second) = (owner.word(11, 4096), Owner::second(11, 4096));
        assert_eq!(Owner::of(word, second, 11, 4096), Some(owner));
        assert_eq!(Owner::of(word, second, 11, 8192), None);
        assert_eq!(Owner::of(word, second, 12, 4096), None);
    }
}
