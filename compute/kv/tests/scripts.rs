//! Scripts: their values and replies, other clients beside them, and their limits.

mod world;

use farmem::Transport;
use std::time::{Duration, Instant};
use world::process::{Client, Process};

#[test]
fn another_process() {
    world::process::another_process();
}

const WRITES: &str = "ERR Write commands are not allowed from read-only scripts.";

/// One client's script changes nothing for the scripts of others.
#[test]
fn a_script_changes_no_global() {
    let (_node, front) = front("globals");
    let [mut one, mut other] = [front.client(), front.client()];
    let names = ["redis", "pcall", "error", "type", "tostring", "math", "cjson", "struct", "_G", "_VERSION"];
    for name in names {
        for said in ["NAME = function() return 1 end", "_G.NAME = 1", "_G['NAME'] = nil", "local g = _G; g.NAME = 2"] {
            let failed = eval(&mut one, &said.replace("NAME", name), &["0"]);
            assert!(failed.starts_with("-ERR user_script:1: Attempt to modify a readonly table"), "{name}: {failed}");
        }
    }
    for said in ["setmetatable(_G, {})", "rawset(_G, 'redis', 1)", "table.insert(_G, 1)", "setfenv(1, {})"] {
        assert!(eval(&mut one, said, &["0"]).starts_with("-ERR "), "{said}");
    }
    // The keys are the script's own.
    assert_eq!(eval(&mut one, "KEYS = {'x'}; ARGV = nil; redis = redis; return 1", &["1", "k"]).as_bytes()[0], b'-');
    eval(&mut one, "KEYS = {'x'}; ARGV = nil", &["1", "k"]);
    let said = "return {redis.call('set', KEYS[1], ARGV[1]), tostring(pcall(error)), type(_G), cjson.encode({1})}";
    assert_eq!(eval(&mut other, said, &["1", "k", "v"]), "[+OK false table [1]]");
}

/// Runs a script with its keys and values.
fn eval(client: &mut Client, script: &str, rest: &[&str]) -> String {
    client.send(&[&["EVAL", script], rest].concat()).unwrap();
    client.reply().unwrap()
}

fn front(name: &str) -> (Process, Process) {
    let node = Process::node(Transport::Tcp);
    let front = Process::front(name, &node.at);
    (node, front)
}

#[test]
fn scripts_read_change_and_return() {
    let (_node, front) = front("scripts");
    let mut client = front.client();
    let cases: &[(&str, &[&str], &str)] = &[
        ("return 7.9", &["0"], ":7"),
        ("return {1, 'two', true, false, 5}", &["0"], "[:1 two :1 nil :5]"),
        ("return {1, nil, 3}", &["0"], "[:1]"),
        ("return {KEYS[1], KEYS[2], ARGV[1], #ARGV}", &["2", "a", "b", "c", "d"], "[a b c :2]"),
        ("return redis.call('set', KEYS[1], ARGV[1])", &["1", "k", "v"], "+OK"),
        ("return redis.call('get', KEYS[1])", &["1", "k"], "v"),
        ("return redis.call('get', KEYS[1]) == false", &["1", "none"], ":1"),
        ("redis.call('incrby', KEYS[1], 10); return redis.call('incr', KEYS[1]) + 1", &["1", "n"], ":12"),
        ("return redis.call('rpush', KEYS[1], 1, 2.5, 1e15)", &["1", "l"], ":3"),
        ("return redis.call('lrange', KEYS[1], 0, -1)", &["1", "l"], "[1 2.5 1000000000000000]"),
        ("return redis.call('zadd', KEYS[1], 1.5, 'm')", &["1", "z"], ":1"),
        ("return redis.call('zscore', KEYS[1], 'm')", &["1", "z"], "1.5"),
        ("redis.call('hset', KEYS[1], 'f', 1); return redis.call('hgetall', KEYS[1])", &["1", "h"], "[f 1]"),
        ("redis.call('set', KEYS[1], 1, 'px', 60000); return redis.call('pttl', KEYS[1]) > 59000", &["1", "t"], ":1"),
        // Several keys, and keys that are not named.
        (
            "redis.call('mset', KEYS[1], 1, KEYS[2], 2); return redis.call('mget', KEYS[1], KEYS[2])",
            &["2", "x", "y"],
            "[1 2]",
        ),
        ("return redis.call('get', 'x') + redis.call('get', ARGV[1])", &["0", "y"], ":3"),
        ("redis.call('lpush', 'from', 'e'); return redis.call('rpoplpush', 'from', 'to')", &["0"], "e"),
        ("return redis.call('lrange', 'to', 0, -1)", &["1", "to"], "[e]"),
        ("return {unpack({1, 2, 3}, 2)}", &["0"], "[:2 :3]"),
        ("return #{unpack({1, 2, 3}, 3, 2)}", &["0"], ":0"),
        // Libraries.
        ("return cjson.encode({a={1,2}, })", &["0"], "{\"a\":[1,2]}"),
        ("return cjson.decode('{\"a\": [1, {\"b\": \"c\"}]}').a[2].b", &["0"], "c"),
        ("return cjson.decode('[null]')[1] == cjson.null", &["0"], ":1"),
        // As redis 7.0 packs them.
        (
            "local t = {7, -32, 128, 255, 256, 65536, 4294967296, -33, -129, -32769, -2147483649, 1.5, 0.1, true, false}; \
             local s = ''; for _, v in ipairs(t) do s = s .. cmsgpack.pack(v):gsub('.', function(c) \
             return string.format('%02x', c:byte()) end) .. ' ' end; return s",
            &["0"],
            "07 e0 cc80 ccff cd0100 ce00010000 cf0000000100000000 d0df d1ff7f d2ffff7fff d3ffffffff7fffffff ca3fc00000 \
             cb3fb999999999999a c3 c2 ",
        ),
        ("return {cmsgpack.unpack(cmsgpack.pack('a', {}, {1, {2}}, nil, 3))}", &["0"], "[a [] [:1 [:2]]]"),
        ("local t = cmsgpack.unpack(cmsgpack.pack({a = {b = 'c'}, [3] = 4})); return {t.a.b, t[3]}", &["0"], "[c :4]"),
        // A table with a gap and other keys is a map, whatever Lua takes for its length.
        ("return cmsgpack.unpack(cmsgpack.pack({1, nil, 3, x = 9})).x", &["0"], ":9"),
        ("return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2), 0)}", &["0"], "[:1 :2]"),
        ("return {cmsgpack.unpack_one(cmsgpack.pack(1, 2, 3), 1)}", &["0"], "[:2 :2]"),
        ("return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2, 3), 2, 1)}", &["0"], "[:-1 :2 :3]"),
        ("return {cmsgpack.unpack_limit(cmsgpack.pack(1, 2), 0)}", &["0"], "[:1 :2]"),
        // No key is lost, though the table's length may be the number of its keys.
        (
            "local t = cmsgpack.unpack(cmsgpack.pack({1, nil, 3, x = 9})); return {t.x, t[1], t[3]}",
            &["0"],
            "[:9 :1 :3]",
        ),
        (
            "local t = cjson.decode(cjson.encode({1, nil, 3, x = 9})); return {t.x, t['1'], t['3']}",
            &["0"],
            "[:9 :1 :3]",
        ),
        ("return cjson.encode({[1] = 1, [3] = 3})", &["0"], "[1,null,3]"),
        ("return {struct.unpack('<I2c0', struct.pack('<I2c0', 3, 'abc'))}", &["0"], "[abc :6]"),
        ("return struct.size('>!4bi')", &["0"], ":8"),
        ("#!lua flags=allow-oom\nreturn 1", &["0"], ":1"),
        ("#!lua flags=no-writes\nreturn redis.pcall('set', 'k', 1).err", &["0"], WRITES),
        ("#!lua flags=no-writes\nreturn redis.pcall('publish', 'c', 1).err", &["0"], WRITES),
        ("#!py\nreturn 1", &["0"], "-ERR Unexpected engine in script shebang: #!py"),
        ("local t = {}; t.t = t; return cmsgpack.unpack(cmsgpack.pack(t)).t.t ~= nil", &["0"], ":1"),
        ("return cmsgpack.unpack(string.char(0xc4, 2) .. 'ab' .. string.char(0xd9, 1) .. 'c')", &["0"], "ab"),
        ("local s = ('x'):rep(300); return cmsgpack.unpack(cmsgpack.pack({s}))[1] == s", &["0"], ":1"),
        (
            "return {bit.band(7, 12, 5), bit.bor(1, 2), bit.bxor(5, 1), bit.bnot(0), bit.lshift(1, 31), bit.rshift(-1, 31), \
             bit.arshift(-8, 1), bit.rol(0x12345678, 8), bit.bswap(1), bit.tobit(0xffffffff), bit.tohex(255, 4), \
             bit.tohex(-1, -2)}",
            &["0"],
            "[:4 :3 :4 :-1 :-2147483648 :1 :-4 :878082066 :16777216 :-1 00ff FF]",
        ),
        ("return redis.sha1hex('')", &["0"], "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("return pcall(redis.sha1hex)", &["0"], "nil"),
        ("return redis.status_reply('FINE')", &["0"], "+FINE"),
        ("return ('%d-%s'):format(3, ('ab'):upper())", &["0"], "3-AB"),
        ("return string.match('key:12', ':(%d+)')", &["0"], "12"),
        (
            "return {table.concat({1, 2}, ','), math.floor(2.7), tostring(10 / 2), select('#', 1, 2)}",
            &["0"],
            "[1,2 :2 5 :2]",
        ),
        ("return {pcall(error, 'x')}", &["0"], "[nil x]"),
        // Errors.
        ("return redis.error_reply('MINE it is')", &["0"], "-MINE it is"),
        ("return redis.pcall('incr', KEYS[1])['err']", &["1", "k"], "ERR value is not an integer or out of range"),
        ("return redis.pcall('nonsense').err ~= nil", &["0"], ":1"),
    ];
    for (script, rest, expected) in cases {
        assert_eq!(eval(&mut client, script, rest), *expected, "{script}");
    }
    // A script that fails changes nothing.
    let failed = eval(&mut client, "redis.call('set', KEYS[1], 2); redis.call('lpush', KEYS[1], 1)", &["1", "whole"]);
    assert!(failed.starts_with("-WRONGTYPE ") && failed.contains("script: "), "{failed}");
    assert_eq!(client.ask("EXISTS whole"), ":0");
    assert_eq!(eval(&mut client, "return redis.call('set', 'other' .. KEYS[1], 1)", &["1", "k"]), "+OK");
    assert_eq!(client.ask("GET otherk"), "1");
    // By name.
    let sha = client.ask("SCRIPT LOAD return(1)");
    assert_eq!(sha, eval(&mut client, "return redis.sha1hex('return(1)')", &["0"]));
    assert_eq!(client.ask(&format!("EVALSHA {sha} 0")), ":1");
    assert_eq!(client.ask(&format!("EVALSHA_RO {} 0", sha.to_uppercase())), ":1");
    assert_eq!(client.ask(&format!("SCRIPT EXISTS {sha} {}", "0".repeat(40))), "[:1 :0]");
    assert_eq!(client.ask("SCRIPT FLUSH"), "+OK");
    assert_eq!(client.ask(&format!("EVALSHA {sha} 0")), "-NOSCRIPT No matching script. Please use EVAL.");
    client.send(&["EVAL_RO", "return redis.call('set', KEYS[1], 1)", "1", "k"]).unwrap();
    assert!(client.reply().unwrap().starts_with("-ERR Write commands are not allowed from read-only scripts."));
    // Within a transaction, and behind other commands.
    for line in ["MULTI", "SET m 1", "EVAL return(redis.call('incr','m')) 0", "GET m", "EXEC", "GET m"] {
        client.send(&line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let said: Vec<String> = (0..6).map(|_| client.reply().unwrap()).collect();
    assert_eq!(said, ["+OK", "+QUEUED", "+QUEUED", "+QUEUED", "[+OK :2 2]", "2"]);
    for line in ["EVAL x", "EVAL x -1", "EVAL x 2 a", "EVAL x many", "EVAL ((( 0", "EVALSHA x 0", "SCRIPT X"] {
        assert!(client.ask(line).starts_with('-'), "{line}");
    }
    assert_eq!(client.ask("PING"), "+PONG");
}

/// JSON has the forms that redis's `cjson` gives it, to the byte.
#[test]
fn json_is_written_and_read_as_by_redis() {
    let (_node, front) = front("json");
    let mut client = front.client();
    let encoded = [
        ("{0.1, 1e15, 1/3, -0.5, 100, 2^53, 1e-7}", "[0.1,1e+15,0.33333333333333,-0.5,100,9.007199254741e+15,1e-07]"),
        ("'a/b\"\\\\\\n\\127\\1'", "\"a\\/b\\\"\\\\\\n\\u007f\\u0001\""),
        ("{[1.5] = 1}", "{\"1.5\":1}"),
        ("{}", "{}"),
        ("{cjson.null, true}", "[null,true]"),
    ];
    for (value, expected) in encoded {
        assert_eq!(eval(&mut client, &format!("return cjson.encode({value})"), &["0"]), expected, "{value}");
    }
    // Bytes that are no text stay what they are.
    let same = "local s = '\\255\\128\\0x'; return cjson.decode(cjson.encode({s}))[1] == s and 1 or 0";
    assert_eq!(eval(&mut client, same, &["0"]), ":1");
    let read = "local t = cjson.decode(ARGV[1]); return tostring(type(t) == 'table' and t[1] or t)";
    for (text, expected) in [
        ("[0x10]", "16"),
        ("[-Infinity]", "-inf"),
        ("[007]", "7"),
        ("[1e400]", "inf"),
        ("[12345678901234567890]", "1.2345678901235e+19"),
        ("[\"\\ud83d\\ude00\\/\"]", "\u{1f600}/"),
        (" 5 ", "5"),
    ] {
        assert_eq!(eval(&mut client, read, &["0", text]), expected, "{text}");
    }
    for (text, expected) in [
        ("[1,", "Expected value but found T_END at character 4"),
        ("{1:2}", "Expected object key string but found T_NUMBER at character 2"),
        ("[1 2]", "Expected comma or array end but found T_NUMBER at character 4"),
        ("{\"a\":\"\\x\"}", "Expected value but found invalid escape code at character 7"),
        ("[\"\\udc00\"]", "Expected value but found invalid unicode escape code at character 3"),
        ("nope", "Expected value but found invalid token at character 1"),
        ("1 2", "Expected the end but found T_NUMBER at character 3"),
        ("-", "Expected value but found invalid number at character 1"),
    ] {
        let said = eval(&mut client, read, &["0", text]);
        assert!(said.starts_with(&format!("-ERR user_script:1: {expected} script: ")), "{text}: {said}");
    }
    // What a script sets holds for itself alone.
    let set = "cjson.encode_invalid_numbers(true); cjson.encode_number_precision(3); cjson.encode_sparse_array(true); \
               return cjson.encode({0/0, 1/0, 1/3}) .. cjson.encode({[100] = 1})";
    for _ in 0..2 {
        assert_eq!(eval(&mut client, set, &["0"]), "[nan,inf,0.333]{\"100\":1}");
        let said = eval(&mut client, "return cjson.encode({0/0})", &["0"]);
        assert!(said.contains("Cannot serialise number: must not be NaN or Inf"), "{said}");
    }
    let strict = "cjson.decode_invalid_numbers(false); return cjson.decode('[0x10]')";
    assert!(eval(&mut client, strict, &["0"]).contains("found invalid number at character 2"));
    let deep = "local t = {}; for i = 1, 990 do t = {t} end; \
                return #cjson.encode(cjson.decode(cjson.encode(cjson.decode(('['):rep(999) .. (']'):rep(999)))))..#cjson.encode(t)";
    assert_eq!(eval(&mut client, deep, &["0"]), "19981982");
}

/// Functions of Lua that redis's scripts have.
#[test]
fn scripts_have_redis_s_functions() {
    let (_node, front) = front("functions");
    let mut client = front.client();
    for (script, expected) in [
        // What a function of redis raises is text, with its line.
        (
            "local ok, e = pcall(function()\n return foo end) return type(e) .. e",
            "stringuser_script:2: Script attempted to access nonexistent global variable 'foo'",
        ),
        ("return select(2, pcall(cjson.decode, '['))", "Expected value but found T_END at character 2"),
        (
            "return select(2, xpcall(function() return cjson.decode('[') end, function(e) return '<' .. e end))",
            "<user_script:1: Expected value but found T_END at character 2",
        ),
        (
            "local ok, e = pcall(redis.call, 'incr') return type(e) .. e.err",
            "tableERR wrong number of arguments for 'incr' command",
        ),
        ("return select('#', pcall(function() end))", ":1"),
        ("return {pcall(function(...) return ... end, 1, 2)}", "[:1 :1 :2]"),
        ("return redis.error_reply('')", "-ERR"),
        ("return redis.error_reply('-MINE')", "-ERR MINE"),
        ("return redis.error_reply('MINE it is')", "-MINE it is"),
        ("return redis.error_reply({})", "-ERR wrong number or type of arguments"),
        ("return loadstring('local a = ... return a + 1')(2)", ":3"),
        ("return select(2, loadstring('return return', '=mine'))", "mine:1: unexpected symbol near 'return'"),
        ("local n, t = 0, {'return ', '4'} return load(function() n = n + 1 return t[n] end)()", ":4"),
        ("return loadstring('return KEYS[1]')()", "k"),
        (
            "local t = setmetatable({}, {__index = function(_, k) return k end}) rawset(t, 'a', 1) return {t.a, t.b}",
            "[:1 b]",
        ),
        ("local c = class_of or nil return 1", "-"),
        ("return collectgarbage('count') > 1 and collectgarbage() == 0 and gcinfo() > 1", ":1"),
        ("local t = {} for i = 1, 7999 do t[i] = i end return redis.call('rpush', 'l', unpack(t))", ":7999"),
        ("return redis.pcall('llen', 'l')", ":7999"),
        ("local t = {} for i = 1, 7999 do t[i] = 'x' .. i end return redis.call('sadd', 's', unpack(t))", ":7999"),
        (
            "local t = {} for i = 1, 7990 do t[i] = {} end return redis.pcall('sadd', 's', unpack(t)).err",
            "ERR Lua redis lib command arguments must be strings or integers",
        ),
        ("return {unpack({1, nil, 3}, 1, 3)}", "[:1]"),
        ("return select('#', unpack({1, nil, 3}, 1, 3))", ":3"),
    ] {
        let said = eval(&mut client, script, &["1", "k"]);
        assert!(said == expected || expected == "-" && said.starts_with('-'), "{script}: {said}");
    }
}

/// A script that has asked for it gets RESP3's forms, and its client gets those that it speaks.
#[test]
fn scripts_may_ask_for_the_forms_of_resp3() {
    let (_node, front) = front("resp3");
    let mut client = front.client();
    client.ask("HSET h f v");
    client.ask("ZADD z 1.5 a");
    client.ask("SADD s a");
    let map = "redis.setresp(3) local r = redis.call('hgetall', 'h') assert(r.map.f == 'v') return r";
    let double = "redis.setresp(3) local r = redis.call('zscore', 'z', 'a') assert(r.double == 1.5) return r";
    let set = "redis.setresp(3) local r = redis.call('smembers', 's') assert(r.set.a == true) return r";
    let none = "redis.setresp(3) return type(redis.call('get', 'none'))";
    for (version, [in_map, in_double, is]) in [("2", ["[f v]", "1.5", ":1"]), ("3", ["[f v]", ",1.5", "#t"])] {
        client.ask(&format!("HELLO {version}"));
        for (script, expected) in [
            (map, in_map),
            (double, in_double),
            (none, "nil"),
            ("redis.setresp(3) return true", is),
            ("return true", ":1"),
            ("return redis.call('hgetall', 'h')", "[f v]"),
            ("redis.setresp(4)", "-"),
        ] {
            let said = eval(&mut client, script, &["0"]);
            assert!(said == expected || expected == "-" && said.starts_with('-'), "{script}: {said}");
        }
    }
    client.ask("HELLO 2");
    assert_eq!(eval(&mut client, set, &["0"]), "[a]");
}

/// A script that returns an error has changed what it says; one that fails has not, also if only one
/// of its values cannot be written.
#[test]
fn failed_scripts_change_nothing() {
    let (_node, front) = front("failed");
    let mut client = front.client();
    let limiter = "redis.call('incr', KEYS[1]); return redis.error_reply('LIMIT reached')";
    assert_eq!(eval(&mut client, limiter, &["1", "n"]), "-LIMIT reached");
    assert_eq!(client.ask("GET n"), "1");
    let large = "redis.call('set', KEYS[1], 1); redis.call('rpush', KEYS[2], string.rep('x', 3e6))";
    assert!(eval(&mut client, large, &["2", "a", "b"]).contains("too large"));
    assert_eq!(client.ask("EXISTS a b"), ":0");
    let caught = "local ok, e = pcall(redis.call, 'lpush', KEYS[1], 1); return {ok, e.err}";
    let said = eval(&mut client, caught, &["1", "n"]);
    assert!(said.starts_with("[nil WRONGTYPE "), "{said}");
    let raised = eval(&mut client, "error({err='MINE it is'})", &["0"]);
    assert!(raised.starts_with("-MINE it is script: "), "{raised}");
    // A long value is copied by its pieces, which no script does.
    client.send(&["SET", "long", &"x".repeat(3 << 20)]).unwrap();
    assert_eq!(client.reply().as_deref(), Some("+OK"));
    let said = eval(&mut client, "return redis.call('copy', KEYS[1], KEYS[2])", &["2", "long", "other"]);
    assert!(said.starts_with('-'), "{said}");
    assert_eq!((client.ask("STRLEN long"), client.ask("EXISTS other")), (":3145728".into(), ":0".into()));
}

/// Scripts that use all of their time hold other clients up for one of them at most.
#[test]
fn slow_scripts_let_the_front_end_live() {
    let (_node, front) = front("slow");
    let (mut slow, mut other) = (front.client(), front.client());
    for n in 0..14 {
        slow.send(&["EVAL", "while true do end", "1", &format!("k{n}")]).unwrap();
    }
    let mut longest = Duration::ZERO;
    let ended = std::thread::spawn(move || (0..14).all(|_| slow.reply().unwrap().contains("ran for more than")));
    while !ended.is_finished() {
        let asked = Instant::now();
        assert_eq!(other.ask("PING"), "+PONG");
        longest = longest.max(asked.elapsed());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(ended.join().unwrap());
    // Seven seconds in all: without its turns the front end would have been taken for dead.
    assert!(longest < Duration::from_secs(4), "{longest:?}");
}

/// What others take of the machine is no time of a script.
#[test]
fn a_script_goes_on_when_its_front_end_has_stood_still() {
    let (_node, front) = front("still");
    let mut client = front.client();
    for round in 0..4u64 {
        let script = "local n = 0; for i = 1, 1e6 do n = n + i % 7 end; return redis.call('incr', KEYS[1])";
        client.send(&["EVAL", script, "1", "k"]).unwrap();
        std::thread::sleep(Duration::from_millis(1 + 2 * round));
        world::process::signal(&front, "-STOP");
        std::thread::sleep(Duration::from_millis(600));
        world::process::signal(&front, "-CONT");
        assert_eq!(client.reply().unwrap(), format!(":{}", round + 1));
    }
}

/// Calls that are one instruction for Lua's clock. Others take a front end for dead that is silent for 5 s.
#[test]
fn no_call_of_a_script_holds_the_front_end_up() {
    let (_node, front) = front("held-up");
    let mut client = front.client();
    for (script, expected) in [
        ("for n = 1, 1e9 do string.rep('', 134217728) end", "ran for more than"),
        ("local s = string.rep('a', 3e7); for n = 1, 1e9 do string.upper(s) end", "ran for more than"),
        ("local s = string.rep('a', 3e7); for n = 1, 1e9 do s:reverse() end", "ran for more than"),
        ("local t = {}; for n = 1, 1e6 do t[n] = '' end; for n = 1, 1e9 do table.concat(t) end", "ran for more than"),
        ("return string.gsub('y', '(x*)', string.rep('%1', 1e7))", "ran for more than"),
        ("return cjson.encode(string.rep('\\1', 3e7))", "longer than 16 MiB|ran for more than"),
        ("local s = '[' .. string.rep('[],', 1e6) .. '1]'; for n = 1, 1e9 do cjson.decode(s) end", "ran for|memory"),
        ("local s = string.rep('a', 1e7); for n = 1, 1e9 do redis.sha1hex(s) end", "ran for more than"),
        ("return select(2, loadstring('return a' .. string.rep(' or a', 65000)))", "more than 10000 of `and`"),
        ("return select(2, loadstring(('elseif a then '):rep(11000)))", "more than 10000 of `and`"),
        ("return string.format('%d', 'x')", "bad argument #2 to 'format' (number expected, got string)"),
        ("return table.concat({1, {}})", "invalid value (table) at index 2 in table for 'concat'"),
    ] {
        let asked = Instant::now();
        let reply = eval(&mut client, script, &["0"]);
        let took = asked.elapsed();
        assert!(expected.split('|').any(|word| reply.contains(word)), "{script}: {reply}");
        assert!(took < Duration::from_secs(5), "{script}: {took:?}");
    }
    let long = format!("local a; return {}a", "a or ".repeat(65_000));
    assert!(eval(&mut client, &long, &["0"]).contains("more than 10000 of `and`"));
    let long = format!("return '{}'", "x".repeat(1 << 20));
    assert!(eval(&mut client, &long, &["0"]).contains("longer than 1 MiB"));
    assert_eq!(eval(&mut client, "return ('aB'):upper() .. ('x'):rep(3) .. (''):rep(5)", &["0"]), "ABxxx");
}

#[test]
fn any_number_of_scripts_may_come() {
    let (_node, front) = front("many");
    let mut client = front.client();
    for n in 0..9000 {
        client.send(&["EVAL", &format!("return {n}"), "0"]).unwrap();
        if n % 100 == 99 {
            (n - 99..=n).for_each(|n| assert_eq!(client.reply(), Some(format!(":{n}"))));
        }
    }
}

/// As with redis 7.0, a script gets an error from a command that would wait, also if there is an element.
#[test]
fn scripts_are_refused_commands_that_wait() {
    let (_node, front) = front("waits");
    let mut client = front.client();
    assert_eq!(client.ask("RPUSH l 1 2"), ":2");
    assert_eq!(client.ask("ZADD z 1 a"), ":1");
    assert_eq!(client.ask("RPUSH row 3"), ":1");
    assert_eq!(client.ask("ZADD order 1 a"), ":1");
    assert_eq!(client.ask("XADD s 1-0 f v"), "1-0");
    assert_eq!(client.ask("XGROUP CREATE s g $"), "+OK");
    for words in [
        "'blpop', 'l', 0",
        "'BRPOP', 'l', 0",
        "'brpoplpush', 'l', 'm', 0",
        "'blmove', 'l', 'm', 'left', 'left', 0",
        "'bzpopmin', 'z', 0",
        "'bzpopmax', 'z', 0",
    ] {
        client.send(&["EVAL", &format!("return redis.call({words})"), "0"]).unwrap();
        let said = client.reply().unwrap();
        assert!(said.contains("This Redis command is not allowed from script"), "{words}: {said}");
    }
    for (words, expected) in [
        ("'xread', 'block', 0, 'streams', 's', '0'", "xread command is not allowed with BLOCK option from scripts"),
        (
            "'XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', 1, 'BLOCK', 0, 'STREAMS', 's', '>'",
            "XREADGROUP command is not allowed with BLOCK option from scripts",
        ),
        ("'xread', 'count', 'block', 'streams', 's', '0'", "integer"),
    ] {
        client.send(&["EVAL", &format!("return redis.call({words})"), "0"]).unwrap();
        let said = client.reply().unwrap();
        assert!(said.contains(expected), "{words}: {said}");
    }
    for (words, expected) in [
        ("'blmpop', 0, 1, 'row', 'left'", "[row [3]]"),
        ("'bzmpop', 0, 1, 'order', 'min'", "[order [[a 1]]]"),
        ("'bzmpop', 0, 1, 'order', 'min'", "nil"),
        ("'xread', 'streams', 's', '$'", "nil"),
        ("'xread', 'streams', 's', '0'", "[[s [[1-0 [f v]]]]]"),
        ("'xreadgroup', 'group', 'g', 'block', 'streams', 's', '>'", "nil"),
    ] {
        client.send(&["EVAL", &format!("return redis.call({words})"), "0"]).unwrap();
        assert_eq!(client.reply().unwrap(), expected, "{words}");
    }
    assert_eq!(client.ask("LRANGE l 0 -1"), "[1 2]");
}

/// A script cannot leave the machine, use it up, or change it for others.
#[test]
fn scripts_are_held_within_limits() {
    let (_node, front) = front("limits");
    let mut client = front.client();
    for (script, expected) in [
        ("while true do end", "ran for more than"),
        ("while true do pcall(function() while true do end end) end", "ran for more than"),
        ("local c = string.rep('x', 1e6); local t = {}; while true do t[#t + 1] = c .. #t end", "memory|ran for"),
        ("return string.rep('x', 1e9)", "memory"),
        ("local t = {}; for i = 1, 1e5 do t = {t} end; return t", "too large"),
        ("local t = {1}; for i = 1, 40 do t = {t, t} end; return t", "too large"),
        ("local t = {}; for i = 1, 1e5 do t = {t} end; return cjson.encode(t)", "excessive nesting (1001)"),
        ("local t = {}; t[1] = t; cjson.encode_max_depth(1e9); return cjson.encode(t)", "excessive nesting (1001)"),
        ("local t = {1}; for i = 1, 40 do t = {t, t} end; return cjson.encode(t)", "longer than"),
        (
            "cjson.decode_max_depth(1e9); return cjson.decode(string.rep('[', 1e5))",
            "too many nested data structures (1001)",
        ),
        ("local t = {1}; for i = 1, 15 do t = {t, t, t, t, t} end; return cmsgpack.pack(t)", "longer than|ran for"),
        ("return cmsgpack.unpack(string.rep(string.char(0x91), 1e5))", "within each other"),
        ("return cmsgpack.unpack(string.rep(string.char(1), 7001))", "too many return values"),
        ("return cmsgpack.unpack(string.rep(string.char(0x91), 1e7))", "longer than"),
        ("return cmsgpack.unpack(string.char(0xdd, 255, 255, 255, 255))", "Missing bytes"),
        ("return cmsgpack.unpack(string.char(0xdb, 255, 255, 255, 255))", "Missing bytes"),
        ("return cmsgpack.unpack(string.char(0xc1))", "Bad data"),
        ("return cmsgpack.unpack(string.char(0x81, 0xc0, 0xc0))", "a key is nil"),
        ("return cmsgpack.unpack_one('', 1)", "behind the end"),
        ("return cmsgpack.pack()", "needs input"),
        ("return cmsgpack.unpack(string.rep('a', 7001))", "too many return values at once"),
        ("return cjson.encode({[1] = 1, [1000] = 3})", "excessively sparse"),
        ("struct.x = 1", "readonly table"),
        ("bit.band = 1", "readonly table"),
        ("return string.find('a', string.rep('a?', 1e6))", "pattern is longer"),
        ("return ('a'):find(string.rep('a?', 1e6))", "pattern is longer"),
        ("local function f() return f() + 1 end; return f()", "stack overflow"),
        ("for w in string.gfind('', string.rep('a-', 1e6)) do end", "attempt to call"),
        ("return string.find('', string.rep('a-', 1e6))", "pattern is longer"),
        ("return string.find(string.rep('a', 4000), string.rep('a*', 20) .. 'b')", "ran for more than"),
        ("return string.gsub(string.rep('a', 4000), '(' .. string.rep('a*', 20) .. ')b', '')", "ran for more than"),
        ("return string.find(string.rep('(', 1e6), '%b()')", "ran for more than"),
        (
            "local a = ('x'):rep(64 * (4096 * 20 - 1) - 1) .. 'w'; return string.find(a .. ('x'):rep(2e7), '^(x+w).-%1y')",
            "ran for more than",
        ),
        (
            "local x = ('x'):rep(1e7); local a, b, t = x .. 'a', x .. 'b', {}; \
             for n = 1, 1e5 do t[n] = n % 2 == 0 and a or b end; table.sort(t)",
            "ran for more than",
        ),
        (
            "local s = string.rep('x', 16e6); local t = {}; for i = 1, 100 do t[i] = s end; redis.call('echo', unpack(t))",
            "64 MiB|ran for",
        ),
        (
            "local s = {ok=string.rep('x', 16e6)}; local t = {}; for i = 1, 1e5 do t[i] = s end; return t",
            "too large|ran for",
        ),
        ("local s = string.rep('x', 16e6); for i = 1, 4000 do redis.call('set', 'k' .. i, s) end", ""),
        ("return unpack({}, -1073741824, 2147483647)", "too many results"),
        ("return unpack({}, 0/0, 1)", "too many results"),
        ("return cjson.decode('[' .. string.rep('{\"\":0},', 4e6) .. '0]')", "longer than"),
        ("coroutine.resume(coroutine.create(function() while true do end end))", "global variable 'coroutine'"),
        ("for i = 1, 1e9 do string.rep('', 2147483647) end", "not enough memory"),
        ("while true do redis.call('lcs', 'none', 'none') end", "ran for more than"),
        ("for i = 1, 2e6 do end; for i = 1, 10000 do redis.call('exists', i) end", "ran for more than"),
        ("table.insert(_G, 'x')", "readonly table"),
        ("table.insert(redis, 'x')", "readonly table"),
        ("\x1bLua", "Error compiling script"),
        ("return os.exit()", "global variable 'os'"),
        ("return io.open('/etc/passwd')", "global variable 'io'"),
        ("return loadstring(string.dump(function() return 1 end))()", "attempt to call a nil value"),
        ("return loadstring(('x = 1 '):rep(1e6))", "longer than"),
        ("while true do collectgarbage() end", "ran for more than"),
        ("return debug.getinfo(1)", "global variable 'debug'"),
        ("return rawset(_G, 'x', 1)", "readonly table"),
        ("return rawset(getmetatable(redis), '__index', 1)", "readonly table"),
        ("getmetatable(_G).__index = {}", "readonly table"),
        ("return setfenv(1, {})", "global variable 'setfenv'"),
        ("x = 1", "readonly table, global 'x'"),
        ("redis.call = nil", "readonly table"),
        ("string.upper = nil", "readonly table"),
        ("getmetatable('').__index.upper = nil", "attempt to index"),
        ("setmetatable(_G, {})", "readonly table"),
        ("return redis.call('config', 'get', '*')", "not allowed from script"),
        ("return redis.call('eval', 'return 1', 0)", "not allowed from script"),
        ("return redis.call('multi')", "not allowed from script"),
        ("return redis.call('flushall')", "not carried out by scripts"),
        ("return redis.call('scan', 0)", "not carried out by scripts"),
        ("return redis.call()", "at least one argument"),
        ("return redis.call('get', {})", "must be strings or integers"),
        ("return redis.call('get')", "wrong number of arguments"),
    ] {
        let said = eval(&mut client, script, &["0"]);
        let said = &said[..said.len().min(300)];
        // A slow machine may meet the limit of time first.
        let expected = expected.split('|').any(|one| said.contains(one));
        assert!(said.starts_with('-') && expected, "{script}: {said}");
        assert_eq!(eval(&mut client, "return ('a'):upper()", &["0"]), "A", "after {script}");
    }
    assert_eq!(client.ask("PING"), "+PONG");
}

const COUNT: &str =
    "local n = tonumber(redis.call('get', KEYS[1]) or 0); redis.call('set', KEYS[1], n + 1); return n + 1";
/// A script gets the forms of RESP2, also from a client of RESP3. A transaction of such a client has those of RESP3.
#[test]
fn scripts_get_the_forms_of_resp2_and_transactions_those_of_their_client() {
    let (_node, front) = front("forms");
    let mut client = front.client();
    assert!(client.ask("HELLO 3").contains("proto :3"));
    let lines = ["ZADD z 1 a 2 b", "HSET h f 1 g 2", "GEOADD p 1 2 x", "XADD s 1-1 f v", "XADD t 2-1 f v"];
    lines.iter().for_each(|line| assert!(!client.ask(line).starts_with('-')));
    let plain = |call: &str, len: usize, first: &str| {
        let script = format!("local r = redis.call({call}); return #r .. type(r[1])");
        (script, format!("{len}{first}"))
    };
    for (script, expected) in [
        plain("'ZRANGE', 'z', 0, -1, 'WITHSCORES'", 4, "string"),
        plain("'ZRANGEBYSCORE', 'z', 0, 9, 'WITHSCORES'", 4, "string"),
        plain("'ZRANDMEMBER', 'z', 2, 'WITHSCORES'", 4, "string"),
        plain("'ZUNION', 1, 'z', 'WITHSCORES'", 4, "string"),
        plain("'HRANDFIELD', 'h', 2, 'WITHVALUES'", 4, "string"),
        plain("'XREAD', 'STREAMS', 's', 't', 0, 0", 2, "table"),
        plain("'GEOPOS', 'p', 'x'", 1, "table"),
    ] {
        assert_eq!(eval(&mut client, &script, &["0"]), expected, "{script}");
    }
    let position = client.ask("GEOPOS p x");
    assert!(position.starts_with("[[,"), "{position}");
    for (line, expected) in [
        ("GEOPOS p x", position.as_str()),
        ("XREAD STREAMS s t 0 0", "[s [[1-1 [f v]]] t [[2-1 [f v]]]]"),
        ("ZRANGE z 0 -1 WITHSCORES", "[[a ,1] [b ,2]]"),
    ] {
        assert_eq!(client.ask(line), expected, "{line}");
        for also in [None, Some("EVAL return{} 0")] {
            let lines = ["MULTI", line].into_iter().chain(also).chain(["EXEC"]);
            let said = lines.map(|line| client.ask(line)).last().unwrap();
            let all = format!("[{expected}{}]", if also.is_some() { " []" } else { "" });
            assert_eq!(said, all, "{line} in a transaction");
        }
    }
    assert_eq!(eval(&mut client, "return redis.call('ZPOPMIN', 'z', 2)", &["0"]), "[a 1 b 2]");
}

/// Moves 1 from one key to another, neither of which may be below 0.
const MOVE: &str = "local n = tonumber(redis.call('get', KEYS[1])); if n < 1 then return 0 end; \
                    redis.call('set', KEYS[1], n - 1); redis.call('incr', KEYS[2]); return 1";

#[test]
fn a_script_on_one_key_is_one_step_for_all_front_ends() {
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("steps", &node.at), Process::front("steps", &node.at)];
    let threads = (0..4).map(|n| {
        let mut client = fronts[n % 2].client();
        std::thread::spawn(move || (0..200).map(|_| eval(&mut client, COUNT, &["1", "n"])).collect::<Vec<_>>())
    });
    let threads: Vec<_> = threads.collect();
    let mut said: Vec<i64> =
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).map(|n| n[1..].parse().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, (1..=800).collect::<Vec<i64>>());
    let mut client = fronts[0].client();
    assert_eq!(eval(&mut client, "return redis.call('incr', ARGV[1])", &["0", "n"]), ":801");
    assert_eq!(client.ask("GET n"), "801");
}

/// Scripts of two front ends take from two keys and give to others, which they name or compute.
#[test]
fn a_script_on_several_keys_is_one_step_for_all_front_ends() {
    const COMPUTE: &str = "local n = tonumber(redis.call('get', ARGV[1])); if n < 1 then return 0 end; \
                           redis.call('set', ARGV[1], n - 1); redis.call('incr', ARGV[2]); return 1";
    let node = Process::node(Transport::Tcp);
    let fronts = [Process::front("moves", &node.at), Process::front("moves", &node.at)];
    let mut client = fronts[0].client();
    assert_eq!(client.ask("SET a 100"), "+OK");
    let threads = (0..4).map(|n| {
        let mut client = fronts[n % 2].client();
        let (from, to) = if n < 2 { ("a", "b") } else { ("b", "a") };
        std::thread::spawn(move || {
            for round in 0..40 {
                let said = match round % 2 {
                    0 => eval(&mut client, MOVE, &["2", from, to]),
                    _ => eval(&mut client, COMPUTE, &["0", from, to]),
                };
                // There is no b at first.
                assert!(said == ":0" || said == ":1" || said.contains("nil"), "{said}");
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let sum = "return tonumber(redis.call('get', KEYS[1]) or 0) + tonumber(redis.call('get', KEYS[2]) or 0)";
    while threads.iter().any(|thread| !thread.is_finished()) {
        assert_eq!(eval(&mut client, sum, &["2", "a", "b"]), ":100");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(eval(&mut client, sum, &["2", "a", "b"]), ":100");
}

/// A script whose keys are computed is one step too, beside transactions, clients that wait, and its own
/// client's further commands.
#[test]
fn a_script_with_computed_keys_runs_alone() {
    const TAKE: &str = "local from, to = KEYS[1] .. ':a', KEYS[1] .. ARGV[1]; local n = tonumber(redis.call('get', from)); \
                        if n < 1 then return 0 end; redis.call('set', from, n - 1); redis.call('incr', to); return 1";
    let (_node, front) = front("wide");
    let [mut client, mut waits] = [front.client(), front.client()];
    assert_eq!(client.ask("MSET n:a 300 n:b 0 n:c 0"), "+OK");
    waits.send(&["BLPOP", "n:list", "0"]).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|n| {
            let mut client = front.client();
            std::thread::spawn(move || match n {
                0 => (0..100).for_each(|_| {
                    for line in ["MULTI", "INCR n:a", "DECR n:b", "EXEC"] {
                        assert!(!client.ask(line).starts_with('-'), "{line}");
                    }
                }),
                n => (0..100).for_each(|m| {
                    // A script of its own each time: none is known to use other keys.
                    let script = format!("{TAKE} -- {n} {m}");
                    client.send(&["EVAL", &script, "1", "n", [":b", ":c"][m % 2]]).unwrap();
                    client.send(&["GET", "n:a"]).unwrap();
                    let (took, left) = (client.reply().unwrap(), client.reply().unwrap());
                    assert!((took == ":0" || took == ":1") && !left.starts_with('-'), "{took} {left}");
                }),
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        client
            .send(
                &[
                    "EVAL",
                    "local n = 0; for _, k in ipairs(ARGV) do n = n + redis.call('get', k) end; return n",
                    "1",
                    "n",
                ]
                .iter()
                .chain(&["n:a", "n:b", "n:c"])
                .copied()
                .collect::<Vec<_>>(),
            )
            .unwrap();
        assert_eq!(client.reply().as_deref(), Some(":300"));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(client.ask("RPUSH n:list x"), ":1");
    assert_eq!(waits.reply().as_deref(), Some("[n:list x]"));
    // The commands behind it on the same connection see what it did.
    client.send(&["EVAL", "return redis.call('set', KEYS[1] .. ':behind', 1)", "1", "n"]).unwrap();
    client.send(&["GET", "n:behind"]).unwrap();
    assert_eq!([client.reply(), client.reply()].map(Option::unwrap), ["+OK", "1"]);
}

/// An attempt that asks for a key that was not read ends there, and the next one is the same run.
#[test]
fn attempts_of_a_script_are_one_run() {
    let (_node, front) = front("attempts");
    let mut client = front.client();
    for (script, expected) in [
        ("local v = redis.pcall('get', 'none'); if v then while true do end end; return 1", ":1"),
        ("local k = 'r' .. math.random(1, 1e9); redis.call('set', k, 7); return redis.call('get', k)", "7"),
        ("local n = math.random(); redis.call('get', 'a'); return n >= 0 and n < 1", ":1"),
        ("math.randomseed(5); local n = math.random(9); math.randomseed(5); return n == math.random(9)", ":1"),
        ("return pcall(math.random, 0)", "nil"),
        ("for n = 1, 500 do redis.call('sadd', 's', n) end; return redis.call('scard', 's')", ":500"),
        ("return redis.call('incr', 'of:' .. redis.call('spop', 's'))", ":1"),
        ("local t = redis.call('time'); return redis.call('incr', 't:' .. t[1] .. t[2])", ":1"),
        ("local t = {}; for n = 1, 500 do t[n] = 'm:' .. n end; return #redis.call('mget', unpack(t))", ":500"),
    ] {
        assert_eq!(client.on_time(&["EVAL", script, "0"]), expected, "{script}");
    }
}

/// A script whose keys are too many, or too large together, is refused before they are read.
#[test]
fn a_script_reads_within_limits() {
    let (_node, front) = front("reads");
    let mut client = front.client();
    let names: Vec<String> = (0..20_000).map(|n| format!("k{n}")).collect();
    let mut request = vec!["EVAL", "return 1", "20000"];
    request.extend(names.iter().map(String::as_str));
    client.send(&request).unwrap();
    assert_eq!(client.reply().as_deref(), Some("-ERR the script uses more than 10000 keys"));
}

#[test]
fn a_script_on_several_keys_runs_alone_on_its_front_end() {
    let (_node, front) = front("alone");
    let mut client = front.client();
    assert_eq!(client.ask("MSET a 500 b 0"), "+OK");
    let began = Instant::now();
    let threads: Vec<_> = [["2", "a", "b"], ["2", "b", "a"], ["2", "a", "b"], ["2", "b", "a"]]
        .into_iter()
        .map(|keys| {
            let mut client = front.client();
            std::thread::spawn(move || {
                (0..150).for_each(|_| {
                    let said = eval(&mut client, MOVE, &keys);
                    assert!(said == ":0" || said == ":1", "{said}");
                });
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        let said = eval(&mut client, "return redis.call('get', 'a') + redis.call('get', 'b')", &["2", "a", "b"]);
        assert_eq!(said, ":500");
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What a script sees, and what is stored, of a set that is not sorted by weights is in the order of its bytes.
#[test]
fn sets_that_are_not_sorted_by_weights_have_one_order_in_scripts() {
    let (_node, front) = front("unsorted");
    let mut client = front.client();
    assert_eq!(client.ask("SADD set c 10 a 9 b"), ":5");
    for (order, shown) in [("ASC", "[10 9 a b c]"), ("DESC", "[c b a 9 10]")] {
        let sort = "return redis.call('SORT', KEYS[1], 'BY', 'nosort', ARGV[1])";
        assert_eq!(eval(&mut client, sort, &["1", "set", order]), shown);
        assert_eq!(client.ask(&format!("SORT set BY nosort {order} STORE to")), ":5");
        assert_eq!(client.ask("LRANGE to 0 -1"), shown);
        let one = shown.trim_matches(['[', ']']).split(' ').nth(1).unwrap();
        assert_eq!(client.ask(&format!("SORT set BY nosort {order} LIMIT 1 1 STORE to")), ":1");
        assert_eq!(client.ask("LRANGE to 0 -1"), format!("[{one}]"));
    }
}
