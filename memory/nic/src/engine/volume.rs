//! A volume's stream: NBD requests, carried out page by page as their bytes come.
//!
//! ```text
//!  head ─► READ  ─► reply, then a page at a time as output has room
//!       ─► WRITE ─► a page at a time as input comes ─► reply
//!       ─► TRIM  ─► some thousand pages at a time ─► reply
//!       ─► FREED ─► a record at a time as input comes, its pages as those of TRIM ─► reply
//! ```
//! So a request of 32 MiB takes no more of the node's memory than one of 4 KiB. A request that is
//! refused leaves the stream in step: the bytes of a refused WRITE are taken and dropped.

use super::Goodbye;
use super::output::Output;
use crate::Nic;
use crate::events::VolumeEvent;
use crate::tally::count;
use crate::volumes::{Attached, Page, Superseded};
use farmem_protocol::nbd::{Asked, Command, PAGE, Refusal, Request, Slots};
use farmem_protocol::wire::Broken;
use zerocopy::{FromBytes, IntoBytes};

const PAGE_BYTES: usize = PAGE as usize;
/// Slots that one FREED may name in any volume, however small: a host whose kernel frees a slot, uses it
/// and frees it again names it twice. In a larger volume it may name as many as there are.
const FREED_AT_LEAST: u32 = 1 << 16;

/// Why a stream is to be closed.
pub(super) enum Ended {
    /// The bytes are no request.
    OutOfStep,
    /// It has said goodbye, or another stream has its place, or the volume is gone.
    Over,
}

impl From<Ended> for Goodbye {
    fn from(ended: Ended) -> Goodbye {
        match ended {
            Ended::OutOfStep => Goodbye::Broken(Broken::Control),
            Ended::Over => Goodbye::Done,
        }
    }
}

impl From<Superseded> for Ended {
    fn from(_: Superseded) -> Ended {
        Ended::Over
    }
}

enum Doing {
    Nothing,
    /// Pages that are still to be sent: from, to.
    Reading(u32, u32),
    /// Bytes that are still to come, the slot of the next page, and how it went so far.
    Writing {
        asked: Asked,
        left: u32,
        slot: u32,
        so_far: Result<(), Refusal>,
    },
    Trimming {
        asked: Asked,
        at: u32,
        end: u32,
    },
    /// Bytes of records that are still to come, and what is left of the last one. `asked.offset` is
    /// the mark. The records may name `may` more slots.
    Freeing {
        asked: Asked,
        left: u32,
        at: u32,
        end: u32,
        may: u32,
        so_far: Result<(), Refusal>,
    },
}

/// One stream of a volume.
pub(super) struct Stream {
    pub attached: Attached,
    doing: Doing,
    page: Page,
}

impl Stream {
    pub fn new(attached: Attached) -> Stream {
        Stream { attached, doing: Doing::Nothing, page: [0; PAGE_BYTES] }
    }

    /// One step; how many bytes of the input it used. `None`: more input is needed.
    pub fn step(&mut self, nic: &Nic, input: &[u8], output: &mut Output) -> Result<Option<usize>, Ended> {
        let Attached { volume, turn } = &self.attached;
        match &mut self.doing {
            Doing::Nothing => self.begin(nic, input, output),
            Doing::Reading(slot, end) => {
                volume.read(nic.swap(), *turn, *slot, &mut self.page)?;
                output.bytes(&self.page);
                *slot += 1;
                if slot == end {
                    self.doing = Doing::Nothing;
                }
                Ok(Some(0))
            }
            Doing::Trimming { asked, at, end } => {
                match volume.trim(nic.swap(), *turn, None, (*at, *end))? {
                    Some(next) => *at = next,
                    None => {
                        output.bytes(asked.reply(Ok(())).as_bytes());
                        self.doing = Doing::Nothing;
                    }
                }
                Ok(Some(0))
            }
            Doing::Freeing { asked, left, at, end, may, so_far } => {
                if at < end {
                    *at = volume.trim(nic.swap(), *turn, Some(asked.offset), (*at, *end))?.unwrap_or(*end);
                    return Ok(Some(0));
                }
                if *left == 0 {
                    output.bytes(asked.reply(*so_far).as_bytes());
                    self.doing = Doing::Nothing;
                    return Ok(Some(0));
                }
                let Ok((slots, _)) = Slots::read_from_prefix(input) else { return Ok(None) };
                *left -= size_of::<Slots>() as u32;
                let first = slots.first.get().min(volume.slots());
                let end_of = first.saturating_add(slots.count.get()).min(volume.slots());
                // Each record may name the whole volume, and a page that is kept is looked at each time.
                match may.checked_sub(end_of - first) {
                    Some(rest) => (*may, *at, *end) = (rest, first, end_of),
                    None => (*may, *so_far) = (0, Err(Refusal::Invalid)),
                }
                Ok(Some(size_of::<Slots>()))
            }
            Doing::Writing { asked, left, slot, so_far } => {
                // Of a WRITE that is refused the length may be anything: its bytes are dropped as
                // they come.
                let taken = input.len().min(*left as usize).min(PAGE_BYTES);
                if taken == 0 || so_far.is_ok() && taken < PAGE_BYTES {
                    return Ok(None);
                }
                if so_far.is_ok()
                    && let Some(page) = input.first_chunk()
                {
                    *so_far = volume.write(nic.swap(), *turn, *slot, page)?;
                    *slot += 1;
                }
                *left -= taken as u32;
                if *left == 0 {
                    output.bytes(asked.reply(*so_far).as_bytes());
                    self.doing = Doing::Nothing;
                }
                Ok(Some(taken))
            }
        }
    }

    /// A request's head.
    fn begin(&mut self, nic: &Nic, input: &[u8], output: &mut Output) -> Result<Option<usize>, Ended> {
        let Some(asked) = Asked::parse(input).map_err(|_| Ended::OutOfStep)? else { return Ok(None) };
        let volume = &self.attached.volume;
        // Of a stream that only asks nothing is moved: its turn would be nobody's.
        let range = match self.attached.turn {
            Some(_) => asked.range(volume.slots()),
            None => Err(Refusal::Invalid),
        };
        match (asked.command, range) {
            (Some(Command::Read), Ok((first, pages))) => {
                count(&nic.tally.reads, 1);
                // Read before the reply promises bytes.
                volume.read(nic.swap(), self.attached.turn, first, &mut self.page)?;
                output.bytes(asked.reply(Ok(())).as_bytes());
                output.bytes(&self.page);
                if pages > 1 {
                    self.doing = Doing::Reading(first + 1, first + pages);
                }
            }
            (Some(Command::Write), range) => {
                count(&nic.tally.writes, 1);
                let (slot, so_far) = (range.map_or(0, |(first, _)| first), range.map(drop));
                self.doing = Doing::Writing { asked, left: asked.length, slot, so_far };
                if asked.length == 0 {
                    output.bytes(asked.reply(so_far).as_bytes());
                    self.doing = Doing::Nothing;
                }
            }
            (Some(Command::Trim | Command::Zero), Ok((first, pages))) => {
                self.doing = Doing::Trimming { asked, at: first, end: first + pages };
            }
            (Some(Command::Flush), _) => output.bytes(asked.reply(Ok(())).as_bytes()),
            (Some(Command::Disconnect), _) => return Err(Ended::Over),
            (Some(Command::Report), _) => {
                output.bytes(asked.reply(Ok(())).as_bytes());
                output.bytes(volume.report(nic.swap()).as_bytes());
            }
            (Some(Command::Free), _) => {
                nic.swap().free(volume, VolumeEvent::Freed);
                output.bytes(asked.reply(Ok(())).as_bytes());
            }
            (Some(Command::Mark), _) => {
                let mark = volume.mark()?;
                output.bytes(asked.reply(Ok(())).as_bytes());
                output.bytes(&mark.to_be_bytes());
            }
            (Some(Command::Freed), _) => {
                let may = volume.slots().max(FREED_AT_LEAST);
                self.doing = Doing::Freeing { asked, left: asked.length, at: 0, end: 0, may, so_far: Ok(()) };
            }
            (None, _) => output.bytes(asked.reply(Err(Refusal::Invalid)).as_bytes()),
            (_, Err(refusal)) => output.bytes(asked.reply(Err(refusal)).as_bytes()),
        }
        if matches!(asked.command, Some(Command::Read | Command::Write)) && range.is_err() {
            count(&nic.tally.refused_verbs, 1);
        }
        Ok(Some(size_of::<Request>()))
    }
}
