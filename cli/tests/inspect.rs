//! `farmem check` and `farmem status` on nodes whose memory is in use or was damaged, and whose hosts have
//! died.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, eventually, listens, outcome};
use farmem_agent::client::{Chunk, Client, Options};
use farmem_fabric::NodeAddr;
use farmem_protocol::extent::guard::Words;
use farmem_protocol::extent::{Claimant, Generation, Geometry, Level, Owner, Place as Unit, State, Word};
use farmem_protocol::wire::{Answer, Batch, Completion, Greeting, Hello, Purpose, Reply, Request, Verb, Welcome};
use zerocopy::{FromBytes, IntoBytes};

/// A child that holds memory of an agent, and works with it until it is killed.
#[test]
fn a_program() {
    let Some(dir) = std::env::var_os("FARMEM_POOL_TEST_DIR").map(PathBuf::from) else { return };
    let client = client(&dir);
    let mut held: Vec<Chunk> = (0..2000).map(|_| client.alloc(0).unwrap()).collect();
    held.extend((0..20).map(|_| client.alloc(9).unwrap()));
    held.push(client.alloc_run(7).unwrap());
    std::fs::write(dir.join(format!("works-{}", std::process::id())), "").unwrap();
    for n in 0usize.. {
        client.free(held.swap_remove(n * 31 % held.len()));
        held.push(client.alloc((n % 10) as u8).unwrap());
    }
}

fn client(dir: &Path) -> Client {
    let patience = Duration::from_secs(20);
    Client::connect(Options { socket: dir.join("agent.sock"), job: String::new(), patience, start: None }).unwrap()
}

struct Killed(Child);

impl Killed {
    fn now(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.now();
    }
}

struct Host {
    dir: PathBuf,
    agent: Killed,
    programs: Vec<Killed>,
}

impl Host {
    /// An agent of this node, with `programs` programs at work.
    fn new(place: &Place, name: &str, node: &str, grace: &str, programs: usize) -> Host {
        let dir = place.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let arguments = ["agent", "--quiet", "--idle", "0", "--grace", grace, "--node", node, "--dir"];
        let agent = place.farmem(arguments).arg(&dir).spawn().unwrap();
        listens(&dir.join("agent.sock"));
        let program = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["a_program", "--exact", "--nocapture"]).env("FARMEM_POOL_TEST_DIR", &dir);
            Killed(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
        };
        let programs: Vec<Killed> = (0..programs).map(|_| program()).collect();
        for program in &programs {
            let ready = dir.join(format!("works-{}", program.0.id()));
            eventually("its programs work", || ready.exists());
        }
        Host { dir, agent: Killed(agent), programs }
    }

    fn dies(mut self) {
        self.agent.now();
        self.programs.iter_mut().for_each(Killed::now);
    }
}

#[test]
fn a_dead_host_is_recovered_by_its_words_and_the_check_is_clean() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let node = format!("unix:{}", socket.display());
    let _node = Killed(place.farmem(["node", "--lend", "2G", "--listen", &node]).spawn().unwrap());
    listens(&socket);
    let sound = || {
        let (status, said, err) = outcome(place.farmem(["check", &node]));
        assert_eq!((status, err.as_str()), (Some(0), ""), "{said}");
        said
    };
    let holders = || {
        let (status, said, _) = outcome(place.farmem(["status", &node, "--json"]));
        assert_eq!(status, Some(0));
        let view: serde_json::Value = serde_json::from_str(&said).unwrap();
        let bytes = |name: &str| view[0][name].as_u64().unwrap();
        assert!(bytes("used") <= bytes("lend") && bytes("held") <= bytes("lend"), "{said}");
        let all = view[0]["holders"].as_array().unwrap().clone();
        all.iter()
            .map(|holder| (holder["pid"].as_u64().unwrap_or(0), holder["held"].as_u64().unwrap()))
            .collect::<Vec<_>>()
    };
    let survivor = Host::new(&place, "survivor", &node, "30s", 0);
    let bystander = client(&survivor.dir);
    let _held: Vec<Chunk> = (0..30).map(|_| bystander.alloc(9).unwrap()).collect();
    let doomed = Host::new(&place, "doomed", &node, "100ms", 2);
    let pids = [u64::from(survivor.agent.0.id()), u64::from(doomed.agent.0.id())];
    let mut seen: Vec<u64> = holders().iter().map(|holder| holder.0).collect();
    seen.sort_unstable();
    assert_eq!(seen, {
        let mut both = pids.to_vec();
        both.sort_unstable();
        both
    });
    assert!(sound().contains("held by 2 owners"));

    doomed.dies();
    let begun = Instant::now();
    eventually("what the dead host held is the node's", || holders().len() == 1);
    assert!(begun.elapsed() < Duration::from_secs(10));
    let [(pid, bytes)] = holders()[..] else { panic!("one holder") };
    assert_eq!((pid, bytes >= 60 << 20), (pids[0], true), "the other host has what it had");
    eventually("all of it is clean", || sound().contains("held by 1 owner, 0 B being made clean"));
}

/// A node of this process, whose words can be made wrong.
#[cfg(debug_assertions)]
#[test]
fn every_damage_is_told_by_its_name() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let address = NodeAddr::Shm(socket.clone());
    let node = farmem_memory::Node::start(&farmem_memory::Config::new((2 << 30) + (64 << 20), vec![address.clone()]));
    let node = node.unwrap();
    let pool = &node.nic().units.words;
    let host = Host::new(&place, "host", &address.to_string(), "30s", 0);
    let client = client(&host.dir);
    let _held = client.alloc_run(3).unwrap();
    let blocks = (0..pool.geometry().count(Level::Block)).map(Unit::block);
    let find = |state: State| blocks.clone().find(|&unit| pool.word(unit).is(state)).unwrap();
    let (free, owned) = (find(State::Free), find(State::Owned));
    let mut giants = (0..pool.geometry().count(Level::Giant)).map(Unit::giant);
    let whole = giants.clone().find(|&giant| pool.word(giant).is(State::Free)).unwrap();
    let cut = giants.next_back().unwrap();
    assert!(!pool.geometry().is_whole(cut));
    let inside = |unit: Unit| pool.geometry().children(unit).unwrap().0;
    let plain = |state| Word::plain(state, Generation(9));
    let of = |owner| Word::new(State::Owned, Owner::new(owner), 0, Claimant::new(0), Generation(9));
    let nobody = "names an owner that does not exist";
    let lost = "is nobody's: absent from a shared unit";
    let alive = "has a life of its own inside a unit that is not open";
    let bits = "has bits that its state does not use";
    let damages = [
        (free, plain(State::Absent), lost, 1),
        (owned, plain(State::Absent), lost, 1),
        // As if it had been published without its chunks.
        (owned, plain(State::Shared), lost, 513),
        (free, of(9999), nobody, 1),
        (free, of(0), nobody, 1),
        (owned, Word::new(State::Splitting, Owner::new(9999), 0, Claimant::new(0), Generation(9)), nobody, 1),
        (free, Word(pool.word(free).0 | 1 << 63), bits, 1),
        (free, Word(pool.word(free).0 | 1 << 46), bits, 1),
        (free, Word(pool.word(free).0 | 1 << 32), bits, 1),
        (inside(owned), plain(State::Free), alive, 1),
        (inside(owned), of(9999), alive, 1),
        (inside(whole), of(1), alive, 1),
        (inside(whole), plain(State::Shared), alive, 1),
        (cut, plain(State::Free), "is in one piece, though part of it does not exist", 33),
    ];
    for (unit, word, what, most) in damages {
        let was = pool.word(unit);
        pool.damage(unit, word);
        let (status, said, err) = outcome(place.farmem(["check", &address.to_string()]));
        assert_eq!(status, Some(1), "{unit:?} = {word:?}: {said}{err}");
        let named = said.lines().filter(|line| line.starts_with(&format!("{unit:?} = "))).count();
        let inner = said.lines().filter(|line| line.contains(what)).count();
        assert!(named == 1 || most > 1, "{unit:?} = {word:?} in\n{said}");
        assert!(inner >= 1 && said.lines().count() <= 20.min(most), "{unit:?} = {word:?} in\n{said}");
        assert!(err.lines().count() == 1 && err.contains("cannot be as they are"), "{err}");
        pool.damage(unit, was);
    }
    let (status, said, _) = outcome(place.farmem(["check", &address.to_string()]));
    assert!(status == Some(0) && said.contains("sound"), "{said}");
}

/// A node that is killed says goodbye to nobody, and leaves files. The next command that looks
/// removes them, even while the process is a zombie.
#[test]
fn files_of_a_killed_node_go_with_the_next_look() {
    let place = Place::new();
    let node = || {
        let mut command = place.farmem(["node", "--lend", "128M", "--listen", "127.0.0.1:0"]);
        Killed(command.stderr(Stdio::null()).spawn().unwrap())
    };
    let of = |pid: u32| vec![format!("node-{pid}.json"), format!("node-{pid}.sock")];
    let left = || {
        let mut left = place.left();
        left.sort();
        left
    };
    for look in [vec!["status"], vec!["top", "--once", "--interval", "100ms"], vec!["node"]] {
        let mut killed = node();
        let pid = killed.0.id();
        eventually("the node listens", || left() == of(pid));
        killed.0.kill().unwrap();
        eventually("it has ended", || !common::runs(pid));
        assert_eq!(left(), of(pid));
        if look == ["node"] {
            let next = node();
            eventually("the next node listens", || left() == of(next.0.id()));
        } else {
            let (status, _, complaint) = outcome(place.farmem(&look));
            assert_eq!((status, complaint, left()), (Some(0), String::new(), vec![]), "{look:?}");
        }
    }
}

/// A run of this machine is named by host, user and program, and by the pid that `top` shows.
#[test]
fn status_names_runs_as_top_does() {
    let place = Place::new();
    let socket = place.path().join("node.sock");
    let at = format!("unix:{}", socket.display());
    let mut node = place.farmem(["node", "--lend", "256M", "--listen", &at]);
    let _node = Killed(node.stderr(Stdio::null()).spawn().unwrap());
    listens(&socket);
    let script = "x=$(printf '%09000000d' 1); sleep 60";
    let mut run = place.farmem(["run", "--local", "16M", "--node", &at, "--stats", "none", "--", "sh", "-c", script]);
    let _run = Killed(run.spawn().unwrap());
    let json = |arguments: &[&str]| {
        let (status, said, complaint) = outcome(place.farmem(arguments));
        assert_eq!(status, Some(0), "{complaint}");
        serde_json::from_str::<serde_json::Value>(&said).unwrap()
    };
    let holder = || json(&["status", "--json", &at])[0]["holders"][0].clone();
    eventually("the run holds a slab", || holder()["slabs"].as_u64().is_some_and(|slabs| slabs > 0));
    let holder = holder();
    let seen = json(&["top", "--json", "--interval", "100ms"])["runs"][0].clone();
    assert_eq!((&holder["supervisor"], &holder["program"]), (&seen["supervisor"], &seen["program"]));
    assert!(holder["program"].as_str().unwrap().starts_with("sh -c"), "{holder}");
    assert_eq!(holder["user"], farmem_sys::process::user_name(farmem_sys::process::user()));
    assert_eq!(holder["host"], farmem_sys::process::host_name());
    let (_, said, _) = outcome(place.farmem(["status", &at]));
    assert!(said.contains(&format!("run {}", seen["supervisor"])), "{said}");
}

/// Bytes that the node of the next test says it lends. Its table has 32 MiB, and four million problems.
const CLAIMED: u64 = 16 << 30;

/// A node whose memory is all in shared blocks, each of whose chunks cannot be as it is.
fn liar() -> NodeAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = NodeAddr::Tcp(listener.local_addr().unwrap().to_string());
    std::thread::spawn(move || {
        for host in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || lie(host));
        }
    });
    at
}

/// Takes a frame, byte by byte.
fn receive<T, E>(stream: &mut TcpStream, read: impl Fn(&[u8]) -> Result<Option<(T, usize)>, E>) -> Option<T> {
    let mut seen = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        seen.push(byte[0]);
        if let Some((frame, _)) = read(&seen).ok()? {
            return Some(frame);
        }
    }
}

fn lie(mut host: TcpStream) -> Option<()> {
    let hello = receive(&mut host, Hello::read)?;
    let welcome = Welcome { owner: 1, secret: [7; 16], incarnation: 5, lend: CLAIMED, ..Welcome::default() };
    host.write_all(Greeting::Welcome(welcome).frame().as_bytes()).ok()?;
    let Purpose::Attach(..) = hello.purpose else {
        loop {
            let Request { number, .. } = receive(&mut host, Request::read)?;
            let answer = Answer { number, epoch: 0, result: Ok(Reply::Done) };
            host.write_all(answer.frame().as_bytes()).ok()?;
        }
    };
    // With a bit that the state does not use.
    let word = (Word::plain(State::Shared, Generation(1)).0 | 1 << 46).to_le_bytes();
    let (mut words, header) = (word.repeat(128 << 10), Geometry::new(CLAIMED).unwrap().header(5));
    for number in 0u32.. {
        // Batches of one READ.
        let mut asked = [0; size_of::<Batch>() + size_of::<Verb>()];
        host.read_exact(&mut asked).ok()?;
        let verb = Verb::read_from_bytes(&asked[size_of::<Batch>()..]).ok()?;
        let done = Completion { number: number.into(), status: 0, zero: [0; 3], value: 0.into() };
        if verb.offset.get() == 0 {
            words[..header.len()].copy_from_slice(&header);
        }
        host.write_all(&[done.as_bytes(), &words[..verb.len.get() as usize]].concat()).ok()?;
        words[..header.len()].copy_from_slice(&word.repeat(header.len() / word.len()));
    }
    None
}

#[test]
fn a_node_with_a_large_table_takes_no_memory_of_who_looks() {
    let place = Place::new();
    let node = liar().to_string();
    let check = place.farmem(["check", &node]);
    let seen = farmem_tests::process::run(check, Duration::from_secs(120)).unwrap();
    let said = &seen.stderr;
    assert!(seen.status.code() == Some(1) && said.contains("cannot be as they are"), "{said}");
    assert_eq!(seen.stdout.iter().filter(|&&byte| byte == b'\n').count(), 20);
    println!("{} KiB", seen.peak_rss >> 10);
    assert!(seen.peak_rss < 64 << 20, "{} MiB", seen.peak_rss >> 20);
}
