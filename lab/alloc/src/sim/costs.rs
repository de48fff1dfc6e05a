//! What the simulated fabric costs: read from a file of the form of `rnic.toml`.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::clock::Nanos;

/// The file that is shipped.
pub const SHIPPED: &str = include_str!("../../rnic.toml");

/// All of it, as the file has it: µs unless a name says otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // The file explains each, with its source.
pub struct Costs {
    pub verb: Verb,
    pub nic: Nic,
    pub window: Window,
    pub registration: Registration,
    pub core: Core,
    pub host: Host,
}

macro_rules! section {
    ($name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        /// One section of the file.
        #[derive(Clone, Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(missing_docs)] // The file explains each, with its source.
        pub struct $name { $(pub $field: $kind),* }
    };
}

section!(Verb { read: f64, write: f64, cas: f64, send: f64, jitter: f64, bytes_per_us: f64 });
section!(Nic { verb_occupancy: f64, atomic_occupancy: f64, same_word: f64 });
section!(Window { bind: f64, invalidate: f64, regenerate: f64, group: u32, chain_step: f64, chain_occupancy: f64 });
section!(Registration { once: f64, each_mib: f64, deregister: f64 });
section!(Core {
    call: f64,
    rebind_interval: f64,
    rebind_scan_ns: f64,
    drain_interval: f64,
    drain_scan_ns: f64,
    scrub_gib_s: f64,
    scrub_cores: u32,
});
section!(Host { clients: u32, ipc: f64, ring: f64, ring_wait: f64, agent: f64, heartbeat: f64, ahead_kib: u32 });

/// µs as virtual time.
pub fn us(time: f64) -> Nanos {
    (time * 1e3).round() as Nanos
}

impl Costs {
    /// Reads a file's text.
    ///
    /// # Errors
    /// No TOML of this form, or a figure that cannot be: negative, or a rate of nothing.
    pub fn parse(text: &str) -> Result<Costs> {
        let costs: Costs = toml::from_str(text).context("not the form of `farmem-lab bench alloc --print-rnic`")?;
        let (verb, core) = (&costs.verb, &costs.core);
        ensure!((0.0..1.0).contains(&verb.jitter), "verb.jitter is {}: a share from 0 to below 1", verb.jitter);
        ensure!(verb.bytes_per_us > 0.0, "verb.bytes_per_us is {}: above 0 is needed", verb.bytes_per_us);
        ensure!(core.scrub_gib_s > 0.0, "core.scrub_gib_s is {}: above 0 is needed", core.scrub_gib_s);
        ensure!((1..=64).contains(&core.scrub_cores), "core.scrub_cores is {}: 1 to 64", core.scrub_cores);
        let intervals = [
            ("core.rebind_interval", core.rebind_interval),
            ("core.drain_interval", core.drain_interval),
            ("host.heartbeat", costs.host.heartbeat),
        ];
        for (name, interval) in intervals {
            ensure!(interval >= 1.0, "{name} is {interval}: at least 1 µs is needed");
        }
        ensure!(costs.host.clients > 0, "host.clients is 0: a host has at least one");
        let times = [
            verb.read,
            verb.write,
            verb.cas,
            verb.send,
            costs.nic.verb_occupancy,
            costs.nic.atomic_occupancy,
            costs.nic.same_word,
            costs.window.bind,
            costs.window.invalidate,
            costs.window.regenerate,
            costs.window.chain_step,
            costs.window.chain_occupancy,
            costs.registration.once,
            costs.registration.each_mib,
            costs.registration.deregister,
            core.call,
            core.rebind_scan_ns,
            core.drain_scan_ns,
            costs.host.ipc,
            costs.host.ring,
            costs.host.ring_wait,
            costs.host.agent,
            costs.host.heartbeat,
        ];
        ensure!(times.iter().all(|&time| (0.0..1e9).contains(&time)), "a time is negative or above 1000 s");
        Ok(costs)
    }

    /// The shipped ones.
    pub fn shipped() -> Costs {
        Costs::parse(SHIPPED).expect("the shipped file is right: its test says so")
    }

    /// Registering a region of so many bytes.
    pub fn register(&self, bytes: u64) -> Nanos {
        us(self.registration.once + self.registration.each_mib * bytes as f64 / f64::from(1 << 20))
    }

    /// Zeroing so many bytes, on one core.
    pub fn scrub(&self, bytes: u64) -> Nanos {
        (bytes as f64 / (self.core.scrub_gib_s * f64::from(1 << 30)) * 1e9) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_file_is_right() {
        let costs = Costs::parse(SHIPPED).unwrap();
        let (four_mib, published) = (costs.register(4 << 20), 485_500);
        assert!(four_mib.abs_diff(published) < 1_000, "4 MiB register in {four_mib} ns");
    }

    #[test]
    fn agents_look_as_often_as_shipped_ones() {
        let heartbeat = us(Costs::shipped().host.heartbeat);
        assert_eq!(heartbeat, farmem_protocol::extent::policy::HEARTBEAT_NS);
    }

    #[test]
    fn a_wrong_figure_is_named() {
        let wrong = SHIPPED.replace("jitter = 0.1", "jitter = 2.0");
        assert!(Costs::parse(&wrong).unwrap_err().to_string().contains("verb.jitter"));
        assert!(Costs::parse("[verb]\nread = 1").is_err());
        assert!(Costs::parse(&format!("{SHIPPED}\nnonsense = 1")).is_err());
    }
}
