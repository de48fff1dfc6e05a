//! Generators: processes of their own, each with some of the connections, or with the store itself.
//!
//! ```text
//! this process ── a task, as JSON ──► generator ── requests ──► the system
//!              ◄─ the figures ───────┘
//! ```
//!
//! All begin a task when they are told, and end it by their own clock. One that waits for a task
//! tends its store, so that the others do not take it for dead.

use std::io::{BufRead, BufReader, Lines, Write, stdin};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::load::{self, Measured};
use crate::mix::{Keys, Mix, Stream};
use crate::systems::{self, Settings};
use crate::wire::{Protocol, Socket, Wire};
use anyhow::{Context, Result, bail};
use farmem_kit::supervise::Group;
use serde::{Deserialize, Serialize};

/// Between looks after a store that waits for a task.
const TEND: Duration = Duration::from_millis(200);

/// How a generator reaches the system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// By connections to a port.
    Port(Protocol, u16),
    /// By the library, at a node.
    Library {
        /// The node's address.
        node: String,
        /// Bytes of the near cache.
        local: u64,
    },
}

/// A generator's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// How it reaches the system.
    pub reach: Reach,
    /// Its connections.
    pub clients: usize,
    /// Bytes of a value.
    pub bytes: usize,
}

/// A task for a generator.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Task {
    /// Writes each key of a range once.
    Fill(u64, u64),
    /// Asks for a while.
    Run {
        /// Which requests.
        mix: Mix,
        /// On which keys.
        keys: Keys,
        /// Keys that are there: all below.
        records: u64,
        /// Requests under way on each connection.
        depth: usize,
        /// Of the draws.
        seed: u64,
        /// Milliseconds.
        ms: u64,
        /// Which of all generators it is, and their number.
        place: (u64, u64),
    },
}

/// A generator's answer to a task.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    found: Measured,
    /// All keys below are there.
    records: u64,
}

fn wires(part: &Part) -> Result<Vec<Box<dyn Wire>>> {
    match &part.reach {
        Reach::Port(protocol, port) => (0..part.clients)
            .map(|_| -> Result<Box<dyn Wire>> { Ok(Box::new(Socket::connect(*protocol, *port)?)) })
            .collect(),
        Reach::Library { node, local } => Ok(vec![Box::new(systems::store(*local, None, node)?)]),
    }
}

fn carry_out(part: &Part, wires: &mut [Box<dyn Wire>], task: Task) -> Result<Answer> {
    Ok(match task {
        Task::Fill(first, end) => {
            load::fill(wires, first..end, part.bytes)?;
            Answer { found: Measured::default(), records: end }
        }
        Task::Run { mix, keys, records, depth, seed, ms, place } => {
            let mut stream = Stream::new(mix, keys, records, seed).shared(place);
            let found = load::run(wires, &mut stream, depth, part.bytes, Duration::from_millis(ms))?;
            Answer { found, records: stream.records() }
        }
    })
}

/// Is a generator: takes tasks from standard input until that ends.
///
/// # Errors
/// As the system's.
pub fn serve(part: &str) -> Result<()> {
    let part: Part = serde_json::from_str(part).context("the part of a generator")?;
    let mut wires = wires(&part)?;
    let (send, tasks) = channel();
    std::thread::spawn(move || stdin().lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    println!("ready");
    loop {
        match tasks.recv_timeout(TEND) {
            Ok(line) => {
                let answer = carry_out(&part, &mut wires, serde_json::from_str(&line)?)?;
                println!("{}", serde_json::to_string(&answer)?);
            }
            Err(RecvTimeoutError::Timeout) => wires.iter_mut().try_for_each(|wire| wire.tend())?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// A generator, as this process sees it.
struct Generator {
    tasks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    group: Group,
}

impl Generator {
    fn start(lab: &Path, part: &Part) -> Result<Generator> {
        let mut command = Command::new(lab);
        command.args(["bench", "kv", "--generator", &serde_json::to_string(part)?]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut group = Group::start(&mut command).context("cannot start a generator")?;
        let tasks = group.process().stdin.take().context("a pipe")?;
        let answers = BufReader::new(group.process().stdout.take().context("a pipe")?).lines();
        Ok(Generator { tasks, answers, group })
    }

    fn line(&mut self) -> Result<String> {
        self.answers.next().context("a generator has ended: its reason stands above")?.context("a generator")
    }

    fn tell(&mut self, task: Task) -> Result<()> {
        writeln!(self.tasks, "{}", serde_json::to_string(&task)?).context("a generator takes no task")
    }
}

/// The generators of a system.
pub struct Generators(Vec<Generator>);

impl Generators {
    /// Starts one for each way, with the connections divided among them.
    ///
    /// # Errors
    /// One does not reach the system.
    pub fn start(settings: &Settings, ways: &[Reach], bytes: usize) -> Result<Generators> {
        let clients = (settings.clients / ways.len()).max(1);
        let part = |reach: &Reach| Part { reach: reach.clone(), clients, bytes };
        let all = ways.iter().map(|reach| Generator::start(&settings.farmem, &part(reach)));
        let mut all = all.collect::<Result<Vec<_>>>()?;
        for generator in &mut all {
            let said = generator.line()?;
            if said != "ready" {
                bail!("a generator said {said:?}");
            }
        }
        Ok(Generators(all))
    }

    /// Their processes.
    pub fn processes(&mut self) -> Vec<u32> {
        self.0.iter_mut().map(|generator| generator.group.process().id()).collect()
    }

    /// Writes all keys below `records` once.
    ///
    /// # Errors
    /// As the system's.
    pub fn fill(&mut self, records: u64) -> Result<()> {
        let count = self.0.len() as u64;
        self.all(|n| Task::Fill(records * n / count, records * (n + 1) / count)).map(drop)
    }

    /// Has all ask at once. `task` is each one's, by its number. Returns the figures of all, and
    /// the number below which all keys are there.
    ///
    /// # Errors
    /// As the system's.
    pub fn run(&mut self, task: impl Fn(u64) -> Task) -> Result<(Measured, u64)> {
        let answers = self.all(task)?;
        let records = answers.iter().map(|answer| answer.records).min().unwrap_or_default();
        Ok((answers.into_iter().map(|answer| answer.found).fold(Measured::default(), Measured::beside), records))
    }

    fn all(&mut self, task: impl Fn(u64) -> Task) -> Result<Vec<Answer>> {
        for (n, generator) in self.0.iter_mut().enumerate() {
            generator.tell(task(n as u64))?;
        }
        self.0.iter_mut().map(|generator| Ok(serde_json::from_str(&generator.line()?)?)).collect()
    }
}
