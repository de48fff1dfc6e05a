//! Measures how long a page takes from a node and from NBD servers of others. It asks as the
//! kernel's client does.
//!
//! ```text
//!  trips ROUNDS READS NAME=HOST:PORT[:PID]…     farmem=…: a node's volume; any other name: an NBD server
//! ```
//!
//! 4 096 pages are written to each. Then, by turns, each is asked for pages at random, one at a
//! time, with a pause before each that is as long as the kernel and a program think. Prints the
//! median of the rounds, and what they take by the first server in the same round; also the CPU
//! time that the server's process took for a page.

use farmem_protocol::nbd::{Asked, Command, Reply};
use farmem_swap::stream::{Wanted, dial};
use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use zerocopy::{FromZeros, IntoBytes};

const PAGES: u64 = 4096;
/// Before each page. The first is none, the second a busy program's, the last an idle machine's.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_micros(30), Duration::from_millis(2)];

struct Server {
    name: String,
    pid: Option<u32>,
    socket: TcpStream,
    /// Of each pause and round: median, mean, 99 % in µs, and µs of CPU.
    took: [Vec<[f64; 4]>; PAUSES.len()],
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, reads, servers @ ..] = arguments.as_slice() else {
        return Err("ROUNDS READS NAME=HOST:PORT[:PID]…".into());
    };
    let (rounds, reads): (usize, usize) = (rounds.parse()?, reads.parse()?);
    let mut servers = servers.iter().map(|named| Server::open(named)).collect::<Result<Vec<_>, _>>()?;
    for server in &mut servers {
        server.fill()?;
    }
    let mut random = 88_172_645_463_325_252;
    for round in 0..rounds {
        for (at, pause) in PAUSES.iter().enumerate() {
            // Each is first, last and in the middle.
            let count = servers.len();
            for turn in 0..count {
                // A pause of two milliseconds makes a round long.
                let reads = if pause.as_millis() > 0 { reads / 8 } else { reads };
                let row = servers[(turn + round) % count].round(reads, *pause, &mut random)?;
                servers[(turn + round) % count].took[at].push(row);
            }
        }
    }
    for (at, pause) in PAUSES.iter().enumerate() {
        println!("a page after {pause:?}: median, mean, 99 % and CPU, µs; by {} in the same round", servers[0].name);
        for server in &servers {
            let column = |of: usize| {
                let here = |server: &Server| server.took[at].iter().map(|row| row[of]).collect::<Vec<f64>>();
                let by = here(server).iter().zip(here(&servers[0])).map(|(one, first)| one / first).collect();
                format!("{:8.1} ({:.2})", middle(here(server)), middle(by))
            };
            println!("  {:8}{}{}{}{}", server.name, column(0), column(1), column(2), column(3));
        }
    }
    Ok(())
}

fn middle(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// CPU time of all threads of a process, ns.
fn cpu_ns(pid: u32) -> f64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0)
    };
    tasks.map(of).sum()
}

impl Server {
    fn open(named: &str) -> Result<Server, Box<dyn Error>> {
        let (name, place) = named.split_once('=').ok_or("NAME=HOST:PORT[:PID]")?;
        let mut parts = place.split(':');
        let at = format!("{}:{}", parts.next().unwrap_or_default(), parts.next().ok_or("a port is missing")?);
        let pid = parts.next().map(str::parse).transpose()?;
        let socket = if name == "farmem" { volume(&at)? } else { export(&at)? };
        Ok(Server { name: name.to_owned(), pid, socket, took: Default::default() })
    }

    fn ask(&mut self, command: Command, page: u64, body: &[u8]) -> Result<(), Box<dyn Error>> {
        let request = Asked::frame(command, page, page * 4096, 4096);
        self.socket.write_all(&[request.as_bytes(), body].concat())?;
        let mut reply = [0; 16 + 4096];
        let length = if command == Command::Read { reply.len() } else { 16 };
        self.socket.read_exact(&mut reply[..length])?;
        let mut head = Reply::new_zeroed();
        head.as_mut_bytes().copy_from_slice(&reply[..16]);
        if head.error.get() != 0 || head.cookie.get() != page {
            return Err(format!("{} refuses page {page}: {}", self.name, head.error).into());
        }
        if command == Command::Read && reply[16..] != contents(page) {
            return Err(format!("{} has other bytes of page {page}", self.name).into());
        }
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Box<dyn Error>> {
        (0..PAGES).try_for_each(|page| self.ask(Command::Write, page, &contents(page)))
    }

    fn round(&mut self, reads: usize, pause: Duration, random: &mut u64) -> Result<[f64; 4], Box<dyn Error>> {
        let before = self.pid.map(cpu_ns);
        let mut times = Vec::with_capacity(reads);
        for _ in 0..reads {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            match pause {
                Duration::ZERO => {}
                long if long.as_millis() > 0 => std::thread::sleep(long),
                short => {
                    let begun = Instant::now();
                    while begun.elapsed() < short {
                        std::hint::spin_loop();
                    }
                }
            }
            let begun = Instant::now();
            self.ask(Command::Read, (*random >> 8) % PAGES, &[])?;
            times.push(begun.elapsed().as_nanos() as f64 / 1000.0);
        }
        times.sort_by(f64::total_cmp);
        let mean = times.iter().sum::<f64>() / reads as f64;
        let cpu = self.pid.zip(before).map_or(f64::NAN, |(pid, before)| (cpu_ns(pid) - before) / reads as f64 / 1000.0);
        Ok([times[reads / 2], mean, times[reads * 99 / 100], cpu])
    }
}

/// No word of a page is another's.
fn contents(page: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(page * 512 + at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    bytes
}

/// A volume of a node.
fn volume(at: &str) -> Result<TcpStream, Box<dyn Error>> {
    let mut id = [0; 16];
    farmem_sys::process::random_bytes(&mut id)?;
    let wanted = Wanted {
        at: &[],
        node: at,
        id,
        incarnation: 0,
        agreed: None,
        size: PAGES * 4096,
        kept: Duration::from_secs(1),
        overcommit: false,
        data: true,
        host: "trips",
        token: None,
    };
    let made = dial(&wanted, Duration::from_secs(10))?;
    let stream = dial(&Wanted { incarnation: made.incarnation, ..wanted }, Duration::from_secs(10))?;
    Ok(stream.into_socket())
}

/// The export of an NBD server, by the oldest option.
fn export(at: &str) -> Result<TcpStream, Box<dyn Error>> {
    let mut socket = TcpStream::connect(at)?;
    socket.set_nodelay(true)?;
    let mut hello = [0; 18];
    socket.read_exact(&mut hello)?;
    if &hello[..16] != b"NBDMAGICIHAVEOPT" {
        return Err(format!("{at} is no NBD server").into());
    }
    let option = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat();
    socket.write_all(&option)?;
    socket.read_exact(&mut [0; 10])?;
    Ok(socket)
}
