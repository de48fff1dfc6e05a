//! Waiting for completions, and the end of a wait: a node that is lost, or a connection that is made
//! again, with the verbs that have no completion.

// Posted verbs name the caller's raw memory.
#![allow(unsafe_code)]

use super::{Framed, LISTEN_NS, SLEEP_NS};
use crate::link::Carrier;
use crate::queue::Completion;
use crate::queue::away::Away;
use crate::session::{DOUBT_NS, SILENT_NS, SLOW, SLOW_NS, STEP_NS};
use crate::{Lost, Refusal};
use farmem_protocol::wire::Purpose;
use farmem_sys::raw;
use std::time::Duration;

/// Connections in a row without a completion that are no sign of anything.
const FRUITLESS: u32 = 8;

impl Framed {
    pub fn wait(&mut self, done: &mut Vec<Completion>, limit: Duration) -> Result<usize, Lost> {
        let before = done.len();
        let begun = self.reach().now_ns();
        let until = begun.saturating_add(limit.as_nanos() as u64);
        let (mut looked_ns, mut waited_ns) = (begun, 0);
        loop {
            let got_before = self.got;
            if self.poll(done)? > 0 || self.under_way.is_empty() {
                self.end_silence();
                self.spin.came(waited_ns);
                return Ok(done.len() - before);
            }
            // Cheap looks first: the clock is read now and then.
            if !self.spin.offers() {
                std::hint::spin_loop();
                continue;
            }
            let now = self.reach().now_ns();
            if self.got != got_before {
                self.end_silence();
            }
            self.note_silence(now - looked_ns)?;
            looked_ns = now;
            if now >= until {
                return Ok(0);
            }
            let Some(link) = &self.link else { continue };
            let spins = self.spin.looks_on(now - begun);
            if spins {
                link.pause();
            } else {
                link.wait(!self.outgoing.is_empty(), self.longest_sleep().min(until - now));
            }
            let after = self.reach().now_ns();
            waited_ns = after - begun;
            if spins {
                self.spin.offered(after - now);
            }
        }
    }

    /// The socket that brings the next completion, and whether bytes wait to be sent on it. A wait
    /// over several queue pairs polls it. `None`: no connection, or one with a clock of its own.
    pub fn descriptor(&self) -> Option<(i32, bool)> {
        match **self.link.as_ref()? {
            Carrier::Socket(fd) => Some((fd, !self.outgoing.is_empty())),
            _ => None,
        }
    }

    /// Sleeps until something may have come by this connection, at most so long.
    pub fn nap(&self, ns: u64) {
        if let Some(link) = &self.link {
            link.wait(!self.outgoing.is_empty(), ns);
        }
    }

    /// Whether another thread has given the member up early.
    pub fn not_spared(&self) -> Result<(), Lost> {
        if self.member.has_spare() { self.member.check() } else { Ok(()) }
    }

    /// The longest sleep between looks.
    pub fn longest_sleep(&self) -> u64 {
        if self.member.has_spare() { STEP_NS } else { SLEEP_NS }
    }

    /// Counts time that was spent without a completion. When it is long, looks whether the node can
    /// still be reached.
    pub fn note_silence(&mut self, waited_ns: u64) -> Result<(), Lost> {
        if self.member.has_spare() {
            self.member.check()?;
            let Framed { member, standstill, link, .. } = self;
            // A node that may have put the slab on a disk does not answer while it brings it back, but its
            // machine acknowledges. Where it does not, the path is lost, however the node is otherwise.
            let is_heard = link.as_ref().is_none_or(|link| !link.is_stalled_for(SLOW_NS));
            if standstill.note(waited_ns, || link.as_ref().map_or(0, |link| link.traffic().1))
                && !(member.asks_back && is_heard && standstill.is_borne(|| member.lives()))
            {
                member.end_if_spared(|| SLOW.into())?;
            }
        }
        self.silent_ns += waited_ns.min(2 * SLEEP_NS);
        if self.silent_ns > SILENT_NS {
            return Err(self.member.silent());
        }
        if self.silent_ns >= self.listen_ns {
            self.listen_ns = self.silent_ns + SLEEP_NS;
            self.look_around()?;
        }
        Ok(())
    }

    /// A completion has come.
    pub fn end_silence(&mut self) {
        (self.silent_ns, self.listen_ns) = (0, LISTEN_NS);
        self.standstill.end();
    }

    pub fn now_ns(&self) -> u64 {
        self.reach().now_ns()
    }

    /// The answer is late. Ends the wait for a node that is lost, and restores a connection that is
    /// mute by itself: a middlebox has forgotten it, or its next retransmission is far off.
    #[cold]
    fn look_around(&mut self) -> Result<(), Lost> {
        self.member.watch()?;
        let Some(link) = &self.link else { return Ok(()) };
        let mute = match raw::is_away() {
            // A vfork child's control connection is its parent's to tend. The dial tells.
            true => link.mute_ns() >= DOUBT_NS,
            false => link.is_stalled() && self.member.is_near(),
        };
        if mute { self.restore() } else { Ok(()) }
    }

    /// Makes a new connection. Verbs without a completion are repeated, in order.
    #[cold]
    pub(super) fn restore(&mut self) -> Result<(), Lost> {
        loop {
            self.note_fruitless()?;
            self.withdraw();
            self.link = Some(self.member.restore(Purpose::Attach(self.member.known(), self.number))?);
            self.away = Away::noted();
            self.end_silence();
            self.frame();
            if self.flush().is_ok() {
                return Ok(());
            }
        }
    }

    /// Counts a connection that ended. A node that takes each new one, and ends it or answers nonsense
    /// before any verb has completed, does so for ever: it is given up at the end of the grace.
    fn note_fruitless(&mut self) -> Result<(), Lost> {
        let now = self.reach().now_ns();
        let (count, since) = self.fruitless.map_or((1, now), |(count, since)| (count + 1, since));
        self.fruitless = Some((count, since));
        if count <= FRUITLESS {
            return Ok(());
        }
        let reason = || format!("{count} connections in a row have ended before it answered on them as it should");
        self.member.end_if_spared(reason)?;
        let lasts = now.saturating_sub(since) >= self.member.grace.as_nanos() as u64;
        if lasts { Err(self.member.give_up(reason())) } else { Ok(()) }
    }

    /// Takes everything under way back to the posted verbs, in order. A verb that may have
    /// happened, and must not happen twice, completes as unknown, after those posted before it.
    fn withdraw(&mut self) {
        self.link = None;
        self.own.clear();
        self.outgoing.clear();
        self.got = 0;
        let first = std::mem::take(&mut self.due);
        self.next = 0;
        let newer = std::mem::take(&mut self.posted);
        let mut settled = std::mem::take(&mut self.settled);
        for (number, pending) in (first..).zip(std::mem::take(&mut self.under_way).into_iter().chain(newer)) {
            // On the new connection repeated verbs are numbered from 0: lower by the number of
            // verbs before them.
            let anew = self.posted.len() as u64;
            while let Some((_, earlier)) = settled.pop_front_if(|(before, _)| *before <= number) {
                self.settled.push_back((anew, earlier));
            }
            if pending.sent && pending.counts() {
                self.settled.push_back((anew, Completion { tag: pending.tag, result: Err(Refusal::Unknown) }));
            } else {
                self.posted.push_back(pending);
            }
        }
        let anew = self.posted.len() as u64;
        self.settled.extend(settled.into_iter().map(|(_, last)| (anew, last)));
    }
}
