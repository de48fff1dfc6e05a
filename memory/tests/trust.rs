//! Tokens at a node: who gets in, what a recording is worth, what a man in the middle can change, and what a tenant
//! may hold.

mod common;

use common::{prove, proven, receive};
use farmem_fabric::{ConnectError, ConnectOptions, GrantError, NodeAddr, Session, Transport, Trust};
use farmem_memory::tokens::{Entry, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::region::{MAX_REGIONS, RegionName};
use farmem_protocol::wire::{Cipher, Greeting, Hello, Join, NewVolume, Proof, Purpose, Text, Verdict};
use farmem_trust::{Key, Token};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A node with a store of tokens.
struct Guarded {
    node: Node,
    store: PathBuf,
}

impl Guarded {
    fn start(quota: Option<u64>) -> (Guarded, Key) {
        Guarded::start_at(quota, None)
    }

    /// One that listens there, too.
    fn start_at(quota: Option<u64>, there: Option<NodeAddr>) -> (Guarded, Key) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-trust-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let store = std::env::temp_dir().join(name);
        let key = issue(&store, "analytics", 1, None);
        Store::change(&store, |store| {
            store.tenants.entry("analytics".into()).or_default().quota = quota;
            Ok(())
        })
        .unwrap();
        let listen = std::iter::once(NodeAddr::Tcp("127.0.0.1:0".into())).chain(there).collect();
        let mut config = Config::new(8 * SLAB_BYTES, listen);
        config.tokens = Some(store.clone());
        (Guarded { node: Node::start(&config).unwrap(), store }, key)
    }

    fn at(&self) -> String {
        self.node.addresses()[0].to_string()
    }

    fn connect(&self, run: u8, token: Option<Key>) -> Result<Session, ConnectError> {
        connect(&self.at(), run, token)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.store);
    }
}

fn connect(at: &str, run: u8, token: Option<Key>) -> Result<Session, ConnectError> {
    let options = ConnectOptions {
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(5),
        run: [run; 16],
        pid: std::process::id(),
        transport: Transport::Tcp,
        trust: Trust { token, plain: false },
        ..ConnectOptions::default()
    };
    Session::connect(&NodeAddr::Tcp(at.to_owned()), &options)
}

fn issue(store: &std::path::Path, tenant: &str, seed: u8, expires: Option<u64>) -> Key {
    let token = Token::new(tenant, &[seed; 40]).unwrap();
    Store::change(store, |store| {
        store.tokens.push(Entry::new(&token, expires));
        Ok(())
    })
    .unwrap();
    token.key()
}

fn why(refused: Result<Session, ConnectError>) -> String {
    refused.err().expect("it is refused").to_string()
}

#[test]
fn who_has_a_token_gets_in_and_nobody_else() {
    let (here, key) = Guarded::start(None);
    let session = here.connect(1, Some(key)).unwrap();
    let slab = session.grant().unwrap().id;
    let mut queue = session.queue_pair().unwrap();
    farmem_contract::put(&mut queue, slab, 0, b"mine").unwrap();
    assert_eq!(farmem_contract::get(&mut queue, slab, 0, 4).unwrap(), b"mine");
    // Forked children and queue pairs prove it anew.
    session.fork_ticket().unwrap().abandon();

    assert!(why(here.connect(2, None)).contains("name yours by --token FILE"));
    let other = Token::new("analytics", &[9; 40]).unwrap().key();
    assert!(why(here.connect(2, Some(other))).contains("does not know this token"));
    // The right name, and another secret.
    let forged = Key::stored(key.tenant, key.id, [7; 32]);
    assert!(why(here.connect(2, Some(forged))).contains("does not know this token"));
    let renamed = Key::stored(Text::new("research"), key.id, *key.bytes());
    assert!(why(here.connect(2, Some(renamed))).contains("does not know this token"));

    let open = Node::start(&Config::new(SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())])).unwrap();
    assert!(why(connect(&open.addresses()[0].to_string(), 2, Some(key))).contains("without --tokens"));
}

#[test]
fn a_token_that_is_revoked_ends_its_members_and_others_go_on() {
    let (here, key) = Guarded::start(None);
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let (first, second) = (here.connect(1, Some(key)).unwrap(), here.connect(2, Some(other)).unwrap());
    first.grant().unwrap();
    second.grant().unwrap();
    Store::change(&here.store, |store| {
        store.tokens[0].revoked = true;
        Ok(())
    })
    .unwrap();
    assert!(here.node.look_at_tokens().is_none());
    common::within("its memory is free", || here.node.nic().lent() == SLAB_BYTES);
    let lost = first.grant().unwrap_err();
    assert!(matches!(&lost, GrantError::Lost(lost) if lost.reason.contains("was revoked")), "{lost}");
    assert!(why(here.connect(3, Some(key))).contains("was revoked"));
    second.grant().unwrap();
}

#[test]
fn a_token_ends_with_its_time() {
    let (here, _) = Guarded::start(None);
    let key = issue(&here.store, "research", 3, Some(farmem_memory::tokens::now() + 2));
    here.node.look_at_tokens();
    let session = here.connect(1, Some(key)).unwrap();
    session.grant().unwrap();
    common::within("its time is over", || {
        std::thread::sleep(Duration::from_millis(100));
        here.node.look_at_tokens();
        here.node.nic().lent() == 0
    });
    assert!(why(here.connect(2, Some(key))).contains("has expired"));
}

/// All of a tenant's runs together, exactly: also by forks, and with what was given back.
#[test]
fn a_tenants_quota_is_of_all_its_runs() {
    let (here, key) = Guarded::start(Some(3 * SLAB_BYTES));
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let (first, second) = (here.connect(1, Some(key)).unwrap(), here.connect(2, Some(key)).unwrap());
    let slab = first.grant().unwrap().id;
    first.grant().unwrap();
    second.grant().unwrap();
    for session in [&first, &second] {
        let full = session.grant().unwrap_err();
        assert!(matches!(full, GrantError::Quota { quota_mib: 192, of_tenant: true, .. }), "{full}");
        assert!(full.to_string().contains("tenant's quota (farmem token"), "{full}");
    }
    first.release(slab).unwrap();
    second.grant().unwrap();
    assert!(first.grant().is_err());
    here.connect(3, Some(other)).unwrap().grant().unwrap();
    drop(second);
    common::within("what a run held is its tenant's again", || first.grant().is_ok());
}

/// Another tenant's token is no right to a member, a run, or a region's name.
#[test]
fn a_tenant_cannot_come_as_a_member_of_another() {
    let (here, key) = Guarded::start(None);
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let session = here.connect(1, Some(key)).unwrap();
    session.regions().open("shared".parse().unwrap(), true).unwrap();
    assert!(here.connect(1, Some(other)).is_err(), "the name of its run");
    let options = ConnectOptions { trust: other.into(), transport: Transport::Tcp, ..ConnectOptions::default() };
    let options = ConnectOptions { timeout: Duration::from_secs(30), ..options };
    let identity = session.identity();
    assert!(Session::resume(&here.node.addresses()[0], &options, &identity).is_err(), "its secret");
    let stranger = here.connect(2, Some(other)).unwrap();
    assert!(stranger.regions().open("shared".parse().unwrap(), false).is_err());
    stranger.end_run([1; 16]).unwrap();
    assert!(session.grant().is_ok());
}

/// A tenant learns of no other's regions, and takes none of their names away.
#[test]
fn a_tenant_cannot_remove_a_region_of_another() {
    let (here, key) = Guarded::start(None);
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let name = |name: &str| name.parse().unwrap();
    let (session, stranger) = (here.connect(1, Some(key)).unwrap(), here.connect(2, Some(other)).unwrap());
    session.regions().open(name("sessions"), true).unwrap();
    stranger.regions().open(name("theirs"), true).unwrap();
    let listed = |session: &Session| session.regions().list().unwrap().iter().map(|region| region.name).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = (listed(&session), listed(&stranger));
    assert_eq!((ours, theirs), (vec![name("sessions")], vec![name("theirs")]));
    assert_eq!(stranger.regions().remove(name("sessions")), Ok(false));
    assert_eq!(session.regions().open(name("sessions"), false), Ok(0));
    assert_eq!(session.regions().remove(name("sessions")), Ok(true));
}

/// A name that another tenant uses is free to this one, and is its own: each has its region, and the places of regions
/// are shared by tenants.
#[test]
fn tenants_have_names_of_regions_of_their_own() {
    let (here, key) = Guarded::start(None);
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let (session, stranger) = (here.connect(1, Some(key)).unwrap(), here.connect(2, Some(other)).unwrap());
    let name: RegionName = "store".parse().unwrap();
    let [first, second] = [&session, &stranger].map(|session| {
        session.regions().open(name, true).unwrap();
        session.regions().grow(name, 0).unwrap().id
    });
    assert_ne!(first, second);
    // One tenant takes what it gets, by many members.
    let make = |session: &Session, n: u32| session.regions().open(format!("r{n}").parse().unwrap(), true).is_ok();
    let greedy: Vec<Session> = (3..10).map(|run| here.connect(run, Some(key)).unwrap()).collect();
    let made = (0..300).filter(|&n| make(&greedy[n as usize / 50], n)).count();
    let theirs = (0..50).filter(|&n| make(&stranger, n)).count();
    assert!((100..MAX_REGIONS / 2 + 1).contains(&made) && theirs == 50, "{made} {theirs}");
    drop(greedy);
    assert_eq!(stranger.regions().remove(name), Ok(true));
    assert_eq!((session.regions().open(name, false), stranger.regions().open(name, false).is_ok()), (Ok(1), false));
    let listed = session.regions().list().unwrap();
    assert_eq!(listed.iter().filter(|region| region.name == name).count(), 1);
}

/// Tenants share the node's tables, also where all come from one address.
#[test]
fn a_tenant_leaves_places_to_others_at_its_address() {
    let (here, key) = Guarded::start(None);
    let make = |n: u8, key: &Key| {
        let volume = NewVolume { id: [n; 16], size: 1 << 20, ..NewVolume::default() };
        let mut stream = TcpStream::connect(here.at()).unwrap();
        proven(&mut stream, Purpose::NewVolume(volume), key).map(|_| stream)
    };
    let alone: Vec<TcpStream> = (0..3).filter_map(|n| make(n, &key)).collect();
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let greedy: Vec<TcpStream> = (3..150).filter_map(|n| make(n, &key)).collect();
    let theirs: Vec<TcpStream> = (150..190).filter_map(|n| make(n, &other)).collect();
    assert!(alone.len() == 3 && greedy.len() > 100 && greedy.len() < 147, "{}", greedy.len());
    assert_eq!(theirs.len(), 40);
}

/// A store whose front ends come partly with a token and partly as the node's own user is two
/// stores: the node says so.
#[test]
fn a_name_that_is_used_with_and_without_a_token_is_told_of() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    // The node's own user comes there without a token.
    let socket = std::env::temp_dir().join(format!("farmem-trust-{}-beside.sock", std::process::id()));
    let socket: NodeAddr = format!("unix:{}", socket.display()).parse().unwrap();
    let (here, key) = Guarded::start_at(None, Some(socket.clone()));
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let lines = Lines::default();
    let log = farmem_memory::log::Log::start(here.node.nic(), false, Box::new(lines.clone())).unwrap();
    let options = ConnectOptions { timeout: Duration::from_secs(30), run: [9; 16], ..ConnectOptions::default() };
    let own = Session::connect(&socket, &options).unwrap();
    let [tenant, second] = [(1, key), (2, other)].map(|(run, key)| here.connect(run, Some(key)).unwrap());
    let open = |session: &Session, name: &str| session.regions().open(name.parse().unwrap(), true).unwrap();
    // Two tenants' are two, as they are meant to be.
    [&tenant, &second].into_iter().for_each(|session| _ = open(session, "apart"));
    [&own, &tenant, &own].into_iter().for_each(|session| _ = open(session, "sessions"));
    drop(log);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let told: Vec<&str> = text.lines().filter(|line| line.contains("two regions")).collect();
    assert!(told.len() == 1, "{text}");
    let expected = "two regions sessions: one was made without a token, and now one with a token";
    assert!(told[0].contains(expected) && told[0].contains("name the token at all of its front ends"), "{}", told[0]);
}

/// A tenant learns of no other's processes, runs and volumes: only how much numbered owners hold.
#[test]
fn a_tenant_is_not_told_who_holds_what_is_anothers() {
    let (here, key) = Guarded::start(None);
    let other = issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let (session, stranger) = (here.connect(1, Some(key)).unwrap(), here.connect(2, Some(other)).unwrap());
    session.grant().unwrap();
    session.regions().open("sessions".parse().unwrap(), true).unwrap();
    let volume = NewVolume { id: [7; 16], size: 1 << 20, ..NewVolume::default() };
    let mut stream = TcpStream::connect(here.at()).unwrap();
    prove(&mut stream, Purpose::NewVolume(volume), &key);
    // Of the first owners: which are named, and how many volumes.
    let named = |session: &Session| {
        let told = |owner: &u16| session.records().who(*owner).unwrap().is_some();
        let volumes = (0..3).filter(|&place| session.records().volume(place).unwrap().is_some()).count();
        ((0..64).filter(told).collect::<Vec<u16>>(), volumes)
    };
    let ((ours, our_volumes), (theirs, their_volumes)) = (named(&session), named(&stranger));
    assert!(ours.contains(&session.owner()) && !ours.contains(&stranger.owner()), "{ours:?}");
    assert!(theirs.contains(&stranger.owner()) && ours.iter().all(|owner| !theirs.contains(owner)), "{theirs:?}");
    // Itself, its run, its region, its volume; itself and its run.
    assert_eq!((ours.len(), theirs.len(), our_volumes, their_volumes), (4, 2, 1, 0));
}

/// A relay between a host and the node, which records and changes what the host says.
fn relay(node: String, change: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + 'static) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (at, heard) = (listener.local_addr().unwrap().to_string(), Arc::new(Mutex::new(Vec::new())));
    let hears = Arc::clone(&heard);
    std::thread::spawn(move || {
        let (mut host, _) = listener.accept().unwrap();
        let mut node = TcpStream::connect(node).unwrap();
        let (mut back, mut to_host) = (node.try_clone().unwrap(), host.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back, &mut to_host));
        let mut piece = [0; 4096];
        let mut nth = 0;
        while let Ok(n @ 1..) = host.read(&mut piece) {
            hears.lock().unwrap().extend_from_slice(&piece[..n]);
            if node.write_all(&change(nth, piece[..n].to_vec())).is_err() {
                break;
            }
            nth += 1;
        }
        let _ = node.shutdown(std::net::Shutdown::Both);
    });
    (at, heard)
}

#[test]
fn a_join_that_was_recorded_is_of_no_use() {
    let (here, key) = Guarded::start(None);
    let (at, heard) = relay(here.at(), |_, bytes| bytes);
    drop(connect(&at, 1, Some(key)).unwrap());
    let said = heard.lock().unwrap().clone();
    let (hello, used) = Hello::read(&said).unwrap().unwrap();
    // Nor at another node that has the same store.
    let mut config = Config::new(SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(here.store.clone());
    let other = Node::start(&config).unwrap();
    for at in [here.at(), other.addresses()[0].to_string()] {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(&said[..used]).unwrap();
        assert!(matches!(receive(&mut stream, Greeting::read), Some(Greeting::Challenge(_))));
        // The proof that was recorded.
        let (proof, _) = Proof::read(&said[used..]).unwrap().unwrap();
        stream.write_all(proof.frame().as_bytes()).unwrap();
        assert_eq!(receive(&mut stream, Greeting::read), Some(Greeting::Refused(Verdict::WrongToken)));
    }
    assert_eq!(hello.tenant, key.tenant);
    // Nor does any secret go over the wire.
    assert!(!said.windows(16).any(|w| key.bytes().windows(16).any(|k| k == w)));
}

#[test]
fn a_man_in_the_middle_changes_nothing_of_a_hello() {
    let (here, key) = Guarded::start(None);
    issue(&here.store, "research", 2, None);
    here.node.look_at_tokens();
    let changes: [fn(&mut Hello); 4] = [
        |hello| hello.tenant = Text::new("research"),
        |hello| hello.epoch = 7,
        // Down to what it could read.
        |hello| hello.credential.iter_mut().for_each(|named| named.cipher = Cipher::Plain),
        |hello| hello.purpose = Purpose::Join(Join { run: [3; 16], ..Join::default() }),
    ];
    for change in changes {
        let (at, _) = relay(here.at(), move |nth, bytes| match Hello::read(&bytes) {
            Ok(Some((mut hello, _))) if nth == 0 => {
                change(&mut hello);
                hello.frame().as_bytes().to_vec()
            }
            _ => bytes,
        });
        assert!(why(connect(&at, 1, Some(key))).contains("does not know this token"));
    }
    assert_eq!(here.node.nic().members().len(), 0);
}

/// Something that answers in the node's place, and does not know the token.
#[test]
fn a_host_does_not_take_another_for_its_node() {
    let (_, key) = Guarded::start(None);
    let lies = |greeting: fn() -> Greeting| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut host, _) = listener.accept().unwrap();
            let _ = receive(&mut host, Hello::read);
            let _ = host.write_all(Greeting::Challenge([1; 32]).frame().as_bytes());
            let _ = receive(&mut host, Proof::read);
            let _ = host.write_all(greeting().frame().as_bytes());
        });
        why(connect(&at, 1, Some(key)))
    };
    assert!(lies(|| Greeting::Welcome(Default::default())).contains("did not prove that it knows this token"));
    assert!(lies(|| Greeting::Challenge([2; 32])).contains("not a farmem node"));
}

#[test]
fn a_store_that_others_may_read_is_refused_and_one_that_goes_bad_changes_nothing() {
    let (here, key) = Guarded::start(None);
    std::fs::set_permissions(&here.store, std::fs::Permissions::from_mode(0o644)).unwrap();
    let mut config = Config::new(SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.tokens = Some(here.store.clone());
    let refused = Node::start(&config).err().unwrap().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(&here.store, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&here.store, "[[token]]\ntenant = 7\n").unwrap();
    assert!(here.node.look_at_tokens().is_some() && here.node.look_at_tokens().is_none(), "told once");
    here.connect(1, Some(key)).unwrap();
}

/// A store that could not be read is tried again, though it does not change. Tokens whose time is over
/// meanwhile are over.
#[test]
fn a_store_that_cannot_be_read_for_a_while_is_read_later() {
    let (here, key) = Guarded::start(None);
    let short = issue(&here.store, "research", 3, Some(farmem_memory::tokens::now() + 2));
    assert!(here.node.look_at_tokens().is_none());
    here.connect(2, Some(short)).unwrap();
    Store::change(&here.store, |store| {
        store.tokens[0].revoked = true;
        Ok(())
    })
    .unwrap();
    // Its mode is not a change of its content.
    std::fs::set_permissions(&here.store, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(here.node.look_at_tokens().is_some(), "it cannot be used");
    here.connect(1, Some(key)).unwrap();
    common::within("a token's time is over, whatever the store is", || {
        std::thread::sleep(Duration::from_millis(100));
        here.node.look_at_tokens();
        here.connect(2, Some(short)).is_err_and(|e| e.to_string().contains("has expired"))
    });
    std::fs::set_permissions(&here.store, std::fs::Permissions::from_mode(0o600)).unwrap();
    common::within("the store is read", || {
        std::thread::sleep(Duration::from_millis(100));
        here.node.look_at_tokens();
        here.connect(1, Some(key)).is_err_and(|e| e.to_string().contains("was revoked"))
    });
}

/// Who may read a store is its operator's to say, not that of whoever changes it.
#[test]
fn a_store_that_is_changed_stays_its_owners() {
    let (here, _) = Guarded::start(None);
    let about = || {
        let about = std::fs::metadata(&here.store).unwrap();
        (about.uid(), about.gid(), about.mode() & 0o777)
    };
    std::fs::set_permissions(&here.store, std::fs::Permissions::from_mode(0o400)).unwrap();
    // Only root can give a file away.
    let given = std::os::unix::fs::chown(&here.store, Some(1234), Some(1235)).is_ok();
    let before = about();
    issue(&here.store, "research", 2, None);
    assert_eq!(about(), before, "given: {given}");
    assert!(!given || before == (1234, 1235, 0o400));
}

/// A node names its socket as it likes. A host shows that as text.
#[test]
fn the_name_of_a_nodes_socket_moves_no_cursor() {
    let socket = std::env::temp_dir().join(format!("farmem-\x1b[2J-{}.sock", std::process::id()));
    let listen = vec![NodeAddr::Tcp("127.0.0.1:0".into()), NodeAddr::Shm(socket.clone())];
    let node = Node::start(&Config::new(SLAB_BYTES, listen)).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let options = ConnectOptions {
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(5),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    };
    let refused = why(Session::connect(&node.addresses()[0], &options));
    assert!(refused.contains("farmem-?[2J-") && !refused.contains(char::is_control), "{refused:?}");
}
