//! Groups: a column summed by the values of another, part by part.

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
        for some in parts.chunks(TOGETHER) {
            let node = some[0].keys.0.node();
            let there = some.iter().all(|part| part.nodes().all(|other| other == node)) && self.is_computed(node);
            let scratch = if there { self.scratch(node)? } else { None };
            let replies = match scratch {
                Some(scratch) => {
                    let replies = self.group_there(some, group, scratch);
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

    /// Has a node group some parts: their names go there, then the calls, and the groups come back:
    /// three round trips. `None` for each that the node did not do.
    fn group_there(
        &mut self,
        parts: &[Columned],
        group: &Group,
        scratch: Addr,
    ) -> Result<Vec<Option<Option<Vec<Grouped>>>>> {
        let node = scratch.node();
        let work = |n: usize| scratch + n as u64 * group.work();
        let (mut calls, mut names) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for (n, part) in parts.iter().enumerate() {
            let source = self.range(part.keys.0, part.keys.1)?;
            let call = Call { source, list: self.range(work(n), group.work())?, function: Function::Group(*group) };
            let values = self.range(part.values.0, part.values.1)?;
            let tests = part.tests.map(|(at, len)| self.range(at, len)).transpose()?;
            names.push(Named::new(values, tests));
            calls.push((node, call));
        }
        let mut batch = self.lane.batch();
        for (n, named) in names.iter().enumerate() {
            batch.write(work(n), named.bytes());
        }
        batch.run().into_iter().try_for_each(|done| done.map(drop))?;
        let replies = self.compute(&calls)?;
        let mut bytes: Vec<Vec<u8>> = replies.iter().map(|reply| vec![0; groups_of(reply) * Self::GROUP]).collect();
        let mut batch = self.lane.batch();
        for (n, bytes) in bytes.iter_mut().enumerate().filter(|(_, bytes)| !bytes.is_empty()) {
            batch.read(work(n) + Group::GROUPS_AT, bytes);
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
