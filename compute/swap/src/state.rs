//! The facts that are needed to watch a device and to undo it: one file for each, in a directory
//! that only root reads.
//!
//! The file is written before the kernel is told anything, and removed last. The watcher of a
//! device holds a lock on its file, which ends with the process.
//!
//! The directory is on tmpfs, whose content the kernel may swap out, to these very devices. A
//! watcher that takes over a device with a dead stream would then wait for a page that waits for
//! it. So the facts are also kept in an attribute of each file, which is never swapped out, and is
//! what is read. The content is for people, and for file systems without such attributes.

use crate::device::Device;
use crate::{Error, report, token};
use farmem_sys::swap;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Where the files are.
pub const DIRECTORY: &str = "/run/farmem-swap";

/// A device and its volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// `/dev/nbdN`.
    pub index: u32,
    /// The node.
    pub node: String,
    /// The addresses of that name when it was looked up last ([`crate::names`]). A lookup asks
    /// programs whose pages may wait for the answer.
    #[serde(default)]
    pub at: Vec<SocketAddr>,
    /// The volume's id, which is the right to it: 32 hexadecimal digits.
    pub volume: String,
    /// What was agreed on with the node when the volume was made by a token: 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The node's incarnation: of another one, the volume is not there.
    pub incarnation: u64,
    /// Bytes.
    pub size: u64,
    /// How long requests wait for another stream, in seconds.
    pub grace_s: u64,
    /// How long a request may be without an answer, in seconds.
    #[serde(default = "timeout_s")]
    pub timeout_s: u64,
    /// The file of the token by which the node is asked, if it wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<PathBuf>,
    /// It is one of two that mirror each other.
    #[serde(default)]
    pub mirrored: bool,
}

/// Of a file without it, which an older farmem wrote: the default of `--timeout`.
fn timeout_s() -> u64 {
    10
}

/// A device that this process watches.
#[derive(Debug)]
pub struct Held {
    /// The content of its file.
    pub state: State,
    path: PathBuf,
    locked: File,
}

impl State {
    /// The device by which the kernel reaches its slots.
    pub fn device(&self) -> Device {
        if self.mirrored { Device::Mirror } else { Device::Nbd(self.index) }
    }

    /// A device at this node, for tests.
    #[cfg(test)]
    pub(crate) fn of_test(node: &str) -> State {
        State {
            index: 3,
            node: node.into(),
            at: Vec::new(),
            volume: digits(&[7; 16]),
            secret: None,
            incarnation: 1,
            size: 1 << 30,
            grace_s: 60,
            timeout_s: 3,
            token: None,
            mirrored: false,
        }
    }

    /// The volume's id.
    pub fn id(&self) -> Option<[u8; 16]> {
        let digits = self.volume.as_bytes();
        let mut id = [0; 16];
        for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        (digits.len() == 32).then_some(id)
    }

    /// What was agreed on with the node.
    pub fn agreed(&self) -> Option<[u8; 32]> {
        self.secret.as_deref().and_then(farmem_trust::unhex)
    }

    /// When the token's file was changed last. `None`: there is none. If it was changed, it is read
    /// now, and not when pages wait for a stream.
    pub fn token_changed(&self) -> Option<SystemTime> {
        let path = self.token.as_ref()?;
        // If it cannot be read, the next dial says so.
        let _ = token::key(path);
        fs::metadata(path).ok()?.modified().ok()
    }
}

/// A volume's id as the file has it.
pub fn digits(id: &[u8; 16]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The attribute in which a file's content is kept, too.
const BESIDE: &str = "farmem.swap";

/// Keeps a text in a file and beside it.
fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    fs::write(path, text)?;
    // Where there are no attributes, the content alone is read.
    let _ = swap::keep_beside(path, BESIDE, text);
    Ok(())
}

/// The text that is kept beside a file, else its content.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    swap::kept_beside(path, BESIDE).or_else(|_| fs::read(path))
}

fn file(directory: &Path, index: u32) -> PathBuf {
    directory.join(format!("nbd{index}.json"))
}

/// The name that the file has while the device ends.
fn ending(directory: &Path, index: u32) -> PathBuf {
    directory.join(format!("nbd{index}.ending"))
}

/// The number of the device whose file this is, and whether the device was to end.
fn index_of(path: &Path) -> Option<(u32, bool)> {
    let index = path.file_stem()?.to_str()?.strip_prefix("nbd")?.parse().ok()?;
    match path.extension()?.to_str()? {
        "json" => Some((index, false)),
        "ending" => Some((index, true)),
        _ => None,
    }
}

fn kind_file(directory: &Path, index: u32) -> PathBuf {
    directory.join(format!("nbd{index}.type"))
}

/// Keeps the kernel's number of the swap device, by which its probes name it, for whoever watches
/// next.
pub fn keep_kind(directory: &Path, index: u32, kind: u32) -> io::Result<()> {
    write(&kind_file(directory, index), kind.to_string().as_bytes())
}

/// The number that [`keep_kind`] stored.
pub fn kind(directory: &Path, index: u32) -> Option<u32> {
    String::from_utf8(read(&kind_file(directory, index)).ok()?).ok()?.parse().ok()
}

/// Writes a new file, and holds it.
///
/// # Errors
/// `AlreadyExists` when the device has one.
pub fn create(directory: &Path, state: State) -> io::Result<Held> {
    DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    let path = file(directory, state.index);
    let mut locked = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = locked.lock().and_then(|()| {
        let text = serde_json::to_string(&state)?;
        locked.write_all(text.as_bytes())?;
        let _ = swap::keep_beside(&path, BESIDE, text.as_bytes());
        Ok(())
    });
    if let Err(e) = written {
        let _ = fs::remove_file(&path);
        return Err(e);
    }
    Ok(Held { state, path, locked })
}

/// All that there are, and those whose end was begun by a process that was killed; those that cannot
/// be read are not.
pub fn all(directory: &Path) -> Vec<State> {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path());
    let state = |path: PathBuf| serde_json::from_slice(&read(&path).ok()?).ok();
    let mut files: Vec<_> = files.filter_map(|path| Some((index_of(&path)?, path))).collect();
    // Of two, the device that is there now. The other one's end was not noted as done.
    files.sort();
    files.dedup_by_key(|((index, _), _)| *index);
    files.into_iter().filter_map(|(_, path)| state(path)).collect()
}

/// Whether the device of this number has a file.
pub fn is_known(directory: &Path, index: u32) -> bool {
    file(directory, index).exists()
}

/// Waits for the right to make or undo devices, which one process has at a time, until it is
/// dropped or the process ends. It leaves no file.
pub fn turn(directory: &Path) -> io::Result<File> {
    DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    let locked = File::open(directory)?;
    locked.lock().map(|()| locked)
}

/// The same right. `None`: another process has it.
pub fn try_turn(directory: &Path) -> io::Result<Option<File>> {
    let locked = File::open(directory)?;
    match locked.try_lock() {
        Ok(()) => Ok(Some(locked)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// The beginning of a process that is to watch devices.
#[derive(Debug)]
pub enum Begins {
    /// These are there. Another process may have made them while the turn was waited for.
    Adopts(Vec<State>),
    /// There are none, and this process has the turn to make some.
    Makes(File),
    /// It was to wait no longer.
    Stopped,
}

/// Looks for devices, and waits for the turn to make some if there are none. Calls `waits` again
/// and again meanwhile, which waits a moment; false: it is to wait no longer.
pub fn begins(directory: &Path, mut waits: impl FnMut() -> bool) -> io::Result<Begins> {
    let known = all(directory);
    if !known.is_empty() {
        return Ok(Begins::Adopts(known));
    }
    DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
    let turn = loop {
        match try_turn(directory)? {
            Some(turn) => break turn,
            None if waits() => {}
            None => return Ok(Begins::Stopped),
        }
    };
    // The one that had the turn may have made some after the first look.
    let known = all(directory);
    Ok(if known.is_empty() { Begins::Makes(turn) } else { Begins::Adopts(known) })
}

/// Waits while a process makes or undoes devices. Whether one did. Calls `before` if it has to wait.
pub fn wait_for_turn(directory: &Path, before: impl FnOnce()) -> io::Result<bool> {
    let locked = match File::open(directory) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    // Shared: two that wait do not take each other for one that undoes.
    match locked.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => {
            before();
            locked.lock_shared().map(|()| true)
        }
        Err(TryLockError::Error(e)) => Err(e),
    }
}

/// Takes over the watch of a device. `None`: another process watches it.
pub fn adopt(directory: &Path, state: &State) -> Result<Option<Held>, Error> {
    let mut path = file(directory, state.index);
    if !path.exists() {
        path = ending(directory, state.index);
    }
    let failed = |e| Error::File(path.display().to_string(), e);
    let locked = File::open(&path).map_err(failed)?;
    match locked.try_lock() {
        Ok(()) => Ok(Some(Held { state: state.clone(), path, locked })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(e)) => Err(failed(e)),
    }
}

/// Forgets a device that is undone.
pub fn remove(directory: &Path, index: u32) {
    begin_end(directory, index);
    ended(directory, index);
}

/// Notes that a device is about to end. Its watcher knows then that it is not cut. The file stays
/// under another name, so that a device which a killed process has left can still be undone.
pub fn begin_end(directory: &Path, index: u32) {
    let _ = fs::remove_file(kind_file(directory, index));
    report::remove(directory, index);
    let _ = fs::rename(file(directory, index), ending(directory, index));
}

/// Notes that it has ended.
pub fn ended(directory: &Path, index: u32) {
    let _ = fs::remove_file(ending(directory, index));
}

/// Notes that it has not. Whoever holds the file holds it still.
pub fn goes_on(directory: &Path, index: u32) {
    let _ = fs::rename(ending(directory, index), file(directory, index));
}

impl Held {
    /// Notes other times for the device.
    pub fn set_times(&mut self, timeout_s: u64, grace_s: u64) -> io::Result<()> {
        if (self.state.timeout_s, self.state.grace_s) == (timeout_s, grace_s) {
            return Ok(());
        }
        (self.state.timeout_s, self.state.grace_s) = (timeout_s, grace_s);
        self.note()
    }

    /// Notes other addresses of the node.
    pub fn set_addresses(&mut self, at: Vec<SocketAddr>) -> io::Result<()> {
        self.state.at = at;
        self.note()
    }

    fn note(&self) -> io::Result<()> {
        let text = serde_json::to_string(&self.state)?;
        match swap::keep_beside(&self.path, BESIDE, text.as_bytes()) {
            // What is beside the file counts, and changes as a whole. A process that is killed may
            // leave half of a content.
            Ok(()) => Ok(()),
            Err(_) => fs::write(&self.path, text),
        }
    }

    /// Whether the file is still there. If not, another process has undone the device. A new file
    /// of the same name belongs to a new device.
    pub fn stands(&self) -> bool {
        let inode = |about: &fs::Metadata| (about.dev(), about.ino());
        matches!((fs::metadata(&self.path), self.locked.metadata()), (Ok(a), Ok(b)) if inode(&a) == inode(&b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(index: u32) -> State {
        State { index, ..State::of_test("bighost:7411") }
    }

    #[test]
    fn devices_that_were_made_while_the_turn_was_waited_for_are_taken_over() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-begins-{}", std::process::id()));
        // Two that see nothing: one makes devices, the other waits and sees them then.
        let Begins::Makes(turn) = begins(&directory, || unreachable!()).unwrap() else { panic!("nothing is there") };
        assert!(matches!(begins(&directory, || false).unwrap(), Begins::Stopped));
        let (mut turn, mut held) = (Some(turn), None);
        let waits = || {
            held = Some(create(&directory, state(3)).unwrap());
            drop(turn.take());
            true
        };
        let second = begins(&directory, waits).unwrap();
        assert!(matches!(&second, Begins::Adopts(known) if *known == [state(3)]), "{second:?}");
        // Nobody waits for the turn to take over, and nobody has it.
        assert!(matches!(begins(&directory, || unreachable!()).unwrap(), Begins::Adopts(_)));
        drop(try_turn(&directory).unwrap().unwrap());
        // One that has failed to make any leaves the turn to the next.
        remove(&directory, 3);
        let mut turn = try_turn(&directory).unwrap();
        let third = begins(&directory, || turn.take().is_some()).unwrap();
        assert!(matches!(third, Begins::Makes(_)), "{third:?}");
        drop(held);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_device_whose_end_was_begun_and_not_done_is_known() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-ending-{}", std::process::id()));
        let held = create(&directory, state(3)).unwrap();
        begin_end(&directory, 3);
        // Its watcher takes its streams for cut no more. One that is to undo all finds it, and has it
        // alone.
        assert!(!held.stands() && !is_known(&directory, 3));
        assert_eq!(all(&directory), [state(3)]);
        assert!(adopt(&directory, &state(3)).unwrap().is_none());
        drop(held);
        let held = adopt(&directory, &state(3)).unwrap().unwrap();
        assert!(held.stands());
        // It does not end: it is as it was, with its holder.
        goes_on(&directory, 3);
        assert!(is_known(&directory, 3) && adopt(&directory, &state(3)).unwrap().is_none());
        // It has ended, and its number is another device's before that is noted.
        begin_end(&directory, 3);
        let other = create(&directory, State { node: "other:7411".into(), ..state(3) }).unwrap();
        assert!(all(&directory).iter().eq([&other.state]));
        ended(&directory, 3);
        assert!(other.stands() && all(&directory).iter().eq([&other.state]));
        remove(&directory, 3);
        assert!(all(&directory).is_empty());
        fs::remove_dir_all(&directory).unwrap();
    }

    /// The content may be on a device that waits for whoever reads it.
    #[test]
    fn nothing_is_read_that_the_kernel_may_have_swapped_out() {
        let directory = PathBuf::from(format!("/dev/shm/farmem-swap-beside-{}", std::process::id()));
        let held = create(&directory, state(3)).unwrap();
        keep_kind(&directory, 3, 17).unwrap();
        if swap::kept_beside(&held.path, BESIDE).is_err() {
            eprintln!("skipped: only root may keep anything beside a file, and only where the file system can");
        } else {
            for path in [held.path.clone(), kind_file(&directory, 3)] {
                fs::write(path, "not read").unwrap();
            }
            assert_eq!((all(&directory), kind(&directory, 3)), (vec![state(3)], Some(17)));
        }
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_device_is_one_watchers_and_can_be_taken_over() {
        let directory = std::env::temp_dir().join(format!("farmem-swap-state-{}", std::process::id()));
        let id = std::array::from_fn(|i| i as u8 * 17);
        let state = State {
            index: 3,
            node: "bighost:7411".into(),
            at: Vec::new(),
            volume: digits(&id),
            secret: Some(farmem_trust::hex(&[9; 32])),
            incarnation: u64::MAX,
            size: 1 << 30,
            grace_s: 60,
            timeout_s: 3,
            token: None,
            mirrored: false,
        };
        assert_eq!((state.id(), state.agreed()), (Some(id), Some([9; 32])));
        let held = create(&directory, state.clone()).unwrap();
        assert_eq!(create(&directory, state.clone()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(all(&directory).iter().eq([&state]));
        // The file of an older farmem.
        let text = fs::read_to_string(directory.join("nbd3.json")).unwrap();
        let older: State = serde_json::from_str(&text.replace("\"timeout_s\":3,", "")).unwrap();
        assert_eq!(older, State { timeout_s: 10, ..state.clone() });
        assert!(adopt(&directory, &state).unwrap().is_none() && held.stands());
        drop(held);
        let mut held = adopt(&directory, &state).unwrap().unwrap();
        held.set_times(5, 90).unwrap();
        assert_eq!(all(&directory), [State { timeout_s: 5, grace_s: 90, ..state.clone() }]);
        fs::write(directory.join("nbd9.json"), "{").unwrap();
        keep_kind(&directory, 3, 17).unwrap();
        assert_eq!((all(&directory).len(), kind(&directory, 3), kind(&directory, 9)), (1, Some(17), None));
        remove(&directory, 3);
        assert!(!held.stands());
        let right = turn(&directory).unwrap();
        assert!(try_turn(&directory).unwrap().is_none());
        assert!(wait_for_turn(&directory, || drop(right)).unwrap());
        for idle in [&directory, Path::new("/absent")] {
            assert!(!wait_for_turn(idle, || unreachable!()).unwrap());
        }
        drop(try_turn(&directory).unwrap().unwrap());
        let other = create(&directory, state).unwrap();
        assert_eq!(kind(&directory, 3), None);
        assert!(other.stands() && !held.stands());
        fs::remove_dir_all(&directory).unwrap();
    }
}
