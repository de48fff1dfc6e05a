//! Clients that speak TLS, that should and do not, and that never end their handshake.

mod world;

use farmem::Transport;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use world::process::{Client, Process};

#[test]
fn another_process() {
    world::process::another_process();
}

/// Certificates of an authority, a server and a client. Removed when dropped.
struct Papers(PathBuf);

impl Drop for Papers {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Papers {
    fn new(name: &str) -> Papers {
        let dir = std::env::temp_dir().join(format!("farmem-kv-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let openssl = |line: &str| {
            let made = Command::new("openssl").args(line.split(' ')).current_dir(&dir).output().expect("openssl runs");
            assert!(made.status.success(), "{line}: {}", String::from_utf8_lossy(&made.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500";
        openssl(&format!("req -x509 {key} -subj /CN=authority -keyout ca.key -out ca.crt"));
        for (who, names) in
            [("server", "-addext subjectAltName=IP:127.0.0.1"), ("client", "-addext keyUsage=digitalSignature")]
        {
            let signed = "-CA ca.crt -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
            openssl(&format!("req -x509 {key} -subj /CN={who} {names} {signed} -keyout {who}.key -out {who}.crt"));
        }
        Papers(dir)
    }

    fn front(&self, node: &Process, name: &str, options: &str) -> Process {
        Process::start(format!("front {name} {} tls={} {options}", node.at, self.0.display()).trim_end())
    }
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

/// A client that trusts the authority. `own`: it has a certificate of its own.
fn client(at: &str, papers: &Path, own: bool, versions: &[&'static SupportedProtocolVersion]) -> Secured {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(papers.join("ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let settings = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let settings = settings.with_root_certificates(roots);
    let settings = match own {
        false => settings.with_no_client_auth(),
        true => {
            let chain = vec![CertificateDer::from_pem_file(papers.join("client.crt")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(papers.join("client.key")).unwrap();
            settings.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(settings), name).unwrap(), stream)
}

const ANY: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// Sends bytes, and judges what comes.
fn says(client: &mut Secured, asked: &[u8], expected: &[u8]) {
    client.write_all(asked).unwrap();
    let mut said = vec![0; expected.len()];
    client.read_exact(&mut said).unwrap();
    assert!(said == expected, "{}", String::from_utf8_lossy(&said[..said.len().min(200)]));
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

#[test]
fn a_client_is_served_over_tls() {
    let (node, papers) = (Process::node(Transport::Shm), Papers::new("served"));
    let front = papers.front(&node, "tls", "password=secret");
    for versions in [&ANY[..1], &ANY[1..]] {
        let mut client = client(&front.at, &papers.0, false, versions);
        says(&mut client, b"GET k\r\n", b"-NOAUTH Authentication required.\r\n");
        says(&mut client, b"AUTH secret\r\nSET k v\r\nGET k\r\n", b"+OK\r\n+OK\r\n$1\r\nv\r\n");
        // A value that streams in and out, in many records.
        let large: Vec<u8> = (0..9_000_000u32).map(|n| (n / 251 + n) as u8).collect();
        says(&mut client, &request(&[b"SET", b"large", &large]), b"+OK\r\n");
        says(&mut client, &request(&[b"GET", b"large"]), &bulk(&large));
        // Commands that are answered at once, and such that wait, in a long pipeline.
        let asked = [request(&[b"INCR", b"n"]), request(&[b"GET", b"k"]), request(&[b"MGET", b"k", b"none"])].concat();
        says(&mut client, b"SET n 0\r\n", b"+OK\r\n");
        let expected: String = (1..=5000).map(|n| format!(":{n}\r\n$1\r\nv\r\n*2\r\n$1\r\nv\r\n$-1\r\n")).collect();
        says(&mut client, &asked.repeat(5000), expected.as_bytes());
        says(&mut client, b"QUIT\r\n", b"+OK\r\n");
        // It is told that no more comes.
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    }
}

/// The replies are more than the sockets hold, and are read only when all requests were sent.
#[test]
fn a_client_over_tls_reads_late() {
    let (node, papers) = (Process::node(Transport::Tcp), Papers::new("late"));
    let front = papers.front(&node, "late", "");
    let mut client = client(&front.at, &papers.0, false, ANY);
    let value = vec![b'x'; 1000];
    says(&mut client, &request(&[b"SET", b"k", &value]), b"+OK\r\n");
    let asked = request(&[b"GET", b"k"]);
    let (mut sent, mut said) = (client.sock.try_clone().unwrap(), Vec::new());
    // Records are made first: so nothing is read while they are sent.
    client.conn.set_buffer_limit(None);
    client.conn.writer().write_all(&asked.repeat(20_000)).unwrap();
    while client.conn.wants_write() {
        client.conn.write_tls(&mut sent).unwrap();
    }
    said.resize(20_000 * bulk(&value).len(), 0);
    client.read_exact(&mut said).unwrap();
    assert!(said == bulk(&value).repeat(20_000));
}

#[test]
fn a_client_shows_its_certificate_where_one_is_asked_for() {
    let (node, papers) = (Process::node(Transport::Shm), Papers::new("own"));
    let front = papers.front(&node, "own", "clients-show=yes");
    for versions in [&ANY[..1], &ANY[1..]] {
        says(&mut client(&front.at, &papers.0, true, versions), b"PING\r\n", b"+PONG\r\n");
        let mut unknown = client(&front.at, &papers.0, false, versions);
        let _ = unknown.write_all(b"PING\r\n");
        assert!(unknown.read(&mut [0; 64]).is_err());
    }
    // Of another authority.
    let others = Papers::new("others");
    std::fs::copy(papers.0.join("ca.crt"), others.0.join("ca.crt")).unwrap();
    let mut unknown = client(&front.at, &others.0, true, ANY);
    let _ = unknown.write_all(b"PING\r\n");
    assert!(unknown.read(&mut [0; 64]).is_err());
}

#[test]
fn a_client_without_tls_is_told_so_and_garbage_ends_its_connection() {
    let (node, papers) = (Process::node(Transport::Shm), Papers::new("garbage"));
    let front = papers.front(&node, "garbage", "");
    let mut good = client(&front.at, &papers.0, false, ANY);
    says(&mut good, b"PING\r\n", b"+PONG\r\n");
    let mut plain = Client::connect(&front.at);
    let said = plain.ask("PING");
    assert!(said.starts_with("-ERR this port speaks TLS"), "{said}");
    assert_eq!(plain.reply(), None);
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03";
    for bytes in [
        &[0x16; 70_000][..],
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x00\x00",
        hello,
        &[0; 9],
        &[0x15, 3, 1, 0, 2, 2, 40],
    ] {
        let mut bad = TcpStream::connect(&front.at).unwrap();
        bad.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let _ = bad.write_all(bytes);
        // An alert, and the end; or only that.
        let _ = bad.read_to_end(&mut Vec::new());
    }
    // Garbage after the handshake.
    let mut bad = client(&front.at, &papers.0, false, ANY);
    says(&mut bad, b"PING\r\n", b"+PONG\r\n");
    let _ = bad.sock.write_all(&[0x17; 30_000]);
    assert!(bad.read(&mut [0; 64]).is_err());
    says(&mut good, b"PING\r\n", b"+PONG\r\n");
}

/// A request that comes byte by byte, each in a record of its own, as fast as it can be sent.
#[test]
fn a_client_that_sends_tiny_records_keeps_nobody_waiting() {
    let (node, papers) = (Process::node(Transport::Shm), Papers::new("tiny"));
    let front = papers.front(&node, "tiny", "");
    let mut good = client(&front.at, &papers.0, false, ANY);
    let mut tiny = client(&front.at, &papers.0, false, ANY);
    says(&mut tiny, b"PING\r\n", b"+PONG\r\n");
    let value = vec![b'v'; 300_000];
    let sends = std::thread::spawn(move || {
        tiny.conn.set_buffer_limit(None);
        for some in request(&[b"SET", b"tiny", &value]).chunks(1000) {
            for byte in some {
                tiny.conn.writer().write_all(&[*byte]).unwrap();
            }
            while tiny.conn.wants_write() {
                tiny.conn.write_tls(&mut tiny.sock).unwrap();
            }
        }
        says(&mut tiny, &request(&[b"GET", b"tiny"]), &[b"+OK\r\n", &bulk(&value)[..]].concat());
    });
    let mut asked = 0;
    while !sends.is_finished() || asked == 0 {
        says(&mut good, b"PING\r\n", b"+PONG\r\n");
        asked += 1;
    }
    sends.join().unwrap();
}

#[test]
fn clients_that_never_end_their_handshake_keep_nobody_out() {
    let (node, papers) = (Process::node(Transport::Shm), Papers::new("silent"));
    let front = papers.front(&node, "silent", "clients=20");
    let mut silent: Vec<TcpStream> = Vec::new();
    for n in 0..40 {
        let mut stream = TcpStream::connect(&front.at).unwrap();
        if n % 2 == 0 {
            stream.write_all(b"\x16\x03\x01").unwrap();
        }
        silent.push(stream);
    }
    let mut good = client(&front.at, &papers.0, false, ANY);
    says(&mut good, b"PING\r\n", b"+PONG\r\n");
    let until = Instant::now() + Duration::from_secs(60);
    // Ten seconds after they have come, they are gone.
    loop {
        good.write_all(b"INFO clients\r\n").unwrap();
        let mut said = [0; 4096];
        let n = good.read(&mut said).unwrap();
        let said = String::from_utf8_lossy(&said[..n]).into_owned();
        let there = said.lines().find_map(|line| line.strip_prefix("connected_clients:")?.parse::<u32>().ok());
        match there {
            Some(1) => break,
            there => assert!(Instant::now() < until && there.is_none_or(|there| there <= 11), "{said}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(silent);
}
