//! An attached queue pair: batches of verbs, carried out in order.

use super::output::Output;
use crate::epochs::Section;
use crate::grip::Grip;
use crate::service::Caller;
use crate::{Member, Nic, Turn, count};
use farmem_protocol::addr::SlabId;
use farmem_protocol::key::{Key, KeyKind};
use farmem_protocol::lines::Record;
use farmem_protocol::lines::conditional::{Conditional, lay_if};
use farmem_protocol::wire::{Batch, Binding, Broken, Completion, Op, REPLY_BYTES, Status, Verb};
use farmem_sys::lines::LastHasher;
use farmem_sys::socket::Part;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, IntoBytes};

/// WRITEs of at least so many bytes have their memory populated first: one call costs less than the
/// faults of so many pages.
const POPULATED_FROM: u32 = 32 << 10;
/// Of one WRITE so many bytes are, at most, so that others' verbs have their turn.
const POPULATED: u64 = 128 << 10;

/// The state of an attached queue pair.
pub(super) struct Serving {
    pub member: Arc<Member>,
    pub turn: Arc<Turn>,
    /// Which of the queue pair's connections this is.
    pub ours: u64,
    /// The queue pair's number.
    queue: u64,
    /// The batch being carried out. `at`: how many of its verbs are done.
    verbs: Vec<Verb>,
    at: usize,
    /// A WRITE whose bytes have not all come.
    writing: Option<Writing>,
    /// The number of the next completion.
    number: u32,
    /// A verb was refused since the last look.
    pub refused: bool,
    /// The SEND whose turn it is waits, with the mark of its service.
    pub waits: Option<u64>,
    /// The verb whose turn it is waits for a slab that is away.
    pub put_off: bool,
    last_hasher: LastHasher,
}

/// A WRITE whose bytes are still coming.
struct Writing {
    into: Into,
    left: u32,
}

/// Where the bytes of a WRITE go.
enum Into {
    Memory(Grip),
    /// A word of the word table. Its bytes are gathered, and the word is judged when it is whole.
    Heartbeat {
        offset: u64,
        bytes: [u8; 8],
    },
    /// Refused: its bytes are dropped.
    Nothing(Status),
}

impl Serving {
    pub fn new(member: Arc<Member>, queue: u64, turn: Arc<Turn>, ours: u64) -> Serving {
        let verbs = Vec::with_capacity(farmem_protocol::wire::MAX_VERBS);
        Serving {
            member,
            turn,
            ours,
            queue,
            verbs,
            at: 0,
            writing: None,
            number: 0,
            refused: false,
            waits: None,
            put_off: false,
            last_hasher: LastHasher::default(),
        }
    }

    /// Drops all but its member, number and turn.
    pub fn ended(self) -> (Arc<Member>, u64, Arc<Turn>) {
        let Serving { member, queue, turn, waits, .. } = self;
        if waits.is_some() {
            member.computed.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        (member, queue, turn)
    }

    /// Where the next bytes may go without a copy: memory that a WRITE under way is admitted to.
    pub fn straight(&mut self, nic: &Nic) -> Option<Part> {
        let writing = self.writing.as_mut()?;
        writing.look_again(nic);
        match &writing.into {
            Into::Memory(grip) => {
                let at = grip.memory.mapping().at(grip.offset, writing.left as u64)?;
                Some(Part::new(at, writing.left as usize))
            }
            _ => None,
        }
    }

    /// This many bytes went to [`Serving::straight`].
    pub fn went_straight(&mut self, bytes: usize) {
        if let Some(Writing { into: Into::Memory(grip), left }) = &mut self.writing {
            grip.offset += bytes as u64;
            *left -= bytes as u32;
        }
    }

    /// Takes bytes of the WRITE under way. Returns how many, or `None` if there were none.
    fn go_on_writing(&mut self, nic: &Nic, input: &[u8], output: &mut Output) -> Option<usize> {
        let writing = self.writing.as_mut()?;
        let n = writing.take(nic, input);
        if writing.left > 0 {
            return (n > 0).then_some(n);
        }
        self.finish_writing(nic, output);
        Some(n)
    }

    /// Does the next piece of work with what `input` has. Returns how much of it was used; `None`
    /// when it is not enough.
    pub fn step(
        &mut self,
        nic: &Nic,
        section: &mut Section<'_>,
        input: &[u8],
        output: &mut Output,
    ) -> Result<Option<usize>, Broken> {
        if self.writing.is_some() {
            return Ok(self.go_on_writing(nic, input, output));
        }
        if self.at == self.verbs.len() {
            return self.begin(input);
        }
        let verb = self.verbs[self.at];
        let (op, len) = verb.shape()?;
        if op != Op::Bind && !self.has_at_hand(nic, verb.key()) {
            return Ok(None);
        }
        let (key, offset) = (verb.key(), verb.offset.get());
        match op {
            Op::Read => {
                self.read(nic, output, key, offset, len);
                Ok(Some(0))
            }
            Op::Write => {
                self.begin_writing(nic, (key, op), offset, len);
                Ok(Some(0))
            }
            Op::Lines | Op::LinesIf => {
                // A record must have come whole before any of it is applied: a torn one changes
                // nothing.
                let Some(bytes) = input.get(..len as usize) else { return Ok(None) };
                let applied = self.lay(nic, (key, op), bytes)?;
                self.settle(nic, output, applied);
                Ok(Some(len as usize))
            }
            Op::Cas => {
                let Some([expected, new]) = operands(input) else { return Ok(None) };
                let old = self.cas(nic, (key, op), offset, expected, new);
                self.settle(nic, output, old);
                Ok(Some(16))
            }
            Op::Faa => {
                let Some([add]) = operands(input) else { return Ok(None) };
                let old = self.faa(nic, (key, op), offset, add);
                self.settle(nic, output, old);
                Ok(Some(8))
            }
            Op::Bind => {
                let Ok((binding, _)) = Binding::read_from_prefix(input) else { return Ok(None) };
                count(&nic.tally.binds, 1);
                if nic.admission().is_ending(key) {
                    section.renew_after(|| nic.admission().settle(key));
                }
                if !self.has_at_hand(nic, Key(binding.parent.get())) {
                    return Ok(None);
                }
                let bound = nic.admission().bind(&self.member, self.queue, key, &binding);
                self.settle(nic, output, bound.map(|key| key.0));
                Ok(Some(size_of::<Binding>()))
            }
            Op::Invalidate => {
                count(&nic.tally.invalidates, 1);
                let unbound = nic.admission().invalidate(&self.member, self.queue, key);
                // Also where another thread has unbound the window already. The caller relies on
                // this answer, too, so the end is waited for.
                if !matches!(unbound, Err(Status::Access)) {
                    section.renew_after(|| nic.admission().settle(key));
                }
                self.settle(nic, output, unbound.map(|key| key.0));
                Ok(Some(0))
            }
            Op::Send => {
                let Some(said) = input.get(..len as usize) else { return Ok(None) };
                let answer = self.send(nic, section, key, said);
                if self.waits.is_some() {
                    return Ok(None);
                }
                self.settle(nic, output, answer.map(|_| 0));
                output.bytes(&answer.unwrap_or([0; REPLY_BYTES as usize]));
                Ok(Some(len as usize))
            }
        }
    }

    /// Whether the slab of a key is here. If not, the verb is put off until it is. Within the section in
    /// which the slab is used then.
    fn has_at_hand(&mut self, nic: &Nic, key: Key) -> bool {
        if let KeyKind::Slab(id) = key.kind() {
            self.put_off = !nic.is_at_hand(&self.member, id);
        }
        !self.put_off
    }

    /// Begins a WRITE: decides where its bytes go, if anywhere.
    fn begin_writing(&mut self, nic: &Nic, (key, op): (Key, Op), offset: u64, len: u32) {
        count(&nic.tally.writes, 1);
        count(&nic.tally.write_bytes, len as u64);
        let into = if key == Key::WORDS && len == 8 {
            Into::Heartbeat { offset, bytes: [0; 8] }
        } else {
            match nic.admission().admit(&self.member, self.queue, (key, op), offset, len as u64) {
                Ok(grip) => {
                    if len >= POPULATED_FROM {
                        grip.memory.mapping().populate(grip.offset, POPULATED.min(len as u64));
                    }
                    Into::Memory(grip)
                }
                Err(status) => Into::Nothing(status),
            }
        };
        self.writing = Some(Writing { into, left: len });
    }

    /// All bytes of the WRITE under way have come.
    fn finish_writing(&mut self, nic: &Nic, output: &mut Output) {
        let Some(writing) = self.writing.take() else { return };
        let status = match writing.into {
            Into::Memory(_) => Status::Done,
            Into::Heartbeat { offset, bytes } => match nic.units.heartbeat(&self.member.lease, offset) {
                Ok(word) => {
                    word.store(u64::from_le_bytes(bytes), Ordering::Release);
                    Status::Done
                }
                Err(status) => status,
            },
            Into::Nothing(status) => status,
        };
        self.complete(nic, output, status, 0);
    }

    /// Writes the lines of a whole record to the slab. Returns the pages that were refused, a bit
    /// each.
    fn lay(&mut self, nic: &Nic, (key, op): (Key, Op), bytes: &[u8]) -> Result<Result<u64, Status>, Broken> {
        let grip = if key.is_slab() {
            nic.admission().admit(&self.member, self.queue, (key, op), 0, 0)
        } else {
            Err(Status::Access)
        };
        let (record, conditions) = match op {
            Op::Lines => (bytes, None),
            _ => Conditional::split(bytes).map(|split| (split.record, Some((split.was, split.seed))))?,
        };
        let record = Record::parse(SlabId(key.0), record)?;
        if let Ok(grip) = &grip {
            // The lines lie anywhere in the slab. They are prefetched while the checksum is
            // computed.
            record.places().for_each(|offset| grip.memory.mapping().prefetch(offset));
        }
        let record = record.check()?;
        count(&nic.tally.records, 1);
        count(&nic.tally.record_bytes, bytes.len() as u64);
        Ok(grip.and_then(|grip| {
            let memory = grip.memory.mapping();
            let laid = match conditions {
                None => record.lay(|at, lines| memory.write_lines(at, lines)).map(|()| 0),
                Some((was, seed)) => {
                    let hasher = self.last_hasher.of(seed);
                    let sum = |at, lines| memory.sum_lines(hasher, at, lines);
                    let refused = lay_if(record, was, sum, |at, lines| memory.write_lines(at, lines));
                    count(&nic.tally.refused_records, refused.is_some_and(|refused| !refused.is_none()) as u64);
                    refused.map(|refused| refused.0)
                }
            };
            laid.ok_or(Status::Range)
        }))
    }

    fn cas(&self, nic: &Nic, (key, op): (Key, Op), offset: u64, expected: u64, new: u64) -> Result<u64, Status> {
        count(&nic.tally.cas, 1);
        if key == Key::WORDS {
            return nic.units.cas(&self.member.lease, offset, expected, new);
        }
        self.word(nic, key, op, offset, |grip| grip.memory.mapping().cas(grip.offset, expected, new))
    }

    fn faa(&self, nic: &Nic, (key, op): (Key, Op), offset: u64, add: u64) -> Result<u64, Status> {
        count(&nic.tally.faa, 1);
        // FAA on a descriptor word is refused: the word that it leads to is not known beforehand,
        // so the change cannot be judged.
        if key == Key::WORDS {
            return nic.units.heartbeat(&self.member.lease, offset).map(|word| word.fetch_add(add, Ordering::AcqRel));
        }
        self.word(nic, key, op, offset, |grip| grip.memory.mapping().faa(grip.offset, add))
    }

    /// Passes a SEND to the node's service of the key's number. The answer counts unless the SEND
    /// waits afterwards.
    fn send(
        &mut self,
        nic: &Nic,
        section: &mut Section<'_>,
        key: Key,
        said: &[u8],
    ) -> Result<[u8; REPLY_BYTES as usize], Status> {
        let before = self.waits.take();
        count(&nic.tally.sends, before.is_none().into());
        let caller = Caller { nic, member: &self.member, queue: self.queue, mark: before, waits: Cell::new(None) };
        let (KeyKind::Service(number), Some(service)) = (key.kind(), nic.served.get()) else {
            return Err(Status::Access);
        };
        let answer = service.send(&caller, number, said, &nic.windows, section);
        self.waits = caller.waits.get();
        if before.is_some() && self.waits.is_none() {
            self.member.computed.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        answer
    }

    fn read(&mut self, nic: &Nic, output: &mut Output, key: Key, offset: u64, len: u32) {
        count(&nic.tally.reads, 1);
        count(&nic.tally.read_bytes, len as u64);
        if key == Key::WORDS {
            // Words of the table are copied one by one, because the socket's copy need not be
            // atomic.
            if nic.units.words.is_readable(offset, len) {
                self.complete(nic, output, Status::Done, 0);
                output.words(nic, offset, len);
            } else {
                self.complete(nic, output, Status::Access, 0);
                output.zeros(len);
            }
            return;
        }
        match nic.admission().admit(&self.member, self.queue, (key, Op::Read), offset, len as u64) {
            Ok(grip) => {
                self.complete(nic, output, Status::Done, 0);
                output.memory(grip, len);
            }
            Err(status) => {
                self.complete(nic, output, status, 0);
                output.zeros(len);
            }
        }
    }

    /// CAS and FAA on memory.
    fn word(
        &self,
        nic: &Nic,
        key: Key,
        op: Op,
        offset: u64,
        change: impl FnOnce(&Grip) -> Option<u64>,
    ) -> Result<u64, Status> {
        let grip = nic.admission().admit(&self.member, self.queue, (key, op), offset, 8)?;
        change(&grip).ok_or(if key.is_slab() { Status::Range } else { Status::Access })
    }

    /// The head of a batch and its verbs.
    fn begin(&mut self, input: &[u8]) -> Result<Option<usize>, Broken> {
        let Ok((batch, rest)) = Batch::read_from_prefix(input) else { return Ok(None) };
        let n = batch.verbs()?;
        let Ok((verbs, _)) = <[Verb]>::ref_from_prefix_with_elems(rest, n) else { return Ok(None) };
        batch.check(verbs)?;
        if batch.first.get() as u32 != self.number {
            return Err(Broken::Step);
        }
        self.verbs.clear();
        self.verbs.extend_from_slice(verbs);
        self.member.heard.stir();
        self.at = 0;
        Ok(Some(size_of::<Batch>() + n * size_of::<Verb>()))
    }

    fn settle(&mut self, nic: &Nic, output: &mut Output, ended: Result<u64, Status>) {
        match ended {
            Ok(value) => self.complete(nic, output, Status::Done, value),
            Err(status) => self.complete(nic, output, status, 0),
        }
    }

    fn complete(&mut self, nic: &Nic, output: &mut Output, status: Status, value: u64) {
        if status != Status::Done {
            count(&nic.tally.refused_verbs, 1);
            self.refused = true;
        }
        let done = Completion { number: self.number.into(), status: status as u8, zero: [0; 3], value: value.into() };
        output.bytes(done.as_bytes());
        self.number = self.number.wrapping_add(1);
        self.at += 1;
    }
}

impl Writing {
    /// Drops the rest when the right has ended meanwhile.
    fn look_again(&mut self, nic: &Nic) {
        if let Into::Memory(grip) = &self.into
            && !nic.admission().stands(&grip.right)
        {
            self.into = Into::Nothing(Status::Access);
        }
    }

    /// Takes operand bytes from the input. Returns how many.
    fn take(&mut self, nic: &Nic, input: &[u8]) -> usize {
        let n = input.len().min(self.left as usize);
        self.look_again(nic);
        match &mut self.into {
            Into::Memory(grip) => {
                // SAFETY: the source is `n` bytes of the input buffer, which is no node's memory.
                unsafe { grip.memory.mapping().write(grip.offset, input.as_ptr(), n as u32) };
                // Inside what was admitted. A refused WRITE's offset may be anything, and is not
                // counted on.
                grip.offset += n as u64;
            }
            Into::Heartbeat { bytes, .. } => {
                let from = bytes.len() - self.left as usize;
                bytes[from..from + n].copy_from_slice(&input[..n]);
            }
            Into::Nothing(_) => {}
        }
        self.left -= n as u32;
        n
    }
}

/// The operands of an atomic verb, if they have come.
fn operands<const N: usize>(input: &[u8]) -> Option<[u64; N]> {
    let (words, _) = <[[u8; 8]; N]>::read_from_prefix(input).ok()?;
    Some(words.map(u64::from_le_bytes))
}
