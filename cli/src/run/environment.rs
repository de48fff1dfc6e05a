//! What the program's processes find in their environment.
//!
//! `LD_PRELOAD` brings the library in, `FARMEM_RUN` tells it what run it is in
//! (`docs/design/interfaces.md`). Both are inherited, so that the program's
//! children run on far memory too.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;

use super::Options;
use super::far::{self, Far, RunName};
use super::plan::Plan;
use crate::failure::Failure;

/// Who serves page faults.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Faults {
    /// The thread that faulted, in its signal handler
    Inline,
    /// A handler thread: slower, for kernels and programs where inline cannot work
    Thread,
}

/// Whether pages are fetched ahead.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Prefetch {
    /// Along sequences, strides and trends
    On,
    /// Only pages that the program waits for
    Off,
}

/// How changed bytes of pages are told.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Dirty {
    /// What was measured to be fastest for the transport
    Auto,
    /// Without any chance of missing a write: by the fault of a first write, or against the node's own copy
    Exact,
    /// By line: 64 keyed bits of each, compared when the page leaves (misses one in 2^62)
    Lines,
    /// Not at all: every page that leaves is written back
    None,
}

impl std::fmt::Display for Dirty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&word(*self))
    }
}

/// Policies of `--dirty` that were removed, and those to use instead.
const REMOVED: [(&str, &str); 2] = [("shadow", "lines"), ("pages", "exact")];

/// Reads `--dirty`. A policy that was removed is refused with the name of another.
#[derive(Clone)]
pub struct DirtyParser;

impl TypedValueParser for DirtyParser {
    type Value = Dirty;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<Dirty, clap::Error> {
        if let Some((name, instead)) = REMOVED.iter().find(|(name, _)| value == *name) {
            let told = format!("--dirty {name} was removed, for it was nowhere the fastest: use --dirty {instead}\n");
            return Err(clap::Error::raw(ErrorKind::ValueValidation, told));
        }
        EnumValueParser::<Dirty>::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(Dirty::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// How far memory is protected against the loss of a node.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Protect {
    /// One copy of each page
    None,
    /// Two copies, at different nodes
    Mirror,
}

/// How bytes move.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Transport {
    /// Shared memory with a node on this machine, if it is of the same user or listens on a socket that may be opened;
    /// else RDMA, if both ends have a card and it works; else tcp
    Auto,
    /// Shared memory, or not at all
    Shm,
    /// The wire protocol, even to a node on this machine
    Tcp,
    /// RDMA, or not at all
    Verbs,
}

impl From<Transport> for farmem_fabric::Transport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => farmem_fabric::Transport::Auto,
            Transport::Shm => farmem_fabric::Transport::Shm,
            Transport::Tcp => farmem_fabric::Transport::Tcp,
            Transport::Verbs => farmem_fabric::Transport::Verbs,
        }
    }
}

fn word(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|known| known.get_name().to_owned()).unwrap_or_default()
}

/// What libraries of message passing are told unless the user tells them something else: that one process does not copy
/// from another's memory by itself (`process_vm_readv`, *cross-memory attach*). The kernel copies resident pages only, and
/// such libraries take that for an error, or try for ever. They copy through memory that they share instead.
const MESSAGES: [(&str, &str); 5] = [
    // Open MPI to release 4, and from 5 on.
    ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),
    ("OMPI_MCA_smsc", "^cma"),
    // MPICH, and Intel MPI.
    ("MPIR_CVAR_CH4_CMA_ENABLE", "0"),
    ("I_MPI_SHM_CMA", "0"),
    // Below any of them.
    ("UCX_TLS", "^cma"),
];

/// Sets the environment of a program about to be started.
pub fn set(
    command: &mut Command,
    library: &Path,
    options: &Options,
    plan: &Plan,
    run: RunName,
    far: &Far,
    (counters, sites): (&Path, Option<&Path>),
) -> Result<(), Failure> {
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut fields = vec![
        ("v", "1".to_owned()),
        ("run", run.to_string()),
        ("local", plan.local.to_string()),
        ("node", far::list(far.nodes())),
        ("relayed", (far.is_relayed() as u8).to_string()),
        ("transport", word(plan.transport)),
        ("fault", word(options.fault)),
        ("prefetch", word(options.prefetch)),
        ("dirty", word(options.dirty)),
        ("counters", counters.display().to_string()),
        ("grace_ms", plan.grace.as_millis().to_string()),
    ];
    if plan.protect != Protect::None {
        fields.push(("protect", word(plan.protect)));
    }
    if options.node_file.is_some() || plan.controller.is_some() {
        fields.push(("changes", "1".to_owned()));
    }
    if let Some(sites) = sites {
        fields.push(("sites", sites.display().to_string()));
    }
    if let Some(rate) = options.shape {
        fields.push(("shape", rate.to_string()));
    }
    if let Some(mask) = &options.mask {
        fields.push(("mask", mask.clone()));
    }
    if let Some(trace) = &options.trace {
        // The program may change its directory before the library opens the file.
        let trace = std::path::absolute(trace).map_err(Failure::usage)?;
        make_way(&trace).map_err(|e| Failure::usage(format!("cannot record to {}: {e}", trace.display())))?;
        fields.push(("trace", trace.display().to_string()));
    }
    if let Some(sample) = &plan.sample {
        fields.extend([("trace", sample.display().to_string()), ("sample", "1".to_owned())]);
    }
    for (key, value) in &fields {
        if value.contains([';', '\0']) {
            return Err(Failure::usage(format!("{key} '{value}' contains a semicolon, which farmem cannot pass on")));
        }
    }
    let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
    command.env("LD_PRELOAD", preload).env("FARMEM_RUN", fields.join(";"));
    for (name, value) in MESSAGES {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    Ok(())
}

/// Sees to it that the library can create a trace at a path: an older one goes, and what stands against it is
/// told now rather than by the program's end.
fn make_way(trace: &Path) -> std::io::Result<()> {
    if std::fs::metadata(trace).is_ok_and(|it| !it.is_file()) {
        return Err(std::io::Error::other("it exists and is not a file"));
    }
    std::fs::File::create(trace)?;
    std::fs::remove_file(trace)
}

/// A command line as one text, for people to recognize.
pub fn command_line(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_pasted_into_a_shell() {
        let words = ["sh", "-c", "echo it's", ""].map(OsString::from);
        assert_eq!(command_line(&words), r"sh -c 'echo it'\''s' ''");
    }
}
