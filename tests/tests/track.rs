//! `farmem track` on real programs, which say themselves whether they were harmed (`programs/dirties.c`).

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farmem_tests::compile;
use farmem_tests::farmem::binary;
use farmem_tests::process::{self, Outcome, Running, TempDir, eventually};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const PAGES: u64 = 2000;
/// How often it is looked again where a busy machine keeps the tracker or the program from the CPU for a whole window.
const LOOKS: usize = 10;

/// A program that dirties its memory, running: its array is there, and written once.
fn dirties(arguments: &[&str]) -> Result<Running> {
    let mut program = Command::new(compile::c("dirties", &[])?);
    program.args(arguments);
    farmem_sys::process::end_with_us(&mut program, libc::SIGKILL);
    is_ready(process::spawn(program)?)
}

fn is_ready(program: Running) -> Result<Running> {
    ensure!(eventually(LIMIT, || program.stdout().starts_with(b"ready\n")), "it does not begin: {}", program.stderr());
    Ok(program)
}

/// Waits until a tracker has shown so many windows.
fn has_shown(tracking: &Running, windows: usize) -> Result<()> {
    // Below a head, which it shows when it is attached.
    let shown = || tracking.stdout().iter().filter(|&&byte| byte == b'\n').count() > windows;
    ensure!(eventually(LIMIT, shown), "no {windows} windows: {}", tracking.stderr());
    Ok(())
}

fn tracker(options: &[&str], dir: &TempDir) -> Command {
    let mut track = Command::new(binary());
    track.arg("track").arg("--json").arg(dir.path().join("found.json")).args(options);
    farmem_sys::process::end_with_us(&mut track, libc::SIGKILL);
    track
}

/// What tracking with these options found.
fn found(options: &[&str]) -> Result<(Value, Outcome)> {
    let dir = TempDir::new("track")?;
    let outcome = process::run(tracker(options, &dir), LIMIT)?.success()?;
    let text = std::fs::read_to_string(dir.path().join("found.json"))?;
    Ok((serde_json::from_str(&text)?, outcome))
}

fn attached(program: &Running, options: &[&str]) -> Result<Value> {
    let pid = program.pid().to_string();
    Ok(found(&[&["--pid", &pid, "--window", "200ms", "--windows", "4", "--max-pause", "1s"], options].concat())?.0)
}

/// The program's array: the mapping with most dirty pages. Beside it the kernel notes now and then, in a line of
/// each thread's own data, on which CPU the thread runs (rseq).
fn array(found: &Value) -> &Value {
    let mappings = found["pooled"]["mappings"].as_array().into_iter().flatten();
    mappings.max_by_key(|mapping| mapping["dirty_pages"].as_u64()).unwrap_or(&Value::Null)
}

/// What tracking found in windows in each of which the program went through all of its array, `lines` lines of each of
/// `pages` pages. Where it did not, on a busy machine, it is looked again, in longer windows; what it did not store is
/// counted never.
fn exactly(program: &Running, window: u64, options: &[&str], pages: u64, lines: u64) -> Result<Value> {
    for window in longer(window) {
        let found = attached(program, &[options, &["--window", &window]].concat())?;
        let windows = found["pooled"]["windows"].as_u64().context("no windows")?;
        let [dirty, told] = ["dirty_pages", "dirty_lines"].map(|of| array(&found)[of].as_u64().unwrap_or(0));
        let far = array(&found);
        ensure!(dirty <= windows * pages && told <= dirty * lines, "{lines} lines, {options:?}: {far}");
        // A window may begin within a page, and end within one.
        let cut = windows * 2 * lines.saturating_sub(1);
        ensure!(told + cut >= dirty * lines, "{lines} lines, {options:?}: {far}");
        if windows >= 3 && dirty == windows * pages && told == dirty * lines {
            return Ok(found);
        }
    }
    bail!("{lines} lines, {options:?}: not once in three windows")
}

fn longer(ms: u64) -> impl Iterator<Item = String> {
    (0..LOOKS).map(move |look| format!("{}ms", ms << look.min(5)))
}

/// Bytes of its dirty pages over those of its dirty lines.
fn ratio(found: &Value) -> f64 {
    array(found)["pages_over_lines"].as_f64().unwrap_or(f64::NAN)
}

/// The same of all that would be far memory.
fn far_ratio(found: &Value) -> f64 {
    found["pooled"]["far"]["pages_over_lines"].as_f64().unwrap_or(f64::NAN)
}

#[test]
fn k_lines_of_each_page_are_64_over_k() -> Result<()> {
    for k in [1, 2, 3, 8, 64] {
        let program = dirties(&["lines", &k.to_string(), &PAGES.to_string()])?;
        for (window, options) in [(200, &[][..]), (200, &["--find", "read"]), (50, &[])] {
            let found = exactly(&program, window, options, PAGES, k)?;
            let windows = found["pooled"]["windows"].as_u64().context("no windows")?;
            ensure!(ratio(&found) == 64.0 / k as f64, "{k} lines, {options:?}: {}", array(&found));
            ensure!(found["pooled"]["pages_by_lines"][k as usize - 1].as_u64() >= Some(windows * PAGES));
        }
        program.unharmed(LIMIT)?;
    }
    Ok(())
}

#[test]
fn written_pages_alone_are_counted_by_protection() -> Result<()> {
    let program = dirties(&["lines", "3", &PAGES.to_string()])?;
    exactly(&program, 200, &["--wp"], PAGES, 0)?;
    program.unharmed(LIMIT)
}

#[test]
fn threads_come_and_go() -> Result<()> {
    let program = dirties(&["threads", "4", "500"])?;
    let found = attached(&program, &["--windows", "10", "--window", "100ms"])?;
    ensure!(far_ratio(&found) > 50.0, "{}", found["pooled"]);
    ensure!(found["windows"][5]["threads"].as_u64() >= Some(5), "{found}");
    ensure!(found["pooled"]["far"]["dirty_pages"].as_u64() >= Some(2000), "{}", found["pooled"]);
    program.unharmed(LIMIT)
}

#[test]
fn a_program_is_followed_through_exec_from_its_start() -> Result<()> {
    let program = compile::c("dirties", &[])?;
    let command = [program.to_str().context("a path")?, "exec", "1500"];
    let options = ["--window", "150ms", "--windows", "14", "--max-pause", "1s", "--"];
    let (found, outcome) = self::found(&[&options[..], &command[..]].concat())?;
    let windows = found["windows"].as_array().context("windows")?;
    ensure!(windows[0]["left_out"] == "begun", "the first window: {}", outcome.stderr);
    let ratios = || windows.iter().map(|window| window["pages_over_lines"].as_f64().unwrap_or(f64::NAN));
    let last_before = ratios().collect::<Vec<_>>().iter().rposition(|&ratio| ratio > 50.0);
    let first_after = ratios().position(|ratio| (7.9..8.1).contains(&ratio));
    let both = last_before.zip(first_after);
    ensure!(both.is_some_and(|(before, after)| before < after), "before, and after: {}", outcome.stderr);
    Ok(())
}

#[test]
fn what_is_written_last_is_seen() -> Result<()> {
    let program = compile::c("dirties", &[])?;
    for how in ["return", "exit", "signal", "exec"] {
        for options in [&["--window", "200ms"][..], &["--window", "200ms", "--find", "read"]] {
            let command = [program.to_str().context("a path")?, "ends", how, &PAGES.to_string()];
            let whole = [options, &["--max-pause", "1s", "--"], &command[..]].concat();
            let mut last = None;
            for _ in 0..LOOKS {
                let dir = TempDir::new("track")?;
                let outcome = process::run(tracker(&whole, &dir), LIMIT)?;
                let found: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("found.json"))?)?;
                last = written_last(&found)?;
                ensure!(last.is_none_or(|last| last == 3 * PAGES), "{how}, {options:?}: {last:?}: {}", outcome.stderr);
                if last.is_some() {
                    break;
                }
            }
            ensure!(last.is_some(), "{how}, {options:?}: not once a window between");
        }
    }
    Ok(())
}

/// Lines of the array that were written after the last windows in which there were none; nothing where a busy machine left
/// no such window between those in which it was written before, or no time to look.
fn written_last(found: &Value) -> Result<Option<u64>> {
    let windows = found["windows"].as_array().context("windows")?;
    // Of other mappings a line or two are dirty.
    let mappings = |window: &Value| window["mappings"].as_array().cloned().unwrap_or_default();
    let Some(most) = windows.iter().flat_map(mappings).max_by_key(|of| of["dirty_lines"].as_u64()) else {
        return Ok(None);
    };
    let is_array = |of: &Value| ["process", "name", "start"].iter().all(|key| of[key] == most[key]);
    let lines: Vec<u64> = windows
        .iter()
        .map(|window| {
            mappings(window).iter().filter(|of| is_array(of)).filter_map(|of| of["dirty_lines"].as_u64()).sum()
        })
        .collect();
    // Behind it, perhaps, windows in which the end itself writes elsewhere.
    let Some(end) = lines.iter().rposition(|&lines| lines > 0) else { return Ok(None) };
    let Some(between) = lines[..end].iter().rposition(|&lines| lines == 0) else { return Ok(None) };
    let before = lines[..between].iter().position(|&lines| lines > 0);
    let cut = windows.iter().any(|window| window["left_out"] == "cut");
    // A window may end while it is written.
    Ok((before.is_some() && !cut).then(|| lines[between..].iter().sum()))
}

#[test]
fn children_are_tracked_if_asked() -> Result<()> {
    let program = dirties(&["fork", "1500"])?;
    let found = exactly(&program, 200, &[], 1500, 1)?;
    ensure!(ratio(&found) == 64.0, "the parent alone: {}", found["pooled"]);
    program.unharmed(LIMIT)?;

    let program = compile::c("dirties", &[])?;
    let command = ["--", program.to_str().context("a path")?, "fork", "1500"];
    let options = ["--follow-forks", "--window", "200ms", "--windows", "10", "--max-pause", "1s"];
    let (found, outcome) = self::found(&[&options[..], &command[..]].concat())?;
    // One line a page in one process, eight in the other, where both had the CPU for as long as they need.
    let windows = found["windows"].as_array().context("windows")?;
    let mut ratios = windows.iter().filter_map(|window| window["pages_over_lines"].as_f64());
    ensure!(ratios.any(|both| (14.0..14.5).contains(&both)), "{}", outcome.stderr);
    Ok(())
}

#[test]
fn memory_that_moves_is_known_again() -> Result<()> {
    let program = dirties(&["remap", &PAGES.to_string()])?;
    let found = attached(&program, &["--windows", "8", "--window", "250ms"])?;
    let far = &found["pooled"]["far"];
    ensure!((31.5..32.5).contains(&far_ratio(&found)), "{far}");
    ensure!(far["dirty_pages"].as_u64() <= Some(8 * (PAGES / 2 + 20)), "{far}");
    program.unharmed(LIMIT)
}

#[test]
fn a_process_without_its_first_thread_is_tracked() -> Result<()> {
    let program = dirties(&["leader", &PAGES.to_string()])?;
    let found = exactly(&program, 200, &[], PAGES, 4)?;
    ensure!(ratio(&found) == 16.0, "{found}");
    program.signal(libc::SIGTERM);
    program.wait(LIMIT)?;
    Ok(())
}

#[test]
fn stores_of_the_same_value_are_named_not_counted() -> Result<()> {
    let program = dirties(&["silent", &PAGES.to_string()])?;
    let found = attached(&program, &[])?;
    ensure!(found["pooled"]["windows"] == 0, "every window is idle: {found}");
    let windows = found["windows"].as_array().context("windows")?;
    let silent = windows.iter().filter_map(|window| window["silent_pages"].as_u64()).max();
    ensure!(silent >= Some(PAGES), "{silent:?} of {PAGES}");
    ensure!(found["notes"][0].as_str().is_some_and(|note| note.contains("silent stores are invisible")), "{found}");
    program.unharmed(LIMIT)
}

#[test]
fn no_call_is_interrupted_and_no_signal_lost() -> Result<()> {
    for options in [&[][..], &["--find", "read"]] {
        let program = dirties(&["calls"])?;
        attached(&program, &[&["--windows", "30", "--window", "20ms"], options].concat())?;
        program.unharmed(LIMIT)?;
    }
    Ok(())
}

#[test]
fn ctrl_c_lets_the_program_go() -> Result<()> {
    let program = dirties(&["threads", "3", "500"])?;
    let dir = TempDir::new("track")?;
    let pid = program.pid().to_string();
    let tracking = process::spawn(tracker(&["--pid", &pid, "--window", "100ms"], &dir))?;
    has_shown(&tracking, 3)?;
    tracking.signal(libc::SIGINT);
    let outcome = tracking.wait(LIMIT)?.success()?;
    ensure!(outcome.stdout_tail().contains("The program stood"), "{}", outcome.stdout_tail());
    let found: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("found.json"))?)?;
    ensure!(found["ended"] == "interrupted", "{found}");
    ensure!(tracer(&program) == Some(0));
    program.unharmed(LIMIT)
}

fn tracer(program: &Running) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

#[test]
fn a_tracker_that_is_killed_leaves_the_program_running() -> Result<()> {
    let program = dirties(&["threads", "3", "500"])?;
    let pid = program.pid().to_string();
    for pause in 0..6 {
        let dir = TempDir::new("track")?;
        let tracking = process::spawn(tracker(&["--pid", &pid, "--window", "5ms"], &dir))?;
        ensure!(eventually(LIMIT, || tracer(&program) == Some(tracking.pid() as u32)), "not attached");
        std::thread::sleep(Duration::from_millis(60 + pause * 7));
        tracking.signal(libc::SIGKILL);
        tracking.wait(LIMIT)?;
        ensure!(eventually(LIMIT, || tracer(&program) == Some(0)), "still traced");
    }
    // Whoever comes next finds nothing of it.
    let found = attached(&program, &[])?;
    ensure!(ratio(&found) > 50.0, "{found}");
    program.unharmed(LIMIT)
}

#[test]
fn a_program_that_is_killed_ends_the_tracking() -> Result<()> {
    let program = dirties(&["lines", "2", "500"])?;
    let dir = TempDir::new("track")?;
    let pid = program.pid().to_string();
    let tracking =
        process::spawn(tracker(&["--pid", &pid, "--window", "100ms", "--idle-lines", "1", "--max-pause", "1s"], &dir))?;
    // One at least is not left out, as the first is.
    has_shown(&tracking, 4)?;
    program.signal(libc::SIGKILL);
    let outcome = tracking.wait(LIMIT)?.success()?;
    let found: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("found.json"))?)?;
    // The window that its end cut short may begin and end within a page; so may any in which it had little of the CPU.
    let windows = found["pooled"]["windows"].as_u64().context("no windows")?;
    let [pages, lines] = ["dirty_pages", "dirty_lines"].map(|of| array(&found)[of].as_u64().unwrap_or(0));
    ensure!(found["ended"] == "signal 9" && pages > 0, "{found}");
    ensure!(lines <= 2 * pages && lines + 2 * windows >= 2 * pages, "{found}");
    ensure!(outcome.stdout_tail().contains("ended by signal 9") || outcome.stdout.len() > 2048);
    Ok(())
}

fn state(program: &Running) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn a_stopped_program_stays_stopped_until_continued() -> Result<()> {
    let program = dirties(&["threads", "2", "500"])?;
    let dir = TempDir::new("track")?;
    let pid = program.pid().to_string();
    let tracking = process::spawn(tracker(&["--pid", &pid, "--window", "50ms"], &dir))?;
    has_shown(&tracking, 2)?;
    program.signal(libc::SIGSTOP);
    // One look may find it held by the tracker, the signal not taken yet: it runs once more then, to take it.
    let stands = || {
        (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(17));
            matches!(state(&program), Some('T' | 't'))
        })
    };
    ensure!(eventually(LIMIT, stands), "it goes on: {:?}", state(&program));
    for _ in 0..20 {
        ensure!(matches!(state(&program), Some('T' | 't')), "{:?}", state(&program));
        std::thread::sleep(Duration::from_millis(17));
    }
    program.signal(libc::SIGCONT);
    ensure!(eventually(LIMIT, || matches!(state(&program), Some('R' | 'S'))), "it stays stopped");
    // Let go while stopped, it is stopped still.
    program.signal(libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(200));
    tracking.signal(libc::SIGINT);
    tracking.wait(LIMIT)?.success()?;
    // It must run to take the signal that it was let go with.
    ensure!(eventually(LIMIT, || state(&program) == Some('T')), "{:?}", state(&program));
    std::thread::sleep(Duration::from_millis(100));
    ensure!(state(&program) == Some('T'), "{:?}", state(&program));
    program.signal(libc::SIGCONT);
    program.unharmed(LIMIT)
}

#[test]
fn pauses_are_bounded_by_watching_a_sample() -> Result<()> {
    let program = dirties(&["lines", "4", "60000"])?;
    let mut looks = Vec::new();
    for windows in (1..=LOOKS).map(|look| (12 * look).to_string()) {
        let found = attached(&program, &["--max-pause", "2ms", "--windows", &windows])?;
        let windows = found["windows"].as_array().into_iter().flatten();
        let narrow = found["windows"][11]["watched_one_in"].as_u64() > Some(1);
        // Whatever the machine does, something is watched, and no more than can be read.
        let present = |window: &Value| window["present_pages"].as_u64().unwrap_or(0);
        let looked = windows.clone().filter(|window| present(window) > 0 || window["left_out"] != "cut");
        ensure!(looked.clone().all(|window| present(window) >= 512), "an empty sample: {found}");
        // Until its only thread stands, the program waits for a CPU or runs.
        let stood = |window: &Value| Some(window["pause"]["total"].as_f64()? - window["pause"]["stopping"].as_f64()?);
        let mut pauses: Vec<f64> = windows.filter_map(stood).collect();
        pauses.sort_by(f64::total_cmp);
        let median = pauses[pauses.len() / 2];
        ensure!(narrow, "{found}");
        // A tracker that a busy machine keeps from the CPU may be out of time in every pause, and says so, or stand for
        // longer than any limit; and the program may not get through its memory in a window, which then ends in a page.
        if ratio(&found) == 16.0 && median < 0.02 {
            return program.unharmed(LIMIT);
        }
        looks.push((ratio(&found), median));
    }
    bail!("not once as it should be: {looks:?}")
}

#[test]
fn what_cannot_be_tracked_is_refused_with_a_line() -> Result<()> {
    let refused_with = |status: i32, options: &[&str]| -> Result<String> {
        let dir = TempDir::new("track")?;
        let outcome = process::run(tracker(options, &dir), LIMIT)?;
        ensure!(outcome.code() == status && outcome.stderr.trim().lines().count() == 1, "{options:?}: {outcome:?}");
        Ok(outcome.stderr)
    };
    let refused = |options: &[&str]| refused_with(64, options);
    let none = refused(&["--pid", "4194303"])?;
    ensure!(none.contains("no such process"), "{none}");
    let missing = refused_with(127, &["--", "/no/such/program"])?;
    ensure!(missing.contains("/no/such/program: not found"), "{missing}");
    let neither = refused(&[])?;
    ensure!(neither.contains("--pid"), "{neither}");

    let program = dirties(&["lines", "2", "500"])?;
    let pid = program.pid().to_string();
    let dir = TempDir::new("track")?;
    let tracking = process::spawn(tracker(&["--pid", &pid], &dir))?;
    ensure!(eventually(LIMIT, || tracer(&program) == Some(tracking.pid() as u32)), "not attached");
    let twice = refused(&["--pid", &pid])?;
    ensure!(twice.contains(&format!("is traced by process {}", tracking.pid())), "{twice}");
    tracking.signal(libc::SIGTERM);
    tracking.wait(LIMIT)?.success()?;
    program.unharmed(LIMIT)
}

#[test]
fn a_long_name_of_a_program_is_one_line() -> Result<()> {
    let dir = TempDir::new("track")?;
    let script = format!("sleep 0.3; # {}\n{}", "long ".repeat(40), "x".repeat(300));
    let outcome =
        process::run(tracker(&["--window", "100ms", "--windows", "1", "--", "sh", "-c", &script], &dir), LIMIT)?;
    let line = outcome.stderr.lines().find(|line| line.contains("sh -c sleep"));
    ensure!(line.is_some_and(|line| line.chars().count() < 160 && line.contains("…: ")), "{outcome:?}");
    Ok(())
}

#[test]
fn any_user_may_track_what_is_his() -> Result<()> {
    let root = std::fs::read_to_string("/proc/self/status")?.lines().any(|line| line.starts_with("Uid:\t0\t"));
    if !root || Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: needs root and setpriv to become somebody else");
        return Ok(());
    }
    let dir = TempDir::new("track")?;
    let copied = |from: &std::path::Path, name: &str| -> Result<std::path::PathBuf> {
        let to = dir.path().join(name);
        // By a process of its own: what this one has open for writing, another test's child may inherit for a moment, and
        // then it cannot be executed.
        ensure!(Command::new("cp").arg(from).arg(&to).status()?.success(), "cp");
        Ok(to)
    };
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir.path(), permissions)?;
    let (farmem, program) = (copied(binary(), "farmem")?, copied(&compile::c("dirties", &[])?, "dirties")?);
    let somebody = |program: &std::path::Path| {
        let mut command = Command::new("setpriv");
        // It would lose the signal with its rights, were it set before.
        command
            .args(["--pdeathsig=KILL", "--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(program)
            .current_dir(dir.path());
        command
    };
    let mut theirs = somebody(&program);
    theirs.args(["lines", "2", "500"]);
    let theirs = is_ready(process::spawn(theirs)?)?;
    let track = |pid: i32| {
        let mut track = somebody(&farmem);
        track.args(["track", "--windows", "2", "--window", "200ms", "--idle-lines", "1", "--pid"]).arg(pid.to_string());
        process::run(track, LIMIT)
    };
    let outcome = track(theirs.pid())?;
    let attached = outcome.status.success() && String::from_utf8_lossy(&outcome.stdout).contains("let go, unharmed");
    // A kernel with ptrace_scope says what to do instead.
    ensure!(attached || outcome.stderr.contains("ptrace_scope"), "{outcome:?}");
    let ours = dirties(&["lines", "2", "500"])?;
    let outcome = track(ours.pid())?;
    ensure!(outcome.stderr.contains("belongs to user 0") || outcome.stderr.contains("ptrace_scope"), "{outcome:?}");
    ours.unharmed(LIMIT)?;
    theirs.unharmed(LIMIT)
}

/// A process that may not be given a userfaultfd is read, and the report says nothing else.
#[test]
fn a_process_with_a_filter_is_read_and_the_report_says_so() -> Result<()> {
    let program = dirties(&["filtered", "lines", "2", "500"])?;
    let pid = program.pid().to_string();
    let (found, outcome) = found(&["--pid", &pid, "--window", "200ms", "--windows", "3", "--max-pause", "1s"])?;
    let said = String::from_utf8_lossy(&outcome.stdout);
    ensure!(found["way"] == "read" && said.contains("written pages found by reading all of its memory\n"), "{said}");
    let fell_back = said.contains("no write protection (it has a seccomp filter)");
    // Where the kernel has no such protection, no process has.
    ensure!(fell_back || !said.contains("no write protection ("), "{said}");
    ensure!(!said.contains("hold what they held"), "{said}");
    program.unharmed(LIMIT)
}
