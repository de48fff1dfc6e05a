//! The constructor: arms everything, in an order in which each step can rely on
//! the ones before, before any code of the program runs.

use crate::{dispatch, exec, gate, go, near, net, sandbox, signals, sites, threads};
use farmem_fabric::session::{REFUSED_NS, SILENT_NS};
use farmem_fabric::{BadAddress, ConnectError, ConnectOptions, NodeAddr, Session, Transport};
use farmem_pager::dirty::{self, Dirty};
use farmem_pager::ending::{die, say};
use farmem_pager::{Config, FaultMode, Pager, ending};
use farmem_pool::Pool;
use farmem_protocol::addr::FAR_START;
use farmem_protocol::{counters, exit};
use farmem_sys::raw::{Errno, checked};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long a node may take to answer: as long as one that is stopped is waited for in mid-run, for the
/// run has reached it before.
const ANSWER_WITHIN: Duration = Duration::from_nanos(SILENT_NS);
/// Between attempts to reach a node.
const RETRY: Duration = Duration::from_millis(50);

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());
static COUNTERS: AtomicPtr<counters::File> = AtomicPtr::new(std::ptr::null_mut());

/// The pager. Only after [`started`].
pub fn pager() -> &'static Pager {
    // SAFETY: set once from a &'static; callers run only after that.
    unsafe { &*PAGER.load(Ordering::Acquire) }
}

/// The process that the pager pages: a vfork child has the same pager, and is another.
static OWN_PID: AtomicU32 = AtomicU32::new(0);

/// From now on this process is the pager's. At start, and in a forked child.
pub fn take_over() {
    farmem_sys::raw::settle();
    OWN_PID.store(farmem_sys::raw::getpid(), Ordering::Relaxed);
}

/// Whether the calling process is the pager's, and not a vfork child of it.
pub fn is_this_process() -> bool {
    OWN_PID.load(Ordering::Relaxed) == farmem_sys::raw::getpid()
}

static NETWORK: AtomicBool = AtomicBool::new(true);
static RECORDS: AtomicBool = AtomicBool::new(true);

/// What the run is like.
pub fn kind() -> sandbox::Run {
    sandbox::Run { network: NETWORK.load(Ordering::Relaxed), records: RECORDS.load(Ordering::Relaxed) }
}

/// Whether this process is on far memory.
pub fn started() -> bool {
    !PAGER.load(Ordering::Acquire).is_null()
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = start;

/// `FARMEM_RUN`, parsed.
struct Run {
    local: u64,
    nodes: Vec<NodeAddr>,
    join: ConnectOptions,
    /// Something relays between this host and a node.
    relayed: bool,
    /// Bits a second to which TCP is held.
    shape: Option<u64>,
    mode: FaultMode,
    prefetch: bool,
    dirty: Dirty,
    counters: Option<String>,
    vectored: bool,
    always_sweep: bool,
    write_lines: bool,
    trace: Option<String>,
}

fn parse(text: &str) -> Result<Run, String> {
    let join = ConnectOptions {
        timeout: ANSWER_WITHIN,
        grace: Duration::from_secs(5),
        run: [0; 16],
        pid: farmem_sys::raw::getpid(),
        transport: Transport::Auto,
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
        vectored: true,
        always_sweep: false,
        write_lines: false,
        trace: None,
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
            "trace" => run.trace = Some(value.to_owned()),
            "mask" => {
                let masked = |feature| value.split(',').any(|f| f == feature);
                run.vectored = !masked("process_madvise");
                run.always_sweep = masked("cheap_protection");
                run.write_lines = masked("records");
            }
            _ => {}
        }
    }
    Ok(run)
}

extern "C" fn start() {
    let Ok(text) = std::env::var("FARMEM_RUN") else { return };
    if let Err(line) = arm(&text) {
        die(exit::USAGE, &line);
    }
}

/// A socket of whoever started the run, and this program is another user's: root ran `su`, or a server that gives up
/// its rights and then starts programs. (Where the library lies in the run's own directory, the loader refuses it to
/// them with a line of its own.) Over TCP the same number is a firewall's.
fn is_anothers(node: &NodeAddr, failure: &ConnectError) -> bool {
    let refused = matches!(failure, ConnectError::Unreachable { reason: Errno(libc::EACCES), .. });
    refused && matches!(node, NodeAddr::Shm(_))
}

/// Joins a node of the run. The run has reached it before, so that a failure may be a cut: the same
/// rules as for a connection that stood and was cut.
fn reach(node: &NodeAddr, run: &Run) -> Result<Session, ConnectError> {
    let begun = Instant::now();
    let grace = run.join.grace;
    loop {
        let failure = match Session::connect_at_rate(node, &run.join, run.shape) {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        let patience = match failure {
            _ if is_anothers(node, &failure) => return Err(failure),
            ConnectError::Unreachable { .. } => grace,
            ConnectError::Refused(_) | ConnectError::NotFarmem(_) if run.relayed => grace,
            ConnectError::Refused(_) | ConnectError::NotFarmem(_) => grace.min(Duration::from_nanos(REFUSED_NS)),
            _ => return Err(failure),
        };
        if begun.elapsed() >= patience {
            return Err(failure);
        }
        std::thread::sleep(RETRY);
    }
}

fn arm(text: &str) -> Result<(), String> {
    let run = parse(text)?;
    NETWORK.store(!run.nodes.iter().all(|node| matches!(node, NodeAddr::Shm(_))), Ordering::Relaxed);
    RECORDS.store(run.trace.is_some(), Ordering::Relaxed);
    gate::build().map_err(|e| format!("the system-call gate cannot be built: {e}"))?;
    let (from, to) = libc_text().ok_or("libc.so.6 is not among the loaded libraries: farmem needs glibc")?;
    let stubs = sites::reserve_stubs(from);
    let file = run.counters.as_deref().and_then(map_counters);
    ending::prepare(file);
    let mut sessions = Vec::new();
    for node in &run.nodes {
        match reach(node, &run) {
            Ok(session) => sessions.push(session),
            Err(failure) if is_anothers(node, &failure) => {
                say("a program of another user than the run's may not reach its node: its memory stays local");
                return Ok(());
            }
            Err(e) => die(exit::NODE_UNUSABLE, &e.to_string()),
        }
    }
    if sessions.is_empty() {
        return Err("FARMEM_RUN names no node".into());
    }
    let pool = Pool::new(sessions).map_err(|e| e.to_string())?;
    let config = Config {
        local: run.local,
        mode: run.mode,
        prefetch: run.prefetch,
        vectored: run.vectored,
        always_sweep: run.always_sweep,
        write_lines: run.write_lines,
        dirty: run.dirty,
        trace: run.trace,
    };
    let pager = farmem_pager::start(config, pool, claim_counters()).map_err(|e| e.to_string())?;
    pager.take_stock();
    near::reserve().map_err(|e| format!("no address space for near stacks: {e}"))?;
    threads::resolve();
    exec::carry();
    signals::actions::learn_cancellation();
    signals::install();
    take_over();
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
    for &nr in dispatch::ALWAYS {
        sites::always(nr);
    }
    // SAFETY: the constructor runs before the program has threads.
    let missed = stubs.and_then(|stubs| unsafe { sites::patch(from, to, stubs) });
    if missed.is_none() {
        say(
            "libc's text cannot be patched here: memory that libc maps for itself stays local, and guarded calls are slower",
        );
    }
    let complete = net::arm(&missed.unwrap_or_default(), &go::mark());
    if !complete.map_err(|e| format!("the system-call filter cannot be armed: {e}"))? {
        say("this libc makes system calls in ways that farmem does not know: some may fail on far memory");
    }
    // malloc's heap: from here on it grows in the far range. Libraries that are initialized before us
    // may have used malloc already (libstdc++ does). To malloc, a break that moves to higher addresses is
    // somebody else's sbrk; one that moves to lower addresses is fatal. So where the heap began above the
    // far range, as in a position-independent program, it stays, at its size (dispatch::near_break): more
    // of it is refused, and malloc takes mappings instead.
    // SAFETY: queries; then moves libc's idea of the break to where our brk says it is.
    unsafe {
        let here = libc::sbrk(0) as usize;
        if libc::mallinfo().arena == 0 || here < FAR_START {
            libc::brk(FAR_START as *mut libc::c_void);
        } else {
            dispatch::keep_near_break(here);
        }
    }
    Ok(())
}

/// Where libc's code is.
fn libc_text() -> Option<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().filter(|l| l.contains("/libc.so.6") || l.contains("/libc-2.")).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let bounds = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        fields.next()?.contains('x').then_some(bounds)
    })
}

fn map_counters(path: &str) -> Option<&'static counters::File> {
    let path = std::ffi::CString::new(path).ok()?;
    // SAFETY: a live path; the mapping is the file's length, checked by its magic.
    unsafe {
        let fd = checked(
            libc::SYS_openat,
            [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDWR | libc::O_CLOEXEC) as usize, 0, 0, 0],
        )
        .ok()?;
        let at = checked(
            libc::SYS_mmap,
            [
                0,
                size_of::<counters::File>(),
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                libc::MAP_SHARED as usize,
                fd,
                0,
            ],
        );
        farmem_sys::raw::close(fd as i32);
        let file: &'static counters::File = &*(at.ok()? as *const counters::File);
        if file.magic.load(Ordering::Relaxed) != counters::MAGIC {
            return None;
        }
        COUNTERS.store(std::ptr::from_ref(file).cast_mut(), Ordering::Relaxed);
        Some(file)
    }
}

/// A process's own counters: a slot of the run's file, or memory that nobody reads.
pub fn claim_counters() -> &'static counters::Process {
    // SAFETY: null or the mapped file, which stays.
    let file = unsafe { COUNTERS.load(Ordering::Relaxed).as_ref() };
    let pid = farmem_sys::raw::getpid();
    if let Some(file) = file {
        // An exec in the same process goes on in the same slot.
        let slots = || file.processes.iter();
        if let Some(own) = slots().find(|p| p.pid.load(Ordering::Relaxed) == pid) {
            return own;
        }
        for slot in slots() {
            if slot.pid.compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return slot;
            }
        }
        return &file.processes[counters::PROCESSES - 1];
    }
    // SAFETY: atomics: zero is valid.
    Box::leak(Box::new(unsafe { std::mem::zeroed() }))
}
