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
/// What delays a machine's answers listens at its port and this.
const RELAY_AFTER: u16 = 10_000;
/// Members of etcd, if there is one.
const MEMBERS: usize = 3;
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// What a machine is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Runs the controller.
    Controller,
    /// Lends memory.
    Node,
    /// Runs programs.
    Host,
    /// Runs a member of etcd.
    Etcd,
}

/// A machine of the rack: a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// `c1`, `n1`, `h1`, `e1` and so on. Also the name of its port at the bridge.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Its number among those of its role, from 1.
    pub number: usize,
}

/// A rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rack {
    /// Members of etcd, controllers, nodes, hosts.
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
            Role::Etcd => 200,
        };
        format!("10.74.11.{}", last + self.number)
    }

    /// The port that others use, if it has one.
    fn port(&self) -> Option<u16> {
        match self.role {
            Role::Controller => Some(CONTROLLER_PORT),
            Role::Node => Some(NODE_PORT),
            Role::Etcd => Some(CLIENT_PORT),
            Role::Host => None,
        }
    }
}

impl Rack {
    /// A rack of so many nodes and hosts, and a controller. With `etcd` there are two, over three
    /// members of etcd.
    ///
    /// # Errors
    /// If there are none or too many of them.
    pub fn new(nodes: usize, hosts: usize, lend: &str, nodes_per_domain: usize, etcd: bool) -> Result<Rack> {
        for (count, what) in [(nodes, "nodes"), (hosts, "hosts")] {
            ensure!((1..=MOST).contains(&count), "{count} {what}: a rack here has 1 to {MOST}");
        }
        ensure!(nodes_per_domain > 0, "a domain has at least one node");
        let some = |role, letter: char, count| {
            (1..=count).map(move |number| Machine { name: format!("{letter}{number}"), role, number })
        };
        let (controllers, members) = if etcd { (2, MEMBERS) } else { (1, 0) };
        // Whatever another needs is started before it.
        let machines = some(Role::Etcd, 'e', members)
            .chain(some(Role::Controller, 'c', controllers))
            .chain(some(Role::Node, 'n', nodes))
            .chain(some(Role::Host, 'h', hosts));
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

    /// Those of a role.
    pub fn of(&self, role: Role) -> impl Iterator<Item = &Machine> {
        self.machines.iter().filter(move |machine| machine.role == role)
    }

    /// The address of the controller, or of all, as `--controller` takes it.
    pub fn controller(&self) -> String {
        let each = self.of(Role::Controller).map(|machine| format!("{}:{CONTROLLER_PORT}", machine.address()));
        each.collect::<Vec<_>>().join(",")
    }

    /// The store of the controllers, as `--store` takes it.
    fn store(&self, state: &str) -> String {
        let members: Vec<_> = self.of(Role::Etcd).map(|each| format!("{}:{CLIENT_PORT}", each.address())).collect();
        if members.is_empty() { format!("{state}/c1/disk/rack.redb") } else { format!("etcd://{}", members.join(",")) }
    }

    /// The arguments for what runs on a machine all the time: `farmem`, or `etcd` where it is a member
    /// of that. Hosts: none.
    pub fn daemon(&self, machine: &Machine, state: &str) -> Option<Vec<String>> {
        let at = machine.address();
        let text = match machine.role {
            Role::Controller => {
                format!("controller --listen {at}:{CONTROLLER_PORT} --store {} --open", self.store(state))
            }
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
            Role::Etcd => {
                let peers: Vec<_> =
                    self.of(Role::Etcd).map(|m| format!("{}=http://{}:{PEER_PORT}", m.name, m.address())).collect();
                let (client, peer) = (format!("http://{at}:{CLIENT_PORT}"), format!("http://{at}:{PEER_PORT}"));
                format!(
                    "--name {0} --data-dir {state}/{0}/disk/etcd --initial-cluster {1} --listen-client-urls {client} \
                     --advertise-client-urls {client} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer}",
                    machine.name,
                    peers.join(",")
                )
            }
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
    /// So many of a hundred packets vanish, each way.
    Loss(u32),
    /// Whatever it says comes so many milliseconds later.
    Delay(u64),
    /// Its disk is full.
    Full,
    /// The network and the disk are as at first.
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
            "full" => Fault::Full,
            _ => return Fault::measured(text).ok_or_else(|| KINDS.into()),
        })
    }
}

/// What can be said of a fault.
const KINDS: &str = "one of cut, reject, rate=10mbit, loss=5%, delay=20ms, full, heal, stop, go, kill, start";

impl Fault {
    /// One that has a measure.
    fn measured(text: &str) -> Option<Fault> {
        let (kind, much) = text.split_once('=')?;
        match kind {
            "rate" if !much.is_empty() && much.chars().all(|c| c.is_ascii_alphanumeric() || c == '.') => {
                Some(Fault::Rate(much.to_owned()))
            }
            "loss" => much.strip_suffix('%')?.parse().ok().filter(|loss| (1..=99).contains(loss)).map(Fault::Loss),
            "delay" => much.strip_suffix("ms")?.parse().ok().filter(|ms| (1..=60_000).contains(ms)).map(Fault::Delay),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Cut => "is cut off: packets vanish, both ways",
            Fault::Reject => "resets its connections, and refuses new ones",
            Fault::Rate(rate) => return write!(f, "has a link of {rate}"),
            Fault::Loss(loss) => return write!(f, "loses {loss} of 100 packets, each way"),
            Fault::Delay(ms) => return write!(f, "answers {ms} ms later; its connections are made anew for that"),
            Fault::Full => "has no room on its disk",
            Fault::Heal => "has its network back, and room on its disk",
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
        Fault::Loss(loss) => ["INPUT", "OUTPUT"]
            .map(|way| filter(&format!("-I {way} -m statistic --mode random --probability 0.{loss:02} -j DROP")))
            .to_vec(),
        // New connections lead to the relay. Older ones are reset, so that they are made anew.
        Fault::Delay(_) => machine.port().map_or(vec![], |port| {
            let relay = port + RELAY_AFTER;
            vec![
                filter(&format!("-t nat -I PREROUTING -p tcp --dport {port} -j REDIRECT --to-ports {relay}")),
                filter(&format!("-I INPUT ! -i lo -p tcp --dport {port} -j REJECT --reject-with tcp-reset")),
            ]
        }),
        Fault::Heal => vec![
            filter("-F"),
            filter("-t nat -F"),
            format!("tc -n {NETWORK} qdisc replace dev {} root pfifo", machine.name),
            format!("tc -n {inside} qdisc replace dev eth0 root pfifo"),
        ],
        Fault::Full | Fault::Stop | Fault::Go | Fault::Kill | Fault::Start => vec![],
    };
    calls.iter().map(|call| words(call)).collect()
}

/// What delays a machine's answers: where it listens, and what it leads to. `None`: nobody connects
/// to such a machine.
pub fn relay(machine: &Machine) -> Option<[String; 2]> {
    let port = machine.port()?;
    Some([port + RELAY_AFTER, port].map(|port| format!("{}:{port}", machine.address())))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_addresses_and_domains_of_their_own() {
        let rack = Rack::new(4, 2, "1G", 2, false).expect("a rack");
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
            assert!(Rack::new(nodes, hosts, "1G", 1, true).is_err());
        }
        let rack = Rack::new(MOST, MOST, "1G", 1, true).expect("a rack");
        let last = rack.machines.last().map(Machine::address);
        assert_eq!(last.as_deref(), Some("10.74.11.164"));
        let mut addresses: Vec<String> = rack.machines.iter().map(Machine::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 2 * MOST + 2 + MEMBERS);
    }

    #[test]
    fn two_controllers_share_an_etcd() {
        let rack = Rack::new(1, 1, "1G", 1, true).expect("a rack");
        assert_eq!(rack.controller(), "10.74.11.1:7400,10.74.11.2:7400");
        let says =
            |name: &str| rack.daemon(rack.machine(name).expect("it is there"), "/s").expect("a daemon").join(" ");
        let store = "--store etcd://10.74.11.201:2379,10.74.11.202:2379,10.74.11.203:2379 --open";
        assert!(says("c2").starts_with("controller --listen 10.74.11.2:7400") && says("c2").ends_with(store));
        assert!(
            says("e2")
                .contains("--name e2 --data-dir /s/e2/disk/etcd --initial-cluster e1=http://10.74.11.201:2380,e2=")
        );
        assert!(says("n1").contains("--controller 10.74.11.1:7400,10.74.11.2:7400"));
    }

    #[test]
    fn faults_are_read_and_nothing_else_is() {
        for (text, fault) in [
            ("cut", Fault::Cut),
            ("rate=1.5gbit", Fault::Rate("1.5gbit".into())),
            ("start", Fault::Start),
            ("loss=5%", Fault::Loss(5)),
            ("delay=100ms", Fault::Delay(100)),
            ("full", Fault::Full),
        ] {
            assert_eq!(text.parse(), Ok(fault));
        }
        for text in
            ["", "rate=", "rate=1; reboot", "CUT", "loss", "loss=0%", "loss=100%", "loss=5", "delay=1s", "delay=0ms"]
        {
            assert!(text.parse::<Fault>().is_err(), "{text}");
        }
    }
}
