//! Hostile bytes against the decoders that have no fuzzer elsewhere. Valid texts, and those of
//! `fuzz/decoders`, are mutated.
//!
//! | here | elsewhere |
//! |---|---|
//! | a token's text, the store of tokens | conversations with a node, records, volumes: `memory/nic/tests/fuzz` |
//! | frames of either end, words of the agent's ring | what an agent does with them: `compute/agent/tests/hostile.rs` |
//! | a controller's JSON, proofs and port | |
//! | what a node says, as a host meets it | |
//! | a redis client's stream, a store's commands, its snapshots | |
//! | a run's settings; functions near memory, and their replies; sealed pages | |
//!
//! `FARMEM_FUZZ_SECONDS=1800 FARMEM_FUZZ_SEED=7 cargo test -p farmem-cli --test decoders`: half
//! an hour of CPU time each. Not `--release`, because overflows must be caught.

#[allow(dead_code)] // Shared by test programs, each of which uses a part.
#[path = "../common/mod.rs"]
mod common;
mod etcd;
mod fuzz;
mod host;
mod http;
mod near;
mod sealed;
mod store;

use farmem_agent::word::{Down, Up};
use farmem_control::api::{Beat, Figures, Given, LONGEST, MOST, Orders, Rack, Term, Want};
use farmem_control::guard::{self, Asked};
use farmem_control::state::State;
use farmem_kv::resp::{Limits, Parser, Request};
use farmem_memory::tokens::{Entry, Store};
use farmem_nic::tenants::Standing;
use farmem_protocol::nbd::{self, Command};
use farmem_protocol::random::Random;
use farmem_protocol::wire;
use farmem_run::RunSpec;
use farmem_trust::Token;
use fuzz::fuzz;
use std::mem::discriminant;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;
use zerocopy::IntoBytes;

fn token() -> Token {
    Token::new("analytics-1", &std::array::from_fn(|i| i as u8)).unwrap()
}

/// A text that is read as a token is one, but for the case of its digits.
#[test]
fn a_tokens_text() {
    let (one, other) = (token().to_string(), Token::new("x", &[0xFF; 40]).unwrap().to_string());
    fuzz("token", &[one.as_bytes(), other.as_bytes()], |_, bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
        let Ok(read) = text.parse::<Token>() else { return 1 };
        assert!(read.to_string().eq_ignore_ascii_case(text.trim()));
        assert!(read.to_string().parse::<Token>().is_ok_and(|again| again.key() == read.key()));
        1 + read.key().tenant.as_str().len()
    });
}

/// A store that is read is written as it was read.
#[test]
fn the_store_of_tokens() {
    // In memory where that is possible: each change is synced.
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(format!("farmem-decoders-{}.toml", std::process::id()));
    let write = |bytes: &[u8]| {
        let _ = std::fs::remove_file(&path);
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
    };
    let tokens = vec![Entry::new(&token(), Some(u64::MAX >> 1)), Entry::new(&token(), None)];
    let mut store = Store { tokens, ..Store::default() };
    store.tokens[1].revoked = true;
    let tenant = store.tenants.entry("analytics-1".into()).or_default();
    (tenant.quota, tenant.rate) = (Some(1 << 40), Some(1 << 20));
    let text = toml::to_string(&store).unwrap();
    let short = b"[[token]]\ntenant = \"a\"\nid = \"00\"\nkey = \"\"\ncreated = 1\n";
    fuzz("store", &[text.as_bytes(), short], |_, bytes| {
        write(bytes);
        match Store::read(&path) {
            Ok(read) => {
                let good = read.tokens.iter().filter(|entry| entry.standing() == Standing::Good).count();
                // As a command changes it.
                Store::change(&path, |_| Ok(())).unwrap();
                let again = Store::read(&path).unwrap();
                assert_eq!(toml::to_string(&read).unwrap(), toml::to_string(&again).unwrap());
                format!("{} {good} {}", read.tokens.len().min(9), read.tenants.len().min(9))
            }
            // The kind of the reason: its words, without what they quote.
            Err(e) => {
                let why = e.to_string();
                let why = why.rsplit(": ").next().unwrap_or_default();
                why.split('`').step_by(2).flat_map(str::chars).filter(|c| !c.is_ascii_digit()).collect()
            }
        }
    });
    std::fs::remove_file(&path).unwrap();
}

/// Frames of either end: one that is decoded is encoded and decoded again as it was. (Numbers may
/// come with more bytes than they need, so the bytes can differ.)
#[test]
fn frames_of_either_end() {
    use wire::{Answer, Ask, Cipher, Credential, Greeting, Hello, Join, Proof, Purpose, Reply, Verdict, Welcome};
    let credential = Some(Credential { id: [1; 8], nonce: [2; 32], cipher: Cipher::Aes128Gcm });
    let hello = Hello { credential, ..Hello::new(Purpose::Join(Join { run: [3; 16], ..Join::default() })) };
    let (welcome, refused) = (Greeting::Welcome(Welcome::default()), Greeting::Refused(Verdict::NoRoom(77)));
    let slab = farmem_protocol::addr::SlabId(1 << 40);
    let answer = Answer { number: 9, epoch: 0, result: Ok(Reply::Slab(slab)) };
    let texts = [
        hello.frame().as_bytes().to_vec(),
        welcome.frame().as_bytes().to_vec(),
        refused.frame().as_bytes().to_vec(),
        Greeting::Challenge([5; 32]).frame().as_bytes().to_vec(),
        Greeting::Proven(Verdict::Incarnation, [8; 32]).frame().as_bytes().to_vec(),
        Proof { mac: [6; 32], share: Some([7; 32]) }.frame().as_bytes().to_vec(),
        wire::Request::new(300, Ask::Release(slab)).frame().as_bytes().to_vec(),
        answer.frame().as_bytes().to_vec(),
        nbd::Asked::frame(Command::Write, 7, 4096, 8192).as_bytes().to_vec(),
        Up::Want { order: 3, count: 2 }.bits().to_le_bytes().to_vec(),
    ];
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    fuzz("frames", &texts, |_, bytes| {
        /// 0: refused; 1: not whole; from 2 on: read, and its bytes + 2.
        macro_rules! read {
            ($kind:ty) => {
                match <$kind>::read(bytes) {
                    Err(_) => 0,
                    Ok(None) => 1,
                    Ok(Some((read, used))) => {
                        assert!(used <= bytes.len());
                        let frame = read.frame();
                        assert_eq!(<$kind>::read(frame.as_bytes()).unwrap(), Some((read, frame.as_bytes().len())));
                        2 + used
                    }
                }
            };
        }
        let control = [read!(Hello), read!(Greeting), read!(Proof), read!(wire::Request), read!(Answer)];
        let asked = nbd::Asked::parse(bytes).map(|asked| {
            asked.map(|asked| {
                let range = asked.range(1 << 20);
                assert!(range.is_err() || range.is_ok_and(|(first, count)| first + count <= 1 << 20 && count > 0));
                (asked.command.map(|command| command.number()), range.is_ok())
            })
        });
        let word = bytes.first_chunk::<8>().map_or(0, |word| u64::from_le_bytes(*word));
        let (up, down) = (Up::of(word), Down::of(word));
        assert!(up.is_none_or(|up| up.bits() == word) && down.is_none_or(|down| down.bits() == word));
        (control, asked.is_err(), asked.ok(), up.map(|up| discriminant(&up)), down.map(|down| discriminant(&down)))
    });
}

/// Settings that are read are written, and read again as they were.
#[test]
fn a_runs_settings() {
    let nodes = ["a:7411@rack7/shelf2", "unix:/run/farmem/node.sock"].map(|node| node.parse().unwrap());
    let full = RunSpec {
        run: [7; 16],
        local: 1 << 30,
        nodes: nodes.into(),
        shape: Some(10_000_000_000),
        disk: Some("/var/tmp".into()),
        token: Some("/home/a/token".into()),
        mask: "hold,open".parse().unwrap(),
        ..RunSpec::default()
    };
    let text = full.to_text().unwrap();
    let keys: Vec<&str> = text.split(';').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
    let texts = [text.clone(), RunSpec::default().to_text().unwrap(), "v=2;run=00;local=-1".into()];
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    fuzz("settings", &texts, |_, bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
        match RunSpec::parse(text) {
            Ok(spec) => {
                // A path with a zero byte cannot come in a variable, and cannot be passed on.
                let again = spec.to_text().ok().map(|text| RunSpec::parse(&text));
                assert!(again.is_none_or(|again| again.as_ref() == Ok(&spec)), "{text:?}");
                format!("{} nodes", spec.nodes.len().min(5))
            }
            Err(wrong) => {
                let line = wrong.to_string();
                assert!(!line.contains('\n'), "{line:?}");
                // The kind: what of it is wrong, and about how much is said of that.
                let of = keys.iter().position(|key| line.contains(key));
                format!("{of:?} {}", line.len() / 32)
            }
        }
    });
}

/// A controller can show its rack after any messages, and keeps intents that make the same rack again.
#[test]
fn what_a_controller_is_asked() {
    let seen = Some(Term { rack: 7, epoch: 3 });
    let beat = |name: &str, domain: &str| Beat {
        name: name.into(),
        incarnation: 5,
        domain: domain.into(),
        listen: vec![format!("{name}:7411")],
        lends: 1 << 38,
        lent: 1 << 30,
        members: 3,
        bytes_read: 1,
        bytes_written: 2,
        leaving: false,
        seen,
        shares: Vec::new(),
        applied: None,
    };
    let want = Want {
        run: "00ff00ff00ff00ff".into(),
        host: "h".into(),
        domains: 2,
        held: vec!["a:7411".into()],
        gone: vec!["b:7411".into()],
        seen,
        figures: Some(Figures { program: "redis".into(), far: 1 << 30, ..Figures::default() }),
    };
    let texts = [
        serde_json::to_string(&beat("a", "rack7/shelf2")).unwrap(),
        serde_json::to_string(&beat("b", "")).unwrap(),
        serde_json::to_string(&want).unwrap(),
    ];
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    let (mut state, mut now) = (State::default().led_in(Term { rack: 7, epoch: 3 }), Duration::ZERO);
    fuzz("controller", &texts, |random, bytes| {
        let mut actions = Vec::new();
        now += Duration::from_millis(random.below(300));
        let beat = serde_json::from_slice::<Beat>(bytes).map(|beat| state.beat(now, beat, &mut actions).err());
        let want = serde_json::from_slice::<Want>(bytes).map(|want| {
            let given = state.want(now, &want, random.bits());
            given.map(|given| assert!((1..=MOST).contains(&given.nodes.len()))).err()
        });
        if let Some(name) = state.view(now).nodes.first().map(|node| node.name.clone()).filter(|_| random.index(8) == 0)
        {
            let _ = state.drain(now, &name, random.index(2) == 0, &mut actions);
            let _ = state.forget(now, &name, &mut actions);
        }
        state.tick(now, &mut actions);
        if random.index(64) == 0 {
            let view = state.view(now);
            assert!(view.nodes.iter().all(|node| node.name.len() <= LONGEST && node.address.len() <= LONGEST));
            let text = serde_json::to_string(&view).unwrap();
            assert_eq!(serde_json::from_str::<Rack>(&text).unwrap(), view);
            assert_eq!(State::of(state.intents()).intents(), state.intents());
        }
        let kind = |refused: &_| discriminant::<farmem_control::state::Refusal>(refused);
        (beat.ok().map(|no| no.as_ref().map(kind)), want.ok().map(|no| no.as_ref().map(kind)))
    });
}

/// A controller's answers, as a host and a node read them.
#[test]
fn what_a_controller_answers() {
    let term = Term { rack: 7, epoch: 3 };
    let node = farmem_control::api::GivenNode { at: "a:7411".into(), domain: "rack7".into() };
    let texts = [
        serde_json::to_string(&Given { nodes: vec![node], term }).unwrap(),
        serde_json::to_string(&Orders {
            drain: true,
            next_ms: 500,
            term,
            serial: 1,
            shares: vec![("lab".into(), 1 << 30)],
        })
        .unwrap(),
        "{\"why\":\"no\"}".to_owned(),
    ];
    let texts: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    fuzz("answers", &texts, |_, bytes| {
        let given = serde_json::from_slice::<Given>(bytes).map(|given| {
            // As a run reads them: each is an address, or the run says which is not.
            let nodes = given.addresses();
            nodes.iter().filter(|at| at.parse::<farmem_protocol::node::NodeAddr>().is_ok()).count().min(9)
        });
        let orders = serde_json::from_slice::<Orders>(bytes).map(|orders| orders.drain);
        (given.ok(), orders.ok(), serde_json::from_slice::<farmem_control::api::Refused>(bytes).is_ok())
    });
}

/// No proof but the right one is one. That of a request is none of its answer.
#[test]
fn a_controllers_proof() {
    let (key, nonce) = (token().key(), [3; 32]);
    let asked = Asked { method: "POST", path: "/v1/want", body: b"{}" };
    let named = guard::token(&key, &nonce, Some("00ff"), asked);
    let proof = named.rsplit(' ').next().unwrap().to_owned();
    fuzz("proof", &[proof.as_bytes(), b"00"], |_, bytes| {
        let said = String::from_utf8_lossy(bytes);
        assert!(!guard::is_proven(&said, &key, &nonce, asked, 200, b"{}"));
        farmem_trust::unhex::<32>(&said).is_some()
    });
}

/// The requests of a stream, the bytes that it streamed in, and how it ended. `piece`: the length
/// of the next piece in which it comes.
fn requests(
    limits: &Limits,
    bytes: &[u8],
    mut piece: impl FnMut() -> usize,
) -> (Vec<Request>, Vec<u8>, Option<String>) {
    let (mut parser, mut requests, mut streamed, mut at) = (Parser::default(), Vec::<Request>::new(), Vec::new(), 0);
    while at < bytes.len() {
        let end = (at + piece()).min(bytes.len());
        parser.feed(&bytes[at..end]);
        at = end;
        loop {
            // As a front end does: what streams in is taken first.
            let taken = parser.take();
            streamed.extend_from_slice(&taken);
            let short = parser.short().map(|short| short.args().iter().map(|arg| arg.to_vec()).collect::<Request>());
            match parser.next(limits) {
                Ok(Some(request)) => {
                    assert!(request.iter().all(|argument| argument.len() <= limits.argument.max(64 << 10)));
                    // One without arguments is passed over.
                    let short = short.filter(|short| !short.is_empty());
                    assert!(short.is_none_or(|short| short == request), "both ways read it alike");
                    requests.push(request);
                }
                // An argument has begun that streams in.
                Ok(None) if parser.streams().is_some_and(|(_, left)| left > 0) && parser.waiting() > 0 => {}
                Ok(None) => break,
                Err(wrong) => return (requests, streamed, Some(wrong)),
            }
        }
    }
    (requests, streamed, None)
}

/// A stream gives the same requests in whichever pieces it comes.
#[test]
fn a_redis_clients_stream() {
    let texts: [&[u8]; 5] = [
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\nhello\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"PING \"a\\x41 \\n\" 'it\\'s'\r\nset k v\r\n*0\r\n*1\r\n$0\r\n\r\n",
        b"*4\r\n$4\r\nMSET\r\n$1\r\na\r\n$0\r\n\r\n$16777217\r\n",
        b"*1048577\r\n*-1\r\n$-1\r\n*2\r\n$3\r\nGET\r\n$99999999\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nsome of it",
    ];
    fuzz("redis", &texts, |random, bytes| {
        let limits = [Limits::STORE, Limits::COLLECTED, Limits::GUEST][random.index(3)];
        let whole = requests(&limits, bytes, || usize::MAX >> 1);
        let (mut pieces, longest) = (Random::new(random.bits()), 1 + random.index(60));
        let cut = requests(&limits, bytes, || 1 + pieces.index(longest));
        assert_eq!(whole, cut, "{:?}", String::from_utf8_lossy(bytes));
        let (requests, streamed, wrong) = whole;
        let arguments = requests.iter().map(Vec::len).max().unwrap_or(0).min(5);
        // The reason, without what it quotes.
        let wrong = wrong.map(|wrong| wrong.split('\'').next().map(str::to_owned));
        (requests.len().min(5), arguments, streamed.is_empty(), wrong)
    });
}
