//! Peers that ask for much and take nothing, or have many connections that all end.

mod common;

use common::{ask, greet, hello, within};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::key::Key;
use farmem_protocol::wire::{Ask, Batch, Hello, Known, MAX_VERB_BYTES, MAX_VERBS, Op, Purpose, Reply, Verb, Welcome};
use farmem_tests::process::unsent;
use std::io::Write;
use std::net::TcpStream;
use zerocopy::IntoBytes;

/// Connections that take nothing.
const MANY: u64 = 200;
/// Bytes that the kernel may have waiting for all of them. Without a bound it has 1.4 MiB for each.
const MOST: u64 = 120 << 20;

fn attach(at: &str, welcome: &Welcome, queue: u64) -> TcpStream {
    let known = Known { secret: welcome.secret, incarnation: welcome.incarnation };
    let mut stream = TcpStream::connect(at).unwrap();
    greet(&mut stream, &Hello::new(Purpose::Attach(known, queue))).unwrap();
    stream
}

/// They would fill what the kernel has for all TCP of the machine.
#[test]
fn peers_that_take_nothing_leave_the_kernel_its_memory() {
    farmem_sys::process::raise_descriptor_limit();
    let listen = vec![farmem_fabric::NodeAddr::Tcp("127.0.0.1:0".into())];
    let node = Node::start(&Config::new(SLAB_BYTES, listen)).unwrap();
    let at = node.addresses()[0].to_string();
    let port = at.rsplit(':').next().unwrap().parse().unwrap();
    let mut member = TcpStream::connect(&at).unwrap();
    let welcome = greet(&mut member, &hello([7; 16], 0)).unwrap();
    let Ok(Reply::Slab(slab)) = ask(&mut member, 1, Ask::Grant) else { panic!("no slab") };
    let zero = [0; 3];
    let read =
        Verb { op: Op::Read as u8, zero, len: MAX_VERB_BYTES.into(), key: Key::from(slab).0.into(), offset: 0.into() };
    let batch = Batch { count: (MAX_VERBS as u16).into(), zero: 0.into(), bytes: 0.into(), first: 0.into() };
    let asked = [batch.as_bytes(), &read.as_bytes().repeat(MAX_VERBS)].concat();
    let open: Vec<TcpStream> = (0..MANY).map(|queue| attach(&at, &welcome, queue)).collect();
    open.iter().for_each(|mut stream| stream.write_all(&asked).unwrap());
    // Until no more comes.
    let (mut before, mut same) = (0, 0);
    within("the sockets are full", || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = unsent(port);
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
        same == 10
    });
    println!("{} KiB wait for {MANY} connections", before >> 10);
    assert!(before < MOST, "{} MiB wait", before >> 20);
    // Another's READs come as they are asked for.
    let mut other = attach(&at, &welcome, MANY);
    other.write_all(&asked).unwrap();
    let bytes = MAX_VERBS as u64 * (u64::from(MAX_VERB_BYTES) + 16);
    let came = std::io::copy(&mut std::io::Read::take(&mut other, bytes), &mut std::io::sink()).unwrap();
    assert_eq!(came, bytes);
}
