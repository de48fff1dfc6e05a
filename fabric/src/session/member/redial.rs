//! Restoring a connection that was cut: the node is dialled until it answers, or is lost, by the
//! rules at the top of [`crate::session`].

use super::{CONNECT_NS, HASTE, Membership, REFUSED_NS, RETRY_NS, SILENT_NS};
use crate::Lost;
use crate::link::Link;
use crate::session::dial::{Greeted, NoDial, Patience, dial, token_refused};
use crate::session::silence::Outage;
use farmem_protocol::wire::{Known, Purpose, Secret, Verdict};
use farmem_sys::raw::{self, Errno};
use std::sync::atomic::Ordering;

impl Membership {
    /// The first connection of a queue pair. At a node that has as many queue pairs of this member
    /// as it can have none is made, and nothing else of the member is lost.
    pub fn attach(&self, purpose: Purpose) -> Result<Link, Lost> {
        let full = || self.lost_because("it has as many queue pairs of this program as one can have".into());
        let mut outage = Outage::cut(self.reach.now_ns());
        self.redial(purpose, &mut outage, Some(&full)).map(|(link, _)| link)
    }

    /// A new connection for `purpose` in place of one that was cut.
    pub fn restore(&self, purpose: Purpose) -> Result<Link, Lost> {
        self.redial(purpose, &mut Outage::cut(self.reach.now_ns()), None).map(|(link, _)| link)
    }

    /// The control connection of the member of this secret, and its owner id.
    pub fn restore_as(&self, secret: Secret) -> Result<(Link, u16), Lost> {
        let purpose = Purpose::Rejoin(Known { secret, ..self.known() });
        self.redial(purpose, &mut Outage::cut(self.reach.now_ns()), None)
    }

    /// Dials until the node answers, or is lost.
    ///
    /// `full`: the error when the node has no room for it. `None`: room is waited for until the
    /// grace is over.
    pub(super) fn redial(
        &self,
        purpose: Purpose,
        outage: &mut Outage,
        full: Option<&dyn Fn() -> Lost>,
    ) -> Result<(Link, u16), Lost> {
        let by_itself = matches!(purpose, Purpose::Rejoin(_)) || raw::is_away();
        let mut hasty = self.has_spare();
        loop {
            self.check()?;
            let over = self.is_over(outage);
            let patience = if hasty { HASTE } else { Patience { connect_ns: CONNECT_NS, answer_ns: SILENT_NS } };
            match self.dial(purpose, patience) {
                Ok(found) => return Ok(found),
                Err(failure) if hasty && (failure.is_the_nodes() || self.doubts(&failure)) => {
                    hasty = false;
                    self.end_if_spared(|| format!("its connection was cut and is not made again at once ({failure})"))?;
                    continue;
                }
                Err(NoDial::Silent) => return Err(self.silent()),
                Err(failure) => match full {
                    Some(full) if matches!(failure, NoDial::Verdict(Verdict::Full)) => return Err(full()),
                    _ => self.judge(failure, outage, over)?,
                },
            }
            // The attempt that decides begins when the grace is over.
            if over || !self.is_over(outage) {
                self.reach.sleep_ns(RETRY_NS);
            }
            if !by_itself {
                self.await_machine()?;
            }
        }
    }

    /// Waits until the node's machine can be reached. The control connection tells, because it may
    /// have been silent for longer than this one.
    fn await_machine(&self) -> Result<(), Lost> {
        loop {
            self.watch()?;
            if self.is_near() {
                return Ok(());
            }
            self.reach.sleep_ns(RETRY_NS);
        }
    }

    /// One attempt.
    pub(super) fn dial(&self, purpose: Purpose, patience: Patience) -> Result<(Link, u16), NoDial> {
        let Greeted { link, welcome, .. } = dial(self.ear(), purpose, self.pass.as_ref(), patience)?;
        self.health.heard.ns.store(self.reach.now_ns(), Ordering::Relaxed);
        self.watch_silence(&link, matches!(purpose, Purpose::Attach(..)));
        Ok((link, welcome.owner))
    }

    pub(super) fn is_over(&self, outage: &mut Outage) -> bool {
        outage.lasts(self.reach.now_ns()) >= self.grace.as_nanos() as u64
    }

    /// Whether to dial again after a failed attempt. `over`: the grace was over when it began. Some
    /// answers prove that the node, or its memory, is gone; all other failures are waited out.
    pub(super) fn judge(&self, failure: NoDial, outage: &mut Outage, over: bool) -> Result<(), Lost> {
        let now = self.reach.now_ns();
        let refused = matches!(failure, NoDial::System(Errno(libc::ECONNREFUSED | libc::ENOENT)));
        if over || !self.doubts(&failure) {
            self.accept(&failure)?;
        }
        if refused {
            let since = *outage.refused_ns.get_or_insert(now);
            if self.direct && now - since >= REFUSED_NS {
                return Err(self.end("its process has ended: nobody listens at its address any more"));
            }
        } else {
            outage.refused_ns = None;
        }
        // A stopped node's kernel has no room for more connections, and acknowledges on the one for
        // control.
        if matches!(failure, NoDial::System(Errno(libc::ETIMEDOUT))) && self.is_near() {
            return if outage.unanswered(now) < SILENT_NS { Ok(()) } else { Err(self.silent()) };
        }
        let grace = self.grace;
        match over {
            true if outage.silent => {
                Err(self
                    .give_up(format!("nothing has come from its machine for {grace:?}, nor is it reached: {failure}")))
            }
            true => {
                Err(self
                    .give_up(format!("the connection was cut and could not be restored within {grace:?}: {failure}")))
            }
            false => Ok(()),
        }
    }
    /// Whether an answer that would end this member may be somebody's who is on the path. The member has
    /// a token then, and nothing shows that the answer's sender knows it. Until the grace is over such an
    /// answer is a failure like any other.
    fn doubts(&self, failure: &NoDial) -> bool {
        let is_unproven =
            matches!(failure, NoDial::Claimed(_) | NoDial::Unproven | NoDial::NotFarmem | NoDial::Version(_));
        is_unproven && self.pass.is_some() && !self.mapped
    }

    /// An error if the answer means that the node, or this member there, is gone.
    fn accept(&self, failure: &NoDial) -> Result<(), Lost> {
        match failure {
            NoDial::Verdict(Verdict::Incarnation) => {
                Err(self.end("it was started anew and no longer has this program's memory"))
            }
            NoDial::Claimed(Verdict::Incarnation) => {
                Err(self.give_up("it says that it was started anew, and does not prove it".into()))
            }
            NoDial::Verdict(Verdict::Unknown) | NoDial::Claimed(Verdict::Unknown) => {
                Err(self
                    .give_up("it has given this program's memory back: the grace period or the run was over".into()))
            }
            NoDial::Verdict(verdict) | NoDial::Claimed(verdict)
                if matches!(
                    verdict,
                    Verdict::NoToken | Verdict::WrongToken | Verdict::Revoked | Verdict::Expired | Verdict::NoTokens
                ) =>
            {
                Err(self.give_up(token_refused(*verdict).into()))
            }
            NoDial::Unproven => Err(self.give_up("it does not know this run's token: it is another node".into())),
            NoDial::Version(_) => Err(self.give_up(format!("another farmem listens at its address now: {failure}"))),
            NoDial::NotFarmem
            | NoDial::Verdict(Verdict::Version | Verdict::Malformed | Verdict::NoRoom(_))
            | NoDial::Claimed(Verdict::Version | Verdict::Malformed | Verdict::NoRoom(_)) => {
                Err(self.give_up("something else listens at its address now".into()))
            }
            NoDial::System(Errno(libc::EACCES)) if self.mapped => {
                Err(self.give_up("this process has given up the rights to reach its socket".into()))
            }
            _ if self.mapped => Err(self.end("its process has ended")),
            NoDial::System(_) | NoDial::Silent | NoDial::Closed | NoDial::Verdict(..) | NoDial::Claimed(..) => Ok(()),
        }
    }
}
