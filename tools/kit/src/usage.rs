//! Marks the errors that the caller of a tool can mend by other arguments.

use std::fmt;

/// The caller asked for something that cannot be. `farmem` ends with status 64 for it.
#[derive(Debug)]
pub struct Usage(String);

impl Usage {
    /// Marks an error as one of usage. Its text stays the same.
    #[must_use]
    pub fn of(error: anyhow::Error) -> anyhow::Error {
        Usage(format!("{error:#}")).into()
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
