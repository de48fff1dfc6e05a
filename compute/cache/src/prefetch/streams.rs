//! The streams a thread has under way: merge sort reads several runs at once,
//! a matrix product rows and columns. Sixteen, least recently followed goes first.

use farmem_protocol::addr::PageId;

const STREAMS: usize = 16;
/// Steps behind a trip-wire that may count as touching it, at most.
pub(super) const MOST_SLACK: i64 = 4;

#[derive(Clone, Copy)]
struct Stream {
    /// Its last fault.
    at: u64,
    stride: i64,
    /// Pages ahead of `at` that the last window named. They should be local now.
    window: u32,
    /// … of which the window brought in; the others were there.
    fetched: u32,
    /// When it was last followed; 0: no stream.
    used: u64,
}

/// A fault on a stream.
pub(super) struct Next {
    pub slot: usize,
    pub stride: i64,
    /// Pages to fetch now.
    pub pages: u32,
    /// Whether the last window came to nothing.
    pub lost: bool,
    /// Pages that it had brought in.
    pub fetched: u32,
}

pub(super) struct Streams {
    streams: [Stream; STREAMS],
    reach: Reach,
    clock: u64,
    latest: usize,
}

impl Streams {
    pub fn new() -> Streams {
        Streams {
            streams: [Stream { at: 0, stride: 1, window: 0, fetched: 0, used: 0 }; STREAMS],
            reach: Reach { first: [0; STREAMS], span: [0; STREAMS] },
            clock: 0,
            latest: 0,
        }
    }

    /// The window to fetch, if `page` continues a stream.
    ///
    /// The trip-wire itself may have been local, and then the fault comes somewhat behind it: a few
    /// steps of `slack`, if what lies between is `local`. Were that not asked, a program that uses
    /// every seventh page would keep a stream of every page at its longest. Random faults fall into
    /// a window of w pages and behind its wire in proportion w : slack + 1, and what falls behind
    /// doubles the window: were the slack as long as the window, chance alone would keep every
    /// stream at its longest.
    // Inlined, because most faults continue no stream and end at `may_hold`.
    #[inline(always)]
    pub fn follow(&self, page: PageId, longest: u32, slack: i64, local: impl Fn(PageId) -> bool) -> Option<Next> {
        debug_assert!(slack <= MOST_SLACK);
        if self.reach.may_hold(page) { self.follow_any(page, longest, slack, local) } else { None }
    }

    /// [`Streams::follow`], by a look at every stream.
    fn follow_any(&self, page: PageId, longest: u32, slack: i64, local: impl Fn(PageId) -> bool) -> Option<Next> {
        for (slot, s) in self.streams.iter().enumerate() {
            if s.used == 0 {
                continue;
            }
            let ahead = page.0.wrapping_sub(s.at) as i64;
            let ahead = if s.stride < 0 { ahead.wrapping_neg() } else { ahead };
            let step = s.stride.unsigned_abs() as i64;
            let window = s.window as i64;
            if ahead <= 0 || ahead > step * (window + 1 + slack) || (step > 1 && ahead % step != 0) {
                continue;
            }
            let steps = ahead / step;
            let at = |step: i64| PageId(s.at.wrapping_add_signed(s.stride * step));
            if !(window + 1..steps).all(|step| local(at(step))) {
                continue;
            }
            // A fault on a page of the window itself: it came to nothing.
            let lost = steps <= window;
            let pages = if lost { s.window / 2 } else { (s.window * 2).clamp(super::FIRST.min(longest), longest) };
            return Some(Next { slot, stride: s.stride, pages, lost, fetched: s.fetched });
        }
        None
    }

    /// A stream that begins at `page`. Returns its slot, and what the last window of the stream it
    /// replaced had brought in.
    pub fn open(&mut self, page: PageId, stride: i64) -> (usize, u32) {
        let mut oldest = 0;
        for slot in 1..STREAMS {
            if self.streams[slot].used < self.streams[oldest].used {
                oldest = slot;
            }
        }
        let replaced = self.streams[oldest].fetched;
        self.streams[oldest] = Stream { at: page.0, stride, window: 0, fetched: 0, used: 0 };
        self.reach.set(oldest, &self.streams[oldest]);
        (oldest, replaced)
    }

    /// A window of `pages` was named for a fault at `page`.
    pub fn issued(&mut self, slot: usize, page: PageId, pages: u32) {
        self.clock += 1;
        self.latest = slot;
        let stream = &mut self.streams[slot];
        (stream.at, stream.window, stream.fetched, stream.used) = (page.0, pages, 0, self.clock);
        self.reach.set(slot, stream);
    }

    pub fn fetched_latest(&mut self, pages: u32) {
        self.streams[self.latest].fetched = pages;
    }

    pub fn shorten_latest(&mut self, pages: u32) {
        self.streams[self.latest].window = pages;
        self.reach.set(self.latest, &self.streams[self.latest]);
    }
}

/// Where a fault may go on with some stream, by the low halves of page numbers: most faults go on
/// with none, and are told so by a few vector instructions.
struct Reach {
    first: [u32; STREAMS],
    /// Pages behind the first.
    span: [u32; STREAMS],
}

impl Reach {
    /// Whether any stream may be followed by a fault at `page`. Seldom true in vain.
    #[inline]
    fn may_hold(&self, page: PageId) -> bool {
        let within = |at: usize| (page.0 as u32).wrapping_sub(self.first[at]) <= self.span[at];
        (0..STREAMS).fold(false, |any, at| any | within(at))
    }

    /// A stream is another, or has another window.
    fn set(&mut self, slot: usize, stream: &Stream) {
        let reach = stream.stride.unsigned_abs().saturating_mul(stream.window as u64 + 1 + MOST_SLACK as u64);
        let first = if stream.stride < 0 { stream.at.wrapping_sub(reach) } else { stream.at + 1 };
        self.first[slot] = first as u32;
        self.span[slot] = u32::try_from(reach.saturating_sub(1)).unwrap_or(u32::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_protocol::random::Random;

    #[test]
    fn no_fault_is_told_too_early_that_it_follows_none() {
        let mut random = Random::new(1);
        let mut next = |below: u64| random.below(below);
        let mut streams = Streams::new();
        let mut followed = 0;
        for _ in 0..100_000 {
            let near = streams.streams[next(STREAMS as u64) as usize];
            let page = match next(8) {
                0 => next(1 << 33),
                _ => near.at.wrapping_add_signed(near.stride * (next(80) as i64 - 2)) % (1 << 36),
            };
            let (slack, longest) = (next(MOST_SLACK as u64 + 1) as i64, 1 + next(63) as u32);
            let local = |page: PageId| !page.0.is_multiple_of(5);
            let pick = |next: Option<Next>| next.map(|n| (n.slot, n.stride, n.pages, n.lost, n.fetched));
            let all = pick(streams.follow_any(PageId(page), longest, slack, local));
            assert_eq!(pick(streams.follow(PageId(page), longest, slack, local)), all);
            match all {
                Some((slot, _, pages, ..)) => {
                    followed += 1;
                    streams.issued(slot, PageId(page), pages);
                    if next(4) == 0 && pages > 0 {
                        streams.shorten_latest(next(pages as u64) as u32);
                    }
                }
                None => {
                    let stride = [1, -1, 7, -300, 1 << 20, -(1 << 31)][next(6) as usize];
                    let (slot, _) = streams.open(PageId(page), stride);
                    streams.issued(slot, PageId(page), next(64) as u32);
                }
            }
        }
        assert!(followed > 10_000, "{followed}");
    }

    #[test]
    fn a_fault_that_goes_on_with_a_stream_is_within_its_reach() {
        for (stride, window) in [1, -1, 2, -7, 500, -4097, 1 << 26, -(1 << 30)].into_iter().zip([0, 1, 2, 63].repeat(2))
        {
            for at in [1 << 33, (1 << 32) - 3, (1 << 32) + 3, 1 << 36] {
                let mut streams = Streams::new();
                let (slot, _) = streams.open(PageId(at), stride);
                streams.issued(slot, PageId(at), window);
                for step in 1..=window as i64 + 1 + MOST_SLACK {
                    let page = PageId(at.wrapping_add_signed(stride * step));
                    assert!(streams.reach.may_hold(page), "{at:#x}, {stride}, {window}: {step}");
                    assert!(streams.follow(page, 63, MOST_SLACK, |_| true).is_some());
                }
            }
        }
    }
}
