//! A small world before anything has happened: what there is, what each client is to do, what may go wrong.

use farmem_protocol::extent::rules::Rules;
use farmem_protocol::extent::{Geometry, Level, Owner};

/// What a client does next in its program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// Claim one unit.
    Claim(Level),
    /// Claim so many neighbours.
    Run(Level, u32),
    /// Claim up to so many anywhere.
    Some(Level, u32),
    /// Give back the unit held longest.
    Release,
    /// Publish the block or giant held longest, with these children in use.
    Publish(u64),
    /// Split the first unit of the level that is FREE (as the client sees it without a verb).
    Split(Level),
    /// Merge the first unit of the level that is SHARED. Only of use to those whom the node trusts.
    Merge(Level),
    /// Write to the unit held longest.
    Write,
    /// Write to the unit given back last, which must be refused.
    WriteAfterFree,
    /// Recover the owner, once it is dead.
    Recover(Owner),
}

/// What there is, and what may go wrong.
#[derive(Clone)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// The node's memory.
    pub geometry: Geometry,
    /// Giants in one piece at the start.
    pub whole: u32,
    /// Owner, claimant and program of each client.
    pub clients: Vec<(u16, u16, Vec<Action>)>,
    /// Answers that may be lost.
    pub losses: u16,
    /// Owners whose lease may expire: as many, of those whose bit is set.
    pub expiries: u16,
    /// Bits of owners.
    pub mortal: u64,
    /// Bits of owners whose verbs the guard lets pass.
    pub trusted: u64,
    /// Times the daemon may die.
    pub crashes: u16,
    /// Merges and splits that the daemon may begin.
    pub merges: u16,
    /// Splits that the daemon may begin.
    pub splits: u16,
    /// The rules that operations keep.
    pub rules: Rules,
    /// Whether an expired owner is fenced: its verbs refused.
    pub fences: bool,
    /// Whether fenced owners' bytes under way have ended before they count as dead.
    pub drains_the_dead: bool,
    /// Whether a queue pair is bound to the incarnation that made it.
    pub binds: bool,
    /// Whether a drain waits for verbs on words, too.
    pub drains_words: bool,
    /// Whether the node frees units inside units that are not open (with the seeded bug).
    pub eager: bool,
    /// Blocks that are there; all others are retired from the start. (All, if empty.)
    pub blocks: Vec<u32>,
    /// Chunks that an owner may hold, where that is bounded.
    pub quota: Option<u64>,
    /// What all generations are at the start.
    pub generation: u32,
    /// CAS and WRITEs that the last owner of the table, who has no program, makes up by itself.
    pub lies: (u16, u16),
    /// Whether clients whose lease has ended register anew and go on.
    pub rejoins: bool,
}
