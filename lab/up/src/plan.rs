//! What a rack in namespaces consists of: machines, their addresses, and the commands that make them. Pure.
//!
//! ```text
//!  farmem-net          farmem-c1        farmem-n1         farmem-n2      …   farmem-h1
//!  ┌────────────┐      ┌──────────┐     ┌──────────┐                         ┌──────────┐
//!  │ br0        │      │ eth0     │     │ eth0     │                         │ eth0     │
//!  │ c1 n1 n2 … │      │ 10.74.11.1     │ 10.74.11.11                        │ 10.74.11.101
//!  └─┴──┴──┴────┘      └──────────┘     └──────────┘                         └──────────┘
//!    └──┴──┴── each port of the bridge is the other end of a machine's eth0
//! ```

use std::fmt;

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// The namespace of the bridge between all machines.
pub const NETWORK: &str = "farmem-net";
/// The most nodes, and the most hosts: their addresses share one byte.
pub const MOST: usize = 64;
const CONTROLLER_PORT: u16 = 7400;
const NODE_PORT: u16 = 7411;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Runs the controller.
    Controller,
    /// Lends memory.
    Node,
    /// Runs programs.
    Host,
}

/// A machine of the rack: a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `c1`, `n1`, `h1` and so on. Also the name of its port at the bridge.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its number among those of its role, from 1.
    pub number: usize,
}

/// A rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    /// Controller, nodes, hosts.
    pub machines: Vec<Machine>,
    /// What each node lends, as `--lend` takes it.
    pub lend: String,
    /// Nodes that are lost together, as `--domain` tells the controller.
    pub nodes_per_domain: usize,
}

impl Machine {
    /// Its network namespace.
    pub fn namespace(&self) -> String {
        format!("farmem-{}", self.name)
    }

    /// Its address.
    pub fn address(&self) -> String {
        let last = match self.role {
            Role::Controller => 0,
            Role::Node => 10,
            Role::Host => 100,
        };
        format!("10.74.11.{}", last + self.number)
    }
}

impl Rack {
    /// A rack of one controller, and so many nodes and hosts.
    ///
    /// # Errors
    /// If there are none or too many of them.
    pub fn new(nodes: usize, hosts: usize, lend: &str, nodes_per_domain: usize) -> Result<Rack> {
        for (count, what) in [(nodes, "nodes"), (hosts, "hosts")] {
            ensure!((1..=MOST).contains(&count), "{count} {what}: a rack here has 1 to {MOST}");
        }
        ensure!(nodes_per_domain > 0, "a domain has at least one node");
        let some = |role, letter: char, count| {
            (1..=count).map(move |number| Machine { name: format!("{letter}{number}"), role, number })
        };
        let machines =
            some(Role::Controller, 'c', 1).chain(some(Role::Node, 'n', nodes)).chain(some(Role::Host, 'h', hosts));
        Ok(Rack { machines: machines.collect(), lend: lend.to_owned(), nodes_per_domain })
    }

    /// The machine of this name.
    ///
    /// # Errors
    /// If there is none: the message names those that there are.
    pub fn machine(&self, name: &str) -> Result<&Machine> {
        let Some(found) = self.machines.iter().find(|machine| machine.name == name) else {
            let names: Vec<&str> = self.machines.iter().map(|machine| machine.name.as_str()).collect();
            bail!("no machine of this rack is called {name}: there are {}", names.join(", "));
        };
        Ok(found)
    }

    /// The address of the controller, as `--controller` takes it.
    pub fn controller(&self) -> String {
        format!("{}:{CONTROLLER_PORT}", self.machines[0].address())
    }

    /// The arguments of `farmem` for what runs on a machine all the time. Hosts: none.
    pub fn daemon(&self, machine: &Machine, state: &str) -> Option<Vec<String>> {
        let at = machine.address();
        let text = match machine.role {
            Role::Controller => format!("controller --listen {at}:{CONTROLLER_PORT} --store {state}/rack.redb --open"),
            Role::Node => {
                let domain = machine.number.div_ceil(self.nodes_per_domain);
                format!(
                    "node --lend {} --listen {at}:{NODE_PORT} --open --controller {} --name {} --domain shelf{domain}",
                    self.lend,
                    self.controller(),
                    machine.name
                )
            }
            Role::Host => return None,
        };
        Some(words(&text))
    }

    /// The arguments of `ip`, call by call, that make all namespaces and links.
    pub fn links(&self) -> Vec<Vec<String>> {
        let mut calls = vec![
            format!("netns add {NETWORK}"),
            format!("-n {NETWORK} link add br0 type bridge"),
            format!("-n {NETWORK} link set br0 up"),
        ];
        for machine in &self.machines {
            let (inside, port, at) = (machine.namespace(), &machine.name, machine.address());
            calls.extend([
                format!("netns add {inside}"),
                format!("-n {NETWORK} link add {port} type veth peer name eth0 netns {inside}"),
                format!("-n {NETWORK} link set {port} master br0 up"),
                format!("-n {inside} address add {at}/24 dev eth0"),
                format!("-n {inside} link set eth0 up"),
                format!("-n {inside} link set lo up"),
            ]);
        }
        calls.iter().map(|call| words(call)).collect()
    }

    /// All namespaces, the network's last.
    pub fn namespaces(&self) -> Vec<String> {
        self.machines.iter().map(Machine::namespace).chain([NETWORK.to_owned()]).collect()
    }
}

/// What can happen to a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Packets vanish, both ways.
    Cut,
    /// Connections are reset, and new ones refused.
    Reject,
    /// So many bits a second, both ways, as `tc` has it.
    Rate(String),
    /// The network is as at first.
    Heal,
    /// Its processes are stopped.
    Stop,
    /// They go on.
    Go,
    /// They are killed.
    Kill,
    /// What ran at first is started.
    Start,
}

impl std::str::FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        Ok(match text {
            "cut" => Fault::Cut,
            "reject" => Fault::Reject,
            "heal" => Fault::Heal,
            "stop" => Fault::Stop,
            "go" => Fault::Go,
            "kill" => Fault::Kill,
            "start" => Fault::Start,
            _ => match text.strip_prefix("rate=") {
                Some(rate) if !rate.is_empty() && rate.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') => {
                    Fault::Rate(rate.to_owned())
                }
                _ => return Err("one of cut, reject, rate=10mbit, heal, stop, go, kill, start".into()),
            },
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Cut => "is cut off: packets vanish, both ways",
            Fault::Reject => "resets its connections, and refuses new ones",
            Fault::Rate(rate) => return write!(f, "has a link of {rate}"),
            Fault::Heal => "has its network back",
            Fault::Stop => "stands still",
            Fault::Go => "goes on",
            Fault::Kill => "has lost its processes",
            Fault::Start => "is started",
        })
    }
}

/// The programs, with arguments, that bring a fault of the network about. None for faults of processes.
pub fn network(machine: &Machine, fault: &Fault) -> Vec<Vec<String>> {
    let inside = machine.namespace();
    let filter = |rule: &str| format!("ip netns exec {inside} iptables -w {rule}");
    let calls = match fault {
        Fault::Cut => vec![filter("-I INPUT -j DROP"), filter("-I OUTPUT -j DROP")],
        Fault::Reject => vec![filter("-I INPUT -p tcp -j REJECT --reject-with tcp-reset")],
        // Its own end holds what it says, the bridge's end what it hears.
        Fault::Rate(rate) => [(NETWORK, machine.name.as_str()), (inside.as_str(), "eth0")]
            .map(|(at, device)| {
                format!("tc -n {at} qdisc replace dev {device} root tbf rate {rate} burst 128kb latency 50ms")
            })
            .to_vec(),
        Fault::Heal => vec![
            filter("-F"),
            format!("tc -n {NETWORK} qdisc replace dev {} root pfifo", machine.name),
            format!("tc -n {inside} qdisc replace dev eth0 root pfifo"),
        ],
        Fault::Stop | Fault::Go | Fault::Kill | Fault::Start => vec![],
    };
    calls.iter().map(|call| words(call)).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_addresses_and_domains_of_their_own() {
        let rack = Rack::new(4, 2, "1G", 2).expect("a rack");
        let mut addresses: Vec<String> = rack.machines.iter().map(Machine::address).collect();
        addresses.dedup();
        assert_eq!((addresses.len(), rack.controller().as_str()), (7, "10.74.11.1:7400"));
        let domains: Vec<String> = rack
            .machines
            .iter()
            .filter_map(|each| rack.daemon(each, "/s"))
            .filter_map(|words| words.last().cloned())
            .collect();
        assert_eq!(domains[1..], ["shelf1", "shelf1", "shelf2", "shelf2"]);
        assert!(rack.machine("n5").is_err_and(|e| e.to_string().contains("c1, n1, n2, n3, n4, h1, h2")));
    }

    #[test]
    fn a_rack_is_neither_empty_nor_endless() {
        for (nodes, hosts) in [(0, 1), (1, 0), (MOST + 1, 1), (1, MOST + 1)] {
            assert!(Rack::new(nodes, hosts, "1G", 1).is_err());
        }
        let rack = Rack::new(MOST, MOST, "1G", 1).expect("a rack");
        let last = rack.machines.last().map(Machine::address);
        assert_eq!(last.as_deref(), Some("10.74.11.164"));
    }

    #[test]
    fn faults_are_read_and_nothing_else_is() {
        for (text, fault) in
            [("cut", Fault::Cut), ("rate=1.5gbit", Fault::Rate("1.5gbit".into())), ("start", Fault::Start)]
        {
            assert_eq!(text.parse(), Ok(fault));
        }
        for text in ["", "rate=", "rate=1; reboot", "CUT", "loss"] {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
