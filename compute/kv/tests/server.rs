//! What a front end tells about itself: its errors, its commands, and the keys of a request.

mod world;

use farmem::Transport;
use world::process::{Process, answers};

#[test]
fn another_process() {
    world::process::another_process();
}

#[test]
fn errors_are_counted_by_their_first_word() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("errors", &node.at);
    let mut client = front.client();
    answers(&mut client, &[("SET x 1", "+OK"), ("MULTI", "+OK"), ("LPUSH x 1", "+QUEUED")]);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    answers(&mut client, &[("EXEC", &format!("[{wrong}]")), ("LPUSH x 1", wrong)]);
    assert!(client.ask("NONSENSE x").starts_with("-ERR unknown command"));
    assert!(client.ask("GET").starts_with("-ERR wrong number"));
    answers(&mut client, &[("EXEC", "-ERR EXEC without MULTI"), ("MULTI", "+OK")]);
    assert!(client.ask("NONSENSE x").starts_with("-ERR unknown command"));
    assert!(client.ask("EXEC").starts_with("-EXECABORT"));
    assert_eq!(client.ask("EVAL return(redis.pcall('lpush','x','1').err) 1 x"), &wrong[1..]);
    assert!(client.ask("EVAL return({err='x\\r\\nb:y'}) 0").starts_with('-'));
    let told = client.ask("INFO errorstats");
    for line in ["errorstat_ERR:count=4", "errorstat_EXECABORT:count=1", "errorstat_WRONGTYPE:count=2"] {
        assert!(told.contains(line), "{told}");
    }
    assert!(told.contains("errorstat_x:count=1") && !told.contains("\nb:y"), "{told}");
    assert!(client.ask("INFO stats").contains("total_error_replies:8"));
    answers(&mut client, &[("CONFIG RESETSTAT", "+OK")]);
    assert!(!client.ask("INFO errorstats").contains("errorstat_"));
    assert!(client.ask("INFO cpu").contains("used_cpu_user:"));
}

#[test]
fn keys_of_a_request_are_named() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("keys", &node.at);
    let mut client = front.client();
    for (request, keys) in [
        ("GET a", "[a]"),
        ("MSET a 1 b 2", "[a b]"),
        ("BITOP AND a b c", "[a b c]"),
        ("ZUNIONSTORE to 2 a b WEIGHTS 1 2", "[to a b]"),
        ("ZINTER 2 a b", "[a b]"),
        ("LMPOP 1 a LEFT", "[a]"),
        ("BZMPOP 0 2 a b MIN", "[a b]"),
        ("EVAL script 2 a b c", "[a b]"),
        ("EVAL script 0", "[]"),
        ("SORT a BY store GET store STORE b STORE c", "[a c]"),
        ("SORT_RO a LIMIT 0 1", "[a]"),
        ("GEORADIUS a 1 1 1 km STOREDIST b", "[a b]"),
        ("XREAD COUNT 1 STREAMS a b 0 0", "[a b]"),
        ("XREADGROUP GROUP g c STREAMS a >", "[a]"),
        ("XGROUP CREATE a g 0", "[a]"),
        ("MEMORY USAGE a", "[a]"),
        ("OBJECT ENCODING a", "[a]"),
        ("BLPOP a b 0", "[a b]"),
        ("PING", "-ERR The command has no key arguments"),
        ("EVAL script 3 a", "-ERR Invalid arguments specified for command"),
        ("XREAD COUNT 1 STREAMS a b 0", "-ERR Invalid arguments specified for command"),
        ("NONSENSE a", "-ERR Invalid command specified"),
        ("GET", "-ERR Invalid number of arguments specified for command"),
    ] {
        assert_eq!(client.ask(&format!("COMMAND GETKEYS {request}")), keys, "{request}");
    }
    answers(
        &mut client,
        &[
            ("COMMAND LIST FILTERBY PATTERN xi*", "[xinfo]"),
            ("COMMAND LIST FILTERBY ACLCAT hyperloglog", "[pfadd pfcount pfmerge]"),
            ("COMMAND LIST FILTERBY MODULE any", "[]"),
            ("COMMAND LIST FILTERBY", "-ERR syntax error"),
            ("ACL WHOAMI", "default"),
            ("ACL LIST", "[user default on nopass ~* &* +@all]"),
        ],
    );
}

#[test]
fn lists_are_read_and_changed_at_both_ends() {
    let node = Process::node(Transport::Shm);
    let front = Process::front("lists", &node.at);
    answers(
        &mut front.client(),
        &[
            ("RPUSH l a b c", ":3"),
            ("LPUSH l z y", ":5"),
            ("EXPIRE l 1000", ":1"),
            ("LRANGE l 0 -1", "[y z a b c]"),
            ("LRANGE l 1 2", "[z a]"),
            ("LRANGE l -2 100", "[b c]"),
            ("LRANGE l 5 9223372036854775807", "[]"),
            ("LINDEX l -1", "c"),
            ("LINDEX l 5", "nil"),
            ("LINDEX l -6", "nil"),
            ("LPOP l 0", "[]"),
            ("LPOP l 2", "[y z]"),
            ("RPOP l 2", "[c b]"),
            ("LLEN l", ":1"),
            ("PERSIST l", ":1"),
            ("RPUSHX l d", ":2"),
            ("RPOP l 9", "[d a]"),
            ("EXISTS l", ":0"),
            ("LPOP l", "nil"),
            ("RPOP l 1", "*-1"),
            ("LPUSHX l x", ":0"),
            ("SET l x", "+OK"),
            ("LLEN l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("RPOP l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
        ],
    );
}
