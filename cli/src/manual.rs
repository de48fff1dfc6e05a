//! Man pages and shell completions, for packages: made from the same flags that the program reads.

use std::fs;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Farmem;
use crate::failure::Failure;

/// Write man pages and shell completions into a directory
#[derive(clap::Args, Debug)]
pub struct Options {
    directory: PathBuf,
}

/// Writes them.
pub fn write(options: &Options) -> Result<(), Failure> {
    let written = fs::create_dir_all(&options.directory)
        .and_then(|()| clap_mangen::generate_to(Farmem::command(), &options.directory))
        .and_then(|()| {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut Farmem::command(), "farmem", &options.directory)?;
            }
            Ok(())
        });
    written.map_err(|e| Failure { status: 1, line: format!("{}: {e}", options.directory.display()) })
}
