//! A store's commands, by clients that say anything, and its snapshots.
//!
//! A text has a command a line, with a space between words. What RESTORE is given is completed by
//! the end that makes it a sound dump: what a dump holds is the client's alone.

use crate::common::{self, Place};
use crate::fuzz::{fuzz, fuzz_by};
use crate::http;
use farmem_kv::command::{COMMANDS, find};
use farmem_kv::serve::{Config, Failed, restore};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Commands of one text.
const MOST: usize = 60;
/// Bytes of replies that are looked at.
const LARGEST: usize = 1 << 20;
/// How long replies are waited for. A command may wait for others, which never come.
const WAITS: Duration = Duration::from_millis(300);
/// Of a front end that has much to do.
const LONG: Duration = Duration::from_secs(60);

/// A process, killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Nanoseconds of CPU time that a process has had: the kernel tells them in hundredths of seconds.
fn cpu_ns_of(process: u32) -> u64 {
    let about = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name, in brackets, may have spaces. Two fields behind it are times.
    let behind = about.rsplit_once(')').map_or("", |(_, behind)| behind);
    behind.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10_000_000
}

/// A store on a node of its own, and where its front end listens.
struct Served {
    place: Place,
    _node: Killed,
    front: Killed,
    at: SocketAddr,
    counters: SocketAddr,
}

impl Served {
    fn start() -> Served {
        let place = Place::new();
        let socket = place.path().join("node.sock");
        let at = format!("unix:{}", socket.display());
        let quiet = |arguments: &[&str]| {
            let said = std::fs::File::create(place.path().join(format!("{}.log", arguments[0]))).unwrap();
            Killed(place.farmem(arguments).stdout(Stdio::null()).stderr(said).spawn().unwrap())
        };
        let node = quiet(&["node", "--lend", "512M", "--rdma", "off", "--listen", &at]);
        common::listens(&socket);
        let to = common::free();
        let counters = common::free();
        let (listen, shown) = (to.to_string(), counters.to_string());
        let store = ["kv", "--name", "fuzzed", "--node", &at, "--maxmemory", "256M"];
        let front = quiet(&[&store[..], &["--listen", &listen, "--metrics", &shown]].concat());
        common::eventually("the front end listens", || TcpStream::connect(to).is_ok());
        Served { place, _node: node, front, at: to, counters }
    }

    /// The front end lives, and has served all that came before.
    fn lives(&mut self, after: &[u8]) {
        let answer = heard(self.at, b"*1\r\n$4\r\nPING\r\n", 1, LONG);
        if answer != b"+PONG\r\n" {
            let said = std::fs::read_to_string(self.place.path().join("kv.log")).unwrap_or_default();
            let ended = self.front.0.try_wait();
            panic!("{ended:?} after {:?}: {answer:?} {said}", String::from_utf8_lossy(after));
        }
    }
}

/// What is answered to these bytes until there are this many replies, the connection ends, or
/// nothing more comes for a while.
fn heard(at: SocketAddr, says: &[u8], replies: usize, waits: Duration) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(waits)).unwrap();
    // A front end whose replies are not read does not read either.
    stream.set_write_timeout(Some(waits)).unwrap();
    let _ = stream.write_all(says);
    let (mut answer, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    while kinds(&answer).len() < replies && answer.len() < LARGEST {
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
        }
    }
    answer
}

/// The end of a reply that begins at `at`; `None`: it has not come whole.
fn end(bytes: &[u8], at: usize) -> Option<usize> {
    let line = at + bytes.get(at..)?.windows(2).position(|pair| pair == b"\r\n")?;
    let text = std::str::from_utf8(&bytes[at + 1..line]).unwrap_or_default();
    let len = || text.parse::<i64>().unwrap_or_else(|_| panic!("a length: {text:?}"));
    let items = match bytes[at] {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => return Some(line + 2),
        b'$' | b'=' | b'!' if len() < 0 => return Some(line + 2),
        b'$' | b'=' | b'!' => {
            let end = line + 2 + len() as usize;
            assert!(bytes.get(end..end + 2).is_none_or(|end| end == b"\r\n"), "a text ends where it says");
            return (bytes.len() >= end + 2).then_some(end + 2);
        }
        b'*' | b'~' | b'>' => len(),
        b'%' => 2 * len(),
        other => panic!("no reply begins with {other}"),
    };
    (0..items.max(0)).try_fold(line + 2, |at, _| end(bytes, at))
}

/// The kinds of the replies: the first byte, and of an error its words.
fn kinds(bytes: &[u8]) -> Vec<String> {
    let (mut at, mut kinds) = (0, Vec::new());
    while let Some(next) = end(bytes, at) {
        let shown = &bytes[at..next.min(at + if bytes[at] == b'-' { 40 } else { 1 })];
        kinds.push(String::from_utf8_lossy(shown).chars().filter(|c| !c.is_ascii_digit()).collect());
        at = next;
    }
    kinds
}

/// The commands of a text.
fn commands(text: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).take(MOST);
    let words = lines.map(|line| line.split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>());
    words
        // These hold up all clients, or this one, as long as they say.
        .filter(|words| !words.iter().any(|word| [&b"pause"[..], b"sleep"].contains(&&*word.to_ascii_lowercase())))
        .map(|mut words| {
            if words.len() > 3 && words[0].eq_ignore_ascii_case(b"restore") {
                words[3].extend_from_slice(&0xfa01u16.to_le_bytes());
                let checksum = xxh3_64(&words[3]);
                words[3].extend_from_slice(&checksum.to_le_bytes());
            }
            words
        })
        .collect()
}

/// As a client sends them.
fn stream(commands: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for words in commands {
        bytes.extend(format!("*{}\r\n", words.len()).into_bytes());
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    bytes
}

/// Each command with as many keys as it wants, and some with what they are for.
fn texts() -> Vec<Vec<u8>> {
    let plain = COMMANDS.iter().map(|command| {
        let words = usize::from(command.arity.unsigned_abs());
        let arguments = &["k", "1", "m", "2", "k2", "0", "z", "3"][..words.saturating_sub(1).min(8)];
        [&[command.name][..], arguments].concat().join(" ")
    });
    let mut texts: Vec<Vec<u8>> = plain.map(String::into_bytes).collect();
    let good: [&[u8]; 22] = [
        b"set s hello ex 100 nx get\ngetrange s -3 -1\nsetrange s 20 x\nlcs s s idx withmatchlen\nincrbyfloat n 1.5e3",
        b"setbit b 77 1\nbitfield b overflow sat incrby i64 #1 9223372036854775807 get u63 5 set i5 100 -7\nbitpos b 1 2 -1 bit",
        b"bitop xor d b s\nbitcount b -5 -1 bit\ngetbit b 4294967295\nappend b xyz",
        b"rpush l a b c a\nlpos l a rank -1 count 0 maxlen 9\nlinsert l before b x\nltrim l -3 -2\nlmpop 2 q l right count 5\nlset l -1 y",
        b"blmove l l2 left right 0.01\nblpop l l2 0.01\nbrpoplpush l l 0.01\nblmpop 0.01 1 l left",
        b"hset h f 1 g 2\nhincrby h f 9223372036854775807\nhincrbyfloat h g -1e300\nhrandfield h -5 withvalues\nhscan h 0 match f* count 9",
        b"sadd u a b c 1 2 3\nspop u 2\nsrandmember u -9\nsintercard 2 u v limit 1\nsdiffstore w u v\nsmove u v a\nsscan u 0",
        b"zadd z 1 a 2 b -inf c +inf d\nzadd z gt ch incr 1e308 a\nzrange z (1 +inf byscore limit 0 2 withscores\nzrangebylex z [a (c\nzrandmember z -5 withscores",
        b"zunionstore t 2 z z weights -1.5 2 aggregate max\nzinter 2 z t withscores\nzmpop 1 z max count 2\nzrangestore r z 0 -1 rev\nbzpopmin z 0.01",
        b"geoadd g 13.361389 38.115556 P 15.087269 37.502669 C\ngeosearch g fromlonlat 15 37 byradius 200 km asc count 1 any withcoord withdist\ngeosearchstore g2 g frommember P bybox 4 4 m storedist\ngeohash g P\ngeoradius g 15 37 1e300 m store x",
        b"pfadd p a b c\npfcount p p2\npfmerge p2 p\nset p HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80\x7f\xff\npfadd p x",
        b"xadd x * f v\nxadd x maxlen ~ 5 limit 7 1-* f v\nxgroup create x gr 0 mkstream entriesread 9\nxreadgroup group gr me count 2 streams x >\nxpending x gr - + 9 me\nxautoclaim x gr you 0 0 justid",
        b"xclaim x gr you 0 1-1 force retrycount 9223372036854775807 lastid 5-5\nxsetid x 18446744073709551615-1 entriesadded 9223372036854775807 maxdeletedid 3-3\nxinfo stream x full count 2\nxtrim x minid = 5\nxread block 5 streams x $\nxadd x 18446744073709551615-* a b",
        b"sort l by nosort get # get w_* limit 0 5 alpha desc store o\nsort u by w_* get h->f\nsort_ro z",
        b"expire s 9223372036854775807 gt\npexpireat s -1\nexpireat h 99999999999\nttl h\ngetex h persist\nobject freq s\ncopy s s2 replace\nrename s h",
        b"multi\nset s 1\nlpush s 1\nincr s\nexec\nwatch s\nmulti\nexec\ndiscard\nunwatch",
        b"eval return(redis.call('set',KEYS[1],ARGV[1])) 1 s v\neval return{cjson.decode('[1,{}]'),string.rep('x',9):find('x*$'),#KEYS} 0\neval return(string.format('%5.3s%d%q',1,2,3)) 0\nscript load return(1)",
        b"eval local(s)='a';return(s:gsub('(.)','%1%0%%')) 0\neval return(cmsgpack) 0\neval return(cjson.encode({1,{a=2}})) 0\neval return(redis.pcall('hgetall',KEYS[1])) 1 h\neval return{struct.unpack('<I2c0!4i',struct.pack('<I2c0!4i',3,'abc',7)),struct.size('>!bd')} 0\neval return(bit) 0\neval error({err='x'}) 0",
        b"restore r 0 \x02\x01\0\0\0a replace\nrestore r2 5 \x05\x08\0\0\0\0\0\0\0\0\0\xf0?\x01\0\0\0m absttl\nlrange r 0 -1\nzrange r2 0 -1\ndump r\nrestore r3 0 \x01text freq 3",
        b"restore x2 0 \x08\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0 replace\nxadd x2 * a b\nxinfo stream x2\nxsetid x2 5-5",
        b"hello 3 setname n\nclient tracking on bcast prefix s\nclient kill type pubsub maxage 9\nclient reply skip\nclient list id 1 2\nclient info\ncommand getkeys mset a b c d\nconfig get *\nmemory usage s samples 5\nslowlog get -1\nlatency histogram get",
        b"subscribe a b\npsubscribe a*\npublish a m\nping\nunsubscribe\npunsubscribe\nspublish a m\npubsub numsub a b\npubsub channels *\nscan 0 match * count 5 type string\nkeys [a-\nrandomkey\ndbsize\nflushall async",
    ];
    texts.extend(good.map(<[u8]>::to_vec));
    texts
}

/// Whatever its commands are, a client loses at most its own connection, and every reply is whole.
#[test]
fn a_stores_commands() {
    let mut served = Served::start();
    let texts = texts();
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    let (mut seen, mut cases) = (BTreeSet::new(), 0u64);
    let front = served.front.0.id();
    let spent = move || cpu_ns_of(front);
    fuzz_by(spent, "commands", &texts, |_, bytes| {
        let commands = commands(bytes);
        let answer = heard(served.at, &stream(&commands), commands.len(), WAITS);
        cases += 1;
        if cases.is_multiple_of(16) {
            served.lives(bytes);
        }
        // A kind: there is a command that was answered in a new way.
        let names = commands.iter().map(|words| find(&words[0]).map(|command| command.name));
        let new = names.zip(kinds(&answer)).filter(|pair| seen.insert(hash(pair))).count();
        if new > 0 { seen.len() } else { 0 }
    });
    served.lives(b"all of it");
}

/// The counters of a front end, by HTTP: whatever is asked, they are shown to the next.
#[test]
fn a_stores_counters() {
    let mut served = Served::start();
    common::eventually("the counters are served", || TcpStream::connect(served.counters).is_ok());
    let texts: [&[u8]; 3] = [
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /?x=1 HTTP/1.0\r\nhost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
    ];
    let front = served.front.0.id();
    let spent = move || cpu_ns_of(front);
    fuzz_by(spent, "store-counters", &texts, |_, bytes| {
        let answer = http::heard(served.counters, bytes, http::WAITS);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "{:?}", String::from_utf8_lossy(&answer));
        answer.get(..12).map(<[u8]>::to_vec)
    });
    assert!(http::heard(served.counters, texts[0], LONG).starts_with(b"HTTP/1.1 200"));
    served.lives(b"all of it");
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// A file is refused with a reason, or it is a snapshot: then a store is asked for that there is
/// none of.
#[test]
fn a_snapshot() {
    let shm = std::path::Path::new("/dev/shm");
    let folder = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
    let path = folder.join(format!("farmem-decoders-snapshot-{}", std::process::id()));
    let config = Config::of("none", &["unix:/nowhere/node.sock"]);
    let entry = |kind: u8, key: &[u8], value: &[u8]| {
        let head = [&[kind][..], &7u64.to_le_bytes(), &(key.len() as u32).to_le_bytes()].concat();
        [&head, &(value.len() as u32).to_le_bytes()[..], key, value].concat()
    };
    // Without its last word, the checksum.
    let whole = |entries: &[Vec<u8>]| {
        let end = [&[0][..], &(entries.len() as u64).to_le_bytes()].concat();
        [&b"FARMEMKV"[..], &1u64.to_le_bytes(), &entries.concat(), &end].concat()
    };
    let texts = [
        whole(&[]),
        whole(&[entry(1, b"s", b"text"), entry(2, b"l", b"\x01\0\0\0a"), entry(4, b"h", b"\0\0\0\0\0\0\0\0")]),
        whole(&[entry(6, b"long", &[0; 40])]),
        whole(&[entry(8, b"x", &[0; 64])]),
    ];
    let texts: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    fuzz("snapshot", &texts, |random, bytes| {
        // Nearly always with the right checksum.
        let checksum = xxh3_64(bytes) ^ u64::from(random.index(16) == 0);
        std::fs::write(&path, [bytes, &checksum.to_le_bytes()].concat()).unwrap();
        match restore(&config, &path) {
            Err(Failed::Snapshot { reason, .. }) => {
                reason.to_string().chars().filter(|c| !c.is_ascii_digit()).collect::<String>()
            }
            Err(_) => "sound".to_owned(),
            Ok(keys) => panic!("{keys} keys were restored to nowhere"),
        }
    });
    std::fs::remove_file(&path).unwrap();
}
