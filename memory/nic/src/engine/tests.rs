//! Attaching: when a connection may carry out verbs, and when it must not.

mod expelled;
mod proven;
mod spilled;

use super::turn::TURN_NS;
use super::*;
use crate::lending::{Backing, Lending};
use farmem_protocol::addr::{SLAB_BYTES, SlabId};
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::wire::{
    self, Answer, Ask, Batch, Completion, Greeting, Hello, Join, Known, Op, Purpose, Reply, Request, Status, Verb,
    Verdict, Welcome,
};
use farmem_protocol::wire::{Figure, Range};
use farmem_sys::sync::Lock;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

struct Node {
    nic: Nic,
    secret: [u8; 16],
    slab: SlabId,
    member: Arc<Member>,
}

impl Node {
    fn new() -> Node {
        let draw = AtomicU8::new(1);
        let nic =
            Nic::new(Lending::new(SLAB_BYTES, Backing::Small), move || [draw.fetch_add(1, Ordering::Relaxed); 16]);
        let mut control = Engine::new(Circumstances::default());
        let welcome = entered(&mut control, &nic, Purpose::Join(Join::default()));
        let Ok(Reply::Slab(slab)) = answered(&mut control, &nic, &Request::new(2, Ask::Grant)) else { panic!() };
        let member = nic.members().remove(0);
        // The control connection stands as long as nobody closes it.
        std::mem::forget(control);
        Node { nic, secret: welcome.secret, slab, member }
    }

    fn attach(&self, queue: u64) -> Vec<u8> {
        Hello::new(Purpose::Attach(self.known(), queue)).frame().as_bytes().to_vec()
    }
    fn known(&self) -> Known {
        Known { secret: self.secret, incarnation: self.nic.incarnation }
    }

    /// FAAs of 1 on the slab's first word.
    fn additions(&self, count: u16, first: u64) -> Vec<u8> {
        let verb = Verb {
            op: Op::Faa as u8,
            zero: [0; 3],
            len: 8.into(),
            key: Key::from(self.slab).0.into(),
            offset: 0.into(),
        };
        let bytes = (count as u32 * 8).into();
        let batch = Batch { count: count.into(), zero: 0.into(), bytes, first: first.into() };
        let mut all = batch.as_bytes().to_vec();
        (0..count).for_each(|_| all.extend(verb.as_bytes()));
        (0..count).for_each(|_| all.extend(1u64.to_le_bytes()));
        all
    }

    fn word(&self) -> u64 {
        self.member.slab(self.slab).unwrap().mapping.faa(0, 0).unwrap()
    }
    fn turn(&self, queue: u64) -> Arc<super::super::Turn> {
        self.member.presence.lock().queues[&queue].upgrade().unwrap()
    }
}

/// Says hello, and is welcome.
fn entered(engine: &mut Engine, nic: &Nic, purpose: Purpose) -> Welcome {
    pull(engine, nic, Hello::new(purpose).frame().as_bytes()).unwrap();
    let said = pushed(engine, nic);
    let (welcome, used) = welcomed(&said);
    assert_eq!(used, said.len());
    welcome
}

/// The Welcome at the front of what a node said, and its bytes.
fn welcomed(said: &[u8]) -> (Welcome, usize) {
    match Greeting::read(said) {
        Ok(Some((Greeting::Welcome(welcome), used))) => (welcome, used),
        other => panic!("{other:?}"),
    }
}

/// Feeds all bytes, as many at a time as there is room for. Returns the last result.
fn pull(engine: &mut Engine, nic: &Nic, bytes: &[u8]) -> Result<usize, Goodbye> {
    let mut rest = bytes;
    loop {
        let pulled = engine.pull(nic, 0, |parts| {
            let n = rest.len().min(parts[0].len());
            // SAFETY: the engine's own buffer.
            unsafe { parts[0].fill(0, &rest[..n]) };
            rest = &rest[n..];
            Ok(n)
        });
        if pulled.is_err() || rest.is_empty() {
            return pulled;
        }
    }
}

fn pushed(engine: &mut Engine, nic: &Nic) -> Vec<u8> {
    let mut out = Vec::new();
    let sent = engine.push(nic, |parts, _| {
        let len: usize = parts.iter().map(Part::len).sum();
        for part in parts {
            // SAFETY: the engine's own bytes, alive for the call.
            out.extend(unsafe { part.bytes() });
        }
        Ok(len)
    });
    sent.unwrap();
    out
}

/// Values that the FAAs found, behind a Welcome.
fn found(bytes: &[u8]) -> Vec<u64> {
    let done = bytes[welcomed(bytes).1..].chunks_exact(size_of::<Completion>());
    done.map(|one| Completion::read_from_bytes(one).unwrap().value.get()).collect()
}

#[test]
fn verbs_that_come_with_the_hello_are_carried_out_at_once() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    let bytes = [node.attach(7), node.additions(3, 0), node.additions(2, 3)].concat();
    pull(&mut engine, &node.nic, &bytes).unwrap();
    assert_eq!(found(&pushed(&mut engine, &node.nic)), [0, 1, 2, 3, 4]);
    assert_eq!(node.word(), 5);
}

/// Requests that take long end the turn, and are carried out in later ones, although nothing more
/// comes. A turn has one request at least.
#[test]
fn a_turn_ends_after_its_time_and_goes_on() {
    thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
    // Each look at the clock finds that time has passed.
    let clocks: [(fn() -> u64, usize); 2] =
        [(|| NOW.replace(NOW.get() + TURN_NS / 4), 4), (|| NOW.replace(NOW.get() + 5 * TURN_NS), 1)];
    for (clock, most) in clocks {
        let node = Node::new();
        let mut control = Engine::new(Circumstances::default());
        entered(&mut control, &node.nic, Purpose::Join(Join::default()));
        control.set_clocks(Clocks { time: clock, cpu: clock });
        let asked: Vec<u8> = (0..40).flat_map(|n| Request::new(n, Ask::Ping).frame().as_bytes().to_vec()).collect();
        pull(&mut control, &node.nic, &asked).unwrap();
        let (mut answers, mut turns) = (0, 0);
        loop {
            let said = pushed(&mut control, &node.nic);
            let (mut at, mut some) = (0, 0);
            while let Some((answer, used)) = Answer::read(&said[at..]).unwrap().filter(|_| at < said.len()) {
                assert_eq!(answer.number, answers);
                (at, some, answers) = (at + used, some + 1, answers + 1);
            }
            assert!((1..=most).contains(&some), "{some} in one turn");
            turns += 1;
            if !control.was_long() {
                break;
            }
            if answers < 40 {
                assert_eq!(control.pull(&node.nic, 0, |_| Err(Errno(libc::EAGAIN))), Ok(0));
            } else {
                control.pull(&node.nic, 0, |_| Err(Errno(libc::EAGAIN))).unwrap();
                break;
            }
        }
        assert!(answers == 40 && turns >= 40 / most as u64 && !control.was_long());
    }
}

#[test]
fn time_in_which_the_worker_does_not_run_ends_no_turn() {
    thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
    let node = Node::new();
    let mut control = Engine::new(Circumstances::default());
    entered(&mut control, &node.nic, Purpose::Join(Join::default()));
    // The machine does something else between any two looks.
    control.set_clocks(Clocks { time: || NOW.replace(NOW.get() + 5 * TURN_NS), cpu: || 7 });
    let asked: Vec<u8> = (0..40).flat_map(|n| Request::new(n, Ask::Ping).frame().as_bytes().to_vec()).collect();
    pull(&mut control, &node.nic, &asked).unwrap();
    let said = pushed(&mut control, &node.nic);
    let (mut at, mut answers) = (0, 0);
    while let Some((_, used)) = Answer::read(&said[at..]).unwrap().filter(|_| at < said.len()) {
        (at, answers) = (at + used, answers + 1);
    }
    assert!(answers == 40 && !control.was_long(), "{answers}");
}

#[test]
fn verbs_of_a_connection_whose_turn_is_over_are_not() {
    let node = Node::new();
    let (mut first, mut second) = (Engine::new(Circumstances::default()), Engine::new(Circumstances::default()));
    // Half of a verb has come when the next connection attaches.
    let verbs = node.additions(3, 0);
    pull(&mut first, &node.nic, &[&node.attach(7)[..], &verbs[..20]].concat()).unwrap();
    pull(&mut second, &node.nic, &[node.attach(7), node.additions(1, 0)].concat()).unwrap();
    assert_eq!(pull(&mut first, &node.nic, &verbs[20..]), Err(Goodbye::Done));
    assert_eq!((found(&pushed(&mut second, &node.nic)), node.word()), (vec![0], 1));
}

/// Verbs that came with a Hello wait for the turn as all do. The connection that has it carries out
/// its own first, and sees no effect of theirs until then.
#[test]
fn verbs_that_come_with_the_hello_wait_for_the_turn() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let turn = node.turn(7);
    let (done, node) = (AtomicBool::new(false), &node);
    std::thread::scope(|scope| {
        let held = turn.0.lock();
        scope.spawn(|| {
            let mut next = Engine::new(Circumstances::default());
            pull(&mut next, &node.nic, &[node.attach(7), node.additions(1, 0)].concat()).unwrap();
            done.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst) && node.word() == 0, "carried out beside the one whose turn it was");
        drop(held);
    });
    assert_eq!((done.into_inner(), node.word()), (true, 1));
}

/// The holder of the turn may wait until all sections are over (an INVALIDATE does). An Attach that
/// waits for that turn is in no section, or both would wait for good.
#[test]
fn an_attach_waits_for_its_turn_in_no_section() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let turn = node.turn(7);
    let node = &node;
    std::thread::scope(|scope| {
        let held: farmem_sys::sync::Held<'_, u64> = Lock::lock(&turn.0);
        scope.spawn(|| {
            let mut next = Engine::new(Circumstances::default());
            pull(&mut next, &node.nic, &node.attach(7)).unwrap();
        });
        std::thread::sleep(Duration::from_millis(50));
        let (revoked, begun) = (node.nic.epochs.now(), Instant::now());
        let mut over = false;
        while !over && begun.elapsed() < Duration::from_secs(10) {
            over = node.nic.epochs.is_over(revoked);
        }
        // Before the verdict, so that a failure is one, and no hang.
        drop(held);
        assert!(over, "an Attach that waits for its turn holds up everybody's revocations");
    });
}

/// The memory that a member holds, and the first word of its slab.
#[derive(Debug, PartialEq)]
struct Holding {
    members: usize,
    slabs: Vec<SlabId>,
    windows: (u64, u64),
    word: Option<u64>,
}

impl Node {
    fn rejoin(&self) -> Engine {
        let mut engine = Engine::new(Circumstances::default());
        entered(&mut engine, &self.nic, Purpose::Rejoin(self.known()));
        engine
    }

    fn holding(&self) -> Holding {
        let slabs = self.member.holds.lock().slabs.keys().copied().collect();
        let word = self.member.slab(self.slab).map(|slab| slab.mapping.faa(0, 0).unwrap());
        Holding { members: self.nic.members().len(), slabs, windows: self.nic.windows.count(), word }
    }
}

fn index(key: Key) -> u32 {
    match key.kind() {
        KeyKind::Window { index, .. } => index,
        other => panic!("{other:?}"),
    }
}

fn answered(engine: &mut Engine, nic: &Nic, request: &Request) -> Result<Reply, wire::Refused> {
    pull(engine, nic, request.frame().as_bytes()).unwrap();
    let (answer, _) = Answer::read(&pushed(engine, nic)).unwrap().unwrap();
    assert_eq!(answer.number, request.number);
    answer.result
}

fn window(engine: &mut Engine, nic: &Nic, number: u64) -> Key {
    match answered(engine, nic, &Request::new(number, Ask::Window)) {
        Ok(Reply::Window(key)) => key,
        other => panic!("{other:?}"),
    }
}

/// A request is on its way when the connection is cut. The member dials again, has it carried out
/// there, and goes on. The request's target may be something else by the time the old copy comes.
#[test]
fn requests_of_a_control_connection_that_was_superseded_are_not_carried_out() {
    // Every ask, of the member's slab, of a window of its, of its run.
    let asks = |slab: SlabId, window: Key| {
        let region = "region".parse().unwrap();
        let range = Range { slab, offset: 0, len: 4096 };
        [
            Ask::Grant,
            Ask::Release(slab),
            Ask::Ticket,
            Ask::EndRun([0; 16]),
            Ask::Bye,
            Ask::Discard(range),
            Ask::Back(range),
            Ask::Window,
            Ask::DropWindow(window),
            Ask::Unit(Key(slab.0), 1),
            Ask::Again(slab),
            Ask::Expose(slab),
            Ask::ExposeWindow(window, 0),
            Ask::Ping,
            Ask::Who(1),
            Ask::Figure(Figure::InUse),
            Ask::Region(region, true),
            Ask::RegionSlab(region, 0),
            Ask::RegionGrow(region, 0),
            Ask::RegionRemove(region),
            Ask::RegionExpel(region, 1),
            Ask::Wanted,
            Ask::RegionAt(0),
            Ask::RegionOpener(region, 0),
            Ask::RegionRemoveUnused(region),
        ]
    };
    for which in 0..asks(SlabId(0), Key(0)).len() {
        // Not at all, in part, or nearly whole it had come when the next connection did.
        for there in 0..3 {
            let node = Node::new();
            let mut first = node.rejoin();
            let window_before = window(&mut first, &node.nic, 3);
            let ask = asks(node.slab, window_before)[which];
            let late = Request::new(4, ask);
            let frame = late.frame();
            let (early, rest) = frame.as_bytes().split_at([0, 1, frame.as_bytes().len() - 1][there]);
            if !early.is_empty() {
                pull(&mut first, &node.nic, early).unwrap();
            }

            let mut second = node.rejoin();
            if let Ask::DropWindow(_) = ask {
                answered(&mut second, &node.nic, &late).unwrap();
                let again = window(&mut second, &node.nic, 5);
                assert_eq!(index(window_before), index(again), "the index again");
            }
            answered(&mut second, &node.nic, &Request::new(6, Ask::Ping)).unwrap();
            node.member.slab(node.slab).unwrap().mapping.faa(0, 7).unwrap();
            let before = node.holding();
            let pulled = pull(&mut first, &node.nic, rest);
            assert_eq!((pulled, node.holding()), (Err(Goodbye::Done), before), "{ask:?}");
            assert_eq!(pushed(&mut first, &node.nic), [], "{ask:?}");
            first.close(&node.nic, Goodbye::Done, 0);
            assert!(!node.member.is_gone());
            answered(&mut second, &node.nic, &Request::new(7, Ask::Ping)).unwrap();
        }
    }
}

/// A request that is repeated under its number has the same answer, byte for byte, and is carried
/// out once.
#[test]
fn a_repeated_request_is_answered_and_not_carried_out() {
    let node = Node::new();
    let mut engine = node.rejoin();
    let grant = Request::new(3, Ask::Window).frame();
    pull(&mut engine, &node.nic, grant.as_bytes()).unwrap();
    let said = pushed(&mut engine, &node.nic);
    let before = node.holding();
    let mut second = node.rejoin();
    pull(&mut second, &node.nic, grant.as_bytes()).unwrap();
    assert_eq!((pushed(&mut second, &node.nic), node.holding()), (said, before));
}

/// A Hello byte by byte: as long as a Hello may be, and no longer.
#[test]
fn a_stranger_may_send_one_hello_and_no_more() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    let mut bytes = Hello::new(Purpose::Join(Join::default())).frame().as_bytes()[..8].to_vec();
    bytes.extend(1024u16.to_le_bytes());
    bytes.extend([0xFF; 1024]);
    for byte in &bytes[..bytes.len() - 1] {
        assert_eq!(pull(&mut engine, &node.nic, &[*byte]), Ok(1));
        assert!(engine.is_stranger() && engine.input.len() == MAX_HELLO);
    }
    pull(&mut engine, &node.nic, &[0xFF]).unwrap();
    assert_eq!(refused(&mut engine, &node.nic), Verdict::Malformed);
    // One that says it will be longer is not waited for.
    let mut engine = Engine::new(Circumstances::default());
    bytes[8..10].copy_from_slice(&1025u16.to_le_bytes());
    pull(&mut engine, &node.nic, &bytes[..10]).unwrap();
    assert_eq!(refused(&mut engine, &node.nic), Verdict::Malformed);
}

fn refused(engine: &mut Engine, nic: &Nic) -> Verdict {
    let mut out = Vec::new();
    let pushed = engine.push(nic, |parts, _| {
        // SAFETY: the engine's own bytes, alive for the call.
        parts.iter().for_each(|part| out.extend(unsafe { part.bytes() }));
        Ok(out.len())
    });
    match (pushed, Greeting::read(&out)) {
        (Err(Goodbye::Done), Ok(Some((Greeting::Refused(verdict), _)))) => verdict,
        other => panic!("{other:?}"),
    }
}

/// A member that dials again while the node is carrying out its request waits for that: the
/// repeated request must be known by then.
#[test]
fn who_dials_anew_waits_for_the_request_that_is_being_carried_out() {
    let node = Node::new();
    let mut first = node.rejoin();
    let done = AtomicBool::new(false);
    let node = &node;
    std::thread::scope(|scope| {
        // An INVALIDATE or a DropWindow waits for sections to end: this one does not, as yet.
        let section = node.nic.epochs.enter(0);
        let dropping = Request::new(4, Ask::DropWindow(window(&mut first, &node.nic, 3)));
        let (first, done) = (&mut first, &done);
        scope.spawn(move || pull(first, &node.nic, dropping.frame().as_bytes()).unwrap());
        while node.nic.windows.count().0 > 0 {
            std::thread::yield_now();
        }
        let second = scope.spawn(move || {
            let mut second = node.rejoin();
            done.store(true, Ordering::SeqCst);
            answered(&mut second, &node.nic, &dropping)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!done.load(Ordering::SeqCst), "welcome while a request is being carried out");
        drop(section);
        assert_eq!(second.join().unwrap(), Ok(Reply::Done), "not carried out a second time");
    });
}

/// By a Unix socket's end a process is known to have ended, if no other of its stands.
#[test]
fn a_local_member_that_dialled_anew_outlives_its_older_connection() {
    let node = Node::new();
    let local = || Engine::new(Circumstances { local: true, ..Circumstances::default() });
    let mut first = local();
    let secret = entered(&mut first, &node.nic, Purpose::Join(Join::default())).secret;
    let mut second = local();
    let again = Purpose::Rejoin(Known { secret, ..node.known() });
    entered(&mut second, &node.nic, again);
    first.close(&node.nic, Goodbye::Cut, 0);
    assert_eq!(node.nic.members().len(), 2, "its process lives");
    second.close(&node.nic, Goodbye::Cut, 0);
    assert_eq!(node.nic.members().len(), 1);
}

/// The later connection ends first (a child's, say, that dialled for itself), and then the earlier
/// is used, by a process that knows of no other: the node closes it, which says nothing of the
/// process.
#[test]
fn a_local_member_outlives_a_superseded_connection_that_the_node_closes() {
    let node = Node::new();
    let local = || Engine::new(Circumstances { local: true, ..Circumstances::default() });
    let mut first = local();
    let secret = entered(&mut first, &node.nic, Purpose::Join(Join::default())).secret;
    let again = Purpose::Rejoin(Known { secret, ..node.known() });
    let mut second = local();
    entered(&mut second, &node.nic, again);
    second.close(&node.nic, Goodbye::Cut, 0);
    let why = pull(&mut first, &node.nic, Request::new(1, Ask::Grant).frame().as_bytes()).unwrap_err();
    first.close(&node.nic, why, 0);
    let mut third = local();
    entered(&mut third, &node.nic, again);
    third.close(&node.nic, Goodbye::Cut, 0);
    assert_eq!(node.nic.members().len(), 1, "its process has ended");
}

/// Answers that wait for a peer which takes nothing are bounded in memory, not only in bytes to
/// send: of a READ of one byte most is the node's record of it.
#[test]
fn small_reads_that_nobody_takes_are_few() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let pieces = pieces_until_it_waits(&mut engine, &node);
    assert!(pieces <= output::LARGE.pieces + 2, "{pieces} pieces of output");
    // And all of it is right in the end.
    let said = pushed(&mut engine, &node.nic);
    let went = (said.len() - welcomed(&said).1) / (size_of::<Completion>() + 1);
    assert!(went > output::LARGE.pieces / 2 - 128 && !engine.is_backed_up(), "{went}");
}

/// Much output may wait on a few connections at once; where those places are taken, little may.
#[test]
fn who_finds_no_room_for_much_output_has_a_little() {
    let node = Node::new();
    let strangers: Vec<_> = (0..=255u8).map(|n| Peer::V4([10, 0, 0, n])).collect();
    let taken: Vec<_> = (0..1024).filter_map(|n| node.nic.roomy.take(By::Peer(strangers[n % 256])).ok()).collect();
    assert_eq!(taken.len(), 1024);
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    let first = pieces_until_it_waits(&mut engine, &node);
    assert!(first <= output::SMALL.pieces + 2, "{first}");
    drop(taken);
    // It goes on, with room by now.
    pushed(&mut engine, &node.nic);
    assert!(!engine.is_backed_up());
    let mut other = Engine::new(Circumstances::default());
    pull(&mut other, &node.nic, &node.attach(8)).unwrap();
    let second = pieces_until_it_waits(&mut other, &node);
    assert!(second > output::SMALL.pieces * 2 && node.nic.roomy.taken() == 1, "{second}");
    pushed(&mut other, &node.nic);
    assert_eq!(node.nic.roomy.taken(), 0);
}

/// READs of a byte until input waits for output. Pieces that wait then.
fn pieces_until_it_waits(engine: &mut Engine, node: &Node) -> usize {
    let verb =
        Verb { op: Op::Read as u8, zero: [0; 3], len: 1.into(), key: Key::from(node.slab).0.into(), offset: 0.into() };
    let mut first = 0u64;
    while !engine.is_backed_up() {
        let batch = Batch { count: 128.into(), zero: 0.into(), bytes: 0.into(), first: first.into() };
        let bytes = [batch.as_bytes(), verb.as_bytes().repeat(128).as_slice()].concat();
        pull(engine, &node.nic, &bytes).unwrap();
        first += 128;
    }
    engine.output.pieces()
}

/// Many words are read as they go, some at a time; and each of them whole, however the socket takes
/// them.
#[test]
fn a_long_read_of_words_takes_little_memory() {
    let node = Node::new();
    let mut engine = Engine::new(Circumstances::default());
    pull(&mut engine, &node.nic, &node.attach(7)).unwrap();
    pushed(&mut engine, &node.nic);
    let len = node.nic.units.geometry().table_bytes().min(1 << 20) as u32 & !7;
    let verb = Verb { op: Op::Read as u8, zero: [0; 3], len: len.into(), key: Key::WORDS.0.into(), offset: 0.into() };
    let batch = Batch { count: 1.into(), zero: 0.into(), bytes: 0.into(), first: 0.into() };
    pull(&mut engine, &node.nic, &[batch.as_bytes(), verb.as_bytes()].concat()).unwrap();
    let mut out: Vec<u8> = Vec::new();
    while engine.has_output() {
        let mut sent = false;
        let pushed = engine.push(&node.nic, |parts, _| {
            // A socket that takes an odd number of bytes, and then none for a while.
            if std::mem::replace(&mut sent, true) {
                return Err(Errno(libc::EAGAIN));
            }
            let before = out.len();
            // SAFETY: the engine's own bytes, alive for the call.
            parts.iter().for_each(|part| out.extend(unsafe { part.bytes() }));
            out.truncate(before + 7777);
            Ok(out.len() - before)
        });
        pushed.unwrap();
        assert!(engine.output.own_bytes() < 64 << 10);
    }
    let mut words = Vec::new();
    node.nic.units.words.read_into(0, len as usize, &mut words);
    assert!(len > 100_000 && out[size_of::<Completion>()..] == words, "{} of {len}", out.len());
}
