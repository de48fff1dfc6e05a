//! The nodes of a run that may change while it goes on: from a file (`--node-file`), or as the
//! controller of a rack says (`--controller`).
//!
//! The file:
//!
//! One address a line, with its failure domain if that is known (`a:7411@rack7`). Empty lines, and
//! lines that begin with `#`, are ignored. When the file has changed, the supervisor reaches new
//! nodes first, so that an error is reported once and not by every process. Then it writes the list
//! into the run's file of counters, where the run's processes read it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use farmem_fabric::{NodeAddr, RunNode};

use super::far::{self, Far};
use crate::counters;
use crate::rack::nodes::Followed;

/// Reads the file.
///
/// # Errors
/// A line that says what is wrong.
pub fn read(file: &Path) -> Result<Vec<RunNode>, String> {
    let text = farmem_trust::file::text(file).map_err(|e| format!("--node-file {}: {e}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let nodes = lines.map(far::run_node).collect::<Result<Vec<_>, _>>();
    let nodes = nodes.map_err(|e| format!("--node-file {}: {e}", file.display()))?;
    if nodes.is_empty() {
        return Err(format!("--node-file {}: it names no node", file.display()));
    }
    far::each_once(&nodes).map_err(|e| format!("--node-file {}: {e}", file.display()))?;
    Ok(nodes)
}

/// The source of the run's list of nodes.
pub enum Source {
    /// A file, its age when it was read last, and when it could not be read last. `None`: it is a pipe,
    /// which is read once; or it could always be read.
    File(PathBuf, Option<SystemTime>, Option<SystemTime>),
    /// A controller.
    Rack(Followed),
}

fn age(file: &Path) -> Option<SystemTime> {
    fs::metadata(file).ok().filter(fs::Metadata::is_file).and_then(|about| about.modified().ok())
}

impl Source {
    /// A file that was just read.
    pub fn file(file: &Path) -> Source {
        Source::File(file.to_owned(), age(file), None)
    }

    /// The nodes, if they have changed since the last look.
    fn changed(&mut self) -> Option<Result<Vec<RunNode>, String>> {
        match self {
            Source::File(file, read_at, unread_at) => {
                let now = age(file);
                if now.is_none() || now == *read_at {
                    return None;
                }
                let read = read(file);
                // A program that writes the file anew empties it first. So a file that makes no
                // sense is read once more, at the next look.
                if read.is_err() && std::mem::replace(unread_at, now) != now {
                    return None;
                }
                *read_at = now;
                Some(read)
            }
            Source::Rack(followed) => followed.changed().map(Ok),
        }
    }
}

/// Between attempts to reach nodes of a list: at first, and at most. Signals to the program wait
/// while an attempt lasts, so all but the first are short.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: Duration = Duration::from_secs(16);

/// A list that is not carried out yet.
struct Wanted {
    nodes: Vec<RunNode>,
    /// The next attempt, and how long after it the one that follows.
    at: Instant,
    wait: Duration,
    /// The reasons that were printed: each is printed once.
    said: Vec<String>,
    /// Attempts so far. Each begins with another node.
    tries: usize,
}

/// The run's list of nodes.
pub struct Roster {
    source: Source,
    counters: PathBuf,
    /// How the run's processes call each node that is on the list, and the node's incarnation. A
    /// node that left the list is not here: it may come back as another process.
    told: HashMap<NodeAddr, (String, u64)>,
    /// The latest list, while some of its nodes are not reached.
    wanted: Option<Wanted>,
}

impl Roster {
    /// As the run begins with it.
    pub fn begin(source: Source, counters: &Path, far: &Far) -> Roster {
        let told = far.known().map(|(node, incarnation)| (node.at.clone(), (node.to_string(), incarnation))).collect();
        Roster { source, counters: counters.to_owned(), told, wanted: None }
    }

    /// Carries out a change of the list, if there is one. Nodes that are not reached are tried
    /// again until they are, or until the list is another. Errors are reported, and the run goes on
    /// as before.
    pub fn look(&mut self, far: &mut Far) {
        match self.source.changed() {
            Some(Ok(nodes)) => {
                self.wanted = Some(Wanted { nodes, at: Instant::now(), wait: AGAIN, said: Vec::new(), tries: 0 });
            }
            Some(Err(why)) => eprintln!("farmem: {why}; the run goes on with the nodes that it has"),
            None => {}
        }
        let Some(mut wanted) = self.wanted.take_if(|wanted| wanted.at <= Instant::now()) else { return };
        let within = if wanted.said.is_empty() { far::ANSWER_WITHIN } else { AGAIN };
        match self.change(&wanted.nodes, far, (within, wanted.tries)) {
            Ok(None) => {}
            Ok(Some(unreached)) => {
                wanted.tries += 1;
                for why in unreached.into_iter().filter(|why| !wanted.said.contains(why)).collect::<Vec<_>>() {
                    eprintln!("farmem: {why}; the run goes on with the nodes that it has, and tries again");
                    wanted.said.push(why);
                }
                wanted.at = Instant::now() + wanted.wait;
                wanted.wait = (2 * wanted.wait).min(SELDOM);
                self.wanted = Some(wanted);
            }
            Err(why) => eprintln!("farmem: {why}; the run goes on with the nodes that it has"),
        }
    }

    /// Reaches what is new, and tells the run's processes. Returns why nodes were not reached;
    /// `None`: all were. As long as one is not, no node is taken out: it may hold what the others
    /// have no room for. The attempt ends with the first that was not reached `within` that time.
    fn change(
        &mut self,
        nodes: &[RunNode],
        far: &mut Far,
        (within, tries): (Duration, usize),
    ) -> Result<Option<Vec<String>>, String> {
        let until = Instant::now() + within;
        let mut unreached: Option<Vec<String>> = None;
        for node in nodes.iter().cycle().skip(tries % nodes.len().max(1)).take(nodes.len()) {
            if self.told.contains_key(&node.at) {
                continue;
            }
            // Signals to the program wait meanwhile.
            if Instant::now() >= until {
                unreached.get_or_insert_default();
                break;
            }
            match far.join(node, within) {
                Ok(joined) => drop(self.told.insert(node.at.clone(), joined)),
                Err(failure) => unreached.get_or_insert_default().push(failure.line),
            }
        }
        let told = &self.told;
        // Two copies would be one, and memory that there is once be counted twice.
        let known = |at: usize| told.get(&nodes[at].at).map(|(_, incarnation)| incarnation);
        let same = |at: usize| (0..at).find(|&before| known(before).is_some() && known(before) == known(at));
        let twice = (0..nodes.len()).find_map(|at| same(at).map(|before| (before, at)));
        if let (Some((one, other)), Source::File(..)) = (twice, &self.source) {
            return Err(format!("{} and {} are the same node", nodes[one].at, nodes[other].at));
        }
        let (mut list, mut left) = (Vec::new(), Vec::new());
        // A controller may give a node twice. It is taken once, and nothing is refused.
        for at in (0..nodes.len()).filter(|&at| same(at).is_none()) {
            list.extend(told.get(&nodes[at].at).map(|(called, _)| called.as_str()));
        }
        let is_left = |at: &&NodeAddr| nodes.iter().all(|node| node.at != **at);
        match unreached {
            None => left.extend(told.keys().filter(is_left).cloned()),
            // By another address it may be on the list.
            Some(_) => list.extend(told.iter().filter_map(|(at, (called, incarnation))| {
                let is_known = (0..nodes.len()).any(|at| known(at) == Some(incarnation));
                (is_left(&at) && !is_known).then_some(called.as_str())
            })),
        }
        counters::tell_roster(&self.counters, &list.join(",")).map_err(|e| format!("the nodes cannot be told: {e}"))?;
        left.iter().for_each(|at| drop(self.told.remove(at)));
        Ok(unreached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_file_of_nodes_is_read_by_lines() {
        let file = std::env::temp_dir().join(format!("farmem-roster-{}", std::process::id()));
        let reads = |text: &str| {
            fs::write(&file, text).unwrap();
            read(&file).map(|nodes| nodes.iter().map(RunNode::to_string).collect::<Vec<_>>())
        };
        assert_eq!(reads("# mine\n a:1@rack7 \n\nunix:/s\n"), Ok(vec!["a:1@rack7".to_owned(), "unix:/s".to_owned()]));
        for bad in ["", "# none\n", "a:1,b:2\n", "a\n", "a:1\nb:1\na:1\n"] {
            assert!(reads(bad).is_err(), "{bad:?}");
        }
        fs::remove_file(&file).unwrap();
        assert!(read(&file).is_err());
    }

    /// A file that is written anew is empty for a moment.
    #[test]
    fn a_file_that_is_just_being_written_is_read_again() {
        let file = std::env::temp_dir().join(format!("farmem-roster-anew-{}", std::process::id()));
        fs::write(&file, "a:1\n").unwrap();
        let mut source = Source::file(&file);
        let writes = |text: &str, age: u64| {
            let opened = fs::File::create(&file).unwrap();
            (&opened).write_all(text.as_bytes()).unwrap();
            opened.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(age)).unwrap();
        };
        writes("", 1);
        assert!(source.changed().is_none());
        // Within one tick of the file system's clock, too.
        writes("b:1\n", 1);
        assert_eq!(source.changed().map(|nodes| nodes.map(|nodes| nodes.len())), Some(Ok(1)));
        writes("", 2);
        assert!(source.changed().is_none());
        assert!(source.changed().is_some_and(|nodes| nodes.is_err_and(|why| why.contains("it names no node"))));
        assert!(source.changed().is_none(), "it is told once");
        fs::remove_file(&file).unwrap();
    }

    /// As a shell's `<(command)` is. A read of one that nobody writes to ends by itself, and it is not
    /// read again: its time of change would be that of each word.
    #[test]
    fn a_pipe_of_nodes_is_read_once() {
        let file = std::env::temp_dir().join(format!("farmem-roster-pipe-{}", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let writer = std::thread::spawn({
            let file = file.clone();
            move || fs::write(file, "a:1\nb:2\n").unwrap()
        });
        assert_eq!(read(&file).map(|nodes| nodes.len()), Ok(2));
        writer.join().unwrap();
        let mut source = Source::file(&file);
        let _writer = fs::File::options().read(true).write(true).open(&file).unwrap();
        assert!(source.changed().is_none());
        let begun = std::time::Instant::now();
        let why = read(&file).unwrap_err();
        assert!(why.contains("nobody has written"), "{why}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        fs::remove_file(&file).unwrap();
    }
}
