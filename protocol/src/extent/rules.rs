//! Seeded bugs, for testing the checkers that look for them.
//!
//! A proof by enumeration is worth as much as its checker. So each rule that an
//! operation keeps can be broken, by name, where the real code keeps it; the
//! laboratory then demands that the violation is found. Only with the feature
//! `seeded-bugs`, which nothing that is shipped enables; without it
//! `Rules::broken` is constantly false, and every trace of the bugs compiles away.

/// A rule to break.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bug {
    /// Transitions leave the generation as it was.
    SkipGeneration,
    /// Publishing opens the block first and writes its chunks' words afterwards.
    PublishParentFirst,
    /// Publishing makes the chunks that are not in use FREE instead of QUARANTINE.
    PublishWithoutQuarantine,
    /// The node frees without waiting for verbs that were admitted before.
    NoDrain,
    /// The node frees without zeroing.
    NoScrub,
    /// Releasing makes a unit FREE at once.
    ReleaseToFree,
    /// Merging looks whether the children are FREE instead of freezing them.
    MergeWithoutFreeze,
    /// Merging freezes children without having frozen the parent.
    MergeWithoutParent,
    /// Merging that finds a child in use reopens the parent without thawing those it froze.
    MergeWithoutThaw,
    /// After a lost answer the word is read, and believed.
    ReadBack,
    /// After a lost answer the CAS is taken for failed.
    AssumeFailed,
    /// A claim's word does not tell the owner's queue pairs apart.
    NoClaimant,
    /// A run that meets a unit in use forgets what it has claimed so far.
    RunWithoutRollback,
    /// A run of chunks that fails keeps its first chunk, and forgets it.
    RunKeepsLeader,
    /// A claimer that has the first chunk of a run takes the others for its own.
    RunTrustsLeader,
    /// A CAS whose answer was lost, and that is refused for the quota when it is given again, is
    /// forgotten.
    ForgetOverQuota,
    /// Recovery passes over a unit that its owner was splitting.
    RecoverSkipsSplitting,
    /// Recovery frees without quarantine.
    RecoverToFree,
    /// Splitting opens the parent before all children are FREE.
    SplitParentFirst,
    /// The node leaves the words within a unit as they are when it frees the unit.
    KeepChildren,
    /// The node frees a child whose parent is not open.
    FreeUnderClosed,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 21] = [
        Bug::SkipGeneration,
        Bug::PublishParentFirst,
        Bug::PublishWithoutQuarantine,
        Bug::NoDrain,
        Bug::NoScrub,
        Bug::ReleaseToFree,
        Bug::MergeWithoutFreeze,
        Bug::MergeWithoutParent,
        Bug::MergeWithoutThaw,
        Bug::ReadBack,
        Bug::AssumeFailed,
        Bug::NoClaimant,
        Bug::RunWithoutRollback,
        Bug::RunKeepsLeader,
        Bug::RunTrustsLeader,
        Bug::ForgetOverQuota,
        Bug::RecoverSkipsSplitting,
        Bug::RecoverToFree,
        Bug::SplitParentFirst,
        Bug::KeepChildren,
        Bug::FreeUnderClosed,
    ];
}

/// The rules that an actor keeps: all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules {
    #[cfg(feature = "seeded-bugs")]
    broken: Option<Bug>,
}

impl Rules {
    /// Every rule is kept.
    pub const SOUND: Rules = Rules {
        #[cfg(feature = "seeded-bugs")]
        broken: None,
    };

    /// All but one.
    #[cfg(feature = "seeded-bugs")]
    pub const fn without(bug: Bug) -> Rules {
        Rules { broken: Some(bug) }
    }

    #[cfg(feature = "seeded-bugs")]
    #[inline]
    pub(crate) fn broken(self, bug: Bug) -> bool {
        self.broken == Some(bug)
    }

    #[cfg(not(feature = "seeded-bugs"))]
    #[inline(always)]
    pub(crate) const fn broken(self, _bug: Bug) -> bool {
        false
    }
}
