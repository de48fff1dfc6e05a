//! What a run does with nodes that its controller gives it.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::thread::JoinHandle;

use common::{Place, eventually, free, outcome};

/// A process that ends with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn node(place: &Place, at: SocketAddr) -> Ends {
    let listen = at.to_string();
    let mut node = place.farmem(["node", "--lend", "128M", "--rdma", "off", "--listen", &listen]);
    let node = Ends(node.spawn().unwrap());
    eventually("the node listens", || TcpStream::connect(at).is_ok());
    node
}

/// A controller that gives these nodes, one list after the other, and the last one from then on. It ends
/// when it is asked for `/end`; how often it was asked.
fn controller(gives: Vec<Vec<String>>) -> (String, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let serves = move || {
        for asked in 0.. {
            let (mut stream, _) = listener.accept().unwrap();
            let (mut head, mut piece) = (String::new(), [0; 4096]);
            while !head.ends_with('}') && !head.starts_with("end") {
                let n = stream.read(&mut piece).unwrap();
                assert!(n > 0, "{head}");
                head.push_str(std::str::from_utf8(&piece[..n]).unwrap());
            }
            if head.starts_with("end") {
                return asked;
            }
            let given = &gives[asked.min(gives.len() - 1)];
            let nodes: Vec<String> =
                given.iter().enumerate().map(|(nth, at)| format!(r#"{{"at":"{at}","domain":"d{nth}"}}"#)).collect();
            let body = format!(r#"{{"nodes":[{}],"term":{{"rack":1,"epoch":1}}}}"#, nodes.join(","));
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).unwrap();
        }
        unreachable!("it is asked without end")
    };
    (at, std::thread::spawn(serves))
}

/// Runs a program on what such a controller gives: the status, what was said, and how often it was asked.
fn run(place: &Place, gives: Vec<Vec<String>>, options: &[&str]) -> (Option<i32>, String, String, usize) {
    let (at, serves) = controller(gives);
    let mut run = place.farmem(["run", "--no-settings", "--local", "8M", "--stats", "none", "--controller", &at]);
    run.args(options).args(["--", "sh", "-c", "sleep 1.5; echo ran"]);
    let (status, said, complaint) = outcome(run);
    TcpStream::connect(at).unwrap().write_all(b"end").unwrap();
    (status, said, complaint, serves.join().unwrap())
}

/// Another address of what listens there.
fn mapped(at: SocketAddr) -> String {
    format!("[::ffff:{}]:{}", at.ip(), at.port())
}

/// A process that was started anew under another name has two until the first is missed.
#[test]
fn a_node_that_is_given_twice_is_taken_once() {
    let (place, at) = (Place::new(), free());
    let _node = node(&place, at);
    for other in [at.to_string(), mapped(at)] {
        let twice = vec![at.to_string(), other.clone()];
        // Also while the run goes on.
        let gives = vec![twice.clone(), vec![at.to_string()], twice];
        let (status, said, complaint, asked) = run(&place, gives, &[]);
        assert_eq!((status, said.as_str(), complaint.as_str()), (Some(0), "ran\n", ""), "{other}");
        assert!(asked >= 2, "{asked}");
    }
}

/// Two copies need two nodes: the controller is asked again.
#[test]
fn a_mirror_that_is_given_one_node_twice_asks_again() {
    let (place, first, second) = (Place::new(), free(), free());
    let _nodes = [node(&place, first), node(&place, second)];
    let twice = vec![first.to_string(), mapped(first)];
    let both = vec![first.to_string(), second.to_string()];
    let mirror = ["--protect", "mirror"];
    let (status, said, complaint, asked) = run(&place, vec![twice.clone(), twice.clone(), both], &mirror);
    assert_eq!((status, said.as_str()), (Some(0), "ran\n"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(
        complaint.contains("given 1; the controller is asked for other nodes") && asked >= 3,
        "{asked}: {complaint}"
    );
    let (status, said, complaint, _) = run(&place, vec![twice], &mirror);
    assert_eq!((status, said.as_str()), (Some(72), ""), "{complaint}");
    assert!(complaint.ends_with("needs 2 nodes, and the controller has given 1\n"), "{complaint}");
}
