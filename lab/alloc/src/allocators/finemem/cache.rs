//! The headers that a worker remembers: of four sections with their spans (64 spans, as in the paper), and of 64 sections
//! for large runs. True when they were read; a failed CAS brings the newer one.

use std::collections::VecDeque;

use super::header::{CONTENDED, EMPTY, Header, NORMAL, run};
use super::{Place, SPANS};

/// Sections remembered with their spans.
const KEPT: usize = 4;

/// A section remembered.
#[derive(Debug)]
struct Kept {
    section: u32,
    header: Header,
    spans: [Header; SPANS as usize],
}

/// A worker's.
#[derive(Debug, Default)]
pub struct Cache {
    kept: VecDeque<Kept>,
    /// For large runs: a section and its header.
    pub heads: Vec<(u32, Header)>,
    /// Where the next search for large runs begins.
    pub cursor: u32,
}

impl Cache {
    /// Remembers a section instead of the one remembered longest.
    pub fn keep(&mut self, section: u32, header: Header, spans: [u64; SPANS as usize]) {
        self.kept.retain(|kept| kept.section != section);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Kept { section, header, spans: spans.map(Header) });
    }

    /// Takes note of a header.
    pub(super) fn learn(&mut self, place: Place, header: Header) {
        let section = match place {
            Place::Section(section) => section,
            Place::Span(span) => span / SPANS,
        };
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.section == section) {
            match place {
                Place::Section(_) => kept.header = header,
                Place::Span(span) => kept.spans[(span % SPANS) as usize] = header,
            }
        }
        if let Place::Section(_) = place
            && let Some(head) = self.heads.iter_mut().find(|(at, _)| *at == section)
        {
            head.1 = header;
        }
    }

    /// What is remembered of a section.
    pub fn section(&self, section: u32) -> Option<Header> {
        self.kept.iter().find(|kept| kept.section == section).map(|kept| kept.header)
    }

    /// A span to take a run of 1 << `order` chunks from, and its header: normal before empty before contended, from a
    /// random place on.
    pub fn choose(&self, order: u8, random: u64) -> Option<(u32, Header, u64)> {
        let count = self.kept.len() * SPANS as usize;
        let start = (random % count.max(1) as u64) as usize;
        let mut best: Option<(u32, Header, u64)> = None;
        for n in 0..count {
            let at = (start + n) % count;
            let (kept, span) = (&self.kept[at / SPANS as usize], (at % SPANS as usize) as u32);
            let (state, header) = (kept.header.state(span), kept.spans[span as usize]);
            let usable = match state {
                NORMAL | CONTENDED => header.in_use() && run(header.map(), order, 0).is_some(),
                EMPTY => true,
                _ => false,
            };
            let rank = |state| [NORMAL, EMPTY, CONTENDED].iter().position(|&s| s == state);
            if usable && best.is_none_or(|(.., best)| rank(state) < rank(best)) {
                best = Some((kept.section * SPANS + span, header, state));
                if state == NORMAL {
                    break;
                }
            }
        }
        best
    }
}
