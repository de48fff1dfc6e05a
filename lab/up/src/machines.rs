//! The rack in the kernel: namespaces, links, processes.
//!
//! Everything of a rack is found again by its names: processes by their namespace, and the plan by a file. So
//! `farmem-lab fault` is a process of its own, and a rack whose `up` was killed is taken away by the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use farmem_sys::process::Signals;
use serde_json::Value;

use crate::plan::{Fault, Machine, Rack, Role, network, relay};

/// What a rack leaves on disk while it is there: the plan, the controller's store, logs, runtime directories.
const STATE: &str = "/run/farmem-lab";
/// How long the rack may take until all nodes have told the controller that they are there.
const BEGINNING: Duration = Duration::from_secs(30);

/// What fills a machine's disk.
const FILLER: &str = "filler";
/// Bytes of a machine's disk, in memory as far as it is used.
const DISK: &str = "1g";

/// A rack that is there.
pub struct Machines {
    pub rack: Rack,
    farmem: PathBuf,
    /// Whether dropping it takes the rack away.
    is_ours: bool,
}

impl Machines {
    /// Makes namespaces and links. What an earlier rack left is taken away first.
    pub fn make(rack: Rack, farmem: PathBuf) -> Result<Machines> {
        if let Ok(mut left) = Machines::find() {
            let maker = fs::read_to_string(Path::new(STATE).join("up")).unwrap_or_default();
            let is_up = !maker.is_empty() && Path::new("/proc").join(&maker).exists();
            ensure!(!is_up, "a rack is up already, of process {maker}: end it first");
            left.is_ours = true;
        }
        fs::create_dir_all(STATE).with_context(|| format!("cannot make {STATE}; a rack needs root"))?;
        fs::write(Path::new(STATE).join("up"), std::process::id().to_string())?;
        fs::write(Path::new(STATE).join("plan.json"), serde_json::to_string(&(&rack, &farmem))?)?;
        let made = Machines { rack, farmem, is_ours: true };
        for call in made.rack.links() {
            tool("ip", &call).context("a rack needs root, and the tools of iproute2")?;
        }
        for machine in &made.rack.machines {
            let disk = disk(machine);
            fs::create_dir_all(&disk)?;
            let size = format!("size={DISK},mode=1777");
            tool(
                "mount",
                &["-t", "tmpfs", "-o", &size, "farmem-lab"]
                    .map(String::from)
                    .into_iter()
                    .chain([disk.display().to_string()])
                    .collect::<Vec<_>>(),
            )?;
        }
        Ok(made)
    }

    /// The rack that `up` made.
    pub fn find() -> Result<Machines> {
        let plan = fs::read_to_string(Path::new(STATE).join("plan.json"));
        let plan = plan.context("there is no rack here: farmem-lab up makes one")?;
        let (rack, farmem) = serde_json::from_str(&plan).context("the rack is of another farmem-lab")?;
        Ok(Machines { rack, farmem, is_ours: false })
    }

    /// Starts the controller and the nodes, and waits until the controller knows them all.
    pub fn start_all(&mut self, signals: &Signals) -> Result<()> {
        for machine in &self.rack.machines {
            self.start(machine)?;
        }
        let nodes = self.rack.machines.iter().filter(|machine| machine.role == Role::Node).count();
        let began = Instant::now();
        loop {
            let controller = self.rack.of(Role::Controller).next().context("a rack has a controller")?;
            let mut status = self.inside(controller, &self.farmem);
            status.args(["status", "--json", "--controller", &self.rack.controller()]);
            let said = status.stderr(Stdio::null()).output()?;
            let rack: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
            let up = rack["nodes"].as_array().into_iter().flatten().filter(|node| node["standing"] == "up");
            if up.count() == nodes {
                return Ok(());
            }
            ensure!(began.elapsed() < BEGINNING, "not all nodes are up after {BEGINNING:?}: see {STATE}/*.log");
            let next = signals.next(Duration::from_millis(100));
            ensure!(!next.is_some_and(|arrived| signals.asks_to_end(arrived)), "ended before the rack was up");
        }
    }

    /// Starts what runs on a machine all the time, if anything does.
    fn start(&self, machine: &Machine) -> Result<()> {
        let Some(arguments) = self.rack.daemon(machine, STATE) else { return Ok(()) };
        let log = fs::OpenOptions::new().create(true).append(true).open(format!("{STATE}/{}.log", machine.name))?;
        let program = if machine.role == Role::Etcd { Path::new("etcd") } else { &self.farmem };
        let mut command = self.inside(machine, program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.spawn().with_context(|| format!("cannot start {}", machine.name))?;
        Ok(())
    }

    /// Runs a command on the first host, to its end. Ctrl-C ends it.
    pub fn run(&self, command: &[String], signals: &Signals) -> Result<i32> {
        let host = self.rack.machines.iter().find(|machine| machine.role == Role::Host).context("a rack has a host")?;
        // `farmem` is this very build, wherever the path leads.
        let program = if command[0] == "farmem" { self.farmem.clone() } else { PathBuf::from(&command[0]) };
        let mut inside = self.inside(host, &program);
        inside.args(&command[1..]);
        signals.hand_back(&mut inside, true);
        let mut child = inside.spawn().with_context(|| format!("cannot run {}", command[0]))?;
        loop {
            if let Some(status) = child.try_wait()? {
                use std::os::unix::process::ExitStatusExt;
                return Ok(status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1));
            }
            // The terminal sends its signals to the command as well: only the command's end ends this.
            signals.next(Duration::from_secs(1));
        }
    }

    /// A command on a machine: in its network, with a runtime directory of its own.
    fn inside(&self, machine: &Machine, program: &Path) -> Command {
        let runtime = Path::new(STATE).join(&machine.name);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &machine.namespace()]).arg(program);
        command.env("FARMEM_CONTROLLER", self.rack.controller()).env("FARMEM_TRANSPORT", "tcp");
        command.env("FARMEM_LAB_DISK", disk(machine));
        // A directory that is not there is told by whoever needs it.
        if fs::create_dir_all(&runtime).is_ok() {
            command.env("XDG_RUNTIME_DIR", runtime);
        }
        command
    }

    /// Lets a fault happen.
    pub fn happen(&self, machine: &Machine, fault: &Fault) -> Result<()> {
        if let Fault::Delay(ms) = fault {
            self.delay(machine, *ms)?;
        }
        for call in network(machine, fault) {
            tool(&call[0], &call[1..])?;
        }
        match fault {
            Fault::Stop => signal(machine, "STOP"),
            Fault::Go => signal(machine, "CONT"),
            Fault::Kill => signal(machine, "KILL"),
            Fault::Start => {
                ensure!(pids(&machine.namespace())?.is_empty(), "{} runs already: kill it first", machine.name);
                self.start(machine)
            }
            Fault::Full => fill(&disk(machine)),
            Fault::Heal => {
                end_relay(machine)?;
                let filler = disk(machine).join(FILLER);
                if filler.exists() { fs::remove_file(filler).context("cannot empty the disk") } else { Ok(()) }
            }
            Fault::Cut | Fault::Reject | Fault::Rate(_) | Fault::Loss(_) | Fault::Delay(_) => Ok(()),
        }
    }

    /// Starts what delays a machine's answers, in place of what does so already.
    fn delay(&self, machine: &Machine, ms: u64) -> Result<()> {
        let [listen, to] = relay(machine).context("nobody connects to a host: delay a node or a controller")?;
        end_relay(machine)?;
        let own = std::env::current_exe().context("this program has no name")?;
        let mut command = self.inside(machine, &own);
        command.args(["relay", "--listen", &listen, "--to", &to, "--late-ms", &ms.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        fs::write(relay_file(machine), child.id().to_string())?;
        let began = Instant::now();
        while !listens(machine, &listen)? {
            ensure!(began.elapsed() < BEGINNING, "the relay does not listen at {listen}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

/// The directory of a machine's disk.
fn disk(machine: &Machine) -> PathBuf {
    Path::new(STATE).join(&machine.name).join("disk")
}

fn relay_file(machine: &Machine) -> PathBuf {
    Path::new(STATE).join(&machine.name).join("relay")
}

/// Whether anything listens at an address of a machine.
fn listens(machine: &Machine, at: &str) -> Result<bool> {
    let said = Command::new("ip").args(["netns", "exec", &machine.namespace(), "ss", "-Hltn"]).output()?;
    Ok(String::from_utf8_lossy(&said.stdout).split_whitespace().any(|word| word == at))
}

/// Ends what delays a machine's answers, if anything does.
fn end_relay(machine: &Machine) -> Result<()> {
    let Ok(pid) = fs::read_to_string(relay_file(machine)) else { return Ok(()) };
    fs::remove_file(relay_file(machine))?;
    // `ip netns exec` has become the relay. It is ended only if it is still there.
    if pids(&machine.namespace())?.contains(&pid) {
        tool("kill", &["-KILL".to_owned(), pid])?;
    }
    Ok(())
}

/// Takes all room of a disk.
fn fill(disk: &Path) -> Result<()> {
    let mut filler = fs::File::create(disk.join(FILLER))?;
    let zeros = vec![0; 1 << 20];
    loop {
        match std::io::Write::write_all(&mut filler, &zeros) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(e) => return Err(e).context("cannot fill the disk"),
        }
    }
}

impl Drop for Machines {
    /// Takes everything away. What cannot be taken is left: there is nobody to tell but the terminal.
    fn drop(&mut self) {
        if !self.is_ours {
            return;
        }
        for namespace in self.rack.namespaces() {
            if let Ok(pids) = pids(&namespace) {
                let _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status();
            }
            let _ = Command::new("ip").args(["netns", "delete", &namespace]).stderr(Stdio::null()).status();
        }
        for machine in &self.rack.machines {
            let _ = Command::new("umount").arg(disk(machine)).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(STATE);
    }
}

fn signal(machine: &Machine, name: &str) -> Result<()> {
    let pids = pids(&machine.namespace())?;
    ensure!(!pids.is_empty(), "nothing runs on {}", machine.name);
    let mut arguments = vec![format!("-{name}")];
    arguments.extend(pids);
    tool("kill", &arguments)
}

fn pids(namespace: &str) -> Result<Vec<String>> {
    let listed = Command::new("ip").args(["netns", "pids", namespace]).output().context("cannot run ip")?;
    Ok(String::from_utf8_lossy(&listed.stdout).split_whitespace().map(str::to_owned).collect())
}

fn tool(program: &str, arguments: &[String]) -> Result<()> {
    let ran = Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !ran.status.success() {
        let said = String::from_utf8_lossy(&ran.stderr);
        bail!("{program} {}: {}", arguments.join(" "), said.trim());
    }
    Ok(())
}
