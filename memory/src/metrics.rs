//! A node's counters, as Prometheus reads them (`farmem_scrape`).

use crate::StartError;
use farmem_nic::Nic;
use farmem_nic::tenants::Tenant;
use farmem_sys::raw::thread_cpu_ns;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A text is served again for this many times as long as the thread worked at it …
const SHARE: u32 = 20;
/// … but no longer than this.
const KEPT: Duration = Duration::from_millis(250);

/// Listens at an address. Requests from now on are answered once the counters are served.
pub fn bind(at: SocketAddr) -> Result<TcpListener, StartError> {
    farmem_scrape::bind(at).map_err(|e| StartError::Listen(at.to_string(), e))
}

/// Serves the counters; returns the address with its port. Ends with the node.
pub fn serve(listener: TcpListener, nic: &Arc<Nic>) -> Result<SocketAddr, StartError> {
    let (nic, mut kept) = (Arc::downgrade(nic), Kept::default());
    let counters = move || {
        let nic = nic.upgrade()?;
        Some(kept.text(Instant::now(), thread_cpu_ns, || text(&nic)).to_owned())
    };
    farmem_scrape::serve(listener, counters).map_err(StartError::System)
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
    let held_back = nic.lending.limit() - nic.most();
    tell("gauge", "held_back_bytes", "", "… of that, not lent now, because its machine needs it.", held_back);
    tell("gauge", "lent_bytes", "", "Memory lent now.", nic.lent());
    tell("gauge", "lent_bytes_peak", "", "The most memory that was lent as slabs at once.", nic.lending.peak());
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
