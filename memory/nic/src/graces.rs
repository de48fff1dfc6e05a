//! Graces: how long a member or a volume may be absent before the node takes its memory back.

/// A look at all graces of one kind.
pub(crate) struct Graces {
    now_ns: u64,
    /// The earliest end of a grace that is not over. `None`: nobody is absent.
    pub next_ns: Option<u64>,
}

impl Graces {
    /// A look at this time.
    pub fn at(now_ns: u64) -> Graces {
        Graces { now_ns, next_ns: None }
    }

    /// Whether one that has been absent since `absent_ns` (`None`: it is there) has used up its
    /// grace.
    pub fn is_over(&mut self, absent_ns: Option<u64>, grace_ns: u64) -> bool {
        let Some(until_ns) = absent_ns.map(|since| since + grace_ns) else { return false };
        if until_ns > self.now_ns {
            self.next_ns = Some(self.next_ns.map_or(until_ns, |next| next.min(until_ns)));
        }
        until_ns <= self.now_ns
    }
}
