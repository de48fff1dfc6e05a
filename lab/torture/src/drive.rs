//! `farmem-lab torture`: starts the tortured program under `farmem run`, and says how it ended.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::child::{Child, PATIENCE};
use crate::report::STUCK;

/// Do everything to far memory at once, and compare every byte with a model
#[derive(clap::Args, Debug)]
pub struct Torture {
    /// Local memory: a share of the memory under torture (5%), or a size.
    #[arg(long, default_value = "5%")]
    local: String,
    /// shm, tcp, or both in turn.
    #[arg(long, default_value = "both")]
    transport: String,
    /// How faults are served: inline or thread.
    #[arg(long, default_value = "inline")]
    fault: String,
    /// How changed bytes are told: as `farmem run --dirty` has it.
    #[arg(long, default_value = "auto")]
    dirty: String,
    /// A node to use; without one each run starts its own.
    #[arg(long)]
    node: Option<String>,
    /// Without farmem: torture of the kernel, to know that the test itself is right.
    #[arg(long)]
    native: bool,
    /// Seconds for each transport.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// The seed; by default one from the clock, which is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Threads. One is the program's first and only.
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Memory of each thread, MiB.
    #[arg(long, default_value_t = 32)]
    mib: usize,
    /// Kernel features to do without, as `farmem run --mask` has it
    #[arg(long, value_name = "FEATURES", hide = true)]
    mask: Option<String>,
    /// Also run on stacks in far memory.
    #[arg(long)]
    far_stacks: bool,
    /// Also let signals arrive, a thousand a second.
    #[arg(long)]
    signals: bool,
}

impl Torture {
    /// Runs it; returns the exit status: 0 if every byte was right.
    ///
    /// # Errors
    /// If a run cannot be started.
    pub fn run(&self) -> Result<i32> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
        let seed = self.seed.unwrap_or_else(clock);
        let transports: &[&str] = match self.transport.as_str() {
            _ if self.native => &["native"],
            "both" => &["shm", "tcp"],
            "shm" => &["shm"],
            "tcp" => &["tcp"],
            other => bail!("--transport is shm, tcp or both, not {other}"),
        };
        for transport in transports {
            let replay = self.replay(seed, transport);
            eprintln!("{replay}");
            let started = Instant::now();
            let mut command = self.command(seed, transport, replay)?;
            farmem_sys::process::end_with_us(&mut command, libc::SIGTERM);
            let mut run = command.spawn().context("cannot start the run")?;
            // It watches itself; with one thread it cannot.
            let latest = started + Duration::from_secs(self.seconds) + 5 * PATIENCE;
            let status = loop {
                match run.try_wait().context("cannot wait for the run")? {
                    Some(status) => break status,
                    None if Instant::now() > latest => {
                        // It ends with us.
                        eprintln!("torture: STUCK");
                        return Ok(STUCK);
                    }
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            };
            let code = status.code().unwrap_or(1);
            if code != 0 {
                eprintln!("torture: {transport} ended with {status} after {:.0?}", started.elapsed());
                return Ok(code);
            }
        }
        Ok(0)
    }

    fn replay(&self, seed: u64, transport: &str) -> String {
        let mut line = format!(
            "farmem-lab torture --seed {seed} --seconds {} --threads {} --mib {}",
            self.seconds, self.threads, self.mib
        );
        match self.native {
            true => line += " --native",
            false => {
                line += &format!(
                    " --local {} --transport {transport} --fault {} --dirty {}",
                    self.local, self.fault, self.dirty
                )
            }
        }
        if let Some(mask) = &self.mask {
            line += &format!(" --mask {mask}");
        }
        for (on, flag) in [(self.far_stacks, " --far-stacks"), (self.signals, " --signals")] {
            line += if on { flag } else { "" };
        }
        line
    }

    fn command(&self, seed: u64, transport: &str, replay: String) -> Result<Command> {
        let child = Child {
            seed,
            seconds: self.seconds,
            threads: self.threads,
            mib: self.mib,
            far_stacks: self.far_stacks,
            signals: self.signals,
            replay,
        };
        let this = std::env::current_exe().context("cannot tell which program this is")?;
        let mut command = Command::new(&this);
        if !self.native {
            command.args(["run", "--no-settings", "--local", &self.local_bytes(&child)?]);
            command.args(["--transport", transport, "--fault", &self.fault, "--dirty", &self.dirty]);
            if let Some(mask) = &self.mask {
                command.args(["--mask", mask]);
            }
            if let Some(node) = &self.node {
                command.args(["--node", node]);
            }
            command.arg("--").arg(&this);
        }
        command.args(["torture-child", "--seed", &seed.to_string(), "--seconds", &self.seconds.to_string()]);
        command.args(["--threads", &self.threads.to_string(), "--mib", &self.mib.to_string()]);
        command.args(["--replay", &child.replay]);
        for (on, flag) in [(self.far_stacks, "--far-stacks"), (self.signals, "--signals")] {
            if on {
                command.arg(flag);
            }
        }
        Ok(command)
    }

    /// `--local` in bytes: a share is one of the memory under torture, which only we know.
    fn local_bytes(&self, child: &Child) -> Result<String> {
        let Some(percent) = self.local.strip_suffix('%') else { return Ok(self.local.clone()) };
        let share: f64 = percent.parse().with_context(|| format!("--local {}", self.local))?;
        Ok(format!("{}", (child.bytes() as f64 * share / 100.0) as u64))
    }
}
