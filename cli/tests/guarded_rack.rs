//! A controller that knows tokens: who may ask it for nodes, be a node, and give orders, and who may not.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command};
use std::time::Duration;

use common::{Place, eventually, free, outcome};
use farmem_protocol::nbd::{self, Asked, TO_BE_EMPTIED};
use farmem_swap::stream::{Wanted, dial};
use zerocopy::IntoBytes;

/// Processes that end with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Rack {
    place: Place,
    at: String,
    _controller: Ends,
}

impl Rack {
    /// A controller with tokens of the tenants `rack` and `lab`.
    fn start() -> Rack {
        let (place, at) = (Place::new(), free().to_string());
        for tenant in ["rack", "lab"] {
            create(&place, tenant);
        }
        let mut controller = place.farmem(["controller", "--listen", &at, "--tokens"]);
        controller.arg(place.path().join("tokens.toml"));
        let controller = spawned(&place, controller, "controller.log");
        eventually("the controller listens", || TcpStream::connect(&at).is_ok());
        Rack { place, at, _controller: controller }
    }

    fn command(&self, arguments: &[&str], token: Option<&str>) -> Command {
        let mut command = self.place.farmem(arguments);
        if let Some(tenant) = token {
            command.arg("--token").arg(self.place.path().join(format!("{tenant}.token")));
        }
        command
    }

    /// A node of the rack, which may or may not have a token.
    fn node(&self, name: &str, token: Option<&str>) -> Ends {
        let listen = free().to_string();
        let node = ["node", "--lend", "256M", "--rdma", "off", "--listen", &listen];
        let mut node = self.command(&[&node[..], &["--controller", &self.at, "--name", name]].concat(), token);
        node.arg("--tokens").arg(self.place.path().join("tokens.toml"));
        spawned(&self.place, node, &format!("{name}.log"))
    }

    fn run(&self, at: &str, token: Option<&str>) -> Command {
        let run = ["run", "--no-settings", "--local", "8M", "--stats", "none", "--controller", at];
        let mut command = self.command(&run, token);
        command.args(["--", "echo", "ran"]);
        command
    }

    fn log(&self, of: &str) -> String {
        fs::read_to_string(self.place.path().join(format!("{of}.log"))).unwrap()
    }

    fn rack(&self) -> String {
        outcome(self.command(&["status", "--json", "--controller", &self.at], None)).1
    }
}

fn spawned(place: &Place, mut command: Command, log: &str) -> Ends {
    Ends(command.stderr(fs::File::create(place.path().join(log)).unwrap()).spawn().unwrap())
}

fn create(place: &Place, tenant: &str) {
    let mut command = place.farmem(["token", "create", "--tenant", tenant, "--store"]);
    command.arg(place.path().join("tokens.toml"));
    let (status, token, complaint) = outcome(command);
    assert_eq!(status, Some(0), "{complaint}");
    let path = place.path().join(format!("{tenant}.token"));
    fs::write(&path, token).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn refused(command: Command, says: &str) {
    let (status, said, complaint) = outcome(command);
    assert!(status.is_some_and(|status| status != 0), "{said}");
    assert!(complaint.contains(says), "{complaint}");
}

#[test]
fn nobody_changes_a_rack_without_its_token() {
    let rack = Rack::start();
    let _good = rack.node("good", Some("rack"));
    eventually("a node with the token is of the rack", || rack.rack().contains("\"good\""));
    let (_none, _tenants) = (rack.node("none", None), rack.node("tenants", Some("lab")));
    eventually("a node without one is refused", || rack.log("none").contains("serves holders of tokens alone"));
    eventually("a node with a run's is refused", || rack.log("tenants").contains("a token of the tenant rack"));
    // The key "tenants" is there anyhow.
    let knows = |name: &str| rack.rack().contains(&format!("\"name\": \"{name}\""));
    assert!(knows("good") && !knows("none") && !knows("tenants"), "{}", rack.rack());

    refused(rack.run(&rack.at, None), "serves holders of tokens alone");
    let (status, said, complaint) = outcome(rack.run(&rack.at, Some("lab")));
    assert_eq!((status, said.as_str()), (Some(0), "ran\n"), "{complaint}");

    for order in ["drain", "undrain", "forget"] {
        refused(rack.command(&[order, "good", "--controller", &rack.at], None), "serves holders of tokens alone");
        refused(rack.command(&[order, "good", "--controller", &rack.at], Some("lab")), "a token of the tenant rack");
    }
    assert!(rack.rack().contains("\"up\""), "{}", rack.rack());
    assert_eq!(outcome(rack.command(&["drain", "good", "--controller", &rack.at], Some("rack"))).0, Some(0));
    assert!(rack.rack().contains("\"empty\""), "{}", rack.rack());
    assert_eq!(outcome(rack.command(&["undrain", "good", "--controller", &rack.at], Some("rack"))).0, Some(0));
    let top = rack.command(&["top", "--rack", "--once", "--controller", &rack.at], Some("lab"));
    assert!(outcome(top).1.contains("good"));

    // The store is read again.
    let mut revoke = rack.place.farmem(["token", "revoke", "lab", "--store"]);
    revoke.arg(rack.place.path().join("tokens.toml"));
    assert_eq!(outcome(revoke).0, Some(0));
    refused(rack.run(&rack.at, Some("lab")), "does not know this token");
}

/// A drained node tells the machines that swap to it, and `farmem drain` ends when their pages are back.
#[test]
fn a_drained_node_tells_those_that_swap_to_it() {
    let rack = Rack::start();
    let _node = rack.node("good", Some("rack"));
    eventually("the node is of the rack", || rack.rack().contains("\"up\""));
    let of_node = |field: &str| {
        let view: serde_json::Value = serde_json::from_str(&rack.rack()).unwrap();
        view["nodes"][0][field].clone()
    };
    let at = of_node("address").as_str().unwrap().to_owned();
    let token = rack.place.path().join("lab.token");
    let limit = Duration::from_secs(60);
    let new = Wanted {
        at: &[],
        node: &at,
        id: [7; 16],
        incarnation: 0,
        agreed: None,
        size: 1 << 20,
        kept: limit,
        overcommit: false,
        data: false,
        host: "here",
        token: Some(&token),
    };
    let mut asks = dial(&new, limit).unwrap();
    let moves = Wanted { incarnation: asks.incarnation, agreed: asks.agreed, data: true, ..new };
    let mut pages = dial(&moves, limit).unwrap().into_socket();
    let page: [u8; 4096] = std::array::from_fn(|at| (at % 251) as u8);
    pages.write_all(&[Asked::frame(nbd::Command::Write, 1, 0, 4096).as_bytes(), &page].concat()).unwrap();
    pages.read_exact(&mut [0; 16]).unwrap();
    eventually("the rack knows that the page takes memory", || of_node("lent").as_u64() > Some(0));

    let mut drain = rack.command(&["drain", "good", "--controller", &rack.at], Some("rack"));
    let mut drain = Ends(drain.spawn().unwrap());
    eventually("the machine is told", || asks.report().unwrap().flags.get() & TO_BE_EMPTIED != 0);
    let refused = dial(&Wanted { id: [8; 16], ..new }, limit).unwrap_err().to_string();
    assert!(refused.contains("empties"), "{refused}");
    assert!(drain.0.try_wait().unwrap().is_none());
    asks.free().unwrap();
    assert!(drain.0.wait().unwrap().success());
    assert!(rack.rack().contains("\"empty\""), "{}", rack.rack());
    assert_eq!(outcome(rack.command(&["undrain", "good", "--controller", &rack.at], Some("rack"))).0, Some(0));
    eventually("the node takes volumes again", || dial(&Wanted { id: [9; 16], ..new }, limit).is_ok());
}

/// Passes a connection's bytes on, with one word of the controller's answers replaced by another of its length.
fn changes(at: String, word: &'static str, by: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut near in listener.incoming().flatten() {
            let mut far = TcpStream::connect(&at).unwrap();
            let (mut from, mut to) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
            });
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(count @ 1..) = far.read(&mut bytes) {
                    let answer: Vec<u8> = String::from_utf8_lossy(&bytes[..count]).replace(word, by).into_bytes();
                    if near.write_all(&answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    here
}

#[test]
fn an_answer_that_was_changed_on_its_way_is_not_believed() {
    let rack = Rack::start();
    let _node = rack.node("good", Some("rack"));
    eventually("the node is of the rack", || rack.rack().contains("\"good\""));
    let passes = changes(rack.at.clone(), "no such word", "no such word");
    assert_eq!(outcome(rack.run(&passes, Some("lab"))).1, "ran\n");
    // A run sent to another node, and an operator told that a node is empty.
    refused(rack.run(&changes(rack.at.clone(), "127.", "126."), Some("lab")), "does not prove");
    let status = |at: &str, token| rack.command(&["status", "--controller", at], token);
    let liar = changes(rack.at.clone(), "\"up\"", "\"xx\"");
    refused(status(&liar, Some("rack")), "does not prove");
    assert!(outcome(status(&liar, None)).1.contains("xx"));
    // Nor one of a controller that knows no tokens.
    let at = free().to_string();
    let _open = spawned(&rack.place, rack.place.farmem(["controller", "--listen", &at]), "open.log");
    eventually("the controller listens", || TcpStream::connect(&at).is_ok());
    refused(status(&at, Some("rack")), "does not prove");
    refused(rack.place.farmem(["controller", "--listen", "0.0.0.0:0"]), "--tokens FILE");
}
