//! Trackers that are killed, at each of their requests and at any time, leave the program as it was (`programs/intact.c`
//! looks at its own registers, calls and signals).

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use farmem_protocol::random::Random;
use farmem_sys::ptrace::{self, Follow, Told};
use farmem_tests::compile;
use farmem_tests::farmem::binary;
use farmem_tests::process::{self, Running, eventually};

const LIMIT: Duration = Duration::from_secs(60);

fn intact(arguments: &[&str]) -> Result<Running> {
    let mut program = Command::new(compile::c("intact", &["-mno-red-zone"])?);
    program.args(arguments);
    farmem_sys::process::end_with_us(&mut program, libc::SIGKILL);
    let running = process::spawn(program)?;
    // Its handler is there: SIGTERM would end it before, and say nothing.
    let catches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or_default();
        u64::from_str_radix(caught.trim(), 16).is_ok_and(|caught| caught >> (libc::SIGTERM - 1) & 1 != 0)
    };
    ensure!(eventually(LIMIT, catches), "it does not start");
    Ok(running)
}

/// Starts a tracker. `held`: it stops before it does anything at all.
fn track(program: &Running, held: bool) -> Result<Running> {
    let mut track = Command::new("sh");
    let stop = if held { "kill -STOP $$; " } else { "" };
    track.arg("-c").arg(format!("{stop}exec \"$@\"")).arg("sh").arg(binary());
    track.args(["track", "--window", "5ms", "--find", "protect", "--pid"]).arg(program.pid().to_string());
    farmem_sys::process::end_with_us(&mut track, libc::SIGKILL);
    process::spawn(track)
}

fn tracer(program: &Running) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.pid())).ok()?;
    status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?.trim().parse().ok()
}

fn is_stopped(program: &Running) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
}

fn alone_and_alive(program: &Running, when: &str) -> Result<()> {
    ensure!(eventually(LIMIT, || tracer(program).is_none_or(|tracer| tracer == 0)));
    ensure!(program.alive(), "{when}: it has ended: {}", program.stderr());
    Ok(())
}

/// A thread is given registers to go on its way back, twice for another call before, and no more.
const BORROWS: usize = 3;

/// Kills a tracker before its `n`th request about a tracee that follows the `given`th by which it gave registers, or, if
/// it gives registers again before that, at this. Returns whether it did.
fn killed_before(program: &Running, given: usize, n: usize) -> Result<bool> {
    let tracking = track(program, true)?;
    ensure!(eventually(LIMIT, || is_stopped(&tracking)), "the tracker does not stop");
    let tid = tracking.pid() as u32;
    // The tracker is traced itself, from before its first request.
    ptrace::seize(tid, Follow { forks: false })?;
    tracking.signal(libc::SIGCONT);
    let (mut gave, mut requests) = (0, 0);
    let until = Instant::now() + LIMIT;
    let reached = |gave: usize, requests: usize| gave > given || requests == n;
    while !reached(gave, requests) {
        let Some((_, told)) = ptrace::told_by(tid as i32)? else {
            ensure!(Instant::now() < until, "request {n} after {given} does not come");
            std::thread::yield_now();
            continue;
        };
        let signal = match told {
            Told::Call => {
                let call = ptrace::registers(tid)?;
                let begins = call.rax as i64 == -i64::from(libc::ENOSYS);
                if begins && call.orig_rax as i64 == libc::SYS_ptrace {
                    requests += usize::from(gave == given);
                    // This one is still to be made where it is the one to be killed before.
                    gave += usize::from(call.rdi == u64::from(libc::PTRACE_SETREGS) && !reached(gave, requests));
                }
                0
            }
            Told::Signal(signal) => signal,
            Told::Exited(_) | Told::Killed(_) => bail!("the tracker has ended: {}", tracking.stderr()),
            _ => 0,
        };
        if !reached(gave, requests) {
            ptrace::resume_to_call(tid, signal)?;
        }
    }
    tracking.signal(libc::SIGKILL);
    while !matches!(ptrace::told_by(tid as i32)?, Some((_, Told::Killed(_)))) {
        let _ = ptrace::resume(tid, 0);
        ensure!(Instant::now() < until, "the tracker does not end");
        std::thread::yield_now();
    }
    alone_and_alive(program, &format!("killed before request {n} after {given}"))?;
    Ok(gave > given)
}

/// Kills one before each request, until some requests after the program is given back. How many there are differs from run
/// to run, for a tracker asks while it waits: they are counted from the last that gave registers.
fn killed_before_each(arguments: &[&str]) -> Result<()> {
    let program = intact(arguments)?;
    for given in 0..BORROWS {
        let mut n = 1;
        while !killed_before(&program, given, n)? {
            n += 1;
            ensure!(n < 1000, "registers are not given after {given}");
        }
    }
    for n in 1..=16 {
        ensure!(!killed_before(&program, BORROWS, n)?, "registers are given four times");
    }
    program.unharmed(LIMIT)
}

#[test]
fn before_any_request_while_registers_are_kept() -> Result<()> {
    killed_before_each(&["registers", "2"])
}

#[test]
fn before_any_request_while_it_sleeps() -> Result<()> {
    killed_before_each(&["asleep", "sleep"])
}

#[test]
fn before_any_request_while_it_waits_for_a_signal() -> Result<()> {
    killed_before_each(&["asleep", "suspend"])
}

#[test]
fn at_any_time() -> Result<()> {
    let ways: [&[&str]; 5] =
        [&["registers", "3"], &["asleep", "sleep"], &["asleep", "poll"], &["asleep", "read"], &["asleep", "suspend"]];
    let mut random = Random::new(1);
    for way in ways {
        let program = intact(way)?;
        for round in 0..60 {
            let tracking = track(&program, false)?;
            let attached = || tracer(&program) == Some(tracking.pid());
            let until = Instant::now() + LIMIT;
            while !attached() {
                ensure!(Instant::now() < until, "not attached: {}", tracking.stderr());
                std::thread::yield_now();
            }
            // Most of these are in the middle of it, and on a busy machine all.
            let moment = Instant::now() + Duration::from_micros(random.below(3000));
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            // Stopped as a whole at the same time: wherever a thread is, it stops there, and goes on from there.
            let stops = round % 4 == 0;
            if stops {
                // Not by `process::send`, which waits until the program stands still.
                farmem_sys::process::send(program.pid() as u32, libc::SIGSTOP)?;
            }
            tracking.signal(libc::SIGKILL);
            tracking.wait(LIMIT)?;
            alone_and_alive(&program, &format!("{way:?}, round {round}"))?;
            if stops {
                ensure!(eventually(LIMIT, || is_stopped(&program)), "{way:?}, round {round}: it does not stop");
                program.signal(libc::SIGCONT);
            }
        }
        program.unharmed(LIMIT)?;
    }
    Ok(())
}
