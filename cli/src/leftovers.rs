//! Files in the runtime directory whose processes were killed: the next command that looks removes
//! them.
//!
//! | file | goes when |
//! |---|---|
//! | `run-ID.counters`, `run-ID.sock` | supervisor and processes are gone, and the socket does not answer |
//! | the same of another build, whose layout is not known | nobody has it mapped, and it is a day old |
//! | `run-ID.sock` or `.log` without counters | a minute old, and the socket does not answer |
//! | `node-PID.json`, `.json.new`, `.sock` | that process is gone, and the socket does not answer |
//! | `kv-PID.json`, `.json.new` | that process is gone |
//! | `agent.json`, `agent-PID.log` | that process is gone |
//!
//! A file that stays would do harm: a new node may get the old one's pid, and a reader would take
//! the old address for its own. The agent's ledger stays: programs that it served may live.
//!
//! Nothing is removed in another user's directory, which root looks at too: its owner could put a
//! link in its place between a look and a removal.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use farmem_sys::raw::Errno;
use farmem_sys::socket::{self, Peer};
use farmem_sys::{descriptors, process};

use crate::agent::report::Agent;
use crate::counters::Sample;
use crate::kv::status::Status as KvStatus;
use crate::node::Status;
use crate::run::keeper;
use crate::runtime_dir;

/// A run makes its counters within this time after its node listens.
const STARTING: Duration = Duration::from_secs(60);
/// How long another build's counters stay that nobody has mapped: a run of it may be starting.
const OTHER_BUILDS: Duration = Duration::from_secs(24 * 3600);

/// Removes files of processes that are gone from a directory of this user's. Returns whether a run is
/// under way, or may be.
pub fn sweep(dir: &Path) -> bool {
    if !runtime_dir::is_own(dir) {
        return true;
    }
    let mut under_way = false;
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with("node-") {
            sweep_node(&path, &name);
        } else if name.starts_with("run-") {
            under_way |= sweep_run(&path);
        } else if name.starts_with("kv-") {
            sweep_front(&path, &name);
        } else if name.starts_with("agent") {
            sweep_agent(dir, &path, &name);
        }
    }
    under_way
}

fn sweep_node(path: &Path, name: &str) {
    let is_status = name.ends_with(".json");
    if is_status && Status::read_or_remove(path).is_some() {
        return;
    }
    // A socket before its status file, a draft of one, or a file that was cut short.
    let goes = pid_in(name, "node-").is_some_and(|pid| process::began(pid).is_none());
    if goes && !answers(&path.with_extension("sock")) {
        let _ = fs::remove_file(path);
    }
}

fn sweep_front(path: &Path, name: &str) {
    if name.ends_with(".json") {
        KvStatus::read_or_remove(path);
    } else if pid_in(name, "kv-").is_some_and(|pid| process::began(pid).is_none()) {
        let _ = fs::remove_file(path);
    }
}

/// Whether the run is under way, or may be.
fn sweep_run(path: &Path) -> bool {
    let socket = path.with_extension("sock");
    if path.extension().is_none_or(|end| end != "counters") {
        let alone = !path.with_extension("counters").exists();
        if alone && is_older(path, STARTING) && !answers(&socket) {
            let _ = fs::remove_file(path);
        }
        return false;
    }
    // Its node of its own ends with it: numbers say nothing across pid namespaces.
    let is_over = match Sample::read(path) {
        Ok(sample) => {
            !process::exists(sample.supervisor) && keeper::living(path, &sample).is_empty() && !answers(&socket)
        }
        // It is being made at this moment, or another build's.
        Err(_) => is_older(path, OTHER_BUILDS) && !answers(&socket) && !keeper::is_mapped(path),
    };
    if is_over {
        let _ = fs::remove_file(path);
        let _ = fs::remove_file(&socket);
    }
    !is_over
}

fn sweep_agent(dir: &Path, path: &Path, name: &str) {
    let goes = match name.strip_suffix(".log") {
        Some(_) => pid_in(name, "agent-").is_some_and(|pid| process::began(pid).is_none()),
        None => path == Agent::path(dir) && Agent::living(dir).is_none(),
    };
    if goes {
        let _ = fs::remove_file(path);
    }
}

/// The number behind `prefix` in a file's name.
fn pid_in(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('.').next()?.parse().ok()
}

/// Whether somebody listens there. Nobody is waited for: another user's socket may never take a
/// connection.
pub fn answers(socket: &Path) -> bool {
    match socket::connect(Peer::Unix(socket), 0) {
        Ok(fd) => {
            descriptors::close(fd);
            true
        }
        Err(e) => e == Errno(libc::EAGAIN),
    }
}

fn is_older(path: &Path, than: Duration) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|about| about.modified());
    modified.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > than))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::process::Command;

    /// A directory for one test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir = std::env::temp_dir().join(format!("farmem-sweep-{name}-{}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
            Scratch(dir)
        }

        fn put(&self, name: &str, text: &str, hours: u64) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            self.aged(&path, hours);
            path
        }

        fn aged(&self, path: &Path, hours: u64) {
            let at = SystemTime::now() - Duration::from_secs(hours * 3600);
            fs::File::open(path).unwrap().set_modified(at).unwrap();
        }

        /// A socket's file, and its listener, which answers.
        fn socket(&self, name: &str) -> (PathBuf, UnixListener) {
            let path = self.0.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            (path, listener)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// The pid of a process that has ended.
    fn gone() -> u32 {
        let mut process = Command::new("true").spawn().unwrap();
        process.wait().unwrap();
        process.id()
    }

    fn said(pid: u32, began: Option<u64>) -> String {
        serde_json::to_string(&Status { pid, began, ..Status::default() }).unwrap()
    }

    fn there(paths: &[PathBuf]) -> Vec<bool> {
        paths.iter().map(|path| fs::symlink_metadata(path).is_ok()).collect()
    }

    #[test]
    fn files_of_dead_nodes_go_and_of_living_ones_stay() {
        let dir = Scratch::new("nodes");
        let (dead, own) = (gone(), std::process::id());
        let began = process::began(own);
        let stay = [
            dir.put(&format!("node-{own}.json"), &said(own, began), 0),
            dir.put(&format!("node-{own}.json.new"), "{", 0),
            dir.socket(&format!("node-{own}.sock")).0,
            dir.put("node-of-mine.txt", "", 99),
        ];
        let mut go = vec![
            dir.put(&format!("node-{dead}.json"), &said(dead, None), 0),
            dir.put(&format!("node-{dead}.json.new"), "{", 0),
            dir.socket(&format!("node-{dead}.sock")).0,
        ];
        // Cut short, of a process that is gone.
        go.push(dir.put(&format!("node-{}.json", gone()), "{\"pid\":", 0));
        sweep(&dir.0);
        assert_eq!((there(&stay), there(&go)), (vec![true; 4], vec![false; 4]));
        // The pid is another's by now. But for a socket that answers, as one of another pid
        // namespace does.
        let reused = dir.put(&format!("node-{own}.json"), &said(own, began.map(|ticks| ticks + 1)), 0);
        fs::remove_file(&stay[2]).unwrap();
        let (socket, listener) = dir.socket(&format!("node-{own}.sock"));
        sweep(&dir.0);
        assert!(reused.exists() && socket.exists());
        drop(listener);
        sweep(&dir.0);
        assert!(!reused.exists());
    }

    #[test]
    fn files_of_runs_that_were_killed_go() {
        let dir = Scratch::new("runs");
        assert!(!sweep(&dir.0));
        // Another build's: it may be under way.
        let young = dir.put("run-1.counters", "another build's", 23);
        assert!(sweep(&dir.0));
        dir.aged(&young, 25);
        let (answering, _listener) = dir.socket("run-2.sock");
        let answered = dir.put("run-2.counters", "another build's", 25);
        let (starting, _) = dir.socket("run-3.sock");
        let log = dir.put("run-4.log", "", 1);
        assert!(sweep(&dir.0));
        assert_eq!(there(&[young, answering, answered, starting, log]), [false, true, true, true, false]);
    }

    /// Its owner could lead the removal elsewhere.
    #[test]
    fn nothing_goes_where_another_user_may_write() {
        let dir = Scratch::new("others");
        let dead = gone();
        let files = [
            dir.put(&format!("node-{dead}.json"), &said(dead, None), 99),
            dir.put(&format!("kv-{dead}.json"), "{", 99),
            dir.put(&format!("agent-{dead}.log"), "", 99),
            dir.put("run-parts", "", 99),
        ];
        let link = dir.0.with_extension("link");
        std::os::unix::fs::symlink(&dir.0, &link).unwrap();
        assert!(sweep(&link));
        fs::remove_file(&link).unwrap();
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(sweep(&dir.0));
        // Nor does a look remove anything.
        assert!(Status::read_living(&files[0]).is_none());
        assert_eq!(KvStatus::read_living(&files[1]), None);
        assert_eq!(there(&files), vec![true; 4]);
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o700)).unwrap();
        sweep(&dir.0);
        assert_eq!(there(&files), vec![false; 4]);
    }

    #[test]
    fn a_socket_that_takes_no_connection_is_not_waited_for() {
        let dir = Scratch::new("full");
        let (socket, listener) = dir.socket("run-1.sock");
        process::raise_descriptor_limit();
        // As many wait as may.
        let mut waiting = Vec::new();
        let refused = loop {
            match socket::connect(Peer::Unix(&socket), 0) {
                Ok(fd) => waiting.push(fd),
                Err(e) => break e,
            }
        };
        assert_eq!((refused, answers(&socket)), (Errno(libc::EAGAIN), true));
        drop(listener);
        assert!(!answers(&socket));
        waiting.into_iter().for_each(descriptors::close);
    }

    #[test]
    fn files_of_agents_that_were_killed_go() {
        let dir = Scratch::new("agents");
        let agent = |pid: u32| serde_json::to_string(&Agent { pid, ..Agent::default() }).unwrap();
        let report = dir.put("agent.json", &agent(gone()), 0);
        let ledger = dir.put("agent.ledger", "", 99);
        let log = dir.put(&format!("agent-{}.log", gone()), "", 0);
        let living = dir.put(&format!("agent-{}.log", std::process::id()), "", 0);
        sweep(&dir.0);
        assert_eq!(there(&[report, ledger, log, living]), [false, true, false, true]);
        let report = dir.put("agent.json", &agent(std::process::id()), 0);
        sweep(&dir.0);
        assert!(report.exists());
    }
}
