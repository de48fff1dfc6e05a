//! The network's floor: a 32-byte request, a 4 KiB answer, nothing behind it.
//!
//! TCP over loopback between two processes, both spinning on non-blocking
//! sockets, each on its own CPU when pinned: the least that a page over TCP can
//! cost on this machine.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use farmem_sys::clock;

use super::faults::{Faults, Meter};
use super::footprint::Footprint;
use super::measure::{self, Placement, Threads, What};
use super::workload::Outcome;
use farmem_kit::{affinity, supervise};

const REQUEST: usize = 32;
const ANSWER: usize = 4096;

/// What to do.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Round trips
    #[arg(long)]
    accesses: usize,
    /// CPUs of this end and of the other
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
}

/// The other end.
#[derive(clap::Args, Debug)]
pub struct PeerOptions {
    /// Its CPU
    #[arg(long)]
    cpu: Option<usize>,
}

/// Measures it, with a peer started from this binary.
///
/// # Errors
/// Sockets and processes that cannot be had.
pub fn run(options: &Options) -> anyhow::Result<Outcome> {
    clock::calibrate();
    let mut command = Command::new("/proc/self/exe");
    command.args(["bench-child", "peer"]).stdout(Stdio::piped());
    if let [_, other] = options.cpus[..] {
        command.args(["--cpu", &other.to_string()]);
    }
    let mut peer = supervise::Group::start(&mut command).context("starting the other end")?;
    let mut port = String::new();
    BufReader::new(peer.process().stdout.take().context("its output")?).read_line(&mut port)?;
    let mut stream = TcpStream::connect(("127.0.0.1", port.trim().parse()?))?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;

    let placement = Placement { cpus: options.cpus.as_slice().try_into().ok() };
    let meter = Meter::new(None);
    let before = meter.now();
    let stream = std::sync::Mutex::new(&mut stream);
    let samples = measure::run(Threads::Solo, placement, |_, samples, _| {
        let mut stream = stream.lock().expect("one thread");
        let mut trip = || -> io::Result<()> {
            let mut page = [0; ANSWER];
            spin_write(*stream, &[7; REQUEST])?;
            spin_read(*stream, &mut page)?;
            Ok(())
        };
        for _ in 0..options.accesses / 10 {
            trip()?;
        }
        samples.timed(|samples| (0..options.accesses).try_for_each(|_| Ok(samples.take(&mut trip)?)))
    })?;
    let phase = samples.into_phase(What::RoundTrip, Threads::Solo, meter.now().since(&before));
    ensure!(phase.accesses > 0, "no round trip was asked for");
    Ok(Outcome { phases: vec![phase], totals: Faults::default(), footprint: Footprint::default() })
}

/// Answers until the other end goes.
///
/// # Errors
/// Sockets that cannot be had.
pub fn peer(options: &PeerOptions) -> anyhow::Result<()> {
    if let Some(cpu) = options.cpu {
        affinity::pin(&[cpu])?;
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    writeln!(io::stdout(), "{}", listener.local_addr()?.port())?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let (mut request, answer) = ([0; REQUEST], [9; ANSWER]);
    while spin_read(&mut stream, &mut request).is_ok() {
        spin_write(&mut stream, &answer)?;
    }
    Ok(())
}

fn spin_read(stream: &mut TcpStream, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match stream.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn spin_write(stream: &mut TcpStream, mut from: &[u8]) -> io::Result<()> {
    while !from.is_empty() {
        match stream.write(from) {
            Ok(n) => from = &from[n..],
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
