//! A rack on one machine, to try it all: `farmem-lab up`, and faults for it: `farmem-lab fault`.
//!
//! Each machine is a network namespace with an address of its own. Programs in it are real processes with real
//! sockets. `plan.rs` says what there is; `machines.rs` makes it and takes it away.

mod machines;
mod plan;
mod relay;

pub use relay::Relay;

use std::path::PathBuf;

use anyhow::{Result, bail};
use farmem_kit::table::Table;
use farmem_sys::process::Signals;
use machines::Machines;
use plan::{Fault, Rack, Role};

const UP: &str = "\
Examples:
  sudo farmem-lab up --nodes 3
      Then, in another terminal:
      sudo ip netns exec farmem-h1 env FARMEM_CONTROLLER=10.74.11.1:7400 \\
          FARMEM_TRANSPORT=tcp farmem run --local 64M --protect mirror -- ./job
      sudo farmem-lab fault n1 kill

  sudo farmem-lab up --nodes 4 --nodes-per-domain 2 -- \\
      farmem run --local 64M --protect mirror -- sort -S 1G big.txt
      One command on host h1, which has these variables; then all is gone again.";

/// A rack on one machine: a controller, nodes and hosts in network namespaces, as root
///
/// Stays until Ctrl-C, or until the command ends, with the command's status. Nothing of it is left then.
#[derive(clap::Args, Debug)]
#[command(after_help = UP)]
pub struct Up {
    /// Machines that lend memory
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub nodes: usize,
    /// Machines that run programs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hosts: usize,
    /// What each node lends
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub lend: String,
    /// Two controllers, over an etcd of three members, in place of one controller with a file
    #[arg(long)]
    pub etcd: bool,
    /// Nodes that share a failure domain
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes_per_domain: usize,
    /// A command to run on host h1
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

const FAULT: &str = "\
Examples:
  sudo farmem-lab fault n1 cut          packets vanish: nobody is told
  sudo farmem-lab fault n1 reject       connections are reset
  sudo farmem-lab fault n1 rate=100mbit a slow link; loss=5%: packets are lost
  sudo farmem-lab fault n1 delay=20ms   its answers come later
  sudo farmem-lab fault h1 full         its disk ($FARMEM_LAB_DISK) is full
  sudo farmem-lab fault n1 heal         network and disk are as at first
  sudo farmem-lab fault n2 stop         its processes stand still; go: they go on
  sudo farmem-lab fault c1 kill         they are killed; start: they are started anew";

/// Let something happen to a machine of the rack that farmem-lab up made
#[derive(clap::Args, Debug)]
#[command(after_help = FAULT)]
pub struct Happen {
    /// c1, n1, n2, h1, e1 and so on
    pub machine: String,
    /// cut, reject, rate=RATE, loss=N%, delay=Nms, full, heal, stop, go, kill or start
    pub fault: Fault,
}

impl Up {
    /// Makes the rack, keeps it as long as it is wanted, and takes it away. Gives the command's status.
    ///
    /// # Errors
    /// If it cannot be made: nothing is left of it then.
    pub fn run(&self, farmem: PathBuf) -> Result<i32> {
        let rack = Rack::new(self.nodes, self.hosts, &self.lend, self.nodes_per_domain, self.etcd)?;
        let signals = Signals::take()?;
        let mut machines = Machines::make(rack, farmem)?;
        machines.start_all(&signals)?;
        if self.command.is_empty() {
            println!("{}", table(&machines.rack));
            let all = machines.rack.controller();
            let page = all.split(',').next().unwrap_or_default();
            println!("FARMEM_CONTROLLER={all}   page: http://{page}/   Ctrl-C ends it");
            while !signals
                .next(std::time::Duration::from_secs(3600))
                .is_some_and(|arrived| signals.asks_to_end(arrived))
            {}
            return Ok(0);
        }
        machines.run(&self.command, &signals)
    }
}

impl Happen {
    /// Lets it happen.
    ///
    /// # Errors
    /// If there is no rack, no such machine, or a tool fails.
    pub fn run(&self) -> Result<()> {
        let machines = Machines::find()?;
        let machine = machines.rack.machine(&self.machine)?;
        if self.fault == Fault::Start && machine.role == Role::Host {
            bail!("nothing runs on {} by itself: start a program there", machine.name);
        }
        machines.happen(machine, &self.fault)?;
        println!("{} {}", machine.name, self.fault);
        Ok(())
    }
}

fn table(rack: &Rack) -> Table {
    let mut table = Table::new(["machine", "address", "namespace", "is"]);
    for machine in &rack.machines {
        let is = match machine.role {
            Role::Controller => "a controller",
            Role::Etcd => "a member of etcd",
            Role::Node => "a node",
            Role::Host => "for programs",
        };
        table.row([machine.name.clone(), machine.address(), machine.namespace(), is.to_owned()]);
    }
    table
}
