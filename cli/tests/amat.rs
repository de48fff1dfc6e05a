//! `farmem amat` with real programs, under QEMU and under valgrind, and what it refuses.

#[allow(dead_code)] // The other tests use the rest of it.
mod common;

use common::{Place, eventually, outcome, runs};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn a_program_is_recorded_and_its_recording_gives_the_same_figures() {
    let place = Place::new();
    let file = place.path().join("some.refs");
    let amat = |arguments: &[&str]| {
        let mut command = place.farmem(["amat", "--local", "25%,100%", "--json"]);
        command.args(arguments).env("TMPDIR", place.path());
        outcome(command)
    };
    let file = file.to_str().unwrap();
    let (status, recorded, said) = amat(&["--record", file, "--", "sh", "-c", "exec echo here I am"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("here I am"), "its output goes to standard error: {said}");
    let (status, again, said) = amat(&[file]);
    assert_eq!((status, again), (Some(0), recorded.clone()), "{said}");
    let report: serde_json::Value = serde_json::from_str(&recorded).unwrap();
    assert!(report[0]["references"].as_u64().unwrap() > 100_000 / 4, "the program after exec too: {recorded}");
    assert_eq!(report[0]["rows"].as_array().unwrap().len(), 9 * 2);

    let (status, _, said) = amat(&["--", "sh", "-c", "exit 3"]);
    assert!(status == Some(1) && said.contains("ended with exit status: 3"), "{said}");
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("farmem-amat")), "{left:?}");
}

/// Loads, stores, additions to memory, wide copies and string instructions, some 350,000 in all. No
/// locked ones: lackey counts each of those twice.
const WORK: &str = r#"
#include <string.h>
static volatile long a[4096];
static char from[8192], to[8192];
int main(void) {
    long sum = 0;
    for (int i = 0; i < 200000; i++) sum += a[i & 4095];
    for (int i = 0; i < 50000; i++) a[i & 4095] = i;
    for (int i = 0; i < 50000; i++) __asm__ volatile("addq $1, %0" : "+m"(a[i & 4095]));
    for (int i = 0; i < 100; i++) memcpy(to, from, 4096 + i);
    for (int i = 0; i < 100; i++) {
        char *d = to, *s = from;
        long n = 100;
        __asm__ volatile("rep movsq" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
    }
    return sum == 77;
}
"#;

/// The program of [`WORK`], linked statically: its loader's work is none of it.
fn work(place: &Place) -> PathBuf {
    let (source, program) = (place.path().join("work.c"), place.path().join("work"));
    fs::write(&source, WORK).unwrap();
    let compiler = Command::new("gcc").args(["-O1", "-static", "-o"]).arg(&program).arg(&source).status();
    assert!(compiler.expect("gcc (tests/peers.sh)").success());
    program
}

fn script(place: &Place, name: &str, text: &str) -> PathBuf {
    let path = place.path().join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The figures of one recording: references, those that read, instructions.
fn recorded(place: &Place, options: &[&str], program: &[&Path]) -> [f64; 3] {
    let mut command = place.farmem(["amat", "--system", "farmem-shm", "--local", "50%", "--json"]);
    command.args(options).arg("--").args(program).env("TMPDIR", place.path());
    let (status, report, said) = outcome(command);
    assert_eq!(status, Some(0), "{said}");
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    ["references", "reads", "instructions"].map(|figure| report[0][figure].as_f64().unwrap())
}

#[test]
fn qemu_and_lackey_see_the_same() {
    let place = Place::new();
    let program = work(&place);
    let [qemu, lackey] = ["qemu", "lackey"].map(|by| recorded(&place, &["--by", by], &[&program]));
    for (figure, by_qemu, by_lackey) in [("all", qemu[0], lackey[0]), ("reads", qemu[1], lackey[1])] {
        let ratio = by_qemu / by_lackey;
        assert!((0.98..1.02).contains(&ratio), "{figure}: {by_qemu} by QEMU, {by_lackey} by lackey");
    }
    assert!((0.98..1.02).contains(&(qemu[2] / lackey[2])), "instructions: {qemu:?}, {lackey:?}");
}

#[test]
fn execs_are_followed_and_children_if_asked() {
    let place = Place::new();
    let program = work(&place);
    let line = |text: &str| text.replace("WORK", program.to_str().unwrap());
    let shim = script(&place, "shim", &line("#!/bin/sh\nexec WORK\n"));
    let outer = script(&place, "outer", &format!("#!/bin/sh\nexec {}\n", shim.display()));
    let parent = script(&place, "parent", &line("#!/bin/sh\nWORK\nexit 0\n"));
    let [alone, behind] = [&program, &outer].map(|path| recorded(&place, &["--by", "qemu"], &[path])[0]);
    assert!(behind > alone, "{behind} behind two scripts, {alone} alone");
    let [without, with] =
        [&["--by", "qemu"][..], &["--follow"]].map(|options| recorded(&place, options, &[&parent])[0]);
    assert!(without < alone && with > alone, "{without} without children, {with} with, {alone} alone");
}

#[test]
fn lackey_takes_over_and_is_named() {
    let place = Place::new();
    // A PATH without qemu-x86_64.
    let bin = place.path().join("bin");
    fs::create_dir(&bin).unwrap();
    script(&place, "bin/valgrind", "#!/bin/sh\nPATH=/usr/bin:/bin exec valgrind \"$@\"\n");
    for tool in ["sh", "true"] {
        symlink(Path::new("/bin").join(tool), bin.join(tool)).unwrap();
    }
    let without_qemu = |arguments: &[&str]| {
        let mut command = place.farmem(["amat", "--system", "farmem-shm", "--local", "50%"]);
        command.args(arguments).args(["--", "true"]).env("TMPDIR", place.path()).env("PATH", &bin);
        outcome(command)
    };
    let (status, _, said) = without_qemu(&[]);
    assert!(status == Some(0) && said.contains("no qemu-x86_64") && said.contains("lackey"), "{said}");
    for option in [&["--follow"][..], &["--by", "qemu"]] {
        let (status, _, said) = without_qemu(option);
        assert!(status == Some(1) && said.contains("apt-get install qemu-user"), "{said}");
    }
}

#[test]
fn a_program_ends_with_its_recorder() {
    let place = Place::new();
    let pid_file = place.path().join("pid");
    let endless = format!("echo $$ > {}; while :; do :; done", pid_file.display());
    let mut command = place.farmem(["amat", "--by", "qemu", "--", "sh", "-c", &endless]);
    let mut recorder = command.env("TMPDIR", place.path()).spawn().unwrap();
    let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    eventually("the program runs", || pid().is_some());
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    eventually("the program has ended", || !runs(pid().unwrap()));
}

#[test]
fn a_terminal_shows_how_far_a_recording_is() {
    let place = Place::new();
    let [pid_file, shown] = ["pid", "shown"].map(|name| place.path().join(name));
    let endless = format!("echo $$ > {}; while :; do :; done", pid_file.display());
    let farmem = format!("exec {} amat --by qemu -- sh -c '{endless}'", env!("CARGO_BIN_EXE_farmem"));
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", &farmem]).arg(&shown).env("TMPDIR", place.path()).env("XDG_RUNTIME_DIR", place.path());
    let mut terminal = terminal.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("script (bsdutils)");
    let says = |what| fs::read_to_string(&shown).is_ok_and(|said| said.contains(what));
    eventually("the terminal shows a rate", || says(" M a second"));
    assert!(says(" M references recorded, "));
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<u32>().ok();
    eventually("the program has ended", || pid().is_some_and(|pid| !runs(pid)));
}

#[test]
fn bad_input_gets_one_line() {
    let place = Place::new();
    let no_trace = place.path().join("x");
    fs::write(&no_trace, "name = 'x'\n[local]\nns = 1\n").unwrap();
    let no_trace = no_trace.to_str().unwrap();
    for (arguments, says) in [
        (&["amat"][..], "nothing to simulate"),
        (&["amat", no_trace], "no trace of references"),
        (&["amat", "--generate", "zipf", "--references", "1", "-s", no_trace], "missing field"),
        (&["amat", "--generate", "zipf", "--references", "1", "-s", "nowhere"], "neither a file nor one of"),
        (&["amat", "--generate", "zipf", "--references", "1", "--block", "100"], "powers of two"),
        (&["amat", "--generate", "zipf", "--references", "1", "--local", "0%"], "above 0%"),
        (&["amat", "--show", "nothing"], "is shipped; there are"),
    ] {
        let (status, out, said) = outcome(place.farmem(arguments.iter().copied()));
        assert_eq!(status, Some(64), "{arguments:?}");
        assert!(out.is_empty() && said.contains(says), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}
