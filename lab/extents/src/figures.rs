//! What the pure parts cost on this machine.

use farmem_protocol::extent::{
    Actor, Block, Claimant, Claimer, Generation, Geometry, Level, Operation, Owner, Place, Recover, State, Step, Table,
    Verb, Want, Word, block,
};
use farmem_protocol::random::Random;
use std::hint::black_box;
use std::time::Instant;

/// Prints them.
pub fn print() {
    metadata();
    inside_a_block();
    claim();
    recovery();
}

fn metadata() {
    println!("word table, of memory lent");
    for gib in [1u64, 16, 100, 1024] {
        let geometry = Geometry::new(gib << 30).expect("a geometry");
        let share = geometry.table_bytes() as f64 / geometry.lent_bytes() as f64 * 100.0;
        println!("  {gib:>5} GiB  {share:.4} %  {:>6} owners", geometry.owners());
    }
}

/// One take and one give of a random extent, at about 70 % use.
fn inside_a_block() {
    println!("inside a block: a take and a give, at 70 % use");
    for order in [0, 2, 4, 8] {
        let mut inside = Block::new();
        let mut held = Vec::new();
        while inside.in_use() + (1 << order) <= block::CHUNKS * 7 / 10 {
            held.push(inside.take(order).expect("room"));
        }
        let mut random = Random::new(1);
        let rounds = 2_000_000;
        let started = Instant::now();
        for _ in 0..rounds {
            let at = random.index(held.len());
            black_box(inside.give(held[at])).expect("held");
            held[at] = black_box(inside.take(order)).expect("room");
        }
        println!("  {:>5} KiB  {:>6.1} ns", 4 << order, started.elapsed().as_nanos() as f64 / rounds as f64);
    }
}

/// The claimer's own time for a block, verbs on a table in plain memory included.
fn claim() {
    let geometry = Geometry::new(64 << 30).expect("a geometry");
    let mut table = Table::new(geometry, 0);
    let mut claimer = Claimer::new(Actor::new(Owner::new(1), Claimant::new(0)), geometry);
    let rounds = geometry.count(Level::Block) * 9 / 10;
    let mut verbs = [0u64; 2];
    let started = Instant::now();
    for _ in 0..rounds {
        claimer.begin(Want::one(Level::Block));
        run(&mut table, &mut claimer, &mut verbs).expect("room");
    }
    let each = started.elapsed().as_nanos() as f64 / rounds as f64;
    let [reads, cas] = verbs.map(|count| count as f64 / rounds as f64);
    println!("claims of 90 % of 64 GiB by the block: {cas:.3} CAS, {reads:.3} READ, {each:.0} ns of CPU each");
}

/// A dead owner with every tenth unit of 100 GiB, a tenth of the blocks shared.
fn recovery() {
    let geometry = Geometry::new(100 << 30).expect("a geometry");
    let mut table = Table::new(geometry, 0);
    let dead = Owner::new(9);
    let held = Word::new(State::Owned, dead, 0, Claimant::new(0), Generation(5));
    for index in 0..geometry.count(Level::Block) {
        let place = Place::block(index);
        if index % 10 == 0 {
            table.set(place, Word::plain(State::Shared, Generation(3)));
            let (first, count) = geometry.children(place).expect("chunks");
            for child in 0..count {
                let free = Word::plain(State::Free, Generation(3));
                table.set(first.plus(child), if child % 10 == 0 { held } else { free });
            }
        } else if index % 10 == 1 {
            table.set(place, held);
        }
    }
    let mut verbs = [0u64; 2];
    let started = Instant::now();
    let recovered = run(&mut table, &mut Recover::new(Actor::NODE, geometry, dead), &mut verbs).expect("recovered");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "recovery of 100 GiB: {} words read, {} units given back, {:.3} s, {:.1} M words/s, {} READ, {} CAS",
        recovered.scanned,
        recovered.quarantined.len(),
        seconds,
        recovered.scanned as f64 / seconds / 1e6,
        verbs[0],
        verbs[1],
    );
}

/// Runs an operation alone, counting its READs and CAS.
fn run<T>(table: &mut Table, operation: &mut impl Operation<Outcome = T>, verbs: &mut [u64; 2]) -> T {
    let mut posted = std::collections::VecDeque::new();
    let mut room = [0; 64];
    loop {
        match operation.step() {
            Step::Verb(verb) => posted.push_back(verb),
            Step::Wait => {
                let verb = posted.pop_front().expect("it waits for verbs it has posted");
                verbs[matches!(verb, Verb::Cas { .. }) as usize] += 1;
                operation.complete(table.carry_out(&verb, &mut room));
            }
            Step::Done(outcome) => return outcome,
            Step::Drain | Step::Scrub(..) => unreachable!("neither claims nor recovery drain"),
        }
    }
}
