//! The rack's counters as Prometheus reads them.

use crate::api::{Figures, NodeView, Rack, TenantView};

/// A gauge of each node: its name, its description, its value.
type Gauge = (&'static str, &'static str, fn(&NodeView) -> u64);

/// The gauges of each node. `docs/grafana/rack.json` shows them.
const OF_NODES: [Gauge; 9] = [
    ("farmem_rack_node_up", "Whether the node was heard of within a second.", |node| {
        u64::from(!matches!(node.standing.as_str(), "down" | "suspect"))
    }),
    ("farmem_rack_node_lends_bytes", "Bytes that the node lends at most.", |node| node.lends),
    ("farmem_rack_node_lent_bytes", "Bytes that the node has lent.", |node| node.lent),
    ("farmem_rack_node_members", "Processes that borrow from the node.", |node| node.members),
    ("farmem_rack_node_draining", "Whether the node is to be emptied, or goes down.", |node| {
        u64::from(matches!(node.standing.as_str(), "draining" | "empty" | "leaving"))
    }),
    ("farmem_rack_node_read_bytes_per_second", "Bytes read from the node, by its last two beats.", |node| {
        node.read_rate
    }),
    ("farmem_rack_node_written_bytes_per_second", "Bytes written to the node, by its last two beats.", |node| {
        node.write_rate
    }),
    ("farmem_rack_node_drain_from_bytes", "Bytes that the node had lent when it was to be emptied.", |node| {
        node.drain_from
    }),
    ("farmem_rack_node_silent_ms", "Milliseconds since the node's last beat.", |node| node.heard_ms.unwrap_or(0)),
];

/// A gauge of each run: its name, its description, its value.
type RunGauge = (&'static str, &'static str, fn(&Figures) -> u64);

/// The gauges of each run.
const OF_RUNS: [RunGauge; 9] = [
    ("farmem_rack_run_far_bytes", "Bytes that the run has at nodes.", |run| run.far),
    ("farmem_rack_run_read_bytes_per_second", "Bytes that the run reads from nodes.", |run| run.read_rate),
    ("farmem_rack_run_written_bytes_per_second", "Bytes that the run writes to nodes.", |run| run.write_rate),
    ("farmem_rack_run_fetch_p50_ns", "Half of the run's fetches took at most so long.", |run| run.p50_ns),
    ("farmem_rack_run_fetch_p99_ns", "99 of 100 of the run's fetches took at most so long.", |run| run.p99_ns),
    ("farmem_rack_run_fetch_p999_ns", "999 of 1000 of the run's fetches took at most so long.", |run| run.p999_ns),
    ("farmem_rack_run_single_bytes", "Bytes with one copy where two were asked for.", |run| run.single),
    ("farmem_rack_run_together_bytes", "Bytes with both copies in one failure domain.", |run| run.together),
    ("farmem_rack_run_nodes_lost", "Times that a process of the run lost a node and went on.", |run| run.nodes_lost),
];

/// A gauge of each tenant: its name, its description, its value.
type TenantGauge = (&'static str, &'static str, fn(&TenantView) -> u64);

/// The gauges of each tenant that has a quota in the whole rack.
const OF_TENANTS: [TenantGauge; 2] = [
    ("farmem_rack_tenant_quota_bytes", "Bytes that the tenant's programs may hold together.", |tenant| tenant.quota),
    ("farmem_rack_tenant_held_bytes", "Bytes that the tenant's programs hold.", |tenant| tenant.held),
];

fn gauge(text: &mut String, name: &str, help: &str, value: u64) {
    *text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}\n");
}

/// Prometheus' text format. `None`: this controller does not lead.
pub fn exposition(rack: Option<&Rack>) -> String {
    let mut text = String::new();
    gauge(&mut text, "farmem_rack_leads", "Whether this controller leads the rack.", u64::from(rack.is_some()));
    let Some(rack) = rack else { return text };
    let escaped = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    for (name, help, value) in OF_NODES {
        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
        for node in &rack.nodes {
            let (of, domain) = (escaped(&node.name), escaped(&node.domain));
            text += &format!("{name}{{node=\"{of}\",domain=\"{domain}\"}} {}\n", value(node));
        }
    }
    for (name, help, value) in OF_RUNS {
        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
        for (run, figures) in rack.runs.iter().filter_map(|run| Some((run, run.figures.as_ref()?))) {
            let (of, host, program) = (escaped(&run.run), escaped(&run.host), escaped(&figures.program));
            text += &format!("{name}{{run=\"{of}\",host=\"{host}\",program=\"{program}\"}} {}\n", value(figures));
        }
    }
    for (name, help, value) in OF_TENANTS {
        text += &format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
        for tenant in &rack.tenants {
            text += &format!("{name}{{tenant=\"{}\"}} {}\n", escaped(&tenant.name), value(tenant));
        }
    }
    gauge(&mut text, "farmem_rack_runs", "Runs that asked for nodes lately.", rack.runs.len() as u64 + rack.more_runs);
    let crowded = rack.runs.iter().filter(|run| run.crowded).count() as u64;
    gauge(&mut text, "farmem_rack_crowded_runs", "Runs that lie in fewer failure domains than they want.", crowded);
    gauge(&mut text, "farmem_rack_epoch", "The epoch of the controller that leads.", rack.term.epoch);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Beat;
    use crate::state::State;
    use std::time::Duration;

    #[test]
    fn metrics_are_escaped() {
        let mut state = State::default();
        let beat = Beat {
            name: "a\"b".into(),
            incarnation: 1,
            domain: "d".into(),
            listen: vec!["a:1".into()],
            lends: 5,
            lent: 3,
            members: 1,
            ..Beat::default()
        };
        state.beat(Duration::ZERO, beat, &mut Vec::new()).unwrap();
        let text = exposition(Some(&state.view(Duration::ZERO)));
        assert!(text.contains("farmem_rack_node_lent_bytes{node=\"a\\\"b\",domain=\"d\"} 3\n"), "{text}");
        assert!(text.contains("farmem_rack_runs 0\n") && text.contains("farmem_rack_leads 1\n"));
        assert!(exposition(None).ends_with("farmem_rack_leads 0\n"));
    }
}
