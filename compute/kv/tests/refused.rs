//! Front ends and requests that are refused: by which words, and that they leave nothing and take
//! no memory. And what `check` does about a front end that was killed in an MSET.

mod world;

use farmem::{Addr, Memory, Transport};
use farmem_kv::layout::{Geometry, Hash, SLOTS, Slot, head};
use farmem_kv::serve::{check, run};
use std::io::Write;
use world::process::{Process, answers, config};

#[test]
fn another_process() {
    world::process::another_process();
}

fn refused(nodes: &str, maxmemory: Option<u64>) -> String {
    let config = farmem_kv::serve::Config { maxmemory, ..config("shape", nodes) };
    let said = match run(&config, |_| panic!("it is served"), std::rc::Rc::new(|_| {})) {
        Err(failed) => failed.to_string(),
        Ok(()) => panic!("it ended"),
    };
    assert!(!said.contains('\n'), "{said}");
    said
}

#[test]
fn a_front_end_that_names_other_nodes_leaves_nothing_there() {
    let [a, b, c] = [(); 3].map(|()| Process::node(Transport::Tcp));
    let front = Process::front("shape", &format!("{},{}", a.at, b.at));
    assert_eq!(front.client().ask("SET k v"), "+OK");
    for nodes in [[&c, &a].as_slice(), &[&a, &c], &[&c, &b], &[&a, &b, &c], &[&c, &b, &a], &[&a], &[&b]] {
        let named: Vec<&str> = nodes.iter().map(|node| &*node.at).collect();
        let said = refused(&named.join(","), None);
        assert!(said.contains("nodes"), "{said}");
        assert_eq!(farmem::regions(&c.at).unwrap(), [], "{named:?}: {said}");
    }
    assert_eq!(front.client().ask("GET k"), "v");
    // A node that does not answer is none of another store.
    let gone = c.at.clone();
    drop(c);
    let said = refused(&format!("{},{gone}", a.at), None);
    assert!(said.contains(&gone) && !said.contains("made with"), "{said}");
}

#[test]
fn too_little_memory_is_refused_with_the_least_that_works() {
    let (a, b) = (Process::node(Transport::Tcp), Process::node(Transport::Tcp));
    let both = format!("{},{}", a.at, b.at);
    for little in [1, 131_071] {
        assert_eq!(
            refused(&both, Some(little)),
            "--maxmemory is too little for these nodes: 131072 bytes is the least"
        );
    }
    let usual = farmem_kv::Config::of("least", &[&a.at, &b.at]);
    let mut store = farmem_kv::Store::open_as(&farmem_kv::Config { maxmemory: Some(131_072), ..usual }).unwrap();
    for n in 0..2000 {
        store.put(format!("key{n}").as_bytes(), &[7; 100]).unwrap();
    }
    assert!(store.get(b"key1999").unwrap().is_some());
}

/// A key's slot, in a store that has not split a table.
fn slot_of(memory: &Memory, root: u64, key: &str) -> (u64, Slot) {
    let hash = Hash::of(key.as_bytes());
    let table = Geometry::STORE.first(root, hash.path());
    let buckets = hash.buckets(Geometry::STORE.buckets).map(|bucket| Geometry::STORE.bucket(table, bucket));
    let slots = buckets.into_iter().flat_map(|at| (0..SLOTS as u64).map(move |n| at + 8 * n));
    let slots = slots.map(|at| (at, Slot(memory.load(Addr::from_bits(at).unwrap()).unwrap())));
    slots.into_iter().find(|(_, slot)| slot.is_used() && slot.fingerprint() == hash.fingerprint()).expect("it is there")
}

/// The record of a DEL of two keys, of a front end that was killed before it had carried it out.
#[test]
fn a_check_carries_out_what_a_killed_front_end_has_left() {
    let node = Process::node(Transport::Shm);
    let mut front = Process::front("left", &node.at);
    let mut client = front.client();
    answers(&mut client, &[("SET a 1", "+OK"), ("SET b 2", "+OK"), ("SET c 3", "+OK")]);
    let memory = Memory::builder().node(&node.at).region("left").connect().unwrap();
    let root = memory.load(memory.root(0)).unwrap();
    // The key `r` has the record in its value.
    let entries = ["a", "b"].map(|key| {
        let (at, slot) = slot_of(&memory, root, key);
        [at, slot.0, Slot::emptied(0, 7).0].map(u64::to_le_bytes).concat()
    });
    let record = entries.concat();
    let mut request = format!("*3\r\n$3\r\nSET\r\n$1\r\nr\r\n${}\r\n", record.len()).into_bytes();
    request.extend_from_slice(&record);
    request.extend_from_slice(b"\r\n");
    client.stream.get_mut().write_all(&request).unwrap();
    assert_eq!(client.reply().as_deref(), Some("+OK"));
    front.kill();
    let word = Addr::from_bits(root + head::BATCHES).unwrap();
    memory.store(word, slot_of(&memory, root, "r").1.0).unwrap();
    let counts = check(&config("left", &node.at)).unwrap();
    assert_eq!(counts[0].1.keys, 2, "{counts:?}");
    assert_eq!(memory.load(word).unwrap(), 0);
    let front = Process::front("left", &node.at);
    let mut client = front.client();
    answers(&mut client, &[("MGET a b c", "[nil nil 3]")]);
}

/// What is renamed or copied is there twice for a while. It does not go to make room for its copy.
#[test]
fn a_value_with_no_room_for_a_copy_stays() {
    let node = Process::node(Transport::Shm);
    let front = Process::start(&format!("front renamed {} maxmemory={}", node.at, 8 << 20));
    let mut client = front.client();
    let text = "x".repeat(1000);
    (0..20).for_each(|n| assert_eq!(client.ask(&format!("SET key{n} {text}")), "+OK"));
    let items = format!(" {text}").repeat(100);
    let push = |client: &mut world::process::Client, key: &str, items_100: usize| {
        (1..=items_100).for_each(|n| assert_eq!(client.ask(&format!("RPUSH {key}{items}")), format!(":{}", 100 * n)));
    };
    push(&mut client, "list", 45);
    for line in ["RENAME list other", "COPY list other", "RENAMENX list other"] {
        assert!(client.ask(line).starts_with("-OOM"), "{line}");
    }
    answers(&mut client, &[("LLEN list", ":4500"), ("EXISTS other", ":0"), ("DBSIZE", ":21"), ("DEL list", ":1")]);
    push(&mut client, "list", 20);
    answers(&mut client, &[("RENAME list other", "+OK"), ("LLEN other", ":2000"), ("DEL other", ":1")]);
    // A string is copied piece by piece.
    let long = "y".repeat(5 << 20);
    assert_eq!(client.ask(&format!("SET long {long}")), "+OK");
    assert!(client.ask("RENAME long other").starts_with("-OOM"));
    answers(&mut client, &[("STRLEN long", &format!(":{}", 5 << 20)), ("EXISTS other", ":0")]);
}
