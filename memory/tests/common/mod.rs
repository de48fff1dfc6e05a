//! Connections that say what no library of ours would, frame by frame.

#![allow(dead_code)] // Each test file is a program of its own, and uses a part.

use farmem_protocol::wire::{
    Answer, Ask, Cipher, Credential, Greeting, Hello, Join, Proof, Purpose, Refused, Reply, Request, Status, Verdict,
    Welcome,
};
use farmem_trust::Key;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// The longest grace that anybody can ask for.
pub const FOR_EVER_MS: u64 = 1 << 40;

/// A Hello that joins a run.
pub fn hello(run: [u8; 16], grace_ms: u64) -> Hello {
    Hello::new(Purpose::Join(Join { run, pid: 4711, grace_ms, ..Join::default() }))
}

/// Receives one frame, byte by byte; `None`: the connection ends, or it is none.
pub fn receive<T, E>(stream: &mut impl Read, read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>) -> Option<T> {
    let mut seen = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        seen.push(byte[0]);
        match read(&seen) {
            Ok(Some((frame, _))) => return Some(frame),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
}

/// Says hello. Returns how the node takes it; `None` if it closes the connection.
pub fn greeted(stream: &mut (impl Read + Write), hello: &Hello) -> Option<Greeting> {
    stream.write_all(hello.frame().as_bytes()).ok()?;
    receive(stream, Greeting::read)
}

/// Says hello. Returns the node's Welcome; `None` if it has none.
pub fn greet(stream: &mut (impl Read + Write), hello: &Hello) -> Option<Welcome> {
    match greeted(stream, hello)? {
        Greeting::Welcome(welcome) => Some(welcome),
        Greeting::Refused(_) | Greeting::Proven(..) | Greeting::Challenge(_) => None,
    }
}

/// Says hello. Returns why the node refuses; `None`: it does not.
pub fn refused(stream: &mut (impl Read + Write), hello: &Hello) -> Option<Verdict> {
    greeted(stream, hello).expect("an answer").refusal()
}

/// Says hello and proves a token; nothing is encrypted.
pub fn prove(stream: &mut (impl Read + Write), purpose: Purpose, key: &Key) -> Welcome {
    proven(stream, purpose, key).expect("a welcome")
}

/// The same. `None`: the node refuses.
pub fn proven(stream: &mut (impl Read + Write), purpose: Purpose, key: &Key) -> Option<Welcome> {
    let credential = Credential { id: key.id, nonce: [9; 32], cipher: Cipher::Plain };
    let hello = Hello { tenant: key.tenant, credential: Some(credential), ..Hello::new(purpose) };
    let Some(Greeting::Challenge(nonce)) = greeted(stream, &hello) else { panic!("no challenge") };
    let proof = Proof { mac: key.of_host(&nonce, hello.frame().as_bytes(), None), share: None };
    stream.write_all(proof.frame().as_bytes()).unwrap();
    match receive(stream, Greeting::read) {
        Some(Greeting::Welcome(welcome)) => Some(welcome),
        _ => None,
    }
}

/// Asks for something, and waits for the answer.
pub fn ask(stream: &mut (impl Read + Write), number: u64, ask: Ask) -> Result<Reply, Refused> {
    say(stream, number, ask);
    receive(stream, Answer::read).expect("an answer").result
}

/// Asks for something. Returns the status of the answer.
pub fn status(stream: &mut (impl Read + Write), number: u64, what: Ask) -> Status {
    ask(stream, number, what).map_or_else(|refused| refused.status, |_| Status::Done)
}

/// Asks for something.
pub fn say(stream: &mut impl Write, number: u64, ask: Ask) {
    stream.write_all(Request::new(number, ask).frame().as_bytes()).unwrap();
}

/// Waits until it is so.
pub fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "not so within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
