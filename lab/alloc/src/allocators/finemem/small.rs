//! 4 to 64 KiB: chunks of a span.

use super::header::{CONTENDED, EMPTY, FULL, Header, NORMAL, run};
use super::{FineMem, HIGH, LOW, Place, SPAN, SPANS};
use crate::allocators::{BLOCK, Client};
use crate::ledger::Grant;

impl FineMem {
    /// Takes a run of chunks. `None`: none was found in any section.
    pub(super) async fn take_chunks(&self, client: &Client, order: u8) -> Option<Grant> {
        let cache = self.remembered(client);
        let mut search = Search { start: client.random.below(self.sections as usize) as u32, seen: 0 };
        let mut failures = 0;
        // A span that we alone may set in use, and its header.
        let mut entered: Option<(u32, Header)> = None;
        loop {
            let chosen = cache.borrow().choose(order, client.random.next());
            let (span, mut header, state) = match (entered, chosen) {
                (Some((span, header)), _) => (span, header, EMPTY),
                (None, Some(chosen)) => chosen,
                (None, None) => {
                    if self.refill(client, order, &mut search).await {
                        continue;
                    }
                    return None;
                }
            };
            if state == EMPTY && entered.is_none() {
                if !self.enter(client, span).await {
                    failures += 1;
                    continue;
                }
                if header.map() != 0 {
                    // Remembered from before it was emptied.
                    header = Header(client.link.read::<1>(self.at(Place::Span(span))).await[0]);
                }
                entered = Some((span, header));
            }
            // Somebody's temporary log is about to be overwritten: it goes to the chunk's log first.
            if header.id() != 0 {
                header = self.flush(client, Place::Span(span), header, None).await;
                cache.borrow_mut().learn(Place::Span(span), header);
                entered = entered.map(|(span, _)| (span, header));
            }
            // In use must be what the CAS compares: else the span may by now be part of somebody's 128 KiB.
            let start = client.random.below(SPAN as usize) as u32;
            let (true, Some(offset)) = (header.in_use() || entered.is_some(), run(header.map(), order, start)) else {
                continue;
            };
            let mask = ((1u64 << (1 << order)) - 1) << offset;
            let retry = if failures >= HIGH { 3 } else { header.retry().min(failures) };
            let next =
                header.with_in_use(true).with_retry(retry).next(1, mask, true, offset, order, FineMem::id(client));
            client.attempt();
            let was = Header(client.link.cas(self.at(Place::Span(span)), header.0, next.0).await);
            if was != header {
                failures += 1;
                cache.borrow_mut().learn(Place::Span(span), was);
                entered = entered.map(|(span, _)| (span, was));
                continue;
            }
            cache.borrow_mut().learn(Place::Span(span), next);
            let chunk = span * SPAN + offset;
            let keys = self.keys.read(client, chunk);
            let (key, [log]) = client.link.together(keys, client.link.read::<1>(self.log_at(chunk))).await;
            self.tell_section(client, span, next, state, failures).await;
            let logged = self.flush(client, Place::Span(span), next, Some(log)).await;
            cache.borrow_mut().learn(Place::Span(span), logged);
            return Some(Grant { chunk, order, token: key });
        }
    }

    /// Makes an empty span one of chunks: by the section's header. Whoever wins this CAS alone may set the span *in
    /// use*, which it does with its first chunk.
    async fn enter(&self, client: &Client, span: u32) -> bool {
        let (cache, section) = (self.remembered(client), span / SPANS);
        let Some(was) = cache.borrow().section(section) else { return false };
        let was = self.logged_section(client, section, was).await;
        if was.state(span % SPANS) != EMPTY {
            return false;
        }
        client.attempt();
        let next = was.with_state(span % SPANS, NORMAL);
        let found = Header(client.link.cas(self.at(Place::Section(section)), was.0, next.0).await);
        cache.borrow_mut().learn(Place::Section(section), if found == was { next } else { found });
        found == was
    }

    /// A section's header whose temporary log is in the chunk's.
    pub(super) async fn logged_section(&self, client: &Client, section: u32, header: Header) -> Header {
        if header.id() == 0 {
            return header;
        }
        let logged = self.flush(client, Place::Section(section), header, None).await;
        self.remembered(client).borrow_mut().learn(Place::Section(section), logged);
        logged
    }

    /// Tells the section that a span has become full, contended, or normal again.
    async fn tell_section(&self, client: &Client, span: u32, header: Header, state: u64, failures: u64) {
        let full = header.map() == u32::MAX;
        let state = match state {
            _ if full => FULL,
            _ if failures > HIGH => CONTENDED,
            CONTENDED if failures < LOW => NORMAL,
            _ => return,
        };
        self.set_state(client, span, state).await;
        // A chunk that came back between the span's CAS and this one found a section that did not say "full" yet, and
        // left it: then it is for us to take it back.
        if state == FULL {
            self.set_state(client, span, NORMAL).await;
        }
    }

    /// Sets a span's state in its section, as far as the span itself still says so.
    async fn set_state(&self, client: &Client, span: u32, state: u64) {
        let (cache, section) = (self.remembered(client), span / SPANS);
        let at = self.at(Place::Section(section));
        let known = if state == NORMAL { None } else { cache.borrow().section(section) };
        let mut header = match known {
            Some(header) => header,
            None => Header(client.link.read::<1>(at).await[0]),
        };
        loop {
            header = self.logged_section(client, section, header).await;
            if header.state(span % SPANS) == state || header.state(span % SPANS) == EMPTY {
                // So it is already, or the span has been emptied since: unless we remember wrongly.
                let now = Header(client.link.read::<1>(at).await[0]);
                cache.borrow_mut().learn(Place::Section(section), now);
                if now == header {
                    return;
                }
                header = now;
                continue;
            }
            // The section first, then the span: if the section's CAS still finds what it said before the span said that
            // it is in use, nobody has taken the span as a whole in between.
            if state != EMPTY {
                let inner = Header(client.link.read::<1>(self.at(Place::Span(span))).await[0]);
                if !inner.in_use() || (inner.map() == u32::MAX) != (state == FULL) {
                    return;
                }
            }
            let next = header.with_state(span % SPANS, state);
            let found = Header(client.link.cas(at, header.0, next.0).await);
            cache.borrow_mut().learn(Place::Section(section), if found == header { next } else { found });
            if found == header {
                return;
            }
            header = found;
        }
    }

    /// Reads on, section by section from a random one, until one is found with room. `false`: none has.
    async fn refill(&self, client: &Client, order: u8, search: &mut Search) -> bool {
        let cache = self.remembered(client);
        while search.seen < self.sections {
            let group = (search.start + search.seen) % self.sections;
            let count = 16.min(self.sections - group).min(self.sections - search.seen);
            let headers = client.link.read_many(group as usize, count as usize).await;
            let room = |header: Header, wanted: &[u64]| (0..SPANS).any(|span| wanted.contains(&header.state(span)));
            let find = |wanted: &[u64]| headers.iter().position(|&header| room(Header(header), wanted));
            // What a section says of its spans does not tell how large their runs are: larger ones rather from empty.
            let found = if order < 2 {
                find(&[NORMAL]).or_else(|| find(&[EMPTY]))
            } else {
                find(&[EMPTY]).or_else(|| find(&[NORMAL]))
            };
            let Some(place) = found.or_else(|| find(&[CONTENDED])) else {
                search.seen += count;
                continue;
            };
            search.seen += place as u32 + 1;
            let section = group + place as u32;
            let spans = client.link.read::<16>(self.at(Place::Span(section * SPANS))).await;
            cache.borrow_mut().keep(section, Header(headers[place]), spans);
            return true;
        }
        false
    }

    /// Gives a run of chunks back.
    pub(super) async fn give_chunks(&self, client: &Client, grant: Grant) {
        let (cache, span) = (self.remembered(client), grant.chunk / SPAN);
        let (place, at, offset) = (Place::Span(span), self.at(Place::Span(span)), grant.chunk % SPAN);
        let words = client.link.together(client.link.read::<1>(at), client.link.read::<1>(self.log_at(grant.chunk)));
        let (([header], [log]), keys) = client.link.together(words, self.keys.read_pair(client, grant.chunk)).await;
        self.keys.revoke(client, grant, keys).await;
        let (mut header, mut log) = (Header(header), Some(log));
        let mask = ((1u64 << (1 << grant.order)) - 1) << offset;
        let next = loop {
            if header.id() != 0 {
                if header.offset() == offset {
                    log = None;
                }
                header = self.flush(client, place, header, None).await;
                continue;
            }
            let next = header.next(1, mask, false, offset, grant.order, FineMem::id(client));
            let next = next.with_in_use(next.map() != 0);
            client.attempt();
            let was = Header(client.link.cas(at, header.0, next.0).await);
            if was == header {
                break next;
            }
            header = was;
        };
        cache.borrow_mut().learn(place, next);
        if next.map() == 0 {
            // Ours alone to say: nobody enters the span before its section says empty.
            self.set_state(client, span, EMPTY).await;
        } else if header.map() == u32::MAX {
            self.set_state(client, span, NORMAL).await;
        }
        let logged = self.flush(client, place, next, log).await;
        cache.borrow_mut().learn(place, logged);
    }
}

/// How far a search has come: sections.
struct Search {
    start: u32,
    seen: u32,
}

const _: () = assert!(SPAN * SPANS == BLOCK);
