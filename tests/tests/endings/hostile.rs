//! A client that lies: noise, frames of nearly the right form, and frames of the
//! right form about what is not its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use farmem_protocol::addr::SlabId;
use farmem_protocol::key::Key;
use farmem_protocol::random::Random;
use farmem_protocol::wire::Range;
use farmem_protocol::wire::{Ask, Batch, Greeting, Hello, Join, Known, Purpose, Request, Verb, Welcome};
use zerocopy::{FromZeros, IntoBytes};

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

fn noise(chance: &mut Random, n: u64) -> Vec<u8> {
    let mut bytes = vec![0; n as usize];
    chance.fill(&mut bytes);
    bytes
}

/// Talks nonsense to a node until told to stop, and counts its conversations.
pub fn attack(seed: u64, tcp: SocketAddr, unix: &Path, conversations: &AtomicU64, stop: &AtomicBool) {
    let mut chance = Random::new(seed);
    while !stop.load(Ordering::Relaxed) {
        // A refused connection, a cut one: that is the node's right.
        let _ = conversation(&mut chance, tcp, unix);
        conversations.fetch_add(1, Ordering::Relaxed);
    }
}

fn dial(chance: &mut Random, tcp: SocketAddr, unix: &Path) -> std::io::Result<Box<dyn Stream>> {
    let patience = Some(Duration::from_millis(50));
    if chance.below(3) == 0 {
        let stream = UnixStream::connect(unix)?;
        stream.set_read_timeout(patience)?;
        stream.set_write_timeout(patience)?;
        return Ok(Box::new(stream));
    }
    let stream = TcpStream::connect(tcp)?;
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)?;
    Ok(Box::new(stream))
}

fn join() -> Hello {
    Hello::new(Purpose::Join(Join { run: [0xBA; 16], ..Join::default() }))
}

fn greet(stream: &mut dyn Stream, hello: &Hello) -> std::io::Result<Welcome> {
    stream.write_all(hello.frame().as_bytes())?;
    let mut seen = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        seen.push(byte[0]);
        match Greeting::read(&seen) {
            Ok(None) => {}
            Ok(Some((Greeting::Welcome(welcome), _))) => return Ok(welcome),
            _ => return Err(std::io::ErrorKind::InvalidData.into()),
        }
    }
}

fn conversation(chance: &mut Random, tcp: SocketAddr, unix: &Path) -> std::io::Result<()> {
    let mut control = dial(chance, tcp, unix)?;
    match chance.below(4) {
        0 => {
            let n = chance.below(300);
            control.write_all(&noise(chance, n))?;
            return Ok(());
        }
        1 => {
            let mut bytes = join().frame().as_bytes().to_vec();
            for _ in 0..=chance.below(4) {
                let at = chance.below(bytes.len() as u64) as usize;
                bytes[at] = chance.bits() as u8;
            }
            control.write_all(&bytes)?;
            let _ = control.read(&mut [0; 256]);
            return Ok(());
        }
        _ => {}
    }
    let welcome = greet(&mut *control, &join())?;
    for _ in 0..chance.below(8) {
        let slab = SlabId(chance.below(12));
        let range = Range { slab, offset: chance.below(2) * chance.bits(), len: 4096 };
        let asks = [
            Ask::Grant,
            Ask::Release(slab),
            Ask::Ticket,
            Ask::EndRun([0; 16]),
            Ask::Ping,
            Ask::Bye,
            Ask::Discard(range),
            Ask::Again(slab),
            Ask::Back(range),
        ];
        let ask = asks[chance.below(asks.len() as u64) as usize];
        let mut bytes = Request::new(chance.below(6), ask).frame().as_bytes().to_vec();
        if chance.below(8) == 0 {
            let at = chance.below(bytes.len() as u64) as usize;
            bytes[at] = chance.bits() as u8;
        }
        control.write_all(&bytes)?;
    }
    let _ = control.read(&mut [0; 512]);
    let mut verbs = dial(chance, tcp, unix)?;
    let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
    greet(&mut *verbs, &Hello::new(Purpose::Attach(known, 0)))?;
    for _ in 0..chance.below(6) {
        verbs.write_all(&batch(chance))?;
        let _ = verbs.read(&mut [0; 4096]);
    }
    Ok(())
}

/// Reads, writes and worse in slabs of other people.
fn batch(chance: &mut Random) -> Vec<u8> {
    let count = 1 + chance.below(4);
    let (mut verbs, mut operands) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let mut verb = Verb::new_zeroed();
        verb.op = 1 + chance.below(5) as u8;
        verb.len = [8, 4096, 1 << 20, u32::MAX][chance.below(4) as usize].into();
        verb.key = [chance.below(12), Key::window(chance.below(12) as u32, 1).0, Key::WORDS.0, chance.bits()]
            [chance.below(4) as usize]
            .into();
        verb.offset = [0, 4096, (64 << 20) - 8, u64::MAX - 7, chance.bits()][chance.below(5) as usize].into();
        operands.extend(match verb.op {
            2 => noise(chance, verb.len.get().min(1 << 16) as u64),
            3 => noise(chance, 16),
            4 => noise(chance, 8),
            _ => Vec::new(),
        });
        verbs.extend_from_slice(verb.as_bytes());
    }
    let lie = if chance.below(4) == 0 { chance.bits() as u32 } else { operands.len() as u32 };
    let head = Batch { count: (count as u16).into(), zero: 0.into(), bytes: lie.into(), first: 0.into() };
    [head.as_bytes(), &verbs, &operands].concat()
}
