//! Files that hold a secret. Commands, agents and libraries read them at start. A file that others
//! may read is refused.

use crate::{Key, NoToken, Token};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The variable that names the file of the token by which a program borrows.
pub const VARIABLE: &str = "FARMEM_TOKEN";

/// Why a file with a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    /// Others may read it.
    #[error("{0}: others may read it, and it holds a secret: chmod 600 {0}")]
    Mode(PathBuf),
    /// It holds no token.
    #[error("{0}: {1}")]
    Content(PathBuf, NoToken),
}

/// Reads a file that holds a secret.
///
/// # Errors
/// [`FileError::Mode`] if others may read it ([`is_private`]).
pub fn secret(path: &Path) -> Result<String, FileError> {
    let failed = |e| FileError::File(path.to_owned(), e);
    let mut file = File::open(path).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.is_file() && !is_private(about.mode(), about.uid()) {
        return Err(FileError::Mode(path.to_owned()));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// Whether a file's mode keeps a secret: only its owner has rights. If root owns the file, a group
/// may read it: Kubernetes and systemd hand secrets to a service in a group of its own.
fn is_private(mode: u32, owner: u32) -> bool {
    let group = if owner == 0 { 0o040 } else { 0 };
    mode & 0o077 & !group == 0
}

/// The key of the token in a file.
///
/// # Errors
/// As [`secret`], and [`FileError::Content`].
pub fn token(path: &Path) -> Result<Key, FileError> {
    let token = secret(path)?.parse::<Token>();
    token.map(|token| token.key()).map_err(|e| FileError::Content(path.to_owned(), e))
}

/// The key of the token in the file that [`VARIABLE`] names. `None`: the variable is not set.
///
/// # Errors
/// As [`token`].
pub fn of_environment() -> Result<Option<Key>, FileError> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    named.map(|path| token(Path::new(&path))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_owners_alone_or_of_a_group_that_root_chose() {
        assert!(is_private(0o100600, 1000) && is_private(0o100400, 0) && is_private(0o100440, 0));
        for (mode, owner) in [(0o100440, 1000), (0o100604, 0), (0o100644, 0), (0o100660, 0), (0o100601, 1000)] {
            assert!(!is_private(mode, owner), "{mode:o} of {owner}");
        }
    }
}
