//! Several controllers over a real etcd, of which one leads: it is killed together with etcd's own leader, the next is
//! stopped and goes on, etcd loses its quorum and comes back. Nodes and programs go on all the while.
//! Beside it: an etcd that wants TLS and a user.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Node, binary, free_port};
use farmem_tests::lost::Lost;
use farmem_tests::process::{self, Running, TempDir, eventually};
use serde_json::{Value, json};

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

/// Posts to a member without TLS; the body of its answer.
fn post(at: SocketAddr, path: &str, body: &Value, token: &str) -> Result<Value> {
    let (mut stream, body, mut said) = (TcpStream::connect(at)?, body.to_string(), String::new());
    let token = if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
    let head = format!("POST {path} HTTP/1.0\r\n{token}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes())?;
    stream.read_to_string(&mut said)?;
    let (head, body) = said.split_once("\r\n\r\n").context("no body")?;
    ensure!(head.contains(" 200 "), "{path}: {said}");
    Ok(serde_json::from_str(body)?)
}

/// An authority's certificate, and a certificate and key of `host` that it has signed, in files.
fn certificates(dir: &Path, host: &str) -> Result<()> {
    let name = format!("subjectAltName=IP:{host}\nbasicConstraints=CA:FALSE\n");
    std::fs::write(dir.join("names"), name)?;
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    for line in [
        format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"),
        format!("req {key} -keyout etcd.key -out etcd.csr -subj /CN=etcd"),
        format!("req {key} -keyout rack.key -out rack.csr -subj /CN=rack"),
        "x509 -req -in rack.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out rack.crt -days 2 -extfile names".into(),
        "x509 -req -in etcd.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out etcd.pem -days 2 -extfile names".into(),
        format!("req -x509 {key} -keyout other.key -out other.pem -days 2 -subj /CN=other"),
    ] {
        let made = Command::new("openssl").args(line.split(' ')).current_dir(dir).output().context("openssl")?;
        ensure!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

/// An etcd that wants TLS and a user serves a controller that has both, and says to another what is
/// missing. It forgets the user's token in between.
#[test]
fn etcd_is_reached_by_tls_and_with_a_user() -> Result<()> {
    let dir = TempDir::new("etcds")?;
    let file = |name: &str| dir.path().join(name);
    let [plain, secret, peer] = [free_port()?, free_port()?, free_port()?];
    certificates(dir.path(), &secret.ip().to_string())?;
    let mut command = Command::new("etcd");
    command.args(["--name", "m", "--unsafe-no-fsync", "--auth-token", "simple"]);
    command.arg("--data-dir").arg(file("data")).arg("--cert-file").arg(file("etcd.pem"));
    command.arg("--key-file").arg(file("etcd.key"));
    let clients = format!("http://{plain},https://{secret}");
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &format!("http://{plain}")]);
    let peer = format!("http://{peer}");
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("m={peer}")]);
    let etcd = process::spawn(command).context("no etcd: tests/peers.sh installs etcd-server")?;
    let serves = || ask(plain).is_ok_and(|said| said["leader"].is_string()) || !etcd.alive();
    ensure!(eventually(LIMIT, serves), "{}", etcd.stderr());
    // From farmem/ to farmem0, in base64.
    let all = json!({ "permType": "READWRITE", "key": "ZmFybWVtLw==", "range_end": "ZmFybWVtMA==" });
    for (path, body) in [
        ("/v3/auth/user/add", json!({ "name": "root", "password": "top" })),
        ("/v3/auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("/v3/auth/role/add", json!({ "name": "rack" })),
        ("/v3/auth/role/grant", json!({ "name": "rack", "perm": all })),
        ("/v3/auth/user/add", json!({ "name": "rack", "password": "shelf" })),
        ("/v3/auth/user/grant", json!({ "user": "rack", "role": "rack" })),
        ("/v3/auth/enable", json!({})),
    ] {
        // The role root is made by the first call that needs it.
        if body["role"] == "root" {
            post(plain, "/v3/auth/role/add", &json!({ "name": "root" }), "")?;
        }
        post(plain, path, &body, "")?;
    }

    let at = free_port()?;
    let store = format!("etcds://{secret}");
    let begin = |ca: &str, user: Option<&str>| -> Result<Running> {
        let mut command = Command::new(binary());
        command.args(["controller", "--listen", &at.to_string(), "--store", &store]).arg("--etcd-ca").arg(file(ca));
        if let Some(user) = user {
            std::fs::write(file("user"), user)?;
            std::fs::set_permissions(file("user"), std::fs::Permissions::from_mode(0o600))?;
            command.arg("--etcd-user").arg(file("user"));
        }
        process::spawn(command)
    };
    for (ca, user, why) in [
        ("other.pem", Some("rack:shelf"), "certificate"),
        ("ca.pem", None, "user name is empty; --etcd-user names a file"),
        ("ca.pem", Some("rack:wrong"), "etcd refuses: etcdserver: authentication failed"),
    ] {
        let refused = begin(ca, user)?;
        ensure!(eventually(LIMIT, || refused.stderr().contains(why)), "{why}: {}", refused.stderr());
        ensure!(refused.alive() && !leads(&refused, 1), "{}", refused.stderr());
        refused.signal(libc::SIGKILL);
        ensure!(eventually(LIMIT, || !refused.alive()));
    }
    let rack = begin("ca.pem", Some("rack:shelf"))?;
    ensure!(eventually(LIMIT, || leads(&rack, 1)), "{}", rack.stderr());
    let _node = Node::start("64M", &["--controller", &at.to_string(), "--name", "only", "--domain", "shelf"])?;
    let is = |wanted: &str| eventually(LIMIT, || standing("only", &at.to_string()).as_deref() == Some(wanted));
    ensure!(is("up"), "{}", rack.stderr());
    // A change of its users makes etcd refuse the tokens it gave.
    let root = post(plain, "/v3/auth/authenticate", &json!({ "name": "root", "password": "top" }), "")?;
    let root = root["token"].as_str().context("no token")?;
    post(plain, "/v3/auth/user/changepw", &json!({ "name": "root", "password": "more" }), root)?;
    farmem(&["drain", "only"], &at.to_string())?.success()?;
    ensure!(is("empty") && rack.alive(), "{}", rack.stderr());
    Ok(())
}

/// An etcd that asks for client certificates serves a controller that has one of its authority, and no
/// other.
#[test]
fn etcd_is_reached_with_a_client_certificate() -> Result<()> {
    let dir = TempDir::new("etcd-cert")?;
    let file = |name: &str| dir.path().join(name);
    let [secret, peer] = [free_port()?, free_port()?];
    certificates(dir.path(), &secret.ip().to_string())?;
    let mut command = Command::new("etcd");
    command.args(["--name", "m", "--unsafe-no-fsync", "--client-cert-auth", "--data-dir"]).arg(file("data"));
    for (option, name) in [("--cert-file", "etcd.pem"), ("--key-file", "etcd.key"), ("--trusted-ca-file", "ca.pem")] {
        command.arg(option).arg(file(name));
    }
    let (client, peer) = (format!("https://{secret}"), format!("http://{peer}"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("m={peer}")]);
    let etcd = process::spawn(command).context("no etcd: tests/peers.sh installs etcd-server")?;
    for (own, name) in [("rack", "rack.crt"), ("other", "other.pem")] {
        let both = [name, &format!("{own}.key")].map(|part| std::fs::read(file(part)));
        let [certificate, key] = both;
        std::fs::write(file(&format!("{own}.both")), [certificate?, key?].concat())?;
        std::fs::set_permissions(file(&format!("{own}.both")), std::fs::Permissions::from_mode(0o600))?;
    }
    let begin = |own: Option<&str>| -> Result<Running> {
        let mut command = Command::new(binary());
        command.args(["controller", "--listen", &free_port()?.to_string(), "--store", &format!("etcds://{secret}")]);
        command.arg("--etcd-ca").arg(file("ca.pem"));
        own.into_iter().for_each(|own| _ = command.arg("--etcd-cert").arg(file(&format!("{own}.both"))));
        process::spawn(command)
    };
    let rack = begin(Some("rack"))?;
    let leads_or_ends = || leads(&rack, 1) || !rack.alive();
    ensure!(eventually(LIMIT, leads_or_ends) && rack.alive(), "{}{}", rack.stderr(), etcd.stderr());
    rack.signal(libc::SIGKILL);
    ensure!(eventually(LIMIT, || !rack.alive()));
    for own in [None, Some("other")] {
        let refused = begin(own)?;
        let told = || refused.stderr().to_lowercase().contains("certificate");
        ensure!(eventually(LIMIT, told) && !leads(&refused, 1), "{own:?}: {}", refused.stderr());
    }
    Ok(())
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
    let mut lost = Lost::by(&[second.pid(), first.pid(), members[0], members[1], members[2]]);
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
