//! Requests of a member: slabs, windows, regions, tickets, and questions about the node itself.

use super::output::Passed;
use super::{Engine, Goodbye, Phase};
use crate::events::{Event, Leaving};
use crate::{Member, Nic};
use farmem_protocol::addr::SlabId;
use farmem_protocol::wire::{self, Answer, Ask, Reply, Request, Status};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

impl Engine {
    /// Takes a request, and answers it. One that was answered already gets the same answer again:
    /// its host did not see the first. One that is not done yet goes on in the next turn.
    pub(super) fn answer(&mut self, nic: &Nic, now_ns: u64) -> Result<bool, Goodbye> {
        let Phase::Control(control) = &self.phase else { return Ok(false) };
        let member = Arc::clone(&control.member);
        let (request, used) = match Request::read(&self.input[self.start..self.end]) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(false),
            Err(rule) => return Err(Goodbye::Broken(rule)),
        };
        // Held until the request is carried out: the slab stays here.
        let needed = needed(&request.ask).and_then(|id| member.slab(id));
        let is_ready = match request.ask {
            Ask::Expose(slab) => nic.cards().prepare(&member, slab),
            _ => true,
        };
        if needed.as_ref().is_some_and(|slab| !nic.is_at_hand_for_request(slab)) || !is_ready {
            self.put_off = true;
            return Ok(false);
        }
        member.heard.stir();
        // The host dials again, and is told why.
        if member.is_gone() {
            return Err(Goodbye::Done);
        }
        if let Some((number, said)) = &member.presence.lock().answered
            && *number == request.number
        {
            self.start += used;
            self.output.bytes(said);
            return Ok(true);
        }
        let mut file = None;
        if let Ask::Unit(first, blocks) = request.ask
            && self.about.local
        {
            let Phase::Control(control) = &mut self.phase else { return Ok(false) };
            file = nic.unit(&member, (first, blocks), &mut control.copying).transpose();
            if file.is_none() {
                self.was_long = true;
                return Ok(false);
            }
        }
        self.start += used;
        if let Ask::Bye = request.ask {
            nic.membership().part(&member, Leaving::Farewell);
            return Err(Goodbye::Done);
        }
        let mut passed = None;
        let result = match file {
            Some(Ok(file)) => {
                passed = Some(Passed::Unit(file));
                Ok(Reply::Done)
            }
            Some(Err(refused)) => Err(refused),
            None => self.carry_out(nic, &member, &request.ask, &mut passed, now_ns),
        };
        let answer = Answer { number: request.number, epoch: 0, result }.frame();
        member.presence.lock().answered = Some((request.number, answer.as_bytes().into()));
        match passed {
            Some(passed) => self.output.passing(answer.as_bytes(), passed),
            None => self.output.bytes(answer.as_bytes()),
        }
        Ok(true)
    }

    /// Does what a member asks. `passed`: the descriptor that goes with the answer.
    fn carry_out(
        &mut self,
        nic: &Nic,
        member: &Arc<Member>,
        ask: &Ask,
        passed: &mut Option<Passed>,
        now_ns: u64,
    ) -> Result<Reply, wire::Refused> {
        let done = |status: Status| if status == Status::Done { Ok(Reply::Done) } else { Err(status.into()) };
        let local = self.about.local;
        match *ask {
            Ask::Ping | Ask::Bye => Ok(Reply::Done),
            Ask::Grant => {
                let slab = nic.grant(member)?;
                let id = slab.id;
                if local {
                    slab.pass();
                }
                *passed = local.then_some(Passed::Slab(slab));
                Ok(Reply::Slab(id))
            }
            Ask::Release(slab) => done(nic.release(member, slab)),
            Ask::Again(slab) => {
                let slab = member.slab(slab).ok_or(Status::NotHeld)?;
                if local {
                    slab.pass();
                }
                *passed = local.then_some(Passed::Slab(slab));
                Ok(Reply::Done)
            }
            Ask::Discard(range) => done(nic.discard(member, range)),
            Ask::Back(range) => nic.back(member, range).map(|()| Reply::Done),
            Ask::Ticket => {
                let secret = nic.membership().ticket(member, now_ns)?;
                *passed = self.open().map(Passed::Stream);
                Ok(Reply::Child(secret))
            }
            Ask::EndRun(run) => {
                nic.membership().end_run(member, &run);
                Ok(Reply::Done)
            }
            // Of a member on this machine it is answered before.
            Ask::Unit(..) => Err(wire::Refused { status: Status::System, value: libc::EOPNOTSUPP as u64 }),
            Ask::Window => Ok(nic.admission().make_window(member).map(Reply::Window)?),
            Ask::DropWindow(key) => {
                let status = nic.admission().drop_window(member, key);
                nic.epochs.wait();
                done(status)
            }
            Ask::Who(owner) => Ok(nic.who(member, owner).map(Reply::Who).ok_or(Status::NotHeld)?),
            Ask::Wanted => {
                member.asked.stir();
                Ok(Reply::Figure(nic.wanted_back(member)))
            }
            Ask::Figure(figure) => Ok(Reply::Figure(nic.figure(figure, now_ns))),
            Ask::Expose(slab) => nic.cards().expose(member, slab).map(|rkey| Reply::Exposed(rkey, 0)),
            Ask::ExposeWindow(key, queue) => Ok(nic.cards().expose_window(member, key, queue)?),
            Ask::Region(name, make) => {
                let (slabs, beside) = nic.regions().open(member, name, make)?;
                if beside {
                    nic.events.tell(Event::Beside(member, &name));
                }
                Ok(Reply::Slabs(slabs))
            }
            Ask::RegionSlab(name, number) | Ask::RegionGrow(name, number) => {
                let slab = nic.regions().slab(member, name, number, matches!(ask, Ask::RegionGrow(..)))?;
                let id = slab.id;
                *passed = local.then_some(Passed::Slab(slab));
                Ok(Reply::Slab(id))
            }
            Ask::RegionExpel(name, tag) => done(nic.expel(member, name, tag)),
            Ask::RegionRemove(name) => {
                done(if nic.regions().remove_by(member, name) { Status::Done } else { Status::NotHeld })
            }
            Ask::RegionRemoveUnused(name) => done(nic.regions().remove_unused(member, name)),
            Ask::RegionOpener(name, place) => {
                Ok(nic.opener(member, name, place).map(Reply::Who).ok_or(Status::NotHeld)?)
            }
            Ask::VolumeAt(place) => Ok(nic.swap().at(member, place).map(Reply::Volume).ok_or(Status::NotHeld)?),
            Ask::RegionAt(place) => {
                let region = nic.regions().at(member, place).ok_or(Status::NotHeld)?;
                Ok(Reply::Region(region.name, region.slabs, region.owner))
            }
        }
    }

    /// One more connection to a peer on this machine; its end. `None` where none can be had.
    fn open(&mut self) -> Option<UnixStream> {
        let (ours, theirs) = self.about.local.then(UnixStream::pair)?.ok()?;
        self.opened.push(ours);
        Some(theirs)
    }
}

/// The slab whose bytes a request uses, or whose descriptor it asks for.
fn needed(ask: &Ask) -> Option<SlabId> {
    match ask {
        Ask::Discard(range) | Ask::Back(range) => Some(range.slab),
        Ask::Again(slab) | Ask::Expose(slab) => Some(*slab),
        _ => None,
    }
}
