//! Members that have just joined: the line of a join waits for a moment.
//!
//! A process on the node's machine that names a TCP address joins twice: there it is told the node's
//! Unix socket, and goes over. `farmem status` and `farmem check` join to read, and leave. For an
//! operator both are one thing, and have one line:
//!
//! ```text
//!  joins ─► waits ─┬─ a second has passed, or it is granted memory ─► "joined"
//!                  ├─ leaves, and the same process has joined again ─► nothing
//!                  └─ leaves, and has held nothing ─► "came and went"
//! ```
//!
//! That the first of two connections has ended may be heard late, or after the log's last line. So a
//! join waits for longer once its process has joined again, and has no line where the log ends.
//!
//! Pure: time is an argument.

use std::time::{Duration, Instant};

/// How long the line of a join waits.
const WAITS: Duration = Duration::from_secs(1);
/// How long it waits once the process has joined again.
const WAITS_OVER: Duration = Duration::from_secs(10);
/// Joins that wait at once, at most. Others have their line, or are counted, as they come.
const MOST: usize = 64;

/// A process of a run: the run's public name, and the process's number.
pub(super) type Process = (u64, u32);

struct Newcomer {
    serial: u64,
    process: Process,
    who: String,
    since: Instant,
    /// Its process has joined again, and has its line by that.
    over: bool,
}

impl Newcomer {
    fn until(&self) -> Instant {
        self.since + if self.over { WAITS_OVER } else { WAITS }
    }
}

/// The members whose join has no line yet, in the order in which they came.
#[derive(Default)]
pub(super) struct Newcomers(Vec<Newcomer>);

/// What is to be told of a member that leaves.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Gone {
    /// That it leaves.
    Left,
    /// That it, as it is named here, has joined, and that it leaves.
    Both(String),
    /// One line for both.
    Visited(String),
    /// Nothing: its process goes on as another member.
    Nothing,
}

impl Newcomers {
    /// A member has joined. Returns its name if its line is not to wait.
    pub fn come(&mut self, serial: u64, process: Process, who: String, now: Instant) -> Option<String> {
        self.0.iter_mut().filter(|newcomer| newcomer.process == process).for_each(|first| first.over = true);
        if self.0.len() >= MOST {
            return Some(who);
        }
        self.0.push(Newcomer { serial, process, who, since: now, over: false });
        None
    }

    /// The last join of a process, whose wait is over because it is granted memory or has children.
    /// That it left where it joined before may be heard later than that.
    pub fn settle(&mut self, process: Process) -> Option<String> {
        let last = self.0.iter().rposition(|newcomer| newcomer.process == process)?;
        Some(self.0.remove(last).who)
    }

    /// Those who have waited long enough.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        self.0.extract_if(.., |newcomer| now >= newcomer.until()).map(|newcomer| newcomer.who).collect()
    }

    /// All that are left where the log ends, but those whose process has its line.
    pub fn all(&mut self) -> Vec<String> {
        self.0.drain(..).filter(|newcomer| !newcomer.over).map(|newcomer| newcomer.who).collect()
    }

    /// When the next has waited long enough.
    pub fn next(&self) -> Option<Instant> {
        self.0.iter().map(Newcomer::until).min()
    }

    /// A member leaves. `quietly`: it said goodbye, and held nothing.
    pub fn go(&mut self, serial: u64, quietly: bool) -> Gone {
        let Some(at) = self.0.iter().position(|newcomer| newcomer.serial == serial) else { return Gone::Left };
        let Newcomer { process, who, over, .. } = self.0.remove(at);
        if !quietly {
            return Gone::Both(who);
        }
        if over {
            return Gone::Nothing;
        }
        // Where it is the last join whose end is heard first, the line is that of an earlier one.
        match self.0.iter_mut().rev().find(|other| other.process == process) {
            Some(earlier) => {
                earlier.over = false;
                Gone::Nothing
            }
            None => Gone::Visited(who),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, ms: u64) -> Instant {
        begun + Duration::from_millis(ms)
    }

    #[test]
    fn who_goes_over_to_the_socket_has_one_line() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        assert_eq!(newcomers.come(1, (7, 77), "by tcp".into(), begun), None);
        assert_eq!(newcomers.come(2, (7, 77), "by the socket".into(), at(begun, 1)), None);
        assert_eq!(newcomers.go(1, true), Gone::Nothing);
        assert!(newcomers.due(at(begun, 1000)).is_empty());
        assert_eq!(newcomers.next(), Some(at(begun, 1001)));
        assert_eq!(newcomers.due(at(begun, 1001)), ["by the socket"]);
        assert_eq!((newcomers.go(2, true), newcomers.next()), (Gone::Left, None));
    }

    /// The node hears of the grant before it hears that the first connection has ended.
    #[test]
    fn who_goes_over_and_is_granted_memory_at_once_has_one_line() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        newcomers.come(1, (7, 77), "by tcp".into(), begun);
        newcomers.come(2, (7, 77), "by the socket".into(), begun);
        assert_eq!(newcomers.settle((7, 77)).as_deref(), Some("by the socket"));
        assert_eq!((newcomers.go(1, true), newcomers.go(2, true)), (Gone::Nothing, Gone::Left));
        // Two connections that stay have a line each.
        newcomers.come(3, (7, 77), "one".into(), begun);
        newcomers.come(4, (7, 77), "another".into(), begun);
        assert_eq!(newcomers.settle((7, 77)).as_deref(), Some("another"));
        assert!(newcomers.due(at(begun, 9_999)).is_empty());
        assert_eq!(newcomers.due(at(begun, 10_000)), ["one"]);
    }

    /// On a busy machine the end of the first connection is heard late: after a second, after the end of
    /// the other one, or not before the log ends.
    #[test]
    fn who_goes_over_has_one_line_however_late_the_first_end_is_heard() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        let both = |newcomers: &mut Newcomers| {
            newcomers.come(1, (7, 77), "by tcp".into(), begun);
            newcomers.come(2, (7, 77), "by the socket".into(), begun);
        };
        both(&mut newcomers);
        assert_eq!(newcomers.due(at(begun, 1000)), ["by the socket"]);
        assert_eq!((newcomers.go(1, true), newcomers.go(2, true)), (Gone::Nothing, Gone::Left));
        both(&mut newcomers);
        assert_eq!(newcomers.go(2, true), Gone::Nothing);
        assert_eq!(newcomers.go(1, true), Gone::Visited("by tcp".into()));
        both(&mut newcomers);
        assert_eq!(newcomers.settle((7, 77)).as_deref(), Some("by the socket"));
        assert!(newcomers.all().is_empty());
        both(&mut newcomers);
        assert_eq!(newcomers.all(), ["by the socket"]);
        both(&mut newcomers);
        assert_eq!(newcomers.go(2, true), Gone::Nothing);
        assert_eq!(newcomers.all(), ["by tcp"]);
    }

    #[test]
    fn who_only_reads_has_one_line() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        newcomers.come(1, (7, 77), "status".into(), begun);
        newcomers.come(2, (8, 77), "of another run".into(), begun);
        assert_eq!(newcomers.go(1, true), Gone::Visited("status".into()));
        // It held something, or was cut off.
        assert_eq!(newcomers.go(2, false), Gone::Both("of another run".into()));
        assert_eq!(newcomers.go(3, true), Gone::Left);
    }

    #[test]
    fn who_is_granted_memory_has_its_line_at_once() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        newcomers.come(1, (7, 77), "a".into(), begun);
        newcomers.come(2, (7, 78), "b".into(), begun);
        assert_eq!(newcomers.settle((7, 77)).as_deref(), Some("a"));
        assert_eq!((newcomers.go(1, true), newcomers.all()), (Gone::Left, vec!["b".to_owned()]));
    }

    #[test]
    fn few_wait() {
        let (mut newcomers, begun) = (Newcomers::default(), Instant::now());
        let told = (0..1000).filter(|&n| newcomers.come(n, (n, 1), String::new(), begun).is_some());
        assert_eq!((told.count(), newcomers.all().len()), (1000 - MOST, MOST));
    }
}
