//! 128 KiB to 2 MiB: spans of a section, by one CAS on the section's header.

use super::header::{EMPTY, FULL, Header, span_run};
use super::{FineMem, Place, SPAN, SPANS};
use crate::allocators::{BLOCK, Client};
use crate::ledger::Grant;

/// Headers read together: 512 B (paper, section 4.1: batched).
const GROUP: u32 = 64;

impl FineMem {
    /// Takes a run of spans. `None`: no section has one.
    pub(super) async fn take_spans(&self, client: &Client, order: u8) -> Option<Grant> {
        let cache = self.remembered(client);
        let (start, mut seen) = (client.random.below(self.sections as usize) as u32, 0);
        loop {
            let chosen = {
                let cache = cache.borrow();
                let from = client.random.below(cache.heads.len().max(1));
                let heads = cache.heads[from..].iter().chain(&cache.heads[..from]);
                heads.copied().find_map(|(section, header)| Some((section, header, span_run(header, order)?)))
            };
            let Some((section, header, first)) = chosen else {
                if seen >= self.sections {
                    return None;
                }
                let group = (start + seen) % self.sections;
                let count = GROUP.min(self.sections - group).min(self.sections - seen);
                seen += count;
                let headers = client.link.read_many(group as usize, count as usize).await;
                cache.borrow_mut().heads = (group..).zip(headers.into_iter().map(Header)).collect();
                continue;
            };
            let header = self.logged_section(client, section, header).await;
            if span_run(header, order) != Some(first) {
                continue;
            }
            let next = header.next(2, mask(first, order), true, first, order - 5, FineMem::id(client));
            client.attempt();
            let was = Header(client.link.cas(self.at(Place::Section(section)), header.0, next.0).await);
            cache.borrow_mut().learn(Place::Section(section), if was == header { next } else { was });
            if was != header {
                continue;
            }
            let chunk = section * BLOCK + first * SPAN;
            let keys = self.keys.read(client, chunk);
            let (key, [log]) = client.link.together(keys, client.link.read::<1>(self.log_at(chunk))).await;
            let logged = self.flush(client, Place::Section(section), next, Some(log)).await;
            cache.borrow_mut().learn(Place::Section(section), logged);
            return Some(Grant { chunk, order, token: key });
        }
    }

    /// Gives a run of spans back.
    pub(super) async fn give_spans(&self, client: &Client, grant: Grant) {
        let (cache, section) = (self.remembered(client), grant.chunk / BLOCK);
        let (place, first) = (Place::Section(section), grant.chunk % BLOCK / SPAN);
        let words = client
            .link
            .together(client.link.read::<1>(self.at(place)), client.link.read::<1>(self.log_at(grant.chunk)));
        let (([header], [log]), keys) = client.link.together(words, self.keys.read_pair(client, grant.chunk)).await;
        self.keys.revoke(client, grant, keys).await;
        let (mut header, mut log) = (Header(header), Some(log));
        loop {
            if header.id() != 0 {
                if header.offset() == first {
                    log = None;
                }
                header = self.logged_section(client, section, header).await;
                continue;
            }
            debug_assert!((first..first + (1 << (grant.order - 5))).all(|span| header.state(span % SPANS) == FULL));
            let next = header.next(2, mask(first, grant.order), false, first, grant.order - 5, FineMem::id(client));
            client.attempt();
            let was = Header(client.link.cas(self.at(place), header.0, next.0).await);
            cache.borrow_mut().learn(place, if was == header { next } else { was });
            if was == header {
                let logged = self.flush(client, place, next, log).await;
                cache.borrow_mut().learn(place, logged);
                return;
            }
            header = was;
        }
    }
}

/// The states of a run of spans, all bits.
fn mask(first: u32, order: u8) -> u64 {
    let bits = 2u32 << (order - 5);
    ((1u64 << bits) - 1) << (2 * first)
}

const _: () = assert!(EMPTY == 0 && FULL == 3, "a run's mask sets and clears whole states");
