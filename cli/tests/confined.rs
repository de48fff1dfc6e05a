//! Services give up what they do not need once they have begun, and still do all that they are for.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};

use common::{Place, eventually, free, outcome};

/// A process that ends with the test.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Service {
    fn start(place: &Place, mut command: Command, name: &str) -> Service {
        let log = fs::File::create(place.path().join(name)).unwrap();
        Service(command.stderr(log).spawn().unwrap())
    }

    /// What the kernel says of each of its threads.
    fn assert_confined(&self) {
        let threads = fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        for thread in threads.flatten() {
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
                // A thread may have ended meanwhile.
                assert!(status.is_empty() || status.contains(line), "{line}: {status}");
            }
        }
    }
}

/// Fills 32 MiB, reads it again, and gives most of it back.
const PROGRAM: &str = "x=[bytes([i%251])*65536 for i in range(512)]\nprint(sum(p[0] for p in x))\ndel x";

#[test]
fn a_confined_node_and_controller_do_all_that_they_are_for() {
    let (place, at, controller_at, metrics) =
        (Place::new(), free().to_string(), free().to_string(), free().to_string());
    let (store, socket) = (place.path().join("tokens.toml"), place.path().join("node.sock"));
    let token = |arguments: &[&str]| {
        let (status, said, complaint) =
            outcome(place.farmem([&["token"], arguments, &["--store", store.to_str().unwrap()]].concat()));
        assert_eq!(status, Some(0), "{complaint}");
        said
    };
    let secret = |tenant: &str| {
        let path = place.path().join(tenant);
        fs::write(&path, token(&["create", "--tenant", tenant])).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, mode).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (rack, lab) = (secret("rack"), secret("lab"));

    let kept = place.path().join("rack.redb");
    let mut controller = place.farmem(["controller", "--listen", &controller_at, "--tokens"]);
    controller.arg(&store).arg("--store").arg(&kept);
    let controller = Service::start(&place, controller, "controller.log");
    eventually("the controller listens", || TcpStream::connect(&controller_at).is_ok());

    let options =
        ["node", "-v", "--lend", "512M", "--rdma", "off", "--compute", "1", "--grace", "0s", "--name", "here"];
    let mut node = place.farmem(options);
    node.args(["--listen", &at, "--listen", &format!("unix:{}", socket.display()), "--metrics", &metrics]);
    node.args(["--controller", &controller_at, "--token", &rack, "--tokens"]).arg(&store);
    let node = Service::start(&place, node, "node.log");
    let log = || fs::read_to_string(place.path().join("node.log")).unwrap();
    eventually("the node is of the rack", || log().contains("is of the rack"));
    assert!(log().contains("confined: seccomp, no capabilities"), "{}", log());
    node.assert_confined();
    controller.assert_confined();

    let run = |options: &[&str]| {
        let mut command = place.farmem(["run", "--local", "8M", "--stats", "none", "--token", &lab]);
        command.args(options).args(["--", "python3", "-c", PROGRAM]);
        outcome(command)
    };
    for way in [
        ["--controller", &controller_at, "--transport", "tcp"],
        ["--controller", &controller_at, "--transport", "auto"],
        ["--node", &format!("unix:{}", socket.display()), "--transport", "auto"],
    ] {
        let (status, said, complaint) = run(&way);
        assert_eq!((status, said.as_str()), (Some(0), "62795\n"), "{way:?}: {complaint}");
    }

    let mut kv = place.farmem(["kv", "--name", "store", "--node", &at, "--token", &lab, "--listen"]);
    let kv_at = free().to_string();
    kv.arg(&kv_at);
    let kv = Service::start(&place, kv, "kv.log");
    eventually("the store listens", || TcpStream::connect(&kv_at).is_ok());
    let mut client = TcpStream::connect(&kv_at).unwrap();
    client.write_all(b"SET key value\r\nGET key\r\nINFO\r\nQUIT\r\n").unwrap();
    let mut said = String::new();
    client.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("+OK\r\n$5\r\nvalue\r\n"), "{said}");
    kv.assert_confined();
    drop(kv);

    let agent = place.farmem(["agent", "--node", &at, "--token", &lab, "--idle", "0s"]);
    let agent = Service::start(&place, agent, "agent.log");
    eventually("the agent serves", || outcome(place.farmem(["agent", "--status"])).0 == Some(0));
    agent.assert_confined();

    let mut counters = TcpStream::connect(&metrics).unwrap();
    counters.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut said = String::new();
    counters.read_to_string(&mut said).unwrap();
    assert!(said.contains("farmem_node_lend_bytes"), "{said}");
    let status = |arguments: &[&str]| outcome(place.farmem(arguments));
    assert!(status(&["status", &at, "--token", &lab]).1.contains("seccomp, no capabilities"));
    drop(agent);

    // The store's region stays, and holds memory: nobody waits for it here.
    let order = |arguments: &[&str]| {
        let (code, _, complaint) = status(&[arguments, &["--controller", &controller_at, "--token", &rack]].concat());
        assert_eq!(code, Some(0), "{complaint}");
    };
    order(&["drain", "here", "--no-wait"]);
    order(&["undrain", "here"]);
    token(&["revoke", "lab"]);
    eventually("the store is read again", || run(&["--node", &at]).2.contains("revoked"));
    farmem_sys::process::send(node.0.id(), libc::SIGTERM).unwrap();
    eventually("the node ends and takes its socket along", || !socket.exists());
}
