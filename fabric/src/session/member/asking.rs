//! Requests on the control connection: those that are waited for, and questions that can wait.

use super::{Control, HASTE, Membership, SILENT_NS, SLOW};
use crate::Lost;
use crate::link::Passed;
use crate::session::dial::{Broken, NoDial, exchange, receive_answer};
use crate::session::spare::{MOST_BORNE, SLOW_NS};
use farmem_protocol::wire::{Ask, Purpose, Refused, Reply, Request, Verdict};
use farmem_sys::raw::{self, SignalsBlocked};
use std::sync::atomic::Ordering;

impl Membership {
    /// Sends a request and waits for its answer, over as many connections as it takes.
    pub fn ask(&self, ask: Ask) -> Result<(Result<Reply, Refused>, Option<Passed>), Lost> {
        // In a fault over shm the program's signals are open. A signal would end the wait early,
        // and that would look like a cut.
        let _signals = SignalsBlocked::new();
        self.check()?;
        let mut control = self.control.lock();
        control.number += 1;
        // Locking a slab for the card, and bringing one back from a disk, may take long.
        let mut borne = match ask {
            Ask::Expose(_) | Ask::ExposeWindow(..) => 0,
            Ask::Discard(_) | Ask::Back(_) if self.asks_back => 0,
            _ => MOST_BORNE,
        };
        let request = Request::new(control.number, ask).frame();
        let number = control.number;
        let (mut restored, mut hasty, mut said) = (false, self.has_spare(), false);
        loop {
            if let Some(link) = &control.link {
                let within_ns = if hasty { SLOW_NS } else { SILENT_NS };
                let answered = match control.owed == 0 && !std::mem::replace(&mut said, false) {
                    true => exchange(self.ear(), link, request.as_bytes(), within_ns),
                    false => receive_answer(self.ear(), link, within_ns),
                };
                match answered {
                    Ok((answer, _)) if control.owed != 0 && answer.number == control.owed => {
                        control.owed = 0;
                        continue;
                    }
                    Ok((answer, passed)) if answer.number == number => {
                        // A vfork child's descriptor is nothing to the process whose memory this
                        // is.
                        if restored && raw::is_away() {
                            control.link = None;
                        }
                        return Ok((answer.result, passed));
                    }
                    Ok(_) | Err(Broken::Nonsense) => {
                        return Err(self.give_up("it answers what was not asked".into()));
                    }
                    Err(Broken::Late)
                        if hasty
                            && control.owed == 0
                            && borne < MOST_BORNE
                            && !link.is_stalled_for(SLOW_NS)
                            && self.lives() =>
                    {
                        (borne, said) = (borne + 1, true);
                        continue;
                    }
                    Err(Broken::Late) if hasty => {
                        hasty = false;
                        self.end_if_spared(|| SLOW.into())?;
                        // The same request again, on another connection: answered once.
                        control.lose(self.reach.now_ns(), 0);
                    }
                    Err(Broken::Late) => return Err(self.silent()),
                    Err(Broken::Mute | Broken::Cut(_)) => {
                        let mute_ns = self.ear().listen(link);
                        control.lose(self.reach.now_ns(), mute_ns);
                    }
                }
            }
            self.rejoin(&mut control)?;
            restored = true;
        }
    }

    /// Whether the node's process answers on a connection of its own, at once. One that has no room for
    /// it, or is being drained, answers too.
    pub(crate) fn lives(&self) -> bool {
        let queue = self.next_queue.fetch_add(1, Ordering::Relaxed);
        let dialled = self.dial(Purpose::Attach(self.known(), queue), HASTE);
        matches!(dialled, Ok(_) | Err(NoDial::Verdict(Verdict::Full | Verdict::Draining)))
    }

    /// Sends a request that can wait, if the control connection stands and is free, and waits
    /// `within_ns`. `None`: there is no answer yet. The next call takes the late answer, and a node
    /// that is only slow or stopped keeps its connection.
    pub fn ask_soon(&self, ask: Ask, within_ns: u64) -> Option<Reply> {
        self.check().ok()?;
        self.ask_by(&mut *self.control.try_lock()?, ask, within_ns)
    }

    /// [`Membership::ask_soon`], also of a member that was given up.
    pub(super) fn ask_by(&self, control: &mut Control, ask: Ask, within_ns: u64) -> Option<Reply> {
        let _signals = SignalsBlocked::new();
        let link = control.link.as_ref()?;
        let (number, answered) = match control.owed {
            0 => {
                let number = control.number + 1;
                let request = Request::new(number, ask).frame();
                (number, exchange(self.ear(), link, request.as_bytes(), within_ns))
            }
            owed => (owed, receive_answer(self.ear(), link, within_ns)),
        };
        control.number = control.number.max(number);
        control.owed = 0;
        match answered {
            Ok((answer, None)) if answer.number == number => answer.result.ok(),
            Err(Broken::Late) => {
                control.owed = number;
                None
            }
            _ => {
                let mute_ns = control.link.as_ref().map_or(0, |link| self.ear().listen(link));
                control.lose(self.reach.now_ns(), mute_ns);
                None
            }
        }
    }
}
