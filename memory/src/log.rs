//! The node's log: joins, leaves and refusals, one line each, and a flood as a count.
//! ([`newcomers`]: which joins and leaves are one line.)
//!
//! ```text
//!  worker ── event ─► is there a line for it? ──yes─► queue ─► the log's thread ─► standard error
//!                         └─no─► counted ─────────────────────► "312 more joined in 5 s"
//! ```
//!
//! Each kind of event may have [`BURST`] lines at once, and gains one line a second. So over a long
//! time a peer makes the node write at most one line a second of a kind. A rare event is told
//! however many others come. Only the log's own thread writes, so a full pipe at standard error
//! holds up nothing else. The thread sleeps while nothing is to be written.

mod newcomers;

use farmem_nic::events::{Event, Leaving, Refused, VolumeEvent};
use farmem_nic::volumes::Volume;
use farmem_nic::{MAX_MEMBERS, Member, Nic};
use farmem_protocol::units::bytes;
use farmem_protocol::wire::{VERSION, Verdict};
use newcomers::{Gone, Newcomers, Process};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The most lines of one kind that may come at once.
const BURST: u32 = 10;
/// The time in which a kind gains one line.
const EVERY: Duration = Duration::from_secs(1);
/// How often events without a line are told, as counts.
const COUNTS_EVERY: Duration = Duration::from_secs(5);
/// Lines that wait to be written, at most.
const WAITING: usize = 256;
/// How long the end of the node waits for its last lines to be written.
const FAREWELL: Duration = Duration::from_millis(500);

/// Kinds of events, each with a limit of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Joined,
    Left,
    Refused,
    /// Slabs that were put on the disk, or cannot be read from it.
    Aside,
    /// Events that are told with `-v` alone.
    Other,
}

/// The words of a count, by [`Kind`].
const COUNTED: [&str; 5] = ["joined", "left", "were refused", "on the disk", "other events"];

/// Lines that may still be written of one kind.
#[derive(Clone, Copy)]
struct Allowance {
    lines: u32,
    /// When `lines` grew last.
    since: Instant,
    /// Events without a line since counts were last told.
    untold: u64,
}

impl Allowance {
    /// Takes a line; false: there is none, and the event is counted.
    fn take(&mut self, now: Instant) -> bool {
        let more = now.saturating_duration_since(self.since).as_millis() / EVERY.as_millis();
        if more > 0 {
            self.lines = self.lines.saturating_add(more.min(BURST as u128) as u32).min(BURST);
            self.since = now;
        }
        let may = self.lines > 0;
        self.lines -= u32::from(may);
        self.untold += u64::from(!may);
        may
    }
}

/// The lines that wait to be written, and how many more of each kind may come.
struct Pending {
    allowances: [Allowance; COUNTED.len()],
    lines: VecDeque<String>,
    newcomers: Newcomers,
    /// When counts were last told.
    told: Instant,
    /// The log is being dropped.
    ends: bool,
    /// The log's thread has written everything.
    ended: bool,
}

impl Pending {
    fn new(now: Instant) -> Pending {
        let full = Allowance { lines: BURST, since: now, untold: 0 };
        Pending {
            allowances: [full; COUNTED.len()],
            lines: VecDeque::new(),
            newcomers: Newcomers::default(),
            told: now,
            ends: false,
            ended: false,
        }
    }

    /// Adds a line to be written, or counts the event if there is no line for it.
    fn add(&mut self, kind: Kind, now: Instant, line: impl FnOnce() -> String) {
        let allowance = &mut self.allowances[kind as usize];
        if self.lines.len() >= WAITING {
            allowance.untold += 1;
        } else if allowance.take(now) {
            self.lines.push_back(line());
        }
    }

    /// Adds the lines of an event, which may be none, or those of members that have waited.
    fn hear(&mut self, event: Event<'_>, now: Instant) {
        let (kind, line) = said(event);
        match event {
            Event::Joined(member) => {
                let at_once = self.newcomers.come(member.serial(), process(member), who(member), now);
                self.join(at_once, now);
            }
            Event::Left(member, why, held) => {
                match self.newcomers.go(member.serial(), why == Leaving::Farewell && held == 0) {
                    Gone::Nothing => {}
                    Gone::Visited(who) => self.add(Kind::Joined, now, || format!("came and went: {who}")),
                    Gone::Both(who) => {
                        self.join([who], now);
                        self.add(kind, now, line);
                    }
                    Gone::Left => self.add(kind, now, line),
                }
            }
            Event::Granted(member, _) => self.settle(process(member), now),
            Event::Announced(child) => {
                self.settle(process(child), now);
                self.add(kind, now, line);
            }
            _ if kind == Kind::Other => {}
            _ => self.add(kind, now, line),
        }
    }

    /// The line of a process that has joined waits no longer.
    fn settle(&mut self, process: Process, now: Instant) {
        let settled = self.newcomers.settle(process);
        self.join(settled, now);
    }

    /// Adds the lines of members that have joined.
    fn join(&mut self, joined: impl IntoIterator<Item = String>, now: Instant) {
        joined.into_iter().for_each(|who| self.add(Kind::Joined, now, || format!("joined: {who}")));
    }

    fn is_untold(&self) -> bool {
        self.allowances.iter().any(|allowance| allowance.untold > 0)
    }

    /// The line that tells how many events had no line. All counts are zero then.
    fn counts(&mut self, now: Instant) -> String {
        let counts: Vec<String> = self
            .allowances
            .iter_mut()
            .zip(COUNTED)
            .filter(|(allowance, _)| allowance.untold > 0)
            .map(|(allowance, what)| format!("{} more {what}", std::mem::take(&mut allowance.untold)))
            .collect();
        let seconds = now.saturating_duration_since(self.told).as_secs().max(1);
        self.told = now;
        format!("{} in {seconds} s", counts.join(", "))
    }
}

struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // A panic elsewhere leaves nothing half done here.
        self.pending.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The log of a node. Dropping it writes what waits.
pub struct Log {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Log {
    /// Writes what happens at `nic` from now on. `verbose`: every connection and slab, too.
    pub fn start(nic: &Nic, verbose: bool, out: Box<dyn Write + Send>) -> io::Result<Log> {
        let shared = Arc::new(Shared { pending: Mutex::new(Pending::new(Instant::now())), changed: Condvar::new() });
        let writes = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("log".into()).spawn(move || writes.write(out))?;
        let hears = Arc::clone(&shared);
        nic.events.listen(move |event| {
            let now = Instant::now();
            match (verbose, event) {
                (true, _) => {
                    let (kind, line) = said(event);
                    hears.lock().add(kind, now, line);
                }
                // Of these nothing is told, and they may be many.
                (false, Event::Attached(_) | Event::Cut(..) | Event::Released(_)) => return,
                (false, _) => hears.lock().hear(event, now),
            }
            hears.changed.notify_all();
        });
        Ok(Log { shared, thread: Some(thread) })
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut pending = self.shared.lock();
        pending.ends = true;
        self.shared.changed.notify_all();
        // The wait is limited, because it may be that nobody reads standard error.
        let waited = self.shared.changed.wait_timeout_while(pending, FAREWELL, |pending| !pending.ended);
        if waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The log's thread: writes lines as they come or have waited, and counts every
    /// [`COUNTS_EVERY`].
    fn write(&self, mut out: Box<dyn Write + Send>) {
        let mut pending = self.lock();
        loop {
            let (now, due) = (Instant::now(), pending.told + COUNTS_EVERY);
            let settled = if pending.ends { pending.newcomers.all() } else { pending.newcomers.due(now) };
            pending.join(settled, now);
            if let Some(line) = pending.lines.pop_front() {
                drop(pending);
                let _ = writeln!(out, "farmem: {line}");
                pending = self.lock();
            } else if pending.is_untold() && (now >= due || pending.ends) {
                let line = pending.counts(now);
                pending.lines.push_back(line);
            } else if pending.ends {
                break;
            } else {
                let counts = pending.is_untold().then_some(due);
                if counts.is_none() {
                    // No event is without a line, so the next count covers the time from here on.
                    pending.told = now;
                }
                let until = counts.into_iter().chain(pending.newcomers.next()).min();
                pending = match until {
                    Some(until) => match self.changed.wait_timeout(pending, until.saturating_duration_since(now)) {
                        Ok((pending, _)) => pending,
                        Err(poisoned) => poisoned.into_inner().0,
                    },
                    None => self.changed.wait(pending).unwrap_or_else(|poisoned| poisoned.into_inner()),
                };
            }
        }
        pending.ended = true;
        self.changed.notify_all();
    }
}

/// `1 program`, `2 programs`.
pub(crate) fn programs(n: usize) -> String {
    if n == 1 { "1 program".into() } else { format!("{n} programs") }
}

/// A member, as operators know it.
pub(crate) fn name(member: &Member) -> String {
    let tenant = member.tenant().map(|tenant| format!(" for {}", tenant.name)).unwrap_or_default();
    format!("process {} of {}{tenant}", member.pid(), member.peer())
}

/// A member's own description, if it has one.
fn says(member: &Member) -> String {
    let names = member.names();
    let or = |text: &str| if text.is_empty() { "?".to_owned() } else { text.to_owned() };
    match names.host.is_empty() && names.user.is_empty() && names.program.is_empty() {
        true => String::new(),
        false => {
            let (program, user, host) = (or(names.program.as_str()), or(names.user.as_str()), or(names.host.as_str()));
            format!(": {program}, of {user} at {host}")
        }
    }
}

/// A member that has joined.
fn who(member: &Member) -> String {
    format!("{}, run {:016x}{}", name(member), member.run_id(), says(member))
}

/// The process of a member; of an announced child, its parent.
fn process(member: &Member) -> Process {
    (member.run_id(), member.pid())
}

/// A volume, as operators know it.
pub(crate) fn volume_name(volume: &Volume) -> String {
    format!("volume {:016x} of {} at {}", volume.name(), volume.names().host, volume.peer())
}

/// An event's kind, and its line.
fn said(event: Event<'_>) -> (Kind, impl FnOnce() -> String) {
    let kind = match event {
        Event::Joined(_) | Event::Announced(_) | Event::Beside(..) => Kind::Joined,
        Event::Left(..) => Kind::Left,
        Event::Refused(..) => Kind::Refused,
        Event::Aside(..) | Event::Unreadable(_) => Kind::Aside,
        Event::Volume(_, VolumeEvent::Made) => Kind::Joined,
        Event::Volume(_, VolumeEvent::Freed | VolumeEvent::Forgotten | VolumeEvent::Revoked) => Kind::Left,
        Event::Volume(..) => Kind::Other,
        Event::Attached(_) | Event::Cut(..) | Event::Granted(..) | Event::Released(_) => Kind::Other,
    };
    (kind, move || line(event))
}

fn line(event: Event<'_>) -> String {
    match event {
        Event::Joined(member) => format!("joined: {}", who(member)),
        Event::Announced(member) => format!("joined: a child of {}, run {:016x}", name(member), member.run_id()),
        Event::Left(member, why, held) => {
            let why = match why {
                Leaving::Farewell => "it said goodbye",
                Leaving::Ended => "it has ended",
                Leaving::Broke => "it broke the rules",
                Leaving::Grace => "its connection did not come back within its grace",
                Leaving::Run => "its run is over",
                Leaving::Revoked => "its token was revoked, or has expired",
                Leaving::Expelled => "it was silent, and another process that uses its region had it expelled",
                Leaving::GaveWay => "it was away, held nothing, and a newcomer needed its place",
            };
            let held = if held > 0 { format!("; it held {}", bytes(held)) } else { String::new() };
            format!("left: {}: {why}{held}", name(member))
        }
        Event::Refused(peer, why) => format!("refused: {peer}: {}", refused(why)),
        Event::Volume(volume, what) => {
            let name = volume_name(volume);
            match what {
                VolumeEvent::Made => format!("swap: {name} of {}", bytes(u64::from(volume.slots()) * 4096)),
                VolumeEvent::Attached => format!("connected: {name}"),
                VolumeEvent::Cut(kept_ms) => format!("cut off: {name}: kept for {} s", kept_ms / 1000),
                VolumeEvent::Freed => format!("swap ended: {name}"),
                VolumeEvent::Revoked => format!("swap ended: {name}: its token was revoked, or has expired"),
                VolumeEvent::Forgotten => format!("swap forgotten: {name}: no connection came back within its grace"),
            }
        }
        Event::Beside(member, region) => {
            let [this, other] = if member.tenant().is_some() { ["with", "without"] } else { ["without", "with"] };
            format!(
                "two regions {region}: one was made {other} a token, and now one {this} a token, by {}: if both are of one \
                 store, name the token at all of its front ends",
                name(member)
            )
        }
        Event::Aside(member, aside) => {
            format!("put on the disk: {} of {}, which does not answer", bytes(aside), name(member))
        }
        Event::Unreadable(member) => format!("lost: a slab of {}: the disk does not give it back", name(member)),
        Event::Attached(member) => format!("connected: {}", name(member)),
        Event::Cut(member, grace_ms) => {
            format!("cut off: {}: kept for {}.{} s", name(member), grace_ms / 1000, grace_ms / 100 % 10)
        }
        Event::Granted(member, Ok(())) => format!("granted: {}: holds {}", name(member), bytes(member.held())),
        Event::Granted(member, Err(why)) => format!("not granted: {}: {why}", name(member)),
        Event::Released(member) => format!("released: {}: holds {}", name(member), bytes(member.held())),
    }
}

fn refused(why: Refused) -> String {
    match why {
        Refused::Version(theirs) => format!("it speaks version {theirs} of the protocol, this node version {VERSION}"),
        Refused::Verdict(verdict) => match verdict {
            Verdict::Version => "it speaks another version of the protocol".into(),
            Verdict::Draining => "this node is going down".into(),
            Verdict::Unknown => "it is no member any more: its grace or its run was over".into(),
            Verdict::Incarnation => "it is a member of a node that was here before".into(),
            Verdict::Full => {
                format!("no place is left for it, of {MAX_MEMBERS} programs and their connections, or it has its share")
            }
            Verdict::NoRoom(_) => "it wants a larger volume than can be promised".into(),
            Verdict::Malformed => "its hello makes no sense".into(),
            Verdict::NoToken => "it named no token".into(),
            Verdict::WrongToken => "its token is not known here, or its proof is wrong".into(),
            Verdict::Revoked => "its token was revoked".into(),
            Verdict::Expired => "its token has expired".into(),
            Verdict::NoTokens => "it named a token, and this node has none (--tokens)".into(),
        },
        Refused::Broken(rule) => rule.to_string(),
        Refused::Silent => "it did not say who it is within 10 s".into(),
        Refused::Crowded => "it had not said who it is, and others came".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(pending: &mut Pending, kind: Kind, n: u32, now: Instant) {
        (0..n).for_each(|i| pending.add(kind, now, || format!("{kind:?} {i}")));
    }

    #[test]
    fn a_flood_of_one_kind_is_a_count_and_hides_no_other() {
        let begun = Instant::now();
        let mut pending = Pending::new(begun);
        add(&mut pending, Kind::Joined, 1000, begun);
        add(&mut pending, Kind::Refused, 1, begun);
        assert_eq!((pending.lines.len() as u32, pending.lines.back().unwrap().as_str()), (BURST + 1, "Refused 0"));
        let later = begun + Duration::from_secs(5);
        assert_eq!(pending.counts(later), format!("{} more joined in 5 s", 1000 - BURST));
        assert!(!pending.is_untold());
        // One line a second is added, to no more than there were.
        add(&mut pending, Kind::Joined, 1000, later);
        assert_eq!(pending.lines.len() as u32, BURST + 1 + 5);
        add(&mut pending, Kind::Joined, 1000, later + Duration::from_secs(3600));
        assert_eq!(pending.lines.len() as u32, BURST + 1 + 5 + BURST);
    }

    #[test]
    fn lines_that_nobody_takes_are_few() {
        let begun = Instant::now();
        let mut pending = Pending::new(begun);
        for second in 0..100 {
            add(&mut pending, Kind::Left, 10, begun + Duration::from_secs(second * 60));
        }
        assert_eq!((pending.lines.len(), pending.is_untold()), (WAITING, true));
    }
}
