//! Counters over HTTP, as Prometheus reads them: `GET /metrics`.
//!
//! One thread, one request at a time, nothing kept alive: a scrape every few
//! seconds is all it is for. It sleeps in accept.

use crate::StartError;
use farmem_fabric::nic::Nic;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A request's head, at most.
const REQUEST: usize = 4096;
/// How long it may take to say it, and each part of the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(2);

/// Serves the counters at an address; returns the address with its port. Ends with the node.
pub fn serve(at: SocketAddr, nic: &Arc<Nic>) -> Result<SocketAddr, StartError> {
    let failed = |e| StartError::Listen(at.to_string(), e);
    let listener = TcpListener::bind(at).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let nic = Arc::downgrade(nic);
    let serving = move || {
        for stream in listener.incoming() {
            // None: no descriptor is left, perhaps for long.
            let Ok(stream) = stream else {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            };
            if answer(stream, &nic).is_none() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serving).map_err(StartError::System)?;
    Ok(bound)
}

/// None when the node is gone.
fn answer(mut stream: TcpStream, nic: &Weak<Nic>) -> Option<()> {
    let nic = nic.upgrade()?;
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let until = Instant::now() + PATIENCE;
    let mut head = [0; REQUEST];
    let mut got = 0;
    while got < head.len() && !head[..got].windows(4).any(|w| w == b"\r\n\r\n") {
        // For all of it, not for each byte: others wait.
        let left = until.saturating_duration_since(Instant::now());
        match stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut head[got..])) {
            Ok(n) if n > 0 => got += n,
            // Nor may the time left be nothing, which would mean for ever, and is refused.
            _ => return Some(()),
        }
    }
    let (status, body) = match head[..got].split(|&b| b == b' ').take(2).collect::<Vec<_>>()[..] {
        [b"GET", b"/metrics" | b"/"] => ("200 OK", text(&nic)),
        [b"GET", _] => ("404 Not Found", "the counters are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", "only GET is understood\n".into()),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    // A peer that does not take the answer is its own problem.
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    Some(())
}

/// All counters and gauges of a node.
pub fn text(nic: &Nic) -> String {
    let mut out = String::new();
    let mut tell = |kind: &str, name: &str, labels: &str, help: &str, value: u64| {
        if !help.is_empty() {
            let _ = writeln!(out, "# HELP farmem_node_{name} {help}\n# TYPE farmem_node_{name} {kind}");
        }
        let _ = writeln!(out, "farmem_node_{name}{labels} {value}");
    };
    let tally = &nic.tally;
    let now = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    tell("gauge", "lend_bytes", "", "Memory the node lends at most.", nic.lending.limit());
    tell("gauge", "lent_bytes", "", "Memory lent now.", nic.lent());
    tell("gauge", "lent_bytes_peak", "", "The most memory that was lent at once.", nic.lending.peak());
    tell("gauge", "used_bytes", "", "Memory that what is lent has really taken.", nic.in_use());
    let members = nic.members();
    let absent = members.iter().filter(|member| !member.is_present()).count() as u64;
    tell("gauge", "members", "", "Processes that hold memory or may.", members.len() as u64);
    tell(
        "gauge",
        "members_absent",
        "",
        "… of these without a connection: waited for until their grace is over.",
        absent,
    );
    tell("gauge", "draining", "", "1 while the node takes no new members.", nic.is_draining() as u64);
    tell("counter", "verbs_total", "{verb=\"read\"}", "Verbs carried out or refused.", now(&tally.reads));
    tell("counter", "verbs_total", "{verb=\"write\"}", "", now(&tally.writes));
    tell("counter", "verbs_total", "{verb=\"lines\"}", "", now(&tally.records));
    tell("counter", "verbs_total", "{verb=\"cas\"}", "", now(&tally.cas));
    tell("counter", "verbs_total", "{verb=\"faa\"}", "", now(&tally.faa));
    tell("counter", "verbs_total", "{verb=\"bind\"}", "", now(&tally.binds));
    tell("counter", "verbs_total", "{verb=\"invalidate\"}", "", now(&tally.invalidates));
    tell("counter", "verbs_total", "{verb=\"send\"}", "", now(&tally.sends));
    tell("counter", "read_bytes_total", "", "Bytes sent for READs.", now(&tally.read_bytes));
    tell("counter", "write_bytes_total", "", "Bytes taken for WRITEs.", now(&tally.write_bytes));
    tell("counter", "record_bytes_total", "", "Bytes taken for LINES and LINES_IF.", now(&tally.record_bytes));
    tell(
        "counter",
        "refused_records_total",
        "",
        "Of LINES_IF, those some page of which was refused.",
        now(&tally.refused_records),
    );
    tell("counter", "refused_verbs_total", "", "Verbs on memory not held, or out of range.", now(&tally.refused_verbs));
    let kept = nic.pool.kept();
    tell("counter", "reclaimed_total", "", "Units made clean after they were given back.", now(&kept.reclaimed));
    tell("counter", "retired_total", "", "Units whose generations are used up.", now(&kept.retired));
    tell("counter", "merged_total", "", "Shared blocks put together again.", now(&kept.merged));
    tell("counter", "scrubbed_bytes_total", "", "Bytes scrubbed.", now(&kept.scrubbed_bytes));
    tell("counter", "scrub_cpu_ns_total", "", "CPU time of scrubbing.", now(&kept.scrub_ns));
    tell("counter", "drain_cpu_ns_total", "", "CPU time of draining and of the words.", now(&kept.drain_ns));
    tell("counter", "recovered_words_total", "", "Words of dead owners recovered.", now(&kept.recovered_words));
    tell("counter", "scanned_words_total", "", "Words read to find them.", now(&kept.scanned_words));
    tell("counter", "recover_cpu_ns_total", "", "CPU time of recovering.", now(&kept.recover_ns));
    let (windows, bound) = nic.windows.count();
    tell("gauge", "windows", "", "Windows that members have.", windows);
    tell("gauge", "windows_bound", "", "Of these, bound.", bound);
    let carved = now(&tally.carved);
    tell("counter", "windows_on_card_total", "", "Windows bound on the RDMA card, each for one queue pair.", carved);
    tell("counter", "grants_total", "", "Slabs granted.", now(&tally.grants));
    tell("counter", "discarded_bytes_total", "", "Memory given back by request.", now(&tally.discarded_bytes));
    tell("counter", "exhausted_total", "", "Slabs not granted for want of memory.", now(&tally.exhausted));
    tell("counter", "joined_total", "", "Members that joined.", now(&tally.joined));
    tell("counter", "attached_total", "", "Further connections of members.", now(&tally.rejoined));
    tell("counter", "refused_hellos_total", "", "Connections refused by name.", now(&tally.refused_hellos));
    tell(
        "counter",
        "broken_connections_total",
        "",
        "Connections that broke the protocol.",
        now(&tally.broken_connections),
    );
    out
}
