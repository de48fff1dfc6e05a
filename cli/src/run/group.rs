//! Processes that the kernel killed because memory ran out, and the limit that was reached.
//!
//! A program that its memory group (cgroup) ends dies by SIGKILL, as if somebody had killed it. The
//! kernel counts what it ends: the counts before and after a run tell the two apart.

use farmem_sys::group::{Groups, Killed, Tally};

use super::watch::Ending;
use crate::units;

/// The counts before the program starts. The supervisor is in the same group as the program.
pub struct Watch(Option<(Groups, Tally)>);

impl Watch {
    /// Reads the counts.
    pub fn begin() -> Watch {
        Watch(Groups::own().map(|groups| {
            let tally = groups.tally();
            (groups, tally)
        }))
    }

    /// One line if the kernel has ended something since. `has_own_node`: the run's node is in the
    /// group.
    pub fn told(&self, ending: Ending, has_own_node: bool) -> Option<String> {
        let (groups, before) = self.0.as_ref()?;
        Some(line(groups.killed_since(before)?, ending, has_own_node))
    }
}

fn line(killed: Killed, ending: Ending, has_own_node: bool) -> String {
    let is_program = ending == Ending::Killed(libc::SIGKILL);
    let whom = match killed.processes {
        _ if is_program => "it".to_owned(),
        1 => "a process of this memory group".to_owned(),
        n => format!("{n} processes of this memory group"),
    };
    let Some(limit) = killed.limit.map(units::bytes) else {
        return format!("the kernel ended {whom} for want of memory");
    };
    match (is_program, has_own_node) {
        (false, _) => format!("the kernel ended {whom} for its limit of {limit}"),
        (true, true) => {
            format!("the kernel ended it for its memory group's limit of {limit}: give a --node outside of the group")
        }
        (true, false) => format!("the kernel ended it for its memory group's limit of {limit}: give it less --local"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_ended_is_told_with_the_limit() {
        let limit = Some(170 << 20);
        let one = |limit| Killed { processes: 1, limit };
        for (killed, ending, has_own_node, expected) in [
            (
                one(limit),
                Ending::Killed(libc::SIGKILL),
                false,
                "the kernel ended it for its memory group's limit of 170 MiB: give it less --local",
            ),
            (
                one(limit),
                Ending::Killed(libc::SIGKILL),
                true,
                "the kernel ended it for its memory group's limit of 170 MiB: give a --node outside of the group",
            ),
            (
                Killed { processes: 3, limit },
                Ending::Exited(1),
                false,
                "the kernel ended 3 processes of this memory group for its limit of 170 MiB",
            ),
            (one(None), Ending::Killed(libc::SIGKILL), false, "the kernel ended it for want of memory"),
        ] {
            assert_eq!(line(killed, ending, has_own_node), expected);
        }
    }
}
