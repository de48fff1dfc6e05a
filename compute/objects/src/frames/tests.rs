//! Frames under an evictor of the test's, whose node is a table: references stay good while objects
//! come, leave and change. `.ci/long miri` runs this under Miri, which watches each access.

use super::*;
use crate::homes::Home;
use crate::rooms::Room;
use crate::scope::Open;
use zerocopy::IntoBytes;

mod whole;

type Value = [u64; 8];

/// Objects; as many as this are local.
const OBJECTS: usize = 40;
const LOCAL: usize = 12;

/// The same numbers in each run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

struct World {
    arena: Arena,
    room: Room,
    /// Frames that are not used, so that few are.
    rest: Vec<(usize, usize)>,
    node: Vec<Value>,
    clock: u64,
    open: Open,
}

impl World {
    fn new() -> World {
        let [.., mut room] = Room::of_all();
        std::mem::swap(&mut room, &mut Room::of_all()[FarBox::<Value>::CLASS.index]);
        assert!(room.add().is_none());
        let rest = (LOCAL..FarBox::<Value>::CLASS.frames()).map(|_| room.take().unwrap()).collect();
        let node = (0..OBJECTS as u64).map(|n| [n; 8]).collect();
        World { arena: Arena::new().unwrap(), room, rest, node, clock: 1, open: Open::default() }
    }

    fn home(n: usize) -> Home {
        Home::of(1, n * 64)
    }

    fn object(word: Word) -> usize {
        (0..OBJECTS).find(|&n| World::home(n) == word.home()).unwrap()
    }

    fn oldest(&self) -> u64 {
        self.open.needed()
    }

    fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.open.begin(self.clock);
        self.clock << STAMP
    }

    fn end(&self, mark: u64) {
        self.open.end(mark >> STAMP);
    }

    /// A free frame: one that is, or that of an object which no scope holds.
    fn frame(&mut self) -> Option<At> {
        let (class, oldest) = (FarBox::<Value>::CLASS, self.oldest());
        for _ in 0..3 * class.frames() {
            if let Some((segment, number)) = self.room.take() {
                return Some(self.arena.frame(class, segment, number));
            }
            let (segment, number) = self.room.step();
            let at = self.arena.frame(class, segment, number);
            let (word, meta) = (self.arena.word(at), self.arena.meta(at));
            if word == 0 || meta & ARRIVING != 0 || meta >> STAMP >= oldest {
                continue;
            }
            if meta & SEEN == 0 {
                self.arena.set_seen(at);
                continue;
            }
            if self.arena.is_dirty(at) {
                // SAFETY: copied at once.
                let bytes = unsafe { self.arena.unheld(at, oldest) };
                self.node[World::object(Word(word))] = copied(bytes);
            }
            self.arena.empty(at, oldest);
            self.room.give((segment, number));
        }
        None
    }

    /// Has a box's object come. False: scopes hold all frames.
    fn bring(&mut self, one: &FarBox<Value>, mark: u64) -> bool {
        let (class, n) = (FarBox::<Value>::CLASS, World::object(one.word()));
        let Some(at) = self.frame() else { return false };
        let word = Word::new(at.units(class), one.word().home());
        self.arena.give(at, word, mark | SEEN);
        if n.is_multiple_of(2) {
            // SAFETY: filled at once.
            unsafe { self.arena.awaited(at) }.copy_from_slice(self.node[n].as_bytes());
        } else {
            self.arena.fill(at, self.node[n].as_bytes());
        }
        self.arena.arrived(at);
        one.set_word(word);
        true
    }
}

#[test]
fn references_stay_good_while_others_come_and_leave() {
    let mut world = World::new();
    let mut boxes: Vec<FarBox<Value>> = (0..OBJECTS).map(|n| FarBox::away(World::home(n))).collect();
    let (mut wanted, mut draw) = (world.node.clone(), Draw(7));
    let (mut full, mut came) = (0, 0);
    for round in 0..if cfg!(miri) { 60 } else { 2000 } {
        // A scope reads some, and another within it. The one that began first ends first, in the
        // middle, with its references: those of the other live until it ends, too.
        let marks = [world.begin(), world.begin()];
        let frames = world.arena.frames();
        let mut held: Vec<(usize, &Value, u64)> = Vec::new();
        let steps = 2 + round % LOCAL;
        for step in 0..steps {
            let n = draw.below(OBJECTS);
            if step == steps * 2 / 3 {
                held.retain(|&(_, _, by)| by != marks[0]);
                world.end(marks[0]);
            }
            let mark = if step < steps * 2 / 3 { marks[draw.below(2)] } else { marks[1] };
            let mut spot = boxes[n].local(&frames, mark);
            if spot.is_none() && world.bring(&boxes[n], mark) {
                came += 1;
                spot = boxes[n].local(&frames, mark);
            }
            match spot {
                // SAFETY: `local` has returned it, and the scope is open until `held` is gone.
                Some(spot) => held.push((n, unsafe { boxes[n].lent(&spot) }, mark)),
                None => full += 1,
            }
            held.iter().for_each(|&(n, value, _)| assert_eq!(*value, wanted[n]));
        }
        drop(held);
        world.end(marks[1]);
        // A write, by an exclusive borrow; and a box that is forgotten and comes back.
        let (n, mark) = (draw.below(OBJECTS), world.begin());
        if boxes[n].local(&frames, mark).is_some() || world.bring(&boxes[n], mark) {
            let spot = boxes[n].local(&frames, mark).unwrap();
            wanted[n] = [round as u64; 8];
            // SAFETY: as above.
            *unsafe { boxes[n].lent_mut(&spot) } = wanted[n];
        }
        world.end(mark);
    }
    // Miri is slow, and has too few rounds for that.
    let was_full = full > 0 || cfg!(miri);
    assert!(came > 20 && was_full && world.rest.len() > 700, "{came} came, {full} times full");
    // All is here or at the node as it was written last.
    for (n, one) in boxes.iter().enumerate() {
        let (frames, mark) = (world.arena.frames(), world.begin());
        let spot = one.local(&frames, mark);
        // SAFETY: as above.
        let value = spot.map_or(world.node[n], |spot| *unsafe { one.lent(&spot) });
        assert_eq!(value, wanted[n]);
        world.end(mark);
    }
}

#[test]
fn a_frame_that_a_scope_holds_is_neither_emptied_nor_read_for_its_way_home() {
    let mut world = World::new();
    let one = FarBox::<Value>::away(World::home(3));
    let mark = world.begin();
    assert!(world.bring(&one, mark));
    let at = world.arena.of_word(FarBox::<Value>::CLASS, one.word());
    let oldest = world.oldest();
    let panics = |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    assert!(panics(&|| world.arena.empty(at, oldest)));
    // SAFETY: it panics.
    assert!(panics(&|| assert!(unsafe { world.arena.unheld(at, oldest) }.len() > 1)));
    // SAFETY: it panics.
    assert!(panics(&|| assert!(unsafe { world.arena.awaited(at) }.len() > 1)));
    assert!(panics(&|| world.arena.give(at, one.word(), mark)));
    world.end(mark);
    world.arena.empty(at, world.oldest());
    assert!(one.local(&world.arena.frames(), mark).is_none());
}
