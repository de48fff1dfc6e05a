//! All settings of a run, and the text that carries them to its processes in the variable
//! `FARMEM_RUN`.
//!
//! ```text
//!  farmem run: flags, variables, files ─► RunSpec ─► to_text ─► FARMEM_RUN
//!                                  runtime, pager ◄─ RunSpec ◄─ parse ◄┘
//! ```
//!
//! The text is `key=value` pairs separated by `;`. Both ends are of one build, because `farmem run`
//! carries the library and writes it out. So nothing is guessed: a key or value that is not known
//! is an error, and so is a key that comes twice.

use crate::choice::{Choice, Dirty, Faults, Prefetch, Protect, Seal};
use crate::mask::Mask;
use farmem_protocol::node::{BadNode, RunNode, Transport};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The version of the text.
const VERSION: &str = "2";
/// Characters that an error quotes of a text, at most.
const QUOTED: usize = 60;

/// A run's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunSpec {
    /// The run's secret name.
    pub run: [u8; 16],
    /// The limit on each process's resident far memory, bytes.
    pub local: u64,
    /// Its nodes.
    pub nodes: Vec<RunNode>,
    /// Something relays between this host and a node.
    pub relayed: bool,
    /// Its nodes may change: the counters file has them.
    pub changes: bool,
    /// How its far memory is protected.
    pub protect: Protect,
    /// The directory of the file that holds copies of pages, if there is one.
    pub disk: Option<String>,
    /// How bytes move.
    pub transport: Transport,
    /// How long a cut connection may take to come back. Whole milliseconds.
    pub grace: Duration,
    /// Bits a second to which TCP is held.
    pub shape: Option<u64>,
    /// The thread that serves page faults.
    pub faults: Faults,
    /// Whether pages are fetched ahead.
    pub prefetch: Prefetch,
    /// How changed bytes are told.
    pub dirty: Dirty,
    /// Features that are masked.
    pub mask: Mask,
    /// Path of the counters file.
    pub counters: Option<String>,
    /// Where to record the page trace, if at all; other processes of the run: FILE.PID.
    pub trace: Option<String>,
    /// Path of the token by which it borrows, if its nodes ask for one.
    pub token: Option<String>,
    /// Bytes go over TCP unencrypted, even if there is a token.
    pub plain: bool,
    /// How pages are sealed, if its nodes are not trusted.
    pub seal: Seal,
    /// Where faults are counted by place, if they are.
    pub sites: Option<String>,
    /// Record a sample of the pages only, and keep all others local.
    pub sample: bool,
}

impl Default for RunSpec {
    /// The settings of a run without flags. It has no name, no local memory and no nodes yet.
    fn default() -> RunSpec {
        RunSpec {
            run: [0; 16],
            local: 0,
            nodes: Vec::new(),
            relayed: false,
            changes: false,
            protect: Protect::None,
            disk: None,
            transport: Transport::Auto,
            grace: Duration::from_secs(5),
            shape: None,
            faults: Faults::Inline,
            prefetch: Prefetch::On,
            dirty: Dirty::Auto,
            mask: Mask::NONE,
            counters: None,
            trace: None,
            token: None,
            plain: false,
            seal: Seal::Off,
            sites: None,
            sample: false,
        }
    }
}

/// A setting that the text cannot carry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unwritable {
    /// Its key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unwritable { key, value } = self;
        let what = if *key == "node" { "a semicolon, a comma" } else { "a semicolon" };
        write!(f, "{key} {value:?} contains {what} or a zero byte, which farmem cannot pass on: choose another name")
    }
}

impl std::error::Error for Unwritable {}

/// Why a text is no run's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadSpec(String);

impl fmt::Display for BadSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FARMEM_RUN: {}; leave the variable as farmem run sets it", self.0)
    }
}

impl std::error::Error for BadSpec {}

impl RunSpec {
    /// The text that carries these settings to the run's processes.
    ///
    /// # Errors
    /// A path that contains what separates settings.
    pub fn to_text(&self) -> Result<String, Unwritable> {
        let run: String = self.run.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut pairs = vec![
            ("v", VERSION.to_owned()),
            ("run", run),
            ("local", self.local.to_string()),
            ("node", nodes_text(&self.nodes)?),
            ("relayed", flag(self.relayed)),
            ("changes", flag(self.changes)),
            ("protect", self.protect.name().to_owned()),
            ("transport", self.transport.name().to_owned()),
            ("grace_ms", self.grace.as_millis().to_string()),
            ("fault", self.faults.name().to_owned()),
            ("prefetch", self.prefetch.name().to_owned()),
            ("dirty", self.dirty.name().to_owned()),
            ("mask", self.mask.to_string()),
            ("sample", flag(self.sample)),
            ("plain", flag(self.plain)),
            ("seal", self.seal.name().to_owned()),
        ];
        pairs.extend(self.disk.clone().map(|path| ("disk", path)));
        pairs.extend(self.shape.map(|rate| ("shape", rate.to_string())));
        pairs.extend(self.counters.clone().map(|path| ("counters", path)));
        pairs.extend(self.trace.clone().map(|path| ("trace", path)));
        pairs.extend(self.token.clone().map(|path| ("token", path)));
        pairs.extend(self.sites.clone().map(|path| ("sites", path)));
        if let Some((key, value)) = pairs.iter().find(|(_, value)| value.contains([';', '\0'])) {
            return Err(Unwritable { key, value: value.clone() });
        }
        let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        Ok(pairs.join(";"))
    }

    /// Reads the text that [`RunSpec::to_text`] wrote.
    ///
    /// # Errors
    /// One line that names what is wrong.
    pub fn parse(text: &str) -> Result<RunSpec, BadSpec> {
        let mut spec = RunSpec::default();
        let mut seen: Vec<&str> = Vec::new();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| bad(format!("{} is not key=value", quoted(pair))))?;
            if seen.contains(&key) {
                return Err(bad(format!("{} comes twice", quoted(key))));
            }
            seen.push(key);
            spec.set(key, value)?;
        }
        match ["v", "run", "local"].iter().find(|key| !seen.contains(*key)) {
            Some(key) => Err(bad(format!("{key} is missing"))),
            None => Ok(spec),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), BadSpec> {
        let wrong = |what: &str| bad(format!("{key}={} is {what}", quoted(value)));
        match key {
            "v" if value == VERSION => {}
            "v" => return Err(wrong("of another version of farmem")),
            "run" => self.run = name(value).ok_or_else(|| wrong("not 32 hexadecimal digits"))?,
            "local" => self.local = number(value).ok_or_else(|| wrong("not a number"))?,
            "node" => self.nodes = nodes(value).map_err(|e| bad(e.to_string()))?,
            "relayed" => self.relayed = truth(value).ok_or_else(|| wrong("not 0 or 1"))?,
            "changes" => self.changes = truth(value).ok_or_else(|| wrong("not 0 or 1"))?,
            "protect" => {
                self.protect = Choice::named(value).ok_or_else(|| wrong("not none, mirror, disk or ec:K+M"))?
            }
            "disk" => self.disk = Some(value.to_owned()),
            "transport" => self.transport = Choice::named(value).ok_or_else(|| wrong("no transport"))?,
            "grace_ms" => {
                self.grace = Duration::from_millis(number(value).ok_or_else(|| wrong("not a number"))?);
            }
            "shape" => self.shape = Some(number(value).ok_or_else(|| wrong("not a number"))?),
            "fault" => self.faults = Choice::named(value).ok_or_else(|| wrong("no way to serve faults"))?,
            "prefetch" => self.prefetch = Choice::named(value).ok_or_else(|| wrong("not on or off"))?,
            "dirty" => self.dirty = Choice::named(value).ok_or_else(|| wrong("no policy"))?,
            "mask" => self.mask = value.parse().map_err(|e| bad(format!("mask: {e}")))?,
            "counters" => self.counters = Some(value.to_owned()),
            "trace" => self.trace = Some(value.to_owned()),
            "token" => self.token = Some(value.to_owned()),
            "plain" => self.plain = truth(value).ok_or_else(|| wrong("not 0 or 1"))?,
            "seal" => self.seal = Choice::named(value).ok_or_else(|| wrong("no way to seal pages"))?,
            "sites" => self.sites = Some(value.to_owned()),
            "sample" => self.sample = truth(value).ok_or_else(|| wrong("not 0 or 1"))?,
            _ => return Err(bad(format!("{} is not a setting", quoted(key)))),
        }
        Ok(())
    }
}

fn bad(why: String) -> BadSpec {
    BadSpec(why)
}

/// The beginning of a text that may be of any length, its control characters escaped.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn flag(on: bool) -> String {
    u8::from(on).to_string()
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// A number in digits: no sign.
fn number<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()))
}

fn name(value: &str) -> Option<[u8; 16]> {
    let is_name = value.len() == 32 && value.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(value, 16).ok().filter(|_| is_name).map(u128::to_be_bytes)
}

fn nodes_text(nodes: &[RunNode]) -> Result<String, Unwritable> {
    let each: Vec<String> = nodes.iter().map(RunNode::to_string).collect();
    match each.iter().find(|node| node.contains(',')) {
        Some(node) => Err(Unwritable { key: "node", value: node.clone() }),
        None => Ok(each.join(",")),
    }
}

fn nodes(value: &str) -> Result<Vec<RunNode>, BadNode> {
    match value {
        "" => Ok(Vec::new()),
        list => list.split(',').map(str::parse).collect(),
    }
}
