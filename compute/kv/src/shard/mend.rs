//! A third node in place of one of two that has ended.
//!
//! The survivor has the only copy. A new node is *filled* while the store is served:
//!
//! ```text
//!  Alone ──► Mending: every front end            ──► Paused: no operation   ──► Both
//!              takes pieces at both nodes,             is under way;
//!              writes objects to both,                 one front end copies
//!              copies its own pieces,                  head and index
//!              and says that it has
//!    ▲─────────────┴── given up: the new node has ended or is full, or a pause lasts too long ──┘
//! ```
//!
//! The pair's word in the survivor's head says the stage ([`Pair`]). Each step is one CAS of it, so
//! any front end may make it, and one that dies holds up no other. In each line of the head a member
//! says that it has done its part, by the word itself.
//!
//! *Only the survivor is read and decides* until the last CAS. So a node that ends while it is
//! filled takes nothing along, and the new node may have any bytes before it counts.
//!
//! *Objects.* Only a piece's owner writes to it, so only the owner copies it. A place that is
//! linked or was just retired does not change while an operation is under way, and the copier is
//! one. A place whose [grace](crate::shard::heap::GRACE) ends at the next epoch is not copied. A
//! place that was held when WRITEs began to go to both nodes may have been written to the survivor
//! alone. It is copied when the operations of that time have ended. Its adopter copies a piece of a
//! front end that has died. Until then nobody may end the pause by [`Stage::Both`].
//!
//! *The index and the head* change by CAS at the survivor. They are copied in the pause, when all
//! members have said that none of their operations has a batch under way. A front end that comes
//! meanwhile is refused. Its line might be written after the head was copied.
//!
//! An attempt that was given up is never taken up again: the next one has another number, and
//! another region at the new node. So late WRITEs of a copier that was stopped harm nobody.

use crate::layout::{At, EXTENT, HEAD_BYTES, Kind, MEMBERS, Owner, PIECE_HEADER, Pair, Stage, head, word};
use crate::rules::Bug;
use crate::shard::copies::{Copies, Mode, is_done, on};
use crate::shard::heap::Use;
use crate::shard::member::{is_there, line_word, state};
use crate::shard::reach::Reach;
use crate::shard::space::Space;
use crate::task::{Answer, Io, Verb};
use std::collections::BTreeSet;
use std::rc::Rc;

/// How long the members may take to agree to a pause, in ms.
const AGREE_MS: u32 = 1000;
/// Bytes that are copied at once.
const COPY: u64 = 256 << 10;

/// Brings a node in place of one that has ended.
#[derive(Debug)]
pub struct Mend {
    reach: Rc<Reach>,
    space: Rc<Space>,
}

impl Mend {
    pub(crate) fn new(reach: &Rc<Reach>, space: &Rc<Space>) -> Mend {
        Mend { reach: Rc::clone(reach), space: Rc::clone(space) }
    }

    /// This front end's part in filling the other node, which its verbs reach now. Ends with the
    /// attempt.
    pub async fn mend(&self, io: &Io, pair: Pair) {
        let Mode::Alone(stays) = self.reach.copies.mode() else { return };
        if !self.reach.copies.mend(pair) {
            return;
        }
        let filler = Filler { reach: &self.reach, space: &self.space, io, stays, new: Copies::other(stays) };
        if filler.fill(pair).await.is_none() && self.reach.copies.mends(pair) {
            self.reach.copies.mending.failed.set(true);
        }
    }

    /// Begins an attempt to fill the node of this address, which has an empty region. False:
    /// another front end was first.
    pub async fn begin_mending(&self, io: &Io, address: &str, attempt: u64) -> bool {
        let (Mode::Alone(stays), pair) = (self.reach.copies.mode(), self.reach.copies.pair()) else { return false };
        if pair.stage() != Stage::Alone || address.len() > head::SPARE_TEXT {
            return false;
        }
        let mut text = (address.len() as u64).to_le_bytes().to_vec();
        text.extend(address.as_bytes());
        text.resize(text.len().next_multiple_of(8), 0);
        let (root, new) = (on(stays, self.reach.root), Pair::new(Stage::Mending, attempt));
        io.verb(Verb::Write { at: root + head::SPARE, bytes: Rc::new(text) }).await;
        io.verb(Verb::Cas { at: root + head::PAIR, old: pair.0, new: new.0 }).await == Answer::Word(pair.0)
    }

    /// The address of the node that is being filled, or was filled last.
    pub async fn spare(&self, io: &Io) -> Option<String> {
        let node = match self.reach.copies.mode() {
            Mode::Alone(stays) | Mode::Mending(stays) => stays,
            _ => self.reach.node,
        };
        spare_of(io, on(node, self.reach.root)).await
    }

    /// Gives an attempt up.
    pub async fn give_up(&self, io: &Io) {
        if let Mode::Mending(stays) = self.reach.copies.mode() {
            let (pair, at) = (self.reach.copies.pair(), on(stays, self.reach.root) + head::PAIR);
            for stage in [Stage::Mending, Stage::Paused] {
                io.verb(Verb::Cas { at, old: pair.at(stage).0, new: pair.at(Stage::Alone).0 }).await;
            }
        }
    }

    /// Ends the filling if every member has done its part; whether it did. The members learn of it
    /// by their next ticks.
    pub async fn finish_mending(&self, io: &Io) -> bool {
        let Mode::Mending(stays) = self.reach.copies.mode() else { return false };
        let mending = self.reach.copies.pair().at(Stage::Mending);
        let filler = Filler { reach: &self.reach, space: &self.space, io, stays, new: Copies::other(stays) };
        if self.reach.copies.pair() != mending || filler.agreed(mending).await != Some(true) {
            return false;
        }
        let paused = mending.at(Stage::Paused);
        if !filler.turn(mending, paused).await {
            return false;
        }
        let mut waited = 0;
        while !self.reach.rules.get().broken(Bug::FillUnpaused) {
            match filler.agreed(paused).await {
                Some(true) => break,
                Some(false) if waited < AGREE_MS => io.pause(1).await,
                _ => {
                    filler.turn(paused, mending).await;
                    return false;
                }
            }
            waited += 1;
        }
        match filler.copy_index(paused.at(Stage::Both)).await {
            Some(true) => filler.turn(paused, paused.at(Stage::Both)).await,
            // A dead front end's pieces are to be taken over first.
            Some(false) => {
                filler.turn(paused, mending).await;
                false
            }
            None => {
                filler.turn(paused, paused.at(Stage::Alone)).await;
                false
            }
        }
    }
}

/// The address that a root piece has in [`head::SPARE`].
pub(crate) async fn spare_of(io: &Io, root: At) -> Option<String> {
    let bytes = io.read(root + head::SPARE, 8 + head::SPARE_TEXT as u32).await;
    let len = word(&bytes, 0) as usize;
    let text = bytes.get(8..).and_then(|text| text.get(..len)).filter(|text| !text.is_empty())?;
    String::from_utf8(text.to_vec()).ok()
}

/// Copies pieces from the survivor to the new node.
struct Filler<'a> {
    reach: &'a Reach,
    space: &'a Rc<Space>,
    io: &'a Io,
    stays: u8,
    new: u8,
}

impl Filler<'_> {
    /// Verbs at one node, by the addresses that the store knows.
    async fn at(&self, node: u8, verbs: Vec<Verb>) -> Vec<Answer> {
        self.reach.copies.alone(self.io, node, &verbs).await
    }

    /// Changes the stage; whether it was as expected.
    async fn turn(&self, old: Pair, new: Pair) -> bool {
        let verb = Verb::Cas { at: self.reach.root + head::PAIR, old: old.0, new: new.0 };
        loop {
            match self.at(self.stays, vec![verb.clone()]).await.pop() {
                Some(Answer::Word(found)) => return found == old.0,
                Some(Answer::Unknown) => {}
                _ => return false,
            }
        }
    }

    /// Whether every member has said this. `None`: the pair's word is another one.
    async fn agreed(&self, pair: Pair) -> Option<bool> {
        let look = Verb::Read { at: self.reach.root, len: HEAD_BYTES as u32 };
        let Some(Answer::Bytes(head)) = self.at(self.stays, vec![look]).await.pop() else { return None };
        let alive = (0..MEMBERS).filter(|&line| state(&head, line).is_alive());
        let all = alive.into_iter().all(|line| line_word(&head, line, 4) == pair.0);
        (word(&head, head::PAIR as usize / 8) == pair.0).then_some(all)
    }

    /// See [`Mend::mend`]. `None`: the new node is of no use, or the attempt has ended.
    async fn fill(&self, pair: Pair) -> Option<()> {
        let (reach, space, mending) = (self.reach, self.space, &self.reach.copies.mending);
        // Operations that began before pieces were taken at both nodes may still take some.
        self.drain(pair).await?;
        let own = || space.heap.borrow().all_pieces().into_iter().map(|(at, _)| at).collect::<Vec<At>>();
        let mut there = self.pieces_there().await?;
        for at in own() {
            self.claim(at, &mut there).await?;
        }
        // A batch that is under way now writes to the survivor alone. Its places are held.
        mending.mirrors.set(true);
        let mut held = space.heap.borrow().all_held();
        if !reach.rules.get().broken(Bug::FillUndrained) {
            self.drain(pair).await?;
        }
        space.heap.borrow_mut().taken_over();
        let mut pieces = own();
        while reach.copies.mends(pair) {
            pieces.extend(space.heap.borrow_mut().taken_over());
            let ready = pieces.is_empty() && held.is_empty();
            mending.ready.set(ready);
            match pieces.pop() {
                Some(at) => self.copy_piece(at, &mut there).await?,
                None if ready => self.io.pause(2).await,
                None => {
                    held = self.copy_held(held).await?;
                    if !held.is_empty() {
                        self.io.pause(2).await;
                    }
                }
            }
        }
        None
    }

    /// Waits for the end of operations and batches that have begun.
    async fn drain(&self, pair: Pair) -> Option<()> {
        let before = self.reach.copies.turn();
        while self.reach.copies.has_begun_in(before) {
            self.io.pause(2).await;
            if !self.reach.copies.mends(pair) {
                return None;
            }
        }
        Some(())
    }

    async fn pieces_there(&self) -> Option<BTreeSet<At>> {
        match self.at(self.new, vec![Verb::Pieces { node: self.new }]).await.pop() {
            Some(Answer::Pieces(pieces)) => Some(pieces.into_iter().map(|(at, _)| at).collect()),
            _ => None,
        }
    }

    /// Takes an own piece at the new node, too.
    async fn claim(&self, at: At, there: &mut BTreeSet<At>) -> Option<()> {
        let Some(bytes) = self.space.heap.borrow().piece_bytes(at) else { return Some(()) };
        self.claim_bytes(at, bytes, there).await
    }

    async fn claim_bytes(&self, at: At, bytes: u32, there: &mut BTreeSet<At>) -> Option<()> {
        if there.contains(&at) {
            return Some(());
        }
        if self.at(self.new, vec![Verb::Claim { at, bytes }]).await.pop() != Some(Answer::Done) {
            // Another may have taken it there for the owner that it had.
            *there = self.pieces_there().await?;
            return there.contains(&at).then_some(());
        }
        there.insert(at);
        Some(())
    }

    /// Copies bytes that do not change.
    async fn copy(&self, at: At, len: u64) -> Option<()> {
        let mut done = 0;
        while done < len {
            let (from, some) = (at + done, (len - done).min(COPY));
            let read = Verb::Read { at: from, len: some as u32 };
            let Some(Answer::Bytes(bytes)) = self.at(self.stays, vec![read]).await.pop() else { return None };
            let write = Verb::Write { at: from, bytes: Rc::new(bytes) };
            if !self.at(self.new, vec![write]).await.iter().all(is_done) {
                return None;
            }
            done += some;
        }
        Some(())
    }

    async fn copy_piece(&self, at: At, there: &mut BTreeSet<At>) -> Option<()> {
        // While it lives no place is used again.
        let section = self.space.section();
        self.claim(at, there).await?;
        let segments = !self.reach.rules.get().broken(Bug::FillWithoutSegments);
        // A place that was retired long before this section began may be used again, and written at
        // both nodes, while its old bytes are under way. The index does not refer to it.
        let epoch = if self.reach.rules.get().broken(Bug::FillSoonFree) { 0 } else { section.epoch };
        let ranges = self.space.heap.borrow().settled(at, epoch, segments);
        if self.space.heap.borrow().piece_bytes(at).is_none() {
            return Some(());
        }
        self.copy(at, PIECE_HEADER).await?;
        for (from, len) in ranges {
            self.copy(from, len).await?;
        }
        Some(())
    }

    /// Copies places that were held by operations which have ended since; those that must wait. A
    /// place that is still held then is one of which nobody knows whether it was linked. It stays as
    /// it is. An extent may be free at any time until it is linked.
    async fn copy_held(&self, held: Vec<(At, u16)>) -> Option<Vec<(At, u16)>> {
        let mut left = Vec::new();
        for (at, uses) in held {
            let section = self.space.section();
            let state = self.space.heap.borrow_mut().state(at);
            // Used again, it was written to both nodes.
            let Some((place, class, len)) = state.filter(|(place, ..)| place.uses == uses) else { continue };
            match place.used {
                Use::Free => {}
                Use::Held if class == EXTENT => left.push((at, uses)),
                Use::Retired if self.space.heap.borrow().is_soon_free(at, section.epoch) => {}
                Use::Held | Use::Linked | Use::Retired => self.copy(at, len).await?,
            }
        }
        Some(left)
    }

    /// Copies what belongs to nobody in particular: the head, the index. False: a piece is a dead
    /// front end's.
    async fn copy_index(&self, both: Pair) -> Option<bool> {
        let reach = self.reach;
        let look = Verb::Read { at: reach.root, len: HEAD_BYTES as u32 };
        let Some(Answer::Bytes(members)) = self.at(self.stays, vec![look]).await.pop() else { return None };
        let list = Verb::Pieces { node: self.stays };
        let Some(Answer::Pieces(pieces)) = self.at(self.stays, vec![list]).await.pop() else { return None };
        let mut there = self.pieces_there().await?;
        let mut root = false;
        for some in pieces.chunks(256) {
            let reads = some.iter().map(|&(at, _)| Verb::Read { at, len: 16 }).collect();
            for (&(at, len), answer) in some.iter().zip(self.at(self.stays, reads).await) {
                let Answer::Bytes(bytes) = answer else { return None };
                match Owner::of(word(&bytes, 0), word(&bytes, 1), reach.secret, at) {
                    // Just taken, or left by a front end that died then: it has no object.
                    None => {}
                    Some(owner) if owner.kind == Kind::Objects => {
                        let dead = !is_there(&members, owner.member);
                        if dead && !reach.rules.get().broken(Bug::FillWithoutTheDead) {
                            return Some(false);
                        }
                    }
                    Some(owner) => {
                        root |= owner.kind == Kind::Root;
                        self.claim_bytes(at, len, &mut there).await?;
                        self.copy(at, u64::from(len)).await?;
                    }
                }
            }
        }
        if !root {
            return None;
        }
        let write = |at: At, word: u64| Verb::Write { at, bytes: Rc::new(word.to_le_bytes().to_vec()) };
        let words = vec![write(reach.root + head::PAIR, both.0), write(reach.copies.root_word(), reach.root)];
        let answers = self.at(self.new, words).await;
        answers.iter().all(is_done).then_some(true)
    }
}
