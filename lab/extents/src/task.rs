//! Operations under way, whichever they are, by clients and by the daemon.

use farmem_protocol::extent::{Answer, Failed, Grant, Operation, Reclaim, Recover, Release, Reshape, Reshaped, Step};

/// One that is made for its purpose and dropped when it has ended. (A claim is not: its claimer remembers what it read.)
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    Release(Release),
    Reshape(Box<Reshape>),
    Reclaim(Box<Reclaim>),
    Recover(Box<Recover>),
}

/// How any operation ends: with what is held from now on.
pub(crate) type Outcome = Result<Vec<Grant>, Failed>;

impl Task {
    pub fn reshape(reshape: Reshape) -> Task {
        Task::Reshape(Box::new(reshape))
    }
}

impl Operation for Task {
    type Outcome = Outcome;

    fn step(&mut self) -> Step<Outcome> {
        match self {
            Task::Release(release) => release.step().map(|ended| ended.map(|()| Vec::new())),
            Task::Reshape(reshape) => reshape.step().map(|ended| match ended? {
                Reshaped::Done(grants) => Ok(grants),
                Reshaped::NotNow(_) => Ok(Vec::new()),
            }),
            Task::Reclaim(reclaim) => reclaim.step().map(|ended| ended.map(|_| Vec::new())),
            Task::Recover(recover) => recover.step().map(|ended| ended.map(|_| Vec::new())),
        }
    }

    fn complete(&mut self, answer: Answer<'_>) {
        match self {
            Task::Release(release) => release.complete(answer),
            Task::Reshape(reshape) => reshape.complete(answer),
            Task::Reclaim(reclaim) => reclaim.complete(answer),
            Task::Recover(recover) => recover.complete(answer),
        }
    }
}
