//! The handshake: identifies an application, and takes in what it holds if it comes again.

use super::Service;
use crate::chunks::Map;
use crate::desk::{self, Desk};
use crate::hello::{Declaration, Entry, Hello, MAGIC, Welcome};
use crate::ledger::{Identity, MAX_ENTRIES, NODES, Token};
use crate::windows::User;
use crate::word::BlockId;
use farmem_protocol::wire::ANY_QUEUE;
use farmem_protocol::wire::text::is_plain;
use farmem_sys::descriptors;
use farmem_sys::raw::Errno;
use farmem_sys::sync::Lock;
use farmem_sys::{process, shared, socket};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// How long a stranger may take over its first words, all of them.
const PATIENCE: Duration = Duration::from_secs(2);
/// How much longer it may take to declare what it holds.
const DECLARING: Duration = Duration::from_secs(8);

/// Bytes that an application may leave unread when a descriptor is sent, with what the kernel needs to
/// hold them. An honest one waits for each block that it maps.
const UNREAD: usize = 16 << 10;
/// How long a descriptor waits for others that are under way.
const CROWDED: Duration = Duration::from_secs(1);

/// An application that is here.
pub struct Seat {
    pub app: usize,
    pub stream: UnixStream,
    /// Readable when its process has ended.
    pub pidfd: Pidfd,
    pub desk: Desk,
    /// The user that reaches its memory, where that is elsewhere, at the node by which it came.
    user: User,
    /// Its members of the agent's nodes, by the nodes' numbers, the last one last.
    members: Lock<Vec<(u64, u16)>>,
    /// The watcher knows it.
    pub watched: AtomicBool,
    ended: AtomicBool,
}

/// A pidfd, closed when dropped.
pub struct Pidfd(pub i32);

impl Drop for Pidfd {
    fn drop(&mut self) {
        descriptors::close(self.0);
    }
}

impl Seat {
    /// Tells its clerk to end.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        shared::futex_wake(self.desk.up().tail);
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The application says which member of a node it is. It need not be believed ([`User`]).
    pub fn names_itself(&self, node: u64, owner: u16) {
        let mut members = self.members.lock();
        members.retain(|(other, _)| *other != node);
        members.push((node, owner));
        let over = members.len().saturating_sub(NODES);
        members.drain(..over);
    }

    /// The application as a member of the node of this number, if it has said which.
    pub fn user_at(&self, node: u64) -> Option<User> {
        let members = self.members.lock();
        members
            .iter()
            .find(|(other, owner)| *other == node && *owner != 0)
            .map(|(_, owner)| User { owner: *owner, ..self.user })
    }
}

/// The claims of an unknown peer, and the kernel's facts about it.
struct Stranger {
    again: Option<Token>,
    declared: Vec<(BlockId, u32, Map)>,
    job: String,
    user: User,
    /// The number of the node that the user is a member of.
    node: u64,
    uid: u32,
    pid: u32,
    began: u64,
    pidfd: Pidfd,
}

impl Service {
    /// Hears a connection out. `None`: it was refused, or is gone.
    pub(super) fn receive(&self, mut stream: UnixStream) -> Option<Arc<Seat>> {
        let _ = stream.set_nonblocking(false);
        let _ = stream.set_write_timeout(Some(PATIENCE));
        let entries = |token: &Token, uid| {
            let stock = self.stock.lock();
            stock.find(token, uid).map(|app| stock.owned().filter(|owned| owned.app == app).count())
        };
        let seated = hear(&stream, entries).and_then(|stranger| {
            if !self.elsewhere.lock().is_empty() && stranger.user.owner == 0 {
                return Err(Some(Entry::Elsewhere));
            }
            let fd = shared::memory(c"farmem-desk", desk::BYTES as u64).map_err(|_| Some(Entry::System))?;
            let desk = Desk::map(fd).map_err(|_| Some(Entry::System));
            let seated = desk.and_then(|desk| self.seat(stranger, desk, &stream).map_err(Some));
            seated.map(|(seat, token)| (seat, token, fd)).inspect_err(|_| descriptors::close(fd))
        });
        let (seat, token, fd) = match seated {
            Ok(seated) => seated,
            Err(entry) => {
                let entry = entry?;
                let text = if entry == Entry::Elsewhere { self.elsewhere.lock().clone() } else { String::new() };
                let (status, len) = (entry as u32, text.len() as u32);
                let refusal = Welcome { magic: MAGIC, status, text: len, token: [0; 16] };
                let _ = stream.write_all(refusal.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
                return None;
            }
        };
        // The watcher is to see it before it is welcomed: an application that dies later is noticed
        // at once.
        self.waker.wake();
        let welcome = Welcome { magic: MAGIC, status: Entry::Welcome as u32, text: 0, token };
        if pass(&stream, welcome.as_bytes(), fd) != Passed::Sent {
            seat.end();
        }
        descriptors::close(fd);
        Some(seat)
    }

    /// Admits it, or finds it again.
    fn seat(&self, stranger: Stranger, desk: Desk, stream: &UnixStream) -> Result<(Arc<Seat>, Token), Entry> {
        let Stranger { again, declared, job, user, node, uid, pid, began, pidfd } = stranger;
        let stream = stream.try_clone().map_err(|_| Entry::System)?;
        // Held to the end: an application that is just being seated must not be taken for absent.
        let mut seats = self.seats.lock();
        let mut stock = self.stock.lock();
        let (app, token, freed) = match again {
            Some(token) => {
                let app = stock.find(&token, uid).filter(|app| !seats.contains_key(app)).ok_or(Entry::Unknown)?;
                (app, token, stock.declare(app, &declared).map_err(|_| Entry::NotHeld)?)
            }
            None => {
                let mut token = [0; 16];
                process::random_bytes(&mut token).map_err(|_| Entry::System)?;
                let who = Identity { token, uid, pid, began, job };
                (stock.admit(&who).ok_or(Entry::Full)?, token, Vec::new())
            }
        };
        drop(stock);
        let (watched, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let members = Lock::new(vec![(node, user.owner)]);
        let seat = Arc::new(Seat { app, stream, pidfd, desk, user, members, watched, ended });
        seats.insert(app, Arc::clone(&seat));
        drop(seats);
        self.release(freed);
        Ok((seat, token))
    }
}

/// A stranger's first words, as they come. However slowly that is, they end at a time.
struct Words<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for Words<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        // No time at all would mean no limit.
        self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut stream = self.stream;
        stream.read(into)
    }
}

/// Reads the first words. `entries` tells how many the application of a token and a user has. An
/// error: the refusal, if the stranger is still listening.
fn hear(stream: &UnixStream, entries: impl Fn(&Token, u32) -> Option<usize>) -> Result<Stranger, Option<Entry>> {
    let mut hello = Hello::new_zeroed();
    let mut words = Words { stream, until: Instant::now() + PATIENCE };
    words.read_exact(hello.as_mut_bytes()).map_err(|_| None)?;
    words.until += DECLARING;
    let len = hello.job.iter().position(|&b| b == 0).unwrap_or(hello.job.len());
    // It is shown to operators.
    let job = std::str::from_utf8(&hello.job[..len]).ok().filter(|job| job.chars().all(is_plain));
    let job = job.ok_or(Some(Entry::Malformed))?.to_owned();
    let owner = u16::try_from(hello.owner).map_err(|_| Some(Entry::Malformed))?;
    let sound = hello.magic == MAGIC && hello.again <= 1 && hello.declared as usize <= MAX_ENTRIES;
    if !sound || (hello.again == 0 && hello.declared > 0) {
        return Err(Some(Entry::Malformed));
    }
    let peer = shared::peer_of(stream.as_raw_fd()).map_err(|_| Some(Entry::System))?;
    let again = (hello.again == 1).then_some(hello.token);
    // A stranger's declarations take no memory: they are kept if the token proves that it may have
    // as many.
    let refusal = again.and_then(|token| match entries(&token, peer.uid) {
        None => Some(Entry::Unknown),
        Some(most) => (hello.declared as usize > most).then_some(Entry::NotHeld),
    });
    let mut declared = Vec::new();
    for _ in 0..hello.declared {
        let mut one = Declaration::new_zeroed();
        words.read_exact(one.as_mut_bytes()).map_err(|_| None)?;
        if refusal.is_none() {
            declared.push((BlockId(one.block), one.blocks, one.map));
        }
    }
    // Only now, when the application has said everything: it does not read before.
    if refusal.is_some() {
        return Err(refusal);
    }
    let pidfd = Pidfd(shared::pidfd(peer.pid).map_err(|_| None)?);
    // After the pidfd: whose beginning this is, the pidfd is of, or the process is gone and that is
    // seen.
    let began = process::began(peer.pid).ok_or(None)?;
    let user = User { uid: peer.uid, owner, queue: (hello.queue != ANY_QUEUE).then_some(hello.queue) };
    let node = hello.node as u64;
    Ok(Stranger { again, declared, job, user, node, uid: peer.uid, pid: peer.pid, began, pidfd })
}

/// Sends a frame without waiting. False when the socket takes no more.
pub(super) fn tell(stream: &UnixStream, bytes: &[u8]) -> bool {
    socket::send_bytes(stream.as_raw_fd(), bytes) == Ok(bytes.len())
}

/// How the sending of a descriptor ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Passed {
    Sent,
    /// The other end reads nothing.
    Unread,
    /// The kernel lets this user have no more descriptors under way: others do not take theirs.
    Crowded,
}

/// Sends a short frame and a descriptor. Waits for [`CROWDED`] at most.
pub(super) fn pass(stream: &UnixStream, bytes: &[u8], fd: i32) -> Passed {
    let begun = Instant::now();
    loop {
        // The limit is the user's: one program's descriptors must not use it up.
        if socket::untaken(stream.as_raw_fd()) > UNREAD {
            return Passed::Unread;
        }
        match socket::send_frame(stream.as_raw_fd(), bytes, fd) {
            Ok(sent) if sent == bytes.len() => return Passed::Sent,
            Err(Errno(libc::ETOOMANYREFS | libc::ENOBUFS | libc::ENOMEM)) => {
                if begun.elapsed() >= CROWDED {
                    return Passed::Crowded;
                }
                std::thread::sleep(CROWDED / 100);
            }
            _ => return Passed::Unread,
        }
    }
}
