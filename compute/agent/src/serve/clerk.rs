//! One application's clerk: it carries out the words that come up the ring, and sends answers down.
//!
//! The clerk believes no word of the application: [`Up::of`] checks its form, and the stock checks
//! the things that it names. The first word that cannot be an honest mistake ends the session,
//! because an honest library makes none. The application is told why, in the desk's verdict. Memory
//! that it held is kept from others until its process has ended.

use super::Service;
use super::seat::{Passed, Seat, pass, tell};
use crate::blocks::{Claimed, LOOK_NS, Memory};
use crate::hello::{Located, Mapped, Reached};
use crate::ring::{Consumer, Producer};
use crate::sources::Reached as Found;
use crate::stock::{Need, Stock, Violation};
use crate::word::{BLOCK_ORDER, BlockId, Down, Piece, Refusal, Up};
use farmem_protocol::extent::policy;
use farmem_sys::descriptors;
use farmem_sys::{raw, shared, socket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

/// Words taken before what is due is shown.
const BATCH: usize = 128;
/// How long a request that cannot be served waits for what others were asked to give back.
const RECALLED_NS: u64 = 20_000_000;
/// How long a clerk sleeps at most, should nobody wake it: an application that forgets to loses
/// time, and an end that comes between its last look and its sleep is noticed this late.
const SLEEP_NS: u64 = 250_000_000;

impl Service {
    /// Serves an application until its end; then its memory is others'.
    pub(super) fn attend(&self, seat: &Arc<Seat>) {
        let mut answers = Producer::default();
        let ending = self.serve(seat, &mut answers);
        if let Err(violation) = ending {
            self.violations.fetch_add(1, Ordering::Relaxed);
            seat.desk.verdict().store(violation as u32 + 1, Ordering::Release);
            // Wakes it, so that it reads the verdict.
            let _ = answers.publish(seat.desk.down());
            shared::futex_wake(seat.desk.down().tail);
        }
        let _ = seat.stream.shutdown(std::net::Shutdown::Both);
        if ending.is_err() && self.elsewhere.lock().is_empty() {
            // It may go on writing to memory that it has mapped. No other application gets that
            // until it has ended, and its tenant's quota is charged for it. (Memory that it reaches
            // by keys is out of reach once they are unbound.)
            while socket::wait(seat.pidfd.0, true, false, u64::MAX / 2) == 0 {}
        }
        let mut seats = self.seats.lock();
        let freed = self.stock.lock().dismiss(seat.app);
        seats.remove(&seat.app);
        drop(seats);
        self.release(freed);
    }

    fn serve(&self, seat: &Seat, answers: &mut Producer) -> Result<(), Violation> {
        let (up, down) = (seat.desk.up(), seat.desk.down());
        let mut words = Consumer::default();
        let mut beaten_ns = raw::now_ns();
        loop {
            let mut taken = 0;
            while taken < BATCH && !seat.has_ended() {
                let Some(word) = words.pop(up).map_err(|_| Violation::Positions)? else { break };
                taken += 1;
                self.carry_out(seat, answers, Up::of(word).ok_or(Violation::Nonsense)?)?;
            }
            words.done(up);
            if taken > 0 && answers.publish(down) {
                shared::futex_wake(down.tail);
            }
            if seat.has_ended() || self.over.load(Ordering::Acquire) {
                return Ok(());
            }
            let keeps = self.beat(seat.app, &mut beaten_ns);
            if taken == 0 {
                if let Some(tail) = words.drowse(up)
                    && !seat.has_ended()
                {
                    shared::futex_wait(up.tail, tail, if keeps { policy::HEARTBEAT_NS } else { SLEEP_NS });
                }
                words.rouse(up);
            }
        }
    }

    /// Gives back, once a heartbeat, blocks that have been empty for long. Returns whether any
    /// block is still kept. (A program that does nothing costs its clerk a few heartbeats, and then
    /// none.)
    fn beat(&self, app: usize, beaten_ns: &mut u64) -> bool {
        let now = raw::now_ns();
        if now.saturating_sub(*beaten_ns) < policy::HEARTBEAT_NS {
            return self.stock.lock().keeps(app);
        }
        *beaten_ns = now;
        // Tried before the beat, and let go of at once (`release` takes it again). While a node is
        // silent, a thread that asks it keeps this lock. This program's own words need not wait.
        if self.blocks.try_lock().is_none() {
            return self.stock.lock().keeps(app);
        }
        let mut stock = self.stock.lock();
        let idle = stock.beat(app);
        let keeps = stock.keeps(app);
        drop(stock);
        self.release(idle);
        keeps
    }

    fn carry_out(&self, seat: &Seat, answers: &mut Producer, up: Up) -> Result<(), Violation> {
        let down = seat.desk.down();
        let due = match up {
            Up::Free(piece) => {
                let freed = self.stock.lock().free(seat.app, piece)?;
                self.release(freed);
                return Ok(());
            }
            Up::FreeRun(block, blocks) => {
                let freed = self.stock.lock().free_run(seat.app, block, blocks)?;
                self.release(freed);
                return Ok(());
            }
            Up::Member { node, owner } => {
                seat.names_itself(node as u64, owner);
                return Ok(());
            }
            Up::Want { count, .. } => count as usize + 1,
            Up::Run(_) => 2,
            Up::Map(_) | Up::Where(_) => 1,
        };
        // Answers that have no room are answers to questions that an honest application would not
        // have asked yet. It has as many as fit, read or not; nothing is kept for it anywhere else.
        if answers.room(down).map_err(|_| Violation::Positions)? < due {
            return Err(Violation::Unread);
        }
        let refusal = match up {
            Up::Want { order: 0, count } => self.grant_chunks(seat, answers, count),
            Up::Want { order, count } => self.grant(seat, answers, order, count),
            Up::Run(blocks) => self.grant_run(seat, answers, blocks),
            Up::Map(block) => self.map(seat, block)?,
            Up::Where(block) => self.locate(seat, block)?,
            Up::Free(_) | Up::FreeRun(..) | Up::Member { .. } => None,
        };
        answers.push(down, Down::Done(refusal).bits());
        Ok(())
    }

    /// Grants `count` chunks, in as few pieces as there is room for.
    fn grant_chunks(&self, seat: &Seat, answers: &mut Producer, count: u32) -> Option<Refusal> {
        let mut left = count;
        while left > 0 {
            match self.piece(seat, |stock| stock.alloc_chunks(seat.app, left)) {
                Ok(piece) => {
                    left -= piece.chunks() as u32;
                    answers.push(seat.desk.down(), Down::Grant(piece).bits());
                }
                Err(refusal) => return Some(refusal),
            }
        }
        None
    }

    fn grant(&self, seat: &Seat, answers: &mut Producer, order: u8, count: u32) -> Option<Refusal> {
        for _ in 0..count {
            match self.piece(seat, |stock| stock.alloc(seat.app, order)) {
                Ok(piece) => answers.push(seat.desk.down(), Down::Grant(piece).bits()),
                Err(refusal) => return Some(refusal),
            }
        }
        None
    }

    /// A piece, as `take` has it from the stock, of a block that is claimed if no other has room.
    fn piece(&self, seat: &Seat, take: impl Fn(&mut Stock) -> Result<Piece, Need>) -> Result<Piece, Refusal> {
        // Of a statement of its own: the lock ends with it.
        let had = take(&mut self.stock.lock());
        match had {
            Ok(piece) => return Ok(piece),
            Err(Need::Refused(refusal)) => return Err(refusal),
            Err(Need::Block) => {}
        }
        let taken = self.claim(seat, 1, |stock, Claimed { block, place }, node| {
            // Under one lock: between the two the block is empty, and another's recall would take
            // it.
            stock.supply(seat.app, block, 1, (node, place)).map(|()| take(stock))
        })?;
        // A block just supplied has room for every order.
        taken.map_err(|_| Refusal::Tables)
    }

    fn grant_run(&self, seat: &Seat, answers: &mut Producer, blocks: u32) -> Option<Refusal> {
        if blocks < 2 {
            return self.grant(seat, answers, BLOCK_ORDER, 1);
        }
        match self.run_of(seat, blocks) {
            Ok(block) => {
                answers.push(seat.desk.down(), Down::Run(block, blocks).bits());
                None
            }
            Err(refusal) => Some(refusal),
        }
    }

    fn run_of(&self, seat: &Seat, blocks: u32) -> Result<BlockId, Refusal> {
        let may = self.stock.lock().may_have(seat.app, blocks);
        if may == Err(Refusal::Quota) {
            // The program's empty blocks are charged to it, and no part of a run. (A piece would be
            // had of them.)
            self.release_empty_of(seat.app);
            self.stock.lock().may_have(seat.app, blocks)?;
        } else {
            may?;
        }
        self.claim(seat, blocks, |stock, Claimed { block, place }, node| {
            stock.supply(seat.app, block, blocks, (node, place)).map(|()| block)
        })
    }

    /// Claims blocks from the source for the application, and lets `supply` record them and which
    /// node they are at. If it refuses, they go back. The stock's lock is not held while the node is
    /// asked, and the blocks' lock is held for one attempt at a time. So a claim that waits for the
    /// node to clean makes no other wait.
    fn claim<T>(
        &self,
        seat: &Seat,
        blocks: u32,
        supply: impl Fn(&mut Stock, Claimed, usize) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let begun = raw::now_ns();
        let mut recalled_ns = None;
        // Each look reads the table, with the blocks locked: they become rarer, some 45 in the
        // fifth of a second that a claim may wait for what is being cleaned.
        let mut look_ns = LOOK_NS;
        loop {
            let mut sources = self.nodes();
            let claimed = sources.claim(blocks, begun);
            if let Ok(Some((claimed, node))) = claimed {
                // The blocks stay locked: a move that came between would find no record of this one
                // to change, and the record would then name the place that it had left.
                let supplied = supply(&mut self.stock.lock(), claimed, node);
                if supplied.is_err() {
                    sources.release(&[claimed.block]);
                }
                return supplied;
            }
            drop(sources);
            match (claimed, recalled_ns) {
                (Ok(_), _) => {
                    raw::sleep_ns(look_ns);
                    look_ns = (look_ns * 2).min(RECALLED_NS / 4);
                }
                // Memory that other applications keep unused may be enough. It comes when they next
                // ask or free.
                (Err(Refusal::Exhausted | Refusal::Share), None) => {
                    recalled_ns = Some(raw::now_ns());
                    // Its own at once, however lately others were asked.
                    self.release_empty_of(seat.app);
                    self.recall();
                }
                (Err(Refusal::Exhausted | Refusal::Share), Some(at)) if raw::now_ns() - at < RECALLED_NS => {
                    raw::sleep_ns(RECALLED_NS / 4);
                }
                (Err(refusal), _) => return Err(refusal),
            }
        }
    }

    /// Passes a block's memory over the socket, or by what it is reached.
    fn map(&self, seat: &Seat, block: BlockId) -> Result<Option<Refusal>, Violation> {
        if !self.stock.lock().owns(seat.app, block) {
            return Err(Violation::NotHeld);
        }
        let found = self.nodes().memory(block, |number| seat.user_at(number));
        let Found { node, memory, to, moved } = match found {
            Ok(found) => found,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let said = match memory {
            Memory::Here { fd, name, len } => {
                let mapped = Mapped { block: block.0 as u64, name, len, offset: 0 };
                let passed = pass(&seat.stream, mapped.as_bytes(), fd);
                descriptors::close(fd);
                match passed {
                    Passed::Crowded => return Ok(Some(Refusal::System)),
                    passed => passed == Passed::Sent,
                }
            }
            Memory::Elsewhere(keys) => {
                let head = Reached { block: block.0 as u64, node, keys: keys.len() as u64, to, moved };
                let mut said = head.as_bytes().to_vec();
                keys.iter().for_each(|key| said.extend_from_slice(&key.0.to_ne_bytes()));
                tell(&seat.stream, &said)
            }
        };
        // A socket that is full is one that nobody reads.
        if said { Ok(None) } else { Err(Violation::Unread) }
    }

    /// Says over the socket which node a block is at.
    fn locate(&self, seat: &Seat, block: BlockId) -> Result<Option<Refusal>, Violation> {
        if !self.stock.lock().owns(seat.app, block) {
            return Err(Violation::NotHeld);
        }
        let text = self.nodes().text(block, |number| seat.user_at(number).is_some());
        let mut said = Located { block: block.0 as u64, text: text.len() as u64 }.as_bytes().to_vec();
        said.extend_from_slice(text.as_bytes());
        // As above.
        if tell(&seat.stream, &said) { Ok(None) } else { Err(Violation::Unread) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use crate::hello::{Hello, MAGIC};
    use crate::ledger::Progress;
    use crate::ledger::{self, Ledger};
    use crate::sources::{Begun, Sources, Step};
    use farmem_fabric::{ConnectOptions, NodeAddr, Transport};
    use farmem_protocol::wire::ANY_QUEUE;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};
    use zerocopy::FromZeros;

    fn within(what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn moves(sources: &mut Sources, new: Blocks, mut moved: impl FnMut(BlockId, Progress)) {
        assert_eq!(sources.begin(new, 1, "tcp new 1".into()), Begun::There);
        while let Ok(Step::Moved | Step::Copied) = sources.step(raw::now_ns(), &mut moved) {}
    }

    /// A move that begins as early as it can, after a claim and before its record.
    #[test]
    fn what_is_claimed_as_a_move_begins_is_recorded_where_it_is() {
        let nodes = [0, 1].map(|_| {
            let listens = vec![NodeAddr::Tcp("127.0.0.1:0".into())];
            farmem_memory::Node::start(&farmem_memory::Config::new(64 << 20, listens)).unwrap()
        });
        let fd = shared::memory(c"ledger", ledger::BYTES as u64).unwrap();
        let ledger = Arc::new(Ledger::open(fd).unwrap().0);
        let limit = Duration::from_secs(60);
        let transport = Transport::Tcp;
        let options = ConnectOptions { timeout: limit, grace: limit, run: [7; 16], transport, ..Default::default() };
        let [old, new] = [0, 1].map(|at| {
            let blocks = Blocks::join_as(&nodes[at].addresses()[0], &options, (Arc::clone(&ledger), at));
            blocks.map_err(|e| e.to_string()).unwrap()
        });
        let stock = Stock::open(Arc::clone(&ledger), Default::default());
        let sources = Sources::new(Arc::clone(&ledger), old, "tcp old 0".into());
        let service = Service::new(stock, sources, "tcp old 0".into()).unwrap();
        let (mine, its) = UnixStream::pair().unwrap();
        let hello = Hello { magic: MAGIC, owner: 1, queue: ANY_QUEUE, ..Hello::new_zeroed() };
        (&mine).write_all(hello.as_bytes()).unwrap();
        let seat = service.receive(its).unwrap();

        let sources = service.blocks.lock();
        let (looks, looked) = std::sync::mpsc::channel();
        let clerk = std::thread::spawn({
            let service = Arc::clone(&service);
            move || {
                service.piece(&seat, |stock| {
                    looks.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
                    stock.alloc(seat.app, 0)
                })
            }
        });
        let thread = looked.recv().unwrap();
        // When it has looked. It can claim now, and record nothing.
        let mut stock = service.stock.lock();
        drop(sources);
        within("it claims", || service.taken.load(Ordering::Relaxed) == 1);
        within("it waits for the stock", || {
            let stat = std::fs::read_to_string(std::path::Path::new("/proc").join(&thread).join("stat")).unwrap();
            stat.rsplit(") ").next().unwrap().starts_with('S')
        });
        let unlocked = service.blocks.try_lock();
        if let Some(mut sources) = unlocked {
            moves(&mut sources, new, |block, to| stock.moved(block, to));
            drop((sources, stock));
            clerk.join().unwrap().unwrap();
        } else {
            drop((unlocked, stock));
            clerk.join().unwrap().unwrap();
            moves(&mut service.blocks.lock(), new, |block, to| service.stock.lock().moved(block, to));
        }
        let recorded: Vec<usize> = service.stock.lock().owned().map(|owned| owned.node).collect();
        assert_eq!(recorded, [1], "the record names the node that the block has left");
        // The node counts what it has back in its own time.
        within("the block is at one node", || [0, 1].map(|at| nodes[at].nic().lent()) == [0, 2 << 20]);
        descriptors::close(fd);
    }
}
