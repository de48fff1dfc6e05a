//! Settings that are one of several names: the same on the command line, in variables, and in the
//! text of a run.

use farmem_protocol::node::Transport;

/// One of several names.
pub trait Choice: Copy + PartialEq + 'static {
    /// All of them: the value, its name, and what a user reads about it.
    const ALL: &'static [(Self, &'static str, &'static str)];

    /// Its name.
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(value, ..)| *value == self).map_or("", |(_, name, _)| name)
    }

    /// The one of this name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| *known == name).map(|(value, ..)| *value)
    }
}

/// The thread that serves page faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Faults {
    /// SIGBUS in the faulting thread, served there.
    #[default]
    Inline,
    /// The faulting thread sleeps; a handler thread serves it.
    Thread,
}

impl Choice for Faults {
    const ALL: &'static [(Faults, &'static str, &'static str)] = &[
        (Faults::Inline, "inline", "The thread that faulted, in its signal handler"),
        (Faults::Thread, "thread", "A handler thread: slower, for kernels and programs where inline cannot work"),
    ];
}

/// Whether pages are fetched ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Prefetch {
    /// Along sequences, strides and trends. First touches come in batches.
    #[default]
    On,
    /// Only pages that the program waits for.
    Off,
}

impl Choice for Prefetch {
    const ALL: &'static [(Prefetch, &'static str, &'static str)] = &[
        (Prefetch::On, "on", "Along sequences, strides and trends"),
        (Prefetch::Off, "off", "Only pages that the program waits for"),
    ];
}

/// How changed bytes of pages are told from unchanged ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dirty {
    /// The fastest for the transport, by measurement.
    #[default]
    Auto,
    /// Without any chance of missing a write.
    Exact,
    /// By line.
    Lines,
    /// Not at all.
    None,
}

impl Choice for Dirty {
    const ALL: &'static [(Dirty, &'static str, &'static str)] = &[
        (Dirty::Auto, "auto", "What was measured to be fastest for the transport"),
        (
            Dirty::Exact,
            "exact",
            "Without any chance of missing a write: by the fault of a first write, or against the node's own copy",
        ),
        (Dirty::Lines, "lines", "By line: 64 keyed bits of each, compared when the page leaves (misses one in 2^62)"),
        (Dirty::None, "none", "Not at all: every page that leaves is written back"),
    ];
}

/// How pages leave for nodes that are not trusted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Seal {
    /// As they are: the nodes are trusted.
    #[default]
    Off,
    /// Sealed, each time anew.
    Whole,
    /// Sealed so that changed lines can go alone.
    Lines,
}

impl Choice for Seal {
    const ALL: &'static [(Seal, &'static str, &'static str)] = &[
        (Seal::Off, "off", "As they are: the nodes are trusted"),
        (Seal::Whole, "whole", "Encrypted, each time anew: a node sees nothing of a page's content"),
        (
            Seal::Lines,
            "lines",
            "Encrypted by blocks of 16 bytes: changed lines go alone, and a node sees which changed",
        ),
    ];
}

/// How far memory is protected against the loss of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protect {
    /// One copy of each page.
    #[default]
    None,
    /// Two copies, at different nodes.
    Mirror,
    /// A copy in a file on this host.
    Disk,
    /// Parity over groups of slabs at different nodes.
    Ec {
        /// Slabs of a group with pages.
        data: u8,
        /// Slabs of a group that may be lost.
        parity: u8,
    },
}

impl Protect {
    /// Nodes that it needs.
    pub fn nodes(self) -> usize {
        match self {
            Protect::None | Protect::Disk => 1,
            Protect::Mirror => 2,
            Protect::Ec { data, parity } => data as usize + parity as usize,
        }
    }
}

impl Choice for Protect {
    const ALL: &'static [(Protect, &'static str, &'static str)] = &[
        (Protect::None, "none", "One copy of each page"),
        (Protect::Mirror, "mirror", "Two copies, at different nodes"),
        (Protect::Disk, "disk", "A copy in a file on this host: disk=DIR says where"),
        (Protect::Ec { data: 2, parity: 1 }, "ec:2+1", "Parity: 1.5 times the memory, on 3 nodes; one may be lost"),
        (Protect::Ec { data: 4, parity: 1 }, "ec:4+1", "1.25 times the memory, on 5 nodes; one may be lost"),
        (Protect::Ec { data: 8, parity: 1 }, "ec:8+1", "1.13 times the memory, on 9 nodes; one may be lost"),
        (Protect::Ec { data: 2, parity: 2 }, "ec:2+2", "Twice the memory, on 4 nodes; two may be lost"),
        (Protect::Ec { data: 4, parity: 2 }, "ec:4+2", "1.5 times the memory, on 6 nodes; two may be lost"),
        (Protect::Ec { data: 8, parity: 2 }, "ec:8+2", "1.25 times the memory, on 10 nodes; two may be lost"),
        (Protect::Ec { data: 8, parity: 3 }, "ec:8+3", "1.38 times the memory, on 11 nodes; three may be lost"),
    ];
}

impl Choice for Transport {
    const ALL: &'static [(Transport, &'static str, &'static str)] = &[
        (
            Transport::Auto,
            "auto",
            "Shared memory with a node on this machine, if it is of the same user or listens on a socket that may be \
             opened; else RDMA, if both ends have a card and it works; else tcp",
        ),
        (Transport::Shm, "shm", "Shared memory, or not at all"),
        (Transport::Tcp, "tcp", "The wire protocol, even to a node on this machine"),
        (Transport::Verbs, "verbs", "RDMA, or not at all"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds<C: Choice + std::fmt::Debug>() {
        for (value, name, help) in C::ALL {
            assert_eq!((C::named(name), value.name()), (Some(*value), *name));
            assert!(!help.is_empty() && !name.contains([';', '=', ',']));
        }
        assert_eq!(C::named("no such name"), None);
    }

    #[test]
    fn every_name_is_one_values() {
        holds::<Faults>();
        holds::<Prefetch>();
        holds::<Dirty>();
        holds::<Protect>();
        holds::<Transport>();
    }
}
