//! How a command of ours fails: one line for people, one status for scripts.

use std::fmt::Display;
use std::io;
use std::path::Path;

use farmem_kit::usage::Usage;
use farmem_run::exit;

/// The end of a command that could not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    /// Exit status: [`exit`]'s, or a shell's 126 and 127.
    pub status: i32,
    /// The problem and its remedy, without a newline.
    pub line: String,
}

impl Failure {
    /// The caller asked for something that cannot be.
    pub fn usage(what: impl Display) -> Self {
        Failure { status: exit::USAGE, line: what.to_string() }
    }

    /// An address is not this command's to listen on.
    pub fn listen(at: impl Display, reason: &io::Error) -> Self {
        match reason.kind() {
            io::ErrorKind::AddrInUse => {
                Failure::usage(format!("cannot listen on {at}: another program listens there: name another port"))
            }
            _ => Failure::usage(format!("cannot listen on {at}: {reason}")),
        }
    }

    /// A file of the run's own cannot be made.
    pub fn file(at: &Path, reason: &io::Error) -> Self {
        let why = match reason.kind() {
            io::ErrorKind::FileTooLarge => "files may not be that long (ulimit -f): allow 70 MiB or more".to_owned(),
            _ => reason.to_string(),
        };
        Failure::usage(format!("cannot make {}: {why}", at.display()))
    }

    /// No node that this run could use.
    pub fn no_node(what: impl Display) -> Self {
        Failure { status: exit::NODE_UNUSABLE, line: what.to_string() }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Failure { status: if error.is::<Usage>() { exit::USAGE } else { 1 }, line: format!("{error:#}") }
    }
}
