//! `--token` and `--plain`: the token by which a command borrows, and whether it encrypts.

use std::path::{Path, PathBuf};

use farmem_fabric::Trust;
use farmem_trust::Key;

use crate::failure::Failure;
use crate::settings::Settings;

/// The token that a command borrows by.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Flag {
    /// The file of the token by which to borrow, where a node asks for one
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,

    /// With a token, too, do not encrypt what goes over tcp: it can be read and changed on its way
    #[arg(long)]
    pub plain: bool,
}

impl Flag {
    /// The file, by the flag, the variable FARMEM_TOKEN or a configuration file.
    pub fn file(&self, settings: &Settings) -> Result<Option<PathBuf>, Failure> {
        let read = |text: &str| Ok::<_, String>(PathBuf::from(text));
        let named = settings.choose("token", self.token.clone(), read)?.map(|(path, _)| path);
        named.map(std::path::absolute).transpose().map_err(Failure::usage)
    }

    /// The key of the token, and whether connections are encrypted.
    pub fn trust(&self) -> Result<Trust, Failure> {
        let token = self.file(&Settings::load()?)?.as_deref().map(key).transpose()?;
        Ok(trust(token, self.plain))
    }
}

/// A token, and whether it is used without encryption: then one line says what that gives up.
pub fn trust(token: Option<Key>, plain: bool) -> Trust {
    if plain && token.is_some() {
        eprintln!("farmem: --plain: what goes over tcp can be read and changed on its way");
    }
    Trust { token, plain }
}

/// The key of the token in a file.
pub fn key(path: &Path) -> Result<Key, Failure> {
    farmem_trust::file::token(path).map_err(|e| Failure::usage(format!("--token {e}")))
}
