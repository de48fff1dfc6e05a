//! Several controllers over a real etcd, of which one leads: it is killed together with etcd's own leader, the next is
//! stopped and goes on, etcd loses its quorum and comes back. Nodes and programs go on all the while.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Node, binary, free_port};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, Running, TempDir, eventually};
use serde_json::Value;

/// Longer than anything here takes on a machine that is busy with other things.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a rack may be without a leader.
const TAKEOVER: Duration = Duration::from_secs(3);

/// A cluster of three.
struct Etcd {
    members: Vec<Option<Running>>,
    clients: Vec<SocketAddr>,
    peers: Vec<SocketAddr>,
    dir: TempDir,
}

impl Etcd {
    fn start() -> Result<Etcd> {
        let found = Command::new("etcd").arg("--version").output().is_ok_and(|out| out.status.success());
        ensure!(found, "no etcd: tests/peers.sh installs etcd-server");
        let ports = |_| free_port();
        let (clients, peers) = ((0..3).map(ports).collect::<Result<_>>()?, (0..3).map(ports).collect::<Result<_>>()?);
        let mut etcd = Etcd { members: vec![None, None, None], clients, peers, dir: TempDir::new("etcd")? };
        (0..3).try_for_each(|at| etcd.begin(at))?;
        ensure!(eventually(LIMIT, || etcd.leader().is_some()), "etcd has no leader");
        Ok(etcd)
    }

    /// Starts a member, or starts it anew with what it has.
    fn begin(&mut self, at: usize) -> Result<()> {
        let each = |(at, peer): (usize, &SocketAddr)| format!("m{at}=http://{peer}");
        let all: Vec<String> = self.peers.iter().enumerate().map(each).collect();
        let (client, peer) = (format!("http://{}", self.clients[at]), format!("http://{}", self.peers[at]));
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{at}"), "--initial-cluster", &all.join(",")]);
        command.arg("--data-dir").arg(self.dir.path().join(format!("m{at}")));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--unsafe-no-fsync"]);
        self.members[at] = Some(process::spawn(command)?);
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        if let Some(member) = self.members[at].take() {
            member.signal(libc::SIGKILL);
        }
    }

    /// Which member leads.
    fn leader(&self) -> Option<usize> {
        (0..3).find(|&at| {
            let said = ask(self.clients[at]).unwrap_or_default();
            said["leader"].is_string() && said["leader"] == said["header"]["member_id"]
        })
    }

    fn store(&self) -> String {
        let each: Vec<String> = self.clients.iter().map(SocketAddr::to_string).collect();
        format!("etcd://{}", each.join(","))
    }
}

/// What a member says of itself.
fn ask(at: SocketAddr) -> Result<Value> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"POST /v3/maintenance/status HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(serde_json::from_str(said.split("\r\n\r\n").nth(1).context("no body")?)?)
}

fn controller(at: SocketAddr, store: &str) -> Result<Running> {
    let mut command = Command::new(binary());
    command.args(["controller", "--listen", &at.to_string(), "--store", store]);
    process::spawn(command)
}

/// Whether it has said that it leads so many times.
fn leads(controller: &Running, times: usize) -> bool {
    controller.stderr().matches("leads the rack from here on").count() >= times
}

fn farmem(arguments: &[&str], controllers: &str) -> Result<process::Outcome> {
    let mut command = Command::new(binary());
    command.args(arguments).args(["--controller", controllers]);
    process::run(command, LIMIT)
}

/// The standing of a node, as the rack says it.
fn standing(name: &str, controllers: &str) -> Option<String> {
    let shown = farmem(&["status", "--json"], controllers).and_then(process::Outcome::success).ok()?;
    let rack: Value = serde_json::from_slice(&shown.stdout).ok()?;
    let node = rack["nodes"].as_array()?.iter().find(|node| node["name"] == name)?.clone();
    node["standing"].as_str().map(String::from)
}

fn program(controllers: &str) -> Result<Running> {
    let mut command = Command::new(binary());
    command.args(["run", "--no-settings", "--local", "8M", "--stats", "none", "--controller", controllers, "--"]);
    command.arg(compile::c("keeps_checking", &[])?).args(["48", "2"]);
    process::spawn(command)
}

/// Waits until a standby leads for the `times`th time.
fn takes_over(standby: &Running, times: usize, begun: Instant, lost: &mut Lost) -> Result<()> {
    ensure!(eventually(LIMIT, || leads(standby, times)), "{}", standby.stderr());
    let (took, without_cpu) = (begun.elapsed(), lost.lost());
    println!("taken over after {took:?}, {without_cpu:?} without a CPU");
    ensure!(took <= TAKEOVER + without_cpu, "after {took:?}, {without_cpu:?} without a CPU");
    Ok(())
}

#[test]
fn a_rack_outlives_its_controllers_and_its_etcd() -> Result<()> {
    let mut etcd = Etcd::start()?;
    let (a, b) = (free_port()?, free_port()?);
    let all = format!("{a},{b}");
    let first = controller(a, &etcd.store())?;
    ensure!(eventually(LIMIT, || leads(&first, 1)), "{}", first.stderr());
    let second = controller(b, &etcd.store())?;
    let stands = |one: &Running| one.stderr().contains("stands by");
    ensure!(eventually(LIMIT, || stands(&second)), "{}", second.stderr());
    let node = |name: &str| Node::start("256M", &["--controller", &all, "--name", name, "--domain", name]);
    let (_lends, _empty) = (node("lends")?, node("empty")?);
    let is = |name: &str, wanted: &str| eventually(LIMIT, || standing(name, &all).as_deref() == Some(wanted));
    ensure!(is("lends", "up") && is("empty", "up"), "{}", first.stderr());
    farmem(&["drain", "empty"], &all)?.success()?;
    let work = program(&all)?;
    let ready = || String::from_utf8_lossy(&work.stdout()).contains("ready");
    ensure!(eventually(LIMIT, ready), "{}", work.stderr());

    // The leader, and etcd's with it: the next has been asking both for a while.
    std::thread::sleep(Duration::from_millis(700));
    let members: Vec<i32> = etcd.members.iter().flatten().map(Running::pid).collect();
    let mut lost = Lost::by(&[second.pid(), members[0], members[1], members[2]]);
    let leader = etcd.leader().context("etcd has no leader")?;
    let begun = Instant::now();
    first.signal(libc::SIGKILL);
    etcd.kill(leader);
    takes_over(&second, 1, begun, &mut lost)?;
    ensure!(is("empty", "empty") && is("lends", "up"), "what was ordered is forgotten: {}", second.stderr());

    // One that is only stopped is replaced, too, and knows it when it goes on.
    let first = controller(a, &etcd.store())?;
    ensure!(eventually(LIMIT, || stands(&first)), "{}", first.stderr());
    std::thread::sleep(Duration::from_millis(700));
    let mut lost = Lost::by(&[first.pid()]);
    let begun = Instant::now();
    second.signal(libc::SIGSTOP);
    takes_over(&first, 1, begun, &mut lost)?;
    second.signal(libc::SIGCONT);
    ensure!(eventually(LIMIT, || second.stderr().contains(&format!("stands by: {a} leads"))), "{}", second.stderr());

    // Without a quorum nobody leads, and what runs goes on.
    let next = (0..3).find(|at| etcd.members[*at].is_some()).context("no member is left")?;
    etcd.kill(next);
    let refused = || farmem(&["status"], &all).is_ok_and(|shown| shown.stderr.contains("does not reach etcd"));
    ensure!(eventually(LIMIT, refused), "{}", first.stderr());
    ensure!(work.alive() && _lends.running.alive());
    etcd.begin(leader)?;
    etcd.begin(next)?;
    ensure!(is("lends", "up") && is("empty", "empty"), "{} {}", first.stderr(), second.stderr());
    farmem(&["undrain", "empty"], &all)?.success()?;
    ensure!(is("empty", "up"));
    work.signal(libc::SIGUSR1);
    let outcome = work.wait(LIMIT)?.success()?;
    ensure!(outcome.stdout_tail().contains("sound"), "{outcome:?}");
    Ok(())
}
