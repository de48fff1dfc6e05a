//! What run this is: `FARMEM_RUN`, as `farmem run` laid it down (`docs/design/interfaces.md`).

use farmem_fabric::session::SILENT_NS;
use farmem_fabric::{BadAddress, ConnectOptions, NodeAddr, Transport};
use farmem_pager::FaultMode;
use farmem_pager::dirty::{self, Dirty};
use farmem_pool::Protect;
use farmem_protocol::wire::{Names, Text};
use farmem_sys::raw;
use std::time::Duration;

/// How long a node may take to answer: as long as one that is stopped is waited for in mid-run, for the
/// run has reached it before.
const ANSWER_WITHIN: Duration = Duration::from_nanos(SILENT_NS);

/// `FARMEM_RUN`, parsed.
pub struct Run {
    pub local: u64,
    pub nodes: Vec<NodeAddr>,
    pub join: ConnectOptions,
    /// Something relays between this host and a node.
    pub relayed: bool,
    /// Bits a second to which TCP is held.
    pub shape: Option<u64>,
    pub mode: FaultMode,
    pub prefetch: bool,
    pub dirty: Dirty,
    pub counters: Option<String>,
    /// Copies of its far memory.
    pub protect: Protect,
    /// Its nodes may change.
    pub changes: bool,
    /// Where faults are counted by place.
    pub sites: Option<String>,
    pub vectored: bool,
    pub hold: bool,
    pub swap: bool,
    pub write_lines: bool,
    pub overlook: bool,
    pub in_turns: bool,
    /// Faults return without the kernel's help, where they can.
    pub resume: bool,
    /// The program's signals stay open in faults, where they can.
    pub open: bool,
    pub trace: Option<String>,
    /// Of a sample of the pages.
    pub sample: bool,
}

/// What a node is told of this process: its machine, its user by number, and the name of its image. By raw system
/// calls: the program's libc is not asked.
fn names() -> Names {
    let read = |path| raw::read_file(path).unwrap_or_default();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    // SAFETY: no memory is involved.
    let user = unsafe { raw::syscall(libc::SYS_geteuid, [0; 6]) };
    Names {
        host: Text::new(&text(&read(c"/proc/sys/kernel/hostname"))),
        user: Text::new(&user.to_string()),
        program: Text::new(&text(&read(c"/proc/self/comm"))),
    }
}

/// Reads it.
///
/// # Errors
/// One line that names what is wrong.
pub fn parse(text: &str) -> Result<Run, String> {
    let join = ConnectOptions {
        timeout: ANSWER_WITHIN,
        grace: Duration::from_secs(5),
        run: [0; 16],
        pid: raw::getpid(),
        names: names(),
        ..ConnectOptions::default()
    };
    let mut run = Run {
        local: 0,
        nodes: Vec::new(),
        join,
        relayed: false,
        shape: None,
        mode: FaultMode::Inline,
        prefetch: true,
        dirty: Dirty::Auto,
        counters: None,
        protect: Protect::None,
        changes: false,
        sites: None,
        vectored: true,
        hold: true,
        swap: false,
        write_lines: false,
        overlook: false,
        in_turns: false,
        resume: true,
        open: true,
        trace: None,
        sample: false,
    };
    for pair in text.split(';').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("FARMEM_RUN: {pair:?} is not key=value"))?;
        match key {
            "local" => run.local = value.parse().map_err(|_| format!("FARMEM_RUN: local={value} is not a number"))?,
            "node" => {
                let nodes = value.split(',').map(str::parse).collect::<Result<_, _>>();
                run.nodes = nodes.map_err(|e: BadAddress| format!("FARMEM_RUN: {e}"))?;
            }
            "run" => match u128::from_str_radix(value, 16) {
                Ok(bits) => run.join.run = bits.to_be_bytes(),
                Err(_) => return Err(format!("FARMEM_RUN: run={value} is not 128 bits in hexadecimal")),
            },
            "transport" if value == "tcp" => run.join.transport = Transport::Tcp,
            "transport" if value == "verbs" => run.join.transport = Transport::Verbs,
            "transport" if value == "shm" => run.join.transport = Transport::Shm,
            "grace_ms" => {
                let ms = value.parse().map_err(|_| format!("FARMEM_RUN: grace_ms={value} is not a number"))?;
                run.join.grace = Duration::from_millis(ms);
            }
            "relayed" => run.relayed = value == "1",
            "shape" => {
                run.shape = Some(value.parse().map_err(|_| format!("FARMEM_RUN: shape={value} is not a number"))?)
            }
            "fault" if value == "thread" => run.mode = FaultMode::Thread,
            "prefetch" => run.prefetch = value != "off",
            "dirty" => match dirty::NAMES.iter().find(|(name, _)| *name == value) {
                Some((_, dirty)) => run.dirty = *dirty,
                None => return Err(format!("FARMEM_RUN: dirty={value} is no policy")),
            },
            "counters" => run.counters = Some(value.to_owned()),
            "protect" if value == "mirror" => run.protect = Protect::Mirror,
            "changes" => run.changes = value == "1",
            "sites" => run.sites = Some(value.to_owned()),
            "sample" => run.sample = value == "1",
            "trace" => run.trace = Some(value.to_owned()),
            "mask" => {
                let masked = |feature| value.split(',').any(|f| f == feature);
                run.vectored = !masked("process_madvise");
                run.hold = !masked("hold");
                run.swap = masked("swapless");
                run.write_lines = masked("records");
                run.overlook = masked("changes");
                run.in_turns = masked("turns");
                run.resume = !masked("resume");
                run.open = !masked("open");
            }
            _ => {}
        }
    }
    Ok(run)
}
