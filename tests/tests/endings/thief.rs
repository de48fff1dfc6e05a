//! A thief who has the token while programs join, and is on their path: a node to each host, and a
//! host to the node. He opens every record and seals it anew. So he knows by which key and number
//! each was sealed, and what lies inside. He also ends connections, so that they are made anew.
//!
//! ```text
//! host ── keys of the host and the thief ──► thief ── keys of the thief and the node ──► node
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use farmem_protocol::wire::{Batch, Cipher, Greeting, Hello, Op, Proof, Purpose, Verb};
use farmem_trust::agree::{Agreed, Half};
use farmem_trust::record::{Ends, HEAD, OVERHEAD, Opener, Sealer};
use farmem_trust::{Key, Nonce, drawn};
use zerocopy::FromBytes;

const PAGE: usize = 4096;

/// What the thief has heard.
#[derive(Default)]
pub struct Heard {
    /// Of members, by the host's half of their secret and the node's.
    secrets: Vec<(Agreed, Agreed)>,
    hosts: BTreeSet<Nonce>,
    nodes: BTreeSet<Nonce>,
    keys: BTreeSet<(Nonce, Nonce, [u8; 32])>,
    /// Sealed pages: what neighbouring blocks of their ciphertext differ by, and the page that has
    /// it.
    pages: BTreeMap<(usize, [u8; 16]), [u8; 16]>,
    /// Connections that were welcomed, by what for.
    pub joined: u64,
    /// Forked children, and members whose connection was made anew.
    pub rejoined: u64,
    /// Queue pairs.
    pub attached: u64,
    /// Records that were opened.
    pub records: u64,
    /// Pages that were written whole.
    pub written: u64,
    /// What must never be. Empty, unless farmem is wrong.
    pub wrong: Vec<String>,
}

impl Heard {
    /// A connection has keys of its own: neither end has used its nonce before.
    fn connection(&mut self, host: Nonce, node: Nonce) {
        if !self.hosts.insert(host) {
            self.wrong.push(format!("a host's nonce came twice, of connection {}", self.hosts.len()));
        }
        if !self.nodes.insert(node) {
            self.wrong.push(format!("a node's nonce came twice, of connection {}", self.nodes.len()));
        }
    }

    fn key(&mut self, host: Nonce, node: Nonce, secret: &Agreed) {
        if !self.keys.insert((host, node, *secret.bytes())) {
            self.wrong.push("two connections have one key".to_owned());
        }
    }

    /// A page that is sealed, of one block of plaintext again and again: what neighbouring blocks
    /// of ciphertext differ by is the keystream's alone. The same page may come again.
    pub fn page(&mut self, page: &[u8]) {
        self.written += 1;
        let block = |at: usize| u128::from_le_bytes(page[at..at + 16].try_into().expect("16 bytes"));
        let content = (0..PAGE).step_by(16).fold(0, |all: u128, at| all.rotate_left(7).wrapping_mul(3) ^ block(at));
        for at in [0, PAGE / 2, PAGE - 32] {
            let differ = (block(at) ^ block(at + 16)).to_le_bytes();
            let first = *self.pages.entry((at, differ)).or_insert(content.to_le_bytes());
            if first != content.to_le_bytes() {
                self.wrong.push(format!("two pages were sealed under one nonce: page {}, byte {at}", self.written));
            }
        }
    }
}

/// The thief, listening.
pub struct Thief {
    /// Where hosts take him for the node.
    pub at: SocketAddr,
    heard: Arc<Mutex<Heard>>,
    /// A connection ends with each record of such a number; 0: none does.
    ends_each: Arc<AtomicU64>,
}

impl Thief {
    /// One before this node, whose token he has.
    pub fn before(node: SocketAddr, key: Key) -> Result<Thief> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (at, heard, ends_each) = (listener.local_addr()?, Arc::default(), Arc::<AtomicU64>::default());
        let (ears, ends) = (Arc::clone(&heard), Arc::clone(&ends_each));
        std::thread::spawn(move || {
            for host in listener.incoming().flatten() {
                let (ears, ends) = (Arc::clone(&ears), Arc::clone(&ends));
                std::thread::spawn(move || between(host, node, &key, &ears, &ends));
            }
        });
        Ok(Thief { at, heard, ends_each })
    }

    /// From now on a connection ends with every record of such a number.
    pub fn end_each(&self, records: u64) {
        self.ends_each.store(records, Ordering::SeqCst);
    }

    /// What he has heard.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        locked(&self.heard)
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection, from its Hello to its end. `None`: it ends before the Welcome, or has no token.
fn between(
    mut host: TcpStream,
    node: SocketAddr,
    key: &Key,
    heard: &Arc<Mutex<Heard>>,
    ends_each: &Arc<AtomicU64>,
) -> Option<()> {
    let mut node = TcpStream::connect(node).ok()?;
    host.set_nodelay(true).and_then(|()| node.set_nodelay(true)).ok()?;
    let say = |to: &mut TcpStream, bytes: &[u8]| to.write_all(bytes).ok();
    let hello = receive(&mut host, Hello::read)?;
    let named = hello.credential?;
    let said = hello.frame();
    say(&mut node, said.as_bytes())?;
    let greeting = receive(&mut node, Greeting::read)?;
    say(&mut host, greeting.frame().as_bytes())?;
    let Greeting::Challenge(nonce) = greeting else { return None };
    locked(heard).connection(named.nonce, nonce);
    let proof = receive(&mut host, Proof::read)?;
    // One half for each end.
    let halves = proof.share.and_then(|_| Some((Half::new(&drawn()?)?, Half::new(&drawn()?)?)));
    let share = halves.as_ref().map(|(_, to_node)| to_node.share());
    say(&mut node, Proof { mac: key.of_host(&nonce, said.as_bytes(), share.as_ref()), share }.frame().as_bytes())?;
    let secrets = match receive(&mut node, Greeting::read)? {
        Greeting::Welcome(mut welcome) => {
            let mut secrets = locked(heard).secrets.clone();
            // Most are of the member that joined last.
            secrets.reverse();
            if let (Some((to_host, to_node)), Some(hosts), Some(nodes)) = (halves, proof.share, welcome.share) {
                welcome.share = Some(to_host.share());
                let agreed = (to_host.agree(&hosts)?, to_node.agree(&nodes)?);
                secrets = vec![agreed];
                locked(heard).secrets.push(agreed);
            }
            welcome.proof = [0; 32];
            welcome.proof = key.of_node(&nonce, said.as_bytes(), Greeting::Welcome(welcome).frame().as_bytes());
            match hello.purpose {
                Purpose::Join(_) => locked(heard).joined += 1,
                Purpose::Rejoin(_) => locked(heard).rejoined += 1,
                _ => locked(heard).attached += 1,
            }
            say(&mut host, Greeting::Welcome(welcome).frame().as_bytes())?;
            secrets
        }
        refused => return say(&mut host, refused.frame().as_bytes()),
    };
    if named.cipher == Cipher::Plain {
        return None;
    }
    let derived = |of: &(Agreed, Agreed)| {
        let nonces = (&named.nonce, &nonce);
        Some((of.0, key.node_ends(named.cipher, nonces, &of.0)?, key.host_ends(named.cipher, nonces, &of.1)?))
    };
    let (nonces, is_queue) = ((named.nonce, nonce), matches!(hello.purpose, Purpose::Attach(..)));
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for (secret, Ends { opener, sealer }, to_node) in secrets.iter().filter_map(derived) {
        out.push((secret, opener, to_node.sealer));
        back.push((secret, to_node.opener, sealer));
    }
    let carry = |from: &TcpStream, to: &TcpStream, keys, of_host: bool| {
        let (from, to) = (from.try_clone().ok()?, to.try_clone().ok()?);
        let way = Way { from, to, of_host, heard: Arc::clone(heard), ends_each: Arc::clone(ends_each) };
        std::thread::spawn(move || {
            let writes = (is_queue && of_host).then(Vec::new);
            let _ = way.carry(keys, nonces, writes);
            let _ = (way.from.shutdown(Shutdown::Both), way.to.shutdown(Shutdown::Both));
        });
        Some(())
    };
    carry(&host, &node, out, true)?;
    carry(&node, &host, back, false)
}

/// What records of one direction of a connection may be opened by, and sealed.
type Keys = Vec<(Agreed, Opener, Sealer)>;

/// One direction of a connection.
struct Way {
    from: TcpStream,
    to: TcpStream,
    of_host: bool,
    heard: Arc<Mutex<Heard>>,
    ends_each: Arc<AtomicU64>,
}

impl Way {
    /// Carries records until the connection ends. `writes`: what was said on a queue pair and not
    /// understood yet.
    fn carry(&self, mut keys: Keys, (host, node): (Nonce, Nonce), mut writes: Option<Vec<u8>>) -> Option<()> {
        let mut number = 0;
        while let Some(record) = self.next_record() {
            // By the first it is known whose the connection is. Each record has to have the next
            // number under its key: none opens twice.
            let mut opened = None;
            for (at, (_, opener, _)) in keys.iter_mut().enumerate() {
                let mut room = record.clone();
                if let Ok(carried) = opener.open(&mut room, 0) {
                    room.truncate(carried);
                    opened = Some((at, room));
                    break;
                }
            }
            let mut heard = locked(&self.heard);
            let Some((at, said)) = opened else {
                let whose = if self.of_host { "a host's" } else { "a node's" };
                heard.wrong.push(format!("{whose} record {number} does not open: it has another number, or key"));
                return None;
            };
            if number == 0 {
                keys = vec![keys.swap_remove(at)];
                if self.of_host {
                    heard.key(host, node, &keys[0].0);
                }
            }
            number += 1;
            heard.records += 1;
            let is_end = match self.ends_each.load(Ordering::SeqCst) {
                0 => false,
                each => heard.records.is_multiple_of(each),
            };
            if let Some(writes) = &mut writes {
                writes.extend_from_slice(&said);
                if let Err(e) = understand(writes, |page| heard.page(page)) {
                    heard.wrong.push(format!("{e:#}"));
                    return None;
                }
            }
            drop(heard);
            if is_end {
                return None;
            }
            let mut sealed = [&[0; HEAD], &said[..], &[0; OVERHEAD - HEAD]].concat();
            keys[0].2.seal(&mut sealed).ok()?;
            (&self.to).write_all(&sealed).ok()?;
        }
        Some(())
    }

    fn next_record(&self) -> Option<Vec<u8>> {
        let mut record = vec![0; HEAD];
        (&self.from).read_exact(&mut record).ok()?;
        let len = Opener::length(&record).ok()??;
        record.resize(len, 0);
        (&self.from).read_exact(&mut record[HEAD..]).ok()?;
        Some(record)
    }
}

/// Takes whole batches from the front of what was said, and tells of each page that they write.
fn understand(said: &mut Vec<u8>, mut page: impl FnMut(&[u8])) -> Result<()> {
    loop {
        let Ok((batch, rest)) = Batch::read_from_prefix(said) else { return Ok(()) };
        let count = batch.verbs().ok().context("no batch")?;
        let heads = count * size_of::<Verb>();
        let whole = size_of::<Batch>() + heads + batch.bytes.get() as usize;
        if said.len() < whole {
            return Ok(());
        }
        let mut operands = &rest[heads..whole - size_of::<Batch>()];
        for verb in rest[..heads].chunks(size_of::<Verb>()) {
            let verb = Verb::read_from_bytes(verb).ok().context("no verb")?;
            let (own, others) = operands.split_at(verb.operand_bytes().ok().context("a verb's length")? as usize);
            operands = others;
            if verb.op == Op::Write as u8 && verb.offset.get().is_multiple_of(PAGE as u64) {
                own.chunks_exact(PAGE).for_each(&mut page);
            }
        }
        said.drain(..whole);
    }
}

/// The next frame. It comes alone: each end waits for the other.
fn receive<T, E>(from: &mut TcpStream, read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>) -> Option<T> {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    loop {
        from.read_exact(&mut byte).ok()?;
        seen.push(byte[0]);
        if let Some((frame, _)) = read(&seen).ok()? {
            return Some(frame);
        }
    }
}
