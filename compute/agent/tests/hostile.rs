//! Applications that lie: by hand, through the words of a desk, as no library does.
//!
//! Every one of them has a bystander, an honest program of the same user, which
//! must not notice anything.

mod common;

use common::liar::Liar;
use common::{Host, be_agent, child, within};
use farmem_agent::client::{AllocError, Chunk, Client};
use farmem_agent::hello::{Declaration, Entry, Hello, MAGIC};
use farmem_agent::word::{BlockId, Piece, Up};
use farmem_protocol::random::Random;
use farmem_sys::{shared, socket};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Not a test: what this binary does as a child.
#[test]
fn a_child() {
    if let Some(words) = child() {
        be_agent(&words);
    }
}

/// An honest program, at work before and after.
struct Bystander(Client, Vec<Chunk>);

impl Bystander {
    fn new(host: &Host) -> Bystander {
        let client = host.client();
        let chunks = (0..300).map(|_| client.alloc(0).unwrap()).collect();
        Bystander(client, chunks)
    }

    fn checks_out(self) {
        let Bystander(client, chunks) = self;
        chunks.into_iter().for_each(|chunk| client.free(chunk));
        let works = || {
            let begun = Instant::now();
            for order in 0..=9 {
                let chunk = client.alloc(order).unwrap();
                client.free(chunk);
            }
            begun.elapsed()
        };
        // A machine that is busy with other things may slow it down, too, but not most times.
        let mut took: Vec<Duration> = (0..5).map(|_| works()).collect();
        took.sort_unstable();
        assert!(took[2] <= Duration::from_secs(2), "slowed to {took:?}");
        assert_eq!(client.counts().again, 0);
    }
}

const NOT_HELD: u32 = 1;
const NONSENSE: u32 = 2;
const POSITIONS: u32 = 3;
const UNREAD: u32 = 4;

#[test]
fn who_frees_what_it_does_not_hold_is_shown_out() {
    let mut host = Host::new(512);
    host.agent("");
    let mut victim = Liar::new(&host);
    let theirs = victim.chunk();
    let bystander = Bystander::new(&host);
    let lies: [&dyn Fn(Piece) -> Up; 6] = [
        &|_| Up::Free(theirs),
        &|own| Up::Free(Piece { first: own.first + 1, ..own }),
        &|own| Up::Free(Piece { first: 0, order: 9, ..own }),
        &|own| Up::FreeRun(own.block, 2),
        &|_| Up::Free(Piece { block: BlockId(12345), first: 0, order: 0 }),
        &|_| Up::Map(theirs.block),
    ];
    for lie in lies {
        let mut liar = Liar::new(&host);
        let own = liar.chunk();
        liar.say(lie(own).bits());
        assert_eq!(liar.verdict(), NOT_HELD);
    }
    // Twice the same.
    let mut liar = Liar::new(&host);
    let own = liar.chunk();
    liar.say(Up::Free(own).bits());
    liar.say(Up::Free(own).bits());
    assert_eq!(liar.verdict(), NOT_HELD);
    // The victim has what it had.
    victim.say(Up::Free(theirs).bits());
    victim.chunk();
    bystander.checks_out();
}

#[test]
fn words_without_a_meaning_and_positions_that_cannot_be() {
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    for nonsense in [0, u64::MAX, 7 << 60, 8 << 60, Up::Want { order: 3, count: 1 }.bits() | 1, 0x2000_0000_0000_0000] {
        let mut liar = Liar::new(&host);
        liar.say(nonsense);
        assert_eq!(liar.verdict(), NONSENSE, "{nonsense:x}");
    }
    for tail in [513, u32::MAX, 1 << 31] {
        let liar = Liar::new(&host);
        liar.desk.up().tail.store(tail, SeqCst);
        shared::futex_wake(liar.desk.up().tail);
        assert_eq!(liar.verdict(), POSITIONS);
    }
    let mut liar = Liar::new(&host);
    liar.desk.down().head.store(77, SeqCst);
    liar.say(Up::Want { order: 0, count: 1 }.bits());
    assert_eq!(liar.verdict(), POSITIONS);
    bystander.checks_out();
}

#[test]
fn who_does_not_read_its_answers_is_shown_out() {
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    let mut liar = Liar::new(&host);
    for _ in 0..600 {
        if socket::is_cut(liar.stream.as_raw_fd()) {
            break;
        }
        liar.say(Up::Want { order: 0, count: 1 }.bits());
        std::thread::sleep(Duration::from_micros(200));
        // No more than the ring holds, however late its clerk comes.
        let waiting = |liar: &Liar| liar.tail.wrapping_sub(liar.desk.up().head.load(SeqCst));
        within("its words are taken", || waiting(&liar) < 500 || socket::is_cut(liar.stream.as_raw_fd()));
    }
    assert_eq!(liar.verdict(), UNREAD);
    bystander.checks_out();
}

/// Ends a crowd, also if the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Programs that connect without end keep the door full. The agent does its other work all the same, and serves.
#[test]
fn a_crowd_at_the_door_keeps_the_agent_from_nothing() {
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    let (over, report) = (AtomicBool::new(false), host.dir.join("agent.report"));
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    drop(UnixStream::connect(host.socket()));
                }
            });
        }
        // It writes this whenever it tends.
        for _ in 0..4 {
            let _ = std::fs::remove_file(&report);
            within("the agent tends", || report.exists());
        }
        bystander.checks_out();
    });
    Bystander::new(&host).checks_out();
}

/// The kernel bounds the descriptors that are under way for all programs of a user.
#[test]
fn who_takes_no_descriptors_is_shown_out() {
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    let mut liar = Liar::new(&host);
    let own = liar.chunk();
    for _ in 0..64 {
        liar.say(Up::Map(own.block).bits());
    }
    assert_eq!(liar.verdict(), UNREAD);
    bystander.checks_out();
}

/// A flood of sound requests: the flooder's own clerk is busy, and others are served.
#[test]
fn a_flood_is_served_and_others_too() {
    let mut host = Host::new(512);
    host.agent("");
    let flooder = host.client();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let held: Vec<Chunk> = (0..9).map(|order| flooder.alloc(order).unwrap()).collect();
                held.into_iter().for_each(|chunk| flooder.free(chunk));
                flooder.trim();
            }
        });
        for _ in 0..10 {
            Bystander::new(&host).checks_out();
        }
        stop.store(true, Relaxed);
    });
}

/// What a liar held is nobody's while its process may still write to it, and is charged to its
/// tenant.
#[test]
fn what_a_liar_mapped_is_kept_from_others_until_it_is_gone() {
    let mut host = Host::new(512);
    host.agent("quota=8");
    let mut liar = Liar::new(&host);
    liar.chunk();
    liar.say(0);
    assert_eq!(liar.verdict(), NONSENSE);
    // This process lives, and with it the liar's block: 3 of 4 blocks are left.
    let client = host.client();
    let held: Vec<Chunk> = (0..3).map(|_| client.alloc(9).unwrap()).collect();
    assert_eq!(client.alloc(9).unwrap_err(), AllocError::Quota);
    held.into_iter().for_each(|chunk| client.free(chunk));
}

#[test]
fn who_comes_again_must_be_known_and_right() {
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    let hello = Hello { magic: MAGIC, ..Hello::new_zeroed() };
    let refused = |hello: Hello, declared: &[Declaration]| Liar::greeting(&host, hello, declared).err();
    assert_eq!(refused(Hello { again: 1, token: [3; 16], ..hello }, &[]), Some(Some(Entry::Unknown)));
    assert_eq!(refused(Hello { again: 2, ..hello }, &[]), Some(Some(Entry::Malformed)));
    assert_eq!(refused(Hello { declared: u32::MAX, again: 1, ..hello }, &[]), Some(Some(Entry::Malformed)));
    assert_eq!(refused(Hello { declared: 1, ..hello }, &[]), Some(Some(Entry::Malformed)));
    assert_eq!(refused(Hello { magic: [0; 8], ..hello }, &[]), Some(Some(Entry::Malformed)));
    assert_eq!(refused(Hello { job: [0xFF; 32], ..hello }, &[]), Some(Some(Entry::Malformed)));
    // An operator's terminal would obey it.
    let mut job = [0; 32];
    job[..4].copy_from_slice(b"\x1b[2J");
    assert_eq!(refused(Hello { job, ..hello }, &[]), Some(Some(Entry::Malformed)));
    // While it is here, nobody else is it, though he knew its token.
    let mut liar = Liar::new(&host);
    let own = liar.chunk();
    assert_eq!(refused(Hello { again: 1, token: liar.token, ..hello }, &[]), Some(Some(Entry::Unknown)));
    // After the agent's restart: what it declares must be what it has.
    let token = liar.token;
    host.kill_agent();
    host.agent("");
    let refused = |declared: &[Declaration]| {
        Liar::greeting(&host, Hello { again: 1, declared: declared.len() as u32, token, ..hello }, declared).err()
    };
    let honest = Declaration { block: own.block.0, blocks: 1, map: [1 << own.first, 0, 0, 0, 0, 0, 0, 0] };
    for lie in [
        Declaration { map: [u64::MAX; 8], ..honest },
        Declaration { block: own.block.0 + 1, ..honest },
        Declaration { blocks: 2, ..honest },
        Declaration { blocks: u32::MAX, block: u32::MAX, ..honest },
    ] {
        assert_eq!(refused(&[lie]), Some(Some(Entry::NotHeld)));
    }
    assert_eq!(refused(&[honest, honest]), Some(Some(Entry::NotHeld)));
    assert_eq!(refused(&[honest]), None);
    drop(bystander);
}

/// Of strangers that say nothing the oldest gives way to each newcomer.
#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let mut host = Host::new(512);
    host.agent("");
    let strangers: Vec<UnixStream> = (0..200).filter_map(|_| UnixStream::connect(host.socket()).ok()).collect();
    let begun = Instant::now();
    let client = host.client();
    // A stranger is heard for two seconds: a program that had to wait for one would take as long.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    drop((client, strangers));
    Bystander::new(&host).checks_out();
}

/// Declarations by a token that nobody has are not kept while they come.
#[test]
fn words_of_strangers_take_no_memory() {
    const DECLARED: usize = 60_000;
    let mut host = Host::new(512);
    host.agent("");
    let bystander = Bystander::new(&host);
    let status = format!("/proc/{}/status", host.agent_pid());
    let resident_kib = || {
        let status = std::fs::read_to_string(&status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let hello = Hello { magic: MAGIC, again: 1, declared: DECLARED as u32, token: [3; 16], ..Hello::new_zeroed() };
    let before = resident_kib();
    let strangers: Vec<_> = (0..8)
        .map(|_| {
            let mut stream = UnixStream::connect(host.socket()).unwrap();
            std::thread::spawn(move || {
                let declarations = vec![0; (DECLARED - 1) * size_of::<Declaration>()];
                // (A busy machine's agent may lose its patience before all of it has come.)
                let _ = stream.write_all(hello.as_bytes()).and_then(|()| stream.write_all(&declarations));
                stream
            })
        })
        .collect();
    let streams: Vec<UnixStream> = strangers.into_iter().map(|stranger| stranger.join().unwrap()).collect();
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB for what eight strangers of 4 MiB say");
    drop(streams);
    bystander.checks_out();
}

/// A stranger that says a byte at a time has as long as any other.
#[test]
fn a_stranger_that_says_a_byte_at_a_time_is_not_heard_for_ever() {
    let mut host = Host::new(512);
    host.agent("");
    let (mut stranger, begun) = (UnixStream::connect(host.socket()).unwrap(), Instant::now());
    // A Hello has 80 bytes, which take eight seconds so.
    while stranger.write_all(&[MAGIC[0]]).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(6), "it is heard still");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whatever a desk holds, by a seed: the agent lives and serves others. 120 seeds, or for
/// `FARMEM_FUZZ_SECONDS`, from `FARMEM_FUZZ_SEED` on.
#[test]
fn any_words_at_all() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let (begun, from) = (Instant::now(), number("FARMEM_FUZZ_SEED").unwrap_or(0) << 32);
    let goes_on = |first: u64| match number("FARMEM_FUZZ_SECONDS") {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => first < from + 120,
    };
    // A desk that was shown out keeps its place as long as its process lives, and all are this
    // one's: some at a time.
    for first in (from..).step_by(100).take_while(|&first| goes_on(first)) {
        let mut host = Host::new(512);
        host.agent("");
        let bystander = Bystander::new(&host);
        (first..first + 100).filter(|&seed| goes_on(seed)).for_each(|seed| write_anything(&host, seed));
        bystander.checks_out();
        assert!(std::path::Path::new(&format!("/proc/{}", host.agent_pid())).exists());
    }
}

fn write_anything(host: &Host, seed: u64) {
    let mut random = Random::new(seed);
    let mut draw = |below: u64| random.below(below);
    let mut liar = Liar::new(host);
    let own = liar.chunk();
    for _ in 0..40 {
        match draw(12) {
            // Mostly what is nearly right, so that it gets far.
            0..=4 => {
                let first = (draw(512) >> 2) as u16;
                let piece = Piece { block: own.block, first: if draw(3) == 0 { first } else { own.first }, order: 0 };
                let order = draw(10) as u8;
                let words = [
                    Up::Free(piece),
                    Up::Want { order, count: draw(6) as u32 + 1 },
                    Up::Run(draw(4) as u32 + 1),
                    Up::Map(own.block),
                ];
                liar.say(words[draw(4) as usize].bits());
            }
            5 => liar.say((draw(8)) << 60 | draw(1 << 12) << 48 | draw(1 << 31)),
            6 => liar.desk.up().tail.store(draw(1 << 31) as u32, SeqCst),
            7 => liar.desk.down().head.store(draw(600) as u32, SeqCst),
            8 => liar.desk.up().head.store(draw(1 << 31) as u32, SeqCst),
            9 => liar.desk.down().tail.store(draw(1 << 31) as u32, SeqCst),
            10 => liar.desk.up().sleeping.store(draw(3) as u32, SeqCst),
            _ => liar.desk.up().entries[draw(512) as usize].store(draw(u64::MAX), SeqCst),
        }
        if draw(4) == 0 {
            shared::futex_wake(liar.desk.up().tail);
        }
        if draw(40) == 0 {
            let _ = liar.stream.write_all(b"what?");
        }
    }
}
