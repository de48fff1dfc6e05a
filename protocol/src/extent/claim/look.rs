//! Where a claim looks, and which of the words that it finds it tries to take.

use super::{Ahead, Claimer, MAX_BLIND, Phase};
use crate::extent::geometry::LINE;
use crate::extent::lots;
use crate::extent::place::{Level, Place};
use crate::extent::release::Grant;
use crate::extent::rules::Bug;
use crate::extent::search::{Advance, Area};
use crate::extent::step::{Answer, Failed, MAX_OUTSTANDING};
use crate::extent::swap::Swap;
use crate::extent::want::Want;
use crate::extent::word::{Claimant, State, Word};

impl Claimer {
    /// Chooses units among the known words, or begins the next READ. Returns an outcome when
    /// nothing is left to read.
    pub(super) fn search(&mut self, want: Want) -> Option<Result<Vec<Grant>, Failed>> {
        if std::mem::take(&mut self.beaten) {
            match want.level {
                Level::Chunk => self.inner.words.clear(),
                level => self.outer = Area::nothing(level),
            }
        }
        // Words that an earlier claim read are old. A chunk of another's lot is probably gone.
        if want.goes_by_lots()
            && !self.fresh
            && !self.inner.words.is_empty()
            && lots::own(&self.actor, &self.inner, 0, 1).next().is_none()
        {
            let reads = self.inner.reads();
            return self.read(Phase::Inner, reads);
        }
        if self.choose(want) {
            self.phase = Phase::Claim;
            self.pipe.fill(if want.has_leader() { 1 } else { self.swaps.len() });
            self.read_ahead(want);
            return None;
        }
        if let Ahead::Line(line, true) = std::mem::replace(&mut self.ahead, Ahead::Nothing) {
            self.outer = line;
            return self.search(want);
        }
        if want.level == Level::Chunk {
            if let Some((block, line)) = self.inner_lines.pop() {
                // The lines of a small block are parts of lines: only its own chunks.
                let chunks = self.geometry.chunks(block);
                let first = (line * LINE).max(chunks.start);
                let end = ((line + want.lines()) * LINE).min(chunks.end);
                self.inner = Area { first: Place::chunk(first), words: vec![Word::ZERO; (end - first) as usize] };
                return self.read(Phase::Inner, self.inner.reads());
            }
            let mut blocks = Vec::new();
            while self.blocks_seen < LINE && !self.outer.words.is_empty() && blocks.len() < self.looks as usize {
                let at = self.route.nth(self.blocks_seen);
                self.blocks_seen += 1;
                if self.outer.words.get(at as usize).is_some_and(|word| word.is(State::Shared)) {
                    blocks.push(self.outer.first.plus(at));
                }
            }
            if !blocks.is_empty() && self.route.is_hinted() {
                self.looks = (self.looks * 2).min(LINE);
                let reads = blocks.len();
                return self.read(Phase::BlockHints(blocks), reads);
            }
            if !blocks.is_empty() {
                for block in blocks {
                    let chunks = self.geometry.chunks(block);
                    let lines = (chunks.start / LINE..=(chunks.end - 1) / LINE).step_by(want.lines() as usize);
                    self.inner_lines.extend(lines.map(|line| (block, line)));
                }
                self.sort_lines();
                return self.search(want);
            }
        }
        let of_blocks = want.level == Level::Block && want.count > LINE;
        let together = if of_blocks { self.geometry.fanout(Level::Giant) / LINE } else { 1 };
        match self.route.advance(together) {
            Advance::Hints(verb) => self.read(Phase::Hints(verb), 1),
            Advance::Line(line) => {
                self.outer = Area::of_lines(&self.geometry, self.outer.first.level, line, together);
                self.blocks_seen = 0;
                self.read(Phase::Outer, self.outer.reads())
            }
            // There were free units where the races were lost, and there may be still.
            Advance::End if self.retries > 0 => Some(Err(Failed::Contended)),
            Advance::End => {
                self.wary = false;
                Some(Err(Failed::NoSpace))
            }
        }
    }

    /// Adds a READ for the next claim to the CASes that take the last known FREE blocks. So each
    /// claim takes one round trip, also the one after a line is used up.
    fn read_ahead(&mut self, want: Want) {
        let left = self.outer.scattered(0, 1).count();
        let single = !want.contiguous || want.count == 1;
        let known = left > self.swaps.len() || self.ahead != Ahead::Nothing;
        if want.level != Level::Block || !single || known || self.swaps.len() >= MAX_OUTSTANDING {
            return;
        }
        self.ahead = match self.route.ahead() {
            Some(Advance::Line(line)) => Ahead::Line(Area::of_lines(&self.geometry, Level::Block, line, 1), false),
            Some(Advance::Hints(verb)) => Ahead::Hints(verb),
            _ => return,
        };
        self.pipe.push(self.swaps.len());
    }

    /// The answer to the read ahead. If anything is wrong with it, the next claim reads again.
    pub(super) fn has_read_ahead(&mut self, answer: Answer<'_>) {
        let (Answer::Words(words), ahead) = (answer, std::mem::replace(&mut self.ahead, Ahead::Nothing)) else {
            return;
        };
        match ahead {
            Ahead::Line(mut line, _) => {
                if line.fill(0, words) {
                    self.ahead = Ahead::Line(line, true);
                }
            }
            Ahead::Hints(_) => self.route.hints(words),
            Ahead::Nothing => {}
        }
    }

    /// Sorts the lines still to read. Each claimant has an order of its own.
    pub(super) fn sort_lines(&mut self) {
        let route = &self.route;
        self.inner_lines.sort_unstable_by_key(|&(block, line)| (route.nth(line % LINE), block));
    }

    /// Fills `swaps` with CASes on those known words that are to be claimed. False: none is of use.
    fn choose(&mut self, want: Want) -> bool {
        let area = if want.level == Level::Chunk { &self.inner } else { &self.outer };
        let (start, stride) = (self.route.turn as usize, self.route.turns as usize);
        let align = if want.level == Level::Chunk && want.contiguous { want.count as usize } else { 1 };
        let mut actor = self.actor;
        if actor.rules.broken(Bug::NoClaimant) {
            actor.claimant = Claimant::new(0);
        }
        let swap = |at: usize| {
            let old = area.words[at];
            Swap::new(area.first.plus(at as u32), old, actor.named(old, State::Owned, want.order()))
        };
        self.swaps.clear();
        if area.words.is_empty() {
            return false;
        }
        // Giants are taken from the lowest on, so that the rest stays in runs.
        if want.contiguous && (want.count > 1 || want.level == Level::Giant) {
            let Some(first) = area.run(want.count as usize, align, start) else { return false };
            debug_assert!(
                align == 1 || (area.first.index as usize + first).is_multiple_of(align),
                "a run out of place"
            );
            self.swaps.extend((first..first + want.count as usize).map(swap));
        } else {
            let free = area.scattered(start, stride).count();
            if want.goes_by_lots() {
                let own = lots::own(&self.actor, area, start, stride);
                self.swaps.extend(own.take(MAX_BLIND.min(want.count as usize)).map(swap));
                if self.swaps.is_empty() && !self.wary {
                    self.swaps.extend(area.scattered(start, stride).take(1).map(swap));
                }
                return !self.swaps.is_empty();
            }
            // A claimer that lost a whole batch continues with one CAS at a time.
            let most = match (self.retries, self.fresh) {
                (0, true) => free,
                (0, false) => MAX_BLIND,
                _ => 1,
            };
            self.swaps.extend(area.scattered(start, stride).take(most.min(want.count as usize)).map(swap));
        }
        !self.swaps.is_empty()
    }
}
