//! The status file by which `farmem top` finds the front ends of a machine: `kv-PID.json` in the
//! runtime directory.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use farmem_kv::serve::{Counters, Tell};
use farmem_sys::process;
use serde::{Deserialize, Serialize};

use crate::runtime_dir::{self, LONGEST};

/// A front end, and its counters since its start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its pid.
    pub pid: u32,
    /// When its process began, in ticks since the machine did: another may have the pid by now.
    pub began: Option<u64>,
    /// The store's name.
    pub store: String,
    /// Where it listens.
    pub listen: Vec<String>,
    /// The store's nodes.
    pub nodes: Vec<String>,
    /// Connections now.
    pub clients: u64,
    /// Commands.
    pub commands: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Verbs.
    pub verbs: u64,
    /// Batches of verbs that an operation waited for.
    pub round_trips: u64,
    /// Bytes that it holds at the nodes.
    pub held: u64,
}

impl Status {
    /// Reads a status file. `None`: its front end is gone.
    pub fn read_living(path: &Path) -> Option<Status> {
        runtime_dir::status(path, LONGEST).filter(|status: &Status| process::began(status.pid) == status.began)
    }

    /// Reads a status file in a directory of this user's; removes it if its front end is gone.
    pub fn read_or_remove(path: &Path) -> Option<Status> {
        let status = Status::read_living(path);
        if status.is_none() {
            let _ = fs::remove_file(path);
        }
        status
    }

    fn set(&mut self, counters: &Counters) {
        let Counters { clients, commands, hits, misses, verbs, trips, bytes } = *counters;
        (self.clients, self.commands, self.hits, self.misses) = (clients, commands, hits, misses);
        (self.verbs, self.round_trips, self.held) = (verbs, trips, bytes);
    }
}

/// The file of this process. Removed when dropped.
struct StatusFile {
    path: PathBuf,
    status: Status,
}

impl StatusFile {
    /// Readers see the old file or the new one, whole.
    fn write(&self) -> std::io::Result<()> {
        let draft = self.path.with_extension("json.new");
        fs::write(&draft, serde_json::to_vec(&self.status)?)?;
        fs::rename(&draft, &self.path)
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes the file of this front end when its counters change. Without a runtime directory nothing
/// is written: a front end does not depend on being watched.
pub fn tell(store: &str, listen: &[SocketAddr], nodes: &[String]) -> Tell {
    let pid = std::process::id();
    let Ok(dir) = runtime_dir::own() else { return Rc::new(|_| ()) };
    let status = Status {
        pid,
        began: process::began(pid),
        store: store.to_owned(),
        listen: listen.iter().map(ToString::to_string).collect(),
        nodes: nodes.to_vec(),
        ..Status::default()
    };
    let file = RefCell::new(StatusFile { path: dir.join(format!("kv-{pid}.json")), status });
    let _ = file.borrow().write();
    Rc::new(move |counters| {
        let mut file = file.borrow_mut();
        let before = file.status.clone();
        file.status.set(counters);
        if file.status != before {
            let _ = file.write();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_that_is_gone_leaves_nothing() {
        let dir = std::env::temp_dir().join(format!("farmem-kv-status-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("kv-1.json");
        let here = Status { pid: std::process::id(), began: process::began(std::process::id()), ..Status::default() };
        let file = StatusFile { path: path.clone(), status: here.clone() };
        file.write().expect("written");
        assert_eq!(Status::read_or_remove(&path), Some(here.clone()));
        let gone = Status { began: here.began.map(|began| began + 1), ..here };
        StatusFile { path: path.clone(), status: gone }.write().expect("written");
        assert_eq!((Status::read_or_remove(&path), path.exists()), (None, false));
        fs::write(&path, "nonsense").expect("written");
        assert_eq!((Status::read_or_remove(&path), path.exists()), (None, false));
        drop(file);
        let _ = fs::remove_dir_all(&dir);
    }
}
