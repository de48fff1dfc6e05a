//! The commands that there are.

/// Where a command is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Group {
    /// On strings.
    Strings,
    /// On bits of strings.
    Bits,
    /// On lists.
    Lists,
    /// Between lists, and those that wait for an element.
    Moves,
    /// On hashes.
    Hashes,
    /// On sets.
    Sets,
    /// On sorted sets.
    SortedSets,
    /// Ranges of sorted sets.
    Ranges,
    /// On several sorted sets.
    Combined,
    /// Scripts, on the keys that they name.
    Scripts,
    /// On places in sorted sets.
    Places,
    /// On HyperLogLogs.
    Counts,
    /// On streams.
    Streams,
    /// On channels.
    Channels,
    /// On keys of any type.
    Keys,
    /// On the front end.
    Server,
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// Its name, in small letters.
    pub name: &'static str,
    /// Number of words, with its name. Negative: the least number.
    pub arity: i8,
    /// First key, last key, step between keys.
    pub keys: (i8, i8, i8),
    /// Whether it changes the store.
    pub writes: bool,
    /// Where it is carried out.
    pub group: Group,
}

/// Whether this arity allows so many words: exactly so many, or at least so many if it is negative.
pub fn takes(arity: i8, words: usize) -> bool {
    let (given, wanted) = (words as i64, i64::from(arity));
    if wanted > 0 { given == wanted } else { given >= -wanted }
}

impl Command {
    /// Whether it takes this number of words, its name among them.
    pub fn takes(&self, words: usize) -> bool {
        takes(self.arity, words)
    }

    /// Whether it changes anything for anybody: the store, or what subscribers hear.
    pub fn changes(&self) -> bool {
        self.writes || matches!(self.name, "publish" | "spublish")
    }

    /// The keys that a request names; `None`: it concerns keys that it does not name.
    pub fn named<'a>(&self, request: &'a [Vec<u8>]) -> Option<Vec<&'a [u8]>> {
        let (first, last, step) = self.keys;
        if first == 0 {
            return matches!(self.group, Group::Server | Group::Channels).then(Vec::new);
        }
        let last = if last < 0 { request.len() as i64 + i64::from(last) } else { i64::from(last) };
        let places = (first as usize..=last.max(0) as usize).step_by(step.max(1) as usize);
        Some(places.filter_map(|place| request.get(place).map(Vec::as_slice)).collect())
    }
}

const fn command(name: &'static str, arity: i8, keys: (i8, i8, i8), writes: bool, group: Group) -> Command {
    Command { name, arity, keys, writes, group }
}

const ONE: (i8, i8, i8) = (1, 1, 1);
const NONE: (i8, i8, i8) = (0, 0, 0);
const ALL: (i8, i8, i8) = (1, -1, 1);

use Group::{
    Bits, Channels, Combined, Counts, Hashes, Keys, Lists, Moves, Places, Ranges, Scripts, Server, Sets, SortedSets,
    Streams, Strings,
};

/// All of them, by name.
pub const COMMANDS: &[Command] = &[
    command("acl", -2, NONE, false, Server),
    command("append", 3, ONE, true, Strings),
    command("auth", -2, NONE, false, Server),
    command("bitcount", -2, ONE, false, Bits),
    command("bitfield", -2, ONE, true, Bits),
    command("bitfield_ro", -2, ONE, false, Bits),
    command("bitop", -4, (2, -1, 1), true, Bits),
    command("bitpos", -3, ONE, false, Bits),
    command("blmove", 6, (1, 2, 1), true, Moves),
    command("blmpop", -5, NONE, true, Moves),
    command("blpop", -3, (1, -2, 1), true, Moves),
    command("brpop", -3, (1, -2, 1), true, Moves),
    command("brpoplpush", 4, (1, 2, 1), true, Moves),
    command("bzmpop", -5, NONE, true, Combined),
    command("bzpopmax", -3, (1, -2, 1), true, Combined),
    command("bzpopmin", -3, (1, -2, 1), true, Combined),
    command("client", -2, NONE, false, Server),
    command("cluster", -2, NONE, false, Server),
    command("command", -1, NONE, false, Server),
    command("config", -2, NONE, false, Server),
    command("copy", -3, (1, 2, 1), true, Keys),
    command("dbsize", 1, NONE, false, Keys),
    command("debug", -2, NONE, false, Server),
    command("decr", 2, ONE, true, Strings),
    command("decrby", 3, ONE, true, Strings),
    command("del", -2, ALL, true, Keys),
    command("discard", 1, NONE, false, Server),
    command("dump", 2, ONE, false, Keys),
    command("echo", 2, NONE, false, Server),
    command("eval", -3, NONE, true, Scripts),
    command("eval_ro", -3, NONE, false, Scripts),
    command("evalsha", -3, NONE, true, Scripts),
    command("evalsha_ro", -3, NONE, false, Scripts),
    command("exec", 1, NONE, true, Server),
    command("exists", -2, ALL, false, Keys),
    command("expire", -3, ONE, true, Keys),
    command("expireat", -3, ONE, true, Keys),
    command("expiretime", 2, ONE, false, Keys),
    command("flushall", -1, NONE, true, Keys),
    command("flushdb", -1, NONE, true, Keys),
    command("function", -2, NONE, false, Server),
    command("geoadd", -5, ONE, true, Places),
    command("geodist", -4, ONE, false, Places),
    command("geohash", -2, ONE, false, Places),
    command("geopos", -2, ONE, false, Places),
    command("georadius", -6, NONE, true, Places),
    command("georadius_ro", -6, ONE, false, Places),
    command("georadiusbymember", -5, NONE, true, Places),
    command("georadiusbymember_ro", -5, ONE, false, Places),
    command("geosearch", -7, ONE, false, Places),
    command("geosearchstore", -8, (1, 2, 1), true, Places),
    command("get", 2, ONE, false, Strings),
    command("getbit", 3, ONE, false, Bits),
    command("getdel", 2, ONE, true, Strings),
    command("getex", -2, ONE, true, Strings),
    command("getrange", 4, ONE, false, Strings),
    command("getset", 3, ONE, true, Strings),
    command("hdel", -3, ONE, true, Hashes),
    command("hello", -1, NONE, false, Server),
    command("hexists", 3, ONE, false, Hashes),
    command("hget", 3, ONE, false, Hashes),
    command("hgetall", 2, ONE, false, Hashes),
    command("hincrby", 4, ONE, true, Hashes),
    command("hincrbyfloat", 4, ONE, true, Hashes),
    command("hkeys", 2, ONE, false, Hashes),
    command("hlen", 2, ONE, false, Hashes),
    command("hmget", -3, ONE, false, Hashes),
    command("hmset", -4, ONE, true, Hashes),
    command("hrandfield", -2, ONE, false, Hashes),
    command("hscan", -3, ONE, false, Hashes),
    command("hset", -4, ONE, true, Hashes),
    command("hsetnx", 4, ONE, true, Hashes),
    command("hstrlen", 3, ONE, false, Hashes),
    command("hvals", 2, ONE, false, Hashes),
    command("incr", 2, ONE, true, Strings),
    command("incrby", 3, ONE, true, Strings),
    command("incrbyfloat", 3, ONE, true, Strings),
    command("info", -1, NONE, false, Server),
    command("keys", 2, NONE, false, Keys),
    command("latency", -2, NONE, false, Server),
    command("lcs", -3, (1, 2, 1), false, Strings),
    command("lindex", 3, ONE, false, Lists),
    command("linsert", 5, ONE, true, Lists),
    command("llen", 2, ONE, false, Lists),
    command("lmove", 5, (1, 2, 1), true, Moves),
    command("lmpop", -4, NONE, true, Moves),
    command("lpop", -2, ONE, true, Lists),
    command("lpos", -3, ONE, false, Moves),
    command("lpush", -3, ONE, true, Lists),
    command("lpushx", -3, ONE, true, Lists),
    command("lrange", 4, ONE, false, Lists),
    command("lrem", 4, ONE, true, Lists),
    command("lset", 4, ONE, true, Lists),
    command("ltrim", 4, ONE, true, Lists),
    command("memory", -2, NONE, false, Keys),
    command("mget", -2, ALL, false, Strings),
    command("module", -2, NONE, false, Server),
    command("monitor", 1, NONE, false, Server),
    command("move", 3, ONE, true, Keys),
    command("mset", -3, (1, -1, 2), true, Strings),
    command("msetnx", -3, (1, -1, 2), true, Strings),
    command("multi", 1, NONE, false, Server),
    command("object", -2, (2, 2, 1), false, Keys),
    command("persist", 2, ONE, true, Keys),
    command("pexpire", -3, ONE, true, Keys),
    command("pexpireat", -3, ONE, true, Keys),
    command("pexpiretime", 2, ONE, false, Keys),
    command("pfadd", -2, ONE, true, Counts),
    command("pfcount", -2, ALL, false, Counts),
    command("pfmerge", -2, ALL, true, Counts),
    command("ping", -1, NONE, false, Server),
    command("psetex", 4, ONE, true, Strings),
    command("psubscribe", -2, NONE, false, Channels),
    command("pttl", 2, ONE, false, Keys),
    command("publish", 3, NONE, false, Channels),
    command("pubsub", -2, NONE, false, Channels),
    command("punsubscribe", -1, NONE, false, Channels),
    command("quit", -1, NONE, false, Server),
    command("randomkey", 1, NONE, false, Keys),
    command("readonly", 1, NONE, false, Server),
    command("readwrite", 1, NONE, false, Server),
    command("rename", 3, (1, 2, 1), true, Keys),
    command("renamenx", 3, (1, 2, 1), true, Keys),
    command("reset", 1, NONE, false, Server),
    command("restore", -4, ONE, true, Keys),
    command("role", 1, NONE, false, Server),
    command("rpop", -2, ONE, true, Lists),
    command("rpoplpush", 3, (1, 2, 1), true, Moves),
    command("rpush", -3, ONE, true, Lists),
    command("rpushx", -3, ONE, true, Lists),
    command("sadd", -3, ONE, true, Sets),
    command("scan", -2, NONE, false, Keys),
    command("scard", 2, ONE, false, Sets),
    command("script", -2, NONE, false, Server),
    command("sdiff", -2, ALL, false, Sets),
    command("sdiffstore", -3, ALL, true, Sets),
    command("select", 2, NONE, false, Server),
    command("set", -3, ONE, true, Strings),
    command("setbit", 4, ONE, true, Bits),
    command("setex", 4, ONE, true, Strings),
    command("setnx", 3, ONE, true, Strings),
    command("setrange", 4, ONE, true, Strings),
    command("sinter", -2, ALL, false, Sets),
    command("sintercard", -3, NONE, false, Sets),
    command("sinterstore", -3, ALL, true, Sets),
    command("sismember", 3, ONE, false, Sets),
    command("slowlog", -2, NONE, false, Server),
    command("smembers", 2, ONE, false, Sets),
    command("smismember", -3, ONE, false, Sets),
    command("smove", 4, (1, 2, 1), true, Sets),
    command("sort", -2, NONE, true, Keys),
    command("sort_ro", -2, NONE, false, Keys),
    command("spop", -2, ONE, true, Sets),
    command("spublish", 3, NONE, false, Channels),
    command("srandmember", -2, ONE, false, Sets),
    command("srem", -3, ONE, true, Sets),
    command("sscan", -3, ONE, false, Sets),
    command("ssubscribe", -2, NONE, false, Channels),
    command("strlen", 2, ONE, false, Strings),
    command("subscribe", -2, NONE, false, Channels),
    command("substr", 4, ONE, false, Strings),
    command("sunion", -2, ALL, false, Sets),
    command("sunionstore", -3, ALL, true, Sets),
    command("sunsubscribe", -1, NONE, false, Channels),
    command("swapdb", 3, NONE, true, Server),
    command("time", 1, NONE, false, Server),
    command("touch", -2, ALL, false, Keys),
    command("ttl", 2, ONE, false, Keys),
    command("type", 2, ONE, false, Keys),
    command("unlink", -2, ALL, true, Keys),
    command("unsubscribe", -1, NONE, false, Channels),
    command("unwatch", 1, NONE, false, Server),
    command("wait", 3, NONE, false, Server),
    command("watch", -2, ALL, false, Server),
    command("xack", -4, ONE, true, Streams),
    command("xadd", -5, ONE, true, Streams),
    command("xautoclaim", -6, ONE, true, Streams),
    command("xclaim", -6, ONE, true, Streams),
    command("xdel", -3, ONE, true, Streams),
    command("xgroup", -2, (2, 2, 1), true, Streams),
    command("xinfo", -2, (2, 2, 1), false, Streams),
    command("xlen", 2, ONE, false, Streams),
    command("xpending", -3, ONE, false, Streams),
    command("xrange", -4, ONE, false, Streams),
    command("xread", -4, NONE, false, Streams),
    command("xreadgroup", -7, NONE, true, Streams),
    command("xrevrange", -4, ONE, false, Streams),
    command("xsetid", -3, ONE, true, Streams),
    command("xtrim", -4, ONE, true, Streams),
    command("zadd", -4, ONE, true, SortedSets),
    command("zcard", 2, ONE, false, SortedSets),
    command("zcount", 4, ONE, false, SortedSets),
    command("zdiff", -3, NONE, false, Combined),
    command("zdiffstore", -4, NONE, true, Combined),
    command("zincrby", 4, ONE, true, SortedSets),
    command("zinter", -3, NONE, false, Combined),
    command("zintercard", -3, NONE, false, Combined),
    command("zinterstore", -4, NONE, true, Combined),
    command("zlexcount", 4, ONE, false, SortedSets),
    command("zmpop", -4, NONE, true, Combined),
    command("zmscore", -3, ONE, false, SortedSets),
    command("zpopmax", -2, ONE, true, SortedSets),
    command("zpopmin", -2, ONE, true, SortedSets),
    command("zrandmember", -2, ONE, false, SortedSets),
    command("zrange", -4, ONE, false, Ranges),
    command("zrangebylex", -4, ONE, false, Ranges),
    command("zrangebyscore", -4, ONE, false, Ranges),
    command("zrangestore", -5, (1, 2, 1), true, Ranges),
    command("zrank", 3, ONE, false, SortedSets),
    command("zrem", -3, ONE, true, SortedSets),
    command("zremrangebylex", 4, ONE, true, SortedSets),
    command("zremrangebyrank", 4, ONE, true, SortedSets),
    command("zremrangebyscore", 4, ONE, true, SortedSets),
    command("zrevrange", -4, ONE, false, Ranges),
    command("zrevrangebylex", -4, ONE, false, Ranges),
    command("zrevrangebyscore", -4, ONE, false, Ranges),
    command("zrevrank", 3, ONE, false, SortedSets),
    command("zscan", -3, ONE, false, SortedSets),
    command("zscore", 3, ONE, false, SortedSets),
    command("zunion", -3, NONE, false, Combined),
    command("zunionstore", -4, NONE, true, Combined),
];

/// The command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; 24];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let place = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[place])
}

#[test]
fn names_are_in_order() {
    assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
    assert_eq!(find(b"GeT").map(|command| command.name), Some("get"));
    assert_eq!(find(&[b'x'; 99]), None);
}
