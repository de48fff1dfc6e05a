//! References of a real program, by way of QEMU.
//!
//! `qemu-x86_64` translates the program's code and calls a plugin for each load and store. The
//! plugin (`farmem-recorder`) fills chunks of shared memory, which are read here while the program
//! runs. Its threads run at the same time; in the trace they alternate by chunks of some 8,000
//! references.

use crate::decode::decode;
use crate::reference::{Event, Sink};
use anyhow::{Context, Result, bail};
use farmem_recorder::launch::{self, Plan, Recorder, Unusable};
use farmem_recorder::library::Library;
use farmem_recorder::ring::Ring;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;

/// How long to sleep for a chunk before looking whether the program has ended.
const WAIT_NS: u64 = 10_000_000;
/// Chunks read before looking whether the program has ended.
const BATCH: usize = 64;

/// A QEMU that takes plugins, and a program that it can run.
pub struct Qemu {
    qemu: PathBuf,
    plan: Plan,
}

/// The outcome of a recording.
pub enum Outcome {
    /// The program ended, and its references were told.
    Recorded,
    /// QEMU did not take the plugin. The program has not run; QEMU has said why.
    Refused,
}

impl Qemu {
    /// Finds QEMU for `program`.
    ///
    /// # Errors
    /// Says in a few words why it cannot be used.
    pub fn find(program: &[OsString]) -> Result<Qemu, String> {
        let qemu = launch::locate(OsStr::new("qemu-x86_64"))
            .ok_or("there is no qemu-x86_64 here (Debian: apt-get install qemu-user)")?;
        let help = Command::new(&qemu).arg("--help").stdin(Stdio::null()).output();
        let takes_plugins = |text: &[u8]| text.windows(7).any(|word| word == b"-plugin");
        if !help.is_ok_and(|help| takes_plugins(&help.stdout)) {
            return Err(format!("{} takes no plugins", qemu.display()));
        }
        let name = program[0].to_string_lossy();
        let file = launch::locate(&program[0]).ok_or_else(|| format!("{name} is not there"))?;
        let plan = match launch::plan(&file, program.to_vec()) {
            Ok(plan) => plan,
            Err(Unusable::Other(what)) => return Err(format!("{name} {what}")),
            // Neither ELF nor a script that says by what: a shell's.
            Err(Unusable::Refused) => {
                let arguments = [OsString::from("sh"), file.into_os_string()].into_iter();
                let arguments = arguments.chain(program[1..].iter().cloned()).collect();
                Plan { file: "/bin/sh".into(), arguments }
            }
        };
        Ok(Qemu { qemu, plan })
    }

    /// Runs the program with the plugin, whose library is `plugin`, and tells `sink` its
    /// references. The program's output goes to standard error. Programs that it executes are
    /// followed; children that it forks only if `follow`.
    ///
    /// # Errors
    /// When the program cannot be started or fails, or the sink takes no more.
    pub fn run(self, plugin: &[u8], follow: bool, sink: &mut dyn Sink) -> Result<Outcome> {
        let library = Library::new(plugin).context("no memory for QEMU's plugin")?;
        let ring = Ring::create().context("no memory for references")?;
        let here = |fd: i32| PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
        let name = self.plan.arguments[0].to_string_lossy().into_owned();
        let program = self.plan.file.clone();
        let recorder =
            Recorder { qemu: self.qemu, library: here(library.fd()), ring: here(ring.fd()), follow, program };
        let environment: Vec<OsString> =
            std::env::vars_os().map(|(name, value)| [name, value].join(OsStr::new("="))).collect();
        let (arguments, environment) = recorder.command_line(self.plan, &environment);
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).env_clear().envs(environment.iter().filter_map(|variable| split(variable)));
        command.stdout(std::io::stderr());
        farmem_sys::process::end_with_us(&mut command, 15);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", recorder.qemu.display()))?;
        let mut references = 0;
        let status = attend(&mut child, &ring, sink, &mut references);
        if status.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = status?;
        if ring.begun() == 0 && !status.success() {
            return Ok(Outcome::Refused);
        }
        ring.end(|words, instructions| references += told(words, instructions, sink));
        sink.check()?;
        if ring.had_too_many_threads() {
            bail!("{name} has more than {} threads, which is more than can be recorded", farmem_recorder::ring::CHUNKS);
        }
        if !status.success() {
            bail!("{name} ended with {status} under {}", recorder.qemu.display());
        }
        if references == 0 {
            bail!("{name} made no reference that QEMU saw");
        }
        match ring.unseen() {
            0 => {}
            n => {
                eprintln!("{n} programs that {name} executed are not x86-64, or change privileges: they ran unrecorded")
            }
        }
        Ok(Outcome::Recorded)
    }
}

fn split(variable: &OsStr) -> Option<(OsString, OsString)> {
    let at = variable.as_bytes().iter().skip(1).position(|&byte| byte == b'=')? + 1;
    let (name, value) = variable.as_bytes().split_at(at);
    Some((OsString::from_vec(name.to_vec()), OsString::from_vec(value[1..].to_vec())))
}

/// Reads chunks until the program ends.
fn attend(child: &mut Child, ring: &Ring, sink: &mut dyn Sink, references: &mut u64) -> Result<ExitStatus> {
    loop {
        let read =
            (0..BATCH).take_while(|_| ring.read(|words, instructions| *references += told(words, instructions, sink)));
        let is_idle = read.count() == 0;
        sink.check()?;
        if let Some(status) = child.try_wait().context("waiting for QEMU")? {
            return Ok(status);
        }
        if is_idle {
            ring.wait(WAIT_NS);
        }
    }
}

/// Tells the sink a chunk. Returns the number of its references.
fn told(words: &[AtomicU64], instructions: u64, sink: &mut dyn Sink) -> u64 {
    let mut references = 0;
    decode(words, |reference| {
        sink.take(Event::Reference(reference));
        references += 1;
    });
    sink.take(Event::Instructions(instructions));
    references
}
