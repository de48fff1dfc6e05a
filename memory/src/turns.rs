//! Which connection a worker serves next, when several tenants ask it: start-time fair queueing.
//!
//! ```text
//!  tenant a   ▓▓▓▓▓▓▓▓▓▓  many connections are ready     a served class's time moves on by what it took;
//!  tenant b   ▓           one is                         the class that is furthest behind comes next
//!             └─► a, b, a, b, …
//! ```
//!
//! Tenants share a worker's CPU time, because both bytes and verbs cost time. Each class has a time of
//! its own, and the worker has a clock: the time of the class that it serves. A class that was idle
//! starts at the clock. So it comes before any class that was served meanwhile, and has saved
//! nothing up.
//!
//! A tenant that is ahead of its limited rate ([`farmem_nic::tenants::Pace`]) is passed over. Its
//! connections keep their places.
//!
//! While only one tenant has connections, [`Turns::shared`] is false, and a worker serves
//! connections as their events come. While only one has asked of late, [`Turns::crowded`] is false,
//! and the worker still looks at its hot connections first.

use farmem_nic::tenants::Tenant;
use std::collections::VecDeque;
use std::sync::Arc;

/// How far a class's time may be ahead of the clock, ns. A turn counts up to this much, and is made
/// up for while the tenant still asks. No single request takes longer.
const AHEAD_NS: u64 = 100_000_000;
/// How long tenants count as competing once two have asked, ns.
const LATELY_NS: u64 = 1_000_000_000;

/// The connections of one tenant, or those without a tenant.
#[derive(Debug, Default)]
struct Class {
    tenant: Option<Arc<Tenant>>,
    connections: usize,
    /// Tokens of connections that wait to be served.
    ready: VecDeque<usize>,
    /// Its time: when its next turn starts, by the clock of [`Turns`].
    start_ns: u64,
}

impl Class {
    /// How long it must wait because it is ahead of its rate, ns.
    #[inline]
    fn wait_ns(&self, now_ns: u64) -> u64 {
        self.tenant.as_ref().map_or(0, |tenant| tenant.pace.wait_ns(now_ns))
    }

    /// Whether one of its connections may be served now.
    fn may(&self, now_ns: u64) -> bool {
        !self.ready.is_empty() && self.wait_ns(now_ns) == 0
    }

    fn is_of(&self, tenant: Option<&Arc<Tenant>>) -> bool {
        self.tenant.as_ref().map(|own| own.name) == tenant.map(|tenant| tenant.name)
    }
}

/// Connections that are ready, by their tenants.
#[derive(Debug, Default)]
pub struct Turns {
    /// All classes by index. A class without connections is used again.
    classes: Vec<Class>,
    /// When the turn that was given last started. It never goes back.
    clock_ns: u64,
    /// Classes that have connections.
    there: usize,
    /// The class that asked last, and when.
    last: (usize, u64),
    crowded_until_ns: u64,
}

impl Turns {
    /// Notes a new connection of a tenant. Returns its class. One whose time is ahead of the clock is
    /// still its tenant's, though it has no connection: a tenant cannot shed its debt by connecting
    /// again.
    pub fn join(&mut self, tenant: Option<&Arc<Tenant>>) -> usize {
        let clock_ns = self.clock_ns;
        let is_taken = |class: &Class| class.connections > 0 || class.start_ns > clock_ns;
        let known = self.classes.iter().position(|class| is_taken(class) && class.is_of(tenant));
        let class = known.or_else(|| self.classes.iter().position(|class| !is_taken(class)));
        let class = class.unwrap_or_else(|| {
            self.classes.push(Class::default());
            self.classes.len() - 1
        });
        self.there += usize::from(self.classes[class].connections == 0);
        self.classes[class].tenant = tenant.cloned();
        self.classes[class].connections += 1;
        class
    }

    /// Notes that a connection of a class is gone.
    pub fn leave(&mut self, class: usize, token: usize) {
        let of = &mut self.classes[class];
        of.connections -= 1;
        of.ready.retain(|&ready| ready != token);
        if of.connections == 0 {
            self.there -= 1;
        }
    }

    /// Notes that something came from a connection of a class.
    #[inline]
    pub fn asked(&mut self, class: usize, now_ns: u64) {
        let (last, at_ns) = self.last;
        if last != class && now_ns.saturating_sub(at_ns) < LATELY_NS {
            self.crowded_until_ns = now_ns + LATELY_NS;
        }
        self.last = (class, now_ns);
    }

    /// Whether several classes are there.
    #[inline]
    pub fn shared(&self) -> bool {
        self.there > 1
    }

    /// Whether several classes have asked of late.
    #[inline]
    pub fn crowded(&self, now_ns: u64) -> bool {
        now_ns < self.crowded_until_ns
    }

    /// Has a connection wait to be served in its class's turn. Returns false if it waits already.
    pub fn ready(&mut self, class: usize, token: usize) -> bool {
        let ready = &mut self.classes[class].ready;
        let comes = !ready.contains(&token);
        if comes {
            ready.push_back(token);
        }
        comes
    }

    /// Whether connections of a class have to wait for its rate.
    #[inline]
    pub fn is_ahead(&self, class: usize, now_ns: u64) -> bool {
        self.classes[class].wait_ns(now_ns) > 0
    }

    /// Counts bytes that a connection of a class has moved.
    #[inline]
    pub fn moved(&self, class: usize, bytes: u64, now_ns: u64) {
        self.classes[class].tenant.iter().for_each(|tenant| tenant.pace.count(bytes, now_ns));
    }

    /// How long until one that waits may be served, ns. `None`: none waits.
    pub fn next_in(&self, now_ns: u64) -> Option<u64> {
        let waiting = self.classes.iter().filter(|class| !class.ready.is_empty());
        waiting.map(|class| class.wait_ns(now_ns)).min()
    }

    /// The class and token of the connection to serve next. The caller reports the CPU time that it
    /// took to [`Turns::took`].
    pub fn next(&mut self, now_ns: u64) -> Option<(usize, usize)> {
        let clock_ns = self.clock_ns;
        let waiting = self.classes.iter_mut().enumerate().filter(|(_, class)| class.may(now_ns));
        // Of several that start at the clock, the one that was idle for longest.
        let (at, class) = waiting.min_by_key(|(_, class)| (class.start_ns.max(clock_ns), class.start_ns))?;
        class.start_ns = class.start_ns.max(clock_ns);
        self.clock_ns = class.start_ns;
        class.ready.pop_front().map(|token| (at, token))
    }

    /// Moves a class's time on by the CPU time that serving it took, ns.
    pub fn took(&mut self, class: usize, ns: u64) {
        let class = &mut self.classes[class];
        class.start_ns = (class.start_ns + ns).min(self.clock_ns + AHEAD_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farmem_nic::Nic;
    use farmem_nic::lending::{Backing, Lending};
    use farmem_nic::tenants::{Known, Standing};
    use farmem_protocol::addr::SLAB_BYTES;
    use farmem_protocol::wire::Text;
    use farmem_trust::Key;

    fn tenant(name: &str, rate: u64) -> Arc<Tenant> {
        let nic = Nic::new(Lending::new(SLAB_BYTES, Backing::Small), || [0; 16]);
        let key = Key::stored(Text::new(name), [0; 8], [0; 32]);
        nic.set_tokens(vec![Known { key, standing: Standing::Good, quota: u64::MAX, rate }]);
        nic.tenants.all().remove(0)
    }

    fn two() -> (Turns, usize, usize) {
        let mut turns = Turns::default();
        let [noisy, still] = ["loud", "quiet"].map(|name| tenant(name, u64::MAX));
        let (loud, quiet) = (turns.join(Some(&noisy)), turns.join(Some(&still)));
        (1..64).for_each(|_| assert_eq!(turns.join(Some(&noisy)), loud));
        (turns, loud, quiet)
    }

    #[test]
    fn a_tenant_with_many_connections_gets_no_more_time_than_one_with_one() {
        let (mut turns, loud, quiet) = two();
        let mut took = [0, 0];
        for _ in 0..10_000 {
            (0..64).for_each(|token| {
                turns.ready(loud, token);
            });
            turns.ready(quiet, 64);
            let (class, token) = turns.next(0).unwrap();
            assert_eq!(class == quiet, token == 64);
            // A connection of the loud one takes long each time.
            let ns = if class == loud { 70_000 } else { 3_000 };
            turns.took(class, ns);
            took[class] += ns;
        }
        assert!(took[loud].abs_diff(took[quiet]) < 200_000, "{took:?}");
    }

    #[test]
    fn one_that_was_idle_is_served_next_and_has_saved_nothing_up() {
        let (mut turns, loud, quiet) = two();
        let loud_turn = |turns: &mut Turns| {
            (0..64).for_each(|token| {
                turns.ready(loud, token);
            });
            assert_eq!(turns.next(0).map(|(class, _)| class), Some(loud));
            turns.took(loud, 30_000);
        };
        for _ in 0..1000 {
            (0..10).for_each(|_| loud_turn(&mut turns));
            turns.ready(quiet, 64);
            assert_eq!(turns.next(0), Some((quiet, 64)));
            turns.took(quiet, 3_000);
        }
        (0..1000).for_each(|_| loud_turn(&mut turns));
        // From here on it asks always: it has half of the time, and not what it left before.
        let mut served = [0_u64; 2];
        for _ in 0..100 {
            turns.ready(loud, 1);
            turns.ready(quiet, 64);
            let (class, _) = turns.next(0).unwrap();
            turns.took(class, 5_000);
            served[class] += 1;
        }
        assert!(served[loud].abs_diff(served[quiet]) <= 8, "{served:?}");
    }

    #[test]
    fn one_that_is_idle_again_and_again_gets_no_more_than_its_part() {
        let (mut turns, always, often) = two();
        let mut took = [0_u64; 2];
        let mut last = always;
        for _ in 0..10_000 {
            turns.ready(always, 1);
            // Its queue is empty each time that it was served.
            if last != often {
                turns.ready(often, 64);
            }
            let (class, _) = turns.next(0).unwrap();
            let ns = if class == often { 9_000 } else { 2_000 };
            turns.took(class, ns);
            took[class] += ns;
            last = class;
        }
        assert!(took[often] <= took[always] + 20_000, "{took:?}");
    }

    #[test]
    fn a_long_turn_is_made_up_for() {
        let (mut turns, loud, quiet) = two();
        turns.ready(loud, 1);
        assert_eq!(turns.next(0), Some((loud, 1)));
        // One request, of a function near memory.
        turns.took(loud, 20_000_000);
        let mut took = 0;
        loop {
            turns.ready(loud, 1);
            turns.ready(quiet, 64);
            let (class, _) = turns.next(0).unwrap();
            if class == loud {
                break;
            }
            turns.took(class, 50_000);
            took += 50_000;
        }
        assert_eq!(took, 20_000_000);
    }

    #[test]
    fn a_tenant_that_connects_again_has_its_debt_still() {
        let (mut turns, loud, quiet) = two();
        let loud_tenant = turns.classes[loud].tenant.clone();
        turns.ready(loud, 1);
        assert_eq!(turns.next(0), Some((loud, 1)));
        turns.took(loud, 20_000_000);
        (0..64).for_each(|token| turns.leave(loud, token));
        // Nobody else is given its place meanwhile.
        assert_ne!(turns.join(Some(&tenant("third", u64::MAX))), loud);
        assert_eq!(turns.join(loud_tenant.as_ref()), loud);
        turns.ready(loud, 1);
        turns.ready(quiet, 64);
        assert_eq!(turns.next(0), Some((quiet, 64)));
    }

    #[test]
    fn it_is_crowded_while_several_ask_and_not_before() {
        let (mut turns, loud, quiet) = two();
        (0..100).for_each(|at| turns.asked(loud, at * 1000));
        assert!(!turns.crowded(100_000));
        assert!(turns.shared());
        turns.asked(quiet, 100_000);
        assert!(turns.crowded(101_000) && !turns.crowded(100_000 + LATELY_NS));
        // Hours later it is alone.
        turns.asked(loud, 1 << 40);
        assert!(!turns.crowded(1 << 40));
    }

    #[test]
    fn connections_that_end_leave_nothing() {
        let (mut turns, loud, quiet) = two();
        (0..64).for_each(|token| {
            turns.ready(loud, token);
        });
        turns.ready(quiet, 64);
        (0..64).for_each(|token| turns.leave(loud, token));
        assert_eq!((turns.next(0), turns.next(0)), (Some((quiet, 64)), None));
        assert!(turns.next_in(0).is_none() && !turns.shared());
        assert_eq!(turns.join(None), loud);
    }

    #[test]
    fn one_that_is_ahead_of_its_rate_is_passed_over_until_it_is_not() {
        let (mut turns, loud, _) = two();
        let slow = turns.join(Some(&tenant("slow", 1 << 20)));
        turns.ready(slow, 70);
        assert_eq!(turns.next(0), Some((slow, 70)));
        turns.moved(slow, 1 << 20, 0);
        assert!(turns.is_ahead(slow, 0));
        turns.ready(slow, 70);
        turns.ready(loud, 1);
        assert_eq!((turns.next(0), turns.next(0)), (Some((loud, 1)), None));
        let soon = turns.next_in(0).unwrap();
        assert!((900_000_000..1_000_000_000).contains(&soon), "{soon}");
        assert_eq!((turns.next(soon), turns.next_in(soon)), (Some((slow, 70)), None));
    }
}
