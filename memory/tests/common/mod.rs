//! Connections that say what no library of ours would, frame by frame.

// Each test binary uses some of it.
#![allow(dead_code)]

use farmem_protocol::wire::{Answer, Ask, Hello, MAGIC, Purpose, Request, VERSION, Verdict, Welcome, variant};
use std::io::{Read, Write};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The longest grace that anybody can ask for.
pub const FOR_EVER_MS: u64 = 1 << 40;

/// A Hello that joins a run.
pub fn hello(run: [u8; 16], grace_ms: u64) -> Hello {
    Hello {
        magic: MAGIC,
        version: VERSION.into(),
        purpose: Purpose::Join as u8,
        pid: 4711.into(),
        run,
        grace_ms: grace_ms.into(),
        ..Hello::new_zeroed()
    }
}

/// Says hello. Returns the node's Welcome; `None` if it closes the connection.
pub fn greet(stream: &mut (impl Read + Write), hello: &Hello) -> Option<Welcome> {
    stream.write_all(hello.as_bytes()).ok()?;
    let mut bytes = [0; size_of::<Welcome>()];
    stream.read_exact(&mut bytes).ok()?;
    let welcome = Welcome::read_from_bytes(&bytes).ok()?;
    stream.read_exact(&mut vec![0; welcome.path_len.get() as usize]).ok()?;
    Some(welcome)
}

/// How the node took a Hello.
pub fn verdict(welcome: Option<Welcome>) -> Option<Verdict> {
    welcome.and_then(|welcome| variant::<Verdict>(welcome.verdict))
}

/// Asks for something, and waits for the answer.
pub fn ask(stream: &mut (impl Read + Write), ask: Ask, number: u64, slab: u64) -> Answer {
    say(stream, ask, number, slab);
    let mut bytes = [0; size_of::<Answer>()];
    stream.read_exact(&mut bytes).unwrap();
    Answer::read_from_bytes(&bytes).unwrap()
}

/// Asks for something.
pub fn say(stream: &mut impl Write, ask: Ask, number: u64, slab: u64) {
    let request = Request { ask: ask as u8, number: number.into(), slab: slab.into(), ..Request::new_zeroed() };
    stream.write_all(request.as_bytes()).unwrap();
}

/// Waits until it is so.
pub fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "not so within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
