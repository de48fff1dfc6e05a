//! The host's decoder of a node's answers: a relay between the public library and a node changes
//! bytes on their way to the host.
//!
//! A text lists the changes, four bytes each: the distance from the last change, the kind of change,
//! and its operand. The host may fail, with an error. It may not panic, and goes on or ends in time.

use crate::fuzz::fuzz_by;
use farmem::{Error, Memory, Transport};
use farmem_memory::{Config, Node};
use farmem_sys::raw::process_cpu_ns;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::mem::discriminant;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long either end may say nothing before the relay cuts the connection. A host waits half a
/// minute for a node that is stopped.
const QUIET: Duration = Duration::from_millis(40);
const GRACE: Duration = Duration::from_millis(300);
/// Of one conversation, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(60);

/// Changes that are still to come: after how many bytes, how, by what.
type Changes = Arc<Mutex<VecDeque<(usize, u8, u8)>>>;

fn changes(text: &[u8]) -> Changes {
    let changes = text.as_chunks::<4>().0.iter().take(40);
    Arc::new(Mutex::new(
        changes.map(|&[low, high, how, by]| (usize::from(low) | usize::from(high & 3) << 8, how, by)).collect(),
    ))
}

/// Changes a piece of what the node says. `false`: the connection ends behind it.
fn change(bytes: &mut Vec<u8>, changes: &Changes) -> bool {
    let mut changes = changes.lock().unwrap();
    let mut at = 0;
    while let Some((after, how, by)) = changes.front_mut() {
        if at + *after >= bytes.len() {
            *after -= bytes.len() - at;
            return true;
        }
        at += *after;
        let end = (at + 1 + usize::from(*by)).min(bytes.len());
        let ends = match *how % 8 {
            0 | 1 => {
                bytes[at] = *by;
                false
            }
            2 => {
                bytes[at] ^= 1 << (*by % 8);
                false
            }
            3 => {
                bytes[at..end.min(at + 8)].fill(0xff);
                false
            }
            4 => {
                drop(bytes.drain(at..end));
                false
            }
            5 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
                false
            }
            6 => {
                bytes.truncate(at);
                true
            }
            _ => {
                bytes.splice(at..at, std::iter::repeat_n(*by, usize::from(*by)));
                false
            }
        };
        changes.pop_front();
        if ends {
            return false;
        }
    }
    true
}

/// Carries bytes one way until an end closes, or says nothing for long.
fn carry(mut from: TcpStream, mut to: TcpStream, changes: Option<&Changes>) {
    let mut piece = vec![0; 64 << 10];
    if changes.is_some() {
        let _ = from.set_read_timeout(Some(QUIET));
    }
    while let Ok(n @ 1..) = from.read(&mut piece) {
        let mut bytes = piece[..n].to_vec();
        let goes_on = changes.is_none_or(|changes| change(&mut bytes, changes));
        if to.write_all(&bytes).is_err() || !goes_on {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Relays connections to the node until it is told to end.
fn relay(listener: &TcpListener, node: SocketAddr, changes: &Changes, ends: &AtomicBool) {
    std::thread::scope(|scope| {
        while let Ok((host, _)) = listener.accept() {
            if ends.load(Ordering::Relaxed) {
                return;
            }
            let Ok(node) = TcpStream::connect(node) else { continue };
            let (Ok(host_too), Ok(node_too)) = (host.try_clone(), node.try_clone()) else { continue };
            scope.spawn(move || carry(host, node, None));
            scope.spawn(move || carry(node_too, host_too, Some(changes)));
        }
    });
}

/// What a program does with the memory of a node. The step that failed, and how.
fn converse(at: SocketAddr, region: bool) -> Result<(), (u8, Error)> {
    let to = Memory::builder().node(at.to_string()).transport(Transport::Tcp).timeout(GRACE).grace(GRACE);
    let to = if region { to.region("fuzzed").create(true) } else { to };
    let memory = to.connect().map_err(|e| (0, e))?;
    let mut bytes = [0; 5000];
    let piece = memory.alloc(8192).map_err(|e| (1, e))?;
    memory.write(piece, &[7; 5000]).map_err(|e| (2, e))?;
    memory.read(piece, &mut bytes).map_err(|e| (3, e))?;
    memory.compare_swap(piece, 7, 8).map_err(|e| (4, e))?;
    memory.fetch_add(piece, 1).map_err(|e| (5, e))?;
    memory.pieces().map_err(|e| (6, e))?;
    let mut lane = memory.lane().map_err(|e| (7, e))?;
    for tag in 0..9 {
        lane.post_read(tag, piece, vec![0; 100]);
    }
    let (mut done, begun) = (Vec::new(), Instant::now());
    while lane.in_flight() > 0 {
        lane.wait(&mut done, Duration::from_secs(1));
        assert!(begun.elapsed() < LIMIT, "a lane waits for ever");
    }
    done.into_iter().try_for_each(|one| one.result.map(drop)).map_err(|e| (8, e))?;
    memory.free(piece).map_err(|e| (9, e))?;
    memory.check().map_err(|e| (10, e))
}

#[test]
fn what_a_node_says() {
    let node = Node::start(&Config::new(4 * (64 << 20), vec!["127.0.0.1:0".parse().unwrap()])).unwrap();
    let at: SocketAddr = node.addresses()[0].to_string().parse().unwrap();
    for region in [false, true] {
        assert!(converse(at, region).is_ok(), "without a relay");
    }
    // A change here and there; the first one changes nothing.
    let texts: [&[u8]; 5] =
        [&[255, 3, 0, 0], &[8, 0, 0, 2], &[40, 0, 3, 7, 4, 0, 5, 9], &[80, 0, 6, 0], &[60, 0, 2, 3, 100, 1, 7, 44]];
    fuzz_by(process_cpu_ns, "host", &texts, |random, text| {
        let (changes, ends) = (changes(text), AtomicBool::new(false));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let region = random.index(2) == 0;
        let begun = Instant::now();
        let went = std::thread::scope(|scope| {
            scope.spawn(|| relay(&listener, at, &changes, &ends));
            let went = converse(here, region);
            ends.store(true, Ordering::Relaxed);
            let _ = TcpStream::connect(here);
            went
        });
        assert!(begun.elapsed() < LIMIT, "{:?} for {text:?}", begun.elapsed());
        (region, went.map_err(|(step, e)| (step, discriminant(&e))).err())
    });
}
