//! Why a controller refuses a request.

/// Why a request is refused, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has a value that is not allowed.
    #[error("{0}")]
    Malformed(String),
    /// Two processes that are up use the same node name.
    #[error("another node of this rack calls itself {0} and is up: give this one a --name of its own")]
    NameTaken(String),
    /// Shares of quotas are with an earlier process of this name, at this other address.
    #[error(
        "the node {0} was at {1}, where it may still lend of tenants' quotas: start it there, give this one a --name \
         of its own, or say farmem forget {0} if the earlier one has ended"
    )]
    NameKept(String, String),
    /// No such node.
    #[error("no node of this rack is called {0}")]
    Unknown(String),
    /// The node is up, so it cannot be forgotten.
    #[error("{0} is up: drain it and stop it first")]
    IsUp(String),
    /// The name is another tenant's run's.
    #[error("a run of another tenant is called {0}: begin the program again")]
    OthersRun(String),
    /// Too many runs are known, or too many of one tenant.
    #[error("this rack knows {0} runs, of which the tenant has its part: wait until some have ended")]
    ManyRuns(usize),
    /// There is no node to give to the run.
    #[error("{0}")]
    NoNode(String),
    /// The request names a later leader.
    #[error("another controller leads the rack by now")]
    Deposed,
}
