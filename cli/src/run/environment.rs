//! The environment of the program's processes.
//!
//! `LD_PRELOAD` brings the library in, `FARMEM_RUN` tells it what run it is in
//! ([`RunSpec`]). Both are inherited, so that the program's
//! children run on far memory too.

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::path::Path;
use std::process::Command;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use farmem_run::{Choice, Dirty, RunSpec};

use super::far::{Far, RunName};
use super::plan::Plan;
use crate::failure::Failure;

/// Reads a setting that is one of several names, and lists them in help.
#[derive(Clone)]
pub struct Names<C>(PhantomData<C>);

/// The parser of a setting that is one of several names.
pub fn names<C: Choice>() -> Names<C> {
    Names(PhantomData)
}

impl<C: Choice + Send + Sync> TypedValueParser for Names<C> {
    type Value = C;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&clap::Arg>, value: &OsStr) -> Result<C, clap::Error> {
        let known = PossibleValuesParser::new(possible::<C>()).parse_ref(command, arg, value)?;
        C::named(&known).ok_or_else(|| clap::Error::new(ErrorKind::InvalidValue).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(possible::<C>()))
    }
}

fn possible<C: Choice>() -> impl Iterator<Item = PossibleValue> {
    C::ALL.iter().map(|(_, name, help)| PossibleValue::new(*name).help(*help))
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
        names::<Dirty>().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(possible::<Dirty>()))
    }
}

/// Settings for libraries of message passing, unless the user sets something else: no process
/// copies from another's memory by itself (`process_vm_readv`, *cross-memory attach*). The kernel
/// copies resident pages only. Such libraries take that for an error, or try for ever. They copy
/// through memory that they share instead.
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
    if let Some(trace) = plan.spec.trace.as_ref().filter(|_| !plan.spec.sample) {
        make_way(trace.as_ref()).map_err(|e| Failure::usage(format!("cannot record to {trace}: {e}")))?;
    }
    let spec = RunSpec {
        run: run.bits(),
        nodes: far.nodes().to_vec(),
        relayed: far.is_relayed(),
        counters: Some(counters.display().to_string()),
        sites: sites.map(|file| file.display().to_string()),
        ..plan.spec.clone()
    };
    let text = spec.to_text().map_err(Failure::usage)?;
    command.env("LD_PRELOAD", preload).env("FARMEM_RUN", text);
    for (name, value) in MESSAGES {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    Ok(())
}

/// Sees to it that the library can create a trace at a path: an older one goes, and what stands
/// against it is told now rather than by the program's end.
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
