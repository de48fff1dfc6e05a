//! The constructor: arms everything, in an order in which each step can rely on
//! the ones before, before any code of the program runs.
//!
//! The library is linked with `-z initfirst` (`build.rs`): its constructor runs before those of all
//! other libraries, libc's included, and before the program's `.preinit_array`. So no thread is
//! there that waits in libc while its text is patched, that has blocked the runtime's signals, or
//! has no filter; nothing is mapped where far memory will be. The loader keeps this promise to one
//! library only, the last that asks: where there is another (libpthread before glibc 2.34), others'
//! constructors run before.
//!
//! libc's constructor has not run then. Looking up a node's name needs its `environ`, which is set
//! here.

use crate::gate::NotBuilt;
use crate::run::joining;
use crate::{
    bound, break_place, call, dispatch, exec, fork, gate, go, hints, limits, mappings, near_stack, net, process,
    roster, sandbox, signals, sites, stays_near, threads, waits,
};
use farmem_fabric::session::REFUSED_NS;
use farmem_fabric::{ConnectError, ConnectOptions, NodeAddr, Session};
use farmem_pager::ending::{die, say};
use farmem_pager::{Pager, StartError, ending};
use farmem_pool::{Disk, Pool};
use farmem_protocol::addr::{FAR_END, FAR_START};
use farmem_run::counters::Near;
use farmem_run::{Faults, Feature, Protect, RunSpec};
use farmem_run::{counters, exit};
use farmem_sys::clock;
use farmem_sys::members::{SHARERS, UNSEEN};
use farmem_sys::raw::{now_ns, read_file, sleep_ns};
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Nanoseconds between attempts to reach a node.
const RETRY_NS: u64 = 50_000_000;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(i32, Pointers, Pointers) = start;

/// Strings, to a null.
pub type Pointers = *const *const libc::c_char;

// SAFETY: libc has it, of this type.
unsafe extern "C" {
    /// libc's.
    static mut environ: Pointers;
}

extern "C" fn start(_: i32, _: Pointers, variables: Pointers) {
    // SAFETY: glibc's loader passes the process's variables to constructors. Nobody else runs who
    // could look; libc will set the same.
    unsafe {
        if environ.is_null() {
            environ = variables;
        }
    }
    let Some(Ok(text)) = variable(variables, b"FARMEM_RUN=").map(std::str::from_utf8) else { return };
    bound::begin();
    if let Err(line) = arm(text, variables) {
        die(exit::USAGE, &line);
    }
}

/// The value of a variable, whose `name` ends in `=`. By no function of libc's: other libraries
/// replace them.
pub fn variable(variables: Pointers, name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: the loader passes strings, to a null.
    let all = (0..).map_while(|n| unsafe { variables.add(n).read().as_ref() });
    // SAFETY: … which end in NUL. Those that are there when a constructor runs stay for good.
    all.map(|text| unsafe { CStr::from_ptr(text) }.to_bytes()).find_map(|text| text.strip_prefix(name))
}

/// A socket of whoever started the run, and this program is another user's: root ran `su`, or a
/// server that gives up its rights and then starts programs. (Where the library lies in the run's
/// own directory, they do not come here: see [`stays_near`].) Over TCP the same number is a
/// firewall's.
fn is_anothers(failure: &ConnectError) -> bool {
    matches!(failure, ConnectError::Forbidden(_))
}

/// Joins a node of the run. The run has reached it before, so that a failure may be a cut: the same
/// rules as for a connection that stood and was cut.
fn reach(node: &NodeAddr, run: &RunSpec, join: &ConnectOptions) -> Result<Session, ConnectError> {
    let begun = now_ns();
    let grace = run.grace;
    loop {
        let failure = match Session::connect_at_rate(node, join, run.shape) {
            Ok(session) => return Ok(session),
            Err(failure) => failure,
        };
        let patience = match failure {
            _ if is_anothers(&failure) => return Err(failure),
            ConnectError::Unreachable { .. } => grace,
            ConnectError::Refused(_) | ConnectError::NotFarmem(_) if run.relayed => grace,
            ConnectError::Refused(_) | ConnectError::NotFarmem(_) => grace.min(Duration::from_nanos(REFUSED_NS)),
            _ => return Err(failure),
        };
        if u128::from(now_ns() - begun) >= patience.as_nanos() {
            return Err(failure);
        }
        sleep_ns(RETRY_NS);
    }
}

/// No other process of the run has been there before.
fn is_first(file: Option<&counters::File>) -> bool {
    file.is_none_or(|file| file.processes[0].pid.load(Ordering::Relaxed) == 0)
}

/// Where mappings come elsewhere than they are asked to, and did not for the run's first program,
/// this one is emulated (qemu-user): its memory is its emulator's, and far where the runtime is
/// there. Nothing more is asked of an emulator, whose answers are of a process that is not this
/// one.
fn without_gate(reason: NotBuilt, run: &RunSpec) -> Result<(), String> {
    match reason {
        NotBuilt::Refused(e) => Err(format!("the system-call gate cannot be built: {e}")),
        NotBuilt::Elsewhere if is_first(run.counters.as_deref().and_then(process::map_counters)) => {
            Err("this system maps memory at other addresses than it is asked to".into())
        }
        NotBuilt::Elsewhere => {
            stays_near::note_self(Near::Kernel);
            say("an emulated program of the run has no far memory but its emulator's");
            Ok(())
        }
    }
}

/// Joins all nodes of the run that can be reached. `None`: they are another user's, and the program
/// has no far memory.
fn join_nodes(run: &RunSpec, join: &ConnectOptions, is_first: bool) -> Result<Option<Vec<Session>>, String> {
    let mut sessions = Vec::new();
    let mut lost = None;
    for node in &run.nodes {
        match reach(&node.at, run, join) {
            Ok(session) => sessions.push(session.in_domain(node.domain)),
            Err(failure) if is_anothers(&failure) => {
                stays_near::note_self(Near::User);
                stays_near::say_another_user();
                return Ok(None);
            }
            // The run has reached it, and lost it since. Others may do.
            Err(e) if !is_first => lost = Some(e.to_string()),
            Err(e) => die(exit::NODE_UNUSABLE, &e.to_string()),
        }
    }
    match (sessions.is_empty(), lost) {
        (true, Some(why)) => die(exit::NODE_UNUSABLE, &why),
        (true, None) => return Err("FARMEM_RUN names no node".into()),
        (false, Some(why)) => say(&format!("{why}; a program of the run goes on without it")),
        (false, None) => {}
    }
    Ok(Some(sessions))
}

/// Starts the pager and arms all that catches faults, system calls and signals.
fn arm(text: &str, variables: Pointers) -> Result<(), String> {
    // The pager uses this clock from its first fault on.
    clock::begin();
    let mut run = RunSpec::parse(text).map_err(|e| e.to_string())?;
    let join = joining(&run)?;
    sandbox::will_need(sandbox::Needs {
        network: run.changes
            || run.protect != Protect::None
            || !run.nodes.iter().all(|node| matches!(node.at, NodeAddr::Shm(_))),
        records: run.trace.is_some(),
        disk: run.protect == Protect::Disk,
    });
    if let Err(reason) = gate::build() {
        return without_gate(reason, &run);
    }
    let (from, to) = libc_text().ok_or("libc.so.6 is not among the loaded libraries: farmem needs glibc")?;
    let stubs = sites::reserve_stubs(from);
    let file = run.counters.as_deref().and_then(process::map_counters);
    let is_first = is_first(file);
    ending::prepare(file);
    if let Some(nodes) = roster::begin(&run, &join, file) {
        run.nodes = nodes;
    }
    let Some(sessions) = join_nodes(&run, &join, is_first)? else { return Ok(()) };
    let pool = Pool::new(sessions).map_err(|e| e.to_string())?;
    let pager = match farmem_pager::start(run.clone(), pool, process::claim_counters()) {
        Ok(pager) => pager,
        // The run's first program has userfaultfd. So something between this program and the kernel
        // withholds it: valgrind, a sandbox.
        Err(StartError::Userfaultfd(e)) if !is_first => {
            stays_near::note_self(Near::Kernel);
            say(&format!("a program of the run stays local: {e}"));
            return Ok(());
        }
        Err(e) => return Err(e.to_string()),
    };
    match run.disk.as_deref().filter(|_| run.protect == Protect::Disk).map(Disk::open) {
        Some(Ok(disk)) => pager.house.keep_on_disk(disk),
        Some(Err(why)) => say(&format!("{why}; the program goes on with one copy of its pages")),
        None => pager.house.keep_copies(run.protect),
    }
    if run.changes || run.protect != Protect::None {
        pager.house.before_waiting(signals::open::end);
        pager.house.each_tick(roster::look);
    }
    pager.take_stock();
    for (at, end) in mapped_far() {
        // The pager has no pages yet, so nothing is unmapped: it only notes that these addresses
        // are taken. (The protection passed here matters only for far mappings.)
        pager.space.forget_range(at, end - at, libc::PROT_NONE);
    }
    near_stack::reserve().map_err(|e| format!("no address space for near stacks: {e}"))?;
    threads::create::resolve();
    exec::carry(variables);
    stays_near::begin(run.nodes.iter().filter_map(|node| match &node.at {
        NodeAddr::Shm(path) => Some(path.as_path()),
        NodeAddr::Tcp(_) => None,
    }));
    limits::begin();
    signals::actions::learn_cancellation();
    signals::install();
    process::take_over();
    process::begin(pager, run.grace);
    hints::publish();
    run.sites.as_deref().into_iter().for_each(waits::begin);
    for nr in call::ALWAYS.iter().chain(&fork::COMPANY).copied().chain(dispatch::where_patched()) {
        sites::dispatches(nr, true);
    }
    intercept(&run, pager, (from, to), stubs)?;
    move_heap();
    Ok(())
}

/// Has the program's system calls go through the runtime: patches libc, arms the filter, and lets
/// faults return by themselves if every call is seen.
fn intercept(
    run: &RunSpec,
    pager: &'static Pager,
    (from, to): (usize, usize),
    stubs: Option<usize>,
) -> Result<(), String> {
    // SAFETY: the constructor runs before the program has threads.
    let missed = stubs.and_then(|stubs| unsafe { sites::patch(from, to, stubs) });
    if missed.is_none() {
        say(
            "libc's text cannot be patched here: memory that libc maps for itself stays local, and guarded calls are slower",
        );
    }
    if !sites::sees_clones() {
        SHARERS.fetch_or(UNSEEN, Ordering::Relaxed);
    }
    if missed.is_some() {
        // SAFETY: as above.
        unsafe { sites::patch_own() };
    }
    let own = go::mark();
    let sees_libc = missed.is_some();
    let complete = net::arm(&missed.unwrap_or_default(), &own.marked, &own.plain);
    let complete = complete.map_err(|e| format!("the system-call filter cannot be armed: {e}"))?;
    signals::actions::deliver_all();
    if !run.mask.has(Feature::Resume) && run.faults == Faults::Inline && sees_libc && complete {
        signals::resume::begin();
        if !run.mask.has(Feature::Open) && pager.waits_for_nobody() {
            pager.house.each_second(signals::open::watch);
            signals::open::begin(sites::counts_vforks());
        }
    }
    if !complete {
        say("this libc makes system calls in ways that farmem does not know: some may fail on far memory");
    }
    Ok(())
}

/// malloc's heap: from here on it grows in the far range. Libraries that are initialized before
/// us may have used malloc already (libstdc++ does). malloc takes a break that moves to higher
/// addresses for somebody else's sbrk; one that moves to lower addresses is fatal. So where the
/// heap began above the far range, as in a position-independent program, it stays, at its size
/// (mappings::keep_near_break). More of it is refused, and malloc takes mappings instead.
///
/// The program's malloc is not asked whether it was used: it may be another than libc's, and not
/// initialized yet (AddressSanitizer's).
///
/// A program that counts on the place of its heap keeps it ([`break_place`]).
fn move_heap() {
    if break_place::matters() {
        return mappings::keep_near_break(usize::MAX);
    }
    // SAFETY: a query; then moves libc's idea of the break to where our brk says it is.
    unsafe {
        let here = libc::sbrk(0) as usize;
        let begun = read_file(c"/proc/self/stat").ok().and_then(|stat| heap_begins(&stat));
        // Where nobody has asked for the break before, ours was asked just now.
        if here <= FAR_START || begun == Some(here) {
            libc::brk(FAR_START as *mut libc::c_void);
        } else {
            mappings::keep_near_break(here);
        }
    }
}

/// Where the kernel began the heap, by a text of `/proc/PID/stat`: the 47th field. The name, which
/// may hold anything, ends before the third.
fn heap_begins(stat: &[u8]) -> Option<usize> {
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = std::str::from_utf8(&stat[name_ends + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(44)?.parse().ok()
}

/// This process's mappings, a line each. Names of files may be anything.
fn mappings() -> String {
    read_file(c"/proc/self/maps").map_or_else(|_| String::new(), |maps| String::from_utf8_lossy(&maps).into_owned())
}

/// Mappings at far addresses that exist already. An allocator that a library's constructor used
/// before ours may have named such addresses by chance (PartitionAlloc does). They stay as they
/// are, near.
fn mapped_far() -> Vec<(usize, usize)> {
    let maps = mappings();
    let bounds = maps.lines().filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
    });
    bounds.map(|(from, to)| (from.max(FAR_START), to.min(FAR_END))).filter(|(from, to)| from < to).collect()
}

/// Where libc's code is.
fn libc_text() -> Option<(usize, usize)> {
    mappings().lines().filter(|l| l.contains("/libc.so.6") || l.contains("/libc-2.")).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let bounds = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
        fields.next()?.contains('x').then_some(bounds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_where_the_heap_begins() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
        let from = usize::from_str_radix(heap.split('-').next().unwrap(), 16).unwrap();
        // Without random addresses it may begin within a page of the program's data.
        assert!(heap_begins(&stat).is_some_and(|begins| begins >= from && begins - from < 1 << 20));
        let named = format!("7 (a) S 1 2 (b) R {}4711 9\n", "1 ".repeat(43));
        assert_eq!(heap_begins(named.as_bytes()), Some(4711));
        assert_eq!((heap_begins(b"7 (a) R 1 2"), heap_begins(b"")), (None, None));
    }
}
