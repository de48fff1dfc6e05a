//! The nodes of a run as the rack's controller gives them: asked for at the start, and each second
//! again, because nodes come and go.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farmem_control::api::{Figures, GivenNode, Want};
use farmem_control::client::{AskError, Client};
use farmem_fabric::{ConnectError, NodeAddr, RunNode};
use farmem_sys::process::{self, Arrived, Signals};
use farmem_trust::Key;

use crate::counters::{Counts, Sample};
use crate::failure::Failure;
use crate::run::{RunName, run_node};
use crate::top::{as_run, short_program};

/// How often a run asks.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a run that begins waits for a controller that is away.
const WAITS: Duration = Duration::from_secs(30);

/// How long a run that begins asks for others in the place of nodes that have just gone: longer than
/// a controller takes to miss one.
const GONE: Duration = Duration::from_secs(10);

/// Why nodes were not reached.
pub struct Unreached {
    /// The failure of a run that has no controller to ask.
    pub failure: Failure,
    /// One of them is gone, or is about to go. Others may do.
    pub is_gone: bool,
    /// The address of that one, if it is known.
    pub node: Option<String>,
}

impl From<ConnectError> for Unreached {
    fn from(error: ConnectError) -> Unreached {
        use ConnectError::{Draining, Full, Refused, Silent, Unreachable};
        let node = match &error {
            Refused(node) | Unreachable { node, .. } | Silent(node) | Draining(node) | Full(node) => Some(node.clone()),
            _ => None,
        };
        Unreached { failure: Failure::no_node(error), is_gone: node.is_some(), node }
    }
}

/// Why there are no nodes.
pub enum NoNodes {
    /// A signal asked to end while the controller was asked again. No other signal was taken.
    Ended(Arrived),
    /// No node was given. The caller ends with this failure.
    Failed(Failure),
}

impl From<Failure> for NoNodes {
    fn from(failure: Failure) -> NoNodes {
        NoNodes::Failed(failure)
    }
}

/// The place at a controller of a run, or of an agent.
#[derive(Clone)]
pub struct Asker {
    client: Client,
    want: Want,
    /// Which of the two it is, for messages.
    who: &'static str,
}

impl Asker {
    /// For a run that wants its memory in `domains` failure domains. The token is proven to the
    /// controller.
    pub fn new(controller: &str, run: RunName, domains: u32, token: Option<Key>) -> Asker {
        let (run, host) = (run.to_string(), process::host_name());
        Asker {
            client: Client::new(controller).by(token),
            want: Want { run, host, domains, held: Vec::new(), gone: Vec::new(), seen: None, figures: None },
            who: "run",
        }
    }

    /// The same asker. Its messages speak of an agent.
    pub fn of_agent(self) -> Asker {
        Asker { who: "agent", ..self }
    }

    /// It has a node already, and may keep it.
    pub fn holds(&mut self, node: &NodeAddr) {
        self.want.held.push(node.to_string());
    }

    /// Of what it was given last it has these alone.
    pub fn holds_only(&mut self, nodes: &[RunNode]) {
        let is_one = |at: &String| run_node(at).is_ok_and(|held| nodes.iter().any(|node| node.at == held.at));
        self.want.held.retain(is_one);
        self.want.held.dedup();
    }

    /// The run's first nodes. For a controller that is away it waits, and says so. `signals` may end
    /// that.
    ///
    /// # Errors
    /// No controller, or it has none to give; or such a signal.
    fn first(&mut self, signals: &Signals) -> Result<Vec<RunNode>, NoNodes> {
        let (until, mut told) = (Instant::now() + WAITS, false);
        let asked = loop {
            match self.ask() {
                Err(e @ (AskError::Away { .. } | AskError::AllAway(_) | AskError::NotNow { .. }))
                    if Instant::now() < until =>
                {
                    if !std::mem::replace(&mut told, true) {
                        eprintln!("farmem: {}", self.begins_later(&e));
                    }
                    if let Some(arrived) = signals.end_within(ASK_EVERY) {
                        return Err(NoNodes::Ended(arrived));
                    }
                }
                asked => break asked,
            }
        };
        asked.map_err(|e| Failure::no_node(format!("--controller: {e}")))?.ok_or_else(|| {
            let at = self.client.address();
            Failure::no_node(format!("--controller {at}: it gave no address that can be used")).into()
        })
    }

    /// As [`Asker::first`], and what `reach` makes of the nodes. The controller gives a node that has
    /// just died until it misses it. So a run that does not reach a node asks for others at once, and
    /// where there are none again, for [`GONE`], and says so. `signals` may end that.
    ///
    /// # Errors
    /// As there, and those of `reach`.
    pub fn reached<T>(
        &mut self,
        signals: &Signals,
        mut reach: impl FnMut(&[RunNode]) -> Result<T, Unreached>,
    ) -> Result<(Vec<RunNode>, T), NoNodes> {
        let (until, mut told) = (Instant::now() + GONE, false);
        loop {
            let nodes = match self.first(signals) {
                // It has no others: one of these may be back.
                Err(NoNodes::Failed(_)) if !self.want.gone.is_empty() && Instant::now() < until => Vec::new(),
                nodes => nodes?,
            };
            let reached = if nodes.is_empty() { None } else { Some(reach(&nodes)) };
            self.want.held.retain(|_| matches!(reached, Some(Ok(_))));
            match reached {
                Some(Ok(reached)) => {
                    self.want.gone.clear();
                    return Ok((nodes, reached));
                }
                Some(Err(Unreached { failure, is_gone: true, node })) if Instant::now() < until => {
                    if !std::mem::replace(&mut told, true) {
                        eprintln!("farmem: {}; the controller is asked for other nodes", failure.line);
                    }
                    if let Some(node) = node.filter(|node| !self.want.gone.contains(node)) {
                        self.want.gone.push(node);
                        continue;
                    }
                }
                Some(Err(Unreached { failure, .. })) => return Err(failure.into()),
                None => {}
            }
            self.want.gone.clear();
            if let Some(arrived) = signals.end_within(ASK_EVERY / 4) {
                return Err(NoNodes::Ended(arrived));
            }
        }
    }

    /// The message while no controller gives the first nodes.
    fn begins_later(&self, why: &AskError) -> String {
        format!("{why}; the {} begins when a controller answers, or ends after {} s", self.who, WAITS.as_secs())
    }

    /// The message while no controller gives other nodes.
    fn goes_on(&self, why: &str) -> String {
        let has = if self.who == "agent" { "node" } else { "nodes" };
        format!("{why}; the {} goes on with the {has} that it has", self.who)
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

    /// Asks on, in a thread of its own. By a run's counters it says how the run is doing.
    pub fn follow(self, counters: &Path) -> Followed {
        let (counters, mut counted) = (counters.to_owned(), None);
        self.follow_by(move || figures(&counters, &mut counted))
    }

    /// The same with figures of the caller's.
    pub fn follow_by(self, figures: impl FnMut() -> Option<Figures> + Send + 'static) -> Followed {
        let latest = Arc::new(Mutex::new(None));
        let list = Arc::clone(&latest);
        // Without the thread the run goes on with what it has.
        let _ = std::thread::Builder::new().name("rack".into()).spawn(move || self.keep_asking(&list, figures));
        Followed { latest }
    }

    fn keep_asking(mut self, latest: &Mutex<Option<Vec<RunNode>>>, mut figures: impl FnMut() -> Option<Figures>) {
        let mut trouble = None::<String>;
        loop {
            std::thread::sleep(ASK_EVERY);
            self.want.figures = figures();
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
                        eprintln!("farmem: {}", self.goes_on(&why));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A controller that gives the first node twice, then the second.
    fn controller() -> (String, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let serves = move || {
            let answer = |given: &str| {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut asked, mut piece) = (String::new(), [0; 4096]);
                // The body is the last thing that comes, and ends with the only bracket at a line's end.
                while !asked.ends_with('}') {
                    let n = stream.read(&mut piece).unwrap();
                    assert!(n > 0, "{asked}");
                    asked.push_str(std::str::from_utf8(&piece[..n]).unwrap());
                }
                let node = format!(r#"{{"at":"{given}:1","domain":"d"}}"#);
                let body = format!(r#"{{"nodes":[{node}],"term":{{"rack":1,"epoch":1}}}}"#);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
                stream.write_all((head + &body).as_bytes()).unwrap();
                asked
            };
            ["first", "first", "second"].map(answer).to_vec()
        };
        (at, std::thread::spawn(serves))
    }

    #[test]
    fn a_run_that_is_given_a_node_that_has_just_gone_asks_again() {
        let signals = Signals::take().unwrap();
        let (at, serves) = controller();
        let mut asker = Asker::new(&at, RunName::new().unwrap(), 1, None);
        let mut tried = Vec::new();
        let reach = |nodes: &[RunNode]| {
            let at = nodes[0].at.to_string();
            tried.push(at.clone());
            if at == "second:1" { Ok(at) } else { Err(ConnectError::Refused(at).into()) }
        };
        let (nodes, reached) = asker.reached(&signals, reach).ok().unwrap();
        assert_eq!((reached.as_str(), nodes.len()), ("second:1", 1));
        assert_eq!(tried, ["first:1", "first:1", "second:1"]);
        // It does not say that it has what it did not reach: the controller would let it keep that.
        assert!(serves.join().unwrap().iter().all(|asked| asked.contains(r#""held":[]"#)));
    }

    #[test]
    fn who_has_a_node_says_so_until_it_is_gone() {
        let signals = Signals::take().unwrap();
        let (at, serves) = controller();
        let mut asker = Asker::new(&at, RunName::new().unwrap(), 1, None);
        asker.holds(&NodeAddr::Tcp("first:1".into()));
        let reach = |nodes: &[RunNode]| {
            let at = nodes[0].at.to_string();
            if at == "second:1" { Ok(()) } else { Err(ConnectError::Refused(at).into()) }
        };
        assert!(asker.reached(&signals, reach).is_ok());
        let said: Vec<bool> =
            serves.join().unwrap().iter().map(|asked| asked.contains(r#""held":["first:1"]"#)).collect();
        assert_eq!(said, [true, false, false]);
    }

    #[test]
    fn an_agent_is_called_one() {
        let run = Asker::new("rack:1", RunName::new().unwrap(), 1, None);
        let away = AskError::Away { at: "rack:1".into(), why: "no".into(), nobody: false };
        let line = "the controller at rack:1 cannot be reached: no; the run begins when a controller answers, or ends after 30 s";
        assert_eq!(run.begins_later(&away), line);
        assert_eq!(run.goes_on("no"), "no; the run goes on with the nodes that it has");
        let agent = run.of_agent();
        assert_eq!(agent.begins_later(&away), line.replace("the run", "the agent"));
        assert_eq!(agent.goes_on("no"), "no; the agent goes on with the node that it has");
    }

    #[test]
    fn a_node_that_refuses_a_run_is_not_asked_again() {
        let signals = Signals::take().unwrap();
        let (at, _serves) = controller();
        let mut asker = Asker::new(&at, RunName::new().unwrap(), 1, None);
        let mut tried = 0;
        let reach = |nodes: &[RunNode]| -> Result<(), Unreached> {
            tried += 1;
            Err(ConnectError::Token { node: nodes[0].at.to_string(), why: "no" }.into())
        };
        let Err(NoNodes::Failed(failure)) = asker.reached(&signals, reach) else { panic!("it was reached") };
        assert_eq!((failure.status, tried), (72, 1));
    }
}
