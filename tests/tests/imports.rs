//! The imports of the library in the program. No thread without thread-locals needs them.
//!
//! The runtime's background thread has no thread pointer that libc knows, and its signal handlers
//! interrupt the program anywhere. Functions of other libraries may read thread-locals, take locks
//! and allocate, so neither may call one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::{Far, Node, binary, compare, copy, counter, far_run};
use farmem_tests::process::{self, TempDir};

const LIMIT: Duration = Duration::from_secs(120);

const LOADER: &str = "of the C start files: the loader or exit() calls it, on a thread of the program's";
const UNWINDER: &str = "the program's unwinder comes to a frame of the library's, on a thread of the program's";
const START: &str = "in the constructor, on the program's first thread";
const RESOLVER: &str = "in the constructor, where a node is named by its host's name";
const CREATE: &str = "in the program's own pthread_create, on its thread";

/// Every import, and why no thread without thread-locals calls it.
const ALLOWED: &[(&str, &str)] = &[
    ("_ITM_deregisterTMCloneTable", LOADER),
    ("_ITM_registerTMCloneTable", LOADER),
    ("__cxa_finalize", LOADER),
    ("__gmon_start__", LOADER),
    ("_Unwind_GetDataRelBase", UNWINDER),
    ("_Unwind_GetIPInfo", UNWINDER),
    ("_Unwind_GetLanguageSpecificData", UNWINDER),
    ("_Unwind_GetRegionStart", UNWINDER),
    ("_Unwind_GetTextRelBase", UNWINDER),
    ("_Unwind_Resume", UNWINDER),
    ("_Unwind_SetGR", UNWINDER),
    ("_Unwind_SetIP", UNWINDER),
    ("__res_init", RESOLVER),
    ("freeaddrinfo", RESOLVER),
    ("gai_strerror", RESOLVER),
    ("getaddrinfo", RESOLVER),
    ("brk", START),
    ("dl_iterate_phdr", START),
    ("dlerror", START),
    ("dlmopen", START),
    ("dlsym", START),
    ("environ", START),
    ("getauxval", START),
    ("gnu_get_libc_version", START),
    ("sbrk", START),
    ("pthread_attr_destroy", CREATE),
    ("pthread_attr_getstack", CREATE),
    ("pthread_attr_getstacksize", CREATE),
];

/// Functions that the library once imported, or std calls by name, and others replace. With their
/// versions in glibc.
const BOUND: &[(&str, &str)] = &[
    ("memcpy", "GLIBC_2.14"),
    ("memmove", "GLIBC_2.2.5"),
    ("memset", "GLIBC_2.2.5"),
    ("memcmp", "GLIBC_2.2.5"),
    ("bcmp", "GLIBC_2.2.5"),
    ("strlen", "GLIBC_2.2.5"),
    ("clock_gettime", "GLIBC_2.17"),
    ("read", "GLIBC_2.2.5"),
    ("write", "GLIBC_2.2.5"),
    ("writev", "GLIBC_2.2.5"),
    ("close", "GLIBC_2.2.5"),
    ("sched_yield", "GLIBC_2.2.5"),
    ("getpid", "GLIBC_2.2.5"),
    ("getrandom", "GLIBC_2.25"),
    ("__errno_location", "GLIBC_2.2.5"),
    ("__xpg_strerror_r", "GLIBC_2.3.4"),
    ("malloc", "GLIBC_2.2.5"),
    ("realloc", "GLIBC_2.2.5"),
    ("free", "GLIBC_2.2.5"),
    ("mallinfo", "GLIBC_2.2.5"),
];

/// The library's imports, with the versions that it was linked to (empty: none).
fn imports() -> Result<BTreeMap<String, String>> {
    let dir = TempDir::new("imports")?;
    let library = dir.path().join("library.so");
    let mut copies = Command::new(binary());
    copies.args(["run", "--local", "4M", "--stats", "none", "--", "sh", "-c", "cp \"${LD_PRELOAD%%:*}\" \"$0\""]);
    copies.arg(&library);
    process::run(copies, LIMIT)?.success()?;
    let out = Command::new("nm").args(["-D", "--undefined-only"]).arg(&library).output().context("nm is missing")?;
    ensure!(out.status.success(), "nm: {}", String::from_utf8_lossy(&out.stderr));
    let lines = String::from_utf8(out.stdout)?;
    let names = lines.lines().filter_map(|line| line.split_whitespace().last());
    let split = |name: &str| match name.split_once('@') {
        Some((name, version)) => (name.to_owned(), version.to_owned()),
        None => (name.to_owned(), String::new()),
    };
    Ok(names.map(split).collect())
}

#[test]
fn the_library_imports_only_what_threads_with_thread_locals_call() -> Result<()> {
    let imports = imports()?;
    let unlisted: Vec<_> = imports.keys().filter(|name| !ALLOWED.iter().any(|(allowed, _)| allowed == name)).collect();
    ensure!(
        unlisted.is_empty(),
        "the library imports {unlisted:?}: call nothing of libc's, or bind it (compute/preload/src/bound), or state here \
         why no thread without thread-locals calls it"
    );
    ensure!(imports.contains_key("dlsym"), "nm lists {imports:?}");
    Ok(())
}

/// A library that replaces these functions ([`ALLOWED`]'s or [`BOUND`]'s, or both).
fn replacing<'a>(functions: impl Iterator<Item = (&'a str, &'a str)>) -> Result<String> {
    let list: String = functions.map(|(name, version)| format!("R({name}, \"{version}\") ")).collect();
    let flags =
        ["-shared", "-fPIC", "-fno-builtin", "-ftls-model=global-dynamic", &format!("-DREPLACED={list}"), "-ldl"];
    Ok(compile::c("replaces", &flags)?.display().to_string())
}

/// Replaces every import, and everything that was one.
fn replacing_all() -> Result<String> {
    let imports = imports()?;
    // A variable, and functions that the loader calls if they are there.
    let functions = imports.iter().filter(|(name, version)| *name != "environ" && !version.is_empty());
    let imported = functions.map(|(name, version)| (&name[..], &version[..]));
    let bound = BOUND.iter().copied().filter(|(name, _)| !imports.contains_key(*name));
    replacing(imported.chain(bound))
}

fn with(library: &str, mut program: Command) -> Command {
    program.env("LD_PRELOAD", library);
    program
}

/// A free port that "localhost" names.
fn local_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

#[test]
fn replaced_functions_change_nothing() -> Result<()> {
    let library = replacing_all()?;
    let node = Node::start_at(local_port()?, "2G", &[])?;
    let by_name = format!("localhost:{}", node.tcp.port());
    let ways = [
        Far::local("4M").with(&["--transport", "shm"]),
        Far::local("4M").with(&["--transport", "tcp"]).on(&by_name),
        Far::local("4M").with(&["--fault", "thread"]),
    ];
    let programs = [
        ("patterns", &[][..], &["up", "6000", "3"][..]),
        ("threads64", &[], &[]),
        ("fork_live", &[], &[]),
        ("thread_churn", &[], &[]),
        ("unwinds", &UNWINDING, &[]),
    ];
    for (name, flags, arguments) in programs {
        let mut program = with(&library, Command::new(compile::c(name, flags)?));
        program.args(arguments);
        let native = process::run(copy(&program), LIMIT)?.success()?;
        ensure!(
            native.stderr.contains("replaced: ") && !native.stderr.contains(": 0 calls"),
            "{name} is not replaced natively: {}",
            native.stderr
        );
        for far in &ways {
            let (out, stats) = far_run(&program, far, LIMIT)?;
            compare(&native, &out).map_err(|e| e.context(name))?;
            ensure!(counter(&stats, "faults") > 100, "{name} did not run on far memory: {stats}");
        }
    }
    Ok(())
}

const UNWINDING: [&str; 3] = ["-fexceptions", "-fnon-call-exceptions", "-rdynamic"];

/// The end of a node is told in words, by the thread that finds out first: the runtime's own where the
/// program is idle. Over TCP the program ends; over shared memory its bytes stay mapped, and it goes on.
#[test]
fn a_lost_node_is_told_of_past_replaced_functions() -> Result<()> {
    let library = replacing_all()?;
    for (transport, arguments) in
        [("tcp", &["32", "2"][..]), ("tcp", &["32", "1", "idle"]), ("shm", &["32", "1", "idle"])]
    {
        let node = Node::start("256M", &[])?;
        let address = if transport == "tcp" { node.by_tcp() } else { node.by_shm() };
        let mut program = with(&library, Command::new(compile::c("keeps_checking", &[])?));
        program.args(arguments);
        let far = Far::local("4M").with(&["--transport", transport]).on(&address);
        let run = process::spawn(far.command(&program))?;
        let works = || run.stdout().starts_with(b"ready ") || !run.alive();
        ensure!(process::eventually(LIMIT, works) && run.alive(), "it did not begin: {}", run.stderr());
        let said = String::from_utf8(run.stdout())?;
        let pid = said.split_whitespace().nth(1).and_then(|pid| pid.parse().ok()).context("no pid")?;
        node.running.signal(libc::SIGKILL);
        let line = format!("farmem: memory node {address} is lost: ");
        ensure!(process::eventually(LIMIT, || run.stderr().contains(&line)), "nothing is told: {}", run.stderr());
        if transport == "shm" {
            process::send(pid, libc::SIGUSR1);
        }
        let end = run.wait(LIMIT)?;
        let sound = end.stdout_tail().contains("\nsound ");
        let right = if transport == "shm" { end.code() == 0 && sound } else { end.code() == 70 };
        ensure!(right, "{transport} {arguments:?}: {}, {}, {}", end.code(), end.stdout_tail(), end.stderr);
    }
    Ok(())
}

/// Clocks that are replaced, by a library that many use.
#[test]
fn a_clock_that_is_replaced_is_the_programs_alone() -> Result<()> {
    let date = Command::new("faketime");
    let faked = |program: &[&str]| {
        let mut faked = copy(&date);
        faked.args(["-f", "@2001-02-03 04:05:06"]).args(program);
        faked
    };
    let year = "import time\nb = bytearray(24 << 20)\nprint(sum(b[::4096]), time.gmtime().tm_year)";
    let patterns = compile::c("patterns", &[])?.display().to_string();
    for program in [&["/usr/bin/python3", "-c", year][..], &[&patterns, "up", "6000", "3"]] {
        let program = faked(program);
        let native =
            process::run(copy(&program), LIMIT).context("faketime is missing: run tests/peers.sh")?.success()?;
        for transport in ["shm", "tcp"] {
            let (out, stats) = far_run(&program, &Far::local("4M").with(&["--transport", transport]), LIMIT)?;
            compare(&native, &out)?;
            ensure!(counter(&stats, "faults") > 100, "it did not run on far memory: {stats}");
        }
    }
    Ok(())
}
