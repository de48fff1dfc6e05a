//! Shared by the tests of the command line: the binary, in a runtime directory of its own.

use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Variables that `farmem run` takes settings from; empty, they say nothing.
const SETTINGS: [&str; 5] = ["FARMEM_LOCAL", "FARMEM_NODE", "FARMEM_TRANSPORT", "FARMEM_GRACE", "FARMEM_STATS"];

/// The binary under test. `farmem-lab` has the commands of `farmem` as well.
const BINARY: &str = match (option_env!("CARGO_BIN_EXE_farmem"), option_env!("CARGO_BIN_EXE_farmem-lab")) {
    (Some(farmem), _) => farmem,
    (None, Some(lab)) => lab,
    (None, None) => panic!("cargo names the binary under test"),
};

/// A place where `farmem` keeps its files, apart from every other test's.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("farmem-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Place(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `farmem` with these arguments.
    pub fn farmem<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.0).env_remove("FARMEM_PRELOAD").stdin(Stdio::null());
        // The user who runs the tests may have settings.
        command.env("XDG_CONFIG_HOME", &self.0).envs(SETTINGS.map(|name| (name, "")));
        command
    }

    /// A shell script on far memory, without a summary.
    pub fn shell(&self, script: &str) -> Command {
        self.farmem(["run", "--local", "16M", "--far", "128M", "--stats", "none", "--", "sh", "-c", script])
    }

    /// Files of runs and nodes that are left.
    pub fn left(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.0.join("farmem")).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|name| !name.starts_with("libfarmem_preload-")).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs to the end and gives status, standard output, standard error.
pub fn outcome(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), text(&stdout), text(&stderr))
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "not within 60 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until somebody listens on a Unix socket: its file is there a moment before.
pub fn listens(socket: &Path) {
    eventually(&format!("{} is listened on", socket.display()), || UnixStream::connect(socket).is_ok());
}

/// An address of this machine that nobody listens on, and that the kernel gives to nobody else meanwhile.
pub fn free() -> SocketAddr {
    farmem_tests::farmem::free_port().unwrap()
}

/// Whether a process has not ended yet (`farmem_tests::process::alive`).
pub fn runs(pid: u32) -> bool {
    farmem_tests::process::alive(pid as i32)
}
