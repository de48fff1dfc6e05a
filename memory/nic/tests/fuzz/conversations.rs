//! Conversations: valid ones to begin with, and which connection says what of one.

use crate::frames::{ask, attach, batch, batch_of, hello, join, known, lines_batch, lines_if_batch};
use crate::wire::{nic, secret};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::extent::{Claimant, Generation, Geometry, Owner, Place, State, Target, Word};
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::nbd::{Asked, Command};
use farmem_protocol::wire::Range;
use farmem_protocol::wire::{ANY_QUEUE, Ask, Binding, Figure, MAGIC, MAX_VERB_BYTES, NewVolume, Op, Purpose, VERSION};
use zerocopy::IntoBytes;

/// Who joins after the victim and the attacker: its secret, and the slot that it owns units as.
const NEWCOMERS_SECRET: u64 = 4;
const NEWCOMER: u16 = 4;
/// What follows is for the connection whose number is the next byte.
pub const TURN: &[u8] = b"\0turn";
/// Connections of one conversation, at most.
const CONNECTIONS: usize = 4;

/// A conversation's bytes, by connection.
pub fn turns(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let (mut turns, mut connections, mut on, mut from, mut at) = (Vec::new(), 1, 0, 0, 1);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest.starts_with(&MAGIC) && connections < CONNECTIONS {
            turns.push((on, &bytes[from..at]));
            (on, from, connections) = (connections, at, connections + 1);
        } else if rest.starts_with(TURN) && rest.len() > TURN.len() {
            turns.push((on, &bytes[from..at]));
            on = rest[TURN.len()] as usize % connections;
            at += TURN.len();
            from = at + 1;
        }
        at += 1;
    }
    turns.push((on, &bytes[from.min(bytes.len())..]));
    turns
}

/// A conversation of an earlier version of the wire, in ours. Its hellos would be refused otherwise.
pub fn of_today(mut bytes: Vec<u8>) -> Vec<u8> {
    let hellos: Vec<usize> =
        bytes.windows(MAGIC.len()).enumerate().filter(|(_, w)| *w == MAGIC).map(|(at, _)| at).collect();
    for at in hellos {
        if let Some(version) = bytes[at + MAGIC.len()..].first_chunk_mut::<2>()
            && (1..VERSION).contains(&u16::from_le_bytes(*version))
        {
            *version = VERSION.to_le_bytes();
        }
    }
    bytes
}

/// A unit's word after `state` was reached for the `generation`-th time.
pub fn word(state: State, owner: u16, generation: u32) -> Word {
    Word::new(state, Owner::new(owner), 0, Claimant::new(0), Generation(generation))
}

/// A CAS of a block's word.
pub fn swap(geometry: &Geometry, block: u32, old: Word, new: Word) -> (Op, Key, u64, Vec<u8>) {
    let at = geometry.offset(Target::Word(Place::block(block))).unwrap();
    (Op::Cas, Key::WORDS, at, [old.0.to_le_bytes(), new.0.to_le_bytes()].concat())
}

/// A member claims block 0 as owner 3, uses it, binds windows to it and to its slab, gives it back.
pub fn of_units(geometry: &Geometry) -> Vec<Vec<u8>> {
    let (free, owned) = (word(State::Free, 0, 1), word(State::Owned, 3, 2));
    let (unit, slab) = (Key::unit(2, 0, 2), Key(2));
    let bind = |parent: Key, owner: u16| {
        let binding = Binding {
            parent: parent.0.into(),
            start: 4096.into(),
            len: 8192.into(),
            queue: ANY_QUEUE.into(),
            owner: owner.into(),
            rights: Rights::ALL.bits(),
            zero: [0; 5],
        };
        binding.as_bytes().to_vec()
    };
    let (unbound, bound) = (Key::window(0, 0), Key::window(0, 1));
    vec![
        batch_of(
            0,
            &[swap(geometry, 0, free, owned), (Op::Write, unit, 100, vec![7; 300]), (Op::Read, unit, 0, vec![])],
        ),
        batch_of(3, &[(Op::Bind, unbound, 0, bind(unit, 0)), (Op::Write, bound, 0, vec![9; 100])]),
        batch_of(5, &[(Op::Read, bound, 64, vec![]), (Op::Invalidate, bound, 0, vec![]), (Op::Read, bound, 0, vec![])]),
        batch_of(8, &[(Op::Bind, Key::window(0, 2), 0, bind(slab, 1)), (Op::Faa, unit, 8, vec![1; 8])]),
        batch_of(10, &[swap(geometry, 0, owned, word(State::Quarantine, 0, 3)), (Op::Write, unit, 0, vec![1; 64])]),
        batch_of(12, &[swap(geometry, 1, word(State::Owned, 1, 2), word(State::Quarantine, 0, 3))]),
        batch_of(13, &[(Op::Read, Key::WORDS, 0, vec![]), (Op::Read, Key::unit(2, 1, 2), 0, vec![])]),
        batch_of(
            15,
            &[
                (Op::Send, Key::service(1), 0, vec![3; 40]),
                (Op::Send, Key::service(2), 0, vec![]),
                (Op::Faa, Key::WORDS, 64, vec![1; 8]),
            ],
        ),
    ]
}

/// A member claims two blocks by a queue pair, is passed their files by its first connection, and gives them back.
pub fn of_files(geometry: &Geometry, incarnation: u64) -> Vec<u8> {
    let turn = |connection: u8| [TURN, &[connection]].concat();
    let claim = |block, generation| {
        swap(geometry, block, word(State::Free, 0, generation), word(State::Owned, NEWCOMER, generation + 1))
    };
    let give = |block, generation| {
        swap(geometry, block, word(State::Owned, NEWCOMER, generation), word(State::Quarantine, 0, generation + 1))
    };
    let (one, other) = (Key::unit(2, 2, 2), Key::unit(2, 3, 2));
    [
        join(),
        attach(NEWCOMERS_SECRET, incarnation),
        batch_of(0, &[claim(2, 1), claim(3, 1), (Op::Write, one, 0, vec![5; 100])]),
        turn(0),
        ask(1, Ask::Unit(one, 1)),
        ask(2, Ask::Unit(other, 1)),
        ask(3, Ask::Unit(one, 2)),
        turn(1),
        batch_of(3, &[(Op::Write, one, 4096, vec![6; 64]), (Op::Read, one, 0, vec![]), give(2, 2)]),
        turn(0),
        ask(4, Ask::Unit(one, 1)),
        ask(5, Ask::Unit(other, 33)),
        turn(1),
        batch_of(6, &[give(3, 2)]),
        turn(0),
        ask(6, Ask::Bye),
    ]
    .concat()
}

/// A member's control connection is superseded, and goes on all the same; so does the second, and a queue pair of it.
fn of_superseded(incarnation: u64) -> Vec<u8> {
    let turn = |connection: u8| [TURN, &[connection]].concat();
    let window = Key::window(1, 0);
    let range = Range { slab: SlabId(3), offset: 0, len: 4096 };
    [
        join(),
        ask(1, Ask::Grant),
        ask(2, Ask::Window),
        hello(Purpose::Rejoin(known(NEWCOMERS_SECRET, incarnation))),
        ask(2, Ask::Window),
        ask(3, Ask::DropWindow(window)),
        ask(4, Ask::Window),
        attach(NEWCOMERS_SECRET, incarnation),
        batch(0, &[(Op::Write, 3, 0, 64), (Op::Read, 3, 0, 64)]),
        turn(0),
        ask(3, Ask::DropWindow(window)),
        ask(5, Ask::Discard(range)),
        ask(5, Ask::Back(range)),
        ask(6, Ask::Bye),
        turn(1),
        ask(7, Ask::Ping),
        attach(NEWCOMERS_SECRET, incarnation),
        batch(0, &[(Op::Read, 3, 0, 64)]),
        turn(2),
        batch(2, &[(Op::Write, 3, 0, 64)]),
        turn(1),
        ask(8, Ask::Bye),
    ]
    .concat()
}

/// A swap volume: made by one stream, used by another, gone on with by a third, ended by the first.
fn of_volume(incarnation: u64) -> Vec<u8> {
    let new = NewVolume { id: secret(77), size: 1 << 20, kept_ms: 1000, ..NewVolume::default() };
    let ask = |command, offset, length| Asked::frame(command, 5, offset, length).as_bytes().to_vec();
    let page: Vec<u8> = (0..4096).map(|i| (i / 3) as u8).collect();
    [
        hello(Purpose::NewVolume(new)),
        ask(Command::Report, 0, 0),
        ask(Command::Mark, 0, 0),
        hello(Purpose::Volume(known(77, incarnation), true)),
        ask(Command::Write, 0, 8192),
        page.clone(),
        page.clone(),
        ask(Command::Write, 1 << 19, 4096),
        vec![7; 4096],
        ask(Command::Read, 4096, 12288),
        ask(Command::Trim, 0, 4096),
        ask(Command::Mark, 0, 0),
        ask(Command::Freed, 1, 16),
        [1u32, 1, 128, 1000].map(u32::to_be_bytes).concat(),
        ask(Command::Zero, 0, 1 << 20),
        ask(Command::Read, 1 << 20, 4096),
        ask(Command::Write, 1 << 20, 4096),
        page,
        ask(Command::Flush, 0, 0),
        hello(Purpose::Volume(known(77, incarnation), true)),
        ask(Command::Read, 0, 4096),
        ask(Command::Disconnect, 0, 0),
        [TURN, &[0]].concat(),
        ask(Command::Free, 0, 0),
    ]
    .concat()
}

/// Valid conversations to begin with. The incarnation of [`nic`] is fixed by its first secret.
pub fn seeds(incarnation: u64) -> Vec<Vec<u8>> {
    let region = "region".parse().unwrap();
    let control = [
        join(),
        ask(1, Ask::Grant),
        ask(2, Ask::Grant),
        ask(3, Ask::Ticket),
        ask(4, Ask::Release(SlabId(2))),
        ask(5, Ask::Ping),
        ask(6, Ask::Window),
        ask(7, Ask::DropWindow(Key::window(0, 0))),
        ask(8, Ask::Who(3)),
        ask(9, Ask::Figure(Figure::InUse)),
        ask(10, Ask::EndRun([0; 16])),
        ask(11, Ask::Unit(Key::unit(2, 0, 2), 0)),
        ask(12, Ask::Expose(SlabId(1))),
        ask(13, Ask::ExposeWindow(Key::window(0, 1), 0)),
        ask(14, Ask::Region(region, true)),
        ask(15, Ask::RegionGrow(region, 0)),
        ask(16, Ask::RegionSlab(region, 0)),
        ask(17, Ask::RegionAt(0)),
        ask(18, Ask::RegionExpel(region, 7)),
        ask(19, Ask::RegionOpener(region, 0)),
        ask(20, Ask::RegionRemoveUnused(region)),
        ask(21, Ask::RegionRemove(region)),
        ask(22, Ask::VolumeAt(0)),
        ask(23, Ask::Again(SlabId(1))),
        ask(24, Ask::Wanted),
        ask(25, Ask::Bye),
    ];
    let queue = [
        attach(3, incarnation),
        batch(0, &[(Op::Read, 2, 0, 4096), (Op::Write, 2, 8192, 5000), (Op::Read, 1, 0, 64)]),
        batch(3, &[(Op::Cas, 2, 0, 8), (Op::Faa, 2, 8, 8), (Op::Faa, 2, SLAB_BYTES - 4, 8)]),
        batch(
            6,
            &[(Op::Write, 1, 0, 64), (Op::Write, 2, SLAB_BYTES - 10, 20), (Op::Read, 2, u64::MAX, MAX_VERB_BYTES)],
        ),
    ];
    let records = [
        attach(3, incarnation),
        lines_batch(0, 2, &[(0, 1), (5, 0xF0F0), (16383, u64::MAX)]),
        lines_batch(1, 1, &[(0, u64::MAX)]),
        batch(2, &[(Op::Read, 2, 0, 64)]),
    ];
    let conditional = [
        attach(3, incarnation),
        lines_if_batch(0, 2, &[(0, 1), (5, 0xF0F0), (16383, u64::MAX)]),
        lines_if_batch(1, 2, &[(0, 1), (7, 3)]),
        lines_if_batch(2, 1, &[(0, u64::MAX)]),
        batch(3, &[(Op::Read, 2, 0, 64)]),
    ];
    vec![
        of_volume(incarnation),
        records.concat(),
        conditional.concat(),
        [vec![attach(3, incarnation)], of_units(nic().units.geometry())].concat().concat(),
        of_files(nic().units.geometry(), incarnation),
        of_superseded(incarnation),
        control.concat(),
        queue.concat(),
        hello(Purpose::Rejoin(known(3, incarnation))),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ]
}
