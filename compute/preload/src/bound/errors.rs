//! Every error of the runtime's is formatted by a thread that has no thread pointer.
//!
//! In such a thread a read of any thread-local faults: libc's `errno`, the locale that `strerror`
//! translates by, the cache of malloc, std's panic count.

use crate::gate::NotBuilt;
use farmem_fabric::words::WordsError;
use farmem_fabric::{
    BadAddress, BadDomain, BadNode, ConnectError, GrantError, Lost, NodeAddr, Refusal, RegionError, RunNode,
    WindowError,
};
use farmem_pager::{NotJoined, StartError};
use farmem_pool::{Altered, NoPlace, NoRoom, NoSeal};
use farmem_protocol::addr::FarSlot;
use farmem_protocol::extent::geometry::BadGeometry;
use farmem_protocol::region::{BadName, RegionName};
use farmem_protocol::wire::{Broken, Text};
use farmem_run::mask::NoFeature;
use farmem_run::{BadSpec, Feature, Mask, RunSpec};
use farmem_sys::raw::{Errno, futex_wait, futex_wake, sleep_ns, syscall};
use farmem_sys::uffd::OpenError;
use farmem_sys::verbs::{Absent, Outcome};
use farmem_trust::NoToken;
use farmem_trust::record::BadRecord;
use std::fmt::{self, Debug, Display, Write};
use std::sync::atomic::{AtomicU32, Ordering};

/// Enters errors of a type. Its variants are named one by one: one that is added and not entered
/// does not compile.
macro_rules! every {
    ($list:ident, $type:ty: $($pattern:pat => $value:expr),* $(,)?) => {
        let _ = |error: &$type| match error { $($pattern => ()),* };
        $($list.push(Box::new($value) as Box<dyn Shown>);)*
    };
}

/// An error, or a part of a line that tells of one.
trait Shown {
    fn show(&self, to: &mut Room) -> fmt::Result;
}

impl<T: Display + Debug> Shown for T {
    fn show(&self, to: &mut Room) -> fmt::Result {
        write!(to, "{self} {self:?}")
    }
}

/// An error type without words of its own: a caller words it.
#[derive(Debug)]
struct Unworded(NotBuilt);

impl Display for Unworded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NotBuilt::Refused(e) => write!(f, "refused: {e}"),
            NotBuilt::Elsewhere => f.write_str("elsewhere"),
        }
    }
}

/// Room for a line, without malloc.
struct Room {
    bytes: [u8; 4096],
    len: usize,
}

impl Write for Room {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.bytes.get_mut(self.len..self.len + text.len()).ok_or(fmt::Error)?;
        to.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

fn errnos() -> Vec<Box<dyn Shown>> {
    (-1..200).map(|number| Box::new(Errno(number)) as Box<dyn Shown>).collect()
}

fn lost() -> Lost {
    Lost { node: "10.0.0.1:7411".into(), reason: format!("its connection was cut: {}", Errno(libc::EHOSTUNREACH)) }
}

fn of_connections(list: &mut Vec<Box<dyn Shown>>) {
    let (node, reason) = (|| "n:1".to_owned(), || Errno(libc::ENETUNREACH));
    every!(list, ConnectError:
        ConnectError::Name { .. } => ConnectError::Name { node: node(), reason: node() },
        ConnectError::Refused(_) => ConnectError::Refused(node()),
        ConnectError::Token { .. } => ConnectError::Token { node: node(), why: "it has expired" },
        ConnectError::Unproven(_) => ConnectError::Unproven(node()),
        ConnectError::Unreachable { .. } => ConnectError::Unreachable { node: node(), reason: reason() },
        ConnectError::Silent(_) => ConnectError::Silent(node()),
        ConnectError::NotFarmem(_) => ConnectError::NotFarmem(node()),
        ConnectError::Version { .. } => ConnectError::Version { node: node(), theirs: 7 },
        ConnectError::Draining(_) => ConnectError::Draining(node()),
        ConnectError::Full(_) => ConnectError::Full(node()),
        ConnectError::Unknown(_) => ConnectError::Unknown(node()),
        ConnectError::Here { .. } => ConnectError::Here { node: node(), reason: reason() },
        ConnectError::Forbidden(_) => ConnectError::Forbidden(node()),
        ConnectError::NotShared { .. } => ConnectError::NotShared { node: node(), reason: node() },
        ConnectError::NotTcp(_) => ConnectError::NotTcp(node()),
        ConnectError::NoRdma { .. } => ConnectError::NoRdma { node: node(), reason: node() },
    );
    every!(list, BadDomain: BadDomain(_) => BadDomain(node()));
    every!(list, BadNode:
        BadNode::Address(_) => BadNode::Address(BadAddress::Path(node())),
        BadNode::Domain(_) => BadNode::Domain(BadDomain(node())));
    every!(list, BadAddress:
        BadAddress::Form(_) => BadAddress::Form("a\nb".into()),
        BadAddress::Path(_) => BadAddress::Path(node()),
    );
    every!(list, RunNode: _ => "n:1@shelf".parse::<RunNode>().expect("an address and a domain"));
    every!(list, NodeAddr:
        NodeAddr::Tcp(_) => NodeAddr::Tcp(node()),
        NodeAddr::Shm(_) => NodeAddr::Shm("/run/x".into()),
    );
    every!(list, Broken:
        Broken::Magic => Broken::Magic,
        Broken::Control => Broken::Control,
        Broken::Batch => Broken::Batch,
        Broken::Verb => Broken::Verb,
        Broken::Record => Broken::Record,
        Broken::Step => Broken::Step,
        Broken::Changed => Broken::Changed,
    );
}

fn of_runs(list: &mut Vec<Box<dyn Shown>>) {
    every!(list, NoFeature: NoFeature(_) => NoFeature("a\nb".into()));
    every!(list, Mask: _ => Mask::NONE.with(Feature::Hold).with(Feature::Open));
    every!(list, BadSpec: _ => RunSpec::parse("v=2;mask=a").expect_err("no feature is called a"));
}

fn of_memory(list: &mut Vec<Box<dyn Shown>>) {
    let node = || "n:1".to_owned();
    every!(list, Lost: Lost { .. } => lost());
    every!(list, GrantError:
        GrantError::Exhausted { .. } => GrantError::Exhausted { node: node(), lend_mib: 64 },
        GrantError::Quota { .. } => GrantError::Quota { node: node(), quota_mib: 64, of_tenant: true },
        GrantError::System { .. } => GrantError::System { node: node(), reason: Errno(libc::ENOMEM).to_string() },
        GrantError::Lost(_) => GrantError::Lost(lost()),
    );
    every!(list, BadName: BadName(_) => BadName("a\nb".into()));
    let name = || RegionName::from_wire([b'a'; 16]).expect("a name");
    every!(list, RegionName: _ => name());
    every!(list, Text<8>: _ => Text::<8>::new("a\nb"));
    every!(list, NoToken: NoToken => NoToken);
    every!(list, BadRecord: BadRecord::Changed => BadRecord::Changed, BadRecord::UsedUp => BadRecord::UsedUp);
    every!(list, RegionError:
        RegionError::Unknown { .. } => RegionError::Unknown { node: node(), name: name() },
        RegionError::Full(_) => RegionError::Full(node()),
        RegionError::Lost(_) => RegionError::Lost(lost()),
    );
    every!(list, WindowError:
        WindowError::Exhausted(_) => WindowError::Exhausted(node()),
        WindowError::Lost(_) => WindowError::Lost(lost()),
    );
    every!(list, Refusal:
        Refusal::NotHeld => Refusal::NotHeld,
        Refusal::Range => Refusal::Range,
        Refusal::Access => Refusal::Access,
        Refusal::Window => Refusal::Window,
        Refusal::Empty => Refusal::Empty,
        Refusal::Quota => Refusal::Quota,
        Refusal::Unknown => Refusal::Unknown,
    );
    every!(list, WordsError:
        WordsError::Lost(_) => WordsError::Lost(lost()),
        WordsError::Refused(_) => WordsError::Refused(Refusal::Range),
        WordsError::Header(_) => WordsError::Header(BadGeometry::Empty),
    );
    every!(list, NoRoom:
        NoRoom::Exhausted(_) => NoRoom::Exhausted(node()),
        NoRoom::Lost(_) => NoRoom::Lost(lost()),
    );
    every!(list, NoPlace: NoPlace::TooMany => NoPlace::TooMany, NoPlace::Mapped => NoPlace::Mapped);
    every!(list, NoSeal:
        NoSeal::Cpu => NoSeal::Cpu,
        NoSeal::Memory(_) => NoSeal::Memory(Errno(libc::ENOMEM)),
        NoSeal::Mapped(_) => NoSeal::Mapped(node()),
        NoSeal::Random => NoSeal::Random,
    );
    every!(list, Altered: Altered { .. } => Altered { nodes: node(), slot: FarSlot::new(3, 4) });
    every!(list, NotJoined:
        NotJoined::NoRing => NotJoined::NoRing,
        NotJoined::Busy => NotJoined::Busy,
        NotJoined::Forked => NotJoined::Forked,
        NotJoined::Pool(_) => NotJoined::Pool(NoPlace::TooMany),
    );
}

fn of_start(list: &mut Vec<Box<dyn Shown>>) {
    let refused = || Errno(libc::EACCES);
    every!(list, StartError:
        StartError::TooLittleLocal(_) => StartError::TooLittleLocal(1),
        StartError::Userfaultfd(_) => StartError::Userfaultfd(OpenError::Refused(refused())),
        StartError::Seal(_) => StartError::Seal(NoSeal::Cpu),
        StartError::Memory(_) => StartError::Memory(refused()),
    );
    every!(list, OpenError:
        OpenError::Refused(_) => OpenError::Refused(Errno(libc::EPERM)),
        OpenError::Lacks(_) => OpenError::Lacks(u64::MAX),
    );
    every!(list, Unworded:
        Unworded(NotBuilt::Refused(_)) => Unworded(NotBuilt::Refused(refused())),
        Unworded(NotBuilt::Elsewhere) => Unworded(NotBuilt::Elsewhere),
    );
    let name = || "mlx5_0".to_owned();
    every!(list, Absent:
        Absent::Library(_) => Absent::Library(name()),
        Absent::Symbol(_) => Absent::Symbol("ibv_x"),
        Absent::NoDevice => Absent::NoDevice,
        Absent::NoSuchDevice(_) => Absent::NoSuchDevice(name()),
        Absent::Open(..) => Absent::Open(name(), refused()),
        Absent::NoPort(_) => Absent::NoPort(name()),
        Absent::Refused(..) => Absent::Refused("queue pair", Errno(libc::ENOMEM)),
    );
    list.extend((0..32).map(|status| Box::new(Outcome(status)) as Box<dyn Shown>));
}

/// Errors, and how many of them have been formatted.
struct Job {
    errors: Vec<Box<dyn Shown>>,
    formatted: AtomicU32,
    failed: AtomicU32,
    ended: AtomicU32,
}

fn format_all(job: usize) -> ! {
    const ARCH_SET_FS: usize = 0x1002;
    // SAFETY: from here on the thread reads no thread-local, or faults: that is the test.
    unsafe { syscall(libc::SYS_arch_prctl, [ARCH_SET_FS, 0, 0, 0, 0, 0]) };
    // SAFETY: the test's, which waits for the end.
    let job = unsafe { &*(job as *const Job) };
    let mut room = Room { bytes: [0; 4096], len: 0 };
    for error in &job.errors {
        room.len = 0;
        let said = error.show(&mut room);
        let count = if said.is_ok() && room.len > 1 { &job.formatted } else { &job.failed };
        count.fetch_add(1, Ordering::Relaxed);
    }
    job.ended.store(1, Ordering::Release);
    futex_wake(&job.ended, 1);
    loop {
        sleep_ns(1_000_000_000);
    }
}

#[test]
fn every_error_is_formatted_without_a_thread_pointer() {
    let mut errors = errnos();
    of_connections(&mut errors);
    of_memory(&mut errors);
    of_runs(&mut errors);
    of_start(&mut errors);
    let none = AtomicU32::new(0);
    let job = Job { errors, formatted: none, failed: AtomicU32::new(0), ended: AtomicU32::new(0) };
    farmem_sys::thread::spawn(format_all, &raw const job as usize).unwrap();
    while job.ended.load(Ordering::Acquire) == 0 {
        futex_wait(&job.ended, 0, 1_000_000_000);
    }
    assert_eq!(job.failed.load(Ordering::Relaxed), 0);
    assert_eq!(job.formatted.load(Ordering::Relaxed) as usize, job.errors.len());
}

/// Types that are errors and are not the runtime's, or are tested where they can be named.
const ELSEWHERE: [&str; 11] = [
    "FileError",   // read at start, by commands, agents and libraries
    "Unwritable",  // farmem run's
    "Token",       // shown to whoever made it, by farmem token
    "NoDial",      // fabric's own, tested there
    "BadGeometry", // the node's, and the agent's
    "NotHeld",     // the agent's
    "Denied",      // the model of extents
    "Failed",      // the agent's
    "Problem",     // the model of extents
    "Refused",     // what the commands try at start
    "Confined",    // the services', and no error
];

#[test]
fn no_error_type_of_the_runtime_is_left_out() {
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = include_str!("errors.rs");
    let mut found = 0;
    for room in [
        "protocol",
        "run",
        "trust",
        "sys",
        "fabric",
        "compute/cache",
        "compute/pool",
        "compute/pager",
        "compute/preload",
    ] {
        for (file, text) in sources(&workspace.join(room).join("src")) {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (n, line) in lines.iter().enumerate() {
                let name = if line.starts_with("#[derive(") && line.contains("thiserror::Error") {
                    lines[n..]
                        .iter()
                        .find_map(|line| line.strip_prefix("pub enum ").or(line.strip_prefix("pub struct ")))
                } else {
                    line.split_once("Display for ").filter(|_| line.starts_with("impl")).map(|(_, name)| name)
                };
                let Some(name) = name.and_then(|name| name.split(|c: char| !c.is_alphanumeric()).next()) else {
                    continue;
                };
                let entered = here.contains(&format!("every!(list, {name}:"))
                    || here.contains(&format!("every!(list, {name}<"))
                    || here.contains(&format!("Box::new({name}("));
                assert!(entered || ELSEWHERE.contains(&name), "{}: {name} is not entered here", file.display());
                found += 1;
            }
        }
    }
    assert!(found > 15, "{found}");
}

fn sources(dir: &std::path::Path) -> Vec<(std::path::PathBuf, String)> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let of = |path: std::path::PathBuf| match path.is_dir() {
        true => sources(&path),
        false => vec![(path.clone(), std::fs::read_to_string(path).unwrap_or_default())],
    };
    entries.flat_map(of).collect()
}
