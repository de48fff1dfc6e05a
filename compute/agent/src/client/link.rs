//! The connection: socket, desk, and what happens when the agent ends.

use super::alone::Alone;
use super::members::{Member, Members};
use super::state::Keys;
use super::{AllocError, ConnectError, Counts, Options};
use crate::chunks::Map;
use crate::desk::Desk;
use crate::hello::{self, Declaration, Entry, Hello, Located, MAGIC, MAX_NODE, Mapped, Welcome};
use crate::ring::{Consumer, Producer};
use crate::word::{BlockId, Down, Up};
use farmem_protocol::key::Key;
use farmem_protocol::wire::ANY_QUEUE;
use farmem_protocol::wire::variant;
use farmem_sys::descriptors;
use farmem_sys::raw::{self, Errno};
use farmem_sys::shared;
use farmem_sys::socket::{self, Passed};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

/// Looks at the ring before going to sleep: some microseconds, in which an agent that is awake
/// answers.
const SPINS: usize = 400;
/// How often a sleeper looks whether the agent is still there.
const LOOK_NS: u64 = 20_000_000;
/// How long an agent may take over a frame on the socket that it has announced.
const FRAME_NS: u64 = 2_000_000_000;

pub struct Link {
    options: Options,
    stream: UnixStream,
    desk: Desk,
    token: [u8; 16],
    /// The members by which this program reaches its memory, by the nodes' numbers. None: it is
    /// mapped.
    members: Arc<Members>,
    /// The agent, if it is within this process.
    alone: Option<Arc<Alone>>,
    up: Producer,
    down: Consumer,
    /// Recalls heeded.
    recalls: u32,
    pub counts: Counts,
}

impl Link {
    /// Connects; if memory is elsewhere, as a member of that node.
    pub fn connect(options: Options, alone: Option<Arc<Alone>>) -> Result<Link, ConnectError> {
        let members = Arc::new(Members::default());
        let by = (&options, &alone, options.patience);
        let (stream, desk, token) = match reach(by, (0, 0), None, &[])? {
            Reached::Seat(seat) => seat,
            Reached::Elsewhere(node) => {
                let (number, joined) = Member::join(&node, options.patience)?;
                let owner = joined.owner();
                members.add(number, joined);
                reach(by, (number, owner), None, &[])?.seat()?
            }
        };
        let counts = Counts::default();
        let (up, down) = Default::default();
        Ok(Link { options, stream, desk, token, members, alone, up, down, recalls: 0, counts })
    }

    /// Whether memory is reached by keys.
    pub fn is_elsewhere(&self) -> bool {
        self.members.last().is_some()
    }

    /// The members by which this program reaches its memory.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Connects again and declares what is held. `within`: an agent is not waited for longer.
    pub fn again(&mut self, held: &[(BlockId, u32, Map)], within: Option<Duration>) -> Result<(), ConnectError> {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let user = self.members.last().map_or((0, 0), |(number, member)| (number, member.owner()));
        let patience = within.map_or(self.options.patience, |within| within.min(self.options.patience));
        let asked = (&self.options, &self.alone, patience);
        (self.stream, self.desk, self.token) = reach(asked, user, Some(self.token), held)?.seat()?;
        (self.up, self.down, self.recalls) = (Producer::default(), Consumer::default(), 0);
        self.counts.again += 1;
        Ok(())
    }

    /// Whether the agent has asked, since the last call, for pieces that are kept and not in use.
    #[inline]
    pub fn is_recalled(&mut self) -> bool {
        let recalls = self.desk.recalls().load(Ordering::Relaxed);
        let is_recalled = recalls != self.recalls;
        // Stored when it has changed: every piece that is freed comes through here.
        if is_recalled {
            self.recalls = recalls;
        }
        is_recalled
    }

    /// Words that can be sent now. A broken ring takes none; a waiter finds out why.
    pub fn room(&self) -> usize {
        self.up.room(self.desk.up()).unwrap_or(0)
    }

    pub fn send(&mut self, word: Up) {
        self.up.push(self.desk.up(), word.bits());
        self.counts.words += 1;
    }

    /// Shows what was sent; wakes the agent if it sleeps.
    pub fn ring(&mut self) {
        if self.up.publish(self.desk.up()) {
            self.counts.bells += 1;
            shared::futex_wake(self.desk.up().tail);
        }
    }

    pub fn receive(&mut self) -> Result<Option<Down>, AllocError> {
        let down = self.desk.down();
        match self.down.pop(down) {
            Ok(Some(word)) => {
                self.down.done(down);
                Down::of(word).map(Some).ok_or_else(|| self.nonsense())
            }
            Ok(None) => Ok(None),
            Err(_) => Err(self.nonsense()),
        }
    }

    /// The agent says what means nothing.
    pub fn nonsense(&self) -> AllocError {
        AllocError::Ended("its ring holds what no agent says".into())
    }

    pub fn stands(&self) -> bool {
        !socket::is_cut(self.stream.as_raw_fd())
    }

    /// Waits a little for a word. False: the agent is gone.
    ///
    /// # Errors
    /// It has ended the session.
    pub fn sleep(&mut self) -> Result<bool, AllocError> {
        let down = self.desk.down();
        for _ in 0..SPINS {
            if self.down.waits(down) {
                return Ok(true);
            }
            std::hint::spin_loop();
        }
        if let Some(tail) = self.down.drowse(down) {
            shared::futex_wait(down.tail, tail, LOOK_NS);
        }
        self.down.rouse(down);
        if self.down.waits(down) {
            return Ok(true);
        }
        match self.desk.verdict().load(Ordering::Acquire) {
            0 => Ok(self.stands()),
            code => Err(AllocError::Ended(format!("by its rules this program broke the protocol (code {code})"))),
        }
    }

    /// The memory that a MAP was answered with, and its descriptor.
    pub fn receive_memory(&mut self, block: BlockId) -> Result<(Mapped, i32), ConnectError> {
        let mut mapped = Mapped::new_zeroed();
        match receive(&self.stream, mapped.as_mut_bytes(), raw::now_ns() + FRAME_NS) {
            Ok(Some(fd)) if mapped.block == block.0 as u64 => Ok((mapped, fd.into_raw())),
            Ok(Some(_)) => Err(ConnectError::System("the agent answers what was not asked".into())),
            Ok(None) => Err(ConnectError::System("no descriptor for memory came: too many are open".into())),
            Err(e) => Err(ConnectError::System(e.to_string())),
        }
    }

    /// The keys that a MAP was answered with, one for each block.
    pub fn receive_keys(&mut self, block: BlockId, blocks: usize) -> Result<Keys, ConnectError> {
        let mut head = hello::Reached::new_zeroed();
        let until = raw::now_ns() + FRAME_NS;
        let failed = |e: Errno| ConnectError::System(e.to_string());
        receive(&self.stream, head.as_mut_bytes(), until).map_err(failed)?;
        if (head.block, head.keys) != (block.0 as u64, blocks as u64) || head.moved > head.keys {
            return Err(ConnectError::System("the agent answers what was not asked".into()));
        }
        let mut keys = vec![0u64; blocks];
        receive(&self.stream, keys.as_mut_bytes(), until).map_err(failed)?;
        let all = keys.into_iter().map(Key).collect();
        Ok(Keys { all, node: head.node, to: head.to, moved: head.moved as usize })
    }

    /// Hears which node a block is at, as the answer to a WHERE, and joins it if this program has
    /// not yet. Returns the node's number and the member's owner id.
    pub fn receive_node(&mut self, block: BlockId) -> Result<(u64, u16), ConnectError> {
        let nonsense = || ConnectError::System("the agent answers what was not asked".into());
        let mut head = Located::new_zeroed();
        let until = raw::now_ns() + FRAME_NS;
        let failed = |e: Errno| ConnectError::System(e.to_string());
        receive(&self.stream, head.as_mut_bytes(), until).map_err(failed)?;
        if head.block != block.0 as u64 || head.text as usize > MAX_NODE {
            return Err(nonsense());
        }
        let mut text = vec![0; head.text as usize];
        receive(&self.stream, &mut text, until).map_err(failed)?;
        let text = String::from_utf8_lossy(&text);
        let number = Member::number_in(&text).ok_or_else(nonsense)?;
        if let Some(member) = self.members.of(number) {
            return Ok((number, member.owner()));
        }
        let (number, member) = Member::join(&text, self.options.patience)?;
        let owner = member.owner();
        self.members.add(number, member);
        Ok((number, owner))
    }
}

/// Where a connection led to.
enum Reached {
    Seat((UnixStream, Desk, [u8; 16])),
    /// To the name of a node: to be joined first.
    Elsewhere(String),
}

impl Reached {
    fn seat(self) -> Result<(UnixStream, Desk, [u8; 16]), ConnectError> {
        match self {
            Reached::Seat(seat) => Ok(seat),
            // It was told.
            Reached::Elsewhere(_) => Err(ConnectError::Unknown),
        }
    }
}

/// Receives a whole frame, and the descriptor that came with it. Others that come are closed.
fn receive(stream: &UnixStream, into: &mut [u8], until: u64) -> Result<Option<Passed>, Errno> {
    let (mut got, mut passed) = (0, None);
    while got < into.len() {
        match socket::receive_with_descriptor(stream.as_raw_fd(), &mut into[got..]) {
            Ok((0, _)) => return Err(Errno(libc::ECONNRESET)),
            Ok((n, fd)) => (got, passed) = (got + n, passed.or(fd)),
            Err(Errno(libc::EAGAIN)) => match until.saturating_sub(raw::now_ns()) {
                0 => return Err(Errno(libc::ETIMEDOUT)),
                left => drop(socket::wait(stream.as_raw_fd(), true, false, left)),
            },
            Err(e) => return Err(e),
        }
    }
    Ok(passed)
}

/// Connects, the first time or again, and tries as long as the options say. If there is no agent,
/// it starts one, once.
fn reach(
    (options, alone, patience): (&Options, &Option<Arc<Alone>>, Duration),
    user: (u64, u16),
    token: Option<[u8; 16]>,
    held: &[(BlockId, u32, Map)],
) -> Result<Reached, ConnectError> {
    let until = Instant::now() + patience;
    let mut started = false;
    let at = options.socket.display().to_string();
    loop {
        let connected = match alone {
            Some(alone) => alone.connect(),
            None => UnixStream::connect(&options.socket),
        };
        let failed = match connected {
            Ok(stream) => match greet(stream, options, user, token, held) {
                // It went down as we came: the next one is asked.
                Err(Greeting::Gone) => None,
                Err(Greeting::Refused(e)) => return Err(e),
                Ok(reached) => return Ok(reached),
            },
            Err(e) => Some(e),
        };
        let nobody =
            failed.as_ref().is_some_and(|e| matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused));
        if let (true, false, Some(start)) = (nobody, started, &options.start) {
            started = true;
            start().map_err(|e| ConnectError::System(format!("no agent could be started: {e}")))?;
            continue;
        }
        if Instant::now() >= until {
            return Err(ConnectError::Nobody(at));
        }
        raw::sleep_ns(5_000_000);
    }
}

enum Greeting {
    Gone,
    Refused(ConnectError),
}

fn greet(
    mut stream: UnixStream,
    options: &Options,
    (node, owner): (u64, u16),
    token: Option<[u8; 16]>,
    held: &[(BlockId, u32, Map)],
) -> Result<Reached, Greeting> {
    let mut hello = Hello { magic: MAGIC, again: token.is_some() as u32, ..Hello::new_zeroed() };
    let job = options.job.as_bytes();
    let named = hello.job.get_mut(..job.len()).filter(|_| !job.contains(&0));
    let named =
        named.ok_or(Greeting::Refused(ConnectError::System("a job's name has at most 32 bytes, none zero".into())))?;
    named.copy_from_slice(job);
    hello.token = token.unwrap_or_default();
    hello.declared = held.len() as u32;
    // Every thread of this program has a queue pair of its own.
    (hello.owner, hello.node, hello.queue) = (owner as u32, node as u32, ANY_QUEUE);
    let gone = |_| Greeting::Gone;
    stream.write_all(hello.as_bytes()).map_err(gone)?;
    for &(block, blocks, map) in held {
        stream.write_all(Declaration { block: block.0, blocks, map }.as_bytes()).map_err(gone)?;
    }
    let mut welcome = Welcome::new_zeroed();
    let until = raw::now_ns() + FRAME_NS.max(options.patience.as_nanos() as u64);
    let fd = receive(&stream, welcome.as_mut_bytes(), until).map_err(|_| Greeting::Gone)?;
    let at = options.socket.display().to_string();
    let refused = match variant::<Entry>(welcome.status) {
        Some(Entry::Welcome) if welcome.magic == MAGIC => None,
        Some(Entry::Full) => Some(ConnectError::Full),
        Some(Entry::Unknown) => Some(ConnectError::Unknown),
        Some(Entry::NotHeld) => Some(ConnectError::NotHeld),
        Some(Entry::System) => Some(ConnectError::System("the agent's side".into())),
        Some(Entry::Elsewhere) if (welcome.text as usize) <= MAX_NODE => {
            let mut text = vec![0; welcome.text as usize];
            receive(&stream, &mut text, until).map_err(|_| Greeting::Gone)?;
            return Ok(Reached::Elsewhere(String::from_utf8_lossy(&text).into_owned()));
        }
        _ => Some(ConnectError::Version(at)),
    };
    if let Some(refused) = refused {
        return Err(Greeting::Refused(refused));
    }
    let fd = fd.ok_or(Greeting::Refused(ConnectError::System("no descriptor came: too many are open".into())))?;
    let fd = fd.into_raw();
    let desk = Desk::map(fd);
    descriptors::close(fd);
    let desk = desk.map_err(|e| Greeting::Refused(ConnectError::System(e.to_string())))?;
    Ok(Reached::Seat((stream, desk, welcome.token)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_sys::descriptors::socket_pair;

    #[test]
    fn of_descriptors_that_an_agent_passes_unasked_none_stays() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let until = raw::now_ns() + FRAME_NS;
        let pairs: Vec<(i32, i32)> = (0..4).map(|_| socket_pair().unwrap()).collect();
        let pass = |nth: usize| {
            assert_eq!(socket::send_frame(theirs.as_raw_fd(), &[1; 4], pairs[nth].0), Ok(4));
            descriptors::close(pairs[nth].0);
        };
        // Two with one frame, one with a frame that has none, and one before the end.
        (0..2).for_each(pass);
        let first = receive(&ours, &mut [0; 8], until).unwrap().expect("the first").into_raw();
        pass(2);
        drop(receive(&ours, &mut [0; 4], until));
        pass(3);
        drop(theirs);
        assert_eq!(receive(&ours, &mut [0; 8], until).map(|_| ()), Err(Errno(libc::ECONNRESET)));
        let is_open = |nth: usize| !socket::is_cut(pairs[nth].1);
        assert_eq!([0, 1, 2, 3].map(is_open), [true, false, false, false]);
        pairs.iter().map(|(_, other)| *other).chain([first]).for_each(descriptors::close);
    }
}
