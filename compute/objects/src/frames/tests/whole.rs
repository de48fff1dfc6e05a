//! The evictor of a heap, whole, over a way that is plain memory: objects of three classes come, are posted,
//! change, leave, are dropped and made again, while scopes hold some of them and the way fails at times.

use super::{Draw, Value};
use crate::evict::Evictor;
use crate::frames::{Arena, FarBox};
use crate::homes::Owner;
use crate::scope::Open;
use crate::share::Share;
use crate::way::{Pieces, Way};
use crate::word::{STAMP, Word};
use crate::{Error, Far};
use farmem::Addr;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

type Middle = [u64; 64];
type Large = [u64; 512];

/// Segments of local memory.
const SEGMENTS: usize = 3;
/// Objects of each class: more than so many segments have room for.
const OBJECTS: [usize; 3] = [60, 170, 60];
const BLOCK: u64 = 2 << 20;

/// A node's memory, without a node.
#[derive(Default)]
struct Plain {
    blocks: RefCell<Vec<Vec<u8>>>,
    /// Blocks that went back.
    freed: Cell<usize>,
    fails: Cell<bool>,
}

impl Plain {
    fn with(&self, at: Addr, each: impl FnOnce(&mut [u8])) -> farmem::Result<()> {
        if self.fails.get() {
            return Err(farmem::Error::Unknown);
        }
        let block = &mut self.blocks.borrow_mut()[(at.bits() / BLOCK) as usize - 1];
        each(&mut block[(at.bits() % BLOCK) as usize..]);
        Ok(())
    }
}

impl Pieces for Plain {
    fn alloc(&self, bytes: u64) -> farmem::Result<Addr> {
        let mut blocks = self.blocks.borrow_mut();
        blocks.push(vec![0; bytes as usize]);
        Ok(Addr::from_bits(blocks.len() as u64 * BLOCK).unwrap())
    }

    fn free(&self, _: Addr) -> farmem::Result<()> {
        self.freed.set(self.freed.get() + 1);
        Ok(())
    }
}

/// Numbers blocks from 1 on.
struct Alone(Cell<usize>);

impl Owner for Alone {
    fn enter(&self) -> Option<usize> {
        self.0.set(self.0.get() + 1);
        Some(self.0.get())
    }

    fn leave(_: usize, _: bool) {}
}

struct PlainWay {
    node: Rc<Plain>,
    posted: Vec<(u64, Addr, Vec<u8>)>,
    /// Posted reads that were sent.
    sent: usize,
}

impl Way for PlainWay {
    type Owner = Alone;

    fn touch(&mut self, _: Addr) {}

    fn read(&mut self, at: Addr, into: &mut [u8]) -> farmem::Result<()> {
        self.node.with(at, |bytes| into.copy_from_slice(&bytes[..into.len()]))
    }

    fn run<'b>(
        &mut self,
        reads: impl Iterator<Item = (Addr, &'b mut [u8])>,
        writes: impl Iterator<Item = (Addr, &'b [u8])>,
    ) -> Vec<farmem::Result<u64>> {
        // All are lent before any is touched, as by a lane.
        let (reads, writes): (Vec<_>, Vec<_>) = (reads.collect(), writes.collect());
        let read = reads.into_iter().map(|(at, into)| self.read(at, into).map(|()| 0)).collect::<Vec<_>>();
        let write = writes
            .into_iter()
            .map(|(at, from)| self.node.with(at, |bytes| bytes[..from.len()].copy_from_slice(from)).map(|()| 0));
        read.into_iter().chain(write.collect::<Vec<_>>()).collect()
    }

    fn post_read(&mut self, tag: u64, at: Addr, into: Vec<u8>) {
        self.posted.push((tag, at, into));
    }

    fn ring(&mut self) {
        self.sent = self.posted.len();
    }

    fn ended(&mut self, wait: Option<Duration>, mut take: impl FnMut(u64, bool, Vec<u8>)) {
        // The youngest first; without waiting, every other one has come.
        let count = if wait.is_some() { self.sent } else { self.sent / 2 };
        for _ in 0..count {
            let (tag, at, mut into) = self.posted.remove(self.sent - 1);
            self.sent -= 1;
            let is_there = self.read(at, &mut into).is_ok();
            take(tag, is_there, into);
        }
    }
}

struct World {
    arena: Arena,
    evictor: Evictor<PlainWay>,
    node: Rc<Plain>,
    owner: Alone,
    clock: u64,
    open: Open,
    /// Times that the way failed.
    failed: usize,
}

impl World {
    fn new() -> World {
        let node = Rc::new(Plain::default());
        let way = PlainWay { node: Rc::clone(&node), posted: Vec::new(), sent: 0 };
        let evictor = Evictor::new(SEGMENTS, Rc::new(Share::own()), way);
        let (arena, owner) = (Arena::new().unwrap(), Alone(Cell::new(0)));
        World { arena, evictor, node, owner, clock: 1, open: Open::default(), failed: 0 }
    }

    fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.open.begin(self.clock);
        self.clock << STAMP
    }

    fn end(&self, mark: u64) {
        self.open.end(mark >> STAMP);
    }

    /// Notes why something did not come: scopes hold all, or the way failed.
    fn told(&mut self, why: &Error) {
        self.failed += usize::from(!matches!(why, Error::ScopeFull(_)));
    }

    fn make<T: Far>(&mut self, value: &T) -> Option<FarBox<T>> {
        let World { arena, evictor, node, owner, .. } = self;
        let class = FarBox::<T>::CLASS;
        let when = (class, self.clock << STAMP, self.open.needed());
        match evictor.fresh(arena, when, |homes| homes.take(class, &**node, owner)) {
            Ok((at, word)) => {
                arena.fill(at, value.as_bytes());
                arena.arrived(at);
                let one = FarBox::away(word.home());
                one.set_word(word);
                Some(one)
            }
            Err(e) => {
                self.told(&e);
                None
            }
        }
    }

    /// As a heap does it: a box that names a posted arrival waits for it.
    fn bring<T: Far>(&mut self, one: &FarBox<T>, mark: u64) -> bool {
        let class = FarBox::<T>::CLASS;
        let at = self.arena.of_word(class, one.word());
        while self.arena.word(at) == !one.word().0 && self.evictor.posted() > 0 {
            self.evictor.settle(&self.arena, true);
        }
        if self.arena.word(at) == one.word().0 {
            return true;
        }
        match self.evictor.fetch_one(&self.arena, (class, mark, self.open.needed()), one.word()) {
            Ok(word) => one.set_word(word),
            Err(e) => {
                self.told(&e);
                return false;
            }
        }
        true
    }

    fn post<T: Far>(&mut self, some: &[&FarBox<T>]) {
        let class = FarBox::<T>::CLASS;
        let away = |one: &&&FarBox<T>| {
            let word = self.arena.word(self.arena.of_word(class, one.word()));
            word != one.word().0 && word != !one.word().0
        };
        let away: Vec<&FarBox<T>> = some.iter().filter(away).copied().collect();
        let words: Vec<Word> = away.iter().map(|one| one.word()).collect();
        let when = (class, self.clock << STAMP, self.open.needed());
        self.evictor.post(&self.arena, when, &words, |n, word| away[n].set_word(word));
    }

    /// Drops a box's object, with its home. The box itself knows no heap, so its drop does nothing.
    fn unmake<T: Far>(&mut self, one: FarBox<T>) {
        let class = FarBox::<T>::CLASS;
        let at = self.arena.of_word(class, one.word());
        while self.arena.word(at) == !one.word().0 && self.evictor.posted() > 0 {
            self.evictor.settle(&self.arena, true);
        }
        if self.arena.word(at) == one.word().0 {
            self.arena.abandon(at);
            self.evictor.free(class, at);
        }
        self.evictor.homes.give(one.word().home(), &*self.node);
    }
}

/// Objects of a class, and what each has to be.
struct Kind<T: Far> {
    boxes: Vec<FarBox<T>>,
    wanted: Vec<u64>,
    of: fn(u64) -> T,
}

impl<T: Far + PartialEq + std::fmt::Debug> Kind<T> {
    fn new(world: &mut World, n: usize, of: fn(u64) -> T) -> Kind<T> {
        let wanted: Vec<u64> = (0..n as u64).collect();
        let boxes = wanted.iter().map(|&n| world.make(&of(n)).unwrap()).collect();
        Kind { boxes, wanted, of }
    }

    fn round(&mut self, world: &mut World, draw: &mut Draw, number: u64) {
        let n = self.boxes.len();
        let marks = [world.begin(), world.begin()];
        let frames = world.arena.frames();
        let mut held: Vec<(usize, &T)> = Vec::new();
        let some: Vec<&FarBox<T>> = (0..4).map(|_| &self.boxes[draw.below(n)]).collect();
        world.post(&some[..1]);
        world.post(&some[2..3]);
        for step in 0..6 + draw.below(12) {
            world.node.fails.set(draw.below(20) == 0);
            let (at, mark) = (draw.below(n), marks[step % 2]);
            if world.bring(&self.boxes[at], mark)
                && let Some(spot) = self.boxes[at].local(&frames, mark)
            {
                // SAFETY: `local` has returned it, and the scopes are open until `held` is gone.
                held.push((at, unsafe { self.boxes[at].lent(&spot) }));
            }
            world.evictor.settle(&world.arena, false);
        }
        world.node.fails.set(false);
        held.iter().for_each(|&(at, value)| assert_eq!(*value, (self.of)(self.wanted[at])));
        drop(held);
        marks.into_iter().for_each(|mark| world.end(mark));
        // Writes, by an exclusive borrow.
        for _ in 0..3 {
            let (at, mark) = (draw.below(n), world.begin());
            if world.bring(&self.boxes[at], mark)
                && let Some(spot) = self.boxes[at].local(&frames, mark)
            {
                self.wanted[at] = number * 1000 + at as u64;
                // SAFETY: as above.
                *unsafe { self.boxes[at].lent_mut(&spot) } = (self.of)(self.wanted[at]);
            }
            world.end(mark);
        }
        // One is dropped and made anew, at a home that another had.
        let (at, value) = (draw.below(n), number * 7);
        if let Some(fresh) = world.make(&(self.of)(value)) {
            self.wanted[at] = value;
            world.unmake(std::mem::replace(&mut self.boxes[at], fresh));
        }
    }

    fn check(&self, world: &mut World) {
        for (one, &wanted) in self.boxes.iter().zip(&self.wanted) {
            let mark = world.begin();
            assert!(world.bring(one, mark));
            let frames = world.arena.frames();
            let spot = one.local(&frames, mark).unwrap();
            // SAFETY: as above; the scope is open.
            assert_eq!(*unsafe { one.lent(&spot) }, (self.of)(wanted));
            world.end(mark);
        }
    }
}

#[test]
fn a_whole_heap_evicts_over_plain_memory() {
    let (mut world, mut draw) = (World::new(), Draw(11));
    let small = |n| -> Value { [n; 8] };
    let mut kinds = (
        Kind::new(&mut world, OBJECTS[0], small),
        Kind::new(&mut world, OBJECTS[1], |n| -> Middle { [n; 64] }),
        Kind::new(&mut world, OBJECTS[2], |n| -> Large { [n; 512] }),
    );
    for number in 0..if cfg!(miri) { 30 } else { 3000 } {
        match draw.below(4) {
            0 => kinds.0.round(&mut world, &mut draw, number),
            1 => kinds.1.round(&mut world, &mut draw, number),
            _ => kinds.2.round(&mut world, &mut draw, number),
        }
        assert!(world.evictor.used() <= world.evictor.most());
    }
    kinds.0.check(&mut world);
    kinds.1.check(&mut world);
    kinds.2.check(&mut world);
    let moved = world.evictor.moved;
    assert!(moved.fetched > 60 && moved.written > 60, "{moved:?}");
    assert!(world.failed > 0, "the way never failed");
    // A class keeps its last block.
    assert_eq!(world.node.freed.get(), 0, "a block in use went back");
}
