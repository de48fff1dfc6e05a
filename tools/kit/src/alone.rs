//! One benchmark at a time on a machine.
//!
//! Two at once would measure each other, and their swap areas are the machine's:
//! while one is on, every group swaps to it, the other benchmark's too. So each
//! holds a lock on one file, which the kernel releases however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

use anyhow::{Context, bail};

const FILE: &str = "/tmp/farmem-bench.lock";

/// The right to measure, until dropped.
#[derive(Debug)]
pub struct Alone {
    _locked: File,
}

impl Alone {
    /// Takes it.
    ///
    /// # Errors
    /// Another benchmark is running (wait for its end), or the lock's file cannot be opened.
    pub fn take() -> anyhow::Result<Alone> {
        Alone::take_at(Path::new(FILE))
    }

    fn take_at(path: &Path) -> anyhow::Result<Alone> {
        // Opened before it is made: in /tmp the kernel may refuse even root to open somebody else's
        // file when the call could also have made it. A lock needs no right to write.
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                OpenOptions::new().write(true).create(true).truncate(false).open(path)
            }
            opened => opened,
        };
        let file =
            file.with_context(|| format!("opening {}, by which benchmarks exclude each other", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Alone { _locked: file }),
            Err(TryLockError::WouldBlock) => bail!(
                "another farmem-lab bench is running on this machine; the two would measure each other: start this one when it has ended"
            ),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_until_the_first_is_gone() {
        let path = std::env::temp_dir().join(format!("farmem-alone-{}", std::process::id()));
        let first = Alone::take_at(&path).unwrap();
        let refused = Alone::take_at(&path).unwrap_err().to_string();
        assert!(refused.contains("another farmem-lab bench"), "{refused}");
        drop(first);
        // A child that another test forks has the lock, too, until it executes its program.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while let Err(refused) = Alone::take_at(&path) {
            assert!(std::time::Instant::now() < until, "{refused}");
            std::thread::yield_now();
        }
        std::fs::remove_file(&path).unwrap();
    }
}
