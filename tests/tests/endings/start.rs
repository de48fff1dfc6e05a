//! No node that could be used: status 72, one line that names it and the reason,
//! and nothing of the program has run.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farmem_protocol::random::Random;
use farmem_protocol::wire::VERSION;
use farmem_tests::farmem::{Far, Node, free_port};
use farmem_tests::process;

use crate::{BOTH, LIMIT, Work, scenario, together};

/// Starts a run on this node and expects it to be refused in so much time.
fn refused(node: &str, reason: &str, limit: Duration) -> Result<()> {
    let mut program = Command::new("echo");
    program.arg("ran");
    let begun = Instant::now();
    let run = process::spawn(Far::local("16M").on(node).command(&program))?;
    let (outcome, lost) = run.wait_counting(LIMIT)?;
    let took = begun.elapsed();
    ensure!(took < limit + lost, "{took:?}, {lost:?} without a CPU, until {outcome:?}");
    ensure!(outcome.code() == 72 && outcome.stdout.is_empty(), "{outcome:?}");
    let line = outcome.stderr.strip_suffix('\n').unwrap_or_default();
    ensure!(line.starts_with("farmem: ") && !line.contains('\n'), "not one line: {}", outcome.stderr);
    ensure!(line.contains(node) && line.contains(reason), "{line}");
    Ok(())
}

/// Listens, and treats each connection as told.
fn listener(treat: impl Fn(TcpStream) + Send + 'static) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?.to_string();
    std::thread::spawn(move || listener.incoming().flatten().for_each(treat));
    Ok(at)
}

#[test]
fn an_address_that_is_none() -> Result<()> {
    let soon = Duration::from_secs(15);
    refused("no-such-host.invalid:7411", "no address is known", soon)?;
    refused(&free_port()?.to_string(), "nobody listens there", soon)?;
    refused("unix:/nonexistent/node.sock", "nobody listens there", soon)
}

#[test]
fn something_that_is_no_node() -> Result<()> {
    let hello = Duration::from_secs(4);
    let says = |what: Vec<u8>| {
        listener(move |mut stream| {
            let _ = stream.read(&mut [0; 256]);
            let _ = stream.write_all(&what);
        })
    };
    let http = says(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec())?;
    let closes = listener(drop)?;
    let version = says([b"farmem".as_slice(), &[42, 0], &[0; 120]].concat())?;
    let garbage = listener(|mut stream| {
        let (mut random, mut noise) = (Random::new(1), [0; 4096]);
        random.fill(&mut noise);
        while stream.write_all(&noise).is_ok() {
            random.fill(&mut noise);
        }
    })?;
    let welcomes_nobody = says([b"farmem".as_slice(), &VERSION.to_le_bytes(), &[0xFF; 256]].concat())?;
    refused(&http, "not a farmem node", hello)?;
    refused(&closes, "not a farmem node", hello)?;
    refused(&garbage, "not a farmem node", hello)?;
    refused(&welcomes_nobody, "not a farmem node", hello)?;
    refused(&version, "speaks version 42 of the protocol", hello)
}

#[test]
fn something_that_keeps_us_waiting() -> Result<()> {
    let patience = Duration::from_secs(9);
    let silent = listener(|stream| {
        std::thread::spawn(move || {
            let _held = stream;
            std::thread::sleep(LIMIT);
        });
    })?;
    // Begins like a node, says that 100 bytes follow, and never comes to the point.
    let slow = listener(|mut stream| {
        std::thread::spawn(move || {
            for byte in b"farmem".iter().copied().chain(VERSION.to_le_bytes()).chain([100, 0]).chain([0; 120]) {
                let _ = stream.write_all(&[byte]);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    })?;
    // Its queue of connections is full: the kernel answers nothing.
    let full = TcpListener::bind("127.0.0.1:0")?;
    together(vec![
        scenario("silent", move || refused(&silent, "no answer in time", patience)),
        scenario("slow", move || refused(&slow, "no answer in time", patience)),
        scenario("never accepted", move || refused(&full.local_addr()?.to_string(), "no answer in time", patience)),
    ])
}

#[test]
fn a_node_that_goes_down() -> Result<()> {
    let node = Node::start("256M", &["--grace", "60s"])?;
    let work = Work::start(&crate::By::Tcp.far("4M", &node.by_tcp()), &["32", "2"])?;
    node.running.signal(libc::SIGTERM);
    ensure!(process::eventually(LIMIT, || node.running.stderr().contains("going down: waiting up to 60 s")));
    for by in BOTH {
        refused(&by.address(&node), "is shutting down", Duration::from_secs(4))?;
    }
    work.sound()?;
    // The last one has left: it does not wait for its grace.
    let outcome = node.running.wait(Duration::from_secs(5))?;
    ensure!(outcome.code() == 0, "{outcome:?}");
    Ok(())
}
