//! Rules that the protocol keeps, and mistakes that its tests must notice.

/// A mistake, named by the rule that it breaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bug {
    /// An insert is made visible without a second look for the same key.
    CommitUnchecked,
    /// A second look passes over inserts that are not decided yet.
    SparePending,
    /// A split hands on inserts that are not decided as if they were.
    CopyPending,
    /// A frozen slot is believed although its table may have been split since.
    TrustFrozen,
    /// A table is copied before all of its slots are frozen.
    CopyWarm,
    /// An object's place is used again at once.
    ReuseAtOnce,
    /// An object is not compared with the key in full.
    SkipKey,
    /// A slot is replaced unseen however long ago it was verified.
    BlindForever,
    /// A silent front end is declared dead although its verbs may still take effect.
    DeclareUnfenced,
    /// A front end that joins changes the store before the others know of it.
    JoinAtOnce,
    /// Entries cached before others served the store are believed after those have left.
    TrustOldEra,
    /// An object that was read while its key was being changed is kept.
    KeepUnderWrite,
    /// A sweep takes an object out of the index and leaves it in the near cache.
    SweepUntold,
    /// A WRITE goes to one node of two.
    CopyNothing,
    /// A CAS is decided at the node that shows it.
    FirstDecides,
    /// A CAS that fails leaves what it met half-way.
    LeaveBehind,
    /// A CAS is answered before it shows.
    AnswerEarly,
    /// A helper reads the deciding node first.
    HelpBackwards,
    /// Whether an object is live is judged by what shows, not by what is decided.
    JudgeByFirst,
    /// A dead front end's objects are read where they may not be yet.
    AdoptShown,
    /// A dead front end's tables are freed although a forward word leads to them that does not show.
    FreeUnshown,
    /// A helper shows a slot whose object only the deciding node may have.
    ShowBare,
    /// A front end that is left with the first node takes memory over while a helper may yet show
    /// what the second had decided.
    AdoptAtOnce,
    /// A front end in which both nodes are in use does not heed the mark of one that goes on alone.
    IgnoreMark,
    /// A front end goes on alone before the others know.
    LeaveUnasked,
    /// A front end goes on with the second node although another may go on with the first.
    LeaveFirstUnheard,
    /// A helper sets a word back at a first node that goes on alone.
    SettleUnmarked,
    /// A node that is being filled is not written to.
    FillUnmirrored,
    /// A node counts as filled although operations are under way.
    FillUnpaused,
    /// Objects are copied before the batches have ended that wrote to the survivor alone.
    FillUndrained,
    /// Places to which no slot refers are not copied.
    FillWithoutSegments,
    /// Places are copied that may be used again during the copy.
    FillSoonFree,
    /// A node counts as filled although a dead front end's objects are missing there.
    FillWithoutTheDead,
    /// A transaction takes effect although some of its slots are not locked.
    DecideUnlocked,
    /// A key that a transaction has found absent is not locked.
    LeaveAbsent,
    /// A lock is ended as if its transaction had taken effect, before it is decided.
    TrustUndecided,
    /// A split freezes locked slots.
    FreezeLocks,
    /// A locked key's object counts as garbage.
    JudgeUnderLocks,
    /// A slot that is emptied becomes what it was when it was empty before.
    EmptyAlike,
    /// A key that a transaction locks and does not change counts as untouched.
    LockUntold,
    /// Keys are changed by one batch although a split has moved some of them since they were found.
    BatchMoved,
    /// A key that is seized, and not changed, is left to the lock that holds it.
    TrustHolds,
    /// A front end that comes leaves what another was changing by one batch when it died.
    LeaveBatch,
    /// Segments that a new head does not list stay.
    KeepDropped,
    /// With a head all of its segments are retired, also those that the new head lists.
    RetireShared,
    /// Whether a segment is live is not asked of the heads that there are.
    AdoptSegments,
    /// A segment counts as garbage because no slot refers to it.
    JudgeSegmentsBySlots,
    /// A transaction's memory is used again although its locks may be in slots.
    DropLocks,
}

/// The rules in force.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Rules(Option<Bug>);

impl Rules {
    /// All of them.
    pub const SOUND: Rules = Rules(None);

    /// All but one.
    pub const fn without(bug: Bug) -> Rules {
        Rules(Some(bug))
    }

    /// Whether this one is broken.
    pub fn broken(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }
}
