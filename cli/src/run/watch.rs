//! The supervisor while the program runs: signals in, the program's end out.
//!
//! A signal that a process sent us is meant for the program and is forwarded. One that the terminal
//! sent has reached the program already, because it is in the same process group. When job control
//! stops the program, we stop with it, so that the shell sees the job stopped.

use std::path::Path;
use std::time::{Duration, Instant};

use farmem_sys::process::{self, Change, Signals};

use super::embedded::Embedded;
use crate::counters::{Peaks, Sample};

/// How often the memory that the run holds is sampled for its peak.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// By itself, with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ending {
    /// Ends this process in the same way.
    pub fn imitate(self) -> ! {
        match self {
            Ending::Exited(status) => std::process::exit(status),
            Ending::Killed(signal) => process::end_by(signal),
        }
    }
}

/// Waits for the program's end, forwarding signals to it; gives the greatest memory seen meanwhile.
/// Calls `look` twice a second.
pub fn until_end(
    signals: &Signals,
    program: u32,
    embedded: Option<&Embedded>,
    counters: &Path,
    mut look: impl FnMut(),
) -> (Ending, Peaks) {
    let mut peaks = Peaks::default();
    let mut next = Instant::now() + SAMPLE_EVERY;
    loop {
        let now = Instant::now();
        // By the clock: children may end more often than that.
        if now >= next {
            if let Ok(sample) = Sample::read(counters) {
                peaks.note(&sample);
            }
            look();
            next = now + SAMPLE_EVERY;
        }
        if let Some(arrived) = signals.next(next.saturating_duration_since(now))
            && arrived.sent
            && arrived.number != libc::SIGCHLD
        {
            let _ = process::send(program, arrived.number);
        }
        // Children are looked at after every signal: SIGCHLDs that come together are one.
        let mut ending = None;
        while let Ok(Some((child, change))) = process::any_change() {
            match change {
                Change::Exited(status) if child == program => ending = Some(Ending::Exited(status)),
                Change::Killed(signal) if child == program => ending = Some(Ending::Killed(signal)),
                Change::Stopped(libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) if child == program => {
                    process::stop_self();
                    let _ = process::send(program, libc::SIGCONT);
                }
                Change::Exited(_) | Change::Killed(_) => {
                    // The runtime in the program reports that its node is gone, and ends the
                    // program at the next page it needs. Only we know the node's own complaint.
                    if let Some(complaint) = embedded.and_then(|node| node.ended(child)) {
                        eprintln!("farmem: node: {complaint}");
                    }
                }
                // A plain SIGSTOP is somebody's who will continue the program himself, and does not
                // know of us.
                Change::Stopped(_) | Change::Continued => {}
            }
        }
        if let Some(ending) = ending {
            return (ending, peaks);
        }
    }
}
