//! A host and a node of different versions of the protocol: each end says in one line which
//! versions they speak.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Place, eventually, free, outcome};
use farmem_protocol::wire::{Hello, NewVolume, Purpose, VERSION};
use farmem_swap::stream::{Wanted, dial};

/// Magic and version: the first bytes of everything that version 6 says.
const HEAD_OF_6: [u8; 8] = *b"farmem\x06\x00";
/// The same of ours.
const HEAD: [u8; 8] = {
    let [low, high] = VERSION.to_le_bytes();
    [b'f', b'a', b'r', b'm', b'e', b'm', low, high]
};
/// The answer of a node of version 6 to any other version, as recorded.
const REFUSAL_OF_6: [u8; 12] = *b"farmem\x06\x00\x02\x00\x01\x00";

/// The Hello of a run of version 6, as recorded.
const HELLO_OF_6: &[u8] =
    b"farmem\x06\x00\x27\x00\x00\x30\xa4\x30\xb2\xa9\x47\x2f\x1e\x2a\x78\xe9\x28\x71\x85\xf2\xfa\x8c\x99\
    \x01\x88\x27\x00\x02\x76\x6d\x04root\x04true\x00\x00\x00";

/// A node of version 6, as far as a host of another version comes.
struct Former {
    at: String,
    /// Each host's magic and version.
    heard: Arc<Mutex<Vec<[u8; 8]>>>,
}

impl Former {
    fn start() -> Former {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, heard) = (listener.local_addr().unwrap().to_string(), Arc::<Mutex<Vec<_>>>::default());
        let hears = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = [0; 8];
                stream.read_exact(&mut head).unwrap();
                hears.lock().unwrap().push(head);
                // It would wait for the body of its own version's.
                if head != HEAD_OF_6 {
                    stream.write_all(&REFUSAL_OF_6).unwrap();
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        });
        Former { at, heard }
    }
}

fn token(place: &Place) -> String {
    let mut command = place.farmem(["token", "create", "--tenant", "lab", "--store"]);
    command.arg(place.path().join("tokens.toml"));
    let (status, token, complaint) = outcome(command);
    assert_eq!((status, complaint.as_str()), (Some(0), ""));
    let path = place.path().join("lab.token");
    fs::write(&path, token).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A new volume at this node.
fn volume<'a>(node: &'a str, token: Option<&'a Path>) -> Wanted<'a> {
    Wanted {
        node,
        at: &[],
        id: [3; 16],
        incarnation: 0,
        agreed: None,
        size: 16 << 20,
        kept: Duration::from_secs(1),
        overcommit: false,
        data: false,
        host: "here",
        token,
    }
}

#[test]
fn a_host_says_which_version_its_node_speaks() {
    let (place, former) = (Place::new(), Former::start());
    let (token, node) = (token(&place), former.at.as_str());
    let versions = format!("speaks version 6 of the protocol, this farmem version {VERSION}: install the same");
    let run = ["run", "--local", "8M", "--transport", "tcp", "--node", node];
    let kv = ["kv", "--name", "store", "--listen", "127.0.0.1:0", "--transport", "tcp", "--node", node];
    let commands = [(&run[..], &["--", "true"][..]), (&kv, &[]), (&["status", node], &[])];
    for guarded in [&[][..], &["--token", &token]] {
        for (command, rest) in commands {
            let (status, _, complaint) = outcome(place.farmem([command, guarded, rest].concat()));
            assert_eq!((status, complaint.lines().count()), (Some(72), 1), "{command:?}: {complaint}");
            assert!(complaint.contains(&versions) && complaint.contains(node), "{command:?}: {complaint}");
        }
    }
    for token in [None, Some(Path::new(&token))] {
        let said = dial(&volume(node, token), Duration::from_secs(5)).unwrap_err().to_string();
        assert!(said.contains(&versions) && said.contains(node), "{said}");
    }
    let heard = former.heard.lock().unwrap();
    assert!(heard.len() >= 8 && heard.iter().all(|head| *head == HEAD), "{heard:?}");
}

#[test]
fn a_node_says_which_version_its_host_speaks() {
    let (place, at) = (Place::new(), free());
    let (named, log) = (at.to_string(), place.path().join("node.log"));
    let mut node = place.farmem(["node", "--lend", "64M", "--rdma", "off", "--listen", &named]);
    let mut node = node.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    eventually("the node listens", || TcpStream::connect(at).is_ok());
    // That of a volume has not changed since.
    let volume = Hello::new(Purpose::NewVolume(NewVolume { size: 1 << 24, ..NewVolume::default() })).frame();
    let volume = [&HEAD_OF_6[..], &volume.as_bytes()[HEAD_OF_6.len()..]].concat();
    for hello in [HELLO_OF_6, &volume] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(hello).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        // A host of version 6 reads no further.
        assert_eq!(answer[..8], HEAD);
    }
    let line = format!("it speaks version 6 of the protocol, this node version {VERSION}");
    let said = || fs::read_to_string(&log).unwrap();
    eventually("the node has said so", || said().lines().any(|said| said.contains(&line)));
    node.kill().unwrap();
    node.wait().unwrap();
}
