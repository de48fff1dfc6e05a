//! `hot-paths PATH TIMES`: one hot path, so many times, and nothing else.
//!
//! `tests/tests/instructions.rs` runs each path twice under valgrind, with
//! different numbers of times, and divides the difference: what starting and
//! ending cost falls out. A path's work per time is fixed, drawn from a fixed
//! seed, and waits for nobody.

use std::hint::black_box;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use farmem_agent::client::{self, Client};
use farmem_agent::host::{self, Agent};
use farmem_agent::stock::Quotas;
use farmem_cache::prefetch::{Prefetcher, Window};
use farmem_cache::{Arrival, recommended};
use farmem_fabric::{ConnectOptions, NodeAddr, Session, Transport, Trust};
use farmem_memory::{Config, Node};
use farmem_pager::log::{Gathered, Logged};
use farmem_pager::table::Table;
use farmem_pager::word::{State, Word};
use farmem_protocol::addr::{FarSlot, PAGE_BYTES, PageId, SLAB_BYTES, SLOTS_PER_SLAB, SlabId};
use farmem_protocol::lines::conditional::{self, Conditional};
use farmem_protocol::lines::{Entry, MAX_RECORD_BYTES, Record, encode, runs_of};
use farmem_protocol::random::Random;
use farmem_protocol::wire::{Batch, Op, Verb};
use farmem_sys::lines::{Brief, Hasher, Unit, WHOLE_TOP};
use zerocopy::{FromBytes, IntoBytes};

/// Pages that are local in the paths of the cache and of the pager: 64 MiB.
const LOCAL: u64 = 16_384;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_default();
    let times: u64 = arguments.next().and_then(|times| times.parse().ok()).expect("hot-paths PATH TIMES");
    match path.as_str() {
        "fault" => fault(times),
        "leave" => leave(times),
        "policy" => policy(times),
        "prefetch-random" => prefetch(times, &mut draw(1 << 24)),
        "prefetch-sequential" => prefetch(times, &mut (0..).map(PageId)),
        "frame" => frame(times),
        "read-shm" => read_shm(times),
        "lines" => lines(times),
        "record" => record(times),
        "allocate" => allocate(times),
        "agent" => be_agent(),
        _ => panic!("no such path: {path}"),
    }
}

/// Pages in no order, below a bound.
fn draw(below: u64) -> impl Iterator<Item = PageId> {
    let mut random = Random::new(7);
    std::iter::repeat_with(move || PageId(random.below(below)))
}

/// Pages of which the policy hears together.
const NOTES: usize = 64;

/// A page that is remote comes in: its word, the policy, the prefetcher. The kernel's part is left out.
fn fault(times: u64) {
    let table = Table::of(4 * LOCAL as usize).expect("address space");
    let mut policy = recommended(LOCAL as usize);
    let (mut prefetcher, mut window) = (Prefetcher::new(), Window::new());
    let remote = Word::UNTOUCHED.with_slot(Some(FarSlot::new(0, 0))).to(State::Remote);
    let (mut victims, mut arrived) = (Vec::with_capacity(256), Vec::with_capacity(NOTES));
    for page in draw(4 * LOCAL).take(times as usize) {
        let word = table.word(page);
        if word.load() == Word::UNTOUCHED {
            table.touched(page);
            word.set(remote);
        }
        let seen = word.load();
        if seen.state() == State::Remote && word.shift(seen, seen.to(State::Busy)) {
            prefetcher.fault(page, &mut window, |_| true);
            arrived.push((page, Arrival::Demand));
            word.settle(seen.to(State::Resident));
        }
        if arrived.len() == NOTES {
            policy.all_arrived(&arrived);
            arrived.clear();
        }
        if policy.len() as u64 > LOCAL - 512 {
            policy.victims(256, &mut victims);
            for page in victims.drain(..) {
                table.word(page).set(remote);
            }
        }
    }
    black_box(&window);
}

/// A batch of 256 pages leaves: their words, without the kernel's part and the copying.
fn leave(times: u64) {
    let table = Table::of(4 * LOCAL as usize).expect("address space");
    let resident = Word::UNTOUCHED.with_slot(Some(FarSlot::new(0, 0))).to(State::Resident);
    let pages: Vec<PageId> = draw(4 * LOCAL).take(256).collect();
    for _ in 0..times {
        for &page in &pages {
            table.word(page).set(resident);
        }
        for &page in &pages {
            let seen = table.word(page).load();
            if seen.state() == State::Resident && seen.pins() == 0 {
                black_box(table.word(page).shift(seen, seen.to(State::Leaving)));
            }
        }
        for &page in &pages {
            let seen = table.word(page).load();
            table.word(page).set(seen.to(State::Remote));
        }
    }
}

/// 256 pages arrive in a full cache, a quarter of them for the second time, and 256 leave.
fn policy(times: u64) {
    let mut policy = recommended(LOCAL as usize);
    let mut pages = draw(4 * LOCAL);
    let mut victims = Vec::with_capacity(256);
    for _ in 0..times {
        for page in pages.by_ref().take(256) {
            policy.arrived(page, Arrival::Demand);
        }
        if policy.len() as u64 > LOCAL - 512 {
            policy.victims(256, &mut victims);
            victims.clear();
        }
    }
    black_box(policy.len());
}

fn prefetch(times: u64, pages: &mut dyn Iterator<Item = PageId>) {
    let (mut prefetcher, mut window) = (Prefetcher::new(), Window::new());
    for page in pages.take(times as usize) {
        prefetcher.fault(black_box(page), &mut window, |_| true);
        prefetcher.fetched(window.len() as u32);
    }
    black_box(prefetcher.tally());
}

/// A batch of one READ is written as a frame, and read and judged, as the node does.
fn frame(times: u64) {
    let mut bytes = [0u8; size_of::<Batch>() + size_of::<Verb>()];
    for at in 0..times {
        let batch = Batch { count: 1.into(), zero: 0.into(), bytes: 0.into(), first: black_box(at).into() };
        let (offset, len) = (black_box(at % 64) * PAGE_BYTES as u64, PAGE_BYTES as u32);
        let verb = Verb { op: Op::Read as u8, zero: [0; 3], len: len.into(), key: 7.into(), offset: offset.into() };
        batch.write_to_prefix(&mut bytes).expect("room for both");
        verb.write_to_suffix(&mut bytes).expect("room for both");
        let (batch, rest) = Batch::read_from_prefix(black_box(&bytes)).expect("as long as both");
        let verb = Verb::read_from_bytes(rest).expect("as long as both");
        black_box((batch.check(&[verb]).is_ok(), verb.offset.get(), verb.key.get()));
    }
}

/// A READ over shared memory: posted, rung, polled. Of a word: of a page, valgrind would count the copy of every byte.
fn read_shm(times: u64) {
    let path = std::env::temp_dir().join(format!("farmem-hot-paths-{}.sock", std::process::id()));
    let node = Node::start(&Config::new(SLAB_BYTES, vec![NodeAddr::Shm(path)]));
    let node = node.expect("a node in this process");
    let options = ConnectOptions {
        timeout: Duration::from_secs(20),
        grace: Duration::from_secs(20),
        run: [1; 16],
        pid: std::process::id(),
        transport: Transport::Shm,
        ..ConnectOptions::default()
    };
    let session = Session::connect(&node.addresses()[0], &options).expect("the node answers");
    let slab = session.grant().expect("a slab").id;
    let mut queue = session.queue_pair().expect("a queue pair");
    let mut word = [0u8; 8];
    let mut done = Vec::with_capacity(1);
    for at in 0..times {
        let offset = at % 64 * PAGE_BYTES as u64;
        #[allow(unsafe_code)]
        // SAFETY: the word outlives the verb, which is awaited here.
        unsafe {
            queue.read(at, slab, offset, word.as_mut_ptr(), word.len() as u32)
        };
        queue.doorbell().expect("the node is here");
        while done.is_empty() {
            queue.poll(&mut done).expect("the node is here");
        }
        done.clear();
    }
    black_box(&word);
}

/// Where the agent of `allocate` has its files. It ends with its standard input.
const AGENT_DIR: &str = "FARMEM_HOT_PATHS_AGENT";

/// A chunk of 4 KiB is had and given back, of those granted ahead. The agent is a process of its own: valgrind does
/// not count it, and 3.19 has no `pidfd_open`, by which an agent watches programs.
fn allocate(times: u64) {
    let dir = std::env::temp_dir().join(format!("farmem-hot-paths-agent-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let mut agent = Command::new(std::env::current_exe().expect("this program"));
    agent.args(["agent", "0"]).env(AGENT_DIR, &dir).stdin(Stdio::piped());
    let mut agent = agent.spawn().expect("an agent");
    let patience = Duration::from_secs(60);
    let options = client::Options { socket: host::socket(&dir), job: String::new(), patience, start: None };
    let client = Client::connect(options).expect("the agent listens");
    // Neither so few are left that more are asked for, nor so many that some go back.
    let kept: Vec<_> = (0..200).map(|_| client.alloc(0).expect("a chunk")).collect();
    kept.into_iter().for_each(|chunk| client.free(chunk));
    let before = client.counts();
    for _ in 0..times {
        let chunk = client.alloc(0).expect("a chunk");
        client.free(black_box(chunk));
    }
    assert_eq!(client.counts(), before, "the agent was spoken to");
    drop(client);
    drop(agent.stdin.take());
    agent.wait().expect("the agent ends");
    let _ = std::fs::remove_dir_all(&dir);
}

/// A node and an agent, until standard input ends.
fn be_agent() {
    let dir = PathBuf::from(std::env::var_os(AGENT_DIR).expect("a directory"));
    let node = dir.join("node.sock");
    let lends = Node::start(&Config::new(4 * SLAB_BYTES, vec![NodeAddr::Shm(node.clone())]));
    let _node = lends.expect("a node in this process");
    let grace = Duration::from_secs(20);
    let (node, transport) = (NodeAddr::Shm(node), Transport::Shm);
    let config =
        host::Config { dir, node, transport, quotas: Quotas::default(), idle: None, grace, trust: Trust::default() };
    let agent = Agent::start(config).expect("an agent in this process");
    let service = std::sync::Arc::clone(agent.service());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        service.stop();
    });
    agent.run(&mut |_| ()).expect("it serves");
    agent.close();
}

/// A page comes and leaves: its lines hashed, and compared.
fn lines(times: u64) {
    let hasher = Hasher::new(&std::array::from_fn(|i| (i * 151 + 17) as u8), Unit::best());
    let (mut page, mut was): ([u8; PAGE_BYTES], Brief) = (std::array::from_fn(|i| i as u8), Brief::default());
    for at in 0..times as usize {
        #[allow(unsafe_code)]
        // SAFETY: a live array, before and after the change.
        unsafe {
            was.take(&hasher, black_box(page.as_ptr()));
            page[at * 64 % PAGE_BYTES] ^= 0xFF;
            black_box(was.compare(&hasher, black_box(page.as_ptr()), None, WHOLE_TOP));
        }
    }
}

/// 256 pages with four changed lines each: put in order, gathered into records with conditions, and these judged, as the
/// node does: their form, their checksum, and of each page's lines what is there before them.
fn record(times: u64) {
    let copies: Vec<[u8; PAGE_BYTES]> = (0..16).map(|n| [n; PAGE_BYTES]).collect();
    let hasher = Hasher::new(&[7; 16], Unit::best());
    let (mut gathered, mut entries) = (Gathered::default(), Vec::new());
    let mut buffer = vec![0; MAX_RECORD_BYTES];
    for _ in 0..times {
        for nth in 0..256u32 {
            let slot = FarSlot::new(nth % 2, nth * 7919 % SLOTS_PER_SLAB);
            gathered.note(Logged { slot, lines: 0x0001_0010_0100_1000 << (nth % 8), copy: nth, was: 0 });
        }
        gathered.order();
        for pages in gathered.records() {
            entries.clear();
            let entry = |page: &Logged| Entry { place: (page.slot.place() as u16).into(), lines: page.lines.into() };
            entries.extend(pages.iter().map(entry));
            let slab = SlabId(pages[0].slot.slab_index() as u64);
            let copy = |at: usize| &copies[pages[at].copy as usize % copies.len()];
            let len = encode(slab, &entries, &mut buffer, copy).expect("a record");
            let was = pages.iter().map(|page| page.was);
            let len = conditional::append(&mut buffer, len, was, hasher.seed()).expect("conditions");
            let split = Conditional::split(black_box(&buffer[..len])).expect("by the rules");
            let record = Record::parse(slab, split.record).expect("by the rules");
            black_box(record.places().fold(0, |sum, place| sum ^ place));
            for ((base, lines, bytes), was) in record.check().expect("what was sent").by_page().zip(split.was) {
                black_box(hasher.sum_in(&copies[0], lines) == was.get());
                black_box(runs_of(base, lines, bytes).fold(0, |sum, (offset, _)| sum ^ offset));
            }
        }
    }
}
