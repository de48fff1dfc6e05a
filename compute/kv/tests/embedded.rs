//! The store within a program: what it does, beside another front end, and what a near GET costs.

use farmem_fabric::NodeAddr;
use farmem_kv::{Failed, Store};
use farmem_memory::Node;
use std::time::{Duration, Instant};

fn node() -> Node {
    let socket = std::env::temp_dir().join(format!("farmem-embedded-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket)];
    Node::start(&farmem_memory::Config::new(4 * (64 << 20), listen)).unwrap()
}

fn get(store: &mut Store, key: &[u8]) -> Option<Vec<u8>> {
    store.get(key).unwrap().map(|bytes| bytes.to_vec())
}

#[test]
fn a_program_has_a_store_by_itself_and_beside_another() {
    let node = node();
    let nodes = [node.addresses()[0].to_string()];
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let mut one = Store::open("own", &nodes).unwrap();
    one.put(b"greeting", b"hello").unwrap();
    assert_eq!(one.get(b"greeting").unwrap().as_deref(), Some(&b"hello"[..]));
    assert!(one.put_if_absent(b"block", b"1").unwrap() && !one.put_if_absent(b"block", b"2").unwrap());
    assert_eq!(get(&mut one, b"block").as_deref(), Some(&b"1"[..]));
    assert_eq!(
        (one.contains(b"none").unwrap(), one.remove(b"block").unwrap(), one.remove(b"block").unwrap()),
        (false, true, false)
    );

    // Alone, it reads without a verb; a gap between calls is no harm.
    for n in 0..1000u32 {
        one.put(&n.to_le_bytes(), &[7; 512]).unwrap();
    }
    let begun = Instant::now();
    for n in 0..100_000u32 {
        assert!(one.get(&(n % 1000).to_le_bytes()).unwrap().is_some());
    }
    let each = begun.elapsed() / 100_000;
    println!("a near GET of 512 bytes: {each:?}");
    assert!(each < Duration::from_micros(20), "as long as verbs take: {each:?}");

    // Another one, which the first must tend meanwhile.
    let joins = std::thread::spawn({
        let nodes = node.addresses()[0].to_string();
        move || {
            let mut other = Store::open("own", &[&nodes]).unwrap();
            let seen = get(&mut other, b"greeting");
            other.put(b"greeting", b"bye").unwrap();
            other.put_until(b"short", b"x", Some(1)).unwrap();
            other.close().unwrap();
            seen
        }
    });
    while !joins.is_finished() {
        one.tend().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(joins.join().unwrap().as_deref(), Some(&b"hello"[..]));
    assert_eq!((get(&mut one, b"greeting").as_deref(), get(&mut one, b"short")), (Some(&b"bye"[..]), None));

    drop(node);
    let lost = loop {
        match one.put(b"greeting", b"x") {
            Ok(()) => {}
            Err(failed) => break failed,
        }
    };
    assert!(matches!(lost, Failed::Memory(farmem::Error::Lost { .. })), "{lost}");
}
