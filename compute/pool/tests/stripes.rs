//! Every interleaving of updates of a stripe, a reader, lost nodes and a repair, on the real words
//! and versions.
//!
//! One stripe of two data seats and a parity seat; a byte for each page. The page of seat 0 is
//! written back twice and may be freed; that of seat 1 stays as it is. A reader reads either, from
//! its home or from the other two seats. Each update goes whole, or by the changed line with that of
//! the parity. What a node has carried out may come again after a cut. A node dies, or the writer's lane alone is cut off from
//! one that others can still read. The lost seat is made anew at a fourth node, and then a second
//! node may die. Verbs of the lane take effect at each node in the order posted; every other step
//! is atomic. Which seat is read, written and lacking is decided by [`Word`], as the lanes decide
//! it.
//!
//! Whatever the order: a read gives the value stored last; no page is told to be lost; nobody is
//! stuck. Seeded mistakes are each caught by the same check.

use farmem_pool::homes::{State, Word};
use farmem_pool::stripes::{is_under_way, next_version};
use std::collections::HashSet;

/// Ways to get it wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// A reader puts a page together whatever the version.
    VersionNotAsked,
    /// … and does not look at it again.
    NotAskedAgain,
    /// An update is told of when it is posted.
    TurnedLate,
    /// … and is over when the first node has answered.
    TurnedBackEarly,
    /// A node that a WRITE did not reach stays in the slab's word.
    NotForsaken,
    /// A new home is whole at once.
    AddedWhole,
    /// A new home lacks the slots of its own slab that are taken, and no others.
    OwnSlotsAlone,
    /// … or only what was written.
    WrittenAlone,
    /// A slot that is free is zeroed at its node.
    Discarded,
    /// The filler does not keep updates away.
    FilledUnguarded,
    /// … clears the bit when its WRITE is posted.
    ClearedWhenPosted,
    /// A page that leaves is not written to a home that is being filled.
    FillingNotWritten,
    /// A change goes to the page's home, and not to the parity.
    ParityLeftBehind,
    /// … to the parity as what is to be added. That is carried out twice if it comes again.
    AddedTwice,
    /// … to a home that lacks the place, as if the line were all of it.
    LaidOnStale,
    /// … with a parity that is computed from what was read of a home that lacks the place.
    ReadStale,
}

const ALL: [Mistake; 16] = [
    Mistake::VersionNotAsked,
    Mistake::NotAskedAgain,
    Mistake::TurnedLate,
    Mistake::TurnedBackEarly,
    Mistake::NotForsaken,
    Mistake::AddedWhole,
    Mistake::OwnSlotsAlone,
    Mistake::WrittenAlone,
    Mistake::Discarded,
    Mistake::FilledUnguarded,
    Mistake::ClearedWhenPosted,
    Mistake::FillingNotWritten,
    Mistake::ParityLeftBehind,
    Mistake::AddedTwice,
    Mistake::LaidOnStale,
    Mistake::ReadStale,
];

const SEATS: usize = 3;
const SPARE: usize = 3;

/// The consumer's word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Page {
    /// In the program, and changed.
    Resident,
    /// In the ring, until its update is done.
    Staged,
    Remote,
    Busy,
    /// Its slot is free.
    Free,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Verb {
    Write(u8),
    Add(u8),
    Fill(u8),
}

/// What an update posts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Way {
    /// The page and the parity.
    Whole { parity: u8 },
    /// The page's line, and that of the parity: its new value, and what is added to it. `None`: no
    /// home had it.
    Lines { parity: Option<(u8, u8)> },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Writer {
    Outside,
    /// It reads the other page.
    Reads,
    /// It reads the old line of the page, then of the parity if a home has it.
    Old([Option<u8>; 2], bool),
    /// It has what it needs, and posts to the seats from this one on; the nodes that are to answer,
    /// and whether the page's has.
    Posts(Way, usize, [bool; 4], bool),
    Awaits([bool; 4], bool),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reader {
    Outside,
    /// It owns the page of this seat.
    Owns(usize),
    /// It puts it together: the version, and what it has of the seats.
    Parts(usize, u32, [Option<u8>; SEATS]),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Repair {
    Looks,
    /// It has marked what the new home of this seat lacks.
    Marked(usize, Word, bool),
    Fills(usize),
    /// It has read the other seats; its WRITE is posted.
    Has(usize, u8),
    Posted(usize),
    Done,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    words: [Word; SEATS],
    /// Of the new home.
    stale: bool,
    bytes: [u8; 4],
    alive: [bool; 4],
    reached: [bool; 4],
    lane: [Vec<Verb>; 4],
    /// The evictor's lock.
    held: bool,
    version: u32,
    pages: [Page; 2],
    last: [u8; 2],
    writer: Writer,
    writes_left: u8,
    reader: Reader,
    reads_left: u8,
    repair: Repair,
    losses_left: u8,
    cuts_left: u8,
}

impl World {
    /// Both pages are taken; `written`: the second is at its node already.
    fn new(written: bool) -> World {
        World {
            words: [Word::of(1).with_striped(); SEATS],
            stale: false,
            bytes: if written { [0, 5, 5, 0] } else { [0; 4] },
            alive: [true; 4],
            reached: [true; 4],
            lane: Default::default(),
            held: false,
            version: if written { 2 } else { 0 },
            pages: [Page::Resident, if written { Page::Remote } else { Page::Free }],
            last: [0, if written { 5 } else { 0 }],
            writer: Writer::Outside,
            writes_left: 2,
            reader: Reader::Outside,
            reads_left: 2,
            repair: Repair::Looks,
            losses_left: 2,
            cuts_left: 1,
        }
    }

    /// The node of a seat's home.
    fn node(&self, seat: usize) -> usize {
        if self.words[seat].number() == 1 { seat } else { SPARE }
    }

    fn reads(&self, seat: usize) -> bool {
        self.words[seat].reads(0, || self.stale)
    }

    fn forsake(&mut self, seat: usize) {
        self.words[seat] = self.words[seat].with_state(0, State::Absent);
    }

    /// What a seat has: `None` and the seat is lost, if its node is.
    fn read_seat(&mut self, seat: usize, by_lane: bool) -> Option<u8> {
        let node = self.node(seat);
        if !self.alive[node] || by_lane && !self.reached[node] {
            self.forsake(seat);
            return None;
        }
        Some(self.bytes[node])
    }

    /// Whether a line may be laid onto a seat: `Some(false)` if there is no home to lay it onto.
    fn lays(&self, seat: usize, mistake: Mistake) -> Option<bool> {
        match self.words[seat].takes_pages(0) {
            true => (self.reads(seat) || mistake == Mistake::ReadStale).then_some(true),
            false => Some(false),
        }
    }

    /// Steps of the writer. `lines`: an update that may go by lines does.
    fn write(&mut self, mistake: Mistake, lines: bool) -> Result<bool, String> {
        if lines {
            let may = self.version != 0 && self.lays(0, mistake) == Some(true);
            return Ok(match (self.writer, self.lays(2, mistake)) {
                (Writer::Reads, Some(parity)) if may => {
                    self.writer = Writer::Old([None; 2], parity);
                    true
                }
                _ => false,
            });
        }
        match self.writer {
            Writer::Outside if self.held || self.pages[0] != Page::Resident || self.writes_left == 0 => {
                return Ok(false);
            }
            Writer::Outside => {
                (self.pages[0], self.last[0], self.held) = (Page::Staged, self.last[0] + 1, true);
                self.writes_left -= 1;
                self.writer = Writer::Reads;
            }
            Writer::Reads => {
                let other = if self.version == 0 {
                    Some(0)
                } else if self.reads(1) {
                    self.read_seat(1, true)
                } else if self.reads(0) && self.reads(2) {
                    let (own, parity) = (self.read_seat(0, true), self.read_seat(2, true));
                    own.zip(parity).map(|(own, parity)| own ^ parity)
                } else {
                    return Err("an update finds two seats lost".into());
                };
                if let Some(other) = other {
                    if mistake != Mistake::TurnedLate {
                        self.version = next_version(self.version);
                    }
                    let way = Way::Whole { parity: self.last[0] ^ other };
                    self.writer = Writer::Posts(way, 0, [false; 4], false);
                }
            }
            Writer::Old([Some(own), parity], has) if parity.is_some() || !has => {
                if mistake != Mistake::TurnedLate {
                    self.version = next_version(self.version);
                }
                let change = own ^ self.last[0];
                let way = Way::Lines { parity: parity.map(|old| (old ^ change, change)) };
                self.writer = Writer::Posts(way, 0, [false; 4], false);
            }
            Writer::Old(mut old, parity) => {
                let (nth, seat) = if old[0].is_none() { (0, 0) } else { (1, 2) };
                let others = [(seat + 1) % SEATS, (seat + 2) % SEATS];
                if self.reads(seat) || mistake == Mistake::ReadStale && self.words[seat].takes_pages(0) {
                    old[nth] = self.read_seat(seat, true);
                } else if others.iter().all(|&other| self.reads(other)) {
                    let got = others.map(|other| self.read_seat(other, true));
                    old[nth] = got[0].zip(got[1]).map(|(one, other)| one ^ other);
                } else {
                    self.writer = Writer::Reads;
                    return Ok(true);
                }
                self.writer = Writer::Old(old, parity);
            }
            Writer::Posts(_, SEATS.., awaited, own) => {
                if mistake == Mistake::TurnedLate {
                    self.version = next_version(self.version);
                }
                self.writer = Writer::Awaits(awaited, own);
            }
            Writer::Posts(way, seat, mut awaited, own) => {
                let filling = self.words[seat].state(0) == State::Filling;
                let lays = self.reads(seat) || mistake == Mistake::LaidOnStale || mistake == Mistake::ReadStale;
                let (skips, verb) = match way {
                    _ if seat == 1 => (true, None),
                    Way::Whole { .. } if seat == 0 => (false, Some(Verb::Write(self.last[0]))),
                    Way::Whole { parity } => (false, Some(Verb::Write(parity))),
                    Way::Lines { .. } if seat == 0 => (!lays, Some(Verb::Write(self.last[0]))),
                    Way::Lines { parity: Some((_, change)) } if mistake == Mistake::AddedTwice => {
                        (!lays, Some(Verb::Add(change)))
                    }
                    Way::Lines { parity } => {
                        let left = mistake == Mistake::ParityLeftBehind;
                        (!lays || left, parity.map(|(new, _)| Verb::Write(new)))
                    }
                };
                let whole = matches!(way, Way::Whole { .. });
                let skips = skips || whole && filling && mistake == Mistake::FillingNotWritten;
                if let Some(verb) = verb.filter(|_| self.words[seat].takes_pages(0) && !skips) {
                    let node = self.node(seat);
                    // The byte stands for the page's other lines there.
                    let torn = mistake == Mistake::LaidOnStale && !whole && !self.reads(seat);
                    self.lane[node].push(if torn { Verb::Add(0) } else { verb });
                    // Lines are no whole page: the bit of a home that lacks the place stays.
                    if filling && (whole || torn) {
                        self.stale = false;
                    }
                    awaited[node] = true;
                }
                self.writer = Writer::Posts(way, seat + 1, awaited, own);
            }
            Writer::Awaits(mut awaited, own) => {
                if let Some(node) = (0..4).find(|&node| awaited[node] && !(self.alive[node] && self.reached[node])) {
                    awaited[node] = false;
                    self.lane[node].clear();
                    let seat = (0..SEATS).find(|&seat| self.node(seat) == node);
                    if mistake != Mistake::NotForsaken {
                        seat.into_iter().for_each(|seat| self.forsake(seat));
                    }
                    self.writer = Writer::Awaits(awaited, own);
                } else if awaited == [false; 4] {
                    if !(own || self.reads(1) && self.reads(2)) && mistake != Mistake::NotForsaken {
                        return Err("an update has reached too few seats".into());
                    }
                    if is_under_way(self.version) {
                        self.version = next_version(self.version);
                    }
                    (self.pages[0], self.writer, self.held) = (Page::Remote, Writer::Outside, false);
                } else {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn apply(&mut self, node: usize, verb: Verb) {
        match verb {
            Verb::Write(value) | Verb::Fill(value) => self.bytes[node] = value,
            Verb::Add(change) => self.bytes[node] ^= change,
        }
    }

    /// A node carries out what comes next, and the connection is cut before it says so: it will come
    /// again.
    fn cut(&mut self, node: usize) -> bool {
        let may = self.cuts_left > 0 && self.alive[node] && self.reached[node];
        let Some(&verb) = self.lane[node].first().filter(|_| may) else { return false };
        self.cuts_left -= 1;
        self.apply(node, verb);
        true
    }

    /// A node carries out what the lane has posted next.
    fn carry_out(&mut self, node: usize, mistake: Mistake) -> bool {
        if self.lane[node].is_empty() || !self.alive[node] || !self.reached[node] {
            return false;
        }
        match self.lane[node].remove(0) {
            verb @ (Verb::Write(_) | Verb::Add(_)) => {
                self.apply(node, verb);
                let first = self.node(0) == node;
                if let Writer::Posts(_, _, awaited, own) | Writer::Awaits(awaited, own) = &mut self.writer {
                    (awaited[node], *own) = (false, *own || first);
                    if mistake == Mistake::TurnedBackEarly && is_under_way(self.version) {
                        self.version = next_version(self.version);
                    }
                }
            }
            verb @ Verb::Fill(_) => {
                self.apply(node, verb);
                if let Repair::Posted(seat) = self.repair {
                    (self.stale, self.held, self.repair) = (false, false, Repair::Fills(seat));
                }
            }
        }
        true
    }

    /// `prefers`: the page that is read, or the seat.
    fn read(&mut self, mistake: Mistake, prefers: usize) -> Result<bool, String> {
        match self.reader {
            Reader::Outside if prefers > 1 || self.reads_left == 0 || self.pages[prefers] != Page::Remote => {
                return Ok(false);
            }
            Reader::Outside => (self.pages[prefers], self.reader) = (Page::Busy, Reader::Owns(prefers)),
            Reader::Owns(seat) if self.reads(seat) => {
                if let Some(value) = self.read_seat(seat, false) {
                    return self.bring_in(seat, value);
                }
            }
            Reader::Owns(_) if is_under_way(self.version) && mistake != Mistake::VersionNotAsked => return Ok(false),
            Reader::Owns(seat) => {
                if (0..SEATS).any(|other| other != seat && !self.reads(other)) {
                    return Err("told that a page is lost".into());
                }
                self.reader = Reader::Parts(seat, self.version, [None; SEATS]);
            }
            Reader::Parts(seat, version, got) if (0..SEATS).all(|other| other == seat || got[other].is_some()) => {
                let asks = !matches!(mistake, Mistake::VersionNotAsked | Mistake::NotAskedAgain);
                if asks && self.version != version {
                    self.reader = Reader::Owns(seat);
                } else {
                    return self.bring_in(seat, got.into_iter().flatten().fold(0, |sum, value| sum ^ value));
                }
            }
            Reader::Parts(seat, ..) if prefers == seat => return Ok(false),
            Reader::Parts(seat, version, mut got) => {
                if got[prefers].is_some() {
                    return Ok(false);
                }
                got[prefers] = if self.reads(prefers) { self.read_seat(prefers, false) } else { None };
                self.reader =
                    if got[prefers].is_some() { Reader::Parts(seat, version, got) } else { Reader::Owns(seat) };
            }
        }
        Ok(true)
    }

    fn bring_in(&mut self, seat: usize, value: u8) -> Result<bool, String> {
        if value != self.last[seat] {
            return Err(format!("read {value} of seat {seat}, stored {}", self.last[seat]));
        }
        let again = seat == 0 && self.writes_left > 0;
        self.pages[seat] = if again { Page::Resident } else { Page::Remote };
        self.reads_left -= 1;
        self.reader = Reader::Outside;
        Ok(true)
    }

    fn repair(&mut self, mistake: Mistake) -> bool {
        let guarded = mistake != Mistake::FilledUnguarded;
        match self.repair {
            Repair::Looks => {
                let Some(seat) = (0..SEATS).find(|&seat| self.words[seat].homes() == 0) else { return false };
                let taken = |seat: usize| seat < 2 && self.pages[seat] != Page::Free;
                let lacks = match mistake {
                    Mistake::OwnSlotsAlone => taken(seat),
                    Mistake::WrittenAlone => self.version != 0,
                    _ => self.version != 0 || taken(0) || taken(1),
                };
                self.repair = Repair::Marked(seat, self.words[seat], lacks);
            }
            Repair::Marked(seat, seen, lacks) => {
                if self.words[seat] == seen {
                    let state = if mistake == Mistake::AddedWhole { State::Whole } else { State::Filling };
                    self.stale = lacks;
                    self.words[seat] = seen.with_number(2).with_state(0, state);
                    self.repair = Repair::Fills(seat);
                } else {
                    self.repair = Repair::Looks;
                }
            }
            Repair::Fills(_) if self.held && guarded => return false,
            Repair::Fills(seat) if self.words[seat].state(0) != State::Filling => self.repair = Repair::Done,
            Repair::Fills(seat) if self.stale => {
                let others = [(seat + 1) % SEATS, (seat + 2) % SEATS];
                if !others.iter().all(|&other| self.reads(other)) {
                    self.repair = Repair::Done;
                    return true;
                }
                let got = others.map(|other| self.read_seat(other, true));
                if let [Some(one), Some(other)] = got {
                    self.held |= guarded;
                    self.repair = Repair::Has(seat, one ^ other);
                }
            }
            Repair::Fills(seat) => {
                self.words[seat] = self.words[seat].with_state(0, State::Whole);
                self.repair = Repair::Done;
            }
            Repair::Has(seat, value) => {
                self.lane[SPARE].push(Verb::Fill(value));
                if mistake == Mistake::ClearedWhenPosted {
                    self.stale = false;
                }
                self.repair = Repair::Posted(seat);
            }
            // The node is lost to the lane before it has it.
            Repair::Posted(seat) if !(self.alive[SPARE] && self.reached[SPARE]) => {
                self.lane[SPARE].clear();
                self.forsake(seat);
                self.held &= !guarded;
                self.repair = Repair::Done;
            }
            Repair::Posted(_) | Repair::Done => return false,
        }
        true
    }

    /// A node dies, or is cut off from the lane: one more than parity bears only when all is whole
    /// again.
    fn lose(&mut self, node: usize, dies: bool) -> bool {
        let whole = (0..SEATS).all(|seat| self.words[seat].state(0) == State::Whole && self.alive[self.node(seat)]);
        let whole = whole && (0..SEATS).all(|seat| self.reached[self.node(seat)]);
        let holds = (0..SEATS).any(|seat| self.node(seat) == node && self.words[seat].homes() > 0);
        if !whole || !holds || self.losses_left == 0 {
            return false;
        }
        self.losses_left -= 1;
        if dies {
            self.alive[node] = false
        } else {
            self.reached[node] = false
        }
        true
    }

    /// Housekeeping finds a node dead.
    fn notice(&mut self, seat: usize) -> bool {
        let dead = self.words[seat].homes() > 0 && !self.alive[self.node(seat)];
        if dead {
            self.forsake(seat);
        }
        dead
    }

    fn free(&mut self, mistake: Mistake) -> bool {
        let may = self.pages[0] == Page::Remote;
        if may {
            self.pages[0] = Page::Free;
            let node = self.node(0);
            if mistake == Mistake::Discarded {
                self.bytes[node] = 0;
            }
        }
        may
    }

    /// The worlds that may follow.
    fn next(&self, mistake: Mistake) -> Result<Vec<World>, String> {
        let mut all = Vec::new();
        let mut step = |change: &mut dyn FnMut(&mut World) -> Result<bool, String>| {
            let mut world = self.clone();
            change(&mut world).map(|moved| {
                if moved {
                    all.push(world);
                }
            })
        };
        step(&mut |world| world.write(mistake, false))?;
        step(&mut |world| world.write(mistake, true))?;
        (0..SEATS).try_for_each(|seat| step(&mut |world| world.read(mistake, seat)))?;
        step(&mut |world| Ok(world.repair(mistake)))?;
        step(&mut |world| Ok(world.free(mistake)))?;
        (0..SEATS).try_for_each(|seat| step(&mut |world| Ok(world.notice(seat))))?;
        for node in 0..4 {
            step(&mut |world| Ok(world.carry_out(node, mistake)))?;
            step(&mut |world| Ok(world.cut(node)))?;
            step(&mut |world| Ok(world.lose(node, true)))?;
            step(&mut |world| Ok(world.lose(node, false)))?;
        }
        let busy = self.writer != Writer::Outside || self.reader != Reader::Outside;
        match all.is_empty() && busy {
            true => Err(format!("stuck: {self:?}")),
            false => Ok(all),
        }
    }
}

/// Walks all worlds; how many, or what is wrong in one.
fn walk(mistake: Mistake) -> Result<usize, String> {
    let mut seen = HashSet::new();
    let mut left = vec![World::new(true), World::new(false)];
    while let Some(world) = left.pop() {
        if seen.insert(world.clone()) {
            left.extend(world.next(mistake)?);
        }
    }
    Ok(seen.len())
}

#[test]
fn every_order_gives_what_was_stored() {
    let worlds = walk(Mistake::None).unwrap();
    println!("{worlds} worlds");
    assert!(worlds > 10_000);
}

#[test]
fn every_mistake_is_caught() {
    for mistake in ALL {
        println!("{mistake:?}: {}", walk(mistake).expect_err(&format!("{mistake:?} is not caught")));
    }
}
