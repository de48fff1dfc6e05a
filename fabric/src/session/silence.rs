//! Whether the node's machine can still be heard.
//!
//! A network that goes silent announces nothing: packets vanish. A stopped node looks alike to who
//! waits for its answer, but its kernel still acknowledges. So a membership listens for signs of
//! life of the node's *machine*:
//!
//! * Its control connection is acknowledged at least every [`KEEP_S`]: the kernel asks when nothing
//!   else is sent. A stopped node's kernel answers too, and its buffers never fill, for only one
//!   small request is under way there.
//! * A connection that can be made is a sign, also where an older one stays mute: a middlebox has
//!   forgotten that one, or its next retransmission is seconds away.
//!
//! No silence of one connection proves anything. When the control connection has been mute for
//! [`DOUBT_NS`] it counts as cut, and the node is dialled until it is reached or the grace is over:
//!
//! ```text
//!  last sign ── KEEP ──► first packet without an answer ───────── grace ─────────► last attempt ─► Lost
//!      └──── DOUBT ────────► dial again, and again …
//! ```
//!
//! Only what answers *us* is a sign. A node that hears nothing any more sends its last answer again
//! and again, and the kernel counts each copy as an acknowledgement. So a packet with data that
//! brings nothing new is no sign.
//!
//! The network may have gone silent up to [`LATEST_NS`] after the last sign. The grace counts from
//! there: a cut that is shorter is survived, and a longer one ends the membership within the grace
//! and [`BOUND_NS`].

use crate::link::{Link, Reach};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// How long the control connection is idle before the kernel asks for an acknowledgement, in
/// seconds.
pub(super) const KEEP_S: i32 = 1;
/// How long nothing may be heard before the connection counts as cut.
pub(crate) const DOUBT_NS: u64 = 1_500_000_000;
/// How long after the last sign a silence may have begun: [`KEEP_S`], and the kernel's timers are
/// an eighth late.
const LATEST_NS: u64 = 1_150_000_000;
/// The longest that a membership may take beyond its grace to be lost, where its process has the
/// CPU. A node that hears nothing repeats its last answer for up to 1.4 s, which may hide when the
/// silence began from a process that did not listen then.
pub const BOUND_NS: u64 = 4_000_000_000;
/// The most that one look adds to an outage. A host that was stopped or suspended has not waited
/// meanwhile.
const STEP_NS: u64 = 1_000_000_000;

/// The last sign of life of a node's machine, and what was known of its connection then.
///
/// Threads that listen at once may mix their looks. A look that is lost for it comes again, within
/// [`KEEP_S`].
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// When; 0 before the first.
    pub ns: AtomicU64,
    segments: AtomicU32,
    progress: AtomicU64,
}

impl Heard {
    /// Whether packets with data came since the last look, and brought nothing new.
    fn repeats(&self, (segments, progress): (u32, u64)) -> bool {
        let more = self.segments.swap(segments, Ordering::Relaxed) != segments;
        self.progress.swap(progress, Ordering::Relaxed) == progress && more
    }
}

/// Listens for a node's machine while an answer of the node's is awaited.
#[derive(Clone, Copy)]
pub(crate) struct Ear<'a> {
    pub reach: &'a Reach,
    pub heard: &'a Heard,
}

impl<'a> Ear<'a> {
    /// `heard` learns when the machine was heard.
    pub fn at(reach: &'a Reach, heard: &'a Heard) -> Ear<'a> {
        Ear { reach, heard }
    }

    /// Listens on a connection of which an acknowledgement is asked each [`KEEP_S`]. How long it
    /// has been mute.
    pub fn listen(&self, link: &Link) -> u64 {
        let (mute_ns, now_ns) = (link.mute_ns(), self.reach.now_ns());
        let before_ns = self.heard.ns.load(Ordering::Relaxed);
        if self.heard.repeats(link.traffic()) && before_ns != 0 {
            return mute_ns.max(now_ns.saturating_sub(before_ns));
        }
        self.heard.ns.fetch_max(now_ns.saturating_sub(mute_ns), Ordering::Relaxed);
        mute_ns
    }
}

/// How long a connection has been gone, as far as this process watched.
#[derive(Debug)]
pub(crate) struct Outage {
    /// With the node's machine out of reach.
    lasted_ns: u64,
    /// Altogether.
    unanswered_ns: u64,
    looked_ns: u64,
    /// Since when the node's machine has refused every attempt.
    pub refused_ns: Option<u64>,
    /// It began with silence, and not with the connection's end.
    pub silent: bool,
}

impl Outage {
    /// One that begins now: the connection has closed.
    pub fn cut(now_ns: u64) -> Outage {
        Outage::begun(now_ns, 0)
    }

    /// One of a connection that has been mute for so long.
    pub fn begun(now_ns: u64, mute_ns: u64) -> Outage {
        let lasted_ns = mute_ns.saturating_sub(LATEST_NS).min(STEP_NS);
        let silent = mute_ns >= DOUBT_NS;
        Outage { lasted_ns, unanswered_ns: 0, looked_ns: now_ns, refused_ns: None, silent }
    }

    /// How long it has lasted.
    pub fn lasts(&mut self, now_ns: u64) -> u64 {
        let step = now_ns.saturating_sub(self.looked_ns).min(STEP_NS);
        self.lasted_ns += step;
        self.unanswered_ns += step;
        self.looked_ns = now_ns;
        self.lasted_ns
    }

    /// The node's machine was reached, and the node did not answer. How long it has not.
    pub fn unanswered(&mut self, now_ns: u64) -> u64 {
        self.lasts(now_ns);
        self.lasted_ns = 0;
        self.unanswered_ns
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_silence_counts_from_when_it_may_have_begun() {
        let mut outage = Outage::begun(10, 1600 * MS);
        assert_eq!((outage.silent, outage.lasts(10 + 300 * MS)), (true, 750 * MS));
        assert!(!Outage::cut(10).silent && !Outage::begun(10, 1400 * MS).silent);
    }

    #[test]
    fn what_is_said_again_is_no_sign() {
        let heard = Heard::default();
        assert!(!heard.repeats((3, 200)), "the first look");
        assert!(!heard.repeats((3, 200)), "an acknowledgement without data");
        assert!(!heard.repeats((4, 260)), "an answer");
        assert!(heard.repeats((5, 260)), "the same answer");
        assert!(!heard.repeats((5, 260)));
        assert!(!heard.repeats((5, 300)), "an acknowledgement of ours");
    }

    #[test]
    fn time_in_which_nobody_watched_does_not_count() {
        let hour = 3_600_000 * MS;
        assert_eq!(Outage::begun(10, hour).lasts(10), STEP_NS);
        let mut outage = Outage::cut(10);
        assert_eq!((outage.lasts(10 + hour), outage.lasts(10 + hour + MS)), (STEP_NS, STEP_NS + MS));
        assert_eq!((outage.unanswered(10 + hour + MS), outage.lasts(10 + hour + 3 * MS)), (STEP_NS + MS, 2 * MS));
    }
}
