//! The keys of tokens, as their files were read last.
//!
//! A stream is dialled while pages wait for it. The content of a token's file may be one of these
//! pages: tmpfs is swapped out as programs are. So a file that has not changed is not read again.
//! What tells of a change is in its inode, which stays in memory.

use farmem_trust::Key;
use farmem_trust::file::{self, FileError};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that was changed less than this before it was read may be changed again without a trace:
/// its time has the grain of a clock's tick.
const SETTLES: Duration = Duration::from_secs(1);

/// By which a change of a file is seen: device, inode, time of its last change.
type Stamp = (u64, u64, i64, i64);

/// A key, and the file as it was before it was read.
struct Known {
    path: PathBuf,
    stamp: Stamp,
    /// The file is what was read, as long as it has this stamp.
    is_sure: bool,
    key: Key,
}

/// The few files that this process was named.
#[derive(Default)]
struct Keys(Vec<Known>);

static KEYS: Mutex<Keys> = Mutex::new(Keys(Vec::new()));

/// The key of the token in a file, which is read if that is needed.
///
/// # Errors
/// The file is not there, others may read it, or it holds no token.
pub(crate) fn key(path: &Path) -> Result<Key, FileError> {
    let about = fs::metadata(path).map_err(|e: io::Error| FileError::File(path.to_owned(), e))?;
    let mut keys = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    keys.get(path, &about, SystemTime::now(), file::token)
}

impl Keys {
    fn get(
        &mut self,
        path: &Path,
        about: &Metadata,
        now: SystemTime,
        read: impl FnOnce(&Path) -> Result<Key, FileError>,
    ) -> Result<Key, FileError> {
        let stamp = (about.dev(), about.ino(), about.ctime(), about.ctime_nsec());
        if let Some(known) = self.0.iter().find(|known| known.path == path && known.stamp == stamp && known.is_sure) {
            return Ok(known.key);
        }
        let key = read(path)?;
        let changed = Duration::new(about.ctime().max(0) as u64, about.ctime_nsec() as u32);
        let is_sure = now.duration_since(UNIX_EPOCH + changed).is_ok_and(|past| past >= SETTLES);
        self.0.retain(|known| known.path != path);
        self.0.push(Known { path: path.to_owned(), stamp, is_sure, key });
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_trust::Token;
    use std::cell::Cell;

    #[test]
    fn a_token_is_read_again_only_when_its_file_was_changed() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-token-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("token");
        fs::write(&path, "one").unwrap();
        let [one, two] = [1, 2].map(|n| Token::new("tenant", &[n; 40]).unwrap().key());
        let (mut keys, reads, now) = (Keys::default(), Cell::new(0), SystemTime::now());
        let mut get = |key: Key, now| {
            let about = fs::metadata(&path).unwrap();
            let read = |_: &Path| {
                reads.set(reads.get() + 1);
                Ok(key)
            };
            (keys.get(&path, &about, now, read).unwrap(), reads.get())
        };
        // Just changed: another change may have the same time.
        assert_eq!([get(one, now), get(two, now), get(one, now + 2 * SETTLES)], [(one, 1), (two, 2), (one, 3)]);
        // Its content may be where only the next stream can bring it back from.
        assert_eq!(get(two, now + 3 * SETTLES), (one, 3));
        // Another file by the same name.
        fs::write(directory.join("new"), "two").unwrap();
        fs::rename(directory.join("new"), &path).unwrap();
        assert_eq!([get(two, now + 9 * SETTLES), get(one, now + 9 * SETTLES)], [(two, 4), (two, 4)]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
