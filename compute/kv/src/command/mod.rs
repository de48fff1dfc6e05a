//! The commands that clients can send.
//!
//! A command is an `async` function of the store, the client and its arguments, and ends with a
//! reply. Commands on one key take effect at once, at one moment, for every front end. So do commands
//! that change several keys, or one by others ([`several`]), those that read several ([`glance`]),
//! transactions and scripts ([`multi`], [`scripts`]).

mod access;
mod args;
mod bits;
mod channels;
mod clients;
mod describe;
mod draft;
mod dump;
mod extended;
pub mod gathered;
mod glance;
mod hyperloglog;
mod in_turn;
mod info;
mod keys;
pub mod long;
pub mod monitor;
mod multi;
pub mod notify;
pub(crate) mod room;
pub mod scripts;
mod server;
mod several;
mod stats;
mod strings;
mod subcommands;
mod table;
mod types;

use crate::keyspace::Keyspace;
use crate::resp::{Reply, Request};
use crate::shard::Trouble;
use crate::task::Io;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

pub(crate) use args::parse_int;
pub use channels::{Channels, Forward, Heard, show};
pub use clients::{Pause, Replies};
pub use draft::Draft;
pub use info::metrics;
pub use multi::{Multi, Transaction, exec};
pub use stats::Stats;
pub use table::{COMMANDS, Command, Group, find};
pub use types::is_sound;

/// Why a command ends early: the reply that says it.
#[derive(Clone, PartialEq, Debug)]
pub struct Fail(pub Reply);

impl From<Trouble> for Fail {
    fn from(trouble: Trouble) -> Fail {
        Fail(Reply::Error(trouble.to_string()))
    }
}

impl Fail {
    /// An error of the common kind.
    pub fn new(text: impl std::fmt::Display) -> Fail {
        Fail(Reply::error(text))
    }

    /// A key of another type.
    pub fn wrong_type() -> Fail {
        Fail(Reply::Error("WRONGTYPE Operation against a key holding the wrong kind of value".into()))
    }

    /// Whether it is [`Fail::wrong_type`].
    pub fn is_wrong_type(&self) -> bool {
        matches!(&self.0, Reply::Error(text) if text.starts_with("WRONGTYPE"))
    }

    /// Arguments that do not fit together.
    pub fn syntax() -> Fail {
        Fail::new("syntax error")
    }
}

/// The end of a command.
pub type Answered = Result<Reply, Fail>;

/// A client's connection.
#[derive(Debug)]
pub struct Client {
    /// Its number.
    pub id: u64,
    /// Where it comes from.
    pub address: String,
    /// Where it has connected to.
    pub local: String,
    /// When it came, in ms since 1970.
    pub since_ms: u64,
    /// Version of the protocol that it speaks.
    pub version: Cell<u8>,
    /// The name that it gave itself.
    pub name: RefCell<Vec<u8>>,
    /// Library and version that it calls itself.
    pub library: RefCell<[Vec<u8>; 2]>,
    /// Its last command.
    pub last: Cell<&'static str>,
    /// When it last sent something, in ms since 1970.
    pub seen_ms: Cell<u64>,
    /// Bytes of replies that it has not read.
    pub unread: Cell<usize>,
    /// Bytes of replies that its commands gather, and of those that wait for others before them: see
    /// [`room`].
    pub gathered: Cell<usize>,
    /// Bytes of the collections that its commands read, by their order: see [`room::Reads`].
    pub reading: RefCell<BTreeMap<u64, usize>>,
    /// Whether it is told of all commands.
    pub monitors: Cell<bool>,
    /// Which replies it is sent.
    pub replies: Cell<Replies>,
    /// To be closed when it has been answered.
    pub closing: Cell<bool>,
    /// Whether it may give commands.
    pub authenticated: Cell<bool>,
    /// It comes from another machine, and no password protects the store: it is told so.
    pub stranger: Cell<bool>,
    /// It has closed its connection, or the connection is of no more use.
    pub gone: Cell<bool>,
    /// Whether its command waits for an element.
    pub blocked: Cell<bool>,
    /// CLIENT UNBLOCK was given for it: with an error, or as if its time was over.
    pub unblocked: Cell<Option<bool>>,
    /// The transaction that it collects.
    multi: RefCell<Option<Multi>>,
    /// Keys that it watches, and what they were.
    watched: RefCell<Vec<multi::Watched>>,
    /// The channels and patterns that it has subscribed to.
    names: RefCell<channels::Names>,
}

impl Client {
    /// One that has just come.
    pub fn new(id: u64, [address, local]: [String; 2], since_ms: u64) -> Client {
        Client {
            id,
            address,
            local,
            since_ms,
            version: Cell::new(2),
            name: RefCell::default(),
            library: RefCell::default(),
            last: Cell::new("NULL"),
            seen_ms: Cell::new(since_ms),
            unread: Cell::new(0),
            gathered: Cell::new(0),
            reading: RefCell::default(),
            monitors: Cell::new(false),
            replies: Cell::default(),
            closing: Cell::new(false),
            authenticated: Cell::new(true),
            stranger: Cell::new(false),
            gone: Cell::new(false),
            blocked: Cell::new(false),
            unblocked: Cell::new(None),
            multi: RefCell::default(),
            watched: RefCell::default(),
            names: RefCell::default(),
        }
    }

    /// Bytes that it makes the front end hold.
    pub fn held(&self) -> usize {
        self.gathered.get() + self.unread.get()
    }

    /// Whether nobody reads the reply to a command that waits.
    fn is_lost(&self) -> bool {
        self.gone.get() || self.closing.get()
    }
}

/// The state that all commands of a front end share.
#[derive(Debug)]
pub struct Front {
    /// The store.
    pub store: Rc<Keyspace>,
    /// Connections by their numbers.
    pub clients: RefCell<BTreeMap<u64, Rc<Client>>>,
    /// Commands that wait for an element.
    pub blocked: Cell<u64>,
    /// Clients whose command waits for the end of a pause.
    pub paused: Cell<u64>,
    /// Those clients in the order in which they began to wait: whether for sorted sets, and of
    /// which keys.
    pub waiters: RefCell<BTreeMap<u64, (bool, Request)>>,
    /// A transaction runs alone, or is about to.
    pub alone: Cell<bool>,
    /// The client whose command runs alone now.
    pub turn: Cell<Option<u64>>,
    /// Clients whose command is under way, and waits until it is alone.
    pub wanting: RefCell<VecDeque<u64>>,
    /// Commands on several keys, and others of the same keys.
    pub in_turn: in_turn::InTurn,
    /// Transactions on several keys that are under way.
    pub transactions: Cell<u32>,
    /// A pause of clients' commands.
    pub pause: Cell<Pause>,
    /// Where it listens.
    pub port: u16,
    /// Bytes of front ends' pieces at most, as given.
    pub maxmemory: u64,
    /// Connections at most.
    pub most_clients: usize,
    /// Connections that were refused.
    pub rejected: Cell<u64>,
    /// The password that clients must give first.
    pub password: Option<Vec<u8>>,
    /// Connections to be closed.
    pub killed: RefCell<Vec<u64>>,
    /// The costs of commands.
    pub stats: Stats,
    /// Turns of the event loop.
    pub turns: Cell<u64>,
    /// Scripts that clients have sent.
    pub scripts: scripts::Scripts,
    /// Subscriptions of its clients.
    pub channels: Channels,
    /// Which changes of keys are published.
    pub events: notify::Events,
    /// Clients that are told of all commands.
    pub monitors: monitor::Monitors,
    /// Bytes that all clients make it hold: see [`room`].
    pub held: Rc<Cell<usize>>,
}

impl Front {
    /// Whether a client's request has to wait for the end of a pause. CLIENT does not: it ends one. Nor do
    /// those that are only collected, or refused.
    pub fn is_paused(&self, client: &Client, request: &Request) -> bool {
        let pause = self.pause.get();
        if pause.until_ms <= self.store.now_ms() {
            return false;
        }
        let Some(command) = find(&request[0]).filter(|command| command.takes(request.len())) else { return false };
        match command.name {
            "client" => false,
            "exec" if pause.spares_reads => client.would_change(),
            _ if client.collects() => !pause.spares_reads,
            "eval" if pause.spares_reads => !scripts::only_reads(&request[1]),
            _ => !pause.spares_reads || command.changes(),
        }
    }
}

/// A command with all that it may use.
#[derive(Clone, Debug)]
pub struct Call {
    /// The front end.
    pub front: Rc<Front>,
    /// The client.
    pub client: Rc<Client>,
    /// The way to the memory.
    pub io: Io,
    /// The command's name and arguments.
    pub args: Rc<Request>,
    /// The draft on which it runs in a script, or in a transaction on one key.
    pub draft: Option<Rc<Draft>>,
    /// The argument that was written as it came, if there is one. Its bytes are not in `args`.
    pub given: Option<long::Given>,
    /// Whether EXEC runs it, so that it must not wait.
    pub in_exec: bool,
    /// The version of the protocol that a script which runs it has asked for.
    pub script: Option<u8>,
    /// What it reads as a whole.
    pub(crate) reads: Rc<room::Reads>,
    /// Whether it has the turn of its keys: other commands of this front end that change them wait.
    pub in_turn: bool,
}

impl Call {
    /// A request of a client.
    pub fn new(front: &Rc<Front>, client: &Rc<Client>, io: Io, args: Request) -> Call {
        let (front, client) = (Rc::clone(front), Rc::clone(client));
        let (args, draft, given) = (Rc::new(args), None, None);
        let reads = Rc::new(room::Reads::new(&client, &front.held));
        Call { front, client, io, args, draft, given, in_exec: false, script: None, reads, in_turn: false }
    }

    /// The version of the protocol whose forms the reply has.
    fn version(&self) -> u8 {
        self.script.unwrap_or(self.client.version.get())
    }

    fn store(&self) -> &Keyspace {
        &self.front.store
    }

    fn arg(&self, n: usize) -> &[u8] {
        self.args.get(n).map_or(&[], |arg| arg)
    }

    fn count(&self) -> usize {
        self.args.len()
    }
}

/// Carries out a request.
pub async fn execute(call: Call) -> Reply {
    let refused = match (find(call.arg(0)), &call.given) {
        (None, _) => unknown(&call.args),
        (Some(_), Some((_, Err(trouble)))) => Reply::Error(trouble.to_string()),
        (Some(command), _) if !command.takes(call.count()) => wrong_number(command.name),
        (Some(command), _) => {
            call.client.last.set(command.name);
            let reply = dispatch(command, &call).await;
            return room::whole(command, &call, reply);
        }
    };
    call.front.stats.refused(&refused);
    refused
}

/// Carries out a command whose number of arguments is right.
async fn dispatch(command: &'static Command, call: &Call) -> Reply {
    let figures = &call.front.store.figures;
    figures.commands.set(figures.commands.get() + 1);
    let begun = Instant::now();
    let answered = match several::joint(command, call) {
        Some(keys) => Box::pin(several::together(command, call, keys)).await,
        None if glance::looks_up(command, call) => Box::pin(glance::sorted(command, call)).await,
        None => match glance::read(command, call) {
            Some(keys) => Box::pin(glance::glance(command, call, keys)).await,
            None => carry_out(command, call).await,
        },
    };
    let reply = answered.unwrap_or_else(|fail| fail.0);
    call.front.stats.record(command, call, begun.elapsed(), &reply);
    reply
}

async fn carry_out(command: &'static Command, call: &Call) -> Answered {
    if let Some(told) = subcommands::help(command, call) {
        return told;
    }
    // A command's future is as large as that of its largest part. Strings are the common case and
    // need little.
    match command.group {
        Group::Strings => strings::run(command.name, call).await,
        Group::Bits => Box::pin(bits::run(command.name, call)).await,
        Group::Lists => Box::pin(types::lists(command.name, call)).await,
        Group::Moves => Box::pin(types::moves(command.name, call)).await,
        Group::Hashes => Box::pin(types::hashes(command.name, call)).await,
        Group::Sets => Box::pin(types::sets(command.name, call)).await,
        Group::SortedSets => Box::pin(types::sorted(command.name, call)).await,
        Group::Ranges => Box::pin(types::ranges(command.name, call)).await,
        Group::Combined => Box::pin(types::combined(command.name, call)).await,
        Group::Places => Box::pin(types::places(command.name, call)).await,
        Group::Counts => Box::pin(hyperloglog::run(command.name, call)).await,
        Group::Streams => Box::pin(types::streams(command.name, call)).await,
        Group::Scripts => Box::pin(scripts::run(command.name, call)).await,
        Group::Channels => Box::pin(channels::run(command.name, call)).await,
        Group::Keys => Box::pin(keys::run(command.name, call)).await,
        Group::Server => Box::pin(server::run(command.name, call)).await,
    }
}

fn wrong_number(name: &str) -> Reply {
    Reply::error(format!("wrong number of arguments for '{name}' command"))
}

/// Parts of redis that a store does not have, by their commands' names.
const MISSING: [(&[&str], &str); 6] = [
    (&["fcall", "fcall_ro"], "has no functions"),
    (&["save", "bgsave", "bgrewriteaof", "lastsave"], "is saved by farmem kv save"),
    (&["shutdown"], "is served until its front ends get SIGTERM"),
    (
        &["replicaof", "slaveof", "psync", "sync", "replconf", "failover"],
        "has no replicas: its nodes hold two copies with --protect mirror, and any number of front ends serve it",
    ),
    (&["asking", "restore-asking", "migrate"], "is no redis cluster: each of its front ends serves all keys"),
    (&["lolwut", "pfdebug", "pfselftest"], "does not have it"),
];

/// The error for a command that is not supported. It names the command.
fn unknown(args: &Request) -> Reply {
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned();
    let mut beginning = String::new();
    for arg in args.iter().skip(1) {
        if beginning.len() > 128 {
            break;
        }
        beginning += &format!("'{}' ", text(arg));
    }
    let name = text(&args[0]);
    if let Some((_, why)) = MISSING.iter().find(|(names, _)| names.contains(&name.to_ascii_lowercase().as_str())) {
        return Reply::error(format!("unknown command '{name}': a farmem store {why}"));
    }
    Reply::error(format!("unknown command '{name}', with args beginning with: {beginning}"))
}
