//! `farmem lab …`: the commands of `farmem-lab`, where it is installed.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;

/// Try, measure and prove: the commands of farmem-lab, where it is installed
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub struct Options {
    /// The command and its arguments; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub arguments: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  sudo farmem lab up --nodes 3
      A rack on this machine, in network namespaces.
  farmem lab bench paging --quick
      What an access to far memory costs.";

/// Becomes `farmem-lab`: the one beside this binary, else the one in `PATH`.
pub fn run(options: &Options) -> Result<(), Failure> {
    let beside = std::env::current_exe().ok().map(|farmem| farmem.with_file_name("farmem-lab"));
    let lab = beside.filter(|lab| lab.is_file()).unwrap_or_else(|| PathBuf::from("farmem-lab"));
    let failed = Command::new(&lab).args(&options.arguments).exec();
    Err(Failure::usage(format!(
        "cannot start farmem-lab ({failed}): cargo install --path lab/cli, in farmem's source, installs it"
    )))
}
