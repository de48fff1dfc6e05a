//! Counters over HTTP, as Prometheus reads them: `GET /metrics`.
//!
//! One thread serves all requests, and no connection is kept alive: it is for a scrape every few
//! seconds. A client that says nothing, or says it slowly, makes no other wait: requests are read
//! as they come, and the oldest that is not whole gives way when there are too many. It sleeps in
//! epoll.

use crate::StartError;
use farmem_nic::Nic;
use farmem_nic::tenants::Tenant;
use farmem_sys::epoll::{Epoll, Event};
use farmem_sys::raw::thread_cpu_ns;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A request's head, at most.
const REQUEST: usize = 4096;
/// How long it may take to say it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Requests that are being said, at most.
const ASKERS: usize = 64;
/// A text is served again for this many times as long as the thread worked at it …
const SHARE: u32 = 20;
/// … but no longer than this.
const KEPT: Duration = Duration::from_millis(250);
/// The listener's token; others are connections' numbers.
const LISTENER: u64 = 0;

/// Listens at an address. Requests from now on are answered once the counters are served.
pub fn bind(at: SocketAddr) -> Result<TcpListener, StartError> {
    let bound = TcpListener::bind(at).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|e| StartError::Listen(at.to_string(), e))
}

/// Serves the counters; returns the address with its port. Ends with the node.
pub fn serve(listener: TcpListener, nic: &Arc<Nic>) -> Result<SocketAddr, StartError> {
    let bound = listener.local_addr().map_err(StartError::System)?;
    let epoll = Epoll::new().map_err(StartError::from)?;
    epoll.add(listener.as_raw_fd(), LISTENER, true, false).map_err(StartError::from)?;
    let server = Server {
        listener,
        epoll,
        nic: Arc::downgrade(nic),
        askers: VecDeque::new(),
        next: LISTENER + 1,
        kept: Kept::default(),
    };
    std::thread::Builder::new().name("metrics".into()).spawn(|| server.run()).map_err(StartError::System)?;
    Ok(bound)
}

/// A client whose request is not whole yet.
struct Asker {
    number: u64,
    stream: TcpStream,
    head: Vec<u8>,
    until: Instant,
}

struct Server {
    listener: TcpListener,
    epoll: Epoll,
    nic: Weak<Nic>,
    /// In the order in which they came, which is that of their ends of patience.
    askers: VecDeque<Asker>,
    next: u64,
    kept: Kept,
}

/// The last text, and until when it is served again. To make one looks at every member and slab, and
/// anybody who reaches the address may ask: so asking takes at most a share of one CPU.
#[derive(Default)]
struct Kept(Option<(Instant, String)>);

impl Kept {
    /// The text, made anew if the last one has been served for [`SHARE`] times as long as it took.
    /// `cpu_ns`: the CPU time of this thread.
    fn text(&mut self, now: Instant, cpu_ns: impl Fn() -> u64, make: impl FnOnce() -> String) -> &str {
        let kept = self.0.take().filter(|(until, _)| now < *until);
        let kept = kept.unwrap_or_else(|| {
            let (before, text) = (cpu_ns(), make());
            let took = Duration::from_nanos(cpu_ns() - before);
            (now + (took * SHARE).min(KEPT), text)
        });
        &self.0.insert(kept).1
    }
}

impl Server {
    fn run(mut self) {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let now = Instant::now();
            while self.askers.front().is_some_and(|asker| asker.until <= now) {
                self.askers.pop_front();
            }
            // Rounded up, or the last millisecond would be spent in asking.
            let left = self.askers.front().map_or(-1, |asker| (asker.until - now).as_millis() as i32 + 1);
            if self.epoll.wait(&mut events, left).is_err() {
                return;
            }
            for event in &events {
                let ended = if event.token == LISTENER { self.accept() } else { self.hear(event.token) };
                if ended.is_none() {
                    return;
                }
            }
        }
    }

    /// None when the node is gone.
    fn accept(&mut self) -> Option<()> {
        self.nic.upgrade()?;
        match self.listener.accept() {
            Ok((stream, _)) => {
                let number = self.next;
                self.next += 1;
                let ready = stream.set_nonblocking(true).is_ok();
                if ready && self.epoll.add(stream.as_raw_fd(), number, true, false).is_ok() {
                    if self.askers.len() == ASKERS {
                        self.askers.pop_front();
                    }
                    let until = Instant::now() + PATIENCE;
                    self.askers.push_back(Asker { number, stream, head: Vec::new(), until });
                }
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) => {}
            // No descriptor is left, perhaps for long.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        Some(())
    }

    /// None when the node is gone.
    fn hear(&mut self, number: u64) -> Option<()> {
        // Gone, if it gave way to another in this batch of events.
        let Some(at) = self.askers.iter().position(|asker| asker.number == number) else { return Some(()) };
        let asker = &mut self.askers[at];
        let mut said = [0; REQUEST];
        let room = REQUEST - asker.head.len();
        match asker.stream.read(&mut said[..room]) {
            Ok(n) if n > 0 => asker.head.extend(&said[..n]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Some(()),
            _ => drop(self.askers.remove(at)),
        }
        let whole = |asker: &Asker| asker.head.len() == REQUEST || asker.head.windows(4).any(|w| w == b"\r\n\r\n");
        if self.askers.get(at).is_some_and(|asker| asker.number == number && whole(asker)) {
            let asker = self.askers.remove(at)?;
            let nic = self.nic.upgrade()?;
            answer(asker, || self.kept.text(Instant::now(), thread_cpu_ns, || text(&nic)));
        }
        Some(())
    }
}

fn answer<'a>(mut asker: Asker, counters: impl FnOnce() -> &'a str) {
    let mut words = asker.head.split(|&b| b == b' ' || b == b'\r');
    // The text behind a question mark does not change the counters.
    let path = |target: &[u8]| target.split(|&b| b == b'?').next().unwrap_or_default().to_vec();
    let asked = (words.next().unwrap_or_default(), words.next().map(path).unwrap_or_default());
    let (status, body) = match (asked.0, asked.1.as_slice()) {
        (b"GET", b"/metrics" | b"/") => ("200 OK", counters()),
        (b"GET", _) => ("404 Not Found", "the counters are at /metrics\n"),
        _ => ("405 Method Not Allowed", "only GET is understood\n"),
    };
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let length = body.len();
    let said = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    // Some kilobytes, which any socket's buffer takes at once. A peer that does not take them from
    // there is its own problem.
    let _ = asker.stream.write_all(said.as_bytes());
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
    let held_back = nic.lending.limit() - nic.lending.most();
    tell("gauge", "held_back_bytes", "", "… of that, not lent now, because its machine needs it.", held_back);
    tell("gauge", "lent_bytes", "", "Memory lent now.", nic.lent());
    tell("gauge", "lent_bytes_peak", "", "The most memory that was lent at once.", nic.lending.peak());
    tell("gauge", "aside_bytes", "", "… of that, put on the disk, because its owner does not answer.", nic.aside());
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
    tell("counter", "computed_total", "", "Functions near memory carried out.", now(&nic.computed.calls));
    tell("counter", "computed_ns_total", "", "Time of functions near memory.", now(&nic.computed.ns));
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
    let kept = nic.units.kept();
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
    let tenants = nic.tenants.all();
    let name = |tenant: &Tenant| format!("{{tenant=\"{}\"}}", tenant.name);
    let mut each = |kind: &str, metric: &str, help: &str, value: fn(&Tenant) -> u64| {
        for (nth, tenant) in tenants.iter().enumerate().filter(|(_, tenant)| value(tenant) != u64::MAX) {
            let first = tenants.iter().position(|tenant| value(tenant) != u64::MAX) == Some(nth);
            tell(kind, metric, &name(tenant), if first { help } else { "" }, value(tenant));
        }
    };
    each("gauge", "tenant_held_bytes", "Memory that a tenant's programs hold.", Tenant::held);
    each("gauge", "tenant_quota_bytes", "… and may hold.", Tenant::quota);
    each("counter", "tenant_moved_bytes_total", "Bytes moved for a tenant, both ways.", |tenant| tenant.pace.moved());
    each("gauge", "tenant_rate_bytes", "Bytes a second that it may move.", |tenant| tenant.pace.rate());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn who_asks_often_gets_a_text_that_is_there() {
        let begun = Instant::now();
        let asked = |took_ms: u64, at_ms: &[u64]| -> Vec<u32> {
            let (mut kept, cpu_ns, made) = (Kept::default(), Cell::new(0), Cell::new(0));
            let make = || {
                cpu_ns.set(cpu_ns.get() + took_ms * 1_000_000);
                made.set(made.get() + 1);
                made.get().to_string()
            };
            let mut ask = |ms| kept.text(begun + Duration::from_millis(ms), || cpu_ns.get(), make).parse().unwrap();
            at_ms.iter().map(|&ms| ask(ms)).collect()
        };
        assert_eq!(asked(1, &[0, 19, 20, 39, 100]), [1, 1, 2, 2, 3]);
        assert_eq!(asked(1000, &[0, 249, 250, 499, 500]), [1, 1, 2, 2, 3], "no figure is older than that");
        assert_eq!(asked(0, &[0, 0, 1]), [1, 2, 3]);
    }
}
