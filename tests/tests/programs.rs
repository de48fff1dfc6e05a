//! The named cases: one small program each, its output equal to native.
//!
//! Nearly every case runs with 4 MiB local, less than any of them touches. A case whose faults, signals,
//! threads, forks or descriptors meet the transport or the handler thread runs over shared memory, over TCP and
//! with a handler thread. Every other case runs over one transport, drawn by its name. With
//! `FARMEM_TEST_LONG=1` all run in all ways: a fault that wakes a thread takes ten times as long.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, compare, copy, counter, far_run};
use farmem_tests::process;

const LIMIT: Duration = Duration::from_secs(300);

/// The ways in which a case runs: two transports, and a handler thread over shared memory.
const WAYS: [&[&str]; 3] = [&["--transport", "shm"], &["--transport", "tcp"], &["--fault", "thread"]];

/// Cases that meet the handler thread: they run in all ways in every test run.
const WITH_A_HANDLER_THREAD: [&str; 28] = [
    "threads64",
    "thread_churn",
    "raw_threads",
    "fork_live",
    "fork_threads",
    "vfork_beside",
    "vfork_first",
    "exec_family",
    "exec_rights",
    "own_handlers",
    "handler_masks",
    "signals_blocked",
    "sent_blocked",
    "counts_threads",
    "go_signals",
    "pascal",
    "sent_faults",
    "alt_stacks",
    "exits_far",
    "reservations",
    "remap",
    "advise",
    "kernel_words",
    "sync_far",
    "bad_pointers",
    "blocked_calls",
    "confined_strict",
    "debugger",
];

/// Cases that meet a transport's descriptors, locks or connections: they run over both in every test run.
const WITH_BOTH_TRANSPORTS: [&str; 20] = [
    "no_descriptors",
    "fork_guesses",
    "fork_written",
    "held_pages",
    "no_mappings",
    "vfork_crowd",
    "connects",
    "half_clone",
    "clone_copies",
    "close_all",
    "looks_for_descriptors",
    "confined",
    "confined_traps",
    "confined_grows",
    "go_confined",
    "rings",
    "vectors",
    "big_io",
    "last_exit",
    "many_threads",
];

/// The ways in which a case runs now.
fn ways(name: &str) -> Vec<&'static [&'static str]> {
    if farmem_tests::long() || WITH_A_HANDLER_THREAD.contains(&name) {
        return WAYS.to_vec();
    }
    let [shm, tcp, _] = WAYS;
    if WITH_BOTH_TRANSPORTS.contains(&name) {
        return vec![shm, tcp];
    }
    let drawn = name.bytes().fold(0, |sum: u8, letter| sum.wrapping_add(letter)) % 2;
    vec![[shm, tcp][usize::from(drawn)]]
}

fn case(name: &str) -> Result<()> {
    built(name, &[])
}

fn built(name: &str, flags: &[&str]) -> Result<()> {
    within("4M", name, flags)
}

fn within(local: &str, name: &str, flags: &[&str]) -> Result<()> {
    let program = Command::new(compile::c(name, flags)?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in ways(name) {
        let (far, stats) = far_run(&program, &Far::local(local).with(way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{name}, {way:?}")))?;
        let served = counter(&stats, "faults");
        ensure!(served > 100, "{name} did not run on far memory: {served} faults; {stats}");
    }
    Ok(())
}

macro_rules! cases {
    ($($name:ident)*) => { $(#[test] fn $name() -> Result<()> { case(stringify!($name)) })* };
}

cases! {
    threads64 thread_churn no_descriptors
    fork_live fork_guesses fork_threads fork_written held_pages no_mappings vfork_beside vfork_forks companion connects newcomers first_thread half_clone clone_copies exec_family exec_rights close_all looks_for_descriptors handlers_allocate counts_threads gives_up confined confined_traps confined_grows confined_strict go_confined go_contained
    own_handlers handler_masks edited_frames signals_blocked sent_blocked go_signals pascal far_stacks exits_far alt_stacks small_stacks
    reservations insists hinted_files jit remap huge_moves remap_evicted remap_beside remap_unreadable remap_protected refused_maps asks_in_vain advise mincore_beside program_break break_beside instructions wide
    persona kernel_words segments edges nested keys early_maps last_exit
    sync_far robust_locks robust_links vectors rings raw_threads syscalls_far bad_pointers far_pointers barred memory_file big_io file_between file_limit blocked_calls waiting_calls remapped_calls sent_faults left_stacks debugger emulated
}

/// The named case where dirty pages cannot be held, and are protected; where no call takes many
/// ranges (before Linux 6.13); and as where there is swap.
#[test]
fn protected_pages() -> Result<()> {
    let program = Command::new(compile::c("held_pages", &[])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    // Every mask, and both transports; the others of their pairs in the long form.
    let short = [("shm", ""), ("tcp", "hold"), ("shm", "process_madvise,hold"), ("tcp", "swapless,process_madvise")];
    let others = [("shm", "hold"), ("shm", "process_madvise"), ("tcp", "process_madvise"), ("shm", "swapless")];
    let others = others.into_iter().filter(|_| farmem_tests::long());
    for (transport, mask) in short.into_iter().chain(others) {
        let far = Far::local("4M").with(&["--transport", transport, "--mask", mask]);
        let (far, stats) = far_run(&program, &far, LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{transport}, {mask}")))?;
        // Where pages are held both: the process asks for its pages to be merged.
        let counts = ["held", "protecting_calls"].map(|name| counter(&stats, name) > 1000);
        ensure!(counts == [!mask.contains("hold"), true], "{transport}, {mask}: {stats}");
    }
    Ok(())
}

/// Memory that the program locks by a call that was not seen leaves as ever: what is written to it meanwhile is kept.
#[test]
fn pages_that_are_locked_unseen() -> Result<()> {
    let program = Command::new(compile::c("locked_unseen", &[])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for transport in ["shm", "tcp"] {
        compare(&native, &far_run(&program, &Far::local("4M").with(&["--transport", transport]), LIMIT)?.0)?;
    }
    Ok(())
}

/// A thread that nobody saw begin is reckoned with.
#[test]
fn a_thread_that_is_not_seen() -> Result<()> {
    let program = Command::new(compile::c("unseen_thread", &[])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for transport in ["shm", "tcp"] {
        compare(&native, &far_run(&program, &Far::local("4M").with(&["--transport", transport]), LIMIT)?.0)?;
    }
    Ok(())
}

/// Signals that fall on faults find the program's registers, and leave them as they were: where they stay open in faults,
/// where they are blocked, and where faults return by the kernel. They do fall on faults: at each instruction of the return,
/// or of a whole fault, where a tracer sends them.
#[test]
fn signals_in_faults() -> Result<()> {
    case("storms")?;
    let (open, blocked, by_kernel) = (&[][..], &["--mask", "open"][..], &["--mask", "resume"][..]);
    let ways = [
        ("storms", "in an access ", vec![(open, true), (blocked, true), (by_kernel, true)]),
        ("window", "signals at each step ", vec![(blocked, true), (by_kernel, false)]),
        ("open_faults", "signals at each place ", vec![(open, true), (blocked, true)]),
    ];
    for (name, counted, ways) in ways {
        let program = Command::new(compile::c(name, &[])?);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        for (flags, hits) in ways {
            let (far, _) = far_run(&program, &Far::local("4M").with(flags), LIMIT)?;
            compare(&native, &far).map_err(|e| e.context(format!("{name}, {flags:?}")))?;
            let count = far.stderr.lines().find_map(|line| line.strip_prefix(counted));
            let count = count.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
            ensure!(count.is_some_and(|count| (count > 0) == hits), "{name}, {flags:?}: {}", far.stderr);
        }
    }
    Ok(())
}

/// A program whose sanitizer is within it: its functions in libc's place are not ready at the start.
#[test]
fn sanitized() -> Result<()> {
    let program = Command::new(compile::c("sanitized", &["-fsanitize=address", "-static-libasan"])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for transport in ["shm", "tcp"] {
        let (far, stats) = far_run(&program, &Far::local("4M").with(&["--transport", transport]), LIMIT)?;
        compare(&native, &far)?;
        ensure!(counter(&stats, "demand") > 0, "{transport}: nothing was far: {stats}");
    }
    Ok(())
}

/// Calls on stream sockets pin no more of a long buffer than a piece.
#[test]
fn streams() -> Result<()> {
    case("streams")?;
    let (_, stats) = far_run(&Command::new(compile::c("streams", &[])?), &Far::local("4M"), LIMIT)?;
    let peak = counter(&stats, "local_peak");
    ensure!(peak <= 4 << 20, "{peak} bytes were local");
    Ok(())
}

/// Signal handlers are unwound to what they interrupted.
#[test]
fn unwinds() -> Result<()> {
    built("unwinds", &["-fexceptions", "-fnon-call-exceptions", "-rdynamic"])
}

/// Threads that are cancelled in a call are unwound: wherever they wait, and at each instruction of a call.
#[test]
fn cancels() -> Result<()> {
    built("cancels", &["-fexceptions", "-rdynamic"])?;
    built("cancel_steps", &["-fexceptions"])
}

/// Calls that transfer up to half of local memory are made as one; those of several threads take turns.
#[test]
fn one_call() -> Result<()> {
    within("36M", "one_call", &[])
}

/// What calls had pinned that a handler jumped out of, or that were cancelled, does not stay local.
#[test]
fn left_calls() -> Result<()> {
    case("left_calls")?;
    let program = Command::new(compile::c("left_calls", &[])?);
    let (_, stats) = far_run(&program, &Far::local("4M"), LIMIT)?;
    let peak = counter(&stats, "local_peak");
    ensure!(peak <= (4 << 20) + (64 << 12), "{peak} bytes were local; {stats}");
    Ok(())
}

/// Threads that a library starts as early as it can; such as have blocked all signals, too.
#[test]
fn early_threads() -> Result<()> {
    case("early_threads")?;
    let mut program = Command::new(compile::c("early_threads", &[])?);
    program.arg("blocked");
    let native = process::run(copy(&program), LIMIT)?.success()?;
    let (far, _) = far_run(&program, &Far::local("4M"), LIMIT)?;
    compare(&native, &far)
}

#[test]
fn early_heap() -> Result<()> {
    built("early_heap", &[])?;
    built("early_heap", &["-no-pie"])
}

/// A program that counts on a heap right behind its own data, as GCL's images do.
#[test]
fn own_break() -> Result<()> {
    built("own_break", &["-no-pie", "-fno-pie"])
}

/// More at once than the runtime had records for only in shared memory: over tcp each thread's first fault makes a
/// connection.
#[test]
fn many_threads() -> Result<()> {
    for (way, at_once) in [(["--transport", "shm"], "8400"), (["--fault", "thread"], "1000")] {
        let mut program = Command::new(compile::c("many_threads", &[])?);
        program.arg(at_once);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        let (far, stats) = far_run(&program, &Far::local("4M").with(&way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}; {stats}")))?;
    }
    Ok(())
}

/// More of them wait in calls at once, on stacks in far memory, than the runtime once had stacks
/// for.
#[test]
fn many_threads_on_far_stacks() -> Result<()> {
    let mut program = Command::new(compile::c("many_threads", &[])?);
    program.args(["300", "far"]);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in &WAYS[..2] {
        let (far, stats) = far_run(&program, &Far::local("4M").with(way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}; {stats}")))?;
    }
    Ok(())
}

/// In shared memory more of them than the pager has contexts; over tcp more than a node has queue
/// pairs for one program.
#[test]
fn threads_in_turn() -> Result<()> {
    for (way, threads) in
        [(["--transport", "shm"], "5000"), (["--transport", "tcp"], "9000"), (["--fault", "thread"], "600")]
    {
        let mut program = Command::new(compile::c("threads_in_turn", &[])?);
        program.arg(threads);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        let (far, stats) = far_run(&program, &Far::local("4M").with(&way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}; {stats}")))?;
    }
    Ok(())
}

/// Of threads that have ended nothing stays local of their far stacks.
#[test]
fn threads_in_turn_on_far_stacks() -> Result<()> {
    let mut program = Command::new(compile::c("threads_in_turn", &[])?);
    program.args(["600", "far"]);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in WAYS {
        let (far, stats) = far_run(&program, &Far::local("4M").with(way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}; {stats}")))?;
        let peak = counter(&stats, "local_peak");
        ensure!(peak <= (4 << 20) + (64 << 12), "{way:?}: {peak} bytes were local; {stats}");
    }
    Ok(())
}

/// The runtime's thread is the program's, even where a vfork child was the first to need it: somebody has to see a node
/// go while the program sleeps.
#[test]
fn vfork_first() -> Result<()> {
    let program = Command::new(compile::c("vfork_first", &[])?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in ["shm", "tcp"] {
        let (far, _) = far_run(&program, &Far::local("4M").with(&["--transport", way]), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(way))?;
        ensure!(far.stderr.contains("threads 2"), "{way}: {}", far.stderr);
    }
    case("vfork_first")
}

/// Where the limit on descriptors leaves few numbers, a vfork child's and its parent's are different ones all the same.
#[test]
fn vfork_crowd() -> Result<()> {
    for limit in ["1024", "256"] {
        let mut program = Command::new(compile::c("vfork_crowd", &[])?);
        program.arg(limit);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        for way in ["shm", "tcp"] {
            let (far, _) = far_run(&program, &Far::local("4M").with(&["--transport", way]), LIMIT)?;
            compare(&native, &far).map_err(|e| e.context(format!("{way}, {limit} descriptors")))?;
        }
    }
    Ok(())
}

/// A case that a program of the run executes, with the runtime and, linked statically, with the filter alone.
fn executed(case: &str) -> Result<()> {
    for flags in [&[][..], &["-static"]] {
        let mut program = Command::new("env");
        program.arg(compile::c(case, flags)?);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        let (far, _) = far_run(&program, &Far::local("4M"), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{flags:?}")))?;
    }
    Ok(())
}

/// What a program executes preloads the program's list, and the runtime: where the run was begun with a library, and without.
#[test]
fn preloads() -> Result<()> {
    let library = compile::c("preloads", &["-shared", "-fPIC", "-DLIBRARY"])?;
    for begun_with in [None, Some(&library)] {
        let mut program = Command::new(compile::c("preloads", &[])?);
        program.arg("first").arg(&library).arg("start").envs(begun_with.map(|path| ("LD_PRELOAD", path)));
        let native = process::run(copy(&program), LIMIT)?.success()?;
        let (far, _) = far_run(&program, &Far::local("4M"), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{begun_with:?}")))?;
        let count = |said: &str| far.stderr.lines().filter(|line| *line == said).count();
        ensure!([count("far 1"), count("far 0")] == [11, 0], "{}", far.stderr);
    }
    Ok(())
}

/// What is left in registers is no argument, in an image with the runtime and in one that has only inherited the filter.
#[test]
fn leftovers() -> Result<()> {
    executed("leftovers")
}

/// Memory that a program wants at random addresses: far ones among them, in an image that has only inherited the filter, too.
#[test]
fn hints() -> Result<()> {
    executed("hints")
}

/// A Go program leaves what it executes a filter for its own system calls, and this kills nobody.
#[test]
fn go_execs() -> Result<()> {
    let layout = ["-no-pie", "-Wl,--section-start=.gosys=0x10000000"];
    let mut program = Command::new(compile::c("go_execs", &layout)?);
    program.arg(compile::c("go_execs", &[&layout[..], &["-static"]].concat())?);
    let native = process::run(copy(&program), LIMIT)?.success()?;
    for way in WAYS {
        let (far, stats) = far_run(&program, &Far::local("4M").with(way), LIMIT)?;
        compare(&native, &far).map_err(|e| e.context(format!("{way:?}")))?;
        ensure!(counter(&stats, "faults") > 100, "{stats}");
    }
    Ok(())
}

/// Filters add up over exec, and the kernel takes only so many: an image that has inherited one adds none.
#[test]
fn filters_do_not_add_up() -> Result<()> {
    let mut program = Command::new("sh");
    let step = r#"n=$1; if [ $n -gt 0 ]; then exec sh "$0" $((n - 1)); fi; grep Seccomp_filters /proc/self/status"#;
    let dir = process::TempDir::new("filters")?;
    let script = dir.path().join("step.sh");
    std::fs::write(&script, step)?;
    program.arg(&script).arg("100");
    let (far, _) = far_run(&program, &Far::local("4M"), LIMIT)?;
    let said = String::from_utf8_lossy(&far.stdout).into_owned();
    let filters: u32 = said.split_whitespace().last().and_then(|n| n.parse().ok()).unwrap_or(u32::MAX);
    // A libc with sites that are not patched needs their addresses in each image.
    ensure!(filters <= 102, "{said}, {}", far.stderr);
    Ok(())
}
