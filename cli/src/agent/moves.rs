//! An agent follows its controller: when its node is given to nobody any more, it moves to the one
//! that it is given in its place.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farmem_agent::host::{self, Agent, Mover, StartError};
use farmem_agent::serve::MoveError;
use farmem_control::api::Figures;
use farmem_fabric::{NodeAddr, RunNode, Trust};

use crate::failure::Failure;
use crate::rack::nodes::{Asker, Followed};
use crate::run::RunName;

/// How often it looks whether it has another node.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Where an agent is to be.
pub struct Wants {
    /// The node that it was told to use. A former agent may have left its memory at another.
    pub node: NodeAddr,
    /// Its place at a controller, if it has one.
    pub asker: Option<Asker>,
    /// The node that its report names.
    pub named: Arc<Mutex<String>>,
}

/// A new agent's requests to a controller. They name the node of the former agent, so that its memory
/// stays there if the controller still gives that node.
pub fn asker(controller: &str, trust: &Trust, dir: &Path) -> Result<Asker, Failure> {
    let name = RunName::new().map_err(|e| Failure::usage(format!("cannot draw a random name: {e}")))?;
    let mut asker = Asker::new(controller, name, 1, trust.token).of_agent();
    if let Some(node) = host::used(dir) {
        asker.holds(&node);
    }
    Ok(asker)
}

/// Moves the agent, in a thread, to where it is to be, now and later.
pub fn begin(agent: &Agent, wants: Wants) -> Result<(), Failure> {
    let is_there = *agent.node() == wants.node;
    if is_there && wants.asker.is_none() {
        return Ok(());
    }
    // By what it holds, the controller can tell whether its node is to be relieved of it.
    let holder = agent.mover();
    let figures = move || Some(Figures { program: "farmem agent".into(), far: holder.taken(), ..Figures::default() });
    let followed = wants.asker.map(|asker| asker.follow_by(figures));
    let (mover, at, node, named) = (agent.mover(), agent.node().clone(), wants.node, wants.named);
    let follow = move || follow(&mover, at, node, followed.as_ref(), &named);
    let spawned = std::thread::Builder::new().name("moves".into()).spawn(follow);
    spawned.map(drop).map_err(|e| Failure::usage(format!("cannot start a thread: {e}")))
}

fn follow(mover: &Mover, mut at: NodeAddr, mut to: NodeAddr, followed: Option<&Followed>, named: &Mutex<String>) {
    let mut trouble = None::<String>;
    // A move has begun and waits for room. It goes on whatever the controller says meanwhile.
    let mut waits = false;
    loop {
        if let Some(nodes) = followed.and_then(Followed::changed)
            && !nodes.iter().any(|node: &RunNode| node.at == to)
            && let Some(other) = nodes.into_iter().next()
        {
            to = other.at;
        }
        if at != to || waits {
            match mover.to(&to) {
                Ok(has_moved) => {
                    if has_moved || waits {
                        eprintln!("farmem: agent: all memory has moved from {at} to {to}");
                    }
                    *named.lock().unwrap_or_else(PoisonError::into_inner) = to.to_string();
                    (at, trouble, waits) = (to.clone(), None, false);
                }
                Err(e) => {
                    waits |= matches!(e, StartError::Move(MoveError::Room));
                    let why = e.to_string();
                    if trouble.as_ref() != Some(&why) {
                        match e {
                            StartError::Move(MoveError::Room) => eprintln!("farmem: agent: {why}"),
                            _ => eprintln!(
                                "farmem: agent: cannot move to {to}: {why}; it stays at {at}, and tries again"
                            ),
                        }
                    }
                    trouble = Some(why);
                }
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
