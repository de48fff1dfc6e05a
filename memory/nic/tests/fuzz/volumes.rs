//! Hostile streams of one swap volume beside another one.
//!
//! Requests are made by a seed, most of them whole, so that they get further than mutated
//! conversations do: several streams, turns that change within a request, sizes and offsets at
//! every edge, marks and freed slots, compaction meanwhile. Then the other volume has its bytes,
//! answers have NBD's form, the words of units agree with the records, and all memory comes back.

use crate::frames::{hello, known};
use crate::wire::{Wire, nic, secret};
use farmem_nic::Nic;
use farmem_nic::engine::Goodbye;
use farmem_protocol::extent::check::recount;
use farmem_protocol::nbd::{Asked, Command, MAX_BYTES, MAX_FREED_BYTES, PAGE, REPLY_MAGIC, Report};
use farmem_protocol::random::Random;
use farmem_protocol::wire::{Greeting, NewVolume, Purpose};
use farmem_sys::raw::thread_cpu_ns;
use zerocopy::IntoBytes;

/// Bytes of the attacked volume. The last block is not whole.
const SIZE: u64 = (5 << 20) + 3 * PAGE;
const HOSTILE: u64 = 77;
const VICTIM: u64 = 78;
/// Streams of one attack, at most. More than a volume may have.
const STREAMS: usize = 20;

/// A stream of the attacker's.
struct Hostile<'a> {
    wire: Wire<'a>,
    /// Nothing but whole requests went out on it.
    in_step: bool,
}

fn open<'a>(nic: &'a Nic, purpose: Purpose) -> Wire<'a> {
    let mut wire = Wire::new(nic);
    wire.feed(&hello(purpose), 1000, 1);
    wire
}

fn new_volume(id: u64, size: u64, overcommit: bool) -> Purpose {
    Purpose::NewVolume(NewVolume { id: secret(id), size, kept_ms: 1000, overcommit, ..NewVolume::default() })
}

/// One page of many bytes, one that is a repeated word, one far behind.
fn victims_pages() -> [(u64, Vec<u8>); 3] {
    let many = (0..PAGE).map(|i| (i * 7 / 3) as u8).collect();
    [(0, many), (PAGE, vec![9; PAGE as usize]), (3 << 20, (0..PAGE).map(|i| (i / 5) as u8).collect())]
}

fn offset(random: &mut Random) -> u64 {
    let near =
        [0, PAGE, 511 * PAGE, 2 << 20, (2 << 20) - PAGE, SIZE - PAGE, SIZE, SIZE + PAGE, 1 << 32, u64::MAX - PAGE + 1];
    match random.index(8) {
        0 => random.bits(),
        1 => near[random.index(near.len())] + random.index(3) as u64,
        2 | 3 => near[random.index(near.len())],
        _ => random.index((SIZE / PAGE) as usize) as u64 * PAGE,
    }
}

fn length(random: &mut Random) -> u32 {
    let page = PAGE as u32;
    let some = [0, 1, page - 1, page, 2 * page, 9 * page, 2 << 20, SIZE as u32, MAX_BYTES, MAX_BYTES + page, u32::MAX];
    if random.index(3) == 0 { some[random.index(some.len())] } else { (1 + random.index(6)) as u32 * page }
}

/// A request with its bytes, and whether they are as many as it names.
fn request(random: &mut Random) -> (Vec<u8>, bool) {
    use Command::{Disconnect, Flush, Free, Freed, Mark, Read, Report as Ask, Trim, Write, Zero};
    let all = [Read, Read, Write, Write, Write, Trim, Zero, Flush, Ask, Mark, Freed, Freed, Disconnect, Free];
    // An attack goes on after most requests: the last two end a stream, and the volume.
    let kinds = if random.index(16) == 0 { all.len() } else { all.len() - 2 };
    let command = all[random.index(kinds)];
    let (mut at, mut named) = (offset(random), length(random));
    let mut body = Vec::new();
    match command {
        Write => body = (0..named.min(96 << 10)).map(|i| if named & 8192 == 0 { 3 } else { (i / 9) as u8 }).collect(),
        Freed => {
            at = [0, 1, 2, u64::MAX, random.index(200) as u64][random.index(5)];
            named = [8, 16, 24, 4, MAX_FREED_BYTES, MAX_FREED_BYTES + 8][random.index(6)];
            let slots = (SIZE / PAGE) as u32;
            let words = (0..named.min(512) / 4).map(|_| [0, 1, 64, slots - 1, slots, u32::MAX][random.index(6)]);
            body = words.flat_map(u32::to_be_bytes).collect();
        }
        _ => {}
    }
    // Bytes after an answer without an error.
    let follows = match command {
        Read => u64::from(named),
        Ask => size_of::<Report>() as u64,
        Mark => 8,
        _ => 0,
    };
    let whole = !matches!(command, Write | Freed) || body.len() == named as usize;
    let mut bytes = Asked::frame(command, follows, at, named).as_bytes().to_vec();
    bytes.extend(body);
    (bytes, whole)
}

/// Looks at the answers of a stream that was in step: heads where heads must be.
fn check_answers(said: &[u8]) {
    let (_, mut at) = Greeting::read(said).unwrap().expect("a whole greeting");
    while let Some(head) = said.get(at..at + 16) {
        let word = |from: usize| u32::from_be_bytes(head[from..from + 4].try_into().unwrap());
        assert_eq!(word(0), REPLY_MAGIC, "at {at} of {}", said.len());
        let follows = u64::from_be_bytes(head[8..].try_into().unwrap()) as usize;
        at += 16 + if word(4) == 0 { follows } else { 0 };
    }
}

/// Reads a page of the victim's.
fn read(wire: &mut Wire<'_>, at: u64) -> Vec<u8> {
    wire.said.clear();
    wire.feed(Asked::frame(Command::Read, 0, at, PAGE as u32).as_bytes(), 1000, 1);
    wire.said[16..].to_vec()
}

/// One attack. Returns how many answers it was given.
fn attack(random: &mut Random) -> usize {
    let nic = nic();
    let of = |id, data| Purpose::Volume(known(id, nic.incarnation), data);
    let mut asks = open(&nic, new_volume(VICTIM, 4 << 20, false));
    let mut victim = open(&nic, of(VICTIM, true));
    for (at, page) in victims_pages() {
        victim.feed(&[Asked::frame(Command::Write, 0, at, PAGE as u32).as_bytes(), &page].concat(), 5000, 1);
    }
    let mut streams =
        vec![Hostile { wire: open(&nic, new_volume(HOSTILE, SIZE, random.index(2) == 0)), in_step: true }];
    for _ in 0..10 + random.index(60) {
        if streams.len() < STREAMS && (streams.len() < 2 || random.index(6) == 0) {
            streams.push(Hostile { wire: open(&nic, of(HOSTILE, random.index(4) > 0)), in_step: true });
        }
        // Mostly one of the last, of which one has the turn.
        let on = streams.len() - 1 - random.index(streams.len()).min(random.index(3));
        let Hostile { wire, in_step } = &mut streams[on];
        let (mut bytes, whole) = request(random);
        let as_made = bytes.clone();
        *in_step &= whole;
        match random.index(24) {
            0 => bytes.truncate(random.index(bytes.len())),
            1 => {
                let at = random.index(bytes.len().min(40));
                bytes[at] = random.bits() as u8;
            }
            _ => {}
        }
        *in_step &= bytes == as_made;
        wire.feed(&bytes, 1 + random.index(9000), 1);
        assert!(nic.lent() <= nic.lending.limit());
        if random.index(3) == 0 {
            nic.keep(&|| 0);
        }
    }
    for (at, page) in victims_pages() {
        assert_eq!(read(&mut victim, at), page, "the victim's page at {at}");
    }
    assert_eq!(read(&mut victim, 2 * PAGE), vec![0; PAGE as usize], "a page that was never written");
    if random.index(16) == 0 {
        let counted = recount(nic.units.geometry(), &nic.units.words);
        assert!(counted.problems.is_empty() && counted.lost == 0, "{:?}", counted.problems);
    }
    let answers = streams.iter().map(|stream| stream.wire.said.len() / 16).sum();
    for Hostile { mut wire, in_step } in streams {
        if in_step {
            check_answers(&wire.said);
        }
        wire.close(Goodbye::Cut, 1);
    }
    asks.close(Goodbye::Cut, 1);
    victim.close(Goodbye::Cut, 1);
    nic.expire(4_000_000_000_000);
    for _ in 0..10_000 {
        if !nic.keep(&|| 0) && !nic.is_unkept() {
            break;
        }
    }
    assert!(nic.volumes.is_empty() && nic.units.promised() == 0);
    assert_eq!((nic.lent(), nic.members().len()), (0, 0), "all is given back");
    answers
}

#[test]
fn hostile_streams_leave_another_volume_its_bytes() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (seconds, seed) = (number("FARMEM_FUZZ_SECONDS", 2u64), number("FARMEM_FUZZ_SEED", 1u64));
    println!("FARMEM_FUZZ_SECONDS={seconds} FARMEM_FUZZ_SEED={seed}");
    let mut random = Random::new(seed);
    let (until, mut runs, mut answers) = (thread_cpu_ns() + seconds * 1_000_000_000, 0u64, 0);
    while thread_cpu_ns() < until || runs < 20 {
        answers += attack(&mut random);
        runs += 1;
    }
    println!("{runs} attacks, {answers} answers");
    // A test that is refused at the door would show nothing.
    assert!(answers as u64 > 10 * runs);
}
