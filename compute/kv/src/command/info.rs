//! INFO: a front end's state in sections, as tools for redis parse them. And the same for
//! Prometheus.

use super::channels::Kind;
use super::{Answered, Call, Fail, Front};
use crate::resp::Reply;
use crate::shard::Shard;
use std::fmt::Write;

/// A version that libraries take as leave to use what this supports.
pub const REDIS_VERSION: &str = "7.0.15";

const DEFAULT: [&str; 10] =
    ["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "errorstats", "cluster", "farmem"];
const FURTHER: [&str; 2] = ["commandstats", "latencystats"];

/// INFO.
pub async fn run(call: &Call) -> Answered {
    let mut wanted: Vec<String> = Vec::new();
    for arg in &call.args[1..] {
        match String::from_utf8_lossy(arg).to_ascii_lowercase().as_str() {
            "default" => wanted.extend(DEFAULT.map(str::to_owned)),
            "all" | "everything" => {
                wanted.extend(DEFAULT.iter().chain(&FURTHER).chain(&["keyspace"]).map(|&name| name.to_owned()));
            }
            name => wanted.push(name.to_owned()),
        }
    }
    if wanted.is_empty() {
        wanted.extend(DEFAULT.map(str::to_owned));
    }
    let mut text = String::new();
    for name in DEFAULT.iter().chain(&FURTHER).filter(|name| wanted.iter().any(|wanted| wanted == *name)) {
        let _ = write!(text, "{}# {}\r\n", if text.is_empty() { "" } else { "\r\n" }, title(name));
        for (key, value) in section(&call.front, name) {
            let _ = write!(text, "{key}:{value}\r\n");
        }
    }
    // Counts every key: only when it is asked for by name.
    if wanted.iter().any(|wanted| wanted == "keyspace") {
        let keys = call.store().size(&call.io).await.map_err(Fail::from)?;
        let _ = write!(text, "{}# Keyspace\r\n", if text.is_empty() { "" } else { "\r\n" });
        if keys > 0 {
            let _ = write!(text, "db0:keys={keys},expires=0,avg_ttl=0\r\n");
        }
    }
    Ok(Reply::Text(text))
}

fn title(name: &str) -> String {
    match name {
        "cpu" => "CPU".into(),
        name => name[..1].to_ascii_uppercase() + &name[1..],
    }
}

fn all(front: &Front, of: fn(&Shard) -> u64) -> u64 {
    front.store.shards.iter().map(|shard| of(shard)).sum()
}

fn human(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..0x10_0000 => format!("{:.2}K", bytes as f64 / 1024.0),
        0x10_0000..0x4000_0000 => format!("{:.2}M", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2}G", bytes as f64 / 1_073_741_824.0),
    }
}

type Lines = Vec<(String, String)>;

fn section(front: &Front, name: &str) -> Lines {
    let (store, figures) = (&front.store, &front.store.figures);
    let uptime = store.now_ms().saturating_sub(store.begun_ms) / 1000;
    let used = all(front, |shard| shard.space.bytes());
    let lines: Vec<(&str, String)> = match name {
        "server" => vec![
            ("redis_version", REDIS_VERSION.into()),
            ("server_name", "farmem".into()),
            ("farmem_version", env!("CARGO_PKG_VERSION").into()),
            ("redis_git_sha1", "00000000".into()),
            ("redis_git_dirty", "0".into()),
            ("redis_mode", "standalone".into()),
            ("os", "Linux".into()),
            ("arch_bits", "64".into()),
            ("multiplexing_api", "epoll".into()),
            ("config_file", String::new()),
            ("process_id", std::process::id().to_string()),
            ("run_id", format!("{:040x}", store.begun_ms)),
            ("tcp_port", front.port.to_string()),
            ("server_time_usec", (store.now_ms() * 1000).to_string()),
            ("uptime_in_seconds", uptime.to_string()),
            ("uptime_in_days", (uptime / 86_400).to_string()),
        ],
        "clients" => vec![
            ("connected_clients", front.clients.borrow().len().to_string()),
            ("maxclients", front.most_clients.to_string()),
            ("blocked_clients", (front.blocked.get() + front.paused.get()).to_string()),
        ],
        "memory" => vec![
            ("used_memory", used.to_string()),
            ("used_memory_human", human(used)),
            ("used_memory_peak", front.stats.peak(used).to_string()),
            ("used_memory_peak_human", human(front.stats.peak(used))),
            ("used_memory_dataset", used.to_string()),
            ("used_memory_lua", front.scripts.used().to_string()),
            ("farmem_writes_when_full", figures.full.get().to_string()),
            ("farmem_memory_of_others", all(front, |shard| shard.space.others.get()).to_string()),
            ("maxmemory", front.maxmemory.to_string()),
            ("maxmemory_human", human(front.maxmemory)),
            ("maxmemory_policy", if store.evicts { "allkeys-random" } else { "noeviction" }.into()),
        ],
        // Nothing of a front end is saved, as of a redis with `save ""`.
        "persistence" => {
            let names =
                ["loading", "async_loading", "rdb_bgsave_in_progress", "aof_enabled", "aof_rewrite_in_progress"];
            let zeros = names.map(|name| (name, "0".to_owned()));
            let ok = ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"];
            zeros.into_iter().chain(ok.map(|name| (name, "ok".to_owned()))).collect()
        }
        "stats" => vec![
            ("total_connections_received", figures.connections.get().to_string()),
            ("total_commands_processed", figures.commands.get().to_string()),
            ("instantaneous_ops_per_sec", front.stats.lately.get().to_string()),
            ("rejected_connections", front.rejected.get().to_string()),
            ("expired_keys", figures.expired.get().to_string()),
            ("evicted_keys", figures.evicted.get().to_string()),
            ("keyspace_hits", figures.hits.get().to_string()),
            ("keyspace_misses", figures.misses.get().to_string()),
            ("pubsub_channels", front.channels.names(Kind::Plain).to_string()),
            ("pubsub_patterns", front.channels.names(Kind::Pattern).to_string()),
            ("pubsubshard_channels", front.channels.names(Kind::Sharded).to_string()),
            ("latest_fork_usec", "0".into()),
            ("total_error_replies", front.stats.errors().values().sum::<u64>().to_string()),
        ],
        "replication" => {
            vec![
                ("role", "master".into()),
                ("connected_slaves", "0".into()),
                ("master_failover_state", "no-failover".into()),
                ("master_replid", format!("{:040x}", store.begun_ms)),
                ("master_repl_offset", "0".into()),
                ("second_repl_offset", "-1".into()),
                ("repl_backlog_active", "0".into()),
            ]
        }
        "cluster" => vec![("cluster_enabled", "0".into())],
        "errorstats" => {
            let errors = front.stats.errors().into_iter();
            return errors.map(|(word, count)| (format!("errorstat_{word}"), format!("count={count}"))).collect();
        }
        "cpu" => return processor(),
        "farmem" => vec![
            ("store", store.name.clone()),
            ("nodes", store.shards.len().to_string()),
            ("mirrored", store.shards.iter().filter(|shard| shard.reach.copies.is_double()).count().to_string()),
            ("nodes_filled", all(front, |shard| shard.reach.counters.mended.get()).to_string()),
            ("verbs", all(front, |shard| shard.reach.counters.verbs.get()).to_string()),
            ("round_trips", all(front, |shard| shard.reach.counters.trips.get()).to_string()),
            ("lookups_warm", all(front, |shard| shard.reach.counters.warm.get()).to_string()),
            ("lookups_cold", all(front, |shard| shard.reach.counters.cold.get()).to_string()),
            ("splits", all(front, |shard| shard.reach.counters.splits.get()).to_string()),
            ("pieces_adopted", all(front, |shard| shard.reach.counters.adopted.get()).to_string()),
            ("epoch", all(front, |shard| shard.space.epoch()).to_string()),
        ],
        further => return by_command(front, further),
    };
    lines.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// CPU time of the process, in seconds.
fn processor() -> Lines {
    // Ticks are of 10 ms on Linux, on all its processors.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = |n| fields.split(' ').nth(n).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    let names =
        [("used_cpu_sys", 12), ("used_cpu_user", 11), ("used_cpu_sys_children", 14), ("used_cpu_user_children", 13)];
    names.map(|(name, n)| (name.to_owned(), format!("{:.6}", ticks(n) as f64 / 100.0))).into()
}

fn by_command(front: &Front, name: &str) -> Lines {
    let costs = front.stats.costs().into_iter();
    if name == "commandstats" {
        let line = |cost: &super::stats::Cost| {
            let each = cost.us as f64 / cost.calls as f64;
            format!(
                "calls={},usec={},usec_per_call={each:.2},rejected_calls=0,failed_calls={}",
                cost.calls, cost.us, cost.failed
            )
        };
        return costs.map(|(name, cost)| (format!("cmdstat_{name}"), line(&cost))).collect();
    }
    let percentile = |cost: &super::stats::Cost, share: f64| {
        let (mut sum, wanted) = (0, (cost.calls as f64 * share).ceil() as u64);
        let reached = |&count: &u32| {
            sum += u64::from(count);
            sum >= wanted
        };
        cost.histogram.iter().position(reached).map_or(0, |n| 2u64 << n)
    };
    let line = |cost: &super::stats::Cost| {
        let [half, most, all] = [0.5, 0.99, 0.999].map(|share| percentile(cost, share));
        format!("p50={half}.000,p99={most}.000,p99.9={all}.000")
    };
    costs.map(|(name, cost)| (format!("latency_percentiles_usec_{name}"), line(&cost))).collect()
}

/// The counters as Prometheus reads them.
pub fn metrics(front: &Front) -> String {
    let mut text = String::new();
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        let _ =
            write!(text, "# HELP farmem_kv_{name} {help}\n# TYPE farmem_kv_{name} {kind}\nfarmem_kv_{name} {value}\n");
    };
    let figures = &front.store.figures;
    one("clients", "gauge", "Clients that are connected.", front.clients.borrow().len() as u64);
    one("blocked_clients", "gauge", "Clients whose command waits for an element.", front.blocked.get());
    one("connections_total", "counter", "Connections that were accepted.", figures.connections.get());
    one("rejected_connections_total", "counter", "Connections beyond --maxclients.", front.rejected.get());
    one("commands_total", "counter", "Commands that were carried out.", figures.commands.get());
    one("hits_total", "counter", "Reads that found their key.", figures.hits.get());
    one("misses_total", "counter", "Reads that did not find their key.", figures.misses.get());
    one("expired_keys_total", "counter", "Keys that ended.", figures.expired.get());
    one("evicted_keys_total", "counter", "Keys that were evicted.", figures.evicted.get());
    one("bytes", "gauge", "Bytes of nodes' memory that this front end holds.", all(front, |shard| shard.space.bytes()));
    one(
        "verbs_total",
        "counter",
        "Verbs, over commands_total: verbs a command.",
        all(front, |s| s.reach.counters.verbs.get()),
    );
    one(
        "round_trips_total",
        "counter",
        "Batches of verbs waited for.",
        all(front, |shard| shard.reach.counters.trips.get()),
    );
    one(
        "lookups_warm_total",
        "counter",
        "Keys found where they were.",
        all(front, |shard| shard.reach.counters.warm.get()),
    );
    one("lookups_cold_total", "counter", "Keys looked for in the index.", all(front, |s| s.reach.counters.cold.get()));
    one(
        "splits_total",
        "counter",
        "Tables of the index that were split.",
        all(front, |s| s.reach.counters.splits.get()),
    );
    one(
        "adopted_pieces_total",
        "counter",
        "Pieces taken over from dead ones.",
        all(front, |s| s.reach.counters.adopted.get()),
    );
    let costs = front.stats.costs();
    text += "# HELP farmem_kv_command_calls_total Calls by command.\n# TYPE farmem_kv_command_calls_total counter\n";
    for (name, cost) in &costs {
        let _ = writeln!(text, "farmem_kv_command_calls_total{{command=\"{name}\"}} {}", cost.calls);
    }
    text += "# HELP farmem_kv_command_seconds_total Time by command.\n# TYPE farmem_kv_command_seconds_total counter\n";
    for (name, cost) in &costs {
        let _ = writeln!(text, "farmem_kv_command_seconds_total{{command=\"{name}\"}} {}", cost.us as f64 / 1e6);
    }
    text
}
