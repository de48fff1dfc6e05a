//! The agent's allocator: it records which application holds what. No I/O, no clock, no locks.
//!
//! A block belongs to one application as long as that holds any chunk of it. So the owner of a
//! chunk follows from the block's owner and the chunk's bit in the block's map. The caller claims
//! blocks at the node ([`Need::Block`], [`Stock::supply`]), and gives back those that this module
//! returns.
//!
//! ```text
//!  alloc ──► a block of the application with room for the order, the one with least ──► bits set, recorded
//!    └──► none: Need::Block ──► (the caller claims one) ──► supply ──► alloc
//!  free ──► owner and bits checked ──► bits cleared, recorded ──► block empty: kept, or given back
//! ```
//!
//! *Quotas* count blocks, not chunks: if an application holds a single chunk of a block, others
//! cannot have the block. A *tenant* is a user, or a job of a user. Each has an *account*. The
//! blocks of a job's applications are charged to the job's account and to its user's.
//!
//! *Hysteresis*: an application keeps one empty block, and one more for every eight that it holds
//! ([`policy::kept_empty`]), for some heartbeats ([`Stock::beat`]). Otherwise a program that frees
//! and takes alternately at a block's edge would move the block to and fro. When memory runs out,
//! all kept blocks are taken ([`Stock::take_empty`]). This includes blocks of applications that a
//! former agent served. Such an application may never come back, and it has no heartbeats.

use crate::chunks::{self, EMPTY, Map};
use crate::ledger::{Identity, Ledger, MAX_APPS, MAX_ENTRIES, Owned, Progress, Token};
pub use crate::quotas::{Quotas, Tenant};
use crate::word::{BLOCK_BYTES, BLOCK_ORDER, BlockId, Piece, Refusal};
use farmem_protocol::extent::policy;
use farmem_protocol::fairness::is_fair;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// An act that no honest application does. The application is dismissed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It frees what it does not hold.
    #[error("it frees or declares memory that it does not hold")]
    NotHeld,
    /// Its words in the ring have no meaning.
    #[error("it says what means nothing")]
    Nonsense,
    /// Its positions in the ring are impossible.
    #[error("its positions in the ring cannot be")]
    Positions,
    /// It asks on, and does not read the answers.
    #[error("it does not read its answers")]
    Unread,
}

/// Why a piece could not be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Supply a block (or a run) to the application, and ask again.
    Block,
    /// The application cannot have more.
    Refused(Refusal),
}

struct App {
    tenant: Tenant,
    /// By order: entries whose largest free piece is of this order, the fullest first. So pieces
    /// are taken from full blocks, and nearly empty ones can become empty and go back. The last set
    /// has the entries without room.
    rooms: [BTreeSet<(Free, u32)>; BLOCK_ORDER as usize + 2],
    /// Blocks held; a run counts with all its blocks.
    blocks: u64,
    /// Of these, the empty ones.
    empty: u64,
}

/// The index in [`App::rooms`] of entries without room.
const FULL: usize = BLOCK_ORDER as usize + 1;

/// The number of a block's chunks that are free.
type Free = u32;

/// A block or a run that an application has. Its index is the same as in the ledger.
struct Entry {
    owned: Owned,
    /// The key by which [`App::rooms`] has it.
    room: (usize, Free),
    /// Heartbeats since its map changed. Only those of an empty block are counted.
    idle: u32,
}

/// The allocator.
pub struct Stock {
    ledger: Arc<Ledger>,
    quotas: Quotas,
    /// Applications by place.
    apps: Vec<Option<App>>,
    entries: Vec<Option<Entry>>,
    free_entries: Vec<u32>,
    by_block: HashMap<BlockId, u32>,
    /// Blocks held by account.
    held: BTreeMap<Tenant, u64>,
    /// Entries by user.
    of_user: BTreeMap<u32, usize>,
}

impl Stock {
    /// The stock that the ledger records.
    pub fn open(ledger: Arc<Ledger>, quotas: Quotas) -> Stock {
        let mut stock = Stock {
            quotas,
            apps: (0..MAX_APPS).map(|_| None).collect(),
            entries: Vec::new(),
            free_entries: Vec::new(),
            by_block: HashMap::new(),
            held: BTreeMap::new(),
            of_user: BTreeMap::new(),
            ledger,
        };
        if stock.ledger.is_fresh() {
            return stock;
        }
        for place in 0..MAX_APPS {
            if let Some(identity) = stock.ledger.app(place) {
                stock.apps[place] = Some(App::new((identity.uid, identity.job)));
            }
        }
        for at in 0..MAX_ENTRIES {
            let Some(owned) = stock.ledger.owned(at) else { continue };
            let sound = owned.app < MAX_APPS && stock.apps[owned.app].is_some() && owned.blocks > 0;
            // An empty entry can go: the record has every chunk that the application has, so the
            // application can declare nothing of it.
            let empty = owned.map == EMPTY;
            if !sound || empty || stock.by_block.contains_key(&owned.block) {
                stock.ledger.disown(at);
                continue;
            }
            stock.enter(at as u32, owned);
        }
        let unused = stock.entries.iter().enumerate().filter(|(_, entry)| entry.is_none());
        stock.free_entries = unused.map(|(at, _)| at as u32).collect();
        stock
    }

    /// Every block and run that an application holds.
    pub fn owned(&self) -> impl Iterator<Item = &Owned> + '_ {
        self.entries.iter().flatten().map(|entry| &entry.owned)
    }

    /// Admits an application. Returns its place. `None`: there are [`MAX_APPS`] already, or one
    /// more would leave too few places to other users.
    pub fn admit(&mut self, identity: &Identity) -> Option<usize> {
        let place = self.apps.iter().position(Option::is_none)?;
        let of_user = self.apps.iter().flatten().filter(|app| app.tenant.0 == identity.uid).count();
        if !is_fair(of_user + 1, MAX_APPS - self.applications().count() - 1, MAX_APPS) {
            return None;
        }
        self.apps[place] = Some(App::new((identity.uid, identity.job.clone())));
        self.ledger.set_app(place, Some(identity));
        Some(place)
    }

    /// The places of all applications.
    pub fn applications(&self) -> impl Iterator<Item = usize> + '_ {
        self.apps.iter().enumerate().filter(|(_, app)| app.is_some()).map(|(place, _)| place)
    }

    /// The application of a user that proves itself by this token.
    pub fn find(&self, token: &Token, uid: u32) -> Option<usize> {
        self.applications().find(|&app| self.ledger.app(app).is_some_and(|who| who.token == *token && who.uid == uid))
    }

    /// The tenant of an application. Memory of one tenant is isolated from that of others.
    pub fn tenant(&self, app: usize) -> Option<&Tenant> {
        self.apps.get(app)?.as_ref().map(|app| &app.tenant)
    }

    /// Bytes of the blocks that an application holds.
    pub fn held_by(&self, app: usize) -> u64 {
        self.apps[app].as_ref().map_or(0, |app| app.blocks * BLOCK_BYTES)
    }

    /// Bytes held, by tenant. Those of a user include those of its jobs.
    pub fn tenants(&self) -> impl Iterator<Item = (&Tenant, u64)> {
        self.held.iter().map(|(tenant, blocks)| (tenant, blocks * BLOCK_BYTES))
    }

    /// Whether the application owns the block, and so may map it.
    pub fn owns(&self, app: usize, block: BlockId) -> bool {
        self.entry_of(app, block).is_some()
    }

    fn entry_of(&self, app: usize, block: BlockId) -> Option<u32> {
        let at = *self.by_block.get(&block)?;
        let entry = self.entries[at as usize].as_ref()?;
        (entry.owned.app == app).then_some(at)
    }

    /// Allocates a piece of an order.
    pub fn alloc(&mut self, app: usize, order: u8) -> Result<Piece, Need> {
        let Some(at) = self.with_room(app, order) else { return Err(self.need(app, 1)) };
        Ok(self.take(at, order))
    }

    /// Allocates the largest piece of at most `most` chunks for which the application's blocks have
    /// room.
    pub fn alloc_chunks(&mut self, app: usize, most: u32) -> Result<Piece, Need> {
        let largest = most.ilog2().min(BLOCK_ORDER as u32) as u8;
        let found = (0..=largest).rev().find_map(|order| Some((self.with_room(app, order)?, order)));
        let Some((at, order)) = found else { return Err(self.need(app, 1)) };
        Ok(self.take(at, order))
    }

    /// The fullest entry with room for an order, among those with the smallest sufficient room.
    fn with_room(&self, app: usize, order: u8) -> Option<u32> {
        let rooms = &self.apps[app].as_ref()?.rooms;
        rooms[order as usize..FULL].iter().find_map(|entries| entries.first().map(|&(_, at)| at))
    }

    /// Takes a piece from an entry that has room for it.
    fn take(&mut self, at: u32, order: u8) -> Piece {
        let entry = self.entries[at as usize].as_mut().expect("an entry with room");
        let first = chunks::find(&entry.owned.map, order).expect("room for the order");
        chunks::take(&mut entry.owned.map, first, order);
        let block = entry.owned.block;
        self.changed(at);
        Piece { block, first, order }
    }

    /// The reason why the application gets no piece now: it needs a block, or may not have one.
    fn need(&self, app: usize, blocks: u64) -> Need {
        let Some(app) = &self.apps[app] else { return Need::Refused(Refusal::Tables) };
        let fits = accounts(&app.tenant).all(|account| {
            let held = self.held.get(&account).copied().unwrap_or(0);
            held + blocks <= self.quotas.blocks(&account)
        });
        let of_user = self.of_user.get(&app.tenant.0).copied().unwrap_or(0);
        let all = self.by_block.len();
        match fits {
            true if all < MAX_ENTRIES && is_fair(of_user + 1, MAX_ENTRIES - all - 1, MAX_ENTRIES) => Need::Block,
            true => Need::Refused(Refusal::Tables),
            false => Need::Refused(Refusal::Quota),
        }
    }

    /// Whether a run of blocks may be claimed for the application and supplied.
    pub fn may_have(&self, app: usize, blocks: u32) -> Result<(), Refusal> {
        match self.need(app, blocks as u64) {
            Need::Block => Ok(()),
            Need::Refused(refusal) => Err(refusal),
        }
    }

    /// Gives the application a block, or a run, of which all chunks are taken at once. `at`: which
    /// of the agent's nodes it is at, and the number of its first block there.
    ///
    /// # Errors
    /// The application may not have it any more: another application took the last of the quota or
    /// of the table meanwhile. The block stays the caller's.
    pub fn supply(&mut self, app: usize, block: BlockId, blocks: u32, at: (usize, u32)) -> Result<(), Refusal> {
        self.may_have(app, blocks)?;
        let (node, place) = at;
        let at = self.free_entries.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        let map = if blocks == 1 { EMPTY } else { [u64::MAX; 8] };
        let owned = Owned { app, block, blocks, node, place, map, progress: None };
        self.ledger.own(at as usize, &owned);
        self.enter(at, owned);
        Ok(())
    }

    /// Records how far a block or run has moved. If nobody owns it any more, nothing is recorded.
    pub fn moved(&mut self, block: BlockId, to: Progress) {
        let Some(&at) = self.by_block.get(&block) else { return };
        let Some(entry) = self.entries[at as usize].as_mut() else { return };
        if to.done < entry.owned.blocks {
            entry.owned.progress = Some(to);
        } else {
            // First: until then the run is at both nodes, or at the old one.
            (entry.owned.node, entry.owned.place, entry.owned.progress) = (to.node, to.place, None);
            self.ledger.put_place(at as usize, &entry.owned);
        }
        self.ledger.put_progress(at as usize, entry.owned.progress);
    }

    /// Adds an entry, and charges it to its accounts.
    fn enter(&mut self, at: u32, owned: Owned) {
        let app = self.apps[owned.app].as_mut().expect("an application that is here");
        app.blocks += owned.blocks as u64;
        for account in accounts(&app.tenant) {
            *self.held.entry(account).or_default() += owned.blocks as u64;
        }
        *self.of_user.entry(app.tenant.0).or_default() += 1;
        let room = room(&owned.map);
        app.rooms[room.0].insert((room.1, at));
        app.empty += (room.0 == BLOCK_ORDER as usize) as u64;
        self.by_block.insert(owned.block, at);
        if self.entries.len() <= at as usize {
            self.entries.resize_with(at as usize + 1, || None);
        }
        self.entries[at as usize] = Some(Entry { owned, room, idle: 0 });
    }

    /// Removes an entry. Returns its first block and the number of blocks: they have no owner now.
    fn remove(&mut self, at: u32) -> (BlockId, u32) {
        let entry = self.entries[at as usize].take().expect("an entry");
        // The record is deleted before the block goes back. Otherwise it would later claim memory
        // that another agent or application owns by then.
        self.ledger.disown(at as usize);
        self.by_block.remove(&entry.owned.block);
        self.free_entries.push(at);
        let blocks = entry.owned.blocks as u64;
        if let Some(app) = self.apps[entry.owned.app].as_mut() {
            app.rooms[entry.room.0].remove(&(entry.room.1, at));
            app.empty -= (entry.room.0 == BLOCK_ORDER as usize) as u64;
            app.blocks -= blocks;
            for account in accounts(&app.tenant) {
                if let Some(held) = self.held.get_mut(&account) {
                    *held -= blocks;
                }
            }
            self.held.retain(|_, held| *held > 0);
            if let Some(entries) = self.of_user.get_mut(&app.tenant.0) {
                *entries -= 1;
            }
            self.of_user.retain(|_, entries| *entries > 0);
        }
        (entry.owned.block, entry.owned.blocks)
    }

    /// Records an entry's changed map in the ledger, and moves the entry to the right set.
    fn changed(&mut self, at: u32) {
        let Some(entry) = self.entries[at as usize].as_mut() else { return };
        self.ledger.set_map(at as usize, &entry.owned.map);
        entry.idle = 0;
        let room = room(&entry.owned.map);
        if let Some(app) = self.apps[entry.owned.app].as_mut()
            && room != entry.room
        {
            app.rooms[entry.room.0].remove(&(entry.room.1, at));
            app.rooms[room.0].insert((room.1, at));
            app.empty -= (entry.room.0 == BLOCK_ORDER as usize) as u64;
            app.empty += (room.0 == BLOCK_ORDER as usize) as u64;
            entry.room = room;
        }
    }

    /// Frees a piece of an application. Returns the blocks that the caller gives back to the node.
    pub fn free(&mut self, app: usize, piece: Piece) -> Result<Vec<(BlockId, u32)>, Violation> {
        let at = self.entry_of(app, piece.block).ok_or(Violation::NotHeld)?;
        let entry = self.entries[at as usize].as_mut().ok_or(Violation::NotHeld)?;
        if entry.owned.blocks != 1 || !chunks::has(&entry.owned.map, piece.first, piece.order) {
            return Err(Violation::NotHeld);
        }
        chunks::free(&mut entry.owned.map, piece.first, piece.order);
        let empty = entry.owned.map == EMPTY;
        self.changed(at);
        let mut back = Vec::new();
        // Any empty block would do. This one needs no search.
        if empty && self.has_surplus(app) {
            back.push(self.remove(at));
        }
        self.take_surplus(app, &mut back);
        Ok(back)
    }

    /// Whether more empty blocks are kept for an application than [`policy::kept_empty`] allows.
    fn has_surplus(&self, app: usize) -> bool {
        self.apps[app].as_ref().is_some_and(|app| app.empty > policy::kept_empty(app.blocks))
    }

    /// Adds empty blocks to `back` until there is no surplus. Each one that goes lowers the number
    /// that may be kept, so the surplus is computed again each time.
    fn take_surplus(&mut self, app: usize, back: &mut Vec<(BlockId, u32)>) {
        while self.has_surplus(app)
            && let Some(&(_, at)) = self.apps[app].as_ref().and_then(|app| app.rooms[BLOCK_ORDER as usize].last())
        {
            back.push(self.remove(at));
        }
    }

    /// Takes all kept empty blocks, because memory is short. Returns them.
    pub fn take_empty(&mut self) -> Vec<(BlockId, u32)> {
        (0..self.apps.len()).flat_map(|app| self.take_empty_of(app)).collect()
    }

    /// Takes the kept empty blocks of one application. Its quota is used up, or it asks for a run
    /// of which they may be part.
    pub fn take_empty_of(&mut self, app: usize) -> Vec<(BlockId, u32)> {
        let rooms = self.apps[app].iter().flat_map(|app| &app.rooms[BLOCK_ORDER as usize]);
        let empty: Vec<u32> = rooms.map(|&(_, at)| at).collect();
        empty.into_iter().map(|at| self.remove(at)).collect()
    }

    /// Whether empty blocks are kept for an application.
    pub fn keeps(&self, app: usize) -> bool {
        self.apps[app].as_ref().is_some_and(|app| app.empty > 0)
    }

    /// Counts a heartbeat of an application. Returns its blocks that were empty for
    /// [`policy::KEPT_IDLE`] heartbeats.
    pub fn beat(&mut self, app: usize) -> Vec<(BlockId, u32)> {
        let rooms = self.apps[app].iter().flat_map(|app| &app.rooms[BLOCK_ORDER as usize]);
        let mut idle = Vec::new();
        for &(_, at) in rooms {
            let Some(entry) = self.entries[at as usize].as_mut() else { continue };
            entry.idle += 1;
            if entry.idle >= policy::KEPT_IDLE {
                idle.push(at);
            }
        }
        idle.into_iter().map(|at| self.remove(at)).collect()
    }

    /// Frees a run of an application. Returns it, and the empty blocks that go back with it.
    pub fn free_run(&mut self, app: usize, block: BlockId, blocks: u32) -> Result<Vec<(BlockId, u32)>, Violation> {
        let at = self.entry_of(app, block).ok_or(Violation::NotHeld)?;
        let of = self.entries[at as usize].as_ref().map_or(0, |entry| entry.owned.blocks);
        if of != blocks || blocks < 2 {
            return Err(Violation::NotHeld);
        }
        let mut back = vec![self.remove(at)];
        self.take_surplus(app, &mut back);
        Ok(back)
    }

    /// Compares the record with the declaration of an application that has come back to a restarted
    /// agent: its blocks with their maps, and its runs. Chunks that only the record has are freed.
    /// Their grant never reached the application, or it was giving them back. Returns the blocks
    /// without an owner now.
    ///
    /// # Errors
    /// [`Violation::NotHeld`]: it declares memory that the record does not have.
    pub fn declare(&mut self, app: usize, declared: &[(BlockId, u32, Map)]) -> Result<Vec<(BlockId, u32)>, Violation> {
        let mut by_entry = BTreeMap::new();
        for &(block, blocks, map) in declared {
            let at = self.entry_of(app, block).ok_or(Violation::NotHeld)?;
            let owned = &self.entries[at as usize].as_ref().ok_or(Violation::NotHeld)?.owned;
            let within = map.iter().zip(&owned.map).all(|(said, known)| said & !known == 0);
            if owned.blocks != blocks || !within || by_entry.insert(at, map).is_some() {
                return Err(Violation::NotHeld);
            }
        }
        let mut free = Vec::new();
        for at in 0..self.entries.len() as u32 {
            let Some(entry) = self.entries[at as usize].as_mut().filter(|entry| entry.owned.app == app) else {
                continue;
            };
            match by_entry.get(&at) {
                Some(map) if *map != EMPTY => {
                    entry.owned.map = if entry.owned.blocks == 1 { *map } else { entry.owned.map };
                    self.changed(at);
                }
                _ => free.push(self.remove(at)),
            }
        }
        Ok(free)
    }

    /// Removes an application that is gone. Returns all blocks that it held.
    pub fn dismiss(&mut self, app: usize) -> Vec<(BlockId, u32)> {
        let mine = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.owned.app == app);
        let all: Vec<u32> = (0..self.entries.len() as u32).filter(|&at| mine(&self.entries[at as usize])).collect();
        let freed = all.into_iter().map(|at| self.remove(at)).collect();
        self.apps[app] = None;
        self.ledger.set_app(app, None);
        freed
    }
}

/// The key by which [`App::rooms`] has a block: the largest order that it has room for, and the
/// number of its free chunks.
fn room(map: &Map) -> (usize, Free) {
    (chunks::room(map).map_or(FULL, usize::from), map.iter().map(|word| word.count_zeros()).sum())
}

/// The accounts that a tenant's blocks are charged to.
fn accounts(tenant: &Tenant) -> impl Iterator<Item = Tenant> {
    let user = (tenant.0, String::new());
    let job = (!tenant.1.is_empty()).then(|| tenant.clone());
    std::iter::once(user).chain(job)
}

impl App {
    fn new(tenant: Tenant) -> App {
        App { tenant, rooms: Default::default(), blocks: 0, empty: 0 }
    }
}
