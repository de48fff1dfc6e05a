//! The nodes of a run as the rack's controller gives them: asked for at the start, and each second
//! again, because nodes come and go.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farmem_control::api::{Figures, GivenNode, Want};
use farmem_control::client::{AskError, Client};
use farmem_fabric::{NodeAddr, RunNode};
use farmem_sys::process::{self, Signals};
use farmem_trust::Key;

use crate::counters::{Counts, Sample};
use crate::failure::Failure;
use crate::run::{RunName, run_node};
use crate::top::{as_run, short_program};

/// How often a run asks.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a run that begins waits for a controller that is away.
const WAITS: Duration = Duration::from_secs(30);

/// A run's place at a controller.
#[derive(Clone)]
pub struct Asker {
    client: Client,
    want: Want,
}

impl Asker {
    /// For a run that wants its memory in `domains` failure domains. The token is proven to the
    /// controller.
    pub fn new(controller: &str, run: RunName, domains: u32, token: Option<Key>) -> Asker {
        let (run, host) = (format!("{:016x}", run.id()), process::host_name());
        Asker {
            client: Client::new(controller).by(token),
            want: Want { run, host, domains, held: Vec::new(), seen: None, figures: None },
        }
    }

    /// The run's first nodes. For a controller that is away it waits, and says so. `signals` may end
    /// that.
    ///
    /// # Errors
    /// No controller, or it has none to give.
    pub fn first(&mut self, signals: &Signals) -> Result<Vec<RunNode>, Failure> {
        let (until, mut told) = (Instant::now() + WAITS, false);
        let asked = loop {
            match self.ask() {
                Err(e @ (AskError::Away { .. } | AskError::NotNow { .. })) if Instant::now() < until => {
                    if !std::mem::replace(&mut told, true) {
                        eprintln!(
                            "farmem: {e}; the run begins when a controller answers, or ends after {} s",
                            WAITS.as_secs()
                        );
                    }
                    if signals.next(ASK_EVERY).is_some_and(|arrived| signals.asks_to_end(arrived)) {
                        break Err(e);
                    }
                }
                asked => break asked,
            }
        };
        asked.map_err(|e| Failure::no_node(format!("--controller: {e}")))?.ok_or_else(|| {
            Failure::no_node(format!("--controller {}: it gave no address that can be used", self.client.address()))
        })
    }

    /// Asks, and gives the nodes as they are now. None: an answer that makes no sense.
    fn ask(&mut self) -> Result<Option<Vec<RunNode>>, AskError> {
        let given = self.client.want(&self.want)?.nodes;
        let node =
            |given: &GivenNode| run_node(&format!("{}@{}", given.at, given.domain)).or_else(|_| run_node(&given.at));
        let nodes: Result<Vec<_>, _> = given.iter().map(node).collect();
        let by_tcp = |node: &RunNode| matches!(node.at, NodeAddr::Tcp(_));
        let nodes = nodes.ok().filter(|nodes| !nodes.is_empty() && nodes.iter().all(by_tcp));
        if nodes.is_some() {
            self.want.held = given.into_iter().map(|node| node.at).collect();
        }
        Ok(nodes)
    }

    /// Asks on, in a thread of its own.
    pub fn follow(self, counters: &Path) -> Followed {
        let latest = Arc::new(Mutex::new(None));
        let (list, counters) = (Arc::clone(&latest), counters.to_owned());
        // Without the thread the run goes on with what it has.
        let _ = std::thread::Builder::new().name("rack".into()).spawn(move || self.keep_asking(&list, &counters));
        Followed { latest }
    }

    fn keep_asking(mut self, latest: &Mutex<Option<Vec<RunNode>>>, counters: &Path) {
        let (mut trouble, mut counted) = (None::<String>, None);
        loop {
            std::thread::sleep(ASK_EVERY);
            self.want.figures = figures(counters, &mut counted);
            let before = self.want.held.clone();
            match self.ask() {
                Ok(Some(nodes)) => {
                    if trouble.take().is_some() {
                        eprintln!("farmem: the controller at {} answers again", self.client.address());
                    }
                    if self.want.held != before {
                        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(nodes);
                    }
                }
                Ok(None) => {}
                Err(e) => {
                    let why = e.to_string();
                    if trouble.as_ref() != Some(&why) {
                        eprintln!("farmem: {why}; the run goes on with the nodes that it has");
                    }
                    trouble = Some(why);
                }
            }
        }
    }
}

/// The counts of a run, and their time.
type Counted = Option<(Instant, Counts, [u64; 160])>;

/// How the run is doing, by its counters and by what they said before.
fn figures(counters: &Path, before: &mut Counted) -> Option<Figures> {
    let sample = Sample::read(counters).ok()?;
    let (now, counts, latency) = (Instant::now(), sample.total(), sample.latency());
    let run = as_run("", &sample, before.as_ref().map(|(at, counts, latency)| (now - *at, counts, latency)));
    *before = Some((now, counts, latency));
    let program: String = short_program(&run.program, 40).chars().map(|c| if c == ',' { ' ' } else { c }).collect();
    Some(Figures {
        program: if program.is_empty() { "-".to_owned() } else { program },
        far: run.far,
        read_rate: run.in_per_s as u64,
        write_rate: run.out_per_s as u64,
        p50_ns: run.fetch_latency_ns.p50,
        p99_ns: run.fetch_latency_ns.p99,
        p999_ns: run.fetch_latency_ns.p999,
        single: run.single,
        together: run.together,
        nodes_lost: run.nodes_lost,
    })
}

/// The controller's latest answer while the run goes on.
pub struct Followed {
    latest: Arc<Mutex<Option<Vec<RunNode>>>>,
}

impl Followed {
    /// The nodes, if they have changed since the last look.
    pub fn changed(&self) -> Option<Vec<RunNode>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
