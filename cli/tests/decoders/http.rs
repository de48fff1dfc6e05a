//! The ports that speak HTTP, by raw bytes: a controller's, of one that asks for tokens and one that does not, and a
//! node's counters.

use crate::fuzz::fuzz_by;
use crate::token;
use farmem_control::api::Term;
use farmem_control::guard::{self, Asked, Guard};
use farmem_control::serve::{Served, serve};
use farmem_control::store::{Kept, Store};
use farmem_memory::{Config, Node};
use farmem_protocol::addr::SLAB_BYTES;
use farmem_protocol::node::NodeAddr;
use farmem_sys::raw::process_cpu_ns;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Panics of any thread of this process but those that run tests: axum catches a handler's.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// How long a mutated request is given, and a good one.
pub const WAITS: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(20);

/// A controller, for as long as this process lives.
fn open(guarded: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let key = token().key();
    let find: Option<guard::Find> =
        if guarded { Some(Box::new(move |id| (*id == key.id).then_some(key))) } else { None };
    let kept = Kept { term: Term { rack: 7, epoch: 3 }, intents: Vec::new() };
    let served = Served::alone(Store::Memory, kept, 1, |_| {});
    let thread = std::thread::Builder::new().name("controller".into());
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guard = Guard::new(find).unwrap().called(["rack:7400"]);
        runtime.block_on(serve(listener, served, guard)).unwrap();
    };
    thread.spawn(run).unwrap();
    at
}

/// The bytes that are answered to these. The peer says no more when nothing has come for `waits`.
pub fn heard(at: SocketAddr, says: &[u8], waits: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).unwrap();
    let mut answer = Vec::new();
    // A reset is an end as well.
    let _ = stream.write_all(says);
    for waits in [waits, Duration::from_secs(20)] {
        stream.set_read_timeout(Some(waits)).unwrap();
        if stream.read_to_end(&mut answer).is_ok() {
            break;
        }
        // The controller would wait for the rest of a request until its time is over.
        let _ = stream.shutdown(Shutdown::Write);
    }
    answer
}

/// Counts panics of the threads that serve.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |about| {
            if matches!(std::thread::current().name(), Some("controller" | "metrics")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(about);
        }));
    });
}

#[test]
fn a_nodes_counters() {
    count_panics();
    let mut config = Config::new(SLAB_BYTES, vec![NodeAddr::Tcp("127.0.0.1:0".into())]);
    config.metrics = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let node = Node::start(&config).unwrap();
    let at = node.metrics().unwrap();
    let texts: [&[u8]; 5] = [
        b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /?x=1 HTTP/1.0\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\ncontent-length: 1\r\n\r\nx",
        b"GET /metrics HTTP/1.1\r\nhost: a.example\r\n\r\n",
        b"\r\n\r\n",
    ];
    fuzz_by(process_cpu_ns, "counters", &texts, |_, bytes| {
        let answer = heard(at, bytes, WAITS);
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{:?}", String::from_utf8_lossy(bytes));
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&answer));
        answer.get(..12).map(<[u8]>::to_vec)
    });
    assert!(heard(at, texts[0], LONG).starts_with(b"HTTP/1.1 200"));
    assert!(heard(at, texts[3], LONG).starts_with(b"HTTP/1.1 421"), "a page whose site's name leads here reads none");
}

/// A browser sends what another site's page says, but no header of ours, and shows no page of ours in its frame.
#[test]
fn a_page_of_another_site_gives_no_orders() {
    let at = open(false);
    let post = |header: &str| {
        let said = format!("POST /v1/nodes/a/forget HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{header}\r\n");
        String::from_utf8(heard(at, said.as_bytes(), LONG)).unwrap()
    };
    assert!(post("").starts_with("HTTP/1.1 403"));
    assert!(post("x-farmem-order: 1\r\n").starts_with("HTTP/1.1 404"), "there is no such node");
    let allowed =
        b"OPTIONS /v1/nodes/a/forget HTTP/1.1\r\nhost: 127.0.0.1\r\norigin: http://b\r\nconnection: close\r\n\r\n";
    let allowed = String::from_utf8(heard(at, allowed, LONG)).unwrap().to_lowercase();
    assert!(!allowed.contains("access-control-allow"), "{allowed}");
    let page = heard(at, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n", LONG);
    assert!(String::from_utf8(page).unwrap().contains("frame-ancestors 'none'"));
}

/// A page whose site's name was made to lead here is of this origin to its browser, and sends any header. Its Host is
/// its site's name still.
#[test]
fn a_page_of_a_rebound_name_gives_no_orders_and_reads_nothing() {
    let (open, guarded) = (open(false), open(true));
    let say = |at, request: &str, hosts: &str| {
        let said = format!("{request} HTTP/1.1\r\n{hosts}x-farmem-order: 1\r\nconnection: close\r\n\r\n");
        String::from_utf8(heard(at, said.as_bytes(), LONG)).unwrap()
    };
    let order = "POST /v1/nodes/a/forget";
    for hosts in [
        "host: a.example\r\n",
        "host: a.example:7400\r\n",
        "host: 127.0.0.1.a.example\r\n",
        "host: rack2.example\r\n",
        "host: \r\n",
        "host: a.example\r\nhost: 127.0.0.1\r\n",
        "host: 127.0.0.1\r\nhost: a.example\r\n",
        "host: 127.0.0.1@a.example\r\n",
    ] {
        for request in [order, "POST /v1/beat", "POST /v1/want", "GET /v1/rack", "GET /metrics"] {
            for at in [open, guarded] {
                let answer = say(at, request, hosts);
                let refused = ["HTTP/1.1 421", "HTTP/1.1 400"].iter().any(|status| answer.starts_with(status));
                assert!(refused && !answer.contains("\"nodes\""), "{request} {hosts:?}: {answer}");
            }
        }
    }
    // A browser always names a host.
    assert!(say(open, order, "").starts_with("HTTP/1.1 404"));
    let absolute = say(open, "POST http://a.example/v1/nodes/a/forget", "host: 127.0.0.1\r\n");
    assert!(absolute.starts_with("HTTP/1.1 421"), "{absolute}");
    for own in ["127.0.0.1", "127.0.0.1:7400", "[::1]:7400", "localhost:7400", "Rack", "rack.:7400"] {
        let hosts = format!("host: {own}\r\n");
        assert!(say(open, order, &hosts).starts_with("HTTP/1.1 404"), "{own}: there is no such node");
        assert!(say(guarded, order, &hosts).starts_with("HTTP/1.1 401"), "{own}");
        assert!(say(open, "GET /v1/rack", &hosts).starts_with("HTTP/1.1 200"), "{own}");
    }
    // By any name: no page can send this header.
    let hosts = format!("host: a.example\r\n{}: 1\r\n", guard::NO_PAGE);
    assert!(say(open, order, &hosts).starts_with("HTTP/1.1 404"));
}

/// No proxy before a controller and the controller itself can disagree about where a request ends: one of two lengths
/// is refused, and nothing behind it is carried out.
#[test]
fn a_request_has_one_length() {
    let at = open(false);
    let order = "POST /v1/nodes/a/drain HTTP/1.1\r\nhost: 127.0.0.1\r\nx-farmem-order: 1\r\nconnection: close\r\n\r\n";
    let chunked = "transfer-encoding: chunked";
    for lengths in [
        format!("content-length: {}\r\ncontent-length: 0", order.len()),
        format!("content-length: +{}", order.len()),
        format!("content-length: {}, 0", order.len()),
        "transfer-encoding: chunked, identity".to_owned(),
        "transfer-encoding: xchunked".to_owned(),
        format!("{chunked}\r\ncontent-length: {}", order.len()),
        format!("content-length: 5\r\n{chunked}"),
    ] {
        let said = format!("POST /v1/want HTTP/1.1\r\nhost: 127.0.0.1\r\n{lengths}\r\n\r\n0\r\n\r\n{order}");
        let answer = String::from_utf8(heard(at, said.as_bytes(), LONG)).unwrap();
        // By RFC 9112, 6.3, chunks go before a length, and the connection ends behind them.
        let told: Vec<&str> = answer.matches("HTTP/1.1 ").collect();
        assert!(told.len() <= 1 && !answer.contains("no node"), "{lengths}: {answer}");
    }
    let rack = heard(at, b"GET /v1/rack HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n", LONG);
    assert!(String::from_utf8(rack).unwrap().contains("\"nodes\":[]"));
}

/// Strangers who send bodies slowly, more than are received at a time, keep no holder of a token out. Some name no
/// token, some one that is not known, and some one that is: its name is no secret.
#[test]
fn strangers_who_send_slowly_keep_nobody_out() {
    let (at, key) = (open(true), token().key());
    let slow: Vec<TcpStream> = (0..600)
        .map(|n| {
            let mut stream = TcpStream::connect(at).unwrap();
            let nonce = "00".repeat(32);
            let known = guard::token(&key, &[0; 32], None, Asked { method: "POST", path: "/v1/want", body: b"" });
            let named = match n % 4 {
                0 => format!("{}: {} {nonce}\r\n", guard::TOKEN, "0bad".repeat(4)),
                // As a first request has it, and with a challenge and proofs that are made up.
                1 => format!("{}: {known}\r\n", guard::TOKEN),
                2 => format!("{}: {known} {} {nonce} {nonce}\r\n", guard::TOKEN, "00".repeat(40)),
                _ => String::new(),
            };
            let method = if n % 8 == 3 { "GET /v1/rack" } else { "POST /v1/want" };
            let said = format!("{method} HTTP/1.1\r\nhost: 127.0.0.1\r\n{named}content-length: 60000\r\n\r\n{{");
            stream.write_all(said.as_bytes()).unwrap();
            stream
        })
        .collect();
    let want = farmem_control::api::Want { run: "1".into(), host: "h".into(), domains: 1, ..Default::default() };
    // A loaded machine may take longer than the client waits, once.
    let asked = (0..20).map(|_| farmem_control::client::Client::new(&at.to_string()).by(Some(key)).want(&want));
    let answers: Vec<_> = asked.take_while(Result::is_err).map(|e| e.unwrap_err().to_string()).collect();
    assert!(answers.iter().any(|why| why.contains("no node")), "{answers:?}");
    drop(slow);
}

#[test]
fn a_controllers_port() {
    count_panics();
    let (guarded, open) = (open(true), open(false));
    let (key, body) = (token().key(), br#"{"run":"1","host":"h","domains":1,"held":[],"seen":null,"figures":null}"#);
    let asked = Asked { method: "POST", path: "/v1/want", body };
    let post = |path: &str, token: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-farmem-order: 1\r\n"
        );
        format!("{head}{}: {token}\r\ncontent-length: {}\r\n\r\n{body}", guard::TOKEN, body.len())
    };
    let beat = r#"{"name":"a","incarnation":5,"domain":"r","listen":["0.0.0.0:7411"],"lends":99999999999,"lent":0,"#;
    let beat = format!("{beat}\"members\":1,\"bytes_read\":1,\"bytes_written\":1,\"leaving\":false,\"seen\":null}}");
    let texts = [
        post("/v1/want", &guard::token(&key, &[1; 32], None, asked), std::str::from_utf8(body).unwrap()),
        post("/v1/want", &guard::token(&key, &[1; 32], Some(&"00".repeat(40)), asked), "{}"),
        post("/v1/beat", "", &beat),
        post("/v1/nodes/a%2Fb/drain", "", ""),
        "GET /v1/rack HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".to_owned(),
        "POST /v1/beat HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{\"nam\r\n0\r\n\r\n".to_owned(),
        "GET / HTTP/1.0\r\nexpect: 100-continue\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n".to_owned(),
    ];
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    fuzz_by(process_cpu_ns, "http", &texts, |random, bytes| {
        let asks = random.index(2) == 0;
        let answer = heard(if asks { guarded } else { open }, bytes, WAITS);
        assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{:?}", String::from_utf8_lossy(bytes));
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{:?}", String::from_utf8_lossy(&answer));
        // The kind: whom it asked, the first line, and what came of it.
        (asks, answer.get(..13).map(<[u8]>::to_vec), answer.len().checked_ilog2())
    });
    // Nothing of the rack was changed by a stranger, and both still answer.
    let rack = String::from_utf8(heard(
        guarded,
        b"GET /v1/rack HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n",
        LONG,
    ))
    .unwrap();
    assert!(rack.starts_with("HTTP/1.1 200") && rack.contains("\"nodes\":[],\"runs\":[]"), "{rack}");
    let page = heard(open, b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n", LONG);
    assert!(page.starts_with(b"HTTP/1.1 200"));
}
