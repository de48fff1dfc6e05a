//! Groups: a column summed by the values of another, part by part.

use super::flights::{Flights, Landed};
use super::{Call, Function, Near, Reply, TOGETHER};
use crate::{Addr, Error, Result};
use farmem_protocol::near::group::{Group, Grouped, Named};

/// Columns of some rows, each by its address and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Columned {
    /// The keys.
    pub keys: (Addr, u64),
    /// The values.
    pub values: (Addr, u64),
    /// The column that is tested, if one is.
    pub tests: Option<(Addr, u64)>,
}

impl Near<'_> {
    /// Runs a [`Group`] over parts of a table, each by itself: its groups in the order of their
    /// first rows. `None` for a part that has more groups than there is room for. The columns of a
    /// part lie within one piece each, on one node, and have 256 KiB together at most.
    ///
    /// # Errors
    /// As [`crate::Lane::read`]; [`Error::Size`] where the columns of a part have different numbers
    /// of rows, or too many, or the group's own parameters are out of bounds.
    pub fn group(&mut self, parts: &[Columned], group: &Group) -> Result<Vec<Option<Vec<Grouped>>>> {
        parts.iter().try_for_each(|part| part.check(group))?;
        let mut all = Vec::with_capacity(parts.len());
        // Groups that a part is expected to have: as many as those before.
        let mut expected = 0;
        for some in parts.chunks(TOGETHER) {
            let node = some[0].keys.0.node();
            let there = some.iter().all(|part| part.nodes().all(|other| other == node)) && self.is_computed(node);
            // A piece of a region would stay in it when this process ends.
            let may_keep = self.lane.memory().inner.region.is_none();
            let scratch = if there && may_keep { self.scratch(node)? } else { None };
            let replies = match scratch {
                Some(scratch) => {
                    let replies = self.group_there(some, group, scratch, &mut expected);
                    self.lane.memory().inner.keep_scratch(node, scratch);
                    replies?
                }
                None => vec![None; some.len()],
            };
            for (part, reply) in some.iter().zip(replies) {
                all.push(match reply {
                    Some(groups) => groups,
                    None => self.group_here(part, group)?,
                });
            }
        }
        Ok(all)
    }

    /// Has a node group some parts. Their names go there with the calls, and as many groups as are
    /// expected come back, in one round trip. If there are more, the rest comes in another one.
    /// `None` for each part that the node did not do.
    fn group_there(
        &mut self,
        parts: &[Columned],
        group: &Group,
        scratch: Addr,
        expected: &mut usize,
    ) -> Result<Vec<Option<Option<Vec<Grouped>>>>> {
        let node = scratch.node();
        let work = |n: usize| scratch + n as u64 * group.work();
        let mut flights = Flights::new(self.lane);
        for (n, part) in parts.iter().enumerate() {
            let mut near = flights.near();
            let source = near.range(part.keys.0, part.keys.1)?;
            let call = Call { source, list: near.range(work(n), group.work())?, function: Function::Group(*group) };
            let values = near.range(part.values.0, part.values.1)?;
            let tests = part.tests.map(|(at, len)| near.range(at, len)).transpose()?;
            let named = Named::new(values, tests).bytes().to_vec();
            let run = (*expected > 0).then(|| (work(n) + Group::GROUPS_AT, vec![0; *expected * Self::GROUP]));
            flights.post((node, call), Some((work(n), named)), run, ());
        }
        flights.ring();
        let (mut replies, mut bytes) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        while let Some(Landed { reply, run, .. }) = flights.land() {
            replies.push(reply?);
            bytes.push(run);
        }
        drop(flights);
        let mut batch = self.lane.batch();
        for (n, (reply, bytes)) in replies.iter().zip(&mut bytes).enumerate() {
            let came = bytes.len();
            *expected = groups_of(reply).max(*expected);
            bytes.resize(groups_of(reply) * Self::GROUP, 0);
            if bytes.len() > came {
                batch.read(work(n) + Group::GROUPS_AT + came as u64, &mut bytes[came..]);
            }
        }
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        let grouped = |((part, reply), bytes): ((&Columned, Option<Reply>), Vec<u8>)| match reply? {
            Reply::Grouped(Some(_)) => {
                let groups = group.groups(&bytes);
                let rows = groups.iter().fold(0u64, |sum, group| sum.saturating_add(group.found.count));
                // More rows than there are: the node lies, and is taken to refuse.
                (rows <= part.keys.1 / u64::from(group.key.bytes())).then_some(Some(groups))
            }
            Reply::Grouped(None) => Some(None),
            _ => None,
        };
        Ok(parts.iter().zip(replies).zip(bytes).map(grouped).collect())
    }

    /// Bytes of a group.
    const GROUP: usize = Group::GROUPS_AT as usize;

    fn group_here(&mut self, part: &Columned, group: &Group) -> Result<Option<Vec<Grouped>>> {
        let bytes = |(_, len): (Addr, u64)| vec![0; len as usize];
        let (mut keys, mut values) = (bytes(part.keys), bytes(part.values));
        let mut tests = part.tests.map_or(vec![], bytes);
        let mut batch = self.lane.batch();
        batch.read(part.keys.0, &mut keys).read(part.values.0, &mut values);
        if let Some((at, _)) = part.tests {
            batch.read(at, &mut tests);
        }
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        let mut table = group.table();
        Ok(group.add(&keys, &values, &tests, &mut table).then(|| table.groups()))
    }
}

/// Groups that a reply tells of.
fn groups_of(reply: &Option<Reply>) -> usize {
    match reply {
        Some(Reply::Grouped(Some(groups))) => *groups as usize,
        _ => 0,
    }
}

impl Columned {
    fn nodes(&self) -> impl Iterator<Item = usize> {
        let tests = self.tests.map(|(at, _)| at.node());
        [self.keys.0.node(), self.values.0.node()].into_iter().chain(tests)
    }

    /// Whether the columns have as many rows each, and the group is within its bounds.
    fn check(&self, group: &Group) -> Result<()> {
        let rows = self.keys.1 / u64::from(group.key.bytes());
        let fits = |(_, len): (Addr, u64), each: u16| rows.checked_mul(each.into()) == Some(len);
        let tests = match (self.tests, group.test) {
            (None, None) => true,
            (Some(tests), Some(kind)) => fits(tests, kind.bytes()),
            _ => false,
        };
        let alike = group.is_sound(self.keys.1)
            && fits(self.keys, group.key.bytes())
            && fits(self.values, group.value.bytes())
            && tests;
        if alike { Ok(()) } else { Err(Error::Size(self.keys.1)) }
    }
}
