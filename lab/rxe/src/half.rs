//! A WRITE of which half has come and the rest never will: whoever lent the memory gets it back all the same, soon, and
//! nobody else waits.
//!
//! ```text
//! holder  BIND ─────────────────────────────────────────── INVALIDATE ×2 ─► both answered: nothing can arrive now
//! user         ─► WRITE of 32 MiB ═══════════╡ stops             (by two queue pairs; one is too late, and refused)
//! somebody else                                            BIND, INVALIDATE, again and again
//! ```
//!
//! The user is no host of ours, whose WRITEs end: it speaks the protocol by itself. (soft-RoCE of Linux 6.1 judges each
//! packet by its key, and so does not wait; a card that does is played in `memory/nic/src/carved.rs`.)

// It plays the caller of READ and WRITE, and a host's side of RDMA.
#![allow(unsafe_code)]

use crate::revoked::{Said, is, join, one, read};
use farmem_fabric::{Bind, QueuePair, Refusal, Session};
use farmem_memory::Node;
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::{Key, Rights};
use farmem_protocol::wire::{
    Answer, Ask, Endpoint, Greeting, Hello, Join, Known, Purpose, Reply, Request, Status, Welcome,
};
use farmem_sys::verbs::{self, Device, Domain, RcQueue, Region, Work, WorkRequest};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Long enough to be stopped in its midst.
const BYTES: usize = 32 << 20;
/// The user's queue pair.
const QUEUE: u64 = 77;
/// How long anybody may wait, in a guest that is emulated and shares a machine. A card that waits for the rest of the
/// message would take for ever, or as long as its driver has patience: soft-RoCE's has 50 s.
const SOON: Duration = Duration::from_secs(15);

/// A member that ends nothing that it begins.
struct Rude {
    address: String,
    known: Known,
    owner: u16,
    control: TcpStream,
    asked: u64,
    domain: Arc<Domain>,
    buffer: Region,
    at: *mut u8,
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn get<T: FromZeros + FromBytes + IntoBytes>(stream: &mut TcpStream) -> Result<T, String> {
    let mut frame = T::new_zeroed();
    stream.read_exact(frame.as_mut_bytes()).map_err(text)?;
    Ok(frame)
}

/// Receives a frame of a length of its own, byte by byte.
fn receive<T, E>(stream: &mut TcpStream, read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>) -> Result<T, String> {
    let mut seen = Vec::new();
    loop {
        seen.push(get::<u8>(stream)?);
        if let Some((frame, _)) = read(&seen).map_err(|_| "a frame makes no sense")? {
            return Ok(frame);
        }
    }
}

fn enter(address: &str, hello: &Hello) -> Result<(TcpStream, Welcome), String> {
    let mut stream = TcpStream::connect(address).map_err(text)?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(text)?;
    stream.write_all(hello.frame().as_bytes()).map_err(text)?;
    match receive(&mut stream, Greeting::read)? {
        Greeting::Welcome(welcome) => Ok((stream, welcome)),
        other => Err(format!("refused: {other:?}")),
    }
}

impl Rude {
    fn new(address: &str, run: u8) -> Result<Rude, String> {
        let join = Join { run: [run; 16], grace_ms: 20_000, ..Join::default() };
        let (control, welcome) = enter(address, &Hello::new(Purpose::Join(join)))?;
        let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
        let domain = Device::open(None).map_err(text)?.domain().map_err(text)?;
        let at = farmem_sys::memory::reserve(BYTES).map_err(text)?;
        // SAFETY: mapped for good, and touched by raw writes only.
        let buffer = unsafe {
            at.write_bytes(0xEE, BYTES);
            domain.region(at, BYTES, verbs::Rights::Local).map_err(text)?
        };
        let owner = welcome.owner;
        Ok(Rude { address: address.into(), known, owner, control, asked: 0, domain, buffer, at })
    }

    /// A queue pair, and the stream by which it lives.
    fn wire(&self) -> Result<(TcpStream, RcQueue), String> {
        let (mut stream, _) = enter(&self.address, &Hello::new(Purpose::Wire(self.known, QUEUE)))?;
        let mut queue = RcQueue::new(&self.domain, 16, 0x4242).map_err(text)?;
        let own = queue.endpoint();
        let said = Endpoint {
            status: Status::Done as u8,
            mtu: own.mtu,
            lid: own.lid.into(),
            qpn: own.number.into(),
            psn: own.sequence.into(),
            gid: own.gid,
            ..Endpoint::refused(0)
        };
        stream.write_all(said.as_bytes()).map_err(text)?;
        let there: Endpoint = get(&mut stream)?;
        is("the node's end", there.status, Status::Done as u8)?;
        let (number, sequence) = (there.qpn.get(), there.psn.get());
        let peer = verbs::Endpoint { number, sequence, gid: there.gid, lid: there.lid.get(), mtu: there.mtu };
        queue.accept(&peer).map_err(text)?;
        Ok((stream, queue))
    }

    /// A window's key on the card, and where it begins there. `None`: the card did not bind it in time.
    fn expose(&mut self, key: Key) -> Result<Option<(u32, u64)>, String> {
        self.asked += 1;
        let request = Request::new(self.asked, Ask::ExposeWindow(key, QUEUE));
        self.control.write_all(request.frame().as_bytes()).map_err(text)?;
        Ok(match receive(&mut self.control, Answer::read)?.result {
            Ok(Reply::Exposed(rkey, base)) => Some((rkey, base.into())),
            _ => None,
        })
    }

    /// Begins a WRITE of everything and stops when its first bytes are there.
    fn half(
        &self,
        queue: &mut RcQueue,
        (rkey, offset): (u32, u64),
        begun: impl FnMut() -> Result<bool, String>,
    ) -> Said {
        let mut begun = begun;
        let work = Work::Write { from: self.at, lkey: self.buffer.lkey(), len: BYTES as u32, offset, rkey };
        // SAFETY: the buffer is mapped for good.
        unsafe { queue.post(&[WorkRequest { id: 1, told: true, work }]) }.map_err(|(_, e)| text(e))?;
        let until = Instant::now() + Duration::from_secs(60);
        while !begun()? {
            if Instant::now() > until {
                return Err("no byte of the WRITE has come".into());
            }
        }
        queue.break_off().map_err(text)
    }
}

fn bind(giver: &mut QueuePair, window: Key, range: &Bind) -> Result<Key, String> {
    giver.bind(3, window, range);
    one(giver)?.map(Key).map_err(|e| format!("BIND: {e:?}"))
}

fn invalidate(giver: &mut QueuePair, key: Key) -> Result<(Result<Key, Refusal>, Duration), String> {
    let begun = Instant::now();
    giver.invalidate(4, key);
    Ok((one(giver)?.map(Key), begun.elapsed()))
}

/// Binds and unbinds a window of its own until told to stop. Returns how often, and the longest that one took.
fn go_on(session: &Session, stop: &AtomicBool) -> Result<(u64, Duration), String> {
    let mut queue = session.queue_pair().map_err(text)?;
    let slab = session.grant().map_err(text)?.id;
    let mut window = session.window().map_err(text)?;
    let owner = session.owner();
    let range = Bind { parent: slab.into(), start: 0, len: 4096, rights: Rights::READ, owner, queue: None };
    let (mut n, mut longest) = (0, Duration::ZERO);
    while n < 3 || !stop.load(Ordering::Relaxed) {
        let key = bind(&mut queue, window, &range)?;
        let (free, took) = invalidate(&mut queue, key)?;
        window = free.map_err(|e| format!("INVALIDATE: {e:?}"))?;
        (n, longest) = (n + 1, longest.max(took));
    }
    Ok((n, longest))
}

/// A slab with half a WRITE on its way to it.
struct Begun {
    slab: SlabId,
    key: Key,
    stream: TcpStream,
    _user: Rude,
}

/// `window` is free again where this ends with `None`: the card was too slow to bind it, or too quick to be stopped.
fn begin(giver: &Session, node: &str, run: u8, window: &mut Key) -> Result<Option<Begun>, String> {
    let mut queue = giver.queue_pair().map_err(text)?;
    let slab = giver.grant().map_err(text)?.id;
    let mut user = Rude::new(node, run)?;
    let (stream, mut wire) = user.wire()?;
    let (rights, queued, len) = (Rights::READ.and(Rights::WRITE), Some(QUEUE), BYTES as u64);
    let range = Bind { parent: slab.into(), start: 0, len, rights, owner: user.owner, queue: queued };
    let key = bind(&mut queue, *window, &range)?;
    let mut byte = [0];
    if let Some(on_card) = user.expose(key)? {
        user.half(&mut wire, on_card, || {
            is("READ", read(&mut queue, slab.into(), 0, &mut byte)?, Ok(0))?;
            Ok(byte[0] == 0xEE)
        })?;
        is("READ", read(&mut queue, slab.into(), len - 1, &mut byte)?, Ok(0))?;
        if byte[0] == 0 {
            return Ok(Some(Begun { slab, key, stream, _user: user }));
        }
    }
    *window = invalidate(&mut queue, key)?.0.map_err(|e| format!("INVALIDATE: {e:?}"))?;
    giver.release(slab).map_err(text)?;
    Ok(None)
}

/// Once with the user's stream open and once with it closed, before the window is unbound; and a release instead.
pub fn hold(node: &Node) -> Said {
    let address = node.addresses()[0].to_string();
    let (giver, other) = (join(node, 21)?, join(node, 22)?);
    let (mut first, mut second) = (giver.queue_pair().map_err(text)?, giver.queue_pair().map_err(text)?);
    let mut window = giver.window().map_err(text)?;
    for (round, what) in ["its stream open", "its stream closed", "the slab released"].into_iter().enumerate() {
        let mut tries = 0..5;
        let begun = loop {
            let attempt = tries.next().ok_or("no WRITE could be stopped in its midst")?;
            if let Some(begun) = begin(&giver, &address, 23 + 5 * round as u8 + attempt, &mut window)? {
                break begun;
            }
        };
        let Begun { slab, key, stream, _user } = begun;

        let stop = AtomicBool::new(false);
        let begun = Instant::now();
        let (ended, others) = std::thread::scope(|scope| {
            let others = scope.spawn(|| go_on(&other, &stop));
            let ended = (|| match round {
                2 => giver.release(slab).map(|()| None).map_err(text),
                _ => {
                    if round == 1 {
                        drop(stream);
                    }
                    let late = scope.spawn(|| invalidate(&mut second, key));
                    let early = invalidate(&mut first, key)?;
                    let late = late.join().map_err(|_| "a thread ended")??;
                    Ok(Some([early, late]))
                }
            })();
            stop.store(true, Ordering::Relaxed);
            (ended, others.join())
        });
        let took = begun.elapsed();
        let (n, longest) = others.map_err(|_| "a thread ended")??;
        if let Some(answers) = ended? {
            let free: Vec<Key> = answers.iter().filter_map(|(answer, _)| answer.ok()).collect();
            let refused = answers.iter().filter(|(answer, _)| *answer == Err(Refusal::Window)).count();
            is("who unbound it, and who came too late", (free.len(), refused), (1, 1))?;
            window = free[0];
            giver.release(slab).map_err(text)?;
        }
        println!(
            "  half a WRITE, {what}: over after {took:.2?}; meanwhile somebody else unbound {n} windows, each in {longest:.2?} at most"
        );
        if took > SOON || longest > SOON {
            return Err(format!("{SOON:?} at most were due"));
        }
    }
    println!("a WRITE that came half holds up nobody for long");
    Ok(())
}
