//! Through every history of a scenario.
//!
//! States are told apart by 128 bits of hash: of ten million, two collide with a
//! probability of 10⁻²⁵. With a limit it goes breadth-first, so that the shortest
//! history that goes wrong is found first; to the end it goes depth-first, for the
//! worlds that wait are then those beside one path, where a breadth of them takes
//! more memory than a machine has. A history can be told again, since a move
//! determines what follows.

use crate::moves::Move;
use crate::scenario::Scenario;
use crate::world::{Violation, World};
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// What was found.
pub struct Found {
    /// Different states seen.
    pub states: usize,
    /// Moves tried.
    pub moves: usize,
    /// States in which nothing need happen any more.
    pub ends: usize,
    /// States in which a client reads a line of words for its next claim.
    pub ahead: usize,
    /// Whether `limit` stopped the search.
    pub cut: bool,
    /// What went wrong, and after which moves.
    pub wrong: Option<(Violation, Vec<Move>)>,
}

/// Visits every state that can be reached, at most `limit` if there is one.
pub fn explore(scenario: &Scenario, limit: Option<usize>) -> Found {
    let mut found = Found { states: 1, moves: 0, ends: 0, ahead: 0, cut: false, wrong: None };
    let mut seen = HashSet::new();
    // How each state was reached: from which, by what.
    let mut ways: Vec<(u32, Move)> = vec![(0, Move::Daemon)];
    let first = World::new(scenario);
    seen.insert(fingerprint(&first));
    let mut queue = VecDeque::from([(0u32, first)]);
    while let Some((number, world)) = if limit.is_some() { queue.pop_front() } else { queue.pop_back() } {
        let moves = world.moves(scenario);
        found.ahead += usize::from(world.is_reading_ahead());
        if moves.iter().all(|movement| movement.is_misfortune()) {
            found.ends += 1;
            if let Err(wrong) = world.judge_end(scenario) {
                found.wrong = Some((wrong, history(&ways, number)));
                return found;
            }
        }
        for movement in moves {
            found.moves += 1;
            let mut next = world.clone();
            let made = next.make(scenario, movement);
            if made.is_ok() && !seen.insert(fingerprint(&next)) {
                continue;
            }
            ways.push((number, movement));
            let at = ways.len() as u32 - 1;
            if let Err(wrong) = made {
                found.wrong = Some((wrong, history(&ways, at)));
                return found;
            }
            found.states += 1;
            if limit.is_some_and(|limit| found.states >= limit) {
                found.cut = true;
                return found;
            }
            queue.push_back((at, next));
        }
    }
    found
}

/// The story of some moves, a line each.
pub fn tell(scenario: &Scenario, moves: &[Move]) -> String {
    let mut world = World::new(scenario);
    let mut story = String::new();
    for &movement in moves {
        story += &world.describe(movement);
        let made = world.make(scenario, movement);
        story += &format!("\n      {}\n", world.sketch());
        if let Err(wrong) = made {
            story += &format!("WRONG: {wrong}\n");
        }
    }
    story
}

fn history(ways: &[(u32, Move)], mut at: u32) -> Vec<Move> {
    let mut moves = Vec::new();
    while at != 0 {
        let (before, movement) = ways[at as usize];
        moves.push(movement);
        at = before;
    }
    moves.reverse();
    moves
}

fn fingerprint(world: &World) -> u128 {
    let mut lanes = Lanes(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
    world.hash(&mut lanes);
    (lanes.0 as u128) << 64 | lanes.1 as u128
}

/// Two hashes in one pass, each by multiplication to 128 bits, folded.
struct Lanes(u64, u64);

impl Hasher for Lanes {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let fold = |lane: u64, by: u64| {
            let product = (lane ^ word) as u128 * by as u128;
            (product as u64 ^ (product >> 64) as u64).wrapping_add(word.rotate_left(32)).rotate_left(23)
        };
        *self = Lanes(fold(self.0, 0x9e37_79b9_7f4a_7c15), fold(self.1, 0xd6e8_feb8_6659_fd93));
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word as u64);
    }

    fn write_u16(&mut self, word: u16) {
        self.write_u64(word as u64);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
