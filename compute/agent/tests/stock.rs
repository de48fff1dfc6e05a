//! The stock against a plain model: chunks, one by one, and whose each is.

use farmem_agent::chunks::{EMPTY, Map};
use farmem_agent::ledger::{BYTES, Identity, Ledger, MAX_APPS, MAX_ENTRIES, Owned};
use farmem_agent::stock::{Need, Quotas, Stock, Violation};
use farmem_agent::word::{BLOCK_BYTES, BLOCK_ORDER, BlockId, Piece, Refusal};
use farmem_protocol::extent::policy::{KEPT_IDLE, kept_empty};
use farmem_sys::descriptors;
use farmem_sys::shared;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const APPS: usize = 3;
/// Blocks that the source has.
const BLOCKS: u32 = 12;
/// Of them, what the second application's job may hold.
const OF_JOB: u64 = 4;

#[derive(Clone, Debug)]
enum Step {
    Alloc(usize, u8),
    Chunks(usize, u32),
    Run(usize, u32),
    /// The n-th piece that it has.
    Free(usize, usize),
    /// Half of it, if it has halves.
    FreeHalf(usize, usize),
    /// A piece that it may or may not have.
    FreeAnything(usize, u32, u16, u8),
    Dismiss(usize),
    /// The agent is killed, and one application after the other comes back, having lost some of its
    /// answers.
    Restart(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let app = 0..APPS;
    prop_oneof![
        6 => (app.clone(), 0..=BLOCK_ORDER).prop_map(|(a, o)| Step::Alloc(a, o)),
        3 => (app.clone(), 1u32..600).prop_map(|(a, n)| Step::Chunks(a, n)),
        1 => (app.clone(), 2u32..5).prop_map(|(a, n)| Step::Run(a, n)),
        8 => (app.clone(), 0usize..64).prop_map(|(a, n)| Step::Free(a, n)),
        2 => (app.clone(), 0usize..64).prop_map(|(a, n)| Step::FreeHalf(a, n)),
        2 => (app.clone(), 0..2 * BLOCKS, 0u16..512, 0..=BLOCK_ORDER).prop_map(|(a, b, f, o)| Step::FreeAnything(a, b, f >> o << o, o)),
        1 => app.clone().prop_map(Step::Dismiss),
        1 => (0usize..8).prop_map(Step::Restart),
    ]
}

/// What is held, told by hand.
#[derive(Default)]
struct Model {
    /// Pieces, and runs by their number of blocks.
    pieces: [Vec<(Piece, u32)>; APPS],
    /// Chunks that are somebody's.
    owner: BTreeMap<(u32, u16), usize>,
    /// Blocks that the source has given out.
    out: BTreeSet<u32>,
}

impl Model {
    fn granted(&mut self, app: usize, piece: Piece, blocks: u32) {
        for (block, chunk) in chunks_of(piece, blocks) {
            assert_eq!(self.owner.insert((block, chunk), app), None, "a chunk with two owners");
            assert!(self.out.contains(&block), "a block that the source has not given");
        }
        self.pieces[app].push((piece, blocks));
    }

    fn freed(&mut self, piece: Piece, blocks: u32) {
        for chunk in chunks_of(piece, blocks) {
            assert!(self.owner.remove(&chunk).is_some());
        }
    }

    fn returned(&mut self, block: BlockId, blocks: u32) {
        for block in block.0..block.0 + blocks {
            assert!(self.out.remove(&block), "a block came back twice");
            assert!(!self.owner.keys().any(|chunk| chunk.0 == block), "a block came back in use");
        }
    }

    fn claim(&mut self, blocks: u32) -> Option<BlockId> {
        let first = (0..=BLOCKS - blocks).find(|&at| (at..at + blocks).all(|block| !self.out.contains(&block)))?;
        self.out.extend(first..first + blocks);
        Some(BlockId(first))
    }
}

fn chunks_of(piece: Piece, blocks: u32) -> Vec<(u32, u16)> {
    match blocks {
        1 => (piece.first..piece.first + piece.chunks()).map(|chunk| (piece.block.0, chunk)).collect(),
        _ => (0..blocks).flat_map(|b| (0..512).map(move |chunk| (piece.block.0 + b, chunk))).collect(),
    }
}

fn identity(app: usize) -> Identity {
    let job = if app == 1 { "nightly" } else { "" };
    Identity { token: [app as u8 + 1; 16], uid: 1000 + app as u32 / 2, pid: 7, began: 7, job: job.into() }
}

fn quotas() -> Quotas {
    let job = ((1000, "nightly".to_owned()), OF_JOB * BLOCK_BYTES);
    Quotas { each: Some(8 * BLOCK_BYTES), named: [job].into() }
}

fn run(steps: &[Step]) {
    let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
    let open = || Stock::open(Arc::new(Ledger::open(fd).unwrap().0), quotas());
    let mut stock = open();
    let mut places: Vec<usize> = (0..APPS).map(|app| stock.admit(&identity(app)).unwrap()).collect();
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Alloc(app, order) => {
                let had = with_blocks(&mut stock, &mut model, places[app], |stock| stock.alloc(places[app], order));
                if let Some(piece) = had {
                    assert_eq!(piece.order, order);
                    model.granted(app, piece, 1);
                }
            }
            Step::Chunks(app, most) => {
                let had =
                    with_blocks(&mut stock, &mut model, places[app], |stock| stock.alloc_chunks(places[app], most));
                if let Some(piece) = had {
                    assert!(piece.chunks() as u32 <= most);
                    model.granted(app, piece, 1);
                }
            }
            Step::Run(app, blocks) => {
                if stock.may_have(places[app], blocks).is_ok()
                    && let Some(block) = model.claim(blocks)
                {
                    stock.supply(places[app], block, blocks, (0, block.0)).unwrap();
                    model.granted(app, Piece { block, first: 0, order: BLOCK_ORDER }, blocks);
                }
            }
            Step::Free(app, n) | Step::FreeHalf(app, n) => {
                if model.pieces[app].is_empty() {
                    continue;
                }
                let n = n % model.pieces[app].len();
                let (mut piece, blocks) = model.pieces[app].swap_remove(n);
                if matches!(step, Step::FreeHalf(..)) && blocks == 1 && piece.order > 0 {
                    piece.order -= 1;
                    let rest = Piece { first: piece.first + piece.chunks(), ..piece };
                    model.pieces[app].push((rest, 1));
                }
                model.freed(piece, blocks);
                let back = match blocks {
                    1 => stock.free(places[app], piece).unwrap(),
                    _ => stock.free_run(places[app], piece.block, blocks).unwrap(),
                };
                back.into_iter().for_each(|(block, blocks)| model.returned(block, blocks));
            }
            Step::FreeAnything(app, block, first, order) => {
                let piece = Piece { block: BlockId(block), first, order };
                let whole = chunks_of(piece, 1).iter().all(|chunk| model.owner.get(chunk) == Some(&app));
                let of_run = |(held, blocks): &(Piece, u32)| {
                    *blocks > 1 && (held.block.0..held.block.0 + blocks).contains(&block)
                };
                if whole && !model.pieces[app].iter().any(of_run) {
                    continue; // An honest free, which Free tries.
                }
                assert_eq!(stock.free(places[app], piece), Err(Violation::NotHeld));
                assert_eq!(stock.free_run(places[app], piece.block, 31), Err(Violation::NotHeld));
            }
            Step::Dismiss(app) => {
                for (piece, blocks) in std::mem::take(&mut model.pieces[app]) {
                    model.freed(piece, blocks);
                }
                for (block, blocks) in stock.dismiss(places[app]) {
                    model.returned(block, blocks);
                }
                places[app] = stock.admit(&identity(app)).unwrap();
            }
            Step::Restart(lost) => {
                stock = open();
                let owned: BTreeSet<u32> = places_of(&stock).collect();
                let empty: Vec<u32> = model.out.difference(&owned).copied().collect();
                empty.into_iter().for_each(|block| model.returned(BlockId(block), 1));
                assert!(
                    places.iter().all(|&app| !stock.keeps(app)),
                    "an empty block is kept for who may never come back"
                );
                for (app, &place) in places.iter().enumerate() {
                    assert_eq!(stock.find(&identity(app).token, identity(app).uid), Some(place));
                    assert_eq!(stock.find(&identity(app).token, 5), None);
                    // Its last answers never reached it.
                    for _ in 0..lost.min(model.pieces[app].len()) {
                        if let Some((piece, blocks)) = model.pieces[app].pop() {
                            model.freed(piece, blocks);
                        }
                    }
                    let declared = declaration(&model, app);
                    let free = stock.declare(place, &declared).unwrap();
                    free.into_iter().for_each(|(block, blocks)| model.returned(block, blocks));
                    // More than it holds: another's, or nobody's.
                    let mut lie = declared.clone();
                    lie.push((BlockId(BLOCKS + 1), 1, [1; 8]));
                    assert_eq!(stock.declare(place, &lie), Err(Violation::NotHeld));
                }
            }
        }
        check(&stock, &model, &places);
    }
    descriptors::close(fd);
}

fn declaration(model: &Model, app: usize) -> Vec<(BlockId, u32, Map)> {
    let mut maps: BTreeMap<BlockId, (u32, Map)> = BTreeMap::new();
    for &(piece, blocks) in &model.pieces[app] {
        let (of, map) = maps.entry(piece.block).or_insert((blocks, EMPTY));
        *of = blocks;
        for chunk in piece.first..piece.first + piece.chunks() {
            map[chunk as usize / 64] |= 1 << (chunk % 64);
        }
    }
    maps.into_iter().map(|(block, (blocks, map))| (block, blocks, map)).collect()
}

/// Allocates, with blocks from the model's source as they are needed.
fn with_blocks(
    stock: &mut Stock,
    model: &mut Model,
    app: usize,
    alloc: impl Fn(&mut Stock) -> Result<Piece, Need>,
) -> Option<Piece> {
    loop {
        match alloc(stock) {
            Ok(piece) => return Some(piece),
            Err(Need::Refused(refusal)) => {
                assert_eq!(refusal, Refusal::Quota);
                return None;
            }
            Err(Need::Block) => {
                let block = model.claim(1)?;
                stock.supply(app, block, 1, (0, block.0)).unwrap();
            }
        }
    }
}

/// Blocks that applications have, those of runs singly.
fn places_of(stock: &Stock) -> impl Iterator<Item = u32> {
    stock.owned().flat_map(|&Owned { block, blocks, .. }| block.0..block.0 + blocks)
}

fn check(stock: &Stock, model: &Model, places: &[usize]) {
    let mut blocks = BTreeSet::new();
    assert!(places_of(stock).all(|block| blocks.insert(block)), "a block with two owners");
    for &app in places {
        let empty = stock.owned().filter(|owned| owned.app == app && owned.map == EMPTY).count() as u64;
        assert!(empty <= kept_empty(stock.held_by(app) / BLOCK_BYTES), "{empty} of {}", stock.held_by(app));
    }
    assert_eq!(blocks, model.out, "what the stock has is what the source gave");
    let held: u64 = places.iter().map(|&app| stock.held_by(app)).sum();
    assert_eq!(held, model.out.len() as u64 * BLOCK_BYTES);
    for (tenant, bytes) in stock.tenants() {
        let most = if tenant.1.is_empty() { 8 } else { OF_JOB };
        assert!(bytes <= most * BLOCK_BYTES, "{tenant:?} holds {bytes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_chunk_has_one_owner_through_any_steps(steps in prop::collection::vec(step(), 1..120)) {
        run(&steps);
    }
}

#[test]
fn quotas_are_exact_for_user_and_job() {
    let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
    let mut stock = Stock::open(Arc::new(Ledger::open(fd).unwrap().0), quotas());
    let (user, job) = (stock.admit(&identity(0)).unwrap(), stock.admit(&identity(1)).unwrap());
    let mut next = 0..;
    let mut fill = |stock: &mut Stock, app: usize| {
        while stock.may_have(app, 1).is_ok() {
            stock.supply(app, BlockId(next.next().unwrap()), 1, (0, 0)).unwrap();
            assert_eq!(stock.alloc(app, BLOCK_ORDER).map(|piece| piece.order), Ok(BLOCK_ORDER));
        }
        assert_eq!(stock.alloc(app, 0), Err(Need::Refused(Refusal::Quota)));
        stock.held_by(app) / BLOCK_BYTES
    };
    assert_eq!(fill(&mut stock, job), OF_JOB);
    assert_eq!(fill(&mut stock, user), 8 - OF_JOB);
    // The last block that the user may have is given to whoever supplies first.
    let held = stock.dismiss(job);
    assert_eq!(held.len() as u64, OF_JOB);
    assert_eq!(stock.may_have(user, 4), Ok(()));
    assert_eq!(stock.may_have(user, 5), Err(Refusal::Quota));
    descriptors::close(fd);
}

/// What is empty goes back after some heartbeats, unless it is used meanwhile; of blocks in use the
/// fullest serves.
#[test]
fn empty_blocks_go_back_when_they_are_idle_and_full_ones_are_filled_first() {
    let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
    let mut stock = Stock::open(Arc::new(Ledger::open(fd).unwrap().0), Quotas::default());
    let app = stock.admit(&identity(0)).unwrap();
    for block in 0..2 {
        stock.supply(app, BlockId(block), 1, (0, block)).unwrap();
    }
    let whole = stock.alloc(app, BLOCK_ORDER).unwrap();
    let other = stock.alloc(app, BLOCK_ORDER).unwrap();
    // Kept, and had again: what else would be claimed.
    assert_eq!(stock.free(app, whole).unwrap(), []);
    let beats = |stock: &mut Stock, n: u32| (0..n).flat_map(|_| stock.beat(app)).collect::<Vec<_>>();
    assert_eq!(beats(&mut stock, KEPT_IDLE - 1), []);
    let again = stock.alloc(app, BLOCK_ORDER).unwrap();
    assert_eq!((again.block, stock.keeps(app)), (whole.block, false));
    assert_eq!(stock.free(app, again).unwrap(), []);
    assert_eq!(beats(&mut stock, KEPT_IDLE - 1), [], "it was in use meanwhile");
    assert!(stock.keeps(app));
    assert_eq!(beats(&mut stock, 1), [(whole.block, 1)]);
    assert_eq!(beats(&mut stock, 1), [], "the other one is in use");

    stock.free(app, other).unwrap();
    stock.supply(app, BlockId(7), 1, (0, 7)).unwrap();
    let pieces: Vec<Piece> = (0..16).map(|_| stock.alloc(app, 6).unwrap()).collect();
    let (first, second) = (pieces[0].block, pieces[15].block);
    // 64 chunks free of the first block to be filled, 128 of the second: both in runs of 64.
    for piece in [pieces[0], pieces[8], pieces[10]] {
        stock.free(app, piece).unwrap();
    }
    assert_eq!(stock.alloc(app, 6).unwrap().block, first);
    assert_eq!(stock.alloc(app, 6).unwrap().block, second);
}

/// Who frees nearly all at once keeps no more than if it had never held it; so does who frees a
/// run.
#[test]
fn as_the_holding_shrinks_fewer_empty_blocks_are_kept() {
    let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
    let mut stock = Stock::open(Arc::new(Ledger::open(fd).unwrap().0), Quotas::default());
    let app = stock.admit(&identity(0)).unwrap();
    let pieces: Vec<Piece> = (0..100)
        .map(|block| {
            stock.supply(app, BlockId(block), 1, (0, block)).unwrap();
            stock.alloc(app, BLOCK_ORDER).unwrap()
        })
        .collect();
    stock.supply(app, BlockId(100), 32, (0, 100)).unwrap();
    let mut back: BTreeSet<u32> = BTreeSet::new();
    let mut empty = 0;
    let mut held = 132;
    let mut take = |stock: &Stock, freed: Vec<(BlockId, u32)>, emptied: u64| {
        held -= freed.iter().map(|&(_, blocks)| blocks as u64).sum::<u64>();
        assert!(freed.iter().all(|&(block, _)| back.insert(block.0)), "a block goes back twice");
        empty = empty + emptied - freed.iter().filter(|&&(_, blocks)| blocks == 1).count() as u64;
        assert_eq!(stock.held_by(app), held * BLOCK_BYTES);
        assert!(empty <= kept_empty(held), "{empty} of {held}");
        empty
    };
    for &piece in &pieces[..30] {
        let freed = stock.free(app, piece).unwrap();
        take(&stock, freed, 1);
    }
    let before = take(&stock, Vec::new(), 0);
    let freed = stock.free_run(app, BlockId(100), 32).unwrap();
    assert_eq!(freed[0], (BlockId(100), 32));
    assert!(take(&stock, freed, 0) < before, "those that the run stood for");
    for &piece in &pieces[30..] {
        let freed = stock.free(app, piece).unwrap();
        take(&stock, freed, 1);
    }
    assert_eq!(take(&stock, Vec::new(), 0), 1);
    descriptors::close(fd);
}

/// A user that takes all it can get leaves half of each table to others. All is had again when it
/// is given back.
#[test]
fn a_user_leaves_half_of_the_tables_to_others() {
    let fd = shared::memory(c"ledger", BYTES as u64).unwrap();
    let mut stock = Stock::open(Arc::new(Ledger::fresh(fd).unwrap()), Quotas::default());
    let of = |uid: u32| Identity { uid, job: String::new(), ..identity(0) };
    let fill = |stock: &mut Stock, uid| std::iter::from_fn(|| stock.admit(&of(uid))).collect::<Vec<usize>>();
    let (greedy, second) = (fill(&mut stock, 1), fill(&mut stock, 2));
    assert_eq!((greedy.len(), second.len()), (MAX_APPS / 2, MAX_APPS / 4));
    let third = stock.admit(&of(3)).unwrap();

    let mut blocks = 0..;
    let mut supply = |stock: &mut Stock, app| {
        let block = blocks.next().unwrap();
        stock.supply(app, BlockId(block), 1, (0, block)).map(|()| match stock.alloc(app, BLOCK_ORDER) {
            Ok(_) => {}
            Err(need) => panic!("{need:?}"),
        })
    };
    let mut taken = 0;
    let refused = loop {
        match supply(&mut stock, greedy[taken % greedy.len()]) {
            Ok(()) => taken += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, taken), (Refusal::Tables, MAX_ENTRIES / 2));
    assert_eq!(stock.alloc(greedy[0], 0), Err(Need::Refused(Refusal::Tables)));
    assert_eq!(supply(&mut stock, third), Ok(()));
    // The record is full to there, and sound.
    let next = Stock::open(Arc::new(Ledger::open(fd).unwrap().0), Quotas::default());
    assert_eq!(next.owned().count(), taken + 1);
    assert_eq!(stock.dismiss(greedy[0]).len(), taken / greedy.len());
    assert_eq!(supply(&mut stock, greedy[1]), Ok(()));
    assert_eq!(stock.dismiss(second[0]).len(), 0);
    assert!(stock.admit(&of(2)).is_some());
    descriptors::close(fd);
}
