//! The controller's decoder of etcd's answers: a server answers its calls by anything.
//!
//! A text has the bodies of the answers, one a line. Calls are given them in turn. A text that begins
//! as HTTP does is sent unchanged, and then the connection ends.

use crate::fuzz::fuzz_by;
use farmem_control::election::{Election, Seen};
use farmem_control::etcd::{Access, Etcd, EtcdError};
use farmem_control::state::State;
use farmem_control::store::kept_in;
use farmem_sys::raw::process_cpu_ns;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::discriminant;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Of all calls of one text. Each is given up within a second.
const LIMIT: Duration = Duration::from_secs(60);
/// The address by which this controller is known.
const OWN: &str = "a:7400";

/// What the server says, and how many calls have come.
#[derive(Default)]
struct Says {
    text: Mutex<Vec<u8>>,
    calls: AtomicUsize,
}

impl Says {
    /// Reads requests and answers them, until the other end closes.
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line)? > 0 && line != "\r\n" {
                if let Some(said) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = said.trim().parse().unwrap();
                }
                line.clear();
            }
            if line.is_empty() {
                return Ok(());
            }
            std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
            let (text, call) = (self.text.lock().unwrap().clone(), self.calls.fetch_add(1, Ordering::Relaxed));
            if text.starts_with(b"HTTP/") {
                return stream.write_all(&text);
            }
            let bodies: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
            let body = bodies[call % bodies.len()];
            // An error now and then, by the text alone.
            let status = match body.first() {
                Some(b'!') => ["400 Bad Request", "401 Unauthorized", "503 Unavailable"][body.len() % 3],
                _ => "200 OK",
            };
            let body = body.strip_prefix(b"!").unwrap_or(body);
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all(&[head.as_bytes(), body].concat())?;
        }
    }
}

/// The kind of an error, which is one line of bounded length, without what a terminal would obey.
fn kind(e: &EtcdError) -> usize {
    plain(&e.to_string());
    match e {
        EtcdError::Away(_) => 1,
        EtcdError::Refused(_) => 2,
        EtcdError::Strange(_) => 3,
        EtcdError::Deposed => 4,
    }
}

fn plain(line: &str) {
    assert!(line.len() < 2000 && !line.contains(char::is_control), "{line:?}");
}

#[test]
fn what_etcd_says() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let says = Arc::new(Says::default());
    let serves = Arc::clone(&says);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serves = Arc::clone(&serves);
            std::thread::spawn(move || serves.serve(stream));
        }
    });
    let etcd = Etcd::named(&format!("etcd://{at}"), &Access::default()).unwrap();
    let header = r#""header":{"revision":"5"}"#;
    // farmem/intent/member/a, and a member.
    let row =
        r#"{"key":"ZmFybWVtL2ludGVudC9tZW1iZXIvYQ==","value":"eyJNZW1iZXIiOnsibmFtZSI6ImEiLCJkb21haW4iOiJkIn19"}"#;
    let texts = [
        format!(r#"{{{header},"ID":"7587","TTL":"5"}}"#),
        format!(r#"{{"result":{{{header},"ID":"7587","TTL":"5"}}}}"#),
        format!(r#"{{{header},"ID":"7587","TTL":"4","grantedTTL":"5"}}"#),
        // The leader's key.
        format!(r#"{{{header},"kvs":[{{"mod_revision":"3","lease":"7587","value":"YTo3NDAw"}}],"count":"1"}}"#),
        format!(r#"{{{header},"succeeded":true,"responses":[{{"response_put":{{}}}}]}}"#),
        format!(r#"{{{header},"responses":[{{"response_range":{{"kvs":[{{"value":"NDE="}}]}}}}]}}"#),
        format!(r#"{{{header},"kvs":[{row}],"count":"1"}}"#),
        r#"!{"error":"etcdserver: permission denied","code":7}"#.to_owned(),
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n".to_owned(),
        "HTTP/1.1 307 x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 9\r\n\r\n".to_owned(),
    ];
    let all = texts[..7].join("\n");
    let texts: Vec<&[u8]> = texts.iter().chain([&all]).map(String::as_bytes).collect();
    fuzz_by(process_cpu_ns, "etcd", &texts, |_, bytes| {
        *says.text.lock().unwrap() = bytes.to_vec();
        says.calls.store(0, Ordering::Relaxed);
        let begun = Instant::now();
        let mut kinds = Vec::new();
        let granted = etcd.grant(5).map_err(|e| kinds.push(kind(&e)));
        let lease = granted.unwrap_or_else(|()| "7587".to_owned());
        // A controller gives its lease back to etcd as etcd has said it.
        let alive = etcd.keep_alive(&lease).map_err(|e| kinds.push(kind(&e)));
        let left = etcd.left(&lease).map_err(|e| kinds.push(kind(&e)));
        let leader = etcd.leader().map_err(|e| kinds.push(kind(&e))).ok().flatten();
        if let Some(leader) = &leader {
            plain(&leader.address);
        }
        let seen = Seen { leader, lease: left.ok().flatten(), answers: bytes.len() % 2 == 0 };
        let step = discriminant(&Election::default().step(&lease, &seen));
        let taken = etcd.take(Some(3), &lease, OWN).map_err(|e| kinds.push(kind(&e)));
        // As its own of what comes: none but a sound intent makes a state.
        let kept = kept_in(&etcd, 3, 7).map(|kept| State::of(kept.intents).intents().len().min(3));
        let kept = kept.map_err(|e| plain(&e.to_string()));
        let rows = vec![("member/a".to_owned(), None); 101];
        let wrote = etcd.keep(3, &rows).map_err(|e| kinds.push(kind(&e)));
        let gone = etcd.revoke(&lease).map_err(|e| kinds.push(kind(&e)));
        assert!(begun.elapsed() < LIMIT, "{:?} for {:?}", begun.elapsed(), String::from_utf8_lossy(bytes));
        (alive, step, taken.ok().map(|at| at.is_some()), kept, wrote, gone, kinds)
    });
}
